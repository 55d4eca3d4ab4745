"""A host's wiring as a tree and as a matrix of path classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from topobench.host import describe
from topobench.links import Shortfall, shortfalls
from topobench.pcie import link_bytes_per_second
from topobench.report.figures import UNKNOWN
from topobench.report.hosts import hardware
from topobench.report.matrix import path_matrix
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet, facts
from topobench.topology import (
    Gpu,
    Known,
    Nic,
    NodeKind,
    NumaNode,
    PciDevice,
    PciLink,
    Topology,
    format_cpu_list,
)
from topobench.units import format_bytes, format_rate

BELOW = "BELOW"
"""Marks a link that runs below what both of its ends can do."""
IDLE = "idle, up to"
"""Before the rate of a link that is slow, but of a device that slows down when idle."""


def render_topology(topology: Topology) -> RenderableType:
    """A host's wiring: NUMA nodes, PCIe tree, devices, distances, paths, NVLinks, warnings."""
    return Group(*_parts(topology))


def _parts(topology: Topology) -> Iterator[RenderableType]:
    yield facts([*hardware(describe(topology)), ("limits", _limits(topology))])
    yield Text("")
    yield _tree(topology)
    if any(s.is_fault for s in shortfalls(topology.pci, topology.gpus).values()):
        yield Prose(f"{BELOW}: less than both ends of the link can do.", indent=0)
    if len(topology.numa_distances.nodes) > 1:
        yield Text("\nNUMA DISTANCES (10 = itself)", style="bold")
        yield _distances(topology)
    if topology.gpus and len(topology.gpus) + len(topology.nics) > 1:
        yield Text("\nPATHS", style="bold")
        yield from path_matrix(topology)
    if any(g.nvlink for g in topology.gpus):
        yield Text("\nNVLINK", style="bold")
        yield _nvlinks(topology.gpus)
    if topology.warnings:
        yield Text("\nWARNINGS", style="bold")
        for warning in topology.warnings:
            yield Prose(f"{clean(warning.subject)}: {clean(warning.text)}", style="yellow")


def _limits(topology: Topology) -> str:
    cpus = topology.cpus
    parts = []
    if cpus.allowed and cpus.online and cpus.allowed != cpus.online:
        parts.append(f"may use CPUs {clean(cpus.allowed)} of {clean(cpus.online)}")
    if cpus.quota_cpus is not None:
        parts.append(f"CPU quota {cpus.quota_cpus:g}")
    return ", ".join(parts)


@dataclass(slots=True)
class _Branch:
    """What hangs below a NUMA node, a root or a switch."""

    label: Text
    leaves: list[Text] = field(default_factory=list)
    branches: dict[str, _Branch] = field(default_factory=dict)

    def add_to(self, tree: Tree) -> None:
        own = tree.add(self.label)
        for _, branch in sorted(self.branches.items()):
            branch.add_to(own)
        for leaf in self.leaves:
            own.add(leaf)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A device to show: where it is, and what to say of it."""

    node: int | None
    address: str | None
    text: Text


def _tree(topology: Topology) -> Tree:
    """NUMA nodes; below them PCIe roots, switches, and the devices worth naming."""
    tree = Tree(Text("host", style="bold"), highlight=False)
    by_address = {d.address: d for d in topology.pci}
    links = _link_texts(topology)
    nodes = {n.id: _Branch(_node_text(n, topology.gpus)) for n in topology.numa_nodes}
    unknown = _Branch(Text("NUMA node unknown", style="yellow"))
    for leaf in _leaves(topology, by_address, links):
        branch = unknown if leaf.node is None else nodes.setdefault(leaf.node, _absent(leaf.node))
        for key, label in _way(leaf.address, by_address, links):
            branch = branch.branches.setdefault(key, _Branch(label))
        branch.leaves.append(leaf.text)
    for branch in nodes.values():
        branch.add_to(tree)
    if unknown.leaves or unknown.branches:
        unknown.add_to(tree)
    return tree


def _absent(node: int) -> _Branch:
    return _Branch(Text(f"NUMA node {node}, of which the kernel shows nothing", style="yellow"))


def _node_text(node: NumaNode, gpus: Sequence[Gpu]) -> Text:
    memory = format_bytes(node.memory_bytes) if node.memory_bytes else "memory unknown"
    if node.kind == NodeKind.EMPTY:
        parts = ["empty"]
    elif node.kind == NodeKind.GPU:
        owner = next((g.index for g in gpus if node.gpu in (g.uuid, g.pci_address)), None)
        parts = [f"memory of GPU {UNKNOWN if owner is None else owner}", memory]
    elif node.kind == NodeKind.MEMORY:
        parts = ["memory only", memory]
    else:
        parts = [f"CPUs {clean(node.cpus)}", memory if node.kind != NodeKind.CPU else "no memory"]
    if not node.allowed:
        parts.append("not allowed here")
    return Text(f"NUMA node {node.id}: {', '.join(parts)}", style="bold")


def _way(
    address: str | None, devices: Mapping[str, PciDevice], links: Mapping[str, Text]
) -> Iterator[tuple[str, Text]]:
    """The PCIe root and the switches above a function, root first."""
    if address is None:
        return
    chain: list[PciDevice] = []
    device = devices.get(address)
    while device and len(chain) < len(devices):
        device = devices.get(device.parent or "")
        chain += [device] if device else []
    top = chain[-1].address if chain else address
    root = top.rpartition(":")[0]
    yield root, Text(f"PCIe root {clean(root)}")
    for bridge in reversed(chain):
        if bridge.role == "upstream":
            name = f"switch {clean(bridge.address)} [{_id(bridge)}]"
            yield bridge.address, Text(name).append_text(links[bridge.address])


def _id(device: PciDevice) -> str:
    return clean(f"{device.vendor.removeprefix('0x')}:{device.device.removeprefix('0x')}")


def _leaves(
    topology: Topology, devices: Mapping[str, PciDevice], links: Mapping[str, Text]
) -> Iterator[_Leaf]:
    def leaf(node: Known | None, address: str | None, name: str, more: Text | str) -> _Leaf:
        text = Text(name, style="bold").append(f"  {clean(address)}" if address else "")
        text.append_text(links.get(address or "", Text()))
        return _Leaf(node.value if node else None, address, text.append(more))

    several = len({g.model for g in topology.gpus}) > 1
    for gpu in topology.gpus:
        yield leaf(gpu.cpu_node, gpu.pci_address, _gpu_name(gpu), _gpu_more(gpu, several))
    for nic in topology.nics:
        yield leaf(nic.numa_node, nic.pci_address, f"NIC {clean(nic.name)}", _nic_more(nic))
    for drive in topology.nvme:
        name, more = f"NVMe {clean(drive.name)}", f"  {clean(drive.model or '')}".rstrip()
        yield leaf(drive.numa_node, drive.pci_address, name, more)
    for address in topology.nvswitches:
        node = devices[address].numa_node if address in devices else None
        yield leaf(node, address, "NVSwitch", "")


def _gpu_name(gpu: Gpu) -> str:
    if gpu.mig and gpu.is_slice:
        return f"MIG slice {clean(gpu.mig.profile or gpu.key)} of {clean(gpu.mig.parent)[:12]}"
    return "GPU" if gpu.index is None else f"GPU {gpu.index}"


def _gpu_more(gpu: Gpu, with_model: bool) -> Text:
    text = Text(f"  {clean(gpu.model or 'unknown model')}" if with_model else "")
    if links := gpu.nvlink:
        text.append(f"  NVLink {links.active}/{links.expected or UNKNOWN}")
        if links.expected and links.active < links.expected:
            text.append(f" {BELOW}", style="red")
    if gpu.state != "ok":
        text.append(f"  state {clean(gpu.state)}", style="red")
    if gpu.mig and not gpu.is_slice:
        text.append(f"  MIG {clean(gpu.mig.mode)}")
    if gpu.cpu_node.value is None and gpu.cpu_node.reason:
        text.append(f"  ({clean(gpu.cpu_node.reason)})")
    return text


def _nic_more(nic: Nic) -> str:
    rate = nic.rate_bytes_per_second
    speed = f"{rate * 8 / 1e9:g} Gb/s" if rate else ""
    parts = [clean(nic.link_layer or ""), speed, clean(nic.state or "")]
    return "".join(f"  {p}" for p in parts if p)


def _link_texts(topology: Topology) -> dict[str, Text]:
    short = shortfalls(topology.pci, topology.gpus)
    return {d.address: _link_text(d.link, short.get(d.address)) for d in topology.pci}


def _link_text(link: PciLink | None, short: Shortfall | None) -> Text:
    """``  32 GT/s x16 (63.0 GB/s)``, with a mark where the link could be faster."""
    text = Text()
    if link is None or link.speed_gts is None or link.width is None:
        return text
    text.append(f"  {link.speed_gts:g} GT/s x{link.width}")
    if link.bytes_per_second:
        text.append(f" ({format_rate(link.bytes_per_second)})")
    if short:
        best = link_bytes_per_second(short.fastest or link.speed_gts, short.widest or link.width)
        rate = format_rate(best or 0.0)
        if short.is_fault:
            text.append(f" {BELOW} {rate}", style="red")
        else:
            text.append(f" {IDLE} {rate}")
    return text


def _distances(topology: Topology) -> Sheet:
    found = topology.numa_distances
    columns = [Column("node"), *(Column(str(n), number=True) for n in found.nodes)]
    rows = [[str(n), *map(str, row)] for n, row in zip(found.nodes, found.matrix, strict=True)]
    return Sheet(columns, rows)


def _nvlinks(gpus: Sequence[Gpu]) -> Sheet:
    """GPUs with equal NVLinks share a row, so that the odd one stands out."""
    groups: dict[tuple[str, ...], list[Gpu]] = {}
    for gpu in gpus:
        groups.setdefault(_nvlink_row(gpu), []).append(gpu)
    columns = [
        Column("GPU"),
        Column("active", number=True),
        Column("of", number=True),
        Column("version", number=True),
        Column("one way", number=True),
        Column("to"),
        Column("links not active"),
    ]
    return Sheet(columns, [[_indices(found), *row] for row, found in groups.items()])


def _nvlink_row(gpu: Gpu) -> tuple[str, ...]:
    links = gpu.nvlink
    if links is None:
        return ("0", UNKNOWN, UNKNOWN, UNKNOWN, "", "")
    to = sorted({clean(n.remote_kind or "unknown") for n in links.links if n.state == "active"})
    down = [n.index for n in links.links if n.state != "active"]
    return (
        str(links.active),
        UNKNOWN if links.expected is None else str(links.expected),
        clean(links.version or UNKNOWN),
        format_rate(links.bytes_per_second) if links.bytes_per_second else UNKNOWN,
        ", ".join(to),
        format_cpu_list(down),
    )


def _indices(gpus: Sequence[Gpu]) -> str:
    known = [g.index for g in gpus if g.index is not None]
    unknown = [clean(g.key)[:12] for g in gpus if g.index is None]
    return ", ".join(p for p in (format_cpu_list(known), *unknown) if p)
