"""What the demo says where there is no terminal to draw on."""

from __future__ import annotations

from pathlib import Path

from watertable.project import load_apps
from watertable.settings import Settings
from watertable_platform.demo import Board, Feeding, Page

APP = """
import watertable as wt
app = wt.App("shop", owner="team:test")
stock = app.topic("sales", value="item STRING, qty INT").stream().group_by("item").agg(n=wt.sum("qty")).materialized_as("stock")
"""


def test_where_nothing_can_be_drawn_what_comes_about_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "assets" / "shop").mkdir(parents=True)
    (tmp_path / "assets" / "shop" / "app.py").write_text(APP)
    settings = Settings.load(tmp_path, kafka="127.0.0.1:1")
    page = Page("http://127.0.0.1:3000", "shop")
    board = Board(settings, load_apps(settings).app("shop"), page=page)
    assert list(board.news()) == ["Dagster http://127.0.0.1:3000 starting"]
    board.feeding = Feeding(total=5, before=3)
    assert list(board.news()) == []
    board.feeding.sent, page.state = 2, "serving"
    assert list(board.news()) == ["Dagster http://127.0.0.1:3000 serving", "all 5 records are in the topics"]
    assert list(board.news()) == []
