"""What one record can do to an app: it is refused by Spark as by the interpreter, and what stands beside it goes on."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, Result, run_interpreter, tiny
from watertable.interpreter import Interpreter
from watertable.plan.windows import BEYOND, EPOCH
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


def test_a_date_or_time_that_python_has_not_is_refused_where_it_is_read_wherever_it_stands(spark: SparkSession) -> None:
    def seen(record: wt.Record, context: wt.Context) -> None:
        context.forward(record.value)

    app = wt.App("far")
    nested = "box STRUCT<day: DATE, n: INT>, days ARRAY<DATE>, by MAP<STRING, ARRAY<TIMESTAMP>>"
    value = f"n INT, at TIMESTAMP, sent TIMESTAMP, day DATE, {nested}"
    read = app.topic("t", value=value, timestamp="at").stream()
    read.process_values(seen, value=value).to("seen")
    read.to_table().materialized_as("rows")
    app.topic("u", key="day DATE", value="n INT").stream().to_table().materialized_as("days")
    millis, day = 1_709_294_400_000, "12345-01-01"  # milliseconds, which are read as seconds, of the year 56135
    far = [
        {"sent": millis}, {"day": day}, {"day": "-0044-03-15"}, {"day": "0000-12-31"}, {"sent": "0001-01-01T00:00:00+00:01"},
        {"sent": "10000-01-01T00:30:00"}, {"sent": "0000-06-01T00:00:00Z"},
        {"box": {"day": day}}, {"days": [None, "2024-01-01", day]}, {"by": {"a": None, "b": [1, millis]}},
    ]  # fmt: skip
    near = [
        {"day": "0001-01-01"}, {"day": "9999-12-31"}, {"sent": "0001-01-01T00:00:00Z"}, {"sent": "9999-12-31T23:59:59.999999Z"},
        {"sent": "10000-01-01T00:30:00+01:00"}, {"sent": "0000-12-31T23:30:00-01:00"},
        {"box": {"day": None}, "days": [None, "9999-12-31"], "by": {"a": [None, 1]}}, {"box": None, "days": [], "by": {}},
    ]  # fmt: skip
    records = [record(n, at=n, **part) for n, part in enumerate([*near, *far])]
    last = len(records)
    records += [record(last, at=millis, day=day), record(last + 1, at=None, day=day), record(last + 2, n="one", day=day, at=millis)]
    records += [Record("t", 0, last + 3, EPOCH, b"a", f'{{"day": "{day}", "at": 9, "day": "2024-01-01"}}'.encode())]
    keys = ["2024-01-01", day]
    records += [Record("u", 0, n, EPOCH, json.dumps({"day": key}).encode(), b'{"n": 1}') for n, key in enumerate(keys)]
    topology = app.topology()
    run, engine = CompilerRun(tiny(spark), topology), Interpreter(topology)
    found = run.run([records])
    engine.read(records)
    assert run_interpreter(topology, [records]).differences(found) == []
    assert refused(found) == [("t", n, "topic") for n in range(len(near), last + 3)] + [("u", 1, "topic")]
    assert len(found.outputs["seen"]) == len(near) + 1
    why = {(q.record.topic, q.record.offset): q.reason for q in engine.quarantine}
    beyond = {(topic, offset) for (topic, _, offset, _, _), reason in run.reasons if reason == BEYOND}
    assert beyond == {place for place, reason in why.items() if reason == BEYOND}
    assert beyond == {("t", n) for n in range(len(near), last)} | {("t", last + 1), ("u", 1)}
    assert why["t", last].startswith("the event time"), "an event time that is none counts for more"


def test_bytes_that_are_no_text_are_refused_by_a_cast_to_one_and_null_to_a_try(spark: SparkSession) -> None:
    app = wt.App("raw")
    read = app.topic("t", value="raw BINARY", value_format="bytes").stream()
    made = read.map_values(text="CAST(raw AS STRING)", size="length(CAST(raw AS STRING))")
    made.to_table().materialized_as("texts")
    read.map_values(text="try_cast(raw AS STRING)").to("tried")
    raw = [b"fine", b"\xff", "ü😀".encode(), b"a\xc3", b"\xed\xa0\x80", b""]
    found = both(spark, app, *(Record("t", 0, n, EPOCH, str(n).encode(), data) for n, data in enumerate(raw)))
    assert refused(found) == [("t", n, "map_values") for n in (1, 3, 4)]
    assert {key: row["text"] for (key,), row in found.tables["texts"].items()} == {"0": "fine", "2": "ü😀", "5": ""}
    tried = [json.loads(value or b"")["text"] for _, value, _, _ in found.outputs["tried"]]
    assert tried == ["fine", None, "ü😀", None, None, ""]


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
