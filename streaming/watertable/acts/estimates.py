"""Estimate how long a replay takes, from the commits that an app has measured of itself: the law is that it says its range, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import Final

BEGIN: Final = 0.5
"""Seconds from the control row to the first batch: a fence, a look at the topics, a first plan."""
EVEN: Final = 150_000
"""Records whose data takes as long as their batch does beside it; `make bench ARGS="--only replay"` measures both."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Say how many seconds a replay will take: most likely, and from where to where."""

    low: float
    likely: float
    high: float


def estimate(samples: Sequence[tuple[int, int]], records: int, batch_records: int) -> Estimate | None:
    """Estimate the seconds of a replay from commits that were measured: (records, milliseconds) of each.

    A batch costs something whatever its size, and something for each record. Samples of different sizes tell both, by the median of the
    slopes between them (Theil and Sen's), the lower one of two: the first ones of a process are slow, and say nothing of those that
    follow. Where there are no large ones beside smaller ones, `EVEN` says which part of their time is whose; and where they are much
    smaller than a replay's batches, that is far beyond what was measured, and the range says so.
    """
    kept = [(n, ms) for n, ms in samples if n > 0 and ms > 0]
    if not kept or records <= 0:
        return None if records > 0 else Estimate(0.0, 0.0, 0.0)
    largest, its_ms = max((n, float(ms)) for n, ms in kept)
    if slopes := [(b - a) / (m - n) for n, a in kept for m, b in kept if m >= max(2 * n, EVEN // 3)]:
        each = min(max(median_low(slopes), 0.1 * its_ms / largest), its_ms / largest)
        batch = max(0.0, median(ms - each * n for n, ms in kept))
    else:
        batch = sorted(ms / (1 + n / EVEN) for n, ms in kept)[len(kept) // 4]
        each = batch / EVEN
    batches = -(-records // batch_records)
    likely = BEGIN + (batches * batch + records * each) / 1000
    beyond = min(records, batch_records) > 3 * largest
    return Estimate(0.75 * likely, likely, max(1.35 * likely, records * its_ms / largest / 1000 if beyond else 0.0))


def eta_text(eta: Estimate | None) -> str:
    """Write an estimate for people."""
    if eta is None:
        return "no time is known: this app has measured none yet"
    return f"about {_span(eta.likely)} ({_span(eta.low)} to {_span(eta.high)})"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
