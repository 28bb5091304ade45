"""Give tables their operators, by the names that Kafka Streams has for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from watertable.dsl import elapsed, streams
from watertable.dsl.building import bound_aggregates, check_same_app, check_steps, counted, grouped_by, named_exprs
from watertable.dsl.definitions import check_columns, check_found_by_key, check_own, check_same_key, check_text, here, identifier, texts_of
from watertable.errors import DefinitionError
from watertable.plan import nodes, plan
from watertable.plan.aggregates import Aggregation, bind_rows, held_row, row_count, sortable
from watertable.plan.exactness import check_exact, reads_of
from watertable.plan.plan import TableDef
from watertable.plan.purity import told_out_of_time
from watertable.plan.scopes import join_scope, scope_of
from watertable.plan.stages import How, Named
from watertable.plan.windows import UnlimitedWindows, UntilTimeLimit, UntilWindowCloses, check_duration, shape_of
from watertable.schema import Schema
from watertable.sql.expressions import Scope, parse, parse_negation, parse_predicate

if TYPE_CHECKING:
    from watertable.dsl.app import App

REDUCED: Final = "reduced"
"""Names the struct that a reduction folds, before its columns are taken out of it."""


@dataclass(frozen=True, slots=True)
class Table:
    """Hold a table: rows by key, a fold of the records above."""

    app: App
    node: nodes.Table
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
        return Table(self.app, nodes.TableFilter(parent=self.node, condition=predicate, location=where))

    def filter_not(self, condition: str) -> Table:
        """Keep the rows for which the condition is false or null."""
        where = here()
        predicate = parse_negation(condition, scope_of(self.node), where)
        return Table(self.app, nodes.TableFilter(parent=self.node, condition=predicate, location=where))

    def map_values(self, **columns: str) -> Table:
        """Make new value columns from each row; the key stays."""
        where = here()
        made = named_exprs(columns, scope_of(self.node), where)
        check_columns(self.key, Schema.of((n, e.type) for n, e in made), where)
        return Table(self.app, nodes.TableMapValues(parent=self.node, columns=made, location=where))

    def join(self, other: Table, /, *, on: str | tuple[str, ...] | None = None, **columns: str) -> Table:
        """Join with another table by key: a row of these expressions for each key that both have.

        Columns are named `left.x`, `right.x` and `key.x`, where `left` is this table. The keys must have the same types, and take the
        names of this table's. With `on`, an expression over this table's row for each of the other's key columns, each row is joined
        with the row that it names (a foreign-key join); the key is this table's. Raises `DefinitionError` when the keys or windows differ,
        and, with `on`, for tables without a name, and where a sum of floating point in their rows is read.
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
        self._check_other(other, how.operator, where)
        check_same_key(self.key, other.key, where, how.operator)
        for table in (self, other):
            check_found_by_key(table.node, where, how.operator)
        windows = [plan.windows_of(table.node) for table in (self, other)]
        if len({w and shape_of(w) for w in windows}) != 1:
            mine, theirs = (w or "none" for w in windows)
            raise DefinitionError(f"{where}: {how.operator} wants the same windows: {mine} here, {theirs} there")
        made = named_exprs(columns, join_scope(self.node, other.node), where)
        check_columns(self.key, Schema.of((n, e.type) for n, e in made), where)
        return Table(self.app, nodes.TableJoin(how=how, left=self.node, right=other.node, columns=made, location=where))

    def _check_other(self, other: object, operator: str, where: str) -> None:
        """Raise `DefinitionError` for what is no table of this app: a stream has keys and values as well, but no rows."""
        if not isinstance(other, Table):
            raise DefinitionError(f"{where}: {operator} wants a table: make one of the stream with to_table, or an aggregation")
        check_same_app(self.app, other.app, f"{where}: {operator} wants two tables of one app")

    def _join_on(self, how: How, other: Table, on: str | tuple[str, ...], columns: dict[str, str], where: str) -> Table:
        what = how.operator
        self._check_other(other, what, where)
        scope, own = scope_of(self.node), Scope({"key": self.key}, bare=("key",))
        theirs = Scope({"key": other.key}, bare=("key",))
        texts = texts_of(on, "on", f"{where}: {what}")
        named = tuple((f"__on{n}", parse(text, scope, where)) for n, text in enumerate(texts))
        check_same_key([(text, expr.type) for text, (_, expr) in zip(texts, named, strict=True)], other.key, where, what)
        made = named_exprs(columns, join_scope(self.node, other.node), where)
        check_columns(self.key, Schema.of((n, e.type) for n, e in made), where)
        keyed = tuple((c.name, parse(f"key.`{c.name}`", own, where)) for c in self.key)
        nothing = tuple((c.name, parse(f"CAST(NULL AS {c.type.sql()})", Scope({}), where)) for c in self.key)
        foreign = tuple((name, parse(f"key.`{c.name}`", theirs, where)) for (name, _), c in zip(named, other.key, strict=True))
        left, right = (
            nodes.ForeignSide(
                parent=table._changes(what, where), group=group, aggregates=(), optional=optional, location=where,
                rows=held_row(f"__{side}", table.value, [e for _, e in made], scope_of(table.node), where),
            ) for side, table, group, optional in (
                ("left", self, named + keyed, tuple(name for name, _ in named) if how is How.LEFT else ()),
                ("right", other, foreign + nothing, self.key.names),
            )
        )  # fmt: skip
        for side in (left, right):
            check_exact(
                side.parent.table, side.parent.parent, [*(expr for _, expr in side.group), *reads_of([side.rows])], f"{where}: {what}"
            )
        return Table(self.app, nodes.ForeignJoin(how=how, left=left, right=right, columns=made, location=where))

    def suppress(self, until: UntilWindowCloses | UntilTimeLimit, /) -> Table:
        """Show a row only once its window has closed, or a changed row at most once in a while (KIP-328).

        `until_window_closes()` is of windowed tables: a row shows when every partition that feeds it has passed its window. The table's key
        has the window's bounds as columns; it has no windows itself. `to_stream` of it gives each window's result once. The row's event
        time is the last moment of its window. Raises `DefinitionError` for a table without windows, and for windows that never close.

        `until_time_limit(limit)` is of any table with a name: a row that changed shows at the end of the stretch of stream time that it
        changed in, as it is then; so does its deletion. Raises `DefinitionError` for a table without a name, as `to_stream` does, and for a
        negative limit; zero is no limit.
        """
        where = here()
        if isinstance(until, UntilTimeLimit):
            if until.limit < timedelta(0):
                raise DefinitionError(f"{where}: suppress: a time limit must not be negative; got {until.limit}")
            if not until.limit:
                return self
            return Table(self.app, elapsed.settled(self._changes("suppress", where), until.limit, where))
        if not isinstance(until, UntilWindowCloses):
            raise DefinitionError(f"{where}: suppress wants wt.until_window_closes() or wt.until_time_limit(...); got {until!r}")
        windows = plan.windows_of(self.node)
        if windows is None:
            raise DefinitionError(
                f"{where}: suppress wants a table of windows, with windowed_by(...) above it, the same in all streams of a merge: other "
                "rows are never final; wt.until_time_limit(...) shows their changes once in a while"
            )
        if isinstance(windows, UnlimitedWindows):
            raise DefinitionError(f"{where}: suppress: a window that is {windows} never closes, so no row would ever show")
        return Table(self.app, nodes.Latest(parent=nodes.FinalRows(parent=self.node, location=where), location=where))

    def ttl(self, duration: timedelta, /) -> Table:
        """Let a row go that hasn't changed for a duration of stream time: a tombstone deletes it, at the moment when the time is over.

        Stream time is that which every partition that feeds the table has reached. A key that comes back has a row again, as the table
        above has it. Raises `DefinitionError` for a duration that isn't longer than zero, and for a table without a name, as `to_stream`
        does.
        """
        where = here()
        check_duration(duration, "a time to live")
        if duration <= timedelta(0):
            raise DefinitionError(f"{where}: a time to live must be longer than zero; got {duration}")
        return Table(self.app, elapsed.mortal(self._changes("ttl", where), duration, where))

    def materialized_as(self, name: str, *, description: str = "", history: timedelta | None = None) -> Table:
        """Keep the table under a name: it becomes a Delta table, an asset, and something to read.

        With a `history`, it is versioned (KIP-889, KIP-914): of a key's records the last by event time is its row, and the versions of the
        row stay for as long as the history says, for joins as of the event time. A record that comes out of order takes its place in the
        history, and is no Change; one that is older than the history, by the stream time of its partition, is dropped and counted.

        Raises `DefinitionError` for a history that isn't longer than zero, and for one of anything but the last records of a key: of an
        aggregate, a join, windows or a store, of the changes of one, and of what `ttl` or `until_time_limit` shows. Raises `DuplicateName`
        for a name that is taken.
        """
        where = here()
        identifier(name, "table", where)
        check_text(description, "description", f"{where}: table {name!r}")
        node = self.node if history is None else self._versioned(self.node, history, where)
        self.app._add_table(TableDef(name=name, node=node, description=description, location=where))
        return Table(self.app, node, name)

    def _versioned(self, node: nodes.Table, history: timedelta, where: str) -> nodes.Table:
        """Keep a table's rows by event time, below the filters and columns on top of them."""
        check_duration(history, "history=")
        if history <= timedelta(0):
            raise DefinitionError(f"{where}: a history must be longer than zero; got {history}")
        if isinstance(node, nodes.TableFilter | nodes.TableMapValues):
            return replace(node, parent=self._versioned(node.parent, history, where))
        if not isinstance(node, nodes.Latest) or isinstance(node, nodes.Stored) or plan.windows_of(node) is not None:
            raise DefinitionError(
                f"{where}: history= is of tables that keep a key's last value: topic.table() and stream.to_table(); "
                "the row of an aggregate, a join or a window is of many event times, and so is what ttl or until_time_limit shows"
            )
        if (told := told_out_of_time(node.parent)) is not None:
            raise DefinitionError(
                f"{where}: history= is of a topic's records, each at its own event time, and the changes of {told.table} ({told.location}) "
                "are on the way: what a late record changes would not show; keep a history of the records, or leave history= out"
            )
        unsorted = [c.name for c in plan.value_of(node) if not sortable(c.type)]
        if unsorted:
            raise DefinitionError(
                f"{where}: history= can't keep {', '.join(unsorted)}: values with a MAP in them have no order; leave it out"
            )
        return nodes.Versioned(parent=node.parent, is_source=node.is_source, history=history, location=node.location)

    def to_stream(self) -> streams.Stream:
        """Stream the table's changes: one Change(old, new) per source record, in log order.

        Raises `DefinitionError` for a table without a name: its old rows must be kept somewhere (KIP-1111).
        """
        return streams.Stream(self.app, self._changes("to_stream", here()))

    def group_by(self, *columns: str, **named: str) -> GroupedTable:
        """Group the rows by columns, or by named expressions; a row with a null in its group is left out and counted.

        Raises `DefinitionError` for a table without a name, as `to_stream` does, and, here or in `agg`, where a sum of floating point in
        its rows is read, or filters them: what leaves a group must be exactly what entered it.
        """
        where = here()
        group = grouped_by(columns, named, scope_of(self.node), where, "group_by")
        grouped = GroupedTable(self, group, self._changes("group_by", where))
        check_exact(grouped.changes.table, self.node, [expr for _, expr in group], f"{where}: group_by")
        return grouped

    def _changes(self, operator: str, where: str) -> nodes.ToStream:
        if self.name is None:
            raise DefinitionError(f"{where}: {operator} wants a table with a name: put .materialized_as(name) before it")
        return nodes.ToStream(table=self.name, parent=self.node, location=where)


@dataclass(frozen=True, slots=True)
class GroupedTable:
    """Hold the grouped rows of a table, to be aggregated: a row that changes leaves its old group and enters its new one."""

    table: Table
    group: Named
    changes: nodes.ToStream

    def agg(self, **aggregates: Aggregation) -> Table:
        """Fold the rows of each group into one row of named aggregates; a group without rows is gone."""
        return self._agg(aggregates, here())

    def count(self, name: str = "count") -> Table:
        """Count the rows of each group."""
        where = here()
        return self._agg(counted(name, where), where)

    def reduce(self, **columns: str) -> Table:
        """Fold the rows of each group, in the order of their keys, into one of their kind: each column by a step over `acc` and the row.

        A row that leaves is as if it had never been there: no subtractor is needed. The state keeps what the steps read of every row.
        """
        where = here()
        return reduced(self._agg(reducing(columns, self.group, where), where), columns, where)

    def _agg(self, aggregates: dict[str, Aggregation], where: str) -> Table:
        scope, key = scope_of(self.table.node), self.table.key
        bound = bound_aggregates(aggregates, where, lambda name, aggregation: bind_rows(name, aggregation, scope, key, where))
        rows = row_count(scope, where)
        check_exact(self.changes.table, self.table.node, reads_of(bound), f"{where}: group_by")
        node = nodes.TableAggregate(parent=self.changes, group=self.group, aggregates=bound, rows=rows, location=where)
        check_columns(plan.key_of(node), plan.value_of(node), where)
        return Table(self.table.app, node)


def reducing(columns: dict[str, str], group: Named, where: str) -> dict[str, Aggregation]:
    """Ask for a reduction by named steps; raise `DefinitionError` when there are none, or a column of the group has its name."""
    check_own((name for name, _ in group), REDUCED, where, "reduce")
    return {REDUCED: check_steps(columns, where)}


def reduced(table: Table, columns: Iterable[str], where: str) -> Table:
    """Take the columns of a reduction out of the struct that its fold makes."""
    scope = scope_of(table.node)
    made = tuple((name, parse(f"value.`{REDUCED}`.`{name}`", scope, where)) for name in columns)
    check_columns(table.key, Schema.of((n, e.type) for n, e in made), where)
    return Table(table.app, nodes.TableMapValues(parent=table.node, columns=made, location=where))
