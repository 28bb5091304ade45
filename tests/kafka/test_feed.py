"""Feed a real broker: cut off anywhere, a feed continues without a duplicate or a gap."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from watertable.errors import KafkaError
from watertable.kafka.config import Cluster
from watertable.kafka.feed import Record, begin, check, feed

pytestmark = pytest.mark.kafka
PARTITIONS = 3


def sequence(topic: str, number: int, ends: Mapping[tuple[str, int], int] | None = None) -> Iterator[Record]:
    """Make one record a second, in turn to each partition."""
    for n in range(number):
        record = Record(
            topic, n % PARTITIONS, n // PARTITIONS, b"k%d" % n, b"v%d" % n, datetime(2011, 1, 1, tzinfo=UTC) + timedelta(seconds=n)
        )
        if record.offset >= (ends or {}).get((topic, record.partition), 0):
            yield record


def read(cluster: Cluster, topic: str) -> dict[tuple[int, int], bytes]:
    """Read all there is, by place."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "t", "enable.partition.eof": "true"})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: dict[tuple[int, int], bytes] = {}
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ended += 1
        else:
            found[message.partition(), message.offset()] = message.value()
    consumer.close()
    return found


def test_each_record_lands_in_its_place(broker: Cluster) -> None:
    assert set(begin(broker, {"fed": PARTITIONS}).values()) == {0}
    assert feed(broker, sequence("fed", 5000)) == 5000
    assert read(broker, "fed") == {(r.partition, r.offset): r.value for r in sequence("fed", 5000)}
    ends = begin(broker, {"fed": PARTITIONS})
    assert ends == {("fed", 0): 1667, ("fed", 1): 1667, ("fed", 2): 1666}
    assert feed(broker, sequence("fed", 5000, ends)) == 0


def test_a_feed_that_is_stopped_continues_where_the_topic_ends(broker: Cluster) -> None:
    stop, total = threading.Event(), 20_000

    def until(number: int) -> Iterator[Record]:
        for sent, record in enumerate(sequence("stopped", total)):
            if sent == number:  # by its place, not by the clock: all of them may be sent before that ticks
                stop.set()
            yield record

    told: list[int] = []
    begin(broker, {"stopped": PARTITIONS})
    first = feed(broker, until(1000), stop=stop, progress=lambda sent, at: told.append(sent))
    assert first == told[-1] == 1000
    second = feed(broker, sequence("stopped", total, begin(broker, {"stopped": PARTITIONS})))
    assert first + second == total
    assert read(broker, "stopped") == {(r.partition, r.offset): r.value for r in sequence("stopped", total)}


def test_speed_is_the_records_time_that_passes_in_a_second(broker: Cluster) -> None:
    begin(broker, {"paced": PARTITIONS})
    began = time.monotonic()
    assert feed(broker, sequence("paced", 101), speed=100) == 101
    assert 1.0 <= time.monotonic() - began < 3


def test_a_stop_doesnt_wait_for_the_next_record(broker: Cluster) -> None:
    begin(broker, {"slow": PARTITIONS})
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    assert feed(broker, sequence("slow", 3), speed=0.001, stop=stop) == 1
    assert time.monotonic() - began < 3


def test_a_topic_that_holds_something_else_is_refused(broker: Cluster) -> None:
    begin(broker, {"foreign": PARTITIONS})
    feed(broker, sequence("foreign", 9))
    check(broker, list(sequence("foreign", 9))[-3:])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("foreign", b"mine", b"k", partition=0)
    producer.flush(10)
    last = [r for r in sequence("foreign", 12) if r.offset == 3 and r.partition == 0]
    with pytest.raises(KafkaError, match=r"partition 0 holds something else.*offset 3 .*v9.*mine"):
        check(broker, last)


def test_a_topic_of_another_shape_is_refused(broker: Cluster) -> None:
    begin(broker, {"shape": 2})
    with pytest.raises(KafkaError, match="2 partitions; wanted 3"):
        begin(broker, {"shape": PARTITIONS})
