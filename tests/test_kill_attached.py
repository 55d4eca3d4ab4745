"""SIGKILL of agents and drivers that are attached to a Ray: it goes on, and serves the next."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from killing import ATTACHED, SEED, flags, job, kill_a_driver, kill_an_agent
from main_job import Job

__all__ = ["job"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a running Ray, as a site has one."""
    from ray.cluster_utils import Cluster

    options = {
        "num_cpus": 0,  # it starts no idle workers for each driver; agents ask for no CPU
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,
        "object_store_memory": 80 * 2**20,
    }
    running = Cluster(initialize_head=True, head_node_args=options)
    yield running.address
    running.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_drivers_and_agents_are_killed_in_turn_in_one_ray(job: Job, cluster: str) -> None:
    """What is asked of them is what is asked in a Ray of the driver's own."""
    draw = random.Random(SEED)
    attached = flags(job, cluster)
    for number in range(ATTACHED):
        kill_a_driver(job, draw, attached, started=bool(number % 2))
        kill_an_agent(job, draw, attached, attached=True, started=bool(number % 2))
        states = {row[0] for row in job.rows("SELECT status FROM sweep ORDER BY id")}
        assert states <= {"interrupted", "done", "failed"}
