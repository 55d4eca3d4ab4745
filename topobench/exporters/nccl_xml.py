"""
NCCL's topology file, for NCCL_TOPO_FILE.

NCCL's reader knows no declaration and no escapes, and takes 256 elements at most. It has one
element for a PCIe switch, the upstream port, and none for root ports. What is left out here it
finds out itself as it loads the file on that host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from topobench.exporters.exported import Exported
from topobench.topology import (
    Gpu,
    Nic,
    NvLinks,
    PciDevice,
    PciLink,
    Topology,
    parse_cpu_list,
)

MOST_ELEMENTS = 256
"""NCCL refuses a file with more."""
_MANY_ELEMENTS = 200
_ARCHITECTURES = {"aarch64": "arm64", "ppc64le": "ppc64"}
_CLASSES = {"nvswitch": "0x068000", "npu": "0x068001", "gpu": "0x030200"}
_UNSEEN = "fffffff:ff:ff.0"
"""NCCL's name of an NVSwitch that a guest does not see."""
_OWN_NUMBERS = "import:nccl"
"""Root of topologies whose CPU numbers are NCCL's already."""
_UNFIT = re.compile(r"[^ -~]|[<>&\"']")


def export(topology: Topology) -> Exported:
    """The file, with a warning where it comes near NCCL's limit of elements."""
    writer = _Writer(topology)
    lines = ['<system version="1">', *writer.cpus(), "</system>"]
    count = sum(
        line.lstrip().startswith("<") and not line.lstrip().startswith("</") for line in lines
    )
    warnings = []
    if count > _MANY_ELEMENTS:
        verdict = "refuses this file" if count > MOST_ELEMENTS else "has little room left"
        warnings.append(f"{count} elements; NCCL takes {MOST_ELEMENTS} at most and {verdict}")
    if any(g.c2c and not g.c2c_bytes_per_second for g in topology.gpus):
        warnings.append("the speed of chip links is not known, so NCCL has to ask the driver")
    return Exported("\n".join(lines) + "\n", tuple(warnings))


@dataclass(slots=True)
class _Writer:
    topology: Topology
    gpus: dict[str, Gpu] = field(default_factory=dict)
    nics: dict[str | None, list[tuple[int, Nic]]] = field(default_factory=dict)
    children: dict[str | None, list[PciDevice]] = field(default_factory=dict)
    devices: dict[str, PciDevice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gpus = {
            g.pci_address: g for g in self.topology.gpus if g.pci_address and not g.is_slice
        }
        for index, nic in enumerate(self.topology.nics):
            self.nics.setdefault(nic.pci_address, []).append((index, nic))
        self.devices = {d.address: d for d in self.topology.pci}
        kept = self._kept()
        for address in self.devices:
            if address in kept:
                self.children.setdefault(self._above(address, kept), []).append(
                    self.devices[address]
                )

    def _kept(self) -> set[str]:
        """Devices NCCL looks for, and the switches above them."""
        kept: set[str] = set()
        for address, device in self.devices.items():
            unclassed = device.pci_class == "0x000000" and device.role == "endpoint"
            switch = address in self.topology.nvswitches
            if (
                address in self.gpus
                or address in self.nics
                or unclassed
                or switch
                or _is_nic(device)
            ):
                kept.add(address)
                kept.update(a for a in self._chain(address) if self._is_switch(a))
        return kept

    def _is_switch(self, address: str) -> bool:
        return self.devices[address].role == "upstream"

    def _chain(self, address: str) -> Iterator[str]:
        """Addresses above a device, nearest first."""
        seen = {address}
        above = self.devices[address].parent
        while above in self.devices and above not in seen:
            seen.add(above)
            yield above
            above = self.devices[above].parent

    def _above(self, address: str, kept: set[str]) -> str | None:
        return next((a for a in self._chain(address) if a in kept), None)

    def cpus(self) -> Iterator[str]:
        """One element for each NUMA node with CPUs or devices; -1 for devices of none."""
        roots: dict[int | None, list[PciDevice]] = {}
        for device in self.children.get(None, []):
            roots.setdefault(self._node(device), []).append(device)
        loose: dict[int | None, list[tuple[int, Nic]]] = {}
        for index, nic in self.nics.get(None, []):
            loose.setdefault(nic.numa_node.value, []).append((index, nic))
        cpus = {n.id: n.cpus for n in self.topology.cpu_nodes}
        for node in dict.fromkeys([*roots, *cpus, *loose]):
            yield f"  <cpu {self._cpu_attributes(node, cpus.get(-1 if node is None else node))}>"
            for device in roots.get(node, []):
                yield from self._pci(device, 2)
            yield from _nets(loose.get(node, []), 2)
            yield "  </cpu>"

    def _node(self, top: PciDevice) -> int | None:
        """NUMA node of what hangs off the root: its own, else a GPU's below that knows better."""
        if top.numa_node.value is not None:
            return top.numa_node.value
        below = [top.address]
        for address in below:
            gpu = self.gpus.get(address)
            if gpu and gpu.cpu_node.value is not None:
                return gpu.cpu_node.value
            below += [d.address for d in self.children.get(address, [])]
        return None

    def _cpu_attributes(self, node: int | None, cpus: str | None) -> str:
        machine, told = self.topology.machine, self.topology.cpus
        found = {"numaid": "-1" if node is None else str(node)}
        if cpus:
            found["affinity"] = cpu_mask(parse_cpu_list(cpus))
        if machine.arch:
            found["arch"] = _ARCHITECTURES.get(machine.arch, machine.arch)
        if told.vendor:
            found["vendor"] = told.vendor
        if told.family is not None and told.model_number is not None:
            family = told.family if self.topology.root == _OWN_NUMBERS else _family(told.family)
            found |= {"familyid": str(family), "modelid": str(told.model_number)}
        return _attributes(found)

    def _pci(self, device: PciDevice, depth: int) -> Iterator[str]:
        indent = "  " * depth
        inside = [
            *self._gpu(device.address, depth + 1),
            *_nets(self.nics.get(device.address, []), depth + 1),
            *(
                line
                for d in self.children.get(device.address, [])
                for line in self._pci(d, depth + 1)
            ),
        ]
        start = f"{indent}<pci {_attributes(self._pci_attributes(device))}"
        if not inside:
            yield f"{start}/>"
            return
        yield f"{start}>"
        yield from inside
        yield f"{indent}</pci>"

    def _pci_attributes(self, device: PciDevice) -> dict[str, str]:
        found = {"busid": device.address}
        if device.pci_class != "0x000000":
            found["class"] = device.pci_class
        if device.vendor != "0x0000":
            found |= {"vendor": device.vendor, "device": device.device}
        for name in ("subsystem_vendor", "subsystem_device"):
            if value := getattr(device, name):
                found[name] = value
        speed, width = self._best(device)
        if speed is not None or width is not None:
            found["link_speed"] = f"{speed:.1f} GT/s PCIe" if speed else ""
            found["link_width"] = str(width or 0)
        return found

    def _best(self, device: PciDevice) -> tuple[float | None, int | None]:
        """Speed and width the link could reach: of its slower end."""
        link = device.link or PciLink()
        above = self.devices.get(device.parent or "")
        other = above.link if above and above.role in ("root_port", "downstream") else None
        speeds = [link.max_speed_gts, other.max_speed_gts if other else None]
        widths = [link.max_width, other.max_width if other else None]
        speed = min((s for s in speeds if s and s >= (link.speed_gts or 0)), default=link.speed_gts)
        width = min((w for w in widths if w and w >= (link.width or 0)), default=link.width)
        return speed, width

    def _gpu(self, address: str, depth: int) -> Iterator[str]:
        gpu = self.gpus.get(address)
        if gpu is None or gpu.index is None:
            return
        found = {"dev": str(gpu.index)}
        if gpu.compute_capability:
            found["sm"] = gpu.compute_capability.replace(".", "")
        found["rank"] = str(gpu.index)
        indent, links = "  " * depth, [f"nvlink {_attributes(n)}" for n in _links(gpu.nvlink)]
        if gpu.c2c_links and gpu.c2c_bytes_per_second:
            bandwidth = round(gpu.c2c_bytes_per_second / gpu.c2c_links / 1e6)
            links.append(f'c2c bw="{bandwidth}" count="{gpu.c2c_links}"')
        if not links:
            yield f"{indent}<gpu {_attributes(found)}/>"
            return
        yield f"{indent}<gpu {_attributes(found)}>"
        yield from (f"{indent}  <{link}/>" for link in links)
        yield f"{indent}</gpu>"


def _family(family: int) -> int:
    """
    The family as NCCL counts it, which puts the extended part four bits too far left.

    So families above 15, which AMD has, are other numbers than in /proc/cpuinfo: 25 is 175.
    """
    return family if family < 16 else 15 + (family - 15 << 4)


def _is_nic(device: PciDevice) -> bool:
    return device.pci_class.startswith("0x02") and device.role != "vf"


def _links(nvlinks: NvLinks | None) -> Iterator[dict[str, str]]:
    """Active NVLinks, counted by their other end."""
    active = (link for link in (nvlinks.links if nvlinks else ()) if link.state == "active")
    ends = Counter((link.remote, link.remote_kind) for link in active)
    for (remote, kind), count in ends.items():
        tclass = _CLASSES.get(kind or "", "0x000000")
        yield {"target": remote or _UNSEEN, "count": str(count), "tclass": tclass}


def _nets(nics: list[tuple[int, Nic]], depth: int) -> Iterator[str]:
    if not nics:
        return
    indent = "  " * depth
    yield f"{indent}<nic>"
    for index, nic in nics:
        name, colon, port = nic.name.partition(":")
        rate = nic.rate_bytes_per_second
        found = {"name": name, "dev": str(index)}
        if rate:
            found["speed"] = str(round(rate / 125e3))
        if colon:
            found["port"] = port
        if nic.gpu_direct is not None:
            found["gdr"] = str(int(nic.gpu_direct))
        yield f"{indent}  <net {_attributes(found)}/>"
    yield f"{indent}</nic>"


def _attributes(values: dict[str, str]) -> str:
    """NCCL knows no escapes, so what would need one is dropped."""
    return " ".join(f'{k}="{_UNFIT.sub("", v)[:200]}"' for k, v in values.items())


def cpu_mask(cpus: tuple[int, ...]) -> str:
    """A kernel mask: comma groups of 32 bits, highest first."""
    bits = sum(1 << cpu for cpu in set(cpus))
    groups = max(1, -(-bits.bit_length() // 32))
    return ",".join(f"{bits >> 32 * i & 0xFFFFFFFF:08x}" for i in reversed(range(groups)))
