"""A rewind from Dagster and from the command line: what is shown, what is asked of the child, and what a refusal looks like; no JVM."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.execution.retries import auto_reexecution_should_retry_run
from rich.console import Console

from tests.unit.test_rewind import facts, planned
from watertable.acts import shadow as beside
from watertable.acts.shadow import ColumnDiff, Diff, Sample, TableDiff
from watertable.errors import RewindRefused
from watertable.project import LoadedApp, load_apps
from watertable.settings import Settings
from watertable.store.commits import CommitInfo, Position
from watertable_platform.cli import rewinding, show, terminal
from watertable_platform.cli.main import main
from watertable_platform.orchestration import checks, rewind_jobs
from watertable_platform.orchestration.assembly import build_definitions

APP = """
import watertable as wt
app = wt.App("shop")
app.topic("moves", key="k STRING", value="qty BIGINT").stream().group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
"""
PLAN = json.dumps({"event": "plan", **json.loads(planned().to_json())})
DIFF = Diff(
    app="shop", shadow="shop@2.3", live="shop@1.9", exact=True, missing=7, words="shadow rewind to earliest", old_code="a", new_code="b",
    tables=(
        TableDiff(
            table="stock", at="shop@1.9", added=1, changed=2, columns=(ColumnDiff("qty", 2, "+3", "5"),),
            samples=(Sample("added", '{"k":"new"}', None, '{"qty":7}'),),
        ),
    ),
)  # fmt: skip
DIFFERS = json.dumps({"event": "diff", **json.loads(DIFF.to_json())})
BATCH = json.dumps({"event": "batch", "position": "shop@2.3", "records": 5, "lag": {"moves": 0}})
SHADOW = json.dumps({"event": "shadow", "position": "shop@2.3", "before": "shop@1.9", "by": "shadow rewind to earliest"})
DONE = json.dumps({"event": "rewound", "position": "shop@2.4", "before": "shop@1.10", "by": "rewind to commit 4"})
HELD = json.dumps({"event": "parity", "position": "shop@1.9", "since": "shop@1.0", "apart": [], "says": "no row differs"})


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedApp:
    (tmp_path / "pyproject.toml").write_text("[tool.watertable]\nkafka = '127.0.0.1:1'\n")
    (tmp_path / "assets" / "shop").mkdir(parents=True)
    (tmp_path / "assets" / "shop" / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return load_apps(Settings.load(tmp_path)).app("shop")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def launch(
    app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, says: str, number: int = 0, **config: Any
) -> tuple[dg.ExecuteInProcessResult, list[str]]:
    """Launch the job with a child that prints this; give the result, and the command that was asked for."""
    asked: list[str] = []

    def command(*words: str) -> list[str]:
        asked.extend(words)
        return [sys.executable, "-c", says]

    monkeypatch.setattr(rewind_jobs, "command", command)
    job = rewind_jobs.build_rewind_jobs(app, Settings.load(app.folder.parents[1]))[number]
    config_of = {"ops": {job.nodes[0].name: {"config": config}}}
    return job.execute_in_process(instance=instance, raise_on_error=False, run_config=config_of), asked


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (done,) = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_OUTPUT]
    return dict(done.event_specific_data.metadata)  # type: ignore[union-attr]


def test_a_dry_run_is_the_default_and_shows_the_plan_as_markdown_on_the_run(
    app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, asked = launch(app, instance, monkeypatch, f"print('''{PLAN}''')", to="4", reason="bad prices")
    assert result.success
    assert asked == ["rewind", "shop", "--json", "--to", "4", "--reason", "bad prices"]
    assert "from `shop@1.10` to `shop@2.4`" in metadata(result)["plan"].value
    assert not [e for e in result.all_events if e.event_type is dg.DagsterEventType.ASSET_OBSERVATION]


def test_an_applied_rewind_is_noted_on_every_table(app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    result, asked = launch(
        app, instance, monkeypatch, f"print('''{PLAN}'''); print('''{DONE}''')", by="1 h", dry_run=False, accept_loss=["moves/0"],
        keep_old_code_before=True,
    )  # fmt: skip
    assert result.success
    assert asked[3:] == ["--by", "1 h", "--accept-loss", "moves/0", "--keep-old-code-before", "--apply"]
    (noted,) = [e for e in result.all_events if e.event_type is dg.DagsterEventType.ASSET_OBSERVATION]
    assert noted.asset_key == dg.AssetKey(["shop", "stock"])
    undone, asked = launch(app, instance, monkeypatch, f"print('''{PLAN}'''); print('''{DONE}''')", 1, dry_run=False)
    assert undone.success
    assert asked == ["undo", "shop", "--json", "--apply"]


def test_what_is_to_be_published_again_is_said_where_an_app_is_rewound_or_a_shadow_promoted(
    app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = json.dumps({"event": "plan", **json.loads(planned(emit=True).to_json())})
    result, asked = launch(app, instance, monkeypatch, f"print({plan!r})", to="4", emit=True, mode="shadow")
    assert (result.success, asked) == (True, ["rewind", "shop", "--json", "--to", "4", "--emit", "--shadow"])
    assert "output topic low: all that is made of moves from these offsets on is published again" in metadata(result)["plan"].value
    result, asked = launch(app, instance, monkeypatch, f"print({DIFFERS!r})", 2, emit=True)
    assert (result.success, asked) == (True, ["promote", "shop", "--json", "--emit"])


def test_a_refusal_fails_the_run_in_its_own_words_with_the_plan(
    app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = f"import sys; print('''{PLAN}'''); print('PlanOutdated: the code changed', file=sys.stderr); sys.exit(1)"
    result, _ = launch(app, instance, monkeypatch, says, to="4", dry_run=False)
    assert not result.success
    (failure,) = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_FAILURE]
    told = failure.step_failure_data.user_failure_data
    assert told is not None
    assert told.description == "PlanOutdated: the code changed"
    assert "plan" in told.metadata


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (f"RewindRefused shop isn't promoted: {'red, ' * 200}or --despite-checks", None),
        ("SettingsError no JVM starts:\n  its own words", None),
        ("a warning\nRewindRefused no\nException ignored in: a finalizer", "RewindRefused no\nException ignored in: a finalizer"),
        ("Traceback\nKeyError 'a': this is a mistake of watertable's", "KeyError 'a': this is a mistake of watertable's"),
    ],
    ids=["long", "several lines", "something is said after it", "a mistake of ours"],
)
def test_a_refusal_is_told_whole_with_its_way_out(
    app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, says: str, why: str | None
) -> None:
    result, _ = launch(app, instance, monkeypatch, f"import sys; print({says!r}, file=sys.stderr); sys.exit(1)", dry_run=False, to="4")
    (failure,) = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_FAILURE]
    told = failure.step_failure_data.user_failure_data
    assert told is not None
    assert told.description == (why or says)


def test_an_act_whose_process_was_killed_says_so(app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    dies = "import os, sys; print('a line of its log', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"
    result, _ = launch(app, instance, monkeypatch, dies, dry_run=False)
    (failed,) = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_FAILURE]
    told = failed.step_failure_data.user_failure_data
    assert told is not None
    assert told.description == "the command was killed by signal 9 without a word: asked for again, it says whether it was done"


@pytest.mark.parametrize(
    ("number", "config", "ends", "told"),
    [
        (
            0, {"to": "4", "dry_run": False}, "print('stopped: `watertable promote shop --apply` goes on', file=sys.stderr)",
            "stopped: `watertable promote shop --apply` goes on",
        ),
        (1, {"dry_run": False}, f"print({DONE!r})", "it was done before it could be stopped: rewind to commit 4, at shop@2.4"),
        (3, {}, f"print({HELD!r})", "it was done before it could be stopped: no row differs, at shop@1.9"),
        (2, {"dry_run": False}, "print('a line of its log', file=sys.stderr)", "stopped: asked for again, it says whether it was done"),
    ],
    ids=["a shadow is left", "it was done", "it was a parity", "without a word"],
)  # fmt: skip
def test_a_run_that_is_terminated_says_what_is_left_of_its_act(
    app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, number: int, config: dict[str, Any], ends: str, told: str
) -> None:
    def terminate(_: object, said: str) -> None:
        if "records" in said:  # of a batch: the act is under way
            raise DagsterExecutionInterruptedError

    logs: list[str] = []
    monkeypatch.setattr(dg.DagsterLogManager, "info", terminate)
    monkeypatch.setattr(dg.DagsterLogManager, "warning", lambda _, said: logs.append(said))
    begins = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))"
    # the signal may come right after the line: one long sleep that is begun by then would not be ended by it
    waits = f"try:\n  print({BATCH!r}, flush=True)\n  while True: time.sleep(0.02)"
    result, _ = launch(app, instance, monkeypatch, f"{begins}\n{waits}\nfinally: {ends}", number, **config)
    assert not result.success
    assert logs == [told]


@pytest.mark.parametrize(("number", "config"), [(0, {"to": "4", "dry_run": False}), (2, {"dry_run": False}), (3, {})])
def test_an_act_that_ends_without_having_done_it_fails_whatever_its_exit_code(
    app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, number: int, config: dict[str, Any]
) -> None:
    result, _ = launch(app, instance, monkeypatch, f"print({DIFFERS!r})", number, **config)
    (failed,) = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_FAILURE]
    told = failed.step_failure_data.user_failure_data
    assert told is not None
    assert "the command ended by itself with exit code 0" in (told.description or "")


@pytest.mark.parametrize("when", ["diff", "promote", "fold_all", ""])
def test_a_shadow_takes_no_place_after_a_stop_and_one_that_has_stays_there(
    app: LoadedApp, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    done, ended = list[str](), list[int]()

    def step(name: str, gives: Any) -> Any:
        def do(*_: object, **__: object) -> Any:
            done.append(name)
            if when == name:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.1)
            return gives

        return do

    ends = step("diff", DIFF), step("promote", (Position("shop", 1, 9), Position("shop", 3, 9)))
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(beside, "diff", ends[0])
    monkeypatch.setattr(beside, "promote", ends[1])
    monkeypatch.setattr(beside, "current", lambda store: CommitInfo(writer="a shadow"))
    monkeypatch.setattr(rewinding, "_red", lambda *_: [])
    monkeypatch.setattr("watertable.runtime.job.run", lambda *_, **__: None)
    store, settings = SimpleNamespace(fold_all=step("fold_all", {})), Settings.load(app.folder.parents[1])
    with pytest.raises(RewindRefused, match="stopped before the shadow took its place") if when == "diff" else nullcontext():
        rewinding._promote(settings, app, cast("Any", None), cast("Any", store), apply=True, despite_checks=False, emit=False, reason="",
                           as_json=True)  # fmt: skip
    assert done == {"diff": ["diff"], "promote": ["diff", "promote"]}.get(when, ["diff", "promote", "fold_all"])
    assert ended == ([0] if when == "fold_all" else [])
    assert ('"promoted"' in capsys.readouterr().out) == (when != "diff")


def test_a_rewind_in_the_shadow_shows_its_diff_on_the_run_and_touches_no_table(
    app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = f"print('''{PLAN}'''); print('''{BATCH}'''); print({DIFFERS!r}); print('''{SHADOW}''')"
    result, asked = launch(app, instance, monkeypatch, says, to="earliest", mode="shadow", dry_run=False)
    assert result.success
    assert asked == ["rewind", "shop", "--json", "--to", "earliest", "--shadow", "--apply"]
    shown = metadata(result)
    assert {"plan", "diff", "rows that differ"} <= set(shown)
    assert "| stock | 1 | 0 | 2 | qty in 2 (sum +3, at most 5) |" in shown["diff"].value
    assert not [e for e in result.all_events if e.event_type is dg.DagsterEventType.ASSET_OBSERVATION]
    _, asked = launch(app, instance, monkeypatch, says, to="earliest", mode="shadow", until="7", despite_disk=True)
    assert asked == ["rewind", "shop", "--json", "--to", "earliest", "--shadow", "--until", "7", "--despite-disk"]
    with pytest.raises(dg.DagsterInvalidConfigError, match="in_place"):
        launch(app, instance, monkeypatch, "", to="earliest", mode="aside")


def test_tables_that_are_chosen_are_rebuilt_alone(app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    says = f"print({PLAN!r}); print({DIFFERS!r})"
    result, asked = launch(app, instance, monkeypatch, says, tables=["stock", "low"])
    assert result.success
    assert asked == ["rewind", "shop", "--json", "--table", "stock", "--table", "low"]


def test_a_promote_notes_its_diff_on_every_table_and_a_shadow_is_given_up_by_the_same_job(
    app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, asked = launch(app, instance, monkeypatch, f"print({DIFFERS!r})", 2)
    assert (result.success, asked, metadata(result)["rows that differ"].value) == (True, ["promote", "shop", "--json"], 3)
    says = f"print({DIFFERS!r}); print('''{DONE.replace('rewound', 'promoted')}''')"
    result, asked = launch(app, instance, monkeypatch, says, 2, dry_run=False, reason="better")
    assert (result.success, asked) == (True, ["promote", "shop", "--json", "--reason", "better", "--apply"])
    (noted,) = [e for e in result.all_events if e.event_type is dg.DagsterEventType.ASSET_OBSERVATION]
    assert noted.asset_key == dg.AssetKey(["shop", "stock"])
    result, asked = launch(
        app, instance, monkeypatch, f"print('''{SHADOW.replace('shadow', 'abandoned', 1)}''')", 2, dry_run=False, give_up=True
    )
    assert (result.success, asked) == (True, ["rewind", "shop", "--json", "--abandon-shadow", "--apply"])


def test_which_shadow_would_be_given_up_is_told_to_people_and_to_programs(
    app: LoadedApp, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "begin_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(terminal, "out", Console(width=200))
    monkeypatch.setattr(terminal, "err", Console(stderr=True, width=200))
    monkeypatch.setattr(beside, "current", lambda _: CommitInfo(writer="rewind: [/sales] was wrong"))
    monkeypatch.setattr(beside, "abandon", lambda *_: Position("shop", 2, 3))
    asked = ["rewind", "shop", "--abandon-shadow"]
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"event": "abandon", "by": "give up rewind: [/sales] was wrong"}
    assert main(asked) == 0
    assert "the shadow 'rewind: [/sales] was wrong'; --apply gives it up" in capsys.readouterr().err
    assert main([*asked, "--apply"]) == 0
    assert "the shadow 'rewind: [/sales] was wrong' is given up, at shop@2.3" in capsys.readouterr().out


def test_a_diff_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    show.print_diff(Console(width=140, file=out), DIFF)
    told = " ".join(out.getvalue().split())
    for wanted in (
        "shop shadow rewind to earliest shop@1.9 beside shop@2.3", "other code (a → b): 1 of 1 tables differ", "7 records",
        "qty in 2 (sum +3, at most 5)", "k new no row qty 7",
    ):  # fmt: skip
        assert wanted in told, wanted
    show.tell_diff(Console(), DIFF, as_json=True)
    assert Diff.from_json(json.loads(capsys.readouterr().out)) == DIFF


def test_what_a_parity_comes_to_is_a_check_of_each_table_and_a_click_shows_it(
    app: LoadedApp, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = dg.AssetCheckKey(dg.AssetKey(["shop", "stock"]), "parity")
    clicked = checks.build_checks(app, Settings.load(app.folder.parents[1]), 0.0)

    def click() -> dg.AssetCheckEvaluation:
        done = dg.Definitions(asset_checks=[clicked]).resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
        return next(e for e in done.get_asset_check_evaluations() if e.asset_check_key == check)

    assert (click().passed, click().description) == (True, "not held yet: the job parity__shop does it")
    parity = {"event": "parity", "position": "shop@1.9", "since": "shop@1.0", "apart": [], "says": "at shop@1.9, all is well"}
    same = json.dumps({"event": "diff", **json.loads(dataclasses.replace(DIFF, tables=(TableDiff(table="stock", at=""),)).to_json())})
    result, asked = launch(app, instance, monkeypatch, f"print({same!r}); print({json.dumps(parity)!r})", 3)
    assert (result.success, asked) == (True, ["parity", "shop", "--json"])
    assert "shop@1.9, on" in click().description  # type: ignore[operator]
    parity |= {"apart": ["stock"], "says": "at shop@1.9, stock has other rows"}
    says = f"print({DIFFERS!r}); print({json.dumps(parity)!r}); import sys; sys.exit(1)"
    result, asked = launch(app, instance, monkeypatch, says, 3, by="1 d", despite_disk=True)
    assert (result.success, asked) == (True, ["parity", "shop", "--json", "--by", "1 d", "--despite-disk"]), "a finding is no failed run"
    assert {"diff", "rows that differ"} <= set(metadata(result))
    (told,) = result.get_asset_check_evaluations()
    for found in (told, click()):
        assert (found.passed, found.metadata["rows that differ"].value, found.severity) == (False, 3, dg.AssetCheckSeverity.ERROR)
        assert "3 rows aren't what its records make" in (found.description or "")
    result, _ = launch(app, instance, monkeypatch, "import sys; print('RewindRefused has a shadow', file=sys.stderr); sys.exit(1)", 3)
    assert not result.success


def test_each_app_has_its_four_jobs_in_its_pool(app: LoadedApp) -> None:
    definitions = build_definitions(load_apps(Settings.load(app.folder.parents[1])))
    for name in ("rewind__shop", "undo__shop", "promote__shop", "parity__shop"):
        assert definitions.resolve_job_def(name).nodes[0].definition.pools == {"act__shop"}


@pytest.mark.parametrize("act", ["rewind", "undo", "promote", "parity"])
def test_an_act_that_may_have_been_done_is_never_launched_again_by_dagster(app: LoadedApp, tmp_path: Path, act: str) -> None:
    """Two undos lead further back than one, and so do two rewinds by a number of records; whether it was done, a person sees."""
    overrides = {"run_retries": {"enabled": True, "max_retries": 3}}
    (job,) = (job for job in rewind_jobs.build_rewind_jobs(app, Settings.load(app.folder.parents[1])) if job.name == f"{act}__shop")
    with dg.instance_for_test(temp_dir=str(tmp_path), overrides=overrides) as instance:
        run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=dict(job.run_tags))  # as a launch gives it
        instance.report_run_failed(run, message="its process is gone")
        failed = instance.get_run_by_id(run.run_id)
        assert failed is not None
        assert not auto_reexecution_should_retry_run(instance, failed, None)


def test_a_plan_shows_what_is_published_again() -> None:
    out = io.StringIO()
    show.print_plan(Console(width=140, file=out), planned(emit=True))
    assert "→ low all that is made of moves from these offsets on is published again, as asked" in " ".join(out.getvalue().split())


def test_a_plan_is_shown_whole_with_what_stands_in_its_way() -> None:
    out = io.StringIO()
    found = facts(available={("moves", 0): 450, ("moves", 1): 0}, samples=[(100, 20)], grown=[(10, 100)], folded=70, free=50)
    plan = dataclasses.replace(planned(found, reason="a bad price"), checks=("stock/fresh",), assets=("daily",))
    show.print_plan(Console(width=140, file=out), plan)
    told = out.getvalue()
    for wanted in (
        "shop  rewind to commit 4: a bad price  shop@1.10  →  shop@2.4",
        "6 commits are left behind", "850 records", "50 gone, then Kafka",
        "as it was", "→ low", "nothing that was published is published again", "refused  moves/0", "--accept-loss moves/0",
        "all tables together", "about 8.6 KB: 8.5 KB of changelog, 70 B of tables; 50 B are free", "checks  fresh of stock",
        "made from them  daily", "refused  the disk of the warehouse is too small",
    ):  # fmt: skip
        assert wanted in " ".join(told.split()) or wanted in told, wanted


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["rewind", "shop"], "say where to, in one way"),
        (["rewind", "shop", "--to", "yesterday"], "write earliest, a time"),
        (["rewind", "shop", "--by", "soon"], "no duration"),
        (["rewind", "shop", "--plan", "nowhere.json"], "can't read the plan"),
        (["rewind", "shop", "--plan", "plan.json", "--to", "4"], "a plan says where to"),
        (["rewind", "shop", "--plan", "plan.json", "--emit"], "a plan says where to"),
        (["rewind", "shop", "--plan", "plan.json", "--reason", "why"], "a plan is carried out as it is"),
        (["rewind", "shop", "--plan", "plan.json", "--accept-loss", "sales"], "a plan is carried out as it is"),
        (["rewind", "shop", "--to", "earliest", "--until", "soon"], "--until 'soon': write earliest, a time"),
        (["rewind", "shop", "--plan", "plan.json", "--until", "4"], "a plan says where to"),
        (["rewind", "shop", "--abandon-shadow", "--until", "4"], "given up by --abandon-shadow alone"),
        (["rewind", "shop", "--shadow", "--emit"], "--emit is said where a shadow is begun"),
        (["rewind", "shop", "--abandon-shadow", "--emit"], "given up by --abandon-shadow alone"),
        (["rewind", "shop", "--abandon-shadow", "--to", "4"], "given up by --abandon-shadow alone"),
        (["rewind", "shop", "--abandon-shadow", "--table", "stock"], "given up by --abandon-shadow alone"),
        (
            ["rewind", "shop", "--abandon-shadow", "--table", "stock", "--days", "2026-01-01/2026-01-02"],
            "given up by --abandon-shadow alone",
        ),
        (["rewind", "shop", "--abandon-shadow", "--accept-loss", "sales"], "given up by --abandon-shadow alone"),
        (["promote", "shop"], "127.0.0.1:1"),
        (["parity", "shop"], "127.0.0.1:1"),
        (["parity", "shop", "--to", "soon"], "write earliest, a time"),
        (["rewind", "shop", "--to", "earliest"], "127.0.0.1:1"),
    ],
)
def test_what_can_t_be_is_said_before_spark_starts(
    app: LoadedApp, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from watertable.kafka.admin import Admin

    monkeypatch.setattr(Admin.__init__, "__defaults__", (1.0,))
    monkeypatch.setattr("watertable_platform.cli.terminal.err", Console(stderr=True, width=200))
    assert main(arguments) == 1
    assert told in capsys.readouterr().err
