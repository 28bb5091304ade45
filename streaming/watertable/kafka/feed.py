"""Feed topics from a sequence that is known beforehand: records with their place, in the order in which they are sent.

The law: a record's place is part of it. The n-th record sent to a partition of an empty topic gets offset n, so the topics' end offsets
say what has been sent, and a feed that was cut off, by Ctrl-C or by a kill, continues there: no duplicate, no gap. The producer is
idempotent and stops at the first record it can't deliver in order; no transaction, whose markers would take offsets of their own.
Before it continues, a feed compares the last record of each partition with the one that should be there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from watertable.errors import KafkaError
from watertable.kafka.admin import Admin, Partition, connected
from watertable.kafka.config import Cluster

_TICK: Final = 0.05
_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True)
class Record:
    """Hold a record of a feed, its place, and the time at which it is sent: event time, from which a speed makes wall clock."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    at: datetime


def begin(cluster: Cluster, topics: Mapping[str, int]) -> dict[Partition, int]:
    """Create the topics, with so many partitions and without retention, where they aren't there yet; return their end offsets.

    Raises `KafkaError` for a topic with another number of partitions, or one whose first records are gone.
    """
    admin = Admin(cluster)
    for name, partitions in topics.items():
        admin.create_topic(name, partitions, {"retention.ms": "-1"})
    places = admin.partitions(topics)
    for (name, number), offset in admin.earliest(places).items():
        if offset > 0:
            raise KafkaError(f"topic {name!r}, partition {number} begins at offset {offset}: what was fed first is gone. Delete the topic.")
    return admin.latest(places)


def check(cluster: Cluster, last: Iterable[Record]) -> None:
    """Compare records with those at their places; raise `KafkaError` at the first that differs: somebody else writes there."""
    client = cluster.client_config() | {"group.id": "watertable.feed", "enable.auto.commit": "false", "auto.offset.reset": "error"}
    consumer = connected(Consumer, client, cluster)
    try:
        for record in last:
            consumer.assign([TopicPartition(record.topic, record.partition, record.offset)])
            found = consumer.poll(_TIMEOUT)
            if found is None or found.error() or (found.offset(), found.key(), found.value()) != (record.offset, record.key, record.value):
                came = "nothing" if found is None else found.error() or f"offset {found.offset()} {found.key()!r} {found.value()!r}"
                raise KafkaError(
                    f"topic {record.topic!r}, partition {record.partition} holds something else than this feed: "
                    f"wanted offset {record.offset} {record.key!r} {record.value!r}, found {came}. Delete the topic, or feed other topics."
                )
    finally:
        consumer.close()


def feed(
    cluster: Cluster,
    records: Iterable[Record],
    *,
    speed: float | None = None,
    stop: threading.Event | None = None,
    progress: Callable[[int, datetime], None] = lambda sent, at: None,
) -> int:
    """Send records and return how many were delivered.

    `speed` is the number of seconds of the records' time that pass in a second; None sends as fast as the cluster takes them. `stop`
    ends the feed after the record at hand; what was sent is then delivered. `progress` is told the number of records handed over and
    the time they have come to, some twenty times a second. Raises `KafkaError` when a record can't be delivered in its place.
    """
    stop = stop or threading.Event()
    failed: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(f"topic {message.topic()!r}, partition {message.partition()}: {error.str()}")

    config = cluster.client_config() | {
        "enable.idempotence": "true",
        "enable.gapless.guarantee": "true",  # a record that fails stops the feed, rather than leave a hole
        "linger.ms": "20",
        "batch.size": str(1 << 20),
        "compression.type": "lz4",
        "queue.buffering.max.messages": "200000",
    }
    producer = connected(Producer, config, cluster)
    sent, told, began, at = 0, 0.0, time.monotonic(), None
    try:
        for record in records:
            if stop.is_set() or failed:
                break
            if at is None:
                first = at = record.at
            if speed is not None:
                due = began + (record.at - first).total_seconds() / speed
                while (wait := due - time.monotonic()) > 0 and not stop.is_set():
                    producer.poll(0)
                    progress(sent, at)
                    stop.wait(min(wait, _TICK))
                if stop.is_set():
                    break
            at = record.at
            _produce(producer, record, delivered)
            sent += 1
            if (now := time.monotonic()) - told > _TICK:
                producer.poll(0)
                progress(sent, at)
                told = now
    finally:
        left = producer.flush(_TIMEOUT)
    if failed or left:
        raise KafkaError(failed[0] if failed else f"{left} records weren't delivered to {cluster.bootstrap} in {_TIMEOUT:.0f} s")
    if at is not None:
        progress(sent, at)
    return sent


def _produce(producer: Any, record: Record, delivered: Callable[[Any, Any], None]) -> None:
    while True:
        try:
            producer.produce(record.topic, record.value, record.key, partition=record.partition, on_delivery=delivered)
        except BufferError:
            producer.poll(_TICK)
        else:
            return
