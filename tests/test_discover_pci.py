"""PCI functions in trees made by hand: addresses, links, roles, NUMA nodes, ACS."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from discovered import device
from made_machine import (
    BRIDGE,
    GPU,
    NIC,
    add_cpus,
    add_pci,
    configuration,
    link_class,
    write,
)
from topobench.agents.discover import discover, normalise_address
from topobench.pcie import link_bytes_per_second, parse_speed, parse_width
from topobench.topology import Known, Topology

ROOT = "pci0000:00/0000:00:01.0"
SWITCH = f"{ROOT}/0000:01:00.0"
GEN5 = ("32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16")


def seen(root: Path) -> Topology:
    return discover(root, nvml=None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two NUMA nodes of two CPUs each."""
    add_cpus(tmp_path, [[0, 1], [2, 3]])
    return tmp_path


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("00000000:07:00.0", "0000:07:00.0"),
        ("0000:D8:00.0", "0000:d8:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
        ("10000:00:04.0", "10000:00:04.0"),
        ("07:00.0", "0000:07:00.0"),
        ("0000:07:00.8", None),
        ("0000:07:20.0", None),
        ("", None),
    ],
)
def test_address_has_one_spelling(text: str, canonical: str | None) -> None:
    assert normalise_address(text) == canonical
    if canonical:
        assert normalise_address(canonical) == canonical


@pytest.mark.parametrize(
    ("text", "speed"),
    [("8 GT/s", 8.0), ("5.0 GT/s PCIe", 5.0), ("Unknown", None), ("Unknown speed", None)],
)
def test_link_speed_is_read_in_every_kernels_spelling(text: str, speed: float | None) -> None:
    assert parse_speed(text) == speed


@pytest.mark.parametrize(("text", "width"), [("16", 16), ("0", None), ("255", None), ("", None)])
def test_link_width_of_0_or_255_is_unknown(text: str, width: int | None) -> None:
    assert parse_width(text) == width


@pytest.mark.parametrize(
    ("speed", "width", "gigabytes"),
    [
        (2.5, 16, 4.0),
        (5.0, 16, 8.0),
        (8.0, 16, 15.754),
        (16.0, 16, 31.508),
        (32.0, 16, 63.015),
        (64.0, 16, 121.0),
        (16.0, 4, 7.877),
    ],
)
def test_link_rate_uses_the_encoding_of_its_generation(
    speed: float, width: int, gigabytes: float
) -> None:
    assert link_bytes_per_second(speed, width) == pytest.approx(gigabytes * 1e9, rel=1e-4)


def test_slot_narrower_than_the_card_sets_the_maximum(root: Path) -> None:
    add_pci(root, ROOT, node=0, link=("16.0 GT/s PCIe", "8", "16.0 GT/s PCIe", "8"))
    link = ("16.0 GT/s PCIe", "8", "32.0 GT/s PCIe", "16")
    add_pci(root, f"{ROOT}/0000:01:00.0", GPU, node=0, link=link)
    topology = seen(root)
    for address in ("0000:01:00.0", "0000:00:01.0"):  # both ends of the one link
        found = device(topology, address).link
        assert found is not None
        assert found.effective_max_bytes_per_second == pytest.approx(15.754e9, rel=1e-4)
    assert topology.warnings == ()


def test_virtual_port_that_claims_less_than_the_link_runs_at_is_disbelieved(root: Path) -> None:
    add_pci(root, ROOT, node=0, link=("2.5 GT/s PCIe", "1", "2.5 GT/s PCIe", "1"))
    add_pci(root, f"{ROOT}/0000:01:00.0", GPU, node=0, link=GEN5)
    found = device(seen(root), "0000:01:00.0").link
    assert found is not None
    assert found.effective_max_bytes_per_second == pytest.approx(63.015e9, rel=1e-4)


def test_narrow_link_is_named_but_slow_idle_link_is_not(root: Path) -> None:
    add_pci(root, ROOT, node=0)
    add_pci(root, f"{ROOT}/0000:01:00.0", GPU, node=0, link=("2.5 GT/s PCIe", "8", *GEN5[2:]))
    codes = [(w.code, w.subject) for w in seen(root).warnings]
    assert codes == [("link_width", "gpu:0000:01:00.0")]
    write(root, f"sys/devices/{ROOT}/0000:01:00.0/current_link_width", "16")
    assert seen(root).warnings == ()


def test_function_without_link_files_has_no_link(root: Path) -> None:
    add_pci(root, ROOT, NIC, node=0, link=None)
    assert device(seen(root), "0000:00:01.0").link is None


def test_unknown_link_is_unknown_not_zero(root: Path) -> None:
    add_pci(root, ROOT, NIC, node=0, link=("Unknown", "0", "Unknown", "255"))
    assert device(seen(root), "0000:00:01.0").link is None


def test_roles_by_depth_without_configuration_space(root: Path) -> None:
    add_pci(root, ROOT, node=0)
    add_pci(root, SWITCH, node=0)
    add_pci(root, f"{SWITCH}/0000:02:00.0", node=0)
    add_pci(root, f"{SWITCH}/0000:02:00.0/0000:03:00.0", GPU, node=0)
    found = {d.address: (d.role, d.parent) for d in seen(root).pci}
    assert found == {
        "0000:00:01.0": ("root_port", None),
        "0000:01:00.0": ("upstream", "0000:00:01.0"),
        "0000:02:00.0": ("downstream", "0000:01:00.0"),
        "0000:03:00.0": ("endpoint", "0000:02:00.0"),
    }


@pytest.mark.parametrize(
    ("space", "role", "acs"),
    [
        (configuration(5, 0x001D), "upstream", "on"),
        (configuration(6, 0x0004), "downstream", "on"),
        (configuration(4, 0x0001), "root_port", "off"),
        (configuration(4, None), "root_port", "off"),
        (configuration(4, 0x001D)[:64], "root_port", "unknown"),
        (b"\xff" * 4096, "root_port", "unknown"),
        (b"", "root_port", "unknown"),
    ],
    ids=["all", "redirect", "valid only", "no ACS", "not root", "dead", "empty"],
)
def test_configuration_space_tells_port_type_and_acs(
    root: Path, space: bytes, role: str, acs: str
) -> None:
    folder = add_pci(root, ROOT, node=0)
    (folder / "config").write_bytes(space)
    found = device(seen(root), "0000:00:01.0")
    assert (found.role, found.acs) == (role, acs)


def test_looping_capability_list_ends(root: Path) -> None:
    space = bytearray(configuration(4, 0x001D))
    space[0x41] = 0x40
    struct.pack_into("<I", space, 0x100, 0x100 << 20 | 1 << 16 | 0x0001)
    (add_pci(root, ROOT, node=0) / "config").write_bytes(bytes(space))
    assert device(seen(root), "0000:00:01.0").acs == "unknown"


def test_virtual_functions_are_no_nics(root: Path) -> None:
    folder = add_pci(root, "pci0000:00/0000:00:02.0", NIC, node=0)
    write(folder, "sriov_totalvfs", "8")
    write(folder, "net/ens1/speed", "100000")
    write(folder, "net/ens1/operstate", "up")
    link_class(root, "net", "ens1", "pci0000:00/0000:00:02.0/net/ens1")
    (folder / "net/ens1/device").symlink_to("../..")
    virtual = add_pci(root, "pci0000:00/0000:00:02.1", NIC, node=0)
    (virtual / "physfn").symlink_to("../0000:00:02.0")
    write(virtual, "net/ens1v0/speed", "100000")
    link_class(root, "net", "ens1v0", "pci0000:00/0000:00:02.1/net/ens1v0")
    (virtual / "net/ens1v0/device").symlink_to("../..")
    topology = seen(root)
    assert [d.role for d in topology.pci] == ["pf", "vf"]
    assert [(n.name, n.rate_bytes_per_second, n.state) for n in topology.nics] == [
        ("ens1", 12.5e9, "active")
    ]


def test_speed_of_minus_one_is_unknown(root: Path) -> None:
    folder = add_pci(root, "pci0000:00/0000:00:02.0", NIC, node=0)
    write(folder, "net/ens1/speed", "-1")
    (folder / "net/ens1/device").symlink_to("../..")
    link_class(root, "net", "ens1", "pci0000:00/0000:00:02.0/net/ens1")
    assert seen(root).nics[0].rate_bytes_per_second is None


@pytest.mark.parametrize(
    ("node", "local", "known"),
    [
        (1, None, Known(1, "sysfs")),
        (-1, "2-3", Known(1, "local_cpulist", "sysfs says -1")),
        (-1, "0-3", Known(None, None, "sysfs says -1")),
        (None, None, Known(None, None, "sysfs does not say")),
        (7, None, Known(None, None, "sysfs says 7, which is not online")),
    ],
    ids=["known", "local CPUs", "all CPUs say nothing", "absent", "no such node"],
)
def test_numa_node_is_known_or_has_a_reason(
    root: Path, node: int | None, local: str | None, known: Known
) -> None:
    """Never 0 or -1 in place of unknown."""
    add_pci(root, ROOT, NIC, node=node, local=local)
    assert device(seen(root), "0000:00:01.0").numa_node == known


def test_numa_node_of_a_bridge_above_is_taken_with_its_source(root: Path) -> None:
    add_pci(root, ROOT, node=1)
    add_pci(root, f"{ROOT}/0000:01:00.0", NIC, node=-1)
    found = device(seen(root), "0000:01:00.0").numa_node
    assert found == Known(1, "ancestor", "sysfs says -1")


def test_chipset_functions_are_left_out(root: Path) -> None:
    add_pci(root, "pci0000:00/0000:00:1f.0", ("0x060100", "0x8086", "0xa14d"))
    add_pci(root, "pci0000:00/0000:00:05.0", ("0x088000", "0x8086", "0x2024"))
    add_pci(root, ROOT, BRIDGE)
    assert [d.address for d in seen(root).pci] == ["0000:00:01.0"]


def test_absolute_link_of_a_capture_stays_inside_it(root: Path) -> None:
    """A link to /sys/devices is followed below the root, never on this machine."""
    add_pci(root, ROOT, NIC, node=0)
    link = root / "sys/bus/pci/devices/0000:00:01.0"
    link.unlink()
    link.symlink_to(f"/sys/devices/{ROOT}")
    (root / "sys/bus/pci/devices/0000:00:02.0").symlink_to("../../../../../../../../etc")
    assert [d.address for d in seen(root).pci] == ["0000:00:01.0"]


def test_driver_and_iommu_group_are_names_not_paths(root: Path) -> None:
    folder = add_pci(root, ROOT, NIC, node=0)
    (folder / "driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    (folder / "iommu_group").symlink_to("../../../kernel/iommu_groups/42")
    found = device(seen(root), "0000:00:01.0")
    assert (found.driver, found.iommu) == ("mlx5_core", "42")
