"""A key that a person types: read by the types of the table's key, the same for all commands; no JVM."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

import watertable as wt
from watertable.errors import KeyMismatch
from watertable.plan.plan import TableDef
from watertable.tools import keytext


def table(key: str) -> TableDef:
    app = wt.App("typed")
    app.topic("t", key=key, value="n INT").table().materialized_as("t")
    return app.topology().table("t")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("STRING", "it's", "it's"),
        ("BOOLEAN", "true", True),
        ("TINYINT", "-7", -7),
        ("BIGINT", "9223372036854775807", 2**63 - 1),
        ("DECIMAL(9,2)", "2.5", Decimal("2.50")),
        ("DATE", "2024-3-1", date(2024, 3, 1)),
        ("TIMESTAMP", "2024-03-01 12:00", datetime(2024, 3, 1, 12, tzinfo=UTC)),
        ("TIMESTAMP", "2024-03-01T13:00:00+01:00", datetime(2024, 3, 1, 12, tzinfo=UTC)),
        ("BINARY", "00ff", b"\x00\xff"),
    ],
)
def test_a_key_is_read_by_the_type_of_its_column(kind: str, text: str, value: Any) -> None:
    of = table(f"k {kind}")
    wanted = keytext.read(of, [text])
    assert wanted == {"k": value}
    assert keytext.is_of({"k": value}, wanted)
    assert keytext.condition(of, wanted, "key.").startswith("key.`k` = ")


@pytest.mark.parametrize(("kind", "text"), [("INT", "x"), ("TINYINT", "300"), ("DATE", "tomorrow"), ("BINARY", "it's"), ("BOOLEAN", "2")])
def test_what_is_no_value_of_a_column_is_refused_with_the_key(kind: str, text: str) -> None:
    with pytest.raises(KeyMismatch, match=r"is no .*has the key \(`k` "):
        keytext.read(table(f"k {kind}"), [text])


@pytest.mark.parametrize("given", ['["a"', '["a", null]', '["a", [1]]'])
def test_an_array_of_anything_but_values_is_refused(given: str) -> None:
    with pytest.raises(KeyMismatch, match="the key"):
        keytext.split(given)


def test_numbers_in_an_array_keep_their_digits() -> None:
    wanted = keytext.read(table("k STRING, price DECIMAL(38,10)"), keytext.split('["[a]", 1234567890123456789.0123456789]'))
    assert wanted == {"k": "[a]", "price": Decimal("1234567890123456789.0123456789")}


def test_a_window_is_the_same_by_whatever_offset_its_time_is_written() -> None:
    app = wt.App("typed")
    stream = app.topic("t", key="k STRING", value="n INT").stream()
    stream.group_by_key().windowed_by(wt.tumbling(hours=1)).agg(n=wt.count()).materialized_as("t")
    of = app.topology().table("t")
    there, here = (keytext.condition(of, keytext.read(of, ["a"], text)) for text in ("2024-03-01T12:00Z", "2024-03-01T14:00+02:00"))
    assert here == there
    assert "TIMESTAMP '2024-03-01 12:00:00" in here
    for beyond in ("0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"):
        with pytest.raises(KeyMismatch, match="write the time at which it begins"):
            keytext.read(of, ["a"], beyond)
