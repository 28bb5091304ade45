"""Hold rewinds to their law on the store: after a rewind and its replay every table is what it was, and readers see one position."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests import buckets
from tests.properties.engines import tiny
from tests.spark.ledger import Ledger, both_folds, minute
from watertable import failpoints
from watertable.acts import rewind
from watertable.acts.estimates import BEGIN
from watertable.acts.plans import RewindPlan
from watertable.acts.rewind import Target
from watertable.errors import Fenced, KafkaError, NothingToRewind, PlanOutdated, RewindRefused, StoreError, UnknownPosition
from watertable.kafka.admin import TopicState
from watertable.kafka.publisher import OutboxPublisher, OutboxRow, Place, Published
from watertable.records import HEADERS
from watertable.runtime import workers
from watertable.runtime.workers import Courier
from watertable.store import fold
from watertable.store.changelog import EPOCH_LINE
from watertable.store.commits import CommitInfo, Position
from watertable.store.deltalog import DeltaLog
from watertable.store.fold import Folder
from watertable.tools.preview import live_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SOLD: tuple[dict[str, int], ...] = ({"a": 1, "b": 2}, {"a": 3}, {"c": 5}, {"a": -1, "c": 1}, {"b": 7}, {"a": 10})
NAMED: tuple[dict[str, tuple[float, str | None]], ...] = (
    {"x": (1, "one")}, {"y": (2, "two")}, {"x": (3, None)}, {"z": (4, "three")}, {"x": (5, "again")}, {"y": (6, None)},
)  # fmt: skip
TABLES = ("stock", "low", "names")
FOLDED = ("stock", "names")


class Kafka:
    """Stand in for the cluster: topics of one partition, and how much retention has left of them."""

    def __init__(self, **earliest: int) -> None:
        self.kept = earliest
        self.ids, self.thin = {"moves": "id-m", "names": "id-n"}, frozenset[str]()
        self.ends = dict[tuple[str, int], int]()

    def describe(self, names: Iterable[str]) -> dict[str, TopicState]:
        return {name: TopicState(self.ids[name], 1) for name in names if name in self.ids}

    def compacted(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(names) & self.thin

    def partitions(self, names: Iterable[str]) -> tuple[tuple[str, int], ...]:
        return tuple(dict.fromkeys([*((name, 0) for name in names), *(p for p in self.ends if p[0] in names)]))

    def earliest(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {p: self.kept.get(p[0], 0) for p in partitions}

    def latest(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {p: self.ends[p] for p in partitions}


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Ledger:
    """Open a new store."""
    return Ledger.open(tiny(spark), str(tmp_path))


def batch(ledger: Ledger, first: int, upto: int, ms: int = 100) -> Position:
    """Commit the tale's batches (first, upto] as one, beside what the one before it took."""
    sold: dict[str, int] = {}
    for change in SOLD[first:upto]:
        for key, quantity in change.items():
            sold[key] = sold.get(key, 0) + quantity
    named: dict[str, tuple[float, str | None]] = {}
    for change_of_names in NAMED[first:upto]:
        named |= change_of_names
    frames = {"stock": ledger.sums("stock", sold, upto), "low": ledger.sums("low", sold, upto), "names": ledger.names(named)}
    reached = {"moves": float(upto), "names": float(upto)}
    info = ledger.info(records=10 * (upto - first), reached=reached)
    info = dataclasses.replace(info, counters={"records": 20 * (upto - first), "ms": ms})
    position = ledger.writer.commit(frames, info)
    ledger.offsets |= info.next
    return position


def tell(ledger: Ledger, cuts: Sequence[int] = (1, 2, 3, 4, 5, 6), folds: Iterable[int] = ()) -> None:
    """Commit the tale from where the ledger stands, cut here, folded after these."""
    first = next(iter(ledger.offsets.values()), 0) // 10
    for upto in cuts:
        batch(ledger, first, upto)
        if upto in folds:
            ledger.store.folder.fold_all(FOLDED)
        first = upto


def told(upto: int) -> dict[str, dict[object, object]]:
    """Say what the tables are after so many of the tale's batches."""
    stock: dict[object, object] = {}
    for key, quantity in ((k, q) for change in SOLD[:upto] for k, q in change.items()):
        stock[key] = int(stock.get(key, 0)) + quantity  # type: ignore[call-overload]
    names = {k: name for change in NAMED[:upto] for k, (_, name) in change.items()}
    low = {k: q for k, q in stock.items() if int(q) < 10}  # type: ignore[call-overload]
    return {"stock": stock, "low": low, "names": {k: n for k, n in names.items() if n is not None}}


def read(ledger: Ledger, at: object = None) -> dict[str, dict[object, object]]:
    """Read all tables at one position."""
    tables = ledger.store.reader.read_all(TABLES, at)  # type: ignore[arg-type]
    return {name: {r[0]: r[1] for r in frame.collect()} for name, frame in tables.items()}


def plain(ledger: Ledger) -> list[Any]:
    """Read the Delta table of one table as any Delta reader does."""
    return ledger.spark.read.format("delta").load(ledger.store.changelog.base_path("stock")).collect()


class Stopped(Exception):
    """Stand for the end of a process."""


def stops() -> None:
    """End it."""
    raise Stopped


def planned(ledger: Ledger, to: str | None = None, kafka: Kafka | None = None, **options: Any) -> RewindPlan:
    target = options.pop("target", None) or Target.parse(to, by=options.pop("by", None), shift_by=options.pop("shift_by", None))
    return rewind.plan(ledger.store, ledger.topology, kafka or Kafka(), target, **options)  # type: ignore[arg-type]


def rewound(ledger: Ledger, to: str | None = None, **options: Any) -> Ledger:
    """Plan, apply, and start again from there as a new process would."""
    plan = planned(ledger, to, **options)
    _, position = rewind.apply(ledger.store, plan, ledger.topology.fingerprint, Kafka())  # type: ignore[arg-type]
    again = ledger.restart()
    assert (str(position), again.writer.position) == (plan.becomes, position)
    return again


@pytest.mark.slow
def test_after_a_rewind_to_any_commit_and_a_replay_every_table_is_what_it_was(ledger: Ledger) -> None:
    tell(ledger, folds=(2, 5))
    for fork, cuts in ((0, (3, 6)), (3, (5, 6)), (5, ()), (6, ())):
        head = ledger.writer.position
        again = rewound(ledger, f'{{"moves": {{"0": {10 * fork}}}}}' if fork else "earliest")
        assert (again.writer.last.next[("moves", 0)] if again.writer.last else 0) == 10 * fork
        assert read(again) == told(fork), "the tables as of the fork, all of them"
        if cuts:
            tell(again, cuts, folds=cuts[:1])
            assert read(again) == told(6)
        else:
            assert read(again, head) == told(6), "what was left can still be read"
            again = rewound(again, target=Target("undo"))
        ledger = again
    assert read(ledger, "shop@1.4") == told(4)


def test_a_plan_to_earliest_counts_what_the_app_has_not_read_yet_of_new_partitions_and_of_a_topic_that_was_created_anew(
    ledger: Ledger,
) -> None:
    tell(ledger, cuts=(1, 2))
    kafka = Kafka()
    kafka.ends = {("moves", 1): 500}
    plan = planned(ledger, "earliest", kafka)
    assert [(r.name, r.begin, r.end) for r in plan.ranges] == [("moves/0", 0, 20), ("names/0", 0, 20), ("moves/1", 0, 500)]
    assert (plan.records, plan.refusals) == (540, ())
    assert planned(ledger, "1", kafka).records == 20
    kafka.ids["moves"], kafka.ends = "id-other", {("moves", 0): 7}
    plan = planned(ledger, "earliest", kafka, accept_loss=("moves",))
    assert [(r.name, r.lost, r.records) for r in plan.ranges] == [("moves/0", 20, 0), ("names/0", 0, 20), ("moves/0", 0, 7)]
    assert (plan.records, plan.refusals) == (27, ())


def test_a_topic_that_was_created_anew_is_read_from_what_it_has_however_many_partitions_and_offsets_it_had(ledger: Ledger) -> None:
    class Anew(Kafka):
        def earliest(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
            found = super().earliest(partitions)
            if ("moves", 1) in found:
                raise KafkaError("can't ask for the first offsets of moves-1")
            return found

    tell(ledger, cuts=(1,))
    ledger.writer.commit({}, dataclasses.replace(ledger.info(), begin={("moves", 1): 0}, next={("moves", 1): 9}))
    kafka = Anew(moves=100)
    kafka.ids["moves"], kafka.ends = "id-other", {("moves", 0): 120}
    plan = planned(ledger, "earliest", kafka, accept_loss=("moves",))
    assert [(r.name, r.lost, r.records) for r in plan.ranges] == [
        ("moves/0", 10, 0), ("moves/1", 9, 0), ("names/0", 0, 10), ("moves/0", 0, 20),
    ]  # fmt: skip
    kafka.kept["moves"] = 101
    with pytest.raises(PlanOutdated, match="has deleted moves/0 up to offset 101 since"):
        rewind.apply(ledger.store, plan, ledger.topology.fingerprint, kafka)  # type: ignore[arg-type]
    kafka.kept["moves"] = 100
    assert rewind.apply(ledger.store, plan, ledger.topology.fingerprint, kafka)[1] == Position("shop", 2, 0)  # type: ignore[arg-type]


def test_a_place_where_a_topic_was_another_one_is_gone_back_to_by_nobody(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2))
    kafka = Kafka()
    kafka.ids["moves"], kafka.ends = "id-other", {("moves", 0): 7}
    plan = planned(ledger, "earliest", kafka, accept_loss=("moves",))
    rewind.apply(ledger.store, plan, ledger.topology.fingerprint, kafka)  # type: ignore[arg-type]
    again = ledger.restart()
    again.writer.commit({}, dataclasses.replace(again.info(7), topic_ids={"moves": "id-other", "names": "id-n"}))
    for back in (Target("undo"), Target.parse("shop@1.1")):
        with pytest.raises(RewindRefused, match=r"topic moves was re-created .* Only --to earliest can be had"):
            planned(again, target=back, kafka=kafka)
    assert planned(again, "shop@2.1", kafka).ranges


def test_the_first_time_of_the_calendar_is_before_all_commits(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2))
    assert planned(ledger, "0001-01-01").fork == "shop@1.0"


def test_any_delta_reader_sees_the_left_epochs_table_until_the_first_fold_and_then_the_new_ones(
    ledger: Ledger, spark: SparkSession
) -> None:
    tell(ledger, cuts=(1, 2, 6), folds=(6,))
    again = rewound(ledger, "2")

    def plain() -> dict[object, object]:
        rows = spark.read.format("delta").load(again.store.changelog.base_path("stock")).collect()
        return {r["k"]: r["qty"] for r in rows}

    assert plain() == told(6)["stock"]
    batch(again, 2, 3)
    again.store.folder.fold_all(FOLDED)
    assert plain() == told(3)["stock"]
    tell(again, cuts=(6,), folds=(6,))
    assert plain() == told(6)["stock"]


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", ["it dies", "nothing", "a fold of the left epoch lands"])
def test_the_first_fold_after_a_rewind_takes_the_files_of_the_fork_back_and_writes_no_row_that_stays(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    for name, value in (("SMALL_BASE", -1), ("OVERWRITE_FROM", 1e9)):
        monkeypatch.setattr(fold, name, value)
    tell(ledger, cuts=(1, 2, 3, 5, 6), folds=(2, 5))
    left, known = ledger.store.folder, ledger.writer.known
    again = rewound(ledger, "3")
    batch(again, 3, 4)
    if meanwhile == "it dies":
        with failpoints.armed("fold.before_merge", stops), pytest.raises(Stopped):
            again.store.fold("stock")
        assert {r["k"]: r["qty"] for r in plain(again)} == told(2)["stock"]
        assert read(again) == told(4)
        assert left.fold_all(["stock"], known) == {}, "whoever still folds the epoch that was left comes too late"
    elif meanwhile != "nothing":
        take_back = DeltaLog.take_back
        with monkeypatch.context() as patched:
            patched.setattr(DeltaLog, "take_back", lambda *args, **kw: (left.fold_all(["stock"], known), take_back(*args, **kw))[1])
            assert again.store.fold("stock") is None
        assert {r["k"]: r["qty"] for r in plain(again)} == told(6)["stock"]
        assert read(again) == told(4)
    again.store.folder.fold_all(FOLDED)
    for table in FOLDED:
        history = again.spark.sql(f"DESCRIBE HISTORY delta.`{again.store.changelog.base_path(table)}`").orderBy("version").collect()
        assert [row["operation"] for row in history][-2:] == ["RESTORE", "MERGE"], table
    assert {r["k"]: r["qty"] for r in plain(again)} == told(4)["stock"]
    assert left.fold_all(["stock"], known) == {}
    assert read(again) == told(4)
    undone = rewound(again, target=Target("undo"))
    assert read(undone) == told(6)
    undone.store.folder.fold_all(FOLDED)
    assert {r["k"]: r["qty"] for r in plain(undone)} == told(6)["stock"]
    assert read(undone, "shop@2.4") == told(4)


@pytest.mark.slow
@pytest.mark.parametrize("lands", ["before the new epoch looks", "before it stamps the base", "before it merges"])
def test_a_fold_of_the_left_epoch_that_lands_while_the_new_one_folds_leaves_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, lands: str
) -> None:
    for name, value in (("SMALL_BASE", -1), ("OVERWRITE_FROM", 1e9)):
        monkeypatch.setattr(fold, name, value)
    tell(ledger, cuts=(1, 2, 3, 6), folds=(2,))
    left, known = ledger.store.folder, ledger.writer.known
    again = rewound(ledger, "3")
    batch(again, 3, 4)
    landed: list[object] = []

    def land() -> None:
        assert read(again) == told(4)
        landed.append(left.fold_all(["stock"], known))

    if lands == "before it stamps the base":
        stamp = Folder._stamp
        monkeypatch.setattr(Folder, "_stamp", lambda *args: (None if landed else land(), stamp(*args))[1])
        again.store.fold("stock")
    else:
        with failpoints.armed("fold.after_pin" if "looks" in lands else "fold.before_merge", land):
            again.store.fold("stock")
    assert len(landed) == 1
    assert read(again) == told(4)
    batch(again, 4, 5)
    again.store.fold("stock")
    plain = again.spark.read.format("delta").load(again.store.changelog.base_path("stock")).collect()
    assert {r["k"]: r["qty"] for r in plain} == told(5)["stock"] == read(again)["stock"]


def test_an_undo_gives_the_old_rows_back_and_a_second_rewind_is_undone_to_the_first(ledger: Ledger) -> None:
    tell(ledger, cuts=(4, 6), folds=(4,))
    first = rewound(ledger, "earliest")
    batch(first, 0, 2)
    second = rewound(first, "earliest")
    batch(second, 0, 1)
    second.store.folder.fold_all(FOLDED)
    undone = rewound(second, target=Target("undo"))
    assert undone.writer.position == Position("shop", 4, 1)
    assert read(undone) == told(2), "where the first rewind's epoch had got to"
    undone = rewound(undone, target=Target("undo"))
    assert undone.writer.position == Position("shop", 5, 2)
    assert read(undone) == told(6)
    assert undone.offsets[("moves", 0)] == 60
    with pytest.raises(RewindRefused, match="no rewind to undo"):
        planned(undone, target=Target("undo"))
    undone.sell(a=1)
    assert undone.read("stock") == told(6)["stock"] | {"a": 14}


@pytest.mark.slow
@both_folds
def test_what_was_trimmed_is_in_the_older_fold_when_an_undo_finds_tables_that_were_folded_empty(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    """A fold may come between a rewind to earliest and its first commit: what it leaves at seq 0 is no way back to what was there."""
    monkeypatch.setattr(fold, "SMALL_BASE", small)
    buckets.resize(2, monkeypatch.setattr)
    tell(ledger, cuts=(1, 2, 5, 6))
    ledger.store.folder.fold_all()
    later = datetime.now(UTC) + timedelta(days=30)
    assert ledger.store.upkeep.trim(now=later) == 2, "commits 1 to 3 are gone, and all that is known of some keys"
    ledger.sell(a=0)
    begun = rewound(ledger, "earliest")
    begun.store.folder.fold_all()
    assert read(begun) == told(0)
    assert read(begun, "shop@1.5") == told(6)
    undone = rewound(begun, target=Target("undo"))
    assert read(undone) == told(6)
    changes = undone.store.reader.changes("stock", begun.writer.position, undone.writer.position).collect()
    assert {row["key"]["k"]: (row["old"], row["new"]["qty"]) for row in changes} == {k: (None, q) for k, q in told(6)["stock"].items()}
    undone.store.folder.fold_all()
    assert read(undone) == told(6)
    assert {r["k"]: r["qty"] for r in plain(undone)} == told(6)["stock"]


@pytest.mark.slow
def test_the_same_target_twice_runs_twice_once_each(ledger: Ledger) -> None:
    tell(ledger)
    again = rewound(ledger, "3")
    tell(again, cuts=(6,))
    plan = planned(again, "3")
    rewind.apply(again.store, plan, again.topology.fingerprint, Kafka())  # type: ignore[arg-type]
    with pytest.raises(PlanOutdated, match="rewound since"):
        rewind.apply(again.store, plan, again.topology.fingerprint, Kafka())  # type: ignore[arg-type]
    third = again.restart()
    assert (third.writer.position, read(third)) == (Position("shop", 3, 3), told(3))
    assert [f.fork for f in third.store.head().forks] == [3, 3]
    tell(third, cuts=(4, 6))
    assert read(third) == told(6)


def test_a_zombie_of_the_epoch_that_was_left_is_fenced_and_knows_why(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2, 3))
    ledger.writer.check()
    plan = planned(ledger, "1", reason="bad prices")
    rewind.apply(ledger.store, plan, ledger.topology.fingerprint, Kafka())  # type: ignore[arg-type]
    with pytest.raises(Fenced, match="bad prices"):
        ledger.writer.check()
    with pytest.raises(Fenced):
        batch(ledger, 3, 4)
    (row,) = ledger.store.acts_since(ledger.writer.generation)
    assert (row.kind, row.epoch, row.parent, row.fork, row.writer) == ("epoch", 2, 1, 1, "rewind to commit 1: bad prices")
    generation = ledger.writer.generation
    again = ledger.restart()
    assert again.store.acts_since(generation) == (), "another run has begun since: nothing for a zombie to follow"
    again.writer.check()


def test_a_plan_is_refused_when_the_app_went_on_and_follows_its_run_where_that_is_said(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2, 3))
    plan = planned(ledger, "1")
    batch(ledger, 3, 4)
    with pytest.raises(PlanOutdated, match=r"went on from shop@1.3 to shop@1.4"):
        rewind.apply(ledger.store, plan, ledger.topology.fingerprint, Kafka())  # type: ignore[arg-type]
    with pytest.raises(PlanOutdated, match="Kafka has deleted moves/0 up to offset 20"):
        rewind.apply(ledger.store, plan, ledger.topology.fingerprint, Kafka(moves=20), follow=True)  # type: ignore[arg-type]
    assert ledger.store.head().position == Position("shop", 1, 4)
    with failpoints.armed("rewind.before_commit", lambda: tell(ledger, cuts=(5,))):  # the live run is quicker by a commit
        places = rewind.apply(ledger.store, plan, ledger.topology.fingerprint, Kafka(), follow=True)  # type: ignore[arg-type]
    assert places == (Position("shop", 1, 5), Position("shop", 2, 1)), "where it was by then, and not where it was planned"
    assert len(ledger.store.head().forks) == 1
    stale = planned(ledger, "1")
    ledger.restart()
    with pytest.raises(PlanOutdated, match="started anew"):
        rewind.apply(ledger.store, stale, ledger.topology.fingerprint, Kafka(), follow=True)  # type: ignore[arg-type]


def test_the_plan_of_a_shadow_beside_an_app_that_has_read_nothing_since_it_was_rewound_says_that_nobody_knows_how_far(
    ledger: Ledger,
) -> None:
    tell(ledger, cuts=(1, 2))
    again = rewound(ledger, "earliest")
    plan = planned(again, "earliest", shadow=True)
    assert plan.stops == "up to where shop is by then: it has read nothing since it was rewound, so how much that is isn't known yet"
    tell(again, cuts=(1,))
    assert planned(again, "earliest", shadow=True).stops == ""


def test_a_rewind_killed_before_its_row_changed_nothing_and_killed_after_it_is_done(ledger: Ledger) -> None:
    tell(ledger)
    for point, there in (("rewind.before_commit", Position("shop", 1, 6)), ("rewind.after_commit", Position("shop", 2, 2))):
        with failpoints.armed(point, "raise"), pytest.raises(failpoints.FailpointHit):
            rewind.apply(ledger.store, planned(ledger, "2"), ledger.topology.fingerprint, Kafka())  # type: ignore[arg-type]
        assert ledger.store.head().position == there
    assert read(ledger) == told(2)


def test_targets_find_the_newest_commit_at_or_before_them(ledger: Ledger) -> None:
    tell(ledger)

    def fork(to: str | None = None, **options: Any) -> str:
        return planned(ledger, to, **options).fork

    assert fork(minute(3).isoformat()) == "shop@1.2", "stream time reaches minute 3 in commit 3, so that is read again"
    assert fork(minute(3.5).isoformat()) == "shop@1.3"
    assert fork(minute(0).isoformat()) == "shop@1.0"
    assert fork('{"moves": {"0": 35}}') == "shop@1.3"
    assert fork('{"moves": {"0": 60}, "names": {"0": 20}}') == "shop@1.2"
    assert fork("shop@1.4") == "shop@1.4"
    assert fork(shift_by=20) == "shop@1.5"
    assert fork(shift_by=21) == "shop@1.4"
    assert fork(by="1 h") == "shop@1.0"
    assert planned(ledger, "4").records == 40
    eta = planned(ledger, "4").eta
    assert eta is not None
    assert 0.03 < eta.likely - BEGIN < 1.0


def test_a_plan_right_after_a_replay_in_one_batch_goes_by_the_commits_that_were_left(ledger: Ledger) -> None:
    tell(ledger)
    before = planned(ledger, "earliest").eta
    again = rewound(ledger, "earliest")
    batch(again, 0, 6, ms=0)  # the first of a run has none before it
    assert before is not None
    assert planned(again, "earliest").eta == before


def test_a_target_that_is_not_there_is_refused_with_the_reason(ledger: Ledger) -> None:
    tell(ledger, cuts=(6,))
    for target, said in (
        (Target.parse("2"), "isn't there yet"),
        (Target.parse("shop@2.1"), "no epoch 2"),
        (Target.parse("other@1.1"), "position of app 'other'"),
        (Target.parse(minute(7).isoformat()), "has reached the event time"),
        (Target.parse('{"moves": {"0": 61}}'), "in its future"),
        (Target.parse('{"sales": {"0": 1}}'), "reads no partition 0 of topic 'sales'"),
        (Target.parse(by="1 ms"), "has committed nothing since"),
        (Target("undo"), "no rewind to undo"),
    ):
        with pytest.raises(RewindRefused, match=said):
            planned(ledger, target=target)


def test_an_event_time_to_rewind_to_is_one_of_the_topics_that_the_app_reads(ledger: Ledger) -> None:
    ledger.sell({"moves": 100, "names": 1}, a=1)
    app = wt.App("shop")
    app.topic("names", key="k STRING", value="name STRING").table().materialized_as("names")
    without = Ledger.open(ledger.spark, ledger.store.warehouse, topology=app.topology())  # in its commits, `moves` stands still
    for number in (2, 3, 4):
        info = CommitInfo(stream_times={("names", 0): minute(number * 10)})
        without.writer.commit({"names": without.names({"x": (number * 10, f"n{number}")})}, info)
    assert str(planned(without, minute(35).isoformat()).fork) == "shop@1.3"
    with pytest.raises(NothingToRewind, match="furthest is at 2026-01-01 00:40"):
        planned(without, minute(70).isoformat())


def test_a_commit_time_is_read_as_the_app_stood_then_on_whatever_lineage(ledger: Ledger) -> None:
    def stood() -> datetime:
        last = ledger.store.head().last
        assert last is not None
        return last.commit_time

    times = [(datetime(2001, 1, 1, tzinfo=UTC), 0)]
    for upto in (1, 2, 3):
        tell(ledger, cuts=(upto,))
        times.append((stood(), upto))
    for target, back, cuts in ((Target("earliest"), 0, (2, 6)), (Target("commit", "1"), 2, (4, 5)), (Target("undo"), 6, ())):
        ledger = rewound(ledger, target=target)
        times.append((ledger.store.head().forks[-1].commit_time, back))
        for upto in cuts:
            tell(ledger, cuts=(upto,))
            times.append((stood(), upto))
    for time, upto in times:
        rows = {"stock": ledger.read("stock", time), "low": ledger.read("low", time), "names": ledger.read("names", time)}
        assert rows == told(upto), (time, upto)
    changed = ledger.store.reader.changes("stock", times[3][0]).collect()
    assert {row.key.k for row in changed} == {"a", "b", "c"}


def test_a_commit_time_of_a_lineage_that_is_gone_is_refused(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    buckets.resize(2, monkeypatch.setattr)
    tell(ledger, cuts=(1, 2, 3))
    then = ledger.store.head().last
    assert then is not None
    ledger = rewound(ledger, "1")
    head = ledger.store.head()
    ledger.store.changelog.log.drop("epoch = 1 AND bucket > 0", line=EPOCH_LINE, number=head.position.epoch, since=head.version)
    with pytest.raises(UnknownPosition, match=r"at or before the commit time .* isn't kept any more; nor is any after it"):
        ledger.read("stock", then.commit_time)


def test_a_plan_asks_which_topics_are_compacted_and_refuses_those_that_lack_what_counts(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 6))
    kafka = Kafka()
    kafka.thin = frozenset({"moves", "names"})  # of which `names` is read as a table
    assert [r.topic for r in planned(ledger, "earliest", kafka).ranges if r.thinned] == ["moves"]
    plan = planned(ledger, "1", kafka)
    assert [r.topic for r in plan.ranges if r.thinned] == ["moves", "names"]
    with pytest.raises(RewindRefused, match=r"Kafka compacts topic moves.*--accept-loss moves"):
        rewind.apply(ledger.store, plan, ledger.topology.fingerprint, kafka)  # type: ignore[arg-type]
    rewind.apply(ledger.store, planned(ledger, "1", kafka, accept_loss=["moves", "names"]), ledger.topology.fingerprint, kafka)  # type: ignore[arg-type]
    (row,) = ledger.restart().store.head().forks
    assert row.writer.endswith(", of what Kafka's compaction left of moves, names")


def test_a_gap_that_was_accepted_is_recorded_and_gone_behind(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2, 6))
    kafka = Kafka(moves=25)
    refused = planned(ledger, "2", kafka)
    assert [r.name for r in refused.losses] == ["moves/0"]
    with pytest.raises(RewindRefused, match="--accept-loss moves/0"):
        rewind.apply(ledger.store, refused, ledger.topology.fingerprint, kafka)  # type: ignore[arg-type]
    plan = planned(ledger, "2", kafka, accept_loss=("moves",))
    rewind.apply(ledger.store, plan, ledger.topology.fingerprint, kafka)  # type: ignore[arg-type]
    again = ledger.restart()
    assert again.offsets == {("moves", 0): 25, ("names", 0): 20}
    (row,) = again.store.head().forks
    assert (row.begin, row.next) == ({("moves", 0): 20}, {("moves", 0): 25})
    again.commit({"stock": again.sums("stock", {"a": 1})})
    assert again.restart().offsets == {("moves", 0): 35, ("names", 0): 30}


@pytest.mark.slow
def test_changes_across_a_fork_are_the_difference_of_both_lineages(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 3, 4, 6), folds=(4,))
    again = rewound(ledger, "2")
    batch(again, 3, 4)
    rows = again.store.reader.changes("stock", "shop@1.4").collect()
    assert {r["key"]["k"]: (r["old"]["qty"], r["new"]["qty"]) for r in rows} == {"a": (13, 3), "b": (9, 2)}
    tell(again, cuts=(6,))
    assert again.store.reader.changes("stock", "shop@1.4").collect() == []


def test_a_table_that_is_folded_before_its_epoch_has_a_commit_is_previewed_at_the_offsets_of_the_fork(ledger: Ledger) -> None:
    tell(ledger, cuts=(2, 4, 6), folds=(6,))
    for target, at, offset in ((Target("commit", "1"), "shop@2.1", 20), (Target("undo"), "shop@3.3", 60)):
        ledger = rewound(ledger, target=target)
        ledger.store.folder.fold_all(FOLDED)
        live = live_of(ledger.store.reader, ledger.topology, ledger.table("stock"))
        assert live is not None
        assert (str(live.position), live.next) == (at, {("moves", 0): offset})


@pytest.mark.slow
def test_tombstones_are_kept_as_long_after_a_rewind_as_without_one(ledger: Ledger) -> None:
    tell(ledger, cuts=(2, 3, 6), folds=(3, 6))
    again = rewound(ledger, "2")
    again.store.folder.fold_all(FOLDED)
    assert read(again) == told(3)
    assert "x" not in read(again)["names"]
    again.store.upkeep.maintain(vacuum=False)
    tell(again, cuts=(5, 6), folds=(5,))
    assert read(again) == told(6)


@pytest.mark.slow
def test_readers_beside_rewinds_see_one_position_each_time(ledger: Ledger) -> None:
    tell(ledger, folds=(3,))
    stop, wrong, seen = threading.Event(), [], []

    def poll() -> None:
        while not stop.is_set():
            found = read(ledger)
            seen.append(found)
            if found not in [told(n) for n in range(7)]:
                wrong.append(found)

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        again = rewound(ledger, "4")
        tell(again, cuts=(5, 6), folds=(5,))
        again = rewound(again, "earliest")
        tell(again, cuts=(1, 4, 6), folds=(1, 6))
    finally:
        stop.set()
        reader.join(60)
    assert seen
    assert wrong == []


# -- output topics ---------------------------------------------------------------------------------------------------------------


class Broker(OutboxPublisher):
    """Stand in for the output topics: the real publisher, whose transactions are done in memory, or die before or after."""

    def __init__(self) -> None:
        self.app, self.rows, self._done = "shop", list[OutboxRow](), None

    def publisher(self, *_: object) -> Broker:
        return self

    @property
    def sent(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(row.key, row.value) for row in self.rows]

    @property
    def state(self) -> Published | None:
        return self.published

    def publish(self, rows: Iterable[OutboxRow], most: int | None = None) -> int:
        left = iter(rows)
        done = super().publish(islice(left, most))
        if next(left, None) is not None:
            raise KeyboardInterrupt
        return done

    def _transaction(self, rows: list[OutboxRow], done: Published) -> None:
        assert all(a.place < b.place for a, b in pairwise(rows))
        failpoints.hit("publish.after_produce")
        self.rows += rows
        self._done = done
        failpoints.hit("publish.after_commit")

    def close(self) -> None:
        pass


def outbox(ledger: Ledger, first: int, upto: int) -> DataFrame:
    """Make what source records [first, upto) of each topic give: one record of each, named after it."""
    rows = ", ".join(f"('{topic}', {offset}L)" for offset in range(first, upto) for topic in ("moves", "names"))
    return ledger.spark.sql(
        "SELECT 'low' AS topic, CAST(t AS BINARY) AS key, CAST(concat(t, '-', o) AS BINARY) AS value, current_timestamp() AS timestamp, "
        "current_timestamp() AS st, t AS src_topic, 0 AS src_partition, o AS src_offset, 0L AS ord, o AS ordinal, "
        f"CAST(array() AS {HEADERS}) AS headers "
        f"FROM VALUES {rows} AS v(t, o)"
    )


def emit(ledger: Ledger, upto: int, names: int | None = None) -> Position:
    """Commit the records up to an offset, of `names` up to another, with one output record each."""
    begin = {(t, 0): ledger.offsets.get((t, 0), 0) for t in ("moves", "names")}
    after = {("moves", 0): upto, ("names", 0): upto if names is None else names}
    rows = outbox(ledger, min(begin.values()), max(after.values()))
    for (topic, _), offset in begin.items():
        rows = rows.where(f"src_topic <> '{topic}' OR (src_offset >= {offset} AND src_offset < {after[topic, 0]})")
    info = CommitInfo(
        begin=begin, next=after, stream_times=dict.fromkeys(begin, minute(upto)), topic_ids={"moves": "id-m", "names": "id-n"}
    )
    position = ledger.writer.commit({}, info, outbox=rows)
    ledger.offsets |= after
    return position


def deliver(ledger: Ledger, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Courier:
    """Publish all there is, with a courier of its own."""
    monkeypatch.setattr(workers, "OutboxPublisher", broker.publisher)
    courier = Courier(ledger.store, Kafka(), None, publishes=True)  # type: ignore[arg-type]
    courier.generation = ledger.writer.generation
    courier._publish(ledger.writer.position, ledger.offsets)
    return courier


def test_an_epoch_publishes_from_where_its_parent_stopped_by_the_places_of_the_source(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the cuts of the replay, and however unevenly its partitions come along."""
    broker = Broker()
    for upto in (10, 20, 30):
        emit(ledger, upto)
    deliver(ledger, broker, monkeypatch)
    emit(ledger, 40)  # committed, and not published: the rewound epoch does that
    again = rewound(ledger, "1")
    for upto, names in ((15, 35), (25, 36), (50, 50)):
        emit(again, upto, names)
        deliver(again, broker, monkeypatch)
    expected = [f"{topic}-{offset}".encode() for topic in ("moves", "names") for offset in range(50)]
    assert sorted(value for _, value in broker.sent if value) == sorted(expected), "each once"
    for topic in (b"moves", b"names"):
        assert [v for k, v in broker.sent if k == topic] == [f"{topic.decode()}-{o}".encode() for o in range(50)], "and in order"
    assert broker.state is not None
    assert broker.state.floor == {}, "once it is passed, the floor is gone"


@pytest.mark.slow
def test_what_an_undo_brings_back_is_published_once_too(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    for upto in (10, 20):
        emit(ledger, upto)
    deliver(ledger, broker, monkeypatch)
    emit(ledger, 30)
    emit(ledger, 40)
    again = rewound(ledger, "earliest")
    emit(again, 5)
    deliver(again, broker, monkeypatch)
    emit(again, 25, 10)
    deliver(again, broker, monkeypatch)
    undone = rewound(again, target=Target("undo"))
    deliver(undone, broker, monkeypatch)
    emit(undone, 50)
    deliver(undone, broker, monkeypatch)
    for topic in (b"moves", b"names"):
        assert [v for k, v in broker.sent if k == topic] == [f"{topic.decode()}-{o}".encode() for o in range(50)]


def test_a_commit_that_was_published_by_half_is_sent_to_its_end_first(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    emit(ledger, 10)
    rows = ledger.store.changelog.outbox(ledger.store.changelog.snapshot(), ledger.store.head().lineage, 0, 1)
    with pytest.raises(KeyboardInterrupt):
        broker.publish((OutboxRow(Place(1, seq, number), *row) for seq, number, *row in rows), most=7)
    again = rewound(ledger, "earliest")
    emit(again, 3, 9)
    deliver(again, broker, monkeypatch)
    emit(again, 12)
    deliver(again, broker, monkeypatch)
    for topic in (b"moves", b"names"):
        assert [v for k, v in broker.sent if k == topic] == [f"{topic.decode()}-{o}".encode() for o in range(12)]


def test_a_courier_that_sleeps_through_a_rewind_and_its_replay_publishes_nothing_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps between its look at the app and the moment when it takes the publishing over."""
    broker = Broker()
    emit(ledger, 20)
    zombie = deliver(ledger, broker, monkeypatch)
    zombie._leave_publisher()
    runs: list[Ledger] = []

    def sleep(*_: object) -> Broker:
        runs.append(rewound(ledger, "earliest"))
        emit(runs[0], 30)
        deliver(runs[0], broker, monkeypatch)
        return broker

    monkeypatch.setattr(workers, "OutboxPublisher", sleep)
    with pytest.raises(Fenced, match="another run of 'shop' took over"):
        zombie._publish(ledger.writer.position, ledger.offsets)
    emit(runs[0], 40)
    deliver(runs[0], broker, monkeypatch)
    for topic in (b"moves", b"names"):
        assert [v for k, v in broker.sent if k == topic] == [f"{topic.decode()}-{o}".encode() for o in range(40)]


def test_a_place_that_no_commit_of_the_app_has_reached_is_refused_whenever_a_publisher_is_made(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker()
    emit(ledger, 10)
    courier = deliver(ledger, broker, monkeypatch)
    for place in (Place(2, 1, 0), Place(1, 3, 0)):
        courier._leave_publisher()
        broker._done = Published(place)
        with pytest.raises(StoreError, match=f"published up to shop@{place.epoch}.{place.seq}, and its changelog ends at shop@1.1"):
            courier._publish(ledger.writer.position, ledger.offsets)
    assert len(broker.sent) == 20


def test_of_a_topic_that_was_made_anew_everything_is_published(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    emit(ledger, 10)
    deliver(ledger, broker, monkeypatch)
    again = rewound(ledger, "earliest")
    emit(again, 5)
    monkeypatch.setattr(Kafka, "describe", lambda *_: {"moves": TopicState("id-m", 1), "names": TopicState("another", 1)})
    deliver(again, broker, monkeypatch)
    assert [v for k, v in broker.sent[20:] if v] == [f"names-{o}".encode() for o in range(5)]


def test_a_rewind_before_what_is_unpublished_changes_nothing_of_it(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    emit(ledger, 10)
    deliver(ledger, broker, monkeypatch)
    emit(ledger, 20)
    emit(ledger, 30)
    again = rewound(ledger, "2")
    emit(again, 40)
    deliver(again, broker, monkeypatch)
    for topic in (b"moves", b"names"):
        assert [v for k, v in broker.sent if k == topic] == [f"{topic.decode()}-{o}".encode() for o in range(40)]


@pytest.mark.slow
def test_changed_code_starts_over_from_earliest_even_where_it_keeps_another_state(spark: SparkSession, tmp_path: Path) -> None:
    import watertable as wt
    from watertable.store.writer import Store

    def shop(column: str) -> Any:
        app = wt.App("shop")
        moves = app.topic("moves", key="k STRING", value="k STRING, qty BIGINT").stream()
        app.topic("names", key="k STRING", value="name STRING").table().materialized_as("names")
        agg = moves.group_by("value.k").agg(**({"qty": wt.sum("qty")} if column == "qty" else {"qty": wt.max("qty")}))
        agg.materialized_as("stock")
        return app.topology()

    old, new = shop("qty"), shop("top")
    session = tiny(spark)
    ledger = Ledger(session, store := Store.open(session, str(tmp_path), "shop", old.tables), old, store.start_writer(old))
    ledger.commit({"stock": ledger.sums("stock", {"a": 3})})
    store.folder.fold_all(["stock"])
    changed = Store.open(session, str(tmp_path), "shop", new.tables)
    changed.start_writer(new)
    with pytest.raises(StoreError, match="rebuild the table under it, with `watertable rewind shop --table stock --apply`"):
        changed.reader.read("stock")
    ahead = rewind.plan(changed, new, Kafka(), Target.parse(to="1"))  # type: ignore[arg-type]
    assert "Rewind to earliest" in ahead.refusals[0]
    plan = rewind.plan(changed, new, Kafka(), Target.parse(to="earliest"))  # type: ignore[arg-type]
    rewind.apply(changed, plan, new.fingerprint, Kafka())  # type: ignore[arg-type]
    again = Ledger(session, changed, new, changed.start_writer(new))
    state = new.table("stock").state[0].name
    for quantity in (3, 2):
        rows = again.deltas("stock", [f"named_struct('k', 'a'), named_struct('{state}', {quantity}L), timestamp'2026-01-01 00:00:00'"])
        again.commit({"stock": rows})
        changed.folder.fold_all(["stock"])
    assert again.read("stock") == {"a": 3}
