"""Hold rebuilds of some tables to their law: those are made anew and joined in one commit, and nothing else of the app moves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.spark.runs import Kafka, Run, agree, by, told
from watertable import failpoints
from watertable.acts import rewind, shadow
from watertable.acts.plans import RewindPlan
from watertable.acts.rebuild import commit_at, is_made_by, rebuilt, unbounded
from watertable.acts.rewind import Target
from watertable.compiler import Compiler
from watertable.errors import Fenced, PlanOutdated, RewindRefused, UnknownPosition
from watertable.plan.deployment import Outline
from watertable.plan.plan import Topology
from watertable.records import Record
from watertable.store import changelog, memory
from watertable.store.commits import CommitInfo, Position
from watertable.store.touched import Touched
from watertable.store.writer import Store
from watertable.tools import bisect
from watertable_platform.orchestration.suites import red
from watertable_quality.suites import row_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.store.commits import Offsets

pytestmark = pytest.mark.spark

POINTS = ("rewind.promote.before_hold", "rewind.promote.after_hold", "rewind.promote.before_commit", "rewind.join.before_write",
          "rewind.join.after_write", "rewind.promote.after_commit")  # fmt: skip
EARLIEST = Target("earliest")
WRONG = {"stock", "levels", "worth"}
"""What `shop(3)` makes wrong."""


def shop(factor: int = 1) -> Topology:
    """Define an app: sums, a table of them, hopping windows, sessions, a join, what leaves and enters groups, and two others."""
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value="shop STRING, qty BIGINT").stream()
    prices = app.topic("prices", key="item STRING", value="price BIGINT").table()
    stock = sales.group_by("key.item").agg(qty=wt.sum(f"qty * {factor}")).materialized_as("stock")
    stock.group_by("qty").agg(items=wt.count()).materialized_as("levels")
    stock.join(prices, worth="left.qty * right.price").materialized_as("worth")
    sales.group_by("shop").windowed_by(wt.hopping(minutes=10, every=wt.minutes(5))).agg(n=wt.count()).materialized_as("busy")
    sales.group_by("shop").windowed_by(wt.sessions(gap=wt.minutes(2))).agg(n=wt.count()).materialized_as("visits")
    prices.materialized_as("prices")
    return app.topology()


def till(factor: int = 1, *more: str) -> Topology:
    """Define a small one: sums, and others that are made of the same records."""
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value="shop STRING, qty BIGINT").stream()
    sales.group_by("key.item").agg(qty=wt.sum(f"qty * {factor}")).materialized_as("stock")
    sales.group_by("shop").agg(n=wt.count()).materialized_as("sold")
    if more:
        sales.group_by("shop").agg(most=wt.max("qty")).materialized_as("most")
    return app.topology()


def counted(factor: int = 1, *more: str) -> Topology:
    """Define one of tables that are computed from tables."""
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value="shop STRING, qty BIGINT").stream()
    stock = sales.group_by("key.item").agg(qty=wt.sum(f"qty * {factor}")).materialized_as("stock")
    stock.group_by("qty").agg(items=wt.count()).materialized_as("levels")
    if "sold" in more:
        sold = sales.group_by("shop").agg(n=wt.count()).materialized_as("sold")
        sold.group_by("n").agg(shops=wt.count()).materialized_as("least")
    return app.topology()


RECORDS: list[Record] = []
for n in range(40):
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=50 * n)
    value = {"shop": "xyz"[n % 3], "qty": n % 5 - 1}
    RECORDS.append(Record("sales", n % 2, n // 2, at, b"abcd"[n % 4 : n % 4 + 1], None if n == 17 else json.dumps(value).encode()))
    if n % 5 == 0:
        price = None if n == 25 else json.dumps({"price": n + 1}).encode()
        RECORDS.append(Record("prices", 0, n // 5, at, b"abcd"[n // 5 % 4 : n // 5 % 4 + 1], price))


class App(Run):
    """Run an app whose records are known."""

    def __init__(self, spark: SparkSession, warehouse: Path, topology: Topology, records: list[Record] | None = None) -> None:
        self.records = records or [r for r in RECORDS if r.topic in {topic.name for topic in topology.topics}]
        super().__init__(spark, warehouse, topology, sorted({(r.topic, r.partition) for r in self.records}))

    def under(self, topology: Topology) -> App:
        """Give the same app under other code, on the same store, without a writer."""
        other = App.__new__(App)
        other.__dict__ |= self.__dict__ | {"topology": topology, "compiler": Compiler(topology)}
        other.store = Store.open(self.spark, str(self.warehouse), topology.app, topology.kept)
        return other

    def wrong(self, upto: int) -> set[str]:
        """Name the tables that aren't what the oracle says."""
        there, wanted = self.tables(), told(self.topology, self.records[:upto]).tables
        return {name for name in there if there[name] != wanted[name]}


class Beside(Run):
    """Run a shadow as a new process does: the part of the app that it is of, by its writer, up to these offsets and no further."""

    def open(self) -> None:
        row = shadow.current(self.store_of(self.topology))
        part = self.topology.above(row.of) if row.of else self.topology
        self.store, self.compiler = self.store_of(part), Compiler(part)
        self.writer = self.store.start_writer(self.topology, shadow=True)
        last, topics = self.writer.last or CommitInfo(), {topic.name for topic in part.topics}
        self.partitions = [p for p in self.partitions if p[0] in topics]
        self.next = dict.fromkeys(self.partitions, 0) | dict(last.next)
        self.carry = dict.fromkeys(self.partitions) | dict(last.stream_times)

    def store_of(self, topology: Topology) -> Store:
        return Store.open(self.spark, str(self.warehouse), topology.app, topology.kept)

    def upto(self, goal: Offsets, records: list[Record], size: int) -> None:
        own = [r for r in records if (r.topic, r.partition) in self.next]
        left = [r for r in self.left(own) if r.offset < goal.get((r.topic, r.partition), r.offset + 1)]  # all, where the app reads none
        for batch in by(left, size):
            self.read(batch)


def until(run: Run) -> CommitInfo | None:
    """Give the commit at which the days are over that a shadow is of."""
    seq, changelog = shadow.current(run.store).counters.get("until"), run.store.changelog
    return commit_at(changelog, changelog.snapshot(), run.store.head(), seq) if seq else None


def replay(run: Run, size: int = 50, begin: Callable[[], Beside] | None = None) -> Callable[[Offsets | None], None]:
    """Bring the shadow to these offsets, or as far as it goes; `begin` begins it, where it isn't of the app's own code."""

    def bring(goal: Offsets | None) -> None:
        over = until(run)
        last = over or run.store.head().last
        assert last is not None
        beside = begin() if begin is not None else Beside(run.spark, run.warehouse, run.topology, run.partitions)
        beside.upto(last.next if over else goal or last.next, run.records, size)

    return bring


def planned(run: App, *tables: str, target: Target = EARLIEST, **options: Any) -> RewindPlan:
    kafka: Any = Kafka(run.partitions)
    return rewind.plan(run.store, run.topology, kafka, target, tables=tables, **options)


def begun(run: App, *tables: str, plan: RewindPlan | None = None) -> Position:
    kafka: Any = Kafka(run.partitions)
    return rewind.apply(run.store, plan or planned(run, *tables), run.topology.fingerprint, kafka)[1]


def joined(run: App, size: int = 50) -> tuple[Position, Position]:
    found = shadow.promote(run.store, run.topology, replay(run, size))
    run.start()
    assert run.writer.position == found[1]
    return found


def wrongly(run: App, code: Topology, *batches: list[Record]) -> None:
    """Read by code that is wrong, and says that it is the same."""
    run.compiler = Compiler(code)
    for batch in batches:
        run.read(batch)
    run.compiler = Compiler(run.topology)


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> App:
    """Give an app that has read most of its records, some wrongly, half of them folded."""
    made = App(tiny(spark), tmp_path, till())
    wrongly(made, till(3), made.records[:15])
    made.store.fold_all()
    made.read(made.records[15:30])
    return made


def everything(spark: SparkSession, folder: Path) -> App:
    """Give one with tables of every kind."""
    made = App(tiny(spark), folder, shop())
    batches = by(RECORDS[:36], 9)
    wrongly(made, shop(3), *batches[:2])
    made.store.fold_all()
    made.read(batches[2])
    made.read(batches[3])
    return made


@pytest.mark.slow
def test_what_is_rebuilt_is_what_the_oracle_says_and_nothing_else_moves(spark: SparkSession, tmp_path: Path) -> None:
    run = everything(spark, tmp_path)
    head = run.store.head()
    before = run.tables()
    assert run.wrong(36) == WRONG
    plan = planned(run, "stock")
    assert (set(plan.rebuilds), {e.table for e in plan.tables if e.effect == "as it is"}) == (WRONG, {"busy", "visits", "prices"})
    assert (plan.commits, plan.sinks, plan.refusals, plan.records) == (0, (), (), 36)
    assert RewindPlan.from_json(plan.to_json()) == plan
    begun(run, plan=plan)
    replay(run)(None)
    assert run.tables() == before, "until it is joined, nobody sees it"
    found = shadow.diff(run.store, run.topology)
    assert ({t.table for t in found.tables if t.rows}, {t.table for t in found.tables}, found.exact) == (WRONG, WRONG, True)
    old, new = joined(run)
    assert (old, new) == (head.position, Position("shop", 3, head.position.seq + 1))
    after = run.store.head()
    assert head.last is not None
    assert after.last is not None
    assert (after.last.next, after.last.stream_times, after.shadow) == (head.last.next, head.last.stream_times, None)
    assert run.wrong(36) == set()
    changed = {n: run.store.reader.changes(n, old, new).count() for n in before}
    assert {name for name, count in changed.items() if count} == WRONG
    for name in before:  # what was left is read as it was, by its position and at those before it
        rows = run.store.reader.read(name, old).toArrow().to_pylist()
        assert {tuple(row[k] for k in run.topology.table(name).key.names): row for row in rows} == before[name]
    of = {t.name: run.store.reader.view([t.name]).along(t).after for t in run.topology.tables}
    assert {name for name, after in of.items() if after} == WRONG
    run.store.fold_all()
    for name in before:
        assert len(run.plain(name)) == len(told(run.topology, RECORDS[:36]).tables[name])
    assert run.wrong(36) == set()
    for batch in by(RECORDS[36:], 5):
        run.read(batch)
        run.start()
    assert run.wrong(len(RECORDS)) == set()
    run.store.fold_all()
    assert run.wrong(len(RECORDS)) == set()


@pytest.mark.slow
def test_tables_of_every_kind_are_rebuilt_and_rewound_over(spark: SparkSession, tmp_path: Path) -> None:
    run = everything(spark, tmp_path)
    begun(run, "stock", "busy", "visits", "prices")
    joined(run, 11)
    agree(run, told(run.topology, RECORDS[:36]))
    run.read(RECORDS[36:41])
    joint = run.writer.position.seq - 1
    begun(run, "visits", "busy")
    joined(run)
    for to, upto in ((joint + 1, 41), (joint, 36), (3, 27)):  # behind the first join, at it, and before it, where the wrong rows are still
        run.rewind(to)
        assert run.wrong(upto) == (WRONG if to == 3 else set())
    for batch in by(run.left(RECORDS), 20):
        run.read(batch)
    assert run.wrong(len(RECORDS)) == WRONG, "as they were before the rebuild"
    run.rewind(0)
    for batch in by(RECORDS, 30):
        run.read(batch)
    agree(run, told(run.topology, RECORDS))


@pytest.mark.slow
@pytest.mark.parametrize("points", [POINTS[-2:], POINTS], ids=["at its commit", "anywhere"])
def test_a_rebuild_that_dies_leaves_the_old_rows_or_the_new_and_can_be_gone_on_with_and_undone(run: App, points: Sequence[str]) -> None:
    before, position = run.tables(), run.writer.position
    assert run.wrong(30) == {"stock"}
    begun(run, "stock")
    for point in points:
        with failpoints.armed(point, "raise"), pytest.raises(failpoints.FailpointHit):
            shadow.promote(run.store, run.topology, replay(run))
        if point != points[-1]:
            assert (run.store.head().position, run.store.reader.read("stock").count()) == (position, len(before["stock"])), point
    run.start()
    assert (run.wrong(30), run.store.head().shadow, run.writer.position) == (set(), None, Position("shop", 3, position.seq + 1))
    run.read(run.records[30:])
    assert run.wrong(40) == set()
    kafka: Any = Kafka(run.partitions)
    rewind.apply(run.store, rewind.plan(run.store, run.topology, kafka, Target("undo")), run.topology.fingerprint, kafka)
    run.start()
    assert run.tables() == before
    run.store.fold_all()
    assert run.tables() == before


@pytest.mark.slow
def test_what_the_app_reads_while_it_is_joined_is_in_it_and_new_tables_come_under_new_code(run: App) -> None:
    begun(run, "stock")

    def late() -> None:
        run.start()  # a writer that doesn't wait
        run.read(run.records[30:33])

    with failpoints.armed("rewind.promote.before_commit", late):
        joined(run)
    assert run.wrong(33) == set()
    run.store.fold_all()  # whose outline says what the old code is
    more = run.under(till(1, "most"))
    begun(more, "most")
    replay(more)(None)
    with failpoints.armed(
        "rewind.promote.before_hold", lambda: run.read(run.records[33:36])
    ):  # by the old code, while the new table is made
        joined(more)
    with pytest.raises(Fenced):
        run.writer.check()
    assert more.wrong(36) == set()
    assert more.store.head().forks[-1].fingerprint == more.topology.fingerprint
    more.read(more.records[36:])
    more.store.fold_all()
    assert more.wrong(40) == set()
    other = more.under(till(2, "most"))
    assert "has changed what stock would hold, too" in planned(other, "most").refusals[0]
    assert planned(other, "stock").refusals == ()


def test_what_cannot_be_rebuilt_is_refused_with_the_way_out(run: App) -> None:
    with pytest.raises(RewindRefused, match="no such table; it has sold, stock"):
        planned(run, "stok")
    with pytest.raises(RewindRefused, match="leave the target out"):
        planned(run, "stock", target=Target("commit", "2"))
    plan = planned(run, "stock")
    begun(run, "sold")
    with pytest.raises(PlanOutdated, match="a shadow of shop was begun since"):
        begun(run, plan=plan)
    assert "has a shadow, of 'rebuild of sold'" in planned(run, "stock").refusals[0]
    replay(run)(None)
    run.rewind(1)
    with pytest.raises(RewindRefused, match="was the app rewound since"):
        shadow.promote(run.store, run.topology, lambda goal: None)
    shadow.abandon(run.store)


@pytest.mark.slow
def test_what_is_computed_from_a_table_is_made_anew_of_the_rows_that_the_app_has_of_it_or_not_at_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = App(tiny(spark), tmp_path, counted())
    wrongly(run, counted(3), run.records[:15])
    begun(run, "levels")
    before = run.tables()
    with pytest.raises(RewindRefused, match="levels can't be joined: it is computed from stock, of which the app has other rows"):
        shadow.promote(run.store, run.topology, replay(run))
    shadow.abandon(run.store)
    run.start()
    assert run.tables() == before
    begun(run, "stock")
    joined(run)
    begun(run, "levels")
    joined(run)
    run.read(run.records[15:])
    assert run.wrong(len(run.records)) == set()
    new = run.under(counted(1, "sold"))
    (refused,) = planned(new, "least").refusals
    assert refused.startswith("least would be computed from sold (a new table")
    begun(new, "sold")  # with all that is computed from it
    joined(new)
    assert new.wrong(len(run.records)) == set()


def test_a_table_of_others_rows_that_is_new_is_filled_before_the_code_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    run = App(tiny(spark), tmp_path, counted().above(["stock"]))
    run.read(run.records[:15])
    new = run.under(counted())
    found = new.store.deployment(new.topology)
    assert found is not None
    assert "levels: a new table of the rows of stock" in found.words
    assert "levels can't begin in the middle" in planned(run.under(counted(1, "sold")), "sold").refusals[0]
    begun(new, "levels")
    joined(new)
    assert new.store.deployment(new.topology) is None
    (refused,) = planned(new, target=Target("commit", "1"), keep_old_code_before=True).refusals
    assert refused.startswith("levels can't begin in the middle"), "where it wasn't there yet"
    assert planned(new).refusals == (), "from earliest it can"
    new.read(new.records[15:])
    assert new.wrong(len(new.records)) == set()


@pytest.mark.slow
def test_a_reader_that_polls_sees_all_of_the_old_rows_or_all_of_the_new(run: App) -> None:
    old, new = run.tables(), told(run.topology, run.records[:30]).tables
    stop, seen, wrong = threading.Event(), list[str](), list[object]()

    def poll() -> None:
        try:
            while not stop.is_set():
                found = run.tables()
                seen.append("old" if found == old else "new" if found == new else "mixed")
        except Exception as error:
            wrong.append(error)

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        begun(run, "stock")
        shadow.promote(run.store, run.topology, replay(run))
        run.store.fold_all()
        done = len(seen)
        while len(seen) < done + 2 and polling.is_alive():
            stop.wait(0.05)
    finally:
        stop.set()
        polling.join(60)
    assert wrong == []
    assert seen == sorted(seen, reverse=True), "the old, then the new"
    assert {seen[0], seen[-1]} == {"old", "new"}


# -- days ----------------------------------------------------------------------------------------------------------------------------


def calendar(factor: int = 1, *more: str) -> Topology:
    """Define an app: hopping windows with grace, a table on top of them, a sum, and perhaps what is made of windows' changes."""
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value="shop STRING, qty BIGINT").stream()
    windows = wt.hopping(hours=8, every=wt.hours(4), grace=wt.hours(2))
    busy = sales.group_by("shop").windowed_by(windows).agg(n=wt.sum(f"qty * {factor}"), top=wt.max("qty")).materialized_as("busy")
    busy.filter("n > 2").materialized_as("full")
    sales.group_by("shop").agg(n=wt.sum("qty")).materialized_as("totals")
    if more:
        daily = sales.group_by("shop").windowed_by(wt.tumbling(days=1)).agg(n=wt.count()).materialized_as("daily")
        daily.group_by("n").agg(shops=wt.count()).materialized_as("sizes")
    return app.topology()


SALES = [
    Record(
        "sales", n % 2, n // 2 - 5, datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=67 * n - (400 if n % 7 == 0 else 0)), b"i",
        json.dumps({"shop": "xy"[n % 3 % 2], "qty": n % 4 + 1}).encode(),
    ) for n in range(10, 120)
]  # fmt: skip
DAYS = (date(2026, 1, 3), date(2026, 1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("upto", [len(SALES), 62])
def test_the_windows_of_days_are_made_anew_and_no_other_row_moves(spark: SparkSession, tmp_path: Path, upto: int) -> None:
    """Whether they are closed by then, and a part of the records is enough, or some are open still."""
    run = App(tiny(spark), tmp_path, calendar(), SALES)
    batches = by(SALES[:upto], 20)
    wrongly(run, calendar(3), *batches[:2])
    run.store.fold_all()
    wrongly(run, calendar(3), *batches[2:])
    wrong, right = run.tables(), told(calendar(), SALES[:upto]).tables
    plan = planned(run, "busy", target=Target.parse(DAYS[0].isoformat()), days=DAYS)
    assert (plan.rebuilds, plan.days, bool(plan.until)) == (("busy", "full"), "2026-01-03/2026-01-03", upto == len(SALES))
    assert 0 < plan.records < upto - 15, "not from the first record on, and not to the last"
    assert RewindPlan.from_json(plan.to_json()) == plan
    begun(run, plan=plan)
    before = Touched(run.store.changelog, run.topology.tables, date(2026, 1, 1), None).upto(run.writer.position, run.store.head().lineage)
    _, after = joined(run)
    found = run.tables()
    for name, rows in found.items():
        days = {key for key in {*wrong[name], *right[name]} if name != "totals" and on_days(key)}
        want = {key: row for key, row in wrong[name].items() if key not in days}
        assert rows == want | {key: row for key, row in right[name].items() if key in days}, name
    assert found["busy"] != wrong["busy"]
    touched = Touched(run.store.changelog, run.topology.tables, date(2026, 1, 1), None).upto(after, run.store.head().lineage)
    assert {day for day in touched["busy"] if touched["busy"][day] != before["busy"][day]} == {"2026-01-03"}
    assert touched["totals"] == before["totals"]
    run.store.fold_all()
    assert run.tables() == found
    more = run.under(calendar(1, "daily"))
    again = planned(more, "busy", target=Target.parse(DAYS[0].isoformat()), days=DAYS)
    assert (Position.parse(again.fork).seq > 0, again.refusals) == (True, ()), "the other code makes these tables as the one before did"


def test_a_rebuild_of_days_is_judged_by_the_rows_that_it_would_leave(spark: SparkSession, tmp_path: Path) -> None:
    """Beside the app it has some of the other windows alone, and of some of those a part."""
    run = App(tiny(spark), tmp_path, calendar(), SALES)
    wrongly(run, calendar(3), *by(SALES, 40))
    begun(run, plan=planned(run, "busy", target=Target.parse(DAYS[0].isoformat()), days=DAYS))
    replay(run)(None)
    rows = shadow.promised(run.store, ["busy"])["busy"].toArrow().to_pylist()
    beside = run.store.reader.read("busy", shadow.diff(run.store, run.topology).shadow).count()
    assert beside < len(rows) == len(run.tables()["busy"])
    expected = {"busy": [row_count(len(rows), len(rows))]}
    assert red("shop", expected, lambda tables: shadow.promised(run.store, tables)) == []
    joined(run)
    assert {(row["shop"], row["window_start"], row["window_end"]): row for row in rows} == run.tables()["busy"]


def on_days(key: tuple[Any, ...]) -> bool:
    """Tell whether a row's window starts on the days."""
    return DAYS[0] <= key[-2].date() <= DAYS[1]


def test_code_that_has_changed_elsewhere_makes_no_other_windows() -> None:
    part = calendar(1, "daily").above(["busy", "full"])
    assert is_made_by(Outline.of(calendar()), part)
    assert not is_made_by(Outline.of(calendar(2)), part)
    assert not is_made_by(None, part), "who knows"


def test_days_of_a_table_whose_own_code_has_changed_are_refused_with_the_way_out(spark: SparkSession, tmp_path: Path) -> None:
    run = App(tiny(spark), tmp_path, calendar(), SALES)
    for batch in by(SALES[:60], 30):
        run.read(batch)
    changed = run.under(calendar(2, "daily"))
    (refused,) = planned(changed, "busy", target=Target.parse(DAYS[0].isoformat()), days=DAYS).refusals
    assert "has changed what busy" in refused
    assert refused.endswith("leave --days out")
    assert [(e.table, e.effect) for e in planned(changed, "busy").tables if e.table in ("totals", "daily")] == [
        ("totals", "as it is"), ("daily", "new: holds only what comes once its code runs"),
    ]  # fmt: skip
    assert planned(changed, "busy").refusals == ()


def test_days_of_what_has_none_or_is_made_of_changes_are_refused() -> None:
    topology = calendar(1, "daily")
    assert unbounded(topology, ["busy"]) == ""
    for names, why in ((["totals"], "totals has no windows"), (["daily"], "sizes, which is computed from daily, has no windows")):
        assert why in unbounded(topology, names)
        with pytest.raises(RewindRefused, match="Leave --days out"):
            rebuilt(topology, names, DAYS)


def test_at_a_position_of_a_rebuild_the_tables_that_it_does_not_make_are_refused(run: App) -> None:
    begun(run, "stock")
    replay(run)(None)
    row = run.store.head().shadow
    assert row is not None
    at = run.store.changelog.head(epoch=row.epoch).position
    assert {r["item"]: r["qty"] for r in run.store.reader.read("stock", at).collect()}
    for read in (lambda: run.store.reader.read("sold", at), lambda: run.store.reader.changes("sold", run.writer.position, at)):
        with pytest.raises(UnknownPosition, match="is of a shadow of stock alone: sold has no rows there"):
            read()


def test_a_new_process_follows_the_log_over_what_was_joined_and_finds_what_a_look_finds(run: App, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(run, "stock")
    joined(run)
    run.read(run.records[30:35])
    found = []
    for young in (200, -1):
        monkeypatch.setattr(memory, "_YOUNG", young)
        memory._seen.clear()
        looks: list[str] = []
        with monkeypatch.context() as patch:
            rows = changelog.Changelog.rows
            patch.setattr(changelog.Changelog, "rows", lambda self, at, where: looks.append(where) or rows(self, at, where))  # noqa: B023
            store = Store.open(run.spark, str(run.warehouse), "shop", run.topology.kept)
            head = store.head()
            read = {name: sorted(map(tuple, store.reader.read(name).collect())) for name in ("stock", "sold")}
            found.append((head.position, head.last, head.generation, head.lineage, head.forks, read))
        assert bool(looks) == (young < 0), looks
    assert found[0] == found[1]


@pytest.mark.slow
def test_what_a_rebuild_of_some_tables_wrote_tells_nothing_of_how_fast_the_whole_app_grows(run: App) -> None:
    before = planned(run, target=Target("commit", "1"))
    begun(run, "stock")
    joined(run, size=2)
    after = planned(run, target=Target("commit", "1"))
    assert before.disk.replay is not None
    assert (after.records, after.disk.replay) == (before.records, before.disk.replay)


def test_the_history_of_a_table_begins_where_it_was_made_anew(run: App) -> None:
    begun(run, "stock")
    _, after = joined(run)
    stock, topology = run.tables()["stock"], run.topology.table("stock")
    run.read(run.records[30:])
    condition = bisect.condition_of(topology, "qty > 0")
    found = bisect.find(run.store.reader, topology, condition)
    assert found.since == after
    assert found.already == sum(row["qty"] > 0 for row in stock.values()) > 0
    assert found.at is None or found.at.seq > after.seq
    never = bisect.find(run.store.reader, run.topology.table("sold"), bisect.condition_of(run.topology.table("sold"), "n > 0"))
    assert (never.since, never.at and never.at.seq) == (None, 1), "nothing of this one was made anew"


def priced(*more: str) -> Topology:
    """Define one that counts sales; and, as it is later, prices too."""
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value="shop STRING, qty BIGINT").stream()
    sales.group_by("key.item").agg(qty=wt.sum("qty")).materialized_as("stock")
    if more:
        prices = app.topic("prices", key="item STRING", value="price BIGINT").stream()
        prices.group_by("key.item").agg(n=wt.count()).materialized_as("changed")
    if "lists" in more:
        prices.group_by("price").agg(n=wt.count()).materialized_as("lists")
    return app.topology()


class Lossy(Kafka):
    """Stand in for a cluster that has lost the first three prices."""

    def latest(self, partitions: Any) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 8)

    @classmethod
    def of(cls, run: Run) -> Any:
        return cls(run.partitions, {("prices", 0): 3})


def losses(plan: RewindPlan) -> list[tuple[str, int, int, int]]:
    return [(r.name, r.begin, r.end, r.lost) for r in plan.ranges if r.topic == "prices"]


@pytest.fixture
def later(spark: SparkSession, tmp_path: Path) -> App:
    """Give an app of which the code has just been given a topic."""
    one = App(tiny(spark), tmp_path, priced(), [r for r in RECORDS if r.topic == "sales"])
    for part in by(one.records[:20], 10):
        one.read(part)
    two = one.under(priced("prices"))
    two.records, two.partitions = RECORDS, sorted({(r.topic, r.partition) for r in RECORDS})
    two.start()
    return two


def test_what_kafka_has_lost_of_a_topic_that_came_after_the_fork_is_named_and_accepted_as_any_loss_is(later: App) -> None:
    later.read(later.left(RECORDS)[:12])
    later.read(later.left(RECORDS))
    kafka, target = Lossy.of(later), Target.parse("2")
    refused = rewind.plan(later.store, later.topology, kafka, target, keep_old_code_before=True)
    assert losses(refused) == [("prices/0", 0, 8, 3)]
    assert "--accept-loss prices/0" in refused.refusals[0]
    plan = rewind.plan(later.store, later.topology, kafka, target, keep_old_code_before=True, accept_loss=["prices"])
    rewind.apply(later.store, plan, later.topology.fingerprint, kafka)
    later.start()
    assert later.writer.last is not None
    assert {topic for topic, _ in later.writer.last.next} == {"sales"}, "it reads that topic as one that is new"
    (row,) = later.store.head().forks
    assert (row.begin, row.next) == ({("prices", 0): 0}, {("prices", 0): 3}), "the gap is recorded"


def test_what_an_app_has_never_read_of_a_topic_is_no_loss_where_it_has_just_been_rewound_to_earliest_either(later: App) -> None:
    later.next["prices", 0] = 3
    later.read([r for r in later.left(RECORDS) if (r.topic, r.offset < 3) != ("prices", True)])
    later.rewind(0)
    plan = rewind.plan(later.store, later.topology, Lossy.of(later), Target.parse("shop@1.2"), keep_old_code_before=True)
    assert (losses(plan), plan.refusals) == ([("prices/0", 3, 3, 0)], ())


def test_where_an_app_began_to_read_a_topic_that_came_with_a_rebuilt_table_is_known(later: App) -> None:
    plan = rewind.plan(later.store, later.topology, Lossy(later.partitions), EARLIEST, tables=["changed"])
    assert losses(plan) == [("prices/0", 0, 8, 0)], "the plan says what is read of it"
    begun(later, plan=plan)
    joined(later)
    assert later.tables()["changed"] == told(later.topology, RECORDS).tables["changed"]
    assert losses(rewind.plan(later.store, later.topology, Lossy.of(later), EARLIEST)) == [("prices/0", 0, 8, 3)]


def test_a_topic_that_an_app_has_not_read_yet_is_read_for_all_tables_of_it_or_by_no_rebuild(later: App) -> None:
    run = later.under(priced("prices", "lists"))
    run.start()
    kafka: Any = Lossy(run.partitions)
    refused = rewind.plan(run.store, run.topology, kafka, EARLIEST, tables=["changed"])
    assert refused.refusals == (
        "shop hasn't read topic prices yet, and lists would lack what this reads of it: rebuild it as well",
    )  # fmt: skip
    begun(run, plan=rewind.plan(run.store, run.topology, kafka, EARLIEST, tables=["changed", "lists"]))
    joined(run)
    run.read(run.left(RECORDS))
    assert run.tables() == told(run.topology, RECORDS).tables
    assert not rewind.plan(run.store, run.topology, kafka, EARLIEST, tables=["changed"]).refusals, "it has read it now"
