"""Hold the benchmarks' own arithmetic: a measurement that can't fail, or that flatters, is none."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pyarrow as pa
import pytest

from benchmarks import report, topologies
from benchmarks.feeds import GRACE, OPERATORS, WINDOW, Trial
from benchmarks.growth import changes, new_keys
from benchmarks.planning import Interval, _covered
from benchmarks.race import BenchmarkFailed, Run, check
from benchmarks.suite import _fold_lag, _quantiles, _years
from benchmarks.workload import Answer, Workload
from watertable.testing import TopologyTestDriver


def test_the_answer_is_what_the_records_add_up_to() -> None:
    import json

    load = Workload("t", records=60_000, keys=500)
    amounts = [(key, json.loads(value)["amount"]) for _, key, value, _ in load.lines() if value]
    assert load.answer.keys == len({key for key, _ in amounts})
    assert (load.answer.records, load.answer.amount) == (len(amounts), sum(amount for _, amount in amounts))


def test_a_key_stays_in_its_partition() -> None:
    places = {(key, partition) for partition, key, _, _ in Workload("t", records=20_000, keys=300).lines()}
    assert len(places) == len({key for key, _ in places})


@pytest.mark.parametrize("name", OPERATORS)
def test_the_answer_of_an_operator_is_what_the_test_driver_computes(name: str) -> None:
    trial = Trial.of(name, history=1_000, records=2_000)
    topology = topologies.operator(name, "a", [feed.topic for feed in trial.feeds])
    driver = TopologyTestDriver(topology)
    for feed in sorted(trial.feeds, key=lambda feed: feed.begin):
        for _, key, value, time in feed.lines():
            driver.pipe_input(feed.topic, key, value, timestamp=time)
    rows = driver.table("result").values()
    numbers = [(row["n"], row["total"]) for row in rows]
    assert trial.answer == Answer(keys=len(numbers), records=sum(n for n, _ in numbers), amount=sum(n * t for n, t in numbers))
    assert not driver.quarantine()
    assert trial.answer.keys > 10


def test_what_is_late_is_so_in_any_partition_and_nothing_else_is() -> None:
    (feed,) = Trial.of("windowed_count", history=2_000, records=8_000).feeds
    by_partition: dict[int, int] = {}
    late = 0
    for n, row in enumerate(feed.rows()):
        partition = int(row.key[-7:]) % 4
        if n == feed.history:  # Kafka Streams starts again here, and has seen nothing yet
            by_partition.clear()
        seen = by_partition[partition] = max(by_partition.get(partition, 0), row.time)
        end = row.time // WINDOW * WINDOW + WINDOW
        assert row.late is (end + GRACE <= seen)
        late += row.late
    assert late > 20


def test_what_is_measured_comes_after_the_history_and_is_the_same_for_each_runner() -> None:
    for name in OPERATORS:
        ours, theirs = (Trial.of(name, 600, 1_000, runner) for runner in ("a", "b"))
        assert ours.answer == theirs.answer
        assert not {feed.topic for feed in ours.feeds} & {feed.topic for feed in theirs.feeds}
        assert ours.measured == 1_000
        assert all([*feed.lines()] == [*other.lines()] for feed, other in zip(ours.feeds, theirs.feeds, strict=True))


def test_changes_of_a_grown_table_are_of_keys_that_it_has_all_over_it() -> None:
    keys = {key for _, key, _, _ in new_keys(0, 100_000)}
    changed = [key for _, key, _, _ in changes(10_000, 100_000)]
    assert len(keys) == 100_000
    assert len({*changed}) == 10_000
    assert {*changed} <= keys
    assert {int(key[-8:]) // 10_000 for key in changed} == set(range(10))


def test_a_wrong_answer_is_a_failed_run_however_fast() -> None:
    wanted = Workload("t", records=1000, keys=10).answer
    said = {"event": "answer", "keys": wanted.keys, "records": wanted.records, "amount": wanted.amount}
    run = Run(name="x", start_seconds=0, seconds={"visible": 0.001}, peak_mib=1, events=[said])
    check(run, wanted)
    for name in ("keys", "records", "amount"):
        with pytest.raises(BenchmarkFailed, match="wrong"):
            check(replace(run, events=[said | {name: said[name] + 1}]), wanted)
    with pytest.raises(BenchmarkFailed, match="never said"):
        check(replace(run, events=[]), wanted)


def test_time_in_overlapping_jobs_counts_once() -> None:
    assert _covered([Interval(0, 10), Interval(5, 12), Interval(6, 7), Interval(20, 21)]) == 13


def test_a_fold_lag_is_the_age_of_the_oldest_commit_that_is_not_seen() -> None:
    commits = [{"seq": 1, "at": 10.0}, {"seq": 2, "at": 11.0}, {"seq": 3, "at": 12.0}]
    looks = [{"at": 5.0, "seq": 0}, {"at": 12.5, "seq": 0}, {"at": 13.0, "seq": 1}, {"at": 14.0, "seq": 3}]
    assert _fold_lag(commits, looks, since=6.0) == [2.5, 2.0, 0.0]


def test_quantiles_are_of_what_was_seen() -> None:
    assert _quantiles([float(n) for n in range(100)]) == {"p50": 50.0, "p99": 99.0, "max": 99.0}
    assert _quantiles([]) is None


def test_a_goal_that_is_missed_is_said_to_be() -> None:
    def race(ours: float, folded: float) -> list[dict[str, object]]:
        return [
            {"contender": "watertable", "visible_per_second": ours, "folded_per_second": folded},
            {"contender": "kafka-streams-exactly-once", "visible_per_second": 100.0},
            {"contender": "merge", "visible_per_second": 100.0},
            {"contender": "quix-at-least-once", "failed": "died"},
        ]

    assert [g["reached"] for g in report.goals({"race": race(300, 150)})] == [True, True]
    assert [g["reached"] for g in report.goals({"race": race(299, 149)})] == [False, False]
    assert [g["reached"] for g in report.goals({"small": race(300, 150)})] == [True]
    assert [g["reached"] for g in report.goals({"small": race(299, 150)})] == [False]
    unseen = {"freshness": {"read": None, "fold_lag": None}}
    assert not any(g["reached"] for g in report.goals(unseen))
    assert [g["reached"] for g in report.goals({"planning": [{"tables": 1, "jobs": 2}, {"tables": 6, "jobs": 3}]})] == [False]


def test_a_replay_is_held_against_a_reset_its_own_end_and_what_its_plan_said() -> None:
    def replay(folded: float, last: float, likely: float) -> dict[str, object]:
        return {"replay": {
            "race": [{"contender": "watertable", "folded_per_second": folded},
                     {"contender": "kafka-streams-reset", "visible_per_second": 100.0}],
            "rewinds": {"earliest": {"visible_seconds": 20.0, "folded_seconds": 24.0},
                        "last": {"visible_seconds": last, "folded_seconds": 4.0}},
            "etas": [{"likely": 10.0, "seconds": 10.0}, {"likely": likely, "seconds": 10.0}],
        }}  # fmt: skip

    assert [g["reached"] for g in report.goals(replay(200, 1.0, 12.5))] == [True, True, True]
    assert [g["reached"] for g in report.goals(replay(199, 1.1, 12.6))] == [False, False, False]
    assert report.goals(replay(199, 1.0, 7.0))[2]["measured"] == "+0%, -30%"
    assert [g["reached"] for g in report.goals({"shop": replay(0, 1.0, 7.0)["replay"]})] == [True, False]


def test_years_that_are_repeated_begin_on_the_same_weekday_and_do_not_overlap() -> None:
    days = [datetime(2010, 12, 1, 8, 26), datetime(2011, 1, 3), datetime(2011, 12, 9, 12, 50)]
    lines = pa.table({"InvoiceDate": pa.array(days, pa.timestamp("us")), "line": [0, 1, 2]})
    later = timedelta(weeks=54)
    assert _years(lines, 5)["InvoiceDate"].to_pylist() == [*days, days[0] + later, days[1] + later]


def test_each_operator_is_held_against_kafka_streams_and_three_to_more() -> None:
    def row(name: str, visible: float) -> dict[str, object]:
        ours = {"visible_per_second": visible, "folded_per_second": visible / 2}
        return {"operator": name, "watertable": ours, "kafka-streams-exactly-once": {"visible_per_second": 100.0}}

    def reached(*rates: float) -> list[bool]:
        return [g["reached"] for g in report.goals({"operators": [row(f"o{n}", rate) for n, rate in enumerate(rates)]})]

    assert reached(150, 150, 150, 100) == [True, True, True, True, True]
    assert reached(150, 150, 149, 99) == [True, True, True, False, False]
    assert reached(99) == [False]
    died = row("o", 200) | {"kafka-streams-exactly-once": {"failed": "died"}}
    (goal,) = report.goals({"operators": [died]})
    assert (goal["reached"], goal["measured"]) == (False, "failed")
    assert report.failures({"operators": [died]}) == ["o: kafka-streams-exactly-once: died"]


def test_many_partitions_may_take_twice_as_long_as_few() -> None:
    def reached(**seconds: float) -> list[bool]:
        rows = [{"partitions": int(number[1:]), "visible_seconds": took} for number, took in seconds.items()]
        return [g["reached"] for g in report.goals({"partitions": rows})]

    assert reached(p32=9.0, p4=1.0, p96=2.0) == [True]
    assert reached(p4=1.0, p96=2.1) == [False]


def test_a_batch_may_take_no_longer_as_commits_add_up() -> None:
    def reached(*seconds: float) -> list[bool]:
        rows = [{"commits": number, "batch_seconds": took} for number, took in enumerate(seconds)]
        return [g["reached"] for g in report.goals({"age": rows})]

    assert reached(1.0, 3.0, 1.2) == [True]
    assert reached(1.0, 1.0, 1.3) == [False]


def test_a_batch_may_take_a_little_longer_in_a_large_table() -> None:
    def reached(**seconds: float) -> list[bool]:
        rows = [{"keys": int(keys[1:]), "batch_seconds": took} for keys, took in seconds.items()]
        return [g["reached"] for g in report.goals({"growth": rows})]

    assert reached(k100000=1.0, k1000000=2.0, k10000000=4.0) == [True, True]
    assert reached(k100000=1.0, k1000000=2.1, k10000000=4.1) == [False, False]
    assert reached(k10000=1.0, k100000=9.0) == []
