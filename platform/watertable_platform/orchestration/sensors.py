"""Reconcile streams with what people want, and observe topics: the two sensors that are on by default.

The first carries out what `supervisor.decide` says of each app; it keeps nothing but which verdicts it has already told. The second asks
Kafka how far the topics reach. Both run in the code server, so they do little, and wait for nobody.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import dagster as dg

from watertable.errors import WatertableError
from watertable.project import LoadedApp
from watertable.settings import Settings
from watertable_platform.orchestration import checks, topics, workers
from watertable_platform.orchestration import lease as leases
from watertable_platform.orchestration.child import alive
from watertable_platform.orchestration.history import attempts, breaking_code, ghosts, job_name, own_tags, owned, recorded_code
from watertable_platform.orchestration.supervisor import (
    Attempt,
    Bury,
    Decision,
    Ended,
    GiveUp,
    HandOver,
    Hold,
    Launch,
    Leave,
    Queued,
    Status,
    Tag,
    Wait,
    decide,
    telling,
)
from watertable_platform.orchestration.topics import Watched
from watertable_platform.orchestration.translator import table_key

RECONCILE_SECONDS: Final = 5
OBSERVE_SECONDS: Final = 30


@dataclass(slots=True)
class _Outcome:
    requests: list[dg.RunRequest] = field(default_factory=list)
    events: list[dg.AssetCheckEvaluation] = field(default_factory=list)
    says: list[str] = field(default_factory=list)


def build_reconcile_sensor(
    apps: Mapping[str, LoadedApp], jobs: Sequence[dg.JobDefinition], settings: Settings, loaded_at: float
) -> dg.SensorDefinition:
    """Make the sensor that keeps each app's stream in the state that a person wanted."""

    @dg.sensor(
        name="reconcile_streams",
        jobs=jobs,
        minimum_interval_seconds=RECONCILE_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Keeps every launched stream running: restarts what crashed, hands over to new code, ends runs whose worker is gone.",
    )
    def reconcile_streams(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        told: dict[str, Any] = json.loads(context.cursor or "{}")
        outcome = _Outcome()
        outcome.says += [f"run {run_id}: {workers.GONE}" for run_id in workers.bury(context.instance)]
        for name, run_id in ghosts(context.instance, settings, apps):
            _bury(run_id, name, settings, context.instance)
            outcome.says.append(f"{name}, which isn't loaded: run {run_id} is ended, for its worker is gone")
        for app in apps.values():
            past = attempts(context.instance, settings, app.name)
            breaking = breaking_code(settings, app)
            decision = decide(past, loaded=app.topology.fingerprint, loaded_at=loaded_at, now=time.time(), breaking=breaking)
            told[app.name] = _carry_out(decision, past, app, settings, context.instance, outcome, told.get(app.name, {}), breaking)
        return dg.SensorResult(
            run_requests=outcome.requests,
            asset_events=outcome.events,
            cursor=json.dumps({name: told[name] for name in apps}),
            skip_reason=None if outcome.requests else "; ".join(outcome.says) or "no apps",
        )

    return reconcile_streams


def build_topics_sensor(watched: Sequence[Watched], settings: Settings) -> dg.SensorDefinition:
    """Make the sensor that observes topics, and reports those where anything moved."""

    @dg.sensor(
        name="observe_topics",
        minimum_interval_seconds=OBSERVE_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports the topics' end offsets and lag, and their identity as data version.",
    )
    def observe_topics(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        seen: dict[str, str] = json.loads(context.cursor or "{}")
        try:
            found = topics.observe(settings, watched)
        except WatertableError as error:  # a cluster that isn't there, or a secret
            return dg.SkipReason(str(error))
        now = {o.asset_key.path[-1]: topics.fingerprint(o) for o in found}
        moved = [o for o in found if seen.get(o.asset_key.path[-1]) != now[o.asset_key.path[-1]]]
        says = f"{len(moved)} of {len(watched)} topics moved"
        return dg.SensorResult(asset_events=moved, cursor=json.dumps(seen | now), skip_reason=says)

    return observe_topics


def _carry_out(
    decision: Decision,
    past: Sequence[Attempt],
    app: LoadedApp,
    settings: Settings,
    instance: dg.DagsterInstance,
    outcome: _Outcome,
    told: Mapping[str, str],
    breaking: str,
) -> dict[str, str]:
    """Do what was decided for one app, and return what has been told about it by now."""
    now = dict(told)
    last = next(iter(telling(past) or past), None)
    last_id = last.run_id if last else ""
    outcome.says.append(f"{app.name}: {getattr(decision, 'reason', type(decision).__name__)}")
    match decision:
        case Launch(reason=reason):
            tags: dict[str, str] = {Tag.BY: "supervisor", Tag.REASON: reason}
            outcome.requests.append(dg.RunRequest(job_name=job_name(app.name), run_config=_config(instance, last_id), tags=tags))
        case Hold(run_id=run_id, reason=reason) if now.get("held") != f"{run_id} {reason}":
            now["held"] = f"{run_id} {reason}"
            instance.add_run_tags(run_id, {Tag.HELD: reason})
        case Leave(reason="running") if held := now.pop("held", ""):
            if instance.has_run(run_id := held.partition(" ")[0]):  # the last one may be a second copy of it, that waits
                instance.add_run_tags(run_id, {Tag.HELD: ""})
        case HandOver(run_id=run_id):
            instance.add_run_tags(run_id, {Tag.HAND_OVER: app.topology.fingerprint})
        case Bury(run_id=run_id):
            _bury(run_id, app.name, settings, instance)
            outcome.events += _evaluations(app, checks.STREAM_ALIVE, checks.stream_alive(decision))
        case GiveUp() if now.get("gave_up") != last_id:
            now["gave_up"] = last_id
            outcome.events += _at_rest(app, decision, settings)
        case Queued(run_id=run_id) if decision.late and now.get("late") != run_id:  # it can't tell itself
            now["late"] = run_id
            outcome.events += _evaluations(app, checks.STREAM_ALIVE, checks.stream_alive(decision))
        case Wait(refused=True) if now.get("refused") != last_id:  # the run that was to tell never began
            now["refused"] = last_id
            outcome.events += _evaluations(app, checks.STREAM_ALIVE, checks.stream_alive(decision))
        case Leave() if last and last.status is Status.CANCELED and now.get("stopped") != last_id:
            now["stopped"] = last_id  # the run said so too, but a check counts for the latest materialization only, maybe an act's
            outcome.events += _at_rest(app, decision, settings)
        case _:
            pass
    code = f"{last.fingerprint if last else ''} {app.topology.fingerprint} {breaking}".rstrip()
    if last and last.status is not Status.LIVE and now.get("code") != code:  # a live run says it itself, within its own run
        now["code"] = code
        for table in app.topology.tables:
            key = table_key(app.name, table.name)
            outcome.events.append(checks.deployed_code(table, recorded_code(instance, key), breaking).evaluation(key, checks.DEPLOYED_CODE))
    return now


def _config(instance: dg.DagsterInstance, run_id: str) -> Mapping[str, Any]:
    """Give the next run the last one's configuration; taking over another environment's lease was meant once."""
    last = instance.get_run_by_id(run_id)
    config: Mapping[str, Any] = last.run_config if last is not None else {}
    kept = {op: {k: v for k, v in of.get("config", {}).items() if k != "take_over"} for op, of in config.get("ops", {}).items()}
    return {"ops": {op: {"config": of} for op, of in kept.items() if of}}


def _bury(run_id: str, app: str, settings: Settings, instance: dg.DagsterInstance) -> None:
    """Record the end of a run whose worker is gone, and end its driver should that still be there."""
    lease = leases.of_run(leases.read(settings, app), run_id)
    if lease is not None and not lease.worker_lives and alive(lease.driver, lease.driver_birth):
        try:
            os.killpg(lease.driver, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    run = instance.get_run_by_id(run_id)
    if run is None or (run.is_finished and (run.status is not dg.DagsterRunStatus.FAILURE or Tag.ENDED in own_tags(run))):
        return  # it ended by itself since, and has said why
    if run.status is not dg.DagsterRunStatus.CANCELING:  # a person who wanted it stopped still does
        tags: dict[str, str] = {**owned(run), Tag.ENDED: str(Ended.GHOST)}  # a tag takes text, and no enum
        if lease is not None and lease.position:  # else it is where it began, and its tag has that
            tags[Tag.POSITION] = lease.position
        instance.add_run_tags(run_id, tags)
    if not run.is_finished:  # Dagster's own look at its workers may have come first
        instance.report_run_canceled(run, message="its worker is gone; marked as ended by the reconcile sensor")


def _at_rest(app: LoadedApp, decision: Decision, settings: Settings) -> list[dg.AssetCheckEvaluation]:
    """Tell that a stream stands, and what nobody knows any more since it does."""
    held = leases.read(settings, app.name)
    told = (
        (checks.STREAM_ALIVE, checks.stream_alive(decision)),
        (checks.FRESHNESS, checks.freshness(held)),
        (checks.FOLD_LAG, checks.fold_lag(held, settings.fold_seconds)),
    )
    return [evaluation for name, verdict in told for evaluation in _evaluations(app, name, verdict)]


def _evaluations(app: LoadedApp, name: str, verdict: checks.Verdict) -> list[dg.AssetCheckEvaluation]:
    return [verdict.evaluation(table_key(app.name, table.name), name) for table in app.topology.tables]
