"""Joins in the store: batch by batch, folded and not, read fresh and as any Delta reader would, they are what the oracle says."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
import pytest

import watertable as wt
from tests.properties.engines import as_frame, tiny
from tests.spark.ledger import both_folds
from watertable import fold
from watertable.changelog import CommitInfo
from watertable.compiler import Compiler
from watertable.interpreter import Interpreter
from watertable.plan import Topology
from watertable.reader import base_name, forgets, hides
from watertable.records import Record
from watertable.store import Store
from watertable.windows import EPOCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def shop() -> Topology:
    """Join a table of a topic with a sum over another topic, thrice, and with itself; columns have names that the store uses, too."""
    app = wt.App("shop")
    items = app.topic("items", key="key STRING", value="name STRING").table()
    sold = app.topic("sales", key="k STRING", value="qty INT").stream().group_by_key().agg(n=wt.sum("qty"))
    columns = {"name": "left.name", "alive": "right.n"}
    items.join(sold, **columns).materialized_as("both")
    items.left_join(sold.filter("n > 1"), **columns).materialized_as("all_items")
    items.outer_join(sold, **columns).materialized_as("either")
    items.join(items.filter("name <> 'x'"), a="left.name", b="right.name").materialized_as("self")
    return app.topology()


BATCHES: list[list[tuple[str, str, dict[str, Any] | None]]] = [
    [("sales", "a", {"qty": 1}), ("items", "b", {"name": "B"}), ("items", "c", {"name": "x"})],
    [("items", "a", {"name": "A"}), ("sales", "b", {"qty": 2}), ("sales", "d", {"qty": 4})],
    [("items", "a", None), ("sales", "a", {"qty": 5}), ("items", "b", {"name": "BB"})],
    [("items", "a", {"name": "AA"}), ("items", "b", None), ("items", "c", None), ("items", "d", {"name": "D"})],
]


def plain(store: Store, table: str) -> list[dict[str, Any]]:
    """Read a table without a JVM."""
    return polars.scan_delta(f"{store.warehouse}/shop/{table}").drop("_wt").collect().to_dicts()


@both_folds
def test_a_side_that_no_reader_sees_is_kept_through_folds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    topology, session = shop(), tiny(spark)
    store = Store.open(session, str(tmp_path), "shop", topology.tables)
    writer, compiler, engine = store.start_writer(topology.fingerprint), Compiler(topology), Interpreter(topology)
    carry: dict[tuple[str, int], datetime | None] = {("items", 0): None, ("sales", 0): None}
    following = dict.fromkeys(carry, 0)
    for number, batch in enumerate(BATCHES):
        records, begin = [], dict(following)
        for topic, key, value in batch:
            at = EPOCH + timedelta(minutes=following[topic, 0])
            data = None if value is None else json.dumps(value).encode()
            records.append(Record(topic, 0, following[topic, 0], at, key.encode(), data))
            following[topic, 0] += 1
        engine.read(records)
        made = compiler.batch(as_frame(session, records), carry, lambda table, keys: pytest.fail("no table of these is streamed"))
        carry |= {p: stats.stream_time for p, stats in made.stats.partitions.items()}
        info = CommitInfo(begin=begin, next=dict(following), stream_times=dict(carry), topic_ids={"items": "i", "sales": "s"})
        writer.commit(made.tables, info)
        made.close()
        for folded in (False, True):
            if folded and number % 2 == 1:
                store.folder.fold_all()
            for table in topology.tables:
                wanted = sorted(map(str, engine.tables[table.name].values()))
                assert sorted(str(row.asDict()) for row in store.reader.read(table.name).collect()) == wanted, (table.name, number)
                if folded and number % 2 == 1:
                    assert sorted(map(str, plain(store, table.name))) == wanted, (table.name, number)


def test_only_a_join_with_itself_may_forget_what_is_gone() -> None:
    kept = {t.name: (forgets(t), hides(t), base_name(t)) for t in shop().tables}
    assert kept == {
        "both": (False, True, "__state_both"),
        "all_items": (False, True, "__state_all_items"),
        "either": (False, True, "__state_either"),
        "self": (True, False, "self"),
    }
