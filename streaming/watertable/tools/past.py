"""Read what there is of an app's topics: archives as far as they reach, then Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain
from typing import TYPE_CHECKING

from watertable.kafka.admin import Admin, Offsets, Partition, partitions_of
from watertable.kafka.config import Cluster
from watertable.kafka.reading import come_to, read_records
from watertable.records import Record

if TYPE_CHECKING:
    from watertable.store.archive import Archives


class Past:
    """Hold what there is of some topics, as one offset space: [`first`, `ends`) of each partition, in archives and in Kafka.

    An archived topic is read from its archive as far as that reaches, as its apps read it: what Kafka has compacted since is there too.
    Without `archives` (none of the topics has one) no Spark is needed. Raises `KafkaError` for topics that aren't there.
    """

    def __init__(self, cluster: Cluster, topics: Iterable[str], archives: Archives | None = None) -> None:
        kafka = Admin(cluster)
        there = kafka.states(topics)
        partitions = partitions_of(there)
        self._cluster, self._archives = cluster, archives
        self._in_kafka = kafka.earliest(partitions)
        self.ends: Mapping[Partition, int] = kafka.latest(partitions)
        self.first: Mapping[Partition, int] = self._in_kafka
        if archives is not None:
            self.first = archives.look({name: state.id for name, state in there.items()}).earliest(self._in_kafka)

    def lacking(self, begin: Offsets, end: Offsets) -> list[Partition]:
        """List the partitions of which something of [begin, end) is gone."""
        reached = self._reached(begin)
        return sorted(p for p, offset in end.items() if reached[p] < min(offset, self._in_kafka[p]))

    def records(self, begin: Offsets, end: Offsets) -> Iterator[Record]:
        """Yield the records of [begin, end), partitions in turn, by the time each has come to; raise `KafkaError` when some are lacking.

        So a record that looks a table's row up comes behind those that made the row by then, however far apart their topics are.
        """
        if self._archives is None:
            return read_records(self._cluster, begin, end)
        reached = self._reached(begin)
        middle = {p: max(begin[p], min(reached[p], offset)) for p, offset in end.items()}
        behind, beside = ({p: o for p, o in end.items() if (middle[p] > begin[p]) is archived} for archived in (True, False))
        kept = chain(self._archives.records(begin, middle), read_records(self._cluster, middle, behind))
        return merge(kept, read_records(self._cluster, middle, beside), key=come_to())

    def _reached(self, begin: Offsets) -> Offsets:
        return begin if self._archives is None else self._archives.reached(begin)
