"""The supervisor's laws: what past runs say about whether a stream should run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watertable_platform.orchestration.supervisor import (
    CRASHES,
    LONGEST_WAIT,
    Attempt,
    Bury,
    Crash,
    Ended,
    GiveUp,
    HandOver,
    Hold,
    Launch,
    Leave,
    Queued,
    Status,
    Wait,
    backoff,
    decide,
    streak,
)

NOW = 1_000_000.0
RECORD = Crash("EvaluationError", "sum overflows", "shop@1.7", "sales", 2, 41, "app.py:9")


def crashed(position: str = "shop@1.7", *, by_person: bool = False, crash: Crash | None = RECORD, ended_at: float = NOW - 1000) -> Attempt:
    return Attempt("c", Status.FAILED, by_person, Ended.CRASH, position, "f1", ended_at, crash)


def live(**changes: object) -> Attempt:
    return Attempt("l", Status.LIVE, fingerprint="f1", **changes)  # type: ignore[arg-type]


def act(*attempts: Attempt, loaded: str = "f1") -> object:
    return decide(attempts, loaded=loaded, loaded_at=NOW - 60, now=NOW)


def test_a_new_app_starts_stopped() -> None:
    assert isinstance(act(), Leave)


def test_a_run_that_runs_is_left_alone() -> None:
    assert act(live()) == Leave("running")


def test_a_run_that_has_not_begun_is_waited_for_and_is_not_taken_for_one_that_runs() -> None:
    waits = live(begun=False, started_at=NOW - 150)
    assert act(waits) == Queued("l", 150)
    assert act(live(begun=False, started_at=NOW - 10), waits) == Queued("l", 150)
    assert act(waits, live()) == Leave("running")
    assert act(live(), waits) == Leave("running")
    assert Queued("l", 10).reason == "starting"
    assert Queued("l", 150).reason.startswith("not running: run l has waited for 2 min to begin; ")


def test_a_run_goes_on_under_its_code_where_the_loaded_one_would_make_its_tables_wrong() -> None:
    def decided(run: Attempt, loaded: str) -> object:
        return decide([run], loaded=loaded, loaded_at=NOW - 60, now=NOW, breaking="stock: a filter was put in")

    assert decided(live(started_at=NOW - 100), "f2") == Hold("l", "stock: a filter was put in")
    assert decided(live(started_at=NOW - 100), "f1") == Leave("running")
    assert decided(live(started_at=NOW - 10), "f2") == Leave("running")


def test_a_persons_terminate_means_stopped() -> None:
    assert isinstance(act(Attempt("x", Status.CANCELED)), Leave)
    assert isinstance(act(Attempt("x", Status.CANCELED), crashed(), crashed()), Leave)


@pytest.mark.parametrize("ended", [Ended.SHUTDOWN, Ended.HAND_OVER, Ended.RECYCLE])
def test_an_end_that_nobody_decided_comes_back_at_once(ended: Ended) -> None:
    status = Status.CANCELED if ended is Ended.SHUTDOWN else Status.DONE
    decision = act(Attempt("x", status, ended=ended))
    assert isinstance(decision, Launch)
    assert type(decision.reason) is str  # it becomes a run's tag, which can't be an enum


def test_a_crash_comes_back_after_its_backoff() -> None:
    assert isinstance(act(crashed(ended_at=NOW - 1)), Wait)
    assert isinstance(act(crashed(ended_at=NOW - 3)), Launch)
    assert isinstance(act(crashed(ended_at=NOW - 3), crashed(), crashed()), Wait)


def test_five_crashes_at_one_position_stop_it_and_name_the_record() -> None:
    decision = act(*[crashed()] * (CRASHES - 1), crashed(by_person=True))
    assert isinstance(decision, GiveUp)
    for part in ("5 crashes at one record", "topic sales, partition 2, offset 41", "app.py:9", "shop@1.7", "Way out"):
        assert part in decision.reason


@pytest.mark.parametrize("crash", [None, replace(RECORD, offset=42), replace(RECORD, partition=3), replace(RECORD, topic="clicks")])
def test_progress_between_crashes_begins_a_new_streak(crash: Crash | None) -> None:
    assert streak([crashed("shop@1.8", crash=crash), *[crashed("shop@1.7")] * 4]) == 1
    assert isinstance(act(crashed("shop@1.8", crash=crash), *[crashed("shop@1.7")] * 4), Launch)


def test_one_record_stops_it_though_other_partitions_are_read_on_between_the_crashes() -> None:
    crashes = [crashed(f"shop@1.{7 + n}") for n in reversed(range(CRASHES))]
    assert streak(crashes) == CRASHES
    decision = act(*crashes)
    assert isinstance(decision, GiveUp)
    assert decision.reason.startswith("stopped: 5 crashes at one record (topic sales, partition 2, offset 41, at app.py:9, after shop@1.7)")
    assert isinstance(act(*crashes[1:]), Wait | Launch)
    assert streak([*crashes[:2], crashed("", crash=None), crashed("shop@1.10"), crashed("shop@1.10", crash=None)]) == 5


def test_a_crash_before_the_position_is_known_counts_to_the_one_before() -> None:
    assert streak([crashed(""), crashed("shop@1.7"), crashed("")]) == 3
    assert streak([crashed(""), crashed("shop@1.7"), crashed(""), crashed("shop@1.6", crash=None)]) == 3


def test_a_persons_launch_begins_a_new_streak() -> None:
    assert streak([crashed(), crashed(by_person=True), *[crashed()] * 9]) == 2


def test_a_run_whose_worker_is_gone_is_buried_then_comes_back() -> None:
    assert act(live(worker_gone=True)) == Bury("l")
    buried = Attempt("l", Status.CANCELED, ended=Ended.GHOST, position="shop@1.7", ended_at=NOW - 3)
    assert isinstance(act(buried), Launch)


def test_new_code_takes_over_once_and_only_from_a_run_that_says_what_it_runs() -> None:
    assert act(live(), loaded="f2") == HandOver("l")
    assert act(live(handing_over=True), loaded="f2") == Leave("running")
    assert act(Attempt("l", Status.LIVE), loaded="f2") == Leave("running")


def test_a_run_that_began_after_this_code_was_loaded_has_the_newer_code() -> None:
    assert act(live(started_at=NOW - 30), loaded="f2") == Leave("running")


@pytest.mark.parametrize("error", ["Fenced", "TopicChanged", "SettingsError"])
def test_what_a_restart_cannot_mend_is_not_restarted(error: str) -> None:
    assert isinstance(act(crashed(crash=Crash(error, "no", final=True))), GiveUp)


def test_a_refused_second_run_disturbs_nothing() -> None:
    second = refused(by_person=True, started_at=NOW - 9)
    assert act(second, live()) == Leave("running")
    stopped = Attempt("x", Status.CANCELED, ended_at=NOW - 5)
    assert isinstance(act(second, stopped), Leave)
    assert isinstance(act(second, Attempt("never began", Status.CANCELED, ended_at=NOW - 10), stopped), Leave)


@pytest.mark.parametrize("end", [Ended.RECYCLE, Ended.CRASH, Ended.HAND_OVER, Ended.SHUTDOWN])
def test_a_second_copy_that_is_terminated_before_it_begins_stops_nothing_but_itself(end: Ended) -> None:
    copy = Attempt("d", Status.CANCELED, started_at=NOW - 60, ended_at=NOW - 50, begun=False)
    ran = Attempt("l", Status.DONE, ended=end, fingerprint="f1", started_at=NOW - 100, ended_at=NOW - 10)
    assert act(copy, live()) == Leave("running")
    assert isinstance(act(copy, ran), Launch)
    after = replace(copy, started_at=NOW - 5, ended_at=NOW - 4)
    assert isinstance(act(after, ran), Leave), "one that was to come after it is what is terminated"
    assert isinstance(act(replace(copy, begun=True), ran), Leave)
    assert isinstance(act(copy, replace(ran, status=Status.CANCELED, ended=None)), Leave)


def test_a_second_copy_that_is_yet_to_be_refused_is_not_taken_for_the_run_whose_code_is_judged() -> None:
    assert act(Attempt("d", Status.LIVE), live(), loaded="f2") == HandOver("l")


SHUT_DOWN = Attempt("s", Status.CANCELED, ended=Ended.SHUTDOWN, ended_at=NOW - 1000)


def refused(
    *,
    by_person: bool = False,
    ended_at: float = NOW - 1,
    words: str = "shop's lease belongs to another environment",
    started_at: float = 0.0,
) -> Attempt:
    crash = Crash("JobError", words)
    return Attempt("r", Status.FAILED, by_person, Ended.REFUSED, ended_at=ended_at, crash=crash, started_at=started_at)


@pytest.mark.parametrize(
    "before",
    [[], [Attempt("x", Status.CANCELED, ended_at=NOW - 10)], [crashed()] * CRASHES],
    ids=["never launched", "stopped by a person", "given up"],
)
def test_what_a_person_launched_is_wanted_though_it_was_refused(before: list[Attempt]) -> None:
    asked = refused(by_person=True, started_at=NOW - 9, words="shop is kept by run X")
    assert act(asked, *before) == Wait(1, "refused at try 1: shop is kept by run X", refused=True)
    assert isinstance(act(refused(), refused(), asked, *before), Wait)
    assert isinstance(act(refused(ended_at=NOW - 9), refused(), asked, *before), Launch)
    assert act(crashed(ended_at=NOW - 3), asked, *before) == Launch("crash 1 of 5")
    assert isinstance(act(Attempt("t", Status.CANCELED, ended_at=NOW - 1), asked, *before), Leave)


@pytest.mark.parametrize("before", [[SHUT_DOWN], [crashed(), SHUT_DOWN], []], ids=["shut down", "crashed", "out of sight"])
def test_a_refused_stream_is_tried_again_with_backoff_and_says_what_refuses_it(before: list[Attempt]) -> None:
    decision = act(*[refused()] * 3, *before)
    assert isinstance(decision, Wait)
    assert decision.seconds == 7
    assert decision.reason == "refused at try 3: shop's lease belongs to another environment"
    assert isinstance(act(*[refused(ended_at=NOW - 9)] * 3, *before), Launch)
    assert isinstance(act(*[refused(ended_at=NOW - 299)] * 500, *before), Wait)
    assert isinstance(act(*[refused(ended_at=NOW - 301)] * 500, *before), Launch)


def test_a_run_that_is_being_refused_is_no_reason_for_another() -> None:
    assert isinstance(act(Attempt("r", Status.LIVE, False, Ended.REFUSED), SHUT_DOWN), Wait)


def test_what_was_given_up_stays_so_though_it_was_refused_too() -> None:
    assert isinstance(act(refused(ended_at=NOW - 999), *[crashed()] * CRASHES), GiveUp)


def test_backoff_doubles_up_to_its_bound() -> None:
    waits = [backoff(n) for n in range(1, 15)]
    assert waits == sorted(waits)
    assert waits[:4] == [2, 4, 8, 16]
    assert waits[-1] == LONGEST_WAIT


def test_a_run_that_never_began_has_no_copies() -> None:
    first, last = (Attempt("c", Status.CANCELED, ended_at=NOW - ago, begun=False) for ago in (498, 500))
    between = Attempt("f", Status.FAILED, ended_at=NOW - 501)
    assert isinstance(act(last, between, first), Leave), "a person has stopped it, and nothing ran then"


attempts = st.builds(
    Attempt,
    run_id=st.just("r"),
    status=st.sampled_from(Status),
    by_person=st.booleans(),
    ended=st.none() | st.sampled_from(Ended),
    position=st.sampled_from(["", "shop@1.1", "shop@1.2"]),
    fingerprint=st.sampled_from(["", "f1", "f2"]),
    ended_at=st.floats(NOW - 500, NOW),
    crash=st.none() | st.just(RECORD) | st.just(Crash("Fenced", "m", final=True)),
    begun=st.booleans(),
    handing_over=st.booleans(),
    worker_gone=st.just(False),
)


@given(st.lists(attempts, max_size=8))
def test_there_is_never_a_second_run_and_never_one_after_a_persons_stop(history: list[Attempt]) -> None:
    decision = act(*history)
    known = [a for a in history if a.ended is not Ended.REFUSED]
    if any(a.status is Status.LIVE for a in known):
        assert not isinstance(decision, Launch)
    elif known and known[0].status is Status.CANCELED and known[0].ended is None:
        ran = max((a.ended_at for a in known if not a.never_began), default=0.0)
        assert isinstance(decision, Leave) or (known[0].never_began and known[0].ended_at < ran), "unless it was a copy of one that ran"


@given(st.lists(attempts, max_size=8), st.data())
def test_a_second_copy_that_a_person_launched_while_one_ran_changes_no_decision(history: list[Attempt], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(history)))
    ran = data.draw(attempts.filter(lambda a: a.ended is not Ended.REFUSED and not a.never_began))
    end = NOW if ran.status is Status.LIVE else ran.ended_at
    terminated = Attempt("d", Status.CANCELED, ended_at=data.draw(st.floats(NOW - 501, end, exclude_max=True)), begun=False)
    second = data.draw(st.sampled_from([refused(by_person=True, started_at=NOW - 501), terminated]))  # launched before any has ended
    later = data.draw(st.integers(0, place))
    without = [*history[:place], ran, *history[place:]]
    assert act(*without[:later], second, *without[later:]) == act(*without)


@given(st.lists(attempts, max_size=8), st.integers(1, 40))
def test_being_refused_never_stops_what_is_to_run(history: list[Attempt], times: int) -> None:
    history = [a for a in history if a.ended is not Ended.REFUSED]
    if isinstance(act(*history), Wait | Launch):
        assert isinstance(act(*[refused()] * times, *history), Wait)
        assert act(*[refused(ended_at=NOW - 999)] * times, *history) == act(*history)


def test_a_crash_survives_its_tag() -> None:
    for crash in (RECORD, Crash("E", "m", partition=0, offset=0, topic="t"), Crash("E", "m", final=True)):
        assert Crash.from_tag(crash.as_tag()) == crash
    long = Crash("E", "what is wrong" + "x" * 10_000 + "what to do").as_tag()
    assert len(long) < 1000
    assert Crash.from_tag(long).message.startswith("what is wrong")
    assert Crash.from_tag(long).message.endswith("what to do")
