"""The wheel in a project of its own: what `watertable init` makes there is tested, produced to, run, read and loaded by Dagster.

The environment is new, and has nothing of this checkout: the wheel, built from the source distribution, and the packages that it needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from watertable.kafka import broker

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PATIENCE = 900


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the environment; give its folder of commands."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run([*build, "-t", "sdist"], cwd=ROOT, check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as released:
        released.extractall(folder / "from", filter="data")
    subprocess.run([*build, "-t", "wheel"], cwd=next((folder / "from").iterdir()), check=True)
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--python", str(python)]
    subprocess.run([*install, str(next(folder.glob("*.whl")))], check=True)
    # Of this environment's packages, all that are installed in it; what an editable install names in turn isn't.
    packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True
    )
    Path(packages.stdout.strip(), "needed.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent


@pytest.fixture(scope="module")
def environment(installed: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "WATERTABLE_", "DAGSTER"))}
    kept |= {name: os.environ[name] for name in ("WATERTABLE_CACHE",) if name in os.environ}
    return kept | {"PATH": f"{installed}{os.pathsep}{kept['PATH']}", "WATERTABLE_KAFKA": f"127.0.0.1:{broker.free_port()}"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("newcomer")
    said(folder, environment, "watertable", "init", "shop")
    yield folder / "shop"
    broker.stop(folder / "shop" / ".watertable" / "kafka")


def said(folder: Path, environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_environment_has_the_wheel_and_not_this_checkout(installed: Path, project: Path, environment: dict[str, str]) -> None:
    code = "import watertable as a, watertable_quality as b, watertable_platform as c; print(a.__file__, b.__file__, c.__file__)"
    assert all(file.startswith(str(installed.parent)) for file in said(project, environment, "python", "-c", code).split())


def test_the_project_passes_its_test_and_dagster_loads_it(project: Path, environment: dict[str, str]) -> None:
    assert "4 passed" in said(project, environment, "python", "-m", "pytest", "-q")
    said(project, environment, "python", "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml")


def test_what_is_produced_is_in_its_tables(project: Path, environment: dict[str, str]) -> None:
    said(project, environment, "watertable", "broker", "start")
    for round_ in (1, 2):
        said(project, environment, "python", "assets/shop/produce.py")
        said(project, environment, "watertable", "run", "shop", "--available-now")
        rows = json.loads(said(project, environment, "watertable", "query", "shop.items", "--json"))["rows"]
        assert {row["item"]: row["sold"] for row in rows} == {"tea": 11 * round_, "coffee": 4 * round_}
    assert len(json.loads(said(project, environment, "watertable", "quarantine", "shop", "--json"))["rows"]) == 2
    assert (project / ".watertable" / "warehouse" / "shop" / "items" / "_delta_log").is_dir()
