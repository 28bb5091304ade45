"""Tell which days of each table were touched, and by which commit last: what makes a day's data version.

A windowed table's day is its windows that start on it: a commit touches it by a row of such a window. Any other table's is a day of stream
time, its *log day*: a commit touches those that the stream times of what it read went through. Both follow from the changelog alone, so
whoever asks again, after a crash, is told the same; and a day that no commit beyond a fork touches has the same version after a rewind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import partial, reduce
from operator import eq
from typing import TYPE_CHECKING, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from watertable.plan.lineage import topics_of
from watertable.plan.plan import TableDef
from watertable.plan.windows import TimeWindows
from watertable.schema import quote
from watertable.store.changelog import Changelog, batches
from watertable.store.commits import Lineage, Position

if TYPE_CHECKING:
    from collections.abc import Iterable

    from watertable.settings import Settings
    from watertable.store.deltalog import Snapshot

Days = Mapping[str, Mapping[str, str]]
"""For each table and day, the position of the commit that touched it last."""


@dataclass
class Touched:
    """Follow an app's commits, and say of each stretch of them which days it touched; Spark reads a stretch once, in one job."""

    changelog: Changelog
    tables: Iterable[TableDef]
    first: date
    last: date | None
    told: Position | None = field(default=None, init=False)
    """How far the answers go that were given."""

    @classmethod
    def of(cls, settings: Settings, changelog: Changelog, tables: Iterable[TableDef]) -> Self | None:
        """Follow an app whose days are declared; None where they aren't."""
        span = settings.span(changelog.app)
        return None if span is None else cls(changelog, tables, *span)

    def upto(self, position: Position, lineage: Lineage) -> Days:
        """Give the days that were touched since the last question, up to a position of the lineage; at first, and in a new epoch, all."""
        known = self.told.seq if self.told is not None and self.told.epoch == position.epoch else 0
        after = min(known, position.seq)
        found: dict[str, dict[str, str]] = {}
        frames = list(self._frames(self.changelog.snapshot(), lineage, after, position.seq)) if after < position.seq else []
        if frames:
            frame = reduce(DataFrame.unionByName, frames)
            within = f"day >= DATE '{self.first}'" + (f" AND day <= DATE '{self.last}'" if self.last else "")
            grouped = frame.where(within).groupBy("name", "day").agg(F.max("seq").alias("seq")).orderBy("name", "day")
            for row in grouped.selectExpr("name", "CAST(day AS STRING) AS day", "seq").collect():  # some days of some tables, no data
                touched = Position(position.app, lineage.epoch_of(row["seq"]), row["seq"])
                found.setdefault(row["name"], {})[row["day"]] = str(touched)
        self.told = position
        return found

    def _frames(self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int) -> Iterator[DataFrame]:
        logged = []
        for table in self.tables:
            if not windowed(table):
                logged.append(table)
            elif table.state_column in snapshot.columns:
                day = f"to_date({quote(table.state_column)}.key.window_start)"
                files = self.changelog.added(snapshot, lineage, after, upto, partial(eq, table.name))
                if files is None or files.number:
                    rows = snapshot.frame(files).where(f"`table` = '{table.name}' AND ({_touching(lineage, table.name, after, upto, day)})")
                    yield rows.selectExpr(f"'{table.name}' AS name", f"{day} AS day", "seq")
        if logged:
            yield self._log_days(snapshot, lineage, after, upto, logged)

    def _log_days(self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int, tables: Iterable[TableDef]) -> DataFrame:
        """Give the log days that each commit went through, from the stream time that each partition had to the one that it has."""
        parts = batches(snapshot, lineage, max(0, after - 1), upto).selectExpr(
            "seq", "c.commit_time AS made", "explode(c.partitions) AS p"
        )  # the commit before the first one says where its partitions stood
        had = "lag(p.stream_time) OVER (PARTITION BY p.topic, p.partition ORDER BY seq)"
        moved = parts.selectExpr(
            "seq", "made", "p.topic AS topic", "p.begin AS begin", "p.next AS next", "p.stream_time AS has", f"{had} AS had",
            "min(seq) OVER () AS oldest",
        )  # fmt: skip
        # where the commit before is trimmed, nobody knows where the partition stood; where there was none, it may be anything before
        first = f"DATE '{self.first}'"
        low = f"greatest(coalesce(to_date(had), CASE WHEN seq = oldest AND seq > 1 THEN to_date(has) END, {first}), {first})"
        high = "least(to_date(has), " + (f"DATE '{self.last}')" if self.last else "date_add(to_date(made), 1))")
        moved = moved.where(f"seq > {after} AND next > begin AND has IS NOT NULL").selectExpr(
            "topic", "seq", f"{low} AS low", f"{high} AS high"
        )
        days = moved.where("low <= high").selectExpr("topic", "seq", "explode(sequence(low, high)) AS day")
        names: dict[str, list[str]] = {}
        for table in tables:
            for topic in topics_of(table.node):
                names.setdefault(topic.name, []).append(table.name)
        named = " ".join(f"WHEN '{t}' THEN array({', '.join(repr(n) for n in ns)})" for t, ns in sorted(names.items()))
        anew = {name: lineage.of_table(name, upto).after for names_of in names.values() for name in names_of}
        whens = " ".join(f"WHEN '{name}' THEN {seq + 1}L" for name, seq in sorted(anew.items()) if seq > after)
        seq = f"greatest(seq, CASE name {whens} ELSE 0L END) AS seq" if whens else "seq"  # where a table was rebuilt, all its days were
        return days.selectExpr(f"explode(CASE topic {named} END) AS name", "day", "seq").selectExpr("name", "day", seq)


def _touching(lineage: Lineage, table: str, after: int, upto: int, day: str) -> str:
    """Write the condition for rows that touch their day: of what begins a table anew, those of the days that it was for."""
    own, anew = lineage.of_table(table, upto), lineage.anew(table, upto)
    if anew is None or anew.days is None or anew.after < after:
        return own.where(after, upto)
    chosen = f"{day} BETWEEN DATE '{anew.days[0]}' AND DATE '{anew.days[1]}'"
    since = f"{own.where(after, upto)} AND (seq > {anew.after + 1} OR {chosen})"
    return f"{since} OR ({_touching(lineage, table, after, anew.after, day)}) AND NOT {chosen}"


def windowed(table: TableDef) -> bool:
    """Tell whether a table's day is the windows that start on it; where sessions and sliding ones start, the records to come say."""
    return isinstance(table.windows, TimeWindows)
