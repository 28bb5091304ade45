"""Tables by the time that has gone by, on the oracle: rows shown at most once in a while, and rows that don't stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import watertable as wt
from tests.properties.strategies import START
from watertable.dsl.tables import Table
from watertable.errors import DefinitionError, StoreError
from watertable.interpreter import Interpreter
from watertable.plan import plan
from watertable.plan.lineage import Origin, column_lineage, describe, mermaid
from watertable.plan.purity import Purity, purity_of
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.testing import TopologyTestDriver
from watertable.tools import keytext
from watertable.tools.explain import explain

SECOND = timedelta(seconds=1)
MICRO = timedelta(microseconds=1)


def app_of(then: Callable[[Table], Table]) -> wt.App:
    """Keep levels by sensor, and derive a table by the time that goes by."""
    app = wt.App("plant")
    levels = app.topic("levels", key="k STRING", value="n INT").table().materialized_as("levels")
    then(levels).materialized_as("shown").to_stream().to("out")
    return app


def slow(limit: float = 10) -> wt.App:
    return app_of(lambda levels: levels.suppress(wt.until_time_limit(wt.seconds(limit))))


def short(ttl: float = 10) -> wt.App:
    return app_of(lambda levels: levels.ttl(wt.seconds(ttl)))


def pipe(driver: TopologyTestDriver, second: float, key: str = "k", n: int | None = 1, partition: int = 0) -> None:
    driver.pipe_input("levels", key, None if n is None else {"n": n}, timestamp=EPOCH + second * SECOND, partition=partition)


def shown(driver: TopologyTestDriver) -> dict[str, int]:
    return {key: row["n"] for key, row in driver.table("shown").items()}


def sent(driver: TopologyTestDriver) -> list[tuple[object, object, timedelta]]:
    return [(out.key, out.value and out.value["n"], out.timestamp - EPOCH) for out in driver.read_output("out")]


# -- suppress until a time limit -----------------------------------------------------------------------------------------------------


def test_a_row_shows_once_in_each_stretch_in_which_it_changed_as_it_is_at_its_end() -> None:
    driver = TopologyTestDriver(slow())
    for second, n in ((1, 1), (3, 2), (9.5, 3)):
        pipe(driver, second, n=n)
    assert shown(driver) == {}
    pipe(driver, 10, n=4)
    assert shown(driver) == {"k": 3}
    pipe(driver, 45, key="l")
    assert shown(driver) == {"k": 4}
    assert sent(driver) == [("k", 3, 10 * SECOND - MICRO), ("k", 4, 20 * SECOND - MICRO)]


def test_a_deletion_waits_for_its_stretch_as_any_change_does_and_a_row_that_came_and_went_in_one_never_shows() -> None:
    driver = TopologyTestDriver(slow())
    for second, key, n in ((1, "k", 1), (2, "l", 1), (3, "l", None), (12, "k", None)):
        pipe(driver, second, key, n)
    assert shown(driver) == {"k": 1}
    pipe(driver, 20, "m")
    assert shown(driver) == {}
    assert [(key, n) for key, n, _ in sent(driver)] == [("k", 1), ("k", None)]


def test_a_stretch_ends_when_every_partition_has_passed_it() -> None:
    driver = TopologyTestDriver(slow())
    pipe(driver, 1, partition=1)
    pipe(driver, 60, key="l")
    assert shown(driver) == {}
    driver.advance("levels", EPOCH + 10 * SECOND, partition=1)
    assert shown(driver) == {"k": 1}


def test_a_row_shows_whatever_its_columns_are_called() -> None:
    app = wt.App("plant")
    levels = app.topic("levels", key="k STRING", value="`new` INT, n INT").table().materialized_as("levels")
    levels.suppress(wt.until_time_limit(wt.seconds(10))).materialized_as("shown")
    driver = TopologyTestDriver(app)
    for second in (1, 11):
        driver.pipe_input("levels", "k", {"new": None, "n": 1}, timestamp=EPOCH + second * SECOND)
    assert driver.table("shown") == {"k": {"k": "k", "new": None, "n": 1}}


def test_a_limit_of_no_time_is_no_limit() -> None:
    app = wt.App("plant")
    levels = app.topic("levels", key="k STRING", value="n INT").table()
    assert levels.suppress(wt.until_time_limit(wt.seconds(0))) is levels


def test_rows_of_groups_and_of_windows_show_once_in_a_while_too() -> None:
    app = wt.App("plant")
    stream = app.topic("levels", key="k STRING", value="n INT").stream()
    counts = stream.group_by_key().windowed_by(wt.tumbling(seconds=30)).count("n").materialized_as("counts")
    counts.suppress(wt.until_time_limit(wt.seconds(10))).materialized_as("shown")
    driver = TopologyTestDriver(app)
    for second in (1, 2, 11, 20):
        pipe(driver, second)
    assert [(row["window_end"], row["n"]) for row in driver.table("shown").values()] == [(EPOCH + 30 * SECOND, 3)]


# -- time to live --------------------------------------------------------------------------------------------------------------------


def test_a_row_that_has_not_changed_for_its_time_to_live_is_deleted_at_the_moment_when_that_is_over() -> None:
    driver = TopologyTestDriver(short())
    pipe(driver, 1)
    pipe(driver, 9, n=2)  # lives on
    pipe(driver, 18.999, "l")
    assert shown(driver) == {"k": 2, "l": 1}
    pipe(driver, 19, "l", 2)
    assert shown(driver) == {"l": 2}
    assert sent(driver)[-2:] == [("k", None, 19 * SECOND), ("l", 2, 19 * SECOND)]


def test_a_key_that_comes_back_has_a_row_again_and_was_gone_between() -> None:
    driver = TopologyTestDriver(short())
    with driver.batch():
        for second in (1, 11, 12):
            pipe(driver, second, n=second)
    assert sent(driver) == [("k", 1, SECOND), ("k", None, 11 * SECOND), ("k", 11, 11 * SECOND), ("k", 12, 12 * SECOND)]


def test_a_row_that_was_deleted_is_not_deleted_again() -> None:
    driver = TopologyTestDriver(short())
    for second, key, n in ((1, "k", 1), (2, "k", None), (50, "l", 1)):
        pipe(driver, second, key, n)
    assert [(key, n) for key, n, _ in sent(driver)] == [("k", 1), ("k", None), ("l", 1)]


def test_rows_live_until_every_partition_has_passed_their_time() -> None:
    driver = TopologyTestDriver(short())
    pipe(driver, 1, partition=1)
    pipe(driver, 60, key="l")
    assert shown(driver) == {"k": 1, "l": 1}
    driver.advance("levels", EPOCH + 11 * SECOND, partition=1)
    assert shown(driver) == {"l": 1}


def test_what_groups_rows_that_do_not_stay_lets_them_go() -> None:
    app = wt.App("plant")
    levels = app.topic("levels", key="k STRING", value="n INT").table().materialized_as("levels")
    online = levels.ttl(wt.seconds(10)).materialized_as("online")
    online.group_by(n="n").count("sensors").materialized_as("shown")
    driver = TopologyTestDriver(app)
    for second, key in ((1, "a"), (5, "b"), (12, "c")):
        pipe(driver, second, key, 7)
    assert [row["sensors"] for row in driver.table("shown").values()] == [2]


# -- what both are -------------------------------------------------------------------------------------------------------------------


def test_a_mistake_at_definition_says_where_and_what() -> None:
    app = wt.App("plant")
    levels = app.topic("levels", key="k STRING", value="n INT").table()
    named = levels.materialized_as("levels")
    for wrong, words in (
        (lambda: levels.suppress(wt.until_time_limit(wt.seconds(1))), "suppress wants a table with a name"),
        (lambda: levels.ttl(wt.seconds(1)), "ttl wants a table with a name"),
        (lambda: named.suppress(wt.until_time_limit(wt.seconds(-1))), "a time limit must not be negative"),
        (lambda: named.ttl(wt.seconds(0)), "a time to live must be longer than zero"),
    ):
        with pytest.raises(DefinitionError, match=f"test_elapsed.py.*{words}"):
            wrong()


def test_both_say_what_they_are_and_where_their_columns_come_from() -> None:
    for app, words in ((slow(), "stretches of 10s of stream time"), (short(), "lifetimes of 10s of stream time")):
        topology = app.topology()
        table = topology.table("shown")
        assert words in describe(topology)
        assert "suppress" in mermaid(topology)
        assert column_lineage(table)["n"] == (Origin("levels", "value", "n"),)
        assert purity_of(table.node) is Purity.PURE
        with pytest.raises(StoreError, match=r"'shown'.*no record makes its rows"):
            explain(topology, table, keytext.read(table, ["k"]), [])
    assert purity_of(slow().topology().sinks[0].node) is Purity.PURE
    assert purity_of(short().topology().sinks[0].node) is Purity.ARRIVAL  # a partition that is ahead tells of a row before its end
    assert plan.delay_of(short().topology().table("shown").node) == timedelta(0)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Write records of three keys, each in its own one of two partitions, in any order of times."""
    following: Counter[int] = Counter()
    records = []
    for number in range(draw(st.integers(1, 24))):
        key = draw(st.sampled_from([b"k", b"l", b"m"]))
        partition = key[0] % 2
        when = START + timedelta(seconds=2 * number + draw(st.integers(-12, 12)))
        value = draw(st.sampled_from([None, b'{"n": %d}' % number, b'{"n": %d}' % number]))
        records.append(Record("levels", partition, following[partition], when, key, value))
        following[partition] += 1
    return records


def read(app: wt.App, records: list[Record], cuts: list[int]) -> Interpreter:
    engine = Interpreter(app.topology(), partitions={(r.topic, r.partition) for r in records})
    for a, b in pairwise(cuts):
        engine.read(records[a:b])
    return engine


@settings(max_examples=200)
@given(logs(), st.integers(1, 20), st.data())
def test_a_table_by_the_time_that_goes_by_follows_from_its_records_whatever_the_cuts(
    records: list[Record], seconds: int, data: st.DataObject
) -> None:
    time, cuts = timedelta(seconds=seconds), sorted(data.draw(st.sets(st.integers(0, len(records)))) | {0, len(records)})
    engines = {name: read(app, records, cuts) for name, app in (("slow", slow(seconds)), ("short", short(seconds)))}
    reached = min(engines["slow"].stream_times.values())
    rows: dict[bytes, tuple[object, object]] = {}
    ended: dict[bytes, object] = {}
    running: dict[int, object] = {}
    for record in records:  # of a key's records, the last; and the last before the stretch that isn't over
        st_ = running[record.partition] = max(running.get(record.partition, EPOCH), record.timestamp)  # type: ignore[type-var]
        rows[record.key or b""] = st_, record.value
        if st_ < reached - (reached - EPOCH) % time:  # type: ignore[operator]
            ended[record.key or b""] = record.value
    living = {key.decode() for key, (last, value) in rows.items() if value and last + time > reached}  # type: ignore[operator]
    assert {key[0] for key in engines["short"].tables["shown"]} == living
    assert {key[0]: row["n"] for key, row in engines["slow"].tables["shown"].items()} == {
        key.decode(): int(value[6:-1])
        for key, value in ended.items()
        if value  # type: ignore[index]
    }
    again = read(slow(seconds), records, [0, len(records)])
    assert Counter((o.key, o.value) for o in again.outputs) == Counter((o.key, o.value) for o in engines["slow"].outputs)
