"""The processes of a session: a JVM that can't start, and the Pythons that work for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_REFUSED = """
from pathlib import Path
from watertable.errors import JobError
from watertable.session import JAVA_OPTIONS, spark_session
from watertable.settings import Settings

try:
    spark_session(Settings.model_construct(spark={JAVA_OPTIONS: "-Xss1k"}), log=Path("jvm.log"))
except JobError as error:
    print(error)
"""

_ROWS = """
from watertable.session import shut_down, spark_session
from watertable.settings import Settings

spark = spark_session(Settings.model_construct())
print(spark.createDataFrame([(1,), (2,)], "n INT").selectExpr("sum(n)").first()[0])
shut_down(spark)
"""


def test_a_jvm_that_does_not_start_is_quoted_and_what_an_earlier_one_wrote_is_not(tmp_path: Path) -> None:
    (tmp_path / "jvm.log").write_text("an earlier JVM was here\n", encoding="utf-8")
    said = subprocess.run([sys.executable, "-c", _REFUSED], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.startswith("Spark doesn't start: ")
    assert "jvm.log:\n" in said
    assert "stack size specified is too small" in said
    assert "an earlier JVM" not in said


def test_another_python_on_the_path_and_another_spark_in_spark_home_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho another Python >&2\nexit 1\n", encoding="utf-8")
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"SPARK_HOME": str(tmp_path / "spark"), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-c", _ROWS], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "3", done.stderr[-2000:]
