"""Stand in for what the service reads, without a JVM: frames of rows that are there, and groups that can be cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from jsonschema import Draft202012Validator


class Frame:
    """A frame whose rows are there: what an answer asks of one."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    @classmethod
    def of(cls, *rows: dict[str, Any]) -> Frame:
        return cls(pa.Table.from_pylist(list(rows)))

    def offset(self, number: int) -> Frame:
        return Frame(self._rows.slice(number))

    def limit(self, number: int) -> Frame:
        return Frame(self._rows.slice(0, number))

    def toArrow(self) -> Any:
        return self._rows


class Jobs:
    """What computes until it is told to stop: `cancelled` is set by whoever cancels."""

    def __init__(self) -> None:
        self.groups, self.cancelled = list[str](), threading.Event()

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        self.groups.append(name)
        yield

    def cancel(self, name: str) -> None:
        assert name in self.groups
        self.cancelled.set()


async def never() -> None:
    """Be a client that stays."""
    await asyncio.Event().wait()


def fits(document: Mapping[str, Any], schema: Mapping[str, Any], value: object) -> None:
    """Hold a value to a schema of an OpenAPI document; raise `ValidationError` where it doesn't fit."""
    whole = {**schema, "components": document["components"]}
    Draft202012Validator.check_schema(whole)
    Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)


def answered(document: Mapping[str, Any], operation: Mapping[str, Any], answer: Any) -> None:
    """Hold an answer to what the document says of the operation."""
    response = operation["responses"].get(str(answer.status_code), operation["responses"].get("default"))
    assert response is not None, answer.text
    content = response["content"][answer.headers["content-type"].partition(";")[0]]
    fits(document, content["schema"], answer.json())
