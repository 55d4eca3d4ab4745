"""
What differs between two topologies, in words: what was bought, how it is set up, how it runs.

Devices are paired by UUID, then by PCI address, then by name, so the same host is compared with
itself after a change, and a host with one built alike. What one side does not know is no
difference: it is listed apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from topobench.topology import Gpu, Nic, NumaNode, P2p, PciDevice, PciLink, Topology, plain
from topobench.units import format_bytes, format_rate

SHAPE, CONFIG, HEALTH = "shape", "config", "health"
GROUPS = {
    SHAPE: "what was bought, and how it is wired",
    CONFIG: "how it is set up",
    HEALTH: "how it runs",
}
HEALTH_CODES = frozenset(
    {
        "gpu_state",
        "fabric",
        "nvlink_lost",
        "nvlink_back",
        "nic_state",
        "nic_rate",
        "link_narrower",
        "link_wider",
        "link_slower",
        "link_faster",
        "p2p",
    }
)
"""Codes of the differences in health: faults and repairs, not another machine."""
_IDLE_GTS = 2.5
"""An idle GPU lets its link fall to this, so it is no change."""
_SAME_MEMORY = 1 / 16
"""The kernel keeps a part of a node's memory for itself, which varies with its version."""
_MOST_NAMED = 6

Item = TypeVar("Item", Gpu, Nic)


@dataclass(frozen=True, slots=True)
class Change:
    """
    One difference.

    Args:
        group: ``shape``, ``config`` or ``health``.
        code: Kind of difference, for programs ("nic_moved").
        subject: Device, pair or node ("gpu:3").
        a: Value in the first topology; None where the thing is not there.
        text: The difference in words.
    """

    group: str
    code: str
    subject: str
    a: Any
    b: Any
    text: str


@dataclass(frozen=True, slots=True)
class TopologyDiff:
    """
    All differences, shape first.

    Args:
        unknown: What could not be compared, as one side does not know it ("gpu:0 link").
    """

    changes: tuple[Change, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Group -> number of differences."""
        return {group: sum(c.group == group for c in self.changes) for group in GROUPS}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "equal": not self.changes,
            "counts": self.counts,
            "changes": [plain(c) for c in self.changes],
            "unknown": list(self.unknown),
        }


def diff(a: Topology, b: Topology) -> TopologyDiff:
    """Everything of shape, config and health that differs."""
    found = _Comparer(a, b)
    found.machine()
    found.numa()
    found.gpus()
    found.nics()
    found.others()
    found.paths()
    order = list(GROUPS)
    changes = sorted(found.changes, key=lambda c: order.index(c.group))
    return TopologyDiff(tuple(changes), tuple(dict.fromkeys(found.unknown)))


@dataclass(slots=True)
class _Comparer:
    a: Topology
    b: Topology
    changes: list[Change] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    gpu_names: dict[str, str] = field(default_factory=dict)
    nic_names: dict[str, str] = field(default_factory=dict)

    def add(self, group: str, code: str, subject: str, a: Any, b: Any, text: str) -> None:
        self.changes.append(Change(group, code, subject, a, b, text))

    def compare(
        self,
        group: str,
        code: str,
        subject: str,
        a: Any,
        b: Any,
        *,
        show: Callable[[Any], str] = str,
        what: str | None = None,
    ) -> None:
        """Add a difference of two values; one that is None is unknown."""
        label = what or code.replace("_", " ")
        if (a is None) != (b is None):
            self.unknown.append(f"{subject} {label}")
        elif a != b:
            self.add(group, code, subject, a, b, f"{label}: {show(a)}, now {show(b)}")

    def machine(self) -> None:
        a, b = self.a.machine, self.b.machine
        for name in ("arch", "vendor", "product"):
            self.compare(SHAPE, name, "host", getattr(a, name), getattr(b, name))
        for name in ("bios", "kernel", "os", "driver", "cuda"):
            self.compare(CONFIG, name, "host", getattr(a, name), getattr(b, name))
        if a.container != b.container:
            text = f"container: {a.container or 'none'}, now {b.container or 'none'}"
            self.add(CONFIG, "container", "host", a.container, b.container, text)
        kinds = (
            None if t.virtualization == "unknown" else t.virtualization for t in (self.a, self.b)
        )
        self.compare(SHAPE, "virtualization", "host", *kinds)
        iommus = (None if m.iommu == "unknown" else m.iommu for m in (a, b))
        self.compare(CONFIG, "iommu", "host", *iommus)
        self._cpus()

    def _cpus(self) -> None:
        a, b = self.a.cpus, self.b.cpus
        self.compare(SHAPE, "cpu_model", "host", a.model, b.model)
        for name in ("packages", "physical_cores"):
            self.compare(SHAPE, name, "host", getattr(a, name), getattr(b, name))
        for name in ("threads_per_core", "online", "allowed"):
            what = name if name == "threads_per_core" else f"CPUs {name}"
            self.compare(
                CONFIG, f"cpus_{name}", "host", getattr(a, name), getattr(b, name), what=what
            )
        if a.quota_cpus != b.quota_cpus:
            text = f"CPU quota: {a.quota_cpus or 'none'}, now {b.quota_cpus or 'none'}"
            self.add(CONFIG, "cpu_quota", "host", a.quota_cpus, b.quota_cpus, text)

    def numa(self) -> None:
        """Nodes by number; distances as a whole."""
        a, b = ({n.id: n for n in t.numa_nodes} for t in (self.a, self.b))
        if bool(a) != bool(b):
            self.unknown.append("host NUMA nodes")
            return
        for node in sorted({*a, *b}):
            self._node(f"numa:{node}", a.get(node), b.get(node))
        tables = (t.numa_distances if t.numa_distances.nodes else None for t in (self.a, self.b))
        self.compare(
            SHAPE,
            "numa_distances",
            "host",
            *(t and [list(t.nodes), *map(list, t.matrix)] for t in tables),
        )

    def _node(self, name: str, a: NumaNode | None, b: NumaNode | None) -> None:
        if a is None or b is None:
            code = "numa_node_added" if a is None else "numa_node_missing"
            kind = (b or a).kind  # type: ignore[union-attr]
            text = f"NUMA node ({kind}) is {'new' if a is None else 'gone'}"
            self.add(SHAPE, code, name, a and str(a.kind), b and str(b.kind), text)
            return
        self.compare(SHAPE, "numa_kind", name, str(a.kind), str(b.kind), what="kind")
        self.compare(CONFIG, "numa_cpus", name, a.cpus or None, b.cpus or None, what="CPUs")
        self.compare(CONFIG, "numa_allowed", name, a.allowed, b.allowed, what="allowed")
        sizes = a.memory_bytes, b.memory_bytes
        if None in sizes or abs(sizes[0] - sizes[1]) > _SAME_MEMORY * max(sizes):  # type: ignore[operator, type-var]
            self.compare(SHAPE, "numa_memory", name, *sizes, show=format_bytes, what="memory")

    def gpus(self) -> None:
        gpus = [[g for g in t.gpus if not g.is_slice] for t in (self.a, self.b)]
        uuids = [{g.uuid for g in side if g.uuid} for side in gpus]
        same_host = bool(uuids[0] & uuids[1])
        for a, b in _pairs(
            gpus[0], gpus[1], lambda g: g.uuid, lambda g: g.pci_address, lambda g: g.name
        ):
            if a is None or b is None:
                self._one_side("gpu", a or b, a is None, a.model if a else b.model if b else None)
                continue
            self.gpu_names[a.name] = b.name
            if same_host and a.uuid and b.uuid and a.uuid != b.uuid:
                self.add(
                    CONFIG, "gpu_replaced", a.name, a.uuid, b.uuid, "another GPU is in its place"
                )
            self._gpu(a, b)
        slices = [
            Counter(g.mig.profile or "?" for g in t.gpus if g.mig and g.is_slice)
            for t in (self.a, self.b)
        ]
        if slices[0] != slices[1]:
            text = f"MIG slices: {_counted(slices[0])}, now {_counted(slices[1])}"
            self.add(CONFIG, "mig_slices", "host", dict(slices[0]), dict(slices[1]), text)

    def _gpu(self, a: Gpu, b: Gpu) -> None:
        name = a.name
        self.compare(SHAPE, "gpu_model", name, a.model, b.model, what="model")
        self.compare(
            SHAPE,
            "gpu_memory",
            name,
            a.memory_bytes,
            b.memory_bytes,
            show=format_bytes,
            what="memory",
        )
        self._moved("gpu_moved", name, a.cpu_node.value, b.cpu_node.value)
        self.compare(
            SHAPE, "gpu_own_numa_node", name, a.own_numa_node, b.own_numa_node, what="own NUMA node"
        )
        modes = [(g.mig.mode if g.mig else None) or "disabled" for g in (a, b)]
        self.compare(CONFIG, "mig_mode", name, *modes, what="MIG")
        states = [None if g.state == "unknown" else g.state for g in (a, b)]
        self.compare(HEALTH, "gpu_state", name, *states, what="state")
        self.compare(HEALTH, "fabric", name, a.fabric, b.fabric, what="NVLink fabric")
        self._link(name, a.pci_address, b.pci_address, may_idle=True)
        self._nvlinks(a, b)

    def _nvlinks(self, a: Gpu, b: Gpu) -> None:
        if a.nvlink is None or b.nvlink is None:
            if a.nvlink is not b.nvlink:
                self.unknown.append(f"{a.name} NVLinks")
            return
        self.compare(SHAPE, "nvlinks_expected", a.name, a.nvlink.expected, b.nvlink.expected)
        if a.nvlink.active != b.nvlink.active:
            was, now = a.nvlink.active, b.nvlink.active
            code = "nvlink_lost" if now < was else "nvlink_back"
            down = [str(n.index) for n in b.nvlink.links if n.state != "active"]
            which = f" (not active: {', '.join(down)})" if down else ""
            self.add(HEALTH, code, a.name, was, now, f"active NVLinks: {was}, now {now}{which}")

    def nics(self) -> None:
        for a, b in _pairs(
            list(self.a.nics),
            list(self.b.nics),
            lambda n: n.pci_address and f"{n.pci_address} {n.name}",
            lambda n: n.name,
        ):
            if a is None or b is None:
                self._one_side("nic", a or b, a is None, None)
                continue
            name = f"nic:{a.name}"
            self.nic_names[name] = f"nic:{b.name}"
            self._moved("nic_moved", name, a.numa_node.value, b.numa_node.value)
            self.compare(CONFIG, "link_layer", name, a.link_layer, b.link_layer, what="link layer")
            self.compare(HEALTH, "nic_state", name, a.state, b.state, what="state")
            self.compare(
                HEALTH,
                "nic_rate",
                name,
                a.rate_bytes_per_second,
                b.rate_bytes_per_second,
                show=_rate,
                what="rate",
            )
            self._link(name, a.pci_address, b.pci_address)

    def _moved(self, code: str, name: str, a: int | None, b: int | None) -> None:
        self.compare(SHAPE, code, name, a, b, what="NUMA node")

    def _one_side(self, kind: str, item: Gpu | Nic | None, new: bool, model: str | None) -> None:
        assert item is not None
        name = item.name if isinstance(item, Gpu) else f"nic:{item.name}"
        where = f" at {item.pci_address}" if item.pci_address else ""
        text = f"{model or kind.upper()}{where} is {'new' if new else 'gone'}"
        ends = [None, item.pci_address or name]
        if not new:
            ends.reverse()
        code = f"{kind}_{'added' if new else 'missing'}"
        self.add(SHAPE, code, name, ends[0], ends[1], text)

    def _link(self, name: str, a: str | None, b: str | None, *, may_idle: bool = False) -> None:
        """The PCIe link of a device and of each switch above it that both sides have."""
        devices = [{d.address: d for d in t.pci} for t in (self.a, self.b)]
        pair = devices[0].get(a or ""), devices[1].get(b or "")
        if pair[0] is None or pair[1] is None:
            if pair[0] is not pair[1]:
                self.unknown.append(f"{name} PCIe link")
            return
        self._one_link(name, pair[0].link, pair[1].link, may_idle)

    def _one_link(self, name: str, a: PciLink | None, b: PciLink | None, may_idle: bool) -> None:
        if a is None or b is None:
            if a is not b:
                self.unknown.append(f"{name} PCIe link")
            return
        best = [
            v and round(v / 1e6)
            for v in (a.effective_max_bytes_per_second, b.effective_max_bytes_per_second)
        ]
        self.compare(
            SHAPE,
            "link_maximum",
            name,
            *best,
            show=lambda v: format_rate(v * 1e6),
            what="what its PCIe link could do",
        )
        if a.width is not None and b.width is not None and a.width != b.width:
            code = "link_narrower" if b.width < a.width else "link_wider"
            self.add(HEALTH, code, name, a.width, b.width, f"PCIe link: x{a.width}, now x{b.width}")
        speeds = a.speed_gts, b.speed_gts
        if None in speeds or (may_idle and _IDLE_GTS in speeds):
            return
        if a.speed_gts != b.speed_gts:
            code = "link_slower" if (b.speed_gts or 0) < (a.speed_gts or 0) else "link_faster"
            text = f"PCIe link: {a.speed_gts:g} GT/s, now {b.speed_gts:g} GT/s"
            self.add(HEALTH, code, name, a.speed_gts, b.speed_gts, text)

    def others(self) -> None:
        """Switches' links, NVMe controllers, NVSwitches, and how ports are set up."""
        a, b = self._bridges(self.a), self._bridges(self.b)
        for address in sorted(a.keys() & b.keys()):
            self._one_link(f"switch:{address}", a[address].link, b[address].link, may_idle=True)
        self.compare(SHAPE, "switches", "host", len(a), len(b), what="PCIe switches")
        for side, code in (("nvme", "nvme"), ("nvswitches", "nvswitches")):
            counts = [len(getattr(t, side)) for t in (self.a, self.b)]
            self.compare(
                SHAPE, code, "host", *counts, what="NVMe drives" if code == "nvme" else "NVSwitches"
            )
        acs = [Counter(d.acs for d in t.pci if d.acs != "unknown") for t in (self.a, self.b)]
        if acs[0] and acs[1] and acs[0] != acs[1]:
            text = f"ACS of ports: {_counted(acs[0])}, now {_counted(acs[1])}"
            self.add(CONFIG, "acs", "host", dict(acs[0]), dict(acs[1]), text)

    @staticmethod
    def _bridges(topology: Topology) -> dict[str, PciDevice]:
        return {d.address: d for d in topology.pci if d.role == "upstream"}

    def paths(self) -> None:
        """Classes of paths, many with the same change told as one; peer access pair by pair."""
        names = self.gpu_names | self.nic_names
        theirs = {(p.a, p.b): p for p in self.b.paths}
        theirs |= {(p.b, p.a): p for p in self.b.paths}
        moved: dict[tuple[str, str], list[str]] = {}
        for mine in self.a.paths:
            other = theirs.get((names.get(mine.a, ""), names.get(mine.b, mine.b)))
            if other is None:
                continue
            pair = f"{mine.a}-{mine.b}"
            if mine.smi_pcie and other.smi_pcie and mine.smi_pcie != other.smi_pcie:
                moved.setdefault((mine.smi_pcie, other.smi_pcie), []).append(pair)
            if mine.p2p and other.p2p and mine.p2p != other.p2p:
                ends = plain(mine.p2p), plain(other.p2p)
                text = f"peer access: {_access(mine.p2p)}; now {_access(other.p2p)}"
                self.add(HEALTH, "p2p", pair, *ends, text)
        for (was, now), pairs in moved.items():
            text = (
                f"path class: {was}, now {now}{'' if len(pairs) == 1 else f' ({len(pairs)} pairs)'}"
            )
            self.add(SHAPE, "path_class", _named(pairs), was, now, text)


def _pairs(
    a: Sequence[Item], b: Sequence[Item], *keys: Callable[[Item], str | None]
) -> Iterator[tuple[Item | None, Item | None]]:
    """Items of both sides that share a key, by the first key first; then what is left over."""
    partner: dict[int, Item] = {}
    left, right = list(range(len(a))), list(b)
    for key in keys:
        known = {key(item): item for item in right if key(item)}
        for index in list(left):
            found = known.pop(key(a[index]), None) if key(a[index]) else None
            if found is not None:
                partner[index] = found
                left.remove(index)
                right = [item for item in right if item is not found]
    for index, item in enumerate(a):
        yield item, partner.get(index)
    for item in right:
        yield None, item


def _named(pairs: Sequence[str]) -> str:
    more = len(pairs) - _MOST_NAMED
    return ", ".join(pairs[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _counted(found: Counter[str]) -> str:
    return ", ".join(f"{n} x {name}" for name, n in sorted(found.items())) or "none"


def _access(p2p: P2p) -> str:
    return f"read {p2p.read}, write {p2p.write}"


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second * 8 / 1e9:g} Gb/s"
