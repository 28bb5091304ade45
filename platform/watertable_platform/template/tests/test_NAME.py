"""Hold the app NAME to what its tables must say: no Kafka, no Spark, no JVM."""

from decimal import Decimal
from pathlib import Path

import pytest

from watertable.project import load_apps
from watertable.settings import Settings
from watertable.testing import TopologyTestDriver


@pytest.fixture
def driver() -> TopologyTestDriver:
    project = load_apps(Settings.load(Path(__file__).parents[1], env=""))
    return TopologyTestDriver(project.app("NAME").topology)


def order(driver: TopologyTestDriver, at: str, item: str, quantity: int) -> None:
    value = {"item": item, "quantity": quantity, "price": "3.50", "ordered_at": f"2026-03-01T{at}Z"}
    driver.pipe_input("NAME_orders", f"{item} at {at}", value)


def test_what_is_sold_adds_up_by_item(driver: TopologyTestDriver) -> None:
    order(driver, "10:00:00", "tea", 2)
    order(driver, "11:00:00", "tea", 3)
    assert driver.table("items") == {"tea": {"item": "tea", "sold": 5, "revenue": Decimal("17.50")}}


def test_a_late_order_counts_in_its_hour_within_ten_minutes(driver: TopologyTestDriver) -> None:
    order(driver, "10:59:00", "tea", 1)
    order(driver, "11:09:59", "coffee", 1)
    order(driver, "10:30:00", "tea", 1)  # the hour still takes it
    order(driver, "11:10:00", "coffee", 1)
    order(driver, "10:30:01", "tea", 1)  # and now no more
    assert [row["sold"] for row in driver.windows("hourly", "tea")] == [2]
    assert [(drop.node, drop.reason) for drop in driver.dropped()] == [("hourly", "late")]


def test_an_item_becomes_a_bestseller_once(driver: TopologyTestDriver) -> None:
    for minute in (10, 20, 30, 40):
        order(driver, f"10:{minute}:00", "tea", 4)
    assert [(sent.key, sent.value) for sent in driver.read_output("NAME_bestsellers")] == [
        ("tea", {"sold": 12, "revenue": Decimal("42.00")})
    ]


def test_an_order_of_nothing_is_refused_and_the_next_one_counts(driver: TopologyTestDriver) -> None:
    order(driver, "10:00:00", "tea", 0)
    order(driver, "10:00:01", "tea", 1)
    assert len(driver.quarantine()) == 1
    assert driver.table("items")["tea"]["sold"] == 1
