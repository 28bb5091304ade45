"""Hold the topologies that several tests share: the retail app of the README, and WordCount."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import watertable as wt
from watertable.plan.plan import Topology
from watertable.project import load_apps
from watertable.settings import Settings

ROOT = Path(__file__).parents[1]
SALES = (
    "invoice_no STRING, stock_code STRING, description STRING, quantity INT, invoiced_at TIMESTAMP, unit_price DECIMAL(12,3), "
    "customer_id STRING, country STRING"
)
RECEIPTS = "stock_code STRING, quantity INT, received_at TIMESTAMP"


def retail() -> wt.App:
    app = wt.App("retail", owner="team:retail")
    sales = app.topic("sales", key="stock_code STRING", value=SALES, timestamp="invoiced_at").stream()
    receipts = app.topic("receipts", key="stock_code STRING", value=RECEIPTS, timestamp="received_at").stream()

    moves = sales.map_values(stock_code="stock_code", qty="-quantity").merge(receipts.map_values(stock_code="stock_code", qty="quantity"))
    inventory = moves.group_by("stock_code").agg(on_hand=wt.sum("qty")).materialized_as("inventory")
    prices = sales.group_by("stock_code").agg(price=wt.last("unit_price")).materialized_as("prices")
    (
        sales.group_by("customer_id")
        .agg(orders=wt.count_distinct("invoice_no"), spend=wt.sum("quantity * unit_price"))
        .materialized_as("customers")
    )
    (
        sales.group_by("country")
        .windowed_by(wt.tumbling(hours=1, grace=wt.minutes(10)))
        .agg(revenue=wt.sum("quantity * unit_price"), lines=wt.count())
        .materialized_as("revenue_hourly")
    )
    (
        sales.group_by("stock_code")
        .windowed_by(wt.hopping(days=1, every=wt.hours(1), grace=wt.hours(1)))
        .agg(sold=wt.sum("quantity"))
        .materialized_as("sold_daily")
    )

    inventory.to_stream().filter("old.on_hand >= 20 AND new.on_hand < 20").to("reorders")
    prices.to_stream().filter("old.price <> new.price").to("price_changes")
    return app  # fmt: skip


def wordcount() -> wt.App:
    app = wt.App("wordcount")
    lines = app.topic("lines", value="line STRING", value_format="string").stream()
    words = lines.flat_map_values(word="split(lower(line), ' ')")
    words.group_by("word").agg(n=wt.count()).materialized_as("counts")
    return app


def retail_module(name: str) -> ModuleType:
    """Load a file beside the retail app, which is no package."""
    spec = importlib.util.spec_from_file_location(f"retail_{name}_under_test", ROOT / "assets" / "retail" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def demo(name: str) -> Topology:
    """Load an app of this repository's `assets/`, as the project does."""
    return load_apps(Settings.load(ROOT)).app(name).topology
