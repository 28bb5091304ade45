"""Hold the documentation to the code: examples run, printed pages are current, every operator has its line, no link is dead."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import watertable
from watertable.dsl import streams, tables

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
CODE = re.compile(r"^# fmt: off\n(app = wt\.App\(\"retail\".*?)^# fmt: on$", re.M | re.S)


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_printed_pages_are_current(build: ModuleType) -> None:
    stale = [page.name for page, text in build.pages().items() if page.read_text(encoding="utf-8") != text]
    assert stale == [], "run: python docs/build.py --pages"


def test_every_operator_has_its_line() -> None:
    operators = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    shown = (
        streams.Stream,
        streams.Branches,
        streams.GroupedStream,
        streams.WindowedStream,
        streams.CogroupedStream,
        tables.Table,
        tables.GroupedTable,
    )
    names = {name for kind in shown for name, member in vars(kind).items() if inspect.isfunction(member) and not name.startswith("_")}
    assert {name for name in names if not re.search(rf"\b{name}\(", operators)} == set()


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "operators").glob("*.md")), ids=lambda p: p.stem)
def test_an_operators_page_has_a_picture_an_example_and_every_fact(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [fact for fact in ("Kafka Streams", "Purity", "Nulls", "Late", "Cost") if not re.search(rf"^\| {fact} \| \S", text, re.M)]
    missing += [what for what, begins in (("a picture", "```text\n"), ("an example", "```python\n>>> ")) if begins not in text]
    assert missing == []
    for listed in ("operators.md", "../mkdocs.yml"):
        assert f"operators/{page.name}" in (ROOT / "docs" / listed).read_text(encoding="utf-8")


def test_every_operator_is_named_at_the_head_of_a_page() -> None:
    heads = "".join(page.read_text(encoding="utf-8").partition("```text")[0] for page in (ROOT / "docs" / "operators").glob("*.md"))
    shown = (streams.Stream, streams.GroupedStream, streams.WindowedStream, streams.CogroupedStream, tables.Table, tables.GroupedTable)
    names = {name for kind in shown for name, member in vars(kind).items() if inspect.isfunction(member) and not name.startswith("_")}
    assert {name for name in names if not re.search(rf"\b{name}\b", heads)} == set()


@pytest.mark.parametrize("where", ["docs/index.md", "mkdocs.yml"])
def test_every_page_can_be_found(where: str) -> None:
    text = (ROOT / where).read_text(encoding="utf-8")
    assert [page.name for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "index.md" and page.name not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    local = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:", link) and not link.startswith("#")]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_examples_give_what_they_say(page: Path) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.testfile(str(page), module_relative=False, optionflags=flags).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_examples_are_shown_as_code(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert [line for line in prose.splitlines() if line.startswith(">>> ")] == [], "Markdown takes it for a quotation"


def test_the_reference_has_all_that_is_public() -> None:
    listed = set(re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "reference.md").read_text(encoding="utf-8"), re.M))
    found = {name: getattr(watertable, name) for name in watertable.__all__}
    homes = {name: (value.__module__, f"{value.__module__}.{value.__qualname__}") for name, value in found.items()}
    assert [name for name, both in homes.items() if listed.isdisjoint(both)] == []


def test_the_readme_shows_the_app_as_it_runs() -> None:
    found = CODE.search((ROOT / "assets" / "retail" / "app.py").read_text(encoding="utf-8"))
    assert found is not None
    assert found[1].strip() in (ROOT / "README.md").read_text(encoding="utf-8")
