"""What becomes of a Spark that can't start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_START = """
from pathlib import Path
from watertable.errors import JobError
from watertable.session import JAVA_OPTIONS, spark_session
from watertable.settings import Settings

try:
    spark_session(Settings.model_construct(spark={JAVA_OPTIONS: "-Xss1k"}), log=Path("jvm.log"))
except JobError as error:
    print(error)
"""


def test_a_jvm_that_does_not_start_is_quoted_and_what_an_earlier_one_wrote_is_not(tmp_path: Path) -> None:
    (tmp_path / "jvm.log").write_text("an earlier JVM was here\n", encoding="utf-8")
    said = subprocess.run([sys.executable, "-c", _START], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.startswith("Spark doesn't start: ")
    assert "jvm.log:\n" in said
    assert "stack size specified is too small" in said
    assert "an earlier JVM" not in said
