"""Keep what Kafka deletes: a topic's archive holds each record once, and a replay from it makes every table what it was."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

import watertable as wt
from tests.kafka.test_job import World
from watertable import failpoints
from watertable.acts import rewind
from watertable.acts.plans import RewindPlan, source_text
from watertable.acts.rewind import Target
from watertable.errors import RewindRefused, StoreError, TopicChanged
from watertable.kafka.config import Cluster
from watertable.kafka.reading import read_records
from watertable.plan.plan import Topology
from watertable.runtime import job
from watertable.store.archive import Archives
from watertable.store.writer import Store
from watertable.tools.past import Past

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


class Keeping(World):
    """Hold apps that archive what they read."""

    def topology(self, app: str = "shop", *, archive: bool = True) -> Topology:
        shop = wt.App(f"{app}{self.suffix}")
        moves = shop.topic(self.moves, key="sku STRING", value="qty BIGINT", archive=archive).stream()
        moves.group_by_key().agg(qty=wt.sum("qty"), n=wt.count(), last=wt.last("qty")).materialized_as("stock")
        return shop.topology()

    def go(self, topology: Topology | None = None) -> None:
        job.run(topology or self.topology(), self.settings, available_now=True, spark=self.spark)

    def store(self, topology: Topology | None = None) -> Store:
        topology = topology or self.topology()
        return Store(self.spark, self.settings.warehouse_uri, topology.app, topology.kept, archived=(self.moves,))

    def rows(self, topology: Topology | None = None) -> list[tuple[object, ...]]:
        return sorted(tuple(row) for row in self.store(topology).reader.read("stock").collect())

    def archived(self) -> list[tuple[int, int]]:
        """List partition and offset of all that the archive holds."""
        path = f"{self.settings.warehouse_uri}/topics/{self.moves}"
        return sorted((r[0], r[1]) for r in self.spark.read.format("delta").load(path).select("partition", "offset").collect())

    def in_kafka(self) -> list[tuple[int, int]]:
        partitions = self.admin.partitions([self.moves])
        first, last = self.admin.earliest(partitions), self.admin.latest(partitions)
        return sorted((p[1], offset) for p in partitions for offset in range(first[p], last[p]))

    def lose(self, *before: int) -> None:
        self.admin.delete_records({(self.moves, p): offset for p, offset in enumerate(before)})

    def plan(self, to: str = "earliest", **options: object) -> RewindPlan:
        target = Target.parse(to=to)
        return rewind.plan(self.store(), self.topology(), self.admin, target, **options)  # type: ignore[arg-type]

    def rewind(self, to: str = "earliest", **options: object) -> RewindPlan:
        plan = self.plan(to, **options)
        rewind.apply(self.store(), plan, self.topology().fingerprint, self.admin)
        return plan


@pytest.fixture
def world(spark: SparkSession, broker: Cluster, tmp_path: Path) -> Keeping:
    return Keeping(spark, broker, tmp_path)


@pytest.mark.slow
def test_after_kafka_has_deleted_its_segments_a_rewind_to_earliest_makes_the_same_table_from_the_archive(world: Keeping) -> None:
    world.produce(("a", 5), ("b", -1), ("a", -7), ("b", "{broken"), ("c", 2))
    world.go()
    world.produce(("a", 1), ("b", 4))
    world.go()
    before, kept = world.rows(), world.in_kafka()
    assert world.archived() == kept
    world.lose(2, 3)
    world.produce(("a", 9), ("d", 8))
    world.lose(2, 4)  # of partition 1 all that the archive has, and no more
    plan = world.plan()
    assert [(r.partition, r.lost, r.records, r.of_archive, source_text(r)) for r in plan.ranges] == [
        (0, 0, 3, 3, "the archive"), (1, 0, 4, 4, "the archive"),
    ]  # fmt: skip
    assert plan.refusals == ()
    world.rewind()
    world.go()
    after = {row[0]: row for row in world.rows()}
    assert [after[row[0]] for row in before if row[0] not in "ad"] == [row for row in before if row[0] not in "ad"]
    assert (after["a"], after["d"]) == (("a", 8, 4, 9), ("d", 8, 1, 8))
    assert world.archived() == sorted({*kept, *world.in_kafka()}), "each record once, those that Kafka has deleted too"
    again = world.rows()
    world.rewind("1")
    world.go()
    assert world.rows() == again


@pytest.mark.slow
def test_an_archive_is_one_for_all_apps_and_whoever_is_late_finds_what_it_wanted(world: Keeping) -> None:
    world.produce(("a", 5), ("b", -1), ("c", 2))
    other = world.topology("other")
    with failpoints.armed("archive.after_write", lambda: world.go(other)):  # quicker than the one that is about to commit
        world.go()
    assert world.rows() == world.rows(other) == [("a", 5, 1, 5), ("b", -1, 1, -1), ("c", 2, 1, 2)]
    assert world.archived() == world.in_kafka()
    world.lose(1, 2)
    third = world.topology("third")
    world.go(third)
    assert world.rows(third) == world.rows(), "an app that comes late begins where the archive does"
    for archive in Archives(world.spark, world.settings.warehouse_uri, (world.moves,)):
        archive.optimize()
        archive.vacuum()
    world.produce(("b", 6))
    world.go(third)
    assert ("b", 5, 2, 6) in world.rows(third)
    assert Counter(world.archived()).most_common(1)[0][1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("does", ["RESTORE TABLE {0} TO VERSION AS OF {1}", "INSERT INTO {0} SELECT * FROM {0}"])
def test_an_archive_whose_rows_others_have_changed_is_refused_until_it_is_put_back(world: Keeping, does: str) -> None:
    for sold in (("a", 5), ("b", -1)), (("a", 6), ("c", 3)):
        world.produce(*sold)
        world.go()
    before, path = world.rows(), f"{world.settings.warehouse_uri}/topics/{world.moves}"
    version = DeltaTable(path.removeprefix("file:")).version()
    world.spark.sql(does.format(f"delta.`{path}`", version - 1))
    world.produce(("a", 1))
    refused = rf"{world.moves}: version {version + 1} \({'RESTORE' if 'RESTORE' in does else 'WRITE'}\).*VERSION AS OF {version}`"
    for use in (world.plan, world.go):
        with pytest.raises(StoreError, match=refused):
            use()
    assert world.rows() == before
    world.spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")
    world.go()
    again = world.rows()
    world.rewind()
    world.go()
    assert world.rows() == again == [("a", 12, 3, 1), *before[1:]]
    assert world.archived() == world.in_kafka()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["archive.before_write", "archive.after_write", "archive.after_commit", "store.commit.before_write"])
def test_a_run_that_dies_around_its_archive_leaves_no_gap_and_no_double(world: Keeping, point: str) -> None:
    world.produce(("a", 5), ("b", -1))
    world.go()
    world.produce(("a", 6), ("b", 2), ("c", 3))
    with failpoints.armed(point, "raise"), pytest.raises(failpoints.FailpointHit):
        world.go()
    world.produce(("a", 7))
    if point in ("archive.after_commit", "store.commit.before_write"):
        world.lose(2, 3)  # the app hasn't committed them, the archive has them
    world.go()
    assert world.rows() == [("a", 18, 3, 7), ("b", 1, 2, 2), ("c", 3, 1, 3)]
    assert Counter(world.archived()) == Counter([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)])


@pytest.mark.slow
def test_what_neither_kafka_nor_the_archive_has_is_refused_and_accepted_as_a_gap(world: Keeping) -> None:
    world.produce(("a", 5), ("a", 6), ("b", 1))
    world.go()
    world.produce(("a", 7), ("a", 8), ("b", 2))
    world.lose(1, 3)  # a/2 was never read
    with pytest.raises(TopicChanged, match="starts at offset 3"):
        world.go()
    assert [(r.partition, r.lost, r.of_archive) for r in world.plan().ranges] == [(0, 0, 1), (1, 3, 0)], "nothing is read over a gap"
    plan = world.plan("1")
    with pytest.raises(RewindRefused, match=r"Kafka has deleted offsets 2 to 2"):
        rewind.apply(world.store(), plan, world.topology().fingerprint, world.admin)
    world.rewind("1", accept_loss=[world.moves])
    world.go()
    assert world.rows() == [("a", 19, 3, 8), ("b", 3, 2, 2)]
    assert world.archived() == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 3)]


@pytest.mark.slow
def test_headers_keys_and_values_are_kept_as_they_are_and_a_topic_that_is_made_anew_is_another(world: Keeping) -> None:
    producer = Producer(world.cluster.client_config())
    producer.produce(world.moves, json.dumps({"qty": 1}), "a", headers=[("from", b"\x00\xff")], partition=0, timestamp=1_300_000_000_123)
    producer.produce(world.moves, None, None, partition=0)
    producer.flush(20)
    world.go()
    path = f"{world.settings.warehouse_uri}/topics/{world.moves}"
    first = "key", "value", "unix_millis(timestamp) AS at", "headers"
    rows = [tuple(r) for r in world.spark.read.format("delta").load(path).orderBy("offset").selectExpr(*first).collect()]
    assert rows[0][:3] == (b"a", b'{"qty": 1}', 1_300_000_000_123)
    assert [(h["key"], bytes(h["value"])) for h in rows[0][3]] == [("from", b"\x00\xff")]
    assert rows[1][:2] == (None, None)
    world.admin.delete_topic(world.moves)
    world.admin.create_topic(world.moves, 2)
    world.produce(("a", 3))
    world.rewind(accept_loss=[world.moves])
    world.go()
    assert world.rows() == [("a", 3, 1, 3)]
    assert len(world.archived()) == 3


def test_headers_are_the_same_columns_from_kafka_and_from_the_archive(world: Keeping) -> None:
    app = wt.App(f"traced{world.suffix}")
    moves = app.topic(world.moves, key="sku STRING", value="qty BIGINT", headers={"trace-id": "trace STRING"}, archive=True)
    moves.stream().group_by("trace").agg(qty=wt.sum("qty")).materialized_as("stock")
    topology, producer = app.topology(), Producer(world.cluster.client_config())
    for qty, headers in enumerate(([("trace-id", b"t1")], [("trace-id", b"t1"), ("trace-id", b"t2")], [], [("trace-id", b"\xff")])):
        producer.produce(world.moves, json.dumps({"qty": 10**qty}), "a", headers=headers, partition=0)
    producer.flush(20)
    world.go(topology)
    assert world.rows(topology) == [("t1", 1), ("t2", 10)]
    place = {(world.moves, 0): 0, (world.moves, 1): 0}
    ends = {(world.moves, 0): 4, (world.moves, 1): 0}
    archived = Past(world.cluster, [world.moves], Archives(world.spark, world.settings.warehouse_uri, (world.moves,)))
    kept, wanted = list(archived.records(place, ends)), list(read_records(world.cluster, place, ends))
    assert [r.headers for r in wanted] == [(("trace-id", b"t1"),), (("trace-id", b"t1"), ("trace-id", b"t2")), (), (("trace-id", b"\xff"),)]
    assert kept == wanted
    world.lose(4, 0)
    store = world.store(topology)
    rewind.apply(store, rewind.plan(store, topology, world.admin, Target.parse(to="earliest")), topology.fingerprint, world.admin)
    world.go(topology)
    assert world.rows(topology) == [("t1", 1), ("t2", 10)]
