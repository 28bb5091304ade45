"""Pair records, and number what is made of several: the interpreter's reading of joins of streams and of final rows."""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from watertable.kafka import serdes
from watertable.plan import nodes, plan
from watertable.plan.nodes import Format
from watertable.plan.places import PAIRS
from watertable.records import Event, Key, Place, Row
from watertable.schema import Schema
from watertable.sql.evaluator import evaluate

SIDES: Final = ("__lefts", "__rights")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Hold a record on one side of a join of streams, 0 or 1; its place has the number `ord * 2 + side`. One without a key doesn't wait."""

    side: int
    place: Place
    timestamp: datetime
    key: Key | None
    value: Row | None


Pair = tuple[Waiting, Waiting] | tuple[Waiting]
"""Two records that pair, the left one first, or one that pairs with none."""


def pair_number(later: Place, earlier: Place) -> int:
    """Give a pair its number among those of its later record, by what it is alone: which others there are, arrival tells.

    The pairs with the records of one partition come in the order of their offsets, and no two have the same number.
    """
    return (zlib.crc32(f"{earlier.topic}/{earlier.partition}/{earlier.ord}/{later.ord}".encode()) + earlier.offset) % PAIRS


def row_number(key: Row, schema: Schema) -> int:
    """Give a final row its number among those of its moment: 60 bits of a hash of its key."""
    return int(hashlib.md5(serdes.encode(key, schema, Format.JSON) or b"", usedforsecurity=False).hexdigest()[:15], 16)


def joined(node: nodes.StreamStreamJoin, pair: Pair) -> Event:
    """Make the record of a pair, or of a record alone, which keeps its place."""
    earlier, later = min(pair, key=lambda one: one.place), max(pair, key=lambda one: one.place)
    number = pair_number(later.place, earlier.place) if len(pair) == 2 else later.place.ord % PAIRS
    key: Row | None = None if later.key is None else dict(zip(plan.key_of(node).names, later.key, strict=True))
    values: dict[int, Row | None] = {one.side: one.value for one in pair}
    spaces = {"left": values.get(0), "right": values.get(1), "key": key}
    value = {name: evaluate(expr, spaces) for name, expr in node.columns}
    return Event(later.place._replace(ord=number), max(one.timestamp for one in pair), key, value)


def waiting_in(side: int, key: Key, state: dict[str, Any]) -> Iterator[Waiting]:
    """Give what waits on one side of a join."""
    for kept in state[SIDES[side]]:
        place = kept["order"]._replace(ord=2 * kept["order"].ord + side)
        yield Waiting(side, place, kept["value"]["ts"], key, kept["value"]["value"])


def copied(kept: Any) -> Any:
    """Copy what a batch changes: lists grow, and so do those in dicts; what is in them is replaced, and never changed."""
    if not isinstance(kept, dict):
        return list(kept)
    copied = {name: part.copy() if isinstance(part, dict | list | set) else part for name, part in kept.items()}
    return Counter(copied) if isinstance(kept, Counter) else copied
