"""Say what can be asked for over HTTP, and answer it: the questions of the command line, in its words, with its JSON and its errors.

    GET  /v1/apps                          where each app and table stands, as `watertable status --json`
    GET  /v1/tables                        the tables that there are, with their keys and columns
    GET  /v1/tables/{app.table}            rows: key=, window=, where=, at=, as_of=, limit=, offset=
    GET  /v1/tables/{app.table}/changes    what changed: since=, until=, key=, window=, limit=, offset=
    POST /v1/query                         {"sql", "app", "at", "parameters", "limit"}
    GET  /v1/openapi.json                  all of this, and the rows of each table, for programs
    GET  /health                           whether Spark is there; no token is asked for

Each answer names the position that it is of, in `position` and in the header `Watertable-Position`: with `at=` of it the next request sees
the same. The entity tag of an answer stands for that position and the request, so who has it is told "304" before a row is read. An error
is a problem (RFC 9457) with the message that the command line gives.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal, InvalidOperation
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, BaseUser, SimpleUser
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from watertable.errors import (
    DefinitionError,
    EvaluationError,
    KeyMismatch,
    OtherCode,
    PositionGone,
    QueryRefused,
    SparkError,
    TableNotFound,
    UnknownPosition,
    Unreachable,
    UnsupportedFunction,
    WatertableError,
)
from watertable.plan.plan import TableDef, Topology
from watertable.project import Project
from watertable.settings import Secret
from watertable_platform import answers
from watertable_platform.answers import Question
from watertable_platform.serving import contract
from watertable_platform.serving.contract import ARROW, MORE, POSITION
from watertable_platform.serving.desk import Desk

if TYPE_CHECKING:
    from watertable.store.reader import Reader

_BODY: Final = 1 << 20
"""Bytes that the body of a request may have."""
_DIGITS: Final = 38
"""Digits that a DECIMAL of Spark's has at most."""
_HERE: Final = ("localhost", "127.0.0.1", "[::1]")
_STATUS: Final[tuple[tuple[type[WatertableError], int], ...]] = (
    (Unreachable, 503), (QueryRefused, 400), (PositionGone, 410), (UnknownPosition, 400), (OtherCode, 409), (TableNotFound, 404),
    (KeyMismatch, 400), (DefinitionError, 400), (EvaluationError, 400), (UnsupportedFunction, 400), (WatertableError, 500),
)  # fmt: skip
"""What an error is in HTTP; the first that fits. Of definitions, only a condition or a key that was asked for can be wrong here."""


A = TypeVar("A", contract.Rows, contract.Changes, contract.Query)


class Service:
    """Answer requests over the tables of a project's apps, as it was loaded."""

    def __init__(self, project: Project, readers: Callable[[Topology], Reader], desk: Desk, *, alive: Callable[[], bool]) -> None:
        self._project, self._readers, self._desk, self._alive = project, readers, desk, alive

    def application(self, token: Secret | None) -> Starlette:
        """Give the application; without a token it answers only who asks for this machine by its name, or a page elsewhere could ask."""
        guard = (
            Middleware(TrustedHostMiddleware, allowed_hosts=list(_HERE), www_redirect=False)
            if token is None
            else Middleware(AuthenticationMiddleware, backend=_Bearer(token), on_error=_unknown)
        )
        described = contract.openapi(self._project, token=token is not None)
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/openapi.json", lambda _: JSONResponse(described)),
                Route("/v1/apps", self._apps),
                Route("/v1/tables", self._tables),
                Route("/v1/tables/{table}", self._rows),
                Route("/v1/tables/{table}/changes", self._changes),
                Route("/v1/query", self._query, methods=["POST"]),
            ],
            middleware=[guard],
            exception_handlers={WatertableError: _refused, HTTPException: _refused, Exception: _refused},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        self._desk.close()

    # -- what can be asked for -----------------------------------------------------------------------------------------------------

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"spark": "running"}) if self._alive() else _problem(503, "the JVM is gone")

    async def _apps(self, request: Request) -> Response:
        found = await self._desk.compute(_gone(request), lambda: answers.standing(self._project, self._readers))
        return Response(answers.status_json(self._project, found), media_type="application/json", headers={"Cache-Control": "no-store"})

    async def _tables(self, _: Request) -> Response:
        return JSONResponse({name: _described(table) for name, table in contract.tables_of(self._project).items()})

    async def _rows(self, request: Request) -> Response:
        asked = self._read(contract.Rows, request.query_params)
        topology, table = answers.find_table(self._project, request.path_params["table"])
        wanted = answers.read_key(table, asked.key, asked.window)
        where = None if asked.where is None else answers.condition(table, asked.where)
        at = None if asked.at is None else answers.parse_at(asked.at)
        as_of = None if asked.as_of is None else answers.parse_time(asked.as_of)

        def ask() -> Question:
            return answers.rows(self._readers(topology), table, wanted=wanted, where=where, at=at, as_of=as_of)

        return await self._answered(request, topology, ask, asked.limit, asked.offset, lambda question: {"at": question.position})

    async def _changes(self, request: Request) -> Response:
        asked = self._read(contract.Changes, request.query_params)
        topology, table = answers.find_table(self._project, request.path_params["table"])
        wanted = answers.read_key(table, asked.key, asked.window)
        since, until = answers.parse_at(asked.since), None if asked.until is None else answers.parse_at(asked.until)

        def ask() -> Question:
            return answers.changes(self._readers(topology), table, since, until, wanted=wanted)

        def pinned(question: Question) -> dict[str, str]:
            return {"since": question.since, "until": question.position}

        return await self._answered(request, topology, ask, asked.limit, asked.offset, pinned)

    async def _query(self, request: Request) -> Response:
        asked = self._read(contract.Query, await _body(request))
        topology = self._topology(asked.app)
        at = None if asked.at is None else answers.parse_at(asked.at)

        def ask() -> Question:
            return answers.query(self._readers(topology), asked.sql, at, asked.parameters)

        try:
            return await self._answered(request, topology, ask, asked.limit)
        except Unreachable:
            raise
        except SparkError as error:  # what Spark refuses of a person's SQL, or fails at, is that person's
            return _problem(400, str(error), type(error).__name__)

    # -- how it is answered --------------------------------------------------------------------------------------------------------

    async def _answered(
        self, request: Request, topology: Topology, ask: Callable[[], Question], limit: int, offset: int = 0,
        pinned: Callable[[Question], Mapping[str, str]] | None = None,
    ) -> Response:  # fmt: skip
        """Ask, and answer in the form that the client accepts; `pinned` says in the words of a request where a question was asked."""
        by_arrow = ARROW in request.headers.get("accept", "")

        def act() -> Response:
            question = ask()
            headers = {POSITION: question.position, "Cache-Control": "private, no-cache", "Vary": "Accept"}
            if pinned is not None:
                headers["ETag"] = tag = _tag(question, topology.fingerprint, by_arrow, str(request.url.path), str(request.url.query))
                if tag in [known.strip().removeprefix("W/") for known in request.headers.get("if-none-match", "").split(",")]:
                    return Response(status_code=304, headers=headers)

            following = ""
            if pinned is not None:
                url = request.url.include_query_params(**pinned(question), offset=offset + limit)
                following = f"{url.path}?{url.query}"
            if by_arrow:
                found, more = question.arrow(limit, offset)
                headers |= {MORE: str(more).lower()} | ({"Link": f'<{following}>; rel="next"'} if more and following else {})
                return Response(_streamed(found, question.position), media_type=ARROW, headers=headers)
            answer = question.answer(limit, offset)
            told = {"next": following} if answer.more and following else {}
            return Response(answers.answer_json(answer, **told), media_type="application/json", headers=headers)

        return await self._desk.compute(_gone(request), act)

    def _read(self, of: type[A], given: Any) -> A:
        """Read what is asked for; say what is wrong with it."""
        if isinstance(given, QueryParams) and (twice := sorted(name for name in given if len(given.getlist(name)) > 1)):
            raise HTTPException(400, f'{", ".join(twice)}: given twice; a key of several columns is one JSON array: ["a", 1]')
        try:
            asked = of.model_validate(dict(given))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise HTTPException(400, wrong) from None
        if asked.limit > (most := self._project.settings.serve_rows):
            raise HTTPException(400, f"limit: at most {most} rows at once (serve_rows)")
        return asked

    def _topology(self, app: str | None) -> Topology:
        """Find the app that a query is about; the only one needn't be named."""
        apps = self._project.apps
        if app is None and len(apps) == 1:
            return next(iter(apps.values())).topology
        if app is None:
            raise HTTPException(400, f"app: name the app whose tables the query reads, one of {', '.join(sorted(apps)) or 'none'}")
        if app not in apps:
            raise TableNotFound(f"no app {app!r}; there are: {', '.join(sorted(apps)) or 'none'}{self._project.told_broken}")
        return apps[app].topology


class _Bearer(AuthenticationBackend):
    """Let in who has the token; for the health of the service nobody needs it."""

    def __init__(self, token: Secret) -> None:
        self._token = token

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        scheme, _, given = conn.headers.get("authorization", "").partition(" ")
        known = secrets.compare_digest(given.encode(), self._token.reveal().encode())
        if conn.scope["path"] != "/health" and not (scheme.lower() == "bearer" and known):
            raise AuthenticationError("send the token of this service: Authorization: Bearer ...")
        return AuthCredentials(), SimpleUser("")


def _unknown(_: HTTPConnection, error: Exception) -> Response:
    return _problem(401, str(error), headers={"WWW-Authenticate": "Bearer"})


async def _gone(request: Request) -> None:
    """Wait until the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> Any:
    """Read a request's JSON, numbers with all their digits."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "send JSON, as Content-Type: application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _BODY:
            raise HTTPException(413, f"a request has {_BODY >> 20} MB at most")
    try:
        found = json.loads(body, parse_float=_fraction, parse_int=_whole, parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False, default=str).encode()  # half of a character can't be told to Spark
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"this is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise HTTPException(400, 'send a JSON object: {"sql": "SELECT ..."}')
    return found


def _whole(text: str) -> int | Decimal:
    """Read a whole number; one that is no BIGINT is a decimal."""
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else Decimal(text)


def _fraction(text: str) -> Decimal:
    """Read a number with a point or an exponent; of 1e999999999 whoever makes a whole number writes all digits, for hours."""
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent that is itself beyond any number
        number = Decimal("NaN")
    if not number.is_finite() or abs(number.adjusted()) > _DIGITS or len(number.as_tuple().digits) > _DIGITS:
        raise HTTPException(
            400, f"{text[:20]}{'...' * (len(text) > 20)} is no DECIMAL: those have {_DIGITS} digits; send a text, and CAST it"
        )
    return number


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no number of JSON's")


def _described(table: TableDef) -> dict[str, object]:
    return {"key": table.key.sql(), "columns": table.columns.sql(), "windowed": table.windows is not None}


def _tag(question: Question, *of: object) -> str:
    """Make an entity tag: the same position of a changelog and the same request give the same, as the same rows do."""
    return f'"{hashlib.sha256(json.dumps([question.of, question.position, question.since, *of]).encode()).hexdigest()[:32]}"'


def _streamed(table: Any, position: str) -> bytes:
    """Write rows as an Arrow stream, with the position among its schema's metadata."""
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), "watertable.position": position})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


async def _refused(_: Request, error: Exception) -> Response:
    """Say what is wrong as the command line does; a mistake of ours is in the log alone."""
    match error:
        case HTTPException():
            return _problem(error.status_code, error.detail, headers=error.headers)
        case WatertableError():
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            return _problem(status, str(error), type(error).__name__, headers={"Retry-After": "5"} if status == 503 else None)
        case _:
            return _problem(500, "this is a mistake of watertable's, please report it with what the log of the service says")


def _problem(status: int, detail: str, error: str | None = None, headers: Mapping[str, str] | None = None) -> Response:
    title = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Client Closed Request"
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail} | ({"error": error} if error else {})
    return JSONResponse(body, status, headers=headers, media_type="application/problem+json")
