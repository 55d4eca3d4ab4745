"""SIGKILL of workers, and signals to the driver: a clean end, and no run is half-written."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import time

import pytest

from killing import FEW, MANY, ROUNDS, SEED, check_store, flags, job, wait_for_runs
from main_job import Job, descendants, gone_within, stolen, workers_of
from topobench.errors import AgentError
from topobench.signals import Interrupted, Signals

__all__ = ["job"]


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
    driver = job.start("probe", *flags(job), *MANY, "--format", "json")
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
    driver = job.start("probe", *flags(job), *FEW, "--format", "json", start_new_session=True)
    wait_for_runs(job, driver, 2)
    # The driver is alone in its group, so that a signal to all of it leaves Ray to end the workers.
    assert {os.getpgid(child) for child in descendants(driver.pid)} & {driver.pid} == set()
    os.killpg(driver.pid, number)
    out, err = driver.communicate(timeout=30)
    assert driver.returncode == code, err
    document = json.loads(out)
    assert (document["status"], document["exit_code"]) == ("interrupted", code)
    counts = document["data"]["counts"]
    done = counts.get("ok", 0) + sum(map(stolen, document["data"]["cells"]))
    assert done >= 2
    # What its worker had not come to is aborted; what no worker had yet stays planned.
    assert counts.get("aborted", 0) + counts.get("planned", 0) == 8 - done > 0
    assert gone_within(5, driver.pid, job.sweeps()) == []
    resumed = job.document("probe", "--resume", "latest")
    assert resumed["data"]["sweep"]["id"] == document["data"]["sweep"]["id"]
    cells = resumed["data"]["cells"]
    assert [c["reason"] for c in cells if c["status"] != "ok" and not stolen(c)] == []
    assert len(cells) == 8
    assert resumed["exit_code"] == int(any(map(stolen, cells)))
    if number is signal.SIGINT and not resumed["exit_code"]:
        with contextlib.closing(sqlite3.connect(job.database)) as plain, plain:  # as on a full disk
            plain.execute("UPDATE sweep SET status = 'running', ended_at = NULL")
        ended = job.document("probe", "--resume", "latest")["data"]["sweep"]
        assert (ended["status"], ended["ended_at"] is None) == ("done", False)


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
    """Raised inside it, it would be lost there or leave half a Ray; the next one, too."""
    from topobench.agents import ray_agent

    done = []

    def init(**_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
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
    driver = job.start("probe", *flags(job), *MANY)
    while driver.poll() is None and not list(descendants(driver.pid)):
        time.sleep(0.05)
    time.sleep(1.0)
    driver.send_signal(number)
    _, err = driver.communicate(timeout=30)
    assert driver.returncode == code, err
    assert gone_within(5, driver.pid, job.sweeps()) == []
