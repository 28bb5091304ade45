"""Keep the raw records of topics for longer than Kafka does: one Delta table a topic, beside the apps, for all that read it.

    <warehouse>/topics/<topic>
        topic_id                                                  partitions: a topic that is made anew has another one
        topic, partition, offset, timestamp, key, value, headers  the record, as Kafka gave it

An app reads such a topic *through* its archive. What a batch needs and the archive lacks is appended first, in one commit; then the batch
reads the archive. So an archive holds all that an app has committed, whoever dies when, and a replay reads what was read first, whatever
retention or compaction has done to the topic since.

An archive's position is in the transactions of its own Delta log: a line for each *stretch* of offsets that it holds (topic id, partition,
first offset → the offset after the last). Rows and position are one commit. Several apps, and zombies of theirs, may append to it: of two
that overlap one gets `Fenced`, looks again, and finds there what it wanted. The law: stretches of one partition never touch or overlap,
each committed record within one is there once, and nothing is deleted (`delta.appendOnly`). A second stretch begins where Kafka had lost
what came after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Final, Self

from delta.tables import DeltaTable
from pyspark.sql import DataFrame

from watertable import failpoints
from watertable.compiler.layout import literal
from watertable.errors import Fenced, FormatError, StoreError
from watertable.kafka.source import ONE_TASK, RECORDS, Read, read_range
from watertable.records import Record, stamped
from watertable.schema import quote
from watertable.store.changelog import READERS, interval
from watertable.store.commits import FORMAT, Offsets, Partition
from watertable.store.deltalog import JVM_ERRORS, DeltaLog, Snapshot, conflict
from watertable.store.hands import refuse_changed
from watertable.store.logged import Commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.kafka.config import Cluster

LINE: Final = "watertable/archive"
_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_TRIES: Final = 20
_LARGE: Final = 64 << 20
"""Bytes from which on OPTIMIZE leaves a file as it is: else it would write the whole archive again, each time."""

Stretch = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Reach:
    """Say what an archive holds of one topic at one version: the stretches of offsets of each partition, in order.

    >>> reach = Reach(7, 3, {0: ((50, 100), (150, 200))})
    >>> reach.upto(0, 60), reach.upto(0, 100), reach.upto(0, 120), reach.upto(1, 0)
    (100, 100, None, None)
    >>> reach.earliest(0, 170), reach.earliest(0, 100), reach.earliest(0, 10), reach.earliest(1, 5)
    (150, 50, 10, 5)
    """

    version: int = -1
    appends: int = 0
    stretches: Mapping[int, tuple[Stretch, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, version: int, lines: Mapping[str, int], topic_id: str) -> Self:
        """Read the transactions of an archive's log."""
        found: dict[int, list[Stretch]] = {}
        for line, number in lines.items():
            parts = line.removeprefix(f"{LINE}/").rsplit("/", 2)
            if len(parts) == 3 and parts[0] == topic_id:
                found.setdefault(int(parts[1]), []).append((int(parts[2]), number))
        return cls(version, lines.get(LINE, 0), {partition: tuple(sorted(kept)) for partition, kept in found.items()})

    def upto(self, partition: int, offset: int) -> int | None:
        """Give the end of the stretch that holds an offset, or that it is the end of; None where there is none."""
        return next((end for begin, end in self.stretches.get(partition, ()) if begin <= offset <= end), None)

    def earliest(self, partition: int, first: int) -> int:
        """Give the offset from which on archive and Kafka together have everything, where Kafka alone has it from `first` on."""
        return next((begin for begin, end in self.stretches.get(partition, ()) if begin <= first <= end), first)

    def missing(self, partition: int, begin: int, end: int, earliest: Callable[[], int]) -> Stretch | None:
        """Say what must be appended before [begin, end) can be read; None for nothing. `earliest` asks what Kafka still has.

        An app that begins beyond the archive has it catch up with what Kafka has before that. Raises `StoreError` where
        records are neither here nor to be had without a second copy of others.

        >>> reach = Reach(7, 3, {0: ((50, 100),)})
        >>> reach.missing(0, 60, 90, lambda: 0), reach.missing(0, 60, 120, lambda: 0), reach.missing(0, 130, 140, lambda: 110)
        (None, (100, 120), (110, 140))
        """
        if begin >= end:
            return None
        kept = self.stretches.get(partition, ())
        start = self.upto(partition, begin)
        if start is None:
            start = min(begin, max([earliest(), *(last for _, last in kept)]))
        if start >= end:
            return None
        if any(last > start for _, last in kept):
            raise StoreError(f"the archive has the offsets {kept} of partition {partition}, and lacks some of {begin} to {end}")
        return start, end

    def with_appended(self, version: int, appended: Mapping[int, Stretch]) -> Reach:
        """Give the reach after an append."""
        stretches = dict(self.stretches)
        for partition, (begin, end) in appended.items():
            kept = stretches.get(partition, ())
            grown = kept and kept[-1][1] == begin
            stretches[partition] = (*kept[:-1], (kept[-1][0], end)) if grown else (*kept, (begin, end))
        return Reach(version, self.appends + 1, stretches)

    def lines(self, topic_id: str, appended: Mapping[int, Stretch]) -> dict[str, int]:
        """Name the transactions of an append: a stretch is named by its begin, and its number is its end."""
        after = self.with_appended(self.version, appended)
        return {f"{LINE}/{topic_id}/{p}/{after.stretches[p][-1][0]}": after.stretches[p][-1][1] for p in appended}


class Archive:
    """Hold the archive of one topic, as it was at the last look or append."""

    def __init__(self, spark: SparkSession, warehouse: str, topic: str) -> None:
        self.topic, self.log = topic, DeltaLog(spark, f"{warehouse.rstrip('/')}/topics/{topic}")
        self.topic_id, self.reach = "", Reach()
        self._newest: tuple[Mapping[int, Stretch], Commit] | None = None

    def look(self, topic_id: str) -> Self:
        """Find how far it reaches; of one that isn't there, nowhere. Raises `StoreError` where others have changed its rows."""
        snapshot = self._latest()
        self.topic_id, self._newest = topic_id, None
        self.reach = Reach() if snapshot is None else Reach.of(snapshot.version, _known(snapshot, self.log.path), topic_id)
        return self

    def keep(
        self, cluster: Cluster, begin: Offsets, end: Offsets, earliest: Callable[[Iterable[Partition]], Offsets], limit: int,
        read: Read = read_range,
    ) -> None:  # fmt: skip
        """Append what a batch needs of this topic and isn't here, `limit` offsets at a time.

        Raises `Fenced` when others keep appending at the same time, `StoreError` where there is a gap.
        """
        tries = 0
        while missing := self._missing(begin, end, earliest):
            part = {p: (first, min(last, first + max(1, limit // len(missing)))) for p, (first, last) in missing.items()}
            try:
                self._append(cluster, part, read)
            except Fenced:  # another app has brought something: most likely the same
                tries += 1
                if tries == _TRIES:
                    raise
                self.look(self.topic_id)

    def read(self, begin: Offsets, end: Offsets) -> DataFrame | None:
        """Read [begin, end), of which `keep` has made sure; None where that is nothing."""
        ranges = {p[1]: (begin[p], last) for p, last in end.items() if p[0] == self.topic and begin[p] < last}
        if not ranges:
            return None
        if gaps := [p for p, (first, last) in ranges.items() if (self.reach.upto(p, first) or 0) < last]:
            raise StoreError(f"{self.log.path} doesn't hold all of {', '.join(f'{self.topic}/{p}: {ranges[p]}' for p in gaps)}")
        snapshot = self._latest()
        assert snapshot is not None
        files = None
        if self._newest is not None and all(p in self._newest[0] and self._newest[0][p][0] <= ranges[p][0] for p in ranges):
            files = self.log.files(self._newest[1].added)  # as a stream at its end reads: what it has just appended
        wanted = " OR ".join(f"(`partition` = {p} AND `offset` >= {first} AND `offset` < {last})" for p, (first, last) in ranges.items())
        found = snapshot.frame(files).where(f"topic_id = {literal(self.topic_id)} AND ({wanted})").select(*_COLUMNS)
        return found.coalesce(1) if sum(last - first for first, last in ranges.values()) <= ONE_TASK else found

    def optimize(self) -> None:
        """Make large files of small ones, once each."""
        session = self.log.spark.newSession()
        for name, size in (("minFileSize", _LARGE), ("maxFileSize", 2 * _LARGE)):
            session.conf.set(f"spark.databricks.delta.optimize.{name}", str(size))
        try:
            DeltaTable.forPath(session, self.log.path).optimize().executeCompaction()
        except JVM_ERRORS as error:
            if conflict(error) is None:
                raise  # another app's upkeep was quicker

    def vacuum(self) -> None:
        """Delete files that OPTIMIZE has replaced, once nobody can be reading them."""
        DeltaTable.forPath(self.log.spark, self.log.path).vacuum()

    def _missing(
        self, begin: Offsets, end: Offsets, earliest: Callable[[Iterable[Partition]], Offsets]
    ) -> dict[int, Stretch]:  # fmt: skip
        found = {}
        for partition, last in end.items():
            if partition[0] == self.topic:
                first = self.reach.missing(partition[1], begin[partition], last, lambda p=partition: earliest([p])[p])  # type: ignore[misc]
                if first is not None:
                    found[partition[1]] = first
        return found

    def _append(self, cluster: Cluster, part: Mapping[int, Stretch], read: Read) -> None:
        if self._latest() is None:
            self._create()
        spark, reach = self.log.spark, self.reach
        begin = {(self.topic, p): first for p, (first, _) in part.items()}
        end = {(self.topic, p): last for p, (_, last) in part.items()}
        rows = read(spark, cluster, begin, end).selectExpr(f"{literal(self.topic_id)} AS topic_id", *_COLUMNS)
        made = self.log.append(
            rows, line=LINE, number=reach.appends + 1, since=reach.version, also=reach.lines(self.topic_id, part),
            note=f"archive {self.topic}: {', '.join(f'{p}: {first} to {last}' for p, (first, last) in sorted(part.items()))}",
            point="archive",
        )  # fmt: skip
        self.reach, self._newest = reach.with_appended(made.version, part), (dict(part), made)
        failpoints.hit("archive.after_commit")

    def _latest(self) -> Snapshot | None:
        """Pin the newest version, of which its transactions tell what is there."""
        snapshot = self.log.latest()
        if snapshot is not None:
            refuse_changed(self.log, snapshot)
        return snapshot

    def _create(self) -> None:
        columns = [f"{quote(name)} {kind}" for name, kind in (c.strip().split(" ", 1) for c in _DDL)]
        properties = {
            "delta.appendOnly": "true", "delta.checkpointInterval": "100", "delta.dataSkippingStatsColumns": "partition,offset,timestamp",
            "delta.logRetentionDuration": interval(READERS), "watertable.format": str(FORMAT),
        }  # fmt: skip
        self.log.create(columns, properties, ("topic_id",))


_DDL: Final = ("topic_id STRING", *RECORDS.split(", ", 6))


class Archives:
    """Read an app's topics as one offset space: those that are archived through their archives, the others from Kafka."""

    def __init__(self, spark: SparkSession, warehouse: str, topics: Iterable[str]) -> None:
        self._of = {topic: Archive(spark, warehouse, topic) for topic in topics}

    def __iter__(self) -> Iterator[Archive]:
        """Give those that are there."""
        return (archive for archive in self._of.values() if archive.log.exists())

    def look(self, ids: Mapping[str, str]) -> Self:
        """Find how far the archives of these topics reach, of the topics as they are now."""
        for topic, topic_id in ids.items():
            if topic in self._of:
                self._of[topic].look(topic_id)
        return self

    def earliest(self, first: Offsets) -> dict[Partition, int]:
        """Give the offsets from which on all is to be had, where Kafka has it from these on."""
        return {p: self._of[p[0]].reach.earliest(p[1], offset) if p[0] in self._of else offset for p, offset in first.items()}

    def reached(self, offsets: Offsets) -> dict[Partition, int]:
        """Give the offsets from which on Kafka is needed, by somebody who stands at these."""
        found = dict(offsets)
        for topic, number in offsets:
            if topic in self._of:
                found[topic, number] = self._of[topic].reach.upto(number, offsets[topic, number]) or offsets[topic, number]
        return found

    def keep(
        self, cluster: Cluster, begin: Offsets, end: Offsets, earliest: Callable[[Iterable[Partition]], Offsets], limit: int,
        read: Read = read_range,
    ) -> None:  # fmt: skip
        """Append to the archives what a batch needs of them; see `Archive.keep`."""
        for archive in self._of.values():
            archive.keep(cluster, begin, end, earliest, limit, read)

    def read(self, begin: Offsets, end: Offsets) -> Sequence[DataFrame]:
        """Read what a batch needs of archived topics."""
        return [frame for archive in self._of.values() if (frame := archive.read(begin, end)) is not None]

    def records(self, begin: Offsets, end: Offsets) -> Iterator[Record]:
        """Yield the records of [begin, end), of which archives hold all, to Python: partitions in turn, by the time each has come to."""
        frames = self.read(begin, end)
        if not frames:
            return
        so_far = "max(timestamp) OVER (PARTITION BY topic, partition ORDER BY offset)"
        rows = reduce(DataFrame.unionByName, frames).selectExpr("*", f"{so_far} AS so_far", "unix_millis(timestamp) AS ms")
        wanted = ("topic", "partition", "offset", "ms", "key", "value", "headers")
        ordered = rows.orderBy("so_far", "topic", "partition", "offset").select(*wanted)
        for topic, partition, offset, ms, key, value, headers in ordered.toLocalIterator(prefetchPartitions=True):
            named = tuple((name, _bytes(data)) for name, data in headers or ())
            yield Record(topic, partition, offset, stamped(ms), _bytes(key), _bytes(value), named)

    def beside(self, end: Offsets) -> dict[Partition, int]:
        """Give those of a batch's ends that are of topics without an archive."""
        return {p: offset for p, offset in end.items() if p[0] not in self._of}


def _bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


def _known(snapshot: Snapshot, path: str) -> Mapping[str, int]:
    written = int(snapshot.property("watertable.format") or 0)
    if written > FORMAT:
        raise FormatError(f"{path} has store format {written}; this release knows {FORMAT}: upgrade it")
    return snapshot.transactions(LINE)
