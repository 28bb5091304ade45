"""Give streams their operators, by the names that Kafka Streams has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from watertable.dsl import tables
from watertable.dsl.building import (
    bound_aggregates,
    by_name,
    check_kept,
    check_same_app,
    checked,
    counted,
    entry_key,
    grouped_by,
    identity,
    named_exprs,
    processor_of,
    written_headers,
)
from watertable.dsl.definitions import (
    check_columns,
    check_found_by_key,
    check_key,
    check_own,
    check_same_key,
    check_text,
    check_topic_name,
    check_waits,
    check_written,
    chosen_format,
    here,
    identifier,
    key_format_of,
    placed,
    texts_of,
)
from watertable.errors import DefinitionError, DuplicateName, ExpressionError, SchemaError
from watertable.plan import nodes, plan
from watertable.plan.aggregates import Aggregation, bind, first, sortable
from watertable.plan.nodes import Format
from watertable.plan.plan import Sink
from watertable.plan.processors import StoreShape
from watertable.plan.purity import told_by_arrival
from watertable.plan.rules import OnFail, Rule
from watertable.plan.scopes import is_change, lookup_scope, pair_scope, scope_of
from watertable.plan.stages import How, Named
from watertable.plan.windows import JoinWindows, TimeWindows, Windows, until_window_closes
from watertable.processing import Context, Record
from watertable.schema import Schema
from watertable.sql.expressions import Scope, closed, parse, parse_negation, parse_predicate

if TYPE_CHECKING:
    from watertable.dsl.app import App


@dataclass(frozen=True, slots=True)
class Stream:
    """Stream records, or the Changes of a table (`old` and `new`); each operator gives a new stream."""

    app: App
    node: nodes.Stream

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
        return self._with(nodes.Filter(parent=self.node, condition=parse_predicate(condition, self._scope(), where), location=where))

    def filter_not(self, condition: str) -> Stream:
        """Drop the records for which the condition is true; where it is null, the record stays."""
        where = here()
        negated = parse_negation(condition, self._scope(), where)
        return self._with(nodes.Filter(parent=self.node, condition=negated, location=where))

    def expect(self, name: str, condition: str, *, on_fail: str = "quarantine") -> Stream:
        """Hold records to a rule: those that break it are quarantined, dropped ("drop") or only counted ("warn").

        A condition that is null is kept. Raises `DefinitionError` for another `on_fail`.
        """
        where = here()
        check_text(name, "name", f"{where}: expect")
        if on_fail not in tuple(OnFail):
            raise DefinitionError(f"{where}: on_fail={on_fail!r}; choose {', '.join(OnFail)}")
        rule = Rule(name, parse_predicate(condition, self._scope(), where), OnFail(on_fail))
        return self._with(nodes.Expect(parent=self.node, rule=rule, location=where))

    def map_values(self, **columns: str) -> Stream:
        """Make a new value of these named expressions; a null value stays null."""
        where = here()
        return self._with(nodes.MapValues(parent=self.node, columns=named_exprs(columns, self._scope(), where), location=where))

    def with_columns(self, **columns: str) -> Stream:
        """Add these named expressions to the value, in place of columns of the same name."""
        where = here()
        made = dict(named_exprs(columns, self._scope(), where))
        merged = identity(self.value, self._scope(), where) | made
        return self._with(nodes.MapValues(parent=self.node, columns=checked(tuple(merged.items()), where), location=where))

    def map(self, *, key: dict[str, str], value: dict[str, str]) -> Stream:
        """Make a new key and a new value, each of named expressions."""
        where = here()
        keys, values = (
            named_exprs(by_name(columns, part, "'expression'", where), self._scope(), where)
            for columns, part in ((key, "key"), (value, "value"))
        )
        return self._with(nodes.Map(parent=self.node, key_columns=keys, columns=values, location=where))

    def select_key(self, *columns: str, **named: str) -> Stream:
        """Make a new key of columns, or of named expressions; the value stays."""
        where = here()
        keys = grouped_by(columns, named, self._scope(), where, "select_key")
        return self._with(nodes.Map(parent=self.node, key_columns=keys, columns=None, location=where))

    def flat_map_values(self, *, explode: str | None = None, **columns: str) -> Stream:
        """Make one record per element of an array column; the other columns are repeated beside each.

        The array is the only ARRAY among the columns, or the one that `explode` names.
        """
        where = here()
        made = named_exprs(columns, self._scope(), where)
        arrays = [name for name, expr in made if expr.type.kind == "array"]
        if explode is None and len(arrays) != 1:
            came = ", ".join(f"{n} {e.type.sql()}" for n, e in made)
            raise ExpressionError(f"{where}: flat_map_values wants exactly one ARRAY column, or explode=name; got {came or 'no column'}")
        chosen = explode if explode is not None else arrays[0]
        if chosen not in arrays:
            raise ExpressionError(f"{where}: explode={chosen!r} must name an ARRAY column; arrays here: {', '.join(arrays) or 'none'}")
        return self._with(nodes.FlatMapValues(parent=self.node, columns=made, exploded=chosen, location=where))

    def peek(self, name: str) -> Stream:
        """Count the records that pass here, under a name that the app's metrics show; nothing else changes."""
        where = here()
        return self._with(nodes.Peek(parent=self.node, name=identifier(name, "peek", where), location=where))

    def merge(self, *others: Stream) -> Stream:
        """Interleave streams of the same key and value columns, in log order; raise `SchemaError` when they differ."""
        where = here()
        for other in others:
            if not isinstance(other, Stream):
                raise DefinitionError(f"{where}: merge wants streams; got a {type(other).__name__}; a table's to_stream() is one")
            check_same_app(self.app, other.app, f"{where}: merge wants streams of one app")
            for part, mine, theirs in (("key", self.key, other.key), ("value", self.value, other.value)):
                if mine != theirs:
                    raise SchemaError(f"{where}: merge wants the same {part} columns: ({mine.sql()}) here, ({theirs.sql()}) there")
            if is_change(self.node) != is_change(other.node):
                raise SchemaError(f"{where}: merge can't mix Changes with records: map_values the changes first")
        return self._with(nodes.MergeStreams(parents=(self.node, *(o.node for o in others)), location=where))

    def split(self) -> Branches:
        """Begin to branch: each record goes to the first branch whose condition is true."""
        return Branches(self)

    def repartition(self) -> Stream:
        """Drop records without a key; Spark needs no co-partitioning, so nothing else moves.

        Kafka Streams lets them through where a left or outer join is below: leave this out before one.
        """
        return self._with(nodes.Repartition(parent=self.node, location=here()))

    def join(
        self,
        other: tables.Table | Stream,
        /,
        *,
        on: str | tuple[str, ...] | None = None,
        within: JoinWindows | timedelta | None = None,
        grace: timedelta | None = None,
        **columns: str,
    ) -> Stream:
        """Join each record with a table's row as it is when the record arrives, or with the records of a stream `within` a window.

        With a table, the new value is these expressions over the record and `right`, the row for the record's key, or for the key `on`,
        which has one expression for each of the table's key columns, and makes of any table what Kafka Streams calls a global one.
        Records without a row, a key or a value are dropped.

        Of a versioned table it is the row as of the record's event time (KIP-914): as far as it is known when the record arrives, or, with
        a `grace` (KIP-923), once every partition that feeds the stream or the table has passed the event time by so much. Then what the
        record finds follows from the records alone: updates by then count, and none that come later. A record that is late by more than
        the grace finds what came before it in log order; one that is older than the history finds the row with which that begins, if it
        was there by then.

        With a stream, there is a record for every pair that has one key, and whose times are `within` a window: a `join_windows`, or the
        greatest difference. Its value is these expressions over `left.x`, `right.x` and `key.x`; its time is that of the later record.
        Records without a key or a value are dropped.

        Raises `DefinitionError` for a table without a name, when the keys' types differ, for a stream without `within` or with `on`; for a
        `grace` without a versioned table, or longer than its history.
        """
        where = here()
        return self._join(How.INNER, other, on, within, columns, where, grace)

    def left_join(
        self,
        other: tables.Table | Stream,
        /,
        *,
        on: str | tuple[str, ...] | None = None,
        within: JoinWindows | timedelta | None = None,
        grace: timedelta | None = None,
        **columns: str,
    ) -> Stream:
        """Join each record with a table's row, or with the records of a stream; `right` is null where there is none.

        With a table, a record without a key has no row either. With a stream, a record that pairs with nothing is given once its window has
        closed: when all partitions of both streams' topics have passed it. It keeps its own place in log order, its stream time and its
        event time. A record without a key is given at once (KIP-633, KIP-962). Raises what `join` does.
        """
        return self._join(How.LEFT, other, on, within, columns, here(), grace)

    def outer_join(self, other: Stream, /, *, within: JoinWindows | timedelta | None = None, **columns: str) -> Stream:
        """Join with the records of a stream, and give those of either side that pair with nothing, as `left_join` does.

        Raises `DefinitionError` for a table, too: a record has the row that there is, and rows don't wait for records.
        """
        where = here()
        if not isinstance(other, Stream):
            raise DefinitionError(f"{where}: outer_join wants a stream; with a table there are join and left_join")
        return self._join(How.OUTER, other, None, within, columns, where, None)

    def to(
        self, topic: str, *, key_format: str | None = None, value_format: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish to a topic, each record once for readers of committed data; of a Change, the new row or a tombstone.

        `headers` are expressions by name, of STRING (written as UTF-8) or BINARY: `headers={"trace-id": "trace"}`. A record hasn't the
        headers that are null for it; a tombstone has its headers, too. Raises `SchemaError` for a topic's name that is none or a format
        that can't write the columns, `ExpressionError` for a header of another type, `DuplicateName` for a topic that is written already.
        """
        where = here()
        check_topic_name(topic, where)
        keys = chosen_format(key_format, self.key, where, default=key_format_of(self.key))
        values = chosen_format(value_format, self.value, where, default=Format.JSON)
        check_written(self.key, keys, f"{where}: key")
        check_written(self.value, values, f"{where}: value")
        written = written_headers({} if headers is None else headers, self._scope(), where)
        self.app._add_sink(Sink(topic=topic, node=self.node, key_format=keys, value_format=values, headers=written, location=where))

    def to_table(self) -> tables.Table:
        """Keep each key's last value in log order; a null value deletes, a record without a key is dropped and counted.

        Of what says what a row is by all that came before, as Changes do, it is the last by arrival: by batch, in log order within one.
        """
        where = here()
        if is_change(self.node):
            raise DefinitionError(f"{where}: these are already a table's changes: use that table, or map_values first")
        check_key(self.key, where, "to_table")
        check_columns(self.key, self.value, where)
        kept = nodes.Newest if told_by_arrival(self.node) else nodes.Latest
        return tables.Table(self.app, kept(parent=self.node, location=where))

    def dedupe(self, *, name: str, within: timedelta, by: str | tuple[str, ...] | None = None, grace: timedelta = timedelta(0)) -> Stream:
        """Let only the first record of each key, or of each `by`, pass in each period of event time.

        Periods are as long as `within`, and aligned to 1970. The first is that in log order; where another partition's record, read in a
        later batch, turns out to be earlier, the one that passed has passed: then the stream depends on arrival, and is marked so. What has
        been seen is kept in a table under this name. Records without a value are left out, those of a period that is over, and
        `grace` too, are dropped and counted. Raises `DefinitionError` for Changes, and what `group_by` and `materialized_as` raise.
        """
        where = here()
        if is_change(self.node):
            raise DefinitionError(f"{where}: dedupe wants records, and these are Changes: a table has one row a key already")
        group = self.group_by_key().group
        if by is not None:
            texts = texts_of(by, "by", f"{where}: dedupe")
            named = {text if text.isidentifier() else f"by{n}": text for n, text in enumerate(texts)}
            group = grouped_by((), named, self._scope(), where, "dedupe")
        check_own((column for column, _ in group), "first", where, "dedupe")
        spaces = (("key", self.key), ("value", self.value))
        key, value = ("named_struct(" + ", ".join(f"'{c}', {space}.`{c}`" for c in row.names) + ")" for space, row in spaces)
        seen = first(f"named_struct('key', CASE WHEN key IS NOT NULL THEN {key} END, 'value', {value})")
        qualified = Scope(self._scope().namespaces)  # a column may be called `value`, as the record is
        there = nodes.Filter(parent=self.node, condition=parse_predicate("value IS NOT NULL", qualified, where), location=where)
        windows = TimeWindows(within, within, grace)
        kept = _aggregate(self._with(there), group, windows, {"first": seen}, where, qualified).materialized_as(name)
        fresh = kept.to_stream().filter("old.first IS NULL AND new.first IS NOT NULL")
        scope = fresh._scope()
        keys, values = (named_exprs({c: f"new.first.`{space}`.`{c}`" for c in row.names}, scope, where) for space, row in spaces)
        keyed = parse_predicate("new.first.key IS NOT NULL", scope, where)
        return self._with(nodes.Map(parent=fresh.node, key_columns=keys, columns=values, keyed=keyed, location=where))

    def process(
        self,
        function: Callable[[Record, Context], object],
        /,
        *,
        children: Mapping[str, str] | None = None,
        stores: Mapping[str, StoreShape] | None = None,
        punctuators: Mapping[str, Callable[[Record, Context], object]] | None = None,
        version: str | None = None,
    ) -> Processed:
        """Call a function of your own for each record, key by key in log order: it puts into named stores, and forwards to named children.

        It gets the record and a context: `context.store(name)` for what it keeps of the record's key, `context.forward(row, to=child)`.
        `children` gives the columns of each child's rows, by DDL; they go on under the record's key and times. Each of the `stores` is a
        table of the app under its name, to be read, joined and rewound as any other. A record on which the function raises is quarantined,
        and then nothing was put or forwarded; one without a key is dropped and counted. What the function does must follow from what it is
        given alone: no clock, no random number, nothing kept elsewhere. Plans know it by its `version` or closure, as they do a `wt.udf`.

        `punctuators` are functions by name that are called for a key once its time has come: `context.schedule(name, at=time)`. They are
        called when the stream time of the record's partition has reached it, at its place in log order, before all records of that time:
        what a punctuator does follows from the records (and advances), not from when that was noticed. Where it raises, that is
        quarantined, and it isn't called again. Scheduled `by="wall_clock"`, they are called once the clock has passed the time, where that
        was noticed: the place is recorded, and a replay calls them there.

        Without stores and punctuators it is pure. With them it is pure where each key is of one partition; else it depends on arrival, and
        is marked so.

        Raises `DefinitionError` for what can't be called so, for Changes and for neither children nor stores; `SchemaError` for bad names
        and DDL; `DuplicateName` for a store's name that a table has.

        >>> import watertable as wt
        >>> def visit(record, context):
        ...     visits = context.store("visits")
        ...     seen = (visits.get() or {"n": 0})["n"]
        ...     visits.put({"n": seen + 1})
        ...     context.forward({"page": record.value["page"]}, to="again" if seen else "first")
        >>> app = wt.App("site")
        >>> views = app.topic("views", key="who STRING", value="page STRING").stream()
        >>> stores, children = {"visits": wt.key_value_store("n BIGINT")}, {"first": "page STRING", "again": "page STRING"}
        >>> made = views.process(visit, stores=stores, children=children)
        >>> made["again"].value, made.tables["visits"].value
        (Schema('`page` STRING'), Schema('`n` BIGINT'))
        """
        return self._processed(function, children, stores, punctuators, version, "process", here())

    def process_values(
        self,
        function: Callable[[Record, Context], object],
        /,
        *,
        value: str,
        stores: Mapping[str, StoreShape] | None = None,
        punctuators: Mapping[str, Callable[[Record, Context], object]] | None = None,
        version: str | None = None,
    ) -> Stream:
        """Call a function of your own for each record, as `process` does; what it forwards are rows of `value`, in one stream."""
        made = self._processed(function, {"values": value}, stores, punctuators, version, "process_values", here())
        return made["values"]

    def _processed(
        self, function: object, children: Mapping[str, str] | None, stores: Mapping[str, StoreShape] | None,
        punctuators: Mapping[str, object] | None, version: str | None, operator: str, where: str,
    ) -> Processed:  # fmt: skip
        if is_change(self.node):
            raise DefinitionError(f"{where}: {operator} wants records, and these are Changes: map_values them first")
        check_key(self.key, where, operator)
        processor = processor_of(function, children, stores, punctuators, version, operator, where)
        made = nodes.Process(parent=self.node, processor=processor, operator=operator, location=where)
        tables_: dict[str, tables.Table] = {}
        for name, shape in processor.stores:
            check_columns(entry_key(self.key, name, shape, where), shape.value, where)
            kept = nodes.Stored(parent=nodes.Written(parent=made, store=name, location=where), location=where)
            tables_[name] = tables.Table(self.app, kept).materialized_as(name)
        forwarded = {name: self._with(nodes.Forwarded(parent=made, child=name, location=where)) for name, _ in processor.children}
        return Processed(forwarded, tables_)

    def group_by(self, *columns: str, **named: str) -> GroupedStream:
        """Group by columns, or by named expressions; a record with a null in its group is dropped and counted."""
        where = here()
        return GroupedStream(self, grouped_by(columns, named, self._scope(), where, "group_by"))

    def group_by_key(self) -> GroupedStream:
        """Group by the key as it is."""
        where = here()
        check_key(self.key, where, "group_by_key")
        return GroupedStream(self, tuple((c.name, parse(f"key.`{c.name}`", self._scope(), where)) for c in self.key))

    def _join(
        self, how: How, other: tables.Table | Stream, on: str | tuple[str, ...] | None, within: JoinWindows | timedelta | None,
        columns: dict[str, str], where: str, grace: timedelta | None,
    ) -> Stream:  # fmt: skip
        what = f"{where}: {how.operator}"
        if isinstance(other, Stream):
            if grace is not None:
                raise DefinitionError(f"{what}: grace= is for versioned tables; of two streams it is in within=wt.join_windows(...)")
            return self._pair(how, other, on, within, columns, where)
        if within is not None:
            raise DefinitionError(f"{what}: within= is for streams; a table has the row that it has when the record arrives")
        return self._look_up(how, other, on, columns, where, grace)

    def _look_up(
        self, how: How, table: tables.Table, on: str | tuple[str, ...] | None, columns: dict[str, str], where: str, grace: timedelta | None
    ) -> Stream:
        what = how.operator
        if not isinstance(table, tables.Table):
            raise DefinitionError(f"{where}: {what} wants a table: make one of the stream with to_table, or an aggregation")
        check_same_app(self.app, table.app, f"{where}: {what} wants a table of the same app")
        if table.name is None:
            raise DefinitionError(f"{where}: {what} wants a table with a name: put .materialized_as(name) after it; its rows must be kept")
        check_found_by_key(table.node, where, what)
        made = named_exprs(columns, lookup_scope(self.node, table.node), where)
        texts = () if on is None else texts_of(on, "on", f"{where}: {what}")
        exprs = [parse(text, self._scope(), where) for text in texts]
        own = [(text, expr.type) for text, expr in zip(texts, exprs, strict=True)]
        check_same_key(own if texts else self.key, table.key, where, what)
        wanted = tuple(zip(table.key.names, exprs, strict=True)) if texts else None
        node = nodes.StreamJoin(
            parent=self.node, how=how, table=table.name, right=table.node, on=wanted, columns=made, location=where
        )  # fmt: skip
        if grace is None:
            return self._with(node)
        check_waits(self.node, table.node, grace, where, what)
        return self._with(
            nodes.WaitingJoin(
                parent=self.node, how=how, table=table.name, right=table.node, on=wanted, columns=made, grace=grace, location=where
            )
        )

    def _pair(
        self, how: How, right: Stream, on: str | tuple[str, ...] | None, within: JoinWindows | timedelta | None, columns: dict[str, str],
        where: str,
    ) -> Stream:  # fmt: skip
        what = how.operator
        check_same_app(self.app, right.app, f"{where}: {what} wants two streams of one app")
        if on is not None:
            raise DefinitionError(f"{where}: {what}: streams pair by their keys: select_key before it, not on=")
        if within is None:
            raise DefinitionError(f"{where}: {what} of two streams wants within=wt.join_windows(before=..., after=..., grace=...)")
        check_same_key(self.key, right.key, where, what)
        check_key(self.key, where, what)
        for side, value in (("left", self.value), ("right", right.value)):
            unsorted = [c.name for c in value if not sortable(c.type)]
            if unsorted:
                raise DefinitionError(f"{where}: {what}: {side}.{unsorted[0]} holds a MAP, which has no order: map_values before it")
        made = named_exprs(columns, pair_scope(self.node, right.node), where)
        windows = JoinWindows(within, within, timedelta(0)) if isinstance(within, timedelta) else within
        if not isinstance(windows, JoinWindows):
            raise DefinitionError(f"{where}: {what}: within= wants wt.join_windows(...) or a duration; got {within!r}")
        if how is How.INNER:
            return self._with(nodes.StreamStreamJoin(left=self.node, right=right.node, within=windows, columns=made, location=where))
        return self._with(nodes.OuterStreamJoin(left=self.node, right=right.node, within=windows, how=how, columns=made, location=where))

    def _scope(self) -> Scope:
        return scope_of(self.node)

    def _with(self, node: nodes.Stream) -> Stream:
        return Stream(self.app, node)


@dataclass(frozen=True, slots=True)
class Processed:
    """Hold what a processor makes: the streams of its children, `made["child"]`, and the tables of its stores, by name."""

    children: Mapping[str, Stream]
    tables: Mapping[str, tables.Table]

    def __getitem__(self, child: str) -> Stream:
        """Give a child's stream; raise `DefinitionError` for one that wasn't declared."""
        if child not in self.children:
            raise DefinitionError(f"{here()}: no child {child!r}; children: {', '.join(self.children) or 'none'}")
        return self.children[child]


class _Branched(dict[str, "Stream"]):
    """Hold branches by name; one that there isn't is refused as a processor's child is."""

    def __missing__(self, name: str) -> Stream:
        raise DefinitionError(f"{here()}: no branch {name!r}; branches: {', '.join(self) or 'none'}")


@dataclass(slots=True)
class Branches:
    """Collect the branches of a split; end with `default_branch` or `no_default_branch`."""

    stream: Stream
    _taken: list[tuple[str, str]] = field(default_factory=list)

    def branch(self, name: str, condition: str) -> Branches:
        """Send to `name` the records for which the condition is the first true one."""
        where = here()
        parse_predicate(condition, self.stream._scope(), where)
        self._taken.append((self._free(name, where), condition))
        return self

    def default_branch(self, name: str = "default") -> dict[str, Stream]:
        """Send the rest to one more branch, and give all branches by name."""
        where = here()
        return self._streams([*self._taken, (self._free(name, where), "TRUE")], where)

    def no_default_branch(self) -> dict[str, Stream]:
        """Drop the rest, and give all branches by name."""
        return self._streams(self._taken, here())

    def _free(self, name: str, where: str) -> str:
        """Give a name that no branch has yet; raise `DuplicateName` for one that is taken."""
        check_text(name, "name", f"{where}: branch")
        if name in dict(self._taken):
            raise DuplicateName(f"{where}: there is already a branch {name!r}")
        return name

    def _streams(self, branches: list[tuple[str, str]], where: str) -> dict[str, Stream]:
        streams = _Branched()
        earlier: list[str] = []
        for name, text in branches:
            condition = closed(text)
            # the earlier ones come first: of what they take, this condition is never evaluated, and so can't fail
            alone = " AND ".join([*earlier, f"COALESCE(({condition}), FALSE)"])
            predicate = parse_predicate(alone, self.stream._scope(), where)
            streams[name] = self.stream._with(nodes.Filter(parent=self.stream.node, condition=predicate, location=where))
            earlier.append(f"NOT COALESCE(({condition}), FALSE)")
        return streams


@dataclass(frozen=True, slots=True)
class GroupedStream:
    """Hold a grouped stream, to be windowed or aggregated."""

    stream: Stream
    group: Named

    def windowed_by(self, windows: Windows, *, emit: str = "on_update") -> WindowedStream:
        """Cut each group into windows of event time.

        With `emit="on_close"` the table shows a window's row once the window has closed, as `Table.suppress` does (KIP-825). Raises
        `DefinitionError` for another `emit`.
        """
        return WindowedStream(self.stream, self.group, _checked(windows, here()), _emitted(emit, here()))

    def agg(self, **aggregates: Aggregation) -> tables.Table:
        """Fold each group into one row of named aggregates."""
        return _aggregate(self.stream, self.group, None, aggregates, here())

    def count(self, name: str = "count") -> tables.Table:
        """Count the records of each group."""
        where = here()
        return _aggregate(self.stream, self.group, None, counted(name, where), where)

    def reduce(self, **columns: str) -> tables.Table:
        """Fold each group in log order into one of its records' kind: each column by a step over `acc`, the row so far, and the record.

        It begins with the first record; the columns that are named are those of the row. The state keeps what the steps read of every
        record; one without a value is skipped. A step that fails makes its column null.
        """
        return _reduced(self.stream, self.group, None, columns, here())

    def cogroup(self, **aggregates: Aggregation) -> CogroupedStream:
        """Begin a row that several grouped streams fold into, each by its own aggregates; the key takes this one's names."""
        return CogroupedStream(((self, aggregates),), None, here())


@dataclass(frozen=True, slots=True)
class WindowedStream:
    """Hold a grouped and windowed stream, to be aggregated."""

    stream: Stream
    group: Named
    windows: Windows
    on_close: bool = False

    def agg(self, **aggregates: Aggregation) -> tables.Table:
        """Fold each group's window into one row of named aggregates, keyed by the group, window_start and window_end."""
        return _shown(_aggregate(self.stream, self.group, self.windows, aggregates, here()), self.on_close)

    def count(self, name: str = "count") -> tables.Table:
        """Count the records of each group's window."""
        where = here()
        return _shown(_aggregate(self.stream, self.group, self.windows, counted(name, where), where), self.on_close)

    def reduce(self, **columns: str) -> tables.Table:
        """Fold each group's window in log order into one of its records' kind: each column by a step over `acc`, the row so far.

        It begins with the first record; the columns that are named are those of the row. The state keeps what the steps read of every
        record; one without a value is skipped. A step that fails makes its column null.
        """
        return _shown(_reduced(self.stream, self.group, self.windows, columns, here()), self.on_close)


@dataclass(frozen=True, slots=True)
class CogroupedStream:
    """Hold grouped streams that fold into one row; end with `agg`."""

    inputs: tuple[tuple[GroupedStream, dict[str, Aggregation]], ...]
    windows: Windows | None
    where: str
    on_close: bool = False

    def cogroup(self, grouped: GroupedStream, /, **aggregates: Aggregation) -> CogroupedStream:
        """Add a grouped stream; raise `DefinitionError` when its key has other types, or an aggregate's name is taken."""
        where, (first, _) = here(), self.inputs[0]
        if not isinstance(grouped, GroupedStream):
            raise DefinitionError(f"{where}: cogroup wants a grouped stream: stream.group_by(...); got a {type(grouped).__name__}")
        mine, theirs = (Schema.of((name, expr.type) for name, expr in g.group) for g in (first, grouped))
        check_same_key(mine, theirs, where, "cogroup")
        check_same_app(first.stream.app, grouped.stream.app, f"{where}: cogroup wants streams of one app")
        made = {name.lower() for _, other in self.inputs for name in other}
        taken = sorted(name for name in aggregates if name.lower() in made)
        if taken:
            raise DuplicateName(f"{where}: cogroup: another stream already makes {', '.join(taken)}; each stream makes its own columns")
        return CogroupedStream((*self.inputs, (grouped, aggregates)), self.windows, self.where, self.on_close)

    def windowed_by(self, windows: Windows, *, emit: str = "on_update") -> CogroupedStream:
        """Cut each group into windows of event time, the same for all streams; `emit` as for one stream."""
        return CogroupedStream(self.inputs, _checked(windows, here()), self.where, _emitted(emit, here()))

    def agg(self) -> tables.Table:
        """Fold all streams: a row for each group that any of them has; where one had no record, its counts are 0, the rest is null."""
        where = here()
        made = [_aggregate(grouped.stream, grouped.group, self.windows, aggregates, where).node for grouped, aggregates in self.inputs]
        node = nodes.Cogroup(inputs=tuple(n for n in made if isinstance(n, nodes.Aggregate)), location=where)
        check_kept([aggregate for one in node.inputs for aggregate in one.aggregates], where)
        check_columns(plan.key_of(node), plan.value_of(node), where)
        return _shown(tables.Table(self.inputs[0][0].stream.app, node), self.on_close)


def _checked(windows: Windows, where: str) -> Windows:
    """Return windows; raise `DefinitionError` for anything else."""
    if not isinstance(windows, Windows):
        raise DefinitionError(f"{where}: windowed_by wants windows, such as wt.tumbling(hours=1); got {windows!r}")
    return windows


def _emitted(emit: str, where: str) -> bool:
    """Tell whether rows are shown once their windows have closed."""
    if emit not in ("on_update", "on_close"):
        raise DefinitionError(f"{where}: emit={emit!r}; choose on_update, on_close")
    return emit == "on_close"


def _shown(table: tables.Table, on_close: bool) -> tables.Table:
    return table.suppress(until_window_closes()) if on_close else table


def _aggregate(
    stream: Stream, group: Named, windows: Windows | None, aggregates: dict[str, Aggregation], where: str, scope: Scope | None = None
) -> tables.Table:
    scope = scope or scope_of(stream.node)
    bound = bound_aggregates(aggregates, where, lambda name, aggregation: bind(name, aggregation, scope, where))
    node = nodes.Aggregate(parent=stream.node, group=group, windows=windows, aggregates=bound, location=where)
    with placed(where):
        check_columns(plan.key_of(node), plan.value_of(node), where)
    return tables.Table(stream.app, node)


def _reduced(stream: Stream, group: Named, windows: Windows | None, columns: dict[str, str], where: str) -> tables.Table:
    if is_change(stream.node):
        raise DefinitionError(f"{where}: reduce wants records, and these are Changes: map_values them first, or group_by the table itself")
    return tables.reduced(_aggregate(stream, group, windows, tables.reducing(columns, group, where), where), columns, where)
