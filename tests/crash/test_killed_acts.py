"""Acts that are killed leave the old state or the new, never a mix; asked for again they say which; and the campaign would notice a mix.

Every act at every point of its own, in every way, and at points of its replay: all of it runs with `make test-all`. Deaths at these points
within one process are among the tests of every change (tests/spark).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.acts import ActChain, Deed
from tests.crash.campaign import WAYS
from watertable.failpoints import POINTS
from watertable.kafka.config import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
REPLAYED = ("store.commit.before_write", "store.commit.after_write", "fold.before_merge", "fold.after_merge", "publish.after_produce")
BESIDE = ("store.fence.after_write", "job.batch.compiled", "store.commit.before_write", "store.commit.after_commit")
PROMOTED = ("rewind.promote.before_hold", "rewind.promote.after_hold", "rewind.promote.before_commit", "rewind.promote.after_commit")
JOINED = (*PROMOTED[:3], "rewind.join.before_write", "rewind.join.after_write", PROMOTED[3])
ROW = ("rewind.before_commit", "rewind.after_commit")


def deeds(how: str) -> list[Deed]:
    """List all cells of one way: each act at each of its points, by itself and beside the app; and at points of what it replays."""
    return [
        *(Deed("rewind", point, how, to) for to in ("earliest", "middle") for point in ROW),
        *(Deed("rewind", point, how, nth=1 + (point == "fold.after_merge")) for point in REPLAYED),
        *(Deed("undo", point, how) for point in ROW),
        *(Deed("shadow", point, how) for point in (*ROW, *BESIDE)),
        *(Deed("abandon", point, how) for point in ("rewind.abandon.before_commit", "rewind.abandon.after_commit")),
        *(Deed("promote", point, how) for point in (*PROMOTED, *BESIDE)),
        *(Deed("rewind", point, how, "middle", beside=True) for point in ROW),
        *(Deed("promote", point, how, beside=True) for point in PROMOTED),
        *(Deed(act, point, how, delay=0.2) for act, point in (("rewind", ROW[0]), ("undo", ROW[0]), ("promote", PROMOTED[2]))),
        # last of all, since behind a join the app's commits are of two codes, and a rewind to the middle is refused
        *(Deed("join", point, how) for point in (*JOINED, *BESIDE)),
        *(Deed("join", point, how, beside=True) for point in JOINED),
    ]


@pytest.mark.slow
def test_a_promote_that_is_killed_before_its_row_has_changed_nothing_and_is_done_when_it_is_asked_for_again(
    broker: Cluster, tmp_path: Path
) -> None:
    chain = ActChain(broker, tmp_path, "_acts_smoke", seed=5)
    assert chain.deed(Deed("promote", "rewind.promote.before_commit", "kill-both")).differences == []
    assert chain.finish().differences == []


def test_every_point_of_these_acts_is_in_the_grid() -> None:
    own = {p for p in POINTS if p.startswith("rewind.")}
    assert own == {d.point for d in deeds("kill-both") if d.point.startswith("rewind.")}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_an_act_that_is_killed_leaves_the_old_state_or_the_new_and_says_which(
    broker: Cluster, tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """CRASH_DEEDS="join,promote beside" narrows the grid to deeds in whose names one of these is."""
    wanted = os.environ.get("CRASH_DEEDS", "").split(",")
    chain = ActChain(broker, tmp_path, f"_acts_{way.replace('-', '_')}", seed=2)
    wrong = []
    for deed in (deed for deed in deeds(way) if any(words in str(deed) for words in wanted)):
        verdict = chain.deed(deed)
        wrong += [f"{deed}: {difference}" for difference in verdict.differences]
        with capsys.disabled():
            print(f"\n{'fail' if verdict.differences else 'pass'}  {chain.told.get(deed, deed)}  {'; '.join(verdict.differences)[:900]}")
    assert [*wrong, *chain.finish().differences] == []


@pytest.mark.slow
def test_the_campaign_catches_an_app_that_is_mixed_while_its_tables_are_restored_one_by_one(broker: Cluster, tmp_path: Path) -> None:
    chain = ActChain(broker, tmp_path, "_bug_mixed", seed=1, bug="mixed app")
    found = chain.deed(Deed("rewind", "fold.after_merge", "kill-both")).differences
    wrong = {difference.split()[2] for difference in found if difference.startswith("wt.read of")}
    assert wrong, found
    assert wrong < {"entries", "inventory", "items", "windows"}, "some tables were restored, others not"


@pytest.mark.slow
def test_the_campaign_catches_a_promote_behind_the_live_position(broker: Cluster, tmp_path: Path) -> None:
    chain = ActChain(broker, tmp_path, "_bug_behind", seed=1, bug="promote behind")
    found = chain.deed(Deed("promote", "rewind.promote.after_commit", "kill-python")).differences
    assert any("offsets of the promote" in difference for difference in found), found
