"""Layouts: what a topology makes Spark compute, and what it spares it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import watertable as wt
from watertable.compiler.layout import Layout


def layout(define: Callable[[wt.Stream], wt.Table]) -> Layout:
    app = wt.App("a")
    table = define(app.topic("t", key="k STRING", value="g STRING, x INT").stream()).materialized_as("t1")
    if table.key.names == ("streamed",):
        table.to_stream().filter("new.n > old.n").group_by_key().count().materialized_as("rises")
    return Layout(app.topology())


@pytest.mark.parametrize(
    ("define", "wanted"),
    [
        (lambda s: s.group_by("g").agg(n=wt.sum("x"), c=wt.count_distinct("x"), m=wt.max("x")), False),
        (lambda s: s.group_by("g").agg(n=wt.last("x")), True),
        (lambda s: s.group_by("g").agg(n=wt.collect_list("x")), True),
        (lambda s: s.group_by("g").agg(n=wt.top_k(2, "x")), True),
        (lambda s: s.group_by("g").windowed_by(wt.tumbling(hours=1)).agg(n=wt.sum("x")), True),
        (lambda s: s.group_by(streamed="g").agg(n=wt.sum("x")), True),
    ],
    ids=["sums and sets", "last", "list", "top", "windows", "changes"],
)
def test_stream_time_is_computed_per_record_only_where_order_or_lateness_shows(
    define: Callable[[wt.Stream], wt.Table], wanted: bool
) -> None:
    assert layout(define).needs_order is wanted


def test_a_tables_changes_are_run_once_however_many_groupings_read_them() -> None:
    app = wt.App("a")
    rows = app.topic("t", key="k STRING", value="g STRING, x INT").table().materialized_as("rows")
    rows.group_by("g").count().materialized_as("one")
    rows.group_by("x").count().materialized_as("two")
    assert [type(segment.origin).__name__ for segment in Layout(app.topology()).segments] == ["Topology", "ToStream"]


def test_changes_that_are_read_once_are_not_kept_and_those_that_are_read_again_are() -> None:
    def kept(define: Callable[[wt.Table], object]) -> list[bool]:
        app = wt.App("a")
        define(app.topic("t", key="k STRING", value="g STRING, x INT").table().materialized_as("rows"))
        found = Layout(app.topology())
        return [found.shared(segment) for segment in found.segments[1:]]

    assert kept(lambda rows: rows.to_stream().to("out")) == [False]
    assert kept(lambda rows: (rows.to_stream().to("out"), rows.to_stream().filter("x > 1").to("more"))) == [True]
    assert kept(lambda rows: rows.group_by("g").count().materialized_as("t1").to_stream().to("out")) == [True, False]
