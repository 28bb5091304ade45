"""Say before a merge what it will do to the tables: the apps as they are here, beside those of a commit.

Two versions of one package can't be in one process: the commit's files are written into a folder of their own (`git archive`: no branch
moves, nothing is checked out), another process loads them, with this release of watertable, and gives the outlines of its apps. What new
code means for a table is `watertable.plan.deployment`'s to say, as it is when the app is started; which checks and assets stand behind
a table is read from the same definitions that Dagster loads. No Spark, no Kafka: it runs where pull requests are checked.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from watertable.errors import SettingsError
from watertable.plan.deployment import Change, Deployment, Kind, Outline, classify, column_changes
from watertable.plan.plan import Topology
from watertable.project import load_apps
from watertable.settings import Settings
from watertable_platform.orchestration.behind import Behind, all_behind

_OWN: Final = ("watertable", "watertable_platform", "watertable_quality")
_MARKS: Final = {kind: kind.value if kind in (Kind.SAME, Kind.ADDITIVE) else f"**{kind.value}**" for kind in Kind}


@dataclass(frozen=True, slots=True)
class Line:
    """Say of one table or output topic what becomes of it; `columns` tell those that come, go, or change their type."""

    name: str
    kind: Kind
    reason: str
    is_topic: bool
    columns: tuple[str, ...]
    behind: Behind


@dataclass(frozen=True, slots=True)
class AppReview:
    """Say of one app what becomes of it: `lines` of what changes, the names of what stays as it is, and the rewind that it needs."""

    app: str
    kind: Kind
    old: str | None
    new: str | None
    lines: tuple[Line, ...]
    unchanged: tuple[str, ...]
    rewind: str | None
    alone: str = ""
    """What makes whole beside the tables that go on, where that can be had instead of it."""


@dataclass(frozen=True, slots=True)
class Review:
    """Hold what a merge will do, app by app, and what doesn't load here."""

    ref: str
    apps: tuple[AppReview, ...]
    broken: tuple[str, ...]

    def to_json(self) -> str:
        """Write it for programs."""
        return json.dumps(asdict(self), ensure_ascii=False)

    def markdown(self) -> str:
        """Write it for a pull request."""
        changed = [app for app in self.apps if app.lines]
        text = [f"## watertable: {_count(len(changed), 'app')} of {len(self.apps)} changed since `{self.ref}`", ""]
        text += [f"**A folder doesn't load**, and is left out here: {broken}\n" for broken in self.broken]
        for app in changed:
            text += _app_text(app)
        same = [f"`{app.app}`" for app in self.apps if not app.lines]
        if same:
            text.append(f"As they are: {', '.join(same)}.")
        return "\n".join(text).rstrip()


def review(settings: Settings, ref: str) -> Review:
    """Compare the project as it is here with what it is at a git commit, branch or tag.

    Raises `SettingsError` when the project isn't in a git repository, when there is no such commit, or when it can't be loaded.
    """
    project = load_apps(settings)
    before = outlines_at(settings, ref)
    behind, broken = all_behind(project)
    apps = [
        _app_review(before.get(name), project.apps[name].topology if name in project.apps else None, name, behind)
        for name in sorted({*before, *project.apps})
        if name in project.apps or not project.broken
    ]
    return Review(ref, tuple(apps), broken)


def outlines(settings: Settings) -> str:
    """Write the outline of every app of the project as JSON: what the other process gives."""
    project = load_apps(settings)
    return json.dumps(
        {
            "apps": {name: Outline.of(app.topology).to_json() for name, app in project.apps.items()},
            "broken": [str(broken) for broken in project.broken.values()],
        }
    )


def outlines_at(settings: Settings, ref: str) -> dict[str, Outline]:
    """Load a commit's apps in a process of their own, and give their outlines by name; raise `SettingsError` when that can't be.

    What they import from elsewhere in the repository is that commit's, too.
    """
    commit = _git(settings.project, "rev-parse", "--verify", f"{ref}^{{commit}}").decode().strip()
    top, project = Path(os.fsdecode(_git(settings.project, "rev-parse", "--show-toplevel").rstrip(b"\n"))), settings.project.resolve()
    with TemporaryDirectory(prefix="watertable-") as temporary:
        folder = Path(temporary, project.relative_to(top))
        if not _write(project, commit, folder):
            return {}  # there was no project yet
        places = [(place, Path(temporary, place.relative_to(top))) for place in _imported_from(top)]
        paths = [str(to) for place, to in places if place.is_relative_to(project) or _write(place, commit, to)]
        paths += filter(None, [os.environ.get("PYTHONPATH")])
        try:
            then = Settings.load(folder)  # its folders may have had other names
        except SettingsError as error:
            raise SettingsError(f"the apps at {ref} can't be loaded: {error}") from None
        roots = [root for root in (then.project / name for name in then.assets) if root.is_dir()]
        if not roots:
            return {}  # there was no app yet
        for empty in (place for root in roots for place in (root, *root.iterdir()) if place.is_dir() and not any(place.iterdir())):
            raise SettingsError(f"the apps at {ref} can't be loaded: {empty.relative_to(folder)} is a submodule, whose files aren't in it")
        done = subprocess.run(
            [sys.executable, "-m", "watertable_platform", "--project", str(folder), "outline"], cwd=folder, capture_output=True, text=True,
            env={**os.environ, "WATERTABLE_PROJECT": str(folder), "PYTHONPATH": os.pathsep.join(paths)}, check=False,
        )  # fmt: skip
    try:
        told = json.loads(done.stdout)
    except ValueError:
        raise SettingsError(f"the apps at {ref} can't be loaded: {(done.stderr or done.stdout).strip()[-2000:]}") from None
    if told["broken"]:
        raise SettingsError(f"at {ref} not all apps load, so there is nothing whole to compare with: {'; '.join(told['broken'])}")
    return {name: Outline.from_json(text) for name, text in told["apps"].items()}


def _imported_from(top: Path) -> Iterator[Path]:
    """Name the folders of a repository from which modules are imported here; but not where watertable is, which stays this release."""
    for place in dict.fromkeys(Path(entry).resolve() for entry in sys.path):
        if place.is_dir() and place.is_relative_to(top) and not any((place / name).is_dir() for name in _OWN):
            yield place


def _write(place: Path, commit: str, to: Path) -> bool:
    """Write what a commit has of a folder into another one; False where it hasn't that folder."""
    if not _git(place, "ls-tree", commit, "./"):
        return False
    with tarfile.open(fileobj=io.BytesIO(_git(place, "archive", "--format=tar", commit, ".")), mode="r:") as archive:
        archive.extractall(to, filter=_inside)  # noqa: S202 - it lets through what `data_filter` does
    return True


def _inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Leave out what leads out of the folder, such as a link to an absolute path: it is no part of the commit."""
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None


def _git(folder: Path, *arguments: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=True).stdout
    except FileNotFoundError:
        raise SettingsError("there is no git here, and `--from` names a commit") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise SettingsError(f"git {' '.join(arguments)} in {folder}: {said}; --from takes a commit, a branch or a tag") from None


def _app_review(old: Outline | None, new: Topology | None, name: str, behind: Mapping[tuple[str, ...], Behind]) -> AppReview:
    if new is None:
        assert old is not None
        gone = [Change(table, Kind.REMOVED, "its app is no more; its Delta table stays as it is") for table in old.tables]
        gone += [Change(topic, Kind.REMOVED, "published no more", is_topic=True) for topic in old.sinks]
        return AppReview(name, Kind.REMOVED, old.fingerprint, None, tuple(_line(c, old, None, Behind()) for c in gone), (), None)
    now = Outline.of(new)
    if old is None:
        fresh = [Change(t.name, Kind.ADDITIVE, "a new app's: filled from the beginning of its topics") for t in new.tables]
        fresh += [Change(s.topic, Kind.ADDITIVE, "a new output", is_topic=True) for s in new.sinks]
        lines = tuple(_line(c, None, now, behind.get((name, c.name), Behind())) for c in fresh)
        return AppReview(name, Kind.ADDITIVE, None, now.fingerprint, lines, (), None)
    found: Deployment = classify(old, new)
    changed = [c for c in found.changes if c.kind is not Kind.SAME or c.reason != "unchanged"]
    unchanged = tuple(c.name for c in found.changes if c not in changed)
    lines = tuple(_line(c, old, now, behind.get((c.name,) if c.is_topic else (name, c.name), Behind())) for c in changed)
    return AppReview(name, found.kind, old.fingerprint, now.fingerprint, lines, unchanged, found.rewind, found.alone)


def _line(change: Change, old: Outline | None, new: Outline | None, behind: Behind) -> Line:
    columns = () if change.is_topic else tuple(_columns(_ddl(old, change.name), _ddl(new, change.name)))
    return Line(change.name, change.kind, change.reason, change.is_topic, columns, behind)


def _ddl(outline: Outline | None, table: str) -> tuple[str, str]:
    """Give a table's columns: those of its key, and those of its value."""
    outlined = outline.tables.get(table) if outline is not None else None
    return ("", "") if outlined is None else (outlined.key, outlined.value)


def _columns(old: tuple[str, str], new: tuple[str, str]) -> Iterator[str]:
    """Name the columns that come, go, or change their type."""
    for name, was, now in column_changes(*zip(old, new, strict=True)):
        yield f"+ {name} {now}" if was is None else f"− {name}" if now is None else f"{name} {was} → {now}"


def _app_text(app: AppReview) -> Iterator[str]:
    yield from (f"### `{app.app}`: {_MARKS[app.kind].strip('*')}", "")
    codes = [f"`{code}`" if code else "none" for code in (app.old, app.new)]
    says = f"Code {codes[0]} → {codes[1]}. "
    match app:
        case AppReview(new=None):
            says += "The app is no more: stop its stream; what it kept stays until somebody deletes it."
        case AppReview(old=None):
            says += "A new app: it starts stopped, and reads its topics from the beginning."
        case AppReview(kind=Kind.BREAKING):
            says += f"Rows from before would be the old code's, so it needs `watertable rewind {app.app} {app.rewind} --apply`"
            says += f", or, for these tables alone, beside the others: `{app.alone}`." if app.alone else "."
        case AppReview(kind=Kind.UNFILLED):
            says += (
                "What can't begin in the middle is filled first, while the others stay live: "
                f"`watertable rewind {app.app} {app.rewind} --apply`."
            )
        case AppReview(rewind=str()):
            says += (
                "It goes on from its place. To fill what is new from the beginning too, while the others stay live: "
                f"`watertable rewind {app.app} {app.rewind} --apply`."
            )
        case _:
            says += "It goes on from its place with the next commit; no rewind is needed."
    yield from (says, "")
    if app.rewind is not None:
        yield from (f"How long that takes, by the app's own measured commits: `watertable rewind {app.app} {app.rewind}`.", "")
    yield from ("| | change | why | columns | checks | made from it |", "|---|---|---|---|---|---|")
    for line in app.lines:
        name = f"→ `{line.name}`" if line.is_topic else f"`{line.name}`"
        cells = [name, _MARKS[line.kind], _cell(line.reason), *(_listed(t) for t in (line.columns, line.behind.checks, line.behind.assets))]
        yield f"| {' | '.join(cells)} |"
    yield ""
    if app.unchanged:
        yield from (f"Unchanged: {', '.join(f'`{name}`' for name in app.unchanged)}.", "")


def _listed(names: tuple[str, ...]) -> str:
    return "<br>".join(f"`{_cell(name)}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
