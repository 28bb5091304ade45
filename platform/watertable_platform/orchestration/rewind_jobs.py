"""Rewind an app from Dagster, in place or in its shadow, and take it back: the jobs `rewind__`, `promote__`, `undo__` and `parity__<app>`.

A run shows the plan, as Markdown on the run; with `dry_run: false` it carries out exactly that plan, and notes it on every table. It is one
control row, so it needs no lease and waits for nobody: a live stream finds itself rewound and goes on from there, a stopped app stays
stopped, and its next start begins at the fork. Spark lives in a child, as everywhere. Acts of one app run one at a time, in its pool.

A rewind in the shadow replays within its run, beside the live stream, and ends with the diff, as Markdown on the run; so does a promote.
What a parity comes to, it reports as the check `parity` of every table.
"""

# No `from __future__ import annotations` here: Dagster reads the annotation of a `config` parameter as it stands.
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError
from pydantic import Field

from watertable.project import LoadedApp
from watertable.settings import Settings
from watertable_platform.orchestration import checks, workers
from watertable_platform.orchestration import lease as leases
from watertable_platform.orchestration.child import Child, Event, command, obituary
from watertable_platform.orchestration.supervisor import Tag
from watertable_platform.orchestration.translator import table_key

GRACE = 40.0
SHOWN = ("plan", "diff")
_DONE = ("rewound", "promoted", "abandoned", "shadow", "parity")


class UndoConfig(dg.Config):
    """Configure the undoing of a rewind."""

    dry_run: bool = Field(True, description="show the plan and change nothing")
    reason: str = Field("", description="why, in a few words; the changelog keeps it")
    accept_loss: list[str] = Field([], description="topics, or topic/partition, of which Kafka may have deleted records")
    keep_old_code_before: bool = Field(False, description="rows from before the fork may keep what older code made of them")
    despite_disk: bool = Field(False, description="the disk may be too small for it: what finds no room stops, and is whole")

    def options(self) -> list[str]:
        """Write it as the command line takes it."""
        said = [option for loss in self.accept_loss for option in ("--accept-loss", loss)]
        said += ["--keep-old-code-before"] if self.keep_old_code_before else []
        said += ["--despite-disk"] if self.despite_disk else []
        return [*said, *(["--reason", self.reason] if self.reason else []), *([] if self.dry_run else ["--apply"])]


class ReplayConfig(UndoConfig):
    """Configure what is read again: by the app itself, or beside it."""

    mode: Literal["in_place", "shadow"] = Field(
        "in_place", description="in_place: the app goes on from there. shadow: beside it, to be compared and promoted, or given up"
    )
    until: str = Field("", description="of a shadow only: stop there for now, to be compared there; written as `to` of a rewind is")

    def options(self) -> list[str]:
        """Write it as the command line takes it."""
        said = ["--shadow"] if self.mode == "shadow" else []
        return [*said, *(["--until", self.until] if self.until else []), *super().options()]


class TargetConfig(dg.Config):
    """Configure where to, in one of three ways."""

    to: str = Field(
        "", description="earliest, a time (event time), {topic: {partition: offset}}, a commit (481) or a position (retail@1.481)"
    )
    by: str = Field("", description="back to what was committed so long ago: 10 min, 2 h, 1 d")
    shift_by: int = Field(0, description="back by so many records")

    def where(self) -> list[str]:
        """Write it as the command line takes it."""
        said = [("--to", self.to), ("--by", self.by), ("--shift-by", str(self.shift_by) if self.shift_by else "")]
        return [word for option, value in said if value for word in (option, value)]


class ParityConfig(TargetConfig):
    """Configure what tables are held against: their records from there on; where nothing is said, all that the loaded code has made."""

    despite_disk: bool = Field(False, description="the disk may be too small for it: what finds no room stops, and is whole")

    def options(self) -> list[str]:
        """Write it as the command line takes it."""
        return [*self.where(), *(["--despite-disk"] if self.despite_disk else [])]


class RewindConfig(TargetConfig, ReplayConfig):
    """Configure a rewind: where to, in one of three ways, and how."""

    tables: list[str] = Field(
        [], description="rebuild these tables and what is made of them, from earliest, and nothing else; in_place: join them at once"
    )
    days: str = Field("", description="with tables, of windows: those that start on these days alone, 2011-01-02/2011-01-03")
    emit: bool = Field(
        False, description="publish what the replay makes to the output topics again; without it, nothing is published twice"
    )

    def options(self) -> list[str]:
        """Write it as the command line takes it."""
        said = self.where()
        said += [word for table in self.tables for word in ("--table", table)]
        said += ["--days", self.days] if self.days else []
        said += ["--emit"] if self.emit else []
        return [*said, *ReplayConfig.options(self)]


class PromoteConfig(dg.Config):
    """Configure a promote, or giving the shadow up."""

    dry_run: bool = Field(True, description="show what would change and change nothing")
    give_up: bool = Field(False, description="give the shadow up instead of promoting it")
    despite_checks: bool = Field(False, description="promote it even where its checks of the highest severity are red")
    emit: bool = Field(False, description="publish all that the shadow has made to the output topics again")
    reason: str = Field("", description="why, in a few words; the changelog keeps it")

    def options(self) -> list[str]:
        """Write it as the command line takes it."""
        return [*(["--reason", self.reason] if self.reason else []), *([] if self.dry_run else ["--apply"])]


def build_rewind_jobs(app: LoadedApp, settings: Settings) -> list[dg.JobDefinition]:
    """Make the jobs `rewind__<app>`, `undo__<app>`, `promote__<app>` and `parity__<app>`."""

    def act(name: str) -> Callable[[dg.OpExecutionContext, UndoConfig], None]:
        return lambda context, config: _act(context, app, settings, name, config.options())

    def promote(context: dg.OpExecutionContext, config: PromoteConfig) -> None:
        if config.give_up:
            _act(context, app, settings, "rewind", ["--abandon-shadow", *config.options()])
        else:
            said = [*(["--despite-checks"] if config.despite_checks else []), *(["--emit"] if config.emit else [])]
            _act(context, app, settings, "promote", [*said, *config.options()])

    def parity(context: dg.OpExecutionContext, config: ParityConfig) -> None:
        _hold(context, app, settings, config.options())

    return [
        _job(
            app, "rewind", act("rewind"), RewindConfig, "Plan a rewind; carry it out unless it is a dry run.",
            f"Go back in {app.name}'s topics and read again from there. With dry_run, the default, only the plan is shown. "
            "All tables move together, but for those named in `tables`, which are rebuilt beside the stream and joined alone; nothing is "
            "deleted; the plan says what becomes of output topics. A live stream goes on by itself.",
        ),
        _job(
            app, "undo", act("undo"), UndoConfig, "Plan taking the last rewind back; do it unless it is a dry run.",
            f"Take the last rewind of {app.name} back: the tables are at once what they were before it.",
        ),
        _job(
            app, "promote", promote, PromoteConfig, "Show what the shadow would change; promote it unless it is a dry run.",
            f"Let the shadow of {app.name} take its place: all tables at once, at the same offsets. With dry_run, the default, "
            "only what would change is shown. A live stream waits for the shadow's last records and goes on by itself; undo takes it back.",
        ),
        _job(
            app, "parity", parity, ParityConfig, "Hold the tables against their records.",
            f"Read {app.name}'s records again beside it, by the loaded code and in other batches, and compare every table row by row. "
            "Nothing of it stays, and a live stream goes on. What it finds is the check `parity` of each table. Schedule it as you like.",
        ),
    ]  # fmt: skip


def _job(
    app: LoadedApp, act: str, run: Callable[[dg.OpExecutionContext, Any], None], config: type[dg.Config], does: str, description: str
) -> dg.JobDefinition:  # fmt: skip
    """Make the job of an act, of one op, in the pool of the app's acts."""

    def compute(context: dg.OpExecutionContext, config: Any) -> None:
        run(context, config)

    compute.__annotations__["config"] = config  # Dagster makes the Launchpad's form of it
    op = dg.op(name=f"{act}_{app.name}", pool=f"act__{app.name}", description=does)(compute)

    # whether an act was done whose worker died, Dagster can't tell, and a second undo leads further back
    tags = {Tag.APP: app.name, "dagster/max_retries": "0"}

    @dg.job(name=f"{act}__{app.name}", description=description, executor_def=dg.in_process_executor, tags=tags)
    def job() -> None:
        op()

    return job


def _act(context: dg.OpExecutionContext, app: LoadedApp, settings: Settings, act: str, options: Sequence[str]) -> None:
    """Run the command, show the plan or diff that it prints, and say what came of it; raise `Failure` with its own words."""
    said, done = _carried(context, app, settings, act, options)
    if done is None:
        context.log.info("a dry run: nothing is changed; launch it with dry_run: false to do it")
        return
    if done["event"] in ("shadow", "abandoned"):
        context.log.info(f"{done['by']}: the shadow is at {done['position']}; {app.name} goes on as it was")
        return
    context.log.info(f"{done['by']}: {app.name} was at {done['before']} and is at {done['position']}")
    metadata = {"position": done["position"], **_all_shown(said)}
    for table in app.topology.tables:
        context.log_event(dg.AssetObservation(table_key(app.name, table.name), metadata=metadata))


def _hold(context: dg.OpExecutionContext, app: LoadedApp, settings: Settings, options: Sequence[str]) -> None:
    """Hold an app's tables against their records, and report what came of each as its check."""
    from watertable.acts.shadow import Diff

    said, done = _carried(context, app, settings, "parity", options)
    assert done is not None
    context.log.info(done["says"])
    now = datetime.now(UTC)
    for table in Diff.from_json(said["diff"]).tables:
        evaluation = checks.parity(table, done, now).evaluation(table_key(app.name, table.table), checks.PARITY)
        context.log_event(evaluation)  # type: ignore[arg-type]  # it takes them: its stream reports so too


def _carried(
    context: dg.OpExecutionContext, app: LoadedApp, settings: Settings, act: str, options: Sequence[str]
) -> tuple[Mapping[str, Event], Event | None]:
    """Carry out a command as a run: say in its log how far it is, and show on it the plan or diff that it prints."""

    def heard(event: Event) -> None:
        if event["event"] == "batch":
            context.log.info(f"{event['position']}: {event['records']} records, {sum(event['lag'].values())} to read")

    workers.mark(context.instance, context.run_id, app.name)
    said, done = carry_out(app, settings, act, options, heard, context.log.warning)
    context.add_output_metadata(_all_shown(said))
    return said, done


def carry_out(
    app: LoadedApp, settings: Settings, act: str, options: Sequence[str], heard: Callable[[Event], None], warn: Callable[[str], None]
) -> tuple[Mapping[str, Event], Event | None]:
    """Run the command; give the plan and the diff that it printed, by those names, and what it did, if it did it.

    `heard` is told all but the last as it comes. When a person terminates the run, `warn` is told what is left of the command.
    Raises `Failure` with the command's own words.
    """
    log = settings.log_file(f"{app.name}.act")
    said: dict[str, Event] = {}
    done: Event | None = None
    env = {"WATERTABLE_PROJECT": str(settings.project)}
    child = Child(command(act, app.name, "--json", *options), env=env, cwd=settings.project, log=log, grace=GRACE)
    try:
        with child:
            while not child.ended:
                event = child.event(1.0)
                if event is None:
                    continue
                if event["event"] in _DONE:
                    done = event
                    continue
                if event["event"] in SHOWN:
                    said[event["event"]] = event
                heard(event)
            code = child.exit_code()
    except (DagsterExecutionInterruptedError, KeyboardInterrupt):
        warn(_left(child, done))
        raise
    finds = done is not None and done["event"] == "parity"  # which ends with 1 where it finds something
    undone = done is None and (act == "parity" or "--apply" in options)
    if (code != 0 and not finds) or undone:
        why = (child.refusal() or "".join(child.last_lines()[-1:])) if code > 0 else ""
        why = why or f"{obituary(code, 'the command')}: asked for again, it says whether it was done"
        raise dg.Failure(why, metadata=_all_shown(said), allow_retries=False)
    if done is not None and done["event"] in ("rewound", "promoted"):
        leases.record_code(settings, app.topology)  # what somebody has put in place under it goes on under it
    return said, done


def _left(child: Child, done: Event | None) -> str:
    """Say what is left of a command that was stopped: what it did all the same, or in its own words what goes on with it."""
    while (event := child.event(1.0)) is not None:
        done = event if event["event"] in _DONE else done
    if done is not None:
        what = done["says"] if done["event"] == "parity" else done["by"]
        return f"it was done before it could be stopped: {what}, at {done['position']}"
    words = child.refusal() or next((line for line in reversed(child.last_lines()) if line.startswith("stopped")), "")
    return words or "stopped: asked for again, it says whether it was done"


def _all_shown(said: Mapping[str, Event]) -> dict[str, dg.MetadataValue]:
    return {name: value for event in said.values() for name, value in shown(event).items()}


def shown(told: Event) -> dict[str, dg.MetadataValue]:
    """Write a plan or a diff as metadata: Markdown, and a number that plots."""
    from watertable.acts.plans import RewindPlan
    from watertable.acts.shadow import Diff

    if told["event"] == "diff":
        found = Diff.from_json(told)
        return {"diff": dg.MetadataValue.md(found.markdown()), "rows that differ": dg.MetadataValue.int(sum(t.rows for t in found.tables))}
    made = RewindPlan.from_json(json.dumps(told))
    return {"plan": dg.MetadataValue.md(made.markdown()), "records to read again": dg.MetadataValue.int(made.records)}
