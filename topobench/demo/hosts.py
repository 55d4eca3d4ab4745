"""
The machines of the synthetic fleet, in the words of discovery; pure.

Two kinds: an 8-GPU host with NVSwitches, and one whose GPUs meet over PCIe alone. Paths,
fingerprints and warnings come from the code that looks at real hosts.
"""

from __future__ import annotations

import functools
import hashlib
import uuid
from dataclasses import dataclass, replace

from topobench import __version__, nccl_paths
from topobench.agents.discover.findings import link_findings
from topobench.agents.discover.fingerprint import fingerprints
from topobench.demo.effects import GPUS
from topobench.host import Host, HostFacts
from topobench.paths import find_paths
from topobench.pcie import link_bytes_per_second
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
    PciDevice,
    PciLink,
    Topology,
)

DRIVERS = ("570.124.06", "570.172.08", "580.82.07", "580.95.05")
"""Versions in the order of their roll-outs."""
LANES = 16
NVLINKS = 18
NVLINK_BYTES_PER_SECOND = 26.5625e9
HOSTS_A_RACK = 4


@dataclass(frozen=True, slots=True)
class Sku:
    """
    What was bought.

    Args:
        cluster: The name of its cluster, which says that nothing of it exists.
        gpu_device: PCI device id of the GPU.
        capability: CUDA compute capability.
        gts: Speed of the PCIe links of its GPUs.
        cores: Of each of two CPUs; a NUMA node each.
        nics: Of the host; spread evenly over the GPUs.
        price_per_gpu_hour: In US dollars.
    """

    name: str
    cluster: str
    prefix: str
    gpu: str
    gpu_device: str
    gpu_memory_bytes: int
    capability: str
    gts: float
    nvlink: bool
    cpu: str
    cpu_vendor: str
    cores: int
    memory_bytes: int
    nics: int
    nic_bytes_per_second: float
    price_per_gpu_hour: float


SXM = Sku(
    name="h200-sxm8",
    cluster="synthetic-sxm",
    prefix="h",
    gpu="NVIDIA H200",
    gpu_device="0x2335",
    gpu_memory_bytes=150_754_820_096,
    capability="9.0",
    gts=32.0,
    nvlink=True,
    cpu="Intel(R) Xeon(R) Platinum 8480C",
    cpu_vendor="GenuineIntel",
    cores=56,
    memory_bytes=2**40,
    nics=8,
    nic_bytes_per_second=50e9,
    price_per_gpu_hour=3.50,
)
PCIE = Sku(
    name="l40s-pcie8",
    cluster="synthetic-pcie",
    prefix="p",
    gpu="NVIDIA L40S",
    gpu_device="0x26b9",
    gpu_memory_bytes=48_305_799_168,
    capability="8.9",
    gts=16.0,
    nvlink=False,
    cpu="AMD EPYC 9354 32-Core Processor",
    cpu_vendor="AuthenticAMD",
    cores=32,
    memory_bytes=384 * 2**30,
    nics=2,
    nic_bytes_per_second=25e9,
    price_per_gpu_hour=0.95,
)
SKUS = (SXM, PCIE)


def make_host(
    sku: Sku, name: str, number: int, *, seed: int, narrow: tuple[int, ...], driver: str, at: str
) -> Host:
    """
    One host as a sweep finds it.

    Args:
        number: From 1; gives rack and address.
        narrow: GPUs whose link lost half its lanes.
        at: When discovery looked.
    """
    topology = _topology(sku, narrow, driver)
    gpus = tuple(replace(g, uuid=gpu_uuid(seed, name, g.index or 0)) for g in topology.gpus)
    rack = (number - 1) // HOSTS_A_RACK + 1
    return Host(
        key=f"synthetic-{name}",
        key_source="id",
        name=name,
        address=f"192.0.2.{(number - 1) % 254 + 1}",  # kept for documentation by RFC 5737
        facts=_facts(name, gpus),
        topology=replace(topology, gpus=gpus, taken_at=at),
        labels={
            "sku": sku.name,
            "rack": f"{sku.prefix}r{rack}",
            "leaf": f"{sku.prefix}leaf{(rack + 1) // 2}",
        },
    )


def gpu_uuid(seed: int, host: str, index: int) -> str:
    """The UUID of a GPU; the same for the same seed."""
    digest = hashlib.blake2b(f"{seed}/{host}/{index}".encode(), digest_size=16).digest()
    return f"GPU-{uuid.UUID(bytes=digest, version=4)}"


def _facts(name: str, gpus: tuple[Gpu, ...]) -> HostFacts:
    return HostFacts(
        hostname=name,
        interpreter="/usr/bin/python3",
        topobench=__version__,
        source_digest="synthetic",
        python="3.12.3",
        numactl="/usr/bin/numactl",
        torch="2.9.1+cu130",
        torch_gpus=tuple(g.key for g in gpus),
        packages={"numba": "0.62.1"},
    )


@functools.cache
def _topology(sku: Sku, narrow: tuple[int, ...], driver: str) -> Topology:
    """The wiring all hosts of a kind share; GPUs have no UUIDs yet."""
    gpus = tuple(_gpu(sku, n) for n in range(GPUS))
    pci = (*_gpu_branches(sku, narrow), *_disk_branch(), *(_nvswitches() if sku.nvlink else ()))
    found = Topology(
        taken_at="",
        root="/",
        virtualization="none",
        trust="full",
        machine=_machine(driver),
        cpus=_cpus(sku),
        numa_nodes=tuple(
            NumaNode(n, NodeKind.CPU_MEMORY, _node_cpus(sku, n), sku.memory_bytes, allowed=True)
            for n in (0, 1)
        ),
        numa_distances=NumaDistances((0, 1), ((10, 21), (21, 10))),
        pci=pci,
        gpus=gpus,
        nics=tuple(_nic(sku, n) for n in range(sku.nics)),
        nvswitches=tuple(d.address for d in pci if d.device == _NVSWITCH),
        nvme=(Nvme("nvme0", f"0000:{_DISK_BUS + 1:02x}:00.0", _near(0), "SAMSUNG MZWLO3T8HCLS"),),
        warnings=tuple(link_findings(pci, gpus)),
        nccl_version=nccl_paths.VERSION,
    )
    paths = find_paths(found)
    found = replace(found, paths=paths.paths, warnings=(*found.warnings, *paths.warnings))
    return replace(found, fingerprints=fingerprints(found))


_NVSWITCH = "0x22a3"
_DISK_BUS, _SWITCH_BUS = 0x04, 0x08
_BRIDGE, _GPU, _NETWORK, _DISK = "0x060400", "0x030200", "0x020700", "0x010802"


def _machine(driver: str) -> Machine:
    return Machine(
        arch="x86_64",
        vendor="Synthetic",
        product="Synthetic 8-GPU server",
        bios="1.0",
        kernel="6.8.0-45-generic",
        os="Ubuntu 24.04.3 LTS",
        driver=driver,
        cuda="13.0" if driver.startswith("580") else "12.8",
        iommu="off",
    )


def _cpus(sku: Sku) -> Cpus:
    every = f"0-{2 * sku.cores - 1}"
    return Cpus(
        possible=every,
        online=every,
        allowed=every,
        model=sku.cpu,
        vendor=sku.cpu_vendor,
        packages=2,
        physical_cores=2 * sku.cores,
        threads_per_core=1,
    )


def _node_cpus(sku: Sku, node: int) -> str:
    return f"{node * sku.cores}-{(node + 1) * sku.cores - 1}"


def _node(gpu: int) -> int:
    return gpu * 2 // GPUS


def _near(node: int) -> Known:
    return Known(node, "sysfs")


def _bus(gpu: int) -> int:
    return 0x10 + 0x10 * gpu


def _gpu_address(gpu: int) -> str:
    return f"0000:{_bus(gpu) + 3:02x}:00.0"


def _nic_address(sku: Sku, nic: int) -> str:
    return f"0000:{_bus(nic * GPUS // sku.nics) + 4:02x}:00.0"


def _gpu(sku: Sku, index: int) -> Gpu:
    links = tuple(NvLink(n, "active", "nvswitch") for n in range(NVLINKS))
    rate = NVLINKS * NVLINK_BYTES_PER_SECOND
    return Gpu(
        index=index,
        uuid=None,
        pci_address=_gpu_address(index),
        model=sku.gpu,
        memory_bytes=sku.gpu_memory_bytes,
        cpu_node=_near(_node(index)),
        cuda_index=index,
        cpus=_node_cpus(sku, _node(index)),
        compute_capability=sku.capability,
        nvlink=NvLinks(NVLINKS, NVLINKS, "4.0", rate, links) if sku.nvlink else None,
        fabric="completed" if sku.nvlink else None,
        virtualization="none",
    )


def _nic(sku: Sku, number: int) -> Nic:
    node = _near(_node(number * GPUS // sku.nics))
    return Nic(
        name=f"mlx5_{number}",
        pci_address=_nic_address(sku, number),
        numa_node=node,
        rate_bytes_per_second=sku.nic_bytes_per_second,
        link_layer="InfiniBand",
        state="active",
        rdma=True,
        port=1,
        physical_state="linkup",
    )


def _gpu_branches(sku: Sku, narrow: tuple[int, ...]) -> list[PciDevice]:
    """Each GPU under a switch of its own, some beside a NIC."""
    nics = {_nic_address(sku, n) for n in range(sku.nics)}
    found = []
    for gpu in range(GPUS):
        bus, near = _bus(gpu), _near(_node(gpu))
        port, up = f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"
        down, second = f"0000:{bus + 2:02x}:00.0", f"0000:{bus + 2:02x}:01.0"
        root = f"pci0000:{bus:02x}"
        full = _link(sku.gts, LANES, LANES)
        own = _link(sku.gts, LANES // 2 if gpu in narrow else LANES, LANES)
        make = functools.partial(PciDevice, numa_node=near, host_bridge=root, acs="off")
        found += [
            make(port, _BRIDGE, "0x8086", "0x352a", None, "root_port", link=full),
            make(up, _BRIDGE, "0x1000", "0xc030", port, "upstream", link=full),
            make(down, _BRIDGE, "0x1000", "0xc030", up, "downstream", link=full),
            make(_gpu_address(gpu), _GPU, "0x10de", sku.gpu_device, down, "endpoint", link=own),
        ]
        nic = f"0000:{bus + 4:02x}:00.0"
        if nic in nics:
            found += [
                make(second, _BRIDGE, "0x1000", "0xc030", up, "downstream", link=full),
                make(nic, _NETWORK, "0x15b3", "0x1021", second, "endpoint", link=full),
            ]
    return found


def _disk_branch() -> list[PciDevice]:
    port, disk = f"0000:{_DISK_BUS:02x}:01.0", f"0000:{_DISK_BUS + 1:02x}:00.0"
    make = functools.partial(
        PciDevice,
        numa_node=_near(0),
        host_bridge=f"pci0000:{_DISK_BUS:02x}",
        link=_link(16.0, 4, 4),
    )
    return [
        make(port, _BRIDGE, "0x8086", "0x347a", None, "root_port"),
        make(disk, _DISK, "0x144d", "0xa824", port, "endpoint"),
    ]


def _nvswitches() -> list[PciDevice]:
    found = []
    for number in range(4):
        bus = _SWITCH_BUS + number
        make = functools.partial(
            PciDevice, numa_node=_near(1), host_bridge="pci0000:07", link=_link(16.0, 2, 2)
        )
        port = f"0000:07:{number + 1:02x}.0"
        found += [
            make(port, _BRIDGE, "0x8086", "0x347a", None, "root_port"),
            make(f"0000:{bus:02x}:00.0", "0x068000", "0x10de", _NVSWITCH, port, "endpoint"),
        ]
    return found


def _link(gts: float, width: int, most: int) -> PciLink:
    """A link at its full speed, and as many lanes of the most it has."""
    return PciLink(
        speed_gts=gts,
        width=width,
        max_speed_gts=gts,
        max_width=most,
        bytes_per_second=link_bytes_per_second(gts, width),
        effective_max_bytes_per_second=link_bytes_per_second(gts, most),
    )
