"""Read ranges of topics into Python, record by record: for what looks at some of them without Spark.

The law is that of `source`: every committed record of [begin, end) of each partition, once and in offset order within it, or an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from heapq import heapify, heappop, heapreplace
from typing import Final, cast

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as ClientError

from watertable.errors import KafkaError
from watertable.kafka.admin import Offsets, Partition, connected
from watertable.kafka.config import Cluster
from watertable.records import Headers, Record, stamped

_SILENCE: Final = 30.0
_WAIT: Final = 0.1
"""Seconds: `consume` waits for as many messages as it is asked for, or for so long, however many it has by then."""
_AHEAD: Final = 100_000
"""Records that are held of partitions that are ahead of the others, of all of them, and of each a hundredth at least."""


def come_to() -> Callable[[Record], datetime]:
    """Give what tells of records, of each partition in order, the time that their partition has come to with them."""
    times: dict[Partition, datetime] = {}

    def time(record: Record) -> datetime:
        partition = record.topic, record.partition
        times[partition] = now = max(times.get(partition, record.timestamp), record.timestamp)
        return now

    return time


def read_records(cluster: Cluster, begin: Offsets, end: Offsets) -> Iterator[Record]:
    """Yield the records of a range, partitions in turn, by the time each has come to: that of Kafka's own timestamps.

    A partition that is ahead of the others waits for them. Raises `KafkaError` when the cluster falls silent or lacks some.
    """
    left = {partition: offset for partition, offset in end.items() if begin[partition] < offset}
    if not left:
        return
    waiting: dict[Partition, deque[tuple[datetime, Record]]] = {partition: deque() for partition in left}
    time, ahead, paused = come_to(), max(_AHEAD // 100, _AHEAD // len(left)), set[Partition]()
    config = cluster.client_config() | {
        "group.id": "watertable.reading",  # required by the client; never joined, nothing is committed
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "queued.min.messages": ahead,  # whatever is fetched of a partition that is paused then is fetched again
    }
    consumer = connected(Consumer, config, cluster)
    try:
        consumer.assign([TopicPartition(*partition, begin[partition]) for partition in left])
        silent = 0.0
        while left:
            messages = consumer.consume(5000, _WAIT)
            silent = 0.0 if messages else silent + _WAIT
            if silent >= _SILENCE:
                raise KafkaError(f"{cluster.bootstrap} sends nothing more of {', '.join(f'{t}/{n}' for t, n in sorted(left))}")
            for message in messages:
                partition = (message.topic() or "", message.partition() or 0)
                offset, problem = message.offset() or 0, message.error()
                if problem is not None and problem.code() != ClientError._PARTITION_EOF:
                    raise KafkaError(f"can't read {partition[0]}/{partition[1]} on {cluster.bootstrap}: {problem.str()}")
                if partition not in left:
                    continue
                if problem is None and offset < left[partition]:
                    when = stamped(message.timestamp()[1])
                    record = Record(*partition, offset, when, message.key(), message.value(), _headers(message))
                    waiting[partition].append((time(record), record))
                if problem is not None or offset >= left[partition] - 1:
                    del left[partition]
            yield from _due(waiting, left)
            held = {partition for partition in left if len(waiting[partition]) >= ahead}
            consumer.pause([TopicPartition(*partition) for partition in held - paused])
            consumer.resume([TopicPartition(*partition) for partition in paused - held])
            paused = held
    except KafkaException as error:
        raise KafkaError(f"can't read from {cluster.bootstrap}: {error.args[0].str()}") from None
    finally:
        consumer.close()


def _due(waiting: Mapping[Partition, deque[tuple[datetime, Record]]], left: Collection[Partition]) -> Iterator[Record]:
    """Give what waits until a partition of which there is more to come has nothing left that waits."""
    if not all(waiting[partition] for partition in left):
        return
    heads = [(queue[0][0], partition) for partition, queue in waiting.items() if queue]
    heapify(heads)
    while heads:
        partition = heads[0][1]
        queue = waiting[partition]
        yield queue.popleft()[1]
        if queue:
            heapreplace(heads, (queue[0][0], partition))
        elif partition in left:
            return
        else:
            heappop(heads)


def _headers(message: Message) -> Headers:
    found = cast("list[tuple[str, bytes | None]]", message.headers() or [])  # bytes and lists are what a consumer gives
    return tuple(found)
