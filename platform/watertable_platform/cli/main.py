"""The command `watertable`: run apps, look at tables, and keep the parts a development machine needs.

Each command does one thing and says in one line what came of it; an error is one clear message with the way out, and no traceback
(unless --debug, or where the mistake is ours: it is to be reported). Programs read `--json` and the exit code: 0 done, 1 failed, 2 a
definition or setting is wrong, 3 another run took over, 4 a topic changed. Spark and Kafka are imported by the commands that use them,
so that `--help` answers at once.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from watertable.errors import DefinitionError, KafkaError, UnknownPosition, WatertableError, exit_code
from watertable.settings import Settings
from watertable_platform.cli import rewinding, terminal
from watertable_platform.cli.init import init
from watertable_platform.cli.terminal import AppName, AsCsv, AsJson, At, AtOfApp, Key, Limit, TableName, Window
from watertable_platform.stopping import STOPS_WITHIN, stop_on_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from watertable.kafka.admin import Offsets
    from watertable.plan.plan import Topology
    from watertable.project import LoadedApp
    from watertable.records import Advance
    from watertable.store.commits import Head
    from watertable.store.reader import At as AtPosition
    from watertable.store.reader import Reader
    from watertable.store.writer import Store
    from watertable.tools.past import Past
    from watertable_platform.answers import Answer

app = typer.Typer(
    name="watertable", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich",
    help="Tables fed by streams: Kafka to Delta Lake on Spark, exactly once.",
)  # fmt: skip
broker = typer.Typer(no_args_is_help=True, help="Run a real Apache Kafka on this machine, for development.")
jars = typer.Typer(no_args_is_help=True, help="Fetch the pinned jars that Spark and the broker run on.")
app.add_typer(broker, name="broker", rich_help_panel="This machine")
app.add_typer(jars, name="jars", rich_help_panel="This machine")


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    project: Annotated[Path | None, typer.Option(help="The project's folder; default: the nearest upward that has settings.")] = None,
) -> None:
    if debug:
        os.environ["WATERTABLE_CLI_DEBUG"] = "1"
    if project is not None:
        os.environ["WATERTABLE_PROJECT"] = str(project.resolve())


@app.command(rich_help_panel="Apps")
def run(
    name: AppName,
    available_now: Annotated[bool, typer.Option("--available-now", help="Read what is there now, fold, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run an app here until Ctrl-C, with a line that shows how it goes."""
    settings, loaded = terminal.find_app(name)
    from watertable.kafka.admin import Admin
    from watertable.kafka.config import Cluster
    from watertable.runtime import job
    from watertable_platform.cli.progress import JsonLines, Progress

    log = settings.log_file(loaded.name)
    terminal.quiet(log)
    if not as_json:
        Admin(Cluster.of(settings)).topics()  # who has forgotten the broker is told at once; what a program has started waits for it
    with stop_on_signals(within=STOPS_WITHIN) as stop:
        view = JsonLines(stop) if as_json else Progress(terminal.out, loaded.topology, log)
        with view:
            job.run(loaded.topology, settings, available_now=available_now, on_event=view, stop=stop, log=log)


@app.command(rich_help_panel="Apps")
def describe(
    name: AppName,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Draw it as a Mermaid flowchart.")] = False,
) -> None:
    """Show an app's topology: topics, tables, outputs, and where each is defined."""
    from watertable.plan import lineage

    _, loaded = terminal.find_app(name)
    print(lineage.mermaid(loaded.topology) if mermaid else lineage.describe(loaded.topology))


@app.command("plan", rich_help_panel="Apps")
def plan_(
    ref: Annotated[str, typer.Option("--from", metavar="REF", help="The git commit, branch or tag to compare with: main.")],
    as_json: AsJson = False,
) -> None:
    """Print what a merge would do to each table, as Markdown for a pull request; neither Spark nor Kafka is needed."""
    from watertable_platform.cli.review import review

    with terminal.err.status(f"loading the apps of {_escaped(ref)}", spinner="dots"):
        found = review(_settings(), ref)
    print(found.to_json() if as_json else found.markdown())
    if found.broken:  # the tables of these folders would be missing in what a pull request goes by
        raise typer.Exit(exit_code(DefinitionError()))


@app.command("outline", hidden=True)
def outline() -> None:
    """Print the outlines of all apps as JSON: what `plan` asks another version of the project for."""
    from watertable_platform.cli.review import outlines

    print(outlines(_settings()))


@app.command(rich_help_panel="Tables")
def query(
    table: TableName,
    key: Key = None,
    window: Window = None,
    sql: Annotated[str | None, typer.Option(help="A query over the app's tables, all read at one position.")] = None,
    at: At = None,
    as_of: Annotated[str | None, typer.Option(help="Of a versioned table, its rows at an event time.", metavar="TIME")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show rows of a table, fresh and exact, with the position they are of."""
    from watertable.project import load_apps
    from watertable_platform import answers
    from watertable_platform.cli import show

    if sql is not None and (key, window, as_of) != (None, None, None):
        raise typer.BadParameter("the query says which rows it reads: leave --key, --window and --as-of out", param_hint="--sql")
    if " " in table.strip():  # as a query is, and no table's name
        raise typer.BadParameter("name a table, and give the query with --sql: it is over all tables of that one's app", param_hint="TABLE")
    settings = _settings()
    topology, chosen = answers.find_table(load_apps(settings), table)
    wanted = answers.read_key(chosen, key, window)
    moment = answers.parse_at(at) if at is not None else None
    time = answers.parse_time(as_of) if as_of is not None else None
    with terminal.begin_session(settings, brief=True) as spark:
        reader = answers.reader_of(spark, settings, topology)
        if sql is not None:
            asked = answers.query(reader, sql, moment)
        else:
            asked = answers.rows(reader, chosen, wanted=wanted, at=moment, as_of=time)
        answer = asked.answer(limit)
    _print(answer, show.print_answer, as_json=as_json, as_csv=as_csv)


@app.command(rich_help_panel="Tables")
def changes(
    table: TableName,
    since: Annotated[str, typer.Option(help="Where to begin: retail@1.17, a version, a commit time, or event:TIME.")],
    until: Annotated[str | None, typer.Option(help="Where to end; default: the newest position.")] = None,
    key: Key = None,
    window: Window = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show what changed in a table between two positions: each row that differs, before and after."""
    from watertable.project import load_apps
    from watertable_platform import answers
    from watertable_platform.cli import show

    settings = _settings()
    topology, chosen = answers.find_table(load_apps(settings), table)
    wanted = answers.read_key(chosen, key, window)
    start, end = answers.parse_at(since), None if until is None else answers.parse_at(until)
    with terminal.begin_session(settings, brief=True) as spark:
        answer = answers.changes(answers.reader_of(spark, settings, topology), chosen, start, end, wanted=wanted).answer(limit)
    _print(answer, show.print_changes, as_json=as_json, as_csv=as_csv)


@app.command(rich_help_panel="Tables")
def explain(
    table: TableName,
    key: Annotated[str, typer.Option(help="The key; a JSON array for several key columns.")],
    window: Window = None,
    limit: Annotated[int, typer.Option(help="Records to show, the newest.", min=1)] = 20,
    as_test: Annotated[
        bool, typer.Option("--as-test", help="Print a test instead, that pipes these records in and holds the row: > test_it.py")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show every record that made a row, the row after each, and what was late or refused.

    It needs Spark for archived topics, and once the app has committed: its commits have recorded idle partitions and the wall clock.
    """
    from watertable.project import load_apps
    from watertable.tools import keytext, testcase
    from watertable.tools.explain import explain as tell
    from watertable_platform import answers
    from watertable_platform.cli import show

    settings = _settings()
    topology, chosen = answers.find_table(load_apps(settings), table)
    wanted = keytext.read(chosen, keytext.split(key), window)
    part = topology.above({chosen.name})
    committed = _may_have_committed(settings, topology.app)
    with terminal.begin_session(settings, brief=True) if part.archived or committed else nullcontext() as spark:
        past = _past(settings, part, spark)
        with terminal.err.status("reading what commits recorded", spinner="dots"):
            found, head = _recorded(settings, part, spark) if spark is not None and committed else ([], None)
            reached = {} if head is None else _come_to(settings, part, head)
        begin, end = past.first, {p: min(offset, reached.get(p, offset)) for p, offset in past.ends.items()}
        recorded = [a for a in found if a.offset <= end.get((a.topic, a.partition), 0)]
        count = sum(max(0, offset - begin[partition]) for partition, offset in end.items())
        records = partial(terminal.counted, description="reading the topics", total=count)
        told = tell(topology, chosen, wanted, records(past.records(begin, end)), recorded, end)
        if as_test:
            one = "" if window is None else f" --window {shlex.quote(window)}"
            command = f"watertable explain {table} --key {shlex.quote(key)}{one} --as-test"
            test = testcase.as_test(topology, chosen, told, records(past.records(begin, end)), command, recorded, end)
    for (topic, partition), offset in sorted((p, offset) for p, offset in begin.items() if offset):
        terminal.err.print(
            f"[yellow]gap[/] {topic}/{partition}: Kafka has deleted what was before offset {offset:,}; the story begins there"
        )
    if as_test:
        print(test, end="")
    elif as_json:
        print(show.explanation_json(told))
    else:
        show.print_explanation(terminal.out, told, limit)


@app.command(rich_help_panel="Tables")
def bisect(
    table: TableName,
    condition: Annotated[str, typer.Argument(metavar="CONDITION", help='A condition on a row: "on_hand < 0".')],
    key: Key = None,
    window: Window = None,
    as_json: AsJson = False,
) -> None:
    """Find the first commit after which a condition on a row was true, and the record of it that made it so."""
    from watertable.project import load_apps
    from watertable.tools import bisect as history
    from watertable_platform import answers
    from watertable_platform.cli import show

    settings = _settings()
    topology, chosen = answers.find_table(load_apps(settings), table)
    judged = history.condition_of(chosen, condition)
    wanted = answers.read_key(chosen, key, window)
    culprit: history.Culprit | None = None
    unknown = ""
    with terminal.begin_session(settings, brief=True) as spark:
        reader = answers.reader_of(spark, settings, topology)
        with terminal.err.status("folding every change", spinner="dots"):
            found = history.find(reader, chosen, judged, wanted)
        if found.at is not None:
            try:
                past = _past(settings, topology, spark)
                begin, end = found.ranges(topology, chosen)
                if gone := past.lacking(begin, end):
                    named = ", ".join(f"{topic}/{partition}" for topic, partition in gone)
                    raise UnknownPosition(f"Kafka has deleted records of {named} that the commit read")
                culprit = history.blame(reader, topology, chosen, judged, found, past.records(begin, end))
            except (KafkaError, UnknownPosition) as error:
                unknown = str(error)
    if as_json:
        print(show.finding_json(found, culprit, unknown))
    else:
        show.print_finding(terminal.out, found, culprit, unknown, found.ranges(topology, chosen))


@app.command(rich_help_panel="Tables")
def preview(
    table: TableName,
    last: Annotated[int, typer.Option("--last", metavar="N", help="How many of the newest records to read.", min=1)] = 1000,
    limit: Annotated[int, typer.Option(help="Rows to show.", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    """Run a table's definition as it is here on the newest records, without a commit, and compare with the live table."""
    from watertable.project import load_apps
    from watertable.tools import preview as trial
    from watertable_platform import answers
    from watertable_platform.cli import show

    topology, wanted = answers.find_table(load_apps(settings := _settings()), table)
    with terminal.begin_session(settings, brief=True) as spark:
        past = _past(settings, topology.above({wanted.name}), spark)
        reader = answers.reader_of(spark, settings, topology)
        live = trial.live_of(reader, topology, wanted)
        reached = {p: max(offset, past.first[p]) for p, offset in (live.next if live else {}).items() if p in past.ends}
        end = {**past.ends, **reached}
        begin = trial.last(past.first, end, last)
        with terminal.err.status("reading the topics", spinner="dots"):
            recorded, _ = _recorded(settings, topology, spark)
            seen = trial.preview(reader, topology, wanted, begin, end, past.records(begin, end), live, recorded)
    if as_json:
        print(show.preview_json(seen))
    else:
        show.print_preview(terminal.out, seen, limit)


@app.command(rich_help_panel="Tables")
def quarantine(name: AppName, at: AtOfApp = None, limit: Limit = 20, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """Show the records that an app's definition has refused, the newest first: bytes, place, operator, and why."""
    from watertable_platform import answers
    from watertable_platform.cli import show

    answer, topology = _left_out(name, at, lambda reader, moment: answers.quarantined(reader, moment).answer(limit))
    _print(answer, partial(show.print_quarantine, topology=topology), as_json=as_json, as_csv=as_csv)


@app.command(rich_help_panel="Tables")
def dropped(
    name: AppName,
    each: Annotated[bool, typer.Option("--each", help="List what came too late record by record, the newest first.")] = False,
    at: AtOfApp = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show what an app's operators have left out, by operator and reason: what came too late for a window, and nulls."""
    from watertable_platform import answers
    from watertable_platform.cli import show

    answer, _ = _left_out(name, at, lambda reader, moment: answers.dropped(reader, moment, each=each).answer(limit))
    _print(answer, show.print_answer, as_json=as_json, as_csv=as_csv)


def _left_out(name: str, at: str | None, ask: Callable[[Reader, AtPosition | None], Answer]) -> tuple[Answer, Topology]:
    from watertable_platform import answers

    settings, loaded = terminal.find_app(name)
    moment = None if at is None else answers.parse_at(at)
    with terminal.begin_session(settings, brief=True) as spark:
        return ask(answers.reader_of(spark, settings, loaded.topology), moment), loaded.topology


def _print(answer: Answer, shown: Callable[[Console, Answer], None], *, as_json: bool, as_csv: bool) -> None:
    from watertable_platform.cli import show

    if as_json:
        show.print_json(answer)
    elif as_csv:
        show.print_csv(answer)
    else:
        shown(terminal.out, answer)


@app.command(rich_help_panel="Tables")
def status(
    names: Annotated[list[str] | None, typer.Argument(metavar="[APP]...", help="Only these apps; all, when none is named.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show every app and table: position, lag, and how far other Delta readers are behind."""
    from watertable.project import load_apps
    from watertable_platform import answers
    from watertable_platform.cli import show

    settings = _settings()
    project = load_apps(settings)
    if names:
        project = replace(project, apps={name: project.app(name) for name in names}, broken={})
    with terminal.begin_session(settings, brief=True) as spark:
        found = answers.standing(project, lambda topology: answers.reader_of(spark, settings, topology))
    if as_json:
        print(answers.status_json(project, found))
    else:
        show.print_status(terminal.out, found)
    for broken in project.broken.values():
        terminal.err.print(f"[red]broken[/] {_escaped(str(broken))}", highlight=False, soft_wrap=True)


@app.command(rich_help_panel="Tables")
def serve(
    host: Annotated[str, typer.Option(help="The address to listen on; any but this machine's own needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 for any that is free.", min=0, max=65535)] = 8474,
    token: Annotated[str | None, typer.Option(metavar="env:NAME", help="The token that requests have to send; or serve_token.")] = None,
) -> None:
    """Answer over HTTP what `query`, `changes` and `status` show, read-only, until Ctrl-C."""
    from watertable.project import load_apps
    from watertable_platform.serving import running

    settings = _settings()
    project = load_apps(settings)
    for broken in project.broken.values():
        terminal.err.print(f"[red]broken[/] {_escaped(str(broken))}", highlight=False, soft_wrap=True)
    named = token if token is not None else settings.serve_token
    asked = running.token(named)
    with running.listening(host, port, asked) as listening, stop_on_signals(within=STOPS_WITHIN) as stop:
        with terminal.begin_session(settings, of="serve") as spark:
            address = running.address(listening)
            table = next((f"{name}.{t.name}?limit=5" for name, loaded in project.apps.items() for t in loaded.topology.tables), "")
            bearer = "" if asked is None else f'-H "Authorization: Bearer ${named.removeprefix("env:")}" '
            print(f"serving {', '.join(sorted(project.apps)) or 'no app'} at {address}, until Ctrl-C", flush=True)
            print(f"  curl {bearer}'{address}/v1/tables/{table}'", flush=True)
            running.serve(project, spark, listening, asked, stop)


@app.command(rich_help_panel="Tables")
def fold(name: AppName) -> None:
    """Fold an app's tables now, so that every Delta reader sees what is committed."""
    settings, loaded = terminal.find_app(name)
    with terminal.begin_session(settings) as spark:
        folded = _store(settings, loaded, spark).fold_all()
    for table, fold in ((name, fold) for name, fold in folded.items() if not name.startswith("__")):
        terminal.out.print(f"[green]✓[/] {table} folded up to commit {fold.mark.seq:,}", highlight=False)
    if not folded:
        terminal.out.print("[green]✓[/] nothing to fold")


@app.command(rich_help_panel="Tables")
def maintain(name: AppName) -> None:
    """Rewrite small files, drop the changelog behind the horizon, and delete files that no version holds."""
    from watertable.kafka.admin import Admin
    from watertable.kafka.config import Cluster
    from watertable.runtime.workers import consumers

    settings, loaded = terminal.find_app(name)
    publishes, cluster = bool(loaded.topology.sinks), Cluster.of(settings)
    if publishes:
        Admin(cluster).topics()  # what is yet to be published is kept, and the cluster knows what is: no answer is told before Spark starts
    with terminal.begin_session(settings) as spark:
        store = _store(settings, loaded, spark)
        store.upkeep.maintain(consumers(store, cluster) if publishes else ())
    terminal.out.print(f"[green]✓[/] {loaded.name} is tidy", highlight=False)


@app.command(rich_help_panel="Apps")
def publish_anew(name: AppName, apply: rewinding.Apply = False) -> None:
    """Show how far an app's output is published; with --apply, forget it: all that the changelog holds is published once more."""
    from watertable.kafka.config import Cluster
    from watertable.kafka.publisher import OutboxPublisher, published

    settings, loaded = terminal.find_app(name)
    topics, cluster = ", ".join(sorted({sink.topic for sink in loaded.topology.sinks})), Cluster.of(settings)
    done = published(cluster, loaded.name)
    if not topics or done is None:
        terminal.out.print(f"{loaded.name} has {'published nothing yet' if topics else 'no output topics'}: there is nothing to forget")
        return
    upto = f"{loaded.name}@{done.place.epoch}.{done.place.seq}"
    if not apply:
        said = f"{topics}: published up to {upto}. With --apply, all that the changelog holds follows, once more where it is there."
        terminal.out.print(said, markup=False, highlight=False)
        return
    publisher = OutboxPublisher(cluster, loaded.name)
    publisher.forget()
    publisher.close()
    said = f"{upto} is forgotten: the app's run publishes all that its changelog holds to {topics}, behind what is there"
    terminal.out.print("[green]✓[/] " + _escaped(said), highlight=False)


def _store(settings: Settings, loaded: LoadedApp, spark: SparkSession) -> Store:
    """Give an app's store, whose past is kept as long as the settings say."""
    from watertable.store.writer import Retention, Store

    topology, retention = loaded.topology, Retention(timedelta(days=settings.horizon_days))
    return Store(spark, settings.warehouse_uri, loaded.name, topology.kept, retention, topology.archived)


@app.command(rich_help_panel="This machine")
def dev(
    port: Annotated[int, typer.Option(help="The port of Dagster's web page.", min=1, max=65535)] = 3000,
    with_broker: Annotated[
        bool, typer.Option("--broker/--no-broker", help="Start the development broker, where WATERTABLE_KAFKA names no other.")
    ] = True,
) -> None:
    """Run the broker and Dagster together, until Ctrl-C; Dagster reloads your code when you save it."""
    from watertable_platform.development import develop

    settings = _settings()
    with stop_on_signals() as stop:
        raise typer.Exit(
            develop(settings, port=port, with_broker=with_broker, stop=stop, say=partial(terminal.err.print, markup=False, highlight=False))
        )


@broker.command("start")
def broker_start(
    port: Annotated[int | None, typer.Option(help="The port to listen on; default: that of the settings.", min=1, max=65535)] = None,
) -> None:
    """Start it, or find it running; its data is kept from start to start."""
    from watertable.kafka import broker as embedded

    settings = _settings()
    now = embedded.start(settings.home_folder / "kafka", port=port or _port(settings))
    terminal.out.print(f"[green]●[/] Kafka {_escaped(now.detail)}", highlight=False)


@broker.command("stop")
def broker_stop() -> None:
    """Stop it."""
    from watertable.kafka import broker as embedded

    settings = _settings()
    now = embedded.stop(settings.home_folder / "kafka", port=_port(settings))
    terminal.out.print(f"[dim]○[/] Kafka {_escaped(now.detail)}", highlight=False)


@broker.command("status")
def broker_status(as_json: AsJson = False) -> None:
    """Tell whether it runs, and what else is on its port; exit code 1 when it doesn't run."""
    from watertable.kafka import broker as embedded

    settings = _settings()
    now = embedded.status(settings.home_folder / "kafka", port=_port(settings))
    if as_json:
        print(json.dumps({"state": now.state, "bootstrap": now.bootstrap, "pid": now.pid, "cluster": now.cluster_id, "log": str(now.log)}))
    else:
        mark = {"running": "[green]●[/]", "starting": "[yellow]●[/]", "stopped": "[dim]○[/]"}.get(now.state, "[red]●[/]")
        terminal.out.print(f"{mark} Kafka {_escaped(now.detail)}", highlight=False)
    if now.state is not embedded.State.RUNNING:
        raise typer.Exit(1)


@jars.command("fetch")
def jars_fetch() -> None:
    """Bring the jars into the cache, once, and verify each against its pinned hash."""
    from watertable import jars as pinned

    found = pinned.fetch("spark", "broker", mirror=_settings().maven_mirror or None)
    terminal.out.print(f"[green]✓[/] {len(found)} jars, verified, in {_escaped(str(pinned.cache_folder()))}", highlight=False)


def _settings() -> Settings:
    return Settings.load()


def _port(settings: Settings) -> int:
    from watertable_platform.development import kafka_port

    return kafka_port(settings)


def _past(settings: Settings, topology: Topology, spark: SparkSession | None) -> Past:
    """Give what there is of the topics that an app, or a part of it, reads."""
    from watertable.kafka.config import Cluster
    from watertable.tools.past import Past

    archives = None
    if spark is not None and topology.archived:
        from watertable.store.archive import Archives

        archives = Archives(spark, settings.warehouse_uri, topology.archived)
    return Past(Cluster.of(settings), [topic.name for topic in topology.topics], archives)


def _may_have_committed(settings: Settings, app: str) -> bool:
    """Tell whether an app can have committed: of a warehouse that is no folder here, only Spark could say that it hasn't.

    What its commits have recorded stays part of the log when the definition that asked for it is gone.
    """
    warehouse = settings.warehouse_folder
    return warehouse is None or (warehouse / app / "changelog").exists()


def _recorded(settings: Settings, topology: Topology, spark: SparkSession) -> tuple[list[Advance], Head | None]:
    """List what an app's commits have recorded of idle partitions and of the wall clock; and give where they end."""
    from watertable.records import Advance
    from watertable.store.changelog import Changelog

    changelog = Changelog(spark, settings.warehouse_uri, topology.app)
    head = changelog.head() if changelog.log.exists() else None
    last = head.last if head is not None else None
    names = {topic.name for topic in topology.topics}
    found = changelog.advances({name: of for name, of in last.topic_ids.items() if name in names}) if last is not None else ()
    return [Advance(a.topic, a.partition, a.before, a.stream_time, a.clock) for a in found], head


def _come_to(settings: Settings, topology: Topology, head: Head) -> Offsets:
    """Give the offsets that an app has come to in its topics, where that is known; of one that was made anew since, it has read nothing."""
    from watertable.kafka.admin import Admin
    from watertable.kafka.config import Cluster

    kafka, names, last = Admin(Cluster.of(settings)), [topic.name for topic in topology.topics], head.last
    if last is None:  # rewound to earliest, it has read nothing since
        return dict.fromkeys(kafka.partitions(names), 0) if head.forks else {}
    now = kafka.describe(names)
    return {p: offset for p, offset in last.next.items() if p[0] in now and now[p[0]].id == last.topic_ids.get(p[0])}


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _mount() -> None:
    """Mount the commands that belong to modules of their own."""
    for command in rewinding.COMMANDS:
        if not any(known.callback is command for known in app.registered_commands):
            app.command(rich_help_panel="Apps")(command)
    if not any(known.callback is init for known in app.registered_commands):
        app.command(rich_help_panel="This machine")(init)
    if not any(command.name == "demo" for command in app.registered_commands):
        try:
            module = import_module("watertable_platform.demo")
        except ModuleNotFoundError:
            return
        app.command("demo", rich_help_panel="This machine")(module.demo)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code: errors of ours become one message."""
    _mount()
    if isinstance(sys.stdout, TextIOWrapper):
        codecs.register_error("numbered", _numbered)
        sys.stdout.reconfigure(errors="numbered")  # a terminal that lacks a letter is shown its number, as standard error does
    command = typer.main.get_command(app)
    try:
        code = command.main(arguments, prog_name="watertable", standalone_mode=False)
    except (WatertableError, OSError) as error:
        return _refused(error)
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        return 130
    except Exception as error:
        if type(error).__module__.startswith("click") or hasattr(error, "format_message"):
            error.show()  # type: ignore[attr-defined]
            return 2
        traceback.print_exc()  # what comes once may not come again with --debug
        _say_error(error, f"{' '.join(str(error).split())}: this is a mistake of watertable's, please report it with what stands above")
        return 1
    return code if isinstance(code, int) else 0


def _numbered(error: UnicodeError) -> tuple[str, int]:
    r"""Write the letters that an encoding lacks by their numbers, as JSON does: of Python's own \xe4 its readers know nothing."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _refused(error: WatertableError | OSError) -> int:
    if os.environ.get("WATERTABLE_CLI_DEBUG"):
        terminal.err.print_exception()
    else:
        _say_error(error, _of_file(error) if isinstance(error, OSError) else str(error))
    return exit_code(error)


def _of_file(error: OSError) -> str:
    """Say which file it was, and what to do about it."""
    way = "`watertable --debug` with the same command shows where it came from"
    if isinstance(error, PermissionError | NotADirectoryError | FileExistsError) or error.errno == errno.EROFS:
        way = "watertable has to write below the project's folder, or below another that WATERTABLE_HOME names"
    return f"{error.filename}: {error.strerror}; {way}" if error.filename else f"{error}; {way}"


def _say_error(error: Exception, text: str) -> None:
    terminal.err.print(f"[bold red]{type(error).__name__}[/] {_escaped(text)}", highlight=False, soft_wrap=True)
