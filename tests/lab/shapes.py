"""The machines that the lab can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node of the guest; no CPUs makes it a memory-only node."""

    cpus: tuple[int, ...]
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Shape:
    """
    A guest's hardware, and the limits its command runs under.

    Args:
        distances: Distance of each pair of nodes; both directions are equal.
        devices: QEMU options for what is behind the host bridges.
        disks: Names of empty disks that ``devices`` use, as ``{folder}/NAME``.
        cpuset: Control file of a cgroup -> value, for the command alone.
        underused: Vendor and device of the one card that could do 16 GT/s x16, though its
            link is trained at 2.5 GT/s x1.
    """

    name: str
    summary: str
    nodes: tuple[Node, ...]
    distances: Mapping[tuple[int, int], int]
    packages: int = 2
    devices: tuple[str, ...] = ()
    disks: tuple[str, ...] = ()
    cpuset: Mapping[str, str] = field(default_factory=dict)
    underused: tuple[int, int] | None = None

    def options(self, folder: Path) -> list[str]:
        """
        QEMU's options for this hardware.

        Args:
            folder: Where the disks are.
        """
        cpus = sum(len(n.cpus) for n in self.nodes)
        found = ["-smp", f"{cpus},sockets={self.packages},cores={cpus // self.packages}"]
        found += ["-m", f"{sum(n.memory_mib for n in self.nodes)}M"]
        for number, node in enumerate(self.nodes):
            found += ["-object", f"memory-backend-ram,id=ram{number},size={node.memory_mib}M"]
            own = "".join(f",cpus={cpu}" for cpu in node.cpus)
            found += ["-numa", f"node,nodeid={number},memdev=ram{number}{own}"]
        for (a, b), distance in self.distances.items():
            found += ["-numa", f"dist,src={a},dst={b},val={distance}"]
        for option in self.devices:
            found += option.format(folder=folder).split(" ", 1)
        return found


_TWO_NODES = (Node((0, 1), 2048), Node((2, 3), 2048))
_FAR = {(0, 1): 21}

# Every link of these ports trains at 2.5 GT/s x1; rp0 could do 16 GT/s x16.
_PCIE_TREE = (
    "-device pxb-pcie,bus_nr=64,id=bridge0,bus=pcie.0,numa_node=0",
    "-device pxb-pcie,bus_nr=128,id=bridge1,bus=pcie.0,numa_node=1",
    "-device pcie-root-port,id=rp0,bus=bridge0,chassis=10,slot=0,x-speed=16,x-width=16",
    "-device x3130-upstream,id=up0,bus=rp0",
    "-device xio3130-downstream,id=down0,bus=up0,chassis=11,slot=1",
    "-device xio3130-downstream,id=down1,bus=up0,chassis=12,slot=2",
    "-drive id=disk0,if=none,format=raw,file={folder}/disk0",
    "-device nvme,serial=lab0,bus=down0,drive=disk0",
    "-device e1000e,bus=down1,romfile=",
    "-device pcie-root-port,id=rp1,bus=bridge1,chassis=20,slot=0",
    "-drive id=disk1,if=none,format=raw,file={folder}/disk1",
    "-device nvme,serial=lab1,bus=rp1,drive=disk1",
    "-device pcie-root-port,id=rp2,bus=bridge1,chassis=21,slot=1",
    "-device e1000e,bus=rp2,romfile=",
)

# Pairs of every path class: two bridges of node 0, one of node 1; on the first of them a switch
# in a switch, and a root port without one. The disk at rp2 is the card that is underused.
_CLASSES_TREE = (
    "-device pxb-pcie,bus_nr=64,id=bridge0,bus=pcie.0,numa_node=0",
    "-device pxb-pcie,bus_nr=112,id=bridge1,bus=pcie.0,numa_node=0",
    "-device pxb-pcie,bus_nr=160,id=bridge2,bus=pcie.0,numa_node=1",
    "-device pcie-root-port,id=rp0,bus=bridge0,chassis=10,slot=0",
    "-device x3130-upstream,id=up0,bus=rp0",
    "-device xio3130-downstream,id=down0,bus=up0,chassis=11,slot=1",
    "-device xio3130-downstream,id=down1,bus=up0,chassis=12,slot=2",
    "-device xio3130-downstream,id=down2,bus=up0,chassis=13,slot=3",
    "-drive id=disk0,if=none,format=raw,file={folder}/disk0",
    "-device nvme,serial=lab0,bus=down0,drive=disk0",
    "-device e1000e,bus=down1,romfile=",
    "-device x3130-upstream,id=up1,bus=down2",
    "-device xio3130-downstream,id=down3,bus=up1,chassis=14,slot=4",
    "-drive id=disk1,if=none,format=raw,file={folder}/disk1",
    "-device nvme,serial=lab1,bus=down3,drive=disk1",
    "-device pcie-root-port,id=rp1,bus=bridge0,chassis=15,slot=5",
    "-device e1000e,bus=rp1,romfile=",
    "-device pcie-root-port,id=rp2,bus=bridge1,chassis=16,slot=6,x-speed=16,x-width=16",
    "-drive id=disk2,if=none,format=raw,file={folder}/disk2",
    "-device nvme,serial=lab2,bus=rp2,drive=disk2,use-intel-id=on",
    "-device pcie-root-port,id=rp3,bus=bridge2,chassis=17,slot=7",
    "-device e1000e,bus=rp3,romfile=",
)

SHAPES = {
    shape.name: shape
    for shape in (
        Shape("two", "2 nodes of 2 CPUs, distance 21", _TWO_NODES, _FAR),
        Shape(
            "four",
            "4 nodes of 1 CPU: distance 12 inside a package, 32 across, as with NPS2",
            tuple(Node((n,), 1024) for n in range(4)),
            {
                (a, b): 12 if (a, b) in ((0, 1), (2, 3)) else 32
                for a in range(4)
                for b in range(a + 1, 4)
            },
        ),
        Shape(
            "memless",
            "2 CPUs on node 0; node 1 is memory alone, at distance 21",
            (Node((0, 1), 2048), Node((), 2048)),
            _FAR,
            packages=1,
        ),
        Shape(
            "pcie",
            "as two, with a host bridge for each node: root port, switch, NVMe and NIC on node 0; "
            "two root ports with NVMe and NIC on node 1; all links at 2.5 GT/s x1",
            _TWO_NODES,
            _FAR,
            devices=_PCIE_TREE,
            disks=("disk0", "disk1"),
        ),
        Shape(
            "classes",
            "as two, with NVMe disks and NICs behind one switch, two switches, one host bridge, "
            "two bridges of node 0, and on node 1; the link of one fast disk is degraded",
            _TWO_NODES,
            _FAR,
            devices=_CLASSES_TREE,
            disks=("disk0", "disk1", "disk2"),
            underused=(0x8086, 0x5845),
        ),
        Shape(
            "cpuset",
            "as two, the command confined to CPUs 1-3 and the memory of node 0",
            _TWO_NODES,
            _FAR,
            cpuset={"cpuset.cpus": "1-3", "cpuset.mems": "0"},
        ),
    )
}
