"""What one record can do to an app: it is refused by Spark as by the interpreter, and what stands beside it goes on."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, Result, run_interpreter, tiny
from watertable.plan.windows import EPOCH
from watertable.records import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def both(spark: SparkSession, app: wt.App, *records: Record) -> Result:
    """Run both engines, and give what they agree on."""
    topology = app.topology()
    found = CompilerRun(tiny(spark), topology).run([records])
    assert run_interpreter(topology, [records]).differences(found) == []
    return found


def record(offset: int, time: datetime = EPOCH, topic: str = "t", /, **value: Any) -> Record:
    return Record(topic, 0, offset, time, b"a", json.dumps(value).encode())


def refused(found: Result) -> list[tuple[str, int, str]]:
    return sorted((topic, offset, node) for topic, _, offset, node, _ in found.quarantine.elements())


def test_an_event_time_after_which_no_time_would_be_left_stops_nothing(spark: SparkSession) -> None:
    app = wt.App("clocks")
    read = app.topic("t", value="n INT, at TIMESTAMP", timestamp="at").stream()
    read.group_by_key().agg(n=wt.sum("n")).materialized_as("sums")
    own = app.topic("u", value="n INT").stream()
    windows = wt.tumbling(days=36_525, grace=wt.days(36_525))
    own.group_by_key().windowed_by(windows, emit="on_close").agg(n=wt.sum("n")).materialized_as("windows")
    millis = 1_709_287_200_000  # which are read as seconds, of the year 56134
    found = both(
        spark, app, record(0, n=1, at="2024-01-01T00:00:00Z"), record(1, n=5, at=millis), record(2, n=7, at="9000-01-01T00:00:00Z"),
        record(0, datetime(8999, 12, 31, 23, 59, 59, tzinfo=UTC), "u", n=1), record(1, datetime(9999, 12, 31, 23, tzinfo=UTC), "u", n=1),
    )  # fmt: skip
    assert refused(found) == [("t", 1, "topic"), ("t", 2, "topic"), ("u", 1, "topic")]
    assert found.tables["sums"] == {("a",): {"key": "a", "n": 1}}


def test_a_branch_that_takes_a_record_spares_it_the_conditions_of_the_later_ones(spark: SparkSession) -> None:
    """Also where the condition that fails is the last, and where one fails before any is true: that one is refused."""
    app = wt.App("branches")
    read = app.topic("t", value="n INT, text STRING").stream()
    split = read.split().branch("zero", "n = 0").branch("big", "10 / n > 3").branch("cast", "CAST(text AS INT) = n")
    for name, branch in split.default_branch("rest").items():
        branch.to(name)
    found = both(
        spark, app, record(0, n=0, text="x"), record(1, n=2, text="x"), record(2, n=9, text="9"), record(3, n=8), record(4, n=7, text="x")
    )
    assert {name: [json.loads(value or b"")["n"] for _, value, _, _ in sent] for name, sent in found.outputs.items()} == {
        "zero": [0], "big": [2], "cast": [9], "rest": [8],
    }  # fmt: skip
    assert refused(found) == [("t", 4, "filter"), ("t", 4, "filter")]  # by the cast, and by what would take it otherwise
