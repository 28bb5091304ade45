"""Compile a plan and one batch of records into one DataFrame of changes per table: Spark's engine of a topology.

The law: whatever the cuts between batches, merging the changes of all batches gives the rows of the interpreter. The same code runs a
micro-batch, a backfill over a range and a full rebuild. Everything but the user's own Python is built-in columnar functions.

The plan's layout says which columns to compute. One pass over the batch decodes, runs every stateless operator, finds every failure,
counts, and keeps just what tables and outputs need. What is read more than once after that (changes of a table above all) is computed
once and kept. Per batch: one job for that pass, one for each later segment that is kept, one for each look at the old rows of a table,
whose changes are streamed, that a stream is joined with or that a processor keeps, and the writer's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

from pyspark.sql import Observation
from pyspark.sql import functions as F

from watertable import nodes, plan
from watertable.aggregates import TimedField
from watertable.algebra import (
    company,
    done_with,
    finishing,
    gathered,
    leaf_state,
    lifted,
    merge,
    merged_state,
    place,
    placed_in,
    single,
    spread,
    upto,
)
from watertable.layout import Fold, Layout, Segment, expires, literal, moment
from watertable.nodes import Aggregate, TableAggregate, Versioned
from watertable.plan import TableDef, Topology
from watertable.processing import Clocks
from watertable.pythons import register, visited
from watertable.schema import quote
from watertable.sql.udfs import called_in
from watertable.telling import FAN_OUT, PLACE, RAW, final_rows, foreign_changes, never_paired, session_changes, sliding_changes
from watertable.versions import as_of, is_due, waiting_rows
from watertable.windowing import sliding_key, window_starts, windowed_key
from watertable.windows import EPOCH, SessionWindows, SlidingWindows, microseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Lookup(Protocol):
    """Give the old rows of a table for a frame of distinct keys, and perhaps more, or all: `key`, `state`, with its lineage cut.

    The keys are those under which rows are made together (`company`): shorter ones than a processor's store has, say.
    Of an outer join of streams, those too in which a record waits whose window is closed at the stream time `due`; of the rows that wait
    for a suppressed table, all whose windows are closed by then, and all that could be made one with them.
    """

    def __call__(self, table: TableDef, keys: DataFrame | None, due: datetime | None = None, /) -> DataFrame:  # noqa: D102
        ...


Partition = tuple[str, int]

PAIRS: Final = 1 << 28
"""Bounds the numbers of the pairs of one record: two more steps that fan out still fit behind them."""

_BAD: Final = "node STRING, location STRING, reason STRING"
DROPPED: Final = (
    "node STRING, reason STRING, topic STRING, partition INT, offset BIGINT, window_start TIMESTAMP, window_end TIMESTAMP, count BIGINT"
)
"""Rows of `__dropped`: a late record has one for each window it missed, with its place; the other reasons are counts of a batch."""
QUARANTINE: Final = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, node STRING, location STRING, reason STRING"
)
OUT: Final = (
    "topic STRING, key BINARY, value BINARY, timestamp TIMESTAMP, st TIMESTAMP, src_topic STRING, src_partition INT, src_offset BIGINT, "
    "ord BIGINT, ordinal BIGINT"
)


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """Count what a batch read from one partition; `stream_time` includes what was carried in."""

    records: int
    stream_time: datetime | None


@dataclass(frozen=True, slots=True)
class BatchStats:
    """Hold the figures of a batch that its commit records."""

    partitions: Mapping[Partition, PartitionStats]
    quarantined: int
    dropped: Mapping[tuple[str, str], int]
    """Records dropped at the first segment, by (node, reason); late ones are counted per window."""
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
            _forget(frame)


@dataclass(slots=True)
class Compiler:
    """Compile one topology once; `batch` then runs it over any batch of records.

    A record that can't be decoded or placed in time, or at which an expression fails, goes to quarantine with its bytes and the
    file:line of the operator, and no operator below that one sees it.
    """

    topology: Topology
    layout: Layout = field(init=False)
    _taught: WeakSet[SparkSession] = field(init=False, default_factory=WeakSet)

    def __post_init__(self) -> None:
        self.layout = Layout(self.topology)

    def batch(
        self, records: DataFrame, carry: Mapping[Partition, datetime | None], lookup: Lookup,
        since: Mapping[Partition, datetime | None] | None = None, clocks: Clocks = MappingProxyType({}),
    ) -> Batch:  # fmt: skip
        """Compile a batch: records as read, in any order; and for each partition it may hold, the stream time brought to it.

        `since` are the stream times at which the batch before ended, where advances have moved them on; `clocks` are the wall clocks that
        were recorded there, each at a stream time of its own. `lookup` gives old rows, for the tables whose changes are streamed or that
        streams are joined with, and for what waits. Runs one job over the batch, and one for each such use of a table; all other frames
        run when they are written. Raises `ValueError` when a record's partition isn't in `carry`.
        """
        self._teach(records.sparkSession)
        run = _Run(self.layout, carry, lookup, carry if since is None else since, clocks)
        frames = {0: run.base(records)}
        watched, figures = run.watched(frames[0])
        partial: dict[nodes.Leaf, DataFrame] = {}
        if self.layout.direct is None:
            frames[0] = run.keep(watched)
        else:
            partial[self.layout.direct.root] = run.keep(run.partial(self.layout.direct, run.contributions(self.layout.direct, watched)[0]))
        stats = figures()
        run.reached = {partition: read.stream_time for partition, read in stats.partitions.items()}
        for segment in self.layout.segments[1:]:
            frame = run.segment(segment, frames)
            frames[segment.number] = run.keep(frame) if self.layout.shared(segment) else frame
        late: list[DataFrame] = []
        for root, (segment, fold) in self.layout.folds.items():
            contributions, missed = run.contributions(fold, frames[segment.number])
            if root not in partial:
                partial[root] = run.partial(fold, contributions)
            if missed is not None and not (segment.number == 0 and not stats.dropped.get((fold.label, "late"))):
                late.append(missed)
        partial |= run.waits
        bad = [s for s in self.layout.segments if s.failures and not (s.number == 0 and not stats.quarantined)]
        counted = run.counted(stats, frames)
        return Batch(
            tables={table.name: run.deltas(table, partial) for table in (*self.topology.tables, *self.layout.buffers)},
            outbox=run.outbox(frames),
            quarantine=_union([run.quarantine(frames[s.number]) for s in bad]),
            dropped=_union([*late, *counted]),
            stats=stats,
            _kept=run.kept,
        )

    def _teach(self, spark: SparkSession) -> None:
        """Let a session call the user's functions, once."""
        if spark not in self._taught:
            register(spark, called_in(self.topology))
            self._taught.add(spark)


@dataclass(slots=True)
class _Run:
    """Hold what one batch needs beside the compiled plan."""

    layout: Layout
    carry: Mapping[Partition, datetime | None]
    lookup: Lookup
    since: Mapping[Partition, datetime | None]
    clocks: Clocks
    kept: list[DataFrame] = field(default_factory=list)
    reached: Mapping[Partition, datetime | None] = field(default_factory=dict)
    """The stream times once the batch is read."""
    waits: dict[nodes.Leaf, DataFrame] = field(default_factory=dict)
    done: dict[str, DataFrame] = field(default_factory=dict)
    """What outer joins of streams have paired or given in this batch, by the name of what they keep."""

    def base(self, records: DataFrame) -> DataFrame:
        """Decode the batch, run the first segment, put each record at its stream time, and cache what is needed."""
        segment = self.layout.segments[0]
        frame = records.selectExpr(
            "topic", "partition", "offset", "timestamp AS raw_ts", "key AS raw_key", "value AS raw_value", "0L AS ord"
        )
        times = [flow.spaces["ts"] for flow in self.layout.sources.values()]
        frame = self._narrowed(segment, _leveled(frame, segment), f"coalesce({', '.join(times)}, NULL) AS ts")
        before = f"element_at({self._carried()}, concat(topic, ':', partition))"
        running = "max(ts)"
        if self.layout.needs_order:
            running = "max(ts) OVER (PARTITION BY topic, partition ORDER BY offset ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
            frame = frame.withColumn("st", F.expr(f"greatest({running}, try_{before})"))
        else:
            frame = frame.withColumn("st", F.expr(f"greatest(ts, try_{before})"))
        for fold in segment.folds:
            if isinstance(fold.root, Aggregate) and fold.root.windows:
                frame = frame.selectExpr("*", *window_starts(fold))
        return frame

    def keep(self, frame: DataFrame) -> DataFrame:
        """Compute a frame now, in one job, and cut its lineage: what is made of it plans fast, and never reads Kafka again."""
        self.kept.append(frame.localCheckpoint(eager=True))
        return self.kept[-1]

    def watched(self, base: DataFrame) -> tuple[DataFrame, Callable[[], BatchStats]]:
        """Count on the way through: give the frame to run, and what gives the figures once it has run."""
        segment = self.layout.segments[0]
        sums: dict[str, str] = {"records": "count(1)", "quarantined": "sum(size(bad))"}
        names: dict[str, tuple[str, str] | str] = {}
        for number, (name, flags) in enumerate((segment.counters | segment.peeks).items()):
            sums[f"f{number}"] = _tally(flags)
            names[f"f{number}"] = name
        for number, fold in enumerate(segment.folds):
            if isinstance(fold.root, Aggregate) and fold.root.windows:
                sums[f"l{number}"] = f"sum(CASE WHEN {fold.present} THEN {fold.key}_missed ELSE 0 END)"
                names[f"l{number}"] = (fold.label, "late")  # two folds of one table have one name
            elif isinstance(fold.root, Versioned):
                sums[f"l{number}"] = f"count_if({fold.present} AND {expires(fold.root)})"
                names[f"l{number}"] = (fold.label, "expired")
        partitions = list(self.carry)
        for number, (topic, partition) in enumerate(partitions):
            here = f"topic = {literal(topic)} AND partition = {partition}"
            sums[f"n{number}"] = f"count(CASE WHEN {here} THEN 1 END)"
            sums[f"t{number}"] = f"unix_micros(max(CASE WHEN {here} THEN st END))"
        observation = Observation()
        frame = base.observe(observation, *(F.expr(f"{sql} AS {name}") for name, sql in sums.items()))

        def figures() -> BatchStats:
            seen = observation.get
            counts: Counter[tuple[str, str] | str] = Counter()
            for column, name in names.items():
                counts[name] += int(seen[column] or 0)
            read = {p: PartitionStats(seen[f"n{i}"], _micros(seen[f"t{i}"]) or self.carry[p]) for i, p in enumerate(partitions)}
            if seen["records"] != sum(p.records for p in read.values()):
                raise ValueError(f"the batch holds records of partitions other than {', '.join(f'{t}-{p}' for t, p in partitions)}")
            return BatchStats(
                partitions=read,
                quarantined=int(seen["quarantined"] or 0),
                dropped={name: count for name, count in counts.items() if isinstance(name, tuple) and count},
                peeks={name: count for name, count in counts.items() if isinstance(name, str)},
            )

        return frame, figures

    def segment(self, segment: Segment, frames: Mapping[int, DataFrame]) -> DataFrame:
        """Build the input of a later segment, and run it."""
        match segment.origin:
            case nodes.FlatMapValues():
                frame = self._exploded(segment, segment.origin, frames)
            case nodes.ToStream():
                frame = self._changes(segment.origin, frames)
            case nodes.StreamJoin() if isinstance(plan.root_of(segment.origin.right), Versioned):
                frame = self._as_of(segment, segment.origin, frames)
            case nodes.StreamJoin():
                frame = self._looked_up(segment, segment.origin, frames)
            case nodes.StreamStreamJoin():
                frame = self._paired(segment, segment.origin, frames)
            case nodes.FinalRows():
                frame = self._final(segment.origin, frames)
            case nodes.Process():
                frame = self._visited(segment, segment.origin, frames)
            case nodes.MergeStreams():
                frame = self._united(segment.origin, frames)
            case Topology():
                raise AssertionError("the first segment has no input but the records")
        frame = self._narrowed(segment, _leveled(frame, segment), "ts", "st")
        for fold in segment.folds:
            if isinstance(fold.root, Aggregate) and fold.root.windows:
                frame = frame.selectExpr("*", *window_starts(fold))
        return frame

    def contributions(self, fold: Fold, frame: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """Give what records contribute to a table (`key`, `l`, place), by slot for a windowed one, and the windows that were missed."""
        here = frame.where(fold.present)
        if isinstance(fold.root, nodes.Versioned | nodes.History):
            kept = fold.root.parent if isinstance(fold.root, nodes.History) else fold.root
            here = here.where(f"NOT ({expires(kept)})")
        if isinstance(fold.root, TableAggregate):
            each = here.selectExpr(f"inline({fold.lifts})", "ts", *PLACE, *RAW)
            return each.withColumn("ord", F.expr("ord * 2 + n")), None
        keys, lifts = f"{fold.key} AS key", f"{fold.lifts} AS l"
        if not isinstance(fold.root, Aggregate) or fold.root.windows is None:
            return here.selectExpr(keys, lifts, "ts", *PLACE, *RAW), None
        names = [f"{fold.key}_{part}" for part in ("first", "open", "last")]
        size, advance = (microseconds(d) for d in (fold.root.windows.size, fold.root.windows.advance))
        taken = here.where(f"{names[1]} <= {names[2]}").selectExpr(
            keys, lifts, f"{names[0]} AS first", f"{names[1]} AS open", f"{names[2]} AS last", "ts", *PLACE, *RAW
        )
        missed = here.where(f"{names[0]} < {names[1]}").selectExpr(
            f"{literal(fold.label)} AS node", "'late' AS reason", "topic", "partition", "offset",
            f"explode(sequence({names[0]}, least({names[1]} - {advance}, {names[2]}), {advance}L)) AS s",
        )  # fmt: skip
        dropped = missed.selectExpr(
            "node", "reason", "topic", "partition", "offset",
            "timestamp_micros(s) AS window_start", f"timestamp_micros(s + {size}) AS window_end", "1L AS count",
        )  # fmt: skip
        return taken, dropped

    def partial(self, fold: Fold, contributions: DataFrame) -> DataFrame:
        """Fold the contributions of a batch to one partial state a key; in a hopping table, a key that spans its windows (`spread`).

        Of sessions, to one for each that the batch makes by itself.
        """
        windows = fold.root.windows if isinstance(fold.root, Aggregate) else None
        folded = [f"{leaf_state(fold.root, lifted)} AS state", "max(st) AS st"]
        if windows is None:
            return contributions.groupBy("key").agg(*map(F.expr, folded))
        if isinstance(windows, SlidingWindows):
            each = contributions.withColumn("key", F.expr(sliding_key(fold, windows)))
            return each.groupBy("key").agg(*map(F.expr, folded))
        each = contributions.withColumn("key", F.expr(windowed_key(fold, "open", "last", microseconds(windows.size))))
        if isinstance(windows, SessionWindows):
            return gathered(windows, each, *folded)
        return each.groupBy("key").agg(*map(F.expr, folded))

    def deltas(self, table: TableDef, partial: Mapping[nodes.Leaf, DataFrame]) -> DataFrame:
        """Give what a batch adds to a table: of several leaves, the partial states of each, to be merged where they are read."""
        if isinstance(table.root, nodes.Leaf):
            return partial[table.root]
        parts = [partial[part.leaf].selectExpr(*placed_in(table, part), "st") for part in table.parts]
        parts += [self.done[table.name]] if table.name in self.done else []
        return reduce(lambda a, b: a.unionByName(b), parts)

    def singles(self, table: TableDef, frames: Mapping[int, DataFrame]) -> DataFrame:
        """Give what each record of the batch adds to a table by itself: `key`, `state`, and its place.

        Where a table has several leaves, the n-th of m takes a record at `ord * m + n`. Where it groups rows, one that changes within its
        group has two steps at one place, of which only the second (`step` 1) makes a Change.
        """
        moves = any(isinstance(part.leaf, TableAggregate) for part in table.parts)
        found = []
        for number, part in enumerate(table.parts):
            segment, fold = self.layout.folds[part.leaf]
            rows, _ = self.contributions(fold, frames[segment.number])
            if table.windows is not None:
                size, advance = microseconds(table.windows.size), microseconds(table.windows.advance)
                each = rows.withColumn("s", F.expr(f"explode(sequence(open, last, {advance}L))"))
                numbered = each.withColumn("ord", F.expr(f"ord * {FAN_OUT} + (s - first) div {advance}L"))
                slot = windowed_key(fold, "s", "s", size) if table.sliding is None else sliding_key(fold, table.sliding)
                rows = numbered.withColumn("key", F.expr(slot))
            steps = ["paired", "step"] if moves else []
            if moves and not isinstance(part.leaf, TableAggregate):
                rows = rows.selectExpr("*", "FALSE AS paired", "1 AS step")
            rows = rows.selectExpr("key", f"{leaf_state(part.leaf, single)} AS state", "ts", *steps, *PLACE, *RAW)
            if not isinstance(table.root, nodes.Leaf):
                others = (*steps, *(c for c in PLACE if c != "ord"))
                rows = rows.selectExpr(*placed_in(table, part), "ts", f"ord * {len(table.parts)} + {number} AS ord", *others, *RAW)
            found.append(rows)
        return reduce(lambda a, b: a.unionByName(b), found)

    def quarantine(self, frame: DataFrame) -> DataFrame:
        """Give the refused records of a segment, with their bytes."""
        bad = frame.where("size(bad) > 0").withColumn("b", F.expr("explode(bad)"))
        return bad.selectExpr(
            "topic", "partition", "offset", "raw_ts AS timestamp", "raw_key AS key", "raw_value AS value",
            "b.node AS node", "b.location AS location", "b.reason AS reason",
        )  # fmt: skip

    def counted(self, stats: BatchStats, frames: Mapping[int, DataFrame]) -> list[DataFrame]:
        """Give the counts of dropped records: known already for the first segment, computed with the write for the others."""
        spark = frames[0].sparkSession
        nowhere = "CAST(NULL AS STRING) AS topic, CAST(NULL AS INT) AS partition, CAST(NULL AS BIGINT) AS offset, \
CAST(NULL AS TIMESTAMP) AS window_start, CAST(NULL AS TIMESTAMP) AS window_end"
        known = [f"named_struct('n', {literal(n)}, 'r', {literal(r)}, 'c', {c}L)" for (n, r), c in stats.dropped.items() if r != "late"]
        made = []
        if known:
            rows = spark.range(1).selectExpr(f"explode(array({', '.join(known)})) AS d")
            made.append(rows.selectExpr("d.n AS node", "d.r AS reason", *_split(nowhere), "d.c AS count").select(*_names(DROPPED)))
        for segment in self.layout.segments[1:]:
            if segment.counters:
                sums = [
                    f"named_struct('n', {literal(node)}, 'r', {literal(reason)}, 'c', {_tally(flags)})"
                    for (node, reason), flags in segment.counters.items()
                ]  # fmt: skip
                rows = frames[segment.number].agg(F.expr(f"array({', '.join(sums)}) AS a")).selectExpr("explode(a) AS d").where("d.c > 0")
                made.append(rows.selectExpr("d.n AS node", "d.r AS reason", *_split(nowhere), "d.c AS count").select(*_names(DROPPED)))
        return made

    def outbox(self, frames: Mapping[int, DataFrame]) -> DataFrame | None:
        """Give the records to publish, numbered for each topic in log order; what joins of streams make comes from no one record."""
        out = []
        for sink, flow, key, value in self.layout.sinks:
            frame = frames[flow.segment.number].where(flow.present)
            ordinal = "CAST(row_number() OVER (ORDER BY st, topic, partition, offset, ord) - 1 AS BIGINT) AS ordinal"
            out.append(frame.selectExpr(
                f"{literal(sink.topic)} AS topic", f"{key} AS key", f"{value} AS value", "ts AS timestamp", "st",
                f"{'CAST(NULL AS STRING)' if sink.is_of_pairs else 'topic'} AS src_topic",
                "partition AS src_partition", "offset AS src_offset", "ord", ordinal,
            ))  # fmt: skip
        return _union(out)

    def _exploded(self, segment: Segment, node: nodes.FlatMapValues, frames: Mapping[int, DataFrame]) -> DataFrame:
        flow, made = self.layout.inputs[segment.number]
        there = flow.spaces.get("value", flow.spaces.get("new", ""))
        frame = frames[flow.segment.number].where(f"{flow.present} AND {there} IS NOT NULL")
        frame = frame.selectExpr("*", f"posexplode({made}.{quote(node.exploded)}) AS (_pos, _item)")
        parts = ", ".join(f"'{n}', " + ("_item" if n == node.exploded else f"{made}.{quote(n)}") for n, _ in node.columns)
        window = [f"{flow.spaces['window']} AS window"] if "window" in flow.spaces else []
        spaces = [f"{flow.spaces['key']} AS {segment_key}" for segment_key in ("key",)] + window
        return frame.selectExpr(
            "TRUE AS present", *spaces, f"named_struct({parts}) AS value", f"ord * {FAN_OUT} + _pos AS ord",
            *(c for c in (*PLACE, "ts", *RAW) if c != "ord"),
        )  # fmt: skip

    def _changes(self, node: nodes.ToStream, frames: Mapping[int, DataFrame]) -> DataFrame:
        """Run the states of the touched keys forward, record by record in log order, from the old rows."""
        table = self.layout.topology.table(node.table)
        rows = self.singles(table, frames).withColumn("present", F.lit(True))
        keys = rows.selectExpr(f"{company(table)} AS key").distinct()
        if isinstance(table.root, nodes.ForeignJoin):
            named = " AND ".join(f"key.{quote(name)} IS NOT NULL" for name, _ in table.root.left.group[: -len(table.key)])
            return self._told(table, foreign_changes(table, rows, self.lookup(table, keys.where(named))))
        old = self.lookup(table, keys)
        if table.sessions is not None:
            return self._told(table, session_changes(table, table.sessions, rows, old))
        if table.sliding is not None:
            return self._told(table, sliding_changes(table, table.sliding, rows, old))
        seeds = old.selectExpr("key", "state", "FALSE AS present")
        both = rows.unionByName(seeds, allowMissingColumns=True)
        moves = "step" in rows.columns
        forward = f"PARTITION BY key ORDER BY present, st, topic, partition, offset, ord{', step' if moves else ''}"
        running = both.selectExpr("*", f"{merged_state(table, upto(forward))} AS after")
        in_order = [
            f"(state.{quote(f.name)} IS NULL OR state.{quote(f.name)}.order <=> after.{quote(f.name)}.order)"
            for f in table.state if isinstance(f, TimedField)
        ]  # fmt: skip
        before = f"lag(after) OVER ({forward})"
        if moves:  # a row that changes within its group is one Change, from before it left to after it came back
            before = f"CASE WHEN paired THEN lag(after, 2) OVER ({forward}) ELSE {before} END"
        seen = " AND ".join(["present", *(["step = 1"] if moves else []), *in_order])
        return self._told(table, running.selectExpr("*", f"{before} AS before").where(seen))

    def _told(self, table: TableDef, running: DataFrame) -> DataFrame:
        """Finish the states `before` and `after` each Change, and leave out those that nobody could see."""
        for side in ("before", "after"):
            for level in finishing(table, state=side, key="key", into=f"_{side}", window=f"_w_{side}"):
                running = running.selectExpr("*", *level)
        last = len(table.stages)
        window = ["_w_after AS window"] if table.windows is not None else []
        changed = running.where(f"_before{last} IS NOT NULL OR _after{last} IS NOT NULL")
        return changed.selectExpr("present", "key", f"_before{last} AS old", f"_after{last} AS new", *window, "ts", *PLACE, *RAW)

    def _looked_up(self, segment: Segment, node: nodes.StreamJoin, frames: Mapping[int, DataFrame]) -> DataFrame:
        """Put each record beside the table's row for its key: the old one, run forward by what the table got before the record.

        What the table gets of the same record comes first. The table's states run along the keys that are looked up, and no others.
        """
        table = self.layout.topology.table(node.table)
        flow, wanted = self.layout.inputs[segment.number]
        spaces = [name for name in flow.spaces if name != "ts"]
        record = [f"{flow.spaces[name]} AS s_{name}" for name in spaces]
        rows = (
            frames[flow.segment.number].where(flow.present).selectExpr(f"{wanted} AS key", "TRUE AS present", *record, "ts", *PLACE, *RAW)
        )
        keyed = " AND ".join(f"key.{quote(name)} IS NOT NULL" for name in table.key.names)
        keys = rows.where(keyed).select("key").distinct()
        added = self.singles(table, frames).join(F.broadcast(keys), "key", "left_semi")
        old = self.lookup(table, keys.selectExpr(f"{company(table)} AS key").distinct())
        before = [f.selectExpr("key", "state", "FALSE AS present", *place) for f, place in ((added, PLACE), (old, ()))]
        both = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), before, rows)
        forward = "PARTITION BY key ORDER BY st NULLS FIRST, topic, partition, offset, present, ord"
        known = f"count_if(NOT present){upto(forward)} > 0"
        found = both.selectExpr("*", f"CASE WHEN {known} THEN {merged_state(table, upto(forward))} END AS now").where("present")
        for level in finishing(table, state="now", key="key", into="_v"):
            found = found.selectExpr("*", *level)
        right = f"_v{len(table.stages)} AS right"
        return found.selectExpr("present", *(f"s_{name} AS {name}" for name in spaces), right, "ts", *PLACE, *RAW)

    def _as_of(self, segment: Segment, node: nodes.StreamJoin, frames: Mapping[int, DataFrame]) -> DataFrame:
        """Put each record that doesn't wait any more beside the row of a versioned table as of its event time."""
        table, root = self.layout.topology.table(node.table), plan.root_of(node.right)
        assert isinstance(root, Versioned)
        (history,) = (t for t in self.layout.buffers if isinstance(t.root, nodes.History) and t.root.parent == root)
        flow, wanted = self.layout.inputs[segment.number]
        spaces = [name for name in flow.spaces if name != "ts"]
        record = [f"{flow.spaces[name]} AS s_{name}" for name in spaces]
        rows = frames[flow.segment.number].where(flow.present).selectExpr(f"{wanted} AS key", *record, "ts", *PLACE, *RAW)
        keyed = " AND ".join(f"key.{quote(name)} IS NOT NULL" for name in table.key.names)
        if isinstance(node, nodes.WaitingJoin):
            rows = self._waited(node, rows, keyed)
        keys = rows.where(keyed).select("key").distinct()
        old = self.lookup(history, keys).selectExpr("key", f"state.{quote(plan.VERSIONS)} AS _old")
        origin, fold = self.layout.folds[history.parts[0].leaf]
        came = self.contributions(fold, frames[origin.number])[0].join(F.broadcast(keys), "key", "left_semi")
        new = self.partial(fold, came).selectExpr("key", f"state.{quote(plan.VERSIONS)} AS _new")
        found = rows.join(old, "key", "left").join(new, "key", "left")
        for level in (*as_of(root, node), *finishing(table, state="now", key="key", into="_v")):
            found = found.selectExpr("*", *level)
        right = f"_v{len(table.stages)} AS right"
        return found.selectExpr("TRUE AS present", *(f"s_{name} AS {name}" for name in spaces), right, "ts", *PLACE, *RAW)

    def _waited(self, node: nodes.WaitingJoin, rows: DataFrame, keyed: str) -> DataFrame:
        """Let the records go on that needn't wait any more, of the batch and of those before; keep the others, and forget who went."""
        buffer = plan.wait_of(node)
        topics = {n.topic.name for n in plan.walk(node) if isinstance(n, nodes.Source)}
        times = [time for (topic, _), time in self.reached.items() if topic in topics]
        whole = topics <= {topic for topic, _ in self.reached} and None not in times
        reached = min(time for time in times if time is not None) if whole else None
        old = waiting_rows(self.lookup(buffer, None), RAW)
        every = rows.selectExpr("*", "1L AS n").unionByName(old).withColumn("_due", F.expr(is_due(node, keyed, reached)))
        member = "named_struct('value', named_struct('order', {0}, 'ts', ts, 'key', s_key, 'value', s_value), 'n', n) AS l"
        moved = every.where("_due = (n < 0)").selectExpr("key", member.format(place()), "st")
        leaf = buffer.parts[0].leaf
        self.waits[leaf] = moved.groupBy("key").agg(F.expr(f"{leaf_state(leaf, lifted)} AS state"), F.expr("max(st) AS st"))
        return every.where("_due").drop("n", "_due")

    def _visited(self, segment: Segment, node: nodes.Process, frames: Mapping[int, DataFrame]) -> DataFrame:
        """Call a processor for the batch's records, with what its stores keep of their keys; see `pythons.visited`."""
        flow, value = self.layout.inputs[segment.number]
        record = (f"{flow.spaces['key']} AS key", f"{value} AS value", "ts", *PLACE, *RAW)
        rows = frames[flow.segment.number].where(flow.present).selectExpr("TRUE AS present", *record)
        tables = [self.layout.topology.table(name) for name, _ in node.processor.stores]
        return visited(node, tables, rows, self.lookup, self.reached, self.clocks)

    def _paired(self, segment: Segment, node: nodes.StreamStreamJoin, frames: Mapping[int, DataFrame]) -> DataFrame:
        """Pair the records of the batch with those of the other side: all that wait from before, and those of the batch that are earlier.

        So each pair is made once, in the batch of the one that comes last. Its place is that of the one that is later in log order, and
        where that is in this batch, so are its bytes. With them come, in an outer join, those that can't pair any more, or have no key.
        """
        buffer, sides = plan.buffer_of(node), self.layout.pairs[segment.number]
        place = "named_struct('st', st, 'topic', topic, 'partition', partition, 'offset', offset, 'ord', ord)"
        record = ("key", "side", "l", "r", "ts")
        came = []
        keyless: list[DataFrame] = []
        for side, half in enumerate(sides):
            frame, lifts = frames[half.flow.segment.number], half.fold.lifts
            values = [f"{lifts}.value AS {'lr'[side]}", "st", "topic", "partition", "offset", f"ord * 2 + {side} AS ord", *RAW]
            columns = [f"{half.fold.key} AS key", f"{side} AS side", f"{lifts}.ts AS ts", *values]
            came.append(frame.where(half.fold.present).selectExpr(*columns))
            if half.keyless is not None:
                keyless.append(frame.where(half.keyless).selectExpr(*columns))
        rows = came[0].unionByName(came[1], allowMissingColumns=True).selectExpr(*record, f"{place} AS at", *RAW)
        keys = rows.select("key").distinct()
        if isinstance(node, nodes.OuterStreamJoin):
            reached = plan.reached(self.reached, node.left, node.right)
            old = self.lookup(buffer, keys, reached)
        else:
            old = self.lookup(buffer, keys)
        waiting = [rows.selectExpr(*record, "at", "FALSE AS old", *RAW)]
        for side, field_ in enumerate(buffer.state[:2]):
            kept = old.selectExpr("key", f"inline(state.{quote(field_.name)}) AS (o, v)")
            at = f"named_struct('st', o.st, 'topic', o.topic, 'partition', o.partition, 'offset', o.offset, 'ord', o.ord * 2 + {side})"
            waiting.append(
                kept.selectExpr("key", f"{side} AS side", f"v.value AS {'lr'[side]}", "v.ts AS ts", f"{at} AS at", "TRUE AS old")
            )
        every = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), waiting)
        others = every.selectExpr("key AS key_", "1 - side AS for_", *(f"{name} AS o_{name}" for name in ("l", "r", "ts", "at", "old")))
        open_for = [microseconds(duration) for duration in node.within.open_for]
        apart = "(unix_micros(if(side = 0, o_ts, ts)) - unix_micros(if(side = 0, ts, o_ts)))"
        is_later, closes = "(o_at < at)", f"if(o_at < at, 1 - side, side) = 0, {open_for[0]}L, {open_for[1]}L"
        conditions = [
            "key = key_", "side = for_", f"{apart} BETWEEN {-microseconds(node.within.before)}L AND {microseconds(node.within.after)}L",
            f"(o_old OR {is_later})",
            f"unix_micros(greatest(at.st, o_at.st)) <= unix_micros(if({is_later}, o_ts, ts)) + if({closes})",
        ]  # fmt: skip
        found = rows.join(others, F.expr(" AND ".join(conditions))).selectExpr(
            "key", "coalesce(l, o_l) AS left", "coalesce(r, o_r) AS right", "greatest(ts, o_ts) AS ts", "greatest(at, o_at) AS later",
            "least(at, o_at) AS earlier", *(f"CASE WHEN {is_later} THEN {column} END AS {column}" for column in RAW),
        )  # fmt: skip
        named = "concat_ws('/', earlier.topic, earlier.partition, earlier.ord, later.ord)"
        number = f"pmod(crc32(CAST({named} AS BINARY)) + earlier.offset, {PAIRS}L) AS ord"
        of_later = ("later.st AS st", "later.topic AS topic", "later.partition AS partition", "later.offset AS offset")
        made = ("TRUE AS present", "key", "left", "right", "ts", *of_later, number, *RAW)
        if not isinstance(node, nodes.OuterStreamJoin):
            return found.selectExpr(*made)
        found = self._once(found)
        paired = found.selectExpr("key", "explode(array(earlier, later)) AS at")
        given = self._once(never_paired(node, every, old, paired, reached))
        marks = paired.unionByName(given.select("key", "at")).where(f"at.ord % 2 IN ({', '.join(map(str, node.how.alone))})")
        marked = marks.groupBy("key").agg(F.expr("array_sort(collect_set(at)) AS places"), F.expr("max(at.st) AS st"))
        self.done[buffer.name] = marked.selectExpr("key", f"{done_with(buffer, 'places')} AS state", "st")
        at_once = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), keyless)
        alone = given.unionByName(at_once.selectExpr("*", f"{place} AS at"), allowMissingColumns=True).selectExpr(
            "TRUE AS present", "key", "l AS left", "r AS right", "ts", *(f"at.{part} AS {part}" for part in PLACE if part != "ord"),
            f"at.ord % {PAIRS}L AS ord", *RAW,
        )  # fmt: skip
        return found.selectExpr(*made).unionByName(alone)

    def _final(self, node: nodes.FinalRows, frames: Mapping[int, DataFrame]) -> DataFrame:
        """Give the rows of a table whose windows this batch closes: each once, at the last moment of its window, as it is now."""
        table, closing = plan.open_of(node), plan.closing_of(node.parent)
        partial = {}
        for leaf in plan.leaves_of(table.root):
            segment, fold = self.layout.folds[leaf]
            partial[leaf] = self.partial(fold, self.contributions(fold, frames[segment.number])[0])
        added = spread(table, self.deltas(table, partial)).select("key", "state")
        since, now = (plan.reached(times, node.parent) for times in (self.since, self.reached))
        old = self.lookup(table, added.select("key").distinct(), now or EPOCH).select("key", "state")
        topic = literal(min(plan.topics_above(node)))
        return final_rows(table, closing, merge(table, old.unionByName(added)), since, now, topic)

    def _once(self, frame: DataFrame) -> DataFrame:
        """Compute a frame in the first job that uses it, for all that do."""
        self.kept.append(frame.localCheckpoint(eager=False))
        return self.kept[-1]

    def _united(self, node: nodes.MergeStreams, frames: Mapping[int, DataFrame]) -> DataFrame:
        parts = []
        for number, parent in enumerate(node.parents):
            flow = self.layout.flow(parent)
            columns = [f"{column} AS {name}" for name, column in flow.spaces.items() if name != "ts"]
            frame = frames[flow.segment.number].where(flow.present)
            numbered = frame.withColumn("ord", F.expr(f"ord * {len(node.parents)} + {number}"))
            parts.append(numbered.selectExpr("TRUE AS present", *columns, "ts", *PLACE, *RAW))
        return reduce(lambda a, b: a.unionByName(b), parts)

    def _narrowed(self, segment: Segment, frame: DataFrame, *times: str) -> DataFrame:
        """Keep only what later steps need: flags and structs of tables and outputs, places, and the bytes of refused records."""
        cases = [
            f"CASE WHEN {flag} THEN named_struct('node', {literal(n)}, 'location', {literal(w)}, 'reason', {r}) END"
            for flag, n, w, r in segment.failures
        ]
        flags = " OR ".join(f"COALESCE({flag}, FALSE)" for flag, *_ in segment.failures) or "FALSE"
        bad = f"CASE WHEN {flags} THEN filter(array({', '.join(cases)}), b -> b IS NOT NULL) ELSE array() END" if cases else "array()"
        counted = [flag for found in (*segment.counters.values(), *segment.peeks.values()) for flag in found]
        raw = self._raw(segment, flags)
        place_now = [c for c in ("topic", "partition", "offset", "ord") if c not in segment.kept]
        kept = dict.fromkeys([*segment.kept, *counted])
        return frame.selectExpr(*kept, *place_now, *times, f"CAST({bad} AS ARRAY<STRUCT<{_struct(_BAD)}>>) AS bad", *raw)

    def _raw(self, segment: Segment, flags: str) -> list[str]:
        later = any(s.failures for s in self.layout.segments if s.number > segment.number)
        if later:
            return list(RAW)
        return [f"CASE WHEN {flags} THEN {column} END AS {column}" for column in RAW]

    def _carried(self) -> str:
        known = {f"{topic}:{number}": when for (topic, number), when in self.carry.items() if when is not None}
        if not known:
            return "CAST(map() AS MAP<STRING, TIMESTAMP>)"
        entries = ", ".join(f"{literal(name)}, {moment(when)}" for name, when in sorted(known.items()))
        return f"map({entries})"


def _leveled(frame: DataFrame, segment: Segment) -> DataFrame:
    for level in segment.levels:
        if level:
            frame = frame.selectExpr("*", *level)
    return frame


def _union(frames: Sequence[DataFrame]) -> DataFrame | None:
    return reduce(lambda a, b: a.unionByName(b), frames) if frames else None


def _tally(flags: Sequence[str]) -> str:
    """Write the SQL that counts the records with these flags."""
    return "CAST(sum(" + " + ".join(f"int(COALESCE({flag}, FALSE))" for flag in flags) + ") AS BIGINT)"


def _forget(kept: DataFrame) -> None:
    """Free a checkpointed frame's blocks now: the garbage collector would let several batches pile up."""
    kept._jdf.queryExecution().analyzed().rdd().unpersist(False)


def _micros(number: int | None) -> datetime | None:
    return None if number is None else EPOCH + timedelta(microseconds=number)


def _split(columns: str) -> list[str]:
    return columns.split(", ")


def _names(ddl: str) -> list[str]:
    return [part.split()[0] for part in ddl.split(", ")]


def _struct(ddl: str) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in (part.split() for part in ddl.split(", ")))
