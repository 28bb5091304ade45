"""Bring an app's tables to the head of its topics: what `Materialize` on a table does.

It is a bounded act and it never makes a second writer. Where the live stream runs, there is nothing to do but to see that it has read
what was there at the click; else `watertable run --available-now` does it, for all tables of the app at once, as they only move
together. Acts of one app run one at a time, in the pool `act__<app>`.

Asked for days, it reports those that are closed by then, and says which aren't. It recomputes nothing: under the same code, the same
records give the same rows.
"""

# No `from __future__ import annotations` here: Dagster reads the annotation of a `config` parameter as it stands.
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import dagster as dg
from pydantic import Field

from watertable.errors import WatertableError
from watertable.project import LoadedApp
from watertable.settings import Settings
from watertable_platform import lease as leases
from watertable_platform.child import Child, Event, birth, run_command
from watertable_platform.days import Days, moment
from watertable_platform.lease import Lease
from watertable_platform.reporting import provenance
from watertable_platform.stream_job import environment
from watertable_platform.translator import TableData, WatertableTranslator, table_key

GRACE: Final = 40.0
RANGE: Final = "dagster/asset_partition_range_start"


class ActConfig(dg.Config):
    """Configure a bounded act."""

    wait_seconds: float = Field(600.0, description="how long to wait for a live stream to read what was there at the click")


def build_tables(app: LoadedApp, settings: Settings, translator: WatertableTranslator) -> dg.AssetsDefinition:
    """Make the assets of an app's tables, with the bounded act as their compute."""
    tables = {table_key(app.name, table.name): table for table in app.topology.tables}
    days = Days.of(settings, app.name)
    specs = [translator.get_asset_spec(TableData(app.topology, table, settings, days)) for table in app.topology.tables]
    policy = dg.BackfillPolicy.single_run() if days else None

    @dg.multi_asset(name=f"materialize__{app.name}", specs=specs, can_subset=True, pool=f"act__{app.name}", backfill_policy=policy)
    def materialize(context: dg.AssetExecutionContext, config: ActConfig) -> Iterator[dg.MaterializeResult[Any]]:
        held = leases.read(settings, app.name)
        if held is not None and held.is_held:
            told = _wait_for_stream(context, config, app, settings)
        else:
            told = _run_bounded(context, app, settings)
        version = dg.DataVersion(str(told["position"]))
        asked = set(context.partition_keys) if context.has_partition_key or RANGE in context.run.tags else set()
        now = leases.read(settings, app.name)
        for key, table in tables.items():
            if key not in context.selected_asset_keys:
                continue
            closed = asked & set(days.closed(table, moment(now.stream_time) if now else None)) if days else set()
            if closed == asked:
                yield dg.MaterializeResult(asset_key=key, metadata=told, data_version=version)
                continue
            context.log.warning(f"{table.name}: {len(asked - closed)} of {len(asked)} days can still change, from {min(asked - closed)} on")
            tags = provenance(context.instance, table, app.name, version.value)
            for day in sorted(closed):
                context.log_event(dg.AssetMaterialization(key, partition=day, metadata=told, tags=tags))

    return materialize


def _wait_for_stream(context: dg.AssetExecutionContext, config: ActConfig, app: LoadedApp, settings: Settings) -> Mapping[str, Any]:
    """Wait until the live stream has read what is there now; return where it stands.

    Raises `Failure` when the time is over, or when the stream ends meanwhile.
    """
    from watertable.kafka.admin import Admin
    from watertable.kafka.config import Cluster

    admin = Admin(Cluster.of(settings))
    goal = admin.latest(admin.partitions([topic.name for topic in app.topology.topics]))
    deadline = time.monotonic() + config.wait_seconds
    while True:
        held = leases.read(settings, app.name)
        if held is None or not held.is_held:
            raise dg.Failure(f"the live stream of {app.name} ended while this waited for it; materialize again")
        at = admin.mirrored(app.name, goal)
        behind = sum(max(0, end - at.get(partition, 0)) for partition, end in goal.items())
        if not behind:
            context.log.info(f"{app.name} is at the head: its live stream (run {held.run_id}) keeps it there")
            return {"position": held.position, "act": "already at head: the live stream keeps it"}
        if time.monotonic() > deadline:
            raise dg.Failure(f"the live stream of {app.name} is still {behind} records behind after {config.wait_seconds:.0f} s")
        context.log.info(f"the live stream has {behind} records to read")
        time.sleep(1.0)


def _run_bounded(context: dg.AssetExecutionContext, app: LoadedApp, settings: Settings) -> Mapping[str, Any]:
    """Run the app up to what its topics hold now, under its lease; raise `Failure` with the driver's own words."""
    run_id, instance = context.run.run_id, context.instance
    try:
        before = leases.read(settings, app.name)
        ours = Lease(
            app=app.name,
            run_id=run_id,
            environment=environment(settings, instance),
            stream_time=before.stream_time if before else "",
            act=True,
        )
        held = leases.take(settings, ours)
    except WatertableError as error:
        raise dg.Failure(str(error)) from None
    log = settings.home_folder / "logs" / f"{app.name}.act.log"
    env = {"WATERTABLE_PROJECT": str(settings.project)}
    records, rows = 0, 0
    last: Event = {}
    try:
        with Child(run_command(app.name, "--available-now"), env=env, cwd=settings.project, log=log, grace=GRACE) as child:
            held = leases.renew(settings, held, driver=child.pid, driver_birth=birth(child.pid))
            while not child.ended:
                event = child.event(1.0)
                if event is None:
                    held = leases.renew(settings, held)
                    continue
                last = event
                held = leases.renew(settings, held, position=event.get("position") or held.position)
                if event["event"] == "batch":
                    held = leases.renew(settings, held, stream_time=event.get("stream_time") or held.stream_time)
                    records, rows = records + event["records"], rows + sum(event["rows"].values())
                    context.log.info(f"{event['position']}: {event['records']} records, {sum(event['lag'].values())} to read")
            code = child.exit_code()
        if code != 0:
            raise dg.Failure(_why(last, code), metadata={"exit code": code, "log": str(log), "driver's last words": child.tail()})
        return {"position": held.position, "records": records, "rows changed": rows, "act": "brought to the head of its topics"}
    finally:
        leases.renew(settings, held, released=True)


def _why(last: Event, code: int) -> str:
    if last.get("event") == "failed":
        record = f" ({last['topic']}, partition {last['partition']}, offset {last['offset']})" if last.get("topic") else ""
        return f"{last['error']}: {last['message']}{record}"
    return f"the driver ended with exit code {code}"
