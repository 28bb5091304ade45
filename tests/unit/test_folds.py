"""Laws of the user's own folds: any step, in log order, is a function of the records and of nothing else."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

import watertable as wt
from watertable.dsl.streams import Stream
from watertable.errors import DefinitionError, ExpressionError, UnknownColumn
from watertable.plan.purity import Purity, purity_of
from watertable.plan.windows import Windows
from watertable.testing import TopologyTestDriver

VALUE = "qty INT, word STRING, tags MAP<STRING, INT>"


def sales() -> tuple[wt.App, Stream]:
    app = wt.App("shop")
    return app, app.topic("sales", key="id STRING", value=VALUE).stream()


def test_a_fold_steps_on_in_log_order_from_a_constant() -> None:
    app, stream = sales()
    table = (
        stream.group_by_key()
        .agg(text=wt.aggregate("'>'", "concat(acc, word)"), n=wt.aggregate("CAST(1 AS BIGINT)", "acc * 2 + qty"))
        .materialized_as("t")
    )
    assert table.value.sql() == "`text` STRING, `n` BIGINT"
    driver = TopologyTestDriver(app)
    for qty, word, at in [(1, "a", 1), (2, "b", 5), (3, "c", 3)]:
        driver.pipe_input("sales", "k", {"qty": qty, "word": word}, timestamp=at)
    driver.pipe_input("sales", "k", None, timestamp=9)
    # the third is late, and stands where its stream time puts it
    assert driver.table("t")["k"] == {"id": "k", "text": ">abc", "n": ((1 * 2 + 1) * 2 + 2) * 2 + 3}


def test_a_fold_makes_arrays_and_structs_whatever_is_null_in_them() -> None:
    app, stream = sales()
    last_two = wt.aggregate("array_repeat(0, 0)", "slice(array_append(acc, qty), greatest(size(acc), 1), 2)")
    streak = wt.aggregate(
        "named_struct('word', '', 'n', 0)", "named_struct('word', word, 'n', CASE WHEN word = acc.word THEN acc.n + 1 ELSE 1 END)"
    )
    table = stream.group_by_key().agg(last_two=last_two, streak=streak).map_values(n="streak.n", at="get(last_two, 0)", streak="streak")
    table.materialized_as("t")
    assert table.value.sql() == "`n` INT, `at` INT, `streak` STRUCT<`word`: STRING, `n`: INT>"
    driver = TopologyTestDriver(app)
    found = []
    for n, (qty, word) in enumerate([(1, "a"), (None, "a"), (3, None), (4, "b"), (5, "b")]):
        driver.pipe_input("sales", "k", {"qty": qty, "word": word}, timestamp=n)
        row: Any = driver.table("t")["k"]
        found.append((row["at"], row["streak"]["word"], row["n"]))
    assert found == [(1, "a", 1), (1, "a", 2), (None, None, 1), (3, "b", 1), (4, "b", 2)]


def test_a_fold_takes_every_record_whatever_its_columns_are_called() -> None:
    app = wt.App("shop")
    stream = app.topic("t", key="k STRING", value="value INT, n INT").stream()
    stream.group_by_key().agg(s=wt.aggregate("0", "acc + n")).materialized_as("folded")
    stream.group_by_key().reduce(n="acc.n + n").materialized_as("reduced")
    table = app.topic("rows", key="k STRING", value="value INT, n INT").table().materialized_as("rows")
    table.group_by(all="1").agg(s=wt.aggregate("0", "acc + n")).materialized_as("grouped")
    driver = TopologyTestDriver(app)
    for n, value in enumerate([1, None]):
        driver.pipe_input("t", "a", {"value": value, "n": 1 + 4 * n}, timestamp=n)
        driver.pipe_input("rows", f"{n}", {"value": value, "n": 1 + 4 * n}, timestamp=n)
    driver.pipe_input("t", "a", None, timestamp=2)
    assert driver.table("folded")["a"] == {"k": "a", "s": 6}
    assert driver.table("reduced")["a"] == {"k": "a", "n": 6}
    assert [row["s"] for row in driver.table("grouped").values()] == [6]


def test_a_reduction_begins_with_the_first_record() -> None:
    app, stream = sales()
    stream.group_by_key().reduce(qty="acc.qty + qty", word="greatest(acc.word, word)").materialized_as("t")
    stream.group_by_key().windowed_by(wt.tumbling(seconds=10)).reduce(qty="acc.qty * 10 + qty").materialized_as("w")
    driver = TopologyTestDriver(app)
    for qty, word, at in [(5, "b", 1000), (-2, "a", 2000), (1, "c", 12000)]:
        driver.pipe_input("sales", "k", {"qty": qty, "word": word}, timestamp=at)
    assert driver.table("t") == {"k": {"id": "k", "qty": 4, "word": "c"}}
    assert [row["qty"] for row in driver.windows("w", "k")] == [48, 1]


@pytest.mark.parametrize("windows", [wt.hopping(seconds=10, every=wt.seconds(5)), wt.sessions(gap=wt.seconds(5)), None])
def test_a_reduction_makes_no_row_of_records_without_a_value(windows: Windows | None) -> None:
    app, stream = sales()
    grouped = stream.group_by_key()
    (grouped.windowed_by(windows) if windows else grouped).reduce(qty="acc.qty + qty").materialized_as("t")
    driver = TopologyTestDriver(app)
    driver.pipe_input("sales", "k", None, timestamp=7_000)
    assert (driver.table("t"), [drop.reason for drop in driver.dropped()]) == ({}, ["null_value"])
    for qty in (1, None, 2):
        driver.pipe_input("sales", "k", qty and {"qty": qty}, timestamp=7_000)
    assert {row["qty"] for row in driver.table("t").values()} == {3}


def test_rows_are_folded_in_the_order_of_their_keys_as_if_those_that_left_had_never_been() -> None:
    changes: list[tuple[str, dict[str, Any] | None]] = [("c", {"qty": 3}), ("a", {"qty": 1}), ("b", {"qty": 9}), ("d", {"qty": 4})]
    for order in permutations(changes):
        app, stream = sales()
        table = stream.to_table().materialized_as("t")
        table.group_by(g="'all'").reduce(qty="acc.qty * 10 + qty").materialized_as("red")
        table.group_by(g="'all'").agg(ids=wt.aggregate("''", "concat(acc, key.id)")).materialized_as("folded")
        driver = TopologyTestDriver(app)
        for n, (key, value) in enumerate([*order, ("b", {"qty": 2}), ("d", None)]):
            driver.pipe_input("sales", key, value, timestamp=n)
        assert driver.table("red") == {"all": {"g": "all", "qty": 123}}
        assert driver.table("folded") == {"all": {"g": "all", "ids": "abc"}}


def test_a_step_that_fails_is_null_and_the_fold_goes_on() -> None:
    app, stream = sales()
    fold = wt.aggregate("0", "coalesce(acc, 100) + CAST(word AS INT)")
    stream.group_by_key().agg(n=fold).materialized_as("t")
    stream.group_by_key().reduce(qty="acc.qty + CAST(word AS INT)", word="word").materialized_as("r")
    driver = TopologyTestDriver(app)
    found = []
    for n, word in enumerate(["1", "x", "2"]):
        driver.pipe_input("sales", "k", {"qty": 7, "word": word}, timestamp=n)
        found.append((driver.table("t")["k"]["n"], driver.table("r")["k"]["qty"], driver.table("r")["k"]["word"]))
    assert found == [(1, 7, "1"), (None, None, "x"), (102, None, "2")]
    assert driver.quarantine() == []


def test_a_fold_is_pure_and_beside_other_aggregates() -> None:
    _, stream = sales()
    table = stream.select_key(g="word").group_by_key().agg(n=wt.count(), f=wt.aggregate("0", "qty - acc"))
    assert purity_of(table.node) is Purity.PURE
    both = stream.group_by("word").cogroup(n=wt.count()).cogroup(stream.group_by(w="word"), f=wt.aggregate("0", "acc + qty")).agg()
    assert both.value.names == ("n", "f")


def test_folds_are_checked_where_they_are_written() -> None:
    _, stream = sales()
    grouped = stream.group_by_key()

    @wt.udf(returns="INT", version="1")
    def own(column: Any) -> Any:
        return column

    for fold, error, message in [
        (wt.aggregate("NULL", "acc"), ExpressionError, r"test_folds.py:\d+: f=aggregate: init='NULL' has no type"),
        (wt.aggregate("map('a', 0)", "acc"), ExpressionError, "a MAP has no order"),
        (wt.aggregate("array(map('a', 0))", "acc"), ExpressionError, "a MAP has no order"),
        (wt.aggregate("named_struct('n', NULL)", "acc"), ExpressionError, "a null in it has no type"),
        (wt.aggregate("array(0)", "array_append(acc, word)"), ExpressionError, "array_append"),
        (wt.aggregate("named_struct('n', 0)", "named_struct('m', qty)"), ExpressionError, "the step gives STRUCT"),
        (wt.aggregate("0", "concat(acc, word)"), ExpressionError, "the step gives STRING"),
        (wt.aggregate("0", "acc + size"), UnknownColumn, "no column 'size'"),
        (wt.aggregate("qty", "acc"), UnknownColumn, "no column 'qty'"),
        (wt.aggregate("0", "acc + tags['a']"), ExpressionError, "tags holds a MAP"),
        (wt.aggregate("0", "acc + value.qty + CASE WHEN value IS NULL THEN 1 ELSE 0 END"), ExpressionError, "names the columns"),
        (wt.aggregate("0", f"acc + {own}(qty)"), ExpressionError, "a step runs where rows are read"),
    ]:
        with pytest.raises(error, match=message):
            grouped.agg(f=fold)
    with pytest.raises(UnknownColumn, match="no column 'total' to begin with; the record has qty, word, tags"):
        grouped.reduce(total="acc.total + qty")
    with pytest.raises(DefinitionError, match="reduce wants columns"):
        grouped.reduce()
    with pytest.raises(ExpressionError, match="a column is called acc"):
        stream.with_columns(acc="qty").group_by_key().agg(f=wt.aggregate("0", "acc"))
    with pytest.raises(DefinitionError, match="these are Changes"):
        stream.to_table().materialized_as("t").to_stream().group_by_key().reduce(qty="acc.qty")


@pytest.mark.parametrize(
    ("step", "wrong"),
    [
        ("acc.qty + CAST(qty AS VARIANT)", "type 'VARIANT' is not supported"),
        ("acc.qty + qty" + " + 1" * 3000, "it is nested too deeply"),
        ("if(day < '10000-01-01', acc.qty, qty)", "a DATE is wanted there"),
    ],
    ids=["type", "deep", "constant"],
)
def test_a_step_that_can_not_be_read_is_refused_with_its_place(step: str, wrong: str) -> None:
    stream = wt.App("shop").topic("sales", value="qty INT, day DATE").stream().group_by_key()
    with pytest.raises(ExpressionError, match=rf"test_folds.py:\d+: reduce: in .*{wrong}"):
        stream.reduce(qty=step)
    with pytest.raises(ExpressionError, match=rf"test_folds.py:\d+: n=aggregate: in .*{wrong}"):
        stream.agg(n=wt.aggregate("0", step.replace("acc.qty", "acc")))


def test_another_step_is_another_table_over_the_same_state() -> None:
    def made(add: str) -> Any:
        app, stream = sales()
        stream.group_by_key().agg(f=wt.aggregate("0", add)).materialized_as("t")
        return app.topology().table("t")

    one, two, again = made("acc + qty"), made("acc - qty"), made("acc  +  value.qty")
    assert one.fingerprint != two.fingerprint
    assert one.fingerprint == again.fingerprint
    assert one.state_version == two.state_version
