"""Replay beside a running app on a real broker, and let the shadow take its place: readers only go forward, nothing is published twice."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.kafka.conftest import Project
from tests.kafka.test_job import World
from tests.kafka.test_rewind import APP, caught_up, living, wait
from watertable import failpoints
from watertable.acts import parity, rewind, shadow
from watertable.acts.plans import RewindPlan
from watertable.acts.rewind import Target
from watertable.errors import RewindRefused, TopicChanged
from watertable.kafka.config import Cluster
from watertable.runtime import job, loop, replay
from watertable.runtime.events import Rewound
from watertable.store.bases import number_of
from watertable.store.commits import Position
from watertable.store.writer import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.plan.plan import Topology
    from watertable.store.commits import Offsets

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.slow
def test_a_shadow_takes_the_place_of_a_running_app_whose_readers_only_go_forward(
    spark: SparkSession, broker: Cluster, tmp_path: Path
) -> None:
    world = World(spark, broker, tmp_path)
    topology, stop, read = world.topology(), threading.Event(), list[int]()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.tables)

    def replay(goal: Offsets | None = None) -> None:
        job.run(topology, world.settings, shadow=True, goal=goal, spark=spark)

    def poll() -> None:
        while not stop.is_set():
            read.append(sum(n for _, n in world.stock().values()))

    world.produce(("a", 5), ("b", -1), ("a", -7))
    with living(world, topology, stop) as said:
        threading.Thread(target=poll, daemon=True).start()
        world.produce(("b", -2), ("a", -9), ("c", 3))
        wait(lambda: caught_up(world, store))
        plan = rewind.plan(store, topology, world.admin, Target.parse(to="earliest"), reason="a test", shadow=True)
        _, becomes = rewind.apply(store, plan, topology.fingerprint, world.admin, follow=True)
        with failpoints.armed("job.batch.compiled", lambda: world.produce(("c", -4))):  # it goes on while its shadow replays
            replay()
        wait(lambda: caught_up(world, store))
        found = shadow.diff(store, topology)
        assert (found.exact, found.verdict) == (True, "the same code, the same rows")
        assert store.head().position.epoch == 1
        assert not any(isinstance(e, Rewound) for e in said)
        world.produce(("b", 10), ("d", -1))
        before, after = shadow.promote(store, topology, replay)
        assert (before.epoch, after.epoch) == (1, becomes.epoch + 1)
        wait(lambda: any(isinstance(e, Rewound) for e in said))
        moved = next(e for e in said if isinstance(e, Rewound))
        assert (moved.position, moved.by) == (str(after), "promote shadow rewind to earliest: a test")
        wait(lambda: caught_up(world, store))
        assert world.stock() == {"a": (-11, 3), "b": (7, 3), "c": (-1, 2), "d": (-1, 1)}
        world.produce(("d", 3), ("c", -2))
        wait(lambda: caught_up(world, store))
        seen = len(read)
        wait(lambda: len(read) > seen + 1)
        assert read == sorted(read), "no reader ever went back, or met a table that was half there"
        undo = rewind.plan(store, topology, world.admin, Target("undo"))
        rewind.apply(store, undo, topology.fingerprint, world.admin, follow=True)
        wait(lambda: sum(isinstance(e, Rewound) for e in said) == 2)
        wait(lambda: caught_up(world, store))
        assert world.stock() == {"a": (-11, 3), "b": (7, 3), "c": (-3, 3), "d": (2, 2)}
    world.run()
    emitted = [("b", -1), ("a", -2), ("b", -3), ("a", -11), ("c", -1), ("d", -1), ("c", -3)]
    assert Counter(world.published()) == Counter(emitted)


@pytest.mark.slow
def test_a_table_is_rebuilt_beside_a_running_app_which_follows_and_publishes_nothing_twice(
    spark: SparkSession, broker: Cluster, tmp_path: Path
) -> None:
    world = World(spark, broker, tmp_path)
    topology = world.topology()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.kept)
    world.produce(("a", 5), ("b", -1), ("a", -7))
    with living(world, topology) as said:
        wait(lambda: world.stock() == {"a": (-2, 2), "b": (-1, 1)})
        plan = rewind.plan(store, topology, world.admin, Target("earliest"), tables=["stock"], reason="a test")
        rewind.apply(store, plan, topology.fingerprint, world.admin, follow=True)
        world.produce(("b", -2), ("c", 3))
        _, after = shadow.promote(store, topology, lambda goal: job.run(topology, world.settings, shadow=True, goal=goal, spark=spark))
        wait(lambda: any(isinstance(e, Rewound) for e in said))
        moved = next(e for e in said if isinstance(e, Rewound))
        assert (moved.position, moved.by) == (str(after), "promote rebuild of stock: a test")
        assert not store.reader.view().lineage.of_table("stock", after.seq).holds(1, 1)
        world.produce(("c", -4), ("a", 1))
        wait(lambda: world.stock() == {"a": (-1, 3), "b": (-3, 2), "c": (-1, 2)})
    world.run()
    assert Counter(world.published()) == Counter([("b", -1), ("a", -2), ("b", -3), ("c", -1), ("a", -1)])


def test_a_shadow_that_stops_on_its_way_is_compared_there_and_goes_on_when_asked(
    spark: SparkSession, broker: Cluster, tmp_path: Path
) -> None:
    world = World(spark, broker, tmp_path)
    topology = world.topology()
    for moves in ((("a", 5),), (("b", -1), ("a", -7)), (("c", 3),)):
        world.produce(*moves)
        world.run()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.kept)

    def planned(until: str, to: str = "earliest", **options: Any) -> RewindPlan:
        wanted = {"shadow": True, "until": Target.parse(until), **options}
        return rewind.plan(store, topology, world.admin, Target.parse(to), **wanted)

    def replay(until: int = 0) -> Position:
        job.run(topology, world.settings, shadow=True, until=until, spark=spark)
        found = shadow.diff(store, topology)
        assert (found.exact, found.verdict) == (True, "the same code, the same rows")
        return Position.parse(found.live)

    plan = planned("2")
    assert (plan.until, plan.records, [r.end for r in plan.ranges]) == (2, 3, [1, 2])  # b is in partition 0; a and c are in 1
    rewind.apply(store, plan, topology.fingerprint, world.admin)
    assert replay(plan.until).seq == 2
    assert shadow.diff(store, topology).missing == 1
    with pytest.raises(RewindRefused, match="has read beyond commit 1"):
        replay(1)
    assert rewind.stop_of(store, topology, Target.parse("3")) == 3
    assert replay().seq == 3, "it goes on to where the app is"
    _, after = shadow.promote(store, topology, lambda goal: job.run(topology, world.settings, shadow=True, goal=goal, spark=spark))
    assert (world.stock(), after.seq) == ({"a": (-2, 2), "b": (-1, 1), "c": (3, 1)}, store.head().position.seq)
    for until, to, beside, told in (
        ("9", "earliest", True, "isn't there yet"),
        ("2", "earliest", False, "goes with --shadow"),
        ("earliest", "earliest", True, "on the way to where"),
        ("2", "2", True, "nothing to read from commit 2"),
    ):
        with pytest.raises(RewindRefused, match=told):
            planned(until, to, shadow=beside)


@pytest.mark.slow
def test_a_table_of_a_topic_that_holds_nothing_is_rebuilt_as_any(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    world = World(spark, broker, tmp_path)
    empty = f"empty{world.suffix}"
    world.admin.create_topic(empty)
    app = wt.App("till")
    for topic, name in ((world.moves, "moved"), (empty, "none")):
        app.topic(topic, key="sku STRING", value="qty BIGINT").stream().group_by_key().count("n").materialized_as(name)
    topology = app.topology()
    world.produce(("a", 5), ("b", -1))
    job.run(topology, world.settings, available_now=True, spark=spark)
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.kept)
    plan = rewind.plan(store, topology, world.admin, Target("earliest"), tables=["none"])
    rewind.apply(store, plan, topology.fingerprint, world.admin)
    _, done = shadow.promote(store, topology, lambda goal: job.run(topology, world.settings, shadow=True, goal=goal, spark=spark))
    assert (store.head().position, store.reader.read("none").count(), store.reader.read("moved").count()) == (done, 0, 2)


@pytest.mark.slow
def test_a_shadow_that_stops_on_its_way_reads_nothing_yet_of_a_topic_that_its_app_began_to_read_later(
    spark: SparkSession, broker: Cluster, tmp_path: Path
) -> None:
    world = World(spark, broker, tmp_path)
    later = f"later{world.suffix}"
    world.admin.create_topic(later)

    def topology(*more: str) -> Topology:
        app = wt.App("till")
        for topic in (world.moves, *more):
            app.topic(topic, key="sku STRING", value="qty BIGINT").stream().group_by_key().count("n").materialized_as(topic)
        return app.topology()

    def produce(topic: str) -> None:
        world._producer.produce(topic, "{}", "a", partition=0)
        world._producer.flush(20)

    produce(world.moves)
    job.run(topology(), world.settings, available_now=True, spark=spark)
    code = topology(later)
    produce(later)
    job.run(code, world.settings, available_now=True, spark=spark)
    produce(later)  # which the app hasn't read yet
    store = Store(spark, world.settings.warehouse_uri, code.app, code.kept)
    plan = rewind.plan(store, code, world.admin, Target("earliest"), shadow=True, until=Target.parse(to="1"))
    _, at = rewind.apply(store, plan, code.fingerprint, world.admin)
    for until, read in ((1, 0), (0, 1)):
        job.run(code, world.settings, shadow=True, until=until, spark=spark)
        own = store.changelog.head(epoch=at.epoch).last
        assert own is not None
        assert (own.next[world.moves, 0], own.next[later, 0]) == (1, read)
    shadow.promote(store, code, lambda goal: job.run(code, world.settings, shadow=True, goal=goal, spark=spark))


@pytest.mark.slow
def test_a_shadow_asks_nothing_of_a_topic_that_is_read_no_more_and_gone(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    world, topics = World(spark, broker, tmp_path), dict[str, str]()
    topics["moves"], topics["gone"] = world.moves, f"gone{world.suffix}"
    world.admin.create_topic(topics["gone"])

    def till(*names: str) -> Topology:
        app = wt.App("till")
        for name in names:
            app.topic(topics[name], key="sku STRING", value="qty BIGINT").stream().group_by_key().count("n").materialized_as(name)
        return app.topology()

    world.produce(("a", 5), ("b", -1))
    job.run(till("moves", "gone"), world.settings, available_now=True, spark=spark)
    topology = till("moves")
    job.run(topology, world.settings, available_now=True, spark=spark)
    world.admin.delete_topic(topics["gone"])
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.tables)
    plan = rewind.plan(store, topology, world.admin, Target.parse(to="earliest"), shadow=True)
    rewind.apply(store, plan, topology.fingerprint, world.admin)
    job.run(topology, world.settings, shadow=True, spark=spark)
    shadow = store.head().shadow
    assert shadow is not None
    assert store.changelog.head(epoch=shadow.epoch).position.seq == 1


@pytest.mark.slow
def test_what_is_made_beside_an_app_of_a_topic_that_is_another_one_now_is_refused(
    spark: SparkSession, broker: Cluster, tmp_path: Path
) -> None:
    world = World(spark, broker, tmp_path)
    app = wt.App(f"shop{world.suffix}")
    moves = app.topic(world.moves, key="sku STRING", value="qty BIGINT").stream()
    moves.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
    moves.group_by_key().agg(n=wt.count()).materialized_as("counts")
    topology = app.topology()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.kept)

    def replay(goal: Offsets | None = None) -> None:
        job.run(topology, world.settings, shadow=True, goal=goal, spark=spark)

    def plan(**options: Any) -> RewindPlan:
        return rewind.plan(store, topology, world.admin, Target("earliest"), accept_loss=[world.moves], **options)

    def rows() -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in store.reader.read("counts").collect())

    world.produce(("a", 5), ("a", 6), ("b", 1))
    job.run(topology, world.settings, available_now=True, spark=spark)
    rewind.apply(store, plan(tables=["stock"]), topology.fingerprint, world.admin)
    world.admin.add_partitions(world.moves, 3)
    with pytest.raises(RewindRefused, match=r"stock can't be joined: topic .* was given partitions"):
        shadow.promote(store, topology, replay)
    shadow.abandon(store)
    with pytest.raises(RewindRefused, match=r"given partitions since .* Only all of it, in its place, .* --to earliest"):
        plan(tables=["stock"])
    with pytest.raises(RewindRefused, match="hasn't read partitions that a topic was given"):
        parity.hold(store, topology, world.admin, Target("earliest"), replay)

    rewind.apply(store, plan(shadow=True), topology.fingerprint, world.admin)  # all of it starts over from what the topic holds
    world.admin.delete_topic(world.moves)
    world.admin.create_topic(world.moves, 2)
    world.produce(("a", 1))
    with pytest.raises(TopicChanged, match=r"is another one now than the app has read\. Give the shadow up"):
        replay()
    shadow.abandon(store)
    for options in ({"shadow": True}, {"tables": ["stock"]}):
        with pytest.raises(RewindRefused, match="was re-created"):
            plan(**options)
    assert rows() == [("a", 2), ("b", 1)]
    rewind.apply(store, plan(), topology.fingerprint, world.admin)
    job.run(topology, world.settings, available_now=True, spark=spark)
    assert rows() == [("a", 1)]


def test_a_shadow_that_records_were_deleted_under_says_how_to_begin_another(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    world = World(spark, broker, tmp_path)
    topology = world.topology()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.kept)
    world.produce(("a", 5), ("a", 6))
    world.run()
    world.produce(("a", 7))
    world.run()
    plan = rewind.plan(store, topology, world.admin, Target("earliest"), shadow=True, until=Target.parse("1"))
    rewind.apply(store, plan, topology.fingerprint, world.admin)
    job.run(topology, world.settings, shadow=True, until=1, spark=spark)
    world.admin.delete_records({(world.moves, 1): 3})
    with pytest.raises(TopicChanged, match=r"truncated past us.*Give the shadow up, `watertable rewind \w+_j\d+ --abandon-shadow`"):
        job.run(topology, world.settings, shadow=True, spark=spark)
    world.run()  # the app has read them, and goes on


@pytest.mark.slow
def test_a_live_run_that_was_asked_to_wait_goes_on_when_nobody_comes(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    world = World(spark, broker, tmp_path)
    topology = world.topology()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.tables)
    world.produce(("a", 5))
    with living(world, topology) as said:
        held = store.hold("a promote that died", 3.0)
        world.produce(("a", 6))
        wait(lambda: world.stock() == {"a": (11, 2)})
        head = store.head()
        assert (head.generation, head.position.epoch) == (held.generation + 1, 1)
    assert not any(isinstance(e, Rewound) for e in said)


@pytest.mark.slow
def test_a_rewind_that_lands_while_a_failed_batch_is_begun_again_is_followed(
    spark: SparkSession, broker: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, broker, tmp_path)
    world.produce(("a", 5))
    world.run()
    world.produce(("a", 6), ("a", 7))
    topology = world.topology()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.tables)
    failed: list[bool] = []

    def fails() -> None:
        """Fail a batch as its data would, once, and rewind the app in the moment after the run has looked for rewinds."""
        failed.append(True)
        spark.sql("SELECT raise_error('the data')").collect()

    def between() -> None:
        plan = rewind.plan(store, topology, world.admin, Target.parse(to="earliest"))
        rewind.apply(store, plan, topology.fingerprint, world.admin, follow=True)

    look = loop.Writer.check

    def check(writer: Any) -> None:
        look(writer)
        if failed and len(failed) == 1:
            failed.append(True)
            between()

    monkeypatch.setattr(loop.Writer, "check", check)
    with failpoints.armed("job.batch.compiled", fails):
        said = world.run()
    assert any(isinstance(e, Rewound) for e in said)
    assert (world.stock(), store.head().position.epoch) == ({"a": (18, 3)}, 2)


@pytest.mark.slow
def test_a_shadow_begins_no_batch_while_its_app_is_late_but_for_the_one_that_the_app_waits_for(
    spark: SparkSession, broker: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, broker, tmp_path)
    world.settings = world.settings.model_copy(update={"batch_records": 2})
    world.produce(*(("a", n) for n in range(6)))
    world.run()
    topology = world.topology()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.tables)
    plan = rewind.plan(store, topology, world.admin, Target.parse(to="earliest"), shadow=True)
    rewind.apply(store, plan, topology.fingerprint, world.admin)
    world.produce(("b", 1), ("b", 2), ("b", 3))
    asked: list[tuple[int, float]] = []

    def late(waiting: int, since: datetime, now: datetime, lag: timedelta) -> bool:
        asked.append((waiting, lag.total_seconds()))
        assert since <= now
        return len(asked) == 2

    monkeypatch.setattr(replay, "goes_first", late)
    job.run(topology, world.settings, shadow=True, spark=spark)
    assert asked == [(3, 5.0)] * 4, "after each of three batches, and once more while the app was late"
    world.run()
    goal = store.head().last
    assert goal is not None
    job.run(topology, world.settings, shadow=True, goal=goal.next, spark=spark)
    assert len(asked) == 4, "the app waits for these"
    assert shadow.diff(store, topology).exact


SUITE = """
from watertable_quality import Severity, Suite, between, not_null, row_count
rules = Suite("till.stock", between("qty", 0, None), not_null("qty"), row_count(9, severity=Severity.WARNING))
"""


@pytest.mark.slow
def test_the_commands_replay_beside_compare_promote_and_give_up(project: Project, broker: Cluster) -> None:
    world, said = World(project.spark, broker, project.home / "world"), project.said
    project.write(APP.format(moves=world.moves) + SUITE)
    world.produce(("a", 5), ("b", 1), ("a", -7))
    project.run()
    assert "has no shadow" in said("diff", "till", code=1)
    assert "nothing of it until it is promoted" in said("rewind", "till", "--to", "earliest", "--shadow")
    shown = said("rewind", "till", "--to", "earliest", "--shadow", "--apply", "--reason", "a try")
    for wanted in ("level at till@2.1", "the same code, the same rows", "the shadow is at till@2.1 beside till@1.1"):
        assert wanted in " ".join(shown.split()), shown
    assert "promote it, go on with it" in said("rewind", "till", "--to", "earliest", "--shadow", "--apply", code=1)
    assert json.loads(said("diff", "till", "--json"))["exact"]
    refused = said("promote", "till", "--apply", code=1)
    assert "at till@2.1 these checks are red: qty_between of stock" in " ".join(refused.split())
    told = said("promote", "till", "--apply", "--despite-checks", "--json").splitlines()
    done = json.loads(told[-1])
    assert (done["event"], done["position"], done["before"]) == ("promoted", "till@3.1", "till@1.1")
    assert any(json.loads(line)["event"] == "diff" for line in told)
    assert "till is at till@4.1" in said("undo", "till", "--apply")
    said("rewind", "till", "--to", "earliest", "--shadow", "--apply")
    said("rewind", "till", "--shadow", "--apply")
    assert "is given up" in said("rewind", "till", "--abandon-shadow", "--apply", "--reason", "only a test")
    assert "has no shadow" in said("promote", "till", "--apply", code=1)
    assert "no such table; it has stock" in said("rewind", "till", "--table", "stok", code=1)
    assert "leave the target out" in said("rewind", "till", "--table", "stock", "--by", "1 h", code=1)
    assert "rebuilt from nothing, and joined" in said("rewind", "till", "--table", "stock")
    refused = " ".join(said("rewind", "till", "--table", "stock", "--apply", code=1).split())
    assert "these checks are red: qty_between of stock" in refused
    done = json.loads(said("promote", "till", "--apply", "--despite-checks", "--json").splitlines()[-1])
    assert (done["event"], done["by"]) == ("promoted", "promote rebuild of stock")
    told = said("rewind", "till", "--table", "stock", "--shadow", "--apply")
    assert "the same code, the same rows" in " ".join(told.split())
    assert "is given up" in said("rewind", "till", "--abandon-shadow", "--apply")


def test_tables_are_held_against_their_records_and_nothing_of_it_stays(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    world = World(spark, broker, tmp_path)
    topology = world.topology()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.kept)

    def hold(to: str | None = None) -> parity.Held:
        begin = parity.begins(store, topology) if to is None else Target.parse(to)
        held = parity.hold(store, topology, world.admin, begin, lambda: job.run(topology, world.settings, shadow=True, spark=spark))
        assert store.head().shadow is None
        rows = store.changelog.snapshot().frame().where(f"bucket >= 0 AND epoch = {store.head().next_epoch - 1}")
        assert rows.count() == 0, "what it wrote is gone"
        return held

    for moves in ((("a", 5),), (("b", -1), ("a", -7)), (("c", 3),)):
        world.produce(*moves)
        world.run()
    before, mine = store.head(), rewind.plan(store, topology, world.admin, Target("earliest"), shadow=True, reason="mine")
    rewind.apply(store, mine, topology.fingerprint, world.admin)
    with pytest.raises(RewindRefused, match="has a shadow, of 'shadow rewind to earliest: mine'"):
        hold()
    shadow.abandon(store)
    dead = rewind.plan(store, topology, world.admin, Target("earliest"), shadow=True, reason=parity.REASON)
    rewind.apply(store, dead, topology.fingerprint, world.admin, mark=parity.HELD)
    held = hold()  # one that died is given up first
    assert (held.since, held.apart) == (f"{topology.app}@1.0", ())
    assert held.says == f"at {topology.app}@1.3, every table has the rows that the records make"
    after = store.head()
    assert (after.position, after.generation, after.lineage) == (before.position, before.generation, before.lineage)

    base, log = store.reader.folded("stock"), store.reader.log("stock")
    spark.sql(f"DELETE FROM delta.`{log.path}` WHERE sku = 'b'")
    assert hold().apart == (), "what others have done to its rows is no part of it"
    wrong, number = replace(base, snapshot=log.latest()), number_of(base.epoch, base.seq)
    store.folder._stamp("stock", wrong, number, "a fold that has lost a row")
    held = hold()
    assert (held.apart, held.found.tables[0].added) == (("stock",), 1)
    assert "stock has other rows than the records make" in held.says
    held = hold("3")
    assert (held.apart, held.since) == ((), f"{topology.app}@1.3"), "from a commit on, what was before is taken as it is"


@pytest.mark.slow
def test_tables_are_held_from_where_on_they_are_the_loaded_codes(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    world = World(spark, broker, tmp_path)
    app, more = wt.App(f"shop{world.suffix}"), wt.App(f"shop{world.suffix}")
    for one in (app, more):
        moves = one.topic(world.moves, key="sku STRING", value="qty BIGINT").stream()
        moves.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
    moves.group_by_key().agg(n=wt.count()).materialized_as("counts")
    old, new = app.topology(), more.topology()
    world.produce(("a", 5))
    job.run(old, world.settings, available_now=True, spark=spark)
    store = Store(spark, world.settings.warehouse_uri, new.app, new.kept)
    with pytest.raises(RewindRefused, match="commits up to 1 are by other code"):
        parity.begins(store, new)
    assert parity.begins(store, old) == Target("earliest")
    world.produce(("a", 1), ("b", 2))
    job.run(new, world.settings, available_now=True, spark=spark)
    begin = parity.begins(store, new)
    assert begin == Target("commit", "1")
    held = parity.hold(store, new, world.admin, begin, lambda: job.run(new, world.settings, shadow=True, spark=spark))
    assert (held.apart, held.since, len(held.found.tables)) == ((), f"{new.app}@1.1", 2)
    assert held.says.endswith(f"every table has the rows that the records since {new.app}@1.1 make")
