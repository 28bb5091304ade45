"""Find where a condition became true: the first commit that readers could see it at, and the record, whatever came after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests import buckets
from tests.properties.engines import as_frame, tiny
from tests.spark.ledger import Ledger, minute
from tests.spark.runs import Run
from tests.spark.test_rewind import Kafka
from watertable.acts import rewind
from watertable.acts.rewind import Target
from watertable.compiler import Compiler
from watertable.errors import UnknownColumn, UnknownPosition
from watertable.interpreter import Interpreter
from watertable.plan.plan import Topology
from watertable.records import Record
from watertable.sql.expressions import Expr
from watertable.store.commits import CommitInfo
from watertable.store.writer import Retention
from watertable.tools import bisect, keytext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SALES: tuple[dict[str, int], ...] = ({"a": 5, "b": 2}, {"a": -6}, {"c": 5, "a": 9}, {"b": -3, "c": -9}, {"a": -1})


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Ledger:
    """Open a new store."""
    return Ledger.open(tiny(spark), str(tmp_path))


def looked(ledger: Ledger, condition: str, table: str = "stock", key: list[str] | None = None) -> bisect.Found:
    wanted = ledger.table(table)
    of = None if key is None else keytext.read(wanted, key)
    return bisect.find(ledger.store.reader, wanted, bisect.condition_of(wanted, condition), of)


@pytest.mark.slow
def test_the_first_commit_is_found_though_the_condition_came_and_went(ledger: Ledger) -> None:
    for n, sold in enumerate(SALES):
        ledger.sell(**sold)
        if n == 2:
            ledger.store.fold_all()
    found = looked(ledger, "qty < 0")
    assert (str(found.at), found.ever, found.now, found.since, found.already) == ("shop@1.2", 3, 2, None, 0)
    assert found.keys == (bisect.Became({"k": "a"}, {"qty": 5}, {"qty": -1}),)
    assert found.commit is not None
    assert found.commit.seq == 2
    of_c = looked(ledger, "qty < 0", key=["c"])
    assert (str(of_c.at), of_c.keys[0].old) == ("shop@1.4", {"qty": 5})
    both = looked(ledger, "qty < 0 AND k <> 'a'")
    assert [b.key["k"] for b in both.keys] == ["b", "c"]
    never = looked(ledger, "qty > 100")
    assert (never.at, never.ever, never.keys) == (None, 0, ())
    assert looked(ledger, "qty > 4", table="low").ever == 2, "a filter's rows are its readers'"
    with pytest.raises(UnknownColumn):
        looked(ledger, "quantity < 0")


def test_the_history_is_gone_through_once_and_up_to_the_commit_that_was_found_once_more(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sold in SALES:
        ledger.sell(**sold)
    passes, frame = list[str](), type(ledger.spark.range(1))
    collect = frame.collect

    def noted(self: Any) -> Any:
        plan = self._jdf.queryExecution().analyzed().toString()
        passes.extend([plan] if "is_last" in plan else [])
        return collect(self)

    monkeypatch.setattr(frame, "collect", noted)
    assert str(looked(ledger, "qty < 0").at) == "shop@1.2"
    assert ["seq#" in plan and "<= cast(2 as bigint)" in plan for plan in passes] == [False, True]
    passes.clear()
    assert looked(ledger, "qty > 100").at is None
    assert len(passes) == 1


@pytest.mark.slow
def test_a_left_epoch_is_no_history_of_the_one_that_is_read(ledger: Ledger) -> None:
    for sold in SALES[:2]:
        ledger.sell(**sold)
    kafka = Kafka()
    plan = rewind.plan(ledger.store, ledger.topology, kafka, Target.parse(to="1"))  # type: ignore[arg-type]
    rewind.apply(ledger.store, plan, ledger.topology.fingerprint, kafka)  # type: ignore[arg-type]
    again = ledger.restart()
    again.sell(a=1)
    assert looked(again, "qty < 0").at is None
    again.sell(b=-7)
    assert str(looked(again, "qty < 0").at) == "shop@2.3"


@pytest.mark.slow
def test_of_a_trimmed_history_it_says_what_was_already_so_and_finds_what_became_so_since(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets.resize(2, monkeypatch.setattr)
    ledger = Ledger.open(tiny(spark), str(tmp_path), Retention(timedelta(0)))
    for sold in SALES[:3]:
        ledger.sell(**sold)
    ledger.sell(d=-4)
    ledger.store.fold_all()
    for _ in range(3):
        ledger.sell(e=1)
    ledger.store.fold_all()
    ledger.store.upkeep.trim(now=datetime.now(UTC))
    found = looked(ledger, "qty < 0")
    assert found.since is not None
    assert (found.at, found.already, found.ever, found.now) == (None, 1, 1, 1)
    ledger.sell(a=-20)
    found = looked(ledger, "qty < 0")
    assert (str(found.at), found.already) == ("shop@1.8", 1)
    assert [b.key["k"] for b in found.keys] == ["a"]


# -- the record -------------------------------------------------------------------------------------------------------------------


def till() -> Topology:
    """Define an app in which a row hangs on two topics, a look-up, changes of changes, windows, and places in log order."""
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT, shelf INT").stream()
    prices = app.topic("prices", key="sku STRING", value="price DECIMAL(9,2)").table().materialized_as("prices")
    stock = moves.group_by_key().agg(qty=wt.sum("qty"), last=wt.last("shelf")).materialized_as("stock")
    worth = moves.join(prices, on="sku", worth="qty * right.price", shelf="shelf")
    worth.group_by("shelf").agg(worth=wt.sum("worth"), seen=wt.collect_list("worth")).materialized_as("worth")
    stock.to_stream().filter("new.qty < 0").group_by("sku").agg(n=wt.count()).materialized_as("alarms")
    stock.group_by("last").agg(n=wt.count(), low=wt.min("qty")).materialized_as("shelves")
    moves.group_by("shelf").windowed_by(wt.hopping(hours=1, every=wt.minutes(30), grace=wt.minutes(5))).agg(
        qty=wt.sum("qty")
    ).materialized_as("hourly")
    return app.topology()


def record(topic: str, offset: int, key: str, value: Mapping[str, object] | None, at: float) -> Record:
    return Record(topic, 0, offset, minute(at), key.encode(), None if value is None else json.dumps(value).encode())


def tale() -> list[list[Record]]:
    """Tell it in four batches."""
    moves = [("a", 5, 1), ("b", 2, 1), ("a", -6, 2), ("a", 9, 1), ("c", 4, 2), ("a", -9, 2), ("b", -3, 1), ("c", 1, 3), ("a", 2, 1)]
    sold = [record("moves", n, sku, {"qty": qty, "shelf": shelf}, 10 * n) for n, (sku, qty, shelf) in enumerate(moves)]
    priced = [
        record("prices", n, sku, {"price": p}, 5 + 20 * n) for n, (sku, p) in enumerate([("a", "2.00"), ("b", "1.50"), ("a", "3.00")])
    ]
    return [[*sold[:2], priced[0]], [*sold[2:4], *priced[1:]], sold[4:7], sold[7:]]


def commit_all(ledger: Ledger, batches: list[list[Record]]) -> None:
    """Commit as a running app does: what the compiler makes of each batch, with the stream times after it."""
    compiler = Compiler(ledger.topology)
    carry: dict[tuple[str, int], datetime | None] = {("moves", 0): None, ("prices", 0): None}
    offsets = dict.fromkeys(carry, 0)
    for n, batch in enumerate(batches):
        made = compiler.batch(as_frame(ledger.spark, batch), ledger.writer.number(), carry, ledger.writer.lookup())
        carry |= made.stats.stream_times
        after = offsets | {(r.topic, r.partition): r.offset + 1 for r in sorted(batch, key=lambda r: r.offset)}
        info = CommitInfo(begin=offsets, next=after, stream_times=carry, topic_ids={"moves": "id-m", "prices": "id-p"})
        ledger.writer.commit(made.tables, info)
        made.close()
        offsets = after
        if n == 1:
            ledger.store.fold_all()


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Commit the tale."""
    ledger = Ledger.open(tiny(spark), str(tmp_path_factory.mktemp("tale")), topology=till())
    commit_all(ledger, tale())
    return ledger


def by_hand(topology: Topology, name: str, condition: Expr) -> tuple[int, int] | None:
    """Read every batch from the beginning: the number of the first after which a row newly holds, and the offset of its first record."""
    engine = Interpreter(topology, watch=frozenset({name}))
    held: set[tuple[object, ...]] = set()
    for n, batch in enumerate(tale(), start=1):
        engine.changes[name].clear()
        engine.read(batch)
        last = {tuple((e.key or {}).values()): e for e in engine.changes[name]}
        now = {key for key, e in last.items() if e.value is not None and e.evaluate(condition) is True}
        if fresh := now - held:
            first = next(
                e for e in engine.changes[name] if tuple((e.key or {}).values()) in fresh and e.value and e.evaluate(condition) is True
            )
            return n, first.place.offset
        held = (held - set(last)) | now
    return None


@pytest.mark.parametrize(
    ("table", "condition"),
    [
        ("stock", "qty < 0"), ("prices", "price > 2.5"), ("worth", "size(seen) = 3"),
        ("alarms", "n >= 1"), ("shelves", "low < 0"), ("hourly", "qty < -5"),
        ("hourly", "window.start >= timestamp'2026-01-01 01:00:00Z'"), ("stock", "qty = 1000"),
    ],
)  # fmt: skip
def test_the_record_is_the_one_that_reading_everything_by_hand_finds(told: Ledger, table: str, condition: str) -> None:
    topology, wanted = told.topology, told.table(table)
    judged = bisect.condition_of(wanted, condition)
    found = bisect.find(told.store.reader, wanted, judged)
    expected = by_hand(topology, table, judged.expr)
    assert (found.at and found.at.seq) == (expected and expected[0])
    if expected is not None:
        begin, end = found.ranges(topology, wanted)
        records = [r for batch in tale() for r in batch if (p := (r.topic, r.partition)) in begin and begin[p] <= r.offset < end[p]]
        culprit = bisect.blame(told.store.reader, topology, wanted, judged, found, records)
        assert culprit.offset == expected[1]
        assert culprit.key in [became.key for became in found.keys]


@pytest.mark.slow
def test_what_lives_for_a_while_or_shows_once_in_a_while_is_followed_too(spark: SparkSession, tmp_path: Path) -> None:
    app = wt.App("shop")
    app.topic("prices", key="sku STRING", value="price DECIMAL(9,2)").table().materialized_as("prices")
    stock = app.topic("moves", key="sku STRING", value="qty BIGINT, shelf INT").stream().group_by_key().agg(qty=wt.sum("qty"))
    stock.materialized_as("stock").ttl(wt.minutes(25)).materialized_as("lasting")
    stock.materialized_as("own").suppress(wt.until_time_limit(wt.minutes(20))).materialized_as("calm")
    topology = app.topology()
    run = Run(tiny(spark), tmp_path, topology, (("moves", 0), ("prices", 0)))
    for batch in tale():
        run.read(batch)
    for name in ("lasting", "calm"):
        wanted = topology.table(name)
        judged = bisect.condition_of(wanted, "qty < 0")
        found, expected = bisect.find(run.store.reader, wanted, judged), by_hand(topology, name, judged.expr)
        assert (found.at and found.at.seq, found.commit is not None) == (expected and expected[0], True)
        with pytest.raises(UnknownPosition, match="records that waited for each other"):
            bisect.blame(run.store.reader, topology, wanted, judged, found, [])


def test_other_code_than_the_commits_is_said_to_be_no_witness(told: Ledger) -> None:
    wanted = told.table("stock")
    judged = bisect.condition_of(wanted, "qty < 0")
    found = bisect.find(told.store.reader, wanted, judged)
    with pytest.raises(UnknownPosition, match="under the code as it is loaded none of them does"):
        bisect.blame(told.store.reader, told.topology, wanted, judged, found, [])


def test_the_record_is_the_first_of_all_keys_however_many_a_commit_made_true(spark: SparkSession, tmp_path: Path) -> None:
    ledger, count = Ledger.open(tiny(spark), str(tmp_path), topology=till()), 130
    commit_all(ledger, [[record("moves", n, f"k{count - n:03}", {"qty": -1, "shelf": 1}, n) for n in range(count)]])
    wanted = ledger.table("stock")
    judged = bisect.condition_of(wanted, "qty < 0")
    found = bisect.find(ledger.store.reader, wanted, judged)
    assert len(found.keys) == count
    records = [record("moves", n, f"k{count - n:03}", {"qty": -1, "shelf": 1}, n) for n in range(count)]
    assert bisect.blame(ledger.store.reader, ledger.topology, wanted, judged, found, records).offset == 0
