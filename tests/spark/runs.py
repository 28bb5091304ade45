"""Run an app on a store, batch by batch, as a job does: a new run knows nothing but what the store says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.properties.engines import as_frame
from watertable import rewind
from watertable.changelog import CommitInfo
from watertable.compiler import Compiler
from watertable.interpreter import Interpreter
from watertable.kafka.admin import TopicState
from watertable.plan import Topology
from watertable.records import Record
from watertable.rewind import Target
from watertable.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tables = dict[str, dict[tuple[Any, ...], dict[str, Any]]]


class Kafka:
    """Stand in for the cluster: partitions that keep everything."""

    def __init__(self, partitions: Iterable[tuple[str, int]]) -> None:
        self._partitions = tuple(partitions)

    def describe(self, names: Iterable[str]) -> dict[str, TopicState]:
        numbers = Counter(topic for topic, _ in self._partitions)
        return {name: TopicState(f"id-{name}", numbers[name]) for name in names if name in numbers}

    def partitions(self, names: Iterable[str]) -> tuple[tuple[str, int], ...]:
        wanted = set(names)
        return tuple(p for p in self._partitions if p[0] in wanted)

    def earliest(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 0)


class Run:
    """Run an app on a store; the one before died after its last commit."""

    def __init__(self, spark: SparkSession, warehouse: Path, topology: Topology, partitions: Sequence[tuple[str, int]]) -> None:
        self.spark, self.topology, self.kafka = spark, topology, Kafka(partitions)
        self.store = Store.open(spark, str(warehouse), topology.app, topology.kept)
        self.writer, self.compiler = self.store.start_writer(topology.fingerprint), Compiler(topology)
        last = self.writer.last
        self.next = dict(last.next) if last else dict.fromkeys(partitions, 0)
        self.carry: dict[tuple[str, int], datetime | None] = dict(last.stream_times) if last else dict.fromkeys(partitions)
        self.jobs: list[int] = []

    def read(self, records: Sequence[Record]) -> None:
        """Commit one batch."""
        begin = dict(self.next)
        self.next |= {(r.topic, r.partition): r.offset + 1 for r in records}
        tracker, group = self.spark.sparkContext.statusTracker(), f"batch {len(self.jobs)} of {id(self)}"
        self.spark.sparkContext.setJobGroup(group, group)
        made = self.compiler.batch(as_frame(self.spark, records), self.carry, self.writer.lookup())
        self.carry |= {p: stats.stream_time for p, stats in made.stats.partitions.items()}
        info = CommitInfo(
            begin=begin, next=dict(self.next), stream_times=dict(self.carry),
            topic_ids={topic: f"id-{topic}" for topic, _ in self.next}, counters={"records": len(records), "ms": 10},
        )  # fmt: skip
        self.writer.commit(made.tables, info, outbox=made.outbox, records=len(records))
        made.close()
        self.jobs.append(len(tracker.getJobIdsForGroup(group)))

    def tables(self) -> Tables:
        """Read all tables, fresh, as the oracle holds them."""
        found: Tables = {}
        for table in self.topology.tables:
            rows = self.store.reader.read(table.name).toArrow().to_pylist()
            found[table.name] = {tuple(row[name] for name in table.key.names): row for row in rows}
        return found

    def published(self) -> Counter[bytes | None]:
        """Count what the commits of this lineage have to publish, whatever was published before."""
        snapshot, head = self.store.changelog.snapshot(), self.store.head()
        floor = dict.fromkeys(self.next, 1_000_000)
        return Counter(row[4] for row in self.store.changelog.outbox(snapshot, head.lineage, 0, head.position.seq, floor))

    def rewind(self, seq: int) -> None:
        """Rewind to a commit."""
        plan = rewind.plan(self.store, self.topology, self.kafka, Target.parse(str(seq)))  # type: ignore[arg-type]
        rewind.apply(self.store, plan, self.topology.fingerprint, self.kafka)  # type: ignore[arg-type]

    def left(self, records: Iterable[Record]) -> list[Record]:
        """List the records that aren't committed."""
        return [r for r in records if r.offset >= self.next[r.topic, r.partition]]


def cut(records: Sequence[Record], *sizes: int) -> list[list[Record]]:
    """Cut records into batches of these sizes, over and over."""
    found, start, n = [], 0, 0
    while start < len(records):
        found.append(list(records[start : start + sizes[n % len(sizes)]]))
        start, n = start + sizes[n % len(sizes)], n + 1
    return found


def told(topology: Topology, records: Sequence[Record]) -> Interpreter:
    """Ask the oracle, which reads all at once."""
    engine = Interpreter(topology)
    engine.read(records)
    return engine


def agree(run: Run, oracle: Interpreter) -> None:
    """Compare a store with the oracle: every table to the row, and everything published, as often."""
    assert run.tables() == oracle.tables
    assert run.published() == Counter(o.value for o in oracle.outputs)
