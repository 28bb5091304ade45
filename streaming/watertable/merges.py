"""Merge two values of a state field, in plain Python: the interpreter's reading of the algebra."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from watertable.aggregates import Merge, StateField, TopField
from watertable.scalars import EXACT, order_key


def _strict(merge: Callable[[StateField, Any, Any], object]) -> Callable[[StateField, Any, Any], object]:
    """Skip nulls: nothing merged with something is that."""
    return lambda field, a, b: a if b is None else b if a is None else merge(field, a, b)


def _union(field: StateField, a: list[Any], b: list[Any]) -> list[Any]:
    assert field.type.element is not None
    key = order_key(field.type.element) or (lambda value: value)
    different = {key(value): value for value in [*b, *a]}  # of equal values the one that was there stays
    return sorted(different.values(), key=key)


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


def _sum(_: StateField, a: Any, b: Any) -> Any:
    return EXACT.add(a, b) if isinstance(a, Decimal) else a + b


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
