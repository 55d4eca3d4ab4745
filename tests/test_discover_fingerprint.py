"""Fingerprints: what they must not see, and what they must."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fake_nvml import FakeNvml, Refusal, gpu, links
from made_machine import Eight, configuration, write
from topobench.agents.discover import discover, read_nvml
from topobench.topology import Topology

SLOW = ("16.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16")
NARROW = ("32.0 GT/s PCIe", "8", "32.0 GT/s PCIe", "16")
IDLE = ("2.5 GT/s PCIe", "16", "32.0 GT/s PCIe", "16")

Make = Callable[..., Topology]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make and discover an 8-GPU host; ``gpus`` change NVML's answers by position."""
    count = iter(range(100))

    def made(**options: Any) -> Topology:
        return _made(tmp_path / str(next(count)), **options)

    return made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Topology:
    """That host with nothing changed."""
    return _made(tmp_path_factory.mktemp("plain") / "0")


def _made(
    folder: Path,
    gpus: dict[int, Any] | None = None,
    change: Callable[[Path], None] | None = None,
    **options: Any,
) -> Topology:
    machine = Eight(folder, cpus=2, **options).make()
    if change:
        change(machine.root)
    addresses = sorted(machine.gpu_addresses)
    answers: Sequence[Any] = [
        gpu(i, a) if i not in (gpus or {}) else _changed(i, a, (gpus or {})[i])
        for i, a in enumerate(addresses)
    ]
    return discover(machine.root, nvml=read_nvml(FakeNvml(answers)))


def _changed(index: int, address: str, change: Any) -> Any:
    return change if isinstance(change, Refusal) else gpu(index, address, **change)


def moved(a: Topology, b: Topology) -> set[str]:
    """Names of the fingerprints in which two topologies differ."""
    return {n for n in a.fingerprints if a.fingerprints[n] != b.fingerprints[n]}


def test_same_machine_has_the_same_fingerprints(make: Make) -> None:
    first, second = make(), make()
    assert moved(first, second) == set()
    assert all(v.startswith("tfp1:") and len(v) == 69 for v in first.fingerprints.values())


def test_bus_numbers_do_not_count(make: Make, plain: Topology) -> None:
    """Nor does the order of GPUs, which follows them."""
    assert moved(plain, make(bus=lambda switch: 0xA0 - 0x20 * switch)) == set()


def test_order_of_devices_below_a_switch_does_not_count(make: Make, plain: Topology) -> None:
    assert moved(plain, make(order=lambda position: 5 - position)) == set()


def test_names_and_uuids_do_not_count(make: Make, plain: Topology) -> None:
    renamed = make(gpus={i: {"DeviceGetUUID": f"GPU-{i}"} for i in range(8)})
    assert moved(plain, renamed) == set()


@pytest.mark.parametrize("position", [0, 7])
def test_narrower_link_moves_health_alone(make: Make, plain: Topology, position: int) -> None:
    assert moved(plain, make(gpu_link={position: NARROW})) == {"health"}


def test_slower_link_moves_health_alone(make: Make, plain: Topology) -> None:
    assert moved(plain, make(gpu_link={3: SLOW})) == {"health"}


def test_idle_link_moves_nothing(make: Make, plain: Topology) -> None:
    assert moved(plain, make(gpu_link={3: IDLE})) == set()


def test_one_nvlink_down_moves_health_alone(make: Make, plain: Topology) -> None:
    down = {"DeviceGetNvLinkState": links(["nvswitch"] * 17 + [None])}
    assert moved(plain, make(gpus={5: down})) == {"health"}


def test_which_of_equal_gpus_is_degraded_does_not_count(make: Make) -> None:
    """The host is symmetric, so the same fault elsewhere gives the same health."""
    first, second = make(gpu_link={0: NARROW}), make(gpu_link={7: NARROW})
    assert moved(first, second) == set()


def test_two_faults_in_one_switch_differ_from_two_in_two(make: Make) -> None:
    together, apart = make(gpu_link={0: NARROW, 1: NARROW}), make(gpu_link={0: NARROW, 2: NARROW})
    assert moved(together, apart) == {"health"}


def test_lost_gpu_moves_health_alone(make: Make, plain: Topology) -> None:
    assert moved(plain, make(gpus={2: Refusal(15)})) == {"health"}


def test_refused_peer_access_moves_health_alone(make: Make, plain: Topology) -> None:
    assert moved(plain, make(gpus={0: {"DeviceGetP2PStatus": 5}})) == {"health"}


def test_port_that_is_down_moves_health_alone(make: Make, plain: Topology) -> None:
    def unplug(root: Path) -> None:
        port = root / "sys/class/infiniband/mlx5_3/ports/1"
        write(port, "state", "1: DOWN")
        write(port, "rate", "10 Gb/sec (4X SDR)")

    assert moved(plain, make(change=unplug)) == {"health"}


def test_nic_on_another_node_moves_shape(make: Make, plain: Topology) -> None:
    assert "shape" in moved(plain, make(nic_node={0: 1}))


def test_other_gpu_model_moves_shape(make: Make, plain: Topology) -> None:
    other = {i: {"DeviceGetName": "NVIDIA H800"} for i in range(8)}
    assert "shape" in moved(plain, make(gpus=other))


def test_slower_slot_moves_shape(make: Make, plain: Topology) -> None:
    """The maximum of the card's link is what was bought, its current speed is health."""
    gen4 = ("16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "16")
    assert "shape" in moved(plain, make(gpu_link={0: gen4}))


def test_missing_disk_moves_shape(make: Make, plain: Topology) -> None:
    def pull(root: Path) -> None:
        disks = [p for p in (root / "sys/bus/pci/devices").iterdir() if _is_nvme(p)]
        disks[0].unlink()

    assert "shape" in moved(plain, make(change=pull))


def _is_nvme(path: Path) -> bool:
    return (path / "class").read_text().startswith("0x0108")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Kernel Module  570.86.15  x"),
        ("proc/version", "Linux version 6.8.0-31-generic (gcc)"),
        ("sys/class/dmi/id/bios_version", "2.1.3"),
    ],
)
def test_versions_move_config_alone(make: Make, plain: Topology, name: str, text: str) -> None:
    assert moved(plain, make(change=lambda root: write(root, name, text))) == {"config"}


def test_acs_moves_config_alone(make: Make, plain: Topology) -> None:
    def switch_on(root: Path) -> None:
        port = next(p for p in (root / "sys/devices").glob("pci*/*") if (p / "class").exists())
        (port / "config").write_bytes(configuration(4, 0x001D))

    assert moved(plain, make(change=switch_on)) == {"config"}


def test_memory_kept_by_the_kernel_does_not_count(make: Make, plain: Topology) -> None:
    def less(root: Path) -> None:
        write(root, "sys/devices/system/node/node0/meminfo", f"Node 0 MemTotal: {63 << 20} kB")

    def half(root: Path) -> None:
        write(root, "sys/devices/system/node/node0/meminfo", f"Node 0 MemTotal: {32 << 20} kB")

    assert moved(plain, make(change=less)) == set()
    assert "shape" in moved(plain, make(change=half))
