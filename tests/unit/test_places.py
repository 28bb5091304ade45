"""Hold the numbers by which what is made of one record keeps its order to 64 bits, before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

import watertable as wt
from watertable.errors import DefinitionError
from watertable.plan.places import FAN_OUT
from watertable.testing import TopologyTestDriver

WITHIN = wt.join_windows(before=wt.seconds(5), after=wt.seconds(5))
AT = datetime(2026, 1, 1, tzinfo=UTC)


def _taken_apart(app: wt.App, times: int) -> wt.Stream:
    stream = app.topic("lines", key="k STRING", value="a ARRAY<BIGINT>").stream()
    for _ in range(times):
        stream = stream.flat_map_values(a="array(a)", explode="a")
    return stream


def _named(app: wt.App, times: int) -> wt.Stream:
    """Join a table with those that its rows name, one after the other."""
    table = app.topic("t0", key="k STRING", value="other STRING").table().materialized_as("first")
    for n in range(times):
        named = app.topic(f"t{n + 1}", key="k STRING", value="other STRING").table().materialized_as(f"named{n}")
        table = table.join(named, on="other", other="right.other").materialized_as(f"joined{n}")
    return table.to_stream()


def _pairs_of_pairs(app: wt.App, times: int) -> wt.Stream:
    stream = app.topic("clicks", key="k STRING", value="n BIGINT").stream()
    for _ in range(times):
        stream = stream.join(stream, within=WITHIN, n="left.n + right.n")
    return stream


@pytest.mark.parametrize(("made", "times"), [(_taken_apart, 4), (_named, 3), (_pairs_of_pairs, 5)])
def test_steps_that_make_several_records_of_one_can_follow_each_other(made: Callable[[wt.App, int], wt.Stream], times: int) -> None:
    made(wt.App("deep"), times).group_by("k").agg(n=wt.count()).materialized_as("counts")


@pytest.mark.parametrize(("made", "times"), [(_taken_apart, 5), (_named, 4)])
def test_a_plan_whose_order_takes_more_than_64_bits_is_refused_at_its_step(made: Callable[[wt.App, int], wt.Stream], times: int) -> None:
    with pytest.raises(DefinitionError, match=r"test_places\.py:\d+: too many steps .* bits here, of 63; write a topic"):
        made(wt.App("deep"), times).group_by("k").agg(n=wt.count()).materialized_as("counts")


def test_an_array_with_too_many_elements_is_quarantined_and_the_next_record_goes_on() -> None:
    app = wt.App("wide")
    lines = app.topic("lines", key="k STRING", value="words STRING").stream()
    lines.flat_map_values(word="split(words, ' ')").group_by("k").agg(n=wt.count()).materialized_as("counts")
    driver = TopologyTestDriver(app)
    for size in (FAN_OUT + 1, FAN_OUT):
        driver.pipe_input("lines", {"k": "a"}, {"words": "a " * (size - 1)}, timestamp=AT)
    assert driver.table("counts") == {"a": {"k": "a", "n": FAN_OUT}}
    assert [refused.reason for refused in driver.quarantine()] == [f"the array has more than {FAN_OUT:,} elements"]
