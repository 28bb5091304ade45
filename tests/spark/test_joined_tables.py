"""Joins in the store: batch by batch, folded and not, read fresh and as any Delta reader would, they are what the oracle says."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.spark.ledger import both_folds
from tests.spark.runs import Twin
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.store import fold
from watertable.store.bases import base_name, forgets, hides

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


@pytest.mark.slow
@both_folds
def test_a_side_that_no_reader_sees_is_kept_through_folds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    twin = Twin(tiny(spark), tmp_path, shop(), [("items", 0), ("sales", 0)])
    for number, batch in enumerate(BATCHES):
        records: list[Record] = []
        for topic, key, value in batch:
            offset = twin.next[topic, 0] + sum(record.topic == topic for record in records)
            data = None if value is None else json.dumps(value).encode()
            records.append(Record(topic, 0, offset, EPOCH + timedelta(minutes=offset), key.encode(), data))
        twin.both(records)
        twin.agree()
        if number % 2 == 1:
            twin.store.folder.fold_all()
            twin.agree(plain=True)


def test_only_a_join_with_itself_may_forget_what_is_gone() -> None:
    kept = {t.name: (forgets(t), hides(t), base_name(t)) for t in shop().tables}
    assert kept == {
        "both": (False, True, "__state_both"),
        "all_items": (False, True, "__state_all_items"),
        "either": (False, True, "__state_either"),
        "self": (True, False, "self"),
    }
