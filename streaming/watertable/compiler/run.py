"""Hold what one batch of an app is computed with, and what its records add to each table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import functions as F

from watertable.compiler.algebra import gathered, grouped, leaf_state, lifted, place, placed_in, single
from watertable.compiler.layout import Fold, Layout, Segment, expires, literal
from watertable.compiler.prepared import Make
from watertable.compiler.windowing import sliding_key, windowed_key
from watertable.plan import nodes, plan
from watertable.plan.aggregates import ArrivedField
from watertable.plan.nodes import TableAggregate
from watertable.plan.plan import TableDef
from watertable.plan.windows import SessionWindows, SlidingWindows, microseconds
from watertable.processing import PLACE, Clocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Partition = tuple[str, int]
Keys = Callable[[], "DataFrame"]
"""Makes a frame of distinct keys (`key`), where somebody needs it."""


class Lookup(Protocol):
    """Give the old rows of a table for some keys, and perhaps more, or all: `key`, `state`, with its lineage cut.

    The keys are those under which rows are made together (`company`): shorter ones than a processor's store has, say.
    Of an outer join of streams, those too in which a record waits whose window is closed at the stream time `due`; of the rows that wait
    for a suppressed table, all whose windows are closed by then, and all that could be made one with them.
    """

    def __call__(self, table: TableDef, keys: Keys | None, due: datetime | None = None, /) -> DataFrame:  # noqa: D102
        ...


class Write(Protocol):
    """Take what a batch adds to a table (`key`, `state`, `st`), in one job, to be committed with the rest of the batch."""

    def __call__(self, table: TableDef, rows: DataFrame, /) -> None:  # noqa: D102
        ...


@dataclass(slots=True)
class Run:
    """Hold what one batch needs beside the compiled plan; `frames` are its segments as far as they are made, by number."""

    layout: Layout
    make: Make
    """Makes frames by steps that are the same in each batch."""
    number: int
    """That of the batch."""
    carry: Mapping[Partition, datetime | None]
    lookup: Lookup
    since: Mapping[Partition, datetime | None]
    clocks: Clocks
    write: Write | None = None
    slots: Mapping[Partition, int] = field(default_factory=dict)
    """A number for each partition that the batch may have records of."""
    frames: dict[int, DataFrame] = field(default_factory=dict)
    kept: list[DataFrame] = field(default_factory=list)
    reached: Mapping[Partition, datetime | None] = field(default_factory=dict)
    """The stream times once the batch is read."""
    gained: Mapping[nodes.Leaf, int] = field(default_factory=dict)
    """How many records of the topics add to a table that streams look their keys up in, where that is known: of the first segment."""
    folded: dict[nodes.Leaf, tuple[DataFrame, DataFrame | None]] = field(default_factory=dict)
    """Partial states, and the windows that were missed, of the tables for which their records aren't kept."""
    written: set[nodes.Leaf] = field(default_factory=set)
    """Those whose table's rows are written."""
    waits: dict[nodes.Leaf, DataFrame] = field(default_factory=dict)
    done: dict[str, DataFrame] = field(default_factory=dict)
    """What outer joins of streams have paired or given in this batch, by the name of what they keep."""

    def numbered(self, segment: Segment, frame: DataFrame) -> DataFrame:
        """Put the batch's number beside the records of a segment of which something is kept by arrival."""
        wanted = any(by_arrival(fold) for fold in segment.folds)
        return frame.withColumn("batch", F.lit(self.number).cast("BIGINT")) if wanted else frame

    def input(self, segment: Segment) -> DataFrame:
        """Give the frame of the records that a later segment begins with."""
        return self.frames[self.layout.inputs[segment.number][0].segment.number]

    def of_parts(self, table: TableDef) -> list[DataFrame]:
        """Give the frame of the records that each part of a table folds."""
        return [self.frames[self.layout.folds[part.leaf][0].number] for part in table.parts]

    def keep(self, frame: DataFrame) -> DataFrame:
        """Compute a frame now, in one job, and cut its lineage: what is made of it plans fast, and never reads Kafka again."""
        self.kept.append(frame.localCheckpoint(eager=True))
        return self.kept[-1]

    def once(self, frame: DataFrame) -> DataFrame:
        """Compute a frame in the first job that uses it, for all that do."""
        self.kept.append(frame.localCheckpoint(eager=False))
        return self.kept[-1]

    def at_once(self, fold: Fold, frame: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """Fold a frame now, and keep what that comes to, not the frame: partial states, and the windows that were missed.

        A late record is a group by itself beside those of its key; it has one window.
        """
        if fold.windows is None:
            return self.keep(self.partial(fold, frame)), None
        first = f"{fold.slots}_first"
        columns = (
            f"{fold.key} AS key", f"{fold.lifts} AS l", f"{first} AS open", f"{first} AS last", "ts", *by_arrival(fold), *PLACE,
            f"CASE WHEN {fold.slots}_missed > 0 THEN {place()} END AS late",
        )  # fmt: skip
        kept = self.keep(
            self.make(("late", id(fold)), lambda records: folded(fold, records.where(fold.present).selectExpr(*columns), "late"), frame)
        )
        told = ("late.topic", "late.partition", "late.offset", "key.window_start", "key.window_end", "1L AS count")
        late = kept.where("late IS NOT NULL").selectExpr(f"{literal(fold.label)} AS node", "'late' AS reason", *told)
        return kept.where("late IS NULL").drop("late"), late

    def partial(self, fold: Fold, frame: DataFrame) -> DataFrame:
        """Fold what records of a frame contribute to a table to one partial state a key; see `folded`."""
        return self.make(("partial", id(fold)), lambda records: folded(fold, contributions(fold, records)), frame)

    def missed(self, fold: Fold, frame: DataFrame) -> DataFrame:
        """Give the windows that records of a frame miss, since they come too late: a row of `__dropped` for each."""
        return self.make(("missed", id(fold)), lambda records: missed(fold, records), frame)

    def gains(self, table: TableDef) -> bool:
        """Tell whether the batch may add to a table, as far as its first pass can say."""
        return any(self.gained.get(part.leaf, 1) for part in table.parts)

    def deltas(self, table: TableDef, partial: Mapping[nodes.Leaf, DataFrame]) -> DataFrame:
        """Give what a batch adds to a table: of several leaves, the partial states of each, to be merged where they are read."""
        if isinstance(table.root, nodes.Leaf):
            return partial[table.root]

        def steps(*partial: DataFrame) -> DataFrame:
            parts = (states.selectExpr(*placed_in(table, part), "st") for states, part in zip(partial, table.parts, strict=True))
            return union(parts)

        parts = self.make(("deltas", table.name), steps, *(partial[part.leaf] for part in table.parts))
        return union([parts, self.done[table.name]]) if table.name in self.done else parts


def by_arrival(fold: Fold) -> tuple[str, ...]:
    """Name the column that has the batch's number, where a fold goes by it."""
    return ("batch",) if any(isinstance(field, ArrivedField) for field in plan.state_of(fold.root)) else ()


def contributions(fold: Fold, frame: DataFrame) -> DataFrame:
    """Give what records contribute to a table (`key`, `l`, place), by slot for a windowed one."""
    here = frame.where(fold.present)
    if isinstance(fold.root, nodes.Versioned | nodes.History):
        kept = fold.root.parent if isinstance(fold.root, nodes.History) else fold.root
        here = here.where(f"NOT ({expires(kept)})")
    if isinstance(fold.root, TableAggregate):
        each = here.selectExpr(f"inline({fold.lifts})", "ts", *PLACE)
        return each.withColumn("ord", F.expr("ord * 2 + n"))
    keys, lifts = f"{fold.key} AS key", f"{fold.lifts} AS l"
    if fold.windows is None:
        return here.selectExpr(keys, lifts, "ts", *by_arrival(fold), *PLACE)
    first, opened, last = (f"{fold.slots}_{part}" for part in ("first", "open", "last"))
    slots = (f"{first} AS first", f"{opened} AS open", f"{last} AS last")
    return here.where(f"{opened} <= {last}").selectExpr(keys, lifts, *slots, "ts", *by_arrival(fold), *PLACE)


def missed(fold: Fold, frame: DataFrame) -> DataFrame:
    """Give the windows that records miss; see `Run.missed`."""
    assert fold.windows is not None
    first, opened, last = (f"{fold.slots}_{part}" for part in ("first", "open", "last"))
    size, advance = (microseconds(d) for d in (fold.windows.size, fold.windows.advance))
    late = frame.where(fold.present).where(f"{first} < {opened}").selectExpr(
        f"{literal(fold.label)} AS node", "'late' AS reason", "topic", "partition", "offset",
        f"explode(sequence({first}, least({opened} - {advance}, {last}), {advance}L)) AS s",
    )  # fmt: skip
    bounds = ("timestamp_micros(s) AS window_start", f"timestamp_micros(s + {size}) AS window_end")
    return late.selectExpr("node", "reason", "topic", "partition", "offset", *bounds, "1L AS count")


def folded(fold: Fold, contributions: DataFrame, *apart: str) -> DataFrame:
    """Fold contributions to one partial state a key; in a hopping table, a key that spans its windows (`spread`).

    Of sessions, to one for each that the batch makes by itself; else those that differ in the columns `apart` are kept so.
    """
    windows = fold.windows
    fields, each = plan.state_of(fold.root), contributions
    folds = [f"{leaf_state(fold.root, lifted)} AS state", "max(st) AS st"]
    if isinstance(windows, SlidingWindows):
        each = each.withColumn("key", F.expr(sliding_key(fold, windows)))
    elif windows is not None:
        each = each.withColumn("key", F.expr(windowed_key(fold, "open", "last", microseconds(windows.size))))
    if isinstance(windows, SessionWindows):
        return gathered(windows, each, fields, *folds)
    return grouped(each, fields, ("key", *apart), *folds)


def singles(layout: Layout, table: TableDef, frames: Iterable[DataFrame]) -> DataFrame:
    """Give what each record adds to a table by itself: `key`, `state`, and its place; `frames` are those that its parts fold.

    Where a table has several leaves, the n-th of m takes a record at `ord * m + n`. Where it groups rows, one that changes within its
    group has two steps at one place, of which only the second (`step` 1) makes a Change.
    """
    moves = any(isinstance(part.leaf, TableAggregate) for part in table.parts)
    found = []
    for number, (part, frame) in enumerate(zip(table.parts, frames, strict=True)):
        _, fold = layout.folds[part.leaf]
        rows = contributions(fold, frame)
        if fold.windows is not None:
            size, advance = microseconds(fold.windows.size), microseconds(fold.windows.advance)
            each = rows.withColumn("s", F.expr(f"explode(sequence(open, last, {advance}L))"))
            numbered = each.withColumn("ord", F.expr(f"ord * {fold.windows.per_record} + (s - first) div {advance}L"))
            slot = sliding_key(fold, fold.windows) if isinstance(fold.windows, SlidingWindows) else windowed_key(fold, "s", "s", size)
            rows = numbered.withColumn("key", F.expr(slot))
        steps = ["paired", "step"] if moves else []
        if moves and not isinstance(part.leaf, TableAggregate):
            rows = rows.selectExpr("*", "FALSE AS paired", "1 AS step")
        rows = rows.selectExpr("key", f"{leaf_state(part.leaf, single)} AS state", "ts", *steps, *PLACE)
        if not isinstance(table.root, nodes.Leaf):
            others = (*steps, *(c for c in PLACE if c != "ord"))
            rows = rows.selectExpr(*placed_in(table, part), "ts", f"ord * {len(table.parts)} + {number} AS ord", *others)
        found.append(rows)
    return union(found)


def union(frames: Iterable[DataFrame], *, loose: bool = False) -> DataFrame:
    """Put frames of the same columns below each other; where it is `loose`, a column that one hasn't is null in its rows."""
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=loose), frames)


def forget(kept: DataFrame) -> None:
    """Free a checkpointed frame's blocks now: the garbage collector would let several batches pile up."""
    kept._jdf.queryExecution().analyzed().rdd().unpersist(False)
