"""Small facts that readers take from sysfs: kinds of CPUs, caches, memory, SR-IOV, IOMMU, ports."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from discovered import device, warned
from made_machine import BRIDGE, GPU, NIC, NVME, add_cpus, add_pci, add_rdma, link_class, write
from topobench.agents.discover import discover
from topobench.topology import Caches, CpuGroups, CpuKind, MemoryAccess, Nic, Topology

PORTS = Path(__file__).parents[2] / "shared/topodata/ib_sysfs/sys-class-infiniband-h100.0"
CPU, NODE = "sys/devices/system/cpu", "sys/devices/system/node"
PORT = "pci0000:00/0000:00:01.0"
DEVICE = f"{PORT}/0000:01:00.0"
GEN5 = ("32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16")
MI300 = ("0x120000", "0x1002", "0x74a1")
RAID = ("0x010400", "0x1000", "0x10e2")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two NUMA nodes of four CPUs, two threads a core."""
    add_cpus(tmp_path, [range(4), range(4, 8)])
    for cpu in range(8):
        first = cpu - cpu % 2
        write(tmp_path, f"{CPU}/cpu{cpu}/topology/core_cpus_list", f"{first}-{first + 1}")
    return tmp_path


def seen(root: Path) -> Topology:
    return discover(root, nvml=None)


def test_groups_of_cpus_by_level(root: Path) -> None:
    cpus = seen(root).cpus
    assert cpus.groups == (
        CpuGroups("package", ("0-3", "4-7")),
        CpuGroups("core", ("0-1", "2-3", "4-5", "6-7")),
    )
    assert (cpus.packages, cpus.dies, cpus.physical_cores, cpus.threads_per_core) == (2, None, 4, 2)


def test_caches_are_read_once_for_all_that_share_them(root: Path) -> None:
    for cpu in range(8):
        core, package = cpu - cpu % 2, cpu - cpu % 4
        for index, (level, kind, size, last) in enumerate(
            [("1", "Data", "48K", core + 1), ("3", "Unified", "32M", package + 3)]
        ):
            base = f"{CPU}/cpu{cpu}/cache/index{index}"
            first = core if level == "1" else package
            for name, text in (("level", level), ("type", kind), ("size", size)):
                write(root, f"{base}/{name}", text)
            write(root, f"{base}/shared_cpu_list", f"{first}-{last}")
    cpus = seen(root).cpus
    assert cpus.caches == (
        Caches(1, "data", 48 << 10, ("0-1", "2-3", "4-5", "6-7")),
        Caches(3, "unified", 32 << 20, ("0-3", "4-7")),
    )
    assert cpus.last_level_cache_bytes == 32 << 20


@pytest.mark.parametrize(
    ("files", "kinds"),
    [
        (
            {"sys/devices/cpu_core/cpus": "0-3", "sys/devices/cpu_atom/cpus": "4-7"},
            (CpuKind("core", "0-3"), CpuKind("atom", "4-7")),
        ),
        (
            {f"{CPU}/cpu{n}/cpu_capacity": "1024" if n > 5 else "446" for n in range(8)},
            (CpuKind("capacity 1024", "6-7"), CpuKind("capacity 446", "0-5")),
        ),
        (
            {
                f"{CPU}/cpu{n}/cpufreq/base_frequency": "2400000" if n < 4 else "1800000"
                for n in range(8)
            },
            (CpuKind("base 2400 MHz", "0-3"), CpuKind("base 1800 MHz", "4-7")),
        ),
        ({f"{CPU}/cpu{n}/cpu_capacity": "1024" for n in range(8)}, ()),
        ({}, ()),
    ],
    ids=["counters", "capacity", "base frequency", "all alike", "nothing told"],
)
def test_kinds_of_hybrid_cpus(
    root: Path, files: dict[str, str], kinds: tuple[CpuKind, ...]
) -> None:
    for name, text in files.items():
        write(root, name, text)
    assert seen(root).cpus.kinds == kinds


def test_cpus_present_and_not_online_are_offline(root: Path) -> None:
    """The kernel's own list of offline CPUs holds those that could be plugged in, too."""
    write(root, f"{CPU}/present", "0-9")
    write(root, f"{CPU}/possible", "0-63")
    write(root, f"{CPU}/isolated", "6-7")
    cpus = seen(root).cpus
    assert (cpus.offline, cpus.isolated, cpus.possible) == ("8-9", "6-7", "0-63")


def test_numbers_of_an_x86_cpu(root: Path) -> None:
    write(
        root,
        "proc/cpuinfo",
        "processor : 0\nvendor_id : GenuineIntel\ncpu family : 6\nmodel : 143\n"
        "model name : Xeon\nstepping : 8\nflags : fpu lm",
    )
    cpus = seen(root).cpus
    assert (cpus.model, cpus.family, cpus.model_number, cpus.stepping) == ("Xeon", 6, 143, 8)


def test_memory_is_described_by_firmware(root: Path) -> None:
    """The class of initiators with CPUs is read before the class of all; latency 0 is untold."""
    for access, rate in ((0, "1"), (1, "200000")):
        base = f"{NODE}/node1/access{access}/initiators"
        (root / base / "node0").mkdir(parents=True)
        for name in ("read_bandwidth", "write_bandwidth"):
            write(root, f"{base}/{name}", rate)
        write(root, f"{base}/read_latency", "90")
        write(root, f"{base}/write_latency", "0")
    write(root, f"{NODE}/node1/memory_side_cache/index1/size", str(16 << 30))
    near, far = seen(root).numa_nodes
    assert (near.access, near.memory_side_cache_bytes) == (None, None)
    assert far.access == MemoryAccess((0,), 200e9, 200e9, 90e-9, None)
    assert far.memory_side_cache_bytes == 16 << 30


def test_virtual_functions_belong_to_their_physical_function(root: Path) -> None:
    add_pci(root, PORT, BRIDGE, node=0)
    physical = add_pci(root, DEVICE, NIC, node=0)
    write(physical, "sriov_totalvfs", "16")
    write(physical, "sriov_numvfs", "2")
    virtual = add_pci(root, f"{PORT}/0000:01:00.1", NIC, node=0)
    os.symlink("../0000:01:00.0", virtual / "physfn")
    add_rdma(root, "mlx5_0", DEVICE)
    add_rdma(root, "mlx5_1", f"{PORT}/0000:01:00.1")
    found = seen(root)
    owner, part = device(found, "0000:01:00.0"), device(found, "0000:01:00.1")
    assert (owner.role, owner.virtual_functions, owner.physical_function) == ("pf", 2, None)
    assert (part.role, part.virtual_functions, part.physical_function) == (
        "vf", None, "0000:01:00.0",
    )  # fmt: skip
    assert [n.name for n in found.nics] == ["mlx5_0"]


@pytest.mark.parametrize(
    ("folders", "word"),
    [
        ([], "unknown"),
        (["sys/class/iommu"], "off"),
        (["sys/class/iommu/dmar0"], "on"),
        (["sys/kernel/iommu_groups/7"], "on"),
    ],
)
def test_iommu_is_on_off_or_unknown(root: Path, folders: list[str], word: str) -> None:
    for folder in folders:
        (root / folder).mkdir(parents=True)
    assert seen(root).machine.iommu == word


def test_iommu_group_says_whether_addresses_are_translated(root: Path) -> None:
    folder = add_pci(root, PORT, GPU, node=0)
    os.symlink("../../../kernel/iommu_groups/7", folder / "iommu_group")
    write(root, "sys/kernel/iommu_groups/7/type", "identity")
    found = device(seen(root), "0000:00:01.0")
    assert (found.iommu, found.iommu_type) == ("7", "identity")


def test_rdma_port_in_full(root: Path) -> None:
    add_pci(root, PORT, BRIDGE, node=1)
    add_pci(root, DEVICE, NIC, node=1)
    add_rdma(root, "mlx5_0", DEVICE)
    base = f"sys/devices/{DEVICE}"
    write(root, f"{base}/infiniband/mlx5_0/ports/1/phys_state", "5: LinkUp")
    write(root, f"{base}/infiniband/mlx5_0/node_guid", "5c25:7303:0011:2233")
    os.makedirs(root / base / "net/ibp1s0")
    os.symlink("../..", root / base / "net/ibp1s0/device")
    link_class(root, "net", "ibp1s0", f"{DEVICE}/net/ibp1s0")
    found = seen(root)
    assert found.nics == (
        Nic(
            "mlx5_0",
            "0000:01:00.0",
            device(found, "0000:01:00.0").numa_node,
            rate_bytes_per_second=50e9,
            link_layer="InfiniBand",
            state="active",
            rdma=True,
            port=1,
            physical_state="linkup",
            speed_name="4X NDR",
            interfaces=("ibp1s0",),
        ),
    )
    assert "5c25" not in str(found.to_json())


def test_nvme_disk_in_full(root: Path) -> None:
    add_pci(root, PORT, NVME, node=0)
    base = f"sys/devices/{PORT}/nvme/nvme0"
    for name, text in (("model", "PM9A3"), ("state", "live"), ("transport", "pcie")):
        write(root, f"{base}/{name}", text)
    link_class(root, "nvme", "nvme0", f"{PORT}/nvme/nvme0")
    (disk,) = seen(root).nvme
    assert (disk.model, disk.state, disk.transport) == ("PM9A3", "live", "pcie")


@pytest.mark.parametrize(
    ("kind", "link", "codes"),
    [
        (NIC, ("16.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16"), ["link_speed"]),
        (NIC, ("16.0 GT/s PCIe", "8", "32.0 GT/s PCIe", "16"), ["link_width", "link_speed"]),
        (NIC, ("16.0 GT/s PCIe", "8", "16.0 GT/s PCIe", "8"), []),
        (NVME, ("8.0 GT/s PCIe", "4", "16.0 GT/s PCIe", "4"), ["link_speed"]),
        (GPU, ("2.5 GT/s PCIe", "16", "32.0 GT/s PCIe", "16"), []),
        (GPU, ("2.5 GT/s PCIe", "4", "32.0 GT/s PCIe", "16"), ["link_width"]),
        (MI300, ("2.5 GT/s PCIe", "16", "32.0 GT/s PCIe", "16"), []),
        (MI300, ("32.0 GT/s PCIe", "8", "32.0 GT/s PCIe", "16"), ["link_width"]),
        (RAID, ("8.0 GT/s PCIe", "4", "16.0 GT/s PCIe", "8"), ["link_width", "link_speed"]),
    ],
)
def test_links_below_what_both_ends_can(
    root: Path, kind: tuple[str, str, str], link: tuple[str, str, str, str], codes: list[str]
) -> None:
    """A slow card in a fast slot is no fault, nor is an idle GPU."""
    add_pci(root, PORT, BRIDGE, node=0, link=GEN5)
    add_pci(root, DEVICE, kind, node=0, link=link)
    assert [w.code for w in seen(root).warnings if w.code.startswith("link_")] == codes


def test_narrow_uplink_of_a_switch_is_named_and_a_slow_one_by_design_is_not(root: Path) -> None:
    add_pci(root, PORT, BRIDGE, node=0, link=GEN5)
    add_pci(root, DEVICE, node=0, link=("16.0 GT/s PCIe", "8", "16.0 GT/s PCIe", "8"))
    assert warned(seen(root)) == []
    add_pci(root, "pci0000:00/0000:00:02.0", BRIDGE, node=0, link=GEN5)
    narrow = ("32.0 GT/s PCIe", "4", "32.0 GT/s PCIe", "16")
    add_pci(root, "pci0000:00/0000:00:02.0/0000:02:00.0", node=0, link=narrow)
    assert warned(seen(root)) == [("link_width", "pci:0000:02:00.0")]


def test_slot_that_a_guest_does_not_see_is_not_spoken_for(root: Path) -> None:
    """A card on a guest's flat bus: what its slot can do is not known."""
    add_pci(root, "pci0000:00/0000:00:06.0", GPU, node=0, link=("8.0 GT/s PCIe", "8", *GEN5[2:]))
    (warning,) = [w for w in seen(root).warnings if w.code == "link_width"]
    assert warning.text == "its link runs at x8, it can do x16"


def test_sources_that_contradict_each_other_are_named(root: Path) -> None:
    """The kernel says node 0, the function's own CPUs are node 1's."""
    add_pci(root, PORT, NIC, node=0, local="4-7")
    found = seen(root)
    assert device(found, "0000:00:01.0").numa_node.value == 0
    assert warned(found) == [("numa_disagrees", "pci:0000:00:01.0")]


@pytest.mark.skipif(not PORTS.is_dir(), reason=f"no recorded ports in {PORTS}")
def test_recorded_ports_of_an_h100_host(root: Path) -> None:
    """Eight InfiniBand ports and a bond of two Ethernet ports."""
    shutil.copytree(PORTS, root / "sys/class/infiniband", copy_function=shutil.copyfile)
    found = {n.name: n for n in seen(root).nics}
    assert len(found) == 9
    bond = found.pop("mlx5_bond_0")
    assert (bond.link_layer, bond.rate_bytes_per_second, bond.speed_name) == (
        "Ethernet", 25e9, "2X NDR",
    )  # fmt: skip
    assert {(n.link_layer, n.state, n.rate_bytes_per_second) for n in found.values()} == {
        ("InfiniBand", "active", 50e9)
    }
