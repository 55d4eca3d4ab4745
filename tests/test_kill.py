"""SIGKILL at random moments: nothing committed is lost, nothing is left, no run is half-written."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from main_job import Job, agent_of, descendants, gone_within, stolen, workers_of
from topobench.errors import AgentError
from topobench.signals import Interrupted, Signals

ROUNDS = 20
SEED = 20261129
MANY = (
    *("--probes", "host_memory", "--set", "host_memory.op=copy"),
    *("--set", "host_memory.bytes=" + ",".join(f"{n}M" for n in range(4, 64, 2))),
)
"""Thirty short cells: a sweep that outlasts every moment chosen here."""
FEW = (*MANY[:4], "--set", "host_memory.bytes=" + ",".join(f"{n}M" for n in range(4, 20, 2)))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a running Ray, as a site has one."""
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    running = Cluster(initialize_head=True, head_node_args=options)
    yield running.address
    running.shutdown()


def attach(job: Job, address: str) -> tuple[str, str]:
    """The flag that makes a probe use that Ray instead of one of its own."""
    text = f"kind: topobench/v1\nname: lab\nray: {{address: '{address}'}}\n"
    (job.folder / "cluster.yaml").write_text(text)
    return ("--cluster", "cluster.yaml")


def check_store(job: Job) -> None:
    """The file is whole, and every good run has its readings."""
    if not job.database.exists():
        return
    with closing(sqlite3.connect(job.database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    half = job.rows(
        "SELECT r.uuid FROM run r WHERE r.status IN ('ok', 'partial') "
        "AND NOT EXISTS (SELECT 1 FROM reading x WHERE x.run_id = r.id)"
    )
    assert half == []


def wait_for_runs(job: Job, driver: subprocess.Popen[str], count: int) -> None:
    """Until the store holds so many runs."""
    while driver.poll() is None and len(job.committed()) < count:
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_driver_leaves_no_process_and_loses_no_committed_run(
    job: Job, cluster: str
) -> None:
    draw = random.Random(SEED)
    attached = attach(job, cluster)
    for number in range(ROUNDS):
        before = job.committed()
        driver = job.start("probe", *MANY, *(attached if number % 5 else ()))
        if number % 2:  # else while it starts
            wait_for_runs(job, driver, len(before) + 1)
        time.sleep(draw.uniform(0.0, 1.5))
        seen = before | job.committed()
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
        assert gone_within(5, driver.pid, job.sweeps()) == []
        assert seen <= job.committed()
        check_store(job)
    final = job.run("probe", *MANY[:4], "--set", "host_memory.bytes=8M")
    assert final.returncode == 0, final.stderr
    states = [row[0] for row in job.rows("SELECT status FROM sweep ORDER BY id")]
    assert states[-1] == "done"
    assert set(states[:-1]) <= {"interrupted"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_agent_fails_its_cells_and_the_driver_says_so(job: Job, cluster: str) -> None:
    draw = random.Random(SEED)
    attached = attach(job, cluster)
    for number in range(ROUNDS):
        before = job.committed()
        own_ray = number % 5 == 0
        flags = () if own_ray else attached
        driver = job.start("probe", *MANY, *flags, "--format", "json")
        agent = None
        while agent is None and driver.poll() is None:
            time.sleep(0.02)
            agent = agent_of(driver.pid if own_ray else os.getpid())
        assert agent is not None
        if number % 2:
            wait_for_runs(job, driver, len(before) + 1)
        time.sleep(draw.uniform(0.0, 1.5))
        seen = before | job.committed()
        os.kill(agent, signal.SIGKILL)
        out, err = driver.communicate(timeout=60)
        assert driver.returncode in (1, 3), err
        assert gone_within(5, driver.pid, job.sweeps()) == []
        assert seen <= job.committed()
        check_store(job)
        document = json.loads(out)
        if document["data"] is not None:
            cells = document["data"]["cells"]
            lost = [c for c in cells if c["status"] != "ok" and not stolen(c)]
            assert lost
            assert [c["reason"] for c in lost if not c["reason"].startswith("host_lost: ")] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_workers_fail_one_cell_each_and_the_rest_goes_on(job: Job) -> None:
    draw = random.Random(SEED)
    kills = 0
    while kills < ROUNDS:
        kills += kill_workers_of_one_sweep(job, draw, ROUNDS - kills)
        check_store(job)


def kill_workers_of_one_sweep(job: Job, draw: random.Random, most: int) -> int:
    """Kill workers at random moments until that many or the end; how many it were."""
    before = set(job.sweeps())
    driver = job.start("probe", *MANY, "--format", "json")
    kills = 0
    while driver.poll() is None and kills < most:
        time.sleep(draw.uniform(0.05, 0.6))
        seen = job.committed()
        for worker in workers_of([s for s in job.sweeps() if s not in before]):
            os.kill(worker, signal.SIGKILL)
            kills += 1
        assert seen <= job.committed()
    out, err = driver.communicate(timeout=120)
    assert kills, err
    cells = json.loads(out)["data"]["cells"]
    assert len(cells) == 30
    failed = [c for c in cells if c["status"] == "failed"]
    assert {c["reason"].split(":")[0] for c in failed} <= {"signal", "crashed"}
    assert len(failed) <= kills  # a worker killed before it measures costs one cell as well
    good = [c for c in cells if c["status"] == "ok"]
    assert len(good) + len(failed) + sum(map(stolen, cells)) == 30
    assert driver.returncode == (1 if good else 3)
    assert gone_within(5, driver.pid, job.sweeps()) == []
    return kills


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_sweep_cleanly_with_its_code(
    job: Job, number: signal.Signals, code: int
) -> None:
    driver = job.start("probe", *FEW, "--format", "json")
    wait_for_runs(job, driver, 2)
    driver.send_signal(number)
    out, err = driver.communicate(timeout=30)
    assert driver.returncode == code, err
    document = json.loads(out)
    assert (document["status"], document["exit_code"]) == ("interrupted", code)
    counts = document["data"]["counts"]
    assert counts["ok"] >= 2
    # What its worker had not come to is aborted; what no worker had yet stays planned.
    assert counts.get("aborted", 0) + counts.get("planned", 0) == 8 - counts["ok"] > 0
    assert gone_within(5, driver.pid, job.sweeps()) == []
    resumed = job.document("probe", "--resume", "latest")
    assert resumed["data"]["sweep"]["id"] == document["data"]["sweep"]["id"]
    assert resumed["data"]["counts"] == {"ok": 8}
    assert resumed["exit_code"] == 0


def test_ray_leaves_the_handlers_of_signals_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own handler of SIGTERM, kept on, aborts the process after three seconds."""
    from topobench.agents import ray_agent

    def init(**_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    before = signal.getsignal(signal.SIGTERM)
    assert before != signal.SIG_IGN
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr("ray.nodes", list)
    with contextlib.suppress(AgentError), ray_agent.connect("local", sweep="s"):
        pass
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_while_ray_starts_is_raised_once_it_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Raised inside it, it would be lost there or leave half a Ray behind."""
    from topobench.agents import ray_agent

    done = []

    def init(**_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
        done.append(True)

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    with (
        Signals() as signals,
        pytest.raises(Interrupted),
        ray_agent.connect("local", sweep="s"),
    ):
        pass
    assert (signals.exit_code, done) == (143, [True])


def test_a_signal_whose_exception_was_lost_ends_the_sweep_before_it_begins() -> None:
    """An exception raised inside a callback of a library goes no further."""
    with Signals() as signals:
        with contextlib.suppress(Interrupted):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted), signals.soft():
            pass
    assert signals.exit_code == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_ray_starts_leaves_nothing(
    job: Job, number: signal.Signals, code: int
) -> None:
    driver = job.start("probe", *MANY)
    while driver.poll() is None and not list(descendants(driver.pid)):
        time.sleep(0.05)
    time.sleep(1.0)
    driver.send_signal(number)
    _, err = driver.communicate(timeout=30)
    assert driver.returncode == code, err
    assert gone_within(5, driver.pid, job.sweeps()) == []
