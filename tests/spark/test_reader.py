"""Hold reading to its law: all tables at one position, whatever folds and trims do meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta.tables import DeltaTable

import watertable as wt
from tests import buckets
from tests.properties.engines import tiny
from tests.spark.ledger import Ledger, minute
from tests.spark.test_rewind import rewound
from watertable.errors import PositionGone, TableNotFound, UnknownPosition
from watertable.store import deltalog, views
from watertable.store.commits import Advance, CommitInfo, Position
from watertable.store.deltalog import DeltaLog
from watertable.store.reader import Reader, event_time
from watertable.store.writer import WRITER_LINE, Retention

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trim by two commits rather than by a thousand."""
    buckets.resize(2, monkeypatch.setattr)


def test_a_reader_sees_one_position_of_all_tables_while_folds_land_between_its_pins(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.sell(a=1, b=1)
    ledger.store.fold("stock")
    ledger.sell(a=1)
    pin: Callable[[], object] = ledger.store.changelog.snapshot
    seen: list[int] = []

    def meanwhile() -> object:
        if not seen:  # the bases are pinned already: `stock` before this fold, `low` before its first
            seen.append(1)
            ledger.sell(a=1, b=1)
            ledger.store.folder.fold_all(["stock", "low"])
            ledger.sell(b=1)
        return pin()

    monkeypatch.setattr(ledger.store.reader.changelog, "snapshot", meanwhile)
    tables = ledger.store.reader.read_all(["stock", "low"])
    found = {name: {r[0]: r[1] for r in frame.collect()} for name, frame in tables.items()}
    assert found == {"stock": {"a": 3, "b": 3}, "low": {"a": 3, "b": 3}}


def test_of_a_small_base_delta_is_asked_for_its_files_once(ledger: Ledger, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.sell(a=1, b=1)
    ledger.store.fold("stock")
    ledger.sell(a=1)
    ledger.read("stock")  # Delta computes the state of a version once
    jobs = []
    for most in (views.WHOLE_BASE, -1):
        monkeypatch.setattr(views, "WHOLE_BASE", most)
        group = f"read {most} {id(ledger)}"
        spark.sparkContext.setJobGroup(group, "a read")
        assert ledger.read("stock") == {"a": 2, "b": 1}
        jobs.append(len(spark.sparkContext.statusTracker().getJobIdsForGroup(group)))
    assert jobs[0] <= jobs[1] - 3, "one job in place of two for each frame of it"


def test_rows_are_told_apart_by_their_keys_whatever_their_columns_are_called(spark: SparkSession) -> None:
    rows = spark.sql("SELECT * FROM VALUES (1, 2), (2, 1) AS t(__k0, k)")
    keys = spark.sql("SELECT named_struct('k', 1) AS key")
    assert [tuple(row) for row in views.only(rows, keys, "left_anti", of="").collect()] == [(1, 2)]


def test_files_whose_timestamps_are_int96_are_read_and_folded_beside_newer_ones(ledger: Ledger, spark: SparkSession) -> None:
    form = "spark.sql.parquet.outputTimestampType"
    assert spark.conf.get(form) == "TIMESTAMP_MICROS"
    spark.conf.set(form, "INT96")  # as releases up to 0.1.0 wrote them
    try:
        ledger.name(1, a=(1, "apple"), b=(1, "beer"))
        ledger.store.fold("names")
        ledger.name(2, a=(2, "avocado"))
    finally:
        spark.conf.set(form, "TIMESTAMP_MICROS")
    ledger.name(3, b=(3, "bread"), c=(3, "corn"))
    expected = {"a": "avocado", "b": "bread", "c": "corn"}
    assert ledger.read("names") == expected
    ledger.store.fold("names")
    assert ledger.read("names") == expected
    ledger.name(4, a=(1, "too early to count"))
    assert ledger.read("names") == expected, "places of both kinds of file are compared"


def test_a_frame_that_was_read_does_not_change_when_the_table_does(ledger: Ledger) -> None:
    ledger.sell(a=1)
    ledger.store.fold("stock")
    ledger.sell(a=1)
    frame = ledger.store.reader.read("stock")
    ledger.sell(a=1)
    ledger.store.fold("stock")
    assert [tuple(r) for r in frame.collect()] == [("a", 2)]


def test_at_takes_positions_versions_times_and_offsets(ledger: Ledger) -> None:
    times = []
    for number in range(1, 5):
        ledger.sell(reached={"moves": number * 10, "names": None}, a=1)
        last = ledger.writer.last
        assert last is not None
        times.append(last.commit_time)
        if number == 2:
            ledger.store.fold("stock")
    read = ledger.read
    assert [read("stock", f"shop@1.{n}") for n in range(1, 5)] == [{"a": n} for n in range(1, 5)]
    assert read("stock", Position("shop", 1, 3)) == {"a": 3}
    assert read("stock", times[2]) == {"a": 3}
    assert read("stock", times[2] - timedelta(microseconds=1)) == {"a": 2}
    assert read("stock", event_time(minute(20))) == {"a": 2}
    assert read("stock", event_time(minute(39))) == {"a": 3}
    assert read("stock", {("moves", 0): 30}) == {"a": 3}
    assert read("stock", {("moves", 0): 29, ("names", 0): 40}) == {"a": 2}
    assert read("stock", {"moves": {0: 30}}) == read("stock", {"moves": {"0": 30}, "names": {"0": 40}}) == {"a": 3}
    version = ledger.store.reader.view(["stock"]).bases["stock"].snapshot
    assert version is not None
    assert read("stock", version.version) == {"a": 2}


@pytest.mark.parametrize(
    ("at", "why"),
    [("shop@1.9", "isn't there yet"), ("other@1.1", "app 'other'"), ("nonsense", "no position"), (datetime(2026, 1, 1), "no time zone"),
     (datetime(2999, 1, 1, tzinfo=UTC), "in the future"),
     (date(2026, 1, 1), r"no position: write one \(shop@1.481\)"), (77, "no version 77; it is at 1"),
     (1 << 63, "no version 9223372036854775808"), (-1, "no version -1"), (1.5, "no position"),
     ({("mvoes", 0): 3}, "reads no partition 0 of topic 'mvoes'"), ({"moves": {1: 3}}, "reads no partition 1 of topic 'moves'"),
     ({"moves": {0: 1000}}, "up to offset 10; 1,000 is in its future"), ({"moves": {0: -3}}, "offsets are written"),
     ({"moves": 3}, "offsets are written"),
     ({"moves": {"zero": 3}}, "offsets are written"), ({"moves": {0: 3.5}}, "offsets are written"), ({}, "offsets are written")],
)  # fmt: skip
def test_a_position_that_never_was_is_refused_with_the_reason(ledger: Ledger, at: object, why: str) -> None:
    ledger.sell(a=1)
    ledger.store.fold("stock")
    with pytest.raises(UnknownPosition, match=why) as refused:
        ledger.read("stock", at)
    assert type(refused.value) is UnknownPosition, "what never was isn't gone"


def test_before_the_first_commit_of_an_app_that_keeps_it_there_is_nothing(ledger: Ledger) -> None:
    ledger.sell({"moves": 10, "names": None}, a=1)
    ledger.store.fold("stock")
    for early in (datetime(2001, 1, 1, tzinfo=UTC), event_time(minute(9)), {"moves": {0: 9}}):
        assert str(ledger.store.reader.view(["stock"], early).position) == "shop@1.0"
        assert ledger.read("stock", early) == {}
        assert [(r.key.k, r.old) for r in ledger.store.reader.changes("stock", early).collect()] == [("a", None)]


def test_an_event_time_is_one_of_the_topics_that_the_tables_read(ledger: Ledger) -> None:
    ledger.sell({"moves": 100, "names": 1}, a=1)
    app = wt.App("shop")
    app.topic("names", key="k STRING", value="name STRING").table().materialized_as("names")
    without = Ledger.open(ledger.spark, ledger.store.warehouse, topology=app.topology())  # in its commits, `moves` stands still
    for number in (2, 3):
        rows = {"names": without.names({"x": (number * 10, f"n{number}")})}
        info = CommitInfo(begin={}, next={}, stream_times={("names", 0): minute(number * 10)})
        without.writer.commit(rows, info)
    assert without.read("names", event_time(minute(29))) == {"x": "n2"}
    assert without.read("names", event_time(minute(30))) == {"x": "n3"}


def test_changes_since_nowhere_are_refused_and_not_none(ledger: Ledger) -> None:
    ledger.sell(a=5)
    with pytest.raises(UnknownPosition, match=r"None is no position to begin from: shop@1\.0 is before the app's first commit"):
        ledger.store.reader.changes("stock", None)  # type: ignore[arg-type]  # what a consumer has that has kept no position yet
    assert ledger.store.reader.changes("stock", "shop@1.0").count() == 1


def test_what_is_no_time_is_refused_as_one_without_a_zone_is() -> None:
    with pytest.raises(UnknownPosition, match=r"'2024-01-01' has no time zone; write datetime\(..., tzinfo=UTC\)"):
        event_time("2024-01-01")  # type: ignore[arg-type]


def test_an_unknown_table_is_named_beside_those_there_are(ledger: Ledger) -> None:
    with pytest.raises(TableNotFound, match="hourly, ids, low, names, stock"):
        ledger.store.reader.read("stok")


def test_changes_are_old_and_new_rows_of_the_keys_that_differ(ledger: Ledger) -> None:
    ledger.sell(a=1, b=1)
    ledger.store.fold("stock")
    ledger.sell(a=5, c=2)
    ledger.sell(c=-2, b=1)
    ledger.sell(b=-1)
    ledger.store.fold("stock")

    def changes(table: str, start: str, end: str | None = None) -> dict[str, tuple[int | None, int | None]]:
        rows = ledger.store.reader.changes(table, start, end).collect()
        return {r["key"]["k"]: tuple(None if v is None else v["qty"] for v in (r["old"], r["new"])) for r in rows}  # type: ignore[misc]

    assert changes("stock", "shop@1.0", "shop@1.1") == {"a": (None, 1), "b": (None, 1)}
    assert changes("stock", "shop@1.1") == {"a": (1, 6), "c": (None, 0)}
    assert changes("stock", "shop@1.3", "shop@1.1") == {"a": (6, 1), "b": (2, 1), "c": (0, None)}
    assert changes("stock", "shop@1.4") == {}
    ledger.sell(a=10)
    assert changes("low", "shop@1.4") == {"a": (6, None)}


def test_status_tells_how_far_each_table_is_behind(ledger: Ledger) -> None:
    ledger.sell(a=1)
    ledger.store.fold("stock")
    ledger.sell(a=1, b=1)
    status = ledger.store.reader.status()
    assert status.position == Position("shop", 1, 2)
    stock, low = status.tables["stock"], status.tables["low"]
    assert (stock.folded.seq, stock.commits_behind, stock.folded_rows) == (1, 1, 1)
    assert (low.version, low.commits_behind) == (None, 2)
    assert timedelta(0) < stock.behind < low.behind < timedelta(minutes=10)
    ledger.sell(b=10)
    ledger.store.folder.fold_all()
    assert {name: t.folded_rows for name, t in ledger.store.reader.status().tables.items() if t.folded_rows} == {"stock": 2, "low": 1}


def test_a_table_is_behind_by_the_commits_of_code_that_keeps_it(ledger: Ledger) -> None:
    ledger.sell(a=1)
    app = wt.App("shop")
    moves = app.topic("moves", key="k STRING", value="k STRING, qty BIGINT").stream()
    moves.group_by("value.k").agg(qty=wt.sum("qty")).materialized_as("stock")
    moves.group_by("value.k").count().materialized_as("counts")
    topology = app.topology()

    def behind(reader: Reader) -> dict[str, tuple[int, bool]]:
        return {name: (t.commits_behind, t.behind > timedelta(0)) for name, t in reader.status().tables.items()}

    assert behind(Reader(ledger.spark, ledger.store.warehouse, "shop", topology.tables)) == {"stock": (1, True), "counts": (0, False)}
    rolled_in = Ledger.open(ledger.spark, ledger.store.warehouse, topology=topology)
    assert behind(rolled_in.store.reader) == {"stock": (1, True), "counts": (0, False)}
    rolled_in.commit({"stock": rolled_in.sums("stock", {"a": 1}), "counts": rolled_in.sums("counts", {"a": 1})})
    assert behind(rolled_in.store.reader) == {"stock": (2, True), "counts": (1, True)}
    rolled_in.store.folder.fold_all()
    assert behind(rolled_in.store.reader) == {"stock": (0, False), "counts": (0, False)}


def test_the_rows_that_a_tables_files_tell_of_are_those_that_are_there(spark: SparkSession, tmp_path: Path) -> None:
    log, path = DeltaLog(spark, str(tmp_path)), f"delta.`{tmp_path}`"
    spark.sql(f"CREATE TABLE {path} (id BIGINT) USING delta TBLPROPERTIES (delta.enableDeletionVectors = true)")

    def counted() -> int:
        snapshot = log.latest()
        assert snapshot is not None
        assert snapshot.rows == snapshot.frame().count()
        return snapshot.rows

    assert counted() == 0
    spark.range(10).write.format("delta").mode("overwrite").save(str(tmp_path))
    assert counted() == 10
    spark.range(5).repartition(2).write.format("delta").mode("append").save(str(tmp_path))
    assert counted() == 15
    spark.sql(f"DELETE FROM {path} WHERE id = 3")
    assert counted() == 13
    silent = spark.newSession()
    silent.conf.set("spark.databricks.delta.stats.collect", "false")
    silent.range(7).write.format("delta").mode("append").save(str(tmp_path))
    assert counted() == 20


@pytest.mark.slow
@pytest.mark.usefixtures("small_buckets")
def test_a_trim_takes_what_nobody_can_need_and_says_so_afterwards(spark: SparkSession, tmp_path: Path) -> None:
    ledger = Ledger.open(spark, str(tmp_path), Retention(timedelta(days=7), timedelta(days=1)))
    for number in range(1, 9):
        ledger.sell(a=1)
        if number % 3 == 0:
            ledger.store.folder.fold_all()
    keeper = ledger.store.upkeep
    assert keeper.trim() == 0, "everything is within the horizon"
    assert keeper.trim([Position("shop", 1, 1)], now=datetime.now(UTC) + timedelta(days=30)) == 1, "a consumer still reads from seq 2"
    assert keeper.trim(now=datetime.now(UTC) + timedelta(days=30)) == 3, "tables are folded up to seq 6"
    assert ledger.read("stock") == ledger.stock == {"a": 8}
    assert [ledger.read("stock", f"shop@1.{n}") for n in (6, 7, 8)] == [{"a": 6}, {"a": 7}, {"a": 8}]
    with pytest.raises(UnknownPosition, match="trimmed up to seq"):
        ledger.read("stock", "shop@1.2")
    with pytest.raises(UnknownPosition, match=r"at or before the offsets .* isn't kept any more; the oldest after it is shop@1\.6"):
        ledger.read("stock", {"moves": {0: 20}})
    again = ledger.restart()
    again.sell(a=1)
    assert again.read("stock") == {"a": 9}


@pytest.mark.slow
@pytest.mark.usefixtures("small_buckets")
def test_advances_outlive_the_commits_that_made_them(ledger: Ledger) -> None:
    clocked = (Advance("moves", 0, 3, minute(6), minute(60)), Advance("moves", 0, 3, minute(7), minute(60)))
    made = (Advance("moves", 0, 3, minute(5)), Advance("moves", 0, 3, minute(9)), Advance("moves", 1, 0, minute(2)), *clocked)
    ledger.writer.commit({}, CommitInfo(topic_ids={"moves": "id-m"}, advances=made))
    for _ in range(3):
        ledger.sell(a=1)
    ledger.store.folder.fold_all()
    log, ids = ledger.store.changelog, {"moves": "id-m", "names": "id-n"}
    assert set(log.advances(ids)) == {*made[1:]}
    ledger.sell(a=1)
    assert ledger.store.upkeep.trim(now=datetime.now(UTC) + timedelta(days=30)) > 0
    assert log.rows(log.snapshot(), "c.kind = 'batch' AND seq = 1") == []
    assert set(log.advances(ids)) == {*made[1:]}
    assert log.advances({"moves": "another"}) == ()
    assert ledger.restart().store.head().position.seq == 5


@pytest.mark.slow
def test_a_table_keeps_its_past_as_long_as_the_horizon_that_is_set_now(spark: SparkSession, tmp_path: Path) -> None:
    ledger = Ledger.open(spark, str(tmp_path), Retention(timedelta(days=7)))
    for _ in range(2):
        ledger.sell(a=1)
        ledger.store.fold("stock")
    log = ledger.store.reader.log("stock")
    first, since = log.path + f"/_delta_log/{1:020}.json", (datetime.now(UTC) - timedelta(days=9)).timestamp()
    os.utime(first, (since, since))
    assert log.at(1) is None, "nine days ago is beyond a week"
    again = Ledger.open(spark, str(tmp_path), Retention(timedelta(days=30)))
    assert again.sell(a=1)
    again.store.upkeep.vacuum()
    again.store.fold("stock")
    assert again.read("stock", "shop@1.1") == {"a": 1}
    assert log.at(1) is not None
    again.store.upkeep.vacuum()
    said = [row.operation for row in DeltaTable.forPath(spark, log.path).history().collect()]
    assert said.count("SET TBLPROPERTIES") == 1, "it is told once"


def test_a_base_whose_files_somebody_has_vacuumed_away_is_gone_on_from_nowhere(spark: SparkSession, tmp_path: Path) -> None:
    ledger = Ledger.open(tiny(spark), str(tmp_path))
    for _ in range(2):
        ledger.sell(a=1)
        ledger.store.fold("stock")
    log = ledger.store.reader.log("stock")
    ledger.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    ledger.spark.sql(f"VACUUM delta.`{log.path}` RETAIN 0 HOURS")
    ledger = ledger.restart()
    deltalog._older.clear()  # nobody looks again for a minute
    assert [ledger.read("stock", f"shop@1.{n}") for n in (1, 2)] == [{"a": 1}, {"a": 2}], "from the changelog"
    versions = [row.version for row in DeltaTable.forPath(spark, log.path).history().collect() if row.operation == "WRITE"]
    assert ledger.read("stock", max(versions)) == {"a": 2}
    with pytest.raises(PositionGone, match=f"has no version {min(versions)} that holds a fold and that Delta can still read"):
        ledger.read("stock", min(versions))
    ledger = rewound(ledger, "1")
    ledger.sell(b=5)
    ledger.store.fold("stock")
    assert ledger.read("stock") == {"a": 1, "b": 5}
    assert {(row.k, row.qty) for row in spark.read.format("delta").load(log.path).collect()} == {("a", 1), ("b", 5)}


@pytest.mark.slow
def test_upkeep_beside_a_writer_changes_no_row_and_stops_nobody(ledger: Ledger) -> None:
    for _ in range(3):
        ledger.sell(a=1)
    ledger.store.fold("stock")
    from watertable import failpoints

    with failpoints.armed("upkeep.after_optimize", lambda: ledger.sell(a=1) and None):
        ledger.store.upkeep.maintain()
    ledger.sell(a=1)
    assert ledger.read("stock") == ledger.stock == {"a": 5}
    assert ledger.read("stock", "shop@1.2") == {"a": 2}


@pytest.mark.slow
def test_an_epoch_reads_its_parent_up_to_the_fork_and_a_fold_repairs_the_table(ledger: Ledger) -> None:
    for _ in range(4):
        ledger.sell(a=1)
    ledger.store.fold("stock", upto=2)
    ledger.store.fold("stock")
    log = ledger.store.changelog
    fork = CommitInfo(kind="epoch", epoch=2, seq=2, generation=9, parent=1, fork=2)
    rows = log.append_rows([], fork, bucket=-1)
    log.log.append(rows, line=WRITER_LINE, number=9 << 40, since=log.snapshot().version, note="epoch shop@2.2")
    assert ledger.store.reader.position() == Position("shop", 2, 2)
    assert ledger.read("stock") == {"a": 2}
    again = ledger.restart()
    assert again.writer.generation == 10
    again.offsets = {("moves", 0): 20, ("names", 0): 20}
    assert again.sell(a=100) == Position("shop", 2, 3)
    assert again.read("stock") == {"a": 102}
    assert again.read("stock", "shop@1.4") == {"a": 4}
    assert again.store.fold("stock") == 3
    assert again.read("stock") == {"a": 102}
    assert again.read("stock", "shop@1.3") == {"a": 3}
    rows = again.store.reader.changes("stock", "shop@1.4", "shop@2.3").collect()
    assert [(r["old"]["qty"], r["new"]["qty"]) for r in rows] == [(4, 102)]
