"""SIGKILL of the agent at random moments: its cells fail, and the driver says so."""

from __future__ import annotations

import random

import pytest

from killing import ATTACHED, ROUNDS, SEED, flags, job, kill_an_agent
from main_job import Job

__all__ = ["job"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_agent_fails_its_cells_and_the_driver_says_so(job: Job) -> None:
    draw = random.Random(SEED)
    own = flags(job)
    for number in range(ROUNDS - ATTACHED):
        kill_an_agent(job, draw, own, attached=False, started=bool(number % 2))
