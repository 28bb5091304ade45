"""Measure batches of one size, and reads, as an app's logs grow: a stream makes tens of thousands of commits a day.

So many commits would take a day to make. What there is more of with each is files in the folders of the logs, so those are put there, as
many as a commit leaves on a local disk, under names that aren't commits'. Then come batches of changes, one record to a key, with folds.

Arguments: a JSON object with `bootstrap`, `keys`, `commits` (a growing list), `batch`, `batches`, `work`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.count_and_sum import settings
from benchmarks.growth import changes, hold, new_keys, warm_seconds
from benchmarks.race import say, wait_for_go
from benchmarks.topologies import growing
from benchmarks.workload import send
from watertable.kafka.config import Cluster
from watertable.runtime import job
from watertable.runtime.events import BatchCommitted, Event, Folded
from watertable.session import shut_down, spark_session
from watertable.store.reader import read

TOPIC: Final = "age"
_A_COMMIT: Final = 4
"""Files that a commit leaves in a log on a local disk: what it did, what the table came to, and a checksum of each."""


def main() -> None:
    """Measure at one age after the other; say an `aged` event for each."""
    given = json.loads(sys.argv[1])
    ours = settings(given["work"], given["bootstrap"], trigger_seconds=0.0, batch_records=given["batch"])
    cluster, topology, keys = Cluster.of(ours), growing("age", TOPIC), given["keys"]
    wait_for_go()
    spark = spark_session(ours, app="benchmark age", log=Path(given["work"]) / "jvm.txt")
    batches: list[BatchCommitted] = []
    folds: list[Folded] = []

    def listen(event: Event) -> None:
        if isinstance(event, BatchCommitted):
            batches.append(event)
        if isinstance(event, Folded):
            folds.append(event)

    def counted() -> float:
        began = time.monotonic()
        hold(read(spark, ours.warehouse_uri, topology, "totals"), keys, sent)
        return time.monotonic() - began

    sent = keys
    try:
        send(cluster, TOPIC, new_keys(0, keys), sent)
        job.run(topology, ours, available_now=True, spark=spark)
        for commits in (given["commits"][0], *given["commits"]):  # the first time, all of it warms up
            age(Path(given["work"]) / "warehouse", commits)
            sent += given["batch"] * given["batches"]
            send(cluster, TOPIC, changes(given["batch"] * given["batches"], keys), sent)
            batches.clear()
            folds.clear()
            job.run(topology, ours, available_now=True, on_event=listen, spark=spark)
            reads = statistics.median(counted() for _ in range(5))
            spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
            first = counted()
            took = warm_seconds(batches)
            say(
                "aged", commits=commits, batches=len(took), batch_seconds=statistics.median(took), slowest_seconds=max(took),
                fold_seconds=statistics.median(f.fold_ms / 1000 for f in folds), read_seconds=reads, first_read_seconds=first,
            )  # fmt: skip
    finally:
        shut_down(spark)


def age(warehouse: Path, commits: int) -> None:
    """Put as many files into each log of a warehouse as so many commits leave, beside those that there are."""
    for log in warehouse.rglob("_delta_log"):
        for number in range(_A_COMMIT * commits):
            (log / f".{number:08d}.age").touch()


if __name__ == "__main__":
    main()
