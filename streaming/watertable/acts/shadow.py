"""Rewind beside the app that runs: a shadow replays, is compared with what readers see, and takes its place by one row, or is given up.

    rewind.apply(store, rewind.plan(store, topology, admin, target, shadow=True), topology.fingerprint, admin)
    job.run(topology, settings, shadow=True)           # up to where the app stands; as often as one likes
    shadow.diff(store, topology).markdown()
    shadow.promote(store, topology, replay)            # replay(goal) runs the shadow up to these offsets

A shadow is an epoch that isn't current: rows of the same changelog by a writer of its own, which no lineage of a reader, a fold, a
publisher or the app's writer holds. To promote it is to begin one more epoch whose parent it is, forked where it has read exactly what
the app has read; the app's writer is asked to wait for that long. So it is one `__commit` row, atomic over all tables, and `undo` takes
it back like any rewind.

A shadow may be of some tables alone: the others, and the offsets, don't move. Then the epoch's parent is the current one, forked at its
end, and begins with one commit, in the same append, of all that the shadow's tables keep: nothing from before it is theirs any more.

The law: whatever dies at whatever point, readers see the old epoch whole or the new one whole, at the same
offsets; and a promote that didn't come to its row has changed nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from watertable import failpoints
from watertable.acts.plans import EMITTING
from watertable.acts.rebuild import commit_at, inside, misfit
from watertable.acts.rewind import check_emits
from watertable.acts.targets import unkept
from watertable.errors import Fenced, RewindRefused
from watertable.plan.plan import TableDef, Topology
from watertable.plan.purity import Purity, purity_of
from watertable.schema import Column, Type, quote
from watertable.sql.spark_sql import comparable
from watertable.store.bases import ROWS_PROPERTY, number_of
from watertable.store.changelog import EPOCH_LINE, table_part
from watertable.store.commits import (  # fmt: skip
    BACK,
    DAYS,
    EMIT,
    JOINED,
    LEFT,
    OF,
    REBUILT,
    UNTIL,
    CommitInfo,
    Head,
    Offsets,
    Position,
    now_after,
)
from watertable.store.reader import Reader, differing
from watertable.store.views import materialise
from watertable.store.writer import WRITER_LINE, Act, shadow_line

if TYPE_CHECKING:
    from watertable.store.deltalog import Snapshot
    from watertable.store.writer import Store

HOLD: Final = 60.0
"""Seconds that the app's writer is asked to wait for the last records of a promote; it goes on by itself after them."""
GONE: Final = timedelta(minutes=1)
"""Time without a commit after which an app for which records wait isn't taken to run."""
SAMPLES: Final = 5
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class ColumnDiff:
    """Say how often a column differs among the changed rows; of a number, by how much the column's sum and the row furthest off do."""

    name: str
    changed: int
    net: str | None = None
    largest: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Show one row that differs, as JSON: its key, the row that readers see, and the shadow's."""

    kind: str
    key: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDiff:
    """Say what would change of one table; `at` is where the live one was read, `note` why it couldn't be at the same offsets, or at all.

    `uncompared` names the columns that weren't compared, since one of the two hasn't them, or has them of another type.
    """

    table: str
    at: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    columns: tuple[ColumnDiff, ...] = ()
    samples: tuple[Sample, ...] = ()
    by_arrival: bool = False
    note: str = ""
    uncompared: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Count the rows that differ."""
        return self.added + self.removed + self.changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Say what a promote would change: the shadow at a position against the app where it had read as much.

    `exact` says that both had read the same records of the topics of both; `missing` is how many offsets the app has read beyond, of those
    that the shadow is to read yet.
    """

    app: str
    shadow: str
    live: str
    exact: bool
    missing: int
    words: str
    old_code: str
    new_code: str
    tables: tuple[TableDiff, ...]

    @property
    def apart(self) -> tuple[str, ...]:
        """Name the tables that differ though they follow from the records alone, and were compared whole."""
        return tuple(t.table for t in self.tables if t.rows and not t.by_arrival and not t.note)

    @property
    def verdict(self) -> str:
        """Say in one line what it comes to."""
        differing = [t.table for t in self.tables if t.rows]
        if self.old_code != self.new_code:
            what = f"{len(differing)} of {len(self.tables)} tables differ" if differing else "the same rows"
            if without := [f"{t.table}.{column}" for t in self.tables for column in t.uncompared]:
                what += f", as far as they could be compared: without {', '.join(without)}"
            return f"other code ({self.old_code} → {self.new_code}): {what}"
        if self.apart and self.exact:
            return f"the same code made other rows of {', '.join(self.apart)}: this is a bug, unless the topics hold other records now"
        if differing:
            return (
                f"the same code; {', '.join(differing)} {'differ' if len(differing) > 1 else 'differs'} by what was compared, or by arrival"
            )
        return "the same code, the same rows"

    def to_json(self) -> str:
        """Write it as JSON; `from_json` reads it."""
        return json.dumps(dataclasses.asdict(self) | {"verdict": self.verdict}, ensure_ascii=False)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote, parsed."""
        tables = tuple(
            TableDiff(
                **t
                | {"columns": tuple(ColumnDiff(**c) for c in t["columns"]), "samples": tuple(Sample(**s) for s in t["samples"])}
                | {"uncompared": tuple(t.get("uncompared", ()))}
            )
            for t in body["tables"]
        )
        names = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in body.items() if name in names} | {"tables": tables})

    def markdown(self) -> str:
        """Write it as Markdown, as Dagster shows it."""
        lines = [
            f"**{self.words}** of `{self.app}`: the shadow at `{self.shadow}` beside `{self.live}`"
            f"{'' if self.exact else ', where the app had read a little less'}. {self.verdict}.",
            "",
            "| table | added | removed | changed | columns |", "|---|--:|--:|--:|---|",
            *(f"| {t.table} | {t.added:,} | {t.removed:,} | {t.changed:,} | {columns_text(t)}{f' {t.note}' if t.note else ''} |"
              for t in self.tables),
        ]  # fmt: skip
        for t in self.tables:
            if t.samples:
                lines += ["", f"`{t.table}`", "", "| | key | now | shadow |", "|---|---|---|---|"]
                lines += [f"| {s.kind} | `{s.key}` | {_code(s.old)} | {_code(s.new)} |" for s in t.samples]
        if self.missing:
            lines += ["", f"The app has read {self.missing:,} records more, which the shadow reads before it is promoted."]
        return "\n".join(lines)


def current(store: Store, head: Head | None = None) -> CommitInfo:
    """Give the row that began the shadow there is; raise `RewindRefused` where there is none."""
    head = head or store.head()
    if head.shadow is None:
        last = next(reversed(head.shadows), None)
        ended = f"; the last, {last.writer!r}, {_ended(head, last)}" if last else ""
        raise RewindRefused(f"{store.app} has no shadow{ended}: `watertable rewind {store.app} --to ... --shadow --apply` begins one")
    return head.shadow


def _ended(head: Head, shadow: CommitInfo) -> str:
    """Say what became of a shadow that is over: whoever promotes it, or gives it up, after a death learns that it is done."""
    became = next((fork.epoch for fork in head.forks if shadow.epoch in (fork.parent, fork.counters.get(JOINED))), None)
    if became is None:
        return "was given up"
    return f"{'was joined' if shadow.of else 'was promoted'}, as epoch {became}"


def emitted(topology: Topology, shadow: CommitInfo, *, emit: bool) -> tuple[str, ...]:
    """Name the output topics that get all that a shadow has made when it is promoted: because that is asked for now, or was when it began.

    Raises `RewindRefused` where it is asked for and there are none.
    """
    if emit:
        check_emits(topology, shadow.of)
    return tuple(sink.topic for sink in topology.sinks) if emit or EMIT in shadow.counters else ()


def goes_first(waiting: int, since: datetime, now: datetime, lag: timedelta) -> bool:
    """Tell whether a shadow lets its app go first, of which so many records wait, and which has committed last at a time.

    It does while the app is later than `lag`, and alive: one that hasn't committed for a minute, though records wait, isn't waited for.

    >>> noon, lag = datetime(2026, 3, 1, 12), timedelta(seconds=5)
    >>> [goes_first(n, noon, noon + timedelta(seconds=s), lag) for n, s in ((900, 4), (900, 6), (0, 6), (900, 61))]
    [False, True, False, False]
    """
    return waiting > 0 and lag < now - since < GONE


def promote(
    store: Store, topology: Topology, replay: Callable[[Offsets | None], None], *, reason: str = "", hold: float = HOLD,
    emit: bool = False,
) -> tuple[Position, Position]:  # fmt: skip
    """Let the shadow take the app's place, with one row over all tables; give where the app was and where it is.

    One of some tables takes the place of those; it is asked of the others that they can go on under the code of both.

    `replay` brings the shadow to these offsets, or with None to where the app stands at the moment. The app's writer, if one runs, waits
    from the last look until the row is there, `hold` seconds at most, and goes on behind it. What was published isn't published again, but
    for what is of several records, or has waited; with `emit`, or where it was begun so, all that it has made is. Raises `RewindRefused`
    where there is no shadow, it's of other code than what is loaded, the app has read nothing since a rewind, or doesn't wait; whatever
    `replay` raises. Nothing is changed then.
    """
    head = store.head()
    shadow = current(store, head)
    if shadow.fingerprint != topology.fingerprint:
        raise RewindRefused(
            f"the shadow of {store.app} is of the code {shadow.fingerprint}, and {topology.fingerprint} is loaded: promote it with its own"
        )
    _last_commit(store, head)  # refused before a replay that would be for nothing; a rewind may still come between
    words = f"promote {shadow.writer}" + (EMITTING if emit and EMIT not in shadow.counters else "") + (f": {reason}" if reason else "")
    if emitted(topology, shadow, emit=emit):
        shadow = dataclasses.replace(shadow, counters={**shadow.counters, EMIT: shadow.epoch})
    replay(None)
    for attempt in range(_TRIES):
        failpoints.hit("rewind.promote.before_hold")
        held = store.hold(words, hold * 2**attempt)  # what is large takes long to be joined
        failpoints.hit("rewind.promote.after_hold")
        try:
            goal = _last_commit(store, held).next
            replay(None if UNTIL in shadow.counters else goal)
            done = _switch(store, topology, held, shadow, words)
        except BaseException:  # let the app go on at once, where it stands; should that fail too, it does so by itself
            with contextlib.suppress(Exception):
                store.hold(f"nothing: {words} was not done", 0)
            raise
        if done is not None:
            failpoints.hit("rewind.promote.after_commit")
            return held.position, done
        replay(None)
    raise RewindRefused(f"{store.app} went on {_TRIES} times while it was asked to wait for its shadow: stop it, and promote then")


def _last_commit(store: Store, head: Head) -> CommitInfo:
    """Give the app's last commit, of whose offsets its shadow takes its place; refuse an app that has none since its rewind."""
    if head.last is None:
        raise RewindRefused(f"{store.app} has read nothing since it was rewound: its shadow can take its place when it has read as much")
    return head.last


def _switch(store: Store, topology: Topology, held: Head, shadow: CommitInfo, words: str) -> Position | None:
    """Begin the epoch whose parent is the shadow, or that takes its tables over; None where the app has gone on meanwhile."""
    part = topology.above(shadow.of) if shadow.of else topology
    becomes: list[Position] = []

    def look(snapshot: Snapshot) -> Act | None:
        head, own = store.changelog.head(snapshot), store.changelog.head(snapshot, epoch=shadow.epoch)
        if head.shadow is None or head.shadow.epoch != shadow.epoch:
            raise RewindRefused(f"the shadow of {store.app} {_ended(head, shadow)}, while it was to be promoted here; this changed nothing")
        if head.generation != held.generation:
            return None
        names = {topic.name for topic in part.topics}
        live, ours = head.last or CommitInfo(), own.last or CommitInfo()
        seq = shadow.counters.get(UNTIL)
        goal = commit_at(store.changelog, snapshot, head, seq).next if seq else live.next
        apart = [f"{t}/{p}: {offset:,}, not {goal[t, p]:,}" for (t, p), offset in ours.next.items()
                 if t in names and goal.get((t, p), offset) != offset]  # fmt: skip
        apart += [f"{t}/{p}: nothing, not {offset:,}" for (t, p), offset in goal.items() if t in names and (t, p) not in ours.next]
        if apart:
            raise RewindRefused(
                f"the shadow of {store.app} hasn't read what the app has read ({'; '.join(apart[:3])}); was the app rewound since? "
                "It can be promoted when the app has read as much again"
            )
        if lost := unkept(store, snapshot, head, own.position, sorted(shadow.of) or [*store.reader.tables]):
            raise RewindRefused(
                f"the shadow of {store.app} has outlived the horizon, so that nothing could be read of what it is: {lost}. Give it up "
                "(--abandon-shadow), and begin another"
            )
        if shadow.of and (grown := {t for t, _ in ours.next.keys() - live.next.keys()} & {t for t, _ in live.next}):
            raise RewindRefused(
                f"{', '.join(sorted(shadow.of))} can't be joined: topic {', '.join(sorted(grown))} was given partitions, of which the "
                f"other tables of {store.app} have read nothing. Give this up (--abandon-shadow), and rewind all of it: --to earliest"
            )
        info = CommitInfo(
            kind="epoch", epoch=head.next_epoch, seq=own.position.seq, generation=head.generation + 1, writer=words,
            commit_time=now_after(max(live.commit_time, ours.commit_time)), fingerprint=topology.fingerprint, parent=shadow.epoch,
            fork=own.position.seq, next=shadow.next if ours.epoch != shadow.epoch else {},
            counters={BACK: head.position.epoch, LEFT: head.position.seq} | ({EMIT: shadow.epoch} if EMIT in shadow.counters else {}),
        )  # fmt: skip
        joins = rows = None
        if shadow.of:
            if wrong := misfit(store, topology, head, shadow.of, whole=shadow.days is None):
                raise RewindRefused(f"{', '.join(sorted(shadow.of))} can't be joined: {wrong}")
            if others := _otherwise(store, part, head, own, shadow):
                (they, are), them = ("it", "is") if len(shadow.of) == 1 else ("they", "are"), "it" if len(others) == 1 else "them"
                raise RewindRefused(
                    f"{', '.join(sorted(shadow.of))} can't be joined: {they} {are} computed from {', '.join(others)}, of which the app has "
                    "other rows than its records make now (it began later, keeps what older code made, or depends on arrival): give this "
                    f"up (--abandon-shadow), and rebuild {them} as well"
                )
            info, joins, rows = _joining(store, part, head, own, shadow, info)
        becomes[:] = [Position(store.app, info.epoch, joins.seq if joins else info.seq)]
        failpoints.hit("rewind.promote.before_commit")
        also = {EPOCH_LINE: info.epoch, shadow_line(shadow.epoch): number_of(own.generation + 1, own.position.seq)}
        note = f"epoch {becomes[0]} generation {info.generation} {words}"
        return Act(info, WRITER_LINE, note, also, point="rewind.join" if shadow.of else "", joins=joins, rows=rows)

    try:
        done = store.act(look)
    except Fenced:
        return None
    return becomes[0] if done is not None else None


def _otherwise(store: Store, part: Topology, head: Head, own: Head, shadow: CommitInfo) -> list[str]:
    """Name the tables above those that are joined of which the app has other rows than the shadow.

    What is computed from a table's changes goes on from the rows that it knew. Days are forked with what the app has.
    """
    above = [table.name for table in part.tables if table.name not in shadow.of] if shadow.days is None else []
    return [name for name in above if not store.reader.changes(name, head.position, own.position).isEmpty()]


def _joining(
    store: Store, part: Topology, head: Head, own: Head, shadow: CommitInfo, info: CommitInfo
) -> tuple[CommitInfo, CommitInfo, DataFrame]:
    """Give the row of the epoch that takes a shadow's tables over, and its first commit, of all that they keep: its row, and its rows.

    What joins keep beside them comes along; it is the same function of the same records. Where it is of days, the windows of all others are
    the app's, as they are, and so is what joins keep. Topics that the app hasn't read are the shadow's.
    """
    live, ours = head.last or CommitInfo(), own.last or CommitInfo()
    tables = (*(table for table in part.tables if table.name in shadow.of), *(() if shadow.days else part.buffers))
    reader = Reader(store.spark, store.warehouse, store.app, tables)
    view = reader.view(at=own.position)
    if shadow.days is None:
        parts = [table_part(table, materialise(view.whole(table))) for table in tables]
    else:
        there, chosen = reader.view(at=head.position), inside(shadow.days)
        parts = [
            table_part(table, materialise(_changes(there.states(table).where(f"NOT ({chosen})"), view.states(table).where(chosen))))
            for table in tables
        ]
    counters = {BACK: head.position.epoch, LEFT: head.position.seq, JOINED: shadow.epoch, **{f"{OF}{table.name}": 1 for table in tables}}
    counters |= {name: shadow.counters[name] for name in DAYS if name in shadow.counters}
    fork = head.position.seq
    begins = dataclasses.replace(
        info, seq=fork, parent=head.position.epoch, fork=fork, next={}, counters=counters, format=REBUILT
    )  # fmt: skip
    more = [p for p in ours.next if p not in live.next]
    offsets = {**live.next, **{p: ours.next[p] for p in more}}
    begin = {**offsets, **store.reader.first_offsets(view.snapshot, own.lineage, more)}  # which nothing else on the app's lineage says
    commit = dataclasses.replace(
        info, kind="batch", seq=fork + 1, parent=None, fork=None, suite_hash=live.suite_hash, begin=begin, next=offsets,
        stream_times={**live.stream_times, **{p: ours.stream_times.get(p) for p in more}}, topic_ids={**ours.topic_ids, **live.topic_ids},
        counters={"records": 0},
    )  # fmt: skip
    return begins, commit, store.changelog.append_rows(parts, commit)


def _changes(*states: DataFrame) -> DataFrame:
    """Write absolute states, of different keys, as changes."""
    wanted = ("key", "state", "CAST(NULL AS TIMESTAMP) AS st")
    return reduce(DataFrame.unionByName, (frame.selectExpr(*wanted) for frame in states))


def abandon(store: Store, reason: str = "", epoch: int | None = None) -> Position:
    """Give the shadow up; give the position that it had reached. Its writer, if one runs, is fenced; nobody else notices.

    Raises `RewindRefused` where there is none, or where it isn't the one of the epoch that is meant.
    """

    def look(snapshot: Snapshot) -> Act:
        head = store.changelog.head(snapshot)
        shadow = current(store, head)
        if epoch not in (None, shadow.epoch):
            raise RewindRefused(f"the shadow {store.app}@{epoch} is over; there is another, {shadow.writer!r}")
        own = store.changelog.head(snapshot, epoch=shadow.epoch)
        info = CommitInfo(
            kind="abandoned", epoch=shadow.epoch, seq=own.position.seq, generation=own.generation + 1, writer=reason,
            commit_time=now_after(own.last.commit_time if own.last else None), fingerprint=shadow.fingerprint,
        )  # fmt: skip
        failpoints.hit("rewind.abandon.before_commit")
        note = f"abandoned beside {head.position} {own.position} {reason}"
        return Act(info, shadow_line(shadow.epoch), note, {EPOCH_LINE: shadow.epoch})

    done = store.act(look)
    assert done is not None
    failpoints.hit("rewind.abandon.after_commit")
    return Position(store.app, done[0].info.epoch, done[0].info.seq)


def diff(store: Store, topology: Topology, samples: int = SAMPLES) -> Diff:
    """Compare the shadow with what readers see of the app, table by table, where both have read the same records.

    Where the app has no commit at the shadow's offsets, the newest one before them is taken, and the diff says so. Of a table that the
    app's own code makes otherwise, its folded Delta table is read as it is. Raises `RewindRefused` where there is no shadow, or it has read
    nothing that the app had read.
    """
    snapshot = store.changelog.snapshot()
    head = store.changelog.head(snapshot)
    shadow = current(store, head)
    made = topology.above(shadow.of) if shadow.of else topology
    own = store.changelog.head(snapshot, epoch=shadow.epoch)
    names = {topic.name for topic in made.topics}
    read = {p: offset for p, offset in (own.last.next if own.last else {}).items() if p[0] in names}
    there = head.last.next if head.last else {}
    shared = {p: offset for p, offset in read.items() if p in there}
    of_both = {p: offset for p, offset in read.items() if p[0] in {topic for topic, _ in there}}  # partitions are given to a topic
    here = store.changelog.newest(snapshot, head.lineage, 0, head.position.seq, lambda info: info.is_within(shared))
    if not shared or here is None:
        raise RewindRefused(
            f"the shadow {own.position} has read less than the oldest commit of {store.app}: there is nothing to compare it with"
        )
    live = Position(store.app, head.position.epoch, here.seq)
    of = [table for table in topology.tables if not shadow.of or table.name in shadow.of]
    tables = [_table_diff(store, topology, table, live, own.position, here, head, samples) for table in of]
    unread = 0 if shadow.days else sum(max(0, there[p] - offset) for p, offset in shared.items())
    return Diff(
        app=store.app, shadow=str(own.position), live=str(live), exact={p: here.next.get(p) for p in of_both} == of_both,
        missing=unread, words=shadow.writer, old_code=here.fingerprint, new_code=shadow.fingerprint, tables=tuple(tables),
    )  # fmt: skip


def promised(store: Store, tables: Sequence[str]) -> dict[str, DataFrame]:
    """Give the rows that tables of the shadow would have if it were promoted as it is: of days alone, the app's in all other windows.

    Of those the shadow itself has what it needs to make the days, and no more: some windows aren't there, others are half full.
    """
    head = store.head()
    row = current(store, head)
    made = store.reader.read_all(tables, store.changelog.head(epoch=row.epoch).position)
    if row.days is None:
        return made
    there, chosen = store.reader.read_all(tables, head.position), inside(row.days, prefix="")
    return {name: there[name].where(f"NOT ({chosen})").unionByName(made[name].where(chosen)) for name in made}


def columns_text(found: TableDiff) -> str:
    """Say which columns differ, and by how much."""
    said = []
    for column in found.columns:
        by = [f"sum {column.net}" if column.net else "", f"at most {column.largest}" if column.largest and column.changed else ""]
        if column.changed or column.net:
            said.append(f"{column.name} in {column.changed:,}" + (f" ({', '.join(filter(None, by))})" if any(by) else ""))
    return "; ".join(said)


def _table_diff(
    store: Store, topology: Topology, table: TableDef, live: Position, own: Position, here: CommitInfo, head: Head, samples: int
) -> TableDiff:
    reader, by_arrival = store.reader, purity_of(table.node) is Purity.ARRIVAL
    base = reader.folded(table.name)
    shown = base.snapshot
    folded = None if shown is None else shown.property(ROWS_PROPERTY)
    if here.fingerprint == topology.fingerprint or folded == table.fingerprint:
        frame = reader.changes(table.name, live, own)
        return _counted(table.name, table.value.columns, frame, samples, at=str(live), by_arrival=by_arrival)
    if shown is None:
        made = reader.read(table.name, own).count()
        return TableDiff(table=table.name, at="", added=made, by_arrival=by_arrival, note="new: the app has folded no such table")
    at = Position(store.app, base.epoch, base.seq)
    were = shown.schema
    if missing := [f"{c.name} {c.type.sql()}" for c in table.key if c.name not in were or were[c.name] != c.type]:
        note = f"not compared: its key has {', '.join(missing)} now"
        return TableDiff(table=table.name, at=str(at), by_arrival=by_arrival, note=note, uncompared=table.columns.names)
    values = [c for c in table.value if c.name in were and were[c.name] == c.type]
    key = ", ".join(f"'{n}', {quote(n)}" for n in table.key.names)
    value = ", ".join(f"'{c.name}', {quote(c.name)}" for c in values) or "'_', 0"
    old, now = (
        frame.selectExpr(f"named_struct({key}) AS key", f"named_struct({value}) AS {name}")
        for frame, name in ((shown.frame(), "old"), (reader.read(table.name, own), "new"))
    )
    new = [c.name for c in table.value if c.name not in were]
    changed = [c for c in table.value if c not in values and c.name in were]
    other = [f"{c.name} ({were[c.name].sql()}, now {c.type.sql()})" for c in changed]
    gone = [n for n in were.names if n not in (*table.key.names, *table.value.names)]
    said = {"new": new, "of another type, not compared": other, "no more": gone}
    note = "; ".join([f"as folded at {at}, by other code", *(f"{what}: {', '.join(names)}" for what, names in said.items() if names)])
    return _counted(
        table.name, values, differing(old, now, values), samples, at=str(at), by_arrival=by_arrival, note=note,
        uncompared=(*new, *(c.name for c in changed), *gone),
    )  # fmt: skip


def _counted(
    name: str, columns: Sequence[Column], rows: DataFrame, samples: int, *, at: str, by_arrival: bool, note: str = "",
    uncompared: tuple[str, ...] = (),
) -> TableDiff:  # fmt: skip
    """Count rows that differ (`key`, `old`, `new`), column by column, and take the first of each kind; two Spark jobs."""
    rows = materialise(rows)
    wanted = ["count_if(old IS NULL) AS added", "count_if(new IS NULL) AS removed", "count(*) AS differing"]
    for n, column in enumerate(columns):
        old, new, kind = f"old.{quote(column.name)}", f"new.{quote(column.name)}", _measured(column.type)
        was, now = comparable(old, column.type), comparable(new, column.type)
        wanted.append(f"count_if(old IS NOT NULL AND new IS NOT NULL AND NOT ({was} <=> {now})) AS c{n}")
        if kind is not None:
            a, b, none = f"CAST({old} AS {kind})", f"CAST({new} AS {kind})", f"CAST(0 AS {kind})"
            wanted.append(f"try_sum(try_subtract(coalesce({b}, {none}), coalesce({a}, {none}))) AS net{n}")
            wanted.append(f"max(abs(try_subtract({b}, {a}))) AS most{n}")
    counts = rows.selectExpr(*wanted).head()
    assert counts is not None
    total = counts.asDict()
    kinds = "CASE WHEN old IS NULL THEN 'added' WHEN new IS NULL THEN 'removed' ELSE 'changed' END AS kind"
    first = rows.selectExpr(kinds, "key", "old", "new").withColumn("n", F.row_number().over(Window.partitionBy("kind").orderBy("key")))
    texts = [f"to_json({side}, map('ignoreNullFields', 'false')) AS {side}" for side in ("key", "old", "new")]
    shown = first.where(f"n <= {int(samples)}").orderBy("kind", "n").selectExpr("kind", *texts) if total["differing"] else None
    return TableDiff(
        table=name, at=at, added=total["added"], removed=total["removed"], changed=total["differing"] - total["added"] - total["removed"],
        columns=tuple(
            ColumnDiff(column.name, total[f"c{n}"], _number(total.get(f"net{n}"), "+"), _number(total.get(f"most{n}")))
            for n, column in enumerate(columns)
        ),
        samples=tuple(Sample(row["kind"], row["key"], row["old"], row["new"]) for row in shown.collect()) if shown is not None else (),
        by_arrival=by_arrival, note=note, uncompared=uncompared,
    )  # fmt: skip


def _number(value: Decimal | float | None, sign: str = "") -> str | None:
    """Write a difference; None where there is none."""
    return None if not value else f"{value:{sign},}" if isinstance(value, Decimal) else f"{value:{sign},.6g}"


def _measured(kind: Type) -> str | None:
    """Name the type to measure a difference in; None for what is no number."""
    if kind.is_integral:
        return "DECIMAL(38,0)"
    if kind.kind == "decimal":
        return f"DECIMAL(38,{kind.scale})"
    return "DOUBLE" if kind.kind in ("float", "double") else None


def _code(text: str | None) -> str:
    return "" if text is None else f"`{text}`"
