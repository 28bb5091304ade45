"""What a development machine is told when code is saved: that Dagster has loaded it, or what is wrong with it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_graphql.test.utils import define_out_of_process_workspace, execute_dagster_graphql

from watertable.settings import Settings
from watertable_platform import development

ROOT = Path(__file__).resolve().parents[2]
APP = """
import watertable as wt
app = wt.App("{name}")
app.topic("lines", key="k STRING", value="n INT").stream().group_by_key().agg(n=wt.sum("n")).materialized_as("counts")
"""


def test_what_is_saved_is_said_to_be_loaded_only_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, torn, late = (tmp_path / "assets" / name for name in ("good/app.py", "torn/app.py", "late/report.py"))
    for file in (good, torn, late):
        file.parent.mkdir(parents=True)
    good.write_text(APP.format(name="good"))
    monkeypatch.setenv("WATERTABLE_PROJECT", str(tmp_path))
    with (
        dg.instance_for_test(temp_dir=str(tmp_path)) as instance,
        define_out_of_process_workspace(str(ROOT / "workspace.yaml"), None, instance) as dagster,
    ):

        def ask(port: int, query: str) -> Any:
            assert port == 1
            return execute_dagster_graphql(dagster.create_request_context(), query).data

        monkeypatch.setattr(development, "_ask", ask)
        assert development._told(ask(1, development._LOADED)["workspaceOrError"]) == "loaded"
        torn.write_text(APP.format(name="torn").replace('"n"', '"m"'))
        late.write_text("import dagster as dg\n@dg.asset(required_resource_keys={'nowhere'})\ndef report() -> None: ...\n")
        said, *broken = development._reload(1).split("; broken: ")
        assert said == "loaded"
        assert ["torn/app.py:4" in b or "nowhere" in b for b in broken] == [True, True]
        (tmp_path / "pyproject.toml").write_text('[tool.watertable]\nassets = ["nowhere"]\n')
        assert "there is no folder" in development._reload(1).partition("not loaded: ")[2]


def test_a_saved_file_is_told_wherever_the_assets_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dagster:
        returncode = 0

        def poll(self) -> int | None:
            return None if len(said) < 2 else 0

    class Watch(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            (tmp_path / "elsewhere" / "assets" / f"file{len(said)}.py").write_text("")
            (tmp_path / "project" / "mine" / f"file{len(said)}.py").write_text("")
            return False

    said: list[str] = []
    for folder in ("elsewhere/assets", "project/mine"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(development.subprocess, "Popen", lambda *_, **__: Dagster())
    monkeypatch.setattr(development, "_end", lambda _: None)
    monkeypatch.setattr(development, "_reload", lambda _: "loaded")
    settings = Settings.load(tmp_path / "project", assets=["mine", str(tmp_path / "elsewhere" / "assets")])
    assert development._dagster(settings, tmp_path / "workspace.yaml", 1, Watch(), said.append) == 0
    assert said[0] == f"↻ {tmp_path}/elsewhere/assets/file0.py, mine/file0.py: loaded"


def test_dagster_begins_with_settings_of_ours_in_any_project_and_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setattr(development.subprocess, "Popen", lambda *_, **__: None)
    monkeypatch.setattr(development, "_end", lambda _: None)
    (tmp_path / "assets").mkdir()
    stop = threading.Event()
    stop.set()
    settings = Settings.load(tmp_path)
    for held in (development.INSTANCE.read_text(), "telemetry: {enabled: false}"):
        development._dagster(settings, tmp_path / "workspace.yaml", 1, stop, print)
        instance = tmp_path / ".watertable" / "dagster" / "dagster.yaml"
        assert instance.read_text() == held
        instance.write_text("telemetry: {enabled: false}")
