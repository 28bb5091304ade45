"""Hold folds to their law: whatever folds do, race or die of, a table is the fold of its changelog, once."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import duckdb
import polars
import pytest
from deltalake.exceptions import DeltaProtocolError

import watertable as wt
from tests import buckets
from tests.spark.ledger import Ledger, both_folds, minute
from watertable import failpoints
from watertable.errors import StoreError
from watertable.plan.plan import TableDef
from watertable.store import deltalog, fold
from watertable.store.fold import Folder
from watertable.store.reader import Reader
from watertable.store.writer import Store
from watertable_platform.demo import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def folder(ledger: Ledger) -> Folder:
    """Make a second folder, as another process would have."""
    return Store(ledger.spark, ledger.store.warehouse, "shop", ledger.topology.tables).folder


def plain(ledger: Ledger, table: str) -> dict[object, object]:
    """Read a table without a JVM, as any Delta reader would."""
    rows = polars.scan_delta(f"{ledger.store.warehouse}/shop/{table}").collect().rows()
    return {r[0]: r[1] for r in rows}


def test_any_delta_reader_sees_the_table_whole_at_its_folded_position_with_the_users_columns_first(ledger: Ledger) -> None:
    ledger.sell(a=1, b=2)
    assert ledger.store.fold("stock") == 1
    ledger.sell(a=5)
    assert plain(ledger, "stock") == {"a": 1, "b": 2}
    assert ledger.read("stock") == {"a": 6, "b": 2}
    assert ledger.store.fold("stock") == 2
    assert plain(ledger, "stock") == {"a": 6, "b": 2}
    table = deltalake.DeltaTable(f"{ledger.store.warehouse}/shop/stock")
    assert [f.name for f in table.schema().fields] == ["k", "qty", "_wt"]
    allowed = {"deletionVectors", "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"}
    assert set(table.protocol().writer_features or ()) <= allowed


@pytest.mark.slow
def test_the_demo_counts_no_row_that_a_merge_took_away(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    monkeypatch.setattr(fold, "SMALL_BASE", -1)
    ledger.sell(**{f"k{number}": 1 for number in range(40)})
    ledger.store.fold("stock")
    ledger.sell(k1=1, k2=1)
    ledger.store.fold("stock")
    table = deltalake.DeltaTable(f"{ledger.store.warehouse}/shop/stock")
    assert table.count() > 40, "the statistics have them"
    assert rows_of(table) == len(plain(ledger, "stock")) == 40


def test_the_calls_that_the_docs_name_read_a_table_with_deletion_vectors_and_the_others_refuse_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    monkeypatch.setattr(fold, "SMALL_BASE", -1)
    ledger.sell(**{f"k{number}": 1 for number in range(40)})
    ledger.store.fold("stock")
    ledger.sell(k1=1, k2=1)
    ledger.store.fold("stock")
    path = f"{ledger.store.warehouse}/shop/stock"
    table = deltalake.DeltaTable(path)
    assert table.count() == 42, "replaced rows are counted: there is a deletion vector"
    rows = sorted(plain(ledger, "stock").items())
    assert rows == sorted(ledger.stock.items())
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as duck:
        packed = find_spec("duckdb_extension_delta")
        assert packed is not None
        (extension,) = Path(packed.origin or "").parent.rglob("*.duckdb_extension")
        duck.execute(f"LOAD '{extension}'")
        assert sorted(duck.execute(f"SELECT k, qty FROM delta_scan('{path}')").fetchall()) == rows
        duck.execute(f"ATTACH '{path}' AS stock (TYPE delta)")
        assert sorted(duck.execute("SELECT k, qty FROM stock").fetchall()) == rows
    query = deltalake.QueryBuilder().register("t", table).execute("SELECT k, qty FROM t").read_all()
    for frame in (polars.read_delta(path), polars.scan_delta(path).collect(), polars.DataFrame(query)):
        assert sorted(frame.select("k", "qty").rows()) == rows
    for refused in (
        table.to_pandas,
        table.to_pyarrow_table,
        table.to_pyarrow_dataset,
        lambda: polars.read_delta(path, use_pyarrow=True),
        lambda: polars.scan_delta(path, use_pyarrow=True).collect(),
    ):
        with pytest.raises(DeltaProtocolError, match="deletionVectors"):
            refused()


@pytest.mark.parametrize("overwrite_from", [pytest.param(1e9, id="by merge"), pytest.param(0.0, id="by overwrite", marks=pytest.mark.slow)])
def test_a_stale_fold_resumed_after_a_newer_one_changes_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, overwrite_from: float
) -> None:
    monkeypatch.setattr(fold, "OVERWRITE_FROM", overwrite_from)
    monkeypatch.setattr(fold, "SMALL_BASE", -1)
    ledger.sell(k0=1, k1=1, k2=1)
    assert ledger.store.fold("stock") == 1
    ledger.sell(k0=1, k1=-1)

    def newer() -> None:
        ledger.sell(k0=5)
        ledger.sell(k1=7)
        assert folder(ledger).fold("stock") == 4

    with failpoints.armed("fold.before_merge", newer):
        assert ledger.store.fold("stock") is None
    assert ledger.read("stock") == plain(ledger, "stock") == ledger.stock
    assert ledger.store.fold("stock") is None
    ledger.sell(k0=1)
    assert ledger.store.fold("stock") == 5
    assert ledger.read("stock") == plain(ledger, "stock") == ledger.stock


def test_two_folds_of_the_same_commits_change_a_table_once(ledger: Ledger) -> None:
    ledger.sell(a=1, b=1)
    ledger.store.fold("stock")
    ledger.sell(a=1)
    with failpoints.armed("fold.before_merge", lambda: folder(ledger).fold("stock") and None):
        ledger.store.fold("stock")
    assert ledger.read("stock") == plain(ledger, "stock") == {"a": 2, "b": 1}


@pytest.mark.slow
def test_a_fold_that_dies_before_it_is_confirmed_is_found_by_its_transaction(ledger: Ledger) -> None:
    for point in ("fold.after_merge", "fold.before_merge", "fold.after_pin"):
        ledger.sell(a=1)
        with failpoints.armed(point, "raise"), pytest.raises(failpoints.FailpointHit):
            ledger.store.fold("stock")
        assert ledger.read("stock") == ledger.stock
        ledger = ledger.restart()
        ledger.sell(a=1)
        assert ledger.read("stock") == ledger.stock
    assert ledger.store.fold("stock") == 6
    assert ledger.read("stock") == plain(ledger, "stock") == {"a": 6}


def test_a_delete_overtaken_by_an_earlier_put_after_a_fold_stays_deleted(ledger: Ledger) -> None:
    ledger.name(3, x=(1, "one"), y=(1, "other"))  # another partition's stream time is still at 3
    ledger.store.fold("names")
    ledger.name(3, x=(5, None))
    assert ledger.store.fold("names") == 2
    assert plain(ledger, "names") == ledger.read("names") == {"y": "other"}
    ledger.name(3, x=(4, "earlier than its deletion"))
    assert ledger.read("names") == {"y": "other"}
    assert ledger.store.fold("names") == 3
    assert plain(ledger, "names") == ledger.read("names") == {"y": "other"}
    ledger.name(6, x=(6, "again"))
    assert ledger.read("names") == {"x": "again", "y": "other"}
    ledger.store.fold("names")
    assert plain(ledger, "names") == {"x": "again", "y": "other"}


def test_a_tombstone_is_let_go_once_no_earlier_record_can_come(ledger: Ledger) -> None:
    ledger.name(5, x=(1, "one"))
    ledger.name(5, x=(5, None))
    ledger.store.fold("names")
    assert ledger.store.reader.view(["names"]).bases["names"].tombstones_from == 2
    ledger.name(6, y=(6, "passes it by"))
    ledger.store.fold("names")
    assert ledger.store.reader.view(["names"]).bases["names"].tombstones_from == 4
    assert ledger.read("names") == {"y": "passes it by"}


def test_a_sum_that_a_filter_hides_goes_on_and_plain_readers_never_see_it(ledger: Ledger) -> None:
    ledger.sell(a=4, b=20)
    ledger.store.fold("low")
    assert plain(ledger, "low") == ledger.read("low") == {"a": 4}
    ledger.sell(b=-15, a=100)
    assert ledger.read("low") == {"b": 5}
    ledger.store.fold("low")
    assert plain(ledger, "low") == ledger.read("low") == {"b": 5}
    ledger.sell(a=-100)
    with failpoints.armed("fold.before_merge", "raise"), pytest.raises(failpoints.FailpointHit):
        ledger.store.fold("low")
    assert (plain(ledger, "low"), ledger.read("low")) == ({"b": 5}, {"a": 4, "b": 5})
    ledger.store.fold("low")
    assert plain(ledger, "low") == ledger.read("low") == {"a": 4, "b": 5}


@pytest.mark.slow
def test_an_emptied_group_is_deleted_leaves_no_tombstone_and_comes_back_as_new(spark: SparkSession, tmp_path: Path) -> None:
    app = wt.App("shop")
    names = app.topic("names", key="k STRING", value="name STRING").table().materialized_as("names")
    names.group_by("name").agg(least=wt.min("k"), n=wt.count()).materialized_as("homes")
    names.group_by("name").agg(least=wt.min("k"), n=wt.count()).filter("n < 2").materialized_as("alone")
    ledger = Ledger.open(spark, str(tmp_path), topology=app.topology())

    def move(**moves: tuple[str, int]) -> None:
        rows = [
            f"named_struct('k', '{name}'), named_struct('r', {n}L, 'least', array(named_struct('v', '{who}', 'n', {n}L)), 'n', {n}L), "
            f"timestamp'{minute(0):%F %T}'"
            for name, (who, n) in moves.items()
        ]
        ledger.commit({name: ledger.deltas(name, rows) for name in ("homes", "alone")})

    def found(table: str = "homes") -> dict[object, object]:
        ledger.store.fold(table)
        assert plain(ledger, table) == ledger.read(table)
        return ledger.read(table)

    move(north=("ann", 1), south=("bob", 1))
    assert found() == found("alone") == {"north": "ann", "south": "bob"}
    move(south=("ada", 1))
    move(north=("ann", -1))
    assert (ledger.read("homes"), ledger.read("alone")) == ({"south": "ada"}, {})
    assert (found(), found("alone")) == ({"south": "ada"}, {})
    assert list(plain(ledger, "__state_alone")) == ["south"]  # what a filter hides is kept, what is gone isn't
    assert ledger.store.reader.view(["homes"]).tail_bytes(ledger.table("homes")) == 0
    move(south=("ada", -1), north=("cid", 1))
    assert ledger.read("homes") == ledger.read("alone") == {"north": "cid", "south": "bob"}
    assert found() == found("alone") == {"north": "cid", "south": "bob"}


def count(ledger: Ledger, hour: int, n: int) -> None:
    """Commit a delta of one window."""
    start, end = (f"timestamp'{minute(60 * h):%F %T}'" for h in (hour, hour + 1))
    key = f"named_struct('k', 'a', 'window_start', {start}, 'window_end', {end})"
    ledger.commit({"hourly": ledger.deltas("hourly", [f"{key}, named_struct('n', {n}L), {start}"])})


def hourly(ledger: Ledger) -> dict[float, int]:
    """Read the windows by the hour at which they start, a whole one."""
    rows = ledger.store.reader.read("hourly").selectExpr("unix_micros(window_start) AS start", "n").collect()
    return {(row["start"] / 1_000_000 - minute(0).timestamp()) / 3600: row["n"] for row in rows}


@both_folds
def test_windows_fold_apart_and_keep_their_bounds(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    if small < 0:
        monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
        monkeypatch.setattr(fold, "OVERWRITE_WINDOWS", -1)
    for hour in range(3):
        count(ledger, hour, 1)
    ledger.store.fold("hourly")
    count(ledger, 1, 10)
    for _ in range(2):
        assert hourly(ledger) == {0: 1, 1: 11, 2: 1}
        ledger.store.fold("hourly")


@pytest.mark.parametrize(
    "overwrite_from", [pytest.param(1e9, id="a short tail"), pytest.param(0.0, id="a long tail", marks=pytest.mark.slow)]
)
def test_where_time_went_on_the_last_windows_are_written_anew_and_earlier_files_are_left(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, overwrite_from: float
) -> None:
    for name, value in (("SMALL_BASE", -1), ("OVERWRITE_FROM", overwrite_from), ("OVERWRITE_WINDOWS", 1e9)):
        monkeypatch.setattr(fold, name, value)
    for hour in range(3):
        count(ledger, hour, 1)
    ledger.store.fold("hourly")
    table = deltalake.DeltaTable(f"{ledger.store.warehouse}/shop/hourly")
    first = set(table.file_uris())
    count(ledger, 5, 1)
    ledger.store.fold("hourly")
    table.update_incremental()
    assert first < set(table.file_uris())
    count(ledger, 5, 2)
    count(ledger, 6, 1)

    def newer() -> None:
        count(ledger, 4, 7)
        assert folder(ledger).fold("hourly") == 7

    with failpoints.armed("fold.before_merge", newer):
        assert ledger.store.fold("hourly") is None, "a stale fold changes nothing"
    known = {0: 1, 1: 1, 2: 1, 4: 7, 5: 3, 6: 1}
    assert hourly(ledger) == known
    assert ledger.store.fold("hourly") is None
    count(ledger, 1, 10)  # late, and within its grace: all from there on is written anew, which is most of the table
    ledger.store.fold("hourly")
    assert hourly(ledger) == known | {1: 11}
    table.update_incremental()
    assert bool(table.history(1)[0]["operationParameters"].get("predicate")) == (overwrite_from > 1), "the whole table where much waits"
    seen = polars.scan_delta(f"{ledger.store.warehouse}/shop/hourly").select("window_start", "n").collect()
    assert sorted(seen["n"].to_list()) == sorted((known | {1: 11}).values())


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List of how many tasks each overwrite is."""
    overwrite, seen = Folder._overwrite, list[int]()

    def written(folder: Folder, table: TableDef, name: str, rows: DataFrame, *args: Any) -> None:
        seen.append(rows.rdd.getNumPartitions())
        overwrite(folder, table, name, rows, *args)

    monkeypatch.setattr(Folder, "_overwrite", written)
    return seen


def test_beside_a_stream_a_fold_is_one_task_and_gives_the_rows_that_any_fold_gives(
    ledger: Ledger, tasks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    view_for = Reader.view_for
    monkeypatch.setattr(Reader, "view_for", lambda *args: replace(view_for(*args), one_task=-1))  # nothing is small by itself
    for beside in (True, False):
        for _ in range(2):
            tasks.clear()
            ledger.commit({"stock": ledger.sums("stock", {"a": 1, "b": 2, "c": -1})})
            ledger.store.folder.fold_all(["stock"], ledger.writer.known, beside=beside)
        assert (max(tasks) == 1) is beside
    assert plain(ledger, "stock") == ledger.read("stock") == {"a": 4, "b": 8, "c": -4}


def test_a_large_fold_beside_a_stream_is_of_many_short_tasks(ledger: Ledger, tasks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watertable.store.fold.SMALL_FOLD", 0)  # everything is large
    monkeypatch.setattr("watertable.store.fold.SHORT_TASK", 256)
    for beside in (True, False, True):
        ledger.commit({"stock": ledger.sums("stock", {"a": 1, "b": 2, "c": -1})})
        ledger.store.folder.fold_all(["stock"], ledger.writer.known, beside=beside)
    first, alone, again = tasks
    assert min(first, again) > 4 > alone
    assert plain(ledger, "stock") == ledger.read("stock") == {"a": 3, "b": 6, "c": -3}


def test_a_sum_that_leaves_its_type_stops_folds_with_the_tables_name_and_the_way_out(ledger: Ledger) -> None:
    ledger.sell(a=1, b=2**63 - 1)
    ledger.store.fold("stock")
    ledger.sell(b=1)
    with pytest.raises(
        StoreError, match=r"table 'stock' \(.*ledger\.py:\d+\) can't be folded up to shop@1\.2: one of its sums leaves its type"
    ):
        ledger.store.fold("stock")
    assert plain(ledger, "stock") == {"a": 1, "b": 2**63 - 1}


@pytest.mark.slow
def test_a_set_is_folded_without_repeats_however_often_its_parts_come(ledger: Ledger) -> None:
    for part in ("1L, 2L", "2L", "5L, 1L"):
        frame = ledger.deltas("ids", [f"named_struct('k', 'a'), named_struct('seen', array({part})), timestamp'{minute(0):%F %T}'"])
        ledger.commit({"ids": frame})
        ledger.store.fold("ids")
    assert plain(ledger, "ids") == ledger.read("ids") == {"a": 3}


def test_a_fold_may_stop_short_of_the_head(ledger: Ledger) -> None:
    for _ in range(3):
        ledger.sell(a=1)
    assert ledger.store.fold("stock", upto=2) == 2
    assert plain(ledger, "stock") == {"a": 2}
    assert ledger.store.fold("stock", upto=1) is None
    assert ledger.read("stock") == {"a": 3}


@both_folds
@pytest.mark.parametrize("name_it", ["version", pytest.param("time", marks=pytest.mark.slow)])
def test_after_a_restore_to_a_version_or_to_a_time_a_table_is_the_fold_of_its_changelog(
    ledger: Ledger, name_it: str, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    log = ledger.store.reader.log("stock")
    for number in range(1, 5):
        ledger.sell(**{f"k{number}": 1}, a=number)
        ledger.store.fold("stock")
        time.sleep(0.01)  # no two commits are of one millisecond
    version = 2
    pinned = log.at(version)
    assert pinned is not None
    when = datetime.fromtimestamp(pinned.timestamp / 1000, UTC)
    back = f"VERSION AS OF {version}" if name_it == "version" else f"TIMESTAMP AS OF '{when:%F %T.%f}'"
    ledger.spark.sql(f"RESTORE TABLE delta.`{log.path}` TO {back}")
    assert plain(ledger, "stock") == {"a": 3, "k1": 1, "k2": 1}
    assert ledger.store.reader.folded("stock").seq == 2
    assert ledger.read("stock") == ledger.stock
    ledger.sell(a=10)
    ledger.store.fold("stock")
    assert plain(ledger, "stock") == ledger.read("stock") == ledger.stock


@pytest.mark.slow
@both_folds
def test_a_table_that_was_put_back_is_folded_though_nothing_came_since(ledger: Ledger, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    for number in range(1, 4):
        ledger.sell(**{f"k{number}": 1})
        ledger.store.folder.fold_all()
    for back in (2, 0):  # to before its first fold
        for table in ("stock", "low"):  # of the other, states are kept beside it
            ledger.spark.sql(f"RESTORE TABLE delta.`{ledger.store.reader.log(table).path}` TO VERSION AS OF {back}")
        assert ledger.read("stock") == ledger.stock
        ledger.store.folder.fold_all()
        assert plain(ledger, "stock") == plain(ledger, "low") == ledger.stock, f"put back to {back}"
    ledger.sell(k1=1)
    ledger.store.folder.fold_all()
    assert plain(ledger, "stock") == plain(ledger, "low") == ledger.stock


@pytest.mark.slow
def test_a_table_that_was_put_back_behind_what_is_trimmed_is_read_and_folded_whole(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    buckets.resize(2, monkeypatch.setattr)
    for number in range(1, 9):
        ledger.sell(**{f"k{number}": 1})
        ledger.store.folder.fold_all()
    assert ledger.store.upkeep.trim(now=datetime.now(UTC) + timedelta(days=30)) > 2
    log = ledger.store.reader.log("stock")
    ledger.spark.sql(f"RESTORE TABLE delta.`{log.path}` TO VERSION AS OF 2")
    assert plain(ledger, "stock") == {"k1": 1, "k2": 1}
    assert ledger.read("stock") == ledger.stock, "from a newer version of it"
    ledger.store.upkeep.trim(now=datetime.now(UTC) + timedelta(days=30))
    ledger.sell(k9=1)
    assert ledger.read("stock") == ledger.stock
    ledger.store.folder.fold_all()
    assert plain(ledger, "stock") == ledger.stock


@pytest.mark.slow
def test_where_the_log_before_a_restore_to_a_time_is_gone_it_is_asked_for_by_version(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ledger.store.reader.log("stock")
    for number in range(1, 5):
        ledger.sell(a=number)
        ledger.store.fold("stock")
        time.sleep(0.01)
    pinned = log.at(2)
    assert pinned is not None
    when = datetime.fromtimestamp(pinned.timestamp / 1000, UTC)
    ledger.spark.sql(f"RESTORE TABLE delta.`{log.path}` TO TIMESTAMP AS OF '{when:%F %T.%f}'")
    Path(log.path, "_delta_log", f"{3:020}.json").unlink()
    monkeypatch.setattr(deltalog, "_read", {})  # as in a process that hasn't seen it
    with pytest.raises(StoreError, match=r"RESTORE to a time.*log before version 4 is gone.*TO VERSION AS OF"):
        ledger.read("stock")


@pytest.mark.slow
@pytest.mark.parametrize("does", ["DELETE FROM {} WHERE k = 'k1'", "UPDATE {} SET qty = 77", "INSERT INTO {} SELECT 'n', qty, _wt FROM {}"])
def test_rows_that_others_write_into_a_table_are_no_part_of_it_and_gone_with_the_next_fold(ledger: Ledger, does: str) -> None:
    for number in range(1, 4):
        ledger.sell(**{f"k{number}": 1}, a=number)
        ledger.store.folder.fold_all()
    tables = [f"delta.`{ledger.store.reader.log(table).path}`" for table in ("stock", "low")]  # of the other, states are kept beside it
    for came in (False, True):  # since the last fold
        for table in tables:
            ledger.spark.sql(does.format(table, table))
            ledger.spark.sql(f"OPTIMIZE {table}")
        assert plain(ledger, "stock") != ledger.stock
        if came:
            ledger.sell(k1=5, a=1)
        assert ledger.read("stock") == ledger.read("low") == ledger.stock
        assert ledger.read("stock", "shop@1.3") == {"a": 6, "k1": 1, "k2": 1, "k3": 1}
        ledger.store.folder.fold_all()
        assert plain(ledger, "stock") == plain(ledger, "low") == ledger.read("stock") == ledger.stock
    assert not ledger.store.folder.fold_all(), "once"


@pytest.mark.slow
def test_a_table_that_others_have_changed_is_kept_as_it_was_before_where_that_is_old(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.sell(a=1, b=1)
    ledger.store.fold("stock")
    ledger.spark.sql(f"DELETE FROM delta.`{ledger.store.reader.log('stock').path}` WHERE k = 'a'")
    ledger.sell(a=1)
    monkeypatch.setattr(fold, "BEFORE", timedelta(0))
    folder(ledger).fold("stock")
    assert [row["operation"] for row in deltalake.DeltaTable(ledger.store.reader.log("stock").path).history()][:2] == ["WRITE", "RESTORE"]
    assert plain(ledger, "stock") == ledger.read("stock") == ledger.stock
    assert ledger.read("stock", "shop@1.1") == {"a": 1, "b": 1}


@pytest.mark.slow
def test_where_no_version_before_what_others_wrote_is_left_a_table_is_read_from_its_changelog(ledger: Ledger) -> None:
    ledger.sell(a=1, b=1)
    ledger.store.fold("stock")
    ledger.sell(a=1)
    table = f"delta.`{ledger.store.reader.log('stock').path}`"
    ledger.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 0 seconds')")
    for does in (f"DELETE FROM {table} WHERE k = 'b'", f"UPDATE {table} SET qty = 5"):
        ledger.spark.sql(does)
    assert plain(ledger, "stock") == {"a": 5}
    assert ledger.read("stock") == ledger.stock
    ledger.store.fold("stock")
    assert plain(ledger, "stock") == ledger.read("stock") == ledger.stock


_MAPPED = "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "gone"), [("RENAME COLUMN qty TO amount", "qty"), ("DROP COLUMN qty", "qty"), ("RENAME COLUMN k TO key", "k")]
)
def test_a_table_whose_columns_others_have_renamed_or_dropped_is_refused_until_it_is_put_back(ledger: Ledger, does: str, gone: str) -> None:
    ledger.sell(a=1, b=2)
    ledger.store.folder.fold_all()
    tables = {name: f"delta.`{ledger.store.reader.log(name).path}`" for name in ("stock", "low")}  # of low, states are kept beside it
    for name, table in tables.items():
        ledger.spark.sql(f"ALTER TABLE {table} {_MAPPED}")
        before = deltalake.DeltaTable(ledger.store.reader.log(name).path).version()
        ledger.spark.sql(f"ALTER TABLE {table} {does}")
        ledger.sell(a=3)
        refused = rf"shop/{name} has no column {gone}, .*ledger\.py:\d+.*somebody has renamed or dropped it.*RESTORE TABLE"
        with pytest.raises(StoreError, match=refused):
            ledger.store.folder.fold_all()
        if name == "stock":
            with pytest.raises(StoreError, match=refused):
                ledger.read(name)
        ledger.spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {before}")
        assert ledger.read(name) == ledger.stock
        ledger.store.folder.fold_all()
        assert dict(ledger.spark.sql(f"SELECT k, qty FROM {table}").collect()) == ledger.stock  # type: ignore[arg-type]


@pytest.mark.slow
@both_folds
@pytest.mark.parametrize(
    ("does", "undone"),
    [
        ("SET TBLPROPERTIES ('delta.appendOnly' = 'true')", "UNSET TBLPROPERTIES ('delta.appendOnly')"),
        ("ADD CONSTRAINT few CHECK (qty < {})", "DROP CONSTRAINT few"),
    ],
)
def test_a_fold_that_others_have_forbidden_says_what_allows_it_again(
    ledger: Ledger, does: str, undone: str, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 1e9)
    ledger.sell(a=1, b=2)
    ledger.store.folder.fold_all()
    for name, most in (("stock", 4), ("low", 7)):  # of low, states are kept beside it
        table = f"delta.`{ledger.store.reader.log(name).path}`"
        ledger.spark.sql(f"ALTER TABLE {table} {does.format(most)}")
        ledger.sell(a=3)
        with pytest.raises(StoreError, match=rf"'{name}' .*ledger\.py:\d+.* can't be folded.*ALTER TABLE delta.*{undone.split()[0]}"):
            ledger.store.folder.fold_all()
        assert ledger.read(name) == ledger.stock
        ledger.spark.sql(f"ALTER TABLE {table} {undone}")
        ledger.store.folder.fold_all()
        assert plain(ledger, name) == ledger.stock
