"""Join a stream with a table or with another stream: each makes the records that a later segment begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from watertable.compiler.algebra import (
    company,
    done_with,
    finishing,
    grouped,
    leaf_state,
    leveled,
    lifted,
    place,
    run_forward,
    taken,
    upto,
)
from watertable.compiler.layout import Layout, Segment
from watertable.compiler.run import Run, contributions, folded, singles, union
from watertable.compiler.telling import never_paired
from watertable.compiler.versions import as_of, is_due, waiting_rows
from watertable.plan import nodes, plan
from watertable.plan.nodes import Versioned
from watertable.plan.places import PAIRS
from watertable.plan.plan import TableDef
from watertable.plan.windows import microseconds
from watertable.processing import PLACE
from watertable.schema import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def looked_up(run: Run, segment: Segment, node: nodes.StreamJoin) -> DataFrame:
    """Put each record beside the table's row for its key: the old one, run forward by what the table got before the record.

    What the table gets of the same record comes first. The table's states run along the keys that are looked up, and no others; where
    the batch adds nothing to the table, they stand still, and no order of records matters.
    """
    layout, table = run.layout, run.layout.topology.table(node.table)
    gains, records = run.gains(table), run.input(segment)

    def keys(records: DataFrame) -> DataFrame:
        rows, _, keyed = _asking(layout, segment, table, records)
        return rows.where(keyed).selectExpr(f"{company(table)} AS key").distinct()

    def steps(records: DataFrame, old: DataFrame, *frames: DataFrame) -> DataFrame:
        rows, spaces, keyed = _asking(layout, segment, table, records, "TRUE AS present")
        if gains:
            wanted = rows.where(keyed).select("key").distinct()
            added = singles(layout, table, frames).join(F.broadcast(wanted), "key", "left_semi")
            found = _run_forward(table, rows, added, old)
        else:
            found = rows.join(old.selectExpr("key", "state AS now"), "key", "left")
        found = leveled(found, finishing(table, state="now", key="key", into="_v"))
        return found.selectExpr("present", *spaces, f"_v{len(table.stages)} AS right", "ts", *PLACE)

    old = run.lookup(table, lambda: run.make(("keys", segment.number), keys, records))
    return run.make(("join", segment.number, gains), steps, records, old, *(run.of_parts(table) if gains else ()))


def _run_forward(table: TableDef, rows: DataFrame, added: DataFrame, old: DataFrame) -> DataFrame:
    """Give each record the state `now` of its key that the old one has come to with what the table got before it; null where none has."""
    before = [f.selectExpr("key", "state", "FALSE AS present", *place) for f, place in ((added, PLACE), (old, ()))]
    both = union([rows, *before], loose=True)
    forward = "PARTITION BY key ORDER BY st NULLS FIRST, topic, partition, offset, present, ord"
    known = f"count_if(NOT present){upto(forward)} > 0"
    return run_forward(table, both, forward, "_now").selectExpr("*", f"CASE WHEN {known} THEN _now END AS now").where("present")


def as_of_time(run: Run, segment: Segment, node: nodes.StreamJoin) -> DataFrame:
    """Put each record that doesn't wait any more beside the row of a versioned table as of its event time."""
    table, root = run.layout.topology.table(node.table), plan.root_of(node.right)
    assert isinstance(root, Versioned)
    (history,) = (t for t in run.layout.buffers if isinstance(t.root, nodes.History) and t.root.parent == root)
    rows, spaces, keyed = _asking(run.layout, segment, table, run.input(segment), apart=isinstance(node, nodes.WaitingJoin))
    if isinstance(node, nodes.WaitingJoin):
        rows = _waited(run, node, rows, keyed)
    keys = rows.where(keyed).select("key").distinct()
    old = run.lookup(history, lambda: keys).selectExpr("key", f"state.{quote(plan.VERSIONS)} AS _old")
    origin, fold = run.layout.folds[history.parts[0].leaf]
    came = contributions(fold, run.frames[origin.number]).join(F.broadcast(keys), "key", "left_semi")
    new = folded(fold, came).selectExpr("key", f"state.{quote(plan.VERSIONS)} AS _new")
    levels = (*as_of(root, node), *finishing(table, state="now", key="key", into="_v"))
    found = leveled(rows.join(old, "key", "left").join(new, "key", "left"), levels)
    right = f"_v{len(table.stages)} AS right"
    return found.selectExpr("TRUE AS present", *spaces, right, "ts", *PLACE)


def _asking(
    layout: Layout, segment: Segment, table: TableDef, records: DataFrame, *more: str, apart: bool = False
) -> tuple[DataFrame, list[str], str]:
    """Give the records that ask for rows of a table, what names their columns again, and the condition for keys that a row can have.

    Each has the `key` that it asks for, and `more` columns where they are wanted. A record that asks for its own key has it once, if that
    needn't be `apart`.
    """
    flow, wanted = layout.inputs[segment.number]
    columns = {name: f"s_{name}" if apart or column != wanted else "key" for name, column in flow.spaces.items() if name != "ts"}
    record = [f"{flow.spaces[name]} AS {column}" for name, column in columns.items() if column != "key"]
    rows = records.where(flow.present).selectExpr(f"{wanted} AS key", *more, *record, "ts", *PLACE)
    keyed = " AND ".join(f"key.{quote(name)} IS NOT NULL" for name in table.key.names)
    return rows, [f"{column} AS {name}" for name, column in columns.items()], keyed


def _waited(run: Run, node: nodes.WaitingJoin, rows: DataFrame, keyed: str) -> DataFrame:
    """Let the records go on that needn't wait any more, of the batch and of those before; keep the others, and forget who went."""
    buffer = plan.wait_of(node)
    topics = {n.topic.name for n in plan.walk(node) if isinstance(n, nodes.Source)}
    times = [time for (topic, _), time in run.reached.items() if topic in topics]
    whole = topics <= {topic for topic, _ in run.reached} and None not in times
    reached = min(time for time in times if time is not None) if whole else None
    old = waiting_rows(run.lookup(buffer, None))
    assert isinstance(buffer.root, nodes.Waiting)
    kept = rows.withColumn("s_value", F.expr(taken("s_value", buffer.root.columns, plan.value_of(node.parent))))
    every = kept.selectExpr("*", "1L AS n").unionByName(old).withColumn("_due", F.expr(is_due(node, keyed, reached)))
    member = "named_struct('value', named_struct('order', {0}, 'ts', ts, 'key', s_key, 'value', s_value), 'n', n) AS l"
    moved = every.where("_due = (n < 0)").selectExpr("key", member.format(place()), "st")
    leaf = buffer.parts[0].leaf
    folded = (f"{leaf_state(leaf, lifted)} AS state", "max(st) AS st")
    run.waits[leaf] = grouped(moved, plan.state_of(leaf), ("key",), *folded)
    return every.where("_due").drop("n", "_due")


def paired(run: Run, segment: Segment, node: nodes.StreamStreamJoin) -> DataFrame:
    """Pair the records of the batch with those of the other side: all that wait from before, and those of the batch that are earlier.

    So each pair is made once, in the batch of the one that comes last. Its place is that of the one that is later in log order. With them
    come, in an outer join, those that can't pair any more, or have no key.
    """
    buffer, sides = plan.buffer_of(node), run.layout.pairs[segment.number]
    place = "named_struct('st', st, 'topic', topic, 'partition', partition, 'offset', offset, 'ord', ord)"
    record = ("key", "side", "l", "r", "ts")
    came = []
    keyless: list[DataFrame] = []
    for side, half in enumerate(sides):
        frame, lifts = run.frames[half.flow.segment.number], half.fold.lifts
        values = [f"{lifts}.value AS {'lr'[side]}", "st", "topic", "partition", "offset", f"ord * 2 + {side} AS ord"]
        columns = [f"{half.fold.key} AS key", f"{side} AS side", f"{lifts}.ts AS ts", *values]
        came.append(frame.where(half.fold.present).selectExpr(*columns))
        if half.keyless is not None:
            keyless.append(frame.where(half.keyless).selectExpr(*columns))
    rows = union(came, loose=True).selectExpr(*record, f"{place} AS at")
    keys = rows.select("key").distinct()
    if isinstance(node, nodes.OuterStreamJoin):
        reached = plan.reached(run.reached, node.left, node.right)
        old = run.lookup(buffer, lambda: keys, reached)
    else:
        old = run.lookup(buffer, lambda: keys)
    waiting = [rows.selectExpr(*record, "at", "FALSE AS old")]
    for side, field_ in enumerate(buffer.state[:2]):
        kept = old.selectExpr("key", f"inline(state.{quote(field_.name)}) AS (o, v)")
        at = f"named_struct('st', o.st, 'topic', o.topic, 'partition', o.partition, 'offset', o.offset, 'ord', o.ord * 2 + {side})"
        waiting.append(kept.selectExpr("key", f"{side} AS side", f"v.value AS {'lr'[side]}", "v.ts AS ts", f"{at} AS at", "TRUE AS old"))
    every = union(waiting, loose=True)
    others = every.selectExpr("key AS key_", "1 - side AS for_", *(f"{name} AS o_{name}" for name in ("l", "r", "ts", "at", "old")))
    open_for = [microseconds(duration) for duration in node.within.open_for]
    apart = "(unix_micros(if(side = 0, o_ts, ts)) - unix_micros(if(side = 0, ts, o_ts)))"
    is_later, closes = "(o_at < at)", f"if(o_at < at, 1 - side, side) = 0, {open_for[0]}L, {open_for[1]}L"
    conditions = [
        "key = key_", "side = for_", f"{apart} BETWEEN {-microseconds(node.within.before)}L AND {microseconds(node.within.after)}L",
        f"(o_old OR {is_later})",
        f"unix_micros(greatest(at.st, o_at.st)) <= unix_micros(if({is_later}, o_ts, ts)) + if({closes})",
    ]  # fmt: skip
    found = rows.join(others, F.expr(" AND ".join(conditions))).selectExpr(
        "key", "coalesce(l, o_l) AS left", "coalesce(r, o_r) AS right", "greatest(ts, o_ts) AS ts", "greatest(at, o_at) AS later",
        "least(at, o_at) AS earlier",
    )  # fmt: skip
    named = "concat_ws('/', earlier.topic, earlier.partition, earlier.ord, later.ord)"
    number = f"pmod(crc32(CAST({named} AS BINARY)) + earlier.offset, {PAIRS}L) AS ord"
    of_later = ("later.st AS st", "later.topic AS topic", "later.partition AS partition", "later.offset AS offset")
    made = ("TRUE AS present", "key", "left", "right", "ts", *of_later, number)
    if not isinstance(node, nodes.OuterStreamJoin):
        return found.selectExpr(*made)
    found = run.once(found)
    paired = found.selectExpr("key", "explode(array(earlier, later)) AS at")
    given = run.once(never_paired(node, every, old, paired, reached))
    marks = paired.unionByName(given.select("key", "at")).where(f"at.ord % 2 IN ({', '.join(map(str, node.how.alone))})")
    marked = marks.groupBy("key").agg(F.expr("array_sort(collect_set(at)) AS places"), F.expr("max(at.st) AS st"))
    run.done[buffer.name] = marked.selectExpr("key", f"{done_with(buffer, 'places')} AS state", "st")
    at_once = union(keyless, loose=True)
    alone = given.unionByName(at_once.selectExpr("*", f"{place} AS at"), allowMissingColumns=True).selectExpr(
        "TRUE AS present", "key", "l AS left", "r AS right", "ts", *(f"at.{part} AS {part}" for part in PLACE if part != "ord"),
        f"at.ord % {PAIRS}L AS ord",
    )  # fmt: skip
    return found.selectExpr(*made).unionByName(alone)
