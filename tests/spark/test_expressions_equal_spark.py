"""Law: for every function and operator of the subset, value, type and failure are the same in Spark and in the interpreter.

One table of edge values, one Spark select per group of expressions. Per row and expression four things are compared: the interpreter's
value or failure, `safe_sql`, `fails_sql`, and whether the strict `sql` raises (asked of Spark inside its own try).
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from watertable.errors import EvaluationError, ExpressionError, UnsupportedFunction
from watertable.plan.aggregates import avg, bind
from watertable.schema import Schema, Type
from watertable.settings import LEFT_OUT, REGROUPS
from watertable.sql.casts import micros
from watertable.sql.coercion import castable
from watertable.sql.evaluator import evaluate
from watertable.sql.expressions import Expr, Scope, parse
from watertable.sql.functions import FUNCTIONS
from watertable.sql.scalars import EXACT
from watertable.sql.terms import Call, walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

UTC = dt.UTC
NAN, INF = math.nan, math.inf
D = Decimal


def at(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type]


# Each type has up to 14 edge values; columns x_a and x_b walk through all pairs of them.
EDGES: dict[str, tuple[str, list[Any]]] = {
    "bo": ("BOOLEAN", [None, True, False]),
    "ti": ("TINYINT", [None, 0, 1, -1, 127, -128, 7]),
    "si": ("SMALLINT", [None, 0, 1, -1, 32767, -32768, 300]),
    "i": ("INT", [None, 0, 1, -1, 2, 3, -7, 10, 31, 100, 2**31 - 1, -(2**31), 1582, -2]),
    "bi": ("BIGINT", [None, 0, 1, -1, 7, -7, 2**63 - 1, -(2**63), 2**53 + 1, 86_400, 1_577_836_800, 2**31, -3]),
    "f": ("FLOAT", [None, 0.0, -0.0, 1.0, -1.5, 0.5, 16777216.0, 3.4028234663852886e38, 1.401298464324817e-45, NAN, INF, -INF,
                    0.10000000149011612]),
    "d": ("DOUBLE", [None, 0.0, -0.0, 1.0, -1.5, 2.5, 0.1, 1e10, 1.7976931348623157e308, 5e-324, NAN, INF, -INF, 1e-5]),
    "d52": ("DECIMAL(5,2)", [None, D("0.00"), D("1.00"), D("-1.00"), D("999.99"), D("-999.99"), D("0.01"), D("2.50"), D("0.05")]),
    "d93": ("DECIMAL(9,3)", [None, D("0.000"), D("1.250"), D("-0.001"), D("999999.999"), D("-999999.999"), D("3.500")]),
    "d180": ("DECIMAL(18,0)", [None, D(0), D(1), D(-7), D(10**18 - 1), D(-(10**18) + 1)]),
    "d3810": ("DECIMAL(38,10)", [None, D("0E-10"), D("1.0000000000"), D("-0.0000000001"), D("9" * 28 + "." + "9" * 10),
                                 D("-" + "9" * 28 + "." + "9" * 10), D("3.3333333333"), D("123456789.0000000005")]),
    "d380": ("DECIMAL(38,0)", [None, D(0), D(3), D(-1), D("9" * 38), D("-" + "9" * 38), D(10**19)]),
    "d3838": ("DECIMAL(38,38)", [None, D("0E-38"), D("0." + "9" * 38), D("-0." + "1" * 38), D("1E-38")]),
    "s": ("STRING", [None, "", "a", "A", "abc", "aXbXc", "Ünïcødé", "ß", "日本語", "a,b,,c,", " pad ", "e\u0301", "😀b", "a.b.c"]),
    "u": ("STRING", [None, "", "b", "X", ",", "c", "ø", "bc", "%", "a_b", "日", " ", "😀", "."]),
    "b": ("BINARY", [None, b"", b"a", b"abc", "ü".encode(), b"\xff", b"a\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]),
    "da": ("DATE", [None, dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2000, 2, 29), dt.date(2021, 12, 31), dt.date(2020, 1, 31),
                    dt.date(1900, 3, 1), dt.date(1582, 10, 15), dt.date(2024, 12, 30), dt.date(1, 1, 2), dt.date(9999, 12, 30)]),
    "ts": ("TIMESTAMP", [None, at(1970, 1, 1), at(1969, 12, 31, 23, 59, 59, 999999), at(2000, 2, 29, 12, 30, 45, 123456),
                         at(2010, 12, 1, 8, 26), at(2021, 3, 28, 1, 30), at(2021, 10, 31, 1, 30), at(1900, 1, 1, 0, 0, 0, 1),
                         at(2024, 12, 31, 23, 59, 59), at(2038, 1, 19, 3, 14, 8), at(2020, 3, 31, 12), at(1582, 10, 15, 6),
                         at(2000, 3, 1, 0, 0, 0, 500000)]),
    "ai": ("ARRAY<INT>", [None, [], [1], [1, 2, 3], [3, None, 1], [None], [2, 2, 1], [-1, 2**31 - 1]]),
    "as": ("ARRAY<STRING>", [None, [], ["a"], ["b", None, "a"], ["日", "a", "a"], [""]]),
    "ad": ("ARRAY<DOUBLE>", [None, [], [1.0, NAN], [NAN, None, -0.0, 0.0], [INF, -INF]]),
    "aa": ("ARRAY<ARRAY<INT>>", [None, [], [[1], [2, None]], [[1], None], [[]]]),
    "m": ("MAP<STRING, INT>", [None, {}, {"a": 1}, {"a": None, "b": 2}]),
    "mi": ("MAP<INT, STRING>", [None, {}, {1: "x", 2: None}]),
    "st": ("STRUCT<n: INT, t: STRING>", [None, {"n": 1, "t": "x"}, {"n": None, "t": None}, {"n": 2, "t": "1"}]),
}  # fmt: skip
# Texts to be cast: one column each, one text per row.
NUMBERS = [
    None, "0", "1", "-1", "+5", " 7 ", "\t8\n", "007", "1.0", "1.5", "-1.5", ".5", "5.", "1e3", "1E-3", "-1e400", "1e400", "abc", "",
    " ", "-", "+", "127", "128", "-128", "-129", "32768", "2147483647", "2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "99999999999999999999999999999999999999", "999999999999999999999999999999999999990", "0.1234567890123456789",
    "1_000", "1,000", "0x10", "0x1p3", "NaN", "nan", "+NaN", "Infinity", "-infinity", "inf", "-INF", "1d", "1.5f", "1D", "1L",
    "12345.678", "0.005", "99999.995", "1e5", "1e-10", "0e100", "true", "T", "yes", "Y", "n", "No", "f", "false", "tru", "\u0661",
    "1\u00a0", "\x7f9\x00", "--1", "1e", "e5", "0.0", "-0", "1e38", "1e37", "-0.0", "+.5e+1", "1.", "Infinityx",
]  # fmt: skip
TIMES = [
    None, "", " ", "2020-01-01", "2020-1-1", "2020-01", "2020", " 2020-01-02 ", "2020-02-30", "2021-02-29", "2020-13-01", "2020-01-01T",
    "2020-01-01 ", "2020-01-01 12", "2020-01-01T12", "2020-01-01 12:30", "2020-01-01 12:30:45", "2020-01-01T12:30:45",
    "2020-01-01 12:30:45.1", "2020-01-01 12:30:45.123456", "2020-01-01 12:30:45.1234567", "2020-01-01 12:30:45.", "2020-01-01 1:2:3",
    "2020-01-01 24:00:00", "2020-01-01 12:60:00", "2020-01-01 12:30:45Z", "2020-01-01T12:30:45.5Z", "2020-01-01 12:30:45+01:00",
    "2020-01-01 12:30:45-08:00", "2020-01-01 12:30:45 +5:30", "2020-01-01 12:30:45+0530", "2020-01-01 12:30:45+5",
    "2020-01-01 12:30:45 UTC", "2020-01-01 12:30:45 GMT+2", "2020-07-01 12:30:45 Europe/Berlin", "2020-01-01 12:30:45 America/New_York",
    "2020-01-01 12:30:45 EST", "2020-01-01 12:30:45 PST", "2020-01-01 12:30:45 Nowhere/City", "2020-01-01 12:30:45+19:00",
    "2020-01-01 12:30:45+18:00", "2020-01-01 12:30Z", "2020-01-01Z", "1-1-1", "20200101", "0001-01-01", "9999-12-31",
    "9999-12-31 23:59:59.999999", "-0001-01-01", "+2020-01-01", "2020-01-01abc", "2020-01-01 abc", "2020-01-01Tabc", "2020/01/01",
    "12:30", "T12:30", "12:30:45", "1:2", "now", "today", "epoch", "2020-01-01 12:30:45 z", "2021-03-28 02:30:00 Europe/Berlin",
    "2021-10-31 02:30:00 Europe/Berlin", "1582-10-10", "2020-01-01 12:30:45+1:2", "01/02/2020 03:04", "2020-01-01T12:30:45.123",
    "2020-01-01 12:30:45.1.2", "2020-01-01 12:30:45+01", "2020-01-01 12:30:45+010203", "2020-01-01 12:30:45+01:02:03",
    "2020-01-01 12:30:45UTC+1", "02020-01-01", "0000-01-01",
]  # fmt: skip
SIDE = 14
ROWS = SIDE * SIDE

SCHEMA = Schema.parse(
    ", ".join(f"{name}_{side} {ddl}" for name, (ddl, _) in EDGES.items() for side in "ab") + ", num STRING, tim STRING, zero INT"
)
SCOPE = Scope({"value": SCHEMA}, bare=("value",))


def rows() -> list[dict[str, Any]]:
    found = []
    for k in range(ROWS):
        row: dict[str, Any] = {}
        for name, (_, values) in EDGES.items():
            row[f"{name}_a"], row[f"{name}_b"] = values[k % SIDE % len(values)], values[k // SIDE % len(values)]
        row |= {"num": NUMBERS[k % len(NUMBERS)], "tim": TIMES[k % len(TIMES)], "zero": 0}
        found.append(row)
    return found


MAIN = ["i", "bi", "d", "d93", "d3810"]
NUMERIC = ["ti", "si", "i", "bi", "f", "d", "d52", "d93", "d180", "d3810", "d380", "d3838"]


def written(group: str) -> list[str]:
    """Read the expressions of one group from expressions.sql, one a line."""
    blocks = re.split(r"^-- (\w+)\n", (Path(__file__).parent / "expressions.sql").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(blocks[1::2], blocks[2::2], strict=True))[group].split("\n\n", 1)[0].splitlines()


def operands(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for a, b in pairs:
        yield from (f"{a}_a {o} {b}_b" for o in ("+", "-", "*", "/", "%"))
        yield from (f"{a}_a < {b}_b", f"{a}_a = {b}_b", f"coalesce({a}_a, {b}_b)")


def arithmetic() -> Iterator[str]:
    yield from operands(itertools.product(MAIN, MAIN))
    yield from operands((("ti", "si"), ("f", "i"), ("d52", "ti"), ("d180", "f"), ("d380", "bi"), ("d3838", "d93"), ("bi", "d3838"),
                         ("d", "d3838")))  # fmt: skip
    for a in NUMERIC:
        if a not in ("d3810", "d3838"):
            yield from (f"-{a}_a", f"abs({a}_a)")
        if not a.startswith("d") or a == "d":
            yield from (f"pmod({a}_a, 7)", f"pmod({a}_a, {a}_b)")
        yield from (f"sign({a}_a)", f"sqrt({a}_a)", f"floor({a}_a)", f"ceil({a}_a)", f"{a}_a + 1", f"{a}_a * 2.5",
                    f"{a}_a / 3", f"{a}_a % 7", f"3 % {a}_a", f"round({a}_a)", f"bround({a}_a)",
                    f"greatest({a}_a, {a}_b)", f"least({a}_a, {a}_b, 1)", f"try_add({a}_a, {a}_b)", f"try_subtract({a}_a, {a}_b)",
                    f"try_multiply({a}_a, {a}_b)", f"try_divide({a}_a, {a}_b)", f"try_mod({a}_a, {a}_b)", f"{a}_a IN (1, 2, NULL)",
                    f"{a}_a BETWEEN 0 AND {a}_b", f"{a}_a <=> {a}_b", f"{a}_a >= {a}_b", f"{a}_a > 0.5", f"{a}_a <= 1",
                    f"nullif({a}_a, {a}_b)", f"{a}_a <> {a}_b", f"isnan({a}_a)", f"nanvl({a}_a, 0)",
                    f"num + {a}_a", f"{a}_a = num")  # fmt: skip
    for a in ("f", "d", "d52", "d93", "d3810"):
        yield from (f"round({a}_a, {n})" for n in (0, 1, 2))
        yield from (f"bround({a}_a, {n})" for n in (0, 1))
        yield from (f"round({a}_a, {n})" for n in (5000, *(() if a == "d3810" else (-5000,))))
    for a, b in itertools.product(("ti", "i", "bi"), repeat=2):  # Spark's optimizer would regroup these, and overflow elsewhere or nowhere
        yield from (f"try_add(try_add({a}_a, 1), -2)", f"try_multiply(try_multiply({a}_a, 2), 0)", f"try_add({a}_a, {b}_b) + -1",
                    f"{a}_a + 1 + -2", f"({a}_a + 1) + ({b}_b + -1)")  # fmt: skip
    yield from written("arithmetic")


def logic() -> Iterator[str]:
    yield from written("logic")


def text() -> Iterator[str]:
    yield from written("text")


def times() -> Iterator[str]:
    for part in ("year", "quarter", "month", "day", "dayofweek", "weekday", "dayofyear", "weekofyear"):
        yield from (f"{part}(da_a)", f"{part}(ts_a)")
    for part in ("hour", "minute", "second"):
        yield from (f"{part}(ts_a)", f"EXTRACT({part} FROM ts_a)")
    for unit in ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"):
        yield from (f"date_trunc('{unit}', ts_a)", f"timestampadd({unit}, ti_b, ts_a)", f"timestampdiff({unit}, ts_a, ts_b)",
                    f"timestampadd({unit}, i_b, ts_a)")  # fmt: skip
    yield from (f"trunc(da_a, '{unit}')" for unit in ("year", "quarter", "MM", "week"))
    yield from written("times")


def collections() -> Iterator[str]:
    yield from written("collections")


CAST_TARGETS = ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(9,3)", "DECIMAL(38,10)",
                "DECIMAL(38,0)", "DECIMAL(3,3)", "STRING", "BINARY", "DATE", "TIMESTAMP"]  # fmt: skip


def casts() -> Iterator[str]:
    sources = {f"{name}_a": ddl for name, (ddl, _) in EDGES.items() if "<" not in ddl} | {"num": "STRING", "tim": "STRING"}
    for (column, ddl), target in itertools.product(sources.items(), CAST_TARGETS):
        if castable(Type.parse(ddl), Type.parse(target)) is not None:
            yield f"CAST({column} AS {target})"
            if column in ("num", "tim", "i_a", "d_a", "d3810_a", "b_a"):
                yield f"try_cast({column} AS {target})"


SHAPES = {
    "int": ["i_a", "i_b", "ti_a", "CAST(num AS INT)", "3", "-1", "zero", "{int} + {int}", "{int} * {int}", "{int} - {int}",
    "{int} % {int}", "-({int})",
            "abs({int})", "if({bool}, {int}, {int})", "coalesce({int}, {int})", "nullif({int}, {int})", "length({text})",
            "CASE WHEN {bool} THEN {int} WHEN {bool} THEN {int} ELSE {int} END", "greatest({int}, {int})", "ai_a[{int}]", "size(ai_b)",
            "CAST({int} / {int} AS INT)", "try_add({int}, {int})", "CAST({dec} AS INT)", "year({date})", "CAST({bool} AS INT)"],
    "dec": ["d93_a", "d52_b", "2.5", "{dec} * {dec}", "{dec} + {dec}", "{dec} / {dec}", "CAST({int} AS DECIMAL(9,3))", "round({dec}, 1)",
            "coalesce({dec}, {dec})", "if({bool}, {dec}, {int})", "CAST(num AS DECIMAL(9,3))", "least({dec}, {dec})"],
    "bool": ["bo_a", "bo_b", "{int} < {int}", "{dec} >= {dec}", "{bool} AND {bool}", "{bool} OR {bool}", "NOT ({bool})",
    "({int}) IS NULL", "{text} = {text}",
             "{int} IN ({int}, 1)", "{int} BETWEEN {int} AND {int}", "{date} < {date}", "{text} LIKE 'a%'", "CAST(num AS BOOLEAN)",
             "{int} <=> {int}",
             "exists(ai_a, x -> x > 1)", "{text} = {int}"],
    "text": ["s_a", "u_b", "num", "concat({text}, {text})", "upper({text})", "substring({text}, {int}, 2)", "CAST({int} AS STRING)",
    "CAST({dec} AS STRING)",
             "if({bool}, {text}, {text})", "split(s_a, ',')[{int}]", "CAST({date} AS STRING)"],
    "date": ["da_a", "CAST(tim AS DATE)", "date_add({date}, ti_b)", "coalesce({date}, {date})", "if({bool}, {date}, {date})"],
}  # fmt: skip


def composed(seed: int, count: int) -> list[str]:
    """Compose random expressions of what fails and what decides whether it is reached."""
    choice = random.Random(seed).choice

    def make(kind: str, depth: int) -> str:
        shapes = [s for s in SHAPES[kind] if "{" not in s] if depth == 0 else SHAPES[kind]
        return re.sub(r"\{(\w+)\}", lambda m: f"({make(m[1], depth - 1)})", choice(shapes))

    found: dict[str, None] = {}
    while len(found) < count:
        text = make(choice(list(SHAPES)), 3)
        try:
            if len(parse(text, SCOPE, "test").safe_sql) < 20_000:
                found[text] = None
        except ExpressionError:  # some mixtures have no type
            continue
    return list(found)


GROUPS: dict[str, Callable[[], Iterator[str]]] = {
    "arithmetic": arithmetic, "logic": logic, "text": text, "times": times, "collections": collections, "casts": casts,
}  # fmt: skip


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> Iterator[DataFrame]:
    """One row per combination of edge values, as a DataFrame with the struct column `value`."""
    settings = {
        # compiling thousands of expressions once, for 196 rows, takes a hundred times as long as interpreting them
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        # Spark takes a + b and b + a for the same: evaluated once, one of them in the other's order, and so with its failures
        "spark.sql.subexpressionElimination.enabled": "false",
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    frame = spark.createDataFrame(list(enumerate(rows())), f"k INT, value STRUCT<{_fields()}>")
    yield frame.coalesce(1).localCheckpoint()
    for name, previous in before.items():
        spark.conf.set(name, str(previous))


def _fields() -> str:
    return ", ".join(f"{c.name}: {c.type.sql()}" for c in SCHEMA)


FAILED = "failed"
BEYOND = "beyond Python's calendar"


def interpreted(expr: Expr, row: dict[str, Any]) -> Any:
    try:
        return comparable(evaluate(expr, {"value": row}), expr.type)
    except EvaluationError:
        return FAILED
    except UnsupportedFunction:
        return BEYOND


def comparable(value: Any, kind: Type) -> Any:
    """Bring a value to a form in which NaN equals NaN and -0.0 isn't 0.0."""
    match kind:
        case _ if value is None:
            return None
        case Type(kind="float" | "double"):
            return repr(float(value))
        case Type(kind="decimal"):
            assert isinstance(value, Decimal), value
            scaled = value.quantize(Decimal(1).scaleb(-kind.scale), context=EXACT)
            assert scaled == value
            return f"{scaled:f}"
        case Type(kind="timestamp"):
            return value if isinstance(value, int) else micros(value if value.tzinfo else value.astimezone(UTC))
        case Type(kind="date"):
            return value if isinstance(value, int) else (value - dt.date(1970, 1, 1)).days
        case Type(kind="array", element=element):
            assert element is not None
            return [comparable(v, element) for v in value]
        case Type(kind="map", map_key=key, element=element):
            assert key is not None
            assert element is not None
            return {comparable(k, key): comparable(v, element) for k, v in value.items()}
        case Type(kind="struct", fields=fields):
            return {f.name: comparable(value[f.name], f.type) for f in fields}
        case Type(kind="binary"):
            return bytes(value)
    assert isinstance(value, bool) is (kind.kind == "boolean"), (value, kind)
    return value


def _column(sql: str, kind: Type) -> str:
    # dates and timestamps travel as numbers: Python has no year 10000, and pyspark gives times in the local zone
    return {"timestamp": f"unix_micros({sql})", "date": f"unix_date({sql})"}.get(kind.kind, sql)


# The optimizer drops what it needn't know: of `if(c, x, x)` the condition, of `greatest(c, 1) IS NULL` everything, failures too; and a
# constant that fails stops it, whether any row needs it or not. Where the strict form raises is asked without these rules; values, and the
# forms that are really run, with all of them.
DROPPING = ("SimplifyConditionals", "NullPropagation", "NullDownPropagation", "BooleanSimplification", "SimplifyBinaryComparison",
            "PushFoldableIntoBranches", "ReplaceNullWithFalseInPredicate", "ConstantFolding")  # fmt: skip


def raises(expr: Expr) -> str:
    """Write a predicate that holds exactly where the strict form raises."""
    seen = f"map_values({expr.sql})" if expr.type.kind == "map" else expr.sql
    # Spark evaluates the left side inside its own try; hash keeps the optimizer, which pulls conditions out of a try, from looking inside
    return f"try_add(date_add(DATE '2000-01-01', pmod(hash({seen}), 28)), INTERVAL '0' MONTH) IS NULL"


def columns(expr: Expr) -> list[str]:
    fails = expr.fails_sql or "false"
    return [_column(f"CASE WHEN {fails} THEN NULL ELSE {expr.sql} END", expr.type), _column(expr.safe_sql, expr.type), fails]


def ask(table: DataFrame, forms: list[str]) -> list[list[Any]]:
    """Return the values of SQL forms, a list per form, in the order of the rows."""
    found = table.selectExpr("k", *(f"{sql} AS c{i}" for i, sql in enumerate(forms))).collect()
    return [[row[f"c{i}"] for row in sorted(found, key=lambda r: r["k"])] for i in range(len(forms))]


def check(table: DataFrame, texts: list[str]) -> list[str]:
    """Compare expressions with Spark; return what differs."""
    session, data = table.sparkSession, rows()
    differences: list[str] = []
    exprs = [parse(text, SCOPE, "test") for text in texts]
    for start in range(0, len(exprs), 60):
        part = exprs[start : start + 60]
        types = [f.dataType.simpleString() for f in table.selectExpr(*(f"{e.sql} AS t{i}" for i, e in enumerate(part))).schema]
        found = ask(table, [sql for e in part for sql in columns(e)])
        session.conf.set(LEFT_OUT, ",".join([REGROUPS, *(f"org.apache.spark.sql.catalyst.optimizer.{r}" for r in DROPPING)]))
        raising = ask(table, [raises(e) for e in part])
        session.conf.set(LEFT_OUT, REGROUPS)
        for i, (text, expr) in enumerate(zip(texts[start : start + 60], part, strict=True)):
            if Type.parse(types[i]) != expr.type:
                differences.append(f"{text}: type {expr.type.sql()}, Spark {types[i]}")
                continue
            beyond = 0
            for k, row in enumerate(data):
                strict, safe, fails = (column[k] for column in found[3 * i : 3 * i + 3])
                strict, safe = comparable(strict, expr.type), comparable(safe, expr.type)
                raised = raising[i][k]
                ours = interpreted(expr, row)
                beyond += ours == BEYOND
                expected = (None, None, True, True) if ours == FAILED else (ours, ours, False, False)
                if _dateless(expr, row):
                    raised = True  # Spark takes today's date; we refuse
                if ours != BEYOND and (strict, safe, fails, raised) != expected:
                    names = sorted({r.removeprefix("value.") for r in expr.refs})
                    spark = f"Spark strict {strict!r}, safe {safe!r}, fails {fails}, raises {raised}"
                    differences.append(f"{text} of { ({n: row[n] for n in names}) }: interpreted {ours!r}; {spark}")
                    break
            if beyond > ROWS * 0.7:
                differences.append(f"{text}: only {ROWS - beyond} rows within Python's calendar")
    return differences


def _dateless(expr: Expr, row: dict[str, Any]) -> bool:
    casts_text = any(isinstance(t, Call) and "RLIKE '^(T|" in (t.signature.safe or "") for t in walk(expr.ast))
    return casts_text and re.match(r"T|[\x00-\x20\x7f]*[0-9]{1,2}:", row["tim"] or "") is not None and "value.tim" in expr.refs


@pytest.mark.parametrize("group", GROUPS)
def test_value_type_and_failure_are_the_same_in_spark_and_in_the_interpreter(table: DataFrame, group: str) -> None:
    differences = check(table, list(GROUPS[group]()))
    assert not differences, f"{len(differences)} differ:\n" + "\n".join(differences[:40])


def test_composed_expressions_are_the_same_in_spark_and_in_the_interpreter(table: DataFrame) -> None:
    differences = check(table, composed(seed=1, count=60))
    assert not differences, f"{len(differences)} differ:\n" + "\n".join(differences[:40])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_composed_expressions_are_the_same_in_spark_and_in_the_interpreter(table: DataFrame, seed: int) -> None:
    differences = check(table, composed(seed, count=300))
    assert not differences, f"{len(differences)} differ:\n" + "\n".join(differences[:40])


@pytest.mark.slow
def test_all_pairs_of_numeric_types_are_the_same_in_spark_and_in_the_interpreter(table: DataFrame) -> None:
    differences = check(table, list(operands(itertools.product(NUMERIC, NUMERIC))))
    assert not differences, f"{len(differences)} differ:\n" + "\n".join(differences[:40])


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_generated_code_gives_what_interpreted_spark_gives(table: DataFrame, group: str) -> None:
    session = table.sparkSession
    session.conf.set("spark.sql.codegen.factoryMode", "CODEGEN_ONLY")
    session.conf.set("spark.sql.codegen.wholeStage", "true")
    try:
        # the one place where Spark's two engines differ: generated code stops at the first null of a concat, the interpreter doesn't
        texts = [text for text in GROUPS[group]() if text != "concat(s_b, CAST(CAST(num AS INT) AS STRING))"]
        differences = [d for start in range(0, len(texts), 4) for d in check(table, texts[start : start + 4])]
    finally:
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        session.conf.set("spark.sql.codegen.wholeStage", "false")
    assert not differences, f"{len(differences)} differ:\n" + "\n".join(differences[:40])


@functools.cache
def _used() -> frozenset[str]:
    terms = (t for group in GROUPS.values() for text in group() for t in walk(parse(text, SCOPE, "test").ast))
    return frozenset(t.function.name for t in terms if isinstance(t, Call))


def test_every_function_of_the_subset_is_compared_with_spark() -> None:
    assert set(FUNCTIONS) <= _used(), sorted(set(FUNCTIONS) - _used())


def test_spark_refuses_what_we_refuse_by_type(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException

    empty = spark.createDataFrame([], f"value STRUCT<{_fields()}>")
    refused = [
        "bo_a + 1", "s_a + s_b", "bo_a = 1", "m_a = m_b", "i_a AND bo_a", "da_a + 1L", "greatest(i_a, s_a)", "array_contains(ai_a, 'x')",
        "if('true', 1, 2)", "element_at(ai_a, bi_a)", "CAST(da_a AS INT)", "CAST(ai_a AS INT)", "ai_a = as_a", "d_a div 2",
    ]  # fmt: skip
    for text in refused:
        with pytest.raises(ExpressionError):
            parse(text, SCOPE, "test")
        qualified = re.sub(r"\b([a-z0-9]+_[ab])\b", r"value.\1", text)
        with pytest.raises(AnalysisException):
            _ = empty.selectExpr(qualified).schema


def test_what_depends_on_more_than_one_record_cannot_be_called_even_inside_a_cast(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    builtin = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    random = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.expressions.Nondeterministic")
    names = str(builtin.listFunction().mkString("\n")).split("\n")
    assert len(names) > 400
    wrongly_allowed = []
    for name in names:
        info = builtin.lookupFunction(jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name)).get()
        if info.getGroup() not in ("agg_funcs", "window_funcs", "generator_funcs") and not random.isAssignableFrom(
            jvm.java.lang.Class.forName(info.getClassName())
        ):
            continue
        try:
            parse(f"CAST({name}(i_a) AS INT)", SCOPE, "test")
            wrongly_allowed.append(name)
        except ExpressionError:
            pass
    assert not wrongly_allowed


@pytest.mark.parametrize("kind", ["9,2", "10,0", "18,1", "29,4", "38,18", "38,2", "38,0", "38,36"])
def test_an_average_of_decimals_is_spark_s_own_to_its_last_digit(spark: SparkSession, kind: str) -> None:
    from pyspark.sql import functions as F

    made, drawn = Type.parse(f"DECIMAL({kind})"), random.Random(kind)
    most = min(made.precision, 28 if made.scale < 2 else 33)  # of sums as long as a quotient has room for; longer ones, below
    values: dict[int, list[Decimal]] = {0: [D(1), D(1), D(2)], 1: [D(-2), D(1), D(0)], 2: [D("0.5"), D(1)]}
    for group in range(3, 200):
        digits = drawn.randint(1, most - 1)
        values[group] = [D(drawn.randint(-(10**digits), 10**digits)).scaleb(-made.scale) for _ in range(drawn.choice([1, 2, 3, 7, 11]))]
    rows = [{"g": g, "v": f"{v:f}"} for g, vs in values.items() for v in vs if made.scale < 36 or abs(v) < D("0.01")]
    frame = spark.createDataFrame(rows, "g INT, v STRING").selectExpr("g", f"CAST(v AS {made.sql()}) AS v")
    bound = bind("x", avg("v"), Scope({"value": Schema.parse(f"v {made.sql()}")}, bare=("value",)), "test")
    total, number = (f.type.sql() for f in bound.state)
    state = f"named_struct('x__sum', CAST(sum(v) AS {total}), 'x__count', CAST(count(v) AS {number})) AS state"
    sums = frame.groupBy("g").agg(F.expr(state), F.expr("avg(v) AS own")).selectExpr("g", "state", "own", f"{bound.value.safe_sql} AS ours")
    assert sums.schema["own"].dataType == sums.schema["ours"].dataType
    for row in sums.collect():
        assert row.ours == row.own == evaluate(bound.value, {"state": row.state.asDict()}), row


def test_the_average_of_a_sum_too_long_for_a_quotient_is_the_same_on_both_engines(spark: SparkSession) -> None:
    for kind, sums in {
        "38,2": ["9" * 36, "1" * 33 + ".07", "-" + "7" * 31 + ".55"],
        "38,18": ["9" * 20, "1" * 17 + "." + "7" * 18],
    }.items():
        bound = bind("x", avg("v"), Scope({"value": Schema.parse(f"v DECIMAL({kind})")}, bare=("value",)), "test")
        frame = spark.createDataFrame([(total, n) for total in sums for n in (1, 3, 10**4, 10**18)], "total STRING, n BIGINT")
        states = frame.selectExpr(f"named_struct('x__sum', CAST(total AS DECIMAL({kind})), 'x__count', n) AS state")
        for row in states.selectExpr("state", f"{bound.value.safe_sql} AS ours").collect():
            try:
                wanted = evaluate(bound.value, {"state": row.state.asDict()})
            except EvaluationError:
                wanted = None
            assert row.ours == wanted, row.state


BESIDE = [
    "{a} = {b} IS NULL", "{a} = {b} IS TRUE", "{a} = {b} IS DISTINCT FROM {c}", "{a} <=> {b} = {c}", "{a} = {b} <=> {c}", "{n} < 2 = {a}",
    "{a} < {b} IS NULL", "{a} = {b} <> {c}", "{a} < {b} <= {c}", "NOT {a} = {b}", "NOT {n} IN (1)", "NOT {n} BETWEEN 1 AND 1 + 1",
    "{n} + 1 IN (1, 2)", "{n} & 1 = 1", "{a} = {b} AND {c}", "{a} OR {b} AND {c} = {a}", "NOT {a} OR {b}", "{n} * 2 - 1 > 0 OR {a}",
    "{a} <> {b} IS NOT NULL",
]  # fmt: skip


def test_what_stands_beside_one_another_is_read_as_spark_reads_it(spark: SparkSession) -> None:
    scope = Scope({"value": Schema.parse("a BOOLEAN, b BOOLEAN, c BOOLEAN, n INT")})
    texts = [text.format(**{name: f"value.{name}" for name in "abcn"}) for text in BESIDE]
    same = ", ".join(f"every(({text}) <=> ({parse(text, scope, 'here').sql}))" for text in texts)
    booleans = ("true", "false", "NULL")
    rows = ", ".join(str(row).replace("'", "") for row in itertools.product(booleans, booleans, booleans, ("0", "1", "2", "NULL")))
    records = f"SELECT named_struct('a', a, 'b', b, 'c', c, 'n', n) AS value FROM VALUES {rows} AS t(a, b, c, n)"
    (found,) = spark.sql(f"SELECT {same} FROM ({records})").collect()
    assert [text for text, read in zip(texts, found, strict=True) if not read] == []
