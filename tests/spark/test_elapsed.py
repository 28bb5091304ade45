"""Tables by the time that has gone by, in the store: the same through batches, folds, crashes and rewinds as the oracle has them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.spark.ledger import both_folds
from tests.spark.runs import Run, survives, through_folds
from tests.spark.test_stream_joins import TOPICS, tale
from tests.spark.test_suppress import waiting
from watertable.plan.plan import Topology
from watertable.store import fold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
PARTITIONS = [(TOPICS[0], 0)]
VIEWS = [record for record in tale(35) if record.topic == TOPICS[0]]


def shop() -> Topology:
    """Show the last view of each key once in a while, and for a while; count those that show."""
    app = wt.App("shop")
    views = app.topic(TOPICS[0], key="k STRING", value="v STRING").table().materialized_as("views")
    views.suppress(wt.until_time_limit(wt.minutes(3))).materialized_as("slow").to_stream().to("slow")
    recent = views.ttl(wt.minutes(3)).materialized_as("recent")
    recent.group_by(k="substr(k, 1, 1)").count("n").materialized_as("alive")
    return app.topology()


@pytest.mark.slow
@both_folds
def test_rows_come_and_go_with_the_time_through_folds_that_forget_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    run = Run(tiny(spark), tmp_path, shop(), PARTITIONS)
    oracle, sizes = through_folds(run, VIEWS, 8, waiting)
    assert oracle.tables["slow"]
    assert 0 < len(oracle.tables["recent"]) < len(oracle.tables["views"])
    assert max(map(max, zip(*sizes, strict=True))) <= 12, f"what waits grows: {sizes}"


@pytest.mark.slow
def test_after_a_crash_between_any_two_commits_and_a_rewind_to_any_of_them_the_same_rows_show(spark: SparkSession, tmp_path: Path) -> None:
    survives(tiny(spark), tmp_path, shop(), PARTITIONS, VIEWS[:15], 5)
