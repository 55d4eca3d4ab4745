"""Traces and layouts of charts, in Plotly's words; colours that suit light and dark paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topobench.units import format_bytes

PALETTE = (
    "#3b7dc4", "#e07a1f", "#2e9e5b", "#8e44ec", "#d7263d", "#0f9fb0", "#b8860b", "#c2569b",
    "#6b7f94", "#7a9a01",
)  # fmt: skip
GREY = "#7d8896"
CEILING = "#d7263d"
_MANY_COLUMNS = 10
_LEAST_PERCENT = 1.0
_HEAT = [[0.0, "#ea8a8f"], [0.4, "#f3cf8e"], [0.75, "#c5dfa4"], [1.0, "#7cc79a"]]
"""Slow to fast."""


def colour(number: int) -> str:
    """The colour of the n-th alternative."""
    return PALETTE[number % len(PALETTE)]


def line(
    name: str,
    x: Sequence[float],
    y: Sequence[float | None],
    *,
    shade: str,
    dash: str = "solid",
    markers: bool = True,
    error: tuple[Sequence[float], Sequence[float]] | None = None,
    text: Sequence[str] | None = None,
) -> dict[str, Any]:
    """
    A line through points.

    Args:
        error: Distances from each point up and down to the ends of its interval.
        text: What is said of each point under the pointer.
    """
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": shade, "dash": dash, "width": 2},
        "marker": {"size": 6, "color": shade},
    }
    if error is not None:
        trace["error_y"] = _error(error, shade)
    if text is not None:
        trace |= {"text": list(text), "hovertemplate": "%{text}<extra>%{fullData.name}</extra>"}
    return trace


def dots(
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    *,
    shade: str,
    error: tuple[Sequence[float], Sequence[float]],
    text: Sequence[str],
    symbols: Sequence[str],
) -> dict[str, Any]:
    """Points in rows, each with its interval to the left and right."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "marker": {"size": 8, "color": shade, "symbol": list(symbols)},
        "error_x": _error(error, shade),
        "text": list(text),
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
    }


def bars(name: str, x: Sequence[str], y: Sequence[float | None], *, shade: str) -> dict[str, Any]:
    """Upright bars."""
    return {
        "type": "bar",
        "name": name,
        "x": list(x),
        "y": list(y),
        "marker": {"color": shade},
    }


def heat(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    text: Sequence[Sequence[str]],
    unit: str,
    high_is_slow: bool = False,
) -> dict[str, Any]:
    """A matrix of numbers, slow in red and fast in green, each number written in its field."""
    known = [v for row in values for v in row if v is not None] or [1.0]
    least, top = min(known), max(known)
    return {
        "type": "heatmap",
        "x": list(columns),
        "y": list(rows),
        "z": [list(row) for row in values],
        "zmin": least if high_is_slow else min(least, 0.5 * top),
        "zmax": max(top, 2 * least) if high_is_slow else top,
        "text": [list(row) for row in text],
        "texttemplate": "%{text}",
        "textfont": _small(len(columns)),
        "colorscale": _HEAT,
        "reversescale": high_is_slow,
        "xgap": 2,
        "ygap": 2,
        "colorbar": {"title": {"text": unit}, "thickness": 12},
        "hovertemplate": "%{y} to %{x}: %{text} " + unit + "<extra></extra>",
    }


def classes(
    ends: Sequence[str],
    rows: Sequence[Sequence[str]],
    starts: Sequence[str],
    shades: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """
    A matrix of words, one colour each.

    Args:
        shades: Word and colour, in order.
    """
    numbers = {word: n for n, (word, _) in enumerate(shades)}
    steps = len(shades)
    scale = []
    for n, (_, shade) in enumerate(shades):
        scale += [[n / steps, shade], [(n + 1) / steps, shade]]
    return {
        "type": "heatmap",
        "x": list(ends),
        "y": list(starts),
        "z": [[numbers[_family(w)] for w in row] for row in rows],
        "zmin": -0.5,
        "zmax": steps - 0.5,
        "text": [list(row) for row in rows],
        "texttemplate": "%{text}",
        "textfont": _small(len(ends)),
        "colorscale": scale,
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": "%{y} to %{x}: %{text}<extra></extra>",
    }


def _small(columns: int) -> dict[str, Any]:
    """The text in the fields of a matrix: dark, as fields are light, and smaller where many."""
    return {"color": "#10151c", "size": 12 if columns <= _MANY_COLUMNS else 10.5}


def _family(word: str) -> str:
    """``NV18`` is NVLink whatever the number."""
    return "NV" if word.startswith("NV") and word[2:].isdigit() else word


def matrix_layout(rows: int, columns: int) -> dict[str, Any]:
    """Of a matrix: first row on top, fields about as high as wide."""
    return {
        "height": 130 + 34 * max(rows, 2),
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
        "xaxis": {"side": "top", "type": "category", "showgrid": False, "tickangle": 0},
        "maxwidth": max(420, 170 + 72 * columns),
        "columns": columns,
    }


def size_axis(sizes: Sequence[int], title: str) -> dict[str, Any]:
    """A logarithmic axis of bytes, with their names at every power of four or so."""
    known = sorted(set(sizes))
    step = max(1, -(-len(known) // 9))
    shown = known[::step]
    return {
        "type": "log",
        "title": {"text": title},
        "tickvals": shown,
        "ticktext": [format_bytes(s) for s in shown],
    }


def count_axis(values: Sequence[float], title: str) -> dict[str, Any]:
    """A logarithmic axis of whole numbers, each of them named."""
    known = sorted(set(values))
    return {
        "type": "log",
        "title": {"text": title},
        "tickvals": known,
        "ticktext": [f"{v:g}" for v in known],
    }


def axis(title: str, *, log: bool = False) -> dict[str, Any]:
    """An axis of a quantity; it begins at zero where it is linear."""
    found: dict[str, Any] = {"title": {"text": title}}
    if log:
        found |= {"type": "log", "dtick": "D2", "exponentformat": "none"}
    else:
        found["rangemode"] = "tozero"
    return found


def effect_axis(title: str, percent: Sequence[float]) -> dict[str, Any]:
    """An axis of effects in percent, never so narrow that noise looks like something."""
    found: dict[str, Any] = {"title": {"text": title}, "zeroline": True}
    if all(abs(value) < _LEAST_PERCENT for value in percent):
        return found | {"range": [-_LEAST_PERCENT, _LEAST_PERCENT]}
    return found | {"rangemode": "tozero"}


def ceiling(value: float, text: str, number: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """A level that cannot be passed: the shape and its label; ``number`` keeps labels apart."""
    shape = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": value,
        "y1": value,
        "line": {"color": CEILING, "width": 1.5, "dash": "dash"},
    }
    label = {
        "xref": "paper",
        "x": 0.01 + 0.33 * number,
        "y": value,
        "text": text,
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "bottom",
        "font": {"color": CEILING, "size": 11},
    }
    return shape, label


def upright(value: float) -> dict[str, Any]:
    """A line at a place of the horizontal axis: the shape."""
    shape, _ = ceiling(value, "")
    across = {"xref": "x", "yref": "paper", "x0": value, "x1": value, "y0": 0, "y1": 1}
    return shape | across


def _error(error: tuple[Sequence[float], Sequence[float]], shade: str) -> dict[str, Any]:
    up, down = error
    return {
        "type": "data",
        "symmetric": False,
        "array": list(up),
        "arrayminus": list(down),
        "thickness": 1.4,
        "width": 3,
        "color": shade,
    }
