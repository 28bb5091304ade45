"""Send some orders, to try the app on: `python assets/NAME/produce.py`, as often as you like. One is of nothing, and is refused."""

import json
from datetime import UTC, datetime
from uuid import uuid4

from confluent_kafka import Producer

from watertable.kafka.admin import Admin
from watertable.kafka.config import Cluster
from watertable.settings import Settings

ORDERS = [("tea", 2, 3.5), ("coffee", 1, 8.2), ("tea", 9, 3.5), ("cocoa", 0, 4.9), ("coffee", 3, 8.2)]

if __name__ == "__main__":
    cluster = Cluster.of(Settings.load())
    Admin(cluster).create_topic("NAME_orders")
    producer = Producer(cluster.client_config())
    for item, quantity, price in ORDERS:
        order = {"item": item, "quantity": quantity, "price": price, "ordered_at": datetime.now(UTC).isoformat()}
        producer.produce("NAME_orders", json.dumps(order), key=str(uuid4()))
    left = producer.flush(30)
    print(f"{len(ORDERS) - left} orders sent to NAME_orders on {cluster.bootstrap}")
