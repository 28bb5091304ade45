"""Compute Spark's operators and functions in Python, value by value, as Spark's ANSI mode would.

Numbers: int within its type's bounds, `Decimal` at its type's scale, float (rounded to 32 bits for FLOAT). Text: str, counted in code
points. Times: aware UTC `datetime`, `date`. The law: for arguments of the declared types the result, or the failure, is Spark's; the
differential tests hold each function to it. Nulls are the evaluator's business, except for the functions marked EAGER or LAZY.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

from watertable.errors import EvaluationError
from watertable.schema import Type

GREATEST_FLOAT: Final = float.fromhex("0x1.fffffep+127")
BOUNDS: Final = {"tinyint": 1 << 7, "smallint": 1 << 15, "int": 1 << 31, "bigint": 1 << 63}
EXACT: Final = Context(prec=120, rounding=ROUND_HALF_UP)
_MOST_DIGITS: Final = 400
"""More than a DOUBLE has before the point, and its shortest digits have behind it."""
_FLOAT32: Final = struct.Struct("f")
Fn = Callable[..., Any]


def fail(reason: str) -> EvaluationError:
    """Build the error for a record that an expression fails on."""
    return EvaluationError(reason)


def whole(kind: Type) -> Callable[[int], int]:
    """Return a check that a whole number is within the bounds of its type."""
    bound, name = BOUNDS[kind.kind], kind.sql()

    def check(value: int) -> int:
        if -bound <= value < bound:
            return value
        raise fail(f"{value} is out of range for {name}")

    return check


def fixed(kind: Type, rounding: str = ROUND_HALF_UP) -> Callable[[Decimal], Decimal]:
    """Return a function that brings a decimal to the scale of its type, failing where it doesn't fit."""
    unit, limit, name = Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale), kind.sql()

    def fit(value: Decimal) -> Decimal:
        if value.adjusted() < 2 * 38:  # beyond, it can't fit, and quantize would need digits without end
            result = value.quantize(unit, rounding, EXACT)
            if result.copy_abs() < limit:
                return result if result else result.copy_abs()  # Java's decimals know no negative zero
        raise fail(f"{value} doesn't fit {name}")

    return fit


def single(value: float) -> float:
    """Round to 32 bits, as FLOAT does after each operation."""
    try:
        return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _float(kind: Type) -> Callable[[float], float]:
    return single if kind.kind == "float" else float


def add(kind: Type) -> Fn:
    """Return `+` on the result type."""
    if kind.is_integral:
        check = whole(kind)
        return lambda a, b: check(a + b)
    if kind.kind == "decimal":
        fit = fixed(kind)
        return lambda a, b: fit(EXACT.add(a, b))
    rounded = _float(kind)
    return lambda a, b: rounded(a + b)


def subtract(kind: Type) -> Fn:
    """Return binary `-` on the result type."""
    if kind.is_integral:
        check = whole(kind)
        return lambda a, b: check(a - b)
    if kind.kind == "decimal":
        fit = fixed(kind)
        return lambda a, b: fit(EXACT.subtract(a, b))
    rounded = _float(kind)
    return lambda a, b: rounded(a - b)


def multiply(kind: Type) -> Fn:
    """Return `*` on the result type."""
    if kind.is_integral:
        check = whole(kind)
        return lambda a, b: check(a * b)
    if kind.kind == "decimal":
        fit = fixed(kind)
        return lambda a, b: fit(EXACT.multiply(a, b))
    rounded = _float(kind)
    return lambda a, b: rounded(a * b)


def divide(kind: Type) -> Fn:
    """Return `/`: decimals to 38 fraction digits and then to the result's scale, everything else as DOUBLE."""
    if kind.kind == "decimal":
        fit, unit = fixed(kind), Decimal(1).scaleb(-38)

        def quotient(a: Decimal, b: Decimal) -> Decimal:
            if not b:
                raise fail("division by zero")
            # 38 fraction digits rounded half up; a quotient has at most 38 + 38 whole digits, so 120 digits and a sticky one are enough
            exact = EXACT.divide(a, b)
            return fit(exact.quantize(unit, ROUND_HALF_UP, EXACT))

        return quotient

    def ratio(a: float, b: float) -> float:
        if b == 0:
            raise fail("division by zero")
        return a / b

    return ratio


def integral_divide(kind: Type) -> Fn:
    """Return `div` on the (common) type of its arguments; the result is BIGINT, cut toward zero."""
    check = whole(Type("bigint"))

    def quotient(a: Any, b: Any) -> int:
        if not b:
            raise fail("division by zero")
        if kind.kind == "decimal":
            return check(int(EXACT.divide(a, b).to_integral_value(ROUND_DOWN)))
        result = abs(a) // abs(b)
        return check(result if (a < 0) == (b < 0) else -result)

    return quotient


def remainder(kind: Type) -> Fn:
    """Return `%`: the sign is the dividend's, as in Java."""
    rounded = _float(kind) if not kind.is_integral else None
    fit = fixed(kind) if kind.kind == "decimal" else None

    def rest(a: Any, b: Any) -> Any:
        if not b:
            raise fail("remainder by zero")
        if fit is not None:
            return fit(EXACT.remainder(a, b))
        if rounded is not None:
            return rounded(math.fmod(a, b)) if math.isfinite(a) else math.nan
        result = abs(a) % abs(b)
        return -result if a < 0 else result

    return rest


def positive_remainder(kind: Type) -> Fn:
    """Return pmod: the remainder, brought up to the divisor's side where it is negative; Java lets that sum wrap around."""
    rest = remainder(kind)
    plus: Fn = add(kind)
    if kind.is_integral:
        cut = wrap(kind) if kind.kind in ("int", "bigint") else int
        plus = lambda a, b: cut(a + b)  # noqa: E731

    def pmod(a: Any, b: Any) -> Any:
        result = rest(a, b)
        return rest(plus(result, b), b) if result < 0 else result

    return pmod


def negate(kind: Type) -> Fn:
    """Return unary `-`."""
    if kind.is_integral:
        check = whole(kind)
        return lambda a: check(-a)
    if kind.kind == "decimal":
        return lambda a: EXACT.minus(a) if a else a
    return lambda a: -a


def absolute(kind: Type) -> Fn:
    """Return abs."""
    if kind.is_integral:
        check = whole(kind)
        return lambda a: check(abs(a))
    return lambda a: a.copy_abs() if isinstance(a, Decimal) else abs(a)


def wrap(kind: Type) -> Callable[[int], int]:
    """Return a cut to the bits of a whole-number type, as Java's shifts and complements do."""
    bound = BOUNDS[kind.kind]
    return lambda value: (value + bound) % (2 * bound) - bound


def shift_left(kind: Type) -> Fn:
    """Return `<<`: the distance is taken modulo the width."""
    cut, width = wrap(kind), 64 if kind.kind == "bigint" else 32
    return lambda a, n: cut(a << (n % width))


def shift_right(kind: Type) -> Fn:
    """Return `>>`, keeping the sign."""
    width = 64 if kind.kind == "bigint" else 32
    return lambda a, n: a >> (n % width)


def shift_right_unsigned(kind: Type) -> Fn:
    """Return shiftrightunsigned, filling with zeros."""
    cut, width = wrap(kind), 64 if kind.kind == "bigint" else 32
    return lambda a, n: cut((a % (1 << width)) >> (n % width))


# -- order -------------------------------------------------------------------------------------------------------------------------


def order_key(kind: Type) -> Callable[[Any], Any] | None:
    """Return what to compare values of a type by, None where Python's own order is Spark's: NaN is equal to itself and above all."""
    match kind:
        case Type(kind="float" | "double"):
            return lambda v: (1, 0.0) if v != v else (0, v)  # only NaN differs from itself
        case Type(kind="array", element=Type() as element):
            inner = order_key(element) or _itself
            return lambda v: tuple((0,) if e is None else (1, inner(e)) for e in v)
        case Type(kind="struct", fields=fields):
            keys = [(f.name, order_key(f.type) or _itself) for f in fields]
            return lambda v: tuple((0,) if v[n] is None else (1, key(v[n])) for n, key in keys)
    return None


def _itself(value: Any) -> Any:
    return value


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def compare(operator: str, kind: Type) -> Fn:
    """Return a comparison of two values of one type."""
    plain, key = _COMPARE[operator], order_key(kind)
    return plain if key is None else lambda a, b: plain(key(a), key(b))


def null_safe_equal(kind: Type) -> Fn:
    """Return `<=>`: null equals null."""
    equal = compare("=", kind)
    return lambda a, b: a is b if a is None or b is None else equal(a, b)


def extreme(greatest: bool, kind: Type) -> Fn:
    """Return greatest or least; nulls are left out."""
    key = order_key(kind)
    pick: Fn = max if greatest else min

    def choose(*values: Any) -> Any:
        present = [v for v in values if v is not None]
        return pick(present, key=key) if present else None

    return choose


def is_in(kind: Type) -> Fn:
    """Return IN over constants: null if the value is, or if it isn't found and a candidate is null."""
    key = order_key(kind) or _itself

    def find(value: Any, *candidates: Any) -> bool | None:
        if value is None:
            return None
        wanted = key(value)
        if any(c is not None and key(c) == wanted for c in candidates):
            return True
        return None if None in candidates else False

    return find


# -- rounding and mathematics ------------------------------------------------------------------------------------------------------


def round_to(source: Type, result: Type, scale: int, half_even: bool) -> Fn:
    """Return round or bround at a constant scale; beyond all digits that a value may have, another one rounds no differently."""
    mode = ROUND_HALF_EVEN if half_even else ROUND_HALF_UP
    least, most = (-39, source.scale) if source.kind == "decimal" else (-_MOST_DIGITS, _MOST_DIGITS)
    unit = Decimal(1).scaleb(-max(least, min(scale, most)))
    if source.kind == "decimal":
        fit = fixed(result, mode)
        return lambda a: fit(a.quantize(unit, mode, EXACT))
    if source.is_integral:
        if scale >= 0:
            return _itself
        check = whole(result)
        return lambda a: check(int(Decimal(a).quantize(unit, mode, EXACT)))
    write = repr_single if source.kind == "float" else repr
    back = _float(source)
    room = Context(prec=800)
    # through the shortest digits, as Java's BigDecimal.valueOf; its zero has no sign
    return lambda a: back(float(Decimal(write(a)).quantize(unit, mode, room)) + 0.0) if math.isfinite(a) else a


def repr_single(value: float) -> str:
    """Write a 32 bit float with the fewest digits that read back as the same 32 bits."""
    return next((text for n in range(1, 10) if single(float(text := f"{value:.{n}g}")) == value), repr(value))


def floor(source: Type, result: Type, up: bool) -> Fn:
    """Return floor or ceil without a scale."""
    if source.kind == "decimal":
        fit = fixed(result, ROUND_CEILING if up else ROUND_FLOOR)
        return lambda a: fit(a)
    if source.is_integral:
        return _itself
    bound = BOUNDS["bigint"]

    def cut(a: float) -> int:
        # Java's cast from double saturates, and makes NaN zero
        if a != a:
            return 0
        if math.isinf(a):
            return bound - 1 if a > 0 else -bound
        return max(-bound, min(bound - 1, math.ceil(a) if up else math.floor(a)))

    return cut


def sign(a: float) -> float:
    """Return the sign as a double."""
    return a if a != a or a == 0 else math.copysign(1.0, a)


def sqrt(a: float) -> float:
    """Return the square root, NaN for negatives."""
    return math.sqrt(a) if a >= 0 else math.nan


def nan_or(a: float | None, b: float | None) -> float | None:
    """Return the first, unless it is NaN."""
    return b if a is not None and a != a else a
