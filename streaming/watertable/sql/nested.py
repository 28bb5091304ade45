"""Compute Spark's functions on arrays, maps and structs in Python: lists, and dicts in the order they were built.

Indices of `element_at` count from 1, of brackets from 0. Values are compared as `scalars` compares them: NaN equals NaN, null equals
null where Spark's sets say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from watertable.schema import Type
from watertable.sql.scalars import compare, fail, order_key

List = list[Any]
_NULL: Final = object()


def _key(element: Type) -> Callable[[Any], Any]:
    """Return what tells elements apart, null included."""
    inner: Callable[[Any], Any] | None = order_key(element)
    if element.kind in ("float", "double"):
        inner = _bits  # as members of sets, unlike in comparisons, the two zeros differ

    def key(value: Any) -> Any:
        if value is None:
            return _NULL
        return _frozen(value if inner is None else inner(value))

    return key


def _bits(value: float) -> str:
    return repr(value)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def at(values: List, index: int) -> Any:
    """Return array[index], from 0; fail outside."""
    if not 0 <= index < len(values):
        raise fail(f"index {index} is outside an array of {len(values)}")
    return values[index]


def get(values: List, index: int) -> Any:
    """Return the element at an index from 0, null outside."""
    return values[index] if 0 <= index < len(values) else None


def element_at(values: List, index: int) -> Any:
    """Return the element at an index from 1, or from the end if negative; fail outside."""
    if index == 0 or abs(index) > len(values):
        raise fail(f"element {index} is outside an array of {len(values)}; the first is 1")
    return values[index - 1 if index > 0 else index]


def try_element_at(values: List, index: int) -> Any:
    """Return the element at an index from 1, or from the end if negative; null outside."""
    if index == 0:
        raise fail("element 0 is none; the first is 1")
    return None if abs(index) > len(values) else values[index - 1 if index > 0 else index]


def lookup(entries: dict[Any, Any], key: Any) -> Any:
    """Return the value of a key in a map, null if it isn't there."""
    return entries.get(key)


def array_contains(element: Type) -> Callable[..., bool | None]:
    """Return whether a value is in an array; null if it isn't and a null is."""
    equal = compare("=", element)

    def contains(values: List, wanted: Any) -> bool | None:
        if any(v is not None and equal(v, wanted) for v in values):
            return True
        return None if None in values else False

    return contains


def array_position(element: Type) -> Callable[..., int]:
    """Return the place of a value from 1, 0 if it isn't there."""
    equal = compare("=", element)
    return lambda values, wanted: next((i for i, v in enumerate(values, 1) if v is not None and equal(v, wanted)), 0)


def array_remove(element: Type) -> Callable[..., List]:
    """Return an array without a value."""
    equal = compare("=", element)
    return lambda values, wanted: [v for v in values if v is None or not equal(v, wanted)]


def distinct(element: Type) -> Callable[..., List]:
    """Return array_distinct or array_union: each value once, in the order met."""
    key = _key(element)

    def once(*arrays: List) -> List:
        found: dict[Any, Any] = {}
        for values in arrays:
            for value in values:
                found.setdefault(key(value), value)
        return list(found.values())

    return once


def keep(element: Type, wanted: bool) -> Callable[..., List]:
    """Return array_intersect or array_except."""
    key, once = _key(element), distinct(element)

    def kept(values: List, others: List) -> List:
        known = {key(v) for v in others}
        return [v for v in once(values) if (key(v) in known) is wanted]

    return kept


def arrays_overlap(element: Type) -> Callable[..., bool | None]:
    """Return whether two arrays share a value that isn't null; null if they don't and a null makes it unsure."""
    key = _key(element)

    def overlap(a: List, b: List) -> bool | None:
        if {key(v) for v in a if v is not None} & {key(v) for v in b if v is not None}:
            return True
        return None if a and b and (None in a or None in b) else False

    return overlap


def sort_array(element: Type) -> Callable[..., List]:
    """Return sort_array: nulls first where ascending, last where descending."""
    key = order_key(element)

    def ordered(values: List, ascending: bool = True) -> List:
        nulls = [None] * values.count(None)
        rest = sorted((v for v in values if v is not None), key=key, reverse=not ascending)
        return nulls + rest if ascending else rest + nulls

    return ordered


def array_sort(element: Type) -> Callable[..., List]:
    """Return array_sort without a comparator: ascending, nulls last."""
    ordered = sort_array(element)
    return lambda values: [v for v in ordered(values) if v is not None] + [None] * values.count(None)


def array_extreme(element: Type, greatest: bool) -> Callable[..., Any]:
    """Return array_max or array_min, null for an array without values."""
    key = order_key(element)
    pick: Callable[..., Any] = max if greatest else min

    def extreme(values: List) -> Any:
        present = [v for v in values if v is not None]
        return pick(present, key=key) if present else None

    return extreme


def array_join(values: List, separator: str, null: str | None = None) -> str:
    """Join the texts of an array, leaving out nulls unless a replacement is given."""
    return separator.join(null if v is None else v for v in values if v is not None or null is not None)  # type: ignore[misc]


def array_slice(values: List, start: int, length: int) -> List:
    """Cut out a part, from 1 or from the end if negative."""
    if start == 0:
        raise fail("slice starts at 1, or at -1 from the end; got 0")
    if length < 0:
        raise fail(f"slice of length {length}")
    begin = start - 1 if start > 0 else len(values) + start
    return [] if begin < 0 else values[begin : begin + length]


def flatten(values: Sequence[List | None]) -> List | None:
    """Join the arrays in an array; null if one of them is."""
    return None if None in values else [v for inner in values if inner is not None for v in inner]


def array_append(values: List | None, value: Any) -> List | None:
    """Add a value at the end."""
    return None if values is None else [*values, value]


def array_prepend(values: List | None, value: Any) -> List | None:
    """Add a value at the front."""
    return None if values is None else [value, *values]


def array_repeat(value: Any, count: int | None) -> List | None:
    """Return a value so many times."""
    return None if count is None else [value] * count


def concat(*arrays: List | None) -> List | None:
    """Join arrays; null if one of them is."""
    return None if any(a is None for a in arrays) else [v for a in arrays if a is not None for v in a]


def build_array(*values: Any) -> List:
    """Return array(...)."""
    return list(values)


def build_map(*entries: Any) -> dict[Any, Any]:
    """Return map(...); a null or repeated key fails, as Spark's default policy says."""
    built: dict[Any, Any] = {}
    for key, value in zip(entries[::2], entries[1::2], strict=True):
        if key is None:
            raise fail("a map's key is null")
        if key in built:
            raise fail(f"a map's key is there twice: {key!r}")
        built[key] = value
    return built


def build_struct(names: Sequence[str]) -> Callable[..., dict[str, Any]]:
    """Return struct(...) for its field names."""
    return lambda *values: dict(zip(names, values, strict=True))


def transform(values: List | None, function: Callable[..., Any]) -> List | None:
    """Apply a function of the element."""
    return None if values is None else [function(v) for v in values]


def transform_indexed(values: List | None, function: Callable[..., Any]) -> List | None:
    """Apply a function of the element and its index."""
    return None if values is None else [function(v, i) for i, v in enumerate(values)]


def keep_if(values: List | None, predicate: Callable[..., Any]) -> List | None:
    """Keep the elements that a predicate holds for."""
    return None if values is None else [v for v in values if predicate(v)]


def exists(values: List | None, predicate: Callable[..., Any]) -> bool | None:
    """Tell whether a predicate holds for some element, in three-valued logic."""
    if values is None:
        return None
    results = [predicate(v) for v in values]
    return True if True in results else None if None in results else False


def forall(values: List | None, predicate: Callable[..., Any]) -> bool | None:
    """Tell whether a predicate holds for all elements, in three-valued logic."""
    if values is None:
        return None
    results = [predicate(v) for v in values]
    return False if False in results else None if None in results else True
