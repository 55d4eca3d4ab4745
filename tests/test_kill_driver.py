"""SIGKILL of the driver at random moments: nothing committed is lost, nothing is left."""

from __future__ import annotations

import random
import signal
import time

import pytest

from killing import MANY, ROUNDS, SEED, attach, check_store, cluster, job, wait_for_runs
from main_job import Job, gone_within

__all__ = ["cluster", "job"]


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
    assert "driver_gone: sweep" in job.run("report").stdout
    final = job.run("probe", *MANY[:4], "--set", "host_memory.bytes=8M")
    assert final.returncode == 0, final.stderr
    states = [row[0] for row in job.rows("SELECT status FROM sweep ORDER BY id")]
    assert states[-1] == "done"
    assert set(states[:-1]) <= {"interrupted"}
