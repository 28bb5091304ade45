"""Show results for people and keep them for programs; say of each goal whether it was reached, and by how much not."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.suite import OURS, QUIX, ROOT, STREAMS
from watertable.jars import find_java, pinned

Results = dict[str, Any]
_TITLES: Final = {
    "watertable": "watertable", "merge": "Spark foreachBatch + MERGE",
    "kafka-streams-exactly-once": "Kafka Streams, exactly once", "kafka-streams-at-least-once": "Kafka Streams, at least once",
    "kafka-streams-reset": "Kafka Streams, reset, exactly once",
    "quix-exactly-once": "Quix Streams, exactly once", "quix-at-least-once": "Quix Streams, at least once",
}  # fmt: skip
_GROWTH: Final = ((1_000_000, 2), (10_000_000, 4))
"""Sizes of a table, and how much longer than at a hundred thousand keys a batch may take there."""


def machine() -> Results:
    """Say what this runs on; nothing that names a person or a host."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    jars = {jar.artifact: jar.version for jar in pinned("spark", "bench")}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit,
        "cpu": names[0] if names else platform.processor(), "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(), "java": find_java().major,
        "spark": version("pyspark"), "delta": version("delta-spark"), "kafka": jars["kafka-streams"],
        "quixstreams": QUIX.partition("==")[2], "load_before": round(psutil.getloadavg()[0], 2),
    }  # fmt: skip


def show(results: Results, console: Console) -> None:
    """Print every table there are results for, and the goals."""
    facts = results["machine"]
    console.print(
        f"[bold]{facts['cpu']}[/], {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['system']}, load {facts['load_before']}; "
        f"Python {facts['python']}, Java {facts['java']}, Spark {facts['spark']}, Delta {facts['delta']}, Kafka and its Streams "
        f"{facts['kafka']}, Quix Streams {facts['quixstreams']}; commit {facts['commit']}, {facts['when']}"
    )
    if "race" in results:
        console.print(_race("Count and sum by key", [r for r in results["race"] if "failed" not in r], results["sizes"]))
    if "small" in results:
        rows = [r for r in results["small"] if "failed" not in r]
        console.print(_race(f"In batches of {results['sizes']['small_batch']:,}", rows, results["sizes"]))
    if "operators" in results:
        console.print(_operators(results["operators"]))
    if "replay" in results:
        console.print(_race("Read again from earliest", results["replay"]["race"], results["sizes"]))
        console.print(_rewinds("Rewinds in place", results["replay"]))
    if "shop" in results:
        console.print(_rewinds("The retail app's rewinds in place", results["shop"]))
    if "planning" in results:
        console.print(_planning(results["planning"], results["sizes"]))
    if "growth" in results:
        console.print(_growth(results["growth"], results["sizes"]))
    if "age" in results:
        console.print(_age(results["age"], results["sizes"]))
    if "wide" in results:
        console.print(_wide(results["wide"], results["sizes"]))
    if "partitions" in results:
        console.print(_partitions(results["partitions"]))
    if "freshness" in results:
        console.print(_freshness(results["freshness"]))
    if "reading" in results:
        console.print(_reading(results["reading"]))
    goals = Table("Goal", "Wanted", "Measured", "", title="Goals", title_justify="left")
    for goal in results["goals"]:
        verdict = "[green]reached[/]" if goal["reached"] else "[bold red]falls short[/]"
        goals.add_row(goal["goal"], goal["wanted"], goal["measured"], verdict)
    console.print(goals)


def keep(results: Results, file: Path) -> None:
    """Write the results as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def failures(results: Results) -> list[str]:
    """Name the contenders that failed, and why."""
    races = [row for part in ("race", "small") for row in results.get(part, [])]
    return [f"{r['contender']}: {r['failed']}" for r in races if "failed" in r] + [
        f"{row['operator']}: {runner}: {row[runner]['failed']}"
        for row in results.get("operators", []) for runner in (OURS, STREAMS) if "failed" in row[runner]
    ]  # fmt: skip


def goals(results: Results) -> list[Results]:
    """Hold the results against what is wanted of watertable."""
    return list(_goals(results))


def _goals(results: Results) -> Iterator[Results]:
    race, small = ({r["contender"]: r for r in results.get(part, []) if "failed" not in r} for part in ("race", "small"))
    ours = race.get("watertable")
    if ours and (streams := race.get("kafka-streams-exactly-once")):
        ratio = ours["folded_per_second"] / streams["visible_per_second"]
        yield _goal("records/s with the fold, against Kafka Streams exactly once", "≥ 1.5 ×", f"{ratio:.2f} ×", ratio >= 1.5)
    for runs, batches in ((race, ""), (small, ", small batches")):
        if OURS in runs and "merge" in runs:
            ratio = runs[OURS]["visible_per_second"] / runs["merge"]["visible_per_second"]
            yield _goal(f"visible records/s, against foreachBatch + MERGE{batches}", "≥ 3 ×", f"{ratio:.2f} ×", ratio >= 3)
    if operators := results.get("operators"):
        yield from _operator_goals(operators)
    if replay := results.get("replay"):
        yield from _replay_goals(replay)
    if shop := results.get("shop"):
        yield from _rewind_goals(shop, "the retail app: ")
    if rows := results.get("planning"):
        jobs = {r["tables"]: r["jobs"] for r in rows}
        measured = ", ".join(f"{tables}: {count:g}" for tables, count in jobs.items())
        yield _goal("Spark jobs a batch, by tables", "flat", measured, len(set(jobs.values())) == 1)
    seconds = {row["keys"]: row["batch_seconds"] for row in results.get("growth", [])}
    for keys, most in _GROWTH:
        if keys in seconds and 100_000 in seconds:
            ratio = seconds[keys] / seconds[100_000]
            yield _goal(f"a batch at {keys:,} keys, against 100,000", f"≤ {most} ×", f"{ratio:.2f} ×", ratio <= most)
    if rows := results.get("age"):
        young, old = (chosen(rows, key=lambda r: r["commits"]) for chosen in (min, max))
        ratio = old["batch_seconds"] / young["batch_seconds"]
        yield _goal(f"a batch after {old['commits']:,} commits, against the first ones", "≤ 1.25 ×", f"{ratio:.2f} ×", ratio <= 1.25)
    if rows := results.get("partitions"):
        few, many = (chosen(rows, key=lambda r: r["partitions"]) for chosen in (min, max))
        ratio = many["visible_seconds"] / few["visible_seconds"]
        what = f"a replay of {many['partitions']} partitions, against {few['partitions']}"
        yield _goal(what, "≤ 2 ×", f"{ratio:.2f} ×", ratio <= 2)
    if fresh := results.get("freshness"):
        read = fresh["read"] or {"p50": float("inf"), "p99": float("inf")}
        yield _goal("produced → read, p50, folds running", "≤ 2 s", f"{read['p50']:.2f} s", read["p50"] <= 2)
        yield _goal("produced → read, p99, folds running", "≤ 5 s", f"{read['p99']:.2f} s", read["p99"] <= 5)
        lag = (fresh["fold_lag"] or {"p99": float("inf")})["p99"]
        yield _goal("fold lag of a plain Delta reader, p99", "≤ 60 s", f"{lag:.1f} s", lag <= 60)


def _operator_goals(rows: Sequence[Results]) -> Iterator[Results]:
    ratios = [_ratio(row, "visible_per_second") for row in rows]
    for row, ratio in zip(rows, ratios, strict=True):
        folded = _ratio(row, "folded_per_second")
        measured = f"{ratio:.2f} ×, with the fold {folded:.2f} ×" if ratio and folded else "failed"
        yield _goal(f"{_said(row)}: visible records/s, against Kafka Streams exactly once", "≥ 1 ×", measured, (ratio or 0) >= 1)
    if len(rows) > 3:
        fast = sum((ratio or 0) >= 1.5 for ratio in ratios)
        yield _goal("operators at 1.5 × Kafka Streams exactly once, or more", "≥ 3", f"{fast} of {len(rows)}", fast >= 3)


def _replay_goals(replay: Results) -> Iterator[Results]:
    race = {r["contender"]: r for r in replay["race"]}
    ratio = race["watertable"]["folded_per_second"] / race["kafka-streams-reset"]["visible_per_second"]
    yield _goal("replayed records/s with the fold, against Kafka Streams reset, exactly once", "≥ 2 ×", f"{ratio:.2f} ×", ratio >= 2)
    yield from _rewind_goals(replay, "")


def _rewind_goals(found: Results, whose: str) -> Iterator[Results]:
    whole, last = found["rewinds"]["earliest"], found["rewinds"]["last"]
    visible, folded = (whole[f"{to}_seconds"] / last[f"{to}_seconds"] for to in ("visible", "folded"))
    measured = f"{visible:.1f} ×, with the fold {folded:.1f} ×"
    yield _goal(f"{whose}rewind by the last hundredth, against to earliest, until all is visible", "≥ 20 ×", measured, visible >= 20)
    off = [row["likely"] / row["seconds"] - 1 for row in found["etas"]]
    yield _goal(f"{whose}ETA of a plan against its replay", "± 25 %", ", ".join(f"{x:+.0%}" for x in off), all(abs(x) <= 0.25 for x in off))


def _goal(goal: str, wanted: str, measured: str, reached: bool) -> Results:
    return {"goal": goal, "wanted": wanted, "measured": measured, "reached": reached}


def _race(what: str, rows: Sequence[Results], sizes: Results) -> Table:
    table = Table(
        "Contender", "visible rec/s", "with the fold", "× ours", "seconds", "start s", "peak MiB", title_justify="left",
        title=f"{what}: {sizes['records']:,} JSON records, {sizes['keys']:,} keys, 4 partitions",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    ours = next((r["visible_per_second"] for r in rows if r["contender"] == "watertable"), None)
    for row in sorted(rows, key=lambda r: -r["visible_per_second"]):
        folded = row["folded_per_second"]
        table.add_row(
            _TITLES[row["contender"]], f"{row['visible_per_second']:,.0f}", f"{folded:,.0f}" if folded else "",
            f"{row['visible_per_second'] / ours:.2f}" if ours else "", f"{row['visible_seconds']:.1f}", f"{row['start_seconds']:.1f}",
            f"{row['peak_mib']:,}",
        )  # fmt: skip
    return table


def _operators(rows: Sequence[Results]) -> Table:
    table = Table(
        "Operator", "records", "rows", "visible rec/s", "with the fold", "Kafka Streams", "×", "× with the fold", "peak MiB", "theirs",
        title="Operators beside Kafka Streams, exactly once", title_justify="left",
    )  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        rates = [
            row[runner].get(name)
            for runner, name in ((OURS, "visible_per_second"), (OURS, "folded_per_second"), (STREAMS, "visible_per_second"))
        ]
        ratios = [_ratio(row, name) for name in ("visible_per_second", "folded_per_second")]
        table.add_row(
            _said(row), f"{row['records']:,}", f"{row['rows']:,}", *(f"{rate:,.0f}" if rate else "failed" for rate in rates),
            *(f"{ratio:.2f}" if ratio else "" for ratio in ratios), *(f"{row[runner].get('peak_mib', 0):,}" for runner in (OURS, STREAMS)),
        )  # fmt: skip
    return table


def _ratio(row: Results, rate: str) -> float | None:
    """Hold our rate against Kafka Streams', which has one; None where either failed."""
    ours, theirs = row[OURS].get(rate), row[STREAMS].get("visible_per_second")
    return ours / theirs if ours and theirs else None


def _said(row: Results) -> str:
    return str(row["operator"]).replace("_", " ")


def _rewinds(heading: str, found: Results) -> Table:
    table = Table("Rewind", "records", "visible s", "with the fold s", "ETA said", title=heading, title_justify="left")
    for what, title in (("earliest", "to earliest"), ("last", "by the last hundredth")):
        row = found["rewinds"][what]
        table.add_row(title, f"{row['records']:,}", f"{row['visible_seconds']:.1f}", f"{row['folded_seconds']:.1f}", "")
    for row in found["etas"]:
        said = f"{row['likely']:.1f} ({row['low']:.1f} to {row['high']:.1f})"
        table.add_row(f"{row['workload']}: the replay alone", f"{row['records']:,}", f"{row['seconds']:.1f}", "", said)
    return table


def _planning(rows: Sequence[Results], sizes: Results) -> Table:
    table = Table(
        "Tables", "jobs", "stages", "tasks", "batch ms", "planning ms", "in jobs ms", "driver ms", title_justify="left",
        title=f"One batch of {sizes['batch']:,} records, medians",
    )  # fmt: skip
    for row in rows:
        names = ("tables", "jobs", "stages", "tasks", "batch_ms", "planning_ms", "jobs_ms", "driver_ms")
        table.add_row(*(f"{row[n]:.0f}" for n in names))
    return table


def _growth(rows: Sequence[Results], sizes: Results) -> Table:
    title = f"One batch of {sizes['batch']:,} changes whose old rows are looked up, by the size of the table"
    table = Table("Keys", "median s", "slowest s", "jobs", "batches", title=title, title_justify="left")
    for row in rows:
        slowest = f"{row['slowest_seconds']:.2f}"
        table.add_row(f"{row['keys']:,}", f"{row['batch_seconds']:.2f}", slowest, f"{row['jobs']:g}", str(row["batches"]))
    return table


def _age(rows: Sequence[Results], sizes: Results) -> Table:
    title = f"One batch of {sizes['batch']:,} changes whose old rows are looked up, a fold and reads, by the commits in the logs"
    names = ("batch", "slowest", "fold", "read", "first_read")
    table = Table("Commits", "median s", "slowest s", "fold s", "read s", "first read s", title=title, title_justify="left")
    for row in rows:
        table.add_row(f"{row['commits']:,}", *(f"{row[f'{name}_seconds']:.2f}" for name in names))
    return table


def _wide(rows: Sequence[Results], sizes: Results) -> Table:
    table = Table(
        "Tables", "columns", "batch s", "jobs", "rows", "files a commit", "MiB a commit", "KiB the median file", "bytes a row",
        title=f"Many wide tables: one batch of {sizes['batch']:,} records, and its files in the changelog", title_justify="left",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            str(row["tables"]), str(row["columns"]), f"{row['batch_seconds']:.2f}", f"{row['jobs']:g}", f"{row['rows']:,.0f}",
            f"{row['files']:.1f}", f"{row['commit_bytes'] / 2**20:.2f}", f"{row['file_bytes'] / 2**10:.1f}",
            f"{row['commit_bytes'] / row['rows']:.1f}",
        )  # fmt: skip
    return table


def _partitions(rows: Sequence[Results]) -> Table:
    title = f"{rows[0]['records']:,} records read again, by the partitions of their topic"
    table = Table("Partitions", "until all is visible, s", "with the fold, s", title=title, title_justify="left")
    for row in rows:
        table.add_row(str(row["partitions"]), f"{row['visible_seconds']:.2f}", f"{row['folded_seconds']:.2f}")
    return table


def _freshness(found: Results) -> Table:
    table = Table(
        "", "p50", "p99", "max", title_justify="left",
        title=f"The retail app at {found['rate']:,.0f} records/s, {found['folds']} folds, {found['reads_checked']} reads checked",
    )  # fmt: skip
    lines: Mapping[str, str] = {
        "committed": "produced → committed, s", "read": "produced → in a read's result, s", "batch_seconds": "batch, s",
        "read_seconds": "one wt.read and sum, s", "fold_lag": "fold lag of a plain Delta reader, s",
    }  # fmt: skip
    for name, title in lines.items():
        if found[name]:
            table.add_row(title, *(f"{found[name][q]:.2f}" for q in ("p50", "p99", "max")))
    return table


def _reading(rows: Sequence[Results]) -> Table:
    title = f"wt.read of {rows[0]['keys']:,} keys, by unfolded rows"
    table = Table("Unfolded rows", "sum over the table, s", "one key, s", title=title, title_justify="left")
    for row in rows:
        table.add_row(f"{row['unfolded']:,}", f"{row['sum_seconds']:.2f}", f"{row['key_seconds']:.2f}")
    return table


def _lines(file: str) -> list[str]:
    path = Path(file)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
