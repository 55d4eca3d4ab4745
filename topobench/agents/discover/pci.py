"""PCI functions: parents, roles, links, NUMA nodes, ACS."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from topobench.agents.discover.numa import Numa
from topobench.agents.discover.numa_file import NumaFile
from topobench.agents.discover.pci_config import read_config
from topobench.agents.discover.tree import Tree
from topobench.pcie import (
    link_bytes_per_second,
    normalise_address,
    parse_speed,
    parse_width,
)
from topobench.topology import Known, PciDevice, PciLink

_DEVICES = "sys/bus/pci/devices"
_DRIVEN = "proc/driver/nvidia/gpus"
NVIDIA = "0x10de"
_MELLANOX = "0x15b3"
_IBM = "0x1014"
_ROOT_BUS = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_PORT_ROLES = {4: "root_port", 5: "upstream", 6: "downstream"}


@dataclass(frozen=True, slots=True)
class Function:
    """
    A PCI function as sysfs shows it, before the ends of its link are compared.

    Args:
        folder: Its folder below the root.
        bridges: Addresses of the bridges above it, root first.
        host_bridge: Name of its root bus ("pci0000:00"), if the capture kept it.
        driven: Whether NVIDIA's kernel driver lists it as a GPU.
    """

    address: str
    folder: str
    bridges: tuple[str, ...]
    host_bridge: str | None
    pci_class: str
    vendor: str
    device: str
    numa_node: int | None
    local_cpus: tuple[int, ...] | None
    link: PciLink | None
    driven: bool = False

    @property
    def parent(self) -> str | None:
        """Address of the bridge above it; None on a root bus."""
        return self.bridges[-1] if self.bridges else None

    @property
    def is_bridge(self) -> bool:
        """A PCI-to-PCI bridge, which PCIe ports are."""
        return self.pci_class.startswith("0x0604")

    @property
    def is_gpu(self) -> bool:
        """An NVIDIA display or 3D controller, or what the driver calls a GPU."""
        display = self.pci_class[:6] in ("0x0300", "0x0302")
        return self.driven or (self.vendor == NVIDIA and display)

    @property
    def is_nvswitch(self) -> bool:
        """An NVSwitch that this host sees."""
        return self.vendor == NVIDIA and self.pci_class.startswith("0x0680")


@dataclass(frozen=True, slots=True)
class Pci:
    """All functions worth showing, by address in sysfs order, and what they came from."""

    functions: Mapping[str, Function]
    devices: Mapping[str, PciDevice] = field(default_factory=dict)

    def host_bridge(self, address: str | None) -> str | None:
        """Name of the root bus a function hangs off."""
        found = self.functions.get(address or "")
        return found.host_bridge if found else None

    def chain(self, address: str | None) -> tuple[str, ...]:
        """Bridges from the root to a function, without itself."""
        found = self.functions.get(address or "")
        return found.bridges if found else ()


def read_pci(
    tree: Tree, numa: Numa, online: tuple[int, ...] | None, told: NumaFile | None = None
) -> Pci:
    """
    Bridges, GPUs, NICs, disks and accelerators; chipset functions are left out.

    Args:
        told: NUMA nodes by the operator's word.
    """
    driven = {normalise_address(name) for name in tree.names(_DRIVEN)}
    read = (_read(tree, name) for name in tree.names(_DEVICES))
    functions = {f.address: replace(f, driven=f.address in driven) for f in read if f}
    below = _below(functions.values())
    configs = {a: read_config(tree, f.folder) for a, f in functions.items() if f.is_bridge}
    devices = {}
    for address, function in functions.items():
        config = configs.get(address)
        role = _role(tree, function, config.port_type if config else None)
        group = tree.link_name(f"{function.folder}/iommu_group")
        downward = role in ("root_port", "downstream")
        other = below.get(address) if downward else functions.get(function.parent or "")
        devices[address] = PciDevice(
            address=address,
            pci_class=function.pci_class,
            vendor=function.vendor,
            device=function.device,
            parent=function.parent,
            role=role,
            numa_node=_numa_node(function, functions, numa, online, told or NumaFile()),
            link=_whole_link(function.link, other.link if other else None),
            driver=tree.link_name(f"{function.folder}/driver"),
            acs=config.acs if config else "unknown",
            iommu=group,
            iommu_type=tree.text(f"sys/kernel/iommu_groups/{group}/type") if group else None,
            subsystem_vendor=tree.text(f"{function.folder}/subsystem_vendor"),
            subsystem_device=tree.text(f"{function.folder}/subsystem_device"),
            virtual_functions=_virtual_functions(tree, function) if role == "pf" else None,
            host_bridge=function.host_bridge,
            physical_function=_physical_function(tree, function) if role == "vf" else None,
        )
    return Pci(functions, devices)


def _read(tree: Tree, name: str) -> Function | None:
    """A function, or None if it is not worth showing."""
    address = normalise_address(name)
    folder = tree.resolve(f"{_DEVICES}/{name}")
    if address is None or folder is None:
        return None
    pci_class = tree.text(f"{folder}/class") or "0x000000"
    vendor = tree.text(f"{folder}/vendor") or "0x0000"
    if not _interesting(pci_class, vendor):
        return None
    parts = folder.split("/")
    above = (normalise_address(p) for p in parts[:-1])
    return Function(
        address=address,
        folder=folder,
        bridges=tuple(a for a in above if a),
        host_bridge=next((p for p in parts if _ROOT_BUS.fullmatch(p)), None),
        pci_class=pci_class,
        vendor=vendor,
        device=tree.text(f"{folder}/device") or "0x0000",
        numa_node=tree.integer(f"{folder}/numa_node"),
        local_cpus=_local_cpus(tree, folder),
        link=_own_link(tree, folder),
    )


def _interesting(pci_class: str, vendor: str) -> bool:
    """Storage, network, display, memory, accelerators, and bridges between buses."""
    base, sub = pci_class[2:4], pci_class[2:6]
    if base == "06":
        return sub in ("0604", "0609") or (sub == "0680" and vendor in (NVIDIA, _IBM))
    if sub == "0801":  # the second face of some NICs
        return vendor == _MELLANOX
    return sub == "0c06" or base in ("01", "02", "03", "05", "0b", "12")


def _local_cpus(tree: Tree, folder: str) -> tuple[int, ...] | None:
    found = tree.cpus(f"{folder}/local_cpulist")
    return tree.cpu_mask(f"{folder}/local_cpus") if found is None else found


def _own_link(tree: Tree, folder: str) -> PciLink | None:
    """The link as this function's own registers tell it."""
    width = parse_width(tree.text(f"{folder}/current_link_width"))
    speed = parse_speed(tree.text(f"{folder}/current_link_speed"))
    max_width = parse_width(tree.text(f"{folder}/max_link_width"))
    max_speed = parse_speed(tree.text(f"{folder}/max_link_speed"))
    if (speed, width, max_speed, max_width) == (None, None, None, None):
        return None
    return PciLink(
        speed_gts=speed,
        width=width,
        max_speed_gts=max_speed,
        max_width=max_width,
        bytes_per_second=link_bytes_per_second(speed, width),
    )


def _below(functions: Iterable[Function]) -> dict[str, Function]:
    """Bridge -> the first function below it: the other end of a port's link."""
    found: dict[str, Function] = {}
    for function in functions:
        if function.parent:
            found.setdefault(function.parent, function)
    return found


def _whole_link(own: PciLink | None, other: PciLink | None) -> PciLink | None:
    """The link with what both of its ends can do."""
    if own is None:
        return None
    speed: float | None = own.max_speed_gts
    width: float | None = own.max_width
    if other is not None:
        speed = _slower(speed, other.max_speed_gts, own.speed_gts)
        width = _slower(width, other.max_width, own.width)
    return replace(own, effective_max_bytes_per_second=link_bytes_per_second(speed, width))


def _slower(own: float | None, other: float | None, now: float | None) -> float | None:
    """
    The lower maximum of a link's two ends.

    A maximum is disbelieved where the link already runs beyond it: the virtual ports of
    guests claim 2.5 GT/s x1.
    """
    known = [v for v in (own, other) if v is not None and (now is None or v >= now)]
    return min(known, default=None)


def _role(tree: Tree, function: Function, port_type: int | None) -> str:
    """
    What the function is in the tree.

    Without its port type (users may not read it), a bridge is told by its depth: root
    port, then upstream and downstream ports of switches in turn.
    """
    if function.is_bridge:
        depth = len(function.bridges)
        return _PORT_ROLES.get(port_type or 0) or (
            "root_port" if depth == 0 else "upstream" if depth % 2 else "downstream"
        )
    if tree.exists(f"{function.folder}/physfn"):
        return "vf"
    return "pf" if tree.integer(f"{function.folder}/sriov_totalvfs") else "endpoint"


def _virtual_functions(tree: Tree, function: Function) -> int | None:
    return tree.integer(f"{function.folder}/sriov_numvfs")


def _physical_function(tree: Tree, function: Function) -> str | None:
    return normalise_address(tree.link_name(f"{function.folder}/physfn") or "")


def _numa_node(
    function: Function,
    functions: Mapping[str, Function],
    numa: Numa,
    online: tuple[int, ...] | None,
    told: NumaFile,
) -> Known:
    """
    The NUMA node of a function.

    The operator's word, else sysfs, else its local CPUs (all CPUs is the kernel's way to
    say nothing), else the nearest bridge above it that knows. Never a default.
    """
    nodes = {n.id for n in numa.nodes}
    given = function.numa_node
    reason = "sysfs does not say" if given is None else f"sysfs says {given}"
    for address in (function.address, *reversed(function.bridges)):
        if address in told.nodes:
            return Known(told.nodes[address], "operator", reason)
    if given is not None and given in nodes:
        return Known(given, "sysfs")
    if given is not None and given >= 0:
        reason += ", which is not online"
    if function.local_cpus and set(function.local_cpus) != set(online or ()):
        node = numa.node_of(function.local_cpus)
        if node is not None:
            return Known(node, "local_cpulist", reason)
    for address in reversed(function.bridges):
        above = functions.get(address)
        if above and above.numa_node in nodes:
            return Known(above.numa_node, "ancestor", reason)
    return Known(None, None, reason)
