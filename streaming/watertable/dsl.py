"""Write topologies as Kafka Streams users would: topics become streams and tables, operators are methods, names are theirs.

Everything here only builds a plan: no Spark, no JVM, no I/O. Columns are Spark SQL expressions, checked where they are written; a
name is looked up in the value first, then in the key, and can be qualified (`key.x`, `old.x`, `new.x`, `window.start`).

    app = wt.App("wordcount")
    lines = app.topic("lines", value="line STRING", value_format="string").stream()
    words = lines.flat_map_values(word="split(lower(line), ' ')")
    counts = words.group_by("word").agg(n=wt.count()).materialized_as("counts")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from watertable import plan
from watertable.aggregates import Aggregation, BoundAggregate, bind, bind_rows, held_row, row_count, sortable
from watertable.definitions import (
    check_columns,
    check_found_by_key,
    check_key,
    check_same_key,
    check_streamed,
    check_topic_name,
    chosen_format,
    declared,
    here,
    identifier,
    key_format_of,
)
from watertable.errors import DefinitionError, DuplicateName, ExpressionError, SchemaError
from watertable.expressions import Expr, Scope, parse, parse_predicate
from watertable.plan import Format, Sink, TableDef, Topic, Topology
from watertable.rules import OnFail, Rule
from watertable.schema import Schema
from watertable.scopes import is_change, join_scope, lookup_scope, pair_scope, scope_of
from watertable.stages import How, Named
from watertable.windows import JoinWindows, Windows


class App:
    """Collect the topics, tables and output topics that are deployed and committed as one unit.

    `owner` is shown in Dagster: an e-mail address or `team:name`. Raises `SchemaError` for a name that isn't an identifier.
    """

    def __init__(self, name: str, *, owner: str | None = None, description: str = "") -> None:
        self.location = here()
        self.name = identifier(name, "app", self.location)
        self.owner = owner
        self.description = description
        self._topics: dict[str, Topic] = {}
        self._tables: dict[str, TableDef] = {}
        self._sinks: dict[str, Sink] = {}

    def topic(
        self,
        name: str,
        *,
        value: str,
        key: str = "key STRING",
        timestamp: str | None = None,
        key_format: str | None = None,
        value_format: str | None = None,
        archive: bool = False,
        description: str = "",
    ) -> TopicSource:
        """Declare a topic that the app reads.

        `key` and `value` are DDL column lists. Values are JSON unless `value_format` says "string" or "bytes"; a key of one STRING
        column is that string's bytes, any other key is JSON unless `key_format` says otherwise. `timestamp` names the value's
        TIMESTAMP column that holds the event time; without it, event time is the record's own timestamp.

        Raises `SchemaError` for a bad DDL, name, format or time column, and `DuplicateName` for a topic declared twice.
        """
        where = here()
        check_topic_name(name, where)
        if name in self._topics:
            raise DuplicateName(f"{where}: topic {name!r} is already declared at {self._topics[name].location}; reuse that object")
        keys, values = declared(key, where, "key"), declared(value, where, "value")
        if timestamp is not None and (timestamp not in values or values[timestamp].kind != "timestamp"):
            have = ", ".join(f"{c.name} {c.type.sql()}" for c in values)
            raise SchemaError(f"{where}: timestamp={timestamp!r} must name a TIMESTAMP column of the value; it has {have}")
        self._topics[name] = Topic(
            name=name,
            key=keys,
            value=values,
            key_format=chosen_format(key_format, keys, where, default=key_format_of(keys)),
            value_format=chosen_format(value_format, values, where, default=Format.JSON),
            timestamp=timestamp,
            archive=archive,
            description=description,
            location=where,
        )
        return TopicSource(self, self._topics[name])

    def topology(self) -> Topology:
        """Freeze what was defined; raise `DefinitionError` when there is nothing to keep or publish."""
        if not self._tables and not self._sinks:
            raise DefinitionError(f"{self.location}: app {self.name!r} has no table and no output: end one with .materialized_as(name)")
        return Topology(
            app=self.name,
            tables=tuple(self._tables.values()),
            sinks=tuple(self._sinks.values()),
            owner=self.owner,
            description=self.description,
            location=self.location,
        )

    def describe(self) -> str:
        """Write the topology as text; `lineage.mermaid` draws it."""
        from watertable.lineage import describe

        return describe(self.topology())

    @property
    def fingerprint(self) -> str:
        """Identify what the app computes; see `Topology.fingerprint`."""
        return self.topology().fingerprint

    def _add_table(self, table: TableDef) -> None:
        if table.name in self._tables:
            raise DuplicateName(f"{table.location}: table {table.name!r} is already defined at {self._tables[table.name].location}")
        self._tables[table.name] = table

    def _add_sink(self, sink: Sink) -> None:
        if sink.topic in self._sinks:
            first = self._sinks[sink.topic].location
            raise DuplicateName(f"{sink.location}: output topic {sink.topic!r} is already written at {first}; merge the streams first")
        if sink.topic in self._topics:
            raise DefinitionError(f"{sink.location}: topic {sink.topic!r} is read by this app, so it can't write it: that is a loop")
        self._sinks[sink.topic] = sink


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Hold a declared topic, to be read as a stream or as a table."""

    app: App
    topic: Topic

    def stream(self) -> Stream:
        """Read the topic as a stream of records; null keys and null values are ordinary records."""
        return Stream(self.app, plan.Source(topic=self.topic, location=here()))

    def table(self) -> Table:
        """Read the topic as a changelog: the last value of each key, where a null value deletes.

        A record without a key can't be placed and goes to quarantine. Within a partition offset order decides, as in Kafka Streams.
        """
        where = here()
        check_key(self.topic.key, where, "table")
        check_columns(self.topic.key, self.topic.value, where)
        return Table(self.app, plan.Latest(parent=plan.Source(topic=self.topic, location=where), is_source=True, location=where))


@dataclass(frozen=True, slots=True)
class Stream:
    """Stream records, or the Changes of a table (`old` and `new`); each operator gives a new stream."""

    app: App
    node: plan.Stream

    @property
    def key(self) -> Schema:
        """Give the key's columns."""
        return plan.key_of(self.node)

    @property
    def value(self) -> Schema:
        """Give the value's columns."""
        return plan.value_of(self.node)

    def filter(self, condition: str) -> Stream:
        """Keep the records for which the condition is true."""
        where = here()
        return self._with(plan.Filter(parent=self.node, condition=parse_predicate(condition, self._scope(), where), location=where))

    def filter_not(self, condition: str) -> Stream:
        """Drop the records for which the condition is true; where it is null, the record stays."""
        where = here()
        parse_predicate(condition, self._scope(), where)
        negated = parse_predicate(f"NOT COALESCE(({condition}), FALSE)", self._scope(), where)
        return self._with(plan.Filter(parent=self.node, condition=negated, location=where))

    def expect(self, name: str, condition: str, *, on_fail: str = "quarantine") -> Stream:
        """Hold records to a rule: those that break it are quarantined, dropped ("drop") or only counted ("warn").

        A condition that is null is kept. Raises `DefinitionError` for another `on_fail`.
        """
        where = here()
        if on_fail not in tuple(OnFail):
            raise DefinitionError(f"{where}: on_fail={on_fail!r}; choose {', '.join(OnFail)}")
        rule = Rule(name, parse_predicate(condition, self._scope(), where), OnFail(on_fail))
        return self._with(plan.Expect(parent=self.node, rule=rule, location=where))

    def map_values(self, **columns: str) -> Stream:
        """Make a new value of these named expressions; a null value stays null."""
        where = here()
        return self._with(plan.MapValues(parent=self.node, columns=_named(columns, self._scope(), where), location=where))

    def with_columns(self, **columns: str) -> Stream:
        """Add these named expressions to the value, in place of columns of the same name."""
        where = here()
        made = dict(_named(columns, self._scope(), where))
        merged = _identity(self.value, self._scope(), where) | made
        return self._with(plan.MapValues(parent=self.node, columns=tuple(merged.items()), location=where))

    def map(self, *, key: dict[str, str], value: dict[str, str]) -> Stream:
        """Make a new key and a new value, each of named expressions."""
        where = here()
        keys, values = _named(key, self._scope(), where), _named(value, self._scope(), where)
        return self._with(plan.Map(parent=self.node, key_columns=keys, columns=values, location=where))

    def select_key(self, *columns: str, **named: str) -> Stream:
        """Make a new key of columns, or of named expressions; the value stays."""
        where = here()
        keys = _group(columns, named, self._scope(), where, "select_key")
        return self._with(plan.Map(parent=self.node, key_columns=keys, columns=None, location=where))

    def flat_map_values(self, *, explode: str | None = None, **columns: str) -> Stream:
        """Make one record per element of an array column; the other columns are repeated beside each.

        The array is the only ARRAY among the columns, or the one that `explode` names.
        """
        where = here()
        made = _named(columns, self._scope(), where)
        arrays = [name for name, expr in made if expr.type.kind == "array"]
        if explode is None and len(arrays) != 1:
            came = ", ".join(f"{n} {e.type.sql()}" for n, e in made)
            raise ExpressionError(f"{where}: flat_map_values wants exactly one ARRAY column, or explode=name; got {came or 'no column'}")
        chosen = explode if explode is not None else arrays[0]
        if chosen not in arrays:
            raise ExpressionError(f"{where}: explode={chosen!r} must name an ARRAY column; arrays here: {', '.join(arrays) or 'none'}")
        return self._with(plan.FlatMapValues(parent=self.node, columns=made, exploded=chosen, location=where))

    def peek(self, name: str) -> Stream:
        """Count the records that pass here, under a name that the app's metrics show; nothing else changes."""
        where = here()
        return self._with(plan.Peek(parent=self.node, name=identifier(name, "peek", where), location=where))

    def merge(self, *others: Stream) -> Stream:
        """Interleave streams of the same key and value columns, in log order; raise `SchemaError` when they differ."""
        where = here()
        for other in others:
            for part, mine, theirs in (("key", self.key, other.key), ("value", self.value, other.value)):
                if mine != theirs:
                    raise SchemaError(f"{where}: merge wants the same {part} columns: ({mine.sql()}) here, ({theirs.sql()}) there")
            if is_change(self.node) != is_change(other.node):
                raise SchemaError(f"{where}: merge can't mix Changes with records: map_values the changes first")
        return self._with(plan.MergeStreams(parents=(self.node, *(o.node for o in others)), location=where))

    def split(self) -> Branches:
        """Begin to branch: each record goes to the first branch whose condition is true."""
        return Branches(self)

    def repartition(self) -> Stream:
        """Drop records without a key, as Kafka Streams does; Spark needs no co-partitioning, so nothing else moves."""
        return self._with(plan.Repartition(parent=self.node, location=here()))

    def join(
        self,
        other: Table | Stream,
        /,
        *,
        on: str | tuple[str, ...] | None = None,
        within: JoinWindows | timedelta | None = None,
        **columns: str,
    ) -> Stream:
        """Join each record with a table's row as it is when the record arrives, or with the records of a stream `within` a window.

        With a table, the new value is these expressions over the record and `right`, the row for the record's key, or for the key `on`,
        which has one expression for each of the table's key columns, and makes of any table what Kafka Streams calls a global one.
        Records without a row, a key or a value are dropped.

        With a stream, there is a record for every pair that has one key, and whose times are `within` a window: a `join_windows`, or the
        greatest difference. Its value is these expressions over `left.x`, `right.x` and `key.x`; its time is that of the later record.
        Records without a key or a value are dropped.

        Raises `DefinitionError` for a table without a name, when the keys' types differ, for a stream without `within` or with `on`.
        """
        where = here()
        if isinstance(other, Stream):
            return self._pair(other, on, within, columns, where)
        if within is not None:
            raise DefinitionError(f"{where}: join: within= is for streams; a table has the row that it has when the record arrives")
        return self._look_up(How.INNER, other, on, columns, where)

    def left_join(self, table: Table, /, *, on: str | tuple[str, ...] | None = None, **columns: str) -> Stream:
        """Join each record with the table's row; `right` is null where there is none, or where the record has no key."""
        return self._look_up(How.LEFT, table, on, columns, here())

    def to(self, topic: str, *, key_format: str | None = None, value_format: str | None = None) -> None:
        """Publish to a topic, each record once for readers of committed data; of a Change, the new row or a tombstone."""
        where = here()
        check_topic_name(topic, where)
        keys = chosen_format(key_format, self.key, where, default=key_format_of(self.key))
        values = chosen_format(value_format, self.value, where, default=Format.JSON)
        self.app._add_sink(Sink(topic=topic, node=self.node, key_format=keys, value_format=values, location=where))

    def to_table(self) -> Table:
        """Keep each key's last value in log order; a null value deletes, a record without a key is dropped and counted."""
        where = here()
        if is_change(self.node):
            raise DefinitionError(f"{where}: these are already a table's changes: use that table, or map_values first")
        check_key(self.key, where, "to_table")
        check_columns(self.key, self.value, where)
        return Table(self.app, plan.Latest(parent=self.node, location=where))

    def group_by(self, *columns: str, **named: str) -> GroupedStream:
        """Group by columns, or by named expressions; a record with a null in its group is dropped and counted."""
        where = here()
        return GroupedStream(self, _group(columns, named, self._scope(), where, "group_by"))

    def group_by_key(self) -> GroupedStream:
        """Group by the key as it is."""
        where = here()
        check_key(self.key, where, "group_by_key")
        return GroupedStream(self, tuple((c.name, parse(f"key.`{c.name}`", self._scope(), where)) for c in self.key))

    def _look_up(self, how: How, table: Table, on: str | tuple[str, ...] | None, columns: dict[str, str], where: str) -> Stream:
        what = how.operator
        if not isinstance(table, Table):
            raise DefinitionError(f"{where}: {what} wants a table: make one of the stream with to_table, or an aggregation")
        _check_same_app(self.app, table.app, f"{where}: {what} wants a table of the same app")
        if table.name is None:
            raise DefinitionError(f"{where}: {what} wants a table with a name: put .materialized_as(name) after it; its rows must be kept")
        check_found_by_key(table.node, where, what)
        made = _named(columns, lookup_scope(self.node, table.node), where)
        texts = (on,) if isinstance(on, str) else on or ()
        exprs = [parse(text, self._scope(), where) for text in texts]
        check_same_key(Schema.of((f"on{n}", e.type) for n, e in enumerate(exprs)) if on else self.key, table.key, where, what)
        wanted = tuple(zip(table.key.names, exprs, strict=True)) if on else None
        node = plan.StreamJoin(
            parent=self.node, how=how, table=table.name, right=table.node, on=wanted, columns=made, location=where
        )  # fmt: skip
        return self._with(node)

    def _pair(
        self, right: Stream, on: str | tuple[str, ...] | None, within: JoinWindows | timedelta | None, columns: dict[str, str], where: str
    ) -> Stream:
        _check_same_app(self.app, right.app, f"{where}: join wants two streams of one app")
        if on is not None:
            raise DefinitionError(f"{where}: join: streams pair by their keys: select_key before it, not on=")
        if within is None:
            raise DefinitionError(f"{where}: join of two streams wants within=wt.join_windows(before=..., after=..., grace=...)")
        check_same_key(self.key, right.key, where, "join")
        check_key(self.key, where, "join")
        for side, value in (("left", self.value), ("right", right.value)):
            unsorted = [c.name for c in value if not sortable(c.type)]
            if unsorted:
                raise DefinitionError(f"{where}: join: {side}.{unsorted[0]} holds a MAP, which has no order: map_values before it")
        made = _named(columns, pair_scope(self.node, right.node), where)
        windows = JoinWindows(within, within, timedelta(0)) if isinstance(within, timedelta) else within
        return self._with(plan.StreamStreamJoin(left=self.node, right=right.node, within=windows, columns=made, location=where))

    def _scope(self) -> Scope:
        return scope_of(self.node)

    def _with(self, node: plan.Stream) -> Stream:
        return Stream(self.app, node)


@dataclass(slots=True)
class Branches:
    """Collect the branches of a split; end with `default_branch` or `no_default_branch`."""

    stream: Stream
    _taken: list[tuple[str, str]] = field(default_factory=list)

    def branch(self, name: str, condition: str) -> Branches:
        """Send to `name` the records for which the condition is the first true one."""
        where = here()
        parse_predicate(condition, self.stream._scope(), where)
        if name in dict(self._taken):
            raise DuplicateName(f"{where}: there is already a branch {name!r}")
        self._taken.append((name, condition))
        return self

    def default_branch(self, name: str = "default") -> dict[str, Stream]:
        """Send the rest to one more branch, and give all branches by name."""
        if name in dict(self._taken):
            raise DuplicateName(f"{here()}: there is already a branch {name!r}")
        return self._streams([*self._taken, (name, "TRUE")], here())

    def no_default_branch(self) -> dict[str, Stream]:
        """Drop the rest, and give all branches by name."""
        return self._streams(self._taken, here())

    def _streams(self, branches: list[tuple[str, str]], where: str) -> dict[str, Stream]:
        streams: dict[str, Stream] = {}
        earlier: list[str] = []
        for name, condition in branches:
            alone = " AND ".join([f"COALESCE(({condition}), FALSE)", *(f"NOT COALESCE(({e}), FALSE)" for e in earlier)])
            predicate = parse_predicate(alone, self.stream._scope(), where)
            streams[name] = self.stream._with(plan.Filter(parent=self.stream.node, condition=predicate, location=where))
            earlier.append(condition)
        return streams


@dataclass(frozen=True, slots=True)
class GroupedStream:
    """Hold a grouped stream, to be windowed or aggregated."""

    stream: Stream
    group: Named

    def windowed_by(self, windows: Windows) -> WindowedStream:
        """Cut each group into windows of event time."""
        return WindowedStream(self.stream, self.group, windows)

    def agg(self, **aggregates: Aggregation) -> Table:
        """Fold each group into one row of named aggregates."""
        return _aggregate(self.stream, self.group, None, aggregates, here())

    def count(self, name: str = "count") -> Table:
        """Count the records of each group."""
        return _aggregate(self.stream, self.group, None, {name: Aggregation("count")}, here())

    def cogroup(self, **aggregates: Aggregation) -> CogroupedStream:
        """Begin a row that several grouped streams fold into, each by its own aggregates; the key takes this one's names."""
        return CogroupedStream(((self, aggregates),), None, here())


@dataclass(frozen=True, slots=True)
class WindowedStream:
    """Hold a grouped and windowed stream, to be aggregated."""

    stream: Stream
    group: Named
    windows: Windows

    def agg(self, **aggregates: Aggregation) -> Table:
        """Fold each group's window into one row of named aggregates, keyed by the group, window_start and window_end."""
        return _aggregate(self.stream, self.group, self.windows, aggregates, here())

    def count(self, name: str = "count") -> Table:
        """Count the records of each group's window."""
        return _aggregate(self.stream, self.group, self.windows, {name: Aggregation("count")}, here())


@dataclass(frozen=True, slots=True)
class CogroupedStream:
    """Hold grouped streams that fold into one row; end with `agg`."""

    inputs: tuple[tuple[GroupedStream, dict[str, Aggregation]], ...]
    windows: Windows | None
    where: str

    def cogroup(self, grouped: GroupedStream, /, **aggregates: Aggregation) -> CogroupedStream:
        """Add a grouped stream; raise `DefinitionError` when its key has other types, or an aggregate's name is taken."""
        where, (first, _) = here(), self.inputs[0]
        mine, theirs = (Schema.of((name, expr.type) for name, expr in g.group) for g in (first, grouped))
        check_same_key(mine, theirs, where, "cogroup")
        _check_same_app(first.stream.app, grouped.stream.app, f"{where}: cogroup wants streams of one app")
        taken = sorted({name for _, other in self.inputs for name in other} & {*aggregates})
        if taken:
            raise DuplicateName(f"{where}: cogroup: another stream already makes {', '.join(taken)}; each stream makes its own columns")
        return CogroupedStream((*self.inputs, (grouped, aggregates)), self.windows, self.where)

    def windowed_by(self, windows: Windows) -> CogroupedStream:
        """Cut each group into windows of event time, the same for all streams."""
        return CogroupedStream(self.inputs, windows, self.where)

    def agg(self) -> Table:
        """Fold all streams: a row for each group that any of them has; where one had no record, its counts are 0, the rest is null."""
        where = here()
        made = [_aggregate(grouped.stream, grouped.group, self.windows, aggregates, where).node for grouped, aggregates in self.inputs]
        node = plan.Cogroup(inputs=tuple(n for n in made if isinstance(n, plan.Aggregate)), location=where)
        check_columns(plan.key_of(node), plan.value_of(node), where)
        return Table(self.inputs[0][0].stream.app, node)


@dataclass(frozen=True, slots=True)
class Table:
    """Hold a table: rows by key, a fold of the records above."""

    app: App
    node: plan.Table
    name: str | None = None

    @property
    def key(self) -> Schema:
        """Give the key's columns."""
        return plan.key_of(self.node)

    @property
    def value(self) -> Schema:
        """Give the value's columns."""
        return plan.value_of(self.node)

    def filter(self, condition: str) -> Table:
        """Keep the rows for which the condition is true; a row that ceases to be so is deleted."""
        where = here()
        predicate = parse_predicate(condition, scope_of(self.node), where)
        return Table(self.app, plan.TableFilter(parent=self.node, condition=predicate, location=where))

    def filter_not(self, condition: str) -> Table:
        """Keep the rows for which the condition is false or null."""
        where = here()
        parse_predicate(condition, scope_of(self.node), where)
        predicate = parse_predicate(f"NOT COALESCE(({condition}), FALSE)", scope_of(self.node), where)
        return Table(self.app, plan.TableFilter(parent=self.node, condition=predicate, location=where))

    def map_values(self, **columns: str) -> Table:
        """Make new value columns from each row; the key stays."""
        where = here()
        made = _named(columns, scope_of(self.node), where)
        check_columns(self.key, Schema.of((n, e.type) for n, e in made), where)
        return Table(self.app, plan.TableMapValues(parent=self.node, columns=made, location=where))

    def join(self, other: Table, /, *, on: str | tuple[str, ...] | None = None, **columns: str) -> Table:
        """Join with another table by key: a row of these expressions for each key that both have.

        Columns are named `left.x`, `right.x` and `key.x`, where `left` is this table. The keys must have the same types, and take the
        names of this table's. With `on`, an expression over this table's row for each of the other's key columns, each row is joined
        with the row that it names (a foreign-key join); the key is this table's. Raises `DefinitionError` when the keys or windows differ,
        and, with `on`, for tables without a name and for those that `group_by` refuses.
        """
        where = here()
        return self._join(How.INNER, other, columns, where) if on is None else self._join_on(How.INNER, other, on, columns, where)

    def left_join(self, other: Table, /, *, on: str | tuple[str, ...] | None = None, **columns: str) -> Table:
        """Join, with a row for each key of this table; `right` is null where the other has none, or where `on` is null."""
        where = here()
        return self._join(How.LEFT, other, columns, where) if on is None else self._join_on(How.LEFT, other, on, columns, where)

    def outer_join(self, other: Table, /, **columns: str) -> Table:
        """Join, with a row for each key that either table has; the side without a row is null."""
        return self._join(How.OUTER, other, columns, here())

    def _join(self, how: How, other: Table, columns: dict[str, str], where: str) -> Table:
        _check_same_app(self.app, other.app, f"{where}: {how.operator} wants two tables of one app")
        check_same_key(self.key, other.key, where, how.operator)
        for table in (self, other):
            check_found_by_key(table.node, where, how.operator)
        windows = [plan.windows_of(table.node) for table in (self, other)]
        if len({w and (w.size, w.advance) for w in windows}) != 1:
            mine, theirs = (w or "none" for w in windows)
            raise DefinitionError(f"{where}: {how.operator} wants the same windows: {mine} here, {theirs} there")
        made = _named(columns, join_scope(self.node, other.node), where)
        check_columns(self.key, Schema.of((n, e.type) for n, e in made), where)
        return Table(self.app, plan.TableJoin(how=how, left=self.node, right=other.node, columns=made, location=where))

    def _join_on(self, how: How, other: Table, on: str | tuple[str, ...], columns: dict[str, str], where: str) -> Table:
        what = how.operator
        _check_same_app(self.app, other.app, f"{where}: {what} wants two tables of one app")
        scope, own = scope_of(self.node), Scope({"key": self.key}, bare=("key",))
        theirs = Scope({"key": other.key}, bare=("key",))
        named = tuple((f"__on{n}", parse(text, scope, where)) for n, text in enumerate((on,) if isinstance(on, str) else on))
        check_same_key(Schema.of((name, expr.type) for name, expr in named), other.key, where, what)
        made = _named(columns, join_scope(self.node, other.node), where)
        check_columns(self.key, Schema.of((n, e.type) for n, e in made), where)
        keyed = tuple((c.name, parse(f"key.`{c.name}`", own, where)) for c in self.key)
        nothing = tuple((c.name, parse(f"CAST(NULL AS {c.type.sql()})", Scope({}), where)) for c in self.key)
        foreign = tuple((name, parse(f"key.`{c.name}`", theirs, where)) for (name, _), c in zip(named, other.key, strict=True))
        left, right = (
            plan.ForeignSide(
                parent=table._exact_changes(what, where), group=group, aggregates=(), optional=optional, location=where,
                rows=held_row(f"__{side}", table.value, [e for _, e in made], scope_of(table.node), where),
            ) for side, table, group, optional in (
                ("left", self, named + keyed, tuple(name for name, _ in named) if how is How.LEFT else ()),
                ("right", other, foreign + nothing, self.key.names),
            )
        )  # fmt: skip
        return Table(self.app, plan.ForeignJoin(how=how, left=left, right=right, columns=made, location=where))

    def materialized_as(self, name: str, *, description: str = "") -> Table:
        """Keep the table under a name: it becomes a Delta table, an asset, and something to read."""
        where = here()
        identifier(name, "table", where)
        if name.startswith("_"):
            raise SchemaError(f"{where}: table name {name!r}: names that begin with _ are the store's own")
        self.app._add_table(TableDef(name=name, node=self.node, description=description, location=where))
        return Table(self.app, self.node, name)

    def to_stream(self) -> Stream:
        """Stream the table's changes: one Change(old, new) per source record, in log order.

        Raises `DefinitionError` for a table without a name: its old rows must be kept somewhere (KIP-1111).
        """
        return Stream(self.app, self._changes("to_stream", here()))

    def group_by(self, *columns: str, **named: str) -> GroupedTable:
        """Group the rows by columns, or by named expressions; a row with a null in its group is left out and counted.

        Raises `DefinitionError` for a table without a name, as `to_stream` does, and for one whose rows hold sums of floating point: what
        leaves a group must be exactly what entered it.
        """
        where = here()
        group = _group(columns, named, scope_of(self.node), where, "group_by")
        return GroupedTable(self, group, self._exact_changes("group_by", where))

    def _exact_changes(self, operator: str, where: str) -> plan.ToStream:
        """Give the Changes that others take from and add to; refuse rows that can't leave exactly as they came."""
        changes = self._changes(operator, where)
        leaves = [leaf for leaf in plan.leaves_of(plan.root_of(self.node)) if not isinstance(leaf, plan.Latest | plan.JoinSide)]
        inexact = [a.name for leaf in leaves for a in leaf.aggregates if not a.exact]
        if inexact:
            raise DefinitionError(
                f"{where}: {operator}: {', '.join(inexact)} of {self.name} adds up floating point, whose last digits depend on the order: "
                "a row couldn't leave its group as it entered it; aggregate a DECIMAL instead"
            )
        return changes

    def _changes(self, operator: str, where: str) -> plan.ToStream:
        if self.name is None:
            raise DefinitionError(f"{where}: {operator} wants a table with a name: put .materialized_as(name) before it")
        check_streamed(self.node, where, operator)
        return plan.ToStream(table=self.name, parent=self.node, location=where)


@dataclass(frozen=True, slots=True)
class GroupedTable:
    """Hold the grouped rows of a table, to be aggregated: a row that changes leaves its old group and enters its new one."""

    table: Table
    group: Named
    changes: plan.ToStream

    def agg(self, **aggregates: Aggregation) -> Table:
        """Fold the rows of each group into one row of named aggregates; a group without rows is gone."""
        return self._agg(aggregates, here())

    def count(self, name: str = "count") -> Table:
        """Count the rows of each group."""
        return self._agg({name: Aggregation("count")}, here())

    def _agg(self, aggregates: dict[str, Aggregation], where: str) -> Table:
        scope, key = scope_of(self.table.node), self.table.key
        bound = _bound(aggregates, where, lambda name, aggregation: bind_rows(name, aggregation, scope, key, where))
        rows = row_count(scope, where)
        node = plan.TableAggregate(parent=self.changes, group=self.group, aggregates=bound, rows=rows, location=where)
        check_columns(plan.key_of(node), plan.value_of(node), where)
        return Table(self.table.app, node)


def _aggregate(stream: Stream, group: Named, windows: Windows | None, aggregates: dict[str, Aggregation], where: str) -> Table:
    scope = scope_of(stream.node)
    bound = _bound(aggregates, where, lambda name, aggregation: bind(name, aggregation, scope, where))
    node = plan.Aggregate(parent=stream.node, group=group, windows=windows, aggregates=bound, location=where)
    check_columns(plan.key_of(node), plan.value_of(node), where)
    return Table(stream.app, node)


def _bound(
    aggregates: dict[str, Aggregation], where: str, bind_one: Callable[[str, Aggregation], BoundAggregate]
) -> tuple[BoundAggregate, ...]:
    if not aggregates:
        raise DefinitionError(f"{where}: agg wants at least one aggregate: agg(n=wt.count())")
    for name, aggregation in aggregates.items():
        identifier(name, "column", where)
        if not isinstance(aggregation, Aggregation):
            raise DefinitionError(f"{where}: {name}={aggregation!r} is not an aggregate; write wt.sum('...'), wt.count(), ...")
    bound = tuple(bind_one(name, aggregation) for name, aggregation in aggregates.items())
    kept = ["__rows", *(part.name for aggregate in bound for part in aggregate.state)]
    taken = sorted({name for name in kept if kept.count(name) > 1})
    if taken:
        raise DefinitionError(f"{where}: {', '.join(taken)} is also the name of a part that another aggregate keeps; rename the column")
    return bound


def _named(columns: dict[str, str], scope: Scope, where: str) -> Named:
    if not columns:
        raise DefinitionError(f"{where}: no columns; write name='expression'")
    for name in columns:
        identifier(name, "column", where)
    return tuple((name, parse(text, scope, where)) for name, text in columns.items())


def _group(columns: tuple[str, ...], named: dict[str, str], scope: Scope, where: str, operator: str) -> Named:
    if not columns and not named:
        raise DefinitionError(f"{where}: {operator} wants columns: {operator}('country') or {operator}(day='date(at)')")
    made: list[tuple[str, Expr]] = []
    for text in columns:
        expr = parse(text, scope, where)
        if len(expr.refs) != 1 or expr.sql.replace("`", "") != expr.refs[0]:
            raise ExpressionError(f"{where}: {operator}({text!r}): an expression needs a name: {operator}(name={text!r})")
        made.append((expr.refs[0].rsplit(".", 1)[-1], expr))
    made += [(name, parse(text, scope, where)) for name, text in named.items()]
    for name, _ in made:
        identifier(name, "column", where)
    repeated = sorted({name for name, _ in made if sum(name == other for other, _ in made) > 1})
    if repeated:
        raise SchemaError(f"{where}: {operator}: column {', '.join(repeated)} is named twice")
    check_key(Schema.of((name, expr.type) for name, expr in made), where, operator)
    return tuple(made)


def _check_same_app(mine: App, theirs: App, wanted: str) -> None:
    if theirs is not mine:
        raise DefinitionError(f"{wanted}: {mine.name!r} here, {theirs.name!r} there")


def _identity(schema: Schema, scope: Scope, where: str) -> dict[str, Expr]:
    space = scope.bare[0]
    return {c.name: parse(f"{space}.`{c.name}`", scope, where) for c in schema}
