"""
Ring orders: which are the same ring, which is best, which can be compared; pure.

An order lists positions in a cell's device list; the last joins the first. A matrix holds the
bandwidth from each position to each other one, in bytes per second, zeros on its diagonal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topobench import ring_search
from topobench.errors import UsageError
from topobench.reading import Reason, ReasonCode, Status
from topobench.ring_orders import Orders
from topobench.topology import Gpu, Path, Topology

Order = tuple[int, ...]
Matrix = tuple[tuple[float, ...], ...]

AUTO, AUTO_RING, IDENTITY, BEST, WORST = "auto", "auto_ring", "identity", "best", "worst"
RING_ONLY = {"NCCL_ALGO": "allreduce:ring", "NCCL_NVLS_ENABLE": "0"}
"""Settings of every ring arm but auto: an all-reduce by rings, and nothing set up for others."""
EXAMPLE = "an order of device positions such as 0-2-1-3"

_SOURCES = (
    "measured_bytes_per_second",
    "nccl_bytes_per_second",
    "nominal_bytes_per_second",
)
"""Where bandwidths come from, the most telling first; one source for all pairs."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a ring is judged by: its slowest edge, then the sum of all, bytes per second."""

    slowest: float
    total: float


@dataclass(frozen=True, slots=True)
class RingArm:
    """
    A ring arm that can be run.

    Args:
        orders: Those it asks for, for the channels in turn; empty where NCCL chooses.
    """

    name: str
    orders: tuple[Order, ...] = ()


@dataclass(frozen=True, slots=True)
class RingRefusal:
    """A ring arm that does not exist here, and why."""

    name: str
    status: Status
    reason: Reason


def name_of(order: Iterable[int]) -> str:
    """An order as arms are called: ``0-2-1-3``."""
    return "-".join(map(str, order))


def parse_order(value: Any) -> Order:
    """
    An order from ``0-2-1-3``, ``0,2,1,3`` or a list of positions.

    Raises:
        UsageError: It is no order; of an adjacency list, the order it describes is named.
    """
    if isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and any(not isinstance(item, int) for item in value)
    ):
        raise UsageError(_adjacency(value))
    if isinstance(value, str):
        if not re.fullmatch(r"\s*\d{1,4}(\s*[-,]\s*\d{1,4})+\s*", value, re.ASCII):
            raise UsageError(f"{value!r} is no ring; expected {EXAMPLE}")
        value = [int(number) for number in re.findall(r"\d+", value)]
    if not isinstance(value, list | tuple):
        raise UsageError(f"{value!r} is no ring; expected {EXAMPLE}")
    order = tuple(value)
    if len(order) < 2 or sorted(order) != list(range(len(order))):
        raise UsageError(
            f"the ring {name_of(order)} must hold each position from 0 to "
            f"{max(len(order) - 1, 1)} exactly once; expected {EXAMPLE}"
        )
    return order


def canonical(order: Sequence[int], *, symmetric: bool) -> Order:
    """
    The one spelling of a ring: rotated to its smallest member.

    Args:
        symmetric: Both directions of every path are alike, so a reversed ring is the same.
    """
    start = order.index(min(order))
    forward = (*order[start:], *order[:start])
    backward = (forward[0], *forward[:0:-1])
    return min(forward, backward) if symmetric else forward


def equivalent(a: Sequence[int], b: Sequence[int], *, symmetric: bool) -> bool:
    """Whether two orders are the same ring."""
    if len(a) != len(b) or set(a) != set(b):
        return False
    return canonical(a, symmetric=symmetric) == canonical(b, symmetric=symmetric)


def bandwidths(topology: Topology, gpus: Sequence[Gpu]) -> Matrix | None:
    """
    The bandwidths between GPUs, by position in ``gpus``.

    All measured ones if there are, else those that NCCL assumes, else the nominal ones.
    None if no source knows every pair.
    """
    paths = {frozenset((path.a, path.b)): path for path in topology.paths}
    for source in _SOURCES:
        matrix = tuple(
            tuple(_between(paths.get(frozenset((a.name, b.name))), source) for b in gpus)
            for a in gpus
        )
        known = all(matrix[i][j] > 0 for i in range(len(gpus)) for j in range(len(gpus)) if i != j)
        if known:
            return matrix
    return None


def is_symmetric(matrix: Matrix) -> bool:
    """Whether both directions of every path are equally fast."""
    size = range(len(matrix))
    return all(matrix[i][j] == matrix[j][i] for i in size for j in size)


def score(order: Sequence[int], matrix: Matrix) -> Score:
    """What a ring is judged by."""
    edges = [matrix[a][b] for a, b in zip(order, (*order[1:], order[0]), strict=True)]
    return Score(min(edges), math.fsum(edges))


def best(matrix: Matrix) -> Order:
    """
    The ring with the fastest slowest edge, and of those the largest sum; canonical.

    Exact up to :data:`ring_search.EXACT_UP_TO` GPUs, a local search above. Of equally good
    rings the one nearest to 0-1-2-... is taken.
    """
    return _shown(ring_search.best(_whole(matrix)), matrix)


def worst(matrix: Matrix) -> Order:
    """The ring with the slowest slowest edge, and of those the smallest sum; as :func:`best`."""
    return _shown(ring_search.worst(_whole(matrix)), matrix)


def all_equal(matrix: Matrix) -> bool:
    """Whether no order is better than another: no choice, or a best no better than the worst."""
    if len(matrix) < 3 or len({v for i, r in enumerate(matrix) for j, v in _rest(i, r)}) == 1:
        return True
    return score(best(matrix), matrix) == score(worst(matrix), matrix)


def arms(
    wanted: Sequence[str | Orders | Sequence[int]], size: int, matrix: Matrix | None
) -> list[RingArm | RingRefusal]:
    """
    Which of the ring arms asked for can be compared between ``size`` GPUs.

    NCCL's own choices (auto, auto_ring, identity) always can. Orders need several that
    differ in path bandwidth, or to be forced; of equal orders the first is run.

    Args:
        wanted: Names and explicit orders, as in the config.
        matrix: None if bandwidths are not known: best and worst then do not exist.
    """
    symmetric = matrix is None or is_symmetric(matrix)
    no_choice = size < 3 or (size == 3 and symmetric) or (matrix is not None and all_equal(matrix))
    found: list[RingArm | RingRefusal] = []
    taken: dict[tuple[Order, ...], str] = {}
    for given in wanted:
        item = given if isinstance(given, str | Orders) else Orders((tuple(given),))
        name = _name(item)
        if name in (AUTO, AUTO_RING, IDENTITY):
            found.append(RingArm(name))
            continue
        forced = isinstance(item, Orders) and item.forced
        orders = _ordered(item, size, matrix, no_choice=no_choice and not forced)
        if isinstance(orders, Reason):
            not_here = orders.code is ReasonCode.EQUIVALENT_ARMS
            status = Status.NOT_APPLICABLE if not_here else Status.SKIPPED
            found.append(RingRefusal(name, status, orders))
            continue
        asked = tuple(canonical(order, symmetric=symmetric) for order in orders)
        same = asked[:1] if len(set(asked)) == 1 else asked
        other = name if forced else taken.setdefault(same, name)
        if other == name:
            found.append(RingArm(name, orders))
        else:
            why = Reason(ReasonCode.EQUIVALENT_ARMS, f"the same ring as {other}")
            found.append(RingRefusal(name, Status.NOT_APPLICABLE, why))
    return found


def without_nccl(wanted: Sequence[str | Orders | Sequence[int]]) -> list[RingRefusal]:
    """The ring arms asked for, between processes that NCCL does not join."""
    text = "gloo takes no ring; the probe ring_p2p runs along any order on any backend"
    why = Reason(ReasonCode.EQUIVALENT_ARMS, text)
    return [RingRefusal(_name(item), Status.NOT_APPLICABLE, why) for item in wanted if item != AUTO]


def over_hosts(wanted: Sequence[str | Orders | Sequence[int]]) -> list[RingRefusal]:
    """The ring arms asked for, between GPUs of several hosts."""
    text = "between hosts NCCL goes by the ranks, and chooses; rings are compared inside a host"
    why = Reason(ReasonCode.UNSUPPORTED, text)
    return [RingRefusal(_name(item), Status.SKIPPED, why) for item in wanted if item != AUTO]


def _name(given: str | Orders | Sequence[int]) -> str:
    if isinstance(given, str):
        return given
    return (given if isinstance(given, Orders) else Orders((tuple(given),))).name


def orders_of(name: str, matrix: Matrix | None) -> tuple[Order, ...]:
    """
    The orders that an arm's name stands for; empty where NCCL chooses, or nothing is known.

    Raises:
        UsageError: The name is none.
    """
    if name in (AUTO, AUTO_RING, IDENTITY):
        return ()
    if name not in (BEST, WORST):
        return tuple(map(parse_order, name.split(":")))
    if matrix is None:
        return ()
    return (best(matrix) if name == BEST else worst(matrix),)


def _ordered(
    item: str | Orders, size: int, matrix: Matrix | None, *, no_choice: bool
) -> tuple[Order, ...] | Reason:
    """The orders an arm asks for, or why it cannot be compared."""
    if no_choice:
        text = f"all ring orders of these {size} GPUs are equivalent: equal path bandwidths"
        if size < 3:
            text = "all ring orders of two GPUs are equivalent"
        return Reason(ReasonCode.EQUIVALENT_ARMS, text)
    if isinstance(item, Orders):
        other = next((len(order) for order in item.orders if len(order) != size), None)
        if other is None:
            return item.orders
        text = f"the order has {other} positions; {size} GPUs take part here"
        return Reason(ReasonCode.UNSUPPORTED, text)
    orders = orders_of(item, matrix)
    if not orders:
        text = f"{item} needs the bandwidth of every path between these GPUs; some are unknown"
        return Reason(ReasonCode.UNSUPPORTED, text)
    return orders


def _between(path: Path | None, source: str) -> float:
    """A path's bandwidth; 0 where it is not known (which makes the matrix unusable)."""
    return (getattr(path, source) or 0.0) if path else 0.0


def _rest(skip: int, row: Sequence[float]) -> list[tuple[int, float]]:
    return [(i, value) for i, value in enumerate(row) if i != skip]


def _whole(matrix: Matrix) -> ring_search.Weights:
    """Whole bytes per second: sums do not depend on the order of summing."""
    return tuple(tuple(round(value) for value in row) for row in matrix)


def _shown(order: Order, matrix: Matrix) -> Order:
    return canonical(order, symmetric=is_symmetric(matrix))


def _adjacency(value: Any) -> str:
    """What is wrong with an adjacency list, and the order it means if it means one."""
    told = "this looks like an adjacency list (who is linked to whom); a ring is " + EXAMPLE
    order = _walk(value)
    return f"{told}; the list describes {name_of(order)}" if order else told


def _walk(value: Any) -> Order | None:
    """The one ring that an adjacency list describes, or None."""
    items = list(value.items()) if isinstance(value, Mapping) else list(enumerate(value))
    try:
        links = {
            int(node): {int(n) for n in (near if isinstance(near, list | tuple) else [near])}
            for node, near in items
        }
    except (TypeError, ValueError):
        return None
    order = [0]
    while len(order) < len(links):
        onward = sorted(links.get(order[-1], set()) - set(order))
        if not onward or max(map(len, links.values())) > 2:
            return None
        order.append(onward[0])
    closed = order[0] in links.get(order[-1], set())
    return tuple(order) if closed and sorted(order) == list(range(len(links))) else None
