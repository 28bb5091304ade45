"""The archive of classes: named to every JVM that is started where there is one, and one that Java takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from watertable import classes, session
from watertable.jars import find_java
from watertable.settings import JAVA_OPTIONS, Settings


def options(settings: Settings, **ours: str) -> str:
    return session.configuration(settings, ours)[JAVA_OPTIONS]


def test_a_jvm_is_started_from_the_archive_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CLASSES", tmp_path / "with a space" / "spark.jsa")
    assert "SharedArchiveFile" not in options(Settings.load(tmp_path))
    session.CLASSES.parent.mkdir()
    session.CLASSES.touch()
    assert f'"-XX:SharedArchiveFile={session.CLASSES}"' in options(Settings.load(tmp_path))
    assert "TieredStopAtLevel=1" in (brief := options(Settings.load(tmp_path), **session.BRIEF))
    assert "SharedArchiveFile" in brief
    assert "SharedArchiveFile" not in options(Settings.load(tmp_path, spark={JAVA_OPTIONS: "-Xss32m"})), "who says so may name another"


def test_java_starts_with_an_archive_that_is_none_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "spark.jsa").write_bytes(b"of another Java")
    said = subprocess.run(
        [find_java().launcher, f"-XX:SharedArchiveFile={tmp_path}/spark.jsa", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "warning" not in said.stdout + said.stderr


def test_the_app_that_is_run_for_it_is_none_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WAREHOUSE": "s3://theirs", "MASTER": "spark://theirs", "KAFKA_OPTIONS": '{"security.protocol": "SSL"}'}.items():
        monkeypatch.setenv(f"WATERTABLE_{name}", value)
    assert Settings.load(tmp_path).warehouse_uri == "s3://theirs"
    ours = classes.own_settings(tmp_path, "127.0.0.1:9", {})
    assert (ours.warehouse_uri, ours.kafka) == (f"{tmp_path}/.watertable/warehouse", "127.0.0.1:9")
    assert (ours.master, ours.kafka_options) == ("local[*]", {})


def test_asking_for_help_makes_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        classes.main(["--help"])
    assert "watertable.classes" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.spark
def test_what_an_app_has_loaded_is_an_archive_that_java_takes(tmp_path: Path) -> None:
    archive = tmp_path / "spark.jsa"
    made = subprocess.run([sys.executable, "-m", "watertable.classes", archive], capture_output=True, text=True, check=True, timeout=900)
    assert f"{archive}: " in made.stdout
    code = (
        "import sys; from pathlib import Path; from watertable import session; from watertable.settings import Settings\n"
        "session.CLASSES = Path(sys.argv[1]); spark = session.spark_session(Settings.load(session.CLASSES.parent))\n"
        "print(spark._jvm.java.lang.System.getProperty('java.class.path')); session.shut_down(spark)"
    )
    child = subprocess.run([sys.executable, "-c", code, archive], capture_output=True, text=True, check=True, timeout=300)
    path = child.stdout.strip().splitlines()[-1]
    loaded = subprocess.run(
        [find_java().launcher, "-Xshare:on", f"-XX:SharedArchiveFile={archive}", "-Xlog:class+load", "-cp", path,
         "org.apache.spark.deploy.SparkSubmit", "--version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "org.apache.spark.deploy.SparkSubmit source: shared objects file (top)" in loaded.stdout
