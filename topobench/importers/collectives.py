"""What collectives of nccl-tests are called here, and what their columns must satisfy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from topobench.importers.document import Figure

OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "send_recv",
    "hypercube": "hypercube",
}
"""Program of nccl-tests, without ``_perf`` -> our word."""

DTYPES = {
    "char": "int8",
    "int": "int32",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "f8e4m3": "float8_e4m3",
    "f8e5m2": "float8_e5m2",
}
"""Types whose names differ from ours."""

_ITEM_BYTES = {
    **dict.fromkeys(("char", "int8", "uint8", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int", "int32", "uint32", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
_PER_RANK = {"all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter"}
"""Their size is the number of elements of one rank times the ranks."""
_UNCHECKED_IN_PLACE = {"all_to_all", "all_to_all_v", "send_recv"}
"""nccl-tests never checks their in-place half."""


@dataclass(frozen=True, slots=True)
class Half:
    """
    The out-of-place or in-place part of a row.

    Args:
        time: Of one operation; None with ``cpu_time``.
        cpu_time: Time to launch it, where the tool was asked for that (-C 1).
        wrong_count: Elements that were wrong; None where nothing was checked.
        relative_error: What versions before 2.13 print instead.
        per_iteration: Seconds and ratio of single iterations (-I 1).
    """

    time: Figure | None
    cpu_time: Figure | None
    algbw: Figure
    busbw: Figure
    wrong_count: int | None
    relative_error: float | None = None
    per_iteration: dict[str, object] | None = None

    @property
    def checked(self) -> bool:
        """Whether its data was looked at."""
        return self.wrong_count is not None or self.relative_error is not None


@dataclass(frozen=True, slots=True)
class Line:
    """
    A row as read; ``redop`` and ``root`` are None where the collective has none.

    Args:
        dated: Printed by a version before 2.13, which has a column ``error`` or ``res``.
    """

    size_bytes: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    out_of_place: Half
    in_place: Half | None
    timestamp: str | None = None
    dated: bool = False

    @property
    def halves(self) -> Sequence[Half]:
        """Those that are there."""
        return [h for h in (self.out_of_place, self.in_place) if h is not None]


def bus_factor(op: str, ranks: int) -> float:
    """What nccl-tests multiplies algbw with to get busbw."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in _PER_RANK else 1.0


def settle(line: Line, op: str | None, ranks: int | None) -> Line | None:
    """
    The row, if its figures agree with each other up to rounding; None if not.

    Without the collective or the ranks, busbw must lie where some collective could put it.
    Some versions before 2.13 left a rank's own share out of the algbw of an all-gather and its
    like: there it is put right, so that algbw is size by time in every row.
    """
    if ranks and line.root is not None and line.root >= ranks:
        return None
    if op is None and ranks:
        fits = any(settle(line, each, ranks) for each in OPS.values())
        return line if fits else None
    share = (ranks - 1) / ranks if ranks and op == "hypercube" else 1.0
    if all(
        _time_fits(share * line.size_bytes, h) and _busbw_fits(h, op, ranks) for h in line.halves
    ):
        return line
    if not (line.dated and ranks and ranks > 1 and op in _PER_RANK):
        return None
    share = (ranks - 1) / ranks
    if not all(
        _time_fits(share * line.size_bytes, h) and _ratio_within(h, 1.0, 1.0) for h in line.halves
    ):
        return None
    return dataclasses.replace(
        line,
        out_of_place=_whole_payload(line.out_of_place, share),
        in_place=line.in_place and _whole_payload(line.in_place, share),
    )


def _whole_payload(half: Half, share: float) -> Half:
    algbw = Figure(half.algbw.value / share, half.algbw.slack / share)
    return dataclasses.replace(half, algbw=algbw)


_MARGIN = 2e-3
"""Relative; far below any shift of columns, above what single precision loses."""


def _time_fits(payload_bytes: float, half: Half) -> bool:
    if half.time is None:
        return half.cpu_time is not None
    time, algbw = half.time, half.algbw
    if time.value <= 0:
        return False
    fastest = payload_bytes / max(time.value - time.slack, time.value * 1e-3)
    slowest = payload_bytes / (time.value + time.slack)
    low, high = algbw.value - algbw.slack, algbw.value + algbw.slack
    return high >= slowest * (1 - _MARGIN) and low <= fastest * (1 + _MARGIN)


def _busbw_fits(half: Half, op: str | None, ranks: int | None) -> bool:
    if op is None or ranks is None:
        return _ratio_within(half, 0.5, 2.0)
    factor = bus_factor(op, ranks)
    return _ratio_within(half, factor, factor)


def _ratio_within(half: Half, low: float, high: float) -> bool:
    """Whether busbw / algbw lies between the two, up to rounding."""
    algbw, busbw = half.algbw, half.busbw
    least = low * (algbw.value - algbw.slack) * (1 - _MARGIN) - busbw.slack
    most = high * (algbw.value + algbw.slack) * (1 + _MARGIN) + busbw.slack
    return least <= busbw.value <= most


def infer_op(lines: Sequence[Line], ranks: int | None) -> str | None:
    """
    The only collective whose output could look so, or None.

    Versions before 2.16.7 do not print which one ran.
    """
    if not lines or ranks is None or ranks < 2:
        return None
    left = set(OPS.values()) - {"all_to_all_v"}
    for line in lines:
        left &= _by_columns(line)
        left = {o for o in left if _count_fits(line, o, ranks) and settle(line, o, ranks)}
    checks = [(a.out_of_place.checked, a.in_place.checked) for a in lines if a.in_place]
    if any(in_place for _, in_place in checks):
        left -= _UNCHECKED_IN_PLACE
    elif any(out_of_place for out_of_place, _ in checks):
        left &= _UNCHECKED_IN_PLACE
    return left.pop() if len(left) == 1 else None


def _by_columns(line: Line) -> set[str]:
    if line.root is not None:
        return {"reduce"} if line.redop else {"broadcast", "gather", "scatter"}
    if line.redop:  # send_recv prints one, though it reduces nothing
        return {"all_reduce", "reduce_scatter", "all_to_all", "send_recv"}
    return {"all_gather", "send_recv", "hypercube"} | (set() if line.dated else {"all_to_all"})


def _count_fits(line: Line, op: str, ranks: int) -> bool:
    item = _ITEM_BYTES.get(line.dtype)
    if item is None:
        return True
    parts = ranks if op in _PER_RANK or op == "hypercube" else 1
    return line.size_bytes == line.count * item * parts


def missing_sizes(
    sizes: Iterable[int], *, minimum: int, maximum: int, factor: int | None, step: int | None
) -> tuple[int, ...]:
    """
    Sizes between two bounds that no row has.

    A row may be a little smaller than asked: the tool rounds down to whole elements and ranks.
    """
    found = set(sizes)
    return tuple(
        wanted
        for wanted in _asked(minimum, maximum, factor, step)
        if not any(wanted - max(4096, wanted // 1024) < s <= wanted for s in found)
    )


_MOST_SIZES = 256


def _asked(minimum: int, maximum: int, factor: int | None, step: int | None) -> Iterable[int]:
    """The sizes of a sweep; none when they are too many to be looked at one by one."""
    found: list[int] = []
    size = minimum
    while size <= maximum:
        if len(found) == _MOST_SIZES:
            return ()
        found.append(size)
        larger = size * factor if factor else size + (step or 0)
        if larger <= size:
            break
        size = larger
    return found
