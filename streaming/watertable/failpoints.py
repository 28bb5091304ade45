"""Name the points at which a process can be made to die, fail or wait, so that every crash can be tried on purpose.

Code calls `hit("fold.before_merge")`. Unless that point is armed this is one dictionary lookup. WATERTABLE_FAILPOINT arms points in a
process of its own (`<point>:<nth>:<action>`, several with commas); `armed` arms them in a test, where the action may also be a function.
The law of the campaign: whatever a process was doing at any of these points when it died, the next start loses and repeats nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from watertable.errors import SettingsError, WatertableError

Action = Literal["kill-python", "kill-jvm", "kill-both", "raise", "sleep"]
ACTIONS: Final[tuple[Action, ...]] = ("kill-python", "kill-jvm", "kill-both", "raise", "sleep")
VARIABLE: Final = "WATERTABLE_FAILPOINT"
SLEEP_SECONDS: Final = 20.0

POINTS: Final = (
    # start
    "job.start.before_fence", "store.fence.before_write", "store.fence.after_write", "store.fence.after_commit", "job.start.after_fence",
    # batch
    "job.batch.begin", "archive.before_write", "archive.after_write", "archive.after_commit", "job.batch.compiled",
    "store.commit.before_write", "store.commit.after_write", "store.commit.after_commit", "job.batch.end",
    # fold
    "fold.after_pin", "fold.before_merge", "fold.after_merge", "fold.after_confirm",
    # trim and upkeep
    "trim.before_delete", "trim.after_delete", "upkeep.after_optimize", "upkeep.after_vacuum",
    # publish
    "publish.begin", "publish.after_produce", "publish.after_commit",
    # rewind
    "rewind.before_commit", "rewind.after_commit",
    # promote
    "rewind.promote.before_hold", "rewind.promote.after_hold", "rewind.promote.before_commit", "rewind.join.before_write",
    "rewind.join.after_write", "rewind.promote.after_commit",
    # give a shadow up
    "rewind.abandon.before_commit", "rewind.abandon.after_commit",
)  # fmt: skip
"""Every point there is, in the order in which a run meets them."""


class FailpointHit(WatertableError):
    """Fail where an armed point says so; raised by nothing else."""


@dataclass(slots=True)
class _Armed:
    nth: int
    action: Action | Callable[[], None]
    seen: int = 0


_armed: dict[str, _Armed] = {}


def hit(point: str) -> None:
    """Do what is armed at this point; nothing when it isn't. Raises `FailpointHit` where the action is to raise."""
    if point in _armed:
        _act(point, _armed[point])


@contextmanager
def armed(point: str, action: Action | Callable[[], None], nth: int = 1) -> Iterator[None]:
    """Arm one point within this process: the nth time that it's met, the action is done, once."""
    _armed[_known(point)] = _Armed(nth, action)
    try:
        yield
    finally:
        _armed.pop(point, None)


def arm(spec: str) -> None:
    """Arm the points of a specification such as `fold.before_merge:2:kill-jvm`; raise `SettingsError` for one that isn't known."""
    for part in filter(None, (p.strip() for p in spec.split(","))):
        match part.split(":"):
            case [point, nth, action] if nth.isdigit() and int(nth) > 0 and action in ACTIONS:
                _armed[_known(point)] = _Armed(int(nth), action)
            case _:
                raise SettingsError(f"{VARIABLE}={spec!r}: write <point>:<nth>:<{'|'.join(ACTIONS)}>")


def _known(point: str) -> str:
    if point not in POINTS:
        raise SettingsError(f"there is no failpoint {point!r}; choose from {', '.join(POINTS)}")
    return point


def _act(point: str, armed_here: _Armed) -> None:
    armed_here.seen += 1
    if armed_here.seen != armed_here.nth:
        return
    action = armed_here.action
    print(f"watertable failpoint {point}: {action if isinstance(action, str) else 'call'}", file=sys.stderr, flush=True)
    if not isinstance(action, str):
        action()
        return
    if action in ("kill-jvm", "kill-both"):
        _kill_jvm()
    match action:
        case "kill-python" | "kill-both":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise FailpointHit(f"failpoint {point}")
        case "sleep":
            time.sleep(SLEEP_SECONDS)


def _kill_jvm() -> None:
    pyspark = sys.modules.get("pyspark")  # never imported from here: definitions hit no points, and start no JVM
    gateway = pyspark.SparkContext._gateway if pyspark else None
    process = getattr(gateway, "proc", None)
    if process is None:
        raise FailpointHit("there is no JVM of ours to kill")
    process.kill()
    process.wait()


arm(os.environ.get(VARIABLE, ""))
