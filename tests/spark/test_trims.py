"""Trims and epochs: what was left within the horizon can be read and gone back to, and nothing goes that somebody begins meanwhile."""

from __future__ import annotations

import glob
import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest
from pyspark.errors import PySparkException

import watertable as wt
from tests import buckets
from tests.properties.engines import tiny
from tests.spark.ledger import Ledger, minute, shop
from tests.spark.test_rewind import TABLES, Kafka, batch, planned, read, rewound, tell, told
from tests.spark.test_shadow import begun, beside, promoted, replay
from watertable import failpoints
from watertable.acts import rewind, shadow
from watertable.acts.rewind import Target
from watertable.errors import PlanOutdated, PositionGone, RewindRefused, StoreError
from watertable.store import bases, deltalog, fold, memory
from watertable.store.commits import GATHERED, Advance, CommitInfo, Position
from watertable.store.fold import Folder
from watertable.store.upkeep import Upkeep
from watertable.tools import bisect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
LATER = datetime.now(UTC) + timedelta(days=30)
"""A time at which all that these tests commit is older than the horizon."""


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a bucket hold two commits, so that trims have something to drop."""
    buckets.resize(2, monkeypatch.setattr)


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Ledger:
    """Open a new store, of as many tables as the tale is of: a trim goes by the folds of all."""
    return Ledger.open(tiny(spark), str(tmp_path), topology=shop().above(TABLES))


def forgotten(ledger: Ledger) -> None:
    """Forget what this process knows, as another would not know it."""
    for cache in (memory._seen, deltalog._pinned, deltalog._older):
        cache.clear()
    ledger.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


def aged(ledger: Ledger) -> Ledger:
    """Let all that folds have written be of longer ago than the horizon, and start again from there as a new process would."""
    old = time.time() - 8 * 86400
    for log in glob.glob(f"{ledger.store.warehouse}/shop/*/_delta_log".removeprefix("file:")):
        for file in os.listdir(log) if "/changelog/" not in log else ():
            os.utime(f"{log}/{file}", (old, old))
    forgotten(ledger)
    return ledger.restart()


@pytest.mark.slow
def test_what_begins_while_a_trim_is_at_work_is_nobodys_to_trim(ledger: Ledger) -> None:
    tell(ledger)
    ledger.store.fold_all()
    again: list[Ledger] = []

    def meanwhile() -> None:
        again.append(rewound(ledger, "earliest"))
        batch(again[0], 0, 1)
        again[0].store.fold_all()
        batch(again[0], 1, 3)

    with failpoints.armed("trim.before_delete", meanwhile):
        assert ledger.store.upkeep.trim(now=LATER) > 0
    forgotten(ledger)
    assert read(again[0]) == told(3)
    begun(again[0])
    batch(beside(again[0]), 0, 2)


@pytest.mark.parametrize("way", ["undo", pytest.param("shop@1.6", marks=pytest.mark.slow)])
def test_what_was_left_within_the_horizon_can_be_read_and_gone_back_to(ledger: Ledger, way: str) -> None:
    tell(ledger)
    ledger.store.fold_all()
    two, since = rewound(ledger, "earliest"), datetime.now(UTC)
    batch(two, 0, 2)
    batch(two, 2, 5)
    two.store.fold_all()
    three = rewound(two, target=Target("undo") if way == "undo" else Target.parse(way))
    three.sell(a=1)
    three.store.fold_all()
    three.store.upkeep.trim(now=since + three.store.retention.horizon)
    forgotten(three)
    assert read(three, "shop@2.1") == told(2)
    assert read(three, "shop@2.2") == told(5)
    back = planned(three, "shop@2.2") if way == "undo" else planned(three, target=Target("undo"))
    assert (back.fork, back.refusals) == ("shop@2.2", ())


def test_an_undo_to_what_was_trimmed_is_refused_and_never_an_empty_app(ledger: Ledger) -> None:
    tell(ledger)
    ledger.store.fold_all()
    two = rewound(ledger, "earliest")
    batch(two, 0, 5)
    two.store.fold_all()
    three = rewound(two, "shop@1.6")
    three.sell(a=1)
    three.store.fold_all()
    assert three.store.upkeep.trim(now=LATER) > 0
    forgotten(three)
    with pytest.raises(RewindRefused, match="isn't kept any more"):
        planned(three, target=Target("undo"))


def test_tombstones_are_kept_by_the_folds_of_the_epochs_that_hold_them(ledger: Ledger) -> None:
    def name(ledger: Ledger, moves: float, names: float, **change: tuple[float, str | None]) -> Position:
        return ledger.commit({"names": ledger.names(change)}, {"moves": moves, "names": names})

    name(ledger, 1, 1, x=(1, "one"))
    for n in range(2, 8):
        name(ledger, n, n, y=(n, "y"))
    ledger.store.fold_all()
    two = rewound(ledger, "1")
    name(two, 1, 5, x=(5, None))
    two.offsets[("names", 1)] = 0  # another partition of the same topic stands at 1, and keeps it
    for n in range(6, 12):
        info = two.info(reached={"moves": 1, "names": n})
        times = {**info.stream_times, ("names", 1): minute(1)}
        ahead = {**info.next, ("names", 1): 0}
        two.writer.commit({"names": two.names({"z": (n, "z")})}, CommitInfo(
            begin={**info.begin, ("names", 1): 0}, next=ahead, stream_times=times, topic_ids=info.topic_ids,
        ))  # fmt: skip
        two.offsets |= info.next
    two.store.fold_all()
    two.store.upkeep.trim(now=LATER)
    name(two, 3, 12, x=(3, "late, before the tombstone"))
    assert "x" not in two.read("names")


@pytest.mark.slow
def test_an_older_base_that_is_read_from_within_the_horizon_keeps_the_tombstones_that_it_needs(ledger: Ledger) -> None:
    ledger.name(1, x=(1, "one"))
    ledger.name(3, x=(5, None))  # something earlier may come, until all have passed it
    for n in (3, 4):
        ledger.name(3, y=(n, "y"))
    ledger.store.fold("names")
    late = ledger.name(4, x=(4, "late, before the tombstone"))
    since = ledger.store.head().last
    assert since is not None
    for n in range(6, 12):
        ledger.name(n, y=(n, "y"))
    ledger.store.fold_all()
    assert ledger.read("names", late) == {"y": "y"}
    ledger.store.upkeep.trim(now=since.commit_time + ledger.store.retention.horizon)
    assert ledger.read("names", late) == {"y": "y"}
    assert ledger.read("names") == {"y": "y"}


def test_where_the_tombstones_that_a_base_needs_are_trimmed_nothing_is_read_from_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets.resize(4, monkeypatch.setattr)
    ledger.name(1, x=(1, "one"))
    ledger.name(3, x=(5, None))
    for n in (3, 4):
        ledger.name(3, y=(n, "y"))
    ledger.store.fold("names")
    late = ledger.name(4, x=(4, "late, before the tombstone"))
    for n in (6, 7):
        ledger.name(n, y=(n, "y"))
    ledger.store.fold_all()
    ledger.store.upkeep.trim(now=LATER)
    with pytest.raises(PositionGone, match="trimmed up to seq 3"):
        ledger.read("names", late)
    names = ledger.table("names")
    found = bisect.find(ledger.store.reader, names, bisect.condition_of(names, "name LIKE 'late%'"))
    assert (found.at, found.already, found.ever) == (None, 0, 0)


@pytest.mark.slow
def test_a_base_that_is_old_when_it_is_superseded_is_kept_for_what_was_read_from_it_until_then(ledger: Ledger) -> None:
    tell(ledger)
    ledger.store.fold_all()
    ledger.store.upkeep.trim(now=LATER)
    ledger.store.upkeep.optimize()
    again = aged(ledger)
    assert read(again, "shop@1.6") == told(6)
    for _ in range(2):  # a whole bucket, so that the tables that don't change are noted, too
        again.sell(a=1)
    again.store.fold_all()
    forgotten(again)
    assert read(again, "shop@1.6") == told(6), "it was what everybody read a moment ago"
    assert read(again, "shop@1.7")["names"] == told(6)["names"]
    assert planned(again, "6").fork == "shop@1.6"
    versions = {name: again.store.reader.log(name).latest() for name in ("names", "stock")}
    again.sell(a=1)
    again.store.fold_all()
    assert versions["stock"] is not None
    assert again.store.reader.log("stock").latest().version == versions["stock"].version + 1, "a young one isn't"  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("act", ["rewind", "promote", "rebuild"])
def test_an_old_base_that_no_epoch_after_goes_on_from_is_kept_for_reads_of_what_was_left_and_for_its_undo(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    tell(ledger)
    ledger.store.fold_all()
    ledger.store.upkeep.trim(now=LATER)
    again = aged(ledger)
    if act == "rewind":
        again = rewound(again, "earliest")
        tell(again)
    else:
        begun(again, **({"tables": ["stock", "names"]} if act == "rebuild" else {}))
        again = promoted(again)

    def dies(*_: object) -> None:
        raise RuntimeError("killed before it was confirmed")

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "_confirm", dies)
        with pytest.raises(RuntimeError):
            again.store.fold_all()
    forgotten(again)
    again = again.restart()
    again.store.fold_all()
    forgotten(again)
    assert read(again) == told(6)
    assert read(again, "shop@1.6") == told(6), "it was what everybody read a moment ago"
    back = rewound(again, target=Target("undo"))
    assert back.writer.position.seq == 6
    assert read(back) == told(6)
    back.sell(a=1)
    back.store.fold_all()
    assert back.read("stock") == told(6)["stock"] | {"a": 14}


def test_a_shadow_that_can_not_be_read_any_more_is_never_promoted(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2, 3, 4))
    ledger.store.fold_all()
    batch(ledger, 4, 5)
    five = ledger.store.head().last
    batch(ledger, 5, 6)
    ledger.store.fold_all()
    assert five is not None
    assert ledger.store.upkeep.trim(now=five.commit_time + ledger.store.retention.horizon) > 1
    begun(ledger, "5")
    replay(ledger)(None)
    again = aged(ledger)
    with pytest.raises(RewindRefused, match=r"has outlived the horizon.*can't be read at shop@2.6.*--abandon-shadow"):
        promoted(again)
    forgotten(again)
    assert (again.store.head().position, read(again)) == (Position("shop", 1, 6), told(6))
    shadow.abandon(again.store)
    begun(again, "6")
    assert read(promoted(again)) == told(6)


@pytest.mark.parametrize("how", ["rewind", pytest.param("shadow", marks=pytest.mark.slow), pytest.param("undo", marks=pytest.mark.slow)])
def test_what_a_trim_has_dropped_since_it_was_planned_is_never_forked_at(ledger: Ledger, how: str) -> None:
    tell(ledger)
    ledger.store.fold_all()
    if how == "undo":
        two = rewound(ledger, "earliest")
        batch(two, 0, 5)
        two.store.fold_all()
        ledger = rewound(two, "shop@1.6")
        ledger.sell(a=1)
        ledger.store.fold_all()
        plan = planned(ledger, target=Target("undo"))
    else:
        plan = planned(ledger, "3", shadow=how == "shadow")
    assert plan.refusals == ()
    before = ledger.store.head().position
    assert ledger.store.upkeep.trim(now=LATER) > 0
    with pytest.raises(PlanOutdated, match=r"isn't kept any more|can't be read"):
        rewind.apply(ledger.store, plan, ledger.topology.fingerprint, Kafka())  # type: ignore[arg-type]
    assert (ledger.store.head().position, ledger.store.head().shadow) == (before, None)


def test_of_a_trim_and_an_epoch_that_meet_one_sees_the_other_and_gives_way(ledger: Ledger) -> None:
    """A writer's commits are in neither's way."""
    tell(ledger)
    ledger.store.fold_all()
    again: list[Ledger] = []
    with failpoints.armed("trim.before_delete", lambda: again.append(rewound(ledger, "3"))):
        ledger.store.upkeep.trim(now=LATER)
    forgotten(ledger)
    assert read(ledger) == told(3)
    batch(again[0], 3, 4)
    ledger.store.fold_all()
    plan = planned(ledger, "3")

    def trims() -> None:
        batch(again[0], 4, 5)
        assert ledger.store.upkeep.trim(now=LATER) > 1

    with failpoints.armed("rewind.before_commit", trims), pytest.raises(PlanOutdated, match="isn't kept any more"):
        rewind.apply(ledger.store, plan, ledger.topology.fingerprint, Kafka(), follow=True)  # type: ignore[arg-type]
    batch(again[0], 5, 6)
    assert (read(ledger), ledger.store.head().position) == (told(6), Position("shop", 2, 6))


@pytest.mark.slow
def test_an_epoch_whose_fork_is_gone_is_never_begun_anew_from_nothing(ledger: Ledger) -> None:
    """As a release before the last could leave it."""
    tell(ledger)
    ledger.store.fold_all()
    rewound(ledger, "3")
    log = ledger.store.changelog.log
    log.drop("bucket >= 0 AND bucket < 2 AND epoch = 1", line="somebody else's", number=1, since=log.latest().version)  # type: ignore[union-attr]
    forgotten(ledger)
    head = ledger.store.head()
    assert (head.position, head.last) == (Position("shop", 2, 3), None)
    with pytest.raises(StoreError, match="`watertable undo shop --apply`"):
        ledger.restart()
    plan = planned(ledger, target=Target("undo"))
    assert rewind.apply(ledger.store, plan, ledger.topology.fingerprint, Kafka())[1] == Position("shop", 3, 6)  # type: ignore[arg-type]
    assert read(ledger.restart()) == told(6)


def test_an_accepted_loss_is_remembered_by_an_undo_to_an_epoch_without_commits(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2, 3, 4))
    kafka = Kafka(moves=35, names=35)

    def done(target: Target, **options: tuple[str, ...]) -> None:
        plan = rewind.plan(ledger.store, ledger.topology, kafka, target, **options)  # type: ignore[arg-type]
        rewind.apply(ledger.store, plan, ledger.topology.fingerprint, kafka)  # type: ignore[arg-type]

    done(Target.parse("3"), accept_loss=("moves", "names"))
    gap = {("moves", 0): 35, ("names", 0): 35}
    assert ledger.store.head().last.next == gap  # type: ignore[union-attr]
    done(Target.parse("shop@1.4"))
    done(Target("undo"))
    assert ledger.store.head().last.next == gap  # type: ignore[union-attr]


def test_a_position_of_a_shadow_of_some_tables_is_no_place_for_the_whole_app(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2, 3))
    begun_of = rewind.plan(ledger.store, ledger.topology, Kafka(), Target("earliest"), tables=("names",))  # type: ignore[arg-type]
    rewind.apply(ledger.store, begun_of, ledger.topology.fingerprint, Kafka())  # type: ignore[arg-type]
    writer = ledger.store.start_writer(ledger.topology, shadow=True)
    part = CommitInfo(begin={("names", 0): 0}, next={("names", 0): 10}, stream_times={("names", 0): minute(1)}, topic_ids={"names": "id-n"})
    writer.commit({"names": ledger.names({"x": (1, "one")})}, part)
    shadow.abandon(ledger.store)
    with pytest.raises(RewindRefused, match="a shadow of names alone"):
        planned(ledger, str(writer.position))


def test_what_came_before_a_table_was_added_can_be_read_and_gone_back_to_within_the_horizon(ledger: Ledger, tmp_path: Path) -> None:
    ledger = Ledger.open(ledger.spark, str(tmp_path / "grown"), topology=shop().above(("stock",)))

    def sell(n: int, **names: tuple[float, str | None]) -> None:
        frames = {"stock": ledger.sums("stock", {"a": 1}, n)} | ({"names": ledger.names(names)} if names else {})
        ledger.commit(frames, {"moves": n, "names": n})

    for n in range(1, 8):
        sell(n)
        if n == 6:
            ledger.store.fold_all()
    seven = ledger.store.head().last
    sell(8)
    ledger.store.fold_all()
    ledger = Ledger.open(ledger.spark, ledger.store.warehouse, topology=shop().above(("stock", "names")))
    sell(9, x=(9, "one"))
    nine = ledger.store.head().last
    sell(10, y=(10, "two"))
    ledger.store.fold_all()
    for within, earlier in ((seven, True), (nine, False)):
        assert within is not None
        assert ledger.store.upkeep.trim(now=within.commit_time + ledger.store.retention.horizon) > 1
        forgotten(ledger)
        for n, names in ((7, {}), (8, {}), (9, {"x": "one"}), (10, {"x": "one", "y": "two"}))[0 if earlier else 2 :]:
            at = f"shop@1.{n}"
            assert (ledger.read("stock", at), ledger.read("names", at)) == ({"a": n}, names)
            assert planned(ledger, at, keep_old_code_before=True).refusals == ()
    assert ledger.store.reader.changes("names", "shop@1.9", "shop@1.10").count() == 1


def folded_at_two_and_six(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2))
    ledger.store.fold_all()
    tell(ledger, cuts=(3, 4, 5, 6))
    ledger.store.fold_all()


@pytest.mark.slow
def test_a_replay_can_be_read_from_its_fork_on_until_it_is_folded_itself(ledger: Ledger) -> None:
    folded_at_two_and_six(ledger)
    aged(ledger)
    two = rewound(ledger, "3")
    batch(two, 3, 4)
    four = two.store.head().last
    assert four is not None
    batch(two, 4, 5)
    two.store.fold_all()
    batch(two, 5, 6)
    two.store.fold_all()
    forgotten(two)
    assert read(two, "shop@2.4") == told(4)
    two.store.upkeep.trim(now=four.commit_time + two.store.retention.horizon)
    forgotten(two)
    assert [read(two, f"shop@2.{n}") == told(n) for n in (4, 5, 6)] == [True] * 3


def test_a_horizon_that_is_longer_than_the_calendar_keeps_all(ledger: Ledger) -> None:
    tell(ledger)
    ledger.store.fold_all()
    assert Upkeep(ledger.store.reader, timedelta(days=1_000_000), ledger.store.retention.readers).trim() == 0
    assert read(ledger, "shop@1.1") == told(1)


@pytest.mark.slow
def test_what_an_epoch_folds_where_it_forks_is_read_from_as_trims_go_by_it(ledger: Ledger) -> None:
    folded_at_two_and_six(ledger)
    two = rewound(ledger, "4")
    two.store.fold_all()
    batch(two, 4, 5)
    five = two.store.head().last
    assert five is not None
    batch(two, 5, 6)
    two.store.fold_all()
    assert two.store.upkeep.trim(now=five.commit_time + two.store.retention.horizon) > 1
    forgotten(two)
    assert [read(two, f"shop@2.{n}") == told(n) for n in (5, 6)] == [True] * 2
    assert planned(two, "5").refusals == ()
    stock = two.table("stock")
    assert bisect.find(two.store.reader, stock, bisect.condition_of(stock, "qty > 9")).since == Position("shop", 1, 4)


def test_a_trim_that_a_start_with_new_columns_is_quicker_than_leaves_all_to_the_next_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    class MetadataChangedException(PySparkException):
        """Stand for Delta's."""

    def overtaken(*_: object, **__: object) -> None:
        raise MetadataChangedException("a column was added")

    advance = Advance("moves", 0, 5, minute(7))
    ledger.writer.commit({"stock": ledger.sums("stock", {"a": 1})}, replace(ledger.info(), advances=(advance,)))
    again = ledger.restart()
    for _ in range(3):
        again.sell(a=1)
    again.store.fold_all()
    with monkeypatch.context() as patched:
        patched.setattr(deltalog.DeltaLog, "append", overtaken)
        again.store.upkeep.trim(now=LATER)
    forgotten(again)
    known, topics = again.store.changelog, {"moves": "id-m"}
    head = again.store.head()
    assert known.commit(known.snapshot(), head.lineage, 1) is not None
    again.store.upkeep.trim(now=LATER)
    forgotten(again)
    assert (known.commit(known.snapshot(), head.lineage, 1), known.advances(topics)) == (None, (advance,))


def test_what_an_app_never_read_is_no_loss_however_long_ago_it_began(ledger: Ledger) -> None:
    def losses(ledger: Ledger, kept: int) -> list[tuple[str, int, int]]:
        return [(r.name, r.begin, r.lost) for r in planned(ledger, "earliest", Kafka(moves=kept, names=5)).ranges]

    ledger.offsets = {("moves", 0): 5, ("names", 0): 5}
    ledger.sell(a=1)
    assert losses(ledger, 5) == [("moves/0", 5, 0), ("names/0", 5, 0)]
    for _ in range(2):
        for _ in range(5):
            ledger.sell(a=1)
        ledger.store.fold_all()
        assert ledger.store.upkeep.trim(now=LATER) > 0
        forgotten(ledger)
        assert losses(ledger, 5) == [("moves/0", 5, 0), ("names/0", 5, 0)]
        assert losses(ledger, 20) == [("moves/0", 5, 15), ("names/0", 5, 0)]
    two = rewound(ledger, "earliest")
    two.offsets = {("moves", 0): 30, ("names", 0): 30}
    two.sell(a=1)
    assert losses(two, 5) == [("moves/0", 30, 0), ("names/0", 30, 0)], "an epoch from nothing has begun anew"


@pytest.mark.slow
def test_a_trim_looks_at_one_old_version_of_a_table_however_often_it_was_folded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    at = deltalog.DeltaLog.at

    def look(log: deltalog.DeltaLog, version: int, **options: bool) -> deltalog.Snapshot | None:
        looked.append(version)
        return at(log, version, **options)

    monkeypatch.setattr(deltalog.DeltaLog, "at", look)
    counts = []
    for folds in ((2, 3), (4, 5, 6)):  # none as old as the first commit that is wanted
        tell(ledger, folds, folds)
        looked.clear()
        ledger.store.upkeep.trim()
        counts.append(len(looked))
    assert counts[0] == counts[1] > 0


def test_the_stream_time_of_a_topic_that_is_read_no_more_holds_nothing_up(ledger: Ledger) -> None:
    ledger.commit({"names": ledger.names({"x": (1, "one")})}, {"moves": 1, "names": 1})
    app = wt.App("shop")
    app.topic("names", key="k STRING", value="name STRING").table().materialized_as("names")
    small = Ledger.open(ledger.spark, ledger.store.warehouse, topology=app.topology())
    for n, change in enumerate([{"x": (5.0, None)}, *({"z": (float(m), "z")} for m in range(6, 14))]):
        begin = small.offsets["names", 0]
        info = CommitInfo(
            begin={("names", 0): begin}, next={("names", 0): begin + 10}, stream_times={("names", 0): minute(n + 5)},
            topic_ids={"names": "id-n"},
        )  # fmt: skip
        small.writer.commit({"names": small.names(change)}, info)  # type: ignore[arg-type]
        small.offsets |= info.next
    small.store.fold_all()
    (mark,) = (m for m in small.store.head().folds if m.table == "names" and m.seq == small.writer.position.seq)
    assert mark.tombstones_from == small.writer.position.seq + 1
    assert small.store.upkeep.trim(now=LATER) > 1


def held_back(ledger: Ledger) -> None:
    """Delete a name while a partition stands at 3, commit more beside it, and fold the names."""
    ledger.name(3, x=(1, "one"), y=(1, "other"))
    ledger.name(3, x=(5, None), gone=(5, None))
    for n in range(6, 14):
        ledger.name(3, z=(n, "z"))
    ledger.store.fold("names")


def tombstones(ledger: Ledger) -> tuple[int, int, int]:
    """Give from which commit on tombstones are looked for, in how many files of the commits' own, and in how many gathered ones."""
    view = ledger.store.reader.view(["names"])
    came, gathered = view.tombstone_files(ledger.table("names"))
    return view.bases["names"].tombstones_from, came.number, gathered.number


def test_deletions_that_an_idle_partition_holds_are_gathered_so_that_look_ups_stay_short_and_trims_go_on(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "MANY_TOMBSTONES", 0)
    held_back(ledger)
    folded = ledger.writer.position.seq
    assert tombstones(ledger) == (folded, 1, 1)
    (note,) = ledger.store.changelog.rows(ledger.store.changelog.snapshot(), f"c.kind = 'fold' AND seq = {folded}")
    assert note.format == GATHERED, "an earlier release would look for them where they came"
    ledger.store.fold_all()
    assert ledger.store.upkeep.trim(now=LATER) > 1
    for _ in range(2):  # by a process that has followed the log, and by one that hasn't
        ledger.name(3, x=(4, "earlier than its deletion"), y=(7, "changed"))
        assert ledger.read("names") == {"y": "changed", "z": "z"}
        ledger.store.fold("names")
        assert ledger.read("names") == ledger.read("names", ledger.writer.position) == {"y": "changed", "z": "z"}
        forgotten(ledger)
        ledger = ledger.restart()
    assert tombstones(ledger)[2] == 1
    ledger.name(6, x=(6, "again"))
    ledger.store.fold("names")
    assert ledger.read("names") == {"x": "again", "y": "changed", "z": "z"}
    assert tombstones(ledger) == (ledger.writer.position.seq + 1, 0, 0), "every partition has passed them"


@pytest.mark.slow
def test_a_fold_that_dies_before_what_it_gathered_is_noted_leaves_tombstones_where_they_came(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "MANY_TOMBSTONES", 0)
    with failpoints.armed("fold.after_merge", "raise"), pytest.raises(failpoints.FailpointHit):
        held_back(ledger)
    ledger = ledger.restart()
    assert tombstones(ledger)[2] == 0
    ledger.name(3, x=(4, "earlier than its deletion"))
    assert ledger.read("names") == {"y": "other", "z": "z"}
    ledger.store.fold("names")
    assert tombstones(ledger)[2] == 1
    ledger.name(3, x=(3, "earlier still"))
    assert ledger.read("names") == {"y": "other", "z": "z"}


@pytest.mark.slow
def test_a_rewind_to_before_tombstones_were_gathered_finds_them_where_they_came(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.name(3, w=(1, "first"))
    ledger.store.fold("names")
    monkeypatch.setattr(fold, "MANY_TOMBSTONES", 0)
    held_back(ledger)
    two = rewound(ledger, "shop@1.5")
    two.name(3, x=(4, "earlier than its deletion"))
    assert two.read("names") == {"w": "first", "y": "other", "z": "z"}
    two.store.fold("names")
    two.name(3, x=(4, "and once more"), z=(20, "last"))
    two.store.fold("names")
    assert two.read("names") == {"w": "first", "y": "other", "z": "last"}
    three = rewound(two, f"{two.writer.position.app}@2.{two.writer.position.seq}")
    three.store.fold("names")
    three.name(3, x=(4, "after all"))
    assert three.read("names") == {"w": "first", "y": "other", "z": "last"}


def test_a_round_of_upkeep_leaves_the_large_files_of_a_table_as_they_are(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "SMALL_BASE", 0)
    monkeypatch.setattr(fold, "OVERWRITE_FROM", 100)
    monkeypatch.setattr(bases, "_FILE", 4096)

    def files() -> set[str]:
        return set(deltalake.DeltaTable(f"{ledger.store.warehouse}/shop/stock").file_uris())

    ledger.sell(**{f"k{n}": n + 1 for n in range(500)})
    ledger.store.fold("stock")
    first = files()
    for n in range(3):
        ledger.sell(k7=1)
        ledger.store.fold("stock")
        ledger.store.upkeep.optimize()
        assert first <= files(), f"round {n} wrote all of it for one row"
    assert len(files()) <= len(first) + 3
    assert ledger.read("stock") == ledger.stock


@pytest.mark.slow
def test_a_version_of_a_table_is_the_one_that_other_readers_see(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(ledger, cuts=(1,))
    ledger.store.fold_all()

    def dies(self: Folder, table: object) -> None:
        raise RuntimeError("killed between the states and the table that is shown")

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "_publish", dies)
        batch(ledger, 1, 2)
        with pytest.raises(RuntimeError):
            ledger.store.fold_all()
    for n in (2, 3):
        batch(ledger, n, n + 1)
        ledger.store.fold_all()
    shown = ledger.store.reader.log("low").latest()
    assert shown is not None
    assert ledger.store.reader.status().tables["low"].version == shown.version
    for version in range(1, shown.version + 1):
        rows = ledger.spark.read.format("delta").option("versionAsOf", version).load(ledger.store.changelog.base_path("low")).collect()
        assert ledger.read("low", version) == {row["k"]: row["qty"] for row in rows}
