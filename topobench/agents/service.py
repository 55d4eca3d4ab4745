"""What an agent does for its host, whoever calls it: describe it, lock it, run cells."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from topobench import health, processes, validity
from topobench.agents import idle, preflight
from topobench.agents.conditions.monitor import Monitor
from topobench.agents.conditions.nvml_counters import Session
from topobench.agents.discover import discover
from topobench.agents.host_lock import HostLock
from topobench.agents.launch import Launcher
from topobench.agents.part import Part, own_share
from topobench.health import Rules, Trouble
from topobench.host import BUSY_OR_NOT, Host, Idle
from topobench.reading import Cell, Run
from topobench.topology import Topology


@dataclass(frozen=True, slots=True)
class HostRequest:
    """
    What the driver tells a host's agent at its start.

    Args:
        id: The host's key from the config, or None to derive one.
        address: As the cluster knows the host; the last resort for a key.
        env: The site's environment for workers (cluster and host blocks).
        lock: False for a look that measures nothing (``plan``, ``topo show``).
        idle: What to do where somebody else is at work.
        health: What is said with the runs of GPUs that something is wrong with.
    """

    sweep: str
    id: str | None = None
    address: str = "127.0.0.1"
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    interface: str | None = None
    lock: bool = True
    idle: Idle = BUSY_OR_NOT
    health: Rules = health.STANDARD


class HostService:
    """
    One host's agent, without the transport. Holds the host lock while it lives.

    Args:
        request: What the driver wants of this host.
    """

    def __init__(self, request: HostRequest) -> None:
        self._request = request
        self._stop = threading.Event()
        self._lock: HostLock | None = None
        self._launcher: Launcher | None = None
        self._part: Part | None = None
        self._topology: Topology | None = None
        self._troubles: tuple[Trouble, ...] = ()
        self._monitor = Monitor(sweep=request.sweep)
        self._log_dir: Path | None = None

    def describe(self) -> Host:
        """
        Lock the host, discover it and say what it can run, once it may be measured.

        Raises:
            RefusedError: Another sweep holds the host, or somebody else is at work there.
        """
        if self._request.lock and self._lock is None:
            self._lock = HostLock(sweep=self._request.sweep)
            self._lock.acquire()
        host = describe_host(self._request)
        if self._request.lock:
            taken = self._wait_until_idle(host.topology)
            host = replace(host, facts=replace(host.facts, occupied=taken))
        self._topology, self._troubles = host.topology, host.facts.health
        self._log_dir = _log_folder(self._lock)
        self._launcher = Launcher(
            sweep=self._request.sweep,
            host=host,
            env=self._request.env,
            log_dir=self._log_dir,
            interface=self._request.interface,
            watch=self._monitor.watch,
        )
        self._part = Part(self._launcher, self._request.address)
        return host

    def run(self, cells: Sequence[Cell], attempts: Mapping[str, int]) -> Iterator[Run]:
        """Run cells of one arm in one fresh worker (or gang); one Run a cell, as it ends."""
        if self._launcher is None or self._topology is None:
            raise RuntimeError("describe() comes first")
        by_id = {cell.id: cell for cell in cells}
        for run in self._launcher.run(cells, stop=self._stop, attempt=attempts):
            yield self._judged(run, by_id[run.cell])

    def run_part(
        self, cell: Cell, *, host: str, attempt: int, fresh: bool, last: bool
    ) -> tuple[Run, bool]:
        """
        Run this host's ranks of a cell that spans several hosts; see :meth:`Part.run`.

        Args:
            last: No other cell follows with these workers, so they are ended.
        """
        part = self._meeting_part()
        run, usable = part.run(cell, host=host, attempt=attempt, fresh=fresh, stop=self._stop)
        if last:
            part.end()
        return self._judged(run, own_share(cell, host)), usable and not last

    def published(self, cell: str, seconds: float) -> str | None:
        """Wait for the address that rank 0 publishes here; None if it does not."""
        return self._meeting_part().meeting.published(cell, seconds)

    def tell(self, cell: str, address: str) -> None:
        """Bring the address where rank 0 of a cell's gang is met."""
        self._meeting_part().meeting.tell(cell, address)

    def lose(self, cell: str, text: str, seconds: float) -> None:
        """Say that another part of a cell's gang is lost."""
        self._meeting_part().meeting.lose(cell, text, seconds)

    def _wait_until_idle(self, topology: Topology) -> dict[str, str]:
        """GPUs that are somebody else's where such a host is measured all the same."""
        session = Session()
        wanted, sweep = self._request.idle, self._request.sweep
        try:
            idle.require(wanted, lambda: idle.occupants(topology, session, wanted, sweep=sweep))
            return idle.occupied(topology, session, sweep=sweep)
        finally:
            session.close()

    def _meeting_part(self) -> Part:
        if self._part is None:
            raise RuntimeError("describe() comes first")
        return self._part

    def _judged(self, run: Run, cell: Cell) -> Run:
        """The run with what its conditions allow, and with this host's settings."""
        if self._topology is None:
            raise RuntimeError("describe() comes first")
        set_to = {**run.environment, "host_settings": dict(self._monitor.settings)}
        found = validity.judge(run, cell, self._topology)
        ails = health.labelled(self._request.health, self._troubles, cell.worker_devices)
        told = (f"health: {trouble.code}: {trouble.text}" for trouble in ails)
        return replace(found, environment=set_to, warnings=(*found.warnings, *told))

    def cancel(self) -> None:
        """End the running worker at once; its cells become ``aborted``."""
        self._stop.set()

    def close(self) -> None:
        """Stop workers, free the lock, remove logs."""
        self._stop.set()
        if self._part is not None:
            self._part.end()
        self._monitor.close()
        if self._log_dir is not None:
            shutil.rmtree(self._log_dir, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()


def _log_folder(lock: HostLock | None) -> Path:
    """
    An empty folder for worker logs.

    Whoever holds the host's lock takes over the folder of a holder that was killed, so that
    none is left for ever; the name belongs to the lock.
    """
    if lock is not None:
        name = hashlib.sha256(f"{lock.path} {os.getuid()}".encode()).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"topobench-logs-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else's: never follow it
            folder.mkdir(mode=0o700)
            return folder
    return Path(tempfile.mkdtemp(prefix="topobench-logs-"))


def describe_host(request: HostRequest) -> Host:
    """Discover this host and say what it can run; takes no lock, starts no worker."""
    topology = discover()
    key, source = preflight.host_key(request.id, request.address)
    return Host(
        key=key,
        key_source=source,
        name=processes.host_name(),
        address=request.address,
        facts=preflight.facts(topology),
        topology=topology,
        labels=request.labels,
        warnings=tuple(w.text for w in topology.warnings),
    )
