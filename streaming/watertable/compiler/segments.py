"""Run the segments of a batch: each begins with records, from the topics or from what earlier ones made, and goes one pass over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from watertable.compiler.algebra import company, finishing, leveled, merge, run_forward, spread, upto
from watertable.compiler.joins import as_of_time, looked_up, paired
from watertable.compiler.layout import Flow, Layout, Segment, literal, moment
from watertable.compiler.prepared import Steps
from watertable.compiler.pythons import visited
from watertable.compiler.run import Partition, Run, singles, union
from watertable.compiler.telling import final_rows, foreign_changes, session_changes, sliding_changes
from watertable.compiler.windowing import window_starts
from watertable.plan import nodes, plan
from watertable.plan.aggregates import TimedField
from watertable.plan.nodes import Versioned
from watertable.plan.places import FAN_OUT
from watertable.plan.plan import TableDef, Topology
from watertable.plan.windows import EPOCH
from watertable.processing import PLACE
from watertable.schema import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RAW: Final = "raw"
"""The column of the first segment that has what Kafka has of a record that it refuses, for the quarantine."""
_RAW: Final = "named_struct('timestamp', raw_ts, 'key', raw_key, 'value', raw_value, 'headers', raw_headers)"
SLOT: Final = "_slot"
"""The column of the first segment that has a number for each partition; records are shuffled and counted by it."""
_BAD: Final = "node: STRING, location: STRING, reason: STRING"
_dealt: Final[dict[tuple[int, int], Sequence[int]]] = {}
"""What `_slots` has chosen, by the number of tasks and that of partitions: the same in each batch."""


def first(run: Run, records: DataFrame) -> DataFrame:
    """Decode the batch, run the first segment, and put each record at its stream time; a number in `SLOT` says of which partition it is."""
    run.slots = dict(zip(sorted(run.carry), _slots(records.sparkSession, len(run.carry)), strict=True))
    raw = ("timestamp AS raw_ts", "key AS raw_key", "value AS raw_value", "headers AS raw_headers")
    carried = _by_partition({place: "NULL" if when is None else moment(when) for place, when in run.carry.items()}, "TIMESTAMP")
    brought = (f"{_by_partition(run.slots, 'INT')} AS {SLOT}", f"{carried} AS _carried")
    read = records.selectExpr("topic", "partition", "offset", *raw, "0L AS ord", *brought)
    return run.make("first", partial(_first, run.layout), read)


def _first(layout: Layout, records: DataFrame) -> DataFrame:
    segment, sources = layout.segments[0], layout.sources
    times = [f"coalesce({', '.join(flow.spaces['ts'] for flow in sources.values())}, NULL) AS ts"]
    untimed = [sources[topic.name] for topic in layout.topology.topics if topic.timestamp]
    if untimed:
        without = " OR ".join(f"({flow.present} AND {flow.spaces['value']} IS NULL)" for flow in untimed)
        times.append(f"{without} AS _untimed")
    frame = _narrowed(segment, leveled(records, segment.levels), *times, SLOT, "_carried")
    reached = f"max(ts){upto(f'PARTITION BY {SLOT} ORDER BY offset')}" if layout.needs_order else "ts"
    timed = frame.withColumn("st", F.expr(f"greatest({reached}, _carried)")).drop("_carried")
    if untimed:  # a record that has no event time of its own is at what its partition has reached
        timed = timed.withColumn("ts", F.expr("if(_untimed, st, ts)")).drop("_untimed")
    return _in_windows(segment, timed)


def later(run: Run, segment: Segment) -> DataFrame:
    """Build the input of a later segment, and run it."""
    layout = run.layout
    match segment.origin:
        case nodes.FlatMapValues() as node:
            return _passed(run, segment, partial(_exploded, node, *layout.inputs[segment.number]), run.input(segment))
        case nodes.ToStream() as node:
            return _changes(run, segment, node)
        case nodes.StreamJoin() as node if isinstance(plan.root_of(node.right), Versioned):
            return _passed(run, segment, _as_it_is, as_of_time(run, segment, node))
        case nodes.StreamJoin() as node:
            return _passed(run, segment, _as_it_is, looked_up(run, segment, node))
        case nodes.StreamStreamJoin() as node:
            return _passed(run, segment, _as_it_is, paired(run, segment, node))
        case nodes.FinalRows() as node:
            return _passed(run, segment, _as_it_is, _final(run, node))
        case nodes.Process() as node:
            return _passed(run, segment, _as_it_is, _visited(run, segment, node))
        case nodes.MergeStreams() as node:
            parents = [run.frames[layout.flow(parent).segment.number] for parent in node.parents]
            return _passed(run, segment, partial(_united, layout, node), *parents)
        case Topology():
            raise AssertionError("the first segment has no input but the records")


def _passed(run: Run, segment: Segment, steps: Steps, *frames: DataFrame) -> DataFrame:
    """Go over a later segment's records, which some steps make of these frames."""

    def all_steps(*frames: DataFrame) -> DataFrame:
        return _in_windows(segment, _narrowed(segment, leveled(steps(*frames), segment.levels), "ts", "st"))

    return run.make(("segment", segment.number), all_steps, *frames)


def _as_it_is(records: DataFrame) -> DataFrame:
    """Make nothing of records that depend on what is known only now."""
    return records


def _exploded(node: nodes.FlatMapValues, flow: Flow, made: str, records: DataFrame) -> DataFrame:
    """Make a record of each element of an array."""
    there = flow.spaces.get("value", flow.spaces.get("new", ""))
    array = f"{made}.{quote(node.exploded)}"
    frame = records.where(f"{flow.present} AND {there} IS NOT NULL AND size({array}) <= {FAN_OUT}")
    frame = frame.selectExpr("*", f"posexplode({array}) AS (_pos, _item)")
    parts = ", ".join(f"'{n}', " + ("_item" if n == node.exploded else f"{made}.{quote(n)}") for n, _ in node.columns)
    window = [f"{flow.spaces['window']} AS window"] if "window" in flow.spaces else []
    return frame.selectExpr(
        "TRUE AS present", f"{flow.spaces['key']} AS key", *window, f"named_struct({parts}) AS value", f"ord * {FAN_OUT} + _pos AS ord",
        *(c for c in (*PLACE, "ts") if c != "ord"),
    )  # fmt: skip


def _changes(run: Run, segment: Segment, node: nodes.ToStream) -> DataFrame:
    """Give the Changes of a table: what each record of the batch does to the rows of its key, as they were before."""
    layout, table = run.layout, run.layout.topology.table(node.table)
    frames = run.of_parts(table)

    def keys(*frames: DataFrame) -> DataFrame:
        wanted = singles(layout, table, frames).selectExpr(f"{company(table)} AS key").distinct()
        if not isinstance(table.root, nodes.ForeignJoin):
            return wanted
        return wanted.where(" AND ".join(f"key.{quote(name)} IS NOT NULL" for name, _ in table.root.left.group[: -len(table.key)]))

    def steps(old: DataFrame, *frames: DataFrame) -> DataFrame:
        return _run_forward(table, singles(layout, table, frames), old)

    old = run.lookup(table, lambda: run.make(("keys", segment.number), keys, *frames))
    return _passed(run, segment, steps, old, *frames)


def _run_forward(table: TableDef, rows: DataFrame, old: DataFrame) -> DataFrame:
    """Run the states of the touched keys forward, record by record in log order, from the old rows."""
    rows = rows.withColumn("present", F.lit(True))
    if isinstance(table.root, nodes.ForeignJoin):
        return _told(table, foreign_changes(table, rows, old))
    if table.sessions is not None:
        return _told(table, session_changes(table, table.sessions, rows, old))
    if table.sliding is not None:
        return _told(table, sliding_changes(table, table.sliding, rows, old))
    seeds = old.selectExpr("key", "state", "FALSE AS present")
    both = rows.unionByName(seeds, allowMissingColumns=True).withColumn("_hash", F.expr("xxhash64(key)"))  # numbers sort quicker
    moves = "step" in rows.columns
    forward = f"PARTITION BY _hash, key ORDER BY present, st, topic, partition, offset, ord{', step' if moves else ''}"
    running = run_forward(table, both, forward, "after")
    in_order = [
        f"(state.{quote(f.name)} IS NULL OR state.{quote(f.name)}.order <=> after.{quote(f.name)}.order)"
        for f in table.state if isinstance(f, TimedField)
    ]  # fmt: skip
    before = f"lag(after) OVER ({forward})"
    if moves:  # a row that changes within its group is one Change, from before it left to after it came back
        before = f"CASE WHEN paired THEN lag(after, 2) OVER ({forward}) ELSE {before} END"
    seen = " AND ".join(["present", *(["step = 1"] if moves else []), *in_order])
    return _told(table, running.selectExpr("*", f"{before} AS before").where(seen))


def _told(table: TableDef, running: DataFrame) -> DataFrame:
    """Finish the states `before` and `after` each Change, and leave out those that nobody could see."""
    sides = (finishing(table, state=side, key="key", into=f"_{side}", window=f"_w_{side}") for side in ("before", "after"))
    running = leveled(running, ([*before, *after] for before, after in zip(*sides, strict=True)))
    last = len(table.stages)
    window = ["_w_after AS window"] if table.windows is not None else []
    changed = running.where(f"_before{last} IS NOT NULL OR _after{last} IS NOT NULL")
    return changed.selectExpr("present", "key", f"_before{last} AS old", f"_after{last} AS new", *window, "ts", *PLACE)


def _visited(run: Run, segment: Segment, node: nodes.Process) -> DataFrame:
    """Call a processor for the batch's records, with what its stores keep of their keys; see `pythons.visited`."""
    flow, value = run.layout.inputs[segment.number]
    record = (f"{flow.spaces['key']} AS key", f"{value} AS value", "ts", *PLACE)
    rows = run.input(segment).where(flow.present).selectExpr("TRUE AS present", *record)
    tables = [run.layout.topology.table(name) for name, _ in node.processor.stores]
    return visited(node, tables, rows, run.lookup, run.reached, run.clocks)


def _final(run: Run, node: nodes.FinalRows) -> DataFrame:
    """Give the rows of a table whose windows this batch closes: each once, at the last moment of its window, as it is now."""
    table, closing = plan.open_of(node), plan.closing_of(node.parent)
    states = {}
    for leaf in plan.leaves_of(table.root):
        segment, fold = run.layout.folds[leaf]
        states[leaf] = run.partial(fold, run.frames[segment.number])
    added = spread(table, run.deltas(table, states)).select("key", "state")
    since, now = (plan.reached(times, node.parent) for times in (run.since, run.reached))
    old = run.lookup(table, lambda: added.select("key").distinct(), now or EPOCH).select("key", "state")
    topic = literal(min(plan.topics_above(node)))
    return final_rows(table, closing, merge(table, old.unionByName(added)), since, now, topic)


def _united(layout: Layout, node: nodes.MergeStreams, *parents: DataFrame) -> DataFrame:
    """Give the records of several streams; one that comes by way of more than one of them is as many."""
    parts, names = [], layout.flow(node).spaces
    for number, (parent, records) in enumerate(zip(node.parents, parents, strict=True)):
        flow = layout.flow(parent)
        columns = [f"{flow.spaces[name]} AS {name}" for name in names]
        numbered = records.where(flow.present).withColumn("ord", F.expr(f"ord * {len(node.parents)} + {number}"))
        parts.append(numbered.selectExpr("TRUE AS present", *columns, "ts", *PLACE))
    return union(parts)


def _narrowed(segment: Segment, frame: DataFrame, *times: str) -> DataFrame:
    """Keep only what later steps need: flags and structs of tables and outputs, places, and why a record is refused.

    What Kafka has of a record is kept where the first segment refuses it. For what later ones refuse it is read again, by its place:
    kept of all records for those few, it would be held and shuffled with each.
    """
    cases = [
        f"CASE WHEN {flag} THEN named_struct('node', {literal(n)}, 'location', {literal(w)}, 'reason', {r}) END"
        for flag, n, w, r in segment.failures
    ]
    flags = " OR ".join(f"COALESCE({flag}, FALSE)" for flag, *_ in segment.failures) or "FALSE"
    bad = f"CASE WHEN {flags} THEN filter(array({', '.join(cases)}), b -> b IS NOT NULL) ELSE array() END" if cases else "array()"
    counted = [flag for found in (*segment.counters.values(), *segment.peeks.values()) for flag in found]
    place_now = [c for c in ("topic", "partition", "offset", "ord") if c not in segment.kept]
    kept = dict.fromkeys([*segment.kept, *counted])
    raw = [f"CASE WHEN {flags} THEN {_RAW} END AS {RAW}"] if segment.number == 0 else []
    return frame.selectExpr(*kept, *place_now, *times, f"CAST({bad} AS ARRAY<STRUCT<{_BAD}>>) AS bad", *raw)


def _by_partition(values: Mapping[Partition, object], kind: str) -> str:
    """Write what there is of each partition, as data: an array for each topic, by the numbers of its partitions."""
    topics: dict[str, dict[int, object]] = {}
    for (topic, number), value in values.items():
        topics.setdefault(topic, {})[number] = value
    arrays = {topic: ", ".join(str(of.get(n, "NULL")) for n in range(max(of) + 1)) for topic, of in topics.items()}
    cases = " ".join(f"WHEN {literal(topic)} THEN get(CAST(array({array}) AS ARRAY<{kind}>), partition)" for topic, array in arrays.items())
    return f"CASE topic {cases} ELSE CAST(NULL AS {kind}) END" if cases else f"CAST(NULL AS {kind})"


def _slots(spark: SparkSession, partitions: int) -> Sequence[int]:
    """Choose a number for each partition so that a shuffle by it deals them out evenly: by their names, one task might get them all."""
    tasks = int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    if tasks == 1:
        return list(range(partitions))
    if (tasks, partitions) not in _dealt:
        _dealt[tasks, partitions] = _deal(spark, tasks, partitions)
    return _dealt[tasks, partitions]


def _deal(spark: SparkSession, tasks: int, partitions: int) -> list[int]:
    """Find the numbers by how Spark hashes them."""
    numbers = ", ".join(f"({number})" for number in range(8 * partitions))
    found = spark.sql(f"SELECT number, pmod(hash(number), {tasks}) AS task FROM VALUES {numbers} AS t(number)").collect()  # with no job
    dealt: Counter[int] = Counter()
    turns = []
    for number, task in found:
        turns.append((dealt[task], number))
        dealt[task] += 1
    return [number for _, number in sorted(turns)[:partitions]]


def _in_windows(segment: Segment, frame: DataFrame) -> DataFrame:
    """Say of each record in which windows of the segment's tables it is."""
    for fold in segment.folds:
        if fold.windows is not None:
            frame = frame.selectExpr("*", *window_starts(fold))
    return frame
