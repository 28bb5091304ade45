"""Shared fixtures: one broker and one Spark session for a whole run, topics of their own for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests import proofs
from watertable.settings import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watertable.kafka.config import Cluster

settings.register_profile("watertable", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
settings.load_profile("watertable")

_numbers = itertools.count(1)
_SAID = pytest.StashKey[list[str]]()
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""For batches of a dozen rows, each of other tables: to generate and compile code for them takes longer than all else."""

# A JVM that a test starts lives for seconds: to compile its hottest code twice, and to collect garbage in parallel, doesn't pay.
os.environ.setdefault("JDK_JAVA_OPTIONS", f"{QUICK} -XX:+UseSerialGC")


@pytest.fixture(autouse=True, scope="session")
def _no_settings_from_outside() -> None:
    """Hold the run to the repository's own settings: a developer's WATERTABLE_KAFKA must not receive test data."""
    for name in [n for n in os.environ if n.startswith("WATERTABLE_") and n not in ("WATERTABLE_CACHE", "WATERTABLE_MAVEN_MIRROR")]:
        del os.environ[name]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a real broker on a free port for the whole run; give its cluster."""
    from watertable.kafka import broker as embedded
    from watertable.kafka.config import Cluster

    folder = tmp_path_factory.mktemp("broker")
    running = embedded.start(folder, port=embedded.free_port())
    try:
        yield Cluster(running.bootstrap)
    finally:
        embedded.stop(folder)


@pytest.fixture
def topic(broker: Cluster) -> Callable[..., str]:
    """Create topics: `topic("sales", partitions=2)` makes one of that name plus a number, with any topic settings, and returns its name."""
    from watertable.kafka.admin import Admin

    def create(name: str = "t", partitions: int = 1, **config: str) -> str:
        unique = f"{name}_{next(_numbers)}"
        Admin(broker).create_topic(unique, partitions=partitions, config=config)
        return unique

    return create


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start local[2] Spark with Delta and Kafka, configured as every session of watertable is, in folders of its own.

    But it interprets its plans; processes of their own, as the demo and Dagster start them, generate code as users' do. And it lives
    long: what Java compiles twice for it, a hundred plans later, makes a plan cost half of what it does in the JVMs of single tests.
    Batches are few in a test: what is the same in each is kept from the second on.
    """
    from watertable.compiler import prepared
    from watertable.session import spark_session
    from watertable.settings import JAVA_OPTIONS, Settings, java_options

    home = tmp_path_factory.mktemp("spark")
    java = {"spark.driver.memory": "1536m", JAVA_OPTIONS: java_options("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=4")}
    prepared.AS_THEY_ARE = 1
    ours = Settings.load(home, master="local[2]", spark=java | INTERPRETED)
    session = spark_session(ours, app="watertable tests")
    try:
        yield session
    finally:
        session.stop()


# -- what tests have to say, whoever runs them ----------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proofs", metavar="PAGE", help="print to a page which tests held which operator to which law")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SAID] = []


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a text at the end of the run, passed or failed, from whichever of its processes."""
    return request.config.stash[_SAID].append


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["said"], output["proofs"] = session.config.stash[_SAID], sorted(proofs.said)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", {})
    node.config.stash[_SAID].extend(output.get("said", []))
    proofs.said.update(map(tuple, output.get("proofs", [])))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if (page := terminalreporter.config.getoption("--proofs")) and not hasattr(terminalreporter.config, "workerinput"):
        Path(page).write_text(proofs.page(proofs.said), encoding="utf-8")
    for text in terminalreporter.config.stash[_SAID]:
        terminalreporter.write_line(text)
