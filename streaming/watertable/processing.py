"""Call a processor for one record of a key: what it sees of the key's stores, what it puts there and what it forwards.

Both engines call it so, each in its own loop over keys and records. A call takes effect as a whole or not at all: where the function
raises, nothing was put and nothing forwarded. What it is given it may change without effect, and what it puts is brought to the types
that were declared at once: so a key's next record finds the same in this batch as in the next one.

This goes to Spark's workers by value, so it needs nothing of this package; Arrow is imported when it is first used.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
Function = Callable[["Record", "Context"], object]
Place = tuple[datetime, str, int, int, int]
"""A place in log order, as the plan has it: stream time, topic, partition, offset, ord."""
Times = Mapping[tuple[str, int], datetime | None]
"""The stream times that partitions have reached."""
Clock = tuple[datetime, datetime]
"""What the wall clock was, recorded where a partition's stream time was moved on: that stream time, then the clock."""
Clocks = Mapping[tuple[str, int], Sequence[Clock]]
"""The clocks that a batch has of each partition, as they follow each other."""
Entry = tuple[Any, ...]
"""The part of a store's key that is its own, beside the record's."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MOMENT: Final = timedelta(microseconds=1)
"""The least time: of a partition's stream time, what is called at a recorded clock takes so much."""
DELETED: Final = "deleted"
"""The column of a version that says that there is no row from then on."""
PLACE: Final = ("st", "topic", "partition", "offset", "ord")
MOST: Final = 65536
"""Bounds what one call forwards, and what it puts, so that their places in log order stay apart."""


@dataclass(frozen=True)
class Record:
    """Hold the record that a processor is called for: its place, its times and its row; the value of a tombstone is None.

    `timestamp` is the event time, `stream_time` the running maximum of the record's partition, both UTC. A punctuator gets one without a
    value, at the offset -1; `timestamp` is the time for which it was scheduled, and so is `stream_time`, unless that was by the wall clock.
    """

    key: Row
    value: Row | None
    timestamp: datetime
    stream_time: datetime
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class StoreType:
    """Say what a store keeps: entries by a key of their own, if they have one, and a row each, as Arrow's types.

    The key of a window or versioned store ends with a time, and what is older than it `keeps` goes.
    """

    name: str
    key: tuple[tuple[str, pa.DataType], ...]
    value: pa.DataType
    kind: str
    keeps: timedelta | None


@dataclass(frozen=True)
class Step:
    """Hold a processor as it is called: the function, its stores and the children that it forwards to, as Arrow's types.

    If it has punctuators, by name, the last of the stores keeps when each is due.
    """

    function: Function
    stores: tuple[StoreType, ...]
    children: Mapping[str, pa.DataType]
    punctuators: Mapping[str, Function]


@dataclass
class Held:
    """Hold what the stores of a processor keep of one key; `number` is that of the last call that put something."""

    stores: list[dict[Entry, Row]]
    number: int = 0

    def copied(self) -> Held:
        """Give another that goes on from here; the rows in it never change."""
        return Held([dict(store) for store in self.stores], self.number)


@dataclass(frozen=True)
class Made:
    """Hold what came of a call: rows for children, and what was put into stores, None where it was deleted."""

    forwards: list[tuple[str, Row | None]]
    puts: list[tuple[int, Entry, Row | None]]


class Entries:
    """Hold what a store keeps of one record key, and what is put while a record is worked off."""

    def __init__(self, type: StoreType, held: dict[Entry, Row], record: Record) -> None:
        self._type, self._held, self._record = type, held, record
        self._puts: dict[Entry, Row | None] = {}

    def _now(self, entry: Entry) -> Row | None:
        return self._puts[entry] if entry in self._puts else self._held.get(entry)

    def _entries(self) -> Iterator[tuple[Entry, Row]]:
        """Give what is kept now, in the order of the keys."""
        for entry in sorted({*self._held, *self._puts}):
            if (row := self._now(entry)) is not None:
                yield entry, row

    def _entry(self, key: Entry) -> Entry:
        kinds = self._type.key
        if len(key) != len(kinds):
            raise TypeError(f"store {self._type.name!r}: a key of {len(kinds)} column(s) wanted; got {key!r}")
        if None in key:
            raise ValueError(f"store {self._type.name!r}: a key without a null wanted; got {key!r}")
        return tuple(_normal(part, kind) for part, (_, kind) in zip(key, kinds, strict=True))

    def _write(self, entry: Entry, row: Row | None) -> None:
        if row is not None or self._now(entry) is not None:  # nothing is there to delete, so nothing is said
            self._puts[entry] = row
            if len(self._puts) > MOST:
                raise ValueError(f"store {self._type.name!r}: more than {MOST} entries put for one record")


class KeyValueStore(Entries):
    """Keep rows of one record key: one, or one for each key of the entries' own."""

    def get(self, *key: object) -> Row | None:
        """Give the row of an entry, None where there is none."""
        return copy.deepcopy(self._now(self._entry(key)))

    def put(self, value: Mapping[str, object] | None, *key: object) -> None:
        """Put a row; columns that it leaves out are null. None deletes.

        Raises `ValueError` for a column that the store doesn't have, and what Arrow raises for a value of another type.
        """
        self._write(self._entry(key), None if value is None else typed(value, self._type.value, f"store {self._type.name!r}"))

    def delete(self, *key: object) -> Row | None:
        """Delete an entry, and give the row that it had."""
        before = self.get(*key)
        self._write(self._entry(key), None)
        return before

    def range(self, low: object = None, high: object = None) -> list[tuple[Any, Row]]:
        """List the entries from one key to another, both included, in the order of their keys; None leaves an end open.

        Of a key of several columns, keys are tuples.
        """
        least, most = (None if bound is None else self._entry(bound if isinstance(bound, tuple) else (bound,)) for bound in (low, high))
        found = ((key, row) for key, row in self._entries() if (least is None or least <= key) and (most is None or key <= most))
        return [(key[0] if len(key) == 1 else key, copy.deepcopy(row)) for key, row in found]


class TimedStore(Entries):
    """Keep rows by time; `at`, where it is left out, is the record's event time."""

    def __init__(self, type: StoreType, held: dict[Entry, Row], record: Record) -> None:
        Entries.__init__(self, type, held, record)
        assert type.keeps is not None
        self._since = record.stream_time - min(type.keeps, record.stream_time - EPOCH)
        for entry in self._expired():
            self._write(entry, None)

    def _expired(self) -> list[Entry]:
        """List what is too old, in the order of the keys: its deletions are told one after the other."""
        raise NotImplementedError

    def _timed(self, key: Entry, at: datetime | None) -> Entry:
        return self._entry((*key, self._record.timestamp if at is None else at))

    def _of(self, key: Entry) -> list[tuple[datetime, Row]]:
        """List the rows of a key, by time."""
        own = self._timed(key, None)[:-1]
        return [(entry[-1], row) for entry, row in self._entries() if entry[:-1] == own]


class WindowStore(TimedStore):
    """Keep rows of one record key by time, and by a key of the entries' own, if they have one: each time for as long as is said.

    What is older than that, by the stream time of the record that is worked off, is gone.
    """

    def put(self, value: Mapping[str, object] | None, *key: object, at: datetime | None = None) -> bool:
        """Put a row at a time; None deletes. Does nothing for a time that is too old, and tells; raises what a key-value store does."""
        entry, row = self._timed(key, at), None if value is None else typed(value, self._type.value, f"store {self._type.name!r}")
        if entry[-1] < self._since:
            return False
        self._write(entry, row)
        return True

    def get(self, *key: object, at: datetime | None = None) -> Row | None:
        """Give the row at a time, None where there is none."""
        return copy.deepcopy(self._now(self._timed(key, at)))

    def fetch(self, *key: object, since: datetime | None = None, until: datetime | None = None) -> list[tuple[datetime, Row]]:
        """List the rows of a key from one time to another, both included, by time; None leaves an end open."""
        least, most = (None if bound is None else self._timed(key, bound)[-1] for bound in (since, until))
        found = ((at, row) for at, row in self._of(key) if (least is None or least <= at) and (most is None or at <= most))
        return [(at, copy.deepcopy(row)) for at, row in found]

    def _expired(self) -> list[Entry]:
        return sorted(entry for entry in self._held if entry[-1] < self._since)


class VersionedStore(TimedStore):
    """Keep the versions of a row of one record key, or of one for each key of the entries' own, each valid from a time on.

    A version is kept until the next one has been valid for as long as is said, by the stream time of the record that is worked off.
    """

    def put(self, value: Mapping[str, object] | None, *key: object, at: datetime | None = None) -> bool:
        """Put a version that is valid from a time on; None deletes from then on. Does nothing for a time that is too old, and tells."""
        if value is not None and DELETED in value:
            raise ValueError(f"store {self._type.name!r}: {DELETED} is the store's own column; put None to delete")
        row = typed({**(value or {}), DELETED: value is None}, self._type.value, f"store {self._type.name!r}")
        entry = self._timed(key, at)
        if entry[-1] < self._since:
            return False
        self._write(entry, row)
        return True

    def delete(self, *key: object, at: datetime | None = None) -> Row | None:
        """Delete from a time on, and give the row that was valid then; of a time that is too old nothing is deleted, or given."""
        before = self.get(*key, as_of=self._record.timestamp if at is None else at)
        return before if self.put(None, *key, at=at) else None

    def get(self, *key: object, as_of: datetime | None = None) -> Row | None:
        """Give the version that is valid last, or was valid as of a time; None where there was none, or it is forgotten."""
        until = None if as_of is None else self._timed(key, as_of)[-1]
        found = [row for at, row in self._of(key) if until is None or at <= until]
        if not found or found[-1][DELETED]:
            return None
        return {name: copy.deepcopy(part) for name, part in found[-1].items() if name != DELETED}

    def _expired(self) -> list[Entry]:
        held = sorted(self._held)
        over = {before for before, after in pairwise(held) if before[:-1] == after[:-1] and after[-1] < self._since}
        last = {entry[:-1]: entry for entry in held}.values()
        return sorted({*over, *(entry for entry in last if self._held[entry][DELETED] and entry[-1] < self._since)})


STORES: Final[dict[str, type[Entries]]] = {"key_value": KeyValueStore, "window": WindowStore, "versioned": VersionedStore}


class Context:
    """Give a processor its stores and its children while it is called."""

    def __init__(self, step: Step, held: Held, record: Record) -> None:
        self._step, self._record = step, record
        self._stores = [STORES[type_.kind](type_, kept, record) for type_, kept in zip(step.stores, held.stores, strict=True)]
        self._forwards: list[tuple[str, Row | None]] = []

    def store(self, name: str) -> Any:
        """Give a store by its name: a `KeyValueStore`, `WindowStore` or `VersionedStore`; raise `KeyError` for one that wasn't declared."""
        for type_, store in zip(self._step.stores, self._stores, strict=True):
            if type_.name == name:
                return store
        raise KeyError(f"no store {name!r}; there are {', '.join(t.name for t in self._step.stores) or 'none'}: stores={{{name!r}: ...}}")

    def schedule(self, punctuator: str, at: datetime, *, by: Literal["stream_time", "wall_clock"] = "stream_time") -> None:
        """Call a punctuator for the record's key, once, when the stream time of the record's partition has reached a time; forget another.

        A time that has been reached already is taken as the next after it. By the wall clock, it is called once the clock of the running
        app has passed the time: at the next clock that is recorded for the record's partition, also where the time is over already.
        Raises `KeyError` for a punctuator that wasn't declared, `ValueError` for another clock.
        """
        if by not in ("stream_time", "wall_clock"):
            raise ValueError(f"schedule({punctuator!r}, by={by!r}): by='stream_time' or by='wall_clock'")
        now, clocked = self._record.stream_time, by == "wall_clock"
        partition = max(0, self._record.partition)  # a final row is of none: it goes by the first
        due = {"at": at, "topic": self._record.topic, "partition": partition, "since": now if clocked else None}
        row = typed(due, self._timers(punctuator)._type.value, f"schedule({punctuator!r})")
        if not clocked:
            row["at"] = max(row["at"], now + MOMENT)
        self._timers(punctuator)._write((punctuator,), row)

    def cancel(self, punctuator: str) -> None:
        """Don't call a punctuator for the record's key, if it is scheduled; raise `KeyError` for one that wasn't declared."""
        self._timers(punctuator)._write((punctuator,), None)

    def _timers(self, punctuator: str) -> Entries:
        if punctuator not in self._step.punctuators:
            raise KeyError(f"no punctuator {punctuator!r}; there are {', '.join(self._step.punctuators) or 'none'}: punctuators={{...}}")
        return self._stores[-1]

    def forward(self, value: Mapping[str, object] | None, to: str | None = None) -> None:
        """Send a row on to a child, under the record's key and times; of one child the name can be left out. None is a tombstone.

        Raises `KeyError` for a child that wasn't declared, `ValueError` for a column that it doesn't have.
        """
        children = self._step.children
        if to is None and len(children) == 1:
            to = next(iter(children))
        if to is None or to not in children:
            raise KeyError(f"forward(to={to!r}); children: {', '.join(children) or 'none'}")
        self._forwards.append((to, None if value is None else typed(value, children[to], f"child {to!r}")))
        if len(self._forwards) > MOST:
            raise ValueError(f"more than {MOST} rows forwarded for one record")

    def _made(self) -> Made:
        puts = [(n, entry, row) for n, store in enumerate(self._stores) for entry, row in store._puts.items()]
        return Made(self._forwards, puts)


def visit(step: Step, held: Held, record: Record) -> Made:
    """Call a processor for a record, and bring what it put into what is held; raise what it raises, and then hold what was held."""
    context = Context(step, held, record)
    step.function(record, context)
    return _taken(held, context._made())


def punctuate(step: Step, held: Held, key: Row, tick: Tick) -> tuple[Made, Exception | None]:
    """Call a punctuator, which isn't scheduled any more; where it raises, that is all that came of it, beside what it raises."""
    record = Record(key, None, tick.at, tick.st, tick.topic, tick.partition, -1)
    context = Context(step, held, record)
    context.cancel(tick.name)
    try:
        step.punctuators[tick.name](record, context)
    except Exception as error:
        return _taken(held, Made([], [(len(step.stores) - 1, (tick.name,), None)])), error
    return _taken(held, context._made()), None


def _taken(held: Held, made: Made) -> Made:
    """Bring what was put into what is held."""
    for store, entry, row in made.puts:
        if row is None:
            held.stores[store].pop(entry, None)
        else:
            held.stores[store][entry] = row
    held.number += bool(made.puts)
    return made


@dataclass(frozen=True)
class Tick:
    """Say that a punctuator of a key is due: for which time it was scheduled, and where in log order it comes.

    By stream time that is where the partition reaches the time. By the wall clock, it is where the clock was recorded: `clocked`.
    """

    at: datetime
    topic: str
    partition: int
    name: str
    st: datetime
    clocked: bool
    ord: int

    def place(self, key: Row) -> Place:
        """Give it a place in log order: before the records of its partition that are at its time, apart from those of other keys."""
        text = repr([part.isoformat() if isinstance(part, datetime) else part for part in key.values()])
        number = int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:15], 16)
        return (self.st, self.topic, self.partition, number - (1 << 60 + self.clocked), self.ord)

    @property
    def rank(self) -> tuple[object, ...]:
        """Order those of one key as they are called; at one recorded clock, by the times for which they were scheduled."""
        return (self.st, self.topic, self.partition, not self.clocked, self.at, self.ord)


def next_tick(step: Step, held: Held, key: Row, reached: Times, clocks: Clocks, before: Place | None = None) -> Tick | None:
    """Find the first punctuator of a key that is due, and comes before a place in log order, if one is given."""
    if not step.punctuators or not held.stores[-1]:
        return None
    due = [tick for (name,), row in held.stores[-1].items() if (tick := _tick(step, name, row, reached, clocks)) is not None]
    first = min(due, key=lambda tick: tick.rank, default=None)
    if first is not None and first.clocked:  # each is gone once it was called, so their numbers grow
        there = [tick for tick in due if tick.clocked and tick.rank[:3] == first.rank[:3]]
        first = replace(first, ord=len(step.punctuators) - len(there))
    return first if first is not None and (before is None or first.place(key) < before) else None


def _tick(step: Step, name: str, row: Row, reached: Times, clocks: Clocks) -> Tick | None:
    """Tell whether a punctuator is due, and where. By the wall clock, what was scheduled at a recorded clock waits for the next one."""
    at, source = row["at"], (row["topic"], row["partition"])
    if row["since"] is not None:
        st = next((st for st, clock in clocks.get(source, ()) if row["since"] < st and at <= clock), None)
    else:
        st = at if (now := reached.get(source)) is not None and at <= now else None
    return None if st is None else Tick(at, *source, name, st, row["since"] is not None, list(step.punctuators).index(name))


def typed(value: Mapping[str, object], kind: pa.DataType, what: str) -> Row:
    """Bring a row to its declared columns: those left out are null; raise `ValueError` for others, and what Arrow raises."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{what}: a dict of columns wanted; got {type(value).__name__}")
    names = [kind.field(n).name for n in range(kind.num_fields)]
    unknown = [name for name in value if name not in names]
    if unknown:
        raise ValueError(f"{what}: no column {', '.join(map(str, unknown))}; it has {', '.join(names)}")
    row: Row = _normal({name: value.get(name) for name in names}, kind)
    return row


def _normal(value: object, kind: pa.DataType) -> Any:
    import pyarrow as pa

    return plain(pa.scalar(written(value, kind), kind).as_py(), kind)


def written(value: Any, kind: pa.DataType) -> Any:
    """Write a value as Arrow reads it: a map as pairs; refuse a time without a zone."""
    import pyarrow.types as t

    if value is None:
        return None
    if t.is_map(kind):
        return [(k, written(v, kind.item_type)) for k, v in dict(value).items()]
    if t.is_list(kind):
        return [written(v, kind.value_type) for v in value]
    if t.is_struct(kind):
        return {(f := kind.field(n)).name: written(value.get(f.name), f.type) for n in range(kind.num_fields)}
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError(f"{value} has no time zone")
    return value


def plain(value: Any, kind: pa.DataType) -> Any:
    """Read a value as Arrow gives it: a map as a dict, times in UTC."""
    import pyarrow.types as t

    if value is None:
        return None
    if t.is_map(kind):
        return {k: plain(v, kind.item_type) for k, v in value}
    if t.is_list(kind):
        return [plain(v, kind.value_type) for v in value]
    if t.is_struct(kind):
        return {(f := kind.field(n)).name: plain(value[f.name], f.type) for n in range(kind.num_fields)}
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def visits_in(step: Step, schema: pa.Schema, reached: Times, clocks: Clocks, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Call a processor for sorted rows: of each key first what its stores keep, where `present` is false, then its records in log order.

    Punctuators are called between them, as stream times have `reached` them, and at the recorded `clocks`. Gives a row for each that is
    forwarded or put (`output` counts the children, then the stores) and, with the `output` -1 and a `reason`, for each record on which
    it raises; each is at the place of the record.
    """
    key: Row | None = None
    held = Held([])
    for batch in batches:
        made: list[Row] = []
        columns = {name: _plain_column(batch, name) for name in batch.schema.names}
        for n, present in enumerate(columns["present"]):
            if columns["key"][n] != key:
                if key is not None:
                    made += _ticks(step, held, key, reached, clocks)
                key, held = columns["key"][n], Held([{} for _ in step.stores])
            row = {name: column[n] for name, column in columns.items()}
            if not present:
                _remember(held, [row[f"store_{number}"] for number in range(len(step.stores))])
                continue
            place = (row["st"], row["topic"], row["partition"], row["offset"], row["ord"])
            made += _ticks(step, held, row["key"], reached, clocks, place)
            made += _outputs(step, held, row)
        yield from _columns(schema, made)
    if key is not None:
        yield from _columns(schema, list(_ticks(step, held, key, reached, clocks)))


def _columns(schema: pa.Schema, rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
    """Give rows as columns, if there are any."""
    import pyarrow as pa

    if rows:
        arrays = [pa.array([written(row.get(field.name), field.type) for row in rows], field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _remember(held: Held, entries: list[Row | None]) -> None:
    """Take in a row that one of the stores keeps, or one that was deleted."""
    for store, entry in zip(held.stores, entries, strict=True):
        if entry is not None:
            held.number = max(held.number, entry["number"])
            if entry["value"] is not None:
                store[tuple(entry[name] for name in entry if name not in ("number", "value"))] = entry["value"]


def _outputs(step: Step, held: Held, row: Row) -> Iterator[Row]:
    """Call a processor for one record; give what comes of it."""
    record = Record(dict(row["key"]), row["value"], row["ts"], row["st"], row["topic"], row["partition"], row["offset"])
    place = {name: row[name] for name in ("key", "ts", *PLACE)}
    try:
        made = visit(step, held, record)
    except Exception as error:
        yield {**place, "present": True, "output": -1, "reason": reason(step.function, error)}
        return
    yield from _made_rows(step, held, place, made)


def _ticks(step: Step, held: Held, key: Row, reached: Times, clocks: Clocks, before: Place | None = None) -> Iterator[Row]:
    """Call the punctuators of a key that are due, each at its place; give what comes of them."""
    while (tick := next_tick(step, held, key, reached, clocks, before)) is not None:
        made, error = punctuate(step, held, dict(key), tick)
        place = {"key": key, "ts": tick.at, **dict(zip(PLACE, tick.place(key), strict=True))}
        if error is not None:
            yield {**place, "present": True, "output": -1, "reason": reason(step.punctuators[tick.name], error)}
        yield from _made_rows(step, held, place, made)


def _made_rows(step: Step, held: Held, place: Row, made: Made) -> Iterator[Row]:
    """Write what came of a call as rows at its place."""
    first, children = place["ord"] * MOST, list(step.children)
    for n, (child, value) in enumerate(made.forwards):
        number = children.index(child)
        yield {**place, "present": True, "output": number, "ord": first + n, f"child_{number}": value}
    for n, (store, entry, value) in enumerate(made.puts):
        own = {name: part for (name, _), part in zip(step.stores[store].key, entry, strict=True)}
        put = {"key": place["key"] | own, "value": {"order": {"n": held.number}, "value": value}}
        yield {**place, "present": True, "output": len(children) + store, "ord": first + n, f"put_{store}": put}


def reason(function: Function, error: Exception) -> str:
    """Say why a record is refused."""
    return f"{function.__name__} raises {type(error).__name__}: {error}"


def _plain_column(batch: pa.RecordBatch, name: str) -> list[Any]:
    kind = batch.schema.field(name).type
    return [plain(value, kind) for value in batch.column(name).to_pylist()]
