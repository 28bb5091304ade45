"""Explain a row: every record that made it, the row after each, and what was left out on the way.

The interpreter is run over the topics' records and asked which changes of one table were of one key. It computes what the tables hold by
the same law as the compiler, record by record, so what it says of a row is why the row is what it is, under the code as it is loaded.
It needs no Spark, which reads a topic's archive and what commits have recorded: what it costs is reading the topics that the
table is made of once, at the pace of plain Python, and computing the tables that it is made of and of itself the rows that were asked for.
"""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, TypeVar, cast

from watertable.errors import EvaluationError, StoreError
from watertable.interpreter import Interpreter
from watertable.kafka import serdes
from watertable.plan.nodes import (
    Aggregate,
    FinalRows,
    ForeignJoin,
    Forwarded,
    Map,
    Process,
    Source,
    Stream,
    StreamJoin,
    Table,
    TableAggregate,
    Written,
)
from watertable.plan.plan import TableDef, Topology, key_of, parents_of, walk
from watertable.plan.purity import Purity, purity_of
from watertable.plan.windows import SlidingWindows
from watertable.records import Advance, Event, Record, Row
from watertable.tools import keytext

CHUNK: Final = 20_000
"""Records that are worked off at a time: they are kept until it's known whose they were."""
_BY_TIME: Final = ("late", "before_start", "expired")
"""Why a table above leaves out what it would have told of; what has no key or value there is of no row."""


@dataclass(frozen=True, slots=True)
class Step:
    """Hold one record that touched the row: its place, what it says, and the row after it; None where there is none then.

    A punctuator that was called for the row has its partition's time, and neither an offset nor a record.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp: datetime
    key: Row
    record: Row | None
    row: Row | None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Hold one record that would have touched the row and was late, or that an operator refused.

    `perhaps` says that it was left out before it could be told of which row it would have been: of this one, or of another.
    """

    topic: str
    partition: int
    offset: int
    reason: str
    location: str
    window: tuple[datetime, datetime] | None = None
    perhaps: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """Hold all that is known of a row; `steps` are in the order in which they count. `key` is what was asked for of its key.

    `arrival` says that the table depends on how records arrived, so that its readers may see another row.
    """

    table: str
    key: Row
    steps: tuple[Step, ...]
    left_out: tuple[LeftOut, ...]
    records: int
    arrival: bool = False


def explain(
    topology: Topology, table: TableDef, wanted: Row, records: Iterable[Record], recorded: Iterable[Advance] | None = None,
    partitions: Iterable[tuple[str, int]] = (),
) -> Explanation:  # fmt: skip
    """Run what a table is made of over its records and tell the story of one key, of which `keytext` has read what is wanted.

    Of a windowed table it is the story of all windows of the key, or of the one that is asked for, of a sliding one with what was in it
    when it began. `recorded` are the advances that the app's commits hold: where idle partitions were let go, and what the wall clock was
    where something was due by it. `partitions` are those that the app reads: what waits for the time of all of them waits, too, for one
    that has no record, or none of those read so far.

    Raises `StoreError` for a suppressed table, and one with a time to live: its rows come of time that went by, and the story is that of
    the table above it; and, without `recorded`, for a table that is made of what waits for the wall clock, since no record says what that
    was.
    """
    group, start = keytext.group(table, wanted), keytext.start(table, wanted)
    if any(isinstance(node, FinalRows) for node in walk(table.node)):
        raise StoreError(
            f"{table.name!r} ({table.location}) shows what is final of a windowed table, or after a time, and no record makes its rows: "
            "put .materialized_as(name) before the suppress or ttl, without emit='on_close', and ask for the story of that table"
        )
    part = topology.above({table.name})
    topics = {topic.name for topic in part.topics}
    engine = Interpreter(part, watch=frozenset({table.name}), partitions=partitions, asked={table.name: tuple(group.values())})
    steps: list[Step] = []
    times: list[datetime] = []
    late: list[LeftOut] = []
    others: list[LeftOut] = []
    above, told_by = {t.name: t.location for t in part.tables if t.name != table.name}, _of_topics(table.node)
    count = 0
    for chunk in chunks(item for item in interleaved(records, recorded or ()) if item.topic in topics):
        engine.read(chunk)
        read = {(r.topic, r.partition, r.offset): r for r in chunk if isinstance(r, Record)}
        count += len(read)
        by_place = ChainMap(read, engine.buffered)  # a pair's may have come before
        for change in engine.changes[table.name]:
            if change.key is not None and keytext.is_of(change.key, group):
                record = by_place[change.place.topic, change.place.partition, change.place.offset]
                steps.append(_step(part, record, change))
                times.append(change.place.st)
        for drop in engine.dropped:
            if drop.window is not None and drop.node == table.name and drop.group is not None and keytext.is_of(drop.group, group):
                missed = "late for the window " + " to ".join(f"{end:%F %T}Z" for end in drop.window)
                late.append(LeftOut(drop.topic, drop.partition, drop.offset, missed, table.location, drop.window))
            elif drop.node in above and drop.reason in _BY_TIME:
                place = (drop.topic, drop.partition, drop.offset)
                of = _is_of(by_place[place], part, told_by, group) if place in by_place else None
                if of is not False:
                    others.append(LeftOut(*place, f"{drop.node}: {drop.reason}", above[drop.node], perhaps=of is None))
        for refused in engine.quarantine:
            record, known = refused.record, refused.group if refused.node == table.name else None
            of = keytext.is_of(known, group) if known is not None else _is_of(record, part, told_by, group)
            if of is not False:
                reason = f"{refused.node}: {refused.reason}"
                place = (record.topic, record.partition, record.offset)
                others.append(LeftOut(*place, reason, refused.location, perhaps=of is None))
        for changes in engine.changes.values():
            changes.clear()
        engine.dropped.clear()
        engine.quarantine.clear()
        engine.outputs.clear()
    if recorded is None and _punctuated(t.node for t in part.tables) and engine.visits.clocked:
        raise StoreError(
            f"{table.name!r} ({table.location}) is made of what a processor schedules by the wall clock. When that was called is in the "
            "app's commits, and the story is told by records alone: ask for the story of a table above the processor"
        )
    if start is not None:
        begun_with = _before_it_began(table.sliding, start, steps, times) if table.sliding is not None else []
        steps, late = _of_window(table, start, steps, late)
        steps = begun_with + steps
    arrival = purity_of(table.node) is Purity.ARRIVAL
    return Explanation(table.name, wanted, tuple(steps), (*late, *dict.fromkeys(others)), count, arrival)


def _of_topics(node: Stream | Table) -> list[int | None]:
    """Give for each column of a node's key, windows aside, which one of its topics' keys it is, letter for letter; None for no such one."""
    match node:
        case Source():
            return [*range(len(node.topic.key))]
        case Aggregate():
            above = {f"key.{name}": n for name, n in zip(key_of(node.parent).names, _of_topics(node.parent), strict=False)}
            return [above.get(expr.sql.replace("`", "")) for _, expr in node.group]
        case Map() | Process() | Forwarded() | Written() | TableAggregate() | ForeignJoin():
            return [None] * len(key_of(node))
        case StreamJoin() if node.on is not None:
            return [None] * len(key_of(node))
        case _:
            return [found[0] if len({*found}) == 1 else None for found in zip(*map(_of_topics, parents_of(node)), strict=False)]


def _is_of(record: Record, topology: Topology, told_by: list[int | None], group: Row) -> bool | None:
    """Tell whether a record is of the key that is asked for, by what its topic's key says of that; None where it doesn't say all."""
    try:
        key = serdes.key_of(record, next(topic for topic in topology.topics if topic.name == record.topic))
    except EvaluationError:
        return None
    wanted = [(n, value) for n, value in zip(told_by, group.values(), strict=False) if n is not None]
    if wanted and (key is None or any([*key.values()][n] != value for n, value in wanted)):
        return False
    return True if len(wanted) == len(group) else None


def _of_window(table: TableDef, start: datetime, steps: list[Step], late: list[LeftOut]) -> tuple[list[Step], list[LeftOut]]:
    """Keep what is of the window that begins then: of a session also what it grew from, and the late records that would have met it."""
    own = [step for step in steps if step.key["window_start"] == start]
    if table.sessions is None and table.sliding is None:
        return own, [out for out in late if out.window is not None and out.window[0] == start]
    end = max((_bounds(step)[1] for step in own), default=start)
    if table.sessions is not None:
        own = [step for step in steps if start <= _bounds(step)[0] and _bounds(step)[1] <= end]
    gap = table.sessions.gap if table.sessions is not None else timedelta(0)
    return own, [out for out in late if out.window is not None and start - gap <= out.window[0] <= end + gap]


def _before_it_began(windows: SlidingWindows, start: datetime, steps: list[Step], times: list[datetime]) -> list[Step]:
    """Tell of the records that a sliding window already had in it when a later one began it: once each, without a row after them.

    `times` are the stream times of the steps: whoever was late for the window isn't in it.
    """
    first = next((n for n, step in enumerate(steps) if _bounds(step)[0] == start), None)
    if first is None:
        return []
    key, end = steps[first].key, _bounds(steps[first])[1]
    in_it = (
        step for step, st in zip(steps[:first], times, strict=False)
        if start <= windows.at(step.timestamp) <= end and not windows.is_late(end, st)
    )  # fmt: skip
    return [*{(step.topic, step.partition, step.offset): replace(step, key=key, row=None) for step in in_it}.values()]


def _bounds(step: Step) -> tuple[datetime, datetime]:
    return cast("datetime", step.key["window_start"]), cast("datetime", step.key["window_end"])


def _punctuated(roots: Iterable[Stream | Table]) -> bool:
    return any(isinstance(node, Process) and node.processor.punctuators for root in roots for node in walk(root))


def interleaved(records: Iterable[Record], recorded: Iterable[Advance]) -> Iterator[Record | Advance]:
    """Put each advance before the first record of its partition that comes behind it, or at the end where none does."""
    waiting: dict[tuple[str, int], deque[Advance]] = {}
    for advance in sorted(recorded, key=lambda a: (a.topic, a.partition, a.offset, a.stream_time)):
        waiting.setdefault((advance.topic, advance.partition), deque()).append(advance)
    for record in records:
        due = waiting.get((record.topic, record.partition))
        while due and due[0].offset <= record.offset:
            yield due.popleft()
        yield record
    for left in waiting.values():
        yield from left


Item = TypeVar("Item", bound=Record | Advance)


def chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Cut what is read into lists of `CHUNK`, and where an advance comes behind records, as a replay cuts its batches."""
    chunk: list[Item] = []
    for item in items:
        if len(chunk) == CHUNK or (isinstance(item, Advance) and chunk and isinstance(chunk[-1], Record)):
            yield chunk
            chunk = []
        chunk.append(item)
    if chunk:
        yield chunk


def _step(topology: Topology, record: Record, change: Event) -> Step:
    topic = next(t for t in topology.topics if t.name == record.topic)
    try:
        value = serdes.columns_of(record, topic)
    except EvaluationError:  # it was decodable once, or it wouldn't be here
        value = None
    offset = record.offset if record.offset >= 0 else None  # punctuators have places of their own in log order
    return Step(record.topic, record.partition, offset, change.timestamp, change.key or {}, value, change.value)
