"""Do to an app's Delta tables, by hand, what people and other programs do to any; and read them from anywhere.

Nobody of the app's is asked, and its own readers may notice nothing. Other Delta readers see what they saw, but for who puts a table back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import polars
from deltalake import DeltaTable
from pyspark.errors import IllegalArgumentException

from tests.properties.engines import collect_together
from tests.spark.runs import Run, Tables, text
from watertable.session import handed_over, held
from watertable.settings import HELD
from watertable.store import deltalog
from watertable.store.bases import FOLD_LINE, base_name, split_number
from watertable.store.commits import Position
from watertable.store.deltalog import DeltaLog
from watertable.store.reader import At, Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Pacific/Kiritimati")
LONG_AGO = timedelta(days=40)
"""Longer than any log is kept."""


@dataclass(frozen=True)
class Hand:
    """Say what somebody does to one Delta table, how often beside the others, to which, and whether other readers see the same after it."""

    does: Callable[[SparkSession, DeltaLog, Random], str]
    often: int
    also_changelog: bool = False
    keeps: bool = True


def by_hand(run: Run, draw: Random) -> str:
    """Do something to some table, and say what."""
    tables, changelog = [run.store.reader.log(table) for table in folded(run)], run.store.changelog.log
    may = {name: hand.often for name, hand in HANDS.items() if tables or hand.also_changelog}
    (name,) = draw.choices([*may], [*may.values()])
    hand = HANDS[name]
    logs = [*tables, changelog] if hand.also_changelog else tables
    log = draw.choice(logs)
    before = plain(log) if hand.keeps and log is not changelog else None
    with elsewhere(draw) as session:
        said = hand.does(session, log, draw)
    if before is not None:
        assert plain(log) == before, f"{name} has changed what any reader sees of {log.path}"
    return f"{name} {Path(log.path).name} {said}"


def folded(run: Run) -> list[str]:
    """Name the Delta tables of an app that there are, those of states too."""
    names = dict.fromkeys(name for table in run.store.reader.tables.values() for name in (base_name(table), table.name))
    return [name for name in names if run.store.reader.log(name).exists()]


def plain(log: DeltaLog) -> list[str]:
    """Read a Delta table without a JVM."""
    return sorted(map(text, polars.scan_delta(log.path).collect().to_dicts()))


# -- what hands do -----------------------------------------------------------------------------------------------------------------------


def _restores(session: SparkSession, log: DeltaLog, draw: Random) -> str:
    """Put a table back to any version that there is, by its number or by its time.

    By a time only in a session whose clock is the JVM's: Delta reads it by the one, writes it by the other, and reads it again.
    """
    newest = _newest(log)
    there = [(version, pinned) for version in range(newest + 1) if (pinned := log.at(version)) is not None]
    version, pinned = draw.choice(there)
    if draw.random() < 0.5 or session.conf.get("spark.sql.session.timeZone") != "UTC":
        to = f"VERSION AS OF {version}"
    else:
        to = f"TIMESTAMP AS OF '{datetime.fromtimestamp(pinned.timestamp / 1000, UTC):%F %T.%f}'"
    try:
        session.sql(f"RESTORE TABLE delta.`{log.path}` TO {to}")
    except IllegalArgumentException as error:  # by its time, Delta doesn't put a table back to where it is
        if f"Version to restore ({newest})should be less then last available version ({newest})" not in str(error):
            raise
        return f"from {newest} to {to}, refused"
    return f"from {newest} to {to}"


def _writes(session: SparkSession, log: DeltaLog, draw: Random) -> str:
    """Delete some rows, or write all of them once more."""
    table = f"delta.`{log.path}`"
    does = draw.choice([f"DELETE FROM {table} WHERE _wt.seq % 2 = {draw.randrange(2)}", f"INSERT INTO {table} SELECT * FROM {table}"])
    session.sql(does)
    return does.partition(" ")[0]


def _optimizes(session: SparkSession, log: DeltaLog, draw: Random) -> str:
    session.sql(f"OPTIMIZE delta.`{log.path}`")
    return ""


def _vacuums(session: SparkSession, log: DeltaLog, draw: Random) -> str:
    session.sql(f"VACUUM delta.`{log.path}`")
    return ""


def _checkpoints(session: SparkSession, log: DeltaLog, draw: Random) -> str:
    DeltaTable(log.path).create_checkpoint()
    return f"at {_newest(log)}"


def _cleans(session: SparkSession, log: DeltaLog, draw: Random) -> str:
    """Have the log's past be of long ago, but for its last few commits, and cleaned up as any log's is at a checkpoint.

    Not where a table was put back, or its rows were changed, since its last fold: that a log outlives.
    """
    newest = _newest(log)
    last = newest - draw.randint(0, 3)
    for version in range(newest, -1, -1):
        commit = log.commit(version)
        if commit is None or commit.operation == "RESTORE":
            return "nothing: it was put back"
        if FOLD_LINE in commit.transactions or "changelog" in log.path:
            break
        if commit.changes_rows:
            return "nothing: its rows were changed"
    DeltaTable(log.path).create_checkpoint()
    then = (datetime.now(UTC) - LONG_AGO).timestamp()
    for file in Path(log.path, "_delta_log").glob("*.json"):
        if file.stem.isdigit() and int(file.stem) < last:
            os.utime(file, (then, then))
    log.clean(timedelta(days=9))
    log.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    for cache in (deltalog._pinned, deltalog._older):  # so long, no process remembers what it saw
        cache.clear()
    return f"before {last}"


HANDS = {
    "restores": Hand(_restores, 6, keeps=False),
    "writes": Hand(_writes, 3, keeps=False),
    "optimizes": Hand(_optimizes, 2, also_changelog=True),
    "vacuums": Hand(_vacuums, 1, also_changelog=True),
    "checkpoints": Hand(_checkpoints, 2, also_changelog=True),
    "cleans": Hand(_cleans, 2, also_changelog=True),
}


def _newest(log: DeltaLog) -> int:
    newest = log.latest()
    assert newest is not None
    return newest.version


# -- who reads ---------------------------------------------------------------------------------------------------------------------------


@contextmanager
def elsewhere(draw: Random) -> Iterator[SparkSession]:
    """Have the process's own session be that of a person anywhere, with ANSI mode or without."""
    from pyspark.sql import SparkSession

    own = SparkSession.builder.getOrCreate()
    for name, value in zip(HELD, (draw.choice(ZONES), draw.choice(["true", "false"])), strict=True):
        own.conf.set(name, value)
    try:
        yield own
    finally:
        for name, value in HELD.items():
            own.conf.set(name, value)


def read_elsewhere(run: Run, draw: Random, at: At | None = None, names: list[str] | None = None) -> Tables:
    """Read tables as `wt.read` does in a process of its own, whose session is of anywhere."""
    with elsewhere(draw) as own:
        reader = Reader(held(own), run.store.warehouse, run.topology.app, run.topology.tables)
        frames = {name: handed_over(frame) for name, frame in reader.read_all(names, at).items()}
        found = collect_together(frames)
    return keyed(run, {name: rows.to_pylist(maps_as_pydicts="strict") for name, rows in found.items()})


def keyed(run: Run, found: dict[str, list[dict[str, Any]]]) -> Tables:
    """Hold rows as the oracle does."""
    keys = {table.name: table.key.names for table in run.topology.tables}
    return {name: {tuple(row[n] for n in keys[name]): row for row in rows} for name, rows in found.items()}


def folded_at(run: Run, name: str, version: int) -> Position | None:
    """Say up to where a version of a Delta table is folded that others read, by what it says itself; None where it holds no fold."""
    number = run.store.reader.log(name).transaction_at(FOLD_LINE, version)
    if number is None:
        return None
    epoch, seq = split_number(number)
    return Position(run.topology.app, run.store.changelog.head(epoch=epoch).lineage.epoch_of(seq), seq)
