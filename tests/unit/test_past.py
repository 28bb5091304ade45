"""What there is of topics, in archives and in Kafka, is read as one log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

import watertable as wt
from watertable.interpreter import Interpreter
from watertable.kafka.admin import Offsets
from watertable.plan.windows import EPOCH, UNTIMED
from watertable.records import Record, stamped
from watertable.tools import past as module
from watertable.tools.past import Past


def record(topic: str, offset: int, minute: int) -> Record:
    return Record(topic, 0, offset, EPOCH + timedelta(minutes=minute), None, None)


def test_an_archived_topic_and_one_that_is_not_are_read_by_the_time_that_each_has_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    sales, prices = [record("sales", n, m) for n, m in enumerate((1, 5, 3, 9))], [record("prices", n, m) for n, m in enumerate((2, 4, 8))]

    def read(_: Any, begin: Offsets, end: Offsets) -> Iterator[Record]:
        there = {"sales": sales, "prices": prices}
        return iter([r for topic, n in end for r in there[topic] if begin[topic, n] <= r.offset < end[topic, n]])

    monkeypatch.setattr(module, "read_records", read)
    past = Past.__new__(Past)
    past._cluster = cast("Any", None)
    reached = {("sales", 0): 2, ("prices", 0): 0}
    past._archives = cast("Any", SimpleNamespace(records=lambda begin, end: read(None, begin, end), reached=lambda _: reached))
    found = past.records({("sales", 0): 0, ("prices", 0): 0}, {("sales", 0): 4, ("prices", 0): 3})
    assert [(r.topic, r.offset) for r in found] == [
        ("sales", 0), ("prices", 0), ("prices", 1), ("sales", 1), ("sales", 2), ("prices", 2), ("sales", 3),
    ]  # fmt: skip


@pytest.mark.parametrize("milliseconds", [1_709_287_200_000_000, 1_709_287_200_000_000_000, 2**63 - 1, -(2**63), -(10**14)])
def test_a_timestamp_for_which_python_has_no_time_is_refused_as_an_event_time_and_goes_unseen_beside_one(milliseconds: int) -> None:
    """As a producer writes it that counts in microseconds, or in nanoseconds; or one whose clock is unset, below zero."""
    for timestamp in (None, "at"):
        app = wt.App("shop")
        sales = app.topic("sales", key="k STRING", value="at TIMESTAMP", timestamp=timestamp).stream()
        sales.group_by_key().agg(n=wt.count()).materialized_as("sold")
        engine = Interpreter(app.topology())
        engine.read([Record("sales", 0, 0, stamped(milliseconds), b"a", b'{"at": "2024-03-01T10:00:00Z"}')])
        assert [refused.reason for refused in engine.quarantine] == ([] if timestamp else [UNTIMED])
        assert len(engine.tables["sold"]) == (1 if timestamp else 0)
