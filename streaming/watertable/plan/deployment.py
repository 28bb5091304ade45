"""Classify new code against the code that made what an app keeps: what rolls in, what is new, and what would be wrong.

    found = classify(old, new)               # `old` is a topology, or the outline of one that was recorded
    found.kind, [(c.name, c.kind, c.reason) for c in found.changes]

A table is its state, folded from records, and the rows that are shown of it. Where other code folds the same state, it goes on under the
new code, and other rows are computed from the kept states. Where it would fold another one, rows from before would be the old code's and
rows from after the new one's: no function of the records at all. That is *breaking*; a rewind to earliest makes it whole. No Spark, no I/O.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Self

from watertable.errors import FormatError
from watertable.plan.fingerprints import DIALECT, canonical
from watertable.plan.forms import bare, field_of, fields_of, has_parent, head_of, is_list
from watertable.plan.legible import functions, legible
from watertable.plan.nodes import Format, TableAggregate
from watertable.plan.plan import TableDef, Topology, buffers_above, leaves_of
from watertable.plan.rules import OnFail
from watertable.plan.windows import words
from watertable.schema import Schema

_SHOWN: Final = ("TableFilter", "TableMapValues")
"""The nodes that make rows of a state and change nothing of it."""
_WHOLE: Final = ("Latest", "Newest", "Stored", "Versioned")
"""The nodes whose states are whole rows: one that a filter refuses is forgotten, as later ones replace it."""
_DURATIONS: Final = frozenset({"size", "advance", "grace", "gap", "difference", "before", "after", "history", "keeps"})
_WAITS: Final = "what waits above it (for a partner, for its time, or for its window to close)"


class Kind(StrEnum):
    """Say what new code means for a table, an output topic, or an app: which is as bad as the worst of it."""

    SAME = "same"
    REMOVED = "removed"
    ADDITIVE = "additive"
    UNFILLED = "unfilled"
    BREAKING = "breaking"


@dataclass(frozen=True, slots=True)
class Outline:
    """Hold what is remembered of a plan, so that a later one can be compared with it: names, canonical forms, columns; no code."""

    app: str
    fingerprint: str
    dialect: str
    tables: Mapping[str, OutlinedTable]
    sinks: Mapping[str, object]
    buffers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By output topic: the buffers that feed it, of those that any do."""
    gone: Mapping[str, Sequence[OutlinedTable]] = field(default_factory=dict)
    """The tables that the app kept before, and keeps no more: what they had is still there. After rewinds there may be several."""

    @classmethod
    def of(cls, topology: Topology, before: Outline | None = None) -> Self:
        """Outline a topology that comes after another one, if it does."""
        tables = {t.name: OutlinedTable.of(t) for t in topology.tables}
        had = {} if before is None else {**before.gone, **{name: [table] for name, table in before.tables.items()}}
        return cls(
            topology.app, topology.fingerprint, DIALECT, tables, {s.topic: canonical(s) for s in topology.sinks},
            topology.buffers_of_sinks, {name: found for name, found in had.items() if name not in tables},
        )  # fmt: skip

    def also_after(self, known: Outline) -> Self:
        """Add what the same code came after elsewhere: an undo leads back to where other code was before it."""
        both = {name: [*known.gone.get(name, ()), *self.gone.get(name, ())] for name in {**known.gone, **self.gone}}
        return dataclasses.replace(
            self, gone={name: [t for n, t in enumerate(found) if t not in found[:n]] for name, found in both.items()}
        )

    def to_json(self) -> str:
        """Write it as JSON; `from_json` reads it."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; raise `FormatError` for anything else."""
        try:
            body: dict[str, Any] = json.loads(text)
            tables = {name: OutlinedTable(**table) for name, table in body.get("tables", {}).items()}
            gone = {
                name: [OutlinedTable(**table) for table in ([found] if isinstance(found, dict) else found)]  # an older release kept one
                for name, found in body.get("gone", {}).items()
            }
            return cls(**body | {"tables": tables, "gone": gone})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(f"this is no outline of a plan: {type(error).__name__}: {error}") from None

    def packed(self) -> str:
        """Write it in letters and digits, as a property of a Delta table takes it; `unpack` reads it."""
        return base64.urlsafe_b64encode(zlib.compress(self.to_json().encode(), 9)).decode()

    @classmethod
    def unpack(cls, packed: str) -> Self:
        """Read what `packed` wrote; raise `FormatError` for anything else."""
        try:
            return cls.from_json(zlib.decompress(base64.urlsafe_b64decode(packed)).decode())
        except (ValueError, zlib.error) as error:
            raise FormatError(f"this is no outline of a plan: {type(error).__name__}: {error}") from None


@dataclass(frozen=True, slots=True)
class OutlinedTable:
    """Hold what is remembered of a table: what computes it, how its state is laid out, its columns as DDL, and the buffers above it."""

    fingerprint: str
    state_version: str
    key: str
    value: str
    node: object
    buffers: Sequence[str] = ()

    @classmethod
    def of(cls, table: TableDef) -> Self:
        """Outline a table."""
        buffers = [buffer.name for buffer in buffers_above(table.node)]
        return cls(table.fingerprint, table.state_version, table.key.sql(), table.value.sql(), canonical(table.node), buffers)


@dataclass(frozen=True, slots=True)
class Change:
    """Say what new code means for one table or output topic, and why."""

    name: str
    kind: Kind
    reason: str
    is_topic: bool = False


@dataclass(frozen=True, slots=True)
class Deployment:
    """Say what new code means for an app: part by part, those that are no more at the end."""

    app: str
    old: str
    new: str
    changes: tuple[Change, ...]

    @property
    def kind(self) -> Kind:
        """Give the worst of its changes; what is removed alone asks for nothing, and counts as the same."""
        order = list(Kind)
        worst = max((c.kind for c in self.changes), key=order.index, default=Kind.SAME)
        return Kind.SAME if worst is Kind.REMOVED else worst

    def of(self, kind: Kind) -> tuple[Change, ...]:
        """List the changes of one kind."""
        return tuple(c for c in self.changes if c.kind is kind)

    @property
    def words(self) -> str:
        """Say what stands in the way of going on, and the ways out; "" where nothing does."""
        breaking, unfilled = self.of(Kind.BREAKING), self.of(Kind.UNFILLED)
        if not breaking and not unfilled:
            return ""
        if not breaking:
            return (
                f"the code of {self.app} has what can't begin in the middle: {_reasons(unfilled)}. "
                f"`watertable rewind {self.app} {self.rewind} --apply` fills it from the beginning, beside the others, and brings this "
                "code in; or load the code from before"
            )
        alone = f", or, with `{self.alone}` instead, those alone beside the others" if self.alone else ""
        return (
            f"the code of {self.app} has changed what {', '.join(c.name for c in breaking)} would hold: "
            f"{_reasons(breaking)}. Rows from before would be the old code's. "
            f"`watertable rewind {self.app} --to earliest --apply` makes all tables anew{alone}; to keep what the older code made, rewind "
            "to the newest commit, with --keep-old-code-before; or load the code from before. Where this is that code, `watertable undo "
            f"{self.app}` takes back what brought the other in"
        )

    @property
    def rewind(self) -> str | None:
        """Give the rewind that makes all tables whole under the new code, as the command takes it; None where none is needed.

        New tables are made from history beside the others, which stay as they are.
        """
        if self.of(Kind.BREAKING):
            return "--to earliest"
        return self._tables(Kind.ADDITIVE, Kind.UNFILLED) or None

    @property
    def alone(self) -> str:
        """Give what makes whole beside the tables that go on, as the command takes it; "" where none does, or an output doesn't."""
        goes_on = any(not c.is_topic for c in self.of(Kind.SAME))
        return (
            self._tables(Kind.ADDITIVE, Kind.UNFILLED, Kind.BREAKING)
            if goes_on and not any(c.is_topic for c in self.of(Kind.BREAKING))
            else ""
        )

    def _tables(self, *kinds: Kind) -> str:
        return " ".join(f"--table {c.name}" for c in self.changes if c.kind in kinds and not c.is_topic)


def classify(old: Topology | Outline, new: Topology) -> Deployment:
    """Compare the code that an app runs, or ran, with the code that it shall run: table by table, then its output topics.

    `same`: the state goes on under the new code from the next commit on. `additive`: new; it holds what comes after, and all of it once
    it is rebuilt. `unfilled`: new, and it can't hold what comes after alone; it has to be rebuilt first. `breaking`: its state would be
    neither the old code's nor the new one's. `removed`: kept no more.
    """
    before = Outline.of(old) if isinstance(old, Topology) else old
    after = Outline.of(new)
    tables = [_filled(_table(name, before, after), before, new) for name in after.tables]
    tables += [_table(name, before, after) for name in before.tables if name not in after.tables]
    topics = [_topic(name, before, after) for name in (*after.sinks, *(n for n in before.sinks if n not in after.sinks))]
    return Deployment(new.app, before.fingerprint, after.fingerprint, (*tables, *topics))


def _table(name: str, before: Outline, after: Outline) -> Change:
    old, new = before.tables.get(name), after.tables.get(name)
    if new is None:
        return Change(name, Kind.REMOVED, "kept no more: its Delta table stays as it is")
    if old is not None:
        return _compared(name, old, new, before, after)
    if name not in before.gone:
        return Change(name, Kind.ADDITIVE, "a new table: it holds what comes after, and all of it once it is rebuilt (rewind --table)")
    all_found = [_compared(name, table, new, before, after) for table in before.gone[name]]
    lacks = "kept again: it lacks what came meanwhile, until it is rebuilt (rewind --table)"
    return next((found for found in all_found if found.kind is not Kind.SAME), Change(name, Kind.ADDITIVE, lacks))


def _filled(change: Change, before: Outline, new: Topology) -> Change:
    """Say of a new table whether it can hold what comes after: where rows of others leave and enter groups, those of now only leave."""
    if change.kind is not Kind.ADDITIVE:
        return change
    groups = [leaf.parent.table for leaf in leaves_of(new.table(change.name).root) if isinstance(leaf, TableAggregate)]
    had = [table for table in groups if table in before.tables or table in before.gone]
    if not had:
        return change
    return Change(
        change.name, Kind.UNFILLED,
        f"a new table of the rows of {', '.join(had)}: those of now would leave groups that they had never entered"
    )  # fmt: skip


def _compared(name: str, old: OutlinedTable, new: OutlinedTable, before: Outline, after: Outline) -> Change:
    """Say whether what a table kept goes on under the new code."""
    if before.dialect != after.dialect:
        return Change(name, Kind.BREAKING, f"expressions mean what they do in {after.dialect}, and meant what they did in {before.dialect}")
    if old.fingerprint == new.fingerprint:
        return Change(name, Kind.SAME, "unchanged")
    if old.key != new.key:
        return Change(name, Kind.BREAKING, f"its key was ({_plain(old.key)}) and is ({_plain(new.key)})")
    was, now = _state(old.node), _state(new.node)
    now = _with_topics_of(was, now)
    if was != now:
        return Change(name, Kind.BREAKING, _difference(was, now) or "what computes its state differs")
    if old.state_version != new.state_version:
        return Change(name, Kind.BREAKING, f"what it keeps is laid out otherwise: columns ({_plain(old.value)}) and ({_plain(new.value)})")
    if set(new.buffers) - set(old.buffers):
        return Change(name, Kind.BREAKING, f"{_WAITS} keeps other columns of its records")
    if _hides(old.node) != _hides(new.node):
        return Change(
            name, Kind.BREAKING, "a filter hides rows now, or none does any more: the states of hidden rows have a place of their own"
        )
    if head_of(_root(old.node)) in _WHOLE and not _refuses_no_less(old.node, new.node):
        return Change(name, Kind.BREAKING, "another filter would show rows that the one before refused: those were not kept")
    but = _but(old.node, new.node)
    if old.value != new.value:
        return Change(name, Kind.SAME, f"the same state, other columns shown of it: {_columns(old.value, new.value)}{but}")
    if _rows(old.node) != _rows(new.node):
        return Change(name, Kind.SAME, f"the same state, other rows shown of it{but}")
    return Change(name, Kind.SAME, f"the same state: what changed above it changes no record that it counts{but}")


def _topic(name: str, before: Outline, after: Outline) -> Change:
    if name not in before.sinks:
        return Change(name, Kind.ADDITIVE, "a new output: it publishes what comes after", is_topic=True)
    if name not in after.sinks:
        return Change(name, Kind.REMOVED, "published no more", is_topic=True)
    was, now = bare(before.sinks[name]), bare(after.sinks[name])
    differs = _difference(was, now) or "it differs"
    had, has = (set(outline.buffers.get(name, ())) for outline in (before, after))
    if had - has and has - had:
        return Change(name, Kind.BREAKING, f"{_WAITS} is of other code, and would be left behind: {differs}", is_topic=True)
    but = _but(before.sinks[name], after.sinks[name])
    says = f"unchanged{but}" if was == now else f"publishes by other code from the next commit on: {differs}"
    return Change(name, Kind.SAME, says, is_topic=True)


def _state(node: object) -> object:
    """Cut a table's canonical form down to what decides its state."""
    return bare(_root(node))


def _root(node: object) -> object:
    while head_of(node) in _SHOWN:
        node = field_of(node, "parent")
    return node


def _rows(node: object) -> list[object]:
    """List the steps from a table's state to its rows, in their order."""
    shown = list[object]()
    while head_of(node) in _SHOWN:
        shown.append([head_of(node), *(part for part in fields_of(node) if part[0] != "parent")])
        node = field_of(node, "parent")
    return shown[::-1]


def _hides(node: object) -> bool:
    """Tell whether a filter may hide rows whose state goes on; where a state is a whole row, none does."""
    return head_of(_root(node)) not in _WHOLE and any(head_of(step) == "TableFilter" for step in _rows(node))


def _refuses_no_less(old: object, new: object) -> bool:
    """Tell whether new code refuses all rows that the old one did: it has the steps up to the old one's last filter."""
    steps = _rows(old)
    while steps and head_of(steps[-1]) != "TableFilter":
        steps.pop()
    return _rows(new)[: len(steps)] == steps


def _with_topics_of(old: object, new: object) -> object:
    """Put topics of the old form into the new one where they were only given columns.

    A record that they can be read in says then what it said before; whether the table keeps the new columns, the layout of its state shows.
    """
    had = {field_of(topic, "name"): topic for topic in _topics(old)}

    def put(form: object) -> object:
        if not is_list(form):
            return form
        if head_of(form) == "Topic" and (topic := had.get(field_of(form, "name"))) is not None and _only_more_columns(topic, form):
            return topic
        return [put(part) for part in form]

    return put(new)


def _topics(form: object) -> Iterator[object]:
    if head_of(form) == "Topic":
        yield form
    elif is_list(form):
        for part in form:
            yield from _topics(part)


def _but(old: object, new: object) -> str:
    """Say which records go to quarantine from here on, or no longer, where none of the others is changed; "" where that is none.

    What can't be read as a new column is no record any more; nor is, below a rule, what its condition fails on, even if it only warns.
    """
    had, found = ({str(field_of(topic, "name")): topic for topic in _topics(form)} for form in (old, new))
    more = {topic: sorted(_columns_of(form) - _columns_of(had.get(topic, form))) for topic, form in found.items()}
    refused = [f"what can't be read as {', '.join(columns)} of topic {topic}" for topic, columns in more.items() if columns]
    ruled, rules = (list(_warnings(form)) for form in (old, new))
    refused += dict.fromkeys(f"what the condition of the rule {rule[0]} fails on" for rule in rules if rule not in ruled)
    gone = dict.fromkeys(f"what the condition of the rule {rule[0]} failed on" for rule in ruled if rule not in rules)
    return "".join(
        f"; but from here on {' and '.join(some)} goes {where}" for some, where in ((refused, "to quarantine"), (gone, "on")) if some
    )


def _columns_of(topic: object) -> set[str]:
    headers: Any = next((part[1] for part in fields_of(topic) if part[0] == "headers"), [])
    return {*Schema.parse(str(field_of(topic, "value"))).names, *(str(field_of(field_of(header, "column"), "name")) for header in headers)}


def _warnings(form: object) -> Iterator[tuple[object, object]]:
    """List the rules above that only warn: by name, with their conditions."""
    if head_of(form) == "Rule" and field_of(form, "on_fail") == OnFail.WARN:
        yield field_of(form, "name"), field_of(form, "condition")
    elif is_list(form):
        for part in form:
            yield from _warnings(part)


def _difference(old: object, new: object, where: str = "it") -> str:
    """Name the first difference between two canonical forms, sources first; "" where there is none."""
    if old == new:
        return ""
    if head_of(old) == head_of(new) == "expr" or not (is_list(old) and is_list(new)):
        if isinstance(old, str) and isinstance(new, str) and "`" in old and "`" in new:  # columns
            return f"of {where}, {_columns(old, new)}"
        was, now = _text(old), _text(new)
        if was == now:  # calling another function of the user's, or of other types
            calls = zip(*(functions(form[1]) if is_list(form) else [] for form in (old, new)), strict=False)
            if changed := dict.fromkeys(mine for (mine, by), (_, now_by) in calls if by != now_by):
                return f"{where}: what {', '.join(changed)} computes has changed"
            was, now = (f"`{_plain(form[1].partition(':')[2])}`" for form in (old, new) if is_list(form))
        return f"{where} was {was} and is {now}"
    if head_of(old) and head_of(old) == head_of(new):
        named = [part[1] for part in fields_of(new) if part[0] == "name"]
        of = f"{'topic ' if head_of(new) == 'Topic' else ''}{named[0]}" if named else f"the {_words(head_of(new))}"
        pairs = ((a, b, f"the {name.replace('_', ' ')} of {of}") for name, a, b in _side_by_side(old, new))
        return next((found for a, b, part in pairs if (found := _difference(a, b, part))), "")
    if head_of(old) and head_of(new):
        if _is_above(old, new):
            return f"{_one(new)} was put in"
        if _is_above(new, old):
            return f"the {_words(head_of(old))} was taken out"
        return f"{where} was {_one(old)} and is {_one(new)}"
    assert is_list(old)
    assert is_list(new)
    if len(old) == len(new):
        return next((found for a, b in zip(old, new, strict=True) if (found := _difference(a, b, where))), "")
    return f"{where} were {_names(old)} and are {_names(new)}"


def _only_more_columns(old: object, new: object) -> bool:
    """Tell whether a topic was only given columns: what can be read still says what it said, and what is made of the others shows."""
    changed = {name: (a, b) for name, a, b in _side_by_side(old, new) if a != b}
    if not changed.keys() <= {"value", "headers"} or ("value" in changed and field_of(new, "value_format") != Format.JSON):
        return False
    named, names = changed.get("headers", ([], []))
    had, has = (set(Schema.parse(str(field_of(form, "value")))) for form in (old, new))
    return {(c.name, c.type) for c in had} <= {(c.name, c.type) for c in has} and all(header in names for header in named)


def _is_above(form: object, node: object) -> bool:
    """Tell whether a form is one of those that feed a node."""
    while has_parent(node):
        node = field_of(node, "parent")
        if node == form:
            return True
    return False


def _side_by_side(old: object, new: object) -> Iterator[tuple[str, Any, Any]]:
    """Give the parts of two forms of a kind by their names; one that isn't written is at its default, and that is empty."""
    mine, theirs = ({name: _lasting(form, name, part) for name, part in fields_of(form)} for form in (old, new))
    yield from ((name, mine.get(name, []), theirs.get(name, [])) for name in mine | theirs)


def _lasting(form: object, name: str, part: object) -> object:
    """Write a duration, which forms count in microseconds, as people do: a lifetime's gap is one less than what they have said."""
    if name not in _DURATIONS or not isinstance(part, int):
        return part
    return words(timedelta(microseconds=part + (head_of(form) == "Lifetimes")))


def _words(head: str) -> str:
    """Write a node's name as people read it: FlatMapValues is a flat map values."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in head).strip()


def _one(form: object) -> str:
    named = _words(head_of(form))
    return f"{'an' if named[0] in 'aeiou' else 'a'} {named}"


def _text(form: object) -> str:
    match form:
        case None:
            return "nothing"
        case str():
            return f"({_plain(form)})" if "`" in form else form or "nothing"
        case _ if head_of(form) == "expr" and is_list(form):
            return f"`{legible(str(form[1]))}`"
        case _ if head_of(form):
            return _one(form)
        case _:
            return json.dumps(form)


def _names(forms: Sequence[object]) -> str:
    """Name the parts of a list: aggregates by their names, columns by theirs."""
    found = []
    for form in forms:
        if any(part[0] == "name" for part in fields_of(form)):
            found.append(str(field_of(form, "name")))
        elif is_list(form) and form and isinstance(form[0], str) and not head_of(form):
            found.append(form[0])
        else:
            found.append(_text(form))
    return ", ".join(found) or "none"


def column_changes(*ddl: tuple[str, str]) -> list[tuple[str, str | None, str | None]]:
    """List the columns that come, go, or change their type, from the first of each pair of DDL to the second: name, type then, type now.

    >>> column_changes(("sku STRING, qty INT", "qty BIGINT, at TIMESTAMP"))
    [('at', None, 'TIMESTAMP'), ('sku', 'STRING', None), ('qty', 'INT', 'BIGINT')]
    """
    had, has = ({c.name: c.type.sql() for pair in ddl for c in Schema.parse(pair[side])} for side in (0, 1))
    changed = [(name, had.get(name), has.get(name)) for name in (*has, *(n for n in had if n not in has)) if had.get(name) != has.get(name)]
    return sorted(changed, key=lambda column: (column[1] is not None, column[2] is not None))


def _reasons(changes: Sequence[Change]) -> str:
    """Write why tables can't go on, each reason once."""
    of: dict[str, list[str]] = {}
    for change in changes:
        of.setdefault(change.reason, []).append(change.name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in of.items())


def _columns(old: str, new: str) -> str:
    said = [
        f"{name} is new" if was is None else f"{name} is gone" if now is None else f"{name} was {was} and is {now}"
        for name, was, now in column_changes((old, new))
    ]
    return ", ".join(said) or "in another order"


def _plain(ddl: str) -> str:
    return ddl.replace("`", "")
