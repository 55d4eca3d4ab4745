"""All-reduce over torch.distributed: NCCL between GPUs, gloo between processes on CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from topobench.errors import ProbeUnavailable
from topobench.probes import collective, gang_probe, nccl_calls, patterns
from topobench.probes.gang_probe import IN_PLACE, OUT_OF_PLACE, GangProbe
from topobench.probes.protocol import Arms, Kind, parameter
from topobench.reading import ReasonCode


@dataclass(frozen=True, slots=True)
class AllReduce(GangProbe):
    """Time and bandwidth of summing one buffer size over all ranks."""

    name: ClassVar[str] = "all_reduce"
    summary: ClassVar[str] = "all-reduce between GPUs (NCCL) or processes (gloo)"
    arms: ClassVar[Arms] = Arms.GANG

    reduction: str = parameter(
        "sum", kind=Kind.CHOICE, choices=("sum",), help="how elements are combined"
    )
    place: str = gang_probe.place_parameter(
        IN_PLACE,
        "whether the sum replaces the data (in place) or lies in a buffer beside it; out_of is "
        "NCCL's own call, gloo works in place only",
        later=True,
    )

    def refuse(self, ranks: int) -> None:
        """
        Refuse sums that could not be checked.

        Raises:
            ProbeUnavailable: They would not be exact.
        """
        require_exact(self.dtype, ranks)

    def memory_bytes(self, ranks: int) -> int:
        """Bytes that one rank allocates."""
        return gang_probe.pool_bytes(self) * (2 if self.place == OUT_OF_PLACE else 1)

    def buffers(self, group: collective.Group) -> Buffers:
        """The buffers of this rank, which know how they are summed."""
        kind = _Apart if self.place == OUT_OF_PLACE else Buffers
        return kind(group, self)

    def bus_factor(self, ranks: int) -> float:
        """Bytes a ring moves over each link for every payload byte: 2 (n - 1) / n."""
        return 2 * (ranks - 1) / ranks


def require_exact(dtype: str, ranks: int) -> None:
    """
    Refuse a dtype in which the sum over all ranks would be rounded.

    Raises:
        ProbeUnavailable: With a dtype that does.
    """
    if patterns.largest_value(dtype, ranks) < 2:
        raise ProbeUnavailable(
            ReasonCode.UNSUPPORTED,
            f"{dtype} cannot hold an exact sum over {ranks} ranks, so data could not "
            "be checked; use float32",
        )


class Buffers:
    """
    A pool of equal buffers larger than the caches; operations walk through it.

    Out of place there is a second one for the sums.
    """

    def __init__(self, group: collective.Group, probe: AllReduce) -> None:
        import torch
        import torch.distributed

        self._dist = torch.distributed  # an import statement would cost 0.4 us of each call
        self._group = group
        self._dtype = probe.dtype
        self._elements = gang_probe.elements(probe)
        self._in_place = probe.place == IN_PLACE
        count = gang_probe.pool_buffers(probe)
        dtype = getattr(torch, probe.dtype)
        self._flat = torch.empty(count * self._elements, dtype=dtype, device=group.device)
        self._buffers = self._flat.split(self._elements)
        self._own = self._tile(group.rank, 0).to(group.device)
        self._next = 0
        patterns.spread(self._own, self._flat)  # first touch, untimed
        sums = self._flat if self._in_place else torch.zeros_like(self._flat)
        self._sums = sums.split(self._elements)

    def host_memory(self) -> tuple[int, int]:
        """Address and bytes of the pool."""
        return self._flat.data_ptr(), self._flat.nbytes

    def safe_operations(self) -> int:
        """Operations after which no value has overflowed: in place each multiplies by the ranks."""
        if not self._in_place:
            return gang_probe.POOL_BUFFERS
        return gang_probe.growing_operations(self._group, self._flat, len(self._buffers))

    def refill(self, count: int) -> None:
        """Renew the buffers of the next ``count`` operations, if sums were put into them."""
        self._next = 0
        if self._in_place:
            size = min(count, len(self._buffers)) * self._elements
            patterns.spread(self._own, self._flat[:size])

    def enqueue(self, count: int) -> None:
        """Sum the next ``count`` buffers over all ranks."""
        for _ in range(count):
            self.add_up(self._next)
            self._next = (self._next + 1) % len(self._buffers)

    def add_up(self, number: int) -> None:
        """Sum one buffer over all ranks."""
        self._dist.all_reduce(self._buffers[number])

    def verify(self, version: int) -> None:
        """
        Sum one buffer of known data and compare every element, on every rank.

        The place of the sum holds this rank's own values before, or zeros out of place, which
        the sum never equals.

        Raises:
            ResultInvalid: ``wrong_data``, naming the ranks that got it; on every rank.
        """
        tiles = [self._tile(r, version) for r in range(self._group.ranks)]
        expected = sum(tiles[1:], tiles[0]).to(self._group.device)
        buffer, found = self._buffers[0], self._sums[0]
        patterns.spread(tiles[self._group.rank].to(self._group.device), buffer)
        if not self._in_place:
            found.zero_()
        self._next = 0
        self.enqueue(1)
        wrong = patterns.differing(expected, found)
        gang_probe.require_right(self._group, wrong, self._elements, "sums")

    def _tile(self, rank: int, version: int) -> Any:
        ranks = self._group.ranks
        return patterns.tile(rank + version * ranks, self._dtype, ranks)


class _Apart(Buffers):
    """Sums beside the data, by NCCL itself."""

    def __init__(self, group: collective.Group, probe: AllReduce) -> None:
        self._nccl = nccl_calls.Calls(group)
        super().__init__(group, probe)

    def add_up(self, number: int) -> None:
        """Sum one buffer over all ranks into another."""
        self._nccl.all_reduce(self._buffers[number], self._sums[number])
