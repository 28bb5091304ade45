"""Bind the user's own folds: a step from what has been made so far, `acc`, and one more record, over records that are kept in order.

A step is an expression over `acc` and the record's columns. What it reads of each record is kept, as a list in log order; the fold goes
over that list where the state is read. So it is a pure function of the records, whatever the step: no merge is asked for, and none is
trusted. It costs what it keeps. A step that fails gives null, since there is no record to refuse any more where states are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from watertable.errors import EvaluationError, ExpressionError, UnknownColumn
from watertable.schema import Type, quote
from watertable.sql.binder import Binder, read
from watertable.sql.coercion import implicit
from watertable.sql.expressions import Expr, Scope, expression_of, parse, refusals
from watertable.sql.functions import cast_function
from watertable.sql.terms import Call, Function, Lambda, Lit, Nulls, Ref, Signature, Term, Var, walk
from watertable.sql.udfs import UdfFunction

ACC: Final = "acc"
_RECORD: Final = "__record"
_FOLD: Final = Function("fold", "fold(init, add)", lambda _: _never(), Nulls.EAGER, tight=False, sql="aggregate({0}, {1}, {2})")
_ATTEMPT: Final = Function("attempt", "attempt(a)", lambda _: _never(), Nulls.EAGER, tight=False, sql="{0}")

_OPEN: Final = Function("open", "open(a)", lambda _: _never(), tight=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """Hold a fold, bound to the columns of a stream or table.

    `member` is the text of what is kept of each record, null where it isn't one, with every name qualified; `over` gives the fold's value
    from the text of an array of these, in a scope.
    """

    member: str
    shown: str
    over: Callable[[str, Scope], Expr]


def bind_fold(what: str, init: str, add: str, scope: Scope, where: str) -> Steps:
    """Bind a fold that begins with a constant, of any type without a MAP; raise `ExpressionError` where the step's type isn't its own."""
    start = parse(init, Scope({}), where)
    kind = start.type
    if kind.kind == "void":
        raise ExpressionError(f"{where}: {what}: init={init!r} has no type; write CAST(NULL AS type)")
    if any(k.kind == "map" for k in _within(kind)):
        raise ExpressionError(f"{where}: {what}: init={init!r} is a {kind.sql()}, and a MAP has no order; fold into an ARRAY of STRUCTs")
    if any(k.kind == "void" for k in _within(kind)):
        raise ExpressionError(f"{where}: {what}: init={init!r} is a {kind.sql()}: a null in it has no type; write CAST(NULL AS type)")
    begin = start.ast if kind.kind not in ("array", "struct") else _open(start.ast)

    def step(binder: Binder) -> Term:
        return _attempt(_of_type(binder, binder.bind(read(add)), kind, add))

    return _steps(what, begin, kind, step, scope, where, f"{init}, {add}", add)


def bind_reduce(what: str, columns: Mapping[str, str], scope: Scope, where: str) -> Steps:
    """Bind a fold that begins with the first record; raise `UnknownColumn` for a column that the record hasn't got."""
    space = scope.bare[0]
    value = scope.namespaces[space]
    for name in columns:
        if name not in value:
            raise UnknownColumn(f"{where}: {what}: no column {name!r} to begin with; the record has {', '.join(value.names)}")
    kind = Type("struct", fields=tuple(c for name in columns for c in value if c.name == name))

    def step(binder: Binder) -> Term:
        first = [Ref(space, (f.name,), f.type) for f in kind.fields]
        then = [_attempt(_of_type(binder, binder.bind(read(columns[f.name])), f.type, columns[f.name])) for f in kind.fields]
        pairs = ([part for f, v in zip(kind.fields, values, strict=True) for part in (_name(f.name), v)] for values in (first, then))
        return binder.call("case", binder.call("isnull", Var(ACC, kind)), *(binder.call("named_struct", *pair) for pair in pairs))

    shown = ", ".join(f"{name}={text}" for name, text in columns.items())
    return _steps(what, Lit(None, kind), kind, step, scope, where, shown, shown)


def _steps(what: str, start: Term, kind: Type, step: Callable[[Binder], Term], scope: Scope, where: str, shown: str, text: str) -> Steps:
    if any(ACC in scope.namespaces[space] for space in scope.bare):
        raise ExpressionError(f"{where}: {what}: a column is called {ACC}, as what the fold has made so far is; rename it before")
    binder = Binder(scope.namespaces, scope.bare, udfs=True)
    binder.variables = {ACC: Var(ACC, kind)}
    with refusals(text, f"{where}: {what}"):
        body = step(binder)
        terms = tuple(walk(body))
    if any(isinstance(t, Call) and isinstance(t.function, UdfFunction) for t in terms):
        raise ExpressionError(f"{where}: {what}: a step runs where rows are read; call functions of your own in with_columns before")
    refs = {(t.namespace, *t.path[:1]) for t in terms if isinstance(t, Ref)}
    if any(len(ref) < 2 for ref in refs):
        raise ExpressionError(f"{where}: {what}: a step names the columns that it reads, and not the whole record")
    kept = {f"{space}_{column}": (space, column) for space, column in sorted(refs)}
    parts = [f"'{name}', {space}.{quote(column)}" for name, (space, column) in kept.items()] or ["'record', 1"]
    there = "value" if "value" in scope.namespaces else "new"
    member = f"CASE WHEN {there} IS NOT NULL THEN named_struct({', '.join(parts)}) END"
    element = parse(member, Scope(scope.namespaces), where).type

    def over(members: str, states: Scope) -> Expr:
        array = parse(members, states, where).ast
        with refusals(text, f"{where}: {what}"):
            function = Lambda((Var(ACC, kind), Var(_RECORD, element)), _rebased(body, Var(_RECORD, element)))
            signature = Signature(kind, (array.type, kind, kind), _fold)
            return expression_of(Call(_FOLD, (array, start, function), kind, signature), states)

    return Steps(member, shown, over)


def _of_type(binder: Binder, term: Term, kind: Type, text: str) -> Term:
    """Bring a step's value to the type of the fold: silently where nothing is lost, or between numbers."""
    if term.type == kind:
        return term
    if (term.type.kind != "string" and implicit(term.type, kind)) or (term.type.is_numeric and kind.is_numeric):
        return binder.apply(cast_function(kind, "cast"), term) if not isinstance(term, Lit) else binder.coerced(term, kind)
    raise ExpressionError(f"the step gives {term.type.sql()}, and what it steps on from is {kind.sql()}; CAST one of them")


def _open(term: Term) -> Term:
    """Let everything inside a beginning be null: Spark would take from it what may be, whatever the steps make of it."""
    function = dataclasses.replace(_OPEN, sql=f"CAST({{0}} AS {term.type.sql()})")
    return Call(function, (term,), term.type, Signature(term.type, (term.type,), lambda value: value))


def _within(kind: Type) -> Iterator[Type]:
    """Give a type and all types in it."""
    yield kind
    for inner in (kind.map_key, kind.element, *(f.type for f in kind.fields)):
        if inner is not None:
            yield from _within(inner)


def _attempt(term: Term) -> Term:
    """Give null where a term fails."""
    return Call(_ATTEMPT, (term,), term.type, Signature(term.type, (term.type,), None))


def _rebased(term: Term, record: Var) -> Term:
    """Read the columns from a kept record, and not from where they were."""
    match term:
        case Ref(namespace=space, path=(column, *rest)):
            found = _field(record, f"{space}_{column}")
            for name in rest:
                found = _field(found, name)
            return found
        case Call(args=args):
            return dataclasses.replace(term, args=tuple(_rebased(arg, record) for arg in args))
        case Lambda(body=body):
            return dataclasses.replace(term, body=_rebased(body, record))
    return term


def _field(term: Term, name: str) -> Term:
    kind = next(f.type for f in term.type.fields if f.name == name)
    return Binder({}, ()).field(term, name, kind)


def _name(name: str) -> Lit:
    return Lit(name, Type("string"))


def _fold(values: list[Any], made: Any, step: Callable[[Any, Any], Any]) -> Any:
    for value in values:
        made = step(made, value)
    return made


def attempted(thunk: Callable[[], object]) -> object:
    """Give what a term does, or null where it fails."""
    try:
        return thunk()
    except EvaluationError:
        return None


def _never() -> Signature:
    raise AssertionError("a fold is bound by its own rules")
