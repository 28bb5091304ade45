"""Look up old rows for one batch after the other, and remember those of small tables from each to the next.

A look-up reads a table's base and its tail, which is a file for each commit since the last fold. From one batch to the next these are the
same files and one more; so what they came to is kept, and only the new one is read. The law: what is remembered are absolute states at a
seq of the writer's own lineage, over one version of the base. Another base begins anew, and so does another writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from watertable.plan.plan import TableDef
from watertable.store.bases import Base
from watertable.store.views import Known, View, materialise

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

    from watertable.compiler import Keys, Lookup, Make
    from watertable.store.reader import Reader

SHORT_TAIL: Final = 2 << 20
"""Bytes of a tail up to which looking up is quicker without cutting it to the keys that are wanted."""
SHORT_BASE: Final = 1 << 20
"""Bytes of a base up to which a table is looked up whole, and remembered, while its tail is short.

How long the tail is says little of how many rows the table has: each commit adds to it, and most change rows that are there.
"""
BYTES_A_RECORD: Final = 16
"""Of a larger one, as many bytes for each record of a batch: up to there it takes longer to find out which keys are wanted."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    """Remember the states (`key`, `state`) of a whole table at a seq, over a base."""

    base: Base
    seq: int
    states: DataFrame


class Lookups:
    """Look up for the batches of one writer, which says each time where it stands."""

    def __init__(self, reader: Reader, known: Callable[[], Known], make: Make) -> None:
        self._reader, self._known, self._make = reader, known, make
        self._remembered: dict[str, _Remembered] = {}

    def of(self, records: int = 0) -> Lookup:
        """Give the look-up of old rows for one batch: (table, what makes its distinct `key`s, or all) → `key`, `state`, its lineage cut.

        A short tail is given whole, with the rows of other keys: to cut it would take a Spark job more. So is a table that is small by
        itself, or beside a batch of so many `records`: to find out which keys are in the batch would take another.
        """

        def look(table: TableDef, keys: Keys | None, due: datetime | None = None, /) -> DataFrame:
            view = self._reader.view_for([table.name], self._known())
            if due is not None and keys is not None:
                return materialise(view.waiting(table, keys(), due).select("key", "state"))
            tail, base, size = view.tail_bytes(table), view.base_bytes(table), view.whole_bytes(table)
            if base <= SHORT_BASE and size - base <= SHORT_TAIL:
                return self._whole(view, table)
            self._remembered.pop(table.name, None)
            wanted = None if keys is None or size <= BYTES_A_RECORD * records else keys()
            return materialise(view.states(table, wanted, of_tail=tail <= SHORT_TAIL).select("key", "state"))

        return look

    def _whole(self, view: View, table: TableDef) -> DataFrame:
        """Give all states of a table: those that were given before, with what has been committed since then."""
        base, seq, seen = view.bases[table.name], view.position.seq, self._remembered.get(table.name)
        if seen is None or seen.base != base:
            states = materialise(view.states(table).select("key", "state"))
        elif seen.seq == seq:
            return seen.states
        else:
            states = view.states_since(table, seen.seq, seen.states, self._make)
        self._remembered[table.name] = _Remembered(base, seq, states)
        return states
