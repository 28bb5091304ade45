"""Check what definitions are given, and parse it: columns, groups and aggregates by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from watertable.aggregates import Aggregation, BoundAggregate, reduction
from watertable.definitions import (
    check_key,
    identifier,
)
from watertable.errors import DefinitionError, ExpressionError, SchemaError
from watertable.expressions import Expr, Scope, parse
from watertable.schema import Schema
from watertable.stages import Named

if TYPE_CHECKING:
    from watertable.dsl import App


def bound_aggregates(
    aggregates: dict[str, Aggregation], where: str, bind_one: Callable[[str, Aggregation], BoundAggregate]
) -> tuple[BoundAggregate, ...]:
    """Bind named aggregates; raise `DefinitionError` when there are none, or two keep parts of one name."""
    if not aggregates:
        raise DefinitionError(f"{where}: agg wants at least one aggregate: agg(n=wt.count())")
    for name, aggregation in aggregates.items():
        identifier(name, "column", where)
        if not isinstance(aggregation, Aggregation):
            raise DefinitionError(f"{where}: {name}={aggregation!r} is not an aggregate; write wt.sum('...'), wt.count(), ...")
    bound = tuple(bind_one(name, aggregation) for name, aggregation in aggregates.items())
    kept = ["__rows", *(part.name for aggregate in bound for part in aggregate.state)]
    taken = sorted({name for name in kept if kept.count(name) > 1})
    if taken:
        raise DefinitionError(f"{where}: {', '.join(taken)} is also the name of a part that another aggregate keeps; rename the column")
    return bound


def check_steps(columns: dict[str, str], where: str) -> Aggregation:
    """Ask for a reduction by named steps; raise `DefinitionError` when there are none."""
    if not columns:
        raise DefinitionError(f"{where}: reduce wants columns: reduce(total='acc.total + total')")
    return reduction(columns)


def named_exprs(columns: dict[str, str], scope: Scope, where: str) -> Named:
    """Parse named expressions; raise `DefinitionError` when there are none."""
    if not columns:
        raise DefinitionError(f"{where}: no columns; write name='expression'")
    for name in columns:
        identifier(name, "column", where)
    return tuple((name, parse(text, scope, where)) for name, text in columns.items())


def grouped_by(columns: tuple[str, ...], named: dict[str, str], scope: Scope, where: str, operator: str) -> Named:
    """Parse the columns, or named expressions, of a group or key; raise an error when one has no name, or two have one."""
    if not columns and not named:
        raise DefinitionError(f"{where}: {operator} wants columns: {operator}('country') or {operator}(day='date(at)')")
    made: list[tuple[str, Expr]] = []
    for text in columns:
        expr = parse(text, scope, where)
        if len(expr.refs) != 1 or expr.sql.replace("`", "") != expr.refs[0]:
            raise ExpressionError(f"{where}: {operator}({text!r}): an expression needs a name: {operator}(name={text!r})")
        made.append((expr.refs[0].rsplit(".", 1)[-1], expr))
    made += [(name, parse(text, scope, where)) for name, text in named.items()]
    for name, _ in made:
        identifier(name, "column", where)
    repeated = sorted({name for name, _ in made if sum(name == other for other, _ in made) > 1})
    if repeated:
        raise SchemaError(f"{where}: {operator}: column {', '.join(repeated)} is named twice")
    check_key(Schema.of((name, expr.type) for name, expr in made), where, operator)
    return tuple(made)


def check_same_app(mine: App, theirs: App, wanted: str) -> None:
    """Raise `DefinitionError` when two parts of a definition are of different apps."""
    if theirs is not mine:
        raise DefinitionError(f"{wanted}: {mine.name!r} here, {theirs.name!r} there")


def identity(schema: Schema, scope: Scope, where: str) -> dict[str, Expr]:
    """Give the columns of a schema as expressions of themselves."""
    space = scope.bare[0]
    return {c.name: parse(f"{space}.`{c.name}`", scope, where) for c in schema}
