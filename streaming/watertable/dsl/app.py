"""Write topologies as Kafka Streams users would: topics become streams and tables, operators are methods, names are theirs.

Everything here only builds a plan: no Spark, no JVM, no I/O. Columns are Spark SQL expressions, checked where they are written; a
name is looked up in the value first, then in the key, and can be qualified (`key.x`, `old.x`, `new.x`, `window.start`).

    app = wt.App("wordcount")
    lines = app.topic("lines", value="line STRING", value_format="string").stream()
    words = lines.flat_map_values(word="split(lower(line), ' ')")
    counts = words.group_by("word").agg(n=wt.count()).materialized_as("counts")
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from watertable.dsl.definitions import (
    check_app_name,
    check_columns,
    check_key,
    check_read,
    check_text,
    check_topic_name,
    check_typed,
    chosen_format,
    declared,
    declared_headers,
    here,
    key_format_of,
    placed,
)
from watertable.dsl.streams import Stream
from watertable.dsl.tables import Table
from watertable.errors import DefinitionError, DuplicateName, SchemaError
from watertable.plan import nodes
from watertable.plan.nodes import Format, Topic
from watertable.plan.places import check_room
from watertable.plan.plan import CHANGELOG, Sink, TableDef, Topology
from watertable.plan.windows import check_duration

_OWNER: Final = re.compile(r"team:\S.*|\w[\w.%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}", re.ASCII)
"""What Dagster takes: of an address, a top-level domain of two to seven letters, say."""


class App:
    """Collect the topics, tables and output topics that are deployed and committed as one unit.

    `owner`, an e-mail address or `team:name`, is on the app's tables in Dagster, `description` on its stream. Raises `SchemaError`
    for a name that isn't an identifier, or is `topics`, `DefinitionError` for an owner that is neither.
    """

    def __init__(self, name: str, *, owner: str | None = None, description: str = "") -> None:
        self.location = here()
        with placed(self.location):
            self.name = check_app_name(name)
        if owner is not None and not (isinstance(owner, str) and _OWNER.fullmatch(owner)):
            raise DefinitionError(f"{self.location}: owner= wants an e-mail address or team:name; got {owner!r}")
        check_text(description, "description", self.location)
        self.owner = owner
        self.description = description
        self._topics: dict[str, Topic] = {}
        self._tables: dict[str, TableDef] = {}
        self._sinks: dict[str, Sink] = {}

    def topic(
        self,
        name: str,
        *,
        value: str,
        key: str = "key STRING",
        headers: Mapping[str, str] | None = None,
        timestamp: str | None = None,
        key_format: str | None = None,
        value_format: str | None = None,
        archive: bool = False,
        idle_after: timedelta | None = None,
        description: str = "",
    ) -> TopicSource:
        """Declare a topic that the app reads.

        `key` and `value` are DDL column lists. Values are JSON unless `value_format` says "string" or "bytes"; a key of one STRING
        column is that string's bytes, any other key is JSON unless `key_format` says otherwise. `timestamp` names the value's
        TIMESTAMP column that holds the event time; without it, event time is the record's own timestamp. Where it names one, a record
        without a value, which has none, takes the stream time that its partition has reached: the greatest event time of the records
        before it, or 1970-01-01 where none has one. `archive` keeps the raw records in the warehouse, each once, so that a replay has what
        Kafka has deleted.

        `headers` says which of a record's headers become columns after the value's, and as what, STRING (UTF-8) or BINARY:
        `headers={"trace-id": "trace_id STRING"}`. One that a record lacks is null; of several of a name the last counts, as for Kafka's
        `lastHeader`. A tombstone has no columns, and so no headers.

        A partition without records holds what waits for the stream time of all, windows above all. With `idle_after`, one that has had
        nothing to read for so long (of wall clock) is let go by a recorded advance, up to where the topic's others are, and a replay does
        the same. What comes to it later, of an earlier time, is late for what was closed.

        Raises `SchemaError` for a bad DDL, name, format, header or time column, `DuplicateName` for a topic declared twice, and
        `DefinitionError` for one that the app writes, an `idle_after` that isn't longer than zero, or an `archive` that is neither.
        """
        where = here()
        check_topic_name(name, where)
        if name in self._topics:
            raise DuplicateName(f"{where}: topic {name!r} is already declared at {self._topics[name].location}; reuse that object")
        if name in self._sinks:
            raise DefinitionError(
                f"{where}: topic {name!r} is written by this app at {self._sinks[name].location}, so it can't read it: that is a loop"
            )
        check_text(description, "description", f"{where}: topic {name!r}")
        if not isinstance(archive, bool):  # any text would be true
            raise DefinitionError(f"{where}: archive={archive!r} must be True or False")
        if idle_after is not None:
            check_duration(idle_after, "idle_after=")
            if idle_after <= timedelta(0):
                raise DefinitionError(
                    f"{where}: idle_after must be longer than zero; got {idle_after}; leave it out to wait for every partition"
                )
        keys = declared(key, where, "key", "leave key= out where records have none: a STRING may be null")
        values = declared(value, where, "value", "value='body BINARY', value_format='bytes' reads whatever there is")
        read = declared_headers({} if headers is None else headers, values, where)
        if timestamp is not None and (timestamp not in values or values[timestamp].kind != "timestamp"):
            have = ", ".join(f"{c.name} {c.type.sql()}" for c in values)
            raise SchemaError(f"{where}: timestamp={timestamp!r} must name a TIMESTAMP column of the value; it has {have}")
        key_is, value_is = (
            chosen_format(key_format, keys, where, default=key_format_of(keys)),
            chosen_format(value_format, values, where, default=Format.JSON),
        )
        for part, schema, form in (("key", keys, key_is), ("value", values, value_is)):
            check_read(schema, form, f"{where}: {part}")
        self._topics[name] = Topic(
            name=name,
            key=keys,
            value=values,
            key_format=key_is,
            value_format=value_is,
            headers=read,
            timestamp=timestamp,
            archive=archive,
            idle_after=idle_after,
            description=description,
            location=where,
        )
        return TopicSource(self, self._topics[name])

    def topology(self) -> Topology:
        """Freeze what was defined; raise `DefinitionError` when there is nothing to keep or publish, or the same is to wait twice."""
        if not self._tables and not self._sinks:
            raise DefinitionError(f"{self.location}: app {self.name!r} has no table and no output: end one with .materialized_as(name)")
        topology = Topology(
            app=self.name,
            tables=tuple(self._tables.values()),
            sinks=tuple(self._sinks.values()),
            owner=self.owner,
            description=self.description,
            location=self.location,
        )
        buffers = dict[str, TableDef]()
        for buffer in topology.buffers:
            if (other := buffers.setdefault(buffer.name, buffer)) != buffer:
                raise DefinitionError(
                    f"{buffer.location}: what waits here is what waits at {other.location}: only peeks above them, or rules that warn, "
                    "differ. Use the stream or table of one for both, and put those below it"
                )
        return topology

    def describe(self) -> str:
        """Write the topology as text; `lineage.mermaid` draws it."""
        from watertable.plan.lineage import describe

        return describe(self.topology())

    @property
    def fingerprint(self) -> str:
        """Identify what the app computes; see `Topology.fingerprint`."""
        return self.topology().fingerprint

    def _add_table(self, table: TableDef) -> None:
        if table.name.lower() == CHANGELOG or table.name.startswith("_"):
            raise SchemaError(
                f"{table.location}: table name {table.name!r}: {CHANGELOG!r}, and names that begin with _, are the store's own"
            )
        if other := next((t for name, t in self._tables.items() if name.lower() == table.name.lower()), None):
            alike = "" if other.name == table.name else ": Spark, and many file systems, don't tell names by their case"
            raise DuplicateName(f"{table.location}: table {other.name!r} is already defined at {other.location}{alike}")
        check_typed(table.value, table.location)
        check_room(table.node)
        self._tables[table.name] = table

    def _add_sink(self, sink: Sink) -> None:
        if sink.topic in self._sinks:
            first = self._sinks[sink.topic].location
            raise DuplicateName(f"{sink.location}: output topic {sink.topic!r} is already written at {first}; merge the streams first")
        if sink.topic in self._topics:
            raise DefinitionError(f"{sink.location}: topic {sink.topic!r} is read by this app, so it can't write it: that is a loop")
        check_room(sink.node)
        self._sinks[sink.topic] = sink


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Hold a declared topic, to be read as a stream or as a table."""

    app: App
    topic: Topic

    def stream(self) -> Stream:
        """Read the topic as a stream of records; null keys and null values are ordinary records."""
        return Stream(self.app, nodes.Source(topic=self.topic, location=here()))

    def table(self) -> Table:
        """Read the topic as a changelog: the last value of each key, where a null value deletes.

        A record without a key can't be placed and goes to quarantine. Within a partition offset order decides, as in Kafka Streams.
        """
        where = here()
        check_key(self.topic.key, where, "table")
        check_columns(self.topic.key, self.topic.columns, where)
        return Table(self.app, nodes.Latest(parent=nodes.Source(topic=self.topic, location=where), is_source=True, location=where))
