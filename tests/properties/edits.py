"""Change one step of a definition, wherever it stands: put something behind it, or give it other arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest

import watertable as wt
from tests.properties.pairs import topology
from watertable.dsl.app import App
from watertable.dsl.streams import CogroupedStream, GroupedStream, Stream, WindowedStream
from watertable.dsl.tables import GroupedTable, Table
from watertable.plan.plan import Topology
from watertable.plan.windows import UnlimitedWindows

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Unchanged(Exception):
    """Say that an edit has nothing to change at a step."""


BEHIND: Mapping[str, tuple[type[Stream | Table], Callable[[Any], Stream | Table]]] = {
    "fewer rows": (Table, lambda t: t.filter("n > 1")),
    "all rows": (Table, lambda t: t.filter("n > -100 OR n IS NULL")),
    "the same columns of rows": (Table, lambda t: t.map_values(n="n", g="g")),
    "other columns of rows": (Table, lambda t: t.map_values(n="n * 2", g="g")),
    "fewer rows of other columns": (Table, lambda t: t.map_values(n="n * 2", g="g").filter("n > 2")),
    "fewer records": (Stream, lambda s: s.filter("n > 1")),
    "records refused": (Stream, lambda s: s.expect("small", "n < 4")),
    "records repartitioned": (Stream, lambda s: s.repartition()),
    "the same columns of records": (Stream, lambda s: s.map_values(n="n", g="g")),
    "a column more of records": (Stream, lambda s: s.with_columns(more="n + 1")),
}
"""What is put behind a step that gives a table, or a stream."""


def _columns(how: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Arguments]:
    def of(positional: tuple[Any, ...], named: dict[str, Any]) -> Arguments:
        if "n" not in named:
            raise Unchanged
        return positional, how(named)

    return of


def _with_grace(positional: tuple[Any, ...], named: dict[str, Any]) -> Arguments:
    windows, *others = positional
    if isinstance(windows, UnlimitedWindows):
        raise Unchanged
    return (replace(windows, grace=wt.seconds(30)), *others), named


_MAKE_COLUMNS = ("map_values", "join", "left_join", "outer_join", "reduce", "agg", "cogroup")
ARGUMENTS: Mapping[str, tuple[tuple[str, ...], Callable[..., Arguments]]] = {
    "a wider filter": (("filter",), lambda p, n: ((f"({p[0]}) OR n = 1",), n)),
    "a narrower filter": (("filter",), lambda p, n: ((f"({p[0]}) AND n <> 2",), n)),
    "another expression": (("map_values",), _columns(lambda n: {**n, "n": f"({n['n']}) + 1"})),
    "a column less": (_MAKE_COLUMNS, _columns(lambda n: {name: of for name, of in n.items() if name != "g"})),
    "a column more": (_MAKE_COLUMNS, _columns(lambda n: {**n, "more": n["n"]})),
    "columns in another order": (_MAKE_COLUMNS, _columns(lambda n: dict(reversed(n.items())))),
    "another grace": (("windowed_by",), _with_grace),
    "a longer history": (("materialized_as",), lambda p, n: (p, {**n, "history": wt.seconds(60)})),
    "a longer life": (("ttl",), lambda p, n: ((p[0] + wt.seconds(5),), n)),
}
"""What is changed in the arguments of a step that has one of these names."""


class Editor:
    """Count the steps by which an app is defined, and change one of them."""

    def __init__(self, step: int = 0, edit: str = "") -> None:
        self.step, self.edit = step, edit
        self.steps, self.changed, self._inside = list[str](), False, False

    def follow(self, patched: pytest.MonkeyPatch) -> None:
        """Take the place of the operators until the patches are undone."""
        topic = type(App("any").topic("any", key="k STRING", value="n INT"))
        for of in (topic, Stream, Table, GroupedStream, WindowedStream, CogroupedStream, GroupedTable):
            for name, operator in list(vars(of).items()):
                if callable(operator) and not name.startswith("_"):
                    patched.setattr(of, name, self._around(operator, f"{of.__name__}.{name}"))

    def _around(self, operator: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(operator)
        def called(on: Any, /, *positional: Any, **named: Any) -> Any:  # some have an argument of that name
            if self._inside:  # an operator that is made of others is one step
                return operator(on, *positional, **named)
            self.steps.append(name)
            self._inside = True
            try:
                return self._edited(operator, on, positional, named) if len(self.steps) == self.step else operator(on, *positional, **named)
            finally:
                self._inside = False

        return called

    def _edited(self, operator: Callable[..., Any], on: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self.edit in ARGUMENTS:
            names, how = ARGUMENTS[self.edit]
            if operator.__name__ not in names:
                raise Unchanged
            positional, named = how(positional, named)
            self.changed = True
            return operator(on, *positional, **named)
        kind, behind = BEHIND[self.edit]
        made = operator(on, *positional, **named)
        if not isinstance(made, kind) or operator.__name__ == "materialized_as":
            raise Unchanged
        self.changed = True
        return behind(made)


def define(table: str, use: str, step: int = 0, edit: str = "") -> tuple[Topology | None, list[str]]:
    """Write the app of a pair with one step of it changed; None where that is refused, or nothing to be changed; and name its steps."""
    editor = Editor(step, edit)
    with pytest.MonkeyPatch.context() as patched:
        editor.follow(patched)
        try:
            made = topology(table, use)
        except Unchanged:
            made = ""
    return (made if isinstance(made, Topology) and editor.changed == bool(edit) else None), editor.steps


def edits(table: str, use: str) -> Iterator[tuple[str, Topology, Topology]]:
    """Give the app of a pair and what it becomes by each edit of each of its steps, by the words for it; each change once."""
    old, steps = define(table, use)
    if old is None:
        return
    seen = {old.fingerprint}
    for number, step in enumerate(steps, 1):
        for edit in (*BEHIND, *ARGUMENTS):
            new, _ = define(table, use, number, edit)
            if new is not None and new.fingerprint not in seen:
                seen.add(new.fingerprint)
                yield f"{table}: {use}: {edit}, at {step} ({number})", old, new
