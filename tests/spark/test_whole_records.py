"""A whole record as a value: `value`, `key`, `left`, `right`, `old`, `new` and `window` are structs, on Spark as in the interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, run_interpreter, tiny
from watertable.plan.plan import Topology
from watertable.records import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

START = datetime(2024, 3, 1, tzinfo=UTC)


def of_streams() -> Topology:
    app = wt.App("records")
    stream = app.topic("records", key="k STRING", value="n INT, s STRING, a ARRAY<INT>").stream()
    other = app.topic("others", key="k STRING", value="n INT, s STRING, a ARRAY<INT>").stream()
    columns = {
        "v": "value", "by": "key",
        "both": "named_struct('value', value, 'key', key)", "same": "value = value", "n": "coalesce(value, value).n",
        "all": "array(value)", "none": "value <=> NULL", "text": "concat('value of key', left(s, 1), right(s, 1))",
        "each": "transform(a, x -> named_struct('key', x, 'value', value).value)", "in_": "value IN (value)",
        "if_": "CASE WHEN n > 1 THEN value END",
    }  # fmt: skip
    mapped = stream.map_values(**columns)
    mapped.to("mapped")
    mapped.to_table().map_values(again="value", old="v").materialized_as("mapped_table")
    stream.filter("value <=> value AND key.k <> 'value = key'").flat_map_values(e="a", v="value", explode="e").map_values(x="value").to(
        "flat"
    )
    stream.expect("some", "array_contains(array(value), value)").group_by_key().agg(
        last=wt.last("value"), list=wt.collect_list("value"), set=wt.collect_list("named_struct('k', key, 'v', value)"),
        top=wt.top_k(1, "n", "value"), n=wt.count("value"),
    ).materialized_as("agg")  # fmt: skip
    windows = stream.group_by("s").windowed_by(wt.tumbling(seconds=4, grace=wt.seconds(9))).agg(last=wt.last("value"))
    windows = windows.map_values(v="value", by="key", w="window", l="last").materialized_as("windows")
    windows.to_stream().map_values(new="new", old="old", w="window", by="key").to("changes")
    table = other.to_table().materialized_as("others")
    stream.left_join(table, v="value", r="right", by="key").to("looked_up")
    stream.left_join(other, within=wt.seconds(2), l="left", r="right", by="key").to("paired")
    return app.topology()


def of_tables() -> Topology:
    app = wt.App("tables")
    rows, others = (
        app.topic(name, key="k STRING", value="n INT, s STRING, a ARRAY<INT>").table().materialized_as(f"{name}_table")
        for name in ("records", "others")
    )
    rows.filter("get(array(value), 0).n > 0 AND get(array(key), 0).k > ''").map_values(v="value", by="key").materialized_as("kept")
    rows.outer_join(others, l="left", r="right", by="key", n="coalesce(left, right).n").materialized_as("joined")
    rows.left_join(others, on="s", l="left", r="right").materialized_as("by_name")
    rows.group_by("s").agg(last=wt.last("value"), n=wt.count("key"), all=wt.collect_list("value")).materialized_as("grouped")
    rows.to_stream().map_values(new="new", old="old", by="key").to("changes")
    return app.topology()


def of_names_like_records() -> Topology:
    """Call columns and fields as records are called."""
    app = wt.App("names")
    stream = app.topic("names", key="`key` STRING", value="`value` INT, `left` STRING, `new` STRUCT<`old`: INT, `value`: STRING>").stream()
    stream.map_values(
        value="value", left="left(left, 1)", right="named_struct('left', left, 'value', new.value, 'key', `key`).value",
        old="value.new.old + value.value", state="concat('key', key.key, ' old value ', new.`value`)", window="new",
    ).to_table().map_values(window="window.value", state="value.state").materialized_as("names")  # fmt: skip
    stream.dedupe(name="seen", within=wt.seconds(4), by="left(left, 1)").to("once")
    stream.group_by_key().agg(folded=wt.aggregate("0", "acc + coalesce(value, 100)")).materialized_as("folded")
    stream.to_table().materialized_as("rows").suppress(wt.until_time_limit(wt.seconds(3))).materialized_as("settled")
    return app.topology()


def batches(*topics: str) -> list[list[Record]]:
    records = []
    for n in range(16):
        at, key = START + timedelta(seconds=n), b"ab"[n % 2 : n % 2 + 1]
        value = {"n": [1, 2, None][n % 3], "s": ["a", "b", None, "zz"][n % 4], "a": [[1, 2], None, [], [3]][n % 4]}
        name = {"value": n, "left": ["left", None][n % 2], "new": None if n == 6 else {"old": n, "value": "value"}}
        made = None if n in (9, 10, 11) else json.dumps(name if topics == ("names",) else value).encode()
        records.append(Record(topics[n // 2 % len(topics)], 0, n, at, key, made))
    return [records[:5], records[5:]]


@pytest.mark.parametrize(
    ("topology", "topics"),
    [(of_streams, ("records", "others")), (of_tables, ("records", "others")), (of_names_like_records, ("names",))],
)
def test_a_whole_record_is_a_struct_of_its_columns_on_both_engines(
    spark: SparkSession, topology: Callable[[], Topology], topics: tuple[str, ...]
) -> None:
    given = batches(*topics)
    wanted = run_interpreter(topology(), given)
    assert all(wanted.tables.values())
    assert not wanted.quarantine
    assert wanted.differences(CompilerRun(tiny(spark), topology()).run(given)) == []
