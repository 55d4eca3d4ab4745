"""What NCCL would build its tree from on a host: a topology through NCCL's eyes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from topobench.nccl_paths import Device, Net, Switch, System, cpu_gbps, pcie_gbps
from topobench.topology import Gpu, Known, Nic, PciDevice, Topology

_DERIVED = frozenset({"operator", "nvml", "local_cpulist", "ancestor", "only_node"})
"""Sources of NUMA nodes that NCCL does not ask."""
_PORTS = ("root_port", "downstream")
_DEFAULT_GBPS = 1.25


def system_of(topology: Topology, no_p2p: Iterable[tuple[str, str]] = ()) -> System:
    """
    The system of a discovered or imported topology.

    Ends are called as in its paths: ``gpu:0``, ``nic:mlx5_0``, ``numa:1``; ``numa:-1`` is
    NCCL's node for devices whose node the kernel does not know. Assumed are one rank on each
    GPU that answers, NCCL's defaults, and GPUDirect RDMA on each active RDMA port.

    Args:
        no_p2p: Pairs of GPU names to which the driver denies P2P.
    """
    view = _View(topology)
    gpus = tuple(view.gpu(gpu) for gpu in view.gpus)
    nets = tuple(view.net(nic) for nic in _nets(topology.nics))
    cpus = topology.cpus
    vendor = (cpus.vendor or "").strip()
    return System(
        cpus=tuple(view.cpus) or ("numa:-1",),
        cpu_gbps=cpu_gbps(topology.machine.arch, vendor, cpus.family, cpus.model_number),
        switches=tuple(view.switches.values()),
        gpus=gpus,
        nets=nets,
        amd=vendor == "AuthenticAMD",
        no_p2p=frozenset(no_p2p),
    )


def _nets(nics: Sequence[Nic]) -> list[Nic]:
    """Ports that NCCL takes: active RDMA ports, or without any RDMA device all interfaces up."""
    if any(nic.rdma for nic in nics):
        return [nic for nic in nics if nic.rdma and nic.state == "active"]
    return [nic for nic in nics if nic.state in (None, "active", "unknown")]


class _View:
    """The tree that grows as GPUs and ports are hung into it."""

    def __init__(self, topology: Topology) -> None:
        self.pci = {device.address: device for device in topology.pci}
        self.gpus = [
            gpu
            for gpu in topology.gpus
            if gpu.pci_address in self.pci and not gpu.is_slice and gpu.state in ("ok", "unknown")
        ]
        self.names = {gpu.pci_address: gpu.name for gpu in self.gpus}
        self.switches: dict[str, Switch] = {}
        self.cpus: dict[str, None] = {}

    def gpu(self, gpu: Gpu) -> Device:
        device = self.pci[gpu.pci_address or ""]
        parent = self._parent(device)
        capability = re.fullmatch(r"(\d{1,2})\.(\d)", gpu.compute_capability or "")
        index = self.gpus.index(gpu) if gpu.index is None else gpu.index
        return Device(
            key=gpu.name,
            parent=parent,
            gbps=self._gbps(device),
            index=index,
            compute_capability=int("".join(capability.groups())) if capability else None,
            nvlinks=self._nvlinks(gpu, device),
            c2c_gbps=gpu.c2c_bytes_per_second / 1e9 if gpu.c2c_bytes_per_second else None,
        )

    def net(self, nic: Nic) -> Net:
        device = self.pci.get(nic.pci_address or "")
        rate = nic.rate_bytes_per_second
        return Net(
            key=f"nic:{nic.name}",
            card=f"card:{(nic.pci_address or nic.name).rpartition('.')[0] or nic.name}",
            parent=self._parent(device) if device else self._own_cpu(nic),
            gbps=self._gbps(device) if device else None,
            net_gbps=rate / 1e9 if rate else _DEFAULT_GBPS,
            gdr=nic.rdma if nic.gpu_direct is None else nic.gpu_direct,
        )

    def _own_cpu(self, nic: Nic) -> str:
        """The CPU of a port that is no PCI device: the first, if nothing is told."""
        if nic.numa_node.value is not None:
            return self._cpu(nic.numa_node)
        return next(iter(self.cpus), None) or self._cpu(nic.numa_node)

    def _cpu(self, near: Known) -> str:
        told = near.value is not None and near.source not in _DERIVED
        key = f"numa:{near.value if told else -1}"
        self.cpus.setdefault(key)
        return key

    def _parent(self, device: PciDevice) -> str:
        """The switch above, with all above it hung into the tree, or the CPU."""
        *_, top = chain = [device, *self._switches_above(device)]
        parent = self._cpu(top.numa_node)
        for switch in reversed(chain[1:]):
            if switch.address not in self.switches:
                made = Switch(switch.address, parent, self._gbps(switch), _ids(switch))
                self.switches[switch.address] = made
            parent = switch.address
        return parent

    def _switches_above(self, device: PciDevice) -> Iterator[PciDevice]:
        """Upstream ports above a device, nearest first; NCCL knows no other ports."""
        seen = {device.address}
        above = self.pci.get(device.parent or "")
        while above is not None and above.address not in seen:  # a file may hold a loop
            seen.add(above.address)
            if above.role == "upstream":
                yield above
            above = self.pci.get(above.parent or "")

    def _gbps(self, device: PciDevice) -> float:
        """
        The slower end of a link, by the largest speed and width of each.

        Where a function sits on a root bus without a port, NCCL counts 16 lanes.
        """
        port = self.pci.get(device.parent or "")
        port = port if port and port.role in _PORTS else None
        speeds = [d.link.max_speed_gts for d in (device, port) if d and d.link]
        widths = [d.link.max_width if d.link else None for d in (device, port) if d]
        unknown = None in widths or (device.parent is None and device.host_bridge is not None)
        return pcie_gbps(
            min((speed for speed in speeds if speed), default=None),
            None if unknown else min(width or 0 for width in widths),
        )

    def _nvlinks(self, gpu: Gpu, device: PciDevice) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for link in gpu.nvlink.links if gpu.nvlink else ():
            if link.state == "active":
                target = "nvswitch"
                if link.remote_kind == "gpu":
                    target = self.names.get(link.remote, "elsewhere")
                elif link.remote_kind == "npu":
                    target = self._cpu(self._top(device).numa_node)
                found[target] = found.get(target, 0) + 1
        return found

    def _top(self, device: PciDevice) -> PciDevice:
        *_, top = device, *self._switches_above(device)
        return top


def _ids(device: PciDevice) -> int:
    """Vendor, device and subsystem ids in one number; unknown ones are 0."""
    texts = (device.vendor, device.device, device.subsystem_vendor, device.subsystem_device)
    found = 0
    for text in texts:
        known = re.fullmatch(r"0x[0-9a-f]{1,4}", text or "")
        found = found << 16 | (int(known[0], 16) if known else 0)
    return found
