"""Tell the story of the app that reminds people who have closed it, on the driver: no JVM, no Kafka."""

from __future__ import annotations

import pytest

from tests.apps import demo
from watertable.plan.plan import Topology
from watertable.plan.purity import Purity, purity_of
from watertable.testing import TopologyTestDriver


@pytest.fixture
def driver(topology: Topology) -> TopologyTestDriver:
    return TopologyTestDriver(topology)


@pytest.fixture(scope="module")
def topology() -> Topology:
    return demo("presence")


def at(time: str) -> str:
    return f"2026-03-01T{time}:00Z"


def says(driver: TopologyTestDriver, user: str, event: str, time: str) -> None:
    driver.pipe_input("phones", user, {"event": event, "at": at(time)})


def tick(driver: TopologyTestDriver, user: str, message: str, time: str) -> None:
    driver.pipe_input("ticks", user, {"message": message, "at": at(time)})


def told(driver: TopologyTestDriver) -> list[tuple[object, object]]:
    return [(sent.key, sent.value and sent.value["message"]) for sent in driver.read_output("notifications")]


def test_whoever_has_the_app_open_is_left_in_peace_and_whoever_has_closed_it_is_reminded(driver: TopologyTestDriver) -> None:
    says(driver, "ann", "open", "08:00")
    says(driver, "bob", "open", "08:00")
    tick(driver, "ann", "good morning", "08:05")
    assert told(driver) == []
    says(driver, "ann", "close", "08:10")
    tick(driver, "ann", "your parcel is here", "11:30")
    tick(driver, "bob", "your parcel is here", "11:30")
    (sent,) = driver.read_output("notifications")
    assert (sent.key, sent.value) == ("ann", {"message": "your parcel is here", "hours_away": 3})
    says(driver, "ann", "open", "11:31")
    tick(driver, "ann", "it still is", "11:32")
    assert told(driver) == []


def test_of_whom_nothing_is_known_nobody_is_reminded_but_it_is_counted(driver: TopologyTestDriver) -> None:
    tick(driver, "zoe", "hello?", "08:00")
    assert told(driver) == []
    assert [drop.reason for drop in driver.dropped()] == ["rule:known_user"]
    says(driver, "zoe", "close", "08:01")
    tick(driver, "zoe", "hello again", "08:02")
    assert told(driver) == [("zoe", "hello again")]


def test_reminders_are_counted_in_the_ten_minutes_that_begin_at_each_minute(driver: TopologyTestDriver) -> None:
    says(driver, "ann", "close", "08:00")
    for time in ("08:10", "08:14", "08:19"):
        tick(driver, "ann", f"news of {time}", time)
    counted = {f"{row['window_start']:%H:%M}": row["notifications"] for row in driver.windows("notified", "ann")}
    assert len(counted) == 19, "from the window that ends after 08:10 to the one that begins at 08:19"
    assert (counted["08:01"], counted["08:05"], counted["08:10"], counted["08:11"], counted["08:15"], counted["08:19"]) == (
        1,
        2,
        3,
        2,
        1,
        1,
    )
    last = next(row for row in driver.windows("notified", "ann") if f"{row['window_start']:%H:%M}" == "08:10")
    assert last["last_message"] == "news of 08:19"


def test_a_tick_that_comes_too_late_for_a_window_still_reminds_and_counts_in_those_that_are_open(driver: TopologyTestDriver) -> None:
    says(driver, "ann", "close", "08:00")
    tick(driver, "ann", "on time", "08:20")
    tick(driver, "ann", "late", "08:12")
    assert told(driver) == [("ann", "on time"), ("ann", "late")]
    counted = {f"{row['window_start']:%H:%M}": row["notifications"] for row in driver.windows("notified", "ann")}
    assert "08:09" not in counted, "08:09 to 08:19 was over by a minute"
    assert (counted["08:10"], counted["08:12"], counted["08:13"]) == (1, 2, 1)
    assert {drop.reason for drop in driver.dropped()} == {"late"}


def test_what_no_phone_says_is_quarantined_and_changes_nobodys_presence(driver: TopologyTestDriver) -> None:
    says(driver, "ann", "open", "08:00")
    says(driver, "ann", "explode", "08:01")
    assert [refused.reason for refused in driver.quarantine()] == ["breaks the rule 'known_event'"]
    assert driver.table("presence")["ann"]["is_open"] is True


def test_it_is_an_app_of_the_project_and_says_that_it_depends_on_arrival(topology: Topology) -> None:
    assert [purity_of(topology.table(name).node) for name in ("presence", "notified")] == [Purity.PURE, Purity.ARRIVAL]
