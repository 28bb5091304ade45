"""Headers as columns on Spark: what they are read as, and which records they refuse, is what the interpreter says."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watertable as wt
from tests.properties.engines import CompilerRun, as_frame, run_interpreter, tiny
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
DATA = st.sampled_from([b"t1", b"t2", b"", "zwölf".encode(), b"\xff", b"\xc3", None])
HEADERS = st.lists(st.tuples(st.sampled_from(["trace-id", "it's", "sig", "Trace-Id"]), DATA), max_size=4).map(tuple)
VALUES = st.sampled_from([b'{"n": 1, "at": "2026-01-01T00:00:00Z"}', b'{"n": 2}', b"{broken", b"{}", None])
RECORDS = st.lists(st.tuples(st.sampled_from(["json", "text", "plain"]), VALUES, HEADERS), min_size=1, max_size=12)


def traced() -> Topology:
    """Read headers beside each format of a value, and a topic that names none."""
    app = wt.App("traced")
    read = {"trace-id": "trace STRING", "it's": "quoted STRING", "sig": "sig BINARY"}
    json = app.topic("json", value="n INT, at TIMESTAMP", timestamp="at", headers=read).stream()
    text = app.topic("text", value="line STRING", value_format="string", headers=read).stream()
    plain = app.topic("plain", value="n INT").stream()
    named = json.map_values(trace="trace", quoted="quoted", sig="sig").merge(text.map_values(trace="trace", quoted="quoted", sig="sig"))
    named.group_by("trace").agg(n=wt.count(), sigs=wt.collect_list("sig"), last=wt.last("quoted")).materialized_as("traces")
    plain.group_by_key().count().materialized_as("plain")
    json.to("out", headers={"trace-id": "trace", "it's": "quoted || ' it''s'", "sig": "sig", "ten": "CAST(10 DIV (n - 1) AS STRING)"})
    text.to("lines", headers={"empty": "nullif(trace, '')"})
    return app.topology()


@settings(max_examples=15)
@given(RECORDS)
def test_spark_reads_headers_as_the_interpreter_does(spark: SparkSession, drawn: list[tuple[str, bytes | None, Any]]) -> None:
    records = [
        Record(topic, 0, offset, EPOCH + timedelta(days=20_000, minutes=offset), b"a", value, headers)
        for offset, (topic, value, headers) in enumerate(drawn)
    ]
    topology = traced()
    assert run_interpreter(topology, [records]).differences(CompilerRun(tiny(spark), topology).run([records])) == []


def test_what_the_draws_are_for_is_drawn_by_hand_too(spark: SparkSession) -> None:
    def one(offset: int, value: bytes | None, *headers: tuple[str, bytes | None]) -> Record:
        return Record("text", 0, offset, EPOCH + timedelta(days=20_000), b"a", value, headers)

    records = [
        one(0, b"x", ("trace-id", b"first"), ("trace-id", b"last"), ("it's", b"q"), ("sig", b"\xff")), one(1, b"x"),
        one(2, b"x", ("trace-id", b"\xff")), one(3, None, ("trace-id", b"\xff")), one(4, b"x", ("trace-id", b"last"), ("it's", None)),
    ]  # fmt: skip
    found = CompilerRun(tiny(spark), traced()).run([records])
    assert found.tables["traces"] == {("last",): {"trace": "last", "n": 2, "sigs": [b"\xff"], "last": "q"}}
    assert [place[:3] for place in found.quarantine] == [("text", 0, 2)]
    assert found.differences(run_interpreter(traced(), [records])) == []


def test_a_refused_record_is_quarantined_with_all_of_its_headers_wherever_it_fails(spark: SparkSession) -> None:
    app = wt.App("shop")
    prices = app.topic("prices", key="sku STRING", value="price BIGINT").table().materialized_as("prices")
    sales = app.topic("sales", key="sku STRING", value="qty BIGINT").stream()
    sales.join(prices, share="qty DIV right.price").group_by_key().agg(share=wt.sum("share")).materialized_as("shares")
    topology, session = app.topology(), tiny(spark)
    headers = (("trace-id", b"\xff"), ("trace-id", None), ("sig", b""))
    records = [
        Record("prices", 0, 0, EPOCH, b"a", b'{"price": 0}'),
        Record("sales", 0, 0, EPOCH, b"a", b"{broken", headers),
        Record("sales", 0, 1, EPOCH, b"a", b'{"qty": 1}', headers[:1]),
    ]
    run = CompilerRun(session, topology)
    made = run.compiler.batch(as_frame(session, records), 1, {("prices", 0): None, ("sales", 0): None}, run._lookup)
    assert made.quarantine is not None
    rows = made.quarantine.orderBy("offset").collect()
    assert [(row["offset"], row["node"], bytes(row["value"])) for row in rows] == [(0, "topic", b"{broken"), (1, "join", b'{"qty": 1}')]
    found = [tuple((name, None if data is None else bytes(data)) for name, data in row["headers"]) for row in rows]
    assert found == [headers, headers[:1]]
    made.close()
