"""
Three hosts on one machine: network namespaces on a bridge, a real Ray in each.

Every host has an address, a link, a run folder and a key of its own; disks and CPUs are shared.
Processes are found and ended by the namespace they live in, never by name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

RAY_PORT = 6399
_READY_SECONDS = 150.0
_HEALTH = {  # Ray's own checks of a node; the defaults take a minute to see a cut cable
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


@dataclass(frozen=True, slots=True)
class NetHost:
    """
    One namespace.

    Args:
        namespace: Its name for ``ip netns``.
        link: The end of its cable that lies on the bridge's side.
        packages: Folder whose packages stand before those installed.
    """

    name: str
    namespace: str
    address: str
    link: str
    folder: Path
    packages: Path | None = None

    def pids(self) -> list[int]:
        """Every process that lives in it."""
        done = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True
        )
        return [int(line) for line in done.stdout.split()]

    def kill(self) -> None:
        """End every process in it at once, as a power cut would."""
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def cut(self) -> None:
        """Pull its cable."""
        _ip("link", "set", self.link, "down")

    def mend(self) -> None:
        """Put its cable back."""
        _ip("link", "set", self.link, "up")

    def dial_nobody_at(self, address: str) -> None:
        """Let it open no connection to Ray's workers of a host; those that are open stay."""
        self.inside("ip", "rule", "add", *_ports_of_workers(address))

    def dial_again(self, address: str) -> None:
        """Undo :meth:`dial_nobody_at`."""
        self.inside("ip", "rule", "del", *_ports_of_workers(address))

    def slow_down(self, rate: str) -> None:
        """Let it send no faster than a rate such as ``200mbit``."""
        shape = ("tbf", "rate", rate, "burst", "256k", "latency", "50ms")
        self.inside("tc", "qdisc", "replace", "dev", "eth0", "root", *shape)

    def at_full_speed(self) -> None:
        """Undo :meth:`slow_down`."""
        self.inside("tc", "qdisc", "del", "dev", "eth0", "root")

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, to its end."""
        full = [*self._into(), *command]
        return subprocess.run(full, check=True, capture_output=True, text=True, env=self.env())

    def start(self, *command: str, **more: object) -> subprocess.Popen[str]:
        """Start a command in it; the pid is that of the command itself."""
        full = [*self._into(), *command]
        return subprocess.Popen(full, text=True, **{"env": self.env(), **more})  # type: ignore[call-overload, no-any-return]

    def _into(self) -> list[str]:
        named = f'hostname {self.name} && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", named, "sh"]

    def env(self) -> dict[str, str]:
        """The environment of whatever runs there."""
        return {
            **os.environ,
            **_HEALTH,
            "TOPOBENCH_RUN_DIR": str(self.folder / "run"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.folder.parent / "token"),
            **({"PYTHONPATH": str(self.packages)} if self.packages else {}),
        }


class NetCluster:
    """
    Hosts ``h1``, ``h2`` ... behind one bridge; ``h1`` has Ray's head.

    Use :func:`cluster`, which also takes everything away again.
    """

    def __init__(self, count: int) -> None:
        self.tag = f"{os.getpid():x}"
        self.bridge = f"tb{self.tag}"
        # Ray's sockets: their paths are limited to 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="tb-net-", dir="/tmp"))
        (self.folder / "token").write_text(secrets.token_hex(32))
        self._started: list[subprocess.Popen[str]] = []
        self.hosts = [self._host(number) for number in range(1, count + 1)]

    def __getitem__(self, name: str) -> NetHost:
        return next(h for h in self.hosts if h.name == name)

    @property
    def ray_address(self) -> str:
        """As ``ray.address`` of a cluster file takes it."""
        return f"{self.hosts[0].address}:{RAY_PORT}"

    def up(self) -> None:
        """Lay the cables and start Ray on every host."""
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("link", "set", self.bridge, "up")
        for host in self.hosts:
            self._lay_cable(host)
        for host in self.hosts:
            self.start_ray(host)
            if host is self.hosts[0]:
                self._wait_for_head()
        self.wait_for_nodes(self.hosts)

    def add(self, packages: Path | None = None) -> NetHost:
        """One more host."""
        host = self._host(len(self.hosts) + 1, packages)
        self.hosts.append(host)
        self._lay_cable(host)
        self.start_ray(host)
        self.wait_for_nodes([host])
        return host

    def start_ray(self, host: NetHost) -> None:
        """Start Ray on one host."""
        head = host is self.hosts[0]
        own = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false", "--no-monitor"]
        where = own if head else [f"--address={self.ray_address}"]
        command = (
            *(sys.executable, "-m", "ray.scripts.scripts", "start", *where),
            *(f"--node-ip-address={host.address}", "--num-cpus=0", "--block"),
            "--include-log-monitor=false",
            *("--object-store-memory=80000000", f"--temp-dir={host.folder}"),
        )
        with (host.folder / "ray.out").open("w") as log:
            started = host.start(*command, stdout=log, stderr=subprocess.STDOUT, cwd=host.folder)
        self._started.append(started)

    def scale_down(self, host: NetHost) -> None:
        """Have Ray leave a host as an autoscaler would, and wait until it has."""
        ray = self._started[self.hosts.index(host)]
        ray.terminate()
        ray.wait(timeout=_READY_SECONDS)

    def end_head(self) -> None:
        """Kill what all of Ray hangs on, and nothing else."""
        for pid in self.hosts[0].pids():
            program = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
            if program.endswith(b"/gcs_server"):
                os.kill(pid, signal.SIGKILL)

    def _wait_for_head(self) -> None:
        until = time.monotonic() + _READY_SECONDS
        test = (
            f"import socket; socket.create_connection(('{self.hosts[0].address}', {RAY_PORT}), 1)"
        )
        while time.monotonic() < until:
            with contextlib.suppress(subprocess.CalledProcessError):
                self.hosts[0].inside(sys.executable, "-S", "-c", test)
                return
            time.sleep(0.2)
        raise TimeoutError(f"Ray's head did not start: {self.logs()}")

    def wait_for_nodes(self, hosts: Sequence[NetHost]) -> None:
        """Until these hosts are alive to Ray."""
        code = (
            "import ray, sys, time\n"
            "ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')\n"
            f"until = time.monotonic() + {_READY_SECONDS}\n"
            "wanted = set(sys.argv[2:])\n"
            "while wanted - {n['NodeManagerAddress'] for n in ray.nodes() if n['Alive']}:\n"
            "    assert time.monotonic() < until, ray.nodes()\n"
            "    time.sleep(0.1)\n"
        )
        addresses = [h.address for h in hosts]
        self.hosts[0].inside(sys.executable, "-c", code, self.ray_address, *addresses)

    def down(self) -> None:
        """End every process and take the namespaces and the bridge away."""
        for host in self.hosts:
            host.kill()
        for process in self._started:
            process.wait()
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def logs(self) -> str:
        """What Ray said on every host."""
        files = [h.folder / "ray.out" for h in self.hosts]
        return "\n".join(f.read_text() for f in files if f.exists())

    def _host(self, number: int, packages: Path | None = None) -> NetHost:
        name = f"h{number}"
        folder = self.folder / name
        folder.mkdir()
        return NetHost(
            name=name,
            namespace=f"tb{self.tag}-{name}",
            address=f"10.219.{os.getpid() % 250}.{number}",
            link=f"tb{self.tag}v{number}",
            folder=folder,
            packages=packages,
        )

    def _lay_cable(self, host: NetHost) -> None:
        _ip("netns", "add", host.namespace)
        peer = ("peer", "name", "eth0", "netns", host.namespace)
        _ip("link", "add", host.link, "type", "veth", *peer)
        _ip("link", "set", host.link, "master", self.bridge, "up")
        for command in (
            ("addr", "add", f"{host.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "default", "dev", "eth0"),  # Ray asks for the way to the internet
        ):
            _ip("-n", host.namespace, *command)


@contextlib.contextmanager
def cluster(count: int = 3) -> Iterator[NetCluster]:
    """A running cluster; nothing of it is left afterwards."""
    made = NetCluster(count)
    try:
        made.up()
        yield made
    finally:
        made.down()


def _ports_of_workers(address: str) -> tuple[str, ...]:
    """A rule for the ports that ``ray start`` gives to workers and drivers."""
    return ("to", address, "ipproto", "tcp", "dport", "10002-19999", "blackhole")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
