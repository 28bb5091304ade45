"""Make the README's pictures from a demo that runs: `watertable demo` in one terminal, `python docs/pictures.py` in another.

Execute the checks of `prices` once before, when all days are reported: the page is taken as it stands.

Pages are taken in a real browser (Chromium, found on PATH or brought by Playwright), terminal pictures are what Rich would print, as
SVG, and the plot is the one that the notebook draws. Nothing is retouched.
"""

from __future__ import annotations

import argparse
import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ROOT / "docs" / "images"
WIDTH: Final = 116
PAGES: Final = {
    "graph": ("/locations/watertable/asset-groups/retail/lineage", 1800, 1660),
    "table": ("/assets/retail/revenue_hourly", 1500, 1000),
    "checks": ("/assets/retail/prices?view=checks&checkDetail=price_between", 1500, 900),
}
QUERY: Final = (
    "SELECT country, sum(revenue) AS revenue, sum(lines) AS lines FROM revenue_hourly GROUP BY country ORDER BY revenue DESC LIMIT 8"
)


def terminal(name: str, shown: object, title: str) -> None:
    """Save what Rich would print as SVG."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, highlight=False)
        console.print(shown)
    console.save_svg(str(IMAGES / f"{name}.svg"), title=title)
    print(f"docs/images/{name}.svg")


def board(url: str) -> None:
    """Draw what the demo shows, from the same places: the tables' Delta logs, the topics' ends."""
    from watertable.kafka.admin import Admin
    from watertable.kafka.config import Cluster
    from watertable.project import load_apps
    from watertable.settings import Settings
    from watertable_platform.demo import Board, Feeding, Page, Script

    settings = Settings.load()
    script = Script.of(load_apps(settings).apps.values())
    admin = Admin(Cluster.of(settings))
    planned = script.schedule(None, Console())
    ends = admin.latest(admin.partitions(planned.topics))
    last = max(planned.last(ends), key=lambda record: record.at)
    page = Page(url, script.app.name)
    page.state = "serving"
    drawn = Board(settings, script.app, admin, page, script.tour())
    drawn.feeding = Feeding(total=len(planned), before=sum(ends.values()), at=last.at)
    drawn.look()
    terminal("demo", drawn, "make demo")


def query() -> None:
    """Show a query as the command line prints it."""
    command = [sys.executable, "-m", "watertable_platform", "query", "revenue_hourly", "--sql", QUERY]
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TTY_COMPATIBLE": "1"}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    terminal("query", Text.from_ansi(said), 'watertable query revenue_hourly --sql "…"')


def pages(url: str) -> None:
    """Photograph Dagster's pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for name, (path, width, height) in PAGES.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.goto(url + path, wait_until="domcontentloaded", timeout=180_000)
            page.wait_for_timeout(20_000)  # the graph is laid out after everything is loaded, and says nothing when it is
            page.screenshot(path=IMAGES / f"{name}.png")
            page.close()
            print(f"docs/images/{name}.png")
        browser.close()


def plot() -> None:
    """Run the notebook, keep its outputs, and take its plot."""
    import nbclient
    import nbformat

    file = ROOT / "notebooks" / "retail.ipynb"
    notebook = nbformat.read(file, as_version=4)
    where = {"metadata": {"path": str(file.parent)}}
    nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3", resources=where).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        cell.outputs = [o for o in cell.get("outputs", []) if o.get("name") != "stderr"] if cell.cell_type == "code" else []
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                (IMAGES / "revenue.png").write_bytes(base64.b64decode(output["data"]["image/png"]))
        if cell.cell_type != "code":
            del cell["outputs"]
    nbformat.write(notebook, file)
    print("docs/images/revenue.png")


def main() -> None:
    """Make the pictures that are asked for, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="*", default=["board", "pages", "query", "plot"])
    parser.add_argument("--url", default="http://127.0.0.1:3000", help="where Dagster's page is")
    asked = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    for picture in asked.pictures:
        match picture:
            case "board":
                board(asked.url)
            case "pages":
                pages(asked.url)
            case "query":
                query()
            case "plot":
                plot()
            case other:
                parser.error(f"no picture {other!r}: board, pages, query, plot")


if __name__ == "__main__":
    main()
