"""Run the measurements against one broker: which contenders take part, with which settings, and what is made of what they say."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from benchmarks.count_and_sum import MEMORY
from benchmarks.feeds import Trial
from benchmarks.race import BenchmarkFailed, Contender, Run, check, run
from benchmarks.workload import SHARE, Answer, Workload
from watertable.jars import classpath, find_java
from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent
RETAIL: Final = ROOT / "assets" / "retail"
OUT: Final = ("reorders", "price_changes")
"""Topics that the retail app writes."""
CORES: Final = os.cpu_count() or 2
QUIX: Final = "quixstreams==3.28.1"
OURS, STREAMS = "watertable", "kafka-streams-exactly-once"
RATE: Final = 2_000
"""Records a second of the freshness measurement."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Say how much is measured."""

    records: int = 2_000_000
    keys: int = 1_000_000
    warm_up: int = 200_000
    small_batch: int = 100_000
    """Records of a batch where the race is run again in small ones."""
    batch: int = 10_000
    batches: int = 20
    tails: tuple[int, ...] = (1_000, 100_000, 2_000_000)
    repeats: int = 5
    operator_records: int = 2_000_000
    operator_history: int = 200_000
    growth: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    growth_limit: float = 3_600.0
    ages: tuple[int, ...] = (0, 10_000, 40_000)
    """Commits as of which a log has files."""
    wide: tuple[tuple[int, int], ...] = ((1, 20), (30, 20))
    """Numbers of tables, and of columns of each."""
    partitions: tuple[int, ...] = (4, 32, 96)
    fresh_before: int = 100_000
    """Records that the app works off before the clock runs: a stream runs for weeks, and its JVM is cold for minutes."""
    fresh_seconds: float = 220.0
    skip_seconds: float = 60.0
    fold_seconds: float = 30.0
    limit: float = 900.0
    shop_limit: float = 1_800.0

    @classmethod
    def smoke(cls) -> Sizes:
        """Give sizes that show that everything works, and nothing else."""
        return cls(
            records=100_000, keys=50_000, warm_up=20_000, small_batch=20_000, batch=2_000, batches=8, tails=(1_000, 20_000), repeats=2,
            operator_records=20_000, operator_history=10_000, growth=(1_000, 10_000), ages=(0, 1_000), wide=((1, 20), (5, 20)),
            partitions=(2, 8), fresh_before=10_000, fresh_seconds=90.0, skip_seconds=30.0, fold_seconds=10.0, limit=600.0,
        )  # fmt: skip


class Suite:
    """Hold what the measurements share: the broker, the sizes, a folder to work in."""

    def __init__(self, cluster: Cluster, sizes: Sizes, work: Path) -> None:
        self.cluster, self.sizes, self.work = cluster, sizes, work

    # -- the same topic, counted and summed by key ---------------------------------------------------------------------------------

    def race(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Run the contenders named, each alone, over one topic, and check each answer; one that fails stops no other."""
        return self._race(names, "records")

    def small(self) -> list[dict[str, Any]]:
        """Run the two that read in batches over such a topic again, in the batches of a stream at work in place of those of a backlog."""
        return self._race((OURS, "merge"), "small_batches", batch_records=self.sizes.small_batch)

    def _race(self, names: Sequence[str], topic: str, **spark: int) -> list[dict[str, Any]]:
        real = Workload(topic, self.sizes.records, self.sizes.keys)
        warm = Workload(f"{topic}_warmup", self.sizes.warm_up, self.sizes.keys)
        for load in (warm, real):
            load.produce(self.cluster)
        wanted = real.answer
        results = []
        for name in names:
            folder = self.work / name
            try:
                done = run(self._contender(name, real, warm, folder, **spark), folder, limit=self.sizes.limit)
                check(done, wanted)
            except BenchmarkFailed as error:
                results.append({"contender": name, "failed": str(error)})
            else:
                results.append(self._result(done, self.sizes.records))
            self._clear(folder)
        return results

    def _contender(self, name: str, real: Workload, warm: Workload, folder: Path, **spark: int) -> Contender:
        match name:
            case "watertable" | "merge":
                given = {"way": name, "topic": real.topic, "records": real.records, "warm_topic": warm.topic, **spark}
                return self._ours(name, "count_and_sum", folder, **given)
            case "kafka-streams-exactly-once" | "kafka-streams-at-least-once":
                guarantee = "exactly_once_v2" if name.endswith("exactly-once") else "at_least_once"
                return self._streams(name, real, warm, folder, guarantee)
            case "quix-exactly-once" | "quix-at-least-once":
                python = quix(ROOT / ".watertable" / "quix")
                guarantee = name.removeprefix("quix-")
                script = str(HERE / "quix" / "count_and_sum.py")
                return Contender(name, [python, script, *self._places(real, warm), guarantee, str(CORES), str(folder / "state")])
            case _:
                raise BenchmarkFailed(f"no contender {name!r}")

    def _streams(self, name: str, real: Workload, warm: Workload, folder: Path, guarantee: str, *more: str) -> Contender:
        command = kafka_streams(self.work / "classes", "CountAndSum")
        return Contender(name, [*command, *self._places(real, warm), guarantee, str(CORES), str(folder / "state"), *more])

    def _places(self, real: Workload, warm: Workload) -> list[str]:
        return [self.cluster.bootstrap, real.topic, str(real.records), warm.topic, str(warm.records)]

    def _ours(self, name: str, module: str, folder: Path, **given: Any) -> Contender:
        folder.mkdir(parents=True, exist_ok=True)
        argument = json.dumps({"bootstrap": self.cluster.bootstrap, "work": str(folder), **given})
        paths = os.pathsep.join([str(ROOT), *(str(ROOT / p) for p in ("streaming", "quality", "platform"))])
        return Contender(name, [sys.executable, "-m", f"benchmarks.{module}", argument], {"PYTHONPATH": paths})

    def _result(self, done: Run, records: int) -> dict[str, Any]:
        visible, folded = done.seconds["visible"], done.seconds.get("folded")
        return {
            "contender": done.name, "start_seconds": done.start_seconds, "visible_seconds": visible, "folded_seconds": folded,
            "visible_per_second": records / visible, "folded_per_second": records / folded if folded else None,
            "peak_mib": done.peak_mib, "batches": [e for e in done.events if e["event"] == "batch"],
        }  # fmt: skip

    def _clear(self, folder: Path, *topics: str) -> None:
        """Remove what a contender leaves behind: its folders, its topics on the broker, and these that were made for it alone."""
        for each in folder.glob("*/"):
            shutil.rmtree(each)
        admin = Admin(self.cluster)
        for topic in admin.topics():
            if topic.startswith(("changelog__", "bench-", "watertable.", *topics)) or topic.endswith("-changelog"):
                admin.delete_topic(topic)

    # -- reading all of it again ---------------------------------------------------------------------------------------------------

    def replay(self) -> dict[str, Any]:
        """Measure a replay of a whole history against Kafka Streams' after an application reset, that of its end alone, and their ETAs."""
        size = self.sizes
        real, warm = Workload("replayed", size.records, size.keys), Workload("replay_warmup", size.warm_up, size.keys)
        etas = Workload("replay_eta", max(1, size.records // 4), size.keys)
        for load in (warm, etas):
            load.produce(self.cluster)
        folder = self.work / "replay"
        given = {"topic": real.topic, "records": real.records, "keys": real.keys, "warm_topic": warm.topic, "eta_topic": etas.topic}
        ours = run(self._ours("watertable", "replay", folder, **given), folder, limit=size.limit)
        check(ours, real.answer)
        self._clear(folder)
        streams = run(self._streams("kafka-streams-reset", real, warm, folder, "exactly_once_v2", "reset"), folder, limit=size.limit)
        check(streams, real.answer)
        self._clear(folder)
        return {
            "race": [
                self._result(ours, size.records), self._result(streams, size.records) | {"reset_seconds": streams.said("reset")["seconds"]},
            ],
        } | _rewinds(ours)  # fmt: skip

    def shop(self) -> dict[str, Any]:
        """Measure the retail app's rewinds, to earliest and by the last hundredth; its file's year is sold again and again."""
        source = _module(RETAIL / "replay.py", "retail_replay")
        schedule = source.Schedule.of(_years(source.load(), self.sizes.records))
        last = max(1, len(schedule) // SHARE)
        quantities = schedule.lines["Quantity"].to_pylist()
        stock = sum(receipt.quantity for receipt in schedule.received) - sum(quantities[line] for line in schedule.sold)
        _create(self.cluster, schedule)
        pace = _Pace(self.cluster, schedule, RATE // 4, last / (RATE // 4) + 1)
        pace.begin_with(len(schedule) - last)
        given = {"app": str(RETAIL), "commit": len(schedule) // 20, "last": last, "sales": len(schedule.sold), "stock": stock}
        folder = self.work / "shop"
        try:
            done = run(self._ours("shop", "shop", folder, **given), folder, limit=self.sizes.shop_limit, on_ready=pace.start)
        finally:  # the freshness is measured on topics of these names
            pace.stop()
            self._clear(folder, *schedule.topics, *OUT)
        return {"records": len(schedule), "peak_mib": done.peak_mib} | _rewinds(done)

    # -- operator by operator, beside Kafka Streams -------------------------------------------------------------------------------

    def operators(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Run each operator as watertable and as Kafka Streams, exactly once, over the same records, and check both answers."""
        return [self._operator(name) for name in names]

    def _operator(self, name: str) -> dict[str, Any]:
        trials = {r: Trial.of(name, self.sizes.operator_history, self.sizes.operator_records, r) for r in (OURS, STREAMS)}
        wanted, measured = trials[OURS].answer, trials[OURS].measured
        tried = {runner: self._try(trial, runner, wanted) for runner, trial in trials.items()}
        return {"operator": name, "records": measured, "rows": wanted.keys} | tried

    def _try(self, trial: Trial, runner: str, wanted: Answer) -> dict[str, Any]:
        folder = self.work / f"{trial.operator}-{runner}"
        trial.produce_history(self.cluster)
        try:
            runs = self._tried(trial, runner, folder)
            done = run(runs, folder, limit=self.sizes.limit, on_ready=lambda: trial.produce_rest(self.cluster))
            check(done, wanted)
        except BenchmarkFailed as error:
            return {"failed": str(error)}
        else:
            return self._result(done, trial.measured)
        finally:
            self._clear(folder, *(feed.topic for feed in trial.feeds))

    def _tried(self, trial: Trial, runner: str, folder: Path) -> Contender:
        topics = [feed.topic for feed in trial.feeds]
        if runner == OURS:
            given = {"operator": trial.operator, "topics": topics, "records": trial.measured}
            return self._ours(runner, "operators", folder, **given, history=sum(feed.history for feed in trial.feeds))
        command = kafka_streams(self.work / "classes", "Operators")
        given = [self.cluster.bootstrap, trial.operator, ",".join(topics), "exactly_once_v2", str(CORES), str(folder / "state")]
        return Contender(runner, [*command, *given])

    # -- what a batch costs as tables grow, and as they are many and wide -----------------------------------------------------------

    def growth(self) -> list[dict[str, Any]]:
        """Measure batches of one size as a table grows whose old rows are looked up."""
        folder = self.work / "growth"
        given = {"keys": self.sizes.growth, "batch": self.sizes.batch, "batches": self.sizes.batches}
        done = run(self._ours("growth", "growth", folder, **given), folder, limit=self.sizes.growth_limit)
        self._clear(folder, "growth")
        return [dict(e) for e in done.events if e["event"] == "grown"]

    def age(self) -> list[dict[str, Any]]:
        """Measure batches, folds and reads of a table of 100,000 keys as the logs grow."""
        folder = self.work / "age"
        given = {"keys": 10 * self.sizes.batch, "commits": self.sizes.ages, "batch": self.sizes.batch, "batches": self.sizes.batches}
        done = run(self._ours("age", "age", folder, **given), folder, limit=self.sizes.limit)
        self._clear(folder, "age")
        return [dict(e) for e in done.events if e["event"] == "aged"][1:]

    def wide(self) -> list[dict[str, Any]]:
        """Measure batches of many tables with many columns, and what they write into the changelog."""
        load = Workload("wide", self.sizes.batch * self.sizes.batches, self.sizes.keys)
        load.produce(self.cluster)
        folder = self.work / "wide"
        given = {"topic": load.topic, "records": load.records, "keys": load.keys, "batch": self.sizes.batch, "shapes": self.sizes.wide}
        done = run(self._ours("wide", "wide", folder, **given), folder, limit=self.sizes.limit)
        self._clear(folder, load.topic)
        return [dict(e) for e in done.events if e["event"] == "wide"]

    def partitions(self) -> list[dict[str, Any]]:
        """Measure replays of as many records from topics of few and of many partitions."""
        loads = [Workload(f"parted_{n}", max(1, self.sizes.records // 2), max(1, self.sizes.keys // 2), n) for n in self.sizes.partitions]
        for load in loads:
            load.produce(self.cluster)
        folder = self.work / "partitions"
        given = {"topics": {load.topic: load.partitions for load in loads}, "records": loads[0].records, "keys": loads[0].keys}
        done = run(self._ours("partitions", "partitions", folder, **given), folder, limit=self.sizes.limit)
        self._clear(folder, *given["topics"])
        return [dict(e) for e in done.events if e["event"] == "partitions"]

    # -- what a batch costs beside its data ----------------------------------------------------------------------------------------

    def planning(self) -> list[dict[str, Any]]:
        """Measure jobs, stages and planning of a batch with 1, 3 and 6 tables."""
        load = Workload("planning", self.sizes.batch * self.sizes.batches, self.sizes.keys)
        load.produce(self.cluster)
        folder = self.work / "planning"
        given = {"topic": load.topic, "records": load.records, "batch": self.sizes.batch, "tables": [1, 3, 6]}
        done = run(self._ours("planning", "planning", folder, **given), folder, limit=self.sizes.limit)
        return [dict(e) for e in done.events if e["event"] == "batches"]

    # -- reading -------------------------------------------------------------------------------------------------------------------

    def reading(self) -> list[dict[str, Any]]:
        """Measure fresh reads against unfolded rows."""
        folder = self.work / "reading"
        given = {"keys": self.sizes.keys, "tails": self.sizes.tails, "repeats": self.sizes.repeats}
        done = run(self._ours("reading", "reading", folder, **given), folder, limit=self.sizes.limit)
        return [dict(e) for e in done.events if e["event"] == "read"]

    # -- freshness -----------------------------------------------------------------------------------------------------------------

    def freshness(self) -> dict[str, Any]:
        """Measure produced → committed, produced → read, and the fold lag of a plain Delta reader, at a steady rate."""
        source = _module(RETAIL / "replay.py", "retail_replay")
        schedule = source.Schedule.of(source.load())
        _create(self.cluster, schedule)
        folder = self.work / "freshness"
        if len(schedule) < RATE * self.sizes.fresh_seconds + self.sizes.fresh_before:
            raise BenchmarkFailed(f"{len(schedule):,} records don't last {self.sizes.fresh_seconds:.0f} s at {RATE:,} a second")
        pace = _Pace(self.cluster, schedule, RATE, self.sizes.fresh_seconds - 5)
        pace.begin_with(self.sizes.fresh_before)
        given = {"app": str(RETAIL), "seconds": self.sizes.fresh_seconds, "fold_seconds": self.sizes.fold_seconds}
        try:
            done = run(self._ours("freshness", "freshness", folder, **given), folder, limit=self.sizes.limit, on_ready=pace.start)
        finally:
            pace.stop()
        seen = done.said("seen")
        since = pace.began + self.sizes.skip_seconds
        commits = [(c["at"], c["offsets"]) for c in seen["commits"]]
        reads = [(r["ended"], r["offsets"]) for r in seen["reads"]]
        kept = [c for c in seen["commits"] if c["at"] >= since]
        if not kept:
            raise BenchmarkFailed(f"no commit in the {self.sizes.fresh_seconds - self.sizes.skip_seconds:.0f} s after the warm-up")
        return {
            "rate": (pace.sent - self.sizes.fresh_before) / (pace.ended - pace.began),
            "before": self.sizes.fresh_before, "seconds": self.sizes.fresh_seconds, "warm_up_seconds": self.sizes.skip_seconds,
            "committed": _quantiles(pace.ages(commits, since)), "read": _quantiles(pace.ages(reads, since)),
            "read_seconds": _quantiles([r["ended"] - r["began"] for r in seen["reads"] if r["began"] >= since]),
            "batch_seconds": _quantiles([c["seconds"] for c in kept]), "jobs_per_batch": statistics.median(c["jobs"] for c in kept),
            "fold_lag": _quantiles(_fold_lag(seen["commits"], seen["plain"], since)), "folds": len(seen["folds"]),
            "fold_ms": statistics.median(f["ms"] for f in seen["folds"]) if seen["folds"] else None,
            "reads_checked": len(seen["reads"]), "peak_mib": done.peak_mib,
        }  # fmt: skip


def _rewinds(done: Run) -> dict[str, Any]:
    """Collect what a contender said of its rewinds."""
    etas = [dict(e) for e in done.events if e["event"] == "eta"]
    return {"rewinds": {e["what"]: dict(e) for e in done.events if e["event"] == "rewound"}, "etas": etas}


def _create(cluster: Cluster, schedule: Any) -> None:
    """Create the topics that the retail app reads and writes."""
    for topic in (*schedule.topics, *OUT):
        Admin(cluster).create_topic(topic, schedule.partitions, {"retention.ms": "-1"})


def _years(lines: pa.Table, records: int) -> pa.Table:
    """Repeat the shop's lines until there are so many, each time a number of weeks later that is longer than they span."""
    place, times = lines.schema.get_field_index("InvoiceDate"), lines["InvoiceDate"]
    span = pc.max(times).as_py() - pc.min(times).as_py()
    shift = timedelta(weeks=span // timedelta(weeks=1) + 1)
    later = [pc.add(times, pa.scalar(year * shift, pa.duration("us"))).cast(times.type) for year in range(-(-records // len(lines)))]
    return pa.concat_tables([lines.set_column(place, "InvoiceDate", each) for each in later]).slice(0, records)


class _Pace:
    """Produce the shop's records at a steady rate, and remember when each offset was produced."""

    def __init__(self, cluster: Cluster, schedule: Any, rate: int, seconds: float) -> None:
        self.times: dict[str, list[float]] = {}
        self.sent = self._at_start = 0
        self.began = self.ended = 0.0
        self._rate, self._seconds, self._stop, self._all = rate, seconds, threading.Event(), len(schedule)
        self._records = schedule.records()
        self._producer = Producer(cluster.client_config() | {"linger.ms": "5", "enable.idempotence": "true"})
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin_with(self, number: int) -> None:
        """Produce so many records at once."""
        self._send(number)
        self._producer.flush()

    def start(self) -> None:
        self.began, self._at_start = time.time(), self.sent
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def ages(self, sightings: Sequence[tuple[float, Mapping[str, int]]], since: float) -> list[float]:
        """Give, for each record produced after a time, how old it was when first seen; sightings are (when, end offsets), in order."""
        found: list[float] = []
        last = sightings[-1][1] if sightings else {}
        for partition, times in self.times.items():
            ends = [seen.get(partition, 0) for _, seen in sightings]
            offsets = range(bisect_left(times, since), min(len(times), last.get(partition, 0)))
            found.extend(sightings[bisect_left(ends, offset + 1)][0] - times[offset] for offset in offsets)
        return found

    def _send(self, upto: int) -> None:
        while self.sent < upto:
            record = next(self._records)
            times = self.times.setdefault(f"{record.topic}/{record.partition}", [])
            times.append(time.time())
            self._producer.produce(record.topic, record.value, record.key, partition=record.partition)
            self.sent += 1
            if self.sent % 10_000 == 0:
                self._producer.flush()

    def _run(self) -> None:
        while not self._stop.is_set() and time.time() < self.began + self._seconds:
            self._send(min(self._all, self._at_start + int((time.time() - self.began) * self._rate)))
            self._producer.poll(0)
            self._stop.wait(0.01)
        self.ended = time.time()
        self._producer.flush(30)


def _fold_lag(commits: Sequence[Mapping[str, Any]], plain: Sequence[Mapping[str, Any]], since: float) -> list[float]:
    """Give, for each look of the plain reader, the age of the oldest commit that it couldn't see."""
    at = {c["seq"]: c["at"] for c in commits}
    return [max(0.0, p["at"] - at[p["seq"] + 1]) if p["seq"] + 1 in at else 0.0 for p in plain if p["at"] >= since]


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    """Give the median, the 99th percentile and the maximum; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], "max": ordered[-1]}


def kafka_streams(classes: Path, app: str, sources: Path = HERE / "kafka_streams") -> list[str]:
    """Compile one of our Kafka Streams apps and give the command that runs it; raise `BenchmarkFailed` where there is no JDK."""
    java = Path(find_java().launcher)
    javac = java.with_name("javac")
    if not javac.exists() and (found := shutil.which("javac")):
        javac = Path(found)
    if not javac.exists():
        raise BenchmarkFailed("Kafka Streams apps are compiled, which needs a JDK (javac); Debian: apt-get install openjdk-17-jdk-headless")
    path = os.pathsep.join([*map(str, classpath("bench", "broker")), str(classes), str(sources)])
    subprocess.run([str(javac), "-proc:none", "-cp", path, "-d", str(classes), str(sources / f"{app}.java")], check=True)
    return [str(java), f"-Xmx{MEMORY}", "-cp", path, app]


def quix(environment: Path) -> str:
    """Make an environment with Quix Streams, once, apart from ours; give its Python."""
    python = environment / "bin" / "python"
    wanted = environment / QUIX
    if not wanted.exists():
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(environment)], check=True)
        locked = str(HERE / "quix" / "requirements.txt")
        subprocess.run([*uv, "pip", "sync", "--quiet", "--python", str(python), "--require-hashes", locked], check=True)
        wanted.touch()
    return str(python)


def _module(file: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
