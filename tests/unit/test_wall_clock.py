"""Laws of punctuators by the wall clock: what they do follows from the records and the recorded clocks, whatever the batches."""

from __future__ import annotations

import io
import random
from datetime import datetime, timedelta
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import watertable as wt
from tests.spark.runs import cut
from watertable.dsl.streams import Stream
from watertable.errors import DefinitionError, StoreError
from watertable.interpreter import Interpreter
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.processing import MOMENT
from watertable.records import Advance, Record
from watertable.runtime.advances import Advances, Clocks, Recorded, clocks_of
from watertable.store import commits
from watertable.testing import TopologyTestDriver
from watertable.tools import keytext
from watertable.tools.explain import explain
from watertable.tools.testcase import as_test
from watertable_platform.cli import show

PLACES = (("views", 0), ("views", 1))
Item = Record | Advance


def at(second: float) -> datetime:
    return EPOCH + timedelta(seconds=second)


def await_order(record: wt.Record, context: wt.Context) -> None:
    """Remind of each basket that isn't ordered ten seconds later on the wall, or three seconds of stream time later if it is in a hurry."""
    basket = context.store("basket")
    assert record.value is not None
    what = record.value["what"]
    if what == "order":
        basket.delete()
        context.cancel("remind")
        context.cancel("give_up")
        return
    basket.put({"items": (basket.get() or {"items": 0})["items"] + 1})
    if what == "hurry":
        context.schedule("remind", at=record.timestamp + wt.seconds(3))
    else:
        context.schedule("remind", at=record.timestamp + wt.seconds(10), by="wall_clock")
    if what == "bad":
        raise ValueError("no such thing")


def remind(record: wt.Record, context: wt.Context) -> None:
    row = context.store("basket").get()
    context.forward({"what": f"remind at {record.timestamp:%M:%S}, {record.stream_time:%M:%S}", "items": row and row["items"]})
    context.schedule("give_up", at=record.timestamp + wt.seconds(5), by="wall_clock")
    if row and row["items"] > 2:
        raise ValueError("too much to remind of")


def give_up(record: wt.Record, context: wt.Context) -> None:
    row = context.store("basket").delete()
    context.forward({"what": f"give up at {record.timestamp:%M:%S}", "items": row and row["items"]})
    context.schedule("forget", at=record.timestamp, by="wall_clock")


def forget(record: wt.Record, context: wt.Context) -> None:
    context.forward({"what": "forget", "items": None})


def baskets(name: str = "site", topic: str = "views") -> tuple[wt.App, Stream]:
    app = wt.App(name)
    views = app.topic(topic, key="who STRING", value="what STRING").stream()
    stores, late = {"basket": wt.key_value_store("items INT")}, {"give_up": give_up, "forget": forget, "remind": remind}
    return app, views.process_values(await_order, value="what STRING, items INT", stores=stores, punctuators=late)


def shop() -> Topology:
    """Publish what is told, fold it, and fold it by time."""
    app, told = baskets()
    told.to("out")
    told.group_by_key().agg(n=wt.count(), all=wt.collect_list("what")).materialized_as("told")
    told.group_by("what").windowed_by(wt.tumbling(seconds=30)).agg(n=wt.count(), last=wt.last("items")).materialized_as("counted")
    return app.topology()


def shopping(number: int, seed: int = 11) -> list[Record]:
    rng, made, offsets = random.Random(seed), [], [0, 0]
    for n in range(number):
        who = rng.choice("abcd")
        partition = ord(who) % 2
        what = rng.choice(["tea", "tea", "tea", "hurry", "order", "bad"])
        when = at(20 * (n // 12) + n % 12 // 2 + rng.choice([0, 0, -3, 4]) + 50)
        made.append(Record("views", partition, offsets[partition], when, who.encode(), f'{{"what": "{what}"}}'.encode()))
        offsets[partition] += 1
    return made


def lived(topology: Topology, records: list[Record], rng: random.Random, most: int = 5) -> list[Item]:
    """Run an app as it goes, in some batches, the wall clock a little ahead: give what it read, with the clocks that it recorded."""
    engine, told, offsets, clock = Interpreter(topology, partitions=PLACES), list[Item](), dict.fromkeys(PLACES, 0), at(60)
    while len(read := [i for i in told if isinstance(i, Record)]) < len(records) or rng.random() < 0.7:
        clock += timedelta(seconds=rng.choice([0, 1, 3, 8]))
        due = [p for p, when in engine.visits.by_clock().items() if when <= clock]
        batch: list[Item] = [Advance(*p, offsets[p], engine.stream_times[p] + MOMENT, clock) for p in due]
        batch += records[len(read) : len(read) + rng.randint(0, most)]
        engine.read(batch)
        offsets |= {(r.topic, r.partition): r.offset + 1 for r in batch if isinstance(r, Record)}
        told += batch
    return told


def lived_through(topology: Topology, records: list[Record], rng: random.Random) -> tuple[Interpreter, list[Advance]]:
    """Give what an app comes to in the end, and the clocks that it has recorded."""
    items, live = lived(topology, records, rng), Interpreter(topology, partitions=PLACES)
    live.read(items)
    return live, [item for item in items if isinstance(item, Advance)]


def told_by(engine: Interpreter) -> object:
    outputs = sorted((o.topic, *o.place, o.value or b"") for o in engine.outputs)
    return engine.tables, outputs, sorted((r.record.offset, r.reason) for r in engine.quarantine), engine.stream_times


def test_it_is_called_at_the_next_recorded_clock_once_the_clock_has_passed_its_time() -> None:
    app, told = baskets()
    told.to("out")
    driver = TopologyTestDriver(app, wall_clock=at(0))
    for second, who, what in [(0, "ann", "tea"), (2, "bob", "tea"), (5, "bob", "order"), (8, "ann", "tea"), (100, "eve", "tea")]:
        driver.pipe_input("views", who, {"what": what}, timestamp=second * 1000)
    assert driver.read_output("out") == [], "stream time is not the clock on the wall"
    driver.advance_wall_clock(wt.seconds(17))
    assert driver.stream_time("views") == at(100), "nothing was due, and nothing is recorded"
    driver.advance_wall_clock(at(18))
    (sent,) = driver.read_output("out")
    assert (sent.key, sent.value, sent.timestamp) == ("ann", {"what": "remind at 00:18, 01:40", "items": 2}, at(18))
    assert driver.stream_time("views") == at(100) + MOMENT
    driver.advance_wall_clock(at(200))
    assert {s.key: s.value and s.value["what"] for s in driver.read_output("out")} == {
        "eve": "remind at 01:50, 01:40", "ann": "give up at 00:23"
    }  # fmt: skip
    assert list(driver.table("basket")) == ["eve"]


def test_what_it_schedules_comes_at_the_next_clock_also_where_its_time_is_over() -> None:
    app, told = baskets()
    told.to("out")
    driver = TopologyTestDriver(app, wall_clock=at(0))
    driver.pipe_input("views", "ann", {"what": "tea"}, timestamp=0)
    said = []
    for _ in range(5):
        driver.advance_wall_clock(at(1000))
        said.append([sent.value and sent.value["what"] for sent in driver.read_output("out")])
    assert said == [["remind at 00:10, 00:00"], ["give up at 00:15"], ["forget"], [], []]


def test_those_of_one_key_come_in_the_order_of_their_times() -> None:
    def wait(record: wt.Record, context: wt.Context) -> None:
        for name, second in [("a", 5), ("b", 3), ("c", 4), ("d", 2)]:
            context.schedule(name, at=record.timestamp + wt.seconds(second), by="wall_clock")

    def tell(record: wt.Record, context: wt.Context) -> None:
        context.forward({"second": record.timestamp.second})

    def cancels(record: wt.Record, context: wt.Context) -> None:
        context.forward({"second": record.timestamp.second})
        context.cancel("c")
        context.schedule("a", at=record.timestamp, by="wall_clock")

    app = wt.App("site")
    views = app.topic("views", key="who STRING", value="what STRING").stream()
    late = {"a": tell, "b": cancels, "c": tell, "d": tell}
    views.process_values(wait, value="second INT", punctuators=late).to("out")
    driver = TopologyTestDriver(app, wall_clock=0)
    driver.pipe_input("views", "ann", {"what": "tea"}, timestamp=0)
    driver.advance_wall_clock(wt.minutes(1))
    assert [s.value and s.value["second"] for s in driver.read_output("out")] == [2, 3], "what was called before may change what comes"
    driver.advance_wall_clock(wt.minutes(1))
    assert [s.value and s.value["second"] for s in driver.read_output("out")] == [3]


def test_scheduled_by_the_other_clock_it_forgets_the_first_time() -> None:
    app, told = baskets()
    told.to("out")
    driver = TopologyTestDriver(app, wall_clock=at(0))
    for who, first, second in [("ann", "tea", "hurry"), ("bob", "hurry", "tea")]:
        driver.pipe_input("views", who, {"what": first}, timestamp=0)
        driver.pipe_input("views", who, {"what": second}, timestamp=0)
    driver.advance_wall_clock(at(11))
    assert [s.key for s in driver.read_output("out")] == ["bob"]
    driver.advance("views", at(3))
    assert [s.key for s in driver.read_output("out")] == ["ann"]


def test_one_that_raises_is_quarantined_and_not_called_again() -> None:
    app, told = baskets()
    told.to("out")
    driver = TopologyTestDriver(app, wall_clock=at(0))
    for second in (0, 1, 2):
        driver.pipe_input("views", "ann", {"what": "tea"}, timestamp=second * 1000)
    for _ in range(3):
        driver.advance_wall_clock(wt.minutes(1))
    assert [refused.reason for refused in driver.quarantine()] == ["remind raises ValueError: too much to remind of"]
    assert driver.read_output("out") == []


def test_no_cut_between_batches_changes_what_they_do() -> None:
    topology, rng = shop(), random.Random(1)
    items = lived(topology, shopping(80), rng)
    told = []
    for cuts in (0, 1, 7, 30, 60):
        engine = Interpreter(topology, partitions=PLACES)
        for batch in cut(items, rng, cuts):
            engine.read(batch)
        told.append(told_by(engine))
    assert told[1:] == told[:1] * 4
    assert sum(isinstance(item, Advance) for item in items) > 10
    assert len(engine.outputs) > 20
    assert any("remind" in refused.reason for refused in engine.quarantine)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 30), st.integers(0, 1 << 32), st.integers(0, 1 << 32).map(random.Random))
def test_a_replay_in_any_batches_does_the_same_with_the_clocks_that_were_recorded(number: int, seed: int, rng: random.Random) -> None:
    topology, records = shop(), shopping(number, seed)
    items = lived(topology, records, rng)
    live = Interpreter(topology, partitions=PLACES)
    live.read(items)
    made = tuple(commits.Advance(a.topic, a.partition, a.offset, a.stream_time, a.clock) for a in items if isinstance(a, Advance))
    ends = {p: sum((r.topic, r.partition) == p for r in records) for p in PLACES}
    replay, again, offsets = Interpreter(topology, partitions=PLACES), Advances({}, {}, Recorded(made)), dict.fromkeys(PLACES, 0)
    again.read = {p: end + 1 for p, end in ends.items()}

    def due() -> tuple[commits.Advance, ...]:
        again.noticed = dict.fromkeys(PLACES, at(1 << 20))  # it is late by now
        return again.due(offsets, {p: replay.stream_times.get(p) for p in PLACES})

    while offsets != ends or due():
        end = again.upto(offsets, {p: min(ends[p], offsets[p] + rng.randint(0, 9)) for p in PLACES})
        advances = [Advance(a.topic, a.partition, a.before, a.stream_time, a.clock) for a in due()]
        replay.read([*advances, *(r for r in records if offsets[r.topic, r.partition] <= r.offset < end[r.topic, r.partition])])
        offsets = end
    assert told_by(replay) == told_by(live)


@pytest.mark.parametrize(("by", "told"), [("stream_time", [14, 24]), ("wall_clock", [30, 30])])
def test_a_final_row_is_of_no_partition_and_goes_by_what_its_topics_come_to_first(
    by: Literal["stream_time", "wall_clock"], told: list[int]
) -> None:
    def wait(record: wt.Record, context: wt.Context) -> None:
        context.schedule("tell", at=record.timestamp + wt.seconds(5), by=by)

    def tell(record: wt.Record, context: wt.Context) -> None:
        context.forward({"second": record.stream_time.second})

    app = wt.App("site")
    views = app.topic("views", key="who STRING", value="what STRING").stream()
    sums = views.group_by_key().windowed_by(wt.tumbling(seconds=10), emit="on_close").agg(n=wt.count()).materialized_as("sums")
    sums.to_stream().map_values(n="new.n").process_values(wait, value="second INT", punctuators={"tell": tell}).to("out")
    driver = TopologyTestDriver(app, wall_clock=at(0))
    for second in (1, 11, 30):
        driver.pipe_input("views", "ann", {"what": "tea"}, timestamp=second * 1000)
    driver.advance_wall_clock(at(50))
    assert [s.value for s in driver.read_output("out")] == [{"second": second} for second in told]


def test_what_is_asked_of_a_clock_is_checked() -> None:
    app, told = baskets()
    told.to("out")
    driver = TopologyTestDriver(app)
    with pytest.raises(DefinitionError, match="say what the wall clock is first"):
        driver.advance_wall_clock(wt.seconds(1))
    driver.advance_wall_clock("1970-01-01T00:01:00Z")
    with pytest.raises(DefinitionError, match="doesn't go back"):
        driver.advance_wall_clock(59_000)
    with driver.batch(), pytest.raises(DefinitionError, match="between batches"):
        driver.advance_wall_clock(wt.seconds(1))

    def wrong(record: wt.Record, context: wt.Context) -> None:
        context.schedule("later", at=record.timestamp, by="the moon")  # type: ignore[arg-type]

    other = wt.App("site")
    other.topic("views", value="n INT").stream().process_values(wrong, value="n INT", punctuators={"later": forget}).to("out")
    driver = TopologyTestDriver(other)
    driver.pipe_input("views", "ann", {"n": 1}, timestamp=1)
    assert [r.reason for r in driver.quarantine()] == [
        "wrong raises ValueError: schedule('later', by='the moon'): by='stream_time' or by='wall_clock'"
    ]


def test_a_row_that_waits_for_the_clock_has_no_story_that_records_alone_can_tell() -> None:
    app, told = baskets()
    told.group_by_key().count().materialized_as("told")
    app.topic("others", key="who STRING", value="n INT").table().materialized_as("beside")
    topology = app.topology()
    hurried = [Record("views", 0, 0, at(1), b"ann", b'{"what": "hurry"}')]
    assert len(explain(topology, topology.table("basket"), keytext.read(topology.table("basket"), ["ann"]), hurried).steps) == 1
    waits = [*hurried, *(Record("views", 0, n, at(2), b"ann", b'{"what": "%b"}' % what) for n, what in enumerate([b"tea", b"order"], 1))]
    waits.append(Record("others", 0, 0, at(2), b"ann", b'{"n": 1}'))
    for name in ("basket", "told"):
        with pytest.raises(StoreError, match=f"'{name}' .*schedules by the wall clock"):
            explain(topology, topology.table(name), keytext.read(topology.table(name), ["ann"]), waits)
    assert len(explain(topology, topology.table("beside"), keytext.read(topology.table("beside"), ["ann"]), waits).steps) == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_story_that_is_told_with_the_recorded_clocks_ends_with_the_row(seed: int) -> None:
    topology, records, rng = shop(), shopping(80, seed), random.Random(seed)
    live, clocks = lived_through(topology, records, rng)
    rng.shuffle(clocks)
    calls = 0
    for key, row in live.tables["told"].items():
        story = explain(topology, topology.table("told"), keytext.read(topology.table("told"), [str(key[0])]), records, clocks)
        assert story.records == 80
        assert {**story.steps[-1].key, **(story.steps[-1].row or {})} == row
        assert len(story.steps) == row["n"], "each is one that was told"
        calls += sum(step.offset is None for step in story.steps)
        shown = io.StringIO()
        show.print_explanation(Console(file=shown, width=200), story, 100)
        assert shown.getvalue().count("a punctuator's call") == sum(step.offset is None for step in story.steps) == len(story.steps)
    assert calls > 10


@pytest.mark.parametrize("seed", range(8))
def test_a_story_with_recorded_clocks_can_be_written_as_a_test(seed: int) -> None:
    topology, records = shop(), shopping(60, seed)
    live, clocks = lived_through(topology, records, random.Random(seed))
    table, moved = topology.table("told"), 0
    for key in live.tables["told"]:  # called by the clock, by time that only the clock moved on, and twice at one clock
        story = explain(topology, table, keytext.read(table, [str(key[0])]), records, clocks, PLACES)
        text = as_test(topology, table, story, records, "watertable explain told", clocks, PLACES)  # which runs what it writes
        moved += text.count("driver.advance_wall_clock")
    assert moved > 5


# -- when a clock is recorded ----------------------------------------------------------------------------------------------------------


A, B = PLACES


def test_a_clock_is_recorded_as_the_least_advance_and_only_where_something_is_due() -> None:
    advances = Advances({}, {"views": frozenset({"views"})}, noticed={A: at(99)})
    assert advances.due({A: 3, B: 4}, {A: at(7), B: at(8)}) == (commits.Advance(*A, 3, at(7) + MOMENT, at(99)),)
    advances.idle = frozenset({A})
    assert advances.due({A: 3, B: 4}, {A: at(7), B: at(8)}) == (commits.Advance(*A, 3, at(8) + MOMENT, at(99)),), "beside an idle one's"
    assert clocks_of(advances.due({A: 3, B: 4}, {A: at(7), B: at(8)})) == {A: [(at(8) + MOMENT, at(99))]}


def test_where_any_epoch_has_read_only_recorded_clocks_count() -> None:
    advances = Advances({}, {}, Recorded([commits.Advance(*A, 5, at(9), at(60))]), read={A: 7}, noticed={A: at(99)})
    assert advances.due({A: 3}, {A: at(7)}) == ()
    assert advances.due({A: 5}, {A: at(7)}) == (commits.Advance(*A, 5, at(9), at(60)),)
    assert advances.due({A: 5}, {A: at(9)}) == (), "it is in the stream time"
    assert advances.due({A: 7}, {A: at(9)}) == (commits.Advance(*A, 7, at(9) + MOMENT, at(99)),)


def test_two_clocks_at_one_offset_stay_two() -> None:
    recorded = (commits.Advance(*A, 5, at(9) + MOMENT, at(60)), commits.Advance(*A, 5, at(9), at(50)), commits.Advance(*A, 5, at(20)))
    advances = Advances({}, {"views": frozenset({"views"})}, Recorded(recorded))
    assert advances.due({A: 5}, {A: at(7)}) == (recorded[1], recorded[0], recorded[2])
    assert clocks_of(advances.due({A: 5}, {A: at(7)})) == {A: [(at(9), at(50)), (at(9) + MOMENT, at(60))]}
    assert advances.due({A: 5}, {A: at(9)}) == (recorded[0], recorded[2])


def test_the_store_is_asked_once_in_a_while_and_not_again_while_nothing_was_committed_and_nothing_is_due() -> None:
    asked, first = list[int](), {A: at(50)}
    clocks = Clocks(10.0, lambda: (asked.append(1), first)[1])
    assert clocks.due("s@1.1", 0.0, at(40)) == {}
    assert clocks.due("s@1.2", 9.9, at(60)) == {}, "what was committed isn't known yet"
    assert clocks.due("s@1.1", 10.0, at(49)) == {}
    assert clocks.due("s@1.1", 11.0, at(50)) == {A: at(50)}
    assert len(asked) == 1, "what was known is due"
    first = {B: at(70)}
    assert clocks.due("s@1.2", 20.9, at(80)) == {}, "a clock was recorded ten seconds ago, or less"
    assert clocks.due("s@1.2", 21.0, at(60)) == {}
    assert clocks.due("s@1.2", 25.0, at(71)) == {B: at(71)}
    assert len(asked) == 2


def test_a_commit_keeps_its_clocks_in_its_counters_and_is_of_a_format_that_earlier_releases_refuse() -> None:
    plain = commits.CommitInfo(advances=(commits.Advance(*A, 5, at(9)),), counters={"records": 3})
    assert '"format": 1' in plain.to_json()
    clocked = commits.CommitInfo(advances=(commits.Advance(*A, 5, at(9), at(60)),), counters={"records": 3})
    assert '"format": 3' in clocked.to_json()
    assert '"counters": {"records": 3, "clock:views:0:9000000": 60000000}' in clocked.to_json()
