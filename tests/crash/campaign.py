"""Kill an app at every named point, in every way, again and again, and compare what is left with what should be.

A *chain* is one app with its own topics and warehouse. Each of its cells starts a child that recovers from the cell before, works on,
and is killed at a point; then the store is verified without a JVM, while the killed child's JVM may still be dying. So one start tests
one recovery and prepares the next. A chain ends with a run that is left alone until it has caught up, and the verification of
everything: tables, bases, output topics, the reader's own view, the mirrored position, and that no process is left.

A kill counts only if it landed with work uncommitted: the child says that it was at the point, and the topics must then hold records
beyond the committed offsets (for points of publishing, also records of the outbox that no consumer could see, or the input's).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.child import Script
from tests.crash.ledger import Ledger, topology
from tests.crash.verify import Lake, Verdict, verify_counts, verify_outputs, verify_store
from watertable.failpoints import POINTS
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable_platform.orchestration.child import alive, birth

CHILD = Path(__file__).with_name("child.py")
WAYS = ("kill-python", "kill-jvm", "kill-both")
PATIENCE = 900.0
ZOMBIE = 90.0
"""Seconds within which a run that was paused has to notice that another took over: its next commit does."""
AHEAD = 600
"""Records that wait for a child when it starts: some ten batches, so that the end of none is the end of its work."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Name one kill of the grid; by its seed it lands at the point or a little after it, at the first or a later time, or the `nth`."""

    point: str
    how: str
    seed: int
    nth: int = 0

    def aim(self) -> tuple[int, float]:
        """Give the nth time at which the point is armed, and the delay of the kill."""
        draw = Random(f"{self.point}/{self.how}/{self.seed}")
        if self.nth:
            return self.nth, round(draw.uniform(0.0, 0.4), 3)
        if self.seed == 0 or not self.point.startswith(("store.commit", "fold", "job.batch", "publish")):
            return 1, 0.0 if self.seed == 0 else round(draw.uniform(0.0, 0.3), 3)
        rarely = self.point in ("fold.after_pin", "fold.after_confirm")  # once a round of folds, not once a table
        return 1 if rarely else draw.randint(1, 3), round(draw.uniform(0.0, 0.4), 3)


@dataclass(slots=True)
class Result:
    """Hold what became of a cell: "pass", "fail", or "not run" where the kill didn't land as it must."""

    cell: Cell
    state: str = "not run"
    why: str = ""
    uncommitted: int = 0
    seconds: float = 0.0


class Child:
    """Run one child process and read what it says."""

    def __init__(self, script: Script, log: Path) -> None:
        self.script, self.log = script, log
        self.events: list[dict[str, Any]] = []
        self._errors = log.open("a")
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), script.to_json()], stdout=subprocess.PIPE, stderr=self._errors, text=True,
            cwd=CHILD.parents[2], env={k: v for k, v in os.environ.items() if not k.startswith("WATERTABLE_FAILPOINT")},
        )  # fmt: skip

    def follow(self, until: str, patience: float = PATIENCE) -> dict[str, Any] | None:
        """Read events up to the first of a kind; None when the child ended without it."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + patience
        for line in self.process.stdout:
            if line.startswith("{"):
                event: dict[str, Any] = json.loads(line)
                self.events.append(event)
                if event["event"] == until:
                    return event
            if time.monotonic() > deadline:
                break
        return None

    def wait(self, patience: float = PATIENCE) -> int:
        """Wait for the end; give the exit code."""
        try:
            out, _ = self.process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the child still ran after {patience:.0f} s; its events end with {self.events[-3:]}") from None
        finally:
            self._errors.close()
        self.events += [json.loads(line) for line in (out or "").splitlines() if line.startswith("{")]
        return self.process.returncode

    def first(self, kind: str) -> dict[str, Any] | None:
        return next((event for event in self.events if event["event"] == kind), None)

    @property
    def jvm(self) -> int | None:
        found = self.first("child")
        return found["jvm"] if found else None

    def kill(self) -> None:
        """End what may be left of it."""
        for pid in (self.process.pid, self.jvm):
            if pid is not None and alive(pid, ""):
                os.kill(pid, signal.SIGKILL)


@dataclass(slots=True)
class Chain:
    """Hold one app of the campaign through its kills."""

    cluster: Cluster
    home: Path
    name: str
    seed: int
    bug: str = ""
    windows_anew: bool = False
    ledger: Ledger = field(init=False)
    lake: Lake = field(init=False)
    jvms: list[tuple[int, str]] = field(default_factory=list)
    """Process and birth: a grid of kills starts so many that ids are used again."""

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(self.cluster, self.name, self.seed)
        self.lake = Lake(self.home / ".watertable" / "warehouse", topology(self.name))

    def run(self, cell: Cell, ahead: int = AHEAD) -> Result:
        """Feed, start, kill, verify; once more, with more to do, where all was done before the kill came, as on a machine that is busy."""
        began, result = time.monotonic(), Result(cell)
        self.ledger.feed(max(0, ahead - self.waiting()))
        before = self.waiting()
        nth, delay = cell.aim()
        child = self.start(point=cell.point, nth=nth, how=cell.how, delay=delay)
        try:
            told = child.follow("kill")
            code = child.wait()
        except AssertionError as error:
            child.kill()
            return self._with(result, "fail", str(error), began)
        if told is None:
            return self._with(result, "not run", f"the point wasn't met; exit code {code}; {last_words(child)}", began)
        wanted = 1 if cell.how == "kill-jvm" else -signal.SIGKILL
        if code != wanted:
            return self._with(result, "fail", f"exit code {code}, wanted {wanted}; {last_words(child)}", began)
        result.uncommitted = self.waiting()
        if not result.uncommitted and ahead == AHEAD:
            return self.run(cell, 4 * AHEAD)
        if not result.uncommitted:
            return self._with(result, "not run", f"the kill came when nothing was left to commit (of {before})", began)
        verdict = self.verify()
        return self._with(result, "fail" if verdict.differences else "pass", "; ".join(verdict.differences), began)

    def zombie(self, point: str, nth: int = 2) -> Verdict:
        """Freeze a run at a point, let another take over and finish, and let the first go on: it must end as fenced, and change nothing."""
        self.ledger.feed(max(0, AHEAD - self.waiting()))
        frozen = self.start(point=point, nth=nth, how="freeze")
        verdict = Verdict()
        try:
            verdict.same("the first run was frozen", frozen.follow("kill") is not None, True)
            code = self.start(available_now=True, batch_records=5000).wait()
            verdict.same("exit code of the run that took over", code, 0)
            self.ledger.feed(60)
            for pid in (frozen.jvm, frozen.process.pid):
                if pid is not None:
                    os.kill(pid, signal.SIGCONT)
            try:
                code = frozen.wait(ZOMBIE)
            except AssertionError as still:  # one that nothing has told goes on
                verdict.same("the zombie", str(still), "ended")
            else:
                verdict.same("exit code of the zombie", code, 3)
        finally:
            frozen.kill()
        verify_store(self.lake, self.ledger.records(self.ledger.inputs), verdict)
        return verdict

    def finish(self) -> Verdict:
        """Let a run catch up undisturbed, and verify everything."""
        self.ledger.feed(40)
        seen = self.home / "read.json"
        child = self.start(available_now=True, batch_records=5000, read=str(seen))
        code = child.wait(2 * PATIENCE)
        verdict = Verdict()
        verdict.same("exit code of the last run", (code, last_words(child) if code else ""), (0, ""))
        records = self.ledger.records(self.ledger.inputs)
        verify_store(self.lake, records, verdict, complete=True)
        verify_outputs(self.lake.topology, records, self.ledger.records(self.ledger.outputs), verdict)
        if self.lake.commits()[0].seq == 1:
            verify_counts(self.lake, records, verdict)
        ends = self.ledger.ends()
        verdict.same("committed offsets", dict(self.lake.commits()[-1].next), ends)
        verdict.same("mirrored position", Admin(self.cluster).mirrored(self.lake.topology.app, ends), ends)
        if seen.exists():
            self._verify_reader(json.loads(seen.read_text()), verdict)
        self.verify_ended(verdict)
        return verdict

    def verify_ended(self, verdict: Verdict) -> None:
        """Make sure that no JVM is left behind; the last one may take a moment to end after its Python."""
        deadline = time.monotonic() + 30
        while (left := [pid for pid, born in self.jvms if alive(pid, born)]) and time.monotonic() < deadline:
            time.sleep(0.2)
        verdict.same("JVMs that outlived their Python", left, [])

    def verify(self) -> Verdict:
        """Compare the store as it is now with what it should hold at its own position."""
        verdict = Verdict()
        verify_store(self.lake, self.ledger.records(self.ledger.inputs), verdict)
        return verdict

    def start(self, **options: Any) -> Child:
        """Start a child and wait until it has its JVM."""
        script = Script(
            suffix=self.name, home=str(self.home), bootstrap=self.cluster.bootstrap, bug=self.bug, merges=self.seed % 2 == 1,
            windows_anew=self.windows_anew, **options,
        )  # fmt: skip
        child = Child(script, self.home / "child.log")
        child.follow("child")
        if child.jvm is not None:
            self.jvms.append((child.jvm, birth(child.jvm)))
        return child

    def waiting(self) -> int:
        """Count the offsets that no commit covers."""
        commits = self.lake.commits() if self.lake.exists() else []
        done = commits[-1].next if commits else {}
        return sum(end - done.get(partition, 0) for partition, end in self.ledger.ends().items())

    def _verify_reader(self, found: dict[str, Any], verdict: Verdict) -> None:
        for table in self.lake.topology.tables:
            base = self.lake.base(table)
            verdict.same(f"rows that wt.read gives of {table.name}", len(found["tables"][table.name]), len(base))
        ids = {row["sku"]: (row["n"], row["ids"], row["total"]) for row in found["tables"]["entries"]}
        entries = self.lake.base(self.lake.topology.table("entries"))
        verdict.same("entries as wt.read gives them", ids, {row["sku"]: (row["n"], row["ids"], row["total"]) for row in entries})

    @staticmethod
    def _with(result: Result, state: str, why: str, began: float) -> Result:
        result.state, result.why, result.seconds = state, why, time.monotonic() - began
        return result


def grid(results: Sequence[Result]) -> str:
    """Draw the grid: a row for each point, a column for each way, a sign for each seed."""
    signs = {"pass": "✓", "fail": "✗", "not run": "·"}
    by_cell = {(r.cell.point, r.cell.how): "" for r in results}
    for r in sorted(results, key=lambda r: r.cell.seed):
        by_cell[r.cell.point, r.cell.how] += signs[r.state]
    lines = [f"{'point':28}" + "".join(f"{way:>14}" for way in WAYS)]
    for point in POINTS:
        if any(p == point for p, _ in by_cell):
            lines.append(f"{point:28}" + "".join(f"{by_cell.get((point, way), ''):>14}" for way in WAYS))
    count = {state: sum(r.state == state for r in results) for state in signs}
    lines.append(
        f"{count['pass']} pass, {count['fail']} fail, {count['not run']} not run; "
        f"{sum(r.uncommitted for r in results):,} offsets were uncommitted at the kills"
    )
    lines += [f"{r.state}: {r.cell.point} {r.cell.how} seed {r.cell.seed}: {r.why}" for r in results if r.state != "pass"]
    return "\n".join(lines)


def last_words(child: Child) -> str:
    """Give what a child said last: what it failed with, or the end of its log."""
    failed = child.first("failed")
    if failed:
        return str(failed["message"])
    return child.log.read_text(encoding="utf-8", errors="replace")[-600:]
