"""Evaluate expressions over Python rows, without Spark: the interpreter's side of the expression subset.

A typed tree is lowered to sqlglot's and handed to the Python generator of sqlglot's own executor; three-valued NOT is the executor's, every
other operator is a Python function, that of its entry in `functions` or a lazy one below. The code is compiled once per expression. The
law: value, null and failure are what Spark's ANSI mode gives, in Spark's order of evaluation: a strict function stops at its first null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from sqlglot import exp

from watertable.errors import UnsupportedFunction
from watertable.sql.expressions import Expr
from watertable.sql.folds import attempted
from watertable.sql.spark_sql import can_fail
from watertable.sql.terms import Call, Lambda, Lit, Nulls, Ref, Term, Var

Row = Mapping[str, Mapping[str, object] | None]
Compiled = Callable[[Row], object]


class _Nothing(dict[str, None]):
    """Stand for a namespace that is null: all its columns are."""

    def __missing__(self, name: str) -> None:
        return None


_NOTHING: Final = _Nothing()


def evaluate(expr: Expr, row: Row) -> object:
    """Return the value of an expression for one row, given as a mapping from namespace to columns.

    Raise `EvaluationError` where Spark would raise, `UnsupportedFunction` for a function that only Spark knows.
    """
    return compiled(expr)(row)


@lru_cache(maxsize=8192)
def compiled(expr: Expr) -> Compiled:
    """Return the expression as a Python function of a row; raise `UnsupportedFunction` for a function that only Spark knows."""
    from sqlglot.executor.env import ENV
    from sqlglot.executor.python import Python

    lowering = _Lowering()
    try:
        source = Python().generator(identify=True, comments=False).generate(lowering.lower(expr.ast))
        code = compile(f"lambda scope: {source}", f"<{expr.sql}>", "eval")
    except (RecursionError, SyntaxError, MemoryError):  # Python's parser says either of the last two
        raise UnsupportedFunction(
            f"{expr.sql.lstrip('(')[:80]}... is nested too deeply to be interpreted: make it in steps, by with_columns"
        ) from None
    environment = {"NOT": ENV["NOT"], **lowering.names}
    return _over(eval(code, environment), tuple(lowering.namespaces))  # noqa: S307 (our own generated code, no text of the user's)


def _over(body: Callable[[Mapping[str, Any]], object], namespaces: tuple[str, ...]) -> Compiled:
    """Stand in for namespaces that are null."""

    def run(row: Row) -> object:
        for name in namespaces:
            if row[name] is None:
                return body({n: _NOTHING if (part := row[n]) is None else part for n in namespaces})
        return body(row)

    return run


class _Lowering:
    """Lower a term to sqlglot's tree; functions and constants become names, so that no text of the user's gets into the code."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {}
        self.namespaces: dict[str, None] = {}

    def lower(self, term: Term) -> exp.Expr:
        match term:
            case Lit(value=value):
                return self.constant("K", value)
            case Ref():
                return self.ref(term)
            case Var():
                return self.variable(term)
            case Lambda(params=params, body=body):
                return exp.Lambda(this=self.lower(body), expressions=[self.variable(p) for p in params])
            case Call():
                return self.call(term)

    def variable(self, term: Var) -> exp.Expr:
        return exp.var(f"v{term.name.encode().hex()}")

    def constant(self, letter: str, value: object) -> exp.Expr:
        name = f"{letter}{len(self.names)}"
        self.names[name] = value
        return exp.var(name)

    def apply(self, function: Callable[..., object], args: list[exp.Expr]) -> exp.Expr:
        return exp.Anonymous(this=self.constant("F", function).name, expressions=args)

    def ref(self, term: Ref) -> exp.Expr:
        self.namespaces[term.namespace] = None
        if not term.path:
            return self.apply(lambda part: None if part is _NOTHING else part, [exp.var(f"scope[{term.namespace!r}]")])
        found: exp.Expr = exp.column(term.path[0], table=term.namespace, quoted=True)
        for name in term.path[1:]:
            found = self.apply(lambda struct, field=name: None if struct is None else struct[field], [found])
        return found

    def call(self, term: Call) -> exp.Expr:
        name, args = term.function.name, term.args
        match name:
            case "and":
                return self.apply(_all, [self.lazy(a) for a in _operands(term)])
            case "or":
                return self.apply(_any, [self.lazy(a) for a in _operands(term)])
            case "not":
                return exp.Not(this=self.lower(args[0]))
            case "isnull":
                return exp.Paren(this=exp.Is(this=self.lower(args[0]), expression=exp.Null()))
            case "case":
                return self.apply(_case, [self.lazy(a) for a in args])
            case "coalesce":
                return self.apply(_coalesce, [self.lazy(a) for a in args])
            case "attempt":
                return self.apply(attempted, [self.lazy(args[0])])
        python = term.signature.python
        if python is None:
            raise UnsupportedFunction(f"function {name!r} is outside the interpreter's subset of Spark SQL; Spark alone can run it")
        if term.function.nulls is Nulls.EAGER:
            return self.apply(python, [self.lower(a) for a in args])
        first = 1 if term.function.nulls is Nulls.DIVISOR else 0
        if any(can_fail(a) for i, a in enumerate(args) if i != first):
            order = (1, 0) if first else tuple(range(len(args)))
            return self.apply(_in_order(python, order), [self.lazy(a) for a in args])
        return self.apply(_strict(python, len(args)), [self.lower(a) for a in args])

    def lazy(self, term: Term) -> exp.Expr:
        return exp.Lambda(this=self.lower(term), expressions=[])


def _operands(term: Call) -> list[Term]:
    """List what a chain of ANDs, or one of ORs, joins: side by side they need no nesting, of which Python's parser takes little."""
    found: list[Term] = []
    ahead: list[Term] = [term]
    while ahead:
        part = ahead.pop()
        if isinstance(part, Call) and part.function is term.function:
            ahead.extend(reversed(part.args))
        else:
            found.append(part)
    return found


def _all(*args: Callable[[], object]) -> object:
    """Give Spark's AND: false at the first that is false, else null if any is."""
    found: object = True
    for arg in args:
        if (value := arg()) is False:
            return False
        found = None if value is None else found
    return found


def _any(*args: Callable[[], object]) -> object:
    """Give Spark's OR: true at the first that is true, else null if any is."""
    found: object = False
    for arg in args:
        if (value := arg()) is True:
            return True
        found = None if value is None else found
    return found


def _case(*args: Callable[[], object]) -> object:
    for condition, value in zip(args[:-1:2], args[1::2], strict=True):
        if condition() is True:
            return value()
    return args[-1]()


def _coalesce(*args: Callable[[], object]) -> object:
    for arg in args:
        if (value := arg()) is not None:
            return value
    return None


def _strict(python: Callable[..., object], arity: int) -> Callable[..., object]:
    """Return the function that gives null for any null argument."""
    match arity:
        case 1:
            return lambda a: None if a is None else python(a)
        case 2:
            return lambda a, b: None if a is None or b is None else python(a, b)
    return lambda *args: None if None in args else python(*args)


def _in_order(python: Callable[..., object], order: tuple[int, ...]) -> Callable[..., object]:
    """Return the function that evaluates its arguments in Spark's order and stops at the first null."""

    def call(*thunks: Callable[[], object]) -> object:
        values: list[object] = [None] * len(thunks)
        for i in order:
            if (value := thunks[i]()) is None:
                return None
            values[i] = value
        return python(*values)

    return call
