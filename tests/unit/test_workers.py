"""Runs of acts whose process is gone: ended by the sensor, so that their app's pool is free; all others are left alone."""

from __future__ import annotations

import os
import socket

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
    ids=["it lives", "it is over", "inherited by a re-execution", "of another machine"],
)
def test_an_act_of_which_nothing_such_is_known_goes_on(mark: str) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert status_after(instance, STARTED, mark) is STARTED


def test_a_run_is_marked_while_it_carries_out_an_act_and_no_longer() -> None:
    def mark() -> str:
        run = instance.get_run_by_id("act")
        assert run is not None
        return run.tags[TAG]

    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(dg.DagsterRun(job_name="rewind__shop", run_id="act", status=STARTED))
        with workers.marked(instance, "act", "shop"):
            assert mark() == OURS
            assert workers.bury(instance) == []
        assert mark() == ""
        with pytest.raises(ZeroDivisionError), workers.marked(instance, "act", "shop"):
            1 / 0  # noqa: B018
        assert mark() == ""
