"""Starting the real command, and finding whatever it left behind."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from topobench import processes

SMALL = (
    *("--probes", "host_memory", "--set", "host_memory.op=copy"),
    *("--set", "host_memory.bytes=8M"),
)
"""The shortest real sweep: one cell."""


class Job:
    """
    A folder with a store and a lock of its own, and commands run in it.

    Every process it starts carries ``TOPOBENCH_TEST`` as far as our allow-list lets it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "topobench.db"
        self.env = {
            **os.environ,
            "TOPOBENCH_RUN_DIR": str(folder / "run"),
            "TOPOBENCH_STORE": f"sqlite:///{self.database}",
        }

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        """A command in the background."""
        return subprocess.Popen(
            [sys.executable, "-m", "topobench", *arguments],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def run(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def document(self, *arguments: str) -> dict[str, Any]:
        """The JSON document of a command that must give one."""
        done = self.run(*arguments, "--format", "json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What the store holds; nothing while it is not made yet."""
        if not self.database.exists():
            return []
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            try:
                return connection.execute(sql).fetchall()
            except sqlite3.OperationalError:
                return []

    def committed(self) -> set[str]:
        """UUIDs of the runs stored by now."""
        return {row[0] for row in self.rows("SELECT uuid FROM run")}

    def sweeps(self) -> list[str]:
        """UUIDs of the sweeps stored by now."""
        return [row[0] for row in self.rows("SELECT uuid FROM sweep")]


def stolen(cell: dict[str, Any]) -> bool:
    """True if the hypervisor took the CPUs while the cell was measured: no fault of ours."""
    return bool(cell["status"] == "invalid" and cell["reason"].startswith("busy: the hypervisor"))


def _start() -> int:
    """When these tests began: nothing that they started is older."""
    this = processes.find(os.getpid())
    assert this is not None
    return this.start


def of_driver(pid: int, sweeps: list[str]) -> list[str]:
    """Live processes that a driver's sweep started, described; the driver is not one."""
    began = _start()
    return [
        f"{p.pid} {title(p.pid)}"
        for p in processes.running()
        if p.pid != pid
        and p.start >= began
        and (_is_of_sweep(p.pid, sweeps) or _is_of_ray(p.pid, pid))
    ]


def gone_within(seconds: float, pid: int, sweeps: list[str]) -> list[str]:
    """What is left of a driver's sweep after waiting that long for it to go."""
    end = time.monotonic() + seconds
    while (left := of_driver(pid, sweeps)) and time.monotonic() < end:
        time.sleep(0.25)
    return left


def descendants(pid: int) -> Iterator[int]:
    """Every live process below a process."""
    everyone = list(processes.running())
    level = {pid}
    while level:
        level = {p.pid for p in everyone if p.parent in level}
        yield from level


def agent_of(driver: int) -> int | None:
    """The agent that a driver's embedded Ray runs, once it is there."""
    return next((p for p in descendants(driver) if title(p).startswith("ray::HostAgent")), None)


def workers_of(sweeps: list[str]) -> list[int]:
    """Measuring processes of these sweeps."""
    return [
        p.pid
        for p in processes.running()
        if processes.marker(p.pid, processes.WORKER) is not None and _is_of_sweep(p.pid, sweeps)
    ]


def _is_of_sweep(pid: int, sweeps: list[str]) -> bool:
    return processes.marker(pid, processes.SWEEP) in sweeps


def _is_of_ray(pid: int, driver: int) -> bool:
    """Ray's own processes hide their environment, but keep logs open in the driver's folder."""
    token = processes.marker(pid, processes.DRIVER) or ""
    if token.startswith(f"{driver}-"):
        return True
    try:
        handles = [os.readlink(f) for f in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any(f"tb-ray-{driver}-" in handle for handle in handles)


def title(pid: int) -> str:
    """A process's command line, or the title that it gave itself; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
