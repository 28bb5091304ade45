"""Ranges of topics as Spark reads them: exactly what was asked for, or a failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from watertable.kafka import reading
from watertable.kafka.admin import Admin, Partition
from watertable.kafka.config import Cluster
from watertable.kafka.reading import read_records
from watertable.kafka.source import AT_ONCE, RECORDS, SPLIT, read_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
Topics = Callable[..., str]


def fill(cluster: Cluster, topic: str, count: int, partitions: int = 1, transaction: str = "") -> None:
    producer = Producer(cluster.client_config() | ({"transactional.id": transaction} if transaction else {}))
    if transaction:
        producer.init_transactions(30)
        producer.begin_transaction()
    for n in range(count):
        producer.produce(topic, b"%d" % n, b"k", partition=n % partitions, timestamp=1291161600000 + n, headers=[("h", b"%d" % n)])
        if n % 1000 == 0:
            producer.poll(0)
    if transaction:
        producer.commit_transaction(30)
    else:
        assert producer.flush(30) == 0


def places(spark: SparkSession, cluster: Cluster, begin: dict[Partition, int], end: dict[Partition, int]) -> list[tuple[str, int, int]]:
    rows = read_range(spark, cluster, begin, end).select("topic", "partition", "offset").collect()
    return sorted((row.topic, row.partition, row.offset) for row in rows)


def test_a_record_arrives_whole(spark: SparkSession, broker: Cluster, topic: Topics) -> None:
    from pyspark.sql.types import StructType

    name = topic()
    fill(broker, name, 2)
    frame = read_range(spark, broker, {(name, 0): 1}, {(name, 0): 2})
    assert [(f.name, f.dataType) for f in frame.schema] == [(f.name, f.dataType) for f in StructType.fromDDL(RECORDS)]
    (row,) = frame.collect()
    assert row.timestamp.astimezone(UTC) == datetime(2010, 12, 1, 0, 0, 0, 1000, UTC)
    assert (row.topic, row.partition, row.offset, bytes(row.key), bytes(row.value)) == (name, 0, 1, b"k", b"1")
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("h", b"1")]


def test_a_range_is_read_exactly_however_it_is_cut(spark: SparkSession, broker: Cluster, topic: Topics) -> None:
    a, b = topic("a", partitions=2), topic("b")
    fill(broker, a, 20, partitions=2)
    fill(broker, b, 7)
    cuts: list[dict[Partition, int]] = [
        {(a, 0): 0, (a, 1): 0, (b, 0): 0},
        {(a, 0): 3, (a, 1): 0, (b, 0): 7},
        {(a, 0): 3, (a, 1): 0, (b, 0): 7},
        {(a, 0): 10, (a, 1): 10, (b, 0): 7},
    ]
    read = [place for begin, end in pairwise(cuts) for place in places(spark, broker, begin, end)]
    assert sorted(read) == [(a, p, o) for p in (0, 1) for o in range(10)] + [(b, 0, o) for o in range(7)]


def test_an_empty_range_has_the_same_columns(spark: SparkSession, broker: Cluster, topic: Topics) -> None:
    name = topic()
    fill(broker, name, 1)
    whole, empty = (read_range(spark, broker, {(name, 0): 0}, {(name, 0): end}) for end in (1, 0))
    assert empty.dtypes == whole.dtypes
    assert empty.count() == 0


def test_a_large_range_is_split_and_still_read_once(spark: SparkSession, broker: Cluster, topic: Topics) -> None:
    name = topic()
    fill(broker, name, SPLIT)
    frame = read_range(spark, broker, {(name, 0): 0}, {(name, 0): SPLIT})
    assert frame.rdd.getNumPartitions() == spark.sparkContext.defaultParallelism
    assert frame.selectExpr("count(distinct offset) AS n", "count(*) AS c").first() == (SPLIT, SPLIT)


def test_a_large_range_of_many_partitions_is_read_once_by_a_few_tasks(spark: SparkSession, broker: Cluster, topic: Topics) -> None:
    most = AT_ONCE * spark.sparkContext.defaultParallelism
    name = topic(partitions=2 * most)
    fill(broker, name, SPLIT, partitions=2 * most)
    end = Admin(broker).latest([(name, number) for number in range(2 * most)])
    frame = read_range(spark, broker, dict.fromkeys(end, 0), end)
    assert frame.rdd.getNumPartitions() == most
    found = frame.groupBy("partition").agg({"offset": "count"}).collect()
    assert {(name, row[0]): row[1] for row in found} == end
    assert frame.selectExpr("count(distinct partition, offset)").first() == (SPLIT,)


def test_aborted_transactions_and_markers_leave_gaps_not_records(spark: SparkSession, broker: Cluster, topic: Topics) -> None:
    name = topic()
    fill(broker, name, 3, transaction=f"one_{name}")
    aborting = Producer(broker.client_config() | {"transactional.id": f"two_{name}"})
    aborting.init_transactions(30)
    aborting.begin_transaction()
    for _ in range(5):
        aborting.produce(name, b"never")
    aborting.flush(30)
    aborting.abort_transaction(30)
    fill(broker, name, 2, transaction=f"three_{name}")
    end = 3 + 1 + 5 + 1 + 2
    deadline = time.monotonic() + 10
    while Admin(broker).latest([(name, 0)])[name, 0] < end and time.monotonic() < deadline:  # the last marker comes after the answer
        time.sleep(0.05)
    assert [offset for _, _, offset in places(spark, broker, {(name, 0): 0}, {(name, 0): end})] == [0, 1, 2, 10, 11]
    assert places(spark, broker, {(name, 0): 3}, {(name, 0): 9}) == []  # nothing but gaps


def test_records_that_are_gone_fail_the_read(spark: SparkSession, broker: Cluster, topic: Topics) -> None:
    name = topic()
    fill(broker, name, 10)
    Admin(broker).delete_records({(name, 0): 5})
    with pytest.raises(Exception, match=r"(?i)offset|data ?loss"):
        places(spark, broker, {(name, 0): 0}, {(name, 0): 10})
    assert len(places(spark, broker, {(name, 0): 5}, {(name, 0): 10})) == 5


def test_python_reads_a_range_as_soon_as_its_last_record_is_there(broker: Cluster, topic: Topics) -> None:
    name = topic(partitions=2)
    fill(broker, name, 3)
    began = time.monotonic()
    found = list(read_records(broker, {(name, 0): 0, (name, 1): 0}, {(name, 0): 2, (name, 1): 0}))
    assert time.monotonic() - began < 10, "it waited for more records, of which there are none"
    assert [(r.partition, r.offset, r.key, r.value, r.headers) for r in found] == [
        (0, n, b"k", b"%d" % n, (("h", b"%d" % n),)) for n in range(2)
    ]


def test_python_reads_partitions_in_turn_by_the_time_that_each_has_come_to(
    broker: Cluster, topic: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one begins when the first is half through, and ends with what no reader is given: a mark of its transaction."""
    monkeypatch.setattr(reading, "_AHEAD", 100)
    name, count = topic(partitions=2), 20_000
    producer = Producer(broker.client_config() | {"transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in (1, 0):
        for n in range(count):
            when = 1291161600000 + n + partition * count // 2 - (n % 7 == 0) * 5000
            producer.produce(name, b"%d" % n, b"k", partition=partition, timestamp=when)
            if n % 1000 == 0:
                producer.poll(0)
    producer.commit_transaction(30)
    there = [(name, 0), (name, 1)]
    while set(Admin(broker).latest(there).values()) != {count + 1}:  # the marks come behind the commit
        time.sleep(0.1)
    found = list(read_records(broker, dict.fromkeys(there, 0), dict.fromkeys(there, count + 1)))
    for partition in (0, 1):
        assert [r.offset for r in found if r.partition == partition] == list(range(count))
    time_of = reading.come_to()
    times = [time_of(record) for record in found]
    assert times == sorted(times)
    assert {r.partition for r in found[: count // 5]} == {0}
    assert {r.partition for r in found[-count // 3 :]} == {1}
