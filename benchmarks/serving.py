"""Measure looking one key up: from a warm `watertable serve`, by the command line, and in the Delta table by a reader without a JVM.

    python -m benchmarks.serving --keys 4000 --records 540000 --tail 10000

The store is that of the other measurements, as large as the retail demo's by default: so many records of so many keys, folded, and a tail
of commits that isn't. The service is a process of its own, asked by one client over a connection that stays, after a warm-up; then by four
at once. Each answer is checked. What Polars reads is the folded table, so it is behind by the tail; it shows what it costs without Spark.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import polars as pl
from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.count_and_sum import settings
from benchmarks.race import BenchmarkFailed
from benchmarks.reading import Filled
from benchmarks.topologies import count_and_sum
from watertable.session import shut_down, spark_session

_APP: Final = """
import watertable as wt
from benchmarks.workload import VALUE

app = wt.App("serving")
records = app.topic("records", key="item STRING", value=VALUE).stream()
records.group_by_key().agg(n=wt.count(), total=wt.sum("amount")).materialized_as("totals")
"""
_ROOT: Final = Path(__file__).parents[1]
_STEP: Final = 1000
"""Records of each commit of the tail."""


def main() -> int:
    """Fill, serve, ask, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--keys", type=int, default=4_000)
    parser.add_argument("--records", type=int, default=540_000)
    parser.add_argument("--tail", type=int, default=10_000)
    parser.add_argument("--asks", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="watertable-serving-") as work:
        home = Path(work)
        (home / "assets" / "serving").mkdir(parents=True)
        (home / "assets" / "serving" / "app.py").write_text(_APP)
        (home / "pyproject.toml").write_text(f"[tool.watertable]\nhome = '{home}'\nkafka = '127.0.0.1:1'\n")
        _fill(home, given.keys, given.records, given.tail)
        rows = _measure(home, given.keys, given.records + given.tail, given.asks)
    _print(rows, given, report.machine())
    return 0


def _fill(home: Path, keys: int, records: int, tail: int) -> None:
    ours = settings(str(home), "127.0.0.1:1")
    spark = spark_session(ours, app="benchmark serving", log=home / "jvm.txt")
    try:
        filled = Filled(spark, ours.warehouse_uri, count_and_sum("serving", "records"), keys)
        filled.add(records)
        filled.store.fold("totals")
        for _ in range(tail // _STEP):
            filled.add(_STEP)
    finally:
        shut_down(spark)


def _measure(home: Path, keys: int, records: int, asks: int) -> list[tuple[str, list[float]]]:
    command = [sys.executable, "-m", "watertable_platform", "--project", str(home)]
    serving = subprocess.Popen([*command, "serve", "--port", "0"], cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert serving.stdout is not None
        port = int(serving.stdout.readline().split("127.0.0.1:")[1].split(",")[0])
        tags: dict[int, str] = {}

        def ask(client: http.client.HTTPConnection, number: int, *, known: bool = False) -> None:
            key = number * 7919 % keys
            client.request("GET", f"/v1/tables/totals?key=item-{key:07d}", headers={"If-None-Match": tags[key]} if known else {})
            answer = client.getresponse()
            body = answer.read()
            if (answer.status != 304) if known else (answer.status != 200):
                raise BenchmarkFailed(f"{answer.status}: {body.decode()}")
            tags[key] = answer.headers["ETag"]
            if not known and abs(json.loads(body)["rows"][0]["n"] - records / keys) > 1:
                raise BenchmarkFailed(f"a wrong row: {body.decode()}")

        def each(name: str, act: Callable[[int], Any], times: int) -> tuple[str, list[float]]:
            took = []
            for number in range(times):
                began = time.monotonic()
                act(number)
                took.append(time.monotonic() - began)
            return name, took

        client = http.client.HTTPConnection("127.0.0.1", port)
        each("warm-up", lambda n: ask(client, n), 50)
        found = [each("served, one client", lambda n: ask(client, n), asks)]
        found.append(each("served, known (304)", lambda n: ask(client, n, known=True), min(asks, keys)))
        with ThreadPoolExecutor(4) as threads:
            clients = [http.client.HTTPConnection("127.0.0.1", port) for _ in range(4)]
            told = threads.map(lambda c: each("", lambda n: ask(c, n), asks // 4)[1], clients)
            found.append(("served, four clients", [seconds for took in told for seconds in took]))
    finally:
        serving.terminate()
        serving.wait(30)
    table = str(home / "warehouse" / "serving" / "totals")
    item = pl.col("item")
    found.append(each("Polars, the folded table", lambda n: pl.scan_delta(table).filter(item == f"item-{n:07d}").collect(), min(asks, 50)))
    shown = [*command, "query", "totals", "--key", "item-0000017", "--json"]
    found.append(each("watertable query", lambda _: subprocess.run(shown, cwd=_ROOT, check=True, capture_output=True), 2))
    return found


def _print(rows: list[tuple[str, list[float]]], given: argparse.Namespace, machine: dict[str, Any]) -> None:
    size = f"{given.records + given.tail:,} records of {given.keys:,} keys, {given.tail:,} of them not folded"
    table = Table("One key", "asked", "p50 ms", "p99 ms", "× served", title=size, title_justify="left")
    base = statistics.median(rows[0][1])
    for name, took in rows:
        p99 = statistics.quantiles(took, n=100)[98] if len(took) > 50 else max(took)
        middle = statistics.median(took)
        table.add_row(name, str(len(took)), f"{middle * 1000:,.0f}", f"{p99 * 1000:,.0f}", f"{middle / base:.2f}")
    console = Console(width=110)
    console.print(machine)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
