"""Joins of streams in the store: whatever the batches, folds, crashes and rewinds, each pair comes once, and what is done with goes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.properties.engines import as_frame, tiny
from tests.spark.ledger import both_folds
from watertable import fold, rewind
from watertable.changelog import CommitInfo
from watertable.compiler import Compiler
from watertable.interpreter import Interpreter
from watertable.kafka.admin import TopicState
from watertable.plan import Topology
from watertable.records import Record
from watertable.rewind import Target
from watertable.store import Store
from watertable.windows import EPOCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TOPICS = ("views", "clicks")
Tables = dict[str, dict[tuple[Any, ...], dict[str, Any]]]


def shop() -> Topology:
    """Pair views with clicks: count the pairs, keep the last one, and pair clicks with clicks; publish them, too."""
    app = wt.App("shop")
    views, clicks = (app.topic(name, key="k STRING", value="v STRING").stream() for name in TOPICS)
    seen = views.join(
        clicks, within=wt.join_windows(before=wt.minutes(1), after=wt.minutes(5), grace=wt.minutes(2)), l="left.v", r="right.v"
    )
    seen.to_table().materialized_as("last")
    seen.group_by_key().windowed_by(wt.tumbling(minutes=10)).agg(n=wt.count(), all=wt.collect_list("concat(l, r)")).materialized_as(
        "counts"
    )
    clicks.join(clicks, within=wt.minutes(1), v="concat(left.v, right.v)").group_by_key().agg(n=wt.count()).materialized_as("doubles")
    seen.to("seen")
    return app.topology()


def tale(minutes: int) -> list[Record]:
    """Write views and clicks of three keys, a few a minute, some of them late; views run five minutes ahead of clicks."""
    records, following = [], dict.fromkeys(TOPICS, 0)
    for minute in range(minutes):
        for topic, behind in (("views", 0), ("clicks", 5), ("clicks", 5 + 3 * (minute % 4 == 3))):
            if minute < behind:
                continue
            at = EPOCH + timedelta(minutes=minute - behind, seconds=following[topic] % 7)
            key = f"k{(minute - behind) // 2 % 3}"
            value = json.dumps({"v": f"{topic[0]}{following[topic]} "}).encode()
            records.append(Record(topic, 0, following[topic], at, key.encode(), value))
            following[topic] += 1
    return records


class Kafka:
    """Stand in for the cluster: topics of one partition that keep everything."""

    def describe(self, names: Iterable[str]) -> dict[str, TopicState]:
        return {name: TopicState(f"id-{name}", 1) for name in names if name in TOPICS}

    def partitions(self, names: Iterable[str]) -> tuple[tuple[str, int], ...]:
        return tuple((name, 0) for name in names)

    def earliest(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 0)


class Run:
    """Run the shop on a store, batch by batch, as a job does; a new one knows nothing but what the store says."""

    def __init__(self, spark: SparkSession, warehouse: Path, topology: Topology | None = None) -> None:
        self.spark, self.topology = spark, topology or shop()
        self.store = Store.open(spark, str(warehouse), "shop", self.topology.kept)
        self.writer, self.compiler = self.store.start_writer(self.topology.fingerprint), Compiler(self.topology)
        last = self.writer.last
        self.next = dict(last.next) if last else dict.fromkeys(((topic, 0) for topic in TOPICS), 0)
        self.carry: dict[tuple[str, int], datetime | None] = dict(last.stream_times) if last else dict.fromkeys(self.next)
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
            begin=begin, next=dict(self.next), stream_times=dict(self.carry), topic_ids={topic: f"id-{topic}" for topic in TOPICS},
            counters={"records": len(records), "ms": 10},
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
        """Count what the commits of this lineage have to publish."""
        snapshot = self.store.changelog.snapshot()
        head = self.store.head()
        floor = dict.fromkeys(self.next, 1_000)  # of a pair, one source record alone can't say whether it was published
        return Counter(row[4] for row in self.store.changelog.outbox(snapshot, head.lineage, 0, head.position.seq, floor))

    def waiting(self) -> list[int]:
        """Count what waits on either side in each buffer's Delta table."""
        frames = [self.store.changelog.base_path(b.name) for b in self.topology.buffers]
        return [
            int(self.spark.read.format("delta").load(path).selectExpr("coalesce(sum(__lefts + __rights), 0)").collect()[0][0])
            for path in frames
        ]


def cut(records: Sequence[Record], *sizes: int) -> list[list[Record]]:
    found, start, n = [], 0, 0
    while start < len(records):
        found.append(list(records[start : start + sizes[n % len(sizes)]]))
        start, n = start + sizes[n % len(sizes)], n + 1
    return found


def told(records: Sequence[Record], topology: Topology | None = None) -> Interpreter:
    """Ask the oracle, which reads all at once."""
    engine = Interpreter(topology or shop())
    engine.read(records)
    return engine


def agree(run: Run, oracle: Interpreter) -> None:
    """Compare a store with the oracle: every table to the row, and everything published, as often."""
    assert run.tables() == oracle.tables
    assert run.published() == Counter(o.value for o in oracle.outputs)


@both_folds
def test_pairs_come_once_through_folds_that_let_go_of_what_nothing_can_pair_with(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    run, records = Run(tiny(spark), tmp_path), tale(40)
    sizes = []
    for number, batch in enumerate(cut(records, 18)):
        run.read(batch)
        if number % 2:
            run.store.folder.fold_all()
            sizes.append(run.waiting())
    agree(run, told(records))
    seen, double = zip(*sizes, strict=True)
    most = max(seen), max(double)
    assert most < (60, 60), f"the buffers grow: {sizes}"  # all there was: 110 and twice 70
    assert max(run.jobs[1:]) <= 14, f"{run.jobs} Spark jobs for two joins of streams"


def test_after_a_crash_between_any_two_commits_and_a_rewind_to_any_of_them_the_pairs_are_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    session, records = tiny(spark), tale(15)
    wanted = told(records)
    for number, batch in enumerate(cut(records, 11)):
        run = Run(session, tmp_path)  # a new process: the one before died after its commit
        run.read(batch)
        if number == 1:
            run.store.folder.fold_all()
    agree(run, wanted)
    for to in (1, 2):  # of the new epoch, then: other batches
        plan = rewind.plan(run.store, run.topology, Kafka(), Target.parse(str(to)))  # type: ignore[arg-type]
        rewind.apply(run.store, plan, run.topology.fingerprint, Kafka())  # type: ignore[arg-type]
        run = Run(session, tmp_path)
        left = [r for r in records if r.offset >= run.next[r.topic, r.partition]]
        for batch in cut(left, 7, 30):
            run.read(batch)
        agree(run, wanted)
