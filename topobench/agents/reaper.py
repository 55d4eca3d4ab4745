"""
The reaper: nothing of an embedded Ray outlives its driver, whatever ended the driver.

A driver marks what it starts with ``TOPOBENCH_DRIVER=<token>`` in its environment and
starts a reaper that holds a pipe from it. When the pipe closes without a good-bye, the
reaper ends every process with that marker and removes the driver's Ray folder. Standard
library only; runs as ``python -m topobench.agents.reaper TOKEN``.

A token is ``<pid>-<start time>-<scope><random>``. The scope tells boots and pid
namespaces apart: a pid means nothing to another host or container.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

import topobench
from topobench import processes
from topobench.errors import AgentError
from topobench.processes import Process

_BYE = b"bye\n"
_TERM_SECONDS = 1.0
_LIMIT_SECONDS = 30.0
_SCOPE_DIGITS = 4
_FOLDER = "tb-ray-"
_LONGEST_FOLDER = 43
"""Ray puts sockets 64 bytes below its folder, and the kernel allows 107 for a path."""


class Reaper:
    """
    A reaper at work; close it when the driver has ended everything itself.

    Args:
        process: Its process, with our end of the pipe as stdin.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Process id of the reaper."""
        return self._process.pid

    def close(self) -> None:
        """Send it home without reaping; closing twice is harmless."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it may be dead, or closed already
            self._process.stdin.write(_BYE)
            self._process.stdin.close()
        self._process.wait()


def new_token() -> str:
    """
    A token for this process as a driver.

    Raises:
        AgentError: /proc cannot be read.
    """
    this = processes.find(os.getpid())
    if this is None:
        raise AgentError("/proc is not readable here; topobench needs it to end its processes")
    return f"{this.pid}-{this.start}-{_scope()}{secrets.token_hex(2)}"


def start_reaper(token: str) -> Reaper:
    """
    Start a reaper for this driver, before anything that carries its token.

    Raises:
        AgentError: The interpreter cannot be started.
    """
    root = str(Path(topobench.__file__).parent.parent)
    environment = {k: v for k, v in os.environ.items() if k != processes.DRIVER}
    environment["PYTHONPATH"] = ":".join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "topobench.agents.reaper", token],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal is not for it
            env=environment,
        )
    except OSError as error:
        raise AgentError(f"the reaper cannot be started: {error}") from error
    return Reaper(process)


def ray_folder(token: str) -> Path:
    """Folder of a driver's embedded Ray; short, since sockets in it have a length limit."""
    return _folders(token) / f"{_FOLDER}{token}"


def _folders(token: str) -> Path:
    """The temporary folder of this user, or /tmp where that is too deep for a socket."""
    given = Path(tempfile.gettempdir())
    longest = len(str(given / f"{_FOLDER}{token}"))
    return given if longest <= _LONGEST_FOLDER else Path("/tmp")


def sweep_leftovers() -> int:
    """
    End what dead drivers of this host left behind, and remove their Ray folders.

    Returns:
        How many processes were found.
    """
    orphans = {p.pid for p in _orphans()}
    processes.end(_orphans, grace_seconds=_TERM_SECONDS, limit_seconds=_LIMIT_SECONDS)
    for folder in _dead_folders():
        shutil.rmtree(folder, ignore_errors=True)
    return len(orphans)


def reap(token: str) -> None:
    """End every process of that driver and their descendants; remove its Ray folder."""
    processes.end(
        lambda: _with_token({token}), grace_seconds=_TERM_SECONDS, limit_seconds=_LIMIT_SECONDS
    )
    shutil.rmtree(ray_folder(token), ignore_errors=True)


def main(arguments: list[str]) -> None:
    """Wait for the driver's good-bye or death."""
    token = arguments[0]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    poller = select.poll()
    poller.register(0, select.POLLIN)
    with contextlib.suppress(OSError):  # a copy of the pipe may live on in a child of it
        poller.register(os.pidfd_open(int(token.split("-")[0])), select.POLLIN)
    poller.poll()
    if not select.select([0], [], [], 0)[0] or os.read(0, len(_BYE)) != _BYE:
        reap(token)


def _orphans() -> list[Process]:
    tokens = {processes.marker(p.pid, processes.DRIVER) for p in processes.running()}
    tokens |= {f.name.removeprefix(_FOLDER) for f in _dead_folders()}
    return _with_token({t for t in tokens if t and _driver_is_dead(t)})


def _dead_folders() -> list[Path]:
    """Ray folders whose driver is gone."""
    parents = {Path(tempfile.gettempdir()), Path("/tmp")}
    found = [f for parent in parents for f in parent.glob(f"{_FOLDER}*")]
    return [f for f in found if _driver_is_dead(f.name.removeprefix(_FOLDER))]


def _with_token(tokens: Collection[str]) -> list[Process]:
    """
    Processes with one of these tokens, and their descendants.

    Ray's own processes overwrite their environment with a title; they are known by their
    parent, or, once that is gone, by the logs they hold open in the driver's Ray folder.
    A driver that asks for its own holds such a log too; its other children are not Ray's.
    """
    everyone = [p for p in processes.running() if p.pid != os.getpid()]
    folders = tuple(f"{ray_folder(token)}/" for token in tokens)
    found = [
        p
        for p in everyone
        if processes.marker(p.pid, processes.DRIVER) in tokens or _holds(p.pid, folders)
    ]
    return processes.with_descendants(found, everyone)


def _holds(pid: int, folders: tuple[str, ...]) -> bool:
    """Whether a process has a file open in one of these folders."""
    try:
        handles = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for handle in handles:
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(handle).startswith(folders):
                return True
    return False


def _driver_is_dead(token: str) -> bool:
    """False unless it is certain: tokens of other boots and containers say nothing."""
    pid, _, rest = token.partition("-")
    start, _, tail = rest.partition("-")
    if not (pid.isdigit() and start.isdigit() and tail.startswith(_scope())):
        return False
    driver = processes.find(int(pid))
    return driver is None or driver.start != int(start)


def _scope() -> str:
    """Digest of this boot and pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:_SCOPE_DIGITS]


if __name__ == "__main__":
    main(sys.argv[1:])
