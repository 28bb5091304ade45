"""Check what definitions are given, and parse it: columns, groups and aggregates by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from types import FunctionType
from typing import TYPE_CHECKING, TypeVar

from watertable.dsl.definitions import check_key, check_typed, declared, here, identifier, placed
from watertable.errors import DefinitionError, ExpressionError, SchemaError
from watertable.plan.aggregates import Aggregation, BoundAggregate, reduction
from watertable.plan.processors import Processor, Punctuator, StoreShape
from watertable.plan.stages import Named
from watertable.plan.windows import check_duration
from watertable.processing import DELETED
from watertable.schema import Schema, check_names
from watertable.sql.binder import read
from watertable.sql.expressions import Expr, Scope, closed, parse, refusals
from watertable.sql.udfs import known_by

if TYPE_CHECKING:
    from watertable.dsl.app import App

V = TypeVar("V")


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
    with placed(where):
        check_names(aggregates)
    closing = ((name, _closed(aggregation, f"{where}: {name}={aggregation.function}")) for name, aggregation in aggregates.items())
    bound = tuple(bind_one(name, aggregation) for name, aggregation in closing)
    check_kept(bound, where)
    return bound


def counted(name: str, where: str) -> dict[str, Aggregation]:
    """Ask for a count under a name; raise `SchemaError` for one that names no column."""
    return {identifier(name, "column", where): Aggregation("count")}


def check_kept(bound: Iterable[BoundAggregate], where: str) -> None:
    """Raise `DefinitionError` when two aggregates of one row keep a part under one name."""
    kept = ["__rows", *(part.name.lower() for aggregate in bound for part in aggregate.state)]
    taken = sorted({name for name in kept if kept.count(name) > 1})
    if taken:
        raise DefinitionError(f"{where}: {', '.join(taken)} is also the name of a part that another aggregate keeps; rename the column")


def _closed(aggregation: Aggregation, where: str) -> Aggregation:
    """End the comments of what an aggregate is of: its texts are put into longer ones, so what is wrong with them is told before."""
    for text in (aggregation.argument, aggregation.by):
        if text is not None:
            with refusals(text, where):
                read(text)
    argument, by = (None if text is None else closed(text) for text in (aggregation.argument, aggregation.by))
    return replace(aggregation, argument=argument, by=by)


def check_steps(columns: dict[str, str], where: str) -> Aggregation:
    """Ask for a reduction by named steps; raise `DefinitionError` when there are none."""
    if not columns:
        raise DefinitionError(f"{where}: reduce wants columns: reduce(total='acc.total + total')")
    return reduction(columns)


def named_exprs(columns: Mapping[str, str], scope: Scope, where: str) -> Named:
    """Parse named expressions; raise `DefinitionError` when there are none."""
    if not columns:
        raise DefinitionError(f"{where}: no columns; write name='expression'")
    for name in columns:
        identifier(name, "column", where)
    return checked(tuple((name, parse(text, scope, where)) for name, text in columns.items()), where)


def checked(named: Named, where: str) -> Named:
    """Give named expressions as they are, if they make columns that can be kept.

    Raises `SchemaError`, with the place, for names that can't stand side by side, `ExpressionError` for a NULL without a type.
    """
    with placed(where):
        columns = Schema.of((name, expr.type) for name, expr in named)
    check_typed(columns, where)
    return named


def by_name(given: Mapping[str, V] | None, what: str, example: str, where: str) -> Mapping[str, V]:
    """Give what was given by name, if anything was; raise `DefinitionError`, with an example, for what has no names: a text, or a list."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise DefinitionError(f"{where}: {what}= wants a name for each: {what}={{'name': {example}}}; got {given!r}")
    return given


def written_headers(headers: Mapping[str, str], scope: Scope, where: str) -> Named:
    """Parse what a published record's headers say; raise `ExpressionError` for one that is neither text nor bytes."""
    if not isinstance(headers, Mapping):
        raise DefinitionError(f"{where}: headers= wants an expression for each header: headers={{'trace-id': 'trace'}}; got {headers!r}")
    made = tuple((name, parse(text, scope, where)) for name, text in headers.items())
    for name, expr in made:
        if expr.type.kind not in ("string", "binary"):
            raise ExpressionError(f"{where}: header {name!r} wants STRING or BINARY; got {expr.type.sql()}: cast it")
    return made


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
    group = checked(tuple(made), f"{where}: {operator}")
    check_key(Schema.of((name, expr.type) for name, expr in group), where, operator)
    return group


def check_same_app(mine: App, theirs: App, wanted: str) -> None:
    """Raise `DefinitionError` when two parts of a definition are of different apps."""
    if theirs is not mine:
        raise DefinitionError(f"{wanted}: {mine.name!r} here, {theirs.name!r} there")


def identity(schema: Schema, scope: Scope, where: str) -> dict[str, Expr]:
    """Give the columns of a schema as expressions of themselves."""
    space = scope.bare[0]
    return {c.name: parse(f"{space}.`{c.name}`", scope, where) for c in schema}


def key_value_store(value: str, *, key: str | None = None) -> StoreShape:
    """Keep a row for each record key, or, with a `key`, one for each entry of it; both are DDL column lists.

    In the processor, `context.store(name)` has get, put, delete and range over what is kept for the record's own key. Raises `SchemaError`
    for a bad DDL, `ExpressionError` for a key by which rows can't be told apart.
    """
    return _store("key_value", key, value, "", "", None)


def window_store(value: str, *, retention: timedelta, key: str | None = None) -> StoreShape:
    """Keep rows by time for each record key, or, with a `key`, for each entry of it: each for as long as the retention says.

    In the processor, `context.store(name)` has put and get at a time, and fetch over a stretch of time. The table's key ends with the
    column `at`. What is older than the retention, by the stream time of a key's record, goes with that record. Raises `DefinitionError`
    for a retention that isn't longer than zero, and what `key_value_store` raises.
    """
    return _store("window", key, value, "at TIMESTAMP", "", retention)


def versioned_store(value: str, *, history: timedelta, key: str | None = None) -> StoreShape:
    """Keep the versions of a row for each record key, or, with a `key`, for each entry of it: each valid from a time on.

    In the processor, `context.store(name)` has put, delete and get as of a time. The table's key ends with the column `valid_from`, and its
    column `deleted` tells that there is no row from then on. A version is kept until the next one has been valid for the length of the
    history. Raises `DefinitionError` for a history that isn't longer than zero, and what `key_value_store` raises.
    """
    return _store("versioned", key, value, "valid_from TIMESTAMP", f"{DELETED} BOOLEAN", history)


def _store(kind: str, key: str | None, value: str, time: str, mark: str, keeps: timedelta | None) -> StoreShape:
    where, operator = here(), f"{kind}_store"
    own = Schema() if key is None else declared(key, where, "key")
    row = declared(value, where, "value")
    check_key(own, where, operator)
    if time:
        check_duration(keeps, f"{operator}: how long it keeps")
    if keeps is not None and keeps <= timedelta(0):
        raise DefinitionError(f"{where}: {operator} must keep for longer than zero; got {keeps}")
    try:
        return StoreShape(kind, own + (Schema.parse(time) if time else Schema()), row + (Schema.parse(mark) if mark else Schema()), keeps)
    except SchemaError as error:
        raise SchemaError(f"{where}: {operator}: {error}: that one is the store's own") from None


def processor_of(
    function: object,
    children: Mapping[str, str] | None,
    stores: Mapping[str, StoreShape] | None,
    punctuators: Mapping[str, object] | None,
    version: str | None,
    operator: str,
    where: str,
) -> Processor:
    """Check what a processor is given; raise `DefinitionError` for what can't be called, and `SchemaError` for bad names and DDL."""
    if version is not None and not (isinstance(version, str) and version):
        raise DefinitionError(f"{where}: version={version!r} must be a text")
    children = by_name(children, "children", "'column TYPE'", where)
    stores = by_name(stores, "stores", "wt.key_value_store('column TYPE')", where)
    punctuators = by_name(punctuators, "punctuators", "function", where)
    if not children and not stores:
        raise DefinitionError(f"{where}: {operator} with neither children nor stores does nothing: children={{'name': 'column TYPE'}}")
    for name, shape in stores.items():
        if not isinstance(shape, StoreShape):
            raise DefinitionError(f"{where}: {operator}: store {name!r} is {shape!r}; write wt.key_value_store('column TYPE')")
    called = _called(function, operator, where)
    timed = [(identifier(name, "punctuator", where), _called(timed, operator, where)) for name, timed in punctuators.items()]
    return Processor(
        name=called.__name__,
        identity=known_by(called, where, version)[0],
        stores=tuple((identifier(name, "store", where), shape) for name, shape in stores.items()),
        children=tuple((identifier(name, "child", where), declared(ddl, where, f"child {name!r}")) for name, ddl in children.items()),
        function=called,
        punctuators=tuple(Punctuator(name, known_by(timed, where, version)[0], timed) for name, timed in timed),
    )


def _called(function: object, operator: str, where: str) -> FunctionType:
    """Check a function of a record and a context."""
    if not isinstance(function, FunctionType):
        raise DefinitionError(
            f"{where}: {operator} wants a function of (record, context), made by def; got {function!r}: between records nothing is kept "
            "but what is in stores"
        )
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise DefinitionError(
            f"{where}: {operator}: {function.__name__} is a generator or coroutine; forward rows with context.forward(...)"
        )
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        takes = inspect.signature(function)
        raise DefinitionError(f"{where}: {operator}: {function.__name__}{takes} must take (record, context), and no more") from None
    return function


def entry_key(key: Schema, name: str, shape: StoreShape, where: str) -> Schema:
    """Give the key of a store's table: the record's, then the entry's; raise `SchemaError` where a column is in both."""
    try:
        return key + shape.key
    except SchemaError as error:
        raise SchemaError(f"{where}: store {name!r}: {error}; its key comes after the record's") from None
