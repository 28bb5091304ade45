"""Hold the subset of Spark SQL that watertable knows: one table, one entry per function or operator.

An entry gives the type rule, the Python function, and the Spark form that gives null instead of raising. The law: value, type and
failure of an entry are Spark's under ANSI mode in UTC; `tests/spark/test_expressions_equal_spark.py` holds each entry to it, and
`docs/expressions.md` is printed from this table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from watertable.sql import nested, operators, scalars, signatures, text, times
from watertable.sql.signatures import cast_function, prepared, simple
from watertable.sql.terms import Function, Nulls

__all__ = ["FUNCTIONS", "GROUPS", "cast_function"]

_ADD: Final = operators.arithmetic_rule("+", scalars.add, "try_add({0}, {1})")
_SUBTRACT: Final = operators.arithmetic_rule("-", scalars.subtract, "try_subtract({0}, {1})")
_MULTIPLY: Final = operators.arithmetic_rule("*", scalars.multiply, "try_multiply({0}, {1})")
_REMAINDER: Final = operators.remainder("%", scalars.remainder)

_OPERATORS: Final = (
    Function("+", "a + b", _ADD, sql="({0} + {1})"),
    Function("-", "a - b", _SUBTRACT, sql="({0} - {1})"),
    Function("*", "a * b", _MULTIPLY, sql="({0} * {1})"),
    Function("/", "a / b", operators.divide, Nulls.DIVISOR, sql="({0} / {1})"),
    Function("%", "a % b", _REMAINDER, Nulls.DIVISOR, sql="({0} % {1})"),
    Function("div", "a div b", operators.integral_divide, Nulls.DIVISOR, sql="({0} div {1})"),
    Function("negative", "-a", operators.unary("-", scalars.negate, "(- {0})"), sql="(- {0})"),
    *(Function(o, f"a {o} b", operators.comparison(o), sql=f"({{0}} {o} {{1}})") for o in ("=", "<", "<=", ">", ">=")),
    Function("<=>", "a <=> b", operators.comparison("<=>"), Nulls.EAGER, sql="({0} <=> {1})"),
    Function("in", "a IN (b, ...)", operators.in_rule, Nulls.EAGER, tight=False, sql="({0} IN ({+}))"),
    Function("and", "a AND b", operators.logic("and", 2), Nulls.LAZY, sql="({0} AND {1})"),
    Function("or", "a OR b", operators.logic("or", 2), Nulls.LAZY, sql="({0} OR {1})"),
    Function("not", "NOT a", operators.logic("not", 1), sql="(NOT {0})"),
    Function("isnull", "a IS NULL", operators.null_test(True), Nulls.EAGER, sql="({0} IS NULL)"),
    Function("isnotnull", "a IS NOT NULL", operators.null_test(False), Nulls.EAGER, sql="({0} IS NOT NULL)"),
    Function("case", "CASE WHEN a THEN b ... ELSE c END", operators.case_rule, Nulls.LAZY, tight=False),
    Function("coalesce", "coalesce(a, ...)", operators.coalesce, Nulls.LAZY, tight=False),
    Function("&", "a & b", operators.bits("&", lambda a, b: a & b), sql="({0} & {1})"),
    Function("|", "a | b", operators.bits("|", lambda a, b: a | b), sql="({0} | {1})"),
    Function("^", "a ^ b", operators.bits("^", lambda a, b: a ^ b), sql="({0} ^ {1})"),
    Function("~", "~a", operators.complement, sql="(~ {0})"),
    prepared("like", "string, string=, string?=", "boolean", lambda *p: _match_whole(text.like(*p)),
             usage="a LIKE 'pattern' ESCAPE '!'"),
    prepared("ilike", "string, string=, string?=", "boolean", lambda *p: _match_lower(*p), usage="a ILIKE 'pattern'"),
    prepared("rlike", "string, string=", "boolean", lambda p: _match_part(text.regex(p)), sql="({0} RLIKE {1})",
             usage="a RLIKE 'pattern'"),
    Function("[]", "array[index], map[key]", signatures.bracket, tight=False, sql="{0}[{1}]"),
)  # fmt: skip

_NUMERIC: Final = (
    Function("abs", "abs(a)", operators.unary("abs", scalars.absolute, "abs({0})")),
    Function("pmod", "pmod(a, b)", operators.remainder("pmod", scalars.positive_remainder), Nulls.DIVISOR),
    Function("greatest", "greatest(a, b, ...)", operators.extreme(True), Nulls.EAGER, tight=False),
    Function("least", "least(a, b, ...)", operators.extreme(False), Nulls.EAGER, tight=False),
    Function("round", "round(a, digits)", operators.rounding("round", False)),
    Function("bround", "bround(a, digits)", operators.rounding("bround", True)),
    Function("floor", "floor(a)", operators.floor_rule("floor", False)),
    Function("ceil", "ceil(a)", operators.floor_rule("ceil", True)),
    Function("shiftleft", "shiftleft(a, n), a << n", operators.shift("shiftleft", scalars.shift_left)),
    Function("shiftright", "shiftright(a, n), a >> n", operators.shift("shiftright", scalars.shift_right)),
    Function("shiftrightunsigned", "shiftrightunsigned(a, n)", operators.shift("shiftrightunsigned", scalars.shift_right_unsigned)),
    Function("try_add", "try_add(a, b)", operators.try_rule(_ADD, "try_add"), tight=False),
    Function("try_subtract", "try_subtract(a, b)", operators.try_rule(_SUBTRACT, "try_subtract"), tight=False),
    Function("try_multiply", "try_multiply(a, b)", operators.try_rule(_MULTIPLY, "try_multiply"), tight=False),
    Function("try_divide", "try_divide(a, b)", operators.try_rule(operators.divide, "try_divide"), Nulls.DIVISOR, tight=False),
    Function("try_mod", "try_mod(a, b)", operators.try_rule(_REMAINDER, "try_mod"), Nulls.DIVISOR, tight=False),
    simple("sign", "double", "double", scalars.sign),
    simple("sqrt", "double", "double", scalars.sqrt),
    simple("isnan", "double", "boolean", lambda a: a is not None and math.isnan(a), nulls=Nulls.EAGER),
    simple("nanvl", "double, double", "double", scalars.nan_or, nulls=Nulls.EAGER, tight=False),
)

_TEXT: Final = (
    simple("upper", "string", "string", str.upper),
    simple("lower", "string", "string", str.lower),
    simple("initcap", "string", "string", text.initcap),
    simple("length", "string", "int", len),
    simple("octet_length", "string", "int", lambda s: len(s.encode())),
    simple("bit_length", "string", "int", lambda s: 8 * len(s.encode())),
    simple("trim", "string", "string", lambda s: s.strip(" ")),
    simple("ltrim", "string", "string", lambda s: s.lstrip(" ")),
    simple("rtrim", "string", "string", lambda s: s.rstrip(" ")),
    simple("btrim", "string, string?", "string", lambda s, characters=" ": s.strip(characters) if characters else s),
    simple("substring", "string, int, int?", "string", text.substring),
    simple("left", "string, int", "string", text.left),
    simple("right", "string, int", "string", text.right),
    simple("lpad", "string, int, string?", "string", text.pad(at_left=True)),
    simple("rpad", "string, int, string?", "string", text.pad(at_left=False)),
    simple("repeat", "string, int", "string", lambda s, n: s * n),
    simple("replace", "string, string, string?", "string", text.replace),
    simple("translate", "string, string, string", "string", text.translate),
    simple("instr", "string, string", "int", lambda s, part: s.find(part) + 1),
    simple("locate", "string, string, int?", "int", text.locate_nulls, nulls=Nulls.EAGER, tight=False),
    simple("contains", "string, string", "boolean", lambda s, part: part in s),
    simple("startswith", "string, string", "boolean", str.startswith),
    simple("endswith", "string, string", "boolean", str.endswith),
    simple("substring_index", "string, string, int", "string", text.substring_index),
    simple("split_part", "string, string, int", "string", text.split_part, safe="split_part({0}, {1}, nullif({2}, 0))", fails="{2} = 0"),
    simple("levenshtein", "string, string", "int", text.levenshtein),
    simple("ascii", "string", "int", lambda s: ord(s[0]) if s else 0),
    simple("chr", "bigint", "string", text.character),
    simple("unhex", "string", "binary", text.unhex, tight=False),
    simple("base64", "binary", "string", text.encode_base64),
    simple("md5", "binary", "string", text.md5),
    simple("sha1", "binary", "string", text.sha1),
    prepared("sha2", "binary, int=", "string", text.sha2),
    simple("crc32", "binary", "bigint", text.crc32),
    prepared("split", "string, string=, int?=", "ARRAY<STRING>", lambda p, limit=-1: text.split(p, limit)),
    prepared("regexp_extract", "string, string=, int?=", "string", lambda p, group=1: text.regexp_extract(p, group)),
    prepared("regexp_replace", "string, string=, string=", "string", lambda p, r: _substitute(p, r)),
    Function("hex", "hex(a)", operators.hexadecimal),
    Function("concat", "concat(a, ...), a || b", signatures.concat, Nulls.EAGER),
    Function("concat_ws", "concat_ws(separator, a, ...)", signatures.concat_ws, Nulls.EAGER, tight=False),
    Function("reverse", "reverse(a)", signatures.reverse),
)  # fmt: skip

_PARTS: Final[dict[str, Callable[[Any], Any]]] = {
    "year": lambda d: d.year, "quarter": lambda d: (d.month + 2) // 3, "month": lambda d: d.month, "day": lambda d: d.day,
    "dayofweek": times.day_of_week, "weekday": lambda d: d.weekday(), "dayofyear": lambda d: d.timetuple().tm_yday,
    "weekofyear": lambda d: d.isocalendar()[1],
}  # fmt: skip
_NO_TIME: Final = "INTERVAL '0' SECOND"  # adding it to a time under try_add makes whatever raises below it null

_TIMES: Final = (
    *(simple(name, "date", "int", python) for name, python in _PARTS.items()),
    simple("dayname", "date", "string", times.day_name),
    simple("monthname", "date", "string", times.month_name),
    simple("hour", "timestamp", "int", lambda t: t.hour),
    simple("minute", "timestamp", "int", lambda t: t.minute),
    simple("second", "timestamp", "int", lambda t: t.second),
    prepared("extract_second", "timestamp", "DECIMAL(8,6)", lambda: times.seconds_with_fraction,
             sql="EXTRACT(SECOND FROM {0})", usage="EXTRACT(SECOND FROM timestamp)"),
    prepared("date_trunc", "string=, timestamp", "timestamp", lambda u: times.truncate(times.unit_of(u))),
    prepared("trunc", "date, string=", "date", lambda u: times.truncate_date(times.unit_of(u, ("year", "quarter", "month", "week")))),
    simple("date_add", "date, int", "date", times.plus_days),
    simple("date_sub", "date, int", "date", times.minus_days),
    simple("datediff", "date, date", "int", times.days_between),
    simple("add_months", "date, int", "date", times.plus_months),
    simple("months_between", "timestamp, timestamp, boolean?", "double", times.months_between),
    simple("last_day", "date", "date", times.last_day),
    prepared("next_day", "date, string=", "date", times.next_day),
    simple("make_date", "int, int, int", "date", times.make_date, safe="try_add(make_date({0}, {1}, {2}), INTERVAL '0' MONTH)"),
    Function("to_date", "to_date(a, pattern)", signatures.to_date),
    Function("to_timestamp", "to_timestamp(a, pattern)", signatures.to_timestamp),
    prepared("date_format", "timestamp, string=", "string", times.date_format),
    simple("unix_timestamp", "timestamp", "bigint", times.unix_timestamp),
    simple("unix_seconds", "timestamp", "bigint", times.to_units(1_000_000)),
    simple("unix_millis", "timestamp", "bigint", times.to_units(1_000)),
    simple("unix_micros", "timestamp", "bigint", times.to_units(1)),
    simple("unix_date", "date", "int", times.unix_date),
    simple("date_from_unix_date", "int", "date", times.from_unix_date),
    simple("timestamp_seconds", "bigint", "timestamp", times.from_units(1_000_000), safe=f"try_add(timestamp_seconds({{0}}), {_NO_TIME})"),
    simple("timestamp_millis", "bigint", "timestamp", times.from_units(1_000), safe=f"try_add(timestamp_millis({{0}}), {_NO_TIME})"),
    simple("timestamp_micros", "bigint", "timestamp", times.from_units(1)),
    prepared("timestampadd", "string=, int, timestamp", "timestamp", lambda u: _skip_first(times.add_units(times.unit_of(u))),
             sql="timestampadd({=0}, {1}, {2})", safe=f"try_add(timestampadd({{=0}}, {{1}}, {{2}}), {_NO_TIME})",
             usage="timestampadd(UNIT, int, timestamp)"),
    prepared("timestampdiff", "string=, timestamp, timestamp", "bigint", lambda u: _skip_first(times.count_units(times.unit_of(u))),
             sql="timestampdiff({=0}, {1}, {2})", usage="timestampdiff(UNIT, timestamp, timestamp)"),
    prepared("from_utc_timestamp", "timestamp, string=", "timestamp", lambda zone: times.zone_shift(zone, to_utc=False)),
    prepared("to_utc_timestamp", "timestamp, string=", "timestamp", lambda zone: times.zone_shift(zone, to_utc=True)),
)  # fmt: skip


def _with_value(name: str, python: Callable[..., Any], gives: str, *, nulls: Nulls = Nulls.STRICT, tight: bool = True) -> Function:
    return Function(name, f"{name}(array, value)", signatures.array_and_value(name, python, gives), nulls, tight)


def _with_array(name: str, python: Callable[..., Any], gives: str, *, tight: bool = True) -> Function:
    return Function(name, f"{name}(array, array)", signatures.two_arrays(name, python, gives), tight=tight)


def _of_array(name: str, python: Callable[..., Any], gives: str, *, tight: bool = True) -> Function:
    return Function(name, f"{name}(array)", signatures.on_array(name, python, gives), tight=tight)


_NESTED: Final = (
    Function("array", "array(a, ...)", signatures.build_array, Nulls.EAGER),
    Function("map", "map(key, value, ...)", signatures.build_map, Nulls.EAGER),
    Function("named_struct", "named_struct('name', value, ...)", signatures.build_struct, Nulls.EAGER),
    Function("size", "size(a)", signatures.size),
    Function("element_at", "element_at(array, index), element_at(map, key)", signatures.element_at("element_at"), tight=False),
    Function("try_element_at", "try_element_at(array, index)", signatures.element_at("try_element_at"), tight=False),
    Function("get", "get(array, index)", signatures.get, tight=False),
    _with_value("array_contains", nested.array_contains, "boolean", tight=False),
    _with_value("array_position", nested.array_position, "bigint"),
    _with_value("array_remove", nested.array_remove, "array"),
    _with_value("array_append", lambda _: nested.array_append, "array+", nulls=Nulls.EAGER),
    _with_value("array_prepend", lambda _: nested.array_prepend, "array+", nulls=Nulls.EAGER),
    _with_array("array_union", nested.distinct, "array"),
    _with_array("array_intersect", lambda t: nested.keep(t, True), "array"),
    _with_array("array_except", lambda t: nested.keep(t, False), "array"),
    _with_array("arrays_overlap", nested.arrays_overlap, "boolean", tight=False),
    _of_array("array_distinct", nested.distinct, "array"),
    _of_array("array_max", lambda t: nested.array_extreme(t, True), "element", tight=False),
    _of_array("array_min", lambda t: nested.array_extreme(t, False), "element", tight=False),
    _of_array("array_sort", nested.array_sort, "array"),
    Function("sort_array", "sort_array(array, ascending)", signatures.sort_array),
    Function("array_join", "array_join(array, separator, null)", signatures.array_join),
    Function("array_repeat", "array_repeat(value, n)", signatures.array_repeat, Nulls.EAGER, tight=False),
    Function("array_compact", "array_compact(array)", signatures.array_compact),
    Function("slice", "slice(array, start, length)", signatures.slice_rule),
    Function("flatten", "flatten(array)", signatures.flatten, tight=False),
    Function("map_keys", "map_keys(map)", signatures.map_part(keys=True)),
    Function("map_values", "map_values(map)", signatures.map_part(keys=False)),
    Function("map_entries", "map_entries(map)", signatures.map_entries),
    Function("map_contains_key", "map_contains_key(map, key)", signatures.map_contains),
    *(Function(name, f"{name}(array, x -> ...)", signatures.higher_order(name), Nulls.EAGER, tight=False)
      for name in ("transform", "filter", "exists", "forall")),
)  # fmt: skip


def _match_whole(pattern: Any) -> Callable[..., bool]:
    return lambda value, *_: pattern.fullmatch(value) is not None


def _match_part(pattern: Any) -> Callable[..., bool]:
    return lambda value, *_: pattern.search(value) is not None


def _match_lower(pattern: str, escape: str = "\\") -> Callable[..., bool]:
    compiled = text.like(pattern.lower(), escape)
    return lambda value, *_: compiled.fullmatch(value.lower()) is not None


def _substitute(pattern: str, replacement: str) -> Callable[..., str]:
    compiled = text.cutting_regex(pattern)
    write = text.replacement(replacement, compiled.groups)
    return lambda value, *_: compiled.sub(write, value)


def _skip_first(python: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *args: python(*args)


GROUPS: Final[dict[str, tuple[Function, ...]]] = {
    "Operators": _OPERATORS,
    "Numbers": _NUMERIC,
    "Text": _TEXT,
    "Dates and times": _TIMES,
    "Arrays, maps and structs": _NESTED,
}
FUNCTIONS: Final[dict[str, Function]] = {f.name: f for group in GROUPS.values() for f in group}
