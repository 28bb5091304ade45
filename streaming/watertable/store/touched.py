"""Tell which days of each table were touched, and by which commit last: what makes a day's data version.

A windowed table's day is its windows that start on it: a commit touches it by a row of such a window. Any other table's is a day of stream
time, its *log day*: a commit touches those that the stream times of what it read went through. Both follow from the changelog alone, so
whoever asks again, after a crash, is told the same; and a day that no commit beyond a fork touches has the same version after a rewind.

What was read is noted in the changelog now and then, as rows of `__days` beside a `__commit` row of kind `days`, so that a start reads no
more of the history than came since. A note says what the commits up to its own touched, along the lineage that it is on: of the tables
of windows, and, for all others, of the topics. A rewind to before it leaves it, as it leaves the commits that it is of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial, reduce
from operator import eq
from typing import TYPE_CHECKING, Final, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from watertable.plan.lineage import topics_of
from watertable.plan.plan import TableDef
from watertable.plan.windows import TimeWindows
from watertable.schema import quote
from watertable.store.changelog import DAYS_COLUMN, DAYS_DDL, DAYS_TABLE, Changelog, batches, system_part
from watertable.store.commits import CommitInfo, Lineage, Position

if TYPE_CHECKING:
    from watertable.settings import Settings
    from watertable.store.deltalog import Snapshot

Days = Mapping[str, Mapping[str, str]]
"""For each table and day, the position of the commit that touched it last."""
Seqs = dict[tuple[str, str], dict[str, int]]
"""For each table of windows and each topic, as its kind and its name, by day: the seq of the commit that touched it last."""
TABLE: Final = "table"
TOPIC: Final = "topic"
READ: Final = "read"
"""The kind of the row of a note that says how far it goes."""


@dataclass
class Touched:
    """Follow an app's commits, and say of each stretch of them which days it touched; Spark reads a stretch once, in one job.

    A note is written once there are as many commits, or of as many records, as are given here: so much is read again at a start, at most.
    """

    changelog: Changelog
    tables: Iterable[TableDef]
    first: date
    last: date | None
    commits: int = 1_000
    records: int = 200_000
    told: Position | None = field(default=None, init=False)
    """How far the answers go that were given."""
    _noted: int = field(default=0, init=False)
    """How far the notes go, along the lineage of the last answer."""
    _since: Seqs = field(default_factory=dict, init=False)
    """What was touched since then."""
    _records: int = field(default=0, init=False)
    """The records of the commits since then."""

    @classmethod
    def of(cls, settings: Settings, changelog: Changelog, tables: Iterable[TableDef]) -> Self | None:
        """Follow an app whose days are declared; None where they aren't."""
        span = settings.span(changelog.app)
        return None if span is None else cls(changelog, tables, *span)

    def reached(self, info: CommitInfo | None) -> datetime | None:
        """Give the stream time that all has reached which the tables are made of; None while a partition has none."""
        return None if info is None else info.reached({topic.name for table in self.tables for topic in topics_of(table.node)})

    @property
    def span(self) -> str:
        """Write the days that are asked about, as the settings do: what was noted of others is no answer."""
        return f"{self.first}/{self.last or '..'}"

    def upto(self, position: Position, lineage: Lineage) -> Days:
        """Give the days that were touched since the last question, up to a position of the lineage; at first, and in a new epoch, all."""
        snapshot, found = self.changelog.snapshot(), Seqs()
        if self.told is None or self.told.epoch != position.epoch:
            self.told, self._since, self._records = None, {}, 0
            found, self._noted = self._notes(snapshot, lineage, position.seq)
        after = self._noted if self.told is None else self.told.seq
        if after < position.seq:
            for key, days in self._read(snapshot, lineage, after, position.seq).items():
                for of in (found, self._since):
                    of[key] = _latest(of.get(key, {}), days)
            self._records += self.changelog.extent(snapshot, lineage, after, position.seq).records
        self.told = position
        self._note()
        return {
            name: {day: str(Position(position.app, lineage.epoch_of(seq), seq)) for day, seq in sorted(days.items())}
            for name, days in self._of_tables(found, lineage, position.seq) if days
        }  # fmt: skip

    def _of_tables(self, found: Seqs, lineage: Lineage, upto: int) -> Iterator[tuple[str, Mapping[str, int]]]:
        """Say of each table which of its days were touched, by which commit: of one that was begun anew, by none before."""
        for table in self.tables:
            if windowed(table):
                days = found.get((TABLE, table.name), {})
                yield table.name, {day: seq for day, seq in days.items() if not lineage.leaves(table.name, day, seq, upto)}
            else:
                anew = lineage.anew(table.name, upto)
                days = _latest(*(found.get((TOPIC, topic.name), {}) for topic in topics_of(table.node)))
                first = anew.after + 1 if anew else 0  # where it was begun anew, all its days were touched
                yield table.name, {day: max(seq, first) for day, seq in days.items()}

    # -- reading commits

    def _read(self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int) -> Seqs:
        frame = reduce(DataFrame.unionByName, self._frames(snapshot, lineage, after, upto))
        within = f"day >= DATE '{self.first}'" + (f" AND day <= DATE '{self.last}'" if self.last else "")
        return _collected(frame.where(within))

    def _frames(self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int) -> Iterator[DataFrame]:
        yield self._log_days(snapshot, lineage, after, upto)
        for table in self.tables:
            if windowed(table) and table.state_column in snapshot.columns:
                day = f"to_date({quote(table.state_column)}.key.window_start)"
                files = self.changelog.added(snapshot, lineage, after, upto, partial(eq, table.name))
                if files is None or files.number:
                    rows = snapshot.frame(files).where(f"`table` = '{table.name}' AND ({_touching(lineage, table.name, after, upto, day)})")
                    yield rows.selectExpr(f"'{TABLE}' AS kind", f"'{table.name}' AS name", f"{day} AS day", "seq")

    def _log_days(self, snapshot: Snapshot, lineage: Lineage, after: int, upto: int) -> DataFrame:
        """Give the log days that each commit went through, from the stream time that each partition had to the one that it has."""
        parts = batches(snapshot, lineage, max(0, after - 1), upto).selectExpr(
            "seq", "c.commit_time AS made", "explode(c.partitions) AS p"
        )  # the commit before the first one says where its partitions stood
        had = "lag(p.stream_time) OVER (PARTITION BY p.topic, p.partition ORDER BY seq)"
        moved = parts.selectExpr(
            "seq", "made", "p.topic AS name", "p.begin AS begin", "p.next AS next", "p.stream_time AS has", f"{had} AS had",
            "min(seq) OVER () AS oldest",
        )  # fmt: skip
        # where the commit before is trimmed, nobody knows where the partition stood; where there was none, it may be anything before
        first = f"DATE '{self.first}'"
        low = f"greatest(coalesce(to_date(had), CASE WHEN seq = oldest AND seq > 1 THEN to_date(has) END, {first}), {first})"
        high = "least(to_date(has), " + (f"DATE '{self.last}')" if self.last else "date_add(to_date(made), 1))")
        moved = moved.where(f"seq > {after} AND next > begin AND has IS NOT NULL").selectExpr(
            "name", "seq", f"{low} AS low", f"{high} AS high"
        )
        return moved.where("low <= high").selectExpr(f"'{TOPIC}' AS kind", "name", "explode(sequence(low, high)) AS day", "seq")

    # -- notes

    def _notes(self, snapshot: Snapshot, lineage: Lineage, upto: int) -> tuple[Seqs, int]:
        """Read what is noted along a lineage, and how far that goes."""
        if DAYS_COLUMN not in snapshot.columns:
            return {}, 0  # an earlier release's
        rows = snapshot.frame().where(f"`table` = '{DAYS_TABLE}' AND {lineage.where(0, upto)}").selectExpr(f"{DAYS_COLUMN}.*")
        found = _collected(rows.where(f"span = '{self.span}'"))
        return found, max(found.pop((READ, ""), {"": 0}).values())

    def _note(self) -> None:
        """Write down what was touched since the last note, where that is much to read again; one Delta commit, at the last answer's seq."""
        assert self.told is not None
        upto = self.told.seq
        if upto - self._noted < self.commits and self._records < self.records:
            return
        days = {**self._since, (READ, ""): {str(self.first): upto}}
        noted = [
            {"kind": kind, "name": name, "day": day, "seq": seq, "span": self.span}
            for (kind, name), of in days.items() for day, seq in of.items()
        ]  # fmt: skip
        info = CommitInfo(kind="days", epoch=self.told.epoch, seq=upto)
        rows = F.inline(F.from_json(F.lit(json.dumps(noted)), f"ARRAY<STRUCT<{DAYS_DDL}>>"))
        part = system_part(self.changelog.spark.range(0, 1, 1, 1).select(rows), DAYS_COLUMN, f"'{DAYS_TABLE}'")
        if self.changelog.note(info, f"days touched up to {self.told}", [part]):  # else the next answer's note says all of it
            self._noted, self._since, self._records = upto, {}, 0


def _collected(days: DataFrame) -> Seqs:
    """Collect the last seq of each day of each table and topic: some days of some of them, no data."""
    found = Seqs()
    each = days.groupBy("kind", "name", "day").agg(F.max("seq").alias("seq"))
    for row in each.select("kind", "name", F.col("day").cast("STRING").alias("day"), "seq").collect():
        found.setdefault((row["kind"], row["name"]), {})[row["day"]] = row["seq"]
    return found


def _latest(*several: Mapping[str, int]) -> dict[str, int]:
    """Merge by day: the last commit of those that touched it."""
    found = dict[str, int]()
    for days in several:
        found |= {day: max(seq, found.get(day, 0)) for day, seq in days.items()}
    return found


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
