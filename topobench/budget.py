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
from topobench.units import format_bytes, format_limit, format_span

LONGEST_CELL_SECONDS = 24 * 3600.0
"""Of one cell, unless a budget says how long a sweep may take."""
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
        text = f"left out to fit {format_limit(budget_seconds)}: {name}"
        reason = Reason(ReasonCode.OVER_BUDGET, text)
        kept = [
            dataclasses.replace(c, status=Status.SKIPPED, reason=reason)
            if c.status is Status.PLANNED and leaves_out(c)
            else c
            for c in kept
        ]
    return kept


def without_too_long(cells: list[Cell], budget_seconds: float | None) -> list[Cell]:
    """
    The same cells, those that take too long by themselves turned into ``skipped: over_budget``.

    They would otherwise push out all the others, or hold a host for days by a slip of a size.

    Args:
        budget_seconds: None for :data:`LONGEST_CELL_SECONDS`.
    """
    limit = LONGEST_CELL_SECONDS if budget_seconds is None else budget_seconds
    if all(c.estimated_seconds <= limit for c in cells):
        return cells
    return [
        _too_long(c, limit, budget_seconds) if c.estimated_seconds > limit else c for c in cells
    ]


def _too_long(cell: Cell, limit: float, budget_seconds: float | None) -> Cell:
    if cell.status is not Status.PLANNED:
        return cell
    text = f"left out to fit {format_limit(limit)}"
    if budget_seconds is None:
        text += ", the longest a cell may take without a budget"
    took = format_span(cell.estimated_seconds)
    text += f"; it takes {took}: {cell.case.probe}, too long by itself"
    return dataclasses.replace(
        cell, status=Status.SKIPPED, reason=Reason(ReasonCode.OVER_BUDGET, text)
    )


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
