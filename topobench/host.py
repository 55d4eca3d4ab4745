"""The words of a host: its key, what it can run, and a short description of it."""

from __future__ import annotations

import collections
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topobench.health import Trouble
from topobench.reading import to_json
from topobench.shared_paths import shared_paths
from topobench.sku import sku_name
from topobench.topology import Topology, parse_cpu_list

CLOCKS_APART_SECONDS = 3600.0
"""So far clocks of hosts may be apart: a time further ahead was told by one that was wrong."""


class Busy(enum.StrEnum):
    """What becomes of a host on which somebody else is at work."""

    MEASURE = "measure"
    SKIP = "skip"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Idle:
    """
    Which hosts count as busy, and what then.

    Args:
        wait_seconds: How long to wait for an idle host before it is skipped.
        load: Load a CPU above which a host is busy; None does not look at it.
    """

    busy: Busy = Busy.MEASURE
    wait_seconds: float = 600.0
    load: float | None = None


BUSY_OR_NOT = Idle()
"""Every host is measured."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """
    What the planner and the launcher must know beside the wiring.

    Args:
        interpreter: Path of the Python that will run workers.
        source_digest: SHA-256 over our package's sources; equal on all hosts of a sweep.
        numactl: Path of the numactl program, or None.
        memory_policy: ``ok``, or ``denied: ...`` when the kernel refuses set_mempolicy.
        torch: Version, or None when not importable.
        torch_gpus: GPU UUIDs torch can use; None when not asked (no GPU in the driver).
        torch_error: Why torch cannot use the driver's GPUs, with versions.
        packages: Optional packages that probes ask for -> version (``numba``).
        binaries: Optional programs that probes ask for -> path (``all_reduce_perf``).
        inherited_cpus: Affinity the agent found itself with, a list string.
        health: What is wrong with its GPUs and links.
        health_unread: Kind of trouble that could not be looked at -> why.
        occupied: Key of each GPU on which somebody else computes -> who.
    """

    hostname: str
    interpreter: str
    topobench: str
    source_digest: str
    python: str
    numactl: str | None = None
    memory_policy: str = "ok"
    torch: str | None = None
    torch_gpus: tuple[str, ...] | None = None
    torch_error: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    binaries: Mapping[str, str] = field(default_factory=dict)
    inherited_cpus: str | None = None
    available_memory_bytes: int | None = None
    shm_bytes: int | None = None
    free_disk_bytes: int | None = None
    health: tuple[Trouble, ...] = ()
    health_unread: Mapping[str, str] = field(default_factory=dict)
    occupied: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HostFacts:
        """Read what ``reading.to_json`` wrote."""
        gpus = value["torch_gpus"]
        return cls(
            **{
                **value,
                "torch_gpus": None if gpus is None else tuple(gpus),
                "health": tuple(Trouble.from_json(t) for t in value.get("health", ())),
            }
        )


@dataclass(frozen=True, slots=True)
class Host:
    """
    A machine of a sweep.

    Args:
        key: Stable identity across sweeps; names and addresses are attributes.
        key_source: ``id``, ``product_uuid``, ``machine_id`` or ``address``.
    """

    key: str
    key_source: str
    name: str
    address: str
    facts: HostFacts
    topology: Topology
    labels: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, for the way between hosts."""
        return {
            "key": self.key,
            "key_source": self.key_source,
            "name": self.name,
            "address": self.address,
            "facts": to_json(self.facts),
            "topology": self.topology.to_json(),
            "labels": dict(self.labels),
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Host:
        """Read what :meth:`to_json` wrote."""
        return cls(
            **{
                **value,
                "facts": HostFacts.from_json(value["facts"]),
                "topology": Topology.from_json(value["topology"]),
                "warnings": tuple(value["warnings"]),
            }
        )


def describe(topology: Topology) -> dict[str, Any]:
    """
    What a host is, in a few plain facts, for reports and the ``hosts`` of JSON documents.

    Keys: sku, cpu_model, cpus (allowed count), numa_nodes (with CPUs), memory_bytes,
    gpus ([{model, count}]), devices ([{key, index, pci_address}]: the whole GPUs), shared_paths
    ([{kind, name, devices}]: what several of them hang on), nvlink (largest active count or None),
    nics, nvme, virtualization, trust, kernel, driver, cuda.
    """
    memory = [n.memory_bytes for n in topology.numa_nodes if n.memory_bytes]
    gpus = [g for g in topology.gpus if not g.is_slice]
    models = collections.Counter(g.model or "unknown GPU" for g in gpus)
    links = [g.nvlink.active for g in topology.gpus if g.nvlink]
    machine = topology.machine
    return {
        "sku": sku_name(topology),
        "cpu_model": topology.cpus.model,
        "cpus": len(parse_cpu_list(topology.cpus.allowed or topology.cpus.online)),
        "numa_nodes": len(topology.cpu_nodes),
        "memory_bytes": sum(memory) if memory else None,
        "gpus": [{"model": m, "count": n} for m, n in sorted(models.items())],
        "devices": [
            {"key": g.key, "index": g.index, "pci_address": g.pci_address}
            for g in topology.gpus
            if not g.is_slice
        ],
        "shared_paths": to_json(shared_paths(topology)),
        "nvlink": max(links) if links else None,
        "nics": len(topology.nics),
        "nvme": len(topology.nvme),
        "virtualization": topology.virtualization,
        "trust": topology.trust,
        "kernel": machine.kernel,
        "driver": machine.driver,
        "cuda": machine.cuda,
    }
