"""The probes of one GPU's memory, arithmetic and launches, and of pairs, on real GPUs."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from probing import Listener, measure, run_gang
from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.probes import cublaslt, gemm
from topobench.probes.device_memory import DeviceMemory
from topobench.probes.driver import Driver
from topobench.probes.gemm import PRECISIONS, Gemm
from topobench.probes.kernel_launch import CALLS, KernelLaunch
from topobench.probes.peer import Copies, Peer, positions
from topobench.reading import Summary

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no usable GPU"),
]

BANDWIDTH, FLOP, LATENCY = "bandwidth_bytes_per_second", "flop_per_second", "latency_seconds"


@functools.cache
def figure(probe: Any) -> tuple[Summary, Listener]:
    """The one summary of a measured case, and what the probe told."""
    listener = Listener()
    (reading,) = measure(probe, listener.context(devices=("GPU-0",), deadline_seconds=60.0))
    return reading.summary, listener


@pytest.mark.parametrize("op", ["copy", "triad"])
def test_memory_is_near_its_peak_and_never_above(op: str) -> None:
    summary, listener = figure(DeviceMemory(op=op))
    peak = listener.notes["peak_bytes_per_second"]
    assert peak == Driver().memory_peak(0)
    assert 0.6 * peak < summary.median < peak
    assert listener.notes["bytes_convention"].startswith("2 x" if op == "copy" else "3 x")


def test_arrays_that_do_not_fit_are_skipped() -> None:
    context = Listener().context(devices=("GPU-0",), deadline_seconds=60.0)
    with pytest.raises(ProbeUnavailable, match=r"not_enough_memory: .* of device memory"):
        measure(DeviceMemory(bytes=1 << 40), context)


@pytest.mark.parametrize("dtype", sorted(PRECISIONS))
def test_every_type_is_measured_or_unavailable_with_the_reason(dtype: str) -> None:
    capable = torch.cuda.get_device_capability() >= PRECISIONS[dtype].capability
    if not capable:
        with pytest.raises(ProbeUnavailable, match=f"unsupported: {dtype}"):
            figure(Gemm(dtype=dtype, size=4096))
        return
    summary, listener = figure(Gemm(dtype=dtype, size=4096))
    assert 1e11 < summary.median < 1e16
    pool = listener.notes["operand_sets"] * gemm.set_bytes(dtype, 4096)
    assert pool >= 2 * gemm.cache_bytes(torch)


@pytest.mark.parametrize("dtype", sorted(cublaslt.TYPES))
def test_every_kernel_that_is_proposed_gives_the_product(dtype: str) -> None:
    if torch.cuda.get_device_capability() < PRECISIONS[dtype].capability:
        pytest.skip(f"this GPU has no {dtype}")
    with gemm.float32_products(torch, dtype == "tf32"):
        products = gemm.Products(torch, dtype, 2048, 2)
        products.try_once()
        kernels = cublaslt.kernels(torch, dtype, 2048)
        assert kernels
        for kernel in kernels:
            products._multiply = kernel
            products.verify()
        assert products.choose() in {"torch", *(f"cuBLASLt {i}" for i in range(len(kernels)))}
        products.verify()


def test_the_chosen_kernel_is_told() -> None:
    assert figure(Gemm(dtype="int8", size=4096))[1].notes["kernel"] == "torch"
    assert figure(Gemm(size=4096))[1].notes["kernel"].startswith(("torch", "cuBLASLt"))


def test_narrower_types_are_faster() -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU with FP8")
    rates = {d: figure(Gemm(dtype=d, size=8192))[0].median for d in ("fp32", "tf32", "bf16", "fp8")}
    assert rates["fp32"] < rates["tf32"] < rates["bf16"] < rates["fp8"]


def test_a_sustained_rate_is_not_above_the_burst_and_not_far_below() -> None:
    burst = figure(Gemm(size=8192))[0]
    summary, listener = figure(Gemm(size=8192, mode="sustained", seconds=4.0))
    assert 0.95 < listener.notes["busy_ratio"] <= 1.01
    assert 0.5 * burst.median < summary.median < 1.05 * burst.median
    assert summary.stop_reason == "fixed"
    assert summary.warmups > 0


def test_graphs_and_queues_hide_what_a_wait_costs() -> None:
    modes = ("graph", "queued", "back_to_back", "synchronised")
    found = {mode: figure(KernelLaunch(mode=mode))[0] for mode in modes}
    assert all(0.2e-6 < s.median < 200e-6 for s in found.values())
    assert found["graph"].median < found["synchronised"].median
    assert found["queued"].median < found["synchronised"].median
    assert found["back_to_back"].median < found["synchronised"].median
    assert found["synchronised"].n == CALLS
    assert found["synchronised"].p99 is not None


def test_ranks_multiply_at_once() -> None:
    """With too few GPUs two ranks share one, and each gets about half of it."""
    devices = tuple(f"GPU-{i}" for i in range(max(2, torch.cuda.device_count())))
    cases = [{"size": 4096, "at_once": "all"}]
    first, *_ = run_gang(len(devices), cases, devices=devices, probe=Gemm)
    (readings,) = first.outcomes
    found = {r["point"].get("rank"): r["summary"]["median"] for r in readings}
    assert found[None] == pytest.approx(sum(found[r] for r in range(len(devices))), rel=0.1)
    alone = figure(Gemm(size=4096))[0].median
    assert found[None] < 1.1 * len(devices) * alone
    assert {r["metric"] for r in readings} == {FLOP}


def test_ranks_use_their_memory_and_launch_at_once() -> None:
    devices = tuple(f"GPU-{i}" for i in range(max(2, torch.cuda.device_count())))
    for probe, metric in ((DeviceMemory, BANDWIDTH), (KernelLaunch, LATENCY)):
        first, *_ = run_gang(len(devices), [{"at_once": "all"}], devices=devices, probe=probe)
        (readings,) = first.outcomes
        assert [r["point"].get("rank") for r in readings] == [None, *range(len(devices))]
        assert {r["metric"] for r in readings} == {metric}


several = [
    pytest.mark.multi_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds fewer than two GPUs"),
]
MIB = 1 << 20


def uuids() -> tuple[str, ...]:
    return tuple(f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(2))


@functools.cache
def pair(probe: Peer, *, mirrored: bool = False) -> tuple[dict[str, Summary], Listener]:
    """Summaries by metric of one case between the first two GPUs."""
    listener = Listener()
    devices = uuids()[::-1] if mirrored else uuids()
    readings = measure(probe, listener.context(devices=devices, deadline_seconds=60.0))
    return {r.metric: r.summary for r in readings}, listener


def test_one_gpu_is_no_pair() -> None:
    with pytest.raises(ProbeUnavailable, match="needs_2_gpus"):
        measure(Peer(), Listener().context(devices=("GPU-0",)))


class TestPairs:
    pytestmark = several

    @pytest.mark.parametrize("mirrored", [False, True])
    @pytest.mark.parametrize("op", ["read", "write"])
    def test_a_pair_copies_as_fast_as_pci_express_at_least(self, op: str, mirrored: bool) -> None:
        found, listener = pair(Peer(op=op), mirrored=mirrored)
        assert 5e9 < found[BANDWIDTH].median < 2e12
        assert listener.notes["peer_access"] is True

    def test_both_ways_move_more_than_one_and_at_most_twice_that(self) -> None:
        one = pair(Peer())[0][BANDWIDTH].median
        both, listener = pair(Peer(ways="both"))
        assert 1.5 * one < both[BANDWIDTH].median < 2.1 * one
        assert listener.notes["bytes_convention"] == "2 x copy, each byte once"

    def test_all_at_once_between_two_is_both_ways(self) -> None:
        both = pair(Peer(ways="both"))[0][BANDWIDTH].median
        found, listener = pair(Peer(ways="all"))
        assert found[BANDWIDTH].median == pytest.approx(both, rel=0.05)
        assert listener.notes["bytes_convention"] == "2 x copy, each byte once"

    def test_small_copies_tell_a_latency(self) -> None:
        found, _ = pair(Peer(bytes=16))
        assert 0.5e-6 < found[LATENCY].median < 100e-6
        assert LATENCY not in pair(Peer(bytes=MIB))[0]

    def test_without_peer_access_bytes_arrive_too_and_not_faster(self) -> None:
        direct = pair(Peer())[0][BANDWIDTH].median
        found, listener = pair(Peer(p2p="off"))
        (staged,) = found.values()
        assert 1e8 < staged.median < 1.05 * direct
        assert listener.notes["peer_access"] is False
        assert pair(Peer(op="read", bytes=64 * MIB))[0][BANDWIDTH].median > staged.median

    @pytest.mark.parametrize("ways", ["one", "both"])
    def test_one_wrong_byte_is_found(self, ways: str) -> None:
        copies = Copies.make(torch, Peer(bytes=MIB, ways=ways), positions(torch, uuids()))
        copies.grant(on=True)
        with torch.cuda.stream(copies.ways[0].stream):
            copies.verify()
            copies.enqueue(5)
            copies.check()
            copies.ways[-1].target.target[3 * MIB + 1] += 1
            with pytest.raises(ResultInvalid, match=f"1 of {5 * MIB} bytes are wrong"):
                copies.check()

    def test_a_gpu_that_torch_does_not_see_is_an_error(self) -> None:
        with pytest.raises(ProbeError, match="torch_cannot_use_gpu: torch does not see GPU-nosuch"):
            positions(torch, ("GPU-nosuch",))
