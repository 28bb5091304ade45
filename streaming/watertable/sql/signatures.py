"""Type the functions: those with fixed argument types, which are described as data, and those on arrays, maps, structs and times.

As in `operators`, a rule gives the Python function for exactly these types and the Spark form that can't raise. Patterns, units and the
like must be constants: what they mean is read, and refused, when the expression is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from watertable.errors import ExpressionError, SchemaError
from watertable.schema import Column, Type, check_names
from watertable.sql import casts, nested, text, times
from watertable.sql.coercion import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    VOID,
    castable,
    common_of,
    implicit,
    unpromoted,
)  # fmt: skip
from watertable.sql.operators import Args, Rule, constant, ordered, refuse
from watertable.sql.spark_sql import text_of_bytes
from watertable.sql.terms import Function, Lambda, Lit, Nulls, Signature

# -- functions with fixed argument types -------------------------------------------------------------------------------------------

_NAMED: Final = {
    "string": STRING, "binary": BINARY, "int": INT, "bigint": BIGINT, "double": DOUBLE, "boolean": BOOLEAN, "date": DATE,
    "timestamp": TIMESTAMP,
}  # fmt: skip


def simple(
    name: str, wants: str, gives: str, python: Callable[..., Any], *, safe: str | None = None, fails: str | None = None,
    nulls: Nulls = Nulls.STRICT, tight: bool = True,
) -> Function:  # fmt: skip
    """Describe a function whose argument types are fixed: "string, int?" means one or two, "string*" any number."""
    return prepared(name, wants, gives, lambda *_: python, safe=safe, fails=fails, nulls=nulls, tight=tight)


def prepared(
    name: str, wants: str, gives: str, prepare: Callable[..., Callable[..., Any]], *, safe: str | None = None, fails: str | None = None,
    nulls: Nulls = Nulls.STRICT, tight: bool = True, sql: str | None = None, usage: str = "",
) -> Function:  # fmt: skip
    """Describe a function whose Python form is prepared from its constant arguments, marked "=": "string, string=".

    `prepare` gets the constants in order and may refuse them; {=0} in `sql` and `safe` stands for the bare text of the first one.
    """
    wanted = [w.strip() for w in wants.split(",") if w.strip()]
    least = sum(not w.rstrip("=").endswith(("?", "*")) for w in wanted)
    many = bool(wanted) and wanted[-1].endswith("*")
    result = _NAMED.get(gives) or Type.parse(gives)
    usage = usage or f"{name}({', '.join('constant ' + w[:-1] if w.endswith('=') else w for w in wanted)})"

    def rule(args: Args) -> Signature:
        if len(args) < least or (len(args) > len(wanted) and not many):
            raise ExpressionError(f"wanted {usage}; got {len(args)} argument(s)")
        marks = [wanted[min(i, len(wanted) - 1)] for i in range(len(args))]
        types = tuple(_NAMED[mark.rstrip("?*=")] for mark in marks)
        for arg, kind in zip(args, types, strict=True):
            if not implicit(arg.type, kind):
                raise refuse(name, args, usage)
        constants = [constant(name, arg, kind) for arg, kind, mark in zip(args, types, marks, strict=True) if "=" in mark]
        python = prepare(*constants)
        return Signature(result, types, python, _bare(safe, constants), fails, _bare(sql, constants))

    return Function(name, usage, rule, nulls, tight)


def _bare(template: str | None, constants: list[Any]) -> str | None:
    for i, value in enumerate(constants):
        template = template and template.replace(f"{{={i}}}", str(value))
    return template


# -- arrays, maps, structs ---------------------------------------------------------------------------------------------------------


def _array(name: str, args: Args, i: int = 0) -> Type:
    kind = args[i].type
    if kind.kind != "array" or kind.element is None:
        raise refuse(name, args, "an ARRAY")
    return kind.element


def _array_of(element: Type) -> Type:
    return Type("array", element=element)


def build_array(args: Args) -> Signature:
    """Type array(...)."""
    kind = common_of(a.type for a in args)
    if kind is None or kind == VOID:
        raise refuse("array", args, "values of one common type; CAST(NULL AS ARRAY<...>) has a type of its own")
    return Signature(_array_of(kind), (kind,) * len(args), nested.build_array)


def build_map(args: Args) -> Signature:
    """Type map(...): keys are constants, so that none is null or there twice."""
    if not args or len(args) % 2:
        raise refuse("map", args, "pairs of a key and a value")
    keys = [a.value for a in args[::2] if isinstance(a, Lit) and a.value is not None]
    key, value = common_of(a.type for a in args[::2]), common_of(a.type for a in args[1::2])
    if len(set(keys)) < len(args) // 2 or key is None or value in (None, VOID):
        raise refuse("map", args, "constant keys, each once and not null, and values of one common type")
    assert value is not None
    return Signature(Type("map", map_key=key, element=value), (key, value) * (len(args) // 2), nested.build_map)


def build_struct(args: Args) -> Signature:
    """Type named_struct('name', value, ...)."""
    names = [a.value for a in args[::2] if isinstance(a, Lit) and isinstance(a.value, str)]
    if not args or len(args) % 2 or len(names) < len(args) // 2:
        raise refuse("named_struct", args, "pairs of a constant name, each once, and a value")
    try:
        check_names(names, "field")
    except SchemaError as error:
        raise ExpressionError(f"named_struct: {error}") from None
    fields = tuple(Column(str(n), v.type) for n, v in zip(names, args[1::2], strict=True))
    build = nested.build_struct([str(n) for n in names])
    return Signature(Type("struct", fields=fields), tuple(a.type for a in args), lambda *values: build(*values[1::2]))


def bracket(args: Args) -> Signature:
    """Type container[index]: an array's index counts from 0, a map's key may be absent."""
    if args[0].type.kind == "array" and args[1].type.kind in _INDEX:
        bounds = "{1} < 0 OR {1} >= size({0})"
        return Signature(_array("[]", args), (args[0].type, INT), nested.at, "get({0}, {1})", bounds)
    return _map_value("[]", args)


_INDEX: Final = ("tinyint", "smallint", "int")  # Spark takes a BIGINT too, and drops its upper half


def _map_value(name: str, args: Args) -> Signature:
    kind = args[0].type
    if kind.kind != "map" or kind.map_key is None or kind.element is None or unpromoted(kind.map_key, args[1].type) != kind.map_key:
        raise refuse(name, args, "an ARRAY and an INT, or a MAP and one of its keys")
    return Signature(kind.element, (kind, kind.map_key), nested.lookup)


def element_at(name: str) -> Rule:
    """Type element_at and try_element_at: an array's index counts from 1, or from -1 at the end."""

    def rule(args: Args) -> Signature:
        kind, index = args[0].type, args[1].type
        if kind.kind != "array" or index.kind not in _INDEX:
            return _map_value(name, args)
        if name == "try_element_at":
            return Signature(_array(name, args), (kind, INT), nested.try_element_at, "try_element_at({0}, nullif({1}, 0))", "{1} = 0")
        safe, fails = "try_element_at({0}, nullif({1}, 0))", "{1} = 0 OR {1} > size({0}) OR {1} < -size({0})"
        return Signature(_array(name, args), (kind, INT), nested.element_at, safe, fails)

    return rule


def get(args: Args) -> Signature:
    """Type get: null outside."""
    if args[1].type.kind not in _INDEX:
        raise refuse("get", args, "an ARRAY and an INT")
    return Signature(_array("get", args), (args[0].type, INT), nested.get)


def sort_array(args: Args) -> Signature:
    """Type sort_array: whether it ascends is a constant."""
    element = _array("sort_array", args)
    if not ordered(element) or len(args) > 2:
        raise refuse("sort_array", args, "an ARRAY whose elements can be compared, and true or false")
    ascending = constant("sort_array", args[1], BOOLEAN) if len(args) > 1 else True
    order = nested.sort_array(element)
    return Signature(args[0].type, (args[0].type, BOOLEAN)[: len(args)], lambda values, *_: order(values, ascending))


def on_array(name: str, python: Callable[[Type], Callable[..., Any]], gives: str) -> Rule:
    """Type a function of an array whose elements can be compared; it gives "element", "array" or a type by name."""

    def rule(args: Args) -> Signature:
        element = _array(name, args)
        if not ordered(element):
            raise refuse(name, args, "an ARRAY whose elements can be compared")
        return Signature(_result(gives, element), (args[0].type,), python(element))

    return rule


def _result(gives: str, element: Type) -> Type:
    return element if gives == "element" else _array_of(element) if gives == "array" else _NAMED[gives]


def array_and_value(name: str, python: Callable[[Type], Callable[..., Any]], gives: str) -> Rule:
    """Type a function of an array and a value like its elements."""

    def rule(args: Args) -> Signature:
        element = unpromoted(_array(name, args), args[1].type) if len(args) == 2 else None
        if element is None or args[1].type == VOID or (gives != "array+" and not ordered(element)):
            raise refuse(name, args, "an ARRAY and a value of its elements' type")
        return Signature(_result(gives.rstrip("+"), element), (_array_of(element), element), python(element))

    return rule


def two_arrays(name: str, python: Callable[[Type], Callable[..., Any]], gives: str) -> Rule:
    """Type a function of two arrays of one element type."""

    def rule(args: Args) -> Signature:
        element = unpromoted(_array(name, args), _array(name, args, 1)) if len(args) == 2 else None
        if element is None or not ordered(element):
            raise refuse(name, args, "two ARRAYs of one element type")
        return Signature(_result(gives, element), (_array_of(element),) * 2, python(element))

    return rule


def size(args: Args) -> Signature:
    """Type size."""
    if args[0].type.kind not in ("array", "map"):
        raise refuse("size", args, "an ARRAY or a MAP")
    return Signature(INT, (args[0].type,), len)


def map_part(keys: bool) -> Rule:
    """Type map_keys and map_values."""

    def rule(args: Args) -> Signature:
        kind = args[0].type
        element = kind.map_key if keys else kind.element
        if kind.kind != "map" or element is None:
            raise refuse("map_keys" if keys else "map_values", args, "a MAP")
        return Signature(_array_of(element), (kind,), lambda m: list(m.keys() if keys else m.values()))

    return rule


def map_entries(args: Args) -> Signature:
    """Type map_entries: an array of structs of key and value."""
    kind = args[0].type
    if kind.kind != "map" or kind.map_key is None or kind.element is None:
        raise refuse("map_entries", args, "a MAP")
    entry = Type("struct", fields=(Column("key", kind.map_key), Column("value", kind.element)))
    return Signature(_array_of(entry), (kind,), lambda m: [{"key": k, "value": v} for k, v in m.items()])


def map_contains(args: Args) -> Signature:
    """Type map_contains_key."""
    found = _map_value("map_contains_key", args)
    return Signature(BOOLEAN, found.args, lambda entries, key: key in entries)


def concat(args: Args) -> Signature:
    """Type concat and ||: of texts, or of arrays."""
    if args and all(a.type.kind in ("array", "void") for a in args):
        kind = common_of(a.type for a in args)
        if kind is None or kind == VOID:
            raise refuse("concat", args, "ARRAYs of one element type")
        return Signature(kind, (kind,) * len(args), nested.concat)
    if not args or any(not implicit(a.type, STRING) for a in args):
        raise refuse("concat", args, "texts, or ARRAYs of one element type")
    return Signature(STRING, (STRING,) * len(args), text.concat)


def concat_ws(args: Args) -> Signature:
    """Type concat_ws: a separator, then texts and arrays of texts."""
    texts = _array_of(STRING)
    types = tuple(texts if a.type == texts else STRING for a in args)
    if not args or types[0] != STRING or any(not implicit(a.type, t) for a, t in zip(args, types, strict=True)):
        raise refuse("concat_ws", args, "a separator, then STRINGs and ARRAY<STRING>s")
    return Signature(STRING, types, text.concat_ws)


def reverse(args: Args) -> Signature:
    """Type reverse: of a text or an array."""
    kind = args[0].type if args[0].type.kind == "array" else STRING
    if kind == STRING and not implicit(args[0].type, STRING):
        raise refuse("reverse", args, "a STRING or an ARRAY")
    return Signature(kind, (kind,), lambda value: value[::-1])


def flatten(args: Args) -> Signature:
    """Type flatten."""
    inner = _array("flatten", args)
    if inner.kind != "array":
        raise refuse("flatten", args, "an ARRAY of ARRAYs")
    return Signature(inner, (args[0].type,), nested.flatten)


def slice_rule(args: Args) -> Signature:
    """Type slice: its start counts from 1, or from the end if negative."""
    if len(args) != 3 or any(a.type.kind not in _INDEX for a in args[1:]):
        raise refuse("slice", args, "an ARRAY and two INTs")
    _array("slice", args)
    guarded = "slice({0}, nullif({1}, 0), if({2} < 0, NULL, {2}))"
    return Signature(args[0].type, (args[0].type, INT, INT), nested.array_slice, guarded, "{1} = 0 OR {2} < 0")


def array_join(args: Args) -> Signature:
    """Type array_join: elements, separator and what stands for null are written as texts."""
    if not 2 <= len(args) <= 3 or not all(implicit(kind, STRING) for kind in (_array("array_join", args), *(a.type for a in args[1:]))):
        raise refuse("array_join", args, "an ARRAY of what can be written, a separator, and a text for nulls")
    return Signature(STRING, (_array_of(STRING), *(STRING for _ in args[1:])), nested.array_join)


def array_repeat(args: Args) -> Signature:
    """Type array_repeat."""
    if args[0].type == VOID or args[1].type != INT:
        raise refuse("array_repeat", args, "a value and an INT")
    return Signature(_array_of(args[0].type), (args[0].type, INT), nested.array_repeat)


def array_compact(args: Args) -> Signature:
    """Type array_compact."""
    _array("array_compact", args)
    return Signature(args[0].type, (args[0].type,), lambda values: [v for v in values if v is not None])


def higher_order(name: str) -> Rule:
    """Type transform, filter, exists and forall; the binder has already given the lambda's parameters their types."""

    def rule(args: Args) -> Signature:
        kind, body = args[0].type, args[1]
        if not isinstance(body, Lambda):
            raise refuse(name, args, "an ARRAY and a lambda: x -> ...")
        if name != "transform" and body.type not in (BOOLEAN, VOID):
            raise ExpressionError(f"{name} wants a lambda that gives BOOLEAN; got {body.type.sql()}")
        if len(body.params) > (2 if name == "transform" else 1):
            raise ExpressionError(f"{name}: {len(body.params)} parameters are too many")
        python: dict[str, Callable[..., Any]] = {
            "transform": nested.transform if len(body.params) == 1 else nested.transform_indexed,
            "filter": nested.keep_if, "exists": nested.exists, "forall": nested.forall,
        }  # fmt: skip
        result = {"transform": _array_of(body.type), "filter": kind}.get(name, BOOLEAN)
        return Signature(result, (kind, body.type), python[name])

    return rule


# -- times -------------------------------------------------------------------------------------------------------------------------


def to_date(args: Args) -> Signature:
    """Type to_date without a pattern, which is a cast, or with one."""
    if len(args) == 1:
        return _as_cast(args, DATE, "to_date({0})")
    read = times.read_format(constant("to_date", args[1], STRING))
    safe = "CAST(try_to_timestamp({0}, {1}) AS DATE)"
    return Signature(DATE, (STRING, STRING), lambda value, _: read(value).date(), safe)


def to_timestamp(args: Args) -> Signature:
    """Type to_timestamp without a pattern, which is a cast, or with one."""
    if len(args) == 1:
        return _as_cast(args, TIMESTAMP, "to_timestamp({0})")
    read = times.read_format(constant("to_timestamp", args[1], STRING))
    return Signature(TIMESTAMP, (STRING, STRING), read, "try_to_timestamp({0}, {1})")


def _as_cast(args: Args, kind: Type, sql: str) -> Signature:
    if args[0].type not in (STRING, DATE, TIMESTAMP):
        raise refuse(sql, args, "a STRING, DATE or TIMESTAMP")
    found = cast_function(kind, "cast").rule(args)
    return Signature(kind, found.args, found.python, found.safe, sql=sql)


# what Spark reads as a time of today
_DATELESS: Final = r"^(T|[\\x00-\\x20\\x7f]*[0-9]{1,2}:)"


def cast_function(target: Type, how: str) -> Function:
    """Return CAST ("cast"), TRY_CAST ("try_cast") or Spark's silent cast ("coerce") to one type."""

    def rule(args: Args) -> Signature:
        source = args[0].type
        possible = castable(source, target)
        if possible is None:
            raise ExpressionError(f"can't cast {source.sql()} to {target.sql()}")
        if possible == "maybe" and source.kind in ("array", "map", "struct"):
            raise ExpressionError(f"a cast from {source.sql()} to {target.sql()} may fail inside; cast its parts")
        # text that holds a time and no date would get today's; null in its place
        value = f"if({{0}} RLIKE '{_DATELESS}', NULL, {{0}})" if (source, target) == (STRING, TIMESTAMP) else "{0}"
        tried, sql = f"TRY_CAST({value} AS {target.sql()})", None
        if (source, target) == (BINARY, STRING):
            tried, sql = text_of_bytes("CAST({0} AS STRING)")
        python = casts.cast(source, target)
        if how == "try_cast":
            return Signature(target, (source,), casts.attempt(python), sql=tried)
        fails = None
        if target.kind == "decimal" and source.kind in ("float", "double"):  # NaN and infinity become null, even in ANSI mode
            fails = f"{tried} IS NULL AND NOT isnan({{0}}) AND abs({{0}}) <> CAST('Infinity' AS DOUBLE)"
        return Signature(target, (source,), python, tried if possible == "maybe" else None, fails, sql)

    word = "TRY_CAST" if how == "try_cast" else "CAST"
    return Function(how, f"{word}(a AS type)", rule, tight=False, sql="{0}" if how == "coerce" else f"CAST({{0}} AS {target.sql()})")
