"""What the GPUs and the host's memory do: matrix products, memory, roofline, prefill."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.device_figures import device_figures
from topobench.probes.metrics import BANDWIDTH, FLOP, LATENCY
from topobench.reading import MEASURED, Scalar
from topobench.report import figures
from topobench.report.page import plots
from topobench.report.page.parts import Figure, Head, Part, Table
from topobench.report.records import CPU_NODE, MEMORY_NODE, Places, records
from topobench.report.safe import clean
from topobench.roofline import roofs as roofs_of
from topobench.roofline import work_of
from topobench.units import format_bytes

Cell = Mapping[str, Any]


def memory_matrix(name: str, cells: Sequence[Cell], places: Places) -> Iterator[Part]:
    """Host memory, NUMA node against NUMA node; a figure for each operation."""
    found: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for record in records(cells, places):
        at = record.dimensions
        if CPU_NODE in at and record.metric in (BANDWIDTH.name, LATENCY.name):
            ends = f"CPUs {at[CPU_NODE]}", str(at[MEMORY_NODE])
            size = at.get("bytes")
            words = clean(at.get("op") or at.get("kernel") or "")
            words += f", {format_bytes(size)}" if isinstance(size, int) else ""
            found.setdefault((words, record.metric), {})[ends] = record.figure.median
    for number, ((op, metric), fields) in enumerate(found.items()):
        yield _memory_figure(f"{name}-memory{number}", op, metric, fields)


def _memory_figure(
    name: str, op: str, metric: str, fields: Mapping[tuple[str, str], float]
) -> Figure:
    slow_is_high = metric == LATENCY.name
    factor, unit = (1e9, "ns") if slow_is_high else (1e-9, "GB/s")
    rows, columns = (sorted({f[n] for f in fields}) for n in (0, 1))
    values = [[fields[r, c] * factor if (r, c) in fields else None for c in columns] for r in rows]
    text = [["" if v is None else f"{v:.1f}" for v in row] for row in values]
    trace = plots.heat(rows, columns, values, text=text, unit=unit, high_is_slow=slow_is_high)
    return Figure(
        name=name,
        title=f"Host memory: {op}",
        lead="CPUs of the NUMA node of the row on memory of the node of the column, "
        f"{'latency in ns' if slow_is_high else 'bandwidth in GB/s'}. Off the diagonal it "
        "crosses between nodes.",
        traces=[trace],
        layout=plots.matrix_layout(len(rows), len(columns)),
        table=Table(
            [Head(""), *(Head(f"{c} {unit}", number=True) for c in columns)],
            [[r, *row] for r, row in zip(rows, text, strict=True)],
        ),
    )


def products(name: str, cells: Sequence[Cell], places: Places) -> Iterator[Part]:
    """Matrix products by type, a bar for each GPU."""
    found = _of_gpus(cells, "gemm", FLOP.name, "dtype", places)
    if found:
        yield _bars(
            f"{name}-gemm",
            "Matrix products",
            "Arithmetic rate of each GPU by type, TFLOP/s (1e12; int8 counted alike). The best "
            "burst of a type is its roof in the roofline.",
            found,
            1e-12,
            "TFLOP/s",
        )
    memory = _of_gpus(cells, "device_memory", BANDWIDTH.name, "op", places)
    if memory:
        yield _bars(
            f"{name}-hbm",
            "GPU memory",
            "Bandwidth of each GPU's own memory by operation, GB/s.",
            memory,
            1e-9,
            "GB/s",
        )


Groups = Mapping[str, Mapping[str, float]]
"""Name of a bar's group -> GPU -> median."""


def _of_gpus(
    cells: Sequence[Cell], probe: str, metric: str, group: str, places: Places
) -> dict[str, dict[str, float]]:
    """Of each GPU; parameters beside the group are told where they vary."""
    own = [c for c in cells if c["status"] in MEASURED and c["probe"] == probe]
    names = dict.fromkeys(n for c in own for n in c["params"])
    varying = [n for n in names if len({c["params"].get(n) for c in own}) > 1 and n != group]
    pools: dict[str, dict[str, list[float]]] = {}
    for cell in own:
        words = [clean(cell["params"].get(group, ""))]
        words += [_parameter(n, v) for n in varying if (v := cell["params"].get(n)) is not None]
        kind = " ".join(words)
        for reading in cell["readings"]:
            alone = cell["devices"][0] if len(cell["devices"]) == 1 else None
            device = reading["point"].get("device", alone)
            if reading["metric"] == metric and reading["median"] and device:
                gpu = places.devices([device])
                pools.setdefault(kind, {}).setdefault(gpu, []).append(reading["median"])
    return {k: {g: statistics.median(v) for g, v in gpus.items()} for k, gpus in pools.items()}


def _parameter(name: str, value: Scalar) -> str:
    """``burst``, ``8192``, ``at once all``: what is no word by itself with its name."""
    if name in ("mode", "size"):
        return clean(value)
    return f"{figures.label(name)} {figures.quantity(name, value)}"


def _bars(name: str, title: str, lead: str, found: Groups, factor: float, unit: str) -> Figure:
    gpus = sorted({g for values in found.values() for g in values}, key=lambda g: (len(g), g))
    kinds = list(found)
    traces = [
        plots.bars(
            gpu,
            kinds,
            [round(found[k][gpu] * factor, 3) if gpu in found[k] else None for k in kinds],
            shade=plots.colour(number),
        )
        for number, gpu in enumerate(gpus)
    ]
    rows = [
        [kind, *(f"{found[kind][g] * factor:.2f}" if g in found[kind] else "-" for g in gpus)]
        for kind in kinds
    ]
    return Figure(
        name=name,
        title=title,
        lead=lead,
        traces=traces,
        layout={
            "height": 380,
            "barmode": "group",
            "xaxis": {"type": "category"},
            "yaxis": plots.axis(unit),
        },
        table=Table([Head("kind"), *(Head(f"{g} {unit}", number=True) for g in gpus)], rows),
    )


def roofline(name: str, cells: Sequence[Cell], places: Places) -> Iterator[Part]:
    """
    The roofs that matrix products and GPU memory give, and what was measured below them.

    Nothing without both: a roof is never taken from a data sheet.
    """
    measured = [*roofs_of(device_figures(cells)).values()]
    types = dict.fromkeys(dtype for roof in measured for dtype in roof.flop)
    roofs = {
        dtype: statistics.median(r.flop[dtype] for r in measured if dtype in r.flop)
        for dtype in types
    }
    slopes = [roof.memory for roof in measured if roof.memory is not None]
    if not roofs or not slopes:
        return
    slope = statistics.median(slopes)
    lowest, highest = 1.0, max(1e4, *(4 * roof / slope for roof in roofs.values()))
    traces = []
    for number, (dtype, roof) in enumerate(roofs.items()):
        ridge = roof / slope
        traces.append(
            plots.line(
                dtype,
                [lowest, ridge, highest],
                [lowest * slope / 1e12, roof / 1e12, roof / 1e12],
                shade=plots.colour(number),
                text=["memory is the limit", f"ridge: {ridge:.0f} FLOP per byte", "the roof"],
            )
        )
    traces += _prefill_points(cells, len(roofs))
    yield Figure(
        name=f"{name}-roofline",
        title="Roofline",
        lead="Both limits measured on these GPUs: GPU memory "
        f"({slope / 1e9:.0f} GB/s, the slope) and matrix products (the roofs). Work to the left of "
        "a ridge is limited by memory, to the right by arithmetic.",
        traces=traces,
        layout={
            "height": 440,
            "xaxis": plots.axis("arithmetic intensity, FLOP per byte", log=True),
            "yaxis": plots.axis("TFLOP/s", log=True),
        },
        table=Table(
            [Head("type"), Head("roof TFLOP/s", number=True), Head("ridge FLOP/B", number=True)],
            [[d, f"{roof / 1e12:.1f}", f"{roof / slope:.0f}"] for d, roof in roofs.items()],
        ),
    )


def _prefill_points(cells: Sequence[Cell], first: int) -> list[dict[str, Any]]:
    """
    Prefill by the arithmetic that its bytes of memory are known to come with.

    A model that several GPUs share also waits for their all-reduces, which no roof tells.
    """
    points: dict[str, list[tuple[float, float, str]]] = {}
    for cell in cells:
        shared = (cell["params"].get("tensor_parallel") or 1) > 1
        if cell["status"] not in MEASURED or cell["probe"] != "prefill" or shared:
            continue
        work = work_of("prefill", cell["params"])
        values = {r["metric"]: r["median"] for r in cell["readings"] if not r["point"]}
        if work and work.memory_bytes and values.get(FLOP.name):
            kind = f"prefill {clean(cell['params'].get('dtype', ''))}"
            text = ", ".join(f"{k} {clean(v)}" for k, v in cell["params"].items())
            intensity = work.flop / work.memory_bytes
            each = values[FLOP.name] / max(1, len(cell["devices"]))  # the roof is one GPU's
            points.setdefault(kind, []).append((intensity, each / 1e12, text))
    return [
        {
            **plots.line(
                kind,
                [p[0] for p in found],
                [p[1] for p in found],
                shade=plots.colour(first + number),
                text=[p[2] for p in found],
            ),
            "mode": "markers",
        }
        for number, (kind, found) in enumerate(points.items())
    ]
