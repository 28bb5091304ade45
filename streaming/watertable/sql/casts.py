"""Cast Python values from one Spark type to another, as Spark's ANSI mode does, or fail where it does.

`cast(source, target)` returns the function for one pair of types; values are never null. The text formats are Spark's: what it trims,
which dates, zones and floating point spellings it reads, how it writes doubles. One difference is on purpose: text that holds a time
and no date fails here, because Spark would complete it with today's date and a table must not depend on the day it is computed.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import zoneinfo
from collections.abc import Callable
from decimal import ROUND_DOWN, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

from watertable.errors import EvaluationError, UnsupportedFunction
from watertable.schema import Type
from watertable.sql import scalars
from watertable.sql.coercion import element_of, key_of
from watertable.sql.scalars import fail

Cast = Callable[[Any], Any]
UTC: Final = dt.UTC
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = dt.timedelta(microseconds=1)
_BLANK: Final = "".join(map(chr, range(0x21))) + "\x7f"  # what Spark trims: white space and control characters of ASCII
_SPACE: Final = _BLANK[:-1]  # what Java's String.trim does
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_FLOAT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_HEX_FLOAT: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,10})?")
_DATE: Final = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP: Final = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})"
    r"(?:\.([0-9]*))?([^0-9].*)?)?)?)?)?)?",
    re.DOTALL,
)
_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::(\d{1,2})(?::(\d{2}))?|(\d{2})(\d{2})?)?")
_SPECIAL: Final = {"inf": math.inf, "+inf": math.inf, "infinity": math.inf, "+infinity": math.inf, "-inf": -math.inf,
                   "-infinity": -math.inf, "nan": math.nan, "+nan": math.nan, "-nan": math.nan}  # fmt: skip
_TRUE: Final = frozenset({"t", "true", "y", "yes", "1"})
_FALSE: Final = frozenset({"f", "false", "n", "no", "0"})
# Java's ZoneId.SHORT_IDS
_SHORT_ZONES: Final = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo",
    "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh", "EST": "-05:00", "MST": "-07:00",
    "HST": "-10:00",
}  # fmt: skip


def cast(source: Type, target: Type) -> Cast:
    """Return the cast from one type to another; the pair must be one that `coercion.castable` allows."""
    if source == target or source.kind == "void":
        return _same
    match source.kind, target.kind:
        case ("array" | "map" | "struct", _):
            return _nested(source, target)
        case (_, "string"):
            return to_string(source)
        case ("string", _):
            return _from_string(target)
        case (_, "boolean"):
            return lambda v: bool(v != 0)
        case ("timestamp", _):
            return _from_timestamp(target)
        case ("date", "timestamp"):
            return lambda v: dt.datetime(v.year, v.month, v.day, tzinfo=UTC)
        case (_, "timestamp"):
            return lambda v: plus_micros(EPOCH, v * 1_000_000)
    number = _to_number(source, target)
    if source.kind == "boolean":
        return lambda v: number(int(v))
    return number


def _same(value: Any) -> Any:
    return value


def _nested(source: Type, target: Type) -> Cast:
    match source, target:
        case Type(kind="array"), Type(kind="array"):
            inner = optional(cast(element_of(source), element_of(target)))
            return lambda v: [inner(e) for e in v]
        case Type(kind="map"), Type(kind="map"):
            key, value = cast(key_of(source), key_of(target)), optional(cast(element_of(source), element_of(target)))
            return lambda v: {key(n): value(e) for n, e in v.items()}
    pairs = [(f.name, g.name, optional(cast(f.type, g.type))) for f, g in zip(source.fields, target.fields, strict=True)]
    return lambda v: {new: inner(v[old]) for old, new, inner in pairs}


def optional(fn: Cast) -> Cast:
    """Return the function that passes null through."""
    return lambda v: None if v is None else fn(v)


def attempt(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that gives null where it would fail: TRY_CAST, try_add and so on."""

    def tried(*args: Any) -> Any:
        try:
            return fn(*args)
        except EvaluationError:
            return None

    return tried


# -- numbers -----------------------------------------------------------------------------------------------------------------------


def _to_number(source: Type, target: Type) -> Cast:
    match target.kind:
        case "double":
            return float
        case "float":
            return lambda v: scalars.single(float(v))
        case "decimal":
            fit = scalars.fixed(target)
            if source.kind not in ("float", "double"):
                return lambda v: fit(Decimal(v))
            return lambda v: fit(Decimal(repr(v))) if math.isfinite(v) else None
    check = scalars.whole(target)
    if source.kind == "decimal" and (source.precision <= 18 or target.kind == "bigint"):
        return lambda v: check(int(v.to_integral_value(ROUND_DOWN)))
    if source.is_integral or source.kind == "boolean":
        return lambda v: check(int(v))
    bound = scalars.BOUNDS[target.kind]
    top = bound if target.kind == "bigint" else bound - 1  # the largest BIGINT, as a double, is one more; Java's cast brings it back

    def cut(value: Any) -> int:
        value = float(value)  # Spark sends wide decimals through a double, too
        if not math.isfinite(value) or math.floor(value) > top or math.ceil(value) < -bound:
            raise fail(f"{value} is out of range for {target.sql()}")
        return min(int(value), bound - 1)

    return cut


# -- text --------------------------------------------------------------------------------------------------------------------------


def to_string(source: Type) -> Cast:
    """Return how Spark writes a value of a type."""
    match source.kind:
        case "boolean":
            return lambda v: "true" if v else "false"
        case "decimal":
            return lambda v: f"{v:f}"
        case "double":
            return lambda v: java_float(v, repr(v))
        case "float":
            return lambda v: java_float(v, scalars.repr_single(v))
        case "timestamp":
            return write_timestamp
        case "date":
            return lambda v: f"{v.year:04}-{v.month:02}-{v.day:02}"
        case "binary":
            return _read_text
    return str


def _read_text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise fail(f"not UTF-8: {error.reason} at byte {error.start}") from None


def java_float(value: float, shortest: str) -> str:
    """Write a floating point number as Java does, given its shortest digits."""
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign, figures, exponent = Decimal(shortest).as_tuple()
    if len(str(int("".join(map(str, figures)))).rstrip("0")) == 1:  # Java writes two digits at least, the nearest two
        sign, figures, exponent = Decimal(f"{value:.1e}").as_tuple()
    assert isinstance(exponent, int)
    digits = "".join(map(str, figures)).lstrip("0")
    minus = "-" if sign else ""
    if not digits:
        return minus + "0.0"
    point = len(digits) + exponent  # the place of the decimal point, counted from the first digit
    digits = digits.rstrip("0") or "0"
    if -3 < point <= 7:
        if point <= 0:
            return f"{minus}0.{'0' * -point}{digits}"
        digits = digits.ljust(point, "0")
        return f"{minus}{digits[:point]}.{digits[point:] or '0'}"
    return f"{minus}{digits[0]}.{digits[1:] or '0'}E{point - 1}"


def write_timestamp(value: dt.datetime) -> str:
    """Write a timestamp in UTC, without trailing zeros in the fraction."""
    text = f"{value.year:04}-{value.month:02}-{value.day:02} {value.hour:02}:{value.minute:02}:{value.second:02}"
    return f"{text}.{value.microsecond:06}".rstrip("0") if value.microsecond else text


def _from_string(target: Type) -> Cast:
    match target.kind:
        case "binary":
            return lambda v: v.encode()
        case "boolean":
            return _to_boolean
        case "date":
            return read_date
        case "timestamp":
            return read_timestamp
        case "double":
            return _to_double
        case "float":
            return lambda v: scalars.single(_to_double(v))
        case "decimal":
            return _to_decimal(target)
    check = scalars.whole(target)

    def to_whole(text: str) -> int:
        digits = text.strip(_BLANK)
        if _WHOLE.fullmatch(digits) is None:
            raise fail(f"{text!r} is not a {target.sql()}")
        return check(int(digits))

    return to_whole


def _to_boolean(text: str) -> bool:
    word = text.strip(_BLANK).lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise fail(f"{text!r} is not a BOOLEAN")


def _to_double(text: str) -> float:
    digits = text.strip(_SPACE)
    if _FLOAT.fullmatch(digits):
        return float(digits.rstrip("fFdD"))
    if (found := _HEX_FLOAT.fullmatch(digits)) is not None:
        return float.fromhex(found[1])
    special = _SPECIAL.get(digits.lower())
    if special is None:
        raise fail(f"{text!r} is not a DOUBLE")
    return special


def _to_decimal(target: Type) -> Cast:
    fit = scalars.fixed(target)

    def read(text: str) -> Decimal:
        digits = text.strip(_SPACE)
        if _DECIMAL.fullmatch(digits) is None:
            raise fail(f"{text!r} is not a {target.sql()}")
        try:
            value = Decimal(digits)
            if value.adjusted() + 1 > 38:
                raise fail(f"{text!r} doesn't fit {target.sql()}")
            return fit(value)
        except InvalidOperation:
            raise fail(f"{text!r} doesn't fit {target.sql()}") from None

    return read


# -- times -------------------------------------------------------------------------------------------------------------------------


def plus_micros(value: dt.datetime, micros: int) -> dt.datetime:
    """Add microseconds; past year 9999, where Spark goes on and Python ends, stop loudly."""
    try:
        return value + dt.timedelta(microseconds=micros)
    except OverflowError:
        raise beyond() from None


def beyond() -> UnsupportedFunction:
    """Build the error for times outside the years 1 to 9999, which Spark has and Python hasn't."""
    return UnsupportedFunction("times outside the years 1 to 9999 can't be interpreted")


def micros(value: dt.datetime) -> int:
    """Return the microseconds since 1970."""
    return (value - EPOCH) // MICROSECOND


def _from_timestamp(target: Type) -> Cast:
    match target.kind:
        case "date":
            return lambda v: v.date()
        case "double":
            return lambda v: micros(v) / 1e6
        case "float":
            return lambda v: scalars.single(micros(v) / 1e6)
        case "decimal":
            fit = scalars.fixed(target)
            return lambda v: fit(Decimal(micros(v)).scaleb(-6))
    check = scalars.whole(target)
    return lambda v: check(micros(v) // 1_000_000)


def read_date(text: str) -> dt.date:
    """Read a date as Spark does: yyyy, yyyy-m, yyyy-m-d, and anything after a T or a space behind the day."""
    found = _DATE.fullmatch(text.strip(_BLANK))
    if found is None:
        raise fail(f"{text!r} is not a DATE")
    sign, year, month, day = found.groups()
    return _calendar(text, -int(year) if sign == "-" else int(year), int(month or 1), int(day or 1))


def _calendar(text: str, year: int, month: int, day: int) -> dt.date:
    try:
        return dt.date(year, month, day)
    except ValueError:
        try:
            dt.date(2000 + year % 400, month, day)  # the Gregorian calendar repeats
        except ValueError:
            raise fail(f"{text!r} is not a date of the calendar") from None
        raise beyond() from None


def read_timestamp(text: str) -> dt.datetime:
    """Read a timestamp as Spark does, UTC where the text names no zone; a time without a date fails."""
    found = _TIMESTAMP.fullmatch(text.strip(_BLANK))
    if found is None:
        raise fail(f"{text!r} is not a TIMESTAMP")
    sign, year, month, day, hour, minute, second, fraction, zone = found.groups()
    offset = _zone(zone.strip(_SPACE)) if zone is not None else UTC
    if offset is None or int(hour or 0) > 23 or int(minute or 0) > 59 or int(second or 0) > 59:
        raise fail(f"{text!r} is not a TIMESTAMP")
    named = -int(year) if sign == "-" else int(year)
    aside = 0 if 1 <= named <= 9999 else 400 if named < 1 else -400  # in UTC it may be a time that Python has, and the calendar repeats
    date = _calendar(text, named + aside, int(month or 1), int(day or 1))
    clock = dt.time(int(hour or 0), int(minute or 0), int(second or 0), int((fraction or "")[:6].ljust(6, "0")))
    try:
        when = dt.datetime.combine(date, clock, offset).astimezone(UTC)
        return when.replace(year=when.year - aside)
    except (OverflowError, ValueError):
        raise beyond() from None


@lru_cache(maxsize=1024)
def _zone(name: str) -> dt.tzinfo | None:
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    name = _SHORT_ZONES.get(name, name)
    if (found := _OFFSET.fullmatch(name)) is not None:
        sign, hours, minutes, seconds, packed_minutes, packed_seconds = found.groups()
        if packed_minutes is not None and len(hours) == 1:
            return None
        h, m, s = int(hours), int(minutes or packed_minutes or 0), int(seconds or packed_seconds or 0)
        total = dt.timedelta(hours=h, minutes=m, seconds=s)
        if m > 59 or s > 59 or total > dt.timedelta(hours=18):
            return None
        return dt.timezone(-total if sign == "-" else total)
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None
