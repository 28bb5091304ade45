"""Records without a value on a topic whose event time is in a field: both engines put them where their partition is, for any cuts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, Result, partitions_of, run_interpreter, tiny
from watertable.interpreter import Interpreter
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Advance, Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

AGES = 10**9


def _tell(record: wt.Record, context: wt.Context) -> None:
    context.forward({"at": record.timestamp, "st": record.stream_time})


def _orders() -> Topology:
    """Read the event time wherever it counts: in each kind of window, in a history, in what is published, and by a processor."""
    app = wt.App("shop")
    orders = app.topic("orders", key="k STRING", value="x INT, at TIMESTAMP", timestamp="at").stream()
    by_key, grace = orders.group_by_key(), wt.seconds(3)
    tumbling = by_key.windowed_by(wt.tumbling(seconds=10, grace=grace)).agg(n=wt.count(), x=wt.last("x")).materialized_as("tumbling")
    by_key.windowed_by(wt.sessions(gap=wt.seconds(4), grace=grace)).agg(n=wt.count()).materialized_as("sessions")
    by_key.windowed_by(wt.unlimited(start=EPOCH + timedelta(seconds=10))).agg(n=wt.count()).materialized_as("unlimited")
    tumbling.suppress(wt.until_window_closes()).materialized_as("final")
    versions = orders.to_table().materialized_as("versions", history=wt.seconds(20))
    versions.to_stream().group_by_key().windowed_by(wt.tumbling(seconds=10)).agg(n=wt.count()).materialized_as("changes")
    orders.process_values(_tell, value="at TIMESTAMP, st TIMESTAMP").to("seen")
    orders.to("out")
    return app.topology()


def _log() -> list[Record | Advance]:
    """Write records stamped ages after their event times, with tombstones everywhere: first, between late ones, refused, and advanced."""
    items: list[Record | Advance] = []
    offsets: dict[int, int] = {}

    def put(partition: int, seconds: float | None, key: str | None = "a", value: bytes | None = None) -> None:
        offset = offsets[partition] = offsets.get(partition, -1) + 1
        if seconds is not None:
            value = json.dumps({"x": offset, "at": (EPOCH + timedelta(seconds=seconds)).isoformat()}).encode()
        stamped = EPOCH + timedelta(seconds=AGES)
        items.append(Record("orders", partition, offset, stamped, None if key is None else key.encode(), value))

    put(0, None)
    put(1, None, "b", b"{")
    put(0, 7)
    put(0, 12)
    put(0, None)
    put(1, None, "b")
    put(0, 11, "c")
    put(0, None, None)
    put(0, 3, "c")
    put(1, 4, "b")
    put(0, 14)
    put(0, None, "c")
    items.append(Advance("orders", 1, 3, EPOCH + timedelta(seconds=21)))
    put(1, None, "b")
    put(1, 20, "b")
    put(0, 25)
    put(1, 31, "b")
    put(0, 29, "c")
    put(0, None, "d")
    return items


def _unordered(result: Result) -> Result:
    """Leave out the order of what is published: it is that of the records within each batch."""
    return replace(result, outputs={topic: sorted(sent, key=repr) for topic, sent in result.outputs.items()})


def _reached(topology: Topology, batches: list[list[Record | Advance]]) -> dict[tuple[str, int], datetime]:
    engine = Interpreter(topology, partitions=partitions_of(batches))
    for batch in batches:
        engine.read(batch)
    return engine.stream_times


@pytest.mark.parametrize("cuts", [(), (1, 4, 9), (3, 5, 14)])
def test_what_has_no_value_moves_no_stream_time_by_either_engine_for_any_cuts(spark: SparkSession, cuts: tuple[int, ...]) -> None:
    topology, log = _orders(), _log()
    advanced = next(n for n, item in enumerate(log) if isinstance(item, Advance))
    batches = [log[a:b] for a, b in pairwise(sorted({0, *cuts, advanced, len(log)}))]
    run = CompilerRun(tiny(spark), topology)
    found, wanted = run.run(batches), run_interpreter(topology, batches)
    assert found.differences(wanted) == []
    whole = run_interpreter(topology, [log[:advanced], log[advanced:]])
    assert _unordered(wanted).differences(_unordered(whole)) == []
    assert run.carry == _reached(topology, batches), "the stream times that a commit records"
    assert run.carry == {("orders", 0): EPOCH + timedelta(seconds=29), ("orders", 1): EPOCH + timedelta(seconds=31)}


def test_what_has_no_value_moves_no_stream_time_where_only_sums_are_kept(spark: SparkSession) -> None:
    app = wt.App("shop")
    orders = app.topic("orders", key="k STRING", value="x INT, at TIMESTAMP", timestamp="at").stream()
    orders.group_by_key().agg(n=wt.count()).materialized_as("n")
    topology, log = app.topology(), [item for item in _log() if isinstance(item, Record)]
    for batches, reached in (([log[:2]], {("orders", 0): EPOCH, ("orders", 1): None}), ([log[:5], log[5:]], None)):
        run = CompilerRun(tiny(spark), topology)
        assert run.run(batches).differences(run_interpreter(topology, batches)) == []
        assert run.carry == (reached or _reached(topology, [[*batch] for batch in batches]))
