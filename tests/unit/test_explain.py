"""A row explained: each record that made it, the row after each, and what was late or refused; no JVM."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

import watertable as wt
from watertable.errors import KeyMismatch
from watertable.interpreter import Interpreter
from watertable.plan.plan import Topology
from watertable.records import Advance, Record
from watertable.settings import Settings
from watertable.tools import explain as module
from watertable.tools import keytext
from watertable.tools.explain import explain
from watertable.tools.testcase import as_test
from watertable_platform.cli import main as cli
from watertable_platform.cli import show

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def shop() -> Topology:
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT, shelf INT").stream()
    moves.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
    moves.group_by("sku", "shelf").windowed_by(wt.tumbling(hours=1, grace=wt.minutes(10))).agg(n=wt.count()).materialized_as("hourly")
    return app.topology()


def record(offset: int, sku: str, value: object, minutes: float = 0) -> Record:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Record("moves", 0, offset, T0 + timedelta(minutes=minutes), sku.encode(), data)


RECORDS = [
    record(0, "a", {"qty": 5, "shelf": 1}), record(1, "b", {"qty": 1, "shelf": 1}, 1), record(2, "a", b"{broken", 2),
    record(3, "b", b"{broken", 3), record(4, "a", {"qty": -7, "shelf": 2}, 200), record(5, "a", {"qty": 1, "shelf": 1}, 5),
]  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_every_record_that_made_a_row_is_told_with_the_row_after_it(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    topology = shop()
    told = explain(topology, topology.table("stock"), keytext.read(topology.table("stock"), ["a"]), RECORDS)
    assert [(s.offset, s.record, s.row) for s in told.steps] == [
        (0, {"qty": 5, "shelf": 1}, {"qty": 5}), (4, {"qty": -7, "shelf": 2}, {"qty": -2}), (5, {"qty": 1, "shelf": 1}, {"qty": -1}),
    ]  # fmt: skip
    ((offset, reason),) = [(o.offset, o.reason) for o in told.left_out]
    assert offset == 2, "what was refused of other keys is theirs"
    assert reason.startswith("topic: ")
    assert told.records == 6


def test_only_what_the_table_is_made_of_is_read_and_computed() -> None:
    def other(record: wt.Record, context: wt.Context) -> None:
        raise AssertionError("no table above this one calls it")

    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT, shelf INT").stream()
    moves.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
    moves.process(other, stores={"seen": wt.key_value_store("n INT")})
    app.topic("prices", key="sku STRING", value="price INT").table().materialized_as("prices")
    topology, priced = app.topology(), Record("prices", 0, 0, T0, b"a", b'{"price": 1}')
    told = explain(topology, topology.table("stock"), keytext.read(topology.table("stock"), ["a"]), [priced, *RECORDS])
    assert [s.row for s in told.steps] == [{"qty": 5}, {"qty": -2}, {"qty": -1}]
    assert [o.offset for o in told.left_out] == [2], "nothing that another table refuses is this one's"
    assert told.records == 6


def test_what_was_late_for_a_window_is_told_with_the_window() -> None:
    topology = shop()
    hourly = topology.table("hourly")
    told = explain(topology, hourly, keytext.read(hourly, ["a"]), RECORDS)
    assert [s.offset for s in told.steps] == [0, 4]
    late = [o for o in told.left_out if "late" in o.reason]
    assert [(o.offset, o.reason) for o in late] == [(5, "late for the window 2026-01-01 00:00:00Z to 2026-01-01 01:00:00Z")]
    assert explain(topology, hourly, keytext.read(hourly, ["b"]), RECORDS).steps[0].row == {"n": 1}
    assert not [o for o in explain(topology, hourly, keytext.read(hourly, ["b"]), RECORDS).left_out if "late" in o.reason]


def test_a_record_that_is_late_behind_a_join_is_told_to_be_of_the_row_that_it_missed() -> None:
    app = wt.App("shop")
    sales = app.topic("sales", key="sku STRING", value="qty BIGINT").stream()
    shelves = app.topic("shelves", key="sku STRING", value="shelf INT").table().materialized_as("shelves")
    placed = sales.join(shelves, shelf="right.shelf", qty="qty")
    placed.group_by("shelf").windowed_by(wt.tumbling(hours=1)).agg(qty=wt.sum("qty")).materialized_as("hourly")
    topology = app.topology()
    sold = [(b"a", 1), (b"b", 90), (b"a", 2)]
    records = [
        Record("shelves", 0, 0, T0, b"a", b'{"shelf": 1}'), Record("shelves", 0, 1, T0, b"b", b'{"shelf": 2}'),
        *(Record("sales", 0, n, T0 + timedelta(minutes=m), sku, b'{"qty": 1}') for n, (sku, m) in enumerate(sold)),
    ]  # fmt: skip
    told = explain(topology, topology.table("hourly"), keytext.read(topology.table("hourly"), ["1"]), records)
    assert [(s.topic, s.offset) for s in told.steps] == [("sales", 0)]
    assert [(o.offset, o.reason) for o in told.left_out] == [(2, "late for the window 2026-01-01 00:00:00Z to 2026-01-01 01:00:00Z")]
    assert not explain(topology, topology.table("hourly"), keytext.read(topology.table("hourly"), ["2"]), records).left_out


def test_of_a_table_that_nothing_else_is_made_of_no_other_rows_are_kept() -> None:
    topology = shop()
    for table, key in (("stock", ("a",)), ("hourly", ("a", 1)), ("hourly", ("a",))):
        engine = Interpreter(topology.above({table}), watch=frozenset({table}), asked={table: key})
        engine.read(RECORDS)
        assert engine.states[table]
        assert all(kept[: len(key)] == key for kept in engine.states[table])


def test_a_key_of_several_columns_may_be_cut_short_and_is_read_by_its_types() -> None:
    topology = shop()
    hourly = topology.table("hourly")
    assert [s.offset for s in explain(topology, hourly, keytext.read(hourly, ["a", "2"]), RECORDS).steps] == [4]
    for wrong in ([], ["a", "1", "2"], ["a", "x"]):
        with pytest.raises(KeyMismatch, match="has the key"):
            explain(topology, hourly, keytext.read(hourly, wrong), RECORDS)


def test_of_a_windowed_table_one_window_can_be_asked_for() -> None:
    topology = shop()
    hourly = topology.table("hourly")
    first, fourth = (explain(topology, hourly, keytext.read(hourly, ["a"], f"2026-01-01T0{hour}:00Z"), RECORDS) for hour in (0, 3))
    assert [s.offset for s in first.steps] == [0]
    assert [o.offset for o in first.left_out if "late" in o.reason] == [5]
    assert [s.offset for s in fourth.steps] == [4]
    assert not [o for o in fourth.left_out if "late" in o.reason]
    assert first.key == {"sku": "a", "window_start": T0}
    assert not explain(topology, hourly, keytext.read(hourly, ["a"], "2026-01-01T00:30Z"), RECORDS).steps
    with pytest.raises(KeyMismatch, match="leave --window out"):
        explain(topology, topology.table("stock"), keytext.read(topology.table("stock"), ["a"], "2026-01-01"), RECORDS)
    with pytest.raises(KeyMismatch, match="write the time at which it begins"):
        explain(topology, hourly, keytext.read(hourly, ["a"], "noon"), RECORDS)


def test_a_session_that_is_asked_for_is_told_with_what_it_grew_from_and_what_was_late_for_it() -> None:
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT, shelf INT").stream()
    moves.group_by_key().windowed_by(wt.sessions(gap=wt.minutes(5))).agg(n=wt.count()).materialized_as("visits")
    topology, qty = app.topology(), {"qty": 1, "shelf": 1}
    records = [record(n, "a", qty, m) for n, m in enumerate((10, 12, 14, 60, 61, 11, 40))]
    told = explain(topology, topology.table("visits"), keytext.read(topology.table("visits"), ["a"], "2026-01-01T00:10:00Z"), records)
    assert [(s.offset, s.row and s.row["n"]) for s in told.steps] == [(0, 1), (1, None), (1, 2), (2, None), (2, 3)]
    assert [o.offset for o in told.left_out] == [5], "the one at 00:40 would have met no record of this session"


def test_a_sliding_window_that_is_asked_for_is_told_with_the_records_that_were_there_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 1)
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT, shelf INT").stream()
    windows = wt.sliding(difference=wt.minutes(10), grace=wt.minutes(5))
    moves.group_by_key().windowed_by(windows).agg(n=wt.count()).materialized_as("recent")
    topology, table, qty = app.topology(), app.topology().table("recent"), {"qty": 1, "shelf": 1}
    records = [
        record(0, "a", qty, 15), record(1, "a", qty, 25.5), record(2, "b", qty, 22), record(3, "a", qty, 29),
        Record("moves", 1, 0, T0 + timedelta(minutes=40), b"b", b'{"qty": 1}'),
        Record("moves", 1, 1, T0 + timedelta(minutes=26), b"a", b'{"qty": 1}'),  # late for 00:30
        record(4, "a", qty, 30), record(5, "a", qty, 24),
    ]  # fmt: skip
    told = explain(topology, table, keytext.read(table, ["a"], "2026-01-01T00:20:00Z"), records)
    assert [(s.partition, s.offset, s.row and s.row["n"]) for s in told.steps] == [(0, 1, None), (0, 3, None), (0, 4, 3), (0, 5, 4)]
    assert {s.key["window_end"] for s in told.steps} == {T0 + timedelta(minutes=30)}


def test_a_record_that_is_in_many_windows_is_counted_once_and_shown_with_each() -> None:
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT, shelf INT").stream()
    moves.group_by_key().windowed_by(wt.hopping(hours=1, every=wt.minutes(15))).agg(n=wt.count()).materialized_as("hourly")
    topology, out = app.topology(), io.StringIO()
    records = [
        record(0, "a", {"qty": 1, "shelf": 1}, 5),
        record(1, "b", {"qty": 1, "shelf": 1}, 50),
        record(2, "a", {"qty": 1, "shelf": 1}, 2),
    ]
    told = explain(topology, topology.table("hourly"), keytext.read(topology.table("hourly"), ["a"]), records)
    show.print_explanation(Console(width=160, file=out), told, 20)
    text = out.getvalue()
    assert "2 records made it, in 5 changes" in text
    assert "window_start" in text
    assert "2025-12-31T23:15:00Z" in text
    assert text.count("left out") == 1
    assert "moves/0@2  late for 3 windows, from 2025-12-31 23:15:00Z to 2026-01-01 00:45:00Z" in text


def test_an_explanation_is_shown_to_people_and_programs() -> None:
    topology = shop()
    told = explain(topology, topology.table("stock"), keytext.read(topology.table("stock"), ["a"]), RECORDS)
    out = io.StringIO()
    show.print_explanation(Console(width=140, file=out), told, 2)
    text = out.getvalue()
    for wanted in (
        "stock  a  6 records read",
        "moves/0@4",
        "qty -2",
        "3 records made it; the newest 2 are shown",
        "left out  moves/0@2",
        "test_explain.py",
    ):
        assert wanted in text
    assert "moves/0@0" not in text
    assert [s["offset"] for s in json.loads(show.explanation_json(told))["steps"]] == [0, 4, 5]


def test_of_a_key_that_no_record_has_it_is_said_where_others_are_seen() -> None:
    topology, out = shop(), io.StringIO()
    told = explain(topology, topology.table("stock"), keytext.read(topology.table("stock"), ["A"]), RECORDS)
    show.print_explanation(Console(width=140, file=out), told, 2)
    assert out.getvalue().split("\n") == [
        "stock  A  6 records read",
        "No record has made such a row, the key taken letter for letter; `watertable query stock` shows some that there are.",
        "",
    ]


def test_what_waits_for_every_partition_is_told_as_it_waits_in_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    app = wt.App("shop")
    seen, bought = (app.topic(name, key="sku STRING", value="n BIGINT").stream() for name in ("seen", "bought"))
    both = seen.left_join(bought, within=wt.minutes(5), n="right.n")
    both.group_by_key().agg(seen=wt.count(), bought=wt.sum("n")).materialized_as("sold")
    topology = app.topology()
    sold, day, fill = topology.table("sold"), 1440, 40

    def at(topic: str, partition: int, offset: int, sku: str, minutes: float) -> Record:
        return Record(topic, partition, offset, T0 + timedelta(minutes=minutes), sku.encode(), b'{"n": 7}')

    partitions = [(topic, n) for topic in ("seen", "bought") for n in (0, 1)]
    early = [at("seen", 1, 0, "a", 1), at("seen", 1, 1, "z", day), at("bought", 0, 0, "z", day)]
    early += [at("seen", 0, n, f"other {n}", n * day / fill) for n in range(fill + 1)]
    late = [at("bought", 1, 0, "a", 2)]
    for chunk in (10, 1000):  # a partition of which nothing was read yet is one that has to be waited for
        monkeypatch.setattr(module, "CHUNK", chunk)
        told = explain(topology, sold, keytext.read(sold, ["a"]), early + late, (), partitions)
        assert [(s.topic, s.offset, s.row) for s in told.steps] == [("bought", 0, {"seen": 1, "bought": 7})]
        assert not explain(topology, sold, keytext.read(sold, ["a"]), early, (), partitions).steps
        assert explain(topology, sold, keytext.read(sold, ["a"]), early, (), partitions[:3]).steps, "no fourth one is there"


def test_a_story_of_what_depends_on_arrival_says_that_readers_may_see_another_row() -> None:
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT").stream()
    prices = app.topic("prices", key="sku STRING", value="price INT").table().materialized_as("prices")
    moves.join(prices, worth="qty * right.price").group_by("sku").agg(worth=wt.sum("worth")).materialized_as("worth")
    topology = app.topology()
    for name, arrival in (("worth", True), ("prices", False)):
        told = explain(
            topology, topology.table(name), keytext.read(topology.table(name), ["a"]),
            [Record("prices", 0, 0, T0, b"a", b'{"price": 2}'), record(0, "a", {"qty": 1}, 1)],
        )  # fmt: skip
        out = io.StringIO()
        show.print_explanation(Console(file=out, width=200), told, 20)
        assert ("depends on how its records arrived" in out.getvalue()) is arrival


def test_what_commits_recorded_is_asked_for_once_the_app_may_have_committed_whatever_its_definition_says_now(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.watertable]\n")
    settings = Settings.load(tmp_path)
    assert not cli._may_have_committed(settings, "shop")
    (Path(settings.warehouse_uri) / "shop" / "changelog").mkdir(parents=True)
    assert cli._may_have_committed(settings, "shop")
    assert not cli._may_have_committed(settings, "till")
    assert cli._may_have_committed(settings.model_copy(update={"warehouse": "s3a://lake/tables"}), "shop")
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT").stream()
    moves.group_by_key().windowed_by(wt.tumbling(minutes=10)).agg(qty=wt.sum("qty")).materialized_as("by_time")
    topology, advance = app.topology(), Advance("moves", 0, 1, T0 + timedelta(hours=1))
    records = [record(0, "a", {"qty": 1}), record(1, "a", {"qty": 5}, 1)]
    told = explain(topology, topology.table("by_time"), keytext.read(topology.table("by_time"), ["a"]), records, [advance])
    assert [s.row for s in told.steps] == [{"qty": 1}]
    assert [o.offset for o in told.left_out] == [1]


def refusals(build: Callable[[wt.Stream], object], records: list[Record]) -> list[tuple[int, str, bool]]:
    app = wt.App("shop")
    build(app.topic("moves", key="sku STRING", value="qty BIGINT, shelf INT, per BIGINT").stream())
    topology = app.topology()
    told = explain(topology, topology.table("t"), keytext.read(topology.table("t"), ["1"]), records)
    return [(out.offset, out.reason.partition(":")[0], out.perhaps) for out in told.left_out]


def test_what_was_refused_is_named_where_it_was_of_the_row_and_as_perhaps_of_it_where_that_cannot_be_told() -> None:
    moves = [
        record(0, "ann", {"qty": 4, "shelf": 1, "per": 2}), record(1, "ann", {"qty": 4, "shelf": 2, "per": 0}, 1),
        record(2, "bob", {"qty": 6, "shelf": 1, "per": 0}, 2),
    ]  # fmt: skip
    own = refusals(lambda s: s.group_by("shelf").agg(q=wt.sum("qty / per")).materialized_as("t"), moves)
    assert own == [(2, "t", False)], "the record that ann's key has is another shelf's"
    mapped = refusals(lambda s: s.map_values(q="qty / per", shelf="shelf").group_by("shelf").agg(q=wt.sum("q")).materialized_as("t"), moves)
    assert mapped == [(1, "map_values", True), (2, "map_values", True)]
    keyed = [record(0, "1", {"qty": 1, "per": 0}), record(1, "2", {"qty": 1, "per": 0})]
    by_key = refusals(lambda s: s.map_values(q="qty / per").group_by("sku").agg(q=wt.sum("q")).materialized_as("t"), keyed)
    assert by_key == [(0, "map_values", False)], "a topic's key says whose a record is, though it made no row"
    other = refusals(lambda s: s.map_values(q="qty / per").group_by(k="lower(sku)").agg(q=wt.sum("q")).materialized_as("t"), keyed)
    assert [(offset, perhaps) for offset, _, perhaps in other] == [(0, True), (1, True)]


def test_what_a_table_above_dropped_is_told_and_no_test_is_made_of_what_is_unsure() -> None:
    def daily(s: wt.Stream) -> object:
        hourly = s.group_by("shelf").windowed_by(wt.tumbling(hours=1)).agg(qty=wt.sum("qty")).materialized_as("hourly")
        return hourly.group_by("shelf").agg(qty=wt.sum("qty")).materialized_as("t")

    moves = [record(n, "a", {"qty": 1, "shelf": 1}, m) for n, m in enumerate((0, 200, 1))]
    assert refusals(daily, moves) == [(2, "hourly", True)]
    app = wt.App("shop")
    daily(app.topic("moves", key="sku STRING", value="qty BIGINT, shelf INT").stream())
    topology = app.topology()
    told = explain(topology, topology.table("t"), keytext.read(topology.table("t"), ["1"]), moves)
    out = io.StringIO()
    show.print_explanation(Console(file=out, width=200), told, 20)
    assert "perhaps   moves/0@2  hourly: late" in out.getvalue()
    assert "moves/0@2" not in as_test(topology, topology.table("t"), told, moves, "watertable explain")
