"""Hold the demo's app to plain arithmetic over the same invoice lines, on the interpreter: no JVM, no Kafka."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.apps import retail_module
from watertable.testing import TopologyTestDriver


@pytest.fixture(scope="module")
def plan() -> Any:
    """Plan the first day: some 3,000 lines."""
    replay = retail_module("replay")
    return replay.Schedule.of(replay.load(), days=1)


def sold(plan: Any) -> list[dict[str, Any]]:
    """Give the invoice lines that the plan sends."""
    rows: list[dict[str, Any]] = plan.lines.take(plan.sold).to_pylist()
    return rows


@pytest.fixture(scope="module")
def driver(plan: Any) -> TopologyTestDriver:
    driver = TopologyTestDriver(retail_module("app").app)
    for record in plan.records():
        driver.pipe_input(record.topic, record.key, record.value, partition=record.partition, offset=record.offset)
    return driver


def test_nothing_is_quarantined(driver: TopologyTestDriver) -> None:
    assert driver.quarantine() == []


def test_revenue_and_late_lines_make_the_whole_revenue(plan: Any, driver: TopologyTestDriver) -> None:
    found: dict[tuple[str, datetime], Decimal] = defaultdict(Decimal)
    for (country, start, _), row in driver.table("revenue_hourly").items():
        found[country, start] += row["revenue"]  # type: ignore[operator]
    late = list(plan.late(size=timedelta(hours=1), grace=timedelta(minutes=10)))
    for line in late:
        found[line.country, line.window_start] += line.amount
    expected: dict[tuple[str, datetime], Decimal] = defaultdict(Decimal)
    for row in sold(plan):
        hour = row["InvoiceDate"].replace(minute=0, tzinfo=UTC)
        expected[row["Country"], hour] += row["Quantity"] * row["UnitPrice"]
    assert {k: v for k, v in found.items() if v} == {k: v for k, v in expected.items() if v}
    assert late


def test_the_late_drops_are_the_replayers_list(plan: Any, driver: TopologyTestDriver) -> None:
    dropped = {(d.partition, d.offset) for d in driver.dropped() if d.node == "revenue_hourly" and d.reason == "late"}
    assert dropped == {(x.partition, x.offset) for x in plan.late(size=timedelta(hours=1), grace=timedelta(minutes=10))}


def test_lines_without_a_customer_are_dropped_and_counted(plan: Any, driver: TopologyTestDriver) -> None:
    nobody = sum(row["CustomerID"] is None for row in sold(plan))
    assert sum(d.reason == "null_key" for d in driver.dropped() if d.node == "customers") == nobody > 100


def test_on_hand_is_what_came_minus_what_went(plan: Any, driver: TopologyTestDriver) -> None:
    expected: dict[str, int] = defaultdict(int)
    for row in sold(plan):
        expected[row["StockCode"]] -= row["Quantity"]
    for receipt in plan.received:
        expected[receipt.stock_code] += receipt.quantity
    assert {code: row["on_hand"] for code, row in driver.table("inventory").items()} == expected


def test_invoices_hold_every_line_once(plan: Any, driver: TopologyTestDriver) -> None:
    invoices = driver.table("invoices")
    assert sum(row["lines"] for row in invoices.values()) == len(plan.sold)  # type: ignore[misc]
    assert set(invoices) == {row["InvoiceNo"] for row in sold(plan)}


def test_reorders_say_that_stock_fell_below_twenty(driver: TopologyTestDriver) -> None:
    reorders = driver.read_output("reorders")
    assert reorders
    assert all(r.value is not None and r.value["on_hand"] < 20 for r in reorders)  # type: ignore[operator]
