"""Say of which tables a rebuild is, and how much of them: what can be made anew by itself, and from where to where.

A table is rebuilt with all that is computed from it. Windowed ones may be rebuilt for some days alone: the windows that start on them.
Those need the records from the first commit before any partition had reached the first day on, as what enters a window is no earlier than
it in stream time; and up to where every partition has passed the last window with its grace. The law: what is outside those days is as it
was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

from watertable.compiler.layout import moment
from watertable.errors import RewindRefused
from watertable.plan.deployment import Kind, Outline, classify
from watertable.plan.fingerprints import DIALECT
from watertable.plan.nodes import ToStream
from watertable.plan.plan import delay_of, topics_above, walk
from watertable.plan.windows import TimeWindows
from watertable.store.commits import CommitInfo, DaySpan, Head, Offsets

if TYPE_CHECKING:
    from watertable.plan.plan import Topology
    from watertable.store.changelog import Changelog
    from watertable.store.deltalog import Snapshot
    from watertable.store.writer import Store

_DAY: Final = timedelta(days=1)


def rebuilt(topology: Topology, tables: Sequence[str], days: DaySpan | None = None) -> tuple[str, ...]:
    """Name the tables that are made anew: the chosen ones and all that is computed from them.

    Raises `RewindRefused` for one that isn't there, or of which no days alone can be made anew.
    """
    names = [t.name for t in topology.tables]
    if unknown := [name for name in tables if name not in names]:
        raise RewindRefused(f"--table {', '.join(unknown)}: {topology.app} has no such table; it has {', '.join(sorted(names))}")
    found = topology.below(tables)
    if days is not None and (why := unbounded(topology, tables)):
        raise RewindRefused(f"days of {', '.join(tables)} alone can't be made anew: {why}. Leave --days out, or rewind all tables")
    return found


def unbounded(topology: Topology, tables: Collection[str]) -> str:
    """Say why no days of these tables can be made anew by themselves; "" where they can."""
    for table in map(topology.table, topology.below(tables)):
        of = "" if table.name in tables else f", which is computed from {', '.join(tables)},"
        if not isinstance(table.windows, TimeWindows):
            return f"{table.name}{of} has no windows that start on a day"
        chosen = [topology.table(name).node for name in tables]
        if any(isinstance(node, ToStream) and above in chosen for node in walk(table.node) for above in walk(node)):
            return f"{table.name}{of} is made of changes, whose windows are others"
    return ""


def parse_days(text: str) -> DaySpan:
    """Read "first/last" or one day; raise `RewindRefused` for anything else.

    >>> parse_days("2011-01-02"), parse_days("2011-01-02/2011-01-03")[1]
    ((datetime.date(2011, 1, 2), datetime.date(2011, 1, 2)), datetime.date(2011, 1, 3))
    """
    first, _, last = text.partition("/")
    try:
        found = date.fromisoformat(first), date.fromisoformat(last or first)
    except ValueError:
        raise RewindRefused(f"--days {text!r} are no days; write 2011-01-02, or 2011-01-02/2011-01-03 from one to another") from None
    if found[1] < found[0]:
        raise RewindRefused(f"--days {text!r} end before they begin")
    return found


def inside(days: DaySpan, prefix: str = "key.") -> str:
    """Write the condition of windows that start on these days: for states, by their `key`; for rows, without a prefix."""
    start = f"{prefix}window_start"
    return f"{start} >= {moment(_start(days[0]))} AND {start} < {moment(_start(days[1]) + _DAY)}"


def end_of(store: Store, head: Head, part: Topology, names: Collection[str], days: DaySpan, after: int) -> CommitInfo | None:
    """Give the first commit after a seq at which all windows of these days are closed; None where they aren't yet."""
    changelog, tables = store.changelog, [t for t in part.tables if t.name in names]
    snapshot = changelog.snapshot()
    longest = max(t.windows.size + t.windows.grace + delay_of(t.node) for t in tables if isinstance(t.windows, TimeWindows))
    closed, topics = _start(days[1]) + _DAY + longest, {topic.name for topic in part.topics}

    def are_closed(info: CommitInfo) -> bool:
        reached = [time for (topic, _), time in info.stream_times.items() if topic in topics]
        return all(time is not None and time >= closed for time in reached)

    return changelog.first(snapshot, head.lineage, after, head.position.seq, are_closed)


def commit_at(changelog: Changelog, snapshot: Snapshot, head: Head, seq: int) -> CommitInfo:
    """Give a commit of the app's lineage; raise `RewindRefused` where it isn't there any more: rewound or trimmed."""
    found = changelog.commit(snapshot, head.lineage, seq)
    if found is None:
        raise RewindRefused(f"commit {seq}, up to which a shadow was to read, isn't there any more; was the app rewound since?")
    return found


def refuse_beyond(offsets: Offsets, goal: Offsets, who: str, seq: int) -> None:
    """Raise `RewindRefused` where somebody has read more than a commit had."""
    if any(offsets[p] > end for p, end in goal.items()):
        raise RewindRefused(f"{who} has read beyond commit {seq:,}: name a later one, or leave --until out, to go on to where the app is")


def _start(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def is_made_by(code: Outline | None, part: Topology) -> bool:
    """Tell whether code makes tables as a part of an app does, whatever else it makes; of code that isn't known any more nobody can say."""
    if code is None or code.dialect != DIALECT:
        return False
    return all((known := code.tables.get(t.name)) is not None and known.fingerprint == t.fingerprint for t in part.tables)


def unfilled(code: Outline | None, topology: Topology) -> str:
    """Say which tables can't go on from where older code has come to, as they would begin in the middle; "" where all can."""
    new = classify(code, topology).of(Kind.UNFILLED) if code is not None else ()
    if not new:
        return ""
    names, them = ", ".join(c.name for c in new), "it" if len(new) == 1 else "them"
    return (
        f"{names} can't begin in the middle ({new[0].reason}): rewind to earliest; or go there by the code without {them}, and fill {them} "
        "after that (--table)"
    )


def misfit(store: Store, topology: Topology, head: Head, tables: Collection[str], *, whole: bool) -> str:
    """Say which tables can't go on under the code that some are to be made anew by, or aren't there yet; "" where all can.

    Those that are made anew as a `whole`, and not in the windows of some days, are no matter. A topic that the app hasn't read yet is read
    from where the rebuild has come to, once it's joined: nothing else may wait for what is before that.
    """
    read = {topic for topic, _ in head.last.next} if head.last is not None else {topic.name for topic in topology.topics}
    unread = {topic.name for topic in topology.above(tables).topics} - read
    wait = [t.name for t in topology.tables if unread & topics_above(t.node) and not (whole and t.name in tables)]
    if wait:
        way = f"rebuild {'it' if len(wait) == 1 else 'them'} as well" if whole else "leave --days out"
        name = ", ".join(sorted(unread))
        return f"{topology.app} hasn't read topic {name} yet, and {', '.join(wait)} would lack what this reads of it: {way}"
    found = store.deployment(topology, head)
    if found is None:
        return ""
    above = [t.name for t in topology.above(tables).tables] if whole else ()
    if not whole and (own := [c for c in (*found.of(Kind.BREAKING), *found.of(Kind.UNFILLED)) if c.name in tables]):
        return (
            f"the code has changed what {', '.join(c.name for c in own)} would hold of any day ({own[0].name}: {own[0].reason}): leave "
            "--days out"
        )
    wrong, empty, new = (
        [c for c in found.of(kind) if c.name not in tables] for kind in (Kind.BREAKING, Kind.UNFILLED, Kind.ADDITIVE)
    )  # fmt: skip
    new = [c for c in new if c.name in above]
    them = "it" if len(wrong or empty or new) == 1 else "them"
    if wrong:
        return (
            f"the code has changed what {', '.join(c.name for c in wrong)} would hold, too ({wrong[0].name}: {wrong[0].reason}): rebuild "
            f"{them} as well, or rewind all of {topology.app} to earliest"
        )
    if empty:
        return f"{', '.join(c.name for c in empty)} can't begin in the middle ({empty[0].reason}): rebuild {them} as well"
    if new:
        return f"{', '.join(tables)} would be computed from {', '.join(c.name for c in new)} ({new[0].reason}): rebuild {them} as well"
    return ""
