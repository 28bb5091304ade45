"""Foreign-key joins in Spark and in the store: what the oracle says, for any cuts, folded and not."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, as_frame, run_interpreter, tiny
from tests.spark.ledger import both_folds
from watertable import failpoints, fold
from watertable.changelog import CommitInfo
from watertable.compiler import Compiler
from watertable.interpreter import Interpreter
from watertable.plan import Topology
from watertable.records import Record
from watertable.store import Store
from watertable.windows import EPOCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TOPICS = ("orders", "customers")


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
    records, offsets = [], dict.fromkeys([(topic, p) for topic in TOPICS for p in range(2)], 0)
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
    cuts = sorted({0, len(records), *rng.sample(range(1, len(records)), 4)})
    return [records[a:b] for a, b in pairwise(cuts)]


@pytest.mark.parametrize("seed", range(3))
def test_the_compiler_joins_what_the_interpreter_does_and_tells_the_same_of_it(spark: SparkSession, seed: int) -> None:
    given, topology = batches(seed), shop()
    wanted = run_interpreter(topology, given)
    assert all(wanted.outputs[name] for name in ("told", "promoted"))
    assert wanted.differences(CompilerRun(tiny(spark), topology).run(given)) == []


def shown(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(row.items())) for row in rows)


@both_folds
def test_joined_rows_in_the_store_are_the_oracles_read_fresh_folded_and_by_any_reader(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    topology, session = shop(), tiny(spark)
    store = Store.open(session, str(tmp_path), "shop", topology.tables)
    writer, compiler, engine = store.start_writer(topology.fingerprint), Compiler(topology), Interpreter(topology)
    carry: dict[tuple[str, int], datetime | None] = {(topic, p): None for topic in TOPICS for p in range(2)}
    following = dict.fromkeys(carry, 0)
    before: dict[str, list[dict[str, Any]]] = {}
    for number, records in enumerate(batches(5)):
        begin = dict(following)
        for record in records:
            following[record.topic, record.partition] = record.offset + 1
        engine.read(records)
        made = compiler.batch(as_frame(session, records), carry, writer.lookup())
        carry |= {p: stats.stream_time for p, stats in made.stats.partitions.items()}
        info = CommitInfo(begin=begin, next=dict(following), stream_times=dict(carry), topic_ids={t: t for t in TOPICS})
        writer.commit(made.tables, info)
        made.close()
        if number == 3:
            with failpoints.armed("fold.before_merge", "raise"), pytest.raises(failpoints.FailpointHit):
                store.folder.fold_all()
        for folded in (False, True):
            if folded and number != 2:  # once the tail is of two commits
                store.folder.fold_all()
            for table in ("inner", "left", "baskets", "bosses", "through"):
                wanted = shown(list(engine.tables[table].values()))
                found = [row.asDict(recursive=True) for row in store.reader.read(table).collect()]
                assert shown(found) == wanted, (table, number)
                if folded and number != 2:
                    plain = polars.scan_delta(f"{store.warehouse}/shop/{table}").drop("_wt").collect().to_dicts()
                    assert shown(plain) == wanted, (table, number)
        if number == 2:
            before = {name: list(rows.values()) for name, rows in engine.tables.items()}
    assert shown([row.asDict(recursive=True) for row in store.reader.read("inner", "shop@1.3").collect()]) == shown(before["inner"])
    changed = {tuple(row["key"]): row["new"] and row["new"]["who"] for row in store.reader.changes("inner", "shop@1.3").collect()}
    old, new = ({(r["id"], r["line"]): (r["item"], r["who"]) for r in rows} for rows in (before["inner"], engine.tables["inner"].values()))
    assert changed == {key: new[key][1] if key in new else None for key in {*old, *new} if old.get(key) != new.get(key)}
