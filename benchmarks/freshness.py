"""Measure how soon the retail app shows what was produced, at a steady rate, its folds and a reader running.

Three watch at once: each batch's commit; a reader that does `wt.read` and sums one table whenever there is a new commit; a plain Delta
reader (delta-rs, no JVM) that asks what the table on disk has folded. Each sees offsets, and the harness knows when each was produced, so
each record has its own freshness: produced → committed, and produced → in the result of a read that has returned. The reader's sum is
checked against the offsets of its own position at every read.

Arguments: a JSON object with `bootstrap`, `app` (folder), `seconds`, `work`, `fold_seconds`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.count_and_sum import settings
from benchmarks.race import BenchmarkFailed, say, wait_for_go
from watertable.plan.plan import Topology
from watertable.project import load_apps
from watertable.runtime import job
from watertable.runtime.events import BatchCommitted, Event, Folded, Started
from watertable.session import shut_down, spark_session
from watertable.settings import Settings
from watertable.store.bases import FOLD_LINE, split_number
from watertable.store.reader import Reader

TABLE: Final = "invoices"
"""Its `lines` add up to the number of sales read, whatever they hold: a read that is wrong shows."""
LOOK: Final = 0.05
"""Seconds between two looks for a new commit: what a reader waits for that isn't watertable's is half of it."""
LOOK_ON_DISK: Final = 1.0
"""Seconds between two looks at the table on disk: each opens it anew, at the cost of the batches, and its lag is of tens of seconds."""
WARM: Final = 5_000
"""Records of a batch before the clock runs: so there are many, and the JVM has compiled what it will run."""


class Watch:
    """Follow a running app with a fresh reader and with a plain Delta reader, each in a thread."""

    def __init__(self, spark: SparkSession, ours: Settings, topology: Topology) -> None:
        self.spark, self.ours, self.topology = spark, ours, topology
        self.reads: list[dict[str, Any]] = []
        self.plain: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self._seen = -1
        self._closed = threading.Event()
        looks = (self._read, LOOK), (self._read_plain, LOOK_ON_DISK)
        self._threads = [threading.Thread(target=self._guard, args=look, daemon=True) for look in looks]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End; raise what went wrong on the way."""
        self._closed.set()
        for thread in self._threads:
            thread.join(30)
        if self.error is not None:
            raise self.error

    def _guard(self, act: Callable[[], None], pause: float) -> None:
        try:
            while not self._closed.wait(pause):
                act()
        except BaseException as error:
            self.error = error

    def _read(self) -> None:
        began = time.time()
        reader = Reader(self.spark, self.ours.warehouse_uri, self.topology.app, self.topology.tables)
        newest = reader.changelog.log.latest()
        if newest is None or newest.version == self._seen:
            return
        self._seen = newest.version
        view = reader.view([TABLE])
        if view.head.last is None:
            return
        row = view.rows(self.topology.table(TABLE)).agg(F.sum("lines")).first()
        ended = time.time()
        offsets = {f"{topic}/{number}": offset for (topic, number), offset in view.head.last.next.items()}
        sales = sum(offset for name, offset in offsets.items() if name.startswith("sales/"))
        if row is None or (row[0] or 0) != sales:
            raise BenchmarkFailed(f"a read at {view.position} has {row and row[0]} lines, its position says {sales}")
        self.reads.append({"began": began, "ended": ended, "offsets": offsets})

    def _read_plain(self) -> None:
        try:
            table = DeltaTable(f"{self.ours.warehouse_uri}/{self.topology.app}/{TABLE}")
        except TableNotFoundError:
            return
        number = table.transaction_version(FOLD_LINE)
        self.plain.append({"at": time.time(), "seq": split_number(number)[1] if number is not None else 0})


def main() -> None:
    """Run the app for some seconds under watch; say what was seen."""
    given = json.loads(sys.argv[1])
    ours = settings(given["work"], given["bootstrap"], fold_seconds=given["fold_seconds"])
    project = load_apps(ours.model_copy(update={"project": Path(given["app"]).parent.parent, "assets": (Path(given["app"]).parent.name,)}))
    topology = project.apps[Path(given["app"]).name].topology
    spark = spark_session(ours, app="benchmark freshness", log=Path(given["work"]) / "jvm.txt")
    stop = threading.Event()
    commits: list[dict[str, Any]] = []
    folds: list[dict[str, Any]] = []

    def listen(event: Event) -> None:
        match event:
            case Started():
                watch.start()
            case BatchCommitted():
                commits.append({"at": time.time(), "seq": int(event.position.rpartition(".")[2]), "seconds": event.seconds,
                                "records": event.records, "jobs": event.jobs})  # fmt: skip
            case Folded():
                folds.append({"ms": event.fold_ms})

    watch = Watch(spark.newSession(), ours, topology)
    job.run(topology, ours.model_copy(update={"batch_records": WARM}), available_now=True, spark=spark)
    wait_for_go()
    threading.Timer(given["seconds"], stop.set).start()
    try:
        job.run(topology, ours, on_event=listen, stop=stop, spark=spark)
        watch.close()
        changelog = Reader(spark, ours.warehouse_uri, topology.app, topology.tables).changelog
        rows = changelog.rows(changelog.snapshot(), "c.kind = 'batch'")
        ends = {row.seq: {f"{topic}/{number}": offset for (topic, number), offset in row.next.items()} for row in rows}
        for commit in commits:
            commit["offsets"] = ends[commit["seq"]]
        say("seen", commits=commits, reads=watch.reads, plain=watch.plain, folds=folds)
    finally:
        shut_down(spark)


if __name__ == "__main__":
    main()
