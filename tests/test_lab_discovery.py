"""Discovery on a kernel with several NUMA nodes, beside what numactl and lstopo say there."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lab.looks import look
from topobench.topology import NodeKind, Topology, parse_cpu_list

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]

SHAPES = ("two", "four", "memless", "classes", "cpuset")


@dataclass(frozen=True)
class Hardware:
    """What ``numactl --hardware`` prints."""

    cpus: dict[int, tuple[int, ...]]
    mebibytes: dict[int, int]
    distances: tuple[tuple[int, ...], ...]


def topology(shape: str) -> Topology:
    return Topology.from_json(look(shape)["topology"])


def numactl(shape: str) -> Hardware:
    text = look(shape)["numactl"]
    cpus = re.findall(r"^node (\d+) cpus:(.*)$", text, re.MULTILINE)
    sizes = re.findall(r"^node (\d+) size: (\d+) MB$", text, re.MULTILINE)
    rows = re.findall(r"^ +\d+: +(.*)$", text, re.MULTILINE)
    return Hardware(
        {int(node): tuple(int(c) for c in listed.split()) for node, listed in cpus},
        {int(node): int(size) for node, size in sizes},
        tuple(tuple(int(d) for d in row.split()) for row in rows),
    )


@dataclass(frozen=True)
class Seen:
    """A PCI function as lstopo places it."""

    parent: str | None
    node: int | None
    bytes_per_second: float


def lstopo(shape: str) -> dict[str, Seen]:
    return dict(_walk(ET.fromstring(look(shape)["lstopo"]), None, None))


def _walk(element: ET.Element, parent: str | None, node: int | None) -> Iterator[tuple[str, Seen]]:
    for child in element.findall("object"):
        nodes = int(child.get("nodeset") or "0", 16)
        here = node if not nodes else nodes.bit_length() - 1 if nodes.bit_count() == 1 else None
        address = child.get("pci_busid")
        if address:
            speed = float(child.get("pci_link_speed", "0")) * 1e9
            yield address, Seen(parent, here, speed)
        yield from _walk(child, address or parent, here)


@pytest.mark.parametrize("shape", SHAPES)
def test_nodes_cpus_memory_and_distances_are_numactls(shape: str) -> None:
    found, witness = topology(shape), numactl(shape)
    assert len(witness.cpus) == len(witness.mebibytes) == len(witness.distances) >= 2
    assert {n.id: parse_cpu_list(n.cpus) for n in found.numa_nodes} == witness.cpus
    sizes = {n.id: (n.memory_bytes or 0) >> 20 for n in found.numa_nodes}
    assert sizes == witness.mebibytes
    assert found.numa_distances.nodes == tuple(witness.cpus)
    assert found.numa_distances.matrix == witness.distances


def test_four_nodes_are_near_inside_a_package_and_far_across() -> None:
    found = topology("four")
    assert found.cpus.packages == 2
    assert [found.distance(0, n) for n in range(4)] == [10, 12, 32, 32]
    assert [found.distance(3, n) for n in range(4)] == [32, 32, 12, 10]


def test_node_without_cpus_is_memory_and_no_cpu_node() -> None:
    found = topology("memless")
    assert [n.kind for n in found.numa_nodes] == [NodeKind.CPU_MEMORY, NodeKind.MEMORY]
    assert [n.id for n in found.cpu_nodes] == [0]
    assert found.numa_nodes[1].allowed
    assert found.numa_nodes[1].cpus == ""


def test_cpuset_narrows_what_is_allowed_and_not_what_there_is() -> None:
    found = topology("cpuset")
    assert found.cpus.online == "0-3"
    assert found.cpus.allowed == "1-3"
    assert [(n.id, n.cpus, n.allowed) for n in found.numa_nodes] == [
        (0, "0-1", True),
        (1, "2-3", False),
    ]


def test_pci_functions_hang_where_lstopo_hangs_them() -> None:
    """Each bridge and device, its parent, and the NUMA node it is attached to."""
    found, witness = topology("classes"), lstopo("classes")
    ours = {d.address: (d.parent, d.numa_node.value) for d in found.pci}
    assert ours == {a: (witness[a].parent, witness[a].node) for a in ours}
    behind_bridges = {a for a, seen in witness.items() if seen.bytes_per_second}
    assert behind_bridges <= set(ours)
    assert len(behind_bridges) == 16


# Names of the endpoints by their PCI addresses: two below one switch, one in a switch below
# it, one at a root port beside it, one at another bridge of the node, one on the other node.
NEAR, BESIDE, INNER = "0000:43:00.0", "0000:44:00.0", "0000:47:00.0"
PORT, BRIDGE, NODE = "0000:48:00.0", "0000:71:00.0", "0000:a1:00.0"


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (NEAR, BESIDE, "PIX"),
        (NEAR, INNER, "PXB"),
        (BESIDE, INNER, "PXB"),
        (NEAR, PORT, "PHB"),
        (INNER, PORT, "PHB"),
        (NEAR, BRIDGE, "NODE"),
        (PORT, BRIDGE, "NODE"),
        (NEAR, NODE, "SYS"),
        (BRIDGE, NODE, "SYS"),
    ],
)
def test_pairs_of_nics_and_disks_have_their_path_class(a: str, b: str, expected: str) -> None:
    found = topology("classes")
    names = {d.pci_address: f"nic:{d.name}" for d in found.nics}
    names |= {d.pci_address: f"nvme:{d.name}" for d in found.nvme}
    assert len(names) == 6
    classes = {frozenset((p.a, p.b)): p.smi for p in found.paths}
    assert classes[frozenset((names[a], names[b]))] == expected


def test_endpoints_are_near_the_node_of_their_bridge() -> None:
    found = topology("classes")
    near = {n.pci_address: n.numa_node.value for n in found.nics}
    near |= {d.pci_address: d.numa_node.value for d in found.nvme}
    assert near == {NEAR: 0, BESIDE: 0, INNER: 0, PORT: 0, BRIDGE: 0, NODE: 1}
    paths = {(p.a, p.b): p.smi for p in found.paths if p.b.startswith("numa:")}
    far = next(f"nic:{n.name}" for n in found.nics if n.pci_address == NODE)
    assert (paths[far, "numa:0"], paths[far, "numa:1"]) == ("SYS", "PHB")


def test_pci_roles_are_those_of_the_tree_that_was_built() -> None:
    by_role: dict[str, list[int | None]] = {}
    for device in topology("classes").pci:
        if device.numa_node.source == "sysfs":
            by_role.setdefault(device.role, []).append(device.numa_node.value)
    assert by_role == {
        "root_port": [0, 0, 0, 1],
        "upstream": [0, 0],
        "downstream": [0, 0, 0, 0],
        "endpoint": [0, 0, 0, 0, 0, 1],
    }


def test_device_without_a_node_is_unknown_and_not_on_node_zero() -> None:
    """The guest's own SATA controller hangs off a host bridge that belongs to no node."""
    found = topology("classes")
    device = next(d for d in found.pci if d.pci_class.startswith("0x0106"))
    assert device.numa_node.value is None
    assert device.numa_node.reason == "sysfs says -1"
    assert lstopo("classes")[device.address].node is None


def test_links_run_at_lstopos_rate_below_what_their_port_can_do() -> None:
    found, witness = topology("classes"), lstopo("classes")
    linked = {d.address: d.link for d in found.pci if d.link}
    assert len(linked) == 16
    for address, link in linked.items():
        assert (link.speed_gts, link.width) == (2.5, 1)
        assert link.bytes_per_second == 2.5e8 == witness[address].bytes_per_second
    ports = [d.link for d in found.pci if d.role == "root_port" and d.link]
    assert [p.max_speed_gts for p in ports] == [16.0] * 4


def test_link_that_both_ends_could_run_faster_is_named_and_no_other() -> None:
    """All the other cards can do no more than 2.5 GT/s x1, in ports of 16 GT/s: by design."""
    found = topology("classes")
    links = {d.address: d.link for d in found.pci if d.link}
    port = next(d.parent for d in found.pci if d.address == BRIDGE)
    for end in (BRIDGE, port):
        link = links.pop(end or "")
        assert (link.max_speed_gts, link.max_width) == (16.0, 16)
        assert link.effective_max_bytes_per_second == pytest.approx(31.508e9, rel=1e-4)
    assert {k.effective_max_bytes_per_second for k in links.values()} == {2.5e8}
    assert [(w.code, w.subject, w.text) for w in found.warnings] == [
        ("link_width", f"pci:{BRIDGE}", "its link runs at x1, both ends can do x16"),
        ("link_speed", f"pci:{BRIDGE}", "its link runs at 2.5 GT/s, both ends can do 16"),
    ]


def test_nics_and_disks_have_the_node_of_their_slot() -> None:
    found = topology("classes")
    assert sorted((n.numa_node.value, n.link_layer) for n in found.nics) == [
        (0, "Ethernet"),
        (0, "Ethernet"),
        (1, "Ethernet"),
    ]
    assert sorted((d.numa_node.value, d.model) for d in found.nvme) == [
        (0, "QEMU NVMe Ctrl"),
        (0, "QEMU NVMe Ctrl"),
        (0, "QEMU NVMe Ctrl"),
    ]
    slots = {d.address: d.numa_node for d in found.pci}
    places = [(n.pci_address, n.numa_node) for n in found.nics]
    places += [(d.pci_address, d.numa_node) for d in found.nvme]
    assert all(address in slots and slots[address] == node for address, node in places)
