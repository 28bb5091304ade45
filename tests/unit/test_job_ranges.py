"""The arithmetic of a run's offsets: where a batch ends, and how a failing one is halved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from watertable.errors import DefinitionError, Fenced, JobError, SettingsError, TopicChanged, exit_code
from watertable.runtime.ranges import bounded, midway

_ranges = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5)), st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1
).map(lambda drawn: ({p: b for p, (b, _) in drawn.items()}, {p: b + n for p, (b, n) in drawn.items()}))


@given(_ranges, st.integers(1, 500))
def test_a_batch_ends_within_what_is_there_takes_something_of_each_partition_and_not_much_over_its_limit(
    ranges: tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]], limit: int
) -> None:
    begin, ends = ranges
    end = bounded(begin, ends, limit)
    assert all(begin[p] <= end[p] <= ends[p] for p in begin)
    assert sum(end[p] - begin[p] for p in begin) < limit + len(begin)
    assert all(end[p] > begin[p] for p in begin if ends[p] > begin[p]), "no partition starves"
    if sum(ends[p] - begin[p] for p in begin) <= limit:
        assert end == ends


@given(_ranges)
def test_halving_a_range_again_and_again_ends_at_single_offsets_and_covers_it(
    ranges: tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]],
) -> None:
    begin, end = ranges
    seen = []
    work = [(begin, end)]
    while work:
        low, high = work.pop()
        middle = midway(low, high)
        if middle is None:
            seen += [(p, low[p]) for p in low if high[p] > low[p]]
            assert sum(high[p] - low[p] for p in low) <= 1
        else:
            work += [(low, middle), (middle, high)]
    assert sorted(seen) == sorted((p, o) for p in begin for o in range(begin[p], end[p]))


def test_programs_can_tell_by_the_exit_code_what_stopped_an_app() -> None:
    assert [exit_code(e("x")) for e in (JobError, DefinitionError, SettingsError, Fenced, TopicChanged, ValueError)] == [1, 2, 2, 3, 4, 1]
