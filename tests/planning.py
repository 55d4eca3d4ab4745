"""Hosts and configurations for tests of bindings and plans, written by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from topobench import config
from topobench.config import ClusterConfig, Overrides
from topobench.host import Host, HostFacts
from topobench.plan import Plan
from topobench.reading import Cell, ReasonCode, Status
from topobench.topology import (
    Cpus,
    Gpu,
    Known,
    Machine,
    Mig,
    NodeKind,
    NumaDistances,
    NumaNode,
    Topology,
)

GIB = 1 << 30


def topology(
    nodes: Sequence[NumaNode],
    distances: Sequence[Sequence[int]] = (),
    *,
    allowed: str | None = None,
    gpus: Sequence[Gpu] = (),
    quota_cpus: float | None = None,
) -> Topology:
    online = ",".join(n.cpus for n in nodes if n.cpus)
    ids = tuple(n.id for n in nodes) if distances else ()
    return Topology(
        taken_at="2026-01-01T00:00:00Z",
        root="/",
        virtualization="none",
        trust="full",
        machine=Machine(driver="580.1" if gpus else None),
        cpus=Cpus(online=online, allowed=allowed or online, quota_cpus=quota_cpus),
        numa_nodes=tuple(nodes),
        numa_distances=NumaDistances(ids, tuple(tuple(row) for row in distances)),
        gpus=tuple(gpus),
    )


def node(
    number: int,
    cpus: str,
    *,
    memory: int | None = 64 * GIB,
    allowed: bool = True,
    kind: NodeKind | None = None,
    gpu: str | None = None,
) -> NumaNode:
    if kind is None:
        kinds = {(True, True): NodeKind.CPU_MEMORY, (True, False): NodeKind.CPU}
        kinds |= {(False, True): NodeKind.MEMORY, (False, False): NodeKind.EMPTY}
        kind = kinds[bool(cpus), bool(memory)]
    return NumaNode(number, kind, cpus, memory, allowed, gpu)


def gpu(index: int, cpu_node: int | None = 0, **changes: Any) -> Gpu:
    reason = None if cpu_node is not None else "sysfs says -1"
    made = Gpu(
        index=index,
        uuid=f"GPU-{index:08x}-1111-2222-3333-444444444444",
        pci_address=f"0000:{16 + index:02x}:00.0",
        model="NVIDIA H200",
        memory_bytes=141 * GIB,
        cpu_node=Known(cpu_node, "nvml" if cpu_node is not None else None, reason),
        cuda_index=index,
    )
    return dataclasses.replace(made, **changes)


def mig_slice(number: int, parent: Gpu) -> Gpu:
    """An instance of a GPU whose MIG mode is on."""
    uuid = f"MIG-{number:08x}-2222-5333-8444-555555555555"
    mig = Mig("enabled", parent.key, "3g.20gb")
    return dataclasses.replace(parent, index=None, uuid=uuid, pci_address=None, mig=mig)


def host(place: Topology, key: str = "h1", **facts: Any) -> Host:
    known: dict[str, Any] = {
        "hostname": key,
        "interpreter": "/opt/venv/bin/python",
        "topobench": "0.1.0",
        "source_digest": "d",
        "python": "3.11.2",
        "numactl": "/usr/bin/numactl",
        "torch": "2.13.0",
        "torch_gpus": tuple(g.uuid for g in place.gpus if g.uuid) or None,
        "packages": {"numba": "0.62"},
        "available_memory_bytes": 48 * GIB,
    }
    return Host(key, "id", key, f"10.0.0.{len(key)}", HostFacts(**{**known, **facts}), place)


def small(*, cpus: int = 2, gpus: Sequence[Gpu] = ()) -> Topology:
    """One NUMA node, as most virtual machines show."""
    return topology([node(0, f"0-{cpus - 1}" if cpus > 1 else "0")], [[10]], gpus=gpus)


def dual(gpus: int = 8, **changes: Any) -> Topology:
    """Two NUMA nodes of 64 CPUs; the first half of the GPUs hangs on node 0."""
    nodes = [node(0, "0-31,64-95"), node(1, "32-63,96-127")]
    found = [gpu(i, 0 if i < (gpus + 1) // 2 else 1) for i in range(gpus)]
    return topology(nodes, [[10, 21], [21, 10]], gpus=found, **changes)


def configured(**flags: Any) -> ClusterConfig:
    return config.load(None, environ={}, overrides=Overrides(**flags))


def planned(cells: Iterable[Cell]) -> list[Cell]:
    return [c for c in cells if c.status is Status.PLANNED]


def reasons(cells: Iterable[Cell]) -> list[tuple[str, str, Status, ReasonCode]]:
    """(probe, arm, status, code) of the cells that will not run."""
    return [(c.case.probe, c.arm.name, c.status, c.reason.code) for c in cells if c.reason]


def without_ids(plan: Plan) -> list[Cell]:
    return [dataclasses.replace(c, id="") for c in plan.cells]
