"""New code that goes on with what an app has: said to be the same, it makes what it would have made from the first record on.

Each kind of table is put under what waits for records or keeps some, run for some batches, changed, and run on. It is changed in what it
watches alone, and then step by step in all ways that may change what it shows.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.properties.edits import edits
from tests.properties.engines import CompilerRun, partitions_of, tiny
from tests.properties.pairs import TABLES, batches, topology
from tests.properties.strategies import Case, drawn
from tests.properties.test_compiler_equals_interpreter import PLANS, SEED
from watertable.interpreter import Interpreter
from watertable.plan import nodes
from watertable.plan.deployment import Kind, classify
from watertable.plan.plan import Topology
from watertable.records import Advance, Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = Record | Advance
USES = ["read", "streamed", "told and streamed", "joined with its changes", "paired", "final", "as of then", "processed", "deduped"]
EDITED = ["read", "streamed"]
FEW = ["a topic's: paired", "final: read", "hopping: final", "versioned: as of then"]


def changed(table: str, use: str) -> tuple[Topology, Topology, list[str]] | None:
    """Write the app of a pair and the same one with new code, as much as goes on with its state; None for a pair that is refused."""
    old = topology(table, use)
    if not isinstance(old, Topology):
        return None
    for changes in (["watched", "wider"], ["watched"]):
        new = topology(table, use, *changes)
        assert isinstance(new, Topology), new
        if classify(old, new).kind is not Kind.BREAKING:
            return old, new, changes
    raise AssertionError(f"{table}: {use}: a peek is breaking: {classify(old, new).words}")


def watched(topology: Topology) -> Topology:
    """Put a peek behind each topic of an app."""
    made: dict[int, Any] = {}

    def of(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(of, part))
        if not isinstance(part, nodes.Node):
            return part
        if id(part) not in made:
            same = dataclasses.replace(part, **{f.name: of(getattr(part, f.name)) for f in dataclasses.fields(part)})
            made[id(part)] = nodes.Peek(parent=same, name="watched", location="") if isinstance(same, nodes.Source) else same
        return made[id(part)]

    tables = tuple(dataclasses.replace(table, node=of(table.node)) for table in topology.tables)
    return dataclasses.replace(topology, tables=tables, sinks=tuple(dataclasses.replace(s, node=of(s.node)) for s in topology.sinks))


def differences(spark: SparkSession, old: Topology, new: Topology, given: Sequence[Sequence[Item]], change: int = 2) -> str:
    """Run the old code for some batches, the new code for the others, and compare with the oracle, which has known no other.

    Every table that is said to be the same is what the new code makes of all records. What is published is what the old code makes up to
    the change, and the new one from there on.
    """
    before, after = CompilerRun(spark, old), CompilerRun(spark, new)
    before.carry |= dict.fromkeys(partitions_of(given))
    try:
        before.run(given[:change])
        after.carry |= before.carry
        after.deltas |= {name: list(changes) for name, changes in before.deltas.items() if name in after.deltas}
        after.run(given[change:])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    first, oracle = (Interpreter(code, partitions=partitions_of(given)) for code in (old, new))
    for batch in given[:change]:
        first.read(batch)
        oracle.read(batch)
    known = len(oracle.outputs)
    for batch in given[change:]:
        oracle.read(batch)
    found = []
    for name in (c.name for c in classify(old, new).of(Kind.SAME) if not c.is_topic):
        if after.result.tables[name] != oracle.tables[name]:
            found.append(f"table {name}:\n    {after.result.tables[name]}\n    {oracle.tables[name]}")
    for run, outputs in ((before, first.outputs), (after, oracle.outputs[known:])):
        made = Counter((topic, *row[:2]) for topic, rows in run.result.outputs.items() for row in rows)
        wanted = Counter((o.topic, o.key, o.value) for o in outputs)
        if made != wanted:
            found.append(f"published:\n    too many {made - wanted}\n    too few {wanted - made}")
    return "\n".join(found)


def said_of(spark: SparkSession, pairs: Mapping[str, tuple[Topology, Topology]]) -> dict[str, str]:
    """Hold pairs of codes to the law, side by side, and give what was found wrong with any."""
    session = tiny(spark)

    def of(pair: tuple[Topology, Topology]) -> str:
        return differences(session, *pair, batches({topic.name for topic in pair[1].topics}))

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        said = dict(zip(pairs, pool.map(of, pairs.values()), strict=True))
    return {name: verdict for name, verdict in said.items() if verdict}


def verdicts(spark: SparkSession, names: list[str]) -> dict[str, str]:
    """Hold each pair to the law under code that only watches."""
    found = {name: changed(*name.split(": ")) for name in names}
    chosen = {name: pair for name, pair in found.items() if pair is not None}
    assert sum("wider" in changes for _, _, changes in chosen.values()) >= len(chosen) / 2, "a column more is breaking for most"
    return said_of(spark, {name: (old, new) for name, (old, new, _) in chosen.items()})


@pytest.mark.slow
@pytest.mark.spark
def test_code_that_only_watches_goes_on_with_what_waits(spark: SparkSession) -> None:
    assert verdicts(spark, FEW) == {}


def random_verdicts(spark: SparkSession, plans: Sequence[Case]) -> dict[str, str]:
    session, chosen = tiny(spark), [case for case in plans if case.topology.buffers and len(case.batches) > 1]

    def of(case: Case) -> str:
        new = watched(case.topology)
        if words := classify(case.topology, new).words:
            return words
        return differences(session, case.topology, new, case.batches, len(case.batches) // 2)

    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        said = dict(zip(map(repr, chosen), pool.map(of, chosen), strict=True))
    assert len(said) > len(plans) / 10, "few random plans keep what waits"
    return {case: verdict for case, verdict in said.items() if verdict}


@pytest.mark.spark
def test_random_plans_go_on_with_what_waits_under_code_that_only_watches(spark: SparkSession) -> None:
    assert random_verdicts(spark, drawn(5, SEED)) == {}


@pytest.mark.slow
@pytest.mark.spark
def test_more_random_plans_go_on_under_code_that_only_watches(spark: SparkSession) -> None:
    """WATERTABLE_PLANS and WATERTABLE_SEED say how many are drawn, and which; some of them keep what waits."""
    assert random_verdicts(spark, drawn(PLANS, SEED)) == {}


@pytest.mark.slow
@pytest.mark.spark
def test_every_table_goes_on_under_code_that_is_said_to_be_the_same(spark: SparkSession) -> None:
    """PAIRS="told of,streamed" narrows them to those in whose names one of these is."""
    assert verdicts(spark, wanted(f"{table}: {use}" for table in TABLES for use in USES)) == {}


@pytest.mark.slow
@pytest.mark.spark
def test_whatever_step_changes_what_is_said_to_be_the_same_is_what_the_new_code_makes_of_all_records(spark: SparkSession) -> None:
    """PAIRS narrows them, too."""
    names = wanted(f"{table}: {use}" for table in TABLES for use in EDITED)
    found = {words: (old, new) for name in names for words, old, new in edits(*name.split(": "))}
    kept = {words: pair for words, pair in found.items() if classify(*pair).kind is not Kind.BREAKING}
    assert 0 < len(kept) < len(found), "some of it goes on, and some doesn't"
    assert said_of(spark, kept) == {}


def wanted(names: Iterable[str]) -> list[str]:
    """Choose those in whose names one of the words of PAIRS is; all without any."""
    chosen = os.environ.get("PAIRS", "").split(",")
    return [name for name in names if any(words in name for words in chosen)]
