"""Suites as data: what is refused, what becomes a check, and that one text serves the stream and the suite."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest

import watertable as wt
from watertable.errors import DefinitionError
from watertable.project import load_apps
from watertable.settings import Settings
from watertable_platform.cli import rewinding
from watertable_platform.orchestration import checks, suites
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
        lambda: in_set("a", "new"),
        lambda: Suite(5, not_null("a")),  # type: ignore[arg-type]
        lambda: row_count(),
        lambda: row_count(10, 5),
        lambda: between("a", 2, 1),
        lambda: unique(),
        lambda: unique("a", "a"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: object) -> None:
    with pytest.raises(DefinitionError):
        wrong()  # type: ignore[operator]


RULES = """
from watertable_quality import Severity, Suite, between
few = Suite("shop.stock", between("on_hand", None, 1000))
"""


def write(root: Path, app: str, **files: str) -> dg.Definitions:
    (root / "assets" / "shop").mkdir(parents=True)
    for name, text in {"app": app, **files}.items():
        (root / "assets" / "shop" / f"{name}.py").write_text(text)
    return build_definitions(load_apps(Settings.load(root)))


def names(definitions: dg.Definitions) -> set[str]:
    return {key.name for key in definitions.resolve_asset_graph().asset_check_keys}


def why_broken(definitions: dg.Definitions) -> str:
    return {s.key.to_user_string(): s.description or "" for s in definitions.resolve_all_asset_specs()}["shop/failed_to_load"]


def test_a_suite_in_an_apps_folder_is_checks_on_its_table(tmp_path: Path) -> None:
    graph = write(tmp_path, APP).resolve_asset_graph()
    checks = {k.name: graph.get_check_spec(k) for k in graph.asset_check_keys}
    assert {"on_hand_not_null", "on_hand_between", "item_unique"} <= set(checks)
    assert checks["on_hand_not_null"].blocking
    assert not checks["on_hand_between"].blocking


@pytest.mark.parametrize("rules", ["[{}]", "({}, 5)", "{{'stock': {}}}"])
def test_a_suite_in_a_list_a_tuple_or_a_dictionary_is_found_as_an_app_is(tmp_path: Path, rules: str) -> None:
    suite = 'Suite("shop.stock", row_count(1))'
    text = f"from watertable_quality import Suite, row_count\nrules = {rules.format(suite)}\n"
    assert "row_count" in names(write(tmp_path, APP, rules=text))


def test_a_record_of_dagsters_beside_an_app_is_left_alone(tmp_path: Path) -> None:
    """It is a tuple that raises where somebody goes through it."""
    assert "on_hand_not_null" in names(write(tmp_path, f"{APP}\nimport dagster\nlayout = dagster.TableSchema(columns=[])\n"))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("shop.stock", "shop.stok", "app.py:7: Suite('shop.stok'): shop has stock"),
        ("shop.stock", "shpo.stock", "app.py:7: Suite('shpo.stock'): this folder has no app 'shpo'; it has shop"),
        ('not_null("on_hand")', 'not_null("onhand")', "app.py:7: Suite('shop.stock'): on_hand_not_null wants onhand"),
    ],
)
def test_a_suite_on_what_is_not_there_breaks_its_folder(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert says.replace("on_hand_not", "onhand_not") in why_broken(write(tmp_path, APP.replace(old, new)))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('between("item", 1, 2)', "Suite('shop.stock'): item_between wants a number; item is a STRING"),
        ('in_set("item", [1, 2])', "Suite('shop.stock'): item_in_set wants a number; item is a STRING"),
        ('in_set("on_hand", ["x"])', "Suite('shop.stock'): on_hand_in_set: in \"`on_hand` IN ('x')\": a BIGINT is wanted there"),
    ],
)
def test_a_suite_on_what_a_column_cannot_be_breaks_its_folder(tmp_path: Path, wrong: str, says: str) -> None:
    rules = f'from watertable_quality import Suite, between, in_set\nbad = Suite("shop.stock", {wrong})\n'
    assert f"rules.py:2: {says}" in why_broken(write(tmp_path, APP, rules=rules))
    good = 'from watertable_quality import Suite, in_set\nfine = Suite("shop.stock", in_set("item", ["x"]))\n'
    assert "item_in_set" in names(write(tmp_path / "good", APP, rules=good))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('"no blanks", "ExpectTableRowCountToBeBetween", (("min_value", 1),)', "letters, digits and _"),
        ('"", "ExpectTableRowCountToBeBetween", (("min_value", 1),)', "letters, digits and _"),
        ('"few", 5, (("min_value", 1),)', "few: 5 is no class of Great Expectations'"),
        ('"few", "ExpectTableRowCountToBeBetween", ("min_value", 1)', "few: arguments=('min_value', 1); write each with its name"),
        ('"pair", "ExpectColumnPairValuesToBeEqual", {"column_A": "item", "column_B": "itm"}', "Suite('shop.stock'): pair wants itm"),
        ('"many", "ExpectCompoundColumnsToBeUnique", {"column_list": ["item", "itm"]}', "Suite('shop.stock'): many wants itm"),
    ],
)
def test_an_expectation_of_the_users_own_that_can_t_be_breaks_its_folder(tmp_path: Path, wrong: str, says: str) -> None:
    rules = f"from watertable_quality import Expectation, Suite\nown = Suite('shop.stock', Expectation({wrong}))\n"
    told = why_broken(write(tmp_path, APP, rules=rules))
    assert "rules.py:2: " in told
    assert says in told


def test_the_arguments_of_an_expectation_may_be_a_dictionary() -> None:
    few = {"min_value": 1, "max_value": 9}
    rows = Expectation("rows", "ExpectTableRowCountToBeBetween", few)  # type: ignore[arg-type]
    assert rows.arguments == (("min_value", 1), ("max_value", 9))


def test_bounds_of_the_users_own_that_are_no_numbers_are_of_columns_that_are_none(tmp_path: Path) -> None:
    rules = """from watertable_quality import Expectation, Suite
own = Expectation("early", "ExpectColumnValuesToBeBetween", (("column", "item"), ("min_value", "a"), ("max_value", "m")))
fine = Suite("shop.stock", own)
"""
    assert "early" in names(write(tmp_path, APP, rules=rules))


@pytest.mark.parametrize("columns", ['"tags"', '"item", "tags"'])
def test_a_suite_that_wants_maps_to_be_unique_breaks_its_folder(tmp_path: Path, columns: str) -> None:
    app = 'import watertable as wt\napp = wt.App("shop")\n'
    app += 'app.topic("sales", key="item STRING", value="tags MAP<STRING, INT>").stream().to_table().materialized_as("stock")\n'
    rules = f"from watertable_quality import Suite, unique\nown = Suite('shop.stock', unique({columns}))\n"
    told = why_broken(write(tmp_path, app, rules=rules))
    assert "rules.py:2: Suite('shop.stock'): " in told
    assert "can't hold tags: values with a MAP in them have no order" in told


def test_a_folder_without_an_app_has_no_suites(tmp_path: Path) -> None:
    assert "rules.py:3: Suite('shop.stock'): this folder has no app 'shop'; it has none" in why_broken(write(tmp_path, "", rules=RULES))


def test_two_suites_that_expect_different_things_under_one_name_break_their_folder(tmp_path: Path) -> None:
    says = why_broken(write(tmp_path, APP, rules=RULES))
    assert "rules.py:3: Suite('shop.stock'): another on_hand_between is expected of it at" in says
    assert "app.py:7; make them one" in says


@pytest.mark.parametrize("name", sorted(checks.BUILT_IN))
def test_an_expectation_named_as_a_check_that_every_table_has_breaks_its_folder_alone(tmp_path: Path, name: str) -> None:
    rules = RULES.replace("between(", f'Expectation("{name}", "ExpectTableRowCountToBeBetween", (("min_value", 1),)), between(')
    (tmp_path / "assets" / "desk").mkdir(parents=True)
    (tmp_path / "assets" / "desk" / "app.py").write_text(APP.replace("shop", "desk"))
    definitions = write(tmp_path, APP, rules=rules.replace("import Sev", "import Expectation, Sev").replace("on_hand", "item"))
    assert f"rules.py:3: Suite('shop.stock'): every table has a check '{name}' of ours" in why_broken(definitions)
    assert dg.AssetKey(["desk", "stock"]) in definitions.resolve_asset_graph().materializable_asset_keys


def test_two_suites_that_expect_the_same_are_one_check(tmp_path: Path) -> None:
    rules = RULES.replace("None, 1000", "0, None, severity=Severity.WARNING") + "from assets.shop.app import stock_rules\n"
    assert {"on_hand_not_null", "on_hand_between", "item_unique"} <= names(write(tmp_path, APP, rules=rules))


def test_a_suite_beside_batch_assets_is_checks_too(tmp_path: Path) -> None:
    rules = "import dagster as dg\n" + RULES.replace("between", "not_null").replace(", None, 1000", "")
    app = APP.replace('not_null("on_hand"), ', "")
    assert "on_hand_not_null" not in names(write(tmp_path / "without", app))
    assert "on_hand_not_null" in names(write(tmp_path / "with", app, rules=rules))


def test_what_a_promote_is_judged_by_is_never_fewer_checks_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(root: Path, app: str, **files: str) -> list[str]:
        write(root, app, **files)
        settings = Settings.load(root)
        return rewinding._red(settings, load_apps(settings).app("shop"), SimpleNamespace(reader=None), [])  # type: ignore[arg-type]

    monkeypatch.setattr(suites, "red", lambda _, expected, __: [f"{e.name} of {table}" for table, es in expected.items() for e in es])
    bare = APP.partition("stock_rules")[0]
    assert judged(tmp_path / "batch", bare, rules="import dagster as dg\n" + RULES) == ["on_hand_between of stock"]
    [unread] = judged(tmp_path / "torn", bare, rules="import dagster as dg\nboom\n" + RULES)
    assert "rules.py:2: NameError" in unread
    with pytest.raises(DefinitionError, match="no app 'shpo'"):
        judged(tmp_path / "typo", APP.replace("shop.stock", "shpo.stock"))


def test_what_is_no_expectation_is_refused_where_the_suite_is_written() -> None:
    for wrong in ("a > 1", [not_null("a")], None):
        with pytest.raises(DefinitionError, match=r"test_suites.py:\d+: Suite\('shop.stock'\): .* is no expectation; write not_null"):
            Suite("shop.stock", not_null("b"), wrong)  # type: ignore[arg-type]


def test_a_severity_may_be_told_by_its_name_and_one_that_there_is_none_of_is_refused() -> None:
    assert not_null("a", severity="warning") == not_null("a", severity=Severity.WARNING)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"a_not_null: severity='warn'; choose critical, warning, info"):
        not_null("a", severity="warn")  # type: ignore[arg-type]


def test_severities_are_great_expectations_own() -> None:
    assert [s.value for s in Severity] == ["critical", "warning", "info"]
    assert isinstance(not_null("a", severity=Severity.INFO), Expectation)
