"""Sessions on the oracle: which there are, what a record does to them, what is late, and what streams out."""

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
from watertable.plan.purity import Purity, purity_of
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.testing import TopologyTestDriver


def clicks(grace: int = 0) -> tuple[wt.App, wt.Table]:
    app = wt.App("site")
    clicks = app.topic("clicks", key="who STRING", value="page STRING, ms INT").stream()
    windows = wt.sessions(gap=wt.seconds(10), grace=wt.seconds(grace))
    visits = clicks.group_by_key().windowed_by(windows).agg(n=wt.count(), first=wt.first("page"), pages=wt.collect_list("page"))
    return app, visits.materialized_as("visits")


def drive(app: wt.App, *given_: tuple[int, str]) -> TopologyTestDriver:
    """Click on pages, each at a second."""
    driver = TopologyTestDriver(app)
    for second, page in given_:
        driver.pipe_input("clicks", "ann", {"page": page}, timestamp=1000 * second)
    return driver


def seconds(row: dict[str, Any]) -> tuple[int, int]:
    start, end = row["window_start"], row["window_end"]
    return int(start.timestamp()), int(end.timestamp())


def test_records_at_most_a_gap_apart_are_one_session_from_its_first_record_to_its_last() -> None:
    driver = drive(clicks()[0], (0, "a"), (10, "b"), (21, "c"), (22, "d"))
    assert [(*seconds(row), row["pages"]) for row in driver.windows("visits", "ann")] == [(0, 10, ["a", "b"]), (21, 22, ["c", "d"])]


def test_a_record_between_two_sessions_joins_them() -> None:
    driver = drive(clicks(grace=60)[0], (0, "a"), (16, "b"), (8, "c"))
    assert [(*seconds(row), row["n"], row["first"], row["pages"]) for row in driver.windows("visits", "ann")] == [
        (0, 16, 3, "a", ["a", "b", "c"])  # in log order: the last came when stream time was at 16
    ]


def test_a_session_that_grows_ends_and_another_begins_and_one_that_does_not_is_one_change() -> None:
    driver = drive(clicks(grace=60)[0], (0, "a"), (16, "b"), (8, "c"), (3, "d"))
    told = [(*(int(t.timestamp()) for t in c.key[1:]), c.old and c.old["n"], c.new and c.new["n"]) for c in driver.changes("visits")]
    assert told == [(0, 0, None, 1), (16, 16, None, 1), (0, 0, 1, None), (16, 16, 1, None), (0, 16, None, 3), (0, 16, 3, 4)]


def test_a_table_of_what_sessions_were_keeps_each_by_its_own_bounds() -> None:
    app, visits = clicks()
    visits.to_stream().filter("new.n > 0").map_values(n="new.n").to_table().materialized_as("seen")
    driver = drive(app, (0, "a"), (8, "b"))
    assert [(*seconds(row), row["n"]) for row in driver.windows("visits", "ann")] == [(0, 8, 2)]
    assert [(*seconds(row), row["n"]) for row in driver.windows("seen", "ann")] == [(0, 0, 1), (0, 8, 2)]


def test_a_record_is_late_when_the_session_that_it_makes_by_itself_is() -> None:
    app, _ = clicks(grace=5)
    driver = drive(app, (100, "a"), (85, "on time"), (84, "late"), (92, "joins"))
    assert [(*seconds(row), row["n"]) for row in driver.windows("visits", "ann")] == [(85, 100, 3)]
    (drop,) = driver.dropped()
    at = EPOCH + timedelta(seconds=84)
    assert (drop.reason, drop.window) == ("late", (at, at))


def test_groups_and_partitions_have_sessions_of_their_own_and_streams_share_them_in_a_cogroup() -> None:
    app = wt.App("site")
    grouped = [app.topic(name, key="who STRING", value="x INT").stream().group_by_key() for name in ("views", "buys")]
    both = grouped[0].cogroup(views=wt.count()).cogroup(grouped[1], buys=wt.count(), total=wt.sum("x"))
    both.windowed_by(wt.sessions(gap=wt.seconds(10))).agg().materialized_as("visits")
    driver = TopologyTestDriver(app)
    for topic, who, second in [("views", "ann", 0), ("buys", "ann", 9), ("views", "ann", 18), ("buys", "bob", 18), ("views", "bob", 29)]:
        driver.pipe_input(topic, who, {"x": 1}, timestamp=1000 * second)
    assert [(seconds(r), r["views"], r["buys"], r["total"]) for r in driver.windows("visits", "ann")] == [((0, 18), 2, 1, 1)]
    assert [(seconds(r), r["views"], r["buys"], r["total"]) for r in driver.windows("visits", "bob")] == [
        ((18, 18), 0, 1, 1), ((29, 29), 1, 0, None),
    ]  # fmt: skip


def test_rows_of_sessions_are_filtered_mapped_and_grouped_like_any_others() -> None:
    app, visits = clicks(grace=60)
    longer = visits.filter("n > 1").map_values(s="unix_seconds(window.end) - unix_seconds(window.start)").materialized_as("longer")
    longer.group_by("who").agg(visits=wt.count(), seconds=wt.sum("s")).materialized_as("people")
    driver = drive(app, (0, "a"), (3, "b"), (30, "c"), (36, "d"), (50, "e"))
    assert driver.table("people") == {"ann": {"who": "ann", "visits": 2, "seconds": 9}}
    driver = drive(app, (0, "a"), (3, "b"), (30, "c"), (36, "d"), (20, "e"), (12, "f"))
    assert driver.table("people") == {"ann": {"who": "ann", "visits": 1, "seconds": 36}}


def test_sessions_of_one_partition_stream_purely() -> None:
    app, visits = clicks()
    assert purity_of(visits.to_stream().node) is Purity.PURE
    assert "windowed_by sessions gap 10s" in app.describe()


@pytest.mark.parametrize("join", [lambda t, o, s: t.join(o, n="left.n"), lambda t, o, s: s.join(t, on=("who", "now", "now"), n="right.n")])
def test_sessions_are_not_found_by_key(join: Any) -> None:
    app, visits = clicks()
    stream = app.topic("more", key="who STRING", value="now TIMESTAMP").stream()
    with pytest.raises(DefinitionError, match="can't find sessions by key"):
        join(visits, visits, stream)


def test_rows_of_a_table_of_their_changes_are_joined_by_their_bounds_and_go_when_a_session_grows() -> None:
    app, visits = clicks()
    told = visits.to_stream().filter("new.n > 1 OR new IS NULL").map_values(n="new.n").to_table().materialized_as("told")
    every = visits.to_stream().map_values(pages="new.pages").to_table()
    every.left_join(told, pages="left.pages", n="right.n").materialized_as("both")
    driver = drive(app, (10, "a"), (14, "b"), (50, "c"))
    assert [(seconds(row), row["pages"], row["n"]) for row in driver.windows("both", "ann")] == [
        ((10, 14), ["a", "b"], 2),
        ((50, 50), ["c"], None),
    ]


def test_sessions_of_other_gaps_are_no_partners() -> None:
    app, visits = clicks()
    longer = app.topic("more", key="who STRING", value="page STRING").stream().group_by_key().windowed_by(wt.sessions(gap=wt.seconds(20)))
    ours, theirs = (
        table.to_stream().map_values(n="new.n").to_table() for table in (visits, longer.agg(n=wt.count()).materialized_as("longer"))
    )
    with pytest.raises(DefinitionError, match="join wants the same windows: sessions gap 10s here, sessions gap 20s there"):
        ours.join(theirs, n="left.n")


@pytest.mark.parametrize(("gap", "grace", "says"), [(0, 0, "gap must be longer than zero"), (1, -1, "grace must not be negative")])
def test_impossible_sessions_are_refused(gap: int, grace: int, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        wt.sessions(gap=wt.seconds(gap), grace=wt.seconds(grace))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_sessions_are_the_runs_of_the_sorted_times_whatever_order_they_came_in(times: list[int], rng: random.Random) -> None:
    app, _ = clicks(grace=600)
    rng.shuffle(times)
    engine = Interpreter(app.topology())
    data = json.dumps({"page": "p"}).encode()
    engine.read([Record("clicks", n % 3, n, EPOCH + timedelta(seconds=t), b"ann", data) for n, t in enumerate(times)])
    wanted: list[list[int]] = []
    for time in sorted(times):
        if wanted and time - wanted[-1][-1] <= 10:
            wanted[-1].append(time)
        else:
            wanted.append([time])

    def at(second: int) -> datetime:
        return EPOCH + timedelta(seconds=second)

    assert {key: row["n"] for key, row in engine.tables["visits"].items()} == {
        ("ann", at(run[0]), at(run[-1])): len(run) for run in wanted
    }  # fmt: skip
