"""Read ranges of topics into Python, record by record: for what looks at some of them without Spark.

The law is that of `source`: every committed record of [begin, end) of each partition, once and in offset order within it, or an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as ClientError

from watertable.errors import KafkaError
from watertable.kafka.admin import Offsets, connected
from watertable.kafka.config import Cluster
from watertable.records import Headers, Record

_SILENCE: Final = 30.0
_WAIT: Final = 0.1
"""Seconds: `consume` waits for as many messages as it is asked for, or for so long, however many it has by then."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def read_records(cluster: Cluster, begin: Offsets, end: Offsets) -> Iterator[Record]:
    """Yield the records of a range, partitions in turn as they come; raise `KafkaError` when the cluster falls silent or lacks some."""
    left = {partition: offset for partition, offset in end.items() if begin[partition] < offset}
    config = cluster.client_config() | {
        "group.id": "watertable.reading",  # required by the client; never joined, nothing is committed
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
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
                    when = _EPOCH + timedelta(milliseconds=message.timestamp()[1])
                    yield Record(*partition, offset, when, message.key(), message.value(), _headers(message))
                if problem is not None or offset >= left[partition] - 1:
                    del left[partition]
    except KafkaException as error:
        raise KafkaError(f"can't read from {cluster.bootstrap}: {error.args[0].str()}") from None
    finally:
        consumer.close()


def _headers(message: Message) -> Headers:
    found = cast("list[tuple[str, bytes | None]]", message.headers() or [])  # bytes and lists are what a consumer gives
    return tuple(found)
