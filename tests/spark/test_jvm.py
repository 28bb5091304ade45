"""The processes of a session: a JVM that can't start, and what of the machine neither the JVM nor its Pythons go by."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from watertable.errors import SparkError
from watertable.session import _QUIET, in_words, storage_failed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REFUSED = """
from pathlib import Path
from watertable.errors import JobError
from watertable.session import spark_session
from watertable.settings import JAVA_OPTIONS, Settings

try:
    spark_session(Settings.model_construct(spark={JAVA_OPTIONS: "-Xss1k"}), log=Path("jvm.log"))
except JobError as error:
    print(error)
"""

_ROWS = """
import json
from watertable.session import shut_down, spark_session
from watertable.settings import Settings

spark = spark_session(Settings.model_construct())
rows = spark.createDataFrame([("iß", 0)], "word STRING, n INT")
print(json.dumps(rows.selectExpr("upper(word)", "lower('Iß')", "CAST(timestamp_seconds(n) AS STRING)").first()))
shut_down(spark)
"""

_FILES = """
from pathlib import Path
from watertable.session import shut_down, spark_session
from watertable.settings import Settings

spark = spark_session(Settings.model_construct())
spark.sql("SELECT 'x' AS x").write.text(str(Path("Käse").absolute()))
print(Path("Käse", "_SUCCESS").exists())
shut_down(spark)
"""


def test_a_jvm_that_does_not_start_is_quoted_and_what_an_earlier_one_wrote_is_not(tmp_path: Path) -> None:
    (tmp_path / "jvm.log").write_text("an earlier JVM was here\n", encoding="utf-8")
    said = subprocess.run([sys.executable, "-c", _REFUSED], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.startswith("Spark doesn't start: ")
    assert "jvm.log:\n" in said
    assert "stack size specified is too small" in said
    assert "an earlier JVM" not in said


def test_tables_are_the_same_whatever_the_machine_speaks_and_has_installed(tmp_path: Path) -> None:
    """Another Spark, another Python, Turkish and Indian time: none of them is taken; and nobody knows the machine's own name."""
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho another Python >&2\nexit 1\n", encoding="utf-8")
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"SPARK_HOME": str(tmp_path / "spark"), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "TZ": "Asia/Kolkata"}
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n", encoding="utf-8")
    options = f"-Duser.language=tr -Duser.country=TR -Djdk.net.hosts.file={tmp_path / 'hosts'}"
    environment["JDK_JAVA_OPTIONS"] = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {options}"
    done = subprocess.run([sys.executable, "-c", _ROWS], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout or "null") == ["ISS", "iß", "1970-01-01 00:00:00"], done.stderr[-2000:]


@pytest.mark.parametrize("here", [pytest.param(".", marks=pytest.mark.slow), "Küche"])
def test_files_have_the_names_that_python_gives_them_where_the_machine_speaks_ascii(tmp_path: Path, here: str) -> None:
    """Java would write elsewhere; and where the folder that it is in has no name for it, not start."""
    folder = tmp_path / here
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-c", _FILES], env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr[-2000:]


@pytest.mark.spark
@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux tells when to acknowledge")
def test_a_long_answer_of_the_jvms_comes_at_once_to_every_thread(spark: SparkSession) -> None:
    """Each 8 KB of one would wait 40 ms for the one before to be acknowledged; here the quickest of some counts, whatever else runs."""

    def seconds(length: int) -> float:
        text = spark._jvm.java.lang.StringBuilder("é" * length)  # type: ignore[union-attr]
        taken = []
        for _ in range(10):
            began = time.perf_counter()
            assert text.toString() == "é" * length
            taken.append(time.perf_counter() - began)
        return min(taken)

    with ThreadPoolExecutor(2) as threads:
        for found in (seconds(9_000), *threads.map(seconds, (9_000, 30_000))):
            assert found < 0.02


@pytest.mark.spark
def test_what_the_jvm_throws_is_said_in_one_line_and_storage_that_failed_with_what_to_do(spark: SparkSession) -> None:
    with pytest.raises(SparkError) as refused, in_words(spark):
        spark._jvm.java.io.FileInputStream("/nowhere/at/all")  # type: ignore[union-attr]
    assert str(refused.value).startswith("java.io.FileNotFoundException: /nowhere/at/all")
    assert "storage failed. What is committed is whole; see to room and rights there" in str(refused.value)
    assert storage_failed(refused.value.__cause__ or refused.value)
    with pytest.raises(SparkError, match=r"^\[DIVIDE_BY_ZERO\] Division by zero") as refused, in_words(spark):
        spark.sql("SELECT 1 / 0").collect()
    assert not storage_failed(refused.value.__cause__ or refused.value)
    with pytest.raises(ZeroDivisionError), in_words(spark):
        1 / 0  # noqa: B018


def test_who_warns_in_every_batch_of_what_is_meant_so_is_quiet(spark: SparkSession) -> None:
    logs = spark._jvm.org.apache.logging.log4j.LogManager  # type: ignore[union-attr]
    assert not any(logs.getLogger(name).isWarnEnabled() for name in _QUIET)
    assert logs.getLogger("org.apache.spark.sql.execution").isWarnEnabled()
