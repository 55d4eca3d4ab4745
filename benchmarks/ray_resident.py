"""
What Ray holds and takes on a compute node that only waits for sweeps.

Usage: python -m benchmarks.ray_resident [--seconds N] [--num-cpus N] [--lean]

Starts a Ray head and, beside it, a second node as ``ray start --address`` does on a compute
node; then looks at that second node's processes alone: their memory, and the CPU time they take
while nothing runs. Memory is told as RSS, which counts shared pages in each process, and as PSS,
which shares them out. ``--lean`` leaves out what topobench does not ask for (the log monitor).
Everything started is ended again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "TOPOBENCH_RAY_RESIDENT"
READY_SECONDS = 120.0
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Held:
    """One process: its name, bytes and CPU seconds so far."""

    name: str
    rss_bytes: int
    pss_bytes: int
    cpu_seconds: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--num-cpus", type=int, default=1)
    parser.add_argument("--lean", action="store_true")
    options = parser.parse_args()
    more = [f"--num-cpus={options.num_cpus}", "--object-store-memory=80000000"]
    if options.lean:
        more.append("--include-log-monitor=false")
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        port = _free_port()
        head = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}")
        with _started("head", [*head, "--num-cpus=0"]):
            _wait(lambda: _listens(port))
            with _started("node", [f"--address=127.0.0.1:{port}", *more]) as mark:
                _wait(lambda: any(h.name == "raylet" for h in _held(mark).values()))
                _measure("after ray start", mark, options.seconds)
                with _driver(port):
                    _measure("while a driver is there", mark, options.seconds)
                _measure("after it went", mark, options.seconds)


def _measure(when: str, mark: str, seconds: float) -> None:
    time.sleep(15)  # until all of it is up
    before, begun = _held(mark), time.monotonic()
    time.sleep(seconds)
    after, took = _held(mark), time.monotonic() - begun
    print(
        f"\n{when}: {len(after)} processes over {took:.0f} s on {os.cpu_count()} CPUs "
        f"(load {os.getloadavg()[0]:.1f}), Python {platform.python_version()}"
    )
    rows = []
    for pid, now in sorted(after.items(), key=lambda item: -item[1].pss_bytes):
        earlier = before.get(pid)
        used = now.cpu_seconds - (earlier.cpu_seconds if earlier else 0.0)
        rows.append((now.name, now.rss_bytes, now.pss_bytes, used / took))
    rows.append(("together", *(sum(row[n] for row in rows) for n in (1, 2, 3))))
    for name, rss, pss, share in rows:
        print(f"  {name:<28} RSS {rss / 1e6:6.0f} MB, PSS {pss / 1e6:6.0f} MB, {share:6.2%} CPU")


@contextlib.contextmanager
def _driver(port: int) -> Iterator[None]:
    """A driver that asks for one trivial task, as a sweep's greeting does, and stays."""
    code = f"""
import ray, sys
ray.init(address="127.0.0.1:{port}", log_to_driver=False, logging_level="ERROR")
ray.get(ray.remote(num_cpus=0)(lambda: 1).options(scheduling_strategy="SPREAD").remote())
sys.stdin.read()
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **TOKEN}, stdin=subprocess.PIPE
    )
    try:
        yield
    finally:
        driver.communicate(timeout=READY_SECONDS)


@contextlib.contextmanager
def _started(role: str, arguments: Sequence[str]) -> Iterator[str]:
    """``ray start`` in a session of its own; yields the mark of its processes, ends them all."""
    mark = f"{role}-{secrets.token_hex(8)}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments]
    ray = subprocess.Popen(
        [*command, "--block", "--disable-usage-stats", "--node-ip-address=127.0.0.1"],
        env={**os.environ, **TOKEN, MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield mark
    finally:
        ray.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            ray.wait(20)
        while left := _held(mark):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
            ray.poll()


def _held(mark: str) -> dict[int, Held]:
    """
    The processes that carry a mark in their environment, and their descendants.

    Ray's agents and workers write their title over their environment, so the mark is not enough.
    """
    found: dict[int, Held] = {}
    family = _family(f"{MARK}={mark}".encode())
    for pid in family:
        folder = Path("/proc", str(pid))
        with contextlib.suppress(OSError, IndexError, KeyError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            lines = (folder / "smaps_rollup").read_text().splitlines()[1:]
            kept = dict(line.split(":", 1) for line in lines)
            rss, pss = (int(kept[k].split()[0]) * 1024 for k in ("Rss", "Pss"))
            cpu = (int(stat[11]) + int(stat[12])) * TICK
            found[pid] = Held(_name(folder), rss, pss, cpu)
    return found


def _family(mark: bytes) -> set[int]:
    """Pids of the marked processes and of all that descend from them; no zombies."""
    parents: dict[int, int] = {}
    family: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            if stat[0] == "Z":
                continue
            parents[int(folder.name)] = int(stat[1])
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                family.add(int(folder.name))
    while new := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= new
    return family


def _name(folder: Path) -> str:
    """What a process is, from its command line."""
    words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    scripts = [w for w in words[1:] if w.endswith(".py")]
    program = Path(words[0].split()[0]).name if words[0] else "?"
    if not program.startswith("python"):
        return program
    return Path(scripts[0]).name if scripts else "ray start --block"


def _wait(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + READY_SECONDS
    while not ready():
        if time.monotonic() > until:
            raise SystemExit("Ray did not start in time")
        time.sleep(0.5)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
