from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import uuid
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing

from planning import (
    GIB,
    configured,
    dual,
    gpu,
    host,
    node,
    planned,
    reasons,
    small,
    topology,
    without_ids,
)
from topobench.costs import LOOK_SECONDS, READY_SECONDS
from topobench.plan import Plan, batches, estimate, make_plan, plan_document
from topobench.reading import Cell, MemoryPolicy, ReasonCode, Status, to_json
from topobench.topology import NodeKind
from topobench.topology import Path as GpuPath

SCHEMAS = Path(__file__).parent.parent / "docs/schemas"
ON_GPUS = ("host_to_device", "device_memory", "gemm", "kernel_launch")
"""Probes of the profile quick that need a GPU."""


class TestSmallHost:
    """Two CPUs, one NUMA node, no GPU: what `topobench probe` meets on a laptop."""

    def plan(self) -> Plan:
        return make_plan(configured(), [host(small())], seed=1)

    def test_what_cannot_run_is_said_once_with_the_reason(self) -> None:
        assert reasons(self.plan().cells) == [
            *((name, "none", Status.SKIPPED, ReasonCode.NO_GPU) for name in ON_GPUS),
            ("host_network", "none", Status.SKIPPED, ReasonCode.NEEDS_2_HOSTS),
            ("prefill", "local", Status.NOT_APPLICABLE, ReasonCode.ONE_NUMA_NODE),
            ("prefill", "spread", Status.NOT_APPLICABLE, ReasonCode.ONE_NUMA_NODE),
            ("all_reduce", "none", Status.SKIPPED, ReasonCode.NEEDS_2_CPUS),
            ("all_reduce", "local", Status.NOT_APPLICABLE, ReasonCode.ONE_NUMA_NODE),
            ("all_reduce", "spread", Status.NOT_APPLICABLE, ReasonCode.ONE_NUMA_NODE),
        ]

    def test_the_rest_runs(self) -> None:
        told = ("op", "shape", "bytes")
        found = [
            (c.case.probe, next(filter(None, map(c.case.params.get, told))), c.arm.name, c.ranks)
            for c in planned(self.plan().cells)
        ]
        assert found == [
            ("host_memory", "copy", "cpu0-mem0", 1),
            ("host_memory", "triad", "cpu0-mem0", 1),
            ("prefill", "tiny", "none", 1),
            ("all_reduce", 8192, "none", 2),
            ("all_reduce", 2**20, "none", 2),
            ("all_reduce", 128 * 2**20, "none", 2),
        ]

    def test_memory_is_bound_to_the_only_node_with_every_cpu(self) -> None:
        binding = planned(self.plan().cells)[0].arm.binding
        assert (binding.cpus, binding.cpu_nodes, binding.threads) == ("0-1", (0,), 2)
        assert (binding.memory, binding.memory_nodes) == (MemoryPolicy.BIND, (0,))

    def test_one_worker_runs_all_cells_of_its_arm(self) -> None:
        found = [[c.case.probe for c in batch] for batch in batches(self.plan().cells)]
        assert found == [["host_memory"] * 2, ["prefill"], ["all_reduce"] * 3]

    def test_the_estimate_is_cells_and_start_ups(self) -> None:
        plan = self.plan()
        expected = 3 * READY_SECONDS + sum(c.estimated_seconds for c in planned(plan.cells))
        assert plan.estimated_seconds == pytest.approx(expected)
        assert plan.gpu_hours == 0

    def test_quick_leaves_room_for_the_start_of_ray_in_45_seconds(self) -> None:
        assert 5 < self.plan().estimated_seconds <= 37

    def test_counts_are_by_status(self) -> None:
        assert self.plan().counts == {"planned": 6, "skipped": 6, "not_applicable": 4}

    def test_a_host_that_denies_memory_policies_still_has_its_arms(self) -> None:
        """The launcher binds CPUs and labels the run; the plan stays the same."""
        denied = host(small(), memory_policy="denied: Operation not permitted")
        assert without_ids(make_plan(configured(), [denied], seed=1)) == without_ids(self.plan())

    def test_rings_between_cpus_are_told_not_to_apply(self) -> None:
        chosen = dataclasses.replace(
            configured(probes="all_reduce,ring_p2p", bindings="none"),
            rings=("auto", "best", (0, 2, 1, 3)),
        )
        cells = make_plan(chosen, [host(small(cpus=4))], seed=1).cells
        found = {(c.case.probe, c.arm.name, c.status.value) for c in cells if c.reason}
        assert found == {
            ("all_reduce", "none/best", "not_applicable"),
            ("all_reduce", "none/0-2-1-3", "not_applicable"),
        }

    def test_one_cpu_has_no_gang(self) -> None:
        plan = make_plan(configured(), [host(small(cpus=1))], seed=1)
        assert {c.case.probe for c in planned(plan.cells)} == {"host_memory", "prefill"}
        assert [c.ranks for c in plan.cells if c.case.probe == "all_reduce"] == [2, 4]

    def test_without_torch_gangs_are_skipped(self) -> None:
        plan = make_plan(configured(), [host(small(), torch=None)], seed=1)
        assert ("all_reduce", "none", Status.SKIPPED, ReasonCode.NO_PACKAGE) in reasons(plan.cells)

    def test_unknown_available_memory_leaves_no_gang_out(self) -> None:
        here = host(small(), available_memory_bytes=None)
        plan = make_plan(configured(probes="all_reduce"), [here], seed=1)
        sizes = [c.case.params["bytes"] for c in planned(plan.cells)]
        assert sizes == [8192, 2**20, 128 * 2**20]

    def test_a_gang_that_would_not_fit_into_memory_is_skipped(self) -> None:
        here = host(small(), available_memory_bytes=100 * 2**20)
        plan = make_plan(configured(probes="all_reduce"), [here], seed=1)
        (short,) = [c for c in plan.cells if c.reason and c.reason.code == "not_enough_memory"]
        assert (short.case.params["bytes"], short.ranks) == (128 * 2**20, 2)
        assert [c.case.params["bytes"] for c in planned(plan.cells)] == [8192, 2**20]


class TestGpuHost:
    """Eight GPUs on two NUMA nodes."""

    def plan(self, **flags: Any) -> Plan:
        return make_plan(configured(**flags), [host(dual())], seed=3)

    def test_copies_of_one_gpu_run_on_each_under_each_arm(self) -> None:
        sets = ("host_to_device.at_once=one",)
        cells = planned(self.plan(probes="host_to_device", sets=sets).cells)
        per_worker = collections.Counter((c.devices, c.arm.name) for c in cells)
        assert len(per_worker) == 8 * 3
        assert set(per_worker.values()) == {3 * 2}
        assert {len(c.devices) for c in cells} == {1}

    def test_quick_copies_to_all_gpus_at_once(self) -> None:
        """One worker for each GPU and arm; the order of the GPUs is the host's."""
        keys = tuple(g.key for g in dual().gpus)
        cells = planned(self.plan(probes="host_to_device").cells)
        assert {(c.devices, c.ranks, c.case.params["at_once"]) for c in cells} == {(keys, 8, "all")}
        assert {c.arm.name: c.arm.ring for c in cells} == dict.fromkeys(("none", "local", "spread"))

    def test_arms_are_compared_on_all_gpus_and_each_alone_runs_under_the_first(self) -> None:
        cells = planned(self.plan(probes="host_to_device", profile="standard").cells)
        arms = collections.defaultdict(set)
        for cell in cells:
            arms[len(cell.devices), cell.case.params["at_once"]].add(cell.arm.name)
        assert arms == {(8, "all"): {"none", "local", "spread", "remote"}, (1, "one"): {"none"}}
        assert {c.devices for c in cells if c.ranks == 1} == {(g.key,) for g in dual().gpus}

    def test_all_gpus_at_once_of_a_single_gpu_is_that_one(self) -> None:
        for asked in ("all", "one,all", "one"):
            chosen = configured(
                probes="host_to_device", sets=(f"host_to_device.at_once={asked}",), bindings="none"
            )
            cells = planned(make_plan(chosen, [host(dual(gpus=1))], seed=1).cells)
            assert {(c.ranks, c.case.params["at_once"]) for c in cells} == {(1, "one")}
            assert len(cells) == 3 * 2

    def test_local_follows_each_gpu(self) -> None:
        place = dual()
        nodes = {g.key: g.cpu_node.value for g in place.gpus}
        chosen = configured(probes="host_to_device", sets=("host_to_device.at_once=one",))
        for cell in planned(make_plan(chosen, [host(place)], seed=1).cells):
            assert cell.arm.rank_bindings == ()
            if cell.arm.name == "local":
                assert cell.arm.binding.cpu_nodes == (nodes[cell.devices[0]],)

    @pytest.mark.parametrize("probe", ["host_to_device", "all_reduce"])
    def test_each_rank_of_a_gang_is_bound_to_the_node_of_its_own_gpu(self, probe: str) -> None:
        place = dual()
        far = configured(probes=probe, bindings="local,remote")
        cells = planned(make_plan(far, [host(place)], seed=1).cells)
        bound = {c.arm.binding.name: c.arm for c in cells}
        for name, nodes in (("local", (0, 0, 0, 0, 1, 1, 1, 1)), ("remote", (1,) * 4 + (0,) * 4)):
            ranks = bound[name].rank_bindings
            assert tuple(b.cpu_nodes[0] for b in ranks) == nodes
            assert tuple(b.memory_nodes[0] for b in ranks) == nodes
            assert {b.threads for b in ranks} == {bound[name].binding.threads}
            assert (bound[name].binding.cpus, bound[name].binding.cpu_nodes) == ("0-127", (0, 1))
            assert bound[name].binding.memory_nodes == (0, 1)

    def test_ranks_that_are_bound_alike_have_one_binding(self) -> None:
        cells = planned(self.plan(probes="all_reduce", bindings="none,spread").cells)
        assert {c.arm.rank_bindings for c in cells} == {()}

    def test_threads_are_equal_across_the_arms_of_a_comparison(self) -> None:
        sets = ("host_to_device.at_once=one",)
        cells = planned(self.plan(probes="host_to_device", sets=sets).cells)
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
        assert {c.arm.name for c in cells} == {"none/auto", "local/auto", "spread/auto"}
        assert {c.case.params["backend"] for c in cells} == {"nccl"}

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

    def test_gpu_hours_count_every_gpu_of_the_host(self) -> None:
        plan = self.plan()
        assert plan.gpu_hours == pytest.approx(8 * plan.estimated_seconds / 3600)

    def test_gpu_workers_are_looked_at_between_their_cells(self) -> None:
        cells = self.plan(probes="host_to_device").cells
        looks = 8 * LOOK_SECONDS * (len(cells) - 3)
        expected = 3 * READY_SECONDS + looks + sum(c.estimated_seconds for c in cells)
        assert estimate(cells) == pytest.approx(expected)

    def test_ring_arms_are_laid_out_where_orders_differ(self) -> None:
        """Two pairs of near GPUs: 0-1 and 2-3; best crosses twice, worst always."""
        near = {("gpu:0", "gpu:1"): 24e9, ("gpu:2", "gpu:3"): 24e9}
        pairs = itertools.combinations([f"gpu:{i}" for i in range(4)], 2)
        paths = tuple(GpuPath(*p, nccl_bytes_per_second=near.get(p, 9e9)) for p in pairs)
        place = dataclasses.replace(dual(gpus=4), paths=paths)
        orders = ("auto", "auto_ring", "identity", "best", "worst", (0, 2, 1, 3), (3, 2, 1, 0))
        chosen = dataclasses.replace(
            configured(probes="all_reduce", bindings="none"), rings=orders, blocks=2
        )
        cells = make_plan(chosen, [host(place)], seed=1).cells
        ring_only = {"NCCL_ALGO": "allreduce:ring", "NCCL_NVLS_ENABLE": "0"}
        assert {c.arm.ring: dict(c.arm.env) for c in planned(cells)} == {
            "auto": {},
            **dict.fromkeys(("auto_ring", "identity", "best", "worst"), ring_only),
        }
        assert {(c.arm.ring, c.block) for c in planned(cells)} == {
            (ring, block) for ring in orders[:5] for block in (0, 1)
        }
        assert [(c.arm.name, c.reason and c.reason.text) for c in cells if c.reason] == [
            ("none/0-2-1-3", "the same ring as worst"),
            ("none/3-2-1-0", "the same ring as best"),
        ]

    def test_ring_orders_that_cannot_differ_or_be_judged_are_refused(self) -> None:
        """Those that are run bring along what they are held against: NCCL's own rings."""
        chosen = dataclasses.replace(
            configured(probes="all_reduce", bindings="none"), rings=("auto", "best", (0, 2, 1, 3))
        )
        cells = make_plan(chosen, [host(dual(gpus=4))], seed=1).cells
        assert {c.arm.ring for c in planned(cells)} == {"auto", "0-2-1-3", "auto_ring"}
        assert reasons(cells) == [
            ("all_reduce", "none/best", Status.SKIPPED, ReasonCode.UNSUPPORTED)
        ]
        two = make_plan(chosen, [host(dual(gpus=2))], seed=1).cells
        assert {c.arm.ring for c in planned(two)} == {"auto"}
        assert reasons(two) == [
            ("all_reduce", "none/best", Status.NOT_APPLICABLE, ReasonCode.EQUIVALENT_ARMS),
            ("all_reduce", "none/0-2-1-3", Status.NOT_APPLICABLE, ReasonCode.EQUIVALENT_ARMS),
        ]

    def test_rings_of_our_own_have_an_order_and_no_ring_arms(self) -> None:
        chosen = dataclasses.replace(
            configured(probes="ring_p2p", bindings="none"), rings=("auto", "best", "worst")
        )
        cells = make_plan(chosen, [host(dual(gpus=4))], seed=1).cells
        assert [(c.arm.name, c.ranks, c.status) for c in cells] == [("none", 4, Status.PLANNED)]
        assert cells[0].case.params["order"] is None

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
        sets = ("host_to_device.at_once=one",)
        chosen = configured(profile="standard", probes="host_to_device", sets=sets)
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
            assert len({(c.case.params["bytes"], c.case.params["direction"]) for c in batch}) == 18

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

    def test_hosts_of_other_kinds_do_not_change_what_a_host_gets(self) -> None:
        """Arms are laid out once for hosts of one kind; each of these is of another kind."""
        chosen = configured(profile="standard", probes="host_to_device,host_memory,all_reduce")
        unknown = [gpu(i, None if i == 3 else i // 2) for i in range(4)]
        places = [
            dual(4),
            dual(4, allowed="0-3,32-35"),
            dual(4, quota_cpus=6.0),
            dataclasses.replace(dual(4), gpus=tuple(unknown)),
            small(cpus=4, gpus=dual(4).gpus),
        ]
        hosts = [host(place, f"h{n}") for n, place in enumerate(places)]
        together = [c for c in without_ids(make_plan(chosen, hosts, seed=5)) if not c.hosts]
        alone = [without_ids(make_plan(chosen, [h], seed=5)) for h in hosts]
        assert together == [c for cells in alone for c in cells]

    def test_hosts_of_one_kind_share_their_arms(self) -> None:
        cells = make_plan(configured(), [host(dual(), "h1"), host(dual(), "h2")], seed=5).cells
        one, two = (
            {id(c.arm) for c in planned(cells) if c.host == h and not c.hosts} for h in ("h1", "h2")
        )
        assert one == two

    def test_ids_of_a_plan_are_uuids_in_order(self) -> None:
        ids = [c.id for c in self.plan().cells]
        assert ids == sorted(set(ids))
        assert {uuid.UUID(id).version for id in ids} == {4}

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
            "hosts": [],
            "ranks": 1,
            "process_no": 0,
            "block": 0,
            "order_in_block": 0,
            "estimated_seconds": None,
            "status": "planned",
            "reason": None,
        }


class TestPairs:
    """Probes of two GPUs: every ordered pair, all in one worker."""

    def plan(self, gpus: int, *sets: str, bindings: str = "none") -> Plan:
        flags = configured(probes="peer", sets=sets, bindings=bindings)
        return make_plan(flags, [host(dual(gpus))], seed=1)

    def test_every_ordered_pair_is_a_cell_of_one_worker(self) -> None:
        cells = self.plan(4).cells
        keys = [g.key for g in dual(4).gpus]
        assert {c.devices for c in cells} == set(itertools.permutations(keys, 2))
        assert len(cells) == 12
        assert {c.visible for c in cells} == {tuple(keys)}
        (batch,) = batches(cells)
        assert batch == cells

    def test_both_ways_at_once_run_once_a_pair(self) -> None:
        cells = planned(self.plan(4, "peer.ways=one,both").cells)
        both = [c.devices for c in cells if c.case.params["ways"] == "both"]
        keys = [g.key for g in dual(4).gpus]
        assert sorted(both) == sorted(itertools.combinations(keys, 2))
        assert len(cells) == 12 + 6

    def test_all_gpus_copy_at_once_in_one_cell(self) -> None:
        cells = planned(self.plan(4, "peer.ways=one,all").cells)
        keys = tuple(g.key for g in dual(4).gpus)
        assert [c.devices for c in cells if c.case.params["ways"] == "all"] == [keys]
        assert len(cells) == 12 + 1

    def test_repeats_have_a_worker_each(self) -> None:
        config = dataclasses.replace(configured(probes="peer"), processes=3)
        plan = make_plan(config, [host(dual(3))], seed=1)
        assert [len(batch) for batch in batches(plan.cells)] == [6, 6, 6]

    def test_the_worker_of_all_pairs_is_bound_near_all_of_them(self) -> None:
        (arm,) = {c.arm.name: c.arm for c in planned(self.plan(8, bindings="local").cells)}.values()
        assert arm.binding.cpu_nodes == (0, 1)
        assert arm.rank_bindings == ()

    def test_one_gpu_has_none_to_reduce_with_and_its_cpus_are_measured_if_asked_for(self) -> None:
        """Processes that exchange bytes through memory say nothing of a host with a GPU."""
        place = host(small(cpus=16, gpus=[gpu(0)]))
        (cell,) = make_plan(configured(probes="all_reduce"), [place], seed=1).cells
        assert cell.status is Status.SKIPPED
        assert str(cell.reason) == "needs_2_gpus: needs 2 GPUs, 1 usable"
        asked = configured(probes="all_reduce", sets=("all_reduce.backend=gloo",))
        cells = planned(make_plan(asked, [place], seed=1).cells)
        assert {(c.devices, c.ranks) for c in cells} == {((), 2), ((), 4)}

    def test_one_gpu_has_no_pair(self) -> None:
        assert reasons(self.plan(1).cells) == [
            ("peer", "none", Status.SKIPPED, ReasonCode.NEEDS_2_GPUS)
        ]

    def test_cells_of_pairs_survive_json(self) -> None:
        for cell in self.plan(2).cells:
            assert Cell.from_json(json.loads(json.dumps(to_json(cell)))) == cell
