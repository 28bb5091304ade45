"""Hold an app's lease: a small file that says which run keeps the app, from where, and how it is doing.

The store's fence is what makes two writers harmless; the lease is what keeps a second one from being started, and what tells a dead
worker from a busy one. It is renewed with every sign of life from the driver, and replaced whole, so a reader never sees half of it.
Another environment's lease (another Dagster instance over the same home) is respected even when it is old: taking it over must be said.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from watertable.errors import FormatError, JobError
from watertable.plan.deployment import Outline
from watertable.plan.plan import Topology
from watertable.settings import Settings
from watertable.store.commits import Position
from watertable_platform.orchestration.child import alive, birth

if TYPE_CHECKING:
    import dagster as dg

QUIET: Final = 3600.0
"""Seconds without a refused record after which those of before count as a few of long ago."""
SILENT: Final = 120.0
"""Seconds without a sign of life after which a worker on another machine counts as gone."""
_HANDED_ON: Final = ("stream_time", "unfolded_since", "refused_since", "refused_at", "refused_in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Say who keeps an app and how it is doing. Times are seconds since 1970.

    `pid` is the Dagster worker, `driver` the process that writes, each with its birth.
    `act` marks a bounded act's: it ends by itself.
    `lag` is empty while it isn't known; `problem` says why, unless nobody has looked yet. `behind_since` is since when records wait, or
    may, for all that is known; 0: none do. `told` is how far its days have been reported. `unfolded_since` is when the oldest commit was
    made that waits for its fold; 0: none does. `refused_since` and `refused_at` are when records began to be refused, and when one was
    last, in the commit `refused_in`; 0: none was.
    """

    app: str
    run_id: str
    environment: str
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    pid_birth: str = field(default_factory=lambda: birth(os.getpid()))
    driver: int = 0
    driver_birth: str = ""
    beat: float = field(default_factory=time.time)
    fingerprint: str = ""
    position: str = ""
    stream_time: str = ""
    lag: dict[str, int] = field(default_factory=dict)
    problem: str = ""
    behind_since: float = 0.0
    unfolded_since: float = 0.0
    refused_since: float = 0.0
    refused_at: float = 0.0
    refused_in: str = ""
    told: str = ""
    act: bool = False
    released: bool = False

    @property
    def refuses(self) -> bool:
        """Tell whether records were refused lately, as seen from its last sign of life."""
        return bool(self.refused_at) and self.beat - self.refused_at <= QUIET

    @property
    def handed_on(self) -> dict[str, Any]:
        """Give what the next run takes over: what it knows of the app before its driver says anything.

        Records that waited wait still. That none did is no news any more.
        """
        kept = {name: getattr(self, name) for name in _HANDED_ON}
        return kept | ({"lag": self.lag, "behind_since": self.behind_since} if self.behind_since else {})

    def reading(self, lag: Mapping[str, int], problem: str = "") -> dict[str, Any]:
        """Give what becomes of it where so many records wait, by topic; where that isn't known, `lag` is empty."""
        waits = not lag or any(lag.values())
        return {"lag": lag, "problem": problem, "behind_since": (self.behind_since or time.time()) if waits else 0.0}

    def refusing(self, records: int, position: str) -> dict[str, Any]:
        """Give what becomes of it where the batch of a commit has just refused so many records."""
        now = time.time()
        since = self.refused_since if self.refuses else now
        return {"refused_since": since, "refused_at": now, "refused_in": position} if records else {}

    def going_on_from(self, fork: str) -> dict[str, Any]:
        """Give what becomes of it where the app goes on from a fork: what was refused behind it is read again, and refused or not."""
        again = self.refused_in and (not fork or Position.parse(self.refused_in).seq > Position.parse(fork).seq)
        return {"refused_since": 0.0, "refused_at": 0.0, "refused_in": ""} if again else {}

    @property
    def worker_lives(self) -> bool:
        """Tell whether the worker that took it is there: on this machine by its process, elsewhere by its last sign of life."""
        return alive(self.pid, self.pid_birth) if self.host == socket.gethostname() else time.time() - self.beat < SILENT

    @property
    def is_held(self) -> bool:
        """Tell whether a stream runs under it."""
        return not self.released and self.worker_lives


def environment(settings: Settings, instance: dg.DagsterInstance) -> str:
    """Name the environment that a lease belongs to: this Dagster instance, and the settings' prefix."""
    home = os.environ.get("DAGSTER_HOME", "")
    return f"{settings.env or 'default'}@{home or instance.root_directory}"


def read(settings: Settings, app: str) -> Lease | None:
    """Return the app's lease; None when nobody ever took it, or when the file is of another release."""
    try:
        return Lease(**json.loads(_file(settings, app).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def of_run(lease: Lease | None, run_id: str) -> Lease | None:
    """Give an app's lease if it is that run's; None else."""
    return lease if lease is not None and lease.run_id == run_id else None


def take(settings: Settings, lease: Lease, *, take_over: bool = False) -> Lease:
    """Take the app for a run; raise `JobError` when another run holds it, or when it is another environment's.

    `take_over` is how one says that the other environment is to be ignored; a run that is alive on this machine is never ignored.
    """
    now = read(settings, lease.app)
    if now is not None and now.run_id != lease.run_id:
        if now.is_held:
            raise JobError(f"{lease.app} is kept by run {now.run_id} (process {now.pid} on {now.host}): terminate that one first")
        if now.environment != lease.environment and not now.released and not take_over:
            raise JobError(
                f"{lease.app}'s lease belongs to another environment: {now.environment}, host {now.host}, last seen "
                f"{time.time() - now.beat:.0f} s ago; this is {lease.environment}. If it is gone for good, launch with take_over: true"
            )
    return _write(settings, dataclasses.replace(lease, beat=time.time()))


def await_act(settings: Settings, app: str, seconds: float) -> None:
    """Wait until a bounded act that holds the app has ended, or until the time is over."""
    deadline = time.monotonic() + seconds
    while (now := read(settings, app)) is not None and now.act and now.is_held and time.monotonic() < deadline:
        time.sleep(0.5)


def renew(settings: Settings, lease: Lease, **changes: Any) -> Lease:
    """Write the lease with what changed and with the time of day; the file is replaced whole.

    Where another run has taken the app since the last time, the lease is that run's, and stays as it is: this one's driver is fenced.
    """
    now = read(settings, lease.app)
    if now is not None and now.run_id != lease.run_id and now.beat > lease.beat:
        return dataclasses.replace(lease, **{**changes, "beat": lease.beat})
    return _write(settings, dataclasses.replace(lease, **{"beat": time.time(), **changes}))


def record_code(settings: Settings, topology: Topology) -> None:
    """Remember by which code the app goes on: as it was started, or as somebody has rewound it."""
    _replace(_file(settings, topology.app).with_suffix(".plan"), Outline.of(topology).to_json())


def recorded_code(settings: Settings, app: str) -> Outline | None:
    """Return by which code the app goes on; None where it isn't known."""
    try:
        return Outline.from_json(_file(settings, app).with_suffix(".plan").read_text(encoding="utf-8"))
    except (FileNotFoundError, FormatError):
        return None


def _write(settings: Settings, lease: Lease) -> Lease:
    _replace(_file(settings, lease.app), json.dumps(dataclasses.asdict(lease)))
    return lease


def _replace(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.stem}-", delete=False, encoding="utf-8") as out:
        out.write(text)
    os.replace(out.name, file)


def _file(settings: Settings, app: str) -> Path:
    return settings.home_folder / "leases" / f"{app}.json"
