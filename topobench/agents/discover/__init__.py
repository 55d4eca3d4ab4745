"""
Discovery: a host's NUMA nodes, CPUs, PCI tree, GPUs, NICs and the paths between them.

Readers take a root directory, so a captured machine replays anywhere. Nothing here needs
root, a GPU or a network; what cannot be read is unknown, with the reason.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import replace
from typing import Literal

from topobench import nccl_paths
from topobench.agents.discover.cgroups import Limits, read_limits
from topobench.agents.discover.cpus import read_cpus, status_list
from topobench.agents.discover.cuda_order import cuda_indices
from topobench.agents.discover.facts import GpuFacts, MigFacts, NvmlFacts, captured
from topobench.agents.discover.findings import (
    gpu_findings,
    guest_findings,
    link_findings,
    locality_findings,
    numa_file_findings,
    trust,
)
from topobench.agents.discover.fingerprint import fingerprints
from topobench.agents.discover.gpus import gpu_nodes, read_gpus
from topobench.agents.discover.machine import read_machine, virtualization
from topobench.agents.discover.nics import read_nics, read_nvme
from topobench.agents.discover.numa import read_numa
from topobench.agents.discover.numa_file import read_numa_file
from topobench.agents.discover.nvml import read as read_nvml
from topobench.agents.discover.paths import told_by_nvml
from topobench.agents.discover.pci import read_pci
from topobench.agents.discover.tree import ENVIRONMENT, Tree
from topobench.errors import DiscoveryError
from topobench.paths import find_paths
from topobench.pcie import normalise_address
from topobench.topology import Gpu, Topology, parse_cpu_list

__all__ = ["GpuFacts", "MigFacts", "NvmlFacts", "discover", "normalise_address", "read_nvml"]


def discover(
    root: str | os.PathLike[str] | Tree = "/", *, nvml: NvmlFacts | Literal["auto"] | None = "auto"
) -> Topology:
    """
    The wiring of this host, or of a captured one.

    Args:
        root: Folder that holds ``sys`` and ``proc``, or a tree of one.
        nvml: NVML's answers; ``auto`` asks NVML on this host, and takes for a capture
            what was kept in it; None leaves GPUs to the PCI tree.

    Raises:
        DiscoveryError: ``root`` holds no ``sys``, or the operator's NUMA file is wrong.
    """
    tree = root if isinstance(root, Tree) else Tree.open(root)
    name = tree.root if isinstance(root, Tree) else os.fspath(root)
    if not os.path.isdir(tree.path("sys")):
        raise DiscoveryError(f"{name}: it holds no folder sys, so no machine")
    if nvml == "auto":
        nvml = read_nvml() if tree.live else captured(tree)
    limits = read_limits(tree)
    cpus = read_cpus(tree, limits)
    online = None if cpus.online is None else parse_cpu_list(cpus.online)
    numa = read_numa(tree, online, allowed=_nodes(tree, limits), gpus=gpu_nodes(tree, nvml))
    told = read_numa_file(tree, frozenset(n.id for n in numa.nodes))
    pci = read_pci(tree, numa, online, told)
    gpus = _with_cuda_indices(tree, read_gpus(tree, pci, numa, nvml))
    nics = read_nics(tree, pci)
    kind, machine = virtualization(tree), read_machine(tree)
    devices = tuple(pci.devices.values())
    trusted = trust(kind, devices)
    topology = Topology(
        taken_at=_now(),
        root=name,
        virtualization=kind,
        trust=trusted,
        machine=replace(
            machine,
            driver=machine.driver or (nvml.driver if nvml else None),
            cuda=nvml.cuda if nvml else None,
        ),
        cpus=cpus,
        numa_nodes=numa.nodes,
        numa_distances=numa.distances,
        pci=devices,
        gpus=gpus,
        nics=nics,
        nvswitches=tuple(a for a, f in pci.functions.items() if f.is_nvswitch),
        nvme=read_nvme(tree, pci),
        warnings=(
            *numa.warnings,
            *guest_findings(trusted),
            *numa_file_findings(told, pci),
            *locality_findings(pci, numa, nvml),
            *gpu_findings(gpus, nvml),
            *link_findings(devices, gpus),
        ),
        nccl_version=nccl_paths.VERSION,
    )
    found = find_paths(topology, told_by_nvml(topology, nvml))
    warnings = (*topology.warnings, *found.warnings)
    topology = replace(topology, paths=found.paths, warnings=warnings)
    return replace(topology, fingerprints=fingerprints(topology))


def _nodes(tree: Tree, limits: Limits) -> tuple[int, ...] | None:
    """NUMA nodes whose memory this process may use; None if nothing restricts them."""
    sets = [set(s) for s in (status_list(tree, "Mems_allowed_list"), limits.nodes) if s]
    return tuple(sorted(set.intersection(*sets))) if sets else None


def _with_cuda_indices(tree: Tree, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """CUDA's numbers, which depend on the environment, so a capture needs to keep it."""
    told = tree.live or tree.exists(ENVIRONMENT)
    indices = cuda_indices(gpus, tree.environment) if told else {}
    return tuple(replace(g, cuda_index=indices.get(g.key)) for g in gpus)


def _now() -> str:
    now = datetime.datetime.now(datetime.UTC)
    return now.isoformat(timespec="seconds").replace("+00:00", "Z")
