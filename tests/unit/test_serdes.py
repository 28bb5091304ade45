"""Bytes to values and back, without Spark; tests/spark/test_serdes_agree.py holds the same functions to Spark's."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watertable.errors import DecodeError
from watertable.kafka.serdes import decode, encode
from watertable.plan.nodes import Format
from watertable.schema import Schema

JSON = Format.JSON


def read(ddl: str, text: str) -> Any:
    row = decode(text.encode(), Schema.parse(ddl), JSON)
    assert row is not None
    return next(iter(row.values()))


@pytest.mark.parametrize("form", Format)
def test_no_bytes_are_no_value_in_every_format(form: Format) -> None:
    assert decode(None, Schema.parse("a STRING"), form) is None
    assert encode(None, Schema.parse("a STRING"), form) is None


def test_text_and_bytes_are_their_only_column() -> None:
    text, raw = Schema.parse("k STRING"), Schema.parse("b BINARY")
    assert decode("Ünï".encode(), text, Format.STRING) == {"k": "Ünï"}
    assert encode({"k": "Ünï"}, text, Format.STRING) == "Ünï".encode()
    assert decode(b"\xff", raw, Format.BYTES) == {"b": b"\xff"}
    assert encode({"b": b"\xff"}, raw, Format.BYTES) == b"\xff"
    with pytest.raises(DecodeError, match="not UTF-8"):
        decode(b"\xff", text, Format.STRING)


@pytest.mark.parametrize(
    ("ddl", "text", "value"),
    [
        ("a INT", '{"a": 5, "unknown": [1, {"x": 2}]}', 5),
        ("a INT", '{"b": 5}', None),
        ("a INT", '{"a": null}', None),
        ("a INT", '{"a": 1, "a": 2}', 2),
        ("a INT", '{"a": 1} what follows is not read', 1),
        ("a STRING", "{'a': 'single \"quotes\"'}", 'single "quotes"'),
        ("a STRING", '{"a": 1.10}', "1.1"),
        ("a STRING", '{"a": {"b": [1, true, null]}}', '{"b":[1,true,null]}'),
        ("a DECIMAL(12,3)", '{"a": 1.2345}', Decimal("1.235")),
        ("a DECIMAL(12,3)", '{"a": "1,000.5"}', Decimal("1000.500")),
        ("a TIMESTAMP", '{"a": "2010-12-01T08:26:00+01:00"}', datetime(2010, 12, 1, 7, 26, tzinfo=UTC)),
        ("a TIMESTAMP", '{"a": "2010-12-01 08:26"}', datetime(2010, 12, 1, 8, 26, tzinfo=UTC)),
        ("a TIMESTAMP", '{"a": 60}', datetime(1970, 1, 1, 0, 1, tzinfo=UTC)),
        ("a DATE", '{"a": "2010-12-01"}', date(2010, 12, 1)),
        ("a BINARY", '{"a": "AP8="}', b"\x00\xff"),
        ("a ARRAY<INT>", '{"a": [1, null]}', [1, None]),
        ("a MAP<STRING, INT>", '{"a": {"x": 1}}', {"x": 1}),
        ("a STRUCT<b: INT, c: STRING>", '{"a": {"c": "x"}}', {"b": None, "c": "x"}),
        ("a DOUBLE", '{"a": "-INF"}', float("-inf")),
    ],
)  # fmt: skip
def test_json_is_read_by_columns(ddl: str, text: str, value: object) -> None:
    assert read(ddl, text) == value


@pytest.mark.parametrize(
    ("ddl", "text", "reason"),
    [
        ("a INT", "", "not JSON"),
        ("a INT", "5", '5 is no JSON object: wanted {"a": …}'),
        ("a INT", "null", "null is no JSON object"),
        ("a INT", '[{"a": 1}]', "is no JSON object"),
        ("a INT", '{"a": 1', "not JSON"),
        ("a INT", '{"a": 1.0}', "a: 1.0 is not INT"),
        ("a INT", '{"a": "1"}', 'a: "1" is not INT'),
        ("a INT", '{"a": 2147483648}', "a: 2147483648 is not INT"),
        ("a BOOLEAN", '{"a": "true"}', "is not BOOLEAN"),
        ("a DECIMAL(4,2)", '{"a": 123.4}', "a: 123.4 doesn't fit"),
        ("a DECIMAL(4,2)", '{"a": " 1"}', "is not DECIMAL"),
        ("a TIMESTAMP", '{"a": "yesterday"}', "is not a TIMESTAMP"),
        ("a STRUCT<b: INT>", '{"a": {"b": "x"}}', 'a: b: "x" is not INT'),
        ("a ARRAY<INT>", '{"a": 1}', "is not ARRAY<INT>"),
        ("a BINARY", '{"a": "*"}', "is not BINARY"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(ddl: str, text: str, reason: str) -> None:
    with pytest.raises(DecodeError) as refused:
        read(ddl, text)
    assert reason in str(refused.value)


def test_json_is_written_compactly_with_its_nulls_and_microseconds() -> None:
    schema = Schema.parse("a DECIMAL(12,3), b TIMESTAMP, c STRING, d STRUCT<e: DOUBLE>, f INT, g DECIMAL(9,8)")
    row = {
        "a": Decimal("1.5"), "b": datetime(2010, 12, 1, 8, 26, 0, 1, UTC), "c": 'Ü"\x01', "d": {"e": 1e7}, "f": None, "g": Decimal("1e-8"),
    }  # fmt: skip
    written = encode(row, schema, JSON)
    assert written is not None
    assert written.decode() == '{"a":1.500,"b":"2010-12-01T08:26:00.000001Z","c":"Ü\\"\\u0001","d":{"e":1.0E7},"f":null,"g":1E-8}'


VALUES = st.fixed_dictionaries(
    {
        "s": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "l": st.none() | st.integers(-(2**63), 2**63 - 1),
        "d": st.none() | st.decimals(-(10**8), 10**8, places=3),
        "f": st.none() | st.floats(allow_nan=False),
        "t": st.none() | st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
        "y": st.none() | st.dates(),
        "b": st.none() | st.binary(),
        "o": st.none() | st.booleans(),
        "a": st.none() | st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]))),
        "m": st.none() | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.integers(0, 9)),
        "r": st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 9)}),
    }
)
SCHEMA = Schema.parse(
    "s STRING, i INT, l BIGINT, d DECIMAL(12,3), f DOUBLE, t TIMESTAMP, y DATE, b BINARY, o BOOLEAN, a ARRAY<STRING>, m MAP<STRING, INT>, "
    "r STRUCT<x: INT>"
)


KEYS = {
    "INT": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "DECIMAL(12,3)": st.decimals(-(10**8), 10**8, places=3),
    "FLOAT": st.floats(allow_nan=False, width=32),
    "DOUBLE": st.floats(allow_nan=False),
    "BOOLEAN": st.booleans(),
    "DATE": st.dates(),
    "TIMESTAMP": st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
}


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
def test_keys_of_maps_are_read_back_of_every_type_that_is_written(kind: str, data: st.DataObject) -> None:
    schema = Schema.parse(f"m MAP<{kind}, INT>, a ARRAY<MAP<{kind}, STRING>>")
    row = {"m": data.draw(st.dictionaries(KEYS[kind], st.none() | st.integers(0, 9))), "a": [{data.draw(KEYS[kind]): "x"}, None]}
    assert decode(encode(row, schema, JSON), schema, JSON) == row


@given(VALUES)
def test_what_is_written_is_read_back(row: dict[str, Any]) -> None:
    assert decode(encode(row, SCHEMA, JSON), SCHEMA, JSON) == row


@pytest.mark.parametrize("levels", [1000, 3000, 100_000])
def test_objects_and_arrays_in_one_another_are_read_as_deep_as_spark_reads_them_whatever_room_python_has(levels: int) -> None:
    with pytest.raises(DecodeError, match="nested too deeply"):
        read("a INT", f'{{"a": 1, "b": {"[" * levels}{"]" * levels}}}')
    assert read("a INT", '{"a": 1, "b": [' + "[],{}," * 1000 + "[]]}") == 1, "many, but beside one another"
