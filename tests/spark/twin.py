"""Run an app on a store and in the interpreter, side by side: batch by batch as a job does, without Kafka."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars

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

Shown = Callable[[dict[str, Any]], str]


def text(row: dict[str, Any]) -> str:
    """Write a row so that equal rows have equal texts."""
    return str(sorted(row.items()))


def without_bounds(row: dict[str, Any]) -> str:
    """Write a windowed row without its window, whose times readers without a JVM give in a zone of another name."""
    return text({name: value for name, value in row.items() if not name.startswith("window")})


def cut(records: Sequence[Record], rng: random.Random, cuts: int) -> list[list[Record]]:
    """Cut records into batches anywhere."""
    at = sorted({0, len(records), *rng.sample(range(1, len(records)), cuts)})
    return [list(records[a:b]) for a, b in pairwise(at)]


class Kafka:
    """Stand in for the cluster's admin: topics that keep everything, each with its name as its id."""

    def __init__(self, partitions: Iterable[tuple[str, int]]) -> None:
        self.known = Counter(topic for topic, _ in partitions)

    def describe(self, names: Iterable[str]) -> dict[str, TopicState]:
        return {name: TopicState(name, self.known[name]) for name in names if name in self.known}

    def partitions(self, names: Iterable[str]) -> tuple[tuple[str, int], ...]:
        return tuple((name, number) for name in names for number in range(self.known[name]))

    def earliest(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 0)


class Twin:
    """Hold a store and the oracle; `read` gives both a batch, `agree` compares every table, row for row."""

    def __init__(self, spark: SparkSession, warehouse: Path, topology: Topology, partitions: Iterable[tuple[str, int]]) -> None:
        self.spark, self.warehouse, self.topology = spark, warehouse, topology
        self.partitions, self.compiler = tuple(partitions), Compiler(topology)
        self.engine = Interpreter(topology, partitions=self.partitions)
        self.start()

    def start(self) -> None:
        """Begin as a new process does, which knows nothing but what the store says; the oracle stays."""
        self.store = Store.open(self.spark, str(self.warehouse), self.topology.app, self.topology.kept)
        self.writer = self.store.start_writer(self.topology.fingerprint)
        last = self.writer.last or CommitInfo()
        self.next = dict.fromkeys(self.partitions, 0) | dict(last.next)
        self.carry: dict[tuple[str, int], datetime | None] = dict.fromkeys(self.partitions) | dict(last.stream_times)

    def read(self, records: Sequence[Record]) -> None:
        """Commit a batch, and let the oracle read it."""
        self.engine.read(records)
        self.write(records)

    def write(self, records: Sequence[Record], *, dies: bool = False) -> None:
        """Commit a batch that the oracle knows; or die before its commit."""
        begin = dict(self.next)
        self.next |= {(r.topic, r.partition): r.offset + 1 for r in records}
        made = self.compiler.batch(as_frame(self.spark, records), self.carry, self.writer.lookup())
        self.carry |= {p: stats.stream_time for p, stats in made.stats.partitions.items()}
        info = CommitInfo(
            begin=begin, next=dict(self.next), stream_times=dict(self.carry), topic_ids={topic: topic for topic, _ in self.next},
            counters={"records": len(records), "ms": 10},
        )  # fmt: skip
        if not dies:
            self.writer.commit(made.tables, info)
        made.close()

    def rewind(self, to: str) -> None:
        """Rewind the store, and begin anew; the oracle has read what is replayed."""
        kafka: Any = Kafka(self.partitions)
        plan = rewind.plan(self.store, self.topology, kafka, Target.parse(to))
        rewind.apply(self.store, plan, self.topology.fingerprint, kafka)
        self.start()

    def agree(self, *, plain: bool = False, shown: Shown = text) -> None:
        """Compare what a fresh read gives with the oracle; and, if all is folded, what a plain reader does without a JVM."""
        for table in self.topology.tables:
            wanted = sorted(map(shown, self.engine.tables[table.name].values()))
            found = [row.asDict(recursive=True) for row in self.store.reader.read(table.name).collect()]
            assert sorted(map(shown, found)) == wanted, table.name
            if plain:
                assert sorted(map(shown, self.plain(table.name))) == wanted, table.name

    def plain(self, table: str) -> list[dict[str, Any]]:
        """Read a table as it is folded, without a JVM."""
        return polars.scan_delta(f"{self.store.warehouse}/{self.store.app}/{table}").drop("_wt").collect().to_dicts()
