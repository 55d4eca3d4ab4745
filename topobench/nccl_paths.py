"""
How NCCL sees the ways inside a host: path types and the bandwidths it assumes.

NCCL keeps a tree of its own: CPUs (which are NUMA nodes), PCIe switches, GPUs, NVSwitches and
network devices. A :class:`System` holds what it builds that tree from, and :func:`compute`
walks it as NCCL 2.30 does, with its default settings and one rank for each GPU.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

VERSION = "2.30"
"""Release whose rules and numbers these are."""

_LOCAL_GBPS = 5000.0
_PCI_LANE_RATES = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}
_NVLINK_GBPS = ((100, 40.1), (90, 20.6), (86, 12.0), (80, 20.0), (70, 20.0), (60, 18.0))
"""(compute capability from, GB/s of one link)."""
_INTEL_GBPS = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0), (0, 6.0))
"""(CPU model from, GB/s between two NUMA nodes)."""
_BROADCOM_4, _BROADCOM_5 = 0x1000C0101000A, 0x1000C03010000
_MOST_CHANNELS = 64


class PathType(enum.IntEnum):
    """NCCL's path types, nearest first."""

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9
    DIS = 11


@dataclass(frozen=True, slots=True)
class Switch:
    """
    A PCIe switch: the upstream port alone, as NCCL has it.

    Args:
        key: Its PCI address, or any other name.
        parent: The switch or CPU above it.
        gbps: Uplink, one direction, in GB/s as NCCL counts.
        ids: Vendor, device, subsystem vendor, subsystem device, 16 bits each.
    """

    key: str
    parent: str
    gbps: float
    ids: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """
    A GPU.

    Args:
        index: NCCL's and NVML's number of it.
        compute_capability: 90 for 9.0; None if unknown, then its NVLinks are left out.
        nvlinks: (GPU key, CPU key or ``nvswitch``) -> number of links.
        c2c_gbps: Chip link to its CPU, in GB/s.
    """

    key: str
    parent: str
    gbps: float
    index: int
    compute_capability: int | None = None
    gdr: bool = True
    nvlinks: Mapping[str, int] = field(default_factory=dict)
    c2c_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class Net:
    """
    A network port.

    Args:
        card: Its PCI device, which other ports may share.
        gbps: Slot of the card; None if it is no PCI device.
        net_gbps: The port's own rate.
        gdr: Whether it can reach GPU memory.
    """

    key: str
    card: str
    parent: str
    gbps: float | None
    net_gbps: float
    gdr: bool = True


@dataclass(frozen=True, slots=True)
class System:
    """
    What NCCL builds its tree from.

    Args:
        cpus: Keys of the CPUs.
        cpu_gbps: Between two CPUs, in GB/s.
        amd: Whether the CPUs are AMD's, where two GPUs use P2P at any distance.
        no_p2p: Pairs of GPU keys, in both orders, to which the driver denies P2P.
    """

    cpus: tuple[str, ...]
    cpu_gbps: float
    switches: tuple[Switch, ...] = ()
    gpus: tuple[Device, ...] = ()
    nets: tuple[Net, ...] = ()
    amd: bool = False
    no_p2p: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class NcclPath:
    """
    The way from one end to another.

    Args:
        bytes_per_second: What NCCL assumes, one direction.
        p2p: For two GPUs, whether NCCL copies directly.
    """

    type: PathType
    bytes_per_second: float
    p2p: bool | None = None


def pcie_gbps(speed_gts: float | None, width: int | None) -> float:
    """GB/s that NCCL assumes of a PCIe link; unknown is 8 GT/s, and 16 lanes."""
    return (width or 16) * _PCI_LANE_RATES.get(speed_gts or 8.0, 60) / 80


def cpu_gbps(arch: str | None, vendor: str | None, family: int | None, model: int | None) -> float:
    """
    GB/s that NCCL assumes between two NUMA nodes.

    Args:
        arch: ``x86_64``, ``aarch64``, ``ppc64le`` ...
        vendor: As in /proc/cpuinfo.
        family: Of Intel and Zhaoxin CPUs.
    """
    if arch and arch.startswith("ppc64"):
        return 32.0
    if arch in ("aarch64", "arm64"):
        return 6.0
    if arch != "x86_64":
        return _LOCAL_GBPS
    if vendor == "GenuineIntel":
        number = model if family == 6 and model is not None else 0
        return next(rate for first, rate in _INTEL_GBPS if number >= first)
    if vendor in ("CentaurHauls", "Shanghai"):
        return 9.0 if family == 7 and model == 0x5B else 6.0
    return 16.0 if vendor == "AuthenticAMD" else _LOCAL_GBPS


def nvlink_gbps(compute_capability: int) -> float:
    """GB/s that NCCL assumes of one NVLink of a GPU."""
    found = (rate for first, rate in _NVLINK_GBPS if compute_capability >= first)
    return next(found, _NVLINK_GBPS[-1][1])


def compute(system: System) -> dict[tuple[str, str], NcclPath]:
    """
    Paths from GPUs to GPUs, network ports and CPUs, and from network ports to GPUs.

    Keys are those of the system. Ends without a way between them are left out.
    """
    ways = _Ways(system)
    ways.avoid_denied_p2p()
    ways.use_chip_links()
    ways.use_relays_and_cpus_for_nets()
    return dict(ways.results())


@dataclass(slots=True)
class _Node:
    key: str
    kind: str
    parent: str | None = None
    links: list[_Link] = field(default_factory=list)

    def is_above(self, link: _Link) -> bool:
        """Whether a link leads up the PCI tree, where NCCL looks last."""
        return link.to.key == self.parent


@dataclass(frozen=True, slots=True)
class _Link:
    to: _Node
    type: PathType
    gbps: float


@dataclass(frozen=True, slots=True)
class _Way:
    type: PathType = PathType.DIS
    gbps: float = 0.0
    hops: int = 0


_NOWHERE = _Way()


class _Tree:
    """NCCL's nodes and links."""

    def __init__(self, system: System) -> None:
        system = _flattened(system)
        self.nodes = {key: _Node(key, "cpu") for key in system.cpus}
        for switch in system.switches:
            self._hang(switch.key, "switch", switch.parent, switch.gbps)
        for gpu in system.gpus:
            self._hang(gpu.key, "gpu", gpu.parent, gpu.gbps)
        for net in system.nets:
            if net.card not in self.nodes:
                rate = _LOCAL_GBPS if net.gbps is None else net.gbps
                self._hang(net.card, "card", net.parent, rate)
            self.nodes[net.key] = _Node(net.key, "net")
            self._join(net.card, net.key, PathType.LOC, net.net_gbps)
            self._join(net.key, net.card, PathType.LOC, net.net_gbps)
        for gpu in system.gpus:
            self._chip_links(gpu)
        for a, b in itertools.permutations(system.cpus, 2):
            self._join(a, b, PathType.SYS, system.cpu_gbps)
        for node in self.nodes.values():
            node.links.sort(key=lambda link: -link.gbps)
            node.links.sort(key=node.is_above)

    def _hang(self, key: str, kind: str, parent: str, gbps: float) -> None:
        """Put a PCI node below its parent, which is there already."""
        self.nodes[key] = _Node(key, kind, parent)
        self._join(key, parent, PathType.PIX, gbps)
        self._join(parent, key, PathType.PIX, gbps)

    def _join(self, a: str, b: str, kind: PathType, gbps: float) -> None:
        self.nodes[a].links.append(_Link(self.nodes[b], kind, gbps))

    def _chip_links(self, gpu: Device) -> None:
        """NVLinks of a GPU, and its chip link to the CPU it hangs off."""
        for target, count in gpu.nvlinks.items():
            if target == "nvswitch":
                self.nodes.setdefault(target, _Node(target, "nvswitch"))
            if target in self.nodes and gpu.compute_capability is not None:
                rate = count * nvlink_gbps(gpu.compute_capability)
                self._join(gpu.key, target, PathType.NVL, rate)
                if self.nodes[target].kind != "gpu":
                    self._join(target, gpu.key, PathType.NVL, rate)
        if gpu.c2c_gbps is not None:
            cpu = self._cpu_above(gpu.key)
            self._join(gpu.key, cpu, PathType.C2C, gpu.c2c_gbps)
            self._join(cpu, gpu.key, PathType.C2C, gpu.c2c_gbps)

    def _cpu_above(self, key: str) -> str:
        node = self.nodes[key]
        return node.key if node.parent is None else self._cpu_above(node.parent)

    def ways_to(self, base: str) -> dict[str, _Way]:
        """
        Node -> its way to ``base``, found breadth first.

        A way found later replaces one only if it is faster and has no more links.
        """
        found = {base: _Way(PathType.LOC, _LOCAL_GBPS, 0)}
        layer = [self.nodes[base]]
        while layer:
            following: dict[str, _Node] = {}
            for node in layer:
                for link in node.links:
                    way = _extended(node, found[node.key], link, base)
                    known = found.get(link.to.key, _NOWHERE)
                    better = not known.gbps or known.hops >= way.hops if way else False
                    if way and better and way.gbps > known.gbps:
                        found[link.to.key] = way
                        following[link.to.key] = link.to
            layer = list(following.values())
        return found


def _extended(node: _Node, way: _Way, link: _Link, base: str) -> _Way | None:
    """The way with one link more; None where NCCL goes no further through a GPU."""
    direct = link.type is PathType.NVL and link.to.kind == "gpu"
    if node.kind == "gpu" and node.key != base and (not direct or way.hops > 1):
        return None
    kind = link.type
    if node.kind == link.to.kind == "switch":
        kind = PathType.PXB
    if kind is PathType.PIX and "cpu" in (node.kind, link.to.kind):
        kind = PathType.PHB
    if node.kind == "gpu" and way.type is kind is PathType.NVL:
        kind = PathType.NVB
    return _Way(max(way.type, kind), min(way.gbps, link.gbps), way.hops + 1)


class _Ways:
    """Ways between all ends, from each to each, as NCCL amends them step by step."""

    def __init__(self, system: System) -> None:
        self.system, tree = system, _Tree(system)
        self.gpus = [gpu.key for gpu in system.gpus]
        self.nets = [net.key for net in system.nets]
        to = {key: tree.ways_to(key) for key in (*system.cpus, *self.gpus, *self.nets)}
        self.ways = {(a, b): way for b, found in to.items() for a, way in found.items()}
        self.devices = {gpu.key: gpu for gpu in system.gpus}
        self.direct: dict[tuple[str, str], bool] = {}
        self.nearest: dict[str, list[str]] = {}

    def __getitem__(self, pair: tuple[str, str]) -> _Way:
        return self.ways.get(pair, _NOWHERE)

    def avoid_denied_p2p(self) -> None:
        """Pairs of GPUs too far apart for P2P, or denied it, go through a CPU."""
        for to, by in itertools.product(self.gpus, self.gpus):
            self.direct[by, to] = self._p2p(by, to)
            if not self.direct[by, to]:
                self._divert(by, to, self._local_cpu(to))

    def use_chip_links(self) -> None:
        """A GPU with a chip link reaches its nearest network ports through the CPU's memory."""
        for gpu in self.gpus:
            cpu = self._local_cpu(gpu)
            for net in self._near(gpu):
                types = {self[gpu, cpu].type, self[net, cpu].type}
                if types == {PathType.C2C, PathType.PHB}:
                    for pair in ((gpu, net), (net, gpu)):
                        way = self[pair]
                        self._set(pair, replace(way, type=min(PathType.P2C, way.type)))

    def use_relays_and_cpus_for_nets(self) -> None:
        """Network ports are reached over another GPU (PXN), or a CPU where they must be."""
        for net, gpu in itertools.product(self.system.nets, self.gpus):
            relay = self._local_gpu(net.key)
            if relay not in (None, gpu) and self._relays(relay or "", gpu, net):
                self._divert(gpu, net.key, relay or "", PathType.PXN)
            if self[gpu, net.key].type < PathType.PHB and not self._gdr(gpu, net, read=False):
                cpu = self._local_cpu(gpu)
                self._divert(net.key, gpu, cpu)
                self._divert(gpu, net.key, cpu)

    def _p2p(self, a: str, b: str) -> bool:
        far = self.system.amd and len(self.gpus) <= 2
        level = PathType.SYS if far else PathType.PXB
        return self[a, b].type <= level and (a, b) not in self.system.no_p2p

    def results(self) -> Iterator[tuple[tuple[str, str], NcclPath]]:
        """What :func:`compute` returns."""
        ends = itertools.chain(
            itertools.product(self.gpus, (*self.gpus, *self.nets, *self.system.cpus)),
            itertools.product(self.nets, self.gpus),
        )
        for pair in ends:
            way = self[pair]
            if way.type is not PathType.DIS:
                yield pair, NcclPath(way.type, way.gbps * 1e9, self.direct.get(pair))

    def _divert(self, a: str, b: str, middle: str, kind: PathType | None = None) -> None:
        first, second = self[a, middle], self[middle, b]
        types = {first.type, second.type}
        merged = PathType.P2C if types == {PathType.C2C, PathType.PHB} else max(types)
        kind = merged if kind is None else kind
        gbps, hops = min(first.gbps, second.gbps), first.hops + second.hops
        self._set((a, b), _Way(kind, gbps, hops))

    def _set(self, pair: tuple[str, str], way: _Way) -> None:
        self.ways[pair] = way
        self.nearest.pop(pair[0], None)

    def _local_cpu(self, gpu: str) -> str:
        near = [cpu for cpu in self.system.cpus if self[gpu, cpu].hops]
        return min(near, key=lambda cpu: self[gpu, cpu].hops)

    def _near(self, end: str) -> list[str]:
        """Ports that a GPU reaches fastest, or GPUs a port does; of these the nearest type."""
        if end not in self.nearest:
            others = self.nets if end in self.devices else self.gpus
            ranks = {o: (-self[end, o].gbps, self[end, o].type) for o in others}
            best = min(ranks.values(), default=None)
            self.nearest[end] = [o for o in others if ranks[o] == best and self[end, o].gbps]
        return self.nearest[end]

    def _local_gpu(self, net: str) -> str | None:
        """The GPU that drives a network port: the first of the nearest that would take it."""
        for channel, gpu in itertools.product(range(_MOST_CHANNELS), self._near(net)):
            if self._local_net(gpu, channel) == net:
                return gpu
        return None

    def _local_net(self, gpu: str, channel: int) -> str:
        """The port that a channel of a GPU takes; GPUs that share ports start at different ones."""
        nets = self._near(gpu)
        sharing = len(self._near(nets[0]))
        first = _mirrored(self.devices[gpu].index % sharing, len(nets))
        return nets[(first + channel % -(-len(nets) // sharing)) % len(nets)]

    def _relays(self, relay: str, gpu: str, net: Net) -> bool:
        """Whether a GPU sends to a port over the NVLink to another GPU, which is nearer to it."""
        theirs, ours = self[relay, net.key], self[gpu, net.key]
        return (
            theirs.type <= PathType.P2C
            and self._gdr(relay, net, read=True)
            and self[relay, gpu].type <= PathType.NVL
            and (theirs.gbps > ours.gbps or ours.type > PathType.PXN)
        )

    def _gdr(self, gpu: str, net: Net, *, read: bool) -> bool:
        """Whether a port reaches a GPU's memory; old GPUs let themselves be read only if alone."""
        device = self.devices[gpu]
        if not (net.gdr and device.gdr):
            return False
        if read and (device.compute_capability or 80) < 80:
            others = [g for g in self.gpus if g != gpu]
            if others and all(self[gpu, o].type is not PathType.NVL for o in others):
                return False
        end = gpu if self[gpu, net.key].type is not PathType.PXN else self._local_gpu(net.key)
        return self[end or gpu, net.key].type <= PathType.P2C


def _mirrored(value: int, count: int) -> int:
    """The bits of a value below a power of two in reverse; else the value."""
    if count & (count - 1):
        return value
    bits = count.bit_length() - 1
    return int(f"{value % count:0{bits}b}"[::-1], 2) if bits else 0


def _flattened(system: System) -> System:
    """
    The system without the inner level of Broadcom's switches.

    They show two levels of switches, but carry full bandwidth between all their ports.
    """
    merged: dict[str, str] = {}
    ids = {switch.key: switch.ids for switch in system.switches}
    for switch in system.switches:
        generation = _broadcom(ids.get(switch.parent, 0), 0)
        if generation and switch.parent not in merged and _broadcom(switch.ids, 1) == generation:
            merged[switch.key] = switch.parent

    def moved(parent: str) -> str:
        return merged.get(parent, parent)

    return replace(
        system,
        switches=tuple(
            replace(s, parent=moved(s.parent)) for s in system.switches if s.key not in merged
        ),
        gpus=tuple(replace(g, parent=moved(g.parent)) for g in system.gpus),
        nets=tuple(replace(n, parent=moved(n.parent)) for n in system.nets),
    )


def _broadcom(ids: int, level: int) -> int | None:
    """Generation of a Broadcom switch at a level of its two; None for all others."""
    if ids >> 12 == _BROADCOM_4:
        return 4
    return 5 if ids >> 12 == _BROADCOM_5 | level else None
