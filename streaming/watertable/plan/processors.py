"""Hold what a processor is: a function of the user's that is called record by record, its stores and its children.

A plan knows it as it knows a `udf`: by its version, or by its closure. Each of its stores is a table of the app, under the store's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from watertable.processing import Step, StoreType
from watertable.schema import Schema
from watertable.sql.udfs import arrow_type


@dataclass(frozen=True, slots=True)
class StoreShape:
    """Say what a store keeps for each record key: a row of `value`, or one for each `key` of the entries' own.

    The key of a window or versioned store ends with a time; such a store forgets what is older than it `keeps`.
    """

    kind: str
    key: Schema
    value: Schema
    keeps: timedelta | None = None


TIMERS: Final = "__timers"
_DUE: Final = "at TIMESTAMP, topic STRING, partition INT, since TIMESTAMP"
"""When a punctuator is due, and by the time of which partition; by the wall clock if there is the stream time `since` which that holds."""
_TIMERS: Final = StoreShape("key_value", Schema.parse("punctuator STRING"), Schema.parse(_DUE))


@dataclass(frozen=True, slots=True)
class Punctuator:
    """Name a function that is called when a key's time has come."""

    name: str
    identity: str
    function: Callable[..., Any] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Processor:
    """Hold a processor: what identifies its function, its stores and its children by name."""

    name: str
    identity: str
    stores: tuple[tuple[str, StoreShape], ...]
    children: tuple[tuple[str, Schema], ...]
    function: Callable[..., Any] = field(compare=False, repr=False)
    punctuators: tuple[Punctuator, ...] = ()

    @property
    def kept(self) -> tuple[tuple[str, StoreShape], ...]:
        """Give all stores: the user's, and the one that says when punctuators are due, if there are any."""
        return (*self.stores, (TIMERS, _TIMERS)) if self.punctuators else self.stores

    @property
    def step(self) -> Step:
        """Give the processor as it is called."""
        stores = (
            StoreType(
                name, tuple((c.name, arrow_type(c.type)) for c in shape.key), arrow_type(shape.value.struct()), shape.kind, shape.keeps
            )
            for name, shape in self.kept
        )
        children = {name: arrow_type(value.struct()) for name, value in self.children}
        return Step(self.function, tuple(stores), children, {p.name: p.function for p in self.punctuators})
