"""What an operator can't take is refused in watertable's words, with the place in the definition, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

import watertable as wt
from watertable.errors import WatertableError
from watertable_quality import Suite, between, in_set, not_null, row_count, unique

HOUR: Final = timedelta(hours=1)
NOTHING: Final = object()
WRONG: Final[tuple[Any, ...]] = (5, None, NOTHING, [], {5: "a"}, "no such", True, b"x", ("a", 5), int, timedelta(-1), float("nan"))
"""Of each kind one; some arguments may be None, or a text, or a number."""


@dataclass(frozen=True)
class Shop:
    """Hold one of each thing that operators are called on."""

    app: wt.App
    sales: wt.Stream
    returns: wt.Stream
    prices: wt.Table
    stock: wt.Table
    history: wt.Table

    @property
    def grouped(self) -> wt.GroupedStream:
        return self.sales.group_by("item")

    def windowed(self) -> wt.Table:
        return self.grouped.windowed_by(wt.tumbling(hours=1)).agg(n=wt.count()).materialized_as("hourly")


def shop() -> Shop:
    app = wt.App("shop")
    sales = app.topic("sales", key="k STRING", value="a BIGINT, item STRING, xs ARRAY<STRING>, at TIMESTAMP", timestamp="at").stream()
    return Shop(
        app, sales,
        app.topic("returns", key="k STRING", value="a BIGINT, why STRING").stream(),
        app.topic("prices", key="k STRING", value="price BIGINT, of STRING").table().materialized_as("prices"),
        app.topic("stock", key="k STRING", value="n BIGINT").table().materialized_as("stock"),
        app.topic("old", key="k STRING", value="n BIGINT").table().materialized_as("old", history=wt.days(1)),
    )  # fmt: skip


def act(record: wt.Record, context: wt.Context) -> None:
    """Do nothing, as a processor may."""


@wt.udf(returns="BIGINT", version="1")
def doubled(numbers: Any) -> Any:
    """Double numbers."""
    return numbers * 2


CALLS: Final[Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]]] = {
    "App": (lambda s, **k: wt.App(**k), {"name": "x", "owner": "team:x", "description": "what for"}),
    "topic": (
        lambda s, **k: s.app.topic("new", **k),
        {"value": "a INT, t TIMESTAMP", "key": "k STRING", "headers": {"h": "h STRING"}, "timestamp": "t", "key_format": "json",
         "value_format": "json", "archive": True, "idle_after": HOUR, "description": "what of"},
    ),
    "topic's name": (lambda s, name: s.app.topic(name, value="a INT"), {"name": "new"}),
    "filter": (lambda s, **k: s.sales.filter(**k), {"condition": "a > 1"}),
    "filter_not": (lambda s, **k: s.sales.filter_not(**k), {"condition": "a > 1"}),
    "expect": (lambda s, **k: s.sales.expect(**k), {"name": "n", "condition": "a > 1", "on_fail": "drop"}),
    "map_values": (lambda s, **k: s.sales.map_values(**k), {"x": "a"}),
    "with_columns": (lambda s, **k: s.sales.with_columns(**k), {"x": "a"}),
    "map": (lambda s, **k: s.sales.map(**k), {"key": {"k": "item"}, "value": {"x": "a"}}),
    "select_key": (lambda s, column, **k: s.sales.select_key(column, **k), {"column": "item", "x": "a"}),
    "flat_map_values": (lambda s, **k: s.sales.flat_map_values(**k), {"explode": "x", "x": "xs"}),
    "peek": (lambda s, **k: s.sales.peek(**k), {"name": "n"}),
    "merge": (lambda s, other: s.sales.merge(other or s.sales), {"other": None}),
    "join": (lambda s, other, **k: s.sales.join(other or s.prices, **k), {"other": None, "on": "item", "x": "a"}),
    "join of a versioned table": (lambda s, **k: s.sales.join(s.history, **k), {"grace": HOUR, "x": "a"}),
    "join of streams": (lambda s, **k: s.sales.join(s.returns, **k), {"within": HOUR, "x": "left.a"}),
    "left_join": (lambda s, **k: s.sales.left_join(s.prices, **k), {"on": ("item",), "x": "a"}),
    "outer_join": (lambda s, other, **k: s.sales.outer_join(other or s.returns, **k), {"other": None, "within": HOUR, "x": "left.a"}),
    "to": (lambda s, **k: s.sales.to(**k), {"topic": "o", "key_format": "json", "value_format": "json", "headers": {"h": "item"}}),
    "dedupe": (lambda s, **k: s.sales.dedupe(**k), {"name": "seen", "within": HOUR, "by": "item", "grace": HOUR}),
    "process": (
        lambda s, function, **k: s.sales.process(function, **k),
        {"function": act, "children": {"c": "x INT"}, "stores": {"kept": wt.key_value_store("n INT")}, "punctuators": {"p": act},
         "version": "1"},
    ),
    "process_values": (lambda s, **k: s.sales.process_values(act, **k), {"value": "x INT"}),
    "branch": (lambda s, **k: s.sales.split().branch(**k).no_default_branch(), {"name": "x", "condition": "a > 1"}),
    "default_branch": (lambda s, **k: s.sales.split().branch("x", "a > 1").default_branch(**k), {"name": "y"}),
    "group_by": (lambda s, column, **k: s.sales.group_by(column, **k), {"column": "item", "x": "a"}),
    "windowed_by": (lambda s, windows: s.grouped.windowed_by(windows), {"windows": wt.tumbling(hours=1)}),
    "agg": (lambda s, **k: s.grouped.agg(**k), {"n": wt.count()}),
    "reduce": (lambda s, **k: s.grouped.reduce(**k), {"a": "acc.a + a"}),
    "cogroup": (
        lambda s, other, **k: s.grouped.cogroup(n=wt.count()).cogroup(other or s.returns.group_by(item="why"), **k).agg(),
        {"other": None, "m": wt.count()},
    ),
    "materialized_as": (lambda s, **k: s.prices.filter("price > 1").materialized_as(**k), {"name": "dear"}),
    "history": (lambda s, **k: s.returns.to_table().materialized_as("r", **k), {"history": HOUR}),
    "a table's filter": (lambda s, **k: s.prices.filter(**k), {"condition": "price > 1"}),
    "a table's map_values": (lambda s, **k: s.prices.map_values(**k), {"x": "price"}),
    "a table's join": (lambda s, other, **k: s.prices.join(other or s.stock, **k), {"other": None, "x": "left.price"}),
    "a foreign join": (lambda s, **k: s.prices.join(s.stock, **k), {"on": "of", "x": "left.price"}),
    "a table's group_by": (lambda s, column, **k: s.prices.group_by(column, **k).agg(n=wt.count()), {"column": "of", "x": "price"}),
    "a grouped table's agg": (lambda s, **k: s.prices.group_by("of").agg(**k), {"n": wt.count()}),
    "suppress": (lambda s, until: s.windowed().suppress(until), {"until": wt.until_window_closes()}),
    "until_time_limit": (lambda s, limit: s.windowed().suppress(wt.until_time_limit(limit)), {"limit": HOUR}),
    "tumbling": (lambda s, **k: wt.tumbling(**k), {"hours": 1, "grace": HOUR}),
    "hopping": (lambda s, **k: wt.hopping(**k), {"hours": 1, "every": timedelta(minutes=10), "grace": HOUR}),
    "sessions": (lambda s, **k: wt.sessions(**k), {"gap": HOUR, "grace": HOUR}),
    "sliding": (lambda s, **k: wt.sliding(**k), {"difference": HOUR, "grace": HOUR}),
    "unlimited": (lambda s, **k: wt.unlimited(**k), {"start": datetime(2020, 1, 1, tzinfo=UTC)}),
    "join_windows": (lambda s, **k: wt.join_windows(**k), {"before": HOUR, "after": HOUR, "grace": HOUR}),
    "minutes": (lambda s, number: wt.minutes(number), {"number": 5}),
    **{
        kind.__name__: (lambda s, of, kind=kind: s.grouped.agg(x=kind(of)), {"of": "a"})
        for kind in (wt.sum, wt.min, wt.max, wt.avg, wt.first, wt.last, wt.count_distinct, wt.collect_list, wt.collect_set)
    },
    "approx_count_distinct": (lambda s, of, **k: s.grouped.agg(x=wt.approx_count_distinct(of, **k)), {"of": "a", "relative_sd": 0.05}),
    "top_k": (lambda s, **k: s.grouped.agg(x=wt.top_k(**k)), {"k": 3, "by": "a", "value": "item"}),
    "aggregate": (lambda s, **k: s.grouped.agg(x=wt.aggregate(**k)), {"init": "CAST(0 AS BIGINT)", "add": "acc + a"}),
    "udf": (lambda s, **k: wt.udf(**k)(act), {"returns": "INT", "version": "1", "over": "arrow", "nulls": True}),
    "key_value_store": (lambda s, **k: wt.key_value_store(**k), {"value": "n INT", "key": "e STRING"}),
    "window_store": (lambda s, **k: wt.window_store(**k), {"value": "n INT", "retention": HOUR, "key": "e STRING"}),
    "versioned_store": (lambda s, **k: wt.versioned_store(**k), {"value": "n INT", "history": HOUR, "key": "e STRING"}),
    "not_null": (lambda s, **k: not_null(**k), {"column": "a", "severity": "warning"}),
    "between": (lambda s, **k: between(**k), {"column": "a", "low": 1, "high": 2}),
    "in_set": (lambda s, **k: in_set(**k), {"column": "a", "values": ["x"]}),
    "unique": (lambda s, column, **k: unique(column, **k), {"column": "a", "severity": "info"}),
    "row_count": (lambda s, **k: row_count(**k), {"low": 1, "high": 2}),
    "Suite": (lambda s, table, expectation: Suite(table, expectation), {"table": "shop.stock", "expectation": not_null("n")}),
}  # fmt: skip


@pytest.mark.parametrize("operator", CALLS)
def test_an_argument_of_another_kind_is_refused_in_our_words(operator: str) -> None:
    call, good = CALLS[operator]
    call(shop(), **good)
    for name in good:
        refused = 0
        for wrong in WRONG:
            try:
                call(shop(), **{**good, name: wrong})
            except WatertableError:
                refused += 1
        assert refused >= len(WRONG) // 2, f"{operator}({name}=): of {len(WRONG)} wrong values only {refused} are refused"


@pytest.mark.parametrize(
    ("define", "wanted"),
    [
        (lambda s: s.sales.dedupe(name="seen", within=HOUR, by=5), "dedupe: by= wants an expression, or several"),
        (lambda s: s.sales.join(s.prices, on=(), x="a"), "join: on= wants an expression, or several"),
        (lambda s: s.prices.join(s.stock, on=[5], x="left.price"), "join: on= wants an expression, or several"),
        (lambda s: s.sales.split().branch(["x"], "a > 1"), "branch: name= wants a text"),
        (lambda s: s.app.topic("new", value=5), "value: not a DDL column list: 5"),
        (lambda s: s.app.topic("new", value="a INT", headers=[]), "headers= wants a column for each header"),
        (lambda s: wt.window_store("n INT", retention=None), "how long it keeps wants a duration"),
        (lambda s: s.app.topic("new", value="d DECIMAL(a)"), "value: DECIMAL(A): wanted a precision, or a precision and a scale"),
        (lambda s: s.app.topic("new", value="d DECIMAL(9,2,3)"), "value: DECIMAL(9, 2, 3): wanted a precision"),
        (lambda s: s.app.topic("new", value="n INT NOT NULL"), "value: column 'n': nothing holds records to NOT NULL"),
        (lambda s: s.app.topic("new", value="n INT DEFAULT 5"), "value: column 'n': nothing holds records to DEFAULT 5"),
        (lambda s: s.app.topic("new", value="s STRUCT<a: INT NOT NULL>"), "value: column 'a': nothing holds records to NOT NULL"),
        (lambda s: s.app.topic("new", value="n ARRAY<STRING COLLATE UTF8_LCASE>"), "value: COLLATE UTF8_LCASE: texts are compared"),
        (lambda s: s.app.topic("new", value="n VARCHAR(2)"), "value: type 'VARCHAR(2)': nothing holds values to a length"),
        (lambda s: s.app.topic("new", value="t TIME"), "value: type 'TIME' is not supported"),
        (lambda s: s.prices.filter("price > 1").materialized_as("dear", description=5), "table 'dear': description= wants a text"),
        (lambda s: s.sales.select_key(first="item").dedupe(name="d", within=HOUR), "dedupe keeps what it makes in a column 'first'"),
        (lambda s: s.sales.with_columns(first="a").dedupe(name="d", within=HOUR, by="first"), "a column 'first', and the key has one, too"),
        (lambda s: s.sales.group_by(reduced="item").reduce(a="acc.a + a"), "reduce keeps what it makes in a column 'reduced'"),
        (lambda s: s.prices.group_by(Reduced="of").reduce(price="acc.price"), "reduce keeps what it makes in a column 'reduced'"),
        (lambda s: s.sales.filter("a > 1;"), "in 'a > 1;': wanted one expression, and no ;"),
        (lambda s: s.sales.filter_not("a > 1;"), "in 'a > 1;': wanted one expression, and no ;"),
        (lambda s: s.grouped.agg(n=wt.sum("a;")), "n=sum: in 'a;': wanted one expression, and no ;"),
        (lambda s: s.grouped.agg(n=wt.aggregate("0;", "acc")), "n=aggregate: in '0;': wanted one expression, and no ;"),
        (lambda s: s.grouped.reduce(a="acc.a;"), "reduce: in 'a=acc.a;': wanted one expression, and no ;"),
        (lambda s: s.prices.group_by("of").agg(n=wt.max("price;")), "n=max: in 'price;': wanted one expression, and no ;"),
        (lambda s: s.sales.map_values(d="CAST(a AS DECIMAL(a))"), "in 'CAST(a AS DECIMAL(a))': DECIMAL(A): wanted a precision"),
        (lambda s: wt.udf(returns="DECIMAL(x)"), "returns: DECIMAL(X): wanted a precision"),
        (lambda s: wt.key_value_store("d DECIMAL(x)"), "value: DECIMAL(X): wanted a precision"),
        (lambda s: s.grouped.count(["n"]), "column name ['n'] is not an identifier"),
        (lambda s: s.grouped.windowed_by(wt.tumbling(hours=1)).count({}), "column name {} is not an identifier"),
        (lambda s: s.prices.group_by("of").count(5), "column name 5 is not an identifier"),
        (lambda s: s.sales.map_values(x=doubled(5)), "is called with expressions, and those are texts; got 5"),
        (lambda s: s.sales.process(act, children={"c": "x INT", "d": "x INT"})["e"], "no child 'e'; children: c, d"),
        (lambda s: s.sales.split().branch("x", "a > 1").default_branch("y")["z"], "no branch 'z'; branches: x, y"),
        (lambda s: s.returns.select_key(a="why").to_table(), "a would be both a key and a value column: call the value's otherwise"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place_and_what_was_wanted(define: Callable[[Shop], Any], wanted: str) -> None:
    with pytest.raises(WatertableError) as refused:
        define(shop())
    assert wanted in str(refused.value)
    assert "test_wrong_arguments.py:" in str(refused.value)


@pytest.mark.parametrize("low", ["1", float("nan"), True, 1.5, [1]])
def test_a_number_of_rows_is_a_whole_number(low: Any) -> None:
    with pytest.raises(WatertableError, match="give at least one bound, a whole number"):
        row_count(low)
