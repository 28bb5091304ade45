"""Follow what is ordered: what has been sold of each item, hour by hour too, and which items have become bestsellers."""

import watertable as wt

ORDERS = """
    item STRING,
    quantity INT,
    price DECIMAL(9,2) COMMENT 'of one, in euros',
    ordered_at TIMESTAMP
"""

app = wt.App("NAME", description="What is ordered, by item and by hour")
topic = app.topic("NAME_orders", key="order_id STRING", value=ORDERS, timestamp="ordered_at")
orders = topic.stream().expect("something_ordered", "quantity > 0")
by_item = orders.group_by("item")

items = by_item.agg(sold=wt.sum("quantity"), revenue=wt.sum("quantity * price")).materialized_as("items")
hours = by_item.windowed_by(wt.tumbling(hours=1, grace=wt.minutes(10)))
hourly = hours.agg(orders=wt.count(), sold=wt.sum("quantity")).materialized_as("hourly")

items.to_stream().filter("coalesce(old.sold, 0) < 10 AND new.sold >= 10").to("NAME_bestsellers")
