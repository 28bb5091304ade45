"""Each kind of table under each act: a shadow that is promoted and undone, and a rebuild of one table; tidied between them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.properties.engines import tiny
from tests.properties.pairs import TABLES, batches, topology
from tests.spark.test_rebuild import App, begun, joined, planned, replay
from watertable.acts import shadow
from watertable.acts.rewind import Target
from watertable.interpreter import Interpreter
from watertable.plan.plan import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_the_oracles_after_each_act(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    app = next(app for use in ("told", "read") if isinstance(app := topology(kind, use), Topology))
    given = batches({topic.name for topic in app.topics})
    run = App(tiny(spark), tmp_path, app, [r for batch in given for r in batch])
    oracle = Interpreter(app, partitions=run.partitions)

    def read(number: int) -> None:
        run.read(given[number])
        oracle.read(given[number])
        assert run.tables() == oracle.tables, number

    read(0)
    run.store.fold_all()
    read(1)
    begun(run, plan=planned(run, shadow=True))
    replay(run, 5)(None)
    read(2)
    run.store.fold_all()
    shadow.promote(run.store, app, replay(run, 7))
    run.start()
    assert run.tables() == oracle.tables, "promoted"
    run.store.fold_all()
    run.store.upkeep.maintain(vacuum=False)
    assert run.tables() == oracle.tables, "promoted, folded and tidied"
    begun(run, app.tables[0].name)
    joined(run, 6)
    assert run.tables() == oracle.tables, "rebuilt"
    read(3)
    run.store.fold_all()
    assert run.tables() == oracle.tables, "rebuilt and folded"
    begun(run, plan=planned(run, target=Target("undo")))
    run.start()
    run.read(run.left(run.records))
    assert run.tables() == oracle.tables, "undone, and read on"
    run.store.fold_all()
    assert run.tables() == oracle.tables, "undone, read on and folded"
