"""Foreign programs run under a worker, and nothing of them survives their cell."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from launching import Lab, cell
from topobench import processes
from topobench.reading import Status


@pytest.fixture
def mark() -> Iterator[str]:
    """What the daemon can be found by: it has none of our marks."""
    found = uuid.uuid4().hex
    yield found
    until = time.monotonic() + 5.0
    while (left := named(found)) and time.monotonic() < until:
        time.sleep(0.05)
    for process in left:
        processes.send(process, 9)
    assert left == []


def named(mark: str) -> list[processes.Process]:
    """Live processes with that word on their command line."""
    found = []
    for process in processes.running():
        try:
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words:
            found.append(process)
    return found


def test_a_program_runs_and_its_daemon_goes_with_it(lab: Lab, mark: str) -> None:
    run, after = lab.run(cell("foreign", mark=mark), cell("steady"))
    assert (run.status, run.reason) == (Status.OK, None)
    assert run.conditions["code"] == 3
    assert run.conditions["timed_out"] is False
    assert run.conditions["out"] == "out\n"
    assert run.log_tail == "err"
    assert run.readings[0].samples[0] >= 0.5
    assert after.members[0].pid == run.members[0].pid
    assert named(mark) == []


def test_a_program_that_is_late_is_killed_with_its_daemon(lab: Lab, mark: str) -> None:
    """It ignores TERM, so it takes KILL."""
    (run,) = lab.run(cell("foreign", mark=mark, seconds=60.0, timeout=1.0))
    assert run.status is Status.OK
    assert (run.conditions["code"], run.conditions["timed_out"]) == (-9, True)
    assert named(mark) == []


def test_a_stop_takes_the_program_and_its_daemon(lab: Lab, mark: str) -> None:
    def stop() -> None:
        while len(named(mark)) < 2:
            time.sleep(0.05)
        lab.stop.set()

    thread = threading.Thread(target=stop)
    thread.start()
    (run,) = lab.run(cell("foreign", mark=mark, seconds=60.0, timeout=60.0), seconds=60.0)
    thread.join()
    assert run.status is Status.ABORTED
    assert named(mark) == []


def test_a_program_that_is_not_there_is_a_skip(lab: Lab, mark: str) -> None:
    (run,) = lab.run(cell("foreign", mark=mark, program="/no/all_reduce_perf"))
    assert (run.status, str(run.reason)) == (
        Status.SKIPPED,
        "no_binary: /no/all_reduce_perf cannot be started: No such file or directory",
    )
