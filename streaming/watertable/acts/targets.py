"""Say where a rewind goes to, in one form for all ways of writing it, and find it: the newest commit at or before the target.

What a target means depends on where the app stands. One that isn't there (in the future, behind what is kept, of a topic that the app
doesn't read) is refused, with the way out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

from watertable.errors import NothingToRewind, RewindRefused, UnknownPosition
from watertable.plan.windows import typed_time
from watertable.store.changelog import NEAR
from watertable.store.commits import BACK, LEFT, CommitInfo, Head, Position, offsets_of

if TYPE_CHECKING:
    from watertable.store.changelog import Changelog
    from watertable.store.deltalog import Snapshot
    from watertable.store.writer import Store

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|sec|m|min|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

_LOOKED_THROUGH: Final = 3
"""Epochs that were left, of which commits are looked for where the current one has none that were measured."""
_AGES: Final = 50 * 365.25 * 86400
"""Seconds that nobody's commits go back."""

_FIRST: Final = datetime.min.replace(tzinfo=UTC) + timedelta(microseconds=1)
"""The first time before which there is one."""

Kind = Literal["earliest", "event", "offsets", "commit", "by", "shift", "undo"]


@dataclass(frozen=True, slots=True)
class Target:
    """Say where to: `kind` and, in a form that is one for all ways of writing it, its value.

    >>> Target.parse(to="2011-06-01T02:00+02:00")
    Target(kind='event', value='2011-06-01T00:00:00+00:00')
    >>> str(Target.parse(by="90 min")), str(Target.parse(shift_by=-1000)), str(Target.parse(to="version 481"))
    ('to 1:30:00 ago', '1,000 records back', 'to commit 481')
    """

    kind: Kind
    value: str = ""

    @classmethod
    def parse(cls, to: str | None = None, *, by: str | None = None, shift_by: int | None = None, option: str = "--to") -> Self:
        """Read a target as people write it: exactly one of the three. `option` is what `to` is called where it was written.

        `to` is `earliest`, a time (event time), a JSON file of offsets ({"sales": {"0": 1200}}) or such text, a commit's number, or a
        position (retail@1.481). `by` is a duration of commit time (10 min), `shift_by` a number of records. Raises `RewindRefused`.
        """
        if sum(x is not None for x in (to, by, shift_by)) != 1:
            raise RewindRefused(
                "say where to, in one way: --to earliest, a time, offsets or a commit; or --by a duration; or --shift-by records"
            )
        if by is not None:
            found = _DURATION.fullmatch(by.strip())
            seconds = 0.0 if found is None else float(found[1]) * _UNITS[found[2]]
            if not 0 < seconds < _AGES:
                raise RewindRefused(f"--by {by!r} is no duration; write 30 s, 10 min, 2 h or 1 d")
            return cls("by", f"{seconds:g}")
        if shift_by is not None:
            if not shift_by:
                raise RewindRefused("--shift-by 0 goes nowhere; write how many records to go back")
            return cls("shift", str(abs(shift_by)))
        assert to is not None
        wanted = to.strip()
        if wanted == "earliest":
            return cls("earliest")
        if number := re.fullmatch(r"(?:version\s+)?(\d+)", wanted):
            return cls("commit", str(int(number[1])))
        if "@" in wanted:
            return cls("commit", str(Position.parse(wanted.removeprefix("version "))))
        if wanted.endswith(".json") or wanted.startswith("{"):
            return cls("offsets", _canonical_offsets(wanted))
        try:
            when = typed_time(wanted)
        except ValueError:
            raise RewindRefused(
                f"{option} {to!r}: write earliest, a time (2011-06-01T00:00Z), a file of offsets (offsets.json), a commit (481) or a "
                "position (retail@1.481)"
            ) from None
        return cls("event", when.isoformat())

    def __str__(self) -> str:
        match self.kind:
            case "earliest":
                return "to earliest"
            case "event":
                return f"to event time {self.value.replace('+00:00', 'Z')}"
            case "offsets":
                return f"to offsets {self.value}"
            case "commit":
                return f"to {self.value}" if "@" in self.value else f"to commit {int(self.value):,}"
            case "by":
                return f"to {timedelta(seconds=float(self.value))} ago"
            case "shift":
                return f"{int(self.value):,} records back"
            case "undo":
                return "undo"


def measured(changelog: Changelog, snapshot: Snapshot, head: Head) -> list[tuple[int, int]]:
    """Give (records, milliseconds) of the app's newest commits; where its lineage has none that were measured, of one that was left."""
    newest = reversed([*head.left.items()][-_LOOKED_THROUGH:])
    left = [(head.lineage_of(epoch), row.counters.get(LEFT, 0)) for epoch, row in newest]
    for lineage, upto in ((head.lineage, head.position.seq), *left):
        done = [row.counters for row in changelog.commits(snapshot, lineage, max(0, upto - NEAR), upto)]
        if found := [(c.get("ms_records", c["records"]), c["ms"]) for c in done if c.get("ms", 0) > 0 and c.get("records", 0) > 0]:
            return found
    return []


def fork_of(store: Store, snapshot: Snapshot, head: Head, target: Target, topics: Collection[str]) -> tuple[int, int, int]:
    """Find where to fork: the parent epoch, the seq, and the epoch that an undo would go back to.

    `topics` are those that the app reads: an event time is one of theirs.
    """
    epoch = head.position.epoch
    match target.kind:
        case "earliest":
            return epoch, 0, epoch
        case "undo":
            rows = {fork.epoch: fork for fork in head.forks}
            before = rows[epoch].counters.get(BACK, 0) if epoch in rows else 0
            if not before:
                raise RewindRefused(f"{store.app} at {head.position}: there is no rewind to undo")
            ended, left = store.changelog.head(snapshot, epoch=before).position.seq, head.left[before].counters.get(LEFT)
            if left not in (None, ended):
                raise RewindRefused(
                    f"what it would go back to, {Position(store.app, before, left)}, isn't kept any more: it was left longer ago than the "
                    "horizon. Rewind to a commit that is kept, or to earliest"
                )
            return before, ended, rows[before].counters.get(BACK, 0) if before in rows else 0
        case "commit":
            wanted = Position.parse(target.value) if "@" in target.value else Position(store.app, epoch, int(target.value))
            if wanted.app != store.app:
                raise RewindRefused(f"{wanted} is a position of app {wanted.app!r}, not of {store.app!r}")
            if head.shadow is not None and wanted.epoch == head.shadow.epoch:
                raise RewindRefused(f"{wanted} is a position of the shadow: `watertable promote {store.app}` is how to get there")
            try:
                end = head.position if wanted.epoch == epoch else store.changelog.head(snapshot, epoch=wanted.epoch).position
            except UnknownPosition as error:
                raise RewindRefused(f"{error}; it is at {head.position}") from None
            if wanted.seq > end.seq:
                raise RewindRefused(f"{wanted} isn't there yet, or isn't kept any more: {store.app} is at {end}")
            if parts := head.made_alone(wanted):
                raise RewindRefused(
                    f"{wanted} is of a shadow of {', '.join(sorted(parts))} alone: no other table has rows there. Name a position of "
                    f"{store.app}"
                )
            on_ours = head.lineage.holds(wanted.epoch, wanted.seq) or wanted.epoch == epoch
            return (epoch if on_ours else wanted.epoch), wanted.seq, epoch
        case _:
            return epoch, _newest_before(store, snapshot, head, target, topics), epoch


def unkept(store: Store, snapshot: Snapshot, head: Head, fork: Position, tables: Sequence[str]) -> str:
    """Say what isn't kept any more of a place to fork at, its commit or what tables are read from there; "" where all is."""
    if not fork.seq:
        return ""
    if store.changelog.commit(snapshot, head.lineage_of(fork.epoch), fork.seq) is None:
        return f"commit {fork.seq:,} of {store.app} isn't kept any more"
    try:
        store.reader.view(tables, fork)
    except UnknownPosition as error:
        return str(error)
    return ""


def until_of(store: Store, snapshot: Snapshot, head: Head, until: Target, after: int, topics: Collection[str]) -> CommitInfo:
    """Find the commit at which a shadow that forks after a seq is to stop: the newest at or before a target, in the app's own epoch.

    Raises `RewindRefused` where there is none, as for any target.
    """
    epoch, seq, _ = fork_of(store, snapshot, head, until, topics)
    if epoch != head.position.epoch or until.kind in ("earliest", "undo"):
        raise RewindRefused(f"--until goes {until}: it is a place on the way to where {store.app} stands, {head.position}")
    if seq <= after:
        raise RewindRefused(f"--until goes {until}, which is commit {seq:,}: there is nothing to read from commit {after:,} up to there")
    found = store.changelog.commit(snapshot, head.lineage, seq)
    if found is None:
        raise RewindRefused(f"commit {seq} of {store.app} isn't kept any more; name a later one")
    return found


def _newest_before(store: Store, snapshot: Snapshot, head: Head, target: Target, topics: Collection[str]) -> int:
    """Give the newest commit at or before a target; 0 where that is before the first."""
    if head.last is None:
        raise NothingToRewind(f"{store.app} is at {head.position}, where nothing is committed: there is nothing before it")
    holds, records = _condition(store.app, head.last, target, topics)
    found = store.changelog.newest(snapshot, head.lineage, 0, head.position.seq, holds, records=records)
    if found is not None:
        return found.seq
    oldest = store.changelog.extent(snapshot, head.lineage, 0, head.position.seq).first
    if oldest != 1:
        raise RewindRefused(
            f"{target}: that is before commit {oldest:,}, the oldest that {store.app} still keeps; rewind to that one, or to earliest"
        )
    return 0


def _condition(app: str, last: CommitInfo, target: Target, topics: Collection[str]) -> tuple[Callable[[CommitInfo], bool], int]:
    """Say what holds for the commits at or before a target, and how many records come after them."""
    match target.kind:
        case "event":
            when = datetime.fromisoformat(target.value)
            newest = max((time for (topic, _), time in last.stream_times.items() if topic in topics and time is not None), default=None)
            if newest is None or newest < when:
                furthest = "none has a time yet" if newest is None else f"the furthest is at {newest:%F %T}Z"
                raise NothingToRewind(f"no partition of {app} has reached the event time {when:%F %T}Z: {furthest}. Name one before that")
            before = max(when, _FIRST) - timedelta(microseconds=1)
            return lambda info: info.is_by(before, topics), 0
        case "offsets":
            wanted = offsets_of(json.loads(target.value))
            if wrong := last.unread(wanted):
                raise RewindRefused(f"{app} {wrong}")
            return lambda info: info.is_within(wanted), 0
        case "by":
            since = datetime.now(UTC) - timedelta(seconds=float(target.value))
            if last.commit_time <= since:
                raise RewindRefused(f"{app} has committed nothing since {since:%F %T}Z; its last commit is of {last.commit_time:%F %T}Z")
            return lambda info: info.commit_time <= since, 0
        case _:
            return lambda info: True, int(target.value)


def _canonical_offsets(text: str) -> str:
    """Read offsets by topic and partition, from a file or as they stand, and write them in one way."""
    said: str | bytes = text
    if not text.startswith("{"):
        try:
            said = Path(text).read_bytes()
        except OSError as error:
            raise RewindRefused(f"can't read the offsets in {text}: {error.strerror}") from None
    try:
        wanted: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in offsets_of(json.loads(said)).items():  # of bytes, whichever of Unicode's encodings
            wanted.setdefault(topic, {})[str(partition)] = offset
        return json.dumps(wanted, sort_keys=True)
    except (ValueError, RecursionError):
        where = "" if said is text else f" of {text}"
        raise RewindRefused(f'offsets are written {{"topic": {{"0": 1200, "1": 1187}}}}, not {said[:80]!r}{where}') from None
