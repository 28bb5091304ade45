"""Estimate how long a replay takes, from the commits that an app has measured of itself: the law is that it says its range, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

FIXED: Final = 800
"""Milliseconds that a batch takes beside its data, as `make bench ARGS="--only planning"` measures: for an app whose commits can't tell."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Say how many seconds a replay will take: most likely, and from where to where."""

    low: float
    likely: float
    high: float


def estimate(samples: Sequence[tuple[int, int]], records: int, batch_records: int) -> Estimate | None:
    """Estimate the seconds of a replay from commits that were measured: (records, milliseconds) of each.

    A batch costs something whatever its size, and something for each record; a line through the samples tells both. Where all of them
    are about one size, there is no line: what they take beyond `FIXED` is of their records, and a tenth at least. Where they are much
    smaller than a replay's batches, that is far beyond what was measured, and the range says so.
    """
    kept = [(n, ms) for n, ms in samples if n > 0 and ms > 0]
    if not kept or records <= 0:
        return None if records > 0 else Estimate(0.0, 0.0, 0.0)
    mean_n, mean_ms = sum(n for n, _ in kept) / len(kept), sum(ms for _, ms in kept) / len(kept)
    largest, its_ms = max((n, float(ms)) for n, ms in kept)
    if largest >= 2 * min(kept)[0]:
        spread = sum((n - mean_n) ** 2 for n, _ in kept)
        each = sum((n - mean_n) * (ms - mean_ms) for n, ms in kept) / spread
    else:  # the first ones of a process are slow, and say nothing of those that follow
        mean_ms = its_ms = median(ms for _, ms in kept)
        each = (mean_ms - FIXED) / mean_n
    each = min(max(each, 0.1 * its_ms / largest), its_ms / largest)
    batch = max(0.0, mean_ms - each * mean_n)
    batches = -(-records // batch_records)
    likely = (batches * batch + records * each) / 1000
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
