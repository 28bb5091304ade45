"""Make the archive of classes that every start of Spark maps into memory, rather than to find, read, check and link them one by one.

Spark and Delta are 15,000 classes before the first row is read. Java can keep them, ready to run, in a file that its processes share
(JEP 310, application class-data sharing; JEP 350, archives made of what a run has loaded). So an app is run once, in a folder that is
gone afterwards, on a broker of its own, and what its JVM has loaded by its end is the archive. `session` names it to each JVM that it
starts. Java holds it against its own version and each jar, and does without where they are others: this is a matter of seconds,
never of results.

`python -m watertable.classes` makes it, for this environment, in a minute or two.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from watertable.errors import WatertableError
from watertable.kafka.config import Cluster
from watertable.kafka.feed import Record, begin, feed
from watertable.session import BRIEF, CLASSES, shut_down, spark_session
from watertable.settings import JAVA_OPTIONS, Settings

if TYPE_CHECKING:
    from watertable.plan.plan import Topology

_SLOWEST: Final = 600.0
"""Seconds that a JVM may take to write what it has loaded."""


def make(archive: Path) -> Path:
    """Run an app once and keep the classes that its JVM loaded; give the archive's path.

    The archive that was there is replaced at the end. Raises `SettingsError` for a lack of jars or of Java, `BrokerError` and `JobError`
    where the broker or the JVM doesn't start, and `OSError` for a folder that can't be written.
    """
    from watertable.kafka import broker
    from watertable.runtime import job
    from watertable.store.reader import Reader

    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="watertable-classes-", dir=archive.parent) as folder:
        home, made = Path(folder), Path(folder) / archive.name
        running = broker.start(home / "kafka", port=broker.free_port())
        try:
            java = f'{BRIEF[JAVA_OPTIONS]} "-XX:ArchiveClassesAtExit={made}"'
            settings = own_settings(home, running.bootstrap, {JAVA_OPTIONS: java})
            spark, topology = spark_session(settings, log=home / "jvm.log"), _app()
            try:
                begin(cluster := Cluster.of(settings), {"words": 1, "risen": 1})
                for number in range(2):
                    feed(cluster, _records(number))
                    job.run(topology, settings, available_now=True, spark=spark)
                reader = Reader(spark, settings.warehouse_uri, topology.app, topology.tables)
                reader.read("counts").orderBy("word").collect()
                reader.status()
            finally:
                shut_down(spark, seconds=_SLOWEST)
        finally:
            broker.stop(home / "kafka")
        made.replace(archive)
    return archive


def own_settings(home: Path, bootstrap: str, spark: dict[str, str]) -> Settings:
    """Give the settings under which the app runs: nothing of the user's, whose warehouse and cluster it has no business with."""
    return Settings.model_construct(project=home, kafka=bootstrap, spark=spark)


def _app() -> Topology:
    """Define an app of the steps that most have: an aggregate, a window, a change of a row that is published."""
    import watertable as wt

    app = wt.App("classes")
    words = app.topic("words", key="word STRING", value="n BIGINT, at TIMESTAMP", timestamp="at").stream()
    counts = words.group_by_key().agg(n=wt.sum("n"), last=wt.last("n")).materialized_as("counts")
    words.group_by_key().windowed_by(wt.tumbling(hours=1)).agg(n=wt.count()).materialized_as("hourly")
    counts.to_stream().filter("new.n > old.n").map_values(n="new.n").to("risen")
    return app.topology()


def _records(number: int) -> list[Record]:
    """List the records of a day."""
    day = datetime(2026, 1, 1 + number, tzinfo=UTC)
    return [
        Record("words", 0, 20 * number + n, b"word %d" % (n % 7), json.dumps({"n": n, "at": day.isoformat()}).encode(), day)
        for n in range(20)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the archive of this environment, or at the path that is given, and say so."""
    parser = argparse.ArgumentParser(
        prog="python -m watertable.classes", description="Archive the classes that Spark loads, for all starts."
    )
    parser.add_argument("archive", type=Path, nargs="?", default=CLASSES, help="where, if not where every start looks for it")
    given = parser.parse_args(arguments)
    print("Running an app, and archiving the classes that Spark loads for it: a minute or two", flush=True)
    logging.disable()
    try:
        made = make(given.archive)
    except (WatertableError, OSError) as error:
        print(f"no archive of classes: {error}", file=sys.stderr)
        return 1
    print(f"{made}: {made.stat().st_size >> 20} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
