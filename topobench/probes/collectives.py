"""
The collectives beside all-reduce: NCCL between GPUs, gloo between processes on CPUs.

Sizes are those of nccl-tests: of all_gather what every rank receives, of reduce_scatter and
all_to_all what every rank sends, of broadcast and send_recv the message. Bus bandwidths use
its factors, so tables can lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from topobench.errors import ProbeUnavailable
from topobench.probes import collective, gang_probe, nccl_calls, patterns
from topobench.probes.all_reduce import require_exact
from topobench.probes.gang_probe import IN_PLACE, OUT_OF_PLACE, GangProbe
from topobench.reading import ReasonCode

_PART = "whether a rank's part lies inside the whole buffer (in place) or beside it"


class _Apart(GangProbe):
    """A collective in which each rank has one of n equal parts already."""

    __slots__ = ()

    def bus_factor(self, ranks: int) -> float:
        """Bytes that pass the busiest link for every payload byte: (n - 1) / n."""
        return (ranks - 1) / ranks


@dataclass(frozen=True, slots=True)
class AllGather(_Apart):
    """Time and bandwidth of giving every rank the parts of all."""

    name: ClassVar[str] = "all_gather"
    summary: ClassVar[str] = "all-gather between GPUs (NCCL) or processes (gloo)"

    place: str = gang_probe.place_parameter(OUT_OF_PLACE, _PART)

    def memory_bytes(self, ranks: int) -> int:
        """Bytes that one rank allocates."""
        return _with_part(self, ranks, self.place)

    def buffers(self, group: collective.Group) -> Exchange:
        """The buffers of this rank."""
        return _Gathered(group, self, parts_in=1, parts_out=group.ranks, place=self.place)


@dataclass(frozen=True, slots=True)
class ReduceScatter(_Apart):
    """Time and bandwidth of summing over all ranks and giving each rank its part."""

    name: ClassVar[str] = "reduce_scatter"
    summary: ClassVar[str] = "reduce-scatter between GPUs (NCCL) or processes (gloo)"

    place: str = gang_probe.place_parameter(OUT_OF_PLACE, _PART)

    def refuse(self, ranks: int) -> None:
        """
        Refuse sums that could not be checked.

        Raises:
            ProbeUnavailable: They would not be exact.
        """
        require_exact(self.dtype, ranks)

    def memory_bytes(self, ranks: int) -> int:
        """Bytes that one rank allocates."""
        return _with_part(self, ranks, self.place)

    def buffers(self, group: collective.Group) -> Exchange:
        """The buffers of this rank."""
        return _Scattered(group, self, parts_in=group.ranks, parts_out=1, place=self.place)


@dataclass(frozen=True, slots=True)
class AllToAll(_Apart):
    """Time and bandwidth of every rank sending another part to each rank."""

    name: ClassVar[str] = "all_to_all"
    summary: ClassVar[str] = "all-to-all between GPUs (NCCL) or processes (gloo)"

    def memory_bytes(self, ranks: int) -> int:
        """Bytes that one rank allocates."""
        return 2 * gang_probe.pool_bytes(self)

    def buffers(self, group: collective.Group) -> Exchange:
        """The buffers of this rank."""
        return _Transposed(group, self, parts_in=group.ranks, parts_out=group.ranks)


@dataclass(frozen=True, slots=True)
class Broadcast(GangProbe):
    """Time and bandwidth of giving every rank the data of rank 0."""

    name: ClassVar[str] = "broadcast"
    summary: ClassVar[str] = "broadcast from rank 0 between GPUs (NCCL) or processes (gloo)"

    place: str = gang_probe.place_parameter(
        IN_PLACE,
        "whether rank 0 keeps the message where it sends it from (in place) or gets it in another "
        "buffer, too; out_of is NCCL's own call, gloo works in place only",
        later=True,
    )

    def memory_bytes(self, ranks: int) -> int:
        """Bytes that one rank allocates."""
        return gang_probe.pool_bytes(self) * (2 if self.place == OUT_OF_PLACE else 1)

    def buffers(self, group: collective.Group) -> Exchange:
        """The buffers of this rank."""
        kind = _BroadcastedApart if self.place == OUT_OF_PLACE else _Broadcasted
        return kind(group, self, parts_in=1, parts_out=1, place=self.place)

    def bus_factor(self, ranks: int) -> float:
        """Bytes that pass the busiest link for every payload byte."""
        return 1.0


@dataclass(frozen=True, slots=True)
class SendRecv(GangProbe):
    """Time and bandwidth of every rank sending to the next and receiving from the one before."""

    name: ClassVar[str] = "send_recv"
    summary: ClassVar[str] = "send to the next rank while receiving from the one before"

    def refuse(self, ranks: int) -> None:
        """
        Refuse a rank that would send to itself.

        Raises:
            ProbeUnavailable: There is one rank only.
        """
        if ranks == 1:
            raise ProbeUnavailable(ReasonCode.UNSUPPORTED, "one rank has nobody to send to")

    def memory_bytes(self, ranks: int) -> int:
        """Bytes that one rank allocates."""
        return 2 * gang_probe.pool_bytes(self)

    def buffers(self, group: collective.Group) -> Exchange:
        """The buffers of this rank."""
        return _Shifted(group, self, parts_in=1, parts_out=1)

    def bus_factor(self, ranks: int) -> float:
        """Bytes that pass the busiest link for every payload byte."""
        return 1.0


def _with_part(probe: GangProbe, ranks: int, place: str) -> int:
    whole = gang_probe.pool_bytes(probe)
    return whole if place == IN_PLACE else whole + whole // ranks


class Exchange:
    """
    Pools of what a rank sends and of what it receives; operations walk through both.

    A sent buffer is made of ``parts_in`` equal parts with a pattern each, a received one of
    ``parts_out``. In place, the smaller one lies inside the larger at this rank's part.

    Args:
        place: ``in`` or ``out_of`` place.
    """

    what = "elements"

    def __init__(
        self,
        group: collective.Group,
        probe: GangProbe,
        *,
        parts_in: int,
        parts_out: int,
        place: str = OUT_OF_PLACE,
    ) -> None:
        import torch.distributed

        parts = max(parts_in, parts_out)
        self._dist = torch.distributed  # an import statement would cost 0.4 us of each call
        self._group = group
        self._dtype = probe.dtype
        self._part = gang_probe.elements(probe, parts)
        self._count = gang_probe.pool_buffers(probe)
        self._parts_in, self._parts_out = parts_in, parts_out
        self._in_place = place == IN_PLACE
        self._next = 0
        self._whole = self._pool(parts)
        self._sent, self._received = self._views(parts)
        self._own = self.tiles(0)
        for sent in self._sent:
            self._fill(sent, self._own)

    def host_memory(self) -> tuple[int, int]:
        """Address and bytes of the larger pool."""
        return self._whole.data_ptr(), self._whole.nbytes

    def safe_operations(self) -> int:
        """Operations that may follow one refill before values overflow."""
        if not self.grows():
            return gang_probe.POOL_BUFFERS
        return gang_probe.growing_operations(self._group, self._whole, self._count)

    def grows(self) -> bool:
        """Whether an operation puts its result into what it sent."""
        return False

    def refill(self, count: int) -> None:
        """Renew what the next ``count`` operations send, if results were put into it."""
        self._next = 0
        if self.grows():
            for sent in self._sent[: min(count, self._count)]:
                self._fill(sent, self._own)

    def enqueue(self, count: int) -> None:
        """Run the next ``count`` operations (gloo) or enqueue them (nccl)."""
        for _ in range(count):
            self.operate(self._sent[self._next], self._received[self._next])
            self._next = (self._next + 1) % self._count

    def operate(self, sent: Any, received: Any) -> None:
        """One operation."""
        raise NotImplementedError

    def tiles(self, version: int) -> list[Any]:
        """The patterns this rank sends, one a part."""
        return [self.tile(self._group.rank, version)]

    def expected(self, version: int) -> list[Any]:
        """The patterns this rank must receive, one a part."""
        raise NotImplementedError

    def tile(self, number: int, version: int, terms: int = 1) -> Any:
        """Pattern of a number below ranks squared, on the device."""
        seed = number + version * self._group.ranks**2
        return patterns.tile(seed, self._dtype, terms).to(self._group.device)

    def verify(self, version: int) -> None:
        """
        Run one operation on known data and compare every element, on every rank.

        What is received into holds zeros before, which are never right.

        Raises:
            ResultInvalid: ``wrong_data``, naming the ranks that got it; on every rank.
        """
        sent, received = self._sent[0], self._received[0]
        own = self.tiles(version)
        received.zero_()
        self._fill(sent, own)
        self._next = 0
        self.enqueue(1)
        wrong = sum(
            patterns.differing(pattern, part)
            for pattern, part in zip(self.expected(version), self._parts(received), strict=True)
        )
        gang_probe.require_right(self._group, wrong, len(received), self.what)

    def _fill(self, sent: Any, tiles: Sequence[Any]) -> None:
        for pattern, part in zip(tiles, self._parts(sent), strict=True):
            patterns.spread(pattern, part)

    def _parts(self, buffer: Any) -> Sequence[Any]:
        return tuple(buffer.split(self._part))

    def _pool(self, parts: int) -> Any:
        import torch

        size = self._count * self._part * parts
        return torch.zeros(size, dtype=getattr(torch, self._dtype), device=self._group.device)

    def _views(self, parts: int) -> tuple[Sequence[Any], Sequence[Any]]:
        whole = self._whole.split(self._part * parts)
        if self._in_place:
            smaller = [self._own_part(buffer, parts) for buffer in whole]
        else:
            fewer = min(self._parts_in, self._parts_out)
            smaller = list(self._pool(fewer).split(self._part * fewer))
        return (smaller, whole) if self._parts_in < self._parts_out else (whole, smaller)

    def _own_part(self, buffer: Any, parts: int) -> Any:
        return buffer if parts == 1 else self._parts(buffer)[self._group.rank]


def _newest(module: Any, *names: str) -> Any:
    """The first that this torch has; the older names are deprecated in newer ones."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


class _Gathered(Exchange):
    def operate(self, sent: Any, received: Any) -> None:
        _newest(self._dist, "all_gather_single", "all_gather_into_tensor")(received, sent)

    def expected(self, version: int) -> list[Any]:
        return [self.tile(rank, version) for rank in range(self._group.ranks)]


class _Scattered(Exchange):
    """Rank r sends another pattern to each rank; the sums of what a rank gets are exact."""

    what = "sums"

    def operate(self, sent: Any, received: Any) -> None:
        _newest(self._dist, "reduce_scatter_single", "reduce_scatter_tensor")(received, sent)

    def tiles(self, version: int) -> list[Any]:
        return list(self._from(self._group.rank, version))

    def expected(self, version: int) -> list[Any]:
        ranks, own = self._group.ranks, self._group.rank
        first, *more = (self._numbered(r * ranks + own, version) for r in range(ranks))
        return [sum(more, first)]

    def grows(self) -> bool:
        """In place, a rank's own part is summed again by each operation."""
        return self._in_place

    def _from(self, rank: int, version: int) -> Iterator[Any]:
        ranks = self._group.ranks
        return (self._numbered(rank * ranks + to, version) for to in range(ranks))

    def _numbered(self, number: int, version: int) -> Any:
        return self.tile(number, version, self._group.ranks)


class _Transposed(Exchange):
    """Rank r sends pattern r * ranks + d to rank d."""

    def operate(self, sent: Any, received: Any) -> None:
        self._dist.all_to_all_single(received, sent)

    def tiles(self, version: int) -> list[Any]:
        ranks, own = self._group.ranks, self._group.rank
        return [self.tile(own * ranks + to, version) for to in range(ranks)]

    def expected(self, version: int) -> list[Any]:
        ranks, own = self._group.ranks, self._group.rank
        return [self.tile(source * ranks + own, version) for source in range(ranks)]


class _Broadcasted(Exchange):
    def operate(self, sent: Any, received: Any) -> None:
        self._dist.broadcast(sent, src=0)

    def expected(self, version: int) -> list[Any]:
        return [self.tile(0, version)]


class _BroadcastedApart(_Broadcasted):
    def __init__(self, group: collective.Group, probe: GangProbe, **parts: Any) -> None:
        self._nccl = nccl_calls.Calls(group)
        super().__init__(group, probe, **parts)

    def operate(self, sent: Any, received: Any) -> None:
        self._nccl.broadcast(sent, received)


class _Shifted(Exchange):
    def operate(self, sent: Any, received: Any) -> None:
        dist, own, ranks = self._dist, self._group.rank, self._group.ranks
        there = dist.P2POp(dist.isend, sent, (own + 1) % ranks)
        back = dist.P2POp(dist.irecv, received, (own - 1) % ranks)
        for work in dist.batch_isend_irecv([there, back]):
            work.wait()

    def expected(self, version: int) -> list[Any]:
        return [self.tile((self._group.rank - 1) % self._group.ranks, version)]
