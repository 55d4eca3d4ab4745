"""What the traffic of several GPUs of a host passes: switch uplinks and NUMA nodes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from topobench.topology import PciDevice, Topology

UPLINK, NUMA_NODE = "switch uplink", "NUMA node"


@dataclass(frozen=True, slots=True)
class SharedPath:
    """
    Something that the traffic of several GPUs passes.

    Args:
        kind: :data:`UPLINK` or :data:`NUMA_NODE`.
        name: PCI address of the uplink's port, or the node's number.
        devices: GPU keys, two or more.
    """

    kind: str
    name: str
    devices: tuple[str, ...]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SharedPath:
        """Read what ``reading.to_json`` wrote."""
        return cls(value["kind"], value["name"], tuple(value["devices"]))


def shared_paths(topology: Topology) -> tuple[SharedPath, ...]:
    """
    The paths that whole GPUs share, the narrowest first: fewest GPUs, uplinks before nodes.

    A guest's switches are made up by its hypervisor, so there only nodes are told.
    """
    by_address = {d.address: d for d in topology.pci}
    guest = topology.trust == "low" or topology.virtualization not in ("none", "unknown")
    users: dict[tuple[str, str], list[str]] = defaultdict(list)
    for gpu in topology.gpus:
        if gpu.is_slice:
            continue
        if not guest and gpu.pci_address:
            for port in _uplinks(by_address, gpu.pci_address):
                users[UPLINK, port].append(gpu.key)
        if gpu.cpu_node.value is not None:
            users[NUMA_NODE, str(gpu.cpu_node.value)].append(gpu.key)
    found: dict[tuple[str, tuple[str, ...]], SharedPath] = {}
    for (kind, name), devices in users.items():
        if len(devices) > 1:  # of ports in a row with the same GPUs, the nearest
            found.setdefault((kind, tuple(devices)), SharedPath(kind, name, tuple(devices)))
    return tuple(sorted(found.values(), key=lambda p: (len(p.devices), p.kind == NUMA_NODE)))


def _uplinks(by_address: Mapping[str, PciDevice], address: str) -> Iterator[str]:
    """Upstream ports of the switches above a device, the nearest first."""
    seen = {address}
    device = by_address.get(address)
    while device is not None and device.parent and device.parent not in seen:
        seen.add(device.parent)
        device = by_address.get(device.parent)
        if device is not None and device.role == "upstream":
            yield device.address
