"""Hold the places of records that became many, step by step, to 64 bits: a place that doesn't fit would break every batch."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, run_interpreter, tiny
from watertable.plan.places import FAN_OUT
from watertable.records import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_windows_over_the_changes_of_windows_over_pairs_have_room_for_their_places(spark: SparkSession) -> None:
    """Pairs take 28 bits, changes of sliding windows 15 more; a tumbling window, in which a record is once, must take none."""
    app = wt.App("deep")
    clicks = app.topic("clicks", key="k STRING", value="n BIGINT").stream()
    within = wt.join_windows(before=wt.seconds(5), after=wt.seconds(5))
    pairs = clicks.join(clicks, within=within, n="left.n + right.n", who="key.k")
    near = pairs.group_by("who").windowed_by(wt.sliding(difference=wt.seconds(4))).agg(total=wt.sum("n")).materialized_as("near")
    hourly = near.to_stream().group_by("who").windowed_by(wt.tumbling(minutes=1)).agg(changes=wt.count()).materialized_as("hourly")
    hopping = hourly.to_stream().group_by("who").windowed_by(wt.hopping(minutes=2, every=wt.minutes(1))).agg(n=wt.count())
    hopping.materialized_as("hopping").to_stream().to("out")
    topology = app.topology()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    records = [
        Record("clicks", n % 2, n // 2, start + timedelta(seconds=3 * n), b"ab"[n % 2 : n % 2 + 1], json.dumps({"n": n}).encode())
        for n in range(12)
    ]
    wanted = run_interpreter(topology, [records[:5], records[5:]])
    assert wanted.outputs["out"]
    assert wanted.differences(CompilerRun(tiny(spark), topology).run([records[:5], records[5:]])) == []


def test_an_array_with_too_many_elements_goes_to_quarantine(spark: SparkSession) -> None:
    app = wt.App("wide")
    lines = app.topic("lines", key="k STRING", value="words STRING, size BIGINT").stream().filter("size > 1 OR words IS NULL")
    taken_apart = lines.flat_map_values(word="split(words, ' ')", size="size")
    taken_apart.group_by("word").agg(n=wt.count(), last=wt.last("size")).materialized_as("counts")
    topology = app.topology()
    texts = [None, "", "a b", "a " * FAN_OUT, "b " * (FAN_OUT - 1), None]
    values = [None if n == 0 else json.dumps({"words": text, "size": n}).encode() for n, text in enumerate(texts)]
    at = datetime(2026, 1, 1, tzinfo=UTC)
    records = [Record("lines", 0, n, at + timedelta(seconds=n), b"k", value) for n, value in enumerate(values)]
    wanted = run_interpreter(topology, [records])
    assert [(offset, node) for _, _, offset, node, _ in wanted.quarantine] == [(3, "flat_map_values")]
    assert wanted.differences(CompilerRun(tiny(spark), topology).run([records])) == []
