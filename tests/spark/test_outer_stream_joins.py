"""Left and outer joins in the store: whatever the batches, folds, crashes and rewinds, what pairs with nothing comes once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.spark.ledger import both_folds
from tests.spark.runs import Run, survives, through_folds
from tests.spark.test_stream_joins import PARTITIONS, TOPICS, tale, waiting
from watertable.plan.plan import Topology
from watertable.store import fold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def shop() -> Topology:
    """Join views with clicks, whether they have any or not; what comes alone counts where it belongs, and is published."""
    app = wt.App("shop")
    views, clicks = (app.topic(name, key="k STRING", value="v STRING").stream() for name in TOPICS)
    within = wt.join_windows(before=wt.seconds(2), after=wt.seconds(20), grace=wt.minutes(1))
    seen = views.left_join(clicks, within=within, v="concat(left.v, COALESCE(right.v, '-'))")
    seen.to_table().materialized_as("last")
    seen.group_by_key().windowed_by(wt.tumbling(minutes=10)).agg(n=wt.count(), all=wt.collect_list("v")).materialized_as("counts")
    either = clicks.outer_join(views.filter("v LIKE '%2%'"), within=within, alone="left.v IS NULL OR right.v IS NULL")
    either.group_by_key().agg(n=wt.count("CASE WHEN alone THEN 1 END"), pairs=wt.count()).materialized_as("either")
    seen.to("seen")
    return app.topology()


@pytest.mark.slow
@both_folds
def test_what_comes_alone_comes_once_through_folds_that_let_go_of_what_is_done_with(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    run = Run(tiny(spark), tmp_path, shop(), PARTITIONS)
    oracle, sizes = through_folds(run, tale(40), 18, waiting)
    alone = [o.value for o in oracle.outputs if o.value is not None and b"-" in o.value]
    assert 5 < len(alone) < len(oracle.outputs) - 5
    left, either = zip(*sizes, strict=True)
    assert max(max(left), max(either)) < 45, f"the buffers grow: {sizes}"  # all there was: 110
    assert max(run.jobs[1:]) <= 24, f"{run.jobs} Spark jobs for two joins of streams"


@pytest.mark.slow
def test_after_a_crash_between_any_two_commits_and_a_rewind_to_any_of_them_what_comes_alone_is_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    survives(tiny(spark), tmp_path, shop(), PARTITIONS, tale(15), 11)
