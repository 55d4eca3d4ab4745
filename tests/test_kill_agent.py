"""SIGKILL of the agent at random moments: its cells fail, and the driver says so."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest

from killing import MANY, ROUNDS, SEED, attach, check_store, cluster, job, wait_for_runs
from main_job import Job, agent_of, gone_within, stolen

__all__ = ["cluster", "job"]


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
            time.sleep(0.05)  # each look reads the whole of /proc
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
