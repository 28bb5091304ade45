"""Let partitions go that hold others back, record the wall clock where something waits for it, and let a replay do what was decided then.

A window is closed when every partition that feeds it has passed it; one that is idle, or empty, would hold it for ever. After a topic's
`idle_after` of wall clock with nothing to read, its stream time goes on without records: that is an *advance* (partition, before which
offset, to which stream time), a row of the commit that it is made in. It is part of the log from then on. So the law: wherever the
partition is read again, it counts as that far before it goes on behind that offset, whatever the clock says then. A record that comes to
it later, of an earlier time, is late for what was closed.

A punctuator that is scheduled by the wall clock is called where the clock was recorded: that is an advance, too, by the least time there
is, so that what is called there has a place in log order that is nobody else's. A run records a clock only where something is due, and
where no epoch has read before: there, what was recorded counts.

The wall clock decides nothing else, and not here: seconds and times are arguments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate, chain
from typing import Self

from watertable.plan.plan import Topology, topics_above
from watertable.processing import MOMENT
from watertable.store.commits import Advance, Offsets, Partition

Times = Mapping[Partition, datetime | None]


class Recorded:
    """Hold the advances that were recorded, of each partition in order: where it stands is looked up, as they only ever get more.

    >>> from watertable.plan.windows import EPOCH
    >>> at = [EPOCH + timedelta(seconds=n) for n in range(9)]
    >>> found = Recorded([Advance("a", 0, 10, at[5]), Advance("a", 0, 20, at[6], at[8]), Advance("a", 0, 20, at[2], at[7])])
    >>> found.after(("a", 0), 10), found.after(("a", 0), 20), found.after(("b", 0), 0)
    (20, None, None)
    >>> found.furthest(("a", 0), 9), found.furthest(("a", 0), 20) == at[6], [a.before for a in found.beyond(("a", 0), 20, at[2])]
    (None, True, [20])
    """

    __slots__ = ("_furthest", "_of")

    def __init__(self, advances: Iterable[Advance] = ()) -> None:
        self._of: dict[Partition, list[Advance]] = {}
        for a in advances:
            self._of.setdefault((a.topic, a.partition), []).append(a)
        for each in self._of.values():
            each.sort(key=_in_order)
        self._furthest = {place: [*accumulate((a.stream_time for a in each), max)] for place, each in self._of.items()}

    def __iter__(self) -> Iterator[Advance]:
        return chain.from_iterable(self._of.values())

    def after(self, place: Partition, offset: int) -> int | None:
        """Give the first offset after one before which an advance was recorded."""
        each = self._of.get(place, [])
        number = bisect_right(each, offset, key=_before)
        return each[number].before if number < len(each) else None

    def furthest(self, place: Partition, offset: int) -> datetime | None:
        """Give how far the advances up to an offset have brought a partition."""
        number = bisect_right(self._of.get(place, []), offset, key=_before)
        return self._furthest[place][number - 1] if number else None

    def beyond(self, place: Partition, offset: int, time: datetime | None) -> list[Advance]:
        """List those right before an offset that are beyond a stream time."""
        each = self._of.get(place, [])
        begin = bisect_left(each, offset, key=_before) if time is None else bisect_right(each, (offset, time), key=_in_order)
        return each[begin : bisect_right(each, offset, key=_before)]


@dataclass(slots=True)
class Advances:
    """Hold what one run knows of idle partitions, and of the advances that were recorded by others.

    `peers` are the topics that feed something together with a topic, itself among them.
    """

    idle_after: Mapping[str, timedelta]
    peers: Mapping[str, frozenset[str]]
    recorded: Recorded = field(default_factory=Recorded)
    idle: frozenset[Partition] = frozenset()
    read: Offsets = field(default_factory=dict)
    """Up to where any epoch has read: a clock that isn't recorded before it wasn't there."""
    noticed: Mapping[Partition, datetime] = field(default_factory=dict)
    """The wall clock, for partitions in which something is due by it."""
    _seen: dict[Partition, tuple[int, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, topology: Topology) -> Self:
        """Begin for an app."""
        roots = [*(topics_above(table.node) for table in topology.kept), *(topics_above(sink.node) for sink in topology.sinks)]
        names = [topic.name for topic in topology.topics]
        peers = {name: frozenset({name}).union(*(fed for fed in roots if name in fed)) for name in names}
        return cls({topic.name: topic.idle_after for topic in topology.topics if topic.idle_after is not None}, peers)

    def look(self, offsets: Offsets, ends: Offsets, now: float) -> None:
        """Find out which partitions are idle: read to their end, which hasn't moved for as long as their topic says."""
        for partition, end in ends.items():
            if self._seen.get(partition, (-1, now))[0] != end:
                self._seen[partition] = end, now
        self.idle = frozenset(
            p for p, (end, since) in self._seen.items()
            if p[0] in self.idle_after and offsets.get(p) == end and now - since >= self.idle_after[p[0]].total_seconds()
        )  # fmt: skip

    def forget(self) -> None:
        """Forget since when partitions are idle, as a restart does: who couldn't be asked may not have been able to write, either."""
        self._seen.clear()
        self.idle = frozenset()

    def upto(self, offsets: Offsets, end: Offsets) -> dict[Partition, int]:
        """Cut a batch where an advance was recorded: what comes behind it is another batch's."""
        cuts = {place: self.recorded.after(place, offset) for place, offset in offsets.items() if place in end}
        return {**end, **{place: cut for place, cut in cuts.items() if cut is not None and cut < end[place]}}

    def level_with(self, offsets: Offsets, times: Times) -> None:
        """Leave out what an app that stands there hasn't done yet, of what was decided for where it stands.

        An epoch that was undone can have decided it. The app does it in its next batch, and tables that join it do so with the others.
        """
        self.recorded = Recorded(
            a for a in self.recorded
            if a.before < offsets.get(place := (a.topic, a.partition), a.before + 1) or not _is_beyond(a.stream_time, times.get(place))
        )  # fmt: skip

    def due(self, offsets: Offsets, times: Times) -> tuple[Advance, ...]:
        """Give the advances to be made before a batch that begins at these offsets, those of each partition as they follow each other.

        They are those that were recorded, those of what is idle, and those of clocks. Clocks stay one by one, each at its own place.
        """
        reached = {p: _latest([times.get(p), self.recorded.furthest(p, offset)]) for p, offset in offsets.items()}
        clocked = [a for p, offset in offsets.items() for a in self.recorded.beyond(p, offset, times.get(p)) if a.clock is not None]
        moved = reached | let_go(self.idle & reached.keys(), reached, self.peers)
        replayed = {(a.topic, a.partition) for a in clocked}
        for place, clock in self.noticed.items():
            if (when := moved.get(place)) is not None and place not in replayed and offsets[place] >= self.read.get(place, 0):
                moved[place] = when + MOMENT
                clocked.append(Advance(*place, offsets[place], when + MOMENT, clock))
        found = {(*p, when): Advance(*p, offsets[p], when) for p, when in moved.items() if when is not None and when != times.get(p)}
        found |= {(a.topic, a.partition, a.stream_time): a for a in clocked}
        return tuple(found[place] for place in sorted(found))


@dataclass(slots=True)
class Clocks:
    """Find out for which partitions the wall clock is to be recorded: not without need, and not more often than `every` so many seconds.

    `first` says for which time something is scheduled first in each partition, as of the last commit.
    """

    every: float
    first: Callable[[], Mapping[Partition, datetime]]
    _next: float = -1.0
    _known: Mapping[Partition, datetime] = field(default_factory=dict)
    _as_of: object = None

    def due(self, position: object, began: float, now: datetime) -> Mapping[Partition, datetime]:
        """Give the clock for the partitions in which something is due at `now`; `began` are seconds of any clock that doesn't go back."""
        if position != self._as_of:
            if began < self._next:
                return {}
            self._known, self._as_of, self._next = self.first(), position, began + self.every
        due = {partition: now for partition, at in self._known.items() if at <= now}
        self._next = began + self.every if due else self._next
        return due


def clocks_of(advances: Iterable[Advance]) -> dict[Partition, list[tuple[datetime, datetime]]]:
    """Give the recorded clocks of each partition: its stream time there, and the clock."""
    found: dict[Partition, list[tuple[datetime, datetime]]] = {}
    for a in advances:
        if a.clock is not None:
            found.setdefault((a.topic, a.partition), []).append((a.stream_time, a.clock))
    return found


def let_go(idle: Iterable[Partition], times: Times, peers: Mapping[str, frozenset[str]]) -> dict[Partition, datetime]:
    """Say how far idle partitions go on: as far as the others of their topic have all come, and no further than that needs.

    Of a topic that is idle altogether, all come as far as its furthest; and, since another topic may wait for it, as far as all partitions
    have come that aren't idle of the topics that feed something together with it.
    """
    away = frozenset(idle)
    found = {}
    for place in away:
        own = [when for p, when in times.items() if p[0] == place[0] and p not in away]
        if own:
            target = None if None in own else min(when for when in own if when is not None)
        else:
            others = [when for p, when in times.items() if p[0] in peers[place[0]] and p not in away]
            low = None if not others or None in others else min(when for when in others if when is not None)
            target = _latest([low, *(when for p, when in times.items() if p[0] == place[0])])
        if (latest := _latest([target, times.get(place)])) is not None:
            found[place] = latest
    return found


def _before(advance: Advance) -> int:
    return advance.before


def _in_order(advance: Advance) -> tuple[int, datetime]:
    return advance.before, advance.stream_time


def _is_beyond(when: datetime, time: datetime | None) -> bool:
    return time is None or time < when


def _latest(times: Iterable[datetime | None]) -> datetime | None:
    return max((when for when in times if when is not None), default=None)
