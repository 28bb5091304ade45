"""Be one run of the campaign's app, to be killed: started with a `Script` as JSON, prints events as JSON lines.

Killing is armed here and not by WATERTABLE_FAILPOINT alone, so that it can land a little *after* a point, while the JVM is in the middle
of what the point precedes. The bugs that the campaign must catch are planted here too; nothing in the product knows of them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ARMED = ExitStack()


@dataclass(frozen=True, slots=True)
class Script:
    """Say what a child does. `delay` seconds after the nth time that it meets `point`, it kills `how`.

    Its folds merge, or write each table anew; where they merge, they may write anew the last windows of a windowed table instead.
    With `act` it does one, and not what a run does: see `acting`.
    """

    suffix: str
    home: str
    bootstrap: str
    point: str = ""
    nth: int = 1
    how: str = ""
    delay: float = 0.0
    bug: str = ""
    available_now: bool = False
    batch_records: int = 60
    read: str = ""
    merges: bool = False
    windows_anew: bool = False
    act: str = ""
    to: str = "earliest"
    again: bool = False
    beside: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main(script: Script) -> int:
    from tests.crash.ledger import topology
    from watertable import errors
    from watertable.errors import WatertableError
    from watertable.runtime import events, job
    from watertable.session import spark_session
    from watertable.settings import Settings
    from watertable.store import fold

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    busy = script.point.startswith(("trim", "upkeep"))  # OPTIMIZE and VACUUM again and again are for those who aim at them
    settings = Settings.load(
        script.home, kafka=script.bootstrap, master="local[2]", trigger_seconds=0.0, batch_records=script.batch_records,
        fold_seconds=1.0 if script.point.startswith("fold") else 4.0, tidy_seconds=2.0 if busy else 30.0,
        spark={
            "spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "2",
            # Compiling code for each plan is most of what a JVM does that lives for a few batches.
            "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    )  # fmt: skip
    spark = spark_session(settings, log=Path(script.home) / "jvm.log")
    jvm = spark.sparkContext._gateway.proc
    say({"event": "child", "pid": os.getpid(), "jvm": jvm.pid})
    if script.act:
        from tests.crash.acting import perform

        BUGS.get(script.bug, lambda: None)()
        return perform(script, spark, settings, jvm)
    small_buckets()
    if script.merges:  # tables as small as these would all be folded by writing them anew
        fold.SMALL_BASE, fold.OVERWRITE_FROM = -1, float("inf")  # type: ignore[misc]
        fold.OVERWRITE_WINDOWS = 1 << 40 if script.windows_anew else -1  # type: ignore[misc]
    BUGS.get(script.bug, lambda: None)()
    if script.point:
        arm(script, jvm)
    try:
        job.run(
            topology(script.suffix), settings, available_now=script.available_now, stop=stop, spark=spark,
            on_event=lambda event: print(events.as_json(event), flush=True),
        )  # fmt: skip
    except WatertableError as error:
        return errors.exit_code(error)
    if script.read:
        read(script, spark, settings)
    return 0


def say(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


def arm(script: Script, jvm: Any) -> None:
    """Arm the point; the kill is told before it's done, so that the campaign knows that it landed."""
    from watertable import failpoints

    def kill() -> None:
        say({"event": "kill", "point": script.point, "how": script.how, "at": time.time()})
        if script.how == "freeze":  # both, until somebody lets them go on: a process that was paused is how zombies are made
            os.kill(jvm.pid, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
        if script.how in ("kill-jvm", "kill-both"):
            os.kill(jvm.pid, signal.SIGKILL)
        if script.how in ("kill-python", "kill-both"):
            os.kill(os.getpid(), signal.SIGKILL)

    def reached() -> None:
        if script.delay:
            threading.Timer(script.delay, kill).start()
        else:
            kill()

    ARMED.enter_context(failpoints.armed(script.point, reached, script.nth))


def small_buckets() -> None:
    """Make buckets of a few commits and let the horizon have passed, so that trims have something to do within seconds."""
    from tests import buckets
    from watertable.store import upkeep

    buckets.resize(4)
    trim = upkeep.Upkeep.trim
    upkeep.Upkeep.trim = lambda self, consumers=(), *, now=None: trim(self, consumers, now=datetime.now(UTC) + timedelta(days=30))  # type: ignore[method-assign]


def read(script: Script, spark: Any, settings: Any, code: str = "a") -> None:
    """Write what the product's own reader reads, all tables at one position, to a file of JSON lines."""
    from tests.crash.ledger import topology
    from watertable.store.reader import Reader

    wanted = topology(script.suffix, code)
    view = Reader(spark, settings.warehouse_uri, wanted.app, wanted.tables).view()
    found = {name: [json.loads(row) for row in view.rows(wanted.table(name)).toJSON().collect()] for name in view.bases}
    Path(script.read).write_text(json.dumps({"position": str(view.position), "tables": found}), encoding="utf-8")


# ------------------------------------------------------------------------------------------------------------- the planted bugs


def offset_off_by_one() -> None:
    """Begin to read one offset late after a start, from what is archived too, and commit as if nothing were missing."""
    from watertable.runtime import loop
    from watertable.store import archive

    kafka, archived, late = loop.read_range, archive.Archives.read, set()

    def shifted(begin: Any, end: Any) -> Any:
        if not late and sum(begin.values()):
            late.update(begin.items())
        return {p: min(offset + 1, end.get(p, offset)) if (p, offset) in late else offset for p, offset in begin.items()}

    loop.read_range = lambda spark, cluster, begin, end, *rest: kafka(spark, cluster, shifted(begin, end), end, *rest)
    archive.Archives.read = lambda self, begin, end: archived(self, shifted(begin, end), end)  # type: ignore[method-assign]


def fold_not_idempotent() -> None:
    """Believe the confirmations of folds and not their transactions: a fold that died before its confirmation is folded again."""
    from dataclasses import replace

    from watertable.store import reader

    honest = reader.Reader.newest

    def believes(self: Any, table: Any) -> Any:
        base = honest(self, table)
        if base.snapshot is None:
            return base
        marks = [m for row in self.changelog.rows(self.changelog.snapshot(), "c.kind = 'fold'") for m in row.folds if m.table == table.name]
        return replace(base, seq=max((m.seq for m in marks), default=0))

    reader.Reader.newest = believes  # type: ignore[method-assign]


def zombie_commits() -> None:
    """Forget the fence: append whatever comes, whoever has written in between."""
    from watertable.store import deltalog

    honest = deltalog.DeltaLog.draft

    def careless(self: Any, *, note: str = "", point: str = "", **_: Any) -> Any:
        return honest(self, note=note, point=point)

    deltalog.DeltaLog.draft = careless  # type: ignore[method-assign]


def mixed_app() -> None:
    """Take each table's newest fold for what a rewind has made of it: as if tables were restored one after the other."""
    from dataclasses import replace

    from watertable.store import reader

    honest = reader.Reader.view

    def trusts(self: Any, *args: Any, **options: Any) -> Any:
        view = honest(self, *args, **options)
        return replace(view, bases={name: self.newest(self.tables[name]) for name in view.bases})

    reader.Reader.view = trusts  # type: ignore[method-assign]


def promote_behind() -> None:
    """Let a shadow take the app's place where it happens to stand."""
    from types import SimpleNamespace

    from watertable.acts import shadow

    honest = shadow._switch

    def careless(store: Any, topology: Any, *rest: Any) -> Any:  # of an app without topics there is nothing to compare
        return honest(store, SimpleNamespace(topics=(), fingerprint=topology.fingerprint), *rest)  # type: ignore[arg-type]

    shadow._switch = careless


BUGS: dict[str, Callable[[], None]] = {
    "offset off by one": offset_off_by_one,
    "fold not idempotent": fold_not_idempotent,
    "zombie commit": zombie_commits,
    "mixed app": mixed_app,
    "promote behind": promote_behind,
}

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main(Script(**json.loads(sys.argv[1]))))
