"""Say which windows a record belongs to, and when a window is late or closed.

A window is `[start, end)`, aligned to the Unix epoch. Windows of size 5 that advance by 2 hold a record at 7 twice:

    time  0   1   2   3   4   5   6   7   8   9  10  11
                          [-------------------)             4 up to 9
                                  [-------------------)     6 up to 11
                                      ^

A session is `[start, end]`, from its first record to its last. Records of one group that are at most a gap apart are in one session:

    time  0   1   2   3   4   5   6   7   8   9  10  11
          o       o   o                   o       o         a gap of 3: 0 up to 3, and 8 up to 10; a record at 6 would join them

The law of lateness (KIP-633; `TimeWindows` in Kafka Streams): a record is late for a window when `end + grace <= stream time`, where the
stream time is that of its source partition as the record was read. A late record still updates its windows that are open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from watertable.errors import DefinitionError
from watertable.where import here

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FOREVER = datetime(9999, 12, 31, tzinfo=UTC)
"""Ends a window that doesn't end: late enough for any event, and a time that every Delta reader and time zone can hold."""
END_OF_TIME = datetime(9000, 1, 1, tzinfo=UTC)
"""Ends the event times that are believed: a thousand years are left in which windows, their grace and all that waits end, too."""
UNTIMED = f"the event time is null, before {EPOCH.year}, or not before {END_OF_TIME.year}"
"""Says why a record isn't placed in time."""
BEYOND = "a date or time is outside the years 1 to 9999"
"""Says why a record isn't read that holds one: Spark has it, but no user's function, and no reader of a table, does."""
LONGEST = timedelta(days=36_525)
"""Bounds every duration, at 100 years: a sum of several, after any event time, is still a time that there is."""
MILLISECOND = timedelta(milliseconds=1)
MANY = 100_000
"""Bounds the windows that one record is in: it is written to each."""
_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True)
class Closing:
    """Say when a window that ends at a time is closed: when stream time has come to `after` it. Its last moment is `before` its end."""

    after: timedelta
    before: timedelta


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Cut time into windows of one size that start every `advance`, open for `grace` after their end.

    Tumbling windows advance by their size; hopping ones by less. All three are durations of at least a microsecond (grace: zero).

    >>> w = hopping(minutes=10, every=minutes(5), grace=minutes(1))
    >>> [f"{start:%H:%M}-{end:%H:%M}" for start, end in w.windows_of(datetime(2024, 1, 1, 12, 7, tzinfo=UTC))]
    ['12:00-12:10', '12:05-12:15']
    """

    size: timedelta
    advance: timedelta
    grace: timedelta

    def __post_init__(self) -> None:
        check_duration(self.size, "a window's size")
        check_duration(self.advance, "every=")
        check_duration(self.grace, "grace=")
        if self.size <= _ZERO:
            raise DefinitionError(f"{here()}: a window's size must be longer than zero; got {self.size}")
        if not _ZERO < self.advance <= self.size:
            raise DefinitionError(
                f"{here()}: windows must advance by more than zero and at most their size ({self.size}); got {self.advance}"
            )
        if self.per_record > MANY:
            raise DefinitionError(
                f"{here()}: windows of {words(self.size)} every {words(self.advance)} would put each record into {self.per_record:,}, and "
                f"at most {MANY:,} are allowed: let them advance by more, or write wt.sliding(...) for a window at each record"
            )
        if self.grace < _ZERO:
            raise DefinitionError(f"{here()}: grace must not be negative; got {self.grace}")

    @property
    def per_record(self) -> int:
        """Bound the number of windows that one record can enter."""
        return -(-self.size // self.advance)

    def windows_of(self, when: datetime) -> tuple[tuple[datetime, datetime], ...]:
        """List the windows `[start, end)` that hold `when`, earliest first; none starts before 1970 (Kafka Streams' rule)."""
        since = when - EPOCH
        first = max(_ZERO, ((since - self.size) // self.advance + 1) * self.advance)
        last = (since // self.advance) * self.advance
        starts: list[timedelta] = []
        while first <= last:
            starts.append(first)
            first += self.advance
        return tuple((EPOCH + start, EPOCH + start + self.size) for start in starts)

    def is_late(self, end: datetime, stream_time: datetime) -> bool:
        """Tell whether a window that ends at `end` takes no more records at this stream time."""
        return end + self.grace <= stream_time

    @property
    def closing(self) -> Closing:
        """Give how long a window stays open, and that its end isn't in it."""
        return Closing(self.grace, timedelta(microseconds=1))

    def __str__(self) -> str:
        shape = f"tumbling {words(self.size)}" if self.per_record == 1 else f"hopping {words(self.size)} every {words(self.advance)}"
        return f"{shape} grace {words(self.grace)}" if self.grace else shape


@dataclass(frozen=True, slots=True)
class UnlimitedWindows:
    """Hold one window that starts at a time and never ends: `window_end` is the last day of year 9999, and no record is late for it.

    >>> w = unlimited(start=datetime(2024, 1, 1, tzinfo=UTC))
    >>> len(w.windows_of(datetime(2024, 5, 1, tzinfo=UTC))), len(w.windows_of(datetime(2023, 12, 31, tzinfo=UTC)))
    (1, 0)
    """

    start: datetime

    def __post_init__(self) -> None:
        if not isinstance(self.start, datetime) or self.start.tzinfo is None:
            raise DefinitionError(
                f"{here()}: a window's start must be a datetime with a time zone; got {self.start!r}; write datetime(..., tzinfo=UTC)"
            )
        if not EPOCH <= self.start < FOREVER:
            raise DefinitionError(f"{here()}: a window must start between 1970 and 9999; got {self.start}")

    @property
    def size(self) -> timedelta:
        """Give the length of the window, up to the time that stands for its end."""
        return FOREVER - self.start

    @property
    def advance(self) -> timedelta:
        """Give its size, as if another could follow."""
        return self.size

    @property
    def grace(self) -> timedelta:
        """Give no time after an end that never comes."""
        return _ZERO

    @property
    def per_record(self) -> int:
        """Say that a record enters one window at most."""
        return 1

    def windows_of(self, when: datetime) -> tuple[tuple[datetime, datetime], ...]:
        """List the window if it holds `when`: not before its start."""
        return ((self.start, FOREVER),) if when >= self.start else ()

    def is_late(self, end: datetime, stream_time: datetime) -> bool:
        """Tell whether it takes no more records: never."""
        return False

    def __str__(self) -> str:
        return f"unlimited from {self.start.astimezone(UTC):%FT%TZ}"


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Bring records together that are at most `gap` apart; a session grows, and takes others in, as long as records come.

    A record by itself is a session that starts and ends with it. It is late when that session is: `time + gap + grace < stream time`.

    >>> s = sessions(gap=minutes(5), grace=minutes(1))
    >>> noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    >>> s.is_late(noon, noon + minutes(6)), s.is_late(noon, noon + minutes(7))
    (False, True)
    """

    gap: timedelta
    grace: timedelta

    def __post_init__(self) -> None:
        check_duration(self.gap, "gap=")
        check_duration(self.grace, "grace=")
        if self.gap <= _ZERO:
            raise DefinitionError(f"{here()}: a session's gap must be longer than zero; got {self.gap}")
        if self.grace < _ZERO:
            raise DefinitionError(f"{here()}: grace must not be negative; got {self.grace}")

    @property
    def size(self) -> timedelta:
        """Give the length of a record's own session: none."""
        return _ZERO

    @property
    def advance(self) -> timedelta:
        """Give the least time between two sessions of single records."""
        return timedelta(microseconds=1)

    @property
    def per_record(self) -> int:
        """Say that a record enters one window at most."""
        return 1

    def windows_of(self, when: datetime) -> tuple[tuple[datetime, datetime], ...]:
        """Give the session that a record makes by itself."""
        return ((when, when),)

    def is_late(self, end: datetime, stream_time: datetime) -> bool:
        """Tell whether a session that ends at `end` takes no more records at this stream time."""
        return end + self.gap + self.grace < stream_time

    @property
    def closing(self) -> Closing:
        """Give how long a session stays open; its end is in it.

        A record a gap after its end still joins it, and is late by itself only another gap and the grace later.
        """
        return Closing(2 * self.gap + self.grace + timedelta(microseconds=1), _ZERO)

    def __str__(self) -> str:
        shape = f"sessions gap {words(self.gap)}"
        return f"{shape} grace {words(self.grace)}" if self.grace else shape


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Hold records that are at most `difference` apart, both bounds included: `[end - difference, end]`, in whole milliseconds.

    A window ends at each record, and one starts a millisecond after each that others follow within the difference. A window before which
    there is no time starts in 1970. One is late when `end + grace < stream time`; a late record counts in those of its windows that are
    not.

    >>> w = sliding(difference=milliseconds(10))
    >>> [w.span(EPOCH + milliseconds(n))[0] - EPOCH == milliseconds(m) for n, m in ((25, 15), (3, 0))]
    [True, True]
    """

    difference: timedelta
    grace: timedelta

    def __post_init__(self) -> None:
        check_duration(self.difference, "difference=")
        check_duration(self.grace, "grace=")
        if self.difference < _ZERO:
            raise DefinitionError(f"{here()}: a sliding window's difference must not be negative; got {self.difference}")
        if self.difference % MILLISECOND:
            raise DefinitionError(f"{here()}: a sliding window's difference must be of whole milliseconds; got {self.difference}")
        if self.grace < _ZERO:
            raise DefinitionError(f"{here()}: grace must not be negative; got {self.grace}")

    @property
    def size(self) -> timedelta:
        """Give the time from a window's start to its end, both of which it holds."""
        return self.difference

    @property
    def advance(self) -> timedelta:
        """Give the least time between two windows."""
        return MILLISECOND

    @property
    def per_record(self) -> int:
        """Say that a record is kept once, whatever windows it is in."""
        return 1

    def windows_of(self, when: datetime) -> tuple[tuple[datetime, datetime], ...]:
        """Give the last window that a record can be in: the one that starts with it."""
        at = self.at(when)
        return ((at, at + self.difference),)

    def is_late(self, end: datetime, stream_time: datetime) -> bool:
        """Tell whether a window that ends at `end` takes no more records at this stream time."""
        return end < self.open_from(stream_time)

    @property
    def closing(self) -> Closing:
        """Give how long a window stays open, to the whole millisecond; its end is in it."""
        return Closing(self.grace - self.grace % MILLISECOND + MILLISECOND, _ZERO)

    def open_from(self, stream_time: datetime) -> datetime:
        """Give the end of the first window that takes records at this stream time."""
        return self.at(stream_time) - self.grace

    def at(self, when: datetime) -> datetime:
        """Give the millisecond of a time."""
        return when - (when - EPOCH) % MILLISECOND

    def span(self, end: datetime) -> tuple[datetime, datetime]:
        """Give the window that ends at a time, or the first one there is."""
        start = max(EPOCH, end - self.difference)
        return start, start + self.difference

    def ends(self, at: datetime) -> tuple[datetime, datetime]:
        """Give the ends of the windows that a record at `at` brings: the one that it ends, and the one after it, if any follows."""
        return self.span(at)[1], at + MILLISECOND + self.difference

    def __str__(self) -> str:
        shape = f"sliding {words(self.difference)}"
        return f"{shape} grace {words(self.grace)}" if self.grace else shape


@dataclass(frozen=True, slots=True)
class Stretches(TimeWindows):
    """Cut stream time itself into stretches of one length: a record is in that of its stream time, and late for none."""

    def __str__(self) -> str:
        return f"stretches of {words(self.size)} of stream time"


@dataclass(frozen=True, slots=True)
class Lifetimes(SessionWindows):
    """Bring the records of a key together that are at most `gap` of stream time apart; none is late.

    A lifetime ends with the first moment in which no record can join it any more, and what it gives is of that moment.
    """

    @property
    def closing(self) -> Closing:
        """Give how long a lifetime goes on after its last record."""
        longer = self.gap + timedelta(microseconds=1)
        return Closing(longer, -longer)

    def __str__(self) -> str:
        return f"lifetimes of {words(self.gap + timedelta(microseconds=1))} of stream time"


Windows = TimeWindows | UnlimitedWindows | SessionWindows | SlidingWindows


def shape_of(windows: Windows) -> Windows:
    """Give the windows without their grace: those of one shape cut time alike, however long they are open.

    >>> shape_of(tumbling(hours=1, grace=minutes(10))) == shape_of(tumbling(hours=1))
    True
    """
    return windows if isinstance(windows, UnlimitedWindows) else replace(windows, grace=_ZERO)


def of_stream_time(windows: Windows) -> bool:
    """Tell whether a record is in the windows of its stream time, rather than of its event time."""
    return isinstance(windows, Stretches | Lifetimes)


@dataclass(frozen=True, slots=True)
class JoinWindows:
    """Say how far apart two records of a join may be: the right one from `before` the left one to `after` it, both bounds included.

    One of the two may be negative, if the window still has a length. A record's window closes when stream time has passed its end, as seen
    from its side, by more than `grace`: from then on no record pairs with it that is later in log order.

    >>> w = join_windows(before=seconds(1), after=minutes(5))
    >>> w.holds(EPOCH, EPOCH + minutes(5)), w.holds(EPOCH, EPOCH + minutes(6)), w.holds(EPOCH + seconds(1), EPOCH)
    (True, False, True)
    """

    before: timedelta
    after: timedelta
    grace: timedelta

    def __post_init__(self) -> None:
        check_duration(self.before, "before=")
        check_duration(self.after, "after=")
        check_duration(self.grace, "grace=")
        if self.before + self.after < _ZERO:
            raise DefinitionError(f"{here()}: a join's window must not end before it starts; got before={self.before}, after={self.after}")
        if self.grace < _ZERO:
            raise DefinitionError(f"{here()}: grace must not be negative; got {self.grace}")

    def holds(self, left: datetime, right: datetime) -> bool:
        """Tell whether records of these event times pair."""
        return -self.before <= right - left <= self.after

    @property
    def open_for(self) -> tuple[timedelta, timedelta]:
        """Give how long the window of a left record, and that of a right one, is open from its event time on."""
        return self.after + self.grace, self.before + self.grace

    def __str__(self) -> str:
        shape = f"{words(self.before)} before to {words(self.after)} after"
        return f"{shape} grace {words(self.grace)}" if self.grace else shape


@dataclass(frozen=True, slots=True)
class UntilWindowCloses:
    """Ask that a row be shown only once its window has closed; made by `until_window_closes`."""


def until_window_closes() -> UntilWindowCloses:
    """Say to `suppress` when a row is to be shown: once its window has closed."""
    return UntilWindowCloses()


@dataclass(frozen=True, slots=True)
class UntilTimeLimit:
    """Ask that a row be shown at most once in each stretch of stream time; made by `until_time_limit`."""

    limit: timedelta

    def __post_init__(self) -> None:
        check_duration(self.limit, "a time limit")


def until_time_limit(limit: timedelta) -> UntilTimeLimit:
    """Say to `suppress` when a changed row is to be shown: at the end of each stretch of so much stream time, counted from 1970.

    A limit of zero shows every change.
    """
    return UntilTimeLimit(limit)


def tumbling(
    *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0, grace: timedelta = _ZERO
) -> TimeWindows:
    """Make windows that neither overlap nor leave gaps.

    >>> str(tumbling(hours=1, grace=minutes(10)))
    'tumbling 1h grace 10m'
    """
    size = _lasting(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    return TimeWindows(size, size, grace)


def hopping(
    *, every: timedelta, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0,
    grace: timedelta = _ZERO,
) -> TimeWindows:  # fmt: skip
    """Make windows of one size that start `every` so often and overlap."""
    return TimeWindows(_lasting(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds), every, grace)


def unlimited(*, start: datetime = EPOCH) -> UnlimitedWindows:
    """Make one window that never ends, for the records from `start` on; earlier ones are left out and counted."""
    return UnlimitedWindows(start)


def sessions(*, gap: timedelta, grace: timedelta = _ZERO) -> SessionWindows:
    """Make windows that last as long as their records come at most `gap` after one another.

    >>> str(sessions(gap=minutes(30), grace=minutes(5)))
    'sessions gap 30m grace 5m'
    """
    return SessionWindows(gap, grace)


def join_windows(*, before: timedelta = _ZERO, after: timedelta = _ZERO, grace: timedelta = _ZERO) -> JoinWindows:
    """Let the right record of a join be from `before` the left one to `after` it, and come as late as `grace` says.

    >>> str(join_windows(before=seconds(5), after=minutes(1), grace=hours(1)))
    '5s before to 1m after grace 1h'
    """
    return JoinWindows(before, after, grace)


def sliding(*, difference: timedelta, grace: timedelta = _ZERO) -> SlidingWindows:
    """Make windows that hold what is at most `difference` apart: one ends at each record, and one starts after it.

    >>> str(sliding(difference=minutes(5), grace=minutes(1)))
    'sliding 5m grace 1m'
    """
    return SlidingWindows(difference, grace)


def days(number: float) -> timedelta:
    """Make a duration of so many days."""
    return _lasting(days=number)


def hours(number: float) -> timedelta:
    """Make a duration of so many hours."""
    return _lasting(hours=number)


def minutes(number: float) -> timedelta:
    """Make a duration of so many minutes."""
    return _lasting(minutes=number)


def seconds(number: float) -> timedelta:
    """Make a duration of so many seconds."""
    return _lasting(seconds=number)


def milliseconds(number: float) -> timedelta:
    """Make a duration of so many milliseconds."""
    return _lasting(milliseconds=number)


def _lasting(**units: float) -> timedelta:
    """Make a duration of numbers of units; raise `DefinitionError` for what is no number, and for one that is no duration."""
    try:
        return timedelta(**units)
    except (TypeError, ValueError, OverflowError):
        got = ", ".join(f"{unit}={number!r}" for unit, number in units.items() if number != 0)
        raise DefinitionError(f"{here()}: a duration is of numbers, such as hours=1.5; got {got}") from None


def microseconds(duration: timedelta) -> int:
    """Give a duration in microseconds, Spark's unit of time."""
    return duration // timedelta(microseconds=1)


def typed_time(text: str) -> datetime:
    """Read a time as a person writes it, which is UTC where it names no offset, and give it in UTC; raise `ValueError` for what is none.

    >>> typed_time("2011-06-01T09:00"), str(typed_time("2011-06-01T11:00+02:00"))
    (datetime.datetime(2011, 6, 1, 9, 0, tzinfo=datetime.timezone.utc), '2011-06-01 09:00:00+00:00')
    """
    when = datetime.fromisoformat(text)
    try:
        return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is outside the years 1 to 9999 in UTC") from None


def check_duration(value: object, what: str) -> None:
    """Raise `DefinitionError` for what is no duration, as a number without a unit, and for one that no time would be left after."""
    if not isinstance(value, timedelta):
        raise DefinitionError(f"{here()}: {what} wants a duration, such as wt.minutes(5); got {value!r}")
    if abs(value) > LONGEST:
        raise DefinitionError(f"{here()}: {what} wants a duration of at most {LONGEST.days:,} days, which is 100 years; got {value}")


def words(duration: timedelta) -> str:
    """Write a duration in the units people use: 1d, 1h30m, 0.5s.

    >>> words(timedelta(hours=1, minutes=30)), words(timedelta(milliseconds=1500)), words(timedelta(0))
    ('1h30m', '1.5s', '0s')
    >>> words(timedelta(seconds=59, microseconds=999_999)), words(timedelta(microseconds=2))
    ('59.999999s', '0.000002s')
    """
    if duration < _ZERO:
        return f"-{words(-duration)}"
    minutes, rest = divmod(duration, timedelta(minutes=1))
    seconds = f"{rest // timedelta(seconds=1)}.{rest.microseconds:06}".rstrip("0").rstrip(".")  # all digits: 59.999999 is no 60
    parts = [(minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "m")]
    return "".join(f"{number}{unit}" for number, unit in parts if number) + (f"{seconds}s" if rest else "") or "0s"
