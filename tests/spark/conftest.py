"""Fixtures of the tests on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Ledger:
    """Open a new store."""
    return Ledger.open(spark, str(tmp_path))
