"""Sliding windows on the oracle: which there are, what is in each, and how late a record may be for one."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import watertable as wt
from watertable.errors import DefinitionError
from watertable.interpreter import Interpreter
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.testing import TopologyTestDriver
from watertable.tools import keytext
from watertable.tools.explain import explain


def alarms(difference: int = 10, grace: int = 0) -> tuple[wt.App, wt.Table]:
    app = wt.App("house")
    heat = app.topic("heat", key="room STRING", value="c INT").stream()
    windows = wt.sliding(difference=wt.milliseconds(difference), grace=wt.milliseconds(grace))
    hot = heat.group_by_key().windowed_by(windows).agg(n=wt.count(), most=wt.max("c"), all=wt.collect_list("c"))
    return app, hot.materialized_as("hot")


def drive(app: wt.App, *times: float) -> TopologyTestDriver:
    driver = TopologyTestDriver(app)
    for number, millisecond in enumerate(times):
        at = EPOCH + timedelta(milliseconds=millisecond)
        driver.pipe_input("heat", "attic", {"c": number}, timestamp=at)
    return driver


def windows(driver: TopologyTestDriver) -> list[tuple[int, int, list[int]]]:
    def millisecond(when: datetime) -> int:
        return (when - EPOCH) // timedelta(milliseconds=1)

    return [(millisecond(r["window_start"]), millisecond(r["window_end"]), r["all"]) for r in driver.windows("hot", "attic")]  # type: ignore[arg-type]


def test_a_window_ends_at_each_record_and_one_starts_after_each_that_another_follows() -> None:
    assert windows(drive(alarms()[0], 20, 25, 40)) == [(10, 20, [0]), (15, 25, [0, 1]), (21, 31, [1]), (30, 40, [2])]


def test_both_bounds_are_in_a_window_and_parts_of_a_millisecond_are_not_told_apart() -> None:
    assert windows(drive(alarms()[0], 20, 20.9, 30)) == [(10, 20, [0, 1]), (20, 30, [0, 1, 2]), (21, 31, [2])]


def test_records_of_the_first_moments_share_the_first_window() -> None:
    assert windows(drive(alarms()[0], 3, 0, 7)) == [(0, 10, [0, 1, 2]), (1, 11, [0, 2]), (4, 14, [2])]


def test_a_late_record_counts_in_those_of_its_windows_that_are_open() -> None:
    app, _ = alarms(grace=5)
    driver = drive(app, 20, 30, 18, 14)  # at 30, windows that ended before 25 are closed
    assert windows(driver) == [(10, 20, [0]), (19, 29, [0]), (20, 30, [0, 1]), (21, 31, [1])]
    (drop,) = driver.dropped()
    assert (drop.reason, drop.offset) == ("late", 3)
    late = windows(drive(app, 20, 27, 30, 18))
    assert late[:3] == [(10, 20, [0]), (17, 27, [0, 1, 3]), (19, 29, [0, 1])]


def test_a_record_that_was_late_for_all_its_windows_is_told_with_the_last_of_them() -> None:
    topology, data = alarms()[0].topology(), json.dumps({"c": 1}).encode()
    records = [Record("heat", 0, n, EPOCH + timedelta(milliseconds=t), b"attic", data) for n, t in enumerate((20, 50, 30))]
    told = explain(topology, topology.table("hot"), keytext.read(topology.table("hot"), ["attic"]), records)
    assert [step.offset for step in told.steps] == [0, 1]
    assert [(out.offset, out.reason.partition(" window")[0]) for out in told.left_out] == [(2, "late for the")]


def test_changes_are_those_of_the_windows_that_a_record_is_in_and_of_the_one_that_it_brings() -> None:
    driver = drive(alarms()[0], 20, 25)
    told = [((c.key[1] - EPOCH) // timedelta(milliseconds=1), c.old and c.old["n"], c.new and c.new["n"]) for c in driver.changes("hot")]
    assert told == [(10, None, 1), (15, None, 2), (21, None, 1)]


def test_a_record_out_of_order_changes_what_it_is_in_and_brings_the_window_right_after_it_that_it_is_not_in() -> None:
    app, hot = alarms(grace=100)
    hot.to_stream().to("told")
    hot.group_by("n").agg(windows=wt.count()).materialized_as("sizes")
    driver = drive(app, 20, 25, 18)
    told = [
        ((c.key[1] - EPOCH) // timedelta(milliseconds=1), c.old and c.old["n"], c.new and c.new["n"]) for c in driver.changes("hot")[3:]
    ]
    assert told == [(8, None, 1), (10, 1, 2), (15, 2, 3), (19, None, 2)]
    assert len(driver.read_output("told")) == 7
    assert {n: row["windows"] for n, row in driver.table("sizes").items()} == {1: 2, 2: 2, 3: 1}


def test_a_table_of_what_windows_were_keeps_each_by_its_own_bounds() -> None:
    app, hot = alarms()
    hot.to_stream().map_values(n="new.n").to_table().materialized_as("seen")
    driver = drive(app, 20, 25, 27)
    ends = [((r["window_end"] - EPOCH) // timedelta(milliseconds=1), r["n"]) for r in driver.windows("seen", "attic")]  # type: ignore[operator]
    assert ends == [(20, 1), (25, 2), (27, 3), (31, 2), (36, 1)]


def test_rows_are_filtered_and_cogrouped_streams_share_windows() -> None:
    app = wt.App("house")
    grouped = [app.topic(name, key="room STRING", value="c INT").stream().group_by_key() for name in ("heat", "smoke")]
    both = grouped[0].cogroup(heat=wt.sum("c")).cogroup(grouped[1], smoke=wt.count())
    both.windowed_by(wt.sliding(difference=wt.seconds(1))).agg().filter("smoke > 0").materialized_as("alarms")
    driver = TopologyTestDriver(app)
    for topic, at in [("heat", 5000), ("smoke", 5600), ("heat", 9000)]:
        driver.pipe_input(topic, "attic", {"c": 40}, timestamp=at)
    assert [(row["heat"], row["smoke"]) for row in driver.windows("alarms", "attic")] == [(40, 1), (None, 1)]


@pytest.mark.parametrize(
    "use",
    [
        lambda t, s: t.join(t, n="left.n"),
        lambda t, s: s.left_join(t, on=("room", "window.start", "window.end"), n="right.n"),
    ],
)
def test_they_cannot_be_found_by_key(use: Any) -> None:
    app, hot = alarms()
    stream = app.topic("more", key="room STRING", value="x INT").stream()
    with pytest.raises(DefinitionError, match="can't find sliding windows by key"):
        use(hot, stream)


@pytest.mark.parametrize(
    ("difference", "grace", "says"),
    [(-1, 0, "must not be negative"), (0.5, 0, "whole milliseconds"), (1, -1, "grace must not be negative")],
)
def test_impossible_sliding_windows_are_refused(difference: float, grace: int, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        wt.sliding(difference=wt.milliseconds(difference), grace=wt.milliseconds(grace))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(0, 15), st.randoms(use_true_random=False))
def test_windows_follow_from_the_times_whatever_order_they_came_in(times: list[int], difference: int, rng: random.Random) -> None:
    app, _ = alarms(difference, grace=600)
    rng.shuffle(times)
    engine = Interpreter(app.topology())
    data = json.dumps({"c": 1}).encode()
    engine.read([Record("heat", n % 3, n, EPOCH + timedelta(milliseconds=t), b"attic", data) for n, t in enumerate(times)])
    ends = {max(t, difference) for t in times} | {t + 1 + difference for t in times if any(t < u <= t + 1 + difference for u in times)}
    wanted = {end: sum(end - difference <= t <= end for t in times) for end in ends}
    found = {(row["window_end"] - EPOCH) // timedelta(milliseconds=1): row["n"] for row in engine.tables["hot"].values()}  # type: ignore[operator]
    assert found == wanted
