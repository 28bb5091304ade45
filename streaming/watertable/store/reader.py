"""Read tables: each as its Delta table (its base) plus the tail of changes that isn't folded into it yet, all at one position.

A view pins the bases first and the changelog last, so whatever a base has folded is in the changelog version that is read with it; it
then takes base ⊕ (folded, position] for every table of the app. Folds may run at any time, and change nothing that a view reads.
`at=` takes an older position: the newest base at or below it, and the tail from there. What can't be had any more raises
`UnknownPosition` and says why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from watertable.compiler.algebra import change_struct, company, finish, home, merge, spread, state_struct
from watertable.compiler.layout import moment
from watertable.compiler.versions import state_as_of
from watertable.errors import StoreError, TableNotFound, UnknownPosition
from watertable.plan.aggregates import Merge
from watertable.plan.deployment import Outline, OutlinedTable
from watertable.plan.fingerprints import DIALECT
from watertable.plan.nodes import ForeignJoin, Source, Stored, TableAggregate, Versioned, Waiting
from watertable.plan.plan import TableDef, Topology, closing_of, history_of, is_open, walk
from watertable.plan.stages import How, Match, Stage, Where
from watertable.plan.windows import EPOCH
from watertable.schema import quote
from watertable.sql.expressions import Expr
from watertable.store.changelog import (
    BUCKET,
    Changelog,
    CommitInfo,
    FoldMark,
    Head,
    Lineage,
    Partition,
    Position,
    batches,
    offsets_passed,
    time_passed,
)
from watertable.store.deltalog import DeltaLog, Files, Snapshot

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

FOLD_LINE: Final = "watertable/fold"
"""The transaction line of folds; the number is epoch << 40 | seq."""
SEQ_BITS: Final = 40
STATE_PROPERTY: Final = "watertable.state"
"""Table property: the state version that a base keeps; another one can't be merged with it."""
ROWS_PROPERTY: Final = "watertable.fingerprint"
"""Table property: the fingerprint of the table whose rows a base shows; under another one they are computed from the states again."""
PLAN_PROPERTY: Final = "watertable.plan"
"""Table property: the outline of that table, by which later code is classified."""
NEXT: Final = "_wt_next"
"""Names the column of what an outer join of streams keeps that says when the first window in a row closes."""
_DUE_STEP: Final = timedelta(minutes=1)
SMALL_TAIL: Final = 16 << 20
"""Bytes of tail files up to which the tail's keys are broadcast, and the base is neither sorted nor shuffled."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """Ask for a position by event time; made by `event_time`."""

    time: datetime


def event_time(time: datetime) -> EventTime:
    """Ask for the last position at which no partition's stream time had passed `time`."""
    return EventTime(_utc(time))


At = Position | str | int | datetime | EventTime | Mapping[tuple[str, int], int]
"""How to name a position: itself, `app@epoch.seq`, a version of the table's Delta table, a commit time, an event time, or offsets."""


@dataclass(frozen=True, slots=True)
class Base:
    """Pin a version of a table's Delta table, and how far it has folded; `snapshot` None stands for an empty table at seq 0."""

    snapshot: Snapshot | None
    epoch: int
    seq: int
    tombstones_from: int = 0
    files: Files | None = None
    """All its files, where they are listed already."""


_EMPTY: Final = Base(None, 0, 0)


class Recent:
    """Remember the files of a writer's own commits, so that a look-up needn't rebuild the state of a log that grows with each batch.

    The files stay: OPTIMIZE leaves them to readers for as long as the changelog's retention says, and a tail is a few folds long.
    """

    def __init__(self, after: int) -> None:
        self._after = after
        self._commits: deque[tuple[int, Sequence[tuple[str | None, Any]]]] = deque(maxlen=512)

    def add(self, seq: int, files: Sequence[tuple[str | None, Any]]) -> None:
        """Remember the files of the next commit."""
        if len(self._commits) == self._commits.maxlen:
            self._after = self._commits[0][0]
        self._commits.append((seq, files))

    def files(self, table: str, after: int, upto: int) -> Files | None:
        """List the files of a table in commits (after, upto]; None when they reach back before the writer's first."""
        commits = tuple(self._commits)  # the writer's thread adds to them
        if after < self._after or (commits[-1][0] if commits else self._after) < upto:
            return None
        found = tuple(f for seq, files in commits if after < seq <= upto for name, f in files if name == table)
        return Files(found, len(found), sum(f.size() for f in found), whole=True)


@dataclass(frozen=True, slots=True)
class Known:
    """Hold what an app's writer knows of its own commits, so that nobody beside it has to look for them."""

    head: Head
    position: Position
    recent: Recent


@dataclass(frozen=True, slots=True)
class View:
    """Hold tables of an app pinned at one position."""

    changelog: Changelog
    snapshot: Snapshot
    head: Head
    lineage: Lineage
    position: Position
    bases: Mapping[str, Base]
    recent: Recent | None = None
    _listed: dict[tuple[str, int, int], Files] = field(default_factory=dict, compare=False, repr=False)

    def along(self, table: TableDef) -> Lineage:
        """Give the lineage of one table's rows: shorter than the app's where it was rebuilt by itself."""
        return self.lineage.of_table(table.name, self.position.seq)

    @property
    def commit(self) -> CommitInfo | None:
        """Find the commit that this is a view of."""
        last, seq = self.head.last, self.position.seq
        if last is not None and last.seq == seq:
            return last
        rows = self.changelog.rows(self.snapshot, f"c.kind = 'batch' AND {self.lineage.where(seq - 1, seq)}")
        return rows[0] if rows else None

    def tail(self, table: TableDef, *, each: bool = False) -> DataFrame:
        """Read the changes that the base lacks: `key`, `state`, `st`, `epoch`, `seq`; several rows a key, of `each` commit if asked for.

        Where states may be forgotten, tombstones that an earlier record could still meet are among them, folded or not.
        """
        base = self.bases[table.name]
        rows = self.changes(table, base.seq, self.position.seq, each=each)
        if forgets(table) and base.tombstones_from <= base.seq:
            folded = self.changes(table, max(0, base.tombstones_from - 1), base.seq)
            rows = rows.unionByName(finish(table, folded).where("NOT alive").drop("alive", "row"))
        return rows

    def new_bytes(self, table: TableDef) -> int:
        """Add up the files of the commits that the base lacks; 0 tells that none of them changed the table."""
        return self._files(table, self.bases[table.name].seq, self.position.seq).bytes

    def tail_bytes(self, table: TableDef) -> int:
        """Add up the files of the tail; 0 tells that there is no row in it."""
        base, size = self.bases[table.name], self.new_bytes(table)
        if forgets(table) and base.tombstones_from <= base.seq:
            size += self._files(table, max(0, base.tombstones_from - 1), base.seq).bytes
        return size

    def states(self, table: TableDef, keys: DataFrame | None = None, *, of_tail: bool = False) -> DataFrame:
        """Give absolute states (`key`, `state`, `epoch`, `seq`), of the given keys or of all.

        Base and tail are unioned and grouped once; with `keys` (a column `key`, distinct; of sessions, their groups) each is cut by a
        broadcast of them first. `of_tail` says that the keys are all those in the tail, which then needn't be cut.
        """
        base = self.base_states(table)
        base = base if base is None or keys is None else _only(base, keys, "left_semi")
        if base is not None and not self.tail_bytes(table):
            return base
        tail = self.tail(table).select("key", "state", "epoch", "seq")
        tail = tail if keys is None or of_tail else _only(tail, keys, "left_semi")
        return merge(table, tail if base is None else base.unionByName(tail))

    def first_window(self, table: TableDef) -> datetime | None:
        """Give the start of the first window in the tail of a windowed table; a Spark job over the tail's keys."""
        return earliest(self.deltas(table, self.bases[table.name].seq, self.position.seq), "key.window_start")

    def states_from(self, table: TableDef, first: datetime, files: Files) -> DataFrame:
        """Give the absolute states of the windows that start at a time or later, as all in the tail do; `files` of the base hold its."""
        rows, base = self.tail(table).select("key", "state", "epoch", "seq"), self.bases[table.name].snapshot
        if base is not None and files.number:
            kept = states_in(base, table, "window_start", files=files).where(f"window_start >= {moment(first)}").drop("window_start")
            rows = kept.unionByName(rows)
        return merge(table, rows)

    def waiting(self, table: TableDef, keys: DataFrame, due: datetime) -> DataFrame:
        """Give what an outer join of streams keeps of these keys, and wherever the window of a record is closed at the stream time `due`.

        A record in the tail has its marks there, too, so the tail is all that is wanted of its keys. Of rows that wait for their windows to
        close, those are given whose windows are closed by then; of sessions, which others may join, also those of their groups; of sliding
        windows all that wait.
        """
        tail, base = self.tail(table).select("key", "state", "epoch", "seq"), self.bases[table.name].snapshot
        if base is None:
            return merge(table, tail)
        upto = EPOCH + ((due - EPOCH) // _DUE_STEP + 1) * _DUE_STEP  # a time in a plan is compiled into it: let it change seldom
        if is_open(table) and table.sliding is not None:
            rows = states_in(base, table)
        elif is_open(table):
            closed = f"window_end <= {moment(upto - closing_of(table.node).after)}"
            rows = states_in(base, table, "window_end")
            if table.sessions is not None:  # one that may be another's by now is in its group, and that is in the tail, or in the batch
                groups = tail.select("key").unionByName(keys).selectExpr(f"{home(table)} AS key").distinct()
                rows, closed = _only(rows, groups, "left"), f"__k0 IS NOT NULL OR {closed}"
            rows = rows.where(closed)
        else:
            time = "at" if isinstance(table.root, Stored) else NEXT  # when a punctuator is due, or a window closes
            rows = _only(states_in(base, table, time), keys, "left").where(f"__k0 IS NOT NULL OR {time} < {moment(upto)}")
        return merge(table, rows.select("key", "state", "epoch", "seq").unionByName(tail))

    def by_clock(self, timers: TableDef) -> dict[Partition, datetime]:
        """Give, by partition, the first time for which a punctuator is scheduled by the wall clock."""
        tail, base = self.tail(timers).select("key", "state", "epoch", "seq"), self.base_states(timers)
        rows = tail if base is None else tail.unionByName(base.where("state.row.value.since IS NOT NULL"))
        waiting = merge(timers, rows).selectExpr("state.row.value.*").where("since IS NOT NULL")
        found = waiting.groupBy("topic", "partition").agg(F.expr("unix_micros(min(at)) AS at")).collect()
        return {(row["topic"], row["partition"]): EPOCH + timedelta(microseconds=row["at"]) for row in found}

    def touched(self, table: TableDef) -> DataFrame:
        """List the keys in the tail; of sessions, their groups."""
        return self.tail(table).selectExpr(f"{home(table)} AS key").distinct()

    def absorbed(self, table: TableDef, groups: DataFrame, states: DataFrame) -> DataFrame:
        """Give the dead sessions of these groups, as `states` gives those alive: their starts, without an end or a state.

        Other folds may have seen sessions that neither the base nor `states` has. Each of them began where one of the base did, or one
        of the tail; so whatever began there, and isn't the start of a session now, is gone.
        """
        names, base = table.key.names[:-1], self.base_states(table)
        began = self.tail(table).select("key")
        began = began if base is None else began.unionByName(_only(base, groups, "left_semi").select("key"))
        starts = [frame.select(*(F.col(f"key.{quote(n)}").alias(n) for n in names)) for frame in (began, states)]
        key = "".join(f"'{n}', {quote(n)}, " for n in names) + "'window_end', CAST(NULL AS TIMESTAMP)"
        nothing = f"CAST(NULL AS {state_struct(table).sql()}) AS state"
        place = (f"{self.position.epoch} AS epoch", f"{self.position.seq}L AS seq")
        return starts[0].subtract(starts[1]).selectExpr(f"named_struct({key}) AS key", nothing, *place)

    def base_states(self, table: TableDef) -> DataFrame | None:
        """Read the states that are in the base; None when it is empty."""
        base = self.bases[table.name]
        return None if base.snapshot is None else states_in(base.snapshot, table, files=base.files)

    def rows(self, table: TableDef) -> DataFrame:
        """Read the table as its columns.

        A small tail leaves the base unshuffled: rows whose key isn't in the tail are read as they are.
        """
        base = self.bases[table.name].snapshot
        size = self.tail_bytes(table)
        if base is None or hides(table) or base.property(ROWS_PROPERTY) != table.fingerprint:
            return _alive(finish(table, self.states(table)))
        kept = base.frame().select(*(quote(n) for n in table.columns.names))
        if size == 0:
            return kept
        if size > SMALL_TAIL:
            return _alive(finish(table, self.states(table)))
        touched = self.touched(table)
        untouched = _only(kept, touched, "left_anti", of="")
        return untouched.unionByName(_alive(finish(table, self.states(table, touched, of_tail=True))))

    def changes(self, table: TableDef, after: int, upto: int, *, each: bool = False) -> DataFrame:
        """Read the changelog's rows of a table in commits (after, upto] of this lineage, those of `each` commit apart if asked for."""
        return spread(table, self.deltas(table, after, upto), each=each)

    def deltas(self, table: TableDef, after: int, upto: int) -> DataFrame:
        """Read the changelog's rows of a table in commits (after, upto] as they were written."""
        column, files = quote(table.state_column), self._files(table, after, upto)
        if files.number:
            rows = self.snapshot.frame(files)
            rows = rows if files.whole else rows.where(self.along(table).where(after, upto))
        else:
            nothing = f"CAST(NULL AS {change_struct(table).sql()}) AS {column}"
            rows = self.changelog.spark.range(0).selectExpr(nothing, "0 AS epoch", "0L AS seq")
        return rows.selectExpr(f"{column}.key AS key", f"{column}.state AS state", f"{column}.st AS st", "epoch", "seq")

    def whole(self, table: TableDef) -> DataFrame:
        """Give all that a table without a base keeps as the changes of one commit: `key`, `state`, `st`."""
        return merge(table, self.deltas(table, 0, self.position.seq), "max(st) AS st").select("key", "state", "st")

    def _files(self, table: TableDef, after: int, upto: int) -> Files:
        """List the changelog's files for a table and a range of commits, once a view."""
        if table.state_column not in self.snapshot.columns:
            return Files((), 0, 0)
        place = (table.name, after, upto)
        if place not in self._listed:
            known = self.recent.files(table.name, after, upto) if self.recent is not None else None
            self._listed[place] = known or self.snapshot.files(f"`table` = '{table.name}' AND {self.along(table).where(after, upto)}")
        return self._listed[place]


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
    """Tell where an app stands: its position, the commit that made it, and its tables by name."""

    position: Position
    last: CommitInfo | None
    tables: Mapping[str, TableStatus]


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
        (wanted,) = (self.tables[name] for name in self.view([table], at).bases)
        if not isinstance(wanted.root, Versioned):
            raise UnknownPosition(
                f"{table} keeps no history: .materialized_as({table!r}, history=...) makes it versioned; or read at= a position"
            )
        history, asked = history_of(wanted.root), _utc(time)
        view = Reader(self.changelog.spark, self.changelog.warehouse, self.changelog.app, [history]).view([history.name], at)
        topics = {node.topic.name for node in walk(wanted.root) if isinstance(node, Source)}
        commit = view.commit
        times = [when for (topic, _), when in commit.stream_times.items() if topic in topics] if commit else []
        if times and None not in times and asked < (oldest := min(t for t in times if t is not None) - wanted.root.history):
            raise UnknownPosition(f"{table} can't be read as of {asked.isoformat()}: its history goes back to {oldest.isoformat()}")
        return _alive(finish(wanted, view.states(history).selectExpr("key", f"{state_as_of(asked)} AS state")))

    def read_all(self, tables: Sequence[str] | None = None, at: At | None = None) -> dict[str, DataFrame]:
        """Read several tables, all by default, at one and the same position."""
        view = self.view(tables, at)
        return {name: view.rows(self.tables[name]) for name in view.bases}

    def changes(self, table: str, start: At, end: At | None = None) -> DataFrame:
        """Give what changed in a table from one position to another: `key`, `old`, `new`, one row for each key whose row differs.

        `old` and `new` are the value columns as a struct, null where there is no row. Positions of different epochs are compared
        through the commit where they forked.
        """
        older, newer = self.view([table], start), self.view([table], end)
        wanted = self.tables[table]
        common = _common(older, newer, wanted)
        touched = [v.changes(wanted, common, v.position.seq).select("key") for v in (older, newer) if v.position.seq > common]
        if not common and older.position.seq:  # of a past that they don't share, the changelog may be trimmed
            touched = [v.states(wanted).select("key") for v in (older, newer)]
        if not touched:
            touched = [newer.changes(wanted, 0, 0).select("key")]
        keys = materialise(reduce(DataFrame.unionByName, touched).selectExpr(f"{company(wanted)} AS key").distinct())
        values = "named_struct(" + ", ".join(f"'{n}', row.{quote(n)}" for n in wanted.value.names) + ")"
        sides = [
            finish(wanted, v.states(wanted, keys)).where("alive").selectExpr("key", f"{values} AS {name}")
            for v, name in ((older, "old"), (newer, "new"))
        ]
        return differing(*sides)

    def position(self) -> Position:
        """Give the app's newest position."""
        return self.changelog.head().position

    def status(self) -> AppStatus:
        """Tell where the app and each of its tables stand."""
        view = self.view()
        bases = view.bases
        waiting = sorted({b.seq + 1 for b in bases.values() if b.seq < view.position.seq})
        rows = self.changelog.rows(view.snapshot, f"c.kind = 'batch' AND seq IN ({', '.join(map(str, waiting))})") if waiting else []
        since = {r.seq: r.commit_time for r in rows if view.lineage.holds(r.epoch, r.seq)}
        now = datetime.now(UTC)
        return AppStatus(
            view.position, view.head.last,
            {
                name: TableStatus(
                    version=base.snapshot.version if base.snapshot else None, folded=Position(self.changelog.app, base.epoch, base.seq),
                    commits_behind=view.position.seq - base.seq, behind=now - since.get(base.seq + 1, now),
                    folded_rows=base.snapshot.frame().count() if base.snapshot else 0,
                ) for name, base in bases.items()
            },
        )  # fmt: skip

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
        bases = {name: self._pinned(self.tables[name], newest, known.position, head, snapshot) for name, newest in bases.items()}
        bases = {name: self._listed(self.tables[name], base) for name, base in bases.items()}
        return View(self.changelog, snapshot, head, head.lineage, known.position, bases, known.recent)

    def _listed(self, table: TableDef, base: Base) -> Base:
        """List a base's files, which stay what they are until the next fold."""
        return base if base.snapshot is None else replace(base, files=self.log(base_name(table)).whole(base.snapshot))

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
        snapshot = log.latest()
        number = None if snapshot is None else log.transaction_at(FOLD_LINE, snapshot.version)
        if snapshot is None or number is None:
            return _EMPTY
        return Base(snapshot, *split_number(number))

    def _pinned(self, table: TableDef, newest: Base, position: Position, head: Head, snapshot: Snapshot) -> Base:
        """Give the base to read a table from at a position: the newest one, unless that is beyond it or on a branch that was left."""
        base, lineage = newest, head.lineage.of_table(table.name, position.seq)
        if newest.snapshot is not None and (newest.seq > position.seq or not lineage.holds(newest.epoch, newest.seq)):
            base = self._older(table, position, lineage, snapshot)
            self._check_tail(table.name, base, position, lineage, snapshot)
        self._check_state(table, base)
        return self._with_tombstones(table, base, lineage, head.folds, snapshot)

    def deployed(self, fingerprint: str) -> Outline:
        """Outline the code that has folded the app's tables, of those that the topology has; `fingerprint` is the app's.

        What an earlier release folded, with no outline, counts as what the topology has, as far as its state is laid out the same.
        """
        found, dialect = {}, DIALECT
        for table in self.tables.values():
            snapshot = self.log(table.name).latest()
            if snapshot is None:
                continue
            if packed := snapshot.property(PLAN_PROPERTY):
                dialect, found[table.name] = OutlinedTable.unpack(packed)
            else:
                kept = (snapshot.property(STATE_PROPERTY) or table.state_column).rpartition("_")[2]
                found[table.name] = replace(OutlinedTable.of(table), state_version=kept, fingerprint="")
        return Outline(self.changelog.app, fingerprint, dialect, found, {})

    def _check_state(self, table: TableDef, base: Base) -> None:
        """Raise `StoreError` when a base keeps another state version, which can't be merged with the table's changes."""
        kept = table.state_column if base.snapshot is None else base.snapshot.property(STATE_PROPERTY)
        if kept != table.state_column:
            raise StoreError(
                f"table {table.name!r} ({table.location}) keeps its state as {table.state_column}, but "
                f"{self.log(base_name(table)).path} was folded as {kept}: rebuild it, with "
                f"`watertable rewind {self.changelog.app} --to earliest --apply`"
            )

    def _older(self, table: TableDef, position: Position, lineage: Lineage, snapshot: Snapshot) -> Base:
        """Find the newest base at or below a position, by the fold rows; the empty one when Delta can't go back to any."""
        name, log = base_name(table), self.log(base_name(table))
        for after in (max(0, position.seq - 2 * BUCKET), 0):
            marks = [
                m for row in self.changelog.rows(snapshot, f"c.kind = 'fold' AND {lineage.where(after, position.seq)}")
                for m in row.folds if m.table == name and m.seq <= position.seq and lineage.holds(m.epoch, m.seq)
            ]  # fmt: skip
            for mark in sorted(marks, key=lambda m: -m.seq)[:1]:
                if (pinned := log.at(mark.version)) is not None:
                    return Base(pinned, mark.epoch, mark.seq)
        return _EMPTY

    def _check_tail(self, name: str, base: Base, position: Position, lineage: Lineage, snapshot: Snapshot) -> None:
        """Make sure that every commit between an older base and the position is still in the changelog.

        Of the newest base, and of a table that never had one, trims see to that.
        """
        wanted = position.seq - max(base.seq, lineage.after)
        if wanted <= 0:
            return
        found = batches(snapshot, lineage, base.seq, position.seq).select("seq").distinct()
        there = found.agg(F.count("*").alias("n"), F.min("seq").alias("first")).head()
        assert there is not None
        if there["n"] != wanted:
            raise UnknownPosition(
                f"{name} can't be read at {position}: no version of its Delta table at or below it can be had any more, "
                f"and the changelog is trimmed up to seq {(there['first'] or position.seq + 1) - 1}; read at a later position"
            )

    def _with_tombstones(
        self, table: TableDef, base: Base, lineage: Lineage, folds: Sequence[FoldMark], snapshot: Snapshot
    ) -> Base:  # fmt: skip
        if not forgets(table) or base.snapshot is None:
            return base

        def best(marks: Sequence[FoldMark]) -> int:
            return max((m.tombstones_from for m in marks if m.table == table.name and m.seq <= base.seq), default=0)

        found = best([m for m in folds if m.seq == base.seq])
        for after in (base.seq - 1, 0):  # all of them, where the fold isn't confirmed because it died right after its merge
            if not found:
                rows = self.changelog.rows(snapshot, f"c.kind = 'fold' AND {lineage.where(after, base.seq)}")
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
                log = self.log(base_name(self.tables[names[0]]))
                number = log.transaction_at(FOLD_LINE, at) if log.at(at) is not None else None
                if number is None:
                    raise UnknownPosition(f"{log.path} has no version {at} that holds a fold and that Delta can still read")
                return Position(app, *split_number(number))
            case datetime():
                condition, what = f"c.commit_time <= {moment(_utc(at))}", f"the commit time {_utc(at).isoformat()}"
            case EventTime():
                condition, what = time_passed(at.time), f"the event time {at.time.isoformat()}"
            case _:
                condition, what = offsets_passed(at), f"the offsets {dict(at)}"
        head = self.changelog.head(snapshot)
        commits = batches(snapshot, head.lineage, 0, head.position.seq)
        row = commits.agg(F.expr(f"max(CASE WHEN {condition} THEN seq END)"), F.min("seq")).head()
        assert row is not None
        if row[0] is None:
            raise UnknownPosition(f"no commit of {app} is at or before {what}; the oldest one kept is {Position(app, 1, row[1] or 0)}")
        seq = int(row[0])
        return Position(app, head.lineage.epoch_of(seq), seq)


def read(
    spark: SparkSession, warehouse: str, app: Topology, tables: str | Sequence[str], at: At | None = None
) -> DataFrame | dict[str, DataFrame]:
    """Read a table of an app, or several at one position, fresh and exact: everything committed is in it, folded or not.

    Any other Delta reader sees each table whole too, but at its own folded position, which is at most the fold lag behind.
    """
    reader = Reader(spark, warehouse, app.app, app.tables)
    return reader.read(tables, at) if isinstance(tables, str) else reader.read_all(tables, at)


def differing(old: DataFrame, new: DataFrame) -> DataFrame:
    """Give the rows that differ between two frames (`key`, `old` and `key`, `new`): grouped, not joined, since null is a key, too."""
    both = old.unionByName(new, allowMissingColumns=True)
    rows = both.groupBy("key").agg(F.first("old", True).alias("old"), F.first("new", True).alias("new"))
    return rows.where("NOT (old <=> new)")


def changes(spark: SparkSession, warehouse: str, app: Topology, table: str, start: At, end: At | None = None) -> DataFrame:
    """Give what changed in a table between two positions: `key`, `old`, `new`; see `Reader.changes`."""
    return Reader(spark, warehouse, app.app, app.tables).changes(table, start, end)


def mortal(table: TableDef) -> bool:
    """Tell whether a key with a state can be without a row: deleted, refused by a filter, or not there on a side of a join."""
    return _mortal(table.alive, table.stages)


def forgets(table: TableDef) -> bool:
    """Tell whether a state without a row may be forgotten, once no earlier record can come.

    So it is where the state is one whole value: what comes later replaces it, what comes earlier loses. A join keeps the side that is
    there while the other isn't; an aggregate keeps what nulls that come later don't replace.
    """
    return mortal(table) and [(f.merge, f.lift) for f in table.state] == [(Merge.LAST, None)]


def hides(table: TableDef) -> bool:
    """Tell whether a state without a row must be kept (a sum goes on while a filter hides it): then states have a table beside.

    An emptied group is not hidden but gone: its state is zero, as if it had never been, so there is nothing to keep. The states of a
    foreign-key join, and of sliding windows, are none of their rows.
    """
    if isinstance(table.root, ForeignJoin) or table.sliding is not None:
        return True
    if isinstance(table.root, TableAggregate | Waiting):
        return any(isinstance(stage, Where) for stage in table.stages)
    return mortal(table) and not forgets(table)


def _mortal(alive: Expr | None, stages: Sequence[Stage]) -> bool:
    for stage in stages:
        if isinstance(stage, Where):
            return True
        if isinstance(stage, Match) and (stage.how is not How.OUTER or any(_mortal(s.alive, s.stages) for s in (stage.left, stage.right))):
            return True
    return alive is not None


def base_name(table: TableDef) -> str:
    """Name the Delta table that keeps a table's absolute states."""
    return f"__state_{table.name}" if hides(table) else table.name


def states_in(snapshot: Snapshot, table: TableDef, *more: str, files: Files | None = None) -> DataFrame:
    """Read the absolute states that a version of a base, or files of it, hold: `key`, `state`, `epoch`, `seq`, and more of its columns."""
    key = ", ".join(f"'{n}', {quote(n)}" for n in table.state_key.names)
    own = (f"named_struct({key}) AS key", "_wt.state AS state", "_wt.epoch AS epoch", "_wt.seq AS seq")
    return snapshot.frame(files).selectExpr(*own, *more)


def number_of(line: int, seq: int) -> int:
    """Give the number of a transaction: a fold's of epoch and seq, a writer's of generation and seq."""
    return line << SEQ_BITS | seq


def split_number(number: int) -> tuple[int, int]:
    """Split a transaction's number into epoch, or generation, and seq."""
    return number >> SEQ_BITS, number & ((1 << SEQ_BITS) - 1)


def earliest(rows: DataFrame, time: str) -> datetime | None:
    """Find the least of a column of times; a Spark job."""
    least = rows.agg(F.expr(f"unix_micros(min({time}))")).head()
    return None if least is None or least[0] is None else EPOCH + timedelta(microseconds=least[0])


def materialise(frame: DataFrame) -> DataFrame:
    """Cut a frame's lineage: it's computed once, by the first job that uses it, and from then on is data.

    State that was looked up must be data before it's written: a plan that still reads the changelog would be planned again with the
    write, and plans that grow from batch to batch end in a planner that takes seconds.
    """
    return frame.localCheckpoint(eager=False)


def _only(frame: DataFrame, keys: DataFrame, how: str, *, of: str = "key.") -> DataFrame:
    """Cut a frame by keys; its own key's columns are in its struct `key`, or beside the others."""
    fields = [c.name for c in keys.schema["key"].dataType.fields]  # type: ignore[attr-defined]  # it's a struct
    wanted = keys.select(*(F.col(f"key.{quote(n)}").alias(f"__k{i}") for i, n in enumerate(fields)))
    same: Column = reduce(lambda a, b: a & b, (F.col(f"{of}{quote(n)}").eqNullSafe(F.col(f"__k{i}")) for i, n in enumerate(fields)))
    return frame.join(F.broadcast(wanted), same, how)


def _alive(finished: DataFrame) -> DataFrame:
    return finished.where("alive").select("row.*")


def _common(older: View, newer: View, table: TableDef) -> int:
    """Give the last seq that two views share of a table."""
    return min(older.along(table).common(newer.along(table)), older.position.seq, newer.position.seq)


def _utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise UnknownPosition(f"{time!r} has no time zone; write datetime(..., tzinfo=UTC)")
    return time.astimezone(UTC)
