"""Measure what a batch costs beside its data: Spark jobs, stages and planning, with 1, 3 and 6 tables.

Batches are small, so that overhead shows. Jobs and stages come from Spark's event log, planning from the phases (analysis, optimization,
planning) that each query execution reports when it ends; an event belongs to the batch within whose time it lies. The first batches
warm up and aren't counted. What is neither planning nor in a job is the driver's: building frames, Kafka's offsets, Delta's log.

Arguments: a JSON object with `bootstrap`, `topic`, `records`, `batch`, `tables` (a list), `work`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from benchmarks.count_and_sum import settings
from benchmarks.race import say, wait_for_go
from benchmarks.topologies import count_and_sum
from watertable.runtime import job
from watertable.runtime.events import BatchCommitted, Event
from watertable.session import shut_down, spark_session

WARM_UP: Final = 5
_PHASES: Final = ("analysis", "optimization", "planning")


@dataclass(frozen=True, slots=True)
class Interval:
    """Hold when something began and ended, in milliseconds since 1970."""

    begin: float
    end: float

    def within(self, other: Self) -> bool:
        """Tell whether this began inside another interval."""
        return other.begin <= self.begin <= other.end


class Phases:
    """Collect the planning phases of every query execution, as Spark's listener of them."""

    def __init__(self) -> None:
        self.seen: list[Interval] = []

    def onSuccess(self, name: str, execution: Any, nanoseconds: int) -> None:
        """Take one execution's phases."""
        found = execution.tracker().phases()
        for phase in _PHASES:
            if found.contains(phase):
                summary = found.apply(phase)
                self.seen.append(Interval(summary.startTimeMs(), summary.endTimeMs()))

    def onFailure(self, name: str, execution: Any, error: Any) -> None:
        """Ignore what failed: the run fails too."""

    class Java:
        """Name the interface for Py4J."""

        implements: Final = ["org.apache.spark.sql.util.QueryExecutionListener"]


def main() -> None:
    """Run the app with each number of tables; say a `batches` event for each."""
    given = json.loads(sys.argv[1])
    work = Path(given["work"])
    (work / "events").mkdir(parents=True)
    log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{work}/events", "spark.eventLog.compress": "false",
           "spark.eventLog.rolling.enabled": "false"}  # fmt: skip
    ours = settings(given["work"], given["bootstrap"], spark=log, batch_records=given["batch"], fold_seconds=3600.0, trigger_seconds=0.0)
    wait_for_go()
    spark = spark_session(ours, app="benchmark planning", log=work / "jvm.txt")
    phases = Phases()
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    spark._jsparkSession.listenerManager().register(phases)
    batches = {tables: _run(spark, ours, given["topic"], tables) for tables in given["tables"]}
    time.sleep(1)  # the listener's queue empties
    shut_down(spark)
    jobs, stages, tasks = _event_log(next((work / "events").iterdir()))
    for tables, found in batches.items():
        rows = [_measured(batch, phases.seen, jobs, stages, tasks) for batch in found[WARM_UP:]]
        say("batches", tables=tables, batches=len(rows), **{name: statistics.median(r[name] for r in rows) for name in rows[0]})


def _run(spark: SparkSession, ours: Any, topic: str, tables: int) -> list[Interval]:
    batches: list[Interval] = []

    def listen(event: Event) -> None:
        if isinstance(event, BatchCommitted):
            now = time.time() * 1000
            batches.append(Interval(now - event.seconds * 1000, now))

    job.run(count_and_sum(f"planning_{tables}", topic, tables), ours, available_now=True, on_event=listen, spark=spark)
    return batches


def _measured(
    batch: Interval, phases: Sequence[Interval], jobs: Sequence[Interval], stages: Sequence[Interval], tasks: Sequence[float]
) -> Mapping[str, float]:
    ours = [j for j in jobs if j.within(batch)]
    planning = sum(p.end - p.begin for p in phases if p.within(batch))
    running = _covered(ours)
    whole = batch.end - batch.begin
    return {
        "jobs": len(ours), "stages": sum(s.within(batch) for s in stages), "tasks": sum(batch.begin <= t <= batch.end for t in tasks),
        "batch_ms": whole, "planning_ms": planning, "jobs_ms": running, "driver_ms": whole - planning - running,
    }  # fmt: skip


def _covered(intervals: Sequence[Interval]) -> float:
    """Add up the time in which at least one of the intervals ran."""
    total, until = 0.0, 0.0
    for each in sorted(intervals, key=lambda i: i.begin):
        total += max(0.0, each.end - max(each.begin, until))
        until = max(until, each.end)
    return total


def _event_log(file: Path) -> tuple[list[Interval], list[Interval], list[float]]:
    began: dict[int, float] = {}
    jobs: list[Interval] = []
    stages: list[Interval] = []
    tasks: list[float] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        match event["Event"]:
            case "SparkListenerJobStart":
                began[event["Job ID"]] = event["Submission Time"]
            case "SparkListenerJobEnd":
                jobs.append(Interval(began[event["Job ID"]], event["Completion Time"]))
            case "SparkListenerStageCompleted":
                info = event["Stage Info"]
                stages.append(Interval(info["Submission Time"], info["Completion Time"]))
            case "SparkListenerTaskEnd":
                tasks.append(event["Task Info"]["Launch Time"])
    return jobs, stages, tasks


if __name__ == "__main__":
    main()
