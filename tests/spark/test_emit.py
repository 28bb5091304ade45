"""Hold what is published again to its law: once more where somebody asked for it, never where nobody did, whatever dies on the way."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.spark.ledger import Ledger
from tests.spark.test_rewind import Broker, deliver, emit, planned, rewound
from tests.spark.test_shadow import begun, beside
from watertable.acts import shadow
from watertable.acts.rewind import Target
from watertable.errors import RewindRefused
from watertable.kafka.publisher import OutboxRow
from watertable.plan.plan import Topology
from watertable.store import memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def shop() -> Topology:
    app = wt.App("shop")
    stock = app.topic("moves", key="k STRING", value="k STRING, qty BIGINT").stream().group_by("value.k").agg(qty=wt.sum("qty"))
    stock.materialized_as("stock").to_stream().to("low")
    app.topic("names", key="k STRING", value="name STRING").table().materialized_as("names")
    return app.topology()


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Ledger:
    """Open a new store."""
    return Ledger.open(tiny(spark), str(tmp_path), topology=shop())


def sent(broker: Broker, topic: str = "moves") -> list[int]:
    """List the source offsets of what was published, in the order in which it was."""
    return [int(value.decode().partition("-")[2]) for key, value in broker.sent if key == topic.encode() and value]


def both(broker: Broker) -> list[list[int]]:
    return [sent(broker, topic) for topic in ("moves", "names")]


def test_what_was_asked_for_is_published_once_more_from_the_fork_on(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that is made anew in the middle goes on where the one before it stopped."""
    broker = Broker()
    for upto in (10, 20, 30):
        emit(ledger, upto)
    deliver(ledger, broker, monkeypatch)
    emit(ledger, 40)  # committed, and not published: the epoch that publishes again publishes it once
    again = rewound(ledger, "1", emit=True)
    (row,) = again.store.head().forks
    assert (row.writer, row.counters["emit"], row.format) == ("rewind to commit 1, emitting", 2, 1)
    for upto, names in ((15, 35), (25, 36), (50, 50)):
        emit(again, upto, names)
        deliver(again, broker, monkeypatch)
        deliver(again, broker, monkeypatch)
    assert both(broker) == [[*range(30), *range(10, 50)]] * 2
    assert broker.state is not None
    assert broker.state.floor == {}, "once all of it is passed, what was published before is forgotten"


def test_where_all_is_published_a_start_and_a_rewind_ask_spark_for_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many rows its last commit has to publish, the log has said."""
    broker = Broker()
    for upto in (10, 20, 30):
        emit(ledger, upto)
    deliver(ledger, broker, monkeypatch)

    def jobs(started: Ledger) -> int:
        tracker = started.spark.sparkContext.statusTracker()
        before = len(tracker.getJobIdsForGroup("shop courier"))
        deliver(started, broker, monkeypatch)
        return len(tracker.getJobIdsForGroup("shop courier")) - before

    assert jobs(ledger.restart()) == 0
    with monkeypatch.context() as patch:
        patch.setattr(memory, "_seen", {})
        patch.setattr(memory, "_YOUNG", -1)
        assert jobs(ledger.restart()) >= 1, "a process that hasn't followed a long log looks"
    again = rewound(ledger, "2")
    assert jobs(again) == 0
    emit(again, 40)
    assert jobs(again) == 1, "what is new has one"
    assert both(broker) == [[*range(40)]] * 2


@pytest.mark.slow
def test_an_undo_publishes_nothing_of_what_either_epoch_has_published(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    for upto in (10, 20, 30):
        emit(ledger, upto)
    deliver(ledger, broker, monkeypatch)
    again = rewound(ledger, "1", emit=True)
    emit(again, 20, 40)
    deliver(again, broker, monkeypatch)
    undone = rewound(again, target=Target("undo"))
    deliver(undone, broker, monkeypatch)
    emit(undone, 50)
    deliver(undone, broker, monkeypatch)
    assert both(broker) == [[*range(30), *range(10, 20), *range(30, 50)], [*range(30), *range(10, 40), *range(40, 50)]]


@pytest.mark.slow
def test_a_rewind_without_it_ends_it_and_leaves_what_the_app_has_kept_of_it(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of the epoch that publishes again are published by whichever epoch goes on from them, late as its publisher may be."""
    broker = Broker()
    for upto in (10, 20, 30):
        emit(ledger, upto)
    deliver(ledger, broker, monkeypatch)
    again = rewound(ledger, "1", emit=True)
    for upto in (14, 18, 22):
        emit(again, upto)
    once = rewound(again, "3")  # of 14 and 18 it goes on
    emit(once, 26)
    deliver(once, broker, monkeypatch)
    emit(once, 40)
    deliver(once, broker, monkeypatch)
    assert both(broker) == [[*range(30), *range(10, 18), *range(30, 40)]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["when it was begun", "when it was promoted", "never"])
def test_a_shadow_publishes_what_it_has_made_once_it_is_promoted_where_that_was_asked_for(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    broker = Broker()
    for upto in (10, 20, 30):
        emit(ledger, upto)
    deliver(ledger, broker, monkeypatch)
    begun(ledger, "1", emit=asked == "when it was begun")
    ours = beside(ledger)
    emit(ours, 17)
    emit(ledger, 40)
    deliver(ledger, broker, monkeypatch)
    assert both(broker) == [[*range(40)]] * 2, "nobody hears of it before that"
    emit(ours, 40)
    _, position = shadow.promote(ledger.store, ledger.topology, lambda goal: None, emit=asked == "when it was promoted")
    again = ledger.restart()
    assert again.store.head().emitting(position.epoch) == (frozenset() if asked == "never" else {2, 3})
    emit(again, 50)
    deliver(again, broker, monkeypatch)
    more = [] if asked == "never" else [*range(10, 40)]
    assert both(broker) == [[*range(40), *more, *range(40, 50)]] * 2
    undone = rewound(again, target=Target("undo"))
    emit(undone, 60)
    deliver(undone, broker, monkeypatch)
    assert both(broker) == [[*range(40), *more, *range(40, 60)]] * 2


def test_there_is_nothing_to_publish_again_of_some_tables_or_without_output_topics(ledger: Ledger, spark: SparkSession) -> None:
    emit(ledger, 10)
    with pytest.raises(RewindRefused, match="--emit: output topics get nothing of a rebuild of some tables"):
        planned(ledger, "earliest", tables=["stock"], emit=True)
    begun(ledger, "earliest", tables=["stock"])
    with pytest.raises(RewindRefused, match="--emit: output topics get nothing"):
        shadow.promote(ledger.store, ledger.topology, lambda goal: None, emit=True)


class Story:
    """Tell an app's life at random: commits, publications that may die, rewinds and promotes that publish again or don't, undos."""

    def __init__(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.ledger, self.monkeypatch, self.draw, self.broker = ledger, monkeypatch, Random(seed), Broker()
        self.made: dict[tuple[int, int], set[bytes]] = {}
        self.asked: dict[int, int] = {}
        """Of each epoch that was to publish again, how much was sent when it began."""
        self.told: list[str] = []

    def tell(self, acts: int) -> None:
        self.commit()
        for _ in range(acts):
            act = self.draw.choices((self.commit, self.deliver, self.rewind, self.undo, self.promote), (6, 4, 3, 1, 1))[0]
            self.told.append(act.__name__)
            act()
        self.commit()
        deliver(self.ledger, self.broker, self.monkeypatch)

    def commit(self, ledger: Ledger | None = None, goal: dict[tuple[str, int], int] | None = None) -> None:
        ledger = ledger or self.ledger
        before = {t: ledger.offsets.get((t, 0), 0) for t in ("moves", "names")}
        after = {t: offset + self.draw.randint(t == "moves", 7) for t, offset in before.items()}
        if goal is not None:
            after = {t: goal[t, 0] for t in before}
        position = emit(ledger, after["moves"], after["names"])
        self.made[position.epoch, position.seq] = {f"{t}-{o}".encode() for t in before for o in range(before[t], after[t])}

    def deliver(self) -> None:
        """Publish all there is, or die on the way."""
        most = self.draw.choice((None, 0, 3, 11))
        publish = Broker.publish

        def dies(broker: Broker, rows: Iterator[OutboxRow]) -> None:
            publish(broker, rows, most)

        with self.monkeypatch.context() as patched:
            patched.setattr(Broker, "publish", dies)
            try:
                deliver(self.ledger, self.broker, self.monkeypatch)
            except KeyboardInterrupt:
                self.told.append(f"died after {most}")

    def rewind(self) -> None:
        emits, (epoch, seq) = self.draw.random() < 0.5, self.draw.choice([*self.made, (0, 0)])
        shadows = {row.epoch for row in self.ledger.store.head().shadows}
        if epoch in shadows:
            return
        self.ledger = rewound(self.ledger, f"shop@{epoch}.{seq}" if seq else "earliest", emit=emits)
        self.told.append(f"to {epoch}.{seq} {'emitting' if emits else ''}")
        self.begun(emits=emits)

    def undo(self) -> None:
        try:
            self.ledger = rewound(self.ledger, target=Target("undo"))
        except RewindRefused:
            return
        self.begun(emits=False)

    def promote(self) -> None:
        head, emits = self.ledger.store.head(), self.draw.random() < 0.5
        if head.last is None:
            return
        begun(self.ledger, str(self.draw.randint(0, head.position.seq)) if self.draw.random() < 0.5 else "earliest", emit=emits)
        ours = beside(self.ledger)
        self.commit(ours, dict(head.last.next))
        shadow.promote(self.ledger.store, self.ledger.topology, lambda goal: None)
        self.ledger = self.ledger.restart()
        self.begun(emits=emits)

    def begun(self, *, emits: bool) -> None:
        self.ledger.offsets = dict(self.ledger.store.head().last.next) if self.ledger.store.head().last else {}  # type: ignore[union-attr]
        if emits:
            self.asked[self.ledger.writer.position.epoch] = len(self.broker.sent)

    def hold(self) -> None:
        """Hold what was sent to the law."""
        head = self.ledger.store.head()
        sent_ = [value for _, value in self.broker.sent if value is not None]
        counts, makers = Counter(sent_), defaultdict[bytes, set[int]](set)
        for epoch in self.asked:
            for (made_by, _), values in self.made.items():
                if made_by in head.emitting(epoch):
                    for value in values:
                        makers[value].add(epoch)
        kept = [(place, values) for place, values in self.made.items() if head.lineage.holds(*place)]
        for value in {value for _, values in kept for value in values}:
            assert 1 <= counts[value] <= 1 + len(makers[value]), f"{value!r} came {counts[value]} times: {self.told}"
        for epoch, before in self.asked.items():
            later = [row.epoch for row in head.forks if row.epoch >= epoch]
            ways = [head.lineage_of(row) for row in later]
            for place, values in kept:
                if place[0] in head.emitting(epoch) and all(way.holds(*place) for way in ways):
                    assert values <= set(sent_[before:]), f"what epoch {epoch} was to publish again isn't there: {self.told}"
        for topic in ("moves", "names"):
            back = sum(b < a for a, b in pairwise(sent(self.broker, topic)))
            assert back <= len(self.asked), f"{topic} went back {back} times: {self.told}"


@pytest.mark.slow  # minutes each
@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_each_record_is_published_once_and_once_more_for_each_time_it_was_asked_for(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    story = Story(ledger, monkeypatch, seed)
    story.tell(14)
    story.hold()
