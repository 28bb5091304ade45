"""Hold a topology as frozen data: what the user asked for, and nothing about how it runs.

A plan is a graph of nodes (`nodes.py`); here is what follows from it: keys, values, windows, states, and how a state becomes a row.
Both engines read plans from here, and share nothing else. No Spark, no I/O.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from watertable.plan.aggregates import (
    ARRIVED_PLACE,
    BIGINT,
    NUMBER,
    PLACE,
    TIMED_PLACE,
    ArrivedField,
    BoundAggregate,
    Merge,
    NumberedField,
    StateField,
    TimedField,
    placed,
    read_of,
    state_schema,
)
from watertable.plan.fingerprints import LATER, canonical, digest
from watertable.plan.forms import bare, of_records
from watertable.plan.nodes import (
    Aggregate,
    Cogroup,
    FinalRows,
    FlatMapValues,
    ForeignJoin,
    Format,
    Forwarded,
    History,
    JoinBuffer,
    JoinSide,
    Latest,
    Leaf,
    Map,
    MapValues,
    MergeStreams,
    Newest,
    OuterBuffer,
    OuterStreamJoin,
    Process,
    Root,
    Source,
    Stored,
    Stream,
    StreamJoin,
    StreamStreamJoin,
    Table,
    TableAggregate,
    TableFilter,
    TableJoin,
    TableMapValues,
    Topic,
    ToStream,
    Versioned,
    Waiting,
    WaitingJoin,
    Written,
)  # fmt: skip
from watertable.plan.processors import TIMERS
from watertable.plan.stages import Beside, How, Match, Named, Project, Side, Stage, Where
from watertable.plan.windows import Closing, SessionWindows, SlidingWindows, UnlimitedWindows, Windows, shape_of
from watertable.schema import Column, Schema, Type
from watertable.sql.expressions import Expr, Scope, parse

CHANGELOG: Final = "changelog"
"""What an app's changelog is called beside its tables."""
WINDOW: Final = Schema.parse("start TIMESTAMP, end TIMESTAMP")
WINDOW_KEY: Final = Schema.parse("window_start TIMESTAMP, window_end TIMESTAMP")
VERSIONS: Final = "__versions"
WAITING: Final = "__waiting"
SLIDING_KEY: Final = Schema.parse("__at TIMESTAMP, __from TIMESTAMP")
DONE: Final = "__done"
"""In what an outer join of streams keeps: the places of those that have been paired or given, each with the number `ord * 2 + side`."""


@dataclass(frozen=True, slots=True)
class Part:
    """Say which part of a table's state one of its leaves folds.

    `fields` holds pairs of the leaf's own name of a state field and the table's; `there`, if any, is the field that is true from the
    leaf's first record on.
    """

    leaf: Leaf
    fields: tuple[tuple[str, str], ...]
    there: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDef:
    """Name a table that is kept: its key, its state, and how the state becomes the columns that readers see.

    Derived tables (`filter`, `map_values`) keep the state of the table they come from and differ only in their stages; a join keeps
    the states of both sides, and joins them when they are read. So all deltas merge as blindly as those of their sources, and need
    no look at old rows.
    """

    name: str
    node: Table
    description: str = field(default="", compare=False)
    location: str = field(default="", compare=False)

    @property
    def root(self) -> Root:
        """Give the node that keeps the state."""
        return root_of(self.node)

    @property
    def key(self) -> Schema:
        """Give the key columns; those of a windowed table end with window_start and window_end."""
        return key_of(self.node)

    @property
    def state_key(self) -> Schema:
        """Give the columns by which states are kept."""
        return kept_by(self.root)

    @property
    def value(self) -> Schema:
        """Give the value columns, as readers see them."""
        return value_of(self.node)

    @property
    def columns(self) -> Schema:
        """Give all columns in their declared order: the key's, then the value's."""
        return self.key + self.value

    @property
    def windows(self) -> Windows | None:
        """Give the windows of a windowed table."""
        return windows_of(self.node)

    @property
    def sessions(self) -> SessionWindows | None:
        """Give the windows of a table of sessions: its states meet by group and nearness, and their keys' bounds move as they do."""
        windows = folded_into(self.root)
        return windows if isinstance(windows, SessionWindows) else None

    @property
    def sliding(self) -> SlidingWindows | None:
        """Give the windows of a table of sliding ones: its states are of moments, and each is in every window that holds its moment."""
        windows = folded_into(self.root)
        return windows if isinstance(windows, SlidingWindows) else None

    @property
    def parts(self) -> tuple[Part, ...]:
        """Give the parts of the state, one for each node that folds records into it."""
        return parts_of(self.root)

    @property
    def state(self) -> tuple[StateField, ...]:
        """Give the fields that the table keeps for each key."""
        return state_of(self.root)

    @property
    def alive(self) -> Expr | None:
        """Give the condition over `state` under which the key has a row before any stage; None means always."""
        return _alive(self.root)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Give the steps from the state to the row: the first over `state`, the others over `value`, `key` and `window`."""
        return stages_of(self.node)

    @property
    def state_version(self) -> str:
        """Identify the layout of key and state: eight hex digits, the same for the same layout in any process."""
        layout = self.state_key.sql() + "|" + ", ".join(f.layout for f in self.state) + ("|sessions" if self.sessions else "")
        return hashlib.sha256(layout.encode()).hexdigest()[:8]

    @property
    def state_column(self) -> str:
        """Name the changelog's column for this table's state; another layout gets another column."""
        return f"{self.name}_{self.state_version}"

    @property
    def behind(self) -> timedelta:
        """Give how far a record may be behind the stream time that all partitions have reached, and still change the state.

        So far as it has waited for joins on the way; in a versioned table, where event time decides, as long as the history is, too.
        """
        history = max((leaf.history for leaf in leaves_of(self.root) if isinstance(leaf, Versioned)), default=timedelta(0))
        return history + delay_of(self.node)

    @property
    def fingerprint(self) -> str:
        """Identify what the table computes, whatever the file, the line or the process."""
        return digest(canonical(self.node))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Publish a stream to a topic: of records their value, of Changes the new row, or a tombstone where it is gone.

    A record has a header for each of `headers` that isn't null for it.
    """

    topic: str
    node: Stream
    key_format: Format
    value_format: Format
    headers: Named = field(default=(), metadata=LATER)
    location: str = field(default="", compare=False)

    @property
    def is_of_pairs(self) -> bool:
        """Tell whether what is published comes of several records, or has waited: then no one record's place tells if it was published."""
        return any(
            isinstance(node, StreamStreamJoin | WaitingJoin | FinalRows) or (isinstance(node, Process) and bool(node.processor.punctuators))
            for node in walk(self.node)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hold one app: everything that is deployed, committed and rewound as one unit."""

    app: str
    tables: tuple[TableDef, ...]
    sinks: tuple[Sink, ...]
    owner: str | None = field(default=None, compare=False)
    description: str = field(default="", compare=False)
    location: str = field(default="", compare=False)

    @property
    def topics(self) -> tuple[Topic, ...]:
        """List the topics that the app reads, by name."""
        found = {n.topic.name: n.topic for root in self.roots for n in walk(root) if isinstance(n, Source)}
        return tuple(found[name] for name in sorted(found))

    @property
    def streamed(self) -> frozenset[str]:
        """Name the tables whose old rows somebody needs: because their changes are streamed, or streams look them up."""
        return frozenset(n.table for root in self.roots for n in walk(root) if isinstance(n, ToStream | StreamJoin))

    @property
    def buffers(self) -> tuple[TableDef, ...]:
        """List what joins, versioned and suppressed tables keep: tables that no reader sees, named by what decides their states."""
        return buffers_above(*self.roots)

    @property
    def buffers_of_sinks(self) -> Mapping[str, Sequence[str]]:
        """Name the buffers that feed each output topic, of those that any do."""
        found = {sink.topic: [buffer.name for buffer in buffers_above(sink.node)] for sink in self.sinks}
        return {topic: names for topic, names in found.items() if names}

    @property
    def kept(self) -> tuple[TableDef, ...]:
        """List all that the app keeps: its tables, and the buffers of its joins."""
        return self.tables + self.buffers

    @property
    def archived(self) -> tuple[str, ...]:
        """List the topics that are read through an archive."""
        return tuple(topic.name for topic in self.topics if topic.archive)

    @property
    def fingerprint(self) -> str:
        """Identify what the app computes: `wt<version>:<16 hex digits>`, moved by no comment, line number or process."""
        return digest(["app", self.app, [[t.name, canonical(t.node)] for t in self.tables], [canonical(s) for s in self.sinks]])

    def table(self, name: str) -> TableDef:
        """Give the table of that name; raise `KeyError` when there is none."""
        return {table.name: table for table in self.tables}[name]

    def above(self, names: Collection[str]) -> Topology:
        """Cut the app down to tables and what makes them of records: those whose changes or rows they are computed from; no outputs."""
        needed = set(names)
        while True:
            found = dataclasses.replace(self, tables=tuple(t for t in self.tables if t.name in needed), sinks=())
            called = [n for root in found.roots for n in walk(root) if isinstance(n, Process)]
            stores = (t.name for t in self.tables if isinstance(t.root, Stored) and t.root.parent.parent in called)
            more = found.streamed.union(stores) - needed
            if not more:
                return found
            needed |= more

    def below(self, names: Collection[str]) -> tuple[str, ...]:
        """Name tables and all that are computed from them; with a processor's store, all that the processor makes."""
        chosen: list[Stream | Table] = [self.table(name).node for name in names]
        chosen += [root.parent.parent for name in names if isinstance(root := self.table(name).root, Stored)]
        return tuple(t.name for t in self.tables if t.name in names or any(node in chosen for node in walk(t.node)))

    @property
    def roots(self) -> tuple[Stream | Table, ...]:
        """List the nodes at which it ends: those of its tables, then those of its outputs."""
        return (*(t.node for t in self.tables), *(s.node for s in self.sinks))


def parents_of(node: Stream | Table) -> tuple[Stream | Table, ...]:
    """List the nodes that feed this one."""
    match node:
        case Source():
            return ()
        case MergeStreams():
            return node.parents
        case Cogroup():
            return node.inputs
        case TableJoin() | ForeignJoin() | StreamStreamJoin() | JoinBuffer():
            return (node.left, node.right)
        case StreamJoin():
            return (node.parent, node.right)
        case _:
            return (node.parent,)


def walk(node: Stream | Table, _seen: set[int] | None = None) -> Iterator[Stream | Table]:
    """Go through a node and everything above it, parents first; a shared node comes once, however many ways lead to it."""
    seen = set[int]() if _seen is None else _seen
    if id(node) not in seen:
        seen.add(id(node))
        for parent in parents_of(node):
            yield from walk(parent, seen)
        yield node


def key_of(node: Stream | Table) -> Schema:
    """Give the key columns of a node's records or rows."""
    match node:
        case Source():
            return node.topic.key
        case Map():
            return _schema(node.key_columns)
        case MergeStreams():
            return key_of(node.parents[0])
        case Aggregate():
            return _schema(node.group) + (WINDOW_KEY if node.windows else Schema())
        case TableAggregate():
            return _schema(node.group)
        case Cogroup():
            return key_of(node.inputs[0])
        case TableJoin() | StreamStreamJoin() | JoinBuffer():
            return key_of(node.left)
        case JoinSide():
            return node.key
        case ForeignJoin():
            return key_of(node.left.parent)
        case Waiting():
            return key_of(node.parent.right)
        case Written():
            return key_of(node.parent) + dict(node.parent.processor.kept)[node.store].key
        case _:
            return key_of(node.parent)


def kept_by(root: Root) -> Schema:
    """Give the columns by which a table node's states are kept: its key's, but of a foreign-key join the foreign key's and the left one's.

    Of sliding windows they are the group's, the millisecond, and the end of the first window that isn't closed to what is kept there.
    """
    leaf = leaves_of(root)[0]
    if isinstance(leaf, Aggregate) and isinstance(leaf.windows, SlidingWindows):
        return _schema(leaf.group) + SLIDING_KEY
    return key_of(root.left if isinstance(root, ForeignJoin) else root)


def value_of(node: Stream | Table) -> Schema:
    """Give the value columns of a node's records or rows; of a Change, those of `old` and `new`."""
    match node:
        case Source():
            return node.topic.columns
        case MapValues() | TableMapValues() | TableJoin() | ForeignJoin() | StreamJoin() | StreamStreamJoin():
            return _schema(node.columns)
        case Map():
            return value_of(node.parent) if node.columns is None else _schema(node.columns)
        case FlatMapValues():
            return Schema(tuple(Column(n, _element(e) if n == node.exploded else e.type) for n, e in node.columns))
        case MergeStreams():
            return value_of(node.parents[0])
        case Aggregate() | TableAggregate():
            return Schema.of((a.name, a.value.type) for a in node.aggregates)
        case Cogroup():
            return Schema(tuple(column for aggregate in node.inputs for column in value_of(aggregate)))
        case JoinSide():
            return value_of(node.parent).take(node.columns)
        case JoinBuffer():
            return Schema.of((side.name, BIGINT) for side in (node.left, node.right))
        case History() | Waiting():
            return Schema.of((f.name, BIGINT) for f in state_of(node))
        case Forwarded():
            return dict(node.parent.processor.children)[node.child]
        case Written():
            return dict(node.parent.processor.kept)[node.store].value
        case _:
            return value_of(node.parent)


def windows_of(node: Stream | Table, _known: dict[int, Windows | None] | None = None) -> Windows | None:
    """Give the windows by which a node's keys are windowed, as long as nothing made a new key; none where those that meet differ."""
    match node:
        case Source() | Map() | TableAggregate() | ForeignJoin() | StreamStreamJoin() | JoinSide() | JoinBuffer() | FinalRows() | Process():
            return None
        case Aggregate():
            return node.windows
        case Cogroup():
            return node.inputs[0].windows
        case TableJoin() | MergeStreams():  # of one shape, or of none; those that are open longest say when a row is final
            known = {} if _known is None else _known
            if id(node) not in known:
                found = {windows_of(parent, known) for parent in parents_of(node)}
                alike = len({windows and shape_of(windows) for windows in found}) == 1
                longest = max((windows for windows in found if windows), key=lambda windows: windows.grace, default=None)
                known[id(node)] = longest if alike else None
            return known[id(node)]
        case _:
            return windows_of(node.parent, _known)


def folded_into(root: Root) -> Windows | None:
    """Give the windows into which a table node folds records; None where its keys are windows from above, if they are windows at all."""
    return next((leaf.windows for leaf in leaves_of(root) if isinstance(leaf, Aggregate) and leaf.windows), None)


def buffers_above(*roots: Stream | Table) -> tuple[TableDef, ...]:
    """List what is kept on the way to these nodes: by joins, versioned and suppressed tables, and for punctuators."""
    above = [n for root in roots for n in walk(root)]
    pairs = dict.fromkeys(buffer_of(join) for join in above if isinstance(join, StreamStreamJoin))
    opens = dict.fromkeys(open_of(node) for node in above if isinstance(node, FinalRows))
    waits = dict.fromkeys(wait_of(join) for join in above if isinstance(join, WaitingJoin))
    asking = [(root_of(n.right), n.parent) for n in above if isinstance(n, StreamJoin)]
    histories = [
        history_of(kept, *(parent for root, parent in asking if root == kept))
        for kept in dict.fromkeys(n for n in above if isinstance(n, Versioned))
    ]
    timers = dict.fromkeys(timers_of(node) for node in above if isinstance(node, Process) and node.processor.punctuators)
    return (*pairs, *opens, *waits, *histories, *timers)


def buffer_of(join: StreamStreamJoin) -> TableDef:
    """Give the table in which a join of streams keeps the records that may still find a partner; joins of one kind share it."""
    key = key_of(join.left)
    left, right = (
        JoinSide(parent=parent, name=f"__{side}s", key=key, columns=_read(side, value_of(parent), join.columns), location=join.location)
        for parent, side in ((join.left, "left"), (join.right, "right"))
    )
    if isinstance(join, OuterStreamJoin):
        node: JoinBuffer = OuterBuffer(left=left, right=right, within=join.within, how=join.how, location=join.location)
    else:
        node = JoinBuffer(left=left, right=right, within=join.within, location=join.location)
    return _buffer("join", node)


def history_of(table: Versioned, *asking: Stream) -> TableDef:
    """Give the table in which a versioned table's history is kept, for these streams to look into; tables of one kind share it."""
    topics = {n.topic.name for stream in asking for n in walk(stream) if isinstance(n, Source)}
    delay = max(map(delay_of, asking), default=timedelta(0))
    return _buffer("history", History(parent=table, topics=tuple(sorted(topics)), delay=delay, location=table.location))


def wait_of(join: WaitingJoin) -> TableDef:
    """Give the table in which a join with a versioned table keeps the records that wait."""
    columns = _read("value", value_of(join.parent), join.columns)
    return _buffer("wait", Waiting(parent=join, columns=columns, location=join.location))


def timers_of(process: Process) -> TableDef:
    """Give the table that says when the punctuators of a processor are due."""
    written = Written(parent=process, store=TIMERS, location=process.location)
    return _buffer("timers", Stored(parent=written, location=process.location))


def open_of(node: FinalRows) -> TableDef:
    """Give the table in which the rows of a suppressed table are made, and kept until their windows have closed."""
    return _buffer("open", node.parent, node)


def _buffer(kind: str, node: Table, fed: Stream | None = None) -> TableDef:
    """Name a buffer by what decides its state, and by how that is laid out.

    So it goes on under other code that keeps the same: of a name that is known, all is there that is to wait; of a new one, nothing.
    """
    form, layout = of_records(bare(canonical(fed or node))), TableDef(name="", node=node).state_version
    return TableDef(name=f"__{kind}_{digest([form, layout]).partition(':')[2]}", node=node, location=(fed or node).location)


def _read(side: str, value: Schema, made: Named) -> tuple[str, ...]:
    return read_of(side, value, [expr for _, expr in made]).names


def delay_of(node: Stream | Table, _known: dict[int, timedelta] | None = None) -> timedelta:
    """Give how far what still comes to a node may lie behind the stream time that all the partitions above have reached.

    A record may have waited for a join on its way. One that pairs with nothing keeps its place until its window has closed, so it comes
    late by as much as that is open; so does the final row of a window.
    """
    known = {} if _known is None else _known
    if id(node) not in known:
        own = timedelta(0)
        if isinstance(node, WaitingJoin):
            own = node.grace
        elif isinstance(node, FinalRows):
            closing = closing_of(node.parent)
            own = closing.after + closing.before
        elif isinstance(node, OuterStreamJoin):
            own = max(own, *(node.within.open_for[side] for side in node.how.alone))
        known[id(node)] = own + max((delay_of(parent, known) for parent in parents_of(node)), default=timedelta(0))
    return known[id(node)]


def is_open(table: TableDef) -> bool:
    """Tell whether a table only keeps rows until their windows have closed."""
    return table.name.startswith("__open_")


def closing_of(node: Table) -> Closing:
    """Say when the windows of a table are closed; raise `ValueError` for a table without windows that ever are."""
    windows = windows_of(node)
    if windows is None or isinstance(windows, UnlimitedWindows):
        raise ValueError("no window of this table ever closes")
    return windows.closing


def how_of(join: StreamStreamJoin | JoinBuffer) -> How:
    """Say which records a join of streams gives: pairs, or also those of the left side, or of either, that pair with nothing."""
    return join.how if isinstance(join, OuterStreamJoin | OuterBuffer) else How.INNER


def topics_above(node: Stream | Table) -> frozenset[str]:
    """Name the topics that feed a node."""
    return frozenset(n.topic.name for n in walk(node) if isinstance(n, Source))


def reached(times: Mapping[tuple[str, int], datetime | None], *above: Stream | Table) -> datetime | None:
    """Give the stream time that all which still comes through these nodes has at least; None while a partition has none."""
    topics = frozenset[str]().union(*map(topics_above, above))
    found = {p: time for p, time in times.items() if p[0] in topics}
    if {topic for topic, _ in found} != topics or None in found.values():
        return None
    return min(time for time in found.values() if time is not None) - max(map(delay_of, above))


def root_of(node: Table) -> Root:
    """Give the table node that keeps the state."""
    while isinstance(node, TableFilter | TableMapValues):
        node = node.parent
    return node


def leaves_of(root: Root) -> tuple[Leaf, ...]:
    """List the different nodes that fold records into the state of a table node."""
    match root:
        case Cogroup():
            return root.inputs
        case ForeignJoin() | JoinBuffer():
            return (root.left, root.right)
        case TableJoin():
            return tuple(dict.fromkeys(leaf for side in (root.left, root.right) for leaf in leaves_of(root_of(side))))
        case _:
            return (root,)


def parts_of(root: Root) -> tuple[Part, ...]:
    """Say which part of a table node's state each of its leaves folds; a leaf that a join meets twice is kept once.

    In a join, an aggregate is marked as there by its first record, since a state of nulls could be that of records, too.
    """
    if not isinstance(root, TableJoin):
        return tuple(Part(leaf, tuple((f.name, f.name) for f in state_of(leaf)), None) for leaf in leaves_of(root))
    return tuple(
        Part(leaf, tuple((f.name, f"i{n}_{f.name}") for f in state_of(leaf)), f"i{n}" if _alive(leaf) is None else None)
        for n, leaf in enumerate(leaves_of(root))
    )


def state_of(root: Root) -> tuple[StateField, ...]:
    """Give the state fields of a table node."""
    match root:
        case Versioned():
            return (TimedField("row", placed(value_of(root).struct(), TIMED_PLACE), Merge.LAST, None),)
        case History():  # a deletion is a version, too: there the value is null
            version = Type("struct", fields=(Column("row", value_of(root.parent).struct()),))
            return (TimedField(VERSIONS, Type("array", element=placed(version, TIMED_PLACE)), Merge.LIST, None),)
        case Waiting():  # each with 1, and with -1 once it goes on, so that it is gone
            parent, place = root.parent.parent, Column("order", PLACE.struct())
            value = value_of(parent).take(root.columns)
            record = (Column("ts", Type("timestamp")), Column("key", key_of(parent).struct()), Column("value", value.struct()))
            member = (Column("value", Type("struct", fields=(place, *record))), Column("n", BIGINT))
            return (StateField(WAITING, Type("array", element=Type("struct", fields=member)), Merge.BAG, None),)
        case Newest():
            return (ArrivedField("row", placed(value_of(root).struct(), ARRIVED_PLACE), Merge.LAST, None),)
        case Stored():
            return (NumberedField("row", placed(value_of(root).struct(), NUMBER), Merge.LAST, None),)
        case Latest():
            return (StateField("row", placed(value_of(root).struct()), Merge.LAST, None),)
        case Aggregate():
            return tuple(f for aggregate in root.aggregates for f in aggregate.state)
        case TableAggregate():
            return (root.rows, *(f for aggregate in root.aggregates for f in aggregate.state))
        case JoinSide():
            waiting = Type("struct", fields=(Column("ts", Type("timestamp")), Column("value", value_of(root).struct())))
            return (StateField(root.name, Type("array", element=placed(waiting)), Merge.LIST, None),)
        case Cogroup() | TableJoin() | ForeignJoin() | JoinBuffer():
            fields = tuple(field for part in parts_of(root) for field in _fields(part))
            done = StateField(DONE, Type("array", element=PLACE.struct()), Merge.UNION, None)
            return (*fields, done) if isinstance(root, OuterBuffer) else fields


def stages_of(node: Table) -> tuple[Stage, ...]:
    """Give the steps from the state of a table node to its rows."""
    match node:
        case Latest():
            scope = Scope({"state": state_schema(state_of(node))}, bare=())
            return (Project(tuple((c.name, parse(f"state.row.value.`{c.name}`", scope, node.location)) for c in value_of(node))),)
        case Aggregate() | TableAggregate():
            return (Project(tuple((a.name, a.value) for a in node.aggregates)),)
        case Cogroup():
            return (Project(tuple((a.name, _counted(a, node.location)) for aggregate in node.inputs for a in aggregate.aggregates)),)
        case JoinSide() | JoinBuffer() | History() | Waiting():
            scope = Scope({"state": state_schema(state_of(node))}, bare=())
            names = [f.name for f in state_of(node) if f.name != DONE]
            numbers = ((name, f"COALESCE(CAST(SIZE(state.`{name}`) AS BIGINT), CAST(0 AS BIGINT))") for name in names)
            return (Project(tuple((name, parse(number, scope, node.location)) for name, number in numbers)),)
        case TableJoin():
            return (Match(node.how, _side(node, node.left), _side(node, node.right), node.columns),)
        case ForeignJoin():
            return (Beside(node.how, node.columns),)
        case TableFilter():
            return (*stages_of(node.parent), Where(node.condition))
        case TableMapValues():
            return (*stages_of(node.parent), Project(node.columns))


def _fields(part: Part) -> Iterator[StateField]:
    names = dict(part.fields)
    for field_ in state_of(part.leaf):
        yield dataclasses.replace(field_, name=names[field_.name])
    if part.there is not None:
        yield StateField(part.there, Type("boolean"), Merge.MAX, parse("TRUE", Scope({}), part.leaf.location))


def _side(join: TableJoin, node: Table) -> Side:
    root, joined = root_of(node), {part.leaf: part for part in parts_of(join)}
    state: list[tuple[str, str]] = []
    for part in parts_of(root):
        same = joined[part.leaf]
        state += [(mine, theirs) for (_, mine), (_, theirs) in zip(part.fields, same.fields, strict=True)]
        if part.there is not None and same.there is not None:
            state.append((part.there, same.there))
    there = () if isinstance(root, TableJoin) else tuple(there for leaf in leaves_of(root) if (there := joined[leaf].there) is not None)
    return Side(key_of(node).names, tuple(state), there, _alive(root), stages_of(node))


def _counted(aggregate: BoundAggregate, where: str) -> Expr:
    """Give the value of an aggregate of a row that others may have made: of nothing, a count is 0 and not null."""
    if aggregate.function != "count":
        return aggregate.value
    return parse(f"COALESCE(state.`{aggregate.name}`, CAST(0 AS BIGINT))", Scope({"state": state_schema(aggregate.state)}), where)


def _alive(root: Root) -> Expr | None:
    match root:
        case Latest():
            condition = "state.row.value IS NOT NULL"
        case Waiting():
            condition = f"SIZE(state.`{WAITING}`) > 0"
        case TableAggregate():
            condition = f"state.`{root.rows.name}` > CAST(0 AS BIGINT)"
        case _:
            return None
    return parse(condition, Scope({"state": state_schema(state_of(root))}, bare=()), root.location)


def _schema(columns: Named) -> Schema:
    return Schema.of((name, expr.type) for name, expr in columns)


def _element(expr: Expr) -> Type:
    assert expr.type.element is not None
    return expr.type.element
