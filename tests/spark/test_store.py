"""Hold the store to its laws: one append is one transaction, commits have no gap, and one writer at a time makes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta.tables import DeltaTable

from tests.spark.ledger import Ledger, minute
from watertable import failpoints
from watertable.errors import Fenced, FormatError, StoreError, TableNotFound, UnknownPosition
from watertable.schema import Schema
from watertable.session import UPKEEP_POOL, job_group, shuffled_by
from watertable.store import changelog, deltalog, writer
from watertable.store.bases import STATE_PROPERTY
from watertable.store.commits import CLOCKED, KNOWN, Advance, CommitInfo, Lineage, Position, Span
from watertable.store.deltalog import DeltaLog
from watertable.store.reader import Reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def test_a_commit_holds_tables_outbox_quarantine_and_position_in_one_version_of_one_table(ledger: Ledger, spark: SparkSession) -> None:
    outbox = spark.sql(
        "SELECT 'orders.v1' AS topic, X'01' AS key, X'02' AS value, current_timestamp() AS timestamp, current_timestamp() AS st, "
        "'moves' AS src_topic, 0 AS src_partition, 7L AS src_offset, 0L AS ord, 0L AS ordinal, "
        "array(named_struct('key', 'h', 'value', X'03')) AS headers"
    )
    quarantine = spark.sql(
        "SELECT 'moves' AS topic, 0 AS partition, 3L AS offset, current_timestamp() AS timestamp, X'6b' AS key, X'ff' AS value, "
        "'sales' AS node, 'app.py:3' AS location, 'not JSON' AS reason, array(named_struct('key', 'h', 'value', X'03')) AS headers"
    )
    before = ledger.store.changelog.snapshot().version
    frames = {"stock": ledger.sums("stock", {"a": 2, "b": 3}), "low": ledger.sums("low", {"a": 2})}
    position = ledger.writer.commit(frames, ledger.info(), outbox=outbox, quarantine=quarantine)
    snapshot = ledger.store.changelog.snapshot()
    assert (position, snapshot.version) == (Position("shop", 1, 1), before + 1)
    rows = {r["table"]: r["count"] for r in snapshot.frame().where("seq = 1").groupBy("table").count().collect()}
    assert rows == {"stock": 2, "low": 1, "__out_orders.v1": 1, "__quarantine": 1, "__commit": 1}
    assert dict(ledger.writer.rows) == rows
    assert snapshot.frame().where("seq = 1 AND out_v1.src_offset = 7").count() == 1
    ((*_, headers),) = ledger.store.changelog.outbox(snapshot, ledger.store.head().lineage, 0, 1)
    assert headers == (("h", b"\x03"),)
    assert ledger.read("stock") == {"a": 2, "b": 3}


def outbox(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(value,) for value in values], "n INT").selectExpr(
        "'low' AS topic", "X'01' AS key", "CAST(CAST(n AS STRING) AS BINARY) AS value", "timestamp_seconds(0) AS timestamp",
        "timestamp_seconds(0) AS st", "'moves' AS src_topic", "0 AS src_partition", "CAST(n AS BIGINT) AS src_offset",
        "CAST(n AS BIGINT) AS ord", "CAST(n AS BIGINT) AS ordinal", "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
    )  # fmt: skip


@pytest.mark.parametrize("at_hand", [changelog._AT_HAND, 0])
def test_what_is_sent_of_an_outbox_is_left_out_and_the_rest_has_the_numbers_that_it_had(
    ledger: Ledger, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, at_hand: int
) -> None:
    monkeypatch.setattr(changelog, "_AT_HAND", at_hand)
    for values in ((30, 10, 20), (50, 40), (60,)):
        info = ledger.info()
        ledger.writer.commit({}, info, outbox=outbox(spark, *values))
        ledger.offsets |= info.next
    log, lineage = ledger.store.changelog, ledger.store.head().lineage

    def read(after: int, **sent: tuple[int, int]) -> list[tuple[int, int, bytes | None]]:
        return [(seq, number, value) for seq, number, _, _, value, *_ in log.outbox(log.snapshot(), lineage, after, 3, **sent)]

    every = [(1, 0, b"10"), (1, 1, b"20"), (1, 2, b"30"), (2, 0, b"40"), (2, 1, b"50"), (3, 0, b"60")]
    assert read(0) == every
    assert read(0, sent=(1, 1)) == every[2:]
    assert read(0, sent=(2, -1)) == every[3:]
    assert read(1, sent=(1, 1)) == every[3:]
    assert read(2, sent=(3, 0)) == []


def test_few_rows_to_publish_are_one_job_however_many_cores_there_are(ledger: Ledger, spark: SparkSession) -> None:
    ledger.writer.commit({}, ledger.info(), outbox=outbox(spark, *range(100)))
    log, lineage, spent = ledger.store.changelog, ledger.store.head().lineage, []
    for cores in (2, 12):
        with shuffled_by(spark, cores), job_group(spark, f"publish by {cores}", "publish", UPKEEP_POOL) as jobs:
            assert len(list(log.outbox(log.snapshot(), lineage, 0, 1))) == 100
            spent.append(jobs())
    assert spent == [1, 1]


def test_a_store_whose_rows_lack_a_member_is_given_it_when_its_app_starts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for name in ("out_v1", "quarantine_v1"):
            older = Schema(tuple(c for c in changelog._SYSTEM[name].fields if c.name != "headers"))
            patch.setitem(changelog.SYSTEM_COLUMNS, name, older.struct().sql())
            patch.setitem(changelog._SYSTEM, name, older.struct())
        old = Ledger.open(spark, str(tmp_path))
        old.commit({"stock": old.sums("stock", {"a": 2})})
        before = old.store.changelog.snapshot()
        assert not any("headers" in before.members(name) for name in ("out_v1", "quarantine_v1"))
    again = old.restart()
    after = again.store.changelog.snapshot()
    assert [after.members(name)[-1] for name in ("out_v1", "quarantine_v1")] == ["headers", "headers"]
    rows = spark.sql(
        "SELECT 'low' AS topic, X'01' AS key, X'02' AS value, current_timestamp() AS timestamp, current_timestamp() AS st, "
        "'moves' AS src_topic, 0 AS src_partition, 7L AS src_offset, 0L AS ord, 0L AS ordinal, "
        "array(named_struct('key', 'h', 'value', X'03')) AS headers"
    )
    again.writer.commit({}, again.info(), outbox=rows)
    ((*_, headers),) = again.store.changelog.outbox(again.store.changelog.snapshot(), again.store.head().lineage, 0, 2)
    assert headers == (("h", b"\x03"),)
    assert again.read("stock") == {"a": 2}


def test_who_dies_while_it_makes_a_table_leaves_a_folder_in_which_the_next_one_makes_it(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("changelog", "stock"):
        (tmp_path / "shop" / name / "_delta_log").mkdir(parents=True)
    ledger = Ledger.open(spark, str(tmp_path))
    ledger.sell(a=5)
    assert ledger.store.fold("stock") == 1
    stock = ledger.restart().store.reader.log("stock").latest()
    assert stock is not None
    assert stock.property(STATE_PROPERTY) == ledger.table("stock").state_column
    assert stock.property("delta.enableDeletionVectors") == "true"


def test_of_two_that_make_a_table_at_once_one_does_and_the_other_finds_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, slow = (DeltaLog(spark, f"{tmp_path}/t") for _ in range(2))
    read = DeltaLog._action

    def overtaken(log: DeltaLog, text: str) -> object:
        if log is slow:
            quick.create(["a INT"], {"by": "quick"})
        return read(log, text)

    monkeypatch.setattr(DeltaLog, "_action", overtaken)
    slow.create(["b INT"], {"by": "slow"})
    slow.create(["b INT"], {"by": "slow"})
    made = slow.latest()
    assert made is not None
    assert (made.version, made.columns, made.property("by")) == (0, ("a",), "quick")


def numbers(log: DeltaLog) -> list[tuple[int, ...]]:
    """Read all rows of a table as it is, in order."""
    latest = log.latest()
    assert latest is not None
    return sorted(tuple(row) for row in latest.frame().collect())


def test_a_table_is_written_anew_with_its_columns_and_properties_in_one_commit_of_one_spark_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = DeltaLog(spark, f"{tmp_path}/t")
    log.create(["a BIGINT"], {"by": "one", "kept": "yes"})
    log.overwrite(spark.range(3).toDF("a"), line="l", number=1, since=0, properties={"by": "one"}, columns=["a BIGINT"])
    spark.sparkContext.setJobGroup(f"anew {tmp_path}", "the table anew")
    rows = spark.range(2).selectExpr("id AS a", "10 * id AS b")
    log.overwrite(rows, line="l", number=2, since=1, properties={"by": "two"}, columns=["a BIGINT", "b BIGINT"])
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(f"anew {tmp_path}")) == 1
    latest, commit = log.latest(), log.commit(2)
    assert latest is not None
    assert commit is not None
    assert (latest.version, latest.columns, latest.property("by"), latest.property("kept")) == (2, ("a", "b"), "two", "yes")
    assert numbers(log) == [(0, 0), (1, 10)]
    assert (commit.replaces, commit.transactions) == (True, {"l": 2})
    with pytest.raises(Fenced, match="version 2 is by another writer of 'l'"):
        log.overwrite(rows, line="l", number=3, since=1, properties={}, columns=())
    assert numbers(log) == [(0, 0), (1, 10)]


def test_some_files_are_written_anew_only_in_the_version_that_they_were_listed_of(spark: SparkSession, tmp_path: Path) -> None:
    log = DeltaLog(spark, f"{tmp_path}/t")
    log.create(["a BIGINT"], {"delta.enableDeletionVectors": "true"})
    for start in (0, 10, 20):
        log.append(spark.range(start, start + 2).toDF("a").coalesce(1))
    DeltaTable.forPath(spark, log.path).delete("a = 10")  # of one of the files, a row is gone by a deletion vector
    listed = log.latest()
    assert listed is not None
    files = listed.files("a >= 11")
    assert files.number == 2
    assert sorted(row.a for row in listed.frame(files).collect()) == [11, 20, 21]
    anew = {"line": "l", "number": 1, "properties": {}, "columns": (), "only": files, "where": "a >= 11"}
    log.overwrite(spark.range(10, 13).toDF("a"), since=4, **anew)
    commit = log.commit(5)
    assert commit is not None
    assert not commit.replaces
    assert numbers(log) == [(0,), (1,), (10,), (11,), (12,)]
    DeltaTable.forPath(spark, log.path).optimize().executeCompaction()
    latest = log.latest()
    assert latest is not None
    files = latest.files("a >= 11")
    with pytest.raises(Fenced, match="version 6 isn't 5"):
        log.overwrite(spark.range(1).toDF("a"), since=5, **anew | {"number": 2, "only": files})
    assert numbers(log) == [(0,), (1,), (10,), (11,), (12,)]


def test_the_number_of_tables_does_not_change_the_number_of_spark_jobs(ledger: Ledger, spark: SparkSession) -> None:
    jobs = []
    for number, tables in enumerate((["stock"], ["stock", "low"])):
        frames = {name: ledger.sums(name, {"a": 1}) for name in tables}
        spark.sparkContext.setJobGroup(f"commit {number} {id(ledger)}", "a commit")
        ledger.commit(frames)
        jobs.append(len(spark.sparkContext.statusTracker().getJobIdsForGroup(f"commit {number} {id(ledger)}")))
    assert jobs == [1, 1]


def test_a_commit_row_says_everything_it_was_told_to_the_microsecond(ledger: Ledger) -> None:
    told = CommitInfo(
        begin={("moves", 0): 0, ("moves", 1): 5}, next={("moves", 0): 10, ("moves", 1): 5},
        stream_times={("moves", 0): datetime(2010, 12, 1, 8, 26, 0, 123456, tzinfo=UTC), ("moves", 1): None},
        topic_ids={"moves": "Xy_-1"},
        advances=(Advance("moves", 1, 5, minute(7)), Advance("moves", 1, 5, minute(8), minute(99)), Advance("moves", 1, 5, minute(9))),
        counters={"records": 10, "dropped:app.py:3:null_key": 1},
    )  # fmt: skip
    ledger.writer.commit({}, told)
    found = ledger.store.head().last
    assert found is not None
    for name in ("begin", "next", "stream_times", "topic_ids", "advances", "counters"):
        assert getattr(found, name) == getattr(told, name)
    assert found.format == CLOCKED, "earlier releases would pass the clock over"
    assert (found.kind, found.seq, found.writer) == ("batch", 1, ledger.writer._fence.writer)
    assert found.reached({topic for topic, _ in found.stream_times}) is None
    assert abs(datetime.now(UTC) - found.commit_time) < timedelta(minutes=5)


def test_a_batch_is_numbered_after_all_before_it_though_the_clock_is_put_back(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    hours = iter((2, 0, 1, 0))
    monkeypatch.setattr(writer, "now_after", lambda earlier: max(now + timedelta(hours=next(hours)), earlier))
    first = ledger.writer.number()
    ledger.sell(a=1)
    second = ledger.writer.number()
    ledger.sell(a=1)
    monkeypatch.undo()
    assert first < second < ledger.restart().writer.number()


def test_a_batch_must_begin_where_the_last_commit_ended(ledger: Ledger) -> None:
    ledger.sell(a=1)
    for begin, end in ((11, 12), (9, 12), (10, 8)):
        with pytest.raises(StoreError, match=r"offset|back"):
            ledger.writer.commit({}, CommitInfo(begin={("moves", 0): begin}, next={("moves", 0): end}))
    ledger.sell(a=1)
    assert ledger.store.head().position == Position("shop", 1, 2)


def test_a_start_goes_on_where_the_last_commit_ended_and_partitions_it_does_not_name_stay(ledger: Ledger) -> None:
    ledger.sell(a=1)
    again = ledger.restart()
    again.writer.commit({}, CommitInfo(begin={("moves", 0): 10}, next={("moves", 0): 15}, stream_times={("moves", 0): minute(3)}))
    last = ledger.restart().writer.last
    assert last is not None
    assert last.next == {("moves", 0): 15, ("names", 0): 10}
    assert last.stream_times == {("moves", 0): minute(3), ("names", 0): minute(0)}


def test_a_zombies_batches_after_a_fence_are_refused_the_first_and_the_second(ledger: Ledger) -> None:
    ledger.sell(a=1)
    zombie = ledger
    live = ledger.restart()
    live.sell(a=10)
    for _ in range(2):
        with pytest.raises((Fenced, StoreError)):
            zombie.sell(a=100)
    zombie.writer._usable = True  # even a writer that forgets that it failed
    with pytest.raises(Fenced):
        zombie.sell(a=100)
    live.sell(a=10)
    assert live.read("stock") == {"a": 21}
    assert live.store.head().position.seq == 3


def test_a_writer_that_slept_until_log_clean_up_took_the_fence_is_refused_at_its_next_look(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.sell(a=1)
    sleeper = ledger
    log = sleeper.store.changelog.log
    slept_at = log.latest()
    assert slept_at is not None
    sleeper.writer.check()
    live = ledger.restart()
    live.sell(a=10)
    java = live.store.changelog.log.java
    java.checkpoint(java.unsafeVolatileSnapshot(), log.option.empty())
    now = live.store.head().version
    for version in range(slept_at.version + 1, now):
        Path(log.path, "_delta_log", f"{version:020}.json").unlink()
    monkeypatch.setattr(deltalog, "_read", {})  # the live one was another process
    with pytest.raises(Fenced, match="whose log is gone"):
        sleeper.writer.check()
    with pytest.raises(Fenced):
        sleeper.sell(a=100)
    live.writer.check()
    live.sell(a=10)
    assert live.read("stock") == {"a": 21}


def test_a_writer_fenced_in_the_middle_of_its_write_is_refused(ledger: Ledger) -> None:
    ledger.sell(a=1)
    live: list[Ledger] = []
    with failpoints.armed("store.commit.after_write", lambda: live.append(ledger.restart())):
        with pytest.raises(Fenced):
            ledger.sell(a=100)
    live[0].sell(a=10)
    assert live[0].read("stock") == {"a": 11}


def test_rows_that_are_written_ahead_of_a_commit_are_there_with_it_or_never(ledger: Ledger) -> None:
    ledger.sell(a=1)
    before = ledger.store.changelog.snapshot().version
    ledger.writer.writing()(ledger.table("stock"), ledger.sums("stock", {"a": 5, "b": 1}))
    assert ledger.read("stock") == {"a": 1}
    ledger.commit({"low": ledger.sums("low", {"a": 5})})
    assert dict(ledger.writer.rows) == {"stock": 2, "low": 1, "__commit": 1}
    assert ledger.store.changelog.snapshot().version == before + 1
    assert ledger.read("stock") == {"a": 6, "b": 1}
    ledger.writer.writing()(ledger.table("stock"), ledger.sums("stock", {"a": 100}))
    live = ledger.restart()
    with pytest.raises(Fenced):
        ledger.commit({"low": ledger.sums("low", {"a": 100})})
    with pytest.raises(StoreError, match="failed before"):
        ledger.writer.writing()(ledger.table("stock"), ledger.sums("stock", {"a": 100}))
    live.sell(a=10)
    assert live.read("stock") == {"a": 16, "b": 1}


def test_of_two_starts_at_once_both_get_a_generation_and_one_stays(ledger: Ledger) -> None:
    others: list[Ledger] = []
    with failpoints.armed("store.fence.after_write", lambda: others.append(ledger.restart())):
        later = ledger.restart()
    assert {ledger.writer.generation, others[0].writer.generation, later.writer.generation} == {1, 2, 3}
    with pytest.raises(Fenced):
        others[0].sell(a=1)
    later.sell(a=1)


def test_what_a_writer_had_begun_when_it_died_is_not_there_and_what_it_had_committed_is(ledger: Ledger) -> None:
    ledger.sell(a=1)
    for point, there in (("store.commit.before_write", 1), ("store.commit.after_write", 1), ("store.commit.after_commit", 2)):
        with failpoints.armed(point, "raise"), pytest.raises(failpoints.FailpointHit):
            ledger.sell(a=1)
        with pytest.raises(StoreError, match="failed before"):
            ledger.sell(a=1)
        ledger = ledger.restart()
        assert (ledger.writer.position.seq, ledger.read("stock")) == (there, {"a": there})


@pytest.mark.slow
def test_an_idle_app_keeps_its_position_through_optimize_vacuum_and_log_clean_up(ledger: Ledger, spark: SparkSession) -> None:
    for _ in range(3):
        ledger.sell(a=1)
    ledger.store.fold("stock")
    ledger.sell(a=1)
    ledger.store.upkeep.maintain()
    for log in (ledger.store.changelog.log, ledger.store.reader.log("stock")):
        log.java.checkpoint()
        newest = log.latest()
        assert newest is not None
        for commit in Path(log.path, "_delta_log").glob("*.json"):
            if int(commit.stem) < newest.version:  # clean-up keeps the newest, as Delta does
                commit.unlink()
                (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    again = ledger.restart()
    assert again.writer.position == Position("shop", 1, 4)
    assert again.writer.last is not None
    assert again.writer.last.next[("moves", 0)] == 40
    again.sell(a=1)
    assert again.read("stock") == {"a": 5}
    assert again.store.fold("stock") == 5
    assert again.read("stock") == {"a": 5}


def test_a_store_of_a_newer_format_is_refused_and_one_that_is_not_there_is_named(
    ledger: Ledger, spark: SparkSession, tmp_path: Path
) -> None:
    spark.sql(f"ALTER TABLE delta.`{ledger.store.changelog.path}` SET TBLPROPERTIES ('watertable.format' = '{KNOWN + 1}')")
    with pytest.raises(FormatError, match="upgrade"):
        ledger.restart()
    with pytest.raises(TableNotFound, match="nowhere"):
        Reader(spark, str(tmp_path), "nowhere", ()).position()


def test_old_rows_are_looked_up_from_base_and_tail_in_one_go(ledger: Ledger, spark: SparkSession) -> None:
    ledger.sell(a=1, b=2)
    ledger.store.fold("stock")
    ledger.sell(a=10, c=3)
    keys = spark.sql("SELECT named_struct('k', k) AS key FROM VALUES ('a'), ('b'), ('c'), ('never') AS v(k)")
    found = ledger.writer.lookup()(ledger.table("stock"), lambda: keys).collect()
    assert {r["key"]["k"]: r["state"][0] for r in found} == {"a": 11, "b": 2, "c": 3}


def test_positions_are_written_and_read_alike() -> None:
    assert Position.parse("retail@3.48211") == Position("retail", 3, 48211)
    assert str(Position("retail", 3, 48211)) == "retail@3.48211"
    for wrong in ("retail", "retail@3", "@1.2", "retail@1.2.3", "retail@-1.2"):
        with pytest.raises(UnknownPosition):
            Position.parse(wrong)


def test_a_lineage_takes_each_commit_from_one_epoch_only() -> None:
    forks = [CommitInfo(kind="epoch", epoch=2, parent=1, fork=50), CommitInfo(kind="epoch", epoch=3, parent=2, fork=70),
             CommitInfo(kind="epoch", epoch=4, parent=3, fork=40)]  # fmt: skip
    assert Lineage.of(1, forks).spans == (Span(1, 0, None),)
    assert Lineage.of(3, forks).spans == (Span(1, 0, 50), Span(2, 50, 70), Span(3, 70, None))
    lineage = Lineage.of(4, forks)
    assert {e: [s for s in (40, 41, 60, 80) if lineage.holds(e, s)] for e in (1, 2, 3, 4)} == {
        1: [40],
        2: [40],
        3: [40],
        4: [40, 41, 60, 80],
    }
    assert lineage.where(0, 40) == "((epoch = 1 AND bucket BETWEEN 0 AND 0 AND seq > 0 AND seq <= 40))"
