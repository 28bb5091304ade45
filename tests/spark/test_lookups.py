"""Hold look-ups to what a fresh one finds: what is remembered of a small table is the table, whatever was committed or folded since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.spark.ledger import Ledger
from watertable.compiler import anew
from watertable.store import lookups
from watertable.store.lookups import Lookups
from watertable.store.reader import Reader
from watertable.store.views import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark


def states(frame: DataFrame) -> Counter[str]:
    """Take the states that a look-up gave, by key."""
    return Counter(str(row) for row in frame.selectExpr("to_json(struct(key, state)) AS j").toPandas()["j"])


def fresh(ledger: Ledger, table: str) -> Counter[str]:
    """Look all of a table up as nobody has before."""
    reader = Reader(ledger.spark, ledger.store.warehouse, "shop", ledger.topology.tables)
    return states(Lookups(reader, lambda: ledger.writer.known, anew).of()(ledger.table(table), None))


@pytest.mark.slow
def test_what_is_remembered_of_a_table_is_what_a_fresh_look_finds(ledger: Ledger) -> None:
    steps: list[Callable[[], object]] = [
        lambda: ledger.sell(a=1, b=2),
        lambda: ledger.name(1, a=(1, "Ann"), b=(1, "Bea")),
        lambda: ledger.sell(a=-1, c=3),  # a group is emptied
        lambda: ledger.store.fold("stock"),
        lambda: ledger.name(2, a=(2, None)),  # a tombstone
        lambda: ledger.sell(c=1),
        lambda: ledger.store.fold_all(beside=True),
        lambda: ledger.name(2, a=(1.5, "too early")),
        lambda: ledger.sell(a=5),
        lambda: ledger.name(9, c=(9, "Cid")),
    ]
    for step in steps:
        step()
        for table in ("stock", "names", "hourly"):
            for _ in "again":
                assert states(ledger.writer.lookup()(ledger.table(table), None)) == fresh(ledger, table)


def test_between_two_folds_a_small_table_is_read_once_and_then_each_commit(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, since = Counter[str](), list[tuple[str, int]]()
    both, only = View.states, View.states_since
    monkeypatch.setattr(View, "states", lambda view, table, *a, **kw: (whole.update([table.name]), both(view, table, *a, **kw))[1])
    monkeypatch.setattr(
        View, "states_since", lambda view, table, seq, *found: (since.append((table.name, seq)), only(view, table, seq, *found))[1]
    )
    stock = ledger.table("stock")
    for quantity in (1, 2, 3):
        ledger.sell(a=quantity)
        ledger.writer.lookup()(stock, None).collect()
        ledger.writer.lookup()(stock, None).collect()
    assert (whole["stock"], since) == (1, [("stock", 1), ("stock", 2)])
    ledger.store.fold("stock")
    whole.clear()
    ledger.writer.lookup()(stock, None).collect()
    assert whole["stock"] == 1, "another base begins anew"


def test_a_small_table_is_remembered_however_often_its_rows_have_changed_since_its_fold(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, since = ledger.table("stock"), list[int]()
    ledger.sell(a=1, b=2)
    ledger.store.fold("stock")
    reader = Reader(ledger.spark, ledger.store.warehouse, "shop", ledger.topology.tables)
    monkeypatch.setattr(lookups, "SHORT_BASE", reader.view_for(["stock"], ledger.writer.known).base_bytes(stock))
    only = View.states_since
    monkeypatch.setattr(View, "states_since", lambda view, table, seq, *found: (since.append(seq), only(view, table, seq, *found))[1])
    for quantity in (1, 2, 3):
        ledger.sell(a=quantity)
        ledger.writer.lookup()(stock, None).collect()
    assert since == [2, 3], "each time only what has been committed since the time before is read"
    assert states(ledger.writer.lookup()(stock, None)) == fresh(ledger, "stock")


def test_a_table_that_grows_large_is_remembered_no_more(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.sell(a=1, b=2)
    ledger.store.fold("stock")
    ledger.writer.lookup()(ledger.table("stock"), None).collect()
    monkeypatch.setattr(lookups, "SHORT_BASE", 0)
    monkeypatch.setattr(Lookups, "_whole", None)
    ledger.sell(a=10, c=3)
    keys = ledger.spark.sql("SELECT named_struct('k', k) AS key FROM VALUES ('a'), ('never') AS v(k)")
    found = ledger.writer.lookup()(ledger.table("stock"), lambda: keys).collect()
    assert {r["key"]["k"]: r["state"][0] for r in found}["a"] == 11
    monkeypatch.undo()
    assert states(ledger.writer.lookup()(ledger.table("stock"), None)) == fresh(ledger, "stock")


def test_a_new_writer_remembers_nothing_of_the_one_before(ledger: Ledger) -> None:
    ledger.sell(a=1)
    ledger.writer.lookup()(ledger.table("stock"), None).collect()
    ledger.sell(b=2)
    again = ledger.restart()
    again.sell(a=4)
    assert states(again.writer.lookup()(again.table("stock"), None)) == fresh(again, "stock")
