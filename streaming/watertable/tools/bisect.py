"""Find where a condition on a row became true: the first commit after which readers could see it, then the record that made it so.

A condition needn't stay true, so no search by halves finds the first time. The changelog holds every change of every key, by commit:
the changes of a key are folded one by one, in Spark, and each row that comes of it is put to the condition; one pass, whatever the
number of commits, and another up to the commit that was found, for its rows. The history begins at the first commit, or, where that is
trimmed, at the oldest base from which every change is still there; that of a table that was rebuilt by itself, where it was put in.

Within the commit the interpreter tells the record. It is given the states that the commit found, of the keys that its records look at,
and reads just these records from their topics. So the answer is of what was committed, and costs one commit's records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from watertable.compiler.algebra import finish, grouped, merged_state, render, run_forward, state_struct
from watertable.compiler.layout import encoded
from watertable.errors import EvaluationError, UnknownPosition
from watertable.interpreter import Interpreter
from watertable.kafka import serdes
from watertable.plan.aggregates import Merge, StateField
from watertable.plan.nodes import Aggregate, Cogroup, Format, Latest, Newest, TableAggregate, TableJoin, Told
from watertable.plan.plan import TableDef, Topology
from watertable.plan.scopes import scope_of
from watertable.records import Advance, Key, Place, Record, Row
from watertable.schema import Schema
from watertable.sql.expressions import Expr, parse_predicate
from watertable.store.bases import Base, base_name
from watertable.store.commits import CommitInfo, Offsets, Position
from watertable.store.reader import Reader
from watertable.store.views import View
from watertable.tools import keytext
from watertable.tools.testcase import Watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_NOW: Final = 2**62
"""Numbers the batch that is looked into: it comes after all that are kept, whose numbers are microseconds."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Hold a condition on a table's rows: as it was written, and checked."""

    text: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Became:
    """Hold one key whose row came to meet the condition, and the row before and after the commit, as value columns."""

    key: Row
    old: Row | None
    new: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Say where a condition became true for the first time.

    `at` is the commit's position, None where there is none; `keys` are all those that it became true for in that commit.
    `since` is the position that the history begins at, None where all of it is there; `already` counts the keys for which it was true
    then. `ever` and `now` count keys.
    """

    table: str
    condition: str
    head: Position
    since: Position | None
    already: int
    ever: int
    now: int
    at: Position | None = None
    commit: CommitInfo | None = None
    before: CommitInfo | None = None
    keys: tuple[Became, ...] = ()

    def ranges(self, topology: Topology, table: TableDef) -> tuple[Offsets, Offsets]:
        """Give the offsets [begin, end) that the commit read of the topics that the table comes from."""
        topics = {topic.name for topic in topology.above({table.name}).topics}
        commit = self.commit or CommitInfo()
        begin = {p: offset for p, offset in commit.begin.items() if p[0] in topics and p in commit.next}
        return begin, {p: commit.next[p] for p in begin}


@dataclass(frozen=True, slots=True)
class Culprit:
    """Hold the first record of a commit after which a row met the condition, and the row just before and after it."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    record: Row | None
    key: Row
    old: Row | None
    new: Row


def condition_of(table: TableDef, text: str) -> Condition:
    """Check a condition on a table's rows; raise `ExpressionError` or `UnknownColumn` for one that can't be."""
    return Condition(text, parse_predicate(text, scope_of(table.node), f"table {table.name!r}"))


def find(reader: Reader, table: TableDef, condition: Condition, wanted: Row | None = None) -> Found:
    """Find the first commit of the app's lineage after which a row met the condition: any, or one of those that `keytext` has read.

    A row that met it only between two records of one commit was never to be seen, and doesn't count. Raises `TableNotFound`, and
    `UnknownPosition` for a table whose states aren't its rows, key by key: sessions, sliding windows, versions, stores, joins with `on=`.
    """
    if not _by_key(table):
        raise UnknownPosition(
            f"table {table.name!r} keeps states that are no rows of one key each (sessions, sliding windows, versions, stores, joins with "
            "on=): there is no row to follow through its changes. `watertable explain` tells the story of a key"
        )
    view = _from_the_beginning(reader.view([table.name]), reader, table)
    anew = view.along(table).after  # what was before a rebuild was another table's, and the commit that put it in had no records
    start = max(view.bases[table.name].seq, anew + 1 if anew else 0)
    rows = _history(view, table, start)
    if wanted is not None:
        rows = rows.where(keytext.condition(table, wanted, "key."))
    judged = _judged(rows, table, condition.expr)
    became = f"holds AND NOT held AND seq > {start}"
    counts = judged.agg(
        F.expr(f"count_if(holds AND seq <= {start}) AS already"), F.expr("count(DISTINCT CASE WHEN holds THEN key END) AS ever"),
        F.expr("count_if(holds AND is_last) AS now"), F.expr(f"min(CASE WHEN {became} THEN seq END) AS first"),
    ).head()  # fmt: skip
    assert counts is not None
    known = Found(
        table=table.name, condition=condition.text, head=view.position,
        since=Position(reader.changelog.app, view.lineage.epoch_of(start), start) if start else None,
        already=counts["already"], ever=counts["ever"], now=counts["now"],
    )  # fmt: skip
    if counts["first"] is None or (start and counts["ever"] == counts["already"]):
        return known
    seq = int(counts["first"])
    firsts = _judged(rows.where(f"seq <= {seq}"), table, condition.expr).where(f"{became} AND seq = {seq}")
    kept = firsts.orderBy("key").select(*(as_json(c) for c in ("key", "old", "row"))).collect()
    commits = {
        c.seq: c for c in reader.changelog.rows(view.snapshot, f"c.kind = 'batch' AND {view.lineage.where(seq - 2, seq)}")
        if view.lineage.holds(c.epoch, c.seq)
    }  # fmt: skip
    keys = tuple(Became(read_json(r["key"], table.key) or {}, _values(r["old"], table), _values(r["row"], table) or {}) for r in kept)
    return Found(
        **{name: getattr(known, name) for name in ("table", "condition", "head", "since", "already", "ever", "now")},
        at=Position(reader.changelog.app, view.lineage.epoch_of(seq), seq), commit=commits.get(seq), before=commits.get(seq - 1),
        keys=keys,
    )  # fmt: skip


def blame(reader: Reader, topology: Topology, table: TableDef, condition: Condition, found: Found, records: Iterable[Record]) -> Culprit:
    """Find the first record of the commit after which one of its rows met the condition, from the commit's records in their topics.

    Raises `UnknownPosition` when it can't be told: what the commit found is trimmed, or the code as it is loaded makes other rows.
    """
    assert found.at is not None
    part, names = topology.above({table.name}), table.key.names
    if others := [t.name for t in part.tables if not _by_key(t)]:
        raise UnknownPosition(f"which record of {found.at} it was can't be told: what {', '.join(others)} keeps isn't by its rows' keys")
    if set(Interpreter(part).states) - {t.name for t in part.tables}:
        raise UnknownPosition(
            f"which record of {found.at} it was can't be told: {table.name} is made of records that waited for each other"
        )
    wanted = {tuple(became.key[name] for name in names) for became in found.keys}
    view = _before(reader, part, found)
    times = {p: t for p, t in (found.before.stream_times if found.before else {}).items() if t is not None}
    advances = [Advance(a.topic, a.partition, a.before, a.stream_time) for a in (found.commit.advances if found.commit else ())]
    topics = {topic.name for topic in part.topics}
    batch: list[Advance | Record] = [*(a for a in advances if a.topic in topics), *(r for r in records if r.topic in topics)]
    states = _States(reader.changelog.spark, view)
    while True:  # what a record looks at can depend on a state that isn't known yet: once for each table on the way
        engine = Interpreter(part, watch=frozenset({table.name}))
        engine.stream_times, engine.batch = dict(times), _NOW
        asked: dict[str, set[Key]] = {t.name: set() for t in part.tables}
        engine.states = {t.name: states.of(t, asked[t.name]) for t in part.tables}
        engine.read(batch)
        asked[table.name] &= wanted
        if not states.load(part, asked):
            break
    for change in engine.changes[table.name]:
        key = tuple((change.key or {}).values())
        if key in wanted and change.value is not None and _holds(change.evaluate, condition.expr):
            record = next(r for r in batch if isinstance(r, Record) and (r.topic, r.partition, r.offset) == change.place[1:4])
            topic = next(t for t in part.topics if t.name == record.topic)
            value = serdes.columns_of(record, topic)
            return Culprit(
                record.topic, record.partition, record.offset, change.timestamp, value, change.key or {}, change.old, change.value
            )
    raise UnknownPosition(
        f"which record of {found.at} made {found.condition!r} true can't be told: under the code as it is loaded none of them does"
        + (f"; it was committed by {found.commit.fingerprint}, and this is {topology.fingerprint}" if found.commit else "")
    )


@dataclass(slots=True)
class _States:
    """Hold the states that a commit found, of the keys that were asked for so far."""

    spark: SparkSession
    view: View | None
    known: dict[str, dict[Key, Row]] = field(default_factory=dict)
    asked: dict[str, set[Key]] = field(default_factory=dict)

    def of(self, table: TableDef, asked: set[Key]) -> Watched:
        """Give a table's states, and note the keys that are asked for."""
        states = Watched(asked.add, asked.add)
        dict.update(states, self.known.get(table.name, {}))
        return states

    def load(self, part: Topology, asked: Mapping[str, set[Key]]) -> bool:
        """Read the states that were asked for and aren't known; tell whether there were such."""
        more = False
        for table in part.tables:
            missing = asked[table.name] - self.asked.setdefault(table.name, set())
            self.asked[table.name] |= missing
            if missing and self.view is not None:
                more = True
                keys = keys_frame(self.spark, table.key, missing)
                found = self.view.states(table, keys).select(as_json("key"), as_json("state")).collect()
                fields = Schema(state_struct(table).fields)
                for row in found:
                    key = tuple((read_json(row["key"], table.key) or {}).values())
                    state = read_json(row["state"], fields) or {}
                    kept = {f.name: _placed(f, state[f.name]) for f in table.state}
                    self.known.setdefault(table.name, {})[key] = kept
        return more


def _by_key(table: TableDef) -> bool:
    """Tell whether a table's states are folded key by key, under the keys of its rows."""
    by_moments = table.sessions is not None or table.sliding is not None
    return type(table.root) in (Aggregate, Cogroup, Latest, Newest, TableAggregate, TableJoin, Told) and not by_moments


def _from_the_beginning(view: View, reader: Reader, table: TableDef) -> View:
    """Pin the oldest base from which all changes are there: the empty one, unless the changelog is trimmed."""
    snapshot, lineage, head = view.snapshot, view.lineage, view.head
    kept = snapshot.frame().where(f"`table` = '__commit' AND {lineage.where(0, view.position.seq)} AND commit_v1.kind = 'batch'")
    oldest = kept.agg(F.min("seq")).head()
    first = int(oldest[0]) if oldest is not None and oldest[0] is not None else view.position.seq + 1
    base, own = Base(None, 0, 0), view.along(table)
    if first > own.after + 1:
        base = view.bases[table.name]
        marks = [
            m for row in reader.changelog.commits(snapshot, lineage.of_folds(), max(0, first - 2), view.position.seq, "fold")
            for m in row.folds if m.table == base_name(table) and first - 1 <= m.seq < base.seq and own.holds(m.epoch, m.seq)
        ]  # fmt: skip
        whole = [m for m in marks if (m.tombstones_from or first) >= first]  # of the others, what they need is trimmed
        for mark in sorted(whole, key=lambda m: m.seq):
            if (pinned := reader.log(base_name(table)).at(mark.version)) is not None:
                base = Base(pinned, mark.epoch, mark.seq, mark.tombstones_from)
                break
    return View(view.changelog, snapshot, head, lineage, view.position, {table.name: base})


def _history(view: View, table: TableDef, start: int) -> DataFrame:
    """Give what each commit did to each key, one row for both: `key`, `seq`, `state`; what the base held is of its own seq."""
    frames = [view.tail(table, each=True).select("key", "state", "seq")]
    if (base := view.base_states(table)) is not None:
        frames.append(base.select("key", "state", "seq"))
    rows = reduce(DataFrame.unionByName, frames).withColumn("seq", F.expr(f"greatest(seq, {start}L)"))
    return grouped(rows, table.state, ("key", "seq"), f"{merged_state(table)} AS state")


def _judged(rows: DataFrame, table: TableDef, condition: Expr) -> DataFrame:
    """Fold each key's changes one after the other and put each row to the condition: `holds`, and `held` before, and `is_last`."""
    along = "PARTITION BY key ORDER BY seq"
    running = run_forward(table, rows, along, "_upto").selectExpr("key", "seq", "_upto AS state")
    finished = finish(table, running).select("key", "seq", "alive", "row")
    if table.windows is not None:
        finished = finished.withColumn("_w", F.expr("named_struct('start', key.window_start, 'end', key.window_end)"))
    met = render(condition.safe_sql, {"value": "row", "key": "key", "window": "_w"})
    holds = finished.selectExpr("key", "seq", "row", f"alive AND COALESCE({met}, FALSE) AS holds")
    return holds.selectExpr(
        "*", f"COALESCE(lag(holds) OVER ({along}), FALSE) AS held", f"lag(row) OVER ({along}) AS old",
        f"lead(seq) OVER ({along}) IS NULL AS is_last",
    )  # fmt: skip


def _before(reader: Reader, part: Topology, found: Found) -> View | None:
    """Pin the tables as the commit found them; None before the first commit."""
    assert found.at is not None
    seq = found.at.seq - 1
    if seq == 0:
        return None
    if found.before is None:
        raise UnknownPosition(f"which record of {found.at} it was can't be told: the commit before it is trimmed")
    return reader.view([t.name for t in part.tables], Position(found.at.app, found.before.epoch, seq))


def _holds(evaluate: Any, condition: Expr) -> bool:
    try:
        return evaluate(condition) is True
    except EvaluationError:
        return False


def keys_frame(spark: SparkSession, schema: Schema, keys: Iterable[Key]) -> DataFrame:
    """Make a frame of keys: one struct column, `key`."""
    rows = (serdes.encode(dict(zip(schema.names, key, strict=True)), schema, Format.JSON) or b"" for key in keys)
    return spark.createDataFrame([(row.decode(),) for row in rows], "j STRING").select(F.from_json("j", schema.sql()).alias("key"))


def as_json(column: str) -> Any:
    """Write a struct column as JSON, which `read_json` reads back exactly."""
    return F.expr(f"CASE WHEN {column} IS NOT NULL THEN {encoded(column, Format.JSON, Schema())} END").alias(column)


def read_json(data: bytes | bytearray | None, schema: Schema) -> Row | None:
    """Read what `as_json` wrote."""
    return serdes.decode(None if data is None else bytes(data), schema, Format.JSON)


def _values(data: bytes | bytearray | None, table: TableDef) -> Row | None:
    row = read_json(data, table.columns)
    return None if row is None else {name: row[name] for name in table.value.names}


def _placed(field_: StateField, state: Any) -> Any:
    """Give a state as the interpreter keeps it: places in log order are compared as such."""
    match field_.merge:
        case Merge.FIRST | Merge.LAST if state is not None:  # what goes by arrival has more than a place there
            return state | {"order": tuple(state["order"].values())}
        case Merge.LIST | Merge.TOP if state is not None:
            return [kept | {"order": Place(**kept["order"])} for kept in state]
        case _:
            return state
