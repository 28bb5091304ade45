"""The public test driver: what goes in, what comes out, and errors that say what there is."""

from __future__ import annotations

import re
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

import watertable as wt
from tests import apps
from watertable.errors import DefinitionError, JobError, SchemaError
from watertable.testing import Change, Published, TopologyTestDriver


@pytest.fixture
def app() -> wt.App:
    app = wt.App("shop")
    app.topic("sales", key="sku STRING", value="qty INT, price DECIMAL(9,2), day DATE, at TIMESTAMP, raw BINARY")
    return app


@pytest.fixture
def retail() -> TopologyTestDriver:
    return TopologyTestDriver(apps.retail())


def moment(at: str) -> str:
    return f"2010-12-01T{at if at.count(':') == 2 else f'{at}:00'}Z"


def sale(driver: TopologyTestDriver, at: str, quantity: int, price: str = "2.50", customer: str | None = "c1", partition: int = 0) -> None:
    row = {"invoice_no": f"i{at}", "stock_code": "tea", "quantity": quantity, "unit_price": price, "customer_id": customer,
           "country": "UK", "invoiced_at": moment(at)}  # fmt: skip
    driver.pipe_input("sales", "tea", row, partition=partition)


def receipt(driver: TopologyTestDriver, at: str, quantity: int) -> None:
    driver.pipe_input("receipts", "tea", {"stock_code": "tea", "quantity": quantity, "received_at": moment(at)})


# -- the retail app -----------------------------------------------------------------------------------------------------------------


def test_stock_on_hand_is_what_came_minus_what_was_sold(retail: TopologyTestDriver) -> None:
    receipt(retail, "08:00", 30)
    sale(retail, "09:00", 12)
    sale(retail, "09:30", -2)  # a return
    assert retail.table("inventory") == {"tea": {"stock_code": "tea", "on_hand": 20}}


def test_a_reorder_is_published_when_stock_falls_below_20_and_not_again(retail: TopologyTestDriver) -> None:
    receipt(retail, "08:00", 30)
    sale(retail, "09:00", 11)
    sale(retail, "10:00", 1)
    assert retail.read_output("reorders") == [Published("tea", {"on_hand": 19}, datetime(2010, 12, 1, 9, tzinfo=UTC))]
    assert retail.read_output("reorders") == []


def test_a_dip_within_one_batch_is_published_too(retail: TopologyTestDriver) -> None:
    with retail.batch():
        sale(retail, "09:00", 25)
        receipt(retail, "08:00", 30)
        receipt(retail, "10:00", 45)
    assert [p.value for p in retail.read_output("reorders")] == [{"on_hand": 5}]
    assert retail.table("inventory")["tea"]["on_hand"] == 50


def test_a_sale_without_customer_is_dropped_and_counted_at_that_group_by_alone(retail: TopologyTestDriver) -> None:
    sale(retail, "09:00", 1, customer=None)
    assert retail.table("customers") == {}
    assert [(d.node, d.reason, d.offset) for d in retail.dropped()] == [("customers", "null_key", 0)]
    assert retail.table("inventory")["tea"]["on_hand"] == -1
    assert retail.quarantine() == []


def test_customers_have_distinct_invoices_and_an_exact_spend(retail: TopologyTestDriver) -> None:
    sale(retail, "09:00", 3, "0.10")
    sale(retail, "09:00", 7, "0.10")
    sale(retail, "10:00", 1, "0.333")
    assert retail.table("customers") == {"c1": {"customer_id": "c1", "orders": 2, "spend": Decimal("1.333")}}


def test_a_late_line_is_left_out_of_its_closed_hour_and_counted(retail: TopologyTestDriver) -> None:
    sale(retail, "09:30", 2)
    sale(retail, "10:09:59", 4)
    sale(retail, "09:59", 1)  # the hour is open until 10:10
    sale(retail, "10:10", 1)
    sale(retail, "09:59", 100)
    (nine, ten) = retail.windows("revenue_hourly", "UK")
    assert (nine["revenue"], nine["lines"], ten["lines"]) == (Decimal("7.500"), 2, 2)
    (late,) = [d for d in retail.dropped() if d.node == "revenue_hourly"]
    assert (late.reason, late.offset) == ("late", 4)
    assert late.window == (datetime(2010, 12, 1, 9, tzinfo=UTC), datetime(2010, 12, 1, 10, tzinfo=UTC))


def test_a_sale_is_in_the_24_days_that_slide_over_it(retail: TopologyTestDriver) -> None:
    sale(retail, "09:30", 2)
    rows = retail.windows("sold_daily", "tea")
    assert len(rows) == 24
    assert rows[0]["window_start"] == datetime(2010, 11, 30, 10, tzinfo=UTC)
    assert {row["sold"] for row in rows} == {2}


def test_price_changes_are_those_in_log_order_not_repeats(retail: TopologyTestDriver) -> None:
    for at, price in [("09:00", "2.50"), ("10:00", "2.50"), ("11:00", "2.75")]:
        sale(retail, at, 1, price)
    assert [p.value for p in retail.read_output("price_changes")] == [{"price": Decimal("2.750")}]


# -- time -----------------------------------------------------------------------------------------------------------------------------


def test_stream_time_is_the_running_maximum_of_a_partition(retail: TopologyTestDriver) -> None:
    assert retail.stream_time("sales") is None
    sale(retail, "10:00", 1)
    sale(retail, "09:00", 1)
    sale(retail, "08:00", 1, partition=1)
    assert retail.stream_time("sales") == datetime(2010, 12, 1, 10, tzinfo=UTC)
    assert retail.stream_time("sales", 1) == datetime(2010, 12, 1, 8, tzinfo=UTC)


def test_an_advance_makes_what_comes_after_it_late_and_never_turns_back(retail: TopologyTestDriver) -> None:
    sale(retail, "09:00", 1)
    retail.advance("sales", "2010-12-01T12:00:00Z")
    retail.advance("sales", "2010-12-01T11:00:00Z")
    assert retail.stream_time("sales") == datetime(2010, 12, 1, 12, tzinfo=UTC)
    sale(retail, "09:01", 1)
    assert [d.offset for d in retail.dropped() if d.node == "revenue_hourly"] == [1]


def test_times_can_be_datetimes_milliseconds_or_text(app: wt.App) -> None:
    app.topic("t", value="x INT").stream().group_by_key().agg(n=wt.count()).materialized_as("n")
    driver = TopologyTestDriver(app)
    given = [datetime(2024, 1, 1, tzinfo=UTC), 1_704_067_200_000, "2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00"]
    assert {driver.pipe_input("t", "k", {"x": 1}, timestamp=when).timestamp for when in given} == {datetime(2024, 1, 1, tzinfo=UTC)}  # type: ignore[arg-type]


@pytest.mark.parametrize("when", ["2024-01-01T00:00:00", datetime(2024, 1, 1)])
def test_a_time_without_zone_is_refused(retail: TopologyTestDriver, when: str | datetime) -> None:
    with pytest.raises(SchemaError, match="has no time zone"):
        retail.pipe_input("sales", "tea", {}, timestamp=when)


# -- tables and changes -----------------------------------------------------------------------------------------------------------------


def test_a_tombstone_deletes_a_row_of_a_topics_table_and_is_published(app: wt.App) -> None:
    app.topic("items", key="sku STRING", value="stock INT").table().materialized_as("items").to_stream().to("items_out")
    driver = TopologyTestDriver(app)
    driver.pipe_input("items", "tea", {"stock": 1}, timestamp=1)
    driver.pipe_input("items", "tea", None, timestamp=2)
    driver.pipe_input("items", "tea", None, timestamp=3)
    assert driver.table("items") == {}
    assert [(c.old, c.new) for c in driver.changes("items")] == [(None, {"stock": 1}), ({"stock": 1}, None)]
    assert [p.value for p in driver.read_output("items_out")] == [{"stock": 1}, None]


def test_changes_have_old_and_new_rows_one_for_each_record(app: wt.App) -> None:
    app.topic("t", value="x INT").stream().group_by_key().agg(s=wt.sum("x")).materialized_as("sums")
    driver = TopologyTestDriver(app)
    driver.pipe_input("t", "k", {"x": 2}, timestamp=1)
    driver.pipe_input("t", "k", {"x": 0}, timestamp=2)
    moments = [datetime(1970, 1, 1, 0, 0, 0, ms * 1000, tzinfo=UTC) for ms in (1, 2)]
    assert driver.changes("sums") == [Change("k", None, {"s": 2}, moments[0]), Change("k", {"s": 2}, {"s": 2}, moments[1])]


def test_keys_of_several_columns_are_tuples(app: wt.App) -> None:
    pairs = app.topic("pairs", key="a STRING, b INT", value="x INT").stream()
    pairs.group_by_key().agg(n=wt.count()).materialized_as("n")
    driver = TopologyTestDriver(app)
    driver.pipe_input("pairs", ("k", 1), {"x": 1}, timestamp=1)
    driver.pipe_input("pairs", {"a": "k", "b": 1}, {"x": 1}, timestamp=1)
    assert driver.table("n") == {("k", 1): {"a": "k", "b": 1, "n": 2}}


def test_every_type_of_value_comes_back_as_it_went_in(app: wt.App) -> None:
    types = app.topic("types", value="i INT, d DECIMAL(9,2), f DOUBLE, s STRING, y BINARY, b BOOLEAN, t TIMESTAMP, a DATE, l ARRAY<INT>, "
                                     "m MAP<STRING, INT>, r STRUCT<x: INT>")  # fmt: skip
    types.stream().to("copy")
    driver = TopologyTestDriver(app)
    at = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC)
    row = {"i": 1, "d": Decimal("1.50"), "f": 0.1, "s": "ä'\"", "y": b"\x00\xff", "b": True, "t": at, "a": at.date(), "l": [1, None],
           "m": {"k": 1}, "r": {"x": None}}  # fmt: skip
    driver.pipe_input("types", None, row, timestamp=1)
    (copy,) = driver.read_output("copy")
    assert copy == Published(None, row, datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC))


def test_a_map_that_is_published_is_read_whatever_its_keys_are() -> None:
    app = wt.App("shop")
    stream = app.topic("sales", value="qty INT").stream()
    stream.map_values(n="map(1, 'a')", day="map(DATE '2024-03-01', qty)", sold="map(TRUE, qty)").to("maps")
    driver = TopologyTestDriver(app)
    driver.pipe_input("sales", "tea", {"qty": 2}, timestamp=0)
    (sent,) = driver.read_output("maps")
    assert sent.value == {"n": {1: "a"}, "day": {date(2024, 3, 1): 2}, "sold": {True: 2}}


def test_broken_bytes_go_to_quarantine_with_the_topics_place_and_the_rest_goes_on(app: wt.App) -> None:
    app.topic("t", value="x INT").stream().group_by_key().agg(n=wt.count()).materialized_as("n")
    driver = TopologyTestDriver(app)
    driver.pipe_input("t", "k", b"{broken", timestamp=1)
    driver.pipe_input("t", "k", {"x": 1}, timestamp=1)
    (refused,) = driver.quarantine()
    assert (refused.node, refused.record.value, refused.record.offset) == ("topic", b"{broken", 0)
    assert refused.location.startswith("tests/unit/test_driver.py:")
    assert driver.table("n")["k"]["n"] == 1


# -- errors ---------------------------------------------------------------------------------------------------------------------------


def test_errors_name_what_there_is(retail: TopologyTestDriver) -> None:
    with pytest.raises(DefinitionError, match="app 'retail' reads no topic 'sale'; it reads receipts, sales"):
        retail.pipe_input("sale", "tea", {}, timestamp=0)
    with pytest.raises(
        DefinitionError, match="app 'retail' has no table 'stock'; it has inventory, prices, customers, revenue_hourly, sold"
    ):
        retail.table("stock")
    with pytest.raises(DefinitionError, match="app 'retail' writes no topic 'reorder'; it writes reorders, price_changes"):
        retail.read_output("reorder")
    with pytest.raises(DefinitionError, match=r"table 'inventory' has no windows; read it with table\('inventory'\)"):
        retail.windows("inventory", "tea")
    with pytest.raises(SchemaError, match=r"value of topic 'sales' has no column qty; it has `invoice_no` STRING"):
        retail.pipe_input("sales", "tea", {"qty": 1}, timestamp=0)
    with pytest.raises(SchemaError, match=r"topic 'sales' has 1 key column\(s\)"):
        retail.pipe_input("sales", ("tea", 1), {}, timestamp=0)
    plain = wt.App("plain")
    plain.topic("t", value="x INT").stream().to("out")
    with pytest.raises(DefinitionError, match=r"topic 't': say timestamp="):
        TopologyTestDriver(plain).pipe_input("t", "tea", None)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"timestamp": 1.5}, "1.5 is no time; give an aware datetime"),
        ({"timestamp": date(2024, 3, 1)}, "is no time; give an aware datetime"),
        ({"timestamp": True}, "True is no time"),
        ({"timestamp": 10**18}, "outside the years 1 to 9999"),
        ({"timestamp": "0001-01-01T00:00:00+05:00"}, "outside the years 1 to 9999"),
        ({"headers": {"h": 5}}, "give texts or bytes by name; got 'h': 5"),
        ({"headers": [("h", "x")]}, "give texts or bytes by name"),
        ({"value": {"m": {(1, 2): 3}}}, "can't be written as JSON: keys must be"),
        ({"value": {1: 2}}, "value of topic 't' has no column 1; it has `m` MAP"),
        ({"partition": "0"}, "partition of topic 't': give a whole number, 0 or more; got '0'"),
        ({"partition": -1}, "0 or more; got -1"),
        ({"offset": "0"}, "offset in topic 't': give a whole number"),
    ],
)
def test_input_of_another_kind_is_refused_in_our_words(given: dict[str, Any], wanted: str) -> None:
    driver = TopologyTestDriver(passed_on("m MAP<STRING, INT>"))
    with pytest.raises(SchemaError, match=re.escape(wanted)):
        driver.pipe_input("t", **{"key": "a", "value": {}, "timestamp": 0, **given})
    if "timestamp" in given:
        with pytest.raises(SchemaError, match=re.escape(wanted)):
            driver.advance("t", given["timestamp"])
        with pytest.raises(SchemaError, match=re.escape(wanted)):
            TopologyTestDriver(passed_on("x INT"), wall_clock=given["timestamp"])


@pytest.mark.parametrize("partitions", [{"t": "2"}, {"t": 0}, {"t": -1}, {"t": True}, ["t"]])
def test_a_topic_has_a_number_of_partitions(partitions: Any) -> None:
    with pytest.raises(DefinitionError, match=r"partitions.* got"):
        TopologyTestDriver(passed_on("x INT"), partitions=partitions)


def test_a_driver_drives_an_app() -> None:
    with pytest.raises(DefinitionError, match="TopologyTestDriver wants an App; got 'a'"):
        TopologyTestDriver("a")  # type: ignore[arg-type]


def test_a_sum_that_leaves_its_type_stops_at_the_record_that_made_it_so() -> None:
    app = wt.App("shop")
    app.topic("t", key="k STRING", value="n BIGINT").stream().group_by_key().agg(n=wt.sum("n")).materialized_as("sums")
    driver = TopologyTestDriver(app)
    driver.pipe_input("t", "a", {"n": 2**63 - 1}, timestamp=0)
    with pytest.raises(JobError, match=r"topic 't', partition 0, offset 1: a sum has come to .* no BIGINT"):
        driver.pipe_input("t", "a", {"n": 1}, timestamp=0)


def test_a_column_that_is_left_out_is_null_in_every_format() -> None:
    driver = TopologyTestDriver(passed_on("x STRING", value_format="string"))
    driver.pipe_input("t", {}, {}, timestamp=0)
    assert [(sent.key, sent.value) for sent in driver.read_output("out")] == [(None, None)]


def passed_on(value: str, **named: Any) -> wt.App:
    app = wt.App("shop")
    app.topic("t", value=value, **named).stream().to("out")
    return app


def test_an_offset_is_read_once(retail: TopologyTestDriver) -> None:
    retail.pipe_input("sales", "tea", None, timestamp=0, offset=5)
    with pytest.raises(DefinitionError, match="offset 5 was already read in partition 0; the next is 6"):
        retail.pipe_input("sales", "tea", None, timestamp=0, offset=5)


def hourly() -> wt.App:
    app = wt.App("shop")
    sales = app.topic("sales", key="k STRING", value="n INT").stream().group_by_key()
    sales.windowed_by(wt.tumbling(hours=1), emit="on_close").agg(n=wt.count()).materialized_as("hourly").to_stream().to("out")
    return app


def test_a_partition_that_is_known_from_the_start_is_waited_for_and_no_row_is_final_twice() -> None:
    driver = TopologyTestDriver(hourly(), partitions={"sales": 2})
    for key, minute, partition in (("a", 10, 0), ("b", 70, 0), ("c", 5, 1)):
        driver.pipe_input("sales", key, {"n": 1}, timestamp=minute * 60_000, partition=partition)
    assert driver.read_output("out") == []
    driver.pipe_input("sales", "c", {"n": 1}, timestamp=75 * 60_000, partition=1)
    assert sorted(sent.key[0] for sent in driver.read_output("out")) == ["a", "c"]


def test_a_partition_that_comes_after_rows_that_are_final_without_it_is_refused() -> None:
    driver = TopologyTestDriver(hourly())
    driver.pipe_input("sales", "a", {"n": 1}, timestamp=10 * 60_000)
    driver.pipe_input("sales", "c", {"n": 1}, timestamp=5 * 60_000, partition=1)
    driver.pipe_input("sales", "b", {"n": 1}, timestamp=70 * 60_000)
    driver.advance("sales", 70 * 60_000, partition=1)
    assert len(driver.read_output("out")) == 2
    for read in (lambda: driver.pipe_input("sales", "c", timestamp=0, partition=2), lambda: driver.advance("sales", 0, partition=2)):
        with pytest.raises(DefinitionError, match=r"partition 2 comes after rows that are final .* partitions={'sales': 3}"):
            read()
    with pytest.raises(DefinitionError, match=r"topic 'sales' has 2 partition\(s\), and none that is 2; .* partitions={'sales': 3}"):
        TopologyTestDriver(hourly(), partitions={"sales": 2}).pipe_input("sales", "c", timestamp=0, partition=2)
    with pytest.raises(DefinitionError, match="reads no topic 'sale'"):
        TopologyTestDriver(hourly(), partitions={"sale": 2})


def test_a_batch_that_fails_leaves_the_driver_usable(retail: TopologyTestDriver) -> None:
    with pytest.raises(DefinitionError, match="batches don't nest"), retail.batch(), retail.batch():
        pass
    receipt(retail, "08:00", 1)
    assert retail.table("inventory")["tea"]["on_hand"] == 1


def test_a_hundred_tests_of_an_app_take_less_than_ten_seconds() -> None:
    started = time.process_time()
    for _ in range(100):
        driver = TopologyTestDriver(apps.retail())
        for hour in range(5):
            receipt(driver, f"1{hour}:00", 3)
            sale(driver, f"1{hour}:30", 5)
        assert driver.table("inventory")["tea"]["on_hand"] == -10
    assert time.process_time() - started < 10
