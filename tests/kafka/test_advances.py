"""Idle partitions on a real broker: a running app lets them go, what comes to them later is late, and a replay does the same."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

import watertable as wt
from tests.kafka.test_rewind import wait
from watertable.acts import rewind
from watertable.acts.rewind import Target
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.runtime import job
from watertable.settings import Settings
from watertable.store.writer import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
TOPIC = "naps"


def shop() -> Topology:
    """Show the sums of each ten seconds once they are final."""
    app = wt.App("nap_shop")
    naps = app.topic(TOPIC, key="k STRING", value="n INT, at TIMESTAMP", timestamp="at", idle_after=wt.milliseconds(500)).stream()
    naps.group_by_key().windowed_by(wt.tumbling(seconds=10), emit="on_close").agg(n=wt.sum("n")).materialized_as("final")
    return app.topology()


@pytest.mark.slow
def test_an_idle_partition_is_let_go_and_a_replay_closes_the_same_windows(spark: SparkSession, broker: Cluster, tmp_path: Path) -> None:
    admin, producer, topology = Admin(broker), Producer(broker.client_config()), shop()
    settings = Settings.load(tmp_path, kafka=broker.bootstrap, fold_seconds=3600.0, trigger_seconds=0.0)
    admin.create_topic(TOPIC, 2)
    store = Store.open(spark, settings.warehouse_uri, topology.app, topology.kept)

    def produce(*naps: tuple[int, str, int, int]) -> None:
        for partition, key, n, second in naps:
            at = (EPOCH + wt.seconds(second)).isoformat()
            producer.produce(TOPIC, json.dumps({"n": n, "at": at}), key, partition=partition)
        producer.flush(20)

    def final() -> list[tuple[str, int]]:
        return sorted((row["k"], row["n"]) for row in store.reader.read("final").collect())

    def late() -> int:
        head = store.head()
        rows = store.changelog.rows(store.changelog.snapshot(), f"c.kind = 'batch' AND {head.lineage.where(0, head.position.seq)}")
        return sum(row.counters.get("dropped:suppress:late", 0) for row in rows)

    produce((0, "a", 1, 3), (0, "a", 1, 25))
    stop = threading.Event()
    live = threading.Thread(target=job.run, args=(topology, settings), kwargs={"stop": stop, "spark": spark}, daemon=True)
    live.start()
    try:
        wait(lambda: store.head().last)
        wait(lambda: final() == [("a", 1)])  # the other partition is empty
        produce((1, "b", 5, 9), (1, "b", 7, 21))
        wait(lambda: (last := store.head().last) and last.next[TOPIC, 1] == 2)
        produce((0, "a", 1, 60))
        wait(lambda: final() == [("a", 1), ("a", 1), ("b", 7)])
    finally:
        stop.set()
        live.join(60)
    assert late() == 1
    before = store.head()
    assert before.last is not None
    ids = before.last.topic_ids
    assert [(a.partition, a.before, a.stream_time) for a in sorted(store.changelog.advances(ids), key=lambda a: a.before)] == [
        (1, 0, EPOCH + wt.seconds(25)), (1, 2, EPOCH + wt.seconds(60))
    ]  # fmt: skip
    assert store.changelog.advances({TOPIC: "another"}) == ()

    for records in (1, 1000):
        plan = rewind.plan(store, topology, admin, Target.parse(to="earliest"))
        rewind.apply(store, plan, topology.fingerprint, admin)
        job.run(topology, settings.model_copy(update={"batch_records": records}), available_now=True, spark=spark)
        assert final() == [("a", 1), ("a", 1), ("b", 7)]
        assert late() == 1
        last = store.head().last
        assert last is not None
        assert (last.next, last.stream_times) == (before.last.next, before.last.stream_times)
