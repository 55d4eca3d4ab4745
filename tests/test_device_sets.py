"""Which GPUs share a model: one set for each class of path, and what is laid out for them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from planning import configured, dual, gpu, host, planned, small
from topobench.device_sets import device_sets, distance
from topobench.plan import batches, make_plan
from topobench.reading import Cell, ReasonCode, Status
from topobench.topology import Path, Topology

SHARED = ("all_reduce.bytes=8", "prefill.tensor_parallel=1,2,4,8")


def wired(groups: Mapping[str, list[list[int]]], other: str, gpus: int = 8) -> Topology:
    """A host whose GPUs have the path class of the first group that holds both, else another."""
    place = dual(gpus)
    paths = []
    for a, b in itertools.combinations(range(gpus), 2):
        found = (c for c, sets in groups.items() for s in sets if a in s and b in s)
        paths.append(Path(f"gpu:{a}", f"gpu:{b}", smi=next(found, other)))
    return dataclasses.replace(place, paths=tuple(paths))


def sets(place: Topology, size: int) -> list[list[int]]:
    return [[g.index or 0 for g in found] for found in device_sets(place, place.gpus, size)]


def cells(place: Topology, *settings: str, probes: str = "prefill,all_reduce") -> list[Cell]:
    own = [s for s in (*SHARED, *settings) if s.split(".")[0] in probes]
    chosen = configured(probes=probes, sets=tuple(own), bindings="none")
    return list(make_plan(chosen, [host(place)], seed=1).cells)


def test_equal_paths_make_one_set() -> None:
    place = wired({}, "NV18")
    assert [sets(place, n) for n in (2, 4, 8)] == [[[0, 1]], [[0, 1, 2, 3]], [[*range(8)]]]


def test_each_class_of_path_has_a_set_the_nearest_first() -> None:
    near = {"NV4": [[0, 3], [1, 2]], "PIX": [[0, 1]], "NODE": [[0, 1, 2, 3], [4, 5, 6, 7]]}
    place = wired(near, "SYS")
    assert sets(place, 2) == [[0, 3], [0, 1], [0, 2], [0, 4]]
    assert sets(place, 4) == [[0, 1, 2, 3], [0, 1, 2, 4]]
    assert sets(place, 8) == [[*range(8)]]


def test_unknown_paths_are_one_class() -> None:
    assert sets(dual(), 4) == [[0, 1, 2, 3]]


def test_more_links_are_nearer_and_nvlink_nearer_than_any_switch() -> None:
    classes = ["NV18", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS"]
    assert sorted(classes, key=distance) == classes


def test_the_largest_gang_compares_arms_in_the_workers_of_collectives() -> None:
    found = planned(cells(dual(), "prefill.sequence=256"))
    chosen = configured(probes="prefill,all_reduce", sets=SHARED, bindings="none,local")
    compared = planned(make_plan(chosen, [host(dual())], seed=1).cells)
    shared = [c for c in compared if c.case.params.get("tensor_parallel", 1) != 1]
    arms = {n: {c.arm.name for c in shared if c.ranks == n} for n in (2, 4, 8)}
    assert arms == {2: {"none/auto"}, 4: {"none/auto"}, 8: {"none/auto", "local/auto"}}
    assert all(len(c.devices) == c.ranks == c.case.params["tensor_parallel"] for c in shared)
    together = [{c.case.probe for c in b} for b in batches(found) if b[0].ranks == 8]
    assert {"prefill", "all_reduce"} in together


def test_a_part_of_the_gpus_has_the_all_reduces_that_tell_what_its_own_should_cost() -> None:
    """Around 2 and 16 MiB, which llama3-8b adds up; by the first process of each set."""
    chosen = configured(profile="standard", bindings="none")
    near = {"NODE": [[0, 1], [2, 3]]}
    found = planned(make_plan(chosen, [host(wired(near, "SYS", gpus=4))], seed=1).cells)
    reduces = [c for c in found if c.case.probe == "all_reduce" and c.ranks == 2]
    sizes = [32 << 10, 256 << 10, 1 << 20, 16 << 20, 128 << 20]
    assert [c.case.params["bytes"] for c in reduces] == 2 * sizes
    assert {(c.case.params["ranks"], c.case.params["backend"]) for c in reduces} == {(2, "nccl")}
    assert {c.process_no for c in reduces} == {0}
    for batch in batches(found):
        if batch[0].ranks == 2:
            probes = {"prefill"} if batch[0].process_no else {"prefill", "all_reduce"}
            assert {c.case.probe for c in batch} == probes
    places = [g.key for g in dual(4).gpus]
    pairs = [(places[0], places[1]), (places[0], places[2])]
    assert [*dict.fromkeys(c.devices for c in reduces)] == pairs
    whole = {c.case.params["bytes"] for c in found if c.case.probe == "all_reduce" and c.ranks == 4}
    assert len(whole) == 10


def test_without_all_reduces_in_the_sweep_a_part_of_the_gpus_has_none() -> None:
    wanted = ("all_reduce.backend=gloo", "all_reduce.hosts=all")
    for settings, probes in [((), "prefill"), *(((w,), "prefill,all_reduce") for w in wanted)]:
        found = planned(cells(dual(4), *settings, probes=probes))
        assert not [c for c in found if c.case.probe == "all_reduce" and c.devices]


def test_fewer_gpus_run_under_the_first_ring_alone() -> None:
    """Rings are compared where most GPUs share the model; what is not compared is not refused."""
    near = {"NODE": [[0, 1], [2, 3]]}
    chosen = configured(probes="prefill", sets=("prefill.tensor_parallel=2,4",), bindings="none")
    chosen = dataclasses.replace(chosen, rings=("auto_ring", "auto", (0, 2, 1, 3)))
    found = make_plan(chosen, [host(wired(near, "SYS", gpus=4))], seed=1).cells
    rings = [(c.ranks, c.arm.ring) for c in planned(found)]
    assert sorted(set(rings), key=str) == [
        *((2, "auto_ring"), (4, "0-2-1-3"), (4, "auto"), (4, "auto_ring")),
    ]
    assert not [c for c in found if c.reason]


def test_ranks_are_bound_to_the_nodes_of_their_own_gpus() -> None:
    chosen = configured(probes="prefill", sets=("prefill.tensor_parallel=8",), bindings="local")
    (cell,) = planned(make_plan(chosen, [host(dual())], seed=1).cells)
    nodes = [b.cpu_nodes for b in cell.arm.rank_bindings]
    assert nodes == [(0,)] * 4 + [(1,)] * 4


def test_what_a_host_has_too_few_gpus_for_is_skipped_with_the_number() -> None:
    place = small(cpus=16, gpus=[gpu(0), gpu(1)])
    missing = {c.ranks: c for c in cells(place, probes="prefill") if c.reason}
    assert {n: str(c.reason) for n, c in missing.items()} == {
        n: f"needs_2_gpus: needs {n} GPUs, 2 usable" for n in (4, 8)
    }
    assert {c.status for c in missing.values()} == {Status.SKIPPED}


def test_processes_share_the_tiny_model_where_there_is_no_gpu() -> None:
    found = cells(small(cpus=4), probes="prefill")
    (shared,) = [c for c in planned(found) if c.ranks > 1]
    wanted: dict[str, Any] = {"shape": "tiny", "mode": "eager", "tensor_parallel": 2}
    assert {k: shared.case.params[k] for k in wanted} == wanted
    assert (shared.ranks, shared.devices, shared.arm.ring) == (2, (), None)
    reasons = {c.ranks: c.reason for c in found if c.reason}
    assert reasons[8].code is ReasonCode.NEEDS_2_CPUS
    assert str(reasons[4]) == (
        "unsupported: kv_heads of tiny are 2: not a whole number for each of 4 ranks"
    )


@pytest.mark.parametrize("value", ["1", "2"])
def test_one_value_alone_makes_only_its_own_cells(value: str) -> None:
    chosen = configured(probes="prefill", sets=(f"prefill.tensor_parallel={value}",))
    found = planned(make_plan(chosen, [host(small(cpus=4))], seed=1).cells)
    assert {c.ranks for c in found} == {int(value)}
