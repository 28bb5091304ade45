"""Write to an app's store: one append is one transaction, and one writer at a time may make it.

A writer begins with a fence: a `__commit` row of a new generation, in the transaction line of all writers of the app. It then takes the
position that it finds at the fence. Any other writer of the line is out from that moment: each append checks every commit since its own
last one for the line, and Delta refuses an append that races with one of it. So the law: the commits of a lineage are numbered without
gap, each begins where the one before it ended, and none is by a writer after another's fence.

A shadow has a writer too, in a line of its own: neither it nor the app's writer ever stands in the other's way. What begins and ends
epochs is in a third line, beside those that it ends, so that no two epochs take one number; so is what drops commits, so that none begins
where nothing is left.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Self

from watertable import failpoints
from watertable.compiler import Prepared
from watertable.errors import Fenced, StoreError
from watertable.kafka.source import ONE_TASK
from watertable.plan.deployment import Deployment, Outline, classify
from watertable.plan.nodes import Stored
from watertable.plan.plan import TableDef, Topology
from watertable.plan.processors import TIMERS
from watertable.plan.windows import EPOCH, microseconds
from watertable.store.bases import number_of
from watertable.store.changelog import READERS, Changelog, shaped, system_parts, table_part
from watertable.store.commits import CommitInfo, Head, Partition, Position, now_after
from watertable.store.fold import Folder, TableFold
from watertable.store.hands import refuse_changed
from watertable.store.lookups import Lookups
from watertable.store.memory import told
from watertable.store.reader import Reader
from watertable.store.upkeep import Upkeep
from watertable.store.views import Known

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from watertable.compiler import Lookup, Write
    from watertable.store.deltalog import Draft, Snapshot
    from watertable.store.logged import Commit

WRITER_LINE: Final = "watertable/writer"
SMALL_BATCH: Final = 50_000
"""Records up to which a commit is written by two tasks, the tables one after the other in each: about one file a table."""
HOLD_MS: Final = "hold_ms"
"""In the counters of a hold: for how many milliseconds a writer waits."""
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Retention:
    """Say how long the past is kept.

    `horizon`: how far back a table can be read and rewound. `readers`: how long a reader may hold on to a changelog version while
    OPTIMIZE rewrites it.
    """

    horizon: timedelta = timedelta(days=7)
    readers: timedelta = READERS


@dataclass(frozen=True, slots=True)
class Act:
    """Hold the one row that an act on an app is, what is committed with it, and the transaction lines that it is of.

    `rows` are those of the commit that `joins` it, where one does.
    """

    info: CommitInfo
    line: str
    note: str
    also: Mapping[str, int] = field(default_factory=dict)
    bucket: int | None = -1
    point: str = ""
    joins: CommitInfo | None = None
    rows: DataFrame | None = None


class Store:
    """Hold one app's changelog and tables in a warehouse: any number of readers, one writer, folds and upkeep by anybody."""

    def __init__(
        self, spark: SparkSession, warehouse: str, app: str, tables: Sequence[TableDef], retention: Retention | None = None,
        archived: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.archived = tuple(archived)
        self.spark, self.app, self.tables, self.retention = spark, app, tuple(tables), retention or Retention()
        self.warehouse = warehouse.rstrip("/")
        self.changelog = Changelog(spark, self.warehouse, app)
        self.reader = Reader(spark, self.warehouse, app, self.tables)
        self._folder: Folder | None = None

    @classmethod
    def open(
        cls, spark: SparkSession, warehouse: str, app: str, tables: Sequence[TableDef], retention: Retention | None = None,
        archived: Sequence[str] = (),
    ) -> Self:  # fmt: skip
        """Open an app's store, made if there is none; `archived` are topics whose archives its upkeep looks after.

        Raises `FormatError` when a newer release of watertable wrote it. Columns for new tables are added by `start_writer`.
        """
        store = cls(spark, warehouse, app, tables, retention, archived)
        store.changelog.create(store.tables, store.retention.readers)
        store.changelog.snapshot()
        return store

    def head(self) -> Head:
        """Find where the app stands: position, offsets and stream times of its last commit, lineage."""
        return self.changelog.head()

    def by_clock(self, known: Known) -> dict[Partition, datetime]:
        """Give, by partition, the first time for which a punctuator is scheduled by the wall clock; of apps without any, at no cost."""
        found: dict[Partition, datetime] = {}
        for table in self.timers:
            for partition, at in self.reader.view_for([table.name], known).by_clock(table).items():
                found[partition] = min(at, found.get(partition, at))
        return found

    @property
    def timers(self) -> list[TableDef]:
        """List the hidden tables that say when punctuators are due."""
        return [table for table in self.tables if isinstance(table.root, Stored) and table.root.parent.store == TIMERS]

    def start_writer(self, topology: Topology, *, suite_hash: str = "", shadow: bool = False) -> Writer:
        """Fence off every other writer, and begin where the last one's commits end, under the code of an app.

        With `shadow`, it is the writer of the shadow that there is, and fences those of the shadow. Raises `Fenced` when others keep
        starting at the same time, or when there is no shadow; `StoreError` when the shadow is of other code, or nothing is kept of the
        epoch.
        """
        changelog, identity, line, beside = self.changelog, uuid.uuid4().hex, WRITER_LINE, ""
        fingerprint = topology.fingerprint

        def look(snapshot: Snapshot) -> Act:
            nonlocal line, beside
            refuse_changed(changelog.log, snapshot, self.app)
            head = changelog.head(snapshot)
            if shadow:
                row = head.shadow
                if row is None:
                    raise Fenced(f"{self.app} has no shadow to write: it was promoted or given up, or never begun")
                if row.fingerprint != fingerprint:
                    raise StoreError(
                        f"the shadow {self.app}@{row.epoch} is of the code {row.fingerprint}, and {fingerprint} is loaded: load that code, "
                        f"or give the shadow up with `watertable rewind {self.app} --abandon-shadow --apply`"
                    )
                line, beside = shadow_line(row.epoch), f" beside {head.position}"  # named first, for whoever looks for the app's head
                head = changelog.head(snapshot, epoch=row.epoch)
            if head.last is None and head.position.seq:
                back = f"rewind {self.app} --abandon-shadow" if shadow else f"undo {self.app}"
                raise StoreError(
                    f"{head.position} can't be gone on from: nothing of it is kept any more, nor the commit that it forks at. Leave it: "
                    f"`watertable {back} --apply`"
                )
            info = CommitInfo(
                kind="fence", epoch=head.position.epoch, seq=head.position.seq, generation=head.generation + 1, writer=identity,
                commit_time=now_after(head.last.commit_time if head.last else None), fingerprint=fingerprint, suite_hash=suite_hash,
            )  # fmt: skip
            return Act(info, line, _note("fence", head.position, info, beside), bucket=None, point="store.fence")

        done = self.act(look)
        assert done is not None
        (act, made), info = done, done[0].info
        failpoints.hit("store.fence.after_commit")
        changelog.evolve(self.tables)
        found = changelog.head(since=info.seq, epoch=info.epoch if shadow else None)
        before = changelog.code(found.last.fingerprint) if found.last else None
        changelog.remember(Outline.of(topology, before), info.commit_time)
        return Writer(self, found, info, made.version, act.line, beside)

    def act(self, look: Callable[[Snapshot], Act | None], tries: int = _TRIES) -> tuple[Act, Commit] | None:
        """Append the one row that a look at the app comes to, and look again where somebody was quicker; give it and its commit.

        What `look` raises refuses the act, and None is an act that isn't wanted any more. Raises `Fenced` when others keep being quicker.
        """
        for attempt in range(tries):
            snapshot = self.changelog.snapshot()
            act = look(snapshot)
            if act is None:
                return None
            rows = self.changelog.append_rows([], act.info, bucket=act.bucket)
            rows = rows if act.rows is None else rows.unionByName(act.rows, allowMissingColumns=True)
            try:
                made = self.changelog.log.append(
                    rows, line=act.line, note=act.note, point=act.point,
                    number=number_of(act.info.generation, act.info.seq), also=act.also, since=snapshot.version,
                    tags=told(act.info, *([act.joins] if act.joins else ())),
                )  # fmt: skip
            except Fenced:  # whether it matters, the next look tells
                if attempt == tries - 1:
                    raise
            else:
                return act, made
        raise AssertionError(f"an act on {self.app} with no try")

    def hold(self, words: str, seconds: float) -> Head:
        """Ask the app's writer to wait, for so long at most; give where the app stands, and stays unless it is a writer that doesn't wait.

        A writer that is there is fenced by it, and takes its place up again after the next epoch's row, or when the time is over; to
        ask for no time is to let it go on at once. Raises `Fenced` when others keep writing at the same time.
        """
        held: list[Head] = []

        def look(snapshot: Snapshot) -> Act:
            head = self.changelog.head(snapshot)
            info = CommitInfo(
                kind="hold", epoch=head.position.epoch, seq=head.position.seq, generation=head.generation + 1, writer=words,
                commit_time=now_after(head.last.commit_time if head.last else None), counters={HOLD_MS: round(seconds * 1000)},
            )  # fmt: skip
            held.append(replace(head, generation=info.generation))
            return Act(info, WRITER_LINE, _note("hold", head.position, info))

        self.act(look)
        return held[-1]

    def acts_since(self, generation: int, before: int | None = None) -> Sequence[CommitInfo]:
        """List the acts (rows of kind `epoch` and `hold`) after one generation, before another; none where a writer began between."""
        head = self.head()
        last = head.generation if before is None else before - 1
        acts = sorted((row for row in (*head.forks, *head.holds) if generation < row.generation <= last), key=lambda row: row.generation)
        return acts if len(acts) == last - generation else ()

    def deployment(self, topology: Topology, head: Head | None = None) -> Deployment | None:
        """Say what code means for the states there are; None where they are its own, or somebody has just rewound the app for it.

        None, too, where the code that made them isn't known: an earlier release's.
        """
        head = head or self.head()
        begun_for = [fork.fingerprint for fork in head.forks if (fork.epoch, fork.seq) == (head.position.epoch, head.position.seq)]
        if head.last is None or topology.fingerprint in (head.last.fingerprint, *begun_for):
            return None
        code = self.changelog.code(head.last.fingerprint)
        return None if code is None else classify(code, topology)

    def fold_all(
        self, known: Known | None = None, stop: Callable[[], bool] = lambda: False, *, beside: bool = False
    ) -> Mapping[str, TableFold]:
        """Fold all tables to one position; see `Folder.fold_all`."""
        return self.folder.fold_all(None, known, stop, beside=beside)

    def fold(self, table: str, upto: int | None = None) -> int | None:
        """Fold a table's tail into its Delta table; see `Folder.fold`."""
        return self.folder.fold(table, upto)

    @property
    def folder(self) -> Folder:
        """Give the folder of this store's tables, in a Spark session of its own: its settings are not the stream's."""
        if self._folder is None:
            self._folder = Folder(self.spark.newSession(), self.warehouse, self.app, self.tables, self.retention.horizon)
        return self._folder

    @property
    def upkeep(self) -> Upkeep:
        """Give the upkeep of this store: OPTIMIZE, VACUUM, trims."""
        return Upkeep(self.folder.reader, self.retention.horizon, self.retention.readers, self.archived)


class Writer:
    """Append the commits of one running app, until another writer takes over.

    Not for several threads. After an error a writer is of no further use: whether its last commit is there only the next start finds out.
    """

    def __init__(self, store: Store, head: Head, fence: CommitInfo, version: int, line: str = WRITER_LINE, beside: str = "") -> None:
        self._store, self._fence, self._version, self._line, self._beside = store, fence, version, line, beside
        self._head, self._last = head, head.last
        self.position = head.position
        self.rows: Mapping[str, int] = {}
        """Rows that the last commit added, by table of the changelog (`__quarantine`, `__out_<topic>` and the like among them)."""
        self._usable = True
        self._draft: Draft | None = None
        self._numbered = EPOCH
        self._make = Prepared().make
        self._lookups = Lookups(store.reader, lambda: self.known, self._make)

    @property
    def last(self) -> CommitInfo | None:
        """Give the newest commit: where its offsets end, the next batch begins."""
        return self._last

    def number(self) -> int:
        """Give the next batch its number: the time in microseconds, but always after all commits before it, whoever made them.

        Nor is its commit before its number, whatever the clock is set to meanwhile: the next number would be less than this one.
        """
        last = self._last.commit_time if self._last else EPOCH
        self._numbered = now_after(last + timedelta(microseconds=1))
        return microseconds(self._numbered - EPOCH)

    @property
    def known(self) -> Known:
        """Give what this writer knows of its own commits."""
        return Known(replace(self._head, last=self._last), self.position)

    @property
    def failed(self) -> bool:
        """Tell whether a commit of this writer failed, so that it is of no further use."""
        return not self._usable

    @property
    def generation(self) -> int:
        """Give the number of this writer among those of the app."""
        return self._fence.generation

    def commit(
        self, frames: Mapping[str, DataFrame], commit: CommitInfo, *, outbox: DataFrame | None = None,
        quarantine: DataFrame | None = None, dropped: DataFrame | None = None, records: int = 0,
    ) -> Position:  # fmt: skip
        """Append one batch: changes by table, outbox, quarantine, drops and position, all or nothing.

        Of `commit` the offsets, stream times, topic ids, advances and counters are taken; partitions that it doesn't name keep theirs.
        `records` is the size of the batch: small ones are written by one task or two.

        Raises `Fenced` when another writer has taken over, `StoreError` when an offset range doesn't begin where the last one ended.
        """
        self._check_usable()
        changelog, info = self._store.changelog, self._complete(commit)
        parts = [table_part(self._table(name), frame) for name, frame in frames.items()]
        draft = self._write(changelog.append_rows([*parts, *system_parts(outbox, quarantine, dropped)], info, make=self._make), records)
        self._draft, self._usable = None, False
        made = draft.commit(told(info))
        self._refuse_changed()  # beside this commit, too
        failpoints.hit("store.commit.after_commit")
        self._version, self.rows = made.version, made.rows
        self._last, self.position, self._usable = info, self._next, True
        return self.position

    def writing(self, records: int = 0) -> Write:
        """Give what writes the rows of a table ahead of the commit of a batch, of so many records at most: they are the table's with it.

        If none comes, they never are.
        """

        def write(table: TableDef, rows: DataFrame, /) -> None:
            position = self._next
            self._write(shaped([table_part(table, rows)], position.epoch, position.seq, make=self._make), records)

        return write

    def _write(self, rows: DataFrame, records: int) -> Draft:
        """Write rows of the next commit, which begins with the first of them, and give what is to be committed."""
        self._check_usable()
        self._usable, position = False, self._next
        if self._draft is None:
            self._refuse_changed()
            self._draft = self._store.changelog.log.draft(
                line=self._line, number=number_of(self.generation, position.seq), since=self._version,
                note=_note("batch", position, self._fence, self._beside), point="store.commit",
            )  # fmt: skip
        self._draft.write(rows if records > SMALL_BATCH else rows.coalesce(1 if records <= ONE_TASK else 2))
        self._usable = True
        return self._draft

    def _refuse_changed(self) -> None:
        """Raise `StoreError` where others have changed rows of the changelog."""
        refuse_changed(self._store.changelog.log, self._store.changelog.snapshot(), self._store.app)

    def _check_usable(self) -> None:
        if not self._usable:
            raise StoreError(f"this writer of {self._store.app} failed before; start a new one to find out what it had committed")

    @property
    def _next(self) -> Position:
        return replace(self.position, seq=self.position.seq + 1)

    def check(self) -> None:
        """Raise `Fenced` when another writer has taken over; reads what was committed since the last look, and no more."""
        log = self._store.changelog.log
        if (newest := log.latest()) is not None:
            refuse_changed(log, newest, self._store.app)
            log.refuse_overtaken(newest, {self._line: number_of(self.generation, self._next.seq)}, self._version)
            self._version = max(self._version, newest.version)

    def lookup(self, records: int = 0) -> Lookup:
        """Give the look-up of old rows for a batch of so many records at most; see `Lookups.of`."""
        return self._lookups.of(records)

    def _complete(self, commit: CommitInfo) -> CommitInfo:
        last = self._last or CommitInfo()
        for partition, begin in commit.begin.items():
            if (ended := last.next.get(partition, begin)) != begin:
                topic, number = partition
                raise StoreError(
                    f"{self._store.app}: the batch begins at offset {begin} of {topic}/{number}, but {self.position} ended at {ended}"
                )
            if commit.next.get(partition, begin) < begin:
                raise StoreError(f"{self._store.app}: the batch would go back on {partition}, from {begin} to {commit.next[partition]}")
        if set(commit.next) - set(commit.begin) - set(last.next):
            raise StoreError(f"{self._store.app}: {sorted(set(commit.next) - set(commit.begin))} have an end but no begin")
        return replace(
            commit, kind="batch", epoch=self.position.epoch, seq=self.position.seq + 1, generation=self._fence.generation,
            writer=self._fence.writer, commit_time=max(now_after(last.commit_time), self._numbered), fingerprint=self._fence.fingerprint,
            suite_hash=commit.suite_hash or self._fence.suite_hash, begin={**last.next, **commit.begin},
            next={**last.next, **commit.next}, stream_times={**last.stream_times, **commit.stream_times},
            topic_ids={**last.topic_ids, **commit.topic_ids},
        )  # fmt: skip

    def _table(self, name: str) -> TableDef:
        return self._store.reader.tables[name]


def shadow_line(epoch: int) -> str:
    """Name the transaction line of a shadow's writers."""
    return f"watertable/shadow/{epoch}"


def _note(kind: str, position: Position, info: CommitInfo, beside: str = "") -> str:
    return f"{kind}{beside} {position} generation {info.generation} writer {info.writer}"
