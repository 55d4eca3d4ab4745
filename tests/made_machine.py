"""Machines made by hand as sysfs and procfs trees, for what no captured tree holds."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from topobench.topology import format_cpu_list

GPU = ("0x030200", "0x10de", "0x2330")
NIC = ("0x020700", "0x15b3", "0x1021")
NVME = ("0x010802", "0x144d", "0xa80a")
BRIDGE = ("0x060400", "0x1000", "0xc030")


def write(root: Path, name: str, text: str) -> None:
    """Write a file below the root, with the newline sysfs ends with."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def add_cpus(root: Path, nodes: Sequence[Sequence[int]], *, memory_kb: int = 64 << 20) -> None:
    """CPUs without SMT, one package a node, and the nodes with distances 10 and 21."""
    cpus = sorted(c for node in nodes for c in node)
    for name in ("online", "possible"):
        write(root, f"sys/devices/system/cpu/{name}", format_cpu_list(cpus))
    for number, node in enumerate(nodes):
        for cpu in node:
            base = f"sys/devices/system/cpu/cpu{cpu}/topology"
            write(root, f"{base}/core_cpus_list", str(cpu))
            write(root, f"{base}/package_cpus_list", format_cpu_list(node))
        add_node(root, number, node, memory_kb)
        row = " ".join("10" if n == number else "21" for n in range(len(nodes)))
        write(root, f"sys/devices/system/node/node{number}/distance", row)
    write(root, "sys/devices/system/node/online", f"0-{len(nodes) - 1}")
    flags = "processor : 0\nvendor_id : GenuineIntel\nmodel name : Test CPU\nflags : fpu lm"
    write(root, "proc/cpuinfo", flags)


def add_node(root: Path, number: int, cpus: Sequence[int], memory_kb: int) -> None:
    """One NUMA node without distances."""
    base = f"sys/devices/system/node/node{number}"
    write(root, f"{base}/cpulist", format_cpu_list(cpus))
    write(root, f"{base}/meminfo", f"Node {number} MemTotal: {memory_kb} kB")


def add_pci(
    root: Path,
    path: str,
    kind: tuple[str, str, str] = BRIDGE,
    *,
    node: int | None = -1,
    local: str | None = None,
    link: tuple[str, str, str, str] | None = ("32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16"),
) -> Path:
    """
    A PCI function.

    Args:
        path: Root bus, bridges and function ("pci0000:00/0000:00:01.0/0000:01:00.0").
        link: Current speed and width, largest speed and width.
    """
    folder = f"sys/devices/{path}"
    for name, value in zip(("class", "vendor", "device"), kind, strict=True):
        write(root, f"{folder}/{name}", value)
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    for name, value in zip(names, link or (), strict=False):
        write(root, f"{folder}/{name}", value)
    if node is not None:
        write(root, f"{folder}/numa_node", str(node))
    if local is not None:
        write(root, f"{folder}/local_cpulist", local)
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    os.symlink(f"../../../devices/{path}", devices / path.rpartition("/")[2])
    return root / folder


def configuration(port_type: int, acs_control: int | None) -> bytes:
    """A PCIe port's configuration space, with the ACS capability behind another one."""
    space = bytearray(4096)
    struct.pack_into("<H", space, 0x06, 0x10)
    space[0x34] = 0x40
    struct.pack_into("<BBH", space, 0x40, 0x01, 0x60, 0)  # power management, then
    struct.pack_into("<BBH", space, 0x60, 0x10, 0x00, port_type << 4 | 2)
    following = 0x148 if acs_control is not None else 0
    struct.pack_into("<I", space, 0x100, following << 20 | 1 << 16 | 0x0001)
    if acs_control is not None:
        struct.pack_into("<IHH", space, 0x148, 1 << 16 | 0x000D, 0x005F, acs_control)
    return bytes(space)


@dataclass
class Eight:
    """
    A host of two NUMA nodes with 8 GPUs, 8 NICs and 8 NVMe disks.

    Four switches; each hangs off a host bridge of its own and holds two of each.

    Args:
        bus: Bus number of a switch's host bridge, by the switch's position.
        order: Which of a switch's downstream ports a device takes, by its position.
        gpu_link: Link of each GPU's function, by the GPU's position.
        cpus: CPUs of each NUMA node.
        nic_node: NUMA node of each NIC, by its position; None is its switch's.
    """

    root: Path
    cpus: int = 128
    bus: Callable[[int], int] = lambda switch: 0x10 + 0x20 * switch
    order: Callable[[int], int] = lambda position: position
    gpu_link: dict[int, tuple[str, str, str, str]] = field(default_factory=dict)
    nic_node: dict[int, int] = field(default_factory=dict)
    gpu_addresses: list[str] = field(default_factory=list)

    def make(self) -> Eight:
        """Write the tree."""
        add_cpus(self.root, [range(self.cpus), range(self.cpus, 2 * self.cpus)])
        for switch in range(4):
            self._switch(switch)
        return self

    def _switch(self, switch: int) -> None:
        bus, node = self.bus(switch), switch // 2
        top = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0"
        up = f"{top}/0000:{bus + 1:02x}:00.0"
        add_pci(self.root, top, node=node)
        add_pci(self.root, up, node=node)
        for position, kind in enumerate([GPU, GPU, NIC, NIC, NVME, NVME]):
            slot = self.order(position)
            port = f"{up}/0000:{bus + 2:02x}:{slot:02x}.0"
            add_pci(self.root, port, node=node)
            address = f"0000:{bus + 3 + slot:02x}:00.0"
            number = 2 * switch + position % 2
            self._device(f"{port}/{address}", kind, number, node)

    def _device(self, path: str, kind: tuple[str, str, str], number: int, node: int) -> None:
        folder = f"sys/devices/{path}"
        if kind == GPU:
            link = self.gpu_link.get(number, ("32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16"))
            add_pci(self.root, path, kind, node=node, link=link)
            self.gpu_addresses.append(path.rpartition("/")[2])
            return
        add_pci(
            self.root, path, kind, node=self.nic_node.get(number, node) if kind == NIC else node
        )
        if kind == NIC:
            add_rdma(self.root, f"mlx5_{number}", path)
        else:
            write(self.root, f"{folder}/nvme/nvme{number}/model", "SAMSUNG MZQL23T8HCLS")
            link_class(self.root, "nvme", f"nvme{number}", f"{path}/nvme/nvme{number}")


def add_rdma(root: Path, name: str, path: str, *, rate: str = "400 Gb/sec (4X NDR)") -> None:
    """An RDMA device with one active port on a PCI function."""
    base = f"sys/devices/{path}/infiniband/{name}"
    write(root, f"{base}/ports/1/rate", rate)
    write(root, f"{base}/ports/1/state", "4: ACTIVE")
    write(root, f"{base}/ports/1/link_layer", "InfiniBand")
    os.symlink("../..", root / base / "device")
    link_class(root, "infiniband", name, f"{path}/infiniband/{name}")


def link_class(root: Path, kind: str, name: str, path: str) -> None:
    """The link below sys/class to a device's folder."""
    folder = root / "sys/class" / kind
    folder.mkdir(parents=True, exist_ok=True)
    os.symlink(f"../../devices/{path}", folder / name)
