r"""
The matrix as ``nvidia-smi topo -m`` prints it, to lay beside it.

Same columns in the same order and spelling, tabs between them, the same empty cell before the
last; then two more of ours: the PCIe link as it runs, and the NVLinks that are up.
"""

from __future__ import annotations

from collections.abc import Iterator

from topobench.exporters.exported import Exported, printable
from topobench.links import Shortfall, shortfalls
from topobench.topology import Gpu, Nic, PciDevice, PciLink, Topology

_UNKNOWN = "?"
_LEGEND = {
    "X": "the device itself",
    "SYS": "between NUMA nodes",
    "NODE": "between host bridges of one NUMA node",
    "PHB": "through one host bridge",
    "PXB": "through several PCIe bridges, no host bridge",
    "PIX": "through at most one PCIe bridge",
    "NV#": "through # NVLinks",
    _UNKNOWN: "not known",
}


def export(topology: Topology) -> Exported:
    """The matrix and its legends."""
    gpus = {f"GPU{i}": gpu for i, gpu in _numbered(topology)}
    left_out = sum(not g.is_slice for g in topology.gpus) - len(gpus)
    warnings = [f"{left_out} GPUs without a number are left out"] if left_out else []
    if not gpus:
        return Exported("No GPU, so no matrix.\n", tuple(warnings))
    nics = {f"NIC{i}": nic for i, nic in enumerate(topology.nics)}
    table = _Table(topology, gpus, nics)
    lines = [*table.lines(), "", "Legend:", ""]
    lines += [f"  {name:<4} = {meaning}" for name, meaning in _LEGEND.items()]
    if nics:
        lines += ["", "NIC Legend:", ""]
        lines += [f"  {name}: {printable(nic.name)}" for name, nic in nics.items()]
    return Exported("\n".join(lines) + "\n", tuple(warnings))


def _numbered(topology: Topology) -> list[tuple[int, Gpu]]:
    """GPUs by NVML's number; where no GPU has one, in their order."""
    whole = [g for g in topology.gpus if not g.is_slice]
    if all(g.index is None for g in whole):
        return list(enumerate(whole))
    return sorted((g.index, g) for g in whole if g.index is not None)


class _Table:
    """Rows of path classes."""

    def __init__(self, topology: Topology, gpus: dict[str, Gpu], nics: dict[str, Nic]) -> None:
        self.gpus = gpus
        self.devices: dict[str, PciDevice] = {d.address: d for d in topology.pci}
        self.short = shortfalls(topology.pci, topology.gpus)
        self.classes = {(p.a, p.b): p.smi for p in topology.paths}
        self.names = {label: gpu.name for label, gpu in gpus.items()}
        self.names |= {label: f"nic:{nic.name}" for label, nic in nics.items()}

    def lines(self) -> Iterator[str]:
        trailing = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID", "PCIe Link", "NVLinks")
        yield "\t" + "\t".join([*self.names, *trailing])
        for a in self.names:
            row = [" X " if a == b else self._class(a, b) for b in self.names]
            more = [self._near(self.gpus[a])] if a in self.gpus else []
            yield "\t".join([a, *row, *more])

    def _class(self, a: str, b: str) -> str:
        ends = self.names[a], self.names[b]
        told = self.classes.get(ends) or self.classes.get(ends[::-1])
        return told or _UNKNOWN

    def _near(self, gpu: Gpu) -> str:
        address = gpu.pci_address or ""
        device = self.devices.get(address)
        node, own = gpu.cpu_node.value, gpu.own_numa_node
        cells = [
            gpu.cpus or "N/A",
            "N/A" if node is None else str(node),
            "",
            "N/A" if own is None else str(own),
            link_text(device.link if device else None, self.short.get(address)) or "N/A",
            "N/A" if gpu.nvlink is None else _of(gpu.nvlink.active, gpu.nvlink.expected),
        ]
        return "\t".join(cells)


def link_text(link: PciLink | None, short: Shortfall | None) -> str | None:
    """``32 GT/s x16``; where both ends can do more, ``16 GT/s x8 of 32 GT/s x16``."""
    if link is None:
        return None
    now = _lanes(link.speed_gts, link.width)
    if now is None:
        best, rate = _lanes(link.max_speed_gts, link.max_width), link.bytes_per_second
        return f"{rate / 1e9:.1f} GB/s" if rate else f"up to {best}" if best else None
    if short is None:
        return now
    return f"{now} of {_lanes(short.fastest or link.speed_gts, short.widest or link.width)}"


def _lanes(speed: float | None, width: int | None) -> str | None:
    return f"{speed:g} GT/s x{width}" if speed and width else None


def _of(active: int, expected: int | None) -> str:
    return f"{active}/{_UNKNOWN if expected is None else expected}"
