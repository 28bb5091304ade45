"""Run contenders one after the other, each alone, by one protocol and against one clock.

A contender is a program. It prints one JSON object a line: `ready` when it has started and worked off the warm-up topic; after the line
`go` on its standard input it reads the real topic, and prints `first` (it holds its partitions; if it never says so, its clock runs from
`go`), `visible` (every record is in what a reader would get), where there is such a thing `folded`, and last `answer` (keys, records,
amount over its whole output). The clock is the harness's own, at the arrival of each line. A wrong answer is a failed run, however fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import psutil

from benchmarks.workload import Answer

_SAMPLE: Final = 0.5


class BenchmarkFailed(Exception):
    """Tell that a contender died, hung, or gave a wrong answer."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Name a program that takes part, and the command that runs it; `wanted` is what its answer must be."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """Hold what one run measured: seconds from the clock's start to each event, and the greatest sum of resident memory."""

    name: str
    start_seconds: float
    seconds: Mapping[str, float]
    peak_mib: int
    events: Sequence[Mapping[str, Any]]

    def said(self, event: str) -> Mapping[str, Any]:
        """Give the event of a name; raise `BenchmarkFailed` if it never came."""
        for found in self.events:
            if found["event"] == event:
                return found
        raise BenchmarkFailed(f"{self.name} never said {event!r}")


def run(contender: Contender, work: Path, *, limit: float, on_ready: Any = None) -> Run:
    """Run a contender to its end and measure it; `on_ready` is called just before it is told to go.

    Raises `BenchmarkFailed` with the end of its log when it fails or takes longer than `limit` seconds.
    """
    work.mkdir(parents=True, exist_ok=True)
    log = work / "log.txt"
    began = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            contender.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=clean_environment() | dict(contender.environment), start_new_session=True,
        )  # fmt: skip
    memory = _Memory(process.pid)
    killer = threading.Timer(limit, lambda: _end(process.pid))
    killer.start()
    events: list[dict[str, Any]] = []
    at: dict[str, float] = {}
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in _json_lines(process.stdout):
            at.setdefault(line["event"], time.monotonic())
            events.append(line)
            if line["event"] == "ready":
                if on_ready is not None:
                    on_ready()
                at["go"] = time.monotonic()
                print("go", file=process.stdin, flush=True)
        code = process.wait()
    finally:
        killer.cancel()
        _end(process.pid)
        memory.stop()
    if code != 0 or "ready" not in at:
        end = log.read_text(errors="replace")[-3000:]
        raise BenchmarkFailed(f"{contender.name} ended with {code} after {time.monotonic() - began:.0f} s; the end of its log:\n{end}")
    zero = at.get("first", at["go"])
    return Run(
        name=contender.name, start_seconds=at["ready"] - began, peak_mib=memory.peak >> 20, events=events,
        seconds={name: when - zero for name, when in at.items() if when >= zero},
    )  # fmt: skip


def check(run: Run, wanted: Answer) -> None:
    """Compare a contender's answer with the right one; raise `BenchmarkFailed` where they differ."""
    said = run.said("answer")
    got = Answer(keys=said["keys"], records=said["records"], amount=said["amount"])
    if got != wanted:
        raise BenchmarkFailed(f"{run.name} is wrong: it counted {got}, right is {wanted}")


def say(event: str, **facts: Any) -> None:
    """Print one line of the protocol, as a contender."""
    print(json.dumps({"event": event, **facts}), flush=True)


def wait_for_go() -> None:
    """Say that this contender is ready, and wait until it may start."""
    say("ready")
    if sys.stdin.readline().strip() != "go":
        raise SystemExit("the harness is gone")


class _Memory:
    """Sample the resident memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._root = psutil.Process(pid)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(_SAMPLE):
            try:
                family = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            self.peak = max(self.peak, _resident(family))


def _resident(family: Sequence[psutil.Process]) -> int:
    """Add up what processes hold; one that is being started has its parent's memory, all of it, until it is a program of its own."""
    held: dict[int, tuple[int, int]] = {}
    for process in family:  # parents first
        try:
            memory, parent = process.memory_info(), process.ppid()
        except psutil.Error:  # it ended between being listed and being asked
            continue
        held[process.pid] = (memory.vms, 0 if held.get(parent, (0, 0))[0] == memory.vms else memory.rss)
    return sum(rss for _, rss in held.values())


def _json_lines(out: IO[str]) -> Any:
    for line in out:
        if line.startswith("{"):
            yield json.loads(line)


def clean_environment() -> dict[str, str]:
    """Give the environment without settings of ours, and without options for all JVMs: each contender runs as it comes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WATERTABLE_") or name == "WATERTABLE_CACHE"}
    kept.pop("JAVA_TOOL_OPTIONS", None)
    return kept | {"PYTHONUNBUFFERED": "1", "JDK_JAVA_OPTIONS": ""}


def _end(pid: int) -> None:
    """Kill a contender and whatever it started."""
    try:
        root = psutil.Process(pid)
        family = [*root.children(recursive=True), root]
    except psutil.Error:
        return
    for process in family:
        try:
            process.kill()
        except psutil.Error:  # gone already
            continue
    psutil.wait_procs(family, timeout=10)
