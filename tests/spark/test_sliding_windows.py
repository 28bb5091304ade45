"""Sliding windows in Spark and in the store: what the oracle says, for any cuts, folded and not."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import polars
import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, as_frame, run_interpreter, tiny
from watertable import fold
from watertable.changelog import CommitInfo
from watertable.compiler import Compiler
from watertable.interpreter import Interpreter
from watertable.plan import Topology
from watertable.records import Record
from watertable.store import Store
from watertable.windows import EPOCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TOPICS = ("heat", "smoke")


def house() -> Topology:
    """Watch rooms: with every merge there is, over two streams, and filtered."""
    app = wt.App("house")
    heat, smoke = (app.topic(name, key="room STRING", value="x INT, y DECIMAL(9,2)").stream() for name in TOPICS)
    windows = wt.sliding(difference=wt.milliseconds(20), grace=wt.milliseconds(15))
    every = {"n": wt.count(), "total": wt.sum("y"), "least": wt.min("x"), "first": wt.first("x"), "last": wt.last("x"),
             "kinds": wt.count_distinct("x"), "all": wt.collect_list("x"), "top": wt.top_k(2, "x", "y")}  # fmt: skip
    heat.group_by_key().windowed_by(windows).agg(**every).materialized_as("hot")
    both = heat.group_by_key().cogroup(heat=wt.sum("x")).cogroup(smoke.group_by_key(), smoke=wt.count()).windowed_by(windows).agg()
    both.filter("smoke > 0").materialized_as("alarms")
    return app.topology()


def batches(seed: int) -> list[list[Record]]:
    """Write records of two partitions, about in order, and cut them anywhere."""
    rng = random.Random(seed)
    records, offsets = [], dict.fromkeys([(topic, p) for topic in TOPICS for p in range(2)], 0)
    for number in range(40):
        room = rng.choice("abc")
        source = (rng.choice(TOPICS), ord(room) % 2)
        behind = rng.choice([0, 0, 0, 25, 60]) + rng.choice([0, 3, 0.4])
        at = EPOCH + timedelta(seconds=number // 20, milliseconds=6 * number - behind)
        data = json.dumps({"x": rng.choice([1, 2, 3, None]), "y": rng.choice([0.5, 2, None])}).encode()
        records.append(Record(*source, offsets[source], max(EPOCH, at), None if rng.random() < 0.05 else room.encode(), data))
        offsets[source] += 1
    cuts = sorted({0, len(records), *rng.sample(range(1, len(records)), 3)})
    return [records[a:b] for a, b in pairwise(cuts)]


@pytest.mark.parametrize("seed", range(3))
def test_the_compiler_makes_the_windows_of_the_interpreter(spark: SparkSession, seed: int) -> None:
    given, topology = batches(seed), house()
    wanted = run_interpreter(topology, given)
    assert wanted.late
    assert min(map(len, wanted.tables.values())) > 10
    assert wanted.differences(CompilerRun(tiny(spark), topology).run(given)) == []


def test_windows_in_the_store_are_the_oracles_read_fresh_folded_and_by_any_reader(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", -1)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    topology, session = house(), tiny(spark)
    store = Store.open(session, str(tmp_path), "house", topology.tables)
    writer, compiler, engine = store.start_writer(topology.fingerprint), Compiler(topology), Interpreter(topology)
    carry: dict[tuple[str, int], datetime | None] = {(topic, p): None for topic in TOPICS for p in range(2)}
    following, positions = dict.fromkeys(carry, 0), []
    for records in batches(9):
        begin = dict(following)
        for record in records:
            following[record.topic, record.partition] = record.offset + 1
        engine.read(records)
        made = compiler.batch(as_frame(session, records), carry, writer.lookup())
        carry |= {p: stats.stream_time for p, stats in made.stats.partitions.items()}
        info = CommitInfo(begin=begin, next=dict(following), stream_times=dict(carry), topic_ids={t: t for t in TOPICS})
        writer.commit(made.tables, info)
        made.close()
        for folded in (False, True):
            if folded:
                store.folder.fold_all()
            for table in topology.tables:
                wanted = sorted(str([*row.values()][3:]) for row in engine.tables[table.name].values())
                found = [[*row.asDict(recursive=True).values()][3:] for row in store.reader.read(table.name).collect()]
                assert sorted(map(str, found)) == wanted, table.name
                if folded:
                    plain = polars.scan_delta(f"{store.warehouse}/house/{table.name}").drop("_wt").collect().to_dicts()
                    assert sorted(str([*row.values()][3:]) for row in plain) == wanted, table.name
                    assert {(r["room"], r["window_start"], r["window_end"]) for r in plain} == {*engine.tables[table.name]}
        positions.append((store.reader.position(), engine.tables["hot"]))
    (start, begun), (_, now) = positions[0], positions[-1]
    changed = [tuple(c and c["n"] for c in (row["old"], row["new"])) for row in store.reader.changes("hot", start).collect()]
    moved = [tuple(rows[key]["n"] if key in rows else None for rows in (begun, now)) for key in {*begun, *now}]
    assert Counter(pair for pair in changed if pair[0] != pair[1]) == Counter(pair for pair in moved if pair[0] != pair[1])
