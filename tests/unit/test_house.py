"""The laws of the house: who may import whom, and what an import may cost. This file is the architecture page.

Imports go one way: assets → watertable_quality → watertable, watertable_platform → both. Nobody imports assets or, but for the assets
themselves, watertable_platform. Each heavy dependency has its rooms; everything else can be read, tested and imported without it.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"watertable": ROOT / "streaming", "watertable_quality": ROOT / "quality", "watertable_platform": ROOT / "platform"}
TEMPLATE = ROOT / "platform" / "watertable_platform" / "template"
"""The project that `watertable init` copies: users' code, as assets are, and free to import what they may."""

MAY_IMPORT = {
    "watertable": {"watertable"},
    "watertable_quality": {"watertable", "watertable_quality"},
    "watertable_platform": {"watertable", "watertable_quality", "watertable_platform"},
}
# What names Spark runs inside a session: the compiler, the store, what acts on it and looks into it, and what starts and runs them.
SPARK_ROOMS = {
    f"watertable.{name}"
    for name in ("compiler", "store", "acts", "tools.bisect", "tools.preview", "runtime.loop", "lake", "session", "kafka.source")
}
# Of these rooms, what is text or arithmetic: it can be read and tested as such.
NO_SPARK = {"watertable.compiler.layout", "watertable.compiler.versions", "watertable.acts.estimates"}
ROOMS = {
    "pyspark": SPARK_ROOMS,
    "delta": SPARK_ROOMS,
    "py4j": SPARK_ROOMS,
    "confluent_kafka": {"watertable.kafka"},
    "dagster": {"watertable_platform.orchestration", "watertable_platform.definitions"},
    "dagster_pyspark": {"watertable_platform.orchestration"},
    "great_expectations": {"watertable_quality"},
    "starlette": {"watertable_platform.serving"},
    "uvicorn": {"watertable_platform.serving"},
}
NEVER = {"assets", "tests", "benchmarks"}
# Packages with rooms, from the ground up: what a room imports, even for a type, is in it or on a floor below.
FLOORS: dict[str, tuple[set[str], ...]] = {
    "watertable": (
        {"errors", "where", "processing"},
        {"schema", "settings", "failpoints"},
        {"sql", "jars"},
        {"plan", "session"},
        {"dsl", "records"},
        {"kafka", "compiler"},
        {"interpreter", "store", "project"},
        {"acts", "testing", "lake"},
        {"runtime", "tools"},
        {"classes"},
    ),
    "watertable_platform": (
        {"orchestration", "development", "answers", "stopping"},
        {"serving"},
        {"cli", "demo", "definitions"},
        {"__main__"},
    ),
}


def modules() -> Iterator[tuple[str, Path]]:
    for package, root in PACKAGES.items():
        for path in sorted(set((root / package).rglob("*.py")) - set(TEMPLATE.rglob("*.py"))):
            yield ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), path


def parsed(path: Path) -> ast.Module:
    """Parse a file, while nothing is collected: Python 3.11 counts wrong where the end of another test's object runs in between."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


def imports(path: Path, *, run_only: bool = False) -> Iterator[tuple[str, int]]:
    """List what a file imports, with the line; `run_only` leaves out what only a type checker sees."""
    tree = parsed(path)
    typed = [n for n in ast.walk(tree) if isinstance(n, ast.If) and isinstance(n.test, ast.Name) and n.test.id == "TYPE_CHECKING"]
    unseen = {id(inner) for block in typed for part in block.body for inner in ast.walk(part)} if run_only else set()
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module, node.lineno
            case ast.ImportFrom():
                yield ".", node.lineno


def in_room(module: str, rooms: set[str]) -> bool:
    return any(module == room or module.startswith(room + ".") for room in rooms)


def room_of(module: str) -> str:
    """Name the room that a module is in: a folder, or itself."""
    return ".".join(module.split(".")[:2])


def broken_laws(module: str, path: Path) -> list[str]:
    own = module.partition(".")[0]
    broken = []
    running = set(imports(path, run_only=True))
    for imported, line in imports(path):
        top = imported.partition(".")[0]
        where = f"{path.name}:{line}: {module}"
        if imported == ".":
            broken.append(f"{where} imports relatively; write the whole name")
        elif top in PACKAGES and top not in MAY_IMPORT[own]:
            broken.append(f"{where} may not import {imported}")
        elif top in NEVER:
            broken.append(f"{where} may not import {imported}: nobody imports {top}")
        elif top in ROOMS and ROOMS[top] is SPARK_ROOMS and (imported, line) in running and in_room(module, NO_SPARK):
            broken.append(f"{where} may not import {imported}: it does without Spark")
        elif top in ROOMS and (imported, line) in running and not in_room(module, ROOMS[top]):
            broken.append(f"{where} may not import {imported}; only {', '.join(sorted(ROOMS[top]))} may")
    return broken


@pytest.mark.parametrize(("module", "path"), [pytest.param(*found, id=found[0]) for found in modules()])
def test_imports_go_one_way_and_stay_in_their_rooms(module: str, path: Path) -> None:
    assert broken_laws(module, path) == []


def test_the_laws_catch_what_they_forbid(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    forbidden = (
        "import pyspark.sql",
        "from confluent_kafka import Producer",
        "from watertable_platform import cli",
        "import assets.retail",
        "from . import x",
    )
    bad.write_text("\n".join(forbidden))
    assert len(broken_laws("watertable.plan.nodes", bad)) == 5
    bad.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pyspark.sql import DataFrame\n    import watertable_platform.demo\n"
    )
    assert len(broken_laws("watertable.plan.nodes", bad)) == 1  # a type may name Spark, but no type of the platform
    bad.write_text("\n".join(forbidden))
    assert len(broken_laws("watertable.kafka.source", bad)) == 3
    assert len(broken_laws("watertable.compiler.segments", bad)) == 4
    assert len(broken_laws("watertable.compiler.layout", bad)) == 5, "a room of Spark's has parts that do without"


@pytest.mark.parametrize("package", FLOORS)
def test_each_room_stands_on_the_floors_below(package: str) -> None:
    floor = {f"{package}.{room}": number for number, rooms in enumerate(FLOORS[package]) for room in rooms}
    inside = [(room_of(module), name, f"{path.name}:{line}") for module, path in modules() for name, line in imports(path)]
    seen = [(room, room_of(name), where) for room, name, where in inside if room in floor and name.startswith(f"{package}.")]
    assert {room_of(module) for module, _ in modules() if module.startswith(f"{package}.")} == set(floor), "every room has its floor"
    assert [f"{where}: {room} imports {other}" for room, other, where in seen if room != other and floor[other] >= floor[room]] == []


def test_the_language_of_expressions_knows_no_plan() -> None:
    known = {"watertable.sql", "watertable.schema", "watertable.errors", "watertable.where"}
    inside = [(module, path) for module, path in modules() if in_room(module, {"watertable.sql"})]
    ours = {(module, name) for module, path in inside for name, _ in imports(path) if name.partition(".")[0] == "watertable"}
    assert len(inside) > 10
    assert {(module, name) for module, name in ours if not in_room(name, known)} == set()


def test_great_expectations_lives_in_one_file() -> None:
    users = [module for module, path in modules() if any(name.partition(".")[0] == "great_expectations" for name, _ in imports(path))]
    assert len(users) <= 1


def test_framework_code_never_names_the_demo() -> None:
    named = re.compile(r"assets[./]retail")
    found = []
    for module, path in modules():
        tree = parsed(path)
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings may give it as an example
        texts = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in prose]
        found += [f"{module}:{text.lineno}" for text in texts if named.search(str(text.value))]
    assert found == []


def test_modules_stay_readable() -> None:
    long = {module: lines for module, path in modules() if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 700}
    assert long == {}


def test_modules_open_with_what_they_are() -> None:
    assert [module for module, path in modules() if not ast.get_docstring(parsed(path))] == []


def run(code: str, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=clean, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("folder", [ROOT, ROOT / "tests", ROOT / "assets"], ids=lambda path: path.name)
def test_platform_is_the_standard_librarys(folder: Path) -> None:
    if not folder.is_dir():
        pytest.skip(f"no {folder.name}")
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert run("import platform; print(platform.python_version())", folder) == ".".join(map(str, sys.version_info[:3]))


def test_importing_watertable_starts_no_jvm_and_loads_nothing_heavy() -> None:
    loaded = set(run("import sys, watertable; print(*sorted({m.partition('.')[0] for m in sys.modules}))", ROOT).split())
    assert "watertable" in loaded
    assert not loaded & {*ROOMS, *PACKAGES, "pandas", "pyarrow", "deltalake", "pydantic"} - {"watertable"}


def test_importing_watertable_takes_under_a_second() -> None:
    # the processor's time, not the clock's: what else runs on the machine is no property of the import
    code = "import time; t = time.process_time(); import watertable; print(time.process_time() - t)"
    assert min(float(run(code, ROOT)) for _ in range(3)) < 1.0


def test_public_names_are_those_exported() -> None:
    import watertable

    assert sorted(watertable.__all__) == sorted(set(watertable.__all__))
    assert [name for name in watertable.__all__ if not hasattr(watertable, name)] == []


def test_no_module_takes_the_place_of_a_public_name() -> None:
    """Importing a submodule sets it on the package: a public function of its name would be gone from then on."""
    import watertable

    modules_of = {path.stem for path in (ROOT / "streaming" / "watertable").iterdir()}
    assert {name for name in watertable.__all__ if name in modules_of} == set()
