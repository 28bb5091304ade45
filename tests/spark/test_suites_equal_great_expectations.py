"""A row expectation's condition and Great Expectations agree on every row; and Great Expectations is not mixed up by threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from watertable_quality import Severity, Suite, between, in_set, not_null, row_count, unique
from watertable_quality.suites import Expectation
from watertable_quality.validation import validate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ROWS = [
    (None, None, None), (0, 0.0, ""), (1, 1.5, "S"), (-1, float("nan"), "it's"), (10, float("inf"), "s"),
    (2**31 - 1, -0.0, "a\\b"), (-(2**31), 1e-300, "\n"), (5, None, "S "), (None, 10.0, "ß"),
]  # fmt: skip
RULES = [
    not_null("n"), not_null("s"), between("n", 0, 10), between("n", None, 1), between("x", 0, 10), between("x", 0.5, None),
    in_set("s", ["S", "it's", "a\\b", "\n"]), in_set("n", [0, 1, -1]),
]  # fmt: skip


def test_each_condition_equals_great_expectations(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS, "n INT, x DOUBLE, s STRING").cache()
    by_name = {}
    for outcome, rule in zip([o for r in RULES for o in validate(Suite("a.t", r), frame)], RULES, strict=True):
        bad = frame.where(f"NOT coalesce({rule.sql}, TRUE)").count()
        by_name[rule.sql] = (outcome.error, outcome.observed["unexpected_count"], outcome.passed)
        assert by_name[rule.sql] == ("", bad, bad == 0), rule
    assert {passed for _, _, passed in by_name.values()} == {False}  # every rule had something to refuse


def test_whole_tables_are_judged_and_what_cannot_be_is_an_error(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1), ("a", 2), ("b", 1)], "k STRING, n INT")
    suite = Suite("a.t", unique("k"), unique("k", "n"), row_count(3, 3), not_null("gone"), row_count_info())
    held = {o.expectation.name: (o.holds, bool(o.error)) for o in validate(suite, frame)}
    assert held == {
        "k_unique": (False, False), "k_n_unique": (True, False), "row_count": (True, False), "gone_not_null": (False, True),
        "few": (True, False),
    }  # fmt: skip


def test_one_that_great_expectations_cannot_make_leaves_the_others_judged(spark: SparkSession) -> None:
    wrong = Expectation("rows", "ExpectTableRowCountToBeBetween", (("min_value", 2), ("max_value", 1)))
    first, second = validate(Suite("shop.stock", wrong, not_null("id")), spark.range(1))
    assert (first.holds, "min" in first.error, second.holds) == (False, True, True)


def row_count_info():  # type: ignore[no-untyped-def]
    from dataclasses import replace

    return replace(row_count(None, 1, severity=Severity.INFO), name="few")


def test_threads_never_get_each_others_answers(spark: SparkSession) -> None:
    frames = [spark.range(n + 1).toDF("n") for n in range(4)]

    def judge(number: int) -> bool:
        n = number % 4
        return validate(Suite("a.t", row_count(n + 1, n + 1)), frames[n])[0].passed

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(judge, range(16)))
