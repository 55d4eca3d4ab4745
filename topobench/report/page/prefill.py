"""Prefill by sequence length, with the knee where there is one."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench.knee import MIN_POINTS, Knee, Side, find_knee
from topobench.reading import MEASURED, CiLevel
from topobench.report.page import plots
from topobench.report.page.parts import Figure, Head, Part, Table
from topobench.report.safe import clean

Cell = Mapping[str, Any]
Curve = dict[int, list[float]]
"""Tokens of the prompt -> medians of processes, tokens per second."""

_RATE = "tokens_per_second"
_LENGTHS = ("sequence", "seq_len")
"""What the length of the prompt is called."""
_MOST_CURVES = 10


def prefill(name: str, cells: Sequence[Cell]) -> Iterator[Part]:
    """A figure of tokens per second against the length of the prompt."""
    curves = _curves(cells)
    if not curves:
        return
    shown = dict(sorted(curves.items(), key=lambda i: -len(i[1]))[:_MOST_CURVES])
    knees = {kind: _knee(curve) for kind, curve in shown.items()}
    lengths = sorted({n for curve in shown.values() for n in curve})
    yield Figure(
        name=f"{name}-prefill",
        title="Prefill by sequence length",
        lead="Prompt tokens per second of device time, batch and precision as named. A diamond "
        "is the knee: beyond it, longer prompts gain little." + _left(curves, shown),
        traces=[t for n, (kind, curve) in enumerate(shown.items())
                for t in _traces(kind, curve, knees[kind], n)],
        layout={
            "height": 440,
            "xaxis": plots.count_axis(lengths, "tokens of the prompt"),
            "yaxis": plots.axis("tokens per second"),
        },
        table=_table(shown, lengths, knees),
    )  # fmt: skip


def _curves(cells: Sequence[Cell]) -> dict[str, Curve]:
    measured = [c for c in cells if c["status"] in MEASURED and c["probe"] == "prefill"]
    varying = _varying(measured)
    found: dict[str, Curve] = {}
    for cell in measured:
        length = next((cell["params"][k] for k in _LENGTHS if cell["params"].get(k)), None)
        for reading in cell["readings"]:
            if reading["metric"] == _RATE and not reading["point"] and reading["median"] and length:
                kind = ", ".join(
                    [*(f"{k} {clean(cell['params'].get(k))}" for k in varying), cell["arm"]]
                )
                found.setdefault(kind, {}).setdefault(length, []).append(reading["median"])
    return {k: dict(sorted(c.items())) for k, c in found.items()}


def _varying(cells: Sequence[Cell]) -> list[str]:
    """Parameters, but for the length, that differ between these cells."""
    names = dict.fromkeys(n for c in cells for n in c["params"] if n not in _LENGTHS)
    return [n for n in names if len({c["params"].get(n) for c in cells}) > 1]


def _knee(curve: Curve) -> Knee | None:
    """None where too few lengths were measured to look for one."""
    if len(curve) < MIN_POINTS:
        return None
    rates = [statistics.median(v) for v in curve.values()]
    several = min(len(v) for v in curve.values()) > 1
    level = CiLevel.BETWEEN if several else CiLevel.WITHIN
    return find_knee([*curve], rates, side=Side.RISING, level=level)


def _traces(kind: str, curve: Curve, knee: Knee | None, number: int) -> Iterator[dict[str, Any]]:
    rates = [statistics.median(v) for v in curve.values()]
    shade = plots.colour(number)
    text = [f"{n} tokens: {r:.0f} tokens/s" for n, r in zip(curve, rates, strict=True)]
    yield plots.line(kind, [*curve], rates, shade=shade, text=text)
    if knee is not None and knee.size is not None:
        near = min(curve, key=lambda n: abs(n - knee.size.value) if knee.size else 0)
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": f"knee of {kind}",
            "showlegend": False,
            "x": [knee.size.value],
            "y": [statistics.median(curve[near])],
            "marker": {"size": 13, "symbol": "diamond-open", "color": shade},
            "text": [f"knee at {knee.size.value:.0f} tokens"],
            "hovertemplate": "%{text}<extra></extra>",
        }


def _table(
    curves: Mapping[str, Curve], lengths: Sequence[int], knees: Mapping[str, Knee | None]
) -> Table:
    heads = [Head("tokens", number=True), *(Head(k, number=True) for k in curves)]
    rows = [
        [str(n), *(f"{statistics.median(c[n]):.0f}" if n in c else "-" for c in curves.values())]
        for n in lengths
    ]
    rows.append(["knee", *(_knee_text(knees[k]) for k in curves)])
    return Table(heads, rows)


def _knee_text(knee: Knee | None) -> str:
    if knee is None:
        return f"fewer than {MIN_POINTS} lengths"
    return knee.reason if knee.size is None else f"{knee.size.value:.0f}"


def _left(curves: Mapping[str, Curve], shown: Mapping[str, Curve]) -> str:
    more = len(curves) - len(shown)
    return f" {more} more curves are in the database." if more > 0 else ""
