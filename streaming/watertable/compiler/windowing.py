"""Write the windows of a record as Spark SQL, in microseconds since 1970: which it is in, which of them are still open, and their keys."""

from __future__ import annotations

from watertable.compiler.layout import Fold
from watertable.plan.nodes import Aggregate
from watertable.plan.windows import EPOCH, SessionWindows, SlidingWindows, UnlimitedWindows, microseconds, of_stream_time
from watertable.schema import quote


def window_starts(fold: Fold) -> list[str]:
    """Write the window starts of a record, in microseconds: the first, the first one still open, the last; and how many it missed."""
    assert isinstance(fold.root, Aggregate)
    assert fold.root.windows is not None
    windows, name = fold.root.windows, fold.slots
    if isinstance(windows, UnlimitedWindows):
        start = f"{microseconds(windows.start - EPOCH)}L"
        early = f"CAST(unix_micros(ts) < {start} AS BIGINT)"
        return [f"{start} AS {name}_first", f"{start} + {early} AS {name}_open", f"{start} AS {name}_last", f"{early} AS {name}_missed"]
    size, advance, grace = (microseconds(d) for d in (windows.size, windows.advance, windows.grace))
    now = "unix_micros(st)" if of_stream_time(windows) else "unix_micros(ts)"
    if isinstance(windows, SessionWindows | SlidingWindows):
        reached = "unix_micros(st)"
        if isinstance(windows, SlidingWindows):
            now, reached = _millisecond(now), _millisecond(reached)
        wait = windows.gap if isinstance(windows, SessionWindows) else windows.difference
        late = f"int({now} + {microseconds(wait) + grace}L < {reached})"
        bounds = [f"{now} AS {name}_first", f"{now} + {late} * {advance}L AS {name}_open", f"{now} AS {name}_last"]
        return [*bounds, f"CAST({late} AS BIGINT) AS {name}_missed"]
    last = f"({now} - pmod({now}, {advance}L))"
    first = f"greatest(0L, {_next_start(f'({now} - {size}L)', advance)})"
    still_open = f"greatest({first}, {_next_start(f'(unix_micros(st) - {size + grace}L)', advance)})"
    missed = f"CAST(greatest(0L, (least({still_open} - {advance}L, {last}) - {first}) div {advance}L + 1L) AS BIGINT)"
    return [f"{first} AS {name}_first", f"{still_open} AS {name}_open", f"{last} AS {name}_last", f"{missed} AS {name}_missed"]


def _next_start(after: str, advance: int) -> str:
    """Write the first multiple of the advance that is greater than a time."""
    return f"({after} - pmod({after}, {advance}L) + {advance}L)"


def windowed_key(fold: Fold, first: str, last: str, size: int) -> str:
    """Write the key that spans the windows from the first start to the last one; of one window, if they are the same."""
    assert isinstance(fold.root, Aggregate)
    return f"named_struct({_group(fold.root)}'window_start', timestamp_micros({first}), 'window_end', timestamp_micros({last} + {size}L))"


def _millisecond(micros: str) -> str:
    """Write a time's whole milliseconds, in microseconds."""
    return f"({micros} - pmod({micros}, 1000L))"


def sliding_key(fold: Fold, windows: SlidingWindows) -> str:
    """Write the key of a record in sliding windows: its millisecond, and the end of the first window that it isn't late for."""
    assert isinstance(fold.root, Aggregate)
    since = f"greatest(open, {_millisecond('unix_micros(st)')} - {microseconds(windows.grace)}L)"
    return f"named_struct({_group(fold.root)}'__at', timestamp_micros(open), '__from', timestamp_micros({since}))"


def _group(root: Aggregate) -> str:
    return "".join(f"'{name}', key.{quote(name)}, " for name, _ in root.group)
