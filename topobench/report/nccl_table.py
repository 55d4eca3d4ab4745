"""
Collectives in the columns of nccl-tests, in its order, so that both can lie side by side.

Each arm of a gang has a table. Where the terminal is too narrow, or the gangs are too many, the
tables are those of every other probe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from topobench.probes.metrics import ALGBW, BUSBW, LATENCY
from topobench.reading import MEASURED
from topobench.report.figures import UNKNOWN
from topobench.report.probe_tables import ProbeTables, constants
from topobench.report.records import Figure, Places, Record, records
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet
from topobench.units import format_percent

Cell = Mapping[str, Any]
MANY_ROWS = 80
_TYPES = {
    "float32": ("float", 4),
    "float64": ("double", 8),
    "float16": ("half", 2),
    "bfloat16": ("bfloat16", 2),
    "int32": ("int32", 4),
    "int64": ("int64", 8),
}
"""Our name of a type -> that of nccl-tests, and its bytes."""
_PARTED = ("all_gather", "reduce_scatter", "all_to_all")
"""Of these nccl-tests counts the elements of one rank's part."""
_SUMMED = ("all_reduce", "reduce_scatter", "reduce", "ring_p2p")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_IN_PLACE = ("all_reduce", "broadcast", "ring_p2p")
_IN, _OUT = "in", "out_of"
_OWN = ("bytes", "dtype", "reduction", "place", "in_place")
"""Dimensions that are columns."""
_HALF = (LATENCY.name, ALGBW.name, BUSBW.name)


def is_collective(cells: Sequence[Cell]) -> bool:
    """Whether a probe's readings have the columns of nccl-tests."""
    metrics = {r["metric"] for c in cells if c["status"] in MEASURED for r in c["readings"]}
    return metrics.issuperset(_HALF)


@dataclass(frozen=True, slots=True)
class CollectiveTables:
    """
    The figures of one collective.

    Args:
        plain: What is shown where these tables would be too wide or too many.
        cells: Of that probe.
    """

    plain: ProbeTables
    cells: Sequence[Cell]
    places: Places

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One table an arm, or the plain ones."""
        for halves in ((_OUT, _IN), self._used()):
            tables = [*self._tables(halves)]
            rows = sum(len(sheet.rows) for _, sheet in tables)
            widest = max((sheet.width for _, sheet in tables), default=0)
            if tables and rows <= MANY_ROWS and widest <= options.max_width:
                break
        else:
            yield self.plain
            return
        yield Text(clean(self.plain.name), style="bold")
        for note in self.plain.notes:
            yield Prose(note)
        for number, (title, sheet) in enumerate(tables):
            if number:
                yield Text("")
            yield Prose(title)
            yield sheet

    def _used(self) -> tuple[str, ...]:
        """The halves in which something was measured."""
        found = records(self.cells, self.places)
        used = {_place(self.plain.name, r.dimensions) for r in found if r.metric in _HALF}
        return tuple(half for half in (_OUT, _IN) if half in used)

    def _tables(self, halves: Sequence[str]) -> Iterator[tuple[str, Sheet]]:
        gangs: dict[tuple[Any, ...], list[Record]] = {}
        for record in records(self.cells, self.places):
            if record.metric in _HALF:
                fixed = {k: v for k, v in record.dimensions.items() if k not in _OWN}
                gangs.setdefault(tuple(fixed.items()), []).append(record)
        for shared, found in gangs.items():
            told = [Record(r.metric, dict(shared), r.figure) for r in found]
            yield ", ".join(constants(told)), _sheet(self.plain.name, found, halves)


def _place(op: str, params: Mapping[str, Any]) -> str:
    """Whether a result lies where the data was; nccl-tests itself tells."""
    if "in_place" in params:
        return _IN if params["in_place"] else _OUT
    return str(params.get("place") or (_IN if op in _IN_PLACE else _OUT))


def _sheet(op: str, found: Sequence[Record], halves: Sequence[str]) -> Sheet:
    rows: dict[tuple[Any, ...], dict[str, dict[str, Figure]]] = {}
    for record in found:
        where = record.dimensions
        key = where.get("bytes"), where.get("dtype"), where.get("reduction")
        place = rows.setdefault(key, {}).setdefault(_place(op, where), {})
        place[record.metric] = record.figure
    ordered = sorted(rows.items(), key=lambda item: (str(item[0][1]), item[0][0] or 0))
    gang = _Gang.of(op, found[0].dimensions)
    return Sheet(
        [*_HEAD, *(c for half in halves for c in _columns(half)), *_LAST],
        [_row(gang, key, [places.get(half) for half in halves]) for key, places in ordered],
    )


@dataclass(frozen=True, slots=True)
class _Gang:
    """
    What all rows of a table have in common.

    Args:
        parts: Into which nccl-tests divides the size to count elements; None if not known.
        wrong: Elements that are wrong where a result stands.
    """

    op: str
    parts: int | None
    root: str
    wrong: str

    @classmethod
    def of(cls, probe: str, dimensions: Mapping[str, Any]) -> _Gang:
        op = str(dimensions.get("op") or probe)
        own = "in_place" not in dimensions  # else nccl-tests measured; one process has all ranks
        ranks = int(dimensions.get("ranks") or 1)
        parts = ranks if op in _PARTED else 1
        root = dimensions.get("root")
        if root is None:
            root = 0 if op in _ROOTED else -1
        wrong = "0" if own else UNKNOWN
        return cls(op, parts if own or ranks > 1 or op not in _PARTED else None, str(root), wrong)


_HEAD = tuple(
    Column(title, number=True)
    for title in ("size\n(B)", "count\n(elements)", "type\n", "redop\n", "root\n")
)
_LAST = (Column("spread\n", number=True), Column("n\n", number=True))


def _columns(half: str) -> list[Column]:
    above = {_OUT: ("out-of-", "place"), _IN: ("in-", "place")}[half]
    titles = [f"{above[0]}\ntime\n(us)", f"{above[1]}\nalgbw\n(GB/s)"]
    return [Column(t, number=True) for t in (*titles, "busbw\n(GB/s)", "#wrong\n")]


def _row(
    gang: _Gang, key: tuple[Any, ...], halves: Sequence[Mapping[str, Figure] | None]
) -> list[str]:
    size, dtype, reduction = key
    name, width = _TYPES.get(str(dtype), (clean(dtype or UNKNOWN), 0))
    figures = [half[LATENCY.name] for half in halves if half and LATENCY.name in half]
    return [
        str(size),
        str(size // width // gang.parts) if width and gang.parts else UNKNOWN,
        name,
        clean(reduction or ("sum" if gang.op in _SUMMED else "none")),
        clean(gang.root),
        *(text for half in halves for text in _half(half, gang.wrong)),
        _spread(figures),
        _samples(figures),
    ]


def _half(found: Mapping[str, Figure] | None, wrong: str) -> list[str]:
    """Time, algbw, busbw and wrong elements: our own cells that ended well have none."""
    if not found or LATENCY.name not in found:
        return ["N/A"] * 4
    time = found[LATENCY.name].median * 1e6
    rates = (found[m].median / 1e9 if m in found else None for m in (ALGBW.name, BUSBW.name))
    shown = ["N/A" if rate is None else f"{rate:.2f}" for rate in rates]
    return [f"{time:.2f}" if time < 1e4 else f"{time:.0f}", *shown, wrong]


def _spread(found: Sequence[Figure]) -> str:
    known = [f.spread for f in found if f.spread is not None]
    return format_percent(max(known)) if known else UNKNOWN


def _samples(found: Sequence[Figure]) -> str:
    fewest = min(found, key=lambda f: (f.processes, f.n), default=None)
    if fewest is None or not fewest.n:
        return UNKNOWN
    return f"{fewest.processes}x{fewest.n}" if fewest.processes > 1 else str(fewest.n)
