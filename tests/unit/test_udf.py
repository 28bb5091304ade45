"""Laws of the user's own Python in expressions: what is checked, what identifies it, what it does to one record."""

from __future__ import annotations

import importlib
import math
import sys
from collections import defaultdict
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import watertable as wt
from watertable.dsl.streams import Stream
from watertable.errors import DefinitionError, ExpressionError, SchemaError
from watertable.schema import Type
from watertable.sql.udfs import Udf, arrow_type, called_in, caught_columns
from watertable.testing import TopologyTestDriver

VALUE = "qty INT, price DECIMAL(9,2), name STRING, at TIMESTAMP, tags ARRAY<STRING>, seen MAP<STRING, INT>, box STRUCT<w: INT, h: INT>"
FACTOR = 3


def scaled(column: Any) -> Any:
    return column * FACTOR


@wt.udf(returns="BIGINT")
def tripled(column: Any) -> Any:
    """Triple a number."""
    return scaled(column)


@wt.udf(returns="INT", version="1")
def number(text: Any) -> Any:
    return text.map(int)


@wt.udf(returns="STRING", over="arrow", nulls=True)
def named(text: Any) -> Any:
    return pc.fill_null(text, "nobody")


def sales() -> tuple[wt.App, Stream]:
    app = wt.App("shop")
    return app, app.topic("sales", key="id STRING", value=VALUE).stream()


def test_a_function_is_called_wherever_a_stream_has_an_expression() -> None:
    app, stream = sales()
    made = stream.with_columns(more=tripled("qty")).filter(f"{tripled}(qty) + 1 > 3").map_values(name=named("name"), more="more")
    made.group_by(who=f"upper({named('name')})").agg(most=wt.max(tripled("more")), n=wt.sum("more")).materialized_as("t")
    driver = TopologyTestDriver(app)
    for n, (qty, name) in enumerate([(1, "ann"), (0, "ann"), (5, None), (2, "ann"), (None, "ann")]):
        driver.pipe_input("sales", "k", {"qty": qty, "name": name}, timestamp=n)
    assert driver.table("t") == {"ANN": {"who": "ANN", "most": 18, "n": 9}, "NOBODY": {"who": "NOBODY", "most": 45, "n": 15}}


def test_a_record_on_which_it_raises_is_quarantined_and_no_other() -> None:
    app, stream = sales()
    stream.map_values(n=number("name")).to("out")
    driver = TopologyTestDriver(app)
    for n, name in enumerate(["1", "many", None, "2"]):
        driver.pipe_input("sales", "k", {"name": name}, timestamp=n)
    assert [sent.value for sent in driver.read_output("out")] == [{"n": 1}, {"n": None}, {"n": 2}]
    (refused,) = driver.quarantine()
    assert refused.record.offset == 1
    assert "number (" in refused.reason
    assert "invalid literal" in refused.reason
    assert Path(refused.location.partition(":")[0]).name == "test_udf.py"


def test_values_of_every_type_come_and_go() -> None:
    app, stream = sales()
    kinds = dict(part.split(" ", 1) for part in ("qty INT", "price DECIMAL(9,2)", "name STRING", "at TIMESTAMP", "tags ARRAY<STRING>"))
    kinds |= {"seen": "MAP<STRING, INT>", "box": "STRUCT<w: INT, h: INT>"}
    same = {name: wt.udf(returns=kind, over="arrow", version="1")(_same) for name, kind in kinds.items()}
    stream.map_values(**{name: udf(name) for name, udf in same.items()}).to_table().materialized_as("t")
    driver = TopologyTestDriver(app)
    at = datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    row = {"qty": 1, "price": Decimal("1.50"), "name": "ä", "at": at, "tags": ["a", None], "seen": {"x": 1}, "box": {"w": 1, "h": None}}
    driver.pipe_input("sales", "k", row, timestamp=1)
    driver.pipe_input("sales", "none", dict.fromkeys(row), timestamp=2)
    assert driver.table("t") == {"k": {"id": "k", **row}, "none": {"id": "none", **dict.fromkeys(row)}}


def _same(column: Any) -> Any:
    return column


@pytest.mark.parametrize("over", ["pandas", "arrow"])
def test_how_many_elements_a_call_has_changes_no_result(over: str) -> None:
    def halved(column: Any) -> Any:
        numbers = column.to_pylist() if over == "arrow" else column.map(int)
        made = [10 // int(n) for n in numbers]
        return pa.array(made) if over == "arrow" else numbers.map(lambda n: 10 // n)

    texts = pa.array(["1", None, "0", "5", "x", "3", None])
    whole = caught_columns(halved, "halved", over, False, pa.int32(), [texts]).to_pylist()
    alone = [caught_columns(halved, "halved", over, False, pa.int32(), [texts[n : n + 1]]).to_pylist()[0] for n in range(len(texts))]
    assert whole == alone
    assert [one["made"] for one in whole] == [10, None, None, 2, None, 3, None]
    raised = {n: one["raised"].partition(":")[0] for n, one in enumerate(whole) if one["raised"]}
    assert raised == {2: "halved raises ZeroDivisionError", 4: "halved raises ValueError"}


GIVEN = (
    1, -3, 0, 2**53 + 1, 2**60 + 1, 16777217, None, 2.0, 1.5, -0.0, 1e17, math.inf, math.nan, Decimal("1.50"), Decimal("2"), Decimal("0.3"),
    Decimal("1E+2"), Decimal("2.555"), True, "7", "x",
)  # fmt: skip


@pytest.mark.parametrize("returns", ["TINYINT", "INT", "BIGINT", "DECIMAL(9,2)", "DECIMAL(20,0)", "FLOAT", "DOUBLE", "STRING", "BOOLEAN"])
def test_what_a_function_gives_for_an_element_is_the_same_whatever_it_gives_beside_it(returns: str) -> None:
    kind, places = arrow_type(Type.parse(returns)), pa.array(range(len(GIVEN)))

    def found(some: pa.Array) -> list[str]:
        columns = caught_columns(lambda places: places.map(GIVEN.__getitem__), "given", "pandas", False, kind, [some])
        return [repr(one) for one in columns.to_pylist()]

    alone = [found(places[n : n + 1])[0] for n in range(len(GIVEN))]
    for n, m in product(range(len(GIVEN)), repeat=2):
        assert found(pa.array([n, m])) == [alone[n], alone[m]], f"{GIVEN[n]!r} beside {GIVEN[m]!r}"
    assert found(places) == alone


MAY = datetime(2024, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize(("returns", "given"), [("DATE", date(2024, 5, 1)), ("TIMESTAMP", MAY), ("BINARY", b"x")])
def test_what_pandas_finds_no_value_for_is_null_alone_as_it_is_beside_others(returns: str, given: object) -> None:
    def known(column: Any) -> Any:
        return pd.Series([given if key == "known" else math.nan for key in column])

    for keys in (["known", "else"], ["known"], ["else"], ["else", "else"]):
        made = caught_columns(known, "known", "pandas", False, arrow_type(Type.parse(returns)), [pa.array(keys)])
        assert made.to_pylist() == [{"made": given if key == "known" else None, "raised": None} for key in keys]


def test_a_null_beside_a_large_number_changes_it_in_no_batch() -> None:
    app, stream = sales()
    known = wt.udf(returns="BIGINT", version="1")(_known)
    stream.map_values(n=known("qty")).to_table().materialized_as("t")
    driver = TopologyTestDriver(app)
    driver.pipe_input("sales", "a", {"qty": 1}, timestamp=1)
    assert driver.table("t") == {"a": {"id": "a", "n": 2**60 + 1}}
    batch = caught_columns(_known, "known", "pandas", False, pa.int64(), [pa.array([1, -1, 2], pa.int32())])
    assert [one["made"] for one in batch.to_pylist()] == [2**60 + 1, None, 2**60 + 2]


def _known(column: Any) -> Any:
    return column.map(lambda n: 2**60 + n if n > 0 else None)


@pytest.mark.parametrize("made", [7, "seven", None, [1, 2, 3], pa.array([1.5]), pa.array(["x"])])
def test_what_is_no_column_of_the_type_fails_its_record(made: object) -> None:
    (found,) = caught_columns(lambda _: made, "its", "arrow", False, pa.int32(), [pa.array([1])]).to_pylist()
    assert found["made"] is None
    assert found["raised"].startswith("its raises ")


def test_calls_are_checked_where_they_are_written() -> None:
    _, stream = sales()
    with pytest.raises(ExpressionError, match=r"tripled .* takes 1 argument\(s\); got 2"):
        tripled("qty", "price")
    with pytest.raises(ExpressionError, match=r"test_udf.py:\d+: in .* takes 1 argument"):
        stream.filter(f"{tripled}(qty, qty) > 1")
    with pytest.raises(wt.WatertableError, match=r"in 'tripled\(quantity\)': no column 'quantity'"):
        stream.map_values(n=tripled("quantity"))
    with pytest.raises(ExpressionError, match="CAST it to a column's type"):
        stream.map_values(n=tripled("NULL"))
    with pytest.raises(ExpressionError, match="inside a lambda"):
        stream.map_values(n=f"transform(tags, t -> {number('t')})")
    with pytest.raises(ExpressionError, match="BOOLEAN"):
        stream.filter(tripled("qty"))


def test_a_cast_of_a_call_is_of_what_the_function_gives_and_fails_where_it_raises() -> None:
    app, stream = sales()
    made = stream.map_values(text=f"CAST({number('name')} AS STRING)", wide=f"CAST({number}(name) AS DECIMAL(9,2))")
    made.to_table().materialized_as("t")
    stream.group_by_key().agg(n=wt.sum(f"CAST({number}(name) AS DECIMAL(9,2))")).materialized_as("sums")
    driver = TopologyTestDriver(app)
    for n, name in enumerate(["1", "many", "2"]):
        driver.pipe_input("sales", "k", {"name": name}, timestamp=n)
    assert driver.table("t") == {"k": {"id": "k", "text": "2", "wide": Decimal("2.00")}}
    assert driver.table("sums") == {"k": {"id": "k", "n": Decimal("3.00")}}
    assert [(refused.record.offset, "raises ValueError" in refused.reason) for refused in driver.quarantine()] == [(1, True)] * 2
    assert {udf.name for udf in called_in(app.topology())} == {"number"}


def test_no_function_is_called_where_rows_are_read() -> None:
    _, stream = sales()
    table = stream.to_table().materialized_as("t")
    for act in (
        lambda: table.map_values(n=tripled("qty")),
        lambda: table.map_values(n=f"CAST({tripled('qty')} AS STRING)"),
        lambda: table.filter(f"{tripled}(qty) > 1"),
        lambda: table.join(table, n=tripled("left.qty")),
        lambda: table.group_by(n=tripled("qty")),
    ):
        with pytest.raises(ExpressionError, match="call it on the stream before"):
            act()
    stream.join(table, n=tripled("right.qty"))
    table.to_stream().filter(f"{tripled}(new.qty) > 1")


def test_definitions_that_cannot_be_called_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"test_udf.py:\d+: returns"):
        wt.udf(returns="WHAT")
    with pytest.raises(DefinitionError, match="choose pandas or arrow"):
        wt.udf(returns="INT", over="rows")
    for function in (lambda: 1, _no_column, _by_name, _generator):
        with pytest.raises(DefinitionError):
            wt.udf(returns="INT")(function)


def _no_column() -> None: ...
def _by_name(column: Any, *, how: str) -> Any: ...
def _generator(column: Any) -> Any:
    yield column


def module(folder: Path, text: str) -> ModuleType:
    (folder / "scoring.py").write_text(text)
    sys.modules.pop("scoring", None)
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        return importlib.import_module("scoring")
    finally:
        sys.path.remove(str(folder))


CODE = """
import math
import watertable as wt

RATE = 2

def helper(x):
    return x * RATE

@wt.udf(returns="DOUBLE")
def score(qty, price):
    return helper(qty) * price + math.floor(1.5)
"""


def fingerprint(udf: Udf) -> str:
    app = wt.App("a")
    stream = app.topic("t", value="qty INT, price DOUBLE").stream()
    stream.map_values(s=udf("qty", "price")).to("out")
    return app.fingerprint


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("return helper(qty)", "# why\n    return helper( qty )", True),
        ("def score(qty, price):", 'def score(qty, price):\n    """Say what."""', True),
        ("RATE = 2", "RATE = 2  # still\nOTHER = 1", True),
        ("RATE = 2", "RATE = 3", False),
        ("x * RATE", "x + RATE", False),
        ("* price", "+ price", False),
        ("floor", "ceil", False),
        ('returns="DOUBLE"', 'returns="DOUBLE", nulls=True', False),
        ('returns="DOUBLE"', 'returns="FLOAT"', False),
        ('returns="DOUBLE"', 'returns="DOUBLE", version="1"', False),
    ],
)
def test_without_a_version_the_closure_identifies(tmp_path: Path, old: str, new: str, same: bool) -> None:
    mine = fingerprint(module(tmp_path, CODE).score)
    other = tmp_path / "other"
    other.mkdir()
    assert (fingerprint(module(other, CODE.replace(old, new)).score) == mine) is same


def test_with_a_version_nothing_else_identifies(tmp_path: Path) -> None:
    versioned = CODE.replace('returns="DOUBLE"', 'returns="DOUBLE", version="1"')
    mine = fingerprint(module(tmp_path, versioned).score)
    for n, text in enumerate([versioned.replace("* price", "+ price"), versioned.replace('version="1"', 'version="2"')]):
        (tmp_path / str(n)).mkdir()
        assert (fingerprint(module(tmp_path / str(n), text).score) == mine) is (n == 0)


def test_what_cannot_be_told_from_another_wants_a_version() -> None:
    model = object()

    def judged(column: Any) -> Any:
        return model and column

    with pytest.raises(DefinitionError, match=r"uses model, a object, .* give it another version"):
        wt.udf(returns="INT")(judged)
    assert wt.udf(returns="INT", version="m1")(judged).identity != wt.udf(returns="INT", version="m2")(judged).identity


WRAPPED = """
import functools
import watertable as wt

def scaled(function):
    @functools.wraps(function)
    def wrapper(qty, price):
        return function(qty, price) * 2
    return wrapper

@wt.udf(returns="DOUBLE")
@scaled
def score(qty, price):
    return qty + price
"""


def test_what_a_decorator_makes_of_a_function_is_part_of_it_and_so_is_the_function(tmp_path: Path) -> None:
    texts = (WRAPPED, WRAPPED.replace("* 2", "* 3"), WRAPPED.replace("qty + price", "qty - price"), WRAPPED.replace("* 2", "* 2  # two"))
    marks = []
    for n, text in enumerate(texts):
        (tmp_path / str(n)).mkdir()
        marks.append(fingerprint(module(tmp_path / str(n), text).score))
    assert len(set(marks[:3])) == 3
    assert marks[3] == marks[0]


@pytest.mark.parametrize("rate", [{1: 2}.get, "a".join, defaultdict(lambda: 2, {1: 2})])
def test_a_method_of_a_value_and_a_dict_that_makes_values_up_want_a_version(rate: Any) -> None:
    def rated(column: Any) -> Any:
        return column.map(rate)

    with pytest.raises(DefinitionError, match=r"uses rate, a .* give it another version"):
        wt.udf(returns="INT")(rated)


def test_builtins_and_functions_of_modules_and_classes_are_known_by_their_names() -> None:
    def fitting(column: Any) -> Any:
        return len(column), math.floor(1.5), from_iso("2026-01-01"), rates.get(1)

    rates, from_iso = {1: 2}, date.fromisoformat
    assert wt.udf(returns="INT")(fitting).identity


# fmt: off
ONE, TWO = (lambda r, c: c.forward({"n": 1})), (lambda r, c: c.forward({"n": 2}))
CUT = dict(
    visit=lambda r, c: r.value is not None
    and c.forward({"n": 1}),
)
ALONE = lambda r, c: c.forward({"n": 1})  # noqa: E731
NESTED = lambda r, c: c.forward({"n": max([1, r.value["n"]], key=lambda n: -n)})  # noqa: E731
# fmt: on


def test_a_lambda_whose_line_does_not_tell_it_from_another_is_refused() -> None:
    stream = wt.App("a").topic("t", key="k INT", value="n INT").stream()
    for function in (ONE, TWO, CUT["visit"]):
        with pytest.raises(DefinitionError, match="make it a def"):
            stream.process_values(function, value="n INT")
        assert stream.process_values(function, value="n INT", version="1").value
    for function in (ALONE, NESTED):
        assert stream.process_values(function, value="n INT").value


BELOW = """
import watertable as wt

@wt.udf(returns="BIGINT")
def score(qty, price):
    class Bounds:
        low: int = 0
        high = low + 9
    return helper(qty) * len([RATE for _ in range(Bounds.high)]) + qty.unknown

def helper(x):
    return x * RATE

RATE = 2
"""


def test_what_a_function_uses_is_defined_above_it_or_its_change_would_go_unnoticed(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"scoring\.py:4: score uses RATE, helper, not defined yet .* define it above"):
        module(tmp_path, BELOW)
    first = BELOW.replace("import watertable as wt", "import watertable as wt\ndef helper(x): return x * RATE").replace("[RATE", "[1")
    with pytest.raises(DefinitionError, match=r"helper uses RATE, not defined yet"):
        module(tmp_path, first)
    assert module(tmp_path, BELOW.replace('"BIGINT"', '"BIGINT", version="1"')).score.identity.endswith("version 1")

    def visit(record: wt.Record, context: wt.Context) -> None:
        context.forward({"n": below(record.key["k"])})

    stream = wt.App("a").topic("t", key="k INT", value="n INT").stream()
    with pytest.raises(DefinitionError, match="visit uses below, not defined yet"):
        stream.process_values(visit, value="n INT")

    def below(n: int) -> int:
        return n

    assert stream.process_values(visit, value="n INT").value


def test_a_plan_names_the_functions_that_it_calls() -> None:
    app, stream = sales()
    stream.filter(f"{tripled}(qty) > 1").group_by("name").agg(n=wt.sum(number("name"))).materialized_as("t")
    assert {udf.name for udf in called_in(app.topology())} == {"tripled", "number"}
    assert "filter (tripled(value.qty) >" in app.describe()


@pytest.mark.parametrize("kind", ["TINYINT", "DECIMAL(38,10)", "BINARY", "MAP<STRING, ARRAY<STRUCT<a: DATE>>>", "FLOAT", "BOOLEAN"])
def test_every_type_has_one_of_arrows(kind: str) -> None:
    assert pa.array([None], arrow_type(Type.parse(kind))).to_pylist() == [None]
