"""Merge states and finish rows, in Spark: the algebra of `aggregates` as columns.

A table's state is a struct of fields, and each field merges by one associative, commutative operation. So partial states can be
computed anywhere (in a batch, in a tail, in a base) and merged once by key, in any grouping. `finish` turns a state into the row that
readers see. Everything is built-in columnar functions; the SQL is composed as text, once per topology, and parsed by Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from watertable.plan import plan
from watertable.plan.aggregates import (
    ARRIVED_PLACE,
    PLACE,
    TIMED_PLACE,
    ArrivedField,
    Merge,
    NumberedField,
    SketchField,
    StateField,
    TimedField,
    TopField,
)
from watertable.plan.nodes import ForeignJoin, Leaf, Stored
from watertable.plan.plan import Part, TableDef
from watertable.plan.stages import Beside, How, Match, Named, Project, Side, Stage, Where
from watertable.plan.windows import SessionWindows, SlidingWindows, Windows, microseconds
from watertable.schema import Column, Schema, Type, quote
from watertable.sql.expressions import Expr
from watertable.sql.terms import NAMESPACES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STRIDE: Final = 64
"""How many rows are merged one by one where states run forward; the square of it is about what a key has of a large batch."""

# An expression is read as `spark_sql` writes it: texts in quotes, the user's names in back-quotes, and of all other words that are also
# a namespace's a field comes after a dot, a function before a bracket. The rest are records, whole or before a column.
_REFERENCE: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'"""  # a string literal: left alone
    r"""|(?<![.`])`(?P<window>window)`(?!`)"""
    r"""|`[^`]*`"""  # a quoted name: left alone
    rf"""|(?<![.\w])(?P<name>{"|".join(NAMESPACES)})\b(?!\s*\()"""
)


def render(sql: str, columns: Mapping[str, str]) -> str:
    """Write an expression's SQL over these columns: a mapping from namespace to the SQL of the struct column that holds it.

    >>> render("value.`qty` * 2 + length('value.`qty`')", {"value": "c1"})
    "c1.`qty` * 2 + length('value.`qty`')"
    >>> render("value.`value` + key.`key`", {"value": "c1", "key": "c2"})
    'c1.`value` + c2.`key`'
    >>> render("named_struct('left', left(left.`left`, 1), 'all', left)", {"left": "c1"})
    "named_struct('left', left(c1.`left`, 1), 'all', c1)"
    """

    def swap(match: re.Match[str]) -> str:
        return columns.get(match["window"] or match["name"], match.group())

    return _REFERENCE.sub(swap, sql)


def state_struct(table: TableDef) -> Type:
    """Give the type of a table's state."""
    return Type("struct", fields=tuple(Column(f.name, f.type) for f in table.state))


def change_struct(table: TableDef) -> Type:
    """Give the type of a table's changelog column: key, state delta, and the stream time of the latest record in it."""
    key, state = Column("key", table.state_key.struct()), Column("state", state_struct(table))
    return Type("struct", fields=(key, state, Column("st", Type("timestamp"))))


def place(field: StateField | None = None) -> str:
    """Write the SQL of a record's place in log order, from the columns of its parts; what else a field goes by comes first."""
    parts = TIMED_PLACE if isinstance(field, TimedField) else ARRIVED_PLACE if isinstance(field, ArrivedField) else PLACE
    return "named_struct(" + ", ".join(f"'{c.name}', {quote(c.name)}" for c in parts) + ")"


def lifted(field: StateField, source: str) -> str:
    """Write the aggregate SQL that folds the contributions in `source` of one group of records into a field."""
    match field.merge:
        case Merge.SUM:
            return f"CAST(sum({source}) AS {field.type.sql()})"
        case Merge.MIN | Merge.MAX:
            return f"{field.merge}({source})"
        case Merge.UNION:
            return _cut(field, f"array_sort(collect_set({_member(field, source)}))")
        case Merge.LIST | Merge.TOP:
            return _ordered(field, f"collect_list({_at_place(field, source)})")
        case Merge.BAG:
            return _added_up(f"collect_list({source})")
        case Merge.LAST if isinstance(field, NumberedField):
            return f"max_by({source}, {source}.order)"
        case Merge.FIRST | Merge.LAST:
            pick = "max_by" if field.merge is Merge.LAST else "min_by"
            seen = f" FILTER (WHERE {source} IS NOT NULL)" if field.lift is not None else ""
            return f"{pick}(named_struct('order', {place(field)}, 'value', {source}), {place(field)}){seen}"


def single(field: StateField, source: str) -> str:
    """Write the SQL of the state that one record's contribution makes by itself."""
    match field.merge:
        case Merge.SUM | Merge.MIN | Merge.MAX:
            return source
        case Merge.UNION:
            return f"filter(array({_member(field, source)}), x -> x IS NOT NULL)"
        case Merge.BAG:
            return f"filter(array({source}), x -> x IS NOT NULL)"
        case Merge.LIST | Merge.TOP:
            return f"filter(array({_at_place(field, source)}), x -> x IS NOT NULL)"
        case Merge.LAST if isinstance(field, NumberedField):
            return source
        case Merge.FIRST | Merge.LAST:
            alone = f"named_struct('order', {place(field)}, 'value', {source})"
            return alone if field.lift is None else f"CASE WHEN {source} IS NOT NULL THEN {alone} END"


def merged(field: StateField, source: str, over: str = "") -> str:
    """Write the aggregate SQL that merges one state field of a group of states; `over` makes it a running one."""
    match field.merge:
        case Merge.SUM:
            return f"CAST(sum({source}){over} AS {field.type.sql()})"
        case Merge.MIN | Merge.MAX:
            return f"{field.merge}({source}){over}"
        case Merge.UNION:
            return _united(field, f"flatten(collect_list({source}){over})")
        case Merge.LIST | Merge.TOP:
            return _ordered(field, f"flatten(collect_list({source}){over})")
        case Merge.BAG:
            return _added_up(f"flatten(collect_list({source}){over})")
        case Merge.FIRST | Merge.LAST:
            pick = "max_by" if field.merge is Merge.LAST else "min_by"
            return f"{pick}({source}, {source}.order){over}"


def merged_state(table: TableDef) -> str:
    """Write the state that the states of a group of rows come to."""
    return state_sql((f, merged(f, f"state.{quote(f.name)}")) for f in table.state)


def upto(forward: str) -> str:
    """Write the window of the rows up to each one, in an order."""
    return f" OVER ({forward} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"


def run_forward(table: TableDef, rows: DataFrame, forward: str, into: str) -> DataFrame:
    """Merge the states of the rows up to each one, in an order, and put what each comes to beside it.

    Of sets and rankings that would be as much work as the square of the rows, since each of their arrays is merged with all before it. So
    they are merged of the last rows, and of what each so many came to before those; what is in both counts once.
    """
    whole = [f for f in table.state if f.merge in (Merge.UNION, Merge.TOP)]
    if whole:
        last = f" OVER ({forward} ROWS BETWEEN {_STRIDE - 1} PRECEDING AND CURRENT ROW)"
        near = (f"{merged(f, f'state.{quote(f.name)}', last)} AS {quote(f'_near_{f.name}')}" for f in whole)
        rows = rows.selectExpr("*", *near, f"row_number() OVER ({forward}) % {_STRIDE} = 0 AS _strides")
    before = f" OVER ({forward} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"

    def upto_here(field: StateField) -> str:
        if field not in whole:
            return merged(field, f"state.{quote(field.name)}", upto(forward))
        near = quote(f"_near_{field.name}")
        found = f"flatten(concat(collect_list(CASE WHEN _strides THEN {near} END){before}, array({near})))"
        if isinstance(field, TopField):  # none is in it more than twice; of structs, Spark compares each with each to find out
            return f"slice(array_distinct(slice(sort_array({found}, false), 1, {2 * field.limit})), 1, {field.limit})"
        return _united(field, found)

    return rows.selectExpr("*", f"{state_sql((f, upto_here(f)) for f in table.state)} AS {into}")


def state_sql(fields: Iterable[tuple[StateField, str]]) -> str:
    """Write fields of a state as one struct."""
    return "named_struct(" + ", ".join(f"'{f.name}', {sql}" for f, sql in fields) + ")"


def leaf_state(leaf: Leaf, write: Callable[[StateField, str], str]) -> str:
    """Write a leaf's state of contributions `l`: each field of the contribution's own part, or of the whole."""
    return state_sql((f, write(f, "l" if f.lift is None else f"l.{quote(f.name)}")) for f in plan.state_of(leaf))


def _member(field: StateField, source: str) -> str:
    """Write a member of a set: of floating point, the two zeros are one."""
    kind = field.type.element
    return f"({source} + CAST(0 AS {kind.sql()}))" if kind is not None and kind.kind in ("float", "double") else source


def _united(field: StateField, members: str) -> str:
    """Make a set of what sets hold between them."""
    return _cut(field, f"array_sort(array_distinct({members}))")


def _cut(field: StateField, array: str) -> str:
    """Keep as much of a sorted set as its sketch is long."""
    return f"slice({array}, 1, {field.limit})" if isinstance(field, SketchField) else array


def _at_place(field: StateField, source: str) -> str:
    """Write the element of a LIST or TOP that a contribution makes: beside its place in log order, null if it is null."""
    if isinstance(field, TopField):
        made = f"named_struct('by', {source}.by, 'order', {place()}, 'value', {source}.value)"
    else:
        made = f"named_struct('order', {place(field)}, 'value', {source})"
    return f"CASE WHEN {source} IS NOT NULL THEN {made} END"


def _ordered(field: StateField, array: str) -> str:
    """Put the elements of a LIST or TOP in their order, and leave out those beyond the limit."""
    return f"slice(sort_array({array}, false), 1, {field.limit})" if isinstance(field, TopField) else f"sort_array({array})"


def _added_up(array: str) -> str:
    """Add up the numbers of equal values in an array of a BAG's elements, and leave out what is zero then.

    Sorting brings equals together, and what is a run's is cut out where the next begins: one pass over the sorted array, where an
    aggregate that appends to an array would copy it for each element. A transform of one element binds what is used more than once.
    """
    starts = "filter(sequence(1, size(a)), i -> i = 1 OR NOT (a[i - 1].value <=> a[i - 2].value))"
    run = "slice(a, i, coalesce(get(b, j + 1), size(a) + 1) - i)"
    total = f"named_struct('value', a[i - 1].value, 'n', aggregate({run}, 0L, (n, e) -> n + e.n))"
    runs = f"transform(array({starts}), b -> transform(b, (i, j) -> {total}))[0]"
    added = f"transform(array(sort_array({array})), a -> CASE WHEN size(a) > 0 THEN filter({runs}, e -> e.n <> 0) ELSE a END)"
    return f"{added}[0]"


def done_with(table: TableDef, places: str) -> str:
    """Write a delta of what an outer join of streams keeps that marks the records at these places as paired or given."""
    fields = (f"'{f.name}', {places if f.name == plan.DONE else f'CAST(NULL AS {f.type.sql()})'}" for f in table.state)
    return f"named_struct({', '.join(fields)})"


def placed_in(table: TableDef, part: Part) -> list[str]:
    """Write the selects that put the key and state of one of a table's leaves in their places in the table's."""
    theirs = plan.kept_by(part.leaf).names
    key = ", ".join(f"'{mine}', key.{quote(name)}" for mine, name in zip(table.state_key.names, theirs, strict=True))
    fed = {name: f"state.{quote(own)}" for own, name in part.fields} | ({part.there: "TRUE"} if part.there is not None else {})
    state = ", ".join(f"'{f.name}', {fed.get(f.name) or f'CAST(NULL AS {f.type.sql()})'}" for f in table.state)
    return [f"named_struct({key}) AS key", f"named_struct({state}) AS state"]


def home(table: TableDef) -> str:
    """Write the part of a `key` under which states meet: all of it, but the group alone of a session, whose bounds move."""
    return "key" if table.sessions is None else _struct_of("key", table.key.names[:-2])


def company(table: TableDef) -> str:
    """Write the part of a `key` whose rows are made together: where states meet, but of a foreign-key join the foreign key alone.

    Of sliding windows it is the group, of a processor's store the key of its records.
    """
    names = _foreign(table) if table.sliding is None else table.key.names[:-2]
    names = plan.key_of(table.root.parent.parent).names if isinstance(table.root, Stored) else names
    return _struct_of("key", names) if names else home(table)


def _foreign(table: TableDef) -> tuple[str, ...]:
    """Name the columns of the foreign key in the keys of a foreign-key join's states; none in those of other tables."""
    return table.state_key.names[: -len(table.key)] if isinstance(table.root, ForeignJoin) else ()


def stays(table: TableDef) -> str | None:
    """Write the condition under which a `state` must be kept; None means always."""
    if isinstance(table.root, ForeignJoin):
        return " OR ".join(f"size(state.{quote(f.name)}) > 0" for f in table.state)
    return None if table.alive is None else render(table.alive.safe_sql, {"state": "state"})


def paired(table: TableDef, rows: DataFrame) -> DataFrame:
    """Put each left row of a foreign-key join beside the right row that it names: `key` is the left one, `state` holds `left` and `right`.

    Both are among the rows of their foreign key: the right one has no left key.
    """
    left, right = (f"state.{quote(f.name)}" for f in table.state)
    group = ", ".join(f"key.{quote(name)}" for name in _foreign(table))
    over = f"OVER (PARTITION BY {group})"
    named = rows.withColumn("_right", F.expr(f"any_value(get({right}, 0), true) {over}"))
    for name in [name for name in ("epoch", "seq") if name in rows.columns]:
        last = f"greatest({name}, max(CASE WHEN size({right}) > 0 THEN {name} END) {over})"
        named = named.withColumn(name, F.expr(last))
    both = f"named_struct('left', get({left}, 0).value, 'right', _right.value) AS state"
    others = [quote(c) for c in rows.columns if c not in ("key", "state")]
    return named.where(f"size({left}) > 0").selectExpr(f"{_struct_of('key', table.key.names)} AS key", both, *others)


def slid(table: TableDef, windows: SlidingWindows, rows: DataFrame) -> DataFrame:
    """Put the states of moments into their sliding windows: `key` is the group and the window."""
    key = f"{sliding_window(table, windows)} AS key"
    held = in_windows(table, windows, rows)
    return grouped(held, table.state, ("_group", "_end"), *_folds(table, rows)).selectExpr(key, "*").drop("_group", "_end")


def in_windows(table: TableDef, windows: SlidingWindows, rows: DataFrame) -> DataFrame:
    """Put each moment into all windows that hold it, from `__from` on: its row for each, with the window's `_group` and `_end`.

    Windows and moments meet by stretches of time as long as a window: one that holds a moment ends in the moment's stretch, or in the
    next one.
    """
    size, stretch = microseconds(windows.size), stretch_of(windows)
    wanted = brought(table, windows, rows).select("_group", "_end").distinct().withColumn("_in", F.expr(f"_end div {stretch}L"))
    at = "unix_micros(key.__at)"
    each = rows.selectExpr("*", f"{company(table)} AS _group", f"explode(array({at} div {stretch}L, {at} div {stretch}L + 1)) AS _in")
    holds = f"{at} BETWEEN _end - {size}L AND _end AND unix_micros(key.__from) <= _end"
    return each.join(wanted, ["_group", "_in"]).where(holds).drop("_in")


def brought(table: TableDef, windows: SlidingWindows, rows: DataFrame) -> DataFrame:
    """Give the windows that moments bring, two each, by `_group` and `_end`: those that end with them, and those that start after them."""
    size, at = microseconds(windows.size), "unix_micros(key.__at)"
    ends = f"filter(array(greatest({at}, {size}L), {at} + {size + 1000}L), e -> e >= unix_micros(key.__from))"
    return rows.selectExpr("*", f"{company(table)} AS _group", f"explode({ends}) AS _end")


def stretch_of(windows: SlidingWindows) -> int:
    """Give the length, in microseconds, of the stretches of time by which windows and moments meet."""
    return max(microseconds(windows.size), 1000)


def sliding_window(table: TableDef, windows: SlidingWindows) -> str:
    """Write the key of the window of a `_group` that ends at `_end`."""
    return _windowed("_group", table.key.names[:-2], f"timestamp_micros(_end - {microseconds(windows.size)}L)", "timestamp_micros(_end)")


def grouped(rows: DataFrame, fields: Iterable[StateField], by: Sequence[str], *folds: str) -> DataFrame:
    """Aggregate rows by columns: into numbers, in a map; into anything else Spark sorts them, and by a hash that is quicker.

    A hash is one number, and two of them seldom the same; structs are compared field by field.
    """
    made = [F.expr(fold) for fold in folds]
    if all(f.merge in (Merge.SUM, Merge.MIN, Merge.MAX) and f.type.kind not in ("string", "binary") for f in fields):
        return rows.groupBy(*by).agg(*made)
    return rows.groupBy(F.xxhash64(*by).alias("_hash"), *by).agg(*made).drop("_hash")


def gathered(sessions: SessionWindows, rows: DataFrame, fields: Sequence[StateField], *folds: str) -> DataFrame:
    """Gather sessions that are at most a gap apart: aggregate the rows of each group's, under the `key` that spans them.

    The rows' keys end with the bounds of what each is by itself. Put in the order of their starts, one begins a session if nothing before
    it in its group reaches near enough. So the whole group is gone through once, whatever its sessions are made of.
    """
    names = [field.name for field in rows.schema["key"].dataType.fields[:-2]]  # type: ignore[attr-defined]  # it's a struct
    found = in_sessions(sessions, rows.withColumn("_group", F.expr(_struct_of("key", names))), "PARTITION BY _group")
    whole = grouped(found, fields, ("_group", "_session"), *folds, "max(key.window_end) AS _end")
    key = _windowed("_group", names, "_session", "_end") + " AS key"
    return whole.selectExpr(key, "*").drop("_group", "_session", "_end")


def in_sessions(sessions: SessionWindows, rows: DataFrame, partition: str, counts: str = "TRUE", into: str = "_session") -> DataFrame:
    """Add the start of the session that each row belongs to; rows that `counts` leaves out are in none and bring none together."""
    gap = microseconds(sessions.gap)
    order = f"{partition} ORDER BY key.window_start, key.window_end"
    reached = f"max(CASE WHEN {counts} THEN key.window_end END) OVER ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    begins = f"{counts} AND COALESCE(unix_micros(key.window_start) > unix_micros({reached}) + {gap}L, TRUE)"
    upto = f"OVER ({order} RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"  # of the same bounds one begins, and all are in it
    started = rows.withColumn("_begins", F.expr(begins))
    first = f"max(CASE WHEN _begins THEN key.window_start END) {upto}"
    return started.withColumn(into, F.expr(f"CASE WHEN {counts} THEN {first} END")).drop("_begins")


def _folds(table: TableDef, rows: DataFrame) -> list[str]:
    """Write the aggregates that merge states; of the commits that touched them, the last.

    Along a lineage epoch and seq only grow, so each is its own maximum; that of a struct would turn a hash aggregate into a sort.
    """
    return [f"{merged_state(table)} AS state", *(f"max({name}) AS {name}" for name in ("epoch", "seq") if name in rows.columns)]


def _windowed(struct: str, names: Sequence[str], start: str, end: str) -> str:
    group = "".join(f"'{name}', {struct}.{quote(name)}, " for name in names)
    return f"named_struct({group}'window_start', {start}, 'window_end', {end})"


def _struct_of(struct: str, names: Sequence[str]) -> str:
    return "named_struct(" + ", ".join(f"'{name}', {struct}.{quote(name)}" for name in names) + ")"


def merge(table: TableDef, rows: DataFrame, *more: str) -> DataFrame:
    """Merge the states of each key: `key`, `state` (and `epoch`, `seq`: those of the commit that touched the key last) to one row a key.

    States of sessions are gathered first, and then have one key.
    """
    folds = [*_folds(table, rows), *more]
    if table.sessions is not None:
        return gathered(table.sessions, rows, table.state, *folds)
    return grouped(rows, table.state, ("key",), *folds)


def spread(table: TableDef, rows: DataFrame, *, each: bool = False) -> DataFrame:
    """Give each delta of a hopping table (`key`, `state`, `st`, `epoch`, `seq`) to every window that it is for.

    A record enters many windows, and those of one stretch of an advance enter the same: so a batch keeps one delta for all of them, whose
    key spans them, from the first one's window_start to the last one's window_end. Deltas of one span are merged before they are spread,
    unless the delta of `each` commit is wanted.
    """
    if (windows := _hopping(table)) is None:
        return rows
    return _in_each_window(table, windows, rows if each else merge(table, rows, "max(st) AS st"))


def _hopping(table: TableDef) -> Windows | None:
    """Give the windows of which a record enters many; None where a delta is for the one in its key."""
    windows = plan.folded_into(table.root)
    return None if windows is None or windows.per_record == 1 else windows


def _last_start(windows: Windows) -> str:
    return f"unix_micros(key.window_end) - {microseconds(windows.size)}L"


def _in_each_window(table: TableDef, windows: Windows, spans: DataFrame, wanted: str | None = None) -> DataFrame:
    """Give each delta to every window that it is for, those whose `_start`, in microseconds, is `wanted`."""
    starts = f"sequence(unix_micros(key.window_start), {_last_start(windows)}, {microseconds(windows.advance)}L)"
    each = spans.withColumn("_start", F.expr(f"explode({starts})"))
    each = each if wanted is None else each.where(wanted)
    end = f"timestamp_micros(_start + {microseconds(windows.size)}L)"
    return each.withColumn("key", F.expr(_windowed("key", table.key.names[:-2], "timestamp_micros(_start)", end))).drop("_start")


@dataclass(frozen=True, slots=True)
class Slices:
    """Cut time into so many slices of `step` microseconds from `first` on; whatever is before or after them is in the outermost."""

    first: int
    step: int
    number: int

    def of(self, time: str) -> str:
        """Write the number of the slice that a time in microseconds is in."""
        return f"CAST(greatest(0, least({self.number - 1}, ({time} - {self.first}L) div {self.step}L)) AS INT)"


def merge_by_time(table: TableDef, rows: DataFrame, slices: Slices) -> DataFrame:
    """Merge the states of windows, and deltas as `spread` takes them, to one row a window; each slice of time is a partition, in order.

    A delta goes to the slices that its windows start in, and is spread there: what is shuffled is deltas, and not all windows of each.
    """
    windows, first = _hopping(table), "unix_micros(key.window_start)"
    last = first if windows is None else _last_start(windows)
    of = F.expr(f"explode(sequence({slices.of(first)}, {slices.of(last)}))").alias("_slice")
    rows = rows.select("*", of).repartitionById(slices.number, F.col("_slice"))
    if windows is not None:
        spans = grouped(rows, table.state, ("_slice", "key"), *_folds(table, rows))
        rows = _in_each_window(table, windows, spans, f"{slices.of('_start')} = _slice")
    return grouped(rows, table.state, ("_slice", "key"), *_folds(table, rows)).drop("_slice")


def finish(table: TableDef, rows: DataFrame) -> DataFrame:
    """Add what readers see to absolute rows (`key`, `state`, ...): `row`, a struct of the table's columns, and `alive`.

    A row that isn't alive (deleted, or refused by a filter of the table) has a null `row`. An expression that fails gives null: a
    table's stages run where it is read, and there is no record to refuse any more. The states of a foreign-key join are paired first,
    those of sliding windows put into their windows: of a foreign key, or a group, all of them must be there.
    """
    rows = paired(table, rows) if isinstance(table.root, ForeignJoin) else rows
    rows = slid(table, table.sliding, rows) if table.sliding is not None else rows
    columns = [quote(c) for c in rows.columns]
    rows = leveled(rows, finishing(table, state="state", key="key", into="_v"))
    last = f"_v{len(table.stages)}"
    parts = [f"'{c.name}', key.{quote(c.name)}" for c in table.key] + [f"'{c.name}', {last}.{quote(c.name)}" for c in table.value]
    row = f"CASE WHEN {last} IS NOT NULL THEN named_struct({', '.join(parts)}) END AS row"
    return rows.selectExpr(*columns, f"{last} IS NOT NULL AS alive", row)


def leveled(rows: DataFrame, levels: Iterable[Sequence[str]]) -> DataFrame:
    """Add columns level by level, those of each over those of the levels before."""
    for level in levels:
        if level:
            rows = rows.selectExpr("*", *level)
    return rows


def finishing(table: TableDef, *, state: str, key: str, into: str, window: str = "_w") -> list[list[str]]:
    """Write the selects that take a state to the table's value: the last one's column is `<into><number of stages>`, null if dead."""
    spaces = {"state": state, "key": key, "window": window}
    levels = _finishing(table.alive, table.stages, table.key.names, spaces, into)
    if table.windows is not None:
        levels[0:0] = [[f"named_struct('start', {key}.window_start, 'end', {key}.window_end) AS {window}"]]
    return levels


def _finishing(
    alive: Expr | None, stages: Sequence[Stage], key: Sequence[str], spaces: Mapping[str, str], into: str
) -> list[list[str]]:  # fmt: skip
    there = f"{spaces['state']} IS NOT NULL"
    if alive is not None:
        there += f" AND ({render(alive.safe_sql, spaces)})"
    levels: list[list[str]] = []
    for number, stage in enumerate(stages, start=1):
        here = {**spaces, "value": f"{into}{number - 1}"} if number > 1 else spaces
        before = there if number == 1 else f"{into}{number - 1} IS NOT NULL"
        match stage:
            case Project():
                sql = f"CASE WHEN {before} THEN {named_struct(stage.columns, here)} END"
            case Where():
                sql = f"CASE WHEN {before} AND COALESCE({render(stage.condition.safe_sql, here)}, FALSE) THEN {here['value']} END"
            case Beside():
                left, right = (f"{here['state']}.{side}" for side in ("left", "right"))
                found = f"{before} AND {right} IS NOT NULL" if stage.how is How.INNER else before
                sql = f"CASE WHEN {found} THEN {named_struct(stage.columns, {**here, 'left': left, 'right': right})} END"
            case Match():
                sides = [_side(side, key, here, f"{into}{name}") for name, side in (("l", stage.left), ("r", stage.right))]
                levels += [a + b for a, b in zip_longest(*sides, fillvalue=[])]
                left, right = (f"{into}{name}{len(side.stages)}" for name, side in (("l", stage.left), ("r", stage.right)))
                found = {How.INNER: f"{left} IS NOT NULL AND {right} IS NOT NULL", How.LEFT: f"{left} IS NOT NULL",
                         How.OUTER: f"({left} IS NOT NULL OR {right} IS NOT NULL)"}[stage.how]  # fmt: skip
                sql = f"CASE WHEN {found} THEN {named_struct(stage.columns, {**here, 'left': left, 'right': right})} END"
        levels.append([f"{sql} AS {into}{number}"])
    return levels


def _side(side: Side, key: Sequence[str], spaces: Mapping[str, str], into: str) -> list[list[str]]:
    """Write the selects that take the state of a join to the value of one of its sides."""
    joined, own = spaces["state"], {**spaces, "state": f"{into}s", "key": f"{into}k"}
    state = "named_struct(" + ", ".join(f"'{mine}', {joined}.{quote(name)}" for mine, name in side.state) + ")"
    if side.there:
        state = f"CASE WHEN {' OR '.join(f'{joined}.{quote(name)}' for name in side.there)} THEN {state} END"
    names = ", ".join(f"'{mine}', {spaces['key']}.{quote(name)}" for mine, name in zip(side.key, key, strict=True))
    first = [f"{state} AS {own['state']}", f"named_struct({names}) AS {own['key']}"]
    return [first, *_finishing(side.alive, side.stages, side.key, own, into)]


def taken(struct: str, columns: Sequence[str], schema: Schema) -> str:
    """Write a struct of a schema with some of its columns alone; null where it is null."""
    if tuple(columns) == schema.names:
        return struct
    parts = ", ".join(f"'{name}', {struct}.{quote(name)}" for name in columns)
    return f"CASE WHEN {struct} IS NOT NULL THEN named_struct({parts}) END"


def named_struct(columns: Named, spaces: Mapping[str, str]) -> str:
    """Write named expressions as one struct, null where an expression would fail."""
    return "named_struct(" + ", ".join(f"'{name}', {render(expr.safe_sql, spaces)}" for name, expr in columns) + ")"
