"""What a merge will do, said before it: the apps of a commit are loaded beside those that are here, in a process of their own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from watertable.errors import SettingsError
from watertable.plan.deployment import Kind
from watertable.project import load_apps
from watertable.settings import Settings
from watertable_platform.cli.main import main
from watertable_platform.cli.review import outlines_at, review
from watertable_platform.orchestration.behind import touched

APP = """
import watertable as wt
from assets.shop._columns import SALES

app = wt.App("shop")
sales = app.topic("sales", key="sku STRING", value=SALES).stream()
stock = sales.group_by_key().agg(qty=wt.sum("qty")).materialized_as("stock")
hourly = sales.group_by("shelf").windowed_by(wt.tumbling(hours=1)).agg(n=wt.count()).materialized_as("hourly")
names = app.topic("names", key="sku STRING", value="name STRING").table().materialized_as("names")
stock.to_stream().filter("new.qty < 0").to("alarms")
"""
BATCH = """
import dagster as dg

@dg.asset(deps=[dg.AssetKey(["shop", "hourly"])])
def report() -> None: ...
"""


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commit a project below the root of a repository."""
    root = tmp_path / "repository" / "warehouse"
    shop = root / "assets" / "shop"
    shop.mkdir(parents=True)
    (root / "pyproject.toml").write_text("[tool.watertable]\n")
    (shop / "_columns.py").write_text('SALES = "qty BIGINT, shelf INT"\n')
    (shop / "app.py").write_text(APP)
    (shop / "report.py").write_text(BATCH)
    git(tmp_path / "repository", "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "as it was")
    monkeypatch.chdir(root)
    return root


def edit(project: Path, *swaps: tuple[str, str]) -> None:
    text = APP
    for old, new in swaps:
        assert old in text
        text = text.replace(old, new)
    (project / "assets" / "shop" / "app.py").write_text(text)


def test_nothing_changed_says_that_all_is_as_it_is(project: Path) -> None:
    found = review(Settings.load(project), "main")
    assert [(app.app, app.kind, app.lines, app.rewind) for app in found.apps] == [("shop", "same", (), None)]
    assert "As they are: `shop`." in found.markdown()


def test_each_table_has_its_class_its_columns_and_what_stands_behind_it(project: Path) -> None:
    edit(
        project,
        ('wt.tumbling(hours=1)).agg(n=wt.count())', 'wt.tumbling(hours=2)).agg(n=wt.count())'),
        ('qty=wt.sum("qty"))', 'qty=wt.sum("qty")).map_values(on_hand="qty", qty="CAST(qty AS INT)")'),
        ('names = app.topic("names", key="sku STRING", value="name STRING").table()', 'shelves = sales.group_by("shelf").count()'),
        ('materialized_as("names")', 'materialized_as("shelves")'),
    )  # fmt: skip
    (app,) = review(Settings.load(project), "main").apps
    lines = {line.name: line for line in app.lines}
    assert {name: line.kind for name, line in lines.items() if not line.is_topic} == {
        "stock": "same", "hourly": "breaking", "shelves": "additive", "names": "removed",
    }  # fmt: skip
    assert lines["stock"].columns == ("+ on_hand BIGINT", "qty BIGINT → INT")
    assert lines["shelves"].columns == ("+ shelf INT", "+ count BIGINT")
    assert lines["hourly"].behind.assets == ("report",)
    assert "stream_alive" in lines["hourly"].behind.checks
    assert (app.kind, app.rewind, app.alone) == ("breaking", "--to earliest", "--table hourly --table shelves")
    text = review(Settings.load(project), "main").markdown()
    for wanted in ("### `shop`: breaking", "`watertable rewind shop --to earliest --apply`", "| `hourly` | **breaking** |", "`report`"):
        assert wanted in text


def test_a_rewind_touches_the_checks_of_the_tables_that_move_and_what_is_made_from_them(project: Path) -> None:
    found = load_apps(Settings.load(project))
    shop = found.app("shop").topology
    hourly = touched(found, shop, ["hourly"], [])
    assert hourly.assets == ("report",)
    assert {check.partition("/")[0] for check in hourly.checks} == {"hourly"}
    assert "hourly/stream_alive" in hourly.checks
    assert touched(found, shop, ["names"], []).assets == ()
    everything = touched(found, shop, [table.name for table in shop.tables], [])
    assert everything.assets == ("report",), "the app's own tables are in the plan by themselves"
    assert {check.partition("/")[0] for check in everything.checks} == {table.name for table in shop.tables}


def test_who_reads_an_output_topic_is_touched_only_where_it_is_published_again(project: Path) -> None:
    folder = project / "assets" / "buyer"
    folder.mkdir()
    (folder / "app.py").write_text(
        'import watertable as wt\napp = wt.App("buyer")\n'
        'app.topic("alarms", key="sku STRING", value="qty BIGINT").stream().group_by_key().count().materialized_as("orders")\n'
    )
    found = load_apps(Settings.load(project))
    shop = found.app("shop").topology
    assert "buyer/orders" not in touched(found, shop, ["stock"], []).assets
    assert "buyer/orders" in touched(found, shop, ["stock"], ["alarms"]).assets


def test_a_table_that_has_to_be_filled_first_says_so(project: Path) -> None:
    edit(project, ("stock.to_stream()", 'stock.group_by("qty").count().materialized_as("levels")\nstock.to_stream()'))
    (app,) = review(Settings.load(project), "main").apps
    assert (app.kind, app.rewind) == ("unfilled", "--table levels")
    text = review(Settings.load(project), "main").markdown()
    for wanted in (
        "### `shop`: unfilled",
        "| `levels` | **unfilled** |",
        "is filled first, while the others stay live: `watertable rewind shop --table",
    ):
        assert wanted in text


def test_the_other_version_is_loaded_whole_and_leaves_no_trace(project: Path) -> None:
    (project / "assets" / "shop" / "_columns.py").write_text('SALES = "qty INT, shelf INT"\n')
    settings = Settings.load(project)
    assert outlines_at(settings, "main")["shop"].tables["stock"].value == "`qty` BIGINT"
    (app,) = review(settings, "HEAD").apps
    assert app.kind == "breaking", "a type in a module beside the app's counts"
    listed = subprocess.run(["git", "worktree", "list"], cwd=project, capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == 1


def test_a_link_out_of_the_repository_is_no_part_of_the_commit(project: Path) -> None:
    (project / "data").symlink_to("/mnt/data")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "a link")
    assert "shop" in outlines_at(Settings.load(project), "main")


def test_what_definitions_print_while_they_load_is_no_part_of_what_is_compared(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(project, ("import watertable as wt", "import watertable as wt\nprint('hello from import')"))
    git(project, "commit", "-q", "-a", "-m", "a word")
    assert main(["plan", "--from", "main", "--json"]) == 0
    told = capsys.readouterr()
    assert (json.loads(told.out)["apps"][0]["kind"], "hello from import" in told.err) == ("same", True)


def test_an_app_that_comes_or_goes_is_told(project: Path) -> None:
    shutil.rmtree(project / "assets" / "shop")
    (project / "assets" / "words").mkdir()
    (project / "assets" / "words" / "app.py").write_text(
        'import watertable as wt\napp = wt.App("words")\napp.topic("lines", value="line STRING").table().materialized_as("last")\n'
    )
    kinds = {app.app: app.kind for app in review(Settings.load(project), "main").apps}
    assert kinds == {"shop": "removed", "words": "additive"}


def test_programs_get_json_and_what_is_wrong_is_one_message(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--from", "main", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["apps"][0]["kind"] == "same"
    assert main(["plan", "--from", "nowhere"]) == 2
    assert "takes a commit, a branch or a tag" in capsys.readouterr().err
    edit(project, ('"qty"', '"quantity"'))
    assert main(["plan", "--from", "main"]) == 2, "a check of pull requests goes by that"
    assert "**A folder doesn't load**" in capsys.readouterr().out
    git(project, "commit", "-q", "-a", "-m", "a mistake")
    with pytest.raises(SettingsError, match=r"at HEAD not all apps load.*app\.py"):
        outlines_at(Settings.load(project), "HEAD")
    edit(project)
    assert review(Settings.load(project), "main~1").apps[0].lines == ()


def test_batch_assets_that_do_not_load_are_told_as_an_app_is(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "assets" / "shop" / "report.py").write_text(BATCH + "\nraise ValueError('no such shelf')\n")
    assert main(["plan", "--from", "main"]) == 2
    assert re.search(r"\*\*A folder doesn't load\*\*.*assets/shop/report.py:7: ValueError: no such shelf", capsys.readouterr().out)
    assert [app.lines for app in review(Settings.load(project), "main").apps] == [()]


def test_an_assets_folder_that_got_another_name_is_looked_for_under_its_old_one(project: Path) -> None:
    git(project, "mv", "assets", "apps")
    (project / "pyproject.toml").write_text('[tool.watertable]\nassets = ["apps"]\n')
    changed = APP.replace("assets.shop", "apps.shop").replace('group_by("shelf")', 'group_by("qty")')
    (project / "apps" / "shop" / "app.py").write_text(changed)
    (found,) = review(Settings.load(project), "main").apps
    assert (found.app, found.old is not None, found.kind) == ("shop", True, Kind.BREAKING)
    (project / "pyproject.toml").write_text('[tool.watertable]\nassets = ["apps"]\nnothing_like_it = 1\n')
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "with a setting that there isn't")
    (project / "pyproject.toml").write_text('[tool.watertable]\nassets = ["apps"]\n')
    with pytest.raises(SettingsError, match=r"the apps at main can't be loaded: .*nothing_like_it"):
        review(Settings.load(project), "main")


def test_what_apps_import_from_elsewhere_in_the_repository_is_of_the_commit_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = project.parent / "source"
    source.mkdir()
    (source / "shared_columns.py").write_text('SALES = "qty BIGINT, shelf INT"\n')
    edit(project, ("assets.shop._columns", "shared_columns"))
    git(project.parent, "add", ".")
    git(project, "commit", "-q", "-m", "columns that others use, too")
    monkeypatch.syspath_prepend(source)  # as an editable install does
    (source / "shared_columns.py").write_text('SALES = "qty INT, shelf INT"\n')
    (app,) = review(Settings.load(project), "HEAD").apps
    assert (app.kind, outlines_at(Settings.load(project), "HEAD")["shop"].tables["stock"].value) == (Kind.BREAKING, "`qty` BIGINT")
    assert "shop" in outlines_at(Settings.load(project), "main~1"), "where there was no such folder yet"


def test_before_a_project_was_in_its_repository_there_was_no_app(project: Path) -> None:
    shutil.copytree(project, other := project.parent / "other")
    (app,) = review(Settings.load(other), "main").apps
    assert (app.app, app.old, app.kind) == ("shop", None, Kind.ADDITIVE)
    with pytest.raises(SettingsError, match="takes a commit, a branch or a tag"):
        review(Settings.load(other), "main:warehouse")


def test_apps_in_a_submodule_are_not_said_to_be_new(project: Path) -> None:
    git(project, "rm", "-q", "-r", "--cached", "assets")
    git(project / "assets", "init", "-q")
    git(project / "assets", "add", ".")
    git(project / "assets", "commit", "-q", "-m", "apps of their own")
    git(project, "add", "assets")
    git(project, "commit", "-q", "-m", "as a submodule")
    with pytest.raises(SettingsError, match="the apps at main can't be loaded: assets is a submodule"):
        review(Settings.load(project), "main")
