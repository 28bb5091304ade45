"""Laws of processors: per key in log order, a call as a whole or not at all, whatever the batches."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

import watertable as wt
from tests.spark.runs import cut
from watertable import processing
from watertable.dsl.streams import Processed, Stream
from watertable.errors import DefinitionError, DuplicateName, ExpressionError, SchemaError
from watertable.interpreter import Interpreter, visits
from watertable.plan import nodes, plan
from watertable.plan.lineage import column_lineage, describe, mermaid
from watertable.plan.purity import Purity, purity_of
from watertable.plan.windows import EPOCH
from watertable.processing import Entries, StoreType, VersionedStore, WindowStore
from watertable.records import Record
from watertable.testing import TopologyTestDriver

PAGES = {"pages": wt.key_value_store("n INT, since TIMESTAMP", key="page STRING"), "all": wt.key_value_store("n BIGINT")}
CHILDREN = {"fresh": "page STRING, n BIGINT", "often": "page STRING, n INT"}


def visit(record: wt.Record, context: wt.Context) -> None:
    """Count each visitor's pages; refuse a page that is called so, after something was put."""
    total, pages = context.store("all"), context.store("pages")
    n = (total.get() or {"n": 0})["n"] + 1
    total.put({"n": n})
    if record.value is None:
        for page, _ in pages.range():
            pages.delete(page)
        return
    page = record.value["page"]
    known = pages.get(page)
    pages.put({"n": (known or {"n": 0})["n"] + 1, "since": known["since"] if known else record.timestamp}, page)
    if known is None:
        context.forward({"page": page, "n": n}, to="fresh")
    elif known["n"] > 1:
        context.forward({"page": page, "n": known["n"] + 1}, to="often")
    if page == "refused":
        raise ValueError("no such page")


def site(**named: Any) -> tuple[wt.App, Stream, Processed]:
    app = wt.App("site")
    views = app.topic("views", key="who STRING", value="page STRING").stream()
    return app, views, views.process(visit, stores=PAGES, children=CHILDREN, **named)


def tale(number: int, partitions: int = 2) -> list[Record]:
    """Tell of three visitors, each in a partition of its own choice, with times in any order."""
    rng, made, offsets = random.Random(3), [], [0] * partitions
    for n in range(number):
        who = rng.choice("abc")
        partition = ord(who) % partitions
        page = rng.choice(["home", "cart", "help", "refused", None])
        value = None if page is None else f'{{"page": "{page}"}}'.encode()
        at = EPOCH + wt.seconds(n + rng.choice([0, 0, -3, 5, 40]) + 50)
        made.append(Record("views", partition, offsets[partition], at, who.encode(), value))
        offsets[partition] += 1
    return made


def test_a_processor_sees_what_its_stores_keep_of_the_key_and_forwards_to_named_children() -> None:
    app, _, made = site()
    made["fresh"].group_by_key().agg(n=wt.count(), pages=wt.collect_list("page")).materialized_as("fresh")
    made["often"].to("often")
    driver = TopologyTestDriver(app)
    for n, (who, page) in enumerate([("ann", "home"), ("ann", "cart"), ("bob", "home"), ("ann", "home"), ("ann", "home")]):
        driver.pipe_input("views", who, {"page": page}, timestamp=n * 1000)
    assert driver.table("all") == {"ann": {"who": "ann", "n": 4}, "bob": {"who": "bob", "n": 1}}
    assert driver.table("pages")["ann", "home"] == {"who": "ann", "page": "home", "n": 3, "since": EPOCH}
    assert driver.table("fresh")["ann"]["pages"] == ["home", "cart"]
    assert [(s.key, s.value) for s in driver.read_output("often")] == [("ann", {"page": "home", "n": 3})]
    driver.pipe_input("views", "ann", None, timestamp=9000)
    assert list(driver.table("pages")) == [("bob", "home")]


def test_a_record_on_which_it_raises_is_quarantined_and_changes_nothing() -> None:
    app, _, made = site()
    made["fresh"].to("fresh")
    driver = TopologyTestDriver(app)
    for page in ["home", "refused", "home"]:
        driver.pipe_input("views", "ann", {"page": page}, timestamp=1)
    assert driver.table("all")["ann"]["n"] == 2
    assert list(driver.table("pages")) == [("ann", "home")]
    (refused,) = driver.quarantine()
    assert (refused.node, refused.record.value) == ("process", b'{"page": "refused"}')
    assert refused.reason == "visit raises ValueError: no such page"
    assert "test_processors.py" in refused.location
    assert len(driver.read_output("fresh")) == 1


def test_a_record_without_a_key_is_dropped_and_counted() -> None:
    app, _, _ = site()
    driver = TopologyTestDriver(app)
    driver.pipe_input("views", None, {"page": "home"}, timestamp=1)
    assert [(d.node, d.reason) for d in driver.dropped()] == [("process", "null_key")]


def test_no_cut_between_batches_changes_a_row_or_what_is_forwarded() -> None:
    records, rng = tale(80), random.Random(1)
    app, _, made = site()
    for child in CHILDREN:
        made[child].to(child)
    topology = app.topology()
    told = []
    for cuts in (0, 1, 7, 30):
        engine = Interpreter(topology)
        for batch in cut(records, rng, cuts):
            engine.read(batch)
        outputs = sorted((o.topic, *o.place, o.value or b"") for o in engine.outputs)
        told.append((engine.tables, outputs, sorted(r.record.offset for r in engine.quarantine)))
    assert told[1:] == told[:1] * 3
    assert told[0][2]


def test_it_is_pure_where_each_key_is_of_one_partition_or_nothing_is_kept() -> None:
    _, views, made = site()
    assert purity_of(made["fresh"].node) is Purity.PURE
    by_page = views.select_key("page")
    kept = by_page.process_values(visit, value="n INT", stores={"other": wt.key_value_store("n INT")})
    assert purity_of(kept.node) is Purity.ARRIVAL
    assert purity_of(by_page.process_values(visit, value="n INT").node) is Purity.PURE


def test_in_several_partitions_of_a_key_what_was_put_last_stays_and_not_what_is_last_in_log_order() -> None:
    app, _, _ = site()
    engine = Interpreter(app.topology())
    for partition, second in [(0, 100), (1, 5), (0, 200)]:
        offset = 1 if second == 200 else 0
        engine.read([Record("views", partition, offset, EPOCH + wt.seconds(second), b"a", b'{"page": "home"}')])
    assert engine.tables["all"]["a",]["n"] == 3


def test_what_is_read_or_given_can_be_changed_without_effect_and_what_is_put_has_the_declared_types() -> None:
    def odd(record: wt.Record, context: wt.Context) -> None:
        store = context.store("odd")
        row = store.get()
        if row is not None:
            row["tags"].append("changed")
            assert record.value is not None
            record.value["page"] = "changed"
            context.forward(store.get())
        mine = {"tags": ["a"], "m": {"x": 1}, "price": 1, "s": {"at": record.timestamp}}
        store.put(mine)
        mine["tags"] = ["b"]

    app = wt.App("site")
    views = app.topic("views", key="who STRING", value="page STRING").stream()
    kinds = "tags ARRAY<STRING>, m MAP<STRING, INT>, price DECIMAL(9,2), s STRUCT<at: TIMESTAMP, n: INT>"
    views.process_values(odd, value=kinds, stores={"odd": wt.key_value_store(kinds)}).to("out")
    views.to_table().materialized_as("last")
    driver = TopologyTestDriver(app)
    with driver.batch():
        for n in range(2):
            driver.pipe_input("views", "ann", {"page": "home"}, timestamp=n)
    (sent,) = driver.read_output("out")
    assert sent.value is not None
    assert (sent.value["tags"], str(sent.value["price"]), sent.value["m"]) == (["a"], "1.00", {"x": 1})
    assert driver.table("last")["ann"]["page"] == "home"


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda c: c.store("kept").put({"m": 1}), "no column m; it has n"),
        (lambda c: c.store("kept").put({"n": "x"}), "Arrow"),
        (lambda c: c.store("kept").put(1), "a dict of columns wanted; got int"),
        (lambda c: c.store("kept").put({"n": 1}, "key"), "a key of 0 column"),
        (lambda c: c.store("keyed").get(None), "a key without a null"),
        (lambda c: c.store("keyed").put({"at": datetime(2024, 1, 1)}, "a"), "has no time zone"),
        (lambda c: c.store("other"), "no store 'other'; there are kept, keyed"),
        (lambda c: c.forward({"n": 1}), "children: one, two"),
        (lambda c: c.forward({"n": 1}, to="three"), "children: one, two"),
        (lambda c: c.forward({"m": 1}, to="one"), "no column m; it has n"),
        (lambda c: [c.forward({"n": 1}, to="one") for _ in range(65537)], "more than 65536 rows"),
    ],
)
def test_what_does_not_fit_refuses_the_record_and_says_why(act: Any, reason: str) -> None:
    def wrong(record: wt.Record, context: wt.Context) -> None:
        act(context)

    app = wt.App("site")
    stores = {"kept": wt.key_value_store("n INT"), "keyed": wt.key_value_store("at TIMESTAMP", key="k STRING")}
    app.topic("views", value="n INT").stream().process(wrong, stores=stores, children={"one": "n INT", "two": "n INT"}, version="1")
    driver = TopologyTestDriver(app)
    driver.pipe_input("views", "a", {"n": 1}, timestamp=1)
    (refused,) = driver.quarantine()
    assert reason in refused.reason


def test_a_store_lists_its_entries_in_the_order_of_their_keys_with_what_was_just_put() -> None:
    found: list[Any] = []

    def listing(record: wt.Record, context: wt.Context) -> None:
        store = context.store("kept")
        for n in (3, 1, 2):
            store.put({"v": n}, n, "x")
        found.append(([key for key, _ in store.range((2, "a"))], store.delete(2, "x"), [row["v"] for _, row in store.range()]))
        found.append((store.get(2, "x"), [key for key, _ in store.range(high=(1, "x"))]))

    app = wt.App("site")
    views = app.topic("views", value="n INT").stream()
    views.process(listing, stores={"kept": wt.key_value_store("v INT", key="a INT, b STRING")}, version="1")
    TopologyTestDriver(app).pipe_input("views", "a", {"n": 1}, timestamp=1)
    assert found == [([(2, "x"), (3, "x")], {"v": 2}, [1, 3]), (None, [(1, "x")])]


def test_what_a_definition_gets_wrong_is_said_where_it_is() -> None:
    app, views, _ = site()
    store = {"s": wt.key_value_store("n INT")}

    def one(record: wt.Record) -> None: ...

    async def later(record: wt.Record, context: wt.Context) -> None: ...

    class Visitor:
        def __call__(self, record: wt.Record, context: wt.Context) -> None: ...

    cases: list[tuple[Any, type[Exception], str]] = [
        (
            lambda: views.process(one, stores=store),
            DefinitionError,
            r"test_processors.py:\d+: process: one.* must take \(record, context\)",
        ),
        (lambda: views.process(later, stores=store), DefinitionError, "generator or coroutine"),
        (lambda: views.process(Visitor(), stores=store), DefinitionError, "between records nothing is kept but what is in stores"),
        (lambda: views.process(visit), DefinitionError, "neither children nor stores"),
        (lambda: views.process(visit, stores={"s": "n INT"}), DefinitionError, "write wt.key_value_store"),
        (lambda: views.process(visit, stores={"a b": store["s"]}), SchemaError, "'a b'"),
        (lambda: views.process(visit, stores={"_s": store["s"]}), SchemaError, "the store's own"),
        (lambda: views.process(visit, stores={"all": store["s"]}), DuplicateName, "'all' is already defined"),
        (lambda: views.process(visit, children={"c": "n INTT"}), SchemaError, "child 'c'"),
        (lambda: views.process(visit, stores=store, version=""), DefinitionError, "version"),
        (lambda: views.process(visit, stores={"s": wt.key_value_store("n INT", key="who STRING")}), SchemaError, "after the record's"),
        (lambda: views.process(visit, stores={"s": wt.key_value_store("who INT")}), DefinitionError, "both a key and a value"),
        (lambda: wt.key_value_store("n INT", key="k DOUBLE"), ExpressionError, "makes no key"),
        (lambda: wt.key_value_store("n"), SchemaError, "no type"),
        (lambda: views.to_table().materialized_as("t").to_stream().process(visit, stores=store), DefinitionError, "these are Changes"),
    ]
    for define, kind, words in cases:
        with pytest.raises(kind, match=words):
            define()
    act = app

    def unknown(record: wt.Record, context: wt.Context) -> None:
        str(act)

    with pytest.raises(DefinitionError, match='name what the function computes: version="1"'):
        views.process(unknown, children={"c": "n INT"})


@pytest.mark.parametrize(
    ("define", "part"),
    [
        (lambda views: views.process(visit, children={"c": ""}), "child 'c'"),
        (lambda views: views.process_values(visit, value=" "), "child 'values'"),
        (lambda views: wt.key_value_store(""), "value"),
        (lambda views: wt.key_value_store("n INT", key=""), "key"),
        (lambda views: wt.window_store("", retention=wt.seconds(1)), "value"),
        (lambda views: wt.versioned_store("", history=wt.seconds(1)), "value"),
    ],
)
def test_a_child_and_a_store_have_columns_for_delta_keeps_no_rows_of_none(define: Any, part: str) -> None:
    with pytest.raises(SchemaError, match=rf"test_processors.py:\d+: {part} wants at least one column"):
        define(site()[1])


def test_a_plan_knows_a_processor_by_its_version_or_closure_and_draws_it() -> None:
    def mark(topology: plan.Topology) -> str:
        return topology.fingerprint

    same, other = site()[0].topology(), site(version="2")[0].topology()
    assert mark(same) == mark(site()[0].topology()) != mark(other)
    assert "process visit, store pages, store all (pure)" in describe(same)
    assert "|process|" in mermaid(same)
    table = same.table("pages")
    assert isinstance(table.root, nodes.Stored)
    assert {o.column for o in column_lineage(table)["n"]} == {"who", "page"}
    assert [o.column for o in column_lineage(table)["who"]] == ["who"]


def test_children_and_stores_compose_with_all_else() -> None:
    app, _, made = site()
    joined = made["fresh"].join(made.tables["all"], total="right.n", page="page")
    joined.group_by("page").agg(most=wt.max("total")).materialized_as("most")
    made.tables["pages"].to_stream().map_values(n="new.n").process_values(_double, value="n INT").to("doubled")
    made.tables["pages"].group_by("page").agg(n=wt.sum("n")).materialized_as("by_page")
    driver = TopologyTestDriver(app)
    for n, (who, page) in enumerate([("ann", "home"), ("ann", "cart"), ("bob", "home"), ("ann", "home")]):
        driver.pipe_input("views", who, {"page": page}, timestamp=n)
    assert {key: row["most"] for key, row in driver.table("most").items()} == {"home": 1, "cart": 2}
    assert {key: row["n"] for key, row in driver.table("by_page").items()} == {"home": 3, "cart": 1}
    assert [s.value for s in driver.read_output("doubled")] == [{"n": 2}, {"n": 2}, {"n": 2}, {"n": 4}]


def _double(record: wt.Record, context: wt.Context) -> None:
    if record.value is not None:
        context.forward({"n": record.value["n"] * 2})


def timed(record: wt.Record, context: wt.Context) -> None:
    """Keep what came in the last minute, and the versions of a price."""
    recent, prices = context.store("recent"), context.store("prices")
    assert record.value is not None
    n, ago = record.value["n"], record.value["ago"]
    at = None if ago is None else record.timestamp - wt.seconds(ago)
    kept = recent.put({"n": n}, "x", at=at)
    before = prices.get("tea", as_of=record.timestamp - wt.seconds(30))
    if n == 0:
        prices.delete("tea", at=at)
    else:
        prices.put({"price": n}, "tea", at=at)
    now, found = prices.get("tea"), recent.fetch("x", since=record.timestamp - wt.seconds(40))
    numbers = {"of": len(found), "sum": sum(row["n"] for _, row in found), "now": now and now["price"], "then": before and before["price"]}
    context.forward({**numbers, "kept": kept})


TIMED = "of INT, sum INT, now INT, then INT, kept BOOLEAN"
KEPT = {
    "recent": wt.window_store("n INT", retention=wt.seconds(60), key="of STRING"),
    "prices": wt.versioned_store("price INT", history=wt.seconds(60), key="item STRING"),
}


def clocked() -> tuple[wt.App, Stream]:
    app = wt.App("site")
    views = app.topic("views", key="who STRING", value="n INT, ago INT").stream()
    return app, views.process_values(timed, value=TIMED, stores=KEPT)


def test_window_stores_keep_by_time_and_versioned_ones_as_of_a_time_for_as_long_as_is_said() -> None:
    app, told_by = clocked()
    told_by.to("out")
    driver = TopologyTestDriver(app)
    for second, n, ago in [(100, 1, None), (120, 2, None), (130, 3, 25), (131, 4, 80), (150, 0, None), (155, 5, 45), (230, 6, None)]:
        driver.pipe_input("views", "ann", {"n": n, "ago": ago}, timestamp=second * 1000)
    told = [tuple(sent.value.values()) for sent in driver.read_output("out") if sent.value is not None]
    assert told == [
        (1, 1, 1, None, True),
        (2, 3, 2, None, True),
        (3, 6, 2, 1, True),  # of second 105
        (3, 6, 2, 1, False),  # of second 51, which is over
        (2, 2, None, 2, True),
        (2, 2, None, 2, True),  # of second 110: deleted since
        (1, 6, 6, None, True),
    ]
    assert [(row["at"].timestamp(), row["n"]) for row in driver.table("recent").values()] == [(230, 6)]
    versions = sorted((row["valid_from"].timestamp(), row["price"], row["deleted"]) for row in driver.table("prices").values())
    assert versions == [(230, 6, False)]


def test_a_row_as_old_as_the_retention_is_kept_and_so_is_a_version_that_was_valid_until_the_history_begins() -> None:
    found = []

    def look(record: wt.Record, context: wt.Context) -> None:
        rows, prices = context.store("rows"), context.store("prices")
        before = record.timestamp - wt.seconds(10) - wt.milliseconds(1)
        found.append([[row["n"] for _, row in rows.fetch()], prices.get(as_of=before)])
        for store in (rows, prices):
            store.put({"n": record.offset})

    app = wt.App("site")
    kept = {"rows": wt.window_store("n INT", retention=wt.seconds(10)), "prices": wt.versioned_store("n INT", history=wt.seconds(10))}
    app.topic("views", key="who STRING", value="n INT").stream().process(look, stores=kept, version="1")
    driver = TopologyTestDriver(app)
    for ms in (0, 10_000, 20_000, 30_001):
        driver.pipe_input("views", "ann", {"n": 1}, timestamp=ms)
    assert found == [[[], None], [[0], None], [[1], {"n": 0}], [[], {"n": 2}]]


@pytest.mark.parametrize("store", [WindowStore, VersionedStore])
def test_what_expires_in_one_call_is_told_in_the_order_of_its_keys_however_it_lies(store: type[Entries]) -> None:
    keys = [(of, EPOCH + wt.seconds(n)) for of in "ab" for n in range(9)]
    over = [key for key in keys if store is WindowStore or key[1] < EPOCH + wt.seconds(8)]
    now = EPOCH + wt.seconds(100)
    record, rng = processing.Record({"who": "ann"}, None, now, now, "views", 0, 1), random.Random(4)
    for _ in range(5):
        rng.shuffle(keys)
        held = {key: {"n": 1, "deleted": False} for key in keys}
        kind = StoreType("recent", (("of", pa.string()), ("at", pa.timestamp("us", "UTC"))), pa.struct([]), "", wt.seconds(10))
        assert store(kind, dict(held), record)._expired() == sorted(over)


def test_a_deletion_that_is_older_than_the_history_deletes_nothing_and_gives_nothing() -> None:
    deleted = []

    def prune(record: wt.Record, context: wt.Context) -> None:
        prices = context.store("prices")
        deleted.append([prices.delete(at=record.stream_time - ago) for ago in (wt.seconds(50), wt.seconds(5))])
        prices.put({"price": record.offset})

    app = wt.App("site")
    prices = {"prices": wt.versioned_store("price INT", history=wt.seconds(10))}
    app.topic("views", value="n INT").stream().process(prune, stores=prices, version="1")
    driver = TopologyTestDriver(app)
    for second in (0, 100):
        driver.pipe_input("views", "ann", {"n": 1}, timestamp=second * 1000)
    assert deleted == [[None, None], [None, {"price": 0}]]


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: wt.window_store("n INT", retention=wt.seconds(0)), DefinitionError, "longer than zero"),
        (lambda: wt.versioned_store("n INT", history=wt.seconds(-1)), DefinitionError, "longer than zero"),
        (lambda: wt.versioned_store("deleted INT", history=wt.seconds(1)), SchemaError, "the store's own"),
        (lambda: wt.window_store("n INT", retention=wt.seconds(1), key="at INT"), SchemaError, "the store's own"),
    ],
)
def test_what_a_store_of_times_gets_wrong_is_said_where_it_is(make: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=rf"test_processors.py:\d+: .*{words}"):
        make()


def await_order(record: wt.Record, context: wt.Context) -> None:
    """Remind of each basket that isn't ordered within ten seconds, then give it up five seconds later."""
    basket = context.store("basket")
    assert record.value is not None
    what = record.value["what"]
    if what == "order":
        basket.delete()
        context.cancel("remind")
        context.cancel("give_up")
        return
    basket.put({"items": (basket.get() or {"items": 0})["items"] + 1})
    context.schedule("remind", at=record.timestamp + wt.seconds(10))
    if what == "bad":
        raise ValueError("no such thing")


def remind(record: wt.Record, context: wt.Context) -> None:
    row = context.store("basket").get()
    context.forward({"what": "remind", "items": row and row["items"]})
    context.schedule("give_up", at=record.timestamp + wt.seconds(5))
    if row and row["items"] > 2:
        raise ValueError("too much to remind of")


def give_up(record: wt.Record, context: wt.Context) -> None:
    row = context.store("basket").delete()
    context.forward({"what": f"give up at {record.timestamp:%M:%S}", "items": row and row["items"]})


def baskets() -> tuple[wt.App, Stream]:
    app = wt.App("site")
    views = app.topic("views", key="who STRING", value="what STRING").stream()
    stores, late = {"basket": wt.key_value_store("items INT")}, {"remind": remind, "give_up": give_up}
    return app, views.process_values(await_order, value="what STRING, items INT", stores=stores, punctuators=late)


def shopping(number: int) -> list[Record]:
    rng, made, offsets = random.Random(11), [], [0, 0]
    for n in range(number):
        who = rng.choice("abcd")
        partition = ord(who) % 2
        what = rng.choice(["tea", "tea", "tea", "order", "bad"])
        at = EPOCH + wt.seconds(20 * (n // 12) + n % 12 // 2 + rng.choice([0, 0, -3, 4]) + 50)
        made.append(Record("views", partition, offsets[partition], at, who.encode(), f'{{"what": "{what}"}}'.encode()))
        offsets[partition] += 1
    return made


def test_a_punctuator_is_called_for_its_key_when_the_partitions_stream_time_has_reached_its_time() -> None:
    app, told = baskets()
    told.to("out")
    driver = TopologyTestDriver(app)
    for second, who, what in [(0, "ann", "tea"), (2, "bob", "tea"), (5, "bob", "order"), (8, "ann", "tea"), (17, "eve", "tea")]:
        driver.pipe_input("views", who, {"what": what}, timestamp=second * 1000)
    assert driver.read_output("out") == []
    driver.pipe_input("views", "eve", {"what": "order"}, timestamp=18_000)
    assert [(s.key, s.value, s.timestamp.second) for s in driver.read_output("out")] == [("ann", {"what": "remind", "items": 2}, 18)]
    assert driver.table("basket")["ann"]["items"] == 2
    driver.advance("views", "1970-01-01T00:01:00Z")
    assert [(s.key, s.value) for s in driver.read_output("out")] == [("ann", {"what": "give up at 00:23", "items": 2})]
    assert driver.table("basket") == {}


def test_a_record_asks_only_the_keys_whose_time_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    app, told = baskets()
    told.to("out")
    asked: list[object] = []
    find = visits.next_tick
    monkeypatch.setattr(visits, "next_tick", lambda step, held, row, *times: (asked.append(row["who"]), find(step, held, row, *times))[1])
    driver = TopologyTestDriver(app)
    for n in range(100):
        driver.pipe_input("views", f"k{n}", {"what": "tea"}, timestamp=n)
    driver.pipe_input("views", "late", {"what": "tea"}, timestamp=9_999)
    assert asked == [], "nobody's time has come"
    driver.pipe_input("views", "late", {"what": "tea"}, timestamp=10_009)
    assert [s.key for s in driver.read_output("out")] == [f"k{n}" for n in range(10)], "reminded in the order of their times"
    assert set(asked) == {f"k{n}" for n in range(10)}


def test_a_punctuator_that_raises_is_quarantined_and_not_called_again() -> None:
    app, told = baskets()
    told.to("out")
    driver = TopologyTestDriver(app)
    for second in (0, 1, 2, 3, 60, 120):
        driver.pipe_input("views", "ann" if second < 60 else "bob", {"what": "tea"}, timestamp=second * 1000)
    (refused,) = driver.quarantine()
    assert refused.reason == "remind raises ValueError: too much to remind of"
    assert (refused.record.key, refused.record.value, refused.record.timestamp.second) == (None, None, 13)
    assert [s.key for s in driver.read_output("out")] == ["bob", "bob"]


def test_no_cut_between_batches_changes_what_punctuators_do() -> None:
    records, rng = shopping(80), random.Random(1)
    app, made = baskets()
    made.to("out")
    made.group_by_key().windowed_by(wt.tumbling(seconds=30)).agg(n=wt.count(), all=wt.collect_list("what")).materialized_as("told")
    told = []
    for cuts in (0, 1, 7, 30, 60):
        engine = Interpreter(app.topology(), partitions=[("views", 0), ("views", 1)])
        for batch in cut(records, rng, cuts):
            engine.read(batch)
        outputs = sorted((o.topic, *o.place, o.value or b"") for o in engine.outputs)
        told.append((engine.tables, outputs, sorted((r.record.offset, r.reason) for r in engine.quarantine)))
    assert told[1:] == told[:1] * 4
    assert len(told[0][1]) > 20
    assert any("remind" in reason for _, reason in told[0][2])
    assert purity_of(made.node) is Purity.PURE


def test_what_a_punctuator_is_scheduled_for_is_checked() -> None:
    app, views, _ = site()
    with pytest.raises(DefinitionError, match=r"test_processors.py:\d+: process: .* must take"):
        views.process(visit, children={"c": "n INT"}, punctuators={"p": lambda: None})
    with pytest.raises(SchemaError, match="'a b'"):
        views.process(visit, children={"c": "n INT"}, punctuators={"a b": visit})

    def wrong(record: wt.Record, context: wt.Context) -> None:
        context.schedule("late", at=record.timestamp)

    views.process_values(wrong, value="n INT", punctuators={"later": visit}).to("out")
    driver = TopologyTestDriver(app)
    driver.pipe_input("views", "ann", {"page": "home"}, timestamp=1)
    assert [r.reason for r in driver.quarantine()] == [
        "wrong raises KeyError: \"no punctuator 'late'; there are later: punctuators={...}\""
    ]
