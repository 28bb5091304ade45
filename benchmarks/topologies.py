"""Define the apps that the benchmarks run: count and sum by key, once or many times over, and one for each family of operators."""

from __future__ import annotations

from collections.abc import Sequence

import watertable as wt
from benchmarks.feeds import FIELDS, GAP, GRACE, WINDOW
from benchmarks.workload import VALUE
from watertable.plan.plan import Topology


def count_and_sum(app: str, topic: str, tables: int = 1) -> Topology:
    """Count and sum by key; with 3 or 6 `tables`, the others have another key or another aggregate."""
    made = wt.App(app)
    records = made.topic(topic, key="item STRING", value=VALUE).stream()
    records.group_by_key().agg(n=wt.count(), total=wt.sum("amount")).materialized_as("totals")
    if tables >= 3:
        records.group_by("shop").agg(n=wt.count(), total=wt.sum("amount")).materialized_as("shops")
        records.group_by_key().agg(least=wt.min("amount"), most=wt.max("amount")).materialized_as("extremes")
    if tables >= 6:
        records.group_by("amount").agg(n=wt.count()).materialized_as("amounts")
        records.filter("amount > 50").group_by_key().agg(total=wt.sum("amount")).materialized_as("large")
        records.group_by("shop", "amount").agg(n=wt.count()).materialized_as("shop_amounts")
    return made.topology()


def operator(name: str, app: str, topics: Sequence[str]) -> Topology:
    """Define what runs beside the topology of this name in `kafka_streams/Operators.java`; its table `result` has `n` and `total`."""
    made = wt.App(app)
    first, *others = (made.topic(topic, key="item STRING", value=FIELDS) for topic in topics)
    totals = {"n": wt.count(), "total": wt.sum("amount")}
    pair = {"n": "left.amount", "total": "left.amount * right.amount"}
    match name:
        case "windowed_count":
            windows = wt.tumbling(milliseconds=WINDOW, grace=wt.milliseconds(GRACE))
            result = first.stream().group_by_key().windowed_by(windows).agg(**totals)
        case "sessions":
            gaps = wt.sessions(gap=wt.milliseconds(GAP), grace=wt.milliseconds(GRACE))
            result = first.stream().group_by_key().windowed_by(gaps).agg(**totals)
        case "table_join":
            result = first.table().join(others[0].table(), **pair)
        case "stream_table_join":
            prices = others[0].table().materialized_as("prices")
            result = first.stream().join(prices, amount="amount * right.amount").group_by_key().agg(**totals)
        case "foreign_join":
            orders, products = first.table().materialized_as("orders"), others[0].table().materialized_as("products")
            result = orders.join(products, on="other", **pair)
        case "regrouped":
            result = first.table().materialized_as("items").group_by("other").agg(**totals)
        case _:
            raise ValueError(f"no operator {name!r}")
    result.materialized_as("result")
    return made.topology()


def growing(app: str, topic: str) -> Topology:
    """Count by key, and stream the changes: each changed row's old one is looked up."""
    made = wt.App(app)
    totals = made.topic(topic, key="item STRING", value=VALUE).stream().group_by_key().agg(n=wt.count()).materialized_as("totals")
    totals.to_stream().filter("old.n IS NOT NULL").group_by(n="new.n").agg(times=wt.count()).materialized_as("steps")
    return made.topology()


def wide(app: str, topic: str, tables: int, columns: int) -> Topology:
    """Aggregate by the topic's key, so many columns a table, so many times."""
    made = wt.App(app)
    records = made.topic(topic, key="item STRING", value=VALUE).stream()
    for table in range(tables):
        sums = {f"c{column}": wt.sum(f"amount + {table + column}") for column in range(columns)}
        records.group_by_key().agg(**sums).materialized_as(f"t{table}")
    return made.topology()
