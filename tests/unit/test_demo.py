"""What the demo says where there is no terminal to draw on, and on one that is narrow."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from watertable.project import load_apps
from watertable.settings import Settings
from watertable_platform.demo import Board, Feeding, Page

APP = """
import watertable as wt
app = wt.App("shop", owner="team:test")
stock = app.topic("sales", value="item STRING, qty INT").stream().group_by("item").agg(n=wt.sum("qty")).materialized_as("stock")
"""


@pytest.fixture
def page() -> Page:
    return Page("http://127.0.0.1:3000", "shop")


@pytest.fixture
def board(tmp_path: Path, page: Page) -> Board:
    (tmp_path / "assets" / "shop").mkdir(parents=True)
    (tmp_path / "assets" / "shop" / "app.py").write_text(APP)
    settings = Settings.load(tmp_path, kafka="127.0.0.1:1")
    return Board(settings, load_apps(settings).app("shop"), page=page)


def test_where_nothing_can_be_drawn_what_comes_about_is_said_once(board: Board, page: Page) -> None:
    assert list(board.news()) == ["Dagster http://127.0.0.1:3000 starting"]
    board.feeding = Feeding(total=5, before=3)
    assert list(board.news()) == []
    board.feeding.sent, page.state = 2, "serving"
    assert list(board.news()) == ["Dagster http://127.0.0.1:3000 serving", "all 5 records are in the topics"]
    assert list(board.news()) == []


@pytest.mark.parametrize("width", [72, 80, 120])
def test_on_a_narrow_terminal_the_bar_is_shorter_and_no_figure_is_cut(board: Board, width: int) -> None:
    board.feeding = Feeding(total=568_655, before=0, sent=468_655, at=datetime(2011, 11, 30, 8, tzinfo=UTC), began=0.0, ended=10.0)
    console = Console(width=width)
    with console.capture() as shown:
        console.print(board)
    for told in ("468,655 of 568,655 records", "30 Nov 2011 08:00", "46,866/s"):
        assert told in shown.get()
