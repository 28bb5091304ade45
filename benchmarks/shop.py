"""Rewind the retail app, six tables and two output topics, of 2,000,000 records: by the last hundredth of them, and to earliest.

The history is of twenty commits, and of those that the app's stream makes of the last hundredth as it comes, at a steady rate. The stream
runs all along, as one does: it finds itself rewound, and goes on from the fork. All is folded before each clock starts, which runs from
the plan to the last commit, and to the end of the folds. After each rewind the tables are held against what is known of the records: the
number of sales, and what they leave in stock.

Arguments: a JSON object with `bootstrap`, `app` (folder), `commit` and `last` (records of a commit, and of the end), `sales`, `stock`,
`work`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Self

from pyspark.sql import functions as F

from benchmarks.count_and_sum import settings
from benchmarks.race import BenchmarkFailed, wait_for_go
from benchmarks.replay import Apps, Replayed, say_eta, say_rewound
from watertable.acts.rewind import Target
from watertable.plan.plan import Topology
from watertable.project import load_apps
from watertable.runtime import job
from watertable.runtime.events import BatchCommitted, Event, Folded, Idle
from watertable.session import shut_down, spark_session
from watertable.store.reader import read


class Stream:
    """Run an app as a stream, in a thread, and follow what it does."""

    def __init__(self, apps: Apps, topology: Topology) -> None:
        self.apps, self.topology = apps, topology
        self.records, self.at, self.folded = 0, 0.0, False
        self._changed, self._stop = threading.Condition(), threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def until_folded(self, records: int) -> float:
        """Wait until so many records are committed, and folded; give when they were committed."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or (self.records >= records and self.folded))
        if self._error is not None or self.records != records:
            raise BenchmarkFailed(f"the stream was to read {records} records, and read {self.records}: {self._error}")
        return self.at

    def rewind(self, target: Target) -> Replayed:
        """Rewind the app beside its stream, and wait until that has read and folded again what comes after the fork."""
        self.records, self.folded = 0, False
        plan, began, applied = self.apps.apply(self.topology, target)
        at = self.until_folded(plan.records)
        return Replayed(plan.records, plan.eta, at - began, time.monotonic() - began, at - applied)

    def _run(self) -> None:
        try:
            job.run(self.topology, self.apps.ours, on_event=self._listen, stop=self._stop, spark=self.apps.spark)
        except BaseException as error:
            self._error = error
        with self._changed:
            self._changed.notify_all()

    def _listen(self, event: Event) -> None:
        with self._changed:
            if isinstance(event, BatchCommitted):
                self.records, self.at, self.folded = self.records + event.records, time.monotonic(), False
            elif isinstance(event, Folded | Idle):
                self.folded = event.unfolded_s == 0.0
            self._changed.notify_all()


def main() -> None:
    """Read what is there, follow the stream to the end of the history, and rewind."""
    given = json.loads(sys.argv[1])
    folder = Path(given["app"])
    ours = settings(given["work"], given["bootstrap"])
    project = load_apps(ours.model_copy(update={"project": folder.parent.parent, "assets": (folder.parent.name,)}))
    topology = project.apps[folder.name].topology
    spark = spark_session(ours, app="benchmark shop", log=Path(given["work"]) / "jvm.txt")
    try:
        apps = Apps(spark, ours)
        apps.catch_up(topology, batch_records=given["commit"])
        with Stream(apps, topology) as stream:
            wait_for_go()
            stream.until_folded(given["last"])
            for what, target in (("last", Target.parse(shift_by=given["last"])), ("earliest", Target.parse("earliest"))):
                done = stream.rewind(target)
                hold(apps, topology, given["sales"], given["stock"])
                say_rewound(what, done)
            say_eta("the retail app, to earliest", done)
    finally:
        shut_down(spark)


def hold(apps: Apps, topology: Topology, sales: int, stock: int) -> None:
    """Compare what the tables add up to with what was sent; raise `BenchmarkFailed` where they differ."""
    tables = read(apps.spark, apps.ours.warehouse_uri, topology, ("invoices", "inventory"))
    assert isinstance(tables, dict)
    lines, on_hand = (tables[name].agg(F.sum(column)).first() for name, column in (("invoices", "lines"), ("inventory", "on_hand")))
    got = (lines and lines[0], on_hand and on_hand[0])
    if got != (sales, stock):
        raise BenchmarkFailed(f"after a rewind the tables add up to {got}, right are {(sales, stock)}")


if __name__ == "__main__":
    main()
