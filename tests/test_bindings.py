from __future__ import annotations

import dataclasses

import pytest

from planning import dual, gpu, node, small, topology
from topobench.bindings import (
    MatrixArm,
    Refusal,
    allowed_cpus,
    equal_threads,
    memory_nodes,
    numa_matrix,
    resolve,
    usable_cpu_count,
)
from topobench.config import BindingChoice
from topobench.reading import Binding, MemoryPolicy, ReasonCode, Status
from topobench.topology import Known, NodeKind, Topology

BIND, INTERLEAVE = MemoryPolicy.BIND, MemoryPolicy.INTERLEAVE
NODE0, NODE1 = "0-31,64-95", "32-63,96-127"


def arm(name: str, place: Topology, device: int | None = 0) -> Binding | Refusal:
    chosen = None if device is None else place.gpus[device]
    return resolve(BindingChoice(name), place, chosen)


def refused(found: Binding | Refusal) -> tuple[Status, ReasonCode]:
    assert isinstance(found, Refusal)
    assert found.reason.text
    return found.status, found.reason.code


def grace() -> Topology:
    """Four GPUs whose memories are NUMA nodes of their own, which NVML names (C11)."""
    cpu_nodes = [node(0, "0-71"), node(1, "72-143")]
    own = [node(i, "", kind=NodeKind.GPU, gpu=f"gpu{i}") for i in (2, 10, 18, 26)]
    gpus = [gpu(i, i // 2, own_numa_node=own_node.id) for i, own_node in enumerate(own)]
    size = range(6)
    distances = [[10 if a == b else 40 if a < 2 and b < 2 else 80 for b in size] for a in size]
    return topology([*cpu_nodes, *own], distances, gpus=gpus)


class TestTwoNodes:
    """The usual server: two NUMA nodes, half of the GPUs on each."""

    def test_none_resets_everything(self) -> None:
        assert arm("none", dual()) == Binding("none")

    @pytest.mark.parametrize(
        ("device", "cpus", "number"), [(0, NODE0, 0), (3, NODE0, 0), (4, NODE1, 1)]
    )
    def test_local_is_the_cpus_and_memory_of_the_gpus_node(
        self, device: int, cpus: str, number: int
    ) -> None:
        expected = Binding("local", cpus, (number,), BIND, (number,))
        assert arm("local", dual(), device) == expected

    @pytest.mark.parametrize(("device", "cpus", "number"), [(0, NODE1, 1), (7, NODE0, 0)])
    def test_remote_is_the_other_node(self, device: int, cpus: str, number: int) -> None:
        expected = Binding("remote", cpus, (number,), BIND, (number,))
        assert arm("remote", dual(), device) == expected

    def test_spread_takes_all_and_interleaves(self) -> None:
        assert arm("spread", dual()) == Binding("spread", "0-127", (0, 1), INTERLEAVE, (0, 1))

    def test_without_a_gpu_local_is_the_first_node_and_remote_does_not_exist(self) -> None:
        assert arm("local", dual(), None) == Binding("local", NODE0, (0,), BIND, (0,))
        assert refused(arm("remote", dual(), None)) == (Status.NOT_APPLICABLE, ReasonCode.NO_GPU)


class TestOneNode:
    """Nothing to choose: said so, never a comparison of equal things."""

    @pytest.mark.parametrize("name", ["local", "remote", "spread"])
    @pytest.mark.parametrize("device", [0, None])
    def test_arms_are_not_applicable(self, name: str, device: int | None) -> None:
        found = arm(name, small(cpus=8, gpus=[gpu(0)]), device)
        assert refused(found) == (Status.NOT_APPLICABLE, ReasonCode.ONE_NUMA_NODE)

    def test_none_runs(self) -> None:
        assert arm("none", small(), None) == Binding("none")

    def test_nodes_without_cpus_and_memory_do_not_count(self) -> None:
        """Grace-Hopper shows nine nodes, eight of them empty (C09)."""
        nodes = [node(0, "0-71"), *(node(i, "", memory=None) for i in range(1, 9))]
        place = topology(nodes, gpus=[gpu(0)])
        for name in ("local", "remote", "spread"):
            assert refused(arm(name, place))[1] is ReasonCode.ONE_NUMA_NODE
        bound = Binding("cpu0-mem0", "0-71", (0,), BIND, (0,))
        assert numa_matrix(place) == (MatrixArm(bound, 0, 0),)

    def test_a_memory_only_node_is_something_to_choose(self) -> None:
        place = topology([node(0, "0-7"), node(1, "")], [[10, 14], [14, 10]], gpus=[gpu(0)])
        assert arm("local", place) == Binding("local", "0-7", (0,), BIND, (0,))
        assert arm("spread", place) == Binding("spread", "0-7", (0,), INTERLEAVE, (0, 1))
        assert refused(arm("remote", place))[1] is ReasonCode.ONE_NUMA_NODE


class TestGpuMemoryNodes:
    """A node that is a GPU's memory is never named in a binding (C11)."""

    def test_memory_nodes_leave_them_out(self) -> None:
        assert [n.id for n in memory_nodes(grace())] == [0, 1]

    def test_no_arm_names_one(self) -> None:
        place = grace()
        found = [arm(name, place, i) for name in ("local", "remote", "spread") for i in range(4)]
        found += [one.resolved for one in numa_matrix(place)]
        for binding in found:
            assert isinstance(binding, Binding)
            assert set(binding.cpu_nodes) | set(binding.memory_nodes) <= {0, 1}

    def test_local_follows_the_cpu_node(self) -> None:
        place = grace()
        local = [arm("local", place, i) for i in range(4)]
        assert [b.cpus for b in local if isinstance(b, Binding)] == [
            "0-71",
            "0-71",
            "72-143",
            "72-143",
        ]

    def test_one_named_by_the_user_is_refused(self) -> None:
        choice = BindingChoice("mine", None, (0,), BIND, (2,))
        found = resolve(choice, grace(), None)
        assert refused(found) == (Status.SKIPPED, ReasonCode.MEM_NOT_ALLOWED)

    def test_a_cpu_node_that_has_no_cpus_is_unknown(self) -> None:
        place = grace()
        wrong = dataclasses.replace(place.gpus[0], cpu_node=Known(2, "nvml"))
        found = resolve(BindingChoice("local"), place, wrong)
        assert refused(found) == (Status.SKIPPED, ReasonCode.UNKNOWN_NUMA_NODE)
        assert isinstance(found, Refusal)
        assert "NUMA node 2 has no CPUs" in found.reason.text


class TestDistances:
    """Remote is the farthest node, or it does not exist."""

    def four(self, distances: list[list[int]]) -> Topology:
        nodes = [node(i, f"{4 * i}-{4 * i + 3}") for i in range(4)]
        return topology(nodes, distances, gpus=[gpu(0, 1)])

    def test_the_farthest_wins(self) -> None:
        row = [[10, 12, 32, 32], [12, 10, 32, 28], [32, 32, 10, 12], [32, 28, 12, 10]]
        assert arm("remote", self.four(row)) == Binding("remote", "8-11", (2,), BIND, (2,))

    def test_among_equals_the_lowest_id_wins(self) -> None:
        row = [[10 if a == b else 21 for b in range(4)] for a in range(4)]
        assert arm("remote", self.four(row)) == Binding("remote", "0-3", (0,), BIND, (0,))

    def test_equal_distances_everywhere_give_no_remote(self) -> None:
        flat = self.four([[10] * 4] * 4)
        assert refused(arm("remote", flat)) == (Status.NOT_APPLICABLE, ReasonCode.EQUAL_DISTANCES)

    def test_unknown_distances_are_not_guessed(self) -> None:
        found = arm("remote", self.four([]))
        assert refused(found) == (Status.SKIPPED, ReasonCode.UNKNOWN_NUMA_NODE)

    def test_of_two_nodes_the_other_is_remote_even_without_distances(self) -> None:
        place = topology([node(0, "0-3"), node(1, "4-7")], gpus=[gpu(0, 0)])
        assert arm("remote", place) == Binding("remote", "4-7", (1,), BIND, (1,))


class TestUnknownNode:
    """A GPU whose node is unknown has no local and no remote, with advice."""

    @pytest.mark.parametrize("name", ["local", "remote"])
    def test_arms_are_skipped_with_the_reason_and_what_to_do(self, name: str) -> None:
        place = dual(gpus=0)
        found = resolve(BindingChoice(name), place, gpu(0, None))
        assert refused(found) == (Status.SKIPPED, ReasonCode.UNKNOWN_NUMA_NODE)
        assert isinstance(found, Refusal)
        assert "(sysfs says -1)" in found.reason.text
        assert "an arm of your own in bindings:" in found.reason.text

    def test_spread_needs_no_node(self) -> None:
        found = resolve(BindingChoice("spread"), dual(gpus=0), gpu(0, None))
        assert found == Binding("spread", "0-127", (0, 1), INTERLEAVE, (0, 1))

    @pytest.mark.parametrize("name", ["local", "spread"])
    def test_a_host_without_numa_information_skips(self, name: str) -> None:
        bare = topology([])
        found = resolve(BindingChoice(name), bare, None)
        assert refused(found) == (Status.SKIPPED, ReasonCode.UNKNOWN_NUMA_NODE)
        assert numa_matrix(bare) == (MatrixArm(Binding("none")),)


class TestRestrictedHost:
    """A cpuset narrower than the nodes: cut, or skipped, never unbound but labelled bound (C31)."""

    def restricted(self) -> Topology:
        nodes = [node(0, NODE0), node(1, NODE1, allowed=False)]
        gpus = [gpu(0, 0), gpu(1, 1)]
        return topology(nodes, [[10, 21], [21, 10]], allowed="4-7,40-43", gpus=gpus)

    def test_cpus_are_cut_to_the_allowed_ones(self) -> None:
        assert arm("local", self.restricted(), 0) == Binding("local", "4-7", (0,), BIND, (0,))

    def test_memory_that_is_not_allowed_skips_the_arm(self) -> None:
        for name, device in (("local", 1), ("remote", 0), ("spread", 0)):
            found = arm(name, self.restricted(), device)
            assert refused(found) == (Status.SKIPPED, ReasonCode.MEM_NOT_ALLOWED), name

    def test_no_allowed_cpu_skips_the_arm(self) -> None:
        place = dual(gpus=8, allowed="0-3")
        for name, device in (("local", 7), ("remote", 0), ("spread", 0)):
            found = arm(name, place, device)
            assert refused(found) == (Status.SKIPPED, ReasonCode.CPU_NOT_ALLOWED), name

    def test_the_matrix_names_a_forbidden_node_once(self) -> None:
        found = numa_matrix(self.restricted())
        assert [a.resolved.name for a in found] == ["cpu0-mem0", "cpu1-mem0", "mem1"]
        assert found[1].resolved == Binding("cpu1-mem0", "40-43", (1,), BIND, (0,))
        assert refused(found[2].resolved) == (Status.SKIPPED, ReasonCode.MEM_NOT_ALLOWED)

    def test_the_matrix_names_a_node_without_allowed_cpus_once(self) -> None:
        found = numa_matrix(dual(gpus=0, allowed="0-3"))
        assert [a.resolved.name for a in found] == ["cpu0-mem0", "cpu0-mem1", "cpu1"]
        assert refused(found[2].resolved) == (Status.SKIPPED, ReasonCode.CPU_NOT_ALLOWED)

    def test_allowed_cpus_fall_back_to_the_online_ones(self) -> None:
        place = small(cpus=4)
        unknown = dataclasses.replace(place, cpus=dataclasses.replace(place.cpus, allowed=None))
        assert allowed_cpus(unknown) == {0, 1, 2, 3}


class TestOwnArms:
    """The user's CPU list or nodes, and a memory policy."""

    def own(self, **changes: object) -> Binding | Refusal:
        choice = dataclasses.replace(BindingChoice("mine"), **changes)  # type: ignore[arg-type]
        return resolve(choice, dual(), None)

    def test_a_cpu_list_knows_its_nodes(self) -> None:
        assert self.own(cpus="0,32-33") == Binding("mine", "0,32-33", (0, 1))

    def test_cpus_that_do_not_exist_are_cut(self) -> None:
        assert self.own(cpus="126-200") == Binding("mine", "126-127", (1,))

    def test_nodes_and_memory_are_separate(self) -> None:
        found = self.own(cpu_nodes=(0,), memory=BIND, memory_nodes=(1,))
        assert found == Binding("mine", NODE0, (0,), BIND, (1,))

    def test_memory_alone_leaves_all_cpus(self) -> None:
        found = self.own(memory=INTERLEAVE, memory_nodes=(0, 1))
        assert found == Binding("mine", "0-127", (0, 1), INTERLEAVE, (0, 1))

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"cpus": "128"}, ReasonCode.CPU_NOT_ALLOWED),
            ({"cpu_nodes": (2,)}, ReasonCode.CPU_NOT_ALLOWED),
            ({"memory": BIND, "memory_nodes": (2,)}, ReasonCode.MEM_NOT_ALLOWED),
        ],
    )
    def test_what_this_host_lacks_skips_the_arm(
        self, changes: dict[str, object], code: ReasonCode
    ) -> None:
        assert refused(self.own(**changes)) == (Status.SKIPPED, code)


class TestThreads:
    """The same number in every arm, or the arms would differ in more than their binding."""

    @pytest.mark.parametrize(
        ("place", "cpus", "ranks", "threads"),
        [
            (small(cpus=1), [None], 1, 1),
            (small(cpus=2), [None], 1, 2),
            (small(cpus=3), [None], 1, 2),
            (small(cpus=8), [None], 1, 7),
            (small(cpus=8), [None], 2, 3),
            (small(cpus=4), [None], 4, 1),
            (dual(), [None, NODE0, "0-127"], 1, 64),
            (dual(), [None, "0-3"], 1, 4),
            (dual(), [None], 1, 127),
        ],
    )
    def test_the_smallest_arm_sets_it(
        self, place: Topology, cpus: list[str | None], ranks: int, threads: int
    ) -> None:
        arms = [Binding("x", text) for text in cpus]
        assert equal_threads(arms, place, ranks) == threads

    def test_a_cpu_quota_limits_it(self) -> None:
        """More threads than the quota would be throttled, not parallel."""
        place = dual(quota_cpus=6.5)
        assert usable_cpu_count(place) == 6
        assert equal_threads([Binding("none")], place) == 6
        assert usable_cpu_count(dual(quota_cpus=0.5)) == 1
