"""
What it takes to start a kernel that does nothing.

The kernel is that of ``torch.cuda._sleep(0)``: one thread that reads a clock and ends. It is
there wherever torch is, so figures of all hosts compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from topobench import stats
from topobench.errors import ResultInvalid
from topobench.probes import cuda, device_work, so_far
from topobench.probes.metrics import LATENCY
from topobench.probes.protocol import Arms, Kind, WorkerContext, one_or_all, parameter
from topobench.probes.timing import QUEUE_MAX, Sampler
from topobench.reading import Metric, Reading, ReasonCode

BUDGET_SECONDS = 0.3
ROW = 200
"""Kernels in a row without a wait, and in a graph."""
GRAPHS_QUEUED = 8
CALLS = 1000
"""Synchronised launches that count, so that a P99 can be told."""
LONG_CYCLES = 1_000_000


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """Time a kernel that does nothing takes, launched in one of four ways."""

    name: ClassVar[str] = "kernel_launch"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "launching an empty kernel: in a row, waited for, in a graph"
    needs: ClassVar[frozenset[str]] = frozenset({"torch", "cuda"})
    metrics: ClassVar[tuple[Metric, ...]] = (LATENCY,)
    arms: ClassVar[Arms] = Arms.BINDINGS

    mode: str = parameter(
        "synchronised",
        kind=Kind.CHOICE,
        choices=("back_to_back", "synchronised", "graph", "queued"),
        help="in a row, each waited for, replayed from a CUDA graph, or queued behind a spin",
    )
    at_once: str = one_or_all()

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure one way of launching.

        Raises:
            ProbeUnavailable: The cell has no GPU, or torch is not installed.
            ProbeError: ``untimeable``, ``cuda_error``, ``rank_lost``.
            ResultInvalid: ``wrong_data``: kernels were launched and did not run.
        """
        with device_work.site(context) as site:
            context.note("kernel", "torch.cuda._sleep(0), one thread")
            launcher = Launcher(site.torch)
            site.check(launcher.verify)
            figures = self._figures(site, launcher)
            yield from figures.durations(LATENCY.name)
            site.check(launcher.verify)

    def estimated_seconds(self) -> float:
        """The samples, and the calibration of the spin."""
        return 0.13 + BUDGET_SECONDS / 2

    def _figures(self, site: device_work.Site, launcher: Launcher) -> device_work.Figures:
        budget = min(BUDGET_SECONDS, site.context.deadline_seconds / 8)
        in_rows = self.mode in ("back_to_back", "graph")
        with so_far.durations(LATENCY.name, parts=ROW if in_rows else 1):
            if self.mode == "synchronised" and site.group is None:  # else a sample is a mean,
                return site.called(launcher.call, Calls(0.0, budget, CALLS))  # without a P99
            sampler = Sampler(stats.LATENCY_TOLERANCE, budget)
        if self.mode == "synchronised":
            return site.called(launcher.call, sampler)
        if self.mode == "back_to_back":
            return site.called(launcher.row, sampler).divided(ROW)
        if self.mode == "queued":
            return site.queued(launcher.enqueue, QUEUE_MAX, sampler)
        return site.queued(launcher.graph(), GRAPHS_QUEUED, sampler).divided(ROW)


@dataclass
class Calls(Sampler):
    """
    Single calls, as many as asked for: neither steadiness nor a narrow interval ends them.

    A percentile tells of the slow calls, which a median may ignore.
    """

    def _take(self, sample: float) -> None:
        """A tenth of them warms up."""
        self.ends.append(self.clock())
        warming = len(self.warm) < self.n_max // 10
        (self.warm if warming else self.counted).append(sample)
        over = self._spent() >= 10 * self.budget_seconds and len(self.counted) > stats.N_MIN
        if len(self.counted) >= self.n_max or over:
            self.stop_reason = "budget" if over else "fixed"


class Launcher:
    """Launches the kernel on the current stream."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._launch: Callable[[int], None] = torch.cuda._sleep
        self._wait: Callable[[], None] = torch.cuda.current_stream().synchronize

    def enqueue(self, count: int) -> None:
        """Launch so many, without waiting."""
        for _ in range(count):
            self._launch(0)

    def call(self) -> None:
        """Launch one and wait for it."""
        self._launch(0)
        self._wait()

    def row(self) -> None:
        """Launch a row, and wait for its end."""
        self.enqueue(ROW)
        self._wait()

    def graph(self) -> Callable[[int], None]:
        """Replays of a graph of a row of launches."""
        return cuda.captured(self._torch, self.enqueue, ROW)

    def verify(self) -> None:
        """
        Prove that launched kernels run: longer ones take longer, and a row longer than one.

        Raises:
            ResultInvalid: ``wrong_data``.
        """
        self._timed(1, 1)
        once, twice, row = self._timed(1, 1), self._timed(2, 1), self._timed(1, 4)
        if not once < twice or not 2 * once < row:
            raise ResultInvalid(
                ReasonCode.WRONG_DATA,
                f"kernels of one and two lengths and a row of four took {once:.2g}, {twice:.2g} "
                f"and {row:.2g} s: launched ones did not all run",
            )

    def _timed(self, length: int, count: int) -> float:
        queue = cuda.CudaQueue(self._torch)
        start = queue.mark()
        for _ in range(count):
            self._launch(length * LONG_CYCLES)
        end = queue.mark()
        queue.wait()
        return queue.between(start, end)
