"""What the tests that kill share: sweeps long enough, a running Ray, and a look at the store."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from main_job import Job

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

    # Without CPUs it starts no idle workers for each driver; agents ask for none.
    options = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 * 2**20}
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
        time.sleep(0.05)
