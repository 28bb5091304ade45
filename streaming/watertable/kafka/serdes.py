"""Say what the bytes of a record mean, without Spark: bytes to Python values by a schema, and back.

The law: `decode` gives what Spark's `from_json` gives in strict mode, and fails with `DecodeError` where that fails; `encode` gives, byte
for byte, what the compiler publishes (`to_json` with nulls and microseconds). So the test driver, the interpreter and a replayer
mean by a record what a running job means by it. Three formats: a JSON object by columns; the text of one STRING column; the bytes of
one BINARY column. Bytes that are None are a null key or a tombstone, in every format.

Spark's reader is Jackson with habits of its own, kept here on purpose: single quotes and non-numbers (NaN, INF) are read, what follows
the object isn't, unknown fields are skipped, a later duplicate wins, decimals are rounded half up to their scale, timestamps are
text in any form that a cast reads, or whole seconds, and a STRING column takes any value as its JSON text.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

from watertable.errors import BeyondTime, DecodeError, EvaluationError, UnsupportedFunction
from watertable.plan.nodes import Format, Topic
from watertable.plan.windows import BEYOND
from watertable.records import Record
from watertable.schema import Schema, Type
from watertable.sql.casts import EPOCH, java_float, plus_micros, read_date, read_timestamp
from watertable.sql.scalars import fixed, repr_single, single

Row = dict[str, Any]
Reader = Callable[[Any], Any]
Writer = Callable[[Any], str]

_BOUNDS: Final = {
    "tinyint": (-(1 << 7), (1 << 8) - 1),  # Jackson reads a byte up to 255 and lets it wrap
    "smallint": (-(1 << 15), (1 << 15) - 1),
    "int": (-(1 << 31), (1 << 31) - 1),
    "bigint": (-(1 << 63), (1 << 63) - 1),
}
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,10})?", re.ASCII)
_NOT_NUMBERS: Final = {"NaN": math.nan, "+INF": math.inf, "Infinity": math.inf, "+Infinity": math.inf,
                       "-INF": -math.inf, "-Infinity": -math.inf}  # fmt: skip
_LENIENT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'|[+-](?:INF|Infinity)\b", re.DOTALL)
_DEEPEST: Final = 1000
"""Most objects and arrays in one another that Spark reads; where Python's stack ends depends on its version, and earlier before 3.14."""
_TOO_DEEP: Final = "JSON is nested too deeply"
_BASE64: Final = re.compile(r"(?:[\x00- ]*[A-Za-z0-9+/=]{4})*[\x00- ]*")  # white space is skipped between groups of four
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HALF_CHARACTER: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")  # half a surrogate pair: one broken character to Java, three to Python
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _Number(str):
    """The text of a JSON number; `_Whole` where it has neither point nor exponent."""

    __slots__ = ()


class _Whole(_Number):
    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """The fields of a JSON object, duplicates too."""

    __slots__ = ()


def decode(data: bytes | None, schema: Schema, form: Format) -> Row | None:
    """Read a key or value; None for None. Raises `DecodeError` saying what doesn't fit, and where; `BeyondTime` where that is all."""
    if data is None:
        return None
    match form:
        case Format.BYTES:
            return {schema.columns[0].name: data}
        case Format.STRING:
            try:
                return {schema.columns[0].name: data.decode("utf-8")}
            except UnicodeDecodeError as error:
                raise DecodeError(f"not UTF-8: {error.reason} at byte {error.start}") from None
        case Format.JSON:
            try:
                text = _HALF_CHARACTER.sub(b"\xef\xbf\xbd", data).decode("utf-8", "replace")
                parsed = _parse(text)
                if text.count("[") + text.count("{") > _DEEPEST and _depth(parsed) > _DEEPEST:
                    raise DecodeError(_TOO_DEEP)
                if type(parsed) is not _Object:
                    wanted = ", ".join(f'"{name}": …' for name in schema.names)
                    raise DecodeError(f"{_shown(parsed)} is no JSON object: wanted {{{wanted}}}")
                row: Row = _reader(schema.struct())(parsed)
            except DecodeError:
                raise
            except (EvaluationError, ValueError) as error:
                raise DecodeError(str(error)) from None
            except UnsupportedFunction:
                raise BeyondTime(BEYOND) from None
            except RecursionError:
                raise DecodeError(_TOO_DEEP) from None
            return row


def key_of(record: Record, topic: Topic) -> Row | None:
    """Read a record's key; None where it has none. Raises `DecodeError`."""
    return decode(record.key, topic.key, topic.key_format)


def event_time_of(record: Record, topic: Topic, value: Row | None, now: datetime) -> object:
    """Give what a record's event time is said to be, by its value, in a partition whose stream time is `now`; nobody has judged it yet.

    Without a value there is no column to read it from, and the record's own timestamp may be of another age.
    """
    return record.timestamp if topic.timestamp is None else now if value is None else value[topic.timestamp]


def columns_of(record: Record, topic: Topic) -> Row | None:
    """Read a record's value, and those of its headers that its topic names; None for a tombstone. Raises `DecodeError`.

    An event time that Python hasn't is none: such a record is refused for that, whatever else is in it.
    """
    try:
        row = decode(record.value, topic.value, topic.value_format)
    except BeyondTime:
        if topic.timestamp is None or not _is_beyond(record, topic, topic.timestamp):
            raise
        row = dict.fromkeys(topic.value.names)
    if row is None or not topic.headers:
        return row
    last = dict(record.headers)
    for header in topic.headers:
        data, text = last.get(header.name), header.column.type.kind == "string"
        try:
            row[header.column.name] = data.decode("utf-8") if text and data is not None else data
        except UnicodeDecodeError as error:
            raise DecodeError(f"header {header.name}: not UTF-8: {error.reason} at byte {error.start}") from None
    return row


def _is_beyond(record: Record, topic: Topic, column: str) -> bool:
    """Tell whether it is this column that holds a time which Python hasn't."""
    try:
        decode(record.value, Schema.of([(column, topic.value[column])]), topic.value_format)
    except BeyondTime:
        return True
    return False


def encode(row: Mapping[str, Any] | None, schema: Schema, form: Format) -> bytes | None:
    """Write a key or value; None for None, and where the one column of a text or bytes format is null."""
    if row is None:
        return None
    match form:
        case Format.BYTES:
            only = row[schema.columns[0].name]
            return None if only is None else bytes(only)
        case Format.STRING:
            text = row[schema.columns[0].name]
            return None if text is None else str(text).encode()
        case Format.JSON:
            return _writer(schema.struct())(row).encode()


# ---------------------------------------------------------------------------------------------------------------- reading JSON

_json: Final = json.JSONDecoder(parse_float=_Number, parse_int=_Whole, parse_constant=_NOT_NUMBERS.__getitem__, object_pairs_hook=_Object)


def _parse(text: str) -> Any:
    """Read the first JSON value of a text; what follows it isn't looked at."""
    text = text.lstrip(" \t\r\n")
    try:
        return _json.raw_decode(text)[0]
    except json.JSONDecodeError as strict:
        plain = _LENIENT.sub(_as_json, text)
        if plain != text:
            return _json.raw_decode(plain)[0]
        raise DecodeError(f"not JSON: {strict.msg} at character {strict.pos}") from None


def _depth(parsed: Any) -> int:
    """Count how many objects and arrays are in one another, without a stack of Python's own."""
    depth, level = 0, [parsed]
    while level := [value for value in level if isinstance(value, list)]:
        depth += 1
        level = [part[1] if type(value) is _Object else part for value in level for part in value]
    return depth


def _as_json(found: re.Match[str]) -> str:
    token = found.group()
    if token[0] not in "\"'":
        return "-Infinity" if token[0] == "-" else "Infinity"
    inner = re.sub(r"\\.|\"", lambda m: {"\\'": "'", '"': '\\"'}.get(m.group(), m.group()), token[1:-1], flags=re.DOTALL)
    return f'"{inner}"'


def _wrong(value: Any, kind: Type) -> DecodeError:
    return DecodeError(f"{_shown(value)} is not {kind.sql()}")


def _shown(value: Any) -> str:
    shown = _text(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


@lru_cache(maxsize=1024)
def _reader(kind: Type) -> Reader:
    """Return the function that makes a value of a type from parsed JSON that isn't null."""
    match kind:
        case Type(kind="struct", fields=fields):
            return _struct_reader(kind, {field.name: _optional(field.type) for field in fields})
        case Type(kind="array", element=Type() as element):
            each = _optional(element)
            return lambda value: [each(e) for e in value] if type(value) is list else _fail(value, kind)
        case Type(kind="map", map_key=Type() as key_kind, element=Type() as element):
            key, one = _key_reader(key_kind), _optional(element)
            return lambda value: {key(n): one(e) for n, e in value} if type(value) is _Object else _fail(value, kind)
        case Type(kind="string"):
            return lambda value: _clean(value) if type(value) is str else _text(value)
        case Type(kind="boolean"):
            return lambda value: value if isinstance(value, bool) else _fail(value, kind)
        case Type(kind="float" | "double"):
            return _float_reader(kind)
        case Type(kind="decimal"):
            return _decimal_reader(kind)
        case Type(kind="timestamp"):
            return lambda value: _timestamp(value, kind)
        case Type(kind="date"):
            return lambda value: _date(value, kind)
        case Type(kind="binary"):
            return lambda value: _binary(value, kind)
        case _ if kind.kind in _BOUNDS:
            return _whole_reader(kind)
    raise DecodeError(f"{kind.sql()} can't be read from JSON")


def _optional(kind: Type) -> Reader:
    read = _reader(kind)
    return lambda value: None if value is None else read(value)


def _fail(value: Any, kind: Type) -> Any:
    raise _wrong(value, kind)


def _struct_reader(kind: Type, readers: Mapping[str, Reader]) -> Reader:
    def read(value: Any) -> Row:
        if type(value) is not _Object:
            raise _wrong(value, kind)
        row: Row = dict.fromkeys(readers)
        beyond: dict[str, UnsupportedFunction] = {}
        for name, field in value:
            if (reader := readers.get(name)) is not None:
                beyond.pop(name, None)
                try:
                    row[name] = reader(field)
                except EvaluationError as error:
                    raise DecodeError(f"{name}: {error}") from None
                except UnsupportedFunction as error:  # what is no value of its type counts for more, wherever it stands
                    beyond[name] = error
        if beyond:
            raise next(iter(beyond.values()))
        return row

    return read


def _whole_reader(kind: Type) -> Reader:
    low, high = _BOUNDS[kind.kind]
    wraps = 1 << 8 if kind.kind == "tinyint" else 0

    def read(value: Any) -> int:
        if type(value) is not _Whole or not low <= (number := int(value)) <= high:
            raise _wrong(value, kind)
        return number - wraps if wraps and number > 127 else number

    return read


def _key_reader(kind: Type) -> Reader:
    """Return the function that makes a map's key of a field's name: `_namer` the other way round, of what it can name.

    Topics are read with keys of text alone. Others are in what an app has published.
    """
    match kind.kind:
        case "string":
            return _clean
        case "boolean":
            return lambda name: name == "true"
        case "date":
            return lambda name: EPOCH.date() + timedelta(days=int(name))
        case "timestamp":
            return lambda name: plus_micros(EPOCH, int(name))
        case "float":
            return lambda name: single(float(name))
        case "double":
            return float
        case "decimal":
            return Decimal
        case _ if kind.kind in _BOUNDS:
            return int
    raise DecodeError(f"{kind.sql()} can't be read from a name in JSON")


def _float_reader(kind: Type) -> Reader:
    narrow: Callable[[float], float] = single if kind.kind == "float" else float

    def read(value: Any) -> float:
        if isinstance(value, _Number | float):
            return narrow(float(value))
        if type(value) is str and value in _NOT_NUMBERS:
            return _NOT_NUMBERS[value]
        raise _wrong(value, kind)

    return read


def _decimal_reader(kind: Type) -> Reader:
    fit = fixed(kind)

    def read(value: Any) -> Decimal:
        if type(value) is str:
            value = _Number(value.replace(",", ""))
            if not _DECIMAL.fullmatch(value):
                raise _wrong(value, kind)
        if not isinstance(value, _Number):
            raise _wrong(value, kind)
        try:
            return fit(Decimal(value))
        except InvalidOperation:
            raise _wrong(value, kind) from None

    return read


def _timestamp(value: Any, kind: Type) -> datetime:
    if type(value) is _Whole:
        low, high = _BOUNDS["bigint"]
        if not low <= int(value) <= high:
            raise _wrong(value, kind)
        return plus_micros(EPOCH, (int(value) * 1_000_000 - low) % (1 << 64) + low)  # seconds; too many of them wrap
    if type(value) is not str:
        raise _wrong(value, kind)
    try:
        return read_timestamp(value)
    except EvaluationError:
        return read_timestamp(value.replace("GMT", ""))


def _date(value: Any, kind: Type) -> date:
    if type(value) is not str:
        raise _wrong(value, kind)
    try:
        return read_date(value)
    except EvaluationError:
        if re.fullmatch(r"[+-]?\d{1,6}", value, re.ASCII):  # Spark 1.5 wrote days since 1970, and today's still reads them
            return date(1970, 1, 1) + timedelta(days=int(value))
        raise


def _binary(value: Any, kind: Type) -> bytes:
    if type(value) is not str or not _BASE64.fullmatch(value):
        raise _wrong(value, kind)
    try:
        return base64.b64decode(value)
    except (binascii.Error, ValueError):
        raise _wrong(value, kind) from None


def _clean(text: str) -> str:
    """Replace half a surrogate pair, which JSON can escape and UTF-8 can't hold, as Java does."""
    return _SURROGATE.sub("?", text) if not text.isascii() else text


def _text(value: Any) -> str:
    """Write parsed JSON as text again, as Jackson copies it into a STRING column: compact, doubles in Java's form."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case _Whole():
            return "0" if value == "-0" else str(value)
        case _Number():
            return _double(float(value))
        case float():
            return _double(value)
        case str():
            return _quoted(_clean(value))
        case _Object():
            return "{" + ",".join(f"{_quoted(_clean(name))}:{_text(field)}" for name, field in value) + "}"
        case _:
            return "[" + ",".join(map(_text, value)) + "]"


# ---------------------------------------------------------------------------------------------------------------- writing JSON


@lru_cache(maxsize=1024)
def _writer(kind: Type) -> Writer:
    write = _writers(kind)
    return lambda value: "null" if value is None else write(value)


def _writers(kind: Type) -> Writer:
    match kind:
        case Type(kind="struct", fields=fields):
            parts = [(field.name, f'"{field.name}":', _writer(field.type)) for field in fields]
            return lambda row: "{" + ",".join([label + write(row[name]) for name, label, write in parts]) + "}"
        case Type(kind="array", element=Type() as element):
            each = _writer(element)
            return lambda values: "[" + ",".join([each(value) for value in values]) + "]"
        case Type(kind="map", map_key=Type() as key_kind, element=Type() as element):
            name, one = _namer(key_kind), _writer(element)
            return lambda pairs: "{" + ",".join([f"{_quoted(name(key))}:{one(value)}" for key, value in pairs.items()]) + "}"
        case Type(kind="string"):
            return _quoted
        case Type(kind="boolean"):
            return lambda value: "true" if value else "false"
        case Type(kind="float"):
            return lambda value: _double(value, repr_single)
        case Type(kind="double"):
            return _double
        case Type(kind="decimal"):
            fit = fixed(kind)
            return lambda value: str(fit(value))
        case Type(kind="timestamp"):
            return lambda value: f'"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")}Z"'
        case Type(kind="date"):
            return lambda value: f'"{value.isoformat()}"'
        case Type(kind="binary"):
            return lambda value: f'"{base64.b64encode(value).decode()}"'
        case _:
            return str


def _namer(kind: Type) -> Writer:
    """Return the function that makes a field's name of a map's key: Spark writes what it holds, which is days or microseconds of a time."""
    match kind.kind:
        case "boolean":
            return lambda value: "true" if value else "false"
        case "date":
            return lambda value: str((value - EPOCH.date()).days)
        case "timestamp":
            return lambda value: str((value - EPOCH) // timedelta(microseconds=1))
        case "float":
            return lambda value: java_float(value, repr_single(value))
        case "double":
            return lambda value: java_float(value, repr(value))
        case _:
            return str


def _double(value: float, shortest: Callable[[float], str] = repr) -> str:
    text = java_float(value, shortest(value))
    return text if math.isfinite(value) else f'"{text}"'


def _quoted(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    character = found.group()
    return _ESCAPES.get(character) or f"\\u{ord(character):04X}"
