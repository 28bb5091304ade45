"""Say what commits are: the row that each leaves in the changelog, the positions that they name, and the lineages that they make.

Plain data: nothing here reads or writes a store.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from operator import index
from typing import TYPE_CHECKING, Any, Final, Self

from watertable.errors import FormatError, UnknownPosition

if TYPE_CHECKING:
    from pyspark.sql import Row

FORMAT: Final = 1
"""Counts the layout of changelog and tables; what is greater than `KNOWN`, found in a store, is refused."""
REBUILT: Final = 2
"""The format of an epoch's row which has some tables begin anew."""
CLOCKED: Final = 3
"""The format of a commit in which the wall clock was recorded: what is called there would be missing in an earlier release's replay."""
GATHERED: Final = 4
"""The format of a fold whose tombstones are gathered: an earlier release would look for them where they came, and bring rows back."""
KNOWN: Final = GATHERED
"""The greatest format that is understood."""
BUCKET: Final = 1000
"""Commits per partition: the grain of trimming, and what OPTIMIZE makes one file of."""
OF_BUCKETS: Final = ("batch", "fence", "fold", "days")
"""The kinds of rows that lie in the bucket of their seq; the others are few but for `advances`, and are found by every look."""
OF: Final = "of:"
"""In the counters of a shadow's and an epoch's row: begins the names of the tables that it is of, where it isn't of all."""
JOINED: Final = "joined"
"""In the counters of an epoch's row: the shadow whose tables it takes over."""

DAYS: Final = ("days:first", "days:last")
"""In the counters of these rows: the days, counted from the year 1 on, whose windows alone are made anew."""
UNTIL: Final = "until"
"""In the counters of a shadow's row: the commit of the app up to which it reads; where it isn't there, as far as the app does."""

EMIT: Final = "emit"
"""In the counters of an epoch's or a shadow's row: the epoch from which on its lineage publishes all that it makes, again or not."""
BACK: Final = "back"
"""In the counters of an epoch's row: the epoch that an undo of it goes back to; 0 for none."""

LEFT: Final = "left"
"""In the counters of an epoch's row: the commit that the app stood at when it went elsewhere, so that an undo knows where that ended."""

DaySpan = tuple[date, date]
CLOCK: Final = "clock:"
"""In the counters of a commit's row: the wall clock, in microseconds, of the advance of a topic's partition to a stream time."""

Partition = tuple[str, int]
Offsets = Mapping[Partition, int]


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Name an app's place: everything up to commit `seq` of the lineage of `epoch`. Written `retail@1.48211`.

    >>> Position.parse("retail@3.48211")
    Position(app='retail', epoch=3, seq=48211)
    >>> str(Position("retail", 3, 48211))
    'retail@3.48211'
    """

    app: str
    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.app}@{self.epoch}.{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` writes; raise `UnknownPosition` for anything else."""
        match = re.fullmatch(r"([A-Za-z_]\w*)@(\d+)\.(\d+)", text)
        if match is None:
            raise UnknownPosition(f"{text!r} is no position; write app@epoch.seq, e.g. retail@1.48211")
        return cls(match[1], int(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class Advance:
    """Record the decision to let a partition's stream time go on without records: before this offset it counts as `stream_time`.

    With a `clock`, it records what the clock on the wall was there.
    """

    topic: str
    partition: int
    before: int
    stream_time: datetime
    clock: datetime | None = None

    @property
    def counter(self) -> str:
        """Name the counter of its commit that has its clock."""
        return f"{CLOCK}{self.topic}:{self.partition}:{_since(self.stream_time)}"


@dataclass(frozen=True, slots=True)
class FoldMark:
    """Record that a version of a table's Delta table holds the fold of everything up to (epoch, seq).

    Tombstones of commits from `tombstones_from` on may still be needed: an earlier record could come. Beside that commit there may be those
    of all commits before it, gathered by a fold.
    """

    table: str
    version: int
    epoch: int
    seq: int
    tombstones_from: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """Hold one row of `__commit`.

    `begin` and `next` are offsets by (topic, partition): this commit read [begin, next). `stream_times` are those after it. Kinds:
    `batch` (takes a seq), `fence` (a writer begins), `fold` (tables were folded), `days` (it is noted which were touched), `epoch` (one
    becomes current; `parent`, `fork`), `shadow` (one begins beside the current one; `parent`, `fork`), `abandoned` (a shadow is given
    up), `hold` (the app's writer is asked to wait for what comes next), `advances` (those of commits that were trimmed, and where the app
    began to read).
    """

    kind: str = "batch"
    epoch: int = 1
    seq: int = 0
    generation: int = 0
    writer: str = ""
    commit_time: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    fingerprint: str = ""
    suite_hash: str = ""
    begin: Offsets = field(default_factory=dict)
    next: Offsets = field(default_factory=dict)
    stream_times: Mapping[Partition, datetime | None] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    advances: tuple[Advance, ...] = ()
    folds: tuple[FoldMark, ...] = ()
    parent: int | None = None
    fork: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def of(self) -> frozenset[str]:
        """Name the tables that a shadow makes, or that an epoch has anew; none stands for all of them, and for none."""
        return frozenset(name.removeprefix(OF) for name in self.counters if name.startswith(OF))

    @property
    def days(self) -> DaySpan | None:
        """Give the first and the last of the days whose windows alone are made anew; None where all is."""
        first, last = (self.counters.get(name, 0) for name in DAYS)
        return (date.fromordinal(first), date.fromordinal(last)) if first else None

    def reached(self, topics: Collection[str]) -> datetime | None:
        """Give the stream time that every partition of some topics has reached; None while one has none.

        Commits keep the stream times of topics that the app reads no more, which stand still.

        >>> noon = datetime(2026, 3, 1, 12)
        >>> CommitInfo(stream_times={("sales", 0): noon, ("old", 0): None}).reached({"sales"})
        datetime.datetime(2026, 3, 1, 12, 0)
        """
        times = [time for (topic, _), time in self.stream_times.items() if topic in topics]
        return None if not times or None in times else min(t for t in times if t is not None)

    @property
    def records(self) -> int:
        """Count the records that it is of."""
        return self.counters.get("records", 0)

    def is_within(self, offsets: Offsets) -> bool:
        """Tell whether no partition had been read beyond these offsets.

        >>> CommitInfo(next={("sales", 0): 12}).is_within({("sales", 0): 12, ("sales", 1): 0})
        True
        """
        return all(self.next.get(partition, offset) <= offset for partition, offset in offsets.items())

    def unread(self, offsets: Offsets) -> str:
        """Say which of some offsets mean nothing, or nothing yet, to who has read as far as this commit; "" where all do.

        >>> CommitInfo(next={("sales", 0): 12}).unread({("sales", 0): 12, ("sale", 0): 9})
        "reads no partition 0 of topic 'sale'"
        """
        for (topic, number), offset in offsets.items():
            if (topic, number) not in self.next:
                return f"reads no partition {number} of topic {topic!r}"
            if offset > (read := self.next[topic, number]):
                return f"has read {topic}/{number} up to offset {read:,}; {offset:,} is in its future"
        return ""

    def is_by(self, time: datetime, topics: Collection[str] = ()) -> bool:
        """Tell whether no partition's stream time had passed a time; of some topics only, where any are named: see `reached`."""
        times = (reached for (topic, _), reached in self.stream_times.items() if not topics or topic in topics)
        return all(reached is None or reached <= time for reached in times)

    def to_json(self) -> str:
        """Write the row's struct as JSON, as Spark's `from_json` reads it."""
        return json.dumps(self._struct())

    def _struct(self) -> dict[str, Any]:
        parts = sorted(set(self.begin) | set(self.next) | set(self.stream_times))
        clocks = {a.counter: _since(a.clock) for a in self.advances if a.clock is not None}
        return {
            "format": max(self.format, CLOCKED) if clocks else self.format, "kind": self.kind, "generation": self.generation,
            "writer": self.writer, "commit_time": _iso(self.commit_time), "fingerprint": self.fingerprint, "suite_hash": self.suite_hash,
            "partitions": [
                {"topic": p[0], "partition": p[1], "begin": self.begin.get(p), "next": self.next.get(p),
                 "stream_time": _iso(self.stream_times.get(p))} for p in parts
            ],
            "topics": [{"topic": t, "id": i} for t, i in sorted(self.topic_ids.items())],
            "advances": [
                {"topic": a.topic, "partition": a.partition, "before": a.before, "stream_time": _iso(a.stream_time)} for a in self.advances
            ],
            "folds": [
                {"table": m.table, "version": m.version, "epoch": m.epoch, "seq": m.seq, "tombstones_from": m.tombstones_from}
                for m in self.folds
            ],
            "parent": self.parent, "fork": self.fork, "counters": {**self.counters, **clocks},
        }  # fmt: skip

    @classmethod
    def from_row(cls, row: Row) -> CommitInfo:
        """Read a row (epoch, seq, c), times as microseconds; raise `FormatError` when a newer release wrote it."""
        return cls._read(row["epoch"], row["seq"], row["c"], from_micros)

    def packed(self) -> str:
        """Write the whole row as JSON.

        >>> info = CommitInfo(seq=7, next={("sales", 0): 12}, stream_times={("sales", 0): None}, counters={"records": 12})
        >>> CommitInfo.unpacked(info.packed()) == info
        True
        """
        return json.dumps({"epoch": self.epoch, "seq": self.seq, "c": self._struct()}, separators=(",", ":"))

    @classmethod
    def unpacked(cls, text: str) -> CommitInfo:
        """Read what `packed` has written; raise `FormatError` when a newer release did."""
        return cls.of_json(json.loads(text))

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> CommitInfo:
        """Read what `packed` has written, parsed; raise `FormatError` when a newer release did."""
        return cls._read(row["epoch"], row["seq"], row["c"], datetime.fromisoformat)

    @classmethod
    def _read(cls, epoch: int, seq: int, c: Any, time: Callable[[Any], datetime]) -> CommitInfo:
        if c["format"] > KNOWN:
            raise FormatError(f"commit {epoch}.{seq} has store format {c['format']}; this release knows {KNOWN}: upgrade it")
        parts = {(p["topic"], p["partition"]): p for p in c["partitions"]}
        advances = [Advance(a["topic"], a["partition"], a["before"], time(a["stream_time"])) for a in c["advances"]]
        clocks = {name: from_micros(value) for name, value in c["counters"].items() if name.startswith(CLOCK)}
        return cls(
            kind=c["kind"], epoch=epoch, seq=seq, generation=c["generation"], writer=c["writer"], commit_time=time(c["commit_time"]),
            fingerprint=c["fingerprint"], suite_hash=c["suite_hash"],
            begin={k: p["begin"] for k, p in parts.items() if p["begin"] is not None},
            next={k: p["next"] for k, p in parts.items() if p["next"] is not None},
            stream_times={k: None if p["stream_time"] is None else time(p["stream_time"]) for k, p in parts.items()},
            topic_ids={t["topic"]: t["id"] for t in c["topics"]},
            advances=tuple(replace(a, clock=clocks.get(a.counter)) for a in advances),
            folds=tuple(FoldMark(m["table"], m["version"], m["epoch"], m["seq"], m["tombstones_from"]) for m in c["folds"]),
            parent=c["parent"], fork=c["fork"], format=c["format"],
            counters={name: value for name, value in c["counters"].items() if name not in clocks},
        )  # fmt: skip


def offsets_of(written: Mapping[Any, Any]) -> dict[Partition, int]:
    """Read offsets as people write them, by topic and partition in either way; raise `ValueError` for anything else.

    >>> offsets_of({"sales": {"0": 1200, 1: 1187}}) == offsets_of({("sales", 0): 1200, ("sales", 1): 1187})
    True
    """
    found: dict[Partition, int] = {}
    try:
        for name, value in written.items():
            topic, parts = (name, value) if isinstance(name, str) else (name[0], {name[1]: value})
            each = [((topic, _whole(part)), _whole(offset)) for part, offset in parts.items()]
            if len({place for place, _ in each} - found.keys()) < len(each):
                raise ValueError("a partition twice")
            found |= each
        if not found or min(found.values()) < 0:
            raise ValueError("no offset, or one before the first")
    except (ValueError, TypeError, LookupError, AttributeError):
        raise ValueError(f'offsets are written {{"topic": {{0: 1200, 1: 1187}}}}, not {written!r:.80}') from None
    return found


def _whole(number: Any) -> int:
    """Read a whole number, which JSON has as text where it is a key; Python takes true for one."""
    if isinstance(number, bool):
        raise ValueError(f"{number} is no number")
    return int(number) if isinstance(number, str) else index(number)


@dataclass(frozen=True, slots=True)
class Span:
    """Give the commits (after, upto] of one epoch; `upto` None is open."""

    epoch: int
    after: int
    upto: int | None


@dataclass(frozen=True, slots=True)
class Anew:
    """Say that tables begin anew behind a commit: nothing before it is theirs any more. Of `days`, only their windows may differ."""

    after: int
    tables: frozenset[str]
    days: DaySpan | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """Follow one epoch back to the first: which commits of which epoch its rows are, and which tables begin anew on the way."""

    spans: tuple[Span, ...]
    rebuilt: tuple[Anew, ...] = ()

    @classmethod
    def of(cls, epoch: int, forks: Iterable[CommitInfo]) -> Lineage:
        """Build the lineage of an epoch from the rows of kind `epoch` and `shadow`."""
        forks = tuple(forks)
        parents = {row.epoch: (row.parent, row.fork) for row in forks}
        spans: list[Span] = []
        upto: int | None = None
        while epoch in parents and parents[epoch][0] is not None:
            parent, fork = parents[epoch]
            assert parent is not None
            assert fork is not None
            fork = fork if upto is None else min(fork, upto)
            spans.insert(0, Span(epoch, fork, upto))
            epoch, upto = parent, fork
        found = {span.epoch: span.after for span in spans if span.upto is None or span.after < span.upto}
        rebuilt = (Anew(found[row.epoch], row.of, row.days) for row in forks if row.kind == "epoch" and row.of and row.epoch in found)
        return cls((Span(epoch, 0, upto), *spans), tuple(sorted(rebuilt, key=lambda anew: anew.after)))

    def anew(self, table: str, seq: int) -> Anew | None:
        """Say where one table as it is at commit `seq` was begun anew last."""
        return next((anew for anew in reversed(self.rebuilt) if table in anew.tables and anew.after < seq), None)

    def of_table(self, table: str, seq: int) -> Lineage:
        """Give the lineage of one table's rows as they are at commit `seq`: from where it was begun anew on.

        >>> joined = Lineage((Span(1, 0, 500), Span(3, 500, None)), (Anew(500, frozenset({"stock"})),))
        >>> joined.of_table("stock", 501).spans, joined.of_table("stock", 500) == joined.of_table("names", 501) == joined
        ((Span(epoch=3, after=500, upto=None),), True)
        """
        if (anew := self.anew(table, seq)) is None:
            return self
        begins = anew.after
        return Lineage(tuple(Span(s.epoch, max(s.after, begins), s.upto) for s in self.spans if s.upto is None or s.upto > begins))

    def leaves(self, table: str, day: str, seq: int, upto: int) -> bool:
        """Tell whether a table was begun anew, for a day, behind the commit that touched it: it isn't the table's any more."""
        return any(
            table in anew.tables
            and seq <= anew.after < upto
            and (anew.days is None or anew.days[0] <= date.fromisoformat(day) <= anew.days[1])
            for anew in self.rebuilt
        )

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Lineage:
        """Read what an event says of a lineage.

        >>> found = {"spans": [{"epoch": 1, "after": 0, "upto": None}], "rebuilt": [{"after": 7, "tables": ["stock"], "days": None}]}
        >>> Lineage.read(found)
        Lineage(spans=(Span(epoch=1, after=0, upto=None),), rebuilt=(Anew(after=7, tables=frozenset({'stock'}), days=None),))
        """
        rebuilt = [(anew["after"], frozenset(anew["tables"]), anew["days"]) for anew in found["rebuilt"]]
        return cls(
            tuple(Span(**span) for span in found["spans"]),
            tuple(
                Anew(after, tables, days and (date.fromisoformat(days[0]), date.fromisoformat(days[1]))) for after, tables, days in rebuilt
            ),
        )

    @property
    def after(self) -> int:
        """Give the commit behind which it begins."""
        return self.spans[0].after

    @property
    def epoch(self) -> int:
        """Give the epoch whose lineage this is."""
        return self.spans[-1].epoch

    def holds(self, epoch: int, seq: int) -> bool:
        """Tell whether the state right after commit `seq`, as an epoch has it, is on this lineage: an ancestor, not a branch that was left.

        An epoch has what it inherits, too.

        >>> lineage = Lineage((Span(1, 0, 500), Span(3, 500, None)))
        >>> lineage.holds(1, 500), lineage.holds(1, 501), lineage.holds(2, 400), lineage.holds(3, 400), lineage.holds(3, 501)
        (True, False, False, True, True)
        """
        return seq == 0 or self.passes(epoch, seq)

    def passes(self, epoch: int, seq: int) -> bool:
        """Tell whether commit `seq` of an epoch, or its beginning, is a place on this lineage: from a fold made there it can be gone on.

        At seq 0 all epochs hold the same, which is nothing. But what was folded there keeps the commits of its own epoch only: the trims of
        another have gone by what that had folded.

        >>> lineage = Lineage((Span(1, 0, 500), Span(3, 500, None)))
        >>> lineage.passes(1, 500), lineage.passes(1, 501), lineage.holds(2, 0), lineage.passes(2, 0), lineage.passes(1, 0)
        (True, False, True, False, True)
        """
        there = any(s.epoch == epoch and (s.upto is None or seq <= s.upto) for s in self.spans)
        return there and (seq == 0 or seq > self.after)

    def made(self, epoch: int, seq: int) -> bool:
        """Tell whether commit `seq` of an epoch is one of this lineage.

        >>> lineage = Lineage((Span(1, 0, 500), Span(3, 500, None)))
        >>> lineage.made(1, 500), lineage.made(3, 400), lineage.made(3, 501)
        (True, False, True)
        """
        return any(s.epoch == epoch and s.after < seq and (s.upto is None or seq <= s.upto) for s in self.spans)

    def epoch_of(self, seq: int) -> int:
        """Give the epoch that made commit `seq` of this lineage."""
        return next((s.epoch for s in self.spans if s.after < seq and (s.upto is None or seq <= s.upto)), self.spans[0].epoch)

    def of_folds(self) -> Lineage:
        """Give the lineage along which folds are noted: an epoch may be folded where it forks, before it has a commit of its own.

        >>> forked = Lineage((Span(1, 0, 500), Span(3, 500, None)))
        >>> forked.made(3, 500), forked.of_folds().made(3, 500), forked.of_folds().made(1, 501)
        (False, True, False)
        """
        return Lineage(tuple(Span(s.epoch, max(0, s.after - 1), s.upto) for s in self.spans), self.rebuilt)

    def common(self, other: Lineage) -> int:
        """Give the last seq that two lineages share; of one and the same, the greatest number there is.

        >>> old, new = Lineage((Span(1, 0, None),)), Lineage((Span(1, 0, 500), Span(2, 500, None)))
        >>> old.common(new), new.common(new) == sys.maxsize
        (500, True)
        """
        shared = 0
        for a, b in zip(self.spans, other.spans, strict=False):
            if a.epoch != b.epoch:
                break
            shared = max(shared, min(end for end in (a.upto, b.upto, sys.maxsize) if end is not None))
            if a.upto != b.upto:
                break
        return shared

    def where(self, after: int, upto: int) -> str:
        """Write the condition for rows of commits (after, upto] of this lineage; partition columns first, so that files are skipped."""
        parts = []
        for span in self.spans:
            low, high = max(after, span.after), upto if span.upto is None else min(upto, span.upto)
            if low < high:
                buckets = f"bucket BETWEEN {(low + 1) // BUCKET} AND {high // BUCKET}"
                parts.append(f"(epoch = {span.epoch} AND {buckets} AND seq > {low} AND seq <= {high})")
        return "(" + " OR ".join(parts) + ")" if parts else "false"


@dataclass(frozen=True, slots=True)
class Head:
    """Hold where an app stands at one version of its changelog."""

    position: Position
    last: CommitInfo | None
    generation: int
    lineage: Lineage
    version: int
    folds: tuple[FoldMark, ...]
    forks: tuple[CommitInfo, ...] = ()
    """The rows of kind `epoch`, oldest first: every rewind, promote and undo there was."""
    shadows: tuple[CommitInfo, ...] = ()
    """The rows of kind `shadow`, oldest first: every shadow there was."""
    abandoned: frozenset[int] = frozenset()
    """The shadows that were given up."""
    holds: tuple[CommitInfo, ...] = ()
    """The rows of kind `hold`, oldest first."""

    @property
    def shadow(self) -> CommitInfo | None:
        """Give the shadow that replays beside the current epoch; None where there is none, or it was promoted, joined or given up."""
        over = self.abandoned | {epoch for fork in self.forks for epoch in (fork.parent, fork.counters.get(JOINED))}
        return next((row for row in reversed(self.shadows) if row.epoch not in over), None)

    @property
    def next_epoch(self) -> int:
        """Give the number that the next epoch takes, be it a shadow or not."""
        return max((row.epoch for row in (*self.forks, *self.shadows)), default=1) + 1

    @property
    def left(self) -> Mapping[int, CommitInfo]:
        """Give, by epoch, the row of the act for which the app has left it.

        >>> forks = tuple(CommitInfo(kind="epoch", epoch=e, parent=1, fork=f) for e, f in ((2, 0), (4, 9)))
        >>> head = Head(Position("shop", 4, 9), None, 3, Lineage.of(4, forks), 7, (), forks)
        >>> {epoch: row.epoch for epoch, row in head.left.items()}
        {1: 2, 2: 4}
        """
        return dict(zip((1, *(fork.epoch for fork in self.forks)), self.forks, strict=False))

    def epoch_at(self, time: datetime) -> int:
        """Give the epoch that was current at a time.

        >>> noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
        >>> forks = (CommitInfo(kind="epoch", epoch=2, parent=1, fork=0, commit_time=noon),)
        >>> head = Head(Position("shop", 2, 0), None, 2, Lineage.of(2, forks), 7, (), forks)
        >>> head.epoch_at(noon), head.epoch_at(noon - timedelta(seconds=1))
        (2, 1)
        """
        return next((fork.epoch for fork in reversed(self.forks) if fork.commit_time <= time), 1)

    def lineage_of(self, epoch: int) -> Lineage:
        """Give the lineage of any epoch there was."""
        return Lineage.of(epoch, (*self.forks, *self.shadows))

    def made_alone(self, at: Position) -> frozenset[str]:
        """Name the tables that alone have rows at a position, as those of a shadow of some tables; none where all have."""
        ours = {span.epoch for span in self.lineage_of(at.epoch).spans if span.epoch == at.epoch or span.after < at.seq}
        return next((row.of for row in self.shadows if row.of and row.epoch in ours), frozenset())

    def emitting(self, epoch: int) -> frozenset[int]:
        """Name the epochs of one's lineage whose output is published whatever was published before: its own, and a shadow's it promoted.

        None where nobody has asked for it.
        """
        since = next((row.counters.get(EMIT, 0) for row in self.forks if row.epoch == epoch), 0)
        return frozenset(span.epoch for span in self.lineage_of(epoch).spans if since and span.epoch >= since)


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _since(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def from_micros(value: int) -> datetime:
    """Read a time from microseconds since 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)


def now_after(earlier: datetime | None) -> datetime:
    """Give the time of a commit: now, but never before the commit that it follows."""
    now = datetime.now(UTC)
    return now if earlier is None else max(now, earlier)
