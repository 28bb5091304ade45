"""Say what happened to a running app, as data: the progress line, `--json`, Dagster and the tests all read these.

An event is a frozen value; `as_json` gives the one line a program reads. Times are UTC in ISO 8601; a position is written
`retail@3.48211`; `unfolded_s` is the age of the oldest commit that waits for its fold, or for the end of it, 0.0 where none does. A run
begins with `Started` and ends with `Stopped` or `Failed`, and between them is never silent for long: where there is nothing to do,
`Idle` comes every few seconds.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import ClassVar

from watertable.store.commits import Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The app holds its lease and knows where it stands."""

    event: ClassVar[str] = "started"
    app: str
    position: str
    generation: int
    pid: int
    fingerprint: str
    topics: tuple[str, ...]
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommitted:
    """One batch is committed; `jobs` counts its Spark jobs, `dropped` its drops by reason, `rows` the changed rows of each table."""

    event: ClassVar[str] = "batch"
    position: str
    records: int
    seconds: float
    lag: Mapping[str, int]
    jobs: int
    quarantined: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    published: Mapping[str, int] = field(default_factory=dict)
    stream_time: datetime | None = None
    unfolded_s: float = 0.0

    @property
    def records_per_second(self) -> float:
        """Give the batch's own rate, from its first byte read to its commit."""
        return self.records / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFolded:
    """One table was folded up to a position of the changelog."""

    version: int
    folded: str
    ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Tables were folded; `fold_lag_s` is the age of the oldest commit that a plain Delta reader couldn't see before it."""

    event: ClassVar[str] = "fold"
    tables: Mapping[str, TableFolded]
    fold_ms: int
    fold_lag_s: float
    unfolded_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaysTouched:
    """Days of tables were touched, as far as `position`: `days` gives for each table and day the position that touched it last.

    `stream_time` is what every partition has reached there, `lineage` what has led there: a day that was touched by no commit of it any
    more, though one had once, lost its rows in a rewind. Said of apps whose days are declared, after each fold.
    """

    event: ClassVar[str] = "days"
    position: str
    stream_time: datetime | None
    days: Mapping[str, Mapping[str, str]]
    lineage: Lineage


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The app lives, and nothing else was said for a while: it waits for records, or is `busy_s` seconds into a batch.

    `problem` says what it waits for, when that is not records: a cluster that doesn't answer. Then `lag` is empty: it isn't known.
    """

    event: ClassVar[str] = "idle"
    position: str
    lag: Mapping[str, int]
    busy_s: float = 0.0
    problem: str = ""
    unfolded_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound:
    """The app was rewound, or a rewind undone, while it ran: it stood `before`, stands at `position`, and goes on from there.

    `by` says what was asked for, and why, as far as the one who asked said so; `again` how many records it was to read again for it.
    """

    event: ClassVar[str] = "rewound"
    position: str
    before: str
    by: str
    generation: int
    again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The run ended as it should, with every batch whole."""

    event: ClassVar[str] = "stopped"
    position: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The run ended for a reason somebody has to look at; place and location are given where one record is to blame."""

    event: ClassVar[str] = "failed"
    error: str
    message: str
    position: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    location: str | None = None


Event = Started | BatchCommitted | Folded | DaysTouched | Idle | Rewound | Stopped | Failed
Listener = Callable[[Event], None]


def as_json(event: Event) -> str:
    """Write an event as one line of JSON.

    >>> as_json(Idle(position="retail@1.17", lag={"sales": 0}))
    '{"event": "idle", "position": "retail@1.17", "lag": {"sales": 0}, "busy_s": 0.0, "problem": "", "unfolded_s": 0.0}'
    """
    body: dict[str, object] = {"event": event.event, **dataclasses.asdict(event)}
    if isinstance(event, BatchCommitted):
        body |= {"records_per_second": round(event.records_per_second, 1), "batch_ms": round(event.seconds * 1000)}
    return json.dumps(body, default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not part of an event")


class Emitter:
    """Pass events on, one at a time whatever thread they come from."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self.last = time.monotonic()
        """When the last event was told."""

    def __call__(self, event: Event) -> None:
        """Pass an event on, after those that others are at."""
        with self._lock:
            self.last = time.monotonic()
            self._listener(event)
