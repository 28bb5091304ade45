"""Plans: state layouts, and fingerprints that move with what is computed and with nothing else."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest

import watertable as wt
from tests import apps
from watertable.plan import plan
from watertable.plan.aggregates import Merge
from watertable.plan.fingerprints import DIALECT
from watertable.plan.plan import TableDef
from watertable.plan.purity import Purity, purity_of
from watertable.schema import Type

GOLDEN = {
    "retail": "wt1:fc79b3a6b4ced4a1",
    "inventory": "wt1:8c908645c07cc970",
    "prices": "wt1:aeffa7c395137d76",
    "customers": "wt1:dc32bb7fac02ddc8",
    "revenue_hourly": "wt1:f4e445ebea80079e",
    "sold_daily": "wt1:78b865518377d62f",
}
"""A change here is a new state format: say so in the CHANGELOG, and raise FINGERPRINT_VERSION if it was on purpose."""

STATE_COLUMNS = {
    "inventory": "inventory_caf5a736",
    "prices": "prices_bd049398",
    "customers": "customers_6f50814e",
    "revenue_hourly": "revenue_hourly_daf05201",
    "sold_daily": "sold_daily_338529fb",
}


def fingerprints() -> dict[str, str]:
    topology = apps.retail().topology()
    return {topology.app: topology.fingerprint} | {table.name: table.fingerprint for table in topology.tables}


def test_golden_fingerprints_have_not_moved() -> None:
    assert fingerprints() == GOLDEN


def test_golden_state_columns_have_not_moved() -> None:
    assert {table.name: table.state_column for table in apps.retail().topology().tables} == STATE_COLUMNS


def test_a_fingerprint_is_the_same_in_another_process_with_another_hash_seed() -> None:
    code = "from tests import apps; print(apps.retail().fingerprint)"
    env = {"PYTHONHASHSEED": "7", "PYTHONPATH": "."}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == GOLDEN["retail"]


def test_the_dialect_in_every_fingerprint_is_the_spark_that_runs_it() -> None:
    minor = ".".join(importlib.metadata.version("pyspark").split(".")[:2])
    assert DIALECT.startswith(f"spark {minor},")


def table_of(define: Callable[[wt.App, wt.Stream], wt.Table]) -> TableDef:
    app = wt.App("a")
    sales = app.topic("sales", key="sku STRING", value="qty INT, price DECIMAL(9,2)", description="what was sold").stream()
    define(app, sales).materialized_as("t")
    return app.topology().table("t")


def plain(_: wt.App, s: wt.Stream) -> wt.Table:
    return s.filter("qty > 1").group_by("sku").agg(n=wt.sum("qty * price"))


SAME = [
    pytest.param(lambda a, s: (s
                               .filter("qty   >   1")   # a comment
                               .group_by("sku").agg(n=wt.sum("(qty) * price"))), id="spaces, parentheses, lines, comments"),
    pytest.param(lambda a, s: s.filter("value.qty > 1").group_by("key.sku").agg(n=wt.sum("value.qty * value.price")), id="qualified names"),
    pytest.param(lambda a, s: s.filter("qty /* many */ > 1").group_by("sku").agg(n=wt.sum("`qty` * `price`")), id="quotes"),
]  # fmt: skip

OTHER = [
    pytest.param(lambda a, s: s.filter("qty > 2").group_by("sku").agg(n=wt.sum("qty * price")), id="another condition"),
    pytest.param(lambda a, s: s.filter("qty >= 1").group_by("sku").agg(n=wt.sum("qty * price")), id="another operator"),
    pytest.param(lambda a, s: s.filter_not("qty > 1").group_by("sku").agg(n=wt.sum("qty * price")), id="filter_not"),
    pytest.param(lambda a, s: s.filter("qty > 1").group_by(sku="upper(sku)").agg(n=wt.sum("qty * price")), id="another group"),
    pytest.param(lambda a, s: s.filter("qty > 1").group_by("sku").agg(n=wt.avg("qty * price")), id="another aggregate"),
    pytest.param(lambda a, s: s.filter("qty > 1").group_by("sku").agg(m=wt.sum("qty * price")), id="another name"),
    pytest.param(lambda a, s: s.filter("qty > 1").group_by("sku").windowed_by(wt.tumbling(hours=1)).agg(n=wt.count()), id="windows"),
    pytest.param(lambda a, s: s.filter("qty > 1").group_by("sku").agg(n=wt.sum("qty * price")).filter("n > 0"), id="a table filter"),
    pytest.param(lambda a, s: s.group_by("sku").agg(n=wt.sum("qty * price")), id="no condition"),
    pytest.param(lambda a, s: s.filter("qty > CAST(1 AS BIGINT)").group_by("sku").agg(n=wt.sum("qty * price")), id="another type"),
]  # fmt: skip


@pytest.mark.parametrize("define", SAME)
def test_a_fingerprint_is_not_moved_by_how_a_plan_is_written(define: Callable[[wt.App, wt.Stream], wt.Table]) -> None:
    assert table_of(define).fingerprint == table_of(plain).fingerprint


@pytest.mark.parametrize("define", OTHER)
def test_a_fingerprint_moves_with_what_is_computed(define: Callable[[wt.App, wt.Stream], wt.Table]) -> None:
    assert table_of(define).fingerprint != table_of(plain).fingerprint


def test_a_fingerprint_moves_with_the_start_of_an_unlimited_window_and_not_with_its_time_zone() -> None:
    def since(start: datetime) -> str:
        return table_of(lambda a, s: s.group_by("sku").windowed_by(wt.unlimited(start=start)).count()).fingerprint

    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    assert since(noon) == since(noon.astimezone(timezone(timedelta(hours=2)))) != since(noon + wt.hours(1))


def hourly(grace: int) -> TableDef:
    return table_of(lambda a, s: s.group_by("sku").windowed_by(wt.tumbling(hours=1, grace=wt.minutes(grace))).count())


def test_a_fingerprint_moves_with_grace_and_the_state_does_not() -> None:
    assert hourly(1).fingerprint != hourly(2).fingerprint
    assert hourly(1).state_column == hourly(2).state_column


def test_derived_tables_keep_the_state_of_the_table_they_come_from() -> None:
    app = wt.App("a")
    items = app.topic("items", key="sku STRING", value="stock INT").table()
    items.materialized_as("items")
    items.filter("stock > 0").map_values(double="2 * stock").materialized_as("stocked")
    whole, derived = app.topology().tables
    assert whole.state == derived.state
    assert whole.state_version == derived.state_version
    assert derived.root is whole.root
    assert derived.columns.sql() == "`sku` STRING, `double` INT"
    assert len(derived.stages) == 3


def test_a_state_column_moves_with_key_and_state_alone() -> None:
    by_sku = table_of(lambda a, s: s.group_by("sku").agg(n=wt.sum("qty")))
    assert by_sku.state_column == table_of(lambda a, s: s.filter("qty > 1").group_by("sku").agg(n=wt.sum("2 * qty"))).state_column
    assert by_sku.state_column != table_of(lambda a, s: s.group_by("sku").agg(n=wt.sum("qty * price"))).state_column
    assert by_sku.state_column != table_of(lambda a, s: s.group_by("sku").agg(n=wt.max("CAST(qty AS BIGINT)"))).state_column
    assert by_sku.state_column != table_of(lambda a, s: s.group_by("sku", "qty").agg(n=wt.sum("qty"))).state_column


def test_a_table_of_a_topic_keeps_the_last_value_at_its_place() -> None:
    app = wt.App("a")
    app.topic("items", key="sku STRING", value="stock INT, name STRING").table().materialized_as("items")
    (table,) = app.topology().tables
    (row,) = table.state
    assert row.type == Type.parse(
        "STRUCT<order: STRUCT<st: TIMESTAMP, topic: STRING, partition: INT, offset: BIGINT, ord: BIGINT>, "
        "value: STRUCT<stock: INT, name: STRING>>"
    )
    assert table.alive is not None


def test_walking_a_plan_gives_a_shared_node_once_however_many_ways_lead_to_it() -> None:
    read = stream = wt.App("diamonds").topic("t", value="n INT").stream()
    for n in range(40):
        branches = stream.split().branch("one", f"n > {n}").default_branch("other")
        stream = branches["one"].merge(branches["other"])
    walked = list(plan.walk(stream.node))
    assert (len(walked), walked[0], walked[-1]) == (121, read.node, stream.node)
    assert (purity_of(stream.node), plan.delay_of(stream.node), plan.windows_of(stream.node)) == (Purity.PURE, timedelta(0), None)


def test_walking_a_plan_gives_parents_before_children() -> None:
    (table, *_) = apps.retail().topology().tables
    kinds = [type(node).__name__ for node in plan.walk(table.node)]
    assert kinds == ["Source", "MapValues", "Source", "MapValues", "MergeStreams", "Aggregate"]


def test_a_join_keeps_the_state_of_each_node_once_and_marks_the_aggregates_that_have_records() -> None:
    app = wt.App("a")
    sales = app.topic("sales", key="sku STRING", value="qty INT").stream()
    items = app.topic("items", key="id STRING", value="name STRING").table()
    sold = sales.group_by_key().agg(n=wt.sum("qty"))
    both = items.filter("name <> ''").left_join(sold, name="left.name", n="right.n")
    both.outer_join(items.map_values(big="upper(name)"), n="left.n", big="right.big").materialized_as("t")
    (table,) = app.topology().tables
    assert [(f.name, f.merge) for f in table.state] == [("i0_row", Merge.LAST), ("i1_n", Merge.SUM), ("i1", Merge.MAX)]
    assert table.key.names == ("id",)
    assert [topic.name for topic in app.topology().topics] == ["items", "sales"]
