"""What a run does beside its batches, by a clock that the test moves."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest

from watertable.runtime import workers
from watertable.runtime.workers import Folding


def test_a_commit_waits_until_the_fold_that_took_it_up_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seen = [100.0], list[float]()

    class Store:
        def fold_all(self, *_: object, **__: object) -> dict[str, Any]:
            clock[0] += 20.0
            folding.waiting(known, {"stock": 1})  # a batch goes on beside the fold
            clock[0] += 5.0
            seen.append(folding.unfolded)
            return {}

    monkeypatch.setattr(workers.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(Folding, "_group", lambda *_: nullcontext())
    known = cast("Any", object())
    folding = Folding(cast("Any", Store()), 30.0, 1000, 600.0, lambda _: None, lambda: ())
    assert folding.unfolded == 0.0
    folding.waiting(known, {"stock": 1})
    clock[0] += 10.0
    folding.waiting(known, {"stock": 1})
    assert folding.unfolded == 10.0
    folding._fold(beside=True)
    assert seen == [35.0], "until it has ended, plain readers lack what it folds"
    assert folding.unfolded == 5.0
    folding._fold(beside=True)
    folding._fold(beside=True)
    assert folding.unfolded == 5.0, "each of these folds committed a batch beside it"


def test_what_is_asked_for_at_once_does_not_wait_for_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, folds = [100.0], list[float]()
    monkeypatch.setattr(workers.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(Folding, "_fold", lambda *_, beside: folds.append(clock[0]))
    folding = Folding(cast("Any", object()), 30.0, 1000, 600.0, lambda _: None, lambda: ())
    assert folding._patience() == 30.0
    clock[0] += 2.0
    folding._work()
    assert (folding._patience(), folds) == (28.0, [])
    folding.hurry()
    assert folding._patience() == 0.0
    folding._work()
    assert (folding._patience(), folds) == (30.0, [102.0]), "and the interval begins anew"
