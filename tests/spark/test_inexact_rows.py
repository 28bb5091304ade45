"""Rows may hold sums of floating point: what reads others of their columns is the same for any cuts, on both engines."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, run_interpreter, tiny
from tests.properties.strategies import START
from watertable.plan.plan import Topology
from watertable.records import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READING = ("by_site", "by_number", "named")


def sensors() -> Topology:
    app = wt.App("sensors")
    volts = app.topic("volts", key="sensor STRING", value="volts DOUBLE, site STRING").stream()
    sites = app.topic("sites", key="site STRING", value="name STRING").table().materialized_as("sites")
    stats = volts.group_by_key().agg(mean=wt.avg("volts"), n=wt.count(), low=wt.min("volts"), site=wt.last("site")).materialized_as("stats")
    stats.group_by("site").agg(n=wt.sum("n"), low=wt.min("low"), lows=wt.collect_list("low")).materialized_as("by_site")
    few = stats.filter("n < 9").map_values(twice="2 * mean", n="n").materialized_as("few")
    few.group_by("n").count().materialized_as("by_number")
    stats.join(sites, on="site", n="left.n", low="left.low", name="right.name").materialized_as("named")
    return app.topology()


def records(seed: int) -> list[Record]:
    """Write readings whose sum hangs on their order, and sites that come, change and go."""
    chance, offsets, made = random.Random(seed), {"volts": [0, 0], "sites": [0, 0]}, []
    for number in range(60):
        topic, partition = chance.choice(("volts", "volts", "volts", "sites")), chance.randrange(2)
        site = chance.choice("xyz")
        key = site if topic == "sites" else chance.choice("abcdef")
        value = {"name": f"{site}{number}"} if topic == "sites" else {"volts": chance.choice((0.1, 0.7, 1e16, -1e16, 1 / 3)), "site": site}
        data = None if topic == "sites" and chance.random() < 0.3 else json.dumps(value).encode()
        at = START + timedelta(seconds=number)
        made.append(Record(topic, partition, offsets[topic][partition], at, key.encode(), data))
        offsets[topic][partition] += 1
    return made


def cut(given: list[Record], *places: int) -> list[list[Record]]:
    return [given[a:b] for a, b in zip((0, *places), (*places, len(given)), strict=True)]


def test_what_reads_nothing_inexact_is_the_same_for_any_cuts() -> None:
    for seed in range(30):
        given = records(seed)
        whole = run_interpreter(sensors(), [given]).tables
        for places in ((7, 20, 21, 50), tuple(range(1, len(given)))):
            apart = run_interpreter(sensors(), cut(given, *places)).tables
            assert {name: apart[name] for name in READING} == {name: whole[name] for name in READING}


@pytest.mark.spark
def test_both_engines_take_from_rows_what_is_exact_in_them(spark: SparkSession) -> None:
    given, session = records(7), tiny(spark)
    wanted = run_interpreter(sensors(), [given]).tables
    assert all(wanted[name] for name in READING)
    for places in ((20, 45), (1, 30, 31)):
        found = CompilerRun(session, sensors()).run(cut(given, *places)).tables
        for name in READING:
            assert found[name] == wanted[name], name


def zeros() -> Topology:
    """Keep a floating point number in each way in which one of equals stays, and group by how it is written."""
    app = wt.App("zeros")
    by_site = app.topic("volts", key="sensor STRING", value="site STRING, volts DOUBLE").stream().group_by("site")
    bounds = by_site.agg(low=wt.min("volts"), high=wt.max("volts")).materialized_as("bounds")
    bounds.group_by(low="CAST(low AS STRING)", high="CAST(high AS STRING)").count().materialized_as("by_bounds")
    rows = app.topic("rows", key="sensor STRING", value="site STRING, volts FLOAT").table().materialized_as("rows")
    held = rows.group_by("site").agg(volts=wt.first("volts"), each=wt.collect_list("volts"), top=wt.top_k(1, "volts"))
    texts = ", ".join(f"CAST({volts} AS STRING)" for volts in ("volts", "get(each, 0)", "get(top, 0)"))
    held.materialized_as("held").group_by(of=f"concat_ws('/', {texts})").count().materialized_as("by_held")
    sites = app.topic("sites", key="site STRING", value="name STRING").table().materialized_as("sites")
    joined = rows.join(sites, on="site", volts="left.volts").materialized_as("joined")
    joined.group_by(volts="CAST(volts AS STRING)").count().materialized_as("by_joined")
    return app.topology()


@pytest.mark.spark
@pytest.mark.parametrize(
    "places", [pytest.param((), marks=pytest.mark.slow), pytest.param((3, 4), marks=pytest.mark.slow), (3, 4, 5, 6, 7)]
)
def test_the_two_zeros_are_one_number_so_that_no_row_stays_in_the_group_of_the_other(spark: SparkSession, places: tuple[int, ...]) -> None:
    given = [Record("sites", 0, 0, START, b"x", b'{"name": "X"}')]
    told = [
        ("volts", 0, 100, 0.0), ("rows", 0, 0, 0.0), ("rows", 0, 1, -0.0), ("volts", 1, 50, -0.0),
        ("volts", 0, 200, 5.0), ("rows", 0, 2, 5.0),
    ]  # fmt: skip
    offsets = dict.fromkeys([(topic, partition) for topic, partition, *_ in told], 0)
    for topic, partition, seconds, volts in told:
        data = json.dumps({"site": "x", "volts": volts}).encode()
        given.append(Record(topic, partition, offsets[topic, partition], START + timedelta(seconds=seconds), b"s", data))
        offsets[topic, partition] += 1
    for end, bounds, row in ((len(given) - 2, ("0.0", "0.0"), "0.0"), (len(given), ("0.0", "5.0"), "5.0")):
        batches = cut(given[:end], *(place for place in places if place < end))
        wanted = run_interpreter(zeros(), batches)
        assert wanted.differences(CompilerRun(tiny(spark), zeros()).run(batches)) == []
        assert set(wanted.tables["by_bounds"]) == {bounds}
        assert set(wanted.tables["by_joined"]) == {(row,)}
        assert set(wanted.tables["by_held"]) == {("/".join([row] * 3),)}
