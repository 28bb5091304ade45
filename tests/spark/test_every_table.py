"""Each kind of table on a store: read at every commit, folded, looked into by the tools, and rewound; all as the interpreter has it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.properties.engines import tiny
from tests.properties.pairs import TABLES, batches, partitions, topology
from tests.spark.runs import Run, Tables
from watertable.errors import UnknownPosition
from watertable.interpreter import Interpreter
from watertable.plan import nodes, plan
from watertable.plan.plan import TableDef, Topology
from watertable.records import Record
from watertable.tools import bisect
from watertable.tools.preview import live_of, preview

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_the_oracles_at_each_commit_folded_and_rewound_and_the_tools_say_what_is_true_of_it(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    app = topology(kind, "read")
    assert isinstance(app, Topology)
    topics = {topic.name for topic in app.topics}
    given, places = batches(topics), partitions(topics)
    run, oracle, history = Run(tiny(spark), tmp_path, app, places), Interpreter(app, partitions=places), list[Tables]()
    for number, batch in enumerate(given):
        run.read(batch)
        oracle.read(batch)
        history.append(deepcopy(oracle.tables))
        if number == 1:
            run.store.folder.fold_all()
    assert run.tables() == history[-1]
    for table in app.tables:
        for seq, tables in enumerate(history, 1):
            rows = run.store.reader.read(table.name, f"{app.app}@1.{seq}").toArrow().to_pylist()
            assert {tuple(row[name] for name in table.key.names): row for row in rows} == tables[table.name], (table.name, seq)
    run.store.folder.fold_all()
    assert run.tables() == history[-1]
    records = [record for batch in given for record in batch]
    for table in app.tables:
        assert len(run.plain(table.name)) == len(history[-1][table.name])
        bisected(run, table, history, records)
        previewed(run, table, history[-1], records)
    run.rewind(2)
    for batch in given[2:]:
        run.read(batch)
    run.store.folder.fold_all()
    assert run.tables() == history[-1]


def bisected(run: Run, table: TableDef, history: list[Tables], records: list[Record]) -> None:
    """Hold what bisect finds to what the oracle had after each commit, and the record that it blames to the condition."""
    if "n" not in table.value:
        return
    condition = bisect.condition_of(table, "n > 2")
    holds = [set[Any](), *({key for key, row in tables[table.name].items() if (row["n"] or 0) > 2} for tables in history)]
    if table.sessions or table.sliding or isinstance(table.root, nodes.Versioned | nodes.Stored | nodes.ForeignJoin):
        with pytest.raises(UnknownPosition, match="no rows of one key"):
            bisect.find(run.store.reader, table, condition)
        return
    found = bisect.find(run.store.reader, table, condition)
    first = next((seq for seq in range(1, len(holds)) if holds[seq] - holds[seq - 1]), None)
    assert (found.at and found.at.seq, found.ever, found.now) == (first, len(set().union(*holds)), len(holds[-1]))
    if found.at is None:
        return
    begin, end = found.ranges(run.topology, table)
    read = [r for r in records if begin.get((r.topic, r.partition), r.offset + 1) <= r.offset < end[r.topic, r.partition]]
    above = run.topology.above({table.name})
    if any(other.sessions or other.sliding for other in above.tables) or any(isinstance(n, nodes.FinalRows) for n in plan.walk(table.node)):
        with pytest.raises(UnknownPosition, match=r"isn't by its rows' keys|that waited for each other"):
            bisect.blame(run.store.reader, run.topology, table, condition, found, read)
        return
    assert bisect.blame(run.store.reader, run.topology, table, condition, found, read).new["n"] > 2


def previewed(run: Run, table: TableDef, rows: Tables, records: list[Record]) -> None:
    """Hold a preview on all records, under the code that is live, to show no difference."""
    live = live_of(run.store.reader, run.topology, table)
    assert live is not None
    read = [record for record in records if (record.topic, record.partition) in live.next]
    seen = preview(run.store.reader, run.topology, table, dict.fromkeys(live.next, 0), live.next, read, live)
    assert {pair.mark for pair in seen.pairs} <= {"same"}
    assert sum(pair.live is not None for pair in seen.pairs) == len(rows[table.name])
