"""Read ranges of topics into Spark, exactly as asked: batch reads with explicit offsets, no checkpoint, no group that commits.

The law: `read_range(begin, end)` gives every committed record with begin <= offset < end of each partition, once, or fails. Records that
are gone fail it (`failOnDataLoss`), open and aborted transactions don't show (`read_committed`); offsets have gaps where
transactions or compaction left them. The caller owns the offsets: they live in its commits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from watertable.kafka.config import Cluster
from watertable.kafka.reading import read_records
from watertable.records import HEADERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from watertable.kafka.admin import Offsets

RECORDS: Final = f"topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, headers {HEADERS}"
"""The columns of raw records."""
GROUP: Final = "watertable.source"
"""Consumers that are kept between batches are found by this name; it never joins nor commits."""
ONE_TASK: Final = 20_000
"""Up to so many records, a batch is one task from its first step to its last: a second one costs more than it saves."""
SPLIT: Final = 50_000
"""From so many records on, partitions are split among the cores; below, a second fetch costs more than it saves."""
AT_ONCE: Final = 4
"""So many tasks a core read a large batch, whatever the number of partitions: each is sent the batch's whole plan, and one may be slow."""


Read = Callable[["SparkSession", Cluster, "Offsets", "Offsets"], "DataFrame"]
"""How a range is read: by one of these."""


def read_range(spark: SparkSession, cluster: Cluster, begin: Offsets, end: Offsets) -> DataFrame:
    """Return the records of a range, in the columns of `RECORDS`; partitions whose range is empty cost nothing.

    `begin` holds a first offset for each partition of `end`. Nothing is read before an action runs on the frame, and each action reads
    again: persist what is used twice.
    """
    ranges = {partition: (begin[partition], offset) for partition, offset in end.items() if begin[partition] < offset}
    if not ranges:
        return spark.createDataFrame([], RECORDS)
    count = sum(last - first for first, last in ranges.values())
    cores = spark.sparkContext.defaultParallelism
    reader = spark.read.format("kafka").options(**cluster.spark_options()).options(
        **{
            "kafka.group.id": GROUP,  # a fixed one: Spark makes a new one for each read otherwise, and with it new consumers
            "kafka.max.poll.records": "5000",  # 500 by default: ten times the calls
            "kafka.fetch.max.wait.ms": "10",  # 500: at a topic's end, what Spark asks after a fetch waits behind the one sent ahead
            "kafka.isolation.level": "read_committed",
            "assign": _json({topic: [p for t, p in ranges if t == topic] for topic, _ in ranges}),
            "startingOffsets": _offsets({partition: first for partition, (first, _) in ranges.items()}),
            "endingOffsets": _offsets({partition: last for partition, (_, last) in ranges.items()}),
            "failOnDataLoss": "true",
            "includeHeaders": "true",
            **({"minPartitions": str(cores)} if count >= SPLIT else {}),
        }
    )  # fmt: skip
    found = reader.load().select("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    return found.coalesce(1 if count <= ONE_TASK else cores if count < SPLIT else AT_ONCE * cores)


def read_alone(spark: SparkSession, cluster: Cluster, begin: Offsets, end: Offsets) -> DataFrame:
    """Return the records of a range as `read_range` does, of few, and read by Python: whatever their timestamps are.

    Spark's own source fails at one that doesn't fit into its microseconds, as of a producer that counts nanoseconds.
    """
    rows = [(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers or None) for r in read_records(cluster, begin, end)]
    return spark.createDataFrame(rows, RECORDS)


def _offsets(offsets: Offsets) -> str:
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return _json(by_topic)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
