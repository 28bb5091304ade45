"""Folds of the user's own, sketches and dedupe on Spark: what the interpreter makes of the same batches."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, run_interpreter, tiny
from tests.spark.runs import Twin, without_bounds
from watertable.plan.plan import Topology
from watertable.records import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2024, 3, 1, tzinfo=UTC)


def topology() -> Topology:
    app = wt.App("moves")
    moves = app.topic("moves", key="item STRING", value="qty INT, price DECIMAL(9,2), by STRING").stream()
    by_item = moves.group_by_key()
    by_item.agg(
        left=wt.aggregate("0", "greatest(acc + qty, 0)"),
        paid=wt.aggregate("CAST(0 AS DECIMAL(12,2))", "acc + price * qty"),
        failing=wt.aggregate("0", "coalesce(acc, 100) + CAST(by AS INT)"),
        longest=wt.aggregate("''", "CASE WHEN exists(split(by, ''), e -> e = 'z') THEN concat(acc, by, key.item) ELSE acc END"),
        lasts=wt.aggregate("array_repeat(0, 0)", "slice(array_append(acc, qty), greatest(size(acc) - 1, 1), 3)"),
        empty=wt.aggregate("array(1)", "filter(transform(acc, q -> coalesce(q, -1) + qty), q -> q < 50 OR q IS NULL)"),
        streak=wt.aggregate(
            "named_struct('by', '', 'n', 0)",
            "named_struct('by', by, 'n', CASE WHEN acc.by IS NULL THEN -1 WHEN by > acc.by THEN acc.n + CAST(by AS INT) ELSE 1 END)",
        ),
        path=wt.aggregate(
            "array(named_struct('by', 'start', 'q', array(0)))",
            "CASE WHEN exists(acc, e -> e.by IS NULL) THEN slice(acc, -1, 1)"
            " ELSE array_append(acc, named_struct('by', by, 'q', array(qty))) END",
        ),
        who=wt.approx_count_distinct("by", relative_sd=0.5),
    ).materialized_as("folded")
    by_item.reduce(qty="acc.qty * 2 + qty", by="greatest(acc.by, by)").materialized_as("reduced")
    by_item.windowed_by(wt.tumbling(seconds=10, grace=wt.seconds(5))).reduce(qty="acc.qty - qty").materialized_as("windows").to_stream().to(
        "out"
    )
    by_item.windowed_by(wt.sessions(gap=wt.seconds(3), grace=wt.seconds(5))).agg(by=wt.aggregate("'>'", "concat(acc, by)")).materialized_as(
        "sessions"
    )
    rows = app.topic("rows", key="id STRING", value="team STRING, n INT").table().materialized_as("rows")
    rows.group_by("team").reduce(n="acc.n * 10 + n").materialized_as("teams")
    ids = wt.aggregate("array(named_struct('id', '', 'n', 0))", "array_append(acc, named_struct('id', key.id, 'n', n))")
    rows.group_by("team").agg(ids=wt.aggregate("''", "concat(acc, key.id)"), all=ids).materialized_as("ids")
    moves.dedupe(name="seen", within=wt.seconds(10), by="by", grace=wt.seconds(3)).to("once")
    keyed = app.topic("keyed", key="k INT", value="n INT").stream()
    keyed.dedupe(name="seen_keyed", within=wt.seconds(10), by="n").to("once_keyed")
    return app.topology()


def batches() -> list[list[Record]]:
    records = []
    for n in range(30):
        value = {"qty": [3, -5, None, 7][n % 4], "price": 1.25 * n, "by": ["1", "z2", "x", "4", None, "5"][n % 6]}
        when = START + timedelta(seconds=n + [0, -7, 4][n % 3])
        data = None if n == 9 else json.dumps(value).encode()
        records.append(Record("moves", n % 2, n // 2, when, ["tea", "jam"][n % 2].encode(), data))
        row = None if n % 7 == 6 else json.dumps({"team": "rb"[n % 2], "n": n % 5}).encode()
        records.append(Record("rows", 0, n, START, b"abcde"[n % 5 : n % 5 + 1], row))
        records.append(Record("keyed", 0, n, when, [None, b'{"k": 1}', b'{"k": null}', b"{}"][n % 4], f'{{"n": {n % 9}}}'.encode()))
    return [records[:7], records[7:8], records[8:33], records[33:]]


@pytest.mark.spark
def test_spark_folds_as_the_interpreter_does_whatever_the_batches(spark: SparkSession) -> None:
    wanted = run_interpreter(topology(), batches())
    assert all(wanted.tables.values())
    assert all(wanted.outputs[topic] for topic in ("out", "once"))
    assert wanted.tables["folded"]["tea",]["failing"] is None
    found = CompilerRun(tiny(spark), topology()).run(batches())
    assert wanted.differences(found) == []
    assert run_interpreter(topology(), [[record for batch in batches() for record in batch]]).tables["folded"] == wanted.tables["folded"]


@pytest.mark.spark
@pytest.mark.slow
def test_folds_in_the_store_are_the_oracles_read_fresh_folded_and_by_any_reader(spark: SparkSession, tmp_path: Path) -> None:
    twin = Twin(tiny(spark), tmp_path, topology(), [("moves", 0), ("moves", 1), ("rows", 0), ("keyed", 0)])
    for records in batches():
        twin.both(records)
        twin.agree(shown=without_bounds)
        twin.store.folder.fold_all()
        twin.agree(plain=True, shown=without_bounds)
