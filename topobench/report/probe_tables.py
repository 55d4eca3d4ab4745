"""
The tables of one probe, laid out from its data alone: a new probe needs no code here.

Layouts are tried from the densest to the longest; the first that fits the terminal wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from topobench.report import figures
from topobench.report.grid import Extremes, Grid, grid
from topobench.report.records import ARM, CPU_NODE, MEMORY_NODE, UNIT, Key, Record
from topobench.report.safe import clean
from topobench.report.sheet import GAP, Prose, Sheet
from topobench.units import count

FEW_ROWS = 16
MANY_ROWS = 40


@dataclass(frozen=True, slots=True)
class ProbeTables:
    """
    The figures of one probe.

    Args:
        records: Of this probe; at least one.
        unit: What ran beside each other, in a word: ``GPU`` or ``host``.
        notes: Sentences that belong to the figures.
    """

    name: str
    records: Sequence[Record]
    unit: str
    notes: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A caption with what is equal everywhere, then the sheets, each with what is in it."""
        yield Text(clean(self.name), style="bold")
        common = constants(self.records)
        if common:
            yield Prose(", ".join(common))
        for note in self.notes:
            yield Prose(note)
        labels = figures.metric_labels(dict.fromkeys(r.metric for r in self.records))
        for number, family in enumerate(families(self.records)):
            if number:
                yield Text("")
            if own := [told for told in constants(family) if told not in common]:
                yield Prose(", ".join(own))
            yield from self._tables(family, labels, options.max_width)

    def _tables(
        self, records: Sequence[Record], labels: Mapping[str, str], width: int
    ) -> Iterator[Sheet | Extremes | Text]:
        varying = _varying(records)
        for layout in _layouts(records, varying):
            grids = layout.grids(records, varying, labels)
            if layout.fits(grids, width):
                break
        else:
            if UNIT in varying:
                yield from self._summaries(records, [n for n in varying if n != UNIT], labels)
                return
            grids = _packed(records, varying, labels, width)
        for number, found in enumerate(grids):
            if found.titled:
                yield _title(number, found.title)
            elif number:
                yield Text("")
            yield found.sheet()

    def _summaries(
        self, records: Sequence[Record], names: Sequence[str], labels: Mapping[str, str]
    ) -> Iterator[Extremes | Text]:
        for number, found in enumerate(_by_metric(records)):
            extremes = Extremes(found, names)
            places = count(len({r.dimensions.get(UNIT) for r in found}), self.unit)
            title = (labels[found[0].metric], extremes.scale.unit, f"over {places}")
            yield _title(number, ", ".join(p for p in title if p))
            yield extremes


@dataclass(frozen=True, slots=True)
class _Layout:
    """A way to lay records out, and the most rows it is good for."""

    across: tuple[str, ...]
    per_metric: bool
    most_rows: int | None

    def grids(
        self, records: Sequence[Record], varying: Sequence[str], labels: Mapping[str, str]
    ) -> list[Grid]:
        names = [n for n in varying if n not in self.across]
        if not self.per_metric:
            return [grid(records, names, self.across, labels)]
        return [grid(r, names, self.across, labels, titled=True) for r in _by_metric(records)]

    def fits(self, grids: Sequence[Grid], width: int) -> bool:
        """Whether the sheets are narrow and short enough; cheap for those that are far off."""
        short = self.most_rows is None or all(len(g.rows) <= self.most_rows for g in grids)
        near = all(len(g.heads) * (GAP + 1) <= width for g in grids)
        return short and near and all(g.sheet().width <= width for g in grids)


def _packed(
    records: Sequence[Record], names: Sequence[str], labels: Mapping[str, str], width: int
) -> list[Grid]:
    """As many metrics beside each other as fit, then the next ones below."""
    grids: list[Grid] = []
    held: list[Record] = []
    for found in _by_metric(records):
        wider = grid([*held, *found], names, (), labels)
        if held and wider.sheet().width <= width:
            held, grids[-1] = [*held, *found], wider
        else:
            held = list(found)
            grids.append(grid(held, names, (), labels))
    return grids


def _title(number: int, text: str) -> Text:
    """Of one sheet among several; a blank line stands between them."""
    return Text(("\n" if number else "") + f"  {text}")


def constants(records: Sequence[Record]) -> list[str]:
    """The dimensions with one known value in all records: ``dtype float32``, ``2 ranks``."""
    shown = []
    for name in _names(records):
        values = {r.dimensions.get(name) for r in records}
        value = values.pop()
        if values or value is None:
            continue
        if name == "ranks":
            shown += [f"{value} ranks"] if value != 1 else []
        elif name == MEMORY_NODE:
            shown.append(str(value).replace("mem", MEMORY_NODE))
        else:
            shown.append(f"{figures.label(name)} {figures.quantity(name, value)}")
    return shown


def families(records: Sequence[Record]) -> list[list[Record]]:
    """Metrics measured at the same places share a table; those without samples have their own."""
    places: dict[str, set[Key]] = {}
    names = _names(records)
    for record in records:
        place = tuple(record.dimensions.get(n) for n in names)
        places.setdefault(record.metric, set()).add(place)
    sampled = {r.metric for r in records if r.figure.n != 1}
    groups: dict[tuple[frozenset[Key], bool], list[str]] = {}
    for metric, found in places.items():
        groups.setdefault((frozenset(found), metric in sampled), []).append(metric)
    return [[r for r in records if r.metric in metrics] for metrics in groups.values()]


def _layouts(records: Sequence[Record], varying: Sequence[str]) -> Iterator[_Layout]:
    """Candidates, densest first; several GPUs or hosts bound the rows."""
    units = len({r.dimensions.get(UNIT) for r in records})
    several = units > 1
    if units > MANY_ROWS:
        return
    arms = tuple(n for n in (ARM, MEMORY_NODE) if n in varying)
    one_metric = len({r.metric for r in records}) == 1
    yield _Layout(arms, bool(arms) and one_metric, FEW_ROWS if several else None)
    if several:
        yield _Layout((UNIT, *arms), True, MANY_ROWS)
        yield _Layout((UNIT,), True, MANY_ROWS)
    most = MANY_ROWS if several else None
    if arms:
        yield _Layout(arms, True, most)
    if parts := tuple(n for n in varying if n in records[0].points):
        yield _Layout((), False, MANY_ROWS)
        yield _Layout(parts, True, most)
    yield _Layout((), False, most)


def _varying(records: Sequence[Record]) -> list[str]:
    """Dimensions with several values: words before sizes, so that a size series stays whole."""
    values = {n: {r.dimensions.get(n) for r in records} for n in _names(records)}
    names = [n for n, found in values.items() if len(found) > 1]
    places = [n for n in (UNIT, CPU_NODE, MEMORY_NODE, ARM, "env") if n in names]
    sizes = [
        n for n in names if n not in places and all(isinstance(v, int | float) for v in values[n])
    ]
    return [n for n in names if n not in places and n not in sizes] + sizes + places


def _names(records: Sequence[Record]) -> list[str]:
    """Every dimension's name, in the order in which the records have them."""
    return list(dict.fromkeys(n for r in records for n in r.dimensions))


def _by_metric(records: Sequence[Record]) -> list[list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.metric, []).append(record)
    return list(groups.values())
