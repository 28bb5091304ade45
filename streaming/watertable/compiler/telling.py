"""Tell what each record of a batch does to rows that several states make, and which rows and records it makes final."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from watertable.compiler.algebra import (
    brought,
    company,
    finish,
    home,
    in_sessions,
    in_windows,
    merged_state,
    run_forward,
    sliding_window,
    stretch_of,
    upto,
)
from watertable.compiler.layout import encoded
from watertable.plan.nodes import Format, OuterStreamJoin
from watertable.plan.places import FAN_OUT
from watertable.plan.plan import DONE, TableDef
from watertable.plan.windows import EPOCH, Closing, SessionWindows, SlidingWindows, microseconds
from watertable.processing import PLACE
from watertable.schema import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def session_changes(table: TableDef, sessions: SessionWindows, rows: DataFrame, old: DataFrame) -> DataFrame:
    """Give what each record of a batch does to the sessions of its group: a row for each session, with its state `before` and `after`.

    `rows` are the records by themselves, with their places; `old` the sessions before the batch. In log order, a record joins the one or
    two sessions that are near enough: these end, and one of other bounds begins; or a session stays, with another state. For that each
    record is put beside what came before it in what is one session once the batch is over: a session costs the square of its records in a
    batch. The n-th session that a record touches is told of at `ord * FAN_OUT + n`, the one that it is in last.
    """
    group = home(table)
    numbered = rows.withColumn("_n", F.expr(f"row_number() OVER (PARTITION BY {group} ORDER BY st, topic, partition, offset, ord)"))
    every = numbered.select("key", "state", "_n").unionByName(old.selectExpr("key", "state", "0 AS _n"))
    every = in_sessions(sessions, every.withColumn("_group", F.expr(group)), "PARTITION BY _group", into="_at_last")
    each = every.where("_n > 0").select("_group", "_at_last", F.col("_n").alias("_of"))
    seen = each.join(every, ["_group", "_at_last"]).where("_n <= _of").drop("_at_last")
    here = "PARTITION BY _group, _of"
    seen = in_sessions(sessions, seen, here).withColumn("_mine", F.expr(f"max(CASE WHEN _n = _of THEN _session END) OVER ({here})"))
    near = in_sessions(sessions, seen.where("_session = _mine"), here, counts="_n < _of", into="_before")
    state = merged_state(table)
    names = table.key.names[:-2]
    bounds = "'window_start', min(key.window_start), 'window_end', max(key.window_end)"
    key = "named_struct(" + "".join(f"'{name}', _group.{quote(name)}, " for name in names) + f"{bounds}) AS key"
    before, after = (F.expr(f"{state} AS {side}") for side in ("before", "after"))
    ended = near.where("_before IS NOT NULL").groupBy("_group", "_of", "_before").agg(F.expr(key), before)
    begun = near.groupBy("_group", "_of").agg(F.expr(key), after)
    both = ended.drop("_before").unionByName(begun, allowMissingColumns=True).groupBy("_group", "_of", "key").agg(
        F.expr("any_value(before, true) AS before"), F.expr("any_value(after, true) AS after")
    )  # fmt: skip
    order = "PARTITION BY _group, _of ORDER BY after IS NOT NULL, key.window_start"
    told = both.withColumn("_i", F.expr(f"row_number() OVER ({order}) - 1"))
    record = numbered.withColumn("_group", F.expr(group)).withColumnRenamed("_n", "_of").drop("key", "state")
    return told.join(record, ["_group", "_of"]).withColumn("ord", F.expr(f"ord * {FAN_OUT} + _i"))


def sliding_changes(table: TableDef, windows: SlidingWindows, rows: DataFrame, old: DataFrame) -> DataFrame:
    """Give what each record of a batch does to the sliding windows of its group: a row for each window, `before` and `after` it.

    `rows` are the moments of the records by themselves, with their places; `old` the group's moments before the batch, of which those are
    looked at that are near one of the batch. A window is there once a moment has brought it and one is in it. A record changes the windows
    that it is in, and may begin the one right after it. The n-th window that it changes, by their ends, is told of at `ord * FAN_OUT + n`.
    """
    numbered = rows.selectExpr("*", f"{company(table)} AS _of").withColumn(
        "_n", F.expr("row_number() OVER (PARTITION BY _of ORDER BY st, topic, partition, offset, ord)")
    )
    stretch = f"unix_micros(key.__at) div {stretch_of(windows)}L"  # what shares a window with a moment is at most two away
    near = numbered.selectExpr("_of", f"explode(sequence({stretch} - 2, {stretch} + 2)) AS _near").distinct()
    before = old.selectExpr("key", "state", "0 AS _n", f"{company(table)} AS _of", f"{stretch} AS _near")
    before = before.join(near, ["_of", "_near"], "left_semi")
    every = before.select("key", "state", "_n").unionByName(numbered.select("key", "state", "_n"))
    held = in_windows(table, windows, every).selectExpr("_group", "_end", "_n", "state", "TRUE AS _holds")
    wanted = brought(table, windows, every).selectExpr("_group", "_end", "_n", "TRUE AS _brings")
    each = held.unionByName(wanted, allowMissingColumns=True).groupBy("_group", "_end", "_n").agg(
        F.expr(f"{merged_state(table)} AS state"), F.expr("max(_holds) AS _holds"), F.expr("max(_brings) AS _brings")
    )  # fmt: skip
    forward = "PARTITION BY _group, _end ORDER BY _n"
    there = f"COALESCE(max(_holds){upto(forward)} AND max(_brings){upto(forward)}, FALSE)"
    running = run_forward(table, each, forward, "after").selectExpr("*", f"{there} AS _there")
    began = f"COALESCE(lag(_there) OVER ({forward}), FALSE)"
    running = running.selectExpr("*", f"CASE WHEN {began} THEN lag(after) OVER ({forward}) END AS before", f"{began} AS _began")
    changed = running.where("_n > 0 AND _there AND (_holds OR NOT _began)").selectExpr(
        "_group AS _of", "_n", f"{sliding_window(table, windows)} AS key", "before", "after",
        "row_number() OVER (PARTITION BY _group, _n ORDER BY _end) - 1 AS _i",
    )  # fmt: skip
    return changed.join(numbered.drop("key", "state"), ["_of", "_n"]).withColumn("ord", F.expr(f"ord * {FAN_OUT} + _i"))


def foreign_changes(table: TableDef, rows: DataFrame, old: DataFrame) -> DataFrame:
    """Give the rows of a foreign-key join that each record of a batch touches, as pairs of rows `before` and `after` it.

    `rows` are what enters and leaves either side, in places; `old` what was there of the foreign keys in it. A left row comes and goes with
    the right one that is there then. A right row touches what names it then: every left row whose stay, from its coming to its going, it
    falls into. A left row that leaves one group and enters another is one Change, where it enters.
    """
    left, right = (f"get(state.{quote(f.name)}, 0)" for f in table.state)
    own = ", ".join(f"'{name}', key.{quote(name)}" for name in table.key.names)
    seeds = old.selectExpr("key", "state", "FALSE AS present")
    each = rows.unionByName(seeds, allowMissingColumns=True).selectExpr("*", f"{left} AS _l", f"{right} AS _r", f"{company(table)} AS _of")
    forward = "PARTITION BY _of ORDER BY present, st, topic, partition, offset, ord, step"
    each = each.withColumn("_n", F.expr(f"row_number() OVER ({forward})"))
    came = "CASE WHEN _r IS NOT NULL THEN named_struct('row', CASE WHEN _r.n > 0 THEN _r.value END) END"
    past = "OVER (PARTITION BY _of ORDER BY _n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    each = each.selectExpr(
        "*", f"named_struct({own}) AS _key", f"(last_value({came}) IGNORE NULLS {past}).row AS _there",
        "CASE WHEN paired THEN lag(_r.value) OVER (PARTITION BY _of ORDER BY _n) WHEN _r.n < 0 THEN _r.value END AS _before",
        "lead(_n) OVER (PARTITION BY _of, key ORDER BY _n) AS _until",
    )  # fmt: skip
    pair = "named_struct('left', _l.value, 'right', _there)"
    place = [c for c in PLACE if c != "ord"]
    moves = each.where("present AND _l IS NOT NULL").groupBy("_key", *place, F.expr("ord div 4")).agg(
        F.expr(f"any_value(CASE WHEN _l.n < 0 THEN {pair} END, true) AS before"),
        F.expr(f"any_value(CASE WHEN _l.n > 0 THEN {pair} END, true) AS after"),
        F.expr(f"max(ord) * {FAN_OUT} AS ord"), F.expr("any_value(ts) AS ts"),
    ).withColumnRenamed("_key", "key")  # fmt: skip
    stays = each.where("_l.n > 0").selectExpr("_of", "_key AS key", "_l.value AS _left", "_n AS _from", "_until")
    named = each.where("present AND step = 1 AND _r IS NOT NULL").selectExpr(
        "_of", "_n", "_before", "CASE WHEN _r.n > 0 THEN _r.value END AS _after", "ts", *PLACE
    )
    touched = named.join(stays, "_of").where("_from < _n AND COALESCE(_n < _until, TRUE)")
    number = f"ord * {FAN_OUT} + row_number() OVER (PARTITION BY _of, _n ORDER BY key) - 1 AS ord"
    sides = (f"named_struct('left', _left, 'right', _{side}) AS {side}" for side in ("before", "after"))
    others = ("ts", *place)
    both = moves.select("key", "before", "after", "ord", *others).unionByName(touched.selectExpr("key", *sides, number, *others))
    return both.withColumn("present", F.lit(True))


def final_rows(table: TableDef, closing: Closing, rows: DataFrame, since: datetime | None, now: datetime | None, topic: str) -> DataFrame:
    """Give the rows whose windows are closed at one stream time, and weren't at another: each at the last moment of its window.

    `rows` are absolute states. A row's number among those of its moment is 60 bits of a hash of its key.
    """
    after, before = microseconds(closing.after), microseconds(closing.before)
    bounds = [-1 if time is None else (time - EPOCH) // timedelta(microseconds=1) for time in (since, now)]
    side = "CAST(unix_micros(key.window_end) < 0 AS INT)"  # 0: so the bounds are data, and no code is compiled anew for them
    low, high = (f"array({bound}L, {bound}L)[{side}]" for bound in bounds)
    closes = f"unix_micros(key.window_end) + {after}L"
    closed = finish(table, rows).where(f"alive AND {closes} > {low} AND {closes} <= {high}")
    at = f"timestamp_micros(unix_micros(key.window_end) - {before}L)"
    number = f"CAST(conv(substr(md5({encoded('key', Format.JSON, table.key)}), 1, 15), 16, 10) AS BIGINT) AS offset"
    value = ", ".join(f"'{name}', row.{quote(name)}" for name in table.value.names)
    return closed.selectExpr(
        "TRUE AS present", "key", f"named_struct({value}) AS value", f"{at} AS ts", f"{at} AS st",
        f"{topic} AS topic", "-1 AS partition", number, "0L AS ord",
    )  # fmt: skip


def never_paired(node: OuterStreamJoin, every: DataFrame, old: DataFrame, paired: DataFrame, reached: datetime | None) -> DataFrame:
    """Give what waits in an outer join, has never paired, and can't any more: what comes is later in log order, and late."""
    ends = ", ".join(f"{microseconds(duration)}L" for duration in node.within.open_for)
    now = 0 if reached is None else (reached - EPOCH) // timedelta(microseconds=1)
    over = f"greatest(unix_micros(at.st), unix_micros(ts) + array({ends})[side]) < array({now}L, {now}L)[side]"
    waits = every.where(f"side IN ({', '.join(map(str, node.how.alone))}) AND {over}")
    done = paired.unionByName(old.selectExpr("key", f"explode(state.{quote(DONE)}) AS at"))
    return waits.join(done, ["key", "at"], "left_anti")
