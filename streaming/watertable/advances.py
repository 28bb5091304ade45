"""Let partitions go that hold others back, and let a replay do what was decided then.

A window is closed when every partition that feeds it has passed it; one that is idle, or empty, would hold it for ever. After a topic's
`idle_after` of wall clock with nothing to read, its stream time goes on without records: that is an *advance* (partition, before which
offset, to which stream time), a row of the commit that it is made in. It is part of the log from then on. So the law: wherever the
partition is read again, it counts as that far before it goes on behind that offset, whatever the clock says then. A record that comes to
it later, of an earlier time, is late for what was closed.

The wall clock decides nothing else, and not here: seconds are an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Self

from watertable.changelog import Advance, Offsets, Partition
from watertable.plan import Topology, topics_above

Times = Mapping[Partition, datetime | None]


@dataclass(slots=True)
class Advances:
    """Hold what one run knows of idle partitions, and of the advances that were recorded by others.

    `peers` are the topics that feed something together with a topic, itself among them.
    """

    idle_after: Mapping[str, timedelta]
    peers: Mapping[str, frozenset[str]]
    recorded: tuple[Advance, ...] = ()
    idle: frozenset[Partition] = frozenset()
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

    def upto(self, offsets: Offsets, end: Offsets) -> dict[Partition, int]:
        """Cut a batch where an advance was recorded: what comes behind it is another batch's."""
        cut = dict(end)
        for a in self.recorded:
            if offsets.get(place := (a.topic, a.partition), a.before) < a.before < cut.get(place, 0):
                cut[place] = a.before
        return cut

    def due(self, offsets: Offsets, times: Times) -> tuple[Advance, ...]:
        """Give the advances to be made before a batch that begins at these offsets: those that were recorded, and those of what is idle."""
        reached = {p: times.get(p) for p in offsets}
        for a in self.recorded:
            if a.before <= offsets.get(place := (a.topic, a.partition), -1):
                reached[place] = _latest([reached[place], a.stream_time])
        moved = reached | let_go(self.idle & reached.keys(), reached, self.peers)
        return tuple(
            Advance(*p, offsets[p], when) for p, when in sorted(moved.items()) if when is not None and when != times.get(p)
        )  # fmt: skip


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


def _latest(times: Iterable[datetime | None]) -> datetime | None:
    return max((when for when in times if when is not None), default=None)
