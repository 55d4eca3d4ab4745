"""
Watches a host and the GPUs of a cell while a worker measures.

All talk with NVML is in a thread of its own that keeps off the measured CPUs where there
are others: a driver that hangs costs a reading, not the sweep.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.agents.conditions.gpu_users import GpuUsers
from topobench.agents.conditions.gpu_watch import GpuWatch
from topobench.agents.conditions.host_counters import (
    HostCounters,
    read_host,
    read_networks,
)
from topobench.agents.conditions.nvml_counters import GpuReader, Session, differences
from topobench.agents.conditions.seen import Seen
from topobench.agents.conditions.settings import host_settings
from topobench.agents.discover.tree import Tree
from topobench.reading import Cell, Reason, ReasonCode
from topobench.topology import parse_cpu_list

PERIOD_SECONDS = 0.15
_USERS_EVERY = 2
"""Readings between two looks at who computes on a GPU."""
_PATIENCE_SECONDS = 10.0
"""How long NVML may take to answer before it is given up."""
SETTLING_SECONDS = 3.0
"""How long a run may wait for GPUs that an earlier one brought to their power limit."""
_LOOK_SECONDS = 0.02


class Monitor:
    """
    Gives the conditions of one run after the other.

    Args:
        sweep: UUID of the sweep, by which its own processes are known.
        session: NVML; None opens it when the first GPU is watched.
        root: Where ``sys`` and ``proc`` are.
    """

    def __init__(
        self,
        *,
        sweep: str,
        session: Session | None = None,
        period_seconds: float = PERIOD_SECONDS,
        root: str = "/",
    ) -> None:
        self._sweep = sweep
        self._session = session
        self._period = period_seconds
        self._tree = Tree.open(root)
        self._readers: dict[str, tuple[GpuReader, GpuUsers]] = {}
        self._in_vain: set[str] = set()
        self.settings = host_settings(self._tree)

    @contextlib.contextmanager
    def watch(self, cell: Cell) -> Iterator[Seen]:
        """
        Watch what is measured inside the ``with`` block.

        Yields:
            Empty; filled at the end with ``host``, ``nics``, ``gpus`` and ``monitor``
            (docs/conditions.md), plain JSON values. Meanwhile ``disturbed`` tells of a
            stranger on one of the cell's GPUs.
        """
        cpus = cell.arm.binding.cpus
        sampler = self._sampler(cell)
        found = Seen(lambda: sampler.disturbed if sampler else None)
        networks, host = read_networks(self._tree), read_host(self._tree, cpus)
        if sampler is not None:
            sampler.begin()
        wall, began = time.time(), time.monotonic()
        try:
            yield found
        finally:
            seconds = time.monotonic() - began
            stepped = time.time() - wall - seconds
            if sampler is not None:
                sampler.finish()
            after = read_host(self._tree, cpus)
            found["host"] = {
                **_host_document(host, after, cpus),
                "quota_cpus": self.settings["quota_cpus"],
                "clock_step_seconds": round(stepped, 3),
            }
            found["nics"] = _nic_document(networks, read_networks(self._tree))
            found["monitor"] = {"seconds": round(seconds, 6)}
            if sampler is not None:
                found["gpus"] = sampler.documents(began)
                found["monitor"] |= sampler.cost(seconds)

    def close(self) -> None:
        """Let go of NVML."""
        if self._session is not None:
            self._session.close()

    def _sampler(self, cell: Cell) -> _Sampler | None:
        if not cell.devices:
            return None
        if self._session is None:
            self._session = Session()
        watches = {}
        for device in cell.devices:
            if device not in self._readers:
                self._readers[device] = (self._session.gpu(device), GpuUsers(self._sweep))
            watches[device] = GpuWatch(*self._readers[device])
        return _Sampler(self._session, watches, self._period, _elsewhere(cell), self._in_vain)


class _Sampler:
    """
    The thread that reads GPUs, from just before a run until just after it.

    Args:
        in_vain: GPUs that were waited for in vain, kept between runs.
    """

    def __init__(
        self,
        session: Session,
        watches: Mapping[str, GpuWatch],
        period: float,
        cpus: Sequence[int],
        in_vain: set[str],
    ) -> None:
        self._session = session
        self._watches = watches
        self._period = period
        self._cpus = cpus
        self._in_vain = in_vain
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conditions", daemon=True)
        self._cpu_seconds = 0.0
        self._readings = 0
        self._settled_seconds = 0.0
        self._error: str | None = None
        self.disturbed: Reason | None = None

    def begin(self) -> None:
        """Start; returns when every GPU was read once, and none is held at its power limit."""
        self._thread.start()
        if not self._ready.wait(_PATIENCE_SECONDS):
            self._give_up()

    def finish(self) -> None:
        """Read every GPU a last time and end."""
        self._stop.set()
        if self._error is None:
            self._thread.join(_PATIENCE_SECONDS)
            if self._thread.is_alive():
                self._give_up()

    def documents(self, began: float) -> dict[str, Any]:
        """GPU -> what is kept of it."""
        if self._error is not None:
            return {d: {"unavailable": {"nvml": self._error}} for d in self._watches}
        return {device: watch.document(began) for device, watch in self._watches.items()}

    def cost(self, seconds: float) -> dict[str, Any]:
        """What watching took while the run went on."""
        return {
            "period_seconds": self._period,
            "settled_seconds": round(self._settled_seconds, 3),
            "readings": self._readings,
            "cpu_seconds": round(self._cpu_seconds, 6),
            "cpu_ratio": round(self._cpu_seconds / seconds, 6) if seconds > 0 else None,
        }

    def _give_up(self) -> None:
        self._error = f"NVML gave no answer within {_PATIENCE_SECONDS:.0f} s"
        self._session.error = self._error

    def _run(self) -> None:
        if self._cpus:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._cpus)  # of this thread alone
        try:
            self._settle()
            for watch in self._watches.values():
                watch.begin()
            self._ready.set()
            self._sample()
            for watch in self._watches.values():
                watch.end()
        except Exception as error:  # a reading must never end a sweep
            self._error = f"reading failed: {type(error).__name__}: {error}"
            self._ready.set()

    def _settle(self) -> None:
        """
        Wait until no GPU is slowed by what ran there before.

        The driver lets the clocks go only some tenths of a second after the load has ended. One
        that never does would cost every run the whole wait: it is left until it was seen free.
        """
        began = time.monotonic()
        while (capped := self._capped()) - self._in_vain:
            if time.monotonic() - began > SETTLING_SECONDS:
                self._in_vain |= capped
                break
            time.sleep(_LOOK_SECONDS)
        self._in_vain -= self._watches.keys() - capped
        self._settled_seconds = time.monotonic() - began

    def _capped(self) -> set[str]:
        return {device for device, watch in self._watches.items() if watch.is_power_capped()}

    def _sample(self) -> None:
        spent = time.thread_time()
        while not self._stop.wait(self._period):
            self._readings += 1
            for device, watch in self._watches.items():
                watch.glance(users=self._readings % _USERS_EVERY == 0)
                self.disturbed = self.disturbed or _disturbance(device, watch)
            self._cpu_seconds = time.thread_time() - spent


def _disturbance(device: str, watch: GpuWatch) -> Reason | None:
    """A stranger on the GPU: no number of this run could be used."""
    for stranger in watch.strangers():
        name = stranger["name"] or "of another container"
        text = f"pid {stranger['pid']} ({name}) computes on {device}: the run was given up"
        return Reason(ReasonCode.SHARED_GPU, text)
    return None


def _elsewhere(cell: Cell) -> list[int]:
    """CPUs that are not measured; none where every CPU is."""
    measured = parse_cpu_list(cell.arm.binding.cpus)
    return sorted(os.sched_getaffinity(0).difference(measured)) if measured else []


def _host_document(before: HostCounters, after: HostCounters, cpus: str | None) -> dict[str, Any]:
    counted = {
        name: round(value - before.counted[name], 6)
        for name, value in after.counted.items()
        if name in before.counted and value >= before.counted[name]
    }
    return {
        "cpus": cpus,
        "cpu_count": os.cpu_count(),
        "load_1m": [before.load, after.load],
        **_cpu_shares(before.cpu_seconds, after.cpu_seconds),
        "counted": counted,
        "unavailable": dict(after.unavailable),
    }


def _cpu_shares(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """How much of the CPUs' time a hypervisor took, and how much was used."""
    if not before or not after:
        return {}
    total, idle, steal = (after[k] - before[k] for k in ("total", "idle", "steal"))
    if total <= 0:
        return {"steal_seconds": 0.0}
    return {
        "steal_seconds": round(steal, 3),
        "steal_ratio": round(max(0.0, steal) / total, 4),
        "busy_ratio": round(min(1.0, max(0.0, 1 - (idle + steal) / total)), 4),
    }


def _nic_document(
    before: Mapping[str, Mapping[str, int]] | None,
    after: Mapping[str, Mapping[str, int]] | None,
) -> dict[str, dict[str, int]] | None:
    """Interface -> counters that moved; one that is not named did not move."""
    if before is None or after is None:
        return None
    found = {}
    for name, counters in after.items():
        moved = {k: v for k, v in differences(before.get(name, {}), counters) if v}
        if moved:
            found[name] = moved
    return found
