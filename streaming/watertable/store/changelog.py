"""Hold the changelog of an app: one Delta table in which one append is one transaction over all tables, outbox, quarantine and position.

    epoch, table, bucket (seq div 1000)   partitions
    seq                                   the commit's number along its lineage, 1, 2, 3 ...; the only column with statistics
    commit_v1                             table `__commit`: what the commit was, and from where to where
    quarantine_v1, dropped_v1, out_v1     tables `__quarantine`, `__dropped`, `__out_<topic>`
    <t>_<state version>                   table <t>: key, state delta, st

`__commit` rows are the only truth about progress. Rows of kind `batch` take the next seq; `fence` and `fold` rows are notes at the seq
that they found. An epoch is (parent, fork): its rows are the parent's up to the fork and its own after that, so along a lineage seq is
contiguous, and every read names the spans of seq that each epoch gives it. A shadow is an epoch that no lineage of a reader holds: it has
a writer of its own, and becomes part of the app by being the parent of a newer epoch, or not at all. A shadow of some tables only is
copied: the epoch that takes them over begins with one commit of all that they keep, and nothing from before that is theirs in it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from watertable.compiler import DROPPED, OUT, QUARANTINE
from watertable.compiler.algebra import change_struct
from watertable.compiler.layout import moment
from watertable.errors import FormatError, TableNotFound, UnknownPosition
from watertable.plan.plan import TableDef
from watertable.records import Headers
from watertable.schema import Schema, check_identifier, quote
from watertable.store.deltalog import DeltaLog, Snapshot

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

FORMAT: Final = 1
"""Counts the layout of changelog and tables; what is greater than `KNOWN`, found in a store, is refused."""
REBUILT: Final = 2
"""The format of an epoch's row which has some tables begin anew."""
CLOCKED: Final = 3
"""The format of a commit in which the wall clock was recorded: what is called there would be missing in an earlier release's replay."""
KNOWN: Final = CLOCKED
"""The greatest format that is understood."""
BUCKET: Final = 1000
"""Commits per partition: the grain of trimming, and what OPTIMIZE makes one file of."""
COMMIT_TABLE: Final = "__commit"
QUARANTINE_TABLE: Final = "__quarantine"
DROPPED_TABLE: Final = "__dropped"
OUT_PREFIX: Final = "__out_"

OF: Final = "of:"
"""In the counters of a shadow's and an epoch's row: begins the names of the tables that it is of, where it isn't of all."""
JOINED: Final = "joined"
"""In the counters of an epoch's row: the shadow whose tables it takes over."""

DAYS: Final = ("days:first", "days:last")
"""In the counters of these rows: the days, counted from the year 1 on, whose windows alone are made anew."""
UNTIL: Final = "until"
"""In the counters of a shadow's row: the commit of the app up to which it reads; where it isn't there, as far as the app does."""

EMIT: Final = "emit"
"""In the counters of an epoch's or a shadow's row: the epoch from which on its lineage publishes all that it makes, again or not."""
BACK: Final = "back"
"""In the counters of an epoch's row: the epoch that an undo of it goes back to; 0 for none."""

DaySpan = tuple[date, date]
CLOCK: Final = "clock:"
"""In the counters of a commit's row: the wall clock, in microseconds, of the advance of a topic's partition to a stream time."""

Partition = tuple[str, int]
Offsets = Mapping[Partition, int]

_COMMIT_DDL: Final = (
    "STRUCT<format: INT, kind: STRING, generation: BIGINT, writer: STRING, commit_time: TIMESTAMP, "
    "fingerprint: STRING, suite_hash: STRING, "
    "partitions: ARRAY<STRUCT<topic: STRING, partition: INT, begin: BIGINT, next: BIGINT, stream_time: TIMESTAMP>>, "
    "topics: ARRAY<STRUCT<topic: STRING, id: STRING>>, "
    "advances: ARRAY<STRUCT<topic: STRING, partition: INT, before: BIGINT, stream_time: TIMESTAMP>>, "
    "folds: ARRAY<STRUCT<table: STRING, version: BIGINT, epoch: INT, seq: BIGINT, tombstones_from: BIGINT>>, "
    "parent: INT, fork: BIGINT, counters: MAP<STRING, BIGINT>>"
)
_SYSTEM: Final = {
    "quarantine_v1": Schema.parse(QUARANTINE),
    "dropped_v1": Schema.parse(DROPPED),
    "out_v1": Schema(tuple(c for c in Schema.parse(OUT) if c.name != "topic")),
}
SYSTEM_COLUMNS: Final = {
    "commit_v1": _COMMIT_DDL,
    **{name: schema.struct().sql() for name, schema in _SYSTEM.items()},
}


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Name an app's place: everything up to commit `seq` of the lineage of `epoch`. Written `retail@1.48211`.

    >>> Position.parse("retail@3.48211")
    Position(app='retail', epoch=3, seq=48211)
    >>> str(Position("retail", 3, 48211))
    'retail@3.48211'
    """

    app: str
    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.app}@{self.epoch}.{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` writes; raise `UnknownPosition` for anything else."""
        match = re.fullmatch(r"([A-Za-z_]\w*)@(\d+)\.(\d+)", text)
        if match is None:
            raise UnknownPosition(f"{text!r} is no position; write app@epoch.seq, e.g. retail@1.48211")
        return cls(match[1], int(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class Advance:
    """Record the decision to let a partition's stream time go on without records: before this offset it counts as `stream_time`.

    With a `clock`, it records what the clock on the wall was there.
    """

    topic: str
    partition: int
    before: int
    stream_time: datetime
    clock: datetime | None = None

    @property
    def counter(self) -> str:
        """Name the counter of its commit that has its clock."""
        return f"{CLOCK}{self.topic}:{self.partition}:{_since(self.stream_time)}"


@dataclass(frozen=True, slots=True)
class FoldMark:
    """Record that a version of a table's Delta table holds the fold of everything up to (epoch, seq).

    Tombstones of commits from `tombstones_from` on may still be needed: an earlier record could come.
    """

    table: str
    version: int
    epoch: int
    seq: int
    tombstones_from: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """Hold one row of `__commit`.

    `begin` and `next` are offsets by (topic, partition): this commit read [begin, next). `stream_times` are those after it. Kinds:
    `batch` (takes a seq), `fence` (a writer begins), `fold` (tables were folded), `epoch` (an epoch becomes current; `parent`, `fork`),
    `shadow` (an epoch begins beside the current one; `parent`, `fork`), `abandoned` (a shadow is given up), `hold` (the app's writer is
    asked to wait for what comes next), `advances` (those of commits that were trimmed).
    """

    kind: str = "batch"
    epoch: int = 1
    seq: int = 0
    generation: int = 0
    writer: str = ""
    commit_time: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    fingerprint: str = ""
    suite_hash: str = ""
    begin: Offsets = field(default_factory=dict)
    next: Offsets = field(default_factory=dict)
    stream_times: Mapping[Partition, datetime | None] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    advances: tuple[Advance, ...] = ()
    folds: tuple[FoldMark, ...] = ()
    parent: int | None = None
    fork: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def of(self) -> frozenset[str]:
        """Name the tables that a shadow makes, or that an epoch has anew; none stands for all of them, and for none."""
        return frozenset(name.removeprefix(OF) for name in self.counters if name.startswith(OF))

    @property
    def days(self) -> DaySpan | None:
        """Give the first and the last of the days whose windows alone are made anew; None where all is."""
        first, last = (self.counters.get(name, 0) for name in DAYS)
        return (date.fromordinal(first), date.fromordinal(last)) if first else None

    @property
    def low_stream_time(self) -> datetime | None:
        """Give the stream time that every partition has reached; None while one has none."""
        times = list(self.stream_times.values())
        return None if not times or None in times else min(t for t in times if t is not None)

    def to_json(self) -> str:
        """Write the row's struct as JSON, as Spark's `from_json` reads it."""
        parts = sorted(set(self.begin) | set(self.next) | set(self.stream_times))
        clocks = {a.counter: _since(a.clock) for a in self.advances if a.clock is not None}
        return json.dumps({
            "format": max(self.format, CLOCKED) if clocks else self.format, "kind": self.kind, "generation": self.generation,
            "writer": self.writer, "commit_time": _iso(self.commit_time), "fingerprint": self.fingerprint, "suite_hash": self.suite_hash,
            "partitions": [
                {"topic": p[0], "partition": p[1], "begin": self.begin.get(p), "next": self.next.get(p),
                 "stream_time": _iso(self.stream_times.get(p))} for p in parts
            ],
            "topics": [{"topic": t, "id": i} for t, i in sorted(self.topic_ids.items())],
            "advances": [
                {"topic": a.topic, "partition": a.partition, "before": a.before, "stream_time": _iso(a.stream_time)} for a in self.advances
            ],
            "folds": [
                {"table": m.table, "version": m.version, "epoch": m.epoch, "seq": m.seq, "tombstones_from": m.tombstones_from}
                for m in self.folds
            ],
            "parent": self.parent, "fork": self.fork, "counters": {**self.counters, **clocks},
        })  # fmt: skip

    @classmethod
    def from_row(cls, row: Row) -> CommitInfo:
        """Read a row (epoch, seq, c); raise `FormatError` when a newer release wrote it."""
        c = row["c"]
        if c["format"] > KNOWN:
            raise FormatError(f"commit {row['epoch']}.{row['seq']} has store format {c['format']}; this release knows {KNOWN}: upgrade it")
        parts = {(p["topic"], p["partition"]): p for p in c["partitions"]}
        advances = [Advance(a["topic"], a["partition"], a["before"], _micros(a["stream_time"])) for a in c["advances"]]
        clocks = {name: _micros(value) for name, value in c["counters"].items() if name.startswith(CLOCK)}
        return cls(
            kind=c["kind"], epoch=row["epoch"], seq=row["seq"], generation=c["generation"], writer=c["writer"],
            commit_time=_micros(c["commit_time"]), fingerprint=c["fingerprint"], suite_hash=c["suite_hash"],
            begin={k: p["begin"] for k, p in parts.items() if p["begin"] is not None},
            next={k: p["next"] for k, p in parts.items() if p["next"] is not None},
            stream_times={k: None if p["stream_time"] is None else _micros(p["stream_time"]) for k, p in parts.items()},
            topic_ids={t["topic"]: t["id"] for t in c["topics"]},
            advances=tuple(replace(a, clock=clocks.get(a.counter)) for a in advances),
            folds=tuple(FoldMark(m["table"], m["version"], m["epoch"], m["seq"], m["tombstones_from"]) for m in c["folds"]),
            parent=c["parent"], fork=c["fork"], format=c["format"],
            counters={name: value for name, value in c["counters"].items() if name not in clocks},
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """Give the commits (after, upto] of one epoch; `upto` None is open."""

    epoch: int
    after: int
    upto: int | None


@dataclass(frozen=True, slots=True)
class Anew:
    """Say that tables begin anew behind a commit: nothing before it is theirs any more. Of `days`, only their windows may differ."""

    after: int
    tables: frozenset[str]
    days: DaySpan | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """Follow one epoch back to the first: which commits of which epoch its rows are, and which tables begin anew on the way."""

    spans: tuple[Span, ...]
    rebuilt: tuple[Anew, ...] = ()

    @classmethod
    def of(cls, epoch: int, forks: Iterable[CommitInfo]) -> Lineage:
        """Build the lineage of an epoch from the rows of kind `epoch` and `shadow`."""
        forks = tuple(forks)
        parents = {row.epoch: (row.parent, row.fork) for row in forks}
        spans: list[Span] = []
        upto: int | None = None
        while epoch in parents and parents[epoch][0] is not None:
            parent, fork = parents[epoch]
            assert parent is not None
            assert fork is not None
            fork = fork if upto is None else min(fork, upto)
            spans.insert(0, Span(epoch, fork, upto))
            epoch, upto = parent, fork
        found = {span.epoch: span.after for span in spans if span.upto is None or span.after < span.upto}
        rebuilt = (Anew(found[row.epoch], row.of, row.days) for row in forks if row.kind == "epoch" and row.of and row.epoch in found)
        return cls((Span(epoch, 0, upto), *spans), tuple(sorted(rebuilt, key=lambda anew: anew.after)))

    def anew(self, table: str, seq: int) -> Anew | None:
        """Say where one table as it is at commit `seq` was begun anew last."""
        return next((anew for anew in reversed(self.rebuilt) if table in anew.tables and anew.after < seq), None)

    def of_table(self, table: str, seq: int) -> Lineage:
        """Give the lineage of one table's rows as they are at commit `seq`: from where it was begun anew on.

        >>> joined = Lineage((Span(1, 0, 500), Span(3, 500, None)), (Anew(500, frozenset({"stock"})),))
        >>> joined.of_table("stock", 501).spans, joined.of_table("stock", 500) == joined.of_table("names", 501) == joined
        ((Span(epoch=3, after=500, upto=None),), True)
        """
        if (anew := self.anew(table, seq)) is None:
            return self
        begins = anew.after
        return Lineage(tuple(Span(s.epoch, max(s.after, begins), s.upto) for s in self.spans if s.upto is None or s.upto > begins))

    @property
    def after(self) -> int:
        """Give the commit behind which it begins."""
        return self.spans[0].after

    @property
    def epoch(self) -> int:
        """Give the epoch whose lineage this is."""
        return self.spans[-1].epoch

    def holds(self, epoch: int, seq: int) -> bool:
        """Tell whether the state right after commit `seq`, as an epoch has it, is on this lineage: an ancestor, not a branch that was left.

        An epoch has what it inherits, too.

        >>> lineage = Lineage((Span(1, 0, 500), Span(3, 500, None)))
        >>> lineage.holds(1, 500), lineage.holds(1, 501), lineage.holds(2, 400), lineage.holds(3, 400), lineage.holds(3, 501)
        (True, False, False, True, True)
        """
        return seq == 0 or (seq > self.after and any(s.epoch == epoch and (s.upto is None or seq <= s.upto) for s in self.spans))

    def epoch_of(self, seq: int) -> int:
        """Give the epoch that made commit `seq` of this lineage."""
        return next((s.epoch for s in self.spans if s.after < seq and (s.upto is None or seq <= s.upto)), self.spans[0].epoch)

    def common(self, other: Lineage) -> int:
        """Give the last seq that two lineages share; of one and the same, the greatest number there is.

        >>> old, new = Lineage((Span(1, 0, None),)), Lineage((Span(1, 0, 500), Span(2, 500, None)))
        >>> old.common(new), new.common(new) == sys.maxsize
        (500, True)
        """
        shared = 0
        for a, b in zip(self.spans, other.spans, strict=False):
            if a.epoch != b.epoch:
                break
            shared = max(shared, min(end for end in (a.upto, b.upto, sys.maxsize) if end is not None))
            if a.upto != b.upto:
                break
        return shared

    def where(self, after: int, upto: int) -> str:
        """Write the condition for rows of commits (after, upto] of this lineage; partition columns first, so that files are skipped."""
        parts = []
        for span in self.spans:
            low, high = max(after, span.after), upto if span.upto is None else min(upto, span.upto)
            if low < high:
                buckets = f"bucket BETWEEN {(low + 1) // BUCKET} AND {high // BUCKET}"
                parts.append(f"(epoch = {span.epoch} AND {buckets} AND seq > {low} AND seq <= {high})")
        return "(" + " OR ".join(parts) + ")" if parts else "false"


@dataclass(frozen=True, slots=True)
class Head:
    """Hold where an app stands at one version of its changelog."""

    position: Position
    last: CommitInfo | None
    generation: int
    lineage: Lineage
    version: int
    folds: tuple[FoldMark, ...]
    forks: tuple[CommitInfo, ...] = ()
    """The rows of kind `epoch`, oldest first: every rewind, promote and undo there was."""
    shadows: tuple[CommitInfo, ...] = ()
    """The rows of kind `shadow`, oldest first: every shadow there was."""
    abandoned: frozenset[int] = frozenset()
    """The shadows that were given up."""
    holds: tuple[CommitInfo, ...] = ()
    """The rows of kind `hold`, oldest first."""

    @property
    def shadow(self) -> CommitInfo | None:
        """Give the shadow that replays beside the current epoch; None where there is none, or it was promoted, joined or given up."""
        over = self.abandoned | {epoch for fork in self.forks for epoch in (fork.parent, fork.counters.get(JOINED))}
        return next((row for row in reversed(self.shadows) if row.epoch not in over), None)

    @property
    def next_epoch(self) -> int:
        """Give the number that the next epoch takes, be it a shadow or not."""
        return max((row.epoch for row in (*self.forks, *self.shadows)), default=1) + 1

    def lineage_of(self, epoch: int) -> Lineage:
        """Give the lineage of any epoch there was."""
        return Lineage.of(epoch, (*self.forks, *self.shadows))

    def emitting(self, epoch: int) -> frozenset[int]:
        """Name the epochs of one's lineage whose output is published whatever was published before: its own, and a shadow's it promoted.

        None where nobody has asked for it.
        """
        since = next((row.counters.get(EMIT, 0) for row in self.forks if row.epoch == epoch), 0)
        return frozenset(span.epoch for span in self.lineage_of(epoch).spans if since and span.epoch >= since)


class Changelog:
    """Reach the changelog of one app at `<warehouse>/<app>/changelog`."""

    def __init__(self, spark: SparkSession, warehouse: str, app: str) -> None:
        check_identifier(app, "app")
        self.spark, self.warehouse, self.app = spark, warehouse.rstrip("/"), app
        self.log = DeltaLog(spark, self.path)

    @property
    def path(self) -> str:
        """Give the path of the Delta table."""
        return f"{self.warehouse}/{self.app}/changelog"

    def base_path(self, table: str) -> str:
        """Give the path of a table's Delta table."""
        return f"{self.warehouse}/{self.app}/{check_identifier(table, 'table')}"

    def create(self, tables: Sequence[TableDef], retention: timedelta) -> None:
        """Create the changelog where there is none; another process doing the same at the same time is no error."""
        if self.log.exists():
            return
        columns = ["epoch INT", "`table` STRING", "bucket BIGINT", "seq BIGINT"]
        columns += [f"{quote(n)} {ddl}" for n, ddl in self._wanted(tables).items()]
        days = interval(retention)
        try:
            self.spark.sql(
                f"CREATE TABLE delta.{quote(self.path)} ({', '.join(columns)}) USING delta PARTITIONED BY (epoch, `table`, bucket) "
                "TBLPROPERTIES ('delta.checkpointInterval' = '100', 'delta.dataSkippingStatsColumns' = 'seq', "
                f"'delta.deletedFileRetentionDuration' = '{days}', 'delta.logRetentionDuration' = '{days}', "
                f"'watertable.format' = '{FORMAT}')"
            )
        except Exception:
            if not self.log.exists():
                raise

    def evolve(self, tables: Sequence[TableDef]) -> None:
        """Add columns of new tables, of new state versions, and those that an older release lacked; only while no other writer runs."""
        snapshot = self.snapshot()
        columns = snapshot.columns
        missing = {n: ddl for n, ddl in self._wanted(tables).items() if n not in columns}
        for name, schema in ((n, s) for n, s in _SYSTEM.items() if n in columns):
            members = snapshot.members(name)
            missing |= {f"{name}.{c.name}": c.type.sql() for c in schema if c.name not in members}
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
        found = (
            snapshot.frame().where(f"`table` = '{COMMIT_TABLE}'").selectExpr("epoch", "bucket", "seq", "commit_v1 AS c").where(where)
        ).select("epoch", "seq", _portable("c").alias("c"))  # fmt: skip
        return [CommitInfo.from_row(row) for row in found.collect()]

    def head(self, snapshot: Snapshot | None = None, *, epoch: int | None = None, since: int | None = None) -> Head:
        """Find the last commit of the current epoch, or of the one given.

        `since` is a seq that the lineage is thought to have reached: no commit before it is looked at, unless none is found after it.
        """
        snapshot = snapshot or self.snapshot()
        since = self.hint(snapshot) if since is None else since
        return self._head(snapshot, self.rows(snapshot, f"bucket = -1 OR (bucket >= {since // BUCKET} AND seq >= {since})"), epoch, since)

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
            own = f"bucket = -1 OR {lineage.where(fork - 1, fork)} OR (epoch = {current} AND seq >= {fork})"
            return self._head(snapshot, self.rows(snapshot, own), epoch, 0)
        last = max(batches, key=lambda r: r.seq, default=None)
        if last is not None and last.epoch != current:  # nothing of its own yet: it goes on behind what its rewind couldn't have any more
            gaps = next(r for r in (*forks, *shadows) if r.epoch == current).next
            last = replace(last, next={**last.next, **gaps})
        return Head(
            position=Position(self.app, current, last.seq if last else 0), last=last,
            generation=max((r.generation for r in rows if (r.epoch == current if current in beside else r.epoch not in beside)), default=0),
            lineage=lineage, version=snapshot.version,
            folds=tuple(m for r in rows for m in r.folds if lineage.holds(m.epoch, m.seq)), forks=tuple(forks), shadows=tuple(shadows),
            abandoned=frozenset(r.epoch for r in rows if r.kind == "abandoned"), holds=tuple(holds),
        )  # fmt: skip

    def advances(self, topic_ids: Mapping[str, str], where: str = "true") -> tuple[Advance, ...]:
        """List the advances that any epoch has recorded for these topics, the furthest for each place: they are part of the log.

        Each recorded clock is one by itself. Those of a topic that has been created anew since are of another log. `where` is a condition
        over epoch and bucket.
        """
        rows = self.snapshot().frame().where(f"`table` = '{COMMIT_TABLE}' AND {where}").selectExpr("commit_v1 AS c")
        rows = rows.where("size(c.advances) > 0")
        each = rows.selectExpr("explode(c.advances) AS a", "map_from_entries(c.topics) AS ids", "c.counters AS counters").selectExpr(
            "a.topic AS topic", "a.partition AS partition", "a.before AS before", "ids[a.topic] AS id",
            "unix_micros(a.stream_time) AS micros", "counters",
        )  # fmt: skip
        each = each.withColumn("clock", F.expr(f"try_element_at(counters, concat_ws(':', '{CLOCK[:-1]}', topic, partition, micros))"))
        place = ("topic", "partition", "before", "id", "clock", F.expr("CASE WHEN clock IS NOT NULL THEN micros END"))
        furthest = each.groupBy(*place).agg(F.max("micros").alias("micros")).collect()
        return tuple(
            Advance(r["topic"], r["partition"], r["before"], _micros(r["micros"]), None if r["clock"] is None else _micros(r["clock"]))
            for r in furthest if topic_ids.get(r["topic"]) == r["id"]
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
        self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int, floor: Offsets | None = None, again: Collection[int] = ()
    ) -> Iterator[tuple[int, int, str, bytes | None, bytes | None, datetime, Headers]]:
        """Read what commits (after, upto] have to publish, in order: seq, number within the commit, topic, key, value, timestamp, headers.

        A commit's rows never change, so neither do the numbers; whoever reads a commit here reads all of it, but for what comes from
        source records before `floor`, unless the commit is of an epoch in `again`. Pairs of records have several sources, and are all read.
        """
        number = "CAST(row_number() OVER (PARTITION BY seq ORDER BY out_v1.ordinal, `table`) - 1 AS BIGINT) AS number"
        rows = snapshot.frame().where(f"startswith(`table`, '{OUT_PREFIX}') AND {lineage.where(after, upto)}").selectExpr(
            "seq", number, f"substr(`table`, {len(OUT_PREFIX) + 1}) AS topic", "out_v1.key AS key", "out_v1.value AS value",
            "out_v1.headers AS headers", "unix_micros(out_v1.timestamp) AS micros", "out_v1 AS o", "epoch",
        )  # fmt: skip
        for (topic, partition), offset in (floor or {}).items():
            source = F.col("o.src_topic").eqNullSafe(F.lit(topic)) & F.col("o.src_partition").eqNullSafe(F.lit(partition))
            beyond = ~source | (F.col("o.src_offset") >= F.lit(offset))
            rows = rows.where(beyond | F.col("epoch").isin(*again) if again else beyond)
        for row in rows.drop("o", "epoch").orderBy("seq", "number").toLocalIterator(prefetchPartitions=True):
            key, value = (None if row[c] is None else bytes(row[c]) for c in ("key", "value"))
            headers = tuple((name, bytes(said)) for name, said in row["headers"] or ())
            yield row["seq"], row["number"], row["topic"], key, value, _micros(row["micros"]), headers

    def commit_frame(self, info: CommitInfo) -> DataFrame:
        """Make the `__commit` row."""
        struct = F.from_json(F.lit(info.to_json()), SYSTEM_COLUMNS["commit_v1"])
        return self.spark.range(0, 1, 1, 1).select(struct.alias("commit_v1"))

    def append_rows(self, parts: Sequence[Part], info: CommitInfo, *, bucket: int | None = None) -> DataFrame:
        """Bring the rows of one commit into the changelog's shape, the `__commit` row among them.

        Each part is given the columns of all at once: to let Spark find what a union lacks costs it the square of the parts.
        """
        # a number in a plan is written into its code, which would be compiled anew, and be cold, in each batch; in an array it is data
        seq = F.expr(f"array({info.seq}L)[least(spark_partition_id(), 0)] AS seq")
        epoch, bucketed = F.expr(f"{info.epoch} AS epoch"), F.expr(f"{info.seq // BUCKET if bucket is None else bucket}L AS bucket")
        every = [*parts, Part(self.commit_frame(info), "commit_v1", f"'{COMMIT_TABLE}'")]
        nothing = {part.column: F.lit(None).cast(part.kind).alias(part.column) for part in every}
        shaped = [
            part.frame.select(
                epoch, F.expr(f"{part.table} AS `table`"), bucketed, seq,
                *(F.expr(part.struct()) if column == part.column else null for column, null in nothing.items()),
            ) for part in every
        ]  # fmt: skip
        return reduce(DataFrame.union, shaped)

    def _wanted(self, tables: Sequence[TableDef]) -> dict[str, str]:
        return {**SYSTEM_COLUMNS, **{t.state_column: change_struct(t).sql() for t in tables}}


@dataclass(frozen=True, slots=True)
class Part:
    """Hold the rows of one table in one commit: the frame, the struct column that takes its columns, and the table's name as SQL."""

    frame: DataFrame
    column: str
    table: str

    @property
    def kind(self) -> DataType:
        """Give the type of the struct column."""
        if self.column == "commit_v1":
            return self.frame.schema["commit_v1"].dataType
        return StructType(self._fields)

    def struct(self) -> str:
        """Write the struct column as SQL over the frame's columns."""
        if self.column == "commit_v1":
            return "commit_v1"
        members = ", ".join(f"'{field.name}', {quote(field.name)}" for field in self._fields)
        return f"named_struct({members}) AS {quote(self.column)}"

    @property
    def _fields(self) -> list[StructField]:
        return [field for field in self.frame.schema if not (self.column == "out_v1" and field.name == "topic")]


def table_part(table: TableDef, frame: DataFrame) -> Part:
    """Take the state deltas of one table."""
    return Part(frame.select("key", "state", "st"), table.state_column, f"'{table.name}'")


def system_parts(outbox: DataFrame | None, quarantine: DataFrame | None, dropped: DataFrame | None) -> list[Part]:
    """Take the frames of a batch that are no table's."""
    found = [
        (outbox, "out_v1", f"concat('{OUT_PREFIX}', topic)"), (quarantine, "quarantine_v1", f"'{QUARANTINE_TABLE}'"),
        (dropped, "dropped_v1", f"'{DROPPED_TABLE}'"),
    ]  # fmt: skip
    return [Part(frame, column, table) for frame, column, table in found if frame is not None]


def batches(snapshot: Snapshot, lineage: Lineage, after: int, upto: int) -> DataFrame:
    """Read the commits (after, upto] of a lineage: `seq`, and `c`, the struct of their `__commit` row."""
    rows = snapshot.frame().where(f"`table` = '{COMMIT_TABLE}' AND {lineage.where(after, upto)}").selectExpr("seq", "commit_v1 AS c")
    return rows.where("c.kind = 'batch'")


def interval(duration: timedelta) -> str:
    """Write a duration as Delta's table properties take it."""
    return f"interval {max(1, int(duration.total_seconds()))} seconds"


def now_after(earlier: datetime | None) -> datetime:
    """Give the time of a commit: now, but never before the commit that it follows."""
    now = datetime.now(UTC)
    return now if earlier is None else max(now, earlier)


def _portable(column: str) -> Any:
    """Turn the timestamps of a `__commit` struct into microseconds: collected timestamps would depend on this process's time zone."""
    c = F.col(column)
    moved = c.withField("commit_time", F.unix_micros(c["commit_time"]))
    for name in ("partitions", "advances"):
        moved = moved.withField(name, F.transform(c[name], lambda e: e.withField("stream_time", F.unix_micros(e["stream_time"]))))
    return moved


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _since(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _micros(value: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)


def offsets_passed(offsets: Offsets) -> str:
    """Write the condition for commits (`c`) at which no partition had passed these offsets."""
    parts = []
    for (topic, partition), offset in offsets.items():
        name = topic.replace("\\", "\\\\").replace("'", "\\'")
        parts.append(f"(p.topic = '{name}' AND p.partition = {int(partition)} AND p.next > {int(offset)})")
    return f"NOT exists(c.partitions, p -> coalesce({' OR '.join(parts) or 'false'}, false))"


def time_passed(time: datetime) -> str:
    """Write the condition for commits (`c`) at which no partition's stream time had passed a time."""
    return f"NOT exists(c.partitions, p -> coalesce(p.stream_time > {moment(time)}, false))"
