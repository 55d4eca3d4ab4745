"""A comparison as tables: what got worse first, then the rest, with what was left out."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from topobench.report import figures
from topobench.report.grid import dimension_columns
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet, facts
from topobench.report.words import minute, shown_params
from topobench.units import count

Document = Mapping[str, Any]

_STYLES = {"regressed": "red", "improved": "green", "inconclusive": "yellow", "equivalent": ""}
"""Words of a comparison in the order shown, and their colour."""
_ROWS = 60
"""Rows of all tables together, beyond which equivalent cases are only counted."""
_UUID_REST = re.compile(r"(?<=sweep:[0-9a-f]{8})-[0-9a-f-]{27}")
"""What of a sweep's UUID is left out."""
_DESIGNS = {
    "same_hosts": "each host and device with itself",
    "same_hosts_pooled": "each host with itself, then the effects of all hosts together",
    "other_hosts": "other hosts on each side",
    "against_control": "the hosts that changed, against those that did not (difference in "
    "differences)",
}


def render_compare(data: Document) -> RenderableType:
    """The ``data`` of compare/1."""
    return Group(*_parts(data))


def _parts(data: Document) -> Iterator[RenderableType]:
    yield facts(
        [
            ("A", _side(data["a"])),
            ("B", _side(data["b"])),
            ("compared", _DESIGNS[data["design"]]),
        ],
        indent=0,
    )
    cases = [c for c in data["cases"] if c["refused"] is None]
    hidden = len(data["cases"]) > _ROWS
    shown = [c for c in cases if not (hidden and c["verdict"] == "equivalent")]
    labels = {p: figures.metric_labels(_by(g, "metric")) for p, g in _by(shown, "probe").items()}
    for (probe, metric), group in _by(shown, "probe", "metric").items():
        yield Text("")
        yield Text(f"{clean(probe)}, {labels[probe][metric]}", style="bold")
        yield from _table(group)
    yield from _notes(data)
    yield Text("")
    yield Prose(
        "change: of B from A, negative is worse, with its 95 % interval. n: values of A and of B. "
        "MDE: the smallest change that would have been seen nine times in ten; no finding means "
        "none above it.",
        indent=0,
        style="dim",
    )
    words = [f"{data['counts'][w]} {w}" for w in _STYLES if data["counts"][w]]
    yield Text(f"{data['verdict']}: {', '.join(words) or 'no case on both sides'}", style="bold")


def _side(side: Document) -> str:
    extent = ", ".join(count(side[k], k.removesuffix("s")) for k in ("hosts", "sweeps", "runs"))
    days = f"{minute(side['first_at'])} to {minute(side['last_at'])} UTC"
    kinds = [s for s in side["sources"] if s != "probe"] + ["synthetic"] * side["synthetic"]
    marks = f" ({', '.join(map(clean, kinds))})" if kinds else ""
    meaning = _UUID_REST.sub("", clean(side["meaning"]))
    return f"{meaning}{marks}: {extent}, {days}"


def _table(cases: Sequence[Document]) -> Iterator[RenderableType]:
    """The cases of a metric; what is the same in all stands above the table."""
    rows = [_dimensions(c) for c in cases]
    names = list(dict.fromkeys(n for row in rows for n in row))
    varied = [n for n in names if len({row.get(n) for row in rows}) > 1]
    fixed = [n for n in names if n not in varied and rows[0][n] not in (None, "")]
    told = [f"{figures.label(n)} {figures.quantity(n, rows[0][n])}" for n in fixed]
    numbers = {_n(c) for c in cases}
    told += [f"n {_n(cases[0])}"] if len(numbers) == 1 else []
    yield Prose(", ".join(told), style="dim")
    order = list(_STYLES)
    ranked = sorted(range(len(cases)), key=lambda i: order.index(cases[i]["verdict"]))
    keys = [tuple(rows[i].get(n) for n in varied) for i in ranked]
    chosen = [cases[i] for i in ranked]
    columns, parts = dimension_columns(varied, keys)
    for column, texts in _figures(chosen, with_n=len(numbers) > 1):
        columns.append(column)
        parts.append(texts)
    styles = [_STYLES[c["verdict"]] for c in chosen]
    yield Sheet(columns, list(zip(*parts, strict=True)), row_styles=styles)


def _dimensions(case: Document) -> dict[str, Any]:
    on = ", ".join(clean(d)[:12] for d in case["devices"])
    ranks = case["n_ranks"] if case["n_ranks"] > 1 else None
    return {
        **shown_params(case["params"]),
        "ranks": ranks,
        **point_of(case),
        "arm": case["arm"],
        "host": case["host"],
        "on": on or None,
    }


def point_of(case: Document) -> dict[str, Any]:
    """Where in its case a value stands, such as a rank; a GPU is among the devices already."""
    return {} if "device" in case["point"] else dict(case["point"])


def _figures(cases: Sequence[Document], *, with_n: bool) -> Iterator[tuple[Column, list[str]]]:
    metric = cases[0]["metric"]
    scale = figures.scale_for(metric, [c[k] for c in cases for k in ("median_a", "median_b")])
    for name in ("a", "b"):
        texts = figures.aligned([figures.number(c[f"median_{name}"], scale) for c in cases])
        yield Column(f"{name.upper()}\n{scale.unit}", number=True), texts
    yield Column("change\n%", number=True), _percents([c["effect_ratio"] for c in cases])
    yield Column("interval\n%", number=True), [_interval(c) for c in cases]
    if any(c["control_ratio"] is not None for c in cases):
        yield Column("control\n%", number=True), _percents([c["control_ratio"] for c in cases])
    yield Column("MDE\n%", number=True), _percents([c["mde"] for c in cases], sign=False)
    if with_n:
        yield Column("n", number=True), [_n(c) for c in cases]
    yield Column("verdict"), [c["verdict"] for c in cases]


def _percents(values: Sequence[float | None], *, sign: bool = True) -> list[str]:
    form = "{:+.2f}" if sign else "{:.2f}"
    return [figures.UNKNOWN if v is None else form.format(100 * v) for v in values]


def _interval(case: Document) -> str:
    if case["lo"] is None:
        return figures.UNKNOWN
    return f"{100 * case['lo']:+.2f} {100 * case['hi']:+.2f}"


def _n(case: Document) -> str:
    """``6, 6 processes``: the values of each side."""
    return f"{case['n_a']}, {case['n_b']} {case['unit_of']}"


def _notes(data: Document) -> Iterator[RenderableType]:
    refused = collections.Counter(c["refused"] for c in data["cases"] if c["refused"])
    undecided = collections.Counter(
        c["reason"]
        for c in data["cases"]
        if not c["refused"] and c["verdict"] == "inconclusive" and c["lo"] is None
    )
    noted = collections.Counter(n for c in data["cases"] for n in c["notes"])
    for title, found in (("REFUSED", refused), ("NOT DECIDED", undecided), ("NOTES", noted)):
        if found:
            yield Text("")
            yield Text(title, style="bold")
            for text, cases in found.most_common(20):
                yield Prose(f"{count(cases, 'case')}: {clean(text)}")
    if data["left_out"]:
        yield Text("")
        yield Text("LEFT OUT", style="bold")
        for text in data["left_out"]:
            yield Prose(clean(text))


def _by(cases: Sequence[Document], *keys: str) -> dict[Any, list[Document]]:
    """Cases by the value of a key, or by those of several."""
    found: dict[Any, list[Document]] = {}
    for case in cases:
        values = tuple(case[k] for k in keys)
        found.setdefault(values if len(keys) > 1 else values[0], []).append(case)
    return found
