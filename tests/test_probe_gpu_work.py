"""What the probes of a GPU's memory, arithmetic and launches do without a GPU."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from probing import Listener, measure
from topobench.errors import ProbeUnavailable, ResultInvalid
from topobench.probes import at_once, cublaslt, device_memory, gemm
from topobench.probes.device_memory import Arrays
from topobench.probes.device_work import Figures, Site
from topobench.probes.gemm import PRECISIONS, REST_SECONDS, Endurance, Gemm, Products
from topobench.probes.kernel_launch import CALLS, Calls
from topobench.probes.peer import Copies, End, Peer, Way, pool_bytes, random_bytes
from topobench.probes.timing import SPIN_MIN_SECONDS, Timed

MIB = 1 << 20
SIZE = 256


@pytest.mark.parametrize("op", ["copy", "triad"])
def test_a_right_array_passes_and_one_wrong_element_is_found(op: str) -> None:
    arrays = Arrays(torch, op, MIB, device="cpu")
    arrays.verify()
    arrays.enqueue(1)
    arrays.check()
    first, *second = arrays.sources
    assert torch.equal(arrays.target, first + 3 * second[0] if second else first)
    arrays.target[777] += 1
    with pytest.raises(ResultInvalid, match=f"wrong_data: 1 of {MIB // 4} elements are wrong"):
        arrays.check()


def test_an_operation_that_did_nothing_is_found() -> None:
    """The target is poisoned after the first check, so a stale result cannot pass."""
    arrays = Arrays(torch, "copy", MIB, device="cpu")
    arrays.verify()
    with pytest.raises(ResultInvalid, match=f"{MIB // 4} of {MIB // 4} elements"):
        arrays.check()


def test_a_triad_is_exact_at_the_largest_values() -> None:
    arrays = Arrays(torch, "triad", MIB, device="cpu")
    for source in arrays.sources:
        source.fill_(device_memory.LARGEST - 1)
    arrays.enqueue(1)
    arrays.check()


def test_more_than_the_memory_can_move_is_invalid() -> None:
    device_memory.require_possible(1e-3, 4.7e9, peak=4.8e12)
    with pytest.raises(ResultInvalid, match="invalid_value: 4900 GB/s are more than the 4800 GB/s"):
        device_memory.require_possible(1e-3, 4.9e9, peak=4.8e12)


@pytest.mark.parametrize("dtype", sorted(PRECISIONS))
def test_products_pass_their_check(dtype: str) -> None:
    products = Products(torch, dtype, SIZE, 2, device="cpu")
    with gemm.float32_products(torch, tf32=False):
        products.verify()
        products.enqueue(3)
        products.check()
    assert products.done == 3


@pytest.mark.parametrize("dtype", sorted(PRECISIONS))
def test_a_shifted_product_is_found(dtype: str) -> None:
    products = Products(torch, dtype, SIZE, 2, device="cpu")
    products.enqueue(2)
    result = products.sets[1][2]
    result.copy_(result.roll(1, 0))
    with pytest.raises(ResultInvalid, match=f"wrong_data: an element of a {dtype} product"):
        products.check()


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_a_single_element_never_written_is_found(dtype: str) -> None:
    products = Products(torch, dtype, 4 * SIZE, 2, device="cpu")
    products.enqueue(2)
    result = products.sets[0][2]
    result[5, 7] = float("nan") if result.is_floating_point() else gemm.UNWRITTEN
    with pytest.raises(ResultInvalid, match=r"wrong_data: "):
        products.check()


def test_float32_products_that_were_rounded_to_tf32_are_found() -> None:
    """TF32 keeps ten bits of the fraction; a process that forces it must not pass as fp32."""
    products = Products(torch, "fp32", SIZE, 2, device="cpu")
    products.enqueue(2)
    for left, right, result in products.sets:
        torch.mm(_tf32(left), _tf32(right).t(), out=result)
    with pytest.raises(ResultInvalid, match="fp32 product is off by"):
        products.check()
    products._dtype = "tf32"
    products.check()


def _tf32(matrix: torch.Tensor) -> torch.Tensor:
    return (matrix.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_the_setting_for_float32_products_is_restored() -> None:
    before = torch.get_float32_matmul_precision()
    with gemm.float32_products(torch, tf32=True):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(
    ("dtype", "capability", "needed"),
    [
        ("fp8", (8, 0), "8.9"),
        ("bf16", (7, 5), "8.0"),
        ("tf32", (7, 0), "8.0"),
        ("int8", (7, 0), "7.5"),
    ],
)
def test_a_type_that_a_gpu_lacks_is_unavailable(
    dtype: str, capability: tuple[int, int], needed: str
) -> None:
    with pytest.raises(ProbeUnavailable, match=f"unsupported: {dtype} .* capability {needed}"):
        gemm.require_capability(dtype, capability)
    gemm.require_capability(dtype, (9, 0))


def test_a_product_that_torch_lacks_is_unavailable_with_its_words() -> None:
    products = Products(torch, "int8", SIZE, 2, device="cpu")
    products.sets[0] = (*products.sets[0][:2], torch.empty(3, 3, dtype=torch.float64))
    with pytest.raises(ProbeUnavailable, match=r"unsupported: torch .* has no int8 product here"):
        products.try_once()


def test_the_pool_is_larger_than_the_cache_whatever_the_size() -> None:
    for dtype, size in itertools.product(PRECISIONS, (1024, 4096, 16384)):
        count = gemm.sets_beyond_cache(dtype, size, 60 * MIB)
        assert count >= 2
        assert count * gemm.set_bytes(dtype, size) >= 4 * 60 * MIB


def test_set_bytes_are_those_of_the_tensors() -> None:
    for dtype in PRECISIONS:
        (found,) = Products(torch, dtype, SIZE, 1, device="cpu").sets
        assert gemm.set_bytes(dtype, SIZE) == sum(t.nbytes for t in found)


def test_a_sustained_measurement_counts_its_second_half_only() -> None:
    now = itertools.count()
    sampler = Endurance(0.0, 10.0, clock=lambda: float(next(now)) / 2)
    while not sampler.done():
        sampler.add(float(len(sampler.ends)))
    timed = sampler.timed()
    assert timed.stop_reason == "fixed"
    assert 0.4 * len(timed.samples) <= timed.warmups <= 0.6 * len(timed.samples)
    assert list(timed.samples) == sorted(timed.samples)
    assert len(timed.ends) == len(timed.samples)


def test_a_gpu_that_waited_for_the_host_had_no_sustained_load() -> None:
    sampler = Endurance(0.0, 10.0)
    sampler.ends = [0.0, 1.0, 2.0]
    busy = gemm.busy_share(Figures(Timed((0.098, 0.098, 0.098), 1, "fixed", 10)), sampler)
    assert busy == pytest.approx(0.98)
    ranks = tuple(Timed((0.45, 0.45, 0.45), 1, "fixed", 2) for _ in "ab")
    assert gemm.busy_share(Figures(ranks[0], ("a", "b"), ranks), sampler) == pytest.approx(0.9)
    gemm.require_busy(busy)
    with pytest.raises(ProbeUnavailable, match="busy for only 90% of the time"):
        gemm.require_busy(0.9)


def test_a_sustained_case_is_estimated_by_its_length() -> None:
    burst = Gemm().estimated_seconds()
    sustained = Gemm(mode="sustained", seconds=30.0).estimated_seconds()
    assert 29 < sustained - burst < 33


def test_launches_that_wait_give_a_p99() -> None:
    site = Site(torch, Listener().context(), None)
    figures = site.called(lambda: sum(range(50)), Calls(0.0, 5.0, CALLS))
    (reading,) = figures.durations("latency_seconds")
    assert reading.summary.n == CALLS
    assert reading.summary.warmups == CALLS // 10
    assert reading.summary.p99 is not None
    assert reading.summary.p99 >= reading.summary.median > 0


def test_too_slow_launches_end_with_the_time() -> None:
    now = itertools.count()
    sampler = Calls(0.0, 20.0, CALLS, clock=lambda: float(next(now)))
    while not sampler.done():
        sampler.add(1.0)
    assert sampler.stop_reason == "budget"
    assert 20 < len(sampler.counted) < CALLS


def test_figures_of_several_gpus_add_rates_and_name_the_slowest() -> None:
    ranks = (Timed((1.0, 2.0), 0, "fixed", 4), Timed((4.0, 1.0), 0, "fixed", 4))
    total = Timed((0.8, 2 / 3), 0, "fixed", 4)
    figures = Figures(total, ("GPU-a", "GPU-b"), ranks).divided(2)
    rates = list(figures.rates("flop_per_second", 8.0))
    assert rates[0].samples == pytest.approx((20.0, 24.0))
    assert [r.point for r in rates] == [
        {},
        {"rank": 0, "device": "GPU-a"},
        {"rank": 1, "device": "GPU-b"},
    ]
    assert rates[2].samples == pytest.approx((4.0, 16.0))
    slowest, *each = figures.durations("latency_seconds")
    assert slowest.samples == pytest.approx((2.0, 1.0))
    assert [r.samples for r in each] == [(0.5, 1.0), (2.0, 0.5)]
    assert figures.total.operations == 8


class HostCopies(Copies):
    """The walk over two pools in host memory; only the copy engine is missing."""

    def __init__(self, chunk: int, ways: int) -> None:
        pattern = random_bytes(16 * chunk)
        ends = [End(i, 0, pattern.clone(), torch.empty_like(pattern)) for i in range(max(2, ways))]
        around = [Way(a, b, None) for a, b in itertools.pairwise([*ends, ends[0]])]
        super().__init__(torch, cast(Any, None), around[:ways], chunk)

    def wait(self) -> None:
        pass

    def _copy(self, way: Way, offsets: Sequence[int]) -> None:
        for offset in offsets:
            part = slice(offset, offset + self.chunk)
            way.target.target[part] = way.source.pattern[part]

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize("ways", [1, 2, 4])
def test_a_pair_walks_its_pools_and_every_wrong_byte_is_found(ways: int) -> None:
    copies = HostCopies(256, ways)
    copies.verify()
    copies.enqueue(20)
    copies.check()
    assert copies.moved == 256 * ways
    copies.verify()
    copies.enqueue(3)
    copies.check()
    assert [end.index for end in copies.ends] == list(range(max(2, ways)))
    way = copies.ways[-1]
    assert bool((way.target.target[3 * 256 :] == 0xA5).all())
    way.target.target[700] += 1
    with pytest.raises(ResultInvalid, match=f"1 of 768 bytes .* device {way.source.index} to"):
        copies.check()


def test_a_pool_is_beyond_the_caches_and_holds_the_largest_copy() -> None:
    assert [pool_bytes(s) for s in (16, 1 << 12, MIB, 1 << 30)] == [
        1 << 16,
        1 << 24,
        1 << 28,
        1 << 30,
    ]


def test_a_cell_without_a_pair_is_unavailable() -> None:
    with pytest.raises(ProbeUnavailable, match="no_gpu"):
        measure(Peer(), Listener().context())


def test_a_gpu_rests_before_a_burst_whichever_kernel_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else what was measured before would throttle the types that cuBLASLt is not asked for."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    for dtype in PRECISIONS.keys() - cublaslt.TYPES.keys():
        assert Products(torch, dtype, SIZE, 2, device="cpu").choose() == "torch"
    assert pauses == [REST_SECONDS] * 2


class HostQueue:
    """Work that is done when its call comes back, behind a spin that never ends too early."""

    def spin(self, seconds: float) -> None:
        pass

    def mark(self) -> float:
        return time.perf_counter()

    def passed(self, mark: float) -> bool:
        return False

    def between(self, start: float, end: float) -> float:
        return end - start

    def reach(self, mark: float) -> None:
        pass

    def wait(self) -> None:
        pass


def test_gpus_at_once_rest_no_more_than_one_alone() -> None:
    """A GPU at its power limit is the faster the more it rests; both are what products give."""
    meeting = at_once.MESSAGE_SECONDS + SPIN_MIN_SECONDS
    assert meeting / gemm.BURST_LAP_SECONDS <= SPIN_MIN_SECONDS / gemm.BURST_SAMPLE_SECONDS


def test_a_kernel_that_was_proposed_and_refuses_is_never_the_fastest() -> None:
    def refuses(left: torch.Tensor, right: torch.Tensor, result: torch.Tensor) -> None:
        raise cublaslt.Refused("status 15")

    products = Products(torch, "fp32", SIZE, 2, device="cpu")
    ways: dict[str, cublaslt.Multiply] = {"cuBLASLt 0": refuses, "torch": products._by_torch}
    found = products._each(ways, HostQueue())
    assert found["cuBLASLt 0"] == math.inf
    assert 0 < found["torch"] < math.inf


def test_without_cublaslt_there_is_only_the_kernel_of_torch() -> None:
    if torch.version.cuda is None:
        assert cublaslt.loaded("libcublasLt") is None
        assert cublaslt.kernels(torch, "bf16", SIZE) == []
    found = cublaslt.loaded("libtorch_cpu")
    assert found is not None
    assert Path(found).is_file()
    assert set(cublaslt.TYPES) < set(PRECISIONS)
