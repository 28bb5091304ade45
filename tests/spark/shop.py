"""Hold the apps that tales are told of, a shop each, and the records that they read."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from random import Random

import watertable as wt
from watertable.dsl.streams import Stream
from watertable.dsl.tables import Table
from watertable.plan.plan import Topology
from watertable.records import Record

START = datetime(2026, 1, 1, 23, 40, tzinfo=UTC)
LAST = date(2026, 1, 2)
"""A midnight is amid the records: days are touched one by one."""
AHEAD = (timedelta(hours=2), timedelta(hours=30), timedelta(days=900))


def sums() -> Topology:
    """Define an app of sums, a table of them, joins, what leaves groups, and what is published."""
    app, sales, prices = shop()
    named = prices.materialized_as("prices")
    stock = sales.group_by("key.item").agg(qty=wt.sum("qty"), last=wt.last("shop")).materialized_as("stock")
    stock.group_by("last").agg(items=wt.count(), most=wt.max("qty")).materialized_as("levels")
    stock.join(named, worth="left.qty * right.price").materialized_as("worth")
    stock.filter("qty > 3").materialized_as("much")
    stock.to_stream().filter("old.qty >= 2 AND new.qty < 2").to("low")
    return app.topology()


def windows() -> Topology:
    """Define an app of windows, final ones, sessions, pairs of records, and what goes by time."""
    app, sales, prices = shop()
    by_shop = sales.group_by("shop")
    in_windows = by_shop.windowed_by(wt.hopping(minutes=10, every=wt.minutes(5), grace=wt.minutes(2)))
    hours = in_windows.agg(n=wt.count(), of=wt.collect_list("qty"))
    hours.materialized_as("hours").suppress(wt.until_window_closes()).materialized_as("final")
    by_shop.windowed_by(wt.tumbling(minutes=5, grace=wt.minutes(8))).agg(qty=wt.sum("qty")).materialized_as("fives")
    by_shop.windowed_by(wt.sessions(gap=wt.minutes(2))).agg(n=wt.count()).materialized_as("visits")
    pairs = sales.join(sales.filter("qty > 1"), within=wt.minutes(1), n="left.qty * right.qty")
    pairs.group_by_key().agg(n=wt.sum("n")).materialized_as("paired")
    prices.materialized_as("prices").ttl(wt.minutes(8)).materialized_as("fresh")
    sales.dedupe(name="seen", within=wt.minutes(5)).to("first")  # by what one partition has: else it depends on arrival
    return app.topology()


def kinds() -> Topology:
    """Define an app of versions, pairs that find nothing, rows by another's key, what slides and what is calm, and a processor."""
    app, sales, prices = shop()
    old = prices.materialized_as("old", history=wt.minutes(10))
    priced = sales.left_join(old, grace=wt.minutes(4), qty="qty", price="right.price")
    priced.group_by_key().agg(n=wt.count(), worth=wt.sum("qty * price")).materialized_as("priced")
    none = sales.filter("qty > 2").outer_join(sales.filter("qty < 0"), within=wt.minutes(2), a="left.qty", b="right.qty")
    none.group_by_key().agg(n=wt.count(), a=wt.sum("a"), b=wt.sum("b")).materialized_as("pairs")
    sold_ = sales.group_by_key().agg(qty=wt.sum("qty"), shop=wt.max("shop")).materialized_as("sold")
    shops = sales.group_by("shop").agg(qty=wt.sum("qty")).materialized_as("shops")
    sold_.left_join(shops, on="shop", qty="left.qty", of="right.qty").materialized_as("beside")
    sales.group_by_key().windowed_by(wt.sliding(difference=wt.minutes(2), grace=wt.minutes(5))).agg(n=wt.count()).materialized_as("slid")
    both = sales.group_by_key().cogroup(qty=wt.sum("qty")).cogroup(old.to_stream().group_by_key(), prices=wt.count())
    both.agg().materialized_as("both")
    sold_.suppress(wt.until_time_limit(wt.minutes(3))).materialized_as("calm")
    made = sales.process(
        _streaks, stores={"streaks": wt.key_value_store("n INT", key="shop STRING")}, children={"long": "shop STRING, n INT"}
    )
    made["long"].to("long")
    return app.topology()


def _streaks(record: wt.Record, context: wt.Context) -> None:
    """Count, by item and shop, what was sold since the item was last given back; tell of each third."""
    streaks = context.store("streaks")
    if record.value is None or record.value["qty"] < 0:
        for shop, _ in streaks.range():
            streaks.delete(shop)
        return
    n = (streaks.get(record.value["shop"]) or {"n": 0})["n"] + 1
    streaks.put({"n": n}, record.value["shop"])
    if n % 3 == 0:
        context.forward({"shop": record.value["shop"], "n": n}, to="long")


def shop() -> tuple[wt.App, Stream, Table]:
    """Begin the app of both: what is sold, and prices."""
    app = wt.App("shop")
    sales = app.topic("sales", key="item STRING", value="shop STRING, qty BIGINT").stream()
    return app, sales, app.topic("prices", key="item STRING", value="price BIGINT, at TIMESTAMP", timestamp="at").table()


def sold(draw: Random, size: int) -> list[Record]:
    """Write records of two partitions a topic, some late, some that delete, in an order that they may be read in.

    Of some tales one is dated far ahead, and most that come later are late.
    """
    records, offsets = list[Record](), Counter[tuple[str, int]]()
    ahead = {draw.randrange(size): draw.choice(AHEAD)} if draw.random() < 0.3 else {}
    for number in range(size):
        item = draw.choice("abcd")
        place = (draw.choice(["sales", "sales", "sales", "prices"]), ord(item) % 2)
        when = START + timedelta(seconds=40 * number - draw.choice([0, 0, 0, 30, 200, 900])) + ahead.get(number, timedelta(0))
        records.append(written(draw, *place, offsets[place], item, when, number))
        offsets[place] += 1
    return records


def written(draw: Random, topic: str, partition: int, offset: int, item: str, when: datetime, price: int) -> Record:
    """Write one record; a price has its event time in a field, so that a deleted one has none."""
    if topic == "sales":
        value, stamp = {"shop": draw.choice("xyz"), "qty": draw.randint(-2, 4)}, when
    else:
        value, stamp = {"price": price, "at": when.isoformat()}, when + timedelta(days=9)
    return Record(topic, partition, offset, stamp, item.encode(), None if draw.random() < 0.1 else json.dumps(value).encode())
