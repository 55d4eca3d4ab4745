"""The web page: what it shows, whom it lets in, and what it never does."""

from __future__ import annotations

import asyncio
import html
import re
import socket
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
import uvicorn

import sights
from serving import Served, served
from topobench import cli
from topobench.db import look
from topobench.db.store import Store
from topobench.errors import StoreError, UsageError
from topobench.web import metrics, pages, patience
from topobench.web.app import Address, _health, _own_path, _unreadable, make_app
from topobench.web.guard import HEADERS, read_token
from topobench.web.site import Site

HOSTILE = "<script>alert(1)</script>"
TOKEN = "a-token-of-more-than-sixteen-characters"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three CPU hosts, one of a hostile name; two sweeps, the newer one under way; a verdict."""
    url = sights.store_at(tmp_path_factory.mktemp("web"))
    hosts = [sights.host(name, gpus=0) for name in ("h01", "h02", HOSTILE)]
    first = sights.fill(url, hosts, probes="host_memory", day=27)
    sights.fill(url, hosts[:1], probes="host_memory", day=28, end=None, most=1)
    path = url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as file:
        for name, check, level in (("h01", "overall", "ok"), ("h02", "overall", "fail")):
            file.execute(
                "INSERT INTO verdict (host_id, sweep_id, as_of, check_name, level, reason, "
                "policy_version, inputs_digest) SELECT h.id, s.id, s.started_at, ?, ?, ?, '1', 'd' "
                "FROM host h, sweep s WHERE h.name = ? AND s.uuid = ?",
                (check, level, f"because {HOSTILE}", name, first),
            )
    return url


@pytest.fixture(scope="module")
def server(store: str) -> Iterator[Served]:
    with served(store) as running:
        yield running


def links(text: str, start: str) -> list[str]:
    return [html.unescape(x) for x in re.findall(rf'href="({re.escape(start)}[^"]*)"', text)]


def test_the_fleet_shows_each_host_with_its_verdict_and_age(server: Served) -> None:
    answer = server.ask("/")
    assert answer.status == 200
    assert "3 hosts in sqlite:///" in answer.text
    rows = re.findall(r"<tr><td><a href=\"/host.*?</tr>", answer.text, re.DOTALL)
    assert len(rows) == 3
    by_name = {re.sub("<[^>]+>", "|", r).split("|")[3]: r for r in rows}
    assert 'class="tag fail"' in by_name["h02"]
    assert 'class="tag ok"' in by_name["h01"]
    assert "ago" in by_name["h01"]
    assert html.escape(HOSTILE) in by_name
    assert HOSTILE not in answer.text


def test_the_fleet_can_be_searched_by_name_and_verdict(server: Served) -> None:
    assert "Hosts (1 of 3)" in server.ask("/?q=H02").text
    assert "Hosts (1 of 3)" in server.ask("/?level=ok").text
    nothing = server.ask(f"/?q={quote(HOSTILE)}x")
    assert "No host fits." in nothing.text
    assert HOSTILE not in nothing.text


def test_a_host_shows_its_newest_ended_sweep_in_figures(server: Served) -> None:
    link = next(x for x in links(server.ask("/").text, "/host") if "h01" in x)
    answer = server.ask(link)
    assert answer.status == 200
    assert '<figure class="chart" id="h0-memory0">' in answer.text
    assert "/static/plotly.js" in answer.text
    assert answer.text.count('<tr><td><a href="/sweep/') == 2
    assert server.ask("/host?cluster=lab&key=nobody").status == 404


def test_a_sweep_of_several_hosts_lists_them_with_their_verdicts(
    server: Served, store: str
) -> None:
    with Store.open(store, create=False, read_only=True) as opened:
        newest, first = (s["id"] for s in opened.sweeps())
    answer = server.ask(f"/sweep/{first}")
    assert len(links(answer.text, f"/sweep/{first}?host=")) == 3
    assert f"because {html.escape(HOSTILE)}" in answer.text
    one = server.ask(links(answer.text, f"/sweep/{first}?host=")[0])
    assert '<figure class="chart" id="h0-memory0">' in one.text
    running = server.ask(f"/sweep/{newest}")
    assert f'data-url="/sweep/{newest}/progress"' in running.text
    progress = server.ask(f"/sweep/{newest}/progress")
    assert '"status":"running"' in progress.text
    assert '"words":"1 of ' in progress.text
    assert server.ask("/sweep/ffffffff").status == 404
    assert server.ask(f"/sweep/{first}?host=nobody").status == 404


def test_the_report_of_a_sweep_can_be_taken_home(server: Served, store: str) -> None:
    with Store.open(store, create=False, read_only=True) as opened:
        first = opened.sweeps()[-1]["id"]
    answer = server.ask(f"/sweep/{first}/report.html")
    assert answer.status == 200
    assert answer.headers["content-disposition"] == (
        f'attachment; filename="topobench-{first[:8]}.html"'
    )
    assert answer.text.rstrip().endswith("</html>")
    assert "3 hosts of cluster lab" in answer.text
    assert html.escape(HOSTILE) in answer.text
    assert server.ask("/sweep/--help/report.html").status == 404


def test_named_queries_have_forms_answers_and_csv(server: Served) -> None:
    listed = server.ask("/query")
    assert len(links(listed.text, "/query/")) >= 26
    form = server.ask("/query/latest")
    assert 'name="host" value="%"' in form.text
    assert "<tbody>" not in form.text
    answer = server.ask("/query/latest?run=1&host=h02&since=3650d")
    shown = int(re.search(r"(\d+) rows", answer.text)[1])  # type: ignore[index]
    assert re.search(r"<td[^>]*>2[34]\d\.\d GB/s</td>", answer.text), (
        "human units; the CSV has none"
    )
    csv = server.ask("/query/latest.csv?host=h02&since=3650d")
    assert csv.headers["content-type"].startswith("text/csv")
    assert csv.headers["content-disposition"] == 'attachment; filename="latest.csv"'
    lines = csv.text.splitlines()
    assert lines[0].startswith("cluster,host,devices,probe")
    assert len(lines) == shown + 1
    stranger = server.ask("/query/latest?run=1&host=h99").text
    assert "<p>No host of this store is called &#39;h99&#39;" in stranger
    assert server.ask("/query/no-such?run=1").status == 400
    assert server.ask("/query/latest?run=1&host=%00").status == 400
    wrong = server.ask(f"/query/latest?run=1&since={quote(HOSTILE)}")
    assert wrong.status == 400
    assert html.escape(HOSTILE) in wrong.text
    (back,) = links(wrong.text, "/query/latest?")
    again = server.ask(back)
    assert again.status == 200, "the form as it was sent, not asked again"
    assert f'value="{html.escape(HOSTILE)}"' in again.text


def test_two_selections_are_compared(server: Served) -> None:
    answer = server.ask("/compare?a=host:h01,date:2026-11-27&b=host:h02,date:2026-11-27")
    assert answer.status == 200
    assert "inconclusive" in answer.text
    assert "host_memory" in answer.text
    assert server.ask("/compare").status == 200
    again = server.ask("/compare?a=host:h01,date:2026-11-27&b=host:h02,date:2026-11-27")
    assert again.text == answer.text, "kept, for nothing was measured since"
    refused = server.ask(f"/compare?a={quote(HOSTILE)}x&b=latest")
    assert refused.status == 400
    assert html.escape(HOSTILE) in refused.text
    assert HOSTILE not in refused.text


def test_free_sql_is_not_offered(server: Served) -> None:
    assert server.ask("/query?sql=select+1").text == server.ask("/query").text
    assert server.ask("/sql").status == 404


def test_metrics_are_gauges_of_verdict_age_and_newest_sweep(server: Served) -> None:
    answer = server.ask("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if line[:1] != "#")
    assert values['topobench_host_verdict_level{cluster="lab",host="h02",synthetic="0"}'] == "5.0"
    assert values['topobench_host_verdict_level{cluster="lab",host="h01",synthetic="0"}'] == "2.0"
    assert values['topobench_hosts{cluster="lab",verdict="fail"}'] == "1.0"
    assert values['topobench_hosts{cluster="lab",verdict="not_judged"}'] == "1.0"
    assert values["topobench_store_up"] == "1.0"
    at = values[
        'topobench_host_last_measured_timestamp_seconds{cluster="lab",host="h02",synthetic="0"}'
    ]
    assert 1.7e9 < float(at) < 2e9
    assert values['topobench_sweep_cells{cluster="lab",status="ok"}'] == "1.0"
    assert "GPU-" not in answer.text, "a series for each GPU would be too many"


def test_every_answer_carries_the_headers_that_shut_a_browser(server: Served) -> None:
    for path in ("/", "/nothing", "/healthz", "/static/page.js", "/query/latest.csv"):
        headers = server.ask(path).headers
        assert {k: headers.get(k) for k in HEADERS} == dict(HEADERS)
        assert "server" not in headers
    assert server.ask("/").headers["cache-control"] == "no-store"
    assert "script-src 'self';" in HEADERS["content-security-policy"]


def test_nothing_can_be_changed(server: Served, store: str) -> None:
    before = Path(store.removeprefix("sqlite:///")).read_bytes()
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert server.ask("/", data=b"x=1", method=method).status == 405
    for path in ("/", "/sweeps", "/query/latest?run=1", "/metrics"):
        assert server.ask(path).status == 200
    assert Path(store.removeprefix("sqlite:///")).read_bytes() == before


def test_a_page_of_another_origin_cannot_ask_under_its_own_name(server: Served) -> None:
    """A name that was pointed at 127.0.0.1 is not ours."""
    assert server.ask("/", headers={"Host": "evil.example"}).status == 421
    assert server.ask("/", headers={"Host": "localhost:9"}).status == 200
    assert server.ask("/static/../guard.py").status == 404


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    return file


def test_with_a_token_nothing_is_told_without_it(store: str, token_file: Path) -> None:
    with served(store, "--token-file", str(token_file)) as server:
        assert server.ask("/").status == 401
        assert "h01" not in server.ask("/").text
        assert server.ask("/metrics").status == 401
        assert server.ask("/healthz").text == '{"status":"ok"}'
        assert server.resident_bytes() <= 120 << 20, "an idle server is small"
        assert server.ask("/", headers={"Authorization": "Bearer wrong"}).status == 401
        assert "h01" in server.ask("/", headers={"Authorization": f"Bearer {TOKEN}"}).text
        asked = server.ask("/sweeps", headers={"Accept": "text/html"})
        assert (asked.status, asked.headers["location"]) == (303, "/login?next=/sweeps")
        asked = server.ask("/compare?a=h%3A1&b=%25", headers={"Accept": "text/html"})
        entered = server.ask(asked.headers["location"], data=f"token={TOKEN}".encode())
        assert entered.headers["location"] == "/compare?a=h%3A1&b=%25", "the whole question"
        assert server.ask("/login", data=b"token=wrong").status == 403
        entered = server.ask("/login?next=/sweeps", data=f"token={TOKEN}".encode())
        assert (entered.status, entered.headers["location"]) == (303, "/sweeps")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        assert server.ask("/sweeps", headers={"Cookie": cookie.split(";")[0]}).status == 200
        assert server.ask("/sweeps", headers={"Cookie": "topobench=x"}).status == 401


def test_beyond_this_host_a_token_is_needed() -> None:
    with pytest.raises(UsageError, match="--token-file"):
        Address.of("0.0.0.0", 0, None)
    assert Address.of("127.0.0.1", 0, None).token is None


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [("short", 0o600, "16 characters"), (TOKEN, 0o644, "chmod 600"), (f"{TOKEN}\nx", 0o600, "one")],
)
def test_a_weak_or_open_token_is_refused(tmp_path: Path, text: str, mode: int, words: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(UsageError, match=words):
        read_token(file)


@pytest.mark.parametrize("text", ["//evil.example", "/\\evil.example", "https://evil", "/a\nb", ""])
def test_the_way_on_after_the_token_leads_nowhere_else(text: str) -> None:
    assert _own_path(text) == "/"


def test_without_a_store_every_page_says_what_makes_one(tmp_path: Path) -> None:
    """The server may be up before the first sweep; it sees the store once it is there."""
    url = sights.store_at(tmp_path)
    with served(url) as server:
        answer = server.ask("/")
        assert answer.status == 503
        assert "topobench probe" in answer.text
        assert server.ask("/healthz").status == 503
        assert "topobench_store_up 0.0" in server.ask("/metrics").text
        with Store.open(url):
            pass
        empty = server.ask("/")
        assert empty.status == 200
        assert "No host was measured yet." in empty.text
        assert "No sweep is stored yet." in server.ask("/sweeps").text
        assert server.ask("/query/latest?run=1").status == 200


def test_a_store_that_was_moved_or_replaced_is_not_shown_any_longer(tmp_path: Path) -> None:
    """SQLite would read on in the file that it opened, whatever became of it."""
    first, second = (sights.store_at(tmp_path / n) for n in ("one", "two"))
    for url, name in ((first, "h01"), (second, "h02")):
        Path(url.removeprefix("sqlite:///")).parent.mkdir()
        sights.fill(url, [sights.host(name, gpus=0)], probes="host_memory", most=1)
    path, other = (Path(url.removeprefix("sqlite:///")) for url in (first, second))
    with served(first) as server:
        assert ">h01<" in server.ask("/").text
        path.rename(tmp_path / "away.db")
        assert (server.ask("/").status, server.ask("/healthz").status) == (503, 503)
        other.rename(path)
        answer = server.ask("/")
        assert (">h01<" in answer.text, ">h02<" in answer.text) == (False, True)


def test_the_page_of_a_store_names_what_helps_it(tmp_path: Path) -> None:
    """The command that the error names, over the same store; a damaged one is not measured anew."""
    site = Site(sights.store_at(tmp_path))
    for made, helps in (
        (b"", "topobench probe"),
        (b"not a database, but long enough to be read as the head of one", None),
    ):
        Path(site.url.removeprefix("sqlite:///")).write_bytes(made)
        with pytest.raises(StoreError) as caught:
            site.store()
        page = bytes(_unreadable(site, caught.value).body).decode()
        assert ("What helps:" in page) is (helps is not None)
        assert f"<code>{helps} --store {site.url}</code>" in page or helps is None
    assert "name another file or move it away" in page
    edited = StoreError("row 1 holds 7; `topobench db check` lists what else there is")
    page = bytes(_unreadable(site, edited).body).decode()
    assert f"<code>topobench db check --store {site.url}</code>" in page


def test_health_is_of_the_store_and_not_of_what_a_hand_wrote_into_it(tmp_path: Path) -> None:
    url = sights.store_at(tmp_path)
    sights.fill(url, [sights.host("h01", gpus=0)], probes="host_memory", most=1)
    site = Site(url)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
        file.execute("UPDATE sweep SET cluster_id = 77, labels = 'x', started_at = 'x'")
    assert _health(site).status_code == 200
    assert b"topobench_store_up 0.0" in metrics.exposition(site)
    Path(url.removeprefix("sqlite:///")).write_bytes(bytes(4096))
    assert _health(site).status_code == 503
    site.close()


def test_a_store_that_no_wait_mends_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by every other command; one that is not there yet is waited for (above)."""
    newer, text, other = (tmp_path / name for name in ("newer.db", "text.db", "other.db"))
    text.write_text("results: none\n" * 100)
    Store.open(f"sqlite:///{newer}").close()
    with sqlite3.connect(newer) as file:
        file.execute("UPDATE alembic_version SET version_num = '9999'")
    with sqlite3.connect(other) as file:
        file.execute("CREATE TABLE customers (id INTEGER)")
    for store, code, said in (
        (f"sqlite:///{tmp_path}", 1, "is a folder; name a file in it"),
        (f"sqlite:///{text}", 1, "it is no SQLite file; name another file"),
        (f"sqlite:///{other}", 1, "holds tables of something else (customers)"),
        (f"sqlite:///{newer}", 4, "9999"),
        ("mysql://localhost/x", 2, "mysql"),
    ):
        assert cli.main(["serve", "--port", "0", "--store", store]) == code, store
        out, err = capsys.readouterr()
        assert (out, said in err) == ("", True), err


def test_a_sweep_that_a_hand_cut_off_is_told_by_each_page(tmp_path: Path) -> None:
    """Joins leave it out: the sweep before it was shown as the newest one, without a word."""
    url = sights.store_at(tmp_path)
    hosts = [sights.host(name, gpus=0) for name in ("h01", "h02")]
    found = sights.fill(url, hosts, probes="host_memory", most=1)
    site = Site(url)
    cluster, key = (look.fleet(site.store())[0][k] for k in ("cluster", "key"))
    shown: list[Callable[[], str]] = [
        lambda: pages.overview(site, {}),
        lambda: pages.sweeps(site),
        lambda: pages.host(site, {"cluster": cluster, "key": key}),
        lambda: pages.sweep(site, "latest", {}),
        lambda: pages.sweep(site, found, {}),
    ]
    for page in shown:
        assert found[:8] in page()
    with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
        file.execute("UPDATE sweep SET cluster_id = 77")
    for page in shown:
        with pytest.raises(StoreError, match="table sweep, row id 1, column cluster_id holds"):
            page()
    assert b"topobench_store_up 0.0" in metrics.exposition(site)
    site.close()


def test_a_damaged_store_is_told_until_a_copy_is_laid_over_it(tmp_path: Path) -> None:
    url = sights.store_at(tmp_path)
    sights.fill(url, [sights.host("h01", gpus=0)], probes="host_memory", most=1)
    path = Path(url.removeprefix("sqlite:///"))
    copy = path.read_bytes()
    site = Site(url)
    assert ">h01<" in pages.overview(site, {})
    for damaged in (bytes(len(copy)), b""):
        path.write_bytes(damaged)
        for _ in range(2):
            assert b"topobench_store_up 0.0" in metrics.exposition(site)
        path.write_bytes(copy)
        assert b"topobench_store_up 1.0" in metrics.exposition(site)
        assert ">h01<" in pages.overview(site, {})
    site.close()


def test_a_taken_port_and_an_open_address_are_told(
    server: Served, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    port = server.url.rpartition(":")[2]
    assert cli.main(["serve", "--store", store, "--port", port]) == 1
    assert "give --port another" in capsys.readouterr().err
    assert cli.main(["serve", "--store", store, "--host", "0.0.0.0"]) == 2
    assert "--token-file" in capsys.readouterr().err


QUESTION = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
ENDLESS = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\ntoken"


def test_a_connection_that_does_not_come_to_an_end_is_closed(
    store: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(patience, "QUESTION_SECONDS", 0.3)
    said = [(b"", b""), (QUESTION[:30], b""), (ENDLESS, b"=a"), (QUESTION[:30], QUESTION[30:])]
    *silent, asked = asyncio.run(_heard(store, said))
    assert silent == [b"", b"", b""]
    assert asked.startswith(b"HTTP/1.1 200 OK"), "in two parts, but whole in time"
    assert "Traceback" not in capfd.readouterr().err


async def _heard(store: str, said: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """What the server answers to each until it closes the connection; each is said in two parts."""

    async def one(address: tuple[str, int], first: bytes, second: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(first)
        await asyncio.sleep(0.05)
        writer.write(second)
        found = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return found

    app = make_app(Site(store, TOKEN), Address("127.0.0.1", 0, TOKEN))
    server = uvicorn.Server(uvicorn.Config(app, http=patience.Impatient, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        found = await asyncio.gather(*(one(listener.getsockname(), *parts) for parts in said))
        server.should_exit = True
        await serving
    return found
