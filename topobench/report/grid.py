"""Figures in rows and columns, and the sheets made of them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult

from topobench.reading import Scalar
from topobench.report import figures
from topobench.report.records import ARM, TITLES, UNIT, Figure, Key, Record
from topobench.report.safe import clean
from topobench.report.sheet import Column, Sheet, folded
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
        across: Dimensions whose values became columns.
        titled: The one metric stands in a title above, not in the columns.
    """

    names: Sequence[str]
    rows: Sequence[Key]
    heads: Sequence[Head]
    cells: Mapping[tuple[Key, Head], Figure]
    scales: Mapping[str, figures.Scale]
    labels: Mapping[str, str]
    across: Sequence[str] = ()
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
            numbers = self._numbers(head)
            columns.append(Column(self._head(head, numbers), number=True))
            parts.append(numbers)
        found = [self._figures(row) for row in self.rows]
        if any(f.spread is not None for row in found for f in row):
            title, spreads = _spread_column(found)
            columns.append(Column(title, number=True))
            parts.append(spreads)
        columns.append(Column("n", number=True))
        parts.append([_samples(row) for row in found])
        return Sheet(columns, list(zip(*parts, strict=True)))

    def _head(self, head: Head, numbers: Sequence[str]) -> str:
        metric, values = head
        across = [figures.UNKNOWN if v is None else clean(v) for v in values]
        if self.titled:
            lead = [ARM] if self.across == (ARM,) else []
            return "\n".join(lead + across) or self.scales[metric].unit
        unit = self.scales[metric].unit
        label = _over(self.labels[metric], [*numbers, *across, unit])
        return "\n".join(p for p in (label, *across, unit) if p)

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
        across=tuple(across),
        titled=titled,
    )


@dataclass(frozen=True, slots=True)
class Extremes:
    """
    Median, lowest and highest of one metric over many GPUs or hosts, and where those are.

    Args:
        records: Of one metric.
        names: Dimensions that make a row.
    """

    records: Sequence[Record]
    names: Sequence[str]

    @property
    def scale(self) -> figures.Scale:
        """The unit of its numbers."""
        return figures.scale_for(self.records[0].metric, map(_median, self.records))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The sheet; the spread gives way where the terminal is narrow."""
        whole = self.sheet()
        yield whole if whole.width <= options.max_width else self.sheet(with_spread=False)

    def sheet(self, *, with_spread: bool = True) -> Sheet:
        """One row for each value of the dimensions."""
        groups: dict[Key, list[Record]] = {}
        for record in self.records:
            row = tuple(record.dimensions.get(n) for n in self.names)
            groups.setdefault(row, []).append(record)
        rows = in_order(groups)
        ranked = [sorted(groups[row], key=_median) for row in rows]
        columns, parts = dimension_columns(self.names, rows)
        columns.append(Column("median", number=True))
        parts.append(self._numbers([statistics.median(map(_median, g)) for g in ranked]))
        for title, index in (("low", 0), ("high", -1)):
            columns += [Column(title, number=True), Column("at")]
            parts.append(self._numbers([_median(g[index]) for g in ranked]))
            parts.append([clean(g[index].dimensions[UNIT]) for g in ranked])
        columns.append(Column("of", number=True))
        parts.append([str(len(g)) for g in ranked])
        if with_spread:
            title, spreads = _spread_column([[r.figure for r in g] for g in ranked])
            columns.append(Column(title, number=True))
            parts.append(spreads)
        return Sheet(columns, list(zip(*parts, strict=True)))

    def _numbers(self, values: Sequence[float]) -> list[str]:
        return figures.aligned([figures.number(v, self.scale) for v in values])


def dimension_columns(
    names: Sequence[str], rows: Sequence[Key]
) -> tuple[list[Column], list[list[str]]]:
    """The leading columns of a sheet and their texts."""
    values = [[row[i] for row in rows] for i in range(len(names))]
    parts = [
        [figures.quantity(n, v) for v in found] for n, found in zip(names, values, strict=True)
    ]
    columns = [
        Column(
            _over(figures.label(n), texts), number=all(isinstance(v, int | float) for v in found)
        )
        for n, found, texts in zip(names, values, parts, strict=True)
    ]
    return columns, parts


def _over(title: str, texts: Sequence[str]) -> str:
    """A title in as many lines as keep it from being wider than what stands below."""
    room = max(map(cell_len, [*title.split(" "), *texts]))
    return "\n".join(folded(title, room))


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
    names = str(value).split("/")  # an arm is binding/ring
    if all(n in _ORDER for n in names):
        return (2, *map(_ORDER.index, names))
    parts = re.split(r"(\d+)", str(value))
    return (3, *(int(p) if i % 2 else p for i, p in enumerate(parts)))


def _median(record: Record) -> float:
    return record.figure.median


def _spread_column(rows: Sequence[Sequence[Figure]]) -> tuple[str, list[str]]:
    """The title, and the widest spread of each row, named where rows differ in what it is."""
    bases = {f.basis for row in rows for f in row}
    if len(bases) == 1:
        return TITLES[bases.pop()], [_widest(row)[0] for row in rows]
    return "spread", [" ".join(_widest(row)) for row in rows]


def _widest(row: Sequence[Figure]) -> tuple[str, ...]:
    """The widest spread of a row, and what it is."""
    known = [f for f in row if f.spread is not None]
    if not known:
        return (figures.UNKNOWN,)
    widest = max(known, key=lambda f: f.spread or 0.0)
    share = widest.spread or 0.0
    return "<0.1 %" if 0 < share < 0.0005 else format_percent(share), widest.basis


def _samples(row: Sequence[Figure]) -> str:
    """The fewest samples of a row: ``20``, or ``16x20`` for those of 16 processes."""
    known = [f for f in row if f.n]
    if not known:
        return figures.UNKNOWN
    fewest = min(known, key=lambda f: (f.processes, f.n))
    return f"{fewest.processes}x{fewest.n}" if fewest.processes > 1 else str(fewest.n)
