"""
Fit the cells of one host into a time budget: the least informative go first.

Order: repeats (the last process or block first), then middle sizes (the smallest and the
largest stay), then arms beyond ``none`` and ``local``, then ``local``, then whole probes from
the last, then single workers from the end.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from topobench.reading import Cell, Reason, ReasonCode, Status
from topobench.units import format_bytes, format_span

_KEPT_LONGEST = ("none", "local")

Step = tuple[str, Callable[[Cell], bool]]


def fit(
    cells: Sequence[Cell], budget_seconds: float, cost: Callable[[Sequence[Cell]], float]
) -> list[Cell]:
    """
    The same cells, those over the budget turned into ``skipped: over_budget``.

    Args:
        cost: Seconds of the planned ones among some cells, start-ups included.
    """
    kept = list(cells)
    for name, leaves_out in _steps(cells):
        if cost(kept) <= budget_seconds:
            break
        text = f"left out to fit {format_span(budget_seconds)}: {name}"
        reason = Reason(ReasonCode.OVER_BUDGET, text)
        kept = [
            dataclasses.replace(c, status=Status.SKIPPED, reason=reason)
            if c.status is Status.PLANNED and leaves_out(c)
            else c
            for c in kept
        ]
    return kept


def _steps(cells: Sequence[Cell]) -> Iterator[Step]:
    planned = [c for c in cells if c.status is Status.PLANNED]
    yield from _repeats(planned)
    yield from _middle_sizes(planned)
    yield from _arms(planned)
    yield from _probes(planned)
    yield from _workers(planned)


def _repeats(cells: Sequence[Cell]) -> Iterator[Step]:
    last = max((c.process_no for c in cells), default=0)
    for number in range(last, 0, -1):
        yield f"repeat {number + 1}", _where(lambda c: c.process_no, number)


def _middle_sizes(cells: Sequence[Cell]) -> Iterator[Step]:
    """Sizes between the ends, the middle one first; probes take turns."""
    sizes: dict[str, set[int]] = {}
    for cell in cells:
        size = cell.case.params.get("bytes")
        if isinstance(size, int):
            sizes.setdefault(cell.case.probe, set()).add(size)
    columns = [[(probe, s) for s in _from_middle(sorted(found))] for probe, found in sizes.items()]
    for probe, size in filter(None, itertools.chain(*itertools.zip_longest(*columns))):
        same = _where(lambda c: (c.case.probe, c.case.params.get("bytes")), (probe, size))
        yield f"{probe} at {format_bytes(size)}", same


def _from_middle(ordered: list[int]) -> list[int]:
    """Inner values, those nearest to the middle first."""
    centre = (len(ordered) - 1) / 2
    inner = range(1, len(ordered) - 1)
    return [ordered[i] for i in sorted(inner, key=lambda i: (abs(i - centre), i))]


def _arms(cells: Sequence[Cell]) -> Iterator[Step]:
    """Binding arms; places of the NUMA matrix are no alternatives and stay."""
    names = dict.fromkeys(c.arm.binding.name for c in cells if "cpu_node" not in c.case.params)
    others = [name for name in names if name not in _KEPT_LONGEST]
    for name in [*reversed(others), *(["local"] if "local" in names else [])]:
        yield f"arm {name}", _where(lambda c: c.arm.binding.name, name)


def _probes(cells: Sequence[Cell]) -> Iterator[Step]:
    for name in list(dict.fromkeys(c.case.probe for c in cells))[:0:-1]:
        yield f"probe {name}", _where(lambda c: c.case.probe, name)


def _workers(cells: Sequence[Cell]) -> Iterator[Step]:
    for cell in reversed(cells):
        yield "the rest", _where(lambda c: c.id, cell.id)


def _where(trait: Callable[[Cell], object], value: object) -> Callable[[Cell], bool]:
    return lambda cell: trait(cell) == value
