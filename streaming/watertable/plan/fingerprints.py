"""Write plans in a form of our own, and number what they compute by it: the same in any process, file and line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from watertable.schema import Schema, Type
from watertable.sql.expressions import Expr

FINGERPRINT_VERSION: Final = 1
"""Counts the canonical form of plans; a new one makes every fingerprint new, and is a state format entry in the CHANGELOG."""

DIALECT: Final = "spark 4.1, ansi, utc"
"""Says how expressions are evaluated; part of every fingerprint, since another Spark could give another result."""

LATER: Final = {"later": True}
"""Marks a field that older releases don't know. At its default it isn't written, so that the fingerprints of what they made still hold."""


def canonical(part: object, _known: dict[int, object] | None = None) -> object:
    """Write a part of a plan in our own canonical form: nested lists of plain values, without locations and comments.

    What several steps share is in the form of each, and written out once.
    """
    known = {} if _known is None else _known
    if id(part) not in known:
        known[id(part)] = _canonical(part, known)
    return known[id(part)]


def _canonical(part: object, known: dict[int, object]) -> object:
    match part:
        case Expr():
            return ["expr", part.canonical]
        case Type() | Schema():
            return part.sql()
        case timedelta():
            return part // timedelta(microseconds=1)
        case datetime():
            return part.astimezone(UTC).isoformat()
        case StrEnum():
            return part.value
        case tuple() | list():
            return [canonical(p, known) for p in part]
        case _ if dataclasses.is_dataclass(part) and not isinstance(part, type):
            parts = [(f, getattr(part, f.name)) for f in dataclasses.fields(part) if f.compare]
            written = ([f.name, canonical(value, known)] for f, value in parts if f.metadata != LATER or value != f.default)
            return [type(part).__name__, *written]
        case None | str() | int() | bool():
            return part
        case _:
            raise TypeError(f"no canonical form for {type(part).__name__}")


def digest(form: object) -> str:
    """Identify a canonical form: `wt<version>:<16 hex digits>`."""
    text = json.dumps([DIALECT, form], separators=(",", ":"), ensure_ascii=False)
    return f"wt{FINGERPRINT_VERSION}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
