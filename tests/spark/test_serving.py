"""The service over a real store: it answers what `wt.read` reads, at positions that can be asked for again, and what it cancels ends."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from tests.serving import Frame, fits, never
from tests.spark.runs import Run
from watertable.project import Project, load_apps
from watertable.records import Record
from watertable.settings import Settings
from watertable_platform import answers
from watertable_platform.answers import Question
from watertable_platform.serving.contract import ARROW
from watertable_platform.serving.desk import Desk, SparkJobs
from watertable_platform.serving.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
T = TypeVar("T")
SHOP = """
import watertable as wt

app = wt.App("shop")
VALUE = "qty BIGINT, price DECIMAL(9,2), raw BINARY, share DOUBLE, at TIMESTAMP"
moves = app.topic("moves", key="sku STRING", value=VALUE, timestamp="at").stream()
prices = moves.to_table().materialized_as("prices", history=wt.days(1))
stock = moves.group_by_key().agg(qty=wt.sum("qty"), at=wt.max("at")).materialized_as("stock")
hourly = moves.group_by_key().windowed_by(wt.tumbling(hours=1)).agg(n=wt.count()).materialized_as("hourly")
"""
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Shop:
    """Hold the store, three commits of it, the service over it, and a client of that."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        (home / "served_assets" / "shop").mkdir(parents=True)
        (home / "served_assets" / "shop" / "app.py").write_text(SHOP)
        settings = Settings.load(home, assets=("served_assets",), kafka="127.0.0.1:1", warehouse=str(home / "warehouse"))
        self.project: Project = load_apps(settings)
        self.run = Run(spark, home / "warehouse", self.project.app("shop").topology, [("moves", 0)])
        self.given = 0
        self.commit(("a", 5), ("b", 7))
        self.run.store.fold_all()
        self.commit(("a", 1), ("c", 2))
        self.commit(("b", -7))
        self.desk = Desk(SparkJobs(spark), at_once=3, seconds=60)
        reader = answers.reader_of(spark, settings, self.run.topology)
        service = Service(self.project, lambda _: reader, self.desk, alive=lambda: True)
        self.client = TestClient(service.application(None), base_url="http://127.0.0.1:8474")

    def commit(self, *moves: tuple[str, int]) -> None:
        records = []
        for sku, qty in moves:
            at, self.given = NOON + timedelta(minutes=25 * self.given), self.given + 1
            value = {"qty": qty, "price": "2.50", "raw": "AP8=", "share": 0.5, "at": at.isoformat()}
            records.append(Record("moves", 0, self.given - 1, at, sku.encode(), json.dumps(value).encode()))
        self.run.read(records)

    def get(self, path: str, **more: Any) -> Any:
        answer = self.client.get(f"/v1/{path}", **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def query(self, sql: str, **more: Any) -> Any:
        answer = self.client.post("/v1/query", json={"sql": sql, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()["rows"]


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(spark, tmp_path_factory.mktemp("served"))


def test_what_is_served_is_what_is_read_and_says_where(shop: Shop) -> None:
    described = shop.get("openapi.json")
    for table in shop.run.topology.tables:
        for seq in (1, 2, 3):
            body = shop.get(f"tables/shop.{table.name}?at=shop@1.{seq}")
            read = shop.run.store.reader.read(table.name, f"shop@1.{seq}").orderBy(*table.key.names).toArrow().to_pylist()
            assert (body["rows"], body["position"], body["more"]) == (answers.plain(read), f"shop@1.{seq}", False)
            for row in body["rows"]:
                fits(described, {"$ref": f"#/components/schemas/shop.{table.name}"}, row)
            by_arrow = shop.client.get(f"/v1/tables/shop.{table.name}?at=shop@1.{seq}", headers={"Accept": ARROW})
            assert pa.ipc.open_stream(io.BytesIO(by_arrow.content)).read_all().to_pylist() == read
    assert shop.get("tables/prices?key=a&at=shop@1.1")["rows"] == [
        {"sku": "a", "qty": 5, "price": "2.50", "raw": "00ff", "share": 0.5, "at": "2026-03-01T12:00:00Z"}
    ]
    assert [row["sku"] for row in shop.get("tables/stock", params={"where": "qty > 1 AND key.sku <> 'a'"})["rows"]] == ["c"]
    early = shop.get("tables/hourly", params={"where": "window.end <= TIMESTAMP'2026-03-01T13:00:00Z'"})
    assert [(row["sku"], row["n"]) for row in early["rows"]] == [("a", 2), ("b", 1)]
    assert len(shop.get("tables/hourly?key=b&window=2026-03-01T13:00Z")["rows"]) == 1
    assert shop.get("tables/prices?as_of=2026-03-01T12:30Z&key=b")["rows"][0]["qty"] == 7


def test_pages_and_changes_are_of_the_positions_that_were_named(shop: Shop) -> None:
    first = shop.get("tables/stock?limit=2")
    rest = shop.get(first["next"].removeprefix("/v1/"))
    assert ([row["sku"] for row in first["rows"] + rest["rows"]], rest["more"]) == (["a", "b", "c"], False)
    since = shop.get("tables/stock/changes?since=shop@1.1&until=shop@1.2")
    assert [(row["key"]["sku"], row["old"] and row["old"]["qty"], row["new"]["qty"]) for row in since["rows"]] == [
        ("a", 5, 6), ("c", None, 2),
    ]  # fmt: skip
    described = shop.get("openapi.json")
    for row in since["rows"]:
        fits(described, {"$ref": "#/components/schemas/shop.stock.change"}, row)
    then = shop.get(f"tables/stock/changes?since={since['position']}")
    assert ([row["key"]["sku"] for row in then["rows"]], then["position"]) == (["b"], "shop@1.3")
    assert shop.get(f"tables/stock/changes?since={then['position']}")["rows"] == []


@pytest.mark.slow
def test_a_warehouse_that_was_begun_anew_has_no_answer_that_was_of_the_one_before(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path)
    paths = ("/v1/tables/stock?at=shop@1.1", "/v1/tables/stock/changes?since=shop@1.0&until=shop@1.1")
    tags = {path: shop.client.get(path).headers["ETag"] for path in paths}
    assert [shop.client.get(path, headers={"If-None-Match": tags[path]}).status_code for path in paths] == [304, 304]
    shutil.rmtree(tmp_path / "warehouse")
    shop.run = Run(spark, tmp_path / "warehouse", shop.run.topology, [("moves", 0)])
    shop.given = 0
    shop.commit(("z", 9))
    found = [shop.client.get(path, headers={"If-None-Match": tags[path]}) for path in paths]
    assert [answer.status_code for answer in found] == [200, 200]
    assert [row["sku"] for row in found[0].json()["rows"]] == ["z"]


def test_an_answer_that_is_known_costs_no_spark_job(shop: Shop) -> None:
    tag = shop.client.get("/v1/tables/stock").headers["ETag"]
    tracker = shop.run.spark.sparkContext.statusTracker()
    jobs: list[str] = []

    class Noted(SparkJobs):
        def group(self, name: str) -> Any:
            jobs.append(name)
            return super().group(name)

    service_jobs, shop.desk._jobs = shop.desk._jobs, Noted(shop.run.spark)
    try:
        assert shop.client.get("/v1/tables/stock", headers={"If-None-Match": tag}).status_code == 304
    finally:
        shop.desk._jobs = service_jobs
    assert [tracker.getJobIdsForGroup(name) for name in jobs] == [[]]


def test_queries_at_once_see_their_own_positions_and_never_each_others(shop: Shop) -> None:
    sql = "SELECT sum(qty) AS qty, :mark AS mark FROM stock"
    wanted = {1: 12, 2: 15, 3: 8}
    with ThreadPoolExecutor(3) as threads:
        asked = [(seq, mark) for mark in range(2) for seq in wanted]
        found = threads.map(lambda of: shop.query(sql, at=f"shop@1.{of[0]}", parameters={"mark": of[1]}), asked)
        assert list(found) == [[{"qty": wanted[seq], "mark": mark}] for seq, mark in asked]


def test_the_errors_of_the_store_and_of_sql_have_their_status(shop: Shop) -> None:
    for path, status, told in (
        ("tables/stock?at=shop@1.9", 400, "isn't there yet"),
        ("tables/stock?at=other@1.1", 400, "position of app 'other'"),
        ("tables/stock?at=99", 400, "no version 99"),
        ("tables/prices?as_of=2020-01-01", 410, "its history goes back to"),
        ("tables/stock?as_of=2026-03-01", 400, "keeps no history"),
    ):
        answer = shop.client.get(f"/v1/{path}")
        assert (answer.status_code, told in answer.json()["detail"]) == (status, True), answer.text
    for sql, told in (
        ("SELECT nope FROM stock", "UNRESOLVED_COLUMN"), ("DROP TABLE stock", "PARSE_SYNTAX_ERROR"), ("SELECT 1 / 0", "DIVIDE_BY_ZERO"),
        ("SELECT sku, array() AS tags FROM stock", "CAST it"), ("SELECT map() AS m", "CAST it"),
        ("SELECT :a", "UNBOUND_SQL_PARAMETER"), ("SELECT * FROM text.`/etc/hostname`", "reads the tables of one app"),
    ):  # fmt: skip
        answer = shop.client.post("/v1/query", json={"sql": sql})
        assert (answer.status_code, told in answer.json()["detail"]) == (400, True), answer.text
    assert shop.client.post("/v1/query", json={"sql": "SELECT :a", "parameters": {"a": {"no": "value"}}}).status_code == 400


def test_where_each_app_stands_is_told_without_kafka_too(shop: Shop) -> None:
    found = shop.get("apps")["shop"]
    assert (found["position"], found["lag"], found["tables"]["stock"]["folded"]) == ("shop@1.3", None, "shop@1.1")


def test_jobs_of_a_request_that_takes_too_long_end_and_none_begins_after(shop: Shop) -> None:
    reader, tracker = shop.run.store.reader, shop.run.spark.sparkContext.statusTracker()
    desk = Desk(SparkJobs(shop.run.spark), at_once=1, seconds=3, patience=2)
    ended = threading.Event()

    def act() -> Any:
        try:
            return answers.query(reader, "SELECT sum(a.id * b.id) AS n FROM range(1000000) a, range(1000000) b").answer(1)
        finally:
            ended.set()

    async def compute(act: Callable[[], T]) -> T:
        return await desk.compute(never(), act)

    with pytest.raises(HTTPException) as refused:
        asyncio.run(compute(act))
    assert (refused.value.status_code, ended.wait(60), tracker.getActiveJobsIds()) == (504, True, [])
    assert asyncio.run(compute(lambda: 1)) == 1
    desk.close()


@pytest.mark.parametrize(("limit", "offset"), [(2, 0), (1, 1), (5, 2), (3, 9)])
def test_the_frame_that_stands_in_for_sparks_answers_as_that_does(shop: Shop, limit: int, offset: int) -> None:
    table = shop.run.topology.table("prices")
    real = answers.rows(shop.run.store.reader, table)
    stand_in: Any = Frame(shop.run.store.reader.read("prices").orderBy("sku").toArrow())
    assert Question(real.title, real.position, lambda: stand_in).answer(limit, offset) == real.answer(limit, offset)


def test_what_is_beyond_the_jvms_numbers_is_told_and_the_jvm_is_not_said_to_be_gone(shop: Shop) -> None:
    never = shop.client.get("/v1/tables/stock?at=99999999999999999999")
    assert (never.status_code, never.json()["error"]) == (400, "UnknownPosition")
    assert shop.get(f"tables/stock?offset={1 << 30}&limit=1000")["rows"] == []
    assert shop.query("SELECT :n AS n", parameters={"n": 10**20}) == [{"n": str(10**20)}]
