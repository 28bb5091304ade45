"""Foreign-key joins on the oracle: a row of each left key beside the right row that it names, whatever came first and whatever moves."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watertable as wt
from tests.properties.strategies import START
from watertable.errors import DefinitionError
from watertable.interpreter import Interpreter
from watertable.plan.lineage import Origin, column_lineage
from watertable.plan.purity import Purity, purity_of
from watertable.records import Record
from watertable.testing import TopologyTestDriver

NAMES = {"name": "left.item", "who": "right.name", "lone": "right IS NULL"}


def shop() -> tuple[wt.App, wt.Table, wt.Table]:
    app = wt.App("shop")
    orders = app.topic("orders", key="id STRING", value="item STRING, customer STRING").table().materialized_as("orders")
    customers = app.topic("customers", key="c STRING", value="name STRING, boss STRING").table().materialized_as("customers")
    return app, orders, customers


def joined() -> tuple[wt.App, TopologyTestDriver]:
    app, orders, customers = shop()
    orders.join(customers, on="customer", **NAMES).materialized_as("inner")
    orders.left_join(customers, on="customer", **NAMES).materialized_as("left")
    return app, TopologyTestDriver(app)


def order(driver: TopologyTestDriver, id_: str, item: str | None, customer: str | None = None) -> None:
    driver.pipe_input("orders", id_, None if item is None else {"item": item, "customer": customer}, timestamp=0)


def customer(driver: TopologyTestDriver, c: str, name: str | None, boss: str | None = None) -> None:
    driver.pipe_input("customers", c, None if name is None else {"name": name, "boss": boss}, timestamp=0)


def found(driver: TopologyTestDriver, table: str) -> dict[str, tuple[Any, ...]]:
    return {key: tuple(row.values())[1:] for key, row in driver.table(table).items()}


def told(driver: TopologyTestDriver, table: str) -> list[tuple[Any, Any, Any]]:
    return [(c.key, c.old and c.old["who"], c.new and c.new["who"]) for c in driver.changes(table)]


def test_each_row_is_beside_the_row_that_it_names_whichever_came_first() -> None:
    _, driver = joined()
    customer(driver, "c1", "Ann")
    for id_, item, named in [("o1", "tea", "c1"), ("o2", "jam", "c2"), ("o3", "pie", None)]:
        order(driver, id_, item, named)
    assert found(driver, "inner") == {"o1": ("tea", "Ann", False)}
    assert found(driver, "left") == {"o1": ("tea", "Ann", False), "o2": ("jam", None, True), "o3": ("pie", None, True)}
    customer(driver, "c2", "Bob")
    assert found(driver, "inner") == {"o1": ("tea", "Ann", False), "o2": ("jam", "Bob", False)}
    (drop,) = driver.dropped()
    assert (drop.node, drop.reason) == ("inner", "null_key")


def test_a_right_row_that_changes_or_goes_changes_all_that_name_it_in_the_order_of_their_keys() -> None:
    _, driver = joined()
    for id_ in ("o2", "o1", "o3"):
        order(driver, id_, "tea", "c1" if id_ < "o3" else "c2")
    for name in ("Ann", "Anna", None):
        customer(driver, "c1", name)
    assert told(driver, "inner") == [
        ("o1", None, "Ann"), ("o2", None, "Ann"), ("o1", "Ann", "Anna"), ("o2", "Ann", "Anna"), ("o1", "Anna", None), ("o2", "Anna", None),
    ]  # fmt: skip
    assert found(driver, "left") == {id_: ("tea", None, True) for id_ in ("o1", "o2", "o3")}


def test_a_left_row_that_names_another_is_one_change() -> None:
    _, driver = joined()
    customer(driver, "c1", "Ann")
    customer(driver, "c2", "Bob")
    for named in ("c1", "c2", "c3", None, "c1"):
        order(driver, "o1", "tea", named)
    order(driver, "o1", None)
    order(driver, "o1", None)
    assert told(driver, "inner") == [
        ("o1", None, "Ann"),
        ("o1", "Ann", "Bob"),
        ("o1", "Bob", None),
        ("o1", None, "Ann"),
        ("o1", "Ann", None),
    ]
    assert [(old, new) for _, old, new in told(driver, "left")] == [
        (None, "Ann"), ("Ann", "Bob"), ("Bob", None), (None, None), (None, "Ann"), ("Ann", None),
    ]  # fmt: skip


def test_a_table_joins_itself_and_joins_join_on() -> None:
    app, orders, customers = shop()
    bosses = customers.left_join(customers, on="boss", name="left.name", boss="right.name", above="right.boss").materialized_as("bosses")
    orders.join(bosses, on="customer", item="left.item", boss="right.boss").materialized_as("through")
    driver = TopologyTestDriver(app)
    order(driver, "o1", "tea", "c2")
    customer(driver, "c1", "Ann", "c1")
    customer(driver, "c2", "Bob", "c1")
    assert found(driver, "bosses") == {"c1": ("Ann", "Ann", "c1"), "c2": ("Bob", "Ann", "c1")}
    assert found(driver, "through") == {"o1": ("tea", "Ann")}
    customer(driver, "c1", "Anna", "c2")
    assert found(driver, "bosses") == {"c1": ("Anna", "Bob", "c1"), "c2": ("Bob", "Anna", "c2")}
    assert found(driver, "through") == {"o1": ("tea", "Anna")}
    customer(driver, "c1", None)
    assert found(driver, "bosses") == {"c2": ("Bob", None, None)}


def test_rows_of_a_join_are_filtered_mapped_and_grouped_like_any_others() -> None:
    app, orders, customers = shop()
    both = orders.join(customers, on="customer", item="left.item", who="right.name").filter("item <> 'pie'").materialized_as("both")
    both.group_by("who").agg(items=wt.collect_list("item")).materialized_as("baskets")
    driver = TopologyTestDriver(app)
    for id_, item, named in [("o1", "tea", "c1"), ("o2", "jam", "c1"), ("o3", "pie", "c1"), ("o4", "gin", "c2")]:
        order(driver, id_, item, named)
    customer(driver, "c1", "Ann")
    customer(driver, "c2", "Bob")
    assert found(driver, "baskets") == {"Ann": (["tea", "jam"],), "Bob": (["gin"],)}
    customer(driver, "c2", "Ann")
    order(driver, "o1", None)
    assert found(driver, "baskets") == {"Ann": (["jam", "gin"],)}


def test_a_join_is_described_and_its_columns_lead_back_to_both_topics() -> None:
    app, _ = joined()
    table = app.topology().table("left")
    assert column_lineage(table)["who"] == (Origin("customers", "value", "name"),)
    assert column_lineage(table)["id"] == (Origin("orders", "key", "id"),)
    assert "left_join on customer name=left.item" in app.describe().replace("value.", "")
    assert purity_of(table.node) is Purity.PURE
    assert table.state_key.names == ("__on0", "id")


@pytest.mark.parametrize(
    ("define", "says"),
    [
        (lambda o, c: o.join(c, on="length(customer)", x="left.item"), r"same types: \(length\(customer\) INT\) here"),
        (lambda o, c: o.join(c, on=("customer", "item"), x="left.item"), "keys of the same types"),
        (lambda o, c: o.filter("item IS NOT NULL").join(c, on="customer", x="left.item"), "wants a table with a name"),
        (lambda o, c: o.join(c, on="customer", id="left.item"), "both a key and a value column"),
        (lambda o, c: o.join(c, on="customer", x="left.item").join(o, y="right.item"), "join tables with on="),
    ],
)
def test_what_cannot_be_joined_is_refused_where_it_is_written(define: Any, says: str) -> None:
    _, orders, customers = shop()
    with pytest.raises(DefinitionError, match=says):
        define(orders, customers)


# -- the law --------------------------------------------------------------------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> list[list[Record]]:
    """Write records of few keys for both tables, deletions among them, in any partition, cut anywhere."""
    offsets: dict[tuple[str, int], int] = {}
    records = []
    for number in range(draw(st.integers(1, 20))):
        topic, partition = draw(st.sampled_from(["orders", "customers"])), draw(st.integers(0, 1))
        at = START + timedelta(seconds=number + draw(st.integers(-30, 30)))
        named = draw(st.sampled_from(["c1", "c2", None]))
        value = {"item": draw(st.sampled_from(["tea", "jam"])), "customer": named, "name": draw(st.sampled_from(["A", "B"])), "boss": named}
        key = draw(st.sampled_from(["o1", "o2", "o3"] if topic == "orders" else ["c1", "c2"]))
        offset = offsets.get((topic, partition), 0)
        offsets[topic, partition] = offset + 1
        data = None if draw(st.integers(0, 3)) == 3 else json.dumps(value).encode()
        records.append(Record(topic, partition, offset, at, key.encode(), data))
    places = sorted(draw(st.sets(st.integers(1, len(records)))) | {0, len(records)})
    return [records[a:b] for a, b in pairwise(places)]


@settings(max_examples=150)
@given(logs())
def test_a_joined_table_is_what_joining_the_rows_gives(batches: list[list[Record]]) -> None:
    app, orders, customers = shop()
    tables = {"orders": (orders, "customer"), "customers": (customers, "boss")}
    for name, (table, on) in tables.items():
        columns = {"mine": "left.item" if name == "orders" else "left.name", "other": "right.name"}
        table.join(customers, on=on, **columns).materialized_as(f"{name}_inner")
        kept = table.left_join(customers, on=on, **columns).materialized_as(f"{name}_left")
        kept.group_by("mine").agg(n=wt.count(), others=wt.collect_set("other")).materialized_as(f"{name}_grouped")
    engine = Interpreter(app.topology())
    for batch in batches:
        engine.read(batch)
    right = {key[0]: row["name"] for key, row in engine.tables["customers"].items()}
    for name, (_, on) in tables.items():
        rows = {key: (list(row.values())[1], right.get(row[on])) for key, row in engine.tables[name].items()}  # type: ignore[call-overload]
        shown = {how: {key: tuple(row.values())[1:] for key, row in engine.tables[f"{name}_{how}"].items()} for how in ("inner", "left")}
        assert shown == {"left": rows, "inner": {key: row for key, row in rows.items() if row[1] is not None}}
        counted = {row["mine"]: row["n"] for row in engine.tables[f"{name}_grouped"].values()}
        assert counted == {mine: sum(row[0] == mine for row in rows.values()) for mine in {row[0] for row in rows.values()}}
