"""Reach one Delta table through its log: pinned snapshots, single commits, and appends whose place in the log is known.

This is the one module that calls Delta's classes in the JVM. The writer's public way (`df.write` with txnAppId) can't say which commit
it made, skips a known transaction without a word, and rebuilds the table's whole state for each transaction lookup; here the commit's
version is returned, a transaction that was overtaken raises, and a commit costs one Spark job. Laws: an append is blind, so it never
conflicts with OPTIMIZE or with other appends; of two writers of one transaction line that overlap, one gets `Fenced`; and whoever is
told that its commit failed has none in the log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from watertable import failpoints
from watertable.errors import Fenced, StoreError
from watertable.schema import OWN, Schema, Type
from watertable.session import in_jvm, listed
from watertable.store.logged import OVERWRITE, Added, Commit, Held, first_left, held_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

V = TypeVar("V")
_FENCED: Final = ("ConcurrentTransactionException", "MetadataChangedException", "ProtocolChangedException")
CONFLICTS: Final = (*_FENCED, "ConcurrentAppendException", "ConcurrentDeleteReadException", "ConcurrentDeleteDeleteException",
                    "ConcurrentWriteException")  # fmt: skip
"""What Delta throws at the loser of a race."""
JVM_ERRORS: Final = (Py4JJavaError, PySparkException)
"""What a call into the JVM raises; the same error is either of them, by which Python modules happen to be imported."""
_DELTA: Final = "org.apache.spark.sql.delta"
_ENDLESS: Final = 2**62
"""Bytes that no disk has: Hadoop says so many are free of what it knows no size of."""
_LATELY: Final = 2
_APPEND: Final = "Append"


@dataclass(frozen=True, slots=True)
class Files:
    """Hold files of a Delta table, as its log or Delta tells of them: path, size and deletion vector, so that no storage is asked for them.

    `whole` says that all their rows are wanted, not only those for which a condition is true.
    """

    described: tuple[str, ...] | Any
    number: int
    bytes: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class _Tip:
    """Hold by what a version is known to be the newest, or a newer one is found.

    `follow` is how many commits after it are looked for before another checkpoint is where to begin, `first` the first commit that it is
    read from (when it was made, its file; None where a checkpoint is all), `made` when its own was, and in which file, and `next` the file
    of one after it.
    """

    follow: int
    first: tuple[float, Any] | None
    made: int
    file: Any
    next: Any


class Snapshot:
    """Pin one version of a Delta table; what it reads never changes."""

    def __init__(self, log: DeltaLog, snapshot: Any) -> None:
        self.spark, self._log, self.java = log.spark, log, snapshot
        self.version: int = snapshot.version()

    @cached_property
    def tip(self) -> _Tip:
        """Find out by what a newer version is known."""
        log, segment = self._log, self.java.logSegment()
        behind = self.version - int(segment.checkpointProvider().version())
        first = segment.deltas().head() if behind else None
        return _Tip(
            follow=min(_FOLLOWED, int(log.java.checkpointInterval(self.java.metadata())) - behind),
            first=first and (first.getModificationTime() / 1000, first.getPath()),
            made=int(segment.lastCommitFileModificationTimestamp()), file=log.file(self.version), next=log.file(self.version + 1),
        )  # fmt: skip

    def frame(self, files: Files | None = None) -> DataFrame:
        """Read the table at this version, or these files of it."""
        none, option = self._log.none, self._log.option
        if files is None:
            # the last argument holds the scan to this snapshot: without it, Delta takes the newest one at the time of planning
            relation = self._log.java.createRelation(listed(self._log.spark, ()), option.apply(self.java), none, True)
        else:
            described = listed(self._log.spark, self._log._actions(files)) if isinstance(files.described, tuple) else files.described
            plan = self._log.java.createDataFrame(self.java, described, False, none).queryExecution().analyzed()
            relation = plan.collectLeaves().apply(0).relation()
        return DataFrame(self.spark._jsparkSession.baseRelationToDataFrame(relation), self.spark)

    @cached_property
    def whole(self) -> Files:
        """List all its files: whoever reads it often by them spares Delta two Spark jobs each time.

        One Spark job; none where the version wrote the table anew, so that the log has them all in one place.
        """
        written = self._written
        return self.files("true") if written is None else self._log.files(written)

    @cached_property
    def _written(self) -> tuple[Added, ...] | None:
        """List what the log tells of the files of a version that wrote the table anew; None for any other."""
        commit = self._log.commit(self.version)
        return commit.added if commit is not None and commit.replaces else None

    def files(self, where: str) -> Files:
        """List the files that can hold rows for which the condition is true; one Spark job over the log's state."""
        leaves = self.frame().where(where)._jdf.queryExecution().optimizedPlan().collectLeaves()
        if leaves.size() != 1 or leaves.apply(0).getClass().getSimpleName() != "LogicalRelation":
            return Files((), 0, 0)  # the condition can't be true
        scan = leaves.apply(0).relation().location().preparedScan()
        size = scan.scanned().bytesCompressed()
        return Files(scan.files(), scan.files().size(), int(size.get()) if size.isDefined() else 0)

    @cached_property
    def table(self) -> str:
        """Give the identity of the table: another one at the same path has another."""
        return str(self.java.metadata().id())

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """List the table's columns."""
        return tuple(self.java.schema().fieldNames())

    @property
    def schema(self) -> Schema:
        """Give the columns that the user has, with the types that they have on disk."""
        mine = (f for f in self.frame().schema if not f.name.startswith(OWN))
        return Schema.of((f.name, Type.parse(f.dataType.simpleString())) for f in mine)

    def members(self, column: str) -> tuple[str, ...]:
        """List the members of a struct column."""
        return tuple(self.java.schema().apply(column).dataType().fieldNames())

    @cached_property
    def bytes(self) -> int:
        """Add up the table's files; a Spark job, unless the version wrote the table anew, or Delta has noted it beside the version."""
        if self._written is not None:
            return sum(file.bytes for file in self._written)
        noted = self.java.sizeInBytesIfKnown()
        return int(noted.get() if noted.isDefined() else self.java.sizeInBytes())

    @cached_property
    def rows(self) -> int:
        """Count the table's rows as its files' statistics do; a Spark job, unless the version wrote the table anew."""
        told = [None] if self._written is None else [file.rows for file in self._written]
        if None not in told:
            return sum(rows or 0 for rows in told)
        each = "CAST(get_json_object(stats, '$.numRecords') AS BIGINT) - coalesce(deletionVector.cardinality, 0L)"
        files = DataFrame(self.java.allFiles().toDF(), self.spark).selectExpr(f"{each} AS rows")
        row = files.selectExpr("coalesce(sum(rows), 0L)", "count(*) = count(rows)").first()
        assert row is not None
        return int(row[0]) if row[1] else self.frame().count()

    @property
    def timestamp(self) -> int:
        """Give the time of this version's commit, in milliseconds since 1970."""
        return int(self.java.timestamp())

    def properties(self, prefix: str) -> dict[str, str]:
        """List the table properties whose names begin so."""
        return {name: str(value) for name, value in self._named(self.java.metadata().configuration(), prefix)}

    def property(self, name: str) -> str | None:
        """Give a table property."""
        found = self.java.metadata().configuration().get(name)
        return str(found.get()) if found.isDefined() else None

    def lacks(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Give those of some properties that the table has otherwise, or not at all."""
        return {name: value for name, value in properties.items() if self.property(name) != value}

    def transaction(self, app_id: str) -> int | None:
        """Look a transaction line up in the whole state; a Spark job. A RESTORE doesn't take it back (delta#1813)."""
        found = self.java.transactions().get(app_id)
        return int(found.get()) if found.isDefined() else None

    def transactions(self, prefix: str) -> dict[str, int]:
        """List the transaction lines whose names begin so, from the whole state; a Spark job."""
        return {name: int(number) for name, number in self._named(self.java.transactions(), prefix)}

    def _named(self, found: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        """Go through a map of Scala's, over names that begin so."""
        pairs = dict(self._log.of("scala.jdk.javaapi.CollectionConverters.asJava")(found))
        yield from ((str(name), value) for name, value in pairs.items() if str(name).startswith(prefix))


_pinned: Final[dict[tuple[str, int], Snapshot]] = {}
"""By the path of a table and the session: the version that this process has pinned last, with what has been found out about it."""
_FOLLOWED: Final = 20
"""So many commits of others are learned of one by one; of more, Delta lists the log."""
_UNCLEANED: Final = 3600.0
"""Seconds for which nobody cleans up what a log has."""
_PINNED: Final = 1_000
"""As many are held; then all are forgotten."""


@dataclass(frozen=True, slots=True)
class _Older:
    """Hold an old version of a table, and when it was found."""

    table: str
    since: float
    snapshot: Snapshot


_older: Final[dict[tuple[str, int, int, bool], _Older]] = {}
"""By the path of a table, the session, the version, and whether it was to be kept: the old versions that this process has pinned."""
_GOOD_FOR: Final = 60.0
"""Seconds for which an old version that was there is taken to be there still."""
_read: Final[dict[tuple[str, str, int], Commit]] = {}
"""By the path of a table, its identity and the version: the commits that this process has read. What is written in one never changes."""
_READ: Final = 300
"""As many, which are larger."""
HELD: Final[list[dict[Any, Any]]] = [_pinned, _older, _read]
"""All that is held of logs, here and by who follows them: by places that begin with the path of a table."""


class DeltaLog:
    """Follow and append to the log of the Delta table at one path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark, self.path = spark, path

    @cached_property
    def java(self) -> Any:
        """Give Delta's own log."""
        return self.of(f"{_DELTA}.DeltaLog.forTable")(self.spark._jsparkSession, self.path)

    def of(self, name: str) -> Any:
        """Give a class of the JVM, or a static member of one."""
        return in_jvm(self.spark, name)

    @property
    def option(self) -> Any:
        """Give Scala's Option."""
        return self.of("scala.Option")

    @cached_property
    def none(self) -> Any:
        """Give Scala's None."""
        return self.option.empty()

    def exists(self) -> bool:
        """Tell whether there is a table."""
        return self.latest() is not None

    def latest(self) -> Snapshot | None:
        """Pin the newest version, after a look at the log; None when there is no table."""
        place, known = (self.path, id(self.spark)), self.java.unsafeVolatileSnapshot()
        pinned = _pinned.get(place)
        same = pinned is not None and pinned.spark is self.spark and pinned.java.equals(known)
        newest = self._newest(pinned if pinned is not None and same else Snapshot(self, known))
        if newest is None:
            return None
        pinned = _pinned.get(place)  # another thread may have found it meanwhile
        if (
            pinned is not None
            and (pinned.spark, pinned.version, pinned.table) == (self.spark, newest.version, newest.table)
            and (pinned is newest or pinned.java.logSegment().equals(newest.java.logSegment()))  # or clean-up may have taken its files
        ):
            return pinned
        return _hold(_pinned, place, newest)

    def _newest(self, known: Snapshot) -> Snapshot | None:
        """Follow the log from a version to the newest one; None when there is no table.

        Delta lists the log to find it, which takes as long as there are files in its folder: a stream's are of days, four for each
        commit. So files are looked for by their names: the commit that this process knows as the last, and those after it. Delta lists as
        ever where there are many, and where it is time to begin at another checkpoint.
        """
        tip = known.tip if known.version >= 0 else None
        if tip is not None and not self._stands(tip):
            self._forget()
        elif tip is not None and tip.follow > 0:
            file, java, none = tip.next, known.java, self.none
            for number in range(known.version + 1, known.version + 1 + tip.follow):
                if not self._files.exists(file):
                    return known if number == known.version + 1 else Snapshot(self, java)
                there = self._files.getFileStatus(file)
                made = self.of("io.delta.storage.commit.Commit")(number, there, there.getModificationTime())
                java = self.java.updateAfterCommit(number, self.option.apply(made), none, java.logSegment(), none, none, False)
                file = self.file(number + 1)
        found = self.java.update(False, self.none, self.none)
        return Snapshot(self, found) if int(found.version()) >= 0 else None

    def _stands(self, tip: _Tip) -> bool:
        """Tell whether a log is as a version was read from it: clean-up takes what is old, and an older copy may have been put there."""
        began, first = tip.first or (time.time(), None)
        try:
            made = self._files.getFileStatus(tip.file).getModificationTime()
        except JVM_ERRORS:
            return False
        return bool(made == tip.made and (time.time() - began < _UNCLEANED or self._files.exists(first)))

    def _forget(self) -> None:
        """Forget what this process has found of a log that isn't what it was; other threads go on finding."""
        for held, place in [(found, place) for found in HELD for place in [*found] if place[0] == self.path]:
            held.pop(place, None)

    @cached_property
    def _hadoop(self) -> Any:
        """Give the settings by which the log's storage is reached."""
        return self.java.newDeltaHadoopConf()

    @cached_property
    def _folder(self) -> Any:
        return self.java.logPath()

    @cached_property
    def _files(self) -> Any:
        """Give the file system that the log is in."""
        return self._folder.getFileSystem(self._hadoop)

    def file(self, version: int) -> Any:
        """Name the file of a commit."""
        return self.of(f"{_DELTA}.util.FileNames.unsafeDeltaFile")(self._folder, version)

    def at(self, version: int, *, kept: bool = True) -> Snapshot | None:
        """Pin an old version; None when Delta can't go back to it, or, with `kept`, when its files may be gone, or are.

        (They may be beyond `deletedFileRetentionDuration`; the newest version is always kept.) Delta lists the log for it, once a minute.
        """
        newest, place = self.latest(), (self.path, id(self.spark), version, kept)
        table = "" if newest is None else newest.table
        found, since = _older.get(place), time.monotonic()
        if found is not None and (found.snapshot.spark, found.table) == (self.spark, table) and since - found.since < _GOOD_FOR:
            return found.snapshot
        try:
            snapshot = Snapshot(self, self.java.getSnapshotAt(version, self.none, self.none, kept))
        except JVM_ERRORS:
            return None
        there = not kept or self.has_files_of(version)
        return _hold(_older, place, _Older(table, since, snapshot)).snapshot if there else None

    def has_files_of(self, version: int) -> bool:
        """Tell whether a version's files are there, whatever a VACUUM was told to keep: it takes those first that went first after it."""
        gone = first_left(map(self.commit, range(version + 1, version + 1 + _FOLLOWED)))
        path = self.of("org.apache.hadoop.fs.Path")
        return gone is None or bool(self._files.exists(path(self.java.dataPath(), path(self.of("java.net.URI")(gone)))))

    def lately_written(self, version: int) -> int:
        """Give the bytes that the largest of the last few commits up to a version added."""
        commits = (self.commit(number) for number in range(version, max(-1, version - _LATELY), -1))
        return max((sum(file.bytes for file in commit.added) for commit in commits if commit is not None), default=0)

    def free(self) -> int | None:
        """Say how many bytes are free where the table is; None where its storage has no end that it tells of."""
        left = int(self._files.getStatus(self._folder).getRemaining())
        return left if left < _ENDLESS else None

    def clean(self, kept: timedelta) -> None:
        """Delete what the log has of longer ago, to the hour, but for what the versions since then are read from.

        Delta, which does so at each checkpoint, keeps whole days.
        """
        newest = self.latest()
        if newest is not None:
            milliseconds = self._optional_long(kept // timedelta(milliseconds=1))
            hour = self.of(f"{_DELTA}.TruncationGranularity.HOUR")()
            self.java.cleanUpExpiredLogs(newest.java, self.none, milliseconds, hour)

    def files(self, added: Sequence[Added]) -> Files:
        """Take files as the log tells of them; no Spark job."""
        return Files(tuple(file.action for file in added), len(added), sum(file.bytes for file in added), whole=True)

    def _actions(self, files: Files) -> Iterable[Any]:
        """Give files as Delta has them."""
        told = files.described
        return map(self._action, told) if isinstance(told, tuple) else self.of("scala.jdk.javaapi.CollectionConverters.asJava")(told)

    def _writing(self, mode: str, *, note: str | None = None, where: str | None = None) -> Any:
        """Describe a write, as the table's history tells of it."""
        option, write = self.option.apply, self.of(f"{_DELTA}.DeltaOperations$Write")
        how = self.of(f"org.apache.spark.sql.SaveMode.{mode}")
        return write(how, self.none, option(where), option(note), *[self.none] * 5)

    def _schema(self, columns: Iterable[str]) -> str:
        """Write columns, as DDL says them, as a table's log does."""
        return str(self.of("org.apache.spark.sql.types.StructType.fromDDL")(", ".join(columns)).json())

    def _map(self, items: Mapping[str, str]) -> Any:
        """Make a map as Scala has it."""
        return self.of("org.apache.spark.api.python.PythonUtils.toScalaMap")(dict(items))

    def _optional_long(self, number: int) -> Any:
        """Give a number as Scala's Option of a Long: by itself, a small one would arrive there as an Integer."""
        return self.of("scala.jdk.javaapi.OptionConverters.toScala")(self.of("java.util.OptionalLong.of")(number))

    def _action(self, text: str) -> Any:
        """Read an action as the log writes it."""
        return self.of(f"{_DELTA}.actions.Action$.MODULE$").fromJson(text)

    def commit(self, version: int) -> Commit | None:
        """Read what one commit says about itself; None when log clean-up has removed it before this process has read it."""
        pinned = _pinned.get((self.path, id(self.spark)))
        place = None if pinned is None else (self.path, pinned.table, version)
        if place is not None and (known := _read.get(place)) is not None:
            return known
        try:
            lines = self.java.store().read(self.file(version), self._hadoop)
        except Py4JJavaError as error:
            if "FileNotFound" in str(error.java_exception.getClass().getName()):
                return None
            raise
        commit = Commit.read(version, lines.mkString("\n"))
        return commit if place is None else _hold(_read, place, commit, _READ)

    def transaction_at(self, app_id: str, version: int) -> int | None:
        """Give the newest transaction of a line that version `version` of the table holds; None when it holds none."""
        return self.held_at(app_id, version).number

    def held_at(self, app_id: str, version: int) -> Held:
        """Give the newest transaction of a line that a version holds, where nobody else writes rows; see `logged.held_at`."""
        return held_at(self.commit, self._transaction_in_state, self.path, app_id, version)

    def _transaction_in_state(self, app_id: str, version: int) -> int | None:
        """Look a line up in the whole state of an old version; raise `StoreError` where that can't be had any more."""
        snapshot = self.at(version, kept=False)
        if snapshot is None:
            raise StoreError(f"{self.path}: what version {version} holds can't be told any more: its log is gone")
        return snapshot.transaction(app_id)

    def create(self, columns: Iterable[str], properties: Mapping[str, str], partitioned_by: Sequence[str] = ()) -> None:
        """Create the table, empty, of columns as DDL says them; where another process is quicker, or it is there, nothing is done.

        Whoever dies in the middle leaves the folder of a log with nothing in it. Spark's CREATE TABLE takes that for a table: it makes none
        for ever after, and with IF NOT EXISTS it doesn't say so. Here a log without a version is no table.
        """
        txn = self._begin({}, -1, "")
        if txn.readVersion() >= 0:
            return
        described = {
            "id": str(uuid4()), "format": {"provider": "parquet", "options": {}}, "partitionColumns": list(partitioned_by),
            "schemaString": self._schema(columns), "configuration": dict(properties), "createdTime": int(time.time() * 1000),
        }  # fmt: skip
        metadata = self._action(json.dumps({"metaData": described}))
        made = self.of(f"{_DELTA}.DeltaOperations$CreateTable")(metadata, False, False, self.none)
        try:
            txn.updateMetadataForNewTable(metadata)
            self._end(txn, listed(self.spark, ()), {}, made, {})
        except JVM_ERRORS as error:
            if conflict(error) is None:
                raise

    def describe(self, properties: Mapping[str, str]) -> None:
        """Give the table those of the properties that it hasn't; where somebody else changes it meanwhile, nothing is done."""
        newest = self.latest()
        if newest is None or not (wanted := newest.lacks(properties)):
            return
        txn = self._begin({}, -1, "")
        said = self.of(f"{_DELTA}.DeltaOperations$SetTableProperties")(self._map(wanted))
        try:
            txn.updateMetadata(self._metadata(txn, wanted), False)
            self._end(txn, listed(self.spark, ()), {}, said, {})
        except JVM_ERRORS as error:
            if conflict(error) is None:
                raise

    def append(
        self, frame: DataFrame, *, line: str | None = None, number: int = 0, since: int = -1, note: str = "", point: str = "",
        also: Mapping[str, int] | None = None, tags: Mapping[str, str] | None = None,
    ) -> Commit:  # fmt: skip
        """Append rows in one blind commit, with `tags` for who reads the log; return it. The rest is as for `draft`."""
        draft = self.draft(line=line, number=number, since=since, note=note, point=point, also=also)
        draft.write(frame)
        return draft.commit(tags)

    def draft(
        self, *, line: str | None = None, number: int = 0, since: int = -1, note: str = "", point: str = "",
        also: Mapping[str, int] | None = None,
    ) -> Draft:  # fmt: skip
        """Begin a blind append.

        `line` and `number` name the transaction; `also` names others that the same commit is of. `since` is the newest version known to be
        consistent with it: any commit of one of its lines after that raises `Fenced`, whether it was there before this append began or
        lands before its end. `point` prefixes the failpoints on the way.
        """
        lines = ({} if line is None else {line: number}) | dict(also or {})
        draft = Draft(self, self._begin(lines, since, note), lines, note, point)
        if point:
            failpoints.hit(f"{point}.before_write")
        return draft

    def overwrite(
        self, frame: DataFrame, *, line: str, number: int, since: int, properties: Mapping[str, str], columns: Iterable[str],
        only: Files | None = None, where: str | None = None,
    ) -> None:  # fmt: skip
        """Write the table anew from rows, in one commit of a transaction line; or `only` some files of version `since`, all their rows.

        `since` is as for `append`; of `only` some files, any other commit after it raises `Fenced`. Where the table hasn't the
        `properties`, the same commit gives them to it, and `columns` as DDL says them. `where` is for the history: which rows those of the
        files are. Delta's own overwrite says nothing of who was quicker, and looks for the files in the log's state by two more Spark jobs.
        """
        txn = self._begin({line: number}, since, "the table anew" if only is None else f"the rows of {where} anew")
        before = Snapshot(self, txn.snapshot())
        if only is not None and before.version != since:
            raise Fenced(f"{self.path}: version {before.version} isn't {since}, of which some files were to be written anew")
        if wanted := before.lacks(properties):
            txn.updateMetadataForTableOverwrite(self._metadata(txn, wanted, schemaString=self._schema(columns)))
        if only is None:
            txn.readWholeTable()
        added = txn.writeFiles(frame._jdf).toList()
        removed = listed(self.spark, (file.remove() for file in self._actions(before.whole if only is None else only)))
        self._end(txn, added.appendedAll(removed), {line: number}, self._writing(OVERWRITE, where=where), {})

    def _metadata(self, txn: Any, properties: Mapping[str, str], **more: str) -> Any:
        """Give a transaction's metadata with some properties, and more of it, anew."""
        metadata = json.loads(txn.metadata().json())["metaData"]
        metadata |= {**more, "configuration": metadata["configuration"] | dict(properties)}
        return self._action(json.dumps({"metaData": metadata}))

    def take_back(self, to: Snapshot, *, line: str, number: int, since: int) -> int:
        """Give the table the files again that it had at an older version, in one commit of a transaction line; no row is read or written.

        What Delta's own RESTORE does, but it asks nobody: here `since` is as for `append`, and whoever else changes the same files or
        writes for the line is a conflict. The table's properties and columns are to be the same at both. Two Spark jobs over the log.
        Returns the version.
        """
        restore = self.of(f"{_DELTA}.DeltaOperations$Restore")
        txn = self._begin({line: number}, since, f"the files of version {to.version} again")
        now, then = ({_identity(f): f for f in found.allFiles().collect()} for found in (txn.snapshot(), to.java))
        added = [Added(None, 0, None, _changing(file.json())) for identity, file in then.items() if identity not in now]
        removed = (file.remove() for identity, file in now.items() if identity not in then)
        actions = listed(self.spark, (*self._actions(self.files(added)), *removed))
        return self._end(txn, actions, {line: number}, restore(self._optional_long(to.version), self.none), {})

    def drop(self, where: str, *, line: str, number: int, since: int) -> None:
        """Drop the partitions for which a condition over nothing else is true, in one commit of a transaction line.

        `since` is as for `append`: of this and what else is of the line, one comes after a look at the other. Appends of other lines aren't
        in its way, nor is it in theirs, be they to these partitions; whoever changes the same files is a conflict. Where there are none,
        nothing is committed.
        """
        txn = self._begin({line: number}, since, f"nothing where {where}")
        files = Snapshot(self, txn.snapshot()).files(where)
        if files.number:
            removed = listed(self.spark, (file.remove() for file in self._actions(files)))
            self._end(txn, removed, {line: number}, self._writing(OVERWRITE, where=where), {})  # with nothing

    def _begin(self, lines: Mapping[str, int], since: int, note: str) -> Any:
        """Begin a transaction of some lines; raise `Fenced` where another writer of one has committed after version `since`."""
        newest = self.latest()
        txn = self.java.startTransaction(self.none, self.option.apply(newest and newest.java))  # which is None where there is no table
        for name in lines:
            txn.readTxn().append(name)  # so that Delta refuses this commit if another of the line wins the race
        self.refuse_overtaken(Snapshot(self, txn.snapshot()), lines, since, f"; this one was to write {note}")
        return txn

    def refuse_overtaken(self, newest: Snapshot, lines: Mapping[str, int], since: int, words: str = "") -> None:
        """Raise `Fenced` where another writer of one of the lines has committed after version `since`, up to `newest`.

        The number of a line is the least that is another's. Where log clean-up has taken a commit, the table's whole state tells.
        """
        if not lines:
            return
        for version in range(since + 1, newest.version + 1):
            commit = self.commit(version)
            for name, own in lines.items():
                if commit is None:
                    overtaken, whose = (newest.transaction(name) or -1) >= own, " whose log is gone"
                else:
                    overtaken, whose = name in commit.transactions, f" ({commit.user_metadata})" if commit.user_metadata else ""
                if overtaken:
                    raise Fenced(f"{self.path}: version {version}{whose} is by another writer of {name!r}{words}")

    def _end(self, txn: Any, actions: Any, lines: Mapping[str, int], described_as: Any, tags: Mapping[str, str]) -> int:
        """Commit a transaction, as one of its lines; give the version."""
        stamp = self.option.apply(int(time.time() * 1000))
        for name, own in lines.items():
            actions = actions.appended(self.of(f"{_DELTA}.actions.SetTransaction")(name, own, stamp))
        try:
            return int(txn.commit(actions, described_as, self._map(tags)))
        except JVM_ERRORS:  # storage that repeats a write whose answer was lost calls it another's: whether it is there, the log tells
            made = self._version_of(txn)
            if made is None:
                raise
            return made

    def _version_of(self, txn: Any) -> int | None:
        """Look in the log for the commit of a transaction; None where there is none."""
        newest, own = self.latest(), txn.txnId()
        if newest is not None:
            for version in range(txn.readVersion() + 1, newest.version + 1):
                commit = self.commit(version)
                if commit is not None and commit.id == own:
                    return version
        return None


@dataclass(slots=True)
class Draft:
    """Hold a blind append that has begun: what is written to it is in the table once it's committed, all at one time, or never."""

    _log: DeltaLog
    _txn: Any
    _lines: Mapping[str, int]
    _note: str
    _point: str
    _files: Any = None

    def write(self, frame: DataFrame) -> None:
        """Write rows, in one Spark job; columns of the table that the frame hasn't are null in them, and take no room."""
        with self._fenced():
            files = self._txn.writeFiles(frame._jdf).toList()
            self._files = files if self._files is None else self._files.appendedAll(files)

    def commit(self, tags: Mapping[str, str] | None = None) -> Commit:
        """Make what is written the table's, with `tags` for who reads the log; return the commit."""
        log = self._log
        with self._fenced():
            if self._point:
                failpoints.hit(f"{self._point}.after_write")
            version = log._end(self._txn, self._files, self._lines, log._writing(_APPEND, note=self._note), tags or {})
        commit = log.commit(version)
        if commit is None or not commit.blind or any(commit.transactions.get(name) != own for name, own in self._lines.items()):
            raise StoreError(f"{log.path}: version {version} isn't the blind append {self._note} that was to be written there: {commit}")
        return commit

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        try:
            yield
        except JVM_ERRORS as error:
            if self._lines and conflict(error) in _FENCED:
                line = next(iter(self._lines))
                raise Fenced(f"{self._log.path}: another writer of {line!r} committed while this one was writing {self._note}") from None
            raise


def _hold(held: dict[Any, V], place: Any, found: V, most: int = _PINNED) -> V:
    """Remember what was found, and give it; once there is more than enough, what was found before is forgotten."""
    if len(held) > most:
        held.clear()
    held[place] = found
    return found


def _identity(file: Any) -> tuple[str, str]:
    """Tell a file of a table from others: by its path, and by which of its rows are deleted."""
    return str(file.path()), str(file.getDeletionVectorUniqueId())


def _changing(action: str) -> str:
    """Say of a file that it changes the table's rows: where it was read from a table's state, it doesn't say."""
    add = json.loads(action)["add"]
    return json.dumps({"add": add | {"dataChange": True}})


def conflict(error: Exception) -> str | None:
    """Name Delta's exception if the error is a lost race, else None."""
    if type(error).__name__ in CONFLICTS:
        return type(error).__name__
    cause = getattr(error, "java_exception", None)
    while cause is not None:
        name = cause.getClass().getSimpleName()
        if name in CONFLICTS:
            return str(name)
        cause = cause.getCause()
    return None
