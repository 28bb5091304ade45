"""Publish again what a replay makes, on a real broker: readers of committed records see it exactly once more, whoever dies on the way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.kafka.test_job import World
from tests.kafka.test_rewind import caught_up, living, wait
from watertable import failpoints
from watertable.acts import rewind, shadow
from watertable.acts.rewind import Target
from watertable.kafka import publisher
from watertable.kafka.config import Cluster
from watertable.runtime import job
from watertable.runtime.events import Rewound
from watertable.store.commits import Position
from watertable.store.writer import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.plan.plan import Topology
    from watertable.store.commits import Offsets

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def store_of(world: World) -> Store:
    topology = world.topology()
    return Store(world.spark, world.settings.warehouse_uri, topology.app, topology.kept)


def act(world: World, to: str | None, **options: bool) -> Position:
    """Rewind to a target, or undo, whatever a run has committed meanwhile."""
    store, topology = store_of(world), world.topology()
    target = Target("undo") if to is None else Target.parse(to)
    plan = rewind.plan(store, topology, world.admin, target, **options)  # type: ignore[arg-type]
    return rewind.apply(store, plan, topology.fingerprint, world.admin, follow=True)[1]


def of(world: World, sku: str) -> list[int]:
    """List what was published of one key, in its order."""
    return [qty for key, qty in world.published() if key == sku]


@pytest.mark.parametrize(
    ("least", "beside"),
    [
        pytest.param(10_000, False, id="nothing was published, rewound"),
        pytest.param(10_000, True, id="nothing was published, promoted", marks=pytest.mark.slow),
        pytest.param(-8, False, id="long ago, rewound", marks=pytest.mark.slow),
        pytest.param(-8, True, id="long ago, promoted", marks=pytest.mark.slow),
    ],
)
def test_what_was_read_and_gave_nothing_to_publish_gives_nothing_under_other_code_either(
    spark: SparkSession, broker: Cluster, tmp_path: Path, least: int, beside: bool
) -> None:
    world = World(spark, broker, tmp_path)

    def code(condition: str) -> Topology:
        shop = wt.App(f"shop{world.suffix}")
        moves = shop.topic(world.moves, key="sku STRING", value="qty INT").stream()
        moves.filter(condition).to(world.low)
        moves.group_by_key().count("n").materialized_as("counts")
        return shop.topology()

    old, new = code(f"qty >= {least} AND qty < -5"), code("qty < 0")
    for moves in ([("a", -7), ("b", -2)], [("a", -3)], [("b", -1), ("a", 4)]):
        world.produce(*moves)
        job.run(old, world.settings, available_now=True, spark=spark)
    said = [] if least > 0 else [("a", -7)]
    assert world.published() == said
    store = Store(spark, world.settings.warehouse_uri, new.app, new.kept)
    plan = rewind.plan(store, new, world.admin, Target("earliest"), shadow=beside)
    rewind.apply(store, plan, new.fingerprint, world.admin)
    if beside:
        shadow.promote(store, new, lambda goal=None: job.run(new, world.settings, shadow=True, goal=goal, spark=spark))
    world.produce(("c", -9))
    job.run(new, world.settings, available_now=True, spark=spark)
    assert world.published() == [*said, ("c", -9)]
    assert {row["sku"]: row["n"] for row in store.reader.read("counts").collect()} == {"a": 3, "b": 2, "c": 1}


@pytest.mark.slow
def test_a_running_app_publishes_again_what_was_asked_for_and_nothing_of_it_after_an_undo(
    spark: SparkSession, broker: Cluster, tmp_path: Path
) -> None:
    world = World(spark, broker, tmp_path)
    store = store_of(world)
    world.produce(("a", 5), ("b", -1), ("a", -7))
    with living(world, world.topology()) as said:
        world.produce(("b", -2), ("a", -9), ("c", 3))
        wait(lambda: caught_up(world, store))
        wait(lambda: len(world.published()) == 4)
        act(world, "1", emit=True)
        wait(lambda: any(isinstance(e, Rewound) for e in said))
        assert next(e for e in said if isinstance(e, Rewound)).by == "rewind to commit 1, emitting"
        wait(lambda: len(world.published()) == 6)
        world.produce(("c", -4), ("b", 10))
        wait(lambda: len(world.published()) == 7)
        act(world, None)
        wait(lambda: sum(isinstance(e, Rewound) for e in said) == 2)
        world.produce(("a", 1))
        wait(lambda: len(world.published()) == 8)
    world.run()
    assert [of(world, sku) for sku in "abc"] == [[-2, -11, -11, -10], [-1, -3, -3], [-1]]
    assert world.stock() == {"a": (-10, 4), "b": (7, 3), "c": (-1, 2)}


@pytest.mark.slow
def test_a_promoted_shadow_publishes_again_all_that_it_has_made(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    world = World(spark, broker, tmp_path)
    store, topology = store_of(world), world.topology()

    def replay(goal: Offsets | None = None) -> None:
        job.run(topology, world.settings, shadow=True, goal=goal, spark=spark)

    world.produce(("a", 5), ("b", -1), ("a", -7))
    with living(world, topology):
        world.produce(("b", -2), ("c", -3))
        wait(lambda: caught_up(world, store))
        wait(lambda: len(world.published()) == 4)
        act(world, "earliest", shadow=True, emit=True)
        replay()
        world.produce(("a", -9))
        wait(lambda: len(world.published()) == 5)
        _, after = shadow.promote(store, topology, replay)
        assert store.head().emitting(after.epoch) == {after.epoch - 1, after.epoch}
        wait(lambda: len(world.published()) == 10)
        world.produce(("c", 1), ("b", 9))
        wait(lambda: len(world.published()) == 11)
    world.run()
    assert [of(world, sku) for sku in "abc"] == [[-2, -11, -2, -11], [-1, -3, -1, -3], [-3, -3, -2]]


@pytest.mark.slow
def test_publishers_that_fail_while_they_publish_again_lose_and_repeat_nothing(
    spark: SparkSession, broker: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "CHUNK", 3)
    world = World(spark, broker, tmp_path)
    world.produce(*(("ab"[n % 2], -1 - n) for n in range(20)))
    world.run()
    once = Counter(world.published())
    assert sum(once.values()) == 20
    act(world, "earliest", emit=True)
    for point, nth in (("publish.begin", 2), ("publish.after_produce", 2), ("publish.after_commit", 2), ("publish.after_produce", 1)):
        with failpoints.armed(point, "raise", nth=nth), pytest.raises(Exception, match=point):
            world.run()
    world.run()
    assert Counter(world.published()) == once + once
    assert of(world, "a") == [-1, -4, -9, -16, -25, -36, -49, -64, -81, -100] * 2, "in order, both times"
    act(world, None)
    world.produce(("a", -1))
    world.run()
    assert Counter(world.published()) == once + once + Counter({("a", -101): 1})
