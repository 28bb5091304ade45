"""Change an app's code amid all that can be done to it: each table is what each record's own code makes of it, or the change is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.spark.hands import plain
from tests.spark.runs import Item, Kafka, Tables
from tests.spark.shop import LAST, START, shop
from tests.spark.test_acts_in_any_order import (
    DEEDS,
    JOINS,
    OF_TOPICS,
    PROMOTES,
    TALES,
    Deed,
    Place,
    Tale,
    place,
    told,
)
from tests.spark.test_rebuild import Beside
from watertable.acts import rewind, shadow
from watertable.acts.plans import RewindPlan
from watertable.acts.rewind import Target
from watertable.compiler import Compiler
from watertable.interpreter import Interpreter
from watertable.plan.plan import Topology
from watertable.records import Record
from watertable.store.commits import Offsets, Position
from watertable.store.writer import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Made = Mapping[str, Mapping[Place, int]]
"""By kind of table: the records that are in it, each with the number that the code had for it."""
KINDS = {"stock": ("stock", "worth", "much", "shown"), "levels": ("levels",), "sold": ("sold",), "most": ("most",), "prices": ("prices",)}
CAPS = (1_000, 40, 20)


@dataclass(frozen=True)
class Code:
    """Say what differs from code to code: what a sum is of, which tables there are, and which rows of them are shown."""

    factor: int = 1
    sold: int = 0
    most: int = 0
    caps: int = 0
    levels: bool = True
    twice: bool = False
    much: int = 3

    @property
    def numbers(self) -> dict[str, int]:
        """Give by kind of table, of those it has, what decides its state."""
        found = {
            "stock": self.factor,
            "levels": self.factor if self.levels else 0,
            "sold": self.sold,
            "most": self.most,
            "prices": self.caps,
        }
        return {kind: number for kind, number in found.items() if number or kind == "prices"}

    def other(self, draw: Random) -> Code:
        """Change one thing."""
        choices: list[tuple[str, tuple[Any, ...]]] = [
            ("factor", (1, 2)), ("sold", (0, 1, 2)), ("sold", (0, 1)), ("most", (0, 1)), ("caps", (0, 1, 2)), ("twice", (False, True)),
            ("levels", (False, True)), ("much", (2, 3)),
        ]  # fmt: skip
        name, values = draw.choice(choices)
        return replace(self, **{name: draw.choice([v for v in values if v != getattr(self, name)])})

    @property
    def facts(self) -> dict[str, int]:
        """Give what is remembered of it with each commit."""
        return self.numbers | {"has levels": int(self.levels)}

    def lacks(self, kept: Mapping[str, int]) -> bool:
        """Tell whether it has groups of rows that are kept, which those would leave without having entered them."""
        return self.levels and not kept.get("has levels", 1)

    def breaks(self, kept: Mapping[str, int]) -> bool:
        """Tell whether what is kept can't go on under it; a filter of whole rows may refuse more."""
        return self.lacks(kept) or any(
            number < kept.get(k, number) or (k != "prices" and number != kept.get(k, number)) for k, number in self.numbers.items()
        )


@cache
def defined(code: Code) -> Topology:
    """Define the app by a code."""
    app, sales, prices = shop()
    stock = sales.group_by("key.item").agg(qty=wt.sum(f"qty * {code.factor}")).materialized_as("stock")
    (stock.map_values(qty="qty", twice="qty * 2") if code.twice else stock.map_values(qty="qty")).materialized_as("shown")
    if code.levels:
        stock.group_by("qty").agg(items=wt.count()).materialized_as("levels")
    stock.join(prices, worth="left.qty * right.price").materialized_as("worth")
    stock.filter(f"qty > {code.much}").materialized_as("much")
    by_shop = sales.group_by("shop")
    if code.sold:
        fives = by_shop.windowed_by(wt.tumbling(minutes=5, grace=wt.hours(9)))
        fives.agg(qty=wt.sum(f"qty * {code.sold}")).materialized_as("sold")
    if code.most:
        by_shop.agg(most=wt.max("qty")).materialized_as("most")
    for cap in CAPS[1 : code.caps + 1]:
        prices = prices.filter(f"price < {cap}")
    prices.materialized_as("prices")
    hours = by_shop.windowed_by(wt.hopping(minutes=10, every=wt.minutes(5), grace=wt.minutes(2))).agg(n=wt.count())
    hours.materialized_as("hours").suppress(wt.until_window_closes()).materialized_as("final")
    by_shop.windowed_by(wt.sessions(gap=wt.minutes(2))).agg(n=wt.count()).materialized_as("visits")
    sales.filter("qty > 2").to("big")
    return app.topology()


def told_by(kind: str, number: int, record: Record) -> Record:
    """Write a record so that the plainest code makes of it what the code of this number does."""
    if record.value is None:
        return record
    value = json.loads(record.value)
    if kind == "prices":
        return replace(record, value=None if record.topic == "prices" and value["price"] >= CAPS[number] else record.value)
    return record if record.topic == "prices" else replace(record, value=json.dumps(value | {"qty": value["qty"] * number}).encode())


class Shadow(Beside):
    """Run a shadow, and tell the tale of each batch."""

    tale: Changing

    def read(self, items: Iterable[Item], *, dies: bool = False) -> None:
        super().read([*items], dies=dies)
        self.tale.sees(self.writer.position, self.next)


class Changing(Tale):
    """Tell of an app whose code changes; remember, too, by position, what each record was made by."""

    by_one_code = False

    def __init__(self, spark: SparkSession, warehouse: Path, records: list[Record], draw: Random) -> None:
        self.code = self.beside = Code()
        self.at = Position("shop", 1, 0)
        self.history: dict[Position, Made] = {self.at: {}}
        self.kept: dict[Position, Mapping[str, int]] = {self.at: {}}
        self.shadow: list[tuple[Position, Offsets, Made, Mapping[str, int]]] = []
        self.accepted: Code | None = None
        self.codes = {defined(self.code).fingerprint: self.code}
        super().__init__(spark, warehouse, defined(self.code), records, draw)

    # -- what is known of it

    def remember(self) -> None:
        news = self.between(self.been.get(self.at, {}), self.next)
        self.learn(self.position, self.next, grown(self.history[self.at], self.code, news), {**self.kept[self.at], **self.code.facts})
        self.accepted = None
        self.dates()

    def learn(self, position: Position, offsets: Offsets, made: Made, kept: Mapping[str, int]) -> None:
        self.been[position], self.history[position], self.kept[position] = dict(offsets), made, kept
        self.at = position

    def between(self, begin: Offsets, end: Offsets) -> list[Place]:
        return [place(r) for r in self.records if begin.get(place(r)[:2], 0) <= r.offset < end.get(place(r)[:2], 0)]

    def wanted(self, position: Position) -> Tables:
        found = dict(self.oracle(self.been[position]).tables)
        plain = replace(self.code, factor=1, sold=min(self.code.sold, 1))
        for kind, tables in KINDS.items():
            if kind in self.code.numbers:
                engine, made = Interpreter(defined(plain), partitions=self.partitions), self.history[position].get(kind, {})
                engine.read([told_by(kind, made[place(r)], r) for r in self.records if place(r) in made])
                found |= {name: engine.tables[name] for name in tables}
        return found

    def shown(self) -> dict[str, list[str]]:
        """Read all that there is as other Delta readers do: that of codes that are no more, too."""
        there = {path.parent.name for path in Path(self.store.warehouse, "shop").glob("*/_delta_log")} - {"changelog"}
        logs = {name: self.store.reader.log(name) for name in sorted(there)}
        return {name: plain(log) for name, log in logs.items() if log.exists()}

    # -- other code

    @property
    def shadowed(self) -> Topology:
        return defined(self.beside)

    def load(self, code: Code) -> None:
        if code != self.code:
            self.touched, self.days = None, {}
        self.code, self.topology = code, defined(code)
        self.compiler, self.codes[self.topology.fingerprint] = Compiler(self.topology), code

    def store_of(self, code: Code) -> Store:
        return Store.open(self.spark, str(self.warehouse), "shop", defined(code).kept)

    def some(self, often: float) -> Code:
        return self.code.other(self.draw) if self.draw.random() < often else self.code

    def deploys(self) -> None:
        new = self.code.other(self.draw)
        self.said += f" {new}"
        found = self.store_of(new).deployment(defined(new))
        says = "" if found is None else found.words
        breaks = new.breaks(self.kept[self.at]) and new != self.accepted
        if breaks != bool(says):
            self.wrong.append(f"{self.code}, {self.kept[self.at]} -> {new}: {says or 'goes on'}")
        if not breaks:
            self.load(new)
            self.start()

    # -- what can happen

    def undoes(self) -> None:
        kafka: Any = Kafka(self.partitions)
        refused = rewind.plan(self.store, self.topology, kafka, Target("undo")).refusals
        of = re.search(r"is of the code (\S+), and", " ".join(refused))
        self.back(Target("undo"), self.codes[of[1]] if of else self.code, keep=False)

    def goes(self, target: Target) -> None:
        self.back(target, self.some(0.4), keep=self.draw.random() < 0.8)

    def back(self, target: Target, code: Code, *, keep: bool) -> None:
        kafka: Any = Kafka(self.partitions)
        store, topology = self.store_of(code), defined(code)
        plan = rewind.plan(store, topology, kafka, target, keep_old_code_before=keep)
        self.middle(plan, code)
        self.said += f" {plan.target}, forked at {plan.fork}, {code}{', whatever came before' if keep else ''}"
        point = "rewind.before_commit" if self.draw.random() < 0.2 else None
        if self.dies_at(point, lambda: rewind.apply(store, plan, topology.fingerprint, kafka)):
            return
        fork = Position.parse(plan.fork)
        self.load(code)
        self.start()
        assert str(self.position) == plan.becomes
        made, kept = (self.history[fork], self.kept[fork]) if fork.seq else ({}, {})
        assert self.next == (dict(self.been[fork]) if fork.seq else dict.fromkeys(self.partitions, 0))
        self.learn(self.position, self.next, made, kept)
        self.accepted = code

    def middle(self, plan: RewindPlan, code: Code) -> None:
        """See that a plan is refused, whatever is accepted, where groups would begin in the middle of the rows that they are of."""
        fork = Position.parse(plan.fork)
        if fork.seq and code.lacks(self.kept[fork]) and plan.target.kind != "undo" and "in the middle" not in " ".join(plan.refusals):
            self.wrong.append(f"not refused: {plan.target}, forked at {fork}, by {code}")

    def shadows(self) -> None:
        kafka: Any = Kafka(self.partitions)
        self.beside = code = self.some(0.7)
        keep = self.draw.random() < 0.8
        store, topology, target = self.store_of(code), defined(code), self.target()
        plan = rewind.plan(store, topology, kafka, target, shadow=True, keep_old_code_before=keep)
        self.middle(plan, code)
        self.said += f" {plan.target}, forked at {plan.fork}, {code}{', whatever came before' if keep else ''}"
        self.begins(plan)
        fork, becomes = Position.parse(plan.fork), Position.parse(plan.becomes)
        made, kept = (self.history[fork], self.kept[fork]) if fork.seq else ({}, {})
        self.shadow = [(becomes, self.been[fork] if fork.seq else {}, made, kept)]

    def rebuilds(self) -> None:
        kafka: Any = Kafka(self.partitions)
        self.beside = code = self.some(0.7)
        topology, store, days = defined(code), self.store_of(code), None
        if code.sold and self.draw.random() < 0.3:
            tables, first = ["sold"], self.draw.choice([START.date(), LAST])
            days = first, self.draw.choice([first, LAST])
            plan = rewind.plan(store, topology, kafka, Target.parse(days[0].isoformat()), tables=tables, days=days)
        else:
            tables = self.draw.sample([t.name for t in topology.tables], self.draw.randint(1, 2))
            if self.draw.random() < 0.7:
                tables = [*{*tables, "stock"}]
            plan = rewind.plan(store, topology, kafka, Target("earliest"), tables=tables)
        self.said += f" {', '.join(tables)} {plan.days} {code}"
        self.begins(plan)

    def begin(self) -> Shadow:
        run = Shadow(self.spark, self.warehouse, self.shadowed, self.partitions)
        run.tale = self
        return run

    def sees(self, position: Position, offsets: Offsets) -> None:
        """Remember a batch of a shadow of the whole app."""
        if not shadow.current(self.store).of:
            _, before, made, kept = self.shadow[-1]
            made = grown(made, self.beside, self.between(before, offsets))
            self.shadow.append((position, dict(offsets), made, {**kept, **self.beside.facts}))

    def promotes(self) -> None:
        row, code, before = shadow.current(self.store), self.beside, self.position
        point = self.draw.choice(PROMOTES + JOINS if row.of else PROMOTES) if self.draw.random() < 0.4 else None
        bring = self.bring(self.draw.randint(3, 30))
        self.dies_at(point, lambda: shadow.promote(self.store_of(code), self.shadowed, bring))
        if self.store.head().position == before:
            self.start()
            return
        self.load(code)
        self.start()
        if not row.of:
            for position, offsets, made, kept in self.shadow:
                self.learn(position, offsets, made, kept)
            self.learn(self.position, self.next, *self.shadow[-1][2:])
            self.accepted = code
            return
        made = dict(self.history[before])
        for kind, tables in KINDS.items():
            if row.of & {*tables}:
                inside = [place(r) for r in self.records if row.days is None or row.days[0] <= r.timestamp.date() <= row.days[1]]
                anew = {p: code.numbers[kind] for p in self.between({}, self.next) if p in inside}
                made[kind] = {p: n for p, n in made.get(kind, {}).items() if row.days is not None and p not in inside} | anew
        self.learn(self.position, self.next, made, {**self.kept[before], **code.facts})


def grown(made: Made, code: Code, news: list[Place]) -> Made:
    """Give what a batch of records makes by a code of what there was."""
    return {**made, **{kind: {**made.get(kind, {}), **dict.fromkeys(news, number)} for kind, number in code.numbers.items()}}


CODES = {name: deed for name, deed in DEEDS.items() if name not in OF_TOPICS} | {"deploys": Deed(8)}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("number", range(TALES))
def test_code_that_changes_amid_acts_leaves_every_position_what_its_codes_make_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """WATERTABLE_TALES and WATERTABLE_STEPS say how many, and how long each is; WATERTABLE_SEED which."""
    told(number, lambda records, draw: Changing(tiny(spark), tmp_path, records, draw), CODES, monkeypatch)
