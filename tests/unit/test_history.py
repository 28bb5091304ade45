"""What Dagster's records and the app's own say about the code that a stream runs."""

from __future__ import annotations

from pathlib import Path

from watertable.project import LoadedApp, load_apps
from watertable.settings import Settings
from watertable_platform.orchestration import lease as leases
from watertable_platform.orchestration.history import breaking_code

APP = """
import watertable as wt
app = wt.App("shop")
sales = app.topic("sales", key="item STRING", value="qty INT").stream()
sales{filter}.group_by("item").agg(n=wt.sum("qty")).materialized_as("stock")
{more}
"""


def test_code_that_would_make_tables_wrong_is_known_from_what_was_recorded(tmp_path: Path) -> None:
    settings = Settings.load(tmp_path, kafka="127.0.0.1:1")
    file = tmp_path / "assets" / "shop" / "app.py"
    file.parent.mkdir(parents=True)

    def loaded(where: str = "", more: str = "") -> LoadedApp:
        file.write_text(APP.format(filter=where, more=more))
        return load_apps(settings).app("shop")

    assert breaking_code(settings, loaded(".filter('qty > 0')")) == ""  # nothing is known
    leases.record_code(settings, loaded().topology)
    assert breaking_code(settings, loaded()) == ""
    assert breaking_code(settings, loaded(more='sales.group_by("item").count().materialized_as("counts")')) == ""
    assert "stock: a filter was put in" in breaking_code(settings, loaded(".filter('qty > 0')"))
