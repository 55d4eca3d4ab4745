"""Whole hosts of many makes, from their sysfs tree and NVML to paths and warnings."""

from __future__ import annotations

from pathlib import Path

import pytest

from discovered import between, warned
from made_hosts import HOSTS, make
from topobench.topology import Gpu, Mig, NodeKind, NvLinks, Topology


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Topology]:
    """Name of each host -> its topology."""
    names = [file.stem for file in HOSTS.glob("*.yaml")]
    return {name: make(name, tmp_path_factory.mktemp(name)).discover() for name in names}


def matrix(topology: Topology, end: str, kind: str = "gpu") -> list[str | None]:
    """Classes from one end to all of a kind, in order."""
    return [p.smi for p in topology.paths if p.a == end and p.b.startswith(f"{kind}:")]


def nvlinks(gpu: Gpu) -> NvLinks:
    assert gpu.nvlink is not None
    return gpu.nvlink


@pytest.mark.parametrize(
    ("name", "links", "version", "rate", "nccl_rate"),
    [
        ("h100-nvswitch", 18, "4.0", 478.116e9, 370.8e9),
        ("h800", 8, "4.0", 212.496e9, 164.8e9),
        ("b200", 18, "5.0", 956.25e9, 721.8e9),
    ],
)
def test_eight_gpus_behind_nvswitches_are_healthy_and_equal(
    hosts: dict[str, Topology], name: str, links: int, version: str, rate: float, nccl_rate: float
) -> None:
    """8 links of an H800, and 18 of 36 capable ones of a B200, are all that they have."""
    found = hosts[name]
    assert warned(found) == []
    for gpu in found.gpus:
        told = nvlinks(gpu)
        assert (told.active, told.expected, told.version) == (links, links, version)
        assert told.bytes_per_second == pytest.approx(rate)
        assert len(told.links) == links
    assert matrix(found, "gpu:0") == [f"NV{links}"] * 7
    path = between(found, "gpu:0", "gpu:7")
    assert (path.smi_pcie, path.nccl, path.hops, path.bottleneck) == ("SYS", "NVL", 2, "nvlink")
    assert path.nccl_bytes_per_second == pytest.approx(nccl_rate)


def test_pcie_classes_and_nccl_types_below_switches(hosts: dict[str, Topology]) -> None:
    """The own switch's NICs by PCIe, those of others over the GPU beside them."""
    found = hosts["h100-nvswitch"]
    assert matrix(found, "gpu:2", "nic") == ["NODE"] * 2 + ["PIX"] * 2 + ["SYS"] * 4
    types = [p.nccl for p in found.paths if p.a == "gpu:2" and p.b.startswith("nic:")]
    assert types == ["PXN"] * 2 + ["PIX"] * 2 + ["PXN"] * 4
    assert matrix(found, "nic:mlx5_0", "nic") == ["PIX"] + ["NODE"] * 2 + ["SYS"] * 4
    assert matrix(found, "gpu:2", "numa") == ["PHB", "SYS"]


def test_bridged_pairs_have_nvlink_and_the_others_pcie(hosts: dict[str, Topology]) -> None:
    found = hosts["a100-pcie"]
    assert matrix(found, "gpu:0") == ["NV12", "PIX", "PIX", "SYS", "SYS", "SYS", "SYS"]
    assert {nvlinks(g).expected for g in found.gpus} == {12}
    path = between(found, "gpu:0", "gpu:1")
    assert (path.nccl, path.hops, path.nccl_bytes_per_second) == ("NVL", 1, 240e9)
    assert warned(found) == []


def test_grace_hopper_has_one_node_to_bind_to_and_a_chip_link(hosts: dict[str, Topology]) -> None:
    found = hosts["gh200"]
    assert [n.id for n in found.cpu_nodes] == [0]
    assert [n.kind for n in found.numa_nodes[1:]] == [NodeKind.GPU] + [NodeKind.EMPTY] * 7
    (gpu,) = found.gpus
    assert (gpu.cpu_node.value, gpu.own_numa_node, gpu.nvlink) == (0, 1, None)
    assert (gpu.c2c, gpu.c2c_links, gpu.c2c_bytes_per_second) == (True, 10, 450e9)
    near = between(found, "gpu:0", "numa:0")
    assert (near.nccl, near.bottleneck, near.nominal_bytes_per_second) == ("C2C", "c2c", 450e9)
    assert between(found, "gpu:0", "nic:mlx5_0").nccl == "P2C"


def test_tray_of_a_fabric_over_many_hosts(hosts: dict[str, Topology]) -> None:
    found = hosts["gb200-tray"]
    assert [(n.id, n.kind) for n in found.numa_nodes if n.gpu] == [
        (n, NodeKind.GPU) for n in (2, 10, 18, 26)
    ]
    assert [(g.cpu_node.value, g.own_numa_node) for g in found.gpus] == [
        (0, 2), (0, 10), (1, 18), (1, 26),
    ]  # fmt: skip
    assert {(g.fabric, g.fabric_multi_node) for g in found.gpus} == {("completed", True)}
    assert hosts["h100-nvswitch"].gpus[0].fabric_multi_node is False
    assert between(found, "gpu:0", "numa:0").nccl == "C2C"
    far = between(found, "gpu:0", "numa:1")
    assert (far.smi, far.nccl, far.nominal_bytes_per_second) == ("SYS", "SYS", None)
    assert warned(found) == []


def test_slices_have_the_place_of_their_gpu_and_no_paths(hosts: dict[str, Topology]) -> None:
    found = hosts["a100-mig"]
    whole, *slices, other = found.gpus
    assert whole.mig == Mig("enabled")
    assert [(s.mig and s.mig.profile, s.memory_bytes) for s in slices] == [
        ("1g.10gb", 10 << 30), ("2g.20gb", 20 << 30), ("4g.40gb", 40 << 30),
    ]  # fmt: skip
    assert {(s.pci_address, s.cpu_node.value, s.nvlink) for s in slices} == {
        (whole.pci_address, 0, None)
    }
    assert other.mig is None
    assert [p.smi for p in found.paths if p.a == "gpu:0" and p.b.startswith("gpu:")] == ["NV12"]


def test_each_fault_is_named_once(hosts: dict[str, Topology]) -> None:
    found = hosts["h100-lost"]
    assert warned(found) == [
        ("gpu_lost", "gpu:2"),
        ("nvlink_degraded", "gpu:4"),
        ("fabric", "gpu:5"),
        ("fabric", "gpu:6"),
    ]
    assert found.gpus[5].fabric == "failed: 58"
    assert found.gpus[6].fabric_health == ("degraded bandwidth", "insufficient NVLinks")
    assert matrix(found, "gpu:4") == ["NV17"] * 3
    lost = between(found, "gpu:0", "gpu:2")
    assert (lost.smi, lost.nccl) == ("NODE", None)


def test_idle_links_are_healthy_and_narrow_ones_are_not(hosts: dict[str, Topology]) -> None:
    """All run at 2.5 GT/s; GPU 3 at 8 lanes. GPU 6 sits in a slower slot by design."""
    found = hosts["h100-links"]
    assert warned(found) == [("link_width", "gpu:3")]
    to_host = {g.index: between(found, g.name, "numa:0") for g in found.gpus}
    assert to_host[0].nominal_bytes_per_second == pytest.approx(63.015e9, rel=1e-4)
    assert to_host[6].nominal_bytes_per_second == pytest.approx(31.508e9, rel=1e-4)
    assert to_host[6].bottleneck == f"pci:{found.gpus[6].pci_address}"
    assert to_host[6].nccl_bytes_per_second == 22e9


def test_guest_is_trusted_little(hosts: dict[str, Topology]) -> None:
    found = hosts["guest"]
    assert (found.virtualization, found.trust) == ("vm", "low")
    assert warned(found) == [("guest_view", "host")]
    assert {g.virtualization for g in found.gpus} == {"passthrough"}
    assert {g.cpu_node.source for g in found.gpus} == {"only_node"}
    path = between(found, "gpu:0", "gpu:1")
    assert (path.smi, path.smi_pcie, path.nccl_bytes_per_second) == ("NV18", "PHB", 370.8e9)


def test_other_makers_accelerators_are_in_the_pci_tree_alone(hosts: dict[str, Topology]) -> None:
    found = hosts["no-nvml"]
    assert found.gpus == ()
    assert [d.vendor for d in found.pci if d.pci_class == "0x120000"] == ["0x1002"] * 2
    assert warned(found) == []


def test_every_host_has_a_test(hosts: dict[str, Topology]) -> None:
    text = Path(__file__).read_text()
    assert {name for name in hosts if f'"{name}"' not in text} == set()
