"""What the launcher's tests share: a host, cells, a launcher with short limits."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topobench import processes
from topobench.agents.launch import Launcher, Limits
from topobench.host import Host, HostFacts
from topobench.reading import Arm, Binding, Case, Cell, Run
from topobench.topology import Cpus, Machine, Topology

TESTS = Path(__file__).parent
PROBES = {
    name.lower(): f"worker_probes:{name}"
    for name in (
        *("Steady", "Crasher", "Raiser", "Values", "Sleeper", "Scribbler", "Stray"),
        *("Buffer", "ClockStep", "Meeting", "Reduced", "Misplaced", "Foreign"),
        *("LostReduce", "LostNetwork", "Stuck"),
    )
}
NONE = Binding("none")


def marked(name: str, value: str) -> list[processes.Process]:
    """Processes that were started with this value of a marker."""
    return [p for p in processes.running() if processes.marker(p.pid, name) == value]


def host(*, numactl: str | None = None, memory_policy: str = "ok") -> Host:
    topology = Topology("2026-01-01T00:00:00Z", "/", "none", "full", Machine(), Cpus())
    facts = HostFacts(
        hostname="here",
        interpreter=sys.executable,
        topobench="0",
        source_digest="0",
        python="3",
        numactl=numactl,
        memory_policy=memory_policy,
    )
    return Host("key", "id", "here", "127.0.0.1", facts, topology)


def cell(
    probe: str, *, binding: Binding = NONE, ranks: int = 1, estimate: float = 0.0, **params: Any
) -> Cell:
    return Cell(
        id=str(uuid.uuid4()),
        case=Case(probe, 1, params),
        host="key",
        arm=Arm(binding),
        ranks=ranks,
        estimated_seconds=estimate,
    )


class Lab:
    """A launcher with a sweep of its own, so that leftovers can be found."""

    def __init__(self, folder: Path) -> None:
        self.sweep = uuid.uuid4().hex
        self.logs = folder / "logs"
        self.stop = threading.Event()

    def launcher(
        self,
        *,
        on: Host | None = None,
        seconds: float = 20.0,
        start: float = 10.0,
        env: Mapping[str, str] | None = None,
    ) -> Launcher:
        """With ``seconds`` + ``start`` for a cell."""
        return Launcher(
            sweep=self.sweep,
            host=on or host(),
            env={"PYTHONPATH": str(TESTS), **(env or {})},
            log_dir=self.logs,
            limits=Limits(least=seconds, factor=1.0, start=start, start_gpu=start),
            targets=PROBES,
        )

    def run(self, *cells: Cell, **settings: Any) -> list[Run]:
        runs = list(self.launcher(**settings).run(cells, stop=self.stop))
        assert [r.cell for r in runs] == [c.id for c in cells], "one run per cell, in order"
        return runs

    def alive(self) -> list[processes.Process]:
        return marked(processes.SWEEP, self.sweep)

    def assert_nothing_left(self, seconds: float = 5.0) -> None:
        until = time.monotonic() + seconds
        while self.alive() and time.monotonic() < until:
            time.sleep(0.05)
        assert self.alive() == []


NUMACTL = shutil.which("numactl")
CPUS = sorted(os.sched_getaffinity(0))
