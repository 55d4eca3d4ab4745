"""
hwloc's XML, versions 2 and 3, as ``lstopo`` writes it.

hwloc gives a NUMA node the CPUs near it, also where it holds memory alone: of nodes with the
same CPUs the first counts as theirs. It tells a link's speed as one figure, and not what the
link could do. Serial numbers, addresses and host names in the file are not taken over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from topobench.errors import ImportFailed
from topobench.importers.document import clean
from topobench.importers.hwloc_devices import (
    OWN,
    bus_order,
    device_name,
    index_of,
    integer,
    is_nvidia,
    link,
    plain_nic,
    rdma_ports,
    role,
)
from topobench.importers.hwloc_numbers import (
    cpu_set,
    distances,
    nvlink_rates,
    nvlinks,
)
from topobench.importers.topology_text import (
    MOST_NODES,
    UNKNOWN_CLASS,
    UNKNOWN_ID,
    hexadecimal,
    imported,
    number,
)
from topobench.importers.xml_text import Element, parse_xml
from topobench.pcie import normalise_address
from topobench.topology import (
    Caches,
    CpuGroups,
    Cpus,
    Gpu,
    Known,
    Machine,
    Nic,
    NodeKind,
    NumaNode,
    Nvme,
    PciDevice,
    Topology,
    TopologyWarning,
    format_cpu_list,
    parse_cpu_list,
)

SOURCE = "hwloc"
_TYPE = re.compile(
    r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\](?: \[[0-9a-f:]{9}\])?"
    r"(?: [0-9a-f]{2}(?: ([0-9a-f]{2}))?)?",
    re.IGNORECASE,
)
_VERSION_2 = {"0": "storage", "2": "net", "3": "rdma"}
"""Numbers of ``osdev_type``; version 3 has one bit for each use of a device instead."""
_BITS_3 = {32: "rdma", 16: "net", 1: "storage"}
_LEVELS = {"Package": "package", "Die": "die", "Core": "core"}
_CACHE_TYPES = {"0": "unified", "1": "data", "2": "instruction"}


def parse(text: str) -> Topology:
    """
    The topology of an hwloc XML text, without paths.

    Raises:
        ImportFailed: It is no such XML, or contradicts itself.
    """
    root = parse_xml(text, "topology")
    version = root.get("version")
    major = version.partition(".")[0]
    if not version:
        raise ImportFailed(
            "this is XML of hwloc 1; write it anew with `lstopo -i OLD.xml NEW.xml` of hwloc 2"
        )
    if major not in ("2", "3"):
        raise ImportFailed(f"XML of hwloc {clean(version)}; 2 and 3 can be read")
    machine = next(root.all("object"), None)
    if machine is None or machine.get("type") != "Machine":
        raise ImportFailed("the first object is no Machine")
    reader = _Reader(major, machine, _infos(root) | _infos(machine))
    reader.read(machine, _Place(machine.get("nodeset"), None))
    return reader.topology(root)


def _infos(element: Element) -> dict[str, str]:
    return {i.get("name"): clean(i.get("value")) for i in element.all("info")}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an object hangs: the NUMA nodes near it, and the PCI bridge above it."""

    nodeset: str
    bridge: str | None
    root: str | None = None
    depth: int = 0


@dataclass(slots=True)
class _Reader:
    major: str
    machine: Element
    infos: dict[str, str]
    nodes: list[Element] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    caches: dict[tuple[int, str, int], list[str]] = field(default_factory=dict)
    package: dict[str, str] = field(default_factory=dict)
    pci: dict[str, PciDevice] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)
    rdma: list[Nic] = field(default_factory=list)
    net: list[Nic] = field(default_factory=list)
    nvme: list[Nvme] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    warnings: list[TopologyWarning] = field(default_factory=list)

    def read(self, element: Element, place: _Place) -> None:
        """An object and all below it."""
        kind = element.get("type")
        self.counts[kind] = self.counts.get(kind, 0) + 1
        below = place
        if kind == "NUMANode":
            self.nodes.append(element)
        elif kind in ("Bridge", "PCIDev"):
            below = self._pci(element, place)
        elif kind in _LEVELS:
            self.groups.setdefault(_LEVELS[kind], []).append(element.get("cpuset"))
            if kind == "Package":
                self.package = self.package or _infos(element)
        elif kind == "OSDev" and place.bridge is None:
            self._loose(element, place)
        elif kind.endswith("Cache") and kind != "MemCache":
            self._cache(element)
        if kind not in ("Bridge", "PCIDev") and element.get("nodeset"):
            below = replace(below, nodeset=element.get("nodeset"))
        for child in element.all("object"):
            self.read(child, below)

    def _cache(self, element: Element) -> None:
        level, size = integer(element.get("depth")), integer(element.get("cache_size"))
        kind = _CACHE_TYPES.get(element.get("cache_type"))
        if level and size and kind:
            self.caches.setdefault((level, kind, size), []).append(element.get("cpuset"))

    def _pci(self, element: Element, place: _Place) -> _Place:
        """A PCI function; host bridges are none. Its OS devices say what it is."""
        address = normalise_address(element.get("pci_busid"))
        if address is None:
            if element.get("bridge_type") == "0-1":
                buses = re.match(r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-", element.get("bridge_pci"))
                return replace(place, root=f"pci{buses[1]}:{buses[2]}" if buses else None)
            raise ImportFailed(f"pci_busid {clean(element.get('pci_busid'))!r} is no PCI address")
        if address in self.pci:
            text = "another object has the same address, so it is left out of the tree"
            self.warnings.append(TopologyWarning("address_twice", f"pci:{address}", text))
            for osdev in (e for e in element.all("object") if e.get("type") == "OSDev"):
                self._osdev(osdev, None, self._near(place), None)
            return replace(place, depth=place.depth + 1)
        infos = _infos(element)
        found = _TYPE.fullmatch(element.get("pci_type"))
        pci_class = f"0x{found[1]}{found[4] or '00'}".lower() if found else UNKNOWN_CLASS
        pci_class = hexadecimal(infos.get(f"{OWN}Class", pci_class), 6) or pci_class
        device = PciDevice(
            address=address,
            pci_class=pci_class,
            vendor=f"0x{found[2]}".lower() if found else UNKNOWN_ID,
            device=f"0x{found[3]}".lower() if found else UNKNOWN_ID,
            parent=place.bridge,
            role=role(element, place.depth, infos),
            numa_node=self._near(place),
            link=link(element.get("pci_link_speed")),
            host_bridge=place.root,
        )
        self.pci[address] = device
        if element.get("subtype") == "NVSwitch" or (
            device.vendor == "0x10de" and pci_class.startswith("0x0680")
        ):
            self.switches.append(address)
        self.names[f"PCIDev:{element.get('gp_index')}"] = address
        if element.get("type") == "PCIDev":
            self._functions(element, device)
        return replace(place, bridge=address, depth=place.depth + 1)

    def _near(self, place: _Place) -> Known:
        nodes = cpu_set(place.nodeset)
        if nodes is not None and len(nodes) == 1:
            return Known(nodes[0], SOURCE)
        return Known(
            None, None, "hwloc puts it near several NUMA nodes" if nodes else "hwloc does not say"
        )

    def _functions(self, element: Element, device: PciDevice) -> None:
        """GPU, NIC or disk, by the OS devices below a PCI function."""
        found = [e for e in element.all("object") if e.get("type") == "OSDev"]
        display = device.pci_class[:6] in ("0x0300", "0x0302")
        if (display and device.vendor == "0x10de") or any(is_nvidia(e) for e in found):
            self._gpu(found, device)
        for osdev in found:
            self._osdev(osdev, device.address, device.numa_node, device)

    def _use(self, told: str) -> str | None:
        """What an OS device is for."""
        if self.major == "2":
            return _VERSION_2.get(told)
        bits = number(told or "0", "osdev_type", 1 << 30)
        return next((use for bit, use in _BITS_3.items() if bits & bit), None)

    def _loose(self, osdev: Element, place: _Place) -> None:
        self._osdev(osdev, None, Known(None, None, "not a PCI device"), None)

    def _osdev(
        self, osdev: Element, address: str | None, near: Known, device: PciDevice | None
    ) -> None:
        kind = self._use(osdev.get("osdev_type"))
        name, infos = clean(osdev.get("name")), _infos(osdev)
        if kind == "rdma" and (device is None or device.role != "vf"):
            self.rdma += rdma_ports(name, address, near, infos)
        elif kind == "net" and (device is None or device.role != "vf"):
            self.net.append(plain_nic(name, 1, address, near, infos))
        elif kind == "storage" and (match := re.match(r"nvme[0-9]+", name)):
            model = infos.get("Model") or None
            self.nvme.append(Nvme(match[0], address, near, model))

    def _gpu(self, osdevs: list[Element], device: PciDevice) -> None:
        infos: dict[str, str] = {}
        for osdev in osdevs:
            self.names[f"OSDev:{osdev.get('gp_index')}"] = device.address
            infos = {**_infos(osdev), **infos}
        uuid = infos.get("NVIDIAUUID")
        kilobytes, memory = (
            infos.get("CUDAGlobalMemorySize", ""),
            infos.get(f"{OWN}MemoryBytes", ""),
        )
        node = device.numa_node
        self.gpus.append(
            Gpu(
                index=index_of(osdevs, "nvml"),
                uuid=(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}") if uuid else None,
                pci_address=device.address,
                model=infos.get("GPUModel"),
                memory_bytes=integer(memory) or (integer(kilobytes) or 0) << 10 or None,
                cpu_node=node,
                cuda_index=index_of(osdevs, "cuda"),
                compute_capability=infos.get(f"{OWN}ComputeCapability"),
                state=infos.get(f"{OWN}State", "unknown"),
            )
        )

    def topology(self, root: Element) -> Topology:
        nodes = self._numa_nodes()
        cpus = {n.id: n.cpus for n in nodes}
        rates = nvlink_rates(root, self.names)
        gpus = [
            replace(
                g,
                cpus=cpus.get(-1 if g.cpu_node.value is None else g.cpu_node.value),
                nvlink=nvlinks(rates.get(g.pci_address or "", ()), g.model),
                own_numa_node=next((n.id for n in nodes if n.gpu == g.key), None),
            )
            for g in self.gpus
        ]
        taken = {nic.pci_address for nic in self.rdma}
        plain = [n for n in self.net if n.pci_address is None or n.pci_address not in taken]
        return imported(
            SOURCE,
            virtualization=self.infos.get(f"{OWN}Virtualization", "unknown"),
            trust=self.infos.get(f"{OWN}Trust", "full"),
            machine=self._machine(),
            cpus=self._cpus(),
            numa_nodes=nodes,
            numa_distances=distances(root, self._node_names()),
            pci=tuple(sorted(self.pci.values(), key=lambda d: bus_order(d.address))),
            gpus=tuple(sorted(gpus, key=lambda g: (g.index is None, g.index or 0))),
            nics=(*sorted(self.rdma, key=device_name), *sorted(plain, key=device_name)),
            nvswitches=tuple(sorted(self.switches, key=bus_order)),
            nvme=tuple(sorted({n.name: n for n in self.nvme}.values(), key=device_name)),
            warnings=tuple(self.warnings),
        )

    def _machine(self) -> Machine:
        infos = self.infos
        return Machine(
            arch=infos.get("Architecture"),
            vendor=infos.get("DMISysVendor"),
            product=infos.get("DMIProductName"),
            bios=infos.get("DMIBIOSVersion"),
            kernel=infos.get("OSRelease"),
            os=infos.get(f"{OWN}Os"),
            driver=infos.get(f"{OWN}Driver"),
            cuda=infos.get(f"{OWN}Cuda"),
            container=infos.get(f"{OWN}Container"),
            iommu=infos.get(f"{OWN}Iommu", "unknown"),
        )

    def _cpus(self) -> Cpus:
        told = self.infos if "CPUModel" in self.infos else self.package
        infos = self.infos
        groups = {level: _ordered(sets) for level, sets in self.groups.items()}
        caches = [Caches(*kind, _ordered(sets)) for kind, sets in sorted(self.caches.items())]
        sizes = {len(parse_cpu_list(core)) for core in groups.get("core", ())}
        last = max(caches, key=lambda c: (c.level, c.type != "instruction"), default=None)
        quota = infos.get(f"{OWN}QuotaCpus", "")
        return Cpus(
            possible=_list(self.machine.get("complete_cpuset")),
            online=_list(self.machine.get("cpuset")),
            allowed=_list(self.machine.get("allowed_cpuset")),
            model=told.get("CPUModel"),
            vendor=told.get("CPUVendor"),
            packages=self._count("Packages", "Package"),
            physical_cores=self._count("Cores", "Core"),
            threads_per_core=self._count("ThreadsPerCore", "") or max(sizes, default=None),
            last_level_cache_bytes=self._count("LastLevelCache", "")
            or (last.bytes if last else None),
            quota_cpus=float(quota) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", quota) else None,
            family=integer(told.get("CPUFamilyNumber", "")),
            model_number=integer(told.get("CPUModelNumber", "")),
            stepping=integer(told.get("CPUStepping", "")),
            dies=len(groups["die"]) if "die" in groups else None,
            groups=tuple(CpuGroups(n, groups[n]) for n in _LEVELS.values() if n in groups),
            caches=tuple(caches),
        )

    def _count(self, name: str, kind: str) -> int | None:
        """What our exporter wrote, else the number of objects of that kind."""
        text = self.infos.get(f"{OWN}{name}", "")
        found = integer(text)
        return self.counts.get(kind) if found is None else found

    def _node_names(self) -> dict[str, int]:
        """How distance tables call the NUMA nodes: by ``gp_index`` and by number."""
        found = {f"os:{_os_index(e)}": _os_index(e) for e in self.nodes}
        return found | {f"gp:{e.get('gp_index')}": _os_index(e) for e in self.nodes}

    def _numa_nodes(self) -> tuple[NumaNode, ...]:
        allowed = cpu_set(self.machine.get("allowed_nodeset"))
        found: dict[int, NumaNode] = {}
        taken: set[int] = set()
        order = {_os_index(e): e for e in self.nodes}
        if len(order) < len(self.nodes):
            raise ImportFailed("two NUMA nodes have the same os_index")
        # Nodes of few CPUs first: one near all of them is memory beside theirs.
        sizes = {i: cpu_set(e.get("cpuset")) or () for i, e in order.items()}
        for index in sorted(order, key=lambda i: (len(sizes[i]), i)):
            element, infos = order[index], _infos(order[index])
            near = sizes[index]
            own = set() if taken.intersection(near) else set(near)
            kind, own = _kind(element, infos, own)
            taken |= own
            memory = element.get("local_memory")
            found[index] = NumaNode(
                id=index,
                kind=kind,
                cpus=format_cpu_list(own),
                memory_bytes=integer(memory),
                allowed=allowed is None or index in allowed,
                gpu=infos.get(f"{OWN}Gpu") or normalise_address(infos.get("PCIBusID", "")),
            )
        return tuple(found[i] for i in sorted(found))


def _os_index(element: Element) -> int:
    return number(element.get("os_index"), "os_index of a NUMA node", MOST_NODES)


def _kind(element: Element, infos: dict[str, str], own: set[int]) -> tuple[NodeKind, set[int]]:
    """What a node holds; our exporter says so, hwloc leaves it to be told by CPUs and memory."""
    told = infos.get(f"{OWN}Kind", "")
    if told in {str(k) for k in NodeKind}:
        kind = NodeKind(told)
        return kind, own if kind in (NodeKind.CPU, NodeKind.CPU_MEMORY) else set()
    if element.get("subtype") == "GPUMemory":
        return NodeKind.GPU, set()
    memory = element.get("local_memory")
    if own:
        return NodeKind.CPU if memory == "0" else NodeKind.CPU_MEMORY, own
    return NodeKind.MEMORY if memory not in ("", "0") else NodeKind.EMPTY, own


def _ordered(sets: list[str]) -> tuple[str, ...]:
    """Sets of CPUs as lists, by their first CPU; empty ones are left out."""
    found = sorted(members for text in sets if (members := cpu_set(text)))
    return tuple(format_cpu_list(members) for members in found)


def _list(text: str) -> str | None:
    found = cpu_set(text)
    return None if found is None else format_cpu_list(found)
