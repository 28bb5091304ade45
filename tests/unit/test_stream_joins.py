"""Joins of streams on the oracle: which records pair, when a pair comes, and that neither cuts nor arrival can change the pairs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watertable as wt
from tests.properties.strategies import START
from watertable.errors import DefinitionError
from watertable.interpreter import Interpreter
from watertable.interpreter.pairing import pair_number
from watertable.plan import nodes
from watertable.plan.lineage import Origin, column_lineage
from watertable.plan.places import PAIRS
from watertable.plan.plan import Topology
from watertable.plan.purity import Purity, purity_of
from watertable.plan.windows import EPOCH, JoinWindows
from watertable.records import Place, Record
from watertable.testing import TopologyTestDriver
from watertable.tools import explain as explaining
from watertable.tools import keytext
from watertable.tools.testcase import as_test

MINUTE = timedelta(minutes=1)


def views(within: JoinWindows | timedelta) -> wt.App:
    """Join two topics: each view with the clicks of its key."""
    app = wt.App("shop")
    views, clicks = (app.topic(name, key="k STRING", value="v STRING").stream() for name in ("views", "clicks"))
    views.join(clicks, within=within, v="concat(left.v, right.v)").to("seen")
    return app


def pairs(driver: TopologyTestDriver) -> list[Any]:
    return [(record.value["v"], (record.timestamp - EPOCH) // MINUTE) for record in driver.read_output("seen") if record.value]


def pipe(driver: TopologyTestDriver, topic: str, value: str, minute: int, key: str | None = "k") -> None:
    driver.pipe_input(topic, key, {"v": value}, timestamp=EPOCH + minute * MINUTE)


def test_both_bounds_of_a_window_are_in_it() -> None:
    driver = TopologyTestDriver(views(wt.join_windows(before=wt.minutes(2), after=wt.minutes(5), grace=wt.hours(1))))
    pipe(driver, "views", "A", 10)
    for minute in (16, 15, 10, 8, 7):
        pipe(driver, "clicks", f"@{minute}", minute)
    assert pairs(driver) == [("A@15", 15), ("A@10", 10), ("A@8", 10)]


def test_a_window_can_lie_beside_the_record() -> None:
    driver = TopologyTestDriver(views(wt.join_windows(before=wt.minutes(-1), after=wt.minutes(3))))
    pipe(driver, "views", "A", 10)
    for minute in (10, 11, 13, 14):
        pipe(driver, "clicks", f"@{minute}", minute)
    assert pairs(driver) == [("A@11", 11), ("A@13", 13)]


def test_every_record_pairs_with_every_other_and_equals_are_two() -> None:
    driver = TopologyTestDriver(views(wt.minutes(5)))
    for topic, value in (("views", "A"), ("views", "A"), ("clicks", "x"), ("clicks", "y"), ("views", "B")):
        pipe(driver, topic, value, 1)
    assert Counter(pairs(driver)) == {("Ax", 1): 2, ("Ay", 1): 2, ("Bx", 1): 1, ("By", 1): 1}


def test_a_record_without_a_key_or_a_value_pairs_with_nothing_and_is_counted() -> None:
    driver = TopologyTestDriver(views(wt.minutes(5)))
    driver.pipe_input("views", "k", None, timestamp=0)
    pipe(driver, "views", "A", 0, key=None)
    driver.pipe_input("clicks", None, None, timestamp=0)
    pipe(driver, "clicks", "x", 0, key=None)
    pipe(driver, "clicks", "x", 0)
    assert pairs(driver) == []
    assert Counter((d.node, d.reason, d.topic) for d in driver.dropped()) == {
        ("join", "null_value", "views"): 1, ("join", "null_key", "views"): 1, ("join", "null_value", "clicks"): 1,
        ("join", "null_key", "clicks"): 1,
    }  # fmt: skip


@pytest.mark.parametrize(("grace", "found"), [(0, []), (4, []), (5, [("Ax", 12)])])
def test_a_late_record_pairs_as_long_as_the_windows_grace_lasts(grace: int, found: list[Any]) -> None:
    driver = TopologyTestDriver(views(wt.join_windows(after=wt.minutes(5), grace=wt.minutes(grace))))
    pipe(driver, "views", "A", 10)
    pipe(driver, "clicks", "far", 20, key="other")  # the view's window ends at 15
    pipe(driver, "clicks", "x", 12)
    assert pairs(driver) == found


def test_a_partition_that_lags_pairs_with_all_that_is_ahead_of_it() -> None:
    driver = TopologyTestDriver(views(wt.minutes(1)))
    for minute in range(60):
        pipe(driver, "clicks", f"@{minute}", minute)
    pipe(driver, "views", "A", 3)
    assert pairs(driver) == [("A@2", 3), ("A@3", 3), ("A@4", 4)]


def test_a_pair_is_at_the_place_of_its_later_record_whichever_came_first() -> None:
    def last(*batches: list[tuple[str, str, int]]) -> object:
        app = wt.App("shop")
        views, clicks = (app.topic(name, key="k STRING", value="v STRING").stream() for name in ("views", "clicks"))
        joined = views.join(clicks, within=wt.minutes(9), l="left.v", r="right.v").map_values(l="l", r="r")
        joined.to_table().materialized_as("last")
        driver = TopologyTestDriver(app)
        for batch in batches:
            with driver.batch():
                for topic, value, minute in batch:
                    pipe(driver, topic, value, minute)
        return driver.table("last")["k"]

    early, late, click = ("views", "early", 1), ("views", "late", 5), ("clicks", "c", 3)
    wanted = {"k": "k", "l": "late", "r": "c"}
    assert last([early, late, click]) == last([early], [late], [click]) == last([click], [early], [late]) == wanted
    assert last([early, late], [click]) == wanted


def test_a_stream_joined_with_itself_pairs_each_record_with_itself_once_and_with_others_twice() -> None:
    app = wt.App("shop")
    orders = app.topic("views", key="k STRING", value="v STRING").stream()
    orders.join(orders, within=wt.minutes(1), v="concat(left.v, right.v)").to("seen")
    driver = TopologyTestDriver(app)
    for value, minute in (("A", 1), ("B", 2), ("C", 3)):
        pipe(driver, "views", value, minute)
    assert sorted(pairs(driver)) == [("AA", 1), ("AB", 2), ("BA", 2), ("BB", 2), ("BC", 3), ("CB", 3), ("CC", 3)]


def test_a_pair_at_which_an_expression_fails_is_refused_under_its_later_record() -> None:
    app = wt.App("shop")
    left, right = (app.topic(name, key="k STRING", value="n INT").stream() for name in ("views", "clicks"))
    left.join(right, within=wt.minutes(5), v="left.n div right.n").to("seen")
    for order in (("views", "clicks"), ("clicks", "views")):
        driver = TopologyTestDriver(app)
        for topic in order:
            driver.pipe_input(topic, "k", {"n": 0}, timestamp=1000 if topic == "views" else 2000)
        (refused,) = driver.quarantine()
        assert (refused.record.topic, refused.node, driver.read_output("seen")) == ("clicks", "join", [])


def test_joins_nest_and_share_the_buffer_where_they_wait_for_the_same() -> None:
    app = wt.App("shop")
    a, b, c = (app.topic(name, key="k STRING", value="v STRING").stream() for name in "abc")
    once = a.join(b, within=wt.minutes(5), v="concat(left.v, right.v)")
    once.join(c, within=wt.minutes(5), v="concat(left.v, right.v)").to("seen")
    a.join(b, within=wt.minutes(5), n="length(left.v)").to("other")
    driver = TopologyTestDriver(app)
    for topic, value in (("c", "3"), ("a", "1"), ("b", "2"), ("b", "4")):
        pipe(driver, topic, value, 1)
    assert Counter(pairs(driver)) == {("123", 1): 1, ("143", 1): 1}
    assert len(app.topology().buffers) == 2
    assert [t.name for t in app.topology().tables] == []


def test_a_join_of_streams_follows_from_the_records_alone_and_says_where_its_columns_come_from() -> None:
    app = wt.App("shop")
    left, right = (app.topic(name, key="k STRING", value="v STRING, w INT").stream() for name in ("views", "clicks"))
    joined = left.join(right, within=wt.join_windows(after=wt.minutes(5)), v="left.v", sum="left.w + right.w", key="key.k")
    table = joined.group_by_key().agg(n=wt.sum("sum"), v=wt.last("v")).materialized_as("t")
    (t,) = app.topology().tables
    assert purity_of(joined.node) is purity_of(table.node) is Purity.PURE
    assert purity_of(table.to_stream().node) is Purity.ARRIVAL
    views, clicks = Origin("views", "value", "w"), Origin("clicks", "value", "w")
    assert column_lineage(t) == {
        "k": (Origin("clicks", "key", "k"), Origin("views", "key", "k")), "n": (clicks, views), "v": (Origin("views", "value", "v"),),
    }  # fmt: skip
    assert "join within 0s before to 5m after v=left.v" in app.describe()


def test_other_windows_and_other_columns_that_are_read_wait_anew_and_other_expressions_go_on() -> None:
    def defined(within: JoinWindows, column: str) -> Topology:
        app = wt.App("shop")
        left, right = (app.topic(name, key="k STRING", value="v STRING, w STRING").stream() for name in ("views", "clicks"))
        left.join(right, within=within, v=column).to("seen")
        return app.topology()

    five, six = (wt.join_windows(after=wt.minutes(n)) for n in (5, 6))
    one, same, wider, longer = (
        defined(five, "left.w"), defined(five, "upper(left.w)"), defined(five, "left.w || right.w"), defined(six, "left.w"),
    )  # fmt: skip
    assert len({t.fingerprint for t in (one, same, wider, longer)}) == 4
    names = [[b.name for b in t.buffers] for t in (one, same, wider, longer)]
    assert names[0] == names[1]
    assert len(set(map(tuple, names))) == 3
    assert one.fingerprint == defined(five, "left.w").fingerprint
    assert one.buffers[0].state[0].type.sql().count("`w`") == 1
    assert "`v`" in one.buffers[0].state[1].type.sql(), "of a side that isn't read, one column says that there is a record"
    assert "`w`" not in one.buffers[0].state[1].type.sql()


def test_what_only_watches_above_a_join_leaves_what_waits_where_it_is() -> None:
    def defined(change: Callable[[wt.Stream], wt.Stream] = lambda s: s, value: str = "v STRING", archive: bool = False) -> Topology:
        app = wt.App("shop")
        left, right = (app.topic(name, key="k STRING", value=value, archive=archive).stream() for name in ("views", "clicks"))
        change(left).join(right, within=wt.minutes(5), v="left.v || right.v").to("seen")
        return app.topology()

    plain = [b.name for b in defined().buffers]
    for same in (
        defined(lambda s: s.peek("seen")),
        defined(lambda s: s.expect("short", "length(v) < 9", on_fail="warn")),
        defined(value="early INT, v STRING, late INT"),
        defined(archive=True),
    ):
        assert [b.name for b in same.buffers] == plain
    for other in (defined(lambda s: s.filter("v > 'a'")), defined(lambda s: s.expect("short", "length(v) < 9", on_fail="drop"))):
        assert [b.name for b in other.buffers] != plain


def test_the_same_is_not_to_wait_twice() -> None:
    app = wt.App("shop")
    left, right = (app.topic(name, key="k STRING", value="v STRING").stream() for name in ("views", "clicks"))
    left.join(right, within=wt.minutes(5), v="left.v").to("one")
    left.join(right, within=wt.minutes(5), v="upper(left.v)").to("other")
    assert len(app.topology().buffers) == 1
    left.peek("seen").join(right, within=wt.minutes(5), v="left.v").to("third")
    with pytest.raises(
        DefinitionError, match=r"test_stream_joins.py:\d+: what waits here is what waits at .*test_stream_joins.py:\d+: only peeks"
    ):
        app.topology()


def test_pairs_of_one_record_have_numbers_of_their_own_in_the_order_of_the_other_sides_offsets() -> None:
    later = Place(START, "views", 0, 7, 0)
    numbers = [pair_number(later, Place(START, "clicks", 1, offset, 1)) for offset in range(10_000)]
    assert numbers == sorted(set(numbers))
    assert all(0 <= number < PAIRS for number in numbers)


# -- what any log says ----------------------------------------------------------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Write records of two keys to two topics of two partitions each, in any order of times."""
    following: Counter[tuple[str, int]] = Counter()
    records = []
    for number in range(draw(st.integers(1, 24))):
        topic, partition = draw(st.sampled_from(["views", "clicks"])), draw(st.integers(0, 1))
        when = START + timedelta(minutes=number // 2 + draw(st.integers(-12, 12)))
        offset = following[topic, partition]
        following[topic, partition] += 1
        data = json.dumps({"v": f"{topic[0]}{partition}.{offset}"}).encode()
        records.append(Record(topic, partition, offset, when, draw(st.sampled_from([b"k", b"l"])), data))
    return records


def by_hand(records: list[Record], within: JoinWindows) -> Counter[Any]:
    """Pair records by the definition: one key, times within the window, and the later of the two not late for the earlier one's."""
    reached: dict[tuple[str, int], Any] = {}
    placed = []
    for record in records:
        here = (record.topic, record.partition)
        reached[here] = max(record.timestamp, reached.get(here, EPOCH))
        placed.append(((reached[here], *here, record.offset), record))
    found: Counter[Any] = Counter()
    for (one, left), (other, right) in product(placed, placed):
        if (left.topic, right.topic, left.key) != ("views", "clicks", right.key):
            continue
        if not -within.before <= right.timestamp - left.timestamp <= within.after:
            continue
        ends = left.timestamp + within.after if one < other else right.timestamp + within.before
        if max(one, other)[0] <= ends + within.grace:
            value = json.dumps({"v": json.loads(left.value or b"")["v"] + json.loads(right.value or b"")["v"]}, separators=(",", ":"))
            found[value.encode(), max(left.timestamp, right.timestamp)] += 1
    return found


windows = st.builds(
    lambda before, after, grace: wt.join_windows(before=before * MINUTE, after=max(after, -before) * MINUTE, grace=grace * MINUTE),
    st.integers(-3, 10), st.integers(-3, 10), st.sampled_from([0, 2, 30]),
)  # fmt: skip


@settings(max_examples=150)
@given(logs(), windows, st.data())
def test_the_pairs_are_those_of_the_definition_whatever_the_cuts_and_however_the_partitions_interleave(
    records: list[Record], within: JoinWindows, data: st.DataObject
) -> None:
    wanted = by_hand(records, within)
    queues: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        queues.setdefault((record.topic, record.partition), []).append(record)
    arrived: list[Record] = []
    while queues:
        chosen = data.draw(st.sampled_from(sorted(queues)))
        arrived.append(queues[chosen].pop(0))
        if not queues[chosen]:
            del queues[chosen]
    for log in (records, arrived):
        cuts = sorted(data.draw(st.sets(st.integers(0, len(log)))) | {0, len(log)})
        engine = Interpreter(views(within).topology())
        for a, b in pairwise(cuts):
            engine.read(log[a:b])
        assert Counter((o.value, o.timestamp) for o in engine.outputs) == wanted


def test_a_join_names_the_buffer_that_it_keeps() -> None:
    (buffer,) = views(wt.minutes(5)).topology().buffers
    assert buffer.name.startswith("__join_")
    assert isinstance(buffer.root, nodes.JoinBuffer)
    assert [f.name for f in buffer.state] == ["__lefts", "__rights"]


@pytest.mark.parametrize("chunk", [1, 100])
def test_the_story_of_a_row_names_the_later_records_of_its_pairs_and_its_test_pipes_all_that_paired(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explaining, "CHUNK", chunk)
    app = wt.App("shop")
    left, right = (app.topic(name, key="k STRING", value="v STRING").stream() for name in ("views", "clicks"))
    left.join(right, within=wt.minutes(5), v="concat(left.v, right.v)").group_by_key().agg(v=wt.collect_list("v")).materialized_as("t")
    topology = app.topology()
    given = [("clicks", "x", 3, "k"), ("clicks", "y", 4, "l"), ("views", "A", 1, "k"), ("views", "B", 20, "k"), ("views", "C", 2, "l")]
    records = [
        Record(topic, 0, n, EPOCH + minute * MINUTE, key.encode(), json.dumps({"v": value}).encode())
        for n, (topic, value, minute, key) in enumerate(given)
    ]
    told = explaining.explain(topology, topology.table("t"), keytext.read(topology.table("t"), ["k"]), records)
    assert [(step.topic, step.offset, step.row) for step in told.steps] == [("clicks", 0, {"v": ["Ax"]})]
    story = as_test(topology, topology.table("t"), told, records, "watertable explain t --as-test")
    assert sorted(line.split('"')[1] for line in story.splitlines() if "pipe_input" in line) == ["clicks", "views"]
