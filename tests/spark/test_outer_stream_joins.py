"""Left and outer joins in the store: whatever the batches, folds, crashes and rewinds, what pairs with nothing comes once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.spark.ledger import both_folds
from tests.spark.test_stream_joins import TOPICS, Kafka, Run, agree, cut, tale, told
from watertable import fold, rewind
from watertable.plan import Topology
from watertable.rewind import Target

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
    run, records = Run(tiny(spark), tmp_path, shop()), tale(40)
    sizes = []
    for number, batch in enumerate(cut(records, 18)):
        run.read(batch)
        if number % 2:
            run.store.folder.fold_all()
            sizes.append(run.waiting())
    oracle = told(records, shop())
    agree(run, oracle)
    alone = [o.value for o in oracle.outputs if o.value is not None and b"-" in o.value]
    assert 5 < len(alone) < len(oracle.outputs) - 5
    left, either = zip(*sizes, strict=True)
    assert max(max(left), max(either)) < 45, f"the buffers grow: {sizes}"  # all there was: 110
    assert max(run.jobs[1:]) <= 24, f"{run.jobs} Spark jobs for two joins of streams"


def test_after_a_crash_between_any_two_commits_and_a_rewind_to_any_of_them_what_comes_alone_is_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    session, records = tiny(spark), tale(15)
    wanted = told(records, shop())
    for number, batch in enumerate(cut(records, 11)):
        run = Run(session, tmp_path, shop())  # a new process: the one before died after its commit
        run.read(batch)
        if number == 1:
            run.store.folder.fold_all()
    agree(run, wanted)
    for to in (1, 2):  # of the new epoch, then: other batches
        plan = rewind.plan(run.store, run.topology, Kafka(), Target.parse(str(to)))  # type: ignore[arg-type]
        rewind.apply(run.store, plan, run.topology.fingerprint, Kafka())  # type: ignore[arg-type]
        run = Run(session, tmp_path, shop())
        left = [r for r in records if r.offset >= run.next[r.topic, r.partition]]
        for batch in cut(left, 7, 30):
            run.read(batch)
        agree(run, wanted)
