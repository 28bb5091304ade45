"""Suppressed tables in the store: whatever the batches, folds, crashes and rewinds, the row of a window shows once, when it has closed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.spark.ledger import both_folds
from tests.spark.runs import Run, survives, through_folds
from tests.spark.test_stream_joins import PARTITIONS, TOPICS, tale
from watertable.plan.plan import Topology
from watertable.store import fold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def shop() -> Topology:
    """Count views in windows and clicks in sessions, and publish what is final; count what is final again."""
    app = wt.App("shop")
    views, clicks = (app.topic(name, key="k STRING", value="v STRING").stream().group_by_key() for name in TOPICS)
    counts = views.windowed_by(wt.hopping(minutes=4, every=wt.minutes(2), grace=wt.minutes(1))).agg(n=wt.count(), all=wt.collect_list("v"))
    final = counts.filter("n > 1").suppress(wt.until_window_closes()).materialized_as("final")
    final.to_stream().to("final")
    final.to_stream().group_by("k").windowed_by(wt.tumbling(minutes=10), emit="on_close").agg(n=wt.sum("n")).materialized_as("again")
    visits = clicks.windowed_by(wt.sessions(gap=wt.seconds(90), grace=wt.minutes(3)), emit="on_close").agg(n=wt.count())
    visits.materialized_as("visits")
    return app.topology()


def waiting(run: Run) -> list[int]:
    """Count the rows that wait in the Delta tables of windows that are open."""
    found = []
    for buffer in run.topology.buffers:
        name = buffer.name if run.store.reader.log(buffer.name).latest() is not None else f"__state_{buffer.name}"
        found.append(run.spark.read.format("delta").load(run.store.changelog.base_path(name)).count())
    return found


@pytest.mark.slow
@both_folds
def test_final_rows_come_once_through_folds_that_let_go_of_the_windows_that_are_closed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    run = Run(tiny(spark), tmp_path, shop(), PARTITIONS)
    oracle, sizes = through_folds(run, tale(40), 18, waiting)
    assert all(len(rows) > 1 for rows in oracle.tables.values())
    assert max(map(max, zip(*sizes, strict=True))) <= 12, f"what waits grows: {sizes}"
    assert max(run.jobs[1:]) <= 32, f"{run.jobs} Spark jobs for three suppressed tables"


@pytest.mark.slow
def test_after_a_crash_between_any_two_commits_and_a_rewind_to_any_of_them_the_final_rows_are_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    survives(tiny(spark), tmp_path, shop(), PARTITIONS, tale(15), 11)
