"""Collectives by size along each ring, what the wiring allows, and paths by class."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.probes.metrics import BANDWIDTH, BUSBW, LATENCY
from topobench.reading import MEASURED
from topobench.report import figures
from topobench.report.gangs import gang_facts, what
from topobench.report.page import plots, wiring
from topobench.report.page.parts import Figure, Head, Paragraph, Part, Table
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.stats import interval
from topobench.topology import Topology
from topobench.units import format_bytes, format_seconds

Cell = Mapping[str, Any]
Curve = dict[int, list[float]]
"""Bytes -> medians of processes."""

_MOST_GANGS = 6
_BINDINGS = ("none", "local")
"""The binding whose rings are shown: the first that was measured."""


def collectives(
    name: str, cells: Sequence[Cell], places: Places, topology: Topology | None
) -> Iterator[Part]:
    """Two figures a gang, the largest gangs first: bandwidth and latency by size; then tables."""
    gangs: dict[Any, list[Cell]] = defaultdict(list)
    for cell in cells:
        is_collective = any(r["metric"] == BUSBW.name for r in cell["readings"])
        if cell["status"] in MEASURED and is_collective and cell["params"].get("bytes"):
            fixed = what(cell), clean(cell["params"].get("backend") or "")
            gangs[tuple(cell["devices"]), cell["ranks"], fixed].append(cell)
    ordered = sorted(gangs.items(), key=lambda item: -item[0][1])[:_MOST_GANGS]
    for number, ((devices, ranks, fixed), found) in enumerate(ordered):
        words = _words(fixed, ranks, devices, places)
        found = _of_one_binding(found)
        ceilings = wiring.slowest(topology, devices) if topology and devices else []
        yield _bandwidths(f"{name}-busbw{number}", words, found, ceilings)
        yield _latencies(f"{name}-latency{number}", words, found)
    for facts in gang_facts(cells, places):
        yield Paragraph(f"{facts.title}. {facts.lead}")
        heads = [Head(" ".join(title.split()), number=number) for title, number in facts.heads]
        yield Table(heads, facts.rows, facts.title).limited()


def _of_one_binding(cells: Sequence[Cell]) -> list[Cell]:
    """Rings side by side; bindings have a figure of their own."""
    bindings = dict.fromkeys(c["binding"]["name"] for c in cells)
    chosen = next((b for b in _BINDINGS if b in bindings), next(iter(bindings)))
    return [c for c in cells if c["binding"]["name"] == chosen]


def _words(fixed: Sequence[str], ranks: int, devices: Sequence[str], places: Places) -> str:
    where = places.devices(devices) or f"{ranks} CPU processes"
    return " ".join(w for w in (*fixed, f"over {where}") if w)


def _bandwidths(
    name: str, words: str, cells: Sequence[Cell], ceilings: Sequence[tuple[float, str]]
) -> Figure:
    curves = {a: c for a, c in _curves(cells, BUSBW.name).items() if c}
    traces = [
        _trace(arm, curve, 1e-9, "GB/s", number)
        for number, (arm, curve) in enumerate(curves.items())
    ]
    shapes, labels = [], []
    for number, (value, text) in enumerate(ceilings):
        shape, label = plots.ceiling(value / 1e9, f"{text}: {value / 1e9:.0f} GB/s", number)
        shapes.append(shape)
        labels.append(label)
    lead = "Bus bandwidth of each arm by message size; bars are 95 % intervals over six or more "
    lead += "processes, else the range of the processes."
    if ceilings:
        lead += " Red dashes: what the wiring allows. Reductions inside a switch may pass it."
    return Figure(
        name=name,
        title=f"Bandwidth of {words}",
        lead=lead,
        traces=traces,
        layout={
            "height": 440,
            "xaxis": plots.size_axis(_sizes(curves), "message"),
            "yaxis": plots.axis("bus bandwidth, GB/s"),
            "shapes": shapes,
            "annotations": labels,
        },
        table=_table(curves, lambda v: f"{v / 1e9:.3f}", "GB/s"),
    )


def _latencies(name: str, words: str, cells: Sequence[Cell]) -> Figure:
    curves = {a: c for a, c in _curves(cells, LATENCY.name).items() if c}
    return Figure(
        name=name,
        title=f"Latency of {words}",
        lead="Time of one operation by message size, both axes logarithmic: flat where the fixed "
        "cost rules, rising where the bandwidth does.",
        traces=[
            _trace(arm, curve, 1e6, "us", number)
            for number, (arm, curve) in enumerate(curves.items())
        ],
        layout={
            "height": 400,
            "xaxis": plots.size_axis(_sizes(curves), "message"),
            "yaxis": plots.axis("latency, us", log=True),
        },
        table=_table(curves, format_seconds, ""),
    )


def _curves(cells: Sequence[Cell], metric: str) -> dict[str, Curve]:
    """Arm -> medians by size; whole results only, not each rank's."""
    found: dict[str, Curve] = {}
    for cell in cells:
        for reading in cell["readings"]:
            if reading["metric"] == metric and not reading["point"] and reading["median"]:
                arm = clean(cell["arm"])
                by_size = found.setdefault(arm, {})
                by_size.setdefault(cell["params"]["bytes"], []).append(reading["median"])
    return {arm: dict(sorted(curve.items())) for arm, curve in found.items()}


def _sizes(curves: Mapping[str, Curve]) -> list[int]:
    return sorted({s for curve in curves.values() for s in curve})


def _trace(arm: str, curve: Curve, factor: float, unit: str, number: int) -> dict[str, Any]:
    middles = [statistics.median(v) for v in curve.values()]
    ends = [interval(v) or (min(v), max(v)) for v in curve.values()]
    return plots.line(
        arm,
        [*curve],
        [round(m * factor, 5) for m in middles],
        shade=plots.colour(number),
        error=(
            [(high - m) * factor for (_, high), m in zip(ends, middles, strict=True)],
            [(m - low) * factor for (low, _), m in zip(ends, middles, strict=True)],
        ),
        text=[
            f"{format_bytes(s)}: {m * factor:.4g} {unit}, {len(v)} processes"
            for (s, v), m in zip(curve.items(), middles, strict=True)
        ],
    )


def _table(curves: Mapping[str, Curve], written: Any, unit: str) -> Table:
    heads = [Head("message", number=True)]
    heads += [Head(f"{arm} {unit}".strip(), number=True) for arm in curves]
    heads.append(Head("processes", number=True))
    rows = []
    for size in _sizes(curves):
        found = [curve.get(size) for curve in curves.values()]
        values = [figures.UNKNOWN if v is None else written(statistics.median(v)) for v in found]
        processes = min(len(v) for v in found if v)
        rows.append([format_bytes(size), *values, str(processes)])
    return Table(heads, rows)


def hop_classes(cells: Sequence[Cell], places: Places) -> Iterator[Part]:
    """
    Bandwidth by the class of the path, of pairs of GPUs.

    Args:
        cells: Of one host.
    """
    groups: dict[tuple[str, str, int, str], dict[tuple[str, ...], list[float]]] = {}
    for cell in cells:
        pair = tuple(cell["devices"])
        metric = BUSBW.name if cell["ranks"] > 1 else BANDWIDTH.name
        if cell["status"] not in MEASURED or len(pair) != 2 or not cell.get("path_class"):
            continue
        for reading in cell["readings"]:
            if reading["metric"] == metric and not reading["point"] and reading["median"]:
                size = int(cell["params"].get("bytes") or 0)
                key = clean(cell["path_class"]), clean(cell["probe"]), size, _case(cell)
                groups.setdefault(key, {}).setdefault(pair, []).append(reading["median"])
    rows = [_class_row(key, pairs, places) for key, pairs in sorted(groups.items())]
    if rows:
        yield Table(_CLASS_HEADS, rows, "Bandwidth by class of path").limited()


_CLASS_HEADS = (
    Head("path class"),
    Head("probe"),
    Head("case"),
    Head("pairs", number=True),
    Head("median GB/s", number=True),
    Head("slowest GB/s", number=True),
    Head("slowest pair"),
    Head("fastest GB/s", number=True),
)


def _class_row(
    key: tuple[str, str, int, str], pairs: Mapping[tuple[str, ...], list[float]], places: Places
) -> list[str]:
    path_class, probe, _, case = key
    medians = {pair: statistics.median(v) for pair, v in pairs.items()}
    worst = min(medians, key=lambda p: medians[p])
    middle, low, high = statistics.median(medians.values()), medians[worst], max(medians.values())
    return [
        *(path_class, probe, case),
        str(len(medians)),
        f"{middle / 1e9:.2f}",
        f"{low / 1e9:.2f}",
        places.pair(worst),
        f"{high / 1e9:.2f}",
    ]


def _case(cell: Cell) -> str:
    params = cell["params"]
    told = ("op", "ways", "p2p", "place", "mode", "pool", "order", "dtype")
    words = [clean(params[k]) for k in told if params.get(k)]
    size = params.get("bytes")
    words += [format_bytes(size)] if isinstance(size, int) else []
    return " ".join([*words, f"arm {clean(cell['arm'])}"])


def peer_matrix(name: str, cells: Sequence[Cell], places: Places) -> Iterator[Part]:
    """A matrix of GPU pairs for each kind and size of copy between them."""
    kinds: dict[Kind, dict[tuple[str, str], list[float]]] = {}
    for cell in cells:
        if cell["status"] not in MEASURED or cell["probe"] != "peer" or len(cell["devices"]) != 2:
            continue
        params = cell["params"]
        operation, ways, p2p = (clean(params.get(k, "")) for k in ("op", "ways", "p2p"))
        kind = operation, ways, p2p, int(params.get("bytes") or 0)
        first, second = (places.devices([d]) for d in cell["devices"])
        for reading in cell["readings"]:
            if reading["metric"] == BANDWIDTH.name and not reading["point"] and reading["median"]:
                pool = kinds.setdefault(kind, {})
                pool.setdefault((first, second), []).append(reading["median"] / 1e9)
    several = len({size for *_, size in kinds}) > 1
    for number, (kind, pairs) in enumerate(kinds.items()):
        size = f", {format_bytes(kind[-1])}" if several else ""
        yield _peer_figure(f"{name}-peer{number}", kind, size, pairs)


Kind = tuple[str, str, str, int]
"""Of copies between GPUs: operation, ways, peer access, bytes."""
_WAYS = {"one": "one way", "both": "both ways", "all": "all at once"}


def _peer_figure(
    name: str, kind: Kind, size: str, pairs: Mapping[tuple[str, str], list[float]]
) -> Figure:
    operation, ways, p2p, _ = kind
    if ways != "one":  # measured once for both directions
        pairs = {(b, a): found for (a, b), found in pairs.items()} | dict(pairs)
    gpus = sorted({g for pair in pairs for g in pair}, key=lambda g: (len(g), g))
    values = [
        [statistics.median(found) if (found := pairs.get((a, b))) else None for b in gpus]
        for a in gpus
    ]
    text = [["" if v is None else f"{v:.0f}" for v in row] for row in values]
    whose = "from the GPU of the row to that of the column, GB/s."
    if ways != "one":
        whose = "between the GPUs of row and column, both directions together, GB/s."
    return Figure(
        name=name,
        title=f"GPU to GPU: {operation}, {_WAYS.get(ways, ways)}, P2P {p2p}{size}",
        lead=f"Bandwidth {whose} One red row or column is a slow GPU, one red field a slow path.",
        traces=[plots.heat(gpus, gpus, values, text=text, unit="GB/s")],
        layout=plots.matrix_layout(len(gpus), len(gpus)),
        table=Table(
            [Head("from"), *(Head(g, number=True) for g in gpus)],
            [
                [g, *("-" if v is None else f"{v:.2f}" for v in row)]
                for g, row in zip(gpus, values, strict=True)
            ],
        ),
    )
