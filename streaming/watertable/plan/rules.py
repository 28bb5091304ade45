"""Hold rules on records as data: a name, a condition, and what happens to a record that breaks it.

A rule is part of the plan: it is compiled into the batch, costs no job of its own, and its verdicts are in the same commit as the
tables. A condition that is null is kept (as in SQL's CHECK constraints); one that fails to evaluate refuses the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from watertable.sql.expressions import Expr


class OnFail(StrEnum):
    """Say what happens to a record that breaks a rule."""

    QUARANTINE = "quarantine"
    """Keep its bytes in quarantine; no operator below sees it."""
    DROP = "drop"
    """Drop and count it."""
    WARN = "warn"
    """Let it pass, and count it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Require a condition of every record."""

    name: str
    condition: Expr
    on_fail: OnFail
