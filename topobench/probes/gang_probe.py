"""What the probes of a gang share: their parameters, the run on all ranks, the readings."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from topobench import env_arms, stats
from topobench.errors import ProbeError, ProbeUnavailable, ResultInvalid
from topobench.probes import collective, so_far
from topobench.probes.host_memory import available_bytes
from topobench.probes.metrics import ALGBW, BUSBW, LATENCY
from topobench.probes.patterns import EXACT_UP_TO, LARGEST_VALUE
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.probes.timing import QUEUE_MAX, Sampler
from topobench.reading import Metric, Reading, ReasonCode

MIB, GIB = 1 << 20, 1 << 30
BUDGET_SECONDS = 0.8
POOL_BYTES = 64 * MIB
POOL_BUFFERS = collective.LEAD + QUEUE_MAX * collective.ROUND_SAMPLES
SINGLE_FROM_BYTES = MIB
IN_PLACE, OUT_OF_PLACE = "in", "out_of"


def place_parameter(default: str, help: str, *, later: bool = False) -> Any:
    """The parameter that says where a result lies: in the place of the data, or out of it."""
    choices = (OUT_OF_PLACE, IN_PLACE)
    return parameter(default, kind=Kind.CHOICE, choices=choices, help=help, later=later)


class CheckedOperation(collective.Operation, Protocol):
    """A collective whose data is known."""

    def host_memory(self) -> tuple[int, int]:
        """Address and bytes of the buffers, where they lie in host memory."""
        ...

    def safe_operations(self) -> int:
        """Operations that may follow one refill before values overflow."""
        ...

    def verify(self, version: int) -> None:
        """
        Run one operation on known data and compare every element, on every rank.

        Args:
            version: Another one gives other data, so that a stale result is wrong.

        Raises:
            ResultInvalid: ``wrong_data``, naming the ranks that got it; on every rank.
        """
        ...


@dataclass(frozen=True, slots=True)
class GangProbe:
    """Time and bandwidth of one operation of all ranks; sizes as in nccl-tests."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    summary: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset({"torch"})
    metrics: ClassVar[tuple[Metric, ...]] = (LATENCY, ALGBW, BUSBW)
    arms: ClassVar[Arms] = Arms.RANKS

    bytes: int = parameter(
        64 * MIB, kind=Kind.BYTES, minimum=8, maximum=8 * GIB, help="payload of one rank"
    )
    dtype: str = parameter(
        "float32", kind=Kind.CHOICE, choices=tuple(EXACT_UP_TO), help="type of the elements"
    )
    ranks: int = parameter(
        2, minimum=1, help="processes that take part, one a GPU where there are GPUs"
    )
    backend: str = parameter(
        "auto",
        kind=Kind.CHOICE,
        choices=("auto", "gloo", "nccl"),
        help="library; auto is nccl on hosts with GPUs, gloo on others",
    )
    hosts: str = parameter(
        "one",
        kind=Kind.CHOICE,
        choices=("one", "all"),
        help="one: the ranks of each host by themselves; all: a gang over all hosts of the sweep",
        later=True,
    )

    mode: str = parameter(
        "queued",
        kind=Kind.CHOICE,
        choices=("queued", "graph", "per_call"),
        help="NCCL's timing: behind a spin, replayed as a CUDA graph, or by the host's clock from "
        "each call until its GPU is done; gloo's calls are always timed by the host",
        later=True,
    )

    pool: str = parameter(
        "cold",
        kind=Kind.CHOICE,
        choices=("cold", "warm"),
        help="each operation on the next of buffers beyond the caches, or all on one buffer, which "
        "small ones find in the caches (as nccl-tests does)",
        later=True,
    )

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure on all ranks together; only rank 0 yields readings.

        Raises:
            ProbeUnavailable: The backend is missing or has no CUDA graphs, or this case cannot be
                checked.
            ProbeError: ``rank_lost``, ``oom``, ``untimeable``.
            ResultInvalid: ``wrong_data``, on every rank.
        """
        if context.ranks != self.ranks:
            raise ProbeError(
                ReasonCode.INTERNAL,
                f"a case of {self.ranks} ranks was started with {context.ranks}",
            )
        self.refuse(context.ranks)
        group = collective.join(context, self.backend)
        context.note("backend", group.backend)
        if group.backend != "nccl" and self.mode == "graph":
            raise ProbeUnavailable(
                ReasonCode.UNSUPPORTED, f"{group.backend} has no CUDA graphs; take mode queued"
            )
        if group.rank == 0:
            found = sorted(os.environ.items())
            context.note("env", {k: v for k, v in found if env_arms.changes_speed(k)})
        with collective.errors_named():
            group.require_memory(self.memory_bytes(group.ranks), free_bytes(group))
            data = self.buffers(group)
            if group.backend == "gloo":
                context.buffer_ready(*data.host_memory())
            data.verify(0)
            rounds = collective.Rounds(
                group,
                data,
                count=1 if self._single(group) else None,
                round_max=data.safe_operations(),
                mode=self.mode,
            )
            budget = min(BUDGET_SECONDS, context.deadline_seconds / 4)
            with so_far.durations(LATENCY.name):
                sampler = Sampler(self._tolerance(), budget)
            times = rounds.measure(sampler)
            data.verify(1)
        if times is not None:
            context.note("samples_discarded", times.discarded)
            context.note("operations_a_sample", times.slowest.operations)
            yield from self._readings(times, group.ranks)

    def refuse(self, ranks: int) -> None:
        """
        Refuse what cannot be measured by so many ranks, before they meet.

        Raises:
            ProbeUnavailable: With the reason.
        """

    def memory_bytes(self, ranks: int) -> int:
        """Bytes that one rank allocates."""
        return pool_bytes(self)

    def buffers(self, group: collective.Group) -> CheckedOperation:
        """The buffers of this rank, which know what is done with them."""
        raise NotImplementedError

    def bus_factor(self, ranks: int) -> float:
        """Bytes that pass the busiest link for every payload byte; from 2 ranks on."""
        raise NotImplementedError

    def estimated_seconds(self) -> float:
        """Samples, soon narrow on GPUs; a dozen passes of the buffer at a cautious rate."""
        if self.backend == "nccl":
            return 0.1 + BUDGET_SECONDS / 2 + 12 * self.bytes / 40e9
        return 0.3 + BUDGET_SECONDS + 12 * self.bytes / 1e9

    def _single(self, group: collective.Group) -> bool:
        # An event pair costs more of a GPU's 1 MiB all-reduce than a clock pair of gloo's.
        return group.backend == "gloo" and self.bytes >= SINGLE_FROM_BYTES

    def _tolerance(self) -> float:
        large = self.bytes >= SINGLE_FROM_BYTES
        return stats.BANDWIDTH_TOLERANCE if large else stats.LATENCY_TOLERANCE

    def _readings(self, times: collective.GangTimes, ranks: int) -> Iterator[Reading]:
        yield times.slowest.durations(LATENCY.name)
        if ranks == 1:  # nothing travels: a bandwidth would mean nothing
            return
        yield times.slowest.rates(ALGBW.name, float(self.bytes))
        yield times.slowest.rates(BUSBW.name, self.bytes * self.bus_factor(ranks))
        for rank, timed in enumerate(times.by_rank):
            own = timed.durations(LATENCY.name)
            yield Reading(LATENCY.name, own.summary, point={"rank": rank})


def pool_buffers(probe: GangProbe) -> int:
    """Buffers in the pool of a case; several exceed the caches together."""
    return 1 if probe.pool == "warm" else min(POOL_BUFFERS, max(1, POOL_BYTES // probe.bytes))


def pool_bytes(probe: GangProbe) -> int:
    """Bytes of the pool of a case."""
    return probe.bytes * pool_buffers(probe)


def free_bytes(group: collective.Group) -> int:
    """Memory that is free for this rank's buffers: its GPU's, or the host's."""
    if group.device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(group.device)[0])
    return available_bytes()


def elements(probe: GangProbe, parts: int = 1) -> int:
    """
    Elements in each of ``parts`` equal parts of a buffer.

    Raises:
        ProbeUnavailable: They do not come out even.
    """
    import torch

    size: int = getattr(torch, probe.dtype).itemsize
    if probe.bytes % (size * parts):
        each = f" for each of {parts} ranks" if parts > 1 else ""
        step = size * parts
        raise ProbeUnavailable(
            ReasonCode.UNSUPPORTED,
            f"{probe.bytes} bytes are no whole number of {probe.dtype} elements{each}; "
            f"{max(1, probe.bytes // step) * step} bytes are",
        )
    return probe.bytes // size // parts


def require_right(group: collective.Group, wrong: int, total: int, what: str) -> None:
    """
    Compare notes on all ranks.

    Args:
        wrong: Elements that are wrong on this rank.
        total: Elements compared there.
        what: What the elements are, such as ``sums``.

    Raises:
        ResultInvalid: ``wrong_data``, on every rank if on one.
    """
    rows: list[list[float]] = group.gather([float(wrong)])
    bad = {rank: int(row[0]) for rank, row in enumerate(rows) if row[0]}
    if bad:
        text = ", ".join(f"rank {r}: {n}" for r, n in bad.items())
        raise ResultInvalid(ReasonCode.WRONG_DATA, f"wrong {what} among {total} elements ({text})")


def growing_operations(group: collective.Group, flat: Any, buffers: int) -> int:
    """Operations before any value overflows, if each multiplies values by the ranks."""
    import torch

    if group.ranks == 1 or not flat.is_floating_point():
        return POOL_BUFFERS
    room = math.log(torch.finfo(flat.dtype).max / LARGEST_VALUE)
    return buffers * max(1, int(room / math.log(group.ranks)))
