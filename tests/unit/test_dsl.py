"""The definition layer: what can be written, and that what can't be right is refused where it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import watertable as wt
from tests import apps
from watertable.dsl.streams import Stream
from watertable.dsl.tables import Table
from watertable.errors import DefinitionError, DuplicateName, ExpressionError, SchemaError, UnknownColumn
from watertable.plan.fingerprints import canonical
from watertable.plan.nodes import Format
from watertable.plan.plan import Topology
from watertable.plan.purity import Purity, purity_of

HERE = "tests/unit/test_dsl.py"


@pytest.fixture
def app() -> wt.App:
    return wt.App("shop")


@pytest.fixture
def sales(app: wt.App) -> Stream:
    return app.topic("sales", key="sku STRING", value="qty INT, price DECIMAL(9,2), tags ARRAY<STRING>, at TIMESTAMP").stream()


@pytest.fixture
def items(app: wt.App) -> Table:
    return app.topic("items", key="sku STRING", value="name STRING, stock INT").table()


def test_the_retail_app_reads_as_in_the_readme_and_defines_five_tables_and_two_outputs() -> None:
    topology = apps.retail().topology()
    assert {t.name: t.columns.sql().replace("`", "") for t in topology.tables} == {
        "inventory": "stock_code STRING, on_hand BIGINT",
        "prices": "stock_code STRING, price DECIMAL(12,3)",
        "customers": "customer_id STRING, orders BIGINT, spend DECIMAL(33,3)",
        "revenue_hourly": "country STRING, window_start TIMESTAMP, window_end TIMESTAMP, revenue DECIMAL(33,3), lines BIGINT",
        "sold_daily": "stock_code STRING, window_start TIMESTAMP, window_end TIMESTAMP, sold BIGINT",
    }
    assert [sink.topic for sink in topology.sinks] == ["reorders", "price_changes"]
    assert [topic.name for topic in topology.topics] == ["receipts", "sales"]
    assert topology.streamed == {"inventory", "prices"}


def test_wordcount_is_five_lines() -> None:
    (counts,) = apps.wordcount().topology().tables
    assert counts.columns.sql() == "`word` STRING, `n` BIGINT"


def test_a_place_is_in_the_users_code_also_in_a_folder_that_begins_as_ours_does() -> None:
    file = f"{Path(wt.__file__).parent}_shop/app.py"
    named: dict[str, Any] = {"__name__": "watertable_shop.app"}
    exec(compile("import watertable as wt\n\n\napp = wt.App('shop')", file, "exec"), named)
    assert named["app"].location == f"{file.removeprefix(f'{Path.cwd()}/')}:4"


# -- what is refused, and where ----------------------------------------------------------------------------------------------------

ANY: Any = wt
"""The same, for what a type checker would refuse."""
Attempt = Callable[[wt.App, Stream, Table], object]


@pytest.mark.parametrize(
    ("attempt", "error", "says"),
    [
        pytest.param(lambda a, s, t: s.filter("quantity > 1"), UnknownColumn, "quantity", id="unknown column"),
        pytest.param(lambda a, s, t: s.filter("qty"), ExpressionError, "BOOLEAN", id="a condition that is no boolean"),
        pytest.param(lambda a, s, t: s.filter("qty >"), ExpressionError, "qty >", id="a condition that doesn't parse"),
        pytest.param(lambda a, s, t: s.filter("rand() > 0.5"), ExpressionError, "rand", id="a function that isn't pure"),
        pytest.param(lambda a, s, t: s.map_values(), DefinitionError, "no columns", id="map_values of nothing"),
        pytest.param(lambda a, s, t: s.map_values(**{"a b": "qty"}), SchemaError, "'a b' is not an identifier", id="a bad name"),
        pytest.param(lambda a, s, t: s.flat_map_values(x="qty"), ExpressionError, "exactly one ARRAY column", id="nothing to explode"),
        pytest.param(lambda a, s, t: s.flat_map_values(x="tags", y="tags"), ExpressionError, "explode=name", id="two arrays"),
        pytest.param(lambda a, s, t: s.flat_map_values(x="tags", explode="y"), ExpressionError, "arrays here: x", id="explodes another"),
        pytest.param(lambda a, s, t: s.select_key("qty + 1"), ExpressionError, "an expression needs a name", id="a key without a name"),
        pytest.param(lambda a, s, t: s.select_key(), DefinitionError, "wants columns", id="select_key of nothing"),
        pytest.param(lambda a, s, t: s.group_by(), DefinitionError, "wants columns", id="group_by of nothing"),
        pytest.param(lambda a, s, t: s.group_by("tags"), ExpressionError, "ARRAY<STRING>, which makes no key", id="an array as key"),
        pytest.param(lambda a, s, t: s.group_by(x="CAST(qty AS DOUBLE)"), ExpressionError, "DOUBLE, which makes no key", id="a double key"),
        pytest.param(lambda a, s, t: s.group_by("qty", qty="qty"), SchemaError, "named twice", id="a group twice"),
        pytest.param(lambda a, s, t: s.group_by("sku").agg(), DefinitionError, "at least one aggregate", id="agg of nothing"),
        pytest.param(lambda a, s, t: s.group_by("sku").agg(n="qty"), DefinitionError, "is not an aggregate", id="agg of a string"),
        pytest.param(lambda a, s, t: s.group_by("sku").agg(n=wt.sum("tags")), ExpressionError, "ARRAY<STRING> has no sum", id="wrong type"),
        pytest.param(lambda a, s, t: s.group_by("sku").agg(sku=wt.count()), DefinitionError, "both a key and a value", id="a column twice"),
        pytest.param(lambda a, s, t: s.group_by("sku").count().to_stream(), DefinitionError, "a table with a name", id="no name"),
        pytest.param(lambda a, s, t: s.group_by("sku").count().materialized_as("_x"), SchemaError, "the store's own", id="our name"),
        pytest.param(lambda a, s, t: s.group_by("sku").count().materialized_as("Changelog"), SchemaError, "the store's own", id="our log"),
        pytest.param(lambda a, s, t: a.topic("o", value="_WT_x INT"), SchemaError, "the store's own; rename it", id="our column"),
        pytest.param(lambda a, s, t: a.topic("o", value="a INT, A INT"), SchemaError, "'A' is 'a' to Spark", id="columns alike"),
        pytest.param(lambda a, s, t: a.topic("o", value="s STRUCT<x: INT, X: INT>"), SchemaError, "'X' is 'x' to Spark", id="fields alike"),
        pytest.param(lambda a, s, t: a.topic("o", value="s STRUCT<`a b`: INT>"), SchemaError, "'a b' of 's': in names", id="a blank"),
        pytest.param(lambda a, s, t: a.topic("o", value="KEY INT").table(), DefinitionError, "a key and a value column", id="as the key"),
        pytest.param(lambda a, s, t: s.map_values(a="qty", A="qty"), SchemaError, "'A' is 'a' to Spark", id="values alike"),
        pytest.param(lambda a, s, t: s.map_values(a="named_struct('x', 1, 'X', 2)"), ExpressionError, "'X' is 'x' to", id="made alike"),
        pytest.param(lambda a, s, t: s.with_columns(QTY="qty"), SchemaError, "'QTY' is 'qty' to Spark", id="a column alike"),
        pytest.param(lambda a, s, t: s.group_by("qty", QTY="qty"), SchemaError, "'QTY' is 'qty' to Spark", id="groups alike"),
        pytest.param(lambda a, s, t: s.group_by("sku").agg(n=wt.count(), N=wt.count()), SchemaError, "'N' is 'n' to Spark", id="alike"),
        pytest.param(lambda a, s, t: s.map_values(x="NULL"), ExpressionError, "x: NULL has no type", id="a NULL"),
        pytest.param(lambda a, s, t: s.map_values(x="named_struct('y', NULL)"), ExpressionError, "x: NULL has no type", id="a NULL inside"),
        pytest.param(
            lambda a, s, t: s.group_by("sku").agg(x=wt.last("NULL")).materialized_as("x"), ExpressionError, "x: NULL has no type", id="last"
        ),
        pytest.param(lambda a, s, t: s.group_by("sku").count().materialized_as("a-b"), SchemaError, "not an identifier", id="bad table"),
        pytest.param(lambda a, s, t: s.merge(s.map_values(x="qty")), SchemaError, "same value columns", id="merge of two shapes"),
        pytest.param(lambda a, s, t: s.merge(s.select_key("qty")), SchemaError, "same key columns", id="merge of two keys"),
        pytest.param(lambda a, s, t: s.merge(wt.App("other").topic("sales", value="qty INT").stream()), DefinitionError,
                     "merge wants streams of one app: 'shop' here, 'other' there", id="merge of two apps"),
        pytest.param(lambda a, s, t: (s.to("x"), a.topic("x", value="qty INT")), DefinitionError, "that is a loop", id="reads its own"),
        pytest.param(lambda a, s, t: a.topic("o", value="m ARRAY<MAP<INT, STRING>>"), SchemaError, "value: m holds a MAP<INT, STRING>",
                     id="a map that JSON hasn't"),
        pytest.param(lambda a, s, t: a.topic("o", key="m MAP<DATE, INT>", value="x INT"), SchemaError, "key: m holds", id="in a key"),
        pytest.param(lambda a, s, t: s.map_values(m="map(X'0A', qty)").to("x"), SchemaError,
                     "value: m holds a MAP<BINARY, INT>, and keys of JSON are text", id="a map that JSON can't be made of"),
        pytest.param(lambda a, s, t: s.map_values(l="array(map(X'0A', qty))").to("x"), SchemaError,
                     "value: l holds a MAP<BINARY, INT>", id="nor of this one, in a list"),
        pytest.param(lambda a, s, t: s.group_by(window_start="qty").windowed_by(wt.tumbling(hours=1)).count(), SchemaError,
                     "'window_start' is named twice", id="a group named as the window"),
        pytest.param(lambda a, s, t: s.with_columns(window_end="sku").dedupe(name="d", within=wt.days(1), by="window_end"), SchemaError,
                     "'window_end' is named twice", id="dedupe by a column named as the window"),
        pytest.param(lambda a, s, t: s.filter("(" * 300 + "qty > 1" + ")" * 300), ExpressionError, "nested too deeply", id="too deep"),
        pytest.param(lambda a, s, t: s.map_values(x="replace(" * 300 + "sku" + ", 'a', 'b')" * 300), ExpressionError, "nested too deeply",
                     id="too deep a call"),
        pytest.param(lambda a, s, t: s.expect("r", "qty > 0", on_fail="stop"), DefinitionError, "quarantine, drop, warn", id="verdict"),
        pytest.param(lambda a, s, t: s.split().branch("x", "qty > 0").branch("x", "TRUE"), DuplicateName, "branch 'x'", id="branch twice"),
        pytest.param(lambda a, s, t: s.to("a topic"), SchemaError, "no Kafka topic name", id="a bad topic"),
        pytest.param(lambda a, s, t: s.to("sales"), DefinitionError, "that is a loop", id="writes what it reads"),
        pytest.param(lambda a, s, t: (s.to("x"), s.to("x")), DuplicateName, "merge the streams first", id="writes a topic twice"),
        pytest.param(lambda a, s, t: s.to("x", value_format="string"), SchemaError, "wants one STRING column", id="a format that can't be"),
        pytest.param(lambda a, s, t: s.to("x", value_format="avro"), SchemaError, "choose json, string, bytes", id="an unknown format"),
        pytest.param(lambda a, s, t: t.filter("old.stock > 1"), UnknownColumn, "old", id="old rows of a table"),
        pytest.param(lambda a, s, t: t.map_values(sku="name"), DefinitionError, "both a key and a value", id="a value named as the key"),
        pytest.param(lambda a, s, t: t.join(t.map_values(x="name")), DefinitionError, "no columns", id="join of nothing"),
        pytest.param(lambda a, s, t: t.join(t, x="stock"), UnknownColumn, "left.stock", id="join: a bare name of a side"),
        pytest.param(lambda a, s, t: t.join(t, sku="left.name"), DefinitionError, "both a key and a value", id="join: the key as a value"),
        pytest.param(lambda a, s, t: t.join(s.group_by("qty").count(), n="right.count"), DefinitionError,
                     "keys of the same types: (sku STRING) here, (qty INT) there", id="join: other keys"),
        pytest.param(lambda a, s, t: s.group_by("sku").windowed_by(wt.tumbling(hours=1)).count().outer_join(
            s.group_by("sku").windowed_by(wt.tumbling(hours=2)).count(), n="right.count"), DefinitionError,
                     "outer_join wants the same windows: tumbling 1h here, tumbling 2h there", id="join: other windows"),
        pytest.param(lambda a, s, t: t.left_join(wt.App("b").topic("items", key="sku STRING", value="x INT").table(), x="right.x"),
                     DefinitionError, "left_join wants two tables of one app: 'shop' here, 'b' there", id="join: another app"),
        pytest.param(lambda a, s, t: s.group_by("sku").cogroup(n=wt.count()).cogroup(s.group_by("qty"), m=wt.count()), DefinitionError,
                     "cogroup wants keys of the same types: (sku STRING) here, (qty INT) there", id="cogroup: other keys"),
        pytest.param(lambda a, s, t: s.group_by("sku").cogroup(n=wt.count()).cogroup(s.group_by("sku"), n=wt.sum("qty")), DuplicateName,
                     "another stream already makes n", id="cogroup: one column of two streams"),
        pytest.param(lambda a, s, t: s.group_by("sku").cogroup(n=wt.count()).cogroup(s.group_by("sku")).agg(), DefinitionError,
                     "at least one aggregate", id="cogroup: a stream of nothing"),
        pytest.param(lambda a, s, t: s.group_by("sku").cogroup(x=wt.avg("qty")).cogroup(s.group_by("sku"), x__sum=wt.sum("qty")).agg(),
                     DefinitionError, "x__sum is also the name of a part that another aggregate keeps", id="cogroup: a part of another's"),
        pytest.param(lambda a, s, t: s.join(t, x="right.stock"), DefinitionError, "a table with a name", id="lookup: no name"),
        pytest.param(lambda a, s, t: s.left_join(s, x="right.qty"), DefinitionError, "left_join of two streams wants within=",
                     id="pairs: no window for a left one"),
        pytest.param(lambda a, s, t: s.join(s, x="right.qty"), DefinitionError, "join of two streams wants within=", id="pairs: no window"),
        pytest.param(lambda a, s, t: s.join(s, on="qty", within=wt.minutes(5), x="right.qty"), DefinitionError,
                     "streams pair by their keys: select_key before it", id="pairs: another key"),
        pytest.param(lambda a, s, t: s.join(s.select_key("qty"), within=wt.minutes(5), x="right.qty"), DefinitionError,
                     "join wants keys of the same types: (sku STRING) here, (qty INT) there", id="pairs: keys of other types"),
        pytest.param(lambda a, s, t: s.join(t.materialized_as("i"), within=wt.minutes(5), x="right.stock"), DefinitionError,
                     "within= is for streams", id="lookup: a window"),
        pytest.param(lambda a, s, t: s.join(a.topic("m", key="sku STRING", value="x MAP<INT, INT>").stream(), within=wt.days(1), q="qty"),
                     DefinitionError, "holds a MAP", id="pairs: a map"),
        pytest.param(lambda a, s, t: s.join(t.materialized_as("i"), on="qty", x="right.stock"), DefinitionError,
                     "join wants keys of the same types: (qty INT) here, (sku STRING) there", id="lookup: another key"),
        pytest.param(lambda a, s, t: s.left_join(t.materialized_as("i"), on=("sku", "qty"), x="right.stock"), DefinitionError,
                     "left_join wants keys of the same types", id="lookup: a longer key"),
        pytest.param(lambda a, s, t: s.join(t.materialized_as("i"), x="left.qty"), UnknownColumn, "left", id="lookup: a left side"),
        pytest.param(lambda a, s, t: a.topic("sales", value="x INT"), DuplicateName, "reuse that object", id="a topic twice"),
        pytest.param(lambda a, s, t: a.topic("m", value="x INT", archive="no"), DefinitionError, "must be True", id="archive"),
        pytest.param(lambda a, s, t: wt.App("topics"), SchemaError, "the archives of topics", id="an app in the archives' place"),
        pytest.param(lambda a, s, t: a.topic("x", value="x INTEGERS"), SchemaError, "INTEGERS", id="a bad DDL"),
        pytest.param(lambda a, s, t: a.topic("x", key="", value="x INT"), SchemaError, "key wants at least one column", id="no key"),
        pytest.param(lambda a, s, t: a.topic("x", value=" "), SchemaError, "value wants at least one column; value='body", id="no value"),
        pytest.param(lambda a, s, t: a.topic("x", value="x INT", timestamp="x"), SchemaError, "must name a TIMESTAMP column", id="no time"),
        pytest.param(lambda a, s, t: a.topic("x", value="x INT", timestamp="y"), SchemaError, "it has x INT", id="a time that isn't there"),
        pytest.param(lambda a, s, t: a.topic("x/y", value="x INT"), SchemaError, "no Kafka topic name", id="a slash in a topic"),
        pytest.param(lambda a, s, t: ANY.App(5), SchemaError, "app name 5 is not an identifier", id="kind: an app's name"),
        pytest.param(lambda a, s, t: a.topic("x", value="a INTT"), SchemaError, "it can't be read at 'INTT'", id="a misspelt type"),
        pytest.param(lambda a, s, t: a.topic("x", value="a INT COMMENT 'x"), SchemaError, "no", id="a text that isn't ended"),
        pytest.param(lambda a, s, t: ANY.App("b", owner="me"), DefinitionError, "team:name; got 'me'", id="kind: nobody's"),
        pytest.param(lambda a, s, t: ANY.App("b", owner="a@b.internal"), DefinitionError, "got 'a@b.internal'", id="kind: not Dagster's"),
        pytest.param(lambda a, s, t: ANY.App("b", owner=5), DefinitionError, "e-mail address or team:name; got 5", id="kind: an owner"),
        pytest.param(lambda a, s, t: a.topic(None, value="x INT"), SchemaError, "None is no Kafka topic name", id="kind: a topic's name"),
        pytest.param(lambda a, s, t: a.topic("x", value="x INT", headers="h"), SchemaError, "a column for each header", id="kind: headers"),
        pytest.param(lambda a, s, t: s.to("x", headers="h"), DefinitionError, "an expression for each header", id="kind: headers, written"),
        pytest.param(lambda a, s, t: a.topic("x", value="x INT", idle_after=5), DefinitionError, "wt.minutes(5); got 5", id="kind: idle"),
        pytest.param(lambda a, s, t: s.group_by(["qty"]), ExpressionError, "wanted a Spark SQL string; got list", id="kind: a group"),
        pytest.param(lambda a, s, t: s.group_by("sku").windowed_by("1h"), DefinitionError, "wants windows, such as", id="kind: windows"),
        pytest.param(lambda a, s, t: s.group_by("sku").cogroup(n=wt.count()).windowed_by(5), DefinitionError, "got 5", id="cogroup's"),
        pytest.param(lambda a, s, t: ANY.sum(None), DefinitionError, "wt.sum wants a Spark SQL string; got None", id="kind: argument"),
        pytest.param(lambda a, s, t: ANY.top_k(3, 5), DefinitionError, "wt.top_k wants a Spark SQL string; got 5", id="kind: an order"),
        pytest.param(lambda a, s, t: s.merge(t), DefinitionError, "merge wants streams; got a Table; a table's", id="kind: merge"),
        pytest.param(lambda a, s, t: t.join(s, x="right.qty"), DefinitionError, "join wants a table: make one of", id="kind: a stream"),
        pytest.param(lambda a, s, t: t.left_join("i", x="left.qty"), DefinitionError, "left_join wants a table", id="kind: a name"),
        pytest.param(lambda a, s, t: t.join(s, on="sku", x="left.qty"), DefinitionError, "join wants a table", id="kind: a stream, by on="),
        pytest.param(lambda a, s, t: s.group_by("sku").cogroup(n=wt.count()).cogroup(s, m=wt.count()), DefinitionError,
                     "cogroup wants a grouped stream: stream.group_by(...); got a Stream", id="kind: cogroup"),
        pytest.param(lambda a, s, t: s.map(key="sku", value={"n": "qty"}), DefinitionError,
                     "key= wants a name for each: key={'name': 'expression'}; got 'sku'", id="kind: a key"),
        pytest.param(lambda a, s, t: s.process(ANY.udf, children=ANY.hours.__name__), DefinitionError,
                     "children={'name': 'column TYPE'}; got 'hours'", id="kind: children"),
        pytest.param(lambda a, s, t: s.process(ANY.udf, stores=["seen"]), DefinitionError,
                     "stores={'name': wt.key_value_store('column TYPE')}; got ['seen']", id="kind: stores"),
        pytest.param(lambda a, s, t: s.join(s, within=5, q="left.qty"), DefinitionError, "or a duration; got 5", id="a join's window"),
        pytest.param(lambda a, s, t: t.materialized_as(5), SchemaError, "table name 5 is not an identifier", id="kind: a table's name"),
        pytest.param(lambda a, s, t: t.materialized_as("i", history=5), DefinitionError, "history= wants a duration", id="kind: a history"),
        pytest.param(lambda a, s, t: t.ttl(5), DefinitionError, "a time to live wants a duration", id="kind: a time to live"),
        pytest.param(lambda a, s, t: ANY.until_time_limit(5), DefinitionError, "a time limit wants a duration", id="kind: a time limit"),
        pytest.param(lambda a, s, t: ANY.window_store("n INT", retention=5), DefinitionError, "keeps wants a duration", id="kind: keeps"),
        pytest.param(lambda a, s, t: ANY.tumbling(hours=1, grace=5), DefinitionError, "grace= wants a duration", id="kind: a grace"),
        pytest.param(lambda a, s, t: ANY.hopping(hours=1, every=5), DefinitionError, "every= wants a duration", id="kind: an advance"),
        pytest.param(lambda a, s, t: ANY.sessions(gap=5), DefinitionError, "gap= wants a duration", id="kind: a gap"),
        pytest.param(lambda a, s, t: ANY.sliding(difference=5), DefinitionError, "difference= wants a duration", id="kind: a difference"),
        pytest.param(lambda a, s, t: ANY.join_windows(before=5), DefinitionError, "before= wants a duration", id="kind: a bound"),
        pytest.param(lambda a, s, t: wt.tumbling(), DefinitionError, "a window's size must be longer than zero", id="no window"),
        pytest.param(lambda a, s, t: wt.hopping(hours=1, every=wt.days(1)), DefinitionError, "windows must advance by", id="leaps"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused_where_it_is_written(
    app: wt.App, sales: Stream, items: Table, attempt: Attempt, error: type[DefinitionError], says: str
) -> None:
    line = attempt.__code__.co_firstlineno
    with pytest.raises(error) as raised:
        attempt(app, sales, items)
    assert str(raised.value).startswith(f"{HERE}:{line}: "), raised.value
    assert says in str(raised.value)


def test_a_comment_may_end_an_expression_wherever_there_is_one_and_changes_no_fingerprint() -> None:
    def made(end: str) -> str:
        app = wt.App("notes")
        notes = app.topic("notes", key="k STRING", value="n INT").stream()
        notes.filter_not(f"n > 3{end}").split().branch("some", f"n > 1{end}").branch("few", f"n > 0{end}").default_branch()["few"].to("few")
        table = notes.group_by_key().agg(
            n=wt.count(f"n{end}"), total=wt.sum(f"n{end}"), mean=wt.avg(f"n{end}"), top=wt.top_k(2, f"n{end}", f"n{end}"),
            folded=wt.aggregate(f"0{end}", f"acc + n{end}"), distinct=wt.approx_count_distinct(f"n{end}"),
        )  # fmt: skip
        rows = table.materialized_as("of_stream").filter_not(f"n > 5{end}").materialized_as("of_table").group_by(n=f"n{end}")
        rows.agg(total=wt.sum(f"total{end}"), last=wt.last(f"total{end}")).materialized_as("of_rows")
        return app.fingerprint

    assert made("") == made(" -- 'said (here") == made(" /* and ) here */")


def test_a_second_table_of_a_name_is_refused_with_both_places(sales: Stream) -> None:
    counts = sales.group_by("sku").count()
    counts.materialized_as("counts")
    with pytest.raises(DuplicateName, match=rf"^{HERE}:\d+: table 'counts' is already defined at {HERE}:\d+$"):
        counts.materialized_as("counts")
    with pytest.raises(DuplicateName, match=rf"^{HERE}:\d+: table 'counts' is already defined at {HERE}:\d+: Spark, and many"):
        counts.materialized_as("Counts")


def test_a_table_keyed_by_what_makes_no_key_is_refused(app: wt.App) -> None:
    topic = app.topic("odd", key="parts ARRAY<STRING>", value="x INT")
    with pytest.raises(ExpressionError, match=r"parts is a ARRAY<STRING>, which makes no key"):
        topic.table()
    with pytest.raises(ExpressionError, match=r"parts is a ARRAY<STRING>, which makes no key"):
        topic.stream().to_table()


def test_a_table_whose_key_and_value_share_a_column_is_refused(app: wt.App) -> None:
    with pytest.raises(DefinitionError, match=r"sku would be both a key and a value column: call the value"):
        app.topic("twice", key="sku STRING", value="sku STRING, n INT").table()


def test_an_app_that_keeps_and_publishes_nothing_is_refused_where_it_begins() -> None:
    app = wt.App("empty")
    with pytest.raises(DefinitionError, match=rf"^{HERE}:\d+: app 'empty' has no table and no output"):
        app.topology()


def test_the_changes_of_a_table_are_no_stream_to_make_a_table_of(items: Table) -> None:
    changes = items.materialized_as("items").to_stream()
    with pytest.raises(DefinitionError, match="already a table's changes"):
        changes.to_table()


def test_changes_and_records_do_not_merge(sales: Stream) -> None:
    counted = sales.group_by("sku").count("qty").materialized_as("counted").to_stream()
    records = sales.map_values(qty="CAST(qty AS BIGINT)")
    with pytest.raises(SchemaError, match="can't mix Changes with records"):
        counted.merge(records)


# -- what names mean -----------------------------------------------------------------------------------------------------------------


def test_a_bare_name_is_the_values_before_the_keys(app: wt.App) -> None:
    both = app.topic("both", key="sku STRING, region STRING", value="sku STRING, n INT").stream()
    columns = dict(both.map_values(a="sku", b="key.sku", c="region").node.columns)  # type: ignore[union-attr]
    assert {name: expr.refs for name, expr in columns.items()} == {"a": ("value.sku",), "b": ("key.sku",), "c": ("key.region",)}


def test_a_change_has_old_and_new_and_a_bare_name_is_the_new(items: Table) -> None:
    changes = items.materialized_as("items").to_stream()
    condition = changes.filter("old.stock > stock AND new.stock < 5").node.condition  # type: ignore[union-attr]
    assert condition.refs == ("new.stock", "old.stock")
    with pytest.raises(UnknownColumn, match="value"):
        changes.filter("value.stock > 1")


def test_a_windowed_tables_changes_know_their_window(sales: Stream) -> None:
    hourly = sales.group_by("sku").windowed_by(wt.tumbling(hours=1)).count().materialized_as("hourly").to_stream()
    assert hourly.map_values(at="window.start", n="new.count").value.sql() == "`at` TIMESTAMP, `n` BIGINT"
    with pytest.raises(UnknownColumn, match="window"):
        sales.filter("window.start IS NULL")
    with pytest.raises(UnknownColumn, match="window"):
        hourly.select_key("sku").filter("window.start IS NULL")


def test_with_columns_adds_and_replaces_and_keeps_the_order(sales: Stream) -> None:
    assert sales.with_columns(qty="-qty", total="qty * price").value.names == ("qty", "price", "tags", "at", "total")


def test_a_key_of_one_string_is_text_and_any_other_json(app: wt.App) -> None:
    assert app.topic("a", value="x INT").topic.key_format is Format.STRING
    assert app.topic("b", key="k BINARY", value="x INT").topic.key_format is Format.BYTES
    assert app.topic("c", key="k INT", value="x INT").topic.key_format is Format.JSON
    assert app.topic("d", key="k STRING, l STRING", value="x INT").topic.key_format is Format.JSON
    assert app.topic("e", value="line STRING", value_format="string").topic.value_format is Format.STRING


def test_branches_take_each_record_once(sales: Stream) -> None:
    branches = sales.split().branch("many", "qty > 10").branch("some", "qty > 5").default_branch("few")
    assert list(branches) == ["many", "some", "few"]


# -- arrival ---------------------------------------------------------------------------------------------------------------------------


def test_only_changes_of_rows_that_several_partitions_may_feed_depend_on_arrival(app: wt.App, sales: Stream, items: Table) -> None:
    by_key = sales.group_by_key().count().materialized_as("by_key").to_stream()
    by_other = sales.group_by("qty").count().materialized_as("by_other").to_stream()
    of_topic = items.materialized_as("items").to_stream()
    rekeyed = sales.select_key("qty").group_by_key().count().materialized_as("rekeyed").to_stream()
    of_two = sales.merge(app.topic("more", key="sku STRING", value="qty INT, price DECIMAL(9,2), tags ARRAY<STRING>, at TIMESTAMP")
                         .stream()).group_by_key().count().materialized_as("of_two").to_stream()  # fmt: skip
    purity = {name: purity_of(s.node) for name, s in
              [("by_key", by_key), ("by_other", by_other), ("of_topic", of_topic), ("rekeyed", rekeyed), ("of_two", of_two)]}  # fmt: skip
    assert purity == {"by_key": Purity.PURE, "by_other": Purity.ARRIVAL, "of_topic": Purity.PURE, "rekeyed": Purity.ARRIVAL,
                      "of_two": Purity.ARRIVAL}  # fmt: skip


def test_arrival_is_inherited_by_what_follows(sales: Stream) -> None:
    changes = sales.group_by("qty").agg(n=wt.count()).materialized_as("by_qty").to_stream()
    table = changes.group_by(big="n > 1").count().materialized_as("bigs")
    assert purity_of(table.node) is Purity.ARRIVAL


def test_a_grouped_table_does_not_depend_on_the_order_of_its_rows_changes(sales: Stream) -> None:
    by_qty = sales.group_by("qty").agg(n=wt.count()).materialized_as("by_qty")
    grouped = by_qty.group_by("n").count().materialized_as("grouped")
    assert purity_of(grouped.node) is Purity.PURE
    assert purity_of(grouped.to_stream().node) is Purity.ARRIVAL
    assert purity_of(grouped.group_by("count").count("n").node) is Purity.PURE


def test_a_table_of_a_table_that_depends_on_arrival_does_so_too(sales: Stream) -> None:
    changes = sales.group_by("qty").agg(n=wt.count()).materialized_as("by_qty").to_stream()
    moves = changes.group_by(big="n > 1").count().materialized_as("moves")
    assert purity_of(moves.group_by("count").count("n").node) is Purity.ARRIVAL


def test_a_column_named_like_a_part_that_another_aggregate_keeps_is_refused(sales: Stream, items: Table) -> None:
    with pytest.raises(DefinitionError, match=rf"^{HERE}:\d+: a__count is also the name of a part"):
        sales.group_by_key().agg(a=wt.avg("qty"), a__count=wt.count())
    with pytest.raises(DefinitionError, match="__rows is also the name of a part"):
        items.materialized_as("items").group_by("name").agg(__rows=wt.count())


# -- grouped tables --------------------------------------------------------------------------------------------------------------------


def test_a_table_without_a_name_is_not_grouped(items: Table) -> None:
    with pytest.raises(DefinitionError, match=rf"^{HERE}:\d+: group_by wants a table with a name: put \.materialized_as\(name\) before it"):
        items.group_by("name")


def test_sums_of_floating_point_are_no_sums_to_leave(app: wt.App) -> None:
    weights = app.topic("weights", key="k STRING", value="g STRING, w DOUBLE")
    rows = weights.table().materialized_as("rows")
    with pytest.raises(ExpressionError, match=rf"^{HERE}:\d+: s=sum\('w'\): rows leave a sum as they came only if it is exact"):
        rows.group_by("g").agg(s=wt.sum("w"))
    assert rows.group_by("g").agg(least=wt.min("w"), s=wt.sum("CAST(w AS DECIMAL(9,2))")).value.names == ("least", "s")


def test_what_reads_sums_of_floating_point_could_not_leave_as_it_came_and_all_else_can(app: wt.App) -> None:
    weights = app.topic("weights", key="k STRING", value="g STRING, w DOUBLE").stream()
    sums = weights.group_by("g").agg(s=wt.sum("w"), low=wt.min("w"), n=wt.count()).materialized_as("sums")
    refused = pytest.raises(DefinitionError, match=rf"^{HERE}:\d+: (group_by|join): [st] of [a-z]+ adds up floating point.*leave it out")
    kinds = app.topic("kinds", key="n BIGINT", value="name STRING").table().materialized_as("kinds")
    mapped = sums.map_values(t="s / n", n="n", low="low").materialized_as("mapped")
    heavy = sums.filter("s > 1").map_values(n="n").materialized_as("heavy")
    both = sums.join(mapped, n="left.n", low="right.low", t="right.t").materialized_as("both")
    for read in (
        lambda: sums.group_by(heavy="s > 1"),
        lambda: sums.group_by("n").agg(most=wt.max("s")),
        lambda: sums.group_by("n").agg(most=wt.top_k(2, "s", "n")),
        lambda: sums.group_by("n").reduce(n="acc.n + n", low="IF(s > 1, acc.low, low)"),
        lambda: mapped.group_by("n").agg(all=wt.collect_list("t")),
        lambda: heavy.group_by("n"),
        lambda: both.group_by("n").agg(t=wt.count("t")),
        lambda: sums.join(kinds, on="n", s="left.s", name="right.name"),
        lambda: sums.join(kinds, on="CAST(s AS BIGINT)", n="left.n", name="right.name"),
    ):
        with refused:
            read()
    for table in (sums, mapped, both):
        assert table.group_by("n").agg(m=wt.sum("n"), low=wt.min("low"), all=wt.collect_list("low")).value.names == ("m", "low", "all")
    assert sums.join(kinds, on="n", low="left.low", name="right.name").value.names == ("low", "name")


def test_a_grouped_table_is_refused_what_a_grouped_stream_is(items: Table) -> None:
    rows = items.materialized_as("items")
    with pytest.raises(DefinitionError, match="agg wants at least one aggregate"):
        rows.group_by("name").agg()
    with pytest.raises(DefinitionError, match="stock would be both a key and a value column"):
        rows.group_by("stock").count("stock")
    with pytest.raises(UnknownColumn, match="nope"):
        rows.group_by("nope")
    with pytest.raises(ExpressionError, match="can't be told from others among rows"):
        rows.group_by("name").agg(m=wt.last("map('a', stock)"))


# -- cold ------------------------------------------------------------------------------------------------------------------------------


def test_defining_an_app_imports_no_spark_and_no_kafka_client() -> None:
    code = "import sys; from tests import apps; apps.retail().topology().fingerprint; print([m for m in sys.modules if re.match(p, m)])"
    setup = "import re; p = r'(pyspark|py4j|confluent_kafka|dagster|great_expectations|delta)(\\.|$)'; "
    done = subprocess.run([sys.executable, "-c", setup + code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_same_definition_twice_is_one_topology() -> None:
    def define() -> Topology:
        return apps.retail().topology()

    assert define() == define()
    assert not re.search(r"\.py", repr(canonical(define().tables[0].node)))
