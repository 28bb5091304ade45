"""Hold a day's data version to its law: the last commit that touched it, whoever asks and whenever, and no other after a rewind."""

from __future__ import annotations

import dataclasses
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.properties.engines import tiny
from tests.spark.ledger import Ledger, minute
from tests.spark.test_rewind import Kafka
from watertable.acts import rewind
from watertable.acts.rewind import Target
from watertable.store.commits import Lineage, Position
from watertable.store.deltalog import Snapshot
from watertable.store.touched import Touched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAY = 24 * 60
FIRST = date(2026, 1, 1)


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Ledger:
    return Ledger.open(tiny(spark), str(tmp_path))


def follow(ledger: Ledger, last: date | None = None, commits: int = 1_000) -> Touched:
    tables = [ledger.table(name) for name in ("stock", "hourly", "names")]
    return Touched(ledger.store.changelog, tables, FIRST, last, commits)


def stretches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """List, as they come, the stretches of commits that are read."""
    found, read = list[tuple[int, int]](), Touched._read

    def noted(self: Touched, snapshot: Snapshot, lineage: Lineage, after: int, upto: int) -> Any:
        found.append((after, upto))
        return read(self, snapshot, lineage, after, upto)

    monkeypatch.setattr(Touched, "_read", noted)
    return found


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


def test_a_start_reads_what_was_committed_since_the_last_note(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    read, touched = stretches(monkeypatch), follow(ledger, commits=2)
    commit(ledger, 60, 0)
    days(ledger, touched)  # a commit is too few for a note
    commit(ledger, DAY + 5, 23, 24)
    days(ledger, touched)
    commit(ledger, 2 * DAY + 1, 24, 48, names=DAY + 5)
    assert read == [(0, 1), (1, 2)]
    again = days(ledger, follow(ledger.restart()))
    assert read[2:] == [(2, 3)]
    assert again == days(ledger, follow(ledger, date(2026, 1, 31))), "what is noted of some days says nothing of others"
    assert read[3:] == [(0, 3)]
    assert again == {
        "hourly": {"2026-01-01": "shop@1.2", "2026-01-02": "shop@1.3", "2026-01-03": "shop@1.3"},
        "names": {"2026-01-01": "shop@1.2", "2026-01-02": "shop@1.3"},
        "stock": {"2026-01-01": "shop@1.2", "2026-01-02": "shop@1.3", "2026-01-03": "shop@1.3"},
    }


def test_a_note_of_much_is_written_whatever_the_number_of_commits(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    read, touched = stretches(monkeypatch), follow(ledger)
    info = dataclasses.replace(ledger.info(reached={"moves": 5, "names": 5}), counters={"records": touched.records})
    ledger.writer.commit({"stock": ledger.sums("stock", {"a": 1})}, info)
    found = days(ledger, touched)
    assert days(ledger, follow(ledger.restart())) == found
    assert read == [(0, 1)]


def test_a_store_of_before_there_were_notes_is_read_from_its_commits(ledger: Ledger) -> None:
    commit(ledger, 60, 0)
    spark, path = ledger.spark, ledger.store.changelog.path
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE delta.`{path}` DROP COLUMN days_v1")
    found = days(ledger, follow(ledger))
    again = ledger.restart()
    assert found == days(again, follow(again, commits=1)) == days(again, follow(again.restart()))


@pytest.mark.slow
@pytest.mark.parametrize("commits", [1, 1_000], ids=["noted", "not noted"])
def test_after_a_rewind_the_days_before_the_fork_keep_their_versions(ledger: Ledger, commits: int) -> None:
    touched, before = follow(ledger, commits=commits), dict[str, dict[str, str]]()
    for reached, *hours in ((DAY - 1, 0, 23), (2 * DAY - 1, 24), (3 * DAY - 1, 48)):
        commit(ledger, reached, *hours)
        for name, found in days(ledger, touched).items():
            before[name] = before.get(name, {}) | found
    kafka = Kafka()
    plan = rewind.plan(ledger.store, ledger.topology, kafka, Target.parse(to="2026-01-02T00:00Z"))  # type: ignore[arg-type]
    assert plan.fork == "shop@1.1"
    rewind.apply(ledger.store, plan, ledger.topology.fingerprint, kafka)  # type: ignore[arg-type]
    again = ledger.restart()
    commit(again, 3 * DAY - 1, 24, 48)  # one batch where there were two
    after = days(again, touched)
    assert before["hourly"] == {"2026-01-01": "shop@1.1", "2026-01-02": "shop@1.2", "2026-01-03": "shop@1.3"}
    assert after["hourly"] == {"2026-01-01": "shop@1.1", "2026-01-02": "shop@2.2", "2026-01-03": "shop@2.2"}
    assert days(again, follow(again.restart())) == after


def test_days_outside_the_span_are_nobodys(ledger: Ledger) -> None:
    commit(ledger, 400_000 * DAY, 24 * 400_000 - 24, 0, 24)  # a clock gone wrong, a thousand years ahead
    found = days(ledger, follow(ledger, last=date(2026, 1, 2)))
    assert {name: sorted(of) for name, of in found.items()} == {
        name: ["2026-01-01", "2026-01-02"] for name in ("hourly", "names", "stock")
    }  # fmt: skip
