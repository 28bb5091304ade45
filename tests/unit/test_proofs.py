"""Hold the list of proofs to what the harnesses say."""

from __future__ import annotations

import pytest

from tests import proofs
from tests.apps import retail


def test_a_plan_is_noted_for_each_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "said", set())
    proofs.note("crash", retail().topology())
    assert {part for part, *_ in proofs.said} > {"Aggregate", "TimeWindows", "count_distinct", "MergeStreams"}
    page = proofs.page(proofs.said)
    assert "| `TimeWindows` | 0 | 0 | 1 | 0 |" in page
    assert "- crash: a plan is noted for each of its parts (`tests/unit/test_proofs.py`)" in page
