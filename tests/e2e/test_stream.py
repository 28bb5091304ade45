"""The life of a stream in Dagster: launched, watched, stopped, killed, broken, given new code, and gone without a trace."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.e2e.conftest import Dagster, Project

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.spark]


def live(dagster: Dagster) -> dict[str, Any] | None:
    """Give the stream's run once its driver has said where it stands."""
    found = [r for r in dagster.runs("stream__shop") if r["status"] == "STARTED"]
    return found[0] if found and found[0]["tags"].get("watertable/fingerprint") else None


def running(dagster: Dagster) -> dict[str, Any]:
    """Give the stream's run, launched if there is none: a test can be asked for by itself."""
    if live(dagster) is None:
        dagster.launch_stream()
    return dagster.until("the stream runs", lambda: live(dagster))


def drivers(project: Project) -> list[int]:
    return [pid for pid, command in project.processes().items() if " run shop --json" in command]


def at_epoch(dagster: Dagster, epoch: int) -> bool:
    return any(str(m["metadata"].get("position")).startswith(f"shop@{epoch}.") for m in dagster.materializations("shop", "stock"))


def test_a_stream_is_launched_watched_stopped_and_comes_back(project: Project, dagster: Dagster) -> None:
    # one graph
    stock = dagster.asset("shop", "stock")
    assert stock["dependencyKeys"] == [{"path": ["topics", "sales"]}]
    assert {tuple(k["path"]) for k in stock["dependedByKeys"]} == {("topics", "reorders"), ("shop", "totals")}
    assert set(stock["kinds"]) == {"kafka", "spark", "deltalake"}
    assert stock["owners"] == [{"team": "shop"}]
    assert "wt.read" in stock["description"]
    assert "fold lag" in stock["description"]
    # a new app starts stopped
    dagster.until("the reconcile sensor ticks", lambda: ticks(dagster, "reconcile_streams"))
    assert dagster.runs("stream__shop") == []

    # launched: tables are materialized while it runs
    project.send(*[(f"i{n % 10}", n) for n in range(1000)])
    dagster.launch_stream()
    first = dagster.until("the stream runs", lambda: live(dagster))
    dagster.until("stock is materialized", lambda: dagster.materializations("shop", "stock"))
    newest = dagster.until(
        "a fold is reported", lambda: next((m for m in dagster.materializations("shop", "stock") if "fold ms" in m["metadata"]), None)
    )
    assert newest["runId"] == first["runId"]
    assert {"records/s", "batch ms", "lag sales", "rows changed", "quarantined", "fold ms", "fold lag s"} <= set(newest["metadata"])
    dagster.until("it is fresh", lambda: dagster.asset("shop", "stock")["staleStatus"] == "FRESH")
    for name in ("stream_alive", "deployed_code", "freshness", "fold_lag", "quarantine"):
        dagster.until(f"{name} passes, for the latest materialization", lambda name=name: dagster.check("stock", name).get("success"))
    dagster.until("the topic is observed", lambda: dagster.asset("topics", "sales")["assetObservations"])

    # a plain Materialize on a live table: already at head, and no second writer
    act = dagster.launch("__ASSET_JOB", [["shop", "stock"], ["shop", "hourly"]])
    dagster.until("the act succeeds", lambda: dagster.run(act)["status"] == "SUCCESS")
    assert "already at head" in str([m["metadata"].get("act") for m in dagster.materializations("shop", "stock")])
    assert len(drivers(project)) == 1

    # terminated by a person: stays stopped, leaves no process
    dagster.terminate(first["runId"])
    dagster.until("it is canceled", lambda: dagster.run(first["runId"])["status"] == "CANCELED")
    assert drivers(project) == []
    seen = ticks(dagster, "reconcile_streams")
    dagster.until("the sensor has looked twice", lambda: ticks(dagster, "reconcile_streams") >= seen + 2)
    assert len(dagster.runs("stream__shop")) == 1
    dagster.until("the check says who stopped it", lambda: "by a person" in dagster.check("stock", "stream_alive").get("description", ""))

    # stopped, Materialize is the bounded run
    project.send(("i1", 5))
    act = dagster.launch("__ASSET_JOB", [["shop", "stock"]])
    dagster.until("the bounded run succeeds", lambda: dagster.run(act)["status"] == "SUCCESS")
    assert drivers(project) == []
    assert dagster.materializations("shop", "stock")[0]["metadata"]["records"] == 1

    # launched again, its driver killed: it comes back by itself, at a position that it had
    dagster.launch_stream()
    second = dagster.until("it runs again", lambda: live(dagster))
    [driver] = drivers(project)
    os.kill(driver, signal.SIGKILL)
    dagster.until("the crash is seen", lambda: dagster.run(second["runId"])["status"] == "FAILURE")
    third = dagster.until("it came back", lambda: live(dagster))
    assert third["tags"]["watertable/started_by"] == "supervisor"
    assert len(drivers(project)) == 1


@pytest.mark.slow
def test_a_stream_survives_its_worker_and_takes_new_code(project: Project, dagster: Dagster) -> None:
    if live(dagster) is None:  # asked for by itself: it has what the test before would have sent
        project.send(*[(f"i{n % 10}", n) for n in range(1000)], ("i1", 5))
    third = running(dagster)

    # its worker killed outright: the run is a ghost, and is buried, whoever sees it first, the sensor or Dagster; it comes back
    os.kill(leases_of(project)["pid"], signal.SIGKILL)
    reached = leases_of(project)["position"]
    ghost = dagster.until("the ghost is seen", lambda: (r := dagster.run(third["runId"]))["tags"].get("watertable/ended") == "ghost" and r)
    assert reached in ("", ghost["tags"]["watertable/position"])
    dagster.until("it is buried", lambda: dagster.run(third["runId"])["status"] in ("CANCELED", "FAILURE"))
    fourth = dagster.until("it came back", lambda: live(dagster))
    assert fourth["runId"] != third["runId"]
    assert fourth["tags"]["watertable/started_by"] == "supervisor"
    assert len(drivers(project)) == 1

    # new code: drains, commits, resumes with it
    project.write("app", project.app + "    sales.group_by('item').agg(most=wt.max('qty')).materialized_as('most')\n")
    dagster.reload()
    dagster.until("it hands over", lambda: dagster.run(fourth["runId"])["tags"].get("watertable/ended") == "hand-over")
    fifth = dagster.until("the new code runs", lambda: (now := live(dagster)) and now["runId"] != fourth["runId"] and now)
    assert fifth["tags"]["watertable/fingerprint"] != fourth["tags"]["watertable/fingerprint"]
    dagster.until("the code is deployed", lambda: dagster.check("stock", "deployed_code").get("success"))
    project.write("app", project.app)
    dagster.reload()
    old = fourth["tags"]["watertable/fingerprint"]
    dagster.until("it hands over again", lambda: (now := live(dagster)) and now["tags"]["watertable/fingerprint"] == old)

    # the batch asset reads it
    batch = dagster.launch("__ASSET_JOB", [["shop", "totals"]])
    dagster.until("the batch asset is made", lambda: dagster.run(batch)["status"] in ("SUCCESS", "FAILURE"))
    assert dagster.run(batch)["status"] == "SUCCESS"
    assert dagster.materializations("shop", "totals")[0]["metadata"] == {"items": 10, "sales": 1001}
    ticks(dagster, "reconcile_streams")  # not one of them failed


@pytest.mark.slow
def test_a_stream_comes_back_after_its_whole_machine_died(project: Project, dagster: Dagster) -> None:
    before = running(dagster)
    plan = {"ops": {"rewind_shop": {"config": {"to": "earliest"}}}}
    act = dagster.launch("rewind__shop", config=plan)
    dagster.until("an act is under way", lambda: dagster.run(act)["tags"].get("watertable/worker/shop"))

    project.kill()  # the page, the daemon, the code server, the worker and its driver, none of which may say a word
    dagster.stop()
    dagster.start()

    ended = dagster.until("the ghost is buried", lambda: (r := dagster.run(before["runId"]))["status"] != "STARTED" and r)
    assert (ended["status"], ended["tags"]["watertable/ended"]) == ("CANCELED", "ghost")
    after = dagster.until("it came back", lambda: live(dagster))
    assert after["tags"]["watertable/started_by"] == "supervisor"
    assert len(drivers(project)) == 1
    assert dagster.run(act)["status"] == "FAILURE"
    act = dagster.launch("rewind__shop", config=plan)
    dagster.until("the act's place is free", lambda: dagster.run(act)["status"] == "SUCCESS")
    ticks(dagster, "reconcile_streams")


@pytest.mark.slow
def test_a_live_stream_is_rewound_and_taken_back_from_dagster(project: Project, dagster: Dagster) -> None:
    before = running(dagster)
    project.send(("i1", 7))
    dagster.until("it has committed", lambda: at_epoch(dagster, 1))

    # a dry run, the default, shows the plan and changes nothing
    dry = dagster.launch("rewind__shop", config={"ops": {"rewind_shop": {"config": {"to": "1"}}}})
    dagster.until("the plan is shown", lambda: dagster.run(dry)["status"] == "SUCCESS")
    assert not at_epoch(dagster, 2)

    # done: the same run goes on from the fork, in a new epoch
    wanted = {"to": "1", "reason": "to see it twice", "dry_run": False}
    done = dagster.launch("rewind__shop", config={"ops": {"rewind_shop": {"config": wanted}}})
    dagster.until("it is rewound", lambda: dagster.run(done)["status"] == "SUCCESS")
    dagster.until("it replays", lambda: at_epoch(dagster, 2))

    # and taken back
    undone = dagster.launch("undo__shop", config={"ops": {"undo_shop": {"config": {"dry_run": False}}}})
    dagster.until("it is undone", lambda: dagster.run(undone)["status"] == "SUCCESS")
    project.send(("i1", -7))
    dagster.until("it goes on from where it was", lambda: at_epoch(dagster, 3))
    assert (live(dagster) or {}).get("runId") == before["runId"]
    assert len(drivers(project)) == 1


@pytest.mark.slow
def test_a_stream_that_breaks_five_times_at_one_record_stops_and_names_it(project: Project, dagster: Dagster) -> None:
    running(dagster)
    project.send(("boom", 2**62), ("boom", 2**62))
    last = project.end("sales") - 1
    verdict = dagster.until(
        "it is given up", lambda: (v := dagster.check("stock", "stream_alive")) and "Way out" in (v.get("description") or "") and v, 1500
    )
    assert verdict["success"] is False
    assert f"topic sales, partition 0, offset {last}" in verdict["description"]
    crashes = [r for r in dagster.runs("stream__shop") if r["status"] == "FAILURE"]
    assert len([r for r in crashes if "RecordFailed" in r["tags"].get("watertable/crash", "")]) == 5
    assert drivers(project) == []
    ticks(dagster, "reconcile_streams")


def test_nothing_is_left_behind(project: Project, dagster: Dagster) -> None:
    if (run := live(dagster)) is not None:  # Dagster ends with a stream in it
        assert drivers(project)
        assert run["status"] == "STARTED"
    dagster.stop()
    dagster.process = None
    dagster.until("no process is left", lambda: not project.processes())


def ticks(dagster: Dagster, sensor: str) -> int:
    selector = {"repositoryLocationName": "watertable", "repositoryName": "__repository__", "sensorName": sensor}
    found = dagster.query(
        """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor { sensorState {
             ticks(limit: 500) { status error { message } } } } } }""",
        s=selector,
    )["sensorOrError"]["sensorState"]
    assert not [t for t in found["ticks"] if t["status"] == "FAILURE"], found["ticks"]
    return len([t for t in found["ticks"] if t["status"] != "STARTED"])


def leases_of(project: Project) -> dict[str, Any]:
    import json

    return dict(json.loads((project.root / ".watertable" / "leases" / "shop.json").read_text()))
