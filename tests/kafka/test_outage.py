"""An app whose cluster goes away and comes back: it waits, says so, and goes on where it was, each record read and published once."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

import watertable as wt
from tests.kafka.test_emit import store_of
from tests.kafka.test_job import World
from tests.kafka.test_rewind import caught_up, living, wait
from watertable import failpoints
from watertable.acts import rewind
from watertable.acts.rewind import Target
from watertable.errors import Fenced, KafkaError
from watertable.kafka import broker as embedded
from watertable.kafka.admin import Admin
from watertable.kafka.broker import State, Status
from watertable.kafka.config import Cluster
from watertable.runtime import job, loop, workers
from watertable.runtime.events import Idle, Rewound, Stopped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


class Own:
    """Hold a broker of the test's own, to be taken away and given back."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, embedded.free_port()

    def start(self) -> Status:
        return embedded.start(self.folder, port=self.port)

    def stop(self) -> None:
        embedded.stop(self.folder, port=self.port)

    def kill(self) -> None:
        pid = embedded.status(self.folder, port=self.port).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait(lambda: embedded.status(self.folder, port=self.port).state not in (State.RUNNING, State.STARTING))


class Countdown:
    """Stand for a cluster that is away so many times."""

    times = 0

    def passes(self) -> None:
        self.times -= 1
        if self.times >= 0:
            raise KafkaError("the cluster is away")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    made = Own(tmp_path / "broker")
    made.start()
    yield made
    made.stop()


def test_who_leads_a_partition_is_asked_again_after_an_election(own: Own) -> None:
    admin = Admin(Cluster(own.start().bootstrap))
    admin.create_topic("t", 2)
    assert admin.latest([("t", 0), ("t", 1)]) == {("t", 0): 0, ("t", 1): 0}
    own.stop()
    own.start()  # which elects a leader, of a newer epoch than the client knows
    assert admin.latest([("t", 0), ("t", 1)]) == admin.earliest([("t", 0), ("t", 1)]) == {("t", 0): 0, ("t", 1): 0}


def test_a_batch_that_an_outage_breaks_off_is_begun_again_by_a_stream_and_ends_a_bounded_run(
    spark: SparkSession, broker: Cluster, tmp_path: Path
) -> None:
    world = World(spark, broker, tmp_path)

    def goes_away() -> None:
        raise KafkaError("the cluster is away")

    world.produce(("a", -1), ("b", -1))
    with failpoints.armed("job.batch.compiled", goes_away), pytest.raises(KafkaError, match="the cluster is away"):
        world.run()
    with failpoints.armed("job.batch.compiled", goes_away), living(world, world.topology()) as said:
        wait(lambda: len(world.published()) == 2)
    assert isinstance(said[-1], Stopped)
    assert said[-1].position == f"shop{world.suffix}@1.1"
    assert world.stock() == {"a": (-1, 1), "b": (-1, 1)}
    assert store_of(world).head().generation == 3, "the writer of the batch that was broken off writes no more"


def test_an_outage_at_a_start_or_while_a_rewind_is_followed_is_waited_out_and_costs_one_fence(
    spark: SparkSession, broker: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, away = World(spark, broker, tmp_path), Countdown()
    monkeypatch.setattr(loop, "HEARTBEAT", 0.2)
    stand = loop.Job._stand
    monkeypatch.setattr(loop.Job, "_stand", lambda running: (away.passes(), stand(running)))
    topology, store = world.topology(), store_of(world)
    world.produce(("a", -1), ("b", -1))
    away.times = 2
    with living(world, topology) as said:
        assert next(e.problem for e in said if isinstance(e, Idle) and e.problem) == "the cluster is away"
        wait(lambda: caught_up(world, store))
        assert store.head().generation == 1
        away.times = 2
        plan = rewind.plan(store, topology, world.admin, Target.parse(to="earliest"))
        rewind.apply(store, plan, topology.fingerprint, world.admin, follow=True)
        wait(lambda: any(isinstance(e, Rewound) for e in said))
        world.produce(("a", -1))
        wait(lambda: len(world.published()) == 3)
    assert not any(e.lag for e in said if isinstance(e, Idle) and e.problem == "the cluster is away"), "who can't ask doesn't know"
    assert store.head().generation == 3
    assert world.stock() == {"a": (-2, 2), "b": (-1, 1)}


def test_a_topic_that_was_never_there_ends_a_run_at_once(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    world = World(spark, broker, tmp_path)
    app = wt.App("lost")
    app.topic("nowhere", key="k STRING", value="v INT").table().materialized_as("t")
    with pytest.raises(KafkaError, match=r"no such topic on .*: nowhere"):
        job.run(app.topology(), world.settings, spark=spark)


@pytest.mark.parametrize("fenced", ["by its own new writer", "by a transaction that took too long"])
def test_a_courier_that_is_fenced_by_nobody_else_goes_on(
    spark: SparkSession, broker: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: str
) -> None:
    world, met, away = World(spark, broker, tmp_path), list[str](), threading.Event()
    monkeypatch.setattr(workers, "_AGAIN", 0.2)

    def goes_away() -> None:
        raise KafkaError("the cluster is away")

    def begins_again() -> None:
        """Wait, between the new writer's fence and its beginning, until the courier has met that fence."""
        away.clear()
        wait(lambda: met)

    def takes_too_long() -> None:
        Producer(broker.client_config() | {"transactional.id": f"watertable.shop{world.suffix}"}).init_transactions(30)

    publish = workers.Courier._publish

    def publishes(courier: workers.Courier, *args: Any) -> None:
        try:
            goes_away() if away.is_set() else publish(courier, *args)
        except Fenced as error:
            met.append(str(error))
            raise

    monkeypatch.setattr(workers.Courier, "_publish", publishes)
    world.produce(("a", -1), ("b", -1))
    with living(world, world.topology()):
        wait(lambda: len(world.published()) == 2)
        if fenced == "by its own new writer":
            away.set()
            world.produce(("a", -1))
            wait(lambda: store_of(world).head().position.seq == 2)
            with failpoints.armed("job.batch.compiled", goes_away), failpoints.armed("store.fence.after_commit", begins_again):
                world.produce(("a", 5))
                wait(lambda: met)
        else:
            with failpoints.armed("publish.after_produce", takes_too_long):
                world.produce(("a", -1))
                wait(lambda: met)
        wait(lambda: len(world.published()) == 3)
    assert store_of(world).head().generation == (2 if fenced == "by its own new writer" else 1)


@pytest.mark.slow
def test_a_running_app_waits_while_its_cluster_is_away_and_goes_on_when_it_is_back(spark: SparkSession, own: Own, tmp_path: Path) -> None:
    world = World(spark, Cluster(own.start().bootstrap), tmp_path / "home")
    topology = world.topology()
    store = store_of(world)
    world.produce(("a", -1), ("b", -1))
    with living(world, topology) as said:
        for number, go in enumerate((own.stop, own.kill), 2):
            wait(lambda: caught_up(world, store))
            world.produce(("a", -1), ("b", -1))
            go()
            before = len(said)
            wait(lambda n=before: any(isinstance(e, Idle) and e.problem for e in said[n:]))  # type: ignore[misc]
            own.start()
            world.produce(("c", -number))
        wait(lambda: caught_up(world, store))
        wait(lambda: not next(e for e in reversed(said) if isinstance(e, Idle)).problem)
    assert world.stock() == {"a": (-3, 3), "b": (-3, 3), "c": (-5, 2)}
    assert Counter(world.published()) == Counter({("a", -1), ("a", -2), ("a", -3), ("b", -1), ("b", -2), ("b", -3), ("c", -2), ("c", -5)})
