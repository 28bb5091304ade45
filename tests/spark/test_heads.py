"""What a process remembers of an app is what a fresh look at its store finds, whoever has committed what in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests import buckets
from tests.spark.ledger import Ledger, both_folds, minute
from tests.spark.test_rewind import rewound
from watertable.session import UPKEEP_POOL, in_jvm, job_group
from watertable.store import changelog, fold, memory, writer
from watertable.store import reader as store_reader
from watertable.store.changelog import Changelog, Extent
from watertable.store.commits import Advance, CommitInfo, Head, Position
from watertable.store.deltalog import HELD, Snapshot
from watertable.store.reader import Reader
from watertable.store.touched import Touched
from watertable.store.writer import WRITER_LINE, Act, Retention

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each look into the table of commits."""
    found: list[str] = []
    rows = Changelog.rows
    monkeypatch.setattr(Changelog, "rows", lambda self, snapshot, where: found.append(where) or rows(self, snapshot, where))
    return found


def _fresh(log: Changelog) -> Head:
    """Look at an app as a process does that has just begun."""
    kept = dict(memory._seen)
    memory._seen.clear()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memory, "_YOUNG", -1)
            return log.head(since=0)
    finally:
        memory._seen.update(kept)


@pytest.mark.slow
def test_a_head_that_is_remembered_is_what_a_new_process_finds_after_every_kind_of_commit(
    spark: SparkSession, tmp_path: Path, looks: list[str]
) -> None:
    ledger = Ledger.open(spark, str(tmp_path), Retention(timedelta(days=7), timedelta(days=1)))
    store = ledger.store
    log = store.changelog
    log.head()
    touched = Touched(log, ledger.topology.tables, date(2026, 1, 1), None, commits=1)

    def rewind() -> None:
        head = log.head()
        info = CommitInfo(kind="epoch", epoch=head.next_epoch, seq=2, generation=head.generation + 1, parent=head.position.epoch, fork=2)
        store.act(lambda _: Act(info, WRITER_LINE, f"epoch shop@{info.epoch}.2"))

    def sell() -> None:
        ledger.sell(a=1)

    def note() -> None:
        head = log.head()
        touched.upto(head.position, head.lineage)

    def start() -> None:
        nonlocal ledger
        ledger = ledger.restart()

    acts: dict[str, Callable[[], Any]] = {
        "batch": sell, "another": sell, "fold": lambda: ledger.store.folder.fold_all(), "third": sell, "days": note, "fence": start,
        "hold": lambda: store.hold("somebody", 0.0), "optimize": lambda: ledger.store.upkeep.maintain(), "epoch": rewind, "in it": start,
        "trim": lambda: ledger.store.upkeep.trim(now=datetime.now(UTC) + timedelta(days=30)),
    }  # fmt: skip
    for name, act in acts.items():
        act()
        looks.clear()
        found = log.head()
        assert name == "trim" or not looks, f"after {name}, the log says it all: {looks}"
        fresh = _fresh(log)
        assert replace(found, folds=()) == replace(fresh, folds=()), name
        assert {*fresh.folds} >= {*found.folds}, name
        snapshot, upto = log.snapshot(), found.position.seq
        for after, kind in ((0, "batch"), (0, "fold"), (1, "batch"), (1, "fold"), (0, "days"), (upto - 1, "batch")):
            seen = log.seen(snapshot, found.lineage, after, upto, kind)
            looked_up = log.rows(snapshot, f"c.kind = '{kind}' AND {found.lineage.where(after, upto)}")
            assert (seen is None and name == "trim") or sorted(seen or [], key=repr) == sorted(looked_up, key=repr), (name, kind, after)
            counted = Extent(len(looked_up), min((row.seq for row in looked_up), default=None), 0)
            assert kind != "batch" or replace(log.extent(snapshot, found.lineage, after, upto), records=0) == counted, (name, after)


def test_a_new_process_finds_a_young_apps_head_in_the_log_and_of_an_old_one_looks_the_newest_commits_up_once(
    ledger: Ledger, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 6):
        ledger.sell(a=1)
        if number in {1, 3}:
            ledger.store.folder.fold_all()
    tables = list(ledger.topology.tables)
    read = {number: ledger.read("stock", f"shop@1.{number}") for number in (2, 4)}
    for young, jobs in ((200, 0), (-1, 2)):  # the head, then the newest commits
        monkeypatch.setattr(memory, "_YOUNG", young)
        for number in (2, 4):
            memory._seen.clear()
            looks.clear()
            reader = Reader(ledger.spark, ledger.store.warehouse, "shop", tables)
            view = reader.view(at=f"shop@1.{number}")
            assert len(looks) == jobs, (young, number, looks)
            assert max(base.seq for base in view.bases.values()) == number - 1
            found = {row["k"]: row["qty"] for row in view.rows(ledger.table("stock")).collect()}
            assert found == read[number]


@pytest.mark.slow
def test_what_several_tables_ask_of_one_version_is_looked_up_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    for number in range(1, 6):
        ledger.sell(a=1)
        if number == 2:
            ledger.store.folder.fold_all()
    ledger.store.folder.fold_all()
    monkeypatch.setattr(memory, "_YOUNG", -1)
    monkeypatch.setattr(changelog, "NEAR", -1)  # as if there were many commits since
    monkeypatch.setattr(store_reader, "NEAR", -1)

    def spent(*tables: str) -> int:
        memory._seen.clear()
        with job_group(spark, f"looks for {tables}", "looks", UPKEEP_POOL) as jobs:
            view = Reader(spark, ledger.store.warehouse, "shop", list(ledger.topology.tables)).view(tables, at="shop@1.4")
            assert {base.seq for base in view.bases.values()} == {2}
            return jobs()

    spent("low")  # some of Delta's own are once a process
    assert spent("stock", "low", "ids") == spent("stock"), "the head, the folds, and how many commits there are since them"


def test_of_an_app_that_is_new_nothing_is_looked_up(spark: SparkSession, tmp_path: Path, looks: list[str]) -> None:
    ledger = Ledger.open(spark, str(tmp_path / "made"))
    assert (ledger.sell(a=1), looks) == (Position("shop", 1, 1), [])
    ledger.sell(a=1)
    source, copy = ledger.store.changelog.path, Changelog(spark, str(tmp_path / "copied"), "shop")
    spark.read.format("delta").load(source).write.format("delta").save(copy.path)
    assert (copy.log.latest().version, copy.head().position, len(looks)) == (0, Position("shop", 1, 2), 1)  # type: ignore[union-attr]


def test_what_was_committed_without_a_word_in_the_log_is_looked_up(ledger: Ledger, looks: list[str]) -> None:
    ledger.sell(a=1)
    log = ledger.store.changelog
    assert log.head().position.seq == 1
    info = CommitInfo(seq=2, generation=9, next={("moves", 0): 20})  # an earlier release left no tag
    log.log.append(log.append_rows([], info), line=WRITER_LINE, number=9 << 40, since=log.snapshot().version, note="batch shop@1.2")
    looks.clear()
    found = log.head()
    assert found.position == Position("shop", 1, 2)
    assert len(looks) == 1
    assert log.added(log.snapshot(), found.lineage, 1, 2, lambda _: True) is None, (
        "of its files nothing is known but where Delta finds them"
    )


def test_an_app_that_is_made_anew_at_the_same_place_is_another(spark: SparkSession, tmp_path: Path, looks: list[str]) -> None:
    first = Ledger.open(spark, str(tmp_path))
    for _ in range(3):
        first.sell(a=1)
    path = first.store.changelog.path
    before = memory._seen[path,].table
    shutil.rmtree(tmp_path / "shop")
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    again = Ledger.open(spark, str(tmp_path))
    assert memory._seen[path,].table != before
    assert again.sell(a=1) == Position("shop", 1, 1)
    assert again.store.head().position.seq == 1


def test_an_app_of_which_an_older_copy_was_brought_back_is_followed_from_there(spark: SparkSession, tmp_path: Path) -> None:
    first = Ledger.open(spark, str(tmp_path / "here"))
    first.sell(a=1)
    shutil.copytree(tmp_path / "here", tmp_path / "copy")
    for _ in range(4):
        first.sell(a=10)
    log = first.store.changelog
    assert first.read("stock") == {"a": 41}
    assert [row.generation for row in log.rows(log.snapshot(), "c.kind = 'batch' AND seq > 2")] == [1, 1, 1]
    at = log.snapshot().version
    shutil.rmtree(tmp_path / "here")
    shutil.move(tmp_path / "copy", tmp_path / "here")
    known = [dict(held) for held in HELD]
    for held in HELD:  # it's another process that goes on
        held.clear()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    again, sold = Ledger.open(spark, str(tmp_path / "here")), 0
    while again.store.changelog.snapshot().version < at:
        again.sell(b=100)
        sold += 100
    for held, before in zip(HELD, known, strict=True):
        held.clear()
        held |= before
    assert sorted(row.generation for row in log.rows(log.snapshot(), "c.kind = 'batch' AND seq > 2")) == [2, 2]
    assert first.store.head().generation == 2
    assert first.read("stock") == {"a": 1, "b": sold}


@pytest.mark.slow
def test_the_commit_at_a_target_is_the_one_that_a_look_at_every_commit_finds_whatever_was_seen(
    spark: SparkSession, tmp_path: Path, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets.resize(3, monkeypatch.setattr)
    ledger = Ledger.open(spark, str(tmp_path))
    log, made = ledger.store.changelog, ledger.info

    def info(number: int) -> CommitInfo:
        return replace(made(reached={"moves": number // 2, "names": None}), counters={"records": number % 3 + 1})

    def sell(numbers: range) -> None:
        for number in numbers:
            monkeypatch.setattr(ledger, "info", lambda reached, number=number: info(number))
            ledger.sell(a=1)

    sell(range(1, 6))
    fork = CommitInfo(kind="epoch", epoch=2, seq=3, generation=log.head().generation + 1, parent=1, fork=3)
    ledger.store.act(lambda _: Act(fork, WRITER_LINE, "epoch shop@2.3"))
    ledger = ledger.restart()
    made = ledger.info
    sell(range(4, 12))
    head, snapshot = log.head(), log.snapshot()
    upto = head.position.seq
    every = sorted(log.rows(snapshot, f"c.kind = 'batch' AND {head.lineage.where(0, upto)}"), key=lambda row: -row.seq)
    assert [row.seq for row in every] == [*range(11, 0, -1)]
    full = memory._seen[log.path,]
    for since, offsets in ((0, range(0, 120, 5)), (5, (25,)), (99, (45,))):  # of what it has seen a process may have forgotten
        looks.clear()
        for offset in offsets:
            memory._seen[log.path,] = replace(full, since=since, rows=tuple(row for row in full.rows if row.seq >= since))
            time, when = minute(offset / 20), every[offset % 11].commit_time
            bounds: tuple[Callable[[CommitInfo], bool], ...] = (
                lambda row, offset=offset: row.is_within({("moves", 0): offset}),  # type: ignore[misc]
                lambda row, time=time: row.is_by(time),  # type: ignore[misc]
                lambda row, when=when: row.commit_time < when,  # type: ignore[misc]
            )
            for number, holds in enumerate(bounds):
                told = next((row for row in every if holds(row)), None)
                assert log.newest(snapshot, head.lineage, 0, upto, holds) == told, (since, offset, number)
            assert log.newest(snapshot, head.lineage, 7, upto, holds) == (told if told and told.seq > 7 else None), (since, offset)
            until = next((row for row in reversed(every) if not holds(row)), None)
            assert log.first(snapshot, head.lineage, 0, upto, lambda row, holds=holds: not holds(row)) == until, (since, offset)
            back = next((row for row in every if sum(later.records for later in every if later.seq > row.seq) >= offset // 5), None)
            assert log.newest(snapshot, head.lineage, 0, upto, lambda row: True, records=offset // 5) == back, (since, offset)
        assert since or not looks


@pytest.mark.slow
def test_only_the_newest_rows_are_remembered_and_all_acts(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_KEPT", 2)
    ledger.store.hold("somebody", 0.0)
    ledger = ledger.restart()
    for _ in range(6):
        ledger.sell(a=1)
        ledger.store.head()
    seen = memory._seen[ledger.store.changelog.path,]
    assert [row.kind for row in seen.rows if row.kind == "hold"] == ["hold"]
    assert seen.since > 0
    assert len([row for row in seen.rows if row.kind != "hold"]) <= 2 * 2
    assert replace(ledger.store.head(), folds=()) == replace(_fresh(ledger.store.changelog), folds=())


@pytest.mark.slow
def test_a_look_at_an_app_loads_no_advances_that_trims_have_kept_and_a_replay_finds_all(
    ledger: Ledger, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets.resize(3, monkeypatch.setattr)
    log, loaded, unpacked = ledger.store.changelog, list[CommitInfo](), CommitInfo._read
    made = {Advance("moves", 0, 10 * n, minute(n), minute(n + 1)) for n in range(100)}
    ledger.writer.commit({}, CommitInfo(topic_ids={"moves": "id-m"}, advances=tuple(made)))
    for _ in range(4):
        ledger.sell(a=1)
    ledger.store.folder.fold_all()
    ledger.store.hold("somebody", 0.0)
    assert ledger.store.upkeep.trim(now=datetime.now(UTC) + timedelta(days=30)) > 0
    assert log.rows(log.snapshot(), "bucket >= 0 AND size(c.advances) > 0") == []
    told = log.head()
    assert not any(row.advances for row in memory._seen[log.path,].rows), "nor does a process remember them that was there"
    assert {*log.advances({"moves": "id-m"})} == made

    monkeypatch.setattr(CommitInfo, "_read", lambda *row: (found := unpacked(*row), loaded.append(found))[0])
    monkeypatch.setattr(memory, "_YOUNG", -1)
    for since, jobs in ((0, 1), (None, 1), (99, 2)):  # the last finds nothing there, and looks once more
        for cache in (memory._seen, looks, loaded):
            cache.clear()
        log = Changelog(ledger.spark, ledger.store.warehouse, "shop")
        found = log.head(since=since)
        assert (found.position, found.generation, found.holds, len(looks)) == (told.position, told.generation, told.holds, jobs)
        assert found.holds
        assert not [row for row in loaded if row.advances], since
        assert {*log.advances({"moves": "id-m"})} == made, since
        ledger.store.hold("another", 0.0)  # and what comes then is followed
        told = log.head()
        assert {*log.advances({"moves": "id-m"})} == made, since


@pytest.mark.slow
def test_a_process_looks_for_advances_once_and_follows_those_that_come(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is rewound looked through all of its commits for them, each time."""
    log, ids, looked = ledger.store.changelog, {"moves": "id-m"}, list[str]()
    look = Changelog._advances
    monkeypatch.setattr(Changelog, "_advances", lambda log, snapshot, where: (looked.append(where), look(log, snapshot, where))[1])

    def advance(*made: Advance) -> None:
        ledger.writer.commit({}, CommitInfo(topic_ids=ids, advances=made))

    def begin() -> None:
        """Know nothing, as a process that begins beside a long log."""
        looked.clear()
        monkeypatch.setattr(memory, "_YOUNG", -1)
        monkeypatch.setattr(memory, "_seen", {})
        log.head()

    first, further, clocked = (
        Advance("moves", 0, 10, minute(1)),
        Advance("moves", 0, 10, minute(3)),
        Advance("moves", 0, 10, minute(2), minute(9)),
    )
    advance(first)
    assert (log.advances(ids), looked) == ((first,), []), "how the log began, this process has seen"
    begin()
    assert (log.advances(ids), looked) == ((first,), ["true"])
    advance(further, clocked)
    ledger.sell(a=1)
    advance(Advance("moves", 0, 10, minute(2)), Advance("moves", 1, 0, minute(2)))
    wanted = {further, clocked, Advance("moves", 1, 0, minute(2))}
    assert ({*log.advances(ids)}, looked) == (wanted, ["true"])
    assert log.advances({"moves": "another"}) == ()
    begin()
    assert ({*log.advances(ids)}, looked) == (wanted, ["true"]), "who looks finds what was followed"
    monkeypatch.setattr(memory, "_KEPT", 1)
    advance(Advance("moves", 1, 5, minute(2)))
    assert ({*log.advances(ids)}, looked) == ({*wanted, Advance("moves", 1, 5, minute(2))}, ["true", "true"]), "many aren't remembered"


@pytest.mark.slow
def test_the_files_that_the_log_tells_of_hold_what_delta_finds_in_the_table(spark: SparkSession, tmp_path: Path) -> None:
    ledger = Ledger.open(spark, str(tmp_path), Retention(timedelta(days=7), timedelta(days=1)))
    log, column = ledger.store.changelog, ledger.table("stock").state_column
    first = log.head().position.seq

    def rewind() -> None:
        head = log.head()
        info = CommitInfo(kind="epoch", epoch=head.next_epoch, seq=2, generation=head.generation + 1, parent=head.position.epoch, fork=2)
        ledger.store.act(lambda _: Act(info, WRITER_LINE, f"epoch shop@{info.epoch}.2"))

    def start() -> None:
        nonlocal ledger
        ledger = ledger.restart()

    def sell() -> None:
        ledger.sell(a=1, b=2)

    acts: list[Callable[[], Any]] = [
        sell, sell, lambda: ledger.store.folder.fold_all(), sell, start, lambda: ledger.store.upkeep.maintain(), rewind, start, sell, sell,
    ]  # fmt: skip
    for number, act in enumerate(acts):
        act()
        head, snapshot = log.head(), log.snapshot()
        files = log.added(snapshot, head.lineage, first, head.position.seq, lambda name: name == "stock")
        assert files is not None, f"after act {number}"
        wanted = snapshot.frame().where(f"`table` = 'stock' AND {head.lineage.where(first, head.position.seq)}")
        rows = [sorted(map(str, frame.select("epoch", "seq", column).collect())) for frame in (snapshot.frame(files), wanted)]
        assert rows[0] == rows[1], f"after act {number}"
    assert head.position == Position("shop", 2, 4)


def test_a_process_that_follows_an_app_asks_delta_for_no_files_of_it(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.sell(a=1, b=1)
    ledger.store.fold("stock")
    asked: list[str] = []
    files = Snapshot.files
    monkeypatch.setattr(Snapshot, "files", lambda self, where: asked.append(where) or files(self, where))

    def read() -> dict[str, int]:
        reader = Reader(ledger.spark, ledger.store.warehouse, "shop", ledger.topology.tables)  # as each wt.read makes one
        return {row["k"]: row["qty"] for row in reader.read("stock").collect()}

    assert read() == {"a": 1, "b": 1}
    for number in (2, 3):
        ledger.sell(a=1)
        assert read() == {"a": number, "b": 1}
    assert asked == []


@both_folds
def test_the_files_of_a_base_are_those_that_delta_lists(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 0.0 if small > 0 else 1e9)
    for _ in range(3):
        ledger.sell(a=1, b=1)
        ledger.store.fold("stock")
        base = ledger.store.reader.newest(ledger.table("stock")).snapshot
        assert base is not None
        commit = ledger.store.reader.log("stock").commit(base.version)
        assert commit is not None
        assert commit.replaces or small < 0
        assert {row.qty for row in base.frame(base.whole).collect()} == {row.qty for row in base.frame().collect()} == {ledger.stock["a"]}
        assert (base.whole.number, base.whole.bytes) == ((listed := base.files("true")).number, listed.bytes)
        assert base.bytes == base.java.sizeInBytes()
    assert commit.replaces == (small > 0)


def test_files_that_came_long_ago_may_be_gone_so_delta_is_asked_for_them(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.sell(a=1)
    log = ledger.store.changelog
    head, snapshot = log.head(), log.snapshot()
    assert log.added(snapshot, head.lineage, 0, 1, lambda _: True) is not None
    monkeypatch.setattr(writer, "now_after", lambda earlier: datetime.now(UTC) - timedelta(hours=2))
    ledger.sell(a=1)  # two hours ago, and this process comes to know of it now
    head, snapshot = log.head(), log.snapshot()
    assert log.added(snapshot, head.lineage, 0, 1, lambda _: True) is not None
    assert log.added(snapshot, head.lineage, 0, 2, lambda _: True) is None
    assert ledger.read("stock") == {"a": 2}


def test_an_older_version_is_seen_as_it_was(ledger: Ledger) -> None:
    ledger.sell(a=1)
    older = ledger.store.changelog.snapshot()
    ledger.sell(a=1)
    assert ledger.store.head().position.seq == 2
    assert ledger.store.changelog.head(older).position.seq == 1
    assert ledger.store.head().position.seq == 2


def test_what_repeats_itself_with_each_commit_compiles_no_code_anew(spark: SparkSession, tmp_path: Path) -> None:
    """A number in a plan is written into its code, and code that is new is slow: that of a commit, of its output, and of a fresh read."""
    session = spark.newSession()
    for name, value in (("spark.sql.codegen.wholeStage", "true"), ("spark.sql.codegen.factoryMode", "FALLBACK")):
        session.conf.set(name, value)
    ledger = Ledger.open(session, str(tmp_path))
    compiled = in_jvm(session, "org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME")()

    def commit_publish_and_read() -> int:
        rows = session.sql(
            "SELECT 'low' AS topic, X'01' AS key, X'02' AS value, timestamp_seconds(0) AS timestamp, timestamp_seconds(0) AS st, "
            "'moves' AS src_topic, 0 AS src_partition, 7L AS src_offset, 0L AS ord, 0L AS ordinal, "
            "array(named_struct('key', 'h', 'value', X'03')) AS headers"
        )
        info = ledger.info()
        position = ledger.writer.commit({"stock": ledger.sums("stock", {"a": 1})}, info, outbox=rows)
        ledger.offsets |= info.next
        log = ledger.store.changelog
        assert len(list(log.outbox(log.snapshot(), ledger.writer.known.head.lineage, position.seq - 1, position.seq))) == 1
        reader = Reader(session, ledger.store.warehouse, "shop", ledger.topology.tables)
        assert [row["qty"] for row in reader.read("stock").collect()] == [position.seq]
        return int(compiled.getCount())

    counts = [commit_publish_and_read() for _ in range(5)]
    assert counts[2:] == [counts[2]] * 3, counts
    ledger = rewound(ledger, "3")
    before = int(compiled.getCount())
    ledger.commit({"stock": ledger.sums("stock", {"a": 1})})
    first = int(compiled.getCount())
    ledger = rewound(ledger, "4")
    ledger.commit({"stock": ledger.sums("stock", {"a": 1})})
    assert ledger.writer.position == Position("shop", 3, 5)
    assert int(compiled.getCount()) == first, f"{first - before} for a commit without output; another epoch's are of the same code"
