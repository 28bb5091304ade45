"""Expressions where they are written: names, types, refusals, the form that never raises, and what is fingerprinted."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from watertable.errors import DefinitionError, ExpressionError, UnknownColumn
from watertable.schema import Schema
from watertable.sql.expressions import Expr, Scope, parse, parse_predicate, window_schema

VALUE = Schema.parse(
    "qty INT, price DECIMAL(9,3), name STRING, big BIGINT, ratio DOUBLE, at TIMESTAMP, day DATE, ok BOOLEAN, "
    "address STRUCT<city: STRING, zip: STRUCT<code: INT>>, tags ARRAY<STRING>, counts MAP<STRING, INT>, wide DECIMAL(38,10)"
)
SCOPE = Scope({"value": VALUE, "key": Schema.parse("id STRING, qty INT")}, bare=("value", "key"))
CHANGE = Scope({"old": VALUE, "new": VALUE, "key": Schema.parse("id STRING"), "window": window_schema()}, bare=("new",))


def expr(text: str, scope: Scope = SCOPE) -> Expr:
    return parse(text, scope, "app.py:7")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("qty * price", "DECIMAL(20,3)"), ("qty + 1", "INT"), ("qty + big", "BIGINT"), ("price + price", "DECIMAL(10,3)"),
        ("price / 3", "DECIMAL(12,6)"), ("qty / 2", "DOUBLE"), ("qty div 2", "BIGINT"), ("qty % 2.5", "DECIMAL(2,1)"),
        ("-price", "DECIMAL(9,3)"),
        ("wide * wide", "DECIMAL(38,6)"), ("price * ratio", "DOUBLE"), ("1", "INT"), ("3000000000", "BIGINT"), ("1.50", "DECIMAL(3,2)"),
        ("0.05", "DECIMAL(2,2)"), ("1e3", "DOUBLE"), ("10L", "BIGINT"), ("1.5BD", "DECIMAL(2,1)"), ("2S", "SMALLINT"), ("1.5F", "FLOAT"),
        ("name = 1", "BOOLEAN"), ("coalesce(qty, price)", "DECIMAL(13,3)"), ("coalesce(name, 1)", "BIGINT"), ("if(ok, qty, big)", "BIGINT"),
        ("nullif(qty, 0)", "INT"), ("CASE WHEN ok THEN 1 END", "INT"), ("split(name, ',')", "ARRAY<STRING>"), ("tags[0]", "STRING"),
        ("counts['a']", "INT"), ("size(tags)", "INT"), ("address.city", "STRING"), ("value.address.zip.code", "INT"), ("key.qty", "INT"),
        ("at + INTERVAL 1 HOUR", "TIMESTAMP"), ("day + 1", "DATE"), ("day - day > INTERVAL 7 DAYS", "BOOLEAN"),
        ("floor(price)", "DECIMAL(7,0)"),
        ("round(price, 1)", "DECIMAL(8,1)"), ("CAST(name AS DECIMAL(10,2))", "DECIMAL(10,2)"),
        ("transform(tags, x -> length(x))", "ARRAY<INT>"),
        ("struct(qty, name AS n)", "STRUCT<`qty`: INT, `n`: STRING>"), ("to_date(name)", "DATE"), ("NULL", "VOID"), ("'it''s'", "STRING"),
    ],
)  # fmt: skip
def test_the_type_is_spark_s(text: str, kind: str) -> None:
    assert expr(text).type.sql() == kind


def test_columns_are_qualified_and_read_in_the_order_of_the_scope() -> None:
    found = expr("concat(name, id, qty)")
    assert found.sql == "concat(value.`name`, key.`id`, value.`qty`)"
    assert found.refs == ("key.id", "value.name", "value.qty")


def test_in_a_change_bare_names_are_the_new_ones() -> None:
    assert expr("old.qty >= 20 AND qty < 20", CHANGE).sql == "((old.`qty` >= 20) AND (new.`qty` < 20))"
    assert expr("window.start", CHANGE).sql == "`window`.`start`"
    assert expr("`window`.`end`", CHANGE).type.sql() == "TIMESTAMP"


def test_a_struct_column_is_lineage_of_the_column_a_whole_namespace_of_all_its_columns() -> None:
    assert expr("value.address.zip.code").refs == ("value.address",)
    assert expr("key").refs == ("key.id", "key.qty")
    assert expr("key").type.sql() == "STRUCT<`id`: STRING, `qty`: INT>"


@pytest.mark.parametrize(
    ("text", "error", "parts"),
    [
        ("quantity", UnknownColumn, ["app.py:7", "'quantity'", "columns: qty, price"]),
        ("pric * 2", UnknownColumn, ["did you mean 'price'?"]),
        ("value.prise", UnknownColumn, ["'prise'", "'value'", "did you mean 'price'?"]),
        ("address.town", UnknownColumn, ["'town'", "fields: city, zip"]),
        ("qty.x", ExpressionError, ["INT is not a STRUCT"]),
        ("nme || 'x'", UnknownColumn, ["did you mean 'name'?"]),
        ("uper(name)", ExpressionError, ["'uper'", "did you mean 'upper'", "CAST(uper(...) AS its type)"]),
        ("name + 'x'", ExpressionError, ["+ wants numbers", "STRING, STRING"]),
        ("ok + 1", ExpressionError, ["BOOLEAN, INT"]),
        ("qty AND ok", ExpressionError, ["AND wants BOOLEAN"]),
        ("qty IS TRUE", ExpressionError, ["comparable types; got INT, BOOLEAN"]),
        ("price IS NOT FALSE", ExpressionError, ["got DECIMAL(9,3), BOOLEAN"]),
        ("counts = counts", ExpressionError, ["comparable"]),
        ("upper(name, name)", ExpressionError, ["wanted upper(string); got 2"]),
        ("upper()", ExpressionError, ["wanted upper(string); got 0"]),
        ("abs()", ExpressionError, ["wanted abs(a); got 0"]),
        ("CAST(day AS INT)", ExpressionError, ["can't cast DATE to INT"]),
        ("CAST(tags AS ARRAY<INT>)", ExpressionError, ["may fail inside"]),
        ("day = '2021-02-29'", ExpressionError, ["'2021-02-29' is not a date of the calendar"]),
        ("at > 'now'", ExpressionError, ["'now' is not a TIMESTAMP"]),
        ("day < '10000-01-01'", ExpressionError, ["a DATE is wanted there", "years 1 to 9999"]),
        ("CAST('0000-01-01' AS TIMESTAMP) < at", ExpressionError, ["a TIMESTAMP is wanted there", "years 1 to 9999"]),
        ("date_trunc('fortnight', at)", ExpressionError, ["no unit 'fortnight'", "week"]),
        ("date_trunc(name, at)", ExpressionError, ["constant STRING"]),
        ("name RLIKE '[a-z&&[^b]]'", ExpressionError, ["don't read alike"]),
        ("name RLIKE '('", ExpressionError, ["not a regular expression"]),
        ("name RLIKE '{id}'", ExpressionError, ["'{'", "don't read alike", "\\{ for the character"]),
        ("name RLIKE 'a{,3}'", ExpressionError, ["{n,m}"]),
        ("name RLIKE 'a{1'", ExpressionError, ["{n,m}"]),
        ("regexp_replace(name, '{', '')", ExpressionError, ["{n,m}"]),
        ("name RLIKE 'caf\\\\b'", ExpressionError, ["'\\\\b'", "(?!\\w) where it ends"]),
        ("qty = 200Y", ExpressionError, ["200 doesn't fit a TINYINT", "from -128 to 127"]),
        ("qty = -32769S", ExpressionError, ["-32769 doesn't fit a SMALLINT"]),
        ("qty = 9223372036854775808L", ExpressionError, ["doesn't fit a BIGINT"]),
        ("qty = 3.4028235e38F", ExpressionError, ["3.4028235e38 is too large for a FLOAT"]),
        ("qty = 1e309D", ExpressionError, ["1e309 is too large for a DOUBLE"]),
        ("ratio < 1e309", ExpressionError, ["1e309 is too large for a DOUBLE"]),
        ("ratio > -1e309", ExpressionError, ["-1e309 is too large for a DOUBLE"]),
        ("qty = 1.0L", ExpressionError, ["1.0 is no whole number, as a BIGINT is"]),
        ("qty = -1e3S", ExpressionError, ["-1e3 is no whole number, as a SMALLINT is"]),
        ("sha2(name, 999)", ExpressionError, ["sha2 has 224, 256, 384 or 512 bits", "got 999"]),
        ("sha2(name, 1)", ExpressionError, ["got 1"]),
        ("name LIKE 'a\\\\'", ExpressionError, ["escape"]),
        ("name LIKE 'a' ESCAPE '!!'", ExpressionError, ["ESCAPE wants one character; got '!!'"]),
        ("name NOT ILIKE 'a' ESCAPE ''", ExpressionError, ["ESCAPE wants one character; got ''"]),
        ("like(name, 'a', '\U0001f600')", ExpressionError, ["ESCAPE wants one character"]),
        ("split(name, 'x*')", ExpressionError, ["matches nothing"]),
        ("regexp_replace(name, 'a', '$1')", ExpressionError, ["names no group"]),
        ("round(qty, -1)", ExpressionError, ["may overflow"]),
        ("round(1.5D, 2147483647)", ExpressionError, ["round of DOUBLE to 2147483647 digits"]),
        ("-wide", ExpressionError, ["34 digits"]),
        ("wide div 1", ExpressionError, ["may not fit BIGINT"]),
        ("-5 seconds", ExpressionError, []),
        ("at - at", ExpressionError, ["an interval is no column type"]),
        ("at + INTERVAL qty HOUR", ExpressionError, ["timestampadd(HOUR, amount, timestamp)"]),
        ("qty | qty + 1", ExpressionError, ["parentheses"]),
        ("exists(tags, x -> CAST(x AS INT) > 1)", ExpressionError, ["may fail"]),
        ("transform(tags, (a, b, c) -> a)", ExpressionError, ["1 or 2"]),
        ("transform(tags, value -> value || name)", ExpressionError, ["'value' already names something else", "rename the parameter"]),
        ("transform(tags, Key -> Key)", ExpressionError, ["'Key' already names"]),
        ("transform(tags, x -> size(transform(tags, X -> x || X)))", ExpressionError, ["'X' already names"]),
        ("transform(tags, (x, x) -> x)", ExpressionError, ["'x' already names"]),
        ("named_struct('a', 1, 'A', 2).a", ExpressionError, ["'A' is 'a' to Spark"]),
        ("named_struct('a', 1, 'a', 2)", ExpressionError, ["'a' is named twice"]),
        ("map(name, 1)", ExpressionError, ["constant keys"]),
        ("123456789012345678901234567890123456789", ExpressionError, ["39 digits"]),
        ("qty +", ExpressionError, ["not a Spark SQL expression: a part is missing. Line 1, Col: 5."]),
        ("name = 'x", ExpressionError, ["not a Spark SQL expression: ' isn't closed"]),
        ("", ExpressionError, ["wanted one expression; got none"]),
        ("qty; qty", ExpressionError, ["no ;"]),
        ("qty;", ExpressionError, ["no ;"]),
        ("qty AS q", ExpressionError, ["names a result"]),
        ("qty q", ExpressionError, ["names a result"]),
        ("*", ExpressionError, ["name the columns"]),
        ("value.*", ExpressionError, ["name the columns"]),
        (":p", ExpressionError, ["parameter"]),
        ("qty::BIGINT", ExpressionError, ["write CAST"]),
        ("CAST(name AS TIMESTAMP_NTZ)", ExpressionError, ["not supported"]),
        ("CAST(name AS STRING COLLATE UTF8_LCASE) = 'x'", ExpressionError, ["COLLATE UTF8_LCASE", "lower(...)"]),
        ("CAST(name AS INT DEFAULT 0 ON CONVERSION ERROR)", ExpressionError, ["(Cast) is outside"]),
        ("qty BETWEEN SYMMETRIC 6 AND 1", ExpressionError, ["(qty BETWEEN 6 AND 1 OR qty BETWEEN 1 AND 6)"]),
        ("db.f(qty)", ExpressionError, ["built-in"]),
        ("`f g`(qty)", ExpressionError, ["built-in"]),
    ],
)  # fmt: skip
def test_what_can_t_be_used_is_refused_with_its_place_what_was_wanted_and_what_came(
    text: str, error: type[DefinitionError], parts: list[str]
) -> None:
    with pytest.raises(error) as caught:
        expr(text)
    assert str(caught.value).startswith(f"app.py:7: in {text!r}: ")
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "rand()", "randn(1)", "uuid()", "now()", "current_timestamp()", "current_timestamp", "current_date", "curdate()",
        "unix_timestamp()",
        "monotonically_increasing_id()", "spark_partition_id()", "input_file_name()", "current_user()", "version()", "shuffle(tags)",
        "java_method('java.lang.System', 'exit', 1)", "reflect('java.util.UUID', 'randomUUID')", "ai_query('m', name)", "raise_error('x')",
        "assert_true(ok)", "sum(qty)", "count(*)", "max(qty)", "first(qty)", "approx_count_distinct(qty)", "hll_sketch_agg(qty)",
        "sum(qty) OVER ()", "row_number() OVER (ORDER BY qty)", "lag(qty)", "explode(tags)", "(SELECT 1)", "qty IN (SELECT 1)",
        "EXISTS (SELECT 1)", "sum(qty) FILTER (WHERE ok)", "window(at, '1 hour')",
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["{}", "CAST({} AS STRING)", "coalesce({}, NULL)"])
def test_what_is_no_pure_function_of_one_record_is_refused_wherever_it_stands(text: str, form: str) -> None:
    with pytest.raises(ExpressionError):
        expr(form.format(text))


def test_a_function_that_only_spark_knows_is_allowed_inside_a_cast() -> None:
    found = expr("upper(CAST(parse_url(name, 'HOST') AS STRING))")
    assert found.sql == "upper(CAST(parse_url(value.`name`, 'HOST') AS STRING))"
    assert found.type.sql() == "STRING"
    assert found.fails_sql is None


def test_bytes_that_only_spark_gives_are_a_text_where_they_are_utf_8_and_fail_elsewhere() -> None:
    found = expr("CAST(unbase64(name) AS STRING)")
    cast = "CAST(unbase64(value.`name`) AS STRING)"
    assert found.sql == f"validate_utf8({cast})"
    assert found.safe_sql.endswith(f"NULL, try_validate_utf8({cast}))")
    assert found.fails_sql == f"(coalesce(({cast} IS NOT NULL AND try_validate_utf8({cast}) IS NULL), false))"
    assert expr("CAST(unbase64(name) AS BINARY)").fails_sql is None


@pytest.mark.parametrize(
    "text",
    ["ok = name LIKE 'x%'", "ok <=> name NOT LIKE 'x%'", "ok = name RLIKE 'x'", "ok = name ILIKE 'x' ESCAPE '!'", "ok = qty IN (1, 2)",
     "ok = qty NOT IN (1)", "ok <> qty BETWEEN 1 AND 3", "ok = qty < 3", "ok <=> ok < ok", "ok IS NULL = ok", "name LIKE 'x%' = ok",
     "qty IN (1) = ok", "qty BETWEEN 1 AND 3 = ok", "qty IN (1) IS NULL", "qty < 3 BETWEEN ok AND ok", "ok = NOT ok",
     "ok IS DISTINCT FROM ok = ok"],
)  # fmt: skip
def test_comparisons_and_predicates_beside_one_another_want_parentheses_where_spark_reads_them_otherwise(text: str) -> None:
    with pytest.raises(ExpressionError, match="beside another: write parentheses"):
        expr(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("ok = ok IS NULL", "(ok = ok) IS NULL"), ("qty < 3 = ok", "(qty < 3) = ok"), ("ok = ok = ok", "(ok = ok) = ok"),
        ("ok = ok IS DISTINCT FROM ok", "(ok = ok) IS DISTINCT FROM ok"), ("ok <=> ok = ok", "(ok <=> ok) = ok"),
        ("NOT qty IN (1)", "NOT (qty IN (1))"), ("NOT ok = ok", "NOT (ok = ok)"), ("qty + 1 IN (1)", "(qty + 1) IN (1)"),
        ("ok = ok AND ok IS NOT NULL", "(ok = ok) AND (ok IS NOT NULL)"),
    ],
)  # fmt: skip
def test_what_stands_beside_one_another_is_read_as_spark_reads_it(text: str, meant: str) -> None:
    assert expr(text).sql == expr(meant).sql


@pytest.mark.parametrize("text", ["qty -> 1", "qty -> 1BD", "qty -> 1.5BD", "name ->> 'a'", "name -> '$['", "x -> x"])
def test_an_arrow_is_a_lambdas_alone(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExpressionError, match=r"app.py:7: in .*not a Spark SQL expression"):
        expr(text)
    assert expr("transform(tags, x -> x)").type.sql() == "ARRAY<STRING>"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("text", ["and()", "or()", "or(ok)", "and(ok, ok, ok)", "or(ok, qty > 1, name = 'a')", "not(ok, ok)", "`not`()",
                                  "coalesce()", "`case`(ok)", "`case`(ok, 1, ok, 2)"])  # fmt: skip
def test_an_operator_called_as_a_function_takes_as_many_operands_as_spark_gives_it(text: str) -> None:
    with pytest.raises(ExpressionError):
        expr(text)
    assert expr("or(ok, not(and(ok, ok)))").sql == expr("ok OR NOT (ok AND ok)").sql


@pytest.mark.parametrize(
    "text",
    ["qty * price", "qty / 2", "qty % 7", "price * 2 + 1", "name = 'x'", "name || id", "upper(name)", "coalesce(qty, 0)", "qty IS NULL",
     "tags IS NULL",
     "CAST(qty AS BIGINT)", "CAST(qty AS STRING)", "year(at)", "date_trunc('hour', at)", "split(name, ',')", "size(tags)",
     "counts['a']", "address.city",
     "name <=> id", "qty BETWEEN 1 AND 5", "qty IN (1, 2)", "transform(tags, x -> upper(x))"],
)  # fmt: skip
def test_what_cannot_fail_has_no_predicate_and_runs_as_it_is(text: str) -> None:
    found = expr(text)
    assert found.fails_sql is None
    assert found.safe_sql == found.sql


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("qty + 1", "try_add(value.`qty`, 1)"),
        ("-qty", "(- nullif(value.`qty`, -2147483648))"),
        ("CAST(name AS INT)", "TRY_CAST(value.`name` AS INT)"),
        ("qty / key.qty", "try_divide(value.`qty`, key.`qty`)"),
        ("name + 1", "try_add(TRY_CAST(value.`name` AS BIGINT), 1L)"),
        ("tags[qty]", "get(value.`tags`, value.`qty`)"),
    ],
)
def test_what_can_fail_has_a_form_that_gives_null_and_a_predicate(text: str, safe: str) -> None:
    found = expr(text)
    assert found.safe_sql == safe
    assert found.fails_sql is not None


def test_a_failure_that_a_default_would_hide_still_makes_the_safe_form_null() -> None:
    found = expr("coalesce(CAST(name AS INT), 0)")
    assert found.safe_sql == f"if({found.fails_sql}, NULL, coalesce(TRY_CAST(value.`name` AS INT), 0))"


def test_constants_are_cast_when_they_are_written() -> None:
    assert expr("day >= '2020-02-29'").sql == "(value.`day` >= DATE '2020-02-29')"
    assert expr("big >= 20").sql == "(value.`big` >= 20L)"
    assert expr("at < TIMESTAMP '2020-01-01 12:00:00+02:00'").sql == "(value.`at` < TIMESTAMP '2020-01-01 10:00:00.000000+00:00')"


GOLDEN = {
    "-qty": "x1:(negative value.qty:INT)",
    "qty * price": "x1:(* (coerce:DECIMAL(10,0) value.qty:INT) value.price:DECIMAL(9,3))",
    "CASE WHEN qty > 1.0 THEN 'a' ELSE name END":
        "x1:(case (> (coerce:DECIMAL(11,1) value.qty:INT) CAST(1.0BD AS DECIMAL(11,1)):DECIMAL(11,1)) 'a':STRING value.name:STRING)",
    "if(ok, CAST(name AS INT), NULL)": "x1:(case value.ok:BOOLEAN (cast:INT value.name:STRING) CAST(NULL AS INT):INT)",
    "transform(tags, x -> concat(x, '\\n'))": "x1:(transform value.tags:ARRAY<STRING> (lambda x (concat $x '\\n':STRING)))",
    "at + INTERVAL 90 MINUTES":
        "x1:(+ value.at:TIMESTAMP INTERVAL '0 01:30:00.000000' DAY TO SECOND:INTERVAL DAY TO SECOND)",
    "address.zip.code NOT IN (1, 2)": "x1:(not (in value.address.zip.code:INT 1:INT 2:INT))",
    "qty IS NOT NULL AND NOT ok": "x1:(and (not (isnull value.qty:INT)) (not value.ok:BOOLEAN))",
    "try_cast(name AS DOUBLE)": "x1:(try_cast:DOUBLE value.name:STRING)",
    "CAST(parse_url(name, 'HOST') AS STRING)": "x1:(parse_url:STRING value.name:STRING 'HOST':STRING)",
}  # fmt: skip
"""A change here moves fingerprints: raise CANONICAL_VERSION if it was on purpose, and say so in the CHANGELOG as a state format."""


@pytest.mark.parametrize("text", GOLDEN)
def test_golden_canonical_forms_have_not_moved(text: str) -> None:
    assert expr(text).canonical == GOLDEN[text]


@pytest.mark.parametrize(
    ("one", "other"),
    [("qty+1", " ( qty + 1 )"), ("upper(name)", "UPPER(value.name) -- the name"), ("qty <> 1", "qty != 1"),
     ("nvl(qty, 0)", "ifnull(qty, 0)"), ("name || id", "concat(name, id)"), ("'a''b'", "'a\\'b'"),
     ("substr(name, 1)", "substring(name, 1)"), ("position('x', name, 2)", "locate('x', name, 2)"),
     ("position('x' IN name)", "locate('x', name)")],
)  # fmt: skip
def test_two_ways_to_write_the_same_are_the_same(one: str, other: str) -> None:
    assert expr(one) == expr(other)


def test_the_type_of_a_column_is_part_of_what_is_fingerprinted() -> None:
    def canonical(kind: str) -> str:
        return parse("a = b", Scope({"value": Schema.parse(f"a {kind}, b {kind}")}, bare=("value",)), "t").canonical

    assert canonical("INT") != canonical("DOUBLE")


def test_a_predicate_must_be_boolean() -> None:
    assert parse_predicate("qty > 1", SCOPE, "app.py:7").type.sql() == "BOOLEAN"
    with pytest.raises(ExpressionError, match="wanted a BOOLEAN condition; got INT"):
        parse_predicate("qty", SCOPE, "app.py:7")


def test_an_expression_is_checked_in_milliseconds() -> None:
    texts = [f"CASE WHEN qty > {i} THEN qty * price ELSE CAST(name AS DECIMAL(10,2)) END" for i in range(200)]
    expr(texts[0])
    start = time.process_time()
    for text in texts:
        expr(text)
    assert (time.process_time() - start) / len(texts) < 0.02


def test_checking_expressions_loads_neither_spark_nor_an_executor() -> None:
    heavy = ("pyspark", "py4j", "sqlglot.executor")
    code = f"import sys, watertable.sql.expressions; print([m for m in sys.modules if m.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
