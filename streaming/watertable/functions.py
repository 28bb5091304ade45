"""Hold the subset of Spark SQL that watertable knows: one table, one entry per function or operator.

An entry gives the type rule, the Python function, and the Spark form that gives null instead of raising. The law: value, type and
failure of an entry are Spark's under ANSI mode in UTC; `tests/spark/test_expressions_equal_spark.py` holds each entry to it, and
`docs/expressions.md` is printed from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from watertable import casts, scalars
from watertable.coercion import (
    BIGINT,
    BOOLEAN,
    DATE,
    DAYTIME,
    DOUBLE,
    INT,
    MONTHS,
    STRING,
    TIMESTAMP,
    VOID,
    arithmetic,
    as_decimal,
    castable,
    common,
    common_of,
    implicit,
    promoted,
)
from watertable.coercion import decimal as decimal_type
from watertable.errors import ExpressionError
from watertable.schema import Type
from watertable.terms import Function, Lit, Nulls, Signature, Term

Args = tuple[Term, ...]
Rule = Callable[[Args], Signature]


def _types(args: Args) -> str:
    return ", ".join(a.type.sql() for a in args)


def _refuse(name: str, args: Args, wanted: str) -> ExpressionError:
    return ExpressionError(f"{name} wants {wanted}; got {_types(args)}")


# -- arithmetic --------------------------------------------------------------------------------------------------------------------


def _operands(name: str, args: Args) -> tuple[Type, Type]:
    """Bring two operands to what Spark computes on: one common type, or two decimals, each with its own precision."""
    a, b = args[0].type, args[1].type
    if a == VOID or b == VOID:
        a = b = b if a == VOID else a
    if STRING in (a, b):
        other = promoted(a, b)
        if other is None or a == b:
            raise _refuse(name, args, "numbers")
        a, b = (other if t == STRING else t for t in (a, b))
    if not a.is_numeric or not b.is_numeric:
        raise _refuse(name, args, "numbers")
    if "decimal" in (a.kind, b.kind) and not {"float", "double"} & {a.kind, b.kind}:
        return (
            _decimal_of(args[0], a) if a.is_integral else a,
            _decimal_of(args[1], b) if b.is_integral else b,
        )
    wide = common(a, b)
    assert wide is not None
    return wide, wide


def _decimal_of(term: Term, kind: Type) -> Type:
    """Give a whole-number constant beside a decimal just the digits it has."""
    if isinstance(term, Lit) and isinstance(term.value, int):
        return decimal_type(len(str(abs(term.value))), 0)
    return as_decimal(kind)


def _lossless(operator: str, a: Type, b: Type) -> bool:
    """Tell whether a decimal result always has room: no digit had to be given up."""
    p1, s1, p2, s2 = a.precision, a.scale, b.precision, b.scale
    if operator == "*":
        return p1 + p2 + 1 <= 38
    return max(p1 - s1, p2 - s2) + max(s1, s2) + 1 <= 38


def _arithmetic(operator: str, python: Callable[[Type], scalars.Fn], safe: str) -> Rule:
    def rule(args: Args) -> Signature:
        a, b = _operands(operator, args)
        kind = arithmetic(operator, a, b) if a.kind == "decimal" else a
        can_fail = kind.is_integral or (kind.kind == "decimal" and not _lossless(operator, a, b))
        return Signature(kind, (a, b), python(kind), safe if can_fail else None)

    return rule


def _divide(args: Args) -> Signature:
    a, b = _operands("/", args)
    if a.kind != "decimal":
        return Signature(DOUBLE, (DOUBLE, DOUBLE), scalars.divide(DOUBLE), "try_divide({0}, {1})", "{1} = 0")
    kind = arithmetic("/", a, b)
    full = a.precision - a.scale + b.scale + max(6, a.scale + b.precision + 1) <= 38
    return Signature(kind, (a, b), scalars.divide(kind), "try_divide({0}, {1})", "{1} = 0" if full else None)


def _remainder(name: str, python: Callable[[Type], scalars.Fn]) -> Rule:
    safe = "({0} % nullif({1}, 0))" if name == "%" else f"{name}({{0}}, nullif({{1}}, 0))"

    def rule(args: Args) -> Signature:
        a, b = _operands(name, args)
        kind = arithmetic("%", a, b) if a.kind == "decimal" else a
        return Signature(kind, (a, b), python(kind), safe, "{1} = 0")

    return rule


def _integral_divide(args: Args) -> Signature:
    a, b = _operands("div", args)
    if a.kind in ("float", "double"):
        raise _refuse("div", args, "whole numbers or decimals")
    if a.kind == "decimal":
        whole = a.precision - a.scale + b.scale
        if whole > 18:
            raise ExpressionError(f"div of {_types(args)} may not fit BIGINT; cast the operands to narrower types")
        return Signature(BIGINT, (a, b), scalars.integral_divide(a), "({0} div nullif({1}, 0))", "{1} = 0")
    lowest = "-9223372036854775808"
    if BIGINT in (args[0].type, args[1].type) or STRING in (args[0].type, args[1].type):
        safe = f"(if({{1}} = -1L, nullif({{0}}, {lowest}), {{0}}) div nullif({{1}}, 0L))"
        return Signature(BIGINT, (BIGINT, BIGINT), scalars.integral_divide(BIGINT), safe, f"{{1}} = 0 OR ({{1}} = -1 AND {{0}} = {lowest})")
    return Signature(BIGINT, (BIGINT, BIGINT), scalars.integral_divide(BIGINT), "({0} div nullif({1}, 0))", "{1} = 0")


def _lowest(kind: Type) -> str:
    """Write the least value of a whole-number type, with that type."""
    suffix = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}[kind.kind]
    return f"-{scalars.BOUNDS[kind.kind]}{suffix}"


def _unary(name: str, python: Callable[[Type], scalars.Fn], form: str) -> Rule:
    def rule(args: Args) -> Signature:
        kind = DOUBLE if args[0].type in (STRING, VOID) else args[0].type
        if not kind.is_numeric:
            raise _refuse(name, args, "a number")
        if not kind.is_integral:
            return Signature(kind, (kind,), python(kind))
        low = _lowest(kind)
        return Signature(kind, (kind,), python(kind), form.format(f"nullif({{0}}, {low})"), f"{{0}} = {low}")

    return rule


# -- comparison and logic ----------------------------------------------------------------------------------------------------------


def _ordered(kind: Type) -> bool:
    """Tell whether values of a type can be compared: maps can't, nor what holds them."""
    match kind:
        case Type(kind="map"):
            return False
        case Type(kind="array", element=element):
            return element is not None and _ordered(element)
        case Type(kind="struct", fields=fields):
            return all(_ordered(f.type) for f in fields)
    return True


def _comparison(operator: str) -> Rule:
    def rule(args: Args) -> Signature:
        kind = common(args[0].type, args[1].type)
        if kind is None or not _ordered(kind):
            raise _refuse(operator, args, "two values of comparable types")
        python = scalars.null_safe_equal(kind) if operator == "<=>" else scalars.compare(operator, kind)
        return Signature(BOOLEAN, (kind, kind), python)

    return rule


def _in(args: Args) -> Signature:
    kind = common_of(a.type for a in args)
    if kind is None or not _ordered(kind):
        raise _refuse("IN", args, "values of comparable types")
    return Signature(BOOLEAN, (kind,) * len(args), scalars.is_in(kind))


def _logic(name: str) -> Rule:
    def rule(args: Args) -> Signature:
        if any(not implicit(a.type, BOOLEAN) or a.type.is_numeric for a in args):
            raise _refuse(name.upper(), args, "BOOLEAN")
        return Signature(BOOLEAN, (BOOLEAN,) * len(args), lambda a: not a)

    return rule


def _null_test(wanted: bool) -> Rule:
    return lambda args: Signature(BOOLEAN, (args[0].type,), lambda a: (a is None) is wanted)


def _case(args: Args) -> Signature:
    """Type a CASE: condition, value, condition, value, ..., else."""
    conditions, values = args[:-1:2], (*args[1::2], args[-1])
    for condition in conditions:
        if condition.type not in (BOOLEAN, VOID):
            raise ExpressionError(f"a condition of CASE or IF must be BOOLEAN; got {condition.type.sql()}")
    kind = common_of(v.type for v in values)
    if kind is None:
        raise _refuse("CASE", values, "branches of one common type")
    types = tuple(BOOLEAN if i % 2 == 0 and i < len(args) - 1 else kind for i in range(len(args)))
    return Signature(kind, types, None)


def _coalesce(args: Args) -> Signature:
    kind = common_of(a.type for a in args)
    if kind is None:
        raise _refuse("COALESCE", args, "arguments of one common type")
    return Signature(kind, (kind,) * len(args), None)


def _extreme(greatest: bool) -> Rule:
    def rule(args: Args) -> Signature:
        kind = common_of(a.type for a in args)
        if kind is None or not _ordered(kind) or len(args) < 2:
            raise _refuse("greatest" if greatest else "least", args, "two or more values of one comparable type")
        return Signature(kind, (kind,) * len(args), scalars.extreme(greatest, kind))

    return rule


# -- functions with fixed argument types -------------------------------------------------------------------------------------------

_NAMED: Final = {"string": STRING, "int": INT, "bigint": BIGINT, "double": DOUBLE, "boolean": BOOLEAN, "date": DATE, "timestamp": TIMESTAMP}


def _simple(
    name: str, wants: str, gives: str, python: Callable[..., Any], *, safe: str | None = None, fails: str | None = None,
    nulls: Nulls = Nulls.STRICT, tight: bool = True, sql: str = "",
) -> Function:  # fmt: skip
    """Describe a function whose argument types are fixed: "string, int?" means one or two, "string*" any number."""
    wanted = [w.strip() for w in wants.split(",") if w.strip()]
    least = sum(not w.endswith(("?", "*")) for w in wanted)
    many = bool(wanted) and wanted[-1].endswith("*")

    def rule(args: Args) -> Signature:
        if len(args) < least or (len(args) > len(wanted) and not many):
            raise ExpressionError(f"{name} wants ({wants}); got {len(args)} argument(s)")
        types = tuple(_NAMED[wanted[min(i, len(wanted) - 1)].rstrip("?*")] for i in range(len(args)))
        for arg, kind in zip(args, types, strict=True):
            if not implicit(arg.type, kind):
                raise _refuse(name, args, f"({wants})")
        return Signature(_NAMED[gives] if gives in _NAMED else Type.parse(gives), types, python, safe, fails)

    return Function(name, f"{name}({wants})", rule, nulls, tight, sql)


_TABLE: Final = (
    Function("+", "a + b", _arithmetic("+", scalars.add, "try_add({0}, {1})"), sql="({0} + {1})"),
    Function("-", "a - b", _arithmetic("-", scalars.subtract, "try_subtract({0}, {1})"), sql="({0} - {1})"),
    Function("*", "a * b", _arithmetic("*", scalars.multiply, "try_multiply({0}, {1})"), sql="({0} * {1})"),
    Function("/", "a / b", _divide, Nulls.DIVISOR, sql="({0} / {1})"),
    Function("%", "a % b", _remainder("%", scalars.remainder), Nulls.DIVISOR, sql="({0} % {1})"),
    Function("div", "a div b", _integral_divide, Nulls.DIVISOR, sql="({0} div {1})"),
    Function("pmod", "pmod(a, b)", _remainder("pmod", scalars.positive_remainder), Nulls.DIVISOR),
    Function("negative", "-a", _unary("-", scalars.negate, "(- {0})"), sql="(- {0})"),
    Function("abs", "abs(a)", _unary("abs", scalars.absolute, "abs({0})")),
    *(Function(o, f"a {o} b", _comparison(o), sql=f"({{0}} {o} {{1}})") for o in ("=", "<", "<=", ">", ">=")),
    Function("<=>", "a <=> b", _comparison("<=>"), Nulls.EAGER, sql="({0} <=> {1})"),
    Function("in", "a IN (b, ...)", _in, Nulls.EAGER, tight=False, sql="({0} IN ({+}))"),
    Function("and", "a AND b", _logic("and"), Nulls.LAZY, sql="({0} AND {1})"),
    Function("or", "a OR b", _logic("or"), Nulls.LAZY, sql="({0} OR {1})"),
    Function("not", "NOT a", _logic("not"), sql="(NOT {0})"),
    Function("isnull", "a IS NULL", _null_test(True), Nulls.EAGER, sql="({0} IS NULL)"),
    Function("isnotnull", "a IS NOT NULL", _null_test(False), Nulls.EAGER, sql="({0} IS NOT NULL)"),
    Function("case", "CASE WHEN a THEN b ... ELSE c END", _case, Nulls.LAZY, tight=False),
    Function("coalesce", "coalesce(a, ...)", _coalesce, Nulls.LAZY, tight=False),
    Function("greatest", "greatest(a, b, ...)", _extreme(True), Nulls.EAGER),
    Function("least", "least(a, b, ...)", _extreme(False), Nulls.EAGER),
    _simple("upper", "string", "string", str.upper),
    _simple("lower", "string", "string", str.lower),
    _simple("concat", "string*", "string", lambda *parts: None if None in parts else "".join(parts), nulls=Nulls.EAGER),
    _simple("length", "string", "int", len),
    _simple("trim", "string", "string", lambda s: s.strip(" ")),
)
FUNCTIONS: Final[dict[str, Function]] = {f.name: f for f in _TABLE}


def cast_function(target: Type, how: str) -> Function:
    """Return CAST ("cast"), TRY_CAST ("try_cast") or Spark's silent cast ("coerce") to one type."""

    def rule(args: Args) -> Signature:
        possible = castable(args[0].type, target)
        if possible is None:
            raise ExpressionError(f"can't cast {args[0].type.sql()} to {target.sql()}")
        safe = f"TRY_CAST({{0}} AS {target.sql()})" if possible == "maybe" and how != "try_cast" else None
        python = casts.cast(args[0].type, target)
        return Signature(target, (args[0].type,), casts.attempt(python) if how == "try_cast" else python, safe)

    word = "TRY_CAST" if how == "try_cast" else "CAST"
    sql = "{0}" if how == "coerce" else f"{word}({{0}} AS {target.sql()})"
    return Function(how, f"{word}(a AS type)", rule, tight=how != "try_cast", sql=sql)


__all__ = ["DAYTIME", "FUNCTIONS", "MONTHS", "cast_function"]
