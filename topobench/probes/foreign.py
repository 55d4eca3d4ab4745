"""
Foreign programs under a worker: the worker stays their supervisor.

A worker never becomes the program it measures. It adopts whatever the program leaves
behind (child subreaper), so that nothing of it survives the cell, and it keeps the life
line to the launcher meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import topobench
from topobench import processes
from topobench.errors import ProbeError, ProbeUnavailable
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
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_seconds: float,
    stdout_path: Path,
    folder: Path | None = None,
) -> Ended:
    """
    Run a program to its end or its time limit, then end whatever it started.

    Args:
        env: Its whole environment; the marks of our processes are added.
        stdout_path: File for its standard output; its errors go to the worker's log.
        folder: Where it runs; None: where the worker does.

    Raises:
        ProbeUnavailable: The program cannot be started.
    """
    began = time.monotonic()
    with (
        stdout_path.open("wb") as out,
        running(argv, env=env, folder=folder, stdout=out) as program,
    ):
        timed_out = not _ended_within(program, timeout_seconds)
        seconds = time.monotonic() - began
    return Ended(program.wait(), timed_out, seconds)


@contextlib.contextmanager
def running(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    folder: Path | None = None,
    stdout: IO[bytes] | None = None,
    grace_seconds: float = _TERM_SECONDS,
) -> Iterator[subprocess.Popen[bytes]]:
    """
    A program beside the worker's own work; at the end of the block it and its children end.

    Args:
        env: Its whole environment; the marks of our processes are added.
        stdout: File for its standard output; None: the worker's log.
        grace_seconds: Between asking it to end and ending it.

    Raises:
        ProbeUnavailable: The program cannot be started.
    """
    with contextlib.suppress(OSError):  # without it, those that leave the session stay ours
        processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    marks = {k: os.environ[k] for k in _KEPT if k in os.environ}
    before = _descendants()
    try:
        program = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=stdout, env={**env, **marks}, cwd=folder
        )
    except OSError as error:
        text = f"{argv[0]} cannot be started: {error.strerror or error}"
        raise ProbeUnavailable(ReasonCode.NO_BINARY, text) from error
    try:
        yield program
    finally:
        _end_new(before, grace_seconds)
        program.wait()


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """
    What a foreign program finds in its environment: the worker's, without what is ours.

    Args:
        more: On top of it.
    """
    own = str(Path(topobench.__file__).parent.parent)
    found = {k: v for k, v in os.environ.items() if not k.startswith("TOPOBENCH_")}
    path = [p for p in found.pop("PYTHONPATH", "").split(os.pathsep) if p and p != own]
    if path:
        found["PYTHONPATH"] = os.pathsep.join(path)
    return {**found, **(more or {})}


def output_text(path: Path, most_bytes: int) -> str:
    """
    What a program printed; bytes that are no UTF-8 are replaced.

    Raises:
        ProbeError: ``parse``: it is larger than that.
    """
    size = path.stat().st_size
    if size > most_bytes:
        text = f"its output of {size} bytes is larger than {most_bytes}; print less"
        raise ProbeError(ReasonCode.PARSE, text)
    return path.read_text("utf-8", errors="replace")


def show_tail(text: str, lines: int) -> None:
    """Put the last lines of an output into the worker's log, which is its standard output."""
    data = "\n".join(text.splitlines()[-lines:]).encode()
    os.write(1, data + b"\n" if data else b"")


def check_end(name: str, ended: Ended, limit_seconds: float) -> None:
    """
    Refuse a program that did not end well.

    Raises:
        ProbeError: ``deadline``, ``signal`` or ``crashed``.
    """
    if ended.timed_out:
        text = f"{name} was ended after {limit_seconds:.0f} s"
        raise ProbeError(ReasonCode.DEADLINE, text)
    if ended.code < 0:
        names = {s.value: s.name for s in signal.Signals}
        text = f"{name} was ended by {names.get(-ended.code, f'signal {-ended.code}')}"
        raise ProbeError(ReasonCode.SIGNAL, text)
    if ended.code:
        raise ProbeError(ReasonCode.CRASHED, f"{name} ended with exit code {ended.code}")


def _ended_within(program: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        program.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_new(before: set[Process], grace_seconds: float) -> None:
    """End all descendants that came since."""
    processes.end(lambda: list(_descendants() - before), grace_seconds=grace_seconds)


def _descendants() -> set[Process]:
    everyone = list(processes.running())
    this = [p for p in everyone if p.pid == os.getpid()]
    return set(processes.with_descendants(this, everyone)) - set(this)
