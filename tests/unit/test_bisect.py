"""What became true, and where, as people and programs are told; and what can't be followed; no JVM."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from rich.console import Console

import watertable as wt
from watertable.errors import ExpressionError, UnknownColumn, UnknownPosition
from watertable.plan.plan import TableDef, Topology
from watertable.store.commits import CommitInfo, Position
from watertable.tools import bisect
from watertable.tools.bisect import Became, Culprit, Found
from watertable_platform.cli import show

AT = datetime(2026, 3, 1, 8, 0, 11, tzinfo=UTC)
COMMIT = CommitInfo(seq=4, commit_time=AT, begin={("moves", 0): 4, ("names", 0): 9}, next={("moves", 0): 7, ("names", 0): 9})
FOUND = Found(
    table="stock", condition="qty < 0", head=Position("shop", 1, 12), since=Position("shop", 1, 2), already=1, ever=3, now=2,
    at=Position("shop", 1, 4), commit=COMMIT, keys=(Became({"sku": "a"}, {"qty": 8}, {"qty": -1}), Became({"sku": "b"}, None, {"qty": -2})),
)  # fmt: skip
CULPRIT = Culprit("moves", 0, 5, AT, {"qty": -9, "price": Decimal("2.50")}, {"sku": "a"}, {"qty": 8}, {"qty": -1})
NEVER = Found(table="stock", condition="qty > 1000", head=Position("shop", 1, 12), since=None, already=0, ever=0, now=0)


def shop() -> Topology:
    app = wt.App("shop")
    moves = app.topic("moves", key="sku STRING", value="qty BIGINT").stream()
    stock = moves.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
    app.topic("names", key="sku STRING", value="name STRING").table().materialized_as("names")
    moves.group_by_key().windowed_by(wt.sessions(gap=wt.minutes(5))).agg(n=wt.count()).materialized_as("visits")
    stock.to_stream().filter("new.qty < 0").to("alarms")
    return app.topology()


def table(name: str) -> TableDef:
    return shop().table(name)


def told(found: Found, culprit: Culprit | None, unknown: str = "") -> str:
    out = io.StringIO()
    show.print_finding(Console(width=140, file=out), found, culprit, unknown, found.ranges(shop(), table("stock")))
    return out.getvalue()


def test_a_finding_names_the_commit_the_keys_the_record_and_how_far_back_it_looked() -> None:
    text = told(FOUND, CULPRIT)
    for wanted in (
        "stock  qty < 0  looked through up to shop@1.12", "first at  shop@1.4  committed 2026-03-01 08:00:11Z", "a  qty 8  →  qty -1",
        "b  no row  →  qty -2", "moves/0@5  2026-03-01 08:00:11Z  qty -9  price 2.50", "already   true of 1 key at the beginning",
        "begins at shop@1.2: what was before is trimmed", "true of 3 keys at some time, of 2 keys now",
    ):  # fmt: skip
        assert wanted in text
    body = json.loads(show.finding_json(FOUND, CULPRIT, ""))
    assert (body["at"], body["since"], body["record"]["offset"], body["keys"][0]["key"]) == ("shop@1.4", "shop@1.2", 5, {"sku": "a"})


def test_of_many_keys_some_are_shown_and_all_are_counted() -> None:
    many = replace(FOUND, keys=tuple(Became({"sku": f"k{n:03}"}, None, {"qty": -1}) for n in range(250)))
    assert "and 245 more keys in the same commit" in told(many, CULPRIT)
    body = json.loads(show.finding_json(many, CULPRIT, ""))
    assert (body["became"], len(body["keys"])) == (250, 100)


def test_where_the_record_cant_be_told_the_range_is_and_why() -> None:
    text = " ".join(told(FOUND, None, "Kafka has deleted records of moves/0").split())
    assert "among moves/0@4 to 6 Kafka has deleted records of moves/0" in text
    assert "names" not in text, "what the table doesn't come from can't be it"


def test_what_never_was_is_said_to_be_never() -> None:
    assert "never  no commit has left a row for which it was true" in told(NEVER, None)
    body = json.loads(show.finding_json(NEVER, None, ""))
    assert (body["at"], body["record"], body["ever"]) == (None, None, 0)


def test_a_condition_is_checked_where_it_is_written() -> None:
    with pytest.raises(UnknownColumn, match="quantity"):
        bisect.condition_of(table("stock"), "quantity < 0")
    with pytest.raises(ExpressionError, match="BOOLEAN"):
        bisect.condition_of(table("stock"), "qty + 1")


def test_a_table_whose_rows_change_their_keys_is_refused_with_another_way() -> None:
    with pytest.raises(UnknownPosition, match="watertable explain"):
        bisect.find(None, table("visits"), bisect.condition_of(table("visits"), "n > 3"))  # type: ignore[arg-type]
