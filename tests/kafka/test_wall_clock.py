"""The wall clock on a real broker: a running app records it where something is due, and a replay calls the same at the same places."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

import watertable as wt
from tests.kafka.test_rewind import wait
from tests.unit.test_wall_clock import at, baskets
from watertable.acts import rewind
from watertable.acts.rewind import Target
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable.processing import MOMENT
from watertable.runtime import job
from watertable.settings import Settings
from watertable.store.commits import CommitInfo
from watertable.store.writer import Store
from watertable.tools import keytext
from watertable.tools.explain import explain
from watertable.tools.past import Past
from watertable_platform.cli import main as cli

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
Told = dict[str, list[str]]


class Shop:
    """Hold an app whose punctuators wait for a clock that the test sets."""

    def __init__(self, spark: SparkSession, broker: Cluster, home: Path, topic: str) -> None:
        app, told = baskets("wall_shop", topic)
        told.group_by_key().agg(all=wt.collect_list("what")).materialized_as("told")
        self.spark, self.topic, self.topology, self.clock = spark, topic, app.topology(), at(0)
        self.settings = Settings.load(home, kafka=broker.bootstrap, fold_seconds=3600.0, trigger_seconds=0.0, punctuate_seconds=0.0)
        self.admin, self.producer = Admin(broker), Producer(broker.client_config())
        self.admin.create_topic(topic, 2)
        self.store = Store.open(spark, self.settings.warehouse_uri, self.topology.app, self.topology.kept)

    def produce(self, partition: int, who: str, what: str, second: int) -> None:
        self.producer.produce(self.topic, f'{{"what": "{what}"}}', who, partition=partition, timestamp=second * 1000)
        self.producer.flush(20)

    def told(self) -> Told:
        return {row["who"]: row["all"] for row in self.store.reader.read("told").collect()}

    @property
    def last(self) -> CommitInfo:
        last = self.store.head().last
        assert last is not None
        return last

    def wait_for(self, records: int) -> None:
        wait(lambda: (last := self.store.head().last) and sum(last.next.values()) == records)

    @contextmanager
    def living(self) -> Iterator[None]:
        stop = threading.Event()
        options = {"stop": stop, "spark": self.spark, "clock": lambda: self.clock}
        live = threading.Thread(target=job.run, args=(self.topology, self.settings), kwargs=options, daemon=True)
        live.start()
        try:
            yield
        finally:
            stop.set()
            live.join(60)

    def rewind(self) -> None:
        plan = rewind.plan(self.store, self.topology, self.admin, Target.parse(to="earliest"))
        rewind.apply(self.store, plan, self.topology.fingerprint, self.admin)

    def replay(self, records: int) -> None:
        self.rewind()
        job.run(self.topology, self.settings.model_copy(update={"batch_records": records}), available_now=True, spark=self.spark)

    def clocks(self) -> list[tuple[int, int, datetime | None, datetime]]:
        made = self.store.changelog.advances(self.last.topic_ids)
        return [(a.partition, a.before, a.clock, a.stream_time) for a in sorted(made, key=lambda a: (a.partition, a.stream_time))]


@pytest.mark.slow
def test_a_running_app_calls_what_is_due_by_the_wall_clock_and_a_replay_does_the_same(
    spark: SparkSession, broker: Cluster, tmp_path: Path
) -> None:
    shop = Shop(spark, broker, tmp_path, "wall_views")
    shop.produce(0, "ann", "tea", 100)
    with shop.living():
        shop.wait_for(1)
        shop.clock = at(112)  # nothing comes, and time goes by
        wait(lambda: shop.told() == {"ann": ["remind at 01:50, 01:40"]})
    assert shop.clocks() == [(0, 1, at(112), at(100) + MOMENT)]
    past = Past(broker, [shop.topic])
    recorded = cli._recorded(shop.settings, shop.topology, spark)
    told = shop.topology.table("told")
    (called,) = explain(shop.topology, told, keytext.read(told, ["ann"]), past.records(past.first, past.ends), recorded).steps
    assert (called.offset, called.timestamp, called.row) == (None, at(110), {"all": ["remind at 01:50, 01:40"]})
    before = shop.last
    shop.replay(1000)
    assert (shop.told(), shop.last.stream_times) == ({"ann": ["remind at 01:50, 01:40"]}, before.stream_times)


@pytest.mark.slow
def test_only_where_no_epoch_has_read_before_a_run_records_clocks_of_its_own(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    shop = Shop(spark, broker, tmp_path, "more_wall_views")
    shop.produce(0, "ann", "tea", 100)
    shop.produce(1, "bob", "tea", 300)
    with shop.living():
        shop.wait_for(2)
        shop.clock = at(200)  # of what is called then, each schedules the next, for a time that is over
        wait(lambda: shop.told() == {"ann": ["remind at 01:50, 01:40", "give up at 01:55", "forget"]})
        shop.produce(0, "eve", "tea", 195)
        shop.produce(1, "bob", "tea", 395)
        shop.wait_for(4)
        shop.clock = at(400)
        wait(lambda: shop.told().get("eve") == ["remind at 03:25, 03:15", "give up at 03:30", "forget"])
    before, head = shop.told(), shop.last
    assert set(before) == {"ann", "eve"}, "bob's time was put off"
    assert [clock[:3] for clock in shop.clocks()] == [(0, 1, at(200))] * 3 + [(0, 2, at(400))] * 3
    assert [clock[-1] for clock in shop.clocks()[:3]] == [at(100) + n * MOMENT for n in (1, 2, 3)]

    for records in (1, 1000):
        shop.replay(records)
        assert (shop.told(), shop.last.next, shop.last.stream_times) == (before, head.next, head.stream_times)

    shop.rewind()
    shop.clock = at(10_000)  # by it, all would be due much earlier than they were
    with shop.living():
        wait(lambda: shop.told() == before | {"bob": ["remind at 06:45, 06:35", "give up at 06:50", "forget"]})
