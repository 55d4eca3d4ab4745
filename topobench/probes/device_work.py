"""
Work of one kind on a GPU's queue: timed on one GPU alone, or on all GPUs of a host at once.

Probes that differ in nothing but what they enqueue share this.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topobench.errors import ProbeError, ProbeUnavailable
from topobench.probes import at_once, collective, cuda
from topobench.probes.back_to_back import Chain
from topobench.probes.protocol import WorkerContext
from topobench.probes.timing import (
    Bursts,
    Enqueue,
    QueueTimer,
    Sampler,
    Timed,
    note_queued,
    wall,
)
from topobench.reading import Reading, ReasonCode
from topobench.units import format_bytes

SEGMENTS, LEAST_SEGMENTS = 8, 2
"""Equal parts of a lap of all GPUs (``probes.at_once``)."""
LAP_SECONDS = 0.18
"""Laps of long operations have fewer parts, so that they last no longer than that."""


@dataclass(frozen=True, slots=True)
class Figures:
    """
    Seconds an operation.

    Args:
        total: Of one GPU; of several, the inverse of the sum of their rates.
        by_rank: Each GPU's own, where there are several.
    """

    total: Timed
    devices: tuple[str, ...] = ()
    by_rank: tuple[Timed, ...] = ()

    def divided(self, parts: int) -> Figures:
        """The same where each operation timed was a row of so many."""
        ranks = tuple(_divided(timed, parts) for timed in self.by_rank)
        return Figures(_divided(self.total, parts), self.devices, ranks)

    def rates(self, metric: str, amount: float) -> Iterator[Reading]:
        """``amount`` of something per second: the sum over all GPUs first, then each one's."""
        yield self.total.rates(metric, amount)
        for point, timed in self._ranks():
            yield timed.rates(metric, amount, point=point)

    def durations(self, metric: str) -> Iterator[Reading]:
        """Seconds: the slowest GPU's in each sample first, then each one's."""
        columns = zip(*(t.samples for t in self.by_rank), strict=True)
        slowest = tuple(max(column) for column in columns) or self.total.samples
        yield replace(self.total, samples=slowest).durations(metric)
        for point, timed in self._ranks():
            yield timed.durations(metric, point=point)

    def _ranks(self) -> Iterator[tuple[dict[str, Any], Timed]]:
        for rank, timed in enumerate(self.by_rank):
            yield {"rank": rank, "device": self.devices[rank]}, timed


@dataclass(frozen=True, slots=True)
class Site:
    """
    Where a worker measures.

    Args:
        torch: The module, with this worker's GPU current.
        group: The ranks on the host's other GPUs; None for a GPU alone.
    """

    torch: Any
    context: WorkerContext
    group: collective.Group | None

    def gather(self, value: float) -> list[float]:
        """A value of every rank, on every rank."""
        return [row[0] for row in self.group.gather([value])] if self.group else [value]

    def check(self, check: Callable[[], None]) -> None:
        """Check every rank's data; see ``at_once.on_all``."""
        at_once.on_all(self.group, check)

    def require_memory(self, size: int) -> None:
        """
        Refuse, on all ranks alike, what would not fit into the GPU's free memory.

        Raises:
            ProbeUnavailable: ``not_enough_memory``.
        """
        self.torch.cuda.empty_cache()  # what an earlier case held is free again
        free = min(self.gather(float(self.torch.cuda.mem_get_info()[0])))
        if size > free:
            raise ProbeUnavailable(
                ReasonCode.NOT_ENOUGH_MEMORY,
                f"{format_bytes(size)} of device memory asked for, {format_bytes(int(free))} free",
            )

    def queued(
        self, enqueue: Enqueue, count: int, sampler: Sampler, segments: int = SEGMENTS
    ) -> Figures:
        """
        Time operations back to back behind a spin, by the device's clock.

        Args:
            count: Operations in a sample, at most.
            segments: Parts of a lap of several GPUs, at most.

        Raises:
            ProbeError: ``untimeable``: no spin outlasted the enqueueing.
        """
        queue = cuda.CudaQueue(self.torch)
        if self.group is None:
            timer = QueueTimer.fit(queue, enqueue, count)
            if timer is None:
                raise _untimeable()
            while not sampler.done():
                sampler.add(timer.sample())
            note_queued(self.context, queue, operations=timer.count, discarded=timer.discarded)
            return Figures(sampler.timed(timer.count))
        race = at_once.queued_race(
            self.group,
            queue,
            enqueue,
            sampler,
            count=count,
            segments=segments,
            least_segments=LEAST_SEGMENTS,
        )
        if race is None:
            raise _untimeable()
        note_queued(self.context, queue, operations=race.total.operations, discarded=race.discarded)
        return self._figures(race)

    def back_to_back(
        self, enqueue: Enqueue, count: int, begin: Callable[[], Bursts]
    ) -> tuple[Figures, float | None]:
        """
        Time operations of a GPU alone by its clock, without rest between samples if possible.

        Where that turns out not to be possible, all is sampled anew: with rest a GPU is faster.

        Args:
            count: Operations in a sample, at most.
            begin: What takes the samples.

        Returns:
            And the share of rest; see ``back_to_back.Chain``.

        Raises:
            ProbeError: ``untimeable``: no spin outlasted the enqueueing.
        """
        queue = cuda.CudaQueue(self.torch)
        chain = Chain.fit(queue, enqueue, count)
        if chain is None:
            raise _untimeable()
        sampler, hidden = begin(), chain.hidden
        while not sampler.done():
            sampler.add(chain.follow(sampler))
            if chain.hidden is not hidden and not sampler.done():
                sampler, hidden = begin(), chain.hidden
                chain.begin()
        note_queued(self.context, queue, operations=chain.count, discarded=chain.discarded)
        return Figures(sampler.timed(chain.count)), chain.rest_share

    def called(self, call: Callable[[], Any], sampler: Sampler) -> Figures:
        """
        Time calls that wait for their end, by the host's clock.

        On one GPU a sample is one call; on several, the mean of those of a segment.

        Raises:
            ProbeError: ``untimeable``: the ranks were never busy together.
        """
        if self.group is None:
            while not sampler.done():
                sampler.add(wall(call))
            return Figures(sampler.timed())
        took = max(self.gather(wall(call, 4) / 4))
        each = max(1, math.ceil(at_once.SEGMENT_SECONDS / took))
        lap = at_once.call_lap(call, each, segments_of(took))
        race = at_once.race(self.group, lap, sampler, operations=each)
        if race is None:
            raise _untimeable()
        return self._figures(race)

    def _figures(self, race: at_once.Race) -> Figures:
        if self.context.rank == 0 and (warning := race.warning()):
            self.context.warn(warning)
        return Figures(race.total, self.context.devices, race.by_rank)


@contextlib.contextmanager
def site(context: WorkerContext) -> Iterator[Site]:
    """
    Take this worker's GPU, and meet the ranks on the host's other GPUs.

    Raises:
        ProbeUnavailable: The cell has no GPU, or torch is not installed.
        ProbeError: ``torch_cannot_use_gpu``; what torch raises inside, by our names.
    """
    torch = cuda.require_gpu(context)
    group = collective.join(context, "gloo") if context.ranks > 1 else None
    with collective.errors_named() if group else cuda.errors_named():
        torch.cuda.set_device(context.rank % torch.cuda.device_count())
        yield Site(torch, context, group)


def segments_of(seconds: float) -> int:
    """Parts of a lap of operations that take so long."""
    return max(LEAST_SEGMENTS, min(SEGMENTS, int(LAP_SECONDS / seconds)))


def differing(found: Any, wanted: Callable[[slice], Any], step: int) -> int:
    """
    Elements of a large tensor that are not what they should be, in parts that fit anywhere.

    Args:
        wanted: The right values of a part.
        step: Elements of a part.
    """
    parts: Sequence[slice] = [slice(i, i + step) for i in range(0, len(found), step)]
    return sum(int((found[part] != wanted(part)).sum()) for part in parts)


def _divided(timed: Timed, parts: int) -> Timed:
    samples = tuple(s / parts for s in timed.samples)
    return replace(timed, samples=samples, operations=timed.operations * parts)


def _untimeable() -> ProbeError:
    return ProbeError(
        ReasonCode.UNTIMEABLE,
        "enqueueing outlasted every spin, so the device's time cannot be told from the "
        "host's; is the host busy?",
    )
