"""Suites as data: what is refused, what becomes a check, and that one text serves the stream and the suite."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

import watertable as wt
from watertable.errors import DefinitionError
from watertable.project import load_apps
from watertable.settings import Settings
from watertable_platform.orchestration.assembly import build_definitions
from watertable_quality import Expectation, Severity, Suite, between, in_set, not_null, row_count, unique

APP = """
import watertable as wt
from watertable_quality import Severity, Suite, between, not_null, unique
app = wt.App("shop")
sales = app.topic("sales", key="item STRING", value="qty INT").stream()
sales.group_by("item").agg(on_hand=wt.sum("qty")).materialized_as("stock")
stock_rules = Suite("shop.stock", not_null("on_hand"), between("on_hand", 0, None, severity=Severity.WARNING), unique("item"))
"""


def test_row_expectations_are_conditions_that_a_stream_takes() -> None:
    sales = wt.App("shop").topic("sales", key="item STRING", value="qty INT, size STRING").stream()
    texts = in_set("size", ["S", "it's", "a\\b"])
    for rule in (not_null("qty"), between("qty", 0, 10), between("qty", None, 1.5), texts, in_set("qty", [1, 2])):
        assert rule.sql
        sales = sales.expect(rule.name, rule.sql)
    assert unique("item").sql is None
    assert row_count(1).sql is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Suite("stock", not_null("a")),
        lambda: Suite("shop.stock"),
        lambda: Suite("shop.stock", not_null("a"), not_null("a")),
        lambda: between("a", None, None),
        lambda: between("a", float("nan"), 1),
        lambda: in_set("a", []),
        lambda: in_set("a", [1, "b"]),
        lambda: row_count(),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: object) -> None:
    with pytest.raises(DefinitionError):
        wrong()  # type: ignore[operator]


def write(root: Path, text: str) -> dg.Definitions:
    (root / "assets" / "shop").mkdir(parents=True)
    (root / "assets" / "shop" / "app.py").write_text(text)
    return build_definitions(load_apps(Settings.load(root)))


def test_a_suite_in_an_apps_folder_is_checks_on_its_table(tmp_path: Path) -> None:
    graph = write(tmp_path, APP).resolve_asset_graph()
    checks = {k.name: graph.get_check_spec(k) for k in graph.asset_check_keys}
    assert {"on_hand_not_null", "on_hand_between", "item_unique"} <= set(checks)
    assert checks["on_hand_not_null"].blocking
    assert not checks["on_hand_between"].blocking


@pytest.mark.parametrize(
    ("old", "new", "says"), [("shop.stock", "shop.stok", "stok"), ('not_null("on_hand")', 'not_null("onhand")', "onhand")]
)
def test_a_suite_on_what_is_not_there_breaks_its_folder(tmp_path: Path, old: str, new: str, says: str) -> None:
    specs = {s.key.to_user_string(): s for s in write(tmp_path, APP.replace(old, new)).resolve_all_asset_specs()}
    assert says in (specs["shop/failed_to_load"].description or "")


def test_severities_are_great_expectations_own() -> None:
    assert [s.value for s in Severity] == ["critical", "warning", "info"]
    assert isinstance(not_null("a", severity=Severity.INFO), Expectation)
