"""Long comparisons on the web page: at once answered, made once, shown when they are found."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sights
from querying import Fleet
from serving import Answer, Served, served
from topobench import comparing, processes
from topobench.db.engine import hurried, reading
from topobench.errors import StoreError, StoreUnreachable, UsageError
from topobench.web import comparison
from topobench.web.comparisons import FRESH_SECONDS, Comparisons, Job, Question

PATIENCE = 60.0
A, B = "date:2026-11-27", "date:2026-11-28"
LARGE = f"a={A}&b={B}"


def large_store(folder: Path) -> str:
    """Six CPU hosts on two nights; each run has 20 readings more, of points of their own."""
    url = sights.store_at(folder)
    hosts = [sights.host(f"h{n:02d}", gpus=0) for n in range(1, 7)]
    for day in (27, 28):
        sights.fill(url, hosts, probes="host_memory", day=day)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
        columns = [row[1] for row in file.execute("PRAGMA table_info(reading)")]
        changed = {"seq": "seq + 1 + copy", "point": "'{\"copy\":' || copy || '}'"}
        chosen = ", ".join(changed.get(c, c) for c in columns)
        file.execute(
            "WITH RECURSIVE copies(copy) AS "
            "(SELECT 1 UNION ALL SELECT copy + 1 FROM copies WHERE copy < 20) "
            f"INSERT INTO reading ({', '.join(columns)}) SELECT {chosen} FROM reading, copies"
        )
    return url


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return large_store(tmp_path_factory.mktemp("compare"))


@pytest.fixture(scope="module")
def server(store: str) -> Iterator[Served]:
    with served(store) as running:
        yield running


def children(pid: int, word: bytes = b"topobench.web.comparison") -> list[int]:
    """Its processes with that word in their commands: those that compare."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    pids = [int(word) for file in found for word in file.read_text().split()]
    return [p for p in pids if word in _command(p)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_nice(pid: int) -> bool:
    """Whether it gives way to its server, as it does once it has its question."""
    return os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)


def until(look: Callable[[], Any], what: str) -> Any:
    """What it says once it says something."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError(what)


def whole(server: Served, query: str) -> Answer:
    """The page as it is when it waits for nothing any more."""

    def look() -> Answer | None:
        answer = server.ask(f"/compare?{query}")
        return None if answer.status == 202 else answer

    found: Answer = until(look, "still being compared")
    return found


def test_a_long_comparison_is_made_once_while_others_are_answered(server: Served) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(server.ask, [f"/compare?{LARGE}"] * 8))
    assert {a.status for a in answers} == {202}
    text = answers[0].text
    assert 'role="status" aria-live="polite">Being compared' in text
    assert '<noscript><meta http-equiv="refresh"' in text
    assert f'data-url="/compare/progress?a={A.replace(":", "%3A")}&amp;b=' in text
    assert '"status":"running"' in server.ask(f"/compare/progress?{LARGE}").text
    assert len(until(lambda: children(server.process.pid), "no process compares")) == 1
    small = server.ask(f"/compare?a=host:h01,{A}&b=host:h02,{A}")
    assert (small.status, "inconclusive" in small.text) == (200, True)
    found = whole(server, LARGE)
    assert found.status == 200
    assert "(48 runs)" in found.text
    assert '<h2 id="found">equivalent</h2>' in found.text
    assert server.ask(f"/compare/progress?{LARGE}").text == '{"status":"ended","words":""}'
    assert server.ask(f"/compare?{LARGE}").text == found.text
    assert children(server.process.pid) == []


def test_what_a_long_comparison_refuses_is_shown_each_time(server: Served) -> None:
    query = f"a={A}..2026-11-28&b={B}&force=1"
    for answer in (whole(server, query), server.ask(f"/compare?{query}")):
        assert answer.status == 400
        assert "48 runs in common" in answer.text


def test_cases_of_single_hosts_name_them_and_what_was_left_out(server: Served) -> None:
    found = whole(server, f"a=host:h01,host:h02,{A}&b=host:h01,{B}")
    assert '<button type="button">on</button>' in found.text
    assert '<td class="short">h01</td>' in found.text
    assert "<h3>Left out</h3><ul><li>on side A only: 1 host: h02</li>" in found.text


def test_what_is_being_made_ends_with_its_server(store: str) -> None:
    with ThreadPoolExecutor(1) as thread:
        with served(store) as server:
            report = thread.submit(server.ask, "/sweep/latest/report.html")
            assert server.ask(f"/compare?{LARGE}").status == 202
            (first,) = until(lambda: children(server.process.pid), "no process compares")
            (second,) = until(lambda: children(server.process.pid, b"--html"), "no report is made")
        assert (report.result().status, "is ending" in report.result().text) == (503, True)
    assert [processes.find(first), processes.find(second)] == [None, None]


def test_a_comparison_ends_with_a_server_that_is_killed(store: str) -> None:
    code = (
        "import sys, time\n"
        "from topobench.web.comparisons import Comparisons, Question\n"
        "Comparisons(sys.argv[1]).ask(Question(*sys.argv[2:]), 1)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, store, A, B]) as process:
        (child,) = until(lambda: children(process.pid), "no process compares")
        until(lambda: _is_nice(child), "it never began")
        process.send_signal(signal.SIGSTOP)  # it ends nothing itself
        process.kill()
    until(lambda: processes.find(child) is None, "it still compares")


def test_an_error_is_told_once_and_then_tried_again(tmp_path: Path) -> None:
    comparisons = Comparisons(f"sqlite:///{tmp_path}/none.db")
    try:
        question = Question(A, B)
        job = comparisons.ask(question, 0)
        until(lambda: job.ended, "it did not end")
        assert isinstance(job.error, StoreError)
        assert re.search("none.db", str(job.error))
        assert comparisons.ask(question, 0) is job, "not shown yet"
        comparisons.told(job)
        assert comparisons.waited_for(question) is None
        assert comparisons.ask(question, 0) is not job
    finally:
        comparisons.close()


def test_a_store_edited_by_hand_is_no_fault_of_the_server(tmp_path: Path) -> None:
    url = sights.store_at(tmp_path)
    for day in (27, 28):
        sights.fill(url, [sights.host("h01", gpus=0)], probes="host_memory", day=day)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
        file.execute("UPDATE reading SET median = 'fast'")
        file.execute("UPDATE series SET latest_unix_seconds = 'today'")
    with served(url) as server:
        for page, column in (("/", "latest_unix_seconds"), (f"/compare?{LARGE}", "")):
            answer = server.ask(page)
            assert answer.status == 503
            assert f"column {column}" in answer.text
            assert "where a number belongs" in answer.text
    found = comparison._answer(url, {"a": A, "b": B})
    assert found["error"] == "StoreError"
    assert "where a number belongs" in found["text"]


def test_a_sweep_under_way_does_not_keep_a_comparison_from_being_shown() -> None:
    now = time.monotonic()
    assert Job(Question(A, B), 1, now).is_current(2), "under way"
    assert Job(Question(A, B), 1, now, ended=now).is_current(2), "just found"
    old = Job(Question(A, B), 1, now, ended=now - FRESH_SECONDS - 1)
    assert (old.is_current(1), old.is_current(2)) == (True, False)


def test_whether_a_comparison_is_large_is_found_out_in_time(fleet: Fleet) -> None:
    step = "SELECT 1 UNION ALL SELECT i + 1 FROM n{}"
    numbers = f"WITH RECURSIVE n(i) AS ({step}) SELECT max(i) FROM n"
    assert comparing.is_small(fleet.store, "host:h01", "host:h02", 100_000, PATIENCE)
    assert not comparing.is_small(fleet.store, "host:h01", "host:h02", 3, PATIENCE)
    with pytest.raises(UsageError, match="nobody"):
        comparing.is_small(fleet.store, "host:nobody", "host:h02", 3, PATIENCE)
    with pytest.raises(StoreUnreachable), hurried(fleet.store.engine, 0.1) as connection:
        connection.exec_driver_sql(numbers.format(""))
    with reading(fleet.store.engine) as connection:  # the same one, which has time again
        last = connection.exec_driver_sql(numbers.format(" WHERE i < 20000")).scalar_one()
    assert last == 20_000
