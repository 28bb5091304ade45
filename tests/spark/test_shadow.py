"""Hold shadows to their law on the store: nobody notices one until it is promoted, and then readers have all of it at the same offsets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.properties.engines import tiny
from tests.spark.ledger import Ledger
from tests.spark.test_rewind import FOLDED, Kafka, batch, planned, read, rewound, tell, told
from watertable import failpoints, rewind, shadow
from watertable.changelog import Position
from watertable.errors import Fenced, RewindRefused
from watertable.rewind import Target
from watertable.shadow import Diff

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.changelog import Offsets

pytestmark = pytest.mark.spark


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Ledger:
    """Open a new store."""
    return Ledger.open(tiny(spark), str(tmp_path))


def begun(ledger: Ledger, to: str = "earliest", **options: Any) -> Position:
    """Begin a shadow."""
    plan = planned(ledger, to, shadow=True, **options)
    return rewind.apply(ledger.store, plan, ledger.topology.fingerprint, Kafka(), follow=True)  # type: ignore[arg-type]


def beside(ledger: Ledger) -> Ledger:
    """Take the shadow's place as a new process would."""
    writer = ledger.store.start_writer(ledger.topology.fingerprint, shadow=True)
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
