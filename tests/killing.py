"""What the tests that kill share: sweeps long enough, a round of each kind, a look at the store."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from main_job import Job, agent_of, gone_within, stolen

ROUNDS = 20
"""Kills of each kind: of agents, drivers and workers."""
ATTACHED = 5
"""Of them in a Ray that goes on; the others in one of the driver's own."""
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


def flags(job: Job, address: str = "local") -> tuple[str, ...]:
    """
    The flags of a probe in that Ray, on one CPU.

    Nobody looks at what is measured here, and others need the rest.
    """
    cpu = min(os.sched_getaffinity(0))
    file = job.folder / f"{address.partition(':')[0]}.yaml"
    file.write_text(
        f"kind: topobench/v1\nname: lab\nray: {{address: '{address}'}}\n"
        f"bindings: [{{name: one, cpus: '{cpu}'}}]\n"
    )
    return ("--cluster", file.name)


def kill_an_agent(
    job: Job, draw: random.Random, more: tuple[str, ...], *, attached: bool, started: bool
) -> None:
    """
    Its cells fail, the driver says so, and what was stored stays.

    Args:
        more: Flags of the probe.
        attached: Whether the agent's Ray is one of this process.
        started: Whether to wait for a first run.
    """
    before = job.committed()
    driver = job.start("probe", *MANY, *more, "--format", "json")
    agent = None
    while agent is None and driver.poll() is None:
        time.sleep(0.05)  # each look reads the whole of /proc
        agent = agent_of(os.getpid() if attached else driver.pid)
    assert agent is not None, driver.communicate()[1]
    if started:
        wait_for_runs(job, driver, len(before) + 1)
    time.sleep(draw.uniform(0.0, 1.5))
    seen = before | job.committed()
    os.kill(agent, signal.SIGKILL)
    out, err = driver.communicate(timeout=60)
    assert driver.returncode in (1, 3), err
    check_after(job, driver, seen)
    document = json.loads(out)
    if document["data"] is not None:
        cells = document["data"]["cells"]
        lost = [c for c in cells if c["status"] != "ok" and not stolen(c)]
        assert lost
        assert [c["reason"] for c in lost if not c["reason"].startswith("host_lost: ")] == []


def kill_a_driver(job: Job, draw: random.Random, more: tuple[str, ...], *, started: bool) -> None:
    """
    Nothing stored is lost and nothing is left.

    Args:
        more: Flags of the probe.
        started: Whether to wait for a first run, or kill it while it starts.
    """
    before = job.committed()
    driver = job.start("probe", *MANY, *more)
    if started:
        wait_for_runs(job, driver, len(before) + 1)
    time.sleep(draw.uniform(0.0, 1.5))
    seen = before | job.committed()
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    check_after(job, driver, seen)


def check_after(job: Job, driver: subprocess.Popen[str], seen: set[str]) -> None:
    """No process of that driver is left, and no committed run is lost."""
    assert gone_within(5, driver.pid, job.sweeps()) == []
    assert seen <= job.committed()
    check_store(job)


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
        time.sleep(0.05)
