"""Compute Spark's date and time functions in Python, in UTC, to the microsecond, on the Gregorian calendar.

Units and patterns are constants and are read when the expression is written. Python's calendar ends at the years 1 and 9999: past them,
where Spark goes on, the interpreter stops with `UnsupportedFunction` instead of giving another answer.
"""

from __future__ import annotations

import calendar
import datetime as dt
import itertools
import math
import re
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from watertable.errors import ExpressionError
from watertable.sql.casts import EPOCH, MICROSECOND, UTC, beyond, micros, plus_micros
from watertable.sql.scalars import fail

_UNITS: Final = {
    "year": ("year", "yyyy", "yy"), "quarter": ("quarter",), "month": ("month", "mon", "mm"), "week": ("week",), "day": ("day", "dd"),
    "hour": ("hour",), "minute": ("minute",), "second": ("second",), "millisecond": ("millisecond",), "microsecond": ("microsecond",),
}  # fmt: skip
_NAMES: Final = {name: unit for unit, names in _UNITS.items() for name in names}
_MICROS: Final = {"week": 604_800_000_000, "day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000,
                  "millisecond": 1_000, "microsecond": 1}  # fmt: skip
_MONTHS: Final = {"year": 12, "quarter": 3, "month": 1}
_WEEKDAYS: Final = ("mo", "tu", "we", "th", "fr", "sa", "su")
_LONG_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def unit_of(name: str, allowed: tuple[str, ...] = tuple(_UNITS)) -> str:
    """Read a unit's name; raise `ExpressionError` for what isn't one here."""
    unit = _NAMES.get(name.lower())
    if unit is None or unit not in allowed:
        raise ExpressionError(f"no unit {name!r} here; units: {', '.join(allowed)}")
    return unit


def truncate(unit: str) -> Callable[..., dt.datetime]:
    """Return date_trunc to a unit."""
    if unit in ("millisecond", "microsecond", "second", "minute", "hour"):
        size = dt.timedelta(microseconds=_MICROS[unit])
        return lambda _, value: value - (value - EPOCH) % size
    cut = truncate_date(unit) if unit != "day" else _same_day
    return lambda _, value: _midnight(cut(value.date()))


def _same_day(value: dt.date, *_: object) -> dt.date:
    return value


def _midnight(value: dt.date) -> dt.datetime:
    return dt.datetime(value.year, value.month, value.day, tzinfo=UTC)


def truncate_date(unit: str) -> Callable[..., dt.date]:
    """Return trunc to a unit of at least a week."""
    match unit:
        case "year":
            return lambda d, *_: d.replace(month=1, day=1)
        case "quarter":
            return lambda d, *_: d.replace(month=(d.month - 1) // 3 * 3 + 1, day=1)
        case "month":
            return lambda d, *_: d.replace(day=1)
    return lambda d, *_: plus_days(d, -d.weekday())


def plus_days(value: dt.date, days: int) -> dt.date:
    """Add days to a date."""
    try:
        return value + dt.timedelta(days=days)
    except OverflowError:
        raise beyond() from None


def minus_days(value: dt.date, days: int) -> dt.date:
    """Take days off a date."""
    return plus_days(value, -days)


def plus_months(value: Any, months: int) -> Any:
    """Add months to a date or timestamp; a day that the month lacks becomes its last."""
    year, month = divmod(value.year * 12 + value.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        raise beyond()
    return value.replace(year=year, month=month + 1, day=min(value.day, calendar.monthrange(year, month + 1)[1]))


def minus_months(value: Any, months: int) -> Any:
    """Take months off a date or timestamp."""
    return plus_months(value, -months)


def plus(value: dt.datetime, interval: dt.timedelta) -> dt.datetime:
    """Add an interval to a timestamp."""
    try:
        return value + interval
    except OverflowError:
        raise beyond() from None


def minus(value: dt.datetime, interval: dt.timedelta) -> dt.datetime:
    """Take an interval off a timestamp."""
    return plus(value, -interval)


def days_between(end: dt.date, start: dt.date) -> int:
    """Return the days from start to end."""
    return (end - start).days


def last_day(value: dt.date) -> dt.date:
    """Return the last day of the month."""
    return value.replace(day=calendar.monthrange(value.year, value.month)[1])


def next_day(name: str) -> Callable[..., dt.date]:
    """Return the function for the next given weekday after a date."""
    wanted = name.lower()
    match = [i for i, day in enumerate(_LONG_DAYS) if wanted in (_WEEKDAYS[i], day[:3], day)]
    if not match:
        raise ExpressionError(f"no weekday {name!r}; write e.g. 'MON'")
    return lambda value, *_: plus_days(value, (match[0] - value.weekday() - 1) % 7 + 1)


def make_date(year: int, month: int, day: int) -> dt.date:
    """Build a date, failing where the calendar has none."""
    if not 1 <= month <= 12 or not 1 <= day <= calendar.monthrange(2000 + year % 400, month)[1]:
        raise fail(f"{year}-{month}-{day} is not a date of the calendar")
    if not 1 <= year <= 9999:
        raise beyond()
    return dt.date(year, month, day)


def day_of_week(value: dt.date) -> int:
    """Return the weekday, 1 for Sunday."""
    return value.isoweekday() % 7 + 1


def day_name(value: dt.date) -> str:
    """Return the weekday in three English letters."""
    return _LONG_DAYS[value.weekday()][:3].title()


def month_name(value: dt.date) -> str:
    """Return the month in three English letters."""
    return "JanFebMarAprMayJunJulAugSepOctNovDec"[3 * value.month - 3 : 3 * value.month]


def seconds_with_fraction(value: dt.datetime) -> Decimal:
    """Return EXTRACT(SECOND)."""
    return Decimal(value.second * 1_000_000 + value.microsecond).scaleb(-6)


def add_units(unit: str) -> Callable[..., dt.datetime]:
    """Return timestampadd for a unit."""
    if unit in _MONTHS:
        return lambda count, value: plus_months(value, count * _MONTHS[unit])
    return lambda count, value: plus_micros(value, count * _MICROS[unit])


def count_units(unit: str) -> Callable[..., int]:
    """Return timestampdiff for a unit: whole units from start to end, cut toward zero."""
    if unit in _MONTHS:
        return lambda start, end: _toward_zero(_whole_months(start, end), _MONTHS[unit])
    return lambda start, end: _toward_zero((end - start) // MICROSECOND, _MICROS[unit])


def _toward_zero(a: int, b: int) -> int:
    return a // b if a >= 0 else -(-a // b)


def _whole_months(start: dt.datetime, end: dt.datetime) -> int:
    """Count as Java does: first the day is moved where the time of day falls short, then whole months are taken."""
    last = end.date()
    if end.date() > start.date() and end.time() < start.time():
        last -= dt.timedelta(days=1)
    elif end.date() < start.date() and end.time() > start.time():
        last += dt.timedelta(days=1)
    packed_start, packed_end = ((d.year * 12 + d.month) * 32 + d.day for d in (start.date(), last))
    return _toward_zero(packed_end - packed_start, 32)


def months_between(end: dt.datetime, start: dt.datetime, rounded: bool = True) -> float:
    """Return the months from start to end; whole where both are on the same day or on their months' last."""
    months = (end.year - start.year) * 12 + end.month - start.month
    if end.day == start.day or (end.date() == last_day(end.date()) and start.date() == last_day(start.date())):
        return float(months)
    seconds_end, seconds_start = (t.hour * 3600 + t.minute * 60 + t.second for t in (end, start))
    difference = months + ((end.day - start.day) * 86_400 + seconds_end - seconds_start) / (31 * 86_400)
    if not rounded:
        return difference
    return float(math.floor(difference * 1e8 + 0.5)) / 1e8  # Java's Math.round


def from_units(factor: int) -> Callable[[int], dt.datetime]:
    """Return timestamp_seconds, timestamp_millis or timestamp_micros."""

    def build(value: int) -> dt.datetime:
        if not -(1 << 63) <= value * factor < 1 << 63:
            raise fail(f"{value} is out of range for a TIMESTAMP")
        return plus_micros(EPOCH, value * factor)

    return build


def to_units(factor: int) -> Callable[[dt.datetime], int]:
    """Return unix_seconds, unix_millis or unix_micros, cut downward."""
    return lambda value: micros(value) // factor


def unix_timestamp(value: dt.datetime) -> int:
    """Return the seconds since 1970, cut toward zero (unix_seconds cuts downward)."""
    return _toward_zero(micros(value), 1_000_000)


def from_unix_date(days: int) -> dt.date:
    """Return the date so many days after 1970-01-01."""
    return plus_days(dt.date(1970, 1, 1), days)


def unix_date(value: dt.date) -> int:
    """Return the days since 1970-01-01."""
    return (value - dt.date(1970, 1, 1)).days


def zone_shift(name: str, to_utc: bool) -> Callable[..., dt.datetime]:
    """Return to_utc_timestamp or from_utc_timestamp for a zone."""
    try:
        zone = zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ExpressionError(f"no time zone {name!r}; write a name like 'Europe/London'") from None
    if to_utc:
        return lambda value, *_: value.replace(tzinfo=zone).astimezone(UTC)
    return lambda value, *_: value.astimezone(zone).replace(tzinfo=UTC, fold=0)


# -- patterns ----------------------------------------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|(.)", re.DOTALL)
_WRITE: Final[dict[str, Callable[[dt.datetime], str]]] = {
    "yyyy": lambda t: f"{t.year:04}", "yy": lambda t: f"{t.year % 100:02}", "MM": lambda t: f"{t.month:02}", "M": lambda t: f"{t.month}",
    "dd": lambda t: f"{t.day:02}", "d": lambda t: f"{t.day}", "HH": lambda t: f"{t.hour:02}", "H": lambda t: f"{t.hour}",
    "mm": lambda t: f"{t.minute:02}", "ss": lambda t: f"{t.second:02}", "SSS": lambda t: f"{t.microsecond // 1000:03}",
    "SSSSSS": lambda t: f"{t.microsecond:06}", "DDD": lambda t: f"{t.timetuple().tm_yday:03}",
}  # fmt: skip
_READ: Final = {
    "yyyy": "(?P<year>-?[0-9]{4}|[+-][0-9]{5,6})", "MM": "(?P<month>[0-9]{2})", "dd": "(?P<day>[0-9]{2})", "HH": "(?P<hour>[0-9]{2})",
    "mm": "(?P<minute>[0-9]{2})", "ss": "(?P<second>[0-9]{2})", "SSS": "(?P<fraction>[0-9]{3})", "SSSSSS": "(?P<fraction>[0-9]{6})",
    "M": "(?P<month>[0-9]{1,2})", "d": "(?P<day>[0-9]{1,2})", "H": "(?P<hour>[0-9]{1,2})",
}  # fmt: skip


def _tokens(pattern: str, known: dict[str, Any]) -> list[tuple[str, bool]]:
    tokens: list[tuple[str, bool]] = []
    for match in _TOKEN.finditer(pattern):
        letters, quoted = match[0], match[1]
        if quoted is not None:
            tokens.append((quoted.replace("''", "'") or "'", False))
        elif match[2]:
            if letters not in known:
                raise ExpressionError(f"the pattern {pattern!r} uses {letters!r}; known here: {', '.join(known)}")
            tokens.append((letters, True))
        elif letters in "[]{}#'":
            raise ExpressionError(f"the pattern {pattern!r} uses {letters!r}, which is not supported here")
        else:
            tokens.append((letters, False))
    return tokens


def date_format(pattern: str) -> Callable[..., str]:
    """Return date_format for a pattern."""
    writers = [_WRITE[text] if field else text for text, field in _tokens(pattern, _WRITE)]
    return lambda value, *_: "".join(w if isinstance(w, str) else w(value) for w in writers)


def read_format(pattern: str) -> Callable[..., dt.datetime]:
    """Return to_timestamp for a pattern: the whole text must match it."""
    tokens = _tokens(pattern, _READ)
    fields = [text for text, field in tokens if field]
    if len(fields) != len({f[0] for f in fields}) or "yyyy" not in fields or not {"M", "MM"} & set(fields) or not {"d", "dd"} & set(fields):
        raise ExpressionError(f"the pattern {pattern!r} must name year, month and day, each field once")
    if any(a[1] and b[1] and len(a[0]) == 1 for a, b in itertools.pairwise(tokens)):
        raise ExpressionError(f"the pattern {pattern!r} has a field of varying width right before another")
    compiled = re.compile("".join(_READ[text] if field else re.escape(text) for text, field in tokens))

    def read(text: str, *_: object) -> dt.datetime:
        found = compiled.fullmatch(text)
        if found is None:
            raise fail(f"{text!r} doesn't match {pattern!r}")
        part = found.groupdict()
        clock = [int(part.get(n) or 0) for n in ("hour", "minute", "second")]
        if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
            raise fail(f"{text!r} is no time of day")
        date = make_date(int(part["year"]), int(part["month"]), int(part["day"]))
        fraction = int((part.get("fraction") or "").ljust(6, "0"))
        return dt.datetime.combine(date, dt.time(clock[0], clock[1], clock[2], fraction, UTC))

    return read
