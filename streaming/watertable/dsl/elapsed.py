"""Derive tables from a table's Changes by the stream time that goes by: rows shown at most once in a while, and rows that don't stay.

Both are made of operators that there are, over windows of stream time itself (`Stretches`, `Lifetimes`): no record is late for those, and
one is closed once every partition that feeds the table has passed it. So what a table shows at a position follows from its Changes up to
there. When a row shows, or goes, their places in log order say; what it is, the Change that arrived last, since each says what the row
is by all that came before it: a partition that is behind doesn't bring back what was.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from watertable.plan import nodes, plan
from watertable.plan.aggregates import Aggregation, BoundAggregate, bind, bind_arrived, bind_ordered
from watertable.plan.scopes import scope_of
from watertable.plan.stages import Named
from watertable.plan.windows import Lifetimes, Stretches, Windows
from watertable.sql.expressions import Scope, parse

ROW: Final = "__row"
THERE: Final = "__there"
"""Names the column that says whether there is a row; one that is false hides what else there is."""
LIVES: Final = "__lives"
"""Names the column that says whether a row's time isn't over."""
_INSTANT: Final = timedelta(microseconds=1)


def settled(changes: nodes.ToStream, limit: timedelta, where: str) -> nodes.Table:
    """Show of each row what it is at the end of every stretch of stream time in which it changed."""
    row = _struct(plan.value_of(changes).names, "new")
    newest = bind_arrived(ROW, row, _qualified(changes), where)
    final = _rekeyed(_final(changes, Stretches(limit, limit, timedelta(0)), newest, where), changes, {ROW: f"value.{ROW}"}, where)
    scope = _qualified(final)
    kept = nodes.Aggregate(
        parent=final, group=_key(changes, scope, where), windows=None, aggregates=(bind_ordered(ROW, f"value.{ROW}", scope, where),),
        location=where,
    )  # fmt: skip
    return _shown(kept, f"value.{ROW}", f"value.{ROW}.{THERE}", changes, where)


def mortal(changes: nodes.ToStream, ttl: timedelta, where: str) -> nodes.Table:
    """Show each row until it hasn't changed for so much stream time."""
    value = plan.value_of(changes)
    scope = scope_of(changes)
    columns = {c.name: f"new.`{c.name}`" for c in value} | {THERE: "TRUE"}
    alive = nodes.Map(
        parent=changes, key_columns=_key(changes, scope, where), columns=_parsed(columns, scope, where), location=where
    )  # fmt: skip
    ended = _final(changes, Lifetimes(ttl - _INSTANT, timedelta(0)), bind(ROW, Aggregation("count"), _qualified(changes), where), where)
    nothing = {c.name: f"CAST(NULL AS {c.type.sql()})" for c in value} | {THERE: "FALSE"}
    told = nodes.MergeStreams(parents=(alive, _rekeyed(ended, changes, nothing, where)), location=where)
    scope = _qualified(told)
    row = f"CASE WHEN COALESCE(value.{THERE}, TRUE) THEN {_struct(value.names, 'value')} END"
    lives = bind(LIVES, Aggregation("last", f"COALESCE(value.{THERE}, TRUE)"), scope, where)
    kept = nodes.Told(
        parent=told, group=_key(changes, scope, where), windows=None, aggregates=(bind_arrived(ROW, row, scope, where), lives),
        location=where,
    )  # fmt: skip
    return _shown(kept, f"value.{ROW}.value", f"value.{LIVES} AND value.{ROW}.value.{THERE}", changes, where)


def _struct(columns: Iterable[str], row: str) -> str:
    """Write a row as one struct, and whether there is one."""
    return "named_struct(" + ", ".join([*(f"'{name}', {row}.`{name}`" for name in columns), f"'{THERE}', {row} IS NOT NULL"]) + ")"


def _qualified(node: nodes.Stream) -> Scope:
    """Leave bare names out: a column may be called `new`, as the row is."""
    return Scope(scope_of(node).namespaces)


def _key(changes: nodes.ToStream, scope: Scope, where: str) -> Named:
    return _parsed({name: f"key.`{name}`" for name in plan.key_of(changes).names}, scope, where)


def _final(changes: nodes.ToStream, windows: Windows, bound: BoundAggregate, where: str) -> nodes.FinalRows:
    """Aggregate each row's Changes in windows of stream time; the key's columns take numbers, since windows have bounds of their own."""
    scope = scope_of(changes)
    group = _parsed({f"__key{n}": f"key.`{name}`" for n, name in enumerate(plan.key_of(changes).names)}, scope, where)
    made = nodes.Aggregate(parent=changes, group=group, windows=windows, aggregates=(bound,), location=where)
    return nodes.FinalRows(parent=made, location=where)


def _rekeyed(final: nodes.FinalRows, changes: nodes.ToStream, columns: dict[str, str], where: str) -> nodes.Map:
    """Give final rows the key of the table."""
    scope = scope_of(final)
    key = _parsed({name: f"key.__key{n}" for n, name in enumerate(plan.key_of(changes).names)}, scope, where)
    return nodes.Map(parent=final, key_columns=key, columns=_parsed(columns, scope, where), location=where)


def _shown(kept: nodes.Table, row: str, there: str, changes: nodes.ToStream, where: str) -> nodes.Table:
    """Show the rows that are there, by the table's own columns."""
    alive = nodes.TableFilter(parent=kept, condition=parse(there, scope_of(kept), where), location=where)
    own = {name: f"{row}.`{name}`" for name in plan.value_of(changes).names}
    return nodes.TableMapValues(parent=alive, columns=_parsed(own, scope_of(alive), where), location=where)


def _parsed(columns: dict[str, str], scope: Scope, where: str) -> Named:
    return tuple((name, parse(text, scope, where)) for name, text in columns.items())
