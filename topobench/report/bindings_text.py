"""Bindings of prefill side by side: what processes without one, on one node and spread took."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from topobench.effects import Bench, Pairs, bare_name, benches
from topobench.report import figures
from topobench.report.figures import UNKNOWN
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet
from topobench.units import count, format_percent, format_seconds

Cell = Mapping[str, Any]

MOST_ROWS = 40
COLUMNS = (
    Column("case"),
    Column("binding"),
    Column("pro-\ncesses", number=True),
    Column("mean", number=True),
    Column("std", number=True),
    Column("median", number=True),
    Column("time by\nnone's", number=True),
    Column("variance\nby none's", number=True),
)
MEANING = (
    "Bindings side by side, over the processes of this sweep: mean and standard deviation, and "
    "median and variance by those of no binding. What of it is more than chance is told with the "
    "arms."
)
_METRICS = ("prefill_device_seconds", "prefill_wall_seconds")
_NONE = "none"


def bindings_section(cells: Sequence[Cell], places: Places) -> Iterator[RenderableType]:
    """A table of prefill under several bindings; nothing where there is one."""
    rows = list(binding_rows(cells, places))
    if not rows:
        return
    yield Prose(MEANING)
    yield Sheet(COLUMNS, rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        yield Prose(f"{count(len(rows) - MOST_ROWS, 'row')} more; query bindings has them all")


def binding_rows(cells: Sequence[Cell], places: Places) -> Iterator[Sequence[str]]:
    """A row of :data:`COLUMNS` for each case, metric and binding, no binding first."""
    own = [c for c in cells if c["probe"] == "prefill" and c.get("ring") in (None, "auto")]
    for bench in benches(own):
        if bench.metric in _METRICS and not _is_part(bench):
            named = {bare_name(arm): pairs for arm, pairs in bench.arms.items()}
            bindings = {name: pairs for name, pairs in named.items() if "+" not in name}
            if len(bindings) > 1:
                yield from _rows(_case(bench, places), bindings)


def _rows(case: str, bindings: Mapping[str, Pairs]) -> Iterator[Sequence[str]]:
    """Of each binding; workers that chose different kernels of attention stand apart."""
    kernels = sorted({kernel for pairs in bindings.values() for _, _, kernel in pairs})
    for kernel in kernels:
        own = {
            name: [value for place, value in pairs.items() if place[2] == kernel]
            for name, pairs in bindings.items()
        }
        for name in sorted(own, key=lambda n: n != _NONE):
            if own[name]:
                told = f"{name}, {kernel or 'no kernel'}" if len(kernels) > 1 else name
                free = None if name == _NONE else own.get(_NONE)
                yield _row(case, told, own[name], free or None)


def _is_part(bench: Bench) -> bool:
    """Of one GPU among those that were measured at once."""
    return bench.ranks > 1 and len(bench.devices) == 1


def _case(bench: Bench, places: Places) -> str:
    where = places.unit({"host": bench.host, "devices": list(bench.devices), "ranks": bench.ranks})
    words = bench.words.removeprefix(f"{bench.probe} ")
    return ", ".join(clean(w) for w in (words, where, figures.label(bench.metric)) if w)


def _row(
    case: str, name: str, values: Sequence[float], other: Sequence[float] | None
) -> Sequence[str]:
    spread = _variance(values)
    before = None if other is None else _variance(other)
    return [
        case,
        clean(name),
        str(len(values)),
        format_seconds(statistics.fmean(values)),
        UNKNOWN if spread is None else format_seconds(spread**0.5),
        format_seconds(statistics.median(values)),
        UNKNOWN
        if other is None
        else format_percent(statistics.median(values) / statistics.median(other)),
        UNKNOWN if spread is None or not before else f"{spread / before:.2f}x",
    ]


def _variance(values: Sequence[float]) -> float | None:
    return statistics.variance(values) if len(values) > 1 else None
