"""Hold the list of proofs to what the harnesses say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests import proofs
from tests.apps import retail

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "proofs.md"


def test_a_plan_is_noted_for_each_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "said", set())
    proofs.note("crash", retail().topology())
    assert {part for part, *_ in proofs.said} > {"Aggregate", "TimeWindows", "count_distinct", "MergeStreams"}
    page = proofs.page(proofs.said)
    assert "| `TimeWindows` |  |  | 1 |  |" in page
    assert "1. a plan is noted for each of its parts (`tests/unit/test_proofs.py`)" in page


def test_every_operator_window_and_aggregate_has_a_test_for_every_law() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d, |]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert set(rows) == proofs.EVERY, "`make proofs` prints the page anew"
    cells = {part: [cell for cell in row.split(" | ") if cell.strip()] for part, row in rows.items()}
    assert [part for part, found in cells.items() if len(found) != len(proofs.LAWS)] == []


def test_the_tests_on_the_page_exist() -> None:
    named = set(re.findall(r"^\d+\. (.+) \(`([\w/]+\.py)`\)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert named
    gone = [name for name, file in named if f"def test_{name.replace(' ', '_')}(" not in (ROOT / file).read_text(encoding="utf-8")]
    assert gone == [], "`make proofs` prints the page anew"
