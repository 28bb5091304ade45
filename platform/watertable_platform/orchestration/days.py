"""Give an app's tables daily partitions: the days that its data spans, and when a day is closed.

The span is declared (`[tool.watertable] days`), as definitions follow from the code and not from what some topic holds today. A windowed
table's partition is the windows that start on that day, any other table's is a day of stream time, its *log day*. A day is closed once
stream time has passed everything that can still change it; only then is it reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Self

import dagster as dg

from watertable.plan.plan import TableDef
from watertable.plan.windows import TimeWindows
from watertable.settings import Settings, span

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Days:
    """Hold the first and the last day of an app's data; `last` is None where it goes on.

    >>> Days.parse("2010-12-01/2011-12-09")
    Days(first=datetime.date(2010, 12, 1), last=datetime.date(2011, 12, 9))
    >>> Days.parse("2026-01-01/..").last is None
    True
    """

    first: date
    last: date | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "first/last" or "first/.."; raise `SettingsError` for anything else."""
        return cls(*span(text))

    @classmethod
    def of(cls, settings: Settings, app: str) -> Self | None:
        """Give the span that the settings declare for an app; None when they don't: its tables have no partitions."""
        found = settings.span(app)
        return None if found is None else cls(*found)

    def partitions(self) -> dg.DailyPartitionsDefinition:
        """Make Dagster's partitions, end-dated where the data ends."""
        end = None if self.last is None else (self.last + DAY).isoformat()
        return dg.DailyPartitionsDefinition(start_date=self.first.isoformat(), end_date=end, timezone="UTC")

    def closed(self, table: TableDef, stream_time: datetime | None, now: datetime) -> Iterator[str]:
        """List the days that nothing can change any more, for a table, at a stream time; oldest first.

        None that isn't over `now`, though a clock ahead may have taken stream time beyond it: it is no partition yet.
        """
        windows = table.windows
        if stream_time is None or (windows is not None and not isinstance(windows, TimeWindows)):  # others may go on for ever
            return
        settled = min(now, stream_time - (windows.size + windows.grace if windows else timedelta()))
        day = self.first
        while datetime(day.year, day.month, day.day, tzinfo=UTC) + DAY <= settled and (self.last is None or day <= self.last):
            yield day.isoformat()
            day += DAY


def moment(text: str | None) -> datetime | None:
    """Read a stream time as the app's events write it."""
    return datetime.fromisoformat(text) if text else None
