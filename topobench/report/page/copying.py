"""Copies between host and device by chunk, with the line fitted to them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.fit import MIN_SIZES, AlphaBeta, fit_alpha_beta
from topobench.probes.metrics import BANDWIDTH, PER_CALL_BANDWIDTH
from topobench.reading import MEASURED
from topobench.report import copy_fits
from topobench.report.page import plots
from topobench.report.page.parts import Figure, Head, Part, Table, from_rich
from topobench.report.records import Places
from topobench.units import format_bytes

Curves = Mapping[str, Mapping[int, float]]
"""Name of a GPU -> bytes of a chunk -> median, in GB/s."""

_DIRECTIONS = {"h2d": "host to device", "d2h": "device to host", "both": "both ways at once"}
_ARMS = ("local", "none")
"""The arm that curves are shown of, where several were measured alike."""


def copying(name: str, cells: Sequence[Mapping[str, Any]], places: Places) -> Iterator[Part]:
    """
    A figure a direction, and the table of fits.

    Args:
        cells: Of ``host_to_device`` on one host.
    """
    for direction, words in _DIRECTIONS.items():
        chosen = _chosen([c for c in cells if c["params"].get("direction") == direction])
        ways = 2 if direction == "both" else 1
        if chosen and (found := _figure(f"{name}-{direction}", words, ways, chosen, places)):
            yield found
    yield from from_rich(copy_fits.copy_fits(cells, places))


def _chosen(cells: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """
    Measured cells of pinned memory, of one arm, one GPU at a time or all at once.

    Of these, the set with most sizes on most GPUs; of equal ones the first of the arms.
    """
    sets: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
    for cell in cells:
        if cell["status"] in MEASURED and cell["params"].get("memory") != "pageable":
            key = cell["arm"], cell["params"].get("at_once") == "all"
            sets.setdefault(key, []).append(cell)

    def rank(key: tuple[str, bool]) -> tuple[int, bool, int]:
        arm, together = key
        points = {
            (r["point"].get("device"), *c["devices"], c["params"].get("bytes"))
            for c in sets[key]
            for r in c["readings"]
        }
        return len(points), not together, -(_ARMS.index(arm) if arm in _ARMS else len(_ARMS))

    return sets[max(sets, key=rank)] if sets else []


def _figure(
    name: str, words: str, ways: int, cells: Sequence[Mapping[str, Any]], places: Places
) -> Figure | None:
    queued = _curves(cells, BANDWIDTH.name, places)
    per_call = _curves(cells, PER_CALL_BANDWIDTH.name, places)
    gpus = list(dict.fromkeys([*queued, *per_call]))
    if not gpus:
        return None
    traces = []
    for number, gpu in enumerate(gpus):
        for curves, dash, kind in ((queued, "solid", "queued"), (per_call, "dot", "per call")):
            if points := sorted(curves.get(gpu, {}).items()):
                traces.append(_trace(f"{gpu} {kind}", points, plots.colour(number), dash))
    fitted = _fit(queued, ways)
    if fitted is not None:
        traces.append(_fit_trace(fitted, ways))
    sizes = sorted({s for curve in (*queued.values(), *per_call.values()) for s in curve})
    arm, at_once = cells[0]["arm"], cells[0]["params"].get("at_once", "one")
    return Figure(
        name=name,
        title=f"Copies {words} by chunk",
        lead=_lead(arm, at_once, fitted, ways),
        traces=traces,
        layout={
            "height": 440,
            "xaxis": plots.size_axis(sizes, "chunk"),
            "yaxis": plots.axis("GB/s"),
        },
        table=_table(gpus, sizes, queued, per_call),
    )


def _lead(arm: str, at_once: str, fitted: AlphaBeta | None, ways: int) -> str:
    together = "all GPUs at once" if at_once == "all" else "one GPU at a time"
    text = (
        f"Pinned memory, arm {arm}, {together}. Solid: queued, the device is the limit. Dotted: "
        "per call, each copy waited for, what a loader sees."
    )
    if fitted is None:
        return f"{text} No line was fitted: that takes {MIN_SIZES} sizes and times that grow."
    alpha = fitted.alpha_seconds.value
    cost = f"{alpha * 1e6:.2f} us" if alpha > 0 else "no fixed cost that can be seen"
    return (
        f"{text} Dashed grey: the line t = a + S / B through the queued medians over the GPUs, "
        f"a = {cost}, B = {ways * fitted.beta_bytes_per_second.value / 1e9:.1f} GB/s."
    )


def _curves(cells: Sequence[Mapping[str, Any]], metric: str, places: Places) -> Curves:
    """Medians over processes."""
    pools: dict[str, dict[int, list[float]]] = {}
    for cell in cells:
        size = cell["params"].get("bytes")
        if not size:
            continue
        for reading in cell["readings"]:
            device = reading["point"].get("device") or (
                cell["devices"][0] if len(cell["devices"]) == 1 else None
            )
            if reading["metric"] != metric or not reading["median"] or device is None:
                continue
            gpu = places.devices([device])
            pools.setdefault(gpu, {}).setdefault(size, []).append(reading["median"] / 1e9)
    order = sorted(pools, key=lambda g: (len(g), g))
    return {g: {s: statistics.median(v) for s, v in pools[g].items()} for g in order}


def _trace(name: str, points: Sequence[tuple[int, float]], shade: str, dash: str) -> dict[str, Any]:
    return plots.line(
        name,
        [s for s, _ in points],
        [round(v, 4) for _, v in points],
        shade=shade,
        dash=dash,
        text=[f"{format_bytes(s)}: {v:.2f} GB/s" for s, v in points],
    )


def _fit(queued: Curves, ways: int) -> AlphaBeta | None:
    """
    The line through the medians over the GPUs with all sizes, or None.

    A copy moves ``ways`` chunks.
    """
    sizes = {size for curve in queued.values() for size in curve}
    pooled: dict[int, list[float]] = {}
    for curve in queued.values():
        for size, rate in curve.items() if curve.keys() == sizes else ():
            pooled.setdefault(size, []).append(rate * 1e9)
    if len(pooled) < MIN_SIZES:
        return None
    try:
        return fit_alpha_beta(
            [*pooled],
            [ways * size / statistics.median(rates) for size, rates in pooled.items()],
        )
    except ValueError:
        return None


def _fit_trace(fitted: AlphaBeta, ways: int) -> dict[str, Any]:
    low, high = fitted.smallest_bytes, fitted.largest_bytes
    sizes = [low * (high / low) ** (n / 60) for n in range(61)]
    sizes[-1] = high
    rates = [ways * s / t / 1e9 if (t := fitted.seconds(s)) > 0 else None for s in sizes]
    return plots.line("fit a + S / B", sizes, rates, shade=plots.GREY, dash="dash", markers=False)


def _table(gpus: Sequence[str], sizes: Sequence[int], queued: Curves, per_call: Curves) -> Table:
    heads = [Head("chunk", number=True)]
    for gpu in gpus:
        heads += [
            Head(f"{gpu} queued GB/s", number=True),
            Head(f"{gpu} per call GB/s", number=True),
        ]
    rows = []
    for size in sizes:
        row = [format_bytes(size)]
        for gpu in gpus:
            for curves in (queued, per_call):
                value = curves.get(gpu, {}).get(size)
                row.append("-" if value is None else f"{value:.2f}")
        rows.append(row)
    return Table(heads, rows)
