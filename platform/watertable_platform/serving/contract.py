"""Say what can be asked for over HTTP, as data: the parameters of each question, and the document (OpenAPI 3.1) that describes all of it.

The document is of the project as it was loaded: its tables are named, and a row of each has a schema of its own, so that what is generated
from it knows columns and types. JSON has fewer types than tables: decimals are texts, with all their digits; so are times, and bytes are
hexadecimal digits.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from watertable import __version__
from watertable.plan.plan import TableDef
from watertable.project import Project
from watertable.schema import Schema, Type

ARROW: Final = "application/vnd.apache.arrow.stream"
POSITION: Final = "Watertable-Position"
MORE: Final = "Watertable-More"
_ROWS: Final = 1000
_PLACE: Final = "a position (retail@1.481), a version of the table (12), a time of commits, or event:TIME"
_NOT_FINITE: Final = ["NaN", "Infinity", "-Infinity"]


class Asked(BaseModel):
    """Hold what any question of a table says: which page of its answer."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    limit: int = Field(_ROWS, ge=1, description="rows at most in one answer")
    offset: int = Field(0, ge=0, le=1 << 30, description="rows to pass over, in order of the key; `next` of an answer sets it")


class Rows(Asked):
    """Hold a question for rows."""

    key: str | None = Field(None, description="rows of this key; of several columns a JSON array, whose last may be left out")
    window: str | None = Field(None, description="rows of the windows that begin then: 2011-04-20T09:00Z")
    where: str | None = Field(None, description="rows of which this holds: a condition in Spark SQL, of the row and of `key.…`")
    at: str | None = Field(None, description=f"{_PLACE}; without it, the newest position")
    as_of: str | None = Field(None, description="of a versioned table: its rows as of this event time")


class Changes(Asked):
    """Hold a question for what differs between two positions."""

    since: str = Field(description=f"{_PLACE}, to begin from")
    until: str | None = Field(None, description="where to end; without it, at the newest position")
    key: str | None = Field(None, description="changes of this key")
    window: str | None = Field(None, description="changes of the windows that begin then")


class Query(BaseModel):
    """Hold a query in SQL."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    sql: str = Field(description="a query in Spark SQL over the tables of one app, by their names")
    app: str | None = Field(None, description="the app; it may be left out where there is one")
    at: str | None = Field(None, description="as of `at` of rows")
    parameters: dict[str, Any] | list[Any] = Field(default_factory=dict, description="values of its `:name`s, or of its `?`s in turn")
    limit: int = Field(_ROWS, ge=1, description="rows at most")


def tables_of(project: Project) -> dict[str, TableDef]:
    """List the tables that can be asked for, by the names that they have here: app.table."""
    return {f"{name}.{t.name}": t for name, loaded in sorted(project.apps.items()) for t in loaded.topology.tables}


def openapi(project: Project, *, token: bool) -> dict[str, Any]:
    """Describe the service of a project; `token` tells that it asks for one. Source: OpenAPI Specification 3.1."""
    tables = tables_of(project)
    most = project.settings.serve_rows
    table = {
        "name": "table", "in": "path", "required": True, "description": "a table by app and name, or by its name, where no other has it",
        "schema": {"type": "string", "examples": [*tables][:1]},
    }  # fmt: skip
    rows = [{"$ref": f"#/components/schemas/{name}"} for name in tables]
    changes = [{"$ref": f"#/components/schemas/{name}.change"} for name in tables]
    alive = {"type": "object", "required": ["spark"], "properties": {"spark": {"const": "running"}}}
    why = {"type": "string", "description": "why an app can't be read, or a folder, which goes by its path, doesn't load"}
    standing = {"type": "object", "additionalProperties": {"type": ["object", "null"], "properties": {"error": why}}}
    known = {"name": "If-None-Match", "in": "header", "required": False, "schema": {"type": "string"},
             "description": "the ETag of an answer: while it stays the same, 304 comes in its place"}  # fmt: skip
    paths = {
        "/health": {"get": {
            "operationId": "health", "summary": "Tell whether it can answer", "security": [],
            "responses": {"200": _answer("it can", alive), "503": _PROBLEM},
        }},
        "/v1/apps": {"get": {
            "operationId": "apps", "summary": "Tell where each app and table stands",
            "responses": {"200": _answer("by app", standing), "default": _PROBLEM},
        }},
        "/v1/tables": {"get": {
            "operationId": "tables", "summary": "List the tables, with their keys and columns",
            "responses": {"200": _answer("by table", {"type": "object", "additionalProperties": _TABLE}), "default": _PROBLEM},
        }},
        "/v1/tables/{table}": {"get": {
            "operationId": "rows", "summary": "Read rows of a table, at a position", "parameters": [table, *_parameters(Rows, most), known],
            "responses": {"200": _page("rows", rows), "304": _SAME, "default": _PROBLEM},
        }},
        "/v1/tables/{table}/changes": {"get": {
            "operationId": "changes", "summary": "Read what differs between two positions, by key",
            "parameters": [table, *_parameters(Changes, most), known],
            "responses": {"200": _page("changes", changes), "304": _SAME, "default": _PROBLEM},
        }},
        "/v1/query": {"post": {
            "operationId": "query", "summary": "Run a query over the tables of one app, at one position",
            "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Query"}}}},
            "responses": {"200": _page("rows of the query", [{"type": "object"}]), "default": _PROBLEM},
        }},
    }  # fmt: skip
    asked = Query.model_json_schema()
    asked["properties"]["limit"]["maximum"] = most
    schemas = {"Query": asked, "Problem": _PROBLEM_SCHEMA} | {name: _row(t.columns) for name, t in tables.items()}
    schemas |= {f"{name}.change": _change(t) for name, t in tables.items()}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "watertable", "version": __version__, "description": "Tables that streams maintain, read at positions."},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


_PROBLEM_SCHEMA: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"},
        "detail": {"type": "string", "description": "what is wrong, in the words of the command line"},
        "error": {"type": "string", "description": "the name of the error in Python, of one of watertable's"},
    },
}  # fmt: skip
_PROBLEM: Final = {
    "description": "A problem (RFC 9457)",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_SAME: Final = {"description": "Nothing has been committed since, and the answer is the same"}
_TABLE: Final = {
    "type": "object",
    "required": ["key", "columns", "windowed"],
    "properties": {"key": {"type": "string"}, "columns": {"type": "string"}, "windowed": {"type": "boolean"}},
}


def _answer(what: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": what, "content": {"application/json": {"schema": schema}}}


def _page(what: str, of: list[dict[str, Any]]) -> dict[str, Any]:
    page = {
        "type": "object",
        "required": ["position", "rows", "more"],
        "properties": {
            "position": {"type": "string", "description": "the position that it is of; `at=` of it reads the same again"},
            "rows": {"type": "array", "items": {"anyOf": of} if of else {"type": "object"}},
            "more": {"type": "boolean", "description": "whether there are rows beyond these"},
            "next": {"type": "string", "description": "where the next ones are, at the same position"},
        },
    }
    found = _answer(what, page)
    found["content"][ARROW] = {"schema": {"type": "string", "contentMediaType": ARROW}}
    told = {
        POSITION: "the position that it is of",
        MORE: "of an Arrow stream: whether there are more rows",
        "ETag": "of the position and the request",
    }
    found["headers"] = {name: {"description": words, "schema": {"type": "string"}} for name, words in told.items()}
    return found


def _parameters(of: type[BaseModel], most: int) -> list[dict[str, Any]]:
    """Write a question's fields as parameters of its address."""
    schema = of.model_json_schema()
    found = []
    for name, field in schema["properties"].items():
        kept = {part: field[part] for part in ("type", "minimum", "maximum", "default") if field.get(part) is not None}
        kept |= {} if "type" in kept else {"type": "string"}
        kept |= {"maximum": most} if name == "limit" else {}
        required = name in schema.get("required", [])
        found.append({"name": name, "in": "query", "required": required, "description": field["description"], "schema": kept})
    return found


def _row(columns: Schema) -> dict[str, Any]:
    """Write what a row is in JSON. Any column may be null."""
    return {
        "type": "object",
        "required": [*columns.names],
        "properties": {c.name: _value(c.type) | ({"description": c.comment} if c.comment else {}) for c in columns},
    }


def _change(table: TableDef) -> dict[str, Any]:
    value = _row(table.value) | {"type": ["object", "null"], "description": "its columns without the key; null where there is no row"}
    return {"type": "object", "required": ["key", "old", "new"], "properties": {"key": _row(table.key), "old": value, "new": value}}


def _value(of: Type) -> dict[str, Any]:
    match of.kind:
        case "boolean":
            return {"type": ["boolean", "null"]}
        case "tinyint" | "smallint" | "int" | "bigint":
            return {"type": ["integer", "null"]} | ({"format": "int64"} if of.kind == "bigint" else {})
        case "float" | "double":
            return {"anyOf": [{"type": "number"}, {"enum": [*_NOT_FINITE, None]}]}
        case "timestamp":
            return {"type": ["string", "null"], "format": "date-time"}
        case "date":
            return {"type": ["string", "null"], "format": "date"}
        case "decimal":
            return {"type": ["string", "null"], "pattern": "^-?[0-9]"}
        case "binary":
            return {"type": ["string", "null"], "pattern": "^([0-9a-f]{2})*$"}
        case "array" if of.element is not None:
            return {"type": ["array", "null"], "items": _value(of.element)}
        case "map" if of.element is not None:
            return {"type": ["object", "null"], "additionalProperties": _value(of.element)}
        case "struct":
            return _row(Schema(of.fields)) | {"type": ["object", "null"]}
        case _:
            return {"type": ["string", "null"]}
