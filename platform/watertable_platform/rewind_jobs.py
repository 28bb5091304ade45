"""Rewind an app from Dagster, and take it back: the jobs `rewind__<app>` and `undo__<app>`.

A run shows the plan, as Markdown on the run; with `dry_run: false` it carries out exactly that plan, and notes it on every table. It is one
control row, so it needs no lease and waits for nobody: a live stream finds itself rewound and goes on from there, a stopped app stays
stopped, and its next start begins at the fork. Spark lives in a child, as everywhere. Acts of one app run one at a time, in its pool.
"""

# No `from __future__ import annotations` here: Dagster reads the annotation of a `config` parameter as it stands.
import json
from collections.abc import Callable, Sequence

import dagster as dg
from pydantic import Field

from watertable.project import LoadedApp
from watertable.settings import Settings
from watertable_platform.child import Child, Event, command
from watertable_platform.supervisor import Tag
from watertable_platform.translator import table_key

GRACE = 40.0


class UndoConfig(dg.Config):
    """Configure the undoing of a rewind."""

    dry_run: bool = Field(True, description="show the plan and change nothing")
    reason: str = Field("", description="why, in a few words; the changelog keeps it")
    accept_loss: list[str] = Field([], description="topics, or topic/partition, of which Kafka may have deleted records")
    keep_old_code_before: bool = Field(False, description="rows from before the fork may keep what older code made of them")

    def options(self) -> list[str]:
        """Write it as the command line takes it."""
        said = [option for loss in self.accept_loss for option in ("--accept-loss", loss)]
        said += ["--keep-old-code-before"] if self.keep_old_code_before else []
        return [*said, *(["--reason", self.reason] if self.reason else []), *([] if self.dry_run else ["--apply"])]


class RewindConfig(UndoConfig):
    """Configure a rewind: where to, in one of three ways."""

    to: str = Field(
        "", description="earliest, a time (event time), {topic: {partition: offset}}, a commit (481) or a position (retail@1.481)"
    )
    by: str = Field("", description="back to what was committed so long ago: 10 min, 2 h, 1 d")
    shift_by: int = Field(0, description="back by so many records")

    def options(self) -> list[str]:
        """Write it as the command line takes it."""
        where = [("--to", self.to), ("--by", self.by), ("--shift-by", str(self.shift_by) if self.shift_by else "")]
        return [*(word for option, value in where if value for word in (option, value)), *super().options()]


def build_rewind_jobs(app: LoadedApp, settings: Settings) -> list[dg.JobDefinition]:
    """Make the jobs `rewind__<app>` and `undo__<app>`."""

    @dg.op(name=f"rewind_{app.name}", pool=f"act__{app.name}", description="Plan a rewind; carry it out unless it is a dry run.")
    def rewind(context: dg.OpExecutionContext, config: RewindConfig) -> None:
        _act(context, app, settings, "rewind", config.options())

    @dg.op(name=f"undo_{app.name}", pool=f"act__{app.name}", description="Plan taking the last rewind back; do it unless it is a dry run.")
    def undo(context: dg.OpExecutionContext, config: UndoConfig) -> None:
        _act(context, app, settings, "undo", config.options())

    @dg.job(
        name=f"rewind__{app.name}",
        description=f"Go back in {app.name}'s topics and read again from there. With dry_run, the default, only the plan is shown. "
        "All tables move together, nothing is deleted, and nothing that was published is published again. A live stream goes on by itself.",
        executor_def=dg.in_process_executor,
        tags={Tag.APP: app.name},
    )
    def rewind_job() -> None:
        rewind()

    @dg.job(
        name=f"undo__{app.name}",
        description=f"Take the last rewind of {app.name} back: the tables are at once what they were before it.",
        executor_def=dg.in_process_executor,
        tags={Tag.APP: app.name},
    )
    def undo_job() -> None:
        undo()

    return [rewind_job, undo_job]


def _act(context: dg.OpExecutionContext, app: LoadedApp, settings: Settings, act: str, options: Sequence[str]) -> None:
    """Run the command, show the plan it prints, and say what came of it; raise `Failure` with its own words."""
    plan, done = carry_out(app, settings, act, options, lambda plan: context.add_output_metadata(shown(plan)))
    if done is None:
        context.log.info("a dry run: nothing is changed; launch it with dry_run: false to do it")
        return
    context.log.info(f"{done['by']}: {app.name} was at {done['before']} and is at {done['position']}")
    for table in app.topology.tables:
        context.log_event(dg.AssetObservation(table_key(app.name, table.name), metadata={"position": done["position"], **shown(plan)}))


def carry_out(
    app: LoadedApp, settings: Settings, act: str, options: Sequence[str], planned: Callable[[Event], None] = lambda plan: None
) -> tuple[Event, Event | None]:
    """Run the command; give the plan that it printed, and what it did, if it did it; `planned` hears of the plan before that.

    Raises `Failure` with the command's own words.
    """
    log = settings.home_folder / "logs" / f"{app.name}.act.log"
    plan: Event | None = None
    done: Event | None = None
    with Child(command(act, app.name, "--json", *options), env={"WATERTABLE_PROJECT": str(settings.project)}, cwd=settings.project, log=log,
               grace=GRACE) as child:  # fmt: skip
        while not child.ended:
            event = child.event(1.0)
            if event is not None and event["event"] == "plan":
                plan = event
                planned(plan)
            elif event is not None:
                done = event
        code = child.exit_code()
    if code != 0 or plan is None:
        last = child.tail()
        raise dg.Failure(last.splitlines()[-1] if last else f"exit code {code}", metadata=shown(plan) if plan else {}, allow_retries=False)
    return plan, done


def shown(plan: Event) -> dict[str, dg.MetadataValue]:
    """Write a plan as metadata: Markdown, and a number that plots."""
    from watertable.rewind import RewindPlan

    made = RewindPlan.from_json(json.dumps(plan))
    return {"plan": dg.MetadataValue.md(made.markdown()), "records to read again": dg.MetadataValue.int(made.records)}
