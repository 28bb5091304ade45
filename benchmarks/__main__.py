"""Run the benchmarks: `python -m benchmarks`, or `make bench ARGS="--smoke"`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks import report
from benchmarks.feeds import OPERATORS
from benchmarks.race import BenchmarkFailed, clean_environment
from benchmarks.suite import HERE, Sizes, Suite
from watertable.kafka import broker
from watertable.kafka.config import Cluster

PARTS: Final = ("race", "small", "operators", "replay", "shop", "planning", "growth", "age", "wide", "partitions", "freshness", "reading")
CONTENDERS: Final = (
    "watertable", "kafka-streams-exactly-once", "kafka-streams-at-least-once", "merge", "quix-exactly-once", "quix-at-least-once",
)  # fmt: skip


def main() -> int:
    """Measure, print, keep; return 1 when a contender failed or was wrong, 0 whether goals are reached or not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small sizes, a few minutes: shows that it works, measures nothing")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="which parts to run")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS, help="who takes part in the race")
    parser.add_argument("--operators", nargs="+", choices=OPERATORS, default=OPERATORS, help="which operators run beside Kafka Streams")
    parser.add_argument("--operator-records", type=int, help="records of an operator's topics that are measured")
    parser.add_argument("--operator-history", type=int, help="records before them, that aren't")
    parser.add_argument("--growth", nargs="+", type=int, metavar="KEYS", help="sizes of the table that grows, in growing order")
    parser.add_argument("--records", type=int, help="records of the topic of the race and of the replay")
    parser.add_argument("--keys", type=int, help="keys of that topic")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "latest.json", help="file for the results as JSON")
    parser.add_argument("--keep-work", action="store_true", help="keep the folder with logs and warehouses")
    given = parser.parse_args()
    sizes = Sizes.smoke() if given.smoke else Sizes()
    named = ("records", "keys", "operator_records", "operator_history", "growth")
    sizes = dataclasses.replace(sizes, **{n: v for n in named if (v := getattr(given, n))})
    console = Console(width=max(110, Console().width))
    results: report.Results = {"machine": report.machine(), "sizes": dataclasses.asdict(sizes), "smoke": given.smoke}
    failed: list[str] = []
    work = Path(tempfile.mkdtemp(prefix="watertable-bench-"))
    kept = clean_environment()  # for the broker's JVM too
    os.environ.clear()
    os.environ.update(kept)
    running = broker.start(work / "broker", port=broker.free_port(), heap="768m")
    try:
        suite = Suite(Cluster(running.bootstrap), sizes, work)
        for part in given.only:
            console.print(f"[dim]{part} …[/]")
            try:
                chosen = {"race": [given.contenders], "operators": [given.operators]}.get(part, [])
                results[part] = getattr(suite, part)(*chosen)
            except BenchmarkFailed as error:
                failed.append(f"{part}: {error}")
    finally:
        broker.stop(work / "broker")
        if given.keep_work:
            console.print(f"work folder: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    failed += report.failures(results)
    results["goals"], results["failed"] = report.goals(results), failed
    report.show(results, console)
    for said in failed:
        console.print(f"[bold red]failed[/] {said}", markup=True, highlight=False)
    report.keep(results, given.out)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
