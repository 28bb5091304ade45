"""Answer what a person or a program asks of tables and apps: the same rows, and the same JSON, on the command line and over HTTP.

A question is pinned at its position when it is asked, which takes hardly any work, and computed when it is answered. What is read is read
as `wt.read` reads: everything committed is in it, folded or not, all of it at one position, which is named. An answer has at most so many
rows, and tells whether there are more.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from watertable.errors import KafkaError, QueryRefused, StoreError, TableNotFound, UnknownPosition
from watertable.plan.plan import WINDOW_KEY, TableDef, Topology
from watertable.plan.windows import typed_time
from watertable.project import Project
from watertable.records import Row
from watertable.schema import quote
from watertable.settings import Settings
from watertable.tools import keytext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from watertable.store.queries import Parameters
    from watertable.store.reader import AppStatus, At, Reader

Lag = Mapping[str, int | None] | None
Standing = Mapping[str, tuple["AppStatus | StoreError | None", Lag]]
"""By app, where it stands and how far it is behind in each topic; None for one that never ran, and where Kafka doesn't answer.

A topic that was deleted, or created anew, has nothing that the app could be behind: None stands for how far it is there.

Of one whose store can't be read, e.g. since other code made it, the error stands there.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold rows to show: at most so many, whether there are more, and what they are of."""

    title: str
    position: str
    columns: tuple[str, ...]
    numeric: frozenset[str]
    rows: tuple[tuple[object, ...], ...]
    more: bool

    def objects(self) -> list[dict[str, object]]:
        """Give the rows as objects, for JSON; raise `QueryRefused` where two columns of one name would be one."""
        if twice := sorted(name for name, times in Counter(self.columns).items() if times > 1):
            raise QueryRefused(
                f"JSON has room for one {', one '.join(twice)}: name them apart with AS, or take another form, which keeps both"
            )
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Question:
    """Hold what was asked for, pinned at a position; nothing of it is computed yet."""

    title: str
    position: str
    frame: Callable[[], DataFrame]
    since: str = ""
    """Of changes, the position that they begin at."""
    of: str = ""
    """The changelog that it is a position of: one that was begun anew has other rows at the same positions."""

    def arrow(self, limit: int, offset: int = 0) -> tuple[Any, bool]:
        """Compute at most so many rows, as an Arrow table, from one on; and tell whether there are more."""
        frame = self.frame()
        # By Arrow: what `collect` gives is moved into this machine's time zone, and loses a column of two of one name.
        try:
            found = (frame.offset(offset) if offset else frame).limit(limit + 1).toArrow()
        except ValueError as error:  # array() and map(): empty, and so of no type
            raise QueryRefused(
                f"Arrow has no type for a column of the answer ({error}): CAST it, such as array() AS ARRAY<STRING>"
            ) from None
        return found.slice(0, limit), found.num_rows > limit

    def answer(self, limit: int, offset: int = 0) -> Answer:
        """Compute at most so many rows, from one on."""
        from pyarrow import types

        found, more = self.arrow(limit, offset)
        try:
            rows = tuple(zip(*(column.to_pylist(maps_as_pydicts="strict") for column in found.columns), strict=True))
        except (ValueError, OverflowError) as error:  # a date or a time outside the years 1 to 9999
            raise QueryRefused(f"there is no Python value for one in the answer ({error}): CAST it AS STRING, or ask for Arrow") from None
        numbers = (types.is_integer, types.is_floating, types.is_decimal)
        numeric = frozenset(field.name for field in found.schema if any(is_number(field.type) for is_number in numbers))
        return Answer(self.title, self.position, tuple(found.column_names), numeric, rows, more)


# -- what is asked for ---------------------------------------------------------------------------------------------------------------------


def find_table(project: Project, name: str) -> tuple[Topology, TableDef]:
    """Find a table by its name, or by app.table where two apps have one of that name; raise `TableNotFound` saying what there is."""
    app, _, table = name.rpartition(".")
    found = [(a.topology, t) for a in project.apps.values() for t in a.topology.tables if t.name == table and app in ("", a.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise TableNotFound(f"several apps have a table {table!r}: name one of {', '.join(f'{t.app}.{table}' for t, _ in found)}")
    have = ", ".join(f"{a.name}.{t.name}" for a in project.apps.values() for t in a.topology.tables)
    raise TableNotFound(f"no table {name!r}; there are: {have or 'none'}{project.told_broken}")


def parse_at(text: str) -> At:
    """Read where to look: a position (retail@1.17), a version of the table (12), a commit time, or event:TIME.

    Times are ISO, and UTC where they name no offset, as all are that a person types. Raises `UnknownPosition` for anything else.
    """
    from watertable.store.reader import event_time

    if "@" in text:
        return text
    try:
        if text.isascii() and text.isdigit():
            return int(text)
        when = typed_time(text.removeprefix("event:"))
    except ValueError:
        raise UnknownPosition(
            f"{text!r} names no position: write one (retail@1.17), a version (12), a time (2011-06-01T00:00Z) or event:TIME"
        ) from None
    return event_time(when) if text.startswith("event:") else when


def parse_time(text: str) -> datetime:
    """Read `--as-of`, an event time (ISO, UTC where it has no offset); raise `UnknownPosition` for anything else."""
    try:
        return typed_time(text)
    except ValueError:
        raise UnknownPosition(f"--as-of {text!r}: write an event time, such as 2011-06-01T00:00Z") from None


def read_key(table: TableDef, key: str | None, window: str | None) -> Row | None:
    """Read which rows a person asks for; None for all. Raises `KeyMismatch`."""
    return None if key is None and window is None else keytext.read(table, () if key is None else keytext.split(key), window)


def condition(table: TableDef, text: str) -> str:
    """Check a condition on a table's rows, as `bisect` does, and write it as Spark's on the struct `row` of its columns.

    Raises `ExpressionError` or `UnknownColumn` for one that can't be.
    """
    from watertable.compiler.algebra import render
    from watertable.tools.bisect import condition_of

    key = ", ".join(f"'{name}', row.{quote(name)}" for name in table.key.names)
    places = {"value": "row", "key": f"named_struct({key})"}
    if table.windows is not None:
        places["window"] = "named_struct('start', row.{}, 'end', row.{})".format(*map(quote, WINDOW_KEY.names))
    return render(condition_of(table, text).expr.safe_sql, places)


# -- questions -----------------------------------------------------------------------------------------------------------------------------


def rows(
    reader: Reader, table: TableDef, *, wanted: Row | None = None, where: str | None = None, at: At | None = None,
    as_of: datetime | None = None,
) -> Question:  # fmt: skip
    """Ask for rows of a table, in order of their keys: all, those that `keytext` has read, or those that meet a `condition`.

    `as_of` is of versioned tables: their rows at an event time.
    """
    view = reader.view([table.name], at)

    def frame() -> DataFrame:
        found = view.rows(table) if as_of is None else reader.read_as_of(table.name, as_of, view.position)
        if wanted is not None:
            found = found.where(keytext.condition(table, wanted))
        if where is not None:
            found = found.selectExpr("struct(*) AS row").where(where).select("row.*")
        return found.orderBy(*(quote(n) for n in table.key.names))

    return Question(
        table.name if as_of is None else f"{table.name} as of {plain(as_of)}", str(view.position), frame, of=view.snapshot.table
    )


def query(reader: Reader, sql: str, at: At | None = None, parameters: Parameters = ()) -> Question:
    """Ask a query over the app's tables; raise `SparkError` for one that Spark can't parse, or that reads anything else."""
    from watertable.store.queries import Query

    asked = Query(reader, sql, at)
    return Question(sql, str(asked.position), lambda: asked.frame(parameters))


def changes(reader: Reader, table: TableDef, start: At, end: At | None = None, *, wanted: Row | None = None) -> Question:
    """Ask what changed in a table between two positions, by key: the row before and after."""
    views = [reader.view([table.name], at) for at in (start, end)]
    since, until = (view.position for view in views)

    def frame() -> DataFrame:
        found = reader.changes(table.name, since, until)
        if wanted is not None:
            found = found.selectExpr("key.*", "struct(key, old, new) AS _wt").where(keytext.condition(table, wanted)).selectExpr("_wt.*")
        return found.orderBy("key")

    return Question(f"{table.name} since {since}", str(until), frame, str(since), views[1].snapshot.table)


def quarantined(reader: Reader, at: At | None = None) -> Question:
    """Ask for the records that an app's definition has refused, the newest first."""
    position = reader.view([], at).position
    newest = ("seq", "timestamp", "topic", "partition", "offset")
    return Question(f"{position.app}, quarantined", str(position), lambda: reader.quarantine(position).orderBy(*newest, ascending=False))


def dropped(reader: Reader, at: At | None = None, *, each: bool = False) -> Question:
    """Ask what an app's operators have left out: how much by operator and reason, or `each` that came too late, the newest first."""
    position = reader.view([], at).position

    def late() -> DataFrame:
        late = reader.dropped(position).where("offset IS NOT NULL")
        late = late.orderBy("seq", "topic", "partition", "offset", "window_start", ascending=False)
        return late.selectExpr("concat(topic, '/', partition, '@', offset) AS record", "node", "window_start", "window_end", "position")

    def by_reason() -> DataFrame:
        rows = reader.dropped(position)
        counts = "node, reason, sum(count) AS count, min_by(position, seq) AS first, max_by(position, seq) AS last"
        return rows.sparkSession.sql(f"SELECT {counts} FROM {{rows}} GROUP BY node, reason ORDER BY node, reason", rows=rows)

    return Question(f"{position.app}, {'late' if each else 'dropped'}", str(position), late if each else by_reason)


def standing(project: Project, readers: Callable[[Topology], Reader]) -> Standing:
    """Tell where each app of a project stands."""
    found: dict[str, tuple[AppStatus | StoreError | None, Lag]] = {}
    for name, loaded in sorted(project.apps.items()):
        try:
            now = readers(loaded.topology).status()
        except TableNotFound:
            found[name] = (None, None)
        except StoreError as error:
            found[name] = (error, None)
        else:
            found[name] = (now, lag_of(project.settings, loaded.topology, now))
    return found


def reader_of(spark: SparkSession, settings: Settings, topology: Topology) -> Reader:
    """Give the reader of an app's tables."""
    from watertable.store.reader import Reader

    return Reader(spark, settings.warehouse_uri, topology.app, topology.tables)


def lag_of(settings: Settings, topology: Topology, status: AppStatus) -> Lag:
    """Ask Kafka how many offsets an app is behind in each topic; None when it doesn't answer, and for a topic that isn't what it read."""
    from watertable.kafka.admin import Admin
    from watertable.kafka.config import Cluster

    if status.last is None:
        return {}
    last, names = status.last, {topic.name for topic in topology.topics}  # commits keep the offsets of those that it reads no more
    read = sorted(p for p in last.next if p[0] in names)
    try:
        admin = Admin(Cluster.of(settings), timeout=3)
        same = {name for name, state in admin.describe(names).items() if state.id == last.topic_ids.get(name, state.id)}
        ends = admin.latest([p for p in read if p[0] in same])
    except KafkaError:
        return None
    lag: dict[str, int | None] = {topic: 0 if topic in same else None for topic, _ in read}
    for partition, end in ends.items():
        lag[partition[0]] = (lag[partition[0]] or 0) + max(0, end - last.next[partition])
    return lag


# -- JSON ----------------------------------------------------------------------------------------------------------------------------------


def answer_json(answer: Answer, **more: object) -> str:
    """Write rows as one JSON object: position, the rows as objects, whether there are more; then what else there is to say."""
    return plain_json({"position": answer.position, "rows": answer.objects(), "more": answer.more, **more})


def status_json(project: Project, found: Standing) -> str:
    """Write where a project's apps and their tables stand; of what can't be read, or doesn't load, `error` says why.

    What doesn't load goes by its path, which no app is called.
    """
    broken = {os.path.relpath(b.folder, project.settings.project): {"error": str(b)} for b in project.broken.values()}
    return plain_json({name: _standing(status, lag) for name, (status, lag) in found.items()} | broken)


def _standing(status: AppStatus | StoreError | None, lag: Lag) -> dict[str, object] | None:
    if status is None:
        return None
    if isinstance(status, StoreError):
        return {"error": f"{type(status).__name__}: {status}"}
    return {
        "position": str(status.position), "lag": lag, "committed": status.last.commit_time if status.last else None,
        "quarantined": status.quarantined, "shadow": str(status.shadow) if status.shadow else None,
        "tables": {
            table: {
                "version": t.version, "folded": str(t.folded), "rows": t.folded_rows, "commits_behind": t.commits_behind,
                "behind_s": t.behind.total_seconds(),
            } for table, t in status.tables.items()
        },
    }  # fmt: skip


def plain_json(value: object) -> str:
    """Write anything as JSON: decimals and times as text, bytes in hexadecimal digits, NaN and the infinities by their names."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def plain(value: object) -> object:
    """Give a value as JSON has it; times in UTC."""
    match value:
        case datetime(tzinfo=None):
            return value.isoformat()  # a TIMESTAMP_NTZ, which is of no zone
        case datetime():
            return f"{value.astimezone(UTC).isoformat().removesuffix('+00:00')}Z"
        case date():
            return value.isoformat()
        case bytes() | bytearray():
            return bytes(value).hex()
        case float() if not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case dict():
            return {str(plain(name)): plain(part) for name, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case Decimal():
            return f"{value:f}"
        case bool() | int() | float() | str() | None:
            return value
        case _:
            return str(value)
