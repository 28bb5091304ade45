"""Other rows shown of the same state: a table goes on under new code from its kept states, folded or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.properties.engines import tiny
from tests.properties.pairs import TABLES, Scene, batches, partitions
from tests.spark.runs import Kafka, Run, told
from watertable.acts import rewind
from watertable.acts.rewind import Target
from watertable.compiler import Compiler
from watertable.dsl.tables import Table
from watertable.errors import OtherCode
from watertable.interpreter import Interpreter
from watertable.plan.aggregates import Aggregation
from watertable.plan.deployment import Kind, classify
from watertable.plan.plan import Topology
from watertable.records import Record
from watertable.store import changelog
from watertable.store.writer import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SHOWN: Mapping[str, Callable[[Table], Table]] = {
    "": lambda t: t,
    "mapped": lambda t: t.map_values(n="n", g="g", twice="n * 2"),
    "small": lambda t: t.filter("n < 3"),
    "smaller": lambda t: t.filter("n < 2"),
}
NEVER = {"versioned", "a store", "a store by time", "a versioned store"}
"""What no code goes on with that shows other rows of it."""
PAIRS = [("", "mapped"), ("", "small"), ("small", "smaller"), ("smaller", "small"), ("small", ""), ("smaller", "mapped")]


def app(kind: str, shown: str) -> Topology | None:
    scene = Scene()
    made = TABLES[kind](scene)
    if made.name and not shown:
        return None
    SHOWN[shown](made).materialized_as("kept")
    return scene.app.topology()


def goes_on(spark: SparkSession, warehouse: Path, old: Topology, new: Topology, *, folded: bool) -> str:
    """Run two batches under the old code, go on under the new one, rewind to the first, and say what is not as the oracle has it."""
    topics = {topic.name for topic in old.topics}
    given, places = batches(topics), partitions(topics)
    run, oracle = Run(tiny(spark), warehouse, old, places), Interpreter(new, partitions=places)
    for batch in given[:2]:
        run.read(batch)
        oracle.read(batch)
    if folded:
        run.store.folder.fold_all()
    run.topology, run.compiler = new, Compiler(new)
    run.open()
    found = run.store.deployment(new)
    assert found is not None
    assert not found.words, "what is folded is known as what was written"
    said = [] if run.tables() == oracle.tables else [f"at once: {run.tables()['kept']}, not {oracle.tables['kept']}"]
    for batch in given[2:]:
        run.read(batch)
        oracle.read(batch)
    said += [] if run.tables() == oracle.tables else [f"then: {run.tables()['kept']}, not {oracle.tables['kept']}"]
    run.store.folder.fold_all()
    said += [] if run.tables() == oracle.tables else [f"folded: {run.tables()['kept']}, not {oracle.tables['kept']}"]
    if len(run.plain("kept")) != len(oracle.tables["kept"]):
        said.append("on disk there are other rows")
    kafka: Any = Kafka(places)
    plan = rewind.plan(run.store, new, kafka, Target("commit", "1"))
    said += [f"refused: {plan.refusals}"] if plan.refusals else []
    rewind.apply(run.store, plan, new.fingerprint, kafka)
    run.open()
    for batch in given[1:]:
        run.read(batch)
    said += [] if run.tables() == oracle.tables else [f"rewound: {run.tables()['kept']}, not {oracle.tables['kept']}"]
    return "\n".join(said)


def verdicts(spark: SparkSession, warehouse: Path, kind: str, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    found = {}
    for was, now in pairs:
        old, new = app(kind, was), app(kind, now)
        if old is None or new is None or classify(old, new).kind is Kind.BREAKING:
            continue
        for folded in (False, True):
            name = f"{was} to {now}, {'folded' if folded else 'not folded'}"
            found[name] = goes_on(spark, warehouse / f"{was}-{now}-{folded}", old, new, folded=folded)
    assert bool(found) is (kind not in NEVER)
    return {name: verdict for name, verdict in found.items() if verdict}


def alerts(*, least: int = 1, peek: bool = False, total: str = "n", seconds: int = 4) -> Topology:
    """Write an app of a table, and of an output that is fed by a join of streams."""
    app = wt.App("alerts")
    left, right = (app.topic(name, key="k STRING", value="g STRING, n BIGINT").stream() for name in ("left", "right"))
    left = left.filter(f"n >= {least}")
    (left.peek("seen") if peek else left).join(right, within=wt.seconds(seconds), n="left.n", m="right.n").to("pairs")
    right.group_by_key().agg(total=wt.sum(total)).materialized_as("totals")
    return app.topology()


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (alerts(total="n * 2"), "the code of alerts has changed what totals would hold"),
        (alerts(least=2), "the code of alerts has changed what pairs would hold"),
        (alerts(seconds=5), "would be left behind"),
        (alerts(peek=True), ""),
    ],
)
def test_code_is_compared_with_that_of_the_last_commit_folded_or_not(spark: SparkSession, tmp_path: Path, new: Topology, says: str) -> None:
    run = Run(tiny(spark), tmp_path, alerts(), partitions({"left", "right"}))
    assert run.store.deployment(new) is None, "nothing was made yet"
    run.read(batches({"left", "right"})[0])
    store = Store.open(spark, str(tmp_path), "alerts", new.kept)
    found = store.deployment(new)
    assert found is not None
    assert says in found.words
    assert bool(found.words) is bool(says)
    assert found.rewind == ("--to earliest" if says else None)
    run.rewind(0)
    store.start_writer(new)
    assert store.head().last is None, "rewound to earliest, it may be of any code"
    assert store.deployment(new) is None


def test_code_that_a_rewind_was_for_is_compared_like_any_other_once_another_went_on(spark: SparkSession, tmp_path: Path) -> None:
    every, small = app("a topic's", ""), app("a topic's", "small")
    assert every is not None
    assert small is not None
    topics = {topic.name for topic in every.topics}
    given = batches(topics)
    run = Run(tiny(spark), tmp_path, every, partitions(topics))
    run.read(given[0])
    run.rewind(1)
    run.topology, run.compiler = small, Compiler(small)
    run.open()
    run.read(given[1])
    found = run.store.deployment(every)
    assert found is not None
    assert "another filter would show rows that the one before refused" in found.words


@pytest.mark.slow
def test_a_layout_that_a_table_had_once_stands_in_the_way_of_no_rewind_to_what_has_its_own(spark: SparkSession, tmp_path: Path) -> None:
    def code(last: Any, *, more: bool = False) -> Topology:
        app = wt.App("alerts")
        groups = app.topic("right", key="k STRING", value="g STRING, n BIGINT").stream().group_by_key()
        groups.agg(last=last).materialized_as("kept")
        if more:
            groups.count().materialized_as("more")
        return app.topology()

    def goes_on_as(new: Topology) -> None:
        run.topology, run.compiler = new, Compiler(new)
        run.store = Store.open(run.spark, str(tmp_path), "alerts", new.kept)

    given, kafka = batches({"right"}), Kafka(partitions({"right"}))
    run = Run(tiny(spark), tmp_path, code(wt.sum("n")), partitions({"right"}))
    run.read(given[0])
    goes_on_as(code(wt.last("n")))
    run.rewind(0)
    for batch in given[:2]:
        run.read(batch)
    goes_on_as(code(wt.last("n"), more=True))
    found = rewind.plan(run.store, run.topology, kafka, Target("commit", "1"), keep_old_code_before=True)  # type: ignore[arg-type]
    assert found.refusals == ()
    rewind.apply(run.store, found, run.topology.fingerprint, kafka)  # type: ignore[arg-type]
    run.open()
    run.read(given[1])
    assert run.tables(names=["kept"])["kept"] == told(run.topology, [*given[0], *given[1]]).tables["kept"]


@pytest.mark.slow
def test_the_codes_of_the_newest_writers_are_known(spark: SparkSession, tmp_path: Path) -> None:
    codes = [alerts(least=least) for least in range(20)]
    store = Store.open(tiny(spark), str(tmp_path), "alerts", codes[0].kept)
    for code in (*codes[:18], codes[3], codes[3], *codes[18:]):
        store.start_writer(code)
    known = [number for number, code in enumerate(codes) if store.changelog.code(code.fingerprint)]
    assert known == [3, *range(5, 20)]
    found = store.changelog.code(codes[3].fingerprint)
    assert found is not None
    assert (found.app, found.fingerprint, set(found.tables)) == ("alerts", codes[3].fingerprint, {"totals"})


def test_the_code_of_the_last_commit_is_known_however_many_begin_after_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "_CODES", 2)
    run = Run(tiny(spark), tmp_path, alerts(), partitions({"left", "right"}))
    run.read(batches({"left", "right"})[0])
    for least in range(2, 6):
        run.store.start_writer(alerts(least=least))
    assert [bool(run.store.changelog.code(alerts(least=least).fingerprint)) for least in range(1, 6)] == [True, False, False, True, True]
    found = run.store.deployment(alerts(total="n * 2"))
    assert found is not None
    assert "has changed what totals would hold" in found.words


def test_where_the_loaded_code_has_made_a_table_anew_what_other_code_kept_of_it_asks_for_that_code_not_for_a_rebuild(
    spark: SparkSession, tmp_path: Path
) -> None:
    def till(**aggregates: Aggregation) -> Topology:
        app = wt.App("till")
        app.topic("moves", key="k STRING", value="qty BIGINT").stream().group_by_key().agg(**aggregates).materialized_as("stock")
        return app.topology()

    old, new = till(qty=wt.sum("qty")), till(qty=wt.sum("qty"), most=wt.max("qty"))
    run = Run(tiny(spark), tmp_path, old, (("moves", 0),))
    run.read([Record("moves", 0, 0, datetime(2026, 1, 1, tzinfo=UTC), b"a", b'{"qty": 5}')])
    run.store.folder.fold_all()
    run.topology, run.compiler = new, Compiler(new)
    run.rewind(0)
    run.read([Record("moves", 0, 0, datetime(2026, 1, 1, tzinfo=UTC), b"a", b'{"qty": 5}')])
    run.store.folder.fold_all()
    with pytest.raises(OtherCode, match=r"at till@1.1 other code kept it as stock_\w+: load that code to read it as it was then"):
        run.store.reader.read("stock", at="till@1.1")
    assert [row.most for row in run.store.reader.read("stock").collect()] == [5]


@pytest.mark.parametrize(
    ("kind", "pairs"),
    [("a topic's", PAIRS[1:2]), ("sliding", PAIRS[:1]), *(pytest.param(kind, PAIRS, marks=pytest.mark.slow) for kind in TABLES)],
)
def test_other_rows_are_shown_of_the_states_that_there_are(
    spark: SparkSession, tmp_path: Path, kind: str, pairs: Sequence[tuple[str, str]]
) -> None:
    assert verdicts(spark, tmp_path, kind, pairs) == {}
