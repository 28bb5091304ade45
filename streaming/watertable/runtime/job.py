"""Run an app, or its shadow, from its start to its end: what that raises is told first, and a session that it began is ended with it.

What runs is a `Job` of `loop`; of a shadow, a `Replay`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from watertable.errors import Fenced, TopicChanged
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable.plan.plan import Topology
from watertable.runtime import failures
from watertable.runtime.events import Emitter, Listener, Stopped
from watertable.runtime.loop import Job
from watertable.runtime.replay import Replay
from watertable.session import shut_down, spark_session
from watertable.settings import Settings
from watertable.store.commits import Offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


def run(
    topology: Topology,
    settings: Settings,
    *,
    available_now: bool = False,
    shadow: bool = False,
    goal: Offsets | None = None,
    until: int = 0,
    on_event: Listener = lambda event: None,
    stop: threading.Event | None = None,
    spark: SparkSession | None = None,
    log: Path | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Run an app until `stop` is set; with `available_now`, until it has read what was there when it began.

    With `shadow`, it is the app's shadow that is run, until it is where the app stands, or stood at its commit `until`, or has read up to
    `goal`; the app is left alone.
    `clock` is the clock on the wall, by which punctuators may be scheduled.

    Returns when all is committed, folded (a bounded run) or left as it was (a stop: the batch at hand is finished or undone within
    seconds). Without `spark`, a session is started, and ended with its JVM. Raises `TopicChanged` when the topics are no longer those that
    were read, `Fenced` when another run took over, `RecordFailed` at a record that can't be worked off, any other `WatertableError` for
    what else stops a run; each is an event first.
    """
    stop = stop or threading.Event()
    emit = Emitter(on_event)
    began_session = spark is None
    job: Job | None = None
    try:
        admin = Admin(Cluster.of(settings))
        if began_session and (available_now or shadow):
            admin.topics()  # a cluster that isn't there is told before Spark takes its seconds; a stream waits for it
        spark = spark or spark_session(settings, app=f"watertable {topology.app}", log=log)
        job = Replay(topology, settings, spark, emit, stop, goal, until) if shadow else Job(topology, settings, spark, emit, stop, clock)
        with contextlib.closing(job):  # before the end is told: a fold that ends meanwhile is told before it
            reason = job.run(available_now=available_now)
    except Exception as error:
        told = failures.told(error, spark)
        if stop.is_set() and not isinstance(told, Fenced | TopicChanged):
            _log.info("the batch at hand was undone: %s", error)
            emit(Stopped(position=job.shown if job else "", reason="stopped; the batch at hand was undone"))
            return
        emit(failures.failed(told, job.shown if job else None))
        raise told from error
    else:
        emit(Stopped(position=job.shown, reason=reason))
    finally:
        if began_session and spark is not None:
            shut_down(spark)
