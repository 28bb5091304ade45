"""Read and shorten the histories of versioned tables, as Spark SQL."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from watertable.layout import moment
from watertable.nodes import History
from watertable.plan import VERSIONS, key_of
from watertable.schema import quote
from watertable.windows import microseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def remembered(history: History, shaped: DataFrame, reached: datetime | None) -> DataFrame:
    """Cut the rows of a history to the versions that a record can still ask for, and say when a row has none but a deletion.

    A record that asks is at most the history's length behind its stream time, which is no less than what all partitions have reached. So
    of the versions that are older than that, the last one answers for all; and where it is a deletion, so does no version at all. Nothing
    that is still to come gets between them: it would be older than the history.
    """
    versions = f"_wt.state.{quote(VERSIONS)}"
    answers = "CAST(NULL AS BOOLEAN)"
    if reached is not None:
        answers = f"e.order.ts < {moment(reached - history.parent.history)} AND e.order.st < {moment(reached)}"
    keys = [quote(name) for name in key_of(history).names]
    since = f"array_max(transform(filter({versions}, e -> {answers}), e -> e.order)) AS _since"
    kept = f"filter({versions}, e -> _since IS NULL OR e.order > _since OR (e.order = _since AND e.value.row IS NOT NULL)) AS _kept"
    cut = shaped.selectExpr(*keys, "_wt", since).selectExpr(*keys, "_wt", kept)
    last, length = "element_at(_kept, -1)", microseconds(history.parent.history)
    done = f"timestamp_micros(unix_micros(greatest({last}.order.st, {last}.order.ts)) + {length}L)"
    until = f"CASE WHEN size(_kept) > 0 AND {last}.value.row IS NULL THEN {done} END"
    state = f"named_struct('seq', _wt.seq, 'epoch', _wt.epoch, 'state', named_struct('{VERSIONS}', _kept)) AS _wt"
    number = f"CAST(size(_kept) AS BIGINT) AS {quote(VERSIONS)}"
    return cut.selectExpr("size(_kept) > 0 AS _wt_alive", *keys, number, f"{until} AS _wt_until", state)
