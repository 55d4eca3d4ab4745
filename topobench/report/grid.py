"""Figures in rows and columns, and the sheets made of them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topobench.reading import Scalar
from topobench.report import figures
from topobench.report.records import UNIT, Figure, Key, Record
from topobench.report.safe import clean
from topobench.report.sheet import Column, Sheet
from topobench.units import format_percent

_ORDER = ("none", "local", "remote", "spread", "auto", "auto_ring", "identity", "best", "worst")

Head = tuple[str, Key]
"""A column: its metric, and its values of the dimensions laid out across."""


@dataclass(frozen=True, slots=True)
class Grid:
    """
    Figures by row and column, not yet formatted.

    Args:
        names: Dimensions that make a row.
        titled: The one metric stands in a title above, not in the columns.
    """

    names: Sequence[str]
    rows: Sequence[Key]
    heads: Sequence[Head]
    cells: Mapping[tuple[Key, Head], Figure]
    scales: Mapping[str, figures.Scale]
    labels: Mapping[str, str]
    titled: bool = False

    @property
    def title(self) -> str:
        """The metric and unit of a titled grid."""
        metric, scale = next(iter(self.scales.items()))
        return ", ".join(p for p in (self.labels[metric], scale.unit) if p)

    def sheet(self) -> Sheet:
        """What each row is, its numbers, and how far they can be trusted."""
        columns, parts = dimension_columns(self.names, self.rows)
        for head in self.heads:
            columns.append(Column(self._head(head), number=True))
            parts.append(self._numbers(head))
        found = [self._figures(row) for row in self.rows]
        bases = {f.basis for row in found for f in row}
        columns.append(Column(bases.pop() if len(bases) == 1 else "spread", number=True))
        parts.append([_spread(row, name_basis=bool(bases)) for row in found])
        columns.append(Column("n", number=True))
        parts.append(
            [str(min((f.n for f in row if f.n), default=figures.UNKNOWN)) for row in found]
        )
        return Sheet(columns, list(zip(*parts, strict=True)))

    def _head(self, head: Head) -> str:
        metric, values = head
        across = [figures.UNKNOWN if v is None else clean(v) for v in values]
        if self.titled:
            return "\n".join(across) or self.scales[metric].unit
        return "\n".join(p for p in (self.labels[metric], *across, self.scales[metric].unit) if p)

    def _numbers(self, head: Head) -> list[str]:
        found = [self.cells.get((row, head)) for row in self.rows]
        scale = self.scales[head[0]]
        return figures.aligned([figures.number(f.median if f else None, scale) for f in found])

    def _figures(self, row: Key) -> list[Figure]:
        return [f for head in self.heads if (f := self.cells.get((row, head)))]


def grid(
    records: Sequence[Record],
    names: Sequence[str],
    across: Sequence[str],
    labels: Mapping[str, str],
    *,
    titled: bool = False,
) -> Grid:
    """
    Lay records out.

    Args:
        names: Dimensions that make a row.
        across: Dimensions whose values become columns; with none, only metrics do.
        labels: Metric -> what to call it.
    """
    metrics = list(dict.fromkeys(r.metric for r in records))
    cells = {}
    for record in records:
        row = tuple(record.dimensions.get(n) for n in names)
        head = (record.metric, tuple(record.dimensions.get(a) for a in across))
        cells[row, head] = record.figure
    return Grid(
        names=names,
        rows=in_order({row for row, _ in cells}),
        heads=sorted({h for _, h in cells}, key=lambda h: (metrics.index(h[0]), _order(h[1]))),
        cells=cells,
        scales={
            m: figures.scale_for(m, [r.figure.median for r in records if r.metric == m])
            for m in metrics
        },
        labels=labels,
        titled=titled,
    )


def extremes(records: Sequence[Record], names: Sequence[str]) -> Sheet:
    """Median, lowest and highest of one metric over many GPUs or hosts, and where those are."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record.dimensions.get(n) for n in names), []).append(record)
    rows = in_order(groups)
    ranked = [sorted(groups[row], key=_median) for row in rows]
    scale = figures.scale_for(records[0].metric, map(_median, records))
    columns, parts = dimension_columns(names, rows)

    def add(title: str, values: Iterable[float]) -> None:
        columns.append(Column(title, number=True))
        parts.append(figures.aligned([figures.number(v, scale) for v in values]))

    add("median", [statistics.median(map(_median, g)) for g in ranked])
    for title, index in (("lowest", 0), ("highest", -1)):
        add(title, [_median(g[index]) for g in ranked])
        columns.append(Column("at"))
        parts.append([clean(g[index].dimensions.get(UNIT, "")) for g in ranked])
    columns += [Column("of", number=True), Column("spread", number=True)]
    parts.append([str(len(g)) for g in ranked])
    parts.append([_spread([r.figure for r in g], name_basis=False) for g in ranked])
    return Sheet(columns, list(zip(*parts, strict=True)))


def dimension_columns(
    names: Sequence[str], rows: Sequence[Key]
) -> tuple[list[Column], list[list[str]]]:
    """The leading columns of a sheet and their texts."""
    values = [[row[i] for row in rows] for i in range(len(names))]
    columns = [
        Column(figures.label(n), number=all(isinstance(v, int | float) for v in found))
        for n, found in zip(names, values, strict=True)
    ]
    parts = [
        [figures.quantity(n, v) for v in found] for n, found in zip(names, values, strict=True)
    ]
    return columns, parts


def in_order(rows: Iterable[Key]) -> list[Key]:
    """Rows sorted: numbers by size, known arms in their usual order, text naturally."""
    return sorted(rows, key=_order)


def _order(key: Key) -> tuple[Any, ...]:
    return tuple(map(_place, key))


def _place(value: Scalar) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, int | float):
        return (1, value)
    if value in _ORDER:
        return (2, _ORDER.index(value))
    parts = re.split(r"(\d+)", value)
    return (3, *(int(p) if i % 2 else p for i, p in enumerate(parts)))


def _median(record: Record) -> float:
    return record.figure.median


def _spread(row: Sequence[Figure], *, name_basis: bool) -> str:
    """The widest spread of a row."""
    known = [f for f in row if f.spread is not None]
    if not known:
        return figures.UNKNOWN
    widest = max(known, key=lambda f: f.spread or 0.0)
    text = format_percent(widest.spread or 0.0)
    return f"{text} {widest.basis}" if name_basis else text
