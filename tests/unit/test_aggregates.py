"""Aggregates: types of states and values, and what is refused."""

from __future__ import annotations

import pytest

import watertable as wt
from watertable.aggregates import Aggregation, Merge, bind
from watertable.errors import ExpressionError, UnknownColumn
from watertable.expressions import Scope
from watertable.schema import Schema

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
    ],
)
def test_an_aggregate_has_sparks_type_and_its_algebra(aggregation: Aggregation, value: str, merges: list[str]) -> None:
    bound = bind("x", aggregation, SCOPE, "here:1")
    assert bound.value.type.sql() == value
    assert [f.merge for f in bound.state] == [Merge(m) for m in merges]


@pytest.mark.parametrize("aggregation", [wt.sum("s"), wt.sum("t"), wt.avg("b"), wt.min("a"), wt.max("a"), wt.count_distinct("a")])
def test_an_aggregate_of_a_wrong_type_is_refused_with_the_type_that_came(aggregation: Aggregation) -> None:
    with pytest.raises(ExpressionError, match=rf"^here:1: x={aggregation.function}\('{aggregation.argument}'\): a \S+ has no"):
        bind("x", aggregation, SCOPE, "here:1")


def test_an_aggregate_of_an_unknown_column_names_it_and_the_place() -> None:
    with pytest.raises(UnknownColumn, match=r"^here:1: .*nope"):
        bind("x", wt.sum("nope"), SCOPE, "here:1")


def test_an_unknown_aggregate_lists_the_known_ones() -> None:
    with pytest.raises(ExpressionError, match=r"no aggregate 'median'; choose from avg, count, count_distinct, first, last, max, min, sum"):
        bind("x", Aggregation("median", "i"), SCOPE, "here:1")


@pytest.mark.parametrize(("aggregation", "exact"), [(wt.sum("m"), True), (wt.sum("d"), False), (wt.avg("i"), True), (wt.max("d"), True)])
def test_only_floating_point_sums_depend_on_order(aggregation: Aggregation, exact: bool) -> None:
    assert bind("x", aggregation, SCOPE, "here:1").exact is exact


@pytest.mark.parametrize(("aggregation", "can"), [(wt.count(), True), (wt.avg("i"), True), (wt.min("i"), False), (wt.last("i"), False)])
def test_an_aggregate_says_whether_it_can_forget_a_record(aggregation: Aggregation, can: bool) -> None:
    assert bind("x", aggregation, SCOPE, "here:1").subtract is can
