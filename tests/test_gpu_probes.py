"""The probes of one GPU's memory, arithmetic and launches, and of pairs, on real GPUs."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from probing import Listener, measure, run_gang
from topobench.errors import ProbeUnavailable
from topobench.probes import gemm
from topobench.probes.device_memory import DeviceMemory
from topobench.probes.driver import Driver
from topobench.probes.gemm import PRECISIONS, Gemm
from topobench.probes.kernel_launch import CALLS, KernelLaunch
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


def test_narrower_types_are_faster() -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU with FP8")
    rates = {d: figure(Gemm(dtype=d, size=8192))[0].median for d in ("fp32", "tf32", "bf16", "fp8")}
    assert rates["fp32"] < rates["tf32"] < rates["bf16"] < rates["fp8"]


def test_a_sustained_rate_is_not_above_the_burst_and_not_far_below() -> None:
    burst = figure(Gemm(size=8192))[0]
    summary, _ = figure(Gemm(size=8192, mode="sustained", seconds=4.0))
    assert 0.5 * burst.median < summary.median < 1.05 * burst.median
    assert summary.stop_reason == "fixed"
    assert summary.warmups > 0


def test_products_too_short_for_a_sustained_load_are_unavailable() -> None:
    probe = Gemm(dtype="bf16", size=1024, mode="sustained", seconds=2.0)
    context = Listener().context(devices=("GPU-0",), deadline_seconds=60.0)
    with pytest.raises(ProbeUnavailable, match="kept the GPU busy for only"):
        measure(probe, context)


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
