"""Test a topology without Kafka, Spark or a JVM: pipe records in, read tables and topics, in Kafka Streams' spirit.

Time is an argument: nothing here reads a clock. Stream time moves only by the records piped in and by `advance`, the wall clock only by
`advance_wall_clock`. Each record is read as a batch of its own, so outputs come in the order of piping; `with driver.batch():` reads
several as one, as a micro-batch does. Rows are dicts. A key of one column is that column's value, a key of several a tuple.

    >>> import watertable as wt
    >>> app = wt.App("shop")
    >>> sales = app.topic("sales", key="sku STRING", value="qty INT, price DECIMAL(9,2)").stream()
    >>> revenue = (sales.group_by("sku").windowed_by(wt.tumbling(hours=1, grace=wt.minutes(10)))
    ...            .agg(revenue=wt.sum("qty * price")).materialized_as("revenue"))
    >>> driver = TopologyTestDriver(app)
    >>> _ = driver.pipe_input("sales", "tea", {"qty": 2, "price": "3.50"}, timestamp="2024-03-01T10:15:00Z")
    >>> _ = driver.pipe_input("sales", "tea", {"qty": 1, "price": "3.50"}, timestamp="2024-03-01T10:59:00Z")
    >>> [(f"{row['window_start']:%H:%M}", str(row["revenue"])) for row in driver.windows("revenue", "tea")]
    [('10:00', '10.50')]
    >>> driver.advance("sales", "2024-03-01T11:10:00Z")
    >>> _ = driver.pipe_input("sales", "tea", {"qty": 5, "price": "3.50"}, timestamp="2024-03-01T10:59:59Z")
    >>> [(drop.node, drop.reason) for drop in driver.dropped()]
    [('revenue', 'late')]
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from watertable.dsl.app import App
from watertable.errors import DefinitionError, JobError, SchemaError
from watertable.interpreter import Interpreter
from watertable.kafka import serdes
from watertable.plan import plan
from watertable.plan.nodes import Format, Topic
from watertable.plan.plan import Sink, TableDef, Topology
from watertable.plan.windows import EPOCH
from watertable.processing import MOMENT
from watertable.records import Advance, Dropped, Output, Record, Refused, Row
from watertable.schema import Schema

Time = datetime | int | str
"""A moment: an aware datetime, milliseconds since 1970, or ISO text with an offset ("2024-03-01T10:00:00Z")."""


@dataclass(frozen=True, slots=True)
class Published:
    """Hold a record of an output topic; a value of None is a tombstone. Headers are texts or bytes, by name."""

    key: Any
    value: Row | None
    timestamp: datetime
    headers: Mapping[str, str | bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """Hold one change of a row, as value columns: `old` is None for a new row, `new` for one that is gone."""

    key: Any
    old: Row | None
    new: Row | None
    timestamp: datetime


class TopologyTestDriver:
    """Run an app on records given one by one.

    `partitions` says how many a topic has, which matters where something waits for all of them: a job knows them from the start. A topic
    that isn't named there has those that records came from. `wall_clock` is what the clock on the wall says in the beginning. Raises
    `DefinitionError` for what the app doesn't have (a topic, a table), naming what it has, and `SchemaError` for input that doesn't fit its
    topic.
    """

    def __init__(self, app: App | Topology, *, partitions: Mapping[str, int] | None = None, wall_clock: Time | None = None) -> None:
        self.topology = app.topology() if isinstance(app, App) else app
        if not isinstance(self.topology, Topology):
            raise DefinitionError(f"TopologyTestDriver wants an App; got {app!r}")
        if not isinstance(partitions, Mapping | None):
            raise DefinitionError(f"partitions= wants a number for each topic: partitions={{'topic': 2}}; got {partitions!r}")
        self._declared = {self._topic(name).name: _whole(n, f"partitions of topic {name!r}", 1) for name, n in (partitions or {}).items()}
        known = [(topic, number) for topic, count in self._declared.items() for number in range(count)]
        self._engine = Interpreter(self.topology, watch=frozenset(table.name for table in self.topology.tables), partitions=known)
        self._next: dict[tuple[str, int], int] = {}
        self._pending: list[Record | Advance] | None = None
        self._given: dict[str, int] = {}
        self._clock = None if wall_clock is None else _moment(wall_clock)

    # -- input --------------------------------------------------------------------------------------------------------------------

    def pipe_input(
        self,
        topic: str,
        key: object = None,
        value: Mapping[str, object] | str | bytes | None = None,
        *,
        headers: Mapping[str, str | bytes | None] | None = None,
        timestamp: Time | None = None,
        partition: int = 0,
        offset: int | None = None,
    ) -> Record:
        """Pipe one record in, and give it as Kafka would hold it.

        `key` is the key column's value, or a tuple or dict of several. `value` is a dict of columns (those left out are null), None
        for a tombstone, or the very text or bytes of the value, broken ones too. `headers` are texts or bytes by name. The timestamp may be
        left out where the topic says which column holds the event time. Offsets count up by themselves; one that doesn't grow is refused.
        """
        declared = self._partition(topic, partition)
        if timestamp is None and declared.timestamp is None:
            raise DefinitionError(f"topic {topic!r}: say timestamp=...: its event time is the record's own, and a driver has no clock")
        expected = self._next.get((topic, partition), 0)
        if offset is not None and _whole(offset, f"offset in topic {topic!r}", 0) < expected:
            raise DefinitionError(f"topic {topic!r}: offset {offset} was already read in partition {partition}; the next is {expected}")
        record = Record(
            topic=topic,
            partition=partition,
            offset=expected if offset is None else offset,
            timestamp=EPOCH if timestamp is None else _moment(timestamp),
            key=_bytes(_keyed(declared, key), declared.key, declared.key_format, f"key of topic {topic!r}"),
            value=_bytes(value, declared.value, declared.value_format, f"value of topic {topic!r}"),
            headers=_headers({} if headers is None else headers, topic),
        )
        self._next[topic, partition] = record.offset + 1
        self._read(record)
        return record

    def advance(self, topic: str, stream_time: Time, *, partition: int = 0) -> None:
        """Move the stream time of an idle partition on, as a recorded advance does; it never goes back."""
        self._partition(topic, partition)
        self._read(Advance(topic, partition, self._next.get((topic, partition), 0), _moment(stream_time)))

    def advance_wall_clock(self, to: timedelta | Time) -> None:
        """Move the clock on the wall on, by a duration or to a time, and call what is due by it then, as a recorded clock does.

        What is scheduled by that, by the wall clock, is called when the clock is moved next. Raises `DefinitionError` for a clock that
        goes back, for a duration before any time was said, and within a batch: a clock is recorded between batches.
        """
        if self._pending is not None:
            raise DefinitionError("a batch is open: the wall clock is recorded between batches")
        self._clock = now = self._moved_to(to)
        times, due = self._engine.stream_times, [p for p, at in self._engine.visits.by_clock().items() if at <= now]
        self._engine.read([Advance(*p, self._next.get(p, 0), times[p] + MOMENT, now) for p in due])

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Read all that is piped in here as one batch: in log order, whatever the order of piping."""
        if self._pending is not None:
            raise DefinitionError("a batch is already open: batches don't nest")
        self._pending = []
        try:
            yield
            self._engine.read(self._pending)
        finally:
            self._pending = None

    # -- what came of it ----------------------------------------------------------------------------------------------------------

    def table(self, name: str) -> dict[Any, Row]:
        """Give a table's rows by key, all columns."""
        self._table(name)
        return {_short(key): row for key, row in self._engine.tables[name].items()}

    def windows(self, name: str, key: object) -> list[Row]:
        """Give the rows of one key of a windowed table, earliest window first."""
        if self._table(name).windows is None:
            raise DefinitionError(f"table {name!r} has no windows; read it with table({name!r})")
        wanted = key if isinstance(key, tuple) else (key,)
        rows = [(kept[-2], row) for kept, row in self._engine.tables[name].items() if kept[:-2] == wanted]
        return [row for _, row in sorted(rows, key=lambda found: found[0])]  # type: ignore[arg-type,return-value]

    def changes(self, name: str) -> list[Change]:
        """Give all changes of a table so far, one for each record that updated a row."""
        self._table(name)
        return [Change(_plain(event.key), event.old, event.value, event.timestamp) for event in self._engine.changes[name]]

    def read_output(self, topic: str) -> list[Published]:
        """Give the records published to a topic since it was last read."""
        sink = next((s for s in self.topology.sinks if s.topic == topic), None)
        if sink is None:
            raise DefinitionError(f"{self._app} writes no topic {topic!r}; it writes {_list(s.topic for s in self.topology.sinks)}")
        outputs = [output for output in self._engine.outputs if output.topic == topic]
        start, self._given[topic] = self._given.get(topic, 0), len(outputs)
        return [_published(sink, output) for output in outputs[start:]]

    def dropped(self) -> list[Dropped]:
        """Give the records that operators left out and counted."""
        return list(self._engine.dropped)

    def quarantine(self) -> list[Refused]:
        """Give the records that were refused, each with the operator, its file:line, and the reason."""
        return list(self._engine.quarantine)

    def stream_time(self, topic: str, partition: int = 0) -> datetime | None:
        """Give a partition's stream time; None before its first record."""
        self._topic(topic)
        return self._engine.stream_times.get((topic, partition))

    # -- helpers ------------------------------------------------------------------------------------------------------------------

    @property
    def _app(self) -> str:
        return f"app {self.topology.app!r}"

    def _topic(self, name: str) -> Topic:
        for topic in self.topology.topics:
            if topic.name == name:
                return topic
        raise DefinitionError(f"{self._app} reads no topic {name!r}; it reads {_list(t.name for t in self.topology.topics)}")

    def _partition(self, topic: str, number: int) -> Topic:
        """Give the topic of a partition; refuse one that a job would have waited for."""
        found = self._topic(topic)
        say = f"say TopologyTestDriver(app, partitions={{{topic!r}: {_whole(number, f'partition of topic {topic!r}', 0) + 1}}})"
        if topic in self._declared and number >= self._declared[topic]:
            raise DefinitionError(f"topic {topic!r} has {self._declared[topic]} partition(s), and none that is {number}; {say}")
        if topic in self._engine.closed and (topic, number) not in self._engine.partitions:
            raise DefinitionError(
                f"topic {topic!r}: partition {number} comes after rows that are final without it; a job knows all partitions from the "
                f"start: {say}"
            )
        return found

    def _table(self, name: str) -> TableDef:
        for table in self.topology.tables:
            if table.name == name:
                return table
        raise DefinitionError(f"{self._app} has no table {name!r}; it has {_list(t.name for t in self.topology.tables)}")

    def _moved_to(self, to: timedelta | Time) -> datetime:
        """Give the wall clock as it is said to be from now on."""
        if not isinstance(to, timedelta):
            now = _moment(to)
        elif self._clock is not None:
            now = self._clock + to
        else:
            raise DefinitionError("say what the wall clock is first: TopologyTestDriver(app, wall_clock='2024-03-01T10:00:00Z')")
        if self._clock is not None and now < self._clock:
            raise DefinitionError(f"the wall clock is at {self._clock}, and doesn't go back to {now}")
        return now

    def _read(self, item: Record | Advance) -> None:
        if self._pending is not None:
            self._pending.append(item)
            return
        try:
            self._engine.read([item])
        except JobError as error:  # as the error of an app that has to stop does
            raise JobError(f"topic {item.topic!r}, partition {item.partition}, offset {item.offset}: {error}") from None


def _list(names: Iterable[object]) -> str:
    return ", ".join(map(str, names)) or "none"


def _whole(number: object, what: str, least: int) -> int:
    """Give a number that counts something; raise `SchemaError` for one that can't."""
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise SchemaError(f"{what}: give a whole number, {least} or more; got {number!r}")
    return number


def _moment(time: Time) -> datetime:
    """Read a moment; raise `SchemaError` for what is none, for one without a zone, and for one that Python has no time for."""
    if not isinstance(time, datetime | int | str) or isinstance(time, bool):
        raise SchemaError(f"{time!r} is no time; give an aware datetime, milliseconds since 1970 or '2024-03-01T10:00:00Z'")
    try:
        if isinstance(time, int):
            return EPOCH + timedelta(milliseconds=time)
        when = datetime.fromisoformat(time) if isinstance(time, str) else time
        if when.tzinfo is None:
            raise SchemaError(f"{time!s} has no time zone: write '{when.isoformat()}Z', or give the datetime tzinfo=UTC")
        return when.astimezone(UTC)
    except SchemaError:
        raise
    except ValueError:
        raise SchemaError(f"{time!r} is no time; write e.g. '2024-03-01T10:00:00Z'") from None
    except OverflowError:
        raise SchemaError(f"{time!r} is outside the years 1 to 9999, where a driver's times end") from None


def _headers(given: object, topic: str) -> tuple[tuple[str, bytes | None], ...]:
    """Write headers as Kafka holds them; raise `SchemaError` for one that is neither text nor bytes."""
    what = f"headers of topic {topic!r}: give texts or bytes by name"
    if not isinstance(given, Mapping):
        raise SchemaError(f"{what}; got {given!r}")
    for name, data in given.items():
        if not isinstance(name, str) or not isinstance(data, str | bytes | None):
            raise SchemaError(f"{what}; got {name!r}: {data!r}")
    return tuple((name, data.encode() if isinstance(data, str) else data) for name, data in given.items())


def _keyed(topic: Topic, key: object) -> object:
    """Name the parts of a key that was given by position."""
    if key is None or isinstance(key, Mapping | bytes):
        return key
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) != len(topic.key):
        raise SchemaError(f"topic {topic.name!r} has {len(topic.key)} key column(s), {topic.key.sql()}; got {key!r}")
    return dict(zip(topic.key.names, parts, strict=True))


def _bytes(given: object, schema: Schema, form: Format, what: str) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    if not isinstance(given, Mapping):
        raise SchemaError(f"{what}: give a dict of columns, text, bytes or None; got {type(given).__name__}")
    unknown = [name for name in given if name not in schema]
    if unknown:
        raise SchemaError(f"{what} has no column {_list(unknown)}; it has {schema.sql()}")
    if form is Format.JSON:
        try:
            return json.dumps(dict(given), default=_json).encode()
        except SchemaError:
            raise
        except (TypeError, ValueError) as error:  # a key that is no name, or what is in itself
            raise SchemaError(f"{what}: {given!r} can't be written as JSON: {error}") from None
    only = given.get(schema.columns[0].name)
    return only if only is None or isinstance(only, bytes) else str(only).encode()


def _json(value: object) -> str:
    match value:
        case datetime():
            return _moment(value).isoformat()
        case date() | Decimal():
            return str(value)
        case bytes():
            return b64encode(value).decode()
    raise SchemaError(f"{value!r} can't be written as JSON")


def _published(sink: Sink, output: Output) -> Published:
    key = serdes.decode(output.key, plan.key_of(sink.node), sink.key_format)
    value = serdes.decode(output.value, plan.value_of(sink.node), sink.value_format)
    texts = {name for name, expr in sink.headers if expr.type.kind == "string"}
    headers = {name: said.decode() if name in texts and said is not None else said for name, said in output.headers}
    return Published(_plain(key), value, output.timestamp, headers)


def _plain(key: Row | None) -> Any:
    """Give a key as people write it: the value of its one column, or a tuple."""
    return None if key is None else _short(tuple(key.values()))


def _short(key: tuple[object, ...]) -> Any:
    return key[0] if len(key) == 1 else key
