"""Read tables: each as its Delta table (its base) plus the tail of changes that isn't folded into it yet, all at one position.

A view pins the bases first and the changelog last, so whatever a base has folded is in the changelog version that is read with it; it
then takes base ⊕ (folded, position] for every table of the app. Folds may run at any time, and change nothing that a view reads.
`at=` takes an older position: the newest base at or below it, and the tail from there. What can't be had any more raises
`UnknownPosition` and says why.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from watertable.compiler.algebra import company, finish
from watertable.compiler.versions import state_as_of
from watertable.errors import OtherCode, PositionGone, StoreError, TableNotFound, UnknownPosition
from watertable.plan.deployment import Outline
from watertable.plan.nodes import Versioned
from watertable.plan.plan import TableDef, Topology, history_of, topics_above
from watertable.schema import OWN, Column, Type, quote
from watertable.sql.spark_sql import comparable
from watertable.store.bases import EMPTY, FOLD_LINE, ROWS_PROPERTY, STATE_PROPERTY, Base, base_name, forgets, split_number
from watertable.store.changelog import COMMIT_TABLE, DROPPED_TABLE, NEAR, QUARANTINE_TABLE, Changelog, Extent
from watertable.store.commits import BUCKET, LEFT, CommitInfo, FoldMark, Head, Lineage, Offsets, Partition, Position, offsets_of
from watertable.store.deltalog import DeltaLog, Snapshot
from watertable.store.hands import refuse_changed
from watertable.store.views import Known, View, materialise, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class EventTime:
    """Ask for a position by event time; made by `event_time`."""

    time: datetime


def event_time(time: datetime) -> EventTime:
    """Ask for the last position at which no stream time of a partition that feeds the app's tables had passed `time`."""
    return EventTime(_utc(time))


At = Position | str | int | datetime | EventTime | Mapping[str, Mapping[int, int] | Mapping[str, int]] | Mapping[tuple[str, int], int]
"""How to name a position: itself, `app@epoch.seq`, a version of the table's Delta table, a commit time, an event time, or offsets.

Offsets are the next of partitions, {"sales": {0: 1200, 1: 1187}}: the newest position at which none had been read beyond its own. A
commit time is where readers found the app then, in an epoch that it may have left since; all else is of the current one.
"""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """Tell how far a table's Delta table has got: `behind` is the age of the oldest commit that it lacks."""

    version: int | None
    folded: Position
    commits_behind: int
    behind: timedelta
    folded_rows: int


@dataclass(frozen=True, slots=True)
class AppStatus:
    """Tell where an app stands: its position, the commit that made it, its tables by name, and how many records it has refused."""

    position: Position
    last: CommitInfo | None
    tables: Mapping[str, TableStatus]
    quarantined: int
    shadow: Position | None = None
    """Where the shadow beside it has come to; None where there is none."""


class Reader:
    """Read the tables of one app; any number of readers may run beside its writer and its folds."""

    def __init__(self, spark: SparkSession, warehouse: str, app: str, tables: Sequence[TableDef]) -> None:
        self.changelog = Changelog(spark, warehouse, app)
        self.tables = {t.name: t for t in tables}
        self._logs: dict[str, DeltaLog] = {}

    def read(self, table: str, at: At | None = None) -> DataFrame:
        """Read one table at one position; the newest by default."""
        return self.read_all([table], at)[table]

    def read_as_of(self, table: str, time: datetime, at: At | None = None) -> DataFrame:
        """Read a versioned table as it was at an event time, as far as is known at a position.

        Raises `UnknownPosition` for a table that keeps no history, and for a time that its history doesn't reach back to.
        """
        pinned = self._made([table], at)
        (wanted,) = (self.tables[name] for name in pinned.bases)
        if not isinstance(wanted.root, Versioned):
            raise UnknownPosition(
                f"{table} keeps no history: .materialized_as({table!r}, history=...) makes it versioned; or read at= a position"
            )
        history, asked = history_of(wanted.root), _utc(time)
        view = Reader(self.changelog.spark, self.changelog.warehouse, self.changelog.app, [history]).view([history.name], pinned.position)
        topics = topics_above(wanted.root)
        commit = view.commit
        times = [when for (topic, _), when in commit.stream_times.items() if topic in topics] if commit else []
        if times and None not in times and asked < (oldest := min(t for t in times if t is not None) - wanted.root.history):
            raise PositionGone(f"{table} can't be read as of {asked.isoformat()}: its history goes back to {oldest.isoformat()}")
        return shown(finish(wanted, view.states(history).selectExpr("key", f"{state_as_of(asked)} AS state")))

    def read_all(self, tables: Sequence[str] | None = None, at: At | None = None) -> dict[str, DataFrame]:
        """Read several tables, all by default, at one and the same position."""
        view = self._made(tables, at)
        return {name: view.rows(self.tables[name]) for name in view.bases}

    def _made(self, tables: Sequence[str] | None, at: At | None) -> View:
        """Pin tables to be read; raise `UnknownPosition` at one of a shadow of some tables, where others have no rows."""
        view = self.view(tables, at)
        if of := view.head.made_alone(view.position):
            made = Topology(app=self.changelog.app, tables=tuple(self.tables.values()), sinks=()).above(of)
            if others := sorted(view.bases.keys() - {table.name for table in made.tables}):
                raise UnknownPosition(
                    f"{view.position} is of a shadow of {', '.join(sorted(of))} alone: {', '.join(others)} has no rows there. Name a "
                    f"position of {self.changelog.app}"
                )
        return view

    def changes(self, table: str, start: At, end: At | None = None) -> DataFrame:
        """Give what changed in a table from one position to another: `key`, `old`, `new`, one row for each key whose row differs.

        `old` and `new` are the value columns as a struct, null where there is no row. Positions of different epochs are compared
        through the commit where they forked. Raises `UnknownPosition` for no start: who asks for the first time would be told of nothing.
        """
        if start is None:
            raise UnknownPosition(f"None is no position to begin from: {self.changelog.app}@1.0 is before the app's first commit")
        older, newer = self._made([table], start), self._made([table], end)
        wanted = self.tables[table]
        common, keys = _common(older, newer, wanted), None
        if common and not any(self._lacking(v.snapshot, v.along(wanted), common, v.position.seq) for v in (older, newer)):
            touched = [v.changes(wanted, common, v.position.seq).select("key") for v in (older, newer) if v.position.seq > common]
            touched = touched or [newer.changes(wanted, 0, 0).select("key")]
            keys = materialise(reduce(DataFrame.unionByName, touched).selectExpr(f"{company(wanted)} AS key").distinct())
        # of what they don't share, the changelog may be trimmed: any key may differ, so all rows of both are compared
        values = "named_struct(" + ", ".join(f"'{n}', row.{quote(n)}" for n in wanted.value.names) + ")"
        old, new = (
            finish(wanted, v.states(wanted, keys)).where("alive").selectExpr("key", f"{values} AS {name}")
            for v, name in ((older, "old"), (newer, "new"))
        )
        return differing(old, new, wanted.value.columns)

    def quarantine(self, at: At | None = None) -> DataFrame:
        """Read the records that the definition has refused up to a position: place, bytes, headers, operator, reason, and the commit.

        Upkeep takes none of them, however long ago they came.
        """
        return self._left_out(self.view([], at), QUARANTINE_TABLE, "quarantine_v1")

    def dropped(self, at: At | None = None) -> DataFrame:
        """Read what operators have left out up to a position, as far back as the changelog goes.

        A late record has a row for each window that it missed, with its place; of each other reason there is a count for each commit.
        """
        return self._left_out(self.view([], at), DROPPED_TABLE, "dropped_v1")

    def _left_out(self, view: View, table: str, column: str) -> DataFrame:
        rows = view.snapshot.frame().where(f"`table` = '{table}' AND {view.lineage.where(0, view.position.seq)}")
        return rows.selectExpr(f"concat('{self.changelog.app}@', epoch, '.', seq) AS position", "seq", f"{column}.*")

    def position(self) -> Position:
        """Give the app's newest position."""
        return self.changelog.head().position

    def status(self) -> AppStatus:
        """Tell where the app and each of its tables stand."""
        view = self.view()
        bases, shown = view.bases, {name: self._shown(name, base) for name, base in view.bases.items()}
        done = {
            name: self.begun(table, view.along(table), view.position.seq, view.snapshot) if base.snapshot is None else base.seq
            for name, base in bases.items() for table in (self.tables[name],)
        }  # fmt: skip
        waiting = sorted({seq + 1 for seq in done.values() if seq < view.position.seq})
        rows = self.changelog.rows(view.snapshot, f"c.kind = 'batch' AND seq IN ({', '.join(map(str, waiting))})") if waiting else []
        since = {r.seq: r.commit_time for r in rows if view.lineage.holds(r.epoch, r.seq)}
        now, beside = datetime.now(UTC), view.head.shadow
        return AppStatus(
            view.position, view.head.last,
            {
                name: TableStatus(
                    version=there.version if (there := shown[name]) else None, folded=Position(self.changelog.app, base.epoch, base.seq),
                    commits_behind=view.position.seq - done[name], behind=now - since.get(done[name] + 1, now),
                    folded_rows=there.rows if there else 0,
                ) for name, base in bases.items()
            },
            self._left_out(view, QUARANTINE_TABLE, "quarantine_v1").count(),
            None if beside is None else self.changelog.head(view.snapshot, epoch=beside.epoch).position,
        )  # fmt: skip

    def _shown(self, name: str, base: Base) -> Snapshot | None:
        """Pin a table as others see it, which where its states are kept beside it isn't its base; None where there is none yet."""
        return base.snapshot if base_name(self.tables[name]) == name else self.log(name).latest()

    def first_offsets(self, snapshot: Snapshot, lineage: Lineage, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Give the offsets at which the app began to read these partitions; 0 where nobody knows. Mostly its first commit has them all."""
        first = self.changelog.commits(snapshot, lineage, 0, 1) if partitions else []
        known = dict(first[0].begin) if first else {}
        if not known.keys() >= set(partitions):
            known, _ = self.begins(snapshot, lineage, "true")
        return {p: known.get(p, 0) for p in partitions}

    def begins(self, snapshot: Snapshot, lineage: Lineage, where: str) -> tuple[dict[Partition, int], bool]:
        """Give the offsets at which the app began to read, of the commits of a lineage under a condition and those that trims took.

        And tell whether trims have noted all of it. Nothing is known where a release that noted none has trimmed the first commit.
        """
        noted = f"c.kind = 'advances' AND bucket = -1 AND epoch = {lineage.epoch_of(1)}"
        rows = snapshot.frame().where(f"`table` = '{COMMIT_TABLE}'").withColumnRenamed("commit_v1", "c")
        rows = rows.where(f"({noted}) OR (c.kind = 'batch' AND {lineage.where(0, sys.maxsize)} AND {where})")
        each = rows.selectExpr("seq", "c.kind = 'advances' AS noted", "explode(c.partitions) AS p").where("p.begin IS NOT NULL")
        found = each.groupBy("p.topic", "p.partition").agg(
            F.min("p.begin").alias("begin"), F.min("seq").alias("seq"), F.expr("bool_or(noted) AS noted")
        ).collect()  # fmt: skip
        known = {(r["topic"], r["partition"]): r["begin"] for r in found} if 1 in (r["seq"] for r in found) else {}
        return known, all(r["noted"] for r in found)

    def begun(self, table: TableDef, lineage: Lineage, upto: int, snapshot: Snapshot) -> int:
        """Give the last commit up to one of a table's lineage that has nothing of it: by code from before the table was ever kept.

        Of code that is long forgotten, and of all after it, nobody knows.
        """
        codes = self.changelog.codes(snapshot, lineage, upto)
        in_order = sorted(codes, key=lambda code: codes[code])
        before = takewhile(lambda code: _is_new_after(self.changelog.code(code), table.name), in_order)
        return max((codes[code] for code in before), default=lineage.after)

    def view(self, tables: Sequence[str] | None = None, at: At | None = None) -> View:
        """Pin tables, all by default, at one position.

        Raises `TableNotFound` for a name that isn't of this app, `UnknownPosition` for a position that never was or is gone.
        """
        names = list(self.tables) if tables is None else list(tables)
        for name in names:
            if name not in self.tables:
                raise TableNotFound(f"app {self.changelog.app!r} has no table {name!r}; it has: {', '.join(sorted(self.tables))}")
        bases = {name: self.newest(self.tables[name]) for name in names}
        snapshot = self.changelog.snapshot()
        refuse_changed(self.changelog.log, snapshot, self.changelog.app)
        position = None if at is None else self._resolve(at, names, snapshot)
        reached = max((b.seq for b in bases.values()), default=0)
        epoch, since = (None, reached or None) if position is None else (position.epoch, None)
        head = self.changelog.head(snapshot, epoch=epoch, since=since)
        if position is None:
            position = head.position
        elif position.seq > head.position.seq:
            raise UnknownPosition(f"{position} isn't there yet; {self.changelog.app} is at {head.position}")
        bases = {name: self._pinned(self.tables[name], newest, position, head, snapshot) for name, newest in bases.items()}
        return View(self.changelog, snapshot, head, head.lineage, position, bases)

    def view_for(self, tables: Sequence[str], known: Known) -> View:
        """Pin tables at the position of their one writer, who knows where the app stands."""
        bases = {name: self.newest(self.tables[name]) for name in tables}
        snapshot, head = self.changelog.snapshot(), known.head
        refuse_changed(self.changelog.log, snapshot, self.changelog.app)
        bases = {name: self._pinned(self.tables[name], newest, known.position, head, snapshot) for name, newest in bases.items()}
        return View(self.changelog, snapshot, head, head.lineage, known.position, bases, often=True)

    def log(self, base: str) -> DeltaLog:
        """Follow the Delta table that holds a table's base."""
        if base not in self._logs:
            self._logs[base] = DeltaLog(self.changelog.spark, self.changelog.base_path(base))
        return self._logs[base]

    def newest(self, table: TableDef) -> Base:
        """Pin what a table's states are folded in as it is, whatever lineage it's of and whatever state version it keeps."""
        return self.folded(base_name(table))

    def folded(self, name: str) -> Base:
        """Pin a Delta table by its name, and how far it is folded; one that no fold has written has no snapshot."""
        log = self.log(name)
        if (newest := log.latest()) is None:
            return EMPTY
        held = log.held_at(FOLD_LINE, newest.version)
        if held.version < 0 or (held.number is None and not held.put_back):
            return EMPTY
        if held.version == newest.version:
            return Base(newest, *split_number(held.number or 0), put_back=held.put_back, since=newest.version)
        # its files are there for as long as those of the version after it, which took them away
        there = log.at(held.version + 1) is not None and log.has_files_of(held.version)
        whole = log.at(held.version, kept=False) if there else None
        number = 0 if whole is None else held.number or 0
        return Base(whole, *split_number(number), put_back=True, since=newest.version)

    def _pinned(self, table: TableDef, newest: Base, position: Position, head: Head, snapshot: Snapshot) -> Base:
        """Give the base to read a table from at a position: the newest one, unless that is beyond it, on a branch that was left, or old."""
        base, lineage = newest, head.lineage.of_table(table.name, position.seq)
        there = newest.snapshot is None or (newest.seq <= position.seq and lineage.passes(newest.epoch, newest.seq))
        beside = not there or newest.put_back  # a trim goes by what was folded, and a table that is put back lacks it
        if beside:
            older = self._older(table, position, lineage, snapshot)
            base = newest if there and newest.seq >= older.seq else older
        base = self.with_tombstones(table, base, lineage, head.folds, snapshot)
        if beside:
            self._check_tail(table, base, position, lineage, snapshot)
        self._check_state(table, base, newest, position)
        return base

    def _check_state(self, table: TableDef, base: Base, newest: Base, position: Position) -> None:
        """Raise `OtherCode` when a base keeps another state version, which can't be merged with the table's changes."""
        kept, now = (table.state_column if b.snapshot is None else b.snapshot.property(STATE_PROPERTY) for b in (base, newest))
        if kept != table.state_column == now:  # nothing is left to be rebuilt: it is a question of what was
            raise OtherCode(
                f"table {table.name!r} ({table.location}) keeps its state as {table.state_column} now, and at {position} other code "
                f"kept it as {kept}: load that code to read it as it was then"
            )
        if kept != table.state_column:
            raise OtherCode(
                f"table {table.name!r} ({table.location}) keeps its state as {table.state_column} here, and "
                f"{self.log(base_name(table)).path} was folded as {kept}: other code made it. If that is the code that is to be, start "
                "this again with it; if this is, rebuild the table under it, with "
                f"`watertable rewind {self.changelog.app} --table {table.name} --apply`"
            )
        if base.snapshot is not None:
            self.check_columns(table, base_name(table), base.snapshot)

    def check_columns(self, table: TableDef, name: str, snapshot: Snapshot) -> None:
        """Raise `StoreError` where somebody has renamed or dropped columns that folds of a table have given to a Delta table."""
        same = name == table.name and snapshot.property(ROWS_PROPERTY) == table.fingerprint  # else a fold gives it others
        kept = table.columns.names if same else table.state_key.names if name == base_name(table) else ()
        wanted = (*kept, OWN)
        if gone := [column for column in wanted if column not in snapshot.columns]:
            path = self.log(name).path
            raise StoreError(
                f"{path} has no column {', '.join(gone)}, which table {table.name!r} ({table.location}) is folded with: somebody has "
                f"renamed or dropped it. Put the table back to before that: `RESTORE TABLE delta.`{path}` TO VERSION AS OF` the last "
                "version with it, which `DESCRIBE HISTORY` tells; what was committed since is in the changelog"
            )

    def _older(self, table: TableDef, position: Position, lineage: Lineage, snapshot: Snapshot) -> Base:
        """Find the newest base at or below a position, by the fold rows; the empty one when Delta can't go back to any."""
        name, log = base_name(table), self.log(base_name(table))
        for after in dict.fromkeys((max(0, position.seq - NEAR), max(0, position.seq - 2 * BUCKET), 0)):
            marks = [
                m for row in self.changelog.commits(snapshot, lineage.of_folds(), after, position.seq, "fold")
                for m in row.folds if m.table == name and m.seq <= position.seq and lineage.passes(m.epoch, m.seq)
            ]  # fmt: skip
            for mark in sorted(marks, key=lambda m: (-m.seq, -m.version))[:1]:
                if (pinned := log.at(mark.version)) is not None:
                    return Base(pinned, mark.epoch, mark.seq)
        return EMPTY

    def _check_tail(self, table: TableDef, base: Base, position: Position, lineage: Lineage, snapshot: Snapshot) -> None:
        """Make sure that every commit between an older base and the position is still in the changelog, and the tombstones that it needs.

        Of the newest fold, and of a table that never had one, trims see to that.
        """
        after = min(base.seq, (base.tombstones_from or base.seq + 1) - 1)
        kept = self._lacking(snapshot, lineage, after, position.seq)
        if kept is not None and not (base.snapshot is None and self.is_whole(table, lineage, position.seq, snapshot)):
            raise PositionGone(
                f"{table.name} can't be read at {position}: no version of its Delta table at or below it can be gone on from any more, "
                f"and the changelog is trimmed up to seq {(kept.first or position.seq + 1) - 1}; read at a later position"
            )

    def is_whole(self, table: TableDef, lineage: Lineage, upto: int, snapshot: Snapshot) -> bool:
        """Tell whether all that came to a table up to a commit is kept, so that it can be read there from nothing."""
        return self._lacking(snapshot, lineage, self.begun(table, lineage, upto, snapshot), upto) is None

    def _lacking(self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int) -> Extent | None:
        """Say what is kept of commits (after, upto] of a lineage, where that isn't all; else None."""
        wanted = upto - max(after, lineage.after)
        kept = self.changelog.extent(snapshot, lineage, after, upto) if wanted > 0 else None
        return kept if kept is not None and kept.commits != wanted else None

    def with_tombstones(
        self, table: TableDef, base: Base, lineage: Lineage, folds: Sequence[FoldMark], snapshot: Snapshot
    ) -> Base:  # fmt: skip
        """Say of a base on a lineage from which commit on tombstones may be needed, by the marks of folds: the known ones first."""
        if not forgets(table) or base.snapshot is None:
            return base

        def best(marks: Sequence[FoldMark]) -> int:
            return max((m.tombstones_from for m in marks if m.table == table.name and m.seq <= base.seq), default=0)

        found = best([m for m in folds if m.seq == base.seq])
        for after in (base.seq - 1, 0):  # all of them, where the fold isn't confirmed because it died right after its merge
            if not found:
                rows = self.changelog.commits(snapshot, lineage.of_folds(), after, base.seq, "fold")
                found = best([m for row in rows for m in row.folds])
        return Base(base.snapshot, base.epoch, base.seq, found)

    def _resolve(self, at: At, names: Sequence[str], snapshot: Snapshot) -> Position:
        app = self.changelog.app
        match at:
            case Position() | str():
                position = at if isinstance(at, Position) else Position.parse(at)
                if position.app != app:
                    raise UnknownPosition(f"{position} is a position of app {position.app!r}, not of {app!r}")
                return position
            case bool():
                raise UnknownPosition(f"{at!r} is no position")
            case int():
                if len(names) != 1:
                    raise UnknownPosition(f"version {at} is one table's; name one table, or give a position")
                log = self.log(names[0])  # the one that others see: where states are kept beside it, their versions are others
                newest = log.latest()
                if newest is None or not 0 <= at <= newest.version:
                    raise UnknownPosition(f"{log.path} has no version {at}; it is at {'none' if newest is None else newest.version}")
                number = log.transaction_at(FOLD_LINE, at) if log.at(at) is not None else None
                if number is None:
                    raise PositionGone(f"{log.path} has no version {at} that holds a fold and that Delta can still read")
                return Position(app, *split_number(number))
            case datetime():
                until = _utc(at)
                if until > datetime.now(UTC):  # what comes until then would be in another read of it
                    raise UnknownPosition(f"the commit time {until.isoformat()} is in the future; the newest position needs no `at`")
                holds, what = (lambda info: info.commit_time <= until), f"the commit time {until.isoformat()}"
            case EventTime():
                time, topics = at.time, {topic for table in self.tables.values() for topic in topics_above(table.node)}
                holds, what = (lambda info: info.is_by(time, topics)), f"the event time {time.isoformat()}"
            case Mapping():
                offsets = self._offsets(at, snapshot)
                holds, what = (lambda info: info.is_within(offsets)), f"the offsets {dict(at)}"
            case _:
                raise UnknownPosition(
                    f"{at!r} is no position: write one ({app}@1.481), a datetime, wt.event_time(...), offsets or a version"
                )
        head = self.changelog.head(snapshot)
        lineage, ended = head.lineage, head.position.seq
        if isinstance(at, datetime) and (epoch := head.epoch_at(until)) != lineage.epoch:  # readers saw another one then
            of, left = self.changelog.head(snapshot, epoch=epoch), head.left[epoch].counters
            lineage, ended = of.lineage, left.get(LEFT, of.position.seq)
        found = self.changelog.newest(snapshot, lineage, 0, ended, holds)
        seq = found.seq if found is not None else 0
        if seq < ended and not self.changelog.extent(snapshot, lineage, seq, seq + 1).commits:
            first = self.changelog.extent(snapshot, lineage, seq, ended).first
            after = "nor is any after it" if first is None else f"the oldest after it is {Position(app, lineage.epoch_of(first), first)}"
            raise PositionGone(f"the last commit of {app} at or before {what} isn't kept any more; {after}")
        return Position(app, found.epoch if found is not None else lineage.epoch, seq)

    def _offsets(self, at: Mapping[Any, Any], snapshot: Snapshot) -> Offsets:
        """Read offsets that the app has come to; raise `UnknownPosition` for others."""
        try:
            offsets = offsets_of(at)
        except ValueError as error:
            raise UnknownPosition(str(error)) from None
        if wrong := (self.changelog.head(snapshot).last or CommitInfo()).unread(offsets):
            raise UnknownPosition(f"{self.changelog.app} {wrong}")
        return offsets


def read(
    spark: SparkSession, warehouse: str, app: Topology, tables: str | Sequence[str], at: At | None = None
) -> DataFrame | dict[str, DataFrame]:
    """Read a table of an app, or several at one position, fresh and exact: everything committed is in it, folded or not.

    Any other Delta reader sees each table whole too, but at its own folded position, which is at most the fold lag behind.
    """
    reader = Reader(spark, warehouse, app.app, app.tables)
    return reader.read(tables, at) if isinstance(tables, str) else reader.read_all(tables, at)


def differing(old: DataFrame, new: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Give the rows that differ between two frames (`key`, `old` and `key`, `new`): grouped, not joined, since null is a key, too.

    `old` and `new` are structs of these columns.
    """
    both = old.unionByName(new, allowMissingColumns=True)
    rows = both.groupBy("key").agg(F.first("old", True).alias("old"), F.first("new", True).alias("new"))
    old_row, new_row = (comparable(side, Type("struct", fields=tuple(columns))) for side in ("old", "new"))
    return rows.where(f"NOT ({old_row} <=> {new_row})")


def changes(spark: SparkSession, warehouse: str, app: Topology, table: str, start: At, end: At | None = None) -> DataFrame:
    """Give what changed in a table between two positions: `key`, `old`, `new`; see `Reader.changes`."""
    return Reader(spark, warehouse, app.app, app.tables).changes(table, start, end)


def _common(older: View, newer: View, table: TableDef) -> int:
    """Give the last seq that two views share of a table."""
    return min(older.along(table).common(newer.along(table)), older.position.seq, newer.position.seq)


def _is_new_after(code: Outline | None, name: str) -> bool:
    """Tell whether code neither keeps a table, or a buffer above one or above what it publishes, nor comes after code that did."""
    if code is None:
        return False
    tables = {**code.gone, **{table: [found] for table, found in code.tables.items()}}
    buffers = (*(table.buffers for found in tables.values() for table in found), *code.buffers.values())
    return name not in tables and not any(name in found for found in buffers)


def _utc(time: datetime) -> datetime:
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise UnknownPosition(f"{time!r} has no time zone; write datetime(..., tzinfo=UTC)")
    return time.astimezone(UTC)
