"""Let idle partitions go amid all that can be done to an app: each position has what its records, and what was decided then, make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.spark.runs import Item, Kafka, Tables
from tests.spark.shop import START
from tests.spark.test_acts_in_any_order import DEEDS, OF_TOPICS, TALES, Place, Tale, told
from tests.spark.test_rebuild import Beside, until
from watertable.acts import rewind, shadow
from watertable.acts.targets import Target
from watertable.interpreter import Interpreter
from watertable.plan.plan import Topology
from watertable.records import Advance, Record
from watertable.runtime.advances import Advances, Recorded
from watertable.store.commits import Offsets, Position
from watertable.tools.explain import interleaved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDLE = {name: deed for name, deed in DEEDS.items() if name not in ("publishes", *OF_TOPICS)}
"""Outputs may have been told of other advances, of which they were told again."""


def waits() -> Topology:
    """Define an app of what waits for time to go by: final windows, sessions, pairs, versions, calm rows and mortal ones."""
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value="shop STRING, qty BIGINT", idle_after=wt.minutes(5)).stream()
    prices = app.topic("prices", key="item STRING", value="price BIGINT, at TIMESTAMP", timestamp="at", idle_after=wt.minutes(5)).table()
    by_shop = sales.group_by("shop")
    hours = by_shop.windowed_by(wt.hopping(minutes=10, every=wt.minutes(5), grace=wt.minutes(2))).agg(
        n=wt.count(), of=wt.collect_list("qty")
    )
    hours.materialized_as("hours").suppress(wt.until_window_closes()).materialized_as("final")
    by_shop.windowed_by(wt.tumbling(minutes=5, grace=wt.minutes(8))).agg(qty=wt.sum("qty")).materialized_as("fives")
    visits = by_shop.windowed_by(wt.sessions(gap=wt.minutes(2), grace=wt.minutes(1))).agg(n=wt.count())
    visits.suppress(wt.until_window_closes()).materialized_as("visits")
    old = prices.materialized_as("old", history=wt.minutes(10))
    priced = sales.left_join(old, grace=wt.minutes(4), qty="qty", price="right.price")
    priced.group_by_key().agg(n=wt.count(), worth=wt.sum("qty * price")).materialized_as("priced")
    none = sales.filter("qty > 2").outer_join(sales.filter("qty < 0"), within=wt.minutes(2), a="left.qty", b="right.qty")
    none.group_by_key().agg(n=wt.count(), a=wt.sum("a"), b=wt.sum("b")).materialized_as("pairs")
    sold_ = sales.group_by_key().agg(qty=wt.sum("qty")).materialized_as("sold")
    sold_.suppress(wt.until_time_limit(wt.minutes(3))).materialized_as("calm")
    prices.materialized_as("prices").ttl(wt.minutes(8)).materialized_as("fresh")
    return app.topology()


class Idling(Tale):
    """Tell of an app whose partitions are idle now and then; remember, by commit, what was decided up to there on its own lineage."""

    def __init__(self, spark: SparkSession, warehouse: Path, topology: Topology, records: list[Record], draw: Random) -> None:
        self.decided: dict[Position, tuple[Advance, ...]] = {}
        self.recorded: set[Advance] = set()
        self.reached: Offsets = {}
        """Up to where any epoch has read."""
        super().__init__(spark, warehouse, topology, records, draw)

    def open(self) -> None:
        super().open()
        self.advances = known_to(self)

    def known(self, position: Position) -> tuple[Advance, ...]:
        """Give what was decided on the lineage of a position, up to it."""
        if not position.seq:
            return ()
        lineage = self.store.changelog.head(epoch=position.epoch).lineage
        found = self.decided.get(Position(position.app, lineage.epoch_of(position.seq), position.seq))
        return self.known(replace(position, seq=position.seq - 1)) if found is None else found  # a join decides nothing

    def oracle(self, offsets: Offsets, lost: frozenset[Place] | None = None) -> Interpreter:
        return self.made_of(offsets, self.known(self.position))

    def wanted(self, position: Position) -> Tables:
        return self.made_of(self.been[position], self.known(position)).tables

    def made_of(self, offsets: Offsets, advances: Sequence[Advance]) -> Interpreter:
        engine = Interpreter(self.topology, partitions=self.partitions)
        records = [r for r in self.records if r.offset < offsets.get((r.topic, r.partition), 0)]
        engine.read([*interleaved(records, advances)])
        return engine

    def read(self, items: Sequence[Item], *, dies: bool = False) -> None:
        reads(self, self, items, lambda found: super(Idling, self).read(found, dies=dies), dies=dies)

    def batch(self) -> None:
        """Commit a batch, with the advances of what is idle before it: only where nobody has read further can it be so."""
        ends = {p: offset for p, offset in self.next.items() if offset >= self.reached.get(p, 0)}
        idle = self.draw.sample([*ends], self.draw.randint(1, len(ends))) if ends and self.draw.random() < 0.4 else []
        self.advances.idle = frozenset(idle)
        self.said += f" idle {sorted(idle)}" if idle else ""
        if self.draw.random() < 0.2:
            self.read(self.left(self.records)[: self.draw.randint(1, 9)], dies=True)
            self.start()
        left = self.left([r for r in self.records if (r.topic, r.partition) not in idle])
        if left or self.advances.due(self.next, self.carry):
            self.read(left[: self.draw.randint(1, 9)])
            self.remember()

    def begin(self) -> Beside:
        return Shadow(self)


class Shadow(Beside):
    """Read what the app has read, with what was decided of it."""

    def __init__(self, tale: Idling) -> None:
        self.tale = tale
        super().__init__(tale.spark, tale.warehouse, tale.topology, tale.partitions)

    def open(self) -> None:
        super().open()
        self.advances = known_to(self)

    def read(self, items: Sequence[Item], *, dies: bool = False) -> None:
        reads(self.tale, self, items, lambda found: super(Shadow, self).read(found, dies=dies), dies=dies)

    def upto(self, goal: Offsets, records: list[Record], size: int) -> None:
        """Go on until nothing is left before these offsets, and nothing due."""
        self.advances = known_to(self)
        if shadow.current(self.tale.store).of:
            last = until(self.tale) or self.tale.store.head().last
            assert last is not None
            self.advances.level_with(last.next, last.stream_times)

        def left() -> list[Record]:
            own = [r for r in records if (r.topic, r.partition) in self.next]
            return [r for r in self.left(own) if r.offset < goal[r.topic, r.partition]]

        while left() or self.advances.due(self.next, self.carry):
            self.read(left()[:size])


def known_to(run: Idling | Shadow) -> Advances:
    """Know of advances what a run knows that begins now."""
    found, ids = Advances.of(run.topology), {topic: topic for topic, _ in run.partitions}
    if run.store.head().next_epoch > 2:
        found.recorded = Recorded(run.store.changelog.advances(ids))
    return found


def reads(tale: Idling, run: Idling | Shadow, records: Sequence[Item], read: Callable[[Sequence[Item]], None], *, dies: bool) -> None:
    """Commit records as a job does: what is due before them first, and no further than to where something was decided."""
    end = dict(run.next)
    for record in records:
        end[record.topic, record.partition] = record.offset + 1
    end = run.advances.upto(run.next, end)
    due = [Advance(a.topic, a.partition, a.before, a.stream_time, a.clock) for a in run.advances.due(run.next, run.carry)]
    before = tale.known(run.writer.position)
    behind = {a for a in tale.recorded if a.offset <= run.next.get((a.topic, a.partition), -1)}
    read([*due, *(r for r in records if r.offset < end[r.topic, r.partition])])
    if dies:
        return
    run.advances.idle = frozenset()
    tale.decided[run.writer.position] = (*before, *due)
    tale.recorded |= {*due}
    for place, offset in run.next.items():
        tale.reached[place] = max(offset, tale.reached.get(place, 0))
        late = [a for a in behind if (a.topic, a.partition) == place and (run.carry[place] is None or run.carry[place] < a.stream_time)]
        tale.wrong += [f"{run.writer.position} goes on behind {late} as if that hadn't been decided"] if late else []


@pytest.mark.slow
@pytest.mark.spark
def test_tables_that_are_rebuilt_do_with_the_others_what_an_undone_epoch_had_decided(spark: SparkSession, tmp_path: Path) -> None:
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value="shop STRING, qty BIGINT", idle_after=wt.minutes(5)).stream()
    fives = sales.group_by("shop").windowed_by(wt.tumbling(minutes=5)).agg(n=wt.count())
    final = fives.suppress(wt.until_window_closes()).materialized_as("final")
    final.to_stream().group_by("shop").agg(told=wt.count()).materialized_as("told")
    sales.group_by("shop").agg(n=wt.count()).materialized_as("sold")
    places = [(0, 0, 0), (0, 1, 3), (0, 2, 7), (1, 0, 30)]
    records = [Record("sales", p, n, START + timedelta(minutes=m), b"a", b'{"shop": "x", "qty": 1}') for p, n, m in places]
    kafka: Any = Kafka([("sales", 0), ("sales", 1)])
    tale = Idling(tiny(spark), tmp_path, app.topology(), records, Random(1))

    def shown() -> list[int]:
        return [row["told"] for row in tale.tables()["told"].values()]

    tale.read(records)
    tale.remember()
    rewind.apply(tale.store, rewind.plan(tale.store, tale.topology, kafka, Target.parse("1")), tale.topology.fingerprint, kafka)
    tale.open()
    tale.advances.idle = frozenset({("sales", 0)})
    tale.read([])
    assert shown() == [2]
    rewind.apply(tale.store, rewind.plan(tale.store, tale.topology, kafka, Target("undo")), tale.topology.fingerprint, kafka)
    tale.open()
    assert shown() == [1]
    plan = rewind.plan(tale.store, tale.topology, kafka, Target("earliest"), tables=["final"])
    rewind.apply(tale.store, plan, tale.topology.fingerprint, kafka)
    shadow.promote(tale.store, tale.topology, tale.bring(30))
    tale.start()
    assert shown() == [1], "the app hasn't let it go yet"
    tale.open()
    tale.read([])
    assert shown() == [2]
    assert tale.tables() == tale.oracle(tale.next).tables


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("number", range(TALES))
def test_partitions_that_are_let_go_amid_acts_count_as_that_far_wherever_they_are_read_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """WATERTABLE_TALES and WATERTABLE_STEPS say how many, and how long each is; WATERTABLE_SEED which."""
    told(number, lambda records, draw: Idling(tiny(spark), tmp_path, waits(), records, draw), IDLE, monkeypatch)
