"""Hold what flows through the interpreter: records, their places in log order, and what becomes of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from watertable.plan.places import FAN_OUT
from watertable.plan.stages import Named
from watertable.plan.windows import EPOCH, MILLISECOND
from watertable.sql.evaluator import evaluate
from watertable.sql.expressions import Expr

Row = dict[str, object]
Key = tuple[Hashable, ...]
Headers = tuple[tuple[str, bytes | None], ...]
"""A record's headers as they stand, names that come twice too."""
HEADERS: Final = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
"""The type of headers in Spark and in the store."""


_FIRST: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
"""The first and the last of Kafka's timestamps for which Python has a time."""


def stamped(milliseconds: int) -> datetime:
    """Read Kafka's own timestamp, in milliseconds since 1970; one for which Python has no time is the nearest that it has.

    As an event time either is refused, by both engines.
    """
    return EPOCH + timedelta(milliseconds=max(_FIRST, min(milliseconds, _LAST)))


class Place(NamedTuple):
    """Say where a record stands in log order."""

    st: datetime
    topic: str
    partition: int
    offset: int
    ord: int = 0

    def nth(self, n: int) -> Place:
        """Give the place of the n-th that a record at this one becomes in a step."""
        return self._replace(ord=self.ord * FAN_OUT + n)


@dataclass(frozen=True, slots=True)
class Record:
    """Hold a record as Kafka has it. Offsets of a partition only grow; they may leave gaps."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Advance:
    """Move a partition's stream time on, from this offset: a decision that became part of the log, with the wall `clock` or not."""

    topic: str
    partition: int
    offset: int
    stream_time: datetime
    clock: datetime | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """Hold a record to publish, and the place of the record that made it."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: datetime
    place: Place
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Hold a quarantined record: the operator that refused it, where that is defined, and why.

    `group` is known where a table refused what it would have added to a row: the columns that it would have been of.
    """

    record: Record
    node: str
    location: str
    reason: str
    group: Row | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Count a record that an operator left out: null_key, null_value, before_start, late (one per window), rule:<name>.

    `group` is known of a late one: the columns that its windows would have been of.
    """

    node: str
    reason: str
    topic: str
    partition: int
    offset: int
    window: tuple[datetime, datetime] | None = None
    count: int = 1
    group: Row | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Event:
    """Carry a record, or a Change, between operators. Of a Change, `value` is the new row: None where it is gone."""

    place: Place
    timestamp: datetime
    key: Row | None
    value: Row | None
    old: Row | None = None
    window: Row | None = None

    def evaluate(self, expr: Expr, right: Row | None = None) -> Any:
        """Evaluate an expression on this record, beside a table's row if it is joined; raise `EvaluationError` where Spark would."""
        spaces = {"key": self.key, "value": self.value, "new": self.value, "old": self.old, "window": self.window, "right": right}
        return evaluate(expr, spaces)

    def columns(self, named: Named, right: Row | None = None) -> Row:
        """Evaluate named expressions, in order."""
        return {name: self.evaluate(expr, right) for name, expr in named}

    def headers(self, named: Named) -> Headers:
        """Evaluate named expressions as headers: texts as UTF-8, and none where one is null."""
        said = ((name, self.evaluate(expr)) for name, expr in named)
        return tuple((name, part.encode() if isinstance(part, str) else part) for name, part in said if part is not None)


def numbered(event: Event, number: int) -> Event:
    """Tell a record apart from others that are made of the same one."""
    if number == event.place.ord:
        return event
    return Event(event.place._replace(ord=number), event.timestamp, event.key, event.value, event.old, event.window)


def is_null(key: Row | None) -> bool:
    """Tell whether there is no key: none at all, or one with a null in it, which can't tell two records apart."""
    return key is None or any(part is None for part in key.values())


def whole_key(row: Row | None) -> Key | None:
    """Give a key's values, if there is a key."""
    return None if row is None else key_tuple(row)


def key_tuple(row: Row) -> Key:
    """Give a key's values, by which it is found; keys are of scalar types, as the DSL sees to."""
    return tuple(part for part in row.values())
