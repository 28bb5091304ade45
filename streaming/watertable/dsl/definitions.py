"""Read what a definition says in words and names: DDL, formats, topic names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from watertable.errors import DefinitionError, ExpressionError, SchemaError
from watertable.plan import nodes, plan
from watertable.plan.aggregates import sortable
from watertable.plan.nodes import Format, Header
from watertable.plan.purity import of_records_alone
from watertable.plan.scopes import is_change
from watertable.plan.windows import SessionWindows, SlidingWindows, check_duration
from watertable.schema import Column, Schema, Type, check_identifier
from watertable.where import here as here

_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Put the place before what a `SchemaError` says."""
    try:
        yield
    except SchemaError as error:
        raise SchemaError(f"{where}: {error}") from None


def texts_of(given: str | Sequence[str], what: str, where: str) -> tuple[str, ...]:
    """Read one expression or several; raise `DefinitionError` for what is neither, and for none."""
    texts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
    if not texts or not all(isinstance(text, str) for text in texts):
        wanted = f"{what}='country' or {what}=('country', 'city')"
        raise DefinitionError(f"{where}: {what}= wants an expression, or several: {wanted}; got {given!r}")
    return texts


def check_text(given: object, what: str, where: str) -> None:
    """Raise `DefinitionError` for what is no text."""
    if not isinstance(given, str):
        raise DefinitionError(f"{where}: {what}= wants a text; got {given!r}")


def declared(ddl: str, where: str, part: str, instead: str = "write e.g. 'n BIGINT'") -> Schema:
    """Read a DDL column list; raise `SchemaError`, with the place and the part, for a bad one, and for one of no columns."""
    with placed(f"{where}: {part}"):
        columns = Schema.parse(ddl)
    if not columns:  # Delta has no rows, nor structs, of none
        raise SchemaError(f"{where}: {part} wants at least one column; {instead}")
    return columns


def declared_headers(headers: Mapping[str, str], value: Schema, where: str) -> tuple[Header, ...]:
    """Read which headers become which columns; raise `SchemaError` for one that is neither text nor bytes, or a name that is taken."""
    if not isinstance(headers, Mapping):
        raise SchemaError(f"{where}: headers= wants a column for each header: headers={{'trace-id': 'trace_id STRING'}}; got {headers!r}")
    read = []
    for name, ddl in headers.items():
        columns = declared(ddl, where, f"header {name!r}").columns
        if len(columns) != 1 or columns[0].type.kind not in ("string", "binary"):
            raise SchemaError(f"{where}: header {name!r} wants one column, of STRING or BINARY, to be cast later; got {ddl!r}")
        read.append(Header(name, columns[0]))
    with placed(f"{where}: headers"):
        _ = value + Schema(tuple(header.column for header in read))
    return tuple(read)


def chosen_format(name: str | None, schema: Schema, where: str, *, default: Format) -> Format:
    """Read the name of a format; raise `SchemaError` for one that there isn't, or that can't write these columns."""
    if name is None:
        return default
    if name not in tuple(Format):
        raise SchemaError(f"{where}: format {name!r}; choose {', '.join(Format)}")
    wanted = {Format.STRING: "string", Format.BYTES: "binary"}.get(Format(name))
    if wanted and [c.type.kind for c in schema] != [wanted]:
        raise SchemaError(f"{where}: format {name!r} wants one {wanted.upper()} column; got ({schema.sql()})")
    return Format(name)


def key_format_of(schema: Schema) -> Format:
    """Give the format of a key that names none: a single text or its bytes as they are, else JSON."""
    match [column.type.kind for column in schema]:
        case ["string"]:
            return Format.STRING
        case ["binary"]:
            return Format.BYTES
        case _:
            return Format.JSON


def check_topic_name(name: str, where: str) -> None:
    """Raise `SchemaError` for what is no name of a Kafka topic."""
    if not isinstance(name, str) or not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise SchemaError(f"{where}: {name!r} is no Kafka topic name: 1 to 249 of letters, digits, '.', '_' and '-'")


def check_same_key(left: Schema | Sequence[tuple[str, Type]], right: Schema, where: str, operator: str) -> None:
    """Refuse keys that can't be equal: of other types, or of another number of columns; one of expressions is told by these."""
    own = [(c.name, c.type) for c in left] if isinstance(left, Schema) else left
    if [kind for _, kind in own] != [c.type for c in right]:
        mine, theirs = (", ".join(f"{name} {kind.sql()}" for name, kind in key) for key in (own, [(c.name, c.type) for c in right]))
        raise DefinitionError(f"{where}: {operator} wants keys of the same types: ({mine}) here, ({theirs}) there; cast one of them")


def check_key(key: Schema, where: str, operator: str) -> None:
    """Refuse key columns by which rows can't be told apart exactly, or not at all."""
    for name, kind in ((c.name, c.type) for c in key):
        if kind.kind in ("map", "array", "struct", "void", "float", "double"):
            raise ExpressionError(f"{where}: {operator}: {name} is a {kind.sql()}, which makes no key; cast it, e.g. to STRING")


def check_read(schema: Schema, form: Format, where: str) -> None:
    """Raise `SchemaError` for what can't be read in a format: the names of a JSON object are text."""
    kinds = [(column.name, kind) for column in schema for kind in column.type.walk()] if form is Format.JSON else []
    for name, kind in kinds:
        if kind.map_key is not None and kind.map_key.kind != "string":
            raise SchemaError(
                f"{where}: {name} holds a {kind.sql()}, and keys of JSON are text: declare MAP<STRING, ...>, and cast its keys"
            )


def check_written(schema: Schema, form: Format, where: str) -> None:
    """Raise `SchemaError` for what can't be written in a format: of a map's key, JSON has its text, and Spark knows none of these."""
    kinds = [(column.name, kind) for column in schema for kind in column.type.walk()] if form is Format.JSON else []
    for name, kind in kinds:
        if kind.map_key is not None and kind.map_key.kind in ("binary", "array", "struct"):
            raise SchemaError(f"{where}: {name} holds a {kind.sql()}, and keys of JSON are text: cast them, or publish map_entries({name})")


def check_typed(columns: Iterable[Column], where: str) -> None:
    """Raise `ExpressionError` for columns that are NULL without a type, or have one in them: nothing can keep it."""
    if untyped := [column.name for column in columns if any(kind.kind == "void" for kind in column.type.walk())]:
        raise ExpressionError(f"{where}: {', '.join(untyped)}: NULL has no type, so nothing can keep it; write CAST(NULL AS STRING), say")


def identifier(name: str, what: str, where: str) -> str:
    """Check a name that the user gives; raise `SchemaError`, with the place, for one that is no identifier."""
    with placed(where):
        return check_identifier(name, what)


def check_app_name(name: str) -> str:
    """Return an app's name; raise `SchemaError` for one that is no identifier, or is `topics`."""
    if check_identifier(name, "app") == "topics":
        raise SchemaError("an app can't be called 'topics': the warehouse keeps the archives of topics there")
    return name


def check_columns(schema: Schema, other: Schema, where: str) -> None:
    """Raise `DefinitionError` when a name is both a key and a value column: readers see them side by side."""
    theirs = {name.lower() for name in other.names}
    both = sorted(name for name in schema.names if name.lower() in theirs)
    if both:
        raise DefinitionError(
            f"{where}: {', '.join(both)} would be both a key and a value column: call the value's otherwise in map_values(...), or leave "
            "it out, since a row has its key beside it; of a topic, .stream().map_values(...).to_table()"
        )


def check_own(key: Iterable[str], name: str, where: str, operator: str) -> None:
    """Raise `DefinitionError` when a key's column has the name of the one in which an operator keeps what it makes."""
    if name in {column.lower() for column in key}:
        raise DefinitionError(
            f"{where}: {operator} keeps what it makes in a column {name!r}, and the key has one, too: give that another name before, by "
            "select_key(other=...) or group_by(other=...)"
        )


def check_waits(stream: nodes.Stream, table: nodes.Table, grace: timedelta, where: str, operator: str) -> None:
    """Refuse a grace that makes nothing certain: of a table that isn't versioned, or whose records have no time of their own."""
    check_duration(grace, f"{operator}: grace=")
    versioned = plan.root_of(table)
    if not isinstance(versioned, nodes.Versioned):
        raise DefinitionError(f"{where}: {operator}: grace= wants a versioned table: .materialized_as(name, history=...)")
    if grace < timedelta(0):
        raise DefinitionError(f"{where}: {operator}: grace must not be negative; got {grace}")
    if grace > versioned.history:
        raise DefinitionError(f"{where}: {operator}: a grace of {grace} is longer than the table's history of {versioned.history}")
    if not of_records_alone(versioned):
        raise DefinitionError(
            f"{where}: {operator}: grace= waits for the time of topics, and a table's changes, a join or a processor is on the way to this "
            "table; leave grace= out to look it up as it is known on arrival"
        )
    if any(isinstance(node, nodes.OuterStreamJoin | nodes.FinalRows) for node in plan.walk(stream)):
        raise DefinitionError(
            f"{where}: {operator}: grace= waits from a record's place on, and what a left or outer join of streams gives alone, or a "
            "suppressed table, comes long after its place; leave grace= out to look the table up on arrival"
        )
    if is_change(stream) or plan.windows_of(stream) is not None:
        raise DefinitionError(f"{where}: {operator}: grace= wants a stream of records: select_key and map_values the changes first")
    unsorted = [c.name for c in plan.value_of(stream) if not sortable(c.type)]
    if unsorted:
        raise DefinitionError(f"{where}: {operator}: {', '.join(unsorted)}: values with a MAP in them can't wait; map_values without it")


def check_found_by_key(node: nodes.Table, where: str, operator: str) -> None:
    """Refuse sessions, and sliding windows, where rows are found by their key: its bounds move as records come.

    Rows of a table of their changes are found: there a session whose bounds move is deleted, and comes anew.
    """
    if isinstance(plan.root_of(node), nodes.ForeignJoin):
        raise DefinitionError(f"{where}: {operator} can't find rows of a join with on= by their key; join tables with on= to them instead")
    windows = plan.folded_into(plan.root_of(node))
    instead = "group_by them first, or take a table of their changes: to_stream, then to_table"
    if isinstance(windows, SlidingWindows):
        raise DefinitionError(f"{where}: {operator} can't find sliding windows by key: they come with their records; {instead}")
    if isinstance(windows, SessionWindows):
        raise DefinitionError(f"{where}: {operator} can't find sessions by key: their bounds move with each record; {instead}")
