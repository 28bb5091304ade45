"""The law of steps that are taken once: what they make of later frames is what they would make of these very frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from tests.properties.engines import collect_together
from watertable.compiler.prepared import Prepared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def prepared() -> Prepared:
    return Prepared()


def rows(frame: DataFrame) -> Sequence[object]:
    return sorted(map(tuple, frame.collect()))


def numbers(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(value,) for value in values], "n INT")


def test_steps_are_taken_twice_at_most_however_many_frames_follow(spark: SparkSession, prepared: Prepared) -> None:
    taken = []

    def steps(frame: DataFrame) -> DataFrame:
        taken.append(frame)
        return frame.selectExpr("n", "n * 2 AS twice").where("twice > 2").groupBy("n").agg(F.expr("sum(twice) AS s"))

    made = [rows(prepared.make("sums", steps, numbers(spark, batch, batch, 1))) for batch in range(1, 6)]
    assert made == [[], [(2, 8)], [(3, 12)], [(4, 16)], [(5, 20)]]
    assert len(taken) == 2, "once as they are, and once to keep them"


def test_a_frame_may_be_read_more_than_once_and_joined_with_itself(spark: SparkSession, prepared: Prepared) -> None:
    def steps(frame: DataFrame) -> DataFrame:
        top = frame.agg(F.expr("max(n) AS top"))
        pairs = frame.join(frame.selectExpr("n AS m"), F.expr("n < m")).join(F.broadcast(frame.distinct()), "n", "left_semi")
        return pairs.crossJoin(top).union(frame.selectExpr("n", "n", "n")).union(frame.selectExpr("n", "0", "0"))

    for batch in range(4):
        frame = numbers(spark, batch, batch + 1, batch + 2)
        assert rows(prepared.make("pairs", steps, frame)) == rows(steps(frame))


def test_frames_are_told_apart_by_their_places_not_by_their_columns(spark: SparkSession, prepared: Prepared) -> None:
    def steps(old: DataFrame, new: DataFrame) -> DataFrame:
        return old.selectExpr("n", "'old' AS which").unionByName(new.selectExpr("n", "'new' AS which"))

    for batch in range(3):
        old, new = numbers(spark, batch), numbers(spark, 10 + batch)
        assert rows(prepared.make("which", steps, old, new)) == [(batch, "old"), (10 + batch, "new")]
        assert rows(prepared.make("which", steps, new, new)) == [(10 + batch, "new"), (10 + batch, "old")]


def test_frames_of_other_columns_or_that_may_be_null_have_the_steps_taken_anew(spark: SparkSession, prepared: Prepared) -> None:
    def steps(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("n", "n IS NULL AS gone", "coalesce(CAST(n AS STRING), '?') AS said")

    never = spark.range(1, 3).selectExpr("id AS n")
    at_times = spark.sql("SELECT * FROM VALUES (1L), (NULL) AS v(n)")
    texts = spark.sql("SELECT 'a' AS n")
    for frame in (never, never, at_times, never, at_times, texts, texts, at_times):
        found, wanted = prepared.make("said", steps, frame), steps(frame)
        assert found.schema == wanted.schema
        assert collect_together({"f": found})["f"].to_pylist() == collect_together({"f": wanted})["f"].to_pylist()


def test_kept_frames_and_what_is_made_of_them_go_on_from_one_to_the_next(spark: SparkSession, prepared: Prepared) -> None:
    for batch in range(4):
        first = prepared.make("first", lambda frame: frame.selectExpr("n", "n % 2 AS odd"), numbers(spark, batch, batch + 1))
        kept = first.localCheckpoint(eager=True)
        even, odd = (prepared.make(("part", part), lambda frame, part=part: frame.where(f"odd = {part}"), kept) for part in (0, 1))
        made = prepared.make("both", lambda a, b: a.selectExpr("n", "'even'").union(b.selectExpr("n", "'odd'")), even, odd)
        assert rows(made) == [(n, "odd" if n % 2 else "even") for n in (batch, batch + 1)]


def test_rows_that_steps_have_of_their_own_are_in_every_batch(spark: SparkSession, prepared: Prepared) -> None:
    for batch in range(3):
        made = prepared.make("own", lambda frame: frame.union(spark.range(1).selectExpr("CAST(-1 AS INT)")), numbers(spark, batch))
        assert rows(made) == [(-1,), (batch,)]


def test_steps_that_read_a_frame_of_a_batch_which_is_not_given_to_them_are_refused(spark: SparkSession, prepared: Prepared) -> None:
    seen = numbers(spark, 1, 2).localCheckpoint()
    frames = [numbers(spark, batch) for batch in range(2)]
    prepared.make("leak", lambda frame: frame.union(seen), frames[0])  # the first time they are taken as they are
    with pytest.raises(AssertionError, match=r"steps read a frame that isn't among theirs: .*LogicalRDD"):
        prepared.make("leak", lambda frame: frame.union(seen), frames[1])


def test_steps_may_come_to_the_same_whatever_their_frames_hold(spark: SparkSession, prepared: Prepared) -> None:
    for batch in range(4):
        frame = numbers(spark, batch)
        never = prepared.make("never", lambda frame: frame.where("n > 1 AND FALSE"), frame)
        both = prepared.make("both", lambda a, b: a.union(b).join(a.selectExpr("n AS m"), F.expr("n = m"), "left"), never, frame)
        assert (rows(never), both.collect()) == ([], [(batch, None)])


def test_frames_that_come_in_turns_have_their_steps_taken_once_for_each_kind(spark: SparkSession, prepared: Prepared) -> None:
    taken = []

    def steps(frame: DataFrame) -> DataFrame:
        taken.append(frame)
        return frame.selectExpr("n + 1 AS next")

    kinds = [spark.range(1).selectExpr("id AS n"), spark.sql("SELECT * FROM VALUES (1L), (NULL) AS v(n)")]
    for _ in range(4):
        for kind in kinds:
            assert prepared.make("next", steps, kind).schema == kind.selectExpr("n + 1 AS next").schema
    assert len(taken) == 1 + len(kinds)
