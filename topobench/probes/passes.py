"""
What the measured cases of a model share: the first pass, the checks, the times.

A mode is held against an eager pass before and after it is timed.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from topobench.probes import prefill_metrics as metrics
from topobench.probes import so_far
from topobench.probes.accelerator import Accelerator
from topobench.probes.bench import BENCH, distance, require_close
from topobench.probes.device_work import Figures
from topobench.probes.footprint import Footprint
from topobench.probes.forward import Forward
from topobench.probes.protocol import WorkerContext
from topobench.probes.timing import wall
from topobench.probes.transformer import Transformer
from topobench.reading import Reading

DEVICE_SECONDS, WALL_SECONDS = 0.5, 0.25
SAME_KERNELS = 0.1
"""Most that logits of the same kernels may differ, were each product rounded to bf16 anew."""
LAUNCHES = 10


@dataclass(frozen=True, slots=True)
class Timing:
    """
    What timing a mode gave.

    Args:
        how: The device's way of timing, as it is noted.
        peaks: Bytes that torch allocated and reserved at most; None on CPUs.
        budget: Seconds that a way of timing could take.
    """

    figures: Figures
    how: str
    walls: Figures
    peaks: tuple[int, int] | None
    budget: float


Model = TypeVar("Model", bound=Transformer)


@dataclass
class Passes(Generic[Model]):
    """A model that runs the same pass again and again."""

    device: Accelerator
    context: WorkerContext
    model: Model
    batch: int
    forward: Forward = field(init=False)
    wanted: Any = field(init=False)

    def begin(self, forward: Forward) -> None:
        """Take what is run; where its pages lie is told."""
        self.forward = forward
        self.context.buffer_ready(forward.staging.data_ptr(), forward.staging.nbytes)

    def first(self) -> Iterator[Reading]:
        """Run eagerly, which is what every mode is held against."""
        self.forward.eagerly()
        self.device.wait()
        self.wanted = self.forward.logits.clone()
        if self.context.cells_before == 0:
            yield metrics.single(metrics.FIRST, process_seconds() - BENCH.aside_seconds)

    def timed(self, mode: str, device_metric: str, wall_metric: str) -> Timing:
        """
        Prepare a mode and time it, between two checks.

        Args:
            device_metric: Whose reading the device's times will be.
            wall_metric: Whose the host's will be.
        """
        self.forward.prepare(mode)
        self.check(mode, "those of eager mode")
        budget = min(DEVICE_SECONDS, self.context.deadline_seconds / 16)
        with so_far.durations(device_metric):
            figures, how = self.device.times(self.forward.run, budget)
        with so_far.durations(wall_metric):
            walls = self.device.walls(self.forward.answer, min(WALL_SECONDS, budget))
        peaks = self.device.peaks()
        self.forward.logits.fill_(float("nan"))
        self.check(mode, "those before timing")
        return Timing(figures, how, walls, peaks, budget)

    def check(self, mode: str, what: str) -> None:
        """
        Run once and compare the logits with those of the first pass.

        Compiled kernels round elsewhere, which costs as much as the type itself; others do not.
        """
        self.forward.run()
        self.device.wait()
        error = distance(self.forward.logits, self.wanted)
        allowed = self.model.products.precision
        if mode != "compile":
            allowed = replace(allowed, tolerance=min(allowed.tolerance, SAME_KERNELS))
        self.device.on_all(lambda: require_close(error, allowed, what))

    def host_share(self, timing: Timing) -> Iterator[Reading]:
        """Share of the wall time that is not the device's."""
        if self.device.device != "cpu":
            share = max(0.0, 1 - slowest(timing.figures) / slowest(timing.walls))
            yield metrics.single(metrics.HOST_SHARE, share)

    def memory(self, expected: Footprint, timing: Timing) -> Iterator[Reading]:
        """The peak that was predicted, and those that were."""
        yield metrics.single(metrics.PREDICTED, expected.total)
        if timing.peaks is not None:
            yield metrics.single(metrics.ALLOCATED, timing.peaks[0])
            yield metrics.single(metrics.RESERVED, timing.peaks[1])

    def compiled(self) -> Iterator[Reading]:
        """What compiling took, where something was."""
        if self.forward.compile_seconds is not None:
            yield metrics.single(metrics.COMPILE, self.forward.compile_seconds)

    def whole(self, figures: Figures) -> Iterator[Reading]:
        """Of a slice: its layers' time as often as the whole model has them, the rest once."""
        shape = self.model.whole
        if shape.layers == shape.whole_layers:
            return
        ends = self.device.least(self._without_layers)
        layers = slowest(figures) - ends
        yield metrics.single(metrics.WHOLE, ends + layers * shape.whole_layers / shape.layers)

    def _without_layers(self) -> None:
        """Embedding and head alone."""
        self.model.ends(self.forward.ids)

    def launching(self) -> Iterator[Reading]:
        """What the host does to start a pass: here binding acts."""
        if self.device.device == "cpu":
            return
        launches = []
        for _ in range(LAUNCHES):
            self.device.wait()
            launches.append(wall(self.forward.run))
        self.device.wait()
        yield metrics.several(metrics.PART, tuple(launches), part="launch")

    def stages(self, mode: str) -> dict[str, list[float]]:
        """
        Of eager kernels, which a graph replays too; compiled ones cross the stages.

        Where there are none, the run is noted why.
        """
        found = None if mode == "compile" else self.device.stages(self.forward.marked)
        if not found:
            self.context.note("stages", metrics.unstaged(mode))
        return found or {}

    def kernels(self) -> Iterator[Reading]:
        """Kernels of one pass, where they can be counted."""
        if (kernels := self.device.launches(self.forward.launched)) is not None:
            yield metrics.single(metrics.LAUNCHES, kernels)


def slowest(figures: Figures) -> float:
    """Median seconds of the slowest GPU."""
    return max(
        statistics.median(timed.samples[timed.warmups :])
        for timed in figures.by_rank or (figures.total,)
    )


def process_seconds() -> float:
    """Since this process was started, by the kernel's clock."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # starttime, field 22 of proc(5)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
