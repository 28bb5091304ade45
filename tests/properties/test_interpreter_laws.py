"""The oracle keeps the law itself: batches and arrival don't change a row, and merges don't care for order."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.properties.engines import Result, partitions_of, run_interpreter
from tests.properties.strategies import START, Case, cases, drawn
from watertable.interpreter import Interpreter
from watertable.interpreter.merges import MERGE
from watertable.plan import nodes, plan
from watertable.plan.aggregates import Merge, StateField, TopField, placed
from watertable.plan.nodes import Process
from watertable.plan.purity import Purity, purity_of
from watertable.records import Key, Place, Record
from watertable.schema import Type


def pure(case: Case) -> bool:
    """Tell whether all of a result must be the same: no Change depends on arrival, so neither does what is refused or left out of it."""
    roots = [*(t.node for t in case.topology.tables), *(s.node for s in case.topology.sinks)]
    nodes = [node for root in roots for node in plan.walk(root)]
    ordered = case.topology.streamed or any(isinstance(node, Process) for node in nodes)
    return all(purity_of(node) is Purity.PURE for node in nodes) and (case.keyed or not ordered)


def settled(case: Case) -> set[str]:
    """Name the tables whose rows must be the same, whatever the order of the Changes that they are made of."""
    found = set()
    for table in case.topology.tables:
        above = list(plan.walk(table.node))
        grouped = [node.parent for node in above if isinstance(node, nodes.TableAggregate)]
        arriving = [node for node in above if isinstance(node, nodes.ToStream | nodes.StreamJoin | nodes.Process)]
        free = all(node in grouped for node in arriving)  # then a key may be in several partitions, too
        if free or (case.keyed and purity_of(table.node) is Purity.PURE):
            found.add(table.name)
    return found


def unordered(result: Result) -> tuple[object, ...]:
    """Leave out the order of outputs between partitions, which is that of arrival."""
    return result.tables, {topic: Counter(found) for topic, found in result.outputs.items()}, result.quarantine, result.late, result.dropped


@settings(max_examples=60)
@given(cases(), st.data())
def test_other_cuts_between_batches_change_no_row_no_drop_and_no_refusal(case: Case, data: st.DataObject) -> None:
    assume(pure(case))
    positions = st.integers(1, len(case.records) - 1)
    other = replace(case, cuts=tuple(sorted(data.draw(st.sets(positions, max_size=len(case.records))))))
    assert unordered(run_interpreter(case.topology, case.batches)) == unordered(run_interpreter(other.topology, other.batches))


@settings(max_examples=60)
@given(cases(), st.randoms(use_true_random=False))
def test_another_interleaving_of_the_partitions_changes_no_row(case: Case, rng: random.Random) -> None:
    assume(pure(case))
    queues: dict[tuple[str, int], list[Record]] = {}
    for record in case.records:
        queues.setdefault((record.topic, record.partition), []).append(record)
    records: list[Record] = []
    while queues:
        chosen = rng.choice(sorted(queues))
        records.append(queues[chosen].pop(0))
        if not queues[chosen]:
            del queues[chosen]
    again = replace(case, records=tuple(records))
    assert unordered(run_interpreter(case.topology, case.batches)) == unordered(run_interpreter(again.topology, again.batches))


@settings(max_examples=100)
@given(cases(), st.data())
def test_rows_that_do_not_depend_on_arrival_are_the_same_beside_some_that_do(case: Case, data: st.DataObject) -> None:
    names = settled(case)
    assume(names and not pure(case))
    positions = st.integers(1, len(case.records) - 1)
    other = replace(case, cuts=tuple(sorted(data.draw(st.sets(positions, max_size=len(case.records))))))
    one, two = (run_interpreter(case.topology, c.batches).tables for c in (case, other))
    assert {name: one[name] for name in names} == {name: two[name] for name in names}


@settings(max_examples=60)
@given(cases())
def test_what_depends_on_arrival_replays_from_the_recorded_cuts(case: Case) -> None:
    assert run_interpreter(case.topology, case.batches) == run_interpreter(case.topology, case.batches)


@settings(max_examples=60)
@given(cases())
def test_every_record_comes_to_one_end_at_most_at_each_table(case: Case) -> None:
    """Of a table that reads a topic directly, each record that could be read was counted, dropped or refused: none is lost, none twice."""
    engine = Interpreter(case.topology)
    for batch in case.batches:
        engine.read(batch)
    unread = {(q.record.topic, q.record.partition, q.record.offset) for q in engine.quarantine if q.node == "topic"}
    for table in case.topology.tables:
        root = table.root
        if not isinstance(root, nodes.Aggregate) or root.windows or not isinstance(root.parent, nodes.Source):
            continue
        topic = root.parent.topic.name
        arrived = [r for r in case.records if r.topic == topic and (r.topic, r.partition, r.offset) not in unread]
        counters = [f.name for f in table.state if f.merge is Merge.SUM and f.lift is not None and f.lift.sql == "CAST(1 AS BIGINT)"]
        label = next(t.name for t in case.topology.tables if root in plan.leaves_of(t.root))
        for name in counters:
            counted = sum(state[name] for state in engine.states[table.name].values())  # type: ignore[misc]
            left_out = sum(d.node == label for d in engine.dropped) + sum(q.node == label for q in engine.quarantine)
            assert counted + left_out == len(arrived)


@settings(max_examples=60)
@given(cases(), st.data())
def test_the_rows_that_are_asked_for_come_out_the_same_without_the_others(case: Case, data: st.DataObject) -> None:
    assume(case.topology.tables)
    table = data.draw(st.sampled_from(case.topology.tables))
    part = case.topology.above({table.name})
    topics = {topic.name for topic in part.topics}

    def read(asked: dict[str, Key]) -> Interpreter:
        engine = Interpreter(part, frozenset({table.name}), partitions_of(case.batches), asked)
        for batch in case.batches:
            engine.read([item for item in batch if item.topic in topics])
        return engine

    whole = read({})
    assume(whole.changes[table.name])
    change = data.draw(st.sampled_from(whole.changes[table.name]))
    begin = tuple((change.key or {}).values())[: data.draw(st.integers(1, len(table.key) - 2 * (table.windows is not None)))]
    names = table.key.names[: len(begin)]

    def told(engine: Interpreter) -> list[object]:
        rows = {key: row for key, row in engine.tables[table.name].items() if key[: len(begin)] == begin}
        late = [d for d in engine.dropped if d.node == table.name and d.group and tuple(d.group.values())[: len(begin)] == begin]
        return [[c for c in engine.changes[table.name] if c.key and tuple(c.key[n] for n in names) == begin], rows, late]

    assert told(read({table.name: begin})) == told(whole)


def test_a_lost_record_shows_in_the_comparison_of_results() -> None:
    """What every other test here rests on: two results that should differ do."""
    shown = 0
    for case in drawn(40, start=1):
        whole = run_interpreter(case.topology, [list(case.records)])
        shown += all(
            whole.differences(run_interpreter(case.topology, [[r for r in case.records if r != lost]])) for lost in case.records[-1:]
        )
        assert not whole.differences(run_interpreter(case.topology, [list(case.records)]))
    assert shown >= 30


# -- merges ---------------------------------------------------------------------------------------------------------------------------

PLACES = st.builds(Place, st.integers(0, 3).map(lambda s: START + timedelta(seconds=s)), st.sampled_from("ab"), st.integers(0, 1),
                   st.integers(0, 3), st.integers(0, 1))  # fmt: skip
KEPT = st.dictionaries(PLACES, st.integers(), min_size=1, max_size=6).map(lambda kept: [{"order": o, "value": v} for o, v in kept.items()])
LISTS = KEPT.map(lambda kept: [None, *([one] for one in kept)])
TOPS = KEPT.map(lambda kept: [None, *([{"by": one["value"] % 3, **one}] for one in kept)])
TOP_TYPE = Type.parse("ARRAY<STRUCT<by: BIGINT, order: STRUCT<st: TIMESTAMP>, value: BIGINT>>")
BAGS = st.lists(st.one_of(st.none(), st.tuples(st.text(max_size=1), st.sampled_from([-2, -1, 1, 2]))), min_size=1, max_size=8).map(
    lambda held: [None if one is None else [{"value": one[0], "n": one[1]}] for one in held]
)
NUMBERS = st.lists(st.one_of(st.none(), st.decimals(-(10**20), 10**20, places=3)), min_size=1, max_size=6)
FLOATS = st.lists(st.one_of(st.none(), st.floats()), min_size=1, max_size=6)
SETS = st.lists(st.one_of(st.none(), st.text(max_size=2).map(lambda t: [t])), min_size=1, max_size=6)


@given(
    st.one_of(
        st.tuples(st.just((Merge.SUM, Type.parse("DECIMAL(38,3)"))), NUMBERS),
        st.tuples(st.sampled_from([(m, Type.parse("DECIMAL(38,3)")) for m in (Merge.MIN, Merge.MAX)]), NUMBERS),
        st.tuples(st.sampled_from([(m, Type("double")) for m in (Merge.MIN, Merge.MAX)]), FLOATS),
        st.tuples(st.sampled_from([(m, placed(Type("bigint"))) for m in (Merge.FIRST, Merge.LAST)]), KEPT),
        st.tuples(st.just((Merge.UNION, Type.parse("ARRAY<STRING>"))), SETS),
        st.tuples(st.just((Merge.LIST, Type("array", element=placed(Type("bigint"))))), LISTS),
        st.tuples(st.just((Merge.TOP, TOP_TYPE)), TOPS),
        st.tuples(st.just((Merge.BAG, Type.parse("ARRAY<STRUCT<value: STRING, n: BIGINT>>"))), BAGS),
    ),
    st.randoms(use_true_random=False),
)
def test_a_merge_gives_the_same_in_any_order_and_any_grouping(given_: tuple[tuple[Merge, Type], list[Any]], rng: random.Random) -> None:
    (merge, kind), values = given_
    field = TopField("f", kind, merge, None, 2) if merge is Merge.TOP else StateField("f", kind, merge, None)

    def fold(parts: list[Any]) -> Any:
        while len(parts) > 1:  # merge two neighbours anywhere: a random tree
            at = rng.randrange(len(parts) - 1)
            parts[at : at + 2] = [MERGE[merge](field, parts[at], parts[at + 1])]
        return parts[0]

    shuffled = rng.sample(values, len(values))
    assert repr(fold(list(values))) == repr(fold(shuffled)) or fold(list(values)) == fold(shuffled)


def test_a_sum_of_decimals_keeps_all_38_digits() -> None:
    field = StateField("f", Type.parse("DECIMAL(38,3)"), Merge.SUM, None)
    big = Decimal("12345678901234567890123456789012345.678")
    assert MERGE[Merge.SUM](field, big, Decimal("0.001")) == Decimal("12345678901234567890123456789012345.679")
