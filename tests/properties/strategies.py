"""Make random topologies of every operator, random records for them, and random cuts into batches.

Topologies are written through the DSL, as a user would, up to three tables deep. Most streams have the columns g, x and y, so that
they can merge; expressions are drawn by type from the columns in scope, and some of them fail on some records. Records come with null
keys, tombstones, null columns, broken bytes, several partitions, and times in any order; windows are short, so many are late.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import count, pairwise
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import CONSTANTS_CACHE, HypothesisProvider
from hypothesis.internal.constants_ast import Constants

import watertable as wt
from tests.proofs import EVERY, parts_of
from watertable.dsl.definitions import check_waits
from watertable.dsl.streams import Stream
from watertable.dsl.tables import Table
from watertable.errors import DefinitionError
from watertable.plan import nodes, plan
from watertable.plan.nodes import Format
from watertable.plan.plan import Topology
from watertable.plan.purity import told_out_of_time
from watertable.plan.scopes import is_change, join_scope, lookup_scope, pair_scope, scope_of
from watertable.plan.windows import SessionWindows, SlidingWindows, UnlimitedWindows, Windows, shape_of
from watertable.records import Record
from watertable.schema import Type
from watertable.sql.expressions import Scope

BASIC = "g STRING, x INT, y DECIMAL(9,2)"
START = datetime(2024, 3, 1, 12, tzinfo=UTC)
AGES = timedelta(days=5000)
"""So much later than their event times are the timestamps of records that hold those in a field: nothing may come of the timestamps."""
MAX_DEPTH = 3
MAX_STREAMS = 8
MAX_STEPS = int(os.environ.get("WATERTABLE_PLAN_STEPS", "4"))
RUN = 25


@dataclass(frozen=True)
class Case:
    """Hold a topology, the records it reads in the order of their arrival, and where they are cut into batches.

    `keyed` tells that each key is in one partition, as producers do; a plan's purity supposes it.
    """

    topology: Topology
    records: tuple[Record, ...]
    cuts: tuple[int, ...]
    keyed: bool

    @property
    def batches(self) -> list[list[Record]]:
        """Give the records batch by batch; no batch is empty."""
        edges = [0, *self.cuts, len(self.records)]
        return [list(self.records[a:b]) for a, b in pairwise(edges)]

    def __repr__(self) -> str:
        from watertable.plan.lineage import describe

        reads = [f"  {r.topic}[{r.partition}]@{r.offset} {r.timestamp:%T} {r.key!r} {r.value!r}" for r in self.records]
        return "\n".join([describe(self.topology), *reads, f"  cut at {self.cuts}"])


# -- expressions, drawn by type from what is in scope --------------------------------------------------------------------------------


Item = Stream | Table | Scope


def _typed(item: Item, *kinds: str) -> dict[str, Type]:
    scope = item if isinstance(item, Scope) else scope_of(item.node)
    every = ((f"{space}.{c.name}", c.type) for space, schema in scope.namespaces.items() for c in schema if space != "window")
    return {name: type_ for name, type_ in every if type_.kind in kinds}


def _columns(item: Item, *kinds: str) -> list[str]:
    return [*_typed(item, *kinds)]


@st.composite
def numbers(draw: st.DrawFn, item: Item) -> str:
    column = draw(st.sampled_from([*_columns(item, "int", "bigint"), "1"]))
    text = draw(st.sampled_from([*_columns(item, "string"), "'7'"]))
    forms = ["{c}", "{c} + 1", "-{c}", "{c} * 2", "{c} % 3", "COALESCE({c}, 0)", "CASE WHEN {c} > 3 THEN {c} ELSE 1 END", "length({t})"]
    form = draw(st.sampled_from([*forms, "10 div {c}", "CAST({t} AS INT)"]))  # the last two fail on some records
    return form.format(c=column, t=text)


@st.composite
def texts(draw: st.DrawFn, item: Item) -> str:
    column = draw(st.sampled_from([*_columns(item, "string"), "'t'"]))
    number = draw(st.sampled_from([*_columns(item, "int", "bigint"), "5"]))
    return draw(st.sampled_from(["{c}", "upper({c})", "COALESCE({c}, '-')", "concat({c}, '!')", "CAST({n} AS STRING)"])).format(
        c=column, n=number
    )


@st.composite
def amounts(draw: st.DrawFn, item: Item) -> str:
    known = _typed(item, "decimal")
    column = draw(st.sampled_from([*known, "1.25"]))
    number = draw(st.sampled_from([*_columns(item, "int", "bigint"), "2"]))
    wide = column in known and known[column].precision > 34  # a definition is refused that has these negated
    minus = "0 - {c}" if wide else "-{c}"
    return draw(st.sampled_from(["{c}", "{c} * {n}", "{c} + 0.5", minus, "{c} / {n}"])).format(c=column, n=number)


@st.composite
def conditions(draw: st.DrawFn, item: Stream | Table) -> str:
    number, text, amount = draw(numbers(item)), draw(texts(item)), draw(amounts(item))
    forms = ["{n} > 1", "{t} = 'a'", "{t} IS NOT NULL", "{a} < 20", "NOT ({n} > 3)", "{n} > 0 AND {a} > 1", "{n} > 5 OR {t} = 'b'"]
    form = draw(st.sampled_from([*forms, "{t} IN ('a', 'b')"]))
    return form.format(n=number, t=text, a=amount)


@st.composite
def basic(draw: st.DrawFn, item: Item) -> dict[str, str]:
    """Make the columns that most streams have."""
    return {"g": draw(texts(item)), "x": f"CAST({draw(numbers(item))} AS INT)", "y": f"CAST({draw(amounts(item))} AS DECIMAL(9,2))"}


@wt.udf(returns="INT", version="1")
def _tenth(number: Any) -> Any:
    return number.map(lambda n: 10 // int(n))  # fails on 0


@wt.udf(returns="STRING", over="arrow", nulls=True, version="1")
def _shown(text: Any) -> Any:
    return pa.array([f"<{t}>" for t in text.to_pylist()])


# -- operators ------------------------------------------------------------------------------------------------------------------------


@st.composite
def next_streams(draw: st.DrawFn, pool: Sequence[Stream], number: int) -> list[Stream]:
    """Apply one operator to one stream of the pool."""
    stream = draw(st.sampled_from(pool))
    alike = [s for s in pool if (s.key, s.value) == (stream.key, stream.value) and is_change(s.node) == is_change(stream.node)]
    choices = ["map_values", "filter", "select_key", "filter_not", "expect", "flat_map_values", "map", "with_columns", "peek", "split",
               "repartition", "merge", "merge", "python"]  # fmt: skip
    match draw(st.sampled_from(choices)):
        case "map_values":
            return [stream.map_values(**draw(basic(stream)))]
        case "filter":
            return [stream.filter(draw(conditions(stream)))]
        case "filter_not":
            return [stream.filter_not(draw(conditions(stream)))]
        case "select_key":
            named = {"k": draw(texts(stream))} | ({"n": draw(numbers(stream))} if draw(st.booleans()) else {})
            return [stream.select_key(**named)]
        case "map":
            return [stream.map(key={"k": draw(texts(stream))}, value=draw(basic(stream)))]
        case "with_columns" if not is_change(stream.node):
            return [stream.with_columns(x=f"CAST({draw(numbers(stream))} AS INT)")]
        case "expect":
            verdict = draw(st.sampled_from(["quarantine", "drop", "warn"]))
            return [stream.expect(f"rule{number}", draw(conditions(stream)), on_fail=verdict)]
        case "flat_map_values":
            made = draw(basic(stream))
            arrays = [*_columns(stream, "array"), f"array({made['g']}, 'z')", f"filter(array({made['g']}), g -> g > 'a')"]
            return [stream.flat_map_values(**made | {"g": draw(st.sampled_from(arrays))})]
        case "peek":
            return [stream.peek(f"peek{number}")]
        case "split":
            branches = stream.split().branch("one", draw(conditions(stream))).branch("two", draw(conditions(stream)))
            return list((branches.default_branch() if draw(st.booleans()) else branches.no_default_branch()).values())
        case "repartition":
            return [stream.repartition()]
        case "python":
            made = draw(basic(stream))
            tenth = _tenth(made["x"])
            shown = draw(st.sampled_from([_shown(made["g"]), f"CAST({tenth} AS STRING)"]))
            return [stream.map_values(**made | {"x": tenth, "g": shown})]
        case "merge":
            return [stream.merge(*draw(st.lists(st.sampled_from(alike), min_size=1, max_size=2)))]
    return [stream.filter(draw(conditions(stream)))]


@st.composite
def paired(draw: st.DrawFn, stream: Stream, pool: Sequence[Stream]) -> Stream:
    """Join a stream with one whose keys have the types of its own, or with itself."""
    alike = [s for s in pool if [c.type for c in s.key] == [c.type for c in stream.key]]
    other = draw(st.sampled_from(alike))
    before, after = (draw(st.sampled_from([-2, 0, 4, 15])) for _ in range(2))
    grace = draw(st.sampled_from([0, 0, 5, 60]))
    within = wt.join_windows(before=wt.seconds(before), after=wt.seconds(max(after, -before)), grace=wt.seconds(grace))
    join = draw(st.sampled_from([Stream.join, Stream.left_join, Stream.outer_join]))
    return join(stream, other, within=within, **draw(basic(pair_scope(stream.node, other.node))))


@st.composite
def looked_up(draw: st.DrawFn, stream: Stream, kept: Sequence[Table]) -> Stream:
    """Join a stream with a table that is kept, by its own key where that fits, or by another."""
    table = draw(st.sampled_from(kept))
    kinds = [c.type for c in table.key]
    join = draw(st.sampled_from([Stream.join, Stream.left_join]))
    if waits(stream, table) and draw(st.integers(0, 2)):
        join = partial(join, grace=min(draw(st.sampled_from([wt.seconds(0), wt.seconds(4), wt.seconds(30)])), _history(table)))
    columns = draw(basic(lookup_scope(stream.node, table.node)))
    if kinds == [c.type for c in stream.key] and draw(st.booleans()):
        return join(stream, table, **columns)
    if any(kind.kind not in ("string", "int", "bigint") for kind in kinds):
        return stream.filter(draw(conditions(stream)))
    on = tuple(draw(texts(stream)) if kind.kind == "string" else f"CAST({draw(numbers(stream))} AS {kind.sql()})" for kind in kinds)
    return join(stream, table, on=on, **columns)


def waits(stream: Stream, table: Table) -> bool:
    """Tell whether a stream's records can wait for a table's time."""
    try:
        check_waits(stream.node, table.node, timedelta(0), "", "join")
    except DefinitionError:
        return False
    return True


def _history(table: Table) -> timedelta:
    root = plan.root_of(table.node)
    return root.history if isinstance(root, nodes.Versioned) else timedelta(0)


@st.composite
def deduped(draw: st.DrawFn, stream: Stream, number: int) -> Stream:
    """Let the first record of each key, or of a text, pass in each period."""
    by = draw(texts(stream)) if "window_start" in stream.key.names or draw(st.booleans()) else None
    within, grace = (wt.seconds(draw(st.sampled_from(some))) for some in ([2, 10, 40], [0, 5, 60]))
    return stream.dedupe(name=f"seen{number}", within=within, by=by, grace=grace)


def _remembering(name: str, later: bool) -> Callable[[wt.Record, wt.Context], None]:
    """Make a processor that counts by entries, forgets them all at a tombstone, and raises now and then after it has put."""

    def remember(record: wt.Record, context: wt.Context) -> None:
        store = context.store(name)
        if record.value is None:
            for entry, _ in store.range():
                store.delete(entry)
            context.forward(None, to="one")
            return
        g, x, y = (record.value[column] for column in ("g", "x", "y"))
        n = (((store.get(g or "-") or {"kept_n": 0})["kept_n"] or 0) + (x or 1)) % 1000
        store.put({"kept_n": n, "kept_at": record.timestamp}, g or "-")
        if later:
            context.schedule("later", at=record.timestamp + timedelta(seconds=n % 9))
        context.forward({"g": g, "x": n, "y": y}, to="one" if n % 2 else "two")
        if n % 5 == 0:
            context.forward({"g": str(len(store.range())), "y": y}, to="one")
        if n % 7 == 3:
            raise ValueError(n)

    return remember


def _forgetting(name: str) -> Callable[[wt.Record, wt.Context], None]:
    """Make a punctuator that forgets one entry, and comes again for the next; and raises now and then."""

    def forget(record: wt.Record, context: wt.Context) -> None:
        store = context.store(name)
        for entry, row in store.range()[:1]:
            if row["kept_n"] % 4 == 1:
                raise ValueError(entry)
            store.delete(entry)
            context.forward({"g": entry, "x": row["kept_n"]}, to="two")
            context.schedule("later", at=record.timestamp + timedelta(seconds=3))

    return forget


@st.composite
def processed(draw: st.DrawFn, stream: Stream, number: int) -> tuple[list[Stream], Table]:
    """Call a processor for each record; give its children and the table of its store."""
    name, store = f"kept{number}", wt.key_value_store("kept_n INT, kept_at TIMESTAMP", key=f"e{number} STRING")
    records = stream.map_values(**draw(basic(stream)))
    later = {"later": _forgetting(name)} if draw(st.booleans()) else {}
    children = {"one": BASIC, "two": BASIC}
    made = records.process(_remembering(name, bool(later)), stores={name: store}, children=children, punctuators=later)
    return list(made.children.values()), made.tables[name]


@st.composite
def windows(draw: st.DrawFn) -> Windows:
    """Draw each kind as often as the others, but what never ends."""
    kind = draw(st.sampled_from(["sliding", "sessions", "tumbling", "hopping"] * 2 + ["unlimited"]))
    grace = wt.seconds(draw(st.sampled_from([0, 0, 3, 15])))
    size = draw(st.sampled_from([5, 10, 20]))
    match kind:
        case "sliding":
            return wt.sliding(difference=wt.seconds(draw(st.sampled_from([0, 3, 7, 20]))), grace=grace)
        case "sessions":
            return wt.sessions(gap=wt.seconds(draw(st.sampled_from([2, 4, 10]))), grace=grace)
        case "tumbling":
            return wt.tumbling(seconds=size, grace=grace)
        case "hopping":
            return wt.hopping(seconds=size, every=wt.seconds(draw(st.sampled_from([2, 5, 4]))), grace=grace)
        case _:
            return wt.unlimited(start=START + timedelta(seconds=draw(st.integers(-20, 20))))


@st.composite
def tables(draw: st.DrawFn, stream: Stream) -> Table:
    """Fold a stream into a table, and derive another from it at times."""
    shared = set(stream.key.names) & set(stream.value.names)
    if not is_change(stream.node) and not shared and draw(st.integers(0, 4)) == 4:
        table = stream.to_table()
    else:
        keys = draw(st.sampled_from(["key", "text", "number", "both"]))
        match keys:
            case "key":
                grouped = stream.group_by_key()
            case "text":
                grouped = stream.group_by(p=draw(texts(stream)))
            case "number":
                grouped = stream.group_by(q=draw(numbers(stream)))
            case _:
                grouped = stream.group_by(p=draw(texts(stream)), q=draw(numbers(stream)))
        windowed = "window_start" not in [name for name, _ in grouped.group] and draw(st.integers(0, 5)) > 0
        cut = grouped.windowed_by(draw(windows())) if windowed else grouped
        steps = {"x": "CAST(acc.x * 2 + x AS INT)", "g": "greatest(acc.g, value.g)"}
        has = set(steps) <= set(stream.value.names)  # what a join made has none of them to begin with
        free = has and not is_change(stream.node) and not set(steps) & {name for name, _ in grouped.group}
        table = cut.reduce(**steps) if free and draw(st.integers(0, 5)) == 5 else cut.agg(**draw(aggregates(stream)))
        if windowed and not isinstance(plan.windows_of(table.node), UnlimitedWindows) and draw(st.integers(0, 3)) == 3:
            table = draw(derived(table)).suppress(wt.until_window_closes())
    return draw(derived(table))


def histories() -> st.SearchStrategy[timedelta | None]:
    """Make a table versioned at times."""
    return st.sampled_from([None, None, wt.seconds(5), wt.seconds(60), wt.seconds(600)])


@st.composite
def grouped_rows(draw: st.DrawFn, table: Table) -> Table:
    """Group the rows of a named table, and derive another from it at times."""
    keys = {"p": draw(texts(table))} | ({"q": draw(numbers(table))} if draw(st.booleans()) else {})
    return draw(derived(table.group_by(**keys).agg(**draw(aggregates(table)))))


@st.composite
def elapsed(draw: st.DrawFn, table: Table, *, calm: bool) -> Table:
    """Show the rows of a named table once in a while, or for a while."""
    time = wt.seconds(draw(st.sampled_from([2, 10, 40])))
    return draw(derived(table.suppress(wt.until_time_limit(time)) if calm else table.ttl(time)))


@st.composite
def told(draw: st.DrawFn, table: Table, kept: Sequence[Table]) -> Table:
    """Keep what the changes of a table, or of two, tell of each key, windows or not, or what is final of it; derive another at times."""
    others = draw(st.lists(st.sampled_from([t for t in kept if t.key == table.key]), max_size=1))
    one, *more = (s.map_values(**draw(basic(scope_of(s.node)))) for s in (t.to_stream() for t in (table, *others)))
    made = draw(derived((one.merge(*more) if more else one).to_table()))
    windows = plan.windows_of(made.node)
    closes = windows is not None and not isinstance(windows, UnlimitedWindows)
    return made.suppress(wt.until_window_closes()) if closes and draw(st.booleans()) else made


@st.composite
def derived(draw: st.DrawFn, table: Table) -> Table:
    """Derive another table at times."""
    match draw(st.integers(0, 7)):
        case 5:
            return table.filter(draw(conditions(table)))
        case 6:
            return table.filter_not(draw(conditions(table)))
        case 7:
            return table.map_values(v=draw(texts(table)), w=draw(numbers(table)), z=draw(amounts(table)))
    return table


@st.composite
def partners(draw: st.DrawFn, table: Table, stream: Stream) -> Table:
    """Fold a stream into a table whose keys have the types, and the windows, of another's."""
    windows = plan.windows_of(table.node)
    kinds = [c.type for c in (table.key.columns[:-2] if windows else table.key.columns)]
    group = {
        f"r{n}": draw(texts(stream)) if kind.kind == "string" else f"CAST({draw(numbers(stream))} AS {kind.sql()})"
        for n, kind in enumerate(kinds)
    }
    grouped, aggregates = stream.group_by(**group), {"a0": draw(_aggregate(stream)), "a1": draw(_aggregate(stream))}
    if draw(st.booleans()):
        return (grouped.windowed_by(windows) if windows else grouped).agg(**aggregates)
    both = grouped.cogroup(**aggregates).cogroup(grouped, b0=draw(_aggregate(stream)))
    return (both.windowed_by(windows) if windows else both).agg()


@st.composite
def joined(draw: st.DrawFn, table: Table, kept: Sequence[Table], stream: Stream) -> Table:
    """Join a table with one that is kept, if there is one of its kind, with itself, or with a new one."""

    def kind(table: Table) -> object:
        windows = plan.windows_of(table.node)
        return [c.type for c in table.key], windows and shape_of(windows)

    alike = [t for t in kept if _found_by_key(t) and kind(t) == kind(table)]
    windows = plan.windows_of(table.node)
    apart = isinstance(windows, SessionWindows | SlidingWindows) or (windows is None and "window_start" in table.key.names)
    fresh = [] if apart else [draw(partners(table, stream))]
    other = draw(derived(draw(st.sampled_from([*fresh, *fresh, *alike, *alike, table]))))
    left, right = (table, other) if draw(st.booleans()) else (other, table)
    scope = join_scope(left.node, right.node)
    columns = {"v": draw(texts(scope)), "w": draw(numbers(scope)), "z": draw(amounts(scope)), "alone": "right IS NULL"}
    join = draw(st.sampled_from([Table.join, Table.left_join, Table.outer_join]))
    return draw(derived(join(left, right, **columns)))


@st.composite
def joined_on(draw: st.DrawFn, left: Table, right: Table) -> Table:
    """Join a named table with the rows of another that its own name, and derive another from it at times."""
    on = tuple(draw(texts(left)) if c.type.kind == "string" else f"CAST({draw(numbers(left))} AS {c.type.sql()})" for c in right.key)
    scope = join_scope(left.node, right.node)
    columns = {"v": draw(texts(scope)), "w": draw(numbers(scope)), "z": draw(amounts(scope)), "alone": "right IS NULL"}
    return draw(derived(draw(st.sampled_from([Table.join, Table.left_join]))(left, right, on=on, **columns)))


@st.composite
def aggregates(draw: st.DrawFn, item: Stream | Table) -> dict[str, wt.aggregates.Aggregation]:
    return {f"a{i}": draw(_aggregate(item)) for i in range(draw(st.integers(1, 3)))}


@st.composite
def _aggregate(draw: st.DrawFn, item: Stream | Table) -> wt.aggregates.Aggregation:
    number, text, amount = draw(numbers(item)), draw(texts(item)), draw(amounts(item))
    counts = [wt.count(), wt.count(number), wt.count_distinct(text)]
    if isinstance(item, Stream):
        counts += [wt.approx_count_distinct(number, relative_sd=0.5), wt.approx_count_distinct(text)]
    sums = [wt.sum(number), wt.sum(f"CAST({amount} AS DECIMAL(18,4))"), wt.avg(number), wt.avg(f"CAST({amount} AS DECIMAL(12,2))")]
    picks = [wt.last(number), wt.last(amount), wt.first(text), wt.min(text), wt.max(amount)]
    several = [wt.collect_list(number), wt.collect_set(text), wt.top_k(2, amount), wt.top_k(2, number, text)]
    folds = [wt.aggregate("0", f"acc * 2 + ({number})"), wt.aggregate("'>'", f"concat(coalesce(acc, '?'), {text})"),
             wt.aggregate("array(0)", f"array_append(slice(coalesce(acc, array(7)), -1, 1), CAST({number} AS INT))"),
             wt.aggregate("named_struct('t', '', 'n', 0)", f"named_struct('t', {text}, 'n', coalesce(acc.n, 5) + length(acc.t))"),
    ]  # fmt: skip
    return draw(st.sampled_from([*counts, *sums, *picks, *several, *folds]))


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Write an app of one to three topics, one to four tables, and up to two outputs; one that is refused as too deep is no app."""
    try:
        return draw(_topologies())
    except DefinitionError as error:
        assume("bits here, of 63" not in str(error))
        raise


@st.composite
def _topologies(draw: st.DrawFn) -> Topology:
    app = wt.App("random")
    pool: list[tuple[int, Stream]] = []
    kept: list[Table] = []
    for name in draw(st.lists(st.sampled_from(["plain", "timed", "pairs", "rows"]), min_size=1, max_size=3, unique=True)):
        match name:
            case "plain":
                pool.append((0, app.topic("plain", key="k STRING", value=f"{BASIC}, tags ARRAY<STRING>").stream()))
            case "timed":
                timed = app.topic("timed", key="k STRING", value=f"{BASIC}, at TIMESTAMP", timestamp="at").stream()
                pool.append((0, timed.map_values(g="g", x="x", y="y")))
            case "pairs":
                pool.append((0, app.topic("pairs", key="k STRING, n INT", value=f"{BASIC}, tags ARRAY<STRING>").stream()))
            case "rows":
                topic = app.topic("rows", key="k STRING", value=BASIC)
                kept.append(topic.table().materialized_as("rows", history=draw(histories())))
                pool.append((1, kept[-1].to_stream() if draw(st.booleans()) else topic.stream()))
    for number in range(draw(st.integers(1, MAX_STEPS))):
        depth = draw(st.sampled_from(sorted({d for d, _ in pool})))
        level = [s for d, s in pool if d == depth]
        if len(pool) < MAX_STREAMS and draw(st.integers(0, 3)) == 3:
            pool.append((depth, draw(paired(draw(st.sampled_from(level)), level))))
            continue
        fixed = [table for table in kept if _found_by_key(table)]
        if fixed and len(pool) < MAX_STREAMS and depth < MAX_DEPTH and draw(st.integers(0, 3)) == 3:
            pool.append((depth + 1, draw(looked_up(draw(st.sampled_from(level)), fixed))))
            continue
        plain = [s for s in level if not is_change(s.node)]
        if plain and len(pool) < MAX_STREAMS and depth < MAX_DEPTH and draw(st.integers(0, 9)) == 9:
            pool.append((depth + 1, draw(deduped(draw(st.sampled_from(plain)), number))))
            continue
        if len(pool) < MAX_STREAMS and depth < MAX_DEPTH and draw(st.integers(0, 9)) == 9:
            children, store = draw(processed(draw(st.sampled_from(level)), number))
            pool += [(depth + 1, child) for child in children]
            kept.append(store)
            continue
        if draw(st.integers(0, 2)) or len(pool) >= MAX_STREAMS or depth >= MAX_DEPTH:
            made = draw(next_streams(level, number)) if len(pool) < MAX_STREAMS else []
            pool += [(depth, stream) for stream in made]
            continue
        sources = [table for table in kept if _level(table.node) < MAX_DEPTH]
        named = [table for table in sources if all(c.type.kind in ("string", "int", "bigint") for c in table.key)]
        choice = draw(st.integers(0, 11)) if sources else 0
        if choice > 7:
            table = draw(elapsed(draw(st.sampled_from(sources)), calm=choice % 2 == 0))
            depth = _level(table.node)
        elif choice > 5 and named:
            table = draw(joined_on(draw(st.sampled_from(sources)), draw(st.sampled_from(named))))
            depth = _level(table.node)
        elif choice > 2:
            table = draw(grouped_rows(draw(st.sampled_from(sources))))
            depth = _level(table.node)
        else:
            table = draw(tables(draw(st.sampled_from(level))))
        if draw(st.integers(0, 2)) == 2 and _found_by_key(table):
            table = draw(joined(table, kept, draw(st.sampled_from(level))))
        root = plan.root_of(table.node)
        plain = isinstance(root, nodes.Latest) and not plan.windows_of(root) and not told_out_of_time(root.parent)
        kept.append(table.materialized_as(f"t{number}", history=draw(histories()) if plain else None))
        if plan.windows_of(table.node) and _level(table.node) < MAX_DEPTH and draw(st.integers(0, 2)):
            again = draw(told(kept[-1], kept))
            again = draw(joined(again, kept, draw(st.sampled_from(level)))) if draw(st.booleans()) else again
            kept.append(again.materialized_as(f"told{number}"))
            depth = _level(again.node)
        if draw(st.booleans()):
            pool.append((depth + 1, kept[-1].to_stream()))
    outputs = draw(st.integers(0, 2)) if kept else draw(st.integers(0, 1))
    ends = [stream for _, stream in pool]
    if not outputs or draw(st.booleans()):
        ends.append(draw(tables(ends[-1])).materialized_as("last").to_stream())
    for number in range(outputs):
        stream = draw(st.sampled_from(ends))
        said = st.one_of(texts(stream), numbers(stream).map(lambda number: f"CAST({number} AS STRING)"))
        stream.to(f"out{number}", headers=draw(st.dictionaries(st.sampled_from(["h", "it's"]), said, max_size=2)))
    return app.topology()


def _found_by_key(table: Table) -> bool:
    """Tell whether a table's rows can be found by their keys: those of sessions, sliding windows and foreign-key joins can't."""
    root = plan.root_of(table.node)
    return not isinstance(root, nodes.ForeignJoin) and not isinstance(plan.folded_into(root), SessionWindows | SlidingWindows)


def _level(node: nodes.Stream | nodes.Table) -> int:
    """Count the tables below which a node lies, on the longest way."""
    return max(map(_level, plan.parents_of(node)), default=0) + isinstance(node, nodes.ToStream | nodes.StreamJoin | nodes.Process)


# -- records --------------------------------------------------------------------------------------------------------------------------

_TEXT = st.sampled_from(["a", "b", "7", "", "ä"])
_MAYBE_TEXT = st.one_of(_TEXT, _TEXT, st.none())


@st.composite
def _values(draw: st.DrawFn, topic: nodes.Topic, when: datetime) -> bytes | None:
    kind = draw(st.integers(0, 11))
    if kind >= 10:
        return None
    if kind == 9:
        return draw(st.sampled_from([b"{", b"\xff", b'{"x": "many"}', b"[]", b"7"]))
    row: dict[str, object] = {"g": draw(_MAYBE_TEXT), "x": draw(st.one_of(st.integers(-3, 12), st.none()))}
    row["y"] = draw(st.sampled_from([None, 0, 1.5, -2.25, 19.99, 100]))
    if "tags" in topic.value:
        row["tags"] = draw(st.one_of(st.lists(_MAYBE_TEXT, max_size=3), st.none()))
    if "at" in topic.value:
        row["at"] = None if draw(st.integers(0, 19)) == 19 else when.isoformat()
    return json.dumps(row).encode()


@st.composite
def _keys(draw: st.DrawFn, topic: nodes.Topic) -> bytes | None:
    text = draw(st.sampled_from(["a", "b", "c", None]))
    if text is None:
        return None
    if topic.key_format is Format.STRING:
        return text.encode()
    return json.dumps({"k": text, "n": draw(st.sampled_from([1, 2, None]))}).encode()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Write a topology, and records in the order of their arrival; offsets follow it in each partition, times need not."""
    topology = draw(topologies())
    partitions = draw(st.integers(1, 3))
    keyed = draw(st.booleans())
    spread = draw(st.sampled_from([5, 40, 200]))
    following: dict[tuple[str, int], int] = {}
    records = []
    for number in range(draw(st.integers(8, 24))):
        topic = draw(st.sampled_from(topology.topics))
        key = draw(_keys(topic))
        partition = sum(key or b"") % partitions if keyed else draw(st.integers(0, partitions - 1))
        when = START + timedelta(seconds=3 * number + draw(st.integers(-spread, spread)))
        if draw(st.integers(0, 59)) == 59:
            when = datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
        offset = following.get((topic.name, partition), 0)
        following[topic.name, partition] = offset + draw(st.sampled_from([1, 1, 1, 2]))
        stamped = when + AGES if topic.timestamp else when
        records.append(Record(topic.name, partition, offset, stamped, key, draw(_values(topic, when))))
    number_of_cuts = min(draw(st.sampled_from([0, 0, 1, 3])), len(records) - 1)
    cuts = draw(st.sets(st.integers(1, len(records) - 1), min_size=number_of_cuts, max_size=number_of_cuts))
    return Case(topology, tuple(records), tuple(sorted(cuts)), keyed)


@contextmanager
def _nothing_from_our_code() -> Iterator[None]:
    """Let Hypothesis draw no constants that it finds in the project's modules: they would be of those that happen to be loaded."""
    with patch.object(HypothesisProvider, "_local_constants", Constants()):
        CONSTANTS_CACHE.cache.clear()
        yield
    CONSTANTS_CACHE.cache.clear()


def each(judge: Callable[[Case], None], start: int, *phases: Phase) -> None:
    """Show the cases of a seed to a judge, the same ones whatever ran before.

    They are few: in a long run many are alike, since Hypothesis changes what it has drawn.
    """
    how = settings(
        max_examples=RUN, phases=[Phase.generate, *phases], database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )

    with _nothing_from_our_code():
        seed(start)(how(given(cases())(judge)))()


@cache
def drawn(number: int, start: int) -> list[Case]:
    """Draw so many cases, no two of them the same, of a seed and those after it."""
    found: dict[str, Case] = {}

    def keep(case: Case) -> None:
        found[repr(case)] = case

    for first in count(start):
        if len(found) >= number:
            return list(found.values())[:number]
        each(keep, first)
    raise AssertionError("seeds don't end")


def covering(plans: Sequence[Case]) -> list[Case]:
    """Choose cases of few tables that have, together, every operator, window and aggregate."""
    chosen: list[Case] = []
    missing = set(EVERY)
    while missing:
        best = max(plans, key=lambda case: len(missing & parts_of(case.topology)) / (1 + len(case.topology.kept)))
        assert missing & parts_of(best.topology), f"no case has {sorted(missing)}"
        missing -= parts_of(best.topology)
        chosen.append(best)
    return chosen
