"""Read what a commit of a Delta log says of itself: its transactions, the files that it added and removed, what made it; and go back by it.

So as the Delta protocol writes them, a line of JSON an action ("Actions", github.com/delta-io/delta/blob/master/PROTOCOL.md).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from watertable.errors import StoreError

RESTORE: Final = "RESTORE"
OVERWRITE: Final = "Overwrite"


@dataclass(frozen=True, slots=True)
class Added:
    """Hold what the log says of one file that a commit added: its value of the partition column `table`, and all of it, as JSON.

    `rows` are those of its statistics; None where it has none.
    """

    table: str | None
    bytes: int
    rows: int | None
    action: str


@dataclass(frozen=True, slots=True)
class Held:
    """Hold what a version of a table holds: the newest transaction of a line, None where there is none, and the version that it's all of.

    That is another one where somebody has changed rows since: the last one before. `put_back` says so, and where a RESTORE has led there.
    """

    number: int | None
    version: int
    put_back: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Hold what one commit of a Delta log says about itself.

    `restored` is the version that a RESTORE names; None where it names a time, and for any other commit.
    """

    version: int
    operation: str
    blind: bool
    transactions: Mapping[str, int]
    user_metadata: str | None
    restored: int | None
    tags: Mapping[str, str] = field(default_factory=dict)
    added: tuple[Added, ...] = ()
    removed: tuple[str, ...] = ()
    """What the log says of the files that it removed, as JSON."""
    id: str = ""
    """Names the transaction that made it, and no other."""
    replaces: bool = False
    """Says that it left the table no other files than those that it added."""
    changes_rows: bool = False
    """Says that the table had other rows before; OPTIMIZE, say, writes the same ones elsewhere."""

    @classmethod
    def read(cls, version: int, text: str) -> Self:
        """Read a commit from its file of the log."""
        info: dict[str, Any] = {}
        transactions: dict[str, int] = {}
        added: list[Added] = []
        removed: list[str] = []
        changes = False
        for line in text.split("\n"):
            if line.startswith('{"commitInfo"'):
                info = json.loads(line)["commitInfo"]
            elif line.startswith('{"txn"'):
                txn = json.loads(line)["txn"]
                transactions[txn["appId"]] = int(txn["version"])
            elif line.startswith('{"add"'):
                add = json.loads(line)["add"]
                count = json.loads(add.get("stats") or "{}").get("numRecords")
                added.append(Added(add.get("partitionValues", {}).get("table"), int(add["size"]), count, line))
                changes |= add["dataChange"]
            elif line.startswith('{"remove"'):
                removed.append(line)
                changes = changes or json.loads(line)["remove"]["dataChange"]
        how = info.get("operationParameters", {})
        restored = how.get("version") if info.get("operation") == RESTORE else None
        return cls(
            version=version, operation=info.get("operation", ""), blind=bool(info.get("isBlindAppend")), transactions=transactions,
            user_metadata=info.get("userMetadata"), restored=None if restored is None else int(restored),
            tags=info.get("tags") or {}, added=tuple(added), removed=tuple(removed), id=info.get("txnId") or "",
            replaces=info.get("operation") == "WRITE" and how.get("mode") == OVERWRITE and "predicate" not in how, changes_rows=changes,
        )  # fmt: skip

    @property
    def changed(self) -> Iterator[tuple[str, bool]]:
        """Name the files that it changed, each with its deletion vector, and whether it added them: else it removed them."""
        yield from ((_named_in_log(json.loads(file.action)["add"]), True) for file in self.added)
        yield from ((_named_in_log(json.loads(action)["remove"]), False) for action in self.removed)

    @property
    def left(self) -> Iterator[str]:
        """Name the paths that the version before it has, and it hasn't, whatever their deletion vectors."""
        added = {json.loads(file.action)["add"]["path"] for file in self.added}
        removed = (json.loads(action)["remove"]["path"] for action in self.removed)
        return (path for path in removed if path not in added)

    @property
    def tables(self) -> set[str | None]:
        """Name the values of the partition column `table` of the files that it changed."""
        removed = (json.loads(action)["remove"].get("partitionValues") or {} for action in self.removed)
        return {file.table for file in self.added} | {values.get("table") for values in removed}

    @property
    def rows(self) -> Mapping[str, int]:
        """Count the rows added by the value of the partition column `table`, from the files' statistics; of a table with one."""
        found: Counter[str] = Counter()
        for file in self.added:
            if file.table is not None:
                found[file.table] += file.rows or 0
        return found


def first_left(commits: Iterable[Commit | None]) -> str | None:
    """Name the first file that commits, one after the other, leave out of a table; None where none does, up to one that isn't known."""
    for commit in commits:
        left = None if commit is None else next(commit.left, None)
        if commit is None or left is not None:
            return left
    return None


def held_at(
    commit_at: Callable[[int], Commit | None], in_state: Callable[[str, int], int | None], path: str, line: str, version: int
) -> Held:  # fmt: skip
    """Give the newest transaction of a line that a version of the table at a path holds, where nobody else writes rows.

    A table's content is that of its last data commit, so the walk goes back from `version`: a RESTORE, which writes no transaction
    and takes none back, leads to the version that it restored. Behind what somebody else has done to rows, no version holds it all.
    Where log clean-up has taken a commit, `in_state` looks the line up in the whole state of a version.
    """
    begun, whole, put_back = version, version, False
    while version >= 0:
        commit = commit_at(version)
        if commit is None:  # nothing from there to `begun` has touched the line
            return Held(in_state(line, begun), whole, put_back)
        if line in commit.transactions:
            return Held(commit.transactions[line], whole, put_back)
        put_back |= commit.changes_rows
        if commit.operation == RESTORE:
            begun = version = _restored_from(commit_at, path, commit) if commit.restored is None else commit.restored
        else:
            version -= 1
            begun, whole = (version, version) if commit.changes_rows else (begun, whole)
    return Held(None, whole, put_back)


def _restored_from(commit_at: Callable[[int], Commit | None], path: str, restore: Commit) -> int:
    """Find the version that a RESTORE to a time went back to: the newest one before it whose files it left the table.

    Its time is written as it was asked for, in the time zone of a session that nobody knows any more; so the files tell: what has
    changed since that version, and the RESTORE after it, cancel each other out.
    """
    left, version = set(restore.changed), restore.version - 1
    while left:
        commit = commit_at(version)
        if commit is None:
            raise StoreError(
                f"{path}: version {restore.version} is a RESTORE to a time, and which version it went back to can't be told: the "
                f"log before version {version + 1} is gone. Say which: RESTORE TABLE delta.`{path}` TO VERSION AS OF a number"
            )
        for file, added in commit.changed:
            if (file, not added) in left:
                left.remove((file, not added))
            else:
                left.add((file, added))
        version -= 1
    return version


def _named_in_log(file: Mapping[str, Any]) -> str:
    """Tell a file of a table from others, as `_identity` does, by what the log says of it."""
    vector = file.get("deletionVector") or {}
    return "|".join(str(part) for part in (file["path"], *(vector.get(name) for name in ("storageType", "pathOrInlineDv", "offset"))))
