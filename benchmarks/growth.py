"""Measure batches of one size while a table grows, of which each changed row's old one is looked up, and its change streamed.

Each size is reached with new keys, in batches as large as the standard, and folded; then come batches of changes, one record to a key,
drawn from all over the table. The first ones warm up. The table is checked at every size: its keys, and the records in its counts.

Arguments: a JSON object with `bootstrap`, `keys` (a growing list), `batch`, `batches`, `work`.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.count_and_sum import settings
from benchmarks.planning import WARM_UP
from benchmarks.race import BenchmarkFailed, say, wait_for_go
from benchmarks.topologies import growing
from benchmarks.workload import Line, send
from watertable.kafka.config import Cluster
from watertable.runtime import job
from watertable.runtime.events import BatchCommitted, Event
from watertable.session import shut_down, spark_session
from watertable.store.reader import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC: Final = "growth"
_STRIDE: Final = 7_919
"""A prime: so many apart, the keys of a batch are from all over the table, and none comes twice before all have come."""


def new_keys(since: int, upto: int) -> Iterator[Line]:
    """Yield a record for each key from one to another."""
    return (_line(number) for number in range(since, upto))


def changes(count: int, keys: int) -> Iterator[Line]:
    """Yield so many records whose keys go round a table."""
    return (_line(n * _STRIDE % keys) for n in range(count))


def _line(number: int) -> Line:
    key = f"item-{number:08d}"
    return number % 4, key.encode(), f'{{"item": "{key}", "amount": 1, "shop": "Bern"}}'.encode(), 0


def hold(totals: DataFrame | dict[str, DataFrame], keys: int, sent: int) -> None:
    """Compare the table of counts with what was sent; raise `BenchmarkFailed` where they differ."""
    assert not isinstance(totals, dict)
    found = totals.selectExpr("count(*)", "sum(n)").first()
    if found is None or tuple(found) != (keys, sent):
        raise BenchmarkFailed(f"{keys} keys and {sent} records were sent, and the table has {found}")


def warm_seconds(batches: Sequence[BatchCommitted]) -> list[float]:
    """List what batches took, but for the first ones."""
    return [batch.seconds for batch in batches[min(WARM_UP, len(batches) // 2) :]]


def main() -> None:
    """Grow and measure, size by size; say a `grown` event for each."""
    given = json.loads(sys.argv[1])
    ours = settings(given["work"], given["bootstrap"], fold_seconds=3600.0, trigger_seconds=0.0)
    small = ours.model_copy(update={"batch_records": given["batch"]})
    cluster, topology = Cluster.of(ours), growing("growth", TOPIC)
    wait_for_go()
    spark = spark_session(ours, app="benchmark growth", log=Path(given["work"]) / "jvm.txt")
    sent = before = 0
    batches: list[BatchCommitted] = []

    def listen(event: Event) -> None:
        if isinstance(event, BatchCommitted):
            batches.append(event)

    try:
        for keys in given["keys"]:
            sent += keys - before
            send(cluster, TOPIC, new_keys(before, keys), sent)
            job.run(topology, ours, available_now=True, spark=spark)
            sent += given["batch"] * given["batches"]
            send(cluster, TOPIC, changes(given["batch"] * given["batches"], keys), sent)
            batches.clear()
            job.run(topology, small, available_now=True, on_event=listen, spark=spark)
            hold(read(spark, ours.warehouse_uri, topology, "totals"), keys, sent)
            took = warm_seconds(batches)
            say("grown", keys=keys, batches=len(took), batch_seconds=statistics.median(took), slowest_seconds=max(took),
                jobs=statistics.median(batch.jobs for batch in batches))  # fmt: skip
            before = keys
    finally:
        shut_down(spark)


if __name__ == "__main__":
    main()
