"""Check Spark SQL expressions where they are written: names, types, safety, and which columns they read.

`parse` turns one string into an `Expr`: canonical SQL with every column qualified, its exact Spark type under ANSI mode, the columns it
reads, a form that never raises and the predicate that says where it would have. No Spark, no JVM. The law: an `Expr` is a pure function
of one record; whatever else an expression could read (clock, random numbers, files, other rows) is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from watertable.errors import ExpressionError, SchemaError, UnknownColumn
from watertable.schema import Schema, Type
from watertable.sql.binder import Binder, read
from watertable.sql.coercion import BOOLEAN, TIMESTAMP
from watertable.sql.spark_sql import canonical, never_raising, raised, strict
from watertable.sql.terms import Ref, Term, walk
from watertable.sql.udfs import quoted

__all__ = ["Expr", "Scope", "closed", "parse", "parse_negation", "parse_predicate", "window_schema"]


@dataclass(frozen=True, slots=True)
class Scope:
    """Say which columns an expression may name: namespaces in order, and those whose columns may be named without one.

    `udfs` lets it call the user's own Python: that is where there are records, and no rows that anybody could read anywhere.

    >>> scope = Scope({"value": Schema.parse("qty INT, price DECIMAL(9,2)"), "key": Schema.parse("id STRING")}, bare=("value", "key"))
    >>> parse("qty * price", scope, "doc").type
    Type('DECIMAL(20,2)')
    """

    namespaces: Mapping[str, Schema]
    bare: tuple[str, ...] = ()
    udfs: bool = False

    def __post_init__(self) -> None:
        for name in self.bare:
            if name not in self.namespaces:
                raise ExpressionError(f"bare namespace {name!r} is not one of: {', '.join(self.namespaces)}")


@dataclass(frozen=True, slots=True)
class Expr:
    """Hold one checked expression.

    `sql` raises in Spark where ANSI mode does; `safe_sql` gives null there, and `fails_sql`, a boolean that is never null, is true
    exactly on those rows (None: it can't fail). `raised_sql` are texts: what the user's own functions in it raise, null where nothing.
    `refs` are the columns read, as "value.qty", sorted. `canonical` is the form that fingerprints hash. `ast` is the typed tree, for the
    interpreter.

    >>> e = parse("-qty", Scope({"value": Schema.parse("qty INT")}, bare=("value",)), "doc")
    >>> e.sql, e.refs, e.canonical
    ('(- value.`qty`)', ('value.qty',), 'x1:(negative value.qty:INT)')
    """

    sql: str
    type: Type
    refs: tuple[str, ...]
    safe_sql: str
    fails_sql: str | None
    canonical: str
    ast: Term = field(compare=False, repr=False)
    raised_sql: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __hash__(self) -> int:
        return hash(self.canonical)  # a text remembers its own: the interpreter looks up what this compiles to for every record


def window_schema() -> Schema:
    """Return the columns of the namespace `window`: its start, and its end, which is outside it."""
    return Schema.of([("start", TIMESTAMP), ("end", TIMESTAMP)])


def parse(text: str, scope: Scope, where: str) -> Expr:
    """Check one expression against the columns in scope; `where` (file:line) goes into every message.

    Raise `UnknownColumn` for a name that isn't in scope, `ExpressionError` for anything else that can't be used.
    """
    with refusals(text, where):
        term = Binder(scope.namespaces, scope.bare, udfs=scope.udfs).bind(read(text))
        if term.type.kind.startswith("interval"):
            raise ExpressionError("an interval is no column type; add it to a DATE or TIMESTAMP")
        return expression_of(term, scope)


@contextmanager
def refusals(text: object, where: str) -> Iterator[None]:
    """Put the place, and the text that was written, before what is said to be wrong with it."""
    try:
        yield
    except (ExpressionError, UnknownColumn, SchemaError) as error:
        kind = ExpressionError if isinstance(error, SchemaError) else type(error)
        raise kind(f"{where}: in {quoted(text)}: {error}") from None
    except RecursionError:
        raise ExpressionError(f"{where}: in {quoted(text)}: it is nested too deeply; make it in steps, by with_columns") from None


def expression_of(term: Term, scope: Scope) -> Expr:
    """Give a bound term as an expression, written in every way that it is read."""
    safe_sql, fails_sql = never_raising(term)
    refs = {f"{r.namespace}.{name}" for r in walk(term) if isinstance(r, Ref) for name in r.path[:1] or scope.namespaces[r.namespace].names}
    return Expr(strict(term), term.type, tuple(sorted(refs)), safe_sql, fails_sql, canonical(term), term, raised(term))


def parse_predicate(text: str, scope: Scope, where: str) -> Expr:
    """Check an expression that must be BOOLEAN; raise `ExpressionError` if it isn't."""
    found = parse(text, scope, where)
    if found.type != BOOLEAN:
        raise ExpressionError(f"{where}: in {quoted(text)}: wanted a BOOLEAN condition; got {found.type.sql()}")
    return found


def parse_negation(condition: str, scope: Scope, where: str) -> Expr:
    """Parse a condition that must be BOOLEAN, and give its opposite, which is true also where it is null."""
    parse_predicate(condition, scope, where)  # what is wrong is told in the words that were written
    return parse_predicate(f"NOT COALESCE(({closed(condition)}), FALSE)", scope, where)


def closed(text: str) -> str:
    """End the comment that may end a text, so that more text can follow it."""
    return f"{text}\n" if "--" in text else text
