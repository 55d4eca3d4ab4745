"""
How long it takes to fingerprint 64 hosts' topologies, and to compare each with the first.

Bar: 1 s for both together. Run ``python -m benchmarks.topology_bar`` from the root of the
repository; the exit code is 1 when the bar is missed. CPU time of this process counts, so that
a busy machine does not change the answer.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator

from topobench.agents.discover.fingerprint import fingerprints
from topobench.paths import find_paths
from topobench.topology import (
    Cpus,
    Gpu,
    Known,
    Machine,
    Nic,
    NodeKind,
    NumaDistances,
    NumaNode,
    NvLink,
    NvLinks,
    PciDevice,
    PciLink,
    Topology,
)
from topobench.topology_diff import diff

HOSTS = 64
BAR_SECONDS = 1.0
_LINK = PciLink(32.0, 16, 32.0, 16, 63.0e9, 63.0e9)
_BRIDGE, _GPU, _NIC = "0x060400", "0x030200", "0x020700"


def host(number: int) -> Topology:
    """8 GPUs and 8 NICs on 8 switches; every eighth host has a link of half the lanes."""
    links = tuple(NvLink(n, "active", "nvswitch") for n in range(18))
    pci: list[PciDevice] = []
    gpus, nics = [], []
    for i in range(8):
        near = Known(i // 4, "sysfs")
        devices = list(_switch(0x10 + 0x10 * i, near))
        if i == 5 and number % 8 == 7:
            slow = dataclasses.replace(_LINK, width=8, bytes_per_second=31.5e9)
            devices[-2] = dataclasses.replace(devices[-2], link=slow)
        pci += devices
        uuid = f"GPU-{number:04d}-{i}"
        nvlink = NvLinks(18, 18, "4.0", 478e9, links)
        gpus.append(
            Gpu(i, uuid, devices[-2].address, "NVIDIA H200", 141 * 10**9, near, nvlink=nvlink)
        )
        nics.append(Nic(f"mlx5_{i}", devices[-1].address, near, 50e9, "InfiniBand", "active"))
    nodes = (
        NumaNode(0, NodeKind.CPU_MEMORY, "0-55", 2**40, allowed=True),
        NumaNode(1, NodeKind.CPU_MEMORY, "56-111", 2**40, allowed=True),
    )
    topology = Topology(
        taken_at="2026-11-29T16:00:00Z",
        root="/",
        virtualization="none",
        trust="full",
        machine=Machine(arch="x86_64", kernel="6.8.0", driver="580.159.04", cuda="13.0"),
        cpus=Cpus(online="0-111", allowed="0-111", model="Xeon", packages=2),
        numa_nodes=nodes,
        numa_distances=NumaDistances((0, 1), ((10, 21), (21, 10))),
        pci=tuple(pci),
        gpus=tuple(gpus),
        nics=tuple(nics),
    )
    return dataclasses.replace(topology, paths=find_paths(topology).paths)


def _switch(bus: int, near: Known) -> Iterator[PciDevice]:
    """A root port, a switch of one upstream and two downstream ports, a GPU and a NIC."""
    port, up, first, second, gpu, nic = (
        f"0000:{bus + n:02x}:0{1 if n == 0 else 0}.0" for n in range(6)
    )
    root = f"pci0000:{bus:02x}"
    rows = (
        (port, _BRIDGE, "0x8086", None, "root_port"),
        (up, _BRIDGE, "0x1000", port, "upstream"),
        (first, _BRIDGE, "0x1000", up, "downstream"),
        (second, _BRIDGE, "0x1000", up, "downstream"),
        (gpu, _GPU, "0x10de", first, "endpoint"),
        (nic, _NIC, "0x15b3", second, "endpoint"),
    )
    for address, pci_class, vendor, parent, role in rows:
        yield PciDevice(
            address, pci_class, vendor, "0x1", parent, role, near, _LINK, host_bridge=root
        )


def main() -> int:
    """Print one JSON line; 1 if the bar is missed or an answer is wrong."""
    hosts = [host(number) for number in range(HOSTS)]
    began = time.process_time()
    found = [fingerprints(topology) for topology in hosts]
    hashed = time.process_time()
    changes = [diff(hosts[0], topology).changes for topology in hosts]
    seconds = time.process_time() - began
    slow = [i for i, c in enumerate(changes) if c]
    right = (
        slow == list(range(7, HOSTS, 8))
        and len({f["shape"] for f in found}) == 1
        and len({f["health"] for f in found}) == 2
    )
    print(
        json.dumps(
            {
                "hosts": HOSTS,
                "fingerprint_seconds": round(hashed - began, 3),
                "diff_seconds": round(seconds - (hashed - began), 3),
                "seconds": round(seconds, 3),
                "bar_seconds": BAR_SECONDS,
                "right": right,
            }
        )
    )
    return 0 if right and seconds <= BAR_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
