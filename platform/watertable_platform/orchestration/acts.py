"""Bring an app's tables to the head of its topics, or rewind them: what `Materialize` and `Backfill` on a table do.

`Materialize` is a bounded act and never makes a second writer. Where the live stream runs, there is nothing to do but to see that it has
read what was there at the click, and by the code that is loaded; else `watertable run --available-now` does it, for all tables of the app
at once, as they only move together. Acts of one app run one at a time, in the pool `act__<app>`.

With days of windowed tables alone, their windows that start on these days are made anew beside the app, and joined: nothing else moves.
With days of other tables, or where something is made of the changes of a windowed one, it is a rewind in place, and says so: the app goes
back to the start of the first of them, in event time, and everything from there on is read again, up to where the topics end. Then days
before are as they were, days after are made anew too, and no table is left out. The plan is shown first; a live stream goes on by
itself behind either. Then those of the days that are closed are reported.
"""

# No `from __future__ import annotations` here: Dagster reads the annotation of a `config` parameter as it stands.
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION as SAYS_NOTHING
from pydantic import Field

from watertable.errors import WatertableError
from watertable.project import LoadedApp
from watertable.settings import Settings
from watertable_platform.orchestration import checks, workers
from watertable_platform.orchestration import lease as leases
from watertable_platform.orchestration.child import Child, Event, birth, obituary, run_command
from watertable_platform.orchestration.days import Days
from watertable_platform.orchestration.history import breaking_code
from watertable_platform.orchestration.lease import Lease
from watertable_platform.orchestration.reporting import UNTOUCHED, Progress, Reporter, day_event, provenance, recorded_days
from watertable_platform.orchestration.rewind_jobs import SHOWN, ReplayConfig, carry_out, shown
from watertable_platform.orchestration.translator import TableData, WatertableTranslator, table_key

if TYPE_CHECKING:
    from watertable.store.commits import Position

GRACE: Final = 40.0
RANGE: Final = "dagster/asset_partition_range_start"
TELL_SECONDS: Final = 5.0
"""Seconds between two reports of how far a replay is."""
ABSENCE: Final = 60.0
"""Seconds for which a live stream may be gone while an act waits for it: a crash comes back."""
NOTHING: Final = ("NothingToRewind", "TableNotFound")
"""How a command's words begin that found nothing to rewind: the app hasn't come so far."""


class ActConfig(ReplayConfig):
    """Configure a bounded act; all but `wait_seconds` is for days."""

    dry_run: bool = Field(False, description="show the plan, on the run and on the tables, and change nothing")
    wait_seconds: float = Field(600.0, description="how long to wait for a live stream that doesn't come on")


@dataclass
class _Act:
    """Hold one act: what was asked for, of which app."""

    context: dg.AssetExecutionContext
    config: ActConfig
    app: LoadedApp
    settings: Settings
    days: Days | None
    asked: Sequence[str] = ()
    replay: Progress | None = None
    _told_at: float = field(default=0.0, init=False)

    @property
    def selected(self) -> list[dg.AssetKey]:
        """List the tables that were asked for."""
        return [key for t in self.app.topology.tables if (key := table_key(self.app.name, t.name)) in self.context.selected_asset_keys]

    def observe(self, **metadata: Any) -> None:
        """Note something on every selected table: it is on the run too, and plots."""
        for key in self.selected:
            self.context.log_event(dg.AssetObservation(key, metadata=metadata))

    def replays(self, records: int) -> None:
        """Begin to follow a replay of so many records."""
        self.replay = Progress(records, time.monotonic(), records)

    def progress(self, left: int, *, at_once: bool = False) -> None:
        """Tell how far the replay is, now and then."""
        now = time.monotonic()
        if self.replay is None or (now - self._told_at < TELL_SECONDS and not at_once):
            return
        self._told_at, self.replay.left = now, min(left, self.replay.total)
        numbers = self.replay.numbers(now)
        self.context.log.info(", ".join(f"{name} {number:,}" for name, number in numbers.items()))
        self.observe(**numbers)


def build_tables(app: LoadedApp, settings: Settings, translator: WatertableTranslator) -> dg.AssetsDefinition:
    """Make the assets of an app's tables, with the bounded act as their compute."""
    days = Days.of(settings, app.name)
    specs = [translator.get_asset_spec(TableData(app.topology, table, settings, days)) for table in app.topology.tables]
    policy = dg.BackfillPolicy.single_run() if days else None

    @dg.multi_asset(name=f"materialize__{app.name}", specs=specs, can_subset=True, pool=f"act__{app.name}", backfill_policy=policy)
    def materialize(context: dg.AssetExecutionContext, config: ActConfig) -> Iterator[dg.MaterializeResult[Any]]:
        of_days = days is not None and (context.has_partition_key or RANGE in context.run.tags)  # the run's, maybe for another app's tables
        asked = sorted(context.partition_keys) if of_days else ()
        act = _Act(context, config, app, settings, days, asked)
        workers.mark(context.instance, context.run.run_id, app.name)
        told = _backfill(act) if asked else _materialize(act)
        # Days are reported already, each by its own version, and the open ones not at all, which Dagster would report along with them. What
        # comes after the tables in the run (batch assets, suites) waits for their outputs all the same, and would be skipped without.
        metadata = {SAYS_NOTHING: True} if asked else told
        for key in act.selected if told else ():
            yield dg.MaterializeResult(asset_key=key, metadata=metadata, data_version=dg.DataVersion(str(told["position"])))

    return materialize


def _materialize(act: _Act) -> Mapping[str, Any]:
    """Bring the app to the head of its topics, or see its live stream there; give what is to be told of it, nothing for a dry run."""
    if act.config.dry_run:
        act.context.log.info("a dry run without days: there is nothing to plan, and nothing is changed")
        return {}
    held = leases.read(act.settings, act.app.name)
    return _wait_for_stream(act) if held is not None and held.is_held else _run_bounded(act)


def _backfill(act: _Act) -> Mapping[str, Any]:
    """Make the windows of the days anew, or rewind the app to the start of them and see it replayed.

    It reports the days that are closed by itself. Give where the app is then, nothing where its tables are as they were.
    """
    from watertable.store.commits import Position

    context, app, settings = act.context, act.app, act.settings
    assert act.days is not None
    first = act.asked[0]
    where = ["--to", "earliest" if first == act.days.first.isoformat() else f"{first}T00:00:00+00:00"]
    if not _why_all(act):
        where = [word for name in _names(act) for word in ("--table", name)] + ["--days", f"{first}/{act.asked[-1]}"]
    becomes: Position | None = None

    def heard(event: Event) -> None:
        if event["event"] in SHOWN:
            act.observe(**shown(event), act=_words(act))
        if event["event"] == "plan":
            act.replays(int(event["records"]))
        elif event["event"] == "batch":  # a replay beside the app: that of the app itself is followed later
            left = sum(event["lag"].values())
            act.progress(left, at_once=not left)

    try:
        said, done = carry_out(app, settings, "rewind", [*where, *act.config.options()], heard, context.log.warning)
    except dg.Failure as refused:
        if not (refused.description or "").startswith(NOTHING):
            raise
        context.log.info(f"{refused.description}. So there is nothing to read again; {app.name} is brought to the head of its topics")
    else:
        if done is None:
            context.log.info("a dry run: nothing is changed")
            return {}
        if done["event"] == "shadow":
            context.log.info(f"{done['by']}: the shadow is at {done['position']}; {app.name} goes on as it was. {_words(act)}")
            return {}
        context.log.info(f"{done['by']}: {app.name} was at {done['before']} and is at {done['position']}. {_words(act)}")
        becomes = Position.parse(done["position"])
        act.replay = None
        if done["event"] == "rewound":
            act.replays(int(said["plan"]["records"]))
    if act.config.dry_run:
        return {}
    held = leases.read(settings, app.name)
    told = _follow_stream(act, becomes) if held is not None and held.is_held else _run_bounded(act)
    _report_days(act, told)
    return told


def _words(act: _Act) -> str:
    """Say what is done about the days that were asked for; never that it were less."""
    from watertable.store.touched import windowed

    name, asked = act.app.name, act.asked
    span = asked[0] if len(asked) == 1 else f"{asked[0]} to {asked[-1]}"
    of = {table_key(name, t.name): windowed(t) for t in act.app.topology.tables}
    windows = [key.path[-1] for key in act.selected if of[key]]
    others = [key.path[-1] for key in act.selected if not of[key]]
    beside = ""
    if act.config.mode == "shadow":
        beside = f" It is made beside {name}, which goes on as it is: no day is reported until promote__{name} lets it take the place."
    if not (why := _why_all(act)):
        what = f"the windows of {', '.join(windows)} that start then, and what is made of them; nothing else moves."
        return f"Asked for {span}: {what}{beside}"
    parts = [f"the windows of {', '.join(windows)} that start then"] if windows else []
    parts += [f"the log days of {', '.join(others)}"] if others else []
    return (
        f"Asked for {span}: {' and '.join(parts)}. {why[0].upper()}{why[1:]}, so this is a rewind of all of {name} to the start of "
        f"{asked[0]}: everything from there on is read again, up to where the topics end, and days after {asked[-1]} are made anew too."
        + beside
    )


def _names(act: _Act) -> list[str]:
    return [key.path[-1] for key in act.selected]


def _why_all(act: _Act) -> str:
    """Say why the days of the chosen tables can't be made anew by themselves; "" where they can."""
    from watertable.acts.rebuild import unbounded

    return unbounded(act.app.topology, _names(act))


def _report_days(act: _Act, told: Mapping[str, Any]) -> None:
    """Report the days that were asked for and are closed, each with the version that the stream has given it."""
    instance, name = act.context.instance, act.app.name
    for table in act.app.topology.tables:
        key = table_key(name, table.name)
        if key not in act.selected:
            continue
        versions = recorded_days(instance, key)
        closed = [day for day in act.asked if day in versions]
        if open_days := sorted(set(act.asked) - set(closed)):
            act.context.log.warning(f"{table.name}: {len(open_days)} of {len(act.asked)} days can still change, from {open_days[0]} on")
        tags = provenance(instance, table, name, UNTOUCHED)
        for day in closed:
            act.context.log_event(day_event(key, day, versions[day], tags, told))


def _follow_stream(act: _Act, becomes: "Position | None") -> Mapping[str, Any]:
    """Wait until the live stream has read again what it was rewound behind, has folded it, and has reported its days.

    Raises `Failure` when it doesn't come on, or is gone.
    """
    from watertable.store.commits import Position

    name, since, seen, head = act.app.name, time.monotonic(), None, None
    while True:
        held = leases.read(act.settings, name)
        now = time.monotonic()
        if held is not None and held.is_held:
            at = Position.parse(held.position) if held.position else None
            there = at is not None and (becomes is None or at.epoch >= becomes.epoch)
            left = sum(held.lag.values()) if there and held.lag else None
            if left is not None and head is None:  # what is waited for after that, its fold and its days, is no replay
                act.progress(left, at_once=left == 0)
            if left == 0 and head is None:
                head = at
            if there and head is not None and held.told and Position.parse(held.told) >= head:
                if becomes is None:
                    what = "already at head: the live stream keeps it"
                elif act.replay:
                    what = "rewound while the live stream ran, which has read it again"
                else:
                    what = "made anew beside the live stream, and joined"
                return {"position": held.position, "act": what}
            if seen != (seen := (held.position, left, held.told)):
                since = now
            if now - since > act.config.wait_seconds:
                raise dg.Failure(f"the live stream of {name} hasn't come on for {act.config.wait_seconds:.0f} s, at {held.position}")
        elif now - since > ABSENCE:
            raise dg.Failure(
                f"the live stream of {name} ended while this waited for it; what it was rewound behind is read at its next start"
            )
        time.sleep(1.0)


def _wait_for_stream(act: _Act) -> Mapping[str, Any]:
    """Wait until the live stream has read what is there now; return where it stands, or nothing where it is about to hand over.

    Raises `Failure` when the time is over, when the stream ends meanwhile, or when it is held back from the code that is loaded.
    """
    from watertable.kafka.admin import Admin
    from watertable.kafka.config import Cluster

    context, config, app, settings = act.context, act.config, act.app, act.settings
    admin = Admin(Cluster.of(settings))
    goal = admin.latest(admin.partitions([topic.name for topic in app.topology.topics]))
    deadline = time.monotonic() + config.wait_seconds
    while True:
        held = leases.read(settings, app.name)
        if held is None or not held.is_held:
            raise dg.Failure(f"the live stream of {app.name} ended while this waited for it; materialize again")
        if held.fingerprint not in ("", app.topology.fingerprint):  # what is reported here counts as made by the loaded code
            if breaking := breaking_code(settings, app):
                raise dg.Failure(f"the live stream of {app.name} runs on under the code from before: {breaking}")
            words = f"nothing was done: the live stream of {app.name} hands over to the loaded code; materialize again once it has"
            context.log.warning(words)
            act.observe(act=words)
            return {}
        at = admin.mirrored(app.name, goal)
        behind = sum(max(0, end - at.get(partition, 0)) for partition, end in goal.items())
        if not behind and held.fingerprint:
            context.log.info(f"{app.name} is at the head: its live stream (run {held.run_id}) keeps it there")
            return {"position": held.position, "act": "already at head: the live stream keeps it"}
        state = f"has {behind} records to read" if behind else "is starting"
        if time.monotonic() > deadline:
            raise dg.Failure(f"the live stream of {app.name} still {state}, after {config.wait_seconds:.0f} s")
        context.log.info(f"the live stream {state}")
        time.sleep(1.0)


def _run_bounded(act: _Act) -> Mapping[str, Any]:
    """Run the app up to what its topics hold now, under its lease; raise `Failure` with the driver's own words."""
    context, app, settings = act.context, act.app, act.settings
    run_id, instance = context.run.run_id, context.instance
    try:
        before = leases.read(settings, app.name)
        ours = Lease(
            app=app.name,
            run_id=run_id,
            environment=leases.environment(settings, instance),
            act=True,
            **(before.handed_on if before else {}),
        )
        held = leases.take(settings, ours)
    except WatertableError as error:
        raise dg.Failure(str(error)) from None
    log = settings.log_file(f"{app.name}.act")
    env = {"WATERTABLE_PROJECT": str(settings.project)}
    reporter = Reporter(context, instance, app.topology, 0.0, act.days)
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
                read = held.reading(event["lag"], event.get("problem", "")) if "lag" in event else {}
                held = leases.renew(settings, held, position=event.get("position") or held.position, **read)
                if event["event"] == "batch":
                    refused = held.refusing(event.get("quarantined", 0), event["position"])
                    waits = held.unfolded_since or time.time()  # until its end, when it folds
                    stream_time = event.get("stream_time") or held.stream_time
                    held = leases.renew(settings, held, stream_time=stream_time, unfolded_since=waits, **refused)
                    records, rows = records + event["records"], rows + sum(event["rows"].values())
                    left = sum(event["lag"].values())
                    context.log.info(f"{event['position']}: {event['records']} records, {left} to read")
                    act.progress(left, at_once=not left)
                elif event["event"] == "started" and act.replay:
                    held = leases.renew(settings, held, **held.going_on_from(event["position"]))
                elif event["event"] == "days":
                    reporter.touched(event)
            code = child.exit_code()
        if code != 0:
            raise dg.Failure(_why(last, code, child), metadata={"exit code": code, "log": str(log), "driver's last words": child.tail()})
        held = leases.renew(settings, held, unfolded_since=0.0)
        reporter.check(checks.QUARANTINE, lambda _: checks.quarantine(held), always=True)
        reporter.close_days(most=sys.maxsize)
        what = "brought to the head of its topics" if act.replay is None else "rewound, and read again up to the head of its topics"
        return {"position": held.position, "records": records, "rows changed": rows, "act": what}
    finally:
        leases.renew(settings, held, released=True)


def _why(last: Event, code: int, child: Child) -> str:
    if last.get("event") == "failed":
        record = f" ({last['topic']}, partition {last['partition']}, offset {last['offset']})" if last.get("topic") else ""
        return f"{last['error']}: {last['message']}{record}"
    return (child.refusal() if code > 0 else "") or obituary(code)
