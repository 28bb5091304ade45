"""Say what type a Spark SQL expression has, and what Spark casts silently to get there, under ANSI mode.

The rules are Spark's own (`AnsiTypeCoercion`, `DecimalPrecisionTypeCoercion`, `Cast.canAnsiCast`), written as plain functions over
`Type`; each returns None where Spark would refuse. Nothing here knows of expressions or of Spark at run time: a test asks Spark for
the type of every operator over every pair of types and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from watertable.schema import Column, Type

VOID: Final = Type("void")
BOOLEAN: Final = Type("boolean")
TINYINT: Final = Type("tinyint")
SMALLINT: Final = Type("smallint")
INT: Final = Type("int")
BIGINT: Final = Type("bigint")
FLOAT: Final = Type("float")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
BINARY: Final = Type("binary")
DATE: Final = Type("date")
TIMESTAMP: Final = Type("timestamp")
MONTHS: Final = Type("interval year to month")  # intervals are operands only: no column has such a type
DAYTIME: Final = Type("interval day to second")
DAYS: Final = Type("interval day")

MAX_PRECISION: Final = 38
MIN_ADJUSTED_SCALE: Final = 6
_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_WHOLE_DIGITS: Final = {"tinyint": 2, "smallint": 4, "int": 9, "bigint": 18}  # as many decimal digits always fit
_PRECEDENCE: Final = ("tinyint", "smallint", "int", "bigint", "float", "double")
_ATOMIC: Final = frozenset({*_PRECEDENCE, "decimal", "boolean", "string", "binary", "date", "timestamp"})

Common = Callable[[Type, Type], Type | None]


def element_of(kind: Type) -> Type:
    """Return the type of an array's elements or a map's values."""
    assert kind.element is not None
    return kind.element


def key_of(kind: Type) -> Type:
    """Return the type of a map's keys."""
    assert kind.map_key is not None
    return kind.map_key


def decimal(precision: int, scale: int) -> Type:
    """Build a decimal type, cut to Spark's 38 digits."""
    return Type("decimal", precision=min(precision, MAX_PRECISION), scale=min(scale, MAX_PRECISION))


def as_decimal(kind: Type) -> Type:
    """Return the decimal type that holds every value of a whole-number or decimal type; doubles and floats get Spark's default."""
    if kind.kind == "decimal":
        return kind
    if kind.is_integral:
        return decimal(_DIGITS[kind.kind], 0)
    return decimal(30, 15) if kind.kind == "double" else decimal(14, 7)


def adjusted(precision: int, scale: int) -> Type:
    """Fit an arithmetic result into 38 digits, giving up fraction digits (down to 6) before whole ones."""
    if precision <= MAX_PRECISION:
        return decimal(precision, scale)
    whole = precision - scale
    return decimal(MAX_PRECISION, max(MAX_PRECISION - whole, min(scale, MIN_ADJUSTED_SCALE)))


def arithmetic(operator: str, a: Type, b: Type) -> Type:
    """Return the result type of a decimal operation, by Spark's table of precisions."""
    p1, s1, p2, s2 = a.precision, a.scale, b.precision, b.scale
    match operator:
        case "+" | "-":
            scale = max(s1, s2)
            return adjusted(max(p1 - s1, p2 - s2) + scale + 1, scale)
        case "*":
            return adjusted(p1 + p2 + 1, s1 + s2)
        case "/":
            scale = max(MIN_ADJUSTED_SCALE, s1 + p2 + 1)
            return adjusted(p1 - s1 + s2 + scale, scale)
        case _:  # % and pmod
            scale = max(s1, s2)
            return adjusted(min(p1 - s1, p2 - s2) + scale, scale)


def wider_decimal(a: Type, b: Type) -> Type:
    """Return the decimal that holds both, keeping whole digits when 38 don't suffice."""
    scale, whole = max(a.scale, b.scale), max(a.precision - a.scale, b.precision - b.scale)
    return decimal(whole + scale, scale if whole + scale <= MAX_PRECISION else max(0, MAX_PRECISION - whole))


def _holds(wide: Type, narrow: Type) -> bool:
    other = as_decimal(narrow)
    return wide.precision - wide.scale >= other.precision - other.scale and wide.scale >= other.scale


def tightest(a: Type, b: Type) -> Type | None:
    """Return the tightest common type, without strings turning into anything and without loss."""
    if a == b or b == VOID:
        return a
    if a == VOID:
        return b
    match a.kind, b.kind:
        case ("decimal", _) if b.is_integral:
            return a if _holds(a, b) else None
        case (_, "decimal") if a.is_integral:
            return b if _holds(b, a) else None
        case (x, y) if x in _PRECEDENCE and y in _PRECEDENCE:
            wide = _PRECEDENCE[max(_PRECEDENCE.index(x), _PRECEDENCE.index(y))]
            return DOUBLE if wide == "float" else Type(wide)
        case ("date", "timestamp") | ("timestamp", "date"):
            return TIMESTAMP
        case _:
            return _complex(a, b, tightest)


def _mixed(a: Type, b: Type) -> Type | None:
    """Return the common type of a decimal and another number."""
    if "decimal" in (a.kind, b.kind) and a.is_numeric and b.is_numeric:
        fractional = {"float", "double"} & {a.kind, b.kind}
        return DOUBLE if fractional else wider_decimal(as_decimal(a), as_decimal(b))
    return None


def common(a: Type, b: Type) -> Type | None:
    """Return the type that CASE, COALESCE, IN, arrays and the like bring two operands to."""
    return tightest(a, b) or _mixed(a, b) or promoted(a, b) or _complex(a, b, common)


def comparable(a: Type, b: Type) -> Type | None:
    """Return the type that a comparison brings its two sides to: strings turn into other types, but not inside arrays."""
    return tightest(a, b) or _mixed(a, b) or promoted(a, b)


def unpromoted(a: Type, b: Type) -> Type | None:
    """Return the common type without turning strings into anything: greatest, least and the functions on arrays."""
    return tightest(a, b) or _mixed(a, b) or _complex(a, b, unpromoted)


def promoted(a: Type, b: Type) -> Type | None:
    """Return what a string is cast to beside another atomic type: BIGINT, DOUBLE, or that very type."""
    if b == STRING:
        a, b = b, a
    if a != STRING or b.kind not in _ATOMIC:
        return None
    if b.is_integral:
        return BIGINT
    return DOUBLE if b.is_numeric else b


def common_of(types: Iterable[Type], rule: Common = common) -> Type | None:
    """Return the common type of many, from left to right as Spark folds them."""
    found: Type | None = VOID
    for kind in types:
        found = None if found is None else rule(found, kind)
    return found


def _complex(a: Type, b: Type, rule: Common) -> Type | None:
    match a, b:
        case Type(kind="array"), Type(kind="array"):
            inner = rule(element_of(a), element_of(b))
            return None if inner is None else Type("array", element=inner)
        case Type(kind="map"), Type(kind="map"):
            key, inner = rule(key_of(a), key_of(b)), rule(element_of(a), element_of(b))
            # a cast that may give null can't make map keys
            if key is None or inner is None or {castable(key_of(a), key), castable(key_of(b), key)} != {"always"}:
                return None
            return Type("map", map_key=key, element=inner)
        case Type(kind="struct", fields=f), Type(kind="struct", fields=g) if len(f) == len(g):
            columns = []
            for left, right in zip(f, g, strict=True):
                inner = rule(left.type, right.type)
                if inner is None or left.name.lower() != right.name.lower():
                    return None
                columns.append(Column(left.name, inner))
            return Type("struct", fields=tuple(columns))
    return None


def castable(source: Type, target: Type) -> str | None:
    """Tell whether a cast works "always", only for some values ("maybe", raising for others), or never (None)."""
    if source in (target, VOID):
        return "always"
    match source.kind, target.kind:
        case ("array", "array"):
            return castable(element_of(source), element_of(target))
        case ("map", "map"):
            return _both(castable(key_of(source), key_of(target)), castable(element_of(source), element_of(target)))
        case ("struct", "struct") if len(source.fields) == len(target.fields):
            found: str | None = "always"
            for f, g in zip(source.fields, target.fields, strict=True):
                found = _both(found, castable(f.type, g.type))
            return found
        case ("binary", "string"):
            return "maybe"
        case (kind, "string"):
            return "always" if kind in _ATOMIC else None
        case ("string", "binary"):
            return "always"
        case ("string", kind) if kind in _ATOMIC:
            return "maybe"
        case ("boolean", kind) if target.is_numeric:
            return "maybe" if kind == "decimal" and target.precision == target.scale else "always"
        case (_, "boolean") if source.is_numeric:
            return "always"
        case ("date", "timestamp") | ("timestamp", "date" | "bigint" | "float" | "double"):
            return "always"
        case ("timestamp", "tinyint" | "smallint" | "int" | "decimal"):
            return "maybe"
        case ("tinyint" | "smallint" | "int" | "bigint", "timestamp"):
            return "always"
    if source.is_numeric and target.is_numeric:
        return "always" if _number_fits(source, target) else "maybe"
    return None


def _both(a: str | None, b: str | None) -> str | None:
    return None if a is None or b is None else max(a, b)  # "maybe" > "always"


def _number_fits(source: Type, target: Type) -> bool:
    if target.kind in ("float", "double"):
        return True
    if source.kind in ("float", "double"):
        return False
    wide = as_decimal(source)
    whole = wide.precision - wide.scale
    if target.kind == "decimal":
        rounded = 1 if target.scale < wide.scale else 0
        return target.precision - target.scale >= whole + rounded
    if source.is_integral:
        return _DIGITS[target.kind] >= _DIGITS[source.kind]
    return whole <= _WHOLE_DIGITS[target.kind]


def implicit(source: Type, target: Type) -> bool:
    """Tell whether Spark casts an argument to the wanted type by itself (store assignment rules, and strings to anything atomic)."""
    if source in (target, VOID):
        return True
    match source.kind, target.kind:
        case ("string", kind):
            return kind in _ATOMIC
        case (kind, "string"):
            return kind in _ATOMIC and kind != "binary"
        case ("float" | "double" | "decimal", _) if target.is_integral:
            return False
        case ("date", "timestamp") | ("timestamp", "date"):
            return True
        case ("array", "array"):
            return implicit(element_of(source), element_of(target))
    return source.is_numeric and target.is_numeric
