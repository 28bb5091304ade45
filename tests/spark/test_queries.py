"""SQL that a person wrote reads the tables of one app, and reaches nothing else."""

from __future__ import annotations

import gc
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from tests.spark.runs import Run
from watertable.errors import QueryRefused, SparkError, UnknownPosition
from watertable.records import Record
from watertable.session import in_words
from watertable.store.queries import Parameters, Query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HUSH = "a secret of this process"


def shop() -> wt.App:
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT", timestamp=None).stream()
    moves.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
    moves.group_by_key().agg(n=wt.count()).materialized_as("counts")
    return app


@pytest.fixture(scope="module")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two commits, the first of them folded."""
    made = Run(spark, tmp_path_factory.mktemp("shop"), shop().topology(), [("moves", 0)])
    records = [
        Record("moves", 0, n, NOON + timedelta(seconds=n), sku, json.dumps({"qty": qty}).encode())
        for n, (sku, qty) in enumerate([(b"a", 5), (b"b", 7), (b"a", 1), (b"c", 2)])
    ]
    made.read(records[:2])
    made.store.fold_all()
    made.read(records[2:])
    (made.warehouse / "secret.txt").write_text(HUSH)
    return made


def rows(run: Run, sql: str, at: str | None = None, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
    with in_words(run.spark):
        return [tuple(row) for row in Query(run.store.reader, sql, at).frame(parameters).collect()]


def test_a_query_reads_tables_of_one_position_by_their_names(run: Run) -> None:
    both = "SELECT s.sku, qty, n FROM stock s JOIN Counts USING (sku) ORDER BY sku"
    assert rows(run, both) == [("a", 6, 2), ("b", 7, 1), ("c", 2, 1)]
    assert rows(run, both, "shop@1.1") == [("a", 5, 1), ("b", 7, 1)]
    assert Query(run.store.reader, both, "shop@1.1").position.seq == 1
    with pytest.raises(UnknownPosition, match="isn't there yet"):
        rows(run, both, "shop@1.9")


@pytest.mark.parametrize(
    "sql",
    [
        "WITH a AS (SELECT * FROM stock), b AS (SELECT sku FROM a) SELECT count(*) AS n FROM b",
        "SELECT count(*) FROM (SELECT sku FROM stock UNION SELECT sku FROM counts)",
        "SELECT sum(n) - 1 FROM counts WHERE sku IN (SELECT sku FROM stock WHERE qty > (SELECT min(qty) - 1 FROM stock))",
        "SELECT count(*) FROM stock, LATERAL (SELECT n FROM counts WHERE counts.sku = stock.sku)",
        "SELECT count(DISTINCT sku) FROM stock LATERAL VIEW explode(array(1, 2)) AS x",
        "SELECT max(id) FROM range(4)",
        "FROM stock |> AGGREGATE count(*) AS n",
        "SELECT max(r) FROM (SELECT row_number() OVER w AS r FROM stock WINDOW w AS (ORDER BY sku))",
        "SELECT 3 FROM VALUES (1)",
        "SELECT 3",
    ],
)  # fmt: skip
def test_whatever_a_query_is_made_of_it_runs(run: Run, sql: str) -> None:
    assert rows(run, sql) == [(3,)]


def test_values_are_bound_and_never_written_into_the_text(run: Run) -> None:
    assert rows(run, "SELECT qty FROM stock WHERE sku = :sku", parameters={"sku": "a"}) == [(6,)]
    assert rows(run, "SELECT qty FROM stock WHERE sku = ? AND qty > ?", parameters=["a", 1]) == [(6,)]
    assert rows(run, "SELECT qty FROM stock WHERE sku = :sku", parameters={"sku": "' OR true --"}) == []
    given = {"d": Decimal("2.50"), "b": True, "none": None, "many": ["a", "c"]}
    assert rows(run, "SELECT :d, :b, :none, sum(qty) FROM stock WHERE array_contains(:many, sku)", parameters=given) == [
        (Decimal("2.50"), True, None, 8)
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM text.`{file}`", "SELECT * FROM delta.`{delta}`", "SELECT * FROM spark_catalog.delta.`{delta}`",
        "SELECT * FROM IDENTIFIER('text.`{file}`')", "SELECT * FROM delta.`{delta}` VERSION AS OF 0", "SELECT * FROM stock VERSION AS OF 0",
        "SELECT (SELECT max(value) FROM text.`{file}`)", "SELECT 1 WHERE EXISTS (SELECT * FROM text.`{file}`)",
        "WITH a AS (SELECT * FROM text.`{file}`) SELECT * FROM a", "WITH a AS (WITH b AS (TABLE text.`{file}`) TABLE b) TABLE a",
        "SELECT * FROM stock, LATERAL (SELECT * FROM text.`{file}`)", "SELECT * FROM stock UNION ALL SELECT value, 1 FROM text.`{file}`",
        "SELECT * FROM default.stock", "SELECT * FROM nope", "SELECT * FROM STREAM stock",
        "SELECT * FROM table_changes_by_path('{delta}', 0)", "SELECT * FROM table_changes('stock', 0)",
        "SELECT * FROM python_worker_logs()",
        "SELECT TRANSFORM(sku) USING 'cat {file}' AS (a STRING) FROM stock",
        "SELECT * FROM (SELECT TRANSFORM(sku) USING 'cat {file}' AS (a STRING) FROM stock)",
        "SELECT reflect('java.lang.System', 'getProperty', 'user.home')", "SELECT java_method('java.lang.System', 'lineSeparator')",
        "SELECT try_reflect('java.lang.System', 'getProperty', 'user.home')", "SELECT builtin.reflect('java.lang.System', 'lineSeparator')",
        "SELECT IDENTIFIER('reflect')('java.lang.System', 'lineSeparator')",
        "SELECT input_file_name() FROM stock", "SELECT _metadata.file_path FROM stock",
        "DROP TABLE stock", "SET spark.app.name", "SHOW TABLES", "INSERT INTO stock VALUES ('x', 1)", "CREATE VIEW v AS SELECT 1",
        "FROM stock INSERT INTO t SELECT *", "ADD JAR '{file}'", "SELECT 1; DROP TABLE stock", "EXECUTE IMMEDIATE 'SELECT 1'", "",
    ],
)  # fmt: skip
def test_a_query_reaches_no_file_no_catalog_no_program_and_no_method_of_java(run: Run, sql: str) -> None:
    places = {"file": run.warehouse / "secret.txt", "delta": run.warehouse / "shop" / "changelog"}
    with pytest.raises(SparkError) as refused:
        rows(run, sql.format(**places))
    assert HUSH not in str(refused.value)


def test_what_else_a_query_names_is_told_with_what_there_is(run: Run) -> None:
    with pytest.raises(QueryRefused, match=r"there is no 'other.stock' among counts, stock"):
        rows(run, "SELECT * FROM other.stock")
    with pytest.raises(QueryRefused, match="runs a program"):
        rows(run, "SELECT TRANSFORM(sku) USING 'cat' AS (a STRING) FROM stock")


def test_a_query_sees_neither_settings_nor_the_environment(run: Run) -> None:
    for text in ("${env:HOME}", "${system:user.home}", "${spark.app.name}"):
        assert rows(run, f"SELECT '{text}' AS said") == [(text,)]
        assert run.spark.sql(f"SELECT '{text}' AS said").first() == (text,), "nor does an expression of a plan"


def test_queries_at_once_have_views_of_their_own(run: Run) -> None:
    frames = [Query(run.store.reader, "SELECT qty FROM stock WHERE sku = 'a'", f"shop@1.{n}").frame() for n in (1, 2, 1)]
    assert [frame.collect()[0][0] for frame in frames] == [5, 6, 5]
    with pytest.raises(SparkError), in_words(run.spark):
        run.spark.sql("SELECT * FROM stock")


def test_sessions_of_queries_are_gone_when_nobody_has_them(run: Run) -> None:
    """A service runs for weeks: what a query leaves behind must not add up."""
    runtime = run.spark._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]

    def used() -> int:
        gc.collect()
        for _ in range(3):
            run.spark._jvm.java.lang.System.gc()  # type: ignore[union-attr]
        return int(runtime.totalMemory() - runtime.freeMemory())

    for _ in range(10):
        rows(run, "SELECT 3")
    before = used()
    for _ in range(60):
        Query(run.store.reader, "SELECT 3").frame()
    assert used() - before < 20 << 20
