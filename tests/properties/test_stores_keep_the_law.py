"""Random plans on a real store: killed between commits, folded, rewound, replayed in other batches, and in others' hands, a table stays."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.properties.engines import tiny
from tests.properties.strategies import Case, covering, drawn
from tests.spark.hands import by_hand, read_elsewhere
from tests.spark.runs import Twin
from watertable.plan.plan import Topology
from watertable.plan.purity import Purity, purity_of
from watertable.records import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLANS = int(os.environ.get("WATERTABLE_STORES", "1"))
SEED = int(os.environ.get("WATERTABLE_SEED", "20240302"))


def by_arrival(topology: Topology) -> bool:
    """Tell whether anything of an app depends on its batches, so that a replay must have the same ones."""
    return any(purity_of(root.node) is Purity.ARRIVAL for root in (*topology.tables, *topology.sinks))


def live(twin: Twin, batches: Sequence[Sequence[Record]], rng: random.Random) -> list[str]:
    """Run an app through crashes, folds, what others do to its tables, and a rewind; say what differs from the oracle after each part.

    Who reads does so in a session of anywhere.
    """
    differences = []

    def compare(when: str) -> None:
        found, wanted = read_elsewhere(twin, rng), twin.engine.tables
        differences.extend(f"{when}: {name}:\n    {wanted[name]}\n    {found[name]}" for name in wanted if found[name] != wanted[name])

    for number, batch in enumerate(batches):
        if not number or rng.random() < 0.4:  # what is written before the commit is of nobody
            twin.read(batch, dies=True)
            twin.start()
        twin.both(batch)
        if rng.random() < 0.5:
            twin.store.folder.fold_all()
        if rng.random() < 0.3:
            by_hand(twin, rng)
        if rng.random() < 0.3:
            twin.start()
        if number == len(batches) // 2 and rng.random() < 0.5:
            compare(f"after batch {number + 1}")
    compare("at the end")
    to = rng.randrange(len(batches))
    twin.rewind(to)
    left = list(batches[to:])
    for again in left if by_arrival(twin.topology) else [[record for batch in left for record in batch]]:
        twin.read(again)
    compare(f"after a rewind to commit {to}")
    twin.store.folder.fold_all()
    compare("folded after it")
    return differences


def judge(spark: SparkSession, case: Case, warehouse: Path, seed: int) -> list[str]:
    partitions = sorted({(r.topic, r.partition) for r in case.records} | {(t.name, 0) for t in case.topology.topics})
    whole = [(topic, n) for topic in {t for t, _ in partitions} for n in range(1 + max(p for t, p in partitions if t == topic))]
    return live(Twin(spark, warehouse, case.topology, whole), case.batches, random.Random(seed))


def hold(spark: SparkSession, plans: Sequence[Case], warehouses: Path) -> None:
    session = tiny(spark)
    for number, case in enumerate(plans):
        differences = judge(session, case, warehouses / str(number), number)
        assert not differences, "\n".join([f"plan {number}, oracle, then store:", *differences, repr(case)])


@pytest.mark.spark
def test_a_table_is_the_same_after_crashes_folds_and_a_rewind(spark: SparkSession, tmp_path: Path, say: Callable[[str], None]) -> None:
    plans = drawn(PLANS, SEED)
    hold(spark, plans, tmp_path)
    say(f"{len(plans)} random plans on a store (seed {SEED}): the same after crashes, folds and rewinds")


@pytest.mark.slow
@pytest.mark.spark
def test_every_operator_window_and_aggregate_is_the_same_after_crashes_folds_and_a_rewind(
    spark: SparkSession, tmp_path: Path, say: Callable[[str], None]
) -> None:
    plans = covering(drawn(300, SEED))
    hold(spark, plans, tmp_path)
    say(f"{len(plans)} random plans with all operators on a store (seed {SEED}): the same after crashes, folds and rewinds")
