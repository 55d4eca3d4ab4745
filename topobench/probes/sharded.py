"""
One model over several GPUs or processes: each computes a part, and all add up twice a layer.

Ranks meet before each timed part; for every sample the slowest rank counts.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from topobench import env_arms, stats
from topobench.probes import at_once, collective
from topobench.probes.accelerator import (
    LEAST_PASSES,
    SHARED_PASSES_SECONDS,
    SHARED_REST_FROM,
    Accelerator,
    Call,
    Cpus,
    Gpu,
    alike,
    passes_of,
)
from topobench.probes.collective import GangTimes, Group
from topobench.probes.device_work import Figures, Site
from topobench.probes.protocol import WorkerContext
from topobench.probes.timing import QUEUE_MAX, SAMPLE_SECONDS, Bursts, Sampler, wall
from topobench.probes.transformer import Place
from topobench.reading import Reading

Sampling = Callable[[float], Sampler]
ROUND_MAX = QUEUE_MAX * collective.ROUND_SAMPLES


@contextlib.contextmanager
def accelerator(context: WorkerContext) -> Iterator[Accelerator]:
    """
    This rank's part of the GPUs of a cell, or of the CPUs where it has none.

    Raises:
        ProbeUnavailable: torch is not installed, or lacks the backend.
        ProbeError: ``rank_lost``, ``torch_cannot_use_gpu``; what torch raises inside, by our names.
    """
    group = collective.join(context)
    import torch  # by now it is loaded, in the way that keeps nothing of this case

    context.note("backend", group.backend)
    if group.rank == 0:
        found = sorted(os.environ.items())
        context.note("env", {k: v for k, v in found if env_arms.changes_speed(k)})
    with collective.errors_named():
        if group.backend == "nccl":
            yield ShardedGpu(group, Site(torch, context, None))
        else:
            yield ShardedCpus(group, torch)


def place(context: WorkerContext, device: str) -> Place:
    """Which part of a model a rank computes."""
    return Place(device, context.rank, context.ranks, add_up)


def add_up(part: Any) -> None:
    """Add up a tensor of all ranks, in place."""
    import torch.distributed as dist

    dist.all_reduce(part)


@dataclass(frozen=True, slots=True)
class ShardedFigures(Figures):
    """Seconds of a pass of all ranks together: of the slowest in every sample, and each one's."""

    def rates(self, metric: str, amount: float) -> Iterator[Reading]:
        """``amount`` of something that all ranks do together, per second."""
        yield self.total.rates(metric, amount)

    def durations(self, metric: str) -> Iterator[Reading]:
        """The slowest rank's in each sample first, then each one's."""
        yield self.total.durations(metric)
        for rank, timed in enumerate(self.by_rank):
            yield Reading(metric, timed.durations(metric).summary, point={"rank": rank})


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls that need no new data, as ``collective.Rounds`` wants them."""

    call: Call

    def refill(self, count: int) -> None:
        """Nothing is used up."""

    def enqueue(self, count: int) -> None:
        """Call so many times."""
        for _ in range(count):
            self.call()


class _Ranks:
    """What ranks that share a model do together."""

    _group: Group

    def gather(self, value: float) -> list[float]:
        """A value of every rank."""
        return [row[0] for row in self._group.gather([value])]

    def on_all(self, check: Callable[[], None]) -> None:
        """Of the ranks."""
        at_once.on_all(self._group, check)

    def meet(self) -> None:
        """Wait for all ranks; GPUs do when their queues get there."""
        self._group.meet()

    def everywhere(self, fine: bool) -> bool:
        """Whether it is on every rank."""
        return all(self.gather(float(fine)))

    def _figures(
        self,
        call: Call,
        wait: Call,
        budget_seconds: float,
        sampler: Sampling,
        *,
        mode: str,
        sample_seconds: float = SAMPLE_SECONDS,
    ) -> Figures:
        """
        What a call takes when all ranks call it, on every rank.

        Args:
            sampler: What takes the samples, given the budget.
            mode: As of ``collective.Rounds``.
            sample_seconds: Of calls in a sample, at least about.
        """

        def done() -> None:
            call()
            wait()

        once = max(self.gather(wall(done)))
        rounds = collective.Rounds(
            self._group,
            _Calls(call),
            count=passes_of(sample_seconds, once),
            round_max=ROUND_MAX,
            mode=mode,
            lead=0,
        )
        times = rounds.measure(sampler(max(budget_seconds, LEAST_PASSES * once)))
        times = self._told(times)
        return ShardedFigures(times.slowest, by_rank=times.by_rank)

    def _told(self, times: GangTimes | None) -> GangTimes:
        """What rank 0 found, on every rank."""
        import torch.distributed as dist

        box: list[Any] = [times]
        dist.broadcast_object_list(box, src=0, device=self._group.device)
        found: GangTimes = box[0]
        return found


class ShardedGpu(_Ranks, Gpu):
    """One of the GPUs that share a model, joined by NCCL."""

    def __init__(self, group: Group, site: Site) -> None:
        super().__init__(site)
        self._group = group

    def free_bytes(self) -> int:
        """Of the rank that has least."""
        return int(min(self.gather(float(super().free_bytes()))))

    def ceiling(self, dtype: str) -> float:
        """Of all GPUs, which multiply at the same time."""
        self.meet()
        return sum(alike(self, functools.partial(super().ceiling, dtype)))

    def times(self, call: Call, budget_seconds: float) -> tuple[Figures, str]:
        """Behind a spin on each GPU, several in a sample: a spin is rest."""
        bursts = functools.partial(Bursts, stats.BANDWIDTH_TOLERANCE, rest_from=SHARED_REST_FROM)
        figures = self._figures(
            call,
            self.wait,
            budget_seconds,
            bursts,
            mode="queued",
            sample_seconds=SHARED_PASSES_SECONDS,
        )
        return figures, "queued"

    def walls(self, call: Call, budget_seconds: float) -> Figures:
        """From the call until this rank's GPU is done."""
        bursts = functools.partial(Bursts, stats.LATENCY_TOLERANCE, rest_from=SHARED_REST_FROM)
        return self._figures(call, self.wait, budget_seconds, bursts, mode="per_call")


class ShardedCpus(_Ranks, Cpus):
    """One of the processes that share a model, joined by gloo."""

    def __init__(self, group: Group, torch: Any) -> None:
        super().__init__(torch)
        self._group = group

    def free_bytes(self) -> int:
        """An equal part of what the host has left."""
        return int(min(self.gather(float(super().free_bytes())))) // self._group.ranks

    def ceiling(self, dtype: str) -> float:
        """Of all processes, which multiply at the same time."""
        self.meet()
        return sum(alike(self, functools.partial(super().ceiling, dtype)))

    def walls(self, call: Call, budget_seconds: float) -> Figures:
        """By the monotonic clock."""
        sampler = functools.partial(Sampler, stats.LATENCY_TOLERANCE)
        return self._figures(call, self.wait, budget_seconds, sampler, mode="queued")
