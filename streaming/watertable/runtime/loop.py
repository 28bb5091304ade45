"""Hold one running app: where it stands, and the loop that reads a range of its topics, compiles it, commits it, and begins again.

The loop is ours, over batch reads with explicit offsets; there is no streaming query and no checkpoint beside the changelog. Laws: a
run begins with a fence and reads its position after it; each batch begins exactly where the last commit ended and ends where the
source says that committed records end; nothing outside the changelog is needed to go on. Two threads work beside the loop, and
neither may lose anything by dying: `Courier` brings to Kafka what commits hold, `Folding` folds and tidies.

A rewind takes the writer's place like any other writer, and leaves it again: a run that finds itself fenced by nothing but rewinds goes
on from where they put the app, within the same process. One that is asked to wait, for a promote, waits until it is done or its time is
over.

A partition that is idle, where its topic says so, is let go by an advance in the commit, and the wall clock is recorded by one where a
punctuator waits for it; a replay cuts its batches at those that were recorded (`advances`).

Where a batch fails because of its data, halves of it are tried until the one record is known: what comes before it is committed, and
the error names it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame

from watertable import failpoints
from watertable.compiler import Batch, BatchStats, Compiler
from watertable.errors import BreakingChange, CodeReplaced, Fenced, JobError, KafkaError, TopicChanged
from watertable.kafka.admin import START_OVER, Admin, TopicState, partitions_of
from watertable.kafka.config import Cluster
from watertable.kafka.source import ONE_TASK, Read, read_alone, read_range
from watertable.plan.plan import Topology
from watertable.runtime import failures
from watertable.runtime.advances import Advances, Clocks, Recorded, clocks_of
from watertable.runtime.events import BatchCommitted, Emitter, Idle, Rewound, Started
from watertable.runtime.ranges import bounded, midway, size
from watertable.runtime.workers import Courier, Folding
from watertable.session import STREAM_POOL, alive, by_data, job_group, shuffled_by
from watertable.settings import Settings
from watertable.store.archive import Archives
from watertable.store.changelog import OUT_PREFIX
from watertable.store.commits import Advance, CommitInfo, Offsets, Partition, Position
from watertable.store.touched import Touched
from watertable.store.writer import HOLD_MS, Retention, Store, Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEARTBEAT: Final = 4.0
"""Seconds after which a run says that it lives, at the latest."""
PATIENCE: Final = 4.0
"""Seconds that a batch gets to finish once a stop was asked for; after them it is undone."""
_POLL: Final = 0.1
HELD: Final = 0.25
"""Seconds between two looks whether a run that lets somebody else go first is still to wait."""
_LOOK: Final = 0.25
"""Seconds after which an idle run looks whether somebody has rewound its app."""
TIDIED: Final = 100
"""A bounded run ends with upkeep where it came past a multiple of so many commits: each of many may be shorter than `tidy_seconds`."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """Say how fast a run goes; durations in seconds.

    Commits are at least `trigger` apart, batches hold at most `records`. A table is folded each `fold`, at once when `tail` rows wait for
    it; when twice as many wait, the stream does too. What is scheduled by the wall clock is looked at each `punctuate`.
    """

    trigger: float
    records: int
    fold: float
    tail: int
    tidy: float
    punctuate: float

    @classmethod
    def of(cls, settings: Settings) -> Pace:
        """Take what the settings say."""
        folding = settings.fold_seconds, settings.tail_rows, settings.tidy_seconds
        return cls(settings.trigger_seconds, settings.batch_records, *folding, settings.punctuate_seconds)


class Job:
    """Hold one running app: where it stands, and the loop that moves it."""

    _ways_out = START_OVER

    def __init__(
        self, topology: Topology, settings: Settings, spark: SparkSession, emit: Emitter, stop: threading.Event,
        clock: Callable[[], datetime] | None = None,
    ) -> None:  # fmt: skip
        self.topology, self.spark, self.emit, self.stop, self.clock = topology, spark, emit, stop, clock
        self.pace = Pace.of(settings)
        self.cluster = Cluster.of(settings)
        self.admin = Admin(self.cluster)
        self.compiler = Compiler(topology)
        retention = Retention(timedelta(days=settings.horizon_days))
        self.store = Store.open(spark, settings.warehouse_uri, topology.app, topology.kept, retention, topology.archived)
        self.advances = Advances.of(topology)
        self.clocks = Clocks(self.pace.punctuate, lambda: self.store.by_clock(self.writer.known))
        self.archives = Archives(spark, settings.warehouse_uri, topology.archived)
        self.position: Position | None = None
        self.offsets: dict[Partition, int] = {}
        self.stream_times: dict[Partition, datetime | None] = {}
        self.topics: dict[str, TopicState] = {}
        self.group = ""
        """The job group of the batch at hand: what a stop that is late cancels."""
        self._way_out = self._ways_out.format(topology.app)
        self._closed = threading.Event()
        self.courier = self._new_courier()
        touched = Touched.of(settings, self.store.folder.changelog, topology.tables)
        self.folding = Folding(self.store, self.pace.fold, self.pace.tail, self.pace.tidy, emit, lambda: self.courier.consumers, touched)
        self._known_lag: dict[str, int] = {}
        self._took: dict[str, int] = {}
        """What the batch before took, and of how many records: so much a replay of as many may be expected to take."""
        self._busy_since = 0.0
        """When the batch at hand was begun, by the clock that is never set; 0.0 where there is none."""
        self._checked = self._looked = 0.0
        """When an idle run has last checked its topics, and last looked whether its app was rewound, by the same clock."""
        self._began_at = 0
        """The seq of the commit that the run found there as it began."""
        self._again = False
        """Whether an outage has broken a batch off: its commit may be there, which a writer that begins again finds out."""
        self._steps: list[Callable[[], None]] = [self._fence, self._stand, self._make_outputs, self._begin]
        """What is to be done before the next batch: each, until it is. An outage may break any of them off."""
        self._started = False
        self.problem = ""
        """What the run waits for, in words; empty where it goes on."""
        self._beside = [threading.Thread(target=target, daemon=True) for target in (self._undo_when_late, self._beat)]
        for thread in self._beside:
            thread.start()

    @property
    def shown(self) -> str:
        """Write the position as people read it; empty before the start has found it."""
        return str(self.position) if self.position else ""

    def run(self, *, available_now: bool) -> str:
        """Work until there is a reason to stop, and give it."""
        self._refuse_breaking_code()
        if not available_now:
            return self._work(None)
        self._arrive()
        return self._work(self.admin.latest(self.offsets))

    def _work(self, goal: dict[Partition, int] | None) -> str:
        while not self.stop.is_set():
            try:
                self._arrive()
                reason = self._turn(goal)
            except _Followed:
                continue
            except Fenced as fenced:
                if self._steps:  # while the place was being taken
                    raise
                self._go_on_from_rewind(fenced)
            except KafkaError as error:
                if goal is not None or isinstance(error, TopicChanged):
                    raise
                self._wait_out(error)
            else:
                if reason:
                    return reason
        return "stopped"

    def _wait_out(self, error: KafkaError) -> None:
        """Wait a little while the cluster is away, and say so; what a batch was at is left as it is, for a writer that begins again.

        Who couldn't read can't tell who is idle. A topic that is gone, or was never there, is no outage, and raised.
        """
        if "no such topic" in str(error):
            raise error
        if "unknown topic or part" in str(error).lower():
            try:
                self.admin.check_topics(self.topics, {}, self._way_out)
            except KafkaError as changed:
                if isinstance(changed, TopicChanged):
                    raise
        if not self.problem:
            _log.warning("waits until it can go on: %s", error)
        self._again, self._busy_since = self._again or self._busy_since > 0, 0.0
        self.advances.forget()
        self.problem = str(error)
        self.stop.wait(1.0)

    def _turn(self, goal: dict[Partition, int] | None) -> str:
        """Commit a batch, or wait a little where there is none; a bounded run that has reached its goal gives the reason to end."""
        began = time.monotonic()
        ends = goal or self.admin.latest(self.offsets)
        self.problem = ""
        if self._again:
            self._begin_again()
            self._again = False
        if goal is None:
            self.advances.look(self.offsets, ends, began)
            self.advances.noticed = self.clocks.due(self.position, began, self.clock()) if self.clock else {}
        end = self.advances.upto(self.offsets, bounded(self.offsets, ends, self.pace.records))
        if end == self.offsets and not self.advances.due(self.offsets, self.stream_times):
            if goal is not None:
                return self._caught_up()
            self._rest(ends)
            return ""
        self._lag(ends)
        self._check_topics()
        self._busy_since = began
        new = goal is None and self.position == Position(self.topology.app, 1, 0)
        self._advance(end, ends)
        self._busy_since = 0.0
        if new:  # somebody waits for the tables to be there
            self.folding.hurry()
        self._hold_back()
        if end == ends:
            self.stop.wait(max(0.0, began + self.pace.trigger - time.monotonic()))
        return ""

    def close(self) -> None:
        """End the threads; what they were doing is done again by the next run."""
        self._closed.set()
        for worker in (self.courier, self.folding):
            worker.close()
        for thread in self._beside:
            thread.join(PATIENCE)

    # -- where it stands ---------------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        """Do what is to be done before the next batch."""
        while self._steps:
            self._steps[0]()
            del self._steps[0]

    def _begin(self) -> None:
        self._began_at = self.writer.position.seq
        self.emit(
            Started(
                app=self.topology.app, position=self.shown, generation=self.writer.generation, pid=os.getpid(),
                fingerprint=self.topology.fingerprint, topics=tuple(t.name for t in self.topology.topics),
                tables=tuple(t.name for t in self.topology.tables),
            )
        )  # fmt: skip
        self._started = True
        self._begin_workers()

    def _refuse_breaking_code(self) -> None:
        """Raise `BreakingChange` where the states are of code that this one can't go on from, and nobody has rewound them for it."""
        found = self.store.deployment(self.topology)
        if found is not None and found.words:
            raise BreakingChange(found.words)

    def _fence(self) -> None:
        """Start a writer."""
        failpoints.hit("job.start.before_fence")
        self.writer = self._new_writer()
        failpoints.hit("job.start.after_fence")

    def _new_writer(self) -> Writer:
        return self.store.start_writer(self.topology)

    def _stand(self) -> None:
        """Stand where the writer stands."""
        names = [topic.name for topic in self.topology.topics]
        self.position = self.writer.position
        self.offsets, self.stream_times, self.topics = {}, {}, {}
        if (last := self.writer.last) is not None:  # topics that the app reads no more keep their offsets in the commits
            self.offsets = {p: offset for p, offset in last.next.items() if p[0] in names}
            self.stream_times = {p: last.stream_times.get(p) for p in self.offsets}
            counts = Counter(topic for topic, _ in self.offsets)
            self.topics = {topic: TopicState(last.topic_ids[topic], count) for topic, count in counts.items()}
            self.archives.look({topic: state.id for topic, state in self.topics.items()})
            self._check_topics()
        found = self.admin.states(name for name in names if name not in self.topics)
        self.archives.look({topic: state.id for topic, state in found.items()})
        self.offsets |= self.archives.earliest(self.admin.earliest(partitions_of(found)))
        self.topics |= found
        self._look_for_advances()

    def _look_for_advances(self) -> None:
        """Find the advances of other epochs; those of its own are in its stream times."""
        if self.writer.known.head.next_epoch > 2:
            ids = {name: state.id for name, state in self.topics.items()}
            self.advances.recorded = Recorded(self.store.changelog.advances(ids))
            self.advances.read = self.store.changelog.furthest(ids) if self.store.timers else {}

    def _check_topics(self) -> None:
        """Raise `TopicChanged` when the topics are no longer those that were read, or have lost what no archive holds."""
        self.admin.check_topics(self.topics, self.archives.reached(self.offsets), self._way_out)

    def _new_courier(self) -> Courier:
        return Courier(self.store, self.admin, self.cluster, publishes=bool(self.topology.sinks))

    def _begin_workers(self) -> None:
        self.folding.start()
        self._begin_courier()

    def _begin_courier(self) -> None:
        assert self.position is not None
        self.courier.generation = self.writer.generation
        self.courier.start()
        if self.position.seq:
            self.folding.waiting(self.writer.known, {})
        self.courier.deliver(self.position, self.offsets, None)

    def _go_on_from_rewind(self, fenced: Fenced) -> None:
        """Take the place up again where rewinds, and nothing else, have fenced this run; raise what fenced it where it was another run.

        Where nobody has taken it, a column was added to the changelog while this run wrote, for the shadow of other code.
        """
        before, generation = self.shown, self.writer.generation
        if not self.store.acts_since(generation) and not (self.writer.failed and self.store.head().generation == generation):
            raise fenced
        self._drop_place()
        self._wait_while_held(fenced, generation)
        self._steps = [self._fence, self._stand, lambda: self._follow(before, generation)]

    def _drop_place(self) -> None:
        """Leave what belongs to the place that was taken away: the batch, and the courier of its generation."""
        self._busy_since, self._again = 0.0, False
        self.courier.close()
        self.courier = self._new_courier()

    def _follow(self, before: str, generation: int) -> None:
        """Go on from a place that was taken up again.

        Raises `Fenced` where another run was there in between, `CodeReplaced` where an act brought in other code than this run's.
        """
        acts = self.store.acts_since(generation, self.writer.generation)
        if not acts and self.writer.generation != generation + 1:
            raise Fenced(f"another run of {self.topology.app!r} started while this one followed a rewind from {before}; this one ends")
        if rewinds := [act for act in acts if act.kind == "epoch"]:
            last, again = rewinds[-1], sum(act.counters.get("records", 0) for act in rewinds)  # what is promoted was read beside the app
            if last.fingerprint not in ("", self.topology.fingerprint):
                raise CodeReplaced(
                    f"{last.writer}: {self.topology.app} goes on under the code {last.fingerprint}, and this run is of "
                    f"{self.topology.fingerprint}. Nothing is lost: start it again, with that code"
                )
            self.emit(Rewound(position=self.shown, before=before, by=last.writer, generation=self.writer.generation, again=again))
        self._begin_courier()

    def _wait_while_held(self, fenced: Fenced, generation: int) -> None:
        """Wait as long as a promote asks for, counted from the moment this run sees it; raise what fenced it where another run begins."""
        seen, since = 0, time.monotonic()
        while acts := self.store.acts_since(generation):
            last = acts[-1]
            if last.generation != seen:
                seen, since = last.generation, time.monotonic()
            if last.kind != "hold" or time.monotonic() - since > last.counters.get(HOLD_MS, 0) / 1000:
                break
            self.problem = f"waits for {last.writer}"
            if self.stop.wait(HELD):
                break
        self.problem = ""
        if not acts and self.store.head().generation != generation:
            raise fenced

    def _make_outputs(self) -> None:
        """Create the topics that the app writes where they aren't there, with as many partitions as the widest that it reads."""
        widest = max(state.partitions for state in self.topics.values())
        self.admin.create_outputs((sink.topic for sink in self.topology.sinks), widest)

    def _lag(self, ends: Offsets) -> dict[str, int]:
        lag = dict.fromkeys(sorted(self.topics), 0)
        for partition, end in ends.items():
            lag[partition[0]] += max(0, end - self.offsets[partition])
        self._known_lag = lag
        return lag

    # -- a batch -----------------------------------------------------------------------------------------------------------------

    def _advance(self, end: dict[Partition, int], ends: Offsets) -> None:
        """Commit everything up to `end`; where data is in the way, as much as there is before it, and then raise `RecordFailed`."""
        try:
            self._batch(end, ends, read_range)
        except Exception as error:
            if end == self.offsets or not self._is_data(error):
                raise
            _log.warning("a batch failed, trying halves of it, or the one record again: %s", error)
            self._begin_again()
            if (middle := midway(self.offsets, end)) is None:
                self._advance_one(end, ends)
            else:
                self._advance(middle, ends)
                self._advance(end, ends)

    def _advance_one(self, end: dict[Partition, int], ends: Offsets) -> None:
        """Try one record again, whose batch failed: that may have passed, or have been how it was read. Else it's to blame."""
        try:
            self._batch(end, ends, read_alone)
        except Exception as error:
            if not self._is_data(error):
                raise
            partition = next(p for p in end if end[p] > self.offsets[p])
            raise failures.blamed(self.topology, partition, self.offsets[partition], self.shown, error) from error

    def _begin_again(self) -> None:
        """Start a new writer after a batch that failed: whether its commit is there, only the changelog knows."""
        self.writer.check()  # a rewind is followed, and another run is left alone
        before, generation, position = self.shown, self.writer.generation, self.position
        writer = self._new_writer()
        if writer.generation != generation + 1:  # somebody was quicker after that look
            self._drop_place()
            self.writer = writer
            self._steps = [self._stand, lambda: self._follow(before, generation)]
            raise _Followed
        self.writer = writer
        self.courier.generation = writer.generation
        if writer.position != position:
            raise JobError(f"the batch after {self.shown} failed, and yet it is committed, at {writer.position}: start the app again")

    def _batch(self, end: dict[Partition, int], ends: Offsets, read: Read) -> None:
        """Read up to `end`, compile and commit that, and hand it on; `ends` are where the topics end, by which the lag is told."""
        began = time.monotonic()
        assert self.position is not None
        self.group = f"{self.topology.app}@{self.position.epoch}.{self.position.seq + 1}"
        records_at_most = size(self.offsets, end)
        with (
            job_group(self.spark, self.group, f"batch {self.group}", STREAM_POOL) as jobs,
            shuffled_by(self.spark, 1 if records_at_most <= ONE_TASK else None),
        ):
            failpoints.hit("job.batch.begin")
            records = self._records(end, read)
            since = {p: self.stream_times.get(p) for p in self.offsets}
            advances = self.advances.due(self.offsets, since)
            carry = since | {(a.topic, a.partition): a.stream_time for a in advances}
            lookup, write = self.writer.lookup(records_at_most), self.writer.writing(records_at_most)
            batch = self.compiler.batch(records, self.writer.number(), carry, lookup, since, clocks_of(advances), write)
            try:
                failpoints.hit("job.batch.compiled")
                self.admin.check_topics(self.topics, {}, self._way_out)  # all is read now, by names: are the topics still those begun with?
                self._commit(batch, end, advances)
            finally:
                batch.close()
            failpoints.hit("job.batch.end")
            spent = jobs()
        self._took = {"ms": round((time.monotonic() - began) * 1000), "ms_records": batch.stats.records}
        self._hand_on(batch.stats, began, spent, ends)

    def _hand_on(self, stats: BatchStats, began: float, spent: int, ends: Offsets) -> None:
        """Leave what was just committed to who publishes it and who folds it, and tell of it."""
        assert self.position is not None
        written = self.writer.rows
        rows = {table: count for table, count in written.items() if not table.startswith("__")}
        outbox = {table.removeprefix(OUT_PREFIX): count for table, count in written.items() if table.startswith(OUT_PREFIX)}
        buffered = {table.name: written.get(table.name, 0) for table in self.compiler.layout.buffers}
        self.courier.deliver(self.position, self.offsets, outbox)
        self.folding.waiting(self.writer.known, rows | buffered)
        dropped = Counter[str]()
        for (_, reason), count in stats.dropped.items():
            dropped[reason] += count
        times = [moved for moved in self.stream_times.values() if moved is not None]
        self.emit(
            BatchCommitted(
                position=self.shown, records=stats.records, seconds=time.monotonic() - began, lag=self._lag(ends), jobs=spent,
                quarantined=stats.quarantined, dropped=dict(dropped), rows=rows, published=outbox,
                stream_time=min(times, default=None), unfolded_s=self.folding.unfolded,
            )
        )  # fmt: skip

    def _records(self, end: dict[Partition, int], read: Read) -> DataFrame:
        """Read a batch; what is to be archived is, before anything is made of it."""
        self.archives.keep(self.cluster, self.offsets, end, self.admin.earliest, self.pace.records, read)
        kept, beside = self.archives.read(self.offsets, end), self.archives.beside(end)
        live = [read(self.spark, self.cluster, self.offsets, beside)] if beside or not kept else []
        return reduce(DataFrame.unionByName, [*live, *kept])

    def _commit(self, batch: Batch, end: dict[Partition, int], advances: tuple[Advance, ...]) -> None:
        stats = batch.stats
        counters = {"records": stats.records, "quarantined": stats.quarantined} | self._took  # its own isn't known before it's made
        counters |= {f"dropped:{node}:{reason}": count for (node, reason), count in stats.dropped.items()}
        counters |= {f"peek:{name}": count for name, count in stats.peeks.items()}
        info = CommitInfo(
            begin=self.offsets, next=end, stream_times={p: stats.stream_times.get(p, self.stream_times.get(p)) for p in self.offsets},
            topic_ids={name: state.id for name, state in self.topics.items()}, counters=counters, advances=advances,
        )  # fmt: skip
        self.position = self.writer.commit(
            batch.tables, info, outbox=batch.outbox, quarantine=batch.quarantine, dropped=batch.dropped, records=counters["records"]
        )
        self.offsets, self.stream_times, self.advances.noticed = end, dict(info.stream_times), {}

    def _is_data(self, error: Exception) -> bool:
        """Tell whether a batch failed because of what is in it, rather than at any record or for another reason.

        Raises `KafkaError` where it was an outage, or a topic is no longer what it was.
        """
        if self.stop.is_set() or not by_data(error, self.spark):
            return False
        self._check_topics()
        return True

    # -- beside the batches ------------------------------------------------------------------------------------------------------

    def _rest(self, ends: Offsets) -> None:
        """Wait a little for records; now and then, see whether the topics are still what they were."""
        self._look_after()
        self._lag(ends)
        if time.monotonic() - self._looked > _LOOK:
            self._looked = time.monotonic()
            self.writer.check()
        if time.monotonic() - self._checked > HEARTBEAT:
            self._checked = time.monotonic()
            self._check_topics()
        self.stop.wait(_POLL)

    def _hold_back(self) -> None:
        """Let folds catch up when too much waits for them: what nobody folds makes every read slower."""
        self._look_after()
        while self.folding.tail > 2 * self.pace.tail and not self.stop.wait(_POLL):
            self._look_after()

    def _beat(self) -> None:
        """Say that the run lives whenever it has said nothing for a while, whatever the loop is doing."""
        while not self._closed.wait(0.5):
            problem = self.problem or self.courier.problem
            if (self._started or problem) and time.monotonic() - self.emit.last >= HEARTBEAT:
                busy = time.monotonic() - self._busy_since if self._busy_since else 0.0
                waits = self.folding.unfolded
                lag = {} if self.problem else self._known_lag  # who can't ask the cluster doesn't know it
                self.emit(Idle(position=self.shown, lag=lag, busy_s=round(busy, 1), problem=problem, unfolded_s=waits))

    def _look_after(self) -> None:
        """Raise what stopped a worker: a run whose tables aren't folded or whose outbox isn't sent is no run."""
        for worker in (self.courier, self.folding):
            worker.check()
        if not alive(self.spark):
            raise JobError(failures.JVM_LOST)

    def _caught_up(self) -> str:
        """End a bounded run: everything is folded and published, and now and then tidied up."""
        assert self.position is not None
        self.writer.check()  # a courier that is fenced waits: by whom, the writer knows
        self.folding.finish(self.stop)
        self.courier.finish(self.stop)
        if self.position.seq // TIDIED != self._began_at // TIDIED:
            self.folding.tidy(self.stop)
        self._look_after()
        return "stopped" if self.stop.is_set() else "caught up"

    def _undo_when_late(self) -> None:
        """Cancel a batch that doesn't end within the patience that a stop has."""
        while not self.stop.wait(0.2):
            if self._closed.is_set():
                return
        while not self._closed.wait(PATIENCE):
            with contextlib.suppress(Exception):  # the JVM may be going as well
                self.spark.sparkContext.cancelJobGroup(self.group)


class _Followed(Exception):
    """Leave a batch that failed: the app was rewound meanwhile, and goes on elsewhere."""
