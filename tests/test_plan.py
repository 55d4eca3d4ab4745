from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest
import referencing

from planning import GIB, dual, gpu, host, mig_slice, node, small, topology
from topobench import config
from topobench.config import ClusterConfig, HostExpectation, Overrides
from topobench.errors import UsageError
from topobench.plan import (
    CPU_START_SECONDS,
    GPU_START_SECONDS,
    Plan,
    batches,
    estimate,
    make_plan,
    plan_document,
)
from topobench.probes import registry
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.reading import Cell, MemoryPolicy, Metric, Reading, ReasonCode, Status, to_json
from topobench.topology import Mig, NodeKind

SCHEMAS = Path(__file__).parent.parent / "docs/schemas"


def configured(**flags: Any) -> ClusterConfig:
    return config.load(None, environ={}, overrides=Overrides(**flags))


def planned(cells: Iterable[Cell]) -> list[Cell]:
    return [c for c in cells if c.status is Status.PLANNED]


def reasons(cells: Iterable[Cell]) -> list[tuple[str, str, Status, ReasonCode]]:
    """(probe, arm, status, code) of the cells that will not run."""
    return [(c.case.probe, c.arm.name, c.status, c.reason.code) for c in cells if c.reason]


def without_ids(plan: Plan) -> list[Cell]:
    return [dataclasses.replace(c, id="") for c in plan.cells]


class TestSmallHost:
    """Two CPUs, one NUMA node, no GPU: what `topobench probe` meets on a laptop."""

    def plan(self) -> Plan:
        return make_plan(configured(), [host(small())], seed=1)

    def test_what_cannot_run_is_said_once_with_the_reason(self) -> None:
        assert reasons(self.plan().cells) == [
            ("host_to_device", "none", Status.SKIPPED, ReasonCode.NO_GPU),
            ("all_reduce", "none", Status.SKIPPED, ReasonCode.NEEDS_2_CPUS),
            ("all_reduce", "local", Status.NOT_APPLICABLE, ReasonCode.ONE_NUMA_NODE),
            ("all_reduce", "spread", Status.NOT_APPLICABLE, ReasonCode.ONE_NUMA_NODE),
        ]

    def test_the_rest_runs(self) -> None:
        found = [
            (c.case.probe, c.case.params.get("op") or c.case.params["bytes"], c.arm.name, c.ranks)
            for c in planned(self.plan().cells)
        ]
        assert found == [
            ("host_memory", "copy", "cpu0-mem0", 1),
            ("host_memory", "triad", "cpu0-mem0", 1),
            ("all_reduce", 8192, "none", 2),
            ("all_reduce", 2**20, "none", 2),
            ("all_reduce", 64 * 2**20, "none", 2),
        ]

    def test_memory_is_bound_to_the_only_node_with_every_cpu(self) -> None:
        binding = planned(self.plan().cells)[0].arm.binding
        assert (binding.cpus, binding.cpu_nodes, binding.threads) == ("0-1", (0,), 2)
        assert (binding.memory, binding.memory_nodes) == (MemoryPolicy.BIND, (0,))

    def test_one_worker_runs_all_cells_of_its_arm(self) -> None:
        found = [[c.case.probe for c in batch] for batch in batches(self.plan().cells)]
        assert found == [["host_memory"] * 2, ["all_reduce"] * 3]

    def test_the_estimate_is_cells_and_start_ups(self) -> None:
        plan = self.plan()
        expected = 2 * CPU_START_SECONDS + sum(c.estimated_seconds for c in planned(plan.cells))
        assert plan.estimated_seconds == pytest.approx(expected)
        assert plan.gpu_hours == 0

    def test_quick_leaves_room_for_the_start_of_ray_in_45_seconds(self) -> None:
        assert 5 < self.plan().estimated_seconds <= 37

    def test_counts_are_by_status(self) -> None:
        assert self.plan().counts == {"planned": 5, "skipped": 2, "not_applicable": 2}

    def test_one_cpu_has_no_gang(self) -> None:
        plan = make_plan(configured(), [host(small(cpus=1))], seed=1)
        assert {c.case.probe for c in planned(plan.cells)} == {"host_memory"}
        assert [c.ranks for c in plan.cells if c.case.probe == "all_reduce"] == [2, 4]

    def test_without_torch_gangs_are_skipped(self) -> None:
        plan = make_plan(configured(), [host(small(), torch=None)], seed=1)
        assert ("all_reduce", "none", Status.SKIPPED, ReasonCode.NO_PACKAGE) in reasons(plan.cells)

    def test_unknown_available_memory_leaves_no_gang_out(self) -> None:
        here = host(small(), available_memory_bytes=None)
        plan = make_plan(configured(probes="all_reduce"), [here], seed=1)
        sizes = [c.case.params["bytes"] for c in planned(plan.cells)]
        assert sizes == [8192, 2**20, 64 * 2**20]

    def test_a_gang_that_would_not_fit_into_memory_is_skipped(self) -> None:
        here = host(small(), available_memory_bytes=100 * 2**20)
        plan = make_plan(configured(probes="all_reduce"), [here], seed=1)
        (short,) = [c for c in plan.cells if c.reason and c.reason.code == "not_enough_memory"]
        assert (short.case.params["bytes"], short.ranks) == (64 * 2**20, 2)
        assert [c.case.params["bytes"] for c in planned(plan.cells)] == [8192, 2**20]


class TestGpuHost:
    """Eight GPUs on two NUMA nodes."""

    def plan(self, **flags: Any) -> Plan:
        return make_plan(configured(**flags), [host(dual())], seed=3)

    def test_copies_run_on_each_gpu_under_each_arm(self) -> None:
        cells = planned(self.plan(probes="host_to_device").cells)
        per_worker = collections.Counter((c.devices, c.arm.name) for c in cells)
        assert len(per_worker) == 8 * 3
        assert set(per_worker.values()) == {3 * 2}
        assert {len(c.devices) for c in cells} == {1}

    def test_local_follows_each_gpu(self) -> None:
        place = dual()
        nodes = {g.key: g.cpu_node.value for g in place.gpus}
        for cell in planned(make_plan(configured(), [host(place)], seed=1).cells):
            if cell.case.probe == "host_to_device" and cell.arm.name == "local":
                assert cell.arm.binding.cpu_nodes == (nodes[cell.devices[0]],)

    def test_threads_are_equal_across_the_arms_of_a_comparison(self) -> None:
        cells = planned(self.plan(probes="host_to_device").cells)
        assert {c.arm.binding.threads for c in cells} == {64}

    def test_the_memory_matrix_has_every_pair_of_nodes(self) -> None:
        cells = planned(self.plan(probes="host_memory").cells)
        places = {(c.case.params["cpu_node"], c.case.params["memory_node"]) for c in cells}
        assert places == set(itertools.product((0, 1), (0, 1)))
        for cell in cells:
            cpu, memory = cell.case.params["cpu_node"], cell.case.params["memory_node"]
            assert cell.arm.name == f"cpu{cpu}-mem{memory}"
            assert cell.arm.binding.cpu_nodes == (cpu,)
            assert cell.arm.binding.memory_nodes == (memory,)
            assert cell.devices == ()

    def test_a_part_of_the_matrix_can_be_asked_for(self) -> None:
        flags = {"probes": "host_memory", "sets": ("host_memory.cpu_node=1",)}
        assert {c.arm.name for c in self.plan(**flags).cells} == {"cpu1-mem0", "cpu1-mem1"}
        absent = self.plan(probes="host_memory", sets=("host_memory.cpu_node=5",))
        assert reasons(absent.cells) == [
            ("host_memory", "none", Status.SKIPPED, ReasonCode.CPU_NOT_ALLOWED)
        ]

    def test_a_collective_has_one_rank_for_each_gpu(self) -> None:
        cells = planned(self.plan(probes="all_reduce").cells)
        assert {(len(c.devices), c.ranks, c.case.params["ranks"]) for c in cells} == {(8, 8, 8)}
        assert {c.arm.name for c in cells} == {"none/auto", "spread/auto"}

    def test_a_payload_too_large_for_the_smallest_gpu_is_skipped(self) -> None:
        place = dual(gpus=2)
        chosen = configured(probes="all_reduce", sets=("all_reduce.bytes=1G,8G",), bindings="none")
        for memory, sizes in ((24, {2**30, 2**33}), (23, {2**30})):
            small_gpu = dataclasses.replace(place.gpus[1], memory_bytes=memory * GIB)
            here = host(dataclasses.replace(place, gpus=(place.gpus[0], small_gpu)))
            cells = make_plan(chosen, [here], seed=1).cells
            assert {c.case.params["bytes"] for c in planned(cells)} == sizes
            for cell in cells:
                assert cell.devices == tuple(g.key for g in place.gpus)

    def test_a_gang_over_two_nodes_has_no_local_arm(self) -> None:
        found = reasons(self.plan(probes="all_reduce").cells)
        assert found == [("all_reduce", "local", Status.SKIPPED, ReasonCode.UNSUPPORTED)]

    def test_gpu_hours_count_every_gpu_of_the_host(self) -> None:
        plan = self.plan()
        assert plan.gpu_hours == pytest.approx(8 * plan.estimated_seconds / 3600)

    def test_gpu_workers_take_longer_to_start(self) -> None:
        cells = self.plan(probes="host_to_device").cells
        expected = 24 * GPU_START_SECONDS + sum(c.estimated_seconds for c in cells)
        assert estimate(cells) == pytest.approx(expected)

    def test_ring_orders_that_do_not_exist_yet_are_skipped_not_run_as_another(self) -> None:
        chosen = dataclasses.replace(
            configured(probes="all_reduce", bindings="none"), rings=("auto", "best", (0, 2, 1, 3))
        )
        cells = make_plan(chosen, [host(dual(gpus=4))], seed=1).cells
        assert {c.arm.ring for c in planned(cells)} == {"auto"}
        assert reasons(cells) == [
            ("all_reduce", "none/best", Status.SKIPPED, ReasonCode.UNSUPPORTED),
            ("all_reduce", "none/0-2-1-3", Status.SKIPPED, ReasonCode.UNSUPPORTED),
        ]
        two = make_plan(chosen, [host(dual(gpus=2))], seed=1).cells
        assert {r[2:] for r in reasons(two)} == {
            (Status.NOT_APPLICABLE, ReasonCode.EQUIVALENT_ARMS)
        }

    def test_memory_only_nodes_are_in_the_matrix_and_gpu_memory_is_not(self) -> None:
        nodes = [node(0, "0-7"), node(1, ""), node(2, "", kind=NodeKind.GPU, gpu="g")]
        plan = make_plan(configured(probes="host_memory"), [host(topology(nodes))], seed=1)
        assert {c.arm.name for c in plan.cells} == {"cpu0-mem0", "cpu0-mem1"}


class TestOrder:
    """Seeded complete blocks, every second one the mirror of the one before it."""

    def blocks(self, plan: Plan) -> dict[tuple[str, ...], dict[int, list[str]]]:
        """Arms by block and device, in the order they run."""
        found: dict[tuple[str, ...], dict[int, list[str]]] = {}
        for batch in batches(plan.cells):
            cell = batch[0]
            found.setdefault(cell.devices, {}).setdefault(cell.block, []).append(cell.arm.name)
        return found

    def plan(self, seed: int = 5, key: str = "h1", extra: int = 0) -> Plan:
        chosen = configured(profile="standard", probes="host_to_device")
        others = [host(dual(), f"other{i}") for i in range(extra)]
        return make_plan(chosen, [host(dual(), key), *others], seed=seed)

    def test_blocks_are_complete_and_mirrored(self) -> None:
        for by_block in self.blocks(self.plan()).values():
            assert list(by_block) == [0, 1, 2, 3]
            for arms in by_block.values():
                assert sorted(arms) == ["local", "none", "remote", "spread"]
            assert by_block[1] == by_block[0][::-1]
            assert by_block[3] == by_block[2][::-1]

    def test_the_leading_arm_differs_between_devices(self) -> None:
        leading = {by_block[0][0] for by_block in self.blocks(self.plan()).values()}
        assert len(leading) > 1

    def test_positions_and_process_numbers_tell_the_order(self) -> None:
        for batch in batches(self.plan().cells):
            assert len({(c.block, c.order_in_block, c.process_no) for c in batch}) == 1
            assert batch[0].block == batch[0].process_no
        for device, by_block in self.blocks(self.plan()).items():
            cells = [c for c in self.plan().cells if c.devices == device and c.block == 0]
            positions = {c.arm.name: c.order_in_block for c in cells}
            assert positions == {name: i for i, name in enumerate(by_block[0])}

    def test_one_worker_runs_all_sizes_of_its_arm_in_a_block(self) -> None:
        for batch in batches(self.plan().cells):
            assert len({(c.case.params["bytes"], c.case.params["direction"]) for c in batch}) == 20

    def test_the_same_seed_gives_the_same_order_and_new_ids(self) -> None:
        one, two = self.plan(), self.plan()
        assert without_ids(one) == without_ids(two)
        assert not {c.id for c in one.cells} & {c.id for c in two.cells}

    def test_another_seed_gives_another_order(self) -> None:
        assert without_ids(self.plan(5)) != without_ids(self.plan(6))

    def test_a_hosts_order_does_not_depend_on_other_hosts(self) -> None:
        alone = without_ids(self.plan())
        among = [c for c in without_ids(self.plan(extra=2)) if c.host == "h1"]
        assert among == alone

    def test_the_seed_is_the_configurations_or_drawn(self) -> None:
        here = [host(small())]
        assert make_plan(configured(seed=9), here).seed == 9
        assert make_plan(configured(seed=9), here, seed=4).seed == 4
        drawn = make_plan(configured(), here)
        assert without_ids(make_plan(configured(), here, seed=drawn.seed)) == without_ids(drawn)

    def test_a_case_without_alternatives_runs_in_several_processes(self) -> None:
        chosen = configured(profile="standard", probes="all_reduce", sets=("all_reduce.ranks=2",))
        cells = planned(make_plan(chosen, [host(small())], seed=1).cells)
        assert {(c.process_no, c.block) for c in cells} == {(0, 0), (1, 0), (2, 0)}
        assert len(batches(cells)) == 3

    def test_ids_are_unique(self) -> None:
        cells = self.plan(extra=2).cells
        assert len({c.id for c in cells}) == len(cells)

    def test_cells_survive_json(self) -> None:
        for cell in self.plan().cells[:5]:
            assert Cell.from_json(json.loads(json.dumps(to_json(cell)))) == cell


class TestBatches:
    """Only planned cells run; a worker never mixes hosts, devices, arms or rounds."""

    def test_cells_that_will_not_run_are_left_out(self) -> None:
        cells = make_plan(configured(), [host(small())], seed=1).cells
        assert [c for batch in batches(cells) for c in batch] == planned(cells)
        assert batches([]) == []

    def test_a_worker_has_one_place(self) -> None:
        hosts = [host(dual(), "a"), host(dual(), "b")]
        cells = make_plan(configured(profile="standard"), hosts, seed=1).cells
        found = batches(cells)
        for batch in found:
            places = {(c.host, c.devices, c.arm.binding, c.ranks, c.process_no) for c in batch}
            assert len(places) == 1
        assert sum(map(len, found)) == len(planned(cells))


class TestDevices:
    """GPUs are chosen by index, UUID, its start, or PCI address."""

    @pytest.mark.parametrize(
        ("devices", "indices"),
        [
            ("0,2,4", [0, 2, 4]),
            ("4,0", [4, 0]),
            ("GPU-00000003-1111-2222-3333-444444444444", [3]),
            ("gpu-00000003", [3]),
            ("0000:15:00.0", [5]),
            ("15:00.0", [5]),
            ("00000000:15:00.0", [5]),
            ("1,GPU-00000001", [1]),
        ],
    )
    def test_a_gpu_is_found(self, devices: str, indices: list[int]) -> None:
        place = dual()
        plan = make_plan(configured(devices=devices, bindings="none"), [host(place)], seed=1)
        copies = {c.devices[0] for c in planned(plan.cells) if c.case.probe == "host_to_device"}
        assert copies == {place.gpus[i].key for i in indices}
        gangs = {c.devices for c in planned(plan.cells) if len(c.devices) > 1}
        assert gangs == ({tuple(place.gpus[i].key for i in indices)} if indices[1:] else set())

    @pytest.mark.parametrize("devices", ["8", "GPU-f", "0000:99:00.0", "nonsense"])
    def test_an_unknown_gpu_is_refused_with_what_there_is(self, devices: str) -> None:
        with pytest.raises(
            UsageError, match=rf"--devices: no GPU '{devices}'; there are: 0 = GPU-0"
        ):
            make_plan(configured(devices=devices), [host(dual())], seed=1)

    def test_an_ambiguous_start_is_refused_with_the_candidates(self) -> None:
        with pytest.raises(UsageError, match=r"'GPU-0' could be GPU-00000000-.*write more of it"):
            make_plan(configured(devices="GPU-0"), [host(dual())], seed=1)

    def test_on_a_host_without_gpus_it_says_so(self) -> None:
        with pytest.raises(UsageError, match="no GPU '0'; there are: no GPU on any host"):
            make_plan(configured(devices="0"), [host(small())], seed=1)

    def test_a_host_without_the_device_skips(self) -> None:
        hosts = [host(dual(gpus=2), "a"), host(dual(gpus=8), "b")]
        plan = make_plan(configured(devices="5", probes="host_to_device"), hosts, seed=1)
        assert reasons(c for c in plan.cells if c.host == "a") == [
            ("host_to_device", "none", Status.SKIPPED, ReasonCode.NOT_SELECTED)
        ]
        assert {c.devices for c in planned(plan.cells)} == {(dual().gpus[5].key,)}


class TestBrokenGpus:
    """A GPU that the driver shows and torch cannot use is a failure, never left out quietly."""

    def test_torch_that_cannot_use_the_gpus_fails_every_gpu_probe(self) -> None:
        here = host(dual(), torch_error="torch 2.13+cpu is built without CUDA", torch_gpus=None)
        plan = make_plan(configured(), [here], seed=1)
        assert reasons(plan.cells) == [
            ("host_to_device", "none", Status.FAILED, ReasonCode.TORCH_CANNOT_USE_GPU),
            ("all_reduce", "none", Status.FAILED, ReasonCode.TORCH_CANNOT_USE_GPU),
        ]
        assert {c.case.probe for c in planned(plan.cells)} == {"host_memory"}

    def test_a_lost_gpu_fails_alone(self) -> None:
        place = dual()
        lost = dataclasses.replace(place.gpus[3], state="lost")
        place = dataclasses.replace(place, gpus=(*place.gpus[:3], lost, *place.gpus[4:]))
        plan = make_plan(configured(probes="host_to_device"), [host(place)], seed=1)
        (failed,) = [c for c in plan.cells if c.status is Status.FAILED]
        assert failed.devices == (lost.key,)
        assert len({c.devices for c in planned(plan.cells)}) == 7

    def test_a_gpu_that_torch_does_not_list_fails(self) -> None:
        place = dual(gpus=2)
        bare = place.gpus[1].uuid or ""
        here = host(place, torch_gpus=(bare.removeprefix("GPU-"),))
        plan = make_plan(configured(probes="host_to_device"), [here], seed=1)
        assert [c.devices for c in plan.cells if c.reason] == [(place.gpus[0].key,)]
        assert {c.devices for c in planned(plan.cells)} == {(place.gpus[1].key,)}


class TestMig:
    """A slice is measured by itself; it has neither NVLinks nor peers (C13)."""

    def sliced(self) -> Any:
        parent = gpu(0, mig=Mig("enabled"))
        return small(cpus=8, gpus=[parent, mig_slice(0x11111111, parent), mig_slice(2, parent)])

    def test_collectives_are_not_applicable_and_copies_run_on_slices(self) -> None:
        place = self.sliced()
        plan = make_plan(configured(), [host(place, torch_gpus=(place.gpus[1].uuid,))], seed=1)
        mig = [c for c in plan.cells if c.reason and c.reason.code is ReasonCode.MIG]
        assert [(c.case.probe, c.status) for c in mig] == [("all_reduce", Status.NOT_APPLICABLE)]
        copies = {c.devices for c in planned(plan.cells) if c.case.probe == "host_to_device"}
        assert copies == {(place.gpus[1].key,), (place.gpus[2].key,)}

    def test_processes_on_cpus_still_run_a_collective(self) -> None:
        place = self.sliced()
        cells = make_plan(configured(probes="all_reduce"), [host(place)], seed=1).cells
        assert {(c.devices, c.ranks) for c in planned(cells)} == {((), 2), ((), 4)}

    def test_a_slice_is_selected_by_the_start_of_its_uuid(self) -> None:
        place = self.sliced()
        chosen = configured(probes="host_to_device", devices="MIG-1111")
        plan = make_plan(chosen, [host(place)], seed=1)
        assert {c.devices for c in planned(plan.cells)} == {(place.gpus[1].key,)}

    def test_mig_without_instances_is_skipped(self) -> None:
        place = small(gpus=[gpu(0, mig=Mig("enabled"))])
        plan = make_plan(configured(probes="host_to_device"), [host(place)], seed=1)
        (cell,) = plan.cells
        assert (cell.status, cell.reason and cell.reason.code) == (
            Status.SKIPPED,
            ReasonCode.MIG,
        )


class TestHosts:
    """Which hosts take part, and what is said of the others."""

    def test_only_named_hosts_are_planned(self) -> None:
        hosts = [host(small(), "a"), host(small(), "b")]
        assert {c.host for c in make_plan(configured(hosts="B"), hosts, seed=1).cells} == {"b"}

    def test_an_unknown_host_is_refused_with_what_there_is(self) -> None:
        hosts = [host(small(), "a"), host(small(), "b")]
        with pytest.raises(UsageError, match="--hosts: no host 'c'; hosts here: a, b"):
            make_plan(configured(hosts="c"), hosts, seed=1)

    def test_hosts_of_the_file_limit_the_sweep_and_absent_ones_are_named(self) -> None:
        expected = (HostExpectation("a", gpus=8), HostExpectation("gone"))
        chosen = dataclasses.replace(configured(), hosts=expected)
        plan = make_plan(chosen, [host(small(), "a"), host(small(), "b")], seed=1)
        assert {c.host for c in plan.cells} == {"a"}
        assert plan.absent_hosts == ("gone",)
        assert plan.warnings == (
            "gone: named in hosts: but not alive; nothing is measured there",
            "a: 8 GPUs expected, 0 found",
        )

    def test_no_host_at_all_is_refused(self) -> None:
        with pytest.raises(UsageError, match="no host is selected"):
            make_plan(configured(), [], seed=1)

    def test_a_restricted_host_is_named(self) -> None:
        plan = make_plan(configured(), [host(dual(gpus=0, allowed="0-3"))], seed=1)
        assert plan.warnings == ("h1: 4 of 128 CPUs may be used; bindings are cut to them",)

    def test_zero_probes_are_a_usage_error(self) -> None:
        """Nothing to do must not look like success (C55)."""
        with pytest.raises(UsageError, match="no probe is selected") as caught:
            make_plan(configured(probes=""), [host(small())], seed=1)
        assert caught.value.exit_code == 2


class TestBudget:
    """The least informative cells go first, and each says so."""

    def plan(self, budget: str | None, **flags: Any) -> Plan:
        chosen = configured(profile="standard", budget=budget, **flags)
        return make_plan(chosen, [host(dual(gpus=2))], seed=1)

    def left_out(self, plan: Plan) -> list[Cell]:
        return [c for c in plan.cells if c.reason and c.reason.code is ReasonCode.OVER_BUDGET]

    @pytest.mark.parametrize("budget", ["20m", "10m", "5m", "2m", "1m", "30s"])
    def test_the_estimate_keeps_it(self, budget: str) -> None:
        plan = self.plan(budget)
        assert 0 < plan.estimated_seconds <= configured(budget=budget).budget_seconds  # type: ignore[operator]
        assert all(c.status is Status.SKIPPED for c in self.left_out(plan))

    def test_enough_time_leaves_nothing_out(self) -> None:
        assert without_ids(self.plan("9h")) == without_ids(self.plan(None))

    def test_repeats_go_first(self) -> None:
        full = self.plan(None).estimated_seconds
        plan = self.plan(f"{full - 1:.0f}s")
        assert {c.process_no for c in self.left_out(plan)} == {3}

    def test_then_middle_sizes_and_the_ends_stay(self) -> None:
        first = [dataclasses.replace(c) for c in self.plan(None).cells if c.process_no == 0]
        plan = self.plan(f"{estimate(first) * 0.9:.0f}s", probes="host_to_device")
        kept = {c.case.params["bytes"] for c in planned(plan.cells)}
        assert {4096, 2**30} <= kept
        assert {c.process_no for c in planned(plan.cells)} == {0}

    def test_none_and_local_outlive_other_arms(self) -> None:
        plan = self.plan("30s", probes="host_to_device", devices="0")
        assert {c.arm.name for c in planned(plan.cells)} <= {"none", "local"}

    def test_what_was_left_out_is_summed_up(self) -> None:
        (warning,) = self.plan("10m").warnings
        assert warning.startswith("budget of 10 min: ")
        assert "repeat 4 (" in warning

    def test_hosts_work_side_by_side_within_it(self) -> None:
        hosts = [host(small(), key) for key in "abc"]
        plan = make_plan(configured(budget="20s"), hosts, seed=1)
        assert self.left_out(plan) == []
        assert plan.estimated_seconds <= 20

    def test_a_budget_without_room_for_one_cell_is_refused(self) -> None:
        with pytest.raises(UsageError, match="1 s has no room for a single cell; the shortest"):
            self.plan("1s")


@dataclass(frozen=True, slots=True)
class Demanding:
    """A probe whose needs a test sets."""

    name: ClassVar[str] = "demanding"
    version: ClassVar[int] = 3
    summary: ClassVar[str] = "needs what a test says"
    needs: ClassVar[frozenset[str]] = frozenset()
    metrics: ClassVar[tuple[Metric, ...]] = ()
    arms: ClassVar[Arms] = Arms.BINDINGS

    size: int = parameter(1, kind=Kind.COUNT, help="any number below 9")

    def __post_init__(self) -> None:
        if self.size > 8:
            raise ValueError("size must be below 9")

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        yield from ()

    def estimated_seconds(self) -> float:
        return float(self.size)


class TestNeeds:
    """A probe that a host cannot run is one skipped cell with the reason."""

    @pytest.fixture(autouse=True)
    def _registered(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setitem(registry.PROBES, "demanding", f"{__name__}:Demanding")
        registry.load.cache_clear()
        yield
        registry.load.cache_clear()

    def plan(self, monkeypatch: pytest.MonkeyPatch, needs: set[str], *hosts: Any) -> Plan:
        found = registry.load("demanding")
        monkeypatch.setattr(found, "needs", frozenset(needs))
        return make_plan(configured(probes="demanding", bindings="none"), hosts, seed=1)

    @pytest.mark.parametrize(
        ("needs", "code"),
        [
            ({"cuda"}, ReasonCode.NO_GPU),
            ({"cuda", "binary:absent"}, ReasonCode.NO_GPU),
            ({"gpus>=2"}, ReasonCode.NO_GPU),
            ({"hosts>=2"}, ReasonCode.NEEDS_2_HOSTS),
            ({"cpus>=8"}, ReasonCode.NEEDS_2_CPUS),
            ({"binary:absent"}, ReasonCode.NO_BINARY),
            ({"duckdb"}, ReasonCode.NO_PACKAGE),
        ],
    )
    def test_what_is_missing_is_the_reason(
        self, monkeypatch: pytest.MonkeyPatch, needs: set[str], code: ReasonCode
    ) -> None:
        (cell,) = self.plan(monkeypatch, needs, host(small())).cells
        assert (cell.status, cell.reason and cell.reason.code) == (Status.SKIPPED, code)
        assert (cell.case.version, cell.case.params) == (3, {})

    def test_too_few_gpus_are_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (cell,) = self.plan(monkeypatch, {"gpus>=2"}, host(small(gpus=[gpu(0)]))).cells
        assert str(cell.reason) == "needs_2_gpus: needs 2 GPUs, 1 usable"

    @pytest.mark.parametrize(
        "needs", [{"hosts>=2"}, {"cpus>=2"}, {"numba", "torch"}, {"binary:there"}, set[str]()]
    )
    def test_met_needs_are_planned(self, monkeypatch: pytest.MonkeyPatch, needs: set[str]) -> None:
        hosts = [host(small(), key, binaries={"there": "/usr/bin/there"}) for key in "ab"]
        cells = self.plan(monkeypatch, needs, *hosts).cells
        assert [(c.host, c.status, c.devices) for c in cells] == [
            ("a", Status.PLANNED, ()),
            ("b", Status.PLANNED, ()),
        ]

    def test_a_probe_without_gpus_runs_its_arms_on_cpus(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chosen = configured(probes="demanding", bindings="none,local,remote,spread")
        cells = make_plan(chosen, [host(dual())], seed=1).cells
        assert {c.arm.name for c in planned(cells)} == {"none", "local", "spread"}
        assert reasons(cells) == [("demanding", "remote", Status.NOT_APPLICABLE, ReasonCode.NO_GPU)]

    def test_a_combination_the_probe_refuses_is_a_usage_error(self) -> None:
        chosen = configured(probes="demanding", sets=("demanding.size=3,9",))
        with pytest.raises(UsageError, match=r"demanding cannot take .*size must be below 9"):
            make_plan(chosen, [host(small())], seed=1)


def plan_schema() -> jsonschema.Draft202012Validator:
    """The schema of plan documents; it refers to those of sweeps and of the envelope."""
    loaded = {path.name: json.loads(path.read_text("utf-8")) for path in SCHEMAS.glob("*.json")}
    found = [referencing.Resource.from_contents(schema) for schema in loaded.values()]
    known = referencing.Registry().with_resources((r.id() or "", r) for r in found)
    jsonschema.Draft202012Validator.check_schema(loaded["plan.json"])
    return jsonschema.Draft202012Validator(loaded["plan.json"], registry=known)


class TestDocument:
    """`topobench plan --format json`."""

    @pytest.mark.parametrize("place", [small(), dual()], ids=["small", "gpus"])
    def test_it_keeps_its_schema(self, place: Any) -> None:
        chosen = configured(profile="standard", store="postgresql+psycopg://u:pw@h/d")
        hosts = [host(place), host(small(), "other")]
        document = plan_document(make_plan(chosen, hosts, seed=1), chosen, hosts)
        envelope = {
            "schema": "topobench.plan/1",
            "tool_version": "0.1.0",
            "generated_at": "2026-01-01T00:00:00Z",
            "status": "ok",
            "exit_code": 0,
            "warnings": [],
            "data": document,
        }
        plan_schema().validate(json.loads(json.dumps(envelope)))
        assert document["store"] == "postgresql+psycopg://u:***@h/d"
        assert sum(document["counts"].values()) == len(document["cells"])

    def test_a_cell_says_what_will_run(self) -> None:
        chosen, hosts = configured(), [host(small())]
        document = plan_document(make_plan(chosen, hosts, seed=1), chosen, hosts)
        assert document["hosts"] == [
            {"key": "h1", "name": "h1", "address": "10.0.0.2", "sku": "unknown"}
        ]
        (cell,) = [c for c in document["cells"] if c["params"].get("op") == "copy"]
        assert {**cell, "id": None, "estimated_seconds": None} == {
            "id": None,
            "host": "h1",
            "probe": "host_memory",
            "version": 1,
            "params": {"op": "copy", "bytes": None, "cpu_node": 0, "memory_node": 0},
            "arm": "cpu0-mem0",
            "binding": {
                "name": "cpu0-mem0",
                "cpus": "0-1",
                "cpu_nodes": [0],
                "memory": "bind",
                "memory_nodes": [0],
                "threads": 2,
            },
            "ring": None,
            "env": {},
            "devices": [],
            "ranks": 1,
            "process_no": 0,
            "block": 0,
            "order_in_block": 0,
            "estimated_seconds": None,
            "status": "planned",
            "reason": None,
        }
