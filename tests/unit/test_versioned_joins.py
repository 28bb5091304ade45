"""Streams joined with versioned tables on the oracle: the row as of event time, and what waits follows from the records alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watertable as wt
from watertable.dsl.streams import Stream
from watertable.dsl.tables import Table
from watertable.errors import DefinitionError
from watertable.interpreter import Interpreter
from watertable.plan.nodes import WaitingJoin
from watertable.plan.plan import delay_of, walk
from watertable.plan.purity import Purity, purity_of
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.testing import TopologyTestDriver
from watertable.tools import explain as explaining
from watertable.tools import keytext

MINUTE = timedelta(minutes=1)
PLACES = [("prices", 0), ("prices", 1), ("sales", 0), ("sales", 1)]


def shop(grace: timedelta | None, *, history: timedelta = timedelta(hours=1), left: bool = False) -> wt.App:
    """Join sales with the prices of their time; count what is sold by its price."""
    app = wt.App("shop")
    prices = app.topic("prices", key="sku STRING", value="price INT").table().materialized_as("prices", history=history)
    sales = app.topic("sales", key="sku STRING", value="qty INT").stream()
    priced = (sales.left_join if left else sales.join)(prices, grace=grace, qty="qty", price="right.price")
    priced.to("priced")
    priced.group_by("price").agg(qty=wt.sum("qty")).materialized_as("by_price")
    return app


def pipe(driver: TopologyTestDriver, topic: str, number: int | None, minute: int, key: str | None = "tea") -> None:
    value = None if number is None else {"price" if topic == "prices" else "qty": number}
    driver.pipe_input(topic, key, value, timestamp=EPOCH + minute * MINUTE)


def sent(driver: TopologyTestDriver) -> list[tuple[object, object, int]]:
    """Give what was sent: quantity, price, and the minute of its time."""
    found = [(record.value or {}, (record.timestamp - EPOCH) // MINUTE) for record in driver.read_output("priced")]
    return [(value["qty"], value["price"], minute) for value, minute in found]


def test_without_a_grace_a_record_finds_the_row_of_its_time_as_far_as_it_is_known() -> None:
    driver = TopologyTestDriver(shop(None))
    pipe(driver, "prices", 2, 10)
    pipe(driver, "prices", 3, 20)
    pipe(driver, "sales", 1, 15)  # the price before, though a newer one is there
    pipe(driver, "sales", 2, 25)
    pipe(driver, "prices", 9, 24)  # too late for that sale
    pipe(driver, "sales", 3, 24)
    pipe(driver, "sales", 4, 5)  # no price yet
    assert sent(driver) == [(1, 2, 15), (2, 3, 25), (3, 9, 24)]


def test_with_a_grace_a_record_waits_until_both_topics_have_passed_its_time_by_it() -> None:
    driver = TopologyTestDriver(shop(wt.minutes(5)))
    pipe(driver, "prices", 2, 10)
    pipe(driver, "sales", 1, 15)
    pipe(driver, "prices", 3, 14)  # in time
    pipe(driver, "sales", 7, 30, key="jam")
    assert sent(driver) == []
    pipe(driver, "prices", 4, 20, key="jam")
    assert sent(driver) == []  # reached, not passed
    pipe(driver, "prices", 5, 21, key="jam")
    assert sent(driver) == [(1, 3, 15)]


def test_an_update_that_comes_when_its_own_partition_has_passed_the_grace_does_not_count() -> None:
    driver = TopologyTestDriver(shop(wt.minutes(5)))
    pipe(driver, "prices", 2, 10)
    pipe(driver, "sales", 1, 15)
    pipe(driver, "prices", 4, 21)
    pipe(driver, "prices", 3, 14)  # read at 21: later than 15 and the grace
    pipe(driver, "sales", 1, 40)
    assert sent(driver) == [(1, 2, 15)]


def test_a_record_later_than_the_grace_goes_on_once_its_place_is_passed_and_finds_what_came_before_it() -> None:
    driver = TopologyTestDriver(shop(wt.minutes(5)))
    pipe(driver, "prices", 2, 10)
    pipe(driver, "sales", 7, 30, key="jam")
    pipe(driver, "prices", 3, 30)
    pipe(driver, "prices", 4, 12)  # itself late, and before the sale in log order
    pipe(driver, "sales", 1, 15)
    pipe(driver, "prices", 5, 31, key="jam")
    pipe(driver, "sales", 0, 31, key="nobody")
    assert sent(driver) == [(1, 4, 15)]


@pytest.mark.parametrize("grace", [None, MINUTE])
def test_a_record_older_than_the_history_finds_a_row_that_has_not_changed_before_the_history_begins(grace: timedelta | None) -> None:
    driver = TopologyTestDriver(shop(grace, history=timedelta(minutes=10), left=True))
    pipe(driver, "prices", 2, 1)
    pipe(driver, "prices", 3, 11)  # where the history begins that the sales see
    pipe(driver, "prices", 1, 1, key="jam")
    pipe(driver, "prices", 9, 10, key="jam")
    pipe(driver, "prices", 4, 1, key="egg")
    pipe(driver, "prices", None, 10, key="egg")
    pipe(driver, "sales", 0, 21, key="nobody")
    for number, (key, minute) in enumerate([("tea", 11), ("tea", 10), ("tea", 0), ("jam", 10), ("jam", 9), ("egg", 9)]):
        pipe(driver, "sales", number, minute, key=key)
    pipe(driver, "sales", 0, 22, key="nobody")
    pipe(driver, "prices", 4, 23, key="tea")
    pipe(driver, "sales", 6, 11)
    pipe(driver, "sales", 7, 10)  # of two prices then in the history it can't have the first: a fold may have let go of it
    for topic in ("prices", "sales"):
        pipe(driver, topic, 0, 40, key="nobody")
    found = {qty: price for qty, price, minute in sent(driver) if minute < 20}
    assert found == {0: 3, 1: None, 2: None, 3: 9, 4: None, 5: None, 6: 3, 7: None}


@pytest.mark.parametrize("grace", [None, MINUTE])
def test_a_table_that_never_changes_is_found_however_late_a_record_is(grace: timedelta | None) -> None:
    driver = TopologyTestDriver(shop(grace, history=timedelta(minutes=10)))
    pipe(driver, "prices", 2, 1)
    pipe(driver, "sales", 7, 500, key="nobody")
    pipe(driver, "sales", 1, 5)
    pipe(driver, "sales", 1, 0)  # there was no price yet
    for topic in ("prices", "sales"):
        pipe(driver, topic, 0, 600, key="nobody")
    assert [(qty, price, minute) for qty, price, minute in sent(driver) if minute < 500] == [(1, 2, 5)]


def test_a_deletion_is_a_version_and_a_left_join_says_null() -> None:
    driver = TopologyTestDriver(shop(wt.minutes(0), left=True))
    pipe(driver, "prices", 2, 10)
    pipe(driver, "prices", None, 20)
    for qty, minute in ((1, 9), (2, 10), (3, 19), (4, 20)):
        pipe(driver, "sales", qty, minute)
    pipe(driver, "sales", 5, 40, key=None)  # without a key there is nothing to wait for
    pipe(driver, "prices", 3, 40)
    assert sorted(sent(driver)) == [(1, None, 9), (2, 2, 10), (3, 2, 19), (4, None, 20), (5, None, 40)]


def test_a_record_without_a_value_or_a_key_is_dropped_and_counted_when_it_comes() -> None:
    driver = TopologyTestDriver(shop(wt.minutes(5)))
    pipe(driver, "sales", None, 10)
    pipe(driver, "sales", 1, 10, key=None)
    assert [(dropped.node, dropped.reason) for dropped in driver.dropped()] == [("join", "null_value"), ("join", "null_key")]


def test_any_table_key_can_be_asked_for() -> None:
    app = wt.App("shop")
    rates = app.topic("rates", key="currency STRING", value="rate INT").table().materialized_as("rates", history=wt.hours(1))
    sales = app.topic("sales", key="id STRING", value="currency STRING, x INT").stream()
    sales.join(rates, on="currency", grace=wt.minutes(1), x="x * right.rate").to("out")
    driver = TopologyTestDriver(app)
    for n, rate in enumerate((2, 3)):
        driver.pipe_input("rates", "EUR", {"rate": rate}, timestamp=EPOCH + 10 * n * MINUTE)
    driver.pipe_input("sales", "s1", {"currency": "EUR", "x": 5}, timestamp=EPOCH + 5 * MINUTE)
    driver.pipe_input("sales", "s2", {"currency": "none", "x": 5}, timestamp=EPOCH + 10 * MINUTE)
    assert [(record.key, record.value) for record in driver.read_output("out")] == [("s1", {"x": 10})]


MOVES = st.tuples(st.sampled_from(PLACES), st.integers(0, 40), st.sampled_from("ab"), st.sampled_from([None, 1, 2, 3]))


def records(moves: Sequence[tuple[tuple[str, int], int, str, int | None]]) -> list[Record]:
    following: Counter[tuple[str, int]] = Counter()
    made = []
    for place, minute, key, number in moves:
        name = "price" if place[0] == "prices" else "qty"
        value = None if number is None else json.dumps({name: number}).encode()
        made.append(Record(*place, following[place], EPOCH + minute * MINUTE, key.encode(), value))
        following[place] += 1
    return made


@settings(max_examples=80)
@given(st.lists(MOVES, min_size=2, max_size=25), st.sampled_from([0, 3, 10]), st.data())
def test_neither_cuts_nor_the_interleaving_of_partitions_change_what_goes_on(
    moves: list[tuple[tuple[str, int], int, str, int | None]], grace: int, data: st.DataObject
) -> None:
    topology = shop(wt.minutes(grace), history=wt.minutes(20), left=data.draw(st.booleans())).topology()
    arrived = records(moves)
    once, other = Interpreter(topology, partitions=PLACES), Interpreter(topology, partitions=PLACES)
    once.read(arrived)
    mixed = sorted(data.draw(st.permutations(arrived)), key=lambda r: r.offset)  # any order that keeps that of each partition
    while mixed:
        number = data.draw(st.integers(1, len(mixed)))
        other.read(mixed[:number])
        mixed = mixed[number:]
    assert other.tables == once.tables
    assert Counter((o.key, o.value, o.timestamp, o.place) for o in other.outputs) == Counter(
        (o.key, o.value, o.timestamp, o.place) for o in once.outputs
    )
    assert Counter(other.dropped) == Counter(once.dropped)


def test_what_waits_is_pure_and_what_does_not_depends_on_arrival() -> None:
    pure, arrival = (shop(grace).topology() for grace in (wt.minutes(5), None))
    assert purity_of(pure.table("by_price").node) is Purity.PURE
    assert purity_of(arrival.table("by_price").node) is Purity.ARRIVAL
    (join,) = {n for n in walk(pure.table("by_price").node) if isinstance(n, WaitingJoin)}
    assert delay_of(join) == wt.minutes(5)
    assert pure.table("by_price").behind == wt.minutes(5)
    assert "join table prices as of event time grace 5m qty=value.qty, price=right.price (pure)" in shop(wt.minutes(5)).describe()
    assert [b.name.rpartition("_")[0] for b in pure.buffers] == ["__wait", "__history"]
    assert [b.name.rpartition("_")[0] for b in arrival.buffers] == ["__history"]


def test_changes_of_what_has_waited_depend_on_arrival() -> None:
    app = wt.App("shop")
    topic = app.topic("t", key="k STRING", value="x INT")
    table = topic.table().materialized_as("t", history=wt.hours(1))
    waited = topic.stream().join(table, grace=wt.minutes(1), x="x").to_table().materialized_as("w")
    assert purity_of(waited.node) is Purity.PURE
    assert purity_of(waited.to_stream().node) is Purity.ARRIVAL


def define(app: wt.App, **history: timedelta) -> tuple[Stream, Table]:
    table = app.topic("t", key="k STRING", value="x INT").table().materialized_as("t", **history)
    return app.topic("s", key="k STRING", value="y INT").stream(), table


@pytest.mark.parametrize(
    ("join", "words"),
    [
        pytest.param(lambda s, t: s.join(t, grace=-wt.seconds(1), x="right.x"), "grace must not be negative", id="negative"),
        pytest.param(lambda s, t: s.join(t, grace=wt.hours(2), x="right.x"), "is longer than the table's history", id="too long"),
        pytest.param(lambda s, t: s.join(s, grace=wt.hours(1), x="left.y"), "grace= is for versioned tables", id="of streams"),
        pytest.param(lambda s, t: t.to_stream().left_join(t, grace=wt.hours(1), z="1"), "wants a stream of records", id="Changes"),
        pytest.param(
            lambda s, t: s.left_join(s.join(t, x="right.x").to_table().materialized_as("u", history=wt.hours(1)), grace=wt.hours(1), z="1"),
            "grace= waits for the time of topics", id="a table of a join",
        ),
    ],
)  # fmt: skip
def test_a_grace_that_makes_nothing_certain_is_refused(join: Callable[[Stream, Table], Stream], words: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        join(*define(wt.App("a"), history=wt.hours(1)))
    assert words in str(refused.value)
    assert "test_versioned_joins.py" in str(refused.value)


def test_a_grace_wants_a_history() -> None:
    stream, table = define(wt.App("a"))
    with pytest.raises(DefinitionError, match=r"join: grace= wants a versioned table: .materialized_as\(name, history=...\)"):
        stream.join(table, grace=wt.seconds(1), x="right.x")


@pytest.mark.parametrize("chunk", [1, 100])
def test_a_record_that_has_waited_is_told_of_where_it_goes_on(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(explaining, "CHUNK", chunk)
    topology = shop(wt.minutes(5)).topology()
    given = [("prices", 2, 10), ("sales", 7, 12), ("prices", 3, 40), ("sales", 1, 41), ("prices", 3, 60)]
    arrived = records([((topic, 0), minute, "a", number) for topic, number, minute in given])
    told = explaining.explain(topology, topology.table("by_price"), keytext.read(topology.table("by_price"), ["2"]), arrived)
    assert [(step.topic, step.offset, step.row) for step in told.steps] == [("sales", 0, {"qty": 7})]
