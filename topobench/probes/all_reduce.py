"""All-reduce over torch.distributed: NCCL between GPUs, gloo between processes on CPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from topobench import stats
from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.probes import collective
from topobench.probes.host_memory import available_bytes
from topobench.probes.metrics import ALGBW, BUSBW, LATENCY
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.probes.timing import QUEUE_MAX, Sampler
from topobench.reading import Metric, Reading, ReasonCode

MIB, GIB = 1 << 20, 1 << 30
BUDGET_SECONDS = 0.8
POOL_BYTES = 64 * MIB
POOL_BUFFERS = collective.LEAD + QUEUE_MAX * collective.ROUND_SAMPLES
SINGLE_FROM_BYTES = MIB
TILE = 65521
"""Length of the pattern that fills buffers: a prime, so that a misplaced chunk shows."""
LARGEST_VALUE = 16
EXACT_UP_TO = {
    "float32": 1 << 24,
    "float64": 1 << 53,
    "bfloat16": 1 << 8,
    "float16": 1 << 11,
    "int32": (1 << 31) - 1,
    "int64": (1 << 63) - 1,
}
"""Largest whole number up to which a dtype holds every one."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Time and bandwidth of summing one buffer size over all ranks."""

    name: ClassVar[str] = "all_reduce"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "all-reduce between GPUs (NCCL) or processes (gloo)"
    needs: ClassVar[frozenset[str]] = frozenset({"torch"})
    metrics: ClassVar[tuple[Metric, ...]] = (LATENCY, ALGBW, BUSBW)
    arms: ClassVar[Arms] = Arms.GANG

    bytes: int = parameter(
        64 * MIB, kind=Kind.BYTES, minimum=8, maximum=8 * GIB, help="payload of one rank"
    )
    dtype: str = parameter(
        "float32", kind=Kind.CHOICE, choices=tuple(EXACT_UP_TO), help="type of the elements"
    )
    ranks: int = parameter(
        2, minimum=1, help="processes that take part, one a GPU where there are GPUs"
    )
    reduction: str = parameter(
        "sum", kind=Kind.CHOICE, choices=("sum",), help="how elements are combined"
    )
    backend: str = parameter(
        "auto",
        kind=Kind.CHOICE,
        choices=("auto", "gloo", "nccl"),
        help="library; auto is nccl where the cell has GPUs, else gloo, as the planner decides",
    )

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure on all ranks together; only rank 0 yields readings.

        Raises:
            ProbeUnavailable: The backend is missing, or the sum would not be exact.
            ProbeError: ``rank_lost``, ``oom``, ``untimeable``.
            ResultInvalid: ``wrong_data``, on every rank.
        """
        self._refuse(context.ranks)
        group = collective.join(context, self.backend)
        context.note("backend", group.backend)
        with collective.errors_named():
            group.require_memory(pool_bytes(self.bytes), free_bytes(group))
            data = self.buffers(group)
            if group.backend == "gloo":
                context.buffer_ready(*data.host_memory())
            data.verify(0)
            rounds = collective.Rounds(
                group, data, single=self._single(group), round_max=data.safe_operations()
            )
            budget = min(BUDGET_SECONDS, context.deadline_seconds / 4)
            times = rounds.measure(Sampler(self._tolerance(), budget))
            data.verify(1)
        if times is not None:
            context.note("samples_discarded", times.discarded)
            context.note("operations_a_sample", times.slowest.operations)
            yield from self._readings(times, group.ranks)

    def buffers(self, group: collective.Group) -> Buffers:
        """The buffers of this rank, which know how they are summed."""
        return Buffers(group, self)

    def estimated_seconds(self) -> float:
        """Samples, and a dozen passes of the buffer at a cautious rate of each rank."""
        return 0.3 + BUDGET_SECONDS + 12 * self.bytes / (20e9 if self.backend == "nccl" else 1e9)

    def _single(self, group: collective.Group) -> bool:
        # An event pair costs more of a GPU's 1 MiB all-reduce than a clock pair of gloo's.
        return group.backend == "gloo" and self.bytes >= SINGLE_FROM_BYTES

    def _tolerance(self) -> float:
        large = self.bytes >= SINGLE_FROM_BYTES
        return stats.BANDWIDTH_TOLERANCE if large else stats.LATENCY_TOLERANCE

    def _refuse(self, ranks: int) -> None:
        if ranks != self.ranks:
            raise ProbeError(
                ReasonCode.INTERNAL, f"a case of {self.ranks} ranks was started with {ranks}"
            )
        if largest_value(self.dtype, ranks) < 2:
            raise ProbeUnavailable(
                ReasonCode.UNSUPPORTED,
                f"{self.dtype} cannot hold an exact sum over {ranks} ranks, so data could not "
                "be checked; use float32",
            )

    def _readings(self, times: collective.GangTimes, ranks: int) -> Iterator[Reading]:
        yield times.slowest.durations(LATENCY.name)
        if ranks == 1:  # nothing travels: a bandwidth would mean nothing
            return
        yield times.slowest.rates(ALGBW.name, float(self.bytes))
        yield times.slowest.rates(BUSBW.name, self.bytes * bus_factor(ranks))
        for rank, timed in enumerate(times.by_rank):
            own = timed.durations(LATENCY.name)
            yield Reading(LATENCY.name, own.summary, point={"rank": rank})


def bus_factor(ranks: int) -> float:
    """Bytes a ring moves over each link for every payload byte: 2 (n - 1) / n."""
    return 2 * (ranks - 1) / ranks


def pool_bytes(size: int) -> int:
    """Bytes of the pool of buffers of one size."""
    return size * min(POOL_BUFFERS, max(1, POOL_BYTES // size))


def free_bytes(group: collective.Group) -> int:
    """Memory that is free for this rank's buffers: its GPU's, or the host's."""
    if group.device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(group.device)[0])
    return available_bytes()


def largest_value(dtype: str, ranks: int) -> int:
    """Largest value a rank may give so that the sum over all ranks is exact."""
    return min(LARGEST_VALUE, EXACT_UP_TO[dtype] // ranks)


def tile(rank: int, ranks: int, dtype: str, version: int) -> Any:
    """
    A rank's pattern: seeded whole numbers from 1, so that no rank can be left out unseen.

    Args:
        version: Another one gives other values, so that a stale result is wrong.
    """
    import torch

    generator = torch.Generator().manual_seed(1 + rank + version * ranks)
    high = largest_value(dtype, ranks) + 1
    return torch.randint(1, high, (TILE,), generator=generator).to(getattr(torch, dtype))


class Buffers:
    """A pool of equal buffers larger than the caches; operations walk through it."""

    def __init__(self, group: collective.Group, probe: AllReduce) -> None:
        import torch

        self._group = group
        self._probe = probe
        dtype = getattr(torch, probe.dtype)
        if probe.bytes % dtype.itemsize:
            raise ProbeUnavailable(
                ReasonCode.UNSUPPORTED,
                f"{probe.bytes} bytes are no whole number of {probe.dtype} elements",
            )
        self._elements = probe.bytes // dtype.itemsize
        count = pool_bytes(probe.bytes) // probe.bytes
        self._flat = torch.empty(count * self._elements, dtype=dtype, device=group.device)
        self._buffers = self._flat.split(self._elements)
        self._own = tile(group.rank, group.ranks, probe.dtype, 0).to(group.device)
        self._next = 0
        _spread(self._own, self._flat)  # first touch, untimed

    def host_memory(self) -> tuple[int, int]:
        """Address and bytes of the pool."""
        return self._flat.data_ptr(), self._flat.nbytes

    def safe_operations(self) -> int:
        """Operations after which no value has overflowed: each multiplies by the ranks."""
        import torch

        if self._group.ranks == 1 or not self._flat.is_floating_point():
            return POOL_BUFFERS
        room = math.log(torch.finfo(self._flat.dtype).max / LARGEST_VALUE)
        return len(self._buffers) * max(1, int(room / math.log(self._group.ranks)))

    def refill(self, count: int) -> None:
        """Renew the buffers of the next ``count`` operations."""
        self._next = 0
        _spread(self._own, self._flat[: min(count, len(self._buffers)) * self._elements])

    def enqueue(self, count: int) -> None:
        """Sum the next ``count`` buffers over all ranks."""
        import torch.distributed as dist

        for _ in range(count):
            dist.all_reduce(self._buffers[self._next])
            self._next = (self._next + 1) % len(self._buffers)

    def verify(self, version: int) -> None:
        """
        Sum one buffer of known data and compare every element, on every rank.

        The buffer holds this rank's own values before, which the sum never equals.

        Raises:
            ResultInvalid: ``wrong_data``, naming the ranks that got it; on every rank.
        """
        ranks, dtype = self._group.ranks, self._probe.dtype
        tiles = [tile(r, ranks, dtype, version) for r in range(ranks)]
        expected = sum(tiles[1:], tiles[0]).to(self._group.device)
        buffer = self._buffers[0]
        _spread(tiles[self._group.rank].to(self._group.device), buffer)
        self._next = 0
        self.enqueue(1)
        wrong = self._group.gather([float(_differing(expected, buffer))])
        bad = {rank: int(row[0]) for rank, row in enumerate(wrong) if row[0]}
        if bad:
            text = ", ".join(f"rank {r}: {n}" for r, n in bad.items())
            raise ResultInvalid(
                ReasonCode.WRONG_DATA,
                f"wrong sums among {self._elements} elements ({text})",
            )


def _spread(pattern: Any, buffer: Any) -> None:
    """Fill a buffer with repeats of a pattern."""
    whole = len(buffer) // len(pattern) * len(pattern)
    buffer[:whole].view(-1, len(pattern)).copy_(pattern)
    buffer[whole:].copy_(pattern[: len(buffer) - whole])


def _differing(pattern: Any, buffer: Any) -> int:
    """Elements of a buffer that are not the repeats of a pattern."""
    whole = len(buffer) // len(pattern) * len(pattern)
    differing = (buffer[:whole].view(-1, len(pattern)) != pattern).sum()
    return int(differing + (buffer[whole:] != pattern[: len(buffer) - whole]).sum())
