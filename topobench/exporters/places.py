"""Where devices hang: NUMA nodes, PCIe roots, switches; what pictures and graphs are drawn from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from topobench.links import Shortfall, shortfalls
from topobench.topology import (
    Gpu,
    Known,
    Nic,
    NodeKind,
    NumaNode,
    Nvme,
    PciDevice,
    PciLink,
    Topology,
)

_ROOTLESS = "import:nccl"
"""NCCL leaves root ports out, so the bus of its topmost element is no root bus."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """
    A device: ``kind`` is gpu, nic, nvme or nvswitch; ``name`` is what paths call it.

    Args:
        short: What its link lacks, if anything.
    """

    kind: str
    name: str
    address: str | None
    link: PciLink | None
    item: Gpu | Nic | Nvme | str
    short: Shortfall | None = None


@dataclass(slots=True)
class Place:
    """A PCIe root or a switch, with what hangs below it."""

    kind: str
    address: str
    link: PciLink | None = None
    short: Shortfall | None = None
    places: dict[str, Place] = field(default_factory=dict)
    leaves: list[Leaf] = field(default_factory=list)

    def everything(self) -> Iterator[Leaf]:
        """All devices below, wherever they hang."""
        yield from self.leaves
        for place in self.places.values():
            yield from place.everything()


@dataclass(slots=True)
class Home:
    """A NUMA node, or None for what is near no known node."""

    node: NumaNode | None
    number: int | None
    place: Place = field(default_factory=lambda: Place("node", ""))


def homes(topology: Topology) -> list[Home]:
    """NUMA nodes with CPUs or devices, by number, then what is near none."""
    found: dict[int | None, Home] = {n.id: Home(n, n.id) for n in topology.cpu_nodes}
    nodes = {n.id: n for n in topology.numa_nodes}
    devices = {d.address: d for d in topology.pci}
    short = shortfalls(topology.pci, topology.gpus)
    for leaf, near in _leaves(topology, devices, short):
        number = near.value
        home = found.setdefault(number, Home(nodes.get(-1 if number is None else number), number))
        place = home.place
        for above in _way(leaf.address, devices, short, rooted=topology.root != _ROOTLESS):
            place = place.places.setdefault(above.address, above)
        place.leaves.append(leaf)
    order = sorted(found, key=lambda n: (n is None, n or 0))
    return [found[n] for n in order]


def memory_nodes(topology: Topology) -> list[NumaNode]:
    """NUMA nodes without CPUs."""
    return [n for n in topology.numa_nodes if n.kind not in (NodeKind.CPU_MEMORY, NodeKind.CPU)]


def is_degraded(end: Leaf | Place) -> bool:
    """Whether its link is below what both of its ends can do, and not for being idle."""
    return end.short is not None and end.short.is_fault


def chain(address: str | None, devices: dict[str, PciDevice]) -> list[PciDevice]:
    """Bridges above a function, root first."""
    found: list[PciDevice] = []
    device = devices.get(address or "")
    while device and len(found) < len(devices):
        device = devices.get(device.parent or "")
        found += [device] if device else []
    return found[::-1]


def nv_links(token: str | None) -> int | None:
    """Number of links of "NV18"; None for another class."""
    match = re.fullmatch(r"NV(\d+)", token or "")
    return int(match[1]) if match else None


def _way(
    address: str | None,
    devices: dict[str, PciDevice],
    short: Mapping[str, Shortfall],
    *,
    rooted: bool,
) -> Iterator[Place]:
    """The root, if it is known, and the switches above a function, as new places."""
    if address is None:
        return
    above = chain(address, devices)
    top = above[0].address if above else address
    device = devices.get(top)
    told = device.host_bridge if device else None
    if told or rooted:
        yield Place("root", (told or top.rpartition(":")[0]).removeprefix("pci"))
    for bridge in above:
        if bridge.role == "upstream":
            yield Place("switch", bridge.address, bridge.link, short.get(bridge.address))


def _leaves(
    topology: Topology, devices: dict[str, PciDevice], short: Mapping[str, Shortfall]
) -> Iterator[tuple[Leaf, Known]]:
    unknown = Known(None, None, None)

    def leaf(kind: str, name: str, address: str | None, item: Gpu | Nic | Nvme | str) -> Leaf:
        device = devices.get(address or "")
        link = device.link if device else None
        return Leaf(kind, name, address, link, item, short.get(address or ""))

    for gpu in topology.gpus:
        if not gpu.is_slice:
            yield leaf("gpu", gpu.name, gpu.pci_address, gpu), gpu.cpu_node
    for nic in topology.nics:
        yield leaf("nic", f"nic:{nic.name}", nic.pci_address, nic), nic.numa_node
    for drive in topology.nvme:
        yield leaf("nvme", f"nvme:{drive.name}", drive.pci_address, drive), drive.numa_node
    for address in topology.nvswitches:
        device = devices.get(address)
        near = device.numa_node if device else unknown
        yield leaf("nvswitch", f"nvswitch:{address}", address, address), near
