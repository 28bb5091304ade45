"""The commands that rewind an app, and what belongs to it: `rewind`, `diff`, `promote` and `undo`; and `parity`, which only looks.

Each shows first what it would do; `--apply` does it.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from watertable.errors import KafkaError, PlanOutdated, RewindRefused, TopicChanged
from watertable_platform.cli import terminal
from watertable_platform.cli.terminal import AppName, AsJson
from watertable_platform.stopping import STOPS_WITHIN, stop_on_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.acts.plans import RewindPlan
    from watertable.acts.rewind import Target
    from watertable.plan.plan import Topology
    from watertable.project import LoadedApp
    from watertable.settings import Settings
    from watertable.store.commits import DaySpan, Offsets
    from watertable.store.writer import Store
    from watertable_platform.cli.progress import JsonLines, Progress

Reason = Annotated[str, typer.Option(help="Why, in a few words; the epoch's row in the changelog keeps it.")]
Apply = Annotated[bool, typer.Option("--apply", help="Do it, exactly as planned. Without it, nothing is changed.")]
OldCode = Annotated[
    bool,
    typer.Option(
        "--keep-old-code-before", help="The code has changed: rows from before the fork may keep what the older code made of them."
    ),
]
Loss = Annotated[
    list[str] | None, typer.Option("--accept-loss", help="A topic, or topic/partition, of which Kafka may have deleted records.")
]

Emit = Annotated[
    bool, typer.Option("--emit", help="Publish what the replay makes to the output topics again; without it, nothing is published twice.")
]

Disk = Annotated[bool, typer.Option("--despite-disk", help="The disk may be too small for it: what finds no room stops, and is whole.")]

To = Annotated[
    str | None,
    typer.Option(metavar="TARGET", help="earliest, a time (event time), offsets.json, a commit (481) or a position (retail@1.481)."),
]
By = Annotated[str | None, typer.Option(metavar="DURATION", help="Back to what was committed so long ago: 10 min, 2 h, 1 d.")]
ShiftBy = Annotated[int | None, typer.Option(metavar="N", help="Back by so many records.")]
Samples = Annotated[int, typer.Option(help="Rows to show of each table, for each way in which they differ.", min=0)]


def rewind(
    name: AppName,
    to: To = None,
    by: By = None,
    shift_by: ShiftBy = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="TABLE", help="Rebuild this table and what is made of it, beside the app, and nothing else."),
    ] = None,
    days: Annotated[
        str | None,
        typer.Option(metavar="FIRST/LAST", help="With --table, of windowed tables: the windows that start on these days, and no others."),
    ] = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="Take this plan, as --json printed it, rather than making one.")] = None,
    apply: Apply = False,
    keep_old_code_before: OldCode = False,
    accept_loss: Loss = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="With --plan: what the planned run has committed since is no reason to refuse.")
    ] = False,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Beside the app, which goes on as it is. Without a target: go on with the shadow there is.")
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="With --shadow: stop there for now, to be compared there; written as --to is."),
    ] = None,
    emit: Emit = False,
    despite_disk: Disk = False,
    abandon_shadow: Annotated[bool, typer.Option("--abandon-shadow", help="Give the shadow up instead.")] = False,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Show what going back and reading again from there would do; with --apply, do it. A running app goes on from there by itself.

    With --table, some tables alone are made anew beside the app, from the first record on, and joined when they are level with it; with
    --days, the windows that start on these.
    """
    from watertable.acts.plans import RewindPlan
    from watertable.acts.rebuild import parse_days
    from watertable.acts.rewind import Target

    made: RewindPlan | Target | None
    untold = to is None and by is None and shift_by is None
    span = None if days is None else parse_days(days)
    if span is not None and (not table or not untold):
        raise RewindRefused("--days go with --table, and say where to")
    stop = None if until is None else Target.parse(until, option="--until")
    if abandon_shadow:
        loose = (plan, table, days, stop, accept_loss, shadow, emit, follow, keep_old_code_before, despite_disk)
        if not untold or any(loose):
            raise RewindRefused("a shadow is given up by --abandon-shadow alone, with --apply and --reason")
        _abandon(name, apply=apply, reason=reason, as_json=as_json)
        return
    if plan is not None:
        if not untold or shadow or table or emit or stop:
            raise RewindRefused("a plan says where to: --plan goes without --to, --by, --shift-by, --table, --shadow, --until and --emit")
        if accept_loss or keep_old_code_before or despite_disk or reason:
            raise RewindRefused(
                "a plan is carried out as it is: --accept-loss, --keep-old-code-before, --despite-disk and --reason go with its making"
            )
        try:
            made = RewindPlan.from_json(plan.read_bytes())
        except OSError as error:
            raise RewindRefused(f"can't read the plan {plan}: {error.strerror}") from None
    elif untold and table:
        made = Target("earliest") if span is None else Target.parse(span[0].isoformat())
    elif shadow and untold:
        if emit:
            raise RewindRefused("--emit is said where a shadow is begun, with its target, or where it is promoted")
        made = None
    else:
        made = Target.parse(to, by=by, shift_by=shift_by)
    _rewind(
        name, made, apply=apply, follow=follow or plan is None, accept_loss=accept_loss or [], keep_old_code_before=keep_old_code_before,
        shadow=shadow, tables=table or [], days=span, emit=emit, until=stop, despite_disk=despite_disk, reason=reason, as_json=as_json,
    )  # fmt: skip


def diff(
    name: AppName,
    samples: Samples = 5,
    as_json: AsJson = False,
) -> None:
    """Show what the shadow would change, table by table: rows, columns, by how much, and some keys."""
    from watertable.acts import shadow as beside
    from watertable.store.writer import Store
    from watertable_platform.cli import show

    settings, loaded = terminal.find_app(name)
    with terminal.begin_session(settings) as spark:
        found = beside.diff(Store(spark, settings.warehouse_uri, loaded.name, loaded.topology.tables), loaded.topology, samples)
    show.tell_diff(terminal.out, found, as_json=as_json)


def parity(
    name: AppName,
    to: To = None,
    by: By = None,
    shift_by: ShiftBy = None,
    samples: Samples = 5,
    despite_disk: Disk = False,
    as_json: AsJson = False,
) -> None:
    """Hold the tables against their records: read anew beside the app, and compared row by row. Exits with 1 where they differ.

    Nothing of it stays, and nobody notices. Without a target, from where on all that the app has is of the loaded code: earliest, if that
    made all of it.
    """
    from watertable.acts import parity as holding
    from watertable.acts.rewind import Target
    from watertable.kafka.admin import Admin
    from watertable.kafka.config import Cluster
    from watertable.runtime import job
    from watertable.store.writer import Store
    from watertable_platform.cli import show

    begin = None if to is None and by is None and shift_by is None else Target.parse(to, by=by, shift_by=shift_by)
    settings, loaded = terminal.find_app(name)
    kafka, topology = Admin(Cluster.of(settings)), loaded.topology
    kafka.topics()  # a cluster that isn't there is told before Spark takes its seconds
    cut = f"stopped; {name} goes on as it was, and the next parity does away with what is left of this one"
    with terminal.begin_session(settings) as spark, stop_on_signals(within=STOPS_WITHIN, unfinished=cut) as stop:
        store = Store(spark, settings.warehouse_uri, loaded.name, topology.kept)

        def replay() -> None:
            with _told(settings, topology, stop, as_json=as_json) as view:
                job.run(topology, settings, shadow=True, on_event=view, stop=stop, spark=spark)
            if stop.is_set():
                raise RewindRefused(f"stopped; nothing of it is left, and {loaded.name} goes on as it was")

        held = holding.hold(
            store, topology, kafka, begin or holding.begins(store, topology), replay, batch_records=settings.batch_records,
            samples=samples, despite_disk=despite_disk,
        )  # fmt: skip
    show.tell_diff(terminal.out, held.found, as_json=as_json)
    if as_json:
        done = {"event": "parity", "position": held.found.live, "since": held.since, "apart": held.apart, "says": held.says}
        print(json.dumps(done))
    else:
        mark = "[red]✗[/]" if held.apart else "[green]✓[/]"
        terminal.out.print(f"{mark} {held.says}", highlight=False, soft_wrap=True)
    if held.apart:
        raise typer.Exit(1)


def promote(
    name: AppName,
    apply: Apply = False,
    despite_checks: Annotated[bool, typer.Option("--despite-checks", help="Promote it even where its checks are red.")] = False,
    emit: Emit = False,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Show what the shadow would change; with --apply, let it take the app's place: all tables at once, if its checks are green."""
    from watertable.kafka.admin import Admin
    from watertable.kafka.config import Cluster
    from watertable.store.writer import Store

    settings, loaded = terminal.find_app(name)
    Admin(Cluster.of(settings)).topics()  # a cluster that isn't there is told before Spark takes its seconds
    with terminal.begin_session(settings) as spark:
        store = Store(spark, settings.warehouse_uri, loaded.name, loaded.topology.kept)
        _promote(settings, loaded, spark, store, apply=apply, despite_checks=despite_checks, emit=emit, reason=reason, as_json=as_json)


def _promote(
    settings: Settings, loaded: LoadedApp, spark: SparkSession, store: Store, *, apply: bool, despite_checks: bool, emit: bool, reason: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Bring the shadow level with its app, show what it would change, and let it take its place where that was asked for."""
    from watertable.acts import shadow as beside
    from watertable.runtime import job
    from watertable_platform.cli import show

    name = loaded.name
    on = f"`watertable promote {name} --apply` goes on with it"
    cut = f"stopped before the shadow took its place, or was told so: {on}, or says that it has" if apply else "stopped; nothing is changed"
    with stop_on_signals(within=STOPS_WITHIN, unfinished=cut) as stop:

        def refuse_when_stopped() -> None:
            if stop.is_set():
                raise RewindRefused(f"stopped before the shadow took its place; nothing is changed, and {on}")

        def replay(goal: Offsets | None) -> None:
            with _told(settings, loaded.topology, stop, as_json=as_json) as view:
                job.run(loaded.topology, settings, shadow=True, goal=goal, on_event=view, stop=stop, spark=spark)
            refuse_when_stopped()

        row = beside.current(store)
        words, emits = row.writer, beside.emitted(loaded.topology, row, emit=emit)
        if apply:
            replay(None)
        found = beside.diff(store, loaded.topology)
        show.tell_diff(terminal.out, found, as_json=as_json)
        red = _red(settings, loaded, store, row.of)
        if red and (not apply or despite_checks):
            terminal.err.print(f"[yellow]red[/] at {found.shadow}: {escape(', '.join(red))}", highlight=False, soft_wrap=True)
        if emits and not as_json:
            terminal.out.print(f"→ {', '.join(emits)}: all that the shadow has made is published again, as asked", highlight=False)
        if not apply:
            if not as_json:
                terminal.out.print("nothing is changed; --apply does it", style="dim")
            return
        if red and not despite_checks:
            raise RewindRefused(
                f"the shadow of {name} isn't promoted: at {found.shadow} these checks are red: {', '.join(red)}. Mend the code and begin "
                f"another shadow, or `watertable promote {name} --apply --despite-checks`; nothing is changed"
            )
        refuse_when_stopped()
        before, position = beside.promote(store, loaded.topology, replay, reason=reason, emit=emit)
        with stop_on_signals(within=0.0):  # it is done: an end at once is as good as any
            if as_json:
                done = {"event": "promoted", "position": str(position), "before": str(before), "by": f"promote {words}", "emits": emits}
                print(json.dumps(done), flush=True)
            else:
                show.print_done(terminal.out, loaded.name, str(position), str(before))
            if not stop.is_set():
                store.fold_all()  # other Delta readers needn't wait for the app's next fold


def undo(
    name: AppName,
    apply: Apply = False,
    keep_old_code_before: OldCode = False,
    accept_loss: Loss = None,
    despite_disk: Disk = False,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Show what taking the last rewind back would do; with --apply, do it. The tables are at once what they were before it."""
    from watertable.acts.rewind import Target

    _rewind(
        name, Target("undo"), apply=apply, follow=True, accept_loss=accept_loss or [], keep_old_code_before=keep_old_code_before,
        shadow=False, tables=[], days=None, emit=False, until=None, despite_disk=despite_disk, reason=reason, as_json=as_json,
    )  # fmt: skip


def _rewind(
    name: str, wanted: RewindPlan | Target | None, *, apply: bool, follow: bool, accept_loss: list[str], keep_old_code_before: bool,
    shadow: bool, tables: list[str], days: DaySpan | None, emit: bool, until: Target | None, despite_disk: bool, reason: str, as_json: bool,
) -> None:  # fmt: skip
    """Plan, show the plan, and carry it out where that was asked for; without a plan or target, go on with the shadow there is."""
    from watertable.acts import rewind as acts
    from watertable.acts import shadow as beside
    from watertable.acts.plans import RewindPlan
    from watertable.kafka.admin import Admin
    from watertable.kafka.config import Cluster
    from watertable.store.commits import Position
    from watertable.store.writer import Store
    from watertable_platform.cli import show

    settings, loaded = terminal.find_app(name)
    kafka = Admin(Cluster.of(settings))
    kafka.topics()  # a cluster that isn't there is told before Spark takes its seconds
    topology = loaded.topology
    with terminal.begin_session(settings, brief=not apply) as spark:
        store = Store(spark, settings.warehouse_uri, loaded.name, topology.kept)
        draw = partial(
            acts.plan, store, topology, kafka, batch_records=settings.batch_records, accept_loss=accept_loss,
            keep_old_code_before=keep_old_code_before, reason=reason, shadow=shadow, tables=tables, days=days, emit=emit, until=until,
            despite_disk=despite_disk,
        )  # fmt: skip
        if isinstance(wanted, RewindPlan):
            if wanted.app != loaded.name:
                raise RewindRefused(f"this is a plan for {wanted.app!r}, not for {loaded.name!r}")
            plan = wanted
        elif wanted is None:
            row = beside.current(store)
            if apply:
                stop = 0 if until is None else acts.stop_of(store, topology, until)
                _replay(settings, loaded, spark, store, words=row.writer, until=stop, as_json=as_json)
            else:
                show.tell_diff(terminal.out, beside.diff(store, topology), as_json=as_json)
            return
        else:
            plan = _with_what_is_behind(draw(wanted), settings, topology)
        if as_json:
            print(json.dumps({"event": "plan"} | json.loads(plan.to_json())), flush=True)
        else:
            show.print_plan(terminal.out, plan)
        if not apply:
            if isinstance(wanted, RewindPlan):  # which may be of long ago
                acts.refuse_if_moved(plan, store.head(), topology.fingerprint, follow=follow)
            if not as_json:
                refused = "nothing is changed, and nothing would be: --apply is refused as well"
                terminal.out.print(refused if plan.refusals else "nothing is changed; --apply does it", style="dim")
            return
        try:
            before, position = acts.apply(store, plan, topology.fingerprint, kafka, follow=follow)
        except PlanOutdated:
            if isinstance(wanted, RewindPlan) or store.head().next_epoch != Position.parse(plan.becomes).epoch:
                raise
            again = draw(wanted)  # the one before is a moment old: a run that began since has moved nothing of it
            if (again.fork, again.parent) != (plan.fork, plan.parent):
                raise
            before, position = acts.apply(store, again, topology.fingerprint, kafka, follow=follow)
        if plan.shadow:
            _replay(settings, loaded, spark, store, words=plan.words, until=0 if plan.days else plan.until, as_json=as_json)
            return
        if plan.rebuilds:
            _promote(settings, loaded, spark, store, apply=True, despite_checks=False, emit=False, reason="", as_json=as_json)
            return
    if as_json:
        print(json.dumps({"event": "rewound", "position": str(position), "before": str(before), "by": plan.words}))
    else:
        show.print_done(terminal.out, loaded.name, str(position), str(before))


def _with_what_is_behind(plan: RewindPlan, settings: Settings, topology: Topology) -> RewindPlan:
    """Name the checks and assets that a plan touches; where Dagster's graph can't be had, say so: no rewind waits for that."""
    from watertable.project import load_apps
    from watertable_platform.orchestration.behind import touched

    try:
        there = touched(load_apps(settings), topology, plan.rebuilds or [table.name for table in topology.tables], plan.again)
    except Exception as error:
        said = f"its checks and what is made from it can't be told: {type(error).__name__}: {error}"
        terminal.err.print(said, style="yellow", highlight=False, markup=False, soft_wrap=True)
        return plan
    return dataclasses.replace(plan, checks=there.checks, assets=there.assets)


def _told(settings: Settings, topology: Topology, stop: threading.Event, *, as_json: bool) -> JsonLines | Progress:
    """Tell how a shadow's replay goes: to a person, or to a program."""
    from watertable_platform.cli.progress import JsonLines, Progress

    return JsonLines(stop) if as_json else Progress(terminal.out, topology, settings.log_file("query"), beside=True)


def _replay(settings: Settings, loaded: LoadedApp, spark: SparkSession, store: Store, *, words: str, until: int, as_json: bool) -> None:
    """Bring the shadow to where its app stands, or stood at a commit, and show what it would change."""
    from watertable.acts import shadow as beside
    from watertable.runtime import job
    from watertable_platform.cli import show

    kept = f"what the shadow has made is kept, `watertable rewind {loaded.name} --shadow --apply` goes on"
    stopped = f"stopped; {kept}"
    with stop_on_signals(within=STOPS_WITHIN, unfinished=stopped) as stop:
        with _told(settings, loaded.topology, stop, as_json=as_json) as view:
            try:
                job.run(loaded.topology, settings, shadow=True, until=until, on_event=view, stop=stop, spark=spark)
            except KafkaError as error:
                raise error if isinstance(error, TopicChanged) else KafkaError(f"{error} ({kept})") from None
        if stop.is_set():
            raise RewindRefused(stopped)
    found = beside.diff(store, loaded.topology)
    show.tell_diff(terminal.out, found, as_json=as_json)
    if as_json:
        print(json.dumps({"event": "shadow", "position": found.shadow, "before": found.live, "by": words}))
    else:
        terminal.out.print(
            f"[green]✓[/] the shadow is at [cyan]{found.shadow}[/] beside [cyan]{found.live}[/]; `watertable promote {loaded.name}` lets "
            f"it take the app's place, `watertable rewind {loaded.name} --abandon-shadow` gives it up", highlight=False,
        )  # fmt: skip


def _red(settings: Settings, loaded: LoadedApp, store: Store, of: Collection[str]) -> list[str]:
    """Name the checks of an app's suites that are red of what its shadow would leave; those of these tables, or of all."""
    from watertable.acts import shadow as beside
    from watertable.project import Broken, load_apps
    from watertable_platform.orchestration.suites import find_suites, red

    project, folder = load_apps(settings), loaded.folder.name
    batch = project.batch[folder].load()
    apps = [app for app in project.apps.values() if app.folder == loaded.folder]
    found = find_suites([*project.modules[folder], *(() if isinstance(batch, Broken) else batch)], apps, settings)[loaded.name]
    expected = {table: e for table, e in found.items() if not of or table in of}
    told = red(loaded.name, expected, lambda tables: beside.promised(store, tables))
    return [*told, f"those of a file that doesn't load ({batch})"] if isinstance(batch, Broken) else told


def _abandon(name: str, *, apply: bool, reason: str, as_json: bool) -> None:
    """Say which shadow there is, and give it up where that was asked for."""
    from watertable.acts import shadow as beside
    from watertable.store.writer import Store

    settings, loaded = terminal.find_app(name)
    with terminal.begin_session(settings, brief=True) as spark:
        store = Store(spark, settings.warehouse_uri, loaded.name, loaded.topology.tables)
        words = beside.current(store).writer
        if not apply:
            said = f"{loaded.name} has the shadow {words!r}; --apply gives it up"
            if as_json:
                print(json.dumps({"event": "abandon", "by": f"give up {words}"}))
            else:
                terminal.err.print(said, style="dim", markup=False, highlight=False)
            return
        position = beside.abandon(store, reason)
    if as_json:
        print(json.dumps({"event": "abandoned", "position": str(position), "before": str(position), "by": f"give up {words}"}))
    else:
        said = f"[green]✓[/] the shadow {escape(repr(words))} is given up, at [cyan]{position}[/]; {loaded.name} goes on as it was"
        terminal.out.print(said, highlight=False)


COMMANDS: Final = (rewind, diff, promote, undo, parity)
