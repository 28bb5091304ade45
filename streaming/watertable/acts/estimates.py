"""Estimate how long a replay takes, and how much it writes, from an app's own commits.

The law is that an estimate of time says its range, too; and that one of bytes is rather too high, since who runs out of room stops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median, median_low
from typing import Final

BEGIN: Final = 0.5
"""Seconds from the control row to the first batch: a fence, a look at the topics, a first plan."""
EVEN: Final = 150_000
"""Records whose data takes as long as their batch does beside it; `make bench ARGS="--only replay"` measures both."""
_APART: Final = 200
"""Records that a commit has at least of which the bytes tell more than what its files cost whatever is in them."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Say how many seconds a replay will take: most likely, and from where to where."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class Disk:
    """Say how many bytes a rewind writes to its warehouse, and how many are free there; None of either stands for not known.

    `replay` is what its commits add to the changelog, `folds` what the tables' folds write. Nothing of what is left behind goes before the
    horizon, so all of it is needed beside what there is.
    """

    replay: int | None = None
    folds: int = 0
    free: int | None = None

    @property
    def needed(self) -> int | None:
        """Add up what is written."""
        return None if self.replay is None else self.replay + self.folds

    @property
    def is_short(self) -> bool:
        """Tell whether there is less room than that."""
        return self.needed is not None and self.free is not None and self.needed > self.free


def estimate(samples: Sequence[tuple[int, int]], records: int, batch_records: int) -> Estimate | None:
    """Estimate the seconds of a replay from commits that were measured: (records, milliseconds) of each.

    A batch costs something whatever its size, and something for each record. Samples of different sizes tell both; the first ones of a
    process are slow, and say nothing of those that follow: so it goes by the quarter that was quickest. Where there are no large ones
    beside smaller ones, `EVEN` says which part of their time is whose.

    Where they are all much smaller than a replay's batches, that is far beyond what was measured, and the range says so. Sizes say too
    much then, since more of a key's changes become one row in larger batches: where `EVEN` says less, it is the middle of both.
    """
    kept = _of_some(samples)
    if not kept or records <= 0:
        return None if records > 0 else Estimate(0.0, 0.0, 0.0)
    largest, its_ms = max((n, float(ms)) for n, ms in kept)
    beyond, batches = min(records, batch_records) > 3 * largest, -(-records // batch_records)
    batch = _quartile([ms / (1 + n / EVEN) for n, ms in kept])
    least = likely = BEGIN + (batches * batch + records * batch / EVEN) / 1000
    if (each := _slope(kept, EVEN // 3, _quartile)) is not None:
        batch = max(0.0, _quartile([ms - each * n for n, ms in kept]))
        by_sizes = BEGIN + (batches * batch + records * each) / 1000
        least, likely = (least, sqrt(least * by_sizes)) if beyond and least < by_sizes else (by_sizes, by_sizes)
    return Estimate(0.75 * least, likely, max(1.35 * likely, records * its_ms / largest / 1000 if beyond else 0.0))


def written(samples: Sequence[tuple[int, int]], records: int, batch_records: int) -> int | None:
    """Estimate the bytes that a replay's commits add, from (records, bytes) of commits that were; None where there are none.

    >>> written([(100, 12_000), (10_000, 210_000)], 1_000_000, 500_000), written([(100, 12_000)], 1_000, 500_000), written([], 9, 9)
    (20020000, 120000, None)
    """
    kept = _of_some(samples)
    if not kept or records <= 0:
        return None if records > 0 else 0
    if (each := _slope(kept, _APART, median_low)) is None:
        largest, its_bytes = max(kept)
        return round(records * its_bytes / largest)
    return round(-(-records // batch_records) * max(0.0, median(size - each * n for n, size in kept)) + records * each)


def _of_some(samples: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(n, cost) for n, cost in samples if n > 0 and cost > 0]


def _quartile(values: Sequence[float]) -> float:
    """Give the value that a quarter of these are below."""
    return sorted(values)[len(values) // 4]


def _slope(samples: Sequence[tuple[int, int]], apart: int, middle: Callable[[Sequence[float]], float]) -> float | None:
    """Tell what one record more costs, by the `middle` of the slopes between samples far enough apart, as Theil and Sen do by the median.

    It is no more than the largest's own share for each of its records, and a tenth of that at least.
    """
    slopes = [(b - a) / (m - n) for n, a in samples for m, b in samples if m >= max(2 * n, apart)]
    largest, its_cost = max(samples)
    return min(max(middle(slopes), 0.1 * its_cost / largest), its_cost / largest) if slopes else None


def eta_text(eta: Estimate | None) -> str:
    """Write an estimate for people."""
    if eta is None:
        none = "no run has made two yet"
        return f"no time is known: what a batch takes is kept by the next one of its run, and {none}"
    return f"about {_span(eta.likely)} ({_span(eta.low)} to {_span(eta.high)})"


def disk_text(disk: Disk) -> str:
    """Write for people what a rewind takes of its disk.

    >>> disk_text(Disk(2_100_000_000, 350_000_000, 40_000_000_000)), disk_text(Disk())
    ('about 2.5 GB: 2.1 GB of changelog, 350 MB of tables; 40 GB are free', 'not known: the log tells of no commit with records')
    """
    free = "" if disk.free is None else f"; {_size(disk.free)} are free"
    if disk.needed is None or disk.replay is None:
        return f"not known: the log tells of no commit with records{free}"
    return f"about {_size(disk.needed)}: {_size(disk.replay)} of changelog, {_size(disk.folds)} of tables{free}"


def _size(number: int) -> str:
    for size, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if number >= size:
            return f"{number / size:.1f}".removesuffix(".0") + f" {unit}" if number < 10 * size else f"{number / size:.0f} {unit}"
    return f"{number} B"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
