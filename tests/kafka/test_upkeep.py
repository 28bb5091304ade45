"""Upkeep by hand and at the end of bounded runs: it comes often enough, and takes nothing that somebody still needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests import buckets
from tests.kafka.conftest import Project
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable.project import load_apps
from watertable.runtime import loop, workers
from watertable.settings import Settings
from watertable.store.commits import Position
from watertable.store.reader import Reader
from watertable.store.upkeep import Upkeep

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
APP = """
import watertable as wt
app = wt.App("till")
moves = app.topic("{moves}", key="sku STRING", value="qty BIGINT").stream()
stock = moves.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
stock.to_stream().to("{told}")
"""


class Till:
    """Hold the project, the topic that it reads and the one that it writes; a batch is one record, and the horizon is no time at all."""

    def __init__(self, project: Project, cluster: Cluster, moves: str, told: str) -> None:
        self.project, self.cluster, self.moves, self.told = project, cluster, moves, told
        self.run, self.said = project.run, project.said
        self._producer = Producer(cluster.client_config())
        admin, place = Admin(cluster), "watertable.till.outbox"
        admin.delete_topic(place) if admin.describe([place]) else None  # of another test's warehouse
        with (project.home / "pyproject.toml").open("a") as settings:
            settings.write("batch_records = 1\nhorizon_days = 0.000001\n")
        project.write(APP.format(moves=moves, told=told))

    def produce(self, *amounts: int) -> None:
        for qty in amounts:
            self._producer.produce(self.moves, json.dumps({"qty": qty}), "a")
        self._producer.flush(20)

    def kept(self) -> list[int]:
        """List the seqs of the batches that the changelog holds."""
        settings = Settings.load(self.project.home)
        topology = load_apps(settings).app("till").topology
        changelog = Reader(self.project.spark, settings.warehouse_uri, topology.app, topology.tables).changelog
        return sorted(info.seq for info in changelog.rows(changelog.snapshot(), "c.kind = 'batch'"))

    def published(self) -> list[int]:
        """List what readers of committed records see."""
        consumer, found = Consumer(self.cluster.client_config() | {"group.id": "t", "enable.partition.eof": "true"}), list[int]()
        consumer.assign([TopicPartition(self.told, 0, 0)])
        while (message := consumer.poll(20)) is not None and not message.error():
            found.append(json.loads(message.value())["qty"])
        consumer.close()
        return found


@pytest.fixture
def till(project: Project, broker: Cluster, topic: Callable[..., str]) -> Till:
    return Till(project, broker, topic("moves", partitions=1), topic("told", partitions=1))


def test_upkeep_by_another_process_leaves_what_is_yet_to_be_published(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    buckets.resize(2, monkeypatch.setattr)
    monkeypatch.setattr(Upkeep, "optimize", lambda _: None)  # these take long, and are none of what is asked here
    monkeypatch.setattr(Upkeep, "vacuum", lambda _: None)

    def commit_unpublished(*amounts: int) -> None:
        till.produce(*amounts)
        with monkeypatch.context() as silent:
            silent.setattr(workers.Courier, "deliver", lambda *_: None)
            silent.setattr(workers.Courier, "finish", lambda *_: None)
            till.run()

    commit_unpublished(1, 1)
    assert "till is tidy" in till.said("maintain", "till")
    assert till.kept() == [1, 2], "nothing was ever published"
    till.run()
    commit_unpublished(1, 1, 1)
    till.said("maintain", "till")
    assert till.kept() == [2, 3, 4, 5], "what comes after the second isn't published"
    till.run()
    assert till.published() == [1, 2, 3, 4, 5]
    till.said("maintain", "till")
    assert till.kept() == [4, 5]


@pytest.mark.slow
def test_bounded_runs_tidy_up_now_and_then_after_all_is_published(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Position] = []

    def maintain(upkeep: Upkeep, consumers: Iterable[Position] = (), *, vacuum: bool = True) -> int:
        seen.extend(consumers)
        return 0

    monkeypatch.setattr(Upkeep, "maintain", maintain)
    monkeypatch.setattr(loop, "TIDIED", 3)
    for amounts, tidied in (((1, 1), 0), ((1,), 1), ((1, 1), 1), ((), 1), ((1, 1), 2)):
        till.produce(*amounts)
        till.run()
        assert len(seen) == tidied
    assert seen == [Position("till", 1, 2), Position("till", 1, 6)], "all before is published by then"


def test_tables_are_folded_by_hand(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.Folding, "finish", lambda *_: None)
    till.produce(1, 1)
    till.run()
    assert "✓ stock folded up to commit 2" in till.said("fold", "till")
    assert "nothing to fold" in till.said("fold", "till")
