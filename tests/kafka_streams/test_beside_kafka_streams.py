"""Hold the operators to Kafka Streams itself: random plans, each run by its TopologyTestDriver and by the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suite import kafka_streams
from tests.kafka_streams.plans import LAST, OPERATORS, WINDOWS, Node, Plan
from tests.properties.engines import Result, run_interpreter
from watertable.jars import fetch
from watertable.plan.windows import EPOCH
from watertable.settings import Settings

SEED = int(os.environ.get("WATERTABLE_SEED", "1"))
PLANS = int(os.environ.get("WATERTABLE_BESIDE", "2000"))

Sent = list[list[Any]]


def milliseconds(when: Any) -> int:
    return int((when - EPOCH) / timedelta(milliseconds=1))


def rows_of(sent: Sent) -> dict[tuple[Any, ...], Any]:
    """Give the rows that a table's updates leave, by key and window."""
    rows = dict[tuple[Any, ...], Any]()
    for key, value, _, *window in sent:
        if value is None:
            rows.pop((key, *window), None)
        else:
            rows[key, *window] = value
    return rows


def without_empty_ones(sent: Sent) -> Sent:
    """Leave tombstones of rows that never were out of a table's updates."""
    left, there = Sent(), set[str]()
    for row in sent:
        if row[1] is not None or row[0] in there:
            left.append(row)
        (there.discard if row[1] is None else there.add)(row[0])
    return left


def compared(node: Node, sent: Sent, result: Result) -> tuple[Any, Any]:
    """Give what Kafka Streams says of a node and what we do, in one shape."""
    if node.name not in result.tables:
        said = result.outputs.get(node.name, [])
        ours = [[None if k is None else k.decode(), None if v is None else json.loads(v)["v"], milliseconds(t)] for k, v, t, _ in said]
        if node.op == "to_stream":  # an update's timestamp is its record's, and Kafka Streams' the greatest of its row
            return [row[:2] for row in without_empty_ones(sent)], [row[:2] for row in ours]
        return Counter(map(tuple, sent)), Counter(map(tuple, ours))
    table = result.tables[node.name].values()
    if node.op in (*WINDOWS, "final"):  # the last records' windows are still open here
        times = ("window_start", "window_end")
        found = {(row["k"], *(milliseconds(row[time]) for time in times)): row["v"] for row in table if row["k"] != LAST}
        return rows_of([row for row in sent if row[0] != LAST]), found
    theirs = rows_of(sent)
    rows = {(row["k"],): row["v"] for row in table}
    if node.op in ("table_count", "table_sum"):  # a group stays there when its last row has left it
        theirs = {key: value for key, value in theirs.items() if value or key in rows}
    return theirs, rows


@pytest.mark.slow
def test_random_plans_come_out_as_kafka_streams_has_them(tmp_path: Path) -> None:
    """WATERTABLE_BESIDE says how many, WATERTABLE_SEED which. Needs a JDK."""
    fetch("bench", "broker", mirror=Settings.load().maven_mirror)
    plans = [Plan.draw(seed) for seed in range(SEED, SEED + PLANS)]
    command = [*kafka_streams(tmp_path / "classes", "Plans", Path(__file__).parent), str(tmp_path / "state")]
    said = subprocess.run(command, input="\n".join(plan.json() for plan in plans), capture_output=True, text=True, check=False)
    lines = [line for line in said.stdout.splitlines() if line.startswith("{")]
    assert (said.returncode, len(lines)) == (0, PLANS), said.stderr[-2000:]
    drawn, wrong = Counter[str](), list[str]()
    for seed, plan, line in zip(range(SEED, SEED + PLANS), plans, lines, strict=True):
        sent, result = json.loads(line), run_interpreter(plan.topology(), [plan.read()])
        for node in plan.nodes:
            drawn[node.op] += 1
            if node.shown:
                theirs, ours = compared(node, sent[node.name], result)
                if theirs != ours:
                    wrong.append(f"plan {seed}, {node.op} {node.name} of {plan.json()}:\n    theirs {theirs}\n    ours   {ours}")
    assert not wrong, f"{len(wrong)} results differ, the first of them:\n" + "\n".join(wrong[:3])
    rare = {op: drawn[op] for op in OPERATORS if drawn[op] < PLANS / 200}
    assert not rare, f"operators that are hardly drawn: {rare}"
