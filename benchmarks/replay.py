"""Take part in the race of replays as watertable, and measure what a rewind costs by how far back it goes, and what its plan said it would.

Before `go` the app has read and folded all of its topic, the last hundredth in commits of its own. Then it is rewound to earliest and
reads everything again: plan, control row, replay and fold are in the time. After that it is rewound by the last hundredth alone, and
three workloads are rewound for what their plans' ETA said: from the control row to the last commit of the replay.

Arguments: a JSON object with `bootstrap`, `topic`, `records`, `keys`, `warm_topic`, `eta_topic`, `eta_records`, `work`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.count_and_sum import answer, settings
from benchmarks.race import say, wait_for_go
from benchmarks.topologies import count_and_sum
from benchmarks.workload import SHARE, Workload
from watertable.acts import rewind
from watertable.acts.plans import RewindPlan
from watertable.acts.rewind import Target
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable.plan.plan import Topology
from watertable.runtime import job
from watertable.runtime.events import BatchCommitted, Event
from watertable.session import shut_down, spark_session
from watertable.settings import Settings
from watertable.store.reader import read
from watertable.store.writer import Store

HISTORY: Final = 100_000
"""Records of the commits that its history is of, as those of a stream at work; a replay's may have 1,000,000."""
PART: Final = 50_000
"""And of another workload's."""
SMALL: Final = 10_000
"""And of the third's."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Hold one rewind: its plan's estimate, and the seconds from the plan to the last commit and to the last fold, and of the replay."""

    records: int
    eta: rewind.Estimate | None
    visible: float
    folded: float
    replay: float


class Apps:
    """Run and rewind apps in one warehouse."""

    def __init__(self, spark: SparkSession, ours: Settings) -> None:
        self.spark, self.ours, self.kafka = spark, ours, Admin(Cluster.of(ours))

    def catch_up(self, topology: Topology, **more: Any) -> None:
        """Read and fold what is there."""
        job.run(topology, self.ours.model_copy(update=more), available_now=True, spark=self.spark)

    def apply(self, topology: Topology, target: Target) -> tuple[RewindPlan, float, float]:
        """Plan a rewind and apply it; give the plan, and when that began and ended."""
        store = Store(self.spark, self.ours.warehouse_uri, topology.app, topology.kept)
        began = time.monotonic()
        plan = rewind.plan(store, topology, self.kafka, target, batch_records=self.ours.batch_records)
        rewind.apply(store, plan, topology.fingerprint, self.kafka)
        return plan, began, time.monotonic()

    def rewind(self, topology: Topology, target: Target, on_visible: Callable[[], None] = lambda: None) -> Replayed:
        """Rewind an app, and let it read and fold again what comes after that."""
        seen, at = 0, 0.0

        def listen(event: Event) -> None:
            nonlocal seen, at
            if isinstance(event, BatchCommitted):
                seen, at = seen + event.records, time.monotonic()
                if seen == plan.records:
                    on_visible()

        plan, began, applied = self.apply(topology, target)
        job.run(topology, self.ours, available_now=True, on_event=listen, spark=self.spark)
        if seen != plan.records:
            raise SystemExit(f"the plan said that {plan.records} records are read again, and {seen} were")
        return Replayed(plan.records, plan.eta, at - began, time.monotonic() - began, at - applied)


def main() -> None:
    """Make the history, wait for `go`, and rewind."""
    given = json.loads(sys.argv[1])
    ours = settings(given["work"], given["bootstrap"])
    spark = spark_session(ours, app="benchmark replay", log=Path(given["work"]) / "jvm.txt")
    try:
        apps = Apps(spark, ours)
        warm = count_and_sum("bench_warm", given["warm_topic"])
        apps.catch_up(warm)
        apps.rewind(warm, Target.parse(shift_by=1))
        load = Workload(given["topic"], given["records"], given["keys"])
        app = count_and_sum("bench_replay", load.topic)
        last = max(1, load.records // SHARE)
        load.produce(Cluster.of(ours), upto=load.records - last)
        apps.catch_up(app, batch_records=HISTORY)
        load.produce(Cluster.of(ours), since=load.records - last)
        apps.catch_up(app)
        hundredth = apps.rewind(app, Target.parse(shift_by=last))  # before the other, which makes large commits of all
        wait_for_go()
        everything = apps.rewind(app, Target.parse("earliest"), on_visible=lambda: say("visible"))
        say("folded")
        table = read(spark, ours.warehouse_uri, app, "totals")
        assert not isinstance(table, dict)
        answer(table)
        say_rewound("earliest", everything)
        say_rewound("last", hundredth)
        say_eta("count and sum, to earliest", everything)
        etas(apps, given["eta_topic"])
    finally:
        shut_down(spark)


def etas(apps: Apps, topic: str) -> None:
    """Rewind two workloads more: three tables; and one table whose history is of small commits. A replay reads both in large ones."""
    three = count_and_sum("bench_three", topic, tables=3)
    apps.catch_up(three, batch_records=PART)
    say_eta("three tables, to earliest", apps.rewind(three, Target.parse("earliest")))
    small = count_and_sum("bench_small", topic)
    apps.catch_up(small, batch_records=SMALL)
    say_eta(f"a history of commits of {SMALL:,}, to earliest", apps.rewind(small, Target.parse("earliest")))


def say_rewound(what: str, done: Replayed) -> None:
    """Say what a rewind took."""
    say("rewound", what=what, records=done.records, visible_seconds=done.visible, folded_seconds=done.folded)


def say_eta(workload: str, done: Replayed) -> None:
    """Say what a plan said, and what came of it."""
    assert done.eta is not None
    eta = {"low": done.eta.low, "likely": done.eta.likely, "high": done.eta.high}
    say("eta", workload=workload, records=done.records, seconds=done.replay, **eta)


if __name__ == "__main__":
    main()
