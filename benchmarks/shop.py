"""Rewind the retail app, six tables and two output topics, of 2,000,000 records: to earliest, and by the last hundredth of them.

The history is of twenty commits, the last hundredth in commits of its own, and all of it is folded before the clock starts.
After each rewind the tables are held against what is known of the records: the number of sales, and what they leave in stock.

Arguments: a JSON object with `bootstrap`, `app` (folder), `commit` and `last` (records of a commit, and of the end), `sales`, `stock`,
`work`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import functions as F

from benchmarks.count_and_sum import settings
from benchmarks.race import BenchmarkFailed, wait_for_go
from benchmarks.replay import Apps, say_eta, say_rewound
from watertable.acts.rewind import Target
from watertable.plan.plan import Topology
from watertable.project import load_apps
from watertable.session import shut_down, spark_session
from watertable.store.reader import read


def main() -> None:
    """Read what is there, wait for the end of the history, and rewind."""
    given = json.loads(sys.argv[1])
    folder = Path(given["app"])
    ours = settings(given["work"], given["bootstrap"])
    project = load_apps(ours.model_copy(update={"project": folder.parent.parent, "assets": (folder.parent.name,)}))
    topology = project.apps[folder.name].topology
    spark = spark_session(ours, app="benchmark shop", log=Path(given["work"]) / "jvm.txt")
    try:
        apps = Apps(spark, ours)
        apps.catch_up(topology, batch_records=given["commit"])
        wait_for_go()
        apps.catch_up(topology)
        for what, target in (("last", Target.parse(shift_by=given["last"])), ("earliest", Target.parse("earliest"))):
            done = apps.rewind(topology, target)
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
