"""Advances: what is idle holds nobody back, and a replay does what was decided then, whatever its batches and the clock."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watertable as wt
from tests.properties.strategies import START
from watertable import records
from watertable.errors import DefinitionError
from watertable.interpreter import Interpreter
from watertable.plan.lineage import describe
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.runtime import advances as advances_module
from watertable.runtime.advances import Advances, Recorded, let_go
from watertable.store.commits import Advance
from watertable.testing import TopologyTestDriver

A, B, C = ("clicks", 0), ("clicks", 1), ("clicks", 2)
V = ("views", 0)
ALONE = {"clicks": frozenset({"clicks"})}
BOTH = dict.fromkeys(("clicks", "views"), frozenset({"clicks", "views"}))


def at(second: float) -> datetime:
    return EPOCH + timedelta(seconds=second)


def test_an_outage_is_no_idle_time() -> None:
    advances = Advances({"clicks": timedelta(minutes=1)}, ALONE)
    offsets = {A: 10, B: 10}
    for ago in (1.0, 50.0):
        advances.look(offsets, offsets, ago)
    advances.forget()
    advances.look(offsets, offsets, 300.0)
    assert advances.idle == frozenset()
    advances.look(offsets, offsets, 360.0)
    assert advances.idle == {A, B}


def shop() -> Topology:
    """Show the clicks of each ten seconds once they are final, and views without a click."""
    app = wt.App("shop")
    clicks = app.topic("clicks", key="k STRING", value="n INT", idle_after=wt.minutes(5)).stream()
    views = app.topic("views", key="k STRING", value="n INT").stream()
    clicks.group_by_key().windowed_by(wt.tumbling(seconds=10), emit="on_close").agg(n=wt.sum("n")).materialized_as("final")
    views.left_join(clicks, within=wt.seconds(5), n="right.n").to("seen")
    return app.topology()


# -- what is idle --------------------------------------------------------------------------------------------------------------------


def test_a_partition_is_idle_once_it_has_had_nothing_to_read_for_as_long_as_its_topic_says() -> None:
    advances = Advances.of(shop())
    offsets = {A: 3, B: 7, V: 0}
    advances.look(offsets, {A: 3, B: 8, V: 0}, 1000.0)
    advances.look(offsets, {A: 3, B: 8, V: 0}, 1299.9)
    assert advances.idle == frozenset()
    advances.look(offsets, {A: 3, B: 8, V: 0}, 1300.0)
    assert advances.idle == {A}, "of B there is one to read, and views wait for every partition"
    advances.look({A: 3, B: 8, V: 0}, {A: 4, B: 8, V: 0}, 1301.0)
    assert advances.idle == {B}
    advances.look({A: 4, B: 8, V: 0}, {A: 4, B: 8, V: 0}, 1302.0)
    assert advances.idle == {B}, "what has just been read isn't idle"


def test_it_goes_on_as_far_as_the_others_of_its_topic_have_all_come() -> None:
    assert let_go({A}, {A: at(5), B: at(30), C: at(20)}, ALONE) == {A: at(20)}
    assert let_go({A}, {A: None, B: at(30)}, ALONE) == {A: at(30)}, "an empty one, too"
    assert let_go({A}, {A: at(50), B: at(30)}, ALONE) == {A: at(50)}, "never back"
    assert let_go({A}, {A: at(5), B: None}, ALONE) == {A: at(5)}, "one that has still to begin holds all"


def test_a_topic_that_is_idle_altogether_comes_as_far_as_its_furthest_and_as_those_that_wait_for_it() -> None:
    assert let_go({A, B}, {A: at(5), B: at(30)}, ALONE) == {A: at(30), B: at(30)}
    assert let_go({A, B}, {A: at(5), B: at(30), V: at(99)}, ALONE | BOTH) == {A: at(99), B: at(99)}
    assert let_go({A, B}, {A: at(5), B: at(30), V: at(99)}, ALONE) == {A: at(30), B: at(30)}, "of another table's topic nothing waits"
    assert let_go({A}, {A: None}, ALONE) == {}


def test_topics_wait_for_each_other_where_they_feed_something_together() -> None:
    app = wt.App("shop")
    for name in ("a", "b", "c"):
        app.topic(name, key="k STRING", value="n INT").stream().group_by_key().count().materialized_as(f"of_{name}")
    one, two = (app.topic(name, key="k STRING", value="n INT").table() for name in ("d", "e"))
    one.join(two, n="left.n").materialized_as("both")
    assert {name: set(peers) for name, peers in Advances.of(app.topology()).peers.items()} == {
        "a": {"a"}, "b": {"b"}, "c": {"c"}, "d": {"d", "e"}, "e": {"d", "e"}
    }  # fmt: skip


def test_an_idle_after_of_no_time_says_where_and_the_fingerprint_doesnt_move_with_it() -> None:
    with pytest.raises(DefinitionError, match=r"test_advances.py.*idle_after must be longer than zero"):
        wt.App("shop").topic("clicks", value="n INT", idle_after=wt.seconds(0))

    def of(idle_after: timedelta | None) -> str:
        app = wt.App("shop")
        app.topic("clicks", key="k STRING", value="n INT", idle_after=idle_after).stream().group_by_key().count().materialized_as("t")
        return app.topology().fingerprint

    assert of(None) == of(wt.minutes(1))
    assert "event time of the record, partitions let go after 5m" in describe(shop())


# -- what was recorded ---------------------------------------------------------------------------------------------------------------


def test_a_replay_cuts_its_batches_at_the_recorded_advances_and_makes_them_there() -> None:
    advances = Advances({}, ALONE, Recorded([Advance(*A, 10, at(50)), Advance(*A, 10, at(70)), Advance(*B, 4, at(60))]))
    assert advances.upto({A: 0, B: 0}, {A: 25, B: 3}) == {A: 10, B: 3}
    assert advances.due({A: 0, B: 0}, {A: None, B: None}) == ()
    assert advances.due({A: 10, B: 3}, {A: at(20), B: at(9)}) == (Advance(*A, 10, at(70)),)
    assert advances.upto({A: 10, B: 3}, {A: 25, B: 9}) == {A: 25, B: 4}
    assert advances.due({A: 25, B: 9}, {A: at(70), B: at(80)}) == (), "what has come further needs none"


MADE = st.builds(
    Advance, st.sampled_from(["clicks", "views"]), st.integers(0, 1), st.integers(0, 5), st.integers(1, 9).map(at),
    st.none() | st.integers(1, 9).map(at),
)  # fmt: skip


@settings(max_examples=300)
@given(
    st.lists(MADE, max_size=25, unique_by=lambda a: (a.topic, a.partition, a.before, a.stream_time, a.clock is None)),
    st.dictionaries(st.sampled_from([A, B, V]), st.integers(0, 6)), st.dictionaries(st.sampled_from([A, B, V]), st.integers(0, 6)),
    st.dictionaries(st.sampled_from([A, B, V]), st.none() | st.integers(0, 9).map(at)),
)  # fmt: skip
def test_what_is_found_is_what_a_look_at_each_recorded_advance_finds(
    made: list[Advance], offsets: dict[tuple[str, int], int], end: dict[tuple[str, int], int], times: dict[tuple[str, int], datetime | None]
) -> None:
    cut, due = dict(end), dict[tuple[str, int, datetime], Advance]()
    for place, offset in offsets.items():
        own = [a for a in made if (a.topic, a.partition) == place]
        for a in own:
            if place in cut and offset < a.before < cut[place]:
                cut[place] = a.before
        reached = max([a.stream_time for a in own if a.before <= offset], default=None)
        before = times.get(place)
        if reached is not None and (before is None or before < reached):
            due[*place, reached] = Advance(*place, offset, reached)
        clocks = [a for a in own if a.clock is not None and a.before == offset and (before is None or before < a.stream_time)]
        due |= {(*place, a.stream_time): a for a in clocks}
    advances = Advances({}, ALONE, Recorded(made))
    assert advances.upto(offsets, end) == cut
    assert advances.due(offsets, times) == tuple(due[key] for key in sorted(due))


def test_a_turn_looks_at_what_is_near_and_not_at_all_that_was_ever_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Advance] = []
    for name in ("_before", "_in_order"):
        key = getattr(advances_module, name)
        monkeypatch.setattr(advances_module, name, lambda a, key=key: looked.append(a) or key(a))
    moving = [Advance(*A, 10 * n, at(n), at(n)) for n in range(10_000)]
    standing = [Advance(*B, 7, at(n), at(n)) for n in range(10_000)]  # nothing comes, and the clock is recorded again and again
    advances = Advances({}, ALONE, Recorded(moving + standing))
    for offset, time in ((0, at(0)), (50_000, at(5000)), (99_995, at(9_999))):
        looked.clear()
        offsets = {A: offset, B: 7}
        assert advances.upto(offsets, {A: 200_000, B: 7})[A] == (offset + 10 if offset < 90_000 else 200_000)
        assert advances.due(offsets, {A: time, B: at(9_999)}) == ()
        assert len(looked) < 200, f"at {offset}"


def test_what_was_decided_for_where_an_app_stands_and_it_has_not_done_waits_for_the_app() -> None:
    made = (Advance(*A, 10, at(50)), Advance(*A, 25, at(70)), Advance(*A, 25, at(90)), Advance(*B, 4, at(60)))
    advances = Advances({}, ALONE, Recorded(made))
    advances.level_with({A: 25, B: 4}, {A: at(70), B: None})
    assert [*advances.recorded] == [Advance(*A, 10, at(50)), Advance(*A, 25, at(70))]
    advances.level_with({A: 10}, {A: at(20)})
    assert [*advances.recorded] == [], "an app that was rewound meanwhile stands elsewhere"


def test_a_partition_that_wakes_after_its_window_was_let_go_is_late_for_it() -> None:
    driver = TopologyTestDriver(shop())
    driver.pipe_input("clicks", "a", {"n": 1}, timestamp=3000)
    driver.pipe_input("clicks", "b", {"n": 1}, timestamp=1000, partition=1)
    driver.pipe_input("clicks", "a", {"n": 1}, timestamp=25_000)
    assert driver.table("final") == {}
    driver.advance("clicks", at(25), partition=1)
    assert {key[0]: row["n"] for key, row in driver.table("final").items()} == {"a": 1, "b": 1}
    driver.pipe_input("clicks", "b", {"n": 5}, timestamp=9000, partition=1)  # it slept, and its window is closed
    driver.pipe_input("clicks", "b", {"n": 7}, timestamp=21_000, partition=1)  # late for nothing
    for partition in (0, 1):
        driver.advance("clicks", at(60), partition=partition)
    assert sorted((key[0], row["n"]) for key, row in driver.table("final").items()) == [("a", 1), ("a", 1), ("b", 1), ("b", 7)]
    assert [(d.reason, d.partition, d.offset, d.window) for d in driver.dropped()] == [("late", 1, 1, (at(0), at(10)))]


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Write clicks and views to three partitions, in any order of times, some of which sleep."""
    following: Counter[tuple[str, int]] = Counter()
    found = []
    for number in range(draw(st.integers(4, 24))):
        topic, partition = draw(st.sampled_from([A, A, A, B, V]))
        when = START + timedelta(seconds=3 * number + draw(st.integers(-12, 12)))
        value = json.dumps({"n": number}).encode()
        found.append(Record(topic, partition, following[topic, partition], when, draw(st.sampled_from([b"k", b"l"])), value))
        following[topic, partition] += 1
    return found


def outcome(engine: Interpreter) -> object:
    late = Counter((d.node, d.topic, d.partition, d.offset, d.window) for d in engine.dropped)
    return engine.tables, Counter((o.key, o.value, o.timestamp) for o in engine.outputs), late, engine.stream_times


def step(engine: Interpreter, advances: Advances, offsets: dict[tuple[str, int], int], batch: list[Record]) -> list[Advance]:
    """Read a batch as a job does: what is due first."""
    due = advances.due(offsets, {p: engine.stream_times.get(p) for p in offsets})
    engine.read([*(records.Advance(a.topic, a.partition, a.before, a.stream_time) for a in due), *batch])
    offsets |= {(r.topic, r.partition): r.offset + 1 for r in batch}
    return list(due)


@settings(max_examples=100)
@given(logs(), st.integers(0, 1 << 32).map(Random))
def test_a_replay_closes_the_windows_that_were_closed_and_drops_what_was_late_whatever_its_batches(log: list[Record], rng: Random) -> None:
    topology, places = shop(), (A, B, V)
    live, offsets = Interpreter(topology, partitions=places), dict.fromkeys(places, 0)
    advances, made = Advances.of(topology), list[Advance]()
    while left := [r for r in log if r.offset >= offsets[r.topic, r.partition]]:
        batch = left[: rng.randint(0, 4)]
        advances.idle = frozenset(rng.sample([A, B], rng.randint(0, 2))) - {(r.topic, r.partition) for r in batch}
        made += step(live, advances, offsets, batch)
    advances.idle = frozenset({A, B})
    made += step(live, advances, offsets, [])

    replay, offsets = Interpreter(topology, partitions=places), dict.fromkeys(places, 0)
    again = Advances({}, advances.peers, Recorded(made))
    ends = {p: sum((r.topic, r.partition) == p for r in log) for p in places}
    while offsets != ends or again.due(offsets, {p: replay.stream_times.get(p) for p in offsets}):
        end = again.upto(offsets, {p: min(ends[p], offsets[p] + rng.randint(0, 9)) for p in places})
        step(replay, again, offsets, [r for r in log if offsets[r.topic, r.partition] <= r.offset < end[r.topic, r.partition]])
    assert outcome(replay) == outcome(live)
