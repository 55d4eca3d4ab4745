"""
What an idle ``topobench daemon`` costs: memory, and CPU time over a while.

Usage: python -m benchmarks.daemon_bar [--seconds N]

The daemon serves a store of its own, has a schedule that is not due, and tells a supervisor that it
is alive every 40 s, as under systemd. CPU time of the children that look for what is due counts.

Bars: 120 MB, 0.2 % of a core. The exit code is 1 when one is missed. On a busy machine the same
work takes more CPU time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from topobench.db.store import Store

MOST_BYTES, MOST_SHARE = 120e6, 0.002
SETTLED_SECONDS = 20.0
"""The first look at the fleet is over by then."""
TICK = 1 / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        supervisor.bind(f"{folder}/notify")
        daemon = _started(Path(folder), supervisor)
        try:
            _hear(supervisor, SETTLED_SECONDS)
            before, begun = _cpu_seconds(daemon.pid), time.monotonic()
            _hear(supervisor, options.seconds)
            share = (_cpu_seconds(daemon.pid) - before) / (time.monotonic() - begun)
            held = _resident_bytes(daemon.pid)
        finally:
            daemon.terminate()
            daemon.wait(30)
    missed = held > MOST_BYTES or share > MOST_SHARE
    print(
        f"idle for {options.seconds:.0f} s: {held / 1e6:.0f} MB resident, {share:.2%} of a core "
        f"(load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs); bars {MOST_BYTES / 1e6:.0f} "
        f"MB, {MOST_SHARE:.1%}"
    )
    return int(missed)


def _started(folder: Path, supervisor: socket.socket) -> subprocess.Popen[bytes]:
    url = f"sqlite:///{folder}/topobench.db"
    Store.open(url).close()
    (folder / "lab.yaml").write_text("kind: topobench/v1\nname: lab\n")
    (folder / "fleet.yaml").write_text(
        f"kind: topobench-fleet/v1\nname: prod\nstore: {url}\n"
        'clusters: [{cluster: lab.yaml, schedules: [{name: never, cron: "0 0 29 2 *"}]}]\n'
    )
    env = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "120000000"}
    command = (sys.executable, "-m", "topobench", "daemon", "--fleet", "fleet.yaml", "--port", "0")
    daemon = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    supervisor.settimeout(60)
    while b"READY=1" not in supervisor.recv(4096):
        pass
    return daemon


def _hear(supervisor: socket.socket, seconds: float) -> None:
    """Take what the daemon says for so long, so that it never waits for us."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        supervisor.settimeout(left)
        with contextlib.suppress(TimeoutError):
            supervisor.recv(4096)


def _cpu_seconds(pid: int) -> float:
    """Its own and that of children that ended."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, stat[11:15])) * TICK


def _resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    raise SystemExit(main())
