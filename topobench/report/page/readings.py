"""The numbers to look at first, and every reading in one table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.fits import ALL_REDUCE
from topobench.probes.metrics import BUSBW
from topobench.reading import MEASURED
from topobench.report import figures
from topobench.report.notes import environments
from topobench.report.page.parts import Head, Part, Table
from topobench.report.records import ARM, UNIT, Places, Record, records
from topobench.rings import AUTO
from topobench.units import format_bytes, format_percent

Cell = Mapping[str, Any]

_MOST_ROWS = 2000
_MANY_ROWS = 40
_GLANCES: tuple[tuple[str, str, Mapping[str, str], str], ...] = (
    ("host_to_device", "bandwidth_bytes_per_second", {"direction": "h2d"}, "host to device, peak"),
    (ALL_REDUCE, "busbw_bytes_per_second", {}, "all-reduce bus bandwidth"),
    ("gemm", "flop_per_second", {}, "matrix products, best type"),
    ("device_memory", "bandwidth_bytes_per_second", {}, "GPU memory"),
    ("host_memory", "bandwidth_bytes_per_second", {}, "host memory, best node"),
    ("kernel_launch", "latency_seconds", {}, "kernel launch, best mode"),
    ("prefill", "tokens_per_second", {}, "prefill"),
)
"""Probe, metric, parameters, and what to call it."""


def glance(cells: Sequence[Cell], places: Places) -> list[dict[str, str]]:
    """The best figure of each kind: what, value, and where it stands."""
    found = []
    for probe, metric, params, label in _GLANCES:
        own = [
            c
            for c in cells
            if c["probe"] == probe and all(c["params"].get(k) == v for k, v in params.items())
        ]
        if probe == ALL_REDUCE:
            own = _without_parts(own)
        kept = _each_gpu_or_whole(own, places, metric)
        if kept:
            found.append(_card(kept, metric, label))
    return found


def _without_parts(cells: Sequence[Cell]) -> list[Cell]:
    """Without gangs of some of the GPUs of a host's: a near pair says nothing of the host."""
    gangs = {frozenset(c["devices"]) for c in cells if len({*(c.get("hosts") or ())}) < 2}
    return [c for c in cells if not any(set() < {*c["devices"]} < gang for gang in gangs)]


def _each_gpu_or_whole(cells: Sequence[Cell], places: Places, metric: str) -> list[Record]:
    """Figures of single GPUs where there are any: a sum over GPUs is no peak of one."""
    parts = [r for r in records(cells, places, each_gpu=True) if r.metric == metric]
    alone = [r for r in records(cells, places) if r.metric == metric]
    single = [r for r in alone if r.dimensions.get("at_once") != "all"]
    return [*parts, *single] or alone


def _card(kept: Sequence[Record], metric: str, label: str) -> dict[str, str]:
    low_is_good = metric.endswith("_seconds")
    pick = min if low_is_good else max
    usual = [r for r in kept if _is_usual(str(r.dimensions.get(ARM) or ""))]
    best = pick(usual or kept, key=lambda r: r.figure.median)
    alike = [r for r in kept if _rest(r) == _rest(best)]
    middle = statistics.median(r.figure.median for r in alike)
    note = _where(best)
    if len(alike) > 1:
        worst = (max if low_is_good else min)(r.figure.median for r in alike)
        note += f"; {len(alike)} places, worst {figures.quantity(metric, worst)}"
    return {"what": label, "value": figures.quantity(metric, middle), "note": note}


def _is_usual(arm: str) -> bool:
    """Whether users get it without a ring or an environment that was tried beside it."""
    return "+" not in arm and arm.partition("/")[2] in ("", AUTO)


def _rest(record: Record) -> tuple[Any, ...]:
    """Everything but where it was measured."""
    return tuple((k, v) for k, v in record.dimensions.items() if k != UNIT)


def _where(record: Record) -> str:
    at = record.dimensions
    size = at.get("bytes")
    words = [format_bytes(size)] if isinstance(size, int) else []
    words += [f"{at['sequence']} tokens"] if at.get("sequence") else []
    words += [str(at[k]) for k in ("dtype", "op", "mode") if at.get(k)]
    ranks = at.get("tensor_parallel") or 1
    words += [f"{ranks} GPUs"] if ranks != 1 else []
    words += [f"{at['ranks']} ranks"] if record.metric == BUSBW.name else []
    return ", ".join([*words, f"arm {at[ARM]}"] if at.get(ARM) else words)


def every_reading(cells: Sequence[Cell], places: Places) -> Iterator[Part]:
    """One row a figure, equal processes pooled; nothing where nothing was measured."""
    rows: list[list[str]] = []
    for probe in dict.fromkeys(c["probe"] for c in cells):
        own = [c for c in cells if c["probe"] == probe]
        set_by = environments([c for c in own if c["status"] in MEASURED]) or {}
        for each_gpu in (False, True):
            rows += [_row(probe, r, set_by) for r in records(own, places, each_gpu=each_gpu)]
    if rows:
        yield Table(_HEADS, rows, folded=len(rows) > _MANY_ROWS).limited(_MOST_ROWS)


_HEADS = (
    Head("probe"),
    Head("case"),
    Head("on"),
    Head("arm"),
    Head("metric"),
    Head("median", number=True),
    Head("spread", number=True),
    Head("of"),
    Head("samples", number=True),
    Head("processes", number=True),
)


def _row(probe: str, record: Record, set_by: Mapping[str, str]) -> list[str]:
    at, figure = record.dimensions, record.figure
    case = [
        f"{figures.label(k)} {figures.quantity(k, v)}"
        for k, v in at.items()
        if k not in (ARM, UNIT) and v is not None
    ]
    if settings := set_by.get(str(at.get(ARM))):
        case.append(settings)
    return [
        probe,
        ", ".join(case),
        str(at.get(UNIT) or ""),
        str(at.get(ARM) or ""),
        figures.label(record.metric),
        figures.quantity(record.metric, figure.median),
        figures.UNKNOWN if figure.spread is None else f"+/-{format_percent(figure.spread)}",
        figure.basis.value,
        str(figure.n),
        str(figure.processes),
    ]
