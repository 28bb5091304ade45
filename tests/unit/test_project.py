"""Finding apps by path: what loads, what breaks, and what a broken folder leaves alone."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from watertable.errors import DefinitionError, SettingsError
from watertable.project import Broken, load_apps
from watertable.settings import Settings

APP = """
    import watertable as wt
    app = wt.App("{name}", owner="team:test")
    lines = app.topic("{name}_lines", value="word STRING").stream()
    counts = lines.group_by("word").agg(n=wt.count()).materialized_as("counts")
"""


def write(root: Path, **files: str) -> Settings:
    for name, text in files.items():
        folder, _, stem = name.partition("__")
        (root / "assets" / folder).mkdir(parents=True, exist_ok=True)
        (root / "assets" / folder / f"{stem}.py").write_text(textwrap.dedent(text))
    return Settings.load(root)


def test_a_folder_is_an_app_and_a_broken_one_leaves_the_others_running(tmp_path: Path) -> None:
    settings = write(
        tmp_path,
        good__app=APP.format(name="good"),
        column__app=APP.format(name="column").replace('group_by("word")', 'group_by("wrod")'),
        syntax__app="x = (",
        missing__app="import no_such_module",
        leaving__app="raise SystemExit(3)",
        empty__app='import watertable as wt\napp = wt.App("empty")',
    )
    project = load_apps(settings)
    assert list(project.apps) == ["good"]
    assert sorted(project.broken) == ["column", "empty", "leaving", "missing", "syntax"]
    assert project.broken["column"].location.endswith("column/app.py:5")
    assert "wrod" in str(project.broken["column"])
    assert "syntax/app.py:1: SyntaxError" in str(project.broken["syntax"])
    assert "missing/app.py:1: ModuleNotFoundError" in str(project.broken["missing"])
    assert "leaving/app.py:1: SystemExit: 3" in str(project.broken["leaving"])
    with pytest.raises(DefinitionError, match=r"no app 'column'; there are: good\nbroken: .*wrod"):
        project.app("column")


def test_a_file_that_python_cannot_read_or_say_an_error_of_breaks_its_folder_alone(tmp_path: Path) -> None:
    settings = write(
        tmp_path,
        good__app=APP.format(name="good"),
        deep__app=f"x = {'-' * 100_000}1",
        nested__app=f"x = {'(' * 150}1{')' * 150}{'.a' * 50_000}",
        zero__app="x = 1\0",
        silent__app="class Silent(Exception):\n    def __str__(self):\n        raise self\nraise Silent",
    )
    (tmp_path / "assets" / "deep.py").write_text(f"x = {'-' * 100_000}1")
    project = load_apps(settings)
    assert list(project.apps) == ["good"]
    assert sorted(project.broken) == ["deep", "nested", "silent", "zero"]
    assert "silent/app.py:4: Silent: an error that can't be shown" in str(project.broken["silent"])


def test_days_of_an_app_that_is_not_there_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = write(tmp_path, good__app=APP.format(name="good"))
    load_apps(settings.model_copy(update={"days": {"good": "2026-01-01/.."}}))
    assert not caplog.messages
    load_apps(settings.model_copy(update={"days": {"goood": "2026-01-01/.."}}))
    assert "days: no app is called 'goood'; there are: good" in caplog.text


def test_what_a_file_prints_while_it_loads_is_no_part_of_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = load_apps(
        write(
            tmp_path,
            good__app=f"print('loading')\n{textwrap.dedent(APP.format(name='good'))}",
            good__batch="import dagster\nprint('batch')",
        )
    )
    project.batch["good"].load()
    assert capsys.readouterr() == ("", "loading\nbatch\n")


def test_an_app_that_has_no_folder_of_its_own_is_told_where_to_go(tmp_path: Path) -> None:
    settings = write(tmp_path, good__app=APP.format(name="good"))
    (tmp_path / "assets" / "shop.py").write_text(textwrap.dedent(APP.format(name="other")))
    (tmp_path / "assets" / "shared.py").write_text("SALES = 'item STRING'")
    project = load_apps(settings)
    assert list(project.apps) == ["good"]
    assert list(project.broken) == ["shop_py"]
    with pytest.raises(DefinitionError, match=r"shop.py:3: an app is in a folder of its own: move it to assets/shop/app.py"):
        project.app("other")


def test_an_app_in_a_sub_folder_is_told_where_to_go_unless_a_file_of_the_folder_has_it(tmp_path: Path) -> None:
    settings = write(tmp_path, good__app=APP.format(name="good"), has__app="from assets.has.inner.app import app")
    for name, place in {"other": "good/sub/app", "had": "has/inner/app", "tested": "good/tests/shop", "own": "good/_own/app"}.items():
        write(tmp_path, **{f"{place.rpartition('/')[0]}__{place.rpartition('/')[2]}": APP.format(name=name)})
    project = load_apps(settings)
    assert sorted(project.apps) == ["good", "had"]
    assert list(project.broken) == ["good_sub_app_py"]
    with pytest.raises(DefinitionError, match=r"good/sub/app.py:3: an app is in a folder of its own: move it to assets/sub/app.py"):
        project.app("other")


def test_an_app_whose_file_or_folder_no_import_can_name_is_told_to_be_renamed(tmp_path: Path) -> None:
    settings = write(tmp_path, good__app=APP.format(name="good"))
    for path in ("web-shop/app", "good/my-app", "good/sub/2nd", "good/tests/an-app", "_old-ones/app", ".git-x/app", "no-app/helper"):
        file = tmp_path / "assets" / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1" if file.stem == "helper" else textwrap.dedent(APP.format(name="other")))
    project = load_apps(settings)
    assert list(project.apps) == ["good"]
    assert sorted(project.broken) == ["good_my_app_py", "good_sub_2nd_py", "web_shop_app_py"]
    with pytest.raises(DefinitionError, match=r"web-shop/app.py:3: nothing can be imported from 'web-shop': rename it"):
        project.app("other")


def test_links_and_what_is_not_ours_to_read_are_no_apps_and_stop_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = write(tmp_path, good__app=APP.format(name="good"))
    assets, listed = tmp_path / "assets", Path.iterdir
    for name in ("lost+found", "good/lost+found", "good/root", "web-shop"):
        (assets / name).mkdir()
    (assets / "web-shop" / "gone.py").symlink_to("nowhere.py")
    (assets / "good" / "up-there").symlink_to("..")
    (assets / "good-as-it-is").symlink_to("good")

    def iterdir(folder: Path) -> Iterator[Path]:
        if folder.name in ("lost+found", "root"):
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    project = load_apps(settings)
    assert (list(project.apps), project.broken) == (["good"], {})


def test_apps_are_found_in_lists_and_by_keys_too(tmp_path: Path) -> None:
    made = """
        import watertable as wt
        def make(name):
            app = wt.App(name, owner="team:test")
            app.topic("lines", value="word STRING").stream().group_by("word").agg(n=wt.count()).materialized_as("counts")
            return app
        apps = [make("one"), make("two")]
        by_name = {"three": make("three"), "one": apps[0]}
        first = apps[0]
    """
    project = load_apps(write(tmp_path, made__app=made))
    assert (sorted(project.apps), project.broken) == (["one", "three", "two"], {})


def test_a_folder_that_is_called_as_a_file_is_none(tmp_path: Path) -> None:
    settings = write(tmp_path, good__app=APP.format(name="good"))
    for name in ("app.py", "good/more.py"):
        (tmp_path / "assets" / name).mkdir()
    project = load_apps(settings)
    assert (list(project.apps), project.broken) == (["good"], {})


def test_a_name_that_two_folders_claim_runs_in_neither(tmp_path: Path) -> None:
    settings = write(
        tmp_path,
        one__app=APP.format(name="shop"),
        two__app=APP.format(name="shop"),
        three__app=APP.format(name="three"),
        writer_a__app=APP.format(name="a") + '    lines.to("out")\n',
        writer_b__app=APP.format(name="b") + '    lines.to("out")\n',
    )
    project = load_apps(settings)
    assert list(project.apps) == ["three"]
    assert "one/app.py:3" in str(project.broken["two"])
    assert "two/app.py:3" in str(project.broken["two"])
    assert "output topic 'out' is defined twice" in str(project.broken["writer_a"])


def test_files_of_a_folder_import_each_other_and_an_app_is_found_once(tmp_path: Path) -> None:
    settings = write(
        tmp_path,
        shop___ddl='LINES = "word STRING"',
        shop__app="from assets.shop._ddl import LINES\n" + textwrap.dedent(APP.format(name="shop")),
        shop__more="from assets.shop.app import app, lines\nlines.to('copy')",
    )
    project = load_apps(settings)
    assert not project.broken
    assert [s.topic for s in project.app("shop").topology.sinks] == ["copy"]


def test_each_load_reads_the_files_anew(tmp_path: Path) -> None:
    before = load_apps(write(tmp_path, shop__app=APP.format(name="shop"))).app("shop").topology
    changed = APP.format(name="shop").replace("wt.count()", "wt.count(), m=wt.max('word')")
    after = load_apps(write(tmp_path, shop__app=changed)).app("shop").topology
    assert before.fingerprint != after.fingerprint


def test_an_environment_prefixes_what_the_app_makes_and_not_what_it_reads(tmp_path: Path) -> None:
    write(tmp_path, shop__app=APP.format(name="shop") + '    lines.to("out")\n')
    topology = load_apps(Settings.load(tmp_path, env="staging")).app("staging_shop").topology
    assert topology.app == "staging_shop"
    assert [s.topic for s in topology.sinks] == ["staging_out"]
    assert [t.name for t in topology.topics] == ["shop_lines"]


def test_batch_assets_wait_until_they_are_asked_for(tmp_path: Path) -> None:
    settings = write(
        tmp_path,
        shop__app=APP.format(name="shop"),
        shop__report="import dagster as dg\n\n@dg.asset\ndef report() -> None: ...\n",
        torn__report="import dagster as dg\nboom",
    )
    project = load_apps(settings)
    assert "assets.shop.report" not in sys.modules
    assert list(project.apps) == ["shop"]
    loaded = project.batch["shop"].load()
    assert not isinstance(loaded, Broken)
    assert loaded[0].report.key.path == ["report"]
    torn = project.batch["torn"].load()
    assert isinstance(torn, Broken)
    assert "torn/report.py:2: NameError" in str(torn)


@pytest.mark.parametrize("name", ["platform", "json", "pytest", "not-a-name"])
def test_an_assets_folder_never_hides_another_module(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "shop").mkdir(parents=True)
    with pytest.raises(SettingsError, match="rename the folder"):
        load_apps(Settings.load(tmp_path, assets=[name]))


def test_a_missing_assets_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no folder"):
        load_apps(Settings.load(tmp_path, assets=["nowhere"]))


def test_loading_apps_imports_neither_dagster_nor_spark(tmp_path: Path) -> None:
    write(tmp_path, shop__app=APP.format(name="shop"), shop__report="import dagster\n")
    code = (
        "import sys; from watertable.settings import Settings; from watertable.project import load_apps;"
        f"p = load_apps(Settings.load({str(tmp_path)!r})); assert list(p.apps) == ['shop'], p;"
        "heavy = {'dagster', 'pyspark', 'great_expectations', 'confluent_kafka'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
