"""Measure `wt.read` against the number of rows that aren't folded yet, over a table of many keys.

The store is filled through the compiler and the writer, from records made by Spark, so no broker is needed. Each figure is a fresh
read, planned and run: a sum over the whole table, and the look-up of one key. The sum is checked at every read.

Arguments: a JSON object with `keys`, `tails` (a growing list of unfolded rows), `repeats`, `work`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.count_and_sum import settings
from benchmarks.race import BenchmarkFailed, say, wait_for_go
from benchmarks.topologies import count_and_sum
from watertable.compiler import Compiler
from watertable.plan.plan import Topology
from watertable.records import HEADERS
from watertable.session import shut_down, spark_session
from watertable.store.commits import CommitInfo
from watertable.store.reader import read
from watertable.store.writer import Store

COMMIT: Final = 400_000


class Filled:
    """Fill one store, commit by commit, with records 0, 1, 2 … whose keys go round."""

    def __init__(self, spark: SparkSession, warehouse: str, topology: Topology, keys: int) -> None:
        self.spark, self.warehouse, self.topology, self.keys = spark, warehouse, topology, keys
        self.store = Store.open(spark, warehouse, topology.app, topology.tables)
        self._compiler = Compiler(topology)
        self._writer = self.store.start_writer(topology)
        self.records = 0

    def add(self, count: int) -> None:
        """Commit so many more records, in commits of the size of a batch."""
        topic = self.topology.topics[0].name
        while count > 0:
            size = min(count, COMMIT)
            item = f"format_string('item-%07d', (id * 7919) % {self.keys})"
            value = f"to_json(named_struct('item', {item}, 'amount', 1L, 'shop', 'Bern'))"
            records = self.spark.range(self.records, self.records + size).selectExpr(
                f"'{topic}' AS topic", "0 AS partition", "id AS offset", "timestamp_seconds(1700000000) AS timestamp",
                f"CAST({item} AS BINARY) AS key", f"CAST({value} AS BINARY) AS value", f"CAST(NULL AS {HEADERS}) AS headers",
            )  # fmt: skip
            place = (topic, 0)
            batch = self._compiler.batch(records, self._writer.number(), {place: None}, self._writer.lookup())
            info = CommitInfo(begin={place: self.records}, next={place: self.records + size})
            self._writer.commit(batch.tables, info, records=size)
            batch.close()
            self.records += size
            count -= size

    def table(self) -> DataFrame:
        """Read the table afresh."""
        found = read(self.spark, self.warehouse, self.topology, "totals")
        assert isinstance(found, DataFrame)
        return found


def main() -> None:
    """Fill, fold, and read with ever longer tails; say a `read` event for each."""
    given = json.loads(sys.argv[1])
    ours = settings(given["work"], "127.0.0.1:1")
    wait_for_go()
    spark = spark_session(ours, app="benchmark reading", log=Path(given["work"]) / "jvm.txt")
    try:
        filled = Filled(spark, ours.warehouse_uri, count_and_sum("reading", "records"), given["keys"])
        filled.add(given["keys"])
        filled.store.fold("totals")
        for tail in (0, *given["tails"]):
            filled.add(given["keys"] + tail - filled.records)
            whole = _timed(given["repeats"], lambda: _sum(filled))
            one = _timed(given["repeats"], lambda: filled.table().where("item = 'item-0000017'").collect())
            say("read", unfolded=tail, keys=given["keys"], sum_seconds=whole, key_seconds=one)
    finally:
        shut_down(spark)


def _sum(filled: Filled) -> None:
    row = filled.table().selectExpr("sum(n)", "sum(total)").first()
    if row is None or (int(row[0]), int(row[1])) != (filled.records, filled.records):
        raise BenchmarkFailed(f"a read after {filled.records} records adds up to {row}")


def _timed(repeats: int, act: Callable[[], Any]) -> float:
    """Give the median seconds of an act, once it has been done once."""
    act()
    took = []
    for _ in range(repeats):
        began = time.monotonic()
        act()
        took.append(time.monotonic() - began)
    return statistics.median(took)


if __name__ == "__main__":
    main()
