"""Read a project's tables by name, wherever a person is: a notebook, a batch asset, a script.

    wt.read("retail.inventory")                          # fresh and exact, at the app's newest position
    wt.read("retail.inventory", at="retail@1.481")       # at a position, a time, a version
    wt.read("retail.prices", as_of=noon)                 # a versioned table, as it was at an event time
    wt.changes("retail.inventory", "retail@1.470")       # what changed since: key, old, new
    wt.quarantine("retail")                              # records that the definition has refused; wt.dropped: what came too late

The project is the nearest `pyproject.toml` upward with `[tool.watertable]`; it says where the warehouse and the apps are. The Spark
session is the process's own, or is started from the same settings. Whatever time zone it is in, rows are what they are in UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from watertable.errors import TableNotFound, UnknownPosition
from watertable.project import Project, load_apps
from watertable.session import handed_over, spark_session
from watertable.settings import Settings
from watertable.store.reader import At, Reader

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from watertable.store.commits import Position


@overload
def read(table: str, at: At | None = None, *, as_of: datetime | None = None, settings: Settings | None = None) -> DataFrame: ...
@overload
def read(table: list[str], at: At | None = None, *, settings: Settings | None = None) -> dict[str, DataFrame]: ...
def read(
    table: str | list[str], at: At | None = None, *, as_of: datetime | None = None, settings: Settings | None = None
) -> DataFrame | dict[str, DataFrame]:
    """Read a table, "app.table", or several tables of one app at one position: everything committed is in them, folded or not.

    `at` is a position ("retail@1.481"), offsets ({"sales": {0: 1200, 1: 1187}}, beyond which nothing had been read), an aware datetime
    (as the app stood then, whatever it was rewound to since), `wt.event_time(...)`, or a version of the Delta table; a place before the
    app's first commit has no rows. Any other Delta reader sees each table whole too, but at its own folded position, at most the fold lag
    behind.
    `as_of` is an event time, for one versioned table: its rows as they were then, as far as is known at the position.

    Raises `TableNotFound` for a name that the project doesn't have, `UnknownPosition` for a place no table can be read at any more.
    """
    if isinstance(table, str):
        reader, name = _reader(table, settings)
        return handed_over(reader.read(name, at) if as_of is None else reader.read_as_of(name, as_of, at))
    if not isinstance(table, list | tuple):
        raise TableNotFound(f"there is no table {table!r}; write app.table, or a list of such names")
    if as_of is not None:
        raise UnknownPosition("as_of= is for one table: each has a history of its own, or none")
    found = [_reader(each, settings) for each in table]
    apps = {reader.changelog.app for reader, _ in found}
    if len(apps) != 1:
        raise TableNotFound(f"tables of one app are read at one position; these are of {', '.join(sorted(apps)) or 'none'}")
    frames = found[0][0].read_all([name for _, name in found], at)
    return {each: handed_over(frames[name]) for each, (_, name) in zip(table, found, strict=True)}


def changes(table: str, start: At, end: At | None = None, *, settings: Settings | None = None) -> DataFrame:
    """Give what changed in a table, "app.table", between two positions, the newest by default: `key`, `old`, `new`.

    One row for each key whose row differs; `old` or `new` is null where there is none. Raises what `read` raises.
    """
    reader, name = _reader(table, settings)
    return handed_over(reader.changes(name, start, end))


def position(app: str, *, settings: Settings | None = None) -> Position:
    """Give an app's newest position: to be kept, and handed to `read(at=...)` or `changes`."""
    return _reader_of(app, settings).position()


def quarantine(app: str, at: At | None = None, *, settings: Settings | None = None) -> DataFrame:
    """Give the records that an app's definition has refused, with their bytes and headers, place, operator and reason.

    `position` is that of the commit that refused it; `at` is as for `read`. A rewind to before it, under a definition that takes it,
    leaves it behind. Upkeep takes none of them. Raises `UnknownPosition` for a place that can't be had any more.
    """
    return handed_over(_reader_of(app, settings).quarantine(at))


def dropped(app: str, at: At | None = None, *, settings: Settings | None = None) -> DataFrame:
    """Give what an app's operators have left out: late records one by one, for each window that they missed, other reasons as counts.

    It goes back as far as the changelog does, by `horizon_days`; `at` is as for `read`. Raises `UnknownPosition` for a place that can't be
    had any more.
    """
    return handed_over(_reader_of(app, settings).dropped(at))


def _reader_of(app: str, settings: Settings | None) -> Reader:
    return _opened(load_apps(settings or Settings.load()), app)


def _opened(project: Project, app: str) -> Reader:
    topology = project.app(app).topology
    return Reader(_session(project.settings), project.settings.warehouse_uri, topology.app, topology.tables)


def _reader(table: str, settings: Settings | None) -> tuple[Reader, str]:
    app, _, name = table.rpartition(".") if isinstance(table, str) else ("", "", "")
    project = load_apps(settings or Settings.load())
    if app not in project.apps:
        names = sorted(f"{a.name}.{t.name}" for a in project.apps.values() for t in a.topology.tables)
        broken = "".join(f"\nbroken: {b}" for b in project.broken.values())
        raise TableNotFound(f"there is no {table!r}; write app.table, one of: {', '.join(names) or 'none'}{broken}")
    return _opened(project, app), name


def _session(settings: Settings) -> SparkSession:
    """Start Spark where none runs yet; what its JVM prints goes to a file, not between a notebook's cells."""
    return spark_session(settings, app="watertable read", log=settings.log_file("read"))
