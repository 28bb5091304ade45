"""Make what the campaigns share."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.crash.campaign import PATIENCE


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Archive the classes that Spark loads, once for every start of the campaigns; give the archive's path."""
    made = str(tmp_path_factory.mktemp("archive") / "classes.jsa")
    subprocess.run([sys.executable, "-m", "watertable.classes", made], check=True, timeout=PATIENCE)
    return made
