"""Keep a gift shop's tables from two topics: what it sells, and what arrives in its store-room.

The invoice lines are real (see SOURCE.md); the receipts are made by the rule in replay.py. Invoices carry UK local time without a
zone: it is taken as UTC, in the topics as in the tables, so that an hour here is an hour on the shop's clock.
"""

import watertable as wt

SALES = """
    line INT COMMENT 'number of the line in the source file, from 0: invoice and stock code alone are not unique',
    invoice_no STRING COMMENT 'C... is a cancellation, A... an adjustment of bad debt',
    stock_code STRING,
    description STRING,
    quantity INT COMMENT 'negative for returns and write-offs',
    invoiced_at TIMESTAMP,
    unit_price DECIMAL(12,3) COMMENT 'pounds sterling',
    customer_id INT COMMENT 'null for a quarter of the lines',
    country STRING
"""

RECEIPTS = """
    stock_code STRING,
    quantity INT,
    received_at TIMESTAMP
"""

# fmt: off
app = wt.App("retail", owner="team:retail")
sales = app.topic("sales", key="stock_code STRING", value=SALES, timestamp="invoiced_at").stream()
receipts = app.topic("receipts", key="stock_code STRING", value=RECEIPTS, timestamp="received_at").stream()

moves = (sales.map_values(stock_code="stock_code", qty="-quantity")
         .merge(receipts.map_values(stock_code="stock_code", qty="quantity")))
inventory = moves.group_by("stock_code").agg(on_hand=wt.sum("qty")).materialized_as("inventory")
prices = sales.group_by("stock_code").agg(price=wt.last("unit_price")).materialized_as("prices")
customers = (sales.group_by("customer_id")
             .agg(orders=wt.count_distinct("invoice_no"), spend=wt.sum("quantity * unit_price")).materialized_as("customers"))
revenue = (sales.group_by("country").windowed_by(wt.tumbling(hours=1, grace=wt.minutes(10)))
           .agg(revenue=wt.sum("quantity * unit_price"), lines=wt.count()).materialized_as("revenue_hourly"))
sold = (sales.group_by("stock_code").windowed_by(wt.hopping(days=1, every=wt.hours(1), grace=wt.hours(1)))
        .agg(sold=wt.sum("quantity")).materialized_as("sold_daily"))

inventory.to_stream().filter("old.on_hand >= 20 AND new.on_hand < 20").to("reorders")
prices.to_stream().filter("old.price <> new.price").to("price_changes")
# fmt: on

invoices = (
    sales.group_by("invoice_no")
    .agg(lines=wt.count(), total=wt.sum("quantity * unit_price"), invoiced_at=wt.min("invoiced_at"))
    .materialized_as("invoices")
)
