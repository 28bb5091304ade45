"""Dagster's own Backfill on live tables: a rewind, by both of the mutations that its page sends, while the stream runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import make_project, numbers
from tests.e2e.test_stream import drivers, live

if TYPE_CHECKING:
    from tests.e2e.conftest import Dagster, Project
    from watertable.kafka.config import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

TABLES = [["shop", "stock"], ["shop", "hourly"]]
PATIENCE = 900


@pytest.fixture(scope="module")
def project(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(broker, tmp_path_factory.mktemp("days"), 'days = { shop = "2011-01-01/2011-01-06" }')


def versions(dagster: Dagster, table: str) -> dict[str, str]:
    """Give the data version of each day that was reported, by its newest report."""
    found: dict[str, str] = {}
    for event in dagster.asset("shop", table)["assetMaterializations"]:
        if event["partition"]:
            tags = {t["key"]: t["value"] for t in event["tags"]}
            found.setdefault(event["partition"], tags["dagster/data_version"])
    return found


def noted(dagster: Dagster, run: str, label: str) -> list[Any]:
    """List what a run noted of a table under a label, newest first."""
    events = [numbers(o) for o in dagster.asset("shop", "hourly")["assetObservations"] if o["runId"] == run]
    return [e[label] for e in events if label in e]


def position(dagster: Dagster) -> str:
    return max(str(m["metadata"].get("position")) for m in dagster.materializations("shop", "stock"))


def ended(dagster: Dagster, run: str) -> bool:
    return bool(dagster.run(run)["status"] in ("SUCCESS", "FAILURE", "CANCELED"))


def test_a_backfill_is_a_rewind_by_both_mutations_while_the_stream_runs(project: Project, dagster: Dagster) -> None:
    for day in range(1, 5):
        for partition in (0, 1):
            project.send(*[(f"i{n % 5}", n) for n in range(200)], at=f"2011-01-0{day}T05:00:00Z", partition=partition)
    dagster.launch_stream()
    running = dagster.until("the stream runs", lambda: live(dagster), PATIENCE)
    closed = {"2011-01-01", "2011-01-02", "2011-01-03"}
    dagster.until("closed days are reported", lambda: all(set(versions(dagster, t)) == closed for t in ("stock", "hourly")), PATIENCE)
    first = versions(dagster, "hourly")

    # a dry run shows the plan, on the run and on the tables, and changes nothing
    config = {"ops": {"materialize__shop": {"config": {"dry_run": True}}}}
    dry = dagster.launch("__ASSET_JOB", TABLES, config, days=("2011-01-02", "2011-01-03"))
    dagster.until("the plan is shown", lambda: ended(dagster, dry), PATIENCE)
    assert dagster.run(dry)["status"] == "SUCCESS"
    assert "records are read again" in noted(dagster, dry, "plan")[0]
    assert versions(dagster, "hourly") == first

    # launchRun with a range, as the page does for policies of a single run
    config = {"ops": {"materialize__shop": {"config": {"mode": "in_place", "reason": "bad prices"}}}}
    done = dagster.launch("__ASSET_JOB", TABLES, config, days=("2011-01-02", "2011-01-03"))
    dagster.until("the range is read again", lambda: ended(dagster, done), PATIENCE)
    assert dagster.run(done)["status"] == "SUCCESS"
    assert "a rewind of all of shop to the start of 2011-01-02" in noted(dagster, done, "act")[0]
    assert noted(dagster, done, "replayed records")[0] == noted(dagster, done, "records to replay")[0] > 0
    assert noted(dagster, done, "replayed records/s")
    second = versions(dagster, "hourly")
    assert {day for day in closed if second[day] != first[day]} >= {"2011-01-02", "2011-01-03"}
    assert all(second[day].startswith("shop@2.") for day in ("2011-01-02", "2011-01-03"))
    assert materialized(dagster) == {"stock": closed, "hourly": closed}

    # launchPartitionBackfill, as it does otherwise: one run for all days and tables, with the dialog's configuration
    backfill = dagster.backfill(TABLES, ["2011-01-02", "2011-01-03"], config)
    dagster.until("the backfill is done", lambda: dagster.backfilled(backfill)["status"].startswith("COMPLETED"), PATIENCE)
    story = dagster.backfilled(backfill)
    assert story["status"] == "COMPLETED_SUCCESS"
    (run,) = story["runs"]
    assert run["status"] == "SUCCESS"
    assert "bad prices" in run["runConfigYaml"]
    third = versions(dagster, "hourly")
    assert all(third[day].startswith("shop@3.") for day in ("2011-01-02", "2011-01-03"))
    assert materialized(dagster) == {"stock": closed, "hourly": closed}

    # of windowed tables alone it is the windows of those days, and nothing else
    hours = dagster.launch("__ASSET_JOB", [["shop", "hourly"]], config, days=("2011-01-02", "2011-01-02"))
    dagster.until("the day is made anew", lambda: ended(dagster, hours), PATIENCE)
    assert dagster.run(hours)["status"] == "SUCCESS"
    assert "the windows of hourly that start then" in noted(dagster, hours, "act")[0]
    fourth = versions(dagster, "hourly")
    assert {day for day in closed if fourth[day] != third[day]} == {"2011-01-02"}

    # the stream was never stopped, and a plain Materialize has nothing to do
    assert (live(dagster) or {}).get("runId") == running["runId"]
    assert len(drivers(project)) == 1
    plain = dagster.launch("__ASSET_JOB", [["shop", "stock"]])
    dagster.until("it is at the head", lambda: ended(dagster, plain), PATIENCE)
    assert "already at head" in str([m["metadata"].get("act") for m in dagster.materializations("shop", "stock")])

    # and the tables are what they were
    batch = dagster.launch("__ASSET_JOB", [["shop", "totals"]])
    dagster.until("they are read", lambda: ended(dagster, batch), PATIENCE)
    assert dagster.materializations("shop", "totals")[0]["metadata"] == {"items": 5, "sales": 1600}


def test_code_that_would_make_tables_wrong_waits_for_a_rewind(project: Project, dagster: Dagster) -> None:
    if live(dagster) is None:
        dagster.launch_stream()
    project.send(("i1", 7), ("i2", 500), at="2011-01-04T06:00:00Z")

    def running(other: str = "") -> dict[str, Any] | None:
        found = live(dagster)
        return found if found and found["tags"]["watertable/fingerprint"] != other else None

    # what is new rolls in
    first = dagster.until("the stream runs", running, PATIENCE)
    dagster.until("it has committed", lambda: dagster.materializations("shop", "stock"), PATIENCE)
    more = project.app + "    sales.group_by('item').agg(most=wt.max('qty')).materialized_as('most')\n"
    project.write("app", more)
    dagster.reload()
    before = dagster.until("the new code runs", lambda: running(first["tags"]["watertable/fingerprint"]), PATIENCE)
    assert dagster.run(first["runId"])["tags"]["watertable/ended"] == "hand-over"
    dagster.until("it is deployed", lambda: dagster.check("stock", "deployed_code").get("success"), PATIENCE)

    # what would make a table wrong waits, and says why
    project.write("app", more.replace("stock = sales.group_by", "stock = sales.filter('qty < 199').group_by"))
    dagster.reload()
    verdict = dagster.until(
        "the check says why it isn't handed over to",
        lambda: (v := dagster.check("stock", "deployed_code")) and not v["success"] and v,
        PATIENCE,
    )
    assert "stock: a filter was put in" in verdict["description"]
    assert "--to earliest" in verdict["description"]
    assert (live(dagster) or {}).get("runId") == before["runId"]

    # until the app is rewound for it
    epoch = int(position(dagster).partition("@")[2].partition(".")[0])
    config = {"ops": {"rewind_shop": {"config": {"to": "earliest", "dry_run": False}}}}
    done = dagster.launch("rewind__shop", config=config)
    dagster.until("it is rewound", lambda: ended(dagster, done), PATIENCE)
    assert dagster.run(done)["status"] == "SUCCESS"
    dagster.until("the new code runs", lambda: running(before["tags"]["watertable/fingerprint"]), PATIENCE)
    made_way = dagster.run(before["runId"])
    assert (made_way["status"], made_way["tags"]["watertable/ended"]) == ("SUCCESS", "hand-over")
    dagster.until("it is deployed", lambda: dagster.check("stock", "deployed_code").get("success"), PATIENCE)
    dagster.until("it reads all of it again", lambda: f"shop@{epoch + 1}." in position(dagster), PATIENCE)


def materialized(dagster: Dagster) -> dict[str, set[str]]:
    """Give the days that Dagster shows as materialized."""
    found = {}
    for table in ("stock", "hourly"):
        ranges = dagster.asset("shop", table)["assetPartitionStatuses"]["ranges"]
        days = [f"2011-01-0{n}" for n in range(1, 7)]
        found[table] = {d for r in ranges if r["status"] == "MATERIALIZED" for d in days if r["startKey"] <= d <= r["endKey"]}
    return found
