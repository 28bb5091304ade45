"""Take part in the race of operators as watertable: work off the history, wait for `go`, and go on to the end of the topics.

Arguments: a JSON object with `operator`, `bootstrap`, `topics`, `history` and `records` (in all topics together), `work`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.count_and_sum import answer, settings
from benchmarks.race import say, wait_for_go
from benchmarks.topologies import operator
from watertable.runtime import job
from watertable.runtime.events import BatchCommitted, Event
from watertable.session import shut_down, spark_session
from watertable.store.reader import read


def main() -> None:
    """Run the app twice over, up to the end of its topics."""
    given = json.loads(sys.argv[1])
    ours = settings(given["work"], given["bootstrap"])
    topology = operator(given["operator"], f"bench_{given['operator']}", given["topics"])
    seen = 0

    def listen(event: Event) -> None:
        nonlocal seen
        if isinstance(event, BatchCommitted):
            seen += event.records
            say("batch", records=event.records, seconds=event.seconds, jobs=event.jobs)
            if seen == given["records"]:
                say("visible")

    spark = spark_session(ours, app=f"benchmark {given['operator']}", log=Path(given["work"]) / "jvm.txt")
    try:
        # in one batch, in which what is older comes first: a stream finds in its table what it finds there in Kafka Streams
        whole = ours.model_copy(update={"batch_records": max(ours.batch_records, given["history"])})
        job.run(topology, whole, available_now=True, spark=spark)
        wait_for_go()
        job.run(topology, ours, available_now=True, on_event=listen, spark=spark)
        say("folded")
        began = time.monotonic()
        result = read(spark, ours.warehouse_uri, topology, "result")
        assert not isinstance(result, dict)
        answer(result.selectExpr("n", "n * total AS total"), read_seconds=time.monotonic() - began)
    finally:
        shut_down(spark)


if __name__ == "__main__":
    main()
