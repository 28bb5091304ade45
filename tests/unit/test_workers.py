"""Runs of acts whose process is gone: ended by the sensor, so that their app's pool is free; all others are left alone."""

from __future__ import annotations

import multiprocessing
import os
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import dagster as dg
import pytest

from watertable_platform.orchestration import workers
from watertable_platform.orchestration.child import birth
from watertable_platform.orchestration.supervisor import Tag

TAG = f"{Tag.WORKER}/shop"
STARTED = dg.DagsterRunStatus.STARTED
CANCELING = dg.DagsterRunStatus.CANCELING
FAILURE = dg.DagsterRunStatus.FAILURE
CANCELED = dg.DagsterRunStatus.CANCELED
HERE = socket.gethostname()
OURS = f"act {HERE} {os.getpid()} {birth(os.getpid())}"
DEAD = f"act {HERE} {os.getpid()} 1"  # this process's id, in another's life


def status_after(instance: dg.DagsterInstance, status: dg.DagsterRunStatus, mark: str) -> dg.DagsterRunStatus:
    instance.add_run(dg.DagsterRun(job_name="rewind__shop", run_id="act", status=status, tags={TAG: mark}))
    workers.bury(instance)
    run = instance.get_run_by_id("act")
    assert run is not None
    return run.status


@pytest.mark.parametrize(("status", "after"), [(STARTED, FAILURE), (CANCELING, CANCELED)])
def test_an_act_whose_process_is_gone_is_ended(status: dg.DagsterRunStatus, after: dg.DagsterRunStatus) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert status_after(instance, status, DEAD) is after
        assert workers.bury(instance) == []


@pytest.mark.parametrize(
    "mark",
    [OURS, "", DEAD.replace("act ", "its_model "), DEAD.replace(HERE, "elsewhere")],
    ids=["it lives", "a release before took the mark of an act that was over away", "inherited by a re-execution", "of another machine"],
)
def test_an_act_of_which_nothing_such_is_known_goes_on(mark: str) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert status_after(instance, STARTED, mark) is STARTED


def begin(home: Path, told: Connection, step: bool) -> None:
    """Stand for a run's worker: begin the process of a step, in which an act is marked, and see it end."""
    if not step:
        child = multiprocessing.get_context("spawn").Process(target=begin, args=(home, told, True))
        child.start()
        child.join()
        told.send("other steps go on")
        told.poll(60)
        return
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        workers.mark(instance, "act", "shop")


def test_a_run_whose_act_is_over_is_ended_when_its_worker_is_gone_and_no_sooner(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        instance.add_run(dg.DagsterRun(job_name="rewind__shop", run_id="act", status=STARTED))
        ours, its = multiprocessing.Pipe()
        worker = multiprocessing.get_context("spawn").Process(target=begin, args=(tmp_path, its, False))
        worker.start()
        assert ours.recv() == "other steps go on"
        assert workers.bury(instance) == []  # the act's process is gone, be it that it was killed
        worker.kill()
        worker.join()
        assert workers.bury(instance) == ["act"]


def test_a_run_is_marked_with_the_process_that_carries_it_out() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(dg.DagsterRun(job_name="rewind__shop", run_id="act", status=STARTED))
        workers.mark(instance, "act", "shop")
        run = instance.get_run_by_id("act")
        assert run is not None
        assert run.tags[TAG] == OURS
        assert workers.bury(instance) == []
