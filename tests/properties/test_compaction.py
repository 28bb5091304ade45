"""What Kafka leaves of a compacted topic makes the rows that all of its records made, wherever `by_all` doesn't name it.

Of each key the newest record stays, of a deletion nothing, after a while; and at any time a part of it is compacted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watertable as wt
from tests.properties.engines import run_interpreter
from tests.properties.strategies import START
from tests.properties.test_grouped_tables import AGGREGATES
from watertable.acts.compaction import by_all
from watertable.plan.plan import Topology
from watertable.records import Record

KEYS = {b"k1": 0, b"k2": 0, b"k3": 1, b"k4": 1}


def rows_alone() -> Topology:
    """Make all that goes by rows as they are of two tables, whose keys are among the values of both."""
    app = wt.App("a")
    one, two = (app.topic(name, key="k STRING", value="g STRING, x INT, y DECIMAL(9,2)").table() for name in ("one", "two"))
    one, two = one.materialized_as("one"), two.materialized_as("two")
    shown = one.filter("x > 1").map_values(g="g", twice="2 * x", y="y").materialized_as("shown")
    one.join(two, x="left.x", g="right.g").materialized_as("inner_join")
    left = one.left_join(two, x="left.x", y="right.y", g="right.g").materialized_as("left_join")
    one.outer_join(two, x="left.x", y="right.y").materialized_as("outer_join")
    foreign = one.join(two, on="g", x="left.x", y="right.y", g="right.g").materialized_as("foreign")
    one.left_join(one, on="g", x="left.x", y="right.y").materialized_as("of_itself")
    one.group_by("g").agg(**AGGREGATES).materialized_as("grouped")
    one.group_by("g").reduce(x="acc.x - x", y="y").materialized_as("reduced")
    left.group_by("g").agg(n=wt.count(), total=wt.sum("x")).materialized_as("of_a_join")
    counts = foreign.group_by("g").count().materialized_as("of_a_foreign_join")
    counts.group_by("count").agg(groups=wt.collect_set("g")).materialized_as("of_groups")
    shown.group_by("twice").agg(least=wt.min("y"), first=wt.first("g")).materialized_as("of_what_is_shown")
    return app.topology()


ROWS_ALONE = rows_alone()


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Write records of few keys into two topics, deletions among them, with times in any order."""
    offsets: dict[tuple[str, int], int] = {}
    records = []
    for number in range(draw(st.integers(1, 24))):
        topic, key = draw(st.sampled_from(["one", "two"])), draw(st.sampled_from([*KEYS]))
        value = {"g": draw(st.sampled_from(["k1", "k3", "b", None])), "x": draw(st.sampled_from([1, 2, 2, 3, None])),
                 "y": draw(st.sampled_from([0.5, 1.25, -2, None]))}  # fmt: skip
        data = None if draw(st.integers(0, 3)) == 3 else json.dumps(value).encode()
        place = (topic, KEYS[key])
        when = START + timedelta(seconds=number + draw(st.integers(-30, 30)))
        records.append(Record(*place, offsets.get(place, 0), when, key, data))
        offsets[place] = records[-1].offset + 1
    return records


def compacted(records: list[Record], goes: Callable[[], bool]) -> list[Record]:
    """Leave out some of the records that have a newer one of their key, and deletions of which there is nothing left before them."""
    newest = {(r.topic, r.key): r for r in records}
    kept = [r for r in records if newest[r.topic, r.key] is r or not goes()]
    oldest = {(r.topic, r.key): r for r in reversed(kept)}
    return [r for r in kept if r.value is not None or oldest[r.topic, r.key] is not r or not goes()]


@settings(max_examples=200)
@given(logs(), st.data())
def test_what_goes_by_rows_alone_comes_out_the_same_of_a_compacted_topic(records: list[Record], data: st.DataObject) -> None:
    topology = ROWS_ALONE
    in_part, chance = data.draw(st.booleans()), data.draw(st.randoms(use_true_random=False))
    left = compacted(records, lambda: not in_part or chance.random() < 0.5)
    cut = data.draw(st.integers(0, len(left)))
    assert run_interpreter(topology, [left[:cut], left[cut:]]).tables == run_interpreter(topology, [records]).tables


def test_no_topic_is_named_of_which_rows_alone_count() -> None:
    assert by_all(ROWS_ALONE) == frozenset()


@pytest.mark.parametrize(
    "define",
    [
        lambda one: one.stream().group_by_key().agg(n=wt.count()),
        lambda one: one.stream().filter("x > 1").to_table(),
        lambda one: one.table().materialized_as("rows").to_stream().filter("old.x IS NOT NULL").group_by_key().agg(n=wt.count()),
    ],
)
def test_what_counts_or_leaves_out_records_is_another_of_a_compacted_topic(define: Callable[[wt.Topic], wt.Table]) -> None:
    app = wt.App("a")
    define(app.topic("one", key="k STRING", value="x INT")).materialized_as("made")
    topology = app.topology()
    records = [Record("one", 0, n, START, b"k1", json.dumps({"x": x}).encode()) for n, x in enumerate([2, 3, 1])]
    assert by_all(topology) == {"one"}
    assert run_interpreter(topology, [records]).tables["made"] != run_interpreter(topology, [records[-1:]]).tables["made"]
