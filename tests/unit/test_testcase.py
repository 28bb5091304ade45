"""A row's story written as a test: what is written runs and passes, needs no more records than the row does, and fails when it should."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from watertable.errors import KeyMismatch, StoreError
from watertable.project import load_apps
from watertable.records import Advance, Record
from watertable.settings import Settings
from watertable.tools import keytext
from watertable.tools.explain import explain
from watertable.tools.testcase import MOST, as_test

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SHOP = """
import watertable as wt

app = wt.App("shop")
moves = app.topic("moves", key="sku STRING", value="qty BIGINT, shelf INT").stream()
stock = moves.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
hourly = moves.group_by("sku", "shelf").windowed_by(wt.tumbling(hours=1, grace=wt.minutes(10))).agg(n=wt.count()).materialized_as("hourly")
prices = app.topic("prices", key="sku STRING", value="price DECIMAL(9,2), since TIMESTAMP", timestamp="since")
prices = prices.table().materialized_as("prices")
priced = moves.join(prices, on="sku", worth="qty * right.price", shelf="shelf")
worth = priced.group_by("shelf").agg(worth=wt.sum("worth")).materialized_as("worth")
alarms = stock.to_stream().filter("new.qty < 0").group_by("sku").agg(n=wt.count()).materialized_as("alarms")
visits = moves.group_by_key().windowed_by(wt.sessions(gap=wt.minutes(6), grace=wt.hours(9))).agg(n=wt.count()).materialized_as("visits")
long = visits.group_by("n").count().materialized_as("long")
names = app.topic("names", key="a INT, b STRING", value="name STRING", value_format="string").table().materialized_as("names")
items = app.topic("items", key="sku STRING", value="at TIMESTAMP, name STRING").table().materialized_as("items")
"""

BASKETS = """
import watertable as wt

def visit(record, context):
    basket = context.store("basket")
    if record.value["what"] == "order":
        basket.delete()
        context.cancel("remind")
        return
    basket.put({"items": (basket.get() or {"items": 0})["items"] + 1})
    hurry = record.value["what"] == "hurry"
    context.schedule("remind", at=record.timestamp + wt.minutes(3 if hurry else 30), by="stream_time" if hurry else "wall_clock")

def remind(record, context):
    row = context.store("basket").get()
    context.forward({"said": f"{row['items']} at {record.timestamp:%H:%M}, {record.stream_time:%H:%M:%S.%f}"})

app = wt.App("baskets")
views = app.topic("views", key="who STRING", value="what STRING").stream()
stores = {"basket": wt.key_value_store("items INT")}
told = views.process_values(visit, value="said STRING", stores=stores, punctuators={"remind": remind})
told.group_by_key().agg(said=wt.collect_list("said")).materialized_as("told")
"""

SOLD = """
import watertable as wt

app = wt.App("sold")
seen, bought = (app.topic(name, key="sku STRING", value="n BIGINT").stream() for name in ("seen", "bought"))
both = seen.left_join(bought, within=wt.minutes(5), n="right.n")
both.group_by_key().agg(seen=wt.count(), bought=wt.sum("n")).materialized_as("sold")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.watertable]\n")
    (tmp_path / "assets" / "shop").mkdir(parents=True)
    (tmp_path / "assets" / "shop" / "app.py").write_text(SHOP)
    (tmp_path / "assets" / "shop" / "baskets.py").write_text(BASKETS)
    (tmp_path / "assets" / "shop" / "sold.py").write_text(SOLD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(topic: str, offset: int, key: object, value: object, minutes: float = 0, partition: int = 0) -> Record:
    data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
    return Record(
        topic, partition, offset, T0 + timedelta(minutes=minutes), key.encode() if isinstance(key, str) else json.dumps(key).encode(), data
    )


RECORDS = [
    record("moves", 0, "a", {"qty": 5, "shelf": 1}), record("moves", 1, "b", {"qty": 1, "shelf": 1}, 1),
    record("moves", 2, "a", b"{broken", 2), record("prices", 0, "a", {"price": "2.50", "since": "2026-01-01T00:03:00Z"}),
    record("prices", 1, "c", {"price": "9", "since": "2026-01-01T00:03:00Z"}),
    record("moves", 3, "a", {"qty": -7, "shelf": 2}, 4), record("moves", 4, "a", {"qty": 1, "shelf": 1}, 5),
    record("prices", 2, "a", {"price": "3.00", "since": "2026-01-01T00:06:00Z"}), record("moves", 5, "a", {"qty": 4, "shelf": 2}, 7),
    record("moves", 6, "z", {"qty": 1, "shelf": 9}, 200), record("moves", 7, "a", {"qty": 9, "shelf": 1}, 8),
    record("names", 0, {"a": 1, "b": 'it\'s "x"'}, b"first"), record("names", 1, {"a": 1, "b": 'it\'s "x"'}, None, 1),
    record("names", 2, {"a": 2, "b": "y"}, "zw\n\u00f6lf".encode(), 2),
]  # fmt: skip


def written(project: Path, table: str, key: list[str], records: list[Record] = RECORDS) -> str:
    topology = load_apps(Settings.load(project)).app("shop").topology
    wanted = topology.table(table)
    told = explain(topology, wanted, keytext.read(wanted, key), records)
    return as_test(topology, wanted, told, records, f"watertable explain {table} --as-test")


def run(project: Path, text: str) -> subprocess.CompletedProcess[str]:
    (project / "test_story.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_story.py"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_written_runs_and_passes_and_fails_when_the_code_changes(project: Path) -> None:
    text = written(project, "stock", ["a"])
    assert run(project, text).returncode == 0
    (project / "assets" / "shop" / "app.py").write_text(SHOP.replace('qty=wt.sum("qty")', 'qty=wt.max("qty")'))
    failed = run(project, text)
    assert failed.returncode == 1
    assert "AssertionError" in failed.stdout or "assert" in failed.stdout


@pytest.mark.parametrize(
    ("table", "key", "piped"),
    [
        ("stock", ["a"], 6),  # five moves of it, and the one that couldn't be read
        ("hourly", ["a", "1"], 3),  # two in time, one too late; of which shelf the broken one is, nobody knows
        ("worth", ["2"], 4),  # two moves, and the price that each of them met
        ("alarms", ["a"], 4),  # what made the stock that fell below zero, but not what came after the last alarm
        ("names", ["1", 'it\'s "x"'], 2),
        ("names", ["2"], 1),
        ("visits", ["a"], 6),
        ("long", ["1"], 4),  # those whose session was of one record, and what made it longer
    ],
)
def test_a_test_holds_the_row_and_pipes_no_more_records_than_it_needs(project: Path, table: str, key: list[str], piped: int) -> None:
    text = written(project, table, key)
    namespace: dict[str, object] = {}
    exec(compile(text, "test_story.py", "exec"), namespace)
    tests = [made for name, made in namespace.items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()  # type: ignore[operator]
    assert text.count("driver.pipe_input(") == piped
    assert max(map(len, text.splitlines())) <= 140


def test_stream_time_is_moved_on_only_where_the_row_depends_on_it(project: Path) -> None:
    assert 'driver.advance("moves", "2026-01-01T03:20:00Z")' in written(project, "hourly", ["a", "1"])
    assert "advance" not in written(project, "stock", ["a"])


def test_a_row_that_is_gone_is_held_to_be_gone(project: Path) -> None:
    assert "not in rows" in written(project, "names", ["1"])


def test_what_no_record_made_and_what_too_many_made_is_refused_with_the_way_out(project: Path) -> None:
    with pytest.raises(StoreError, match="nothing to test"):
        written(project, "stock", ["nobody"])
    with pytest.raises(KeyMismatch, match="has the key"):
        written(project, "stock", ["a", "b"])
    with pytest.raises(StoreError, match="watertable bisect"):
        written(project, "stock", ["a"], [record("moves", n, "a", {"qty": 1}, n / 1000) for n in range(MOST + 1)])


def test_what_clocks_called_is_written_with_the_clocks_that_the_row_needs(project: Path) -> None:
    topology = load_apps(Settings.load(project)).app("baskets").topology
    wanted, clock = topology.table("told"), T0 + timedelta(hours=9)
    viewed = [
        ("ann", "tea", 0),
        ("bob", "tea", 1),
        ("ann", "tea", 2),
        ("eve", "hurry", 3),
        ("bob", "order", 5),
        ("eve", "tea", 7),
        ("ann", "tea", 9),
    ]
    views = [record("views", n, who, {"what": what}, minutes) for n, (who, what, minutes) in enumerate(viewed)]
    ticks = [(5, 5, 25), (6, 5, 31), (7, 9, 45)]  # before which offset, the stream time there, and the clock's minutes
    recorded = [Advance("views", 0, n, T0 + timedelta(minutes=st, microseconds=1), clock + timedelta(minutes=m)) for n, st, m in ticks]
    texts = {}
    for who in ("ann", "bob", "eve"):
        told = explain(topology, wanted, keytext.read(wanted, [who]), views, recorded)
        if told.steps:
            texts[who] = as_test(topology, wanted, told, views, "watertable explain told --as-test", recorded)
    assert sorted(texts) == ["ann", "eve"], "bob ordered before anybody noticed"
    for text in texts.values():
        done = run(project, text)
        assert done.returncode == 0, done.stdout
    calls = [line.split("(")[0].strip() for line in texts["ann"].splitlines() if line.startswith("    driver.")]
    assert calls == [
        f"driver.{c}" for c in ("pipe_input", "pipe_input", "advance", "advance_wall_clock", "pipe_input", "advance_wall_clock")
    ]


def test_a_partition_without_a_record_holds_in_the_test_what_it_holds_in_the_app(project: Path) -> None:
    topology = load_apps(Settings.load(project)).app("sold").topology
    sold, there = topology.table("sold"), [("seen", 0), ("seen", 1), ("bought", 0), ("bought", 1)]
    records = [
        record("seen", 0, "a", {"n": 1}), record("bought", 0, "a", {"n": 7}, 1), record("seen", 1, "a", {"n": 1}, 30),
        record("bought", 1, "a", {"n": 1}, 90), record("seen", 2, "a", {"n": 1}, 91), record("seen", 0, "z", {"n": 1}, 90, partition=1),
    ]  # fmt: skip
    for last, seen in (([], 2), ([record("bought", 0, "z", {"n": 1}, 90, partition=1)], 3)):
        told = explain(topology, sold, keytext.read(sold, ["a"]), records + last, (), there)
        text = as_test(topology, sold, told, records + last, "watertable explain", (), there)
        assert f'rows["a"] == {{"sku": "a", "seen": {seen}, "bought": 8}}' in text
        assert 'partitions={"bought": 2, "seen": 2}' in text
        assert ('driver.advance("bought", ' in text) == bool(last)
        namespace: dict[str, object] = {}
        exec(compile(text, "test_story.py", "exec"), namespace)
        namespace["test_the_story_of_sold_a"]()  # type: ignore[operator]


WAITS = {
    "windows that close": 'bumps.group_by_key().windowed_by(wt.tumbling(minutes=1), emit="on_close").agg(n=wt.count())',
    "rows that settle": 'bumps.group_by_key().count().materialized_as("few").suppress(wt.until_time_limit(wt.minutes(1)))',
    "rows that expire": 'bumps.group_by_key().count().materialized_as("few").ttl(wt.minutes(1))',
}


@pytest.mark.parametrize("beside", WAITS.values(), ids=WAITS)
def test_a_table_beside_it_that_waits_for_every_partition_stands_in_the_way_of_no_test(project: Path, beside: str) -> None:
    (project / "assets" / "shop" / "bumps.py").write_text(
        'import watertable as wt\n\napp = wt.App("bumps")\nbumps = app.topic("bumps", key="k STRING", value="x INT").stream()\n'
        f'bumps.group_by("x").count().materialized_as("by_x")\n{beside}.materialized_as("beside")\n'
    )
    records = [record("bumps", 0, "a", {"x": 1}), record("bumps", 1, "a", {"x": 1}, 50), record("bumps", 0, "b", {"x": 1}, 60, partition=1)]
    topology = load_apps(Settings.load(project)).app("bumps").topology
    by_x, there = topology.table("by_x"), [("bumps", 0), ("bumps", 1)]
    told = explain(topology, by_x, keytext.read(by_x, ["1"]), records, (), there)
    text = as_test(topology, by_x, told, records, "watertable explain", (), there)
    assert 'rows[1] == {"x": 1, "count": 3}' in text
    namespace: dict[str, object] = {}
    exec(compile(text, "test_story.py", "exec"), namespace)
    namespace["test_the_story_of_by_x_1"]()  # type: ignore[operator]


@pytest.mark.parametrize("text", ["it's", "m\u00b2", 'a """ b', "\u00e9 'x' \"y\"\\", "nul \x00 and \u2028"])
def test_whatever_stands_in_a_record_the_file_runs(project: Path, text: str) -> None:
    topology = load_apps(Settings.load(project)).app("shop").topology
    items, records = topology.table("items"), [record("items", 0, text, {"at": "2026-01-01T00:03:00Z", "name": text})]
    told = explain(topology, items, keytext.read(items, [text]), records)
    file = as_test(topology, items, told, records, f"watertable explain items --key '{text}' --as-test".replace("\0", ""))
    namespace: dict[str, object] = {}
    exec(compile(file, "test_story.py", "exec"), namespace)
    ((_, test),) = [(name, made) for name, made in namespace.items() if name.startswith("test_")]
    test()  # type: ignore[operator]
