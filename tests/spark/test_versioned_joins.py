"""Joins with versioned tables in the store: through folds, crashes and rewinds each record goes on once, with the same row."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.spark.ledger import both_folds
from tests.spark.runs import Run, agree, by, survives, told
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.store import fold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PLACES = [("prices", 0), ("sales", 0), ("sales", 1)]


def shop() -> Topology:
    """Join sales with the prices of their time, and count, keep and publish what comes of it; some prices are deleted."""
    app = wt.App("shop")
    prices = app.topic("prices", key="sku STRING", value="price INT").table().materialized_as("prices", history=wt.minutes(10))
    sales = app.topic("sales", key="sku STRING", value="qty INT").stream()
    priced = sales.left_join(prices, grace=wt.minutes(4), qty="qty", price="right.price")
    priced.to("priced")
    priced.to_table().materialized_as("last")
    priced.group_by_key().windowed_by(wt.tumbling(minutes=5, grace=wt.minutes(2))).agg(
        qty=wt.sum("qty"), prices=wt.collect_list("price")
    ).materialized_as("sold")
    return app.topology()


def tale(minutes: int) -> list[Record]:
    """Write prices and sales of three keys, some of them late; prices run three minutes ahead."""
    records, following = [], dict.fromkeys(PLACES, 0)
    for minute in range(minutes):
        for number, place in enumerate(PLACES):
            behind = 3 * (number > 0) + (0, 0, 2, 0, 5)[(minute + number) % 5]
            if minute < behind:
                continue
            at = EPOCH + timedelta(minutes=minute - behind, seconds=number)
            body = {"price" if number == 0 else "qty": minute}
            value = None if number == 0 and minute % 7 == 6 else json.dumps(body).encode()
            records.append(Record(*place, following[place], at, f"k{minute // 2 % 3}".encode(), value))
            following[place] += 1
    return records


@pytest.mark.slow
@both_folds
def test_what_waits_goes_on_once_through_folds_and_is_gone_then(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    run, records = Run(tiny(spark), tmp_path, shop(), PLACES), tale(26)
    for number, batch in enumerate(by(records, 20)):
        run.read(batch)
        if number % 2:
            run.store.folder.fold_all()
    run.store.folder.fold_all()
    oracle = told(shop(), records)
    agree(run, oracle)
    waits, history = run.topology.buffers
    frames = [run.spark.read.format("delta").load(run.store.changelog.base_path(b.name)) for b in (waits, history)]
    waiting, versions = (int(f.selectExpr(f"sum(size(_wt.state.{b.state[0].name}))").collect()[0][0] or 0)
                         for f, b in zip(frames, (waits, history), strict=True))  # fmt: skip
    assert waiting == sum(r.topic == "sales" for r in records) - len(oracle.outputs), "kept is what still waits, and nothing else"
    assert versions <= 22, f"26 prices made a history of {versions}"
    assert max(run.jobs[1:]) <= 16, f"{run.jobs} Spark jobs for a join that waits"


@pytest.mark.slow
def test_what_a_fold_lets_go_of_changes_nothing_that_a_record_older_than_the_history_finds(spark: SparkSession, tmp_path: Path) -> None:
    def read(topic: str, offset: int, minute: int, key: str, number: int | None) -> Record:
        body = None if number is None else json.dumps({"price" if topic == "prices" else "qty": number}).encode()
        return Record(topic, 0, offset, EPOCH + timedelta(minutes=minute), key.encode(), body)

    prices = [read("prices", 0, 0, "still", 2), read("prices", 1, 0, "sold out", 3), read("prices", 2, 1, "sold out", None)]
    prices += [read("prices", 3 + minute, minute, "moving", minute) for minute in range(2, 30)]
    sales = [read("sales", 0, 30, "nobody", 0)]
    late = [(key, minute) for key in ("still", "sold out", "moving") for minute in (0, 5, 19, 20, 25)]
    sales += [read("sales", 1 + n, minute, key, n) for n, (key, minute) in enumerate(late)]
    ends = [read(topic, 90, 50, "nobody", 0) for topic in ("prices", "sales")]
    places = [("prices", 0), ("sales", 0)]
    oracle, run = told(shop(), [*prices, *sales, *ends]), Run(tiny(spark), tmp_path, shop(), places)
    for batch in (prices, sales[:1], sales[1:8], sales[8:], ends):
        run.read(batch)
        run.store.folder.fold_all()
    agree(run, oracle)
    rows = [json.loads(o.value or b"{}") for o in oracle.outputs]
    found = {late[row["qty"]]: row["price"] for row, o in zip(rows, oracle.outputs, strict=True) if o.key != b"nobody"}
    assert found == {(key, minute): {"still": 2, "moving": minute if minute >= 20 else None}.get(key) for key, minute in late}


@pytest.mark.slow
def test_after_a_crash_between_any_two_commits_and_a_rewind_to_any_of_them_the_same_rows_go_on(spark: SparkSession, tmp_path: Path) -> None:
    session, records = tiny(spark), tale(18)
    wanted = told(shop(), records)
    assert len({json.loads(o.value or b"{}")["price"] for o in wanted.outputs}) > 3
    survives(session, tmp_path, shop(), PLACES, records, 13)
