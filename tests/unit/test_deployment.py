"""New code against old: what rolls in, what is new, what would make the state wrong; and that what is recorded of a plan says the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import watertable as wt
from tests.apps import retail
from watertable.dsl.streams import Stream
from watertable.dsl.tables import Table
from watertable.errors import FormatError
from watertable.plan.aggregates import Aggregation
from watertable.plan.deployment import Deployment, Kind, Outline, classify
from watertable.plan.legible import legible
from watertable.plan.plan import Topology
from watertable.schema import Schema
from watertable.sql.expressions import Scope, parse, window_schema

VALUE = "qty BIGINT, price DECIMAL(12,3), at TIMESTAMP"


def shop(
    *,
    records: Callable[[Stream], Stream] = lambda s: s,
    rows: Callable[[Table], Table] = lambda t: t,
    value: str = VALUE,
    total: str = "qty",
    more: bool = False,
    grace: int = 10,
    out: str | None = None,
    archive: bool = False,
) -> Topology:
    app = wt.App("shop")
    sales = records(app.topic("sales", key="item STRING", value=value, timestamp="at", archive=archive).stream())
    stock = sales.group_by("item").agg(on_hand=wt.sum(total), **({"n": wt.count()} if more else {}))
    rows(stock).materialized_as("stock")
    hours = sales.group_by("item").windowed_by(wt.tumbling(hours=1, grace=wt.minutes(grace)))
    hours.agg(n=wt.count()).materialized_as("hourly")
    if out:
        sales.filter(out).to("loud")
    return app.topology()


def stock(found: Deployment) -> tuple[Kind, str]:
    return next((c.kind, c.reason) for c in found.changes if c.name == "stock")


def test_the_same_code_is_the_same_in_every_part() -> None:
    found = classify(shop(), shop())
    assert [(c.name, c.kind, c.reason) for c in found.changes] == [("stock", Kind.SAME, "unchanged"), ("hourly", Kind.SAME, "unchanged")]
    assert found.kind is Kind.SAME
    assert found.rewind is None


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (shop(records=lambda s: s.filter("qty > 0")), "a filter was put in"),
        (shop(total="qty * 2"), "the argument of on_hand was `value.qty` and is `(value.qty * 2L)`"),
        (shop(more=True), "the aggregates of the aggregate were on_hand and are on_hand, n"),
        (shop(value=VALUE.replace("qty BIGINT", "qty INT")), "of the value of topic sales, qty was BIGINT and is INT"),
    ],
)
def test_other_state_is_breaking_and_names_what_differs(new: Topology, says: str) -> None:
    found = classify(shop(), new)
    kind, reason = stock(found)
    assert kind is Kind.BREAKING
    assert says in reason
    assert found.kind is Kind.BREAKING
    assert found.rewind == "--to earliest"


def test_a_condition_that_changes_is_written_out() -> None:
    old, new = shop(records=lambda s: s.filter("qty > 0")), shop(records=lambda s: s.filter("qty > 1"))
    assert stock(classify(old, new))[1] == "the condition of the filter was `(value.qty > 0L)` and is `(value.qty > 1L)`"
    assert stock(classify(old, shop()))[1] == "the filter was taken out"
    assert stock(classify(shop(), shop(records=lambda s: s.expect("sane", "qty > 0"))))[1] == "an expect was put in"


def test_a_duration_that_changes_is_written_in_the_units_people_use() -> None:
    assert classify(shop(), shop(grace=20)).changes[1].reason == "the grace of the time windows was 10m and is 20m"


def kept(aggregate: Aggregation) -> Topology:
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value="qty BIGINT, note STRING").stream()
    sales.group_by_key().agg(x=aggregate).materialized_as("stock")
    return app.topology()


def test_how_many_values_are_kept_is_a_number_and_no_duration() -> None:
    assert stock(classify(kept(wt.top_k(2, "qty")), kept(wt.top_k(3, "qty"))))[1] == "the limit of x was 2 and is 3"


def test_a_time_to_live_that_changes_is_what_was_written() -> None:
    def lives(minutes: int) -> Topology:
        app = wt.App("shop")
        prices = app.topic("prices", key="item STRING", value="price BIGINT").table().materialized_as("prices")
        prices.ttl(wt.minutes(minutes)).materialized_as("stock")
        return app.topology()

    assert stock(classify(lives(1), lives(2)))[1] == "the gap of the lifetimes was 1m and is 2m"


def test_what_a_top_k_ranks_by_is_written_out_as_markdown_takes_it() -> None:
    reason = stock(classify(kept(wt.top_k(2, "qty", "note")), kept(wt.top_k(2, "-qty", "note"))))[1]
    assert "named_struct('by', value.qty, 'value', value.note) ELSE CAST(NULL AS STRUCT<by: BIGINT, value: STRING>) END` and is `" in reason
    assert reason.count("`") == 4


def test_a_function_of_the_users_that_computes_something_else_is_named() -> None:
    def scored(version: str) -> Topology:
        @wt.udf(returns="BIGINT", version=version)
        def score(qty: Any) -> Any:
            return qty

        return shop(records=lambda s: s.filter(f"{score}(qty) > 0"))

    reason = stock(classify(scored("1"), scored("2")))[1]
    assert reason == "the condition of the filter: what score computes has changed"


READ = Scope(
    {
        "value": Schema.parse("a INT, b STRING, d DECIMAL(9,2), t TIMESTAMP, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, INT>"),
        "key": Schema.parse("k STRING"), "window": window_schema(),
    },
    bare=("value", "key"),
)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "a > 1", "a * 2 + d", r"b = 'x: y) \'(z'", "NOT (a > 1 AND b IS NOT NULL)", "CASE WHEN a > 1 THEN 2 ELSE 3 END", "-a",
        "CAST(b AS DECIMAL(9,2))", "try_cast(b AS INT)", "a IN (1, 2)", "l[0].x", "m['k']", "transform(l, x -> x.x + 1)", "X'00ff'",
        "transform(l, (x, i) -> x.x + i)", "t + INTERVAL 1 HOUR", "t - INTERVAL 2 MONTHS", "date_trunc('hour', t)", "DATE '2026-01-01'",
        "value", "a <=> 1", "nullif(a, 0)", "d > 1.5", "length(b) < 3", "a = 5L", "window.start", "NULL", "year(t)",
        "named_struct('a', a, 'b', l).b[0].x < 2", "b LIKE 'a%'", "CASE WHEN a > 1 THEN named_struct('a', a, 'b', d) END",
    ],
)  # fmt: skip
def test_an_expression_is_read_from_its_canonical_form_as_describe_shows_it(text: str) -> None:
    expr = parse(text, READ, "here")
    assert legible(expr.canonical) == expr.sql.replace("`", "")


def test_a_call_of_the_users_own_is_read_too_and_what_cannot_be_read_stays_as_it_is() -> None:
    udf = "f@STRUCT<`first`: STRING>/pandas/nulls"
    for known in ("closure 0123456789abcdef", "version 1", "version may 1"):
        assert (
            legible(f"x1:(> (field ({udf}/{known} value.a:INT (g@INT/arrow/version 2 value.b:INT)) 'x':STRING) 1:INT)")
            == "(f(value.a, g(value.b)).x > 1)"
        )
    for form in ("x1:(> value.a:INT", "x1:", "x1:(> value.a:INT 1:INT) more"):
        assert legible(form) == form


def test_only_the_tables_below_a_change_are_breaking() -> None:
    kinds = {c.name: c.kind for c in classify(shop(), shop(grace=20)).changes}
    assert kinds == {"stock": Kind.SAME, "hourly": Kind.BREAKING}


def test_other_rows_of_the_same_state_roll_in() -> None:
    shown = shop(rows=lambda t: t.map_values(on_hand="on_hand", short="on_hand < 3"))
    assert stock(classify(shop(), shown)) == (Kind.SAME, "the same state, other columns shown of it: short is new")
    three, four = (shop(rows=lambda t, n=n: t.filter(f"on_hand < {n}")) for n in (3, 4))  # type: ignore[misc]
    assert stock(classify(three, four)) == (Kind.SAME, "the same state, other rows shown of it")
    assert classify(three, four).rewind is None


def test_a_first_filter_over_sums_is_breaking_as_hidden_states_have_a_place_of_their_own() -> None:
    filtered = shop(rows=lambda t: t.filter("on_hand < 3"))
    for old, new in ((shop(), filtered), (filtered, shop())):
        kind, reason = stock(classify(old, new))
        assert kind is Kind.BREAKING
        assert "hides" in reason


def test_a_filter_over_whole_rows_may_refuse_more_but_not_less_as_what_it_refused_is_not_kept() -> None:
    def shown(*conditions: str, mapped: bool = False) -> Topology:
        app = wt.App("shop")
        table = app.topic("sales", key="item STRING", value=VALUE).table()
        for condition in conditions:
            table = table.filter(condition)
        (table.map_values(qty="qty", twice="qty * 2") if mapped else table).materialized_as("stock")
        return app.topology()

    for old, new in (
        (shown(), shown("qty > 1")),
        (shown("qty > 1"), shown("qty > 1", "qty > 2")),
        (shown("qty > 1"), shown("qty > 1", mapped=True)),
        (shown("qty > 1", mapped=True), shown("qty > 1")),
    ):
        assert stock(classify(old, new))[0] is Kind.SAME
    for old, new in ((shown("qty > 1"), shown()), (shown("qty > 1"), shown("qty > 2")), (shown("qty > 1", "qty > 2"), shown("qty > 1"))):
        kind, reason = stock(classify(old, new))
        assert kind is Kind.BREAKING
        assert "were not kept" in reason


def test_what_changes_no_record_rolls_in() -> None:
    for new in (
        shop(records=lambda s: s.peek("seen")),
        shop(records=lambda s: s.expect("sane", "qty < 1000", on_fail="warn")),
        shop(archive=True),
        shop(value=VALUE + ", note STRING"),
        shop(value="note STRING, " + VALUE),
    ):
        kind, reason = stock(classify(shop(), new))
        assert kind is Kind.SAME, reason
        assert "changes no record" in reason
    assert stock(classify(shop(), shop(records=lambda s: s.expect("sane", "qty < 1000", on_fail="drop"))))[0] is Kind.BREAKING


def test_what_rolls_in_and_refuses_some_records_says_which() -> None:
    same = "the same state: what changed above it changes no record that it counts"
    plain, ruled, other = shop(), *(shop(records=lambda s, n=n: s.expect("ratio", f"{n} / qty > 1", on_fail="warn")) for n in (10, 20))  # type: ignore[misc]
    put_in = "; but from here on what the condition of the rule ratio fails on goes to quarantine"
    taken_out = "; but from here on what the condition of the rule ratio failed on goes on"
    for old, new, but in (
        (plain, ruled, put_in),
        (ruled, plain, taken_out),
        (ruled, other, put_in + taken_out),
        (plain, shop(archive=True), ""),
        (plain, shop(records=lambda s: s.peek("seen")), ""),
        (
            plain,
            shop(value=VALUE + ", note INT, more DATE"),
            "; but from here on what can't be read as more, note of topic sales goes to quarantine",
        ),
    ):
        assert stock(classify(old, new)) == (Kind.SAME, same + but)
        assert stock(classify(Outline.from_json(Outline.of(old).to_json()), new)) == (Kind.SAME, same + but)

    def headed(rule: bool = False, **headers: str) -> Topology:
        app = wt.App("shop")
        stream = app.topic("sales", key="item STRING", value="qty INT", headers=headers).stream()
        stream.group_by("item").agg(n=wt.count()).materialized_as("stock")
        (stream.expect("ratio", "1 / qty > 0", on_fail="warn") if rule else stream).to("out")
        return app.topology()

    assert stock(classify(headed(), headed(h="trace STRING")))[1].endswith("read as trace of topic sales goes to quarantine")
    assert classify(headed(), headed(rule=True)).changes[-1].reason == f"unchanged{put_in}"


def test_a_new_column_of_a_topic_breaks_a_table_that_keeps_whole_records() -> None:
    def table(value: str) -> Topology:
        app = wt.App("shop")
        app.topic("items", key="item STRING", value=value).table().materialized_as("stock")
        return app.topology()

    kind, reason = stock(classify(table("price INT"), table("price INT, note STRING")))
    assert kind is Kind.BREAKING
    assert "laid out otherwise" in reason

    def deduped(value: str, records: Callable[[Stream], Stream] = lambda s: s) -> Topology:
        app = wt.App("shop")
        items = records(app.topic("items", key="item STRING", value=value).stream())
        items.dedupe(name="stock", within=wt.minutes(1)).to("once")
        return app.topology()

    assert stock(classify(deduped("price INT"), deduped("price INT, note STRING")))[0] is Kind.BREAKING
    priced = [deduped(value, lambda s: s.map_values(price="price")) for value in ("price INT", "price INT, note STRING")]
    assert stock(classify(*priced))[0] is Kind.SAME


def test_tables_and_outputs_come_and_go() -> None:
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value=VALUE, timestamp="at").stream()
    sales.group_by("item").agg(on_hand=wt.sum("qty")).materialized_as("stock")
    sales.group_by("item").agg(top=wt.max("price")).materialized_as("dearest")
    found = classify(shop(out="qty > 9"), app.topology())
    assert {c.name: (c.kind, c.is_topic) for c in found.changes} == {
        "stock": (Kind.SAME, False), "dearest": (Kind.ADDITIVE, False), "hourly": (Kind.REMOVED, False), "loud": (Kind.REMOVED, True),
    }  # fmt: skip
    assert found.kind is Kind.ADDITIVE
    assert found.rewind == "--table dearest"
    only_out = classify(shop(), shop(out="qty > 9"))
    assert only_out.kind is Kind.ADDITIVE
    assert only_out.rewind is None
    other = classify(shop(out="qty > 9"), shop(out="qty > 8"))
    assert other.kind is Kind.SAME
    assert "publishes by other code" in other.changes[-1].reason


def test_what_is_recorded_of_a_plan_classifies_as_the_plan_does() -> None:
    for old, new in ((shop(), shop(more=True)), (shop(), shop()), (retail().topology(), retail().topology())):
        recorded = Outline.from_json(Outline.of(old).to_json())
        assert recorded.fingerprint == old.fingerprint
        assert classify(recorded, new) == classify(old, new)
    with pytest.raises(FormatError, match="no outline"):
        Outline.from_json("{}")


def test_a_plan_is_outlined_in_letters_and_digits() -> None:
    outline = Outline.of(retail().topology(), before=Outline.of(shop()))
    packed = outline.packed()
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", packed)
    assert len(packed) < 6_000
    assert Outline.unpack(packed).to_json() == outline.to_json()
    assert set(outline.gone) == {"stock", "hourly"}
    with pytest.raises(FormatError, match="no outline"):
        Outline.unpack("AAAA")


def test_a_table_that_comes_back_is_compared_with_what_it_was() -> None:
    app = wt.App("shop")
    app.topic("sales", key="item STRING", value=VALUE, timestamp="at").stream().to("loud")
    without = Outline.of(app.topology(), before=Outline.of(shop()))
    kinds = {c.name: (c.kind, c.reason) for c in classify(without, shop()).changes}
    assert kinds["stock"] == (Kind.ADDITIVE, "kept again: it lacks what came meanwhile, until it is rebuilt (rewind --table)")
    assert stock(classify(without, shop(more=True)))[0] is Kind.BREAKING


def test_a_table_that_comes_back_is_compared_with_all_that_it_was_where_rewinds_lead_to_several() -> None:
    app = wt.App("shop")
    app.topic("sales", key="item STRING", value=VALUE, timestamp="at").stream().to("loud")
    one, two = (Outline.of(app.topology(), before=Outline.of(code)) for code in (shop(), shop(total="qty * 2")))
    both = Outline.unpack(two.also_after(one).packed())
    assert both == two.also_after(one) == two.also_after(one).also_after(one)
    assert {name: len(found) for name, found in both.gone.items()} == {"stock": 2, "hourly": 1}
    for code in (shop(), shop(total="qty * 2")):
        assert stock(classify(both, code))[0] is Kind.BREAKING
    first = json.loads(one.to_json())
    assert Outline.from_json(json.dumps(first | {"gone": {name: found[0] for name, found in first["gone"].items()}})) == one


def test_a_new_table_of_others_rows_is_filled_before_the_code_goes_on() -> None:
    def grouped(*groups: str) -> Topology:
        app = wt.App("shop")
        sales = app.topic("sales", key="item STRING", value=VALUE, timestamp="at").stream()
        stock = sales.group_by("item").agg(on_hand=wt.sum("qty")).materialized_as("stock")
        for name in groups:
            stock.group_by("on_hand").agg(items=wt.count()).materialized_as(name)
        if groups:
            new = sales.group_by("price").agg(n=wt.count()).materialized_as("by_price")
            new.group_by("n").agg(prices=wt.count()).materialized_as("by_n")
        return app.topology()

    found = classify(grouped(), grouped("levels"))
    assert {c.name: c.kind for c in found.changes} == {
        "stock": Kind.SAME, "levels": Kind.UNFILLED, "by_price": Kind.ADDITIVE, "by_n": Kind.ADDITIVE,
    }  # fmt: skip
    assert (found.kind, found.rewind) == (Kind.UNFILLED, "--table levels --table by_price --table by_n")
    assert "levels: a new table of the rows of stock: those of now would leave groups that they had never entered" in found.words
    assert f"`watertable rewind shop {found.rewind} --apply` fills it from the beginning" in found.words
    again = classify(Outline.of(grouped(), before=Outline.of(grouped("levels"))), grouped("levels"))
    assert {c.name for c in again.of(Kind.UNFILLED)} == {"levels", "by_n"}, "what was kept before lacks what came meanwhile"


def test_what_stands_in_the_way_is_said_with_the_ways_out() -> None:
    assert classify(shop(), shop()).words == ""
    words = classify(shop(), shop(records=lambda s: s.filter("qty > 0"))).words
    for wanted in ("stock, hourly: a filter was put in.", "rewind shop --to earliest", "--keep-old-code-before"):
        assert wanted in words
    assert "--table" not in words, "no table goes on beside them"
    one = classify(shop(), shop(grace=20))
    assert one.alone == "--table hourly"
    assert "makes all tables anew, or, with `--table hourly` instead, those alone beside the others" in one.words
    waits = classify(shop(out="qty > 1"), shop(out="qty > 2", grace=20))
    assert waits.alone == "--table hourly", "an output that goes on is no hindrance"


def test_another_dialect_breaks_everything() -> None:
    import dataclasses

    old = dataclasses.replace(Outline.of(shop()), dialect="spark 3.5, ansi, utc")
    assert {c.kind for c in classify(old, shop()).changes} == {Kind.BREAKING}
