"""Say which steps lead from a table's state to the row that readers see."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from watertable.sql.expressions import Expr

Named = tuple[tuple[str, Expr], ...]
"""Expressions with the names of the columns that they make, in order."""


class How(StrEnum):
    """Say which keys a join has rows for: those of both sides, of the left one, or of either."""

    INNER = "inner"
    LEFT = "left"
    OUTER = "outer"

    @property
    def operator(self) -> str:
        """Name the join as the DSL does."""
        return "join" if self is How.INNER else f"{self}_join"

    @property
    def alone(self) -> tuple[int, ...]:
        """Number the sides, the left one 0 and the right one 1, that come without a partner, too."""
        return {How.INNER: (), How.LEFT: (0,), How.OUTER: (0, 1)}[self]


@dataclass(frozen=True, slots=True)
class Project:
    """Replace the value columns of a row."""

    columns: Named


@dataclass(frozen=True, slots=True)
class Where:
    """Let only those rows live for which the condition is true."""

    condition: Expr


@dataclass(frozen=True, slots=True)
class Side:
    """Take one side's row out of the state of a join.

    `state` holds pairs of the side's own name of a state field and the join's; `key` the side's own names of the key's columns. The side
    has a state where one of the join's fields `there` isn't null; without any of them, `alive` and `stages` tell.
    """

    key: tuple[str, ...]
    state: tuple[tuple[str, str], ...]
    there: tuple[str, ...]
    alive: Expr | None
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """Make a row of the rows of two sides, if those are there that must be."""

    how: How
    left: Side
    right: Side
    columns: Named


@dataclass(frozen=True, slots=True)
class Beside:
    """Make a row of two rows, `left` and `right` in the state, of which the right one may be missing; an inner join needs both."""

    how: How
    columns: Named


Stage = Project | Where | Match | Beside
"""A step from a table's state to what its readers see."""
