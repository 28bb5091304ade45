"""Rewind a running app on a real broker: it goes on by itself, its tables are equal, and nothing is published twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kafka.test_job import World
from watertable import job, rewind
from watertable.errors import RewindRefused
from watertable.events import BatchCommitted, Event, Failed, Rewound, Stopped
from watertable.kafka.config import Cluster
from watertable.rewind import Target
from watertable.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def wait(until: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_running_app_is_rewound_goes_on_and_publishes_nothing_twice(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    world = World(spark, broker, tmp_path)
    topology, said, stop = world.topology(), list[Event](), threading.Event()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.tables)

    def act(target: Target, **options: bool) -> str:
        plan = rewind.plan(store, topology, world.admin, target, reason="a test")
        return str(rewind.apply(store, plan, topology.fingerprint, world.admin, **options))

    def caught_up() -> bool:
        ends = world.admin.latest(world.admin.partitions([world.moves]))
        last = store.head().last
        return last is not None and last.next == ends and world.admin.mirrored(topology.app, ends) == ends

    world.produce(("a", 5), ("b", -1), ("a", -7))
    live = threading.Thread(
        target=job.run, args=(topology, world.settings), kwargs={"on_event": said.append, "stop": stop, "spark": spark}, daemon=True
    )
    live.start()
    try:
        wait(lambda: any(isinstance(e, BatchCommitted) for e in said))
        world.produce(("b", -2), ("a", -9), ("c", 3))
        wait(caught_up)
        before, rows = store.head().position, world.stock()
        assert rows == {"a": (-11, 3), "b": (-3, 2), "c": (3, 1)}
        becomes = act(Target.parse(to="1"), follow=True)
        wait(lambda: any(isinstance(e, Rewound) for e in said))
        rewound = next(e for e in said if isinstance(e, Rewound))
        assert (rewound.position, rewound.by) == (becomes, "rewind to commit 1: a test")
        wait(caught_up)
        assert world.stock() == rows
        world.produce(("c", -4), ("b", 10))
        wait(caught_up)
        assert world.stock() == {"a": (-11, 3), "b": (7, 3), "c": (-1, 2)}
        assert store.reader.read("stock", before).count() == 3
        act(Target("undo"), follow=True)
        wait(lambda: sum(isinstance(e, Rewound) for e in said) == 2)
        wait(caught_up)
        assert world.stock() == {"a": (-11, 3), "b": (7, 3), "c": (-1, 2)}
        assert store.head().position.epoch == 3
    finally:
        stop.set()
        live.join(60)
    assert isinstance(said[-1], Stopped)
    assert not any(isinstance(e, Failed) for e in said)
    world.run()
    assert Counter(world.published()) == Counter([("b", -1), ("a", -2), ("b", -3), ("a", -11), ("c", -1)])


def test_records_that_retention_has_taken_are_refused_by_name(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    world = World(spark, broker, tmp_path)
    world.produce(("a", 5), ("a", 6), ("b", 1))
    world.run()
    world.produce(("a", 7))
    world.run()
    topology = world.topology()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.tables)
    world.admin.delete_records({(world.moves, 1): 1})
    earliest = Target.parse(to="earliest")
    plan = rewind.plan(store, topology, world.admin, earliest)
    assert [(r.name, r.lost, r.records) for r in plan.losses] == [(f"{world.moves}/1", 1, 2)]
    with pytest.raises(RewindRefused, match="--accept-loss"):
        rewind.apply(store, plan, topology.fingerprint, world.admin)
    plan = rewind.plan(store, topology, world.admin, earliest, accept_loss=[world.moves])
    rewind.apply(store, plan, topology.fingerprint, world.admin)
    world.run()
    assert world.stock() == {"a": (13, 2), "b": (1, 1)}
