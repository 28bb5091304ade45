"""What the first pass over a batch finds out, for those that come after it: who gets which partition, and which tables stand still."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import watertable as wt
from tests.properties.engines import CompilerRun, as_frame, run_interpreter, tiny
from watertable.compiler import joins, segments
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.session import shuffled_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.dsl.app import TopicSource

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(("partitions", "tasks"), [(1, 2), (4, 2), (8, 2), (5, 3), (12, 4), (3, 8)])
def test_a_shuffle_deals_partitions_out_evenly_whatever_their_names(spark: SparkSession, partitions: int, tasks: int) -> None:
    session = tiny(spark)
    with shuffled_by(session, tasks):
        slots = segments._slots(session, partitions)
        rows = session.sql(f"SELECT explode(array({', '.join(map(str, slots))})) AS slot").repartition(tasks, "slot")
        dealt = Counter(row[0] for row in rows.select(F.spark_partition_id()).collect())
    assert len(set(slots)) == partitions, "none is taken for another"
    assert sorted(dealt.values()) == sorted(partitions // tasks + (n < partitions % tasks) for n in range(min(partitions, tasks)))


def _sales() -> Topology:
    app = wt.App("shop")
    prices = app.topic("prices", key="sku STRING", value="price BIGINT").table().materialized_as("prices")
    sales = app.topic("sales", key="sku STRING", value="qty BIGINT").stream()
    sales.left_join(prices, qty="qty", spend="qty * right.price").group_by_key().agg(
        qty=wt.sum("qty"), spend=wt.sum("spend")
    ).materialized_as("spent")
    return app.topology()


def test_a_stream_finds_the_rows_of_before_where_a_batch_adds_nothing_to_the_table(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(topic: str, offset: int, sku: str, value: dict[str, int] | None) -> Record:
        data = None if value is None else json.dumps(value).encode()
        return Record(topic, 0, offset, EPOCH, sku.encode(), data)

    batches = [
        [record("sales", 0, "a", {"qty": 1}), record("prices", 0, "a", {"price": 10}), record("prices", 1, "b", {"price": 3})],
        [record("sales", 1, "a", {"qty": 2}), record("sales", 2, "b", {"qty": 2}), record("sales", 3, "c", {"qty": 7})],
        [record("prices", 2, "a", {"price": 20}), record("prices", 3, "b", None)],
        [record("sales", 4, "a", {"qty": 1}), record("sales", 5, "b", {"qty": 5})],
    ]
    ran_forward: list[str] = []
    ran = joins._run_forward
    monkeypatch.setattr(joins, "_run_forward", lambda table, *more: ran_forward.append(table.name) or ran(table, *more))
    found = CompilerRun(tiny(spark), _sales()).run(batches)
    assert found.differences(run_interpreter(_sales(), batches)) == []
    assert found.tables["spent"]["a",]["spend"] == 50
    assert ran_forward == ["prices", "prices"], "only where prices came, in the first batch and the third"


def test_a_record_that_comes_late_on_two_ways_is_told_of_twice(spark: SparkSession) -> None:
    app = wt.App("shop")
    sales = app.topic("sales", key="sku STRING", value="qty BIGINT").stream()
    twice = sales.filter("value.qty > 0").merge(sales.map_values(qty="-qty"))
    minutes = wt.tumbling(minutes=1, grace=wt.minutes(0))
    twice.group_by_key().windowed_by(minutes).agg(n=wt.count(), qty=wt.sum("qty")).materialized_as("sold")
    topology = app.topology()
    values = [(0, 1), (30, 2), (200, 3), (10, 4), (20, -1)]  # the last two are late: one of them comes both ways
    batch = [_sale(offset, "a", qty, seconds) for offset, (seconds, qty) in enumerate(values)]
    run = CompilerRun(tiny(spark), topology)
    found = run.run([batch])
    assert (fold := run.compiler.layout.alone(run.compiler.layout.segments[1])) is not None
    assert fold.label == "sold", "its partial states are kept, and none of the merged records"
    assert found.differences(run_interpreter(topology, [batch])) == []
    assert found.tables["sold"]["a", EPOCH, EPOCH + timedelta(minutes=1)]["n"] == 4


def test_a_table_that_is_all_that_reads_a_pass_is_written_by_it_and_its_records_are_counted(spark: SparkSession) -> None:
    app = wt.App("shop")
    sales = app.topic("sales", key="sku STRING", value="qty BIGINT").stream()
    sales.filter("qty > 0").group_by_key().agg(qty=wt.sum("qty")).materialized_as("sold")
    session = tiny(spark)
    compiler = CompilerRun(session, app.topology()).compiler
    batch = [_sale(0, "a", 1, 0), _sale(1, "a", 4, 10), _sale(2, "b", -1, 20), Record("sales", 0, 3, EPOCH, b"a", b"no JSON")]
    written: list[tuple[str, list[Any]]] = []
    session.sparkContext.setJobGroup("one pass", "one pass")
    made = compiler.batch(
        as_frame(session, batch), 1, {("sales", 0): None}, lambda *_: pytest.fail("no row is looked up"),
        write=lambda table, rows: written.append((table.name, rows.select("key.sku", "state").collect())),
    )  # fmt: skip
    assert len(session.sparkContext.statusTracker().getJobIdsForGroup("one pass")) == 1
    ((name, rows),) = written
    assert (name, [(row.sku, next(iter(row.state.asDict().values()))) for row in rows]) == ("sold", [("a", 5)])
    assert made.tables == {}
    assert (made.stats.records, made.stats.quarantined) == (4, 1)
    assert made.quarantine is not None
    assert [row.offset for row in made.quarantine.collect()] == [3]


def test_what_a_later_pass_refuses_has_its_bytes_though_none_of_its_records_is_kept(spark: SparkSession) -> None:
    app = wt.App("shop")
    prices = app.topic("prices", key="sku STRING", value="price BIGINT").table().materialized_as("prices")
    sales = app.topic("sales", key="sku STRING", value="qty BIGINT").stream()
    sales.join(prices, spend="qty * right.price").group_by_key().agg(spend=wt.sum("spend")).materialized_as("spent")
    topology = app.topology()
    price = Record("prices", 0, 0, EPOCH, b"a", json.dumps({"price": 2**62}).encode())
    batch = [price, _sale(0, "a", 1, 0), _sale(1, "a", 4, 0), _sale(2, "b", 1, 0)]  # four times 2^62 is no BIGINT
    session = tiny(spark)
    run = CompilerRun(session, topology)
    assert run.compiler.layout.alone(run.compiler.layout.segments[1]) is not None
    made = run.compiler.batch(as_frame(session, batch), 1, {("prices", 0): None, ("sales", 0): None}, run._lookup)
    assert made.quarantine is not None
    rows = [(row.offset, bytes(row.key), bytes(row.value)) for row in made.quarantine.collect()]
    assert rows == [(1, b"a", b'{"qty": 4}')], "read again, by its place"
    found = run.run([batch])
    assert found.differences(run_interpreter(topology, [batch])) == []
    assert [row["spend"] for row in found.tables["spent"].values()] == [2**62]


BIG = 2**62
LATER: dict[str, Callable[[wt.Stream, TopicSource], wt.Stream]] = {
    "a table's rows": lambda sales, prices: sales.join(prices.table().materialized_as("prices"), spend="qty * right.price"),
    "rows as of then": lambda sales, prices: sales.join(
        prices.table().materialized_as("prices", history=wt.minutes(10)), spend="qty * right.price"
    ),
    "changes": lambda sales, prices: prices.table().materialized_as("prices").to_stream().map_values(spend="new.price * 4"),
    "elements": lambda sales, prices: sales.flat_map_values(each="array(qty, 1L)").map_values(spend=f"each * {BIG}"),
    "merged streams": lambda sales, prices: sales.merge(sales.map_values(qty="qty + 1L")).map_values(spend=f"qty * {BIG}"),
    "pairs": lambda sales, prices: sales.join(
        prices.stream(), within=wt.join_windows(before=wt.seconds(5), after=wt.seconds(5)), spend="left.qty * right.price"
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", LATER)
def test_what_a_later_pass_refuses_has_its_bytes_where_its_records_are_kept(spark: SparkSession, way: str) -> None:
    """Columns of a kept frame are to Spark those of the records that it was made of, whose bytes are joined to them."""
    app = wt.App("shop")
    prices = app.topic("prices", key="sku STRING", value="price BIGINT")
    made = LATER[way](app.topic("sales", key="sku STRING", value="qty BIGINT").stream(), prices)
    made.group_by_key().windowed_by(wt.sliding(difference=wt.seconds(3))).agg(spend=wt.collect_list("spend")).materialized_as("spent")
    made.to("out")
    topology = app.topology()
    price = Record("prices", 0, 0, EPOCH, b"a", json.dumps({"price": BIG}).encode())
    batch = [price, _sale(0, "a", 1, 0), _sale(1, "a", 4, 0), _sale(2, "b", 1, 0)]
    batch = [record for record in batch if record.topic in {topic.name for topic in topology.topics}]
    wanted = run_interpreter(topology, [batch])
    assert wanted.quarantine
    assert CompilerRun(tiny(spark), topology).run([batch]).differences(wanted) == []


def _sale(offset: int, sku: str, qty: int, seconds: int) -> Record:
    return Record("sales", 0, offset, EPOCH + timedelta(seconds=seconds), sku.encode(), json.dumps({"qty": qty}).encode())
