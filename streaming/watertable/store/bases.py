"""Say what a table's base is: the Delta table in which its absolute states are folded, which rows it shows, and how far it has got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame

from watertable.plan.aggregates import Merge
from watertable.plan.nodes import ForeignJoin, TableAggregate, Waiting
from watertable.plan.plan import TableDef, is_open
from watertable.plan.stages import How, Match, Stage, Where
from watertable.plan.windows import TimeWindows
from watertable.schema import quote
from watertable.sql.expressions import Expr
from watertable.store.deltalog import Files, Snapshot

FOLD_LINE: Final = "watertable/fold"
"""The transaction line of folds; the number is epoch << 40 | seq."""
SEQ_BITS: Final = 40
STATE_PROPERTY: Final = "watertable.state"
"""Table property: the state version that a base keeps; another one can't be merged with it."""
ROWS_PROPERTY: Final = "watertable.fingerprint"
"""Table property: the fingerprint of the table whose rows a base shows; under another one they are computed from the states again."""
_FILE: Final = 4 << 20
_MOST_FILES: Final = 200
BEFORE: Final = timedelta(hours=1)
"""How much longer than the horizon a base's past is kept: a position at the horizon is read from the base before it."""
NEXT: Final = "_wt_next"
"""Names the column of what an outer join of streams keeps that says when the first window in a row closes."""


@dataclass(frozen=True, slots=True)
class Base:
    """Pin a version of a table's Delta table, and how far it has folded; `snapshot` None stands for an empty table at seq 0.

    `put_back` tells that somebody's RESTORE has led there: versions before it may have folded more; or that others have changed rows since,
    so that it isn't the newest version, which was `since` when it was pinned.
    """

    snapshot: Snapshot | None
    epoch: int
    seq: int
    tombstones_from: int = 0
    put_back: bool = False
    since: int = -1


EMPTY: Final = Base(None, 0, 0)


def mortal(table: TableDef) -> bool:
    """Tell whether a key with a state can be without a row: deleted, refused by a filter, or not there on a side of a join."""
    return _mortal(table.alive, table.stages)


def forgets(table: TableDef) -> bool:
    """Tell whether a state without a row may be forgotten, once no earlier record can come.

    So it is where the state is one whole value: what comes later replaces it, what comes earlier loses. A join keeps the side that is
    there while the other isn't; an aggregate keeps what nulls that come later don't replace.
    """
    return mortal(table) and [(f.merge, f.lift) for f in table.state] == [(Merge.LAST, None)]


def hides(table: TableDef) -> bool:
    """Tell whether a state without a row must be kept (a sum goes on while a filter hides it): then states have a table beside.

    An emptied group is not hidden but gone: its state is zero, as if it had never been, so there is nothing to keep. The states of a
    foreign-key join, and of sliding windows, are none of their rows.
    """
    if isinstance(table.root, ForeignJoin) or table.sliding is not None:
        return True
    if isinstance(table.root, TableAggregate | Waiting):
        return any(isinstance(stage, Where) for stage in table.stages)
    return mortal(table) and not forgets(table)


def _mortal(alive: Expr | None, stages: Sequence[Stage]) -> bool:
    for stage in stages:
        if isinstance(stage, Where):
            return True
        if isinstance(stage, Match) and (stage.how is not How.OUTER or any(_mortal(s.alive, s.stages) for s in (stage.left, stage.right))):
            return True
    return alive is not None


def goes_by_time(table: TableDef) -> bool:
    """Tell whether a base's rows are those of windows that are known by when they start, all of them to stay."""
    return isinstance(table.windows, TimeWindows) and not (hides(table) or forgets(table) or is_open(table))


def file_bytes(size: int) -> int:
    """Give the bytes of a file of a base that goes by time, by those of all of it: so few that a file spans a part of the time.

    >>> file_bytes(100 << 20) >> 20, file_bytes(100 << 30) >> 20
    (4, 512)
    """
    return max(_FILE, size // _MOST_FILES)


def base_name(table: TableDef) -> str:
    """Name the Delta table that keeps a table's absolute states."""
    return f"__state_{table.name}" if hides(table) else table.name


def states_in(snapshot: Snapshot, table: TableDef, *more: str, files: Files | None = None) -> DataFrame:
    """Read the absolute states that a version of a base, or files of it, hold: `key`, `state`, `epoch`, `seq`, and more of its columns."""
    key = ", ".join(f"'{n}', {quote(n)}" for n in table.state_key.names)
    own = (f"named_struct({key}) AS key", "_wt.state AS state", "_wt.epoch AS epoch", "_wt.seq AS seq")
    return snapshot.frame(files).selectExpr(*own, *more)


def number_of(line: int, seq: int) -> int:
    """Give the number of a transaction: a fold's of epoch and seq, a writer's of generation and seq."""
    return line << SEQ_BITS | seq


def split_number(number: int) -> tuple[int, int]:
    """Split a transaction's number into epoch, or generation, and seq."""
    return number >> SEQ_BITS, number & ((1 << SEQ_BITS) - 1)
