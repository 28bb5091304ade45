"""Run `watertable run` as a child process of its own group, and read what it says, line by line.

The law: when the parent is gone, whatever ended it, no process of the group is left. Ways out: `stop` asks the leader (SIGTERM), which
finishes its batch, and kills the group once the grace is over; a parent killed outright is noticed by the kernel on Linux, which sends
the leader SIGTERM, and elsewhere by the leader itself, whose next line meets a closed pipe. Only the leader is asked: its JVM is in
the group too, and must outlive the batch.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from watertable import errors

Event = dict[str, Any]
"""One line of `watertable run --json`: `event` names its kind."""

TAIL: Final = 40
WIDTH: Final = 400
_ERRORS: Final = frozenset(name for name, of in vars(errors).items() if isinstance(of, type) and issubclass(of, errors.WatertableError))
_PR_SET_PDEATHSIG: Final = 1


class Child:
    """Hold one running child; a context manager that leaves no process behind.

    What it writes on stderr goes to `log`, and its last lines to `tail` when it ends badly.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, grace: float = 40.0) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._grace = grace
        self._closed = False
        self._lines: queue.Queue[Event | None] = queue.Queue()
        self._other: deque[str] = deque(maxlen=TAIL)
        with log.open("ab") as errors:
            self._log_start = errors.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, cwd=cwd,
                env={**os.environ, **env, "PYTHONUNBUFFERED": "1"}, start_new_session=True, preexec_fn=_die_with_parent(),
            )  # fmt: skip
        threading.Thread(target=self._read, name="watertable-events", daemon=True).start()

    @property
    def pid(self) -> int:
        """Give the leader's process id, which is the group's too."""
        return self._process.pid

    def event(self, timeout: float) -> Event | None:
        """Wait for the next event; None when the time is over, or when the child has said all and ended."""
        try:
            event = self._lines.get(timeout=timeout)
        except queue.Empty:
            self._closed = self._process.poll() is not None  # what outlives a killed leader may hold its output open
            return None
        self._closed = event is None
        return event

    @property
    def ended(self) -> bool:
        """Tell whether the child is over and everything it said has been read."""
        return self._closed

    def exit_code(self) -> int:
        """Give the exit code of a child that is over, and leave nothing of its group; negative: the signal that ended it."""
        return self.stop()

    def stop(self) -> int:
        """Ask the child to finish, wait for the grace, then kill its whole group; return its exit code. Repeating it does no harm."""
        try:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                self._process.wait(self._grace)
        except subprocess.TimeoutExpired:
            pass  # the group is killed below
        finally:  # an impatient second interrupt arrives while we wait
            self._kill_group()
        return self._process.wait()

    def tail(self) -> str:
        """Give the last lines as they can be shown: none is wider than `WIDTH`."""
        return "\n".join(line[:WIDTH] for line in self.last_lines())

    def last_lines(self) -> list[str]:
        """Give the last lines that weren't events, whole: of stderr, else of stdout."""
        with self.log.open("rb") as file:
            file.seek(max(self._log_start, self.log.stat().st_size - 16_384))
            lines = file.read().decode(errors="replace").splitlines()
        return (lines or list(self._other))[-TAIL:]

    def refusal(self) -> str:
        """Give the command's own words of why it ended: all from the last line on that begins with an error's name; "" where none does."""
        lines = self.last_lines()
        begins = [n for n, line in enumerate(lines) if re.split(r"\W", line, maxsplit=1)[0] in _ERRORS]
        return "\n".join(lines[begins[-1] :]) if begins else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _kill_group(self) -> None:
        """Kill what is left of the group, and wait until the kernel has none of it."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                return
            self._process.poll()
            time.sleep(0.02)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for raw in said:
                line = raw.decode(errors="replace").rstrip()
                try:
                    event = json.loads(line)
                except ValueError:
                    event = None
                if isinstance(event, dict) and "event" in event:
                    self._lines.put(event)
                elif line:
                    self._other.append(line)
        self._lines.put(None)


def obituary(code: int, what: str = "the driver") -> str:
    """Say how a child ended that said nothing of it itself.

    >>> obituary(-9), obituary(1)
    ('the driver was killed by signal 9 without a word', 'the driver ended by itself with exit code 1')
    """
    if code < 0:
        return f"{what} was killed by signal {-code} without a word"
    return f"{what} ended by itself with exit code {code}" + ("" if code else ", though nobody asked it to")


def command(*words: str) -> list[str]:
    """Give a command of `watertable`, to be run in this Python's environment."""
    return [sys.executable, "-m", "watertable_platform", *words]


def run_command(app: str, *options: str) -> list[str]:
    """Give the command that runs an app and says what happens as JSON."""
    return command("run", app, "--json", *options)


def alive(pid: int, birth: str) -> bool:
    """Tell whether the process of this machine that had this id and `birth` is running; one that waits for its parent to notice isn't."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    state, born = _stat(pid)
    return state not in ("Z", "X") and (not birth or not born or birth == born)


def birth(pid: int) -> str:
    """Tell when a process began, in the kernel's own ticks: ids are used again, a pair of id and birth isn't. "" where it can't be told."""
    return _stat(pid)[1]


def _stat(pid: int) -> tuple[str, str]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


def _die_with_parent() -> Callable[[], None] | None:
    """Make the function that asks the kernel, in the child, for SIGTERM when the parent's thread ends; Linux only."""
    if sys.platform != "linux":
        return None
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def ask() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ignored by the parent, it would be by the child too
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before we could ask
            os.kill(os.getpid(), signal.SIGTERM)

    return ask
