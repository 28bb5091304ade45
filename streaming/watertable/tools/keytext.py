"""Read a key that a person typed: its text by the types of the table's key columns, the same for every command.

A text is read as Spark's CAST reads it, but for BINARY columns, which take what is shown of them, hexadecimal digits.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from watertable.errors import EvaluationError, KeyMismatch
from watertable.plan.plan import WINDOW_KEY, TableDef
from watertable.plan.windows import typed_time
from watertable.records import Row
from watertable.schema import Type, quote
from watertable.sql.casts import cast
from watertable.sql.spark_sql import literal

_STRING: Final = Type("string")
_START: Final = WINDOW_KEY.names[0]


def split(given: str) -> list[str]:
    """Take a key apart: one value, or several in a JSON array, of which numbers keep all their digits.

    Raises `KeyMismatch` for an array that isn't JSON, or has more in it than values.

    >>> split("85123A"), split('["a", 2.50, true]')
    (['85123A'], ['a', '2.50', 'true'])
    """
    if not given.startswith("["):
        return [given]
    try:
        values = json.loads(given, parse_float=str, parse_int=str)
    except json.JSONDecodeError as error:
        raise KeyMismatch(f"the key {given} is no JSON array: {error.msg} at character {error.pos}; write '[\"a\", 1]'") from None
    except RecursionError:
        raise KeyMismatch("the key has arrays in it, in one another; write '[\"a\", 1]'") from None
    for value in values:
        if not isinstance(value, str | bool):
            raise KeyMismatch(f"the key {given} has {json.dumps(value)} in it, which is no value of a key column")
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def read(table: TableDef, given: Sequence[str], window: str | None = None) -> Row:
    """Read the leading columns of a key, windows aside, each by its type; and when the window begins, if one is asked for.

    Raises `KeyMismatch` for none, for more than the table has, for a window of a table that has none, and for a text that is no value
    of its column, or no time.
    """
    names = [name for name in table.key.names if not (table.windows and name in WINDOW_KEY)]
    if len(given) > len(names) or (not given and window is None):
        raise KeyMismatch(f"table {table.name!r} has the key ({table.key.sql()}); write --key VALUE, or --key '[...]' for several columns")
    wanted = {name: _value(text, name, table) for name, text in zip(names, given, strict=False)}
    if window is None:
        return wanted
    if table.windows is None:
        raise KeyMismatch(f"table {table.name!r} has no windows, and the key ({table.key.sql()}): leave --window out")
    try:
        return wanted | {_START: typed_time(window)}
    except ValueError:
        raise KeyMismatch(f"--window {window!r}: write the time at which it begins, 2011-06-01T09:00Z") from None


def group(table: TableDef, wanted: Row) -> Row:
    """Give what is asked for of a key, the window aside."""
    return {name: value for name, value in wanted.items() if not (table.windows and name in WINDOW_KEY)}


def start(table: TableDef, wanted: Row) -> datetime | None:
    """Give when the window begins that is asked for; None where all are."""
    return typing.cast("datetime | None", wanted.get(_START)) if table.windows else None


def _value(text: str, name: str, table: TableDef) -> object:
    kind = table.key[name]
    try:
        text.encode()  # half of a character is nothing that a topic has, and nothing that Spark can be told
        return bytes.fromhex(text) if kind.kind == "binary" else cast(_STRING, kind)(text)
    except (EvaluationError, ValueError):
        hint = ", which is written in hexadecimal digits" if kind.kind == "binary" else ""
        raise KeyMismatch(f"{text!r} is no {kind.sql()}{hint}; table {table.name!r} has the key ({table.key.sql()})") from None


def is_of(key: Row, wanted: Row) -> bool:
    """Tell whether a key begins with the columns that were asked for."""
    return all(key[name] == value for name, value in wanted.items())


def condition(table: TableDef, wanted: Row, prefix: str = "") -> str:
    """Write what `is_of` asks as a condition of Spark's on columns of a prefix: `key.`, say."""
    return " AND ".join(f"{prefix}{quote(name)} = {literal(value, table.key[name])}" for name, value in wanted.items())
