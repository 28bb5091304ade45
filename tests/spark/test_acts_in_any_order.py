"""Do all that can be done to an app, in any order: at each position that it was ever at, its tables are what its records make them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests import buckets
from tests.properties.engines import tiny
from tests.spark.runs import Kafka, Run, Tables, without_bounds
from tests.spark.test_rebuild import Beside, replay
from tests.spark.test_rewind import Broker
from watertable import failpoints
from watertable.acts import rebuild, rewind, shadow
from watertable.acts.rewind import RewindPlan, Target
from watertable.dsl.streams import Stream
from watertable.dsl.tables import Table
from watertable.errors import Fenced, RewindRefused, UnknownPosition
from watertable.interpreter import Interpreter
from watertable.kafka import publisher
from watertable.plan.plan import Topology
from watertable.records import Record
from watertable.runtime import workers
from watertable.runtime.workers import Courier
from watertable.store.commits import Offsets, Position
from watertable.store.fold import Folder
from watertable.store.touched import Touched
from watertable.store.views import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = int(os.environ.get("WATERTABLE_SEED", "20241126"))
TALES = int(os.environ.get("WATERTABLE_TALES", "4"))
STEPS = int(os.environ.get("WATERTABLE_STEPS", "25"))
START = datetime(2026, 1, 1, 23, 40, tzinfo=UTC)
LAST = date(2026, 1, 2)
"""A midnight is amid the records: days are touched one by one."""
FOLDS = ("fold.after_pin", "fold.before_merge", "fold.after_merge", "fold.after_confirm")
PROMOTES = ("rewind.promote.before_hold", "rewind.promote.after_hold", "rewind.promote.before_commit", "rewind.promote.after_commit")
BEGINS = ("rewind.before_commit", "rewind.after_commit")
ABANDONS = ("rewind.abandon.before_commit", "rewind.abandon.after_commit")
TIDIES = ("trim.before_delete", "trim.after_delete", "upkeep.after_optimize", "upkeep.after_vacuum")
TRIMS = TIDIES[:2]
PUBLISHES = ("publish.after_produce", "publish.after_commit")
JOINS = ("rewind.join.before_write", "rewind.join.after_write")


def sums() -> Topology:
    """Define an app of sums, a table of them, joins, what leaves groups, and what is published."""
    app, sales, prices = shop()
    named = prices.materialized_as("prices")
    stock = sales.group_by("key.item").agg(qty=wt.sum("qty"), last=wt.last("shop")).materialized_as("stock")
    stock.group_by("last").agg(items=wt.count(), most=wt.max("qty")).materialized_as("levels")
    stock.join(named, worth="left.qty * right.price").materialized_as("worth")
    stock.filter("qty > 3").materialized_as("much")
    stock.to_stream().filter("old.qty >= 2 AND new.qty < 2").to("low")
    return app.topology()


def windows() -> Topology:
    """Define an app of windows, final ones, sessions, pairs of records, and what goes by time."""
    app, sales, prices = shop()
    by_shop = sales.group_by("shop")
    in_windows = by_shop.windowed_by(wt.hopping(minutes=10, every=wt.minutes(5), grace=wt.minutes(2)))
    hours = in_windows.agg(n=wt.count(), of=wt.collect_list("qty"))
    hours.materialized_as("hours").suppress(wt.until_window_closes()).materialized_as("final")
    by_shop.windowed_by(wt.tumbling(minutes=5, grace=wt.minutes(8))).agg(qty=wt.sum("qty")).materialized_as("fives")
    by_shop.windowed_by(wt.sessions(gap=wt.minutes(2))).agg(n=wt.count()).materialized_as("visits")
    pairs = sales.join(sales.filter("qty > 1"), within=wt.minutes(1), n="left.qty * right.qty")
    pairs.group_by_key().agg(n=wt.sum("n")).materialized_as("paired")
    prices.materialized_as("prices").ttl(wt.minutes(8)).materialized_as("fresh")
    sales.dedupe(name="seen", within=wt.minutes(5)).to("first")  # by what one partition has: else it depends on arrival
    return app.topology()


def kinds() -> Topology:
    """Define an app of versions, pairs that find nothing, rows by another's key, what slides and what is calm, and a processor."""
    app, sales, prices = shop()
    old = prices.materialized_as("old", history=wt.minutes(10))
    priced = sales.left_join(old, grace=wt.minutes(4), qty="qty", price="right.price")
    priced.group_by_key().agg(n=wt.count(), worth=wt.sum("qty * price")).materialized_as("priced")
    none = sales.filter("qty > 2").outer_join(sales.filter("qty < 0"), within=wt.minutes(2), a="left.qty", b="right.qty")
    none.group_by_key().agg(n=wt.count(), a=wt.sum("a"), b=wt.sum("b")).materialized_as("pairs")
    sold_ = sales.group_by_key().agg(qty=wt.sum("qty"), shop=wt.max("shop")).materialized_as("sold")
    shops = sales.group_by("shop").agg(qty=wt.sum("qty")).materialized_as("shops")
    sold_.left_join(shops, on="shop", qty="left.qty", of="right.qty").materialized_as("beside")
    sales.group_by_key().windowed_by(wt.sliding(difference=wt.minutes(2), grace=wt.minutes(5))).agg(n=wt.count()).materialized_as("slid")
    both = sales.group_by_key().cogroup(qty=wt.sum("qty")).cogroup(old.to_stream().group_by_key(), prices=wt.count())
    both.agg().materialized_as("both")
    sold_.suppress(wt.until_time_limit(wt.minutes(3))).materialized_as("calm")
    made = sales.process(
        _streaks, stores={"streaks": wt.key_value_store("n INT", key="shop STRING")}, children={"long": "shop STRING, n INT"}
    )
    made["long"].to("long")
    return app.topology()


def _streaks(record: wt.Record, context: wt.Context) -> None:
    """Count, by item and shop, what was sold since the item was last given back; tell of each third."""
    streaks = context.store("streaks")
    if record.value is None or record.value["qty"] < 0:
        for shop, _ in streaks.range():
            streaks.delete(shop)
        return
    n = (streaks.get(record.value["shop"]) or {"n": 0})["n"] + 1
    streaks.put({"n": n}, record.value["shop"])
    if n % 3 == 0:
        context.forward({"shop": record.value["shop"], "n": n}, to="long")


def shop() -> tuple[wt.App, Stream, Table]:
    """Begin the app of both: what is sold, and prices."""
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value="shop STRING, qty BIGINT").stream()
    return app, sales, app.topic("prices", key="item STRING", value="price BIGINT").table()


def sold(draw: Random, size: int) -> list[Record]:
    """Write records of two partitions a topic, some late, some that delete, in an order that they may be read in."""
    records, offsets = list[Record](), Counter[tuple[str, int]]()
    for number in range(size):
        item = draw.choice("abcd")
        place = (draw.choice(["sales", "sales", "sales", "prices"]), ord(item) % 2)
        qty = f'{{"shop": "{draw.choice("xyz")}", "qty": {draw.randint(-2, 4)}}}' if place[0] == "sales" else f'{{"price": {number}}}'
        when = START + timedelta(seconds=40 * number - draw.choice([0, 0, 0, 30, 200, 900]))
        records.append(Record(*place, offsets[place], when, item.encode(), None if draw.random() < 0.1 else qty.encode()))
        offsets[place] += 1
    return records


class Tale(Run):
    """Tell what happens to an app, and remember where it was: by position, the offsets that it had read up to."""

    def __init__(self, spark: SparkSession, warehouse: Path, topology: Topology, records: list[Record], draw: Random) -> None:
        self.records, self.draw, self.said = records, draw, ""
        self.been: dict[Position, Offsets] = {}
        self.gone: set[Position] = set()
        self.days: dict[str, dict[str, str]] = {}
        self.wrong: list[str] = []
        self.touched: Touched | None = None
        self.pinned: tuple[Folder, View] | None = None
        self.broker = Broker()
        self.furthest: Offsets = {}
        """Up to where, at any time, all was published."""
        self.courier: Courier | None = None
        super().__init__(spark, warehouse, topology, sorted({(r.topic, r.partition) for r in records}))

    # -- what is known of it

    @property
    def position(self) -> Position:
        return self.writer.position

    def remember(self) -> None:
        self.been[self.position] = dict(self.next)

    def oracle(self, offsets: Offsets) -> Interpreter:
        """Ask the oracle what all records before these offsets make."""
        engine = Interpreter(self.topology, partitions=self.partitions)
        engine.read([r for r in self.records if r.offset < offsets.get((r.topic, r.partition), 0)])
        return engine

    def wanted(self, position: Position) -> Tables:
        return self.oracle(self.been[position]).tables

    @property
    def shadowed(self) -> Topology:
        """Give what the shadow runs."""
        return self.topology

    def follow(self, commits: int, last: date = LAST, topology: Topology | None = None) -> Touched:
        return Touched(self.store.changelog, (topology or self.topology).tables, START.date(), last, commits)

    def asked(self, touched: Touched, epoch: int | None = None) -> dict[str, dict[str, str]]:
        head = self.store.changelog.head(epoch=epoch)
        return {name: dict(days) for name, days in touched.upto(head.position, head.lineage).items()}

    # -- what can happen

    def batch(self) -> None:
        left = self.left(self.records)
        if left:
            size = self.draw.randint(1, 9)
            if self.draw.random() < 0.2:
                self.read(left[: self.draw.randint(1, 9)], dies=True)
                self.start()
            self.read(self.left(self.records)[:size])
            self.remember()

    def folds(self) -> None:
        if self.draw.random() < 0.4:
            self.dies_at(self.draw.choice(FOLDS), lambda: self.store.folder.fold_all())
            if self.draw.random() < 0.5:
                return
        if self.draw.random() < 0.3:
            self.store.folder.fold_all(self.draw.sample([t.name for t in self.topology.kept], 3))
            return
        self.store.folder.fold_all()
        wanted = self.wanted(self.position)
        for name in wanted:  # as any Delta reader sees it
            found = sorted(map(without_bounds, self.plain(name)))
            assert found == sorted(map(without_bounds, wanted[name].values())), f"{name} as it is folded"

    def dies_at(self, point: str | None, act: Callable[[], object]) -> bool:
        """Die on the way through an act; at no point, come through it."""
        if point is None:
            act()
            return False
        try:
            with failpoints.armed(point, "raise"):
                act()
        except failpoints.FailpointHit:
            self.said += f" died at {point}"
            return True
        return False

    def publishes(self) -> None:
        """Bring to topics what commits have for them, whoever did so last and wherever that died."""
        dies = self.draw.choice([*PUBLISHES, None, None, None])
        if self.courier is None or self.courier.generation != self.writer.generation:
            kafka: Any = Kafka(self.partitions)
            self.courier = Courier(self.store, kafka, kafka, publishes=True)
            self.courier.generation = self.writer.generation
        courier, reached = self.courier, max(self.furthest, self.next, key=lambda offsets: sum(offsets.values()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(publisher, "CHUNK", 2)
            patch.setattr(workers, "OutboxPublisher", self.broker.publisher)
            died = self.dies_at(dies, lambda: courier._publish(self.position, self.next))
        if died:
            self.courier = None
        else:
            courier._sent = self.position
            self.furthest = dict(reached)
        sent = Counter((row.topic, row.value) for row in self.broker.rows)
        wanted = Counter((o.topic, o.value) for o in self.oracle(reached).outputs)
        self.said += f" {sent.total()}"
        if sent - wanted or (not died and wanted - sent):
            self.wrong.append(f"in topics: {sent - wanted} too many, {wanted - sent} too few")

    @property
    def consumers(self) -> list[Position]:
        return [Position("shop", 1, 0)] if self.courier is None else [*self.courier.consumers]

    def pins(self) -> None:
        """Let a folder begin that is slow: it has seen where the app stands."""
        self.pinned = self.store.folder, self.store.folder.reader.view()

    def folds_late(self) -> None:
        """Let it go on, whatever was done since."""
        if self.pinned is not None:
            folder, view = self.pinned
            self.said += f" what it saw at {view.position}"
            folder._round(view)

    def is_taken_over(self) -> None:
        """Let a writer go on that believes to be the last: it may not commit a thing."""
        old, (next_, carry) = self.writer, (dict(self.next), dict(self.carry))
        self.start()
        if left := self.left(self.records)[:5]:
            young, self.writer = self.writer, old
            with pytest.raises(Fenced):
                self.read(left)
            self.writer, self.next, self.carry = young, next_, carry

    def tidies(self) -> None:
        self.dies_at(self.draw.choice([*TIDIES, None]), lambda: self.store.upkeep.maintain(self.consumers))

    def trims(self) -> None:
        if self.draw.random() < 0.8:
            self.publishes()
        gone = list[int]()
        later = datetime.now(UTC) + timedelta(days=30)
        self.dies_at(self.draw.choice([*TRIMS, None]), lambda: gone.append(self.store.upkeep.trim(self.consumers, now=later)))
        self.said += f" {gone}"
        self.gone |= self.been.keys()

    def target(self) -> Target:
        kind = self.draw.random()
        if kind < 0.15:
            return Target.parse("earliest")
        if kind < 0.3:
            return Target.parse(shift_by=self.draw.randint(1, 20))
        if kind < 0.5:
            return Target.parse(str(self.draw.randint(1, max(1, self.position.seq))))
        if kind < 0.6:
            return Target.parse((START + timedelta(seconds=self.draw.randint(0, 40 * len(self.records)))).isoformat())
        return Target.parse(str(self.draw.choice([*self.been])))

    def goes_back(self) -> None:
        self.goes(self.target())

    def undoes(self) -> None:
        self.goes(Target("undo"))

    def goes(self, target: Target) -> None:
        kafka: Any = Kafka(self.partitions)
        plan = rewind.plan(self.store, self.topology, kafka, target)
        self.said += f" {plan.target}, forked at {plan.fork}"

        def act() -> None:
            rewind.apply(self.store, plan, self.topology.fingerprint, kafka)

        if self.draw.random() < 0.2 and self.dies_at("rewind.before_commit", act):
            return
        act()
        fork = Position.parse(plan.fork)
        self.open()
        assert str(self.position) == plan.becomes
        if fork.seq == 0:
            assert set(self.next.values()) == {0}
        elif fork in self.been:
            assert self.next == dict(self.been[fork]), f"{fork} was at other offsets"
        self.remember()

    def shadows(self) -> None:
        kafka: Any = Kafka(self.partitions)
        plan = rewind.plan(self.store, self.topology, kafka, self.target(), shadow=True)
        self.said += f" {plan.target}, forked at {plan.fork}"
        self.begins(plan)

    def begins(self, plan: RewindPlan) -> None:
        kafka: Any = Kafka(self.partitions)
        point = self.draw.choice([*BEGINS, None, None])
        self.dies_at(point, lambda: rewind.apply(self.store, plan, self.shadowed.fingerprint, kafka))

    def rebuilds(self) -> None:
        kafka: Any = Kafka(self.partitions)
        windowed = [t.name for t in self.topology.tables if not rebuild.unbounded(self.topology, [t.name])]
        if windowed and self.draw.random() < 0.5:
            tables = self.draw.sample(windowed, 1)
            days = self.draw.choice([(START.date(), START.date()), (LAST, LAST), (START.date(), LAST)])
            plan = rewind.plan(self.store, self.topology, kafka, Target.parse(days[0].isoformat()), tables=tables, days=days)
        else:
            tables = self.draw.sample([t.name for t in self.topology.tables], self.draw.randint(1, 3))
            plan = rewind.plan(self.store, self.topology, kafka, Target("earliest"), tables=tables)
        self.said += f" {', '.join(tables)} {plan.days}"
        self.begins(plan)

    def follows(self) -> None:
        """Let the shadow read as far as the app has come."""
        self.bring(self.draw.randint(2, 30))(None)

    def bring(self, size: int) -> Callable[[Offsets | None], None]:
        def to(goal: Offsets | None) -> None:
            if self.store.head().last is not None:
                replay(self, size, self.begin)(goal)
                notes = self.follow(2, topology=self.shadowed)
                self.asked(notes, shadow.current(self.store).epoch)  # it writes notes, too, which what goes on from it has

        return to

    def begin(self) -> Beside:
        return Beside(self.spark, self.warehouse, self.shadowed, self.partitions)

    def promotes(self) -> None:
        """Promote the shadow, or die on the way: before it is done, or right after."""
        points = PROMOTES + JOINS if shadow.current(self.store).of else PROMOTES
        before, done = self.position, list[tuple[Position, Position]]()

        def act() -> None:
            done.append(shadow.promote(self.store, self.topology, self.bring(self.draw.randint(3, 30))))

        died = self.draw.random() < 0.4
        if died:
            assert self.dies_at(self.draw.choice(points), act)
        else:
            act()
        self.start()
        if not died:
            assert done == [(before, self.position)]
        if self.position != before:
            assert self.position.epoch > before.epoch
            self.remember()

    def abandons(self) -> None:
        self.dies_at(self.draw.choice([*ABANDONS, None]), lambda: shadow.abandon(self.store))

    # -- what holds after it

    def holds(self) -> list[str]:
        """Say what is wrong, anywhere."""
        wrong = self.wrong + differences("now", self.tables(), self.wanted(self.position))
        position = self.draw.choice([*self.been])
        tables = self.draw.sample([t.name for t in self.topology.tables], 2)
        try:
            wrong += differences(f"at {position}", self.tables(position, tables), self.wanted(position))
        except UnknownPosition as error:
            if position not in self.gone:
                wrong.append(f"at {position}: {error}")
        if len(self.been) > 1:
            wrong += self.changed(*self.draw.sample([*self.been], 2))
        wanted = Counter(o.value for o in self.oracle(self.next).outputs)
        if not self.gone and (found := self.made()) != wanted:
            wrong.append(f"published: {found - wanted} too many, {wanted - found} too few")
        return wrong + (self.wrongly_touched() if self.draw.random() < 0.5 else [])

    def wrongly_touched(self) -> list[str]:
        """Ask one that goes by notes, since its last answer or as one that has just begun, and one that reads every commit there is."""
        touched = self.touched = self.follow(2) if self.touched is None or self.draw.random() < 0.3 else self.touched
        if touched.told is None or touched.told.epoch != self.position.epoch:
            self.days = {}
        for name, days in self.asked(touched).items():
            self.days[name] = self.days.get(name, {}) | days
        whole = self.asked(self.follow(1_000, date(2999, 1, 1)))
        known = {name: {d: v for d, v in days.items() if d in whole.get(name, {})} for name, days in self.days.items() if name in whole}
        found = known if self.gone else self.days  # what was trimmed is known from notes only
        return [] if found == whole else [f"touched:\n    {self.days}\n    {whole}"]

    def made(self) -> Counter[bytes | None]:
        """Count what the commits of this lineage made for output topics."""
        head = self.store.head()
        return Counter(row[4] for row in self.store.changelog.outbox(self.store.changelog.snapshot(), head.lineage, 0, head.position.seq))

    def changed(self, start: Position, end: Position) -> list[str]:
        name = self.draw.choice(self.topology.tables).name
        older, newer = (self.wanted(p)[name] for p in (start, end))
        wanted = {key: (older.get(key), newer.get(key)) for key in {*older, *newer} if older.get(key) != newer.get(key)}
        try:
            rows = self.store.reader.changes(name, start, end).toArrow().to_pylist(maps_as_pydicts="strict")
        except UnknownPosition as error:
            return [] if {start, end} & self.gone else [f"changes of {name} from {start} to {end}: {error}"]
        found = {
            tuple(row["key"].values()): tuple(None if row[side] is None else {**row["key"], **row[side]} for side in ("old", "new"))
            for row in rows
        }
        return [] if found == wanted else [f"changes of {name} from {start} to {end}:\n    {found}\n    {wanted}"]


def differences(when: str, found: Tables, wanted: Mapping[str, Any]) -> list[str]:
    return [f"{when}: {name}:\n    {found[name]}\n    {wanted[name]}" for name in found if found[name] != wanted[name]]


ALWAYS = {
    "batch": 10, "folds": 5, "start": 2, "tidies": 1, "trims": 1, "goes_back": 3, "undoes": 2, "pins": 2, "folds_late": 2,
    "is_taken_over": 1, "publishes": 4,
}  # fmt: skip
"""What can happen, and how often beside the others."""
ALONE = ALWAYS | {"shadows": 4, "rebuilds": 4}
BESIDE = ALWAYS | {"follows": 3, "promotes": 6, "abandons": 1}


def tell(tale: Tale, steps: int, alone: Mapping[str, int], beside: Mapping[str, int]) -> list[str]:
    """Tell a tale, and print it as it goes; give what is wrong after the step that made it so, or nothing."""
    tale.batch()
    for _ in range(steps):
        acts = alone if tale.store.head().shadow is None else beside
        (act,) = tale.draw.choices([*acts], [*acts.values()])
        tale.said = act
        try:
            getattr(tale, act)()
        except RewindRefused as error:
            tale.said += f", refused: {error}"
            tale.start()  # a promote had asked it to wait
        finally:
            print(tale.said, "->", tale.position)
        if wrong := tale.holds():
            return wrong
    return []


def told(
    number: int,
    begin: Callable[[list[Record], Random], Tale],
    alone: Mapping[str, int],
    beside: Mapping[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tell one of the tales, of records of its own, in buckets of two commits; nothing may be wrong."""
    buckets.resize(2, monkeypatch.setattr)
    draw = Random(SEED + number)
    wrong = tell(begin(sold(draw, 70), draw), STEPS, alone, beside)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("number", range(TALES))
@pytest.mark.parametrize("define", [sums, windows, kinds])
def test_acts_in_any_order_leave_every_position_what_its_records_make_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, define: Callable[[], Topology], number: int
) -> None:
    """WATERTABLE_TALES and WATERTABLE_STEPS say how many, and how long each is; WATERTABLE_SEED which."""
    told(number, lambda records, draw: Tale(tiny(spark), tmp_path, define(), records, draw), ALONE, BESIDE, monkeypatch)
