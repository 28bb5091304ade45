"""A grouped table is what grouping the rows gives: whatever came before, however it was cut, and wherever a key's records were.

The rows of the source table are grouped again here, in plain Python, and must give each grouped table to the value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watertable as wt
from tests.properties.strategies import START
from watertable.interpreter import Interpreter
from watertable.plan.plan import Topology
from watertable.records import Record

Row = dict[str, Any]

AGGREGATES = {
    "n": wt.count(),
    "known": wt.count("x"),
    "total": wt.sum("x"),
    "money": wt.sum("y"),
    "mean": wt.avg("y"),
    "least": wt.min("x"),
    "most": wt.max("x"),
    "first": wt.first("x"),
    "last": wt.last("x"),
    "kinds": wt.count_distinct("x"),
    "all": wt.collect_list("x"),
    "each": wt.collect_set("x"),
    "top": wt.top_k(2, "x"),
    "whose": wt.top_k(2, "x", "k"),
}


def orders(define: Callable[[wt.Table], wt.Table]) -> Topology:
    app = wt.App("a")
    rows = app.topic("rows", key="k STRING", value="g STRING, x INT, y DECIMAL(9,2)").table().materialized_as("rows")
    define(rows).materialized_as("grouped")
    return app.topology()


def every(rows: wt.Table) -> wt.Table:
    return rows.group_by("g").agg(**AGGREGATES)


def by_hand(rows: list[Row]) -> Row:
    """Aggregate the rows of one group, in the order of their keys."""
    rows = sorted(rows, key=lambda row: row["k"])
    xs = [row["x"] for row in rows if row["x"] is not None]
    ys = [row["y"] for row in rows if row["y"] is not None]
    ranked = sorted((row for row in rows if row["x"] is not None), key=lambda row: (row["x"], row["k"]), reverse=True)
    return {
        "n": len(rows), "known": len(xs), "total": sum(xs) if xs else None, "money": sum(ys) if ys else None,
        "mean": (sum(ys) / len(ys)).quantize(Decimal("0.000001")) if ys else None, "least": min(xs, default=None),
        "most": max(xs, default=None), "first": xs[0] if xs else None, "last": xs[-1] if xs else None, "kinds": len(set(xs)),
        "all": xs, "each": sorted(set(xs)), "top": [row["x"] for row in ranked[:2]], "whose": [row["k"] for row in ranked[:2]],
    }  # fmt: skip


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Write records of few keys and groups, deletions among them; a key's may be in any partition."""
    offsets = [0, 0]
    records = []
    for number in range(draw(st.integers(1, 20))):
        partition = draw(st.integers(0, 1))
        when = START + timedelta(seconds=number + draw(st.integers(-30, 30)))
        value = {"g": draw(st.sampled_from(["a", "b", None])), "x": draw(st.sampled_from([1, 2, 2, 3, None])), "y": draw(st.sampled_from(
            [0.5, 1.25, -2, None]))}  # fmt: skip
        data = None if draw(st.integers(0, 3)) == 3 else json.dumps(value).encode()
        records.append(Record("rows", partition, offsets[partition], when, draw(st.sampled_from([b"k1", b"k2", b"k3"])), data))
        offsets[partition] += 1
    return records


@st.composite
def cut(draw: st.DrawFn, records: list[Record]) -> list[list[Record]]:
    places = sorted(draw(st.sets(st.integers(1, len(records)), max_size=len(records))) | {0, len(records)})
    return [records[a:b] for a, b in pairwise(places)]


def run(topology: Topology, batches: list[list[Record]]) -> Interpreter:
    engine = Interpreter(topology)
    for batch in batches:
        engine.read(batch)
    return engine


def grouped(rows: list[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        if None not in key:
            groups.setdefault(key, []).append(row)
    return groups


@settings(max_examples=200)
@given(logs().flatmap(cut))
def test_a_grouped_table_is_what_grouping_the_rows_gives(batches: list[list[Record]]) -> None:
    engine = run(orders(every), batches)
    wanted = {key: {"g": key[0]} | by_hand(rows) for key, rows in grouped(list(engine.tables["rows"].values()), "g").items()}
    assert engine.tables["grouped"] == wanted


@settings(max_examples=100)
@given(logs().flatmap(cut))
def test_what_is_left_of_an_emptied_group_is_as_if_it_had_never_been(batches: list[list[Record]]) -> None:
    engine = run(orders(every), batches)
    alive = {key[0] for key in engine.tables["grouped"]}
    for key, state in engine.states["grouped"].items():
        assert key[0] in alive or all(value in (0, None, [], Decimal(0)) for value in state.values())


@settings(max_examples=100)
@given(logs().flatmap(cut))
def test_filtered_mapped_and_nested_grouped_tables_follow_their_rows(batches: list[list[Record]]) -> None:
    def define(rows: wt.Table) -> wt.Table:
        small = rows.filter("x < 3").map_values(g="g", twice="2 * x").materialized_as("small")
        return small.group_by("g", "twice").count().materialized_as("counts").group_by("count").agg(groups=wt.collect_set("g"))

    engine = run(orders(define), batches)
    small = [{"g": r["g"], "twice": 2 * r["x"]} for r in engine.tables["rows"].values() if r["x"] is not None and r["x"] < 3]
    counts = {key: len(rows) for key, rows in grouped(small, "g", "twice").items()}
    wanted: dict[tuple[int], set[str]] = {}
    for (group, _), count in counts.items():
        wanted.setdefault((count,), set()).add(group)
    assert {key: row["groups"] for key, row in engine.tables["grouped"].items()} == {key: sorted(found) for key, found in wanted.items()}


@pytest.mark.parametrize("name", sorted(AGGREGATES))
def test_every_aggregate_can_be_taken_of_a_tables_rows(name: str) -> None:
    table = orders(lambda rows: rows.group_by("g").agg(**{name: AGGREGATES[name]})).table("grouped")
    stream = wt.App("b").topic("t", key="k STRING", value="g STRING, x INT, y DECIMAL(9,2)").stream()
    assert table.value == stream.group_by("g").agg(**{name: AGGREGATES[name]}).value
