"""Remember what this process has seen of changelogs, and learn what is new in them from their logs alone.

Each commit's tags say what its `__commit` rows do. So whoever has looked at one version of a changelog, or knows how it was made, need not
look again: the log, which is at hand, tells what later versions have in addition. The law: what is given of a version is all that a look
from the same seq on would find there, or nothing is given, where the log doesn't say it all. What was seen of a version never changes, so
all readers and writers of a process share it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from watertable.store.commits import OF_BUCKETS, Advance, CommitInfo
from watertable.store.deltalog import HELD, DeltaLog, Snapshot
from watertable.store.logged import Added

_COMMIT_TAG: Final = "watertable.commit"
"""The tag of a Delta commit that says what its `__commit` row does, for who follows the log."""
_COMMITS_TAG: Final = "watertable.commits"
"""The same of one with several, as where rebuilt tables are joined; for releases that know it."""
_SAME_ROWS: Final = ("OPTIMIZE", "VACUUM START", "VACUUM END", "ADD COLUMNS", "SET TBLPROPERTIES")
"""What is done to a changelog without a change of its rows."""
STEPS: Final = 200
"""As many commits as are sooner read one by one than looked up in the table."""
_YOUNG: Final = 200
"""The version up to which a process that knows nothing of a changelog follows its log from the first commit on."""
_KEPT: Final = 500
"""Rows that are remembered, and up to as many again; the files of as many commits."""


@dataclass(frozen=True, slots=True)
class CommitFiles:
    """Hold the files of a commit, and when it was made."""

    made: datetime
    added: tuple[Added, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """Remember the `__commit` rows of one version of a changelog, from a seq on; those of acts all, and no advances that trims keep."""

    table: str
    version: int
    since: int
    rows: tuple[CommitInfo, ...]
    files: Mapping[tuple[int, int], CommitFiles] = field(default_factory=dict)
    """What the log told of batches as they came, by epoch and seq, and of folds at them: it's all that they have added, and stays where it
    is for a while."""
    recorded: frozenset[tuple[str | None, Advance]] | None = None
    """The advances of all epochs, trimmed or not, with the ids of their topics: where this process knows all, and they are few."""

    def short(self) -> Seen:
        """Leave out the oldest rows, and files, once there are many; and the advances, all of them."""
        if self.recorded is not None and len(self.recorded) > 2 * _KEPT:
            return replace(self, recorded=None).short()
        if len(self.files) > 2 * _KEPT:
            return replace(self, files=dict([*self.files.items()][-_KEPT:])).short()
        seqs = sorted(row.seq for row in self.rows if row.kind in OF_BUCKETS)
        if len(seqs) <= 2 * _KEPT:
            return self
        since = seqs[-_KEPT]
        return replace(self, since=since, rows=tuple(row for row in self.rows if row.kind not in OF_BUCKETS or row.seq >= since))


_seen: Final[dict[tuple[str], Seen]] = {}
"""By the path of the changelog: what this process has seen of it last. A version never changes, so neither does what was seen of it."""
HELD.append(_seen)  # but where an older copy of the log was put in its place


class Memory:
    """Follow one changelog by its log."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log

    def follow(self, snapshot: Snapshot) -> Seen | None:
        """Go on from what this process has seen of the app to a version, by what the log says; None where it doesn't say all."""
        seen = _seen.get((self._log.path,))
        seen = self._made(snapshot) if seen is None or seen.table != snapshot.table else seen
        here = seen and self._next(seen, snapshot.version)
        return here and self.keep(here)

    def keep(self, here: Seen) -> Seen:
        """Remember what was seen, unless more of the same table is known, and give it back."""
        seen = _seen.get((self._log.path,))
        if seen is None or seen.table != here.table or seen.version <= here.version:
            _seen[self._log.path,] = here
        return here

    def files(self, snapshot: Snapshot) -> Mapping[tuple[int, int], CommitFiles]:
        """Give the files of the commits that this process has read of, of a later version too if it has."""
        self.follow(snapshot)
        seen = _seen.get((self._log.path,))
        return seen.files if seen is not None and seen.table == snapshot.table else {}

    def _made(self, snapshot: Snapshot) -> Seen | None:
        """See how a changelog was made, holding nothing; None where that is long ago, or it was made of another's files."""
        commit = self._log.commit(0) if snapshot.version <= _YOUNG else None
        empty = commit is not None and commit.operation == "CREATE TABLE" and not commit.added
        return Seen(snapshot.table, 0, 0, (), recorded=frozenset()) if empty else None

    def _next(self, seen: Seen, version: int) -> Seen | None:
        """Give what is seen of a later version, by what the log says of the commits between; None where that isn't all of it."""
        if not seen.version <= version <= seen.version + STEPS:
            return None
        if version == seen.version:
            return seen
        rows, files, recorded = list(seen.rows), dict(seen.files), seen.recorded
        for number in range(seen.version + 1, version + 1):
            commit = self._log.commit(number)
            told_of = () if commit is None else rows_told(commit.tags)
            if commit is None or not (told_of or commit.operation in _SAME_ROWS):
                return None
            for row in told_of:
                if row.kind == "advances":  # what commits had told before they were trimmed
                    continue
                rows.append(row)
                if row.advances and recorded is not None:
                    recorded |= {(row.topic_ids.get(a.topic), a) for a in row.advances}
                if row.kind == "batch":
                    files[row.epoch, row.seq] = CommitFiles(row.commit_time, commit.added)
                elif (there := files.get((row.epoch, row.seq))) is not None:  # what a fold gathered
                    files[row.epoch, row.seq] = replace(there, added=(*there.added, *commit.added))
        return replace(seen, version=version, rows=tuple(rows), files=files, recorded=recorded).short()


def told(info: CommitInfo, *others: CommitInfo) -> dict[str, str]:
    """Give the tags of a commit whose `__commit` rows are these."""
    return {_COMMITS_TAG: f"[{','.join(row.packed() for row in (info, *others))}]"} if others else {_COMMIT_TAG: info.packed()}


def rows_told(tags: Mapping[str, str]) -> list[CommitInfo]:
    """Read the `__commit` rows that a commit's tags tell of; none where they tell of none."""
    if _COMMIT_TAG in tags:
        return [CommitInfo.unpacked(tags[_COMMIT_TAG])]
    return [CommitInfo.of_json(row) for row in json.loads(tags.get(_COMMITS_TAG, "[]"))]
