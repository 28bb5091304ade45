"""A definition's rows beside the live ones: where to begin, what two rows are to each other, and what is said without a live table."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import cast

import pytest

import watertable as wt
from watertable.plan.windows import EPOCH
from watertable.records import Advance, Key, Record, Row
from watertable.store.commits import Position
from watertable.store.reader import Reader
from watertable.tools import preview as module
from watertable.tools.preview import Live, Pair, last, preview

NO_READER = cast("Reader", object())
"""Stands where nothing may be read."""


def test_the_last_records_are_shared_by_the_partitions_as_far_as_each_has_them() -> None:
    assert last({("a", 0): 0, ("a", 1): 0}, {("a", 0): 10, ("a", 1): 10}, 6) == {("a", 0): 7, ("a", 1): 7}
    assert last({("a", 0): 0, ("b", 0): 8}, {("a", 0): 10, ("b", 0): 10}, 8) == {("a", 0): 4, ("b", 0): 8}
    assert last({("a", 0): 3, ("b", 0): 0}, {("a", 0): 10, ("b", 0): 0}, 100) == {("a", 0): 3, ("b", 0): 0}


def test_only_columns_that_both_have_are_held_against_each_other() -> None:
    assert Pair({"k": 1}, {"n": 1, "new": 2}, {"n": 1, "gone": 3}, True).mark == "same"
    assert Pair({"k": 1}, {"n": 2}, {"n": 1}, True).mark == "differs"
    assert Pair({"k": 1}, {"n": 2}, None, True).mark == "only here"
    assert Pair({"k": 1}, None, {"n": 2}, True).mark == "only live"
    assert Pair({"k": 1}, {"n": 2}, {"n": 1}, False).mark == "not compared"


def test_without_a_live_table_rows_drops_and_refusals_are_told_and_nothing_is_compared() -> None:
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT, shelf INT").stream()
    moves.expect("whole", "qty > 0").group_by("shelf").agg(qty=wt.sum("qty")).materialized_as("shelves")
    topology = app.topology()
    values = [{"qty": 1, "shelf": 1}, {"qty": -1, "shelf": 1}, {"qty": 4}]
    records = [Record("moves", 0, n, EPOCH + timedelta(seconds=n), b"a", json.dumps(value).encode()) for n, value in enumerate(values)]
    seen = preview(None, topology, topology.table("shelves"), {("moves", 0): 0}, {("moves", 0): 3}, records, None)
    assert [(pair.key, pair.here, pair.mark) for pair in seen.pairs] == [({"shelf": 1}, {"qty": 1}, "not compared")]
    assert (seen.records, dict(seen.dropped)) == (3, {"shelves: null_key": 1})
    assert [(node, n) for node, _, n in seen.refused] == [("expect:whole", 1)]
    assert "no live table yet" in seen.says


def test_rows_whose_states_have_other_keys_are_shown_by_their_own() -> None:
    app = wt.App("shop")
    moves, shelves = app.topic("moves", key="sku STRING", value="shelf STRING"), app.topic("shelves", key="shelf STRING", value="room INT")
    soon = moves.stream().group_by_key().windowed_by(wt.sliding(difference=wt.seconds(2)))
    soon.count("n").materialized_as("soon")
    placed, rooms = (topic.table().materialized_as(name) for name, topic in (("placed", moves), ("rooms", shelves)))
    placed.join(rooms, on="shelf", room="right.room").materialized_as("beside")
    data = [("shelves", b"s", {"room": 7}), ("moves", b"a", {"shelf": "s"})]
    records = [Record(topic, 0, 0, EPOCH + timedelta(seconds=5), key, json.dumps(value).encode()) for topic, key, value in data]
    found, topology = {}, app.topology()
    for name in ("soon", "beside"):
        read = [r for r in records if name == "beside" or r.topic == "moves"]
        seen = preview(None, topology, topology.table(name), {}, {}, read, None)
        found[name] = [(list(pair.key.values()), pair.here) for pair in seen.pairs]
    window = [EPOCH + timedelta(seconds=3), EPOCH + timedelta(seconds=5)]
    assert found == {"soon": [(["a", *window], {"n": 1})], "beside": [(["a"], {"room": 7})]}


def test_rows_of_which_a_part_came_before_these_records_are_not_compared() -> None:
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT").stream()
    stock = moves.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
    stock.to_stream().map_values(qty="new.qty").to_table().materialized_as("told")
    hours = moves.join(stock, of="right.qty").group_by_key().windowed_by(wt.tumbling(hours=1))
    hours.agg(of=wt.max("of")).materialized_as("by_hour")
    topology, at = app.topology(), {("moves", 0): 7}
    record = Record("moves", 0, 7, EPOCH, b"a", b'{"qty": 1}')
    live = Live(Position("shop", 1, 9), 3, {("moves", 0): 8}, ("sku", "qty", "of", "window_start", "window_end"))
    for name in ("told", "by_hour"):
        seen = preview(NO_READER, topology, topology.table(name), at, {("moves", 0): 8}, [record], live)
        assert [pair.mark for pair in seen.pairs] == ["not compared"]
        assert "something remembers what came before these records" in seen.says


def test_what_a_definition_makes_no_more_is_shown_beside_it_where_all_of_it_should_be_here(monkeypatch: pytest.MonkeyPatch) -> None:
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT").stream().filter("qty > 0").group_by_key()
    moves.agg(qty=wt.sum("qty")).materialized_as("stock")
    topology, asked = app.topology(), list[str | None]()
    kept = {("a",): {"qty": 1}, ("b",): {"qty": -1}}

    def live_rows(_: object, table: object, live: object, keys: list[Key], others: str | None = None) -> dict[Key, Row]:
        asked.append(others)
        return {key: row for key, row in kept.items() if (key in keys) is (others is None)}

    monkeypatch.setattr(module, "_live_rows", live_rows)
    records = [Record("moves", 0, n, EPOCH, sku, b'{"qty": %d}' % qty) for n, (sku, qty) in enumerate([(b"a", 1), (b"b", -1)])]
    live = Live(Position("shop", 1, 1), 1, {("moves", 0): 2}, ("sku", "qty"))
    seen = preview(NO_READER, topology, topology.table("stock"), {("moves", 0): 0}, {("moves", 0): 2}, records, live)
    assert [(pair.key["sku"], pair.mark) for pair in seen.pairs] == [("a", "same"), ("b", "only live")]
    assert asked == [None, "true"]
    monkeypatch.setattr(module, "COMPARED", 1)
    seen = preview(NO_READER, topology, topology.table("stock"), {("moves", 0): 0}, {("moves", 0): 2}, records, live)
    assert "Of the live rows that aren't made here 1 are shown, and there may be more." in seen.says
    more = [*records, Record("moves", 0, 2, EPOCH, b"c", b'{"qty": 3}')]
    seen = preview(NO_READER, topology, topology.table("stock"), {("moves", 0): 0}, {("moves", 0): 3}, more, live)
    assert "Of 2 rows the first 1 are." in seen.says
    assert [(pair.key["sku"], pair.mark) for pair in seen.pairs] == [("a", "same"), ("c", "not compared")]


def test_what_the_commits_advanced_counts_as_far_as_the_live_table_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT", idle_after=wt.minutes(5)).stream()
    moves.group_by_key().windowed_by(wt.tumbling(minutes=10)).agg(qty=wt.sum("qty")).materialized_as("by_time")
    topology, there = app.topology(), {("moves", 0): 2}
    hour = EPOCH + timedelta(hours=1)
    records = [Record("moves", 0, n, EPOCH + timedelta(minutes=n), b"a", b'{"qty": 1}') for n in range(2)]
    monkeypatch.setattr(module, "_live_rows", lambda *_: {})
    for offset, time, qty in ((1, None, 1), (2, None, 2)):
        live = Live(Position("shop", 1, 1), 1, there, ("sku", "window_start", "window_end", "qty"), {("moves", 0): time})
        advance = Advance("moves", 0, offset, hour)
        seen = preview(NO_READER, topology, topology.table("by_time"), {("moves", 0): 0}, there, records, live, [advance])
        assert [pair.here for pair in seen.pairs] == [{"qty": qty}]
        assert seen.records == 2
    assert not live.reaches(Advance("moves", 0, 2, hour)), "it was recorded behind what is folded"
    assert Live(live.position, 1, there, (), {("moves", 0): hour}).reaches(Advance("moves", 0, 2, hour))
