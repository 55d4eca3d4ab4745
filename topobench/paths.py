"""
Paths between GPUs, network ports, NVMe disks and NUMA nodes, from a topology alone.

Classes come from the bridges that two PCI functions share; NCCL's types and bandwidths from
:mod:`topobench.nccl_paths`. So captures and imported files get the same as a live host.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topobench.nccl_paths import NcclPath, compute
from topobench.nccl_system import system_of
from topobench.topology import (
    Gpu,
    P2p,
    Path,
    PathClass,
    PciDevice,
    Topology,
    TopologyWarning,
)

_Pair = tuple[str, str]
_Ceiling = tuple[float | None, str | None]
"""Bytes per second of the slowest link, and its name."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a driver says of two GPUs: their class by PCIe, and its word on peer access."""

    ancestor: str | None = None
    p2p: P2p | None = None


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths of a host, and where sources disagree about them."""

    paths: tuple[Path, ...]
    warnings: tuple[TopologyWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class _End:
    """An end of a path: a PCI function, or a NUMA node (``node`` alone)."""

    name: str
    address: str | None
    node: int | None
    gpu: Gpu | None = None
    rate: float | None = None


def find_paths(topology: Topology, told: Mapping[_Pair, Told] | None = None) -> Paths:
    """
    Every pair of whole GPUs, network ports, NVMe disks and NUMA nodes with CPUs.

    Args:
        told: Pair of GPU names (``gpu:0``), in both orders -> what the driver says.
    """
    told = told or {}
    finder = _Finder(topology, told)
    pairs = itertools.combinations(_ends(topology), 2)
    paths = tuple(finder.path(a, b) for a, b in pairs)
    return Paths(paths, tuple(finder.warnings))


def _ends(topology: Topology) -> list[_End]:
    """Ends, GPUs first; devices that are not on the PCI bus have no paths."""
    only = [n.id for n in topology.numa_nodes if n.cpus]
    default = only[0] if len(only) == 1 else None
    gpus = (g for g in topology.gpus if not g.is_slice)
    ends = [_End(g.name, g.pci_address, g.cpu_node.value, g) for g in gpus]
    for nic in topology.nics:
        node = default if nic.numa_node.value is None else nic.numa_node.value
        rate = nic.rate_bytes_per_second
        ends.append(_End(f"nic:{nic.name}", nic.pci_address, node, rate=rate))
    for disk in topology.nvme:
        node = default if disk.numa_node.value is None else disk.numa_node.value
        ends.append(_End(f"nvme:{disk.name}", disk.pci_address, node))
    nodes = [_End(f"numa:{n}", None, n) for n in only]
    return [e for e in ends if e.address or e.gpu] + nodes


class _Finder:
    """Looks up what all pairs need once."""

    def __init__(self, topology: Topology, told: Mapping[_Pair, Told]) -> None:
        self.tree = PciTree(topology.pci)
        self.gpus = [g for g in topology.gpus if not g.is_slice]
        self.told = told
        denied = (pair for pair, said in told.items() if _denies(said.p2p))
        self.nccl = compute(system_of(topology, denied)) if _rates_known(self.gpus) else {}
        self.warnings: list[TopologyWarning] = []

    def path(self, a: _End, b: _End) -> Path:
        if b.address is None and b.gpu is None:
            return self._to_node(a, b)
        by_pci = self.tree.path_class(a.address, b.address, (a.node, b.node))
        if a.gpu and b.gpu:
            return self._between_gpus(a, b, a.gpu, b.gpu, by_pci)
        ceiling, hops = self._pci_ceiling(a, b), self._hops(a, b, by_pci)
        return self._made(a, b, smi=by_pci, smi_pcie=by_pci, ceiling=ceiling, hops=hops)

    def _between_gpus(
        self, a: _End, b: _End, first: Gpu, second: Gpu, by_pci: PathClass | None
    ) -> Path:
        said = self.told.get((a.name, b.name), Told())
        self._compare(a, b, by_pci, said)
        smi_pcie = said.ancestor or by_pci
        count, switched = nvlinks_between(first, second)
        hops: int | None
        if count:
            ceiling, hops = _nvlink_ceiling(first, second, count), 2 if switched else 1
        else:
            ceiling, hops = self._pci_ceiling(a, b), self._hops(a, b, smi_pcie)
        return self._made(
            a,
            b,
            smi=f"NV{count}" if count else smi_pcie,
            smi_pcie=smi_pcie,
            ceiling=ceiling,
            hops=hops,
            p2p=said.p2p,
        )

    def _compare(self, a: _End, b: _End, by_pci: PathClass | None, said: Told) -> None:
        """Warn where the PCI tree, the driver and the two GPUs contradict each other."""
        pair = f"{a.name}-{b.name}"
        if by_pci and said.ancestor and by_pci != said.ancestor:
            text = f"the PCI tree says {by_pci}, NVML says {said.ancestor}"
            self.warnings.append(TopologyWarning("path_disagrees", pair, text))
        back = self.told.get((b.name, a.name), Told()).p2p
        if said.p2p and back and said.p2p != back:
            text = f"peer access differs by direction: {_words(said.p2p)}, back {_words(back)}"
            self.warnings.append(TopologyWarning("p2p_one_way", pair, text))
        if a.gpu and b.gpu:
            there, here = _links_to(a.gpu, b.gpu), _links_to(b.gpu, a.gpu)
            if there != here:
                text = f"{a.name} counts {there} NVLinks to it, {b.name} counts {here}"
                self.warnings.append(TopologyWarning("nvlink_disagrees", pair, text))

    def _to_node(self, a: _End, b: _End) -> Path:
        """To host memory: through the host bridge, and between nodes if it is not near."""
        if a.address is None and a.gpu is None:
            sys, unknown = PathClass.SYS, (None, None)
            return self._made(a, b, smi=sys, smi_pcie=sys, ceiling=unknown, hops=1)
        near = None if a.node is None else a.node == b.node
        token = None if near is None else PathClass.PHB if near else PathClass.SYS
        ceiling = self._pci_ceiling(a, None)
        if a.gpu and a.gpu.c2c:
            ceiling = (a.gpu.c2c_bytes_per_second, "c2c") if near else (None, None)
            token = None if near else token
        return self._made(a, b, smi=token, smi_pcie=token, ceiling=ceiling, hops=None)

    def _made(
        self,
        a: _End,
        b: _End,
        *,
        smi: str | None,
        smi_pcie: str | None,
        ceiling: _Ceiling,
        hops: int | None,
        p2p: P2p | None = None,
    ) -> Path:
        nccl: NcclPath | None = self.nccl.get((a.name, b.name))
        return Path(
            a=a.name,
            b=b.name,
            smi=smi,
            smi_pcie=smi_pcie,
            nccl=nccl.type.name if nccl else None,
            hops=hops,
            nominal_bytes_per_second=ceiling[0],
            nccl_bytes_per_second=nccl.bytes_per_second if nccl else None,
            bottleneck=ceiling[1],
            p2p=p2p,
        )

    def _pci_ceiling(self, a: _End, b: _End | None) -> _Ceiling:
        """The slowest of the PCIe links on the way, and of the ports' own rates."""
        rate, name = self.tree.slowest_link(a.address, b.address if b else None)
        for end in (a, b):
            if rate and end and end.rate and end.rate < rate:
                rate, name = end.rate, end.name
        return rate, name

    def _hops(self, a: _End, b: _End, by_pci: str | None) -> int | None:
        """Links crossed: PCIe links on both sides, and one between NUMA nodes."""
        links = self.tree.links_between(a.address, b.address)
        return None if links is None else links + int(by_pci == PathClass.SYS)


class PciTree:
    """PCI functions and the bridges above them."""

    def __init__(self, devices: Sequence[PciDevice]) -> None:
        self.devices = {device.address: device for device in devices}
        self.chains: dict[str, tuple[str, ...]] = {}

    def chain(self, address: str) -> tuple[str, ...]:
        """Bridges from the root to a function, without itself; a file's loop is cut."""
        if address not in self.chains:
            found: list[str] = []
            above = self.devices[address].parent
            while above in self.devices and above not in found and above != address:
                found.append(above)
                above = self.devices[above].parent
            self.chains[address] = tuple(reversed(found))
        return self.chains[address]

    def path_class(
        self, a: str | None, b: str | None, nodes: tuple[int | None, int | None]
    ) -> PathClass | None:
        """
        Path class of two PCI functions by the bridges they share; None if that is not known.

        Host bridges of an unknown NUMA node count as different nodes, as nvidia-smi has it.
        Where root buses are not known, another domain is another bridge, and so is another
        NUMA node.
        """
        if a not in self.devices or b not in self.devices:
            return None
        shared = self._shared(a, b)
        if shared:
            deepest = max(len(self.chain(a)), len(self.chain(b))) - shared
            return PathClass.PIX if deepest <= 1 else PathClass.PXB
        if a == b:
            return PathClass.PIX
        same_node = nodes[0] is not None and nodes[0] == nodes[1]
        roots = self.devices[a].host_bridge, self.devices[b].host_bridge
        if None not in roots and roots[0] == roots[1]:
            return PathClass.PHB
        domains = a.partition(":")[0], b.partition(":")[0]
        if None in roots and domains[0] == domains[1] and (same_node or None in nodes):
            return None
        return PathClass.NODE if same_node else PathClass.SYS

    def slowest_link(self, a: str | None, b: str | None) -> _Ceiling:
        """
        The slowest PCIe link between two functions, or from one to the root (``b`` None).

        A ceiling: links between NUMA nodes are not counted. None if any link is unknown.
        """
        ends = [end for end in (a, b) if end is not None]
        if not ends or any(end not in self.devices for end in ends):
            return None, None
        shared = self._shared(*ends) if len(ends) == 2 else 0
        steps = []
        for end in ends:
            for step in (*self.chain(end)[shared:], end):
                device = self.devices[step]
                if device.role not in ("root_port", "downstream"):  # a link is its lower end's
                    link = device.link
                    steps.append((link.effective_max_bytes_per_second if link else None, step))
        known = [(rate, step) for rate, step in steps if rate is not None]
        if len(known) < len(steps) or not known:
            return None, None
        rate, step = min(known)
        return rate, f"pci:{step}"

    def links_between(self, a: str | None, b: str | None) -> int | None:
        """PCIe links between two functions; None if either is not in the tree."""
        if a not in self.devices or b not in self.devices:
            return None
        shared = self._shared(a, b)
        return sum((len(self.chain(end)) - shared + 2) // 2 for end in (a, b))

    def _shared(self, a: str, b: str) -> int:
        """Bridges above both functions."""
        pairs = zip(self.chain(a), self.chain(b), strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def nvlinks_between(a: Gpu, b: Gpu) -> tuple[int, bool]:
    """Active NVLinks that join two GPUs, and whether a switch is between them."""
    direct = min(_links_to(a, b), _links_to(b, a))
    if direct:
        return direct, False
    return min(_switch_links(a), _switch_links(b)), True


def _links_to(gpu: Gpu, peer: Gpu) -> int:
    links = gpu.nvlink.links if gpu.nvlink else ()
    return sum(
        link.state == "active" and link.remote_kind == "gpu" and link.remote == peer.pci_address
        for link in links
    )


def _switch_links(gpu: Gpu) -> int:
    links = gpu.nvlink.links if gpu.nvlink else ()
    return sum(link.state == "active" and link.remote_kind == "nvswitch" for link in links)


def _nvlink_ceiling(a: Gpu, b: Gpu, count: int) -> _Ceiling:
    links = [gpu.nvlink for gpu in (a, b) if gpu.nvlink and gpu.nvlink.active]
    rates = [n.bytes_per_second / n.active * count for n in links if n.bytes_per_second]
    return (min(rates), "nvlink") if len(rates) == 2 else (None, "nvlink")


def _rates_known(gpus: Sequence[Gpu]) -> bool:
    """Whether NCCL's figure for every NVLink is known: it goes by the GPU's generation."""
    return all(g.compute_capability for g in gpus if g.nvlink and g.nvlink.active)


def _denies(p2p: P2p | None) -> bool:
    return p2p is not None and any(word not in (None, "OK") for word in (p2p.read, p2p.write))


def _words(p2p: P2p) -> str:
    return f"read {p2p.read or 'unknown'}, write {p2p.write or 'unknown'}"
