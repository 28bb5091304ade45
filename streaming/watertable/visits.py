"""Hold what processors keep of each key, and call them: the interpreter's reading of a processor."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace

from watertable.errors import EvaluationError
from watertable.nodes import Process
from watertable.processing import MOST, Held, Record, Step, reason, visit
from watertable.records import Event, Key, Row


class Visits:
    """Hold what each processor's stores keep, by the number of its node and the record's key."""

    def __init__(self, processors: Mapping[int, Process]) -> None:
        self._steps: dict[int, Step] = {number: node.processor.step for number, node in processors.items()}
        self._held: dict[tuple[int, Key], Held] = {}

    def copied(self) -> Visits:
        """Give others that go on from here, and leave these as they are."""
        other = copy.copy(self)
        other._held = {key: held.copied() for key, held in self._held.items()}
        return other

    def visit(self, number: int, node: Process, key: Key, event: Event) -> Iterator[tuple[str, Event]]:
        """Call a processor for a record; give what it forwards, by child, and what it puts, by store.

        Raises `EvaluationError` where the function raises; then nothing was put.
        """
        held = self._held.setdefault((number, key), Held([{} for _ in node.processor.stores]))
        record = Record(
            key=dict(event.key or {}), value=copy.deepcopy(event.value), timestamp=event.timestamp, stream_time=event.place.st,
            topic=event.place.topic, partition=event.place.partition, offset=event.place.offset,
        )  # fmt: skip
        try:
            made = visit(self._steps[number], held, record)
        except Exception as error:  # whatever the user's code raises is the record's failure
            raise EvaluationError(reason(self._steps[number], error)) from error
        first = event.place.ord * MOST
        for n, (child, row) in enumerate(made.forwards):
            yield child, replace(event, value=row, place=event.place._replace(ord=first + n))
        for n, (number_, entry, row) in enumerate(made.puts):
            store, shape = node.processor.stores[number_]
            value: Row = {"order": (held.number,), "value": row}
            put = (event.key or {}) | dict(zip(shape.key.names, entry, strict=True))
            yield f"store {store}", replace(event, key=put, value=value, place=event.place._replace(ord=first + n))
