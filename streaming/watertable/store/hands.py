"""Notice what others have done to the rows of a changelog, or of an archive: it is the truth, and nothing else tells what it was.

OPTIMIZE, VACUUM and checkpoints leave its rows as they are. After a RESTORE, a DELETE, an UPDATE or an INSERT a position stands for other
rows than folds, readers and consumers have seen at it, and the next commits would be counted on top of those. So nobody reads or writes it
until it is as it was; or until everything is read again, in a new epoch, of which no row is from before. Whoever deletes from the
quarantine, or from what was left out, takes nothing that a table is made of. An archive says by its transactions which records it holds:
after an INSERT it holds some twice, after a RESTORE not all.
"""

from __future__ import annotations

from typing import Final

from watertable.errors import StoreError
from watertable.store.changelog import DROPPED_TABLE, QUARANTINE_TABLE
from watertable.store.deltalog import HELD, DeltaLog, Snapshot
from watertable.store.logged import Commit
from watertable.store.memory import rows_told

_LOOKED_AT: Final = 10
"""As many of the newest commits are looked at by a process that knows of none: after others have been there, few can come."""
_as_made: Final[dict[tuple[str, str], int]] = {}
"""By the path of a table and its identity: the version up to which this process knows that only apps have changed rows."""
HELD.append(_as_made)


def refuse_changed(log: DeltaLog, snapshot: Snapshot, app: str = "") -> None:
    """Raise `StoreError` where others have changed rows of an app's changelog, or of an archive, lately, and not put them back.

    The log's own files tell.
    """
    place = log.path, snapshot.table
    known = _as_made.get(place, -1)
    version, last = snapshot.version, max(known, snapshot.version - _LOOKED_AT)
    while version > last and (commit := log.commit(version)) is not None and not _begins_anew(commit):
        if not _is_of_others(commit):
            version -= 1
        elif commit.restored is not None and not any(_is_own(log.commit(n)) for n in range(version - 1, commit.restored, -1)):
            version = commit.restored  # which has put back what others had done since
        else:
            raise StoreError(_told(log, snapshot.version, commit, app))
    _as_made[place] = max(known, snapshot.version)


def _told(log: DeltaLog, newest: int, commit: Commit, app: str) -> str:
    """Say who has changed what, and the way out."""
    before = commit.version - 1
    while _is_of_others(log.commit(before)):
        before -= 1
    what = "positions stand for other rows than tables and readers have seen at them" if app else "some are there twice, or not at all"
    told = f"{log.path}: version {commit.version} ({commit.operation}) has changed rows, which only apps may: {what}. "
    anew = f"have everything read again: `watertable rewind {app} --to earliest --apply`"
    if app and any(_is_own(log.commit(version)) for version in range(commit.version + 1, newest + 1)):
        return f"{told}The app has committed since, so {anew}"
    back = f"Put it back: `RESTORE TABLE delta.`{log.path}` TO VERSION AS OF {before}`"
    return f"{told}{back}; or, where that can't be had any more, {anew}" if app else f"{told}{back}"


def _begins_anew(commit: Commit) -> bool:
    """Tell whether an epoch begins with nothing from before."""
    return any(row.kind == "epoch" and not row.fork for row in rows_told(commit.tags))


def _is_own(commit: Commit | None) -> bool:
    """Tell whether a commit of the app's has changed rows; what log clean-up took is taken for such a one."""
    return commit is None or (not _is_of_others(commit) and commit.changes_rows)


def _is_of_others(commit: Commit | None) -> bool:
    """Tell whether somebody else has changed rows that tables are made of: the app's commits are of a transaction, or say what they are.

    The first version has nothing to change: a copy of a changelog begins with all rows.
    """
    if commit is None or not commit.version or commit.transactions or any(tag.startswith("watertable.") for tag in commit.tags):
        return False
    noted = commit.blind and commit.user_metadata is not None  # as an earlier release told of its folds
    return not noted and commit.changes_rows and not commit.tables <= {QUARANTINE_TABLE, DROPPED_TABLE}
