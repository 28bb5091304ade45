"""Sets and rankings that run forward through a batch: each Change has what all records up to it come to, however many there are."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, run_interpreter, tiny
from watertable.compiler import algebra
from watertable.plan.windows import EPOCH
from watertable.records import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_each_change_of_a_set_or_a_ranking_is_of_all_records_up_to_it_however_many_a_key_has(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algebra, "_STRIDE", 3)
    app, rng = wt.App("shop"), random.Random(4)
    sales = app.topic("sales", key="sku STRING", value="n INT, at DOUBLE").stream()
    ranked = sales.group_by_key().agg(
        top=wt.top_k(2, "n", "at"), kinds=wt.count_distinct("n"), ns=wt.collect_set("at"), about=wt.approx_count_distinct("n"),
        all=wt.collect_list("n"), n=wt.count(),
    ).materialized_as("ranked")  # fmt: skip
    ranked.to_stream().to("ranked")
    sales.join(ranked, n="n", before="right.n", kinds="right.kinds", top="right.top").to("looked_up")
    records = [
        Record("sales", 0, n, EPOCH + wt.seconds(n), rng.choice([b"a", b"a", b"b"]), json.dumps(value).encode())
        for n, value in enumerate({"n": rng.choice([None, *range(9)]), "at": rng.choice([0.0, -0.0, 1.5, None])} for _ in range(40))
    ]
    topology = app.topology()
    for batches in ([records], [records[:7], records[7:31], records[31:]]):
        wanted = run_interpreter(topology, batches)
        assert len(wanted.outputs["ranked"]) == len(records)
        assert wanted.differences(CompilerRun(tiny(spark), topology).run(batches)) == []
