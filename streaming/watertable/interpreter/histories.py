"""Hold the histories of versioned tables, and what waits to look into them: the interpreter's reading of both."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from watertable.plan.nodes import Versioned, WaitingJoin
from watertable.records import Event, Key, Place, Record, Row

Versions = dict[Key, list[Any]]
"""The versions of a table's rows by key, each with its `order` and its `value`."""


class Histories:
    """Hold the versions of each versioned table, and the records that wait in each join, by the numbers of their nodes.

    `ahead` has the versions that records wait for, with all of the batch that is being read: those may be later in log order.
    """

    def __init__(self, tables: Mapping[int, Versioned], joins: Mapping[int, tuple[WaitingJoin, int]]) -> None:
        self.tables, self._joins = tables, joins
        self._known: dict[int, Versions] = {number: {} for number in tables}
        self.ahead: dict[int, Versions] = {of: {} for _, of in joins.values()}
        self._waiting: dict[int, list[tuple[Record, Event]]] = {number: [] for number in joins}
        self.released: dict[Place, list[tuple[int, Record, Event]]] = {}

    def copied(self) -> Histories:
        """Give others that go on from here, and leave these as they are."""
        other = copy.copy(self)
        other._known, other.ahead = (
            {number: {key: list(found) for key, found in versions.items()} for number, versions in held.items()}
            for held in (self._known, self.ahead)
        )
        other._waiting = {number: list(waiting) for number, waiting in self._waiting.items()}
        other.released = dict(self.released)
        return other

    def came(self, number: int, found: Iterable[tuple[Key, list[Row], Event]]) -> None:
        """Take what a record brings to a table; of another table nothing is kept."""
        if number in self._known:
            remember(self._known[number], found)

    def wait(self, join: int, record: Record, event: Event) -> None:
        """Let a record wait."""
        self._waiting[join].append((record, event))

    def release(self, is_due: Callable[[WaitingJoin, Event], bool]) -> None:
        """Take what needn't wait any more out of the joins, by the places where it goes on."""
        for number, (join, _) in self._joins.items():
            all_, self._waiting[number] = self._waiting[number], []
            for record, event in all_:
                if is_due(join, event):
                    self.released.setdefault(event.place._replace(ord=0), []).append((number, record, event))
                else:
                    self._waiting[number].append((record, event))

    def version(self, number: int, key: Key, event: Event, until: datetime | None) -> Row | None:
        """Give the state of a key as of a record's event time, None where there is none.

        With `until`, of versions that were read before their partition had passed it; else of all that came before. Before the history only
        what it begins with is known: that answers a record which isn't earlier.
        """
        known = (self._known if until is None else self.ahead)[number].get(key, [])
        asked = max(event.timestamp, event.place.st - self.tables[number].history)
        seen = [v for v in known if v["order"][0] <= asked and (until is None or v["order"][1] <= until)]
        last = max(seen, key=lambda v: v["order"], default=None)
        return None if last is None or last["order"][0] > event.timestamp else {"row": last}


def remember(versions: Versions, found: Iterable[tuple[Key, list[Row], Event]]) -> None:
    """Add what records bring to a history."""
    for key, states, _ in found:
        versions.setdefault(key, []).extend(state["row"] for state in states)


def waits_until(join: WaitingJoin, event: Event) -> datetime:
    """Give the stream time that the versions may have which a record finds, and that must pass before it goes on."""
    return max(event.timestamp + join.grace, event.place.st)
