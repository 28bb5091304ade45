"""Versioned tables in the store: whatever the batches, folds, crashes and rewinds, rows and histories are the same, and old versions go."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.spark.ledger import both_folds
from tests.spark.runs import Run, agree, by, told
from watertable.errors import UnknownPosition
from watertable.interpreter import Interpreter
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.store import fold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PRICES = [("prices", 0), ("prices", 1)]


def shop() -> Topology:
    """Keep prices with their history of ten minutes, filtered too, joined with themselves, and grouped."""
    app = wt.App("shop")
    topic = app.topic("prices", key="sku STRING", value="price INT").table()
    prices = topic.materialized_as("prices", history=wt.minutes(10))
    topic.filter("price % 2 = 0").materialized_as("even", history=wt.minutes(10))
    prices.join(topic, price="left.price", last="right.price").materialized_as("both")
    prices.group_by(odd="price % 2").count().materialized_as("counts")
    return app.topology()


def tale(minutes: int) -> list[Record]:
    """Write the prices of four keys to two partitions, one a minute, some deleted, some late, and some too late."""
    records, following = [], dict.fromkeys(PRICES, 0)
    for minute in range(minutes):
        behind = (0, 0, 7, 0, 3, 0, 12)[minute % 7]
        place = ("prices", minute % 2)
        value = None if minute % 5 == 4 else json.dumps({"price": minute}).encode()
        at = EPOCH + timedelta(minutes=max(0, minute - behind))
        records.append(Record(*place, following[place], at, f"k{minute // 3 % 4}".encode(), value))
        following[place] += 1
    return records


def as_of(records: list[Record], minute: int) -> dict[str, int]:
    """Say from the records what the prices were; of equal times the one that is later in log order counts."""
    late = {(d.partition, d.offset) for d in told(shop(), records).dropped}
    engine = Interpreter(shop())
    engine.read([r for r in records if r.timestamp <= EPOCH + timedelta(minutes=minute) and (r.partition, r.offset) not in late])
    return {str(row["sku"]): int(str(row["price"])) for row in engine.tables["prices"].values()}


def versions(run: Run) -> list[tuple[Any, ...]]:
    """Read the folded histories: key, and the event times in minutes."""
    (buffer,) = run.topology.buffers
    frame = run.spark.read.format("delta").load(run.store.changelog.base_path(buffer.name))
    found = frame.selectExpr("sku", "transform(_wt.state.__versions, e -> unix_seconds(e.order.ts) div 60) AS at").orderBy("sku")
    return [tuple(row) for row in found.collect()]


@pytest.mark.slow
@both_folds
def test_rows_are_the_last_by_event_time_through_folds_that_let_go_of_old_versions_and_of_tombstones(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    records = tale(36)
    run = Run(tiny(spark), tmp_path, shop(), PRICES)
    for number, batch in enumerate(by(records, 12)):
        run.read(batch)
        if number != 1:
            run.store.folder.fold_all()
    agree(run, told(shop(), records))
    kept = versions(run)
    reached = min(time for time in run.carry.values() if time is not None)
    since = (reached - wt.minutes(10) - EPOCH) // timedelta(minutes=1)
    assert sum(len(at) for _, at in kept) < 30, f"36 records made {kept}"
    assert all(sum(minute < since for minute in at) <= 1 for _, at in kept), "one version before the history is enough"


@pytest.mark.slow
def test_after_a_crash_between_any_two_commits_and_a_rewind_the_rows_are_the_same(spark: SparkSession, tmp_path: Path) -> None:
    session, records = tiny(spark), tale(24)
    run, wanted = Run(session, tmp_path, shop(), PRICES), told(shop(), records)
    for number, batch in enumerate(by(records, 8)):
        run.start()
        run.read(batch)
        if number == 1:
            run.store.folder.fold_all()
    agree(run, wanted)
    for minute in (12, 15, 20):
        at = EPOCH + timedelta(minutes=minute)
        rows = run.store.reader.read_as_of("prices", at).collect()
        assert {row["sku"]: row["price"] for row in rows} == as_of(records, minute)
    with pytest.raises(UnknownPosition, match="prices can't be read as of 1970-01-01T00:01:00"):
        run.store.reader.read_as_of("prices", EPOCH + timedelta(minutes=1))
    with pytest.raises(UnknownPosition, match="both keeps no history"):
        run.store.reader.read_as_of("both", EPOCH)
    run.rewind(1)
    for batch in by(run.left(records), 5, 20):
        run.read(batch)
    agree(run, wanted)
