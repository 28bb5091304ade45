"""Read and shorten the histories of versioned tables, as Spark SQL."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from watertable.compiler.layout import moment
from watertable.plan.nodes import History, StreamJoin, Versioned, WaitingJoin
from watertable.plan.plan import VERSIONS, WAITING, key_of
from watertable.plan.windows import microseconds
from watertable.schema import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def remembered(history: History, shaped: DataFrame, reached: datetime | None) -> DataFrame:
    """Cut the rows of a history to the versions that a record can still ask for, and say when a row has none but a deletion.

    A record asks for nothing further than the history's length behind its stream time, which is no less than what all partitions have
    reached: if it is older itself, it takes what was the row there, or none. So of the versions that are older than that, the last one
    answers for all; and where it is a deletion, so does no version at all. Nothing that is still to come gets between them: it would be
    older than the history.
    """
    versions = f"_wt.state.{quote(VERSIONS)}"
    answers = "CAST(NULL AS BOOLEAN)"
    if reached is not None:
        answers = f"e.order.ts < {moment(reached - history.parent.history)} AND e.order.st < {moment(reached)}"
    keys = [quote(name) for name in key_of(history).names]
    since = f"array_max(transform(filter({versions}, e -> {answers}), e -> e.order)) AS _since"
    kept = f"filter({versions}, e -> _since IS NULL OR e.order > _since OR (e.order = _since AND e.value.row IS NOT NULL)) AS _kept"
    cut = shaped.selectExpr(*keys, "_wt", since).selectExpr(*keys, "_wt", kept)
    last, length = "get(_kept, size(_kept) - 1)", microseconds(history.parent.history)
    done = f"timestamp_micros(unix_micros(greatest({last}.order.st, {last}.order.ts)) + {length}L)"
    until = f"CASE WHEN size(_kept) > 0 AND {last}.value.row IS NULL THEN {done} END"
    state = f"named_struct('seq', _wt.seq, 'epoch', _wt.epoch, 'state', named_struct('{VERSIONS}', _kept)) AS _wt"
    number = f"CAST(size(_kept) AS BIGINT) AS {quote(VERSIONS)}"
    return cut.selectExpr("size(_kept) > 0 AS _wt_alive", *keys, number, f"{until} AS _wt_until", state)


def as_of(table: Versioned, join: StreamJoin) -> list[list[str]]:
    """Write the selects that find the version which each record asks for: `now`, as the state of the table, null where there is none.

    `_old` are the versions of its key before the batch, `_new` those of the batch, each in order. Who waits finds those read before their
    partition had passed the time that it waits for; who doesn't, those that arrived before it. Who is older than the history asks for
    what it begins with, and takes that only if it isn't the later one.
    """
    in_time = f"unix_micros(e.order.ts) <= greatest(unix_micros(ts), unix_micros(st) - {microseconds(table.history)}L)"
    if isinstance(join, WaitingJoin):
        both = f"{in_time} AND unix_micros(e.order.st) <= {waits_until(join)}"
        old, new = f"filter(_old, e -> {both})", f"filter(_new, e -> {both})"
    else:
        place = ", ".join(f"'{name}', {{0}}{name}" for name in ("st", "topic", "partition", "offset"))
        arrived = f"named_struct({place.format('e.order.')}) <= named_struct({place.format('')})"
        old, new = f"filter(_old, e -> {in_time})", f"filter(_new, e -> {in_time} AND {arrived})"
    last = [f"get({array}, size({array}) - 1) AS {name}" for array, name in (("_a", "_o"), ("_b", "_n"))]
    picked = "if(_o IS NULL OR _n.order > _o.order, _n, _o)"
    row = f"named_struct('row', named_struct('order', {picked}.order, 'value', {picked}.value.row)) END AS now"
    return [[f"{old} AS _a", f"{new} AS _b"], last, [f"CASE WHEN unix_micros({picked}.order.ts) <= unix_micros(ts) THEN {row}"]]


def waits_until(join: WaitingJoin) -> str:
    """Write the stream time, in microseconds, that must pass before a record goes on."""
    return f"greatest(unix_micros(ts) + {microseconds(join.grace)}L, unix_micros(st))"


def is_due(join: WaitingJoin, keyed: str, reached: datetime | None) -> str:
    """Write the condition under which a record needn't wait any more, given the stream time that all partitions have reached.

    The time is looked up in a map by what no optimizer knows: as a constant it would be a part of the code that Spark compiles.
    """
    if reached is None:
        return f"NOT ({keyed})"
    now = f"unix_micros(element_at(map('now', {moment(reached)}), if(topic IS NOT NULL, 'now', '')))"
    return f"NOT ({keyed}) OR {waits_until(join)} < {now}"


def waiting_rows(states: DataFrame) -> DataFrame:
    """Take the records that wait out of their states, each with an `n` of -1: once it goes on, it waits no more."""
    each = states.selectExpr("key", f"explode(state.{quote(WAITING)}) AS e")
    place = (f"e.value.order.{name} AS {name}" for name in ("st", "topic", "partition", "offset", "ord"))
    return each.selectExpr("key", "e.value.key AS s_key", "e.value.value AS s_value", "e.value.ts AS ts", *place, "-1L AS n")


def state_as_of(time: datetime) -> str:
    """Write the state that a history makes of a key as of a time; null where there is none."""
    seen = f"filter(state.{quote(VERSIONS)}, e -> e.order.ts <= {moment(time)})"
    state = "named_struct('row', named_struct('order', v.order, 'value', v.value.row))"
    return f"get(transform(slice({seen}, -1, 1), v -> {state}), 0)"
