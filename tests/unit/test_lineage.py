"""Lineage: columns back to their topics, and topologies as text and as Mermaid."""

# ruff: noqa: E501 (the golden texts are as long as they are)
from __future__ import annotations

import re

import pytest

import watertable as wt
from tests import apps
from watertable.plan.lineage import Origin, column_lineage, describe, mermaid, topics_of
from watertable.plan.plan import Topology

DESCRIBED = """\
app retail  fingerprint FINGERPRINT  owner team:retail
  topic receipts  key (stock_code STRING) string, value json, event time received_at
        (stock_code STRING, quantity INT, received_at TIMESTAMP)
  topic sales  key (stock_code STRING) string, value json, event time invoiced_at
        (invoice_no STRING, stock_code STRING, description STRING, quantity INT, invoiced_at TIMESTAMP, unit_price DECIMAL(12,3), customer_id STRING, country STRING)
  table inventory  key (stock_code STRING)  tests/apps.py:N
        (on_hand BIGINT)
        group_by stock_code=value.stock_code agg on_hand=sum(value.qty)  tests/apps.py:N
          merge  tests/apps.py:N
            map_values stock_code=value.stock_code, qty=(- value.quantity)  tests/apps.py:N
              topic sales  tests/apps.py:N
            map_values stock_code=value.stock_code, qty=value.quantity  tests/apps.py:N
              topic receipts  tests/apps.py:N
  table prices  key (stock_code STRING)  tests/apps.py:N
        (price DECIMAL(12,3))
        group_by stock_code=value.stock_code agg price=last(value.unit_price)  tests/apps.py:N
          topic sales  tests/apps.py:N
  table customers  key (customer_id STRING)  tests/apps.py:N
        (orders BIGINT, spend DECIMAL(33,3))
        group_by customer_id=value.customer_id agg orders=count_distinct(value.invoice_no), spend=sum((value.quantity * value.unit_price))  tests/apps.py:N
          topic sales  tests/apps.py:N
  table revenue_hourly  key (country STRING, window_start TIMESTAMP, window_end TIMESTAMP)  tests/apps.py:N
        (revenue DECIMAL(33,3), lines BIGINT)
        group_by country=value.country windowed_by tumbling 1h grace 10m agg revenue=sum((value.quantity * value.unit_price)), lines=count()  tests/apps.py:N
          topic sales  tests/apps.py:N
  table sold_daily  key (stock_code STRING, window_start TIMESTAMP, window_end TIMESTAMP)  tests/apps.py:N
        (sold BIGINT)
        group_by stock_code=value.stock_code windowed_by hopping 1d every 1h grace 1h agg sold=sum(value.quantity)  tests/apps.py:N
          topic sales  tests/apps.py:N
  output reorders  key string, value json  [arrival]  tests/apps.py:N
        filter ((old.on_hand >= 20L) AND (new.on_hand < 20L))  tests/apps.py:N
          to_stream of table inventory (arrival)  tests/apps.py:N
  output price_changes  key string, value json  [arrival]  tests/apps.py:N
        filter (NOT (old.price = new.price))  tests/apps.py:N
          to_stream of table prices (arrival)  tests/apps.py:N
"""

DRAWN = """\
flowchart LR
    t_receipts[("receipts")]
    t_sales[("sales")]
    k_inventory["inventory<br/><small>by stock_code</small>"]
    k_prices["prices<br/><small>by stock_code</small>"]
    k_customers["customers<br/><small>by customer_id</small>"]
    k_revenue_hourly["revenue_hourly<br/><small>by country · tumbling 1h grace 10m</small>"]
    k_sold_daily["sold_daily<br/><small>by stock_code · hopping 1d every 1h grace 1h</small>"]
    s_reorders>"reorders"]
    s_price_changes>"price_changes"]
    t_sales -->|map_values| k_inventory
    t_receipts -->|map_values| k_inventory
    t_sales --> k_prices
    t_sales --> k_customers
    t_sales --> k_revenue_hourly
    t_sales --> k_sold_daily
    k_inventory -->|changes · filter| s_reorders
    k_prices -->|changes · filter| s_price_changes
"""


@pytest.fixture(scope="module")
def retail() -> Topology:
    return apps.retail().topology()


def test_a_topology_describes_itself_with_the_lines_that_made_it(retail: Topology) -> None:
    text = describe(retail)
    assert re.findall(r"inventory.*(tests/apps.py:\d+)", text)
    assert re.sub(r"tests/apps.py:\d+", "tests/apps.py:N", text.replace(retail.fingerprint, "FINGERPRINT")) + "\n" == DESCRIBED
    assert apps.retail().describe() == text


def test_a_top_k_is_described_with_how_many_it_keeps_and_by_what() -> None:
    app = wt.App("games")
    scores = app.topic("scores", key="player STRING", value="game STRING, points INT").stream()
    scores.group_by("game").agg(best=wt.top_k(3, "points * 2", "player")).materialized_as("best")
    assert "agg best=top_k(3, (value.points * 2), key.player)" in app.describe()


def test_a_topology_draws_itself(retail: Topology) -> None:
    assert mermaid(retail) + "\n" == DRAWN


def test_a_column_comes_from_the_topic_columns_it_is_computed_of(retail: Topology) -> None:
    sales = {name: Origin("sales", "value", name) for name in ("quantity", "unit_price", "invoice_no", "customer_id", "country")}
    assert column_lineage(retail.table("customers")) == {
        "customer_id": (sales["customer_id"],),
        "orders": (sales["invoice_no"],),
        "spend": (sales["quantity"], sales["unit_price"]),
    }
    assert column_lineage(retail.table("inventory"))["on_hand"] == (Origin("receipts", "value", "quantity"), sales["quantity"])
    assert column_lineage(retail.table("revenue_hourly")) == {
        "country": (sales["country"],),
        "window_start": (),
        "window_end": (),
        "revenue": (sales["quantity"], sales["unit_price"]),
        "lines": (),
    }


def test_lineage_goes_through_keys_explosions_stages_and_changes() -> None:
    app = wt.App("a")
    orders = app.topic("orders", key="id STRING", value="items ARRAY<STRING>, total INT, who STRUCT<name: STRING>").stream()
    items = orders.flat_map_values(item="items", total="total", who="who.name").select_key(item="item", buyer="who")
    kept = items.group_by_key().agg(spent=wt.sum("total")).map_values(double="2 * spent", name="key.buyer").materialized_as("kept")
    kept.to_stream().group_by(name="new.name").agg(top=wt.max("new.double")).materialized_as("top")
    one, two = app.topology().tables
    assert column_lineage(one) == {
        "item": (Origin("orders", "value", "items"),),
        "buyer": (Origin("orders", "value", "who"),),
        "double": (Origin("orders", "value", "total"),),
        "name": (Origin("orders", "value", "who"),),
    }
    assert column_lineage(two) == {"name": (Origin("orders", "value", "who"),), "top": (Origin("orders", "value", "total"),)}
    assert [topic.name for topic in topics_of(two.node)] == ["orders"]


def test_a_table_of_a_topic_has_its_columns_and_its_derived_tables_follow_them() -> None:
    app = wt.App("a")
    app.topic("items", key="sku STRING", value="stock INT, name STRING").table().map_values(low="stock < 3").materialized_as("low")
    (low,) = app.topology().tables
    assert column_lineage(low) == {"sku": (Origin("items", "key", "sku"),), "low": (Origin("items", "value", "stock"),)}


def test_a_joins_columns_come_from_both_sides_and_so_does_its_key() -> None:
    app = wt.App("a")
    items = app.topic("items", key="sku STRING", value="name STRING, stock INT").table()
    sold = app.topic("sales", key="item STRING", value="qty INT").stream().group_by_key().agg(n=wt.sum("qty"))
    items.left_join(sold.filter("n > 0"), name="left.name", rest="left.stock - right.n", of="key.sku").materialized_as("rest")
    (rest,) = app.topology().tables
    key = (Origin("items", "key", "sku"), Origin("sales", "key", "item"))
    assert column_lineage(rest) == {
        "sku": key, "name": (Origin("items", "value", "name"),), "of": key,
        "rest": (Origin("items", "value", "stock"), Origin("sales", "value", "qty")),
    }  # fmt: skip
    drawn = mermaid(app.topology())
    assert "t_items -->|left_join| k_rest" in drawn
    assert "t_sales -->|filter · left_join| k_rest" in drawn
    assert "left_join name=left.name, rest=(left.stock - right.n), of=key.sku" in describe(app.topology())


def test_a_lookup_is_an_edge_from_its_table_and_its_columns_come_from_both() -> None:
    app = wt.App("a")
    items = app.topic("items", key="sku STRING", value="name STRING").table().materialized_as("names")
    sales = app.topic("sales", key="id STRING", value="sku STRING, qty INT").stream()
    sales.join(items, on="sku", what="right.name", much="qty + 1").group_by("what").agg(n=wt.sum("much")).materialized_as("sold")
    _, sold = app.topology().tables
    assert column_lineage(sold) == {"what": (Origin("items", "value", "name"),), "n": (Origin("sales", "value", "qty"),)}
    drawn = mermaid(app.topology())
    assert "k_names -->|join| k_sold" in drawn
    assert "t_sales -->|join| k_sold" in drawn
    assert "t_items -->|join" not in drawn
    assert "join table names on sku=value.sku what=right.name, much=(value.qty + 1) (arrival)" in describe(app.topology())


def test_names_that_mermaid_cannot_hold_are_kept_in_labels() -> None:
    app = wt.App("a")
    app.topic("shop.sales-v1", value="x INT").stream().filter("x > 0").to("shop.out-v1")
    drawn = mermaid(app.topology())
    assert 't_shop_sales_v1[("shop.sales-v1")]' in drawn
    assert "t_shop_sales_v1 -->|filter| s_shop_out_v1" in drawn


def test_a_grouped_table_is_drawn_over_its_table_and_its_columns_come_from_the_topic() -> None:
    app = wt.App("a")
    rows = app.topic("people", key="id STRING", value="place STRING, age INT").table().materialized_as("people")
    rows.group_by(at="upper(place)").agg(oldest=wt.top_k(1, "age", "id")).materialized_as("places")
    topology = app.topology()
    assert column_lineage(topology.table("places")) == {
        "at": (Origin("people", "value", "place"),),
        "oldest": (Origin("people", "key", "id"),),
    }
    assert "k_people -->|changes| k_places" in mermaid(topology)
    assert re.search(
        r"group_by at=upper\(value.place\) agg oldest=top_k\(1, value.age, key.id\).*\n +rows of table people\n?$", describe(topology)
    )
