"""What GPUs could do: what bounds each work, what sharing costs, and published figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topobench import expectations
from topobench.device_figures import device_figures
from topobench.expectations import ABOVE, BELOW, Deviation
from topobench.report.figures import quantity
from topobench.report.gpu_limits import (
    WHOSE,
    gpus_text,
    kept_text,
    losses,
    models_of,
    shared_bound,
    shared_text,
    unknown_bounds,
    work_text,
    works_by_bound,
)
from topobench.report.page import plots
from topobench.report.page.parts import Figure, Head, Missing, Paragraph, Part, Table
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.roofline import Bounds
from topobench.units import format_percent

Cell = Mapping[str, Any]
Host = Mapping[str, Any]

_MOST_LINES = 40
_LINE = 26
"""Height of a row of the chart, in pixels."""


def bounds(cells: Sequence[Cell]) -> Iterator[Part]:
    """What bounds the work of each probe, by the ceilings of the same sweep; and which lack."""
    found = works_by_bound(cells)
    if found:
        rows = [[_bound(bounds), work] for bounds, works in found.items() for work in works]
        caption = "What bounds each work, by the ceilings measured in this sweep."
        yield Table([Head("bound by"), Head("work")], rows, caption=caption).limited()
    for item in unknown_bounds(cells):
        yield Missing(f"What bounds it is {item['text']}", " ".join(item["lines"]))


def _bound(bounds: Bounds) -> str:
    return str(bounds[0]) if len(bounds) == 1 else shared_bound(bounds)


def sharing(cells: Sequence[Cell], host: Host, places: Places) -> Iterator[Part]:
    """What GPUs lose while all are busy; of each path they share, the work that loses most."""
    rows = [
        [
            gpus_text([(loss.host, d) for d in loss.devices], places),
            work_text(loss.figure),
            clean(loss.figure.arm),
            quantity(loss.figure.metric, loss.alone),
            quantity(loss.figure.metric, loss.together),
            format_percent(loss.share),
            quantity(loss.figure.metric, loss.total),
            shared_text(loss),
        ]
        for loss in losses(cells, [host])
    ]
    if rows:
        yield Table(_SHARING, rows)
    elif text := kept_text(cells):
        yield Paragraph(text)


_SHARING = (
    Head("GPUs"),
    Head("work"),
    Head("arm"),
    Head("alone", number=True),
    Head("at once, each", number=True),
    Head("left", number=True),
    Head("together", number=True),
    Head("why"),
)


def published(name: str, cells: Sequence[Cell], host: Host, places: Places) -> Iterator[Part]:
    """Every figure that others published for these GPUs, and how far ours is from it."""
    found = expectations.held_against(device_figures(cells), models_of([host]))
    if not found:
        return
    shown = sorted(found, key=lambda d: (not d.is_far, d.ratio))[:_MOST_LINES]
    yield Figure(
        name=f"{name}-published",
        title="Against published figures",
        lead="What these GPUs reach of what others measured, ask for or promise. Hollow: farther "
        f"than {format_percent(1 - BELOW)} below or {format_percent(ABOVE - 1)} above, or below "
        "what an operator asks for. Nearly every figure rests on one source: advice, no verdict.",
        traces=[_trace(shown, places)],
        layout={
            "height": 130 + _LINE * len(shown),
            "xaxis": {"title": {"text": "measured, % of the published figure"}},
            "yaxis": {"autorange": "reversed", "type": "category", "tickfont": {"size": 11}},
            "shapes": [plots.upright(100)],
        },
        table=Table(
            _PUBLISHED,
            [_row(d, places) for d in found],
            styles=["warn" if d.is_far else "" for d in found],
        ).limited(),
    )


_PUBLISHED = (
    Head("on"),
    Head("work"),
    Head("measured", number=True),
    Head("published", number=True),
    Head("measured by published", number=True),
    Head("that is what"),
    Head("source"),
    Head("as of"),
)


def _trace(found: Sequence[Deviation], places: Places) -> dict[str, Any]:
    labels = [f"{_work(d)}, {_where(d, places)}" for d in found]
    trace = plots.line(
        "measured",
        [round(100 * d.ratio, 1) for d in found],
        [],
        shade=plots.colour(0),
        text=[f"{label}: {d.ratio:.2f} x" for label, d in zip(labels, found, strict=True)],
    )
    symbols = ["circle-open" if d.is_far else "circle" for d in found]
    return {
        **trace,
        "y": labels,
        "mode": "markers",
        "marker": {"size": 9, "color": plots.colour(0), "symbol": symbols},
    }


def _row(found: Deviation, places: Places) -> list[str]:
    figure, wanted = found.figure, found.expectation
    return [
        _where(found, places),
        _work(found),
        quantity(figure.metric, figure.value),
        quantity(figure.metric, wanted.value),
        f"{found.ratio:.2f}",
        WHOSE[wanted.kind],
        wanted.source,
        wanted.date,
    ]


def _work(found: Deviation) -> str:
    return f"{work_text(found.figure)} ({found.expectation.kind})"


def _where(found: Deviation, places: Places) -> str:
    figure = found.figure
    if figure.probe == "peer":  # a copy has a direction
        return places.pair(figure.devices)
    return gpus_text([(figure.host, d) for d in figure.devices], places)
