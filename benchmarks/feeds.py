"""Make the topics of the operators that run beside Kafka Streams, and work out in plain Python what each must give over them.

As in `workload`, a record is a hash of its number. Records have times of their own, spread over hours. The first part of a topic is its
history: a contender has worked it off, and holds its tables, before the clock starts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, Self

import numpy as np

from benchmarks.workload import CHUNK, Answer, Line, draw, send
from watertable.kafka.config import Cluster

OPERATORS: Final = ("windowed_count", "sessions", "table_join", "stream_table_join", "foreign_join", "regrouped")
FIELDS: Final = "amount BIGINT, other STRING"
"""The schema of a value. `other` names a row of another table, or a group."""
MINUTE: Final = 60_000
HOUR: Final = 60 * MINUTE
WINDOW, GRACE, GAP = HOUR, 5 * MINUTE, 15 * MINUTE
"""Milliseconds: of a tumbling window, of what may come late, and between sessions."""
_BEGIN: Final = 472_222 * HOUR
_LATE: Final = 2 * HOUR
_SETTLED: Final = 1_000
"""Records after which a partition has had one: Kafka Streams forgets its stream time when it starts, so none is late before."""


class Row(NamedTuple):
    """Hold a record as the operators see it; one that is `late` is so for its window, whatever the partition."""

    key: str
    amount: int
    other: str
    time: int
    deleted: bool
    late: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Describe a topic: `records` in all, `history` of them before the clock starts, with keys and others drawn uniformly.

    Of 100 records, `deleting` delete, and `straying` are too late for their window. With `jitter`, times come out of order, by less than
    the grace.
    """

    topic: str
    seed: int
    history: int
    records: int
    keys: int
    others: int = 1
    begin: int = _BEGIN
    span: int = 6 * HOUR
    jitter: bool = False
    deleting: int = 0
    straying: int = 0

    def rows(self) -> Iterator[Row]:
        """Yield the records."""
        for start in range(0, self.records, CHUNK):
            n = np.arange(start, min(start + CHUNK, self.records), dtype=np.uint64)
            keys, amounts = draw(n + np.uint64(self.seed << 32), self.keys)
            others, marks = draw(n + np.uint64(self.seed + 64 << 32), self.others)
            times = self.begin + (n * np.uint64(self.span) // np.uint64(self.records)).astype(np.int64)
            if self.jitter:
                times -= marks.astype(np.int64) * (GRACE // 101)
            late = (amounts <= self.straying) & (n >= np.uint64(self.history + _SETTLED))
            times -= np.where(late, _LATE, 0)
            columns = (keys, amounts, others, times, marks <= self.deleting, late)
            for key, amount, other, time, deleted, is_late in zip(*(c.tolist() for c in columns), strict=True):
                yield Row(f"item-{key:07d}", amount, f"item-{other:07d}", time, deleted, is_late)

    def lines(self) -> Iterator[Line]:
        """Yield the records as they are sent, placed by Kafka's own partitioner."""
        for row in self.rows():
            value = None if row.deleted else f'{{"amount": {row.amount}, "other": "{row.other}"}}'.encode()
            yield -1, row.key.encode(), value, row.time


@dataclass(frozen=True, slots=True)
class Trial:
    """Put an operator to its feeds."""

    operator: str
    feeds: tuple[Feed, ...]

    @classmethod
    def of(cls, operator: str, history: int, records: int, runner: str = "") -> Self:
        """Divide a history and so many records more among the topics that an operator reads; topics have their reader in their name."""
        keys = max(20, (history + records) // 20)

        def feed(name: str, seed: int, share: float = 1.0, **more: Any) -> Feed:
            topic = "_".join(filter(None, (operator, name, runner)))
            part = {"history": int(history * share), "records": int(history * share) + int(records * share), "keys": keys}
            return Feed(**{"topic": topic, "seed": seed} | part | more)

        match operator:
            case "windowed_count":
                return cls(operator, (feed("events", 1, jitter=True, straying=1),))
            case "sessions":
                return cls(operator, (feed("events", 2, jitter=True),))
            case "table_join":  # only one side deletes: where both rows go between two commits, Kafka Streams keeps the row that joins them
                return cls(operator, (feed("left", 3, 0.5, deleting=2), feed("right", 4, 0.5)))
            case "stream_table_join":  # the table is all history, and older than any record: what a record finds follows from no one's pace
                prices = feed("prices", 5, begin=_BEGIN - HOUR, span=HOUR, deleting=2, history=2 * keys, records=2 * keys)
                return cls(operator, (feed("sales", 6), prices))
            case "foreign_join":
                products = keys // 10
                orders = feed("orders", 7, 0.9, others=products, deleting=2)
                return cls(operator, (orders, feed("products", 8, 0.1, keys=products)))
            case "regrouped":
                return cls(operator, (feed("items", 9, others=keys // 10, deleting=2),))
            case _:
                raise ValueError(f"no operator {operator!r}; there are {', '.join(OPERATORS)}")

    @property
    def measured(self) -> int:
        """Count the records that come after the histories."""
        return sum(feed.records - feed.history for feed in self.feeds)

    def produce_history(self, cluster: Cluster) -> None:
        """Make the topics, with what is read before the clock starts."""
        for feed in self.feeds:
            send(cluster, feed.topic, islice(feed.lines(), feed.history), feed.history)

    def produce_rest(self, cluster: Cluster) -> None:
        """Send what is measured."""
        for feed in self.feeds:
            send(cluster, feed.topic, islice(feed.lines(), feed.history, None), feed.records)

    @property
    def answer(self) -> Answer:
        """Work out the result's rows: how many, the sum of their `n`, and that of `n * total`, which a sum in the wrong row changes."""
        found = list(self._results())
        return Answer(keys=len(found), records=sum(n for n, _ in found), amount=sum(n * total for n, total in found))

    def _results(self) -> Iterable[tuple[int, int]]:
        first, *others = self.feeds
        match self.operator:
            case "windowed_count":
                return _totals(((row.key, row.time // WINDOW), row.amount) for row in first.rows() if not row.late)
            case "sessions":
                return _totals(_sessions(first.rows()))
            case "regrouped":
                return _totals((row.other, row.amount) for row in _table(first).values())
            case "stream_table_join":
                prices = _table(others[0])
                return _totals((row.key, row.amount * prices[row.key].amount) for row in first.rows() if row.key in prices)
            case "table_join":
                left, right = _table(first), _table(others[0])
                return [(row.amount, row.amount * right[key].amount) for key, row in left.items() if key in right]
            case _:
                orders, products = _table(first), _table(others[0])
                return [(row.amount, row.amount * products[row.other].amount) for row in orders.values() if row.other in products]


def _table(feed: Feed) -> dict[str, Row]:
    """Keep the last row of each key that isn't deleted."""
    last = {row.key: row for row in feed.rows()}
    return {key: row for key, row in last.items() if not row.deleted}


def _totals(amounts: Iterable[tuple[Hashable, int]]) -> Iterable[tuple[int, int]]:
    """Count and sum by group."""
    found: dict[Hashable, tuple[int, int]] = {}
    for group, amount in amounts:
        n, total = found.get(group, (0, 0))
        found[group] = (n + 1, total + amount)
    return found.values()


def _sessions(rows: Iterable[Row]) -> Iterator[tuple[Hashable, int]]:
    """Say of each amount which session it is of: a record that comes within the gap after another one of its key is in that one's."""
    before, start = "", 0
    last = 0
    for row in sorted(rows, key=lambda row: (row.key, row.time)):
        if row.key != before or row.time - last > GAP:
            before, start = row.key, row.time
        last = row.time
        yield (row.key, start), row.amount
