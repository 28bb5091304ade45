"""Joins with versioned tables are the same on both engines, and what waits is what a search through all records finds.

The random topologies of the other tests have few such joins; here each case has several, deep ones too.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watertable as wt
from tests.properties.engines import CompilerRun, run_interpreter, tiny
from tests.properties.strategies import START
from watertable.interpreter import Interpreter
from watertable.plan.plan import Topology
from watertable.records import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HISTORY, GRACE = 40, 7
PLACES = [(topic, n) for topic in ("rows", "facts") for n in (0, 1)]


def shop() -> Topology:
    """Look facts up as of their time: with a grace and without, by key and by value, one after the other, and beside other operators."""
    app = wt.App("a")
    table = app.topic("rows", key="k STRING", value="x INT").table()
    rows = table.materialized_as("rows", history=wt.seconds(HISTORY))
    odd = table.filter("x % 2 = 1").map_values(y="10 * x").materialized_as("odd", history=wt.seconds(HISTORY))
    facts = app.topic("facts", key="k STRING", value="g STRING, n INT").stream()
    waited = facts.left_join(rows, grace=wt.seconds(GRACE), g="g", n="n", x="right.x")
    waited.to("waited")
    facts.join(odd, n="n", y="right.y").to("arrived")
    again = waited.filter("n > 1").left_join(odd, on="g", grace=wt.seconds(20), n="100 div (n - 2)", x="x", y="right.y")
    again.to("again")
    again.to_table().materialized_as("last")
    waited.group_by("x").windowed_by(wt.tumbling(seconds=10, grace=wt.seconds(5))).agg(
        n=wt.sum("n"), all=wt.collect_list("n")
    ).materialized_as("sums")
    waited.merge(facts.map_values(g="g", n="n", x="-1")).to_table().materialized_as("merged")
    waited.to_table().materialized_as("kept", history=wt.seconds(25)).to_stream().to("kept_changes")
    return app.topology()


def log(rng: random.Random) -> list[Record]:
    """Write rows and facts to two partitions each, some of them late, or deleted."""
    following = dict.fromkeys(PLACES, 0)
    records = []
    for number in range(rng.randint(30, 60)):
        place = rng.choice(PLACES)
        when = START + timedelta(seconds=2 * number + rng.choice([0, 0, 0, 0, -3, -3, -9, 6, rng.choice([0, -45])]))
        body: dict[str, Any] = {"x": rng.randint(1, 6)} if place[0] == "rows" else {"g": rng.choice("ab"), "n": rng.randint(0, 4)}
        value = None if rng.random() < 0.1 else json.dumps(body).encode()
        records.append(
            Record(*place, following[place], when, rng.choice([b"a", b"b", None] if rng.random() < 0.2 else [b"a", b"b"]), value)
        )
        following[place] += rng.choice([1, 1, 2])
    return records


def cut(rng: random.Random, records: list[Record]) -> list[list[Record]]:
    places = sorted({0, len(records), *(rng.randint(1, len(records)) for _ in range(rng.randint(0, 4)))})
    return [records[a:b] for a, b in pairwise(places)]


@pytest.mark.spark
@pytest.mark.parametrize("number", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 9))])
def test_both_engines_look_up_the_same_versions(spark: SparkSession, number: int) -> None:
    rng = random.Random(number)
    records = log(rng)
    batches = cut(rng, records) if number > 1 else [records[: len(records) // 2], records[len(records) // 2 :]]
    wanted = run_interpreter(shop(), batches)
    assert wanted.differences(CompilerRun(tiny(spark), shop()).run(batches)) == []


def found_by_search(records: list[Record]) -> Counter[tuple[Any, ...]]:
    """Search all records for the version of each fact that has gone on, by the words of the law."""
    reached: dict[tuple[str, int], Any] = {}
    rows, facts = [], []
    for r in records:
        st_ = reached[r.topic, r.partition] = max(r.timestamp, reached.get((r.topic, r.partition), r.timestamp))
        (rows if r.topic == "rows" else facts).append((r, st_))
    low = min(reached.get(place, START - timedelta(days=1)) for place in PLACES)
    found: Counter[tuple[Any, ...]] = Counter()
    for fact, stream_time in facts:
        until = max(fact.timestamp + timedelta(seconds=GRACE), stream_time)
        if fact.value is None or (fact.key is not None and not low > until):
            continue
        back_to = max(fact.timestamp, stream_time - timedelta(seconds=HISTORY))
        seen = [
            (row.timestamp, st_, row.partition, row.offset, row.value) for row, st_ in rows
            if fact.key is not None and row.key == fact.key and row.timestamp <= back_to and st_ <= until
            and row.timestamp + timedelta(seconds=HISTORY) >= st_
        ]  # fmt: skip
        last = max(seen, default=None)
        value = last[-1] if last and last[0] <= fact.timestamp else None
        body = json.loads(fact.value)
        found[body["g"], body["n"], value and json.loads(value)["x"], fact.timestamp] += 1
    return found


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_what_waits_finds_what_a_search_through_all_records_does(number: int) -> None:
    rng = random.Random(number)
    records = log(rng)
    engine = Interpreter(shop(), partitions=PLACES)
    for batch in cut(rng, records):
        engine.read(batch)
    sent = [(json.loads(o.value or b"{}"), o.timestamp) for o in engine.outputs if o.topic == "waited"]
    assert Counter((value["g"], value["n"], value["x"], when) for value, when in sent) == found_by_search(records)
