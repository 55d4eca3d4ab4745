"""
What the sizes of copies say together: t = a + S / B for each GPU, direction and arm.

Fits are made when a report is drawn, from the stored medians: nothing derived is stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType

from topobench.fit import (
    MIN_SIZES,
    PEAK_SHARE,
    AlphaBeta,
    combine,
    fit_alpha_beta,
    smallest_at_peak,
)
from topobench.probes.metrics import BANDWIDTH, PER_CALL_BANDWIDTH
from topobench.reading import MEASURED, CiLevel
from topobench.report.figures import UNKNOWN, half_width
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet
from topobench.units import format_bytes, format_seconds

PROBE = "host_to_device"
MANY_ROWS = 40
_METRICS = (BANDWIDTH.name, PER_CALL_BANDWIDTH.name)
_COLUMNS = (
    Column("GPU"),
    Column("at\nonce"),
    Column("direction"),
    Column("memory"),
    Column("arm"),
    Column("fixed\ncost", number=True),
    Column("95 %\ninterval", number=True),
    Column("bandwidth\nGB/s", number=True),
    Column("95 %\ninterval", number=True),
    Column("half\nreached at", number=True),
    Column(f"{PEAK_SHARE:.0%} of the\npeak from", number=True),
)

Sizes = dict[int, float]
"""Bytes of a chunk -> bandwidth of one process."""


@dataclass(frozen=True, slots=True)
class Series:
    """One GPU under one arm in one direction; every line of the table is one."""

    gpu: str
    at_once: str
    direction: str
    memory: str
    arm: str

    @property
    def ways(self) -> int:
        """Chunks that one copy moves."""
        return 2 if self.direction == "both" else 1


@dataclass(frozen=True, slots=True)
class Fitted:
    """The line of a series and the smallest chunk that nearly reaches its peak."""

    series: Series
    line: AlphaBeta
    near_peak: float


def copy_fits(cells: Sequence[Mapping[str, Any]], places: Places) -> Iterator[RenderableType]:
    """
    A table of the lines of a sweep's copies; nothing where too few sizes were measured.

    Args:
        cells: Of the probe ``host_to_device``.
    """
    found = [f for s, p in _series(cells, places).items() if (f := _fitted(s, p))]
    if not found:
        return
    level = found[0].line.level
    of = "between processes" if level is CiLevel.BETWEEN else "of the sizes about the line"
    text = (
        "time of a copy = fixed cost + size / bandwidth, fitted over the sizes (queued copies; "
        f"pageable ones by the call). 95 % intervals {of}. A bandwidth of both ways counts both."
    )
    if len(found) > MANY_ROWS:
        found = _slowest(found)
        text += " Of each kind, the slowest GPU; query h2d-by-chunk has them all."
    yield Prose(text)
    yield Sheet(_COLUMNS, [_row(f) for f in found])


def _series(
    cells: Sequence[Mapping[str, Any]], places: Places
) -> dict[Series, dict[tuple[int, int], Sizes]]:
    """Bandwidths by size, of every process of every series; queued where there is a choice."""
    found: dict[tuple[Series, str], dict[tuple[int, int], Sizes]] = {}
    for cell in cells:
        size = cell["params"].get("bytes")
        if cell["status"] not in MEASURED or not size:
            continue
        process = cell["process_no"], cell["block"]
        for reading in cell["readings"]:
            device = reading["point"].get("device")
            single = len(cell["devices"]) == 1
            if reading["metric"] not in _METRICS or not (device or single) or not reading["median"]:
                continue
            key = _key(cell, device or cell["devices"][0], places), reading["metric"]
            sizes = found.setdefault(key, defaultdict(dict))[process]
            sizes[size] = reading["median"]
    queued, per_call = ({s: p for (s, m), p in found.items() if m == name} for name in _METRICS)
    return per_call | queued


def _key(cell: Mapping[str, Any], device: str, places: Places) -> Series:
    params = cell["params"]
    return Series(
        gpu=places.unit({**cell, "devices": [device]}),
        at_once=clean(params.get("at_once", "one")),
        direction=clean(params["direction"]),
        memory=clean(params["memory"]),
        arm=clean(cell["arm"]),
    )


def _fitted(series: Series, processes: Mapping[tuple[int, int], Sizes]) -> Fitted | None:
    lines, chunks = [], []
    for sizes in processes.values():
        if len(sizes) < MIN_SIZES:
            continue
        seconds = [series.ways * size / rate for size, rate in sizes.items()]
        try:
            lines.append(fit_alpha_beta([*sizes], seconds))
        except ValueError:  # times that do not grow with the size have no line
            continue
        chunks.append(smallest_at_peak([*sizes], [*sizes.values()]))
    if not lines:
        return None
    line = lines[0] if len(lines) == 1 else combine(lines)
    return Fitted(series, line, sorted(chunks)[len(chunks) // 2])


def _slowest(found: Sequence[Fitted]) -> list[Fitted]:
    kinds: dict[tuple[str, ...], list[Fitted]] = defaultdict(list)
    for one in found:
        s = one.series
        kinds[s.at_once, s.direction, s.memory, s.arm].append(one)
    return [min(k, key=lambda f: f.line.beta_bytes_per_second.value) for k in kinds.values()]


def _row(fitted: Fitted) -> list[str]:
    line, series = fitted.line, fitted.series
    alpha, beta, half = line.alpha_seconds, line.beta_bytes_per_second, line.n_half_bytes
    return [
        series.gpu,
        series.at_once,
        series.direction,
        series.memory,
        series.arm,
        format_seconds(alpha.value) if alpha.value > 0 else UNKNOWN,
        half_width(alpha),
        f"{series.ways * beta.value / 1e9:.2f}",
        half_width(beta),
        format_bytes(half.value) if half else UNKNOWN,
        format_bytes(fitted.near_peak),
    ]
