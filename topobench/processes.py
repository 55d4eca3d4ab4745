"""
Finding and ending processes by session and by environment marker (Linux /proc).

Standard library only: the worker, its guard and the reaper import it before anything
heavy. Zombies never count as alive; a process is known by pid *and* start time, so that
a pid that was used again is never signalled.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

SWEEP = "TOPOBENCH_SWEEP"
"""Marks every process of ours with its sweep."""
WORKER = "TOPOBENCH_WORKER"
"""Marks a worker and everything it starts."""
DRIVER = "TOPOBENCH_DRIVER"
"""Marks everything that must not outlive a driver (agents.reaper)."""

UNGUARDED = 97
"""Exit code of a worker that found its guard gone (probes.lifeline)."""

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


def host_name() -> str:
    """This host's own name; it may hold any letter, whatever the locale is."""
    return os.fsencode(os.uname().nodename).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Process:
    """
    A live process; equal if pid and start are.

    Args:
        start: Clock ticks after boot, as /proc/PID/stat says.
    """

    pid: int
    parent: int = field(compare=False)
    session: int = field(compare=False)
    start: int


def running() -> Iterator[Process]:
    """Every process that is no zombie."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := find(int(entry))) is not None:
            yield found


def find(pid: int) -> Process | None:
    """The process with that pid; None if there is none or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = _fields(text)
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def state(pid: int) -> str | None:
    """The letter of a process's state in proc(5): ``T`` stopped, ``D`` in the kernel ..."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return _fields(file.read())[0].decode()
    except OSError:
        return None


def _fields(stat: bytes) -> list[bytes]:
    return stat[stat.rindex(b")") + 2 :].split()  # the name before may hold anything


def marker(pid: int, name: str) -> str | None:
    """An environment variable of a process as it was started; None if not readable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    prefix = name.encode() + b"="
    for entry in entries:
        if entry.startswith(prefix):
            return os.fsdecode(entry[len(prefix) :])
    return None


@dataclass(frozen=True, slots=True)
class Family:
    """
    The processes of a worker: its session, and whoever left it but kept the marker.

    Args:
        leader: Pid of the worker; its session's number if it leads one.
        token: Value of the marker ``TOPOBENCH_WORKER``.
        since: Start time of the worker; nothing of its family is older.
    """

    leader: int
    token: str
    since: int = 0

    def owns(self, process: Process, leader_start: int | None) -> bool:
        """
        Whether that process belongs to this family.

        Args:
            leader_start: Start time of whoever has the leader's pid now. Another time than
                ours means that the pid went to a stranger, and so did the session.
        """
        if process.pid == self.leader:
            return process.start == self.since
        if process.session == self.leader and leader_start in (None, self.since):
            return True
        return process.start >= self.since and marker(process.pid, WORKER) == self.token


def members(families: Sequence[Family]) -> list[Process]:
    """Every live process of these families and their descendants, but for the caller."""
    everyone = list(running())
    starts = {p.pid: p.start for p in everyone}
    found = [p for p in everyone if any(f.owns(p, starts.get(f.leader)) for f in families)]
    return [p for p in with_descendants(found, everyone) if p.pid != os.getpid()]


def with_descendants(roots: Iterable[Process], everyone: Iterable[Process]) -> list[Process]:
    """Those processes and all below them, whatever session or environment they have."""
    found = {p.pid: p for p in roots}
    while more := [p for p in everyone if p.parent in found and p.pid not in found]:
        found |= {p.pid: p for p in more}
    return list(found.values())


def send(process: Process, number: int) -> None:
    """Signal a process unless it is gone or its pid has another owner by now."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:  # kernel without pidfd
        handle = None
    try:
        if not _lives(process):
            return
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        if handle is not None:
            os.close(handle)


def end(
    look: Callable[[], Sequence[Process]], *, grace_seconds: float, limit_seconds: float = 5.0
) -> list[Process]:
    """
    End processes: TERM, a grace, then KILL until none is found.

    Args:
        look: Finds those still alive; called again and again.
        grace_seconds: Between TERM and KILL; 0 sends KILL at once.
        limit_seconds: How long to go on after the grace (a process may hang in a driver).

    Returns:
        Those that live on all the same.
    """
    kill_at = time.monotonic() + grace_seconds
    seen: set[Process] = set()
    while alive := {*look(), *filter(_lives, seen)}:  # who lost its parent is not forgotten
        now = time.monotonic()
        for process in alive:
            if now >= kill_at:
                send(process, signal.SIGKILL)
            elif process not in seen:
                send(process, signal.SIGTERM)
        seen |= alive
        if now > kill_at + limit_seconds:
            return sorted(alive, key=lambda p: p.pid)
        time.sleep(0.02)
    return []


def _lives(process: Process) -> bool:
    return find(process.pid) == process


def prctl(option: int, value: int | bytes) -> None:
    """
    Set an attribute of this process (prctl, section 2).

    Raises:
        OSError: The kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
