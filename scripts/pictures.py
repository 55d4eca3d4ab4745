"""
Draw the pictures of the documentation anew, with the tool itself and a headless Chromium.

Run with the environment of developers; takes about three minutes::

    .venv/bin/python scripts/pictures.py

Two kinds: of the synthetic fleet that ``topobench demo`` makes, which says so where it is
shown, and of the real sweep that tests/recorded holds.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from topobench.report.page import Sight, render_report  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = ROOT / "docs" / "images"
WIDTH = 1000
DEMO = "topobench-demo.db"
PCIE = "synthetic-pcie"
OF_REAL = {
    "copies": "#h0-h2d",
    "all-reduce": "#h0-busbw0",
    "peer": "#h0-peer2",
    "roofline": "#h0-roofline-section",
}
OF_SLOW_SLOT = {
    "wiring": ".picture",
    "paths": "#h10-paths",
    "spread": "#fleet-spread",
}
OF_HEALTHY = {"arms": "#h0-arms", "prefill": "#h0-prefill"}
OF_PCIE = {"rings": "#h0-busbw0"}
OF_WEB = {
    "fleet": "/",
    "compare": "/compare?a=host:h01&b=host:h07&synthetic=1",
    "host": "/host?cluster=synthetic-sxm&key=synthetic-h11",
}


def topobench(*arguments: str) -> str:
    """Standard output of a command."""
    command = [sys.executable, "-m", "topobench", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode and arguments[0] != "check":  # which tells of planted faults by its code
        raise SystemExit(f"{' '.join(arguments)}: exit {done.returncode}")
    return done.stdout


def recorded(folder: Path) -> Path:
    """The report of the recorded sweep."""
    packed = (ROOT / "tests" / "recorded" / "two_h200.json.xz").read_bytes()
    file = folder / "recorded.html"
    file.write_text(render_report(Sight(json.loads(lzma.decompress(packed))["data"])))
    return file


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The URL of the web page over the demo's store, which it calls by its name alone."""
    command = [sys.executable, "-m", "topobench", "serve", "--store", f"sqlite:///{DEMO}"]
    process = subprocess.Popen(
        [*command, "--port", "0"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.wait(timeout=30)


def opened(browser: Browser, url: str, width: int = WIDTH) -> Page:
    """A page whose charts are all drawn."""
    page = browser.new_page(viewport={"width": width, "height": 860})
    page.goto(url)
    charts = page.locator("figure.chart").count()
    page.wait_for_function(f"!{charts} || document.documentElement.dataset.drawn == '{charts}'")
    return page


def shoot(browser: Browser, url: str, wanted: dict[str, str]) -> None:
    """A picture of each part of a page."""
    page = opened(browser, url)
    page.add_style_tag(content=".bar{position:static!important}")
    for name, selector in wanted.items():
        page.locator(selector).first.screenshot(path=IMAGES / f"{name}.png")
    page.close()


def newest(store: str, cluster: str) -> str:
    """Id of a cluster's newest sweep."""
    sql = (
        "SELECT s.uuid FROM sweep s JOIN cluster c ON c.id = s.cluster_id "
        f"WHERE c.name = '{cluster}' ORDER BY s.started_at DESC LIMIT 1"
    )
    answer = json.loads(topobench("query", "--sql", sql, "--store", store, "--format", "json"))
    return str(answer["data"]["rows"][0][0])


def report(folder: Path, store: str, sweep: str, host: str) -> str:
    """The URL of a report that shows one host in detail."""
    file = folder / f"{host}.html"
    topobench("report", sweep, "--store", store, "--html", str(file), "--hosts", host)
    return file.as_uri()


def main() -> None:
    """All of them."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        store = f"sqlite:///{folder / DEMO}"
        topobench("demo", "--store", store)
        topobench("check", "--store", store)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        shoot(browser, recorded(folder).as_uri(), OF_REAL)
        shoot(browser, report(folder, store, "latest", "h11"), OF_SLOW_SLOT)
        shoot(browser, report(folder, store, "latest", "h01"), OF_HEALTHY)
        shoot(browser, report(folder, store, newest(store, PCIE), "p01"), OF_PCIE)
        with served(folder) as url:
            for file, path in OF_WEB.items():
                page = opened(browser, url + path, width=1220)
                page.screenshot(path=IMAGES / f"{file}.png")
        browser.close()
    for made in sorted(IMAGES.glob("*.png")):
        print(f"{made.relative_to(ROOT)}  {made.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
