"""
Whether somebody else is at work on this host: looked at before it is measured.

Other schedulers are not asked: a Ray node, or an empty GPU, may still belong to a job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

from topobench import processes
from topobench.agents.conditions.gpu_users import GpuUsers
from topobench.agents.conditions.nvml_counters import GpuProcess, GpuReader, Session
from topobench.errors import RefusedError
from topobench.host import Busy, Idle
from topobench.topology import Topology
from topobench.units import format_bytes, format_span

UNOWNED_BYTES = 1 << 30
"""Memory of a GPU that no process owns: less may be the driver's own."""
UTILISATION_PERCENT = 10
LOOK_SECONDS = 5.0
"""Between two looks while waiting."""


def require(
    idle: Idle,
    look: Callable[[], list[str]],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """
    Return when the host may be measured.

    Args:
        look: Who is at work there, one line each; empty for an idle host.

    Raises:
        RefusedError: The host is busy, or still is after the time to wait.
    """
    if idle.busy is Busy.MEASURE:
        return
    until = clock() + (idle.wait_seconds if idle.busy is Busy.WAIT else 0.0)
    while found := look():
        if clock() >= until:
            waited = f" (waited {format_span(idle.wait_seconds)})"
            raise RefusedError(
                f"this host is busy{waited if idle.busy is Busy.WAIT else ''}: "
                f"{'; '.join(found)}; wait for it, or measure all the same with  "
                "idle: {busy: measure}"
            )
        sleep(min(LOOK_SECONDS, max(0.0, until - clock())))


def occupants(topology: Topology, session: Session, idle: Idle, *, sweep: str) -> list[str]:
    """What keeps this host from being idle, one line each."""
    found = [
        line for _, uuid in _answering(topology) for line in _of_gpu(session.gpu(uuid), uuid, sweep)
    ]
    return [*found, *_load(idle)]


def occupied(topology: Topology, session: Session, *, sweep: str) -> dict[str, str]:
    """Key of each GPU on which a program of somebody else computes -> which one."""
    found = {}
    for key, uuid in _answering(topology):
        running = session.gpu(uuid).processes() or []
        if told := list(_strangers(running, uuid, sweep)):
            found[key] = "; ".join(told)
    return found


def _answering(topology: Topology) -> Iterator[tuple[str, str]]:
    """Key and UUID of the whole GPUs that the driver can be asked about."""
    for gpu in topology.gpus:
        if gpu.uuid and not gpu.is_slice and gpu.state != "lost":
            yield gpu.key, gpu.uuid


def _strangers(running: Sequence[GpuProcess], name: str, sweep: str) -> Iterator[str]:
    users = GpuUsers(sweep)
    users.begin()
    users.look(running)
    for stranger in users.told()["foreign"]:
        who = stranger["name"] or "of another container"
        yield f"pid {stranger['pid']} ({who}) computes on {name}"


def _of_gpu(reader: GpuReader, name: str, sweep: str) -> Iterator[str]:
    running = reader.processes()
    used = reader.used_memory()
    strangers = list(_strangers(running or [], name, sweep))
    yield from strangers
    hidden = [p.pid for p in running or [] if processes.find(p.pid) is None]
    if hidden and not strangers:
        alone = len(hidden) == 1
        who = "a process" if alone else f"{len(hidden)} processes"
        yield f"{who} of another container {'computes' if alone else 'compute'} on {name}"
    sizes = [p.memory_bytes for p in running or []]
    if running is not None and used is not None and None not in sizes:
        unowned = used - sum(s for s in sizes if s is not None)
        if unowned >= UNOWNED_BYTES:
            yield f"{format_bytes(unowned)} of {name} are held, and no process owns them"
    busy = reader.utilisation_percent()
    if not running and busy is not None and busy > UTILISATION_PERCENT:
        yield f"{name} is used to {busy} %, and no process is seen"


def _load(idle: Idle) -> Iterator[str]:
    """The load of the last minute; our own agent is far below what anybody asks for."""
    if idle.load is None:
        return
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load > idle.load:
        yield f"the load is {load:.2f} a CPU, above {idle.load:g}"
