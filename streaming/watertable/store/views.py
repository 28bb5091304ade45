"""Read tables at one position: each as a version of its base plus the tail of changes that isn't folded into it, as states or as rows.

What a view has pinned never changes, so any frame of it may be computed at any time, and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from watertable.compiler import Make, anew
from watertable.compiler.algebra import Slices, change_struct, finish, home, merge, merge_by_time, spread, state_struct
from watertable.compiler.layout import moment
from watertable.plan.nodes import Stored
from watertable.plan.plan import TableDef, closing_of, folded_into, is_open
from watertable.plan.windows import EPOCH
from watertable.schema import OWN, quote
from watertable.store.bases import NEXT, ROWS_PROPERTY, Base, file_bytes, forgets, goes_by_time, hides, states_in
from watertable.store.changelog import GATHERED_PREFIX, Changelog
from watertable.store.commits import CommitInfo, Head, Lineage, Partition, Position
from watertable.store.deltalog import Files, Snapshot

if TYPE_CHECKING:
    from pyspark.sql import Column

_OUTER: Final = 0.01
"""The part of rows at either end that says nothing of how long a time all are of: some records have a wrong one, of 1970 or 2099."""
_DUE_STEP: Final = timedelta(minutes=1)
WHOLE_BASE: Final = 4 << 20
"""Bytes of a base up to which it is read whole, whatever is asked of it."""
ONE_TASK: Final = 4 << 20
"""Bytes of a base and its tail up to which they are merged in one task."""
SMALL_TAIL: Final = 16 << 20
"""Bytes of what a base lacks, spread to its windows, up to which it is broadcast, and the base is neither sorted nor shuffled."""


@dataclass(frozen=True, slots=True)
class Known:
    """Hold what an app's writer knows of its own commits, so that nobody beside it has to look for them."""

    head: Head
    position: Position


@dataclass(frozen=True, slots=True)
class View:
    """Hold tables of an app pinned at one position."""

    changelog: Changelog
    snapshot: Snapshot
    head: Head
    lineage: Lineage
    position: Position
    bases: Mapping[str, Base]
    often: bool = False
    """Whether its bases are read again and again between two folds, so that their files are listed once, however many."""
    one_task: int = ONE_TASK
    """Bytes up to which a table's rows are merged in one task."""
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
        return self.changelog.commit(self.snapshot, self.lineage, seq)

    def tail(self, table: TableDef, *, each: bool = False) -> DataFrame:
        """Read the changes that the base lacks: `key`, `state`, `st`, `epoch`, `seq`; several rows a key, of `each` commit if asked for.

        Where states may be forgotten, tombstones that an earlier record could still meet are among them, folded or not.
        """
        rows, dead = self._new(table, each=each), self.tombstones(table)
        return rows if dead is None else rows.unionByName(dead)

    def tombstones(self, table: TableDef, upto: int | None = None) -> DataFrame | None:
        """Read those of commits up to one, the base's by default, that an earlier record could still meet; None where none is known.

        They are looked for from the base's `tombstones_from` on. A fold may have gathered there all that there were until then.
        """
        after, end = self._of_tombstones(table, upto)
        came, gathered = self.tombstone_files(table, upto)
        if not came.number and not gathered.number:
            return None
        rows = finish(table, self.changes(table, after, end)).where("NOT alive").drop("alive", "row")
        return rows.unionByName(self._read(table, gathered, after, end)) if gathered.number else rows

    def tombstone_files(self, table: TableDef, upto: int | None = None) -> tuple[Files, Files]:
        """List the files that `tombstones` reads: the commits' own, and those of a fold that gathered."""
        after, end = self._of_tombstones(table, upto)
        return self._files(table, after, end), self._files(table, after, end, GATHERED_PREFIX)

    def new_bytes(self, table: TableDef) -> int:
        """Add up the files of the commits that the base lacks; 0 tells that none of them changed the table."""
        return self._files(table, self.bases[table.name].seq, self.position.seq).bytes

    def tail_bytes(self, table: TableDef) -> int:
        """Add up the files of the tail; 0 tells that there is no row in it."""
        return self.new_bytes(table) + sum(files.bytes for files in self.tombstone_files(table))

    def spread_bytes(self, table: TableDef) -> int:
        """Add up the files of the commits that the base lacks, each as often as a delta in it may be for a window of its own."""
        windows = folded_into(table.root)
        return self.new_bytes(table) * (1 if windows is None else windows.per_record)

    def has_few_changes(self, table: TableDef) -> bool:
        """Tell whether what the base lacks is so little that it is broadcast, and the base neither sorted nor shuffled."""
        return self.spread_bytes(table) <= SMALL_TAIL

    def base_bytes(self, table: TableDef) -> int:
        """Add up the files of the base."""
        base, files = self.bases[table.name].snapshot, self._of_base(table)
        return files.bytes if files is not None else 0 if base is None else base.bytes

    def whole_bytes(self, table: TableDef) -> int:
        """Add up the files of the base and of the tail, spread to its windows."""
        dead = sum(files.bytes for files in self.tombstone_files(table))
        return self.spread_bytes(table) + dead + self.base_bytes(table)

    def states(self, table: TableDef, keys: DataFrame | None = None, *, of_tail: bool = False) -> DataFrame:
        """Give absolute states (`key`, `state`, `epoch`, `seq`), of the given keys or of all.

        Base and tail are unioned and grouped once; with `keys` (a column `key`, distinct; of sessions, their groups) each is cut by a
        broadcast of them first. `of_tail` says that the keys are all those that the base lacks changes of, which then needn't be cut.
        """
        base = self.base_states(table)
        base = base if base is None or keys is None else only(base, keys, "left_semi")
        if base is not None and not self.tail_bytes(table):
            return base
        rows, dead = self._new(table), self.tombstones(table)
        rows = rows if keys is None or of_tail else only(rows, keys, "left_semi")
        if dead is not None:
            rows = rows.unionByName(dead if keys is None else only(dead, keys, "left_semi"))
        rows = rows.select("key", "state", "epoch", "seq")
        return merge(table, self._at_hand(rows if base is None else base.unionByName(rows), self.whole_bytes(table)))

    def states_since(self, table: TableDef, seq: int, states: DataFrame, make: Make = anew) -> DataFrame:
        """Give the absolute states of all keys (`key`, `state`) from those at an earlier seq, over the same base, which are data."""
        if not self._files(table, seq, self.position.seq).bytes:
            return states
        size = self.whole_bytes(table)

        def steps(states: DataFrame, deltas: DataFrame) -> DataFrame:
            return merge(table, self._at_hand(states.unionByName(spread(table, deltas).select("key", "state")), size))

        came = self.deltas(table, seq, self.position.seq)
        return materialise(make(("states", table.name, self._is_one_task(size)), steps, states, came))

    def first_window(self, table: TableDef) -> datetime | None:
        """Give the start of the first window in the tail of a windowed table; a Spark job over the tail's keys."""
        return earliest(self.deltas(table, self.bases[table.name].seq, self.position.seq), "key.window_start")

    def anew(self, table: TableDef, files: Files | None = None) -> DataFrame:
        """Give the absolute states to write a base anew from: of all keys; or of those in some of its files and in the tail.

        In the latter case, the tail has none that is in another file. Many rows of windows come in order of time, a file of them from each
        partition: the tails that are still to come are of the last windows, and leave the files of all others alone. One more Spark job.
        Of other tables, keys that a small tail hasn't are taken as the base has them, neither sorted nor shuffled.
        """
        pinned = self.bases[table.name].snapshot
        if files is None:
            base, size = self.base_states(table), self.whole_bytes(table)
        else:
            base = states_in(pinned, table, files=files) if pinned is not None and files.number else None
            size = self.spread_bytes(table) + files.bytes
        number = size // file_bytes(size)
        if goes_by_time(table) and number > 1:
            deltas = self.deltas(table, self.bases[table.name].seq, self.position.seq).select("key", "state", "epoch", "seq")
            rows = deltas if base is None else base.unionByName(deltas)
            if (slices := _slices(rows, number)) is not None:
                return self._at_hand(merge_by_time(table, rows, slices), size)
        if files is None and base is not None and self.new_bytes(table) and self._is_little_changed(table):
            touched = self.touched(table)
            return self._at_hand(only(base, touched, "left_anti").unionByName(self.states(table, touched, of_tail=True)), size)
        if files is None:
            return self.states(table)
        tail = self.tail(table).select("key", "state", "epoch", "seq")
        return merge(table, self._at_hand(tail if base is None else base.unionByName(tail), size))

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
                rows, closed = only(rows, groups, "left"), f"{OWN}_0 IS NOT NULL OR {closed}"
            rows = rows.where(closed)
        else:
            time = "at" if isinstance(table.root, Stored) else NEXT  # when a punctuator is due, or a window closes
            rows = only(states_in(base, table, time), keys, "left").where(f"{OWN}_0 IS NOT NULL OR {time} < {moment(upto)}")
        return merge(table, rows.select("key", "state", "epoch", "seq").unionByName(tail))

    def by_clock(self, timers: TableDef) -> dict[Partition, datetime]:
        """Give, by partition, the first time for which a punctuator is scheduled by the wall clock."""
        tail, base = self.tail(timers).select("key", "state", "epoch", "seq"), self.base_states(timers)
        rows = tail if base is None else tail.unionByName(base.where("state.row.value.since IS NOT NULL"))
        waiting = merge(timers, rows).selectExpr("state.row.value.*").where("since IS NOT NULL")
        found = waiting.groupBy("topic", "partition").agg(F.expr("unix_micros(min(at)) AS at")).collect()
        return {(row["topic"], row["partition"]): EPOCH + timedelta(microseconds=row["at"]) for row in found}

    def touched(self, table: TableDef) -> DataFrame:
        """List the keys of changes that the base lacks; of sessions, their groups."""
        return self._new(table).selectExpr(f"{home(table)} AS key").distinct()

    def absorbed(self, table: TableDef, groups: DataFrame, states: DataFrame) -> DataFrame:
        """Give the dead sessions of these groups, as `states` gives those alive: their starts, without an end or a state.

        Other folds may have seen sessions that neither the base nor `states` has. Each of them began where one of the base did, or one
        of the tail; so whatever began there, and isn't the start of a session now, is gone.
        """
        names, base = table.key.names[:-1], self.base_states(table)
        began = self.tail(table).select("key")
        began = began if base is None else began.unionByName(only(base, groups, "left_semi").select("key"))
        starts = [frame.select(*(F.col(f"key.{quote(n)}").alias(n) for n in names)) for frame in (began, states)]
        key = "".join(f"'{n}', {quote(n)}, " for n in names) + "'window_end', CAST(NULL AS TIMESTAMP)"
        nothing = f"CAST(NULL AS {state_struct(table).sql()}) AS state"
        place = (f"{self.position.epoch} AS epoch", f"{self.position.seq}L AS seq")
        return starts[0].subtract(starts[1]).selectExpr(f"named_struct({key}) AS key", nothing, *place)

    def base_states(self, table: TableDef) -> DataFrame | None:
        """Read the states that are in the base; None when it is empty."""
        base = self.bases[table.name]
        return None if base.snapshot is None else states_in(base.snapshot, table, files=self._of_base(table))

    def rows(self, table: TableDef) -> DataFrame:
        """Read the table as its columns.

        Few rows are merged in one task. Of more, a small tail leaves the base unshuffled: rows of keys that it hasn't are read as they are.
        """
        base = self.bases[table.name].snapshot
        if base is None or hides(table) or base.property(ROWS_PROPERTY) != table.fingerprint:
            return shown(finish(table, self.states(table)))
        kept = base.frame(self._of_base(table)).select(*(quote(n) for n in table.columns.names))
        if not self.new_bytes(table):
            return kept
        if not self._is_little_changed(table):
            return shown(finish(table, self.states(table)))
        touched = self.touched(table)
        untouched = only(kept, touched, "left_anti", of="")
        return untouched.unionByName(shown(finish(table, self.states(table, touched, of_tail=True))))

    def changes(self, table: TableDef, after: int, upto: int, *, each: bool = False) -> DataFrame:
        """Read the changelog's rows of a table in commits (after, upto] of this lineage, those of `each` commit apart if asked for."""
        return spread(table, self.deltas(table, after, upto), each=each)

    def deltas(self, table: TableDef, after: int, upto: int) -> DataFrame:
        """Read the changelog's rows of a table in commits (after, upto] as they were written."""
        return self._read(table, self._files(table, after, upto), after, upto)

    def _read(self, table: TableDef, files: Files, after: int, upto: int) -> DataFrame:
        column = quote(table.state_column)
        if files.number:
            rows = self.snapshot.frame(files)
            rows = rows if files.whole else rows.where(self.along(table).where(after, upto))
        else:
            nothing = f"CAST(NULL AS {change_struct(table).sql()}) AS {column}"
            rows = self.changelog.spark.range(0).selectExpr(nothing, "0 AS epoch", "0L AS seq")
        return rows.selectExpr(f"{column}.key AS key", f"{column}.state AS state", f"{column}.st AS st", "epoch", "seq")

    def _new(self, table: TableDef, *, each: bool = False) -> DataFrame:
        """Read the changes that the base lacks, as `tail` does."""
        return self.changes(table, self.bases[table.name].seq, self.position.seq, each=each)

    def _of_tombstones(self, table: TableDef, upto: int | None) -> tuple[int, int]:
        """Give the commits (after, upto] among which folded tombstones are looked for; none where the table keeps none."""
        base = self.bases[table.name]
        end = base.seq if upto is None else upto
        return (max(0, base.tombstones_from - 1) if forgets(table) else end), end

    def whole(self, table: TableDef) -> DataFrame:
        """Give all that a table without a base keeps as the changes of one commit: `key`, `state`, `st`."""
        return merge(table, self.deltas(table, 0, self.position.seq), "max(st) AS st").select("key", "state", "st")

    def _is_little_changed(self, table: TableDef) -> bool:
        """Tell whether the keys in the tail are few enough to be broadcast, and base and tail too much to be merged in one task."""
        return self.has_few_changes(table) and self.whole_bytes(table) > ONE_TASK

    def _at_hand(self, rows: DataFrame, size: int) -> DataFrame:
        """Bring rows of so many bytes together in one task where they are few: what is made of them by key then needs no shuffle."""
        return rows.coalesce(1) if self._is_one_task(size) else rows

    def _is_one_task(self, size: int) -> bool:
        return size <= self.one_task

    def _of_base(self, table: TableDef) -> Files | None:
        """List the files of a base that is small or read often; of others, Delta leaves out those that the query on it doesn't need."""
        base = self.bases[table.name]
        if base.snapshot is None or (not self.often and base.snapshot.bytes > WHOLE_BASE):
            return None
        return base.snapshot.whole

    def _files(self, table: TableDef, after: int, upto: int, prefix: str = "") -> Files:
        """List the changelog's files for a table and a range of commits, once a view; with a prefix, of what is kept beside it."""
        if after >= upto or table.state_column not in self.snapshot.columns:
            return Files((), 0, 0)
        place = (wanted := prefix + table.name, after, upto)
        if place not in self._listed:
            lineage = self.along(table)
            known = self.changelog.added(self.snapshot, lineage, after, upto, lambda name: name == wanted)
            self._listed[place] = known or self.changelog.listed(self.snapshot, f"`table` = '{wanted}' AND {lineage.where(after, upto)}")
        return self._listed[place]


def earliest(rows: DataFrame, time: str) -> datetime | None:
    """Find the least of a column of times; a Spark job."""
    least = rows.agg(F.expr(f"unix_micros(min({time}))")).head()
    return None if least is None or least[0] is None else EPOCH + timedelta(microseconds=least[0])


def _slices(rows: DataFrame, number: int) -> Slices | None:
    """Cut the time in which windows of these rows start into slices of one length, but for the first and the last; a Spark job."""
    found = rows.agg(F.expr(f"percentile_approx(unix_micros(key.window_start), array({_OUTER}D, {1 - _OUTER}D))")).head()
    if found is None or found[0] is None:
        return None
    first, last = found[0]
    return Slices(first, max(1, (last - first) // number), number)


def materialise(frame: DataFrame) -> DataFrame:
    """Cut a frame's lineage: it's computed once, by the first job that uses it, and from then on is data.

    State that was looked up must be data before it's written: a plan that still reads the changelog would be planned again with the
    write, and plans that grow from batch to batch end in a planner that takes seconds.
    """
    return frame.localCheckpoint(eager=False)


def only(frame: DataFrame, keys: DataFrame, how: str, *, of: str = "key.") -> DataFrame:
    """Cut a frame by keys; its own key's columns are in its struct `key`, or beside the others."""
    fields = [c.name for c in keys.schema["key"].dataType.fields]  # type: ignore[attr-defined]  # it's a struct
    wanted = keys.select(*(F.col(f"key.{quote(n)}").alias(f"{OWN}_{i}") for i, n in enumerate(fields)))
    same: Column = reduce(lambda a, b: a & b, (F.col(f"{of}{quote(n)}").eqNullSafe(F.col(f"{OWN}_{i}")) for i, n in enumerate(fields)))
    return frame.join(F.broadcast(wanted), same, how)


def shown(finished: DataFrame) -> DataFrame:
    """Give the rows that readers see, as their columns."""
    return finished.where("alive").select("row.*")
