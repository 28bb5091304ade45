"""Type the operators and the numeric functions: argument types in, `Signature` out, or a refusal.

The rules are Spark's under ANSI mode. A rule also picks the Python function for exactly these types, and the Spark form that can't raise,
or none where no value could make it raise: `quantity * unit_price` of narrow decimals stays a plain product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

from watertable.errors import ExpressionError
from watertable.schema import Type
from watertable.sql import casts, scalars, text, times
from watertable.sql.coercion import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DAYS,
    DAYTIME,
    DOUBLE,
    INT,
    MONTHS,
    STRING,
    TIMESTAMP,
    VOID,
    arithmetic,
    as_decimal,
    common,
    common_of,
    comparable,
    implicit,
    promoted,
    unpromoted,
)  # fmt: skip
from watertable.sql.coercion import decimal as decimal_type
from watertable.sql.terms import Call, Lit, Signature, Term

Args = tuple[Term, ...]
Rule = Callable[[Args], Signature]


def _types(args: Args) -> str:
    return ", ".join(a.type.sql() for a in args)


def refuse(name: str, args: Args, wanted: str) -> ExpressionError:
    """Build the refusal of argument types."""
    return ExpressionError(f"{name} wants {wanted}; got {_types(args)}")


def constant(name: str, term: Term, kind: Type) -> Any:
    """Return the value of an argument that must be a constant."""
    if not isinstance(term, Lit) or term.value is None or term.type.kind != kind.kind:
        raise ExpressionError(f"{name} wants a constant {kind.sql()} there: what it means is read when the expression is written")
    return term.value


# -- arithmetic --------------------------------------------------------------------------------------------------------------------


def _operands(name: str, args: Args) -> tuple[Type, Type]:
    """Bring two operands to what Spark computes on: one common type, or two decimals, each with its own precision."""
    a, b = args[0].type, args[1].type
    if a == VOID or b == VOID:
        a = b = b if a == VOID else a
    if STRING in (a, b):
        other = promoted(a, b)
        if other is None or a == b:
            raise refuse(name, args, "numbers")
        a, b = (other if t == STRING else t for t in (a, b))
    if not a.is_numeric or not b.is_numeric:
        raise refuse(name, args, "numbers")
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


def arithmetic_rule(operator: str, python: Callable[[Type], scalars.Fn], safe: str) -> Rule:
    """Type `+`, `-`, `*` on numbers, and `+`, `-` on times."""

    def rule(args: Args) -> Signature:
        timely = _time_arithmetic(operator, args[0].type, args[1].type) if operator != "*" and len(args) == 2 else None
        if timely is not None:
            return timely
        a, b = _operands(operator, args)
        kind = arithmetic(operator, a, b) if a.kind == "decimal" else a
        can_fail = kind.is_integral or (kind.kind == "decimal" and not _lossless(operator, a, b))
        return Signature(kind, (a, b), python(kind), safe if can_fail else None)

    return rule


def _never_zero(term: Term) -> bool:
    return isinstance(term, Lit) and isinstance(term.value, int | float | Decimal) and term.value != 0


def divide(args: Args) -> Signature:
    """Type `/`: decimals stay decimals, everything else is divided as DOUBLE."""
    a, b = _operands("/", args)
    kind = arithmetic("/", a, b) if a.kind == "decimal" else DOUBLE
    full = a.kind != "decimal" or a.precision - a.scale + b.scale + max(6, a.scale + b.precision + 1) <= 38
    types = (a, b) if a.kind == "decimal" else (DOUBLE, DOUBLE)
    safe = None if full and _never_zero(args[1]) else "try_divide({0}, {1})"
    return Signature(kind, types, scalars.divide(kind), safe, f"{{1}} = {_zero(b)}" if full else None)


def exact_average(term: Term, result: Type) -> Term:
    """Let the divisions of a DECIMAL in a term give every digit of the result, as Spark's `avg` does, and not what `/` leaves of them.

    By `/`, 38 digits less those that the dividend may have before the point are after it: of a wide sum as few as six. So it's divided as
    the type that leaves it as many as the result has, and only a sum that doesn't fit that one as it is. It's the same quotient, nearer:
    the canonical form remains.
    """
    if not isinstance(term, Call):
        return term
    term = replace(term, args=tuple(exact_average(arg, result) for arg in term.args))
    if term.function.name != "/":
        return term
    total, divisor = term.signature.args
    # by `/`, six digits at least are after the point; where the result has less, digits to spare keep rounding twice from being seen
    narrow = decimal_type(38 - result.scale + total.scale if result.scale >= 6 else 28, total.scale)
    limit, exact, coarse = Decimal(10) ** (narrow.precision - narrow.scale), scalars.divide(result), scalars.divide(term.type)

    def quotient(a: Decimal, b: Decimal) -> Any:
        return exact(a, b) if a.copy_abs() < limit else coarse(a, b)

    form = f"coalesce(TRY_CAST(try_divide(TRY_CAST({{0}} AS {narrow.sql()}), {{1}}) AS {result.sql()}), "
    form += f"TRY_CAST(try_divide({{0}}, {{1}}) AS {result.sql()}))"
    return replace(term, signature=Signature(term.type, (total, divisor), quotient, form, sql=form))


def _zero(kind: Type) -> str:
    """Write the zero to compare a divisor with: of the very type that is divided by, or small decimals would be rounded to it."""
    return "0" if kind.is_integral else f"CAST(0 AS {kind.sql()})" if kind.kind == "decimal" else "0D"


def remainder(name: str, python: Callable[[Type], scalars.Fn]) -> Rule:
    """Type % and pmod."""

    def rule(args: Args) -> Signature:
        a, b = _operands(name, args)
        kind = arithmetic("%", a, b) if a.kind == "decimal" else a
        if name == "pmod" and kind.kind == "decimal":
            raise refuse(name, args, "whole numbers or DOUBLEs: a decimal's may not fit the type that Spark gives it")
        divisor = f"nullif({{1}}, {_zero(b)})"
        safe = f"({{0}} % {divisor})" if name == "%" else f"{name}({{0}}, {divisor})"
        return Signature(kind, (a, b), python(kind), None if _never_zero(args[1]) else safe, f"{{1}} = {_zero(b)}")

    return rule


def integral_divide(args: Args) -> Signature:
    """Type div: BIGINT, cut toward zero."""
    a, b = _operands("div", args)
    if a.kind in ("float", "double"):
        raise refuse("div", args, "whole numbers or decimals")
    if a.kind == "decimal":
        whole = a.precision - a.scale + b.scale
        if whole > 18:
            raise ExpressionError(f"div of {_types(args)} may not fit BIGINT; cast the operands to narrower types")
        return Signature(BIGINT, (a, b), scalars.integral_divide(a), f"({{0}} div nullif({{1}}, {_zero(b)}))", f"{{1}} = {_zero(b)}")
    lowest = "-9223372036854775808"
    if BIGINT in (args[0].type, args[1].type) or STRING in (args[0].type, args[1].type):
        safe = f"(if({{1}} = -1L, nullif({{0}}, {lowest}), {{0}}) div nullif({{1}}, 0L))"
        return Signature(BIGINT, (BIGINT, BIGINT), scalars.integral_divide(BIGINT), safe, f"{{1}} = 0 OR ({{1}} = -1 AND {{0}} = {lowest})")
    return Signature(BIGINT, (BIGINT, BIGINT), scalars.integral_divide(BIGINT), "({0} div nullif({1}, 0))", "{1} = 0")


def _lowest(kind: Type) -> str:
    """Write the least value of a whole-number type, with that type."""
    suffix = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}[kind.kind]
    return f"-{scalars.BOUNDS[kind.kind]}{suffix}"


def _time_arithmetic(operator: str, a: Type, b: Type) -> Signature | None:
    """Type sums and differences of dates, timestamps and intervals, None for anything else."""
    if operator == "+" and (b.kind in ("date", "timestamp")) and a.kind not in ("date", "timestamp"):
        found = _time_arithmetic("+", b, a)
        if found is None or found.python is None:
            return found
        python = found.python
        safe = None if found.safe is None else "try_add({0}, {1})"
        return Signature(found.result, found.args[::-1], lambda x, y: python(y, x), safe)
    safe = "try_add({0}, {1})" if operator == "+" else "try_subtract({0}, {1})"
    adding = operator == "+"
    match a.kind, b:
        case "date", Type(kind="tinyint" | "smallint" | "int"):
            return Signature(DATE, (DATE, b), times.plus_days if adding else times.minus_days)
        case "date" | "timestamp", Type(kind=MONTHS.kind):
            return Signature(a, (a, b), times.plus_months if adding else times.minus_months, safe)
        case "date", Type(kind=DAYS.kind):
            move: Callable[..., Any] = times.plus_days if adding else times.minus_days
            return Signature(DATE, (DATE, b), lambda x, y: move(x, y.days), safe)
        case "date" | "timestamp", Type(kind=DAYS.kind | DAYTIME.kind):
            return Signature(TIMESTAMP, (TIMESTAMP, b), times.plus if adding else times.minus, safe)
        case "date", Type(kind="date") if not adding:
            return Signature(DAYS, (DATE, DATE), lambda x, y: x - y)
        case "date" | "timestamp", Type(kind="date" | "timestamp") if not adding:
            return Signature(DAYTIME, (TIMESTAMP, TIMESTAMP), lambda x, y: x - y)
    return None


_WIDE: Final = {"-": "CAST((0BD - {{0}}) AS {0})", "abs": "CAST(if({{0}} < 0, 0BD - {{0}}, {{0}}) AS {0})"}


def unary(name: str, python: Callable[[Type], scalars.Fn], form: str) -> Rule:
    """Type unary minus and abs."""

    def rule(args: Args) -> Signature:
        kind = DOUBLE if args[0].type in (STRING, VOID) else args[0].type
        if not kind.is_numeric:
            raise refuse(name, args, "a number")
        if kind.kind == "decimal" and kind.precision > 34:
            # Spark's own form rounds to 34 digits; a difference doesn't, but its type has to come out the same
            if arithmetic("-", decimal_type(1, 0), kind).scale < kind.scale:
                raise ExpressionError(f"{name} of {kind.sql()}: Spark rounds that to 34 digits; cast to DECIMAL(34,{kind.scale}) or less")
            return Signature(kind, (kind,), python(kind), sql=_WIDE[name].format(kind.sql()))
        if not kind.is_integral:
            return Signature(kind, (kind,), python(kind))
        low = _lowest(kind)
        return Signature(kind, (kind,), python(kind), form.format(f"nullif({{0}}, {low})"), f"{{0}} = {low}")

    return rule


# -- comparison and logic ----------------------------------------------------------------------------------------------------------


def ordered(kind: Type) -> bool:
    """Tell whether values of a type can be compared: maps can't, nor what holds them."""
    match kind:
        case Type(kind="map"):
            return False
        case Type(kind="array", element=element):
            return element is not None and ordered(element)
        case Type(kind="struct", fields=fields):
            return all(ordered(f.type) for f in fields)
    return True


def comparison(operator: str) -> Rule:
    """Type a comparison of two values, brought to a common type."""

    def rule(args: Args) -> Signature:
        a, b = args[0].type, args[1].type
        if {a.kind, b.kind} <= {DAYS.kind, DAYTIME.kind}:  # Spark compares these without a cast
            python = scalars.null_safe_equal(DAYTIME) if operator == "<=>" else scalars.compare(operator, DAYTIME)
            return Signature(BOOLEAN, (a, b), python)
        kind = comparable(a, b)
        if kind is None or not ordered(kind):
            raise refuse(operator, args, "two values of comparable types")
        python = scalars.null_safe_equal(kind) if operator == "<=>" else scalars.compare(operator, kind)
        return Signature(BOOLEAN, (kind, kind), python)

    return rule


def in_rule(args: Args) -> Signature:
    """Type IN over constants."""
    kind = common_of(a.type for a in args)
    if kind is None or not ordered(kind):
        raise refuse("IN", args, "values of comparable types")
    return Signature(BOOLEAN, (kind,) * len(args), scalars.is_in(kind))


def logic(name: str, operands: int) -> Rule:
    """Type AND, OR and NOT, which Spark lets be called as functions too: of just these operands."""

    def rule(args: Args) -> Signature:
        if any(not implicit(a.type, BOOLEAN) or a.type.is_numeric for a in args):
            raise refuse(name.upper(), args, "BOOLEAN")
        return Signature(BOOLEAN, (BOOLEAN,) * operands, lambda a: not a)

    return rule


def null_test(wanted: bool) -> Rule:
    """Type IS NULL and IS NOT NULL."""
    return lambda args: Signature(BOOLEAN, (args[0].type,), lambda a: (a is None) is wanted)


def case_rule(args: Args) -> Signature:
    """Type a CASE: condition, value, condition, value, ..., else."""
    conditions, values = args[:-1:2], (*args[1::2], args[-1])
    for condition in conditions:
        if condition.type not in (BOOLEAN, VOID):
            raise ExpressionError(f"a condition of CASE or IF must be BOOLEAN; got {condition.type.sql()}")
    kind = common_of(v.type for v in values)
    if kind is None:
        raise refuse("CASE", values, "branches of one common type")
    types = tuple(BOOLEAN if i % 2 == 0 and i < len(args) - 1 else kind for i in range(len(args)))
    return Signature(kind, types, None)


def coalesce(args: Args) -> Signature:
    """Type coalesce."""
    kind = common_of(a.type for a in args)
    if kind is None or not args:
        raise refuse("COALESCE", args, "arguments of one common type")
    return Signature(kind, (kind,) * len(args), None)


def extreme(greatest: bool) -> Rule:
    """Type greatest and least."""

    def rule(args: Args) -> Signature:
        kind = common_of((a.type for a in args), unpromoted)
        if kind is None or not ordered(kind) or len(args) < 2:
            raise refuse("greatest" if greatest else "least", args, "two or more values of one comparable type")
        return Signature(kind, (kind,) * len(args), scalars.extreme(greatest, kind))

    return rule


# -- rounding ----------------------------------------------------------------------------------------------------------------------


_MOST_ZEROS: Final = 10_000


def _number_type(name: str, args: Args) -> Type:
    kind = DOUBLE if args[0].type in (STRING, VOID) else args[0].type
    if not kind.is_numeric:
        raise refuse(name, args, "a number")
    return kind


def rounding(name: str, half_even: bool) -> Rule:
    """Type round and bround: a decimal keeps the digits it needs."""

    def rule(args: Args) -> Signature:
        kind = _number_type(name, args)
        digits = constant(name, args[1], INT) if len(args) > 1 else 0
        if abs(digits) > _MOST_ZEROS and kind.kind in ("float", "double"):
            raise ExpressionError(f"{name} of {kind.sql()} to {digits} digits: Spark writes them all out, and ends where it can't")
        result = kind
        if kind.kind == "decimal":
            whole = kind.precision - kind.scale + 1
            scale = max(0, min(kind.scale, digits))
            result = decimal_type(max(whole + scale, 1 - digits), scale)
        if digits < 0 and (kind.is_integral or kind.precision - kind.scale >= 38):
            raise ExpressionError(f"{name} of {kind.sql()} to {digits} digits may overflow; cast it to a DECIMAL with room")
        return Signature(result, (kind, INT)[: len(args)], _first(scalars.round_to(kind, result, digits, half_even)))

    return rule


def _first(python: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda value, *_: python(value)


def floor_rule(name: str, up: bool) -> Rule:
    """Type floor and ceil: BIGINT, or a decimal without fraction."""

    def rule(args: Args) -> Signature:
        kind = _number_type(name, args)
        kind = DOUBLE if kind.kind == "float" else BIGINT if kind.is_integral else kind
        result = BIGINT
        if kind.kind == "decimal":
            result = decimal_type(kind.precision - kind.scale + 1, 0) if kind.scale else kind
        return Signature(result, (kind,), scalars.floor(kind, result, up))

    return rule


def bits(name: str, python: Callable[[int, int], int]) -> Rule:
    """Type & | ^."""

    def rule(args: Args) -> Signature:
        kind = common_of(a.type for a in args)
        if kind is None or not kind.is_integral or not all(a.type.is_integral or a.type == VOID for a in args):
            raise refuse(name, args, "whole numbers")
        return Signature(kind, (kind, kind), python)

    return rule


def complement(args: Args) -> Signature:
    """Type ~."""
    if not args[0].type.is_integral:
        raise refuse("~", args, "a whole number")
    return Signature(args[0].type, (args[0].type,), lambda a: ~a)


def shift(name: str, python: Callable[[Type], scalars.Fn]) -> Rule:
    """Type shiftleft and shiftright: INT or BIGINT."""

    def rule(args: Args) -> Signature:
        if not args[0].type.is_integral or args[1].type.kind not in ("tinyint", "smallint", "int"):
            raise refuse(name, args, "a whole number and an INT")
        kind = BIGINT if args[0].type == BIGINT else INT
        return Signature(kind, (kind, INT), python(kind))

    return rule


def try_rule(rule: Rule, python_name: str) -> Rule:
    """Type the try_ form of an operator: null where the operator fails."""

    def tried(args: Args) -> Signature:
        found = rule(args)
        if found.python is None or not found.result.is_numeric:
            raise refuse(python_name, args, "numbers")
        return Signature(found.result, found.args, casts.attempt(found.python))

    return tried


def hexadecimal(args: Args) -> Signature:
    """Type hex: of a BIGINT, of bytes, or of a text's bytes."""
    kind = args[0].type
    wanted = BIGINT if kind.is_integral else kind
    if wanted not in (BIGINT, STRING, BINARY):
        raise refuse("hex", args, "a whole number, STRING or BINARY")
    return Signature(STRING, (wanted,), text.hexadecimal)
