"""Versioned tables on the oracle: the last row by event time, a history, and no Change for what comes out of order."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from itertools import permutations

import pytest

import watertable as wt
from watertable.dsl.tables import Table
from watertable.errors import DefinitionError
from watertable.interpreter import Interpreter
from watertable.plan.nodes import History, Versioned
from watertable.plan.plan import history_of
from watertable.plan.purity import Purity, purity_of
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.testing import TopologyTestDriver

MINUTE = timedelta(minutes=1)


def prices(history: timedelta = timedelta(hours=1)) -> wt.App:
    """Keep prices by event time, and stream their changes."""
    app = wt.App("shop")
    table = app.topic("prices", key="sku STRING", value="price INT").table().materialized_as("prices", history=history)
    table.to_stream().to("updates")
    return app


def pipe(driver: TopologyTestDriver, price: int | None, minute: int) -> None:
    driver.pipe_input("prices", "tea", None if price is None else {"price": price}, timestamp=EPOCH + minute * MINUTE)


def sent(driver: TopologyTestDriver) -> list[object]:
    return [record.value and record.value["price"] for record in driver.read_output("updates")]


def test_the_last_by_event_time_is_the_row_and_what_comes_out_of_order_is_no_change() -> None:
    driver = TopologyTestDriver(prices())
    for price, minute in ((2, 10), (3, 20), (1, 15), (4, 30), (None, 25)):
        pipe(driver, price, minute)
    assert sent(driver) == [2, 3, 4]
    assert driver.table("prices") == {"tea": {"sku": "tea", "price": 4}}


def test_a_deletion_deletes_what_is_older_than_itself_and_nothing_that_comes_later_in_event_time() -> None:
    driver = TopologyTestDriver(prices())
    pipe(driver, 2, 10)
    pipe(driver, None, 20)
    pipe(driver, 3, 15)  # before the deletion
    assert driver.table("prices") == {}
    pipe(driver, 4, 21)
    assert sent(driver) == [2, None, 4]


def test_of_equal_event_times_the_last_in_log_order_wins() -> None:
    driver = TopologyTestDriver(prices())
    pipe(driver, 2, 10)
    pipe(driver, 3, 10)
    assert sent(driver) == [2, 3]


def test_what_is_older_than_the_history_is_dropped_and_counted() -> None:
    engine = Interpreter(prices(timedelta(minutes=5)).topology())
    records = [(b"tea", 10), (b"jam", 5), (b"nut", 4)]
    engine.read(Record("prices", 0, n, EPOCH + m * MINUTE, key, b'{"price": 1}') for n, (key, m) in enumerate(records))
    assert {key for (key,) in engine.tables["prices"]} == {"tea", "jam"}
    assert [(d.node, d.reason, d.offset) for d in engine.dropped] == [("prices", "expired", 2)]


def test_neither_the_order_of_partitions_nor_cuts_change_a_row() -> None:
    records = [
        Record("prices", n, 0, EPOCH + m * MINUTE, b"tea", None if price is None else json.dumps({"price": price}).encode())
        for n, (price, m) in enumerate([(1, 30), (2, 31), (None, 29), (3, 31)])
    ]
    found = set()
    for order in permutations(records):
        engine = Interpreter(prices().topology())
        for record in order:
            engine.read([record])
        found.add(str(engine.tables))
    assert len(found) == 1


def test_filters_and_columns_are_shown_of_the_row_by_event_time() -> None:
    app = wt.App("shop")
    table = app.topic("prices", key="sku STRING", value="price INT").table()
    table.filter("price > 1").map_values(double="2 * price").materialized_as("prices", history=wt.hours(1)).to_stream().to("updates")
    driver = TopologyTestDriver(app)
    for price, minute in ((2, 10), (1, 20), (5, 15), (3, 30)):
        pipe(driver, price, minute)
    assert [record.value and record.value["double"] for record in driver.read_output("updates")] == [4, None, 6]


def test_groups_and_joins_do_not_see_what_comes_out_of_order() -> None:
    app = wt.App("shop")
    table = app.topic("prices", key="sku STRING", value="price INT").table().materialized_as("prices", history=wt.hours(1))
    names = app.topic("names", key="sku STRING", value="name STRING").table()
    table.join(names, name="right.name", price="left.price").materialized_as("named").to_stream().to("updates")
    table.group_by(price="price").count().materialized_as("counts")
    driver = TopologyTestDriver(app)
    driver.pipe_input("names", "tea", {"name": "Tea"}, timestamp=EPOCH)
    for price, minute in ((2, 10), (1, 5), (3, 20)):
        pipe(driver, price, minute)
    assert sent(driver) == [2, 3]
    assert driver.table("counts") == {3: {"price": 3, "count": 1}}


def test_a_history_is_kept_for_the_app_and_shared_by_what_is_derived_from_it() -> None:
    app = prices()
    (history,) = app.topology().buffers
    table = app.topology().table("prices").node
    assert isinstance(table, Versioned)
    assert isinstance(history.root, History)
    assert history == history_of(table)
    assert history.name.startswith("__history_")
    assert purity_of(table) is Purity.PURE
    assert "latest value by key and event time, history 1h" in app.describe()


def test_the_changes_of_records_have_a_history_too() -> None:
    app = wt.App("shop")
    table = app.topic("prices", key="sku STRING", value="price INT").table().materialized_as("kept", history=wt.hours(1))
    told(told(table, kept=False)).to_stream().to("updates")
    driver = TopologyTestDriver(app)
    for price, minute in ((2, 10), (3, 20), (1, 15)):
        driver.pipe_input("prices", "tea", {"price": price}, timestamp=minute * 60_000)
    assert driver.table("told") == driver.table("kept") == {"tea": {"sku": "tea", "price": 3}}


def told(table: Table, *, kept: bool = True) -> Table:
    """Keep what a table's changes tell, with a history if it is `kept`."""
    rows = table.to_stream().map_values(**{name: f"new.`{name}`" for name in table.value.names}).to_table()
    return rows.materialized_as("told", history=wt.hours(1)) if kept else rows.materialized_as("first")


def put(record: wt.Record, context: wt.Context) -> None:
    context.store("kept").put(record.value)


@pytest.mark.parametrize(
    ("define", "words"),
    [
        pytest.param(lambda a: a.table().materialized_as("t", history=wt.hours(0)), "a history must be longer than zero", id="zero"),
        pytest.param(lambda a: a.table().materialized_as("t", history=-wt.hours(1)), "longer than zero; got -1 day", id="negative"),
        pytest.param(
            lambda a: a.stream().group_by_key().count().materialized_as("t", history=wt.hours(1)),
            "history= is of tables that keep a key's last value", id="an aggregate",
        ),
        pytest.param(
            lambda a: a.stream().group_by_key().windowed_by(wt.tumbling(hours=1)).count().materialized_as("t", history=wt.hours(1)),
            "history= is of tables that keep a key's last value", id="windows",
        ),
        pytest.param(
            lambda a: a.table().join(a.table(), x="left.x").materialized_as("t", history=wt.hours(1)),
            "history= is of tables that keep a key's last value", id="a join",
        ),
        pytest.param(
            lambda a: told(a.stream().group_by_key().count().materialized_as("counts")),
            "history= is of a topic's records, each at its own event time, and the changes of counts (", id="the changes of an aggregate",
        ),
        pytest.param(
            lambda a: told(a.table().join(a.table(), x="left.x").filter("x > 1").materialized_as("pairs")),
            "the changes of pairs (", id="the changes of a join",
        ),
        pytest.param(
            lambda a: told(told(a.stream().group_by_key().count().materialized_as("counts"), kept=False)),
            "the changes of counts (", id="the changes of changes",
        ),
        pytest.param(
            lambda a: a.table().materialized_as("rows").ttl(wt.hours(1)).materialized_as("t", history=wt.hours(1)),
            "is of many event times, and so is what ttl or until_time_limit shows", id="rows that don't stay",
        ),
        pytest.param(
            lambda a: a.stream().process(put, stores={"kept": wt.key_value_store("x INT")}).tables["kept"].materialized_as(
                "t", history=wt.hours(1)),
            "history= is of tables that keep a key's last value", id="a store",
        ),
        pytest.param(lambda a: a.table().materialized_as("t", history=wt.hours(1)), "history= can't keep m: values with a MAP", id="a map"),
    ],
)  # fmt: skip
def test_what_has_no_history_is_refused(define: Callable[[wt.dsl.TopicSource], Table], words: str) -> None:
    columns = "x INT" if "MAP" not in words else "m MAP<STRING, INT>"
    with pytest.raises(DefinitionError) as refused:
        define(wt.App("a").topic("t", key="k STRING", value=columns))
    assert words in str(refused.value)
    assert "test_versioned_tables.py" in str(refused.value)
