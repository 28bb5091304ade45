"""Hold what processors keep of each key, and call them: the interpreter's reading of a processor."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from heapq import heappop, heappush

from watertable.errors import EvaluationError
from watertable.nodes import Process
from watertable.plan import key_of
from watertable.processing import MOST, Held, Made, Record, Step, Tick, Times, next_tick, punctuate, reason, visit
from watertable.records import Event, Key, Place, Row, key_tuple


class Visits:
    """Hold what each processor's stores keep, by the number of its node and the record's key."""

    def __init__(self, processors: Mapping[int, Process]) -> None:
        self._steps: dict[int, Step] = {number: node.processor.step for number, node in processors.items()}
        self._keys = {number: key_of(node).names for number, node in processors.items()}
        self._held: dict[tuple[int, Key], Held] = {}
        self._waits: dict[tuple[str, int], list[tuple[datetime, int, tuple[int, Key]]]] = {}
        """By partition, as heaps: at which of its stream times a punctuator of which key is due. Some may be so no more."""
        self._waiting: set[tuple[tuple[str, int], datetime, tuple[int, Key]]] = set()
        self._ready: set[tuple[int, Key]] = set()
        """The keys of which one may be due now."""
        self._count = 0

    def copied(self) -> Visits:
        """Give others that go on from here, and leave these as they are."""
        other = copy.copy(self)
        other._held = {key: held.copied() for key, held in self._held.items()}
        other._waits = {partition: list(heap) for partition, heap in self._waits.items()}
        other._waiting, other._ready = set(self._waiting), set(self._ready)
        return other

    def call(self, number: int, node: Process, event: Event | None, at: Place, reached: Times) -> Iterator[tuple[str, Event]]:
        """Call a processor for a record, or the punctuator that is due at a place; give what it forwards, by child, and puts, by store.

        Raises `EvaluationError` where the function raises; then nothing was put.
        """
        return self._punctuate(number, node, at, reached) if event is None else self._visit(number, node, event)

    def _visit(self, number: int, node: Process, event: Event) -> Iterator[tuple[str, Event]]:
        key = key_tuple(event.key or {})
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

    def _ticks(self, reached: Times) -> Iterator[tuple[int, Held, Row, Tick, Place]]:
        for partition, heap in self._waits.items():
            now = reached.get(partition)
            while heap and now is not None and heap[0][0] <= now:
                at, _, whose = heappop(heap)
                self._waiting.discard((partition, at, whose))
                self._ready.add(whose)
        for number, key in list(self._ready):
            step, held, row = self._steps[number], self._held[number, key], dict(zip(self._keys[number], key, strict=True))
            if (tick := next_tick(step, held, row, reached)) is not None:
                yield number, held, row, tick, Place(*tick.place(step, row))
            else:
                self._ready.discard((number, key))
                self._schedule(number, key)

    def _punctuate(self, number: int, node: Process, at: Place, reached: Times) -> Iterator[tuple[str, Event]]:
        step = self._steps[number]
        for _, held, row, tick, _ in [found for found in self._ticks(reached) if (found[0], found[-1]) == (number, at)]:
            made, error = punctuate(step, held, dict(row), tick)
            self._schedule(number, key_tuple(row))
            if error is not None:
                raise EvaluationError(reason(step.punctuators[tick.name], error)) from error
            yield from self._made(node, held, Event(at, tick.at, row, None), made)

    def _schedule(self, number: int, key: Key) -> None:
        """Note which times a key's punctuators wait for."""
        waits = self._held[number, key].stores[-1] if self._steps[number].punctuators else {}
        for row in waits.values():
            partition, at, whose = (row["topic"], row["partition"]), row["at"], (number, key)
            if (partition, at, whose) not in self._waiting:
                self._waiting.add((partition, at, whose))
                self._count += 1  # keys needn't have an order
                heappush(self._waits.setdefault(partition, []), (at, self._count, whose))

    def _made(self, node: Process, held: Held, event: Event, made: Made) -> Iterator[tuple[str, Event]]:
        first = event.place.ord * MOST
        for n, (child, row) in enumerate(made.forwards):
            yield child, replace(event, value=row, place=event.place._replace(ord=first + n))
        for n, (number_, entry, row) in enumerate(made.puts):
            store, shape = node.processor.kept[number_]
            value: Row = {"order": (held.number,), "value": row}
            put = (event.key or {}) | dict(zip(shape.key.names, entry, strict=True))
            yield f"store {store}", replace(event, key=put, value=value, place=event.place._replace(ord=first + n))
