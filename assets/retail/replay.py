"""Turn the shop's year of invoice lines into the records of its topics, in an order that is known beforehand to the last offset.

A `Schedule` is a function of the Parquet file, the number of partitions and a seed, and of nothing else: what is sent to each
partition, in which order, is fixed before the first record goes out. So an interrupted replay continues from the topics' end
offsets without a duplicate, and which lines are late is computed here, apart from the engine that will have to drop them.

- **Sales** go to partition crc32(stock code) mod n, at their invoice time, except for two seeded choices. *Shuffled* lines (2 %) are
  sent 1 to 9 minutes after their time, so out of order and never late: the smallest grace is 10 minutes. *Held* lines (0.2 %) are
  sent just after the first line of their own partition that moved stream time past the end of their hour and its grace.
  A replay of the first so many days is the beginning of the whole one: what is sent later is left out.
- **Receipts** aren't in the data. The rule, for products (codes that begin with five digits): stock is counted from zero, sales in
  order of their time. A first delivery comes at six in the morning of the product's first sale. When a sale leaves less than 20 on
  hand and nothing is on order, an order is placed, and arrives at six in the morning 1 to 5 days later (seeded). A delivery is four
  weeks of the product's mean demand in the file, at least 48, and what is missing below zero when ordered; in whole dozens.
"""

from __future__ import annotations

import csv
import heapq
import json
import random
import re
import zlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from watertable.kafka.admin import Partition
from watertable.kafka.feed import Record

if TYPE_CHECKING:
    import pyarrow as pa

SOURCE: Final = Path(__file__).with_name("online-retail.parquet")
SALES: Final = "sales"
RECEIPTS: Final = "receipts"
PARTITIONS: Final = 4
SEED: Final = 2011

HELD: Final = 0.002
SHUFFLED: Final = 0.02
SHUFFLED_MINUTES: Final = (1, 9)
HOUR: Final = timedelta(hours=1)
GRACE: Final = timedelta(minutes=10)

REORDER_POINT: Final = 20
WEEKS: Final = 4
LEAST_DELIVERY: Final = 48
DOZEN: Final = 12
LEAD_DAYS: Final = (1, 5)

_PRODUCT: Final = re.compile(r"\d{5}")
_MINUTE: Final = 60
_DAY: Final = 86_400
_MORNING: Final = 6 * 3600
_CHUNK: Final = 20_000


@dataclass(frozen=True, slots=True)
class Receipt:
    """Say what arrives in the store-room, and when (seconds since 1970)."""

    stock_code: str
    quantity: int
    at: int


@dataclass(frozen=True, slots=True)
class Moved:
    """List a line that isn't sent at its time: where it lands, when, and why it was moved ("held" or "shuffled")."""

    line: int
    kind: str
    partition: int
    offset: int
    invoiced_at: datetime
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class Late:
    """List a line that comes too late for a window: where it lies in the topic, and what the window will lack."""

    line: int
    partition: int
    offset: int
    window_start: datetime
    window_end: datetime
    country: str
    quantity: int
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Schedule:
    """Hold all records of both topics in the order in which they are sent; make one with `Schedule.of`.

    `sent`, `topic`, `row`, `partition` and `offset` run in parallel, one entry a record: when it is sent (seconds since 1970), 0 for a
    sale and 1 for a receipt, which line or receipt, and its place in the topic.
    """

    lines: pa.Table
    receipts: Sequence[Receipt]
    partitions: int
    sent: array[int]
    topic: bytearray
    row: array[int]
    partition: bytearray
    offset: array[int]
    moved: Sequence[Moved]

    @classmethod
    def of(cls, lines: pa.Table, *, days: int | None = None, partitions: int = PARTITIONS, seed: int = SEED) -> Schedule:
        """Plan a replay of invoice lines, which stand in order of time; with `days`, of what is sent in the first so many days."""
        codes, times, quantities = _codes(lines), _times(lines), lines["Quantity"].to_pylist()
        places = [zlib.crc32(code.encode()) % partitions for code in codes]
        sending = _sending(times, places, partitions, seed)
        receipts = _receipts(codes, times, quantities, seed)
        entries = [(sent, after, 0, line) for line, (sent, after) in enumerate(sending)]
        entries += [(receipt.at, 0, 1, number) for number, receipt in enumerate(receipts)]
        entries.sort()
        if days is not None and entries:
            end = entries[0][0] // _DAY * _DAY + days * _DAY
            entries = entries[: bisect_left(entries, (end,))]
        sent, row, offset = array("q"), array("i"), array("i")
        topic, partition = bytearray(), bytearray()
        ends: Counter[tuple[int, int]] = Counter()
        moved: list[Moved] = []
        for when, after, kind, number in entries:
            place = places[number] if kind == 0 else zlib.crc32(receipts[number].stock_code.encode()) % partitions
            sent.append(when)
            topic.append(kind)
            row.append(number)
            partition.append(place)
            offset.append(ends[kind, place])
            if after:
                reason = "held" if after == _AFTER_HELD else "shuffled"
                moved.append(Moved(number, reason, place, ends[kind, place], _time(times[number]), _time(when)))
            ends[kind, place] += 1
        return cls(lines, receipts, partitions, sent, topic, row, partition, offset, tuple(moved))

    def __len__(self) -> int:
        return len(self.row)

    @property
    def sold(self) -> list[int]:
        """List the invoice lines that are sent, in the order of sending."""
        return [row for topic, row in zip(self.topic, self.row, strict=True) if topic == 0]

    @property
    def received(self) -> list[Receipt]:
        """List the receipts that are sent."""
        return [self.receipts[row] for topic, row in zip(self.topic, self.row, strict=True) if topic == 1]

    @property
    def topics(self) -> Mapping[str, int]:
        """Name the topics and their numbers of partitions."""
        return {SALES: self.partitions, RECEIPTS: self.partitions}

    @property
    def ends(self) -> Mapping[Partition, int]:
        """Give the end offset of each partition once everything is sent."""
        ends = {(topic, number): 0 for topic in (SALES, RECEIPTS) for number in range(self.partitions)}
        for topic, partition, offset in zip(self.topic, self.partition, self.offset, strict=True):
            ends[SALES if topic == 0 else RECEIPTS, partition] = offset + 1
        return ends

    def records(self, ends: Mapping[Partition, int] | None = None) -> Iterator[Record]:
        """Yield the records that lie at or after the given end offsets, in the order of sending; all without any."""
        since = [[(ends or {}).get((name, number), 0) for number in range(self.partitions)] for name in (SALES, RECEIPTS)]
        rest = [i for i in range(len(self)) if self.offset[i] >= since[self.topic[i]][self.partition[i]]]
        for start in range(0, len(rest), _CHUNK):
            yield from self._written(rest[start : start + _CHUNK])

    def last(self, ends: Mapping[Partition, int]) -> Iterator[Record]:
        """Yield the last record of each partition that has come as far as these end offsets, to compare with what is there."""
        wanted = {(topic, number, end - 1) for (topic, number), end in ends.items() if end > 0}
        for i in range(len(self)):
            topic = SALES if self.topic[i] == 0 else RECEIPTS
            if (topic, self.partition[i], self.offset[i]) in wanted:
                yield from self._written([i])

    def late(self, *, size: timedelta, grace: timedelta, advance: timedelta | None = None) -> Iterator[Late]:
        """Yield the lines that come too late, one for each window that has closed for them, in order of sending.

        The law: a line is late for the window that ends at `end` if `end + grace <= stream time`, where stream time is the greatest
        invoice time in its partition up to and including the line itself.
        """
        step = int((advance or size).total_seconds())
        width, slack = int(size.total_seconds()), int(grace.total_seconds())
        times = _times(self.lines)
        stream_time = [0] * self.partitions
        for topic, line, partition, offset in zip(self.topic, self.row, self.partition, self.offset, strict=True):
            if topic == 1:
                continue
            time = times[line]
            now = stream_time[partition] = max(stream_time[partition], time)
            first = time - time % step - (width // step) * step
            while first + width <= time:  # the first window that holds the line
                first += step
            for start in range(first, time + 1, step):
                if start + width + slack <= now:
                    found = self.lines.slice(line, 1).to_pylist()[0]
                    quantity = found["Quantity"]
                    amount = quantity * found["UnitPrice"]
                    yield Late(line, partition, offset, _time(start), _time(start + width), found["Country"], quantity, amount)

    def _written(self, chosen: Sequence[int]) -> Iterator[Record]:
        sales = _encode(self.lines, [self.row[i] for i in chosen if self.topic[i] == 0])
        for i in chosen:
            key, value = next(sales) if self.topic[i] == 0 else _encode_receipt(self.receipts[self.row[i]])
            topic = SALES if self.topic[i] == 0 else RECEIPTS
            yield Record(topic, self.partition[i], self.offset[i], key, value, _time(self.sent[i]))


def load(source: Path = SOURCE) -> pa.Table:
    """Read the invoice lines."""
    import pyarrow.parquet as pq

    return pq.read_table(source)


def write_moved(schedule: Schedule, file: Path) -> None:
    """Write the list of moved lines as CSV."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["line", "kind", "partition", "offset", "invoiced_at", "sent_at"])
        for m in schedule.moved:
            writer.writerow([m.line, m.kind, m.partition, m.offset, f"{m.invoiced_at:%Y-%m-%dT%H:%MZ}", f"{m.sent_at:%Y-%m-%dT%H:%MZ}"])


def schedule(days: int | None = None) -> Schedule:
    """Plan the demo's replay: all of the file, or its first so many days."""
    return Schedule.of(load(), days=days)


# ---------------------------------------------------------------------------------------------------------------- when it's sent

_AFTER_SHUFFLED: Final = 1  # at equal times, what is moved comes after what isn't
_AFTER_HELD: Final = 2


def _sending(times: Sequence[int], places: Sequence[int], partitions: int, seed: int) -> list[tuple[int, int]]:
    """Choose, for each line, when it is sent and its rank among what is sent at the same time."""
    chance = random.Random(seed)
    draws = [(chance.random(), chance.randint(*SHUFFLED_MINUTES)) for _ in times]  # two a line, whatever is chosen before it
    punctual: list[list[int]] = [[] for _ in range(partitions)]
    for time, place, (draw, _) in zip(times, places, draws, strict=True):
        if draw >= HELD + SHUFFLED:
            punctual[place].append(time)
    hour, grace = int(HOUR.total_seconds()), int(GRACE.total_seconds())
    sending: list[tuple[int, int]] = []
    for time, place, (draw, minutes) in zip(times, places, draws, strict=True):
        if draw < HELD:
            deadline = time - time % hour + hour + grace
            passed = bisect_left(punctual[place], deadline)
            on_time = passed == len(punctual[place])  # nothing comes after it that could make it late
            sending.append((time, 0) if on_time else (punctual[place][passed], _AFTER_HELD))
        elif draw < HELD + SHUFFLED:
            sending.append((time + minutes * _MINUTE, _AFTER_SHUFFLED))
        else:
            sending.append((time, 0))
    return sending


def _receipts(codes: Sequence[str], times: Sequence[int], quantities: Sequence[int], seed: int) -> list[Receipt]:
    """Make the deliveries that the shop's sales would have needed, by the rule above, in order of time."""
    if not times:
        return []
    chance = random.Random(seed + 1)
    weeks = max(1.0, (times[-1] - times[0]) / (7 * _DAY))
    demand: Counter[str] = Counter()
    for code, quantity in zip(codes, quantities, strict=True):
        demand[code] += max(0, quantity)
    usual = {code: _dozens(max(LEAST_DELIVERY, WEEKS * sold / weeks)) for code, sold in demand.items() if _PRODUCT.match(code)}
    stock: Counter[str] = Counter()
    ordered: set[str] = set()
    underway: list[tuple[int, str, int]] = []
    made: list[Receipt] = []
    for code, time, quantity in zip(codes, times, quantities, strict=True):
        while underway and underway[0][0] <= time:
            at, arrived, number = heapq.heappop(underway)
            stock[arrived] += number
            ordered.discard(arrived)
        if code not in usual:
            continue
        if code not in stock:
            made.append(Receipt(code, usual[code], time - time % _DAY + _MORNING))
            stock[code] = usual[code]
        stock[code] -= quantity
        if stock[code] < REORDER_POINT and code not in ordered:
            at = time - time % _DAY + chance.randint(*LEAD_DAYS) * _DAY + _MORNING
            number = usual[code] + _dozens(max(0, -stock[code]))
            heapq.heappush(underway, (at, code, number))
            ordered.add(code)
            made.append(Receipt(code, number, at))
    return sorted((r for r in made if r.at <= times[-1]), key=lambda r: (r.at, r.stock_code))


def _dozens(number: float) -> int:
    return -(-int(number) // DOZEN) * DOZEN


# ---------------------------------------------------------------------------------------------------------------- how it's written


def _encode(lines: pa.Table, rows: Sequence[int]) -> Iterator[tuple[bytes, bytes]]:
    """Write invoice lines as the key and JSON value of records; the time of day is taken as UTC, the price keeps its three decimals."""
    chunk = lines.take(rows)
    names = ("InvoiceNo", "StockCode", "Description", "Quantity", "UnitPrice", "CustomerID", "Country")
    columns = [chunk[name].to_pylist() for name in names]
    text = json.dumps
    for row, time, (invoice, code, description, quantity, price, customer, country) in zip(
        rows, _times(chunk), zip(*columns, strict=True), strict=True
    ):
        value = (
            f'{{"line": {row}, "invoice_no": {text(invoice)}, "stock_code": {text(code)}, "description": {text(description)}, '
            f'"quantity": {quantity}, "invoiced_at": "{_time(time):%Y-%m-%dT%H:%M:%SZ}", "unit_price": {price:f}, '
            f'"customer_id": {text(customer)}, "country": {text(country)}}}'
        )
        yield code.encode(), value.encode()


def _encode_receipt(receipt: Receipt) -> tuple[bytes, bytes]:
    value = {"stock_code": receipt.stock_code, "quantity": receipt.quantity, "received_at": f"{_time(receipt.at):%Y-%m-%dT%H:%M:%SZ}"}
    return receipt.stock_code.encode(), json.dumps(value).encode()


def _codes(lines: pa.Table) -> list[str]:
    column = lines["StockCode"].combine_chunks().dictionary_encode()
    words = column.dictionary.to_pylist()  # one string object a code, not a line
    return [words[i] for i in column.indices.to_pylist()]


def _times(lines: pa.Table) -> list[int]:
    import pyarrow as pa

    return [t // 1_000_000 for t in lines["InvoiceDate"].cast(pa.int64()).to_pylist()]


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
