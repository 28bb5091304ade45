"""The crash campaign: an app killed at every named point loses, repeats and reorders nothing, and the campaign would notice if it did.

A smoke part runs with every change; the whole grid, the zombies of real processes and the planted bugs with `make test-all`. The grid is
printed with what passed, failed, and did not run. Zero failures in n kills bound the rate of failures below about 3/n, no more.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.crash.campaign import WAYS, Cell, Chain, Result, grid
from tests.crash.ledger import topology
from watertable.failpoints import POINTS
from watertable.kafka.config import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
SEEDS = (0, 1)
SMOKE = (
    Cell("store.commit.after_write", "kill-both", 0),
    Cell("fold.after_merge", "kill-python", 0),
    Cell("publish.after_produce", "kill-jvm", 0),
)


def _campaign(chain: Chain, cells: list[Cell], out: pytest.CaptureFixture[str]) -> list[Result]:
    results = []
    for cell in cells:
        results.append(chain.run(cell))
        with out.disabled():
            last = results[-1]
            told = f"{last.uncommitted} uncommitted, {last.seconds:.0f} s {last.why[:300]}"
            print(f"\n{last.state:8}{cell.point} {cell.how} seed {cell.seed}  {told}")
    return results


def _hold(results: list[Result], differences: list[str], out: pytest.CaptureFixture[str]) -> None:
    with out.disabled():
        print("\n" + grid(results))
    assert not differences
    assert [r for r in results if r.state != "pass"] == []


def test_an_app_that_is_killed_loses_repeats_and_reorders_nothing(
    broker: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = Chain(broker, tmp_path, "_smoke", seed=7)
    results = _campaign(chain, list(SMOKE), capsys)
    _hold(results, chain.finish().differences, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", WAYS)
def test_an_app_killed_at_every_point_loses_repeats_and_reorders_nothing(
    broker: Cluster, tmp_path: Path, way: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """CRASH_POINTS=fold,publish narrows the grid to points that begin so."""
    wanted = tuple(os.environ.get("CRASH_POINTS", "").split(","))
    cells = [Cell(point, way, seed) for point in POINTS if point.startswith(wanted) and not point.startswith("rewind.")]
    chain = Chain(broker, tmp_path, f"_{way.replace('-', '_')}_{seed}", seed)
    results = _campaign(chain, cells, capsys)
    _hold(results, chain.finish().differences, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_an_app_killed_while_its_last_windows_are_written_anew_loses_and_repeats_nothing(
    broker: Cluster, tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    windows = [table.name for table in topology("").tables].index("windows") + 1
    cells = [Cell("fold.after_confirm", way, 1)]  # whose first folds make the tables
    cells += [Cell(point, way, seed, windows) for seed in SEEDS for point in ("fold.before_merge", "fold.after_merge")]
    chain = Chain(broker, tmp_path, f"_windows_{way.replace('-', '_')}", seed=1, windows_anew=True)
    results = _campaign(chain, cells, capsys)
    _hold(results, chain.finish().differences, capsys)
    told = [(c["operation"], c.get("operationParameters", {})) for c in DeltaTable(str(chain.lake.folder / "windows")).history()]
    by = {operation for operation, how in told if "window_start" in how.get("predicate", "")}
    assert by == {"WRITE"}, "the last windows were written anew, and not merged"


@pytest.mark.slow
@pytest.mark.parametrize("point", ["store.commit.before_write", "store.commit.after_write", "fold.before_merge", "publish.after_produce"])
def test_a_run_that_was_paused_while_another_took_over_ends_as_fenced_and_changes_nothing(
    broker: Cluster, tmp_path: Path, point: str
) -> None:
    chain = Chain(broker, tmp_path, f"_zombie_{point.replace('.', '_')}", seed=3)
    assert chain.zombie(point).differences == []
    assert chain.finish().differences == []


@pytest.mark.slow
def test_the_campaign_catches_an_offset_that_is_off_by_one(broker: Cluster, tmp_path: Path) -> None:
    chain = Chain(broker, tmp_path, "_bug_offset", seed=1, bug="offset off by one")
    chain.run(Cell("store.commit.after_commit", "kill-both", 0))
    assert any("table entries" in difference for difference in chain.finish().differences)


@pytest.mark.slow
def test_the_campaign_catches_a_fold_that_is_not_idempotent(broker: Cluster, tmp_path: Path) -> None:
    chain = Chain(broker, tmp_path, "_bug_fold", seed=1, bug="fold not idempotent")
    second = Cell("fold.after_merge", "kill-python", 13)  # the first table's rows are latest values, which may be merged twice
    assert second.aim() == (2, 0.011)
    found = chain.run(second).why
    assert any("base of" in difference for difference in [found, *chain.finish().differences])


@pytest.mark.slow
def test_the_campaign_catches_a_zombie_that_commits(broker: Cluster, tmp_path: Path) -> None:
    chain = Chain(broker, tmp_path, "_bug_zombie", seed=1, bug="zombie commit")
    assert any(
        "commit after" in difference or "table" in difference for difference in chain.zombie("store.commit.before_write").differences
    )
