"""Topologies written by hand: what discovery would give for well-known kinds of host."""

from __future__ import annotations

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
    Nvme,
    Path,
    PciDevice,
    PciLink,
    Topology,
    TopologyWarning,
)

GEN5 = PciLink(32.0, 16, 32.0, 16, 63.0e9, 63.0e9)
GEN5_X8 = PciLink(32.0, 8, 32.0, 16, 31.5e9, 63.0e9)


def hgx(gpus: int = 8) -> Topology:
    """Two NUMA nodes; each GPU shares a switch with a NIC; GPU 5 has lost half its lanes."""
    pci: list[PciDevice] = []
    found: list[Gpu] = []
    nics: list[Nic] = []
    for i in range(gpus):
        node, bus = i * 2 // gpus, 0x10 + 0x10 * i
        port, up, down, second = (f"0000:{bus + n:02x}:00.0" for n in range(4))
        port = f"0000:{bus:02x}:01.0"
        gpu, nic = f"0000:{bus + 4:02x}:00.0", f"0000:{bus + 5:02x}:00.0"
        known = Known(node, "sysfs")
        link = GEN5_X8 if i == 5 else GEN5
        pci += [
            PciDevice(port, "0x060400", "0x8086", "0x352a", None, "root_port", known, GEN5),
            PciDevice(up, "0x060400", "0x1000", "0xc030", port, "upstream", known, GEN5),
            PciDevice(down, "0x060400", "0x1000", "0xc030", up, "downstream", known, GEN5),
            PciDevice(second, "0x060400", "0x1000", "0xc030", up, "downstream", known, GEN5),
            PciDevice(gpu, "0x030200", "0x10de", "0x2335", down, "endpoint", known, link),
            PciDevice(nic, "0x020700", "0x15b3", "0x1021", second, "endpoint", known, GEN5),
        ]
        active = 17 if i == 3 else 18
        links = tuple(
            NvLink(n, "active" if n < active else "inactive", "nvswitch") for n in range(18)
        )
        found.append(
            Gpu(
                index=i,
                uuid=f"GPU-{i:08d}-0000-4000-8000-000000000000",
                pci_address=gpu,
                model="NVIDIA H200",
                memory_bytes=141 * 10**9,
                cpu_node=known,
                cpus=f"{node * 56}-{node * 56 + 55}",
                nvlink=NvLinks(active, 18, "4.0", active * 26.6e9, links),
            )
        )
        nics.append(Nic(f"mlx5_{i}", nic, known, 50e9, "InfiniBand", "active"))
    paths = [
        Path(f"gpu:{a}", f"gpu:{b}", smi="NV17" if 3 in (a, b) else "NV18", smi_pcie="SYS")
        for a in range(gpus)
        for b in range(a + 1, gpus)
    ]
    paths += [
        Path(
            f"gpu:{a}",
            f"nic:mlx5_{b}",
            smi="PXB" if a == b else "NODE" if a * 2 // gpus == b * 2 // gpus else "SYS",
        )
        for a in range(gpus)
        for b in range(gpus)
    ]
    return Topology(
        taken_at="2026-11-29T16:00:00Z",
        root="/",
        virtualization="none",
        trust="full",
        machine=Machine(arch="x86_64", kernel="6.8.0-45-generic", driver="580.159.04", cuda="13.0"),
        cpus=Cpus(
            online="0-111",
            allowed="0-55",
            model="Intel(R) Xeon(R) Platinum 8480C",
            packages=2,
            quota_cpus=32.0,
        ),
        numa_nodes=(
            NumaNode(0, NodeKind.CPU_MEMORY, "0-55", 2**40, allowed=True),
            NumaNode(1, NodeKind.CPU_MEMORY, "56-111", 2**40, allowed=False),
        ),
        numa_distances=NumaDistances((0, 1), ((10, 21), (21, 10))),
        pci=tuple(pci),
        gpus=tuple(found),
        nics=tuple(nics),
        nvme=(Nvme("nvme0", "0000:05:00.0", Known(0, "sysfs"), "SAMSUNG MZWLO3T8HCLS"),),
        paths=tuple(paths),
        warnings=(TopologyWarning("link_width", "gpu:5", "the PCIe link runs x8 of x16"),),
    )


def grace() -> Topology:
    """A GPU whose memory is a NUMA node, an empty node, and a node with memory alone."""
    return Topology(
        taken_at="2026-11-29T16:00:00Z",
        root="/",
        virtualization="none",
        trust="full",
        machine=Machine(arch="aarch64"),
        cpus=Cpus(online="0-71", allowed="0-71", packages=1),
        numa_nodes=(
            NumaNode(0, NodeKind.CPU_MEMORY, "0-71", 480 * 2**30, allowed=True),
            NumaNode(1, NodeKind.GPU, "", 96 * 2**30, allowed=True, gpu="GPU-g"),
            NumaNode(2, NodeKind.EMPTY, "", None, allowed=True),
            NumaNode(3, NodeKind.MEMORY, "", 2**34, allowed=False),
        ),
        gpus=(
            Gpu(
                index=0,
                uuid="GPU-g",
                pci_address="0009:01:00.0",
                model="NVIDIA GH200 480GB",
                memory_bytes=96 * 2**30,
                cpu_node=Known(None, None, "sysfs says -1"),
                own_numa_node=1,
                state="lost",
            ),
        ),
    )
