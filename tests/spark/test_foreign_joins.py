"""Foreign-key joins in Spark and in the store: what the oracle says, for any cuts, folded and not."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, run_interpreter, tiny
from tests.spark.ledger import both_folds
from tests.spark.runs import Twin, cut, text
from watertable import failpoints
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.store import fold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TOPICS = ("orders", "customers")
PARTITIONS = [(topic, number) for topic in TOPICS for number in range(2)]


def shop() -> Topology:
    """Join orders with their customers, and customers with their bosses; stream, filter and group what comes of it."""
    app = wt.App("shop")
    orders = app.topic("orders", key="id STRING, line INT", value="item STRING, customer STRING").table().materialized_as("orders")
    customers = app.topic("customers", key="c STRING", value="name STRING, boss STRING").table().materialized_as("customers")
    inner = orders.join(customers.filter("name <> 'C'").materialized_as("known"), on="customer", item="left.item", who="right.name")
    inner.materialized_as("inner").to_stream().to("told")
    left = orders.left_join(customers, on="customer", item="left.item", who="right.name", lone="right IS NULL")
    left.filter("item <> 'pie'").materialized_as("left").group_by("who").agg(n=wt.count(), items=wt.collect_list("item")).materialized_as(
        "baskets"
    )
    bosses = customers.left_join(customers, on="boss", name="left.name", boss="right.name").materialized_as("bosses")
    bosses.to_stream().to("promoted")
    orders.join(bosses, on="customer", boss="right.boss").materialized_as("through")
    return app.topology()


def batches(seed: int) -> list[list[Record]]:
    """Write records of few keys, deletions among them, in the order of time but for some, and cut them anywhere."""
    rng = random.Random(seed)
    records, offsets = [], dict.fromkeys(PARTITIONS, 0)
    for number in range(36):
        topic = rng.choice(TOPICS)
        key = rng.choice(["c1", "c2", "c3"]) if topic == "customers" else json.dumps({"id": rng.choice("ab"), "line": rng.choice([1, 2])})
        source = (topic, sum(key.encode()) % 2)
        named = rng.choice(["c1", "c2", "c3", None])
        value = {"item": rng.choice(["tea", "jam", "pie"]), "customer": named, "name": rng.choice("ABC"), "boss": named}
        at = EPOCH + timedelta(seconds=100 + number + rng.randint(-8, 2))
        data = None if rng.random() < 0.2 else json.dumps(value).encode()
        records.append(Record(*source, offsets[source], at, key.encode(), data))
        offsets[source] += 1
    return cut(records, rng, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_compiler_joins_what_the_interpreter_does_and_tells_the_same_of_it(spark: SparkSession, seed: int) -> None:
    given, topology = batches(seed), shop()
    wanted = run_interpreter(topology, given)
    assert all(wanted.outputs[name] for name in ("told", "promoted"))
    assert wanted.differences(CompilerRun(tiny(spark), topology).run(given)) == []


@pytest.mark.slow
@both_folds
def test_joined_rows_in_the_store_are_the_oracles_read_fresh_folded_and_by_any_reader(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    twin = Twin(tiny(spark), tmp_path, shop(), PARTITIONS)
    store = twin.store
    before: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, records in enumerate(batches(5)):
        twin.both(records)
        if number == 3:
            with failpoints.armed("fold.before_merge", "raise"), pytest.raises(failpoints.FailpointHit):
                store.folder.fold_all()
        twin.agree()
        if number == 2:  # so that the tail is of two commits
            before = twin.engine.tables["inner"]
        else:
            store.folder.fold_all()
            twin.agree(plain=True)
    then = [row.asDict(recursive=True) for row in store.reader.read("inner", "shop@1.3").collect()]
    assert sorted(map(text, then)) == sorted(map(text, before.values()))
    changed = {tuple(row["key"]): row["new"] and row["new"]["who"] for row in store.reader.changes("inner", "shop@1.3").collect()}
    old, new = ({key: (row["item"], row["who"]) for key, row in rows.items()} for rows in (before, twin.engine.tables["inner"]))
    assert changed == {key: new[key][1] if key in new else None for key in {*old, *new} if old.get(key) != new.get(key)}
