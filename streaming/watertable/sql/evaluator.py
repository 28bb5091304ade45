"""Evaluate expressions over Python rows, without Spark: the interpreter's side of the expression subset.

A typed tree is lowered to sqlglot's and handed to the Python generator of sqlglot's own executor; three-valued AND, OR and NOT are the
executor's, every other operator is the Python function of its entry in `functions`. The code is compiled once per expression. The law:
value, null and failure are what Spark's ANSI mode gives, in Spark's order of evaluation: a strict function stops at its first null.
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
    tree = lowering.lower(expr.ast)
    source = Python().generator(identify=True, comments=False).generate(tree)
    environment = {"AND": ENV["AND"], "OR": ENV["OR"], "NOT": ENV["NOT"], **lowering.names}
    code = compile(f"lambda scope: {source}", f"<{expr.sql}>", "eval")
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
                return exp.And(this=self.lower(args[0]), expression=self.lower(args[1]))
            case "or":
                return exp.Or(this=self.lower(args[0]), expression=self.lower(args[1]))
            case "not":
                return exp.Not(this=self.lower(args[0]))
            case "isnull":
                return exp.Paren(this=exp.Is(this=self.lower(args[0]), expression=exp.Null()))
            case "case":
                pairs = zip(args[:-1:2], args[1::2], strict=True)
                branches = [exp.If(this=self.lower(c), true=self.lower(v)) for c, v in pairs]
                return exp.Case(ifs=branches, default=self.lower(args[-1]))
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
