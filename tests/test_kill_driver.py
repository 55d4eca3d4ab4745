"""SIGKILL of the driver at random moments: nothing committed is lost, nothing is left."""

from __future__ import annotations

import random

import pytest

from killing import ATTACHED, MANY, ROUNDS, SEED, flags, job, kill_a_driver
from main_job import Job

__all__ = ["job"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_driver_leaves_no_process_and_loses_no_committed_run(job: Job) -> None:
    draw = random.Random(SEED)
    own = flags(job)
    for number in range(ROUNDS - ATTACHED):
        kill_a_driver(job, draw, own, started=bool(number % 2))
    assert "driver_gone: sweep" in job.run("report").stdout
    final = job.run("probe", *own, *MANY[:4], "--set", "host_memory.bytes=8M")
    assert final.returncode == 0, final.stderr
    states = [row[0] for row in job.rows("SELECT status FROM sweep ORDER BY id")]
    assert states[-1] == "done"
    assert set(states[:-1]) <= {"interrupted"}
