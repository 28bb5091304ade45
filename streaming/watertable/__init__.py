"""Maintain Delta tables from Kafka changelogs, exactly once: Kafka Streams' streams and tables, for the lakehouse.

    import watertable as wt

Defining an app starts no JVM and imports no Spark; reading (`wt.read`, `wt.changes`) and running do, when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watertable.dsl.app import App
from watertable.dsl.building import key_value_store, versioned_store, window_store
from watertable.dsl.streams import CogroupedStream, GroupedStream, Processed, Stream, WindowedStream
from watertable.dsl.tables import GroupedTable, Table
from watertable.errors import WatertableError
from watertable.plan.aggregates import (
    aggregate,
    approx_count_distinct,
    avg,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max,
    min,
    sum,
    top_k,
)
from watertable.plan.windows import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    days,
    hopping,
    hours,
    join_windows,
    milliseconds,
    minutes,
    seconds,
    sessions,
    sliding,
    tumbling,
    unlimited,
    until_time_limit,
    until_window_closes,
)
from watertable.processing import Context, Record
from watertable.sql.udfs import udf

if TYPE_CHECKING:
    from watertable.lake import changes, dropped, position, quarantine, read
    from watertable.store.reader import event_time

__version__ = "0.1.0"

__all__ = [
    "App",
    "CogroupedStream",
    "Context",
    "GroupedStream",
    "GroupedTable",
    "JoinWindows",
    "Processed",
    "Record",
    "SessionWindows",
    "SlidingWindows",
    "Stream",
    "Table",
    "TimeWindows",
    "UnlimitedWindows",
    "WatertableError",
    "WindowedStream",
    "aggregate",
    "approx_count_distinct",
    "avg",
    "changes",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "days",
    "dropped",
    "event_time",
    "first",
    "hopping",
    "hours",
    "join_windows",
    "key_value_store",
    "last",
    "max",
    "milliseconds",
    "min",
    "minutes",
    "position",
    "quarantine",
    "read",
    "seconds",
    "sessions",
    "sliding",
    "sum",
    "top_k",
    "tumbling",
    "udf",
    "unlimited",
    "until_time_limit",
    "until_window_closes",
    "versioned_store",
    "window_store",
]


def __getattr__(name: str) -> object:
    """Import what needs Spark only when it is asked for."""
    if name in ("changes", "dropped", "position", "quarantine", "read"):
        from watertable import lake

        return getattr(lake, name)
    if name == "event_time":
        from watertable.store.reader import event_time

        return event_time
    raise AttributeError(f"module 'watertable' has no attribute {name!r}")
