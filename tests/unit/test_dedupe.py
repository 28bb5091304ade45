"""Laws of dedupe and of the sketch that counts: the first in log order passes, and union loses nothing."""

from __future__ import annotations

import random

import pytest

import watertable as wt
from watertable.dsl.streams import Stream
from watertable.errors import DefinitionError, DuplicateName, ExpressionError
from watertable.interpreter import Interpreter
from watertable.plan.purity import Purity, purity_of
from watertable.plan.windows import EPOCH
from watertable.records import Record
from watertable.testing import TopologyTestDriver


def orders() -> tuple[wt.App, Stream]:
    app = wt.App("shop")
    return app, app.topic("orders", key="who STRING", value="id INT, name STRING").stream()


def test_the_first_record_of_each_key_and_period_passes_as_it_was() -> None:
    app, stream = orders()
    stream.dedupe(name="seen", within=wt.seconds(10), grace=wt.seconds(5)).to("once")
    driver = TopologyTestDriver(app)
    for who, id_, second in [("a", 1, 1), ("a", 2, 9), ("b", 3, 9), ("a", 4, 10), ("a", 5, 8), ("a", 6, 31), ("c", 7, 14)]:
        driver.pipe_input("orders", who, {"id": id_, "name": "n"}, timestamp=second * 1000)
    sent = driver.read_output("once")
    assert [(s.key, s.value) for s in sent] == [(w, {"id": n, "name": "n"}) for w, n in [("a", 1), ("b", 3), ("a", 4), ("a", 6)]]
    assert [d.reason for d in driver.dropped()] == ["late"]


def test_records_without_value_or_key_do_not_pass() -> None:
    app, stream = orders()
    stream.dedupe(name="seen", within=wt.seconds(10), by=("id", "upper(name)")).to("once")
    driver = TopologyTestDriver(app)
    for value in [None, {"id": None, "name": "x"}, {"id": 1, "name": "x"}, {"id": 1, "name": "X"}, {"id": 2, "name": "x"}]:
        driver.pipe_input("orders", None, value, timestamp=1)
    assert [s.value["id"] for s in driver.read_output("once") if s.value] == [1, 2]
    assert [d.reason for d in driver.dropped()] == ["null_key"], "without a value a record is left out, whatever it is deduplicated by"


def test_of_a_record_without_a_value_nothing_is_kept() -> None:
    app, stream = orders()
    stream.dedupe(name="seen", within=wt.seconds(10)).to("once")
    driver = TopologyTestDriver(app)
    for who, value in [("a", None), ("b", {"id": 1, "name": "x"}), ("b", None)]:
        driver.pipe_input("orders", who, value, timestamp=1)
    assert [row["first"]["value"]["id"] for row in driver.table("seen").values()] == [1]
    assert [(s.key, s.value) for s in driver.read_output("once")] == [("b", {"id": 1, "name": "x"})]


def test_a_record_without_a_key_passes_without_one() -> None:
    app = wt.App("shop")
    app.topic("t", key="k INT", value="n INT").stream().dedupe(name="seen", within=wt.minutes(1), by="n").to("once")
    driver = TopologyTestDriver(app)
    for key, n in [(None, 1), (5, 2), (5, 1), (b'{"k": null}', 3)]:
        driver.pipe_input("t", key, {"n": n}, timestamp=1)
    assert [output.key for output in driver._engine.outputs] == [None, b'{"k":5}', b'{"k":null}']


def test_a_record_passes_whatever_its_columns_are_called() -> None:
    app = wt.App("shop")
    app.topic("t", key="k STRING", value="value INT, n INT").stream().dedupe(name="seen", within=wt.minutes(1), by="n").to("once")
    driver = TopologyTestDriver(app)
    for value in [{"value": None, "n": 1}, {"value": 1, "n": 1}, {"value": 1, "n": 2}]:
        driver.pipe_input("t", "a", value, timestamp=1)
    assert [s.value for s in driver.read_output("once")] == [{"value": None, "n": 1}, {"value": 1, "n": 2}]


def test_it_is_pure_by_the_topics_own_key_and_by_arrival_otherwise() -> None:
    _, stream = orders()
    assert purity_of(stream.dedupe(name="one", within=wt.seconds(1)).node) is Purity.PURE
    assert purity_of(stream.dedupe(name="two", within=wt.seconds(1), by="id").node) is Purity.ARRIVAL
    with pytest.raises(DuplicateName):
        stream.dedupe(name="one", within=wt.seconds(2))
    with pytest.raises(DefinitionError, match="one row a key already"):
        stream.to_table().materialized_as("t").to_stream().dedupe(name="three", within=wt.seconds(1))


def counted(texts: list[str], cut: int, relative_sd: float) -> object:
    app, stream = orders()
    stream.group_by(g="'all'").agg(n=wt.approx_count_distinct("name", relative_sd=relative_sd)).materialized_as("t")
    engine = Interpreter(app.topology())
    made = [Record("orders", 0, n, EPOCH, b"k", f'{{"name": "{text}"}}'.encode()) for n, text in enumerate(texts)]
    engine.read(made[:cut])
    engine.read(made[cut:])
    return engine.tables["t"]["all",]["n"]


def test_an_estimate_is_exact_for_few_values_and_near_for_many_whatever_their_order() -> None:
    rng = random.Random(7)
    few = [f"v{n % 90}" for n in range(200)]
    assert counted(few, 50, 0.1) == 90
    many = [f"v{n}" for n in range(3000)] * 2
    estimate = counted(many, 4000, 0.1)
    assert isinstance(estimate, int)
    assert abs(estimate - 3000) < 900  # three deviations
    rng.shuffle(many)
    assert counted(many, 11, 0.1) == estimate


def test_what_a_sketch_can_not_do_is_refused() -> None:
    _, stream = orders()
    with pytest.raises(DefinitionError, match=r"test_dedupe.py:\d+: relative_sd=0.9 must be"):
        wt.approx_count_distinct("id", relative_sd=0.9)
    with pytest.raises(ExpressionError, match="can't forget the rows that leave; use count_distinct"):
        stream.to_table().materialized_as("t").group_by("name").agg(n=wt.approx_count_distinct("id"))
    with pytest.raises(ExpressionError, match="has no approx_count_distinct"):
        stream.group_by_key().agg(n=wt.approx_count_distinct("array(id)"))
