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
