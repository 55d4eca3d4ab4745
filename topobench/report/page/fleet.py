"""How far the hosts of a sweep lie apart: every host against the median of its kind."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topobench.effects import case_words
from topobench.reading import MEASURED
from topobench.report import figures
from topobench.report.page import plots
from topobench.report.page.parts import Figure, Head, Part, Table
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.units import format_percent

Cell = Mapping[str, Any]
MIN_HOSTS = 3
_MOST_CASES, _FEWEST_CASES = 14, 3
_MOST_POINTS = 15_000
"""Points of the figure, so that the page of a large fleet stays small."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One case over hosts: host key -> share of the median host, 0.02 = 2 % better."""

    label: str
    metric: str
    median: float
    effects: Mapping[str, float]

    @property
    def worst(self) -> str:
        """Key of the host furthest behind."""
        return min(self.effects, key=lambda h: self.effects[h])


def spreads(hosts: Sequence[Mapping[str, Any]], cells: Sequence[Cell]) -> list[Spread]:
    """The cases that three or more hosts of one kind measured, the widest first."""
    skus = {h["key"]: h["sku"] or h["description"].get("sku") or "" for h in hosts}
    kinds = len(set(skus.values()))
    pools: dict[Any, dict[str, list[float]]] = defaultdict(dict)
    for cell in cells:
        if cell["status"] not in MEASURED or len({*(cell.get("hosts") or ())}) > 1:
            continue  # what several hosts measured together is no figure of one
        label, case = _label(cell), tuple(sorted(cell["params"].items()))
        for reading in cell["readings"]:
            if reading["point"] or not reading["median"] or not reading["better"]:
                continue
            if reading["metric"] == "locality_ratio":
                continue
            key = skus.get(cell["host"], ""), case, label, reading["metric"], reading["better"]
            pools[key].setdefault(cell["host"], []).append(reading["median"])
    found = []
    for (sku, _, label, metric, better), values in pools.items():
        if len(values) < MIN_HOSTS:
            continue
        medians = {host: statistics.median(v) for host, v in values.items()}
        middle = statistics.median(medians.values())
        effects = {h: better * (m / middle - 1) for h, m in medians.items()}
        words = f"{label}, {clean(sku)}" if kinds > 1 else label
        found.append(Spread(f"{words}, {figures.label(metric)}", metric, middle, effects))
    return sorted(found, key=lambda s: s.effects[s.worst])


def fleet(found: Sequence[Spread], places: Places) -> Iterator[Part]:
    """A strip of points for each case, a point a host."""
    if not found:
        return
    most = _MOST_POINTS // max(len(s.effects) for s in found)
    shown = list(found[: min(_MOST_CASES, max(_FEWEST_CASES, most))])[::-1]
    x, y, text = [], [], []
    for spread in shown:
        for host, effect in spread.effects.items():
            x.append(round(100 * effect, 3))
            y.append(spread.label)
            text.append(f"{places.hosts.get(host, clean(host))}: {100 * effect:+.1f} %")
    yield Figure(
        name="fleet-spread",
        title="Hosts against the median of their kind",
        lead="Each point is a host, right is better than the median host of the same hardware. "
        f"The {len(shown)} cases with the furthest outliers of {len(found)}. A list, no verdict: "
        "topobench check judges.",
        traces=[_strip(x, y, text)],
        layout={
            "height": 140 + 30 * len(shown),
            "xaxis": plots.effect_axis("better than the median host, %", x),
            "yaxis": {"type": "category", "automargin": True, "tickfont": {"size": 11}},
        },
        table=Table(_HEADS, [_row(s, places) for s in found]).limited(),
    )


_HEADS = (
    Head("case"),
    Head("hosts", number=True),
    Head("median", number=True),
    Head("furthest behind"),
    Head("effect", number=True),
    Head("middle half within", number=True),
)


def _row(spread: Spread, places: Places) -> list[str]:
    quarter = sorted(abs(e) for e in spread.effects.values())[len(spread.effects) // 2]
    return [
        spread.label,
        str(len(spread.effects)),
        figures.quantity(spread.metric, spread.median),
        places.hosts.get(spread.worst, clean(spread.worst)),
        f"{100 * spread.effects[spread.worst]:+.1f} %",
        f"+/-{format_percent(quarter)}",
    ]


def _strip(x: Sequence[float], y: Sequence[str], text: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "host",
        "showlegend": False,
        "x": list(x),
        "y": list(y),
        "text": list(text),
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"size": 9, "opacity": 0.55, "color": plots.PALETTE[0]},
    }


def _label(cell: Cell) -> str:
    return clean(f"{case_words(cell['probe'], cell['params'], cell['ranks'])} {cell['arm']}")
