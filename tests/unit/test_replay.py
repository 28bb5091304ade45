"""Hold the retail replayer to its word: a schedule known beforehand, lines late by the law, deliveries by the stated rule."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from tests.apps import retail_module

HOUR, DAY, GRACE = timedelta(hours=1), timedelta(days=1), timedelta(minutes=10)


@pytest.fixture(scope="module")
def replay() -> ModuleType:
    return retail_module("replay")


@pytest.fixture(scope="module")
def fortnight(replay: ModuleType) -> Any:
    """Plan the first fourteen days: some 25,000 lines."""
    return replay.Schedule.of(beginning(replay), days=14)


def beginning(replay: ModuleType) -> Any:
    """Give the first lines of the real file: some four weeks."""
    return replay.load().slice(0, 45_000)


def lines(*rows: tuple[str, str, int]) -> pa.Table:
    """Make invoice lines of (time, stock code, quantity)."""
    return pa.table(
        {
            "InvoiceNo": [f"5{n:05}" for n in range(len(rows))],
            "StockCode": [code for _, code, _ in rows],
            "Description": ["A THING" for _ in rows],
            "Quantity": pa.array([quantity for _, _, quantity in rows], pa.int32()),
            "InvoiceDate": pa.array([datetime.fromisoformat(time) for time, _, _ in rows], pa.timestamp("us")),
            "UnitPrice": pa.array([Decimal("1.250") for _ in rows], pa.decimal128(12, 3)),
            "CustomerID": pa.array([None for _ in rows], pa.int32()),
            "Country": ["France" for _ in rows],
        }
    )


def test_each_partition_gets_dense_offsets_in_the_order_of_sending(fortnight: Any) -> None:
    seen: dict[tuple[str, int], int] = defaultdict(int)
    last = datetime.min.replace(tzinfo=UTC)
    for record in fortnight.records():
        assert record.offset == seen[record.topic, record.partition]
        assert record.at >= last
        seen[record.topic, record.partition] += 1
        last = record.at
    assert dict(seen) == fortnight.ends
    assert sum(seen.values()) == len(fortnight)


def test_a_schedule_depends_on_lines_partitions_and_seed_alone(replay: ModuleType, fortnight: Any) -> None:
    again = replay.Schedule.of(beginning(replay), days=14)
    assert list(again.records()) == list(fortnight.records())
    other = replay.Schedule.of(beginning(replay), days=14, seed=7)
    assert [m.line for m in other.moved] != [m.line for m in fortnight.moved]


def test_every_line_is_sent_once_with_the_values_of_its_row(replay: ModuleType, fortnight: Any) -> None:
    rows = beginning(replay).to_pylist()
    sent = [json.loads(r.value, parse_float=Decimal) for r in fortnight.records() if r.topic == "sales"]
    assert len({s["line"] for s in sent}) == len(sent) == len(fortnight.sold) > 20_000
    for value in sent:
        row = rows[value["line"]]
        assert value == {
            "line": value["line"],
            "invoice_no": row["InvoiceNo"],
            "stock_code": row["StockCode"],
            "description": row["Description"],
            "quantity": row["Quantity"],
            "invoiced_at": f"{row['InvoiceDate']:%Y-%m-%dT%H:%M:%SZ}",
            "unit_price": row["UnitPrice"],
            "customer_id": row["CustomerID"],
            "country": row["Country"],
        }


def test_all_records_of_a_product_lie_in_one_partition(fortnight: Any) -> None:
    where: dict[bytes, set[int]] = defaultdict(set)
    for record in fortnight.records():
        where[record.key].add(record.partition)
    assert all(len(partitions) == 1 for partitions in where.values())
    assert {p for partitions in where.values() for p in partitions} == {0, 1, 2, 3}


def test_a_replay_continues_at_any_end_offsets(fortnight: Any) -> None:
    whole = list(fortnight.records())
    done = whole[: len(whole) // 3]
    ends = dict.fromkeys(fortnight.ends, 0) | {(r.topic, r.partition): r.offset + 1 for r in done}
    assert list(fortnight.records(ends)) == whole[len(done) :]
    assert set(fortnight.last(ends)) == {r for r in done if r.offset == ends[r.topic, r.partition] - 1}
    assert list(fortnight.records(fortnight.ends)) == []


def test_some_days_are_the_beginning_of_the_whole(replay: ModuleType, fortnight: Any) -> None:
    week = replay.Schedule.of(beginning(replay), days=7)
    whole = list(fortnight.records())
    assert list(week.records()) == whole[: len(week)]
    assert 5_000 < len(week) < len(whole)
    assert whole[len(week) - 1].at < datetime(2010, 12, 8, tzinfo=UTC) <= whole[len(week)].at


def test_the_late_lines_are_exactly_the_held_ones(fortnight: Any) -> None:
    late = list(fortnight.late(size=HOUR, grace=GRACE))
    held = {(m.line, m.partition, m.offset) for m in fortnight.moved if m.kind == "held"}
    assert {(x.line, x.partition, x.offset) for x in late} == held
    assert 20 < len(late) < 100


def test_shuffled_lines_are_out_of_order_and_never_late(fortnight: Any) -> None:
    shuffled = {m.line for m in fortnight.moved if m.kind == "shuffled"}
    assert shuffled.isdisjoint(x.line for x in fortnight.late(size=HOUR, grace=GRACE))
    stream_time: dict[int, str] = defaultdict(str)
    behind = set()
    for record in fortnight.records():
        if record.topic == "sales":
            value = json.loads(record.value)
            if value["invoiced_at"] < stream_time[record.partition]:
                behind.add(value["line"])
            stream_time[record.partition] = max(stream_time[record.partition], value["invoiced_at"])
    assert behind <= {m.line for m in fortnight.moved}
    assert len(behind & shuffled) > 100


@pytest.mark.parametrize(
    ("size", "advance", "grace"), [(HOUR, HOUR, GRACE), (DAY, HOUR, HOUR), (timedelta(minutes=25), GRACE, timedelta(0))]
)
def test_lateness_is_the_definition_taken_word_by_word(fortnight: Any, size: timedelta, advance: timedelta, grace: timedelta) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    stream_time: dict[int, datetime] = {}
    expected = set()
    for record in fortnight.records():
        if record.topic != "sales":
            continue
        value = json.loads(record.value)
        when = datetime.fromisoformat(value["invoiced_at"])
        stream_time[record.partition] = max(stream_time.get(record.partition, epoch), when)
        start = when - (when - epoch) % advance
        while start + size > when:
            if start + size + grace <= stream_time[record.partition]:
                expected.add((value["line"], record.offset, start, start + size))
            start -= advance
    found = [(x.line, x.offset, x.window_start, x.window_end) for x in fortnight.late(size=size, advance=advance, grace=grace)]
    assert set(found) == expected
    assert len(found) == len(expected) > 0


def test_the_list_of_moved_lines_can_be_written(replay: ModuleType, fortnight: Any, tmp_path: Path) -> None:
    replay.write_moved(fortnight, tmp_path / "new" / "moved.csv")
    with (tmp_path / "new" / "moved.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(int(r["line"]), r["kind"], int(r["offset"])) for r in rows] == [(m.line, m.kind, m.offset) for m in fortnight.moved]


def test_a_first_delivery_comes_on_the_morning_of_the_first_sale(replay: ModuleType) -> None:
    plan = replay.Schedule.of(lines(("2011-03-01T10:15", "10001", 1), ("2011-03-02T09:00", "10001", 1)))
    assert [(r.stock_code, r.quantity, r.at) for r in plan.receipts] == [("10001", 48, datetime(2011, 3, 1, 6, tzinfo=UTC).timestamp())]
    assert [r.topic for r in plan.records()] == ["receipts", "sales", "sales"]


def test_stock_below_the_reorder_point_brings_one_delivery_within_five_mornings(replay: ModuleType) -> None:
    sales = [
        ("2011-03-01T10:15", "10001", 28),  # 48 - 28 leaves 20: enough
        ("2011-03-01T10:16", "10001", 1),  # 19: one delivery is ordered
        ("2011-03-01T10:17", "10001", 30),  # -11, but one is on its way
        ("2011-03-15T10:00", "10001", 37),  # -11 + 48 - 37 leaves 0: the next one
        ("2011-04-26T09:00", "10002", 1),  # eight weeks in all, so four weeks' demand is 48
    ]
    first, second, third = [r for r in replay.Schedule.of(lines(*sales)).receipts if r.stock_code == "10001"]
    assert {first.quantity, second.quantity, third.quantity} == {48}
    for delivery, ordered in ((second, datetime(2011, 3, 1, tzinfo=UTC)), (third, datetime(2011, 3, 15, tzinfo=UTC))):
        days = datetime.fromtimestamp(delivery.at, UTC) - ordered
        assert days in [timedelta(days=d, hours=6) for d in range(1, 6)]


def test_a_delivery_also_brings_what_is_owed(replay: ModuleType) -> None:
    sales = [("2011-03-01T10:15", "10001", 61), ("2011-04-26T09:00", "10002", 1)]
    first, second = [r for r in replay.Schedule.of(lines(*sales)).receipts if r.stock_code == "10001"]
    assert (first.quantity, second.quantity) == (48, 48 + 24)  # 13 below zero, in dozens


def test_what_is_no_product_is_never_delivered(replay: ModuleType) -> None:
    plan = replay.Schedule.of(lines(("2011-03-01T10:15", "POST", 100), ("2011-03-02T09:00", "POST", 100)))
    assert plan.receipts == []


def test_deliveries_come_in_dozens_at_six_in_the_morning_in_order_of_time(replay: ModuleType) -> None:
    receipts = replay.Schedule.of(beginning(replay)).receipts
    assert all(r.quantity % 12 == 0 and r.quantity >= 48 for r in receipts)
    assert all(datetime.fromtimestamp(r.at, UTC).hour == 6 for r in receipts)
    assert [r.at for r in receipts] == sorted(r.at for r in receipts)
