"""The demo's batch asset: it makes the days that were asked for, of one position, and leaves all others as they are."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

import watertable as wt
from tests.spark.runs import Run
from watertable.project import load_apps
from watertable.records import Record
from watertable.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def line(offset: int, at: str, country: str, quantity: int, price: str) -> Record:
    value = {
        "line": offset,
        "stock_code": "71053",
        "quantity": quantity,
        "invoiced_at": f"{at}:00Z",
        "unit_price": price,
        "country": country,
    }
    return Record("sales", 0, offset, NOW, b"71053", json.dumps(value).encode())


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("WATERTABLE_WAREHOUSE", str(tmp_path))
    run = Run(spark, tmp_path, load_apps(Settings.load()).app("retail").topology, [("sales", 0), ("receipts", 0)])
    run.read(
        [
            line(0, "2010-12-01T08:26", "France", 2, "2.55"), line(1, "2010-12-01T09:10", "France", 3, "1.10"),
            line(2, "2010-12-01T09:20", "Norway", 1, "9.95"), line(3, "2010-12-02T23:59", "France", 4, "0.85"),
            line(4, "2010-12-03T00:00", "France", 1, "7.65"),
        ]
    )  # fmt: skip
    return run


def materialize(spark: SparkSession, first: str, last: str) -> dict[str, Any]:
    """Run the asset as Dagster does, for a range of days; give its metadata."""
    [modules] = [batch.load() for name, batch in load_apps(Settings.load()).batch.items() if name == "retail"]
    assert not hasattr(modules, "reason"), modules
    [asset] = [module.daily_revenue for module in modules if hasattr(module, "daily_revenue")]
    tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    done = dg.materialize([asset], tags=tags, resources={"pyspark": SimpleNamespace(spark_session=spark)})
    return {name: value.value for name, value in done.asset_materializations_for_node("daily_revenue")[0].metadata.items()}


def days(spark: SparkSession, path: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.read.format("delta").load(path).orderBy("day", "country").collect()]


def test_a_range_of_days_is_what_the_hours_add_up_to_at_the_position_that_it_names(spark: SparkSession, shop: Run) -> None:
    told = materialize(spark, "2010-12-01", "2010-12-02")
    made = days(spark, told["dagster/uri"])
    first, second = date(2010, 12, 1), date(2010, 12, 2)
    assert made == [
        ("France", first, Decimal("8.400"), 2), ("Norway", first, Decimal("9.950"), 1), ("France", second, Decimal("3.400"), 1),
    ]  # fmt: skip
    assert (told["dagster/row_count"], told["revenue"], told["last_day"]) == (3, 21.75, "2010-12-02")
    hours = wt.read("retail.revenue_hourly", at=told["position"]).where("window_start < TIMESTAMP '2010-12-03 00:00:00Z'").collect()
    assert sum(row.revenue for row in hours) == sum(row[2] for row in made)


def test_a_day_that_is_made_again_replaces_its_rows_and_no_others(spark: SparkSession, shop: Run) -> None:
    path = materialize(spark, "2010-12-01", "2010-12-03")["dagster/uri"]
    before = days(spark, path)
    shop.read([line(5, "2010-12-03T00:01", "Spain", 1, "5.00"), line(6, "2010-12-03T00:02", "France", -1, "7.65")])
    materialize(spark, "2010-12-02", "2010-12-02")
    assert days(spark, path) == before, "of the third day nothing was asked"
    materialize(spark, "2010-12-03", "2010-12-03")
    third = date(2010, 12, 3)
    assert days(spark, path) == [*before[:-1], ("France", third, Decimal("0.000"), 2), ("Spain", third, Decimal("5.000"), 1)]
