"""Take part in the race as watertable, or as the plain way on Spark: the same session, memory and size of batch.

The plain way is what Delta's and Spark's own pages show: `foreachBatch`, an aggregate of the batch, and a MERGE that adds it to the table.

Arguments: a JSON object with `way` ("watertable" or "merge"), `bootstrap`, `topic`, `records`, `warm_topic`, `work`, and where a batch is
not to be of the standard size, `batch_records`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.race import say, wait_for_go
from benchmarks.topologies import count_and_sum
from benchmarks.workload import VALUE
from watertable.runtime import job
from watertable.runtime.events import BatchCommitted, Event
from watertable.session import shut_down, spark_session
from watertable.settings import BATCH_RECORDS, Settings
from watertable.store.reader import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MEMORY: Final = "2g"


def settings(work: str, bootstrap: str, **more: Any) -> Settings:
    """Make the settings that every Spark contender runs with."""
    spark = {"spark.driver.memory": MEMORY} | more.pop("spark", {})
    return Settings.load(Path(work), home=work, warehouse=f"{work}/warehouse", kafka=bootstrap, spark=spark, **more)


def main() -> None:
    """Warm up, wait for `go`, run."""
    given = json.loads(sys.argv[1])
    ours = settings(given["work"], given["bootstrap"], batch_records=given.get("batch_records", BATCH_RECORDS))
    spark = spark_session(ours, app=f"benchmark {given['way']}", log=Path(given["work"]) / "jvm.txt")
    try:
        way = with_watertable if given["way"] == "watertable" else with_merge
        way(spark, ours, given["warm_topic"], 0)
        wait_for_go()
        way(spark, ours, given["topic"], given["records"])
    finally:
        shut_down(spark)


def with_watertable(spark: SparkSession, ours: Settings, topic: str, records: int) -> None:
    """Run the app up to the end of its topic; at the last commit all is visible, at the end all is folded."""
    topology = count_and_sum(f"bench_{topic}", topic)
    seen = 0

    def listen(event: Event) -> None:
        nonlocal seen
        if isinstance(event, BatchCommitted):
            seen += event.records
            if records:
                say("batch", records=event.records, seconds=event.seconds, jobs=event.jobs)
                if seen == records:
                    say("visible")

    job.run(topology, ours, available_now=True, on_event=listen, spark=spark)
    if records:
        say("folded")
        began = time.monotonic()
        table = read(spark, ours.warehouse_uri, topology, "totals")
        assert not isinstance(table, dict)
        answer(table, read_seconds=time.monotonic() - began)


def with_merge(spark: SparkSession, ours: Settings, topic: str, records: int) -> None:
    """Run the query up to the end of the topic; each batch is visible when its MERGE is."""
    target = f"{ours.warehouse_uri}/merge_{topic}"
    spark.sql(f"CREATE TABLE delta.`{target}` (item STRING, n BIGINT, total BIGINT) USING delta")

    def merge(batch: DataFrame, number: int) -> None:
        changes = batch.groupBy("item").agg({"amount": "sum", "*": "count"}).toDF("item", "total", "n")
        changes.createOrReplaceTempView("changes")
        batch.sparkSession.sql(
            f"MERGE INTO delta.`{target}` t USING changes c ON t.item = c.item "
            "WHEN MATCHED THEN UPDATE SET n = t.n + c.n, total = t.total + c.total "
            "WHEN NOT MATCHED THEN INSERT (item, n, total) VALUES (c.item, c.n, c.total)"
        )

    source = spark.readStream.format("kafka").options(**{
        "kafka.bootstrap.servers": ours.kafka, "subscribe": topic, "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(ours.batch_records),
    }).load()  # fmt: skip
    parsed = source.selectExpr("CAST(key AS STRING) AS item", f"from_json(CAST(value AS STRING), '{VALUE}').amount AS amount")
    checkpoint = f"{ours.warehouse_uri}/merge_{topic}_checkpoint"
    parsed.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    if records:
        say("visible")
        say("folded")
        answer(spark.read.format("delta").load(target))


def answer(table: DataFrame, **more: float) -> None:
    """Say what the output adds up to."""
    keys, count, amount = table.selectExpr("count(*)", "sum(n)", "sum(total)").first() or (0, 0, 0)
    say("answer", keys=int(keys), records=int(count), amount=int(amount), **more)


if __name__ == "__main__":
    main()
