"""The copy probe on a real GPU."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

from probing import Listener, measure, run_gang
from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.probes import cuda
from topobench.probes.host_to_device import CHUNKS_MAX, POOL_BYTES, Copies, HostToDevice
from topobench.probes.timing import QueueTimer, behind_spin, mark_overhead

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no usable GPU"),
]

KIB, MIB = 1 << 10, 1 << 20
QUEUED, PER_CALL = "bandwidth_bytes_per_second", "per_call_bandwidth_bytes_per_second"
NOISE = 0.05


@functools.cache
def figures(size: int, direction: str, memory: str = "pinned") -> tuple[dict[str, Any], Listener]:
    """Summaries by metric of one measured case."""
    listener = Listener()
    probe = HostToDevice(bytes=size, direction=direction, memory=memory)
    context = listener.context(devices=("GPU-0",), deadline_seconds=60.0)
    return {r.metric: r.summary for r in measure(probe, context)}, listener


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_peak_is_that_of_a_pci_express_or_c2c_link(direction: str) -> None:
    """PCIe 3 x16 gives 12 GB/s, PCIe 6 x16 about 110, NVLink-C2C up to 450."""
    found, _ = figures(256 * MIB, direction)
    assert 5e9 < found[QUEUED].median < 450e9
    assert found[QUEUED].n >= 10


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_larger_chunks_are_not_slower(direction: str) -> None:
    sizes = [4 * KIB, 64 * KIB, MIB, 256 * MIB]
    for metric in (QUEUED, PER_CALL):
        medians = [figures(s, direction)[0][metric].median for s in sizes]
        for smaller, larger in itertools.pairwise(medians):
            assert larger > smaller * (1 - NOISE)


@pytest.mark.parametrize("direction", ["h2d", "d2h", "both"])
@pytest.mark.parametrize("size", [4 * KIB, 64 * KIB, MIB, 256 * MIB])
def test_queued_copies_are_at_least_as_fast_as_single_ones(size: int, direction: str) -> None:
    found, listener = figures(size, direction)
    assert found[QUEUED].median > found[PER_CALL].median * (1 - NOISE)
    count = listener.notes["queued_operations"]
    assert count <= 256
    assert count == 256 or count * size >= 64 * MIB


def test_launch_hiding_pays_at_64_kib() -> None:
    """The plain loop measures the host's launching, not the link."""
    found, _ = figures(64 * KIB, "h2d")
    assert found[QUEUED].median > 2 * found[PER_CALL].median


def test_both_ways_move_more_than_one_way_and_less_than_twice_the_better() -> None:
    one_way = max(figures(256 * MIB, d)[0][QUEUED].median for d in ("h2d", "d2h"))
    both = figures(256 * MIB, "both")[0][QUEUED].median
    assert one_way * (1 - NOISE) < both < 2 * one_way * (1 + NOISE)


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_pageable_memory_has_a_per_call_figure_only(direction: str) -> None:
    found, _ = figures(16 * MIB, direction, "pageable")
    assert set(found) == {PER_CALL}
    assert 1e8 < found[PER_CALL].median < 450e9


def test_the_pinned_buffers_are_announced_whole() -> None:
    for direction, ways in (("h2d", 1), ("both", 2)):
        _, listener = figures(MIB, direction)
        assert [size for _, size in listener.buffers] == [POOL_BYTES] * ways


@pytest.mark.parametrize("direction", ["h2d", "d2h", "both"])
def test_every_byte_arrives_and_one_wrong_byte_is_found(direction: str) -> None:
    torch.cuda.set_device(0)
    copies = Copies.make(torch, HostToDevice(bytes=MIB, direction=direction))
    copies.verify()
    copies.enqueue(5)
    copies.check()
    for way in copies.ways:
        assert torch.equal(way.target[: 5 * MIB].cpu(), way.source[: 5 * MIB].cpu())
        assert bool((way.target[5 * MIB :] == 0xA5).all())
    copies.ways[-1].target[3 * MIB + 1] += 1
    with pytest.raises(ResultInvalid, match=f"1 of {5 * MIB} bytes are wrong"):
        copies.check()


def test_tiny_chunks_walk_a_pool_of_bounded_length() -> None:
    copies = Copies.make(torch, HostToDevice(bytes=16))
    assert copies.chunks == CHUNKS_MAX
    copies.verify()


@pytest.mark.parametrize("seconds", [1e-3, 5e-3, 20e-3])
def test_a_spin_lasts_about_as_long_as_asked(seconds: float) -> None:
    queue = cuda.CudaQueue(torch)
    start = queue.mark()
    queue.spin(seconds)
    end = queue.mark()
    queue.wait()
    assert 0.8 * seconds < queue.between(start, end) < 3 * seconds


def test_a_spin_that_is_too_short_is_noticed() -> None:
    queue = cuda.CudaQueue(torch)
    value = torch.ones(16, device="cuda")

    def slow(count: int) -> None:
        for _ in range(count):
            value.add_(1)
            torch.cuda.current_stream().synchronize()

    assert behind_spin(queue, slow, 10, spin_seconds=1e-3) is None
    assert QueueTimer.fit(queue, slow, 10) is None


def test_enqueueing_while_the_spin_holds_the_queue_is_noticed_as_such() -> None:
    queue = cuda.CudaQueue(torch)
    value = torch.ones(16, device="cuda")

    def enqueue(count: int) -> None:
        for _ in range(count):
            value.add_(1)

    timer = QueueTimer.fit(queue, enqueue, 64)
    assert timer is not None
    assert timer.count == 64
    assert 0 < timer.sample() < 100e-6


def test_a_graph_replays_every_operation_and_costs_less_to_enqueue() -> None:
    queue = cuda.CudaQueue(torch)
    value = torch.zeros(16, device="cuda")

    def enqueue(count: int) -> None:
        for _ in range(count):
            value.add_(1)

    replay = cuda.captured(torch, enqueue, 50)
    before = float(value[0])
    replay(3)
    queue.wait()
    assert float(value[0]) == before + 150
    loose, graphed = QueueTimer.fit(queue, enqueue, 50), QueueTimer.fit(queue, replay, 4)
    assert loose is not None
    assert graphed is not None
    assert 0 < graphed.sample() / 50 < 2 * loose.sample()


def test_two_marks_with_nothing_between_them_read_little() -> None:
    overhead = mark_overhead(cuda.CudaQueue(torch))
    assert overhead is not None
    assert 0 <= overhead < 50e-6


def test_pools_that_do_not_fit_are_skipped_with_the_amounts() -> None:
    listener = Listener()
    context = listener.context(devices=("GPU-0",), deadline_seconds=60.0)
    hog = torch.empty(torch.cuda.mem_get_info()[0] - 128 * MIB, dtype=torch.uint8, device="cuda")
    try:
        with pytest.raises(
            ProbeUnavailable,
            match=r"not_enough_memory: 512 MiB of device memory asked for, .*MiB free",
        ):
            measure(HostToDevice(bytes=MIB), context)
    finally:
        del hog
        torch.cuda.empty_cache()
    assert measure(HostToDevice(bytes=MIB), context)


@pytest.mark.parametrize("direction", ["h2d", "both"])
def test_ranks_copy_at_once_and_share_what_one_gpu_has(direction: str) -> None:
    """Two ranks of one GPU: together they get its link, and each about half of it."""
    cases = [{"bytes": 16 * MIB, "direction": direction, "at_once": "all"}]
    devices = tuple(f"GPU-{i}" for i in range(max(2, torch.cuda.device_count())))
    first, *_ = run_gang(len(devices), cases, devices=devices, probe=HostToDevice)
    (readings,) = first.outcomes
    found = {(r["metric"], r["point"].get("rank")): r["summary"]["median"] for r in readings}
    ranks = range(len(devices))
    alone = figures(16 * MIB, direction)[0][QUEUED].median
    for metric in (QUEUED, PER_CALL):
        parts = [found[metric, rank] for rank in ranks]
        assert found[metric, None] == pytest.approx(sum(parts), rel=0.1)
        assert {r["point"]["device"] for r in readings if r["point"]} == set(devices)
    assert found[QUEUED, None] < len(devices) * alone * (1 + NOISE)
    assert found[QUEUED, None] > 0.7 * alone


def test_too_large_a_pool_is_out_of_memory_by_our_name() -> None:
    with pytest.raises(ProbeError, match="oom"), cuda.errors_named():
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
