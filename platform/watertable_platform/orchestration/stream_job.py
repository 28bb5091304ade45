"""Deploy an app's live stream as a Dagster job: one op that keeps `watertable run` as its child and tells Dagster how it goes.

The run is the deployment. It begins by taking the app's lease; it ends when a person terminates it, when the driver ends, when it hands
over to new code, which the sensor asks for or a rewind has brought in, or by itself, to be recycled, but not while it is held back from
the code that is loaded, or that doesn't load; and it never leaves a process behind. Spark lives in the child: neither the code server nor
the run's worker ever holds a JVM. Nothing here decides whether to start again; see `supervisor`.
"""

# No `from __future__ import annotations` here: Dagster reads the annotation of a `config` parameter as it stands.
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError
from pydantic import Field

from watertable.errors import CodeReplaced, SettingsError, WatertableError
from watertable.project import LoadedApp
from watertable.settings import Settings
from watertable_platform.orchestration import checks, topics
from watertable_platform.orchestration import lease as leases
from watertable_platform.orchestration.child import Child, Event, birth, obituary, run_command
from watertable_platform.orchestration.days import Days
from watertable_platform.orchestration.history import job_name, owned
from watertable_platform.orchestration.lease import Lease
from watertable_platform.orchestration.reporting import Reporter
from watertable_platform.orchestration.supervisor import Crash, Ended, Tag
from watertable_platform.orchestration.topics import Watched
from watertable_platform.orchestration.translator import paragraphs

TICK: Final = 1.0
LOOK: Final = 2.0
"""Seconds between two looks at our own run: whether it was canceled by force, or is to hand over."""
LOAD: Final = 300.0
"""Seconds between two looks at our own files, once it is time to be recycled."""
ACT_SECONDS: Final = 90.0
"""Seconds that a stream waits for a bounded act before it is refused; fewer than `SILENT`, when a run without a lease counts as gone."""
GRACE: Final = 40.0
"""Seconds that the driver has to end; less than `cancel_timeout_seconds` in dagster.yaml."""
_FINAL: Final = frozenset({2, 3, 4})  # bad definition or settings, fenced, topic changed: starting again mends none


class StreamConfig(dg.Config):
    """Configure a run of a live stream; the defaults are right for most."""

    report_seconds: float = Field(30.0, description="least seconds between two reports of a table")
    recycle_hours: float = Field(24.0, description="end and start again after so many hours; 0: never")
    recycle_events: int = Field(5000, description="end and start again after so many events in this run's log; 0: never")
    silence_seconds: float = Field(300.0, description="a driver that says nothing for so long is taken for dead; above 0")
    take_over: bool = Field(False, description="ignore another environment's lease on this app")

    @property
    def wrong(self) -> str:
        """Say what can't be meant; "" for nothing. As constraints of the fields it would be an error of pydantic's, five times over."""
        if not self.silence_seconds > 0:
            return f"silence_seconds is {self.silence_seconds:g}: every driver says nothing for so long; give more than 0"
        if not (self.recycle_hours >= 0 and self.recycle_events >= 0):
            return "recycle_hours and recycle_events can't be below 0, which means never"
        return ""


def build_stream_job(
    app: LoadedApp, settings: Settings, watched: Sequence[Watched], why_unloaded: Callable[[], str]
) -> dg.JobDefinition:  # fmt: skip
    """Make the job `stream__<app>`; `watched` are the topics that it reads, as the whole project does.

    `why_unloaded` says, by the files as they are by then, why the next run would not find the app; "" where it would.
    """

    @dg.op(name=f"run__{app.name}", description=f"Keep `watertable run {app.name}` running, and report what it does.")
    def keep_running(context: dg.OpExecutionContext, config: StreamConfig) -> None:
        _Stream(context, config, app, settings, watched, why_unloaded).run()

    @dg.job(
        name=job_name(app.name),
        description=paragraphs(
            app.topology.description,
            f"The live stream of {app.name}. Launch it to deploy, terminate it to stop it; whatever else ends it, it comes back.",
        ),
        executor_def=dg.in_process_executor,
        tags={Tag.APP: app.name, "dagster/max_runtime": "0", "dagster/max_retries": "0"},
    )
    def stream() -> None:
        keep_running()

    return stream


class _Stream:
    """Hold one run: its lease, its driver, and what it has told so far."""

    def __init__(
        self, context: dg.OpExecutionContext, config: StreamConfig, app: LoadedApp, settings: Settings, watched: Sequence[Watched],
        why_unloaded: Callable[[], str],
    ) -> None:  # fmt: skip
        self.context, self.config, self.app, self.settings, self.watched = context, config, app, settings, watched
        self.why_unloaded = why_unloaded
        self.instance = context.instance
        self.reporter = Reporter(context, self.instance, app.topology, config.report_seconds, Days.of(settings, app.name))
        self.lease = Lease(app=app.name, run_id=context.run_id, environment=leases.environment(settings, self.instance))
        self.failed: Event | None = None
        self.held = ""
        self.began = self.heard = self.looked = time.monotonic()
        self.loaded = -LOAD

    def run(self) -> None:
        """Keep the driver until there is a reason to end; return for a reason of ours, raise `Failure` for the driver's."""
        self._tag(owned(self.context.run))
        leases.await_act(self.settings, self.app.name, ACT_SECONDS)
        last = leases.read(self.settings, self.app.name)
        try:
            self.lease = leases.take(self.settings, self.lease, take_over=self.config.take_over)
        except WatertableError as error:
            self._tag({Tag.CRASH: Crash(type(error).__name__, str(error)).as_tag(), Tag.ENDED: Ended.REFUSED})
            raise dg.Failure(str(error), allow_retries=False) from None
        self._tag({Tag.POSITION: last.position if last else ""})
        if last is not None:
            self._beat(**last.handed_on)
        if wrong := self.config.wrong:
            self._tag({Tag.CRASH: Crash(SettingsError.__name__, wrong, final=True).as_tag(), Tag.ENDED: Ended.CRASH})
            self._beat(released=True)
            raise dg.Failure(wrong, allow_retries=False)
        child = Child(
            run_command(self.app.name),
            env={"WATERTABLE_PROJECT": str(self.settings.project)},
            cwd=self.settings.project,
            log=self.settings.log_file(f"{self.app.name}.driver"),
            grace=GRACE,
        )
        try:
            with child:
                self._beat(driver=child.pid, driver_birth=birth(child.pid))
                self.context.log.info(f"driver {child.pid}; what it prints is in {child.log}")
                self._observe_topics()
                ended = self._follow(child)
            self._drain(child)
            if ended is None:
                ended = self._by_itself(child)
            self._tag({Tag.ENDED: str(ended)})
            self.context.log.info(f"ended for: {ended}; the supervisor starts the next run")
        except (DagsterExecutionInterruptedError, KeyboardInterrupt):
            self._drain(child)
            self._interrupted()
            raise
        finally:
            self.lease = leases.renew(self.settings, self.lease, released=True)

    def _follow(self, child: Child) -> Ended | None:
        """Read what the driver says until it ends (None) or until it is we who want it to."""
        while True:
            event = child.event(TICK)
            now = time.monotonic()
            if event is not None:
                self.heard = now
                self._take(event)
            elif child.ended:
                return None
            else:
                self._beat()
            self.reporter.report(self.lease.position)
            if (told := self.reporter.close_days()) != self.lease.told:
                self._beat(told=told)
            if now - self.heard > self.config.silence_seconds:
                self.failed = {"error": "Silence", "message": f"the driver said nothing for {now - self.heard:.0f} s"}
                return None
            if now - self.looked > LOOK:
                self.looked = now
                run = self.instance.get_run_by_id(self.context.run_id)
                if run is None or run.is_finished:
                    self.context.log.warning("this run was canceled by force, or deleted: stopping its driver")
                    raise DagsterExecutionInterruptedError
                if (held := run.tags.get(Tag.HELD, "")) != self.held:
                    self.held = held
                    self._judge_code()
                if run.tags.get(Tag.HAND_OVER):
                    return Ended.HAND_OVER
                if not held and self._is_old(now) and self._loads(now):  # held: the next run would begin with the code that is refused
                    return Ended.RECYCLE

    def _is_old(self, now: float) -> bool:
        """Tell whether it is time to end and start again."""
        events, hours = self.config.recycle_events, self.config.recycle_hours
        return (events > 0 and self.reporter.count >= events) or (hours > 0 and now - self.began > hours * 3600)

    def _loads(self, now: float) -> bool:
        """Tell whether the next run would find its folder whole: until a mistake there is mended, nobody could begin it."""
        if now - self.loaded < LOAD:
            return False
        self.loaded = now
        if why := self.why_unloaded():
            self.context.log.warning(f"it is time to end and start again, which waits, for no run could begin: {why}")
        return not why

    def _take(self, event: Event) -> None:
        """Take in one event: remember where the app stands, and tell Dagster what is worth it."""
        if event.get("position"):
            self.lease = dataclasses.replace(self.lease, position=event["position"])
        if (age := event.get("unfolded_s")) is not None:
            self.lease = dataclasses.replace(self.lease, unfolded_since=time.time() - age if age else 0.0)
        match event["event"]:
            case "started":
                self._started(event)
            case "batch":
                refused = self.lease.refusing(event.get("quarantined", 0), event["position"])
                stream_time = event.get("stream_time") or self.lease.stream_time
                self._beat(**self.lease.reading(event["lag"]), stream_time=stream_time, **refused)
                self.reporter.batch(event)
                self._judge()
            case "fold":
                self._beat()
                self.reporter.fold(event)
                self._judge()
            case "days":
                self.reporter.touched(event)
            case "idle":
                self._beat(**self.lease.reading(event["lag"], event.get("problem", "")))
                self.reporter.idle(event)
                self._judge()
                if event.get("problem"):
                    self.context.log.warning(str(event["problem"]))
            case "rewound":
                self._tag({Tag.POSITION: event["position"]})
                self._beat(**self.lease.reading({}), told="", **self.lease.going_on_from(event["position"]))
                self.context.log.info(f"{event['by']}: from {event['before']} to {event['position']}; it goes on from there")
                self.reporter.moved(event["position"], event["again"])
            case "failed":
                self.failed = event
            case "stopped":
                self._beat()

    def _started(self, event: Event) -> None:
        self._tag({Tag.FINGERPRINT: event["fingerprint"], Tag.POSITION: event["position"] or ""})
        self._beat(fingerprint=event["fingerprint"])
        self.context.log.info(f"{self.app.name} runs from {event['position']}, generation {event['generation']}")
        self.reporter.redeployed(event["position"])
        self.reporter.check(checks.STREAM_ALIVE, lambda _: checks.Verdict(True, "running"), always=True)
        if event["fingerprint"] == self.app.topology.fingerprint:
            leases.record_code(self.settings, self.app.topology)
        self._judge_code()
        self._judge(always=True)

    def _judge_code(self) -> None:
        held = self.held
        judge = (lambda _: checks.held_back(held)) if held else (lambda table: checks.deployed_code(table, table.fingerprint))
        self.reporter.check(checks.DEPLOYED_CODE, judge, always=True)

    def _judge(self, *, always: bool = False) -> None:
        fresh = checks.freshness(self.lease)
        if self.lease.lag or not fresh.passed:  # what isn't known for a moment is nothing to tell
            self.reporter.check(checks.FRESHNESS, lambda _: fresh, always=always)
        self.reporter.check(checks.FOLD_LAG, lambda _: checks.fold_lag(self.lease, self.settings.fold_seconds), always=always)
        self.reporter.check(checks.QUARANTINE, lambda _: checks.quarantine(self.lease), always=always)

    def _observe_topics(self) -> None:
        """Record what the topics are before a table names them as its inputs; the topics sensor does the rest."""
        try:
            self.reporter.observe(topics.unseen(self.instance, topics.observe(self.settings, self.watched)))
        except WatertableError as error:
            self.context.log.warning(str(error))  # the driver will say it too, and wait, or end with it

    def _beat(self, **changes: Any) -> None:
        self.lease = leases.renew(self.settings, self.lease, **changes)

    def _drain(self, child: Child) -> None:
        """Take in what the driver said last, and report it."""
        while not child.ended:
            event = child.event(0.5)
            if event is not None:
                self._take(event)
        self._tag({Tag.POSITION: self.lease.position})
        self.reporter.report(self.lease.position, at_once=True)

    def _by_itself(self, child: Child) -> Ended:
        """Say why the driver ended: it made way for code that an act brought in, or it crashed."""
        if self.failed is not None and self.failed["error"] == CodeReplaced.__name__:
            self.context.log.info(str(self.failed["message"]))
            return Ended.HAND_OVER
        self._crashed(child)

    def _crashed(self, child: Child) -> NoReturn:
        """Say why the driver ended, on the run and on every table, and raise it."""
        code = child.exit_code()
        error, _, message = child.refusal().partition(" ") if code > 0 else ("", "", "")  # said before there was a run to say it as JSON
        failed = self.failed or {"error": error or "Crash", "message": message or obituary(code)}
        crash = Crash(
            failed["error"], failed["message"], failed.get("position") or self.lease.position, failed.get("topic"),
            failed.get("partition"), failed.get("offset"), failed.get("location"), final=code in _FINAL,
        )  # fmt: skip
        self._tag({Tag.CRASH: crash.as_tag(), Tag.ENDED: Ended.CRASH})
        self.reporter.check(checks.STREAM_ALIVE, lambda _: checks.crashed(crash), always=True)
        tail = child.tail()
        raise dg.Failure(
            f"{crash.error}: {crash.message}" + (f" ({crash.place()})" if crash.place() else ""),
            metadata={**checks.place(crash), "exit code": code, "log": str(child.log), **({"driver's last words": tail} if tail else {})},
            allow_retries=False,
        )

    def _interrupted(self) -> None:
        """Tell a person's Terminate, which Dagster announces, from a shutdown, which it doesn't."""
        run = self.instance.get_run_by_id(self.context.run_id)
        if run is not None and run.status is dg.DagsterRunStatus.CANCELING:
            verdict = checks.Verdict(False, f"stopped by a person at {self.lease.position}", dg.AssetCheckSeverity.WARN)
            self.reporter.check(checks.STREAM_ALIVE, lambda _: verdict, always=True)
        else:
            self._tag({Tag.ENDED: Ended.SHUTDOWN})

    def _tag(self, tags: Mapping[str, str]) -> None:
        run = self.instance.get_run_by_id(self.context.run_id)
        if run is not None and not run.is_finished:  # the story of a run that a person ended by force is told
            self.instance.add_run_tags(self.context.run_id, {str(name): str(value) for name, value in tags.items()})
