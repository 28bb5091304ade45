"""Turn what a running app says into Dagster events: few, tagged with where they come from, and with numbers that plot.

A stream commits each second; an event log has no end. So a table is reported when it first changes, then at most once per interval and
only if it changed, with what happened since summed up. Every event carries its provenance by hand (code version, data version, and
version and event of each input): Dagster tags only what a step returns, and an untagged event would hide that the code is stale.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final, Protocol

import dagster as dg
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    DEFAULT_DATA_VERSION,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)

from watertable.errors import UnknownPosition
from watertable.plan.plan import TableDef, Topology
from watertable.store.commits import Lineage, Position
from watertable_platform.orchestration.checks import Verdict
from watertable_platform.orchestration.days import Days, moment
from watertable_platform.orchestration.translator import TOPICS, inputs_of, table_key

UNKNOWN: Final = DEFAULT_DATA_VERSION.value
UNTOUCHED: Final = "untouched"
"""The data version of a closed day of which there is no record; of one that a rewind has emptied, with the position where that was seen."""


class Log(Protocol):
    """Take an event, as an op's context does."""

    @property
    def log_event(self) -> Callable[[Any], None]:
        """Record an event in the run at hand: a materialization, an observation or the evaluation of a check."""


@dataclass(slots=True)
class Progress:
    """Follow a replay: `total` records are read again, from `began` (a clock's seconds) on."""

    total: int
    began: float
    left: int

    def numbers(self, now: float) -> dict[str, int | float]:
        """Give what plots: records done and in all, the rate, and the seconds that are left at that rate."""
        done = max(0, self.total - self.left)
        rate = done / (now - self.began) if now > self.began else 0.0
        told: dict[str, int | float] = {"replayed records": done, "records to replay": self.total, "replayed records/s": round(rate, 1)}
        return told | ({"replay ETA s": round(self.left / rate, 1)} if rate else {})


def recorded_days(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, str]:
    """Give the data version of each day that was reported of a table."""
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    tags = instance.event_log_storage.get_latest_tags_by_partition(key, kind, [DATA_VERSION_TAG])
    return {day: found.get(DATA_VERSION_TAG, "") for day, found in tags.items()}


def day_event(key: dg.AssetKey, day: str, version: str, tags: Mapping[str, str], metadata: Mapping[str, Any]) -> dg.AssetMaterialization:
    """Make the event that reports a day of a table: its data version is the position that touched it last."""
    own = {**tags, DATA_VERSION_TAG: version}
    return dg.AssetMaterialization(key, partition=day, metadata={**metadata, "touched": version}, tags=own)


def provenance(instance: dg.DagsterInstance, table: TableDef, app: str, data_version: str) -> dict[str, str]:
    """Give the tags that say by which code and from which inputs a table was written."""
    tags = {CODE_VERSION_TAG: table.fingerprint, DATA_VERSION_TAG: data_version, DATA_VERSION_IS_USER_PROVIDED_TAG: "true"}
    for key in inputs_of(table.node, app):
        record = instance.get_latest_data_version_record(key, is_source=key.path[0] == TOPICS)
        seen = (record.event_log_entry.tags or {}).get(DATA_VERSION_TAG, UNKNOWN) if record else UNKNOWN
        tags[get_input_data_version_tag(key)] = seen
        tags[get_input_event_pointer_tag(key)] = str(record.storage_id) if record else NULL_EVENT_POINTER
    return tags


@dataclass(slots=True)
class _Since:
    """Sum up what happened to one table since it was last reported."""

    rows: int = 0
    data_version: str = ""
    fold: dict[str, int | float] = field(default_factory=dict)


_TOTALS: Final = ("records", "quarantined", "dropped")
"""What is counted from one report to the next."""


class Reporter:
    """Report one app's events to one run; `every` is the least number of seconds between two reports of its tables."""

    def __init__(
        self,
        log: Log,
        instance: dg.DagsterInstance,
        topology: Topology,
        every: float,
        days: Days | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.count = 0
        self._log, self._instance, self._topology, self._every, self._clock = log, instance, topology, every, clock
        self._days = days
        self._told: dict[str, dict[str, str]] = {}
        self._touched: dict[str, dict[str, str]] = {}
        self._reached: datetime | None = None
        self._at = ""
        self._closed_on: date | None = None
        """The day on which all that are closed were reported, as far as is known."""
        self._lineage: Lineage | None = None
        self._replay: Progress | None = None
        self._tables = {table.name: table for table in topology.tables}
        self._since: dict[str, _Since] = {}
        self._app: dict[str, int | float] = dict.fromkeys(_TOTALS, 0)
        self._reported_at = -float("inf")
        self._verdicts: dict[tuple[str, str], tuple[bool, str]] = {}

    def batch(self, event: Mapping[str, Any]) -> None:
        """Take in a committed batch."""
        for name, rows in event.get("rows", {}).items():
            if rows and name in self._tables:
                since = self._since.setdefault(name, _Since())
                since.rows += rows
                since.data_version = event["position"]
        self._lag(event)
        self._app |= {"records/s": float(event["records_per_second"]), "batch ms": int(event["batch_ms"])}
        self._app["records"] += int(event["records"])
        self._app["quarantined"] += int(event.get("quarantined", 0))
        self._app["dropped"] += sum(event.get("dropped", {}).values())
        self._follow_replay(event)

    def fold(self, event: Mapping[str, Any]) -> None:
        """Take in a fold: its tables are worth a report, for plain Delta readers see something new."""
        self._app["fold lag s"] = float(event["fold_lag_s"])
        for name, folded in event["tables"].items():
            if name in self._tables:
                since = self._since.setdefault(name, _Since())
                since.data_version = since.data_version or folded["folded"]
                since.fold = {"fold ms": int(folded["ms"]), "version": int(folded["version"])}

    def idle(self, event: Mapping[str, Any]) -> None:
        """Take in a sign of life."""
        self._lag(event)

    def touched(self, event: Mapping[str, Any]) -> None:
        """Take in which days were touched, by which commit last, as far as everything is folded; at first, and in a new epoch, all."""
        lineage = Lineage.read(event["lineage"])
        if self._lineage is None or self._lineage.epoch != lineage.epoch:
            self._touched.clear()
        self._lineage, self._closed_on = lineage, None
        self._at, self._reached = event["position"], moment(event["stream_time"])
        for name, days in event["days"].items():
            self._touched.setdefault(name, {}).update(days)

    def redeployed(self, position: str) -> None:
        """Report the tables whose last event was by other code: from here on, this code keeps them."""
        for name, table in self._tables.items():
            last = self._instance.get_latest_materialization_event(table_key(self._topology.app, name))
            if last is not None and (last.tags or {}).get(CODE_VERSION_TAG) != table.fingerprint:
                self._since[name] = _Since(data_version=position)
        self.report(position, at_once=True)

    def moved(self, position: str, again: int) -> None:
        """Report every table: an act has taken all of them to another position at once, from which so many records are read again."""
        self._since = {name: _Since(data_version=position) for name in self._tables}
        self._touched.clear()
        self._at, self._reached, self._closed_on = "", None, None
        self._replay = Progress(0, self._clock(), 0) if again else None
        self.report(position, at_once=True)

    def report(self, position: str, *, at_once: bool = False) -> None:
        """Report the tables that changed, if it is time to; `at_once`: whatever the time."""
        now = self._clock()
        if not self._since or (now - self._reported_at < self._every and not at_once):
            return
        for name in [name for name in self._tables if name in self._since]:  # in the order of the topology: a table after what feeds it
            table, since = self._tables[name], self._since[name]
            key = table_key(self._topology.app, name)
            self._emit(
                dg.AssetMaterialization(
                    key,
                    metadata={"position": position, "rows changed": since.rows, **self._app, **since.fold},
                    tags=provenance(self._instance, table, self._topology.app, since.data_version or position),
                )
            )
        self._reported_at = now
        self._since.clear()
        self._app.pop("fold lag s", None)  # it was that of a fold that is told
        self._app |= dict.fromkeys(_TOTALS, 0)  # not left out: a plot has a point for each report
        if self._replay is None:
            self._app = {name: number for name, number in self._app.items() if "replay" not in name}

    def close_days(self, most: int = 25) -> str:
        """Report, as partitions, closed days that weren't reported yet, or were touched since; `most` at a time.

        Whoever reported them, this run or an earlier one. Gives the position up to which all are; "" while there are more.
        """
        if self._days is None:
            return ""
        now = datetime.now(UTC)
        if self._closed_on == now.date():  # nothing was said since, and no day has ended
            return self._at
        for name, table in self._tables.items():
            key = table_key(self._topology.app, name)
            if name not in self._told:
                self._told[name] = recorded_days(self._instance, key)
            told, touched = self._told[name], self._touched.get(name, {})
            closed = self._days.closed(table, self._reached, now)
            versions = {day: touched.get(day) or self._otherwise(name, day, told.get(day, UNTOUCHED)) for day in closed}
            fresh = {day: version for day, version in versions.items() if told.get(day) != version}
            if fresh and most > 0:
                tags = provenance(self._instance, table, self._topology.app, self._at)
                for day, version in list(fresh.items())[:most]:
                    self._emit(day_event(key, day, version, tags, {"position": self._at}))
                    told[day] = version
            most -= len(fresh)
            if most < 0:
                return ""
        self._closed_on = now.date()
        return self._at

    def _otherwise(self, table: str, day: str, told: str) -> str:
        """Give the version of a day of which nothing is said: as it was told, unless the commit that it names is the table's no more.

        Where it is, what it did is trimmed. Where it isn't, nothing is left of it: that is a change, too.
        """
        try:
            last = Position.parse(told.rpartition(" ")[2])
        except UnknownPosition:  # it was never touched
            return told
        assert self._lineage is not None
        upto = Position.parse(self._at).seq
        if self._lineage.passes(last.epoch, last.seq) and not self._lineage.leaves(table, day, last.seq, upto):
            return told
        return f"{UNTOUCHED} {self._at}"

    def check(self, name: str, judge: Callable[[TableDef], Verdict], *, always: bool = False) -> None:
        """Report a check of every table, for those where the verdict is new; `always`: for all."""
        for table in self._topology.tables:
            verdict = judge(table)
            now = (verdict.passed, verdict.says if not verdict.passed else "")
            if always or self._verdicts.get((table.name, name)) != now:
                self._verdicts[table.name, name] = now
                self._emit(verdict.evaluation(table_key(self._topology.app, table.name), name))

    def observe(self, observations: Iterable[dg.AssetObservation]) -> None:
        """Report what topics are like."""
        for observation in observations:
            self._emit(observation)

    def _follow_replay(self, event: Mapping[str, Any]) -> None:
        """Add the numbers of a replay to what is reported; its first batch tells how much there is to read again."""
        if self._replay is None:
            return
        left = sum(event.get("lag", {}).values())
        self._replay.total = self._replay.total or left + int(event["records"])
        self._replay.left = min(left, self._replay.total)
        self._app |= self._replay.numbers(self._clock())
        if not left:
            self._replay = None

    def _lag(self, event: Mapping[str, Any]) -> None:
        self._app |= {f"lag {topic}": int(records) for topic, records in event.get("lag", {}).items()}

    def _emit(self, event: dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation) -> None:
        self._log.log_event(event)
        self.count += 1
