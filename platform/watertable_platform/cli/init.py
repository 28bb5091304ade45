"""The command `init`: make a project that runs, or add an app to one, from the project in `template/`.

Law: nothing that is there is touched. What is to be written is known, and held against what is there, before the first file is. The
template is a project itself, whose app is called NAME: it is linted, type-checked and tested as it stands. Its files that are named
after the app are the app's; an app that joins a project brings those, and what else the project can't run without.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

import typer

from watertable.errors import DuplicateName, SchemaError, SettingsError
from watertable.settings import Settings, find_project, project_around
from watertable_platform.cli import terminal

_NAME: Final = "NAME"
"""What the template calls the app, in files and in their paths."""
_PROJECT: Final = "PROJECT"
_NEEDED: Final = "workspace.yaml"
"""What a project needs for Dagster, beside its settings."""
_SETTINGS: Final = '[tool.watertable] with assets = ["assets"]'


def init(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Where; made if it isn't there. Default: this project, or this folder.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--app", metavar="NAME", help="The app's name; of a new project, by default the folder's.")
    ] = None,
) -> None:
    """Make a project that runs, or add an app to one: the app, its checks, its test, and records to try it on."""
    root = (folder or find_project()).resolve()
    around = project_around(root)
    wanted: Mapping[Path, str]
    if around is not None and around != root:
        raise SettingsError(
            f"{root} is in the project {around}: add an app to that by `watertable init {shlex.quote(str(around))} --app NAME`, "
            "or make the new project elsewhere"
        )
    if around is None:
        app = _app_name(root.name.replace("-", "_") if name is None else name, given=name is not None)
        wanted = {root / path: text for path, text, _ in _template(app, root.name)}
        way_out = f"Choose another folder; or make this one a project, by {_SETTINGS} in its pyproject.toml: then init adds an app to it"
    else:
        if name is None:
            raise SettingsError(f"{root} is a project: say which app to add to it, by --app NAME")
        app = _app_name(name, given=True)
        wanted = _joining(root, app)
        way_out = "Choose another name: --app NAME"
    if there := _there(wanted, root):
        raise SettingsError(f"nothing was written, for there is already {', '.join(_shown(path, root) for path in there)}. {way_out}")
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    _tell(root, app, [_shown(path, root) for path in wanted], new=around is None)


def _app_name(name: str, *, given: bool) -> str:
    from watertable.dsl.definitions import check_app_name

    try:
        return check_app_name(name)
    except SchemaError as error:
        raise SchemaError(str(error) if given else f"{error}; say how the app is called: --app NAME") from None


def _template(app: str, folder: str) -> Iterator[tuple[PurePosixPath, str, bool]]:
    """Give the template's files under the app's name: each one's path in the project, its text, and whether it is the app's."""
    project = re.sub("[^A-Za-z0-9]+", "-", folder).strip("-")
    project = f"{project}-tables".strip("-") if project.lower() in ("", "watertable") else project  # none may depend on itself
    words = {_PROJECT: project, _NAME: app}
    for path, file in _files(files("watertable_platform") / "template", PurePosixPath()):
        text = re.sub("|".join(words), lambda word: words[word[0]], file.read_text(encoding="utf-8"))
        yield PurePosixPath(str(path).replace(_NAME, app)), text, _NAME in str(path)


def _files(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, Traversable]]:
    for inner in sorted(folder.iterdir(), key=lambda found: found.name):
        if inner.name == "__pycache__":  # installers compile what they install
            continue
        if inner.is_dir():
            yield from _files(inner, path / inner.name)
        else:
            yield path / inner.name, inner


def _joining(root: Path, app: str) -> Mapping[Path, str]:
    """Give the files of an app that joins a project, in its assets folder; raise `DuplicateName` where it has one of that name."""
    from watertable.project import load_apps

    settings = Settings.load(root)
    if not settings.assets:
        raise SettingsError(f"{root / 'pyproject.toml'} [tool.watertable] names no assets folder that an app could be in")
    folders = [root / assets for assets in settings.assets]
    if all(folder.is_dir() for folder in folders):
        other = load_apps(settings).apps.get(settings.in_environment(app))
        if other is not None:
            raise DuplicateName(f"there is an app {app!r} already, at {other.topology.location}; choose another name: --app NAME")
    wanted = {}
    for path, text, of_app in _template(app, root.name):
        inside, *rest = path.parts
        if of_app:
            place = folders[0].joinpath(*rest) if inside == "assets" else root / path
            wanted[place] = text.replace("assets/", f"{settings.assets[0]}/")
        elif inside == _NEEDED and not os.path.lexists(root / path):
            wanted[root / path] = text
    for folder in folders[1:]:  # of two folders of one name in two assets folders, neither would load
        if os.path.lexists(folder / app):
            raise DuplicateName(f"there is a folder {folder / app} already; choose another name: --app NAME")
    return wanted


def _there(wanted: Mapping[Path, str], root: Path) -> list[Path]:
    """List what is in the way: files, and what isn't a folder where one has to be."""
    folders = {folder for path in wanted for folder in path.parents if folder.is_relative_to(root)}
    return sorted({*(path for path in wanted if os.path.lexists(path)), *(f for f in folders if os.path.lexists(f) and not f.is_dir())})


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root) if path.is_relative_to(root) and path != root else path)


def _tell(root: Path, app: str, made: list[str], *, new: bool) -> None:
    """Say what was done, and what to do next."""

    def say(text: str) -> None:
        terminal.out.print(text, markup=False, highlight=False, soft_wrap=True)

    say(f"{root} is a project now, with the app {app}:" if new else f"{root} has the app {app} now:")
    for path in made:
        say(f"  {path}")
    produce = next(path for path in made if path.endswith("produce.py"))
    here = [] if root == Path.cwd() else [(f"cd {shlex.quote(os.path.relpath(root))}", "")]
    steps = [
        *here,
        (f"pytest {shlex.quote(f'tests/test_{app}.py')}", "its test: no Kafka, no Spark, no JVM"),
        *([("watertable jars fetch", "once: Kafka, and what Spark needs")] if new else []),
        ("watertable dev", "Kafka and Dagster, until Ctrl-C; then, beside it,"),
        (f"python {shlex.quote(produce)}", "some records"),
        (f"watertable run {app} --available-now", "read them"),
        (f"watertable query {app}.items", "and look"),
    ]
    say("Next:" if not new else "Next (README.md says more):")
    wide = max(len(command) for command, _ in steps)
    for command, what in steps:
        say(f"  {command.ljust(wide)}  # {what}" if what else f"  {command}")
