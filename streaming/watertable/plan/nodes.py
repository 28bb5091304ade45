"""Name the steps of a topology: what each node of a plan holds.

Stream nodes carry records (`key`, `value`), or Changes (`key`, `old`, `new`) below a table; table nodes carry rows by key. A node knows
the user's file and line, and compares by what it computes: the location is in neither equality nor fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from watertable.plan.aggregates import BoundAggregate, SignedField
from watertable.plan.fingerprints import LATER
from watertable.plan.processors import Processor
from watertable.plan.rules import Rule
from watertable.plan.stages import How, Named
from watertable.plan.windows import JoinWindows, SlidingWindows, Windows
from watertable.schema import Column, Schema
from watertable.sql.expressions import Expr


class Format(StrEnum):
    """Name the ways in which a key or value is written in a topic."""

    JSON = "json"
    STRING = "string"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Header:
    """Read a record's header, the last of its name, into a STRING or BINARY column."""

    name: str
    column: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Declare a Kafka topic: the columns of its key, value and headers, how they are written, and where its event time is.

    `timestamp` names a TIMESTAMP column of the value; without one, event time is the Kafka record's own timestamp. Where it names one, a
    record without a value is at the stream time that its partition has reached (1970, if none). `archive` keeps its raw records in the
    lakehouse beyond the topic's retention. After `idle_after` a partition with nothing to read holds nobody back any more; what is
    computed depends on the advances that come of it, not on it.
    """

    name: str
    key: Schema
    value: Schema
    key_format: Format
    value_format: Format
    headers: tuple[Header, ...] = field(default=(), metadata=LATER)
    timestamp: str | None = None
    archive: bool = False
    idle_after: timedelta | None = field(default=None, compare=False)
    description: str = field(default="", compare=False)
    location: str = field(default="", compare=False)

    @property
    def columns(self) -> Schema:
        """Give the columns of a record: the value's, then the headers'."""
        return self.value + Schema(tuple(header.column for header in self.headers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Begin every node with the place where the user made it."""

    location: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Node):
    """Read the records of a topic."""

    topic: Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    """Keep the records for which the condition is true; false and null drop them."""

    parent: Stream
    condition: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect(Node):
    """Hold records to a rule, and do with those that break it what the rule says."""

    parent: Stream
    rule: Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class MapValues(Node):
    """Make a new value from each record; a null value stays null, and the key stays as it is."""

    parent: Stream
    columns: Named


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Node):
    """Make a new key, and a new value unless `columns` is None; what follows is ordered by log order, not per old key.

    A record for which `keyed` is given, and isn't true, has no key.
    """

    parent: Stream
    key_columns: Named
    columns: Named | None
    keyed: Expr | None = field(default=None, metadata=LATER)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMapValues(Node):
    """Make one record for each element of the array column `exploded`, in the array's order; an empty or null array makes none."""

    parent: Stream
    columns: Named
    exploded: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek(Node):
    """Count the records that pass here under a name, and change nothing."""

    parent: Stream
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStreams(Node):
    """Interleave streams of one shape; log order is the order between them."""

    parents: tuple[Stream, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition(Node):
    """Drop records without a key. Spark needs no co-partitioning, so there is nothing else to do."""

    parent: Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class ToStream(Node):
    """Stream a table's changes: one Change(old, new) for each source record that updated a row, in log order."""

    table: str
    parent: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJoin(Node):
    """Look each record's key, or the key `on`, up in a table as it is when the record arrives; make a new value of both.

    A record without a value is dropped; so is one without a key, unless the join is a left one and the record itself has none.
    """

    parent: Stream
    how: How
    table: str
    right: Table
    on: Named | None
    columns: Named


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJoin(StreamJoin):
    """Look each record up in a versioned table once every partition that feeds either has passed the record's event time by a grace.

    Of the versions it finds the last by event time that isn't later than the record, among those read before their own partition had
    passed that time. The record goes on at its own place.
    """

    grace: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStreamJoin(Node):
    """Pair the records of two streams that have one key and times within a window of each other; make a new value of each pair.

    A pair is at the place of its later record in log order, with the greater of the two event times. A record without a key or a value is
    dropped; so is nothing else, but the later record doesn't pair with one whose window has closed by then.
    """

    left: Stream
    right: Stream
    within: JoinWindows
    columns: Named


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterStreamJoin(StreamStreamJoin):
    """Pair the records of two streams, and give those of the left one, or of either, that pair with nothing: with the other side null.

    Such a record is given once, when its window has closed, and keeps its own place and event time. One without a key, which pairs with
    nothing, is given at once.
    """

    how: How


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRows(Node):
    """Give each row of a windowed table once, when its window has closed, as the row is then.

    It is at the last moment of its window, in event time and in stream time: what is made of it doesn't depend on when that was noticed.
    """

    parent: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Node):
    """Call a processor for the records of each key in log order, each batch's after those of the one before; others read what comes of it.

    A record without a key is dropped and counted.
    """

    parent: Stream
    processor: Processor
    operator: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarded(Node):
    """Give the rows that a processor forwards to one child, under the record's key: the n-th of a record at `ord * 65536 + n`."""

    parent: Process
    child: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(Node):
    """Give what a processor puts into one of its stores: by the key of the store's table a row, or none where it is deleted.

    Beside each row is the number of the call among those of its key: as calls follow each other, so do rows, whatever their log order.
    """

    parent: Process
    store: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest(Node):
    """Keep each key's last value in log order; a null value deletes the row.

    `is_source` marks a table straight from a topic, where a record without a key is an error in the data; elsewhere it is dropped.
    """

    parent: Stream
    is_source: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest(Latest):
    """Keep what came last of each key: batch by batch, and in log order within one.

    So are kept the Changes of a row that several partitions feed. Each says what the row is by all that came before it, so none is put
    right by one that came earlier and is later in log order.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(Latest):
    """Keep what a processor put into a store last."""

    parent: Written


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned(Latest):
    """Keep each key's last value by event time, and in log order where that is the same; its versions stay for the length of a history.

    A record that comes out of order takes its place in the history, and is no Change. One that is older than the history, by the stream
    time of its partition, is dropped.
    """

    history: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class History(Node):
    """Keep the versions of a versioned table's values by event time, as long as a record can come that asks for them.

    Those that may ask come from `topics`, beside the table's own, and may have waited for `delay` before.
    """

    parent: Versioned
    topics: tuple[str, ...] = field(default=(), compare=False)
    delay: timedelta = field(default=timedelta(0), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Node):
    """Keep the records that wait in a join with a versioned table, by the key that they ask for, until they go on.

    Of each there are the place, the time, the key, and those `columns` that the join reads.
    """

    parent: WaitingJoin
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Node):
    """Fold the records of each group, or of each group and window, into one row of aggregates."""

    parent: Stream
    group: Named
    windows: Windows | None
    aggregates: tuple[BoundAggregate, ...]

    @property
    def sees_nulls(self) -> bool:
        """Tell whether it sees records without a value, as in time windows and sessions; what only reduces has nothing to see in them."""
        windowed = self.windows is not None and not isinstance(self.windows, SlidingWindows)
        return windowed and all(aggregate.function != "reduce" for aggregate in self.aggregates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(Aggregate):
    """Fold what is told of each row into one, deletions too: they are records without a value."""

    @property
    def sees_nulls(self) -> bool:
        """Tell that a deletion counts as what it is."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAggregate(Node):
    """Fold the rows of a table, by group, into one row of aggregates: a changed row leaves its old group and enters its new one.

    It is fed by the table's Changes: what each takes away and what it brings telescope, whatever their order, to the rows as they are.
    `rows` counts those of a group; a group without any is gone, and its state is zero in every field.
    """

    parent: ToStream
    group: Named
    aggregates: tuple[BoundAggregate, ...]
    rows: SignedField

    @property
    def wanted(self) -> tuple[str, ...]:
        """Name the parts of the group without which a row is left out."""
        return tuple(name for name, _ in self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSide(TableAggregate):
    """Keep the rows of one side of a foreign-key join by foreign key and left key: `rows` is a bag that holds one row, or none.

    The right side's rows have no left key, so they are beside all rows of the left side that name them. Of `optional` may be null.
    """

    optional: tuple[str, ...]

    @property
    def wanted(self) -> tuple[str, ...]:
        """Name the parts of the key without which a row is left out."""
        return tuple(name for name, _ in self.group if name not in self.optional)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSide(Node):
    """Keep the records of one side of a join of streams, by key: their places, times, and those columns that the join reads."""

    parent: Stream
    name: str
    key: Schema
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinBuffer(Node):
    """Keep what both sides of a join of streams still wait with, until no record can come any more that would pair with it."""

    left: JoinSide
    right: JoinSide
    within: JoinWindows


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterBuffer(JoinBuffer):
    """Keep besides which of the records that may be given alone need not be any more: they have been paired, or given."""

    how: How


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFilter(Node):
    """Keep the rows for which the condition is true; a row that ceases to be so is deleted."""

    parent: Table
    condition: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMapValues(Node):
    """Make new value columns from each row; the key stays as it is."""

    parent: Table
    columns: Named


@dataclass(frozen=True, slots=True, kw_only=True)
class Cogroup(Node):
    """Fold several grouped streams into one row: each has its own aggregates, and all have the same windows."""

    inputs: tuple[Aggregate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoin(Node):
    """Join two tables by key: one row for each key, of `columns` over `left`, `right` and `key`; a side without a row is null."""

    how: How
    left: Table
    right: Table
    columns: Named


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignJoin(Node):
    """Join each row of a table with the row of another that it names: one row for each left key, of `columns` over both.

    Both sides are fed by their tables' Changes, and kept by foreign key and left key: a left row that names another right one leaves
    its old place and takes a new one, and a right row is kept once for all that name it.
    """

    how: How
    left: ForeignSide
    right: ForeignSide
    columns: Named


Stream = (
    Source | Filter | Expect | MapValues | Map | FlatMapValues | Peek | MergeStreams | Repartition | ToStream | StreamJoin
    | WaitingJoin | StreamStreamJoin | FinalRows | Process | Forwarded | Written
)  # fmt: skip
Leaf = Latest | Stored | Versioned | History | Waiting | Aggregate | TableAggregate | ForeignSide | JoinSide
"""A table node that folds the records of a stream, or the Changes of a table; histories and the buffers of joins are none of the user's."""
Root = Leaf | Cogroup | TableJoin | ForeignJoin | JoinBuffer
"""A table node that keeps a state: its own, or those of the nodes that it brings together."""
Table = Root | TableFilter | TableMapValues
