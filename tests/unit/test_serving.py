"""The service over HTTP: what it answers, what it refuses and in which words, and who may ask. Without a JVM: the rows are there."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jsonschema import ValidationError
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from tests.serving import Frame, Jobs, answered, fits, never
from watertable.errors import (
    OtherCode,
    PositionGone,
    QueryRefused,
    SettingsError,
    SparkError,
    StoreError,
    TableNotFound,
    UnknownPosition,
    Unreachable,
)
from watertable.project import Project, load_apps
from watertable.settings import Secret, Settings
from watertable_platform import answers
from watertable_platform.answers import Question
from watertable_platform.cli import show
from watertable_platform.cli.main import main
from watertable_platform.serving import running
from watertable_platform.serving.contract import ARROW
from watertable_platform.serving.desk import GONE, Desk
from watertable_platform.serving.service import Service

SHOP = """
import watertable as wt

app = wt.App("shop")
sales = app.topic("sales", key="sku STRING, size INT", value="qty BIGINT, price DECIMAL(9,2)", timestamp=None).stream()
stock = sales.group_by_key().agg(qty=wt.sum("qty"), price=wt.last("price")).materialized_as("stock")
hourly = sales.group_by("sku").windowed_by(wt.tumbling(hours=1)).agg(n=wt.count()).materialized_as("hourly")
"""
HERE = "http://127.0.0.1:8474"
ROWS = [{"sku": s, "size": n, "qty": n, "price": Decimal("2.50"), "at": datetime(2026, 3, 1, n, tzinfo=UTC)} for n, s in enumerate("abc")]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    home = tmp_path_factory.mktemp("shop")
    (home / "shop_assets" / "shop").mkdir(parents=True)
    (home / "shop_assets" / "shop" / "app.py").write_text(SHOP)
    return load_apps(Settings.load(home, assets=("shop_assets",), kafka="127.0.0.1:1", serve_rows=2000))


class Asked(list[Mapping[str, Any]]):
    """What was asked for, and what of it was computed."""

    computed = 0

    def question(self, **asked: Any) -> Question:
        self.append(asked)

        def frame() -> Any:
            self.computed += 1
            return Frame.of(*ROWS)

        return Question("shop", "shop@1.7", frame, "shop@1.2")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()
    monkeypatch.setattr(answers, "rows", lambda reader, table, **more: found.question(table=table.name, **more))
    monkeypatch.setattr(answers, "changes", lambda reader, table, *at, **more: found.question(table=table.name, at=at, **more))
    monkeypatch.setattr(answers, "query", lambda reader, sql, at, given: found.question(sql=sql, at=at, given=given))
    return found


def client(project: Project, token: Secret | None = None, desk: Desk | None = None, alive: bool = True) -> TestClient:
    service = Service(project, lambda _: None, desk or Desk(Jobs(), 2, 30), alive=lambda: alive)  # type: ignore[arg-type, return-value]
    return TestClient(service.application(token), base_url=HERE, raise_server_exceptions=False)


def test_rows_are_what_the_command_line_gives_as_json_with_their_position(project: Project, asked: Asked) -> None:
    answer = client(project).get("/v1/tables/shop.stock", params={"key": '["a", 1]', "at": "shop@1.7", "limit": 2})
    assert answer.status_code == 200
    assert answer.headers["Watertable-Position"] == "shop@1.7"
    first = {"sku": "a", "size": 0, "qty": 0, "price": "2.50", "at": "2026-03-01T00:00:00Z"}
    body = answer.json()
    assert (body["position"], body["rows"][0], len(body["rows"]), body["more"]) == ("shop@1.7", first, 2, True)
    assert asked == [{"table": "stock", "wanted": {"sku": "a", "size": 1}, "where": None, "at": "shop@1.7", "as_of": None}]


def test_the_next_page_is_of_the_same_position(project: Project, asked: Asked) -> None:
    here = client(project)
    first = here.get("/v1/tables/stock?limit=2").json()
    assert first["next"] == "/v1/tables/stock?limit=2&at=shop%401.7&offset=2"
    last = here.get(first["next"]).json()
    assert ([row["sku"] for row in first["rows"] + last["rows"]], last["more"], "next" in last) == (["a", "b", "c"], False, False)
    assert asked[1]["at"] == "shop@1.7"
    changes = here.get("/v1/tables/stock/changes?since=3&limit=1").json()
    assert changes["next"] == "/v1/tables/stock/changes?limit=1&since=shop%401.2&until=shop%401.7&offset=1"


def test_arrow_holds_the_same_rows_with_their_types(project: Project, asked: Asked) -> None:
    answer = client(project).get("/v1/tables/stock?limit=2", headers={"Accept": f"{ARROW}, application/json;q=0.5"})
    assert answer.headers["content-type"] == ARROW
    assert (answer.headers["Watertable-More"], answer.headers["Watertable-Position"]) == ("true", "shop@1.7")
    assert answer.headers["Link"] == '</v1/tables/stock?limit=2&at=shop%401.7&offset=2>; rel="next"'
    table = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
    assert table.to_pylist() == ROWS[:2]
    assert table.schema.metadata[b"watertable.position"] == b"shop@1.7"


def test_who_has_seen_a_position_is_told_so_before_a_row_is_read(project: Project, asked: Asked) -> None:
    here = client(project)
    tag = here.get("/v1/tables/stock").headers["ETag"]
    again = here.get("/v1/tables/stock", headers={"If-None-Match": f'"else", W/{tag}'})
    assert (again.status_code, again.content, again.headers["Watertable-Position"], asked.computed) == (304, b"", "shop@1.7", 1)
    for other in ("/v1/tables/stock?limit=1", "/v1/tables/hourly", "/v1/tables/stock/changes?since=3"):
        assert here.get(other, headers={"If-None-Match": tag}).status_code == 200
    assert here.get("/v1/tables/stock", headers={"If-None-Match": tag, "Accept": ARROW}).status_code == 200


def test_a_small_decimal_is_written_with_all_its_digits() -> None:
    column = pa.array([Decimal("0E-10"), Decimal("-0.0000001")], pa.decimal128(20, 10))
    found = Question("q", "shop@1.7", lambda: Frame(pa.table({"d": column}))).answer(10)  # type: ignore[arg-type, return-value]
    assert [row["d"] for row in json.loads(answers.answer_json(found))["rows"]] == ["0.0000000000", "-0.0000001000"]
    assert [show._cell(row[0]).plain for row in found.rows] == ["0.0000000000", "-0.0000001000"]


def test_a_time_that_python_has_no_value_for_is_told_with_the_way_out() -> None:
    for column in (pa.array([1 << 60], pa.timestamp("us", "UTC")), pa.array([-(1 << 20)], pa.date32())):
        asked = Question("q", "shop@1.7", lambda column=column: Frame(pa.table({"at": column})))  # type: ignore[misc, arg-type, return-value]
        with pytest.raises(QueryRefused, match="CAST it AS STRING"):
            asked.answer(10)


def test_a_query_is_sent_as_json_with_values_that_keep_their_digits(project: Project, asked: Asked) -> None:
    given = '{"p": 2.50, "many": ["a", null, true], "n": 100000000000000000000}'
    body = f'{{"sql": "SELECT * FROM stock WHERE price > :p", "at": "shop@1.7", "parameters": {given}}}'
    answer = client(project).post("/v1/query", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["position"]) == (200, "shop@1.7")
    (was,) = asked
    assert was["given"] == {"p": Decimal("2.50"), "many": ["a", None, True], "n": Decimal(10**20)}
    assert str(was["given"]["p"]) == "2.50"


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/v1/tables/nope", 404, "no table 'nope'; there are: shop.stock, shop.hourly"),
        ("/v1/tables/shop.stock/nope", 404, "Not Found"),
        ("/v1/tables/stock?key=[", 400, "is no JSON array"),
        ('/v1/tables/stock?key=["a", "x"]', 400, "'x' is no INT"),
        ("/v1/tables/stock?window=2026-01-01", 400, "has no windows"),
        (f"/v1/tables/stock?key={'[' * 5000}", 400, "the key "),  # deeper than Python's stack, or not, by its version
        ('/v1/tables/stock?key=["\\ud800"]', 400, "is no STRING"),
        ("/v1/tables/stock?at=soon", 400, "names no position"),
        ("/v1/tables/stock?at=²", 400, "names no position"),
        (f"/v1/tables/stock?at={'9' * 5000}", 400, "names no position"),
        ("/v1/tables/stock?at=event:9999-12-31T23:59-14:00", 400, "names no position"),
        ("/v1/tables/stock?as_of=soon", 400, "write an event time"),
        ("/v1/tables/stock?where=nope > 1", 400, "nope"),
        ("/v1/tables/stock?where=reflect('java.lang.System', 'lineSeparator') = ''", 400, "reflect"),
        ("/v1/tables/stock?limit=0", 400, "limit: "),
        ("/v1/tables/stock?limit=2001", 400, "at most 2000 rows"),
        ("/v1/tables/stock?offset=2147483648", 400, "offset: "),
        ("/v1/tables/stock?keys=a", 400, "keys: "),
        ("/v1/tables/stock/changes", 400, "since: "),
        ("/v1/nope", 404, "Not Found"),
        ("/v1/query", 405, "Method Not Allowed"),
    ],
)
def test_what_is_wrong_is_a_problem_with_the_message_of_the_command_line(
    project: Project, asked: Asked, path: str, status: int, told: str
) -> None:
    answer = client(project).get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json().keys() - {"error"} == {"type", "title", "status", "detail"}
    assert told in answer.json()["detail"]
    assert asked == []


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("{", 400, "this is no JSON"),
        ("[]", 400, "send a JSON object"),
        ("[" * 100_000, 400, "this is no JSON"),
        ('{"sql": "SELECT 1", "parameters": [NaN]}', 400, "NaN"),
        ('{"sql": "SELECT \\ud800"}', 400, "surrogates"),
        ("{}", 400, "sql: "),
        ('{"sql": "SELECT 1", "app": "nope"}', 404, "no app 'nope'; there are: shop"),
        ('{"sql": "SELECT 1", "parameters": "x"}', 400, "parameters"),
        ('{"sql": "SELECT 1", "limit": 99999}', 400, "at most 2000 rows"),
        (json.dumps({"sql": "x" * (1 << 20)}), 413, "1 MB at most"),
    ],
)
def test_a_body_that_can_t_be_read_is_a_problem(project: Project, asked: Asked, body: str, status: int, told: str) -> None:
    answer = client(project).post("/v1/query", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, told in answer.json()["detail"], asked) == (status, True, [])


@pytest.mark.parametrize("number", ["1e999999999", "1e-999999999", "1e9999999999999999999", f"0.{'1' * 39}"])
def test_a_number_that_no_decimal_holds_is_refused_before_its_digits_are_written(project: Project, asked: Asked, number: str) -> None:
    for body in (f'{{"sql": "SELECT 1", "limit": {number}}}', f'{{"sql": "SELECT :n", "parameters": {{"n": [{number}]}}}}'):
        answer = client(project).post("/v1/query", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, "is no DECIMAL" in answer.json()["detail"], len(answer.json()["detail"]) < 100) == (400, True, True)
    assert asked == []


def test_a_parameter_that_is_given_twice_is_refused_and_none_of_the_two_is_taken(project: Project, asked: Asked) -> None:
    answer = client(project).get("/v1/tables/stock", params={"key": ["a", "1"], "limit": 1})
    assert (answer.status_code, answer.json()["detail"], asked) == (
        400, 'key: given twice; a key of several columns is one JSON array: ["a", 1]', [],
    )  # fmt: skip


def test_a_form_of_another_page_can_t_be_a_query(project: Project, asked: Asked) -> None:
    answer = client(project).post("/v1/query", content='{"sql": "SELECT 1"}', headers={"Content-Type": "text/plain"})
    assert (answer.status_code, asked) == (415, [])
    preflight = client(project).options("/v1/query", headers={"Origin": "http://x", "Access-Control-Request-Method": "POST"})
    assert not [name for name in preflight.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (PositionGone("trimmed"), 410), (UnknownPosition("isn't there yet"), 400), (TableNotFound("never ran"), 404),
        (Unreachable("storage failed"), 503), (SparkError("[DIVIDE_BY_ZERO]"), 500), (StoreError("rebuild it"), 500),
        (OtherCode("other code made it"), 409),
        (KeyError("/a/path and a token"), 500),
    ],
)  # fmt: skip
def test_each_error_has_a_status_and_ours_is_told_to_the_log_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail(*_: object, **__: object) -> Question:
        raise error

    for name in ("rows", "query"):
        monkeypatch.setattr(answers, name, fail)
    here = client(project)
    answer = here.get("/v1/tables/stock")
    ours = isinstance(error, KeyError)
    assert (answer.status_code, answer.json().get("error")) == (status, None if ours else type(error).__name__)
    assert ("a path" not in answer.text) if ours else (answer.json()["detail"] == str(error))
    assert ("Retry-After" in answer.headers) == (status == 503)
    asked = here.post("/v1/query", json={"sql": "SELECT 1 / 0"})
    assert asked.status_code == (400 if type(error) is SparkError else status), (
        "of a query, what Spark fails at is who asks it to blame for"
    )


def test_a_column_of_two_of_one_name_is_refused_as_json_and_not_by_arrow(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    twice: Any = Frame(pa.table([[1], [2]], names=["n", "n"]))
    monkeypatch.setattr(answers, "query", lambda *_: Question("q", "shop@1.7", lambda: twice))
    here = client(project)
    answer = here.post("/v1/query", json={"sql": "SELECT 1 AS n, 2 AS n"})
    assert (answer.status_code, "name them apart with AS" in answer.json()["detail"]) == (400, True)
    assert here.post("/v1/query", json={"sql": "SELECT 1 AS n, 2 AS n"}, headers={"Accept": ARROW}).status_code == 200


def test_without_the_token_nothing_is_told_but_health(project: Project, asked: Asked) -> None:
    here = client(project, Secret("sesame"))
    assert here.get("/health").json() == {"spark": "running"}
    for given in ({}, {"Authorization": "Bearer nope"}, {"Authorization": "Basic sesame"}, {"Authorization": "Bearer sesamé".encode()}):
        for path in ("/v1/tables", "/v1/apps", "/v1/nope", "/health/"):
            answer = here.get(path, headers=given)  # type: ignore[arg-type]
            assert (answer.status_code, answer.headers["WWW-Authenticate"], "sesame" in answer.text) == (401, "Bearer", False)
    assert here.get("/v1/tables/stock", headers={"Authorization": "bearer sesame"}).status_code == 200
    assert client(project, alive=False).get("/health").status_code == 503


def test_without_a_token_only_who_names_this_machine_is_answered(project: Project, asked: Asked) -> None:
    """Or a page whose name points here, for a moment, could read tables with somebody's browser."""
    here = client(project)
    for host, status in (("localhost:8474", 200), ("[::1]:8474", 200), ("elsewhere.example", 400), ("127.0.0.1.example:8474", 400)):
        assert here.get("/v1/tables/stock", headers={"Host": host}).status_code == status


def test_tables_are_listed_with_their_keys(project: Project) -> None:
    found = client(project).get("/v1/tables").json()
    assert found["shop.stock"] == {
        "key": "`sku` STRING, `size` INT", "columns": "`sku` STRING, `size` INT, `qty` BIGINT, `price` DECIMAL(9,2)", "windowed": False,
    }  # fmt: skip
    assert found["shop.hourly"]["windowed"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "0.0.0.0"], "name a token"),
        (["--host", "example.org"], "name a token"),
        (["--token", "sesame"], "a token is a secret"),
        (["--token", "env:WATERTABLE_NO_TOKEN"], "is not set in the environment"),
        (["--host", "::1", "--port", "{taken}"], "can't listen on ::1:"),
    ],
)
def test_a_service_that_would_be_open_to_everybody_or_hears_nobody_doesn_t_start(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    home = project.settings.project
    (home / "pyproject.toml").write_text("[tool.watertable]\nassets = ['shop_assets']\n")
    monkeypatch.setenv("WATERTABLE_PROJECT", str(home))
    monkeypatch.setattr("watertable_platform.cli.terminal.begin_session", lambda *_, **__: pytest.fail("Spark starts"))
    with running.listening("::1", 0, None) as taken:
        assert main(["serve", *(a.format(taken=taken.getsockname()[1]) for a in arguments)]) == 2
    said = capsys.readouterr().err
    assert (told in " ".join(said.split()), "sesame" in said) == (True, False)


def test_a_token_that_is_written_down_is_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="serve_token"):
        Settings.load(tmp_path, serve_token="sesame")
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises(SettingsError, match="is empty"):
        running.token("env:EMPTY")
    assert running.token("") is None


# -- so many at once, each for so long -----------------------------------------------------------------------------------------------------


def test_a_request_over_the_bound_waits_and_is_then_asked_to_come_again() -> None:
    async def story() -> list[object]:
        jobs, go = Jobs(), threading.Event()
        desk = Desk(jobs, at_once=1, seconds=30, patience=0.2)
        first = asyncio.create_task(desk.compute(never(), lambda: go.wait(10)))
        await asyncio.sleep(0.05)
        with pytest.raises(HTTPException) as refused:
            await desk.compute(never(), lambda: "never begun")
        waiting = asyncio.create_task(desk.compute(never(), lambda: "had its turn"))
        go.set()
        found = [refused.value.status_code, (refused.value.headers or {})["Retry-After"], await first, await waiting, len(jobs.groups)]
        desk.close()
        return [*found, jobs.cancelled.is_set()]

    assert asyncio.run(story()) == [503, "2", True, "had its turn", 2, False]


@pytest.mark.parametrize(("seconds", "status"), [(0.3, 504), (30, GONE)])
def test_what_takes_too_long_or_nobody_waits_for_is_cancelled(seconds: float, status: int) -> None:
    async def story() -> tuple[int, bool, str]:
        jobs = Jobs()
        desk = Desk(jobs, at_once=1, seconds=seconds, patience=0.1)

        async def gone() -> None:
            await (asyncio.sleep(0.3) if status == GONE else never())

        with pytest.raises(HTTPException) as refused:
            await desk.compute(gone(), lambda: jobs.cancelled.wait(10))
        cancelled = await asyncio.to_thread(jobs.cancelled.wait, 5)
        after = await desk.compute(never(), lambda: "its place is free")
        desk.close()
        return refused.value.status_code, cancelled, after

    assert asyncio.run(story()) == (status, True, "its place is free")


def test_an_error_in_a_thread_is_that_of_the_request() -> None:
    def fail() -> Callable[[], None]:
        raise PositionGone("trimmed")

    async def story() -> None:
        desk = Desk(Jobs(), at_once=1, seconds=5)
        with pytest.raises(PositionGone):
            await desk.compute(never(), fail)
        desk.close()

    asyncio.run(story())


def test_the_service_describes_itself_and_each_answer_is_as_it_says(project: Project, asked: Asked) -> None:
    here = client(project)
    told = here.get("/v1/openapi.json").json()
    routes = {route.path: {way.lower() for way in route.methods} - {"head"} for route in here.app.routes}  # type: ignore[attr-defined]
    assert {path: {*ways} for path, ways in told["paths"].items()} == {p: ways for p, ways in routes.items() if "openapi" not in p}
    for path, told_of in (
        ("health", "/health"), ("v1/tables", "/v1/tables"), ("v1/tables/shop.stock?limit=2", "/v1/tables/{table}"),
        ("v1/tables/none", "/v1/tables/{table}"), ("v1/tables/stock?limit=-1", "/v1/tables/{table}"),
        ("v1/tables/stock/changes", "/v1/tables/{table}/changes"),
    ):  # fmt: skip
        answered(told, told["paths"][told_of]["get"], here.get(f"/{path}"))
    query = told["paths"]["/v1/query"]["post"]
    answered(told, query, here.post("/v1/query", json={"sql": "SELECT 1", "app": "shop"}))
    answered(told, query, here.post("/v1/query", json={"sql": "SELECT 1", "limit": 0}))
    with pytest.raises(ValidationError):  # what a row isn't
        fits(told, {"$ref": "#/components/schemas/shop.stock"}, {"sku": "a", "size": "1", "qty": 1, "price": "2.50"})


def test_what_the_description_says_of_parameters_is_what_is_taken(project: Project, asked: Asked) -> None:
    here = client(project)
    told = here.get("/v1/openapi.json").json()
    for path, fixed in (("/v1/tables/{table}", {}), ("/v1/tables/{table}/changes", {"since": "shop@1.2"})):
        given = {"key": '["a", 1]', "where": "qty > 1", "at": "shop@1.7", "since": "shop@1.2", "until": "shop@1.7", "limit": 3, "offset": 1}
        for parameter in told["paths"][path]["get"]["parameters"]:
            if parameter["in"] == "query" and (value := given.get(parameter["name"])) is not None:
                fits(told, parameter["schema"], value)
                answer = here.get(path.replace("{table}", "shop.stock"), params=fixed | {parameter["name"]: value})
                assert answer.status_code == 200, answer.text
        for parameter in told["paths"][path]["get"]["parameters"]:
            most = parameter["schema"].get("maximum")
            if most is not None:
                assert here.get(path.replace("{table}", "stock"), params=fixed | {parameter["name"]: most + 1}).status_code == 400


def test_who_needs_a_token_is_told_so_by_the_description(project: Project) -> None:
    here = client(project, Secret("sesame"))
    assert here.get("/v1/openapi.json").status_code == 401
    told = here.get("/v1/openapi.json", headers={"Authorization": "Bearer sesame"}).json()
    assert told["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    assert (told["security"], told["paths"]["/health"]["get"]["security"]) == ([{"token": []}], [])
