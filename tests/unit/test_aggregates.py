"""Aggregates: types of states and values, and what is refused."""

from __future__ import annotations

import pytest

import watertable as wt
from watertable.errors import DefinitionError, ExpressionError, UnknownColumn
from watertable.plan.aggregates import Aggregation, Merge, bind
from watertable.schema import Schema
from watertable.sql.expressions import Scope

SCOPE = Scope(
    {"value": Schema.parse("i INT, l BIGINT, m DECIMAL(12,3), big DECIMAL(38,10), d DOUBLE, f FLOAT, s STRING, t TIMESTAMP, "
                           "a ARRAY<INT>, b BOOLEAN"), "key": Schema.parse("k STRING")}, bare=("value", "key"))  # fmt: skip


@pytest.mark.parametrize(
    ("aggregation", "value", "merges"),
    [
        (wt.count(), "BIGINT", ["sum"]),
        (wt.count("s"), "BIGINT", ["sum"]),
        (wt.count_distinct("s"), "BIGINT", ["union"]),
        (wt.sum("i"), "BIGINT", ["sum"]),
        (wt.sum("l"), "BIGINT", ["sum"]),
        (wt.sum("m"), "DECIMAL(22,3)", ["sum"]),
        (wt.sum("i * m"), "DECIMAL(33,3)", ["sum"]),
        (wt.sum("big"), "DECIMAL(38,10)", ["sum"]),
        (wt.sum("d"), "DOUBLE", ["sum"]),
        (wt.sum("f"), "DOUBLE", ["sum"]),
        (wt.avg("i"), "DOUBLE", ["sum", "sum"]),
        (wt.avg("m"), "DECIMAL(16,7)", ["sum", "sum"]),
        (wt.avg("big"), "DECIMAL(38,14)", ["sum", "sum"]),
        (wt.min("t"), "TIMESTAMP", ["min"]),
        (wt.max("s"), "STRING", ["max"]),
        (wt.first("a"), "ARRAY<INT>", ["first"]),
        (wt.last("m"), "DECIMAL(12,3)", ["last"]),
        (wt.collect_list("a"), "ARRAY<ARRAY<INT>>", ["list"]),
        (wt.collect_set("t"), "ARRAY<TIMESTAMP>", ["union"]),
        (wt.top_k(3, "m"), "ARRAY<DECIMAL(12,3)>", ["top"]),
        (wt.top_k(3, "m", "named_struct('s', s, 'b', b)"), "ARRAY<STRUCT<`s`: STRING, `b`: BOOLEAN>>", ["top"]),
    ],
)
def test_an_aggregate_has_sparks_type_and_its_algebra(aggregation: Aggregation, value: str, merges: list[str]) -> None:
    bound = bind("x", aggregation, SCOPE, "here:1")
    assert bound.value.type.sql() == value
    assert [f.merge for f in bound.state] == [Merge(m) for m in merges]


@pytest.mark.parametrize(
    "aggregation", [wt.sum("s"), wt.sum("t"), wt.avg("b"), wt.min("a"), wt.max("a"), wt.count_distinct("a"), wt.collect_set("a")]
)
def test_an_aggregate_of_a_wrong_type_is_refused_with_the_type_that_came(aggregation: Aggregation) -> None:
    with pytest.raises(ExpressionError, match=rf"^here:1: x={aggregation.function}\('{aggregation.argument}'\): a \S+ has no"):
        bind("x", aggregation, SCOPE, "here:1")


def test_an_aggregate_of_an_unknown_column_names_it_and_the_place() -> None:
    with pytest.raises(UnknownColumn, match=r"^here:1: .*nope"):
        bind("x", wt.sum("nope"), SCOPE, "here:1")


def test_an_unknown_aggregate_lists_the_known_ones() -> None:
    known = "aggregate, approx_count_distinct, avg, collect_list, collect_set, count, count_distinct, first, last, max, min, sum, top_k"
    with pytest.raises(ExpressionError, match=rf"no aggregate 'median'; choose from {known}$"):
        bind("x", Aggregation("median", "i"), SCOPE, "here:1")


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "3"])
def test_a_top_k_of_no_whole_number_is_refused(k: int) -> None:
    with pytest.raises(DefinitionError, match=r"^here:1: x=top_k\(.*k must be a whole number from 1"):
        bind("x", wt.top_k(k, "i"), SCOPE, "here:1")


def test_a_top_k_ranks_by_what_has_an_order() -> None:
    with pytest.raises(ExpressionError, match=r"^here:1: x=top_k\(2, 'a'\): a ARRAY<INT> has no greatest"):
        bind("x", wt.top_k(2, "a", "i"), SCOPE, "here:1")


def test_a_list_holds_what_can_be_put_in_order() -> None:
    with pytest.raises(ExpressionError, match=r"a MAP<STRING, INT> has no collect_list"):
        bind("x", wt.collect_list("map('a', i)"), SCOPE, "here:1")


def test_another_k_is_another_state() -> None:
    layouts = [bind("x", wt.top_k(k, "i"), SCOPE, "here:1").state[0].layout for k in (2, 3)]
    assert layouts[0] != layouts[1]


@pytest.mark.parametrize(("aggregation", "exact"), [(wt.sum("m"), True), (wt.sum("d"), False), (wt.avg("i"), True), (wt.max("d"), True)])
def test_only_floating_point_sums_depend_on_order(aggregation: Aggregation, exact: bool) -> None:
    assert bind("x", aggregation, SCOPE, "here:1").exact is exact


@pytest.mark.parametrize(("aggregation", "can"), [(wt.count(), True), (wt.avg("i"), True), (wt.min("i"), False), (wt.last("i"), False)])
def test_an_aggregate_says_whether_it_can_forget_a_record(aggregation: Aggregation, can: bool) -> None:
    assert bind("x", aggregation, SCOPE, "here:1").subtract is can
