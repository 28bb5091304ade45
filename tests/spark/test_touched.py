"""Hold a day's data version to its law: the last commit that touched it, whoever asks and whenever, and no other after a rewind."""

from __future__ import annotations

import dataclasses
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.properties.engines import tiny
from tests.spark.ledger import Ledger, minute
from tests.spark.test_rewind import Kafka
from watertable.acts import rewind
from watertable.acts.rewind import Target
from watertable.store.commits import Position
from watertable.store.touched import Touched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAY = 24 * 60
FIRST = date(2026, 1, 1)


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Ledger:
    return Ledger.open(tiny(spark), str(tmp_path))


def follow(ledger: Ledger, last: date | None = None) -> Touched:
    tables = [ledger.table(name) for name in ("stock", "hourly", "names")]
    return Touched(ledger.store.changelog, tables, FIRST, last)


def commit(ledger: Ledger, reached: float, *hours: float, names: float | None = None) -> Position:
    """Commit a batch that brings the topics to these minutes of the tale, with a row for the windows that start at these hours."""
    rows = []
    for n, hour in enumerate(hours):
        start, end = (f"timestamp'{minute(60 * h):%F %T}'" for h in (hour, hour + 1))
        rows.append(f"named_struct('k', 'k{n}', 'window_start', {start}, 'window_end', {end}), named_struct('n', 1L), {start}")
    frames = {"stock": ledger.sums("stock", {"a": 1}, reached)} | ({"hourly": ledger.deltas("hourly", rows)} if rows else {})
    return ledger.commit(frames, {"moves": reached, "names": reached if names is None else names})


def days(ledger: Ledger, touched: Touched) -> dict[str, dict[str, str]]:
    head = ledger.store.head()
    return {table: dict(found) for table, found in touched.upto(head.position, head.lineage).items()}


def test_a_day_is_of_the_last_commit_that_touched_it(ledger: Ledger) -> None:
    touched = follow(ledger)
    commit(ledger, 60, 0)
    commit(ledger, DAY - 1, 23)
    commit(ledger, DAY + 5, 23, 24)  # late within grace for the first day
    assert days(ledger, touched) == {
        "hourly": {"2026-01-01": "shop@1.3", "2026-01-02": "shop@1.3"},
        "names": {"2026-01-01": "shop@1.3", "2026-01-02": "shop@1.3"},
        "stock": {"2026-01-01": "shop@1.3", "2026-01-02": "shop@1.3"},
    }
    commit(ledger, DAY + 20, 24)
    commit(ledger, 2 * DAY + 1, 48)
    assert days(ledger, touched) == {
        "hourly": {"2026-01-02": "shop@1.4", "2026-01-03": "shop@1.5"},
        "names": {"2026-01-02": "shop@1.5", "2026-01-03": "shop@1.5"},
        "stock": {"2026-01-02": "shop@1.5", "2026-01-03": "shop@1.5"},
    }
    assert days(ledger, touched) == {}
    again = days(ledger, follow(ledger.restart()))
    assert again["hourly"] == {"2026-01-01": "shop@1.3", "2026-01-02": "shop@1.4", "2026-01-03": "shop@1.5"}
    assert again["stock"] == {"2026-01-01": "shop@1.3", "2026-01-02": "shop@1.5", "2026-01-03": "shop@1.5"}


def test_a_table_is_touched_by_its_own_topics_only(ledger: Ledger) -> None:
    touched = follow(ledger)
    commit(ledger, 60, names=30)
    info = ledger.info(reached={"moves": 2 * DAY, "names": 30})
    info = dataclasses.replace(info, next=info.next | {("names", 0): info.begin["names", 0]})
    ledger.writer.commit({"stock": ledger.sums("stock", {"a": 1})}, info)
    found = days(ledger, touched)
    assert found["stock"] == {"2026-01-01": "shop@1.2", "2026-01-02": "shop@1.2", "2026-01-03": "shop@1.2"}
    assert found["names"] == {"2026-01-01": "shop@1.1"}


@pytest.mark.slow
def test_after_a_rewind_the_days_before_the_fork_keep_their_versions(ledger: Ledger) -> None:
    touched = follow(ledger)
    commit(ledger, DAY - 1, 0, 23)
    commit(ledger, 2 * DAY - 1, 24)
    commit(ledger, 3 * DAY - 1, 48)
    before = days(ledger, touched)
    kafka = Kafka()
    plan = rewind.plan(ledger.store, ledger.topology, kafka, Target.parse(to="2026-01-02T00:00Z"))  # type: ignore[arg-type]
    assert plan.fork == "shop@1.1"
    rewind.apply(ledger.store, plan, ledger.topology.fingerprint, kafka)  # type: ignore[arg-type]
    again = ledger.restart()
    commit(again, 3 * DAY - 1, 24, 48)  # one batch where there were two
    after = days(again, touched)
    assert before["hourly"] == {"2026-01-01": "shop@1.1", "2026-01-02": "shop@1.2", "2026-01-03": "shop@1.3"}
    assert after["hourly"] == {"2026-01-01": "shop@1.1", "2026-01-02": "shop@2.2", "2026-01-03": "shop@2.2"}


def test_days_outside_the_span_are_nobodys(ledger: Ledger) -> None:
    commit(ledger, 400_000 * DAY, 24 * 400_000 - 24, 0, 24)  # a clock gone wrong, a thousand years ahead
    found = days(ledger, follow(ledger, last=date(2026, 1, 2)))
    assert {name: sorted(of) for name, of in found.items()} == {
        name: ["2026-01-01", "2026-01-02"] for name in ("hourly", "names", "stock")
    }  # fmt: skip
