"""`watertable serve` as a process of its own, asked by a client over HTTP: how it begins, answers, lets go, and ends."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
import psutil
import pytest

from tests.spark.runs import Run
from watertable.project import load_apps
from watertable.records import Record
from watertable.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.spark]
SHOP = """
import watertable as wt

app = wt.App("shop")
moves = app.topic("moves", key="sku STRING", value="qty BIGINT", timestamp=None).stream()
stock = moves.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
"""
ENDLESS = "SELECT sum(a.id * b.id) AS n FROM range(1000000) a, range(1000000) b"


class Served:
    """Hold a project with a filled store, and the service over it."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        (home / "assets" / "shop").mkdir(parents=True)
        (home / "assets" / "shop" / "app.py").write_text(SHOP)
        (home / "pyproject.toml").write_text(
            "[tool.watertable]\nkafka = '127.0.0.1:1'\nmaster = 'local[2]'\nserve_requests = 1\nserve_token = 'env:SHOP_TOKEN'\n"
        )
        settings = Settings.load(home)
        self.run, self.home = Run(spark, settings.home_folder / "warehouse", load_apps(settings).app("shop").topology, [("moves", 0)]), home
        self.commit(0, ("a", 5), ("b", 7))
        environment = {**os.environ, "SHOP_TOKEN": "sesame", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "watertable_platform", "serve", "--port", "0"]
        self.process = subprocess.Popen(
            command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        self.told = [self.process.stdout.readline() for _ in range(2)]
        found = re.search(r"at (http://127\.0\.0\.1:\d+), until Ctrl-C", self.told[0])
        assert found, (self.told, self.process.stderr and self.process.stderr.read())
        self.address = found[1]

    def commit(self, first: int, *moves: tuple[str, int]) -> None:
        at = datetime(2026, 3, 1, tzinfo=UTC)
        self.run.read([Record("moves", 0, first + n, at, s.encode(), json.dumps({"qty": q}).encode()) for n, (s, q) in enumerate(moves)])

    def ask(self, path: str, body: Any = None, **headers: str) -> Any:
        given = {"Authorization": "Bearer sesame", "Content-Type": "application/json", **headers}
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.address + path, data, given), timeout=60)

    def status(self, path: str, body: Any = None) -> int | None:
        """Give the status of an answer; None where there is none."""
        try:
            return int(self.ask(path, body).status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None


@pytest.fixture
def served(spark: SparkSession, tmp_path: Path) -> Iterator[Served]:
    made = Served(spark, tmp_path)
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def test_a_service_answers_at_positions_lets_go_of_who_is_gone_and_leaves_nothing_behind(served: Served) -> None:
    assert served.told[1] == f"""  curl -H "Authorization: Bearer $SHOP_TOKEN" '{served.address}/v1/tables/shop.stock?limit=5'\n"""
    with served.ask("/v1/tables/shop.stock") as answer:
        first = json.load(answer)
        assert (first["position"], answer.headers["Watertable-Position"]) == ("shop@1.1", "shop@1.1")
    assert first["rows"] == [{"sku": "a", "qty": 5}, {"sku": "b", "qty": 7}]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        served.ask("/v1/tables/shop.stock", Authorization="Bearer nope")
    with pytest.raises(urllib.error.HTTPError, match="304"):
        served.ask("/v1/tables/shop.stock", **{"If-None-Match": answer.headers["ETag"]})

    # what another process commits is there at once, and what was, still is
    served.commit(2, ("a", 1), ("c", 2))
    with served.ask("/v1/tables/shop.stock?key=a", Accept="application/vnd.apache.arrow.stream") as answer:
        assert polars.read_ipc_stream(io.BytesIO(answer.read())).rows() == [("a", 6)]
    assert json.load(served.ask("/v1/tables/shop.stock?key=a&at=shop@1.1"))["rows"] == [{"sku": "a", "qty": 5}]
    changed = json.load(served.ask("/v1/tables/shop.stock/changes?since=shop@1.1"))
    assert ([row["key"]["sku"] for row in changed["rows"]], changed["position"]) == (["a", "c"], "shop@1.2")
    assert json.load(served.ask("/v1/query", {"sql": "SELECT sum(qty) AS n FROM stock WHERE sku < :s", "parameters": {"s": "c"}}))[
        "rows"
    ] == [{"n": 13}]

    # the one request that is computed is somebody's who goes away
    body = json.dumps({"sql": ENDLESS}).encode()
    host, port = served.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as rude:
        head = f"POST /v1/query HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer sesame\r\nContent-Type: application/json\r\n"
        rude.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(2)
    begun = time.monotonic()
    while (status := served.status("/v1/query", {"sql": "SELECT 1 AS n"})) == 503 and time.monotonic() - begun < 40:
        time.sleep(0.2)
    assert status == 200

    # a Ctrl-C ends it while something is computed, with exit code 0 and without a process
    threading.Thread(target=served.status, args=("/v1/query", {"sql": ENDLESS}), daemon=True).start()
    time.sleep(1)
    family = psutil.Process(served.process.pid).children(recursive=True)
    assert any("java" in child.name() for child in family)
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(30) == 0
    assert psutil.wait_procs(family, timeout=10)[1] == []
    assert served.process.stderr is not None
    assert "Traceback" not in served.process.stderr.read()
    log = (served.home / ".watertable" / "logs" / "serve.log").read_text()
    assert "sesame" not in log
    assert "GET /v1/tables/shop.stock" in log


def test_a_service_whose_jvm_dies_ends_and_says_so(served: Served) -> None:
    (java,) = [child for child in psutil.Process(served.process.pid).children(recursive=True) if "java" in child.name()]
    java.kill()
    assert served.process.wait(30) == 1
    assert served.process.stderr is not None
    assert "the JVM of this service is gone" in " ".join(served.process.stderr.read().split())
