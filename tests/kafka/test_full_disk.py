"""Fill the disk of a warehouse for real: what needs room is refused before it begins, or stops whole, and goes on when there is some."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kafka.test_job import World
from watertable.acts import rewind
from watertable.acts.plans import RewindPlan
from watertable.acts.rewind import Target
from watertable.errors import JobError, RewindRefused
from watertable.kafka.config import Cluster
from watertable.runtime.events import Failed
from watertable.store.writer import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
SIZE = 24 * 2**20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a folder that is a disk of its own, of a few megabytes; only who may mount one can."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"a disk can't be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def filled(disk: Path, but: int) -> Path:
    """Fill a disk, but for so many bytes; give the file that does."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        try:
            while True:
                file.write(bytes(2**16))
                file.flush()
        except OSError:
            pass
    with ballast.open("rb+") as file:
        file.truncate(max(0, ballast.stat().st_size - but))
    return ballast


@pytest.mark.slow
def test_what_finds_no_room_is_refused_or_stops_whole_and_goes_on_when_there_is_some(
    spark: SparkSession, broker: Cluster, small_disk: Path
) -> None:
    world = World(spark, broker, small_disk)
    topology = world.topology()
    store = Store(spark, world.settings.warehouse_uri, topology.app, topology.kept)

    def planned(**options: bool) -> RewindPlan:
        return rewind.plan(store, topology, world.admin, Target("earliest"), **options)

    for moves in ([("a", 5)], [("b", -1), ("a", -7), ("c", 3)] * 100):
        world.produce(*moves)
        world.run()
    stock, disk = world.stock(), planned().disk
    assert disk.needed is not None
    assert disk.free is not None
    assert 1_000 < disk.needed < disk.free < SIZE

    ballast = filled(small_disk, but=disk.needed // 2)
    (refusal,) = planned().refusals
    assert "too small for it" in refusal
    with pytest.raises(RewindRefused, match="--despite-disk"):
        rewind.apply(store, planned(), topology.fingerprint, world.admin)
    assert planned(despite_disk=True).refusals == ()

    ballast.unlink()
    ballast = filled(small_disk, but=0)
    world.produce(("a", 1))
    with pytest.raises(JobError, match="storage failed"):
        world.run()
    assert isinstance(world.events[-1], Failed)
    assert world.stock() == stock, "what is committed can be read from a disk that is full"

    ballast.unlink()
    world.run()
    assert world.stock() == stock | {"a": (stock["a"][0] + 1, stock["a"][1] + 1)}
    rewind.apply(store, planned(), topology.fingerprint, world.admin)
    world.run()
    assert world.stock() == stock | {"a": (stock["a"][0] + 1, stock["a"][1] + 1)}
