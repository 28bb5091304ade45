"""Sessions in Spark and in the store: what the oracle says, for any cuts, folded and not, and however folds race."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, run_interpreter, tiny
from tests.spark.ledger import Ledger, both_folds, minute
from tests.spark.runs import Twin, cut, without_bounds
from watertable import failpoints
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.store import fold
from watertable.store.writer import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TOPICS = ("views", "buys")
PARTITIONS = [(topic, number) for topic in TOPICS for number in range(2)]


def site() -> Topology:
    """Count visits: with every merge there is, over two streams, filtered, streamed, and grouped again."""
    app = wt.App("site")
    views, buys = (app.topic(name, key="who STRING", value="x INT, y DECIMAL(9,2)").stream() for name in TOPICS)
    windows = wt.sessions(gap=wt.seconds(6), grace=wt.seconds(5))
    every = {"n": wt.count(), "total": wt.sum("y"), "least": wt.min("x"), "most": wt.max("x"), "first": wt.first("x"), "mean": wt.avg("y"),
             "last": wt.last("x"), "kinds": wt.count_distinct("x"), "all": wt.collect_list("x"), "top": wt.top_k(2, "x", "y")}  # fmt: skip
    visits = views.group_by_key().windowed_by(windows).agg(**every).materialized_as("visits")
    visits.to_stream().to("told")
    visits.to_stream().filter("new.n > 0").map_values(n="new.n").to_table().materialized_as("seen")
    few, many = (visits.to_stream().filter(f"key.who {those}").map_values(n="new.n").to_table() for those in ("< 'c'", "> 'a'"))
    many = many.materialized_as("many")
    few.outer_join(many, few="left.n", many="right.n").materialized_as("matched")
    again = views.group_by_key().windowed_by(windows).agg(n=wt.count()).materialized_as("again")
    again.to_stream().left_join(many, n="new.n", many="right.n").to("beside")
    visits.filter("n > 1").materialized_as("longer")
    visits.group_by("n").agg(visits=wt.count(), whose=wt.collect_set("who")).materialized_as("sizes")
    both = views.group_by_key().cogroup(views=wt.count()).cogroup(buys.group_by_key(), buys=wt.sum("x")).windowed_by(windows).agg()
    both.map_values(n="views", bought="buys", s="unix_seconds(window.end) - unix_seconds(window.start)").materialized_as("both")
    return app.topology()


def batches(seed: int) -> list[list[Record]]:
    """Write records of two partitions, about in order, and cut them anywhere."""
    rng = random.Random(seed)
    records, offsets = [], dict.fromkeys(PARTITIONS, 0)
    for number in range(40):
        who = rng.choice("abc")
        source = (rng.choice(TOPICS), ord(who) % 2)
        value = {"x": rng.choice([1, 2, 3, None]), "y": rng.choice([0.5, 2, None])}
        at = EPOCH + timedelta(seconds=100 + 2 * number + rng.randint(-20, 5))
        data = None if rng.random() < 0.1 else json.dumps(value).encode()
        records.append(Record(*source, offsets[source], at, None if rng.random() < 0.05 else who.encode(), data))
        offsets[source] += 1
    return cut(records, rng, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_compiler_makes_the_sessions_of_the_interpreter_and_tells_the_same_of_them(spark: SparkSession, seed: int) -> None:
    given, topology = batches(seed), site()
    wanted = run_interpreter(topology, given)
    assert wanted.late
    assert wanted.outputs["told"]
    assert wanted.differences(CompilerRun(tiny(spark), topology).run(given)) == []


@pytest.mark.slow
@both_folds
def test_sessions_in_the_store_are_the_oracles_read_fresh_folded_and_by_any_reader(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    twin = Twin(tiny(spark), tmp_path, site(), PARTITIONS)
    for number, records in enumerate(batches(7)):
        twin.both(records)
        twin.agree(shown=without_bounds)
        if number != 2:  # once the tail is of two commits
            twin.store.folder.fold_all()
            twin.agree(plain=True, shown=without_bounds)
            for table in (table.name for table in twin.topology.tables if table.windows):
                bounds, wanted = (sorted((r["window_start"], r["window_end"]) for r in rows)
                                  for rows in (twin.plain(table), twin.engine.tables[table].values()))  # fmt: skip
                assert bounds == wanted, (table, number)


@pytest.mark.slow
def test_a_fold_deletes_a_session_that_only_another_fold_has_seen(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", -1)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    app = wt.App("shop")
    moves = app.topic("moves", key="k STRING", value="qty BIGINT").stream()
    app.topic("names", key="k STRING", value="name STRING").table().materialized_as("names")
    moves.group_by_key().windowed_by(wt.sessions(gap=wt.minutes(10))).agg(n=wt.count()).materialized_as("visits")
    ledger = Ledger.open(spark, str(tmp_path), topology=app.topology())

    def visit(*minutes: int) -> None:
        rows = []
        for at in minutes:
            when = f"timestamp'{minute(at):%F %T}'"
            rows.append(f"named_struct('k', 'a', 's', {when}, 'e', {when}), named_struct('n', 1L), {when}")
        ledger.commit({"visits": ledger.deltas("visits", rows)})

    def found(frame_rows: list[Any]) -> list[tuple[int, int, int]]:
        start = minute(0).timestamp()
        return sorted((int(r[1].timestamp() - start) // 60, int(r[2].timestamp() - start) // 60, r[3]) for r in frame_rows)

    def everywhere() -> list[tuple[int, int, int]]:
        fresh = ledger.store.reader.read("visits").collect()
        delta = polars.scan_delta(f"{ledger.store.warehouse}/shop/visits").collect().rows()
        changed = ledger.store.reader.changes("visits", "shop@1.1").where("new IS NOT NULL").count()
        assert found(delta) == found([tuple(r) for r in fresh])
        assert changed == len(delta) - 1  # the one at 100 hasn't changed
        return found(delta)

    visit(0, 100)
    assert ledger.store.fold("visits") == 1
    visit(30)
    visit(21, 11)
    visit(5)
    other = Store(spark, ledger.store.warehouse, "shop", ledger.topology.tables).folder
    with failpoints.armed("fold.before_merge", lambda: other.fold("visits", 3) and None):
        assert ledger.store.fold("visits") == 4
    assert everywhere() == [(0, 30, 5), (100, 100, 1)]
    assert ledger.store.reader.read("visits", "shop@1.2").count() == 3
    visit(50)
    with failpoints.armed("fold.before_merge", "raise"), pytest.raises(failpoints.FailpointHit):
        ledger.store.fold("visits")
    ledger = ledger.restart()
    visit(40, 60)
    assert ledger.store.fold("visits") == 6
    assert everywhere() == [(0, 60, 8), (100, 100, 1)]
