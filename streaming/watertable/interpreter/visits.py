"""Hold what processors keep of each key, and call them: the interpreter's reading of a processor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from heapq import heappop, heappush

from watertable.errors import EvaluationError
from watertable.plan.nodes import Process
from watertable.plan.plan import key_of
from watertable.processing import MOST, Clock, Held, Made, Record, Step, Tick, Times, next_tick, punctuate, reason, visit
from watertable.records import Advance, Event, Key, Place, Row, key_tuple

Waited = tuple[tuple[str, int], bool]
"""What a punctuator waits for: a partition's stream time, or the wall clock recorded there, if so it is."""


class Visits:
    """Hold what each processor's stores keep, by the number of its node and the record's key."""

    def __init__(self, processors: Mapping[int, Process]) -> None:
        self._steps: dict[int, Step] = {number: node.processor.step for number, node in processors.items()}
        self._keys = {number: key_of(node).names for number, node in processors.items()}
        self._held: dict[tuple[int, Key], Held] = {}
        self._waits: dict[Waited, list[tuple[datetime, int, tuple[int, Key]]]] = {}
        """As heaps: at which time a punctuator of which key is due. Some may be so no more."""
        self._waiting: set[tuple[Waited, datetime, tuple[int, Key]]] = set()
        self._ready: set[tuple[int, Key]] = set()
        """The keys of which one may be due now."""
        self._count = 0
        self.clocks: dict[tuple[str, int], list[Clock]] = {}
        """The recorded clocks of the batch that is being read."""
        self.called: Callable[[int, Key, datetime | None], object] | None = None
        """Is told of each call: the number of the processor's node, the key, and the recorded clock where it is one by the wall clock."""

    def notice(self, advance: Advance, st: datetime) -> None:
        """Take in what the wall clock was where a partition's stream time was moved on."""
        if advance.clock is not None:
            self.clocks.setdefault((advance.topic, advance.partition), []).append((st, advance.clock))

    def copied(self) -> Visits:
        """Give others that go on from here, and leave these as they are."""
        other = copy.copy(self)
        other.called = None
        other._held = {key: held.copied() for key, held in self._held.items()}
        other._waits = {waited: list(heap) for waited, heap in self._waits.items()}
        other._waiting, other._ready = set(self._waiting), set(self._ready)
        return other

    def call(self, number: int, node: Process, event: Event | None, at: Place, reached: Times) -> Iterator[tuple[str, Event]]:
        """Call a processor for a record, or the punctuator that is due at a place; give what it forwards, by child, and puts, by store.

        Raises `EvaluationError` where the function raises; then nothing was put.
        """
        return self._punctuate(number, node, at, reached) if event is None else self._visit(number, node, event)

    def _visit(self, number: int, node: Process, event: Event) -> Iterator[tuple[str, Event]]:
        key = key_tuple(event.key or {})
        self._tell(number, key)
        held = self._held.setdefault((number, key), Held([{} for _ in node.processor.kept]))
        record = Record(
            key=dict(event.key or {}), value=copy.deepcopy(event.value), timestamp=event.timestamp, stream_time=event.place.st,
            topic=event.place.topic, partition=event.place.partition, offset=event.place.offset,
        )  # fmt: skip
        try:
            made = visit(self._steps[number], held, record)
        except Exception as error:  # whatever the user's code raises is the record's failure
            raise EvaluationError(reason(node.processor.function, error)) from error
        self._schedule(number, key)
        yield from self._made(node, held, event, made)

    def due(self, reached: Times) -> Iterator[Place]:
        """Give the place of each key's next punctuator that is due."""
        yield from (place for *_, place in self._ticks(reached))

    def by_clock(self) -> Mapping[tuple[str, int], datetime]:
        """Give, by partition, the first time for which a punctuator is scheduled by the wall clock."""
        timers = [held.stores[-1] for (number, _), held in self._held.items() if self._steps[number].punctuators]
        found: dict[tuple[str, int], datetime] = {}
        for row in (row for store in timers for row in store.values() if row["since"] is not None):
            source = row["topic"], row["partition"]
            found[source] = min(row["at"], found.get(source, row["at"]))
        return found

    @property
    def clocked(self) -> bool:
        """Tell whether anything was ever scheduled by the wall clock."""
        return any(clocked for _, clocked in self._waits)

    def _ticks(self, reached: Times) -> Iterator[tuple[int, Held, Row, Tick, Place]]:
        for waited, heap in self._waits.items():
            source, clocked = waited
            now = max((clock for _, clock in self.clocks.get(source, ())), default=None) if clocked else reached.get(source)
            while heap and now is not None and heap[0][0] <= now:
                at, _, whose = heappop(heap)
                self._waiting.discard((waited, at, whose))
                self._ready.add(whose)
        for number, key in list(self._ready):
            step, held, row = self._steps[number], self._held[number, key], dict(zip(self._keys[number], key, strict=True))
            if (tick := next_tick(step, held, row, reached, self.clocks)) is not None:
                yield number, held, row, tick, Place(*tick.place(row))
            else:
                self._ready.discard((number, key))
                self._schedule(number, key)

    def _punctuate(self, number: int, node: Process, at: Place, reached: Times) -> Iterator[tuple[str, Event]]:
        step = self._steps[number]
        for _, held, row, tick, _ in [found for found in self._ticks(reached) if (found[0], found[-1]) == (number, at)]:
            self._tell(number, key_tuple(row), tick)
            made, error = punctuate(step, held, dict(row), tick)
            self._schedule(number, key_tuple(row))
            if error is not None:
                raise EvaluationError(reason(step.punctuators[tick.name], error)) from error
            yield from self._made(node, held, Event(at, tick.at, row, None), made)

    def _tell(self, number: int, key: Key, tick: Tick | None = None) -> None:
        if self.called is not None:
            clock = dict(self.clocks[tick.topic, tick.partition])[tick.st] if tick is not None and tick.clocked else None
            self.called(number, key, clock)

    def _schedule(self, number: int, key: Key) -> None:
        """Note which times a key's punctuators wait for."""
        waits = self._held[number, key].stores[-1] if self._steps[number].punctuators else {}
        for row in waits.values():
            waited, at, whose = ((row["topic"], row["partition"]), row["since"] is not None), row["at"], (number, key)
            if (waited, at, whose) not in self._waiting:
                self._waiting.add((waited, at, whose))
                self._count += 1  # keys needn't have an order
                heappush(self._waits.setdefault(waited, []), (at, self._count, whose))

    def _made(self, node: Process, held: Held, event: Event, made: Made) -> Iterator[tuple[str, Event]]:
        first = event.place.ord * MOST
        for n, (child, row) in enumerate(made.forwards):
            yield child, replace(event, value=row, place=event.place._replace(ord=first + n))
        for n, (number_, entry, row) in enumerate(made.puts):
            store, shape = node.processor.kept[number_]
            value: Row = {"order": (held.number,), "value": row}
            put = (event.key or {}) | dict(zip(shape.key.names, entry, strict=True))
            yield f"store {store}", replace(event, key=put, value=value, place=event.place._replace(ord=first + n))
