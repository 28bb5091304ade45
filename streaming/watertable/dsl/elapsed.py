"""Derive tables from a table's Changes by the stream time that goes by: rows shown at most once in a while, and rows that don't stay.

Both are made of operators that there are, over windows of stream time itself (`Stretches`, `Lifetimes`): no record is late for those, and
one is closed once every partition that feeds the table has passed it. So what a table shows at a position follows from its Changes up to
there, whatever the cuts between batches.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from watertable.plan import nodes, plan
from watertable.plan.aggregates import Aggregation, bind
from watertable.plan.scopes import scope_of
from watertable.plan.stages import Named
from watertable.plan.windows import Lifetimes, Stretches, Windows
from watertable.sql.expressions import Scope, parse

ROW: Final = "__row"
THERE: Final = "__there"
"""Names the column that says whether there is a row; one that is false hides what else there is."""
_INSTANT: Final = timedelta(microseconds=1)


def settled(changes: nodes.ToStream, limit: timedelta, where: str) -> nodes.Table:
    """Show of each row what it is at the end of every stretch of stream time in which it changed."""
    columns = plan.value_of(changes).names
    row = ", ".join([*(f"'{name}', new.`{name}`" for name in columns), f"'{THERE}', new IS NOT NULL"])
    final = _final(changes, Stretches(limit, limit, timedelta(0)), Aggregation("last", f"named_struct({row})"), where)
    return _shown(_rekeyed(final, changes, {name: f"value.{ROW}.`{name}`" for name in (*columns, THERE)}, where), changes, where)


def mortal(changes: nodes.ToStream, ttl: timedelta, where: str) -> nodes.Table:
    """Show each row until it hasn't changed for so much stream time."""
    value = plan.value_of(changes)
    scope = scope_of(changes)
    columns = {c.name: f"new.`{c.name}`" for c in value} | {THERE: "TRUE"}
    alive = nodes.Map(
        parent=changes, key_columns=_parsed({name: f"key.`{name}`" for name in plan.key_of(changes).names}, scope, where),
        columns=_parsed(columns, scope, where), location=where,
    )  # fmt: skip
    ended = _final(changes, Lifetimes(ttl - _INSTANT, timedelta(0)), Aggregation("count"), where)
    nothing = {c.name: f"CAST(NULL AS {c.type.sql()})" for c in value} | {THERE: "FALSE"}
    gone = _rekeyed(ended, changes, nothing, where)
    return _shown(nodes.MergeStreams(parents=(alive, gone), location=where), changes, where)


def _final(changes: nodes.ToStream, windows: Windows, aggregation: Aggregation, where: str) -> nodes.FinalRows:
    """Aggregate each row's Changes in windows of stream time; the key's columns take numbers, since windows have bounds of their own."""
    scope = scope_of(changes)
    group = _parsed({f"__key{n}": f"key.`{name}`" for n, name in enumerate(plan.key_of(changes).names)}, scope, where)
    bound = bind(ROW, aggregation, Scope(scope.namespaces), where)  # without bare names: a column may be called `new`, as the row is
    made = nodes.Aggregate(parent=changes, group=group, windows=windows, aggregates=(bound,), location=where)
    return nodes.FinalRows(parent=made, location=where)


def _rekeyed(final: nodes.FinalRows, changes: nodes.ToStream, columns: dict[str, str], where: str) -> nodes.Map:
    """Give final rows the key of the table."""
    scope = scope_of(final)
    key = _parsed({name: f"key.__key{n}" for n, name in enumerate(plan.key_of(changes).names)}, scope, where)
    return nodes.Map(parent=final, key_columns=key, columns=_parsed(columns, scope, where), location=where)


def _shown(rows: nodes.Stream, changes: nodes.ToStream, where: str) -> nodes.Table:
    """Keep the last of each row, and show those that are there by the table's own columns."""
    latest = nodes.Latest(parent=rows, location=where)
    alive = nodes.TableFilter(parent=latest, condition=parse(f"value.{THERE}", scope_of(latest), where), location=where)
    own = {name: f"value.`{name}`" for name in plan.value_of(changes).names}
    return nodes.TableMapValues(parent=alive, columns=_parsed(own, scope_of(alive), where), location=where)


def _parsed(columns: dict[str, str], scope: Scope, where: str) -> Named:
    return tuple((name, parse(text, scope, where)) for name, text in columns.items())
