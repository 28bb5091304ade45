"""Suppressed tables on the oracle: a window's row shows once its window has closed, as it is then, and once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watertable as wt
from tests.properties.strategies import START
from watertable.errors import DefinitionError, StoreError, UnknownColumn
from watertable.interpreter import Interpreter
from watertable.plan import plan
from watertable.plan.lineage import Origin, column_lineage, describe, mermaid
from watertable.plan.purity import Purity, purity_of
from watertable.plan.windows import EPOCH, SessionWindows, Windows
from watertable.records import Record
from watertable.testing import TopologyTestDriver
from watertable.tools import keytext
from watertable.tools.explain import explain

MINUTE = timedelta(minutes=1)
HOURLY = wt.tumbling(hours=1, grace=wt.minutes(10))


def app_of(windows: Windows = HOURLY, then: Callable[[wt.Table], wt.Table] = lambda table: table) -> wt.App:
    """Count clicks in windows, and show and publish what is final."""
    app = wt.App("shop")
    clicks = app.topic("clicks", key="k STRING", value="n INT").stream()
    counts = then(clicks.group_by_key().windowed_by(windows).agg(n=wt.count(), sum=wt.sum("n")))
    counts.suppress(wt.until_window_closes()).materialized_as("final").to_stream().to("out")
    return app


def pipe(driver: TopologyTestDriver, minute: float, key: str = "k", n: int = 1, partition: int = 0) -> None:
    driver.pipe_input("clicks", key, {"n": n}, timestamp=EPOCH + minute * MINUTE, partition=partition)


def minutes(driver: TopologyTestDriver) -> list[Any]:
    """Give what is final, with its window in minutes."""
    rows = driver.table("final").values()
    return sorted((r["k"], (r["window_start"] - EPOCH) // MINUTE, (r["window_end"] - EPOCH) // MINUTE, r["n"]) for r in rows)


def test_a_row_shows_once_every_partition_has_passed_its_window_and_its_grace() -> None:
    driver = TopologyTestDriver(app_of())
    pipe(driver, 10, partition=1)
    pipe(driver, 70)
    pipe(driver, 69, partition=1)
    assert minutes(driver) == []
    pipe(driver, 70, key="l", partition=1)
    assert minutes(driver) == [("k", 0, 60, 1)]
    pipe(driver, 59, partition=1)  # late
    driver.advance("clicks", EPOCH + 600 * MINUTE)
    driver.advance("clicks", EPOCH + 600 * MINUTE, partition=1)
    assert minutes(driver) == [("k", 0, 60, 1), ("k", 60, 120, 2), ("l", 60, 120, 1)]
    assert [(d.node, d.reason) for d in driver.dropped()] == [("suppress", "late")]


def test_each_window_is_published_once_at_its_last_moment() -> None:
    driver = TopologyTestDriver(app_of())
    for minute in (10, 20, 75, 300):
        pipe(driver, minute)
    assert [(r.value["n"], r.timestamp) for r in driver.read_output("out") if r.value] == [
        (2, EPOCH + 60 * MINUTE - timedelta(microseconds=1)), (1, EPOCH + 120 * MINUTE - timedelta(microseconds=1)),
    ]  # fmt: skip
    pipe(driver, 301)
    assert driver.read_output("out") == []


def test_on_close_is_the_same_under_another_name() -> None:
    def defined(on_close: bool) -> str:
        app = wt.App("shop")
        grouped = app.topic("clicks", key="k STRING", value="n INT").stream().group_by_key()
        if on_close:
            table = grouped.windowed_by(HOURLY, emit="on_close").count()
        else:
            table = grouped.windowed_by(HOURLY).count().suppress(wt.until_window_closes())
        table.materialized_as("final")
        return app.topology().fingerprint

    assert defined(True) == defined(False)


def test_cogrouped_streams_show_what_is_final_too() -> None:
    app = wt.App("shop")
    one, two = (app.topic(name, key="k STRING", value="n INT").stream().group_by_key() for name in ("one", "two"))
    both = one.cogroup(ones=wt.count()).cogroup(two, twos=wt.count()).windowed_by(HOURLY, emit="on_close").agg()
    both.materialized_as("final")
    driver = TopologyTestDriver(app)
    for topic, minute in (("one", 1), ("one", 300), ("two", 2)):
        driver.pipe_input(topic, "k", {"n": 1}, timestamp=EPOCH + minute * MINUTE)
    assert driver.table("final") == {}  # the second topic may still bring some
    driver.advance("two", EPOCH + 300 * MINUTE)
    assert [(row["ones"], row["twos"]) for row in driver.table("final").values()] == [(1, 1)]


def test_what_a_filter_hides_when_its_window_closes_is_not_shown() -> None:
    driver = TopologyTestDriver(app_of(then=lambda table: table.filter("n > 1").map_values(n="n * 10")))
    for minute, key in ((1, "a"), (1, "b"), (2, "b"), (600, "c")):
        pipe(driver, minute, key)
    assert minutes(driver) == [("b", 0, 60, 20)]


def test_final_rows_can_be_windowed_again_and_what_waits_for_them_waits_longer() -> None:
    app = wt.App("shop")
    clicks = app.topic("clicks", key="k STRING", value="n INT").stream()
    hourly = clicks.group_by_key().windowed_by(HOURLY, emit="on_close").count("n").materialized_as("hourly")
    daily = hourly.to_stream().group_by("k").windowed_by(wt.tumbling(days=1), emit="on_close").agg(n=wt.sum("n"), most=wt.max("n"))
    daily.materialized_as("final")
    driver = TopologyTestDriver(app)
    for minute in (1, 2, 1439, 1440 + 9):
        pipe(driver, minute)
    assert minutes(driver) == []  # the last hour of the day is still open
    pipe(driver, 1440 + 11)
    assert minutes(driver) == [("k", 0, 1440, 3)]
    assert driver.dropped() == []


def test_a_window_of_what_an_outer_join_makes_waits_for_what_comes_alone() -> None:
    app = wt.App("shop")
    views, clicks = (app.topic(name, key="k STRING", value="n INT").stream() for name in ("views", "clicks"))
    joined = views.left_join(clicks, within=wt.minutes(30), n="left.n")
    joined.group_by_key().windowed_by(HOURLY, emit="on_close").count("n").materialized_as("final")
    driver = TopologyTestDriver(app)
    driver.pipe_input("views", "k", {"n": 1}, timestamp=EPOCH + 59 * MINUTE)
    for minute, found in ((80, []), (101, [("k", 0, 60, 1)])):
        for topic in ("views", "clicks"):
            driver.advance(topic, EPOCH + minute * MINUTE)
        assert minutes(driver) == found


def merged(one: Windows, other: Windows) -> wt.App:
    """Tell of two tables in windows under one key, and show what is final."""
    app = wt.App("shop")
    clicks = app.topic("clicks", key="k STRING", value="n INT").stream()
    rows = [
        clicks.filter(f"n {sign} 5").group_by_key().windowed_by(windows).agg(n=wt.sum("n")).materialized_as(name).to_stream()
        for name, sign, windows in (("small", "<", one), ("large", ">=", other))
    ]
    told = rows[0].map_values(n="new.n").merge(rows[1].map_values(n="new.n")).to_table()
    told.suppress(wt.until_window_closes()).materialized_as("final").to_stream().to("out")
    return app


@pytest.mark.parametrize("graces", [(0, 60), (60, 0)])
def test_what_is_told_of_windows_is_final_once_those_that_are_open_longest_have_closed(graces: tuple[int, int]) -> None:
    one, other = (wt.tumbling(hours=1, grace=wt.minutes(grace)) for grace in graces)
    for at_once in (True, False):
        driver = TopologyTestDriver(merged(one, other))
        late = 6 if graces[1] else 4
        with driver.batch() if at_once else nullcontext():
            pipe(driver, 10, n=10 - late)
            pipe(driver, 70, key="l")
            pipe(driver, 20, n=late)  # late for the table without a grace
            pipe(driver, 180, key="l")
        assert minutes(driver) == [("k", 0, 60, late), ("l", 60, 120, 1)]
        assert len(driver.read_output("out")) == 2
    node = merged(one, other).topology().tables[-1].node
    assert purity_of(node) is Purity.PURE
    assert plan.delay_of(node) == 60 * MINUTE + timedelta(microseconds=1)


def test_nothing_says_when_what_is_told_of_windows_of_several_kinds_is_final() -> None:
    for other in (wt.tumbling(hours=2), wt.sessions(gap=wt.hours(1)), wt.sliding(difference=wt.hours(1)), wt.unlimited()):
        with pytest.raises(DefinitionError, match=r"test_suppress.py:\d+: suppress wants .* the same in all streams of a merge"):
            merged(HOURLY, other)


def test_a_merge_has_windows_if_all_its_streams_have() -> None:
    app = wt.App("shop")
    clicks = app.topic("clicks", key="k STRING", value="n INT").stream()
    counts = clicks.group_by_key().windowed_by(HOURLY).agg(n=wt.count()).materialized_as("counts")
    final = counts.suppress(wt.until_window_closes()).materialized_as("final")
    for one, other in ((counts, final), (final, counts)):
        with pytest.raises(UnknownColumn, match=r"test_suppress.py:\d+: .*no column 'window'"):
            one.to_stream().merge(other.to_stream()).map_values(since="window.start")
    later = counts.to_stream().filter("new.n > 1")
    assert counts.to_stream().merge(later).map_values(since="window.start").value.sql() == "`since` TIMESTAMP"


def test_a_mistake_at_definition_says_where_and_what() -> None:
    clicks = wt.App("shop").topic("clicks", key="k STRING", value="n INT").stream().group_by_key()
    for wrong, words in (
        (lambda: clicks.count().suppress(wt.until_window_closes()), "suppress wants a table of windows"),
        (lambda: clicks.windowed_by(wt.unlimited()).count().suppress(wt.until_window_closes()), "never closes"),
        (lambda: clicks.windowed_by(HOURLY).count().suppress(wt.minutes(5)), r"suppress wants wt.until_window_closes\(\)"),  # type: ignore[arg-type]
        (lambda: clicks.windowed_by(HOURLY, emit="on_window_close"), "choose on_update, on_close"),
    ):
        with pytest.raises(DefinitionError, match=f"test_suppress.py.*{words}"):
            wrong()


def test_a_suppressed_table_is_pure_and_says_what_it_is() -> None:
    topology = app_of().topology()
    (final,) = topology.tables
    assert purity_of(final.node) is purity_of(topology.sinks[0].node) is Purity.PURE
    assert "suppress until windows close (tumbling 1h grace 10m)" in describe(topology)
    assert "suppress" in mermaid(topology)
    assert column_lineage(final)["sum"] == (Origin("clicks", "value", "n"),)
    assert [plan.is_open(b) for b in topology.buffers] == [True]
    assert topology.sinks[0].is_of_pairs
    assert plan.delay_of(final.node) == 10 * MINUTE + timedelta(microseconds=1)


def test_the_story_of_a_final_row_is_told_of_the_table_above_it() -> None:
    topology = app_of().topology()
    with pytest.raises(StoreError, match=r"'final'.*shows what is final of a windowed table"):
        explain(topology, topology.table("final"), keytext.read(topology.table("final"), ["k"]), [])


# -- what any log says ----------------------------------------------------------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Write records of two keys to two partitions, in any order of times."""
    following: Counter[int] = Counter()
    records = []
    for number in range(draw(st.integers(1, 24))):
        partition = draw(st.integers(0, 1))
        when = START + timedelta(minutes=2 * number + draw(st.integers(-12, 12)))
        records.append(Record("clicks", partition, following[partition], when, draw(st.sampled_from([b"k", b"l"])), b'{"n": 1}'))
        following[partition] += 1
    return records


windows = st.sampled_from([
    wt.tumbling(minutes=5), wt.tumbling(minutes=7, grace=wt.minutes(3)), wt.hopping(minutes=10, every=wt.minutes(4), grace=wt.minutes(1)),
    wt.sessions(gap=wt.minutes(2)), wt.sessions(gap=wt.minutes(1), grace=wt.minutes(4)), wt.sliding(difference=wt.minutes(4)),
    wt.sliding(difference=wt.minutes(3), grace=wt.minutes(6)),
])  # fmt: skip


@settings(max_examples=150)
@given(logs(), windows, st.data())
def test_final_rows_are_the_rows_of_the_windows_that_are_closed_whatever_the_cuts_and_never_change(
    records: list[Record], windows: Windows, data: st.DataObject
) -> None:
    app = app_of(windows)
    clicks = next(t.node for t in app.topology().buffers)
    live = wt.App("shop")
    live.topic("clicks", key="k STRING", value="n INT").stream().group_by_key().windowed_by(windows).agg(
        n=wt.count(), sum=wt.sum("n")
    ).materialized_as("live")
    oracle = Interpreter(live.topology())
    oracle.read(records)
    partitions = {(r.topic, r.partition) for r in records}
    low = min(oracle.stream_times[p] for p in partitions)
    gap = (
        windows.gap if isinstance(windows, SessionWindows) else timedelta(0)
    )  # what joins a session a gap after its end is late a gap later
    wanted = {k: row for k, row in oracle.tables["live"].items() if windows.is_late(moment(k[-1]) + gap, low)}
    cuts = sorted(data.draw(st.sets(st.integers(0, len(records)))) | {0, len(records)})
    engine, before = Interpreter(app.topology(), partitions=partitions), dict[Any, Any]()
    for a, b in pairwise(cuts):
        engine.read(records[a:b])
        now = engine.tables["final"]
        assert before.items() <= now.items()
        before = now
    assert engine.tables["final"] == wanted
    published = [(json.loads(o.key or b"")["k"], json.loads(o.value or b"")["n"]) for o in engine.outputs]
    assert Counter(published) == Counter((row["k"], row["n"]) for row in wanted.values())
    assert plan.closing_of(clicks) == windows.closing  # type: ignore[arg-type,union-attr]


def moment(part: object) -> datetime:
    assert isinstance(part, datetime)
    return part
