"""Choose what a batch reads: the arithmetic of ranges of offsets."""

from __future__ import annotations

from watertable.store.commits import Offsets, Partition


def size(begin: Offsets, end: Offsets) -> int:
    """Count the offsets of a range; its records may be fewer, where transactions or compaction left gaps.

    >>> size({("t", 0): 0, ("t", 1): 10}, {("t", 0): 90, ("t", 1): 20})
    100
    """
    return sum(end[p] - begin[p] for p in begin)


def bounded(begin: Offsets, ends: Offsets, limit: int) -> dict[Partition, int]:
    """Choose where a batch ends: everything up to `ends` if that is within the limit, else the same share of what each partition has.

    >>> bounded({("t", 0): 0, ("t", 1): 10}, {("t", 0): 90, ("t", 1): 20}, 10)
    {('t', 0): 9, ('t', 1): 11}
    """
    waiting = {p: max(0, ends[p] - begin[p]) for p in begin}
    total = sum(waiting.values())
    if total <= limit:
        return {p: begin[p] + n for p, n in waiting.items()}
    return {p: begin[p] + -(-n * limit // total) for p, n in waiting.items()}


def midway(begin: Offsets, end: Offsets) -> dict[Partition, int] | None:
    """Halve a range of offsets; None when it holds a single one.

    >>> midway({("t", 0): 0, ("t", 1): 0}, {("t", 0): 1, ("t", 1): 4})
    {('t', 0): 1, ('t', 1): 1}
    """
    left = size(begin, end) // 2
    if not left:
        return None
    middle = {}
    for partition in sorted(begin):
        taken = min(left, end[partition] - begin[partition])
        middle[partition] = begin[partition] + taken
        left -= taken
    return middle
