"""The two engines agree, row for row: random topologies, random records, random cuts between batches.

Spark takes a second where the interpreter takes a millisecond, so all plans are drawn first and run side by side. If one differs, it
is drawn again (same seed) and Hypothesis makes it small. `WATERTABLE_PLANS` and `WATERTABLE_SEED` choose how many and which,
`WATERTABLE_PLAN_STEPS` how large. What they reach is held to its floors by the first 300 of the seed, however few of them Spark runs.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase

from tests.proofs import EVERY, parts_of
from tests.properties.engines import partitions_of, run_compiler, run_interpreter, tiny
from tests.properties.strategies import Case, covering, drawn, each
from watertable.plan.nodes import ForeignJoin, TableAggregate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLANS = int(os.environ.get("WATERTABLE_PLANS", "300"))
SEED = int(os.environ.get("WATERTABLE_SEED", "20240301"))
FLOOR = 0.20
ENOUGH = 300


def hits(case: Case) -> dict[str, bool]:
    """Say what a case really reaches, not what it might have."""
    from watertable.interpreter import Interpreter

    engine = Interpreter(case.topology, partitions=partitions_of(case.batches))
    for batch in case.batches:
        engine.read(batch)
    return {
        "late": any(d.reason == "late" for d in engine.dropped),
        "tombstone": any(r.value is None and r.key is not None for r in case.records),
        "null": any(d.reason in ("null_key", "null_value") for d in engine.dropped)
        or any(value is None for rows in engine.tables.values() for row in rows.values() for value in row.values()),
        "several partitions": len({r.partition for r in case.records}) > 1,
        "3 cuts or more": len(case.cuts) >= 3,
        "quarantine": bool(engine.quarantine),
        "changes of a table": any(engine.changes.values()),
        "rows of a group come and go": any(
            isinstance(t.root, TableAggregate) and any(state["__rows"] == 0 for state in engine.states[t.name].values())
            for t in case.topology.tables
        ),
        "sessions": any(t.sessions and rows for t, rows in zip(case.topology.tables, engine.tables.values(), strict=True)),
        "sliding windows": any(t.sliding and rows for t, rows in zip(case.topology.tables, engine.tables.values(), strict=True)),
        "changes of sliding windows": any(t.sliding and engine.changes.get(t.name) for t in case.topology.tables),
        "rows beside those they name": any(
            isinstance(t.root, ForeignJoin) and rows for t, rows in zip(case.topology.tables, engine.tables.values(), strict=True)
        ),
        "final rows": any(record.partition == -1 for record in engine.buffered.values()),
        "outputs": bool(engine.outputs),
        "rows": any(engine.tables.values()),
    }


def differences(spark: SparkSession, case: Case) -> str:
    wanted = run_interpreter(case.topology, case.batches)
    try:
        return "\n".join(wanted.differences(run_compiler(spark, case)))
    except Exception as error:  # a plan that Spark refuses is a difference like any other
        return f"{type(error).__name__}: {error}"


@pytest.mark.spark
def test_the_compiler_computes_what_the_interpreter_does(spark: SparkSession, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    session = tiny(spark)
    plans = drawn(PLANS, SEED)
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        verdicts = dict(zip(map(repr, plans), pool.map(lambda case: differences(session, case), plans), strict=True))
    differing = sum(map(bool, verdicts.values()))
    say(f"{len(plans)} random plans (seed {SEED}), {differing} differ, {time.monotonic() - started:.0f} s")
    if differing:

        def judge(case: Case) -> None:
            if repr(case) not in verdicts:
                verdicts[repr(case)] = differences(session, case)
            assert not verdicts[repr(case)], f"interpreter, then compiler:\n{verdicts[repr(case)]}\n{case}"

        for first in range(SEED, SEED + PLANS):
            each(judge, first, Phase.shrink)
        pytest.fail(f"{differing} plans differ, but not when drawn again with seed {SEED}")
    assert len(plans) >= PLANS


def test_random_plans_reach_what_is_hard_and_draw_every_operator_window_and_aggregate(say: Callable[[str], None]) -> None:
    plans = drawn(max(ENOUGH, PLANS), SEED)
    reached = Counter(name for case in plans for name, hit in hits(case).items() if hit)
    say(f"{len(plans)} random plans reach: " + ", ".join(f"{name} {count / len(plans):.0%}" for name, count in reached.most_common()))
    met = Counter(name for case in plans for name in parts_of(case.topology))
    say("operators, windows and aggregates, by the plans that have them: " + ", ".join(f"{name} {n}" for name, n in sorted(met.items())))
    for name in ("late", "tombstone", "null", "several partitions", "3 cuts or more"):
        assert reached[name] >= FLOOR * len(plans), (
            f"only {reached[name]} of {len(plans)} plans reach {name!r}: the strategies have gone soft"
        )
    assert EVERY - set(met) == set(), "what no random plan draws has no proof that engines and cuts agree on it"


@pytest.mark.slow
@pytest.mark.spark
def test_every_operator_window_and_aggregate_is_right_with_the_whole_log_as_one_batch(spark: SparkSession) -> None:
    session = tiny(spark)
    for case in covering(drawn(ENOUGH, SEED)):
        for cuts in ((), case.cuts or (len(case.records) // 2,)):
            cut = replace(case, cuts=cuts)
            assert not (found := differences(session, cut)), f"interpreter, then compiler:\n{found}\n{cut}"
