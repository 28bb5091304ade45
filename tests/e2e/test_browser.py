"""A person at Dagster's page, in a real Chromium: the graph, a table with its plots, a stream launched and terminated by clicking."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from playwright.sync_api import Page, expect, sync_playwright

if TYPE_CHECKING:
    from tests.e2e.conftest import Dagster, Project

CHROMIUM: Final = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS: Final = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
)
PATIENCE: Final = 240_000
"""Milliseconds: generous, as it is only spent where the machine is busy."""
PICTURES: Final = os.environ.get("WATERTABLE_PICTURES")
RUN: Final = re.compile(r"/runs/[0-9a-f-]{36}")

pytestmark = [
    pytest.mark.e2e, pytest.mark.kafka, pytest.mark.spark,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH (Debian: apt install chromium; or CHROMIUM=/path)"),
]  # fmt: skip


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS.split())
        opened = browser.new_page(viewport={"width": 1440, "height": 900})
        opened.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield opened
        browser.close()


def picture(page: Page, name: str, folder: Path) -> None:
    page.wait_for_timeout(2000)  # let drawings settle
    file = (Path(PICTURES) if PICTURES else folder) / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(file))
    assert file.stat().st_size > 20_000  # a blank page is smaller


def test_a_person_launches_looks_and_terminates(project: Project, dagster: Dagster, page: Page, tmp_path: Path) -> None:
    project.send(*[(f"i{n % 10}", n) for n in range(1000)])

    # launch, by clicking
    page.goto(f"{dagster.url}/locations/watertable/jobs/stream__shop/playground", wait_until="domcontentloaded")
    page.get_by_role("button", name="Launch Run").click()
    page.wait_for_url(RUN, wait_until="domcontentloaded")
    run = page.url.rpartition("/runs/")[2][:36]
    dagster.until("the table is materialized", lambda: dagster.materializations("shop", "stock"))
    dagster.until("its checks pass", lambda: dagster.check("stock", "stream_alive").get("success"))
    expect(page.get_by_text("shop@1.1").first).to_be_visible()
    picture(page, "run", tmp_path)

    # the graph
    page.goto(f"{dagster.url}/asset-groups", wait_until="domcontentloaded")
    for node in ("sales", "stock", "hourly", "reorders", "totals"):
        expect(page.get_by_text(node, exact=True).last).to_be_visible()
    expect(page.get_by_text("Delta Lake").first).to_be_visible()
    expect(page.get_by_text("Observed").first).to_be_visible()
    picture(page, "graph", tmp_path)

    # a table's page: what it is, how to read it, its columns, its plots
    page.goto(f"{dagster.url}/assets/shop/stock", wait_until="domcontentloaded")
    for words in ("Two ways to read it", "at most the fold lag behind", "Latest materialization", "BIGINT"):
        expect(page.get_by_text(words).first).to_be_visible()
    picture(page, "table", tmp_path)
    page.get_by_role("button", name="Plots").click()
    for plot in ("lag sales", "records/s", "batch ms", "rows changed", "quarantined"):
        expect(page.get_by_text(plot, exact=True).first).to_be_visible()
    expect(page.locator("canvas").first).to_be_visible()
    picture(page, "plots", tmp_path)
    page.goto(f"{dagster.url}/assets/shop/stock?view=checks", wait_until="domcontentloaded")
    for check in ("stream_alive", "deployed_code", "freshness", "fold_lag", "quarantine"):
        expect(page.get_by_text(check).first).to_be_visible()
    picture(page, "checks", tmp_path)

    # terminate, by clicking: it stays stopped
    page.goto(f"{dagster.url}/runs/{run}", wait_until="domcontentloaded")
    page.get_by_role("button", name="Terminate").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^Terminate")).click()
    dagster.until("it is canceled", lambda: dagster.run(run)["status"] == "CANCELED")
    assert not [command for command in project.processes().values() if " run shop --json" in command]
    assert "watertable/ended" not in {name for name, value in dagster.run(run)["tags"].items() if value}  # a person's stop, not a crash
