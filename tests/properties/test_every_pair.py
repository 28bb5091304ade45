"""Each kind of table under each operator that takes one: what a definition accepts, Spark computes, and as the interpreter does.

Random plans draw operators as they come, and many pairs never meet in them. Here each pair is an app of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.properties.engines import CompilerRun, run_interpreter, tiny
from tests.properties.pairs import KEYS, TABLES, TYPES, USES, batches, pairs, topology
from watertable.interpreter import Interpreter
from watertable.plan.nodes import FinalRows
from watertable.plan.plan import Topology, walk
from watertable.plan.purity import Purity, purity_of
from watertable.tools import keytext
from watertable.tools.explain import explain
from watertable.tools.testcase import as_test

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def differences(spark: SparkSession, app: Topology, of: str = "STRING") -> str:
    given = batches({topic.name for topic in app.topics}, of)
    wanted = run_interpreter(app, given)
    if not any(wanted.tables.values()) or (app.sinks and not any(wanted.outputs.values())):
        return "nothing is made of these records, so nothing is proven"
    try:
        return "\n".join(wanted.differences(CompilerRun(spark, app).run(given)))
    except Exception as error:  # a definition that is accepted is to be computed
        return f"{type(error).__name__}: {error}"


def wrong(spark: SparkSession, apps: Mapping[str, tuple[Topology, str]]) -> dict[str, str]:
    """Say what differs, by the names of pairs; those that PAIRS asks for."""
    wanted, session = os.environ.get("PAIRS", "").split(","), tiny(spark)
    chosen = {name: pair for name, pair in apps.items() if any(words in name for words in wanted)}
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        verdicts = zip(chosen, pool.map(lambda pair: differences(session, *pair), chosen.values()), strict=True)
        return {name: verdict for name, verdict in verdicts if verdict}


@pytest.mark.parametrize("use", ["read", "counted by another key", "grouped", "beside names"])
def test_the_story_of_a_row_ends_with_the_row_and_is_written_as_a_test(use: str) -> None:
    told = windows = 0
    for name, app in pairs(use).items():
        table = app.tables[-1]
        if purity_of(table.node) is Purity.ARRIVAL or any(isinstance(node, FinalRows) for node in walk(table.node)):
            continue
        given = [r for batch in batches({topic.name for topic in app.above({table.name}).topics}) for r in batch]
        engine = Interpreter(app)
        engine.read(given)
        rows = engine.tables[table.name]
        if not rows:
            continue
        wanted = next(iter(rows))[0]
        story = explain(app, table, keytext.read(table, [str(wanted)]), given)
        after = {tuple(step.key.values()): step.row for step in story.steps}
        assert {key: dict(zip(table.key.names, key, strict=True)) | row for key, row in after.items() if row is not None} == {
            key: row for key, row in rows.items() if key[0] == wanted
        }, name
        assert "def test_the_story_of" in as_test(app, table, story, given, "watertable explain"), name
        told += 1
        if table.windows is None:
            continue
        for start in {key[-2] for key in rows if key[0] == wanted}:
            story = explain(app, table, keytext.read(table, [str(wanted)], str(start)), given)
            of = {key: row for key, row in rows.items() if key[0] == wanted and key[-2] == start}
            after = {tuple(step.key.values()): step.row for step in story.steps}
            assert {key for key, row in after.items() if row is not None} >= set(of), name
            written = as_test(app, table, story, given, "watertable explain")
            assert written.count("assert rows[") == len(of), (name, start, written)
            windows += 1
    assert told > 15
    assert windows > 8 or use != "read"


@pytest.mark.spark
def test_what_is_told_of_several_windows_is_computed_by_spark_as_by_the_interpreter(spark: SparkSession) -> None:
    told = {name: (app, "STRING") for name, app in pairs("read", "final").items() if name.startswith(("told of two", "told of windows"))}
    assert [name for name in told if name.endswith("final")] == ["told of two windows: final"], "others are never final"
    assert len(told) == 4
    assert wrong(spark, told) == {}


@pytest.mark.slow
@pytest.mark.spark
def test_every_pair_that_is_accepted_is_computed_by_spark_and_as_the_interpreter_does(spark: SparkSession) -> None:
    """PAIRS="told of,streamed" narrows them to those in whose names one of these is."""
    found = pairs()
    assert len(found) > 900, "pairs that were definitions once are refused"
    assert wrong(spark, {name: (app, "STRING") for name, app in found.items()}) == {}


@pytest.mark.slow
@pytest.mark.spark
def test_pairs_are_computed_alike_whatever_the_type_of_their_keys_and_columns(spark: SparkSession) -> None:
    """Each pair has keys of one type, another than its neighbours'; tables that are only read, and streamed, have columns of each."""
    made = [(table, use, KEYS[(n + m) % len(KEYS)]) for n, table in enumerate(TABLES) for m, use in enumerate(USES)]
    made += [(table, use, of) for table in TABLES for use in ("read", "streamed") for of in TYPES if of not in KEYS]
    found = {f"{table}: {use}: {of}": (topology(table, use, of=of), of) for table, use, of in made}
    apps = {name: (app, of) for name, (app, of) in found.items() if isinstance(app, Topology)}
    assert len(apps) > 1250, "pairs that were definitions once are refused"
    assert wrong(spark, apps) == {}
