"""A GPU's own memory: a copy within it, and a triad, over arrays far larger than its caches."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from topobench import stats
from topobench.errors import ResultInvalid
from topobench.probes import device_work, so_far
from topobench.probes.driver import Driver
from topobench.probes.metrics import BANDWIDTH
from topobench.probes.protocol import Arms, Kind, WorkerContext, one_or_all, parameter
from topobench.probes.timing import Sampler
from topobench.reading import Metric, Reading, ReasonCode

MIB, GIB = 1 << 20, 1 << 30
BUDGET_SECONDS = 0.4
SAMPLE_BYTES = 8 * GIB
"""A sample moves about that much: milliseconds even where memory is fastest."""
ARRAYS = {"copy": 2, "triad": 3}
FACTOR = 3
LARGEST = 1 << 22
"""Whole numbers below it: source + FACTOR x source is exact in float32."""
CHECKED_ELEMENTS = 16 * MIB


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bandwidth of a GPU's memory under one operation, bytes read and bytes written counted."""

    name: ClassVar[str] = "device_memory"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "copy and triad within a GPU's memory"
    needs: ClassVar[frozenset[str]] = frozenset({"torch", "cuda"})
    metrics: ClassVar[tuple[Metric, ...]] = (BANDWIDTH,)
    arms: ClassVar[Arms] = Arms.DEVICE

    op: str = parameter(
        "copy", kind=Kind.CHOICE, choices=tuple(ARRAYS), help="copy (a = b) or triad (a = b + 3 c)"
    )
    bytes: int = parameter(
        GIB,
        kind=Kind.BYTES,
        minimum=GIB,
        maximum=16 * GIB,
        help="size of each array, far beyond the caches",
    )
    at_once: str = one_or_all()

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure operations queued behind a spin.

        Raises:
            ProbeUnavailable: No GPU, no torch, or not enough memory.
            ProbeError: ``untimeable``, ``oom``, ``cuda_error``, ``rank_lost``.
            ResultInvalid: ``wrong_data``; ``invalid_value`` above the memory's physical peak.
        """
        with device_work.site(context) as site:
            site.require_memory(ARRAYS[self.op] * self.bytes + 8 * CHECKED_ELEMENTS * 4)
            arrays = Arrays(site.torch, self.op, self.bytes)
            site.check(arrays.verify)
            moved = float(ARRAYS[self.op] * self.bytes)
            context.note("bytes_convention", f"{ARRAYS[self.op]} x array: each read and write")
            with so_far.rates(BANDWIDTH.name, moved):
                sampler = Sampler(
                    stats.BANDWIDTH_TOLERANCE, min(BUDGET_SECONDS, context.deadline_seconds / 8)
                )
            figures = site.queued(arrays.enqueue, max(1, int(SAMPLE_BYTES // moved)), sampler)
            yield from figures.rates(BANDWIDTH.name, moved)
            site.check(arrays.check)
            peak = Driver().memory_peak(site.torch.cuda.current_device())
            context.note("peak_bytes_per_second", peak)
            for rank, limit in enumerate(site.gather(peak or float("inf"))):
                timed = (figures.by_rank or (figures.total,))[rank]
                counted = timed.samples[timed.warmups :]
                require_possible(statistics.median(counted), moved, limit)

    def estimated_seconds(self) -> float:
        """Filling and checking the arrays, beside the samples."""
        return 0.1 + 0.08 * ARRAYS[self.op] * self.bytes / GIB


class Arrays:
    """The arrays of an operation on the current GPU, of random whole numbers in float32."""

    def __init__(self, torch: Any, op: str, size: int, device: str = "cuda") -> None:
        self._torch = torch
        elements = size // 4
        self.target, *self.sources = (
            torch.empty(elements, dtype=torch.float32, device=device) for _ in range(ARRAYS[op])
        )
        for source in self.sources:
            source.random_(0, LARGEST)

    def enqueue(self, count: int) -> None:
        """Enqueue the operation so many times."""
        first, *second = self.sources
        for _ in range(count):
            if second:
                self._torch.add(first, second[0], alpha=FACTOR, out=self.target)
            else:
                self.target.copy_(first)

    def verify(self) -> None:
        """Do it once and check it; leaves the target wrong for the timed part."""
        self._poison()
        self.enqueue(1)
        self.check()
        self._poison()

    def check(self) -> None:
        """
        Compare every element with what the sources say, in double precision.

        Raises:
            ResultInvalid: ``wrong_data``, with the number of wrong elements.
        """
        wrong = device_work.differing(self.target, self._wanted, CHECKED_ELEMENTS)
        if wrong:
            raise ResultInvalid(
                ReasonCode.WRONG_DATA, f"{wrong} of {len(self.target)} elements are wrong"
            )

    def _wanted(self, part: slice) -> Any:
        first, *second = (source[part].double() for source in self.sources)
        return first + FACTOR * second[0] if second else first

    def _poison(self) -> None:
        self.target.fill_(float("nan"))


def require_possible(seconds: float, moved: float, peak: float) -> None:
    """
    Refuse a bandwidth that the memory cannot have.

    Args:
        seconds: In which ``moved`` bytes seem to have been read and written.
        peak: Bytes per second by clock and width of the memory's bus.

    Raises:
        ResultInvalid: ``invalid_value``.
    """
    if moved / seconds > peak:
        raise ResultInvalid(
            ReasonCode.INVALID_VALUE,
            f"{moved / seconds / 1e9:.0f} GB/s are more than the {peak / 1e9:.0f} GB/s that the "
            "memory's clock and width allow; kept apart, not used",
        )
