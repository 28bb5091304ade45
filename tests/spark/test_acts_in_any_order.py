"""Do all that can be done to an app, in any order: at each position that it was ever at, its tables are what its records make them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests import buckets
from tests.properties.engines import tiny
from tests.spark.hands import by_hand, folded, folded_at, plain, read_elsewhere
from tests.spark.runs import Item, Kafka, OfLog, Run, Tables, without_bounds
from tests.spark.runs import told as told_of
from tests.spark.shop import LAST, START, kinds, sold, sums, windows, written
from tests.spark.test_rebuild import Beside, replay
from tests.spark.test_rewind import Broker
from watertable import failpoints
from watertable.acts import rebuild, rewind, shadow
from watertable.acts.plans import RewindPlan
from watertable.acts.rewind import Target
from watertable.errors import Fenced, RewindRefused, TopicChanged, UnknownPosition
from watertable.interpreter import Interpreter
from watertable.kafka import publisher
from watertable.plan.plan import Topology
from watertable.records import Record
from watertable.runtime import workers
from watertable.runtime.workers import Courier
from watertable.store import fold
from watertable.store.bases import FOLD_LINE
from watertable.store.commits import Offsets, Position
from watertable.store.fold import Folder
from watertable.store.reader import At, event_time
from watertable.store.touched import Touched
from watertable.store.views import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = int(os.environ.get("WATERTABLE_SEED", "20241126"))
TALES = int(os.environ.get("WATERTABLE_TALES", "4"))
STEPS = int(os.environ.get("WATERTABLE_STEPS", "25"))
FOLDS = ("fold.after_pin", "fold.before_merge", "fold.after_merge", "fold.after_confirm")
PROMOTES = ("rewind.promote.before_hold", "rewind.promote.after_hold", "rewind.promote.before_commit", "rewind.promote.after_commit")
BEGINS = ("rewind.before_commit", "rewind.after_commit")
ABANDONS = ("rewind.abandon.before_commit", "rewind.abandon.after_commit")
TIDIES = ("trim.before_delete", "trim.after_delete", "upkeep.after_optimize", "upkeep.after_vacuum")
TRIMS = TIDIES[:2]
PUBLISHES = ("publish.after_produce", "publish.after_commit")
JOINS = ("rewind.join.before_write", "rewind.join.after_write")
Place = tuple[str, int, int]


class Tale(Run):
    """Tell what happens to an app, and remember where it was: by position, the offsets that it had read up to."""

    by_one_code = True
    """Says that what is folded was shown by the code that is asked."""

    def __init__(self, spark: SparkSession, warehouse: Path, topology: Topology, records: list[Record], draw: Random) -> None:
        self.records, self.draw, self.said = records, draw, ""
        self.been: dict[Position, Offsets] = {}
        self.gone: set[Position] = set()
        self.days: dict[str, dict[str, str]] = {}
        self.wrong: list[str] = []
        self.touched: Touched | None = None
        self.pinned: tuple[Folder, View] | None = None
        self.broker = Broker()
        self.seen: dict[str, list[str]] = {}
        """What other Delta readers saw before what happens now."""
        self.furthest: Offsets = {}
        """Up to where, at any time, all was published."""
        self.courier: Courier | None = None
        self.times: dict[Position, tuple[datetime | None, dict[tuple[str, int], datetime | None]]] = {}
        """By position, its commit time where that is known, and its stream times."""
        self.first: dict[tuple[str, int], int] = {}
        self.thinned: set[str] = set()
        self.deleted: set[Place] = set()
        """The records that Kafka has no more."""
        self.lost: dict[Position, frozenset[Place]] = {}
        self.lacks, self.since = frozenset[Place](), dict[tuple[str, int], int]()
        """Those that the app has gone on without, by position, and where it stands; and up to where it was seen last."""
        self.beside_lacks = frozenset[Place]()
        self.trimmed = False
        self.mill: Mill | None = None
        super().__init__(spark, warehouse, topology, sorted({(r.topic, r.partition) for r in records}))

    # -- what is known of it

    @property
    def position(self) -> Position:
        return self.writer.position

    @property
    def cluster(self) -> Any:
        return Kafka(self.partitions, self.first, self.thinned)

    @property
    def stopped(self) -> bool:
        """Tell whether the app stops at a topic that was given partitions, until it is rewound to earliest."""
        return {*self.next} != {*self.partitions}

    def open(self) -> None:
        super().open()
        last = self.writer.last
        there = self.cluster.earliest(self.partitions) if last is None else last.next
        self.next = {p: there[p] for p in self.partitions if p in there}
        self.carry = {p: self.carry[p] for p in self.next}

    def left(self, items: Iterable[OfLog]) -> list[OfLog]:
        return super().left(i for i in items if place(i) not in self.deleted and place(i)[:2] in self.next)

    def remember(self) -> None:
        self.lacks |= self.passed(self.since, self.next)
        self.since = dict(self.next)
        self.been[self.position], self.lost[self.position] = dict(self.next), self.lacks
        self.dates()

    def dates(self) -> None:
        """Remember when it came to where it is, by a commit or an act, and what its stream times are there."""
        last, forks = self.writer.last, self.store.head().forks
        by = last if last is not None and (last.epoch, last.seq) == (self.position.epoch, self.position.seq) else None
        by = by or next((fork for fork in forks if (fork.epoch, fork.fork) == (self.position.epoch, self.position.seq)), None)
        self.times[self.position] = by.commit_time if by is not None else None, dict(self.carry)

    def passed(self, begin: Offsets, end: Offsets) -> frozenset[Place]:
        """List the records in a range that Kafka hasn't any more."""
        return frozenset((t, p, n) for t, p, n in self.deleted if begin.get((t, p), 0) <= n < end.get((t, p), 0))

    def oracle(self, offsets: Offsets, lost: frozenset[Place] | None = None) -> Interpreter:
        """Ask the oracle what all records before these offsets make; but for those that the app, where it stands, has gone on without."""
        lost = self.lacks if lost is None else lost
        engine = Interpreter(self.topology, partitions=[*offsets] or self.partitions)
        engine.read([r for r in self.records if r.offset < offsets.get((r.topic, r.partition), 0) and place(r) not in lost])
        return engine

    def wanted(self, position: Position) -> Tables:
        return self.oracle(self.been[position], self.lost.get(position)).tables

    @property
    def shadowed(self) -> Topology:
        """Give what the shadow runs."""
        return self.topology

    def follow(self, commits: int, last: date = LAST, topology: Topology | None = None) -> Touched:
        return Touched(self.store.changelog, (topology or self.topology).tables, START.date(), last, commits)

    def shown(self) -> dict[str, list[str]]:
        """Read all tables as other Delta readers do."""
        return {name: plain(self.store.reader.log(name)) for name in folded(self)}

    def asked(self, touched: Touched, epoch: int | None = None) -> dict[str, dict[str, str]]:
        head = self.store.changelog.head(epoch=epoch)
        return {name: dict(days) for name, days in touched.upto(head.position, head.lineage).items()}

    # -- what can happen

    def batch(self) -> None:
        left = [] if self.stopped else self.left(self.records)
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
            kafka = self.cluster
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
        self.trimmed = True

    def target(self) -> Target:
        kind = self.draw.random()
        if kind < (0.7 if self.stopped else 0.15):
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
        kafka = self.cluster
        plan = rewind.plan(self.store, self.topology, kafka, target, accept_loss=self.accepts())
        self.said += f" {plan.target}, forked at {plan.fork}"

        def act() -> None:
            rewind.apply(self.store, plan, self.topology.fingerprint, kafka)

        if self.draw.random() < 0.2 and self.dies_at("rewind.before_commit", act):
            return
        act()
        fork = Position.parse(plan.fork)
        self.open()
        assert str(self.position) == plan.becomes
        before = self.been.get(fork, {}) if fork.seq else dict.fromkeys(self.partitions, 0)
        if before:
            begins = {p: max(offset, self.first.get(p, 0)) for p, offset in before.items()}
            assert self.next == begins, f"{fork} was at other offsets"
            self.since, self.lacks = dict(before), self.lost[fork] if fork.seq else frozenset()
        self.remember()

    def accepts(self) -> list[str]:
        """Accept what is lost of some topics, mostly all."""
        return [topic for topic in {t for t, _, _ in self.deleted} if self.draw.random() < 0.8]

    def shadows(self) -> None:
        plan = rewind.plan(self.store, self.topology, self.cluster, self.target(), shadow=True, accept_loss=self.accepts())
        self.said += f" {plan.target}, forked at {plan.fork}"
        self.begins(plan)
        fork = Position.parse(plan.fork)
        self.beside_lacks = self.lost.get(fork, frozenset()) if fork.seq else frozenset()

    def begins(self, plan: RewindPlan) -> None:
        point = self.draw.choice([*BEGINS, None, None])
        self.dies_at(point, lambda: rewind.apply(self.store, plan, self.shadowed.fingerprint, self.cluster))

    def rebuilds(self) -> None:
        kafka = self.cluster
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
        return Replaying(self)

    def promotes(self) -> None:
        """Promote the shadow, or die on the way: before it is done, or right after."""
        row = shadow.current(self.store)
        points = PROMOTES + JOINS if row.of else PROMOTES
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
            if not row.of:
                self.since, self.lacks = dict(self.next), self.beside_lacks
            self.remember()

    def abandons(self) -> None:
        self.dies_at(self.draw.choice([*ABANDONS, None]), lambda: shadow.abandon(self.store))

    # -- what happens around it

    def by_hand(self) -> None:
        """Let somebody do something to a table, as to any other."""
        self.said += (said := f": {by_hand(self, self.draw)}")
        if "cleans" in said:
            self.pinned = self.courier = None
            self.start()
        if self.trimmed:
            self.gone |= self.been.keys()  # what was read from versions whose log is gone

    def grows(self) -> None:
        """Give a topic a partition, with keys that are new."""
        topic = self.draw.choice([*{t for t, _ in self.partitions}])
        number = 1 + max(p for t, p in self.partitions if t == topic)
        self.partitions = sorted([*self.partitions, (topic, number)])
        begun = self.draw.randint(0, 40 * len(self.records))
        for n in range(self.draw.randint(0, 5)):
            when = START + timedelta(seconds=begun + 40 * n)
            self.records.append(written(self.draw, topic, number, n, "efghijkl"[number], when, 100 + n))
        self.said += f" {topic}/{number}"

    def truncates(self) -> None:
        """Delete the oldest records of a partition, none that the app has yet to read."""
        topic, number = p = self.draw.choice([*self.next])
        self.first[p] = self.draw.randint(self.first.get(p, 0), self.next[p])
        self.deleted |= {(topic, number, n) for n in range(self.first[p])}
        self.said += f" {topic}/{number} before {self.first[p]}"

    def compacts(self) -> None:
        """Keep of a partition, up to somewhere, the newest record of each key."""
        topic, number = p = self.draw.choice([*self.next])
        upto = self.draw.randint(0, 1 + self.next[p])
        newest = {r.key: r for r in self.records if place(r)[:2] == p and r.offset < upto}
        self.deleted |= {place(r) for r in self.records if place(r)[:2] == p and r.offset < upto and newest[r.key] is not r}
        self.thinned.add(topic)
        self.said += f" {topic}/{number} before {upto}"

    def has_a_neighbour(self) -> None:
        """Let another app, in the same warehouse, go on with a topic of this one's."""
        self.mill = self.mill or Mill(self)
        self.mill.goes_on(self.draw)

    # -- what holds after it

    def holds(self) -> list[str]:
        """Say what is wrong, anywhere."""
        now = self.tables() if self.draw.random() < 0.5 else read_elsewhere(self, self.draw)
        wrong = self.wrong + differences("now", now, self.wanted(self.position))
        wrong += self.asked_for() + self.seen_by_others()
        if len(self.been) > 1:
            wrong += self.changed(*self.draw.sample([*self.been], 2))
        wanted = Counter(o.value for o in self.oracle(self.next).outputs)
        if not self.gone and (found := self.made()) != wanted:
            wrong.append(f"published: {found - wanted} too many, {wanted - found} too few")
        return wrong + (self.wrongly_touched() if self.draw.random() < 0.5 else [])

    def asked_for(self) -> list[str]:
        """Ask for an old place by any of its names: it is found, and its tables are what they were there."""
        tables = self.draw.sample([t.name for t in self.topology.tables], 2)
        place = self.draw.choice([*self.been])
        made, reached = self.times.get(place, (None, {}))
        head = self.store.head()
        own = [p for p in self.been if head.lineage.holds(p.epoch, p.seq)]
        at: At = place
        match self.draw.choice(["position", "text", "commit time", "event time", "offsets"]):
            case "text":
                at = str(place)
            case "commit time" if made is not None:  # it stood there then, wherever it has gone since
                at, own = made, [place]
            case "event time" if place in own and (known := [t for t in reached.values() if t is not None]):
                time = max(known) + timedelta(seconds=self.draw.randint(0, 60))
                at, own = (
                    event_time(time),
                    [p for p in own if p in self.times and all(t is None or t <= time for t in self.times[p][1].values())],
                )
            case "offsets" if place in own and head.last is not None:
                offsets = {p: min(n, self.next[p]) for p, n in self.been[place].items() if p in self.next and self.draw.random() < 0.8}
                if offsets:
                    at, own = offsets, [p for p in own if all(self.been[p].get(q, 0) <= n for q, n in offsets.items())]
        try:
            position = self.store.reader.view(tables, at).position
            if at not in (place, str(place)) and own and position.seq < max(p.seq for p in own):
                return [f"at {at}: {position}, though {own} are no further"]
            if position in self.been:
                read = self.tables(at, tables) if self.draw.random() < 0.5 else read_elsewhere(self, self.draw, at, tables)
                return differences(f"at {at}, {position}", read, self.wanted(position))
        except UnknownPosition as error:
            return [] if place in self.gone else [f"at {at}: {error}"]
        return []

    def seen_by_others(self) -> list[str]:
        """Look at a table as any Delta reader does, now and at any version that it has: it is whole, as it was at some position."""
        wrong = list[str]()
        if not self.by_one_code:
            return wrong
        names = [name for name in folded(self) if name in {t.name for t in self.topology.tables}]
        for name in self.draw.sample(names, min(1, len(names))):
            log, keys = self.store.reader.log(name), self.topology.table(name).key.names
            newest = log.latest()
            assert newest is not None
            there = [v for v in range(newest.version + 1) if v == newest.version or log.at(v) is not None]
            versions = [v for v in there if log.held_at(FOLD_LINE, v).version == v]  # of the others, somebody has changed the rows
            if not versions:
                continue
            version = self.draw.choice([versions[-1], self.draw.choice(versions)])
            position, rows = folded_at(self, name, version), self.plain(name, version)
            found = {name: {tuple(row[n] for n in keys): row for row in rows}}
            if position is None:
                wrong += [f"version {version} of {name} holds no fold, and {rows}"] if rows else []
                continue
            if position in self.been and len(found[name]) == len(rows):
                wrong += differences(f"version {version}, of {position}", found, self.wanted(position))
            try:
                wrong += differences(f"at version {version}, of {position}", self.tables(version, [name]), found)
            except UnknownPosition as error:
                wrong += [] if self.gone else [f"at version {version}, of {position}: {error}"]
        return wrong

    def wrongly_touched(self) -> list[str]:
        """Ask one that goes by notes, since its last answer or as one that has just begun, and one that reads every commit there is."""
        touched = self.touched = self.follow(2) if self.touched is None or self.draw.random() < 0.3 else self.touched
        if touched.told is None or touched.told.epoch != self.position.epoch:
            self.days = {}
        for name, days in self.asked(touched).items():
            self.days[name] = self.days.get(name, {}) | days
        whole = self.asked(self.follow(1_000, date(2999, 1, 1)))
        whole = {name: within for name, days in whole.items() if (within := {d: v for d, v in days.items() if d <= LAST.isoformat()})}
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


class Replaying(Beside):
    """Read what the app has read, as far as Kafka has it."""

    def __init__(self, tale: Tale) -> None:
        self.tale = tale
        super().__init__(tale.spark, tale.warehouse, tale.shadowed, tale.partitions)

    def open(self) -> None:
        super().open()
        last = self.writer.last
        first = self.tale.cluster.earliest(self.partitions)
        if last is None:
            self.next = first
        elif {p for p in last.next if p in self.next} != {*self.next} or any(first[p] > offset for p, offset in self.next.items()):
            raise TopicChanged("a topic was given partitions, or truncated past what the shadow has read")

    def left(self, items: Iterable[OfLog]) -> list[OfLog]:
        return super().left(i for i in items if place(i) not in self.tale.deleted)

    def read(self, items: Sequence[Item], *, dies: bool = False) -> None:
        before = dict(self.next)
        super().read(items, dies=dies)
        self.tale.beside_lacks |= self.tale.passed(before, self.next)


class Mill(Run):
    """Run another app in the same warehouse, on a topic of the tale's."""

    def __init__(self, tale: Tale) -> None:
        app = wt.App("mill")
        sales = app.topic("sales", key="item STRING", value="shop STRING, qty BIGINT").stream()
        sales.group_by("shop").agg(n=wt.count(), qty=wt.sum("qty")).materialized_as("stock")
        self.records = [r for r in tale.records if r.topic == "sales"]
        super().__init__(tale.spark, tale.warehouse, app.topology(), sorted({place(r)[:2] for r in self.records}))

    def goes_on(self, draw: Random) -> None:
        if draw.random() < 0.3:
            self.start()
        if draw.random() < 0.2 and self.writer.position.seq:
            self.rewind(0)
        self.read(self.left(self.records)[: draw.randint(1, 9)])
        if draw.random() < 0.5:
            self.store.folder.fold_all()
        read = [r for r in self.records if r.offset < self.next[r.topic, r.partition]]
        assert self.tables() == told_of(self.topology, read).tables


def place(item: Item) -> Place:
    return item.topic, item.partition, item.offset


def differences(when: str, found: Tables, wanted: Mapping[str, Any]) -> list[str]:
    return [f"{when}: {name}:\n    {found[name]}\n    {wanted[name]}" for name in found if found[name] != wanted[name]]


def always(tale: Tale) -> bool:
    return True


def alone(tale: Tale) -> bool:
    """Tell whether there is no shadow."""
    return tale.store.head().shadow is None


def beside(tale: Tale) -> bool:
    return not alone(tale)


def whole(tale: Tale) -> bool:
    """Tell whether Kafka has all: where it hasn't, what was published before can't be told from what is left."""
    return not tale.deleted


def small(tale: Tale) -> bool:
    return len(tale.partitions) < 6


def nothing(tale: Tale) -> str:
    """Ask for no more than what holds always."""
    return ""


def unseen(tale: Tale) -> str:
    """Ask that other Delta readers see what they saw: only folds, and who puts a table back, change that."""
    return "" if tale.shown() == tale.seen else "other readers see something else"


@dataclass(frozen=True)
class Deed:
    """Say of what can happen, which the method of a tale of its name does, how often it does beside the others, when it may, and what must
    hold after it, beside what always holds: it gives words where that doesn't.
    """

    often: int
    may: Callable[[Tale], bool] = always
    leaves: Callable[[Tale], str] = nothing


DEEDS = {
    "batch": Deed(10, always, unseen),
    "folds": Deed(5),
    "start": Deed(2, always, unseen),
    "tidies": Deed(1, always, unseen),
    "trims": Deed(1, always, unseen),
    "goes_back": Deed(3, always, unseen),
    "undoes": Deed(3, always, unseen),
    "pins": Deed(2, always, unseen),
    "folds_late": Deed(2),
    "is_taken_over": Deed(1, always, unseen),
    "publishes": Deed(3, whole, unseen),
    "shadows": Deed(4, alone, unseen),
    "rebuilds": Deed(4, alone, unseen),
    "follows": Deed(3, beside, unseen),
    "promotes": Deed(6, beside, unseen),
    "abandons": Deed(1, beside, unseen),
    "by_hand": Deed(7),
    "has_a_neighbour": Deed(1, always, unseen),
    "grows": Deed(1, small, unseen),
    "truncates": Deed(1, always, unseen),
    "compacts": Deed(1, always, unseen),
}
OF_TOPICS = ("grows", "truncates", "compacts")


def tell(tale: Tale, steps: int, deeds: Mapping[str, Deed]) -> list[str]:
    """Tell a tale, and print it as it goes; give what is wrong after the step that made it so, or nothing."""
    tale.batch()
    for _ in range(steps):
        may = {name: deed.often for name, deed in deeds.items() if deed.may(tale)}
        (name,) = tale.draw.choices([*may], [*may.values()])
        tale.said, tale.seen = name, tale.shown()
        try:
            getattr(tale, name)()
        except (RewindRefused, TopicChanged) as error:
            tale.said += f", refused: {error}"
            tale.start()  # a promote had asked it to wait
        finally:
            print(tale.said, "->", tale.position, flush=True)
        if words := deeds[name].leaves(tale):
            tale.wrong.append(f"after {tale.said}: {words}")
        if wrong := tale.holds():
            return wrong
    return []


def told(number: int, begin: Callable[[list[Record], Random], Tale], deeds: Mapping[str, Deed], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell one of the tales, of records of its own, in buckets of two commits, with folds of one kind; nothing may be wrong."""
    buckets.resize(2, monkeypatch.setattr)
    draw = Random(SEED + number)
    monkeypatch.setattr(fold, "SMALL_BASE", draw.choice([fold.SMALL_BASE, -1]))
    wrong = tell(begin(sold(draw, 70), draw), STEPS, deeds)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("number", range(TALES))
@pytest.mark.parametrize("define", [sums, windows, kinds])
def test_acts_in_any_order_leave_every_position_what_its_records_make_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, define: Callable[[], Topology], number: int
) -> None:
    """WATERTABLE_TALES and WATERTABLE_STEPS say how many, and how long each is; WATERTABLE_SEED which."""
    told(number, lambda records, draw: Tale(tiny(spark), tmp_path, define(), records, draw), DEEDS, monkeypatch)
