"""Write a row's records as a test on the driver: a file that runs and passes as it is written.

Which records a row needs is found by watching the interpreter: each record looks at and changes states, by table and key. Those that
changed the row are needed; of the tables that it is computed from, so are all that changed a state before a needed record looked at it.
Where only the stream time of what was left out makes the row what it is, it is moved on by `advance`. The driver is told how many
partitions there are, as a job is: some table of the app may wait for all of them. The test is run on it before it is given, so that
what is written is what is true.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, cast

from watertable.errors import EvaluationError, StoreError
from watertable.interpreter import Interpreter
from watertable.kafka import serdes
from watertable.plan.nodes import Format, Topic
from watertable.plan.plan import TableDef, Topology
from watertable.plan.windows import EPOCH, MILLISECOND
from watertable.processing import MOMENT
from watertable.records import Advance, Dropped, Key, Place, Record, Row
from watertable.schema import Schema
from watertable.testing import TopologyTestDriver
from watertable.tools import keytext
from watertable.tools.explain import Explanation, chunks, interleaved

MOST: Final = 5_000
"""Records that a test is written of at most: beyond that nobody reads it."""
_WIDTH: Final = 120
_NAN: Final = 'float("nan")'
State = tuple[str, Key]
"""A table's name and a key of it."""
Offset = tuple[str, int, int]
"""A topic, a partition, and an offset."""


class Watched(dict[Key, Row]):
    """Hold the states of one table and tell of each look at one, and of each change."""

    def __init__(self, looked: Callable[[Key], None], changed: Callable[[Key], None]) -> None:
        super().__init__()
        self._looked, self._changed = looked, changed

    def __contains__(self, key: object) -> bool:
        if isinstance(key, tuple):
            self._looked(key)
        return super().__contains__(key)

    def __getitem__(self, key: Key) -> Row:
        self._looked(key)
        return super().__getitem__(key)

    def get(self, key: Key, default: Any = None) -> Any:
        """Look a state up."""
        self._looked(key)
        return super().get(key, default)

    def pop(self, key: Key, *default: Any) -> Any:
        """Take a state away: it goes on in another, as that of a session does."""
        self._looked(key)
        self._changed(key)
        return super().pop(key, *default)

    def __setitem__(self, key: Key, state: Row) -> None:
        self._changed(key)
        super().__setitem__(key, state)


@dataclass(slots=True)
class _Seen:
    """Hold one record, or the call of a punctuator, the stream time then, and the states that it looked at and changed.

    A call by the wall clock has the `clock` that was recorded there.
    """

    record: Record
    time: datetime | None
    clock: datetime | None = None
    looked: set[State] = field(default_factory=set)
    changed: set[State] = field(default_factory=set)

    @property
    def is_call(self) -> bool:
        """Tell whether it is no record but a punctuator's call: its time has come, or the wall clock that it waited for."""
        return self.record.offset < 0


def as_test(
    topology: Topology, table: TableDef, told: Explanation, records: Iterable[Record], command: str, recorded: Iterable[Advance] = (),
    partitions: Iterable[tuple[str, int]] = (),
) -> str:  # fmt: skip
    """Write the test of a row that was explained, from the same records read once more; what was left out is piped in as well.

    `recorded` and `partitions` are what `explain` takes. Raises `StoreError` when no record made the row, when it takes more than `MOST` of
    them, or when they alone don't make it.
    """
    seen, expected, times = _needed(topology, table, told, interleaved(records, recorded), partitions := tuple(partitions))
    if not expected:
        raise StoreError(f"no record that can be read made a row of {table.name!r} for this key: there is nothing to test")
    if len(seen) > MOST:
        raise StoreError(
            f"it took {len(seen):,} records to make this row, and nobody reads a test of more than {MOST:,}; choose a key with fewer, "
            "or let `watertable bisect` find the record that made a condition true"
        )
    several = len(partitions) > 1  # of one alone the first record tells
    known = {topic: number + 1 for topic, number in sorted(partitions)} if several else {}
    reached = dict(sorted(times.items()))
    for advanced, upto in ((False, {}), (True, {}), (True, reached)):  # stream time is moved on only where the row depends on it
        steps = list(_steps(topology, seen, upto, advanced=advanced))
        driver = TopologyTestDriver(topology, partitions=known)
        for step in steps:
            step.take(driver)
        rows = driver.table(table.name)
        if all(_plain(rows.get(short(key))) == _plain(row) for key, row in expected.items()):
            return _written(topology, table, told, steps, expected, command, known)
    raise StoreError(
        f"the {len(seen):,} records that touched this row of {table.name!r}, and those that they looked up, don't make it by themselves: "
        "it depends on how its topics arrived. `watertable explain` tells its story"
    )


def _needed(
    topology: Topology, table: TableDef, told: Explanation, items: Iterable[Record | Advance], partitions: Iterable[tuple[str, int]]
) -> tuple[list[_Seen], dict[Key, Row | None], dict[tuple[str, int], datetime]]:
    """Read everything again and keep what the row needs, in the order in which it counts; give beside it the rows, and the stream times."""
    part = topology.above({table.name})
    group, start = keytext.group(table, told.key), keytext.start(table, told.key)
    engine = Interpreter(part, watch=frozenset({table.name}), partitions=partitions, asked={table.name: tuple(group.values())})
    topics = {topic.name for topic in part.topics}
    seen: dict[Offset | Place, _Seen] = {}
    keys = {tuple(step.key.values()) for step in told.steps}
    stepped = {(step.topic, step.partition, step.offset) for step in told.steps}
    mixed = table.sessions is not None or table.sliding is not None  # a window of these comes of what was in others
    known = group if mixed else told.key

    def counts(row: Key) -> bool:
        """Tell whether a state of the table's own is to be made, too: one that no Change told of."""
        if start is None or not mixed:
            return True
        if table.sliding is None or not told.steps:
            return False
        end = max(cast("datetime", step.key["window_end"]) for step in told.steps)
        return start - MILLISECOND <= cast("datetime", row[-2]) <= end  # the moments in it, and the one that it begins behind

    def current() -> _Seen:
        if (at := engine.punctuator) is not None:
            return seen.setdefault(at, _Seen(Record(at.topic, at.partition, at.offset, at.st, None, None), at.st))
        record, place = engine.current
        return seen.setdefault(_offset(record), _Seen(record, place.st))

    def called(number: int, key: Key, clock: datetime | None) -> None:
        one = current()
        one.changed.add((f"processor {number}", key))
        one.clock = clock

    def note(name: str, what: str) -> Callable[[Key], None]:
        def noted(key: Key) -> None:
            row = key[-len(table.key) :]  # a join by a foreign key keeps a row under what it names, and beside it what that has
            own = name == table.name and row[0] is not None
            if own and not keytext.is_of(dict(zip(table.key.names, row, strict=True)), known):
                return
            getattr(current(), what).add((name, key))
            if own and what == "changed" and counts(row):
                keys.add(row)

        return noted

    engine.states = {name: Watched(note(name, "looked"), note(name, "changed")) for name in engine.states}
    engine.visits.called = called
    left_out = {(out.topic, out.partition, out.offset) for out in told.left_out if not out.perhaps}
    others: list[_Seen] = []
    for chunk in chunks(item for item in items if item.topic in topics):
        engine.dropped = dropped = _Places(engine)
        engine.read(chunk)
        late = {(d.topic, d.partition, d.offset): st for d, st in zip(dropped, dropped.times, strict=True)}
        read = [item for item in chunk if isinstance(item, Record)]
        others += [_Seen(r, late.get(_offset(r))) for r in read if _offset(r) in left_out and _offset(r) not in seen]
        engine.outputs.clear()
        engine.quarantine.clear()
        for changes in engine.changes.values():
            changes.clear()
    engine.states = {name: dict(states) for name, states in engine.states.items()}
    rows = engine.tables[table.name]
    needed: set[State] = {(table.name, key) for key in keys}
    kept: list[_Seen] = []
    for one in reversed(seen.values()):  # what a record looks at was made by those before it
        if one.changed & needed or _offset(one.record) in stepped:
            kept.append(one)
            needed |= one.looked | one.changed
    kept.reverse()
    for one in others:  # in the order of their own partition
        mine = [(n, k.record) for n, k in enumerate(kept) if _offset(k.record)[:2] == _offset(one.record)[:2] and not k.is_call]
        before = [n for n, record in mine if record.offset < one.record.offset]
        kept.insert(before[-1] + 1 if before else 0, one)
    found: dict[Key, Row | None] = {key: rows.get(key) for key in sorted(keys, key=repr)}
    if table.windows is not None:  # the bounds that a session had on its way, say, are no rows that went
        found = {key: row for key, row in found.items() if row is not None} or found
    return kept, found, engine.stream_times


class _Places(list[Dropped]):
    """Collect what is dropped, and the stream time at which it was."""

    def __init__(self, engine: Interpreter) -> None:
        super().__init__()
        self._engine = engine
        self.times: list[datetime] = []

    def append(self, dropped: Dropped) -> None:
        """Add one that was dropped."""
        self.times.append(self._engine.current[1].st)
        super().append(dropped)


@dataclass(frozen=True, slots=True)
class _Step:
    """Hold one call of the driver: the record that it pipes in, the stream time that it moves a partition on to, or the wall clock."""

    record: Record
    topic: Topic
    advance: datetime | None = None
    clock: datetime | None = None

    @property
    def call(self) -> str:
        """Name the driver's method."""
        return "advance_wall_clock" if self.clock is not None else "advance" if self.advance is not None else "pipe_input"

    @property
    def arguments(self) -> tuple[list[object], dict[str, object]]:
        """Give what the call is made with."""
        where: dict[str, object] = {"partition": self.record.partition} if self.record.partition else {}
        if self.clock is not None:
            return [_moment(self.clock)], {}
        if self.advance is not None:
            return [self.topic.name, _moment(self.advance)], where
        key = _given(self.record.key, self.topic.key, self.topic.key_format)
        value = _given(self.record.value, self.topic.value, self.topic.value_format)
        if isinstance(key, dict) and None not in key.values():
            key = short(tuple(key.values()))
        if isinstance(value, dict):
            value = {name: part for name, part in value.items() if part is not None}
        read = {header.name for header in self.topic.headers}
        headers = {name: _header(data) for name, data in self.record.headers if name in read}
        timed = {} if self.topic.timestamp else {"timestamp": _moment(self.record.timestamp)}
        return [self.topic.name, key, value], ({"headers": headers} if headers else {}) | timed | where

    def take(self, driver: TopologyTestDriver) -> None:
        """Make the call."""
        given, named = self.arguments
        call: Callable[..., object] = getattr(driver, self.call)
        call(*given, **named)

    def lines(self, after: str) -> Iterator[str]:
        """Write the call, and beside it what comes of it."""
        given, named = self.arguments
        texts = [literal(g) for g in given] + [f"{name}={literal(value)}" for name, value in named.items()]
        head = f"    driver.{self.call}("
        line = f"{head}{', '.join(texts)})"
        if after and len(line) + len(after) + 4 <= _WIDTH:
            yield f"{line}  # {after}"
            return
        if after:
            yield f"    # {after}"
        yield from [line] if len(line) <= _WIDTH else [head, *(f"        {text}," for text in texts), "    )"]


def _steps(
    topology: Topology, seen: Sequence[_Seen], reached: Mapping[tuple[str, int], datetime], *, advanced: bool
) -> Iterator[_Step]:  # fmt: skip
    """Give the calls that a row takes; in the end every partition is where it is said to have `reached`.

    Those of which the row needs no record are there from the beginning: what waits for the time of all waits for theirs.
    """
    topics = {topic.name: topic for topic in topology.topics}
    times: dict[tuple[str, int], datetime] = {}
    needed = {(one.record.topic, one.record.partition) for one in seen}
    yield from (_Step(Record(*p, 0, time, None, None), topics[p[0]], time) for p, time in reached.items() if p not in needed)
    now: datetime | None = None
    told: dict[tuple[str, int], datetime | None] = {}  # of those that have gone on since, where they were told of the wall clock last
    for one in _by_clock(seen):
        topic, partition = topics[one.record.topic], (one.record.topic, one.record.partition)
        if one.is_call and one.time is not None:
            upto = one.time if one.clock is None else one.time - MOMENT
            if (advanced or one.clock is None) and times.get(partition, EPOCH) < upto:
                yield _Step(one.record, topic, upto)
                times[partition] = upto
            if one.clock is not None and (now != one.clock or told.get(partition, one.time) != one.time):
                yield _Step(one.record, topic, clock=one.clock)
                times[partition], now, told = times.get(partition, EPOCH) + MOMENT, one.clock, {}
            if one.clock is not None:  # the driver tells all partitions of it in which anything is due
                told[partition] = one.time
            continue
        told[partition] = None
        own = _event_time(one.record, topic, times.get(partition, EPOCH))
        if advanced and one.time is not None and own is not None and one.time > max(own, times.get(partition, own)):
            yield _Step(one.record, topic, one.time)
            times[partition] = one.time
        if own is not None:
            times[partition] = max(own, times.get(partition, own))
        yield _Step(one.record, topic)
    for p, time in reached.items():
        if p in needed and times.get(p, EPOCH) < time:
            yield _Step(Record(*p, 0, time, None, None), topics[p[0]], time)


def _by_clock(seen: Iterable[_Seen]) -> list[_Seen]:
    """Order what partitions have seen so that the wall clock doesn't go back: the one that is behind may have seen a later one."""
    clocks: dict[tuple[str, int], datetime] = {}
    found = []
    for one in seen:
        partition = one.record.topic, one.record.partition
        clocks[partition] = one.clock or clocks.get(partition, EPOCH)
        found.append((clocks[partition], one))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def _written(
    topology: Topology, table: TableDef, told: Explanation, steps: Sequence[_Step], expected: Mapping[Key, Row | None], command: str,
    known: Mapping[str, int],
) -> str:  # fmt: skip
    """Write the file."""
    after = {(s.topic, s.partition, s.offset): _row_text(s.row) for s in told.steps}
    after |= {(o.topic, o.partition, o.offset): o.reason for o in told.left_out}
    parts = next(iter(expected))[: -2 if table.windows else None]
    words = "_".join(map(str, (table.name, *parts))).lower()
    name = re.sub("_+", "_", "".join(c if f"a{c}".isidentifier() else "_" for c in words)).strip("_")
    line, arguments = "    driver = TopologyTestDriver(", [f'load_apps(Settings.load()).app("{topology.app}").topology']
    if known:
        arguments.append(f"partitions={literal(known)}")
    whole = f"{line}{', '.join(arguments)})"
    body = [whole] if len(whole) <= _WIDTH else [line, *(f"        {argument}," for argument in arguments), "    )"]
    body.append("")
    for step in steps:
        place = f"{step.topic.name}/{step.record.partition}@{step.record.offset}"
        told_of = f"{place}: {after.get(_offset(step.record), 'looked up')}"
        said = " ".join("".join(c if c.isprintable() else " " for c in told_of).split())
        body += step.lines(said if step.call == "pipe_input" else "")
    body += ["", f'    rows = driver.table("{table.name}")']
    for key, row in expected.items():
        whole = literal(short(key))
        if row is None:
            body.append(f"    assert {whole} not in rows")
            continue
        there, begin, made, end = f"rows[{whole}]", "{", literal(row)[1:-1], "}"
        if _NAN in made:  # which equals nothing, itself neither
            there, begin, end = f"repr({there})", "repr({", "})"
        line = f"    assert {there} == {begin}{made}{end}"
        cells = [f"        {literal(n)}: {literal(v)}," for n, v in row.items()]
        body += [line] if len(line) <= _WIDTH else [f"    assert {there} == {begin}", *cells, f"    {end}"]
    text = "\n".join(body)
    records = sum(step.call == "pipe_input" for step in steps)
    names = {node.id for node in ast.walk(ast.parse(f"def test() -> None:\n{text}")) if isinstance(node, ast.Name)}
    found = [n for n in ("UTC", "date", "datetime") if n in names]
    imports = [f"from datetime import {', '.join(found)}"] if found else []
    imports += ["from decimal import Decimal"] if "Decimal" in names else []
    return "\n".join([
        f'"""Hold the story of a row of {table.name}: {records:,} record{"" if records == 1 else "s"}, written by', "",
        *(f"    {command}".replace("\\", "\\\\").replace('"""', '\\"\\"\\"').splitlines()), '"""', "",
        *imports, *([""] if imports else []),
        "from watertable.project import load_apps", "from watertable.settings import Settings",
        "from watertable.testing import TopologyTestDriver", "", "",
        f"def test_the_story_of_{name}() -> None:", text, "",
    ])  # fmt: skip


def literal(value: object) -> str:
    """Write a value as Python source.

    >>> print(literal({"at": datetime(2026, 1, 1, 8, tzinfo=UTC), "price": Decimal("2.50"), "tags": ["a", None]}))
    {"at": datetime(2026, 1, 1, 8, 0, tzinfo=UTC), "price": Decimal("2.50"), "tags": ["a", None]}
    """
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False) if value.isprintable() else repr(value)
        case datetime():
            parts = [value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond]
            while len(parts) > 5 and not parts[-1]:
                parts.pop()
            return f"datetime({', '.join(map(str, parts))}, tzinfo=UTC)"
        case date():
            return f"date({value.year}, {value.month}, {value.day})"
        case Decimal():
            return f'Decimal("{value}")'
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case dict():
            return "{" + ", ".join(f"{literal(name)}: {literal(part)}" for name, part in value.items()) + "}"
        case list():
            return f"[{', '.join(map(literal, value))}]"
        case tuple():
            return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
        case _:
            return repr(value)


def short(key: Key) -> object:
    """Give a key as the driver does: its one column, or a tuple."""
    return key[0] if len(key) == 1 else key


def _given(data: bytes | None, schema: Schema, form: Format) -> object:
    """Give a key or value as the driver takes it: by columns where they are written back to the same, else the bytes."""
    if data is None:
        return None
    try:
        row = serdes.decode(data, schema, form)
        again = serdes.decode(serdes.encode(row, schema, form), schema, form)
    except EvaluationError:
        return data
    if row is None or again != row or (form is not Format.JSON and None in row.values()):
        return data
    return {name: _written_value(part) for name, part in row.items()}


def _written_value(value: object) -> object:
    """Give a value in the form that a person writes into a record: decimals and times as text."""
    match value:
        case datetime():
            return _moment(value)
        case Decimal() | date():
            return str(value)
        case list():
            return [_written_value(part) for part in value]
        case dict():
            return {name: _written_value(part) for name, part in value.items()}
        case _:
            return value


def _header(data: bytes | None) -> str | bytes | None:
    """Give a header as its text, or as its bytes where they are none."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return data


def _event_time(record: Record, topic: Topic, now: datetime) -> datetime | None:
    """Give a record's event time, of a partition that has come to `now`; None where it has none, or can't be read."""
    try:
        serdes.key_of(record, topic)
        value = serdes.columns_of(record, topic)
    except EvaluationError:
        return None
    when = serdes.event_time_of(record, topic, value, now)
    return when if isinstance(when, datetime) else None


def _row_text(row: Row | None) -> str:
    return "no row" if row is None else ", ".join(f"{name} {_written_value(value)}" for name, value in row.items())[:80]


def _moment(when: datetime) -> str:
    return when.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _plain(row: object) -> str:
    """Write a row so that equal rows are equal texts, whatever is not a number in them."""
    return literal(row)


def _offset(record: Record) -> Offset:
    return record.topic, record.partition, record.offset
