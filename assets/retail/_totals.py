"""Hold the tables to the file they come from: plain Spark over the Parquet, never the engine, says what they should be.

Each `Total` is one law with what was wanted and what was found. Everything read from watertable is read at one position. The late
lines are those of the schedule, which computed them before anything was sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from watertable.plan.plan import Topology
from watertable.settings import Settings
from watertable.store.reader import Reader

if TYPE_CHECKING:
    from assets.retail.replay import Schedule

SOURCE: Final = Path(__file__).with_name("online-retail.parquet")

KNOWN: Final = {"lines": 541_909, "invoices": 25_900, "stock codes": 4_070, "cancellation rows": 9_288, "lines without a customer": 135_080}
"""What others have counted in this file: see SOURCE.md."""


@dataclass(frozen=True, slots=True)
class Total:
    """Compare one figure."""

    name: str
    wanted: object
    found: object

    @property
    def holds(self) -> bool:
        """Tell whether they are equal."""
        return self.wanted == self.found


def compare(spark: SparkSession, schedule: Schedule, topology: Topology, settings: Settings) -> Iterator[Total]:
    """Compare the tables of an app that has caught up with a finished replay."""
    reader = Reader(spark, settings.warehouse_uri, topology.app, topology.tables)
    view = reader.view()
    tables = {table.name: view.rows(table).cache() for table in topology.tables if table.name != "sold_daily"}
    sold = view.rows(topology.table("sold_daily"))
    dropped, refused = reader.dropped(view.position), reader.quarantine(view.position)
    file = _source(spark, schedule).cache()
    yield from _counts(schedule, file, tables, dropped)
    yield Total("quarantined records", 0, refused.count())
    yield from _revenue(spark, schedule, file, tables["revenue_hourly"], dropped)
    yield from _stock(spark, schedule, file, tables)
    hours = list(schedule.late(size=timedelta(days=1), advance=timedelta(hours=1), grace=timedelta(hours=1)))
    late_units = sum(x.quantity for x in hours)
    found = _one(sold, "CAST(sum(sold) AS BIGINT)") + late_units
    yield Total("units in 24 windows each, late ones added", 24 * _one(file, "sum(quantity)"), found)


def _counts(schedule: Schedule, file: DataFrame, tables: dict[str, DataFrame], dropped: DataFrame) -> Iterator[Total]:
    found = {
        "lines": _one(tables["invoices"], "sum(lines)"),
        "invoices": tables["invoices"].count(),
        "stock codes": tables["prices"].count(),
        "cancellation rows": _one(tables["invoices"].where("invoice_no LIKE 'C%'"), "sum(lines)"),
        "lines without a customer": _one(dropped.where("node = 'customers' AND reason = 'null_key'"), "sum(count)"),
    }
    counted = {
        "lines": file.count(),
        "invoices": _one(file, "count(DISTINCT invoice_no)"),
        "stock codes": _one(file, "count(DISTINCT stock_code)"),
        "cancellation rows": file.where("invoice_no LIKE 'C%'").count(),
        "lines without a customer": file.where("customer_id IS NULL").count(),
    }
    whole = counted["lines"] == KNOWN["lines"]
    for name, number in found.items():
        yield Total(name, KNOWN[name] if whole else counted[name], number)
    yield Total("customers", _one(file, "count(DISTINCT customer_id)"), tables["customers"].count())


def _revenue(spark: SparkSession, schedule: Schedule, file: DataFrame, revenue: DataFrame, dropped: DataFrame) -> Iterator[Total]:
    """Hourly revenue plus the lines that were dropped as late is the batch's, country by country and hour by hour."""
    late = list(schedule.late(size=timedelta(hours=1), grace=timedelta(minutes=10)))
    missed = dropped.where("node = 'revenue_hourly' AND reason = 'late'").select("topic", "partition", "offset")
    places = {(row["topic"], row["partition"], row["offset"]) for row in missed.collect()}
    yield Total("late lines", len(late), missed.count())
    yield Total("late lines that aren't on the replayer's list", 0, len(places ^ {("sales", x.partition, x.offset) for x in late}))
    line_at = {(m.partition, m.offset): m.line for m in schedule.moved}
    numbers = [(line_at.get((partition, offset), -1),) for _, partition, offset in places]
    counted = file.join(spark.createDataFrame(numbers, "line INT"), "line") if numbers else file.limit(0)
    hourly = ("country", "date_trunc('hour', invoiced_at) AS hour", "quantity * unit_price AS amount")
    amounts = "CAST(sum(amount) AS DECIMAL(33,3)) AS amount"
    batch = file.selectExpr(*hourly).groupBy("country", "hour").agg(F.expr(amounts), F.expr("count(*) AS n"))
    from_table = revenue.selectExpr("country", "window_start AS hour", "revenue AS amount", "lines AS n")
    from_late = counted.selectExpr(*hourly).selectExpr("country", "hour", "CAST(amount AS DECIMAL(33,3)) AS amount", "1L AS n")
    stream = from_table.unionByName(from_late).groupBy("country", "hour").agg(F.expr(amounts), F.expr("sum(n) AS n"))
    yield Total("revenue in pounds, late lines added", _one(batch, "sum(amount)"), _one(stream, "sum(amount)"))
    yield Total("hours and countries whose revenue differs", 0, _differing(batch, stream))


def _stock(spark: SparkSession, schedule: Schedule, file: DataFrame, tables: dict[str, DataFrame]) -> Iterator[Total]:
    received = spark.createDataFrame([(r.stock_code, r.quantity) for r in schedule.received], "stock_code STRING, units INT")
    moved = received.unionByName(file.selectExpr("stock_code", "-quantity AS units"))
    wanted = moved.groupBy("stock_code").agg(F.expr("sum(units) AS on_hand"))
    yield Total("units on hand", _one(wanted, "sum(on_hand)"), _one(tables["inventory"], "sum(on_hand)"))
    yield Total("stock codes whose stock differs", 0, _differing(wanted, tables["inventory"]))
    last: dict[str, int] = {}
    codes = schedule.lines["StockCode"].to_pylist()
    for line in schedule.sold:
        last[codes[line]] = line  # a code has one partition, and within one, log order is the order of sending
    spent = file.where("customer_id IS NOT NULL").groupBy("customer_id")
    spend = F.expr("CAST(sum(quantity * unit_price) AS DECIMAL(33,3)) AS spend")
    customers = spent.agg(F.expr("count(DISTINCT invoice_no) AS orders"), spend)
    yield Total("customers whose orders or spend differ", 0, _differing(customers, tables["customers"]))
    lines = spark.createDataFrame([(line,) for line in last.values()], "line INT")
    prices = file.join(lines, "line").selectExpr("stock_code", "unit_price AS price")
    yield Total("stock codes whose last price differs", 0, _differing(prices, tables["prices"]))


def _source(spark: SparkSession, schedule: Schedule) -> DataFrame:
    """Read the lines that were sent as a batch job would, in the topics' names; times have no zone, and are taken as UTC."""
    file = spark.read.parquet(str(SOURCE)).selectExpr(
        "CAST(_metadata.row_index AS INT) AS line", "InvoiceNo AS invoice_no", "StockCode AS stock_code", "Quantity AS quantity",
        "CAST(InvoiceDate AS TIMESTAMP) AS invoiced_at", "UnitPrice AS unit_price", "CustomerID AS customer_id", "Country AS country",
    )  # fmt: skip
    sent = set(schedule.sold)
    ahead = max(sent, default=-1)
    missing = set(range(ahead)) - sent  # a replay of some days ends before some held lines come
    return file.where(f"line <= {ahead} AND line NOT IN ({', '.join(map(str, sorted(missing) or [-1]))})")


def _differing(wanted: DataFrame, found: DataFrame) -> int:
    names = wanted.columns
    return wanted.select(names).exceptAll(found.select(names)).count() + found.select(names).exceptAll(wanted.select(names)).count()


def _one(frame: DataFrame, sql: str) -> Any:
    row = frame.selectExpr(f"{sql} AS it").head()
    assert row is not None
    return row["it"]
