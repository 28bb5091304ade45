"""Lift records to states, merge states, and put them into sliding windows, in plain Python: the interpreter's reading of the algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final

from watertable.errors import EvaluationError, JobError
from watertable.plan.aggregates import (
    ArrivedField,
    Merge,
    NumberedField,
    SignedField,
    SketchField,
    StateField,
    TimedField,
    TopField,
)
from watertable.plan.windows import SlidingWindows
from watertable.records import Event, Key, Row
from watertable.schema import Type
from watertable.sql.expressions import Expr
from watertable.sql.scalars import EXACT, fixed, order_key, whole


def _strict(merge: Callable[[StateField, Any, Any], object]) -> Callable[[StateField, Any, Any], object]:
    """Skip nulls: nothing merged with something is that."""
    return lambda field, a, b: a if b is None else b if a is None else merge(field, a, b)


def _union(field: StateField, a: list[Any], b: list[Any]) -> list[Any]:
    assert field.type.element is not None
    key = order_key(field.type.element) or (lambda value: value)
    different = {key(value): value for value in [*b, *a]}  # of equal values the one that was there stays
    return sorted(different.values(), key=key)[: field.limit if isinstance(field, SketchField) else None]


def _list(_: StateField, a: list[Any], b: list[Any]) -> list[Any]:
    return sorted([*a, *b], key=lambda kept: kept["order"])


def _top(field: StateField, a: list[Any], b: list[Any]) -> list[Any]:
    assert isinstance(field, TopField)
    assert field.type.element is not None
    by = order_key(field.type.element.fields[0].type) or (lambda value: value)
    return sorted([*a, *b], key=lambda kept: (by(kept["by"]), kept["order"]), reverse=True)[: field.limit]


def _bag(field: StateField, a: list[Any], b: list[Any]) -> list[Any]:
    assert field.type.element is not None
    key = order_key(field.type.element.fields[0].type) or (lambda value: value)
    bag: dict[Any, Any] = {}
    for kept in [*a, *b]:
        n = bag.get(key(kept["value"]), {"n": 0})["n"] + kept["n"]
        bag[key(kept["value"])] = {"value": kept["value"], "n": n}
    return sorted((kept for kept in bag.values() if kept["n"]), key=lambda kept: key(kept["value"]))


@cache
def _bounded(kind: Type) -> Callable[[Any], Any]:
    return whole(kind) if kind.is_integral else fixed(kind) if kind.kind == "decimal" else float


def _sum(field: StateField, a: Any, b: Any) -> Any:
    total = EXACT.add(a, b) if isinstance(a, Decimal) else a + b
    try:
        return _bounded(field.type)(total)
    except EvaluationError:
        raise JobError(f"a sum has come to {total}, which is no {field.type.sql()}: add up DECIMALs with more room") from None


def _least(field: StateField, a: Any, b: Any) -> Any:
    return min(a, b, key=order_key(field.type))


def _greatest(field: StateField, a: Any, b: Any) -> Any:
    return max(a, b, key=order_key(field.type))


MERGE: Final = {
    Merge.SUM: _strict(_sum),
    Merge.MIN: _strict(_least),
    Merge.MAX: _strict(_greatest),
    Merge.FIRST: _strict(lambda _, a, b: min(a, b, key=lambda kept: kept["order"])),
    Merge.LAST: _strict(lambda _, a, b: max(a, b, key=lambda kept: kept["order"])),
    Merge.UNION: _strict(_union),
    Merge.LIST: _strict(_list),
    Merge.TOP: _strict(_top),
    Merge.BAG: _strict(_bag),
}


def contribution(fields: tuple[StateField, ...], event: Event, batch: int = 0, *, retract: bool = False) -> Row:
    """Give what a record alone makes of the fields, in this batch; to `retract`, what takes it away again."""
    return {f.name: _lifted(f, event, batch, f.retract if retract and isinstance(f, SignedField) else f.lift) for f in fields}


def _lifted(field: StateField, event: Event, batch: int, lift: Expr | None) -> object:
    value = event.value if lift is None else event.evaluate(lift)
    order: tuple[object, ...] = event.place
    if isinstance(field, TimedField):
        order = (event.timestamp, *event.place)
    elif isinstance(field, ArrivedField):
        order = (batch, *event.place)
    if isinstance(field, NumberedField):
        return value
    match field.merge:
        case Merge.FIRST | Merge.LAST if lift is None or value is not None:  # without a lift, a tombstone counts
            return {"order": order, "value": value}
        case Merge.UNION if value is not None:
            return [value + 0.0 if isinstance(value, float) else value]  # the two zeros are one member
        case Merge.LIST if value is not None:
            return [{"order": event.place, "value": value}]
        case Merge.TOP if value is not None:
            return [{"by": value["by"], "order": event.place, "value": value["value"]}]
        case Merge.BAG if value is not None:
            return [value]
        case Merge.FIRST | Merge.LAST | Merge.UNION | Merge.LIST | Merge.TOP | Merge.BAG:
            return None
    return value


def merged(fields: tuple[StateField, ...], a: Row, b: Row) -> Row:
    """Merge two states, field by field."""
    return {f.name: MERGE[f.merge](f, a[f.name], b[f.name]) for f in fields}


def slid(
    windows: SlidingWindows,
    fields: tuple[StateField, ...],
    states: Mapping[Key, Row],
    moments: Iterable[Key],
    near: tuple[datetime, datetime] | None = None,
) -> dict[Key, Row]:
    """Give the sliding windows of a group, with their states: those made of the moments between two times, if any are given."""
    held: list[tuple[Any, Row]] = [(key, states[key]) for key in moments if near is None or near[0] <= key[-2] <= near[1]]  # type: ignore[operator]
    found: dict[Key, Row] = {}
    for end in {end for key, _ in held for end in windows.ends(key[-2]) if key[-1] <= end and (near is None or end <= near[1])}:
        start, _ = windows.span(end)
        for key, state in held:
            if start <= key[-2] <= end and key[-1] <= end:
                window = (*key[:-2], start, end)
                old = found.get(window)
                found[window] = state if old is None else merged(fields, old, state)
    return found


def held(state: Row | None, name: str) -> Row | None:
    """Give the row in a bag of one, None where there is none."""
    bag: Any = state and state[name]
    return bag[0]["value"] if bag else None
