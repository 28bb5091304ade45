"""*Materialize* on a table beside its app's live stream: it waits for it, and never claims what it hasn't seen."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from watertable.kafka import admin
from watertable.project import LoadedApp, load_apps
from watertable.settings import Settings
from watertable_platform.orchestration import acts, checks
from watertable_platform.orchestration import lease as leases
from watertable_platform.orchestration.history import job_name, recorded_code
from watertable_platform.orchestration.lease import Lease
from watertable_platform.orchestration.supervisor import Tag
from watertable_platform.orchestration.translator import WatertableTranslator

APP = """
import watertable as wt
app = wt.App("shop")
sales = app.topic("sales", key="item STRING", value="qty INT").stream()
sales{filter}.group_by("item").agg(n=wt.sum("qty")).materialized_as("stock")
{more}
"""
FILTERED = ".filter('qty > 0')"
COUNTS = 'sales.group_by("item").count().materialized_as("counts")'
STOCK = dg.AssetKey(["shop", "stock"])


class AtHead:
    """Stand for a broker whose topics the app has read to their ends."""

    def __init__(self, *_: object) -> None:
        pass

    def partitions(self, topics: list[str]) -> list[str]:
        return topics

    def latest(self, partitions: list[str]) -> dict[str, int]:
        return dict.fromkeys(partitions, 7)

    def mirrored(self, _: str, goal: dict[str, int]) -> dict[str, int]:
        return goal


class World:
    """Hold an app whose live stream runs by the code as it was first loaded, and load other code beside it."""

    def __init__(self, home: Path, instance: dg.DagsterInstance) -> None:
        self.instance, self.settings = instance, Settings.load(home, kafka="127.0.0.1:1")
        self.file = home / "assets" / "shop" / "app.py"
        self.file.parent.mkdir(parents=True)
        self.old = self.load()
        leases.record_code(self.settings, self.old.topology)
        self.run(self.old.topology.fingerprint)
        tags = {"dagster/code_version": self.old.topology.table("stock").fingerprint}
        instance.report_runless_asset_event(dg.AssetMaterialization(STOCK, tags=tags))

    def load(self, where: str = "", more: str = "") -> LoadedApp:
        self.file.write_text(APP.format(filter=where, more=more))
        return load_apps(self.settings).app("shop")

    def run(self, fingerprint: str) -> Lease:
        held = Lease(app="shop", run_id="live", environment="here", position="shop@1.7", fingerprint=fingerprint)
        return leases.renew(self.settings, held)

    def materialize(self, app: LoadedApp, **config: Any) -> dg.ExecuteInProcessResult:
        made = acts.build_tables(app, self.settings, WatertableTranslator())
        run_config = {"ops": {"materialize__shop": {"config": config}}}
        return dg.materialize([made], instance=self.instance, run_config=run_config, raise_on_error=False)

    def judge(self, app: LoadedApp) -> tuple[bool, str]:
        """Execute the checks, and give what `deployed_code` says of the table that was there from the beginning."""
        clicked = checks.build_checks(app, self.settings, time.time())
        job = dg.Definitions(asset_checks=[clicked]).resolve_implicit_global_asset_job_def()
        done = job.execute_in_process(instance=self.instance).get_asset_check_evaluations()
        (found,) = [e for e in done if (e.asset_key, e.check_name) == (STOCK, checks.DEPLOYED_CODE)]
        return found.passed, found.description or ""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(admin, "Admin", AtHead)
    with dg.DagsterInstance.ephemeral() as instance:
        yield World(tmp_path, instance)


def materialized(result: dg.ExecuteInProcessResult) -> set[str]:
    return {event.asset_key.path[-1] for event in result.get_asset_materialization_events() if event.asset_key}


def failure(result: dg.ExecuteInProcessResult) -> str:
    (failed,) = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_FAILURE]
    assert failed.step_failure_data.user_failure_data is not None
    return failed.step_failure_data.user_failure_data.description or ""


def test_beside_a_stream_of_the_loaded_code_a_table_is_at_its_head(world: World) -> None:
    result = world.materialize(world.old)
    assert result.success
    assert materialized(result) == {"stock"}


@pytest.mark.parametrize("tags", [{"dagster/partition": "2026-01-02"}, {acts.RANGE: "2026-01-01", f"{acts.RANGE[:-5]}end": "2026-01-02"}])
def test_in_a_run_of_another_assets_days_a_table_without_days_is_brought_to_its_head(world: World, tags: dict[str, str]) -> None:
    @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2026-01-01"), backfill_policy=dg.BackfillPolicy.single_run())
    def report() -> None: ...

    made = [acts.build_tables(world.old, world.settings, WatertableTranslator()), report]
    job = dg.Definitions(assets=made, jobs=[dg.define_asset_job("both", [STOCK, report.key])]).resolve_job_def("both")
    result = job.execute_in_process(instance=world.instance, tags=tags, raise_on_error=False)
    assert result.success
    assert materialized(result) == {"stock", "report"}


@pytest.mark.parametrize("does", ["made anew", "dry run", "shadow"])
def test_what_comes_after_a_table_in_a_run_of_days_is_made_once_they_are(world: World, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    (world.file.parents[2] / "pyproject.toml").write_text('[tool.watertable]\ndays = { shop = "2026-01-01/2026-01-03" }')
    settings = Settings.load(world.file.parents[2], kafka="127.0.0.1:1")
    leases.renew(settings, world.run(world.old.topology.fingerprint), lag={"sales": 0}, told="shop@1.7")
    days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")
    for day, version in (("2026-01-01", "shop@1.3"), ("2026-01-02", "shop@1.5")):  # the third is open
        tags = {"dagster/data_version": version}
        world.instance.report_runless_asset_event(dg.AssetMaterialization(STOCK, partition=day, tags=tags))
    done = {"event": "shadow" if does == "shadow" else "promoted", "by": "promote", "before": "shop@1.6", "position": "shop@1.7"}
    monkeypatch.setattr(acts, "carry_out", lambda *_: ({}, None if does == "dry run" else done))

    @dg.asset(deps=[STOCK], partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run())
    def report() -> None: ...

    made = [acts.build_tables(world.old, settings, WatertableTranslator()), report]
    job = dg.Definitions(assets=made, jobs=[dg.define_asset_job("both", [STOCK, report.key])]).resolve_job_def("both")
    tags = {acts.RANGE: "2026-01-01", f"{acts.RANGE[:-5]}end": "2026-01-03"}
    result = job.execute_in_process(instance=world.instance, tags=tags, raise_on_error=False)
    assert result.success
    told = [e.event_specific_data.materialization for e in result.get_asset_materialization_events()]  # type: ignore[union-attr]
    both = {(m.asset_key.path[-1], m.partition, (m.tags or {})["dagster/data_version"]) for m in told if m.asset_key == STOCK}
    assert both == (set() if does != "made anew" else {("stock", "2026-01-01", "shop@1.3"), ("stock", "2026-01-02", "shop@1.5")})
    assert len(told) == len(both) + (0 if does != "made anew" else 3)


def test_a_replay_that_is_read_again_is_told_once_however_long_its_fold_and_its_days_take(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.file.parents[2] / "pyproject.toml").write_text('[tool.watertable]\ndays = { shop = "2026-01-01/2026-01-03" }')
    settings = Settings.load(world.file.parents[2], kafka="127.0.0.1:1")
    held = leases.renew(settings, world.run(world.old.topology.fingerprint), lag={"sales": 0}, told="")
    done = {"event": "rewound", "by": "rewind", "before": "shop@1.6", "position": "shop@1.7"}
    monkeypatch.setattr(acts, "carry_out", lambda *_: ({"plan": {"records": 100}}, done))
    monkeypatch.setattr(acts, "TELL_SECONDS", 0.0)
    reported = threading.Timer(3.5, lambda: leases.renew(settings, held, told="shop@1.7"))
    reported.start()
    job = dg.Definitions(assets=[acts.build_tables(world.old, settings, WatertableTranslator())]).resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=world.instance, tags={"dagster/partition": "2026-01-01"}, raise_on_error=False)
    reported.join()
    assert result.success
    noted = [e for e in result.all_events if e.event_type is dg.DagsterEventType.ASSET_OBSERVATION]
    assert len(noted) == 1
    assert noted[0].event_specific_data.asset_observation.metadata["replayed records"].value == 100  # type: ignore[union-attr]


def test_beside_a_stream_that_is_held_back_nothing_is_claimed_of_the_loaded_code(world: World) -> None:
    new = world.load(FILTERED)
    result = world.materialize(new)
    assert not result.success
    assert "stock: a filter was put in" in failure(result)
    assert "`watertable rewind shop --to earliest --apply`" in failure(result)
    assert recorded_code(world.instance, STOCK) == world.old.topology.table("stock").fingerprint
    assert not world.judge(new)[0]


def test_what_a_person_reports_by_hand_hides_no_code_that_wrote_a_table(world: World) -> None:
    world.instance.report_runless_asset_event(dg.AssetMaterialization(STOCK))  # the UI's Report materialization
    assert recorded_code(world.instance, STOCK) == world.old.topology.table("stock").fingerprint
    assert not world.judge(world.load(FILTERED))[0]


def test_beside_a_stream_that_is_to_hand_over_a_table_is_left_to_it(world: World) -> None:
    result = world.materialize(world.load(more=COUNTS))
    assert result.success
    assert not materialized(result)
    noted = [e for e in result.all_events if e.event_type is dg.DagsterEventType.ASSET_OBSERVATION]
    said = [str(e.event_specific_data.asset_observation.metadata["act"].value) for e in noted]  # type: ignore[union-attr]
    assert len(said) == 2
    assert all("hands over to the loaded code" in text for text in said)


def test_a_stream_that_starts_is_waited_for_until_it_says_what_it_runs(world: World) -> None:
    world.run("")
    assert failure(world.materialize(world.old, wait_seconds=0.5)) == "the live stream of shop still is starting, after 0 s"
    began = threading.Timer(1.5, world.run, [world.old.topology.fingerprint])
    began.start()
    result = world.materialize(world.old)
    began.join()
    assert materialized(result) == {"stock"}


def test_code_that_a_launch_would_refuse_is_told_with_its_way_out(world: World) -> None:
    new = world.load(FILTERED)
    leases.renew(world.settings, world.run(world.old.topology.fingerprint), released=True)
    passed, says = world.judge(new)
    assert not passed
    assert says.startswith("the loaded code differs from what wrote it: ")
    assert "`watertable rewind shop --to earliest --apply`" in says
    assert "launch the stream" not in says
    tags = {Tag.FINGERPRINT: world.old.topology.fingerprint}
    world.instance.add_run(dg.DagsterRun(job_name=job_name("shop"), run_id="live", status=dg.DagsterRunStatus.STARTED, tags=tags))
    world.run(world.old.topology.fingerprint)
    passed, says = world.judge(new)
    assert not passed
    assert says.startswith("it runs on under the code from before: ")
    assert "`watertable rewind shop --to earliest --apply`" in says


@pytest.mark.parametrize("reads", [True, False])
def test_an_act_takes_over_since_when_records_wait_and_says_how_many_do(world: World, monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    before = {"lag": {"sales": 5_000_000}, "behind_since": 10_000.0}
    leases.renew(world.settings, world.run(world.old.topology.fingerprint), environment="", released=True, **before)
    batch = {"event": "batch", "position": "shop@1.8", "records": 1, "rows": {"stock": 1}, "lag": {"sales": 4_000_000}}
    says = f"import sys; {f'print({json.dumps(batch)!r}, flush=True)' if reads else ''}; sys.exit(1)"
    monkeypatch.setattr(acts, "run_command", lambda *_: [sys.executable, "-c", says])
    assert not world.materialize(world.old).success
    held = leases.read(world.settings, "shop")
    assert held is not None
    assert (held.lag, held.behind_since) == ({"sales": 4_000_000 if reads else 5_000_000}, 10_000.0)
    assert not checks.freshness(held).passed


@pytest.mark.parametrize(("code", "waits"), [(0, False), (1, True)])
def test_what_an_act_commits_waits_for_its_fold_until_the_act_has_ended_well(
    world: World, monkeypatch: pytest.MonkeyPatch, code: int, waits: bool
) -> None:
    leases.renew(world.settings, world.run(world.old.topology.fingerprint), environment="", released=True)
    batch = {"event": "batch", "position": "shop@1.8", "records": 1, "rows": {"stock": 1}, "lag": {"sales": 0}}
    says = f"import sys; print({json.dumps(batch)!r}, flush=True); sys.exit({code})"
    monkeypatch.setattr(acts, "run_command", lambda *_: [sys.executable, "-c", says])
    assert world.materialize(world.old).success is (code == 0)
    held = leases.read(world.settings, "shop")
    assert held is not None
    assert (held.position, bool(held.unfolded_since)) == ("shop@1.8", waits)
    assert checks.fold_lag(held, 30.0).passed is not waits
