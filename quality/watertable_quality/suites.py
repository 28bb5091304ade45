"""Say what must hold of a table, as data: a suite names a table and lists expectations, in Great Expectations' words.

An expectation about single rows is also a Spark SQL condition, `sql`, in which null means "nothing to object to", as Great Expectations
ignores nulls. So one text serves twice: in a stream, `stream.expect(e.name, e.sql)` judges each record in the batch that reads it, at
no extra job; in a suite it is checked over a whole table at one position. Nothing here imports Great Expectations or Spark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from watertable.errors import DefinitionError
from watertable.schema import check_identifier, quote
from watertable.where import caller

Number = int | float
_NAME: Final = re.compile(r"[A-Za-z0-9_]+")


class Severity(StrEnum):
    """Say what a failure means; the names are Great Expectations'."""

    CRITICAL = "critical"
    """An error; it blocks batch assets below the table that run with it."""
    WARNING = "warning"
    """A warning; nothing stops."""
    INFO = "info"
    """Counted and shown, and no failure."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Hold one expectation: Great Expectations' class and its arguments, and the condition on a row where there is one."""

    name: str
    gx: str
    arguments: tuple[tuple[str, object], ...]
    severity: Severity = Severity.CRITICAL
    sql: str | None = None

    def __post_init__(self) -> None:
        """Take a severity by its name, too, and arguments by theirs; raise `DefinitionError` for what would be red at each run."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise DefinitionError(f"Expectation({self.name!r}): its name is that of a check in Dagster: letters, digits and _")
        if not isinstance(self.gx, str) or not self.gx.startswith("Expect"):
            raise DefinitionError(f"{self.name}: {self.gx!r} is no class of Great Expectations', such as 'ExpectColumnValuesToNotBeNull'")
        try:
            arguments = tuple(dict(self.arguments).items())
        except (TypeError, ValueError):
            raise DefinitionError(f"{self.name}: arguments={self.arguments!r}; write each with its name, (('column', 'qty'),)") from None
        object.__setattr__(self, "arguments", arguments)
        if self.severity not in [*Severity]:
            raise DefinitionError(f"{self.name}: severity={self.severity!r}; choose {', '.join(Severity)}")
        object.__setattr__(self, "severity", Severity(self.severity))


@dataclass(frozen=True, slots=True, init=False)
class Suite:
    """Hold what must hold of one table, "app.table".

    >>> Suite("shop.stock", not_null("item"), unique("item")).names
    ('item_not_null', 'item_unique')
    """

    table: str
    expectations: tuple[Expectation, ...]
    location: str = field(compare=False, repr=False)

    def __init__(self, table: str, *expectations: Expectation) -> None:
        """Check the names; raise `DefinitionError` for a table without its app, no expectation, or two of one name."""
        location = caller()
        app, _, name = table.partition(".") if isinstance(table, str) else ("", "", "")
        if not app or not name or "." in name:
            raise DefinitionError(f"{location}: Suite({table!r}): a suite wants its table as app.table")
        for e in expectations:
            if not isinstance(e, Expectation):
                raise DefinitionError(f"{location}: Suite({table!r}): {e!r} is no expectation; write not_null('column'), between(...), ...")
        names = [e.name for e in expectations]
        twice = sorted({n for n in names if names.count(n) > 1})
        if not names or twice:
            wrong = f"two expectations are called {', '.join(twice)}" if twice else "no expectation"
            raise DefinitionError(f"{location}: Suite({table!r}): {wrong}")
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "expectations", expectations)
        object.__setattr__(self, "location", location)

    @property
    def app(self) -> str:
        """Name the app."""
        return self.table.partition(".")[0]

    @property
    def name(self) -> str:
        """Name the table within its app."""
        return self.table.partition(".")[2]

    @property
    def names(self) -> tuple[str, ...]:
        """List the names of the expectations, which are those of the checks in Dagster."""
        return tuple(e.name for e in self.expectations)


def not_null(column: str, *, severity: Severity = Severity.CRITICAL) -> Expectation:
    """Expect a value in every row."""
    sql = f"{_quoted(column)} IS NOT NULL"
    return Expectation(f"{column}_not_null", "ExpectColumnValuesToNotBeNull", (("column", column),), severity, sql)


def between(column: str, low: Number | None, high: Number | None, *, severity: Severity = Severity.CRITICAL) -> Expectation:
    """Expect values from `low` to `high`, both included; None leaves a side open.

    Raises `DefinitionError` for two open sides, what is no finite number, or the greater first.
    """
    _check_bounds(f"between({column!r}, {low!r}, {high!r})", low, high, "number")
    sides = [f"{_quoted(column)} >= {low!r}"] * (low is not None) + [f"{_quoted(column)} <= {high!r}"] * (high is not None)
    arguments = (("column", column), ("min_value", low), ("max_value", high))
    return Expectation(f"{column}_between", "ExpectColumnValuesToBeBetween", arguments, severity, " AND ".join(sides))


def in_set(column: str, values: Iterable[str | int], *, severity: Severity = Severity.CRITICAL) -> Expectation:
    """Expect one of these values. Raises `DefinitionError` when there are none, or when they are not all text or all whole numbers."""
    given = values if isinstance(values, Iterable) and not isinstance(values, str | bytes) else ()  # nobody means the letters of a text
    chosen = sorted(set(given), key=str)
    if not chosen or len({type(v) for v in chosen}) != 1 or not isinstance(chosen[0], str | int):
        raise DefinitionError(f"in_set({column!r}): give texts or whole numbers, at least one and of one kind; got {chosen or values!r}")
    sql = f"{_quoted(column)} IN ({', '.join(_literal(v) for v in chosen)})"
    arguments = (("column", column), ("value_set", tuple(chosen)))
    return Expectation(f"{column}_in_set", "ExpectColumnValuesToBeInSet", arguments, severity, sql)


def unique(*columns: str, severity: Severity = Severity.CRITICAL) -> Expectation:
    """Expect no two rows with the same values of these columns; about the whole table, so it is no condition on a row.

    Raises `DefinitionError` when there are none, or one is named twice.
    """
    for column in columns:
        check_identifier(column, "column")
    if not columns or len(set(columns)) < len(columns):
        raise DefinitionError(f"unique({', '.join(map(repr, columns))}): name at least one column, each once")
    name = "_".join((*columns, "unique"))
    if len(columns) == 1:
        return Expectation(name, "ExpectColumnValuesToBeUnique", (("column", columns[0]),), severity)
    return Expectation(name, "ExpectCompoundColumnsToBeUnique", (("column_list", columns),), severity)


def row_count(low: int | None = None, high: int | None = None, *, severity: Severity = Severity.CRITICAL) -> Expectation:
    """Expect so many rows in the table. Raises `DefinitionError` for two open sides, what is no whole number, or the greater first."""
    _check_bounds(f"row_count({low!r}, {high!r})", low, high, "whole number")
    return Expectation("row_count", "ExpectTableRowCountToBeBetween", (("min_value", low), ("max_value", high)), severity)


def _check_bounds(what: str, low: Number | None, high: Number | None, kind: str) -> None:
    """Raise `DefinitionError` for bounds that nothing is between, and for what is no such number: none is less than NaN, say."""
    bounds = [bound for bound in (low, high) if bound is not None]
    wanted = int if kind == "whole number" else (int, float)
    if not bounds or not all(isinstance(bound, wanted) and not isinstance(bound, bool) and math.isfinite(bound) for bound in bounds):
        raise DefinitionError(f"{what}: give at least one bound, a {kind}")
    if len(bounds) == 2 and bounds[0] > bounds[1]:
        raise DefinitionError(f"{what}: nothing is between these: the lower bound comes first")


def _quoted(column: str) -> str:
    return quote(check_identifier(column, "column"))


def _literal(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
