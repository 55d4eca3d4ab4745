"""
How long pages take: the report of an 8-GPU sweep, and the web page over a store.

Bars: report of a standard sweep of eight GPUs in 3 s and 8 MB; web pages in 300 ms of server
time on 10 million readings; the idle server within 120 MB. Run::

    python benchmarks/pages_bar.py [--store URL]

Without a store the web pages are those of the sweep made here.
"""

from __future__ import annotations

import argparse
import html
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote, urlencode

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import sights  # noqa: E402
from serving import Served, served  # noqa: E402
from topobench.seeing import report_page  # noqa: E402

ROUNDS = 5


def report(folder: Path) -> str:
    """Time and size of the report; returns the URL of its store."""
    url = sights.store_at(folder)
    sweep = sights.fill(
        url,
        [sights.host()],
        profile="standard",
        rings=["auto", "auto_ring", "best", "worst"],
        blocks=6,
    )
    file = folder / "report.html"
    walls, cpus = [], []
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        cells = len(report_page(url, sweep, file).data["cells"])
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    print(
        f"report --html, 8 GPUs, {cells} cells: first {walls[0]:.2f} s, then "
        f"{statistics.median(walls):.2f} s ({statistics.median(cpus):.2f} s of CPU), "
        f"{file.stat().st_size / 1e6:.1f} MB; bars 3 s, 8 MB"
    )
    return url


def cpu_seconds(server: Served) -> float:
    """CPU time that the server used so far; the kernel counts it in steps of 10 ms."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pages(server: Served) -> None:
    """Time of each page, the first time and after."""
    print(f"server after start: {server.resident_bytes() / 1e6:.0f} MB resident; bar 120 MB")
    first = server.ask("/").text
    host = html.unescape(re.findall(r'href="(/host[^"]*)"', first)[0])
    sweep = re.findall(r'href="(/sweep/[^"]*)"', first)[0]
    name = html.unescape(re.findall(r'href="/host[^"]*"[^>]*>([^<]+)<', first)[0])
    asked = f"/query/latest?run=1&host={quote(name)}"
    compared = comparison(server)
    for path in ("/", host, sweep, "/sweeps", "/query", asked, *compared, "/metrics", "/healthz"):
        seconds, used = [], []
        for _ in range(ROUNDS):
            start, before = time.perf_counter(), cpu_seconds(server)
            answer = server.ask(path)
            seconds.append(time.perf_counter() - start)
            used.append(cpu_seconds(server) - before)
            assert answer.status in (200, 202), answer.text[-500:]
        print(
            f"  {path[:44]:44} first {1e3 * seconds[0]:6.0f} ms "
            f"({1e3 * used[0]:.0f} ms of CPU), then "
            f"{1e3 * statistics.median(seconds[1:]):6.0f} ms "
            f"({1e3 * statistics.median(used[1:]):.0f} ms of CPU); bar 300 ms"
        )
    for path in compared:
        whole(server, path)
    print(f"server after these pages: {server.resident_bytes() / 1e6:.0f} MB resident")


def comparison(server: Served) -> list[str]:
    """The page that compares the two newest nights that there are, if there are two."""
    days = sorted(set(re.findall(r"<td[^>]*>(\d{4}-\d\d-\d\d) ", server.ask("/sweeps").text)))
    query = urlencode({"a": f"date:{days[-2]}", "b": f"date:{days[-1]}"}) if days[1:] else ""
    return [f"/compare?{query}"] if query else []


def whole(server: Served, path: str) -> None:
    """When a comparison that takes long is there, after it was first asked for; and then again."""
    start = time.perf_counter()
    while server.ask(path).status == 202:
        time.sleep(0.1)
    waited = time.perf_counter() - start
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        assert server.ask(path).status == 200
        seconds.append(time.perf_counter() - start)
    print(
        f"  {path[:44]:44} whole after another {waited:.1f} s, then "
        f"{1e3 * statistics.median(seconds):6.0f} ms"
    )


def main() -> None:
    """Print every figure with the machine it was taken on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="URL of a store to show instead")
    given = parser.parse_args().store
    print(f"{platform.node()}, {platform.machine()}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as name:
        url = report(Path(name))
        with served(given or url) as server:
            pages(server)


if __name__ == "__main__":
    main()
