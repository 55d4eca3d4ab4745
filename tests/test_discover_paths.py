"""Path classes by the bridges two functions share, hops, and the slowest link."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from discovered import between
from fake_nvml import FakeNvml, Refusal, fields, gpu, links
from made_machine import GPU, NIC, Eight, add_cpus, add_pci, add_rdma
from topobench.agents.discover import discover, read_nvml
from topobench.importers.hwloc_xml import parse
from topobench.paths import find_paths
from topobench.topology import Topology

DGX2 = Path(__file__).parents[2] / "shared/topodata/hwloc_xml/nvidiaDGX2.xml"

GEN3_X16 = ("8.0 GT/s PCIe", "16", "8.0 GT/s PCIe", "16")
GEN4_X8 = ("16.0 GT/s PCIe", "8", "16.0 GT/s PCIe", "8")
GEN4_X16 = ("16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "16")


def classes(root: Path, first: str, second: str, nodes: tuple[int, int] = (0, 0)) -> Any:
    """Class, NCCL's type and hops between two GPUs at the ends of these PCI paths."""
    add_cpus(root, [[0], [1]])
    for function, node in zip((first, second), nodes, strict=True):
        steps = function.split("/")
        for depth in range(2, len(steps)):
            bridge = "/".join(steps[:depth])
            if not (root / f"sys/devices/{bridge}/class").exists():
                add_pci(root, bridge, node=node)
        add_pci(root, function, GPU, node=node)
    path = discover(root, nvml=None).paths[0]
    return path.smi, path.nccl, path.hops


PORT = "pci0000:00/0000:00:01.0"
SWITCH = f"{PORT}/0000:01:00.0"
INNER = f"{SWITCH}/0000:02:00.0/0000:03:00.0"


@pytest.mark.parametrize(
    ("first", "second", "nodes", "expected"),
    [
        (f"{SWITCH}/0000:02:00.0/0000:03:00.0", f"{SWITCH}/0000:02:01.0/0000:04:00.0", (0, 0),
         ("PIX", "PIX", 2)),
        (f"{PORT}/0000:01:00.0", f"{PORT}/0000:01:00.1", (0, 0), ("PIX", "PHB", 2)),
        (f"{INNER}/0000:04:00.0/0000:05:00.0", f"{INNER}/0000:04:01.0/0000:06:00.0", (0, 0),
         ("PIX", "PIX", 2)),
        (f"{INNER}/0000:04:00.0/0000:05:00.0", f"{SWITCH}/0000:02:01.0/0000:07:00.0", (0, 0),
         ("PXB", "PXB", 3)),
        (f"{PORT}/0000:01:00.0", "pci0000:00/0000:00:02.0/0000:02:00.0", (0, 0),
         ("PHB", "PHB", 2)),
        ("pci0000:00/0000:00:06.0", "pci0000:00/0000:00:07.0", (-1, -1), ("PHB", "PHB", 2)),
        (f"{PORT}/0000:01:00.0", "pci0000:40/0000:40:01.0/0000:41:00.0", (0, 0),
         ("NODE", "PHB", 2)),
        (f"{PORT}/0000:01:00.0", "pci0000:40/0000:40:01.0/0000:41:00.0", (0, 1),
         ("SYS", "SYS", 3)),
        (f"{PORT}/0000:01:00.0", "pci0000:40/0000:40:01.0/0000:41:00.0", (0, -1),
         ("SYS", "SYS", 3)),
        (f"{PORT}/0000:01:00.0", "pci0001:00/0001:00:01.0/0001:01:00.0", (1, 1),
         ("NODE", "PHB", 2)),
    ],
    ids=[
        "one switch", "one card", "inner switch", "two switches", "two root ports",
        "flat guest", "two host bridges", "two nodes", "one node unknown", "two domains",
    ],
)  # fmt: skip
def test_class_follows_the_bridges_shared(
    tmp_path: Path, first: str, second: str, nodes: tuple[int, int], expected: Any
) -> None:
    assert classes(tmp_path, first, second, nodes) == expected


def test_capture_without_the_tree_of_bridges_tells_no_class(tmp_path: Path) -> None:
    """Functions of one domain whose folders are no links; another domain is another bridge."""
    add_cpus(tmp_path, [[0], [1]])
    for address in ("0004:05:00.0", "0004:06:00.0", "0035:03:00.0"):
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, text in zip(("class", "vendor", "device"), GPU, strict=True):
            (folder / name).write_text(text)
        (folder / "numa_node").write_text("0" if address.startswith("0004") else "1")
    found = discover(tmp_path, nvml=None)
    assert between(found, "gpu:0004:05:00.0", "gpu:0004:06:00.0").smi is None
    assert between(found, "gpu:0004:05:00.0", "gpu:0035:03:00.0").smi == "SYS"


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Topology:
    machine = Eight(tmp_path_factory.mktemp("eight"), cpus=2, gpu_link={1: GEN4_X8}).make()
    answers = [gpu(i, a) for i, a in enumerate(sorted(machine.gpu_addresses))]
    return discover(machine.root, nvml=read_nvml(FakeNvml(answers)))


def test_eight_gpus_in_pairs(eight: Topology) -> None:
    first = {p.b: p.smi_pcie for p in eight.paths if p.a == "gpu:0" and p.b.startswith("gpu:")}
    assert list(first.values()) == ["PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert {p.smi for p in eight.paths if p.b.startswith("gpu:")} == {"NV18"}


def test_nic_of_the_own_switch_is_nearest(eight: Topology) -> None:
    nics = {p.b: p.smi for p in eight.paths if p.a == "gpu:2" and p.b.startswith("nic:")}
    assert [n for n, c in nics.items() if c == "PIX"] == ["nic:mlx5_2", "nic:mlx5_3"]
    assert [n for n, c in nics.items() if c == "NODE"] == ["nic:mlx5_0", "nic:mlx5_1"]


def test_slowest_link_bounds_the_path_and_is_named(eight: Topology) -> None:
    """GPU 1 sits in a gen 4 x8 slot; a 400 Gb/s NIC is slower than a gen 5 x16 link."""
    narrow = eight.gpus[1].pci_address
    to_host = between(eight, "gpu:1", "numa:0")
    assert to_host.nominal_bytes_per_second == pytest.approx(15.754e9, rel=1e-4)
    assert to_host.bottleneck == f"pci:{narrow}"
    nic = between(eight, "gpu:0", "nic:mlx5_0")
    assert (nic.nominal_bytes_per_second, nic.bottleneck) == (50e9, "nic:mlx5_0")
    assert between(eight, "gpu:1", "nic:mlx5_0").bottleneck == f"pci:{narrow}"


def test_node_of_the_gpu_is_near_and_others_are_far(eight: Topology) -> None:
    assert between(eight, "gpu:0", "numa:0").smi == "PHB"
    assert between(eight, "gpu:0", "numa:1").smi == "SYS"
    assert between(eight, "gpu:7", "numa:1").smi == "PHB"


def test_uplink_of_a_switch_counts_only_outside_it(tmp_path: Path) -> None:
    add_cpus(tmp_path, [[0]])
    add_pci(tmp_path, PORT, node=0, link=GEN4_X8)
    add_pci(tmp_path, SWITCH, node=0, link=GEN4_X8)
    for port, address in (("0000:02:00.0", "0000:03:00.0"), ("0000:02:01.0", "0000:04:00.0")):
        add_pci(tmp_path, f"{SWITCH}/{port}", node=0, link=GEN4_X16)
        add_pci(tmp_path, f"{SWITCH}/{port}/{address}", GPU, node=0, link=GEN4_X16)
    found = discover(tmp_path, nvml=None)
    peer = between(found, "gpu:0000:03:00.0", "gpu:0000:04:00.0")
    assert peer.nominal_bytes_per_second == pytest.approx(31.508e9, rel=1e-4)
    to_host = between(found, "gpu:0000:03:00.0", "numa:0")
    assert to_host.nominal_bytes_per_second == pytest.approx(15.754e9, rel=1e-4)
    assert to_host.bottleneck == "pci:0000:01:00.0"


def test_unknown_link_makes_the_ceiling_unknown(tmp_path: Path) -> None:
    add_cpus(tmp_path, [[0]])
    add_pci(tmp_path, "pci0000:00/0000:00:01.0", GPU, node=0)
    add_pci(tmp_path, "pci0000:00/0000:00:02.0", NIC, node=0, link=None)
    add_rdma(tmp_path, "mlx5_0", "pci0000:00/0000:00:02.0")
    path = between(discover(tmp_path, nvml=None), "gpu:0000:00:01.0", "nic:mlx5_0")
    assert (path.smi, path.nominal_bytes_per_second, path.bottleneck) == ("PHB", None, None)


def linked(index: int, address: str, peers: list[str]) -> dict[str, Any]:
    """A GPU with one direct link to each peer."""

    def remote(link: int) -> Any:
        return SimpleNamespace(bus=1, busId=f"0000{peers[link]}")

    return gpu(
        index,
        address,
        DeviceGetName="Tesla V100-SXM2-16GB",
        DeviceGetCudaComputeCapability=(7, 0),
        DeviceGetNvLinkState=links(["gpu"] * len(peers)),
        DeviceGetNvLinkVersion=2,
        DeviceGetNvLinkRemoteDeviceType=0,
        DeviceGetNvLinkRemotePciInfo=remote,
    )


def test_gpus_joined_by_a_third_are_nvb_for_nccl_alone(tmp_path: Path) -> None:
    a, b, c = "0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"
    add_cpus(tmp_path, [[0], [1]])
    for number, address in enumerate((a, b, c)):
        add_pci(tmp_path, f"pci{address[:7]}/{address}", GPU, node=number % 2, link=GEN3_X16)
    answers = [linked(0, a, [b, b]), linked(1, b, [a, a, c]), linked(2, c, [b])]
    found = discover(tmp_path, nvml=read_nvml(FakeNvml(answers)))
    assert (between(found, "gpu:0", "gpu:1").smi, between(found, "gpu:1", "gpu:2").smi) == (
        "NV2",
        "NV1",
    )
    far = between(found, "gpu:0", "gpu:2")
    assert (far.smi, far.nccl) == ("NODE", "NVB")


def test_chip_link_to_the_cpu_takes_the_place_of_pcie(tmp_path: Path) -> None:
    add_cpus(tmp_path, [[0]])
    add_pci(tmp_path, "pci0009:00/0009:01:00.0", GPU, node=0)
    given = gpu(
        0,
        "0009:01:00.0",
        DeviceGetC2cModeInfoV=SimpleNamespace(isC2cEnabled=1),
        DeviceGetFieldValues=fields(26562, chip_links=10, chip_rate=45000),
    )
    path = between(discover(tmp_path, nvml=read_nvml(FakeNvml([given]))), "gpu:0", "numa:0")
    assert (path.nccl, path.bottleneck, path.nominal_bytes_per_second) == ("C2C", "c2c", 450e9)
    assert path.nccl_bytes_per_second == 450e9


def test_lost_gpu_has_paths_by_pci(tmp_path: Path) -> None:
    machine = Eight(tmp_path, cpus=2).make()
    answers: list[Any] = [gpu(i, a) for i, a in enumerate(sorted(machine.gpu_addresses))]
    answers[1] = Refusal(15)
    found = discover(tmp_path, nvml=read_nvml(FakeNvml(answers)))
    assert between(found, "gpu:0", "gpu:1").smi == "PIX"


@pytest.mark.skipif(not DGX2.exists(), reason=f"no recorded machine {DGX2}")
def test_dgx_2_has_the_classes_that_nvidia_smi_prints() -> None:
    """Switches in two levels: pairs behind one of the inner ones, four behind an outer one."""
    topology = parse(DGX2.read_text())
    found = {(p.a, p.b): p for p in find_paths(topology).paths}
    pairs = [found["gpu:0", f"gpu:{n}"] for n in range(1, 16)]
    assert [p.smi_pcie for p in pairs] == ["PIX", "PXB", "PXB"] + ["NODE"] * 4 + ["SYS"] * 8
    assert {p.smi for p in pairs} == {"NV6"}
    assert {p.nccl for p in pairs} == {None}  # the file does not tell the GPUs' generation
    gpus = tuple(replace(g, compute_capability="7.0") for g in topology.gpus)
    found = {(p.a, p.b): p for p in find_paths(replace(topology, gpus=gpus)).paths}
    pairs = [found["gpu:0", f"gpu:{n}"] for n in range(1, 16)]
    assert {(p.nccl, p.nccl_bytes_per_second) for p in pairs} == {("NVL", 120e9)}


def test_bridges_in_a_loop_and_words_without_sense_break_nothing(eight: Topology) -> None:
    """A file that a user gives may say anything."""
    first, second = eight.pci[0], eight.pci[1]
    pci = (
        replace(first, parent=second.address, role="upstream", vendor="x", subsystem_device="?"),
        replace(second, parent=first.address, role="upstream"),
        *(replace(d, parent=first.address) for d in eight.pci[2:]),
    )
    gpus = tuple(replace(g, compute_capability="new", index=0) for g in eight.gpus)
    broken = replace(eight, pci=pci, gpus=gpus, nvme=eight.nvme * 2)
    assert len(find_paths(broken).paths) > len(eight.paths)
    assert find_paths(replace(eight, pci=(), numa_nodes=())).paths


def test_gpus_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    """One counts two NVLinks to the other, which counts one and refuses peer access."""
    a, b = "0000:0a:00.0", "0000:0b:00.0"
    add_cpus(tmp_path, [[0]])
    for address in (a, b):
        add_pci(tmp_path, f"pci{address[:7]}/{address}", GPU, node=0)
    answers = [linked(0, a, [b, b]), {**linked(1, b, [a]), "DeviceGetP2PStatus": 5}]
    found = discover(tmp_path, nvml=read_nvml(FakeNvml(answers)))
    assert between(found, "gpu:0", "gpu:1").smi == "NV1"
    texts = {w.code: w.text for w in found.warnings if w.subject == "gpu:0-gpu:1"}
    assert texts == {
        "nvlink_disagrees": "gpu:0 counts 2 NVLinks to it, gpu:1 counts 1",
        "p2p_one_way": "peer access differs by direction: read OK, write OK, "
        "back read NS, write NS",
    }
