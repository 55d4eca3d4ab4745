"""
Foreign programs under a worker: the worker stays their supervisor.

A worker never becomes the program it measures. It adopts whatever the program leaves
behind (child subreaper), so that nothing of it survives the cell, and it keeps the life
line to the launcher meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from topobench import processes
from topobench.errors import ProbeUnavailable
from topobench.processes import Process
from topobench.reading import ReasonCode

_TERM_SECONDS = 1.0
_KEPT = (processes.SWEEP, processes.WORKER, processes.DRIVER)


@dataclass(frozen=True, slots=True)
class Ended:
    """
    How a foreign program ended.

    Args:
        code: Exit code; negative for the signal that ended it.
        timed_out: It was ended for being late.
        seconds: From its start to its end, by the monotonic clock.
    """

    code: int
    timed_out: bool
    seconds: float


def run_foreign(
    argv: Sequence[str], *, env: Mapping[str, str], timeout_seconds: float, stdout_path: Path
) -> Ended:
    """
    Run a program to its end or its time limit, then end whatever it started.

    Args:
        env: Its whole environment; the marks of our processes are added.
        stdout_path: File for its standard output; its errors go to the worker's log.

    Raises:
        ProbeUnavailable: The program cannot be started.
    """
    with contextlib.suppress(OSError):  # without it, those that leave the session stay ours
        processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    marks = {k: os.environ[k] for k in _KEPT if k in os.environ}
    before = _descendants()
    began = time.monotonic()
    try:
        with stdout_path.open("wb") as out:
            program = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, env={**env, **marks}
            )
    except OSError as error:
        text = f"{argv[0]} cannot be started: {error.strerror or error}"
        raise ProbeUnavailable(ReasonCode.NO_BINARY, text) from error
    try:
        timed_out = not _ended_within(program, timeout_seconds)
        seconds = time.monotonic() - began
    finally:
        _end_new(before)
    return Ended(program.wait(), timed_out, seconds)


def _ended_within(program: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        program.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_new(before: set[Process]) -> None:
    """End all descendants that came since."""
    processes.end(lambda: list(_descendants() - before), grace_seconds=_TERM_SECONDS)


def _descendants() -> set[Process]:
    everyone = list(processes.running())
    this = [p for p in everyone if p.pid == os.getpid()]
    return set(processes.with_descendants(this, everyone)) - set(this)
