"""Compile a topology once, and run it over one batch of records after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pyspark.sql import Observation
from pyspark.sql import functions as F

from watertable.compiler.layout import Layout, Outlet, Segment, expires, literal
from watertable.compiler.prepared import Prepared
from watertable.compiler.pythons import register
from watertable.compiler.run import Lookup, Partition, Run, Write, forget, union
from watertable.compiler.segments import RAW, SLOT, first, later
from watertable.plan import nodes
from watertable.plan.nodes import Versioned
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.processing import Clocks
from watertable.records import HEADERS
from watertable.sql.udfs import called_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DROPPED: Final = (
    "node STRING, reason STRING, topic STRING, partition INT, offset BIGINT, window_start TIMESTAMP, window_end TIMESTAMP, count BIGINT"
)
"""Rows of `__dropped`: a late record has one for each window it missed, with its place; the other reasons are counts of a batch."""
QUARANTINE: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    f"node STRING, location STRING, reason STRING, headers {HEADERS}"
)
FEW: Final = 100_000
"""Of so many refused records the places are sent to where the batch is read; of more, both are shuffled."""
OUT: Final = (
    "topic STRING, key BINARY, value BINARY, timestamp TIMESTAMP, st TIMESTAMP, src_topic STRING, src_partition INT, src_offset BIGINT, "
    f"ord BIGINT, ordinal BIGINT, headers {HEADERS}"
)


@dataclass(frozen=True, slots=True)
class BatchStats:
    """Hold the figures of a batch that its commit records."""

    records: int
    stream_times: Mapping[Partition, datetime | None]
    """Those that the batch reached, and where it read nothing, those that were brought to it."""
    quarantined: int
    dropped: Mapping[tuple[str, str], int]
    """Records dropped, by (node, reason); late ones are counted per window."""
    peeks: Mapping[str, int]


@dataclass(slots=True)
class Batch:
    """Hold the frames of one batch, ready to be committed together; `close` frees what was cached for them."""

    tables: dict[str, DataFrame]
    outbox: DataFrame | None
    quarantine: DataFrame | None
    dropped: DataFrame | None
    stats: BatchStats
    _kept: list[DataFrame] = field(default_factory=list)

    def close(self) -> None:
        """Free the records that were kept for the frames; none of them can be used any more."""
        for frame in self._kept:
            forget(frame)


@dataclass(slots=True)
class Compiler:
    """Compile one topology once; `batch` then runs it over any batch of records.

    A record that can't be decoded or placed in time, or at which an expression fails, goes to quarantine with its bytes and the
    file:line of the operator, and no operator below that one sees it.
    """

    topology: Topology
    layout: Layout = field(init=False)
    _prepared: WeakKeyDictionary[SparkSession, Prepared] = field(init=False, default_factory=WeakKeyDictionary)
    """What is kept from batch to batch, for each session that has been told of the user's functions."""

    def __post_init__(self) -> None:
        self.layout = Layout(self.topology)

    def batch(
        self, records: DataFrame, number: int, carry: Mapping[Partition, datetime | None], lookup: Lookup,
        since: Mapping[Partition, datetime | None] | None = None, clocks: Clocks = MappingProxyType({}), write: Write | None = None,
    ) -> Batch:  # fmt: skip
        """Compile a batch: records as read, in any order; and for each partition it may hold, the stream time brought to it.

        Its `number` is greater than that of each batch before it, by whatever process, since what goes by arrival goes by that.
        `since` are the stream times at which the batch before ended, where advances have moved them on; `clocks` are the wall clocks that
        were recorded there, each at a stream time of its own. `lookup` gives old rows, for the tables whose changes are streamed or that
        streams are joined with, and for what waits. `write` takes what is made in one pass for one table, as it's made; the table isn't
        among the batch's then. Runs one job over the batch, and one for each such use of a table; all other frames run when they are
        written. Raises `ValueError` when a record's partition isn't in `carry`.
        """
        make = self._in(records.sparkSession).make
        run, tally = Run(self.layout, make, number, carry, lookup, carry if since is None else since, clocks, write), _Tally()
        run.frames[0] = first(run, records)
        seen, figures = _watched(run, run.frames[0], tally)
        self._keep(run, self.layout.segments[0], seen)
        count, run.reached, run.gained = figures()
        for segment in self.layout.segments[1:]:
            frame = run.numbered(segment, later(run, segment))
            run.frames[segment.number] = frame
            if self.layout.shared(segment):
                seen, add = _counted(segment, frame, tally)
                self._keep(run, segment, seen)
                add()
        partial: dict[nodes.Leaf, DataFrame] = {}
        late: list[DataFrame] = []
        for root, (segment, fold) in self.layout.folds.items():
            if root in run.written:
                continue
            if root in run.folded:
                partial[root], told = run.folded[root]
            else:
                partial[root], told = run.partial(fold, run.frames[segment.number]), None
            if fold.windows is not None and fold.missing == "late" and tally.dropped[fold.label, "late"]:
                late.append(run.missed(fold, run.frames[segment.number]) if told is None else told)
        partial |= run.waits
        tables = (*self.topology.tables, *self.layout.buffers)
        return Batch(
            tables={table.name: run.deltas(table, partial) for table in tables if table.root not in run.written},
            outbox=_outbox(run),
            quarantine=_all([_refused(run, records, number, count) for number, count in tally.quarantined.items() if count]),
            dropped=_all([*late, *_dropped(records.sparkSession, tally)]),
            stats=BatchStats(count, run.reached, sum(tally.quarantined.values()), +tally.dropped, tally.peeks),
            _kept=run.kept,
        )

    def _keep(self, run: Run, segment: Segment, seen: DataFrame) -> None:
        """Compute what a segment makes, in one job: its frame, or what the only table that reads it makes of that."""
        if (fold := self.layout.alone(segment)) is None:
            run.frames[segment.number] = run.keep(seen)
        elif run.write is not None and (table := self.layout.whole(fold)) is not None:
            run.write(table, run.partial(fold, seen))
            run.written.add(fold.root)
        else:
            run.folded[fold.root] = run.at_once(fold, seen)

    def _in(self, spark: SparkSession) -> Prepared:
        """Give what is kept for a session; the first time, let it call the user's functions."""
        if spark not in self._prepared:
            register(spark, called_in(self.topology))
            self._prepared[spark] = Prepared()
        return self._prepared[spark]


@dataclass(slots=True)
class _Tally:
    """Add up what is counted on the way through the segments of a batch."""

    quarantined: dict[int, int] = field(default_factory=dict)
    """By the number of the segment."""
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    peeks: Counter[str] = field(default_factory=Counter)


def _watched(
    run: Run, base: DataFrame, tally: _Tally
) -> tuple[DataFrame, Callable[[], tuple[int, Mapping[Partition, datetime | None], Mapping[nodes.Leaf, int]]]]:
    """Observe the records of the first segment: give the frame to run, and what gives their count, the stream times and gains once it has.

    What is observed costs each record something for each partition that there is, so it's one maximum, and no count of each: Spark would
    make a column for each condition of a `count_if` beside.
    """
    segment = run.layout.segments[0]
    sums = {"records": "count(1)", "known": f"count({SLOT})"}
    gains = {f"g{number}": fold for number, fold in enumerate(segment.folds) if fold.root in run.layout.sought}
    sums |= {name: f"count(CASE WHEN {fold.present} THEN 1 END)" for name, fold in gains.items()}
    maxima = ", ".join(f"unix_micros(max(CASE WHEN {SLOT} = {slot} THEN st END))" for slot in run.slots.values())
    sums["times"] = f"CAST(array({maxima}) AS ARRAY<BIGINT>)"  # one column: each is asked for, parsed and told of by itself
    frame, add = _counted(segment, base, tally, sums)

    def figures() -> tuple[int, Mapping[Partition, datetime | None], Mapping[nodes.Leaf, int]]:
        seen = add()
        if seen["known"] != seen["records"]:
            raise ValueError(f"the batch holds records of partitions other than {', '.join(f'{t}-{p}' for t, p in run.slots)}")
        reached = {p: _micros(time) or run.carry[p] for p, time in zip(run.slots, seen["times"], strict=True)}
        return int(seen["records"]), reached, {fold.root: int(seen[name]) for name, fold in gains.items()}

    return frame.drop(SLOT), figures


def _counted(
    segment: Segment, base: DataFrame, tally: _Tally, more: Mapping[str, str] = MappingProxyType({})
) -> tuple[DataFrame, Callable[[], Mapping[str, Any]]]:
    """Count what a segment refuses, drops and peeks at: give the frame to run, and what adds to the tally once it has run."""
    sums = {"quarantined": "sum(size(bad))"} if segment.failures else {}
    names: dict[str, tuple[str, str] | str] = {}
    for number, (name, flags) in enumerate((segment.counters | segment.peeks).items()):
        sums[f"f{number}"] = _sum(flags)
        names[f"f{number}"] = name
    for number, fold in enumerate(segment.folds):
        if fold.windows is not None:
            sums[f"l{number}"] = f"sum(CASE WHEN {fold.present} THEN {fold.slots}_missed ELSE 0 END)"
            names[f"l{number}"] = (fold.label, fold.missing)  # two folds of one table have one name
        elif isinstance(fold.root, Versioned) and segment.number == 0:  # later ones have a flag for it
            sums[f"l{number}"] = f"count(CASE WHEN {fold.present} AND {expires(fold.root)} THEN 1 END)"
            names[f"l{number}"] = (fold.label, "expired")
    sums = {**more, **sums}
    if not sums:
        return base, dict
    observation = Observation()

    def add() -> Mapping[str, Any]:
        seen = observation.get
        tally.quarantined[segment.number] = int(seen.get("quarantined") or 0)
        for column, name in names.items():
            count = int(seen[column] or 0)
            if isinstance(name, tuple):
                tally.dropped[name] += count
            else:
                tally.peeks[name] += count
        return seen

    return base.observe(observation, *(F.expr(f"{sql} AS {name}") for name, sql in sums.items())), add


def _refused(run: Run, records: DataFrame, number: int, count: int) -> DataFrame:
    """Give the records that a segment has refused, with their bytes where they are of this batch: those of later ones are read again."""
    place = ("topic", "partition", "offset")
    bad = run.frames[number].where("size(bad) > 0")
    if number > 0:
        bad = bad.select(*(F.col(part).alias(part) for part in place), "bad")  # a kept frame's columns are to Spark those of the records
        places = bad.select(*place)
        read = records.join(places if count > FEW else F.broadcast(places), [*place], "left_semi")
        raw = F.struct("timestamp", "key", "value", "headers").alias(RAW)
        bad = bad.join(read.select(*place, raw), [*place], "left")
    return bad.withColumn("b", F.expr("explode(bad)")).selectExpr(
        *place, f"{RAW}.timestamp AS timestamp", f"{RAW}.key AS key", f"{RAW}.value AS value",
        "b.node AS node", "b.location AS location", "b.reason AS reason", f"{RAW}.headers AS headers",
    )  # fmt: skip


def _dropped(spark: SparkSession, tally: _Tally) -> list[DataFrame]:
    """Give the counts of dropped records, but of late ones, which are told of one by one."""
    counts = [f"named_struct('n', {literal(n)}, 'r', {literal(r)}, 'c', {c}L)" for (n, r), c in tally.dropped.items() if c and r != "late"]
    if not counts:
        return []
    rows = spark.range(1).selectExpr(f"explode(array({', '.join(counts)})) AS d")
    nowhere = (f"CAST(NULL AS {kind}) AS {name}" for name, kind in (c.split() for c in DROPPED.split(", ")[2:-1]))
    return [rows.selectExpr("d.n AS node", "d.r AS reason", *nowhere, "d.c AS count")]


def _outbox(run: Run) -> DataFrame | None:
    """Give the records to publish."""
    sinks = run.layout.sinks
    frames = [run.frames[outlet.flow.segment.number] for outlet in sinks]
    return run.make("outbox", lambda *frames: union(map(_published, sinks, frames)), *frames) if sinks else None


def _published(outlet: Outlet, frame: DataFrame) -> DataFrame:
    """Give the records of a topic, numbered in log order; what joins of streams make comes from no one record."""
    sink = outlet.sink
    ordinal = "CAST(row_number() OVER (ORDER BY st, topic, partition, offset, ord) - 1 AS BIGINT) AS ordinal"
    return frame.where(outlet.flow.present).selectExpr(
        f"{literal(sink.topic)} AS topic", f"{outlet.key} AS key", f"{outlet.value} AS value", "ts AS timestamp", "st",
        f"{'CAST(NULL AS STRING)' if sink.is_of_pairs else 'topic'} AS src_topic",
        "partition AS src_partition", "offset AS src_offset", "ord", ordinal,
        f"CAST({outlet.headers or 'NULL'} AS {HEADERS}) AS headers",
    )  # fmt: skip


def _all(frames: Sequence[DataFrame]) -> DataFrame | None:
    return union(frames) if frames else None


def _sum(flags: Sequence[str]) -> str:
    """Write the SQL that counts the records with these flags."""
    return "CAST(sum(" + " + ".join(f"int(COALESCE({flag}, FALSE))" for flag in flags) + ") AS BIGINT)"


def _micros(number: int | None) -> datetime | None:
    return None if number is None else EPOCH + timedelta(microseconds=number)
