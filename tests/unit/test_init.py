"""`watertable init`: what it makes runs, what is there stays as it is, and the template is what the wheel brings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from rich.console import Console

import watertable
from watertable.project import load_apps
from watertable.settings import Settings
from watertable_platform.cli.main import app as commands
from watertable_platform.cli.main import main
from watertable_platform.orchestration.assembly import build_definitions

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "platform" / "watertable_platform" / "template"
OF_THE_APP = {"assets/{}/app.py", "assets/{}/checks.py", "assets/{}/produce.py", "tests/test_{}.py"}
OF_THE_PROJECT = {".gitignore", "README.md", "pyproject.toml", "workspace.yaml"}


@pytest.fixture(autouse=True)
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("out", "err"):
        monkeypatch.setattr(f"watertable_platform.cli.terminal.{name}", Console(stderr=name == "err", width=200))


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and not {"__pycache__", ".pytest_cache"} & set(path.parts))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def of(app: str) -> set[str]:
    return {path.format(app) for path in OF_THE_APP}


def test_a_new_project_holds_its_own_test(tmp_path: Path) -> None:
    assert main(["init", "shop"]) == 0
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "WATERTABLE"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path / "shop", env=clean, capture_output=True, text=True, check=False)
    assert (done.returncode, "4 passed" in done.stdout) == (0, True), done.stdout


def test_a_new_project_is_a_graph_in_dagster_with_its_checks(tmp_path: Path) -> None:
    assert main(["init", "my-shop"]) == 0
    assert set(files(tmp_path / "my-shop")) == OF_THE_PROJECT | of("my_shop")
    project = load_apps(Settings.load(tmp_path / "my-shop"))
    assert (set(project.apps), project.broken) == ({"my_shop"}, {})
    graph = build_definitions(project).get_repository_def().asset_graph
    assert {"/".join(key.path) for key in graph.get_all_asset_keys()} == {
        "my_shop/items", "my_shop/hourly", "topics/my_shop_orders", "topics/my_shop_bestsellers",
    }  # fmt: skip
    assert {"item_unique", "sold_between", "revenue_not_null", "orders_between"} <= {check.name for check in graph.asset_check_keys}


def test_it_says_what_it_made_and_what_comes_next(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["init", "shop"]) == 0
    said = capsys.readouterr().out
    assert all(path in said for path in OF_THE_PROJECT | of("shop"))
    assert "cd shop" in said
    monkeypatch.setenv("WATERTABLE_PROJECT", "shop")
    assert main(["init", "--app", "stock"]) == 0
    assert not any(path in capsys.readouterr().out for path in OF_THE_PROJECT)


def test_what_a_project_is_told_to_run_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "shop"]) == 0
    told = capsys.readouterr().out + (tmp_path / "shop" / "README.md").read_text()
    known = {c.name or c.callback.__name__ for c in commands.registered_commands if c.callback} | {
        g.name for g in commands.registered_groups
    }
    assert set(re.findall(r"watertable ([a-z]+)(?: |$|`)", told, re.M)) - {"init"} <= known
    assert all((tmp_path / "shop" / path).is_file() for path in re.findall(r"python (\S+)", told))


@pytest.mark.parametrize("there", sorted(OF_THE_PROJECT | of("shop")))
def test_nothing_that_is_there_is_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str) -> None:
    file = tmp_path / "shop" / there
    file.parent.mkdir(parents=True)
    file.write_text("# mine\n")
    assert main(["init", "shop"]) == 2
    assert files(tmp_path / "shop") == {there: b"# mine\n"}
    said = capsys.readouterr().err
    assert f"there is already {there}. Choose another folder; or make this one a project" in said


def test_a_file_where_a_folder_has_to_be_is_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "assets").write_text("mine")
    assert main(["init", "shop"]) == 2
    assert "there is already assets" in capsys.readouterr().err
    assert set(files(tmp_path)) == {"shop/assets"}
    assert main(["init", "shop/assets"]) == 2


def test_an_app_joins_a_project_and_nothing_else_does(tmp_path: Path) -> None:
    assert main(["init", "shop"]) == 0
    before = files(tmp_path / "shop")
    assert main(["init", "shop", "--app", "stock"]) == 0
    after = files(tmp_path / "shop")
    assert set(after) - set(before) == of("stock")
    assert {path: after[path] for path in before} == before
    project = load_apps(Settings.load(tmp_path / "shop"))
    assert (set(project.apps), project.broken) == ({"shop", "stock"}, {})


def test_a_folder_of_ones_own_becomes_a_project_by_its_settings(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "pyproject.toml").write_text('[tool.watertable]\nassets = ["streams/apps"]\n')
    (tmp_path / "below").mkdir()
    os.chdir(tmp_path / "below")
    assert main(["init", "--app", "stock"]) == 0
    made = {path.replace("assets/", "streams/apps/") for path in of("stock")}
    assert set(files(tmp_path)) == {"README.md", "pyproject.toml", "workspace.yaml"} | made, "what Dagster loads was lacking"
    assert "`python streams/apps/stock/produce.py`" in (tmp_path / "streams/apps/stock/produce.py").read_text()
    assert set(load_apps(Settings.load(tmp_path)).apps) == {"stock"}


@pytest.mark.parametrize("name", ["2024", "topics", "a b", "a.b", "", "é"])
def test_a_name_that_no_app_may_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(watertable.errors.SchemaError) as refused:
        watertable.App(name)
    assert main(["init", "shop", "--app", name]) == 2
    assert capsys.readouterr().err.removeprefix("SchemaError ").strip() == str(refused.value).partition(": ")[2]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_name_no_app_may_have_asks_for_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "2024 tables"]) == 2
    assert "say how the app is called: --app NAME" in capsys.readouterr().err
    assert main(["init", "2024 tables", "--app", "_sales_"]) == 0
    assert set(load_apps(Settings.load(tmp_path / "2024 tables")).apps) == {"_sales_"}


@pytest.mark.parametrize(
    ("folder", "named"), [("shop", "shop"), ("2024 tables", "2024-tables"), ("_", "tables"), ("watertable", "watertable-tables")]
)
def test_a_project_has_a_name_that_packages_may_have(tmp_path: Path, folder: str, named: str) -> None:
    assert main(["init", folder, "--app", "sales"]) == 0
    assert tomllib.loads((tmp_path / folder / "pyproject.toml").read_text())["project"]["name"] == named


def test_two_apps_of_one_name_are_refused_before_either_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "shop"]) == 0
    (tmp_path / "shop" / "assets" / "shop").rename(tmp_path / "shop" / "assets" / "renamed")
    (tmp_path / "shop" / "more" / "stock").mkdir(parents=True)
    assert main(["init", "shop", "--app", "shop"]) == 2
    assert "there is an app 'shop' already, at shop/assets/renamed/app.py:" in capsys.readouterr().err
    settings = tmp_path / "shop" / "pyproject.toml"
    settings.write_text(settings.read_text().replace('["assets"]', '["assets", "more"]'))
    assert main(["init", "shop", "--app", "stock"]) == 2
    assert "more/stock already" in capsys.readouterr().err
    assert list((tmp_path / "shop" / "assets").iterdir()) == [tmp_path / "shop" / "assets" / "renamed"]


def test_a_project_within_a_project_is_refused_with_both_ways_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "shop"]) == 0
    assert main(["init", "shop/assets/stock"]) == 2
    assert (
        f"add an app to that by `watertable init {tmp_path}/shop --app NAME`, or make the new project elsewhere" in capsys.readouterr().err
    )
    assert main(["init", "shop"]) == 2
    assert "is a project: say which app to add to it" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run shop", "dev", "status"])
def test_who_is_in_no_project_is_told_how_to_make_one(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main(command.split()) == 2
    assert "or make one: watertable init FOLDER" in capsys.readouterr().err


def test_the_template_asks_for_this_release_and_loads_as_this_repository_does() -> None:
    needs = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (needs["dependencies"], needs["requires-python"]) == ([f"watertable>={watertable.__version__}"], ours["requires-python"].strip())
    loaded = [yaml.safe_load((folder / "workspace.yaml").read_text()) for folder in (TEMPLATE, ROOT)]
    assert loaded[0] == loaded[1]


def test_what_is_released_holds_the_template_and_all_that_code_reads(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([*build, "-t", "sdist"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as released:
        released.extractall(tmp_path / "from", filter="data")
    subprocess.run([*build, "-t", "wheel"], cwd=next((tmp_path / "from").iterdir()), check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        held = set(wheel.namelist())
    roots = [
        ROOT / room / package
        for room, package in (("streaming", "watertable"), ("quality", "watertable_quality"), ("platform", "watertable_platform"))
    ]
    ours = {
        path.relative_to(root.parent).as_posix()
        for root in roots
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert ours - held == set()
    assert {f"watertable_platform/template/{path}" for path in OF_THE_PROJECT | of("NAME")} <= held
