"""`watertable run` as a process: what a supervisor, a terminal and a kernel may do to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from watertable.kafka.config import Cluster
from watertable.kafka.feed import begin
from watertable_platform.orchestration.child import alive

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.e2e]
PATIENCE = 300.0
APP = """
import watertable as wt

app = wt.App("words{n}")
lines = app.topic("lines{n}", value="line STRING", value_format="string").stream()
counts = lines.flat_map_values(word="split(lower(line), ' ')").group_by("word").agg(n=wt.count()).materialized_as("counts")
"""
_numbers = iter(range(1000))


class Run:
    """Hold one `watertable run --json`, its JVM, and what it said."""

    def __init__(self, project: Path, app: str) -> None:
        self.said: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "watertable_platform", "run", app, "--json"], cwd=project, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    def until(self, kind: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))
            if self.said[-1]["event"] == kind:
                return self.said[-1]
        raise AssertionError(f"no {kind!r} in {self.said}; {self.process.stderr and self.process.stderr.read()}")

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        out, _ = self.process.communicate(timeout=PATIENCE)
        self.said += [json.loads(line) for line in out.splitlines()]
        return self.process.returncode, self.said

    @property
    def jvm(self) -> int:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == self.process.pid and "java" in (folder / "comm").read_text():
                    return int(folder.name)
            except (FileNotFoundError, ProcessLookupError):
                continue
        raise AssertionError("the run has no JVM")


def _gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid, "") and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive(pid, "")


@pytest.fixture
def run(broker: Cluster, tmp_path: Path) -> Iterator[Run]:
    """Start an app over a topic that has records, and wait for its first commit."""
    number = next(_numbers)
    (tmp_path / "assets" / "words").mkdir(parents=True)
    (tmp_path / "assets" / "words" / "app.py").write_text(APP.replace("{n}", f"_p{number}"))
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.watertable]\nkafka = "{broker.bootstrap}"\nmaster = "local[2]"\n[tool.watertable.spark]\n"spark.driver.memory" = "700m"\n'
    )
    begin(broker, {f"lines_p{number}": 1})
    producer = Producer(broker.client_config())
    for _ in range(50):
        producer.produce(f"lines_p{number}", "all streams lead to kafka")
    producer.flush(20)
    started = Run(tmp_path, f"words_p{number}")
    try:
        started.until("batch")
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.wait()


def test_sigterm_ends_a_run_within_seconds_with_exit_code_0_and_leaves_no_process(run: Run) -> None:
    jvm, began = run.jvm, time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    code, said = run.end()
    assert (code, said[-1]["event"]) == (0, "stopped")
    assert time.monotonic() - began < 20
    assert not alive(jvm, "")


@pytest.mark.slow
def test_a_jvm_does_not_outlive_its_python_and_a_python_whose_jvm_died_fails_in_words(run: Run, tmp_path: Path) -> None:
    jvm = run.jvm
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    assert _gone(jvm, 30), "the JVM lingers"

    again = Run(tmp_path, run.said[0]["app"])
    try:
        assert again.until("started")["position"] == run.said[-1]["position"], "begins where the commit left it"
        os.kill(again.jvm, signal.SIGKILL)
        code, said = again.end()
    finally:
        again.process.kill()
    assert (code, said[-1]["event"], said[-1]["error"]) == (1, "failed", "JobError")
    assert "the JVM of this run is gone" in said[-1]["message"]
