"""Bring an app's tables to the head of its topics: what `Materialize` on a table does.

It is a bounded act and it never makes a second writer. Where the live stream runs, there is nothing to do but to see that it has read
what was there at the click; else `watertable run --available-now` does it, for all tables of the app at once, as they only move
together. Acts of one app run one at a time, in the pool `act__<app>`.
"""

# No `from __future__ import annotations` here: Dagster reads the annotation of a `config` parameter as it stands.
import os
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
from watertable_platform.lease import Lease
from watertable_platform.stream_job import environment
from watertable_platform.translator import TableData, WatertableTranslator, table_key

GRACE: Final = 40.0


class ActConfig(dg.Config):
    """Configure a bounded act."""

    wait_seconds: float = Field(600.0, description="how long to wait for a live stream to read what was there at the click")


def build_tables(app: LoadedApp, settings: Settings, translator: WatertableTranslator) -> dg.AssetsDefinition:
    """Make the assets of an app's tables, with the bounded act as their compute."""
    keys = [table_key(app.name, table.name) for table in app.topology.tables]
    specs = [translator.get_asset_spec(TableData(app.topology, table, settings)) for table in app.topology.tables]

    @dg.multi_asset(name=f"materialize__{app.name}", specs=specs, can_subset=True, pool=f"act__{app.name}")
    def materialize(context: dg.AssetExecutionContext, config: ActConfig) -> Iterator[dg.MaterializeResult[Any]]:
        held = leases.read(settings, app.name)
        if held is not None and held.is_held:
            told = _wait_for_stream(context, config, app, settings)
        else:
            told = _run_bounded(context, app, settings)
        position = str(told["position"])
        for key in keys:
            if key in context.selected_asset_keys:
                yield dg.MaterializeResult(asset_key=key, metadata=told, data_version=dg.DataVersion(position))

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
    run_id, instance = context.run_id, context.instance
    try:
        held = leases.take(settings, Lease(app=app.name, run_id=run_id, environment=environment(settings, instance), pid=os.getpid()))
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
