"""Windows: which hold a record, and when one is closed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import watertable as wt
from watertable.errors import DefinitionError
from watertable.plan.windows import EPOCH, FOREVER, TimeWindows


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2024-01-01T{text}").replace(tzinfo=UTC)


@st.composite
def windows(draw: st.DrawFn) -> TimeWindows:
    size = draw(st.integers(1, 10_000))
    advance = draw(st.integers(1, size))
    return TimeWindows(timedelta(microseconds=size), timedelta(microseconds=advance), timedelta(microseconds=draw(st.integers(0, 5_000))))


@given(windows(), st.integers(0, 100_000))
def test_windows_of_a_time_are_all_that_hold_it_and_no_other(w: TimeWindows, micros: int) -> None:
    when = EPOCH + timedelta(microseconds=micros)
    every = [(EPOCH + n * w.advance, EPOCH + n * w.advance + w.size) for n in range(micros * 2 + 2) if n * w.advance <= when - EPOCH]
    assert list(w.windows_of(when)) == [(start, end) for start, end in every if start <= when < end]


@given(windows(), st.integers(10_000, 100_000))
def test_a_record_past_the_first_size_has_as_many_windows_as_fit(w: TimeWindows, micros: int) -> None:
    assert w.per_record - 1 <= len(w.windows_of(EPOCH + timedelta(microseconds=micros))) <= w.per_record


def test_a_tumbling_window_holds_its_start_and_not_its_end() -> None:
    w = wt.tumbling(hours=1)
    assert w.windows_of(at("10:00")) == ((at("10:00"), at("11:00")),)
    assert w.windows_of(at("11:00")) == ((at("11:00"), at("12:00")),)


def test_an_unlimited_window_holds_its_start_and_all_that_follows_and_is_never_late() -> None:
    w = wt.unlimited(start=at("10:00"))
    assert w.windows_of(at("09:59:59.999999")) == ()
    assert w.windows_of(at("10:00")) == w.windows_of(at("23:00")) == ((at("10:00"), FOREVER),)
    assert not w.is_late(FOREVER, at("23:00"))
    assert str(w) == "unlimited from 2024-01-01T10:00:00Z"


def test_no_window_starts_before_1970() -> None:
    assert wt.hopping(minutes=10, every=wt.minutes(5)).windows_of(EPOCH) == ((EPOCH, EPOCH + wt.minutes(10)),)


def test_a_window_is_late_from_its_end_plus_grace_on() -> None:
    w = wt.tumbling(hours=1, grace=wt.minutes(10))
    assert not w.is_late(at("11:00"), at("11:09:59.999999"))
    assert w.is_late(at("11:00"), at("11:10"))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: wt.tumbling(), "size must be longer than zero"),
        (lambda: wt.unlimited(start=datetime(2024, 1, 1)), "start must be a datetime with a time zone"),
        (lambda: wt.unlimited(start="2024-01-01T00:00Z"), "start must be a datetime with a time zone; got '2024-01-01T00:00Z'"),  # type: ignore[arg-type]
        (lambda: wt.tumbling(hours="1"), "a duration is of numbers, such as hours=1.5; got hours='1'"),  # type: ignore[arg-type]
        (lambda: wt.hopping(days=1e12, every=wt.hours(1)), r"a duration is of numbers, such as hours=1.5; got days=1000000000000"),
        (lambda: wt.minutes("5"), "a duration is of numbers, such as hours=1.5; got minutes='5'"),  # type: ignore[arg-type]
        (lambda: wt.unlimited(start=datetime(1969, 1, 1, tzinfo=UTC)), "must start between 1970 and 9999"),
        (lambda: wt.tumbling(hours=-1), "size must be longer than zero"),
        (lambda: wt.hopping(hours=1, every=wt.hours(2)), "advance by more than zero and at most their size"),
        (lambda: wt.hopping(hours=1, every=wt.hours(0)), "advance by more than zero"),
        (
            lambda: wt.hopping(days=365, every=wt.milliseconds(1)),
            "365d every 0.001s would put each record into 31,536,000,000",
        ),
        (lambda: wt.tumbling(hours=1, grace=wt.minutes(-1)), "grace must not be negative"),
        (lambda: wt.join_windows(grace=wt.minutes(-1)), "grace must not be negative"),
        (lambda: wt.join_windows(before=wt.minutes(-5), after=wt.minutes(4)), "must not end before it starts"),
        (lambda: wt.tumbling(hours=1, grace=timedelta.max), "grace= wants a duration of at most 36,525 days"),
        (lambda: wt.sessions(gap=wt.days(3_000_000)), "gap= wants a duration of at most"),
        (lambda: wt.join_windows(before=timedelta.max, after=timedelta.max), "before= wants a duration of at most"),
        (lambda: wt.join_windows(before=timedelta.min, after=timedelta.max), "before= wants a duration of at most"),
    ],
)
def test_impossible_windows_are_refused_with_what_came(make: object, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        make()  # type: ignore[operator]


def test_windows_read_as_people_write_durations() -> None:
    assert str(wt.hopping(days=1, every=wt.hours(1), grace=wt.minutes(90))) == "hopping 1d every 1h grace 1h30m"
    assert str(wt.tumbling(milliseconds=500)) == "tumbling 0.5s"
