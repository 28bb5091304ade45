"""Hold what a processor is: a function of the user's that is called record by record, its stores and its children.

A plan knows it as it knows a `udf`: by its version, or by its closure. Each of its stores is a table of the app, under the store's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from watertable.processing import Step, StoreType
from watertable.schema import Schema
from watertable.udfs import arrow_type


@dataclass(frozen=True, slots=True)
class StoreShape:
    """Say what a store keeps for each record key: a row of `value`, or one for each `key` of the entries' own.

    The key of a window or versioned store ends with a time; such a store forgets what is older than it `keeps`.
    """

    kind: str
    key: Schema
    value: Schema
    keeps: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Processor:
    """Hold a processor: what identifies its function, its stores and its children by name."""

    name: str
    identity: str
    stores: tuple[tuple[str, StoreShape], ...]
    children: tuple[tuple[str, Schema], ...]
    function: Callable[..., Any] = field(compare=False, repr=False)

    @property
    def step(self) -> Step:
        """Give the processor as it is called."""
        stores = (
            StoreType(
                name, tuple((c.name, arrow_type(c.type)) for c in shape.key), arrow_type(shape.value.struct()), shape.kind, shape.keeps
            )
            for name, shape in self.stores
        )
        return Step(self.function, tuple(stores), {name: arrow_type(value.struct()) for name, value in self.children})
