"""Hold the changelog of an app: one Delta table in which one append is one transaction over all tables, outbox, quarantine and position.

    epoch, table, bucket (seq div 1000)   partitions
    seq                                   the commit's number along its lineage, 1, 2, 3 ...; the only column with statistics
    commit_v1                             table `__commit`: what the commit was, and from where to where
    quarantine_v1, dropped_v1, out_v1     tables `__quarantine`, `__dropped`, `__out_<topic>`
    days_v1                               table `__days`: which days the commits up to there touched; see `touched`
    <t>_<state version>                   table <t>: key, state delta, st; table `__gathered_<t>`: tombstones of all commits up to there

`__commit` rows are the only truth about progress. Rows of kind `batch` take the next seq; `fence`, `fold` and `days` rows are notes at the
seq that they found. An epoch is (parent, fork): its rows are the parent's up to the fork and its own after that, so along a lineage seq is
contiguous, and every read names the spans of seq that each epoch gives it. A shadow is an epoch that no lineage of a reader holds: it has
a writer of its own, and becomes part of the app by being the parent of a newer epoch, or not at all. A shadow of some tables only is
copied: the epoch that takes them over begins with one commit of all that they keep, and nothing from before that is theirs in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from watertable.compiler import DROPPED, OUT, QUARANTINE, Make, anew
from watertable.compiler.algebra import change_struct
from watertable.errors import FormatError, TableNotFound, UnknownPosition
from watertable.plan.deployment import Outline
from watertable.plan.plan import CHANGELOG, TableDef
from watertable.records import Headers
from watertable.schema import Schema, Type, check_identifier, quote
from watertable.store.commits import (
    BUCKET,
    CLOCK,
    FORMAT,
    KNOWN,
    OF_BUCKETS,
    Advance,
    CommitInfo,
    Head,
    Lineage,
    Offsets,
    Partition,
    Position,
    from_micros,
)
from watertable.store.deltalog import JVM_ERRORS, DeltaLog, Files, Snapshot, conflict
from watertable.store.memory import STEPS, Memory, Seen, rows_told, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

COMMIT_TABLE: Final = "__commit"
QUARANTINE_TABLE: Final = "__quarantine"
DROPPED_TABLE: Final = "__dropped"
DAYS_TABLE: Final = "__days"
OUT_PREFIX: Final = "__out_"
GATHERED_PREFIX: Final = "__gathered_"
"""Begins the name under which a fold keeps the tombstones of a table that it has gathered."""
EPOCH_LINE: Final = "watertable/epoch"
"""The transaction line of whatever begins or ends an epoch, or drops commits that one could begin from; the number is an epoch's."""
_WANTED: Final = "c.kind <> 'advances'"
"""What a look leaves out: the advances that trims keep get more for as long as an app runs, and only a replay asks for them."""
NEAR: Final = 500
"""As many of the newest commits are looked up all together, once, where something is asked of one of them."""
_GROWTH: Final = 12
"""Commits that tell how fast a changelog grows."""
_AT_HAND: Final = 4 << 20
"""Bytes of files of an outbox up to which they are read in one task: sorted in more, each partition is a job."""
_FRESH: Final = 3600.0
"""Seconds after a commit for which its files are where they came: OPTIMIZE and VACUUM leave them for longer, whatever the horizon."""

READERS: Final = timedelta(hours=6)
"""How long a reader may hold on to a version of a changelog, or of an archive, and how far back their logs go: a stream makes tens of
thousands of commits a day."""

_COMMIT_DDL: Final = (
    "STRUCT<format: INT, kind: STRING, generation: BIGINT, writer: STRING, commit_time: TIMESTAMP, "
    "fingerprint: STRING, suite_hash: STRING, "
    "partitions: ARRAY<STRUCT<topic: STRING, partition: INT, begin: BIGINT, next: BIGINT, stream_time: TIMESTAMP>>, "
    "topics: ARRAY<STRUCT<topic: STRING, id: STRING>>, "
    "advances: ARRAY<STRUCT<topic: STRING, partition: INT, before: BIGINT, stream_time: TIMESTAMP>>, "
    "folds: ARRAY<STRUCT<table: STRING, version: BIGINT, epoch: INT, seq: BIGINT, tombstones_from: BIGINT>>, "
    "parent: INT, fork: BIGINT, counters: MAP<STRING, BIGINT>>"
)
DAYS_COLUMN: Final = "days_v1"
DAYS_DDL: Final = "kind STRING, name STRING, day DATE, seq BIGINT, span STRING"
Outgoing = tuple[int, int, str, bytes | None, bytes | None, datetime, Headers]
"""What a commit has to publish: its seq, the number within it, topic, key, value, timestamp, headers."""
_CODE: Final = "watertable.code."
"""Table properties: by fingerprint, when a writer began, and the outline of its code, with which later code is compared."""
_CODES: Final = 16
"""How many of them are kept."""
_SYSTEM: Final = {
    "commit_v1": Type.parse(_COMMIT_DDL),
    "quarantine_v1": Schema.parse(QUARANTINE).struct(),
    "dropped_v1": Schema.parse(DROPPED).struct(),
    "out_v1": Schema(tuple(c for c in Schema.parse(OUT) if c.name != "topic")).struct(),
    DAYS_COLUMN: Schema.parse(DAYS_DDL).struct(),
}
SYSTEM_COLUMNS: Final = {name: kind.sql() for name, kind in _SYSTEM.items()}


class Changelog:
    """Reach the changelog of one app at `<warehouse>/<app>/changelog`."""

    def __init__(self, spark: SparkSession, warehouse: str, app: str) -> None:
        check_identifier(app, "app")
        self.spark, self.warehouse, self.app = spark, warehouse.rstrip("/"), app
        self.log = DeltaLog(spark, self.path)
        self.memory = Memory(self.log)
        self._once: tuple[Snapshot | None, dict[object, Any]] = None, {}

    @property
    def path(self) -> str:
        """Give the path of the Delta table."""
        return f"{self.warehouse}/{self.app}/{CHANGELOG}"

    def base_path(self, table: str) -> str:
        """Give the path of a table's Delta table."""
        return f"{self.warehouse}/{self.app}/{check_identifier(table, 'table')}"

    def create(self, tables: Sequence[TableDef], retention: timedelta) -> None:
        """Create the changelog where there is none; another process doing the same at the same time is no error."""
        columns = ["epoch INT", "`table` STRING", "bucket BIGINT", "seq BIGINT"]
        columns += [f"{quote(n)} {ddl}" for n, ddl in self._wanted(tables).items()]
        properties = {"delta.checkpointInterval": "100", "delta.dataSkippingStatsColumns": "seq", "watertable.format": str(FORMAT)}
        self.log.create(columns, properties | past_of(retention), ("epoch", "table", "bucket"))

    def code(self, fingerprint: str) -> Outline | None:
        """Outline the code of a fingerprint, under which somebody has written here; None for any other, or one of long ago."""
        said = self.snapshot().property(_code_property(fingerprint))
        return None if said is None else _outlined(said)

    def remember(self, code: Outline, since: datetime) -> None:
        """Remember the code of a writer that begins, before there is a commit by it: later code is compared with it.

        The codes of the newest writers are kept, as an undo goes back to one of before, and that of the app's last commit, however many
        begin after it. Where that of a shadow is another than its app's, the app's own writer notices, as where a column is added for it.
        """
        name, known = _code_property(code.fingerprint), self.snapshot().properties(_CODE)
        packed = (code.also_after(_outlined(known[name])) if name in known else code).packed()
        newest = sorted(known, key=lambda other: -float(known[other].partition(":")[0]))
        if newest[:1] == [name] and known[name].partition(":")[2] == packed:
            return
        old = [other for other in newest if other != name][_CODES - 1 :]
        if old and (last := self.head().last) is not None:
            old = [other for other in old if other != _code_property(last.fingerprint)]
        table = f"ALTER TABLE delta.{quote(self.path)}"
        self.spark.sql(f"{table} SET TBLPROPERTIES ('{name}' = '{since.timestamp():.6f}:{packed}')")
        if old:
            self.spark.sql(f"{table} UNSET TBLPROPERTIES ({', '.join(map(repr, old))})")

    def evolve(self, tables: Sequence[TableDef]) -> None:
        """Add columns of new tables, of new state versions, and those that an older release lacked; only while no other writer runs."""
        snapshot = self.snapshot()
        columns = snapshot.columns
        missing = {n: ddl for n, ddl in self._wanted(tables).items() if n not in columns}
        for name, kind in ((n, k) for n, k in _SYSTEM.items() if n in columns):
            members = snapshot.members(name)
            missing |= {f"{name}.{c.name}": c.type.sql() for c in kind.fields if c.name not in members}
        if missing:
            added = ", ".join(f"{'.'.join(map(quote, n.split('.')))} {ddl}" for n, ddl in missing.items())
            self.spark.sql(f"ALTER TABLE delta.{quote(self.path)} ADD COLUMNS ({added})")

    def snapshot(self) -> Snapshot:
        """Pin the changelog's newest version.

        Raises `TableNotFound` when the app has never run in this warehouse, `FormatError` when a newer release made its store.
        """
        snapshot = self.log.latest()
        if snapshot is None:
            raise TableNotFound(f"no app {self.app!r} in warehouse {self.warehouse}: it has never been started there")
        written = int(snapshot.property("watertable.format") or 0)
        if written > KNOWN:
            raise FormatError(f"{self.path} has store format {written}; this release knows {KNOWN}: upgrade it")
        return snapshot

    def rows(self, snapshot: Snapshot, where: str) -> list[CommitInfo]:
        """Read the `__commit` rows for which the condition (over epoch, bucket, seq, c) holds."""

        def look() -> list[CommitInfo]:
            rows = snapshot.frame().where(f"`table` = '{COMMIT_TABLE}'").selectExpr("epoch", "bucket", "seq", "commit_v1 AS c")
            return [CommitInfo.from_row(row) for row in rows.where(where).select("epoch", "seq", _portable("c").alias("c")).collect()]

        return self._looked_up(snapshot, where, look)

    def _looked_up(self, snapshot: Snapshot, what: object, look: Callable[[], T]) -> T:
        """Look something up in a version once, however many tables ask for it: a version never changes. Any thread may."""
        of, known = self._once
        if of is not snapshot:
            self._once = snapshot, (known := {})
        if what not in known:
            known[what] = look()
        found: T = known[what]
        return found

    def commits(self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int, kind: str = "batch") -> list[CommitInfo]:
        """Read the rows of one kind in commits (after, upto] of a lineage; a Spark job at most."""
        seen = self.seen(snapshot, lineage, after, upto, kind)
        return self.rows(snapshot, f"c.kind = '{kind}' AND {lineage.where(after, upto)}") if seen is None else seen

    def commit(self, snapshot: Snapshot, lineage: Lineage, seq: int) -> CommitInfo | None:
        """Read one commit of a lineage; None where it isn't kept, or never was. A Spark job at most."""
        return next(iter(self.commits(snapshot, lineage, seq - 1, seq)), None)

    def seen(self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int, kind: str = "batch") -> list[CommitInfo] | None:
        """List the rows that `commits` reads where this process has seen all of them, or they are `NEAR`; else None."""
        here = self._reach(snapshot, after)
        if here is None or here.since > after + 1:
            return None
        return [row for row in here.rows if row.kind == kind and after < row.seq <= upto and lineage.made(row.epoch, row.seq)]

    def extent(self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int) -> Extent:
        """Say how many commits of (after, upto] of a lineage are kept; a Spark job at most."""
        seen = self.seen(snapshot, lineage, after, upto)
        if seen is not None:
            first = min((row.seq for row in seen), default=None)
            return Extent(len(seen), first, sum(row.records for row in seen))

        def look() -> Extent:
            row = batches(snapshot, lineage, after, upto).agg(F.count("*"), F.min("seq"), F.expr("sum(c.counters['records'])")).head()
            assert row is not None
            return Extent(row[0], row[1], row[2] or 0)

        return self._looked_up(snapshot, (lineage, after, upto), look)

    def codes(self, snapshot: Snapshot, lineage: Lineage, upto: int) -> dict[str, int]:
        """Give the last commit up to one that each code has made, by fingerprint; of those kept. A Spark job at most."""
        seen = self.seen(snapshot, lineage, 0, upto)
        if seen is not None:
            return {row.fingerprint: row.seq for row in sorted(seen, key=lambda row: row.seq)}
        each = batches(snapshot, lineage, 0, upto).groupBy("c.fingerprint").agg(F.max("seq").alias("seq"))
        return {row["fingerprint"]: row["seq"] for row in each.collect()}

    def newest(
        self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int, holds: Callable[[CommitInfo], bool], *, records: int = 0
    ) -> CommitInfo | None:
        """Find the newest of the commits (after, upto] of a lineage for which something holds; None where none is kept.

        What holds must hold up to some commit and never beyond it: offsets, stream times and commit times only grow along a lineage. So the
        first commit of each bucket tells the bucket. One Spark job where it is among the newest, three at most. With `records`, it is one
        after which there are so many, up to `upto`.
        """
        here = self._reach(snapshot, max(after, upto - NEAR))
        since = upto + 1 if here is None else min(max(here.since, after + 1), upto + 1)
        found, later = _walk(self.seen(snapshot, lineage, since - 1, upto) or (), holds, records)
        if found is not None or since <= after + 1:
            return found
        for first, count in self._buckets(snapshot, lineage, after, since - 1):
            if later + count - first.records >= records and holds(first):
                bucket = lineage.where(first.seq - 1, min(since - 1, first.seq // BUCKET * BUCKET + BUCKET - 1))
                return _walk(self.rows(snapshot, f"c.kind = 'batch' AND {bucket}"), holds, records - later)[0]
            later += count
        return None

    def first(
        self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int, holds: Callable[[CommitInfo], bool]
    ) -> CommitInfo | None:  # fmt: skip
        """Find the oldest of the commits (after, upto] of a lineage for which something holds that holds from there on; see `newest`."""
        before = self.newest(snapshot, lineage, after, upto, lambda info: not holds(info))
        seq = self.extent(snapshot, lineage, after, upto).first if before is None else before.seq + 1
        return self.commit(snapshot, lineage, seq) if seq is not None and seq <= upto else None

    def _buckets(self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int) -> list[tuple[CommitInfo, int]]:
        """Give, newest first, the first commit of each bucket and how many records the bucket's commits are of; a Spark job."""
        each = batches(snapshot, lineage, after, upto).groupBy(F.expr(f"seq div {BUCKET}")).agg(
            F.min_by(F.struct("epoch", "seq", "c"), "seq").alias("first"), F.expr("sum(c.counters['records'])").alias("records")
        )  # fmt: skip
        found = each.selectExpr("first.epoch", "first.seq", "first.c", "coalesce(records, 0L) AS records")
        rows = sorted(found.withColumn("c", _portable("c")).collect(), key=lambda row: -row["seq"])
        return [(CommitInfo.from_row(row), row["records"]) for row in rows]

    def head(self, snapshot: Snapshot | None = None, *, epoch: int | None = None, since: int | None = None) -> Head:
        """Find the last commit of the current epoch, or of the one given.

        `since` is a seq that the lineage is thought to have reached: no commit before it is looked at, unless none is found after it.
        An epoch of which no commit is kept, not even where it forks, is at its fork, without a last commit.
        What this process has seen of the app before needn't be read again: what was committed since then, the log itself says.
        """
        snapshot = snapshot or self.snapshot()
        here = self.memory.follow(snapshot)
        if here is None or (since is not None and since < here.since):
            since = self.hint(snapshot) if since is None else since
            here = self._see(snapshot, since, here)
        return self._head(snapshot, here.rows, epoch, here.since)

    def _reach(self, snapshot: Snapshot, after: int) -> Seen | None:
        """Give what this process has seen of the app, back to a seq where that is near; None where it has seen nothing."""
        here = self.memory.follow(snapshot)
        if here is None or here.since <= after + 1 or max((row.seq for row in here.rows), default=0) - after > NEAR:
            return here
        return self._see(snapshot, after + 1, here)

    def _see(self, snapshot: Snapshot, since: int, here: Seen | None) -> Seen:
        """Look up all rows from a seq on; a Spark job."""
        rows = self.rows(snapshot, f"{_WANTED} AND (bucket = -1 OR (bucket >= {since // BUCKET} AND seq >= {since}))")
        files, recorded = (here.files, here.recorded) if here else ({}, None)
        return self.memory.keep(Seen(snapshot.table, snapshot.version, since, tuple(rows), files, recorded))

    def added(self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int, wanted: Callable[[str], bool]) -> Files | None:
        """List the files of wanted tables in commits (after, upto] of a lineage; None where this process hasn't read of all of them."""
        known, now, found = self.memory.files(snapshot), datetime.now(UTC), []
        for seq in range(max(after, lineage.after) + 1, upto + 1):
            files = known.get((lineage.epoch_of(seq), seq))
            if files is None or (now - files.made).total_seconds() > _FRESH:
                return None
            found += [file for file in files.added if wanted(file.table or "")]
        return self.log.files(found)

    def outgoing(self, snapshot: Snapshot, lineage: Lineage, seq: int) -> int | None:
        """Count what a commit of a lineage has to publish, as the log tells it; None where this process hasn't read of it."""
        files = self.memory.files(snapshot).get((lineage.epoch_of(seq), seq))
        counts = [None] if files is None else [file.rows for file in files.added if (file.table or "").startswith(OUT_PREFIX)]
        return None if None in counts else sum(count or 0 for count in counts)

    def listed(self, snapshot: Snapshot, where: str) -> Files:
        """List the files in which a condition may hold; a Spark job, once a version."""
        return self._looked_up(snapshot, ("files", where), lambda: snapshot.files(where))

    def grown(self, snapshot: Snapshot, wanted: Callable[[str], bool], apart: Collection[int] = ()) -> list[tuple[int, int]]:
        """Give of the newest commits how many records each is of, and how many bytes it added for wanted tables, as the log tells it.

        Those of the epochs in `apart` hold a part of the tables, and tell nothing of all.
        """
        found: list[tuple[int, int]] = []
        for version in range(snapshot.version, max(-1, snapshot.version - STEPS), -1):
            if len(found) == _GROWTH or (commit := self.log.commit(version)) is None:
                break  # log clean-up took it, and those before it
            size = sum(file.bytes for file in commit.added if wanted(file.table or ""))
            found += [(row.records, size) for row in rows_told(commit.tags) if row.kind == "batch" and row.epoch not in apart]
        return found

    def _head(self, snapshot: Snapshot, rows: Sequence[CommitInfo], epoch: int | None, since: int) -> Head:
        forks, holds = (sorted((r for r in rows if r.kind == kind), key=lambda r: r.generation) for kind in ("epoch", "hold"))
        shadows = sorted((r for r in rows if r.kind == "shadow"), key=lambda r: r.epoch)
        beside = {r.epoch for r in shadows}
        if epoch not in (None, 1, *(r.epoch for r in forks), *beside):
            raise UnknownPosition(f"app {self.app!r} has no epoch {epoch}")
        current = epoch if epoch is not None else forks[-1].epoch if forks else 1
        lineage = Lineage.of(current, (*forks, *shadows))
        batches = [r for r in rows if r.kind == "batch" and lineage.holds(r.epoch, r.seq)]
        if not batches and since > 0:  # an epoch has got to its fork at least, whatever its parent's rows say
            fork = lineage.spans[-1].after
            own = f"{_WANTED} AND (bucket = -1 OR {lineage.where(fork - 1, fork)} OR (epoch = {current} AND seq >= {fork}))"
            return self._head(snapshot, self.rows(snapshot, own), epoch, 0)
        last = max(batches, key=lambda r: r.seq, default=None)
        if last is not None and last.epoch != current:  # nothing of its own yet
            last = _behind_gaps(last, lineage, {r.epoch: r for r in (*forks, *shadows)})
        folds = {m for r in rows for m in r.folds if lineage.holds(m.epoch, m.seq)}
        of_writer = [r for r in rows if r.epoch == current] if current in beside else [r for r in rows if r.epoch not in beside]
        return Head(
            position=Position(self.app, current, last.seq if last else lineage.spans[-1].after), last=last,
            generation=max((r.generation for r in of_writer), default=0), lineage=lineage, version=snapshot.version,
            folds=tuple(sorted(folds, key=lambda m: (m.seq, m.table, m.version))),
            forks=tuple(forks), shadows=tuple(shadows),
            abandoned=frozenset(r.epoch for r in rows if r.kind == "abandoned"), holds=tuple(holds),
        )  # fmt: skip

    def advances(self, topic_ids: Mapping[str, str], where: str = "true") -> tuple[Advance, ...]:
        """List the advances that any epoch has recorded for these topics, the furthest for each place: they are part of the log.

        Each recorded clock is one by itself. Those of a topic that has been created anew since are of another log. `where` is a condition
        over epoch and bucket.
        """
        snapshot = self.snapshot()
        here = self.memory.follow(snapshot) if where == "true" else None
        known = None if here is None else here.recorded
        if known is None:
            known = self._advances(snapshot, where)
            if here is not None:
                self.memory.keep(replace(here, recorded=known).short())
        of_these = sorted((a for id, a in known if topic_ids.get(a.topic) == id), key=lambda a: a.stream_time)
        return tuple({(a.topic, a.partition, a.before, a.clock, a.clock and a.stream_time): a for a in of_these}.values())

    def _advances(self, snapshot: Snapshot, where: str) -> frozenset[tuple[str | None, Advance]]:
        """Look for advances, each with the id of its topic; a Spark job."""
        rows = snapshot.frame().where(f"`table` = '{COMMIT_TABLE}' AND {where}").selectExpr("commit_v1 AS c")
        rows = rows.where("size(c.advances) > 0")
        each = rows.selectExpr("explode(c.advances) AS a", "map_from_entries(c.topics) AS ids", "c.counters AS counters").selectExpr(
            "a.topic AS topic", "a.partition AS partition", "a.before AS before", "ids[a.topic] AS id",
            "unix_micros(a.stream_time) AS micros", "counters",
        )  # fmt: skip
        each = each.withColumn("clock", F.expr(f"try_element_at(counters, concat_ws(':', '{CLOCK[:-1]}', topic, partition, micros))"))
        place = ("topic", "partition", "before", "id", "clock", F.expr("CASE WHEN clock IS NOT NULL THEN micros END"))
        return frozenset(
            (r["id"], Advance(
                r["topic"], r["partition"], r["before"], from_micros(r["micros"]), None if r["clock"] is None else from_micros(r["clock"])
            )) for r in each.groupBy(*place).agg(F.max("micros").alias("micros")).collect()
        )  # fmt: skip

    def furthest(self, topic_ids: Mapping[str, str]) -> dict[Partition, int]:
        """Give, for each partition of these topics, the offset up to which any epoch has read it."""
        rows = self.snapshot().frame().where(f"`table` = '{COMMIT_TABLE}'").selectExpr("commit_v1 AS c").where("c.kind = 'batch'")
        each = rows.selectExpr("explode(c.partitions) AS p", "map_from_entries(c.topics) AS ids").selectExpr(
            "p.topic AS topic", "p.partition AS partition", "try_element_at(ids, p.topic) AS id", "p.next AS next"
        )
        found = each.groupBy("topic", "partition", "id").agg(F.max("next").alias("next")).where("next IS NOT NULL").collect()
        return {(r["topic"], r["partition"]): r["next"] for r in found if topic_ids.get(r["topic"]) == r["id"]}

    def hint(self, snapshot: Snapshot) -> int:
        """Give a seq to look for the head from, by the last commit's own words; 0 when log clean-up or OPTIMIZE has taken them."""
        for version in range(snapshot.version, max(-1, snapshot.version - 10), -1):
            commit = self.log.commit(version)
            if match := re.search(rf"{re.escape(self.app)}@\d+\.(\d+)", (commit and commit.user_metadata) or ""):
                return int(match[1])
        return 0

    def outbox(
        self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int, floor: Offsets | None = None, again: Collection[int] = (),
        sent: tuple[int, int] = (0, -1),
    ) -> Iterator[Outgoing]:  # fmt: skip
        """Read what commits (after, upto] have to publish, in order.

        A commit's rows never change, so neither do the numbers; those up to the seq and number in `sent` are left out. So is what comes
        from source records before `floor`, unless the commit is of an epoch in `again`. Pairs of records have several sources, and are all
        read. What few commits have is read in one task, one Spark job.
        """
        number = "CAST(row_number() OVER (PARTITION BY seq ORDER BY out_v1.ordinal, `table`) - 1 AS BIGINT) AS number"
        files = self.added(snapshot, lineage, after, upto, lambda name: name.startswith(OUT_PREFIX))
        if files is None:
            rows = snapshot.frame().where(f"startswith(`table`, '{OUT_PREFIX}') AND {lineage.where(after, upto)}")
        elif files.number:
            rows = snapshot.frame(files).coalesce(1) if files.bytes <= _AT_HAND else snapshot.frame(files)
        else:
            return
        rows = rows.selectExpr(
            "seq", number, f"substr(`table`, {len(OUT_PREFIX) + 1}) AS topic", "out_v1.key AS key", "out_v1.value AS value",
            "out_v1.headers AS headers", "unix_micros(out_v1.timestamp) AS micros", "out_v1 AS o", "epoch",
        )  # fmt: skip
        for (topic, partition), offset in (floor or {}).items():
            source = F.col("o.src_topic").eqNullSafe(F.lit(topic)) & F.col("o.src_partition").eqNullSafe(F.lit(partition))
            beyond = ~source | (F.col("o.src_offset") >= F.lit(offset))
            rows = rows.where(beyond | F.col("epoch").isin(*again) if again else beyond)
        if sent[0] > after:  # where nothing is to be left out, no number is in the plan: its code is that of the commit before
            rows = rows.where(f"seq > {sent[0]} OR (seq = {sent[0]} AND number > {sent[1]})")
        for row in rows.drop("o", "epoch").orderBy("seq", "number").toLocalIterator(prefetchPartitions=True):
            key, value = (None if row[c] is None else bytes(row[c]) for c in ("key", "value"))
            headers = tuple((name, bytes(said)) for name, said in row["headers"] or ())
            yield row["seq"], row["number"], row["topic"], key, value, from_micros(row["micros"]), headers

    def commit_frame(self, info: CommitInfo) -> DataFrame:
        """Make the `__commit` row."""
        struct = F.from_json(F.lit(info.to_json()), SYSTEM_COLUMNS["commit_v1"])
        return self.spark.range(0, 1, 1, 1).select(struct.alias("commit_v1"))

    def append_rows(self, parts: Sequence[Part], info: CommitInfo, *, bucket: int | None = None, make: Make = anew) -> DataFrame:
        """Bring the rows of one commit into the changelog's shape, the `__commit` row among them."""
        return shaped([*parts, system_part(self.commit_frame(info), "commit_v1", f"'{COMMIT_TABLE}'")], info.epoch, info.seq, bucket, make)

    def note(self, info: CommitInfo, note: str, parts: Sequence[Part] = ()) -> bool:
        """Append a `__commit` row that takes no seq, and rows beside it; False where a start that adds columns has won, and nothing is."""
        rows = self.append_rows(parts, info, bucket=None if info.kind in OF_BUCKETS else -1).coalesce(1)
        try:
            self.log.append(rows, note=note, tags=told(info))
        except JVM_ERRORS as error:
            if conflict(error) is None:
                raise
            return False
        return True

    def _wanted(self, tables: Sequence[TableDef]) -> dict[str, str]:
        return {**SYSTEM_COLUMNS, **{t.state_column: change_struct(t).sql() for t in tables}}


@dataclass(frozen=True, slots=True)
class Extent:
    """Hold how many commits there are of some, the seq of the first of them, and how many records they are of."""

    commits: int
    first: int | None
    records: int


@dataclass(frozen=True, slots=True)
class Part:
    """Hold the rows of one table in one commit: the frame, the struct column that takes its columns and its type, and the table as SQL."""

    frame: DataFrame
    column: str
    table: str
    kind: Type

    def struct(self) -> str:
        """Write the struct column as SQL over the frame's columns."""
        if self.column == "commit_v1":
            return self.column
        members = ", ".join(f"'{field.name}', {quote(field.name)}" for field in self.kind.fields)
        return f"named_struct({members}) AS {quote(self.column)}"

    def nothing(self) -> str:
        """Write the struct column of other tables' rows as SQL."""
        return f"CAST(NULL AS {self.kind.sql()}) AS {quote(self.column)}"


def _behind_gaps(last: CommitInfo, lineage: Lineage, begun: Mapping[int, CommitInfo]) -> CommitInfo:
    """Give the last commit of a lineage as an epoch goes on from it that has none of its own: behind what rewinds couldn't have any more.

    The rows that began the epochs say what that was.
    """
    epochs = [span.epoch for span in lineage.spans]
    since = epochs.index(last.epoch) + 1 if last.epoch in epochs else len(epochs) - 1
    offsets = dict(last.next)
    for epoch in epochs[since:]:
        offsets |= begun[epoch].next
    return replace(last, next={p: offsets[p] for p in last.next})  # of topics that it hasn't read yet there may be gaps, too


def _code_property(fingerprint: str) -> str:
    return _CODE + fingerprint.replace(":", "_")


def _outlined(said: str) -> Outline:
    """Read the outline of a code's property, which says first since when it is."""
    return Outline.unpack(said.partition(":")[2])


def table_part(table: TableDef, frame: DataFrame, prefix: str = "") -> Part:
    """Take the state deltas of one table, or of what is kept beside it under its name with a prefix."""
    return Part(frame, table.state_column, f"'{prefix}{table.name}'", change_struct(table))


def system_part(frame: DataFrame, column: str, table: str) -> Part:
    """Take rows that are no table's; `table` names in SQL whose they are."""
    return Part(frame, column, table, _SYSTEM[column])


def system_parts(outbox: DataFrame | None, quarantine: DataFrame | None, dropped: DataFrame | None) -> list[Part]:
    """Take the frames of a batch that are no table's."""
    found = [
        (outbox, "out_v1", f"concat('{OUT_PREFIX}', topic)"), (quarantine, "quarantine_v1", f"'{QUARANTINE_TABLE}'"),
        (dropped, "dropped_v1", f"'{DROPPED_TABLE}'"),
    ]  # fmt: skip
    return [system_part(frame, column, table) for frame, column, table in found if frame is not None]


def shaped(parts: Sequence[Part], epoch: int, seq: int, bucket: int | None = None, make: Make = anew) -> DataFrame:
    """Bring the rows of parts of one commit into the changelog's shape; `bucket` is for those that lie in none of their seq.

    Each part is given the columns of all at once: to let Spark find what a union lacks costs it the square of the parts.
    """
    # a number in a plan is written into its code, which would be compiled anew, and be cold, in each batch; in an array it is data
    numbers = {"epoch": f"{epoch}", "bucket": f"{seq // BUCKET if bucket is None else bucket}L", "seq": f"{seq}L"}
    of_epoch, bucketed, number = (F.expr(f"array({n})[least(spark_partition_id(), 0)] AS {name}") for name, n in numbers.items())
    nothing = {part.column: part.nothing() for part in parts}

    def steps(*frames: DataFrame) -> DataFrame:
        return reduce(DataFrame.union, [
            frame.selectExpr(
                f"{part.table} AS `table`", *(part.struct() if column == part.column else null for column, null in nothing.items())
            ) for frame, part in zip(frames, parts, strict=True)
        ])  # fmt: skip

    rows = make(("rows", *((part.table, part.column) for part in parts)), steps, *(part.frame for part in parts))
    return rows.select(of_epoch, "table", bucketed, number, *map(quote, nothing))


def batches(snapshot: Snapshot, lineage: Lineage, after: int, upto: int) -> DataFrame:
    """Read the commits (after, upto] of a lineage: `epoch`, `seq`, and `c`, the struct of their `__commit` row."""
    rows = snapshot.frame().where(f"`table` = '{COMMIT_TABLE}' AND {lineage.where(after, upto)}")
    return rows.selectExpr("epoch", "seq", "commit_v1 AS c").where("c.kind = 'batch'")


def interval(duration: timedelta) -> str:
    """Write a duration as Delta's table properties take it."""
    return f"interval {max(1, int(duration.total_seconds()))} seconds"


def past_of(duration: timedelta) -> dict[str, str]:
    """Give the properties of a table whose past Delta is to keep for so long: files that are no longer its, and its log."""
    return dict.fromkeys(("delta.deletedFileRetentionDuration", "delta.logRetentionDuration"), interval(duration))


def _portable(column: str) -> Any:
    """Turn the timestamps of a `__commit` struct into microseconds: collected timestamps would depend on this process's time zone."""
    c = F.col(column)
    moved = c.withField("commit_time", F.unix_micros(c["commit_time"]))
    for name in ("partitions", "advances"):
        moved = moved.withField(name, F.transform(c[name], lambda e: e.withField("stream_time", F.unix_micros(e["stream_time"]))))
    return moved


def _walk(rows: Iterable[CommitInfo], holds: Callable[[CommitInfo], bool], records: int) -> tuple[CommitInfo | None, int]:
    """Find the newest of some commits for which something holds, with so many records after it; count the records down to there."""
    later = 0
    for row in sorted(rows, key=lambda row: -row.seq):
        if later >= records and holds(row):
            return row, later
        later += row.records
    return None, later
