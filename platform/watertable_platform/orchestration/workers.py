"""Say which processes carry out a bounded act, and end the runs of acts whose processes are gone.

A run whose worker died with its machine is running for good, as Dagster has it, and holds its app's pool, whatever of the run was left to
do: no other act would ever begin. What the act did is whole or isn't there, as after any other end, so that it is failed, and can be
launched again.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from typing import Final

import dagster as dg

from watertable_platform.orchestration.child import alive, birth
from watertable_platform.orchestration.supervisor import Tag

_RUNNING: Final = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
GONE: Final = "the process that carried out this act is gone: what it did is whole, or isn't there; launch it again"


def mark(instance: dg.DagsterInstance, run_id: str, app: str) -> None:
    """Mark the run, until its end, with this process, which carries out an act of the app, and with the one that began it.

    Where each step has a process of its own, that is the run's worker, which outlives it: the run holds the app's pool while its other
    steps go on. Else it is Dagster's, which ends the run by itself where this one is gone.
    """
    begun_by = multiprocessing.parent_process()
    pids = [os.getpid(), *([begun_by.pid] if begun_by is not None and begun_by.pid else [])]
    value = " ".join([run_id, socket.gethostname(), *(f"{pid} {birth(pid)}" for pid in pids)])
    instance.add_run_tags(run_id, {f"{Tag.WORKER}/{app}": value})


def bury(instance: dg.DagsterInstance) -> list[str]:
    """End the runs whose processes were on this machine and are gone; return their ids. Of other machines nothing is known here."""
    gone = [run for run in instance.get_runs(dg.RunsFilter(statuses=_RUNNING)) if any(_gone(run, *tag) for tag in run.tags.items())]
    for run in gone:
        if run.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, message=GONE)
        else:
            instance.report_run_failed(run, message=GONE)
    return [run.run_id for run in gone]


def _gone(run: dg.DagsterRun, tag: str, value: str) -> bool:
    """Tell whether a tag names processes that are gone; one that a re-executed run inherited is about another run."""
    if not tag.startswith(f"{Tag.WORKER}/") or not value:
        return False
    of, host, *processes = value.split(" ")  # a birth is empty where it can't be told
    lives = (alive(int(pid), born) for pid, born in zip(processes[::2], processes[1::2], strict=True))
    return of == run.run_id and host == socket.gethostname() and not any(lives)
