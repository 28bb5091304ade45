"""Topics that Kafka has really compacted: with what is left, tables and archives are what they were with all of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

import watertable as wt
from tests.kafka.test_job import World
from watertable.acts import rewind
from watertable.acts.plans import RewindPlan
from watertable.acts.rewind import Target
from watertable.errors import RewindRefused
from watertable.kafka.config import Cluster
from watertable.plan.plan import Topology
from watertable.runtime import job
from watertable.runtime.events import BatchCommitted, Event
from watertable.store.writer import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]  # Kafka's cleaner looks each 15 s
PATIENCE = 120
MORE = 30
AT_ONCE = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "200",
    "delete.retention.ms": "0",
    "max.compaction.lag.ms": "1000",
}


class Compacting(World):
    """Hold apps that read prices from a topic which Kafka compacts as soon as it can."""

    def __init__(self, spark: SparkSession, cluster: Cluster, home: Path) -> None:
        super().__init__(spark, cluster, home)
        self.admin.create_topic(self.prices, 2, AT_ONCE)
        self.newest: dict[str, tuple[int, str]] = {}

    @property
    def prices(self) -> str:
        return f"prices{self.suffix}"

    def topology(self, app: str = "shop", *, archive: bool = False, counted: bool = False) -> Topology:
        shop = wt.App(f"{app}{self.suffix}")
        topic = shop.topic(self.prices, key="sku STRING", value="price BIGINT, kind STRING", archive=archive)
        prices = topic.table().materialized_as("prices")
        prices.group_by("kind").agg(n=wt.count(), total=wt.sum("price")).materialized_as("kinds")
        if counted:
            topic.stream().group_by_key().agg(n=wt.count()).materialized_as("records")
        return shop.topology()

    def price(self, numbers: range, step: int = 1) -> None:
        """Give each of some products some prices, one after the other, the last of every seventh a deletion."""
        for number in numbers:
            sku, price, kind = f"p{number % 10}", number * step, "abc"[number % 3]
            gone = number % 7 == 0
            value = None if gone else json.dumps({"price": price, "kind": kind})
            self._producer.produce(self.prices, value, sku, partition=number % 2)
            if gone:
                self.newest.pop(sku, None)
            else:
                self.newest[sku] = price, kind
        self._producer.flush(20)

    def in_kafka(self) -> list[tuple[int, int]]:
        """List partition and offset of all records that are left."""
        consumer = Consumer(self.cluster.client_config() | {"group.id": "t", "enable.partition.eof": "true"})
        found, left = [], {0, 1}
        consumer.assign([TopicPartition(self.prices, p, 0) for p in left])
        while left:
            message = consumer.poll(20)
            assert message is not None
            if message.error():
                left.discard(message.partition())
            else:
                found.append((message.partition(), message.offset()))
        consumer.close()
        return sorted(found)

    def compact(self) -> None:
        """Have Kafka compact what is there, by records after it: the segment that they are in stays as it is."""
        time.sleep(0.3)  # longer than a segment's time
        self.price(range(200, 200 + MORE), 3)
        patience = time.monotonic() + PATIENCE
        while (left := len(self.in_kafka())) > 10 + MORE:
            assert time.monotonic() < patience, f"{left} records are left"
            time.sleep(1)

    def go(self, topology: Topology) -> list[Event]:
        said: list[Event] = []
        job.run(topology, self.settings, available_now=True, spark=self.spark, on_event=said.append)
        return said

    def store(self, topology: Topology) -> Store:
        archived = (self.prices,) if topology.archived else ()
        return Store(self.spark, self.settings.warehouse_uri, topology.app, topology.kept, archived=archived)

    def rows(self, topology: Topology) -> dict[str, tuple[int, str]]:
        return {row["sku"]: (row["price"], row["kind"]) for row in self.store(topology).reader.read("prices").collect()}

    def kinds(self, topology: Topology) -> dict[str, tuple[int, int]]:
        return {row["kind"]: (row["n"], row["total"]) for row in self.store(topology).reader.read("kinds").collect()}

    def holds(self, topology: Topology) -> None:
        assert self.rows(topology) == self.newest
        kinds: dict[str, tuple[int, int]] = {}
        for price, kind in self.newest.values():
            n, total = kinds.get(kind, (0, 0))
            kinds[kind] = n + 1, total + price
        assert self.kinds(topology) == kinds

    def rewind(self, topology: Topology, **options: object) -> RewindPlan:
        plan = rewind.plan(self.store(topology), topology, self.admin, Target.parse(to="earliest"), **options)  # type: ignore[arg-type]
        rewind.apply(self.store(topology), plan, topology.fingerprint, self.admin)
        return plan


@pytest.fixture
def world(spark: SparkSession, broker: Cluster, tmp_path: Path) -> Compacting:
    return Compacting(spark, broker, tmp_path)


def test_what_kafka_has_compacted_makes_the_tables_that_all_of_it_made(world: Compacting) -> None:
    early, late, counting = world.topology(), world.topology("late"), world.topology("counting", counted=True)
    world.price(range(200))
    world.go(early)
    world.go(counting)
    world.holds(early)
    world.compact()
    left = world.in_kafka()
    world.go(early)  # from within what was compacted
    world.go(late)  # from its beginning
    for topology in (early, late):
        world.holds(topology)
    plan = world.rewind(early)
    committed = [e for e in world.go(early) if isinstance(e, BatchCommitted)]
    assert sum(e.records for e in committed) == len(left)
    assert not [r for r in plan.ranges if r.thinned]
    world.holds(early)
    with pytest.raises(RewindRefused, match=f"Kafka compacts topic {world.prices}"):
        world.rewind(counting)


def test_an_archive_of_a_topic_that_kafka_compacts_keeps_all_that_was_read_and_a_replay_reads_it(world: Compacting) -> None:
    topology = world.topology(archive=True, counted=True)
    world.price(range(200))
    world.go(topology)
    world.compact()
    world.go(topology)
    world.holds(topology)
    counted = {row["sku"]: row["n"] for row in world.store(topology).reader.read("records").collect()}
    world.rewind(topology)
    world.go(topology)
    world.holds(topology)
    assert {row["sku"]: row["n"] for row in world.store(topology).reader.read("records").collect()} == counted
