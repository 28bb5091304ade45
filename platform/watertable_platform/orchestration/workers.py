"""Say which process carries out a bounded act, and end the runs of acts whose process is gone.

A run whose worker died with its machine is running for good, as Dagster has it, and holds its app's pool: no other act would ever begin.
What the act did is whole or isn't there, as after any other end, so that it is failed, and can be launched again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import dagster as dg

from watertable_platform.orchestration.child import alive, birth
from watertable_platform.orchestration.supervisor import Tag

_RUNNING: Final = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
GONE: Final = "the process that carried out this act is gone: what it did is whole, or isn't there; launch it again"


@contextmanager
def marked(instance: dg.DagsterInstance, run_id: str, app: str) -> Iterator[None]:
    """Mark the run with this process for as long as it carries out an act of the app; other steps of the run have others."""
    tag = f"{Tag.WORKER}/{app}"
    instance.add_run_tags(run_id, {tag: f"{run_id} {socket.gethostname()} {os.getpid()} {birth(os.getpid())}"})
    try:
        yield
    finally:
        if instance.has_run(run_id):
            instance.add_run_tags(run_id, {tag: ""})


def bury(instance: dg.DagsterInstance) -> list[str]:
    """End the runs whose process was on this machine and is gone; return their ids. Of other machines nothing is known here."""
    gone = [run for run in instance.get_runs(dg.RunsFilter(statuses=_RUNNING)) if any(_gone(run, *mark) for mark in run.tags.items())]
    for run in gone:
        if run.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, message=GONE)
        else:
            instance.report_run_failed(run, message=GONE)
    return [run.run_id for run in gone]


def _gone(run: dg.DagsterRun, tag: str, mark: str) -> bool:
    """Tell whether a tag names a process that is gone; one that a re-executed run inherited is about another run."""
    if not tag.startswith(f"{Tag.WORKER}/") or not mark:
        return False
    of, host, pid, *born = mark.split()
    return of == run.run_id and host == socket.gethostname() and not alive(int(pid), born[0] if born else "")
