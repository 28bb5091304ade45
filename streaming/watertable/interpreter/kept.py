"""Work out once what the definitions of an app's tables say: what each keeps, and of which rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from watertable.plan import nodes, plan
from watertable.plan.aggregates import StateField, TimedField
from watertable.plan.plan import Topology
from watertable.plan.stages import Stage
from watertable.plan.windows import SlidingWindows
from watertable.records import Key
from watertable.sql.expressions import Expr


@dataclass(frozen=True, slots=True)
class Part:
    """Hold one leaf of a table: its number, what it keeps, where that is in the table's state, and which rows were asked for."""

    leaf: nodes.Leaf
    number: int
    state: tuple[StateField, ...]
    fields: tuple[tuple[str, str], ...] = ()
    there: str | None = None
    asked: Key | None = None

    def wants(self, key: Key) -> bool:
        """Tell whether a row of this group was asked for."""
        return self.asked is None or key[: len(self.asked)] == self.asked


@dataclass(frozen=True, slots=True)
class Kept:
    """Hold what the definition of a table says."""

    name: str
    label: str
    key: tuple[str, ...]
    state: tuple[StateField, ...]
    parts: tuple[Part, ...]
    windowed: bool
    gap: timedelta | None
    sliding: SlidingWindows | None
    foreign: int
    alive: Expr | None
    stages: tuple[Stage, ...]
    watched: bool
    timed: tuple[str, ...]


def kept(topology: Topology, number: Callable[[nodes.Leaf], int], watched: Collection[str], asked: Mapping[str, Key]) -> dict[str, Kept]:
    """Give the tables, and the buffers that are tables still open, by name.

    A leaf that several tables share, or one of them has twice, keeps all rows: what one of them spares is another's. So do the sides of a
    join by a foreign key, which are kept by what they name.
    """
    tables = [*topology.tables, *filter(plan.is_open, topology.buffers)]
    users = Counter(number(part.leaf) for table in tables for part in table.parts)

    def parts(table: plan.TableDef) -> tuple[Part, ...]:
        own_keys = len(table.state_key) == len(table.key)
        return tuple(
            Part(p.leaf, n, plan.state_of(p.leaf), p.fields, p.there, asked.get(table.name) if users[n] == 1 and own_keys else None)
            for p in table.parts for n in [number(p.leaf)]
        )  # fmt: skip

    return {
        t.name: Kept(
            t.name, "suppress" if plan.is_open(t) else t.name, t.key.names, t.state, parts(t),
            bool(t.windows), t.sessions.gap if t.sessions else None, t.sliding,
            len(t.state_key) - len(t.key), t.alive, t.stages, t.name in watched,
            tuple(f.name for f in t.state if isinstance(f, TimedField)),
        ) for t in tables
    }  # fmt: skip
