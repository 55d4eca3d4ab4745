"""Pages in a real browser: they draw what was measured, answer keys, and run nobody's text."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import report_documents as documents
import report_topologies
import sights
from serving import Served, served
from test_report_page import hostile
from test_web_compare import A, B, large_store
from topobench.db.store import Store
from topobench.report.page import Sight, render_report
from topobench.seeing import report_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 60_000
"""Milliseconds after which a page counts as hung."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        running = playwright.chromium.launch(
            executable_path=program, headless=True, args=FLAGS, timeout=PATIENCE
        )
        yield running
        running.close()


@contextlib.contextmanager
def opened(browser: Browser, url: str, **settings: Any) -> Iterator[Page]:
    """A page without errors, dialogs or requests to anybody else."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **settings)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    wrong: list[str] = []
    start = url[: url.index("/", 8) + 1] if url.startswith("http") else "file://"

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            wrong.append(message.text)

    def asked(request: Request) -> None:
        if not request.url.startswith((start, "data:", "blob:")):
            wrong.append(request.url)

    def popped(dialog: Dialog) -> None:
        wrong.append("a dialog")
        dialog.dismiss()

    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("console", said)
    page.on("request", asked)
    page.on("dialog", popped)
    page.goto(url)
    yield page
    context.close()
    assert wrong == []


def drawn(page: Page) -> None:
    """Wait until every chart is drawn."""
    from playwright.sync_api import expect

    charts = page.locator("figure.chart").count()
    expect(page.locator("html")).to_have_attribute("data-drawn", str(charts), timeout=PATIENCE)


def plotted(page: Page, figure: str, name: str) -> dict[str, Any]:
    """A trace as Plotly holds it."""
    found: dict[str, Any] = page.evaluate(
        """([figure, name]) => {
            const plot = document.querySelector(`#${figure} .plot`);
            const index = plot.data.findIndex((t) => t.name === name);
            const trace = plot.data[index];
            return {x: Array.from(trace.x), y: Array.from(trace.y)};
        }""",
        [figure, name],
    )
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a host with four GPUs."""
    folder = tmp_path_factory.mktemp("report")
    url = sights.store_at(folder)
    report_page(url, sights.fill_rich(url), folder / "report.html")
    return f"file://{folder}/report.html"


@pytest.fixture(scope="module")
def page(browser: Browser, report: str) -> Iterator[Page]:
    """That page in a dark room, drawn once, which takes longest; what a test opens may stay so."""
    with opened(browser, report, color_scheme="dark") as page:
        drawn(page)
        yield page


def test_the_page_works_by_keyboard(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the report"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"
    button = page.locator("#h0-h2d .legend button").first
    button.focus()
    page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "false"
    shown = "document.querySelector('#h0-h2d .plot').data[0].visible"
    assert page.evaluate(shown) is False
    page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "true"
    assert page.evaluate(shown) is True
    page.locator("#h0-h2d summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("#h0-h2d tbody tr").first.is_visible()


def test_charts_are_drawn_with_the_measured_values(page: Page) -> None:
    queued = plotted(page, "h0-h2d", "GPU 0 queued")
    assert queued["x"] == [4096, 65536, 1 << 20, 16 << 20, 256 << 20]
    size = 256 << 20
    rate = size / (sights.FIXED_SECONDS + size / sights.H2D_PEAK) / 1e9
    assert queued["y"][-1] == pytest.approx(rate, rel=2e-3)
    lines = page.locator("#h0-h2d .plot path.js-line")
    assert lines.count() == 9, "queued and per call of four GPUs, and the fit"
    assert all(
        d.startswith("M") for d in lines.evaluate_all("(a) => a.map(x => x.getAttribute('d'))")
    )
    assert page.locator("#h0-gemm .plot .bars path").count() == 8
    cells = page.locator("#h0-paths .plot .heatmap-label text").all_text_contents()
    assert cells.count("X") == 4
    assert page.locator(".picture img").evaluate("(i) => i.naturalWidth") > 500


def test_rows_are_filtered_and_sorted(page: Page) -> None:
    page.fill("#filter", "gemm")
    shown = page.locator("#readings tbody tr:not([hidden])")
    assert {row.split()[0] for row in shown.all_inner_texts()} == {"gemm"}
    assert page.locator("#readings details").get_attribute("open") is not None
    assert page.locator("#hits").inner_text().endswith("rows")
    page.fill("#filter", "")
    assert page.locator("#readings details").get_attribute("open") is None
    page.locator("#h0-peer0 summary").click()
    head = page.locator("#h0-peer0 th", has_text="GPU 1")
    head.locator("button").click()
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    column = page.locator("#h0-peer0 tbody tr td:nth-child(3)").all_inner_texts()
    numbers = [float(v) for v in column if v != "-"]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == 3


def test_the_page_suits_dark_rooms_and_paper(page: Page, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    tick = page.locator("#h0-h2d .plot .xtick text").first
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(15, 19, 24)"
    expect(tick).to_have_css("fill", "rgb(230, 235, 242)")
    page.emulate_media(color_scheme="light")
    expect(tick).to_have_css("fill", "rgb(24, 32, 43)", timeout=PATIENCE)
    page.emulate_media(media="print", color_scheme="dark")
    expect(tick).to_have_css("fill", "rgb(0, 0, 0)", timeout=PATIENCE)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    assert not page.locator(".bar").is_visible()
    file = tmp_path / "page.pdf"
    page.pdf(path=file, format="A4")
    assert file.read_bytes().startswith(b"%PDF")


def test_without_scripts_words_and_tables_are_there(browser: Browser, report: str) -> None:
    """The first paint waits for no chart."""
    with opened(browser, report, java_script_enabled=False) as page:
        assert page.locator("h1").inner_text() == "gpu01 of cluster lab"
        assert page.locator("section h2").count() == 14
        page.locator("#h0-h2d summary").click()
        assert page.locator("#h0-h2d tbody tr").first.is_visible()


def test_hostile_text_runs_nothing_and_is_seen(browser: Browser, tmp_path: Path) -> None:
    document = hostile(documents.troubled_sweep())
    key = document["hosts"][0]["key"]
    topology = report_topologies.hgx().to_json()
    topology["nics"][0]["name"] = "<img src=x onerror=alert(3)>"
    for path in topology["paths"]:
        path["b"] = path["b"].replace("mlx5_0", "<img src=x onerror=alert(3)>")
    file = tmp_path / "hostile.html"
    file.write_text(render_report(Sight(document, {key: topology})))
    with opened(browser, f"file://{file}") as page:
        drawn(page)
        assert page.locator("h1").inner_text().startswith("<img src=x onerror=alert(1)>")
        assert page.locator("main img").count() == page.locator(".picture img").count() == 1
        ticks = page.locator("#h0-paths .plot .xtick text").all_text_contents()
        assert "<img src=x onerror=alert(3)>" in ticks
        assert page.locator(".plot a").count() == 0


def test_the_web_page_is_searched_asked_and_walked(browser: Browser, tmp_path: Path) -> None:
    url = sights.store_at(tmp_path)
    names = [f"h{n:02d}" for n in range(1, 14)] + ["<script>alert(1)</script>"]
    sights.fill(url, [sights.host(n, gpus=0) for n in names], probes="host_memory")
    with served(url) as server, opened(browser, f"{server.url}/") as page:
        assert page.locator(".grid a").count() == 14
        page.fill("input[name=q]", "<script>")
        page.get_by_role("button", name="Search").click()
        assert page.locator("h2 >> nth=0").inner_text() == "Hosts (1 of 14)"
        page.locator("table a", has_text="<script>").first.click()
        drawn(page)
        assert page.locator("h1").inner_text() == "<script>alert(1)</script>"
        memory = page.evaluate("document.querySelector('#h0-memory0 .plot').data[0].z")
        assert memory[0][0] == pytest.approx(240, rel=3e-3)
        page.get_by_role("link", name="Ask").click()
        page.get_by_role("link", name="Latest readings").click()
        page.fill("input[name=host]", "h02")
        page.fill("input[name=since]", "3650d")
        page.get_by_role("button", name="Run").click()
        rows = page.locator("tbody tr")
        assert {row.split("\t")[1] for row in rows.all_inner_texts()} == {"h02"}
        with page.expect_download() as waiting:
            page.get_by_role("link", name="CSV").click()
        assert waiting.value.suggested_filename == "latest.csv"


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """A server, and its store of two nights that are worth a process to compare."""
    url = large_store(tmp_path_factory.mktemp("nights"))
    with served(url) as server:
        yield server, url


def test_a_running_sweep_shows_its_progress_until_it_ends(
    browser: Browser, nights: tuple[Served, str]
) -> None:
    from playwright.sync_api import expect

    server, url = nights
    host = sights.host("h01", gpus=0)
    sweep = sights.fill(url, [host], probes="host_memory", end=None, most=1)
    with (
        opened(browser, f"{server.url}/sweep/{sweep}") as page,
        Store.open(url) as store,
    ):
        words = page.locator("[data-words]")
        assert words.inner_text().startswith("1 of ")
        cells, _ = store.cells_to_resume(sweep)
        store.put_run(sights.run_of(cells[0], host.topology))
        expect(words).to_have_text(re.compile("^2 of "), timeout=PATIENCE)
        store.end_sweep(sweep)
        page.wait_for_selector("header .tag.done")
        assert page.locator("[data-progress]").count() == 0


def test_a_long_comparison_is_shown_when_it_is_found(
    browser: Browser, nights: tuple[Served, str]
) -> None:
    """With scripts the page asks how far it is; without, it asks for itself again."""
    from playwright.sync_api import expect

    for a, b, scripts in ((A, B, True), (B, A, False)):
        url = f"{nights[0].url}/compare?a={a}&b={b}"
        with opened(browser, url, java_script_enabled=scripts) as page:
            # What was asked first is never there at once.
            expect(page.locator("#found")).to_have_text("equivalent", timeout=PATIENCE)
            assert page.locator("[data-progress]").count() == 0
            assert page.locator("input[name=a]").input_value() == a
