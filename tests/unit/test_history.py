"""What Dagster's records and the app's own say about a stream: by which code it runs, and how its runs ended."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
import pytest

from watertable.project import LoadedApp, load_apps
from watertable.settings import Settings
from watertable_platform.orchestration import lease as leases
from watertable_platform.orchestration import supervisor
from watertable_platform.orchestration.assembly import build_definitions
from watertable_platform.orchestration.checks import Verdict, stream_alive
from watertable_platform.orchestration.history import LOOK_BACK, attempts, breaking_code, job_name, own_tags, owned
from watertable_platform.orchestration.lease import Lease
from watertable_platform.orchestration.sensors import build_reconcile_sensor
from watertable_platform.orchestration.supervisor import CRASHES, LATE, Crash, Ended, GiveUp, Launch, Leave, Queued, Tag, decide

APP = """
import watertable as wt
app = wt.App("shop")
sales = app.topic("sales", key="item STRING", value="qty INT").stream()
sales{filter}.group_by("item").agg(n=wt.sum("qty")).materialized_as("stock")
{more}
"""


def test_code_that_would_make_tables_wrong_is_known_from_what_was_recorded(tmp_path: Path) -> None:
    settings = Settings.load(tmp_path, kafka="127.0.0.1:1")
    file = tmp_path / "assets" / "shop" / "app.py"
    file.parent.mkdir(parents=True)

    def loaded(where: str = "", more: str = "") -> LoadedApp:
        file.write_text(APP.format(filter=where, more=more))
        return load_apps(settings).app("shop")

    assert breaking_code(settings, loaded(".filter('qty > 0')")) == ""  # nothing is known
    leases.record_code(settings, loaded().topology)
    assert breaking_code(settings, loaded()) == ""
    assert breaking_code(settings, loaded(more='sales.group_by("item").count().materialized_as("counts")')) == ""
    assert "stock: a filter was put in" in breaking_code(settings, loaded(".filter('qty > 0')"))


FAILED = dg.DagsterRunStatus.FAILURE
STARTED = dg.DagsterRunStatus.STARTED
WAITS = dg.DagsterRunStatus.NOT_STARTED
CANCELED = dg.DagsterRunStatus.CANCELED
GONE = "an earlier process's"
"""The birth of a worker that has this process's id, and isn't it."""


def supervised(folder: Path) -> tuple[Settings, LoadedApp, dg.SensorDefinition]:
    """Write the app into a project's folder; give it, and the sensor that keeps its stream."""
    settings = Settings.load(folder, kafka="127.0.0.1:1")
    file = folder / "assets" / "shop" / "app.py"
    file.parent.mkdir(parents=True)
    file.write_text(APP.format(filter="", more=""))
    app = load_apps(settings).app("shop")
    sensor = build_reconcile_sensor({"shop": app}, [], settings, loaded_at=0.0)
    return settings, app, sensor


@pytest.mark.parametrize(("before", "after"), [(STARTED, CANCELED), (FAILED, FAILED)], ids=["by the sensor", "by Dagster"])
def test_a_ghost_is_told_as_one_with_its_last_position_whoever_ended_it(
    tmp_path: Path, before: dg.DagsterRunStatus, after: dg.DagsterRunStatus
) -> None:
    settings, _, sensor = supervised(tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(dg.DagsterRun(job_name=job_name("shop"), run_id="ghost", status=before, tags={Tag.POSITION: "shop@1.3"}))
        leases.renew(settings, Lease(app="shop", run_id="ghost", environment="here", pid_birth=GONE, position="shop@1.7"))

        first = sensor(dg.build_sensor_context(instance=instance))
        run = instance.get_run_by_id("ghost")
        assert run is not None
        assert run.status is after
        assert (run.tags[Tag.ENDED], run.tags[Tag.POSITION]) == (Ended.GHOST, "shop@1.7")
        assert isinstance(first, dg.SensorResult)
        assert not first.run_requests  # its end is told first, then it comes back

        [attempt] = attempts(instance, settings, "shop")
        assert (attempt.ended, attempt.position, attempt.worker_gone, attempt.crashed) == (Ended.GHOST, "shop@1.7", False, True)


@pytest.mark.parametrize("ended", ["given up", "by a person"])
def test_of_a_stream_that_stands_the_checks_say_once_what_nobody_knows_any_more(tmp_path: Path, ended: str) -> None:
    settings, _, sensor = supervised(tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:
        crash = Crash("TopicChanged", "topic 'sales' was deleted", final=True)
        tags = {Tag.ENDED: str(Ended.CRASH), Tag.CRASH: crash.as_tag()} if ended == "given up" else {}
        run = dg.DagsterRun(job_name=job_name("shop"), run_id="last", status=STARTED, tags=tags)
        instance.add_run(run)
        (instance.report_run_failed if ended == "given up" else instance.report_run_canceled)(run)
        lease = Lease(app="shop", run_id="last", environment="here", lag={"sales": 444}, unfolded_since=time.time() - 9, released=True)
        leases.renew(settings, lease)

        first = sensor(dg.build_sensor_context(instance=instance))
        assert isinstance(first, dg.SensorResult)
        told = {event.check_name: (event.passed, event.description) for event in first.asset_events}  # type: ignore[union-attr]
        assert told["freshness"] == (False, "unknown: the stream doesn't run; it was 444 records behind")
        assert told["fold_lag"][0] is False
        assert "may wait for their fold" in (told["fold_lag"][1] or "")
        assert told["stream_alive"][0] is False
        again = sensor(dg.build_sensor_context(instance=instance, cursor=first.cursor))
        assert isinstance(again, dg.SensorResult)
        assert not again.asset_events


BROKEN = "import watertable as wt\n1 / 0"


@pytest.mark.parametrize(
    "now", ["", BROKEN, APP.format(filter="", more="").replace('App("shop")', 'App("store")')], ids=["gone", "broken", "renamed"]
)
@pytest.mark.parametrize(("birth", "after"), [(GONE, CANCELED), (None, STARTED)], ids=["its worker is gone", "its worker lives"])
def test_a_ghost_is_ended_though_its_app_is_not_loaded_any_more(
    tmp_path: Path, now: str, birth: str | None, after: dg.DagsterRunStatus
) -> None:
    settings, _, _ = supervised(tmp_path)
    (tmp_path / "assets" / "shop" / "app.py").write_text(now)
    repository = build_definitions(load_apps(settings)).get_repository_def()
    with dg.DagsterInstance.ephemeral() as instance:
        for name, run_id in (("shop", "ghost"), ("elsewhere", "another project's")):
            instance.add_run(dg.DagsterRun(job_name=job_name(name), run_id=run_id, status=STARTED))
        leases.renew(settings, Lease(app="shop", run_id="ghost", environment="here", **({"pid_birth": birth} if birth else {})))
        sensor = repository.get_sensor_def("reconcile_streams")
        result = sensor(dg.build_sensor_context(instance=instance, repository_def=repository))
        assert isinstance(result, dg.SensorResult)
        assert not result.run_requests
        runs = {run.run_id: run for run in instance.get_runs()}
        assert (runs["ghost"].status, runs["ghost"].tags.get(Tag.ENDED)) == (after, str(Ended.GHOST) if birth else None)
        assert runs["another project's"].status is STARTED


REFUSED = {Tag.BY: "supervisor", Tag.ENDED: str(Ended.REFUSED), Tag.CRASH: Crash("JobError", "another environment's lease").as_tag()}


def test_a_stream_that_is_refused_for_long_waits_says_why_once_and_is_still_wanted(tmp_path: Path) -> None:
    settings = Settings.load(tmp_path, kafka="127.0.0.1:1")
    file = tmp_path / "assets" / "shop" / "app.py"
    file.parent.mkdir(parents=True)
    file.write_text(APP.format(filter="", more=""))
    sensor = build_reconcile_sensor({"shop": load_apps(settings).app("shop")}, [], settings, loaded_at=0.0)
    with dg.DagsterInstance.ephemeral() as instance:

        def ended(run_id: str, status: dg.DagsterRunStatus, **tags: str) -> None:
            run = dg.DagsterRun(job_name=job_name("shop"), run_id=run_id, status=STARTED, tags=tags)
            instance.add_run(run)
            (instance.report_run_canceled if status is CANCELED else instance.report_run_failed)(run)

        def tick(cursor: str | None) -> dg.SensorResult:
            result = sensor(dg.build_sensor_context(instance=instance, cursor=cursor))
            assert isinstance(result, dg.SensorResult)
            assert not result.run_requests
            assert "another environment's lease" in str(result.skip_reason)
            return result

        ended("first", CANCELED, **{Tag.ENDED: str(Ended.SHUTDOWN), Tag.POSITION: "shop@1.7"})
        for n in range(2 * LOOK_BACK + 5):
            ended(f"refused {n}", FAILED, **REFUSED)
        first = tick(None)
        alive = [e for e in first.asset_events if isinstance(e, dg.AssetCheckEvaluation) and e.check_name == "stream_alive"]
        assert [(e.passed, e.description) for e in alive] == [(False, "not running: refused at try 45: another environment's lease")]
        assert attempts(instance, settings, "shop")[-1].position == "shop@1.7"
        ended("again", FAILED, **REFUSED)
        assert not tick(first.cursor).asset_events


def test_a_run_of_a_persons_that_is_refused_hides_nothing_of_the_one_that_runs(tmp_path: Path) -> None:
    settings, app, sensor = supervised(tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:
        tags = {Tag.FINGERPRINT: app.topology.fingerprint, Tag.HELD: "stock: a filter was put in"}
        instance.add_run(dg.DagsterRun(job_name=job_name("shop"), run_id="live", status=STARTED, tags=tags))
        leases.renew(settings, Lease(app="shop", run_id="live", environment="here"))
        instance.add_run(dg.DagsterRun(job_name=job_name("shop"), run_id="r", status=FAILED, tags={Tag.ENDED: str(Ended.REFUSED)}))
        held = json.dumps({"shop": {"held": "live stock: a filter was put in"}})
        result = sensor(dg.build_sensor_context(instance=instance, cursor=held))
        assert isinstance(result, dg.SensorResult)
        assert not result.asset_events
        run = instance.get_run_by_id("live")
        assert run is not None
        assert run.tags[Tag.HELD] == "", "the code that runs is the one that is loaded again"


def test_a_second_copy_that_is_terminated_before_it_begins_hides_nothing_of_the_one_that_runs(tmp_path: Path) -> None:
    settings, app, sensor = supervised(tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:
        tags = {Tag.FINGERPRINT: app.topology.fingerprint, Tag.HELD: "stock: a filter was put in"}
        ran = instance.add_run(dg.DagsterRun(job_name=job_name("shop"), run_id="live", status=STARTED, tags=tags))
        leases.renew(settings, Lease(app="shop", run_id="live", environment="here"))
        copy = instance.add_run(dg.DagsterRun(job_name=job_name("shop"), run_id="copy", status=dg.DagsterRunStatus.STARTING))
        held = json.dumps({"shop": {"held": "live stock: a filter was put in"}})
        instance.report_run_canceling(copy)
        sensor(dg.build_sensor_context(instance=instance, cursor=held))
        kept = instance.get_run_by_id("live")
        assert kept is not None
        assert kept.tags[Tag.HELD] == "", "the code that runs is the one that is loaded again"
        instance.report_run_canceled(copy)
        instance.add_run_tags("live", {Tag.ENDED: str(Ended.RECYCLE)})
        instance.report_dagster_event(dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, ran.job_name), "live")
        result = sensor(dg.build_sensor_context(instance=instance))
        assert isinstance(result, dg.SensorResult)
        assert [request.tags[Tag.REASON] for request in result.run_requests or ()] == ["recycle"]


@pytest.mark.parametrize("lease", [{"released": True}, {"run_id": "another"}, {}], ids=["gave its lease back", "another's lease", "lives"])
def test_a_run_that_failed_by_itself_is_no_ghost(tmp_path: Path, lease: dict[str, object]) -> None:
    settings = Settings.load(tmp_path, kafka="127.0.0.1:1")
    held = {"app": "shop", "run_id": "failed", "environment": "here"} | ({"pid_birth": GONE} if lease else {}) | lease
    leases.renew(settings, Lease(**held))  # type: ignore[arg-type]
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(dg.DagsterRun(job_name=job_name("shop"), run_id="failed", status=FAILED))
        [attempt] = attempts(instance, settings, "shop")
        assert not attempt.worker_gone
        assert attempt.ended is None


SUPERVISED = {Tag.BY: "supervisor", Tag.REASON: "crash 4 of 5", Tag.FINGERPRINT: "wt1:old", Tag.POSITION: "shop@1.7"}
CRASHED = {**SUPERVISED, Tag.ENDED: str(Ended.CRASH), Tag.CRASH: Crash("Boom", "no", "shop@1.7").as_tag()}
REEXECUTED = {**CRASHED, "dagster/parent_run_id": "model", "dagster/root_run_id": "model"}
"""What the UI's Re-execute gives a run: all of its model's tags."""


@pytest.mark.parametrize("model", ["", "model"], ids=["", "of one that was re-executed itself"])
def test_a_re_executed_run_is_a_persons_launch_and_its_models_story_is_none_of_its_own(tmp_path: Path, model: str) -> None:
    settings, _, _ = supervised(tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:

        def run(run_id: str, status: dg.DagsterRunStatus, tags: Mapping[str, str]) -> dg.DagsterRun:
            return instance.add_run(dg.DagsterRun(job_name=job_name("shop"), run_id=run_id, status=status, tags=tags))

        def decided() -> object:
            return decide(attempts(instance, settings, "shop"), loaded="f", loaded_at=0.0, now=time.time() + 400)

        for n in range(CRASHES):
            run(f"crash {n}", FAILED, CRASHED)
        assert isinstance(decided(), GiveUp)
        again = run("again", STARTED, {**REEXECUTED, **({Tag.OWN: model} if model else {})})
        instance.add_run_tags("again", owned(again))  # as it begins
        instance.add_run_tags("again", {Tag.CRASH: CRASHED[Tag.CRASH], Tag.ENDED: str(Ended.CRASH), Tag.POSITION: "shop@1.7"})
        instance.report_run_failed(again)
        assert decided() == Launch("crash 1 of 5")
        ended = instance.get_run_by_id("again")
        assert ended is not None
        assert not {Tag.BY, Tag.REASON} & set(own_tags(ended))

        waits = run("waits", WAITS, {**REEXECUTED, Tag.ENDED: str(Ended.SHUTDOWN)})
        instance.report_run_canceled(waits)
        assert decided() == Leave("stopped by a person; launch it to run it again")


def test_a_re_executed_run_whose_worker_is_gone_before_it_began_is_a_ghost_with_no_story_of_its_models(tmp_path: Path) -> None:
    settings, _, sensor = supervised(tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(dg.DagsterRun(job_name=job_name("shop"), run_id="ghost", status=FAILED, tags=REEXECUTED))
        leases.renew(settings, Lease(app="shop", run_id="ghost", environment="here", pid_birth=GONE))
        sensor(dg.build_sensor_context(instance=instance))
        [attempt] = attempts(instance, settings, "shop")
        told = attempt.ended, attempt.position, attempt.fingerprint, attempt.crash, attempt.by_person
        assert told == (Ended.GHOST, "", "", None, True)


def test_a_stream_that_waits_to_begin_is_a_warning_that_is_told_once(tmp_path: Path) -> None:
    settings, _, sensor = supervised(tmp_path)
    with dg.DagsterInstance.ephemeral() as instance:

        def tick(cursor: str | None = None) -> tuple[list[tuple[bool, str | None]], str | None]:
            result = sensor(dg.build_sensor_context(instance=instance, cursor=cursor))
            assert isinstance(result, dg.SensorResult)
            assert not result.run_requests
            return [(e.passed, e.description) for e in result.asset_events if isinstance(e, dg.AssetCheckEvaluation)], result.cursor

        instance.add_run(dg.DagsterRun(job_name=job_name("shop"), run_id="waits", status=WAITS))
        [attempt] = attempts(instance, settings, "shop")
        assert not attempt.begun
        assert tick()[0] == []
        assert stream_alive(Queued("waits", LATE)) == Verdict(True, "starting", dg.AssetCheckSeverity.WARN)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(supervisor, "LATE", -1.0)
            [(passed, says)], cursor = tick()
            assert not passed
            assert "run waits has waited for 0 min to begin" in str(says)
            assert tick(cursor)[0] == []
