"""GPUs: the PCI tree joined with NVML, of which every call may fail alone."""

from __future__ import annotations

import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from discovered import between, warned
from fake_nvml import LOST, NO_PERMISSION, NOT_SUPPORTED, FakeNvml, Refusal, gpu, links, mask
from gpu_witnesses import against_nccl, against_smi
from made_machine import GPU, Eight, add_cpus, add_node, add_pci, write
from topobench.agents.discover import NvmlFacts, discover, read_nvml
from topobench.agents.discover.cuda_order import cuda_indices
from topobench.topology import Gpu, Known, NodeKind, Topology

H200X2 = Path(__file__).parent / "data/h200x2"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two NUMA nodes of 32 CPUs and two GPUs, whose nodes sysfs does not know."""
    add_cpus(tmp_path, [range(32), range(32, 64)])
    add_pci(tmp_path, "pci0000:1a/0000:1a:00.0", GPU, node=-1)
    add_pci(tmp_path, "pci0000:9b/0000:9b:00.0", GPU, node=-1)
    return tmp_path


def seen(root: Path, *gpus: Any, **system: Any) -> Topology:
    return discover(root, nvml=read_nvml(FakeNvml(gpus, system)))


def test_node_that_sysfs_lacks_comes_from_nvml(root: Path) -> None:
    second = gpu(1, "0000:9b:00.0", DeviceGetCpuAffinity=mask(range(32, 64)))
    found = seen(root, gpu(0, "0000:1a:00.0", DeviceGetMemoryAffinity=mask([0])), second)
    assert [g.cpu_node for g in found.gpus] == [Known(0, "nvml"), Known(1, "nvml")]
    assert [g.cpus for g in found.gpus] == ["0-31", "32-63"]
    assert warned(found) == []


def test_node_that_nobody_knows_stays_unknown_and_is_named(root: Path) -> None:
    found = seen(root, gpu(0, "0000:1a:00.0"), gpu(1, "0000:9b:00.0"))
    assert [g.cpu_node.value for g in found.gpus] == [None, None]
    assert warned(found) == [("numa_unknown", "gpu:0"), ("numa_unknown", "gpu:1")]
    assert "sysfs says -1" in found.warnings[0].text


def test_affinity_to_every_cpu_names_no_node(root: Path) -> None:
    found = seen(root, gpu(0, "0000:1a:00.0", DeviceGetCpuAffinity=mask(range(64))))
    assert found.gpus[0].cpu_node.value is None


def test_node_of_gpu_memory_is_never_the_node_to_bind_to(tmp_path: Path) -> None:
    """GB200: NVML's NUMA id is a node that holds nothing but the GPU's memory."""
    add_cpus(tmp_path, [range(72), range(72, 144)])
    for number in (2, 10):
        add_node(tmp_path, number, [], 190 << 20)
    write(tmp_path, "sys/devices/system/node/online", "0-2,10")
    add_pci(tmp_path, "pci0008:00/0008:01:00.0", GPU, node=None)
    add_pci(tmp_path, "pci0018:00/0018:01:00.0", GPU, node=None)
    first = gpu(0, "0008:01:00.0", DeviceGetNumaNodeId=2, DeviceGetCpuAffinity=mask(range(72)))
    second = gpu(
        1, "0018:01:00.0", DeviceGetNumaNodeId=10, DeviceGetCpuAffinity=mask(range(72, 144))
    )
    found = seen(tmp_path, first, second)
    assert [(g.cpu_node.value, g.own_numa_node) for g in found.gpus] == [(0, 2), (1, 10)]
    kinds = {n.id: (n.kind, n.gpu) for n in found.numa_nodes}
    assert kinds[2] == (NodeKind.GPU, found.gpus[0].uuid)
    assert [n.id for n in found.cpu_nodes] == [0, 1]


def test_nine_nodes_of_which_one_has_cpus(tmp_path: Path) -> None:
    """GH200: eight empty nodes are kept, none counts as a CPU node."""
    add_cpus(tmp_path, [range(72)])
    for number in range(1, 9):
        add_node(tmp_path, number, [], 0)
    write(tmp_path, "sys/devices/system/node/online", "0-8")
    found = discover(tmp_path, nvml=None)
    assert [n.id for n in found.cpu_nodes] == [0]
    assert [n.kind for n in found.numa_nodes[1:]] == [NodeKind.EMPTY] * 8


def test_addresses_join_whatever_their_spelling(tmp_path: Path) -> None:
    add_cpus(tmp_path, [[0]])
    add_pci(tmp_path, "pci10000:d8/10000:d8:00.0", GPU, node=0)
    answer = SimpleNamespace(busId=b"00010000:D8:00.0")
    found = seen(tmp_path, gpu(0, "", DeviceGetPciInfo=answer))
    assert [(g.pci_address, g.index) for g in found.gpus] == [("10000:d8:00.0", 0)]


def test_lost_gpu_keeps_its_place_and_the_others_their_numbers(tmp_path: Path) -> None:
    machine = Eight(tmp_path).make()
    given = [gpu(i, a) for i, a in enumerate(sorted(machine.gpu_addresses))]
    found = seen(tmp_path, *given[:2], Refusal(LOST), *given[3:])
    assert [g.index for g in found.gpus] == list(range(8))
    assert [g.state for g in found.gpus].count("ok") == 7
    lost = found.gpus[2]
    assert (lost.state, lost.uuid) == ("lost", None)
    assert lost.pci_address == sorted(machine.gpu_addresses)[2]
    assert lost.key == lost.pci_address
    assert ("gpu_lost", "gpu:2") in warned(found)


def test_gpu_lost_between_two_calls_is_lost(root: Path) -> None:
    found = seen(root, gpu(0, "0000:1a:00.0", DeviceGetMemoryInfo=Refusal(LOST)))
    assert (found.gpus[0].state, found.gpus[0].memory_bytes) == ("lost", None)


def test_gpu_that_nvml_may_not_open_is_no_access(root: Path) -> None:
    found = seen(root, gpu(0, "0000:1a:00.0"), Refusal(NO_PERMISSION))
    assert [g.state for g in found.gpus] == ["ok", "no_access"]


def test_compute_modes_that_keep_processes_out_are_warnings(root: Path) -> None:
    one = gpu(0, "0000:1a:00.0", DeviceGetComputeMode=3)
    found = seen(root, one, gpu(1, "0000:9b:00.0", DeviceGetComputeMode=2))
    assert [g.compute_mode for g in found.gpus] == ["exclusive", "prohibited"]
    named = [subject for code, subject in warned(found) if code == "compute_mode"]
    assert named == ["gpu:0", "gpu:1"]
    plain = seen(root, gpu(0, "0000:1a:00.0", DeviceGetComputeMode=0), gpu(1, "0000:9b:00.0"))
    assert [g.compute_mode for g in plain.gpus] == ["default", None]
    assert "compute_mode" not in {code for code, _ in warned(plain)}


@pytest.mark.parametrize("missing", sorted(gpu(0, "0000:1a:00.0")))
def test_any_call_may_fail_alone(root: Path, missing: str) -> None:
    """The GPU stays, with the reason kept, whichever one function refuses."""
    given = gpu(0, "0000:1a:00.0", **{missing: Refusal(NO_PERMISSION)})
    facts = read_nvml(FakeNvml([given]))
    found = discover(root, nvml=facts)
    assert found.gpus[0].index == 0
    assert found.gpus[0].state == "ok"
    if missing != "DeviceGetP2PStatus":  # asked of pairs only
        assert facts.gpus[0].denied[missing.removeprefix("Device")] == "no permission"


def test_library_is_shut_down_as_often_as_opened(root: Path) -> None:
    library = FakeNvml([gpu(0, "0000:1a:00.0")])
    read_nvml(library)
    assert library.open == 0


def test_nvml_that_cannot_start_leaves_the_pci_tree_and_says_why(root: Path) -> None:
    found = seen(root, Init=Refusal(18))
    assert [(g.index, g.state, g.model) for g in found.gpus] == [(None, "no_access", None)] * 2
    assert found.warnings[0].code == "nvml"
    assert "driver and library versions differ" in found.warnings[0].text


def test_driver_names_a_gpu_that_nvml_does_not(root: Path) -> None:
    base = "proc/driver/nvidia/gpus/0000:1a:00.0"
    write(
        root,
        f"{base}/information",
        "Model: \t\t NVIDIA A10\nGPU UUID: \t " + f"GPU-{'1' * 8}-" + "2222-3333-4444-" + "5" * 12,
    )
    write(
        root,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun",
    )
    found = discover(root, nvml=None)
    assert found.gpus[0].model == "NVIDIA A10"
    assert found.gpus[0].uuid == "GPU-11111111-2222-3333-4444-555555555555"
    assert found.machine.driver == "535.183.01"
    assert found.gpus[1].model is None


def test_link_version_is_a_name_not_the_number_of_the_enumeration(root: Path) -> None:
    nvlink = seen(root, gpu(0, "0000:1a:00.0")).gpus[0].nvlink
    assert nvlink is not None
    assert (nvlink.version, nvlink.active, nvlink.expected) == ("4.0", 18, 18)
    assert nvlink.bytes_per_second == pytest.approx(478.116e9)


def test_links_are_counted_by_state_not_by_capability(root: Path) -> None:
    """36 links may be asked for; those this GPU lacks refuse their state."""
    given = gpu(0, "0000:1a:00.0", DeviceGetNvLinkCapability=1)
    nvlink = seen(root, given).gpus[0].nvlink
    assert nvlink is not None
    assert len(nvlink.links) == 18


def test_inactive_link_is_named(root: Path) -> None:
    states = links(["nvswitch"] * 17 + [None])
    found = seen(root, gpu(0, "0000:1a:00.0", DeviceGetNvLinkState=states), gpu(1, "0000:9b:00.0"))
    nvlink = found.gpus[0].nvlink
    assert nvlink is not None
    assert (nvlink.active, nvlink.expected) == (17, 18)
    assert ("nvlink_degraded", "gpu:0") in warned(found)
    assert between(found, "gpu:0", "gpu:1").smi == "NV17"


def test_card_without_links_has_none_and_is_healthy(root: Path) -> None:
    given = gpu(0, "0000:1a:00.0", DeviceGetNvLinkState=Refusal(NOT_SUPPORTED))
    found = seen(root, given)
    assert found.gpus[0].nvlink is None
    assert "nvlink_degraded" not in dict(warned(found))


def test_cards_without_a_bridge_are_healthy(root: Path) -> None:
    """All links of all cards of a kind are inactive: nothing is expected of them."""
    idle = {"DeviceGetName": "NVIDIA H100 PCIe", "DeviceGetNvLinkState": links([None] * 12)}
    found = seen(root, gpu(0, "0000:1a:00.0", **idle), gpu(1, "0000:9b:00.0", **idle))
    nvlink = found.gpus[0].nvlink
    assert nvlink is not None
    assert (nvlink.active, nvlink.expected) == (0, None)
    assert "nvlink_degraded" not in dict(warned(found))
    assert between(found, "gpu:0", "gpu:1").smi == "SYS"


def bridged(address: str, count: int) -> dict[str, Any]:
    """Links straight to the GPU at that address."""
    return {
        "DeviceGetName": "NVIDIA A100 80GB PCIe",
        "DeviceGetNvLinkState": links(["gpu"] * count + [None] * (12 - count)),
        "DeviceGetNvLinkRemoteDeviceType": 0,
        "DeviceGetNvLinkRemotePciInfo": SimpleNamespace(bus=1, busId=f"0000{address.upper()}"),
    }


def test_direct_links_count_only_between_their_ends(root: Path) -> None:
    add_pci(root, "pci0000:ba/0000:ba:00.0", GPU, node=1)
    found = seen(
        root,
        gpu(0, "0000:1a:00.0", **bridged("0000:9b:00.0", 12)),
        gpu(1, "0000:9b:00.0", **bridged("0000:1a:00.0", 12)),
        gpu(2, "0000:ba:00.0", **bridged("0000:ba:00.0", 0)),
    )
    path = between(found, "gpu:0", "gpu:1")
    assert (path.smi, path.nccl, path.hops, path.bottleneck) == ("NV12", "NVL", 1, "nvlink")
    assert path.nominal_bytes_per_second == pytest.approx(12 * 26.562e9)
    assert between(found, "gpu:0", "gpu:2").nccl == "SYS"


def test_peer_access_is_kept_in_both_directions(root: Path) -> None:
    def status(_other: Any, way: int) -> int:
        return 0 if way == 0 else 3

    found = seen(root, gpu(0, "0000:1a:00.0", DeviceGetP2PStatus=status), gpu(1, "0000:9b:00.0"))
    p2p = between(found, "gpu:0", "gpu:1").p2p
    assert p2p is not None
    assert (p2p.read, p2p.write) == ("OK", "TNS")


def test_disagreement_of_sources_is_a_warning(root: Path) -> None:
    given = gpu(0, "0000:1a:00.0", DeviceGetTopologyCommonAncestor=30)
    found = seen(root, given, gpu(1, "0000:9b:00.0"))
    assert between(found, "gpu:0", "gpu:1").smi_pcie == "PHB"  # what nvidia-smi prints
    assert ("path_disagrees", "gpu:0-gpu:1") in warned(found)


def test_mig_slices_are_gpus_of_their_own(root: Path) -> None:
    part = {
        "DeviceGetUUID": "MIG-11111111-2222-5333-8444-555555555555",
        "DeviceGetName": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "DeviceGetMemoryInfo": SimpleNamespace(total=20 << 30),
    }
    given = gpu(
        0,
        "0000:1a:00.0",
        DeviceGetMigMode=[1, 1],
        DeviceGetMaxMigDeviceCount=7,
        DeviceGetMigDeviceHandleByIndex=lambda i: part if i == 0 else Refusal(6),
    )
    found = seen(root, given)
    whole, piece = found.gpus[0], found.gpus[1]
    assert whole.mig is not None
    assert (whole.mig.mode, whole.mig.parent) == ("enabled", None)
    assert piece.mig is not None
    assert (piece.mig.parent, piece.mig.profile) == (whole.key, "3g.20gb")
    assert (piece.memory_bytes, piece.uuid, piece.nvlink) == (20 << 30, part["DeviceGetUUID"], None)
    assert piece.pci_address == whole.pci_address
    assert not any("MIG" in p.a + p.b for p in found.paths)


def plain_gpu(index: int, model: str = "A", state: str = "ok") -> Gpu:
    uuid = f"GPU-8932f93{index}-7d72-4106-c12f-20bd9faed9f6"
    known = Known(None, None, "test")
    return Gpu(index, uuid, f"0000:{index + 1:02x}:00.0", model, None, known, state=state)


@pytest.mark.parametrize(
    ("environment", "models", "expected"),
    [
        ({}, "AAA", {0: 0, 1: 1, 2: 2}),
        ({}, "AAB", {}),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "AAB", {0: 0, 1: 1, 2: 2}),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, "AAA", {2: 0, 0: 1}),
        ({"CUDA_VISIBLE_DEVICES": "1,9,0"}, "AAA", {1: 0}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f932"}, "AAB", {2: 0}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f93"}, "AAA", {}),
        ({"CUDA_VISIBLE_DEVICES": ""}, "AAA", {0: 0, 1: 1, 2: 2}),
    ],
)
def test_cuda_index_is_given_only_where_it_is_certain(
    environment: dict[str, str], models: str, expected: dict[int, int]
) -> None:
    gpus = [plain_gpu(i, m) for i, m in enumerate(models)]
    assert cuda_indices(gpus, environment) == {gpus[g].key: i for g, i in expected.items()}


def test_replay_of_two_h200_in_a_guest(tmp_path: Path) -> None:
    """A real guest: flat bus, no NUMA node by sysfs, NVSwitches hidden; as nvidia-smi saw it."""
    with tarfile.open(H200X2 / "sysfs_vm.tgz") as archive:
        archive.extractall(tmp_path, filter="tar")
    write(tmp_path, "topobench/nvml.json", (H200X2 / "nvml.json").read_text())
    found = discover(tmp_path)
    assert [(g.index, g.model, g.cpu_node) for g in found.gpus] == [
        (0, "NVIDIA H200", Known(0, "nvml")),
        (1, "NVIDIA H200", Known(0, "nvml")),
    ]
    pair = between(found, "gpu:0", "gpu:1")
    assert (pair.smi, pair.smi_pcie, pair.nccl, pair.hops) == ("NV18", "PHB", "NVL", 2)
    assert pair.nominal_bytes_per_second == pytest.approx(4.78116e11)
    assert (found.virtualization, found.trust) == ("kvm", "low")
    device = next(d for d in found.pci if d.address == "0000:00:06.0")
    assert device.numa_node == Known(None, None, "sysfs says -1")
    assert device.link is not None
    assert device.link.effective_max_bytes_per_second == pytest.approx(63.015e9, rel=1e-4)
    to_host = between(found, "gpu:0", "numa:0")
    assert (to_host.smi, to_host.bottleneck) == ("PHB", "pci:0000:00:06.0")
    assert (found.machine.driver, found.machine.cuda) == ("580.159.04", "13.0")
    assert against_smi(found, (H200X2 / "smi_topo.txt").read_text()) == (7, [])
    assert against_nccl(found, (H200X2 / "nccl_2.28.9_topo_dump.xml").read_text()) == (4, [])


def test_nvml_answers_survive_a_capture(root: Path) -> None:
    facts = read_nvml(FakeNvml([gpu(0, "0000:1a:00.0"), Refusal(LOST)]))
    assert NvmlFacts.from_json(facts.to_json()) == facts


def test_broken_capture_of_nvml_is_said(root: Path) -> None:
    write(root, "topobench/nvml.json", '{"gpus": [{"index": "one"}]}')
    found = discover(root)
    assert found.warnings[0].code == "nvml"
    assert "topobench/nvml.json" in found.warnings[0].text
