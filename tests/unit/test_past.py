"""What there is of topics, in archives and in Kafka, is read as one log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from watertable.kafka.admin import Offsets
from watertable.plan.windows import EPOCH
from watertable.records import Record
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
