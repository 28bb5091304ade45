"""Hold shadows to their law on the store: nobody notices one until it is promoted, and then readers have all of it at the same offsets."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.properties.engines import tiny
from tests.spark.ledger import Ledger, repeat_writes
from tests.spark.test_rewind import FOLDED, Broker, Kafka, batch, deliver, emit, planned, read, rewound, tell, told
from watertable import failpoints
from watertable.acts import parity, rewind, shadow
from watertable.acts.rewind import Target
from watertable.acts.shadow import Diff
from watertable.errors import Fenced, OtherCode, RewindRefused
from watertable.store.commits import Position
from watertable.store.reader import Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.store.commits import Offsets

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Ledger:
    """Open a new store."""
    return Ledger.open(tiny(spark), str(tmp_path))


def begun(ledger: Ledger, to: str = "earliest", **options: Any) -> Position:
    """Begin a shadow."""
    plan = planned(ledger, to, shadow=True, **options)
    return rewind.apply(ledger.store, plan, ledger.topology.fingerprint, Kafka(), follow=True)[1]  # type: ignore[arg-type]


def beside(ledger: Ledger) -> Ledger:
    """Take the shadow's place as a new process would."""
    writer = ledger.store.start_writer(ledger.topology, shadow=True)
    offsets = dict(writer.last.next) if writer.last is not None else {}
    return Ledger(ledger.spark, ledger.store, ledger.topology, writer, offsets)


def replay(ledger: Ledger, *cuts: int) -> Callable[[Offsets | None], None]:
    """Bring the shadow to these offsets, or to where the app stands, cut at these batches too; a new process each time."""

    def run(goal: Offsets | None) -> None:
        last = ledger.store.head().last
        assert last is not None
        upto = (goal or last.next)["moves", 0] // 10
        ours = beside(ledger)
        first = ours.offsets.get(("moves", 0), 0) // 10
        tell(ours, [*(cut for cut in cuts if first < cut < upto), *([upto] if upto > first else [])])

    return run


def promoted(ledger: Ledger, *cuts: int, **options: Any) -> Ledger:
    """Promote, and start again from there as a new process would."""
    before, after = shadow.promote(ledger.store, ledger.topology, replay(ledger, *cuts), **options)
    again = ledger.restart()
    assert (again.writer.position, again.offsets) == (after, dict(ledger.store.changelog.head(epoch=before.epoch).last.next))  # type: ignore[union-attr]
    return again


@pytest.mark.slow
def test_nobody_notices_a_shadow_while_it_replays(ledger: Ledger) -> None:
    """Readers, the app's writer, its folds and its upkeep go on as if it weren't there, in whatever order the commits come."""
    tell(ledger, cuts=(1, 2, 3), folds=(2,))
    generation = ledger.store.head().generation
    becomes = begun(ledger)
    assert becomes == Position("shop", 2, 0)
    ours = beside(ledger)
    for upto in (1, 2, 3):
        batch(ours, upto - 1, upto)
        batch(ledger, upto + 2, upto + 3)  # the live writer isn't fenced
        assert (ledger.store.head().position, read(ledger)) == (Position("shop", 1, upto + 3), told(upto + 3))
        assert read(ours, ours.writer.position) == told(upto)
    ledger.writer.check()
    ledger.store.folder.fold_all(FOLDED)
    assert read(ledger) == told(6)
    ledger.store.upkeep.maintain(vacuum=False)
    head = ledger.store.head()
    assert (head.generation, head.forks, head.shadow and head.shadow.epoch) == (generation, (), 2)
    again = ledger.restart()
    assert again.writer.position == Position("shop", 1, 6)
    ours.writer.check()
    assert read(ledger, "shop@2.3") == told(3), "the shadow's own positions can be read"


def test_a_shadow_from_any_fork_is_promoted_at_the_apps_offsets_and_readers_have_it_all_at_once(ledger: Ledger) -> None:
    tell(ledger, folds=(2, 5))
    for to, cuts in (("earliest", (2, 5)), ("3", ())):
        epoch = ledger.writer.position.epoch
        begun(ledger, to)
        before, seen = ledger.store.head().position, read(ledger)
        with failpoints.armed("rewind.promote.before_commit", lambda: seen.update(again=read(ledger))):  # noqa: B023
            ledger = promoted(ledger, *cuts)
        assert seen.pop("again") == seen == read(ledger) == told(6)
        assert (ledger.writer.position.epoch, ledger.store.head().shadow) == (epoch + 2, None)
        assert read(ledger, before) == told(6), "what was left can still be read"
    ledger.store.folder.fold_all(FOLDED)
    ledger.sell(a=1)
    assert ledger.read("stock") == told(6)["stock"] | {"a": 14}


@pytest.mark.slow
def test_what_the_app_reads_meanwhile_the_shadow_reads_before_it_is_promoted(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2, 3))
    begun(ledger)
    replay(ledger)(None)
    tell(ledger, cuts=(4, 5))

    def late() -> None:
        tell(ledger, cuts=(6,))  # committed before the app is asked to wait

    with failpoints.armed("rewind.promote.before_hold", late):
        again = promoted(ledger)
    assert (read(again), again.writer.position) == (told(6), Position("shop", 3, 3))
    with pytest.raises(Fenced, match="promote shadow rewind to earliest"):
        ledger.writer.check()


@pytest.mark.slow
def test_a_promote_is_undone_like_any_rewind(ledger: Ledger) -> None:
    tell(ledger, cuts=(2, 4), folds=(4,))
    begun(ledger)
    again = promoted(ledger, 1)
    tell(again, cuts=(5, 6))
    assert read(again) == told(6)
    undone = rewound(again, target=Target("undo"))
    assert (undone.writer.position, read(undone)) == (Position("shop", 4, 2), told(4))
    tell(undone, cuts=(6,))
    assert read(undone) == told(6)
    with pytest.raises(RewindRefused, match="no rewind to undo"):
        planned(undone, target=Target("undo"))


@pytest.mark.slow
def test_a_promote_that_dies_at_any_point_has_changed_nothing_or_all_and_can_be_done_again(ledger: Ledger) -> None:
    tell(ledger, folds=(3,))
    for point in ("rewind.before_commit", "rewind.after_commit"):
        with failpoints.armed(point, "raise"), pytest.raises(failpoints.FailpointHit):
            begun(ledger)
        head = ledger.store.head()
        assert (head.position, head.shadow is not None) == (Position("shop", 1, 6), point == "rewind.after_commit")
    for point in ("store.fence.before_write", "store.fence.after_commit", "store.commit.before_write", "store.commit.after_write",
                  "store.commit.after_commit", "rewind.promote.before_hold", "rewind.promote.after_hold",
                  "rewind.promote.before_commit"):  # fmt: skip
        with failpoints.armed(point, "raise"), pytest.raises(failpoints.FailpointHit):
            shadow.promote(ledger.store, ledger.topology, replay(ledger, 1, 2, 3, 4, 5))
        head = ledger.store.head()
        assert (head.position, read(ledger), head.forks) == (Position("shop", 1, 6), told(6), ()), point
        assert head.shadow is not None, point
    with failpoints.armed("rewind.promote.after_commit", "raise"), pytest.raises(failpoints.FailpointHit):
        shadow.promote(ledger.store, ledger.topology, replay(ledger))
    assert (ledger.store.head().position.epoch, read(ledger), ledger.store.head().shadow) == (3, told(6), None)
    with pytest.raises(RewindRefused, match="has no shadow"):
        shadow.promote(ledger.store, ledger.topology, replay(ledger))


def test_what_is_done_is_said_to_be_done_where_the_storages_answers_are_lost(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(ledger, cuts=(1, 2))
    repeat_writes(monkeypatch)
    again = rewound(ledger, "1")
    tell(again, cuts=(2, 3), folds=(3,))
    assert [row.fork for row in again.store.head().forks] == [1]
    begun(again)
    done = promoted(again, 2)
    assert (done.writer.position.epoch, read(done), len(done.store.head().forks)) == (4, told(3), 2)


def test_of_two_promotes_at_once_the_slower_one_says_that_it_is_done(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2))
    begun(ledger)
    with (
        failpoints.armed("rewind.promote.before_commit", lambda: promoted(ledger)),
        pytest.raises(RewindRefused, match="the shadow of shop was promoted, as epoch 3, while it was to be promoted here"),
    ):
        shadow.promote(ledger.store, ledger.topology, replay(ledger))
    assert read(ledger) == told(2)


@pytest.mark.slow
def test_a_promote_behind_the_app_or_beyond_it_is_refused(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2, 3, 4))
    begun(ledger)

    def lazy(goal: Offsets | None) -> None:
        if beside(ledger).writer.position.seq == 0:
            tell(beside(ledger), cuts=(3,))

    with pytest.raises(RewindRefused, match="moves/0: 30, not 40"):
        shadow.promote(ledger.store, ledger.topology, lazy)
    replay(ledger)(None)
    again = rewound(ledger, "2")
    with pytest.raises(RewindRefused, match="was the app rewound since"):
        shadow.promote(again.store, again.topology, replay(again))
    tell(again.restart(), cuts=(5,))
    assert read(promoted(again.restart())) == told(5)


def test_an_app_that_has_read_nothing_since_a_rewind_is_not_replaced_and_nothing_is_replayed_for_that(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2))
    begun(ledger)
    again = rewound(ledger, "earliest")
    with pytest.raises(RewindRefused, match="has read nothing since it was rewound"):
        shadow.promote(again.store, again.topology, lambda goal: pytest.fail(f"replayed up to {goal}"))


@pytest.mark.slow
def test_nothing_is_published_twice_through_a_promote_and_its_undo(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    for upto in (10, 20):
        emit(ledger, upto)
    deliver(ledger, broker, monkeypatch)
    begun(ledger)
    emit(ledger, 30)  # committed, and not published
    ours = beside(ledger)
    for upto in (15, 30):
        emit(ours, upto)
    again = promoted(ledger)
    deliver(again, broker, monkeypatch)
    emit(again, 40)
    deliver(again, broker, monkeypatch)
    undone = rewound(again, target=Target("undo"))
    emit(undone, 50)
    deliver(undone, broker, monkeypatch)
    for topic in (b"moves", b"names"):
        assert [v for k, v in broker.sent if k == topic] == [f"{topic.decode()}-{o}".encode() for o in range(50)]


def test_a_diff_counts_rows_and_columns_and_shows_keys(ledger: Ledger) -> None:
    tell(ledger, cuts=(2, 6), folds=(2,))
    begun(ledger)
    ours = beside(ledger)
    batch(ours, 0, 2)
    frames = {"stock": ours.sums("stock", {"a": 1, "new": 7}), "names": ours.names({"z": (4, "three")})}
    info = dataclasses.replace(ours.info(records=40, reached={"moves": 6, "names": 6}))
    ours.writer.commit(frames, info)
    found = shadow.diff(ledger.store, ledger.topology)
    stock = next(t for t in found.tables if t.table == "stock")
    assert (found.exact, stock.added, stock.removed, stock.changed) == (True, 1, 1, 2)
    (quantity,) = stock.columns
    assert (quantity.name, quantity.changed, quantity.net, quantity.largest) == ("qty", 2, "-14", "8")
    assert [(s.kind, s.key, s.old, s.new) for s in stock.samples] == [
        ("added", '{"k":"new"}', None, '{"qty":7}'), ("changed", '{"k":"a"}', '{"qty":13}', '{"qty":5}'),
        ("changed", '{"k":"b"}', '{"qty":9}', '{"qty":2}'), ("removed", '{"k":"c"}', '{"qty":6}', None),
    ]  # fmt: skip
    assert "made other rows of stock" in found.verdict
    assert next(t for t in found.tables if t.table == "hourly").rows == 0
    import json

    assert Diff.from_json(json.loads(found.to_json())) == found
    assert "| stock | 1 | 1 | 2 | qty in 2 (sum -14, at most 8) |" in found.markdown()


@pytest.mark.slow
def test_a_shadow_of_other_code_is_compared_promoted_and_undone_by_the_code_that_was(spark: SparkSession, tmp_path: Path) -> None:
    import watertable as wt
    from watertable.store.writer import Store

    def till(column: str) -> Any:
        app = wt.App("shop")
        moves = app.topic("moves", key="k STRING", value="k STRING, qty BIGINT").stream()
        app.topic("names", key="k STRING", value="name STRING").table().materialized_as("names")
        agg = moves.group_by("value.k").agg(**({"qty": wt.sum("qty")} if column == "qty" else {"top": wt.max("qty"), "n": wt.count()}))
        agg.materialized_as("stock")
        return app.topology()

    old, new = till("qty"), till("top")
    session = tiny(spark)
    live = Ledger.open(session, str(tmp_path), topology=old)
    live.commit({"stock": live.sums("stock", {"a": 3, "b": 1})})
    live.store.folder.fold_all()
    changed = Ledger(session, Store(session, str(tmp_path), "shop", new.tables), new, live.writer, dict(live.offsets))
    begun(changed)
    ours = beside(changed)
    live.commit({"stock": live.sums("stock", {"a": 2})})  # whose columns came beside it
    first, second = (f.name for f in new.table("stock").state)
    top = f"named_struct('k', 'a'), named_struct('{first}', 3L, '{second}', 2L), timestamp'2026-01-01 00:00:00'"
    ours.offsets = {}
    info = dataclasses.replace(ours.info(records=20), begin={("moves", 0): 0, ("names", 0): 0})
    ours.writer.commit({"stock": ours.deltas("stock", [top])}, info)
    found = shadow.diff(changed.store, new)
    stock = next(t for t in found.tables if t.table == "stock")
    assert (stock.added, stock.removed, stock.changed, stock.at) == (0, 1, 0, "shop@1.1"), "by its folded table, as it is"
    assert "new: top, n; no more: qty" in stock.note
    codes = f"other code ({old.fingerprint} → {new.fingerprint})"
    assert found.verdict == f"{codes}: 1 of 2 tables differ, as far as they could be compared: without stock.top, stock.n, stock.qty"
    same = dataclasses.replace(found, tables=(dataclasses.replace(stock, removed=0),))
    assert "the same rows, as far as they could be compared: without stock.top" in same.verdict
    assert shadow.Diff.from_json(json.loads(found.to_json())) == found
    shadow.promote(changed.store, new, lambda goal: None)
    assert {r[0]: (r[1], r[2]) for r in changed.store.reader.read("stock").collect()} == {"a": (3, 2)}
    changed.store.folder.fold_all()
    with pytest.raises(OtherCode, match=r"start this again with it; .* `watertable rewind shop --table stock --apply`"):
        Reader(session, str(tmp_path), "shop", old.tables).read("stock")
    assert "load that code" in planned(changed, target=Target("undo")).refusals[0]
    undone = rewound(live, target=Target("undo"))
    assert undone.read("stock") == {"a": 5, "b": 1}


def test_the_standing_of_an_app_names_the_shadow_beside_it_and_how_far_that_has_come(ledger: Ledger) -> None:
    tell(ledger, [2, 4])
    assert ledger.store.reader.status().shadow is None
    begun(ledger)
    assert ledger.store.reader.status().shadow == Position("shop", 2, 0)
    tell(beside(ledger), [1])
    status = ledger.store.reader.status()
    assert (status.position, status.shadow) == (Position("shop", 1, 2), Position("shop", 2, 1))


def test_a_shadow_that_a_person_calls_parity_is_not_given_up_for_one(ledger: Ledger) -> None:
    tell(ledger, [2, 4])
    epoch = begun(ledger, reason=parity.REASON).epoch
    with pytest.raises(RewindRefused, match="has a shadow, of 'shadow rewind to earliest: parity'"):
        parity.hold(ledger.store, ledger.topology, Kafka(), Target("earliest"), lambda: None)  # type: ignore[arg-type]
    row = ledger.store.head().shadow
    assert row is not None
    assert row.epoch == epoch


def test_a_parity_that_died_leaves_a_shadow_that_the_next_one_gives_up(ledger: Ledger) -> None:
    tell(ledger, [2, 4])
    with failpoints.armed("rewind.abandon.before_commit", "raise"), pytest.raises(failpoints.FailpointHit):
        parity.hold(ledger.store, ledger.topology, Kafka(), Target("earliest"), lambda: replay(ledger)(None))  # type: ignore[arg-type]
    assert ledger.store.head().shadow is not None
    held = parity.hold(ledger.store, ledger.topology, Kafka(), Target("earliest"), lambda: replay(ledger)(None))  # type: ignore[arg-type]
    assert (held.apart, ledger.store.head().shadow) == ((), None)


@pytest.mark.slow
def test_a_parity_that_is_given_up_for_another_leaves_that_one_alone(ledger: Ledger) -> None:
    tell(ledger, [2, 4])
    begins, is_given_up = threading.Event(), threading.Event()
    said: list[object] = []

    def hold(replay: Callable[[], None]) -> parity.Held:
        return parity.hold(ledger.store, ledger.topology, Kafka(), Target("earliest"), replay)  # type: ignore[arg-type]

    def give_way() -> None:
        ours = beside(ledger)
        begins.set()
        is_given_up.wait(60)
        ours.writer.check()

    def be_first() -> None:
        try:
            said.append(hold(give_way))
        except Fenced as fenced:
            said.append(fenced)

    def go_on() -> None:
        is_given_up.set()
        first.join(60)
        replay(ledger)(None)

    first = threading.Thread(target=be_first)
    first.start()
    assert begins.wait(60)
    held = hold(go_on)
    assert (held.apart, ledger.store.head().shadow, [type(what) for what in said]) == ((), None, [Fenced])
