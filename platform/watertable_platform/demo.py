"""Run the project's demo: fill topics from a known sequence of records, let the stream keep its tables, and look on.

A demo is an app's folder that also has `replay.py`, whose `schedule(days)` gives the records to send (`Schedule`), `_totals.py`, whose
`compare` holds the finished tables to their source, and `tour.md`, things to try. Nothing here knows which app that is.

Two ways to run it. For a person: broker, replay at a speed, Dagster with the app's stream, a live view until Ctrl-C. With
`--until-caught-up`: the replay at full speed, one bounded run, then the totals; exit code 1 when one differs. Either way what
was started here is ended here, and the next start continues: the replay where its topics end, the stream at its position.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
import webbrowser
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from watertable.errors import DefinitionError, JobError
from watertable.settings import QUICK, Settings
from watertable_platform.stopping import stop_on_signals

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from watertable.kafka.config import Cluster
    from watertable.kafka.feed import Record
    from watertable.project import LoadedApp

SPEED: Final = 86_400.0
"""Seconds of the records' time in a second: a day."""
_LOOK: Final = 1.0
_PATIENCE: Final = 30.0
_PR_SET_CHILD_SUBREAPER: Final = 36
_FOLDED: Final = {"WATERTABLE_FOLD_SECONDS": "10"}  # sooner than by default: a person is looking
_BOUNDED: Final = {**_FOLDED, "WATERTABLE_BATCH_RECORDS": "100000"}
_WATCHED: Final = {**_FOLDED, "WATERTABLE_BATCH_RECORDS": "20000", "JDK_JAVA_OPTIONS": QUICK}
_MEMORY: Final = "1536m"  # of the driver: Kafka, Dagster and Spark stay within 4 GB
_Partition = tuple[str, int]


class Schedule(Protocol):
    """Hold every record that the demo sends, each with its place, in the order of sending."""

    def __len__(self) -> int:
        """Count the records."""

    @property
    def topics(self) -> Mapping[str, int]:
        """Name the topics and their numbers of partitions."""

    def records(self, ends: Mapping[_Partition, int]) -> Iterator[Record]:
        """Yield the records that lie at or after end offsets."""

    def last(self, ends: Mapping[_Partition, int]) -> Iterator[Record]:
        """Yield the record before each end offset."""


class Total(Protocol):
    """Compare one figure of the tables with that of their source."""

    @property
    def name(self) -> str:
        """Say what is compared."""

    @property
    def wanted(self) -> object:
        """Give what the source says."""

    @property
    def found(self) -> object:
        """Give what the tables say."""

    @property
    def holds(self) -> bool:
        """Tell whether they agree."""


@dataclass(slots=True)
class Feeding:
    """Follow a replay that runs in a thread."""

    total: int
    before: int
    sent: int = 0
    at: datetime | None = None
    error: Exception | None = None
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def done(self) -> int:
        """Count the records in the topics, those of earlier starts included."""
        return self.before + self.sent

    @property
    def rate(self) -> float:
        """Give the records sent in a second, on average."""
        return self.sent / max(0.001, (self.ended or time.monotonic()) - self.began)


@dataclass(slots=True)
class Seen:
    """Hold what a table looks like to any Delta reader."""

    rows: int = 0
    version: int = -1
    at: datetime | None = None


def demo(
    until_caught_up: Annotated[bool, typer.Option("--until-caught-up", help="Replay at full speed, check the totals, end.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Don't open Dagster's page in a browser.")] = False,
    speed: Annotated[float, typer.Option(min=0, help="Seconds of the data's time that pass in a second; 0: as fast as it goes.")] = SPEED,
    days: Annotated[int | None, typer.Option(min=1, help="Replay the first so many days only.")] = None,
    port: Annotated[int, typer.Option(help="The port of Dagster's web page.", min=1, max=65535)] = 3000,
) -> None:
    """Replay real data into topics and watch the tables follow, until Ctrl-C; the next start goes on where this one ended."""
    from watertable.kafka.config import Cluster
    from watertable.project import load_apps

    console = Console(highlight=False, emoji=False)
    settings = Settings.load()
    script = Script.of(load_apps(settings).apps.values())
    with stop_on_signals(at_once=False) as stop, _broker(settings, console) as broker_pid, _no_orphans(broker_pid):
        if until_caught_up:
            raise typer.Exit(_bounded(settings, Cluster.of(settings), script, days, stop, console))
        raise typer.Exit(_watched(settings, Cluster.of(settings), script, days, stop, console, speed, port, browser=not no_browser))


@dataclass(frozen=True, slots=True)
class Script:
    """Hold the app that the demo runs, and reach what lies beside it."""

    app: LoadedApp

    @classmethod
    def of(cls, apps: Iterable[LoadedApp]) -> Script:
        """Find the app with a `replay.py` in its folder; raise `DefinitionError` when there is none."""
        for app in apps:
            if (app.folder / "replay.py").is_file():
                return cls(app)
        raise DefinitionError("no app of this project has a replay.py in its folder: there is nothing to demonstrate")

    def schedule(self, days: int | None, console: Console) -> Schedule:
        """Plan the replay; takes some seconds."""
        with console.status(f"planning the replay of {self.app.folder.name}"):
            planned: Schedule = self._module("replay").schedule(days)
        return planned

    def compare(self, schedule: Schedule, settings: Settings) -> Iterator[Total]:
        """Start Spark, and compare the tables with their source."""
        from watertable.session import shut_down, spark_session

        spark = spark_session(settings, app=f"demo of {self.app.name}", log=settings.log_file("demo-totals"))
        try:
            yield from self._module("_totals").compare(spark, schedule, self.app.topology, settings)
        finally:
            shut_down(spark)

    def tour(self) -> str:
        """Read the things to try."""
        return (self.app.folder / "tour.md").read_text(encoding="utf-8")

    def _module(self, name: str) -> Any:
        return import_module(f"{self.app.folder.parent.name}.{self.app.folder.name}.{name}")


# ------------------------------------------------------------------------------------------------------------------ two ways to run


def _bounded(settings: Settings, cluster: Cluster, script: Script, days: int | None, stop: threading.Event, console: Console) -> int:
    """Replay at full speed, run to the end of the topics, compare the totals; return the exit code."""
    from watertable_platform.orchestration.child import Child, run_command

    began = time.monotonic()
    schedule = script.schedule(days, console)
    board = Board(settings, script.app)
    with _live(board, console) as live, _feeding(cluster, schedule, None, stop) as feeding:
        board.feeding = feeding
        while feeding.ended is None:
            time.sleep(0.1)
        if stop.is_set():
            return 130
        _log(console, f"{feeding.done:,} records are in the topics")
        log, env = settings.log_file("demo"), _environment(settings, _BOUNDED)
        with Child(run_command(script.app.name, "--available-now"), env=env, cwd=settings.project, log=log) as child:
            while not child.ended and not stop.is_set():
                event = child.event(0.25)
                if event is not None:
                    board.take(event)
                    if event["event"] in ("batch", "fold", "stopped"):
                        _log(console, f"{event['event']:<8}{event.get('position') or ', '.join(event.get('tables', ()))}")
                board.look()
            if stop.is_set():
                return 130
            if code := child.exit_code():
                live.stop()
                raise JobError(f"`watertable run {script.app.name}` ended with exit code {code}; its log is {log}:\n{child.tail()}")
        board.look()
    ran = time.monotonic() - began
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # nothing is written from here on: an end at once is as good as any
    try:
        return _print_totals(script.compare(schedule, settings), console, len(schedule), ran)
    except KeyboardInterrupt:
        return 130


def _environment(settings: Settings, pace: Mapping[str, str]) -> dict[str, str]:
    """Say how the demo's stream should run, where the user hasn't said it."""
    unsaid = {name: value for name, value in pace.items() if name not in os.environ}
    return {**unsaid, "WATERTABLE_SPARK": json.dumps({"spark.driver.memory": _MEMORY, **settings.spark})}


def _log(console: Console, text: str) -> None:
    """Write a line where there is no terminal to draw on."""
    if not console.is_terminal:
        console.print(text, markup=False)


def _live(board: Board, console: Console) -> Live:
    return Live(board, console=console, refresh_per_second=4, redirect_stdout=False)


def _watched(
    settings: Settings, cluster: Cluster, script: Script, days: int | None, stop: threading.Event, console: Console, speed: float,
    port: int, *, browser: bool,
) -> int:  # fmt: skip
    """Replay at a speed beside Dagster and the app's stream until `stop`, or until one of them fails."""
    from watertable.kafka.admin import Admin
    from watertable_platform.orchestration.child import Child

    log, env = settings.log_file("dagster"), _environment(settings, _WATCHED)
    command = [sys.executable, "-m", "watertable_platform", "dev", "--port", str(port), "--no-broker"]
    page = Page(f"http://127.0.0.1:{port}", script.app.name)
    board = Board(settings, script.app, Admin(cluster), page, script.tour())
    with (
        Child(command, env=env, cwd=settings.project, log=log) as dagster,  # it starts while the replay is planned
        _feeding(cluster, script.schedule(days, console), speed or None, stop) as feeding,
        _live(board, console),
    ):
        board.feeding = feeding
        threading.Thread(target=page.launch, args=(stop, browser), name="demo-launch", daemon=True).start()
        while not stop.wait(_LOOK):
            dagster.event(0)
            if dagster.ended:
                raise JobError(f"Dagster ended by itself; its log is {log}:\n{dagster.tail()}")
            board.look()
            for line in board.news():
                _log(console, line)
        board.closing = True
    console.print(Markdown(script.tour()))
    return 0


@contextmanager
def _feeding(cluster: Cluster, schedule: Schedule, speed: float | None, stop: threading.Event) -> Iterator[Feeding]:
    """Send the rest of the schedule in a thread; at the end of the block the replay is over, and raises what went wrong."""
    from watertable.kafka.feed import begin, check, feed

    ends = begin(cluster, schedule.topics)
    check(cluster, schedule.last(ends))
    state = Feeding(total=len(schedule), before=sum(ends.values()))

    def progress(sent: int, at: datetime) -> None:
        state.sent, state.at = sent, at

    def run() -> None:
        try:
            feed(cluster, schedule.records(ends), speed=speed, stop=stop, progress=progress)
        except Exception as error:
            state.error = error
            stop.set()
        finally:
            state.ended = time.monotonic()

    thread = threading.Thread(target=run, name="demo-replay")
    thread.start()
    try:
        yield state
    except BaseException:
        stop.set()
        raise
    finally:
        thread.join()
    if state.error is not None:
        raise state.error


@contextmanager
def _broker(settings: Settings, console: Console) -> Iterator[int | None]:
    """Run the development broker, where the settings name one, and give its process; leave one running that ran before."""
    from watertable.kafka import broker
    from watertable_platform.development import is_ours, kafka_port

    folder = settings.home_folder / "kafka"
    if not is_ours(settings):
        yield None
        return
    port = kafka_port(settings)
    before = broker.status(folder, port=port).state is broker.State.RUNNING
    with console.status("starting Kafka"):
        found = broker.start(folder, port=port)
    console.print(f"[green]●[/] Kafka {found.detail}")
    try:
        yield found.pid
    finally:
        if not before:
            broker.stop(folder)


@contextmanager
def _no_orphans(keep: int | None) -> Iterator[None]:
    """See the end of every process that came from us, also of those whose own parents were ended first; Linux only.

    When Dagster doesn't end within its grace and is killed, the stream that it ran is asked to end by the kernel, and takes its time. As
    their reaper we become its parent then, and wait.
    """
    if sys.platform != "linux":
        yield
        return
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        deadline = time.monotonic() + _PATIENCE
        while children := _children() - {keep}:
            for pid in children:
                if time.monotonic() > deadline:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.05)


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread may have ended meanwhile
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


# -------------------------------------------------------------------------------------------------------------------------- Dagster


class Page:
    """Talk to Dagster's web server: wait for it, and launch the app's stream as a person would."""

    def __init__(self, url: str, app: str) -> None:
        self.url = url
        self.state = "starting"
        self._job = f"stream__{app}"

    def launch(self, stop: threading.Event, browser: bool) -> None:
        """Wait until Dagster serves, open its page, and see that the stream runs: it comes back by itself unless a person stopped it."""
        where = None
        while where is None:
            if stop.wait(0.5):
                return
            where = self._find()
        self.state = "serving"
        if browser:
            webbrowser.open(f"{self.url}/locations/{where['repositoryLocationName']}/jobs/{self._job}/runs")
        patience = time.monotonic() + (30 if self._last_status() not in (None, "CANCELED") else 0)
        while not stop.is_set():
            status = self._last_status()
            if status in ("QUEUED", "NOT_STARTED", "STARTING", "STARTED"):
                break
            if time.monotonic() >= patience:
                self._ask(_LAUNCH, {"params": {"selector": {**where, "jobName": self._job}, "runConfigData": {}}})
                break
            stop.wait(1)

    def _find(self) -> dict[str, str] | None:
        found = self._ask("{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } pipelines { name } } } } }")
        for node in (found or {}).get("repositoriesOrError", {}).get("nodes", []):
            if any(job["name"] == self._job for job in node["pipelines"]):
                return {"repositoryName": node["name"], "repositoryLocationName": node["location"]["name"]}
        return None

    def _last_status(self) -> str | None:
        query = "query($f: RunsFilter!) { runsOrError(filter: $f, limit: 1) { ... on Runs { results { status } } } }"
        found = self._ask(query, {"f": {"pipelineName": self._job}})
        runs = (found or {}).get("runsOrError", {}).get("results", [])
        return str(runs[0]["status"]) if runs else None

    def _ask(self, query: str, variables: Mapping[str, object] | None = None) -> dict[str, Any] | None:
        import urllib.request

        body = json.dumps({"query": query, "variables": variables or {}}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                found = json.load(answer).get("data")
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None


_LAUNCH: Final = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) { __typename } }"""


# --------------------------------------------------------------------------------------------------------------------- what is shown


class Board:
    """Draw the demo: the topics filling, the stream's place and lag, and each table as any Delta reader sees it."""

    def __init__(self, settings: Settings, app: LoadedApp, admin: Any = None, page: Page | None = None, tour: str = "") -> None:
        self._settings, self._app, self._admin, self._page, self._tour = settings, app, admin, page, tour
        self.feeding: Feeding | None = None
        self.closing = False
        self._tables = {table.name: Seen() for table in app.topology.tables}
        self._position, self._lag, self._rate = "", -1, 0.0
        self._state = "starting"
        self._began = time.monotonic()
        self._first_row: float | None = None
        self._delta: dict[str, Any] = {}
        self._last = (0.0, 0)
        self._told: set[str] = set()

    def take(self, event: Mapping[str, Any]) -> None:
        """Take in an event of a run that is ours."""
        match event["event"]:
            case "started":
                self._state, self._position = "running", event["position"]
            case "batch":
                self._position, self._rate, self._lag = event["position"], event["records_per_second"], sum(event["lag"].values())
            case "stopped":
                self._state, self._position, self._lag = event["reason"], event["position"], 0
            case "failed":
                self._state = f"failed: {event['message']}"

    def look(self) -> None:
        """Look at the tables' Delta logs, and at the lag where nobody tells it."""
        for name, seen in self._tables.items():
            self._look_at(name, seen)
        if self._first_row is None and any(seen.rows for seen in self._tables.values()):
            self._first_row = time.monotonic() - self._began
        if self._admin is not None:
            self._look_at_stream()

    def news(self) -> Iterator[str]:
        """Give what has come about since this was asked last, in lines for where nothing can be drawn."""
        lines = [f"Dagster {self._page.url} {self._page.state}"] if self._page is not None else []
        if self.feeding is not None and self.feeding.done >= self.feeding.total:
            lines.append(f"all {self.feeding.total:,} records are in the topics")
        if self._first_row is not None:
            lines.append(f"the tables have rows, after {self._first_row:.0f} s")
        yield from (line for line in lines if line not in self._told)
        self._told.update(lines)

    def __rich__(self) -> RenderableType:
        """Draw it."""
        parts: list[RenderableType] = []
        if self.feeding is not None:
            parts.append(self._topics(self.feeding))
        parts += [self._stream(), Text(), self._table(), Text()]
        if self._page is not None:
            where = Text.assemble(("  Dagster ", "bold"), (self._page.url, "cyan"), f"  {self._page.state}")
            parts.append(where.append("   Ctrl-C ends it all", "dim"))
            if self._first_row is not None:
                parts.append(Markdown(self._tour))
        if self.closing:
            parts.append(Text("  stopping: the batch at hand is finished or undone", style="yellow"))
        return Group(*parts)

    def _topics(self, feeding: Feeding) -> RenderableType:
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column(no_wrap=True)
        line.add_column(max_width=24)  # the bar, which is shorter where not all fits: no figure is cut
        for _ in range(3):
            line.add_column(no_wrap=True)
        clock = f"{feeding.at:%d %b %Y %H:%M}" if feeding.at else ""
        done = feeding.done >= feeding.total
        line.add_row(
            Text("  topics", style="bold"), ProgressBar(feeding.total, feeding.done),
            Text.assemble((f"{feeding.done:,}", "bold"), (f" of {feeding.total:,} records", "dim")),
            Text("all sent" if done else clock, style="green" if done else "cyan"),
            Text(f"{feeding.rate:,.0f}/s" if feeding.sent else "", style="dim"),
        )  # fmt: skip
        return line

    def _stream(self) -> RenderableType:
        lag = "" if self._lag < 0 else f"{self._lag:,}"
        return Text.assemble(
            ("  stream ", "bold"), (f"{self._state}  ", "green" if self._position else "yellow"), (self._position, "cyan"),
            *((("  lag ", "dim"), (lag, "bold yellow" if self._lag else "bold green")) if lag else ()),
            *(((f"  {self._rate:,.0f} records/s", "dim"),) if self._rate else ()),
        )  # fmt: skip

    def _table(self) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
        table.add_column("table", style="bold", min_width=16)
        table.add_column("rows", justify="right", min_width=10)
        table.add_column("Delta version", justify="right")
        table.add_column("folded", justify="right")
        for name, seen in self._tables.items():
            age = f"{(datetime.now(UTC) - seen.at).total_seconds():.0f} s ago" if seen.at else ""
            table.add_row(name, f"{seen.rows:,}" if seen.at else "…", str(seen.version) if seen.at else "", age)
        return table

    def _look_at(self, name: str, seen: Seen) -> None:
        found = self._open(name)
        if found is None or found.version() == seen.version:
            return
        seen.rows, seen.version = rows_of(found), found.version()
        seen.at = datetime.fromtimestamp(found.history(1)[0]["timestamp"] / 1000, UTC)

    def _look_at_stream(self) -> None:
        found = self._open("changelog")
        if found is not None:
            written = next((w for h in found.history(5) if "@" in (w := str(h.get("userMetadata") or "")) and w.startswith("batch")), "")
            if written:
                self._position, self._state = written.split()[1], "running"
        try:
            read = sum(self._admin.mirrored(self._app.name).values())
        except Exception:  # the group isn't there before the first commit
            return
        if self.feeding is not None and read:
            now = time.monotonic()
            since, then = self._last
            if now - since > 2:
                self._rate = max(0.0, (read - then) / (now - since)) if then else 0.0
                self._last = (now, read)
            self._lag = max(0, self.feeding.done - read)

    def _open(self, name: str) -> Any:
        """Open a Delta table without Spark, or bring it up to date; None while it isn't there."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        path = f"{self._settings.warehouse_uri}/{self._app.name}/{name}"
        try:
            if name not in self._delta:
                if "://" not in path and not Path(path, "_delta_log").is_dir():
                    return None
                self._delta[name] = DeltaTable(path)
            else:
                self._delta[name].update_incremental()
        except (TableNotFoundError, DeltaError, OSError):
            return None
        return self._delta[name]


def rows_of(table: DeltaTable) -> int:
    """Count a table's rows, without those that deletion vectors take away: its `count` has them, too."""
    from deltalake import QueryBuilder

    found = QueryBuilder().register("rows", table).execute("SELECT count(*) AS n FROM rows").read_all()
    return int(found["n"][0].as_py())


def _print_totals(totals: Iterator[Total], console: Console, records: int, seconds: float) -> int:
    title = f"{records:,} records, caught up in {seconds:.0f} s; the tables against their source"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("", width=1)
    table.add_column("what")
    table.add_column("source", justify="right")
    table.add_column("tables", justify="right", style="bold")
    wrong = 0
    with console.status("comparing the tables with plain Spark over the source"):
        for total in totals:
            wrong += not total.holds
            table.add_row("[green]✓[/]" if total.holds else "[red]✗[/]", total.name, _shown(total.wanted), _shown(total.found))
    console.print(table)
    console.print(f"[bold red]{wrong} differ[/]" if wrong else "[bold green]all hold[/]")
    return 1 if wrong else 0


def _shown(value: object) -> str:
    return f"{value:,}" if value is not None and not isinstance(value, str) else str(value)
