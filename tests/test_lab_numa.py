"""
Discovery, bindings and workers on kernels with several NUMA nodes.

Discovery is held against what numactl and lstopo say there; bindings against what another
process sees of a worker, launched by numactl and by system calls alike. One file, so that one
process boots each shape once for all of it.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lab.inside import ARMS
from lab.looks import look
from lab.workers import (
    CPUS_ONLY,
    FAR,
    HALF_OUTSIDE,
    JOBS,
    LOCAL,
    NONE,
    OUTSIDE,
    SPREAD,
    WAYS,
    WRONG_MEMORY,
)
from topobench.bindings import numa_matrix
from topobench.reading import Binding, MemoryPolicy, ReasonCode, Run, Status
from topobench.topology import NodeKind, Topology, parse_cpu_list

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]

SHAPES = ("four", "memless", "classes", "cpuset")


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
    if links[BRIDGE].max_width == 1:
        pytest.skip("no degraded link: this user may not write to the emulator's memory")
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


@dataclass(frozen=True)
class Measured:
    """
    A cell that ran in the guest.

    Args:
        cpus: Affinity of its threads as another process saw it, a list string for each kind.
        shares: Share of the arrays' pages by NUMA node, as another process saw them.
        policies: Memory policies of the arrays, likewise.
    """

    binding: Binding
    run: Run
    cpus: list[str]
    shares: dict[int, float]
    policies: list[str]

    def metric(self, name: str) -> float:
        (reading,) = [r for r in self.run.readings if r.metric == name]
        return reading.summary.median


def measured(shape: str) -> list[Measured]:
    return [_measured(cell) for cell in look(shape)["cells"]]


def _measured(cell: dict[str, Any]) -> Measured:
    seen = cell["seen"]
    total = sum(seen["pages"].values())
    return Measured(
        binding=Binding.from_json(cell["binding"]),
        run=Run.from_json(cell["run"]),
        cpus=seen["cpus"],
        shares={int(node): pages / total for node, pages in seen["pages"].items()},
        policies=seen["policies"],
    )


def arm(shape: str, name: str) -> Measured:
    """The one cell of an arm."""
    (found,) = [m for m in measured(shape) if m.binding.name == name]
    return found


@pytest.mark.parametrize("shape", ARMS)
def test_every_arm_gives_a_bandwidth_and_no_warning(shape: str) -> None:
    for cell in measured(shape):
        assert cell.run.reason is None
        assert cell.run.status is Status.OK
        assert cell.run.warnings == ()
        assert cell.metric("bandwidth_bytes_per_second") > 0


@pytest.mark.parametrize(
    ("shape", "name", "cpus", "node"),
    [
        ("two", "cpu0-mem1", "0-1", 1),
        ("two", "cpu1-mem1", "2-3", 1),
        ("four", "cpu3-mem0", "3", 0),
        ("memless", "cpu0-mem1", "0-1", 1),
    ],
)
def test_bound_arm_has_its_threads_and_pages_where_it_says(
    shape: str, name: str, cpus: str, node: int
) -> None:
    """By the worker's own account, and as another process sees it in /proc."""
    cell = arm(shape, name)
    (member,) = cell.run.members
    assert member.cpus == cpus
    assert member.memory_node == node
    assert member.memory_policy == f"bind:{node}"
    assert cell.metric("locality_ratio") >= 0.99
    assert cell.cpus == [cpus]
    assert cell.policies == [f"bind:{node}"]
    assert cell.shares.get(node, 0.0) >= 0.99


@pytest.mark.parametrize(
    ("shape", "name", "distance"),
    [("two", "cpu0-mem1", 21), ("four", "cpu3-mem0", 32), ("memless", "cpu0-mem1", 21)],
)
def test_remote_memory_is_on_the_far_node_of_the_threads(
    shape: str, name: str, distance: int
) -> None:
    """The kernel's distance between the two is what the arm is about."""
    (member,) = arm(shape, name).run.members
    assert member.cpu_node is not None
    assert member.memory_node is not None
    assert topology(shape).distance(member.cpu_node, member.memory_node) == distance


@pytest.mark.parametrize(
    ("shape", "cpus", "nodes"), [("two", "0-3", 2), ("four", "0-3", 4), ("memless", "0-1", 2)]
)
def test_spread_puts_an_equal_share_of_pages_on_each_node(
    shape: str, cpus: str, nodes: int
) -> None:
    cell = arm(shape, "spread")
    (member,) = cell.run.members
    assert member.cpus == cpus
    assert member.memory_node is None
    assert member.memory_policy == f"interleave:0-{nodes - 1}"
    assert cell.cpus == [cpus]
    assert cell.policies == [f"interleave:0-{nodes - 1}"]
    own = {int(n): s for n, s in cell.run.conditions["buffer_page_share"].items()}
    for shares in (own, cell.shares):
        assert sorted(shares) == list(range(nodes))
        for share in shares.values():
            assert share == pytest.approx(1 / nodes, abs=0.4 / nodes)


def test_arm_none_has_the_whole_allowed_set_and_no_policy() -> None:
    cell = arm("two", "none")
    (member,) = cell.run.members
    assert member.cpus == "0-3"
    assert member.memory_policy == "default"
    assert cell.cpus == ["0-3"]
    assert cell.policies == ["default"]


@pytest.mark.parametrize("shape", ARMS)
def test_arms_compared_have_equal_threads(shape: str) -> None:
    assert len({m.binding.threads for m in measured(shape)}) == 1


def test_memory_only_node_is_a_target_and_has_no_arm_of_its_own() -> None:
    names = [a.resolved.name for a in numa_matrix(topology("memless"))]
    assert names == ["cpu0-mem0", "cpu0-mem1"]


def test_memory_outside_the_cpuset_is_refused_before_it_is_tried() -> None:
    by_name = {a.resolved.name: a.resolved for a in numa_matrix(topology("cpuset"))}
    assert sorted(by_name) == ["cpu0-mem0", "cpu1-mem0", "mem1"]
    refused = by_name["mem1"]
    assert not isinstance(refused, Binding)
    assert refused.reason.code is ReasonCode.MEM_NOT_ALLOWED
    bound = by_name["cpu0-mem0"]
    assert isinstance(bound, Binding)
    assert parse_cpu_list(bound.cpus) == (1,)
    assert bound.memory is MemoryPolicy.BIND


def outcome(shape: str, way: str, probe: str, binding: Binding) -> Run:
    """The run of one job."""
    jobs = [(job.probe, job.binding) for job in JOBS[shape]]
    return Run.from_json(look(shape)["jobs"][jobs.index((probe, binding))][way])


each_way = pytest.mark.parametrize("way", WAYS)


def test_memory_is_where_it_was_asked_for_without_numactl() -> None:
    found = outcome("two", "syscalls", "buffer", FAR)
    (member,) = found.members
    assert found.status is Status.OK
    assert (member.cpus, member.cpu_node) == ("0-1", 0)
    assert (member.memory_policy, member.memory_node) == ("bind:1", 1)
    assert found.readings[1].samples == (1.0,)
    assert found.conditions["buffer_page_share"] == {"1": 1.0}


def test_spread_gives_each_node_half_without_numactl() -> None:
    found = outcome("two", "syscalls", "buffer", SPREAD)
    (member,) = found.members
    assert found.status is Status.OK
    assert (member.cpus, member.cpu_node, member.memory_node) == ("0-3", None, None)
    assert member.memory_policy == "interleave:0-1"
    assert found.conditions["buffer_page_share"] == pytest.approx({"0": 0.5, "1": 0.5})
    assert found.readings[1].samples == (1.0,)


@each_way
def test_first_touch_follows_the_cpus(way: str) -> None:
    found = outcome("two", way, "buffer", CPUS_ONLY)
    assert (found.members[0].cpu_node, found.members[0].memory_node) == (1, 1)
    assert found.members[0].memory_policy == "default"
    assert found.readings[1].samples == (1.0,)


def test_pages_on_another_node_make_a_run_invalid() -> None:
    """CPUs and policy look right at the end; only the pages tell."""
    found = outcome("two", "syscalls", "misplaced", LOCAL)
    assert found.status is Status.INVALID
    assert str(found.reason) == (
        "wrong_binding: only 0.0% of a measured buffer lies on NUMA nodes [0], as asked"
    )
    assert found.readings[1].samples == (0.0,)
    assert found.members[0].memory_node == 1
    assert found.members[0].memory_policy == "bind:0"


@each_way
def test_none_is_what_the_cpuset_allows(way: str) -> None:
    """A container with CPUs 1-3 and the memory of node 0 (C31)."""
    found = outcome("cpuset", way, "buffer", NONE)
    assert (found.status, found.members[0].cpus) == (Status.OK, "1-3")
    assert found.members[0].memory_node == 0


@pytest.mark.parametrize(
    ("binding", "way"),
    [(OUTSIDE, "numactl"), (HALF_OUTSIDE, "numactl"), (HALF_OUTSIDE, "syscalls")],
    ids=["all", "half", "half-syscalls"],
)
def test_cpus_outside_the_cpuset_are_refused_not_cut(binding: Binding, way: str) -> None:
    found = outcome("cpuset", way, "buffer", binding)
    assert found.reason is not None
    assert (found.status, found.reason.code) == (Status.SKIPPED, ReasonCode.CPU_NOT_ALLOWED)
    assert found.readings == ()


@each_way
def test_memory_outside_the_cpuset_is_refused(way: str) -> None:
    found = outcome("cpuset", way, "buffer", WRONG_MEMORY)
    assert found.reason is not None
    assert (found.status, found.reason.code) == (Status.SKIPPED, ReasonCode.MEM_NOT_ALLOWED)
    assert found.readings == ()
