"""Processors on Spark: equal to the interpreter, whatever the batches, crashes, folds and rewinds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import watertable as wt
from tests.properties.engines import CompilerRun, run_interpreter, tiny
from tests.spark.runs import Run, apart, by, cut, survives
from tests.unit import test_wall_clock as wall
from tests.unit.test_processors import KEPT, TIMED, baskets, clocked, shopping, site, tale, timed
from watertable.plan.plan import Topology
from watertable.plan.windows import EPOCH
from watertable.records import Advance, Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
PARTITIONS = (("views", 0), ("views", 1))


def shop() -> Topology:
    """Keep, forward, and go on with all of it: tables of children, of stores, joins with them, and another processor below."""
    app, views, made = site()
    made["fresh"].group_by_key().agg(n=wt.count(), pages=wt.collect_list("page")).materialized_as("fresh")
    made["fresh"].merge(made["often"].map_values(page="page", n="CAST(n * 10 AS BIGINT)")).to("both")
    made["often"].join(made.tables["all"], n="n + right.n").to("joined")
    made.tables["pages"].group_by("page").agg(n=wt.sum("n"), visitors=wt.count()).materialized_as("bypage")
    last = made.tables["pages"].to_stream().map_values(n="new.n", before="old.n")
    last.process(_sevens, stores={"sevens": wt.key_value_store("ns ARRAY<INT>, of STRUCT<n: INT, at: TIMESTAMP>")})
    views.select_key("page").process(_last, stores={"lasts": wt.key_value_store("who STRING, at TIMESTAMP", key="minute INT")})
    return app.topology()


def _sevens(record: wt.Record, context: wt.Context) -> None:
    store = context.store("sevens")
    row = store.get() or {"ns": []}
    if record.value is None:
        store.delete()
    elif record.value["n"] is not None:
        n = 60 // (record.value["n"] - 3)  # fails for the third
        store.put({"ns": [*row["ns"], n][-3:], "of": {"n": n, "at": record.timestamp}})


def _last(record: wt.Record, context: wt.Context) -> None:
    minute = record.timestamp.minute
    context.store("lasts").put({"who": f"{record.partition}/{record.offset}", "at": record.stream_time}, minute)


def test_spark_gives_what_the_interpreter_does_whatever_the_cuts(spark: SparkSession) -> None:
    records, topology, rng = tale(90), shop(), random.Random(5)
    for cuts in (0, 6):
        batches = cut(records, rng, cuts)
        wanted = run_interpreter(topology, batches)
        assert len(wanted.quarantine) > 5
        assert wanted.tables["lasts"]
        assert wanted.outputs["joined"]
        assert wanted.tables["sevens"]
        assert wanted.differences(CompilerRun(tiny(spark), topology).run(batches)) == []


@pytest.mark.slow
def test_after_a_crash_between_any_two_commits_and_a_rewind_to_any_of_them_all_is_the_same(spark: SparkSession, tmp_path: Path) -> None:
    app, _, made = site()
    made["fresh"].group_by_key().agg(n=wt.count(), pages=wt.collect_list("page")).materialized_as("fresh")
    made["often"].group_by("page").agg(n=wt.sum("n")).materialized_as("often")
    survives(tiny(spark), tmp_path, app.topology(), PARTITIONS, tale(24), 8)


def test_a_stream_joined_with_a_store_asks_for_the_rows_of_a_records_key(spark: SparkSession) -> None:
    app, views, made = site()
    seen = views.select_key("who", "page").left_join(made.tables["pages"], n="right.n")
    seen.group_by("page").agg(ns=wt.collect_list("n")).materialized_as("seen")
    topology, batches = app.topology(), by(tale(24), 8)
    wanted = run_interpreter(topology, batches)
    assert any(n > 1 for row in wanted.tables["seen"].values() for n in row["ns"])
    assert wanted.differences(CompilerRun(tiny(spark), topology).run(batches)) == []


def test_the_jobs_of_a_batch_are_as_many_whatever_the_records_and_the_keys(spark: SparkSession, tmp_path: Path) -> None:
    app, _, made = site()
    made["often"].to("often")
    run = Run(tiny(spark), tmp_path, app.topology(), PARTITIONS)
    for size in (3, 300, 30):
        begin = run.next["views", 0]
        run.read(
            [Record("views", 0, begin + n, EPOCH + wt.seconds(begin + n), f"k{n % 50}".encode(), b'{"page": "home"}') for n in range(size)]
        )
    assert run.jobs[1] == run.jobs[2] <= 12, f"{run.jobs} Spark jobs"


def test_what_expires_in_one_call_is_told_in_the_order_of_its_keys(spark: SparkSession) -> None:
    app = wt.App("site")
    views = app.topic("views", key="who STRING", value="n INT, ago INT").stream()
    made = views.process(timed, children={"told": TIMED}, stores=KEPT)
    for name, table in made.tables.items():
        table.to_stream().to(name)
    seconds = [100 + n for n in range(12)] + [400]
    agos = random.Random(3).sample(range(50), 13)
    records = [
        Record("views", 0, n, EPOCH + wt.seconds(second), b"ann", json.dumps({"n": 1 + n, "ago": ago}).encode())
        for n, (second, ago) in enumerate(zip(seconds, agos, strict=True))
    ]
    batches = [records[:5], records[5:12], records[12:]]
    wanted = run_interpreter(app.topology(), batches)
    assert wanted.differences(CompilerRun(tiny(spark), app.topology()).run(batches)) == []
    for name in made.tables:
        gone = [json.loads(key or b"") for key, value, _, _ in wanted.outputs[name] if value is None]
        times = [part.get("at", part.get("valid_from")) for part in gone]
        assert len(times) > 9
        assert times == sorted(times), name


@pytest.mark.slow
def test_window_and_versioned_stores_forget_the_same_whatever_the_cuts(spark: SparkSession) -> None:
    rng = random.Random(8)
    records = [
        Record("views", n % 2, n // 2, EPOCH + wt.seconds(60 + 7 * n), b"ab"[n % 2 :][:1], json.dumps({"n": n % 4, "ago": ago}).encode())
        for n, ago in enumerate(rng.choice([None, None, 5, 30, 100]) for _ in range(40))
    ]
    app, told = clocked()
    told.to("told")
    topology = app.topology()
    batches = cut(records, rng, 5)
    assert run_interpreter(topology, batches).differences(CompilerRun(tiny(spark), topology).run(batches)) == []


@pytest.mark.slow
def test_punctuators_do_the_same_whatever_the_cuts(spark: SparkSession) -> None:
    records, rng = shopping(80), random.Random(2)
    app, told = baskets()
    told.to("told")
    topology = app.topology()
    for cuts in (0, 6):
        batches = cut(records, rng, cuts)
        wanted = run_interpreter(topology, batches)
        assert any(offset < 0 for _, _, offset, *_ in wanted.quarantine)
        assert len(wanted.outputs["told"]) > 10
        assert wanted.differences(CompilerRun(tiny(spark), topology).run(batches)) == []


@pytest.mark.slow
def test_what_is_scheduled_comes_once_after_crashes_and_rewinds(spark: SparkSession, tmp_path: Path) -> None:
    app, told = baskets()
    told.group_by_key().agg(n=wt.count(), all=wt.collect_list("what")).materialized_as("told")
    run = survives(tiny(spark), tmp_path, app.topology(), PARTITIONS, shopping(20), 8)
    assert sum(row["n"] for row in run.tables()["told"].values()) > 3


@pytest.mark.slow
def test_punctuators_by_the_wall_clock_do_the_same_whatever_the_cuts(spark: SparkSession) -> None:
    rng, topology = random.Random(9), wall.shop()
    items = wall.lived(topology, wall.shopping(60), rng, most=8)
    assert len(items) > 60 + 10
    batches = list(apart(cut(items, rng, 2)))
    wanted = run_interpreter(topology, [items])
    assert any(offset < -(1 << 60) for _, _, offset, *_ in wanted.quarantine)
    assert len(wanted.outputs["out"]) > 10
    found = CompilerRun(tiny(spark), topology).run(batches)
    assert run_interpreter(topology, batches).differences(found) == []
    assert wanted.tables == found.tables


@pytest.mark.slow
def test_what_waits_for_the_wall_clock_comes_once_after_crashes_and_rewinds(spark: SparkSession, tmp_path: Path) -> None:
    topology = wall.shop()
    items = wall.lived(topology, wall.shopping(24), random.Random(8), most=12)
    run = survives(tiny(spark), tmp_path, topology, PARTITIONS, items, 9)
    assert sum(row["n"] for row in run.tables()["told"].values()) > 3
    made = {(i.topic, i.partition, i.offset, i.stream_time, i.clock) for i in items if isinstance(i, Advance)}
    assert len(made) > 5
    log = run.store.changelog
    assert {(a.topic, a.partition, a.before, a.stream_time, a.clock) for a in log.advances({"views": "views"})} == made
    assert log.furthest({"views": "views"}) == run.next
    assert log.furthest({"views": "another"}) == {}


@pytest.mark.slow
def test_the_punctuators_of_final_rows_do_what_the_interpreters_do(spark: SparkSession) -> None:
    app = wt.App("site")
    views = app.topic("views", key="who STRING", value="what STRING").stream()
    sums = views.group_by_key().windowed_by(wt.tumbling(seconds=10), emit="on_close").agg(n=wt.count()).materialized_as("sums")
    late = {"tell": _tell, "notice": _tell}
    sums.to_stream().map_values(n="new.n").process_values(_wait, value="at TIMESTAMP, st TIMESTAMP", punctuators=late).to("told")
    topology = app.topology()
    items = wall.lived(topology, wall.shopping(40), random.Random(4), most=9)
    batches = list(apart([items]))
    wanted = run_interpreter(topology, batches)
    assert sum(isinstance(item, Advance) for item in items) > 0
    assert len(wanted.outputs["told"]) > 4
    assert wanted.differences(CompilerRun(tiny(spark), topology).run(batches)) == []


def _wait(record: wt.Record, context: wt.Context) -> None:
    context.schedule("tell", at=record.timestamp + wt.seconds(5))
    context.schedule("notice", at=record.timestamp + wt.seconds(5), by="wall_clock")


def _tell(record: wt.Record, context: wt.Context) -> None:
    context.forward({"at": record.timestamp, "st": record.stream_time})


def _both(record: wt.Record, context: wt.Context) -> None:
    for name in ("first", "second"):
        context.schedule(name, at=record.timestamp + wt.seconds(1))


def _one(record: wt.Record, context: wt.Context) -> None:
    context.forward({"x": 1})


def _two(record: wt.Record, context: wt.Context) -> None:
    context.forward({"x": 2})


def test_what_punctuators_of_one_time_forward_comes_alone_once(spark: SparkSession) -> None:
    app = wt.App("site")
    visits = app.topic("visits", key="who STRING", value="x INT").stream()
    orders = app.topic("orders", key="who STRING", value="x INT").stream()
    called = visits.process_values(
        _both, value="x INT", stores={"seen": wt.key_value_store("n INT")}, punctuators={"first": _one, "second": _two}
    )
    alone = called.left_join(orders, within=wt.seconds(2), x="left.x", other="right.x")
    alone.group_by_key().agg(xs=wt.collect_list("x")).materialized_as("alone")
    alone.to("alone")
    topology, minute = app.topology(), EPOCH + wt.minutes(1)
    records = [
        Record("visits", 0, 0, EPOCH, b"a", b'{"x": 0}'), Record("visits", 0, 1, minute, b"z", b'{"x": 0}'),
        Record("orders", 0, 0, minute, b"z", b'{"x": 0}'),
    ]  # fmt: skip
    for batches in ([records], [[record] for record in records]):
        wanted = run_interpreter(topology, batches)
        assert [row["xs"] for key, row in wanted.tables["alone"].items() if key == ("a",)] == [[1, 2]]
        assert wanted.differences(CompilerRun(tiny(spark), topology).run(batches)) == []
