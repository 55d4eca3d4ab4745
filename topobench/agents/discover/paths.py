"""Paths between GPUs, from GPUs to NICs and from GPUs to NUMA nodes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topobench.agents.discover.facts import GpuFacts, NvmlFacts
from topobench.agents.discover.pci import Pci
from topobench.topology import (
    Gpu,
    Known,
    Nic,
    NumaNode,
    Path,
    PathClass,
    TopologyWarning,
)

_NCCL = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}
"""NCCL's CPU elements are NUMA nodes, so it has no NODE."""

_Ceiling = tuple[float | None, str | None]
"""Bytes per second of the slowest link, and its name."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths of a host, and where sources disagree about them."""

    paths: tuple[Path, ...]
    warnings: tuple[TopologyWarning, ...] = ()


def read_paths(
    pci: Pci,
    gpus: Sequence[Gpu],
    nics: Sequence[Nic],
    nodes: Sequence[NumaNode],
    facts: NvmlFacts | None,
) -> Paths:
    """Every pair of whole GPUs, and each of them with each NIC and each node with CPUs."""
    whole = [g for g in gpus if not g.is_slice]
    told = {g.index: g for g in facts.gpus} if facts else {}
    one_node = sum(bool(n.cpus) for n in nodes) == 1
    found: list[Path] = []
    warnings: list[TopologyWarning] = []
    for a, b in itertools.combinations(whole, 2):
        by_pci = pci_class(pci, a.pci_address, b.pci_address, (a.cpu_node, b.cpu_node))
        by_nvml = _told(told, a).ancestors.get(str(b.index))
        if by_pci and by_nvml and by_pci != by_nvml:
            text = f"the PCI tree says {by_pci}, NVML says {by_nvml}"
            warnings.append(TopologyWarning("path_disagrees", f"{a.name}-{b.name}", text))
        found.append(_gpu_pair(pci, whole, (a, b), by_nvml or by_pci, _told(told, a)))
    for gpu in whole:
        found += [_gpu_nic(pci, gpu, nic, one_node) for nic in nics if nic.pci_address]
        found += [_gpu_node(pci, gpu, node) for node in nodes if node.cpus]
    return Paths(tuple(found), tuple(warnings))


def pci_class(
    pci: Pci, a: str | None, b: str | None, nodes: tuple[Known, Known]
) -> PathClass | None:
    """
    Path class of two PCI functions by the bridges they share; None if that is not known.

    Host bridges of an unknown NUMA node count as different nodes, as nvidia-smi has it. A
    capture without the tree of bridges tells only that domains differ.
    """
    if a not in pci.functions or b not in pci.functions:
        return None
    if a == b:
        return PathClass.SELF
    bridges = pci.host_bridge(a), pci.host_bridge(b)
    if None in bridges and (a or "").partition(":")[0] == (b or "").partition(":")[0]:
        return None
    if bridges[0] != bridges[1] or bridges[0] is None:
        same = nodes[0].value is not None and nodes[0].value == nodes[1].value
        return PathClass.NODE if same else PathClass.SYS
    shared = _shared(pci, a, b)
    if not shared:
        return PathClass.PHB
    deepest = max(len(pci.chain(a)), len(pci.chain(b))) - shared
    return PathClass.PIX if deepest <= 1 else PathClass.PXB


def nvlinks_between(gpus: Sequence[Gpu], a: Gpu, b: Gpu) -> tuple[int, bool]:
    """Active NVLinks that join two GPUs, and whether a switch is between them."""
    direct = min(_links_to(a, b), _links_to(b, a))
    if direct:
        return direct, False
    return min(_switch_links(a), _switch_links(b)), True


def _told(told: Mapping[int, GpuFacts], gpu: Gpu) -> GpuFacts:
    return told.get(-1 if gpu.index is None else gpu.index) or GpuFacts(-1)


def _shared(pci: Pci, a: str | None, b: str | None) -> int:
    """Bridges above both functions."""
    pairs = zip(pci.chain(a), pci.chain(b), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _links_to(gpu: Gpu, peer: Gpu) -> int:
    links = gpu.nvlink.links if gpu.nvlink else ()
    return sum(
        link.state == "active" and link.remote_kind == "gpu" and link.remote == peer.pci_address
        for link in links
    )


def _switch_links(gpu: Gpu) -> int:
    links = gpu.nvlink.links if gpu.nvlink else ()
    return sum(link.state == "active" and link.remote_kind == "nvswitch" for link in links)


def _gpu_pair(
    pci: Pci, gpus: Sequence[Gpu], pair: tuple[Gpu, Gpu], by_pci: str | None, told: GpuFacts
) -> Path:
    a, b = pair
    count, switched = nvlinks_between(gpus, a, b)
    ceiling = _nvlink_ceiling(a, b, count) if count else _pci_ceiling(pci, a, b.pci_address)
    return Path(
        a=a.name,
        b=b.name,
        smi=f"NV{count}" if count else by_pci,
        smi_pcie=by_pci,
        nccl=_nccl(gpus, a, b, by_pci, count),
        hops=(2 if switched else 1) if count else _hops(pci, a.pci_address, b.pci_address, by_pci),
        nominal_bytes_per_second=ceiling[0],
        bottleneck=ceiling[1],
        p2p=told.p2p.get(str(b.index)),
    )


def _nccl(gpus: Sequence[Gpu], a: Gpu, b: Gpu, by_pci: str | None, count: int) -> str | None:
    """NCCL's type: NVLink, NVLink through one other GPU, else by PCI."""
    if count:
        return "NVL"
    others = (g for g in gpus if g not in (a, b))
    if any(_links_to(g, a) and _links_to(g, b) for g in others):
        return "NVB"
    return _NCCL.get(by_pci or "")


def _nvlink_ceiling(a: Gpu, b: Gpu, count: int) -> _Ceiling:
    links = [gpu.nvlink for gpu in (a, b) if gpu.nvlink and gpu.nvlink.active]
    rates = [n.bytes_per_second / n.active * count for n in links if n.bytes_per_second]
    return (min(rates), "nvlink") if len(rates) == 2 else (None, "nvlink")


def _gpu_nic(pci: Pci, gpu: Gpu, nic: Nic, one_node: bool) -> Path:
    node = gpu.cpu_node if one_node and nic.numa_node.value is None else nic.numa_node
    by_pci = pci_class(pci, gpu.pci_address, nic.pci_address, (gpu.cpu_node, node))
    ceiling, bottleneck = _pci_ceiling(pci, gpu, nic.pci_address)
    rate = nic.rate_bytes_per_second
    if ceiling and rate and rate < ceiling:
        ceiling, bottleneck = rate, f"nic:{nic.name}"
    return Path(
        a=gpu.name,
        b=f"nic:{nic.name}",
        smi=by_pci,
        smi_pcie=by_pci,
        nccl=_NCCL.get(by_pci or ""),
        hops=_hops(pci, gpu.pci_address, nic.pci_address, by_pci),
        nominal_bytes_per_second=ceiling,
        bottleneck=bottleneck,
    )


def _gpu_node(pci: Pci, gpu: Gpu, node: NumaNode) -> Path:
    """To host memory: through the host bridge, and between NUMA nodes if it is not near."""
    near = gpu.cpu_node.value
    token = None if near is None else PathClass.PHB if near == node.id else PathClass.SYS
    ceiling, bottleneck = _pci_ceiling(pci, gpu, None)
    if gpu.c2c:
        token, ceiling, bottleneck = None, None, "c2c"
    return Path(
        a=gpu.name,
        b=f"numa:{node.id}",
        smi=token,
        smi_pcie=token,
        nccl="C2C" if gpu.c2c else _NCCL.get(token or ""),
        nominal_bytes_per_second=ceiling,
        bottleneck=bottleneck,
    )


def _pci_ceiling(pci: Pci, gpu: Gpu, other: str | None) -> _Ceiling:
    """
    The slowest PCIe link between a GPU and another function, or the root.

    A ceiling: links between NUMA nodes are not counted. None if any link is unknown.
    """
    ends = [gpu.pci_address] if other is None else [gpu.pci_address, other]
    if any(end not in pci.devices for end in ends):
        return None, None
    shared = _shared(pci, gpu.pci_address, other)
    steps = []
    for end in ends:
        for step in (*pci.chain(end)[shared:], end or ""):
            device = pci.devices[step]
            if device.role not in ("root_port", "downstream"):  # a link is its lower end's
                link = device.link
                steps.append((link.effective_max_bytes_per_second if link else None, step))
    known = [(rate, step) for rate, step in steps if rate is not None]
    if len(known) < len(steps):
        return None, None
    rate, step = min(known)
    return rate, f"pci:{step}"


def _hops(pci: Pci, a: str | None, b: str | None, by_pci: str | None) -> int | None:
    """Links crossed: PCIe links on both sides, and one between NUMA nodes."""
    if a not in pci.functions or b not in pci.functions:
        return None
    shared = _shared(pci, a, b)
    sides = sum((len(pci.chain(end)) - shared + 2) // 2 for end in (a, b))
    return sides + int(by_pci == PathClass.SYS)
