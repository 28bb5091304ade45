"""Hold what all commands share: where they print, how they name an app, and the Spark session that they begin."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console

from watertable.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.project import LoadedApp

Item = TypeVar("Item")
AppName = Annotated[str, typer.Argument(metavar="APP", help="The app's name, as in wt.App(name).")]


def _in_one_form(context: typer.Context, option: typer.CallbackParam, value: bool) -> bool:
    if value and any(context.params.get(other) for other in {"as_json", "as_csv"} - {option.name}):
        raise typer.BadParameter("--json and --csv are two forms of one answer: choose one")
    return value


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.", callback=_in_one_form)]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.", callback=_in_one_form)]
At = Annotated[str | None, typer.Option(help="An earlier position: retail@1.17, a version, a commit time, or event:TIME.")]
AtOfApp = Annotated[str | None, typer.Option(help="An earlier position of the app: retail@1.17, a commit time, or event:TIME.")]
Limit = Annotated[int, typer.Option(help="Rows to show.", min=1, max=1 << 30)]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name; app.table where two apps have one of that name.")]
Key = Annotated[str | None, typer.Option(help="Only this key; a JSON array for several key columns.")]
Window = Annotated[str | None, typer.Option(help="Of a windowed table, only the window that begins then.", metavar="TIME")]
out, err = Console(emoji=False), Console(stderr=True, emoji=False)  # "app.py:100:" is a place, and no picture


def find_app(name: str) -> tuple[Settings, LoadedApp]:
    """Load an app, and the settings that it is under."""
    from watertable.project import load_apps

    settings = Settings.load()
    return settings, load_apps(settings).app(name)


def quiet(log: Path) -> None:
    """Send what libraries log to the file that the JVM's words go to: the terminal is the progress line's."""
    log.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=log, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)


def counted(items: Iterable[Item], description: str, total: int) -> Iterator[Item]:
    """Go through items, and show how far that is, where somebody looks."""
    from rich.progress import track

    yield from track(items, description, total, console=err, transient=True, disable=not err.is_terminal)


def begin_session(settings: Settings, *, brief: bool = False, of: str = "query") -> AbstractContextManager[SparkSession]:
    """Begin a Spark session for a command that looks or acts, ended with it; a brief one starts sooner, and is slower with much data.

    Its log is that of such commands, or of the one that it is `of`.
    """
    from watertable_platform.cli.show import session

    quiet(settings.log_file(of))
    return session(settings, err, brief=brief, of=of)
