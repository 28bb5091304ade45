"""Left and outer joins of streams on the oracle: what pairs with nothing comes once, when its window has closed, at its own place."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watertable as wt
from tests.unit.test_stream_joins import MINUTE, logs, pairs, pipe, windows
from watertable.dsl.streams import Stream
from watertable.errors import DefinitionError
from watertable.interpreter import Interpreter
from watertable.plan import nodes, plan
from watertable.plan.lineage import describe, mermaid
from watertable.plan.plan import Topology
from watertable.plan.purity import Purity, purity_of
from watertable.plan.windows import EPOCH, JoinWindows
from watertable.records import Record
from watertable.testing import TopologyTestDriver

JOINS = {"left": Stream.left_join, "outer": Stream.outer_join}
SIDE = "COALESCE({}.v, '-')"
BOTH = f"concat({SIDE.format('left')}, {SIDE.format('right')})"


def views(within: JoinWindows | timedelta, how: str = "left") -> wt.App:
    """Join two topics: each view with the clicks of its key, or with none."""
    app = wt.App("shop")
    views, clicks = (app.topic(name, key="k STRING", value="v STRING").stream() for name in ("views", "clicks"))
    JOINS[how](views, clicks, within=within, v=BOTH).to("seen")
    return app


def test_a_record_that_pairs_with_nothing_comes_once_every_partition_has_passed_its_window() -> None:
    driver = TopologyTestDriver(views(wt.join_windows(after=wt.minutes(5), grace=wt.minutes(1))))
    pipe(driver, "views", "A", 10)
    pipe(driver, "views", "B", 40, key="l")
    assert pairs(driver) == []  # the clicks may still bring one
    pipe(driver, "clicks", "x", 16, key="other")
    assert pairs(driver) == []  # at its end, a window is not over
    pipe(driver, "clicks", "y", 17, key="other")
    assert pairs(driver) == [("A-", 10)]
    pipe(driver, "clicks", "z", 90, key="other")
    assert pairs(driver) == []
    driver.advance("views", EPOCH + 60 * MINUTE)
    assert pairs(driver) == [("B-", 40)]


def test_a_record_that_has_paired_does_not_come_alone() -> None:
    driver = TopologyTestDriver(views(wt.minutes(5)))
    pipe(driver, "views", "A", 10)
    pipe(driver, "clicks", "x", 12)
    assert pairs(driver) == [("Ax", 12)]
    for topic in ("views", "clicks"):
        driver.advance(topic, EPOCH + 60 * MINUTE)
    assert pairs(driver) == []


def test_an_outer_join_gives_what_is_left_of_either_side_under_the_names_of_the_left_key() -> None:
    app = wt.App("shop")
    left, right = app.topic("views", key="k STRING", value="v STRING"), app.topic("clicks", key="who STRING", value="v STRING")
    left.stream().outer_join(right.stream(), within=wt.minutes(5), v=BOTH, key_="key.k").to_table().materialized_as("t")
    driver = TopologyTestDriver(app)
    pipe(driver, "views", "A", 1, key="a")
    pipe(driver, "clicks", "x", 1, key="b")
    for topic in ("views", "clicks"):
        driver.advance(topic, EPOCH + 60 * MINUTE)
    assert driver.table("t") == {"a": {"k": "a", "v": "A-", "key_": "a"}, "b": {"k": "b", "v": "-x", "key_": "b"}}


@pytest.mark.parametrize(("how", "found"), [("left", [("A-", 1)]), ("outer", [("A-", 1), ("-x", 2)])])
def test_a_record_without_a_key_comes_alone_and_at_once_and_one_without_a_value_is_dropped(how: str, found: list[Any]) -> None:
    driver = TopologyTestDriver(views(wt.minutes(5), how))
    pipe(driver, "views", "A", 1, key=None)
    pipe(driver, "clicks", "x", 2, key=None)
    for topic in ("views", "clicks"):
        driver.pipe_input(topic, "k", None, timestamp=0)
        driver.pipe_input(topic, None, None, timestamp=0)
    assert pairs(driver) == found
    counted = Counter((d.node, d.reason, d.topic) for d in driver.dropped())
    operator = f"{how}_join"
    assert counted[operator, "null_key", "clicks"] == (how == "left")
    assert counted[operator, "null_value", "views"] == counted[operator, "null_value", "clicks"] == 2


def test_what_comes_alone_keeps_its_place_and_its_time() -> None:
    """So it enters the window that it belongs to, however late it was noticed, and is not the last of its key."""
    app = wt.App("shop")
    views, clicks = (app.topic(name, key="k STRING", value="v STRING").stream() for name in ("views", "clicks"))
    joined = views.left_join(clicks, within=wt.minutes(5), v=BOTH)
    joined.to_table().materialized_as("last")
    joined.group_by_key().windowed_by(wt.tumbling(minutes=10)).agg(all=wt.collect_list("v")).materialized_as("by_window")
    driver = TopologyTestDriver(app)
    pipe(driver, "views", "A", 9)
    pipe(driver, "views", "B", 31)
    pipe(driver, "clicks", "x", 32)
    driver.advance("views", EPOCH + 40 * MINUTE)
    assert driver.table("last")["k"]["v"] == "Bx"
    assert [row["all"] for row in driver.windows("by_window", "k")] == [["A-"], ["Bx"]]
    assert driver.dropped() == []


def test_what_an_outer_join_gives_waits_for_nothing_longer_in_the_next_join() -> None:
    app = wt.App("shop")
    a, b, c = (app.topic(name, key="k STRING", value="v STRING").stream() for name in "abc")
    once = a.left_join(b, within=wt.minutes(5), v=BOTH)
    once.left_join(c, within=wt.minutes(2), v=BOTH).to("seen")
    assert plan.delay_of(once.node) == 5 * MINUTE
    driver = TopologyTestDriver(app)
    pipe(driver, "a", "1", 10)
    pipe(driver, "c", "3", 11)
    pipe(driver, "b", "2", 15, key="other")
    driver.advance("a", EPOCH + 16 * MINUTE)
    driver.advance("c", EPOCH + 16 * MINUTE)
    assert pairs(driver) == []  # b may still bring a partner at 15
    driver.advance("b", EPOCH + 16 * MINUTE)
    assert pairs(driver) == [("1-3", 11)]


def test_a_record_alone_at_which_an_expression_fails_is_refused_under_its_own_place() -> None:
    app = wt.App("shop")
    left, right = (app.topic(name, key="k STRING", value="n INT").stream() for name in ("views", "clicks"))
    left.left_join(right, within=wt.minutes(5), v="left.n div COALESCE(right.n, 0)").to("seen")
    driver = TopologyTestDriver(app)
    driver.pipe_input("views", "k", {"n": 1}, timestamp=1000)
    for topic in ("views", "clicks"):
        driver.advance(topic, EPOCH + 60 * MINUTE)
    (refused,) = driver.quarantine()
    assert (refused.record.topic, refused.node, driver.read_output("seen")) == ("views", "left_join", [])


def test_a_mistake_at_definition_says_where_and_what() -> None:
    app = wt.App("shop")
    views, clicks = (app.topic(name, key="k STRING", value="v STRING").stream() for name in ("views", "clicks"))
    table = clicks.to_table().materialized_as("t")
    for wrong, words in (
        (lambda: views.left_join(clicks, v="left.v"), r"left_join of two streams wants within="),
        (lambda: views.outer_join(clicks, v="left.v"), r"outer_join of two streams wants within="),
        (lambda: views.left_join(clicks, on="v", within=wt.minutes(1), v="left.v"), r"left_join: streams pair by their keys"),
        (lambda: views.left_join(table, within=wt.minutes(1), v="v"), r"left_join: within= is for streams"),
        (lambda: views.outer_join(table, v="v"), r"outer_join wants a stream"),  # type: ignore[arg-type]
        (lambda: views.outer_join(clicks.select_key(n="1"), within=wt.minutes(1), v="left.v"), r"outer_join wants"),
    ):
        with pytest.raises(DefinitionError, match=words):
            wrong()


def test_an_outer_join_is_pure_named_and_another_app_than_an_inner_one() -> None:
    def defined(join: Any) -> Topology:
        app = wt.App("shop")
        views, clicks = (app.topic(name, key="k STRING", value="v STRING").stream() for name in ("views", "clicks"))
        join(views, clicks, within=wt.minutes(5), v="left.v").to("seen")
        return app.topology()

    inner, left, outer = (defined(join) for join in (Stream.join, Stream.left_join, Stream.outer_join))
    assert len({t.fingerprint for t in (inner, left, outer)}) == 3
    assert len({b.name for t in (inner, left, outer) for b in t.buffers}) == 3
    assert purity_of(left.sinks[0].node) is Purity.PURE
    assert "left_join within 5m before to 5m after v=left.v" in describe(left)
    assert "|outer_join|" in mermaid(outer)
    assert [f.name for f in left.buffers[0].state] == ["__lefts", "__rights", "__done"]
    assert [c.name for c in left.buffers[0].value] == ["__lefts", "__rights"]


def test_the_changes_of_a_table_below_an_outer_join_depend_on_arrival() -> None:
    app = wt.App("shop")
    views = app.topic("views", key="k STRING", value="v STRING").stream()
    left = views.left_join(views.filter("v > 'm'"), within=wt.minutes(5), v="left.v").group_by_key().agg(n=wt.count())
    inner = views.join(views.filter("v > 'm'"), within=wt.minutes(5), v="left.v").group_by_key().agg(n=wt.count())
    changes = [table.materialized_as(name).to_stream().node for table, name in ((left, "a"), (inner, "b"))]
    assert [purity_of(node) for node in changes] == [Purity.ARRIVAL, Purity.PURE]


# -- what any log says ----------------------------------------------------------------------------------------------------------------


def by_hand(records: list[Record], within: JoinWindows, how: str) -> Counter[Any]:
    """Join records by the definition: pairs as in an inner join, and what pairs with nothing and can't any more."""
    reached: dict[tuple[str, int], datetime] = {}
    placed = []
    for record in records:
        here = (record.topic, record.partition)
        reached[here] = max(record.timestamp, reached.get(here, EPOCH))
        placed.append(((reached[here], *here, record.offset), record))
    low = min(reached.values()) if {topic for topic, _ in reached} == {"views", "clicks"} else EPOCH
    found: Counter[Any] = Counter()
    paired = set()
    for one, left in placed:
        for other, right in placed:
            if (left.topic, right.topic, left.key) != ("views", "clicks", right.key):
                continue
            ends = left.timestamp + within.after if one < other else right.timestamp + within.before
            if within.holds(left.timestamp, right.timestamp) and max(one, other)[0] <= ends + within.grace:
                paired |= {one, other}
                found[text(left) + text(right), max(left.timestamp, right.timestamp)] += 1
    for place, record in placed:
        side = ("views", "clicks").index(record.topic)
        closes = max(place[0], record.timestamp + within.open_for[side])
        if place not in paired and closes < low and (side == 0 or how == "outer"):
            found["-" * side + text(record) + "-" * (1 - side), record.timestamp] += 1
    return found


def text(record: Record) -> str:
    return str(json.loads(record.value or b"")["v"])


@settings(max_examples=150)
@given(logs(), windows, st.sampled_from(["left", "outer"]), st.data())
def test_what_comes_is_that_of_the_definition_whatever_the_cuts_and_however_the_partitions_interleave(
    records: list[Record], within: JoinWindows, how: str, data: st.DataObject
) -> None:
    wanted = by_hand(records, within, how)
    queues: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        queues.setdefault((record.topic, record.partition), []).append(record)
    partitions, arrived = set(queues), []
    while queues:
        chosen = data.draw(st.sampled_from(sorted(queues)))
        arrived.append(queues[chosen].pop(0))
        if not queues[chosen]:
            del queues[chosen]
    for log in (records, arrived):
        cuts = sorted(data.draw(st.sets(st.integers(0, len(log)))) | {0, len(log)})
        engine = Interpreter(views(within, how).topology(), partitions=partitions)
        for a, b in pairwise(cuts):
            engine.read(log[a:b])
        assert Counter((json.loads(o.value or b"")["v"], o.timestamp) for o in engine.outputs) == wanted


def test_a_join_that_gives_records_alone_keeps_which_of_them_are_done() -> None:
    (buffer,) = views(wt.minutes(5)).topology().buffers
    assert isinstance(buffer.root, nodes.OuterBuffer)
    assert buffer.root.how.alone == (0,)
