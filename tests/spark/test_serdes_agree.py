"""Two readings of one record: `kafka.serdes` must give what Spark's from_json gives, and write the bytes that the compiler publishes."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from watertable.errors import DecodeError
from watertable.kafka import serdes
from watertable.plan.nodes import Format
from watertable.schema import Schema, Type
from watertable.sql.scalars import single

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark

TYPES = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(12,3)", "DECIMAL(38,18)", "STRING", "BINARY", "DATE",
    "TIMESTAMP", "ARRAY<INT>", "ARRAY<STRING>", "MAP<STRING, DOUBLE>", "STRUCT<x: INT, y: STRING>", "ARRAY<STRUCT<x: DECIMAL(5,1)>>",
)  # fmt: skip
TOKENS = (
    "null", "true", "false", "0", "-0", "1", "-1", "127", "128", "200", "255", "256", "-128", "-129", "32767", "32768", "2147483647",
    "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "1.0", "-0.0", "1.5", "1.10", "1.2345", "1.0005",
    "-1.0005", "1e3", "1E-3", "1e400", "123456789.1234", "12345678901234567890123.5", "0.1", "16777217", "NaN", "Infinity", "-Infinity",
    "INF", "-INF", "+INF", "01", "+1", ".5", "1.", "-", '""', '" "', '"x"', '"1"', '"1.5"', '" 1"', '"1,234.5"', '"1e2"', '"1e"', '"NaN"',
    '"INF"', '"+INF"', '"-Infinity"', '"Infinity"', '"infinity"', '"true"', '"2010-12-01"', '"2010-12-01T08:26:00Z"',
    '"2010-12-01 08:26"', '"2010-12-01T08:26:00.1234567+02:00"', '"2010-12-01 08:26:00 Europe/Berlin"', '"2010-12-01T08:26:00GMT+01:00"',
    '"2010"', '"2010-13-01"', '"123"', '"-3"', '"2010-12-01T"', '"AP8="', '"AP8"', '"A P8="', '"*"', '"QQ=="', "[]", "[1]", "[1,null]",
    "[1.5]", '["a",null,1,{"b":[2]}]', "{}", '{"x":1}', '{"x":1.5}', '{"x":null,"y":{"z":[1.10,"q"]}}', '{"x":"1"}', '[{"x":1.25}]',
    '[{"x":99999}]', "'x'", "'it\\'s'", "'say \"hi\"'", '"caf\\u00e9"', '"\\ud83d\\ude00"', '"\\ud800"', '"tab\\there"', '"bad\\q"',
    '"raw\ttab"', '"un', "\"it\\'s\"", "{'x': 1}", "[1,]", "nul", "True",
)  # fmt: skip
WHOLE = (
    "", " ", "null", "5", '"x"', "[]", '[{"a":1}]', "{}", '{"a":1}{"a":2}', '{"a":1} trailing', '{"a":1,"a":2}', '{"a":1,"a":"x"}',
    '{"a":"x","a":1}', '{"a":1,}', "{a:1}", '{"A":1}', '{"a":1', '{"b":[{"c":nul}],"a":1}', '{"b":[{"c":1}],"a":1}', '\ufeff{"a":1}',
    ' \n{"a" : 1 }', '{"a":1 "b":2}', "x", '{"b":"\\q","a":1}', '// c\n{"a":1}', '{"a":/* c */1}',
)  # fmt: skip


def same(mine: Any, theirs: Any) -> bool:
    match mine, theirs:
        case float(), float():
            return mine == theirs or (math.isnan(mine) and math.isnan(theirs))
        case list(), list():
            return len(mine) == len(theirs) and all(same(a, b) for a, b in zip(mine, theirs, strict=True))
        case dict(), dict():
            return list(mine) == list(theirs) and all(same(mine[k], theirs[k]) for k in mine)
        case bytes(), bytearray():
            return mine == bytes(theirs)
        case datetime(), datetime():
            return mine == theirs.astimezone(UTC)  # PySpark gives the local time
    return type(mine) is type(theirs) and mine == theirs


def plain(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return {name: plain(field) for name, field in value.asDict().items()}
    if isinstance(value, list):
        return [plain(element) for element in value]
    return {key: plain(element) for key, element in value.items()} if isinstance(value, dict) else value


def read_by_spark(spark: SparkSession, texts: list[bytes], ddl: str) -> list[Any]:
    """Decode as the compiler does; "refused" where it would quarantine."""
    frame = spark.createDataFrame([(n, bytearray(text)) for n, text in enumerate(texts)], "n INT, raw BINARY").coalesce(1)
    options = "map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_wt_corrupt')"
    read = frame.selectExpr("n", f"from_json(CAST(raw AS STRING), '{ddl}, _wt_corrupt STRING', {options}) AS r")
    rows: list[Row] = read.selectExpr("n", "r IS NULL OR r._wt_corrupt IS NOT NULL AS bad", "r.a").orderBy("n").collect()
    return ["refused" if row.bad else plain(row.a) for row in rows]


def read_by_us(text: bytes, ddl: str) -> Any:
    try:
        row = serdes.decode(text, Schema.parse(ddl), Format.JSON)
    except DecodeError:
        return "refused"
    assert row is not None
    return row["a"]


def test_every_type_reads_every_token_as_spark_does(spark: SparkSession) -> None:
    texts = [f'{{"a": {token}, "b": 1}}'.encode() for token in TOKENS]
    differ = []
    for kind in TYPES:
        for text, theirs in zip(texts, read_by_spark(spark, texts, f"a {kind}"), strict=True):
            mine = read_by_us(text, f"a {kind}")
            if not same(mine, theirs):
                differ.append(f"{kind} {text.decode()}: Spark {theirs!r}, we {mine!r}")
    assert not differ, "\n".join(differ)


def test_whole_texts_are_taken_and_refused_as_by_spark(spark: SparkSession) -> None:
    deep = [b'{"a":1,"b":' + b"[" * n + b"]" * n + b"}" for n in (800, 1000, 3000)]
    texts: list[bytes] = [*(text.encode() for text in WHOLE), *deep, b'{"a":\xff}', b'{"a":1,"b":"\xff"}', b"\xff"]
    theirs = read_by_spark(spark, texts, "a INT")
    differ = [f"{t!r}: Spark {s!r}, we {m!r}" for t, s in zip(texts, theirs, strict=True) if (m := read_by_us(t, "a INT")) != s]
    assert not differ, "\n".join(differ)


def test_broken_utf8_reads_as_by_spark(spark: SparkSession) -> None:
    texts = [
        b'{"a":"' + junk + b'"}'
        for junk in (b"\xff", b"a\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", "é€😀".encode())
    ]
    differ = [
        f"{t!r}: Spark {s!r}, we {m!r}"
        for t, s in zip(texts, read_by_spark(spark, texts, "a STRING"), strict=True)
        if (m := read_by_us(t, "a STRING")) != s
    ]
    assert not differ, "\n".join(differ)


def value_of(kind: Type, random: random.Random) -> Any:
    if random.random() < 0.1:
        return None
    match kind.kind:
        case "boolean":
            return random.random() < 0.5
        case "tinyint" | "smallint" | "int" | "bigint":
            bits = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}[kind.kind]
            return random.choice([0, -1, 2**bits - 1, -(2**bits), random.randrange(2**bits)])
        case "float":
            return random.choice([0.0, -0.0, 1.5, 0.25, math.inf, -math.inf, math.nan, 16777216.0, 2.0**-20])
        case "double":
            return random.choice([0.0, -0.0, 1.5, 0.1, 1e7, 1e-3, 9999999.0, 1e21, -1e-5, math.inf, math.nan, random.uniform(-1e6, 1e6)])
        case "decimal":
            return Decimal(random.choice([0, 1, -1, random.randrange(-(10**4), 10**4)])).scaleb(-random.randrange(kind.scale + 1))
        case "string":
            return "".join(random.choices('aé€😀"\\/\b\f\n\r\t\x00\x01\x1f\x7f\u2028 {}', k=random.randrange(8)))
        case "binary":
            return random.randbytes(random.randrange(6))
        case "date":
            return date(random.randrange(1, 9999), random.randrange(1, 13), random.randrange(1, 29))
        case "timestamp":
            return datetime.fromtimestamp(random.randrange(0, 4 * 10**9), UTC).replace(microsecond=random.choice([0, 1, 120000, 999999]))
        case "array":
            assert kind.element is not None
            return [value_of(kind.element, random) for _ in range(random.randrange(3))]
        case "map":
            assert kind.element is not None
            return {k: value_of(kind.element, random) for k in random.choice([(), ("k",), ('q"',), ("é",)])}  # more come in any order
        case _:
            return {f.name: value_of(f.type, random) for f in kind.fields}


def test_what_is_written_is_what_the_compiler_publishes(spark: SparkSession) -> None:
    from watertable.compiler.layout import encoded

    schema = Schema.parse(", ".join(f"c{n} {kind}" for n, kind in enumerate(TYPES)))
    numbers = random.Random(7)
    rows = [{column.name: value_of(column.type, numbers) for column in schema} for _ in range(200)]
    frame = spark.createDataFrame([(n, row) for n, row in enumerate(rows)], f"n INT, v {schema.struct().sql()}").coalesce(1)
    theirs = [bytes(r.b) for r in frame.selectExpr("n", f"{encoded('v', Format.JSON, schema)} AS b").orderBy("n").collect()]
    mine = [serdes.encode(row, schema, Format.JSON) for row in rows]
    differ = [f"Spark {b!r}\nwe    {a!r}" for a, b in zip(mine, theirs, strict=True) if a != b]
    assert not differ, "\n".join(differ[:3])


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("BOOLEAN", [True, False]),
        ("INT", [-7]),
        ("DECIMAL(12,3)", [Decimal("-1.500"), Decimal("0.000")]),
        ("DECIMAL(38,18)", [Decimal("1E-18")]),
        ("FLOAT", [0.1, 1e10]),
        ("DOUBLE", [0.1, 1e21, math.inf]),
        ("DATE", [date(2020, 1, 1), date(1969, 12, 31)]),
        ("TIMESTAMP", [datetime(2020, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]),
    ],
)
def test_the_keys_of_a_map_are_written_as_spark_writes_them(spark: SparkSession, kind: str, keys: list[Any]) -> None:
    from watertable.compiler.layout import encoded

    schema = Schema.parse(f"m MAP<{kind}, INT>")
    rows = [{"m": {single(key) if kind == "FLOAT" else key: 1}} for key in keys]
    frame = spark.createDataFrame([(n, row) for n, row in enumerate(rows)], f"n INT, v {schema.struct().sql()}").coalesce(1)
    theirs = [bytes(r.b) for r in frame.selectExpr("n", f"{encoded('v', Format.JSON, schema)} AS b").orderBy("n").collect()]
    assert [serdes.encode(row, schema, Format.JSON) for row in rows] == theirs
