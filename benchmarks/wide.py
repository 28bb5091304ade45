"""Measure batches of an app with many tables of many columns, and the files that each commit of it adds to the changelog.

Arguments: a JSON object with `bootstrap`, `topic`, `records`, `keys`, `batch`, `shapes` (pairs of tables and columns), `work`.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from benchmarks.count_and_sum import settings
from benchmarks.planning import WARM_UP
from benchmarks.race import BenchmarkFailed, say, wait_for_go
from benchmarks.topologies import wide
from benchmarks.workload import Workload
from watertable.plan.plan import Topology
from watertable.runtime import job
from watertable.runtime.events import BatchCommitted, Event
from watertable.session import shut_down, spark_session
from watertable.settings import Settings
from watertable.store.reader import read


def main() -> None:
    """Run the app in each shape; say a `wide` event for each."""
    given = json.loads(sys.argv[1])
    ours = settings(given["work"], given["bootstrap"], batch_records=given["batch"], fold_seconds=3600.0, trigger_seconds=0.0)
    load = Workload(given["topic"], given["records"], given["keys"])
    wait_for_go()
    spark = spark_session(ours, app="benchmark wide", log=Path(given["work"]) / "jvm.txt")
    try:
        for tables, columns in given["shapes"]:
            topology = wide(f"wide_{tables}", load.topic, tables, columns)
            batches: list[BatchCommitted] = []

            def listen(event: Event, batches: list[BatchCommitted] = batches) -> None:
                if isinstance(event, BatchCommitted):
                    batches.append(event)

            job.run(topology, ours, available_now=True, on_event=listen, spark=spark)
            _check(spark, ours, topology, load)
            warm = batches[min(WARM_UP, len(batches) // 2) :]
            say("wide", tables=tables, columns=columns, batches=len(warm), batch_seconds=statistics.median(b.seconds for b in warm),
                jobs=statistics.median(b.jobs for b in warm), rows=statistics.median(sum(b.rows.values()) for b in warm),
                **written(f"{ours.warehouse_uri}/{topology.app}/changelog", len(batches)))  # fmt: skip
    finally:
        shut_down(spark)


def written(changelog: str, commits: int) -> dict[str, Any]:
    """Give how many files so many commits have added to the changelog, and their size: of a commit, and of the median file."""
    sizes = [int(size) for size in DeltaTable(changelog).get_add_actions(flatten=True)["size_bytes"].to_pylist()]
    return {"files": len(sizes) / commits, "commit_bytes": sum(sizes) / commits, "file_bytes": statistics.median(sizes)}


def _check(spark: SparkSession, ours: Settings, topology: Topology, load: Workload) -> None:
    """Compare the first column of each table with what it must add up to; raise `BenchmarkFailed` where they differ."""
    wanted = load.answer
    for number, table in enumerate(topology.tables):
        found = read(spark, ours.warehouse_uri, topology, table.name)
        assert not isinstance(found, dict)
        row = found.selectExpr("count(*)", "sum(c0)").first()
        if row is None or tuple(row) != (wanted.keys, wanted.amount + number * wanted.records):
            raise BenchmarkFailed(f"{table.name} adds up to {row}; right is {wanted}")


if __name__ == "__main__":
    main()
