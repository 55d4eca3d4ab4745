"""Workers and their memory are where the arm says, on a kernel with several NUMA nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from lab.looks import look
from topobench.bindings import numa_matrix
from topobench.reading import Binding, MemoryPolicy, ReasonCode, Run, Status
from topobench.topology import Topology, parse_cpu_list

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]

SHAPES = ("two", "four", "memless")


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


@pytest.mark.parametrize("shape", SHAPES)
def test_every_arm_gives_a_bandwidth_and_no_warning(shape: str) -> None:
    for cell in measured(shape):
        assert cell.run.reason is None
        assert cell.run.status is Status.OK
        assert cell.run.warnings == ()
        assert cell.metric("bandwidth_bytes_per_second") > 0


@pytest.mark.parametrize(
    ("shape", "name", "cpus", "node"),
    [
        ("two", "cpu0-mem0", "0-1", 0),
        ("two", "cpu0-mem1", "0-1", 1),
        ("two", "cpu1-mem0", "2-3", 0),
        ("two", "cpu1-mem1", "2-3", 1),
        ("four", "cpu0-mem3", "0", 3),
        ("four", "cpu3-mem0", "3", 0),
        ("memless", "cpu0-mem0", "0-1", 0),
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
    [("two", "cpu0-mem1", 21), ("four", "cpu0-mem3", 32), ("memless", "cpu0-mem1", 21)],
)
def test_remote_memory_is_on_the_far_node_of_the_threads(
    shape: str, name: str, distance: int
) -> None:
    """The kernel's distance between the two is what the arm is about."""
    topology = Topology.from_json(look(shape)["topology"])
    (member,) = arm(shape, name).run.members
    assert member.cpu_node is not None
    assert member.memory_node is not None
    assert topology.distance(member.cpu_node, member.memory_node) == distance


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


@pytest.mark.parametrize(("shape", "cpus"), [("two", "0-3"), ("memless", "0-1")])
def test_arm_none_has_the_whole_allowed_set_and_no_policy(shape: str, cpus: str) -> None:
    cell = arm(shape, "none")
    (member,) = cell.run.members
    assert member.cpus == cpus
    assert member.memory_policy == "default"
    assert cell.cpus == [cpus]
    assert cell.policies == ["default"]


@pytest.mark.parametrize("shape", SHAPES)
def test_arms_compared_have_equal_threads(shape: str) -> None:
    assert len({m.binding.threads for m in measured(shape)}) == 1


def test_memory_only_node_is_a_target_and_has_no_arm_of_its_own() -> None:
    names = [m.binding.name for m in measured("memless")]
    assert names == ["none", "cpu0-mem0", "cpu0-mem1", "spread"]


def test_memory_outside_the_cpuset_is_refused_before_it_is_tried() -> None:
    topology = Topology.from_json(look("cpuset")["topology"])
    by_name = {a.resolved.name: a.resolved for a in numa_matrix(topology)}
    assert sorted(by_name) == ["cpu0-mem0", "cpu1-mem0", "mem1"]
    refused = by_name["mem1"]
    assert not isinstance(refused, Binding)
    assert refused.reason.code is ReasonCode.MEM_NOT_ALLOWED
    bound = by_name["cpu0-mem0"]
    assert isinstance(bound, Binding)
    assert parse_cpu_list(bound.cpus) == (1,)
    assert bound.memory is MemoryPolicy.BIND
