"""Hold acts to their laws where they meet: shadows given up, trims and rewinds beside a shadow, readers that poll through all of it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests import buckets
from tests.properties.engines import tiny
from tests.spark.ledger import Ledger
from tests.spark.test_rewind import FOLDED, batch, planned, read, rewound, tell, told
from tests.spark.test_shadow import begun, beside, promoted, replay
from watertable import failpoints
from watertable.acts import shadow
from watertable.acts.rewind import Target
from watertable.errors import Fenced, RewindRefused
from watertable.store.commits import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Ledger:
    """Open a new store."""
    return Ledger.open(tiny(spark), str(tmp_path))


@pytest.mark.slow
def test_a_shadow_that_is_given_up_leaves_the_app_as_it_was_and_makes_room_for_another(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2, 3), folds=(2,))
    begun(ledger)
    ours = beside(ledger)
    batch(ours, 0, 2)
    for point, there in (("rewind.abandon.before_commit", True), ("rewind.abandon.after_commit", False)):
        with failpoints.armed(point, "raise"), pytest.raises(failpoints.FailpointHit):
            shadow.abandon(ledger.store, "no good")
        head = ledger.store.head()
        assert (head.shadow is not None, head.position, read(ledger)) == (there, Position("shop", 1, 3), told(3))
    with pytest.raises(RewindRefused, match="has no shadow"):
        shadow.abandon(ledger.store)
    with pytest.raises(Fenced, match="no good"):
        ours.writer.check()
    with pytest.raises(Fenced):
        batch(ours, 2, 3)
    with pytest.raises(Fenced, match="no shadow to write"):
        beside(ledger)
    ledger.writer.check()
    batch(ledger, 3, 4)
    assert begun(ledger) == Position("shop", 3, 0), "of its number there is no second one"
    again = promoted(ledger, 2)
    assert (read(again), again.writer.position.epoch) == (told(4), 4)
    tell(again, cuts=(6,))
    assert read(again) == told(6)


@pytest.mark.slow
def test_a_trim_spares_what_a_shadow_has_written_and_what_it_is_read_with(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    buckets.resize(2, monkeypatch.setattr)
    later = datetime.now(UTC) + timedelta(days=30)
    keeper = ledger.store.upkeep
    tell(ledger, cuts=(1, 2, 3))
    ledger.store.fold_all()
    tell(ledger, cuts=(4,))
    begun(ledger, "4")  # what it looks up comes from the fold of commit 3, which ends a bucket, and from what followed it
    ours = beside(ledger)
    batch(ours, 4, 5)
    tell(ledger, cuts=(5, 6))
    ledger.store.fold_all()
    assert keeper.trim(now=later) == 1, "without a shadow it would be three: all but the last commit"
    assert (read(ledger), read(ours, ours.writer.position)) == (told(6), told(5))
    batch(ours, 5, 6)
    assert read(ours, ours.writer.position) == told(6)
    again = promoted(ledger)
    assert read(again) == told(6)
    again.store.folder.fold_all(FOLDED)
    keeper.trim(now=later)
    assert read(again) == told(6)


@pytest.mark.slow
def test_a_trim_spares_the_first_commits_while_a_shadow_is_read_with_them(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    buckets.resize(2, monkeypatch.setattr)
    later, keeper = datetime.now(UTC) + timedelta(days=30), ledger.store.upkeep
    tell(ledger, cuts=(1, 2, 3))
    begun(ledger, "2")  # nothing is folded yet that it could be read with
    tell(ledger, cuts=(4, 5, 6))
    ledger.store.fold_all()
    assert keeper.trim(now=later) == 0
    ours = beside(ledger)
    batch(ours, 2, 5)
    assert read(ours, ours.writer.position) == told(5)
    shadow.abandon(ledger.store)
    assert keeper.trim(now=later) == 3, "it holds nothing any more"


@pytest.mark.slow
def test_a_rewind_beside_a_shadow_leaves_the_shadow_to_be_promoted_once_the_app_has_read_as_much(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2, 3, 4), folds=(3,))
    begun(ledger)
    replay(ledger, 2)(None)
    held = ledger.store.head().shadow
    again = rewound(ledger, "2")
    assert (again.writer.position, read(again)) == (Position("shop", 3, 2), told(2)), "epoch 2 is the shadow's"
    assert again.store.head().shadow == held
    with pytest.raises(RewindRefused, match="was the app rewound since"):
        shadow.promote(again.store, again.topology, lambda goal: None)
    again = again.restart()  # the promote had asked it to wait
    tell(again, cuts=(4, 5))
    found = shadow.diff(again.store, again.topology)
    assert (found.exact, found.verdict) == (True, "the same code, the same rows")
    again = promoted(again)
    assert (read(again), again.writer.position.epoch) == (told(5), 4)
    undone = rewound(again, target=Target("undo"))
    assert read(undone) == told(5), "where the rewound epoch had been"
    undone = rewound(undone, target=Target("undo"))
    assert read(undone) == told(4), "and where the first had"


@pytest.mark.slow
@pytest.mark.parametrize("acts", [3, 20])
def test_a_reader_that_polls_through_rewinds_and_promotes_sees_one_position_each_time_and_goes_back_only_where_it_can_see_why(
    ledger: Ledger, acts: int
) -> None:
    """All tables together by `wt.read`, and each table alone by any Delta reader; kills before the act's row included."""
    tell(ledger, folds=(3, 6))
    states = [told(n) for n in range(7)]
    stop, wrong, seen, plain = threading.Event(), list[object](), list[Position](), list[object]()
    path = ledger.store.changelog.base_path("stock")

    def poll() -> None:
        try:
            while not stop.is_set():
                view = ledger.store.reader.view(("stock", "low", "names"))
                found = {n: {r[0]: r[1] for r in view.rows(ledger.table(n)).collect()} for n in ("stock", "low", "names")}
                seen.append(view.position)
                if found not in states:
                    wrong.append((view.position, found))
                rows = {r["k"]: r["qty"] for r in ledger.spark.read.format("delta").load(path).collect()}
                plain.append(rows)
                if rows not in [state["stock"] for state in states]:
                    wrong.append(("stock alone", rows))
        except Exception as error:
            wrong.append(error)

    draw, polling = Random(acts), threading.Thread(target=poll)
    polling.start()
    backward: list[Position] = []
    try:
        for number in range(acts):
            if number % 2:
                begun(ledger, "earliest" if draw.random() < 0.5 else str(Position("shop", ledger.writer.position.epoch, 1)))
                with failpoints.armed("rewind.promote.before_commit", "raise"), pytest.raises(failpoints.FailpointHit):
                    promoted(ledger, draw.randint(1, 5))
                ledger = promoted(ledger)
            else:
                target = "earliest" if draw.random() < 0.4 else str(draw.randint(1, 2))
                with failpoints.armed("rewind.before_commit", "raise"), pytest.raises(failpoints.FailpointHit):
                    rewound(ledger, target)
                ledger = rewound(ledger, target)
                backward.append(ledger.writer.position)
                first = ledger.offsets.get(("moves", 0), 0) // 10
                if first < 6:  # a rewind may have cut the tale so that its second commit is its last
                    cut = draw.randint(first + 1, 6)
                    tell(ledger, cuts=sorted({cut, 6}), folds=(cut,))
        done = len(seen)
        while len(seen) < done + 2 and polling.is_alive():
            stop.wait(0.05)
    finally:
        stop.set()
        polling.join(60)
    assert wrong == []
    assert len(plain) > acts
    assert read(ledger) == told(6)
    assert len({p.epoch for p in seen}) > acts // 2
    for before, after in pairwise(seen):
        assert after.epoch >= before.epoch, "never into an epoch that was left"
        assert after.epoch > before.epoch or after.seq >= before.seq, "within an epoch only forward"


def test_plans_beside_a_shadow_say_so(ledger: Ledger) -> None:
    tell(ledger, cuts=(1, 2))
    begun(ledger)
    assert "has a shadow" in planned(ledger, "1", shadow=True).refusals[0]
    assert planned(ledger, "1").refusals == ()
    with pytest.raises(RewindRefused, match="position of the shadow"):
        planned(ledger, "shop@2.0")
