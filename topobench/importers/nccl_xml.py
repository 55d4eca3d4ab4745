"""
NCCL's topology files (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE).

NCCL keeps one element for a PCIe switch, its upstream port, and none for root ports. Its
``cpu`` elements are NUMA nodes. Speeds and widths are the largest of a link, not the current.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from topobench.errors import ImportFailed
from topobench.importers.document import clean
from topobench.importers.topology_text import (
    MOST_NODES,
    MOST_NVLINKS,
    UNKNOWN_CLASS,
    UNKNOWN_ID,
    hexadecimal,
    imported,
    number,
)
from topobench.importers.xml_text import Element, parse_xml
from topobench.pcie import (
    link_bytes_per_second,
    normalise_address,
    parse_cpu_mask,
    parse_speed,
    parse_width,
)
from topobench.topology import (
    Cpus,
    Gpu,
    Known,
    Machine,
    Nic,
    NodeKind,
    NumaNode,
    NvLink,
    NvLinks,
    PciDevice,
    PciLink,
    Topology,
    TopologyWarning,
    format_cpu_list,
    parse_cpu_list,
)

SOURCE = "nccl"
ARCHITECTURES = {"arm64": "aarch64", "ppc64": "ppc64le"}
"""NCCL's names of what kernels call otherwise."""
_REMOTE_KINDS = {"0x068000": "nvswitch", "0x068001": "npu"}


def parse(text: str) -> Topology:
    """
    The topology of an NCCL topology file, without paths.

    Raises:
        ImportFailed: It is no such file, or contradicts itself.
    """
    if "<graphs" in text[:65536] and "<system" not in text:
        raise ImportFailed(
            "this is a file of NCCL's rings (NCCL_GRAPH_FILE), not of a topology; "
            "dump one with NCCL_TOPO_DUMP_FILE"
        )
    root = parse_xml(text, "system")
    if root.get("version") != "1":
        raise ImportFailed(f"version {clean(root.get('version'))!r} of the file, expected 1")
    reader = _Reader()
    for element in root.all("cpu"):
        reader.cpu(element)
    if not reader.cpus:
        raise ImportFailed("it holds no <cpu> element")
    return reader.topology()


@dataclass(slots=True)
class _Reader:
    cpus: list[Element] = field(default_factory=list)
    nodes: dict[int, NumaNode] = field(default_factory=dict)
    pci: dict[str, PciDevice] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)
    nics: list[tuple[int, Nic]] = field(default_factory=list)
    warnings: list[TopologyWarning] = field(default_factory=list)

    def topology(self) -> Topology:
        first = self.cpus[0]
        arch = clean(first.get("arch"))
        known = bool(self.nodes) and all(n.cpus for n in self.nodes.values())
        online = {cpu for n in self.nodes.values() for cpu in parse_cpu_list(n.cpus)}
        order = sorted(self.gpus, key=lambda g: (g.index is None, g.index or 0))
        switches = (a for a, d in self.pci.items() if d.pci_class.startswith("0x0680"))
        return imported(
            SOURCE,
            machine=Machine(arch=ARCHITECTURES.get(arch, arch) or None),
            cpus=Cpus(
                online=format_cpu_list(online) if known else None,
                vendor=clean(first.get("vendor")) or None,
                family=_small_number(first.get("familyid")),
                model_number=_small_number(first.get("modelid")),
            ),
            numa_nodes=tuple(self.nodes[i] for i in sorted(self.nodes)),
            pci=tuple(self.pci.values()),
            gpus=tuple(order),
            nics=tuple(nic for _, nic in sorted(self.nics, key=lambda found: found[0])),
            nvswitches=tuple(switches),
            warnings=tuple(self.warnings),
        )

    def cpu(self, element: Element) -> None:
        """A NUMA node and what hangs off it; number -1 is NCCL's "unknown"."""
        self.cpus.append(element)
        text = element.get("numaid")
        node = None if text == "-1" else number(text, "numaid of a <cpu>", MOST_NODES)
        if node is not None:
            if node in self.nodes:
                raise ImportFailed(f"two <cpu> elements have the numaid {node}")
            cpus = format_cpu_list(_mask(element.get("affinity"), node))
            self._check_overlap(node, cpus)
            kind = NodeKind.CPU_MEMORY
            self.nodes[node] = NumaNode(node, kind, cpus, memory_bytes=None, allowed=True)
        near = Known(None, None, "the file says -1") if node is None else Known(node, SOURCE)
        self._inside(element, near, None)

    def _check_overlap(self, node: int, cpus: str) -> None:
        if cpus and any(cpus == other.cpus for other in self.nodes.values()):
            text = f"the file gives the CPUs {cpus} to more than one NUMA node"
            self.warnings.append(TopologyWarning("numa_overlap", f"numa:{node}", text))

    def _inside(self, element: Element, near: Known, parent: str | None) -> None:
        for child in element.children:
            if child.tag == "pci":
                self._pci(child, near, parent)
            elif child.tag == "nic":
                self._nic(child, near, parent)
            elif child.tag == "gpu":
                if parent is None:
                    raise ImportFailed("a <gpu> stands outside any <pci>")
                self._gpu(child, near, parent)

    def _pci(self, element: Element, near: Known, parent: str | None) -> None:
        address = _address(element.get("busid"))
        if address is None:
            raise ImportFailed(f"busid {clean(element.get('busid'))!r} is no PCI address")
        if address in self.pci:
            raise ImportFailed(f"the busid {address} stands on two <pci> elements")
        bridge = any(c.tag == "pci" for c in element.children)
        pci_class = hexadecimal(element.get("class"), 6) or UNKNOWN_CLASS
        self.pci[address] = PciDevice(
            address=address,
            pci_class=pci_class,
            vendor=hexadecimal(element.get("vendor"), 4) or UNKNOWN_ID,
            device=hexadecimal(element.get("device"), 4) or UNKNOWN_ID,
            parent=parent,
            role="upstream" if bridge or pci_class.startswith("0x0604") else "endpoint",
            numa_node=near,
            link=_link(element),
            subsystem_vendor=hexadecimal(element.get("subsystem_vendor"), 4) or None,
            subsystem_device=hexadecimal(element.get("subsystem_device"), 4) or None,
        )
        self._inside(element, near, address)
        if pci_class[:6] in ("0x0300", "0x0302") and not any(element.all("gpu")):
            self.gpus.append(_gpu(address, None, near, self._cpus(near)))

    def _gpu(self, element: Element, near: Known, address: str) -> None:
        index = number(element.get("dev"), "dev of a <gpu>", 1 << 16)
        if any(g.index == index for g in self.gpus):
            raise ImportFailed(f"two <gpu> elements have the dev {index}")
        if any(g.pci_address == address for g in self.gpus):
            raise ImportFailed(f"two <gpu> elements stand in the <pci> {address}")
        gpu = _gpu(address, element, near, self._cpus(near))
        self.gpus.append(gpu)
        links = gpu.nvlink.links if gpu.nvlink else ()
        if any(link.remote == address for link in links):
            text = "its NVLinks lead to itself in the file, so their other end is not known"
            self.warnings.append(TopologyWarning("nvlink_self", gpu.name, text))

    def _nic(self, element: Element, near: Known, parent: str | None) -> None:
        for net in element.all("net"):
            name, port = clean(net.get("name")), net.get("port")
            mbps = net.get("speed")
            rate = int(mbps) * 125e3 if re.fullmatch(r"[0-9]{1,9}", mbps) else None
            taken = {nic.name for _, nic in self.nics}
            order = net.get("dev")
            place = int(order) if re.fullmatch(r"[0-9]{1,6}", order) else len(taken)
            if not name or name in taken:  # ports of one device share its name
                name = f"{name or 'net'}:{clean(port)}" if port else f"{name}:{len(taken)}"
            if name in taken:
                raise ImportFailed(f"two <net> elements have the name and port {name}")
            direct = {"0": False, "1": True}.get(net.get("gdr"))
            nic = Nic(name, parent, near, rate or None, gpu_direct=direct)
            self.nics.append((place, nic))

    def _cpus(self, near: Known) -> str | None:
        node = self.nodes.get(-1 if near.value is None else near.value)
        return node.cpus or None if node else None


def _address(text: str) -> str | None:
    """A PCI address; one with too many digits as NCCL reads it, which joins them all."""
    match = re.fullmatch(r"([0-9a-f]{4}):([0-9a-f]{3}):([0-9a-f]{2})\.([0-7])", text.lower())
    if match is None:
        return normalise_address(text)
    joined = "".join(match.groups())
    return normalise_address(f"{joined[:-5]}:{joined[-5:-3]}:{joined[-3:-1]}.{joined[-1]}")


def _mask(text: str, node: int) -> tuple[int, ...]:
    try:
        if len(text) > 1 << 14:
            raise ValueError(text[:80])
        return parse_cpu_mask(text) if text else ()
    except ValueError as error:
        raise ImportFailed(f"affinity of numaid {node} is no mask: {clean(text)[:80]}") from error


def _small_number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text) else None


def _link(element: Element) -> PciLink | None:
    speed = parse_speed(element.get("link_speed"))
    width = parse_width(element.get("link_width"))
    if speed is None and width is None:
        return None
    best = link_bytes_per_second(speed, width)
    return PciLink(max_speed_gts=speed, max_width=width, effective_max_bytes_per_second=best)


def _gpu(address: str, element: Element | None, near: Known, cpus: str | None) -> Gpu:
    sm = element.get("sm") if element else ""
    capable = re.fullmatch(r"[0-9]{2,3}", sm) is not None
    return Gpu(
        index=None if element is None else int(element.get("dev")),
        uuid=None,
        pci_address=address,
        model=None,
        memory_bytes=None,
        cpu_node=near,
        cpus=cpus,
        compute_capability=f"{int(sm) // 10}.{int(sm) % 10}" if capable else None,
        state="unknown",
        nvlink=None if element is None else _nvlinks(element),
        **_chip_links(element),
    )


def _chip_links(gpu: Element | None) -> dict[str, Any]:
    """Links between a GPU and its CPU: how many, and all their bandwidth (MB/s of each here)."""
    found = next(iter(gpu.all("c2c")), None) if gpu is not None else None
    if found is None:
        return {}
    count, rate = (re.fullmatch(r"[0-9]{1,7}", found.get(name)) for name in ("count", "bw"))
    return {
        "c2c": True,
        "c2c_links": int(count[0]) if count else None,
        "c2c_bytes_per_second": int(count[0]) * int(rate[0]) * 1e6 if count and rate else None,
    }


def _remote(text: str) -> str | None:
    """The other end of an NVLink; a guest's unseen NVSwitch is fffffff:ff:ff.0, which is none."""
    address = normalise_address(text)
    return None if address is None or address.rpartition(":")[2] > "1f.7" else address


def _nvlinks(gpu: Element) -> NvLinks | None:
    links: list[NvLink] = []
    for element in gpu.all("nvlink"):
        count = number(element.get("count"), "count of an <nvlink>", MOST_NVLINKS)
        tclass = hexadecimal(element.get("tclass"), 6) or UNKNOWN_CLASS
        kind = "gpu" if tclass.startswith("0x03") else _REMOTE_KINDS.get(tclass, "unknown")
        remote = _remote(element.get("target"))
        for _ in range(count):
            links.append(NvLink(len(links), "active", kind, remote))
    if len(links) > MOST_NVLINKS:
        raise ImportFailed(f"a <gpu> has {len(links)} NVLinks, at most {MOST_NVLINKS} can be true")
    if not links:
        return None
    return NvLinks(
        len(links), expected=None, version=None, bytes_per_second=None, links=tuple(links)
    )
