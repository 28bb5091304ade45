"""Hold a bound expression as a tree of five frozen kinds: reference, literal, call, lambda and its variable.

Names are resolved, every node has its exact Spark type, silent casts are explicit calls of `coerce`, and CASE, COALESCE, BETWEEN and
friends are reduced to `case`, `coalesce`, `and`, `or`. What Spark runs, what the interpreter runs and what is fingerprinted are three
readings of this one tree; it knows nothing of the parser that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from watertable.schema import Type, quote

NAMESPACES: Final = ("value", "key", "old", "new", "state", "left", "right", "window")
"""The names of the records, states and bounds that an expression may read, here or there."""


class Nulls(StrEnum):
    """Say how a function treats its arguments, null ones above all, as Spark evaluates it."""

    STRICT = "strict"  # from left to right; the first null ends it: null, the rest isn't evaluated
    DIVISOR = "divisor"  # the same, but the second argument is evaluated first: / % div pmod
    EAGER = "eager"  # every argument is evaluated, nulls are passed on to the function
    LAZY = "lazy"  # and, or, case, coalesce: only what decides the result is evaluated


@dataclass(frozen=True, slots=True)
class Signature:
    """Say everything about one function over one list of argument types.

    `args` are the types the arguments are cast to, `python` takes values of these. `safe` is a Spark SQL template that gives null where
    the function would raise ({0}, {1}: arguments, {*}: all); None where it can't raise. `fails` is a predicate over the same arguments
    that holds exactly where it would raise (null counts as false); left out, it is: `safe` is null although no argument is. `sql` takes
    the place of the function's own template where that depends on the types or constants. `raised` says in words what it has raised, null
    where nothing: of the user's own functions.
    """

    result: Type
    args: tuple[Type, ...]
    python: Callable[..., object] | None
    safe: str | None = None
    fails: str | None = None
    sql: str | None = None
    raised: str | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """Describe one function or operator of the subset: its name, its type rule, its Spark form and how it treats nulls.

    `tight` holds if the result is null only where an argument is (or where it fails); it saves a null check.
    """

    name: str
    usage: str
    rule: Callable[[tuple[Term, ...]], Signature]
    nulls: Nulls = Nulls.STRICT
    tight: bool = True
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Ref:
    """Read a column, or a field inside it, from one namespace."""

    namespace: str
    path: tuple[str, ...]
    type: Type

    def sql(self) -> str:
        """Write the reference for Spark: a namespace is a struct column of that name."""
        namespace = quote(self.namespace) if self.namespace == "window" else self.namespace
        return ".".join([namespace, *(quote(part) for part in self.path)])


@dataclass(frozen=True, slots=True)
class Lit:
    """Hold a constant, as the Python value that the interpreter works with."""

    value: object
    type: Type


@dataclass(frozen=True, slots=True)
class Call:
    """Apply a function; `args` already have the types that `signature` wants."""

    function: Function
    args: tuple[Term, ...]
    type: Type
    signature: Signature = field(compare=False, repr=False)

    @property
    def template(self) -> str:
        """Return the Spark SQL template of the strict form."""
        return self.signature.sql or self.function.sql or f"{self.function.name}({{*}})"


@dataclass(frozen=True, slots=True)
class Var:
    """Read the parameter of a lambda."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Lambda:
    """Hold the function handed to transform, filter, exists or forall."""

    params: tuple[Var, ...]
    body: Term

    @property
    def type(self) -> Type:
        """Return the type of the body."""
        return self.body.type


Term = Ref | Lit | Call | Var | Lambda


def walk(term: Term) -> Iterator[Term]:
    """Yield a term and everything below it, from the outside in."""
    yield term
    match term:
        case Call(args=args):
            for arg in args:
                yield from walk(arg)
        case Lambda(body=body):
            yield from walk(body)
