"""Run a table's definition as it is here on the newest records of its topics, commit nothing, and compare with the live table.

The interpreter reads the last records that the live Delta table has folded, beginning from nothing. So a row says what the definition
makes of these records, not what the table would hold: a sum over the last thousand is no sum over all. Compared is what means something:

- everything, where these are all the records that there ever were;
- of a table that keeps the last record of each of a topic's keys, the keys that occur;
- of a windowed table, the windows that begin after the stream time of every partition where these records begin.

The last two only where no table, join of streams or processor is on the way, which would have to know what came before.

The first and the third show live rows that the definition makes no more, too. The live table is read as it was folded, whatever code
made it, in the columns that both have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pyspark.sql import functions as F

from watertable.interpreter import Interpreter
from watertable.plan.nodes import Latest
from watertable.plan.plan import WINDOW_KEY, TableDef, Topology
from watertable.plan.purity import of_one_topic, of_records_alone
from watertable.records import Advance, Key, Record, Row
from watertable.schema import quote
from watertable.sql.spark_sql import literal
from watertable.store.commits import CommitInfo, Offsets, Position
from watertable.store.reader import Reader
from watertable.tools.bisect import as_json, keys_frame, read_json
from watertable.tools.explain import chunks, interleaved

COMPARED: Final = 10_000
"""Rows that are looked up in the live table at most."""


@dataclass(frozen=True, slots=True)
class Live:
    """Hold what the live table was folded from: its position, and the offsets and stream times after it; `version` is Delta's."""

    position: Position
    version: int
    next: Offsets
    columns: tuple[str, ...]
    times: Mapping[tuple[str, int], datetime | None] = field(default_factory=dict)

    def reaches(self, advance: Advance) -> bool:
        """Tell whether it was made of this advance, too: at the offset that it has come to, its stream time says so."""
        partition = advance.topic, advance.partition
        after, time = self.next.get(partition, 0), self.times.get(partition)
        return advance.offset < after or (advance.offset == after and time is not None and advance.stream_time <= time)


@dataclass(frozen=True, slots=True)
class Pair:
    """Hold a row as the definition makes it and as it is live, where it is compared; a side without a row is None."""

    key: Row
    here: Row | None
    live: Row | None
    compared: bool

    @property
    def mark(self) -> str:
        """Say in one word how the two stand to each other."""
        if not self.compared:
            return "not compared"
        if self.here is None or self.live is None:
            return "same" if self.here is self.live else "only here" if self.live is None else "only live"
        return "same" if all(self.live[name] == value for name, value in self.here.items() if name in self.live) else "differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Hold what a definition makes of the last records; `says` tells in words what was compared, and why not more."""

    table: str
    fingerprint: str
    begin: Offsets
    end: Offsets
    records: int
    pairs: tuple[Pair, ...]
    live: Live | None
    says: str
    dropped: Mapping[str, int]
    refused: tuple[tuple[str, str, int], ...]
    """Operator, where it is defined, how many records it refused; of every operator on the way to the table."""

    def count(self, mark: str) -> int:
        """Count the rows of a mark."""
        return sum(pair.mark == mark for pair in self.pairs)


def live_of(reader: Reader, topology: Topology, table: TableDef) -> Live | None:
    """Find how far the live Delta table is folded, by whatever code; None where there is none. Raises `TableNotFound`."""
    base = reader.folded(table.name)
    if base.snapshot is None:
        return None
    snapshot = reader.changelog.snapshot()
    lineage = reader.changelog.head(snapshot, epoch=base.epoch).lineage  # an epoch without commits of its own has its parent's
    commit = reader.changelog.commit(snapshot, lineage, base.seq) or CommitInfo()
    topics = {topic.name for topic in topology.above({table.name}).topics}
    reached = {p: offset for p, offset in commit.next.items() if p[0] in topics}
    at = Position(reader.changelog.app, base.epoch, base.seq)
    return Live(at, base.snapshot.version, reached, base.snapshot.columns, commit.stream_times)


def last(earliest: Offsets, end: Offsets, records: int) -> Offsets:
    """Give where to begin so that about so many records are read, as many of each partition as it has.

    >>> last({("a", 0): 0, ("a", 1): 90}, {("a", 0): 500, ("a", 1): 100}, 100)
    {('a', 0): 410, ('a', 1): 90}
    """
    begin, left = {}, records
    waiting = sorted(end, key=lambda p: (end[p] - earliest[p], p))
    for n, partition in enumerate(waiting):  # the short ones first: what they lack the others may have
        share = min(end[partition] - earliest[partition], -(-left // (len(waiting) - n)))
        begin[partition] = end[partition] - share
        left -= share
    return dict(sorted(begin.items()))


def preview(
    reader: Reader | None, topology: Topology, table: TableDef, begin: Offsets, end: Offsets, records: Iterable[Record], live: Live | None,
    recorded: Iterable[Advance] = (),
) -> Preview:  # fmt: skip
    """Run the definition over the records [begin, end) and compare with the live table; without one, nothing is compared.

    `recorded` are the advances that the app's commits hold; those count that the live table was folded from, too.
    """
    part = topology.above({table.name})
    engine, dropped, refused, count = Interpreter(part, partitions=end), Counter[str](), Counter[tuple[str, str]](), 0
    topics = {topic.name for topic in part.topics}
    recorded = [advance for advance in recorded if live is not None and live.reaches(advance)]
    for chunk in chunks(item for item in interleaved(records, recorded) if item.topic in topics):
        engine.read(chunk)
        count += sum(isinstance(item, Record) for item in chunk)
        dropped.update(f"{drop.node}: {drop.reason}" for drop in engine.dropped)
        refused.update((bad.node, bad.location) for bad in engine.quarantine)
        for made in (engine.dropped, engine.quarantine, *engine.changes.values()):
            made.clear()  # type: ignore[attr-defined]
    rows = engine.tables[table.name]
    known = list(engine.states[table.name] if table.state_key == table.key else rows)  # a state that isn't a row's has another key
    chosen = _chosen(reader, table, begin, live)
    wanted = [key for key in known if chosen.wants is not None and chosen.wants(key)]
    keys, says, found = wanted[:COMPARED], chosen.says, dict[Key, Row]()
    if reader is not None and live is not None and keys:
        found = _live_rows(reader, table, live, keys)
    if len(keys) < len(wanted):
        says += f" Of {len(wanted):,} rows the first {COMPARED:,} are."
    elif reader is not None and live is not None and chosen.others is not None:
        others = _live_rows(reader, table, live, keys, chosen.others)
        known, keys, found = [*known, *others], [*keys, *others], found | others
        if len(others) == COMPARED:
            says += f" Of the live rows that aren't made here {COMPARED:,} are shown, and there may be more."
    value = table.value.names
    compared = set(keys)
    pairs = [
        Pair(
            dict(zip(table.key.names, key, strict=True)),
            {name: rows[key][name] for name in value} if key in rows else None, found.get(key), key in compared,
        )
        for key in known if key in rows or key in found
    ]  # fmt: skip
    return Preview(
        table=table.name, fingerprint=topology.fingerprint, begin=begin, end=end, records=count, pairs=tuple(pairs), live=live, says=says,
        dropped=dict(dropped), refused=tuple((node, where, n) for (node, where), n in refused.items()),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Say in words what is compared; `wants` tells it of keys here, and `others`, a condition, which live rows should all be here."""

    says: str
    wants: Callable[[Any], bool] | None = None
    others: str | None = None


def _chosen(reader: Reader | None, table: TableDef, begin: Offsets, live: Live | None) -> _Chosen:
    """Choose the rows that can be compared."""
    if reader is None or live is None:
        return _Chosen(
            "There is no live table yet, so nothing is compared: these rows are what the definition makes of these records alone."
        )
    lacking = [name for name in table.key.names if name not in live.columns]
    if lacking:
        return _Chosen(f"The live table has no key column {', '.join(lacking)}, so no row of it can be found again: nothing is compared.")
    if not any(begin.values()):
        says = "These are all records that there ever were: the rows are the whole table, and all are compared."
        return _Chosen(says, lambda _: True, "true")
    if not of_records_alone(table.node):
        return _Chosen(
            "On the way to this table something remembers what came before these records: a table whose changes or rows it takes, a join "
            "of streams, or a processor. So nothing is compared; ask for all records, with a greater --last."
        )
    if type(table.node) is Latest and of_one_topic(table.node):
        return _Chosen(
            "A row is its key's last record, and the last of each key that occurs is among these: every row here is compared. "
            "Keys that make no row here aren't shown.",
            lambda _: True,
        )
    if table.windows is not None:
        since = _stream_time_at(reader, live, begin)
        if since is None:
            return _Chosen(
                "How far stream time had come where these records begin is trimmed: no window is known to be whole, none is compared."
            )
        if table.sessions is not None:
            since += table.sessions.gap
        says = (
            f"Compared are the windows that begin after {since:%F %T}Z: no window of what came before these records reaches there, so "
            "all records of such a window are among them. Earlier windows lack what came before."
        )
        (start, kind), *_ = ((column.name, column.type) for column in WINDOW_KEY)
        return _Chosen(says, lambda key: key[-2] > since, f"{quote(start)} > {literal(since, kind)}")
    return _Chosen(
        "A row here adds up these records alone, and the live row all that there ever were: the two are no versions of one figure, so they "
        "aren't compared. Ask for all records, with a greater --last, or look at the live row beside it with `watertable query`."
    )


def _stream_time_at(reader: Reader, live: Live, begin: Offsets) -> datetime | None:
    """Bound the stream times at these offsets: those after the first commit by which every partition had reached them."""
    snapshot = reader.changelog.snapshot()
    first = reader.changelog.first(
        snapshot, reader.changelog.head(snapshot, epoch=live.position.epoch).lineage, 0, live.position.seq,
        lambda info: all(info.next.get(partition, 0) >= offset for partition, offset in begin.items()),
    )  # fmt: skip
    times = [first.stream_times.get(partition) for partition in begin] if first is not None else []
    known = [time for time in times if time is not None]
    return max(known) if known else None


def _live_rows(reader: Reader, table: TableDef, live: Live, keys: list[Key], others: str | None = None) -> dict[Key, Row]:
    """Read the live rows of some keys, as value columns that both have, each of the type that it has there.

    With a condition on `others`, those for which it is true and that are of none of these keys instead, `COMPARED` at most.
    """
    shown = reader.log(table.name).at(live.version)
    assert shown is not None
    both = shown.schema.take(table.columns.names)
    made = "named_struct(" + ", ".join(f"'{n}', CAST({quote(n)} AS {table.key[n].sql()})" for n in table.key.names) + ") AS key"
    row = "named_struct(" + ", ".join(f"'{c.name}', {quote(c.name)}" for c in both) + ") AS row"
    wanted = keys_frame(reader.changelog.spark, table.key, keys)
    frame = shown.frame().where("true" if others is None else others).selectExpr(made, row)
    rows = frame.join(F.broadcast(wanted), "key", "left_semi" if others is None else "left_anti")
    rows = rows if others is None else rows.orderBy("key").limit(COMPARED)
    found: dict[Key, Row] = {}
    for data in rows.select(as_json("key"), as_json("row")).collect():
        key, read = (read_json(data[name], of) or {} for name, of in (("key", table.key), ("row", both)))
        found[tuple(key.values())] = {n: v for n, v in read.items() if n not in table.key}
    return found
