"""A running app on a real broker: what it commits, what it says, what stops it, and that it can begin again from any of that."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import watertable as wt
from watertable import errors, failpoints
from watertable.errors import Fenced, KafkaError, RecordFailed, StoreError, TopicChanged
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable.kafka.publisher import OutboxPublisher
from watertable.kafka.reading import read_records
from watertable.kafka.source import Read
from watertable.plan.plan import Topology
from watertable.plan.windows import UNTIMED
from watertable.runtime import events, job, loop
from watertable.runtime.events import BatchCommitted, Event, Failed, Folded, Started, Stopped
from watertable.settings import Settings
from watertable.store.reader import Reader
from watertable_platform.answers import lag_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
_names = iter(range(10_000))


class World:
    """Hold one app on the shared broker and session: its topics, its warehouse, and what its runs said."""

    def __init__(self, spark: SparkSession, cluster: Cluster, home: Path) -> None:
        self.spark, self.cluster, self.admin = spark, cluster, Admin(cluster)
        self.suffix = f"_j{next(_names)}"
        self.settings = Settings.load(home, kafka=cluster.bootstrap, fold_seconds=3600.0, trigger_seconds=0.0)
        self.admin.create_topic(self.moves, 2)
        self._producer = Producer(cluster.client_config())
        self.events: list[Event] = []

    @property
    def moves(self) -> str:
        return f"moves{self.suffix}"

    @property
    def low(self) -> str:
        return f"low{self.suffix}"

    def topology(self) -> Topology:
        app = wt.App(f"shop{self.suffix}")
        moves = app.topic(self.moves, key="sku STRING", value="qty BIGINT").stream()
        stock = moves.group_by_key().agg(qty=wt.sum("qty"), n=wt.count()).materialized_as("stock")
        stock.to_stream().filter("new.qty < 0").to(self.low)
        return app.topology()

    def produce(self, *moves: tuple[str, object]) -> None:
        for sku, qty in moves:
            value = qty if isinstance(qty, str) else json.dumps({"qty": qty})
            self._producer.produce(self.moves, value, sku, partition=ord(sku[-1]) % 2)
        self._producer.flush(20)

    def run(self, **options: Any) -> list[Event]:
        """Run once, bounded unless a stop is given; give what this run said."""
        said: list[Event] = []
        options.setdefault("available_now", "stop" not in options)
        try:
            job.run(self.topology(), self.settings, spark=self.spark, on_event=said.append, **options)
        finally:
            self.events += said
        return said

    def stock(self) -> dict[str, tuple[int, int]]:
        topology = self.topology()
        rows = Reader(self.spark, self.settings.warehouse_uri, topology.app, topology.tables).read("stock").collect()
        return {row["sku"]: (row["qty"], row["n"]) for row in rows}

    def published(self) -> list[tuple[str, int]]:
        consumer = Consumer(
            self.cluster.client_config() | {"group.id": "t", "isolation.level": "read_committed", "enable.partition.eof": "true"}
        )
        found, left = [], set(self.admin.partitions([self.low]))
        consumer.assign([TopicPartition(*partition, 0) for partition in left])
        while left:
            message = consumer.poll(20)
            assert message is not None
            if message.error():
                left.discard((message.topic(), message.partition()))
            else:
                found.append((message.key().decode(), json.loads(message.value())["qty"]))
        consumer.close()
        return found


@pytest.fixture
def world(spark: SparkSession, broker: Cluster, tmp_path: Path) -> World:
    return World(spark, broker, tmp_path)


@wt.udf(returns="BIGINT", version="1")
def _dozens(qty: Any) -> Any:
    return qty // 12


def _counted(record: wt.Record, context: wt.Context) -> None:
    """Keep the sum and the number of a key's moves; tell of those that are whole dozens, and refuse those that are too many."""
    assert record.value is not None
    store = context.store("stock")
    before = store.get() or {"qty": 0, "n": 0}
    store.put({"qty": before["qty"] + record.value["qty"], "n": before["n"] + 1})
    if record.value["dozens"]:
        context.forward({"qty": record.value["dozens"] * 12})
    if record.value["qty"] > 1000:
        raise ValueError("too many")


@pytest.mark.slow
def test_a_job_calls_the_users_functions_and_goes_on_with_what_a_processor_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def topology() -> Topology:
        app = wt.App(f"shop{world.suffix}")
        moves = app.topic(world.moves, key="sku STRING", value="qty BIGINT").stream().map_values(qty="qty", dozens=_dozens("qty"))
        moves.process_values(_counted, value="qty BIGINT", stores={"stock": wt.key_value_store("qty BIGINT, n BIGINT")}).to(world.low)
        return app.topology()

    monkeypatch.setattr(world, "topology", topology)
    world.produce(("a", 5), ("b", 30), ("a", 7), ("a", 2000), ("b", "{broken"))
    first = next(e for e in world.run() if isinstance(e, BatchCommitted))
    assert (first.records, first.quarantined, dict(first.published)) == (5, 2, {world.low: 1})
    changelog = world.spark.read.format("delta").load(f"{world.settings.warehouse_uri}/shop{world.suffix}/changelog")
    assert changelog.where("`table` = '__quarantine'").count() == 2
    assert world.stock() == {"a": (12, 2), "b": (30, 1)}
    world.produce(("a", 12), ("c", 1))
    world.run()
    assert world.stock() == {"a": (24, 3), "b": (30, 1), "c": (1, 1)}
    assert sorted(world.published()) == [("a", 12), ("b", 24)]


def test_runs_go_on_where_the_last_one_ended_and_publish_each_change_once(world: World) -> None:
    world.produce(("a", 5), ("b", -1), ("a", -7), ("b", "{broken"))
    first = world.run()
    assert isinstance(first[0], Started)
    assert first[-1] == Stopped(position=f"shop{world.suffix}@1.1", reason="caught up")
    batch = next(e for e in first if isinstance(e, BatchCommitted))
    assert (batch.records, batch.quarantined, dict(batch.rows), dict(batch.published)) == (4, 1, {"stock": 2}, {world.low: 2})
    assert batch.lag == {world.moves: 0}
    fold = next(e for e in first if isinstance(e, Folded))
    assert fold.tables["stock"].folded == f"shop{world.suffix}@1.1"
    assert (batch.unfolded_s > 0, fold.unfolded_s) == (True, 0.0)

    world.produce(("a", 1), ("c", 3), ("a", -9))
    second = world.run()
    assert isinstance(second[0], Started)
    assert second[0].position == f"shop{world.suffix}@1.1"
    assert second[0].generation == 2
    assert world.stock() == {"a": (-10, 4), "b": (-1, 1), "c": (3, 1)}
    found = world.published()
    assert Counter(found) == Counter([("b", -1), ("a", -2), ("a", -1), ("a", -10)])
    assert [qty for sku, qty in found if sku == "a"] == [-2, -1, -10], "of one key, in order"
    ends = world.admin.latest(world.admin.partitions([world.moves]))
    assert world.admin.mirrored(f"shop{world.suffix}", ends) == ends

    third = world.run()
    assert not any(isinstance(e, BatchCommitted) for e in third), "nothing new, nothing committed"
    for event in world.events:
        assert json.loads(events.as_json(event))["event"] == event.event


def test_a_warehouse_that_was_begun_anew_or_restored_publishes_nothing_in_silence_and_passes_over_nothing(
    world: World, tmp_path: Path
) -> None:
    def stands_in(name: str) -> None:
        world.settings = world.settings.model_copy(update={"warehouse": str(tmp_path / name)})

    stands_in("first")
    world.produce(("a", -1))
    world.run()
    shutil.copytree(tmp_path / "first", tmp_path / "restored")
    world.produce(("a", -1), ("a", -1))
    world.run()
    said = [("a", -1), ("a", -2), ("a", -3)]
    for name, told in (("anew", "from another changelog"), ("restored", "@1.2, and its changelog ends at .*@1.1: it was")):
        stands_in(name)
        with pytest.raises(StoreError, match=told):
            world.run()
        assert world.published() == said
    OutboxPublisher(world.cluster, f"shop{world.suffix}").forget()
    stands_in("anew")
    world.run()
    assert world.published() == [*said, *said]


def test_small_batches_give_the_same_table_in_a_constant_number_of_spark_jobs(world: World) -> None:
    world.produce(*((f"k{i % 5}", i) for i in range(60)))
    world.settings = world.settings.model_copy(update={"batch_records": 20})
    batches = [e for e in world.run() if isinstance(e, BatchCommitted)]
    assert sum(b.records for b in batches) == 60
    assert len(batches) >= 3
    assert len({b.jobs for b in batches[1:]}) == 1, f"jobs grew from batch to batch: {[b.jobs for b in batches]}"
    assert world.stock() == {f"k{k}": (sum(range(k, 60, 5)), 12) for k in range(5)}


def test_a_stop_ends_the_run_within_seconds_and_is_no_failure(world: World) -> None:
    world.produce(*((f"k{i % 5}", i) for i in range(50)))
    stop = threading.Event()
    began: list[float] = []

    def stop_at_first_commit(event: Event) -> None:
        if isinstance(event, BatchCommitted):
            began.append(time.monotonic())
            stop.set()

    said: list[Event] = []
    job.run(
        world.topology(), world.settings, spark=world.spark, stop=stop,
        on_event=lambda event: (said.append(event), stop_at_first_commit(event))[0],  # type: ignore[func-returns-value]
    )  # fmt: skip
    assert isinstance(said[-1], Stopped)
    assert time.monotonic() - began[0] < 20
    world.run()
    assert sum(n for _, n in world.stock().values()) == 50


def test_the_first_commit_of_a_new_app_is_folded_at_once_and_later_ones_by_the_interval(world: World) -> None:
    world.produce(("a", 5))
    stop, said = threading.Event(), list[str]()
    patience = threading.Timer(120, stop.set)
    patience.start()

    def look(event: Event) -> None:
        said.extend([event.event] if isinstance(event, BatchCommitted | Folded) else [])
        if isinstance(event, Folded):
            world.produce(("a", 1))
        elif said == ["batch", "fold", "batch"]:
            stop.set()

    job.run(world.topology(), world.settings, spark=world.spark, stop=stop, on_event=look)
    patience.cancel()
    assert said == ["batch", "fold", "batch"]
    assert world.settings.fold_seconds == 3600


def test_the_end_of_a_run_is_the_last_that_it_says_whatever_its_workers_are_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.produce(("a", 5))
    stop, ends = threading.Event(), threading.Event()
    close = loop.Folding.close

    def closes(folding: loop.Folding) -> None:
        ends.set()
        close(folding)

    def waits_for_the_end() -> None:
        stop.set()
        assert ends.wait(120)

    monkeypatch.setattr(loop.Folding, "close", closes)
    with failpoints.armed("fold.after_confirm", waits_for_the_end):
        said = world.run(stop=stop)
    assert [type(e) for e in said[-2:]] == [Folded, Stopped]


def test_a_batch_that_cannot_be_done_in_time_is_undone_by_a_stop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.produce(("a", 1), ("b", 2))
    stop = threading.Event()
    honest = loop.read_range

    def slow(*args: Any) -> Any:
        threading.Timer(0.5, stop.set).start()
        return (
            honest(*args).selectExpr("*", "java_method('java.lang.Thread', 'sleep', 60000L) AS slept").where("slept IS NULL").drop("slept")
        )

    monkeypatch.setattr(loop, "read_range", slow)
    monkeypatch.setattr(loop, "PATIENCE", 0.5)
    said = world.run(stop=stop)
    assert isinstance(said[-1], Stopped)
    assert "undone" in said[-1].reason
    monkeypatch.undo()
    world.run()
    assert world.stock() == {"a": (1, 1), "b": (2, 1)}


def test_a_record_that_breaks_every_batch_is_found_named_and_nothing_before_it_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.produce(*(("a", i) for i in range(21)))

    def breaking(honest: Read) -> Read:
        return lambda *args: honest(*args).selectExpr(
            "topic", "partition", "offset", "timestamp", "key",
            "IF(offset = 13, CAST(raise_error('no such luck') AS BINARY), value) AS value",
            "headers",
        )  # fmt: skip

    for name in ("read_range", "read_alone"):
        monkeypatch.setattr(loop, name, breaking(getattr(loop, name)))
    with pytest.raises(RecordFailed, match=r"offset 13 .*no such luck") as caught:
        world.run()
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == (world.moves, 1, 13)
    assert "test_job.py" in caught.value.location
    assert isinstance(world.events[-1], Failed)
    assert world.events[-1].offset == 13
    assert errors.exit_code(caught.value) == 1
    assert world.stock() == {"a": (sum(range(13)), 13)}
    monkeypatch.undo()
    world.run()
    assert world.stock() == {"a": (sum(range(21)), 21)}


def test_a_record_stamped_in_nanoseconds_goes_to_quarantine_or_by_its_own_event_time_and_stops_no_app(world: World) -> None:
    """Spark's Kafka source fails at such a timestamp, before anything is made of the record."""
    name = f"stamped{world.suffix}"
    world.admin.create_topic(name, 1, {"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    for stamp in (1_709_287_200_000, 1_709_287_200_000_000_000, 1_709_287_201_000):
        world._producer.produce(name, json.dumps({"at": "2024-03-01T10:00:00Z"}), "a", timestamp=stamp)
    world._producer.flush(20)
    for app_name, options in (("plain", {}), ("by_field", {"timestamp": "at"}), ("archived", {"archive": True})):
        app = wt.App(f"{app_name}{world.suffix}")
        records = app.topic(name, key="k STRING", value="at TIMESTAMP", **options).stream()  # type: ignore[arg-type]
        records.group_by_key().agg(n=wt.count()).materialized_as("counts")
        topology = app.topology()
        job.run(topology, world.settings, available_now=True, spark=world.spark)
        reader = Reader(world.spark, world.settings.warehouse_uri, topology.app, topology.tables)
        refused = [(row["offset"], row["reason"]) for row in reader.quarantine().select("offset", "reason").collect()]
        assert refused == ([] if "timestamp" in options else [(1, UNTIMED)])
        assert [row["n"] for row in reader.read("counts").collect()] == [3 - len(refused)]
    assert [record.offset for record in read_records(world.cluster, {(name, 0): 0}, {(name, 0): 3})] == [0, 1, 2]


def test_what_passes_is_blamed_on_no_record(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.produce(("a", 1))
    honest, failed = loop.read_range, list[str]()

    def failing(*args: Any) -> Any:
        failed.append("once")
        return honest(*args).where("raise_error('a moment of weakness') IS NULL")

    monkeypatch.setattr(loop, "read_range", failing)
    world.run()
    assert len(failed) == 1
    assert world.stock() == {"a": (1, 1)}


def test_a_second_run_takes_over_and_the_first_ends_as_fenced(world: World) -> None:
    world.produce(("a", 1))
    committed, go_on = threading.Event(), threading.Event()
    caught: list[BaseException] = []

    def first() -> None:
        def listen(event: Event) -> None:
            if isinstance(event, BatchCommitted):
                committed.set()
                go_on.wait(120)

        try:
            job.run(world.topology(), world.settings, spark=world.spark.newSession(), on_event=listen)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert committed.wait(120)
    world.produce(("a", 2))
    world.run()
    world.produce(("a", 3))
    go_on.set()
    thread.join(120)
    assert [type(error) for error in caught] == [Fenced]
    assert errors.exit_code(caught[0]) == 3
    assert world.stock() == {"a": (3, 2)}, "the first one's last batch left nothing behind"


@pytest.mark.parametrize(
    ("change", "told", "behind"),
    [
        pytest.param(lambda w: w.admin.delete_topic(w.moves), "was deleted", None, marks=pytest.mark.slow),
        (lambda w: (w.admin.delete_topic(w.moves), w.admin.create_topic(w.moves, 1)), "was re-created", None),
        pytest.param(lambda w: w.admin.add_partitions(w.moves, 3), "has 3 partitions, it had 2", 0, marks=pytest.mark.slow),
        (lambda w: (w.produce(("a", 2), ("a", 3)), w.admin.delete_records({(w.moves, 1): 3})), "1 offsets? (are|is) lost|was truncated", 2),
    ],
    ids=["deleted", "re-created", "partitions added", "truncated past us"],
)
def test_a_topic_that_changed_stops_the_run_and_says_what_is_lost(
    world: World, change: Callable[[World], object], told: str, behind: int | None
) -> None:
    world.produce(("a", 1), ("b", 1))
    world.run()
    change(world)
    with pytest.raises((TopicChanged, KafkaError), match=told) as caught:
        world.run()
    assert isinstance(caught.value, TopicChanged)
    assert errors.exit_code(caught.value) == 4
    assert world.stock() == {"a": (1, 1), "b": (1, 1)}, "the tables stand as they were"
    topology = world.topology()
    status = Reader(world.spark, world.settings.warehouse_uri, topology.app, topology.tables).status()
    assert lag_of(world.settings, topology, status) == {world.moves: behind}, "and that's no cluster that doesn't answer"


def test_a_topic_that_is_made_anew_while_a_batch_is_about_to_be_read_is_not_taken_for_the_one_before(world: World) -> None:
    world.produce(("a", 1), ("b", 1))
    world.run()
    world.produce(("a", 2))

    def make_anew() -> None:
        world.admin.delete_topic(world.moves)
        world.admin.create_topic(world.moves, 2)
        world.produce(("a", 10), ("a", 20), ("a", 30), ("b", 40))

    with failpoints.armed("job.batch.begin", make_anew), pytest.raises(TopicChanged, match="was re-created"):
        world.run()
    assert world.stock() == {"a": (1, 1), "b": (1, 1)}, "nothing of the new one is counted under the old one's id"
