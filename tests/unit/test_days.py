"""Daily partitions: when a day is closed, and what an act on days may report. The driver is a script that speaks `--json`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

import watertable as wt
from watertable.errors import SettingsError
from watertable.project import load_apps
from watertable.settings import Settings
from watertable_platform import acts
from watertable_platform.days import Days
from watertable_platform.reporting import Reporter
from watertable_platform.translator import WatertableTranslator

APP = """
import watertable as wt
app = wt.App("shop")
sales = app.topic("sales", key="item STRING", value="qty INT").stream()
sales.group_by("item").agg(n=wt.sum("qty")).materialized_as("stock")
sales.group_by("item").windowed_by(wt.tumbling(hours=1, grace=wt.minutes(10))).agg(n=wt.count()).materialized_as("hourly")
"""
SPAN = Days.parse("2011-01-01/2011-01-04")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "assets" / "shop").mkdir(parents=True)
    (tmp_path / "assets" / "shop" / "app.py").write_text(APP)
    return Settings.load(tmp_path, kafka="127.0.0.1:1", days={"shop": "2011-01-01/2011-01-04"})


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_day_is_closed_when_nothing_can_change_it(settings: Settings) -> None:
    topology = load_apps(settings).app("shop").topology
    stock, hourly = topology.table("stock"), topology.table("hourly")
    assert list(SPAN.closed(stock, at("2011-01-02T23:59"))) == ["2011-01-01"]
    assert list(SPAN.closed(stock, at("2011-01-03T00:00"))) == ["2011-01-01", "2011-01-02"]
    assert list(SPAN.closed(hourly, at("2011-01-03T01:09"))) == ["2011-01-01"]
    assert list(SPAN.closed(hourly, at("2011-01-03T01:10"))) == ["2011-01-01", "2011-01-02"]
    assert list(SPAN.closed(stock, at("2031-01-01T00:00"))) == ["2011-01-01", "2011-01-02", "2011-01-03", "2011-01-04"]
    assert list(SPAN.closed(stock, None)) == []


def test_no_day_of_an_unlimited_window_is_ever_closed() -> None:
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value="qty INT").stream()
    sales.group_by("item").windowed_by(wt.unlimited()).count().materialized_as("ever")
    assert list(SPAN.closed(app.topology().table("ever"), at("2031-01-01T00:00"))) == []


def test_partitions_end_where_the_data_ends() -> None:
    assert SPAN.partitions().get_partition_keys() == ["2011-01-01", "2011-01-02", "2011-01-03", "2011-01-04"]
    assert Days.parse("2026-01-01/..").partitions().end is None
    for wrong in ("2011-01-01", "2011-01-02/2011-01-01", "x/y"):
        with pytest.raises(SettingsError, match="days"):
            Days.parse(wrong)


def test_an_environment_has_the_days_of_its_app(settings: Settings) -> None:
    staging = settings.model_copy(update={"env": "staging"})
    assert Days.of(staging, "staging_shop") == SPAN
    assert Days.of(settings, "other") is None


def test_each_closed_day_is_reported_once_whatever_restarts(settings: Settings) -> None:
    topology = load_apps(settings).app("shop").topology

    class Log:
        def log_event(self, event: dg.AssetMaterialization) -> None:
            instance.report_runless_asset_event(event)

    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):  # a second reporter is a second run
            reporter = Reporter(Log(), instance, topology, 0.0, SPAN)
            for time in ("2011-01-01T12:00", "2011-01-02T05:00", "2011-01-02T06:00", "2011-01-03T00:30"):
                reporter.close_days("shop@1.9", at(time))
        told = {
            table: sorted(m.partition_key or "" for m in instance.fetch_materializations(dg.AssetKey(["shop", table]), limit=99).records)
            for table in ("stock", "hourly")
        }
    assert told == {"stock": ["2011-01-01", "2011-01-02"], "hourly": ["2011-01-01"]}


def test_an_act_on_days_reports_those_that_are_closed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    say = """
import json
def say(**event): print(json.dumps(event), flush=True)
say(event="started", position="shop@1.0")
say(event="batch", position="shop@1.1", records=3, rows={"stock": 2}, lag={"sales": 0}, stream_time="2011-01-03T00:30:00+00:00")
say(event="stopped", position="shop@1.1", reason="caught up")
"""
    monkeypatch.setattr(acts, "run_command", lambda *_: [sys.executable, "-c", say])
    made = acts.build_tables(load_apps(settings).app("shop"), settings, WatertableTranslator())
    with dg.DagsterInstance.ephemeral() as instance:
        days = {"dagster/asset_partition_range_start": "2011-01-01", "dagster/asset_partition_range_end": "2011-01-02"}
        assert dg.materialize([made], instance=instance, tags=days).success
        done = {table: instance.get_materialized_partitions(dg.AssetKey(["shop", table])) for table in ("stock", "hourly")}
    assert done == {"stock": {"2011-01-01", "2011-01-02"}, "hourly": {"2011-01-01"}}
