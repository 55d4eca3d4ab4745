"""
hwloc's XML, version 2, which ``lstopo -i`` of hwloc 2 and 3 reads.

What hwloc has no place for stands in infos whose names begin with ``topobench``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from topobench.errors import DiscoveryError
from topobench.exporters.exported import Exported, attribute
from topobench.exporters.hwloc_cpus import CpuObject, cpu_tree
from topobench.exporters.hwloc_tables import distance_table, nvlink_table
from topobench.topology import (
    Gpu,
    Nic,
    NodeKind,
    NumaNode,
    PciDevice,
    Topology,
    format_cpu_list,
    parse_cpu_list,
)

_PORT_STATES = {"down": "1", "init": "2", "armed": "3", "active": "4"}


def export(topology: Topology) -> Exported:
    """
    The XML.

    Raises:
        DiscoveryError: The topology names no CPU, which hwloc cannot do without.
    """
    writer = _Writer(topology)
    body = list(writer.machine())
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<!DOCTYPE topology SYSTEM "hwloc2.dtd">',
        '<topology version="2.0">',
        *body,
        *distance_table(topology.numa_distances, {n.id for n in writer.nodes}),
        *nvlink_table(topology, writer.names),
        "</topology>",
    ]
    return Exported("\n".join(lines) + "\n")


@dataclass(slots=True)
class _Writer:
    topology: Topology
    nodes: list[NumaNode] = field(default_factory=list)
    online: frozenset[int] = frozenset()
    children: dict[str | None, list[PciDevice]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    last: int = 0

    def __post_init__(self) -> None:
        told = self.topology.cpus.online
        nodes = sorted(self.topology.numa_nodes, key=lambda n: n.id)
        near = {n.id: frozenset(parse_cpu_list(n.cpus)) for n in nodes}
        self.online = frozenset(parse_cpu_list(told)) or frozenset().union(*near.values())
        if not self.online:
            raise DiscoveryError(
                "the topology names no CPU, which hwloc's format cannot do without; "
                "use the formats json or nccl"
            )
        taken: frozenset[int] = frozenset()
        for node in nodes:  # files may give the same CPUs to two nodes, hwloc may not
            own = near[node.id] - taken
            taken |= own
            self.nodes.append(replace(node, cpus=format_cpu_list(own)))
        known = {d.address for d in self.topology.pci}
        for device in self.topology.pci:
            above = device.parent if device.parent in known else None
            self.children.setdefault(above, []).append(device)

    def machine(self) -> Iterator[str]:
        """The Machine object with everything in it."""
        cpus = self.topology.cpus
        possible = frozenset(parse_cpu_list(cpus.possible)) | self.online
        allowed = frozenset(parse_cpu_list(cpus.allowed)) & self.online or self.online
        nodes = {n.id for n in self.nodes} or {0}
        usable = {n.id for n in self.nodes if n.allowed} or nodes
        sets = _sets(self.online, nodes, possible)
        sets |= {"allowed_cpuset": bit_set(allowed), "allowed_nodeset": bit_set(usable)}
        top = cpu_tree(cpus, self.online, self.nodes or [_ONLY_NODE])
        yield f"  {self._start('Machine', {'os_index': '0', **sets})}>"
        yield from _infos(self._facts(), 2)
        yield from self._inside(top, frozenset(nodes), 2)
        held = {n.id for n in self.nodes} - {n.id for n in top.nodes}
        roots = self.children.get(None, [])
        yield from self._devices([d for d in roots if d.numa_node.value not in held], 2)
        known = {d.address for d in self.topology.pci}
        for nic in self.topology.nics:
            if nic.pci_address not in known:
                yield from self._nic([nic], nic.name.partition(":")[0], 2)
        yield "  </object>"

    def _inside(self, item: CpuObject, nodes: frozenset[int], depth: int) -> Iterator[str]:
        """NUMA nodes of an object, then the objects below it."""
        for node in item.nodes:
            yield self._node(node, item.cpus, depth)
        for child in item.ordered():
            yield from self._cpu_object(child, nodes, depth)

    def _cpu_object(self, item: CpuObject, nodes: frozenset[int], depth: int) -> Iterator[str]:
        indent, own = "  " * depth, frozenset(n.id for n in item.nodes)
        nodes = own or self._nodes_below(item) or nodes
        start = self._start(item.kind, {**item.attributes, **_sets(item.cpus, nodes)})
        if item.kind == "PU":
            yield f"{indent}{start}/>"
            return
        yield f"{indent}{start}>"
        yield from self._inside(item, nodes, depth + 1)
        roots = self.children.get(None, [])
        yield from self._devices([d for d in roots if d.numa_node.value in own], depth + 1)
        yield f"{indent}</object>"

    def _nodes_below(self, item: CpuObject) -> frozenset[int]:
        found = frozenset(n.id for n in item.nodes)
        return found.union(*(self._nodes_below(child) for child in item.children))

    def _node(self, node: NumaNode, near: frozenset[int], depth: int) -> str:
        values = {"os_index": str(node.id), **_sets(near, {node.id})}
        if node.memory_bytes is not None:
            values["local_memory"] = str(node.memory_bytes)
        if node.kind == NodeKind.GPU:
            values = {"subtype": "GPUMemory", **values}
        infos = {} if node.kind == NodeKind.CPU_MEMORY else {"topobenchKind": str(node.kind)}
        if node.gpu:
            infos["topobenchGpu"] = node.gpu
        return self._leaf("NUMANode", values, infos, depth)

    def _devices(self, tops: Sequence[PciDevice], depth: int) -> Iterator[str]:
        """Host bridges, one a root bus, and the tree below each."""
        roots: dict[str, list[PciDevice]] = {}
        for device in tops:
            bus = (device.host_bridge or "").removeprefix("pci")
            roots.setdefault(bus or device.address.rpartition(":")[0], []).append(device)
        indent = "  " * depth
        for root, devices in roots.items():
            last = max(self._last_bus(d) for d in devices)
            domain, _, bus = root.rpartition(":")
            values = {
                "bridge_type": "0-1",
                "depth": "0",
                "bridge_pci": f"{domain}:[{bus}-{last:02x}]",
            }
            yield f"{indent}{self._start('Bridge', values)}>"
            for device in devices:
                yield from self._pci(device, depth + 1, 1)
            yield f"{indent}</object>"

    def _last_bus(self, device: PciDevice) -> int:
        below = self.children.get(device.address, [])
        return max([int(device.address.split(":")[1], 16), *(self._last_bus(d) for d in below)])

    def _pci(self, device: PciDevice, depth: int, level: int) -> Iterator[str]:
        indent, below = "  " * depth, self.children.get(device.address, [])
        bridge = bool(below) or device.pci_class.startswith("0x0604")
        ids = f"[{device.vendor[2:]}:{device.device[2:]}] [0000:0000] 00"
        values = {"pci_busid": device.address, "pci_type": f"{device.pci_class[2:6]} {ids}"}
        rate = device.link.bytes_per_second if device.link else None
        values["pci_link_speed"] = f"{(rate or 0) / 1e9:.6f}"
        if bridge:
            first = min((int(d.address.split(":")[1], 16) for d in below), default=0)
            span = f"[{first:02x}-{self._last_bus(device):02x}]"
            domain = device.address.partition(":")[0]
            values |= {"bridge_type": "1-1", "depth": str(level), "bridge_pci": f"{domain}:{span}"}
        if device.address in self.topology.nvswitches:
            values = {"subtype": "NVSwitch", **values}
        start = self._start("Bridge" if bridge else "PCIDev", values)
        self.names[device.address] = f"PCIDev:{self.last}"
        yield f"{indent}{start}>"
        yield from _infos(_device_facts(device, bridge, level), depth + 1)
        for child in below:
            yield from self._pci(child, depth + 1, level + 1)
        yield from self._functions(device, depth + 1)
        yield f"{indent}</object>"

    def _functions(self, device: PciDevice, depth: int) -> Iterator[str]:
        address = device.address
        for gpu in self.topology.gpus:
            if gpu.pci_address == address and not gpu.is_slice:
                yield from self._gpu(gpu, depth)
        nics: dict[str, list[Nic]] = {}
        for nic in self.topology.nics:
            if nic.pci_address == address:
                nics.setdefault(nic.name.partition(":")[0], []).append(nic)
        for name, ports in nics.items():
            yield from self._nic(ports, name, depth)
        for drive in self.topology.nvme:
            if drive.pci_address == address:
                values = {"name": f"{drive.name}n1", "subtype": "Disk", "osdev_type": "0"}
                yield self._leaf(
                    "OSDev", values, {"Model": drive.model} if drive.model else {}, depth
                )

    def _gpu(self, gpu: Gpu, depth: int) -> Iterator[str]:
        infos = {
            "Backend": "NVML" if gpu.index is not None else None,
            "GPUVendor": "NVIDIA Corporation",
            "GPUModel": gpu.model,
            "NVIDIAUUID": gpu.uuid,
            "topobenchMemoryBytes": gpu.memory_bytes,
            "topobenchComputeCapability": gpu.compute_capability,
            "topobenchState": None if gpu.state == "unknown" else gpu.state,
        }
        kept = {k: str(v) for k, v in infos.items() if v is not None}
        name = f"gpu-{gpu.pci_address}" if gpu.index is None else f"nvml{gpu.index}"
        if gpu.index is None and kept.keys() == {"GPUVendor"}:
            return
        found = self._leaf("OSDev", {"name": name, "osdev_type": "5"}, kept, depth)
        self.names[gpu.key] = f"OSDev:{self.last}"
        yield found
        if gpu.cuda_index is not None:
            values = {"name": f"cuda{gpu.cuda_index}", "subtype": "CUDA", "osdev_type": "5"}
            yield self._leaf("OSDev", values, {}, depth)

    def _nic(self, ports: Sequence[Nic], name: str, depth: int) -> Iterator[str]:
        rdma = any(port.rdma for port in ports)
        infos: dict[str, str] = {}
        for nic in ports:
            port = nic.name.partition(":")[2] or "1"
            if rdma and nic.state in _PORT_STATES:
                infos[f"Port{port}State"] = _PORT_STATES[nic.state]
            elif nic.state:
                infos[f"topobenchPort{port}State"] = nic.state
            if nic.rate_bytes_per_second:
                infos[f"topobenchPort{port}Rate"] = f"{nic.rate_bytes_per_second:.0f}"
            if nic.link_layer:
                infos[f"topobenchPort{port}LinkLayer"] = nic.link_layer
        yield self._leaf("OSDev", {"name": name, "osdev_type": "3" if rdma else "2"}, infos, depth)

    def _facts(self) -> Mapping[str, object]:
        machine, cpus = self.topology.machine, self.topology.cpus
        return {
            "Architecture": machine.arch,
            "DMISysVendor": machine.vendor,
            "DMIProductName": machine.product,
            "DMIBIOSVersion": machine.bios,
            "OSName": "Linux" if machine.kernel else None,
            "OSRelease": machine.kernel,
            "CPUModel": cpus.model,
            "CPUVendor": cpus.vendor,
            "CPUFamilyNumber": cpus.family,
            "CPUModelNumber": cpus.model_number,
            "CPUStepping": cpus.stepping,
            "topobenchPackages": cpus.packages,
            "topobenchCores": cpus.physical_cores,
            "topobenchThreadsPerCore": cpus.threads_per_core,
            "topobenchLastLevelCache": cpus.last_level_cache_bytes,
            "topobenchQuotaCpus": cpus.quota_cpus,
            "topobenchIommu": None if machine.iommu == "unknown" else machine.iommu,
            "topobenchOs": machine.os,
            "topobenchDriver": machine.driver,
            "topobenchCuda": machine.cuda,
            "topobenchContainer": machine.container,
            "topobenchVirtualization": self.topology.virtualization,
            "topobenchTrust": self.topology.trust,
        }

    def _start(self, kind: str, values: Mapping[str, str]) -> str:
        given = "".join(f' {k}="{attribute(v)}"' for k, v in values.items())
        self.last += 1
        return f'<object type="{kind}"{given} gp_index="{self.last}"'

    def _leaf(
        self, kind: str, values: Mapping[str, str], infos: Mapping[str, str], depth: int
    ) -> str:
        indent, start = "  " * depth, self._start(kind, values)
        if not infos:
            return f"{indent}{start}/>"
        return "\n".join([f"{indent}{start}>", *_infos(infos, depth + 1), f"{indent}</object>"])


_ONLY_NODE = NumaNode(0, NodeKind.CPU_MEMORY, "", None, allowed=True)
"""hwloc has no machine without a NUMA node."""


def _device_facts(device: PciDevice, bridge: bool, level: int) -> dict[str, str]:
    """What hwloc would not tell again: a class in full, and a role other than it seems."""
    seems = (
        ("root_port" if level == 1 else "downstream" if level % 2 else "upstream")
        if bridge
        else "endpoint"
    )
    facts = {} if device.role == seems else {"topobenchRole": device.role}
    if device.pci_class[6:] not in ("", "00"):
        facts["topobenchClass"] = device.pci_class
    return facts


def _infos(values: Mapping[str, object], depth: int) -> Iterator[str]:
    for name, value in values.items():
        if value is not None:
            yield f'{"  " * depth}<info name="{name}" value="{attribute(value)}"/>'


def _sets(cpus: Set[int], nodes: Set[int], complete: Set[int] | None = None) -> dict[str, str]:
    return {
        "cpuset": bit_set(cpus),
        "complete_cpuset": bit_set(complete or cpus),
        "nodeset": bit_set(nodes),
        "complete_nodeset": bit_set(nodes),
    }


def bit_set(members: Set[int]) -> str:
    """A set as hwloc writes it: groups of 32 bits, highest first, each with 0x."""
    bits = sum(1 << n for n in members)
    groups = max(1, -(-bits.bit_length() // 32))
    return ",".join(f"0x{bits >> 32 * i & 0xFFFFFFFF:08x}" for i in reversed(range(groups)))
