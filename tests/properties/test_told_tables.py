"""A table that is made of another's Changes is that table as it is: however far one of the partitions that feed a row is behind."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, run_interpreter, tiny
from tests.spark.runs import by, cut, survives
from watertable.interpreter import Interpreter
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Key, Record, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = (("moves", 0), ("moves", 1))
SPAN = 300
"""The seconds that the records are of; those that close what is open come after ten times as many."""


def shop() -> Topology:
    """Count by a group, whose records are of both partitions; tell of the counts, of people's places, and of sessions."""
    app = wt.App("shop")
    moves = app.topic("moves", key="who STRING", value="place STRING, n BIGINT").table().materialized_as("moves")
    counts = moves.group_by("place").agg(people=wt.count(), n=wt.sum("n")).materialized_as("counts")
    counts.to_stream().map_values(people="new.people", n="new.n").to_table().materialized_as("told")
    counts.suppress(wt.until_time_limit(wt.seconds(10))).materialized_as("calm")
    counts.ttl(wt.seconds(SPAN)).materialized_as("lasting")
    counts.ttl(wt.seconds(15)).materialized_as("recent")
    placed = moves.to_stream().select_key("place").group_by_key()
    visits = placed.windowed_by(wt.sessions(gap=wt.seconds(5), grace=wt.seconds(9 * SPAN))).agg(n=wt.sum("n")).materialized_as("visits")
    visits.to_stream().map_values(n="new.n").to_table().materialized_as("told_visits")
    return app.topology()


def moved(seed: int, number: int) -> list[Record]:
    """Move people from place to place, or out; one partition may be far ahead of the other, and times jump back."""
    rng, records = random.Random(seed), list[Record]()
    ahead, offsets = (0, rng.choice([0, 30, 90])), [0, 0]
    for n in range(number):
        partition = rng.randrange(2)
        when = EPOCH + wt.seconds(max(0, n * 100 // number + ahead[partition] + rng.randrange(-8, 9)))
        value = {"place": rng.choice(["oslo", "rome", "bern"]), "n": rng.randrange(4)} if rng.randrange(4) else None
        who = f"{rng.choice('abc')}{partition}"
        records.append(Record("moves", partition, offsets[partition], when, who.encode(), value and json.dumps(value).encode()))
        offsets[partition] += 1
    return records


def later(records: list[Record]) -> list[Record]:
    """Move each partition's time on, past all that is open but what lasts."""
    ends = {partition: max((r.offset for r in records if r.partition == partition), default=-1) + 1 for _, partition in PARTITIONS}
    when = EPOCH + wt.seconds(SPAN)
    return [Record("moves", partition, offset, when, b"z%d" % partition, b'{"place": "nowhere"}') for partition, offset in ends.items()]


def shown(rows: Mapping[Key, Row]) -> dict[Key, dict[str, Any]]:
    return {key: {name: value for name, value in row.items() if name in ("people", "n")} for key, row in rows.items()}


@pytest.mark.parametrize("seed", range(40))
def test_what_is_told_of_a_row_is_the_row_as_it_is(seed: int) -> None:
    records, topology = moved(seed, 40), shop()
    engine = Interpreter(topology, partitions=PARTITIONS)
    for batch in cut(records, random.Random(seed), 15):
        engine.read(batch)
        tables = {name: shown(rows) for name, rows in engine.tables.items()}
        assert tables["told"] == tables["counts"]
        assert tables["told_visits"] == tables["visits"]
        assert tables["recent"].items() <= tables["lasting"].items()
        assert tables["lasting"] == tables["counts"]
    engine.read(later(records))
    calm = {key: row for key, row in shown(engine.tables["counts"]).items() if key != ("nowhere",)}
    assert shown(engine.tables["calm"]) == calm, "each stretch is over in which one changed"
    assert set(engine.tables["recent"]) == {("nowhere",)}


@pytest.mark.spark
def test_spark_tells_of_rows_what_the_interpreter_does_whatever_the_cuts(spark: SparkSession) -> None:
    records, topology = moved(3, 40), shop()
    batches = [*cut(records, random.Random(3), 4), later(records)]
    wanted = run_interpreter(topology, batches)
    assert wanted.differences(CompilerRun(tiny(spark), topology).run(batches)) == []


@pytest.mark.slow
@pytest.mark.spark
def test_spark_tells_of_rows_what_the_interpreter_does_with_the_whole_log_as_one_batch(spark: SparkSession) -> None:
    records, topology = moved(3, 40), shop()
    batches = [[*records, *later(records)]]
    assert run_interpreter(topology, batches).differences(CompilerRun(tiny(spark), topology).run(batches)) == []


@pytest.mark.slow
@pytest.mark.spark
def test_what_is_told_is_the_same_after_crashes_folds_and_rewinds(spark: SparkSession, tmp_path: Path) -> None:
    records = moved(5, 24)
    assert len(by(records, 5)) > 3
    survives(tiny(spark), tmp_path, shop(), PARTITIONS, [*records, *later(records)], 5)
