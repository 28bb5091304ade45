"""Run an app on a store, batch by batch, as a job does without Kafka; alone, or beside the oracle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import polars
import pytest

from tests.proofs import note
from tests.properties.engines import as_frame, collect_together
from watertable.acts import rewind
from watertable.acts.rewind import Target
from watertable.compiler import Compiler
from watertable.interpreter import Interpreter
from watertable.kafka.admin import TopicState
from watertable.plan.plan import Topology
from watertable.records import Advance, Record
from watertable.runtime.advances import clocks_of
from watertable.store import commits, memory
from watertable.store.commits import CommitInfo
from watertable.store.reader import At
from watertable.store.writer import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tables = dict[str, dict[tuple[Any, ...], dict[str, Any]]]
Partitions = Sequence[tuple[str, int]]
Item = Record | Advance
T = TypeVar("T")
OfLog = TypeVar("OfLog", bound=Item)


class Kafka:
    """Stand in for the cluster's admin: partitions that keep everything, from `first` on; and topics with their names as their ids."""

    def __init__(self, partitions: Partitions, first: Mapping[tuple[str, int], int] | None = None, thinned: Iterable[str] = ()) -> None:
        self.numbers = Counter(topic for topic, _ in partitions)
        self.first, self.thinned = first or {}, frozenset(thinned)

    def describe(self, names: Iterable[str]) -> dict[str, TopicState]:
        return {name: TopicState(name, self.numbers[name]) for name in names if name in self.numbers}

    def compacted(self, names: Iterable[str]) -> frozenset[str]:
        return self.thinned.intersection(names)

    def partitions(self, names: Iterable[str]) -> tuple[tuple[str, int], ...]:
        return tuple((name, number) for name in names for number in range(self.numbers[name]))

    def earliest(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {p: self.first.get(p, 0) for p in partitions}


class Run:
    """Run an app on a store: whatever ran there before died after its last commit."""

    records: list[Record]
    """All that its topics hold, where that is known beforehand."""

    def __init__(self, spark: SparkSession, warehouse: Path, topology: Topology, partitions: Partitions) -> None:
        self.spark, self.warehouse, self.topology, self.partitions = spark, warehouse, topology, partitions
        self.compiler, self.jobs = Compiler(topology), list[int]()
        self.starts = 0
        self.open()

    def start(self) -> None:
        """Begin again as a new process does after a crash, which knows nothing but what the store says, each other time an old one."""
        note("crash", self.topology)
        memory._seen.clear()
        self.starts += 1
        with pytest.MonkeyPatch.context() as patch:
            if self.starts % 2:  # whose log doesn't go back to its beginning
                patch.setattr(memory, "_YOUNG", -1)
            self.open()

    def open(self) -> None:
        """Begin to write."""
        self.store = Store.open(self.spark, str(self.warehouse), self.topology.app, self.topology.kept)
        self.writer = self.store.start_writer(self.topology)
        last = self.writer.last or CommitInfo()
        self.next = dict.fromkeys(self.partitions, 0) | dict(last.next)
        self.carry: dict[tuple[str, int], datetime | None] = dict.fromkeys(self.partitions) | dict(last.stream_times)

    def read(self, items: Sequence[Item], *, dies: bool = False) -> None:
        """Commit one batch, with the advances before its records; or die right before its commit."""
        records, begin, since = [i for i in items if isinstance(i, Record)], dict(self.next), dict(self.carry)
        advances = tuple(
            commits.Advance(i.topic, i.partition, i.offset, i.stream_time, i.clock) for i in items if isinstance(i, Advance)
        )  # fmt: skip
        self.carry |= {(a.topic, a.partition): a.stream_time for a in advances}
        self.next |= {(r.topic, r.partition): r.offset + 1 for r in records}
        tracker, group = self.spark.sparkContext.statusTracker(), f"batch {len(self.jobs)} of {id(self)}"
        self.spark.sparkContext.setJobGroup(group, group)
        lookup, write = self.writer.lookup(), self.writer.writing(len(records))
        made = self.compiler.batch(
            as_frame(self.spark, records), self.writer.number(), self.carry, lookup, since, clocks_of(advances), write
        )
        self.carry |= made.stats.stream_times
        info = CommitInfo(
            begin=begin, next=dict(self.next), stream_times=dict(self.carry), topic_ids={topic: topic for topic, _ in self.next},
            counters={"records": len(records), "ms": 10}, advances=advances,
        )  # fmt: skip
        if not dies:
            self.writer.commit(made.tables, info, outbox=made.outbox, records=len(records))
        made.close()
        self.jobs.append(len(tracker.getJobIdsForGroup(group)))

    def rewind(self, to: int) -> None:
        """Rewind to a commit, 0 for earliest, and begin anew."""
        kafka: Any = Kafka(self.partitions)
        plan = rewind.plan(self.store, self.topology, kafka, Target.parse(str(to) if to else "earliest"))
        rewind.apply(self.store, plan, self.topology.fingerprint, kafka)
        note("rewind", self.topology)
        self.open()

    def left(self, items: Iterable[OfLog]) -> list[OfLog]:
        """List the records and advances that aren't committed."""
        return [i for i in items if i.offset >= self.next[i.topic, i.partition] and (isinstance(i, Record) or self._lacks(i))]

    def _lacks(self, advance: Advance) -> bool:
        come = self.carry[advance.topic, advance.partition]
        return come is None or advance.offset > self.next[advance.topic, advance.partition] or come < advance.stream_time

    def tables(self, at: At | None = None, names: Sequence[str] = ()) -> Tables:
        """Read tables, all if none are named, fresh and at one position, in one job, as the oracle holds them."""
        frames = self.store.reader.read_all(names or [table.name for table in self.topology.tables], at)
        keys = {table.name: table.key.names for table in self.topology.tables}
        return {
            name: {tuple(row[n] for n in keys[name]): row for row in found.to_pylist(maps_as_pydicts="strict")}
            for name, found in collect_together(frames).items()
        }

    def plain(self, table: str, version: int | None = None) -> list[dict[str, Any]]:
        """Read a table as it is folded, or was at a version, without a JVM."""
        return polars.scan_delta(f"{self.store.warehouse}/{self.store.app}/{table}", version=version).drop("_wt").collect().to_dicts()

    def published(self) -> Counter[bytes | None]:
        """Count what the commits of this lineage have to publish, whatever was published before."""
        snapshot, head = self.store.changelog.snapshot(), self.store.head()
        floor = dict.fromkeys(self.next, 1_000_000)  # of a pair, one source record alone can't say whether it was published
        return Counter(row[4] for row in self.store.changelog.outbox(snapshot, head.lineage, 0, head.position.seq, floor))


def agree(run: Run, oracle: Interpreter) -> None:
    """Compare a store with the oracle: every table to the row, and everything published, as often."""
    assert run.tables() == oracle.tables
    assert run.published() == Counter(o.value for o in oracle.outputs)


def told(topology: Topology, items: Sequence[Item]) -> Interpreter:
    """Ask the oracle, which reads all at once."""
    engine = Interpreter(topology)
    engine.read(items)
    return engine


def survives(spark: SparkSession, warehouse: Path, topology: Topology, partitions: Partitions, items: Sequence[Item], size: int) -> Run:
    """Hold an app to the law: crashes between all commits, a fold, and rewinds that are replayed in other batches change nothing."""
    wanted = told(topology, items)
    run = Run(spark, warehouse, topology, partitions)
    for number, batch in enumerate(apart(by(items, size))):
        run.start()
        run.read(batch)
        if number == 1:
            run.store.folder.fold_all()
    agree(run, wanted)
    for to in (1, 2):  # of the new epoch, then
        run.rewind(to)
        for batch in apart(by(run.left(items), 7, 30)):
            run.read(batch)
        agree(run, wanted)
    return run


def through_folds(run: Run, records: Sequence[Item], size: int, waiting: Callable[[Run], list[int]]) -> tuple[Interpreter, list[list[int]]]:
    """Run batches of a size, a fold after each second one; give the oracle, which agrees, and what was waiting after each fold."""
    sizes = []
    for number, batch in enumerate(by(records, size)):
        run.read(batch)
        if number % 2:
            run.store.folder.fold_all()
            sizes.append(waiting(run))
    oracle = told(run.topology, records)
    agree(run, oracle)
    return oracle, sizes


def by(items: Sequence[T], *sizes: int) -> list[list[T]]:
    """Cut records into batches of these sizes, over and over."""
    found, start, n = [], 0, 0
    while start < len(items):
        found.append(list(items[start : start + sizes[n % len(sizes)]]))
        start, n = start + sizes[n % len(sizes)], n + 1
    return found


def cut(items: Sequence[T], rng: random.Random, cuts: int) -> list[list[T]]:
    """Cut records into batches anywhere."""
    at = sorted({0, len(items), *rng.sample(range(1, len(items)), cuts)})
    return [list(items[a:b]) for a, b in pairwise(at)]


def apart(batches: Iterable[Sequence[Item]]) -> Iterator[list[Item]]:
    """Cut batches where an advance comes behind records of its partition: there a job begins another one."""
    for batch in batches:
        part = list[Item]()
        for item in batch:
            of = [(i.topic, i.partition) for i in part if isinstance(i, Record)]
            if isinstance(item, Advance) and (item.topic, item.partition) in of:
                yield part
                part = []
            part.append(item)
        yield part


# -- beside the oracle, batch by batch ------------------------------------------------------------------------------------------------

Shown = Callable[[dict[str, Any]], str]


def text(row: dict[str, Any]) -> str:
    """Write a row so that equal rows have equal texts, whatever zone a reader gives their times in."""
    utc = {name: value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value for name, value in row.items()}
    return str(sorted(utc.items()))


def without_bounds(row: dict[str, Any]) -> str:
    """Write a windowed row without its window, whose times readers without a JVM give in a zone of another name."""
    return text({name: value for name, value in row.items() if not name.startswith("window")})


class Twin(Run):
    """Run an app and the oracle side by side; `both` gives them a batch, `agree` compares every table, row for row."""

    def __init__(self, spark: SparkSession, warehouse: Path, topology: Topology, partitions: Partitions) -> None:
        super().__init__(spark, warehouse, topology, partitions)
        self.engine = Interpreter(topology, partitions=partitions)

    def both(self, records: Sequence[Record]) -> None:
        """Commit a batch, and let the oracle read it."""
        self.engine.read(records)
        self.read(records)

    def agree(self, *, plain: bool = False, shown: Shown = text) -> None:
        """Compare what a fresh read gives with the oracle; and, if all is folded, what a plain reader does without a JVM."""
        for table in self.topology.tables:
            wanted = sorted(map(shown, self.engine.tables[table.name].values()))
            found = [row.asDict(recursive=True) for row in self.store.reader.read(table.name).collect()]
            assert sorted(map(shown, found)) == wanted, table.name
            if plain:
                assert sorted(map(shown, self.plain(table.name))) == wanted, table.name
