"""
Matrix products on a GPU: what its arithmetic gives, and the ceiling for whole models.

Each product takes the next set of operands of a pool larger than the L2 cache, of random
normal values: products of zeros or of cached operands run faster and draw less power.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from topobench import stats
from topobench.errors import ProbeUnavailable, ResultInvalid
from topobench.probes import cublaslt, cuda, device_work, so_far
from topobench.probes.metrics import FLOP
from topobench.probes.protocol import (
    Arms,
    Kind,
    WorkerContext,
    one_or_all,
    parameter,
)
from topobench.probes.timing import (
    QUEUE_MAX,
    SPIN_MIN_SECONDS,
    Enqueue,
    Queue,
    Sampler,
    behind_spin,
)
from topobench.reading import Metric, Reading, ReasonCode

REST_SECONDS = 1.0
"""Of idleness, after which the power that counts against a GPU's limit is that of an idle one."""
BURST_SECONDS = 0.5
BURST_SAMPLE_SECONDS, SUSTAINED_SAMPLE_SECONDS = 10e-3, 0.25
BURST_LAP_SECONDS = 45e-3
"""
Of ranks that multiply at once: meeting before a lap is more rest than a spin before a sample, and
rest makes a GPU at its power limit faster. So they rest for the same share of the time.
"""
ROW_SECONDS = 5e-3
"""Sustained products are replayed by the row, so that enqueueing them takes no time."""
BUSY_LEAST = 0.95
"""Of a sustained measurement the GPU multiplies at least that share."""
POOL_CACHES = 4
"""The pool of operands is that many times the L2 cache."""
CHOICE_ROUNDS, CHOICE_PRODUCTS = 5, 4
"""Samples of each kernel before one is chosen, and products in each."""
SETTLING_SECONDS = 0.2
"""Of load, in which a GPU's clock comes down to what it keeps until its power limit acts."""
SLICE = 48
"""Rows and columns of the part of each result that is computed again in float64."""


@dataclass(frozen=True, slots=True)
class Precision:
    """
    A type of operands.

    Args:
        operand: torch's name of their type.
        result: Of the type of the product.
        capability: Least compute capability that has it in hardware.
        tolerance: Largest error of an element, in standard deviations of the exact result.
    """

    operand: str
    result: str
    capability: tuple[int, int]
    tolerance: float


PRECISIONS = {
    "fp32": Precision("float32", "float32", (0, 0), 1e-4),
    "tf32": Precision("float32", "float32", (8, 0), 0.02),
    "bf16": Precision("bfloat16", "bfloat16", (8, 0), 0.05),
    "fp16": Precision("float16", "float16", (5, 3), 0.02),
    "fp8": Precision("float8_e4m3fn", "bfloat16", (8, 9), 0.2),
    "int8": Precision("int8", "int32", (7, 5), 0.0),
}


@dataclass(frozen=True, slots=True)
class Gemm:
    """Rate of square matrix products of one type and size."""

    name: ClassVar[str] = "gemm"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "matrix products on a GPU, by type, burst and sustained"
    needs: ClassVar[frozenset[str]] = frozenset({"torch", "cuda"})
    metrics: ClassVar[tuple[Metric, ...]] = (FLOP,)
    arms: ClassVar[Arms] = Arms.DEVICE

    dtype: str = parameter(
        "bf16",
        kind=Kind.CHOICE,
        choices=tuple(PRECISIONS),
        help="type of the operands; fp32 without TF32, sums always in a wider type",
    )
    size: int = parameter(
        8192, minimum=1024, maximum=32768, help="rows and columns of every matrix"
    )
    mode: str = parameter(
        "burst",
        kind=Kind.CHOICE,
        choices=("burst", "sustained"),
        help="the first half second, or the steady state under heat and power limit",
    )
    seconds: float = parameter(
        20.0,
        kind=Kind.SECONDS,
        minimum=2.0,
        maximum=600.0,
        help="length of a sustained measurement, of which the second half counts",
    )
    at_once: str = one_or_all()

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure products queued behind a spin.

        Raises:
            ProbeUnavailable: No GPU, no torch, not enough memory, or a type that this GPU or
                torch cannot multiply.
            ProbeError: ``untimeable``, ``oom``, ``cuda_error``, ``rank_lost``.
            ResultInvalid: ``wrong_data``: a result is not the product of its operands.
        """
        with device_work.site(context) as site, float32_products(site.torch, self.dtype == "tf32"):
            require_capability(self.dtype, site.torch.cuda.get_device_capability())
            count = sets_beyond_cache(self.dtype, self.size, cache_bytes(site.torch))
            site.require_memory(count * set_bytes(self.dtype, self.size) + 8 * self.size**2)
            products = Products(site.torch, self.dtype, self.size, count)
            products.try_once()
            context.note("kernel", products.choose())
            site.check(products.verify)
            context.note("operand_sets", count)
            figures = self._figures(site, products)
            yield from figures.rates(FLOP.name, 2.0 * self.size**3)
            site.check(products.check)

    def estimated_seconds(self) -> float:
        """Making operands and checking results, beside the samples."""
        measuring = self.seconds + 1.5 if self.mode == "sustained" else BURST_SECONDS / 2
        choosing = 0.7 if self.dtype in cublaslt.TYPES else 0.0
        return REST_SECONDS + choosing + measuring + 0.2 * (self.size / 8192) ** 2

    def _figures(self, site: device_work.Site, products: Products) -> device_work.Figures:
        flop = 2.0 * self.size**3
        if self.mode == "burst":
            budget = min(BURST_SECONDS, site.context.deadline_seconds / 8)
            count = self._products_in(burst_seconds(site), site, products)
            with so_far.rates(FLOP.name, flop):
                burst = Sampler(stats.BANDWIDTH_TOLERANCE, budget)
            return site.queued(products.enqueue, min(QUEUE_MAX, count), burst)
        walks = math.ceil(self._products_in(ROW_SECONDS, site, products) / len(products.sets))
        row = walks * len(products.sets)
        with so_far.rates(FLOP.name, row * flop):
            sampler = Endurance(0.0, self.seconds)
        rows = min(QUEUE_MAX, math.ceil(SUSTAINED_SAMPLE_SECONDS / ROW_SECONDS))
        figures = site.queued(products.rows(row), rows, sampler)
        busy = min(site.gather(busy_share(figures, sampler)))
        site.context.note("busy_ratio", busy)
        require_busy(busy)
        return figures.divided(row)

    def _products_in(self, seconds: float, site: device_work.Site, products: Products) -> int:
        """Products that take about so long, equally many on all ranks."""
        queue = cuda.CudaQueue(site.torch)
        start = queue.mark()
        products.enqueue(4)
        end = queue.mark()
        queue.wait()
        took = max(site.gather(queue.between(start, end) / 4))
        return math.ceil(seconds / took)


@dataclass
class Endurance(Sampler):
    """Samples for a fixed time; the first half warms up, however steady it looks."""

    def _take(self, sample: float) -> None:
        self.ends.append(self.clock())
        spent = self._spent()
        (self.warm if spent < self.budget_seconds / 2 else self.counted).append(sample)
        if spent >= self.budget_seconds:
            self.stop_reason = "fixed"


class Products:
    """A pool of operand sets and results; products walk through it."""

    def __init__(self, torch: Any, dtype: str, size: int, count: int, device: str = "cuda") -> None:
        self._torch = torch
        self._dtype = dtype
        self._size = size
        self._one = torch.ones((), dtype=torch.float32, device=device)
        result = getattr(torch, PRECISIONS[dtype].result)
        self.sets = [
            (
                operand(torch, dtype, size, device),
                operand(torch, dtype, size, device),
                torch.empty((size, size), dtype=result, device=device),
            )
            for _ in range(count)
        ]
        self._walk = itertools.cycle(self.sets)
        self._multiply: cublaslt.Multiply = self._by_torch
        self.done = 0

    def try_once(self) -> None:
        """
        One product, to learn whether there is a kernel for it.

        Raises:
            ProbeUnavailable: ``unsupported``, with torch's words.
        """
        try:
            self.enqueue(1)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            if "out of memory" in str(error) or "CUDA error" in str(error):
                raise
            raise ProbeUnavailable(
                ReasonCode.UNSUPPORTED,
                f"torch {self._torch.__version__} has no {self._dtype} product here: "
                f"{str(error).splitlines()[0]}",
            ) from error

    def choose(self) -> str:
        """
        Take the fastest kernel on this GPU, of torch's and those that cuBLASLt proposes.

        torch takes the library's first proposal, which can be slower than others by several
        percent, so it is no ceiling.

        Returns:
            Its name: ``torch``, or ``cuBLASLt`` and the place among its proposals.
        """
        ways: dict[str, cublaslt.Multiply] = {"torch": self._by_torch}
        for place, kernel in enumerate(cublaslt.kernels(self._torch, self._dtype, self._size)):
            ways[f"cuBLASLt {place}"] = kernel
        if len(ways) == 1:
            time.sleep(REST_SECONDS)  # what this worker measured before may have heated the GPU
            return "torch"
        queue = cuda.CudaQueue(self._torch)
        settled = time.monotonic() + SETTLING_SECONDS
        while time.monotonic() < settled:
            self._each(ways, queue)
        times = [self._each(ways, queue) for _ in range(CHOICE_ROUNDS)]
        chosen = min(ways, key=lambda name: statistics.median(row[name] for row in times))
        self._multiply = ways[chosen]
        time.sleep(REST_SECONDS)
        return chosen

    def _each(self, ways: dict[str, cublaslt.Multiply], queue: Queue) -> dict[str, float]:
        """Seconds of a few products by every kernel; infinite where it refuses, or none is told."""
        found = dict.fromkeys(ways, math.inf)
        for name, self._multiply in ways.items():
            with contextlib.suppress(cublaslt.Refused):  # proposed, and yet not to be had
                took = behind_spin(
                    queue, self.enqueue, CHOICE_PRODUCTS, spin_seconds=SPIN_MIN_SECONDS
                )
                found[name] = math.inf if took is None else took
        return found

    def enqueue(self, count: int) -> None:
        """Enqueue the next ``count`` products, as a linear layer does: x times w transposed."""
        for left, right, result in itertools.islice(self._walk, count):
            self._multiply(left, right, result)
        self.done += count

    def rows(self, count: int) -> Enqueue:
        """
        Replays of a CUDA graph of a row of products; results are left wrong before.

        Args:
            count: Products in a row: whole walks through the pool.
        """
        replay = cuda.captured(self._torch, self.enqueue, count)
        self._poison()

        def enqueue(times: int) -> None:
            replay(times)
            self.done += times * count

        return enqueue

    def verify(self) -> None:
        """Multiply every set once and check it; leaves results wrong for the timed part."""
        self._poison()
        self.enqueue(len(self.sets))
        self.check()
        self._poison()

    def check(self) -> None:
        """
        Compare a random part of each result that was computed with float64's.

        Raises:
            ResultInvalid: ``wrong_data``: an element is off by more than the type explains, or
                one was never written.
        """
        for left, right, result in self.sets[: self.done]:
            rows, columns = (self._torch.randperm(self._size)[:SLICE] for _ in "rc")
            exact = _wide(left, rows) @ _wide(right, columns).t()
            found = result[rows.to(result.device)].cpu().double()[:, columns]
            self._require_close(found - exact, float(exact.std()))
            if unwritten := int((result != result).sum() + (result == UNWRITTEN).sum()):
                raise ResultInvalid(
                    ReasonCode.WRONG_DATA, f"{unwritten} of {self._size**2} elements are unwritten"
                )

    def _require_close(self, error: Any, spread: float) -> None:
        worst = float(error.abs().max()) / spread
        if not worst <= PRECISIONS[self._dtype].tolerance:
            raise ResultInvalid(
                ReasonCode.WRONG_DATA,
                f"an element of a {self._dtype} product is off by {worst:.2g} standard deviations; "
                f"the type explains {PRECISIONS[self._dtype].tolerance:g}",
            )

    def _by_torch(self, left: Any, right: Any, result: Any) -> None:
        torch, right = self._torch, right.t()
        if self._dtype == "fp8":
            torch._scaled_mm(
                left,
                right,
                self._one,
                self._one,
                out_dtype=result.dtype,
                use_fast_accum=True,
                out=result,
            )
        elif self._dtype == "int8":
            torch._int_mm(left, right, out=result)
        else:
            torch.mm(left, right, out=result)

    def _poison(self) -> None:
        for _, _, result in self.sets:
            result.fill_(float("nan") if result.is_floating_point() else UNWRITTEN)
        self._walk = itertools.cycle(self.sets)
        self.done = 0


UNWRITTEN = -(1 << 31)
"""No product of int8 matrices has such an element."""


def busy_share(figures: device_work.Figures, sampler: Sampler) -> float:
    """Share of the time between the first and the last sample that a GPU multiplied."""
    own = (figures.by_rank or (figures.total,))[0]
    elapsed = sampler.ends[-1] - sampler.ends[0]
    return sum(own.samples[1:]) * own.operations / elapsed


def require_busy(share: float) -> None:
    """
    Refuse a steady state in which a GPU often waited for the host.

    Raises:
        ProbeUnavailable: ``unsupported``.
    """
    if share < BUSY_LEAST:
        raise ProbeUnavailable(
            ReasonCode.UNSUPPORTED,
            f"products of this size kept the GPU busy for only {share:.0%} of the time, so it "
            "was no sustained load; take a larger size",
        )


def operand(torch: Any, dtype: str, size: int, device: str) -> Any:
    """A matrix of random normal values; of int8 with a deviation of 32."""
    values = torch.randn((size, size), dtype=torch.float32, device=device)
    if dtype == "int8":
        values = (values * 32).round_().clamp_(-127, 127)
    return values.to(getattr(torch, PRECISIONS[dtype].operand))


def set_bytes(dtype: str, size: int) -> int:
    """Bytes of two operands and a result."""
    precision = PRECISIONS[dtype]
    widths = {"float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}
    return (2 * widths.get(precision.operand, 1) + widths[precision.result]) * size**2


def burst_seconds(site: device_work.Site) -> float:
    """Of a sample of products, or of a lap where GPUs multiply at once."""
    return BURST_SAMPLE_SECONDS if site.group is None else BURST_LAP_SECONDS


def sets_beyond_cache(dtype: str, size: int, cache: int) -> int:
    """Sets of operands that no cache can hold together; at least two."""
    return max(2, math.ceil(POOL_CACHES * cache / set_bytes(dtype, size)))


def cache_bytes(torch: Any) -> int:
    """Size of the current GPU's L2 cache."""
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


def require_capability(dtype: str, capability: tuple[int, int]) -> None:
    """
    Refuse a type that a GPU does not have in hardware: torch would imitate it.

    Raises:
        ProbeUnavailable: ``unsupported``.
    """
    needed = PRECISIONS[dtype].capability
    if capability < needed:
        have, need = (f"{major}.{minor}" for major, minor in (capability, needed))
        raise ProbeUnavailable(
            ReasonCode.UNSUPPORTED,
            f"{dtype} products need compute capability {need}; this GPU has {have}",
        )


@contextlib.contextmanager
def float32_products(torch: Any, tf32: bool) -> Iterator[None]:
    """Decide whether float32 operands may be rounded to TF32; afterwards as before."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _wide(matrix: Any, rows: Any) -> Any:
    """Rows of a matrix in float64, in host memory."""
    return matrix[rows.to(matrix.device)].cpu().double()
