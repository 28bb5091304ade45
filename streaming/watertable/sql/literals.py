"""Read the constants of Spark SQL: numbers with and without a type suffix, and intervals."""

from __future__ import annotations

import datetime as dt
import re
import sys
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp

from watertable.errors import EvaluationError, ExpressionError, UnsupportedFunction
from watertable.schema import Type, from_sqlglot
from watertable.sql import casts
from watertable.sql.coercion import BIGINT, DAYS, DAYTIME, DOUBLE, FLOAT, INT, MONTHS, STRING
from watertable.sql.coercion import decimal as decimal_type
from watertable.sql.scalars import BOUNDS, EXACT, GREATEST_FLOAT, single
from watertable.sql.terms import Lit, Term


def folded(term: Lit, kind: Type) -> Lit:
    """Cast a constant now, so that one that can't be cast is refused now."""
    if term.value is None:
        return Lit(None, kind)
    try:
        return Lit(casts.cast(term.type, kind)(term.value), kind)
    except (EvaluationError, UnsupportedFunction) as error:  # of a time that Python hasn't, no value can be kept
        raise ExpressionError(f"a {kind.sql()} is wanted there: {error}") from None


def text(value: str) -> Lit:
    """Return a text constant."""
    return Lit(value, STRING)


def number(digits: str) -> Lit:
    """Type a number as Spark's parser does: INT, BIGINT or DECIMAL by size; with a point DECIMAL, with an exponent DOUBLE."""
    try:
        if "e" in digits.lower():
            return Lit(_real(digits, DOUBLE), DOUBLE)
        if "." not in digits:
            value = int(digits)
            if -(1 << 31) <= value < 1 << 31:
                return Lit(value, INT)
            if -(1 << 63) <= value < 1 << 63:
                return Lit(value, BIGINT)
        return _decimal(digits)
    except ExpressionError:
        raise
    except (ValueError, ArithmeticError):
        raise ExpressionError(f"{digits!r} is not a number") from None


def _decimal(digits: str) -> Lit:
    number = Decimal(digits)
    _, figures, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    precision = max(len(figures) + max(0, exponent), scale)
    if precision > 38:
        raise ExpressionError(f"{digits} has {precision} digits; a DECIMAL has at most 38")
    return Lit(number.quantize(Decimal(1).scaleb(-scale), context=EXACT), decimal_type(precision, scale))


def _real(digits: str, kind: Type) -> float:
    real = float(digits)
    if abs(real) > (GREATEST_FLOAT if kind == FLOAT else sys.float_info.max):
        raise ExpressionError(f"{digits} is too large for a {kind.sql()}")
    return real


def suffixed(node: exp.Expr, sign: str = "") -> Lit:
    """Read a number with a type suffix: 1Y, 2S, 3L, 1.5F, 1.5D, 1.5BD."""
    kind, digits = from_sqlglot(node.args["to"]), sign + str(node.this.this)
    match kind.kind:
        case "decimal":
            return _decimal(digits)
        case "double" | "float":
            real = _real(digits, kind)
            return Lit(single(real) if kind == FLOAT else real, kind)
        case _:
            if not digits.removeprefix("-").isdecimal():
                raise ExpressionError(f"{digits} is no whole number, as a {kind.sql()} is")
            whole, bound = int(digits), BOUNDS[kind.kind]
            if not -bound <= whole < bound:
                raise ExpressionError(f"{digits} doesn't fit a {kind.sql()}: it goes from {-bound} to {bound - 1}")
            return Lit(whole, kind)


_INTERVAL_UNITS: Final = {"YEAR": ("months", 12), "MONTH": ("months", 1), "QUARTER": ("months", 3), "WEEK": ("days", 7), "DAY": ("days", 1),
                          "HOUR": ("hours", 1), "MINUTE": ("minutes", 1), "SECOND": ("seconds", 1), "MILLISECOND": ("milliseconds", 1),
                          "MICROSECOND": ("microseconds", 1)}  # fmt: skip
_CLOCK: Final = re.compile(r"([+-]?)(\d+) (\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?")


def interval(node: exp.Expr) -> Lit:
    """Read INTERVAL 1 HOUR, INTERVAL '-2' DAY, INTERVAL '1 02:03:04.5' DAY TO SECOND."""
    amount, unit = node.this, node.args.get("unit")
    sign = -1 if isinstance(amount, exp.Neg) else 1
    value = amount.this if isinstance(amount, exp.Neg) else amount
    if isinstance(unit, exp.IntervalSpan) and isinstance(value, exp.Literal) and str(unit).upper() == "DAY TO SECOND":
        found = _CLOCK.fullmatch(str(value.this).strip())
        if found is not None:
            days, hours, minutes, seconds = (int(found[i]) for i in (2, 3, 4, 5))
            micros = int((found[6] or "").ljust(6, "0"))
            if hours < 24 and minutes < 60 and seconds < 60:
                span = dt.timedelta(days, seconds, micros, 0, minutes, hours)
                return Lit(-span if (found[1] == "-") != (sign < 0) else span, DAYTIME)
    if not isinstance(value, exp.Literal) or not isinstance(unit, exp.Var):
        raise ExpressionError(
            f"{node.sql(dialect='spark')!r}: write INTERVAL 1 HOUR or INTERVAL '1 02:03:04' DAY TO SECOND, with constants; "
            "for an amount that varies, timestampadd(HOUR, amount, timestamp)"
        )
    name = unit.name.upper()
    name = name[:-1] if name.endswith("S") and name[:-1] in _INTERVAL_UNITS else name
    if name not in _INTERVAL_UNITS or re.fullmatch(r"[+-]?\d{1,9}", str(value.this)) is None:
        raise ExpressionError(f"{node.sql(dialect='spark')!r}: wanted a whole number of {', '.join(_INTERVAL_UNITS)}")
    word, factor = _INTERVAL_UNITS[name]
    count = sign * int(str(value.this)) * factor
    if word == "months":
        return Lit(count, MONTHS)
    return Lit(dt.timedelta(**{word: count}), DAYS if word == "days" else DAYTIME)


def is_interval(node: exp.Expr) -> bool:
    """Tell whether a node is an interval or a sum of intervals, as INTERVAL 1 HOUR 30 MINUTES is read."""
    return isinstance(node, exp.Interval) or (isinstance(node, exp.Add) and is_interval(node.this) and is_interval(node.expression))


def add_intervals(a: Term, b: Term) -> Lit:
    """Add two constant intervals."""
    assert isinstance(a, Lit)
    assert isinstance(b, Lit)
    if (a.type == MONTHS) != (b.type == MONTHS):
        raise ExpressionError("an interval of months and days has no fixed length; add one after the other")
    total: Any = a.value
    return Lit(total + b.value, a.type if a.type == b.type else DAYTIME)
