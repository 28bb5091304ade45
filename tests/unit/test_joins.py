"""Joins and cogroups on the oracle: which rows there are, what each side's tombstone does, and what streams out."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import watertable as wt
from watertable.dsl.streams import Stream
from watertable.dsl.tables import Table
from watertable.interpreter import Interpreter
from watertable.plan.purity import Purity, purity_of
from watertable.plan.windows import EPOCH
from watertable.records import Record

ITEMS, PRICES = "items", "prices"


class Shop:
    """Hold two tables of topics, and write records for them with rising offsets and times."""

    def __init__(self) -> None:
        self.app = wt.App("shop")
        self.items: Table = self.app.topic(ITEMS, key="sku STRING", value="name STRING").table()
        self.prices: Table = self.app.topic(PRICES, key="id STRING", value="cents INT").table()
        self.sales = self.app.topic("sales", key="sku STRING", value="qty INT").stream()
        self.written = 0

    def record(self, topic: str, key: str | None, value: dict[str, Any] | None) -> Record:
        """Write the next record."""
        self.written += 1
        data = None if value is None else json.dumps(value).encode()
        return Record(topic, 0, self.written, EPOCH + timedelta(seconds=self.written), key and key.encode(), data)

    def run(self, *batches: list[Record]) -> Interpreter:
        """Run the app."""
        engine = Interpreter(self.app.topology())
        for batch in batches:
            engine.read(batch)
        return engine


def rows(engine: Interpreter, table: str) -> dict[object, object]:
    return {key if len(key) > 1 else key[0]: [*row.values()][len(key) :] for key, row in engine.tables[table].items()}


def outputs(engine: Interpreter) -> list[Any]:
    return [o.value and json.loads(o.value)["v"] for o in engine.outputs]


COLUMNS = {"v": "concat(COALESCE(left.name, '-'), COALESCE(CAST(right.cents AS STRING), '-'))"}


def test_inner_left_and_outer_have_the_rows_of_both_of_the_left_and_of_either() -> None:
    shop = Shop()
    for join in (Table.join, Table.left_join, Table.outer_join):
        join(shop.items, shop.prices, **COLUMNS).materialized_as(join.__name__)
    given = [shop.record(ITEMS, "a", {"name": "A"}), shop.record(ITEMS, "b", {"name": "B"}), shop.record(PRICES, "b", {"cents": 2}),
             shop.record(PRICES, "c", {"cents": 3}), shop.record(PRICES, "d", {"cents": 4}), shop.record(PRICES, "d", None)]  # fmt: skip
    engine = shop.run(given)
    assert rows(engine, "join") == {"b": ["B2"]}
    assert rows(engine, "left_join") == {"a": ["A-"], "b": ["B2"]}
    assert rows(engine, "outer_join") == {"a": ["A-"], "b": ["B2"], "c": ["-3"]}


def test_a_row_that_was_gone_comes_back_with_the_side_that_had_stayed() -> None:
    shop = Shop()
    shop.items.join(shop.prices, **COLUMNS).materialized_as("t").to_stream().to("out")
    steps = [(PRICES, {"cents": 2}), (ITEMS, {"name": "A"}), (ITEMS, None), (ITEMS, None), (PRICES, {"cents": 3}), (ITEMS, {"name": "B"})]
    engine = shop.run(*([shop.record(topic, "a", value)] for topic, value in steps))
    assert outputs(engine) == ["A2", None, "B3"]


def test_a_filtered_side_is_missing_while_its_row_is_hidden() -> None:
    shop = Shop()
    shop.items.left_join(shop.prices.filter("cents > 1"), gone="right IS NULL", cents="right.cents").materialized_as("t")
    one = [shop.record(ITEMS, "a", {"name": "A"}), shop.record(PRICES, "a", {"cents": 5})]
    assert rows(shop.run(one), "t") == {"a": [False, 5]}
    assert rows(shop.run(one, [shop.record(PRICES, "a", {"cents": 1})]), "t") == {"a": [True, None]}


def test_an_aggregate_is_there_from_its_first_record_even_if_all_it_keeps_is_null() -> None:
    shop = Shop()
    sold = shop.sales.group_by_key().agg(last=wt.last("qty"))
    shop.items.outer_join(sold, item="left IS NOT NULL", sold="right IS NOT NULL", last="right.last").materialized_as("t")
    engine = shop.run([shop.record(ITEMS, "a", {"name": "A"}), shop.record("sales", "b", {"qty": None})])
    assert rows(engine, "t") == {"a": [True, False, None], "b": [False, True, None]}


def test_joins_of_joins_and_of_a_table_with_itself_keep_one_state_for_each_node() -> None:
    shop = Shop()
    first = shop.items.join(shop.prices, **COLUMNS)
    sold = shop.sales.group_by_key().agg(n=wt.sum("qty"))
    first.left_join(sold, v="left.v", n="COALESCE(right.n, 0)").outer_join(shop.items, v="left.v", n="left.n", name="right.name"
                                                                           ).materialized_as("t")  # fmt: skip
    shop.items.join(shop.items.map_values(up="upper(name)"), name="left.name", up="right.up").materialized_as("self")
    given = [shop.record(ITEMS, "a", {"name": "x"}), shop.record(PRICES, "a", {"cents": 1}), shop.record("sales", "a", {"qty": 3}),
             shop.record(ITEMS, "b", {"name": "y"})]  # fmt: skip
    engine = shop.run(given)
    assert rows(engine, "t") == {"a": ["x1", 3, "x"], "b": [None, None, "y"]}
    assert rows(engine, "self") == {"a": ["x", "X"], "b": ["y", "Y"]}


def test_windowed_tables_join_window_by_window() -> None:
    shop = Shop()
    windows = wt.tumbling(seconds=4)
    counts = shop.sales.group_by_key().windowed_by(windows).count("n")
    most = shop.sales.group_by_key().windowed_by(windows).agg(most=wt.max("qty"))
    counts.join(most, n="left.n", most="right.most", at="unix_seconds(window.start)").materialized_as("t")
    engine = shop.run([shop.record("sales", "a", {"qty": n}) for n in (5, 4, 3, 2, 1)])
    assert [[*row.values()][-3:] for row in engine.tables["t"].values()] == [[3, 5, 0], [2, 2, 4]]


def test_a_joined_windows_row_is_final_when_both_sides_are() -> None:
    shop = Shop()
    short, long = (shop.sales.group_by_key().windowed_by(wt.tumbling(days=1, grace=wt.hours(n))).count("n") for n in (1, 5))
    short.join(long, n="left.n", m="right.n").materialized_as("t")
    assert str(shop.app.topology().table("t").windows) == "tumbling 1d grace 5h"


def test_a_record_that_feeds_both_sides_updates_the_left_one_first() -> None:
    shop = Shop()
    odd, sold = (shop.sales.filter(c).group_by_key().agg(n=wt.sum("qty")) for c in ("qty % 2 = 1", "qty > 0"))
    odd.outer_join(sold, v="concat(COALESCE(left.n, 0), ' of ', COALESCE(right.n, 0))").materialized_as("t").to_stream().to("out")
    engine = shop.run([shop.record("sales", "a", {"qty": 1}), shop.record("sales", "a", {"qty": 2})])
    assert outputs(engine) == ["1 of 0", "1 of 1", "1 of 3"]


def test_records_without_key_are_refused_by_the_tables_of_a_join() -> None:
    shop = Shop()
    shop.items.join(shop.prices, **COLUMNS).materialized_as("t")
    engine = shop.run([shop.record(ITEMS, None, {"name": "A"}), shop.record(PRICES, None, {"cents": 1})])
    assert [(q.node, q.reason) for q in engine.quarantine] == [("t", "a record of a table topic has no key")] * 2


def test_a_join_is_pure_and_so_are_its_changes_if_one_topic_feeds_it() -> None:
    shop = Shop()
    two = shop.items.join(shop.prices, **COLUMNS).materialized_as("two")
    one = shop.sales.group_by_key().count("n").join(shop.sales.to_table(), n="left.n", last="right.qty").materialized_as("one")
    assert [purity_of(t.node) for t in (one, two)] == [Purity.PURE, Purity.PURE]
    assert [purity_of(t.to_stream().node) for t in (one, two)] == [Purity.PURE, Purity.ARRIVAL]


# -- cogroup ----------------------------------------------------------------------------------------------------------------------------


def test_a_cogroup_has_a_row_for_each_group_of_any_stream_and_counts_nothing_as_0() -> None:
    shop = Shop()
    returns = shop.app.topic("returns", key="sku STRING", value="qty INT, why STRING").stream()
    both = shop.sales.group_by_key().cogroup(sold=wt.sum("qty"), sales=wt.count()).cogroup(
        returns.group_by("sku"), returned=wt.sum("qty"), returns=wt.count(), reasons=wt.count_distinct("why"))  # fmt: skip
    both.agg().materialized_as("t").to_stream().map_values(v="concat(sales, ' ', returns)").to("out")
    engine = shop.run([shop.record("sales", "a", {"qty": 3}), shop.record("returns", "a", {"qty": 1, "why": "late"}),
                       shop.record("returns", "b", {"qty": 2, "why": None}), shop.record("sales", "c", None),
                       shop.record("returns", None, {"qty": 1})])  # fmt: skip
    assert rows(engine, "t") == {"a": [3, 1, 1, 1, 1], "b": [None, 0, 2, 1, 0]}
    assert sorted(outputs(engine)) == ["0 1", "1 0", "1 1"]
    assert sorted((d.node, d.reason) for d in engine.dropped) == [("t", "null_key"), ("t", "null_value")]


def test_a_windowed_cogroup_has_the_windows_of_each_stream_and_each_is_late_by_itself() -> None:
    shop = Shop()
    returns = shop.app.topic("returns", key="sku STRING", value="qty INT").stream()
    both = shop.sales.group_by_key().cogroup(n=wt.count()).cogroup(returns.group_by_key(), m=wt.count())
    both.windowed_by(wt.tumbling(seconds=4)).agg().materialized_as("t")
    early = shop.record("returns", "a", {"qty": 1})
    given = [shop.record("sales", "a", {"qty": n}) for n in range(5)]
    engine = shop.run([*given, early], [replace(early, offset=9, timestamp=EPOCH + timedelta(seconds=8)), replace(early, offset=10)])
    assert [[*row.values()][-2:] for _, row in sorted(engine.tables["t"].items())] == [[2, 1], [3, 0], [0, 1]]
    assert [(d.node, d.reason, d.topic) for d in engine.dropped] == [("t", "late", "returns")]


def test_a_cogroup_joins_like_any_table() -> None:
    shop = Shop()
    both = shop.sales.group_by_key().cogroup(last=wt.last("qty")).cogroup(shop.sales.group_by_key(), n=wt.count()).agg()
    shop.items.left_join(both, n="right.n", here="right IS NOT NULL").materialized_as("t")
    engine = shop.run(
        [shop.record(ITEMS, "a", {"name": "A"}), shop.record(ITEMS, "b", {"name": "B"}), shop.record("sales", "a", {"qty": None})]
    )
    assert rows(engine, "t") == {"a": [1, True], "b": [None, False]}


# -- a stream with a table --------------------------------------------------------------------------------------------------------------


def looked_up(shop: Shop, join: Any = Stream.join, on: str | None = None) -> None:
    prices = shop.prices.materialized_as("prices_now")
    join(shop.sales, prices, on=on, v="concat(qty, ' at ', COALESCE(CAST(right.cents AS STRING), '-'))").to("out")


def test_a_record_sees_the_table_as_it_is_then_and_no_update_of_the_table_is_seen() -> None:
    shop = Shop()
    looked_up(shop)
    steps = [("sales", {"qty": 1}), (PRICES, {"cents": 5}), ("sales", {"qty": 2}), (PRICES, {"cents": 6}), (PRICES, {"cents": 7}),
             ("sales", {"qty": 3}), (PRICES, None), ("sales", {"qty": 4})]  # fmt: skip
    given = [shop.record(topic, "a", value) for topic, value in steps]
    assert outputs(shop.run(given)) == outputs(shop.run(*([record] for record in given))) == ["2 at 5", "3 at 7"]


def test_a_left_join_keeps_what_finds_no_row_and_what_has_no_key_and_drops_what_has_no_value() -> None:
    shop = Shop()
    looked_up(shop, Stream.left_join)
    given = [shop.record("sales", "a", {"qty": 1}), shop.record("sales", None, {"qty": 2}), shop.record("sales", "a", None)]
    engine = shop.run(given)
    assert outputs(engine) == ["1 at -", "2 at -"]
    assert [(d.node, d.reason) for d in engine.dropped] == [("left_join", "null_value")]


def test_an_inner_join_drops_and_counts_what_has_no_key_or_value_and_drops_what_finds_no_row() -> None:
    shop = Shop()
    looked_up(shop)
    given = [shop.record("sales", "a", {"qty": 1}), shop.record("sales", None, {"qty": 2}), shop.record("sales", None, None)]
    engine = shop.run(given)
    assert outputs(engine) == []
    assert [(d.node, d.reason) for d in engine.dropped] == [("join", "null_key"), ("join", "null_value")]


def test_a_key_of_ones_own_makes_any_table_a_global_one() -> None:
    shop = Shop()
    looked_up(shop, Stream.left_join, on="CASE WHEN qty > 1 THEN CAST(qty AS STRING) END")
    given = [shop.record(PRICES, "2", {"cents": 9}), shop.record("sales", "a", {"qty": 2}), shop.record("sales", None, {"qty": 2}),
             shop.record("sales", "a", {"qty": 1}), shop.record("sales", None, {"qty": 1})]  # fmt: skip
    engine = shop.run(given)
    assert outputs(engine) == ["2 at 9", "2 at 9", "1 at -"]
    assert [(d.node, d.reason) for d in engine.dropped] == [("left_join", "null_key")]


def test_a_table_gets_what_a_record_makes_of_it_before_the_record_looks() -> None:
    shop = Shop()
    totals = shop.sales.group_by_key().agg(n=wt.sum("qty")).materialized_as("totals")
    shop.sales.join(totals, v="right.n").to("out")
    assert outputs(shop.run([shop.record("sales", "a", {"qty": n}) for n in (1, 2, 3)])) == [1, 3, 6]
    assert purity_of(shop.app.topology().sinks[0].node) is Purity.PURE


def test_a_column_that_fails_refuses_the_record_and_a_change_is_joined_by_its_new_row() -> None:
    shop = Shop()
    prices = shop.prices.materialized_as("prices_now")
    shop.items.materialized_as("names").to_stream().left_join(prices, v="concat(old.name, new.name, 60 div right.cents)").to("out")
    given = [shop.record(PRICES, "a", {"cents": 2}), shop.record(ITEMS, "a", {"name": "x"}), shop.record(ITEMS, "a", {"name": "y"}),
             shop.record(PRICES, "a", {"cents": 0}), shop.record(ITEMS, "a", {"name": "z"}), shop.record(ITEMS, "a", None)]  # fmt: skip
    engine = shop.run(given)
    assert outputs(engine) == [None, "xy30"]
    assert [q.node for q in engine.quarantine] == ["left_join"]
    assert [(d.node, d.reason) for d in engine.dropped] == [("left_join", "null_value")]


def test_a_look_at_a_table_of_other_partitions_depends_on_arrival() -> None:
    shop = Shop()
    looked_up(shop)
    prices = Table(shop.app, shop.prices.node, "prices_now")
    shop.sales.join(prices, on="CAST(qty AS STRING)", v="right.cents").group_by("v").count("n").materialized_as("t")
    (sink,), (_, counts) = shop.app.topology().sinks, shop.app.topology().tables
    assert [purity_of(sink.node), purity_of(counts.node)] == [Purity.ARRIVAL, Purity.ARRIVAL]


def test_a_row_that_moves_within_its_group_is_one_change_of_the_groups_join() -> None:
    shop = Shop()
    by_name = shop.items.materialized_as("things").group_by("name").count("n")
    other = shop.app.topic("colors", key="name STRING", value="color STRING").table()
    joined = by_name.left_join(other, v="concat(CAST(left.n AS STRING), COALESCE(right.color, '-'))").materialized_as("t")
    joined.to_stream().to("out")
    shop_rows = [shop.record(ITEMS, "a", {"name": "cup"}), shop.record("colors", "cup", {"color": "red"}), shop.record(ITEMS, "a", {
        "name": "cup"}), shop.record(ITEMS, "b", {"name": "cup"}), shop.record(ITEMS, "a", None), shop.record(ITEMS, "b", {
            "name": "pot"})]  # fmt: skip
    engine = shop.run(shop_rows)
    assert outputs(engine) == ["1-", "1red", "1red", "2red", "1red", None, "1-"]
    assert rows(engine, "t") == {"pot": ["1-"]}
