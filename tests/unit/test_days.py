"""Daily partitions: when a day is closed, and what an act on days may report. The driver is a script that speaks `--json`."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import watertable as wt
from tests.unit.test_rewind import planned
from tests.unit.test_rewind_jobs import DIFF
from watertable.errors import SettingsError
from watertable.project import load_apps
from watertable.runtime.events import DaysTouched, as_json
from watertable.settings import Settings
from watertable.store.commits import CommitInfo, Lineage, Position
from watertable_platform.orchestration import acts, rewind_jobs
from watertable_platform.orchestration import lease as leases
from watertable_platform.orchestration.days import Days
from watertable_platform.orchestration.lease import Lease
from watertable_platform.orchestration.reporting import Reporter
from watertable_platform.orchestration.translator import WatertableTranslator

APP = """
import watertable as wt
app = wt.App("shop")
sales = app.topic("sales", key="item STRING", value="qty INT").stream()
sales.group_by("item").agg(n=wt.sum("qty")).materialized_as("stock")
sales.group_by("item").windowed_by(wt.tumbling(hours=1, grace=wt.minutes(10))).agg(n=wt.count()).materialized_as("hourly")
"""
SPAN = Days.parse("2011-01-01/2011-01-04")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


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
    assert list(SPAN.closed(stock, at("2011-01-02T23:59"), NOW)) == ["2011-01-01"]
    assert list(SPAN.closed(stock, at("2011-01-03T00:00"), NOW)) == ["2011-01-01", "2011-01-02"]
    assert list(SPAN.closed(hourly, at("2011-01-03T01:09"), NOW)) == ["2011-01-01"]
    assert list(SPAN.closed(hourly, at("2011-01-03T01:10"), NOW)) == ["2011-01-01", "2011-01-02"]
    assert list(SPAN.closed(stock, at("2031-01-01T00:00"), NOW)) == ["2011-01-01", "2011-01-02", "2011-01-03", "2011-01-04"]
    assert list(SPAN.closed(stock, None, NOW)) == []


def test_no_day_is_closed_before_it_is_over_whatever_a_clock_ahead_says(settings: Settings) -> None:
    topology = load_apps(settings).app("shop").topology
    since = (datetime.now(UTC) - timedelta(days=3)).date()
    open_ended = Days(since, None)
    for name in ("stock", "hourly"):
        assert len(list(open_ended.closed(topology.table(name), at("8999-01-01T00:00"), at(f"{since}T23:59")))) == 0
        assert len(list(open_ended.closed(topology.table(name), at("8999-01-01T00:00"), at(f"{since}T00:00") + timedelta(days=2)))) == 2
    assert list(Days.parse("2026-01-01/2026-01-05").closed(topology.table("stock"), at("2026-03-01T00:00"), at("2026-01-02T07:00"))) == [
        "2026-01-01"
    ], "a span that is declared may end in time to come"
    with dg.DagsterInstance.ephemeral() as instance:
        reporter = Reporter(Log(instance), instance, topology, 0.0, open_ended)
        reporter.touched(days("shop@1.9", "8999-01-01T00:00", hourly={str(since): "shop@1.2", "8998-01-01": "shop@1.9"}))
        assert reporter.close_days() == "shop@1.9"
        assert {day for table in told(instance).values() for day, _ in table} == set(open_ended.partitions().get_partition_keys())


def test_no_day_of_an_unlimited_window_is_ever_closed() -> None:
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value="qty INT").stream()
    sales.group_by("item").windowed_by(wt.unlimited()).count().materialized_as("ever")
    assert list(SPAN.closed(app.topology().table("ever"), at("2031-01-01T00:00"), NOW)) == []


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


class Log:
    """Take a reporter's events as a run does."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance

    def log_event(self, event: dg.AssetMaterialization) -> None:
        self.instance.report_runless_asset_event(event)


def told(instance: dg.DagsterInstance) -> dict[str, list[tuple[str, str]]]:
    """List the days that were reported of each table, oldest report first, and their data versions."""
    return {
        table: [
            (record.partition_key or "", (record.asset_materialization.tags or {})["dagster/data_version"])  # type: ignore[union-attr]
            for record in reversed(instance.fetch_materializations(dg.AssetKey(["shop", table]), limit=99).records)
            if record.partition_key
        ]
        for table in ("stock", "hourly")
    }


def days(position: str, stream_time: str, *acts: CommitInfo, **tables: dict[str, str]) -> dict[str, Any]:
    """Give what a driver says: these acts, oldest first, have led to the position."""
    lineage = Lineage.of(Position.parse(position).epoch, acts)
    return json.loads(as_json(DaysTouched(position=position, stream_time=at(stream_time), days=tables, lineage=lineage)))  # type: ignore[no-any-return]


def act_of(epoch: int, parent: int, fork: int, *rebuilt: str, **more: Any) -> CommitInfo:
    return CommitInfo(kind="epoch", epoch=epoch, parent=parent, fork=fork, counters={f"of:{name}": 1 for name in rebuilt} | more)


def test_each_closed_day_is_reported_once_whatever_restarts(settings: Settings) -> None:
    topology = load_apps(settings).app("shop").topology
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):  # a second reporter is a second run, whose first question is answered from the beginning
            reporter = Reporter(Log(instance), instance, topology, 0.0, SPAN)
            assert reporter.close_days() == ""
            reporter.touched(days("shop@1.4", "2011-01-01T12:00", stock={"2011-01-01": "shop@1.4"}, hourly={"2011-01-01": "shop@1.4"}))
            reporter.close_days()
            reporter.touched(days("shop@1.7", "2011-01-02T05:00", stock={"2011-01-01": "shop@1.5"}, hourly={"2011-01-01": "shop@1.6"}))
            assert reporter.close_days() == "shop@1.7"
            reporter.touched(days("shop@1.9", "2011-01-03T00:30", stock={"2011-01-02": "shop@1.8"}))
            assert reporter.close_days() == "shop@1.9"
        found = told(instance)
    assert found == {"stock": [("2011-01-01", "shop@1.5"), ("2011-01-02", "shop@1.8")], "hourly": [("2011-01-01", "shop@1.6")]}


def test_a_rewind_reports_again_exactly_the_closed_days_that_its_replay_touched(settings: Settings) -> None:
    topology = load_apps(settings).app("shop").topology
    with dg.DagsterInstance.ephemeral() as instance:
        reporter = Reporter(Log(instance), instance, topology, 0.0, SPAN)
        reporter.touched(days("shop@1.9", "2011-01-04T03:00", stock={f"2011-01-0{n}": f"shop@1.{n}" for n in (1, 2, 3)}))
        reporter.close_days()
        reporter.moved("shop@2.2", 5)
        assert reporter.close_days() == ""  # nothing is known of the new epoch yet
        reporter.touched(
            days("shop@2.3", "2011-01-03T10:00", stock={"2011-01-01": "shop@1.1", "2011-01-02": "shop@1.2", "2011-01-03": "shop@2.3"})
        )
        reporter.close_days()  # the third isn't closed again yet
        before = told(instance)["stock"]
        reporter.touched(days("shop@2.4", "2011-01-04T03:00", stock={"2011-01-03": "shop@2.4"}))
        reporter.close_days()
        after = told(instance)["stock"]
    assert before == [(f"2011-01-0{n}", f"shop@1.{n}") for n in (1, 2, 3)]
    assert after == [*before, ("2011-01-03", "shop@2.4")]


REWIND = act_of(2, 1, 1)
UNDO = act_of(3, 1, 9)


@pytest.mark.parametrize("restarts", [False, True], ids=["the same run", "the next run"])
def test_a_closed_day_that_a_rewind_has_emptied_is_reported_again_and_is_so_once(settings: Settings, restarts: bool) -> None:
    topology = load_apps(settings).app("shop").topology
    before = {"2011-01-01": "shop@1.1", "2011-01-02": "shop@1.2"}
    with dg.DagsterInstance.ephemeral() as instance:
        reporter = Reporter(Log(instance), instance, topology, 0.0, SPAN)

        def said(event: dict[str, Any]) -> dict[str, str]:
            """Give what is recorded of the days once a run in a new epoch, or the same one that was moved there, has heard so much."""
            nonlocal reporter
            if restarts:
                reporter = Reporter(Log(instance), instance, topology, 0.0, SPAN)
            elif reporter._at and Position.parse(event["position"]).epoch != Position.parse(reporter._at).epoch:
                reporter.moved(event["position"], event.get("again", 0))
            reporter.touched(event)
            reporter.close_days()
            return dict(told(instance)["hourly"])

        assert said(days("shop@1.9", "2011-01-04T03:00", hourly=before)) == before | {"2011-01-03": "untouched"}
        emptied = {"2011-01-01": "shop@1.1", "2011-01-02": "untouched shop@2.2", "2011-01-03": "untouched"}
        assert said(days("shop@2.2", "2011-01-04T03:00", REWIND, hourly={"2011-01-01": "shop@1.1"})) == emptied
        number = len(told(instance)["hourly"])
        assert said(days("shop@2.5", "2011-01-04T03:00", REWIND, hourly={"2011-01-01": "shop@1.1"})) == emptied
        assert len(told(instance)["hourly"]) == number, "what is as it was is not told again"
        assert said(days("shop@3.9", "2011-01-04T03:00", REWIND, UNDO, hourly=before)) == before | {"2011-01-03": "untouched"}


def test_a_day_of_trimmed_commits_keeps_its_version_until_an_act_leaves_them(settings: Settings) -> None:
    topology = load_apps(settings).app("shop").topology
    anew = act_of(3, 1, 9, "hourly", **{"days:first": at("2011-01-02").toordinal(), "days:last": at("2011-01-02").toordinal()})
    for led, empties in (((), ()), ((act_of(3, 1, 9),), ()), ((REWIND, act_of(3, 2, 9)), ("2011-01-02",)), ((anew,), ("2011-01-02",))):
        with dg.DagsterInstance.ephemeral() as instance:
            reporter = Reporter(Log(instance), instance, topology, 0.0, SPAN)
            reporter.touched(days("shop@1.9", "2011-01-03T03:00", hourly={"2011-01-01": "shop@1.1", "2011-01-02": "shop@1.2"}))
            reporter.close_days()
            after = Reporter(Log(instance), instance, topology, 0.0, SPAN)
            after.touched(days(f"shop@{3 if led else 1}.11", "2011-01-03T03:00", *led))
            after.close_days()
            found = dict(told(instance)["hourly"])
        assert {day for day, version in found.items() if "untouched" in version} == set(empties), led


def test_a_fold_that_ends_behind_a_rewind_says_nothing_of_what_comes_then(settings: Settings) -> None:
    topology = load_apps(settings).app("shop").topology
    with dg.DagsterInstance.ephemeral() as instance:
        reporter = Reporter(Log(instance), instance, topology, 0.0, SPAN)
        reporter.moved("shop@2.1", 5)
        reporter.touched(days("shop@1.9", "2011-01-01T12:00", hourly={"2011-01-01": "shop@1.1", "2011-01-02": "shop@1.2"}))
        reporter.touched(days("shop@2.2", "2011-01-03T03:00", REWIND, hourly={"2011-01-01": "shop@1.1"}))
        reporter.close_days()
        assert dict(told(instance)["hourly"]) == {"2011-01-01": "shop@1.1", "2011-01-02": "untouched"}


def test_days_are_reported_some_at_a_time(settings: Settings) -> None:
    topology = load_apps(settings).app("shop").topology
    with dg.DagsterInstance.ephemeral() as instance:
        reporter = Reporter(Log(instance), instance, topology, 0.0, SPAN)
        reporter.touched(days("shop@1.9", "2011-01-09T00:00"))
        assert [reporter.close_days(most=3) for _ in range(4)] == ["", "", "shop@1.9", "shop@1.9"]
        assert told(instance) == {table: [(f"2011-01-0{n}", "untouched") for n in (1, 2, 3, 4)] for table in ("stock", "hourly")}


PLAN = {"event": "plan", **json.loads(planned().to_json())}
REWOUND = {"event": "rewound", "position": "shop@2.1", "before": "shop@1.9", "by": "rewind to event time 2011-01-02T00:00:00Z: bad prices"}
DRIVEN = [
    {"event": "started", "position": "shop@2.1"},
    {"event": "batch", "position": "shop@2.2", "records": 600, "rows": {"stock": 2}, "lag": {"sales": 300},
     "stream_time": "2011-01-02T05:00:00+00:00"},
    {"event": "batch", "position": "shop@2.3", "records": 300, "rows": {"stock": 1}, "lag": {"sales": 0},
     "stream_time": "2011-01-03T00:30:00+00:00"},
    days("shop@2.3", "2011-01-03T00:30", stock={"2011-01-01": "shop@1.1", "2011-01-02": "shop@2.3"}, hourly={"2011-01-01": "shop@2.2"}),
    {"event": "stopped", "position": "shop@2.3", "reason": "caught up"},
]  # fmt: skip


def saying(*events: dict[str, Any], then: str = "") -> list[str]:
    lines = "; ".join(f"print({json.dumps(event)!r}, flush=True)" for event in events)
    return [sys.executable, "-c", f"import sys, time; {lines or 'pass'}; {then or 'pass'}"]


class Act:
    """Materialize tables with children that print what is wanted, and keep what was asked of them."""

    def __init__(self, settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings, self.instance = settings, instance
        self.asked: list[list[str]] = []
        self.rewind = saying(PLAN, REWOUND)
        self.driver = saying(*DRIVEN)
        monkeypatch.setattr(rewind_jobs, "command", self._rewound)
        monkeypatch.setattr(acts, "run_command", self._driven)

    def _rewound(self, *words: str) -> list[str]:
        self.asked.append(list(words))
        return self.rewind

    def _driven(self, *words: str) -> list[str]:
        self.asked.append(["run", *words])
        return self.driver

    def of(self, first: str, last: str, *tables: str, **config: Any) -> dg.ExecuteInProcessResult:
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        made = acts.build_tables(load_apps(self.settings).app("shop"), self.settings, WatertableTranslator())
        run_config = {"ops": {"materialize__shop": {"config": config}}}
        chosen = dg.AssetSelection.assets(*(["shop", table] for table in tables)) if tables else None
        return dg.materialize([made], instance=self.instance, tags=tags, run_config=run_config, raise_on_error=False, selection=chosen)

    @property
    def done(self) -> dict[str, set[str]]:
        return {table: self.instance.get_materialized_partitions(dg.AssetKey(["shop", table])) for table in ("stock", "hourly")}


@pytest.fixture
def act(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Act]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Act(settings, instance, monkeypatch)


def observed(result: dg.ExecuteInProcessResult, label: str) -> list[Any]:
    """List what was noted of the first table under a label."""
    found = [e for e in result.all_events if e.event_type is dg.DagsterEventType.ASSET_OBSERVATION and e.asset_key.path[-1] == "stock"]  # type: ignore[union-attr]
    events = [e.event_specific_data.asset_observation.metadata for e in found]  # type: ignore[union-attr]
    return [m[label].value for m in events if label in m]


def test_days_are_a_rewind_to_the_start_of_the_first_and_those_closed_are_reported(act: Act) -> None:
    result = act.of("2011-01-02", "2011-01-03", reason="bad prices")
    assert result.success
    assert act.asked == [
        ["rewind", "shop", "--json", "--to", "2011-01-02T00:00:00+00:00", "--reason", "bad prices", "--apply"],
        ["run", "shop", "--available-now"],
    ]
    assert act.done == {"stock": {"2011-01-01", "2011-01-02"}, "hourly": {"2011-01-01"}}
    own = [m for m in told(act.instance)["stock"] if m[0] == "2011-01-02"]
    assert {version for _, version in own} == {"shop@2.3"}  # by the driver's word, and again for the day that was asked for
    assert "from `shop@1.10` to `shop@2.4`" in observed(result, "plan")[0]
    (says,) = observed(result, "act")
    for wanted in (
        "the windows of hourly",
        "the log days of stock",
        "Stock has no windows",
        "a rewind of all of shop to the start of 2011-01-02",
        "made anew too",
    ):
        assert wanted in says
    assert observed(result, "replayed records") == [600, 900]
    assert observed(result, "records to replay") == [900, 900]


def test_days_of_windows_alone_are_made_anew_and_nothing_else_moves(act: Act) -> None:
    promoted = {"event": "promoted", "position": "shop@3.10", "before": "shop@1.9", "by": "promote rebuild of hourly"}
    act.rewind = saying(PLAN, DRIVEN[1], promoted)
    act.driver = saying(days("shop@3.10", "2011-01-03T00:30", hourly={"2011-01-01": "shop@1.1", "2011-01-02": "shop@3.10"}))
    result = act.of("2011-01-01", "2011-01-01", "hourly", reason="bad prices")
    assert result.success
    assert act.asked == [
        ["rewind", "shop", "--json", "--table", "hourly", "--days", "2011-01-01/2011-01-01", "--reason", "bad prices", "--apply"],
        ["run", "shop", "--available-now"],
    ]
    assert act.done["hourly"] >= {"2011-01-01"}
    noted = [e for e in result.all_events if e.event_type is dg.DagsterEventType.ASSET_OBSERVATION]
    said = [e.event_specific_data.asset_observation.metadata.get("act") for e in noted]  # type: ignore[union-attr]
    assert any(
        text and "the windows of hourly that start then, and what is made of them; nothing else moves" in text.value for text in said
    )


def test_days_beside_the_app_are_compared_and_nothing_is_reported_of_them(act: Act) -> None:
    done = {"event": "shadow", "position": "shop@2.3", "before": "shop@1.9", "by": "shadow rebuild of hourly"}
    act.rewind = saying(PLAN, DRIVEN[1], DRIVEN[2], {"event": "diff", **json.loads(DIFF.to_json())}, done)
    result = act.of("2011-01-02", "2011-01-03", reason="bad prices", mode="shadow")
    assert result.success
    where = ["--to", "2011-01-02T00:00:00+00:00", "--shadow"]
    assert act.asked == [["rewind", "shop", "--json", *where, "--reason", "bad prices", "--apply"]], "the app is left alone"
    assert act.done == {"stock": set(), "hourly": set()}
    assert observed(result, "rows that differ") == [3]
    assert all("made beside shop" in says for says in observed(result, "act"))
    assert observed(result, "replayed records")[-1] == 900
    act.of("2011-01-02", "2011-01-02", mode="shadow", until="2011-01-03", dry_run=True)
    assert act.asked[-1][3:] == [*where, "--until", "2011-01-03"]


def test_a_dry_run_shows_the_plan_on_the_tables_and_changes_nothing(act: Act) -> None:
    act.rewind = saying(PLAN)
    result = act.of("2011-01-02", "2011-01-02", dry_run=True)
    assert result.success
    assert [words[0] for words in act.asked] == ["rewind"]
    assert "--apply" not in act.asked[0]
    assert observed(result, "plan")
    assert act.done == {"stock": set(), "hourly": set()}


def test_from_the_first_day_on_is_from_earliest(act: Act) -> None:
    assert act.of("2011-01-01", "2011-01-04").success
    assert act.asked[0][4] == "earliest"


def test_where_there_is_nothing_to_rewind_the_app_is_brought_to_its_head(act: Act) -> None:
    act.rewind = saying(then="print('NothingToRewind shop has committed nothing yet', file=sys.stderr); sys.exit(1)")
    assert act.of("2011-01-01", "2011-01-02").success
    assert [words[0] for words in act.asked] == ["rewind", "run"]
    assert act.done["stock"] == {"2011-01-01", "2011-01-02"}


def test_a_refused_rewind_fails_the_run_and_touches_nothing(act: Act) -> None:
    act.rewind = saying(PLAN, then="print('RewindRefused shop is not rewound: sales/0', file=sys.stderr); sys.exit(1)")
    result = act.of("2011-01-02", "2011-01-02")
    assert not result.success
    assert [words[0] for words in act.asked] == ["rewind"]
    (failure,) = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_FAILURE]
    assert failure.step_failure_data.user_failure_data is not None
    assert failure.step_failure_data.user_failure_data.description == "RewindRefused shop is not rewound: sales/0"


def test_while_the_stream_runs_it_is_waited_for_until_it_has_read_folded_and_reported(act: Act, settings: Settings) -> None:
    live = leases.take(
        settings, Lease(app="shop", run_id="live", environment="default", position="shop@1.9", lag={"sales": 0}, told="shop@1.9")
    )
    states: list[dict[str, Any]] = [
        {"position": "shop@2.1", "lag": {}, "told": ""},  # it has seen the rewind
        {"position": "shop@2.2", "lag": {"sales": 400}},
        {"position": "shop@2.3", "lag": {"sales": 0}},
        {"position": "shop@2.4", "lag": {"sales": 3}},  # it is live: more comes, and what was asked for is there
        {"told": "shop@2.3"},
    ]

    def run() -> None:
        now = live
        for state in states:
            time.sleep(1.2)
            if state.get("told"):
                reporter = Reporter(Log(act.instance), act.instance, load_apps(settings).app("shop").topology, 0.0, SPAN)
                reporter.touched(days("shop@2.3", "2011-01-03T00:30", stock={"2011-01-02": "shop@2.3"}))
                reporter.close_days()
            now = leases.renew(settings, now, **state)

    stream = threading.Thread(target=run)
    stream.start()
    result = act.of("2011-01-02", "2011-01-02")
    stream.join()
    assert result.success
    assert [words[0] for words in act.asked] == ["rewind"]
    assert told(act.instance)["stock"][-1] == ("2011-01-02", "shop@2.3")
    assert observed(result, "replayed records")[-1] == 900
    assert leases.read(settings, "shop").run_id == "live"  # type: ignore[union-attr]
