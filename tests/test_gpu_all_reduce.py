"""All-reduce over NCCL on real GPUs."""

from __future__ import annotations

import pytest

from probing import run_gang
from topobench.probes import all_reduce, collectives
from topobench.probes.gang_probe import GangProbe

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no usable GPU"),
]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

KIB, MIB = 1 << 10, 1 << 20


def test_one_gpu_all_reduces_with_itself() -> None:
    """The way from joining to leaving, on one rank: a latency and nothing else."""
    (result,) = run_gang(1, [{"bytes": 8 * KIB}], devices=("GPU-0",))
    ((reading,),) = result.outcomes
    assert reading["metric"] == "latency_seconds"
    assert 0 < reading["summary"]["median"] < 1e-3
    assert result.listener.notes["backend"] == "nccl"


@pytest.mark.multi_gpu
@two_gpus
def test_two_gpus_measure_together() -> None:
    cases = [{"bytes": 8}, {"bytes": 8 * KIB}, {"bytes": MIB}, {"bytes": 128 * MIB}]
    first, second = run_gang(2, cases, devices=("GPU-0", "GPU-1"))
    assert second.outcomes == [[], [], [], []]
    medians = []
    for readings in first.outcomes:
        found = {r["metric"]: r["summary"] for r in readings if not r["point"]}
        assert found["busbw_bytes_per_second"]["median"] == pytest.approx(
            found["algbw_bytes_per_second"]["median"]
        )
        medians.append(found["latency_seconds"]["median"])
    assert medians[0] < 100e-6
    assert medians[1] < medians[2] < medians[3]


@pytest.mark.multi_gpu
@two_gpus
@pytest.mark.parametrize("fault", ["garbage", "absent", "later"])
def test_wrong_data_of_one_gpu_is_invalid_on_both(fault: str) -> None:
    for result in run_gang(2, [{"bytes": 64 * KIB}], fault=fault, devices=("GPU-0", "GPU-1")):
        ((kind, code, _),) = result.outcomes
        assert (kind, code) == ("ResultInvalid", "wrong_data")


@pytest.mark.multi_gpu
@two_gpus
def test_every_way_of_timing_agrees_where_the_host_matters_little() -> None:
    """
    A call by itself waits for its launch; in a graph small ones wait for each other.

    torch runs NCCL on a stream of its own, so a graph holds an edge there and back for each.
    """
    modes = ("queued", "graph", "per_call")
    cases = [{"bytes": size, "mode": mode} for size in (8 * KIB, 64 * MIB) for mode in modes]
    first, _ = run_gang(2, cases, devices=("GPU-0", "GPU-1"))
    found = [
        next(r["summary"]["median"] for r in readings if r["metric"] == "latency_seconds")
        for readings in first.outcomes
    ]
    small, large = (dict(zip(modes, part, strict=True)) for part in (found[:3], found[3:]))
    assert small["queued"] < small["graph"] < small["per_call"]
    assert small["per_call"] > 1.5 * small["queued"]
    assert large["graph"] == pytest.approx(large["queued"], rel=0.1)
    assert large["queued"] < large["per_call"] < 2 * large["queued"]


@pytest.mark.multi_gpu
@two_gpus
def test_one_buffer_in_the_caches_is_not_slower_than_the_next_of_many() -> None:
    cases = [{"bytes": 8 * KIB, "pool": pool} for pool in ("cold", "warm")]
    first, _ = run_gang(2, cases, devices=("GPU-0", "GPU-1"))
    cold, warm = (
        next(r["summary"]["median"] for r in readings if r["metric"] == "latency_seconds")
        for readings in first.outcomes
    )
    assert 0.5 * cold < warm < 1.1 * cold


@pytest.mark.multi_gpu
@two_gpus
def test_a_root_that_runs_ahead_waits_for_nobody_while_it_is_timed() -> None:
    """A broadcast's root fills the others' buffers and then waits: never in the timed part."""
    cases = [{"bytes": 64 * KIB}]
    first, _ = run_gang(2, cases, devices=("GPU-0", "GPU-1"), probe=collectives.Broadcast)
    (readings,) = first.outcomes
    times = [r["summary"] for r in readings if r["metric"] == "latency_seconds"]
    assert len(times) == 3
    assert max(t["median"] for t in times) < 2 * min(t["median"] for t in times)
    assert all(t["maximum"] < 2 * t["minimum"] for t in times)


@pytest.mark.multi_gpu
@two_gpus
@pytest.mark.parametrize("probe", [all_reduce.AllReduce, collectives.Broadcast])
def test_out_of_place_is_right_and_costs_about_the_same(probe: type[GangProbe]) -> None:
    """Sums and messages beside the data, by NCCL's own call on torch's communicator."""
    places = ("in", "out_of")
    cases = [{"bytes": size, "place": place} for size in (8, 64 * MIB) for place in places]
    cases.append({"bytes": 64 * KIB, "place": "out_of", "mode": "graph", "dtype": "bfloat16"})
    first, second = run_gang(2, cases, devices=("GPU-0", "GPU-1"), probe=probe)
    assert second.outcomes == [[]] * len(cases)
    medians = []
    for readings in first.outcomes:
        assert isinstance(readings, list), readings
        times = [r["summary"]["median"] for r in readings if r["metric"] == "latency_seconds"]
        medians.append(times[0])
    assert medians[1] < 100e-6
    assert medians[3] == pytest.approx(medians[2], rel=0.2)


@pytest.mark.multi_gpu
@two_gpus
def test_wrong_data_out_of_place_is_invalid_on_both() -> None:
    cases = [{"bytes": 64 * KIB, "place": "out_of"}]
    for result in run_gang(2, cases, fault="garbage", devices=("GPU-0", "GPU-1")):
        ((kind, code, _),) = result.outcomes
        assert (kind, code) == ("ResultInvalid", "wrong_data")
