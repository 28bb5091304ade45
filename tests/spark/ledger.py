"""Drive a store by hand: an app of five small tables, and commits whose content a test states as plain values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import watertable as wt
from watertable.plan.plan import TableDef, Topology
from watertable.store import fold
from watertable.store.commits import CommitInfo, Position
from watertable.store.deltalog import DeltaLog
from watertable.store.writer import Retention, Store, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

both_folds = pytest.mark.parametrize(
    "small", [pytest.param(fold.SMALL_BASE, id="by overwrite"), pytest.param(-1, id="by merge", marks=pytest.mark.slow)]
)
"""Run a test with folds that write a table anew, as they do with small ones, and with folds that merge."""

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def minute(n: float) -> datetime:
    """Give a stream time, in minutes after the start of the tale."""
    return T0 + timedelta(minutes=n)


class Repeated:
    """A transaction on storage that repeats a write whose answer was lost: then the file is there, and Delta takes it for another's."""

    def __init__(self, log: DeltaLog, txn: Any, lines: Iterable[str]) -> None:
        self._txn, option = txn, log.option
        self._again = log.java.startTransaction(option.empty(), option.apply(txn.snapshot()))
        for name in lines:
            self._again.readTxn().append(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def commit(self, *what: Any) -> int:
        self._txn.commit(*what)
        return int(self._again.commit(*what))


def repeat_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each commit of a transaction line written twice, and the second answer told."""
    begin = DeltaLog._begin

    def repeated(self: DeltaLog, lines: Mapping[str, int], since: int, note: str) -> Any:
        txn = begin(self, lines, since, note)
        return Repeated(self, txn, lines) if lines else txn

    monkeypatch.setattr(DeltaLog, "_begin", repeated)


def shop() -> Topology:
    """Define the app: a sum, a filter over it, a windowed count, the latest value by key, and a list of all ids."""
    app = wt.App("shop")
    moves = app.topic("moves", key="k STRING", value="k STRING, qty BIGINT").stream()
    stock = moves.group_by("value.k").agg(qty=wt.sum("qty")).materialized_as("stock")
    stock.filter("qty < 10").materialized_as("low")
    moves.group_by("value.k").windowed_by(wt.tumbling(hours=1)).agg(n=wt.count()).materialized_as("hourly")
    app.topic("names", key="k STRING", value="name STRING").table().materialized_as("names")
    moves.group_by("value.k").agg(seen=wt.count_distinct("qty")).materialized_as("ids")
    return app.topology()


@dataclass
class Ledger:
    """Commit plain values to a store and remember what the tables must then be."""

    spark: SparkSession
    store: Store
    topology: Topology
    writer: Writer
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    stock: dict[str, int] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def open(cls, spark: SparkSession, warehouse: str, retention: Retention | None = None, topology: Topology | None = None) -> Ledger:
        """Open a new or an old store, of the shop if not of another topology of that name, and fence it."""
        topology = topology or shop()
        store = Store.open(spark, warehouse, "shop", topology.tables, retention)
        ledger = cls(spark, store, topology, store.start_writer(topology))
        if (last := ledger.writer.last) is not None:
            ledger.offsets = dict(last.next)
        return ledger

    def restart(self) -> Ledger:
        """Begin again as a new process would: nothing is known but what the store says."""
        again = Ledger.open(self.spark, self.store.warehouse, self.store.retention, self.topology)
        again.stock = self.stock
        return again

    def table(self, name: str) -> TableDef:
        """Give a table's definition."""
        return self.topology.table(name)

    def deltas(self, name: str, values: Sequence[str]) -> DataFrame:
        """Make a frame of changes from SQL: each value is `key fields..., state fields..., st`, as the text of structs."""
        table = self.table(name)
        key, state = table.state_key.struct().sql(), "STRUCT<" + ", ".join(f"{f.name}: {f.type.sql()}" for f in table.state) + ">"
        rows = ", ".join(f"({v})" for v in values)
        return self.spark.sql(
            f"SELECT CAST(k AS {key}) AS key, CAST(s AS {state}) AS state, CAST(t AS TIMESTAMP) AS st FROM VALUES {rows} AS v(k, s, t)"
        )

    def sums(self, name: str, change: Mapping[str, int], at: float = 0) -> DataFrame:
        """Make changes of a table whose state is one sum."""
        st = f"timestamp'{minute(at):%F %T}'"
        return self.deltas(name, [f"named_struct('k', '{k}'), named_struct('q', {q}L), {st}" for k, q in change.items()])

    def names(self, change: Mapping[str, tuple[float, str | None]]) -> DataFrame:
        """Make changes of `names`: key → (stream time in minutes, name or None for a tombstone)."""
        rows = []
        for key, (at, name) in change.items():
            st = f"timestamp'{minute(at):%F %T}'"
            place = f"named_struct('st', {st}, 'topic', 'names', 'partition', 0, 'offset', {next(self.numbers)}L, 'ord', 0)"
            value = "CAST(NULL AS STRUCT<name: STRING>)" if name is None else f"named_struct('name', '{name}')"
            rows.append(f"named_struct('k', '{key}'), named_struct('row', named_struct('order', {place}, 'value', {value})), {st}")
        return self.deltas("names", rows)

    def info(self, records: int = 10, reached: Mapping[str, float | None] | None = None) -> CommitInfo:
        """Describe a batch of so many records of each topic, after which the stream times are these minutes."""
        begin = {(topic, 0): self.offsets.get((topic, 0), 0) for topic in ("moves", "names")}
        times = {(t, 0): None if m is None else minute(m) for t, m in (reached or {"moves": 0, "names": 0}).items()}
        after = {p: o + records for p, o in begin.items()}
        return CommitInfo(begin=begin, next=after, stream_times=times, topic_ids={"moves": "id-m", "names": "id-n"})

    def commit(self, frames: Mapping[str, DataFrame], reached: Mapping[str, float | None] | None = None) -> Position:
        """Commit one batch of any tables."""
        info = self.info(reached=reached)
        position = self.writer.commit(frames, info)
        self.offsets |= info.next
        return position

    def sell(self, reached: Mapping[str, float | None] | None = None, **change: int) -> Position:
        """Commit one batch that changes stock by these amounts, with `low` and `ids` beside it."""
        frames = {"stock": self.sums("stock", change), "low": self.sums("low", change)}
        position = self.commit(frames, reached)
        for key, quantity in change.items():
            self.stock[key] = self.stock.get(key, 0) + quantity
        return position

    def name(self, reached: float, **change: tuple[float, str | None]) -> Position:
        """Commit one batch of names."""
        return self.commit({"names": self.names(change)}, {"moves": reached, "names": reached})

    def read(self, table: str, at: object = None) -> dict[object, object]:
        """Read a table as key → value, where both are one column."""
        rows = self.store.reader.read(table, at).collect()  # type: ignore[arg-type]
        assert len({r[0] for r in rows}) == len(rows), f"a key comes twice: {rows}"
        return {r[0]: r[1] for r in rows}
