"""Joins of streams in the store: whatever the batches, folds, crashes and rewinds, each pair comes once, and what is done with goes."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.spark.ledger import both_folds
from tests.spark.runs import Run, survives, through_folds
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.store import fold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TOPICS = ("views", "clicks")
PARTITIONS = [(topic, 0) for topic in TOPICS]


def shop() -> Topology:
    """Pair views with clicks: count the pairs, keep the last one, and pair clicks with clicks; publish them, too."""
    app = wt.App("shop")
    views, clicks = (app.topic(name, key="k STRING", value="v STRING").stream() for name in TOPICS)
    seen = views.join(
        clicks, within=wt.join_windows(before=wt.minutes(1), after=wt.minutes(5), grace=wt.minutes(2)), l="left.v", r="right.v"
    )
    seen.to_table().materialized_as("last")
    seen.group_by_key().windowed_by(wt.tumbling(minutes=10)).agg(n=wt.count(), all=wt.collect_list("concat(l, r)")).materialized_as(
        "counts"
    )
    clicks.join(clicks, within=wt.minutes(1), v="concat(left.v, right.v)").group_by_key().agg(n=wt.count()).materialized_as("doubles")
    seen.to("seen")
    return app.topology()


def tale(minutes: int) -> list[Record]:
    """Write views and clicks of three keys, a few a minute, some of them late; views run five minutes ahead of clicks."""
    records, following = [], dict.fromkeys(TOPICS, 0)
    for minute in range(minutes):
        for topic, behind in (("views", 0), ("clicks", 5), ("clicks", 5 + 3 * (minute % 4 == 3))):
            if minute < behind:
                continue
            at = EPOCH + timedelta(minutes=minute - behind, seconds=following[topic] % 7)
            key = f"k{(minute - behind) // 2 % 3}"
            value = json.dumps({"v": f"{topic[0]}{following[topic]} "}).encode()
            records.append(Record(topic, 0, following[topic], at, key.encode(), value))
            following[topic] += 1
    return records


def waiting(run: Run) -> list[int]:
    """Count what waits on either side in each buffer's Delta table."""
    frames = [run.spark.read.format("delta").load(run.store.changelog.base_path(b.name)) for b in run.topology.buffers]
    return [int(frame.selectExpr("coalesce(sum(__lefts + __rights), 0)").collect()[0][0]) for frame in frames]


@pytest.mark.slow
@both_folds
def test_pairs_come_once_through_folds_that_let_go_of_what_nothing_can_pair_with(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    run = Run(tiny(spark), tmp_path, shop(), PARTITIONS)
    _, sizes = through_folds(run, tale(40), 18, waiting)
    seen, double = zip(*sizes, strict=True)
    most = max(seen), max(double)
    assert most < (60, 60), f"the buffers grow: {sizes}"  # all there was: 110 and twice 70
    assert max(run.jobs[1:]) <= 14, f"{run.jobs} Spark jobs for two joins of streams"


@pytest.mark.slow
def test_after_a_crash_between_any_two_commits_and_a_rewind_to_any_of_them_the_pairs_are_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    survives(tiny(spark), tmp_path, shop(), PARTITIONS, tale(15), 11)
