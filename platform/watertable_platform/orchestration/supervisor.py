"""Decide, from an app's past runs alone, whether its stream should run: a pure function, and nothing to keep in step.

Dagster's run history is the desired state. Nobody ever launched the stream: stopped. A person launched it: running. A person terminated it:
stopped. Whatever else ended it (a crash, a dead machine, a hand-over to new code, recycling, a shutdown) is no decision, so it comes back,
a crash with exponential backoff. Five crashes at one position, or at one record, are one: stopped, and the way out is a person's. A run
that was refused, for another holds the app, decides nothing either way: what was wanted before it still is, and is tried again with
backoff. One that a person launched while none ran is itself what is wanted. A second copy of a run, terminated before it
begins, stops nothing but itself. What a run's status can't tell, its tags do: they are written by the run itself, or by the sensor that
buries one whose worker is gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from math import inf
from typing import Final

CRASHES: Final = 5
FIRST_WAIT: Final = 2.0
LONGEST_WAIT: Final = 300.0
_LONG: Final = 800
"""Characters of a message that a tag keeps."""
LATE: Final = 60.0
"""Seconds after which it is worth a warning that a run hasn't begun."""


class Tag(StrEnum):
    """Name the tags that a stream's run carries, and an act's."""

    APP = "watertable/app"
    BY = "watertable/started_by"  # "supervisor", or absent: a person
    REASON = "watertable/reason"  # why the supervisor started it
    OWN = "watertable/own"  # the run's id, on one that was re-executed: its tags are its own by now, and not its model's any more
    FINGERPRINT = "watertable/fingerprint"
    POSITION = "watertable/position"
    ENDED = "watertable/ended"
    CRASH = "watertable/crash"  # JSON of `Crash`: what ended it, or refused it
    HELD = "watertable/held"  # why the loaded code isn't handed over to: what it would break, and the way out
    HAND_OVER = "watertable/hand_over"  # a fingerprint: the sensor asks the run to make way for it
    WORKER = "watertable/worker"  # with "/" and the app: which processes carry out an act of it


class Ended(StrEnum):
    """Say why a run ended, where nobody terminated it."""

    CRASH = "crash"
    GHOST = "ghost"  # its worker vanished
    HAND_OVER = "hand-over"
    RECYCLE = "recycle"
    SHUTDOWN = "shutdown"  # Dagster itself was stopped, with the run in it
    REFUSED = "refused"  # it never began: another run or environment holds the app


class Status(StrEnum):
    """Reduce Dagster's run statuses to what matters here."""

    LIVE = "live"
    CANCELED = "canceled"
    FAILED = "failed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Crash:
    """Say what ended a run: the error, and the record and operator to blame where they are known.

    `final` marks what starting again can't mend: another writer has taken over, or a person has to decide or repair something.
    """

    error: str
    message: str
    position: str = ""
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    location: str | None = None
    final: bool = False

    @property
    def record(self) -> tuple[str, int | None, int | None] | None:
        """Give the topic, the partition and the offset of the record to blame, None where there is none."""
        return None if self.topic is None else (self.topic, self.partition, self.offset)

    def place(self) -> str:
        """Name the record, the operator and the position, as far as they are known."""
        record = f"topic {self.topic}, partition {self.partition}, offset {self.offset}" if self.topic is not None else ""
        parts = (record, self.location and f"at {self.location}", self.position and f"after {self.position}")
        return ", ".join(part for part in parts if part)

    def as_tag(self) -> str:
        """Write it as a run tag; `from_tag` reads it.

        Of a long message the middle goes: it begins with what is wrong, and ends with what to do.
        """
        short = self.message if len(self.message) <= _LONG else f"{self.message[: _LONG // 2]} … {self.message[-_LONG // 2 :]}"
        fields = {name: getattr(self, name) for name in self.__slots__} | {"message": short}
        return json.dumps({name: value for name, value in fields.items() if value is not None})

    @classmethod
    def from_tag(cls, tag: str) -> Crash:
        """Read what `as_tag` wrote."""
        return cls(**json.loads(tag))


@dataclass(frozen=True, slots=True)
class Attempt:
    """Hold what a past or present run of a stream tells. Times are in seconds since 1970; `ended_at` is 0 for one that runs.

    One that hasn't `begun` waits for Dagster, since `started_at`.
    """

    run_id: str
    status: Status
    by_person: bool = True
    ended: Ended | None = None
    position: str = ""
    fingerprint: str = ""
    ended_at: float = 0.0
    crash: Crash | None = None
    started_at: float = 0.0
    begun: bool = True
    handing_over: bool = False
    worker_gone: bool = False

    @property
    def never_began(self) -> bool:
        """Tell whether somebody terminated this run before it began."""
        return self.status is Status.CANCELED and self.ended is None and not self.begun

    @property
    def crashed(self) -> bool:
        """Tell whether this run counts as a crash; one that was refused has failed, and doesn't."""
        return self.ended is not Ended.REFUSED and (self.status is Status.FAILED or self.ended in (Ended.CRASH, Ended.GHOST))


@dataclass(frozen=True, slots=True)
class Leave:
    """Do nothing: the stream runs, or is stopped as wanted."""

    reason: str


@dataclass(frozen=True, slots=True)
class Queued:
    """Do nothing: a run waits for Dagster to begin it, for so many seconds by now."""

    run_id: str
    seconds: float

    @property
    def late(self) -> bool:
        """Tell whether it has waited for longer than a start takes."""
        return self.seconds > LATE

    @property
    def reason(self) -> str:
        """Say how long it has waited, and for what."""
        if not self.late:
            return "starting"
        room = "every stream takes one of the `max_concurrent_runs` in dagster.yaml"
        return f"not running: run {self.run_id} has waited for {self.seconds // 60:.0f} min to begin; {room}"


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing yet: start again once the backoff is over. `refused`: another run or environment holds the app."""

    seconds: float
    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a run."""

    reason: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Ask the live run to drain, commit and end, so that the next one runs the new code."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Let the live run go on under the code that it has: what was loaded would make its tables wrong."""

    run_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Bury:
    """Mark a run as ended whose worker is gone."""

    run_id: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave it stopped, although nobody wanted that: `crash` says what a person has to look at."""

    crash: Crash
    crashes: int

    @property
    def reason(self) -> str:
        """Say what happened, where, and the way out."""
        where = "position" if self.crash.record is None else "record"
        again = "starting again can't mend it" if self.crash.final else f"{self.crashes} crashes at one {where}"
        place = f" ({self.crash.place()})" if self.crash.place() else ""
        return f"stopped: {again}{place}: {self.crash.error}: {self.crash.message} {way_out(self.crash)}"


Decision = Leave | Queued | Wait | Launch | HandOver | Hold | Bury | GiveUp


def decide(attempts: Sequence[Attempt], *, loaded: str, loaded_at: float, now: float, breaking: str = "") -> Decision:
    """Say what to do about a stream; `attempts` come newest first, `loaded` is the fingerprint of the code as loaded here.

    `breaking` says what that code would make wrong, after the one that runs.

    A run that began after this code was loaded read the files later than we did: if they differ, we are the ones behind.
    """
    known = telling(attempts)
    gone = next((a for a in attempts if a.worker_gone), None)
    if gone is not None:
        return Bury(gone.run_id)
    runs = [a for a in known if a.status is Status.LIVE and a.ended is not Ended.REFUSED]
    if runs:
        live = max((a for a in runs if a.begun), key=lambda a: bool(a.fingerprint), default=None)  # one that is yet to be refused has none
        if live is None:
            return Queued(runs[-1].run_id, now - runs[-1].started_at)
        if live.fingerprint not in ("", loaded) and live.started_at < loaded_at and not live.handing_over:
            return Hold(live.run_id, breaking) if breaking else HandOver(live.run_id)
        return Leave("running")
    # Only what is to run is started by the supervisor: so its refused runs say that, even where they have pushed all others out of sight.
    tried = (a for a in attempts if a.ended is Ended.REFUSED or a in known)
    refused = [a for a in takewhile(lambda a: a.ended is Ended.REFUSED, tried) if not a.by_person or a in known]
    last = next(iter(known or refused), None)
    if last is None:
        return Leave("stopped: nobody has launched it yet")
    if last.status is Status.CANCELED and last.ended is None:
        return Leave("stopped by a person; launch it to run it again")
    reason = str(last.ended or "it ended by itself")  # a tag takes text, and no enum
    if last.crashed:
        crash = last.crash or Crash("Crash", "the driver died without a word", last.position)
        crashes = streak(known)
        if crash.final or crashes >= CRASHES:
            return GiveUp(crash, crashes)
        reason = f"crash {crashes} of {CRASHES}"
        due = last.ended_at + backoff(crashes)
        if now < due:
            return Wait(due - now, f"{reason} at {last.position or 'its start'}; next start in {due - now:.0f} s")
    if refused and now < (due := (refused[0].ended_at or now) + backoff(len(refused))):
        by = refused[0].crash.message if refused[0].crash else "another run or environment holds the app"
        return Wait(due - now, f"refused at try {len(refused)}: {by}", refused=True)
    return Launch(reason)


def telling(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Leave out the runs that tell nothing of what is wanted.

    They are the supervisor's that were refused, and second copies: a person's that was launched while one ran, and was refused; and one
    that was terminated before it began, while one ran. What a person wants of that one they say to that one.
    """
    kept: list[Attempt] = []
    ended = ran = 0.0
    for attempt in reversed(attempts):
        end = inf if attempt.status is Status.LIVE else attempt.ended_at
        if attempt.ended is Ended.REFUSED:
            if not attempt.by_person or attempt.started_at < ended:
                continue
        elif attempt.never_began:
            if 0 < end < ran:  # not of one that never began either: nothing ran that this could be a copy of
                continue
            ended = max(ended, end)
        else:
            ended, ran = max(ended, end), max(ran, end)
        kept.append(attempt)
    return kept[::-1]


def streak(attempts: Sequence[Attempt]) -> int:
    """Count the crashes at the newest one's position, or record, since somebody last launched the stream, hand-overs and shutdowns aside.

    A run that committed something moves the position and so begins a new streak; one that died before it knew its position doesn't. Nor
    does one that the same record stopped: what other partitions brought meanwhile was committed, and that record is still in the way.
    """
    count, position, record = 0, "", None
    for attempt in attempts:
        if attempt.crashed:
            blamed = attempt.crash.record if attempt.crash else None
            if position and attempt.position and attempt.position != position and (blamed is None or blamed != record):
                break
            position, record = attempt.position or position, blamed or record
            count += 1
        elif attempt.ended is not Ended.SHUTDOWN:
            break
        if attempt.by_person:
            break
    return count


def backoff(times: int) -> float:
    """Give the seconds to wait after so many crashes or refusals: 2, 4, 8 ... at most five minutes."""
    return min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (times - 1))


def way_out(crash: Crash) -> str:
    """Say what a person can do about a stream that was given up."""
    match crash.error:
        case "BreakingChange":
            return "Then launch the stream."
        case "Fenced":
            return "Way out: another writer runs this app; stop that one, then launch the stream here."
        case _ if crash.final:
            return "Way out: mend that, then launch the stream."
        case _ if crash.topic is not None:
            return (
                "Way out: make the definition accept the record or refuse it (`filter`, `expect`), reload the definitions, and launch the "
                "stream; no row was lost, it resumes before that record."
            )
        case _:
            return "Way out: read the run's log, mend the cause, and launch the stream; it resumes where it stood."
