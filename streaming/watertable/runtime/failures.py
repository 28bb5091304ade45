"""Say what stopped a run, in our words: an error of Spark's or the JVM's as one of ours, a record that is in the way by its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from watertable.errors import JobError, RecordFailed, WatertableError
from watertable.runtime.events import Failed
from watertable.session import lost_jvm, said

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.plan.plan import Topology
    from watertable.store.commits import Partition

JVM_LOST: Final = "the JVM of this run is gone: killed, or out of memory (its log says). Nothing is lost: start the app again"


def told(error: Exception, spark: SparkSession | None) -> WatertableError:
    """Say an error in our words."""
    if isinstance(error, WatertableError):
        return error
    if spark is not None and lost_jvm(spark, error):
        return JobError(JVM_LOST)
    return JobError(said(error))


def failed(error: WatertableError, position: str | None) -> Failed:
    """Make the event that tells of an error."""
    record = error if isinstance(error, RecordFailed) else None
    return Failed(
        error=type(error).__name__, message=str(error), position=position, topic=record.topic if record else None,
        partition=record.partition if record else None, offset=record.offset if record else None,
        location=record.location if record else None,
    )  # fmt: skip


def blamed(topology: Topology, partition: Partition, offset: int, position: str, error: Exception) -> RecordFailed:
    """Name the record that stops an app which is at a position."""
    topic, number = partition
    location = next(t.location for t in topology.topics if t.name == topic)
    return RecordFailed(
        f"{location}: the record at offset {offset} of topic {topic!r}, partition {number} stops {topology.app!r}: "
        f"{said(error)}. All before it is committed, at {position}. "
        "Mend the definition so that it filters or quarantines such a record, and start again.",
        topic=topic, partition=number, offset=offset, location=location,
    )  # fmt: skip
