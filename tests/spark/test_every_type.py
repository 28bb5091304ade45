"""Keys and columns of every type on a store: written, folded, read at every commit, rewound, and asked for by what is shown of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.properties.engines import equal, tiny
from tests.properties.pairs import KEYS, START, TABLES, TYPES, Scene, batches, partitions
from tests.spark.runs import Run, Tables, by
from tests.spark.test_rebuild import App, begun, joined, planned, replay
from watertable.acts import shadow
from watertable.errors import DefinitionError
from watertable.interpreter import Interpreter
from watertable.plan.plan import Topology
from watertable.records import Record
from watertable.tools import bisect, keytext
from watertable.tools.explain import explain
from watertable.tools.preview import live_of, preview
from watertable.tools.testcase import as_test
from watertable_platform import answers
from watertable_platform.cli import show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MADE = ["a topic's", "hopping", "sessions", "grouped", "told", "joined", "joined by name", "final", "deduped", "a store by time"]
"""Tables that stand side by side in one app: each way in which a key is found again and a value is kept."""


def app_of(of: str, kinds: Sequence[str] = MADE) -> Topology:
    """Define these tables, their keys or columns of a type, and one's changes as an output."""
    scene = Scene(of=of)
    for kind in kinds:
        try:
            made = TABLES[kind](scene)
            made = made if made.name else made.materialized_as(kind.replace(" ", "_").replace("'", ""))
        except DefinitionError:
            assert of not in KEYS, f"{kind}: {of}"
            continue
        if kind == "hopping":
            made.to_stream().to("out")
    return scene.app.topology()


@pytest.mark.slow
@pytest.mark.parametrize("of", TYPES)
def test_a_type_is_written_folded_read_rewound_and_found_by_what_is_shown_of_it(
    spark: SparkSession, tmp_path: Path, of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = app_of(of)
    assert len(app.tables) > (len(MADE) if of in KEYS else 5)
    topics = {topic.name for topic in app.topics}
    given, places = batches(topics, of), partitions(topics)
    run, oracle, history = Run(tiny(spark), tmp_path, app, places), Interpreter(app, partitions=places), list[Tables]()
    for number, batch in enumerate(given):
        run.start()
        run.read(batch)
        oracle.read(batch)
        history.append(deepcopy(oracle.tables))
        assert equal(run.tables()) == equal(history[-1]), number
        if number == 1:
            run.store.folder.fold_all()
            assert equal(run.tables()) == equal(history[-1]), "folded"
    store, head = run.store, run.store.head()
    sent = store.changelog.outbox(store.changelog.snapshot(), head.lineage, 0, head.position.seq)
    assert sorted(row[3:5] for row in sent) == sorted((out.key, out.value) for out in oracle.outputs)
    run.store.folder.fold_all()
    assert equal(run.tables()) == equal(history[-1]), "folded"
    for table in app.tables:
        assert len(run.plain(table.name)) == len(history[-1][table.name]), table.name
        frame = run.store.reader.read(table.name, f"{app.app}@1.2")
        rows = {tuple(row[name] for name in table.key.names): row for row in frame.toArrow().to_pylist(maps_as_pydicts="strict")}
        assert equal({table.name: rows}) == equal({table.name: history[1][table.name]})
    asked(run, app, capsys)
    run.rewind(2)
    for batch in given[2:]:
        run.read(batch)
    run.store.folder.fold_all()
    assert equal(run.tables()) == equal(history[-1]), "rewound"


@pytest.mark.slow
@pytest.mark.parametrize("of", TYPES)
def test_rows_of_a_type_are_compared_promoted_and_rebuilt(spark: SparkSession, tmp_path: Path, of: str) -> None:
    app = app_of(of, ["a topic's", "hopping", "grouped", "joined by name"])
    given = batches({topic.name for topic in app.topics}, of)
    run = App(tiny(spark), tmp_path, app, [r for batch in given for r in batch])
    oracle, history = Interpreter(app, partitions=run.partitions), list[Tables]()
    for batch in given[:3]:
        run.read(batch)
        oracle.read(batch)
        history.append(deepcopy(oracle.tables))
        if len(history) == 1:
            run.store.fold_all()
    for table in app.tables:
        old, new = (tables[table.name] for tables in history[1:])
        found = run.store.reader.changes(table.name, "pairs@1.2").selectExpr("key.*").toArrow().to_pylist()
        assert {tuple(key.values()) for key in found} == {key for key in {*old, *new} if equal(old.get(key)) != equal(new.get(key))}
    begun(run, plan=planned(run, shadow=True))
    replay(run, 5)(None)
    assert [(found.table, found.rows) for found in shadow.diff(run.store, app).tables] == [(table.name, 0) for table in app.tables]
    shadow.promote(run.store, app, replay(run, 7))
    run.start()
    run.store.fold_all()
    assert equal(run.tables()) == equal(history[-1]), "promoted"
    begun(run, app.tables[0].name)
    joined(run, 6)
    run.read(given[3])
    oracle.read(given[3])
    run.store.fold_all()
    assert equal(run.tables()) == equal(oracle.tables), "rebuilt"


def test_a_day_that_the_julian_calendar_lacks_is_found_by_its_key(spark: SparkSession, tmp_path: Path) -> None:
    app = wt.App("pairs")
    app.topic("t", key="day DATE", value="at TIMESTAMP").table().materialized_as("t")
    day, at = "1582-10-10", "1582-10-10T01:00:00Z"
    record = Record("t", 0, 0, START, json.dumps({"day": day}).encode(), json.dumps({"at": at}).encode())
    run = App(tiny(spark), tmp_path, app.topology(), [record])
    run.read([record])
    run.store.fold_all()
    table, rows = run.topology.table("t"), run.store.reader.read("t")
    assert rows.where(keytext.condition(table, keytext.read(table, [day]))).count() == 1
    assert rows.where(f"at = TIMESTAMP '{at}'").count() == 1


def test_of_two_maps_the_entries_are_compared_not_their_order(spark: SparkSession, tmp_path: Path) -> None:
    app = wt.App("pairs")
    held = "m MAP<STRING, STRUCT<a: INT, b: ARRAY<MAP<STRING, INT>>>>"
    app.topic("t", value=held).table().materialized_as("t")
    one, other, less = ({"x": {"a": 1, "b": [maps]}, "y": None} for maps in ({"p": 1, "q": 2}, {"q": 2, "p": 1}, {"p": 1}))
    told = [{"a": one, "b": one, "c": one, "d": None}, {"a": dict(reversed(other.items())), "b": less, "c": None, "d": None}]
    records = [
        Record("t", 0, 4 * n + m, START, key.encode(), json.dumps({"m": value}).encode())
        for n, values in enumerate(told) for m, (key, value) in enumerate(values.items())
    ]  # fmt: skip
    run = App(tiny(spark), tmp_path, app.topology(), records)
    for batch in by(records, 4):
        run.read(batch)
    changed = run.store.reader.changes("t", "pairs@1.1").orderBy("key").toArrow().to_pylist()
    assert [row["key"]["key"] for row in changed] == ["b", "c"]
    begun(run, plan=planned(run, shadow=True))
    replay(run)(None)
    assert [found.rows for found in shadow.diff(run.store, run.topology).tables] == [0]


def test_a_diff_says_which_columns_are_of_another_type_and_a_preview_shows_both(spark: SparkSession, tmp_path: Path) -> None:
    def shop(total: str) -> Topology:
        app = wt.App("pairs")
        sales = app.topic("sales", key="k STRING", value="n BIGINT, price DECIMAL(9, 2)").stream()
        sales.group_by_key().agg(n=wt.sum("n"), total=wt.sum(total)).materialized_as("sold")
        return app.topology()

    records = [Record("sales", 0, n, START, b"ab"[n % 2 : n % 2 + 1], b'{"n": 2, "price": 1.50}') for n in range(4)]
    live = App(tiny(spark), tmp_path, shop("price"), records)
    live.read(records)
    live.store.fold_all()
    changed = live.under(shop("n"))
    begun(changed, plan=planned(changed, shadow=True))
    replay(changed)(None)
    table = changed.topology.table("sold")
    seen = live_of(changed.store.reader, changed.topology, table)
    assert seen is not None
    shown = preview(changed.store.reader, changed.topology, table, dict.fromkeys(seen.next, 0), seen.next, records, seen)
    assert [(p.mark, p.here, p.live) for p in shown.pairs] == 2 * [("differs", {"n": 4, "total": 4}, {"n": 4, "total": Decimal("3.00")})]
    (found,) = shadow.diff(changed.store, changed.topology).tables
    assert (found.rows, "of another type, not compared: total (DECIMAL(19,2), now BIGINT)" in found.note) == (0, True), found.note


def asked(run: Run, app: Topology, capsys: pytest.CaptureFixture[str]) -> None:
    """Take a row of each table as `query` shows it, and ask every command for it by its key."""
    for table in app.tables:
        show.print_json(answers.rows(run.store.reader, table).answer(100))
        row = json.loads(capsys.readouterr().out)["rows"][-1]
        names = [name for name in table.key.names if not (table.windows and name.startswith("window_"))]
        key = json.dumps([row[name] for name in names])
        show.print_json(answers.rows(run.store.reader, table, wanted=keytext.read(table, keytext.split(key))).answer(100))
        assert row in json.loads(capsys.readouterr().out)["rows"], (table.name, key)
        if table.name in ("a_topics", "grouped", "first"):
            found = bisect.find(run.store.reader, table, bisect.condition_of(table, "true"), keytext.read(table, keytext.split(key)))
            assert found.ever == 1, (table.name, key)


@pytest.mark.parametrize("of", TYPES)
def test_the_story_of_a_row_is_told_for_what_is_shown_of_its_key(of: str) -> None:
    app = app_of(of)
    given = [r for batch in batches({topic.name for topic in app.topics}, of) for r in batch]
    engine = Interpreter(app)
    engine.read(given)
    for name in ("a_topics", "hopping", "joined"):
        table = app.table(name)
        key, row = list(engine.tables[name].items())[-1]
        shown = json.dumps(json.loads(answers.plain_json(list(key[: 1 if table.windows else None]))))
        story = explain(app, table, keytext.read(table, keytext.split(shown)), given)
        assert repr(story.steps[-1].row) == repr({n: v for n, v in row.items() if n in table.value.names}), (name, shown)
        written = as_test(app, table, story, given, "watertable explain")
        scope: dict[str, Any] = {"app": app}
        exec(written.replace('load_apps(Settings.load()).app("pairs").topology', "app"), scope)
        next(run for said, run in scope.items() if said.startswith(f"test_the_story_of_{name}"))()
