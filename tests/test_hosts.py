"""
A cluster of three hosts, each a network namespace with a Ray of its own.

One cluster serves all tests; those that break a host come last.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import netns
from documents import check
from main_job import stolen
from netns import NetCluster, NetHost
from topobench import processes

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(300)]

NETWORK = (
    *("--probes", "host_network", "--set", "host_network.direction=out,in"),
    *("--set", "host_network.bytes=4M", "--set", "host_network.streams=2"),
)
GANG = (
    *("--probes", "all_reduce,ring_p2p", "--set", "all_reduce.hosts=all"),
    *("--set", "ring_p2p.hosts=all", "--set", "all_reduce.bytes=8K"),
    *("--set", "ring_p2p.bytes=1M"),
)
CELLS = 5
MANY = (
    *("--probes", "host_memory", "--set", "host_memory.op=copy"),
    *("--set", "host_memory.bytes=" + ",".join(f"{n}M" for n in range(4, 4 + CELLS))),
)
"""Cells on each host, about a second each: time enough to break something."""
NOTICED_SECONDS = 20.0
"""A host that is gone must be noticed within that time."""


class Driver:
    """Runs commands on ``h1``, as an operator would, with a store in a folder of its own."""

    def __init__(self, cluster: NetCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.store = f"sqlite:///{folder}/topobench.db"
        listed = [f"{{host: {h.address}, id: {h.name}}}" for h in cluster.hosts]
        self.write(f"hosts: [{', '.join(listed)}]\n")

    def write(self, more: str, *, ray: str = "require_token: true") -> None:
        """Write the cluster file."""
        (self.folder / "cluster.yaml").write_text(
            "kind: topobench/v1\nname: lab\n"
            f"ray: {{address: '{self.cluster.ray_address}', {ray}}}\n" + more
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A probe of the cluster in the background; its document goes to a file."""
        host = self.cluster["h1"]
        command = (sys.executable, "-m", "topobench", "probe", "--cluster", "cluster.yaml")
        out, err = self.folder / "out.json", self.folder / "err.txt"
        with out.open("w") as stdout, err.open("w") as stderr:
            return host.start(
                *(*command, *arguments, "--format", "json"),
                cwd=self.folder,
                env={**host.env(), "TOPOBENCH_STORE": self.store},
                stdout=stdout,
                stderr=stderr,
            )

    def finish(self, process: subprocess.Popen[str], seconds: float = 120) -> dict[str, Any]:
        """Its document, with the exit code it ended with."""
        process.wait(timeout=seconds)
        text = (self.folder / "out.json").read_text()
        assert text, (self.folder / "err.txt").read_text()
        found: dict[str, Any] = json.loads(text)
        check(found, "probe")
        assert found["exit_code"] == process.returncode
        return found

    def probe(self, *arguments: str) -> dict[str, Any]:
        """A probe of the cluster, to its end."""
        return self.finish(self.start(*arguments))

    def report(self) -> str:
        """What ``topobench report`` shows."""
        return self.command("report")

    def command(self, *words: str) -> str:
        """What another command prints, which must succeed."""
        host = self.cluster["h1"]
        line = (sys.executable, "-m", "topobench", *words, "--store", self.store)
        with host.start(*line, cwd=self.folder, stdout=subprocess.PIPE) as process:
            out = process.communicate(timeout=60)[0]
        assert process.returncode == 0
        return out

    def runs(self, host: str) -> int:
        """How many runs of a host's cells the store holds by now."""
        database = self.folder / "topobench.db"
        if not database.exists():
            return 0
        query = (
            "SELECT count(*) FROM run JOIN series s ON s.id = run.series_id "
            "JOIN host h ON h.id = s.host_id WHERE h.key = ?"
        )
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            try:
                return int(connection.execute(query, (host,)).fetchone()[0])
            except sqlite3.OperationalError:
                return 0

    def wait_for_sweep(self, process: subprocess.Popen[str]) -> None:
        """Until the plan of a sweep is stored."""
        database = self.folder / "topobench.db"
        while process.poll() is None:
            with (
                contextlib.suppress(sqlite3.OperationalError),
                closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection,
            ):
                if connection.execute("SELECT count(*) FROM cell").fetchone()[0]:
                    return
            time.sleep(0.05)
        raise AssertionError((self.folder / "err.txt").read_text())

    def wait_for_run(self, process: subprocess.Popen[str], host: str) -> None:
        """Until a host's first run is stored."""
        while process.poll() is None and not self.runs(host):
            time.sleep(0.05)
        assert process.poll() is None, (self.folder / "err.txt").read_text()


@pytest.fixture(scope="module")
def cluster() -> Iterator[NetCluster]:
    with netns.cluster(3) as made:
        yield made


@pytest.fixture
def driver(cluster: NetCluster, tmp_path: Path) -> Driver:
    return Driver(cluster, tmp_path)


def cells_of(document: dict[str, Any], host: str) -> list[dict[str, Any]]:
    return [c for c in document["data"]["cells"] if c["host"] == host]


def check_lost(driver: Driver, document: dict[str, Any], words: str) -> None:
    """Host h3 lost its own cells, with words that say why; the others measured all of theirs."""
    lost = [c for c in cells_of(document, "h3") if c["status"] != "ok" and not stolen(c)]
    assert lost
    assert {c["status"] for c in lost} == {"failed"}
    assert {c["reason"].partition(":")[0] for c in lost} == {"host_lost"}
    assert all("h3" in c["reason"] and words in c["reason"] for c in lost)
    for host in ("h1", "h2"):
        found = cells_of(document, host)
        assert len(found) == len(cells_of(document, "h3"))
        assert [c["reason"] for c in found if c["status"] != "ok" and not stolen(c)] == []
    assert document["exit_code"] == 1
    assert document["data"]["sweep"]["status"] == "done"


def test_a_gang_over_three_hosts_measures_with_one_rank_on_each(driver: Driver) -> None:
    document = driver.probe(*GANG)
    cells = document["data"]["cells"]
    assert {c["probe"]: c["status"] for c in cells if not stolen(c)} == dict.fromkeys(
        ("all_reduce", "ring_p2p"), "ok"
    )
    for cell in cells:
        assert cell["hosts"] == ["h1", "h2", "h3"]
        assert [(m["rank"], m["host"]) for m in cell["members"]] == [
            (0, "h1"),
            (1, "h2"),
            (2, "h3"),
        ]
        assert set(cell["conditions"]["hosts"]) == {"h2", "h3"}
        values = {r["metric"]: r["median"] for r in cell["readings"] if not r["point"]}
        if cell["status"] == "ok":
            assert values["busbw_bytes_per_second"] == pytest.approx(
                4 / 3 * values["algbw_bytes_per_second"], rel=1e-6
            )
    assert document["exit_code"] == 0


def test_a_host_whose_link_is_ten_times_slower_is_named_in_the_report(driver: Driver) -> None:
    slow = driver.cluster["h3"]
    slow.slow_down("200mbit")
    try:
        document = driver.probe(*NETWORK)
    finally:
        slow.at_full_speed()
    flows = {
        (c["hosts"][0], c["hosts"][1], c["params"]["direction"]): next(
            r["median"] for r in c["readings"] if r["metric"] == "bandwidth_bytes_per_second"
        )
        for c in document["data"]["cells"]
        if c["status"] == "ok"
    }
    assert len(flows) + sum(map(stolen, document["data"]["cells"])) == 6
    for (_, second, direction), value in flows.items():
        if (second, direction) == ("h3", "in"):
            assert value < 26e6, "200 Mbit/s are 25 MB/s"
        else:
            assert value > 52e6, "the other cables are as fast as the kernel"
    text = driver.report()
    assert "NETWORK" in text
    named = [line for line in text.splitlines() if "slow: " in line]
    assert "h3 (eth0) sends slowly" in named[0], "the slowest comes first"


def test_a_wrong_token_is_told_with_what_to_set(driver: Driver, tmp_path: Path) -> None:
    host = driver.cluster["h1"]
    (tmp_path / "token").write_text("0" * 64)
    wrong = {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"), "RAY_NUM_REDIS_GET_RETRIES": "2"}
    command = (sys.executable, "-m", "topobench", "probe", "--cluster", "cluster.yaml")
    with host.start(
        *command,
        cwd=tmp_path,
        env={**host.env(), **wrong, "TOPOBENCH_STORE": driver.store},
        stderr=subprocess.PIPE,
    ) as process:
        told = process.communicate(timeout=90)[1]
    assert process.returncode == 3
    assert f"could not attach to Ray at {driver.cluster.ray_address}" in told
    assert "the token is another one or missing" in told


def test_hosts_that_are_not_as_expected_are_findings_and_one_is_measured_again(
    driver: Driver,
) -> None:
    as_expected = (driver.folder / "cluster.yaml").read_text()
    h1, h2, _ = (h.address for h in driver.cluster.hosts)
    nobody = h1.rpartition(".")[0] + ".77"
    driver.write(
        f"hosts: [{{host: {h1}, id: h1, gpus: 8}}, {{host: {h2}, id: h2}}, {{host: {nobody}}}]\n"
    )
    first = driver.probe(*MANY[:4], "--set", "host_memory.bytes=4M,8M")
    assert len(first["data"]["cells"]) == 4
    assert first["exit_code"] == 1
    told = " ".join(first["data"]["sweep"]["warnings"])
    assert "h1: 8 GPUs expected, 0 found" in told
    assert f"host {nobody} is not an alive Ray node; Ray knows" in told
    (driver.folder / "cluster.yaml").write_text(as_expected)
    again = driver.probe("--like", "latest", "--hosts", "h2")
    assert again["exit_code"] == 0
    assert [h["key"] for h in again["data"]["hosts"]] == ["h2"]
    assert again["data"]["sweep"]["seed"] == first["data"]["sweep"]["seed"]
    assert [(c["host"], c["params"]) for c in again["data"]["cells"]] == [
        (c["host"], c["params"]) for c in cells_of(first, "h2")
    ]
    assert {c["id"] for c in again["data"]["cells"]}.isdisjoint(
        c["id"] for c in first["data"]["cells"]
    )


def test_the_database_may_go_away_and_come_back(
    driver: Driver, postgres_server: Any, postgres_url: str
) -> None:
    driver.store = postgres_url
    name = postgres_url.partition("@/")[2].partition("?")[0]
    process = driver.start(*MANY)
    query = "SELECT count(*) FROM run"
    while process.poll() is None:
        with postgres_server.admin(name) as connection:
            there = connection.execute("SELECT to_regclass('run')").fetchone() != (None,)
            if there and connection.execute(query).fetchone()[0] > 3:
                break
        time.sleep(0.1)
    postgres_server.halt()
    spool = driver.folder / "topobench-spool"
    while process.poll() is None and not spool.exists():
        time.sleep(0.1)
    postgres_server.resume()
    document = driver.finish(process)
    cells = document["data"]["cells"]
    assert [c["reason"] for c in cells if c["status"] != "ok" and not stolen(c)] == []
    assert len(cells) == 3 * CELLS
    if not any("the store is back" in w for w in document["warnings"]):
        assert any("the results are safe in" in w for w in document["warnings"])
        driver.command("db", "import", str(spool))  # it was away for longer than the sweep
    with postgres_server.admin(name) as connection:
        assert connection.execute(query).fetchone() == (3 * CELLS,)


def test_a_killed_driver_is_resumed_where_it_was(driver: Driver) -> None:
    process = driver.start(*MANY)
    driver.wait_for_run(process, "h2")
    process.kill()
    process.wait()
    before = {h: driver.runs(h) for h in ("h1", "h2", "h3")}
    until = time.monotonic() + 20
    while _workers(driver.cluster) and time.monotonic() < until:
        time.sleep(0.2)
    assert _workers(driver.cluster) == []
    assert driver.probe("--resume", "latest", "--hosts", "h2")["exit_code"] == 1
    assert [driver.runs(h) for h in ("h1", "h2", "h3")] == [before["h1"], CELLS, before["h3"]]
    document = driver.probe("--resume", "latest")
    cells = document["data"]["cells"]
    assert [c["reason"] for c in cells if c["status"] != "ok" and not stolen(c)] == []
    assert len(cells) == 3 * CELLS
    assert {c["attempt"] for c in cells if not stolen(c)} == {1}, "what was stored was kept"
    assert sum(before.values()) < sum(driver.runs(h) for h in before) == 3 * CELLS


def _workers(cluster: NetCluster) -> list[int]:
    """Measuring processes on any host."""
    pids = [pid for host in cluster.hosts for pid in host.pids()]
    return [p for p in pids if processes.marker(p, processes.WORKER) is not None]


def test_a_killed_rank_fails_one_cell_on_all_hosts_and_the_next_has_fresh_ranks(
    driver: Driver,
) -> None:
    sizes = "all_reduce.bytes=" + ",".join(f"{n}M" for n in range(1, 5))
    gang = ("--probes", "all_reduce", "--set", "all_reduce.hosts=all", "--set", sizes)
    process = driver.start(*gang)
    driver.wait_for_run(process, "h1")
    victim = next(p for p in driver.cluster["h2"].pids() if processes.marker(p, processes.WORKER))
    os.kill(victim, signal.SIGKILL)
    document = driver.finish(process)
    cells = document["data"]["cells"]
    failed = [c for c in cells if c["status"] == "failed"]
    assert [c["reason"].partition(":")[0] for c in failed] == ["rank_lost"]
    assert "rank 1 of 3 was lost" in failed[0]["reason"]
    assert "SIGKILL" in failed[0]["reason"]
    after = cells[cells.index(failed[0]) + 1 :]
    assert {c["status"] for c in after if not stolen(c)} <= {"ok"}
    assert len({m["pid"] for c in cells if c["status"] == "ok" for m in c["members"]}) > 3
    assert document["exit_code"] == 1


def test_a_killed_agent_fails_the_cells_of_its_host(driver: Driver) -> None:
    process = driver.start(*MANY)
    driver.wait_for_run(process, "h3")
    agents = [p for p in driver.cluster["h3"].pids() if _title(p).startswith("ray::HostAgent")]
    assert len(agents) == 1
    os.kill(agents[0], signal.SIGKILL)
    check_lost(driver, driver.finish(process), "its agent died")


def test_a_cut_cable_is_noticed_and_the_others_go_on(driver: Driver) -> None:
    process = driver.start(*MANY)
    driver.wait_for_run(process, "h3")
    driver.cluster["h3"].cut()
    noticed = _seconds_until_failed(driver, process, "h3")
    document = driver.finish(process)
    check_lost(driver, document, "")
    assert noticed <= NOTICED_SECONDS


def test_a_host_that_loses_power_in_a_gang_fails_what_it_takes_part_in(driver: Driver) -> None:
    """Needs two hosts: the third was cut off by the test before."""
    hosts = ", ".join(f"{{host: {h.address}, id: {h.name}}}" for h in driver.cluster.hosts[:2])
    driver.write(f"hosts: [{hosts}]\n")
    sizes = "all_reduce.bytes=" + ",".join(f"{n}M" for n in range(1, 7))
    process = driver.start(
        "--probes", "all_reduce", "--set", sizes, "--set", "all_reduce.hosts=all"
    )
    driver.wait_for_run(process, "h1")
    began = time.monotonic()
    driver.cluster["h2"].kill()
    noticed = _seconds_until_failed(driver, process, "h1", began)
    document = driver.finish(process)
    failed = [c for c in document["data"]["cells"] if c["status"] == "failed"]
    assert failed
    assert all("h2" in c["reason"] for c in failed), [c["reason"] for c in failed]
    assert {c["reason"].partition(":")[0] for c in failed} <= {"host_lost", "rank_lost"}
    assert document["exit_code"] == 1
    assert noticed <= NOTICED_SECONDS


@pytest.fixture(scope="module")
def joined(cluster: NetCluster, tmp_path_factory: pytest.TempPathFactory) -> NetHost:
    """A fourth host, with a topobench of long ago, joins while a sweep runs."""
    older = tmp_path_factory.mktemp("older")
    (older / "topobench").mkdir()
    (older / "topobench/__init__.py").write_text('__version__ = "0.0.1"\n')
    driver = Driver(cluster, tmp_path_factory.mktemp("joined"))
    driver.write(naps(20))
    process = driver.start()
    driver.wait_for_sweep(process)
    host = cluster.add(packages=older)
    document = driver.finish(process)
    assert host.name not in {h["name"] for h in document["data"]["hosts"]}
    assert {c["status"] for c in document["data"]["cells"]} == {"ok"}
    return host


def test_another_topobench_on_a_host_is_told_or_ours_is_sent_there(
    driver: Driver, joined: NetHost
) -> None:
    """The second and the third host are gone by now. Without an id, both have one machine's."""
    fourth = joined
    listed = f"hosts: [{driver.cluster['h1'].address}, {fourth.address}]\n"
    one_cell = (*MANY[:4], "--set", "host_memory.bytes=4M")
    driver.write(listed)
    document = driver.probe(*one_cell)
    assert len(document["data"]["cells"]) == 1
    told = " ".join(document["data"]["sweep"]["warnings"])
    assert f"host {fourth.name} ({fourth.address}) has topobench 0.0.1" in told
    assert "-py3-none-any.whl, or send this one" in told
    assert document["exit_code"] == 1
    driver.write(listed, ray="ship: true")
    shipped = driver.probe(*one_cell)
    assert len(shipped["data"]["cells"]) == 2
    assert {c["status"] for c in shipped["data"]["cells"] if not stolen(c)} <= {"ok"}
    assert {h["name"] for h in shipped["data"]["hosts"]} == {"h1", fourth.name}
    assert len({c["host"] for c in shipped["data"]["cells"]}) == 2
    for host in shipped["data"]["hosts"]:
        assert host["key"].endswith(f"@{host['address']}")
        assert any("another host has the same key" in w for w in host["warnings"])


def test_a_firewall_that_keeps_a_hosts_results_back_is_told(
    driver: Driver, joined: NetHost
) -> None:
    """It answers calls, but can open no connection to the driver."""
    h1 = driver.cluster["h1"]
    driver.write(f"hosts: [{h1.address}, {joined.address}]\n", ray="ship: true")
    joined.dial_nobody_at(h1.address)
    try:
        document = driver.probe(*MANY[:4], "--set", "host_memory.bytes=4M")
    finally:
        joined.dial_again(h1.address)
    assert {h["name"] for h in document["data"]["hosts"]} == {"h1"}
    told = " ".join(document["data"]["sweep"]["warnings"])
    assert f"host {joined.name} ({joined.address}) answers, but what it sends does not" in told
    assert "open the ports of Ray's workers" in told
    assert document["exit_code"] == 1


def test_a_host_scaled_down_and_the_head_gone_end_a_sweep_with_what_it_has(
    driver: Driver, joined: NetHost
) -> None:
    h1, name = driver.cluster["h1"], joined.name
    hosts = f"hosts: [{{host: {h1.address}, id: h1}}, {{host: {joined.address}, id: {name}}}]\n"
    driver.write(hosts + naps(*[1] * 90), ray="ship: true")
    process = driver.start()
    driver.wait_for_run(process, name)
    driver.cluster.scale_down(joined)
    assert _seconds_until_failed(driver, process, name) <= NOTICED_SECONDS
    driver.cluster.end_head()
    document = driver.finish(process)
    for host in ("h1", name):
        cells = cells_of(document, host)
        assert {c["status"] for c in cells} == {"ok", "failed"}
        failed = [c["reason"] for c in cells if c["status"] == "failed"]
        assert {reason.partition(":")[0] for reason in failed} == {"host_lost"}
        assert all(f"host {host}" in reason for reason in failed)
    assert document["exit_code"] == 1
    assert document["data"]["sweep"]["status"] == "done"


def naps(*seconds: int) -> str:
    """Keys of a cluster file whose cells sleep, each so long."""
    names = [f"nap{number}" for number in range(len(seconds))]
    commands = [
        f"  {name}: {{argv: [sh, -c, 'sleep {long}; echo took {long}.0'], seconds: {long}s, "
        "metrics: {took: {pattern: 'took ([0-9.]+)', unit: s, better: lower}}}\n"
        for name, long in zip(names, seconds, strict=True)
    ]
    chosen = f"probes: [{{command: {{command: [{', '.join(names)}]}}}}]\nbindings: [none]\n"
    return f"{chosen}commands:\n{''.join(commands)}"


def _seconds_until_failed(
    driver: Driver, process: subprocess.Popen[str], host: str, began: float | None = None
) -> float:
    """How long it takes until a failed run of a host is stored."""
    start = time.monotonic() if began is None else began
    query = (
        "SELECT count(*) FROM run JOIN series s ON s.id = run.series_id "
        "JOIN host h ON h.id = s.host_id WHERE h.key = ? AND run.status = 'failed'"
    )
    database = f"file:{driver.folder}/topobench.db?mode=ro"
    with closing(sqlite3.connect(database, uri=True)) as connection:
        while process.poll() is None and not connection.execute(query, (host,)).fetchone()[0]:
            time.sleep(0.1)
    return time.monotonic() - start


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
