"""Read Dagster's records as the supervisor's facts: a stream's past runs, and the code that wrote a table."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

import dagster as dg
from dagster._core.definitions.data_version import CODE_VERSION_TAG  # the names of the tags are a public contract, their constants aren't
from dagster._core.storage.tags import PARENT_RUN_ID_TAG

from watertable.plan.deployment import classify
from watertable.project import LoadedApp
from watertable.settings import Settings
from watertable_platform.orchestration import lease as leases
from watertable_platform.orchestration.lease import SILENT, Lease
from watertable_platform.orchestration.supervisor import Attempt, Crash, Ended, Status, Tag

LOOK_BACK: Final = 20
FURTHEST: Final = 200
"""So many runs are looked at for `LOOK_BACK` of them that weren't refused."""
_OF_ONE_RUN: Final = (Tag.BY, Tag.REASON, Tag.FINGERPRINT, Tag.POSITION, Tag.ENDED, Tag.CRASH, Tag.HELD, Tag.HAND_OVER)
_RUNNING: Final = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)


def job_name(app: str) -> str:
    """Name the job that runs an app's live stream."""
    return f"stream__{app}"


def attempts(instance: dg.DagsterInstance, settings: Settings, app: str) -> list[Attempt]:
    """List the last runs of an app's stream, newest first: `LOOK_BACK` that began, as far as there are, and those refused in between."""
    held = leases.read(settings, app)
    found: list[Attempt] = []
    while len(found) < FURTHEST and sum(a.ended is not Ended.REFUSED for a in found) < LOOK_BACK:
        before = found[-1].run_id if found else None
        records = instance.get_run_records(dg.RunsFilter(job_name=job_name(app)), limit=LOOK_BACK, cursor=before)
        found += [_attempt(record, held) for record in records]
        if len(records) < LOOK_BACK:
            break
    return found


def ghosts(instance: dg.DagsterInstance, settings: Settings, loaded: Collection[str]) -> list[tuple[str, str]]:
    """List app and run of the streams that run for good, for their worker is gone and their app isn't loaded any more.

    Their lease tells: a run that has none here may be another project's.
    """
    streams = [run for run in instance.get_runs(dg.RunsFilter(statuses=_RUNNING)) if run.job_name.startswith(job_name(""))]
    of = [(run.job_name.removeprefix(job_name("")), run.run_id) for run in streams]
    held = [leases.of_run(leases.read(settings, app), run_id) for app, run_id in of if app not in loaded]
    return [(lease.app, lease.run_id) for lease in held if lease is not None and not lease.worker_lives]


def breaking_code(settings: Settings, app: LoadedApp) -> str:
    """Say what the loaded code would make wrong, after the code that the app goes on by; "" for nothing, or where that isn't known."""
    before = leases.recorded_code(settings, app.name)
    return "" if before is None or before.fingerprint == app.topology.fingerprint else classify(before, app.topology).words


def recorded_code(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    """Return the code version of a table's last materialization that tells one; what a person reports by hand in the UI doesn't."""
    told = ((record.event_log_entry.tags or {}).get(CODE_VERSION_TAG) for record in instance.fetch_materializations(key, LOOK_BACK).records)
    return next(filter(None, told), None)


def own_tags(run: dg.DagsterRun) -> dict[str, str]:
    """Give what a run's tags say of this very run: of one that was re-executed, nothing before it has owned them."""
    return {} if _inherits(run) else {name: value for name, value in run.tags.items() if value}


def owned(run: dg.DagsterRun) -> dict[str, str]:
    """Give the tags to set before a run's own: they take back what a re-executed one has inherited, who launched it included."""
    return {Tag.OWN: run.run_id, **dict.fromkeys(_OF_ONE_RUN, "")} if _inherits(run) else {}


def _inherits(run: dg.DagsterRun) -> bool:
    return PARENT_RUN_ID_TAG in run.tags and run.tags.get(Tag.OWN) != run.run_id


def _attempt(record: dg.RunRecord, held: Lease | None) -> Attempt:
    run = record.dagster_run
    tags = own_tags(run)
    crash = tags.get(Tag.CRASH)
    ended = tags.get(Tag.ENDED)
    return Attempt(
        run_id=run.run_id,
        status=_status(run.status),
        by_person=tags.get(Tag.BY) != "supervisor",
        ended=Ended(ended) if ended in tuple(Ended) else None,
        position=tags.get(Tag.POSITION, ""),
        fingerprint=tags.get(Tag.FINGERPRINT, ""),
        started_at=record.start_time or record.create_timestamp.timestamp(),
        ended_at=record.end_time or 0.0,
        crash=Crash.from_tag(crash) if crash else None,
        begun=run.status is dg.DagsterRunStatus.STARTED or record.start_time is not None,
        handing_over=Tag.HAND_OVER in tags,
        worker_gone=_worker_gone(record, held),
    )


def _status(status: dg.DagsterRunStatus) -> Status:
    match status:
        case dg.DagsterRunStatus.SUCCESS:
            return Status.DONE
        case dg.DagsterRunStatus.FAILURE:
            return Status.FAILED
        case dg.DagsterRunStatus.CANCELED:
            return Status.CANCELED
        case _:
            return Status.LIVE


def _worker_gone(record: dg.RunRecord, held: Lease | None) -> bool:
    """Tell whether nobody carries out a run that Dagster believes to be running, or that Dagster itself failed for want of a worker.

    Its lease tells: a worker that ends by itself gives it back. A run that never got so far as to take one is given `SILENT` seconds.
    """
    run = record.dagster_run
    lease = leases.of_run(held, run.run_id)
    if run.status in _RUNNING:
        began = record.start_time or record.create_timestamp.timestamp()
        return time.time() - began > SILENT if lease is None else not lease.worker_lives
    unsaid = run.status is dg.DagsterRunStatus.FAILURE and Tag.ENDED not in own_tags(run)
    return unsaid and lease is not None and not lease.released and not lease.worker_lives
