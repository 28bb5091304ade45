"""Sliding windows in Spark and in the store: what the oracle says, for any cuts, folded and not."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, run_interpreter, tiny
from tests.spark.runs import Twin, cut, survives, without_bounds
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.store import fold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TOPICS = ("heat", "smoke")
PARTITIONS = [(topic, number) for topic in TOPICS for number in range(2)]


def house() -> Topology:
    """Watch rooms: with every merge there is, over two streams, filtered, streamed, and grouped again."""
    app = wt.App("house")
    heat, smoke = (app.topic(name, key="room STRING", value="x INT, y DECIMAL(9,2)").stream() for name in TOPICS)
    windows = wt.sliding(difference=wt.milliseconds(20), grace=wt.milliseconds(15))
    every = {"n": wt.count(), "total": wt.sum("y"), "least": wt.min("x"), "first": wt.first("x"), "last": wt.last("x"),
             "kinds": wt.count_distinct("x"), "all": wt.collect_list("x"), "top": wt.top_k(2, "x", "y")}  # fmt: skip
    hot = heat.group_by_key().windowed_by(windows).agg(**every).materialized_as("hot")
    hot.to_stream().to("told")
    seen = hot.to_stream().map_values(n="new.n").to_table().materialized_as("seen")
    some = hot.to_stream().filter("key.room > 'a'").map_values(n="new.n").to_table()
    seen.left_join(some, n="left.n", some="right.n").materialized_as("matched")
    hot.group_by("n").agg(windows=wt.count(), rooms=wt.collect_set("room")).materialized_as("sizes")
    both = heat.group_by_key().cogroup(heat=wt.sum("x")).cogroup(smoke.group_by_key(), smoke=wt.count()).windowed_by(windows).agg()
    both.filter("smoke > 0").materialized_as("alarms").to_stream().to("alarmed")
    return app.topology()


def batches(seed: int) -> list[list[Record]]:
    """Write records of two partitions, about in order, and cut them anywhere."""
    rng = random.Random(seed)
    records, offsets = [], dict.fromkeys(PARTITIONS, 0)
    for number in range(40):
        room = rng.choice("abc")
        source = (rng.choice(TOPICS), ord(room) % 2)
        behind = rng.choice([0, 0, 0, 25, 60]) + rng.choice([0, 3, 0.4])
        at = EPOCH + timedelta(seconds=number // 20, milliseconds=6 * number - behind)
        data = json.dumps({"x": rng.choice([1, 2, 3, None]), "y": rng.choice([0.5, 2, None])}).encode()
        records.append(Record(*source, offsets[source], max(EPOCH, at), None if rng.random() < 0.05 else room.encode(), data))
        offsets[source] += 1
    return cut(records, rng, 3)


def in_log_order(records: Iterable[Record]) -> list[Record]:
    """Let records arrive in the order of their places."""
    reached: dict[tuple[str, int], datetime] = {}
    placed = []
    for record in records:
        source = (record.topic, record.partition)
        reached[source] = max(reached.get(source, EPOCH), record.timestamp)
        placed.append((reached[source], *source, record.offset, record))
    return [record for *_, record in sorted(placed)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_compiler_makes_the_windows_of_the_interpreter(spark: SparkSession, seed: int) -> None:
    given, topology = batches(seed), house()
    wanted = run_interpreter(topology, given)
    assert wanted.late
    assert min(len(rows) for name, rows in wanted.tables.items() if name != "sizes") > 10
    assert min(map(len, wanted.outputs.values())) > 10
    assert wanted.differences(CompilerRun(tiny(spark), topology).run(given)) == []


@pytest.mark.slow
def test_changes_of_windows_survive_crashes_folds_and_rewinds(spark: SparkSession, tmp_path: Path) -> None:
    app = wt.App("house")
    heat, smoke = (app.topic(name, key="room STRING", value="x INT, y DECIMAL(9,2)").stream() for name in TOPICS)
    windows = wt.sliding(difference=wt.milliseconds(20), grace=wt.milliseconds(15))
    both = heat.group_by_key().cogroup(heat=wt.sum("x")).cogroup(smoke.group_by_key(), smoke=wt.count()).windowed_by(windows).agg()
    changes = both.materialized_as("both").to_stream().group_by(room="key.room")
    changes.agg(n=wt.count(), all=wt.collect_list("concat_ws(' ', CAST(key.window_end AS STRING), old.smoke, new.smoke)")).materialized_as(
        "told"
    )
    records = in_log_order(record for batch in batches(5) for record in batch)  # changes of what two topics feed depend on arrival
    run = survives(tiny(spark), tmp_path, app.topology(), PARTITIONS, records, 14)
    assert sum(row["n"] for row in run.tables()["told"].values()) > 30


@pytest.mark.slow
def test_windows_in_the_store_are_the_oracles_read_fresh_folded_and_by_any_reader(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", -1)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    twin, positions = Twin(tiny(spark), tmp_path, house(), PARTITIONS), []
    for records in batches(9):
        twin.both(records)
        twin.agree(shown=without_bounds)
        twin.store.folder.fold_all()
        twin.agree(plain=True, shown=without_bounds)
        for table in ("hot", "alarms"):
            rows = twin.engine.tables[table]
            assert {(r["room"], r["window_start"], r["window_end"]) for r in twin.plain(table)} == {*rows}
        positions.append((twin.store.reader.position(), twin.engine.tables["hot"]))
    (start, begun), (_, now) = positions[0], positions[-1]
    changed = [tuple(c and c["n"] for c in (row["old"], row["new"])) for row in twin.store.reader.changes("hot", start).collect()]
    moved = [tuple(rows[key]["n"] if key in rows else None for rows in (begun, now)) for key in {*begun, *now}]
    assert Counter(pair for pair in changed if pair[0] != pair[1]) == Counter(pair for pair in moved if pair[0] != pair[1])
