"""Batch days run again exactly where the days that they read have changed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import dagster as dg
import pytest

from watertable_platform.orchestration.batch import SENSOR, build_automation_sensor, on_changed_days

DAYS = dg.DailyPartitionsDefinition("2011-01-01", end_date="2011-01-07")


@dg.asset(partitions_def=DAYS)
def hourly() -> None: ...


@dg.asset(partitions_def=DAYS, deps=[hourly], automation_condition=on_changed_days())
def revenue() -> None: ...


class Ticks:
    """Report days of `hourly` with their versions, let the condition be looked at, and make what it asks for."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.cursor: object = None

    def report(self, asset: str, day: str, version: str) -> None:
        tags = {"dagster/data_version": version, "dagster/data_version_is_user_provided": "true"}
        self.instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=f"2011-01-{day}", tags=tags))

    def __call__(self, **days: str) -> set[str]:
        for day, version in days.items():
            self.report("hourly", day.removeprefix("d"), version)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            found = dg.evaluate_automation_conditions(dg.Definitions([hourly, revenue]), self.instance, cursor=self.cursor)  # type: ignore[arg-type]
        self.cursor = found.cursor
        asked = {day[-2:] for day in found.get_requested_partitions(dg.AssetKey("revenue"))}  # type: ignore[type-var, index]
        for day in asked:
            self.report("revenue", day, f"made at {len(asked)}")
        return asked


@pytest.fixture
def tick() -> Iterator[Ticks]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Ticks(instance)


def test_a_day_runs_once_it_is_closed_and_again_when_it_was_touched(tick: Ticks) -> None:
    assert tick() == set()
    assert tick(d01="shop@1.4") == {"01"}
    assert tick() == set()
    assert tick(d02="shop@1.9") == {"02"}
    tick()
    assert tick(d01="shop@1.12") == {"01"}  # late data
    tick()
    assert tick() == set()


def test_a_day_that_is_reported_again_with_the_same_version_does_not_run(tick: Ticks) -> None:
    tick(d01="shop@1.4", d02="shop@1.9")
    tick()
    assert tick(d01="shop@1.4", d02="shop@1.9") == set()
    assert tick() == set()


def test_after_a_rewind_exactly_the_days_that_its_replay_touched_run(tick: Ticks) -> None:
    tick(d01="shop@1.4", d02="shop@1.9", d03="shop@1.14")
    tick()
    assert tick(d01="shop@1.4", d02="shop@2.11", d03="shop@2.13") == {"02", "03"}
    tick()
    assert tick() == set()


def test_days_that_were_there_before_the_sensor_are_made(tick: Ticks) -> None:
    tick.report("hourly", "01", "shop@1.4")
    tick.report("hourly", "02", "shop@1.9")
    tick.report("revenue", "02", "made by hand")
    assert tick() == {"01"}


def test_a_day_that_changes_just_when_it_was_asked_for_is_made_again(tick: Ticks) -> None:
    assert tick(d01="shop@1.4") == {"01"}
    assert tick(d01="shop@1.5") | tick() | tick() == {"01"}
    assert tick() == set()


def test_the_sensor_is_there_where_an_asset_asks_for_it_and_no_folder_brings_one() -> None:
    made = build_automation_sensor([dg.Definitions([hourly]), dg.Definitions([revenue])])
    assert made is not None
    assert made.name == SENSOR
    assert made.default_status is dg.DefaultSensorStatus.RUNNING
    assert build_automation_sensor([dg.Definitions([hourly])]) is None


@dg.asset(automation_condition=dg.AutomationCondition.eager(), group_name="other")
def watched() -> None: ...


@pytest.mark.parametrize(
    ("target", "left"),
    [
        (dg.AssetSelection.all(), set()),
        (dg.AssetSelection.assets("watched", "nowhere"), {"revenue"}),
        (dg.AssetSelection.groups("other"), {"revenue"}),
        (dg.AssetSelection.assets("hourly").downstream(), {"watched"}),
    ],
    ids=str,
)
def test_what_a_sensor_of_a_folders_own_looks_at_is_left_to_it_and_nothing_else(target: dg.AssetSelection, left: set[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        own = dg.AutomationConditionSensorDefinition("own", target=target)
    made = build_automation_sensor([dg.Definitions([revenue]), dg.Definitions([watched], sensors=[own])], [hourly])
    graph = dg.Definitions([hourly, revenue, watched]).resolve_asset_graph()
    assert {key.to_user_string() for key in (made.asset_selection.resolve(graph) if made else ())} == left
