"""A stream's run: what it reports, how it ends, and that nothing outlives it. The driver is a script that speaks `--json`."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from watertable.errors import JobError
from watertable.project import LoadedApp, load_apps
from watertable.settings import Settings
from watertable_platform.orchestration import checks, stream_job, topics
from watertable_platform.orchestration import lease as leases
from watertable_platform.orchestration.assembly import build_definitions, why_unloaded
from watertable_platform.orchestration.child import Child, alive, birth
from watertable_platform.orchestration.history import attempts, job_name
from watertable_platform.orchestration.lease import Lease
from watertable_platform.orchestration.sensors import build_topics_sensor
from watertable_platform.orchestration.supervisor import Ended, GiveUp, Status, Tag, decide

APP = """
import watertable as wt
app = wt.App("shop", owner="team:test")
sales = app.topic("sales", value="item STRING, qty INT").stream()
stock = sales.group_by("item").agg(n=wt.sum("qty")).materialized_as("stock")
stock.to_stream().group_by(n="new.n").agg(items=wt.count()).materialized_as("levels")
"""

SAY = """
import json, os, signal, subprocess, sys, time
def say(event, **more): print(json.dumps({"event": event, **more}), flush=True)
def started(fingerprint="wt1:run"): say("started", app="shop", position="shop@1.3", generation=1, pid=os.getpid(), fingerprint=fingerprint)
def batch(seq, **rows):
    say("batch", position=f"shop@1.{seq}", records=100, seconds=0.5, records_per_second=200.0, batch_ms=500, lag={"sales": 7},
        quarantined=1, dropped={"late": 2}, rows=rows, stream_time="2011-01-01T00:00:00+00:00")
def fold(**versions):
    tables = {t: {"version": v, "folded": "shop@1.4", "ms": 40} for t, v in versions.items()}
    say("fold", tables=tables, fold_ms=50, fold_lag_s=1.5, unfolded_s=0.0)
def idle(**more): say("idle", **{"position": "shop@1.4", "lag": {"sales": 0}, "unfolded_s": 0.0, **more})
"""


@pytest.fixture
def app(tmp_path: Path) -> LoadedApp:
    (tmp_path / "assets" / "shop").mkdir(parents=True)
    (tmp_path / "assets" / "shop" / "app.py").write_text(APP)
    return load_apps(Settings.load(tmp_path, kafka="127.0.0.1:1")).app("shop")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(tmp_path, kafka="127.0.0.1:1")


@pytest.fixture
def instance(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Keep records in memory; on disk ("disk") where two threads use them, which SQLite's memory doesn't allow."""
    on_disk = getattr(request, "param", "") == "disk"
    with dg.DagsterInstance.local_temp(str(tmp_path)) if on_disk else dg.DagsterInstance.ephemeral() as made:
        yield made
    gc.collect()  # of a connection that another thread has left open, a word is said here, and not in the middle of what runs later


Run = Callable[..., dg.ExecuteInProcessResult]


@pytest.fixture
def run(app: LoadedApp, settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the stream with a driver that runs this script after SAY."""
    monkeypatch.setattr(stream_job.topics, "observe", lambda *_: [])

    def start(script: str, tags: Mapping[str, str] | None = None, **config: object) -> dg.ExecuteInProcessResult:
        code = SAY + textwrap.dedent(script)
        monkeypatch.setattr(stream_job, "run_command", lambda _: [sys.executable, "-c", code])
        job = stream_job.build_stream_job(app, settings, [], partial(why_unloaded, settings.project, app.folder))
        return job.execute_in_process(
            instance=instance, raise_on_error=False, tags=tags,
            run_config={"ops": {"run__shop": {"config": {"report_seconds": 0.0, **config}}}},
        )  # fmt: skip

    return start


def told(instance: dg.DagsterInstance, table: str) -> list[dg.AssetMaterialization]:
    records = instance.fetch_materializations(dg.AssetKey(["shop", table]), limit=50).records
    return [r.asset_materialization for r in reversed(records) if r.asset_materialization]


def numbers(event: dg.AssetMaterialization) -> dict[str, object]:
    return {label: value.value for label, value in event.metadata.items()}


def evaluations(instance: dg.DagsterInstance, check: str) -> list[tuple[bool, str]]:
    found = instance.event_log_storage.get_asset_check_execution_history(dg.AssetCheckKey(dg.AssetKey(["shop", "stock"]), check), limit=20)
    return [(r.evaluation.passed, r.evaluation.description or "") for r in reversed(found) if r.evaluation]


def verdicts(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult, check: str) -> list[tuple[bool, str]]:
    """List all that one run has said of a check."""
    logs = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    said = [log.dagster_event.asset_check_evaluation_data for log in logs if log.dagster_event]
    key = dg.AssetCheckKey(dg.AssetKey(["shop", "stock"]), check)
    return [(s.passed, s.description or "") for s in said if s.asset_check_key == key]


def test_a_table_is_reported_with_numbers_that_plot_and_with_its_provenance(run: Run, app: LoadedApp, instance: dg.DagsterInstance) -> None:
    run("started(); batch(4, stock=5, levels=2); fold(stock=8); idle(); time.sleep(0.3); sys.exit(1)")
    first, *_, last = told(instance, "stock")
    assert numbers(first) == {
        "position": "shop@1.4", "rows changed": 5, "records": 100, "records/s": 200.0, "batch ms": 500, "lag sales": 7, "quarantined": 1,
        "dropped": 2,
    }  # fmt: skip
    assert numbers(last) | {"fold ms": 40, "version": 8, "fold lag s": 1.5} == numbers(last)
    tags = told(instance, "levels")[0].tags or {}
    assert tags["dagster/code_version"] == app.topology.table("levels").fingerprint
    assert tags["dagster/input_data_version/shop/stock"] == "shop@1.4"
    stock = instance.fetch_materializations(dg.AssetKey(["shop", "stock"]), limit=50).records[-1]
    assert tags["dagster/input_event_pointer/shop/stock"] == str(stock.storage_id)
    assert (first.tags or {})["dagster/input_data_version/topics/sales"] == "INITIAL"


def test_the_fold_lag_is_that_of_what_waits_now_so_a_late_fold_ends_the_warning(run: Run, instance: dg.DagsterInstance) -> None:
    result = run(
        """
        started(); batch(4, stock=5); idle(unfolded_s=61.0); idle(unfolded_s=64.0); idle(unfolded_s=125.0)
        fold(stock=8); idle(); sys.exit(1)
        """
    )
    nothing = (True, "no commit waits for its fold")
    late = [(False, f"the oldest commit that waits for its fold is {minutes} min old") for minutes in (1, 2)]
    assert verdicts(instance, result, "fold_lag") == [nothing, *late, nothing]


def test_a_check_speaks_of_the_runs_in_dagster_alone_where_a_run_in_a_terminal_may_have_had_records_refused() -> None:
    verdict = checks.quarantine(None)
    assert (verdict.passed, verdict.says) == (True, "no run in Dagster has had a record refused in the last hour")


def test_refused_records_are_a_warning_that_is_told_once_and_goes_with_a_rewind(
    run: Run, settings: Settings, instance: dg.DagsterInstance
) -> None:
    result = run("started(); batch(4, stock=5); time.sleep(1.1); batch(5, stock=5); idle(); sys.exit(1)")
    quiet = (True, "no run in Dagster has had a record refused in the last hour")
    first, warned = verdicts(instance, result, "quarantine")
    assert (first, warned[0]) == (quiet, False)
    assert re.fullmatch(r"records have been refused since .*Z: `watertable quarantine shop` shows them, and why", warned[1])
    held = leases.read(settings, "shop")
    assert held is not None
    assert held.refused_since < held.refused_at
    assert checks.quarantine(dataclasses.replace(held, beat=held.refused_at + 3601)).passed
    rewound = "say('rewound', position='shop@2.{}', before='shop@1.5', by='rewind', generation=3, again=9)".format
    result = run(f"started(); idle(); {rewound(5)}; idle(); sys.exit(1)")
    assert verdicts(instance, result, "quarantine") == [warned], "the next run knows of it, and so does a rewind to what came after"
    result = run(f"started(); idle(); {rewound(1)}; idle(); sys.exit(1)")
    assert verdicts(instance, result, "quarantine") == [warned, quiet], "what is read again is refused again, or not"


WAITED = {"lag": {"sales": 5_000_000}, "behind_since": 10_000.0, "beat": 17_200.0}
HEAD = (True, "at the head of its topics")


def test_records_that_waited_when_a_run_ended_have_waited_since_for_the_next(
    run: Run, settings: Settings, instance: dg.DagsterInstance
) -> None:
    leases.renew(settings, Lease(app="shop", run_id="before", environment="e", released=True, **WAITED))
    result = run("started(); batch(4, stock=5); idle(); sys.exit(1)")
    *late, last = verdicts(instance, result, "freshness")
    assert len(late) == 1
    assert re.fullmatch(r"there were unread records for \d+ min", late[0][1])
    assert last == HEAD
    assert leases.read(settings, "shop").behind_since == 0.0  # type: ignore[union-attr]


def test_that_a_stream_was_at_the_head_says_nothing_of_the_next_run_until_it_has_looked(
    run: Run, settings: Settings, instance: dg.DagsterInstance
) -> None:
    result = run("started(); idle(); sys.exit(1)")
    assert verdicts(instance, result, "freshness") == [HEAD]
    result = run("started(); sys.exit(1)")
    assert verdicts(instance, result, "freshness") == []
    held = dataclasses.replace(leases.read(settings, "shop"), released=False)  # type: ignore[type-var]
    assert held.lag == {}
    assert checks.freshness(held).says == "how many records wait isn't known yet"
    assert checks.freshness(dataclasses.replace(held, released=True)).says == "unknown: the stream doesn't run"


def test_a_cluster_that_does_not_answer_leaves_a_stream_fresh_no_longer_than_it_may_be_behind() -> None:
    held = Lease(app="shop", run_id="r", environment="e", lag={"sales": 0})
    away = dataclasses.replace(held, **held.reading({}, "the cluster is away"))
    since = away.behind_since
    assert since > 0
    assert dataclasses.replace(away, **away.reading({}, "the cluster is away")).behind_since == since
    for seconds, holds, says in (
        (290, True, "how many records wait isn't known"),
        (361, False, "how many records wait isn't known, for 6 min"),
    ):
        verdict = checks.freshness(dataclasses.replace(away, beat=since + seconds))
        assert (verdict.passed, verdict.says, (verdict.metadata or {})["problem"]) == (holds, says, "the cluster is away")
    back = dataclasses.replace(away, **away.reading({"sales": 9}))
    assert (back.behind_since, back.problem) == (since, "")


def test_a_rewind_forgets_how_much_was_unread_and_not_that_something_was(run: Run, settings: Settings) -> None:
    leases.renew(settings, Lease(app="shop", run_id="before", environment="e", released=True, **WAITED))
    run("started(); say('rewound', position='shop@2.1', before='shop@1.5', by='rewind', generation=3, again=9); sys.exit(1)")
    held = leases.read(settings, "shop")
    assert held is not None
    assert (held.lag, held.behind_since) == ({}, 10_000.0)


@pytest.mark.parametrize(("every", "age", "holds"), [(30.0, 60.0, True), (30.0, 61.0, False), (300.0, 600.0, True), (300.0, 601.0, False)])
def test_folds_that_come_seldom_may_be_late_by_as_much(every: float, age: float, holds: bool) -> None:
    held = Lease(app="shop", run_id="r", environment="e", beat=10_000.0, unfolded_since=10_000.0 - age)
    assert checks.fold_lag(held, every).passed is holds
    assert checks.fold_lag(None, every).passed


@pytest.mark.parametrize("gone", [{"released": True}, {"pid_birth": "an earlier process's"}], ids=["stopped", "dead"])
def test_what_waits_for_its_fold_is_no_small_lag_where_no_stream_folds(gone: dict[str, Any]) -> None:
    held = Lease(app="shop", run_id="r", environment="e", beat=10_000.0, unfolded_since=9_995.0, **gone)
    verdict = checks.fold_lag(held, 30.0)
    assert not verdict.passed
    assert verdict.severity is dg.AssetCheckSeverity.WARN
    assert verdict.says == (
        "unknown: the stream doesn't run; commits since 1970-01-01 02:46:35Z may wait for their fold: `watertable fold shop` does it"
    )
    folded = checks.fold_lag(dataclasses.replace(held, unfolded_since=0.0), 30.0)
    assert (folded.passed, folded.says) == (True, "no commit waits for its fold")


def test_a_stream_that_dies_before_it_says_anything_leaves_what_waits_as_it_was(run: Run, settings: Settings) -> None:
    leases.renew(settings, Lease(app="shop", run_id="before", environment="e", released=True, unfolded_since=9_995.0))
    run("sys.exit(1)")
    held = leases.read(settings, "shop")
    assert held is not None
    assert (held.run_id != "before", held.unfolded_since) == (True, 9_995.0)


def test_reports_are_throttled_but_for_the_first(run: Run, instance: dg.DagsterInstance) -> None:
    run("started()\nfor n in range(4, 40): batch(n, stock=1)\nsys.exit(1)", report_seconds=60.0)
    events = told(instance, "stock")
    assert len(events) == 2  # the first at once; the rest, summed up, when the run ends
    assert numbers(events[1])["rows changed"] == 35
    assert numbers(events[1])["records"] == 3500


def test_a_crash_names_the_record_on_the_run_and_on_every_table(run: Run, settings: Settings, instance: dg.DagsterInstance) -> None:
    result = run(
        """
        started(); batch(4, stock=1)
        say("failed", error="RecordFailed", message="sum overflows", position="shop@1.4", topic="sales", partition=2, offset=41,
            location="app.py:5")
        sys.exit(1)
        """
    )
    assert not result.success
    attempt = attempts(instance, settings, "shop")[0]
    assert attempt.status is Status.FAILED
    assert attempt.position == "shop@1.4"
    assert attempt.crash
    assert (attempt.crash.topic, attempt.crash.partition, attempt.crash.offset) == ("sales", 2, 41)
    assert evaluations(instance, "stream_alive")[-1] == (
        False,
        "crashed (topic sales, partition 2, offset 41, at app.py:5, after shop@1.4): RecordFailed: sum overflows",
    )
    assert not leases.read(settings, "shop").is_held  # type: ignore[union-attr]


@pytest.mark.parametrize("again", [9, 0], ids=["a rewind", "what was read beside it is joined"])
def test_a_stream_that_was_rewound_while_it_ran_goes_on_in_the_same_run(
    run: Run, settings: Settings, instance: dg.DagsterInstance, again: int
) -> None:
    run(
        f"""
        started(); batch(4, stock=1)
        say("rewound", position="shop@2.2", before="shop@1.4", by="rewind to commit 2: bad prices", generation=3, again={again})
        say("batch", position="shop@2.3", records=1, seconds=0.5, records_per_second=2.0, batch_ms=500, lag=dict(sales=0),
            rows=dict(stock=1))
        sys.exit(1)
        """
    )
    assert attempts(instance, settings, "shop")[0].position == "shop@2.3"
    reported = [numbers(event) for event in told(instance, "stock")]
    assert [found["position"] for found in reported] == ["shop@1.4", "shop@2.2", "shop@2.3"]
    assert ("replayed records" in reported[-1]) == bool(again), "only what is read again is a replay"


@pytest.mark.parametrize(("code", "final"), [(1, False), (2, True), (3, True), (4, True), (0, False)])
def test_exit_codes_tell_what_a_restart_can_mend(
    run: Run, settings: Settings, instance: dg.DagsterInstance, code: int, final: bool
) -> None:
    run(f"started(); sys.exit({code})")
    attempt = attempts(instance, settings, "shop")[0]
    assert attempt.crashed
    assert attempt.crash
    assert attempt.crash.final is final


def test_a_killed_driver_is_a_crash_that_says_so(run: Run, settings: Settings, instance: dg.DagsterInstance) -> None:
    run("started(); print('last words', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGKILL)")
    attempt = attempts(instance, settings, "shop")[0]
    assert attempt.crash
    assert "killed by signal 9" in attempt.crash.message


def test_a_secret_that_is_not_set_is_told_by_the_driver_and_is_final(
    app: LoadedApp, settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings.model_copy(update={"kafka_options": {"sasl.password": "env:NOPE"}})
    says = "say('failed', error='SettingsError', message='NOPE is not set in the environment'); sys.exit(2)"
    monkeypatch.setattr(stream_job, "run_command", lambda _: [sys.executable, "-c", SAY + says])
    watched = [topics.Watched("sales", {"shop": app.topology.topics[0]})]
    stream_job.build_stream_job(app, settings, watched, str).execute_in_process(instance=instance, raise_on_error=False)
    [attempt] = attempts(instance, settings, "shop")
    assert attempt.crash
    assert (attempt.crash.error, attempt.crash.message, attempt.crash.final) == (
        "SettingsError", "NOPE is not set in the environment", True,
    )  # fmt: skip
    skipped = build_topics_sensor(watched, settings)(dg.build_sensor_context())
    assert isinstance(skipped, dg.SkipReason)
    assert "NOPE is not set in the environment" in str(skipped.skip_message)


def test_a_driver_that_ends_before_its_first_event_is_told_in_its_own_last_words(
    run: Run, settings: Settings, instance: dg.DagsterInstance
) -> None:
    words = "no app 'shop'; there are: none\nbroken: assets/shop/app.py:7: SyntaxError: invalid syntax"
    run(f"print('a warning'); print({f'DefinitionError {words}'!r}, file=sys.stderr); sys.exit(2)")
    [attempt] = attempts(instance, settings, "shop")
    assert attempt.crash
    assert (attempt.crash.error, attempt.crash.message, attempt.crash.final) == ("DefinitionError", words, True)
    run("print('what no error of ours begins with', file=sys.stderr); sys.exit(1)")
    crash = attempts(instance, settings, "shop")[0].crash
    assert crash
    assert crash.message == "the driver ended by itself with exit code 1"


def test_a_driver_that_says_nothing_is_taken_for_dead(run: Run, settings: Settings, instance: dg.DagsterInstance) -> None:
    run("started(); time.sleep(600)", silence_seconds=1.0)
    attempt = attempts(instance, settings, "shop")[0]
    assert attempt.crash
    assert attempt.crash.error == "Silence"


@pytest.mark.parametrize("instance", ["disk"], indirect=True)
def test_it_hands_over_when_it_is_asked_to(run: Run, settings: Settings, instance: dg.DagsterInstance) -> None:
    def ask() -> None:
        while not (runs := instance.get_runs(dg.RunsFilter(job_name=job_name("shop")))) or not runs[0].tags.get(Tag.FINGERPRINT):
            time.sleep(0.05)
        instance.add_run_tags(runs[0].run_id, {Tag.HAND_OVER: "wt1:new"})

    threading.Thread(target=ask).start()
    result = run(
        """
        signal.signal(signal.SIGTERM, lambda *_: (batch(9, stock=1), say("stopped", position="shop@1.9", reason="stopped"), sys.exit(0)))
        started()
        for _ in range(600): idle(); time.sleep(0.1)
        """
    )
    assert result.success
    attempt = attempts(instance, settings, "shop")[0]
    assert (attempt.ended, attempt.position, attempt.fingerprint) == (Ended.HAND_OVER, "shop@1.9", "wt1:run")
    assert numbers(told(instance, "stock")[-1])["position"] == "shop@1.9"  # what it said last is not lost


def test_it_has_handed_over_where_a_rewind_brought_in_other_code(run: Run, settings: Settings, instance: dg.DagsterInstance) -> None:
    result = run(
        """
        started(); batch(4, stock=1)
        say("failed", error="CodeReplaced", message="rebuilt: shop goes on under the code wt1:new", position="shop@1.4")
        sys.exit(1)
        """
    )
    assert result.success
    attempt = attempts(instance, settings, "shop")[0]
    assert (attempt.ended, attempt.crash, attempt.position) == (Ended.HAND_OVER, None, "shop@1.4")
    assert all(passed for passed, _ in evaluations(instance, "stream_alive"))


@pytest.mark.parametrize("instance", ["disk"], indirect=True)
def test_it_says_why_it_runs_on_under_the_code_from_before(
    run: Run, app: LoadedApp, settings: Settings, instance: dg.DagsterInstance
) -> None:
    def hold() -> None:
        while not (runs := instance.get_runs(dg.RunsFilter(job_name=job_name("shop")))) or not runs[0].tags.get(Tag.FINGERPRINT):
            time.sleep(0.05)
        instance.add_run_tags(runs[0].run_id, {Tag.HELD: "stock: a filter was put in"})
        while all(passed for passed, _ in evaluations(instance, "deployed_code")):
            time.sleep(0.05)
        instance.add_run_tags(runs[0].run_id, {Tag.HELD: ""})

    threading.Thread(target=hold, daemon=True).start()
    result = run(f"started({app.topology.fingerprint!r})\nfor _ in range(100): idle(); time.sleep(0.1)")
    logged = instance.all_logs(result.run_id, dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    said = [e.get_dagster_event().asset_check_evaluation_data for e in logged]
    judged = [s for s in said if s.check_name == "deployed_code" and s.asset_key == dg.AssetKey(["shop", "stock"])]
    assert [s.passed for s in judged] == [True, False, True]
    assert "a filter was put in" in (judged[1].description or "")
    known = leases.recorded_code(settings, "shop")
    assert known is not None
    assert known.fingerprint == app.topology.fingerprint


def test_a_re_executed_run_counts_as_a_persons_from_the_moment_that_it_begins(
    run: Run, settings: Settings, instance: dg.DagsterInstance
) -> None:
    model = {Tag.BY: "supervisor", Tag.REASON: "crash 4 of 5", Tag.HAND_OVER: "wt1:new", Tag.ENDED: str(Ended.HAND_OVER)}
    run("started(); sys.exit(1)", tags={**model, "dagster/parent_run_id": "model", "dagster/root_run_id": "model"})
    [attempt] = attempts(instance, settings, "shop")
    assert (attempt.by_person, attempt.ended, attempt.position, attempt.handing_over) == (True, Ended.CRASH, "shop@1.3", False)


def test_it_recycles_itself_after_so_many_events(run: Run, settings: Settings, instance: dg.DagsterInstance) -> None:
    assert run("started()\nfor n in range(4, 9999): batch(n, stock=1); time.sleep(0.05)", recycle_events=20).success
    assert attempts(instance, settings, "shop")[0].ended is Ended.RECYCLE


def test_it_is_never_recycled_where_that_is_after_0_events_or_hours(
    run: Run, settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_job, "LOOK", 0.1)
    script = "started()\nfor n in range(4, 24): batch(n, stock=1); time.sleep(0.05)\nsys.exit(1)"
    run(script, recycle_events=0, recycle_hours=0.0)
    [attempt] = attempts(instance, settings, "shop")
    assert (attempt.ended, attempt.position) == (Ended.CRASH, "shop@1.23")


@pytest.mark.parametrize(
    "config", [{"silence_seconds": 0.0}, {"silence_seconds": -1.0}, {"recycle_hours": -1.0}, {"recycle_events": -1}], ids=str
)
def test_a_configuration_that_would_end_every_run_is_refused_once_and_says_which(
    run: Run, settings: Settings, instance: dg.DagsterInstance, config: Mapping[str, Any]
) -> None:
    assert not run("started(); sys.exit(1)", **config).success
    [attempt] = attempts(instance, settings, "shop")
    decision = decide([attempt], loaded="", loaded_at=0.0, now=time.time())
    assert isinstance(decision, GiveUp)
    assert next(iter(config)) in decision.reason
    assert not leases.read(settings, "shop").is_held  # type: ignore[union-attr]


@pytest.mark.parametrize("instance", ["disk"], indirect=True)
def test_it_is_not_recycled_while_it_is_held_back_from_other_code_and_is_once_it_no_longer_is(
    run: Run, settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stream_job, "LOOK", 0.2)
    held_at = ""

    def hold() -> None:
        nonlocal held_at
        while not (runs := instance.get_runs(dg.RunsFilter(job_name=job_name("shop")))) or not runs[0].tags.get(Tag.FINGERPRINT):
            time.sleep(0.05)
        instance.add_run_tags(runs[0].run_id, {Tag.HELD: "stock: a filter was put in"})
        (tmp_path / "held").touch()
        while int((at := leases.read(settings, "shop").position or "@1.0").rpartition(".")[2]) < 60:  # type: ignore[union-attr]
            time.sleep(0.05)
        held_at = at
        instance.add_run_tags(runs[0].run_id, {Tag.HELD: ""})

    threading.Thread(target=hold, daemon=True).start()
    wait = f"started()\nwhile not os.path.exists({str(tmp_path / 'held')!r}): time.sleep(0.05)"
    assert run(f"{wait}\nfor n in range(4, 9999): batch(n, stock=1); time.sleep(0.05)", recycle_events=20).success
    assert (held_at != "", attempts(instance, settings, "shop")[0].ended) == (True, Ended.RECYCLE)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("app.py", "import watertable as ("),
        ("checks.py", "from watertable_quality import Suite, not_null\nstock = Suite('shop.stock', not_null('m'))"),
        ("../../pyproject.toml", "[tool.watertable]\nasets = []"),
    ],
    ids=["its app", "a suite", "the settings"],
)
def test_it_is_not_recycled_while_its_folder_does_not_load_and_is_once_it_does(
    run: Run, settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, text: str
) -> None:
    monkeypatch.setattr(stream_job, "LOOK", 0.2)
    monkeypatch.setattr(stream_job, "LOAD", 0.3)
    broken = tmp_path / "assets" / "shop" / file
    broken.write_text(text)
    mended_at = ""

    def mend() -> None:
        nonlocal mended_at
        while int((at := held.position if (held := leases.read(settings, "shop")) else "@1.0").rpartition(".")[2] or 0) < 60:
            time.sleep(0.05)
        mended_at = at
        broken.write_text(APP if file == "app.py" else "")

    threading.Thread(target=mend, daemon=True).start()
    assert run("started()\nfor n in range(4, 9999): batch(n, stock=1); time.sleep(0.05)", recycle_events=20).success
    assert (mended_at != "", attempts(instance, settings, "shop")[0].ended) == (True, Ended.RECYCLE)


def test_a_second_run_is_refused_and_another_environment_must_be_named(run: Run, settings: Settings, instance: dg.DagsterInstance) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    held = Lease(app="shop", run_id="other", environment="elsewhere", pid=other.pid, pid_birth=birth(other.pid))
    leases.renew(settings, held)
    assert not run("started(); sys.exit(1)").success
    refused = attempts(instance, settings, "shop")[0]
    assert refused.ended is Ended.REFUSED
    assert refused.crash
    assert "shop is kept by run other" in refused.crash.message
    other.kill()
    other.wait()
    run("started(); sys.exit(1)")
    assert attempts(instance, settings, "shop")[0].ended is Ended.REFUSED
    run("started(); sys.exit(1)", take_over=True)
    assert attempts(instance, settings, "shop")[0].ended is Ended.CRASH


def test_a_stream_waits_for_an_act_that_holds_its_app(run: Run, settings: Settings, instance: dg.DagsterInstance) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(2)"])
    threading.Thread(target=other.wait).start()
    leases.renew(settings, Lease(app="shop", run_id="act", environment=leases.environment(settings, instance), pid=other.pid, act=True))
    run("started(); sys.exit(1)")
    assert attempts(instance, settings, "shop")[0].ended is Ended.CRASH  # it ran, and was not refused


def test_old_code_on_a_table_is_reported_when_new_code_takes_over(run: Run, instance: dg.DagsterInstance) -> None:
    instance.report_runless_asset_event(dg.AssetMaterialization(["shop", "stock"], tags={"dagster/code_version": "wt1:old"}))
    run("started(); idle(); sys.exit(1)")
    assert [numbers(e).get("position") for e in told(instance, "stock")] == [None, "shop@1.3"]
    assert told(instance, "levels") == []


FORK = """
import subprocess, sys, time
below = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
print('{"event": "pid", "pid": %d}' % below.pid, flush=True)
"""


def grandchild(log: Path, code: str, grace: float) -> tuple[Child, int]:
    child = Child([sys.executable, "-c", FORK + code], env={}, cwd=log.parent, log=log, grace=grace)
    event = child.event(20)
    assert event
    return child, event["pid"]


@pytest.mark.parametrize("code", ["time.sleep(600)", "import signal; signal.signal(15, signal.SIG_IGN); time.sleep(600)", "sys.exit(0)"])
def test_no_process_outlives_a_child(tmp_path: Path, code: str) -> None:
    child, below = grandchild(tmp_path / "log", code, grace=1.0)
    with child:
        assert alive(below, "")
    assert not alive(child.pid, "")
    assert not alive(below, "")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a driver notices by its closed pipe")
@pytest.mark.parametrize("asked", ["SIG_DFL", "SIG_IGN"])
def test_a_driver_ends_when_its_worker_is_killed_outright(tmp_path: Path, asked: str) -> None:
    code = f"""
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.{asked})
from watertable_platform.orchestration.assembly import build_definitions
from watertable_platform.orchestration.child import Child
child = Child([sys.executable, "-c", "import time; time.sleep(600)"], env={{}}, cwd=Path("/"), log=Path({str(tmp_path / "log")!r}))
print(child.pid, flush=True)
time.sleep(600)
"""
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert worker.stdout
    driver = int(worker.stdout.readline())
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    deadline = time.monotonic() + 10
    while alive(driver, "") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(driver, "")


def test_a_run_that_has_lost_its_lease_leaves_the_winners_alone(settings: Settings) -> None:
    ours = Lease(app="shop", run_id="ours", environment="e", host="another-host")
    ours = leases.renew(settings, ours, beat=time.time() - 2 * leases.SILENT)  # it was suspended
    theirs = leases.take(settings, Lease(app="shop", run_id="theirs", environment="e"))
    for changes in ({}, {"position": "shop@1.9"}, {"released": True}):
        ours = leases.renew(settings, ours, **changes)
        assert leases.read(settings, "shop") == theirs
    with pytest.raises(JobError, match="shop is kept by run theirs"):
        leases.take(settings, Lease(app="shop", run_id="an act", environment="e", act=True))
    assert leases.renew(settings, theirs, position="shop@1.8") == leases.read(settings, "shop")


def test_a_lease_survives_a_reader_at_any_moment(settings: Settings) -> None:
    held = Lease(app="shop", run_id="r", environment="e", lag={"sales": 1})
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            leases.renew(settings, held)

    leases.renew(settings, held)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert all(leases.read(settings, "shop") is not None for _ in range(300))
    finally:
        stop.set()
        thread.join()
    assert json.loads((settings.home_folder / "leases" / "shop.json").read_text())["run_id"] == "r"


def test_all_that_tell_a_topics_version_tell_the_same_however_many_apps_read_it(
    settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = """
    import watertable as wt
    app = wt.App("{app}")
    app.topic("sales", key="k STRING", value="{value}").stream().group_by_key().agg(n=wt.sum("n")).materialized_as("stock")
    """
    for app, value in (("desk", "n INT"), ("shop", "n INT, size STRING")):
        (settings.project / "assets" / app).mkdir(parents=True)
        (settings.project / "assets" / app / "app.py").write_text(textwrap.dedent(reads).format(app=app, value=value))
    told: list[set[str]] = []

    def observe(_: Settings, watched: Iterable[topics.Watched]) -> list[dg.AssetObservation]:
        told.append({f"{w.name} {topics.data_version('id', w.readers.values())}" for w in watched})
        return []

    monkeypatch.setattr(topics, "observe", observe)
    monkeypatch.setattr(stream_job, "run_command", lambda _: [sys.executable, "-c", SAY])
    definitions = build_definitions(load_apps(settings))
    definitions.resolve_sensor_def("observe_topics")(dg.build_sensor_context())
    for app in ("desk", "shop"):
        definitions.resolve_job_def(f"stream__{app}").execute_in_process(instance=instance, raise_on_error=False)
    assert len(told) == 3
    assert told[0] == told[1] == told[2] != {"sales id"}
