"""Make the topic that every contender reads: JSON records whose counts and sums by key are known before the first one is sent.

The n-th record's key and amount are a hash of n, so any process can recompute what the right answer is, and nobody has to be believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
from confluent_kafka import Producer

from watertable.errors import KafkaError
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster

CHUNK: Final = 50_000
SHARE: Final = 100
"""One record in so many is the end of a history that is rewound by itself."""
_SHOPS: Final = ("Basel", "Bergen", "Bilbao", "Bologna", "Bremen", "Bristol", "Brno", "Bruges")
VALUE: Final = "item STRING, amount BIGINT, shop STRING"
"""The schema of a value; the key is its item."""
Line = tuple[int, bytes, bytes | None, int]
"""A record as it is sent: partition (-1: as Kafka's own partitioner has it), key, value, milliseconds (0: the time of sending)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold what a contender's output must add up to."""

    keys: int
    records: int
    amount: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Describe a topic: so many records, drawn uniformly from so many keys."""

    topic: str
    records: int
    keys: int
    partitions: int = 4

    @property
    def answer(self) -> Answer:
        """Compute what counting and summing by key must give, over all keys."""
        numbers, amounts = draw(np.arange(self.records, dtype=np.uint64), self.keys)
        return Answer(keys=int(np.unique(numbers).size), records=self.records, amount=int(amounts.sum()))

    def lines(self) -> Iterator[Line]:
        """Yield the records."""
        for start in range(0, self.records, CHUNK):
            numbers, amounts = draw(np.arange(start, min(start + CHUNK, self.records), dtype=np.uint64), self.keys)
            for number, amount in zip(numbers.tolist(), amounts.tolist(), strict=True):
                key = f"item-{number:07d}"
                value = f'{{"item": "{key}", "amount": {amount}, "shop": "{_SHOPS[number % 8]}"}}'
                yield number % self.partitions, key.encode(), value.encode(), 0

    def produce(self, cluster: Cluster, since: int = 0, upto: int | None = None) -> None:
        """Create the topic and send all of it, or its records [since, upto); raise `KafkaError` unless all up to there are there then."""
        upto = self.records if upto is None else upto
        send(cluster, self.topic, islice(self.lines(), since, upto), upto, self.partitions)


def send(cluster: Cluster, topic: str, lines: Iterable[Line], upto: int, partitions: int = 4) -> None:
    """Create a topic if need be, and send records; raise `KafkaError` unless it holds `upto` then."""
    Admin(cluster).create_topic(topic, partitions, {"retention.ms": "-1"})
    producer = Producer(
        cluster.client_config()
        | {
            "enable.idempotence": "true", "linger.ms": "20", "batch.size": str(1 << 20), "partitioner": "murmur2_random",
            "compression.type": "lz4", "queue.buffering.max.messages": "500000",
        }
    )  # fmt: skip
    for count, (partition, key, value, time) in enumerate(lines):
        while True:
            try:
                producer.produce(topic, value, key, partition=partition, timestamp=time)
                break
            except BufferError:
                producer.poll(0.05)
        if count % 10_000 == 0:
            producer.poll(0)
    producer.flush(60)
    admin = Admin(cluster)
    there = sum(admin.latest(admin.partitions([topic])).values())
    if there != upto:
        raise KafkaError(f"topic {topic!r} holds {there} records after {upto} were sent")


def draw(n: np.ndarray, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Hash record numbers (splitmix64) to key numbers below `keys` and amounts from 1 to 100."""
    z = (n + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z % np.uint64(keys), (z >> np.uint64(40)) % np.uint64(100) + np.uint64(1)
