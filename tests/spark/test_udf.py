"""The user's own Python on Spark: what the interpreter gives of one record at a time, Spark's workers give of a batch."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.properties.engines import CompilerRun, run_interpreter, tiny
from watertable.interpreter import Interpreter
from watertable.records import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = '''
import watertable as wt
import _rates
from _rates import to_int

@wt.udf(returns="DECIMAL(14,2)")
def paid(qty, price):
    """What is paid, in the currency of the house."""
    return qty * price * _rates.RATE

@wt.udf(returns="INT", version="1")
def number(text):
    return text.map(to_int)

@wt.udf(returns="STRING", over="arrow", nulls=True)
def named(text):
    import pyarrow.compute as pc
    return pc.fill_null(text, "nobody")

@wt.udf(returns="STRUCT<first: STRING, rest: ARRAY<STRING>>", over="arrow", version="1")
def parts(tags):
    import pyarrow as pa
    found = tags.to_pylist()
    return pa.array([{"first": t[0], "rest": t[1:]} for t in found], pa.struct([("first", pa.string()), ("rest", pa.list_(pa.string()))]))

app = wt.App("till")
slips = app.topic("slips", key="id STRING", value="qty INT, price DECIMAL(9,2), name STRING, tags ARRAY<STRING>").stream()
other = app.topic("other", key="id STRING", value="name STRING").stream()
rich = slips.with_columns(paid=paid("qty", "price"), who=named("name"), parts=parts("tags"))
sums = rich.group_by("who").agg(paid=wt.sum("paid"), most=wt.max(f"{number}(name) + 1"), tags=wt.collect_list("parts.first"))
sums.materialized_as("byname")
totals = rich.filter(f"{number}(name) > 0").group_by(p=number("name")).windowed_by(wt.tumbling(seconds=10)).agg(n=wt.count())
totals.materialized_as("totals").to_stream().map_values(n=f"{number}(CAST(new.n AS STRING))").to("out")
others = other.group_by(p=number("name")).agg(n=wt.count(), sum=wt.sum(f"CAST({number}(name) AS DECIMAL(9,2))"))
others.materialized_as("others")
other.map_values(text=f"CAST({number}(name) AS STRING)").to_table().materialized_as("texts")
'''


@pytest.mark.spark
def test_spark_gives_what_the_interpreter_does_from_files_that_workers_cannot_import(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "_rates.py").write_text("from decimal import Decimal\nRATE = Decimal('1.25')\ndef to_int(text):\n    return int(text)\n")
    (tmp_path / "till_app.py").write_text(APP)
    sys.path.insert(0, str(tmp_path))
    try:
        app = importlib.import_module("till_app").app
    finally:
        sys.path.remove(str(tmp_path))
    start = datetime(2024, 3, 1, tzinfo=UTC)
    names = ["1", "2", None, "x", "2", "", "7", "1", "-1", "3", None, "1"]
    rows: list[object] = [
        {"qty": None if n == 4 else n, "price": 1.5 * n, "name": name, "tags": [["a", "b"], [], None][n % 3]}
        for n, name in enumerate(names)
    ]
    rows[7] = None
    records = [
        Record("slips", n % 2, n // 2, start + timedelta(seconds=n), b"k", None if row is None else json.dumps(row).encode())
        for n, row in enumerate(rows)
    ]
    records += [Record("other", 0, n, start, b"k", json.dumps({"name": name}).encode()) for n, name in enumerate(["1", "one", "1"])]
    batches = [records[:5], records[5:9], records[9:]]
    topology = app.topology()
    wanted = run_interpreter(topology, batches)
    assert len(wanted.quarantine) >= 6
    assert wanted.tables["totals"]
    run = CompilerRun(tiny(spark), topology)
    found = run.run(batches)
    assert wanted.differences(found) == []
    engine = Interpreter(topology)
    for batch in batches:
        engine.read(batch)
    why = {(q.record.topic, q.record.partition, q.record.offset, q.node, q.location): q.reason for q in engine.quarantine}
    assert len(run.reasons) == len(why) > 0
    assert all(why[place] in reason for place, reason in run.reasons), "what the function raised is told"
    assert "ValueError: invalid literal for int() with base 10: 'one'" in str(run.reasons)
