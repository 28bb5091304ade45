"""Write a bound expression three ways: as Spark SQL that raises, as Spark SQL that gives null instead, and as our own canonical form.

The second comes with a predicate that says on which rows the first would raise. It follows Spark's order of evaluation: a strict
function stops at its first null argument, CASE, COALESCE, AND and OR evaluate only what decides them; so a failure that Spark never
reaches is none. The canonical form is our own and numbered: fingerprints hash it, and no library's printer can change it.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from watertable.schema import Type, quote
from watertable.sql.scalars import GREATEST_FLOAT, repr_single
from watertable.sql.terms import Call, Function, Lambda, Lit, Nulls, Ref, Term, Var, walk

CANONICAL_VERSION: Final = 1
_SUFFIX: Final = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}
_HOLE: Final = re.compile(r"\{(\d+|\*|\+)\}")


@dataclass(frozen=True, slots=True)
class Safe:
    """Hold the never-raising form of a term, the predicate of its failure, and whether it is null wherever that holds."""

    sql: str
    fails: str | None
    null_where_failing: bool
    nullable: bool


def strict(term: Term) -> str:
    """Write Spark SQL that raises where Spark's ANSI mode does."""
    match term:
        case Ref():
            return term.sql()
        case Lit():
            return literal(term.value, term.type)
        case Var():
            return quote(term.name)
        case Lambda():
            return _lambda(term, strict(term.body))
        case Call(function=Function(name="attempt"), args=(attempted,)):
            return never_raising(attempted)[0]
        case Call(args=args):
            return _write(term, [strict(a) for a in args])


def never_raising(term: Term) -> tuple[str, str | None]:
    """Write Spark SQL that gives null where `strict` would raise, and the predicate of that; None where it never would."""
    found = _safe(term)
    if found.fails is None or found.null_where_failing:
        return found.sql, found.fails
    return f"if({found.fails}, NULL, {found.sql})", found.fails


def raised(term: Term) -> tuple[str, ...]:
    """Write what the user's functions in a term have raised, in words: null where nothing; in the order in which they stand."""
    calls = [call for call in walk(term) if isinstance(call, Call) and call.signature.raised is not None]
    return tuple(_fill(call.signature.raised or "", [_safe(a).sql for a in call.args]) for call in calls)


def can_fail(term: Term) -> bool:
    """Tell whether some value of its arguments makes a term raise."""
    return any(isinstance(t, Call) and t.signature.safe is not None for t in walk(term))


def _safe(term: Term) -> Safe:
    match term:
        case Call(function=Function(name="attempt"), args=(attempted,)):
            return Safe(never_raising(attempted)[0], None, True, True)
        case Call():
            return _safe_lazy(term) if term.function.nulls is Nulls.LAZY else _safe_call(term)
        case Lambda():
            body = _safe(term.body)
            fails = None if body.fails is None else _lambda(term, body.fails)
            return Safe(_lambda(term, body.sql), fails, False, False)
        case Lit():
            return Safe(strict(term), None, True, term.value is None)
        case _:
            return Safe(strict(term), None, True, True)


def _safe_call(term: Call) -> Safe:
    function, args = term.function, [_safe(a) for a in term.args]
    form, sqls = term.signature.safe, [a.sql for a in args]
    sql = _fill(form, sqls) if form is not None else _write(term, sqls)
    order = list(reversed(args)) if function.nulls is Nulls.DIVISOR else args
    is_strict = function.nulls is not Nulls.EAGER
    failures: list[str] = []
    guards: list[str] = []
    for arg, inner in zip(order, reversed(term.args) if function.nulls is Nulls.DIVISOR else term.args, strict=True):
        if isinstance(inner, Lambda):
            # the function is evaluated for every element; one failing element fails the record
            if arg.fails is not None:
                failures.append(f"coalesce(exists(transform({args[0].sql}, {arg.fails}), failed -> failed), false)")
        elif arg.fails is not None:
            failures.append(_and([*guards, arg.fails]))
        if is_strict and arg.nullable:
            guards.append(f"{arg.sql} IS NOT NULL")
    if form is not None:
        own = term.signature.fails
        predicate = f"{sql} IS NULL" if own is None else f"({_fill(own, sqls)})"
        # behind the guards no argument is null, and so the predicate isn't either
        failures.append(_and([*guards, predicate if is_strict else f"coalesce({predicate}, false)"]))
    nullable = not function.tight or form is not None or any(a.nullable for a in args)
    null_where_failing = (is_strict and all(a.null_where_failing for a in args)) or not failures
    return Safe(sql, _or(failures), null_where_failing, nullable)


def _safe_lazy(term: Call) -> Safe:
    args = [_safe(a) for a in term.args]
    sql = _write(term, [a.sql for a in args])
    if all(a.fails is None for a in args):
        return Safe(sql, None, True, True)
    last = len(args) - 1
    match term.function.name:
        case "and" | "or" as name:
            # AND goes on to its right side unless the left is false, OR unless it is true; null goes on
            goes_on = f"coalesce({args[0].sql}, true)" if name == "and" else f"NOT coalesce({args[0].sql}, false)"
            right = [] if args[1].fails is None else [_and([goes_on, args[1].fails])]
            return Safe(sql, _or([*_given(args[0].fails), *right]), False, True)
        case "coalesce":
            failures: list[str] = []
            guards: list[str] = []
            for arg in args:
                if arg.fails is not None:
                    failures.append(_and([*guards, arg.fails]))
                guards.append(f"{arg.sql} IS NULL")
            only_last = all(a.fails is None for a in args[:last])
            return Safe(sql, _or(failures), only_last and args[last].null_where_failing, True)
        case _:
            branches = []
            for condition, value in zip(args[:last:2], args[1::2], strict=True):
                branches += [f"WHEN {f} THEN true" for f in _given(condition.fails)]
                branches.append(f"WHEN {condition.sql} THEN {value.fails or 'false'}")
            fails = f"(CASE {' '.join(branches)} ELSE {args[last].fails or 'false'} END)"
            values = [*args[1::2], args[last]]
            exact = all(c.fails is None for c in args[:last:2]) and all(v.null_where_failing for v in values)
            return Safe(sql, fails, exact, True)


def _given(fails: str | None) -> list[str]:
    return [] if fails is None else [fails]


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else "(" + " AND ".join(parts) + ")"


def _or(parts: list[str]) -> str | None:
    if not parts:
        return None
    return _boolean(parts[0]) if len(parts) == 1 else "(" + " OR ".join(parts) + ")"


def _boolean(predicate: str) -> str:
    return predicate if predicate.startswith("(") else f"({predicate})"


def _write(term: Call, sqls: list[str]) -> str:
    return written(term.function.name, term.template, sqls)


def written(function: str, template: str, sqls: list[str]) -> str:
    """Write a call of a function by its template."""
    if function == "case":
        pairs = zip(sqls[:-1:2], sqls[1::2], strict=True)
        return f"CASE {' '.join(f'WHEN {c} THEN {v}' for c, v in pairs)} ELSE {sqls[-1]} END"
    return _fill(template, sqls)


def _fill(template: str, sqls: list[str]) -> str:
    def hole(match: re.Match[str]) -> str:
        match match[1]:
            case "*":
                return ", ".join(sqls)
            case "+":
                return ", ".join(sqls[1:])
            case number:
                return sqls[int(number)]

    return _HOLE.sub(hole, template)


def _lambda(term: Lambda, body: str) -> str:
    names = ", ".join(quote(p.name) for p in term.params)
    return f"({names}) -> {body}" if len(term.params) > 1 else f"{names} -> {body}"


def text_of_bytes(sql: str) -> tuple[str, str]:
    """Write a text that is made of bytes so that it is UTF-8: null where it isn't, and failing there.

    Spark takes any bytes for text, and no reader of tables takes such text.
    """
    return f"try_validate_utf8({sql})", f"validate_utf8({sql})"


def literal(value: object, kind: Type) -> str:
    """Write a constant for Spark so that it has exactly this type."""
    if kind.kind == "interval year to month":
        return f"INTERVAL '{value}' MONTH"
    match value:
        case None:
            return "NULL" if kind.kind == "void" else f"CAST(NULL AS {kind.sql()})"
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value}{_SUFFIX[kind.kind]}"
        case Decimal():
            digits = f"{value:f}"
            natural = max(len(digits.lstrip("-0.").replace(".", "")), kind.scale, 1)
            return f"{digits}BD" if natural == kind.precision else f"CAST({digits}BD AS {kind.sql()})"
        case float():
            name = kind.sql()
            if not math.isfinite(value):
                return f"CAST('{value}' AS {name})"
            if name == "FLOAT":  # with its fewest digits; those of the greatest are more than Spark takes for a FLOAT
                value = value if abs(value) == GREATEST_FLOAT else float(repr_single(value))
            return f"{value!r}{name[0]}"
        case str():
            return "'" + "".join(_ESCAPES.get(c, c) for c in value) + "'"
        case bytes():
            return f"X'{value.hex().upper()}'"
        case dt.datetime():
            return f"TIMESTAMP '{value.replace(tzinfo=None).isoformat(' ', 'microseconds')}+00:00'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
        case dt.timedelta():
            if kind.kind == "interval day":
                return f"INTERVAL '{value.days}' DAY"
            micros = value // dt.timedelta(microseconds=1)
            sign, (seconds, rest) = "-" if micros < 0 else "", divmod(abs(micros), 1_000_000)
            clock = f"{seconds // 86400} {seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:06}"
            return f"INTERVAL '{sign}{clock}' DAY TO SECOND"
        case _:
            return f"{value}"


def comparable(sql: str, kind: Type, depth: int = 0) -> str:
    """Write a value so that Spark compares it, which it doesn't maps: those become their entries, in the order of their keys.

    >>> comparable("m", Type.parse("MAP<STRING, INT>"))
    "array_sort(transform(map_entries(m), e0 -> named_struct('key', e0.key, 'value', e0.value)))"
    """
    each = f"e{depth}"
    match kind:
        case Type(kind="map", element=Type() as element):
            entry = f"named_struct('key', {each}.key, 'value', {comparable(f'{each}.value', element, depth + 1)})"
            return f"array_sort(transform(map_entries({sql}), {each} -> {entry}))"
        case Type(kind="array", element=Type() as element) if (inner := comparable(each, element, depth + 1)) != each:
            return f"transform({sql}, {each} -> {inner})"
        case Type(kind="struct", fields=fields):
            parts = [(quote(f.name), comparable(f"{sql}.{quote(f.name)}", f.type, depth)) for f in fields]
            if any(part != f"{sql}.{name}" for name, part in parts):
                named = ", ".join(f"'f{n}', {part}" for n, (_, part) in enumerate(parts))
                return f"CASE WHEN {sql} IS NOT NULL THEN named_struct({named}) END"
    return sql


_ESCAPES: Final = {"'": "\\'", "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0", "\x1a": "\\Z"}


def canonical(term: Term) -> str:
    """Write our own canonical form, a list in parentheses per call; the version is part of it."""
    return f"x{CANONICAL_VERSION}:{_canonical(term)}"


def _canonical(term: Term) -> str:
    match term:
        case Ref(namespace=namespace, path=path, type=kind):
            return f"{'.'.join([namespace, *path])}:{kind.sql()}"
        case Lit(value=value, type=kind):
            return f"{literal(value, kind)}:{kind.sql()}"
        case Var(name=name):
            return f"${name}"
        case Lambda(params=params, body=body):
            return f"(lambda {' '.join(p.name for p in params)} {_canonical(body)})"
        case Call(function=function, args=(Ref(namespace=namespace, path=()),)) if function.name == "isnull":
            return f"(isnull {namespace})"  # whether a record is there is no matter of its columns
        case Call(function=function, args=args, type=kind, signature=signature):
            # what the user's CAST says, of a cast or of a function that only Spark knows
            said = function.name in ("cast", "try_cast", "coerce") or (function.nulls is not Nulls.LAZY and signature.python is None)
            name = f"{function.name}:{kind.sql()}" if said else function.name
            return f"({' '.join([name, *map(_canonical, args)])})"
