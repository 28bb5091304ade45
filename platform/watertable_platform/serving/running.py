"""Run the service as one process: a socket, one warm Spark session, and an end without anything left behind."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import uvicorn

from watertable.errors import SettingsError, Unreachable
from watertable.project import Project
from watertable.session import alive
from watertable.settings import Secret, resolve
from watertable_platform import answers
from watertable_platform.serving.desk import Desk, SparkJobs
from watertable_platform.serving.service import Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK: Final = 0.2
"""Seconds between two looks at whether to go on."""
_GRACE: Final = 2
"""Seconds that requests have to end once the service is asked to."""


class _Server(uvicorn.Server):
    """Leave signals to the command."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


def token(setting: str) -> Secret | None:
    """Look the token up that a setting names; None where it names none. Raises `SettingsError` for one that is written down, or empty."""
    found = resolve("the service's token", setting) if setting else None
    if isinstance(found, str):
        raise SettingsError('a token is a secret: put it in the environment and name it, "env:NAME"')
    if found is not None and not found.reveal():
        raise SettingsError(f"the service's token = {setting!r}, but that is empty")
    return found


@contextmanager
def listening(host: str, port: int, token: Secret | None) -> Iterator[socket.socket]:
    """Listen on a port, 0 for any that is free; without a token only for this machine. Raises `SettingsError`."""
    if token is None and not _is_here(host):
        raise SettingsError(f"{host} can be reached from elsewhere: name a token, --token env:NAME or serve_token, for requests to send")
    try:
        found = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise SettingsError(f"can't listen on {host}:{port}: {error.strerror or error}; choose another --host or --port") from None
    with found:
        yield found


def serve(project: Project, spark: SparkSession, socket: socket.socket, token: Secret | None, stop: threading.Event) -> None:
    """Answer requests until it is time to stop; raise `Unreachable` when the JVM is gone."""
    # what a reader has seen of an app's log spares the next request a look
    readers = {name: answers.reader_of(spark, project.settings, loaded.topology) for name, loaded in project.apps.items()}
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)  # a line for each request, in the log that the command has chosen
    desk = Desk(SparkJobs(spark), project.settings.serve_requests, project.settings.serve_seconds)
    service = Service(project, lambda topology: readers[topology.app], desk, alive=lambda: alive(spark))
    config = uvicorn.Config(
        service.application(token), log_config=None, server_header=False, ws="none", timeout_graceful_shutdown=_GRACE, access_log=True
    )  # fmt: skip
    asyncio.run(_until(_Server(config), socket, spark, stop))


async def _until(server: uvicorn.Server, socket: socket.socket, spark: SparkSession, stop: threading.Event) -> None:
    serving = asyncio.create_task(server.serve(sockets=[socket]))
    while not stop.is_set() and not serving.done() and alive(spark):
        await asyncio.sleep(_LOOK)
    server.should_exit = True
    await serving
    if not stop.is_set():
        raise Unreachable("the JVM of this service is gone: killed, or out of memory (its log says); start it again")


def address(socket: socket.socket) -> str:
    """Give the address of a service that listens."""
    host, port = socket.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _is_here(host: str) -> bool:
    """Tell whether an address is this machine's own, which nobody reaches from elsewhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
