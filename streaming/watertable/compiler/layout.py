"""Lay a plan out as columns: which SQL makes each stream's records, in how few passes. Text only, composed once for a topology.

A plan is cut into *segments*. Within one, each record of the segment's input makes at most one record of every stream, so all streams
are columns of one frame: a presence flag, and structs for key and value. `flat_map_values`, the changes of a table and merges of streams
that share a topic begin a new segment. The frames themselves are the compiler's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from watertable.compiler.algebra import named_struct, render, taken
from watertable.plan import nodes, plan
from watertable.plan.aggregates import Merge, SignedField
from watertable.plan.nodes import Aggregate, Format, Header, History, Latest, TableAggregate, Topic, Versioned
from watertable.plan.places import FAN_OUT, TOO_MANY
from watertable.plan.plan import Sink, Topology
from watertable.plan.rules import OnFail
from watertable.plan.stages import How, Named
from watertable.plan.windows import (
    BEYOND,
    END_OF_TIME,
    EPOCH,
    UNTIMED,
    SessionWindows,
    SlidingWindows,
    UnlimitedWindows,
    Windows,
    microseconds,
)
from watertable.schema import Schema, Type, quote
from watertable.sql.expressions import Expr

Origin = (
    Topology | nodes.FlatMapValues | nodes.ToStream | nodes.StreamJoin | nodes.StreamStreamJoin | nodes.MergeStreams | nodes.FinalRows
    | nodes.Process
)  # fmt: skip
"""What begins a segment."""
_CORRUPT: Final = "_wt_corrupt"


@dataclass(frozen=True, slots=True)
class Flow:
    """Say where a stream is: its segment, the level below which its columns exist, and their names."""

    segment: Segment
    level: int
    present: str
    spaces: Mapping[str, str]


@dataclass(slots=True, eq=False)
class Segment:
    """Hold the columns that one pass computes: level by level, each made from those before it.

    `failures` are flags, each with its operator, the operator's place and, as SQL, the reason.
    """

    origin: Origin
    number: int
    levels: list[list[str]] = field(default_factory=list)
    kept: dict[str, None] = field(default_factory=dict)
    failures: list[tuple[str, str, str, str]] = field(default_factory=list)
    counters: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    peeks: dict[str, list[str]] = field(default_factory=dict)
    folds: list[Fold] = field(default_factory=list)
    made: int = 0
    there: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The name and level of each column, by its SQL."""

    def add(self, sql: str, level: int) -> str:
        """Add a column computed from columns of lower levels, and give its name; one that is there already isn't computed again."""
        if (there := self.there.get(sql)) is not None and there[1] <= level:
            return there[0]
        name = f"c{self.number}_{self.made}"
        self.there[sql] = (name, level)
        self.made += 1
        self.levels.extend([] for _ in range(level + 1 - len(self.levels)))
        self.levels[level].append(f"{sql} AS {name}")
        return name

    def fail(self, condition: str, level: int, node: str, location: str, reason: str) -> str:
        """Send the records for which the condition holds to quarantine; give the name of the flag."""
        return self.fail_for(condition, level, node, location, literal(reason))

    def fail_for(self, condition: str, level: int, node: str, location: str, reason: str) -> str:
        """Send records to quarantine for a reason that is SQL."""
        flag = self.add(condition, level)
        self.failures.append((flag, node, location, reason))
        return flag

    def count(self, flag: str, node: str, reason: str) -> None:
        """Count the records that have the flag as dropped."""
        self.counters.setdefault((node, reason), []).append(flag)


@dataclass(frozen=True, slots=True)
class Fold:
    """Hold what a table node needs of its segment's frame: presence, group key, and contributions to its state.

    Where a table's rows are grouped, a Change contributes to up to two keys: `key` and `lifts` both name an array of what it takes
    from a group and brings to one, each with its `key`, its `l`, the `n` of its place, whether it is `paired` (both in one group), and its
    `step`, 1 where a Change is to be seen.
    """

    root: nodes.Leaf
    label: str
    present: str
    key: str
    lifts: str
    slots: str = ""
    """What the names of the columns begin with that say in which windows a record is."""

    @property
    def windows(self) -> Windows | None:
        """Give the windows of a windowed table."""
        return self.root.windows if isinstance(self.root, Aggregate) else None

    @property
    def missing(self) -> str:
        """Name the reason for which records miss its windows."""
        return "before_start" if isinstance(self.windows, UnlimitedWindows) else "late"


@dataclass(frozen=True, slots=True)
class Half:
    """Hold one side of a join of streams: what it keeps, and the records without a key that are given alone, if any are."""

    flow: Flow
    fold: Fold
    keyless: str | None


@dataclass(frozen=True, slots=True)
class Outlet:
    """Name the columns of what a sink publishes; `headers` is None where it writes none."""

    sink: Sink
    flow: Flow
    key: str
    value: str
    headers: str | None


@dataclass(slots=True)
class Layout:
    """Lay a topology out: its segments, and for each table and output the columns that they consume.

    A record that can't be decoded or placed in time, or at which an expression fails, gets the flag of the operator that refuses it, and
    no operator below that one sees it.
    """

    topology: Topology
    segments: list[Segment] = field(init=False, default_factory=list)
    flows: dict[nodes.Stream, Flow] = field(init=False, default_factory=dict)
    folds: dict[nodes.Leaf, tuple[Segment, Fold]] = field(init=False, default_factory=dict)
    sinks: list[Outlet] = field(init=False, default_factory=list)
    inputs: dict[int, tuple[Flow, str]] = field(init=False, default_factory=dict)
    pairs: dict[int, tuple[Half, Half]] = field(init=False, default_factory=dict)
    buffers: tuple[plan.TableDef, ...] = field(init=False)
    sources: dict[str, Flow] = field(init=False, default_factory=dict)
    sought: frozenset[nodes.Leaf] = field(init=False)
    """What folds records into the tables whose rows streams look up as records arrive."""

    def __post_init__(self) -> None:
        self.buffers = self.topology.buffers
        base = self._segment(self.topology)
        self.sources = {topic.name: self._source(base, topic) for topic in self.topology.topics}
        for table in self.topology.tables:
            self._folds(table.root, table.name)
        for table in self.buffers:
            if isinstance(table.root, History | nodes.Stored):
                self._folds(table.root, table.name)
        for sink in self.topology.sinks:
            flow = self._checked(self.flow(sink.node), [expr for _, expr in sink.headers], "to", sink.location)
            key = self._keep(flow, encoded(flow.spaces["key"], sink.key_format, plan.key_of(sink.node)))
            value = self._keep(flow, encoded(_value_of(flow), sink.value_format, plan.value_of(sink.node)))
            self.sinks.append(Outlet(sink, flow, key, value, self._keep(flow, _written(sink, flow)) if sink.headers else None))
            self._need(flow, flow.present)
        origins = (segment.origin for segment in self.segments)
        joins = [origin for origin in origins if isinstance(origin, nodes.StreamJoin)]
        plain = [self.topology.table(join.table) for join in joins if not isinstance(plan.root_of(join.right), Versioned)]
        self.sought = frozenset(part.leaf for table in plain for part in table.parts)

    @property
    def needs_order(self) -> bool:
        """Tell whether log order matters; where only sums and counts are kept it doesn't, and the running maximum is not computed."""
        tables = self.topology.tables
        placed = any(f.merge in (Merge.FIRST, Merge.LAST, Merge.LIST, Merge.TOP) for table in tables for f in table.state)
        return bool(self.topology.sinks or self.topology.streamed or self.buffers) or placed or any(table.windows for table in tables)

    def alone(self, segment: Segment) -> Fold | None:
        """Give the fold that is all that reads a segment's records, if there is but one: then its partial state is kept, not the records.

        Not of windows that a record is in several of, or that move: of one that is late for some, all would be read again. Nor where a
        look is taken at what the table gets with each record; and a processor is called once.
        """
        if isinstance(segment.origin, nodes.Process) or len(segment.folds) != 1 or self._uses(segment) != 1:
            return None
        (fold,) = segment.folds
        windows = fold.windows
        if isinstance(windows, SessionWindows | SlidingWindows) or (windows is not None and windows.per_record > 1):
            return None
        of_table = any(fold.root in plan.leaves_of(table.root) for table in self.topology.tables)
        return fold if of_table and fold.root not in self.sought else None

    def whole(self, fold: Fold) -> plan.TableDef | None:
        """Give the table whose changes are what a fold makes, all of it: of windows, some may be of late records."""
        if fold.windows is not None:
            return None
        return next((table for table in self.topology.tables if table.root is fold.root), None)

    def shared(self, segment: Segment) -> bool:
        """Tell whether what a segment makes is computed at once: it is read more than once, or its figures are wanted.

        What is counted or refused is known only once it's computed; and the user's code is called once.
        """
        counted = isinstance(segment.origin, nodes.Process) or segment.failures or segment.counters or segment.peeks
        return bool(counted) or self._uses(segment) > 1

    def _uses(self, segment: Segment) -> int:
        """Count how often a segment's records are read.

        A table reads them, twice more if its own changes are streamed (their keys, then the rows); so do outputs and later segments.
        """
        uses = sum(outlet.flow.segment is segment for outlet in self.sinks)
        for table in self.topology.tables:
            leaves = sum(self.folds[leaf][0] is segment for leaf in plan.leaves_of(table.root))
            uses += leaves * (3 if table.name in self.topology.streamed else 1)
        for number, (flow, _) in self.inputs.items():
            looks = isinstance(self.segments[number].origin, nodes.StreamJoin | nodes.Process)  # keys up, and then at the records
            uses += (2 if looks else 1) * (flow.segment is segment)
        for sides in self.pairs.values():  # the keys to look up, the records, and those that they may pair with
            uses += sum(3 * (half.flow.segment is segment) for half in sides)
        uses += sum(fold.root in (s.leaf for t in self.buffers for s in t.parts) for fold in segment.folds)
        final = (s.origin.parent for s in self.segments if isinstance(s.origin, nodes.FinalRows))
        uses += sum(self.folds[leaf][0] is segment for table in final for leaf in plan.leaves_of(plan.root_of(table)))
        merges = (s.origin for s in self.segments if isinstance(s.origin, nodes.MergeStreams))
        return uses + sum(self.flows[parent].segment is segment for merge in merges for parent in merge.parents)

    # -- the plan as columns -----------------------------------------------------------------------------------------------------

    def _segment(self, origin: Origin) -> Segment:
        self.segments.append(Segment(origin, len(self.segments)))
        return self.segments[-1]

    def _source(self, base: Segment, topic: Topic) -> Flow:
        here = f"(topic = {literal(topic.name)})"
        key, bad_key, why_key = self._decoded(base, "raw_key", topic.key, topic.key_format, here)
        headers = {h: base.add(_last(h), 0) for h in topic.headers}
        more = [(h.column.name, column) for h, column in headers.items()]
        value, bad_value, why_value = self._decoded(base, "raw_value", topic.value, topic.value_format, here, more, topic.timestamp)
        for flag, why, part, schema in ((bad_key, why_key, "key", topic.key), (bad_value, why_value, "value", topic.value)):
            reason = literal(f"the {part} can't be decoded as ({schema.sql().replace('`', '')})")
            base.failures.append((flag, "topic", topic.location, f"COALESCE({why}, {reason})" if why else reason))
        well = f"{here} AND NOT {bad_key} AND NOT {bad_value}"
        if texts := [column for h, column in headers.items() if h.column.type.kind == "string"]:
            broken = base.add(f"({here} AND NOT ({' AND '.join(f'coalesce(is_valid_utf8({text}), TRUE)' for text in texts)}))", 1)
            base.fail(f"{broken} AND {value} IS NOT NULL", 2, "topic", topic.location, "a header is not UTF-8")
            well += f" AND NOT ({broken} AND {value} IS NOT NULL)"
        time = "raw_ts"
        if topic.timestamp:  # of a record without a value the earliest there is, which moves no stream time, until that is known
            time = f"CASE WHEN {value} IS NULL THEN {moment(EPOCH)} ELSE {value}.{quote(topic.timestamp)} END"
        when = base.add(f"CASE WHEN {well} THEN {time} END", 2)
        timely = f"{when} >= TIMESTAMP '{EPOCH:%F %TZ}' AND {when} < TIMESTAMP '{END_OF_TIME:%F %TZ}'"
        base.fail(f"{well} AND NOT COALESCE({timely}, FALSE)", 3, "topic", topic.location, UNTIMED)
        time_ok = base.add(f"CASE WHEN {timely} THEN {when} END", 3)
        present = base.add(f"{time_ok} IS NOT NULL", 4)
        return Flow(base, 5, present, {"key": key, "value": value, "ts": time_ok})

    def _decoded(
        self, base: Segment, raw: str, schema: Schema, form: Format, here: str, more: Sequence[tuple[str, str]] = (), at: str | None = None
    ) -> tuple[str, str, str]:
        """Decode bytes into a struct column, with more columns; the flag says where there were bytes and no value could be made of them.

        Nor is one made that holds a date or time which Python hasn't: then the last, if there is any such SQL, says so. An event time
        `at` is judged as such.
        """
        also = "".join(f", '{name}', {column}" for name, column in more)
        there = f"{here} AND {raw} IS NOT NULL"
        if form is not Format.JSON:
            text = raw if form is Format.BYTES else f"CAST({raw} AS STRING)"
            bad = base.add("FALSE" if form is Format.BYTES else f"({there} AND NOT is_valid_utf8(CAST({raw} AS STRING)))", 0)
            struct = f"CASE WHEN {there} AND NOT {bad} THEN named_struct('{schema.columns[0].name}', {text}{also}) END"
            return base.add(struct, 1), bad, ""
        ddl = f"{schema.sql()}, `{_CORRUPT}` STRING".replace("'", "\\'")
        options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
        read = base.add(f"CASE WHEN {there} THEN from_json(CAST({raw} AS STRING), '{ddl}', {options}) END", 0)
        beyond = _beyond(read, Type("struct", fields=tuple(c for c in schema if c.name != at)))
        if beyond and at:
            beyond = f"({beyond}) AND NOT {_beyond(f'{read}.{quote(at)}', schema[at])}"
        bad = base.add(f"({there} AND ({read} IS NULL OR {read}.{_CORRUPT} IS NOT NULL{f' OR ({beyond})' if beyond else ''}))", 1)
        parts = ", ".join(f"'{c.name}', {read}.{quote(c.name)}" for c in schema)
        whole = f"{read} IS NOT NULL AND {read}.{_CORRUPT} IS NULL{f' AND NOT ({beyond})' if beyond else ''}"
        why = f"CASE WHEN {read}.{_CORRUPT} IS NULL AND ({beyond}) THEN {literal(BEYOND)} END" if beyond else ""
        return base.add(f"CASE WHEN {whole} THEN named_struct({parts}{also}) END", 1), bad, why

    def flow(self, node: nodes.Stream) -> Flow:
        """Give the columns of a stream, laid out once however many operators read it."""
        if node not in self.flows:
            self.flows[node] = self._compile(node)
        return self.flows[node]

    def _compile(self, node: nodes.Stream) -> Flow:
        match node:
            case nodes.Source():
                return self.sources[node.topic.name]
            case nodes.Filter():
                return self._narrow(node.parent, node.condition, "filter", node.location)
            case nodes.Expect():
                return self._expect(node)
            case nodes.MapValues():
                flow = self._checked(self.flow(node.parent), [], "map_values", node.location, of_value=node.columns)
                return _with(flow, value=self._value(flow, node.columns))
            case nodes.Map():
                label = "map" if node.columns is not None else "select_key"
                keys = [e for _, e in node.key_columns]
                flow = self._checked(self.flow(node.parent), keys, label, node.location, of_value=node.columns or ())
                key = self._key(node.key_columns, flow, plan.key_of(node.parent))
                # without columns, a Change becomes a record of its new row
                made = _with(flow, key=key, value=_value_of(flow) if node.columns is None else self._value(flow, node.columns))
                if node.keyed is None:
                    return made
                there = render(node.keyed.safe_sql, flow.spaces)
                return _with(made, key=made.segment.add(f"CASE WHEN {there} THEN {key} END", made.level))
            case nodes.Peek():
                flow = self.flow(node.parent)
                flow.segment.peeks.setdefault(node.name, []).append(flow.present)
                return flow
            case nodes.Repartition():
                flow = self.flow(node.parent)
                null_key = _null_key(flow.spaces["key"], plan.key_of(node).names)
                flow.segment.count(flow.segment.add(f"{flow.present} AND {null_key}", flow.level), "repartition", "null_key")
                return _narrowed(flow, flow.segment.add(f"{flow.present} AND NOT {null_key}", flow.level))
            case nodes.MergeStreams():
                return self._merge(node)
            case nodes.FlatMapValues():
                flow = self._checked(self.flow(node.parent), [], "flat_map_values", node.location, of_value=node.columns)
                made_value = self._keep(flow, named_struct(node.columns, flow.spaces))
                size = f"COALESCE(size({made_value}.{quote(node.exploded)}), 0)"
                many = f"{flow.present} AND {_value_of(flow)} IS NOT NULL AND {size} > {FAN_OUT}"
                flow.segment.fail(many, flow.level + 1, "flat_map_values", node.location, TOO_MANY)
                self._need(flow, flow.present, *flow.spaces.values())
                segment = self._segment(node)
                self.inputs[segment.number] = (flow, made_value)
                return Flow(segment, 0, "present", {n: n for n in flow.spaces if n in ("key", "window")} | {"value": "value"})
            case nodes.StreamJoin():
                return self._look_up(node)
            case nodes.StreamStreamJoin():
                return self._pair(node)
            case nodes.Process():
                return self._process(node)
            case nodes.Forwarded():
                flow, number = self.flow(node.parent), [name for name, _ in node.parent.processor.children].index(node.child)
                return Flow(flow.segment, 1, flow.segment.add(f"output = {number}", 0), {"key": "key", "value": f"child_{number}"})
            case nodes.Written():
                processor, flow = node.parent.processor, self.flow(node.parent)
                number = [name for name, _ in processor.kept].index(node.store)
                present = flow.segment.add(f"output = {len(processor.children) + number}", 0)
                put = {part: flow.segment.add(f"put_{number}.{part}", 0) for part in ("key", "value")}
                return Flow(flow.segment, 1, present, put)
            case nodes.FinalRows():
                self._folds(plan.root_of(node.parent), "suppress")
                return Flow(self._segment(node), 0, "present", {"key": "key", "value": "value"})
            case nodes.ToStream():
                self._folds(plan.root_of(node.parent), node.table)
                windowed = {"window": "window"} if plan.windows_of(node) else {}
                return Flow(self._segment(node), 0, "present", {"key": "key", "old": "old", "new": "new"} | windowed)

    def _narrow(self, parent: nodes.Stream, condition: Expr, label: str, location: str) -> Flow:
        flow = self._checked(self.flow(parent), [condition], label, location)
        passes = f"{flow.present} AND COALESCE({render(condition.safe_sql, flow.spaces)}, FALSE)"
        return _narrowed(flow, flow.segment.add(passes, flow.level))

    def _expect(self, node: nodes.Expect) -> Flow:
        rule, label = node.rule, f"expect:{node.rule.name}"
        flow = self._checked(self.flow(node.parent), [rule.condition], label, node.location)
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

    def _checked(self, flow: Flow, expressions: Sequence[Expr], label: str, location: str, of_value: Named = ()) -> Flow:
        """Send records at which an expression fails to quarantine, and give the stream of the others.

        Those `of_value` make a new value; where there is none, they aren't evaluated, and can't fail.
        """
        checked = [e for e in expressions if e.fails_sql is not None], [e for _, e in of_value if e.fails_sql is not None]
        always, there = ([f"({render(e.fails_sql or '', flow.spaces)})" for e in part] for part in checked)
        fails = [*always, *(f"({_value_of(flow)} IS NOT NULL AND {failing})" for failing in there)]
        if not fails:
            return flow
        reason = _why_fails(flow.segment, flow.level, [e for part in checked for e in part], flow.spaces)
        flag = flow.segment.fail_for(f"{flow.present} AND ({' OR '.join(fails)})", flow.level, label, location, reason)
        return _narrowed(flow, flow.segment.add(f"{flow.present} AND NOT {flag}", flow.level + 1), by=2)

    def _key(self, columns: Named, flow: Flow, before: Schema) -> str:
        """Make a key; where it is what it was `before`, it stays the column that Spark knows the rows to be divided by."""
        if [(name, expr.safe_sql) for name, expr in columns] == [(name, f"key.{quote(name)}") for name in before.names]:
            return flow.spaces["key"]
        return flow.segment.add(named_struct(columns, flow.spaces), flow.level)

    def _renamed(self, flow: Flow, own: Sequence[str], names: Sequence[str]) -> str:
        """Give the key its columns' names of a table or another stream; where they are its own, it stays the column it is."""
        key = flow.spaces["key"]
        if own == names:
            return key
        parts = ", ".join(f"'{name}', {key}.{quote(mine)}" for mine, name in zip(own, names, strict=True))
        return flow.segment.add(f"CASE WHEN {key} IS NOT NULL THEN named_struct({parts}) END", flow.level)

    def _value(self, flow: Flow, columns: Named) -> str:
        there = _value_of(flow)
        return flow.segment.add(f"CASE WHEN {there} IS NOT NULL THEN {named_struct(columns, flow.spaces)} END", flow.level)

    def _merge(self, node: nodes.MergeStreams) -> Flow:
        flows = [self.flow(parent) for parent in node.parents]
        names = [name for name in flows[0].spaces if name != "window" or plan.windows_of(node)]
        topics = [{n.topic.name for n in plan.walk(p) if isinstance(n, nodes.Source)} for p in node.parents]
        apart = sum(map(len, topics)) == len(set().union(*topics))
        segment, level = flows[0].segment, max(f.level for f in flows)
        if apart and all(f.segment is segment for f in flows):  # no record is in two of them, so they fit in one set of columns
            present = segment.add(" OR ".join(f"COALESCE({f.present}, FALSE)" for f in flows), level)
            spaces = {
                name: segment.add("CASE " + " ".join(f"WHEN {f.present} THEN {f.spaces[name]}" for f in flows) + " END", level)
                for name in names
            }
            return Flow(segment, level + 1, present, spaces)
        for flow in flows:
            self._need(flow, flow.present, *(column for name, column in flow.spaces.items() if name in names))
        return Flow(self._segment(node), 0, "present", {name: name for name in names if name != "ts"})

    def _process(self, node: nodes.Process) -> Flow:
        """Drop what has no key, and go on in a segment that has a row for each that is forwarded or put, and for each refused record."""
        flow = self.flow(node.parent)
        segment, null_key = flow.segment, _null_key(flow.spaces["key"], plan.key_of(node).names)
        segment.count(segment.add(f"{flow.present} AND {null_key}", flow.level), node.operator, "null_key")
        present = segment.add(f"{flow.present} AND NOT {null_key}", flow.level)
        self._need(flow, present, flow.spaces["key"], _value_of(flow))
        after = self._segment(node)
        self.inputs[after.number] = (Flow(segment, flow.level + 1, present, flow.spaces), _value_of(flow))
        after.fail_for("output = -1", 0, node.operator, node.location, "reason")
        return Flow(after, 0, "present", {"key": "key"})

    def _look_up(self, node: nodes.StreamJoin) -> Flow:
        """Find each record's key in the table, drop what has none, and go on in a segment that has the table's rows beside the records."""
        self._folds(plan.root_of(node.right), node.table)
        label, on = node.how.operator, node.on or ()
        flow = self._checked(self.flow(node.parent), [], label, node.location, of_value=on)
        segment, there, key = flow.segment, _value_of(flow), flow.spaces["key"]
        segment.count(segment.add(f"{flow.present} AND {there} IS NULL", flow.level), label, "null_value")
        own, theirs = plan.key_of(node.parent).names, plan.key_of(node.right).names
        wanted = self._key(on, flow, plan.key_of(node.parent)) if on else self._renamed(flow, own, theirs)
        keyless = _null_key(wanted, theirs)
        if node.how is How.LEFT:
            keyless = f"({keyless} AND NOT {_null_key(key, own)})" if on else "FALSE"
        dropped = segment.add(f"{flow.present} AND {there} IS NOT NULL AND {keyless}", flow.level + 1)
        segment.count(dropped, label, "null_key")
        present = segment.add(f"{flow.present} AND {there} IS NOT NULL AND NOT {keyless}", flow.level + 1)
        self._need(flow, present, wanted, *flow.spaces.values())
        after = self._segment(node)
        self.inputs[after.number] = (Flow(segment, flow.level + 2, present, flow.spaces), wanted)
        found = Flow(after, 0, "present", {name: name for name in flow.spaces if name != "ts"} | {"right": "right"})
        if node.how is How.INNER:
            found = _narrowed(found, after.add("present AND right IS NOT NULL", 0))
        found = self._checked(found, [], label, node.location, of_value=node.columns)
        return _with(found, value=self._value(found, node.columns))

    def _pair(self, node: nodes.StreamStreamJoin) -> Flow:
        """Drop what has no key or value, keep the rest in the join's buffer, and go on in a segment that has a record for each pair."""
        how, names = plan.how_of(node), plan.key_of(node).names
        label = how.operator
        sides: list[Half] = []
        buffer = plan.buffer_of(node)
        for side, (parent, part) in enumerate(zip((node.left, node.right), buffer.parts, strict=True)):
            flow, own = self.flow(parent), plan.key_of(parent).names
            segment, there, key = flow.segment, _value_of(flow), flow.spaces["key"]
            keyless = _null_key(key, own)
            segment.count(segment.add(f"{flow.present} AND {there} IS NULL", flow.level), label, "null_value")
            without = segment.add(f"{flow.present} AND {there} IS NOT NULL AND {keyless}", flow.level)
            if side in how.alone:
                self._need(flow, without)
            else:
                segment.count(without, label, "null_key")
            present = segment.add(f"{flow.present} AND {there} IS NOT NULL AND NOT {keyless}", flow.level)
            wanted = self._renamed(flow, own, names)
            value = taken(there, plan.value_of(part.leaf).names, plan.value_of(parent))
            entry = segment.add(f"named_struct('ts', {flow.spaces.get('ts', 'ts')}, 'value', {value})", flow.level)
            self._need(flow, present, wanted, entry)
            fold = Fold(part.leaf, buffer.name, present, wanted, entry)
            if part.leaf not in self.folds:
                segment.folds.append(fold)
                self.folds[part.leaf] = (segment, fold)
            sides.append(Half(flow, fold, without if side in how.alone else None))
        after = self._segment(node)
        self.pairs[after.number] = (sides[0], sides[1])
        paired = Flow(after, 0, "present", {name: name for name in ("key", "left", "right")})
        paired = self._checked(paired, [e for _, e in node.columns], label, node.location)
        made = after.add(named_struct(node.columns, paired.spaces), paired.level)
        return Flow(after, paired.level + 1, paired.present, {"key": "key", "value": made})

    def _folds(self, root: nodes.Root, label: str) -> None:
        """Prepare what the leaves of a table node fold; tables that share a leaf share its fold."""
        for leaf in plan.leaves_of(root):
            if leaf not in self.folds:
                self._fold(leaf, label)

    def _fold(self, root: nodes.Leaf, label: str) -> None:
        if isinstance(root, History):
            self._history(root, label)
            return
        flow = self.flow(root.parent)
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
            if isinstance(root, Versioned) and flow.segment.number:  # in the first segment no stream time is known yet
                expired = flow.segment.add(f"{present} AND {expires(root)}", flow.level + 2)
                flow.segment.count(expired, label, "expired")
            fold = Fold(root, label, present, flow.spaces["key"], flow.spaces["value"])
        elif isinstance(root, TableAggregate):
            fold = self._table_aggregate(root, label, flow)
        else:
            assert isinstance(root, Aggregate)  # the sides of joins are folded where the join is laid out
            fold, flow = self._aggregate(root, label, flow)
        self._need(flow, fold.present, fold.key, fold.lifts)
        flow.segment.folds.append(fold)
        self.folds[root] = (flow.segment, fold)

    def _history(self, root: History, label: str) -> None:
        """Keep what the versioned table folds, deletions too, as versions."""
        self._folds(root.parent, label)
        segment, kept = self.folds[root.parent]
        version = segment.add(f"named_struct('row', {kept.lifts})", len(segment.levels))
        segment.kept[version] = None
        fold = Fold(root, kept.label, kept.present, kept.key, version)
        segment.folds.append(fold)
        self.folds[root] = (segment, fold)

    def _aggregate(self, root: Aggregate, label: str, flow: Flow) -> tuple[Fold, Flow]:
        segment = flow.segment
        if not root.sees_nulls:
            there = _value_of(flow)
            segment.count(segment.add(f"{flow.present} AND {there} IS NULL", flow.level), label, "null_value")
            flow = _narrowed(flow, segment.add(f"{flow.present} AND {there} IS NOT NULL", flow.level))
        fields = plan.state_of(root)
        lifts = [f.lift for f in fields if f.lift is not None]
        flow = self._checked(flow, [*(e for _, e in root.group), *lifts], label, root.location)
        key = self._key(root.group, flow, plan.key_of(root.parent))
        null_key = _null_key(key, tuple(name for name, _ in root.group))
        segment.count(segment.add(f"{flow.present} AND {null_key}", flow.level + 1), label, "null_key")
        present = segment.add(f"{flow.present} AND NOT {null_key}", flow.level + 1)
        made = segment.add(named_struct(tuple((f.name, f.lift) for f in fields if f.lift), flow.spaces), flow.level)
        return Fold(root, label, present, key, made, f"w{segment.number}_{len(segment.folds)}"), flow

    def _table_aggregate(self, root: TableAggregate, label: str, flow: Flow) -> Fold:
        """Take a Change's old row out of its group and put its new one into its own.

        A row that couldn't be put into a group, for what fails on it or is null, isn't taken out again either.
        """
        segment, names = flow.segment, root.wanted
        fields = [f for f in plan.state_of(root) if isinstance(f, SignedField)]
        lifts = {"old": tuple((f.name, f.retract) for f in fields), "new": tuple((f.name, f.lift) for f in fields if f.lift)}
        checked = [e for _, e in (*root.group, *lifts["new"], *lifts["old"]) if e.fails_sql is not None]
        moves: list[tuple[str, str, str]] = []
        for side, contributions in lifts.items():
            spaces = {name: column for name, column in flow.spaces.items() if name in ("key", "window")} | {"value": flow.spaces[side]}
            there = f"{flow.present} AND {flow.spaces[side]} IS NOT NULL"
            fails = " OR ".join(f"({render(e.fails_sql or '', spaces)})" for e in checked) or "FALSE"
            if side == "new" and checked:
                reason = _why_fails(segment, flow.level, checked, spaces)
                segment.fail_for(f"{there} AND ({fails})", flow.level, label, root.location, reason)
            group = segment.add(named_struct(root.group, spaces), flow.level)
            made = segment.add(named_struct(contributions, spaces), flow.level)
            counts = f"{there} AND NOT ({fails})"
            if side == "new":
                segment.count(segment.add(f"{counts} AND {_null_key(group, names)}", flow.level + 1), label, "null_key")
            moves.append((segment.add(f"{counts} AND NOT {_null_key(group, names)}", flow.level + 1), group, made))
        (leaves, left, _), (enters, entered, _) = moves
        paired = segment.add(f"{leaves} AND {enters} AND {left} <=> {entered}", flow.level + 2)
        steps = (f"if({paired}, 1L, 0L)", f"if({paired}, 0, 1)"), ("1L", "1")  # within a group both are at the place of the new row
        parts = [
            f"named_struct('key', {group}, 'l', {made}, 'n', {n}, 'step', {step}, 'paired', {paired})"
            for (_, group, made), (n, step) in zip(moves, steps, strict=True)
        ]
        one = f"WHEN {leaves} THEN array({parts[0]}) WHEN {enters} THEN array({parts[1]})"  # a filter of both would not be compiled
        column = segment.add(f"CASE WHEN {leaves} AND {enters} THEN array({', '.join(parts)}) {one} END", flow.level + 3)
        return Fold(root, label, segment.add(f"{leaves} OR {enters}", flow.level + 2), column, column)

    def _keep(self, flow: Flow, sql: str) -> str:
        name = flow.segment.add(sql, flow.level)
        self._need(flow, name)
        return name

    def _need(self, flow: Flow, *columns: str) -> None:
        flow.segment.kept.update(dict.fromkeys(columns))


def _why_fails(segment: Segment, level: int, expressions: Sequence[Expr], spaces: Mapping[str, str]) -> str:
    """Write, as SQL, why a record is refused on which one of some expressions fails: with what the user's functions raised on it."""
    reason = literal("an expression fails: " + "; ".join(dict.fromkeys(e.sql.replace("`", "") for e in expressions)))
    raised = dict.fromkeys(render(sql, spaces) for e in expressions for sql in e.raised_sql)
    if not raised:
        return reason
    words = segment.add(f"nullif(concat_ws('; ', {', '.join(raised)}), '')", level)
    return f"concat_ws(': ', {reason}, {words})"


def encoded(column: str, form: Format, schema: Schema) -> str:
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


def _written(sink: Sink, flow: Flow) -> str:
    """Write the headers of what is published, without those that are null."""
    each = (f"named_struct('key', {literal(name)}, 'value', CAST({render(e.safe_sql, flow.spaces)} AS BINARY))" for name, e in sink.headers)
    return f"filter(array({', '.join(each)}), h -> h.value IS NOT NULL)"


def _last(header: Header) -> str:
    """Find the last header of a name, as a text or as bytes."""
    found = f"try_element_at(filter(raw_headers, h -> h.key = {literal(header.name)}), -1).value"
    return f"CAST({found} AS STRING)" if header.column.type.kind == "string" else found


def _beyond(text: str, kind: Type, depth: int = 0) -> str:
    """Write whether a value holds a date or time outside the years 1 to 9999; nothing for a type that holds none."""
    match kind:
        case Type(kind="timestamp"):
            return f"COALESCE({text} < TIMESTAMP '0001-01-01 00:00:00Z' OR {text} > TIMESTAMP '9999-12-31 23:59:59.999999Z', FALSE)"
        case Type(kind="date"):
            return f"COALESCE({text} < DATE '0001-01-01' OR {text} > DATE '9999-12-31', FALSE)"
        case Type(kind="array" | "map", element=Type() as element):
            each = _beyond(f"e{depth}", element, depth + 1)
            values = text if kind.kind == "array" else f"map_values({text})"
            return f"COALESCE(exists({values}, e{depth} -> {each}), FALSE)" if each else ""
    return " OR ".join(found for part in kind.fields if (found := _beyond(f"{text}.{quote(part.name)}", part.type, depth)))


def literal(text: str) -> str:
    """Write a string as Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def expires(table: Versioned) -> str:
    """Write the condition under which a record is older than the history of a versioned table."""
    return f"unix_micros(ts) + {microseconds(table.history)}L < unix_micros(st)"


def moment(when: datetime) -> str:
    """Write a time as Spark SQL."""
    return f"timestamp_micros({(when - EPOCH) // timedelta(microseconds=1)}L)"


def _with(flow: Flow, **spaces: str) -> Flow:
    """Replace the record of a stream; a new value ends a Change, and the row of a table beside it."""
    kept = {n: c for n, c in flow.spaces.items() if not ("value" in spaces and n in ("old", "new", "right"))}
    if "key" in spaces:
        kept.pop("window", None)
    return Flow(flow.segment, flow.level + 1, flow.present, kept | spaces)


def _value_of(flow: Flow) -> str:
    """Name the column of a record's value; that of a Change is its new row."""
    return flow.spaces.get("value") or flow.spaces["new"]


def _narrowed(flow: Flow, present: str, *, by: int = 1) -> Flow:
    return Flow(flow.segment, flow.level + by, present, flow.spaces)


def _null_key(key: str, names: Sequence[str]) -> str:
    return "(" + " OR ".join(f"{key}.{quote(name)} IS NULL" for name in names) + ")"
