"""Hold the benchmarks' own arithmetic: a measurement that can't fail, or that flatters, is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import report
from benchmarks.planning import Interval, _covered
from benchmarks.race import BenchmarkFailed, Run, check
from benchmarks.suite import _fold_lag, _quantiles
from benchmarks.workload import Workload


def test_the_answer_is_what_the_records_add_up_to() -> None:
    import json

    load = Workload("t", records=60_000, keys=500)
    amounts = [(key, json.loads(value)["amount"]) for _, key, value in load.lines()]
    assert load.answer.keys == len({key for key, _ in amounts})
    assert (load.answer.records, load.answer.amount) == (len(amounts), sum(amount for _, amount in amounts))


def test_a_key_stays_in_its_partition() -> None:
    places = {(key, partition) for partition, key, _ in Workload("t", records=20_000, keys=300).lines()}
    assert len(places) == len({key for key, _ in places})


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
