"""Give a project of one app, whose commands are called in this process, on the shared broker and session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from watertable.kafka.config import Cluster
from watertable.project import load_apps
from watertable.runtime import job
from watertable.session import in_words
from watertable.settings import Settings
from watertable_platform.cli import main as cli
from watertable_platform.cli import terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Project:
    """Hold a folder with the app `till`, in which this process works."""

    def __init__(self, spark: SparkSession, cluster: Cluster, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.spark, self.home, self._capsys = spark, home, capsys
        (home / "pyproject.toml").write_text(f"[tool.watertable]\nkafka = '{cluster.bootstrap}'\n")
        (home / "assets" / "till").mkdir(parents=True)

    def write(self, app: str) -> None:
        (self.home / "assets" / "till" / "app.py").write_text(app)

    def run(self) -> None:
        """Run the app until it has caught up."""
        settings = Settings.load(self.home)
        job.run(load_apps(settings).app("till").topology, settings, available_now=True, spark=self.spark)

    def said(self, *arguments: str, code: int = 0) -> str:
        """Call a command; give what it says, to standard error where it is to fail."""
        self._capsys.readouterr()
        ended = cli.main(list(arguments))
        told = self._capsys.readouterr()
        assert ended == code, told.err
        return told.err if code else told.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.said(*arguments, "--json"))


@pytest.fixture
def project(
    spark: SparkSession, broker: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(terminal, "begin_session", lambda _, *, brief=False: in_words(spark))
    monkeypatch.setattr(terminal, "out", Console(width=200))
    monkeypatch.setattr(terminal, "err", Console(stderr=True, width=200))
    return Project(spark, broker, tmp_path, capsys)
