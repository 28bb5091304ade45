"""Hold bases of windows to their order: what is merged by slices of time is what is merged at all, and each file is of a part of it."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import polars
import pytest

import watertable as wt
from tests.spark.ledger import Ledger, minute
from watertable.compiler.algebra import Slices, merge, merge_by_time, spread
from watertable.plan.plan import TableDef, Topology
from watertable.plan.windows import microseconds
from watertable.store import bases, fold, views
from watertable.store.reader import Reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

HOUR = timedelta(hours=1)


def windowed() -> Topology:
    """Define windows of each kind that goes by time, and states that are grouped by numbers and by a hash."""
    app = wt.App("shop")
    moves = app.topic("moves", key="k STRING", value="k STRING, qty BIGINT").stream()
    by_key = moves.group_by("value.k")
    by_key.windowed_by(wt.tumbling(hours=1)).agg(n=wt.sum("qty")).materialized_as("hourly")
    by_key.windowed_by(wt.hopping(hours=4, every=HOUR)).agg(n=wt.sum("qty")).materialized_as("hopping")
    by_key.windowed_by(wt.hopping(hours=5, every=2 * HOUR)).agg(seen=wt.count_distinct("qty")).materialized_as("uneven")
    app.topic("names", key="k STRING", value="name STRING").table().materialized_as("names")
    return app.topology()


TOPOLOGY = windowed()


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Ledger:
    """Open a store of the windows."""
    return Ledger.open(spark, f"{tmp_path}/warehouse", topology=TOPOLOGY)


def delta(table: TableDef, key: str, hour: int, quantity: int) -> str:
    """Write the delta of a record in all its windows, of which each table's first starts at an advance."""
    windows = table.windows
    assert isinstance(windows, wt.plan.windows.TimeWindows)
    size, every = windows.size, windows.advance
    at = minute(60 * hour)
    last = at - timedelta(microseconds=(microseconds(at - datetime(1970, 1, 1, tzinfo=UTC)) % microseconds(every)))
    first = last - every * ((size - (at - last) - timedelta(microseconds=1)) // every)
    state = f"named_struct('seen', array({quantity}L))" if table.name == "uneven" else f"named_struct('n', {quantity}L)"
    bounds = (f"timestamp'{time:%Y-%m-%d %T}'" for time in (first, last + size))
    start, end = bounds
    return f"named_struct('k', '{key}', 'window_start', {start}, 'window_end', {end}), {state}, timestamp'{at:%Y-%m-%d %T}'"


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    """Give merged rows in an order of their own; the members of a set have none."""
    found = frame.selectExpr("key.*", "to_json(state) AS state", "epoch", "seq").collect()
    return sorted((*row[:-3], "".join(sorted(row["state"])), row["epoch"], row["seq"]) for row in found)


@pytest.mark.parametrize("name", ["hourly", "hopping", "uneven"])
def test_states_merged_by_slices_of_time_are_those_merged_at_all(ledger: Ledger, name: str) -> None:
    table, chance = ledger.table(name), random.Random(name)
    hours = [chance.randrange(-30, 60) for _ in range(60)] + [-24 * 365 * 60, 24 * 365 * 60]  # before 1970, and a clock gone wrong
    made = ledger.deltas(name, [delta(table, chance.choice("abc"), hour, chance.randrange(9)) for hour in hours])
    deltas = made.selectExpr("key", "state", "1 AS epoch", "CAST(pmod(xxhash64(key), 7) AS BIGINT) AS seq").localCheckpoint()
    states = merge(table, spread(table, deltas.limit(20).withColumn("st", deltas.key.window_start)).drop("st"))
    rows = states.select("key", "state", "epoch", "seq").unionByName(deltas)
    wanted = rows_of(merge(table, states.unionByName(spread(table, deltas.withColumn("st", deltas.key.window_start)).drop("st"))))
    begin = int(minute(-600).timestamp() * 1_000_000)
    for slices in (Slices(begin, microseconds(7 * HOUR), 5), Slices(begin, 1, 3), Slices(begin, microseconds(HOUR), 1)):
        found = merge_by_time(table, rows, slices)
        assert found.rdd.getNumPartitions() == slices.number
        assert rows_of(found) == wanted, slices


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files of next to nothing, and nothing so small that it's one task, or written anew, for that."""
    view_for = Reader.view_for
    monkeypatch.setattr(bases, "_FILE", 512)
    monkeypatch.setattr(fold, "SMALL_BASE", 1)
    monkeypatch.setattr(Reader, "view_for", lambda *args: replace(view_for(*args), one_task=-1))


def spans(ledger: Ledger, table: str) -> list[tuple[datetime, datetime]]:
    """List from which to which window each file of a table is, as its statistics have it."""
    actions = polars.DataFrame(deltalake.DeltaTable(f"{ledger.store.warehouse}/shop/{table}").get_add_actions(flatten=True))
    return sorted(zip(actions["min.window_start"].to_list(), actions["max.window_start"].to_list(), strict=True))


def commit(ledger: Ledger, *hours: int) -> None:
    """Commit a record in each of these hours to all tables."""
    ledger.commit(
        {name: ledger.deltas(name, [delta(ledger.table(name), "a", hour, 1) for hour in hours]) for name in ("hourly", "hopping")}
    )


@pytest.mark.usefixtures("short")
def test_each_file_of_many_windows_spans_a_part_of_the_time_and_a_fold_writes_the_last_ones_alone(ledger: Ledger) -> None:
    commit(ledger, *range(48))
    ledger.store.folder.fold_all(["hourly", "hopping"], ledger.writer.known)
    for name in ("hourly", "hopping"):
        ranges = spans(ledger, name)
        assert len(ranges) > 3
        assert all(one[1] < other[0] for one, other in pairwise(ranges)), f"{name}: no window is in two files' time"
    table = deltalake.DeltaTable(f"{ledger.store.warehouse}/shop/hopping")
    before = set(table.file_uris())
    commit(ledger, 47, 48)
    ledger.store.folder.fold_all(["hourly", "hopping"], ledger.writer.known)
    table.update_incremental()
    assert len(before - set(table.file_uris())) < len(before) / 2, "the files of what is long past are left"
    assert ledger.store.reader.read("hopping").count() == 49 + 3
    assert {row["n"] for row in ledger.store.reader.read("hourly").collect()} == {1, 2}


@pytest.mark.usefixtures("short")
def test_optimize_leaves_the_windows_of_one_time_apart_from_those_of_another(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(ledger, *range(48))
    ledger.store.folder.fold_all(["hourly"], ledger.writer.known)
    before = spans(ledger, "hourly")
    ledger.store.upkeep.optimize()
    assert spans(ledger, "hourly") == before
    monkeypatch.setattr(bases, "_FILE", 1 << 20)
    ledger.store.upkeep.optimize()
    assert len(spans(ledger, "hourly")) == 1, "small ones are put together, up to the size of a file"


@pytest.mark.usefixtures("short")
def test_one_task_that_writes_many_windows_begins_another_file_after_so_many(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "FILE_ROWS", 10)
    commit(ledger, *range(48))
    ledger.store.folder.fold_all(["hourly"], ledger.writer.known, beside=True)
    ranges = spans(ledger, "hourly")
    assert len(ranges) == 5
    assert ranges[0][1] < ranges[-1][0]


def test_a_small_tail_leaves_the_rows_of_other_keys_as_the_base_has_them(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "ONE_TASK", -1)
    commit(ledger, *range(6))
    ledger.store.folder.fold_all(None, ledger.writer.known)
    commit(ledger, 3, 9)
    view = ledger.store.reader.view(["hopping"])
    table = ledger.table("hopping")
    found = rows_of(view.anew(table))
    assert rows_of(view.states(table)) == found
    assert "LeftAnti" in str(view.anew(table)._jdf.queryExecution().executedPlan())
    with monkeypatch.context() as patch:
        patch.setattr(views, "SMALL_TAIL", -1)
        assert rows_of(ledger.store.reader.view(["hopping"]).anew(table)) == found
    assert {row[-1] for row in found} == {1, 2}, "those that the second commit didn't touch say so"
    assert "SortMergeJoin" not in str(view.anew(table)._jdf.queryExecution().executedPlan())
