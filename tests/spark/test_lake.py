"""Hold `wt.read` and its like to their law: a table's rows are the same whatever session reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.spark.runs import Run
from watertable.project import load_apps
from watertable.records import Record
from watertable.session import held, spark_session
from watertable.settings import HELD, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_APP = """
import watertable as wt
app = wt.App("shop")
moves = app.topic("moves", key="sku STRING", value="at TIMESTAMP", timestamp="at").stream()
(
    moves.group_by_key().agg(last=wt.max("at"), n=wt.count())
    .map_values(day="CAST(last AS DATE)", hour="hour(last)", n="n").materialized_as("seen")
)
"""


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[SparkSession]:
    """Have the process's own session be one of a person in New York, without ANSI mode."""
    for name, value in zip(HELD, ("America/New_York", "false"), strict=True):
        spark.conf.set(name, value)
    yield spark
    for name, value in HELD.items():
        spark.conf.set(name, value)


def test_rows_are_the_same_whatever_session_of_the_process_reads_them(elsewhere: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "assets" / "shop").mkdir(parents=True)
    (tmp_path / "assets" / "shop" / "app.py").write_text(_APP)
    settings = Settings.load(tmp_path, warehouse=str(tmp_path / "warehouse"))
    run = Run(held(elsewhere), tmp_path / "warehouse", load_apps(settings).app("shop").topology, [("moves", 0)])
    begin = datetime(2026, 3, 1, 2, tzinfo=UTC)
    times = [begin + timedelta(hours=n) for n in range(3)]
    records = [Record("moves", 0, n, at, b"a", json.dumps({"at": at.isoformat()}).encode()) for n, at in enumerate(times)]
    run.read(records[:2])
    run.store.fold_all()
    run.read(records[2:])
    seen = wt.read("shop.seen", settings=settings)
    told = ("a", date(2026, 3, 1), 4, 3)
    assert [tuple(row) for row in seen.collect()] == [told]
    (change,) = wt.changes("shop.seen", "shop@1.1", settings=settings).collect()
    assert (tuple(change.old), tuple(change.new)) == ((told[1], 3, 2), told[1:])
    mine = elsewhere.sql("SELECT 'a' AS sku, hour(timestamp'2026-03-01 02:00:00Z') AS here")
    assert mine.join(seen, "sku").select("here", "hour").first() == (21, 4), "each side in its own time zone"
    seen.createOrReplaceTempView("seen")
    assert elsewhere.sql("SELECT sku, day FROM seen").first() == told[:2]
    assert wt.quarantine("shop", settings=settings).count() == 0


def test_a_session_that_is_held_already_is_taken_and_another_gets_one_beside_it(spark: SparkSession) -> None:
    assert held(spark) is spark
    assert spark_session(Settings.model_construct()) is spark
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    assert {name: held(other).conf.get(name) for name in HELD} == HELD
    assert held(held(other)) is held(other)
    assert other.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"


def test_what_is_set_on_a_session_is_set_beside_it_whenever_that_was(spark: SparkSession) -> None:
    other, name = spark.newSession(), "fs.lake.account.key"
    other.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    beside = held(other)
    beside.conf.set("spark.sql.shuffle.partitions", "7")  # its own: nobody has changed it in the other
    for value in ("one", "two"):
        other.conf.set(name, value)
        assert held(other) is beside
        assert beside.conf.get(name) == value
    other.conf.unset(name)
    assert held(other).conf.get(name, None) is None
    assert held(other).conf.get("spark.sql.shuffle.partitions") == "7"
    assert {name: held(other).conf.get(name) for name in HELD} == HELD
