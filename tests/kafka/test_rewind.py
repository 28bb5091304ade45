"""Rewind a running app on a real broker: it goes on by itself, its tables are equal, and nothing is published twice."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.kafka.conftest import Project
from tests.kafka.test_job import World
from watertable.acts import rewind
from watertable.acts.rewind import Target
from watertable.errors import BreakingChange, CodeReplaced, RewindRefused
from watertable.interpreter import Interpreter
from watertable.kafka.config import Cluster
from watertable.kafka.reading import read_records
from watertable.plan.plan import Topology
from watertable.runtime import job
from watertable.runtime.events import BatchCommitted, Event, Failed, Rewound, Stopped
from watertable.store.commits import Position
from watertable.store.writer import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def wait(until: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def living(world: World, topology: Topology, stop: threading.Event | None = None) -> Iterator[list[Event]]:
    """Let an app run meanwhile, from its first commit on; give what it says. It must end as stopped, and never have failed."""
    said, stop = list[Event](), stop or threading.Event()
    options = {"on_event": said.append, "stop": stop, "spark": world.spark}
    live = threading.Thread(target=job.run, args=(topology, world.settings), kwargs=options, daemon=True)
    live.start()
    try:
        wait(lambda: any(isinstance(e, BatchCommitted) for e in said))
        yield said
    finally:
        stop.set()
        live.join(60)
    assert isinstance(said[-1], Stopped)
    assert not any(isinstance(e, Failed) for e in said)


def caught_up(world: World, store: Store) -> bool:
    """Tell whether an app has read and published all that there is."""
    ends = world.admin.latest(world.admin.partitions([world.moves]))
    last = store.head().last
    return last is not None and last.next == ends and world.admin.mirrored(store.app, ends) == ends


def test_a_running_app_is_rewound_goes_on_and_publishes_nothing_twice(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    world = World(spark, broker, tmp_path)
    topology = world.topology()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.tables)

    def act(target: Target, **options: bool) -> str:
        plan = rewind.plan(store, topology, world.admin, target, reason="a test")
        return str(rewind.apply(store, plan, topology.fingerprint, world.admin, **options)[1])

    world.produce(("a", 5), ("b", -1), ("a", -7))
    with living(world, topology) as said:
        world.produce(("b", -2), ("a", -9), ("c", 3))
        wait(lambda: caught_up(world, store))
        before, rows = store.head().position, world.stock()
        assert rows == {"a": (-11, 3), "b": (-3, 2), "c": (3, 1)}
        becomes = act(Target.parse(to="1"), follow=True)
        wait(lambda: any(isinstance(e, Rewound) for e in said))
        rewound = next(e for e in said if isinstance(e, Rewound))
        assert (rewound.position, rewound.by) == (becomes, "rewind to commit 1: a test")
        wait(lambda: caught_up(world, store))
        assert world.stock() == rows
        world.produce(("c", -4), ("b", 10))
        wait(lambda: caught_up(world, store))
        assert world.stock() == {"a": (-11, 3), "b": (7, 3), "c": (-1, 2)}
        assert store.reader.read("stock", before).count() == 3
        act(Target("undo"), follow=True)
        wait(lambda: sum(isinstance(e, Rewound) for e in said) == 2)
        wait(lambda: caught_up(world, store))
        assert world.stock() == {"a": (-11, 3), "b": (7, 3), "c": (-1, 2)}
        assert store.head().position.epoch == 3
    world.run()
    assert Counter(world.published()) == Counter([("b", -1), ("a", -2), ("b", -3), ("a", -11), ("c", -1)])


@pytest.mark.slow
@pytest.mark.parametrize("rewinds", [2, 50])
def test_at_whatever_position_a_rewind_arrives_the_tables_are_the_interpreters_fold_of_the_log_up_to_there(
    spark: SparkSession, broker: Cluster, tmp_path: Path, rewinds: int
) -> None:
    world, draw = World(spark, broker, tmp_path), Random(rewinds)
    app = wt.App("till")
    moves = app.topic(world.moves, key="sku STRING", value="qty BIGINT").stream()
    stock = moves.group_by_key().agg(qty=wt.sum("qty"), n=wt.count(), last=wt.last("qty"), least=wt.min("qty")).materialized_as("stock")
    stock.filter("qty < 0").materialized_as("low")
    moves.filter("qty > 0").group_by("value.qty").agg(n=wt.count(), last=wt.last("key.sku")).materialized_as("sizes")
    topology = app.topology()
    world.produce(*((f"k{draw.randint(0, 9)}", draw.randint(-5, 9)) for _ in range(200)))
    partitions = world.admin.partitions([world.moves])
    ends = world.admin.latest(partitions)
    log = list(read_records(broker, dict.fromkeys(partitions, 0), ends))
    store = Store(spark, world.settings.warehouse_uri, "till", topology.kept)

    def run() -> None:
        settings = world.settings.model_copy(update={"batch_records": draw.randint(20, 90)})
        job.run(topology, settings, available_now=True, spark=spark)

    def hold(position: Position, upto: dict[tuple[str, int], int]) -> None:
        engine = Interpreter(topology)
        engine.read([r for r in log if r.offset < upto.get((r.topic, r.partition), 0)])
        for name, frame in store.reader.read_all(["stock", "low", "sizes"], position).items():
            table = topology.table(name)
            found = {tuple(r[n] for n in table.key.names): {n: r[n] for n in table.columns.names} for r in frame.collect()}
            assert found == engine.tables[name], f"{name} at {position}"

    run()
    for number in range(rewinds):
        last = store.head().last
        assert last is not None
        target = {world.moves: {str(p[1]): draw.randint(0, offset) for p, offset in last.next.items()}}
        plan = rewind.plan(store, topology, world.admin, Target.parse(to=json.dumps(target)))
        _, position = rewind.apply(store, plan, topology.fingerprint, world.admin)
        head = store.head()
        hold(position, dict(head.last.next) if head.last else {})
        if number % 4 == 3 or not position.seq:
            run()
            hold(store.head().position, ends)


@pytest.mark.slow
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


def till(world: World, *, least: int | None = None, more: bool = False) -> Topology:
    app = wt.App("till")
    moves = app.topic(world.moves, key="sku STRING", value="qty BIGINT").stream()
    kept = moves if least is None else moves.filter(f"qty >= {least}")
    kept.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
    if more:
        moves.group_by_key().agg(n=wt.count()).materialized_as("counts")
    return app.topology()


@pytest.mark.slow
def test_code_that_would_make_tables_wrong_is_refused_until_they_are_rewound_for_it(
    spark: SparkSession, broker: Cluster, tmp_path: Path
) -> None:
    world = World(spark, broker, tmp_path)

    def run(topology: Topology) -> dict[str, int]:
        job.run(topology, world.settings, available_now=True, spark=spark)
        rows = Store(spark, world.settings.warehouse_uri, "till", topology.tables).reader.read("stock").collect()
        return {r["sku"]: r["qty"] for r in rows}

    world.produce(("a", 5), ("b", -1))
    assert run(till(world)) == {"a": 5, "b": -1}
    world.produce(("a", 2))
    assert run(till(world, more=True)) == {"a": 7, "b": -1}  # what is new rolls in
    world.produce(("c", -3))
    positive = till(world, least=0, more=True)
    with pytest.raises(BreakingChange, match="stock: a filter was put in"):
        run(positive)
    assert run(till(world, more=True)) == {"a": 7, "b": -1, "c": -3}  # the code from before goes on
    store = Store(spark, world.settings.warehouse_uri, "till", positive.tables)
    rewind.apply(store, rewind.plan(store, positive, world.admin, Target.parse(to="earliest")), positive.fingerprint, world.admin)
    assert run(positive) == {"a": 7}
    world.produce(("b", 4))
    assert run(positive) == {"a": 7, "b": 4}


@pytest.mark.slow
def test_a_run_ends_by_name_when_its_app_goes_on_under_other_code(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    world = World(spark, broker, tmp_path)
    old, new = till(world), till(world, least=0)
    store = Store(spark, world.settings.warehouse_uri, new.app, new.tables)
    world.produce(("a", 5), ("b", -1))
    said, ended = list[Event](), list[BaseException]()

    def live() -> None:
        try:
            job.run(old, world.settings, on_event=said.append, spark=spark)
        except CodeReplaced as error:
            ended.append(error)

    run = threading.Thread(target=live, daemon=True)
    run.start()
    wait(lambda: any(isinstance(e, BatchCommitted) for e in said))
    plan = rewind.plan(store, new, world.admin, Target.parse(to="earliest"), reason="new code")
    rewind.apply(store, plan, new.fingerprint, world.admin, follow=True)
    run.join(60)
    assert isinstance(said[-1], Failed)
    assert said[-1].error == "CodeReplaced"
    assert f"goes on under the code {new.fingerprint}" in str(ended[0])


APP = """
import watertable as wt
app = wt.App("till")
moves = app.topic("{moves}", key="sku STRING", value="qty BIGINT").stream()
moves.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
"""


@pytest.mark.slow
def test_the_commands_plan_apply_undo_and_explain(project: Project, broker: Cluster) -> None:
    world, said = World(project.spark, broker, project.home / "world"), project.said
    project.write(APP.format(moves=world.moves))
    world.produce(("a", 5), ("b", 1), ("a", -7))
    project.run()
    (project.home / "plan.json").write_text(said("rewind", "till", "--to", "earliest", "--json"))
    shown = said("rewind", "till", "--to", "earliest")
    for wanted in ("till  rewind to earliest  till@1.1  →  till@2.0", "3 records", "rebuilt from nothing", "--apply does it"):
        assert wanted in shown
    done = json.loads(said("rewind", "till", "--plan", "plan.json", "--apply", "--json").splitlines()[-1])
    assert (done["event"], done["position"], done["before"]) == ("rewound", "till@2.0", "till@1.1")
    assert "rewound since" in said("rewind", "till", "--plan", "plan.json", "--apply", code=1)
    assert "till is at till@3.1" in said("undo", "till", "--apply", "--reason", "only a test")
    told = json.loads(said("explain", "stock", "--key", "a", "--json"))
    assert [step["row"] for step in told["steps"]] == [{"qty": 5}, {"qty": -2}]
