"""
All-reduce as a ring of our own, along any order: reduce-scatter, then all-gather.

Made of sends and receives that torch.distributed groups step by step, so it runs on every
backend. It is *not* NCCL's ring: one launch a step, no pipelining inside a chunk. Small sizes
show the cost of launching; large ones are a lower bound for the slowest path on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from topobench import rings
from topobench.errors import ProbeUnavailable
from topobench.probes import collective
from topobench.probes.all_reduce import AllReduce, Buffers
from topobench.probes.gang_probe import OUT_OF_PLACE, GangProbe
from topobench.probes.protocol import Arms, Kind, WorkerContext, parameter
from topobench.reading import Reading, ReasonCode


@dataclass(frozen=True, slots=True)
class RingP2p(AllReduce):
    """Time and bandwidth of a ring all-reduce in a given order of the ranks."""

    name: ClassVar[str] = "ring_p2p"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "ring all-reduce from sends and receives, in any order of the ranks"
    arms: ClassVar[Arms] = Arms.RANKS

    order: str | None = parameter(
        None, kind=Kind.TEXT, help="order of the ranks, such as 0-2-1-3; None is 0-1-2-3..."
    )

    def __post_init__(self) -> None:
        if self.order is not None:
            rings.parse_order(self.order)

    def measure(self, context: WorkerContext) -> Iterator[Reading]:
        """
        Measure on all ranks together; only rank 0 yields readings.

        Raises:
            ProbeUnavailable: Also if the order is not of these ranks.
            ProbeError, ResultInvalid: As all-reduce.
        """
        order = self.ring(context.ranks)
        context.note("ring", rings.name_of(order))
        yield from GangProbe.measure(self, context)

    def refuse(self, ranks: int) -> None:
        """
        Refuse sums that could not be checked, or that would never be made.

        Raises:
            ProbeUnavailable: They would not be exact, or one rank would have to copy.
        """
        AllReduce.refuse(self, ranks)
        if ranks == 1 and self.place == OUT_OF_PLACE:
            text = "one rank has no ring, and out of place would only copy; take place in"
            raise ProbeUnavailable(ReasonCode.UNSUPPORTED, text)

    def ring(self, ranks: int) -> rings.Order:
        """
        The order in which ``ranks`` ranks are joined.

        Raises:
            ProbeUnavailable: It is of another number of ranks.
        """
        if self.order is None:
            return tuple(range(ranks))
        order = rings.parse_order(self.order)
        if len(order) != ranks:
            text = f"the order {self.order} is of {len(order)} ranks; {ranks} take part"
            raise ProbeUnavailable(ReasonCode.UNSUPPORTED, text)
        return order

    def buffers(self, group: collective.Group) -> Buffers:
        """Buffers that are summed along the ring."""
        return RingBuffers(group, self, self.ring(group.ranks))


def neighbours(order: rings.Order, rank: int) -> tuple[int, int]:
    """The ranks before and after a rank."""
    at = order.index(rank)
    return order[at - 1], order[(at + 1) % len(order)]


def reduce_steps(order: rings.Order, rank: int) -> list[tuple[int, int]]:
    """Reduce-scatter: of each step the chunk to send on and the chunk to add what comes to."""
    at, size = order.index(rank), len(order)
    return [((at - step) % size, (at - step - 1) % size) for step in range(size - 1)]


def gather_steps(order: rings.Order, rank: int) -> list[tuple[int, int]]:
    """All-gather: of each step the chunk to send on and the chunk to replace by what comes."""
    at, size = order.index(rank), len(order)
    return [((at + 1 - step) % size, (at - step) % size) for step in range(size - 1)]


class RingBuffers(Buffers):
    """The pool of all-reduce; an operation goes round the ring twice."""

    def __init__(self, group: collective.Group, probe: AllReduce, order: rings.Order) -> None:
        import torch

        super().__init__(group, probe)
        self._before, self._after = neighbours(order, group.rank)
        self._reduce = reduce_steps(order, group.rank)
        self._gather = gather_steps(order, group.rank)
        ranks = group.ranks
        self._chunks = [buffer.tensor_split(ranks) for buffer in self._buffers]
        self._summed = [buffer.tensor_split(ranks) for buffer in self._sums]
        self._received = torch.empty_like(self._chunks[0][0])  # the first is the largest

    def add_up(self, number: int) -> None:
        """Sum one buffer over all ranks, chunk by chunk."""
        import torch

        chunks, summed = self._chunks[number], self._summed[number]
        for step, (sent, added) in enumerate(self._reduce):
            received = self._received[: len(chunks[added])]
            self._exchange((summed if step else chunks)[sent], received)
            torch.add(chunks[added], received, out=summed[added])
        for sent, replaced in self._gather:
            self._exchange(summed[sent], summed[replaced])

    def _exchange(self, outgoing: Any, incoming: Any) -> None:
        """Send to the next rank and receive from the one before; empty chunks do not travel."""
        dist = self._dist
        wanted = (dist.isend, outgoing, self._after), (dist.irecv, incoming, self._before)
        operations = [dist.P2POp(how, data, peer) for how, data, peer in wanted if len(data)]
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
