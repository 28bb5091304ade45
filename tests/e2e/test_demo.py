"""Run the demo as a user would, on the first days of the data: it holds its totals, resumes, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat
import pytest

from watertable.errors import KafkaError
from watertable.kafka import broker
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
PATIENCE = 900


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("demo")
    yield folder
    broker.stop(folder / "kafka")


@pytest.fixture(scope="module")
def environment(home: Path) -> dict[str, str]:
    kafka = f"127.0.0.1:{broker.free_port()}"
    return {**os.environ, "WATERTABLE_PROJECT": str(ROOT), "WATERTABLE_HOME": str(home), "WATERTABLE_KAFKA": kafka}


def start(environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "watertable_platform", "demo", "--no-browser", *options]
    return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def sent(environment: dict[str, str]) -> int:
    """Count the records in the demo's topics; 0 while there is no broker."""
    admin = Admin(Cluster(environment["WATERTABLE_KAFKA"]), timeout=2)
    try:
        return sum(admin.latest(admin.partitions(["sales", "receipts"])).values())
    except KafkaError:
        return 0


def processes_of(home: Path) -> list[str]:
    """List the processes that were started with this folder in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"WATERTABLE_HOME={home}".encode() in (process / "environ").read_bytes() and int(process.name) != os.getpid()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if ours and command:
            found.append(command)
    return found


def test_a_bounded_demo_holds_its_totals_and_leaves_no_process(home: Path, environment: dict[str, str]) -> None:
    said, _ = (demo := start(environment, "--until-caught-up", "--days", "1")).communicate(timeout=PATIENCE)
    assert demo.returncode == 0, said
    assert "all hold" in said
    assert "late lines" in said
    assert "✗" not in said
    assert processes_of(home) == []


@pytest.mark.slow  # a minute and a half beside the bounded demo
def test_the_next_demo_continues_where_one_was_cut_off(home: Path, environment: dict[str, str]) -> None:
    cut = start(environment, "--until-caught-up", "--days", "3")
    deadline = time.monotonic() + PATIENCE
    while sent(environment) < 4_000 and cut.poll() is None and time.monotonic() < deadline:  # the first day has some 3,700 records
        time.sleep(0.1)
    cut.send_signal(signal.SIGINT)
    said, _ = cut.communicate(timeout=PATIENCE)
    assert cut.returncode == 130, said
    assert processes_of(home) == []
    said, _ = (again := start(environment, "--until-caught-up", "--days", "3")).communicate(timeout=PATIENCE)
    assert again.returncode == 0, said
    assert "all hold" in said


def test_the_notebook_runs_on_what_the_demo_left(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WATERTABLE_PROJECT", "WATERTABLE_HOME", "WATERTABLE_KAFKA"):
        monkeypatch.setenv(name, environment[name])
    notebook = nbformat.read(ROOT / "notebooks" / "retail.ipynb", as_version=4)
    where = {"metadata": {"path": str(ROOT / "notebooks")}}
    nbclient.NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3", resources=where).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no plot"
    text = "".join(str(output.get("text", "")) for output in outputs)
    assert "reading at retail@1." in text
    assert "products are below the reorder point" in text
