"""Tell the story of the site's visitors, on the driver: no JVM, no Kafka."""

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
    return demo("clickstream")


def click(driver: TopologyTestDriver, user: str, page: str, time: str) -> None:
    driver.pipe_input("clicks", user, {"page": page, "at": f"2026-03-01T{time}Z"})


def lives(driver: TopologyTestDriver, user: str, country: str) -> None:
    driver.pipe_input("users", user, {"name": user.title(), "country": country}, timestamp="2026-03-01T07:00:00Z")


def visits(driver: TopologyTestDriver, user: str) -> list[tuple[str, str, object, object, object]]:
    found = driver.windows("visits", user)
    return [(f"{v['window_start']:%H:%M}", f"{v['window_end']:%H:%M}", v["clicks"], v["pages"], v["entry"]) for v in found]


def top(driver: TopologyTestDriver) -> dict[tuple[object, str], object]:
    return {(row["country"], f"{row['hour']:%H}"): row["pages"] for row in driver.table("top_pages").values()}


def test_clicks_make_a_visit_until_half_an_hour_passes_without_one(driver: TopologyTestDriver) -> None:
    for time, page in (("08:00:00", "home"), ("08:20:00", "tea"), ("08:45:00", "basket"), ("09:20:00", "home")):
        click(driver, "ann", page, time)
    assert visits(driver, "ann") == [("08:00", "08:45", 3, 3, "home"), ("09:20", "09:20", 1, 1, "home")]


def test_a_late_click_brings_two_visits_together(driver: TopologyTestDriver) -> None:
    click(driver, "ann", "home", "08:00:00")
    click(driver, "ann", "basket", "08:34:00")
    assert len(visits(driver, "ann")) == 2
    click(driver, "ann", "tea", "08:15:00")
    assert visits(driver, "ann") == [("08:00", "08:34", 3, 3, "home")]


def test_a_double_click_is_one_view_and_the_page_next_to_it_is_another(driver: TopologyTestDriver) -> None:
    lives(driver, "ann", "FR")
    for page in ("tea", "tea", "jam"):
        click(driver, "ann", page, "08:00:00.5")
    click(driver, "ann", "tea", "08:00:02.1")
    assert {row["page"]: row["views"] for row in driver.table("page_views").values()} == {"tea": 2, "jam": 1}


def test_a_page_that_is_read_more_takes_the_place_of_another_among_the_first_three(driver: TopologyTestDriver) -> None:
    lives(driver, "ann", "FR")
    wanted = {"tea": 4, "jam": 3, "pie": 2, "cup": 1}
    for minute in range(4):
        for number, page in enumerate(page for page, times in wanted.items() if minute < times):
            click(driver, "ann", page, f"08:{10 * minute:02}:{10 * number:02}")
    assert top(driver) == {("FR", "08"): ["tea", "jam", "pie"]}
    for second in (5, 15, 25, 35):
        click(driver, "ann", "cup", f"08:31:{second:02}")
    assert top(driver) == {("FR", "08"): ["cup", "tea", "jam"]}


def test_a_click_counts_where_its_user_lived_as_far_as_was_known_then(driver: TopologyTestDriver) -> None:
    click(driver, "ann", "home", "08:00:00")
    lives(driver, "ann", "FR")
    click(driver, "ann", "tea", "08:01:00")
    lives(driver, "ann", "IT")
    click(driver, "ann", "jam", "08:02:00")
    assert top(driver) == {("unknown", "08"): ["home"], ("FR", "08"): ["tea"], ("IT", "08"): ["jam"]}


def test_it_is_an_app_of_the_project_and_says_what_depends_on_arrival(topology: Topology) -> None:
    assert purity_of(topology.table("visits").node) is Purity.PURE
    assert purity_of(topology.table("page_views").node) is Purity.ARRIVAL
