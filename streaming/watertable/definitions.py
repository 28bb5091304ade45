"""Read what a definition says in words and names: DDL, formats, topic names; and find where in the user's code it says so."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from watertable.errors import SchemaError
from watertable.plan import Format
from watertable.schema import Schema

_PACKAGE: Final = str(Path(__file__).parent)
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def declared(ddl: str, where: str, part: str) -> Schema:
    """Read a DDL column list; raise `SchemaError`, with the place and the part, for a bad one."""
    try:
        return Schema.parse(ddl)
    except SchemaError as error:
        raise SchemaError(f"{where}: {part}: {error}") from None


def chosen_format(name: str | None, schema: Schema, where: str, *, default: Format) -> Format:
    """Read the name of a format; raise `SchemaError` for one that there isn't, or that can't write these columns."""
    if name is None:
        return default
    if name not in tuple(Format):
        raise SchemaError(f"{where}: format {name!r}; choose {', '.join(Format)}")
    wanted = {Format.STRING: "string", Format.BYTES: "binary"}.get(Format(name))
    if wanted and [c.type.kind for c in schema] != [wanted]:
        raise SchemaError(f"{where}: format {name!r} wants one {wanted.upper()} column; got ({schema.sql()})")
    return Format(name)


def key_format_of(schema: Schema) -> Format:
    """Give the format of a key that names none: a single text or its bytes as they are, else JSON."""
    match [column.type.kind for column in schema]:
        case ["string"]:
            return Format.STRING
        case ["binary"]:
            return Format.BYTES
        case _:
            return Format.JSON


def check_topic_name(name: str, where: str) -> None:
    """Raise `SchemaError` for what is no name of a Kafka topic."""
    if not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise SchemaError(f"{where}: {name!r} is no Kafka topic name: 1 to 249 of letters, digits, '.', '_' and '-'")


def here() -> str:
    """Find the user's file and line: the first frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{frame.f_lineno}"
