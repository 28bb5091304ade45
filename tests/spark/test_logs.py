"""What is seen of a Delta log: its newest version whoever made it, at a cost that doesn't grow with the number of commits."""

from __future__ import annotations

import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.ledger import repeat_writes
from watertable.errors import Fenced
from watertable.store import deltalog
from watertable.store.deltalog import JVM_ERRORS, DeltaLog

pytestmark = pytest.mark.spark


def another(spark: SparkSession, log: DeltaLog) -> DeltaLog:
    """Open a log as another process does, that knows nothing of what this one has seen."""
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    other = DeltaLog(spark, log.path)
    assert other.java != log.java
    return other


def made(spark: SparkSession, path: Path, **properties: str) -> DeltaLog:
    log = DeltaLog(spark, str(path))
    log.create(["n INT"], {f"delta.{name}": value for name, value in properties.items()})
    return log


def row(spark: SparkSession, n: int) -> DataFrame:
    return spark.sql(f"SELECT {n} AS n")


def numbers(log: DeltaLog) -> tuple[int, list[int]]:
    """Give the newest version, and what is in it."""
    newest = log.latest()
    assert newest is not None
    return newest.version, sorted(row.n for row in newest.frame().collect())


def files(log: DeltaLog) -> list[str]:
    return sorted(path.name for path in Path(log.path, "_delta_log").iterdir())


def make_unlistable(log: DeltaLog) -> None:
    """Put a commit far ahead of the others into a log: whoever lists it finds that there are some missing."""
    Path(log.path, "_delta_log", f"{90:020}.json").write_text("{}")
    none = log.option.empty()
    with pytest.raises(JVM_ERRORS):
        log.java.update(False, none, none)


def test_a_log_that_is_cleaned_up_behind_a_checkpoint_of_somebody_elses_is_read_from_there(spark: SparkSession, tmp_path: Path) -> None:
    log = made(spark, tmp_path / "t", checkpointInterval="100")
    for n in range(3):
        log.append(row(spark, n))
    *old, _ = sorted(Path(log.path, "_delta_log").glob("*.json"))
    then = time.time() - timedelta(days=40).total_seconds()
    for file in old:
        os.utime(file, (then, then))
    slow = another(spark, log)
    assert slow.exists(), "it has seen the log, and read nothing of it yet"
    deltalake.DeltaTable(log.path).create_checkpoint()
    for file in old:
        file.unlink()
    assert numbers(slow) == (3, [0, 1, 2])
    log.append(row(spark, 3))
    assert numbers(slow) == (4, [0, 1, 2, 3])


def test_looks_and_appends_list_no_folder(spark: SparkSession, tmp_path: Path) -> None:
    log = made(spark, tmp_path / "t")
    log.append(row(spark, 1))
    make_unlistable(log)
    for n in (2, 3):
        log.append(row(spark, n))
        assert numbers(log) == (n, list(range(1, n + 1)))


def test_who_is_told_that_a_commit_failed_has_none_in_the_log(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = made(spark, tmp_path / "t")
    repeat_writes(monkeypatch)
    assert log.append(row(spark, 1), line="ours", number=1, since=0).version == 1
    late = log.draft(line="ours", number=3, since=1)
    late.write(row(spark, 3))
    log.append(row(spark, 2), line="ours", number=2, since=1)
    with pytest.raises(Fenced):
        late.commit()
    assert numbers(log) == (2, [1, 2])


def test_what_others_commit_is_seen_at_the_next_look_without_a_listing(spark: SparkSession, tmp_path: Path) -> None:
    ours = made(spark, tmp_path / "t")
    ours.append(row(spark, 1))
    theirs = another(spark, ours)
    make_unlistable(theirs)
    theirs.append(row(spark, 2))
    assert numbers(ours) == (2, [1, 2])
    for n in (3, 4, 5):
        theirs.append(row(spark, n))
    assert numbers(ours) == (5, [1, 2, 3, 4, 5])
    ours.append(row(spark, 6))
    assert numbers(theirs) == (6, [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("others", [3, 9, pytest.param(deltalog._FOLLOWED + 3, marks=pytest.mark.slow)])
def test_versions_are_followed_past_checkpoints(spark: SparkSession, tmp_path: Path, others: int) -> None:
    ours = made(spark, tmp_path / "t", checkpointInterval="5")
    theirs = another(spark, ours)
    for n in range(1, others + 1):
        theirs.append(row(spark, n))
    assert numbers(ours) == (others, list(range(1, others + 1)))
    begins = ours.java.unsafeVolatileSnapshot().logSegment().checkpointProvider().version()
    assert begins == (others // 5 * 5 or -1)  # else what has to be read of the log would grow
    ours.append(row(spark, others + 1))
    assert numbers(theirs) == (others + 1, list(range(1, others + 2)))


def test_a_table_that_is_made_anew_at_a_path_is_seen_as_the_new_one(spark: SparkSession, tmp_path: Path) -> None:
    log = made(spark, tmp_path / "t")
    log.append(row(spark, 1))
    before = log.latest()
    (tmp_path / "t").rename(tmp_path / "gone")
    assert before is not None
    new = made(spark, tmp_path / "new")
    new.append(row(spark, 2))
    (tmp_path / "new").rename(tmp_path / "t")
    assert numbers(DeltaLog(spark, log.path)) == (1, [2])
    now = another(spark, log).latest()
    assert now is not None
    assert now.table != before.table


def test_an_old_version_is_looked_for_once_a_while_and_not_in_a_table_made_anew(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = made(spark, tmp_path / "t")
    for n in (1, 2, 3):
        log.append(row(spark, n))
    first = log.at(1)
    assert first is not None
    assert log.at(1) is first
    assert sorted(r.n for r in first.frame().collect()) == [1]
    (tmp_path / "t").rename(tmp_path / "gone")
    new = made(spark, tmp_path / "t")
    for n in (4, 5):
        new.append(row(spark, n))
    found = another(spark, log).at(1)
    assert found is not None
    assert sorted(r.n for r in found.frame().collect()) == [4]
    monkeypatch.setattr(deltalog, "_GOOD_FOR", 0.0)
    assert another(spark, log).at(1) is not found


def test_a_log_is_as_short_as_its_retention_says_to_the_hour(spark: SparkSession, tmp_path: Path) -> None:
    log = made(spark, tmp_path / "t", checkpointInterval="5", logRetentionDuration="interval 30 days")
    for n in range(1, 13):
        log.append(row(spark, n))
    log.clean(timedelta(hours=2))
    assert f"{0:020}.json" in files(log)
    ago = time.time() - 4 * 3600
    for name in files(log):
        if not name.startswith((".", "_")) and int(name[:20]) < 8:
            os.utime(Path(log.path, "_delta_log", name), (ago + int(name[:20]),) * 2)  # of two at one time, Delta keeps both
    log.clean(timedelta(hours=2))
    assert [name for name in files(log) if name.endswith(".json")] == [f"{n:020}.json" for n in range(5, 13)]
    assert numbers(log) == (12, list(range(1, 13)))
    assert numbers(another(spark, log)) == (12, list(range(1, 13)))
    log.append(row(spark, 13))
    assert numbers(log) == (13, list(range(1, 14)))


def test_of_a_log_in_whose_place_an_older_copy_was_put_nothing_is_remembered(spark: SparkSession, tmp_path: Path) -> None:
    log = made(spark, tmp_path / "t")
    log.append(row(spark, 1))
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    log.append(row(spark, 2))
    log.latest()
    first, before = log.commit(1), log.commit(2)
    assert log.commit(2) is before, "what is written in a commit never changes"
    shutil.rmtree(tmp_path / "t")
    shutil.copytree(tmp_path / "copy", tmp_path / "t")
    another(spark, log).append(row(spark, 3))
    assert numbers(log) == (2, [1, 3])
    now = log.commit(2)
    assert before is not None
    assert now is not None
    assert now.id != before.id
    assert log.commit(1) == first
