"""Find a project's apps by path: adding an app is adding a folder, and one that is broken stops no other.

Each sub-folder of an assets folder is a unit. Its Python files are loaded under names that follow their path (`assets/retail/app.py` is
`assets.retail.app`), so they import each other absolutely and nothing goes on `sys.path`. What is found is a value, `Project`: the apps,
and for each folder that can't be used the file, the line and the reason. No Dagster here: the CLI and a running stream load apps too,
so a file that imports Dagster and makes no app is left alone until `Batch.load` asks for it.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import logging
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Final, TypeVar

from watertable.dsl.app import App
from watertable.errors import DefinitionError, SettingsError
from watertable.plan.plan import Topology
from watertable.settings import Settings

T = TypeVar("T")
_log: Final = logging.getLogger(__name__)
_OURS: Final = "__watertable_assets__"
"""Marks the packages that stand for assets folders, so that a later load may replace them and nothing else."""


@dataclass(frozen=True, slots=True)
class LoadedApp:
    """Hold an app that can run: its name with the environment's prefix, its frozen topology, and the folder it is in."""

    name: str
    topology: Topology
    folder: Path


@dataclass(frozen=True, slots=True)
class Broken:
    """Say why a folder can't be used, and where: `location` is file:line."""

    folder: Path
    location: str
    reason: str

    @classmethod
    def of(cls, folder: Path, error: BaseException) -> Broken:
        """Find the user's line: where the syntax is wrong, or the last frame inside the folder."""
        if isinstance(error, SyntaxError) and error.filename:
            return cls(folder, f"{_shown(error.filename)}:{error.lineno}", f"{type(error).__name__}: {error.msg}")
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(folder)]
        location = f"{_shown(frames[-1].filename)}:{frames[-1].lineno}" if frames else _shown(folder)
        try:
            said = str(error)
        except Exception:  # it is the user's, too
            said = "an error that can't be shown"
        return cls(folder, location, said if isinstance(error, DefinitionError) else f"{type(error).__name__}: {said}")

    def __str__(self) -> str:
        return self.reason if self.reason.startswith(self.location) else f"{self.location}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Batch:
    """Name a folder's modules of plain Dagster assets, not yet imported."""

    folder: Path
    modules: tuple[str, ...]

    def load(self) -> tuple[ModuleType, ...] | Broken:
        """Import them; give `Broken` when one can't be."""
        try:
            return tuple(_imported(name) for name in self.modules)
        except (Exception, SystemExit) as error:
            return Broken.of(self.folder, error)


@dataclass(frozen=True, slots=True)
class Project:
    """Hold what the assets folders contain: `apps` by name, `broken`, `batch` and the loaded `modules` by the folder's name."""

    settings: Settings
    apps: dict[str, LoadedApp] = field(default_factory=dict)
    broken: dict[str, Broken] = field(default_factory=dict)
    batch: dict[str, Batch] = field(default_factory=dict)
    modules: dict[str, tuple[ModuleType, ...]] = field(default_factory=dict)

    def app(self, name: str) -> LoadedApp:
        """Give the app of that name; raise `DefinitionError` that says which there are, or why its folder is broken."""
        if name in self.apps:
            return self.apps[name]
        raise DefinitionError(f"no app {name!r}; there are: {', '.join(sorted(self.apps)) or 'none'}{self.told_broken}")

    @property
    def told_broken(self) -> str:
        """Say what is broken, a line each, below what isn't found: it may be in there."""
        return "".join(f"\nbroken: {b}" for b in self.broken.values())


def load_apps(settings: Settings) -> Project:
    """Load every app of the project's assets folders, and note what is broken.

    Each call reads the files anew. An app's name that two folders use, or an output topic that two apps write, breaks every folder that
    claims it: no silent choice decides which definition runs. Raises `SettingsError` for an assets folder that isn't there or whose name
    is that of an importable module.
    """
    found: list[LoadedApp] = []
    project = Project(settings)
    packages: set[str] = set()
    for root in settings.assets:
        package = _package(Path(settings.project, root), packages)
        for file in _python_files(Path(settings.project, root)):
            _tell_misplaced(project, file, f"{file.stem}_py", f"an app is in a folder of its own: move it to {root}/{file.stem}/app.py")
        for file in _misnamed(Path(settings.project, root)):
            path = file.relative_to(Path(settings.project, root)).with_suffix("")
            wrong = ", ".join(repr(part) for part in path.parts if not part.isidentifier())
            why = f"nothing can be imported from {wrong}: rename it, letters, digits and _ make a name"
            _tell_misplaced(project, file, re.sub(r"\W", "_", f"{path}_py"), why)
        for folder in sorted(p for p in Path(settings.project, root).iterdir() if p.is_dir() and p.name.isidentifier()):
            if folder.name in project.batch or folder.name in project.broken:
                raise SettingsError(f"two assets folders hold a folder {folder.name!r}: rename {folder}")
            files = [_File.read(file, f"{package}.{folder.name}.{file.stem}") for file in _python_files(folder)]
            try:
                modules = [_imported(file.module) for file in files if not file.batch]
                found += [LoadedApp(t.app, t, folder) for t in _topologies(modules, settings)]
            except (Exception, SystemExit) as error:
                project.broken[folder.name] = Broken.of(folder, error)
            else:
                project.modules[folder.name] = tuple(modules)
                project.batch[folder.name] = Batch(folder, tuple(file.module for file in files if file.batch))
                for file in _files_below(folder):
                    module = ".".join((package, *file.relative_to(folder.parent).with_suffix("").parts))
                    if module not in sys.modules:  # else a file of the folder has what it makes
                        why = f"an app is in a folder of its own: move it to {root}/{file.parent.name}/{file.name}"
                        _tell_misplaced(project, file, "_".join((*module.split(".")[1:], "py")), why)
    _refuse_duplicates(project, found)
    project.apps.update((app.name, app) for app in found if app.folder.name not in project.broken)
    for name in sorted(settings.days):
        if settings.in_environment(name) not in project.apps and not project.broken:  # it may be an app of a folder that doesn't load
            there = ", ".join(sorted(map(settings.own_name, project.apps))) or "none"
            _log.warning("[tool.watertable] days: no app is called %r; there are: %s. Tables get no daily partitions by it", name, there)
    return project


@dataclass(frozen=True, slots=True)
class _File:
    module: str
    batch: bool

    @classmethod
    def read(cls, file: Path, module: str) -> _File:
        """Tell a file of batch assets by its imports, without running it."""
        tree = _parsed(file)
        return cls(module, batch="dagster" in set(_imports(tree.body)) and _makes_app(tree) is None)


def _imported(module: str) -> ModuleType:
    """Import a file; what it prints while it loads is no part of what a command answers."""
    with redirect_stdout(sys.stderr):
        return importlib.import_module(module)


def _python_files(folder: Path) -> list[Path]:
    """List the files to load: those beginning with _ are there to be imported, tests are there to be run."""
    return [f for f in sorted(folder.glob("*.py")) if f.is_file() and f.stem.isidentifier() and not f.stem.startswith(("_", "test_"))]


def _files_below(folder: Path) -> Iterator[Path]:
    """List what would be loaded of a folder's sub-folders, which are there to be imported, or tests."""
    for inner in (p for p in _inside(folder) if p.is_dir() and p.name.isidentifier() and not p.name.startswith(("_", "test"))):
        yield from _python_files(inner)
        yield from _files_below(inner)


def _misnamed(folder: Path, *, within: bool = False) -> Iterator[Path]:
    """List the files that would be loaded, or imported, if their name, or that of a folder on the way, could be a module's.

    Where a link leads is looked at there, if at all: it may lead around in circles.
    """
    for path in _inside(folder):
        if path.name.startswith((".", "_", "test")) or path.is_symlink():
            continue
        if path.is_dir():
            yield from _misnamed(path, within=within or not path.name.isidentifier())
        elif path.suffix == ".py" and (within or not path.stem.isidentifier()):
            yield path


def _inside(folder: Path) -> list[Path]:
    """List what is in a folder; nothing where that isn't ours to look into, as a volume's lost+found: then nothing is imported from it."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _tell_misplaced(project: Project, file: Path, name: str, why: str) -> None:
    """Note a file that makes an app, where none is looked for, as broken."""
    if (line := _makes_app(_parsed(file))) is not None:
        project.broken[name] = Broken(file, f"{_shown(file)}:{line}", why)


def _imports(body: Iterable[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case ast.If() | ast.Try() | ast.With():
                yield from _imports(s for s in ast.iter_child_nodes(statement) if isinstance(s, ast.stmt))


def _parsed(file: Path) -> ast.Module:
    """Parse a file; one that can't be is as good as empty here, and fails when it is imported."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # not ours to read, zero bytes, or nested too deeply
        return ast.Module(body=[], type_ignores=[])


def _makes_app(tree: ast.Module) -> int | None:
    """Give the first line at which a file makes an app, if it does."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return next((called.lineno for called in calls if getattr(called, "attr", getattr(called, "id", None)) == "App"), None)


def _package(root: Path, taken: set[str]) -> str:
    """Make the assets folder importable as a package of its own name, forgetting what an earlier load put there."""
    if not root.is_dir():
        raise SettingsError(
            f"[tool.watertable] assets: there is no folder {root}. Run this in a project's folder, name one (--project), "
            "or make one: watertable init FOLDER"
        )
    name = root.name
    known = sys.modules.get(name)
    if name in taken or not name.isidentifier() or (known is not None and not hasattr(known, _OURS)) or name in sys.stdlib_module_names:
        raise SettingsError(f"[tool.watertable] assets: {root} can't be called {name!r}, that is another module's name; rename the folder")
    for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        del sys.modules[module]
    importlib.invalidate_caches()
    package = ModuleType(name, f"Holds what is in {root}.")
    package.__path__ = [str(root)]
    setattr(package, _OURS, True)
    sys.modules[name] = package
    taken.add(name)
    return name


def _topologies(modules: Iterable[ModuleType], settings: Settings) -> list[Topology]:
    """Freeze the apps of a folder, each once however many modules name it, be it in a list, a tuple or by a key."""
    apps = {id(app): app for module in modules for value in vars(module).values() for app in named_by(value, App)}
    return [_in_environment(app.topology(), settings) for app in apps.values()]


def named_by(value: object, kind: type[T]) -> list[T]:
    """Give what of a kind a module's name stands for: itself, or what is in a list, a tuple or a dictionary.

    >>> named_by({"a": 1, "b": "2"}, int), named_by(3, int), named_by("3", int)
    ([1], [3], [])
    """
    parts: Iterable[object] = (value,)
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list) or (isinstance(value, tuple) and type(value).__iter__ is tuple.__iter__):
        parts = value  # Dagster's records are tuples, too, which raise where somebody goes through them
    return [part for part in parts if isinstance(part, kind)]


def _in_environment(topology: Topology, settings: Settings) -> Topology:
    """Prefix what the app makes: its own name and the topics it writes, never those it reads."""
    sinks = tuple(dataclasses.replace(sink, topic=settings.in_environment(sink.topic)) for sink in topology.sinks)
    return dataclasses.replace(topology, app=settings.in_environment(topology.app), sinks=sinks)


def _refuse_duplicates(project: Project, found: list[LoadedApp]) -> None:
    claims: dict[tuple[str, str], list[tuple[LoadedApp, str]]] = {}
    for app in found:
        claims.setdefault(("app", app.name), []).append((app, app.topology.location))
        for sink in app.topology.sinks:
            claims.setdefault(("output topic", sink.topic), []).append((app, sink.location))
    for (what, name), claimed in claims.items():
        if len(claimed) > 1:
            places = " and ".join(location for _, location in claimed)
            for app, location in claimed:
                project.broken[app.folder.name] = Broken(app.folder, location, f"{what} {name!r} is defined twice, at {places}; rename one")
                project.batch.pop(app.folder.name, None)


def _shown(file: str | Path) -> str:
    """Write a path as the DSL writes locations: from the working directory, where it is below it."""
    return str(Path(file).relative_to(Path.cwd()) if Path(file).is_relative_to(Path.cwd()) else file)
