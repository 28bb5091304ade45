"""Define the apps that the benchmarks run: count and sum by key, once or several times over."""

from __future__ import annotations

import watertable as wt
from benchmarks.workload import VALUE
from watertable.plan import Topology


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
