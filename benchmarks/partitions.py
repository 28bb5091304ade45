"""Measure a replay of as many records from topics of few partitions and of many.

Each topic is read and folded, then all of them are rewound to earliest in turn, again and again: the last round is measured, from the plan
to the last commit. Every table is checked.

Arguments: a JSON object with `bootstrap`, `topics` (partitions of each, by name), `records`, `keys`, `work`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from benchmarks.count_and_sum import settings
from benchmarks.race import BenchmarkFailed, say, wait_for_go
from benchmarks.replay import Apps
from benchmarks.topologies import count_and_sum
from benchmarks.workload import Answer, Workload
from watertable.acts.rewind import Target
from watertable.session import shut_down, spark_session
from watertable.store.reader import read

ROUNDS: Final = 4
"""The others warm up: the first topic would have the coldest JVM."""


def main() -> None:
    """Replay each topic; say a `partitions` event for each."""
    given = json.loads(sys.argv[1])
    ours = settings(given["work"], given["bootstrap"])
    wait_for_go()
    spark = spark_session(ours, app="benchmark partitions", log=Path(given["work"]) / "jvm.txt")
    try:
        apps = Apps(spark, ours)
        loads = [Workload(topic, given["records"], given["keys"], partitions) for topic, partitions in given["topics"].items()]
        topologies = [count_and_sum(f"bench_{load.topic}", load.topic) for load in loads]
        for topology in topologies:
            apps.catch_up(topology)
        for _ in range(ROUNDS):
            replays = [apps.rewind(topology, Target.parse("earliest")) for topology in topologies]
        for load, topology, done in zip(loads, topologies, replays, strict=True):
            table = read(spark, ours.warehouse_uri, topology, "totals")
            assert not isinstance(table, dict)
            found = table.selectExpr("count(*)", "sum(n)", "sum(total)").first()
            wanted = load.answer
            if found is None or Answer(*found) != wanted:
                raise BenchmarkFailed(f"{load.partitions} partitions: {wanted} was sent, and the table has {found}")
            seconds = {"visible_seconds": done.visible, "folded_seconds": done.folded}
            say("partitions", partitions=load.partitions, records=done.records, **seconds)
    finally:
        shut_down(spark)


if __name__ == "__main__":
    main()
