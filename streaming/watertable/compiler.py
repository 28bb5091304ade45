"""Compile a plan and one batch of records into one DataFrame of changes per table: Spark's engine of a topology.

The law: whatever the cuts between batches, merging the changes of all batches gives the rows of the interpreter. The same code runs a
micro-batch, a backfill over a range and a full rebuild. Everything is built-in columnar functions.

A plan is cut into *segments*. Within one, each record of the segment's input makes at most one record of every stream, so all streams
are columns of one frame: a presence flag, and structs for key and value. One pass over the batch decodes, runs every stateless
operator, finds every failure, and keeps (cached) just what tables and outputs need. `flat_map_values`, the changes of a table and
merges of overlapping streams begin a new segment. Per batch: one job for the statistics (it fills the cache), one for the old rows of
each table whose changes are streamed, and the writer's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from watertable import plan
from watertable.aggregates import Merge
from watertable.algebra import finishing, lifted, merged, named_struct, render, single
from watertable.expressions import Expr
from watertable.plan import Aggregate, Format, Latest, Sink, TableDef, Topic, Topology
from watertable.rules import OnFail
from watertable.schema import Schema, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Lookup = Callable[[TableDef, "DataFrame"], "DataFrame"]
"""Give the old rows of a table for a frame of distinct keys: `key`, `state`, with its lineage cut."""

Partition = tuple[str, int]

FAN_OUT: Final = 65536
"""Bounds what one record can become in one step; the n-th element or window of a record comes at `ord * FAN_OUT + n` in log order."""

_PLACE: Final = ("st", "topic", "partition", "offset", "ord")
_META: Final = (*_PLACE, "ts", "bad", "raw_key", "raw_value", "raw_ts")
_CORRUPT: Final = "_wt_corrupt"
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


@dataclass(frozen=True, slots=True)
class _Flow:
    """Say where a stream is: its segment, the level below which its columns exist, and their names."""

    segment: _Segment
    level: int
    present: str
    spaces: Mapping[str, str]


@dataclass(slots=True, eq=False)
class _Segment:
    """Hold the columns that one pass computes: level by level, each made from those before it."""

    origin: Topology | plan.FlatMapValues | plan.ToStream | plan.MergeStreams
    number: int
    levels: list[list[str]] = field(default_factory=list)
    kept: dict[str, None] = field(default_factory=dict)
    failures: list[tuple[str, str, str, str]] = field(default_factory=list)
    counters: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    peeks: dict[str, list[str]] = field(default_factory=dict)
    folds: list[_Fold] = field(default_factory=list)
    made: int = 0

    def add(self, sql: str, level: int) -> str:
        """Add a column computed from columns of lower levels, and give its name."""
        name = f"c{self.number}_{self.made}"
        self.made += 1
        self.levels.extend([] for _ in range(level + 1 - len(self.levels)))
        self.levels[level].append(f"{sql} AS {name}")
        return name

    def fail(self, condition: str, level: int, node: str, location: str, reason: str) -> str:
        """Send the records for which the condition holds to quarantine; give the name of the flag."""
        flag = self.add(condition, level)
        self.failures.append((flag, node, location, reason))
        return flag

    def count(self, flag: str, node: str, reason: str) -> None:
        """Count the records that have the flag as dropped."""
        self.counters.setdefault((node, reason), []).append(flag)


@dataclass(frozen=True, slots=True)
class _Fold:
    """Hold what a table node needs of its segment's frame: presence, group key, and contributions to its state."""

    root: Aggregate | Latest
    label: str
    present: str
    key: str
    lifts: str


@dataclass(slots=True)
class Compiler:
    """Compile one topology once; `batch` then runs it over any batch of records.

    A record that can't be decoded or placed in time, or at which an expression fails, goes to quarantine with its bytes and the
    file:line of the operator, and no operator below that one sees it.
    """

    topology: Topology
    _segments: list[_Segment] = field(init=False, default_factory=list)
    _flows: dict[plan.Stream, _Flow] = field(init=False, default_factory=dict)
    _folds: dict[plan.Table, tuple[_Segment, _Fold]] = field(init=False, default_factory=dict)
    _sinks: list[tuple[Sink, _Flow, str, str]] = field(init=False, default_factory=list)
    _inputs: dict[int, tuple[_Flow, str]] = field(init=False, default_factory=dict)
    _sources: dict[str, _Flow] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        base = self._segment(self.topology)
        self._sources = {topic.name: self._source(base, topic) for topic in self.topology.topics}
        for table in self.topology.tables:
            self._fold(table.root, table.name)
        for sink in self.topology.sinks:
            flow = self._flow(sink.node)
            value = flow.spaces.get("value", flow.spaces.get("new", ""))
            key = self._keep(flow, _encode(flow.spaces["key"], sink.key_format, plan.key_of(sink.node)))
            self._sinks.append((sink, flow, key, self._keep(flow, _encode(value, sink.value_format, plan.value_of(sink.node)))))
            self._need(flow, flow.present)

    @property
    def needs_order(self) -> bool:
        """Tell whether log order matters; where only sums and counts are kept it doesn't, and the running maximum is not computed."""
        roots = [t.root for t in self.topology.tables]
        placed = any(f.merge in (Merge.FIRST, Merge.LAST) for root in roots for f in plan.state_of(root))
        return bool(self.topology.sinks) or placed or any(isinstance(r, Aggregate) and r.windows for r in roots)

    @property
    def _direct(self) -> _Fold | None:
        """Give the only consumer of the records, if one table is all there is: then its partial state is kept, not the records."""
        only = [fold for _, fold in self._folds.values()]
        return only[0] if len(self._segments) == 1 and len(only) == 1 and not self._sinks else None

    # -- the plan as columns -----------------------------------------------------------------------------------------------------

    def _segment(self, origin: Topology | plan.FlatMapValues | plan.ToStream | plan.MergeStreams) -> _Segment:
        self._segments.append(_Segment(origin, len(self._segments)))
        return self._segments[-1]

    def _source(self, base: _Segment, topic: Topic) -> _Flow:
        here = f"(topic = {_literal(topic.name)})"
        key, bad_key = self._decoded(base, "raw_key", topic.key, topic.key_format, here)
        value, bad_value = self._decoded(base, "raw_value", topic.value, topic.value_format, here)
        for flag, part, schema in ((bad_key, "key", topic.key), (bad_value, "value", topic.value)):
            reason = f"the {part} can't be decoded as ({schema.sql().replace('`', '')})"
            base.failures.append((flag, "topic", topic.location, reason))
        time = f"CASE WHEN {value} IS NULL THEN raw_ts ELSE {value}.{quote(topic.timestamp)} END" if topic.timestamp else "raw_ts"
        when = base.add(f"CASE WHEN {here} AND NOT {bad_key} AND NOT {bad_value} THEN {time} END", 2)
        untimed = f"{here} AND NOT {bad_key} AND NOT {bad_value} AND COALESCE({when} < TIMESTAMP '1970-01-01 00:00:00Z', TRUE)"
        base.fail(untimed, 3, "topic", topic.location, "the event time is null or before 1970")
        time_ok = base.add(f"CASE WHEN {when} >= TIMESTAMP '1970-01-01 00:00:00Z' THEN {when} END", 3)
        present = base.add(f"{time_ok} IS NOT NULL", 4)
        return _Flow(base, 5, present, {"key": key, "value": value, "ts": time_ok})

    def _decoded(self, base: _Segment, raw: str, schema: Schema, form: Format, here: str) -> tuple[str, str]:
        """Decode bytes into a struct column; the flag says where there were bytes and no value could be made of them."""
        there = f"{here} AND {raw} IS NOT NULL"
        if form is not Format.JSON:
            text = raw if form is Format.BYTES else f"CAST({raw} AS STRING)"
            bad = base.add("FALSE" if form is Format.BYTES else f"({there} AND NOT is_valid_utf8(CAST({raw} AS STRING)))", 0)
            struct = f"CASE WHEN {there} AND NOT {bad} THEN named_struct('{schema.columns[0].name}', {text}) END"
            return base.add(struct, 1), bad
        ddl = f"{schema.sql()}, `{_CORRUPT}` STRING".replace("'", "\\'")
        options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
        read = base.add(f"CASE WHEN {there} THEN from_json(CAST({raw} AS STRING), '{ddl}', {options}) END", 0)
        bad = base.add(f"({there} AND ({read} IS NULL OR {read}.{_CORRUPT} IS NOT NULL))", 1)
        parts = ", ".join(f"'{c.name}', {read}.{quote(c.name)}" for c in schema)
        return base.add(f"CASE WHEN {read} IS NOT NULL AND {read}.{_CORRUPT} IS NULL THEN named_struct({parts}) END", 1), bad

    def _flow(self, node: plan.Stream) -> _Flow:
        if node not in self._flows:
            self._flows[node] = self._compile(node)
        return self._flows[node]

    def _compile(self, node: plan.Stream) -> _Flow:
        match node:
            case plan.Source():
                return self._sources[node.topic.name]
            case plan.Filter():
                return self._narrow(node.parent, node.condition, "filter", node.location)
            case plan.Expect():
                return self._expect(node)
            case plan.MapValues():
                flow = self._checked(self._flow(node.parent), [e for _, e in node.columns], "map_values", node.location)
                return _with(flow, value=self._value(flow, node.columns))
            case plan.Map():
                made = node.columns or ()
                label = "map" if node.columns is not None else "select_key"
                flow = self._checked(self._flow(node.parent), [e for _, e in (*node.key_columns, *made)], label, node.location)
                key = flow.segment.add(named_struct(node.key_columns, flow.spaces), flow.level)
                if node.columns is None:
                    return _with(flow, key=key)
                return _with(flow, key=key, value=self._value(flow, node.columns))
            case plan.Peek():
                flow = self._flow(node.parent)
                flow.segment.peeks.setdefault(node.name, []).append(flow.present)
                return flow
            case plan.Repartition():
                flow = self._flow(node.parent)
                null_key = _null_key(flow.spaces["key"], plan.key_of(node).names)
                flow.segment.count(flow.segment.add(f"{flow.present} AND {null_key}", flow.level), "repartition", "null_key")
                return _narrowed(flow, flow.segment.add(f"{flow.present} AND NOT {null_key}", flow.level))
            case plan.MergeStreams():
                return self._merge(node)
            case plan.FlatMapValues():
                flow = self._checked(self._flow(node.parent), [e for _, e in node.columns], "flat_map_values", node.location)
                made_value = self._keep(flow, named_struct(node.columns, flow.spaces))
                self._need(flow, flow.present, *flow.spaces.values())
                segment = self._segment(node)
                self._inputs[segment.number] = (flow, made_value)
                return _Flow(segment, 0, "present", {n: c for n, c in flow.spaces.items() if n in ("key", "window")} | {"value": "value"})
            case plan.ToStream():
                self._fold(plan.root_of(node.parent), node.table)
                windowed = {"window": "window"} if plan.windows_of(node) else {}
                return _Flow(self._segment(node), 0, "present", {"key": "key", "old": "old", "new": "new"} | windowed)

    def _narrow(self, parent: plan.Stream, condition: Expr, label: str, location: str) -> _Flow:
        flow = self._checked(self._flow(parent), [condition], label, location)
        passes = f"{flow.present} AND COALESCE({render(condition.safe_sql, flow.spaces)}, FALSE)"
        return _narrowed(flow, flow.segment.add(passes, flow.level))

    def _expect(self, node: plan.Expect) -> _Flow:
        rule, label = node.rule, f"expect:{node.rule.name}"
        flow = self._checked(self._flow(node.parent), [rule.condition], label, node.location)
        broken = f"{flow.present} AND NOT COALESCE({render(rule.condition.safe_sql, flow.spaces)}, TRUE)"
        if rule.on_fail is OnFail.QUARANTINE:
            flag = flow.segment.fail(broken, flow.level, label, node.location, f"breaks the rule {rule.name!r}")
        else:
            flag = flow.segment.add(broken, flow.level)
            flow.segment.count(flag, label, f"rule:{rule.name}")
        if rule.on_fail is OnFail.WARN:
            return _narrowed(flow, flow.present)
        deeper = _narrowed(flow, flow.present)
        return _narrowed(deeper, flow.segment.add(f"{flow.present} AND NOT {flag}", deeper.level))

    def _checked(self, flow: _Flow, expressions: Sequence[Expr], label: str, location: str) -> _Flow:
        """Send records at which an expression fails to quarantine, and give the stream of the others."""
        fails = [f"({render(e.fails_sql, flow.spaces)})" for e in expressions if e.fails_sql is not None]
        if not fails:
            return flow
        reason = "an expression fails: " + "; ".join(e.sql.replace("`", "") for e in expressions if e.fails_sql is not None)
        flag = flow.segment.fail(f"{flow.present} AND ({' OR '.join(fails)})", flow.level, label, location, reason)
        return _narrowed(flow, flow.segment.add(f"{flow.present} AND NOT {flag}", flow.level + 1), by=2)

    def _value(self, flow: _Flow, columns: plan.Named) -> str:
        there = flow.spaces.get("value", flow.spaces.get("new", ""))
        return flow.segment.add(f"CASE WHEN {there} IS NOT NULL THEN {named_struct(columns, flow.spaces)} END", flow.level)

    def _merge(self, node: plan.MergeStreams) -> _Flow:
        flows = [self._flow(parent) for parent in node.parents]
        topics = [{n.topic.name for n in plan.walk(p) if isinstance(n, plan.Source)} for p in node.parents]
        apart = sum(map(len, topics)) == len(set().union(*topics))
        segment, level = flows[0].segment, max(f.level for f in flows)
        if apart and all(f.segment is segment for f in flows):  # no record is in two of them, so they fit in one set of columns
            present = segment.add(" OR ".join(f"COALESCE({f.present}, FALSE)" for f in flows), level)
            spaces = {
                name: segment.add("CASE " + " ".join(f"WHEN {f.present} THEN {f.spaces[name]}" for f in flows) + " END", level)
                for name in flows[0].spaces
            }
            return _Flow(segment, level + 1, present, spaces)
        for flow in flows:
            self._need(flow, flow.present, *flow.spaces.values())
        return _Flow(self._segment(node), 0, "present", {name: name for name in flows[0].spaces if name != "ts"})

    def _fold(self, root: Aggregate | Latest, label: str) -> None:
        """Prepare what a table node folds; tables that share a node share its fold."""
        if root in self._folds:
            return
        flow = self._flow(root.parent)
        if isinstance(root, Latest):
            names = plan.key_of(root).names
            null_key = _null_key(flow.spaces["key"], names)
            if root.is_source:
                reason = "a record of a table topic has no key"
                flag = flow.segment.fail(f"{flow.present} AND {null_key}", flow.level, label, root.location, reason)
            else:
                flag = flow.segment.add(f"{flow.present} AND {null_key}", flow.level)
                flow.segment.count(flag, label, "null_key")
            present = flow.segment.add(f"{flow.present} AND NOT {flag}", flow.level + 1)
            fold = _Fold(root, label, present, flow.spaces["key"], flow.spaces["value"])
        else:
            fold, flow = self._aggregate(root, label, flow)
        self._need(flow, fold.present, fold.key, fold.lifts)
        flow.segment.folds.append(fold)
        self._folds[root] = (flow.segment, fold)

    def _aggregate(self, root: Aggregate, label: str, flow: _Flow) -> tuple[_Fold, _Flow]:
        segment = flow.segment
        if root.windows is None:  # Kafka Streams: without windows a null value is dropped, with them the aggregate sees it
            there = flow.spaces.get("value", flow.spaces.get("new", ""))
            segment.count(segment.add(f"{flow.present} AND {there} IS NULL", flow.level), label, "null_value")
            flow = _narrowed(flow, segment.add(f"{flow.present} AND {there} IS NOT NULL", flow.level))
        fields = plan.state_of(root)
        lifts = [f.lift for f in fields if f.lift is not None]
        flow = self._checked(flow, [*(e for _, e in root.group), *lifts], label, root.location)
        key = segment.add(named_struct(root.group, flow.spaces), flow.level)
        null_key = _null_key(key, tuple(name for name, _ in root.group))
        segment.count(segment.add(f"{flow.present} AND {null_key}", flow.level + 1), label, "null_key")
        present = segment.add(f"{flow.present} AND NOT {null_key}", flow.level + 1)
        made = segment.add(named_struct(tuple((f.name, f.lift) for f in fields if f.lift), flow.spaces), flow.level)
        return _Fold(root, label, present, key, made), flow

    def _keep(self, flow: _Flow, sql: str) -> str:
        name = flow.segment.add(sql, flow.level)
        self._need(flow, name)
        return name

    def _need(self, flow: _Flow, *columns: str) -> None:
        flow.segment.kept.update(dict.fromkeys(columns))

    # -- a batch -----------------------------------------------------------------------------------------------------------------

    def batch(self, records: DataFrame, carry: Mapping[Partition, datetime | None], lookup: Lookup) -> Batch:
        """Compile a batch: records as read, in any order; and for each partition it may hold, the stream time brought to it.

        `lookup` gives old rows, for the tables whose changes are streamed. Runs one job over the batch, and one for each such table;
        all other frames run when they are written. Raises `ValueError` when a record's partition isn't in `carry`.
        """
        run = _Run(self, carry, lookup)
        frames = {0: run.base(records)}
        watched, figures = run.watched(frames[0])
        partial: dict[plan.Table, DataFrame] = {}
        if self._direct is None:
            frames[0] = run.keep(watched)
        else:
            partial[self._direct.root] = run.keep(run.partial(self._direct, run.contributions(self._direct, watched)[0]))
        stats = figures()
        for segment in self._segments[1:]:
            frames[segment.number] = run.segment(segment, frames)
        late: list[DataFrame] = []
        for root, (segment, fold) in self._folds.items():
            contributions, missed = run.contributions(fold, frames[segment.number])
            if root not in partial:
                partial[root] = run.partial(fold, contributions)
            if missed is not None and not (segment.number == 0 and not stats.dropped.get((fold.label, "late"))):
                late.append(missed)
        bad = [s for s in self._segments if s.failures and not (s.number == 0 and not stats.quarantined)]
        counted = run.counted(stats, frames)
        return Batch(
            tables={table.name: partial[table.root] for table in self.topology.tables},
            outbox=run.outbox(frames),
            quarantine=_union([run.quarantine(frames[s.number]) for s in bad]),
            dropped=_union([*late, *counted]),
            stats=stats,
            _kept=run.kept,
        )


@dataclass(slots=True)
class _Run:
    """Hold what one batch needs beside the compiled plan."""

    compiler: Compiler
    carry: Mapping[Partition, datetime | None]
    lookup: Lookup
    kept: list[DataFrame] = field(default_factory=list)

    def base(self, records: DataFrame) -> DataFrame:
        """Decode the batch, run the first segment, put each record at its stream time, and cache what is needed."""
        segment = self.compiler._segments[0]
        frame = records.selectExpr(
            "topic", "partition", "offset", "timestamp AS raw_ts", "key AS raw_key", "value AS raw_value", "0L AS ord"
        )
        times = [flow.spaces["ts"] for flow in self.compiler._sources.values()]
        frame = self._narrowed(segment, _leveled(frame, segment), f"coalesce({', '.join(times)}, NULL) AS ts")
        before = f"element_at({self._carried()}, concat(topic, ':', partition))"
        running = "max(ts)"
        if self.compiler.needs_order:
            running = "max(ts) OVER (PARTITION BY topic, partition ORDER BY offset ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
            frame = frame.withColumn("st", F.expr(f"greatest({running}, try_{before})"))
        else:
            frame = frame.withColumn("st", F.expr(f"greatest(ts, try_{before})"))
        for fold in segment.folds:
            if isinstance(fold.root, Aggregate) and fold.root.windows:
                frame = frame.selectExpr("*", *_windows(fold))
        return frame

    def keep(self, frame: DataFrame) -> DataFrame:
        """Compute a frame now, in one job, and cut its lineage: what is made of it plans fast, and never reads Kafka again."""
        self.kept.append(frame.localCheckpoint(eager=True))
        return self.kept[-1]

    def watched(self, base: DataFrame) -> tuple[DataFrame, Callable[[], BatchStats]]:
        """Count on the way through: give the frame to run, and what gives the figures once it has run."""
        segment = self.compiler._segments[0]
        sums: dict[str, str] = {"records": "count(1)", "quarantined": "sum(size(bad))"}
        names: dict[str, tuple[str, str] | str] = {}
        for number, (name, flags) in enumerate((segment.counters | segment.peeks).items()):
            sums[f"f{number}"] = _tally(flags)
            names[f"f{number}"] = name
        for number, fold in enumerate(segment.folds):
            if isinstance(fold.root, Aggregate) and fold.root.windows:
                sums[f"l{number}"] = f"sum(CASE WHEN {fold.present} THEN {fold.key}_missed ELSE 0 END)"
                names[f"l{number}"] = (fold.label, "late")
        partitions = list(self.carry)
        for number, (topic, partition) in enumerate(partitions):
            here = f"topic = {_literal(topic)} AND partition = {partition}"
            sums[f"n{number}"] = f"count(CASE WHEN {here} THEN 1 END)"
            sums[f"t{number}"] = f"unix_micros(max(CASE WHEN {here} THEN st END))"
        observation = Observation()
        frame = base.observe(observation, *(F.expr(f"{sql} AS {name}") for name, sql in sums.items()))

        def figures() -> BatchStats:
            seen = observation.get
            counts = {name: int(seen[column] or 0) for column, name in names.items()}
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

    def segment(self, segment: _Segment, frames: Mapping[int, DataFrame]) -> DataFrame:
        """Build the input of a later segment, and run it."""
        match segment.origin:
            case plan.FlatMapValues():
                frame = self._exploded(segment, segment.origin, frames)
            case plan.ToStream():
                frame = self._changes(segment.origin, frames)
            case plan.MergeStreams():
                frame = self._united(segment.origin, frames)
            case Topology():
                raise AssertionError("the first segment has no input but the records")
        frame = self._narrowed(segment, _leveled(frame, segment), "ts", "st")
        for fold in segment.folds:
            if isinstance(fold.root, Aggregate) and fold.root.windows:
                frame = frame.selectExpr("*", *_windows(fold))
        return frame

    def contributions(self, fold: _Fold, frame: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """Give what records contribute to a table (`key`, `l`, place), by slot for a windowed one, and the windows that were missed."""
        here = frame.where(fold.present)
        keys, lifts = f"{fold.key} AS key", f"{fold.lifts} AS l"
        if not isinstance(fold.root, Aggregate) or fold.root.windows is None:
            return here.selectExpr(keys, lifts, "ts", *_PLACE, *_RAW), None
        names = [f"{fold.key}_{part}" for part in ("first", "open", "last")]
        size, advance = (_microseconds(d) for d in (fold.root.windows.size, fold.root.windows.advance))
        taken = here.where(f"{names[1]} <= {names[2]}").selectExpr(
            keys, lifts, f"{names[0]} AS first", f"{names[1]} AS open", f"{names[2]} AS last", "ts", *_PLACE, *_RAW
        )
        missed = here.where(f"{names[0]} < {names[1]}").selectExpr(
            f"{_literal(fold.label)} AS node", "'late' AS reason", "topic", "partition", "offset",
            f"explode(sequence({names[0]}, least({names[1]} - {advance}, {names[2]}), {advance}L)) AS s",
        )  # fmt: skip
        dropped = missed.selectExpr(
            "node", "reason", "topic", "partition", "offset",
            "timestamp_micros(s) AS window_start", f"timestamp_micros(s + {size}) AS window_end", "1L AS count",
        )  # fmt: skip
        return taken, dropped

    def partial(self, fold: _Fold, contributions: DataFrame) -> DataFrame:
        """Fold the contributions of a batch to one partial state a key; in a hopping table, a key that spans its windows (`spread`)."""
        fields = plan.state_of(fold.root)
        windows = fold.root.windows if isinstance(fold.root, Aggregate) else None
        sources = {f.name: f"l.{quote(f.name)}" if f.lift is not None else "l" for f in fields}
        state = ", ".join(f"'{f.name}', {lifted(f, sources[f.name])}" for f in fields)
        folded = [F.expr(f"named_struct({state}) AS state"), F.expr("max(st) AS st")]
        if windows is None:
            return contributions.groupBy("key").agg(*folded)
        each = contributions.withColumn("key", F.expr(_windowed_key(fold, "open", "last", _microseconds(windows.size))))
        return each.groupBy("key").agg(*folded)

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
        known = [f"named_struct('n', {_literal(n)}, 'r', {_literal(r)}, 'c', {c}L)" for (n, r), c in stats.dropped.items() if r != "late"]
        made = []
        if known:
            rows = spark.range(1).selectExpr(f"explode(array({', '.join(known)})) AS d")
            made.append(rows.selectExpr("d.n AS node", "d.r AS reason", *_split(nowhere), "d.c AS count").select(*_names(DROPPED)))
        for segment in self.compiler._segments[1:]:
            if segment.counters:
                sums = [
                    f"named_struct('n', {_literal(node)}, 'r', {_literal(reason)}, 'c', {_tally(flags)})"
                    for (node, reason), flags in segment.counters.items()
                ]  # fmt: skip
                rows = frames[segment.number].agg(F.expr(f"array({', '.join(sums)}) AS a")).selectExpr("explode(a) AS d").where("d.c > 0")
                made.append(rows.selectExpr("d.n AS node", "d.r AS reason", *_split(nowhere), "d.c AS count").select(*_names(DROPPED)))
        return made

    def outbox(self, frames: Mapping[int, DataFrame]) -> DataFrame | None:
        """Give the records to publish, numbered for each topic in log order."""
        out = []
        for sink, flow, key, value in self.compiler._sinks:
            frame = frames[flow.segment.number].where(flow.present)
            ordinal = "CAST(row_number() OVER (ORDER BY st, topic, partition, offset, ord) - 1 AS BIGINT) AS ordinal"
            out.append(frame.selectExpr(
                f"{_literal(sink.topic)} AS topic", f"{key} AS key", f"{value} AS value", "ts AS timestamp", "st", "topic AS src_topic",
                "partition AS src_partition", "offset AS src_offset", "ord", ordinal,
            ))  # fmt: skip
        return _union(out)

    def _exploded(self, segment: _Segment, node: plan.FlatMapValues, frames: Mapping[int, DataFrame]) -> DataFrame:
        flow, made = self.compiler._inputs[segment.number]
        there = flow.spaces.get("value", flow.spaces.get("new", ""))
        frame = frames[flow.segment.number].where(f"{flow.present} AND {there} IS NOT NULL")
        frame = frame.selectExpr(
            "*", f"posexplode({made}.{quote(node.exploded)}) AS (_pos, _item)"
        )
        parts = ", ".join(f"'{n}', " + ("_item" if n == node.exploded else f"{made}.{quote(n)}") for n, _ in node.columns)
        window = [f"{flow.spaces['window']} AS window"] if "window" in flow.spaces else []
        spaces = [f"{flow.spaces['key']} AS {segment_key}" for segment_key in ("key",)] + window
        return frame.selectExpr(
            "TRUE AS present", *spaces, f"named_struct({parts}) AS value", f"ord * {FAN_OUT} + _pos AS ord",
            *(c for c in (*_PLACE, "ts", *_RAW) if c != "ord"),
        )  # fmt: skip

    def _changes(self, node: plan.ToStream, frames: Mapping[int, DataFrame]) -> DataFrame:
        """Run the states of the touched keys forward, record by record in log order, from the old rows."""
        table = self.compiler.topology.table(node.table)
        segment, fold = self.compiler._folds[table.root]
        contributions, _ = self.contributions(fold, frames[segment.number])
        if table.windows is not None:
            size, advance = _microseconds(table.windows.size), _microseconds(table.windows.advance)
            each = contributions.withColumn("s", F.expr(f"explode(sequence(open, last, {advance}L))"))
            numbered = each.withColumn("ord", F.expr(f"ord * {FAN_OUT} + (s - first) div {advance}L"))
            contributions = numbered.withColumn("key", F.expr(_windowed_key(fold, "s", "s", size)))
        old = self.lookup(table, contributions.select("key").distinct())
        sources = {f.name: f"l.{quote(f.name)}" if f.lift is not None else "l" for f in table.state}
        alone = ", ".join(f"'{f.name}', {single(f, sources[f.name])}" for f in table.state)
        rows = contributions.selectExpr("key", f"named_struct({alone}) AS state", "TRUE AS present", "ts", *_PLACE, *_RAW)
        seeds = old.selectExpr("key", "state", "FALSE AS present")
        both = rows.unionByName(seeds, allowMissingColumns=True)
        forward = "PARTITION BY key ORDER BY present, st, topic, partition, offset, ord"
        over = f" OVER ({forward} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
        run = ", ".join(f"'{f.name}', {merged(f, f'state.{quote(f.name)}', over)}" for f in table.state)
        running = both.selectExpr("*", f"named_struct({run}) AS after")
        running = running.selectExpr("*", f"lag(after) OVER ({forward}) AS before").where("present")
        for side in ("before", "after"):
            for level in finishing(table, state=side, key="key", into=f"_{side}", window=f"_w_{side}"):
                running = running.selectExpr("*", *level)
        last = len(table.stages)
        window = ["_w_after AS window"] if table.windows is not None else []
        changed = running.where(f"_before{last} IS NOT NULL OR _after{last} IS NOT NULL")
        return changed.selectExpr("present", "key", f"_before{last} AS old", f"_after{last} AS new", *window, "ts", *_PLACE, *_RAW)

    def _united(self, node: plan.MergeStreams, frames: Mapping[int, DataFrame]) -> DataFrame:
        parts = []
        for number, parent in enumerate(node.parents):
            flow = self.compiler._flow(parent)
            columns = [f"{column} AS {name}" for name, column in flow.spaces.items() if name != "ts"]
            frame = frames[flow.segment.number].where(flow.present)
            numbered = frame.withColumn("ord", F.expr(f"ord * {len(node.parents)} + {number}"))
            parts.append(numbered.selectExpr("TRUE AS present", *columns, "ts", *_PLACE, *_RAW))
        return reduce(lambda a, b: a.unionByName(b), parts)

    def _narrowed(self, segment: _Segment, frame: DataFrame, *times: str) -> DataFrame:
        """Keep only what later steps need: flags and structs of tables and outputs, places, and the bytes of refused records."""
        cases = [
            f"CASE WHEN {flag} THEN named_struct('node', {_literal(n)}, 'location', {_literal(w)}, 'reason', {_literal(r)}) END"
            for flag, n, w, r in segment.failures
        ]
        flags = " OR ".join(f"COALESCE({flag}, FALSE)" for flag, *_ in segment.failures) or "FALSE"
        bad = f"CASE WHEN {flags} THEN filter(array({', '.join(cases)}), b -> b IS NOT NULL) ELSE array() END" if cases else "array()"
        counted = [flag for found in (*segment.counters.values(), *segment.peeks.values()) for flag in found]
        raw = self._raw(segment, flags)
        place_now = [c for c in ("topic", "partition", "offset", "ord") if c not in segment.kept]
        kept = dict.fromkeys([*segment.kept, *counted])
        return frame.selectExpr(*kept, *place_now, *times, f"CAST({bad} AS ARRAY<STRUCT<{_struct(_BAD)}>>) AS bad", *raw)

    def _raw(self, segment: _Segment, flags: str) -> list[str]:
        later = any(s.failures for s in self.compiler._segments if s.number > segment.number)
        if later:
            return list(_RAW)
        return [f"CASE WHEN {flags} THEN {column} END AS {column}" for column in _RAW]

    def _carried(self) -> str:
        known = {f"{topic}:{number}": when for (topic, number), when in self.carry.items() if when is not None}
        if not known:
            return "CAST(map() AS MAP<STRING, TIMESTAMP>)"
        entries = ", ".join(f"{_literal(name)}, timestamp_micros({_since_epoch(when)}L)" for name, when in sorted(known.items()))
        return f"map({entries})"


_RAW: Final = ("raw_key", "raw_value", "raw_ts")


def _windows(fold: _Fold) -> list[str]:
    """Write the window starts of a record, in microseconds: the first, the first one still open, the last; and how many it missed."""
    assert isinstance(fold.root, Aggregate)
    assert fold.root.windows is not None
    windows = fold.root.windows
    size, advance, grace = (_microseconds(d) for d in (windows.size, windows.advance, windows.grace))
    now = "unix_micros(ts)"
    last = f"({now} - pmod({now}, {advance}L))"
    first = f"greatest(0L, {_next_start(f'({now} - {size}L)', advance)})"
    still_open = f"greatest({first}, {_next_start(f'(unix_micros(st) - {size + grace}L)', advance)})"
    missed = f"CAST(greatest(0L, (least({still_open} - {advance}L, {last}) - {first}) div {advance}L + 1L) AS BIGINT)"
    name = fold.key
    return [f"{first} AS {name}_first", f"{still_open} AS {name}_open", f"{last} AS {name}_last", f"{missed} AS {name}_missed"]


def _next_start(after: str, advance: int) -> str:
    """Write the first multiple of the advance that is greater than a time."""
    return f"({after} - pmod({after}, {advance}L) + {advance}L)"


def _windowed_key(fold: _Fold, first: str, last: str, size: int) -> str:
    """Write the key that spans the windows from the first start to the last one; of one window, if they are the same."""
    assert isinstance(fold.root, Aggregate)
    group = ", ".join(f"'{name}', key.{quote(name)}" for name, _ in fold.root.group)
    return f"named_struct({group}, 'window_start', timestamp_micros({first}), 'window_end', timestamp_micros({last} + {size}L))"


def _leveled(frame: DataFrame, segment: _Segment) -> DataFrame:
    for level in segment.levels:
        if level:
            frame = frame.selectExpr("*", *level)
    return frame


def _with(flow: _Flow, **spaces: str) -> _Flow:
    """Replace the record of a stream; a new value ends a Change."""
    kept = {n: c for n, c in flow.spaces.items() if not ("value" in spaces and n in ("old", "new"))}
    if "key" in spaces:
        kept.pop("window", None)
    return _Flow(flow.segment, flow.level + 1, flow.present, kept | spaces)


def _narrowed(flow: _Flow, present: str, *, by: int = 1) -> _Flow:
    return _Flow(flow.segment, flow.level + by, present, flow.spaces)


def _null_key(key: str, names: Sequence[str]) -> str:
    return "(" + " OR ".join(f"{key}.{quote(name)} IS NULL" for name in names) + ")"


def _encode(column: str, form: Format, schema: Schema) -> str:
    """Write a struct as bytes: JSON with its nulls, or the bytes of its only column."""
    match form:
        case Format.STRING:
            return f"CAST({column}.{quote(schema.columns[0].name)} AS BINARY)"
        case Format.BYTES:
            return f"{column}.{quote(schema.columns[0].name)}"
        case Format.JSON:
            # Spark's own format would cut microseconds off; serdes.encode writes the same
            time = "yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSSXXX"
            return f"CAST(to_json({column}, map('ignoreNullFields', 'false', 'timestampFormat', '{time}')) AS BINARY)"


def _union(frames: Sequence[DataFrame]) -> DataFrame | None:
    return reduce(lambda a, b: a.unionByName(b), frames) if frames else None


def _tally(flags: Sequence[str]) -> str:
    """Write the SQL that counts the records with these flags."""
    return "CAST(sum(" + " + ".join(f"int(COALESCE({flag}, FALSE))" for flag in flags) + ") AS BIGINT)"


def _forget(kept: DataFrame) -> None:
    """Free a checkpointed frame's blocks now: the garbage collector would let several batches pile up."""
    kept._jdf.queryExecution().analyzed().rdd().unpersist(False)


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


def _since_epoch(when: datetime) -> int:
    return _microseconds(when - datetime(1970, 1, 1, tzinfo=UTC))


def _micros(number: int | None) -> datetime | None:
    return None if number is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=number)


def _split(columns: str) -> list[str]:
    return columns.split(", ")


def _names(ddl: str) -> list[str]:
    return [part.split()[0] for part in ddl.split(", ")]


def _struct(ddl: str) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in (part.split() for part in ddl.split(", ")))
