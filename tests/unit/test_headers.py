"""Headers as columns: what a definition may name, what records give, and that stories, plans and code changes know of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import watertable as wt
from watertable.errors import DefinitionError, SchemaError
from watertable.interpreter import Interpreter
from watertable.kafka import serdes
from watertable.plan.deployment import Kind, classify
from watertable.plan.lineage import describe
from watertable.plan.plan import Topology
from watertable.records import Record
from watertable.testing import TopologyTestDriver
from watertable.tools import keytext
from watertable.tools.explain import explain
from watertable.tools.testcase import as_test

READ = {"trace-id": "trace STRING", "sig": "sig BINARY"}
AT = datetime(2026, 1, 1, tzinfo=UTC)


def calls(headers: dict[str, str] | None = None, value: str = "n INT") -> Topology:
    app = wt.App("calls")
    stream = app.topic("calls", value=value, headers=READ if headers is None else headers).stream()
    stream.group_by_key().agg(trace=wt.last("trace"), n=wt.count()).materialized_as("last_call")
    return app.topology()


def record(offset: int, value: bytes | None, *headers: tuple[str, bytes | None]) -> Record:
    return Record("calls", 0, offset, AT, b"a", value, headers)


def columns(*records: Record, value: str = "n INT", value_format: str = "json") -> list[dict[str, object] | None]:
    """List what records are read as."""
    topic = wt.App("calls").topic("calls", value=value, value_format=value_format, headers=READ).topic
    return [serdes.columns_of(one, topic) for one in records]


def test_a_header_is_a_column_after_the_values() -> None:
    assert columns(record(0, b'{"n": 1}', ("trace-id", b"t1"), ("sig", b"\x00\xff"), ("other", b"x"))) == [
        {"n": 1, "trace": "t1", "sig": b"\x00\xff"}
    ]
    assert columns(record(0, b"line", ("trace-id", b"")), value="line STRING", value_format="string") == [
        {"line": "line", "trace": "", "sig": None}
    ]


def test_a_header_that_is_not_there_is_null_and_of_several_the_last_counts() -> None:
    several = record(1, b"{}", ("trace-id", b"first"), ("trace-id", b"last"), ("sig", b"x"), ("sig", None))
    assert columns(record(0, b"{}"), several) == [{"n": None, "trace": None, "sig": None}, {"n": None, "trace": "last", "sig": None}]


def test_a_tombstone_has_no_headers() -> None:
    assert columns(record(0, None, ("trace-id", b"\xff"))) == [None]


def test_a_header_that_is_no_text_quarantines_its_record_once() -> None:
    engine = Interpreter(calls())
    engine.read([record(0, b"{}", ("trace-id", b"\xff")), record(1, b"{broken", ("trace-id", b"\xff")), record(2, b"{}", ("sig", b"\xff"))])
    assert (engine.quarantine[0].record.offset, engine.quarantine[0].reason) == (
        0,
        "header trace-id: not UTF-8: invalid start byte at byte 0",
    )
    assert [q.record.offset for q in engine.quarantine] == [0, 1]
    assert engine.tables["last_call"] == {("a",): {"key": "a", "trace": None, "n": 1}}


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"trace-id": "trace"}, "header 'trace-id'"),
        ({"trace-id": "trace INT"}, r"header 'trace-id' wants one column, of STRING or BINARY, to be cast later; got 'trace INT'"),
        ({"trace-id": "a STRING, b STRING"}, "wants one column"),
        ({"trace-id": "n STRING"}, "headers: column 'n' is named twice"),
        ({"a": "trace STRING", "b": "trace STRING"}, "headers: column 'trace' is named twice"),
        ({"trace-id": "`trace-id` STRING"}, "'trace-id' is not an identifier"),
    ],
)
def test_headers_that_can_be_no_columns_are_refused_with_their_place(headers: dict[str, str], says: str) -> None:
    with pytest.raises(SchemaError, match=rf"test_headers\.py:\d+.*{says}"):
        calls(headers)


def test_a_tables_rows_have_the_headers_of_their_last_record() -> None:
    app = wt.App("users")
    app.topic("users", key="id STRING", value="name STRING", headers={"source": "source STRING"}).table().materialized_as("users")
    driver = TopologyTestDriver(app)
    driver.pipe_input("users", "ann", {"name": "Ann"}, headers={"source": "crm"}, timestamp=AT)
    driver.pipe_input("users", "bob", {"name": "Bob"}, timestamp=AT)
    assert driver.table("users") == {
        "ann": {"id": "ann", "name": "Ann", "source": "crm"},
        "bob": {"id": "bob", "name": "Bob", "source": None},
    }


def test_a_processor_sees_headers_in_its_records_value() -> None:
    def traced(record: wt.Record, context: wt.Context) -> None:
        context.forward({"trace": record.value and record.value["trace"]})

    app = wt.App("calls")
    made = app.topic("calls", value="n INT", headers=READ).stream().process(traced, children={"traces": "trace STRING"})
    made["traces"].to("traces")
    driver = TopologyTestDriver(app)
    driver.pipe_input("calls", "a", {"n": 1}, headers={"trace-id": "t1", "sig": b"\x01"}, timestamp=AT)
    assert [out.value for out in driver.read_output("traces")] == [{"trace": "t1"}]


def published(**headers: str) -> TopologyTestDriver:
    """Publish a table's changes under these headers."""
    app = wt.App("stock")
    sums = app.topic("moves", key="sku STRING", value="qty INT").stream().group_by_key().agg(qty=wt.sum("qty")).materialized_as("sums")
    told = sums.to_stream().filter("new.qty <> 0 OR new.qty IS NULL")
    told.to("told", headers={name.replace("_", "-"): text for name, text in headers.items()})
    return TopologyTestDriver(app)


def test_what_is_published_has_the_headers_that_it_names_and_none_that_is_null() -> None:
    driver = published(was="CAST(old.qty AS STRING)", sku="key.sku", raw_key="CAST(key.sku AS BINARY)")
    for qty in (3, 4):
        driver.pipe_input("moves", "tea", {"qty": qty}, timestamp=AT)
    assert [sent.headers for sent in driver.read_output("told")] == [
        {"sku": "tea", "raw-key": b"tea"}, {"was": "3", "sku": "tea", "raw-key": b"tea"},
    ]  # fmt: skip


def test_a_tombstone_has_headers_of_the_row_that_is_gone() -> None:
    app = wt.App("users")
    users = app.topic("users", key="id STRING", value="name STRING").table().materialized_as("users")
    users.to_stream().to("told", headers={"was": "old.name", "is": "new.name"})
    driver = TopologyTestDriver(app)
    driver.pipe_input("users", "ann", {"name": "Ann"}, timestamp=AT)
    driver.pipe_input("users", "ann", None, timestamp=AT)
    assert [(sent.value, sent.headers) for sent in driver.read_output("told")] == [({"name": "Ann"}, {"is": "Ann"}), (None, {"was": "Ann"})]


def test_a_header_that_fails_quarantines_its_record_and_nothing_is_published() -> None:
    driver = published(part="CAST(100 DIV (new.qty - 3) AS STRING)")
    for qty in (3, 1):
        driver.pipe_input("moves", "tea", {"qty": qty}, timestamp=AT)
    assert [(sent.value, sent.headers) for sent in driver.read_output("told")] == [({"qty": 4}, {"part": "100"})]
    ((refused),) = driver.quarantine()
    assert (refused.record.offset, refused.node) == (0, "to")
    assert "test_headers.py:" in refused.location
    assert driver.table("sums") == {"tea": {"sku": "tea", "qty": 4}}


@pytest.mark.parametrize(
    ("text", "says"),
    [("new.qty", r"header 'h' wants STRING or BINARY; got BIGINT: cast it"), ("new.shelf", "shelf"), ("array('a')", "got ARRAY<STRING>")],
)
def test_a_header_of_another_type_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(DefinitionError, match=rf"test_headers\.py:\d+.*{says}"):
        published(h=text)


def test_published_headers_are_in_the_fingerprint_and_roll_in_at_the_next_commit() -> None:
    plain, named, other = (published(**headers).topology for headers in ({}, {"h": "key.sku"}, {"h": "upper(key.sku)"}))
    assert len({plain.fingerprint, named.fingerprint, other.fingerprint}) == 3
    assert {classify(plain, named).kind, classify(named, other).kind, classify(named, plain).kind} == {Kind.SAME}
    assert "header h: upper(key.sku)" in describe(other)


def test_headers_are_in_the_fingerprint_and_in_what_describes_the_app() -> None:
    assert calls().fingerprint != calls({"trace-id": "trace STRING"}).fingerprint != calls({"traceid": "trace STRING"}).fingerprint
    app = wt.App("calls")
    app.topic("calls", value="n INT", headers=READ).stream().to("out")
    assert "header trace-id: trace STRING" in app.describe()


def test_one_more_header_rolls_in_and_another_name_of_one_does_not() -> None:
    old = calls({"trace-id": "trace STRING"})
    assert classify(old, calls()).kind is Kind.SAME
    assert classify(old, calls({"traceid": "trace STRING"})).kind is Kind.BREAKING
    assert classify(old, calls(value="n INT, m INT")).kind is Kind.SAME


def test_a_rows_story_holds_the_headers_that_made_it() -> None:
    topology = calls()
    records = [record(0, b'{"n": 1}', ("trace-id", b"t1"), ("other", b"x")), record(1, b'{"n": 2}', ("trace-id", b"t2"), ("sig", b"\xff"))]
    told = explain(topology, topology.table("last_call"), keytext.read(topology.table("last_call"), ["a"]), records)
    assert [step.record for step in told.steps] == [{"n": 1, "trace": "t1", "sig": None}, {"n": 2, "trace": "t2", "sig": b"\xff"}]
    written = as_test(topology, topology.table("last_call"), told, records, "watertable explain")
    assert 'headers={"trace-id": "t2", "sig": b' in written
    assert "other" not in written
