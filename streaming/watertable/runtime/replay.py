"""Bring a shadow on by the loop that runs an app: with a writer of its own, up to where its app stands and no further.

Nobody folds or publishes what it commits, and the app goes first: while that is late, no batch of the shadow's begins.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from watertable.acts.rebuild import commit_at, refuse_beyond
from watertable.acts.shadow import goes_first
from watertable.errors import Fenced, TopicChanged
from watertable.plan.plan import Topology
from watertable.runtime.events import Emitter
from watertable.runtime.loop import HELD, Job
from watertable.settings import Settings
from watertable.store.changelog import Changelog
from watertable.store.commits import UNTIL, Offsets, Partition
from watertable.store.writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Replay(Job):
    """Bring a shadow to where its app stands: the same loop, by the shadow's writer, with nobody beside it to fold or publish.

    Of a shadow of some tables, it runs the part of the app that makes them.
    """

    _ways_out = "Give the shadow up, `watertable rewind {} --abandon-shadow`, and begin another"

    def __init__(
        self, topology: Topology, settings: Settings, spark: SparkSession, emit: Emitter, stop: threading.Event, goal: Offsets | None,
        until: int,
    ) -> None:  # fmt: skip
        changelog = Changelog(spark, settings.warehouse_uri, topology.app)
        snapshot = changelog.snapshot()
        head = changelog.head(snapshot)
        row, self._until = head.shadow, None
        self._joins, self._pauses = bool(row and row.of), bool(row and UNTIL not in row.counters and until)
        if row is not None and (seq := row.counters.get(UNTIL, until)):
            self._until = commit_at(changelog, snapshot, head, seq)
        super().__init__(topology.above(row.of) if row and row.of else topology, settings, spark, emit, stop)
        self._given, self._code, self._let = goal, topology, timedelta(seconds=settings.shadow_lag_seconds)

    def run(self, *, available_now: bool) -> str:
        """Read up to the goal; without one, up to the app's own position, until what it has moved meanwhile fits one batch."""
        self._arrive()
        while True:
            goal = self._goal()
            if self._until is not None:
                refuse_beyond(self.offsets, goal, f"the shadow {self.shown}", self._until.seq)
            behind = sum(max(0, end - self.offsets[p]) for p, end in goal.items())
            reason = self._work(goal)
            if self.stop.is_set() or self._given is not None or behind <= self.pace.records:
                return reason

    def _goal(self) -> dict[Partition, int]:
        """Give the offsets at which the app stands, or stood where it is to stop; of topics that it doesn't read, the ends.

        What the app has recorded by then is done here, too.
        """
        last, found = self._until or self.store.head().last, self._given
        if self._until is not None or found is None:
            if last is None:  # rewound to earliest, it has read nothing since
                return dict(self.offsets)
            if renamed := [name for name, state in self.topics.items() if last.topic_ids.get(name, state.id) != state.id]:
                raise TopicChanged(f"topic {', '.join(renamed)} is another one now than the app has read. {self._way_out}")
            found = last.next
        self._look_for_advances()  # after the look at the app, which goes on meanwhile: all up to there is wanted
        if self._joins and last is not None:
            self.advances.level_with(last.next, last.stream_times)
        since = self.store.head().last if self._pauses else None  # topics that it has begun to read after that wait
        beyond = [p for p in self.offsets if p not in found and not (since and p in since.next)]
        return {**{p: found.get(p, offset) for p, offset in self.offsets.items()}, **(self.admin.latest(beyond) if beyond else {})}

    def _new_writer(self) -> Writer:
        return self.store.start_writer(self._code, shadow=True)

    def _make_outputs(self) -> None:
        """Make none: it publishes nothing."""

    def _begin_workers(self) -> None:
        """Begin none."""

    def _hold_back(self) -> None:
        """Begin no batch while the app is late; unless it waits itself, for the promote of what is read here."""
        self._look_after()
        while self._given is None and self._app_is_late() and not self.stop.wait(HELD):
            self.problem = "lets the app go first"
        self.problem = ""

    def _app_is_late(self) -> bool:
        if (last := self.store.head().last) is None:
            return False
        names = {topic.name for topic in self._code.topics}  # what is read no more may be there no more
        stands = {p: offset for p, offset in last.next.items() if p[0] in names}
        waiting = sum(max(0, end - stands[p]) for p, end in self.admin.latest(stands).items())
        return goes_first(waiting, last.commit_time, datetime.now(UTC), self._let)

    def _caught_up(self) -> str:
        if self.writer.last is None:  # there was nothing to read, and a commit says so: else it would be nowhere
            self._advance(dict(self.offsets), self.offsets)
        return "level"

    def _go_on_from_rewind(self, fenced: Fenced) -> None:
        raise fenced

    def _follow(self, before: str, generation: int) -> None:
        raise Fenced(f"another process has taken the shadow of {self.topology.app!r} over from {before}; this one ends")
