"""Fold a table's changelog into its Delta table, so that any Delta reader sees the table, and ours reads a short tail.

A fold pins a base with the (epoch, seq) it has folded, computes the *absolute* rows at a later seq S of every key that changed in
between, and merges them where they are newer than what is there, under the transaction (`watertable/fold`, epoch << 40 | S). Absolute
rows make the order of folds irrelevant: a stale one changes nothing, whether Delta skips its transaction, refuses its race, or finds no
older row. A `__commit` row then confirms (table, version, epoch, S) of all tables of a round; a fold that dies before that is found by
its transaction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from watertable import failpoints
from watertable.compiler.algebra import finish, merge, stays
from watertable.compiler.layout import moment
from watertable.compiler.versions import remembered
from watertable.errors import Fenced, StoreError
from watertable.plan.nodes import History, JoinBuffer
from watertable.plan.plan import DONE, TableDef, closing_of, delay_of, how_of, is_open, topics_above
from watertable.plan.windows import MILLISECOND, microseconds
from watertable.schema import quote
from watertable.session import said
from watertable.store.bases import (
    BEFORE,
    FOLD_LINE,
    NEXT,
    ROWS_PROPERTY,
    STATE_PROPERTY,
    Base,
    base_name,
    goes_by_time,
    hides,
    number_of,
    split_number,
    states_in,
)
from watertable.store.changelog import GATHERED_PREFIX, Part, past_of, table_part
from watertable.store.commits import BUCKET, FORMAT, GATHERED, CommitInfo, FoldMark, now_after
from watertable.store.deltalog import JVM_ERRORS, Files, Snapshot, conflict
from watertable.store.reader import Reader
from watertable.store.views import Known, View, earliest, materialise

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_CONF: Final = {
    "spark.databricks.delta.merge.materializeSource": "none",  # the source is checkpointed already
    "spark.databricks.delta.stalenessLimit": "0",
}
OVERWRITE_FROM: Final = 0.3
"""The part of a base's bytes from which a tail is folded by writing the table anew: a MERGE would read it thrice, and shuffle it.

Not where the tail is of the last windows only, in less than half of the base: those are written anew.
"""
SMALL_BASE: Final = 4 << 20
"""Bytes of a base up to which it is always written anew: that is one Spark job, where a MERGE is a dozen."""
IN_ORDER: Final = 4
"""How many times less that is of a base that goes by time: in order, rows take so much less room, and the last windows are often few."""
ONCE: Final = 4
"""How many times that a base may be for its first fold after a rewind to write it anew: to give it its older files again, and merge, takes
longer. A fold that comes each half a minute would leave too many dead files.
"""
OVERWRITE_WINDOWS: Final = 4
"""How many times its tail a windowed table's last windows may be for them to be written anew: a MERGE goes through the tail so often."""
_KEPT: Final = "kept as it was"
"""Begins the note of a base's commit that says nothing new."""
_OVERFLOWS: Final = ("ARITHMETIC_OVERFLOW", "NUMERIC_VALUE_OUT_OF_RANGE")
_FORBIDDEN: Final = {
    "DELTA_CANNOT_MODIFY_APPEND_ONLY": "UNSET TBLPROPERTIES ('delta.appendOnly')",
    "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES": "DROP CONSTRAINT that one",
}
"""What somebody may have forbidden a base to be, as Delta names it, and what of ALTER TABLE allows it again."""
_LAID_OUT_BY: Final = (STATE_PROPERTY, ROWS_PROPERTY)
"""The properties of a base that say which columns it has."""
_INDEXED: Final = "delta.dataSkippingNumIndexedCols"
_TASKS: Final = "spark.sql.shuffle.partitions"
_SPLIT: Final = "spark.sql.files.maxPartitionBytes"
_FILE_ROWS: Final = "spark.sql.files.maxRecordsPerFile"
SMALL_FOLD: Final = 64 << 20
"""Bytes up to which a fold isn't planned again at each shuffle: for so little, that costs more than it saves.

Nor is it more than one task beside a stream, each short task of which would wait for the end of a long one if those were on all cores.
"""
SHORT_TASK: Final = 4 << 20
"""Bytes for each task of a larger fold beside a stream: it takes all cores, in tasks of a second or two that the stream's wait for."""
MANY_TOMBSTONES: Final = 4 << 20
"""Bytes of changes up to which the tombstones in them are left where they are."""
OPENED: Final = 64 << 10
"""As many bytes as take as long to read as one file to open."""
MOST_TASKS: Final = 200
FILE_ROWS: Final = 500_000
"""Windows in a file at most: a task that writes them in order of time begins another."""


@dataclass(frozen=True, slots=True)
class TableFold:
    """Hold what a fold of one table came to: its mark, and the milliseconds that it took."""

    mark: FoldMark
    ms: int


class Folder:
    """Fold the tables of one app; any number of folders, in any process, may work at once."""

    def __init__(self, spark: SparkSession, warehouse: str, app: str, tables: Sequence[TableDef], horizon: timedelta) -> None:
        for name, value in _CONF.items():
            spark.conf.set(name, value)
        self.spark, self.horizon = spark, horizon
        self.reader = Reader(spark, warehouse, app, tables)
        self.changelog = self.reader.changelog
        self._tasks, self._split = str(spark.conf.get(_TASKS)), str(spark.conf.get(_SPLIT))
        self._lock = threading.Lock()  # a MERGE takes its transaction from the session's settings
        self._marks: tuple[FoldMark, ...] = ()

    def fold(self, table: str, upto: int | None = None) -> int | None:
        """Fold a table up to a seq, the app's newest by default; give the seq folded.

        None says that there was nothing to do, or that another fold got there first.
        """
        view = self.reader.view([table])
        if upto is not None and view.bases[table].seq < upto < view.position.seq:
            view = self.reader.view([table], replace(view.position, seq=upto))
        elif upto is not None and upto <= view.bases[table].seq:
            return None
        done = self._round(view).get(table)
        return done.mark.seq if done else None

    def fold_all(
        self, tables: Sequence[str] | None = None, known: Known | None = None, stop: Callable[[], bool] = lambda: False,
        *, beside: bool = False,
    ) -> Mapping[str, TableFold]:  # fmt: skip
        """Fold several tables, all by default, to one position, and confirm them in one commit; give those that were folded.

        `known` is what the app's writer remembers, which spares looking for it; `stop` ends the round before its next table. `beside` says
        that a stream is at work, which is to have all cores but one wherever one is enough for a fold.
        """
        names = list(self.reader.tables) if tables is None else tables
        if known is None:
            view = self.reader.view(names)
        else:
            marks = (m for m in self._marks if known.head.lineage.holds(m.epoch, m.seq))
            head = replace(known.head, folds=(*known.head.folds, *marks))
            view = self.reader.view_for(names, replace(known, head=head))
        return self._round(replace(view, one_task=SMALL_FOLD) if beside else view, stop)

    def _round(self, view: View, stop: Callable[[], bool] = lambda: False) -> Mapping[str, TableFold]:
        failpoints.hit("fold.after_pin")
        done: dict[str, TableFold] = {}
        gathered = list[Part]()
        for name in view.bases:
            if stop():
                break
            table, began, mark = self.reader.tables[name], time.monotonic(), None
            with self._lock:
                version = self._fold(table, view)
                if version is not None:
                    needed, parts = self._tombstones(table, view)
                    mark = FoldMark(base_name(table), version, view.position.epoch, view.position.seq, needed)
                    gathered += parts
                if hides(table) and not is_open(table):
                    self._publish(table)
            if mark is not None:
                done[name] = TableFold(mark, round((time.monotonic() - began) * 1000))
                failpoints.hit("fold.after_merge")
        if done:
            self._confirm(tuple(fold.mark for fold in done.values()), view, view.position.epoch, view.position.seq, gathered)
            failpoints.hit("fold.after_confirm")
        return done

    def _fold(self, table: TableDef, view: View) -> int | None:
        """Fold one table; give the version that it is in, or None."""
        base, position, name = view.bases[table.name], view.position, base_name(table)
        newest = self.reader.newest(table)
        ancestor = newest.snapshot is not None and view.along(table).passes(newest.epoch, newest.seq)
        number = number_of(position.epoch, position.seq)
        done = newest.seq - newest.put_back  # what somebody has put back, or changed, is written once more
        if number_of(newest.epoch, done) >= number or (ancestor and done >= position.seq):
            return None  # another fold got there first, or the app has left this epoch
        outdated = newest.put_back or (base.snapshot is not None and base.snapshot.property(ROWS_PROPERTY) != table.fingerprint)
        tail, size = view.new_bytes(table), 0 if base.snapshot is None else base.snapshot.bytes
        same = tail == 0 and ancestor and not outdated
        if same and position.seq - newest.seq < BUCKET:
            return None  # a commit of the base would say nothing new
        small = SMALL_BASE // (IN_ORDER if goes_by_time(table) else 1)
        try:
            kept = self._keep(table, view, newest)
            base, newest = kept if _version(base.snapshot) == _version(newest.snapshot) else base, kept
            if same:  # an empty commit lets trims go on
                self._stamp(name, newest, number, str(position))
            elif base.snapshot is None or outdated or size <= small or not _alike(base, newest):
                self._write_whole(table, view, number, newest)
            else:
                first = view.first_window(table) if goes_by_time(table) else None
                last = None if first is None else base.snapshot.files(f"window_start >= {moment(first)}")
                everywhere = last is None or last.bytes > size / 2
                if everywhere and (tail > OVERWRITE_FROM * size or (not ancestor and size <= ONCE * SMALL_BASE)):
                    self._write_whole(table, view, number, newest)
                else:
                    since = base.snapshot.version
                    if newest.epoch != position.epoch or not ancestor:
                        since = self._inherit(name, newest, None if ancestor else base, position.epoch)
                    self._fold_into(table, view, first, last, number, since)
        except Fenced:
            return None
        except JVM_ERRORS as error:
            if conflict(error) is not None:
                return None
            if any(name in str(error) for name in _OVERFLOWS):
                raise StoreError(
                    f"table {table.name!r} ({table.location}) can't be folded up to {position}: one of its sums leaves its type. Add up "
                    f"DECIMALs with more room there, and rewind under that code: `watertable rewind {position.app} --to earliest --apply`"
                ) from error
            self._refuse_forbidden(table, name, error)
            raise
        return self._made(name, number)

    def _refuse_forbidden(self, table: TableDef, name: str, error: Exception) -> None:
        """Raise `StoreError` where a fold failed at what somebody has forbidden a Delta table: to be changed, or to have such a row."""
        if (way := next((way for kind, way in _FORBIDDEN.items() if kind in str(error)), None)) is not None:
            path = self.changelog.base_path(name)
            raise StoreError(
                f"table {table.name!r} ({table.location}) can't be folded: {path} is forbidden what it has become: {said(error)}. Nothing "
                f"committed is lost. Allow it again, and folds go on: `ALTER TABLE delta.`{path}` {way}`; a rule of a stream keeps rows out"
            ) from error

    def _inherit(self, name: str, newest: Base, older: Base | None, epoch: int) -> int:
        """Make a base an epoch's own before parts of it are written, and give the version; raise `Fenced` if it isn't the newest any more.

        It is stamped as it is, or given the files of an older version of it. Delta takes no fold of a lesser number from then on: a folder
        of the epoch that was left, at work until now, would leave rows that nobody else writes again.
        """
        if older is None:
            return self._stamp(name, newest, number_of(epoch, newest.seq), f"epoch {epoch} folds from here")
        assert newest.snapshot is not None
        assert older.snapshot is not None
        number, since = number_of(epoch, older.seq), newest.snapshot.version
        return self.reader.log(name).take_back(older.snapshot, line=FOLD_LINE, number=number, since=since)

    def _keep(self, table: TableDef, view: View, newest: Base) -> Base:
        """Make a base that is old the newest version once more before another takes its place, and give it.

        Delta keeps a version for so long after it was made, and positions are read from this one until now: a table that seldom changes has
        had no other since. It is confirmed where that fold was, beside which it is looked for; be it in an epoch that was left, to which an
        undo leads back.
        """
        if newest.snapshot is None or not newest.seq:
            return newest
        name, snapshot = base_name(table), newest.snapshot
        log, version = self.reader.log(name), snapshot.version
        if time.time() - snapshot.timestamp / 1000 > BEFORE.total_seconds():
            number = number_of(newest.epoch, newest.seq)
            if version == newest.since:
                version = self._stamp(name, newest, number, f"{_KEPT} until {view.position}")
            else:
                version = log.take_back(snapshot, line=FOLD_LINE, number=number, since=newest.since)
            latest = log.latest()
            if latest is None or latest.version != version:
                raise Fenced(f"another fold of {name} was quicker")
            snapshot = latest
        elif (commit := log.commit(version)) is None or not (commit.user_metadata or "").startswith(_KEPT):
            return newest  # else who kept it has died, perhaps before it was confirmed
        lineage = view.head.lineage_of(newest.epoch).of_table(table.name, newest.seq)
        known = self.reader.with_tombstones(table, newest, lineage, (), view.snapshot)
        mark = FoldMark(name, version, newest.epoch, newest.seq, known.tombstones_from)
        self._confirm((mark,), view, lineage.epoch_of(newest.seq), newest.seq)
        return replace(newest, snapshot=snapshot, since=snapshot.version)

    def _stamp(self, name: str, newest: Base, number: int, note: str) -> int:
        """Make an empty commit of a number to a base, and give its version; raise `Fenced` if it isn't the newest any more."""
        assert newest.snapshot is not None
        rows = newest.snapshot.frame().limit(0)
        return self.reader.log(name).append(rows, line=FOLD_LINE, number=number, since=newest.snapshot.version, note=note).version

    def _write_whole(self, table: TableDef, view: View, number: int, newest: Base) -> None:
        """Write a base anew; `newest` is what it was when this fold began."""
        size = view.whole_bytes(table)
        self._plan_for(view, size, size)
        frame = self._live(table, view, _shaped(table, view.anew(table))).where("_wt_alive").drop("_wt_alive")
        failpoints.hit("fold.before_merge")
        self._overwrite(table, base_name(table), frame, number, newest.since)

    def _fold_into(self, table: TableDef, view: View, first: datetime | None, last: Files | None, number: int, since: int) -> None:
        """Write the last windows of a windowed table anew, from the first one in the tail on, where they are few; else merge the tail.

        Time goes on, so most of a tail is windows that the base hasn't, or that are its last ones. What is written is absolute, and has all
        that any fold up to an earlier seq has written: so the order of folds is as irrelevant as where whole tables are written.
        """
        tail, base = view.new_bytes(table), view.bases[table.name].snapshot
        if first is not None and last is not None:
            spread = view.spread_bytes(table)
            if last.bytes <= max(SMALL_BASE, OVERWRITE_WINDOWS * spread):
                self._plan_for(view, spread + last.bytes, spread + last.bytes)
                frame = _shaped(table, view.anew(table, last)).where("_wt_alive").drop("_wt_alive")
                failpoints.hit("fold.before_merge")
                return self._overwrite(table, base_name(table), frame, number, since, last, f"window_start >= {moment(first)}")
        self._plan_for(view, tail, tail + (base.bytes if base is not None else 0))
        return self._merge(table, view, number, first)

    def _plan_for(self, view: View, changed: int, whole: int) -> None:
        """Plan the next fold for so many bytes: in one task where the whole is small; where much changes, in short ones beside a stream.

        And with no stream beside it as Spark finds out on the way.
        """
        short = SMALL_FOLD <= view.one_task < changed
        tasks = str(min(MOST_TASKS, max(int(self._tasks), changed // SHORT_TASK))) if short else self._tasks
        self.spark.conf.set(_TASKS, "1" if whole <= view.one_task else tasks)
        self.spark.conf.set(_SPLIT, str(SHORT_TASK) if short else self._split)
        self.spark.conf.set("spark.sql.adaptive.enabled", str(changed > SMALL_FOLD and not short).lower())

    def _publish(self, table: TableDef) -> None:
        """Write the table that readers see from the states kept beside it, where it is behind them.

        Where no state is ever let go, those that changed since say all; else, and where states are not those of rows, the table is written
        anew.
        """
        states, log = self.reader.newest(table), self.reader.log(table.name)
        shown = log.latest()
        number = number_of(states.epoch, states.seq)
        held = None if shown is None else log.held_at(FOLD_LINE, shown.version)
        done, put_back = (0, False) if held is None else (held.number or 0, held.put_back)
        if states.snapshot is None or done - put_back >= number:
            return
        if shown is not None:
            self.reader.check_columns(table, table.name, shown)
        rows = finish(table, states_in(states.snapshot, table))
        epoch, seq = split_number(done)
        apart = stays(table) is not None or table.sessions is not None or table.sliding is not None
        whole = apart or put_back or epoch != states.epoch or shown is None or shown.bytes <= SMALL_BASE
        whole = whole or (shown is not None and shown.property(ROWS_PROPERTY) != table.fingerprint)
        try:
            if whole:
                kept = rows.where("alive").selectExpr("row.*", "named_struct('seq', seq, 'epoch', epoch) AS _wt")
                self._overwrite(table, table.name, kept, number, _version(shown))
            else:
                changed = _columns(table, rows.where(f"seq > {seq}"), "named_struct('seq', seq, 'epoch', epoch)")
                self._merge_rows(table, table.name, changed.localCheckpoint(), number)
        except Fenced:
            return  # another folder was quicker
        except JVM_ERRORS as error:
            if conflict(error) is None:
                self._refuse_forbidden(table, table.name, error)
                raise

    def _merge(self, table: TableDef, view: View, number: int, first: datetime | None) -> None:
        """Merge the absolute rows of the keys in the tail where they are newer than what is there; `first` is its first window."""
        touched = materialise(view.touched(table))
        states = view.states(table, touched, of_tail=True)
        if table.sessions is not None:
            states = materialise(states)
            states = states.unionByName(view.absorbed(table, touched, states))
        source = self._live(table, view, _shaped(table, states)).localCheckpoint()
        failpoints.hit("fold.before_merge")
        reached = self._reached(view, table) if isinstance(table.root, JoinBuffer | History) else None
        expired = None if reached is None else f"t._wt_until < {moment(reached)}"
        if is_open(table):
            expired = _over(table, self._reached(view, table), "t.")
        few = view.has_few_changes(table) and not any(f.type.kind == "array" for f in table.state)
        self._merge_rows(table, base_name(table), F.broadcast(source) if few else source, number, expired, first)

    def _live(self, table: TableDef, view: View, shaped: DataFrame) -> DataFrame:
        """Let go of what waits for nothing any more: in the buffer of a join, in a history, in a window whose row was given."""
        if is_open(table) and (over := _over(table, self._reached(view, table))) is not None:
            return shaped.withColumn("_wt_alive", F.expr(f"_wt_alive AND NOT ({over})"))
        if isinstance(table.root, History):
            return remembered(table.root, shaped, self._reached(view, table))
        return waiting(table.root, shaped, self._reached(view, table)) if isinstance(table.root, JoinBuffer) else shaped

    def _reached(self, view: View, table: TableDef) -> datetime | None:
        """Give the stream time that all which still comes to a table has at least; None while a partition that feeds it has none."""
        topics, delay = topics_above(table.node), delay_of(table.node)
        if isinstance(table.root, History):
            topics, delay = topics | {*table.root.topics}, max(delay, table.root.delay)
        last = view.commit
        times = [time for (topic, _), time in last.stream_times.items() if topic in topics] if last else []
        return None if not times or None in times else min(t for t in times if t is not None) - delay

    def _merge_rows(
        self, table: TableDef, name: str, source: DataFrame, number: int, expired: str | None = None, first: datetime | None = None
    ) -> None:
        """Merge absolute rows, and whether they are `_wt_alive`, into a Delta table where they are newer; others go if `expired`.

        A session is known by its start: no other of its group has the same, and its end moves.
        """
        names = table.state_key.names if name == base_name(table) else table.key.names
        on = [f"t.{quote(n)} <=> s.{quote(n)}" for n in (names if table.sessions is None else names[:-1])]
        if "window_start" in names:  # a bound on the target alone lets Delta skip the files of older windows
            first = first or earliest(source, "window_start")
            on += [f"t.window_start >= {moment(first)}"] if first is not None else []
        values: dict[str, str | Column] = {quote(c): f"s.{quote(c)}" for c in source.columns if c != "_wt_alive"}
        self.spark.conf.set("spark.databricks.delta.write.txnAppId", FOLD_LINE)
        self.spark.conf.set("spark.databricks.delta.write.txnVersion", str(number))
        try:
            merge = (
                DeltaTable.forPath(self.spark, self.changelog.base_path(name)).alias("t")
                .merge(source.alias("s"), " AND ".join(on))
                .whenMatchedDelete("s._wt.seq > t._wt.seq AND NOT s._wt_alive")
                .whenMatchedUpdate("s._wt.seq > t._wt.seq", values)
                .whenNotMatchedInsert("s._wt_alive", values)
            )  # fmt: skip
            (merge if expired is None else merge.whenNotMatchedBySourceDelete(expired)).execute()
        finally:
            self.spark.conf.unset("spark.databricks.delta.write.txnAppId")
            self.spark.conf.unset("spark.databricks.delta.write.txnVersion")

    def _overwrite(
        self, table: TableDef, name: str, frame: DataFrame, number: int, since: int, only: Files | None = None, where: str | None = None
    ) -> None:
        """Write a base anew from absolute rows, made if there is none; or `only` some files of its version `since`, whose rows are `where`.

        Where its columns or states were another table's, the same commit makes them this one's.
        """
        log, columns = self.reader.log(name), [f"{quote(f.name)} {f.dataType.simpleString()}" for f in frame.schema.fields]
        self.spark.conf.set(_FILE_ROWS, FILE_ROWS if goes_by_time(table) else 0)
        shown = {STATE_PROPERTY: table.state_column, ROWS_PROPERTY: table.fingerprint, _INDEXED: str(_indexed(frame.schema))}
        if log.latest() is None:
            properties = {"delta.enableDeletionVectors": "true", "delta.checkpointInterval": "20"}
            log.create(columns, properties | past_of(self.horizon + BEFORE) | shown)
        log.overwrite(frame, line=FOLD_LINE, number=number, since=since, properties=shown, columns=columns, only=only, where=where)

    def _made(self, name: str, number: int) -> int | None:
        """Find the version that holds this fold; None when a newer fold made it superfluous."""
        log = self.reader.log(name)
        newest = log.latest()
        version = newest.version if newest else -1
        while version >= 0 and (commit := log.commit(version)) is not None:
            if FOLD_LINE in commit.transactions:
                return version if commit.transactions[FOLD_LINE] == number else None
            version -= 1
        return None

    def _tombstones(self, table: TableDef, view: View) -> tuple[int, list[Part]]:
        """Find the first commit beside which are tombstones that an earlier record could still meet, and gather them here if that pays.

        A record that is still to come has at least the stream time that its partition has reached, so a tombstone is done with once every
        partition's is past the tombstone's; in a versioned table, by as much as the history is long. A partition that brings nothing may
        hold them for years. So they are gathered, once all that came since the first of them is more to read than those gathered last.
        """
        position = view.position
        dead = view.tombstones(table, position.seq)
        if dead is None:
            return position.seq + 1, []
        reached = view.commit.reached(topics_above(table.node)) if view.commit else None
        if reached is not None:
            dead = dead.where(f"st >= {moment(reached - table.behind)}")
        row = dead.agg(F.min("seq")).head()
        if row is None or row[0] is None:
            return position.seq + 1, []
        came, gathered = view.tombstone_files(table, position.seq)
        of_epoch = view.along(table).epoch_of(position.seq) == position.epoch  # else what is beside that commit isn't of its lineage
        if not of_epoch or came.bytes + came.number * OPENED <= MANY_TOMBSTONES + gathered.bytes:
            return int(row[0]), []
        rows = materialise(merge(table, dead, "max(st) AS st").select("key", "state", "st"))
        return position.seq, [table_part(table, rows, GATHERED_PREFIX)]

    def _confirm(self, marks: tuple[FoldMark, ...], view: View, epoch: int, seq: int, gathered: Sequence[Part] = ()) -> None:
        after = view.head.last.commit_time if view.head.last else None
        known = any(view.tombstone_files(self.reader.tables[name])[1].number for name in view.bases)
        form = GATHERED if gathered or known else FORMAT
        info = CommitInfo(kind="fold", epoch=epoch, seq=seq, folds=marks, commit_time=now_after(after), format=form)
        if self.changelog.note(info, f"fold of {', '.join(m.table for m in marks)} at {view.position}", gathered):
            kept = {m.table: m for m in (*self._marks, *marks)}  # else the folds are found by their transactions
            self._marks = tuple(kept.values())


def _version(snapshot: Snapshot | None) -> int:
    """Give the version that is pinned, or that before the first."""
    return -1 if snapshot is None else snapshot.version


def _indexed(schema: StructType) -> int:
    """Count the columns of which Delta is to keep statistics: the user's, as many as by default, and when a row was changed.

    Who reads leaves out next to nothing by what else is in `_wt`, and its statistics would take a fifth of the time of a large fold.
    """
    users = sum(_leaves(field.dataType) for field in schema if field.name != "_wt")
    return min(32, users + 1)


def _leaves(kind: DataType) -> int:
    """Count the columns that a type is of."""
    return sum(_leaves(field.dataType) for field in kind) if isinstance(kind, StructType) else 1


def _alike(*bases: Base) -> bool:
    """Tell whether versions of a base have the same columns."""
    return len({tuple(base.snapshot.property(name) for name in _LAID_OUT_BY) for base in bases if base.snapshot is not None}) == 1


def _shaped(table: TableDef, states: DataFrame) -> DataFrame:
    """Bring absolute states into a base's columns, beside `_wt_alive`.

    A table of states alone shows no value, and what a filter or a join hides is alive in it; only an emptied group isn't.
    """
    kept = "named_struct('seq', seq, 'epoch', epoch, 'state', state)"
    if hides(table):
        keys = [f"key.{quote(n)} AS {quote(n)}" for n in table.state_key.names]
        alive = stays(table) or "state IS NOT NULL"
        return states.selectExpr(f"{alive} AS _wt_alive", *keys, f"{kept} AS _wt")
    return _columns(table, finish(table, states), kept)


def _over(table: TableDef, reached: datetime | None, of: str = "") -> str | None:
    """Write the condition for rows whose windows are closed at a stream time: the commit that closed them has given them."""
    if reached is None:
        return None
    closing = closing_of(table.node)
    if table.sliding is None:
        return f"{of}window_end <= {moment(reached - closing.after)}"
    return f"{of}__at <= {moment(reached - closing.after - table.sliding.difference - MILLISECOND)}"


def waiting(buffer: JoinBuffer, shaped: DataFrame, reached: datetime | None) -> DataFrame:
    """Cut the rows of a join's buffer to the records that others may still pair with, and say until when the last of a row's may.

    Every record that is still to come has at least the stream time that all partitions have reached. It is late for a record whose window
    has closed by then; and it is no earlier in log order than one of a lesser stream time. What an outer join has done with goes as soon
    as its stream time says so, whatever its event time.
    """
    lists, ends = [], []
    for side, open_for in zip((buffer.left, buffer.right), buffer.within.open_for, strict=True):
        closes = f"greatest(unix_micros(e.order.st), unix_micros(e.value.ts) + {microseconds(open_for)}L)"
        kept = (
            f"filter(_wt.state.{quote(side.name)}, e -> {closes} >= unix_micros({moment(reached)}))"
            if reached
            else f"_wt.state.{quote(side.name)}"
        )
        lists.append(f"{kept} AS {quote(side.name)}")
        ends.append(f"array_max(transform({quote(side.name)}, e -> {closes}))")
    keys = [quote(name) for name in buffer.left.key.names]
    names = [quote(side.name) for side in (buffer.left, buffer.right)]
    if alone := how_of(buffer).alone:
        longest = ", ".join(f"{max(0, microseconds(duration))}L" for duration in buffer.within.open_for)
        passed = f"unix_micros(d.st) + array({longest})[CAST(d.ord % 2 AS INT)] >= unix_micros({moment(reached)})" if reached else "TRUE"
        lists.append(f"filter(_wt.state.{DONE}, d -> {passed}) AS {DONE}")
        first = ", ".join(ends[side].replace("array_max", "array_min") for side in alone)
    cut = shaped.selectExpr(*keys, "_wt", *lists)
    names += [DONE] if alone else []
    state = ", ".join(f"'{name.strip('`')}', {name}" for name in names)
    sizes = [f"CAST(size({name}) AS BIGINT) AS {name}" for name in names[:2]]
    until = f"timestamp_micros(greatest({', '.join(ends)})) AS _wt_until"
    alive = " + ".join(f"size({name})" for name in names[:2]) + " > 0 AS _wt_alive"
    following = [f"timestamp_micros(least({first}, NULL)) AS {NEXT}"] if alone else []
    return cut.selectExpr(
        alive, *keys, *sizes, until, *following, f"named_struct('seq', _wt.seq, 'epoch', _wt.epoch, 'state', named_struct({state})) AS _wt"
    )


def _columns(table: TableDef, finished: DataFrame, kept: str) -> DataFrame:
    """Bring finished rows into a table's columns, beside `_wt_alive`; of those that aren't, the key is all there is."""
    keys = [f"key.{quote(n)} AS {quote(n)}" for n in table.key.names]
    values = [f"row.{quote(n)} AS {quote(n)}" for n in table.value.names]
    return finished.selectExpr("alive AS _wt_alive", *keys, *values, f"{kept} AS _wt")
