"""Define the six checks that every table has, and judge them: by the stream itself as it runs, and by a person's click.

Each judgement is a pure function of a few facts, so whoever has the facts may make it. The running stream does, within its own run:
Dagster holds a check to be current for a later materialization only where both come from one run. Nothing here looks at event time, so
historic data and idle topics stay green. `parity` alone is judged by nobody but the job `parity__<app>`, which reads all records again; a
click shows what that came to.
"""

# No `from __future__ import annotations` here: Dagster reads the annotation of a `context` parameter as it stands.
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from dagster._core.storage.asset_check_execution_record import COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES

from watertable.plan.plan import TableDef, Topology
from watertable.project import LoadedApp
from watertable.settings import Settings
from watertable_platform.orchestration import lease as leases
from watertable_platform.orchestration.history import attempts, breaking_code, recorded_code
from watertable_platform.orchestration.lease import Lease
from watertable_platform.orchestration.supervisor import Crash, Decision, GiveUp, HandOver, Hold, Leave, Queued, decide
from watertable_platform.orchestration.translator import table_key

if TYPE_CHECKING:
    from watertable.acts.shadow import TableDiff

STREAM_ALIVE: Final = "stream_alive"
DEPLOYED_CODE: Final = "deployed_code"
FRESHNESS: Final = "freshness"
FOLD_LAG: Final = "fold_lag"
QUARANTINE: Final = "quarantine"
PARITY: Final = "parity"

BEHIND: Final = 300.0
"""Seconds for which a stream may have unread records before its tables count as late."""
FOLD_SECONDS: Final = 60.0
"""How far, in seconds, a plain Delta reader may be behind, at least; twice the time between two folds, where that is more."""
_DESCRIPTIONS: Final = {
    STREAM_ALIVE: "The stream is in the state that a person wanted: launched means running, whatever crashed in between.",
    DEPLOYED_CODE: "The code that wrote the table's last changes is the code that is loaded.",
    FRESHNESS: f"The stream hasn't had unread records for more than {BEHIND:.0f} s. Idle topics and old data are fresh.",
    FOLD_LAG: f"A plain Delta reader is at most {FOLD_SECONDS:.0f} s behind the stream; twice `fold_seconds`, where that is more.",
    QUARANTINE: "No run in Dagster has had a record refused for an hour. What is refused, by any run, `watertable quarantine` shows.",
    PARITY: "The table has the rows that its records make, read anew in other batches, as the job `parity__<app>` has found last.",
}
BUILT_IN: Final = frozenset(_DESCRIPTIONS)
"""The names that no suite can have for a check of its own."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say whether a check holds, and in one sentence why."""

    passed: bool
    says: str
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
    metadata: Mapping[str, str | int | float] | None = None

    def evaluation(self, key: dg.AssetKey, name: str) -> dg.AssetCheckEvaluation:
        """Give the event to report for one table."""
        return dg.AssetCheckEvaluation(key, name, self.passed, self.metadata, severity=self.severity, description=self.says)

    def result(self, key: dg.AssetKey, name: str) -> dg.AssetCheckResult:
        """Give the result of a check that was asked for."""
        return dg.AssetCheckResult(
            asset_key=key, check_name=name, passed=self.passed, metadata=self.metadata, severity=self.severity, description=self.says
        )


def check_specs(topology: Topology) -> list[dg.AssetCheckSpec]:
    """List the checks of an app's tables."""
    return [
        dg.AssetCheckSpec(name, asset=table_key(topology.app, table.name), description=description)
        for table in topology.tables
        for name, description in _DESCRIPTIONS.items()
    ]


def build_checks(app: LoadedApp, settings: Settings, loaded_at: float) -> dg.AssetChecksDefinition:
    """Make the checks of an app's tables executable: `Execute checks` judges them on the spot, stream or no stream."""

    @dg.multi_asset_check(name=f"checks__{app.name}", specs=check_specs(app.topology), can_subset=True)
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        held = leases.read(settings, app.name)
        past, breaking = attempts(context.instance, settings, app.name), breaking_code(settings, app)
        decision = decide(past, loaded=app.topology.fingerprint, loaded_at=loaded_at, now=time.time(), breaking=breaking)
        waits = held_back(decision.reason) if isinstance(decision, Hold) else None
        for table in app.topology.tables:
            key = table_key(app.name, table.name)
            for name, verdict in (
                (STREAM_ALIVE, stream_alive(decision)),
                (DEPLOYED_CODE, waits or deployed_code(table, recorded_code(context.instance, key), breaking)),
                (FRESHNESS, freshness(held)),
                (FOLD_LAG, fold_lag(held, settings.fold_seconds)),
                (QUARANTINE, quarantine(held)),
                (PARITY, held_last(context.instance, key, app.name)),
            ):
                if dg.AssetCheckKey(key, name) in context.selected_asset_check_keys:
                    yield verdict.result(key, name)

    return checks


def stream_alive(decision: Decision) -> Verdict:
    """Judge what the supervisor would do: a stream that runs, or hands over, is alive."""
    match decision:
        case Leave(reason="running") | HandOver():
            return Verdict(True, "running")
        case Queued():
            return Verdict(not decision.late, decision.reason, dg.AssetCheckSeverity.WARN)
        case Hold():
            return Verdict(True, "running, under the code from before")
        case GiveUp(crash=crash):
            return Verdict(False, decision.reason, metadata=place(crash))
        case Leave(reason=reason):
            return Verdict(False, reason, dg.AssetCheckSeverity.WARN)
        case _:
            return Verdict(False, f"not running: {getattr(decision, 'reason', 'its worker vanished')}", dg.AssetCheckSeverity.WARN)


def crashed(crash: Crash) -> Verdict:
    """Judge a stream that has just crashed, before the supervisor has decided what comes next."""
    where = f" ({crash.place()})" if crash.place() else ""
    return Verdict(False, f"crashed{where}: {crash.error}: {crash.message}", metadata=place(crash))


def place(crash: Crash) -> dict[str, str]:
    """Give a crash's error and place as metadata, as far as they are known; as text, for nobody wants an offset plotted."""
    return {name: str(value) for name in _PLACE if (value := getattr(crash, name)) not in (None, "")}


def deployed_code(table: TableDef, recorded: str | None, breaking: str = "") -> Verdict:
    """Compare the fingerprint that wrote the table last with the one that is loaded; `breaking` is why a launch would refuse that one."""
    if recorded is None:
        return Verdict(True, "nothing is written yet", metadata={"loaded": table.fingerprint})
    same = recorded == table.fingerprint
    way = breaking or "launch the stream to hand over"
    says = "the loaded code wrote it" if same else f"the loaded code differs from what wrote it: {way}"
    return Verdict(same, says, dg.AssetCheckSeverity.WARN, {"recorded": recorded, "loaded": table.fingerprint})


def held_back(reason: str) -> Verdict:
    """Say of a running stream why it isn't handed over to the code that is loaded."""
    return Verdict(False, f"it runs on under the code from before: {reason}", dg.AssetCheckSeverity.WARN)


def freshness(held: Lease | None) -> Verdict:
    """Judge by lag alone: how long the stream has had records that it hasn't read, or may have had, where that isn't known."""
    if held is None:
        return Verdict(False, "the stream has never run", dg.AssetCheckSeverity.WARN)
    lag = sum(held.lag.values())
    behind = held.beat - held.behind_since if held.behind_since else 0.0
    if not held.is_held:
        was = f"; it was {lag} records behind" if held.lag else ""
        return Verdict(False, f"unknown: the stream doesn't run{was}", dg.AssetCheckSeverity.WARN, {"lag": lag} if held.lag else None)
    says = f"records wait to be read, and none for more than {BEHIND:.0f} s" if lag else "at the head of its topics"  # stays true
    if not held.lag:
        says = f"how many records wait isn't known{' yet' * (not held.problem)}"
    if behind > BEHIND:  # a verdict is told when it is new: so once a minute
        says = f"there were unread records for {behind // 60:.0f} min" if held.lag else f"{says}, for {behind // 60:.0f} min"
    metadata = {"behind for s": round(behind, 1)} | ({"lag": lag} if held.lag else {}) | ({"problem": held.problem} if held.problem else {})
    return Verdict(behind <= BEHIND, says, dg.AssetCheckSeverity.WARN, metadata)


def fold_lag(held: Lease | None, every: float) -> Verdict:
    """Judge by what waits for its fold, one of which comes `every` so many seconds: how long plain Delta readers have lacked it.

    Where no stream runs, nobody folds, and nobody knows who has since.
    """
    if held and held.unfolded_since and not held.is_held:
        waits = f"commits since {_moment(held.unfolded_since)} may wait for their fold: `watertable fold {held.app}` does it"
        return Verdict(False, f"unknown: the stream doesn't run; {waits}", dg.AssetCheckSeverity.WARN)
    age = held.beat - held.unfolded_since if held and held.unfolded_since else 0.0
    most = max(FOLD_SECONDS, 2 * every)
    says = f"commits wait for their fold, and none for more than {most:.0f} s" if age else "no commit waits for its fold"
    if late := age > most:
        says = f"the oldest commit that waits for its fold is {age // 60:.0f} min old"
    return Verdict(not late, says, dg.AssetCheckSeverity.WARN, {"fold lag s": round(age, 3)})


def quarantine(held: Lease | None) -> Verdict:
    """Judge by when a record was refused last; what says so stays the same for as long as they come."""
    if held is None or not held.refuses:
        return Verdict(True, "no run in Dagster has had a record refused in the last hour")
    says = f"records have been refused since {_moment(held.refused_since)}: `watertable quarantine {held.app}` shows them, and why"
    return Verdict(False, says, dg.AssetCheckSeverity.WARN)


def parity(told: "TableDiff", done: Mapping[str, Any], now: datetime) -> Verdict:
    """Judge by how a table differs from what its records make; `done` says of which, and where the app was."""
    metadata = dict(zip(_TOLD, (done["position"], done["since"], told.rows), strict=True))
    where = f"at {done['position']}, on {now:%F %R}Z"
    if told.table in done["apart"]:
        says = f"{where}: {told.rows} rows aren't what its records make; the diff is on the run"
        return Verdict(False, says, metadata=metadata)
    if told.note or (told.rows and told.by_arrival):
        why = told.note or "it depends on arrival, which a replay doesn't repeat"
        return Verdict(True, f"{where}: not held row by row: {why}", metadata=metadata)
    return Verdict(True, f"{where}: it has the rows that its records make", metadata=metadata)


def held_last(instance: dg.DagsterInstance, key: dg.AssetKey, app: str) -> Verdict:
    """Say what the last `parity__<app>` came to; that none was yet is no failure."""
    done = COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES  # this run has planned it, too
    records = instance.event_log_storage.get_asset_check_execution_history(dg.AssetCheckKey(key, PARITY), limit=1, status=done)
    evaluation = records[0].evaluation if records else None
    if evaluation is None:
        return Verdict(True, f"not held yet: the job parity__{app} does it")
    told = ((name, evaluation.metadata[name].value) for name in _TOLD if name in evaluation.metadata)
    metadata = {name: value for name, value in told if isinstance(value, str | int)}
    return Verdict(evaluation.passed, evaluation.description or "", evaluation.severity, metadata)


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%F %T}Z"


_TOLD: Final = ("position", "since", "rows that differ")
_PLACE: Final = ("topic", "partition", "offset", "location", "position", "error")
