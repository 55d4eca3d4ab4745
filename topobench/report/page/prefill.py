"""Prefill by sequence length, with the knee where there is one and where theory expects it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench import prefill_curves, prefill_shared
from topobench.prefill_curves import Curve
from topobench.report import bindings_text, shared_text
from topobench.report.page import plots
from topobench.report.page.parts import Figure, Head, Paragraph, Part, Table
from topobench.report.prefill_text import COLUMNS, MEANING, knee_rows, remarks
from topobench.report.records import Places
from topobench.report.safe import clean

Cell = Mapping[str, Any]

_MOST_CURVES = 10


def prefill(name: str, cells: Sequence[Cell], places: Places) -> Iterator[Part]:
    """A figure of tokens per second against the length of the prompt, and a table of knees."""
    curves = prefill_curves.curves(cells)
    if not curves:
        return
    labels = [clean(text) for text in prefill_curves.labels(curves)]
    longest = sorted(range(len(curves)), key=lambda n: -len(curves[n].rates))[:_MOST_CURVES]
    shown = {labels[n]: curves[n] for n in longest}
    lengths = sorted({n for curve in shown.values() for n in curve.rates})
    more = len(curves) - len(shown)
    yield Figure(
        name=f"{name}-prefill",
        title="Prefill by sequence length",
        lead="Prompt tokens per second of device time, batch and precision as named. A diamond "
        "is the knee: beyond it, longer prompts gain little."
        + (f" {more} more curves are in the table of knees." if more > 0 else ""),
        traces=[
            t for n, (kind, curve) in enumerate(shown.items()) for t in _traces(kind, curve, n)
        ],
        layout={
            "height": 440,
            "xaxis": plots.count_axis(lengths, "tokens of the prompt"),
            "yaxis": plots.axis("tokens per second"),
        },
        table=_table(shown, lengths),
    )
    for words in (*remarks(curves), MEANING):
        yield Paragraph(words, "dim")
    heads = [Head(c.name, c.number) for c in COLUMNS]
    rows = [
        [*row, curve.knee.reason]
        for row, curve in zip(knee_rows(curves, cells, places), curves, strict=True)
    ]
    yield Table([*heads, Head("because")], rows, caption="Knees").limited()
    yield from _bindings(cells, places)
    yield from _shared(cells, places)


def _bindings(cells: Sequence[Cell], places: Places) -> Iterator[Part]:
    """A table of the bindings of the same work."""
    if rows := [list(row) for row in bindings_text.binding_rows(cells, places)]:
        yield Paragraph(bindings_text.MEANING, "dim")
        heads = [Head(c.name, c.number) for c in bindings_text.COLUMNS]
        yield Table(heads, rows, caption="Bindings").limited()


def _shared(cells: Sequence[Cell], places: Places) -> Iterator[Part]:
    """A table of the models that GPUs share."""
    found = prefill_shared.shared(cells)
    if found:
        for words in (shared_text.MEANING, *shared_text.remarks(found)):
            yield Paragraph(words, "dim")
        heads = [Head(c.name, c.number) for c in shared_text.COLUMNS]
        rows = [list(row) for row in shared_text.shared_rows(found, places)]
        yield Table(heads, rows, caption="Several GPUs").limited()


def _traces(kind: str, curve: Curve, number: int) -> Iterator[dict[str, Any]]:
    medians, shade, size = curve.medians, plots.colour(number), curve.knee.size
    text = [f"{n} tokens: {r:.0f} tokens/s" for n, r in medians.items()]
    yield plots.line(kind, [*medians], [*medians.values()], shade=shade, text=text)
    if size is not None:
        near = min(medians, key=lambda n: abs(n - size.value))
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": f"knee of {kind}",
            "showlegend": False,
            "x": [size.value],
            "y": [medians[near]],
            "marker": {"size": 13, "symbol": "diamond-open", "color": shade},
            "text": [f"knee at {size.value:.0f} tokens"],
            "hovertemplate": "%{text}<extra></extra>",
        }


def _table(curves: Mapping[str, Curve], lengths: Sequence[int]) -> Table:
    medians = [curve.medians for curve in curves.values()]
    rows = [[str(n), *(f"{m[n]:.0f}" if n in m else "-" for m in medians)] for n in lengths]
    return Table([Head("tokens", number=True), *(Head(k, number=True) for k in curves)], rows)
