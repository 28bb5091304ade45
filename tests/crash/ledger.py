"""Give the campaign its app and its records: tables in which a lost, repeated or reordered record shows.

`entries` counts events, sums them and keeps the set of their ids, so that a duplicate shows as n > ids and a loss as ids < n; `last`
shows order. `inventory` streams one Change per event to `on_hand`, so a topic shows all of it once more, and `reorders` is the retail
app's. `items` has tombstones: a key that came back from the dead shows. `windows` drops late events, and some records are poison:
what was dropped and refused must be exact as well. `moves` is archived, so all but `items` is made of what the archive holds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from confluent_kafka import Consumer, Producer, TopicPartition

import watertable as wt
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable.plan.plan import Topology
from watertable.records import Record

INPUTS = {"moves": 2, "items": 1}
OUTPUTS = {"on_hand": 2, "reorders": 1}
_START = datetime(2011, 1, 1, tzinfo=UTC)


def topology(suffix: str, code: str = "a") -> Topology:
    """Define the app of one chain; topics and app carry its suffix, so that chains don't meet.

    Code "b" makes other rows of `entries` and `windows` of the same records, and the same of all else.
    """
    qty = "qty" if code == "a" else "2 * qty"
    app = wt.App(f"ledger{suffix}")
    value = "id BIGINT, qty BIGINT, at TIMESTAMP"
    moves = app.topic(f"moves{suffix}", key="sku STRING", value=value, timestamp="at", archive=True).stream()
    app.topic(f"items{suffix}", key="sku STRING", value="name STRING, price DECIMAL(9,2)").table().materialized_as("items")
    inventory = moves.group_by_key().agg(on_hand=wt.sum("qty")).materialized_as("inventory")
    (
        moves.group_by_key()
        .agg(n=wt.count(), total=wt.sum(qty), first=wt.first("id"), last=wt.last("id"), ids=wt.count_distinct("id"))
        .materialized_as("entries")
    )
    windows = wt.tumbling(minutes=10, grace=wt.minutes(2))
    moves.group_by_key().windowed_by(windows).agg(n=wt.count(), most=wt.max(qty)).materialized_as("windows")
    inventory.to_stream().to(f"on_hand{suffix}")
    inventory.to_stream().filter("old.on_hand >= 20 AND new.on_hand < 20").to(f"reorders{suffix}")
    return app.topology()


class Ledger:
    """Feed one chain's topics, seeded, and read back what they hold as any read_committed consumer sees it."""

    def __init__(self, cluster: Cluster, suffix: str, seed: int) -> None:
        self.cluster, self.suffix = cluster, suffix
        self.admin = Admin(cluster)
        self._random = random.Random(seed)
        self._next = 0
        self._at = _START
        config = cluster.client_config()
        self._producer = Producer(config | {"transactional.id": f"feed{suffix}", "linger.ms": "5"})
        for name, partitions in (INPUTS | OUTPUTS).items():
            self.admin.create_topic(name + suffix, partitions)
        self._producer.init_transactions(30)

    @property
    def inputs(self) -> list[str]:
        return [name + self.suffix for name in INPUTS]

    @property
    def outputs(self) -> list[str]:
        return [name + self.suffix for name in OUTPUTS]

    def feed(self, events: int) -> None:
        """Send so many events in several transactions, one of them aborted: offsets then have gaps, and dead records in them."""
        left = events
        while left > 0:
            count = min(left, 60)
            self._transaction(count, keep=True)
            left -= count
        self._transaction(7, keep=False)

    def _transaction(self, count: int, *, keep: bool) -> None:
        self._producer.begin_transaction()
        state = (self._next, self._at)
        for _ in range(count):
            self._event()
        if keep:
            self._producer.commit_transaction(30)
        else:
            self._producer.flush(30)
            self._producer.abort_transaction(30)
            self._next, self._at = state

    def _event(self) -> None:
        draw = self._random
        self._next += 1
        self._at += timedelta(seconds=draw.randint(0, 40))
        sku = f"s{draw.randint(0, 11)}"
        roll = draw.random()
        if roll < 0.12:
            item = None if draw.random() < 0.3 else json.dumps({"name": f"n{self._next}", "price": f"{draw.randint(1, 999) / 100:.2f}"})
            self._send("items", 0, None if roll < 0.005 else sku, item)
            return
        late = timedelta(minutes=draw.choice((0, 0, 0, 0, 1, 15, 40)))
        at = max(_START, self._at - late)
        value = json.dumps({"id": self._next, "qty": draw.randint(-15, 15), "at": at.isoformat()})
        if roll > 0.98:
            value = "{broken" if roll > 0.99 else json.dumps({"id": self._next, "qty": "many", "at": at.isoformat()})
        self._send("moves", int(sku[1:]) % 2, None if 0.975 < roll <= 0.98 else sku, value)

    def _send(self, topic: str, partition: int, key: str | None, value: str | None) -> None:
        stamp = int(self._at.timestamp() * 1000)
        self._producer.produce(topic + self.suffix, value, key, partition=partition, timestamp=stamp)

    def records(self, topics: list[str]) -> list[Record]:
        """Read topics from their beginning to the end of what is committed, as a read_committed consumer does."""
        return list(self._consume(topics))

    def _consume(self, topics: list[str]) -> Iterator[Record]:
        consumer = Consumer(
            self.cluster.client_config()
            | {"group.id": "verifier", "enable.auto.commit": "false", "isolation.level": "read_committed", "auto.offset.reset": "error",
               "enable.partition.eof": "true"}
        )  # fmt: skip
        try:
            partitions = self.admin.partitions(topics)
            ends = self.admin.latest(partitions)
            open_partitions = {p for p in partitions if ends[p] > 0}
            consumer.assign([TopicPartition(topic, number, 0) for topic, number in sorted(open_partitions)])
            while open_partitions:
                message = consumer.poll(20)
                assert message is not None, f"nothing came of {open_partitions} in 20 s"
                place = (message.topic(), message.partition())
                if message.error():
                    assert message.error().name() == "_PARTITION_EOF", message.error()
                    open_partitions.discard(place)
                    continue
                stamp = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
                yield Record(*place, message.offset(), stamp, message.key(), message.value())
        finally:
            consumer.close()

    def ends(self) -> dict[tuple[str, int], int]:
        return self.admin.latest(self.admin.partitions(self.inputs))
