"""Say what is done with a table's state: which part of it each leaf folds, and the steps from it to the row that readers see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from watertable.expressions import Expr

if TYPE_CHECKING:
    from watertable.plan import How, Leaf, Named


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
class Part:
    """Say which part of a table's state one of its leaves folds.

    `fields` holds pairs of the leaf's own name of a state field and the table's; `there`, if any, is the field that is true from the
    leaf's first record on.
    """

    leaf: Leaf
    fields: tuple[tuple[str, str], ...]
    there: str | None


Stage = Project | Where | Match
"""A step from a table's state to what its readers see."""
