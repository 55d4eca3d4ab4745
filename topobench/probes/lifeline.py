"""
A worker never outlives its launcher: the guard beside each worker.

The guard is a small process forked by the worker before it does anything else. It ends
the worker's whole family when the launcher closes the worker's stdin (by whatever death),
when the worker itself is gone, or when the deadline has passed. It is a process and no
thread, because native code may hold the interpreter's lock for minutes, and because
somebody must end the children of a worker that was killed.

A guard that is killed itself is noticed at once: it alone holds a pipe of the launcher's,
which then ends the worker. A worker that leaves in good order takes its guard along: a container
whose first process reaps nothing would keep each as a zombie.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import struct
import time
from collections.abc import Collection
from typing import NoReturn

from topobench import processes
from topobench.processes import Family, Process

_DEADLINE = struct.Struct("d")
_LOOK_SECONDS = 0.5
_FAREWELL_SECONDS = 1.0
_LONGEST_SECONDS = 3600.0  # poll takes no more than 24 days

SLACK_SECONDS = 5.0
"""The launcher ends a late worker first and says why; the guard only if it did not."""


class Lifeline:
    """The worker's end: tells the guard how long the worker may go on."""

    def __init__(self, pipe: int, guard: int) -> None:
        self._pipe = pipe
        self._guard = guard

    def allow(self, seconds: float) -> None:
        """
        The family ends that many seconds from now, unless this is called again.

        Raises:
            SystemExit: ``UNGUARDED``: the guard is gone, so nothing would.
        """
        try:
            os.write(self._pipe, _DEADLINE.pack(time.monotonic() + seconds))
        except BrokenPipeError:
            raise SystemExit(processes.UNGUARDED) from None

    def end(self) -> None:
        """The guard leaves: call it last, with nothing running any more."""
        with contextlib.suppress(OSError):  # it is gone already
            os.write(self._pipe, _DEADLINE.pack(math.nan))
            until = time.monotonic() + _FAREWELL_SECONDS
            while os.waitpid(self._guard, os.WNOHANG) == (0, 0) and time.monotonic() < until:
                time.sleep(0.001)


def start(launcher: int, token: str, held: int) -> Lifeline:
    """
    Tie this process to its launcher; call it before any thread or heavy import.

    Args:
        launcher: Pid of the process that must hold our stdin.
        token: Value of the marker TOPOBENCH_WORKER of this worker's family.
        held: Pipe that the guard alone keeps open, so that its end is seen.

    Raises:
        SystemExit: The launcher is gone already.
    """
    with contextlib.suppress(OSError):  # the guard is enough where prctl is forbidden
        processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        raise SystemExit("the launcher is gone")
    this = processes.find(os.getpid())
    family = Family(os.getpid(), token, this.start if this else 0)
    read_end, write_end = os.pipe()
    if (guard := os.fork()) == 0:
        try:
            _guard(family, read_end, held)
        finally:
            os._exit(0)
    os.close(read_end)
    os.close(held)
    return Lifeline(write_end, guard)


def _guard(family: Family, deadlines: int, held: int) -> NoReturn:
    _step_aside({deadlines, held})
    deadline = float("inf")
    poller = select.poll()
    poller.register(0, 0)  # hang-up alone: the words on stdin are the worker's
    poller.register(deadlines, select.POLLIN)
    patience = _LONGEST_SECONDS
    try:
        poller.register(os.pidfd_open(family.leader), select.POLLIN)
    except OSError:  # a kernel without pidfd: look now and then instead
        patience = _LOOK_SECONDS
    while os.getppid() == family.leader and (left := deadline - time.monotonic()) > 0:
        ready = dict(poller.poll(min(left, patience) * 1000 + 1))
        if 0 in ready:
            break
        if ready.get(deadlines, 0) & select.POLLIN:
            data = os.read(deadlines, _DEADLINE.size * 256)
            (deadline,) = _DEADLINE.unpack(data[-_DEADLINE.size :])
            if math.isnan(deadline):
                _end(family, but=family.leader)
        elif deadlines in ready:
            poller.unregister(deadlines)
    _end(family)


def _end(family: Family, but: int | None = None) -> NoReturn:
    """End what is left of the worker's family, and this process."""

    def alive() -> list[Process]:
        return [p for p in processes.members([family]) if p.pid != but]

    processes.end(alive, grace_seconds=0)
    os._exit(0)


def _step_aside(kept: Collection[int]) -> None:
    """Hold nothing of the worker's but its stdin and these pipes, and take no polite signal."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    lowest = 3
    for pipe in sorted(kept):
        os.closerange(lowest, pipe)
        lowest = pipe + 1
    os.closerange(lowest, 65536)
    with contextlib.suppress(OSError):
        processes.prctl(processes.PR_SET_NAME, b"topobench-guard")
