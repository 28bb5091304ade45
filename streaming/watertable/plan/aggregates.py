"""Define aggregates by their algebra: what they keep, how two kept states merge, how a state becomes a value.

An aggregate is data, not code. Its state is a few fields; each field is *lifted* from a record by an expression and merged by one of
nine merges, all of them associative and commutative (LAST, FIRST, LIST and TOP because log order is total), so that a table is the
same for any cut of its records into batches. `subtract` tells whether a state can also forget a record.

    aggregate        state fields                                   value
    count()          n SUM of 1                                     n
    count(x)         n SUM of 1 where x is not null                 n
    sum(x)           s SUM of x                                     s
    avg(x)           s SUM of x, n SUM of 1 where x is not null     s / n
    min(x), max(x)   m MIN or MAX of x                              m
    first(x), last(x)  v FIRST or LAST (log order, x)               v.value
    count_distinct(x)  d UNION of {x}                               size(d)
    approx_count_distinct(x)  d UNION of {hash of x}, cut     an estimate of how many
    collect_set(x)   d UNION of {x}                                 d
    collect_list(x)  l LIST of (log order, x)                       the values of l
    aggregate(init, add)  l LIST of (log order, columns)         the fold of l
    top_k(k, by, x)  t TOP k of (by, log order, x)                  the values of t

The rows of a table come and go. There (`bind_rows`) sums take back what a row brought, and everything that can't subtract keeps a BAG: the
multiset of what the rows hold, to which a row adds one and from which it takes one. Rows have no place in log order; where order matters
(first, last, collect_list, equals in top_k) it is that of the rows' key. Every such state counts its rows, and is zero when they are gone.

As in SQL, null inputs are skipped, and the two zeros of floating point are equals: where one of them stays, it is 0.0. Sums of whole
numbers are BIGINT, of DECIMAL(p,s) DECIMAL(p+10,s), exact under any order; of DOUBLE they depend on it, and parity checks hold them to a
tolerance only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from watertable.errors import DefinitionError, ExpressionError
from watertable.schema import Column, Schema, Type
from watertable.sql.expressions import Expr, Scope, expression_of, parse
from watertable.sql.folds import bind_fold, bind_reduce
from watertable.sql.operators import exact_average
from watertable.where import here

BIGINT: Final = Type("bigint")
DOUBLE: Final = Type("double")
PLACE: Final = Schema.parse("st TIMESTAMP, topic STRING, partition INT, offset BIGINT, ord BIGINT")
"""Where a record stands in log order: compared field by field, left to right; `ord` tells records derived from one record apart."""


TIMED_PLACE: Final = Schema.parse("ts TIMESTAMP") + PLACE
"""Where a version stands in a history: by event time, and in log order where that is the same."""

ARRIVED_PLACE: Final = Schema.parse("batch BIGINT") + PLACE
"""Where a record stands by arrival: by the number of the batch that it came in, and in log order within one."""

NUMBER: Final = Schema.parse("n BIGINT")
"""Where a row that a processor puts stands: by the number of the call among those of its key."""


class Merge(StrEnum):
    """Name the ways in which two values of a state field become one; each is associative, commutative and skips nulls."""

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    FIRST = "first"
    LAST = "last"
    UNION = "union"
    LIST = "list"
    TOP = "top"
    BAG = "bag"


@dataclass(frozen=True, slots=True)
class StateField:
    """Keep one field of a table's state.

    `lift` computes a record's contribution from the record; without one, the contribution is the record's whole value, tombstones
    included (`Latest` tables). Fields merged by FIRST or LAST hold STRUCT<order, value>; UNION holds a sorted ARRAY without repeats, LIST
    an ARRAY<STRUCT<order, value>> in log order, BAG a sorted ARRAY<STRUCT<value, n>> in which n adds up and is never 0.
    """

    name: str
    type: Type
    merge: Merge
    lift: Expr | None

    @property
    def layout(self) -> str:
        """Write what must be the same in two states for them to merge."""
        return f"{self.name} {self.type.sql()} {self.merge}"


@dataclass(frozen=True, slots=True)
class TopField(StateField):
    """Keep the greatest `limit` contributions, greatest first: ARRAY<STRUCT<by, order, value>>, lifted as STRUCT<by, value>."""

    limit: int

    @property
    def layout(self) -> str:
        """Write the limit too: what a shorter list has lost, a longer one lacks."""
        return f"{self.name} {self.type.sql()} {self.merge} {self.limit}"


@dataclass(frozen=True, slots=True)
class SketchField(StateField):
    """Keep the least `limit` different numbers, a UNION that is cut: united and cut again, sketches give the sketch of all."""

    limit: int

    @property
    def layout(self) -> str:
        """Write the limit too: what a shorter sketch has lost, a longer one lacks."""
        return f"{self.name} {self.type.sql()} {self.merge} {self.limit}"


@dataclass(frozen=True, slots=True)
class SignedField(StateField):
    """Keep a field that a row can leave again: `retract` computes what it takes with it, the opposite of `lift`."""

    retract: Expr


@dataclass(frozen=True, slots=True)
class TimedField(StateField):
    """Keep a field in the order of event time: its `order` begins with it, and goes on with the place in log order."""


@dataclass(frozen=True, slots=True)
class ArrivedField(StateField):
    """Keep a field in the order of arrival: its `order` begins with the number of the batch, and goes on with the place in log order."""


@dataclass(frozen=True, slots=True)
class NumberedField(StateField):
    """Keep a field in the order of numbers that records bring with them: what each contributes has its `order` and its `value`."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Ask for an aggregate; `agg` binds it to the columns of a stream or table."""

    function: str
    argument: str | None = None
    by: str | None = None
    limit: int | None = None
    steps: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        optional = self.argument is None and self.function in ("count", "reduce")
        if not (optional or isinstance(self.argument, str)) or not isinstance(self.by, str | None):
            got = self.by if isinstance(self.argument, str) else self.argument
            raise DefinitionError(f"{here()}: wt.{self.function} wants a Spark SQL string; got {got!r}")


@dataclass(frozen=True, slots=True)
class BoundAggregate:
    """Hold one aggregate over the columns of one stream or table: its state, and its value as an expression over `state`."""

    name: str
    function: str
    argument: Expr | None
    state: tuple[StateField, ...]
    value: Expr
    ranked: str = field(default="", compare=False)
    """What a top_k's argument comes after, for eyes alone: how many, and by what."""

    @property
    def subtract(self) -> bool:
        """Tell whether a state can forget a record without reading the others."""
        return self.function in ("count", "sum", "avg")

    @property
    def exact(self) -> bool:
        """Tell whether the value can't depend on the order of addition, as that of floating point sums does."""
        return all(f.merge is not Merge.SUM or f.type.kind not in ("float", "double") for f in self.state)


def count(argument: str | None = None) -> Aggregation:
    """Count records, or those for which the expression isn't null; BIGINT."""
    return Aggregation("count", argument)


def count_distinct(argument: str) -> Aggregation:
    """Count the different values of an expression, exactly; BIGINT. The state keeps the values themselves."""
    return Aggregation("count_distinct", argument)


def approx_count_distinct(argument: str, *, relative_sd: float = 0.05) -> Aggregation:
    """Estimate how many different values an expression has; BIGINT, with this relative standard deviation.

    The state keeps the least of the values' hashes (Bar-Yossef et al. 2002), so many as the deviation asks for: 402 for 5 %. Up to that,
    the count is exact. Such states unite exactly, so the estimate is the same for any cuts between batches. Raises
    `DefinitionError` for a deviation outside 0.005 to 0.5.
    """
    if not (isinstance(relative_sd, float) and 0.005 <= relative_sd <= 0.5):
        raise DefinitionError(f"{here()}: relative_sd={relative_sd!r} must be from 0.005 to 0.5")
    return Aggregation("approx_count_distinct", argument, limit=math.ceil(1 / relative_sd**2) + 2)


def sum(argument: str) -> Aggregation:
    """Add up a number: BIGINT for whole numbers, DECIMAL(p+10,s) for DECIMAL(p,s), DOUBLE else; null while nothing but nulls came."""
    return Aggregation("sum", argument)


def min(argument: str) -> Aggregation:
    """Keep the least value."""
    return Aggregation("min", argument)


def max(argument: str) -> Aggregation:
    """Keep the greatest value."""
    return Aggregation("max", argument)


def avg(argument: str) -> Aggregation:
    """Average a number: DECIMAL(p+4,s+4) for DECIMAL(p,s), else DOUBLE.

    A DECIMAL is exact to the last digit while the sum has up to 34 digits (28, of one with less than two after the point); of a longer sum
    the last four may be missing. It is null where its whole part has no room in that type, of 38 digits at most, or more than 32 digits.
    """
    return Aggregation("avg", argument)


def first(argument: str) -> Aggregation:
    """Keep the value that comes first in log order, nulls skipped; of a table's rows, that of the least key."""
    return Aggregation("first", argument)


def last(argument: str) -> Aggregation:
    """Keep the value that comes last in log order, nulls skipped; of a table's rows, that of the greatest key."""
    return Aggregation("last", argument)


def collect_list(argument: str) -> Aggregation:
    """Collect the values of an expression, nulls skipped: an ARRAY in log order (of a table's rows: in that of their key)."""
    return Aggregation("collect_list", argument)


def collect_set(argument: str) -> Aggregation:
    """Collect the different values of an expression, nulls skipped: a sorted ARRAY."""
    return Aggregation("collect_set", argument)


def top_k(k: int, by: str, value: str | None = None) -> Aggregation:
    """Keep the k greatest by an expression, greatest first: an ARRAY of them, or of what `value` was in the same record.

    Records whose `by` is null are skipped; a null `value` is an element. Of equals, the one that is later in log order (of a table's rows:
    whose key is greater) comes first.
    """
    return Aggregation("top_k", by if value is None else value, by, k)


def aggregate(init: str, add: str) -> Aggregation:
    """Fold records in log order: begin with a constant, and step on by an expression over `acc`, what is made so far, and the record.

    The state keeps, of every record, the columns that `add` reads; a table's rows are folded in the order of their keys. Records without
    a value are skipped. A step that fails, on an overflow or a cast, makes `acc` null.
    """
    return Aggregation("aggregate", add, init)


def reduction(columns: Mapping[str, str]) -> Aggregation:
    """Fold records in log order into one of their own kind, beginning with the first: for each column a step over `acc` and the record."""
    return Aggregation("reduce", steps=tuple(columns.items()))


def bind(name: str, aggregation: Aggregation, scope: Scope, where: str) -> BoundAggregate:
    """Bind an aggregate to the columns of a stream.

    Raises `ExpressionError` when the argument's type has no such aggregate, and whatever `parse` raises for the argument.
    """
    if aggregation.function in ("aggregate", "reduce"):
        return _folded(name, aggregation, scope, where)
    argument, kind = _argument(name, aggregation, scope, where)
    text = aggregation.argument
    fields: tuple[StateField, ...]
    match aggregation.function:
        case "count":
            fields, value = (_counter(name, text, scope, where),), f"state.`{name}`"
        case "sum":
            fields, value = (_sum(name, text, kind, scope, where),), f"state.`{name}`"
        case "avg":
            total, number = _sum(f"{name}__sum", text, kind, scope, where), _counter(f"{name}__count", text, scope, where)
            fields, value = (total, number), _ratio(total, number, kind)
        case "min" | "max":
            lift = parse(_one_zero(f"({text})", kind), scope, where)  # of equals either one might stay, and as text they are two
            fields, value = (StateField(name, kind, Merge(aggregation.function), lift),), f"state.`{name}`"
        case "first" | "last":
            fields = (StateField(name, placed(kind), Merge(aggregation.function), argument),)
            value = f"state.`{name}`.value"
        case "count_distinct":
            fields = (StateField(name, _array(kind), Merge.UNION, argument),)
            value = f"COALESCE(CAST(SIZE(state.`{name}`) AS BIGINT), CAST(0 AS BIGINT))"
        case "approx_count_distinct":
            field_ = _sketch(name, aggregation, kind, scope, where)
            fields, value = (field_,), _estimate(f"state.`{name}`", field_.limit)
        case "collect_set":
            fields = (StateField(name, _array(kind), Merge.UNION, argument),)
            value = _or_empty(f"state.`{name}`", kind)
        case "collect_list":
            fields = (StateField(name, _array(placed(kind)), Merge.LIST, argument),)
            value = _or_empty(f"transform(state.`{name}`, e -> e.value)", kind)
        case "top_k":
            fields, value = (_top(name, aggregation, scope, where),), _or_empty(f"transform(state.`{name}`, e -> e.value)", kind)
        case other:
            raise AssertionError(f"{other!r} is not in the list of aggregates, or isn't bound")
    return _bound(name, aggregation, argument, fields, value, scope, where)


def bind_rows(name: str, aggregation: Aggregation, scope: Scope, key: Schema, where: str) -> BoundAggregate:
    """Bind an aggregate to the rows of a table with this key; each field can take back what a row brought.

    Raises what `bind` does, and `ExpressionError` for a sum or average of floating point: it would not be the same again.
    """
    if aggregation.function in ("aggregate", "reduce"):
        return _folded(name, aggregation, scope, where, key)
    argument, kind = _argument(name, aggregation, scope, where)
    text, function = aggregation.argument, aggregation.function
    if function == "approx_count_distinct":
        raise ExpressionError(f"{where}: {name}={function}({text!r}): a sketch can't forget the rows that leave; use count_distinct")
    if function in ("sum", "avg") and kind.kind in ("float", "double"):
        raise ExpressionError(f"{where}: {name}={function}({text!r}): rows leave a sum as they came only if it is exact; cast to a DECIMAL")
    fields: tuple[StateField, ...]
    match function:
        case "count":
            fields, value = (_tally(name, text, scope, where),), f"state.`{name}`"
        case "sum" | "avg":
            added = f"{name}__sum" if function == "avg" else name
            plus, minus = (_sum(added, t, kind, scope, where) for t in (text, f"-CAST(({text}) AS {sum_type(kind).sql()})"))
            assert minus.lift is not None
            total = SignedField(added, plus.type, Merge.SUM, plus.lift, minus.lift)
            number = _tally(f"{name}__count", text, scope, where)
            alone = f"CASE WHEN state.`{number.name}` = 0 THEN NULL ELSE state.`{name}` END"
            fields, value = (total, number), _ratio(total, number, kind) if function == "avg" else alone
        case _:
            bag, value = _bag(name, aggregation, kind, key, scope, where)
            fields = (bag,)
    return _bound(name, aggregation, argument, fields, value, scope, where)


def _bound(
    name: str, aggregation: Aggregation, argument: Expr | None, fields: tuple[StateField, ...], value: str, scope: Scope, where: str
) -> BoundAggregate:  # fmt: skip
    state = Scope({"state": state_schema(fields)}, bare=())
    ranked = "" if aggregation.by is None else f"{aggregation.limit}, {parse(aggregation.by, scope, where).sql}, "
    return BoundAggregate(name, aggregation.function, argument, fields, _valued(value, aggregation.function, state, where), ranked)


def row_count(scope: Scope, where: str) -> SignedField:
    """Count the rows of a group: where none is left, there is no group."""
    return _tally("__rows", None, scope, where)


def read_of(side: str, row: Schema, users: Sequence[Expr]) -> Schema:
    """Give those columns of a row or a record that somebody reads as `left.x`, `right.x` or `value.x`, as the side says, or one of them."""
    used = {ref.partition(".")[2] for user in users for ref in user.refs if ref.startswith(f"{side}.")}
    return row.take(used) or row.take(row.names[:1])


def held_row(name: str, row: Schema, users: Sequence[Expr], scope: Scope, where: str) -> SignedField:
    """Hold a row, as a bag of one: those of its columns that somebody reads as `left.x` or `right.x`, as the name says, or one of them.

    Raises `ExpressionError` for a column whose values can't be told from others.
    """
    side = name.removeprefix("__")
    columns = read_of(side, row, users)
    for column in columns:
        if not sortable(column.type):
            raise ExpressionError(f"{where}: {side}.{column.name}: a {column.type.sql()} can't be told from others among rows")
    member = "named_struct(" + ", ".join(f"'{c.name}', {_one_zero(f'value.`{c.name}`', c.type)}" for c in columns) + ")"
    plus, minus = (parse(f"named_struct('value', {member}, 'n', CAST({n} AS BIGINT))", scope, where) for n in (1, -1))
    return SignedField(name, _array(plus.type), Merge.BAG, plus, minus)


def placed(kind: Type, order: Schema = PLACE) -> Type:
    """Put a value beside its place in log order: the state of FIRST and LAST."""
    return Type("struct", fields=(Column("order", order.struct()), Column("value", kind)))


def state_schema(fields: tuple[StateField, ...]) -> Schema:
    """Describe a state as columns."""
    return Schema.of((f.name, f.type) for f in fields)


def sum_type(kind: Type) -> Type:
    """Give the type of a sum, as Spark does: wide enough for 10^10 addends of a DECIMAL."""
    if kind.kind == "decimal":
        return Type("decimal", precision=_least(38, kind.precision + 10), scale=kind.scale)
    return BIGINT if kind.is_integral else DOUBLE


def _folded(name: str, aggregation: Aggregation, scope: Scope, where: str, key: Schema | None = None) -> BoundAggregate:
    """Keep what a fold's steps read, as a list in log order, or, of the rows of a table with a key, as a bag in the order of that."""
    what = f"{name}={aggregation.function}" if aggregation.function == "aggregate" else "reduce"
    if aggregation.function == "aggregate":
        steps = bind_fold(what, aggregation.by or "", aggregation.argument or "", scope, where)
    else:
        steps = bind_reduce(what, dict(aggregation.steps), scope, where)
    qualified = Scope(scope.namespaces)  # a column may be called as a record is, and the text asks whether there is a record
    member = parse(steps.member, qualified, where)
    unsorted = [f.name.partition("_")[2] for f in member.type.fields if not sortable(f.type)]
    if unsorted:
        raise ExpressionError(f"{where}: {what}: {unsorted[0]} holds a MAP, which has no order; take what the step needs of it before")
    values = f"transform(state.`{name}`, e -> e.value)"
    part = StateField(name, _array(placed(member.type)), Merge.LIST, member)
    if key is not None:
        order = "named_struct(" + ", ".join(f"'{c}', key.`{c}`" for c in key.names) + ")"
        held = f"named_struct('order', {order}, 'value', {steps.member})"
        plus, minus = (parse(f"named_struct('value', {held}, 'n', CAST({n} AS BIGINT))", qualified, where) for n in (1, -1))
        part = SignedField(name, _array(plus.type), Merge.BAG, plus, minus)
        values = f"transform(state.`{name}`, e -> e.value.value)"
    value = steps.over(_or_empty(values, member.type), Scope({"state": state_schema((part,))}))
    return BoundAggregate(name, aggregation.function, dataclasses.replace(member, sql=steps.shown), (part,), value)


def bind_arrived(name: str, text: str, scope: Scope, where: str) -> BoundAggregate:
    """Bind what keeps the last value of an expression by arrival; its value is a STRUCT<order, value>, for `bind_ordered`."""
    lift = parse(text, scope, where)
    kept = ArrivedField(name, placed(lift.type, ARRIVED_PLACE), Merge.LAST, lift)
    return BoundAggregate(name, "last", lift, (kept,), parse(f"state.`{name}`", Scope({"state": state_schema((kept,))}, bare=()), where))


def bind_ordered(name: str, text: str, scope: Scope, where: str) -> BoundAggregate:
    """Bind what keeps the last value by an order that records bring with them, as `bind_arrived` has made it."""
    lift = parse(text, scope, where)
    kept = NumberedField(name, lift.type, Merge.LAST, lift)
    value = parse(f"state.`{name}`.value", Scope({"state": state_schema((kept,))}, bare=()), where)
    return BoundAggregate(name, "last", lift, (kept,), value)


def _argument(name: str, aggregation: Aggregation, scope: Scope, where: str) -> tuple[Expr | None, Type]:
    """Check what an aggregate is of: the expression, and its type."""
    text, function = aggregation.argument, aggregation.function
    if function not in FUNCTIONS:
        raise ExpressionError(f"{where}: {name}: there is no aggregate {function!r}; choose from {', '.join(sorted(FUNCTIONS))}")
    argument = parse(text, scope, where) if text is not None else None
    kind = argument.type if argument is not None else BIGINT
    wanted = _REQUIRES.get(function)
    if argument is not None and wanted is not None and not wanted(kind):
        raise ExpressionError(f"{where}: {name}={function}({text!r}): a {kind.sql()} has no {function}")
    return argument, kind


def _counter(name: str, text: str | None, scope: Scope, where: str) -> StateField:
    return StateField(name, BIGINT, Merge.SUM, _times(1, text, scope, where))


def _sum(name: str, text: str | None, kind: Type, scope: Scope, where: str) -> StateField:
    wide = sum_type(kind)
    return StateField(name, wide, Merge.SUM, parse(f"CAST(({text}) AS {wide.sql()})", scope, where))


def _tally(name: str, text: str | None, scope: Scope, where: str) -> SignedField:
    return SignedField(name, BIGINT, Merge.SUM, _times(1, text, scope, where), _times(-1, text, scope, where))


def _times(n: int, text: str | None, scope: Scope, where: str) -> Expr:
    """Write n, or 0 where the expression is null."""
    counted = f"CAST({n} AS BIGINT)"
    return parse(counted if text is None else f"CASE WHEN ({text}) IS NULL THEN CAST(0 AS BIGINT) ELSE {counted} END", scope, where)


def _bag(name: str, aggregation: Aggregation, kind: Type, key: Schema, scope: Scope, where: str) -> tuple[SignedField, str]:
    """Keep what the rows of a group hold, and write the aggregate's value of it."""
    text, bag = aggregation.argument, f"state.`{name}`"
    order = "named_struct(" + ", ".join(f"'{c}', key.`{c}`" for c in key.names) + ")"
    there, held, values = text, _one_zero(f"({text})", kind), f"transform({bag}, e -> e.value)"
    member = held
    if not sortable(kind):
        raise ExpressionError(f"{where}: {name}={aggregation.function}({text!r}): a {kind.sql()} can't be told from others among rows")
    match aggregation.function:
        case "count_distinct":
            value = f"COALESCE(CAST(size({bag}) AS BIGINT), CAST(0 AS BIGINT))"
        case "min":
            value = f"get({bag}, 0).value"
        case "max":
            value = f"try_element_at({bag}, -1).value"
        case "collect_set":
            value = _or_empty(values, kind)
        case "top_k":
            ranked = _ranked(name, aggregation, scope, where)
            there, by = aggregation.by, _one_zero(f"({aggregation.by})", ranked)
            member = f"named_struct('by', {by}, 'order', {order}, 'value', {held})"
            greatest = f"slice(reverse({bag}), 1, {aggregation.limit})"
            value = _or_empty(f"transform({greatest}, e -> e.value.value)", kind)
        case function:
            member = f"named_struct('order', {order}, 'value', {held})"
            value = {
                "first": f"get({bag}, 0).value.value",
                "last": f"try_element_at({bag}, -1).value.value",
                "collect_list": _or_empty(f"transform({bag}, e -> e.value.value)", kind),
            }[function]

    def counted(n: int) -> Expr:
        one = f"named_struct('value', {member}, 'n', CAST({n} AS BIGINT))"
        return parse(f"CASE WHEN ({there}) IS NOT NULL THEN {one} END", scope, where)

    return SignedField(name, _array(counted(1).type), Merge.BAG, counted(1), counted(-1)), value


def _one_zero(text: str, kind: Type) -> str:
    """Write a value that stands for all its equals: of floating point, the two zeros are one."""
    return f"({text} + CAST(0 AS {kind.sql()}))" if kind.kind in ("float", "double") else text


def _ranked(name: str, aggregation: Aggregation, scope: Scope, where: str) -> Type:
    """Check a top_k, and give the type that it ranks by."""
    by, limit = aggregation.by or "", aggregation.limit
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise DefinitionError(f"{where}: {name}=top_k({limit!r}, ...): k must be a whole number from 1")
    kind = parse(by, scope, where).type
    if not _orderable(kind):
        raise ExpressionError(f"{where}: {name}=top_k({limit}, {by!r}): a {kind.sql()} has no greatest; rank by a number, text or time")
    return kind


def _top(name: str, aggregation: Aggregation, scope: Scope, where: str) -> TopField:
    by = aggregation.by
    _ranked(name, aggregation, scope, where)
    lift = parse(f"CASE WHEN ({by}) IS NOT NULL THEN named_struct('by', ({by}), 'value', ({aggregation.argument})) END", scope, where)
    kind = Type("struct", fields=(lift.type.fields[0], Column("order", PLACE.struct()), lift.type.fields[1]))
    assert aggregation.limit is not None
    return TopField(name, _array(kind), Merge.TOP, lift, aggregation.limit)


def _sketch(name: str, aggregation: Aggregation, kind: Type, scope: Scope, where: str) -> SketchField:
    """Keep hashes of 63 bits, made of functions that both engines have."""
    text = _one_zero(f"({aggregation.argument})", kind)
    data = f"CAST(CAST({text} AS STRING) AS BINARY)" if kind.kind != "binary" else text
    high, low = (f"crc32(CAST({digest}({data}) AS BINARY))" for digest in ("md5", "sha1"))
    lift = parse(f"shiftleft({high}, 31) + ({low} & CAST(2147483647 AS BIGINT))", scope, where)
    assert aggregation.limit is not None
    return SketchField(name, _array(BIGINT), Merge.UNION, lift, aggregation.limit)


def _estimate(sketch: str, limit: int) -> str:
    """Write how many values there are, from how densely the least of their hashes lie."""
    dense = f"CAST({limit - 1}.0D * 9223372036854775808.0D / CAST(try_element_at({sketch}, -1) AS DOUBLE) AS BIGINT)"
    return f"COALESCE(CASE WHEN size({sketch}) < {limit} THEN CAST(size({sketch}) AS BIGINT) ELSE {dense} END, CAST(0 AS BIGINT))"


def _or_empty(array: str, kind: Type) -> str:
    """Write an array, empty where there is none."""
    return f"COALESCE({array}, array_compact(array(CAST(NULL AS {kind.sql()}))))"


def _array(kind: Type) -> Type:
    return Type("array", element=kind)


def _valued(value: str, function: str, state: Scope, where: str) -> Expr:
    """Parse an aggregate's value; an average of DECIMALs has all digits of its type."""
    parsed = parse(value, state, where)
    if function != "avg" or parsed.type.kind != "decimal":
        return parsed
    return expression_of(exact_average(parsed.ast, parsed.type), state)


def _ratio(total: StateField, number: StateField, kind: Type) -> str:
    if kind.kind != "decimal":
        ratio = f"CAST(state.`{total.name}` AS DOUBLE) / CAST(state.`{number.name}` AS DOUBLE)"
    else:  # Spark's type of avg: four more digits on either side of the point
        scale = _least(38, kind.scale + 4)
        wide = Type("decimal", precision=_least(38, kind.precision + 4), scale=scale)
        ratio = f"CAST(state.`{total.name}` / CAST(state.`{number.name}` AS DECIMAL(20,0)) AS {wide.sql()})"
    return f"CASE WHEN state.`{number.name}` = 0 THEN NULL ELSE {ratio} END"


def _least(a: int, b: int) -> int:
    return a if a < b else b


def _numeric(kind: Type) -> bool:
    return kind.is_numeric


def _orderable(kind: Type) -> bool:
    return kind.kind not in ("map", "array", "struct", "void")


def sortable(kind: Type) -> bool:
    """Tell whether values of a type have an order, alone or as parts of others."""
    inner = [kind.element] if kind.kind == "array" else [f.type for f in kind.fields]
    return kind.kind not in ("map", "void") and all(sortable(k) for k in inner if k is not None)


_REQUIRES: Final = {
    "sum": _numeric,
    "avg": _numeric,
    "min": _orderable,
    "max": _orderable,
    "count_distinct": _orderable,
    "approx_count_distinct": _orderable,
    "collect_set": _orderable,
    "collect_list": sortable,
    "top_k": sortable,
}
FUNCTIONS: Final = (
    "count", "count_distinct", "sum", "min", "max", "avg", "first", "last", "collect_list", "collect_set", "top_k",
    "approx_count_distinct", "aggregate",
)  # fmt: skip
