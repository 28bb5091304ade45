"""The interpreter, operator by operator: what Kafka Streams defines, and where we say what we do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import watertable as wt
from watertable.dsl.streams import Stream
from watertable.errors import DefinitionError, JobError
from watertable.interpreter import Interpreter
from watertable.plan.places import FAN_OUT
from watertable.plan.windows import EPOCH, FOREVER
from watertable.records import Advance, Record

VALUE = "g STRING, x INT, tags ARRAY<STRING>"


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


class Feed:
    """Write records with rising offsets."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, int], int] = {}

    def __call__(self, seconds: float, key: str | None = "k", topic: str = "t", partition: int = 0, **value: Any) -> Record:
        data = None if value == {"value": None} else json.dumps(value).encode()
        offset = self.offsets.get((topic, partition), 0)
        self.offsets[topic, partition] = offset + 1
        return Record(topic, partition, offset, at(seconds), None if key is None else key.encode(), data)


@pytest.fixture
def feed() -> Feed:
    return Feed()


Define = Callable[[wt.App, Stream], object]


def ran(define: Define, *batches: list[Record]) -> Interpreter:
    app = wt.App("a")
    define(app, app.topic("t", key="k STRING", value=VALUE).stream())
    engine = Interpreter(app.topology())
    for batch in batches:
        engine.read(batch)
    return engine


def values(engine: Interpreter, topic: str = "out") -> list[Any]:
    return [None if o.value is None else json.loads(o.value) for o in engine.outputs if o.topic == topic]


# -- streams ----------------------------------------------------------------------------------------------------------------------------


def test_filter_keeps_what_is_true_and_filter_not_drops_it(feed: Feed) -> None:
    records = [feed(0, x=1), feed(1, x=5), feed(2, x=None)]
    kept = ran(lambda a, s: s.filter("x > 3").map_values(x="x").to("out"), records)
    dropped = ran(lambda a, s: s.filter_not("x > 3").map_values(x="x").to("out"), records)
    assert values(kept) == [{"x": 5}]
    assert values(dropped) == [{"x": 1}, {"x": None}]


def test_a_null_value_passes_map_values_untouched_and_filters_see_it(feed: Feed) -> None:
    engine = ran(lambda a, s: s.filter("x IS NULL").map_values(x="10 div length(k) - 1").to("out"), [feed(0, value=None)])
    assert values(engine) == [None]


def test_map_makes_a_new_key_and_keeps_a_tombstone(feed: Feed) -> None:
    engine = ran(lambda a, s: s.map(key={"n": "concat(k, '!')"}, value={"y": "x"}).to("out"), [feed(0, x=1), feed(1, value=None)])
    assert [(o.key, o.value) for o in engine.outputs] == [(b"k!", b'{"y":1}'), (b"k!", None)]


def test_flat_map_values_makes_one_record_per_element_in_order_and_none_of_nothing(feed: Feed) -> None:
    records = [feed(0, x=1, tags=["b", None, "a"]), feed(1, tags=[]), feed(2, tags=None), feed(3, value=None)]
    engine = ran(lambda a, s: s.flat_map_values(tag="tags", x="x").to("out"), records)
    assert values(engine) == [{"tag": "b", "x": 1}, {"tag": None, "x": 1}, {"tag": "a", "x": 1}]
    assert [o.place.ord for o in engine.outputs] == [0, 1, 2]


def test_nested_flat_maps_keep_the_order_of_their_elements(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        s.flat_map_values(one="tags", tags="tags", explode="one").flat_map_values(one="one", two="tags").to("out")

    engine = ran(define, [feed(0, tags=["a", "b"])])
    assert [v["one"] + v["two"] for v in values(engine)] == ["aa", "ab", "ba", "bb"]
    assert [o.place.ord for o in engine.outputs] == [0, 1, FAN_OUT, FAN_OUT + 1]


def test_merged_streams_are_in_log_order_whatever_the_order_of_arrival(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        s.merge(app.topic("u", key="k STRING", value=VALUE).stream()).map_values(x="x").to("out")

    engine = ran(define, [feed(5, x=5), feed(1, topic="u", x=1), feed(7, topic="u", x=7), feed(6, x=6)])
    assert [v["x"] for v in values(engine)] == [1, 5, 6, 7]


def test_two_records_made_of_one_and_merged_again_stay_apart(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        merged = s.map_values(v="'left'").merge(s.map_values(v="'right'"))
        merged.group_by_key().agg(first=wt.first("v"), last=wt.last("v"), n=wt.count()).materialized_as("t1")

    engine = ran(define, [feed(0, x=1), feed(1, x=1)])
    assert list(engine.tables["t1"].values()) == [{"k": "k", "first": "left", "last": "right", "n": 4}]


def test_a_stream_that_is_merged_with_itself_gives_each_record_twice_and_so_do_two_that_say_the_same(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        s.merge(s).map_values(x="x").to("itself")
        s.filter("x > 0").merge(s.filter("x > 0")).map_values(x="x").to("alike")

    engine = ran(define, [feed(0, x=1), feed(1, x=2)])
    assert [(out.topic, json.loads(out.value or b"")["x"]) for out in engine.outputs] == [
        *(("itself", 1), ("itself", 1), ("alike", 1), ("alike", 1)),
        *(("itself", 2), ("itself", 2), ("alike", 2), ("alike", 2)),
    ]


def test_split_sends_each_record_to_its_first_branch(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        for name, branch in s.split().branch("big", "x > 5").branch("some", "x > 1").default_branch("rest").items():
            branch.map_values(x="x").to(name)

    engine = ran(define, [feed(i, x=x) for i, x in enumerate([9, 3, 0, None])])
    assert {name: values(engine, name) for name in ("big", "some", "rest")} == {
        "big": [{"x": 9}],
        "some": [{"x": 3}],
        "rest": [{"x": 0}, {"x": None}],
    }


def test_a_branch_that_takes_a_record_spares_it_the_conditions_of_the_later_ones(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        for name, branch in s.split().branch("zero", "x = 0").branch("big", "10 div x > 3").default_branch("rest").items():
            branch.map_values(x="x").to(name)

    engine = ran(define, [feed(i, x=x) for i, x in enumerate([0, 2, 9, None])])
    assert engine.quarantine == []
    assert {name: values(engine, name) for name in ("zero", "big", "rest")} == {
        "zero": [{"x": 0}],
        "big": [{"x": 2}],
        "rest": [{"x": 9}, {"x": None}],
    }


@pytest.mark.parametrize(("verdict", "passed", "refused", "counted"), [("quarantine", 1, 1, 0), ("drop", 1, 0, 1), ("warn", 2, 0, 1)])
def test_a_rule_quarantines_drops_or_only_counts(feed: Feed, verdict: str, passed: int, refused: int, counted: int) -> None:
    engine = ran(lambda a, s: s.expect("positive", "x > 0", on_fail=verdict).to("out"), [feed(0, x=1), feed(1, x=-1)])
    assert len(engine.outputs) == passed
    assert [q.node for q in engine.quarantine] == ["expect:positive"] * refused
    assert [(d.node, d.reason) for d in engine.dropped] == [("expect:positive", "rule:positive")] * counted


def test_a_rule_that_is_null_keeps_and_one_that_fails_refuses_whatever_its_verdict(feed: Feed) -> None:
    engine = ran(lambda a, s: s.expect("ratio", "10 div x > 1", on_fail="warn").to("out"), [feed(0, x=None), feed(1, x=0)])
    assert len(engine.outputs) == 1
    assert [q.record.offset for q in engine.quarantine] == [1]


def test_peek_counts_and_repartition_drops_records_without_key(feed: Feed) -> None:
    engine = ran(lambda a, s: s.peek("seen").repartition().to("out"), [feed(0, key=None, x=1), feed(1, x=2)])
    assert engine.peeked == {"seen": 2}
    assert len(engine.outputs) == 1
    assert [(d.node, d.reason) for d in engine.dropped] == [("repartition", "null_key")]


# -- failures ---------------------------------------------------------------------------------------------------------------------------


def test_a_record_that_fails_is_refused_once_with_the_line_and_other_branches_go_on(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        risky = s.map_values(y="10 div x")
        risky.filter("y > 0").to("one")
        risky.group_by_key().count().materialized_as("t1")
        s.to("two")

    engine = ran(define, [feed(0, x=0), feed(1, x=5)])
    (refused,) = engine.quarantine
    assert (refused.node, refused.record.offset) == ("map_values", 0)
    assert refused.location == f"tests/unit/test_interpreter.py:{define.__code__.co_firstlineno + 1}"
    assert "zero" in refused.reason
    assert (len(values(engine, "one")), len(values(engine, "two"))) == (1, 2)


def test_a_group_or_an_aggregate_that_fails_is_refused_at_the_table(feed: Feed) -> None:
    engine = ran(lambda a, s: s.group_by_key().agg(n=wt.sum("10 div x")).materialized_as("t1"), [feed(0, x=0), feed(1, x=5)])
    assert [(q.node, q.record.offset) for q in engine.quarantine] == [("t1", 0)]
    assert engine.tables["t1"]["k",]["n"] == 2


def test_what_cannot_be_read_moves_no_stream_time(feed: Feed) -> None:
    engine = ran(lambda a, s: s.to("out"), [Record("t", 0, 0, at(900), b"k", b"{"), Record("t", 0, 1, at(5), b"k", b"{}")])
    assert engine.stream_times == {("t", 0): at(5)}


def test_an_event_time_that_is_null_or_before_1970_is_refused(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        app.topic("u", value="at TIMESTAMP", timestamp="at").stream().to("out")
        s.to("same")

    batch = [feed(0, topic="u", at=None), feed(-1), feed(0, topic="u", at=at(7).isoformat()), feed(0, topic="u", at="1969-12-31T23:59:59Z")]
    engine = ran(define, batch)
    assert [(q.record.topic, q.record.offset, q.node) for q in engine.quarantine] == [
        ("t", 0, "topic"),
        ("u", 0, "topic"),
        ("u", 2, "topic"),
    ]
    assert [o.timestamp for o in engine.outputs] == [at(7)]


AGES = 10**9


def _orders(app: wt.App, _: Stream) -> None:
    orders = app.topic("u", key="k STRING", value="at TIMESTAMP, x INT", timestamp="at").stream()
    orders.to("out")
    orders.group_by_key().windowed_by(wt.tumbling(seconds=10)).agg(n=wt.count(), x=wt.sum("x")).materialized_as("t1")
    orders.to_table().materialized_as("t2", history=wt.seconds(30))


def test_a_record_without_a_value_is_at_its_partitions_stream_time_where_the_topic_names_a_field_for_it(feed: Feed) -> None:
    def order(seconds: float, **more: Any) -> Record:
        return feed(AGES, topic="u", at=at(seconds).isoformat(), **more)

    log = [order(12, x=1), order(11, x=1), feed(AGES, topic="u", value=None), order(13, key="j", x=1), feed(-1, topic="u", value=None)]
    log.append(feed(AGES, topic="u", partition=1, at=at(1).isoformat(), key="i", x=1))
    engine = ran(_orders, log)
    assert engine.stream_times == {("u", 0): at(13), ("u", 1): at(1)}, "what the broker stamped them with moves no stream time"
    assert [(o.key, o.timestamp) for o in engine.outputs if o.value is None] == [(b"k", at(12)), (b"k", at(13))]
    counts = {(row["k"], row["window_start"]): row["n"] for row in engine.tables["t1"].values()}
    assert counts == {("k", at(10)): 4, ("j", at(10)): 1, ("i", at(0)): 1}, "two of the four have no value"
    assert set(engine.tables["t2"]) == {("j",), ("i",)}, "it deletes from that time on"
    assert not engine.dropped
    assert not engine.quarantine
    one_by_one = ran(_orders, *([record] for record in log))
    assert (one_by_one.tables, one_by_one.stream_times) == (engine.tables, engine.stream_times)


def test_a_record_without_a_value_before_all_that_have_a_time_is_at_the_earliest_there_is(feed: Feed) -> None:
    def order(seconds: float) -> Record:
        return feed(AGES, topic="u", at=at(seconds).isoformat(), x=1)

    first, second = [feed(AGES, topic="u", value=None)], [order(5), order(12), feed(AGES, topic="u", value=None)]
    engine = ran(_orders, first)
    assert engine.stream_times == {("u", 0): EPOCH}
    engine.read(second)
    assert engine.stream_times == {("u", 0): at(12)}
    assert not engine.dropped, "it makes nothing late"
    assert ran(_orders, first + second).tables == engine.tables


def test_a_record_without_a_value_follows_an_advance_as_others_do(feed: Feed) -> None:
    engine = ran(_orders, [feed(AGES, topic="u", at=at(5).isoformat())], [Advance("u", 0, 1, at(40)), feed(AGES, topic="u", value=None)])
    assert engine.stream_times == {("u", 0): at(40)}
    assert [o.timestamp for o in engine.outputs] == [at(5), at(40)]


def test_a_record_without_a_value_has_its_own_time_where_that_is_its_topics_event_time(feed: Feed) -> None:
    engine = ran(lambda a, s: s.to("out"), [feed(5, x=1), feed(9, value=None), feed(7, x=1)])
    assert [o.timestamp for o in engine.outputs] == [at(5), at(9), at(7)]
    assert engine.stream_times == {("t", 0): at(9)}


def test_an_event_time_after_which_no_time_would_be_left_is_refused_whatever_else_is_in_the_record() -> None:
    app = wt.App("a")
    read = app.topic("t", value="at TIMESTAMP, x INT, sent TIMESTAMP", timestamp="at").stream()
    windows = wt.tumbling(days=36_525, grace=wt.days(36_525))
    read.group_by_key().windowed_by(windows).agg(n=wt.count()).materialized_as("n")
    millis = 1_709_287_200_000  # which are read as seconds, of the year 56134
    texts = [
        f'{{"at": {millis}}}', f'{{"sent": {millis}, "at": {millis}}}', f'{{"at": {millis}, "x": "one"}}', '{"at": "9999-12-31T23:59:59Z"}',
        '{"at": "9000-01-01T00:00:00Z"}', '{"at": "8999-12-31T23:59:59.999999Z"}',
    ]  # fmt: skip
    engine = Interpreter(app.topology())
    engine.read([Record("t", 0, n, at(0), b"k", text.encode()) for n, text in enumerate(texts)])
    says = "the event time is null, before 1970, or not before 9000"
    assert [(q.record.offset, q.reason) for q in engine.quarantine] == [
        (0, says),
        (1, says),
        (2, 'x: "one" is not INT'),
        (3, says),
        (4, says),
    ]
    assert [row["n"] for row in engine.tables["n"].values()] == [1]
    engine.read([Record("t", 0, 9, at(0), b"k", f'{{"at": 1, "sent": {millis}}}'.encode())])
    assert engine.quarantine[-1].reason == "a date or time is outside the years 1 to 9999"


def test_a_topic_that_the_app_does_not_read_is_no_input(feed: Feed) -> None:
    with pytest.raises(DefinitionError, match="doesn't read topic 'x'; it reads t"):
        ran(lambda a, s: s.to("out"), [feed(0, topic="x")])


# -- tables -----------------------------------------------------------------------------------------------------------------------------


def test_null_keys_and_null_values_are_dropped_and_counted_where_kafka_streams_does(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        s.group_by("g").count().materialized_as("by_g")
        s.group_by_key().windowed_by(wt.tumbling(seconds=10)).count().materialized_as("windowed")
        s.group_by_key().windowed_by(wt.sessions(gap=wt.seconds(10))).count().materialized_as("session")
        s.group_by_key().windowed_by(wt.sliding(difference=wt.seconds(10))).count().materialized_as("sliding")
        s.to_table().materialized_as("latest")

    engine = ran(define, [feed(0, key=None, g=None), feed(1, g="a"), feed(2, g="a"), feed(3, value=None)])
    assert {(d.node, d.reason, d.offset) for d in engine.dropped} == {
        ("by_g", "null_key", 0), ("by_g", "null_value", 3), ("windowed", "null_key", 0), ("session", "null_key", 0),
        ("sliding", "null_key", 0), ("sliding", "null_value", 3), ("latest", "null_key", 0),
    }  # fmt: skip
    assert engine.tables["by_g"]["a",]["count"] == 2
    assert [row["count"] for row in engine.tables["windowed"].values()] == [3]  # these windows' aggregates see null values
    assert [row["count"] for row in engine.tables["session"].values()] == [3]
    assert max(row["count"] for row in engine.tables["sliding"].values()) == 2
    assert engine.tables["latest"] == {}


def test_a_key_with_a_null_in_it_is_no_key(feed: Feed) -> None:
    engine = ran(lambda a, s: s.group_by("k", "g").count().materialized_as("t1"), [feed(0, g=None), feed(1, g="a")])
    assert list(engine.tables["t1"]) == [("k", "a")]
    assert [d.reason for d in engine.dropped] == ["null_key"]


def test_a_record_without_key_is_an_error_in_a_table_topic(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        app.topic("rows", key="k STRING", value="x INT").table().materialized_as("rows_table")
        s.to("out")

    engine = ran(define, [feed(0, key=None, topic="rows", x=1), feed(1, topic="rows", x=2)])
    assert [(q.node, q.record.offset) for q in engine.quarantine] == [("rows_table", 0)]
    assert engine.dropped == []


def test_a_table_follows_offsets_within_a_partition_and_a_tombstone_deletes(feed: Feed) -> None:
    records = [feed(9, x=1), feed(1, x=2), feed(2, key="gone", x=3), feed(0, key="gone", value=None)]
    engine = ran(lambda a, s: s.to_table().materialized_as("t1"), records)
    assert [row["x"] for row in engine.tables["t1"].values()] == [2]


def test_a_tombstone_wins_over_an_earlier_value_that_comes_after_it(feed: Feed) -> None:
    first, second = [feed(9, value=None)], [feed(5, partition=1, x=5)]
    engine = ran(lambda a, s: s.to_table().materialized_as("t1"), first, second)
    assert engine.tables["t1"] == {}


def test_last_and_first_follow_log_order_over_partitions_and_skip_nulls(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        s.group_by_key().agg(first=wt.first("x"), last=wt.last("x")).materialized_as("t1")

    engine = ran(define, [feed(5, x=5), feed(9, x=None)], [feed(1, partition=1, x=1), feed(7, partition=1, x=7)])
    assert list(engine.tables["t1"].values()) == [{"k": "k", "first": 1, "last": 7}]


def test_sums_and_averages_of_nothing_but_nulls_are_null_and_counts_are_zero(feed: Feed) -> None:
    aggregates = {"s": wt.sum("x"), "a": wt.avg("x"), "n": wt.count("x"), "d": wt.count_distinct("x"), "m": wt.max("x")}
    engine = ran(lambda app, s: s.group_by_key().agg(**aggregates).materialized_as("t1"), [feed(0, x=None)])
    assert list(engine.tables["t1"].values()) == [{"k": "k", "s": None, "a": None, "n": 0, "d": 0, "m": None}]


@pytest.mark.parametrize(("kind", "most"), [("BIGINT", 2**63 - 1), ("DECIMAL(38,0)", 10**38 - 1)])
def test_a_sum_that_leaves_its_type_stops_the_app_and_one_that_just_fits_is_exact(feed: Feed, kind: str, most: int) -> None:
    def define(app: wt.App, s: Stream) -> None:
        much = f"CASE x WHEN 0 THEN CAST({most} AS {kind}) ELSE CAST(x AS {kind}) END"
        s.group_by_key().agg(s=wt.sum(much)).materialized_as("t1")

    assert list(ran(define, [feed(0, x=0), feed(1, x=-1), feed(2, x=1)]).tables["t1"].values()) == [{"k": "k", "s": most}]
    with pytest.raises(JobError, match=rf"which is no {re.escape(kind)}: add up DECIMALs with more room"):
        ran(define, [feed(3, x=0), feed(4, x=1)])


def test_lists_are_in_log_order_sets_are_sorted_and_both_skip_nulls(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        s.group_by_key().agg(list=wt.collect_list("x"), set=wt.collect_set("x")).materialized_as("t1")

    late = [feed(9, x=4, partition=1), feed(9, x=None)]
    engine = ran(define, late, [feed(1, x=7, partition=2), feed(2, x=4, partition=2), feed(0, "empty", partition=2, x=None)])
    assert list(engine.tables["t1"].values()) == [
        {"k": "k", "list": [7, 4, 4], "set": [4, 7]},
        {"k": "empty", "list": [], "set": []},
    ]


def test_the_greatest_come_first_and_of_equals_the_later_in_log_order(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        s.group_by_key().agg(top=wt.top_k(2, "x"), whose=wt.top_k(3, "x", "g")).materialized_as("t1")

    late = [feed(5, x=8, g="late", partition=1), feed(5, x=None, g="unranked")]
    engine = ran(define, late, [feed(1, x=8, g="early", partition=2), feed(2, x=9, partition=2), feed(3, x=1, g="small", partition=2)])
    assert list(engine.tables["t1"].values()) == [{"k": "k", "top": [9, 8], "whose": [None, "late", "early"]}]


def test_a_late_record_still_updates_its_open_windows(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        hopping = wt.hopping(seconds=10, every=wt.seconds(5), grace=wt.seconds(1))
        s.group_by_key().windowed_by(hopping).count().materialized_as("t1")

    engine = ran(define, [feed(11, x=1), feed(7, x=1)])  # [0,10) closed at 11; [5,15) is open
    assert [(d.reason, d.window) for d in engine.dropped] == [("late", (at(0), at(10)))]
    assert {row["window_start"]: row["count"] for row in engine.tables["t1"].values()} == {at(5): 2, at(10): 1}


def test_an_unlimited_window_takes_all_from_its_start_on_and_counts_what_came_before(feed: Feed) -> None:
    define: Define = lambda a, s: s.group_by_key().windowed_by(wt.unlimited(start=at(5))).count("n").materialized_as("t1")  # noqa: E731
    engine = ran(define, [feed(4, x=1), feed(5, x=1), feed(10**9, x=1), feed(6, x=1)])
    assert list(engine.tables["t1"].values()) == [{"k": "k", "window_start": at(5), "window_end": FOREVER, "n": 3}]
    assert [(d.node, d.reason, d.offset) for d in engine.dropped] == [("t1", "before_start", 0)]


def test_lateness_is_judged_by_the_partition_where_the_record_was_read(feed: Feed) -> None:
    define: Define = lambda a, s: s.group_by("g").windowed_by(wt.tumbling(seconds=10)).count().materialized_as("t1")  # noqa: E731
    engine = ran(define, [feed(50, g="a"), feed(1, partition=1, g="a"), feed(2, g="a")])
    assert [(d.partition, d.offset) for d in engine.dropped] == [(0, 1)]


def test_stream_time_passes_over_filtered_records_and_between_batches(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        s.filter("x > 0").group_by_key().windowed_by(wt.tumbling(seconds=10)).count().materialized_as("t1")

    engine = ran(define, [feed(50, x=0)], [feed(1, x=1)])
    assert [d.reason for d in engine.dropped] == ["late"]


def test_an_advance_counts_from_its_offset_on(feed: Feed) -> None:
    define: Define = lambda a, s: s.group_by_key().windowed_by(wt.tumbling(seconds=10)).count().materialized_as("t1")  # noqa: E731
    engine = ran(define, [Advance("t", 0, 1, at(100)), feed(1, x=1), feed(2, x=1)])
    assert [d.offset for d in engine.dropped] == [1]
    assert engine.stream_times["t", 0] == at(100)


# -- changes ----------------------------------------------------------------------------------------------------------------------------


def test_a_change_comes_for_each_record_even_if_nothing_changed(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        changes = s.group_by_key().agg(m=wt.max("x")).materialized_as("t1").to_stream()
        changes.map_values(old="old.m", new="m").to("out")

    engine = ran(define, [feed(0, x=5), feed(1, x=3), feed(2, x=9)])
    assert values(engine) == [{"old": None, "new": 5}, {"old": 5, "new": 5}, {"old": 5, "new": 9}]


def test_a_row_that_a_filter_hides_is_published_as_a_tombstone_once(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        s.group_by_key().agg(s=wt.sum("x")).filter("s > 3").materialized_as("t1").to_stream().to("out")

    engine = ran(define, [feed(i, x=x) for i, x in enumerate([1, 4, -3, -1, 9])])
    assert values(engine) == [{"s": 5}, None, {"s": 10}]


def test_each_window_that_a_record_updates_has_its_own_change_with_its_window(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        hopping = wt.hopping(seconds=10, every=wt.seconds(5))
        s.group_by_key().windowed_by(hopping).count("n").materialized_as("t1").to_stream().map_values(at="window.start", n="n").to("out")

    engine = ran(define, [feed(7, x=1)])
    assert values(engine) == [{"at": "1970-01-01T00:00:00.000000Z", "n": 1}, {"at": "1970-01-01T00:00:05.000000Z", "n": 1}]
    assert [o.place.ord for o in engine.outputs] == [0, 1]


def test_changes_follow_log_order_within_a_batch_and_arrival_between_batches(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        s.group_by("g").agg(s=wt.sum("x")).materialized_as("t1").to_stream().map_values(s="s").to("out")

    early, late = feed(1, partition=1, g="a", x=1), feed(5, g="a", x=5)
    together, apart = ran(define, [late, early]), ran(define, [late], [early])
    assert [v["s"] for v in values(together)] == [1, 6]
    assert [v["s"] for v in values(apart)] == [5, 6]
    assert together.tables == apart.tables


def test_a_table_can_be_made_of_another_tables_changes(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        stock = s.group_by_key().agg(s=wt.sum("x")).materialized_as("stock")
        stock.to_stream().filter("old.s >= 5 AND new.s < 5").group_by("k").count("dips").materialized_as("dips")

    engine = ran(define, [feed(i, x=x) for i, x in enumerate([9, -5, 2, -3, 8, -8])])
    assert engine.tables["dips"]["k",]["dips"] == 3


# -- tables of tables -------------------------------------------------------------------------------------------------------------------


def people(define: Callable[[wt.Table], wt.Table], *batches: list[Record]) -> Interpreter:
    """Group a table of who lives where, and watch the Changes of what comes of it."""
    app = wt.App("a")
    rows = app.topic("t", key="k STRING", value="g STRING, x INT").table().materialized_as("rows")
    define(rows).materialized_as("grouped")
    engine = Interpreter(app.topology(), watch=frozenset({"grouped"}))
    for batch in batches:
        engine.read(batch)
    return engine


def shown(engine: Interpreter) -> list[tuple[object, ...]]:
    """Give group, old and new value of each Change; of a row that isn't there, "-"."""
    changes = engine.changes["grouped"]
    return [(*(c.key or {}).values(), *("-" if row is None else next(iter(row.values())) for row in (c.old, c.value))) for c in changes]


def by_place(rows: wt.Table) -> wt.Table:
    return rows.group_by("g").count("n")


@pytest.mark.parametrize("apart", [True, False])
def test_a_changed_row_leaves_its_old_group_and_then_enters_its_new_one(feed: Feed, apart: bool) -> None:
    records = [feed(0, "ann", g="north"), feed(1, "bob", g="north"), feed(2, "ann", g="south")]
    engine = people(by_place, *([[r] for r in records] if apart else [records]))
    assert list(engine.tables["grouped"].values()) == [{"g": "north", "n": 1}, {"g": "south", "n": 1}]
    assert shown(engine) == [("north", "-", 1), ("north", 1, 2), ("north", 2, 1), ("south", "-", 1)]


def test_a_row_that_changes_within_its_group_is_one_change(feed: Feed) -> None:
    engine = people(lambda rows: rows.group_by("g").agg(s=wt.sum("x")), [feed(0, "ann", g="north", x=5), feed(1, "ann", g="north", x=7)])
    assert shown(engine) == [("north", "-", 5), ("north", 5, 7)]


def test_an_emptied_group_leaves_the_table_and_comes_back_as_new(feed: Feed) -> None:
    engine = people(by_place, [feed(0, "ann", g="north"), feed(1, "ann", value=None)], [feed(2, "bob", g="north")])
    assert shown(engine) == [("north", "-", 1), ("north", 1, "-"), ("north", "-", 1)]
    assert list(engine.tables["grouped"].values()) == [{"g": "north", "n": 1}]


def test_extremes_come_back_when_what_topped_them_leaves(feed: Feed) -> None:
    records = [feed(0, "a", g="n", x=3), feed(1, "b", g="n", x=9), feed(2, "c", g="n", x=9), feed(3, "b", g="n", x=1)]
    engine = people(lambda rows: rows.group_by("g").agg(most=wt.max("x")), records, [feed(4, "c", value=None)])
    assert [new for _, _, new in shown(engine)] == [3, 9, 9, 9, 3]


def test_a_sum_is_null_again_when_only_nulls_are_left(feed: Feed) -> None:
    engine = people(lambda rows: rows.group_by("g").agg(s=wt.sum("x")), [feed(0, "a", g="n", x=None), feed(1, "b", g="n", x=4)],
                    [feed(2, "b", g="n", x=None)])  # fmt: skip
    assert shown(engine) == [("n", "-", None), ("n", None, 4), ("n", 4, None)]


def test_a_row_without_a_group_is_left_out_and_counted_and_its_old_group_lets_it_go(feed: Feed) -> None:
    engine = people(by_place, [feed(0, "ann", g="north"), feed(1, "ann", g=None), feed(2, "bob", g=None), feed(3, "bob", value=None)])
    assert engine.tables["grouped"] == {}
    assert [(d.node, d.reason, d.offset) for d in engine.dropped] == [("grouped", "null_key", 1), ("grouped", "null_key", 2)]


def test_a_row_that_fails_is_refused_once_and_was_never_in_a_group(feed: Feed) -> None:
    records = [feed(0, "ann", g="7", x=0), feed(1, "bob", g="7", x=1), feed(2, "ann", g="7", x=2), feed(3, "ann", g="7", x=0)]
    engine = people(lambda rows: rows.group_by("g").agg(s=wt.sum("10 div x")), records, [feed(4, "ann", value=None)])
    assert [q.record.offset for q in engine.quarantine] == [0, 3]
    assert engine.quarantine[0].node == "grouped"
    assert list(engine.tables["grouped"].values()) == [{"g": "7", "s": 10}]


def test_the_rows_of_a_windowed_table_are_grouped_like_any_others(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        hourly = s.group_by("g").windowed_by(wt.tumbling(hours=1)).count("n").materialized_as("hourly")
        hourly.group_by("window_start").agg(busiest=wt.top_k(1, "n", "g"), n=wt.sum("n")).materialized_as("busy")

    engine = ran(define, [feed(0, g="a"), feed(1, g="b"), feed(2, g="b")], [feed(3600, g="a")])
    assert list(engine.tables["busy"].values()) == [
        {"window_start": at(0), "busiest": ["b"], "n": 3},
        {"window_start": at(3600), "busiest": ["a"], "n": 1},
    ]


def test_tables_of_one_aggregation_share_its_drops(feed: Feed) -> None:
    def define(app: wt.App, s: Stream) -> None:
        counts = s.group_by("g").count("n")
        counts.materialized_as("all_counts")
        counts.filter("n > 1").materialized_as("many")

    engine = ran(define, [feed(0, g=None), feed(1, g="a"), feed(2, g="b"), feed(3, g="b")])
    assert [(d.node, d.reason) for d in engine.dropped] == [("all_counts", "null_key")]
    assert [row["g"] for row in engine.tables["many"].values()] == ["b"]


def test_a_stage_that_fails_on_a_row_gives_null_and_refuses_no_record(feed: Feed) -> None:
    define: Define = lambda a, s: s.group_by_key().agg(s=wt.sum("x")).map_values(r="10 div s").materialized_as("t1")  # noqa: E731
    engine = ran(define, [feed(0, x=0)])
    assert engine.tables["t1"]["k",]["r"] is None
    assert engine.quarantine == []


def test_headers_and_gaps_in_offsets_change_nothing() -> None:
    record = Record("t", 0, 1000, datetime(2024, 1, 1, tzinfo=UTC), b"k", b'{"x":1}', (("trace", b"1"),))
    engine = ran(lambda a, s: s.group_by_key().count().materialized_as("t1"), [record])
    assert engine.tables["t1"]["k",]["count"] == 1
