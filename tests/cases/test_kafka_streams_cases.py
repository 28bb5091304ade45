"""Kafka Streams' own cases, as data (see SOURCE.md): each runs on both engines.

Kafka's tests often fold values into one string, in the order of processing. Such a fold has no algebra, and so no operator here; but
its content is checked: how many values, how many different ones, the least and the greatest.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, Result, as_records, run_interpreter, tiny
from watertable.dsl.streams import Stream
from watertable.dsl.tables import Table
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH, Windows
from watertable.records import Advance, Record

KafkaCase = dict[str, Any]
CASES: dict[str, KafkaCase] = {c["id"]: c for c in json.loads((Path(__file__).parent / "kafka-streams-cases.json").read_text())}

PASSING = {
    "st-inner-grace-late": [{"topic": topic, "key": "nobody", "value": "", "ts": 4} for topic in ("T", "S")],
}
"""Records that move time on: Kafka Streams waits for the time of the stream alone, and here both topics must have passed it."""
ALONE = ("kstream_kstream_left_join", "kstream_kstream_outer_join")
"""Operators of which records come alone once their window is closed; Kafka's tests ask for the set, and so do these."""

CONTENT: dict[str, Any] = {"n": wt.count(), "kinds": wt.count_distinct("v"), "least": wt.min("v"), "greatest": wt.max("v")}


# -- a topology for each operator ---------------------------------------------------------------------------------------------------


def text(case: KafkaCase, app: wt.App) -> Stream:
    """Read the case's topic."""
    (name,) = case["settings"].get("topics") or [case["settings"]["topic"]]
    return app.topic(name, key="k STRING", value="v STRING").stream()


def cogrouped(case: KafkaCase, app: wt.App) -> Table:
    """Fold each of the case's topics by itself, and put their content together; values that it aggregates with '-' say so.

    No value is in both topics, so that they have as many different ones as each of them.
    """
    grouped = []
    for name in case["settings"]["topics"]:
        stream = app.topic(name, key="k STRING", value="v STRING").stream()
        minus = re.search(rf"topic {name}: (agg \+ )?'-'", case["settings"]["aggregation"])
        grouped.append((stream.map_values(v="concat('-', v)") if minus else stream).group_by_key())
    both = grouped[0].cogroup(**CONTENT)
    if len(grouped) > 1:
        both = both.cogroup(grouped[1], **{f"other_{name}": aggregate for name, aggregate in CONTENT.items()})
    table = (both.windowed_by(windows(case)) if "window" in case["settings"] else both).agg()
    if len(grouped) == 1:
        return table
    return table.map_values(n="n + other_n", kinds="kinds + other_kinds", least="least(least, other_least)",
                            greatest="greatest(greatest, other_greatest)")  # fmt: skip


def windows(case: KafkaCase) -> Windows:
    if case["settings"]["window"] == "session":
        return wt.sessions(gap=wt.milliseconds(case["settings"]["gap_ms"]), grace=wt.milliseconds(case["settings"]["grace_ms"]))
    if case["settings"]["window"] == "sliding":
        difference, grace = (wt.milliseconds(case["settings"][f"{part}_ms"]) for part in ("time_difference", "grace"))
        return wt.sliding(difference=difference, grace=grace)
    size, advance, grace = (timedelta(milliseconds=case["settings"][f"{part}_ms"]) for part in ("size", "advance", "grace"))
    return wt.TimeWindows(size, advance, grace)


def numbers(app: wt.App) -> Table:
    return app.topic("T", key="k STRING", value="v INT").table()


def paired(case: KafkaCase, app: wt.App) -> None:
    """Join the case's two streams within its window."""
    settings = case["settings"]
    left, right = (app.topic(settings[f"{side}_topic"], key="k STRING", value="v STRING").stream() for side in ("left", "right"))
    before, after, grace = (timedelta(milliseconds=settings[f"{part}_ms"]) for part in ("window_before", "window_after", "grace"))
    (sign,) = re.findall(r"left \+ '(.)' \+ right", settings["joiner"])
    within = wt.join_windows(before=before, after=after, grace=grace)
    join = {"inner": Stream.join, "left": Stream.left_join, "outer": Stream.outer_join}[case["operator"].split("_")[2]]
    join(left, right, within=within, v=f"concat(COALESCE(left.v, 'null'), '{sign}', COALESCE(right.v, 'null'))").to("updates")


def split(case: KafkaCase, app: wt.App) -> None:
    stream = app.topic("S", key="k STRING", value="v STRING").stream().split()
    for name, condition in case["settings"]["branches"]:
        stream.branch(name, condition.replace("key", "CAST(k AS INT)"))
    for name, branch in stream.default_branch(case["settings"]["default_branch"]).items():
        branch.to(name)


def flat_map_values(case: KafkaCase, app: wt.App) -> None:
    stream = app.topic("S", key="k STRING", value="v INT").stream()
    stream.flat_map_values(v="array(concat('v', v), concat('V', v))").to("updates")


def select_key(case: KafkaCase, app: wt.App) -> None:
    stream = app.topic("S", key="k STRING", value="v INT").stream()
    stream.select_key(k="CASE v WHEN 1 THEN 'ONE' WHEN 2 THEN 'TWO' WHEN 3 THEN 'THREE' END").to("updates")


JOINS = {"inner": Table.join, "left": Table.left_join, "outer": Table.outer_join}


def joined(case: KafkaCase, app: wt.App) -> None:
    """Join the case's two tables as its operator says, one join after the other; a missing side renders as 'null'."""
    left, right = (read(case, app, side) for side in ("left", "right"))
    (sign,) = re.findall(r"left \+ '(.)' \+ right", case["settings"]["joiner"])
    for how in re.findall(r"ktable_ktable_(\w+)_join", case["operator"]):
        left = JOINS[how](left, right, v=f"concat(COALESCE(left.v, 'null'), '{sign}', COALESCE(right.v, 'null'))")
    keep(left)


def read(case: KafkaCase, app: wt.App, side: str, *, named: bool = False) -> Table:
    """Read a side's table, and keep it with a history if the case says so."""
    settings = case["settings"]
    history = wt.milliseconds(settings.get("history_retention_ms", 300_000)) if settings.get(f"{side}_versioned") else None
    table = app.topic(settings[f"{side}_topic"], key="k STRING", value="v STRING").table()
    return table.materialized_as(side, history=history) if named or history else table


def joined_on(case: KafkaCase, app: wt.App) -> None:
    """Join the case's two tables by the key that the left value names after its '|', if any."""
    settings, tables = case["settings"], {side: read(case, app, side, named=True) for side in ("left", "right")}
    on = "CAST(NULL AS STRING)" if settings["foreign_key"] == "always null" else "split(v, '[|]')[1]"
    join = Table.left_join if "left_join" in case["operator"] else Table.join
    keep(join(tables["left"], tables["right"], on=on, v="concat('(', left.v, ',', COALESCE(right.v, 'null'), ')')"))


def looked_up(case: KafkaCase, app: wt.App) -> None:
    """Join the case's stream with its table, by a key that it says if that isn't the record's."""
    settings, keys = case["settings"], {"always null": "CAST(NULL AS STRING)", None: None}
    stream = app.topic(settings["stream_topic"], key="k STRING", value="v STRING").stream()
    topic = app.topic(settings["table_topic"], key="k STRING", value="v STRING")
    history = wt.milliseconds(settings["history_retention_ms"]) if settings.get("table_versioned") else None
    table = (topic.stream().to_table() if "table_from_stream" in settings else topic.table()).materialized_as("t", history=history)
    (sign,) = re.findall(r"left \+ '(.)' \+ right", settings["joiner"])
    join = Stream.left_join if "left_join" in case["operator"] else Stream.join
    on = keys.get(settings.get("join_key"), "CASE WHEN v LIKE '%,%' THEN split(v, ',')[1] END")
    grace = wt.milliseconds(settings["grace_ms"]) if "grace_ms" in settings else None
    join(stream, table, on=on, grace=grace, v=f"concat(v, '{sign}', COALESCE(right.v, 'null'))").to("updates")


def keep(table: Table) -> None:
    table.materialized_as("t").to_stream().to("updates")


def final(case: KafkaCase, table: Table) -> None:
    """Keep a windowed table, and what is final of it if the case asks for that."""
    keep(table)
    if wants_final(case):
        suppressed(table)


def suppressed(table: Table) -> None:
    table.suppress(wt.until_window_closes()).materialized_as("final").to_stream().to("final")


def limited(case: KafkaCase, app: wt.App) -> None:
    """Show a table's changes once in a while, before its rows are counted or after."""
    limit = wt.until_time_limit(wt.milliseconds(case["settings"]["time_limit_ms"]))
    if "suppress -> groupBy" in case["settings"]["plan"]:
        keep(rows(app).suppress(limit).materialized_as("shown").group_by(g="k").count("v"))
    else:
        keep(rows(app).group_by(g="v").count("v").materialized_as("counts").suppress(limit))


def wants_final(case: KafkaCase) -> bool:
    return "suppress" in case["settings"] or case["settings"].get("emit") == "on_window_close" or "expect_emitted_on_close" in case


def rows(app: wt.App, value: str = "v STRING") -> wt.dsl.Table:
    return app.topic("T", key="k STRING", value=value).table().materialized_as("rows")


def group_by_aggregate(case: KafkaCase, app: wt.App) -> None:
    group, value = ("k", "v") if case["settings"]["group_by"] == "same key" else ("substr(k, 1, 1)", "substr(k, 2, 1)")
    content = {"n": wt.count(), "kinds": wt.count_distinct(value), "least": wt.min(value), "greatest": wt.max(value)}
    keep(rows(app).group_by(k=group).agg(**content))


def truncated(app: wt.App) -> wt.dsl.Table:
    return app.topic("T", key="k STRING", value="v DOUBLE").table().map_values(v="CAST(v AS INT)").materialized_as("rows")


def step(case: KafkaCase) -> str:
    """Write the case's reducer, which puts a sign between two texts."""
    (sign,) = re.findall(r"reduce: a \+ '(.)' \+ b", case["settings"]["aggregation"])
    return f"concat(acc.v, '{sign}', v)"


TOPOLOGIES: dict[str, Callable[[KafkaCase, wt.App], object]] = {
    "ktable_source": lambda case, app: keep(numbers(app)),
    "ktable_filter": lambda case, app: keep(numbers(app).filter("v % 2 = 0")),
    "ktable_filterNot": lambda case, app: keep(numbers(app).filter_not("v % 2 = 0")),
    "ktable_mapValues": lambda case, app: keep(app.topic("T", key="k STRING", value="v STRING").table().map_values(v="CAST(v AS INT)")),
    "ktable_groupby_aggregate": group_by_aggregate,
    "ktable_groupby_count": lambda case, app: keep(rows(app).group_by(k="v").count("v")),
    "ktable_groupby_reduce": lambda case, app: keep(truncated(app).group_by("k").reduce(v="acc.v + v")),
    "kstream_groupbykey_aggregate": lambda case, app: keep(text(case, app).group_by_key().agg(**CONTENT)),
    "kstream_groupbykey_reduce": lambda case, app: keep(text(case, app).group_by_key().reduce(v=step(case))),
    "kstream_cogroup": lambda case, app: keep(cogrouped(case, app)),
    "kstream_cogroup_window": lambda case, app: keep(cogrouped(case, app)),
    "kstream_cogroup_session": lambda case, app: keep(cogrouped(case, app)),
    "kstream_session_count": lambda case, app: final(case, text(case, app).group_by_key().windowed_by(windows(case)).count("v")),
    "kstream_session_reduce": lambda case, app: keep(text(case, app).group_by_key().windowed_by(windows(case)).reduce(v=step(case))),
    "kstream_session_count_suppress": lambda case, app: final(case, text(case, app).group_by_key().windowed_by(windows(case)).count("v")),
    "kstream_sliding_count_suppress": lambda case, app: suppressed(text(case, app).group_by_key().windowed_by(windows(case)).count("v")),
    "kstream_sliding_aggregate": lambda case, app: final(case, text(case, app).group_by_key().windowed_by(windows(case)).agg(**CONTENT)),
    "kstream_sliding_reduce": lambda case, app: final(case, text(case, app).group_by_key().windowed_by(windows(case)).reduce(v=step(case))),
    "kstream_sliding_count": lambda case, app: final(case, text(case, app).group_by_key().windowed_by(windows(case)).count("v")),
    "kstream_window_aggregate": lambda case, app: final(case, text(case, app).group_by_key().windowed_by(windows(case)).agg(**CONTENT)),
    "kstream_window_count": lambda case, app: keep(text(case, app).group_by_key().windowed_by(windows(case)).count("v")),
    "kstream_window_count_suppress": lambda case, app: final(case, text(case, app).group_by_key().windowed_by(windows(case)).count("v")),
    "ktable_suppress_time_limit": limited,
    "ktable_ktable_inner_join": joined,
    "ktable_ktable_left_join": joined,
    "ktable_ktable_outer_join": joined,
    "ktable_ktable_inner_join -> ktable_ktable_left_join": joined,
    "ktable_ktable_foreign_key_inner_join": joined_on,
    "ktable_ktable_foreign_key_left_join": joined_on,
    "kstream_ktable_inner_join": looked_up,
    "kstream_ktable_left_join": looked_up,
    "kstream_globalktable_inner_join": looked_up,
    "kstream_globalktable_left_join": looked_up,
    "kstream_kstream_inner_join": paired,
    "kstream_kstream_left_join": paired,
    "kstream_kstream_outer_join": paired,
    "kstream_repartition": lambda case, app: text(case, app).repartition().to("updates"),
    "kstream_split": split,
    "kstream_flatMapValues": flat_map_values,
    "kstream_selectKey": select_key,
}


def run(case: KafkaCase, engine: str, request: pytest.FixtureRequest) -> Result:
    topology, records = made(case)
    gap = timedelta(milliseconds=case["settings"].get("gap_ms", 0))
    closing = [closed(records, gap)] if case["operator"] in ALONE or (gap and wants_final(case)) else []
    match engine:
        case "interpreter, record by record":
            return run_interpreter(topology, [*([record] for record in records), *closing])
        case "interpreter, one batch":
            return run_interpreter(topology, [[item for batch in (records, *closing) for item in batch]])
        case _:
            half = (len(records) + 1) // 2
            batches = in_log_order(records) if "join" in case["operator"] else [records[:half], records[half:]]
            return CompilerRun(tiny(request.getfixturevalue("spark")), topology).run([*batches, *closing])


def made(case: KafkaCase) -> tuple[Topology, list[Record]]:
    """Write the case's topology, and its records."""
    app = wt.App("case")
    TOPOLOGIES[case["operator"]](case, app)
    return app.topology(), as_records([*case["inputs"], *PASSING.get(case["id"], [])])


def closed(records: list[Record], gap: timedelta) -> list[Advance]:
    """Let every topic come as far as the furthest one, at the end, by an advance; of sessions, a gap further.

    Kafka's tests pipe both topics into one task, which has one stream time, the greatest. Here a window is closed when every partition
    has passed it, so the topic that is behind must be told to count as if it had come as far. A session closes a gap later than Kafka's.
    """
    furthest = max(record.timestamp for record in records) + gap
    return [Advance(record.topic, record.partition, record.offset + 1, furthest) for record in {r.topic: r for r in records}.values()]


def in_log_order(records: list[Record]) -> list[list[Record]]:
    """Cut records where they don't arrive in log order: Kafka's tests of joins are about arrival."""
    batches: list[list[Record]] = []
    reached: dict[str, datetime] = {}
    before = (EPOCH, "")
    for record in records:
        reached[record.topic] = max(record.timestamp, reached.get(record.topic, EPOCH))
        here = (reached[record.topic], record.topic)
        if not batches or here < before:
            batches.append([])
        batches[-1].append(record)
        before = here
    return batches


# -- what is expected, in our shape ---------------------------------------------------------------------------------------------------


def content(folded: str) -> dict[str, object]:
    """Say what a string holds that Kafka's test folded: '0-1-1+2' of '-1', '-1' and '2'; the '0's that it began with are no values."""
    values = [value.removeprefix("+") for value in re.findall(r"[+-]?[^+-]+", folded) if value not in ("0", "+0")]
    if not re.search(r"[+-]", folded):
        values = list(folded.replace(":", ""))
    return {"n": len(values), "kinds": len(set(values)), "least": min(values), "greatest": max(values)}


def plain_value(case: KafkaCase, value: object) -> dict[str, object]:
    return content(value) if isinstance(value, str) and is_told_apart(case) else {"v": value}


def is_told_apart(case: KafkaCase) -> bool:
    """Tell whether a case folds texts by Kafka's own aggregator: then what went into them is compared, and not how they look."""
    return "aggregation" in case["settings"] and not case["operator"].endswith("_reduce")


def wanted_table(case: KafkaCase) -> dict[tuple[object, ...], dict[str, object]]:
    rows = case["expect_table"]
    if "net_values" in case:  # the rows that are there; the string says which ones were, too
        rows = {key: "".join(f"+{value}" for value in values) for key, values in case["net_values"].items()}
    if isinstance(rows, dict):
        return {(key,): {"k": key, **plain_value(case, value)} for key, value in rows.items()}
    wanted = {}
    for row in rows:
        bounds = tuple(EPOCH + timedelta(milliseconds=row[side]) for side in ("window_start", "window_end"))
        key = {"k": row["key"], "window_start": bounds[0], "window_end": bounds[1]}
        wanted[tuple(key.values())] = key | plain_value(case, row["value"])
    return wanted


def last_updates(result: Result) -> dict[tuple[object, ...], dict[str, object]]:
    """Give the row that the last update of each window says."""
    told = {key: value for key, value, *_ in result.outputs["updates"]}
    found = {}
    for key, value in ((json.loads(key or b""), json.loads(value or b"")) for key, value in told.items()):
        key |= {side: datetime.fromisoformat(key[side]) for side in ("window_start", "window_end")}
        found[tuple(key.values())] = key | value
    return found


ONE_BATCH = "interpreter, one batch"
ENGINES = ["interpreter, record by record", ONE_BATCH, pytest.param("compiler", marks=pytest.mark.spark)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case["id"])
def test_a_case_of_kafka_streams_comes_out_the_same(case: KafkaCase, engine: str, request: pytest.FixtureRequest) -> None:
    result = run(case, engine, request)
    checked = 0
    if "expect_table" in case:
        assert result.tables["t"] == wanted_table(case)
        checked += 1
    if "expect_dropped" in case:
        dropped = {key: n for key, n in (result.dropped | result.late).items() if n}
        keyless = sum(name == "t" for _, _, _, name, _ in result.quarantine.elements())  # in a table topic they are errors, not drops
        assert sum(dropped.values()) + keyless == case["expect_dropped"]
        checked += 1
    if "expect_branches" in case:
        assert {name: [json.loads(value)["v"] for _, value, *_ in found] for name, found in result.outputs.items()} == case[
            "expect_branches"
        ]  # type: ignore[arg-type]
        checked += 1
    if "final" in result.tables:  # the times of Kafka's final rows are those of a record; ours say when a window ends
        closed_rows = case.get("expect_emitted_on_close") or case["expect_records"]
        wanted = wanted_table(case | {"expect_table": closed_rows})
        assert result.tables["final"] == wanted
        assert len(result.outputs.get("final", [])) == len(wanted) == len(closed_rows)
        checked += 1
    if "sliding" in case["operator"] and "expect_table" in case:
        assert last_updates(result) == wanted_table(case)
        checked += 1
    if case["operator"] in ALONE:
        rows = Counter((row["key"], row["value"], EPOCH + timedelta(milliseconds=row["ts"])) for row in case["expect_records"])
        found = result.outputs.get("updates", [])
        assert Counter((key and key.decode(), json.loads(value or b"")["v"], at) for key, value, at, _ in found) == rows
        checked += 1
    elif (updates := wanted_updates(case)) is not None and (engine != ONE_BATCH or in_order(case)):
        assert [(key, value) for key, value, *_ in result.outputs.get("updates", [])] == updates
        checked += 1
    assert checked or engine == ONE_BATCH


CUT = [
    case for case in CASES.values() if case["operator"] == "ktable_suppress_time_limit"
    or any("versioned" in name and value is True for name, value in case["settings"].items())
]  # fmt: skip


@pytest.mark.parametrize("engine", ["interpreter", pytest.param("compiler", marks=[pytest.mark.spark, pytest.mark.slow])])
@pytest.mark.parametrize("case", CUT, ids=lambda case: case["id"])
def test_a_pure_case_comes_out_the_same_cut_at_random(case: KafkaCase, engine: str, request: pytest.FixtureRequest) -> None:
    rng = random.Random(case["id"])
    for _ in range(20 if engine == "interpreter" else 1):
        topology, records = made(case)
        cuts = [0, *sorted(rng.sample(range(1, len(records)), min(rng.randint(1, 4), len(records) - 1))), len(records)]
        batches = [records[start:end] for start, end in pairwise(cuts)]
        if engine == "interpreter":
            result = run_interpreter(topology, batches)
        else:
            result = CompilerRun(tiny(request.getfixturevalue("spark")), topology).run(batches)
        if "expect_table" in case:
            assert result.tables["t"] == wanted_table(case)
        if in_order(case):
            assert Counter((key, value) for key, value, *_ in result.outputs["updates"]) == Counter(wanted_updates(case))


def in_order(case: KafkaCase) -> bool:
    """Tell whether the updates are the same in one batch: those of joins of two topics depend on arrival, unless they wait."""
    return "join" not in case["operator"] or "grace_ms" in case["settings"]


def wanted_updates(case: KafkaCase) -> list[tuple[bytes | None, bytes | None]] | None:
    """Give the records to see in order: where values are plain, and where no tombstones of rows that never were are among them."""
    rows = case.get("unsuppressed_records", None if "suppress" in case["settings"] else case.get("expect_records"))
    if rows is None or case["operator"] in ("ktable_filter", "ktable_filterNot") or case["settings"].get("emit") == "on_window_close":
        return None
    if any(isinstance(row["value"], str) for row in rows) and is_told_apart(case):
        return None
    if case["operator"] == "ktable_suppress_time_limit":  # an emptied group is gone here, and not left at 0
        rows = [row | {"value": row["value"] or None} for row in rows]
    if "->" in case["operator"]:  # there Kafka Streams updates a row twice for a record that both joins read, to the same in the end
        rows = list({(row["after_input"], row["key"]): row for row in rows}.values())
    if "session" in case["operator"]:  # Kafka Streams takes back a session that only another state replaces; here it is one Change
        rows = [row for row in rows if row["value"] is not None or not any(_replaces(other, row) for other in rows)]
    if "foreign_key" in case["operator"]:  # Kafka Streams may send tombstones of rows that never were
        there = {given["after_input"]: given["table"] for given in case["checkpoints"]}
        rows = [row for row in rows if row["value"] is not None or row["key"] in there.get(row["after_input"] - 1, {row["key"]: None})]
    updates = []
    for row in rows:
        key = row["key"]
        if "window_start" in row:
            bounds = {side: EPOCH + timedelta(milliseconds=row[side]) for side in ("window_start", "window_end")}
            key = json.dumps({"k": key} | {side: f"{at:%Y-%m-%dT%H:%M:%S.%f}Z" for side, at in bounds.items()}, separators=(",", ":"))
        value = None if row["value"] is None else json.dumps({"v": row["value"]}, separators=(",", ":")).encode()
        updates.append((None if key is None else key.encode(), value))
    return updates


def _replaces(row: dict[str, Any], ended: dict[str, Any]) -> bool:
    where = ("after_input", "key", "window_start", "window_end")
    return row["value"] is not None and all(row[part] == ended[part] for part in where)


def test_every_case_is_covered() -> None:
    assert {case["operator"] for case in CASES.values()} == {*TOPOLOGIES}
    assert len(CASES) == 69
