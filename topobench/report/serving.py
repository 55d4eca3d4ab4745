"""Loads on servers beside each other, window by window: what held the limit, what spoilt one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from topobench.report.figures import UNKNOWN
from topobench.report.probe_tables import constants
from topobench.report.records import Places, Record
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet
from topobench.server_definition import PROBE
from topobench.units import count, format_percent, format_seconds

MOST_WINDOWS = 60
_COLUMNS = (
    Column("server"),
    Column("arguments"),
    Column("on"),
    Column("arm"),
    Column("load", number=True),
    Column("answered\n/s", number=True),
    Column("TTFT\nP50", number=True),
    Column("\nP99", number=True),
    Column("TPOT\nP50", number=True),
    Column("\ntoken/s", number=True),
    Column("\ngood", number=True),
    Column("\nfailed", number=True),
    Column("P99 in\nlimit"),
)
_OPTIONAL = ("arguments", "on", "arm", "\nfailed")
"""Columns that are left out where every row has the same."""

Cell = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServingTables:
    """
    What a sweep's servers did under load.

    Args:
        records: Of the probe serving, for what is equal in all of them.
        notes: Sentences that belong to the figures.
        cells: Of the probe serving.
    """

    records: Sequence[Record]
    notes: Sequence[str]
    cells: Sequence[Cell]
    places: Places

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A caption, a row for each window, and what searches found."""
        yield Text(PROBE, style="bold")
        if common := constants(self.records):
            yield Prose(", ".join(common))
        for note in self.notes:
            yield Prose(note)
        yield from served(self.cells, self.places)


def served(cells: Sequence[Cell], places: Places) -> Iterator[RenderableType]:
    """
    A row for each window of load; then the largest load that each search found.

    Args:
        cells: Of the probe serving.
    """
    found = [(c, w) for c in cells for w in _windows(c)]
    if not found:
        return
    limits = {f"P99 of {_latency(w)} within {format_seconds(w['limit_seconds'])}" for _, w in found}
    yield Prose(
        f"limit: {' | '.join(sorted(map(clean, limits)))}. load: requests in flight, or offered a "
        "second (/s). good: share of all requests within every limit. A P99 needs 299 requests."
    )
    yield _sheet([_row(c, w, places) for c, w in found[:MOST_WINDOWS]])
    if (left := len(found) - MOST_WINDOWS) > 0:
        yield Prose(f"{count(left, 'window')} more: in the run's conditions")
    for cell in cells:
        if search := cell["conditions"].get("search"):
            yield Prose(_answer(cell, search))
    for fault, times in _faults([w for _, w in found]).items():
        yield Prose(f"* not used, {count(times, 'window')}: {clean(fault)}", style="yellow")


def _windows(cell: Cell) -> Sequence[Mapping[str, Any]]:
    windows: Sequence[Mapping[str, Any]] = cell["conditions"].get("windows") or ()
    return windows


def _sheet(rows: Sequence[Sequence[str]]) -> Sheet:
    kept = [
        n
        for n, column in enumerate(_COLUMNS)
        if column.title not in _OPTIONAL or len({row[n] for row in rows}) > 1
    ]
    return Sheet([_COLUMNS[n] for n in kept], [[row[n] for n in kept] for row in rows])


def _row(cell: Cell, window: Mapping[str, Any], places: Places) -> list[str]:
    latencies = window["latencies"]
    ttft = latencies.get("ttft_from_schedule_seconds") or latencies["ttft_seconds"]
    return [
        clean(cell["params"].get("server", UNKNOWN)) + ("" if window["valid"] else " *"),
        clean(cell["params"].get("arguments") or UNKNOWN),
        places.unit(cell),
        clean(cell["arm"]),
        _load(window),
        f"{window['answered_per_second']:.4g}",
        _seconds(ttft.get("p50")),
        _seconds(ttft.get("p99")),
        _seconds(latencies.get("tpot_seconds", {}).get("p50")),
        f"{window['output_tokens_per_second']:.4g}",
        format_percent(window["good"] / window["n"]) if window["n"] else UNKNOWN,
        str(window["errors"]),
        {True: "yes", False: "no", None: UNKNOWN}[window["meets"]],
    ]


def _server(cell: Cell) -> str:
    params = cell["params"]
    return " ".join(clean(params[k]) for k in ("server", "arguments") if params.get(k))


def _load(window: Mapping[str, Any]) -> str:
    if window["concurrency"] is not None:
        return f"{window['concurrency']:g}"
    return f"{window['offered_per_second']:.4g}/s"


def _latency(window: Mapping[str, Any]) -> str:
    name = {"ttft": "the time to the first token", "e2e": "the whole time"}[window["limit_on"]]
    return name if window["concurrency"] is not None else f"{name} from when a request was due"


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else format_seconds(value)


def _answer(cell: Cell, search: Mapping[str, Any]) -> str:
    """``mine, arm none: holds 64 requests in flight; 67 are over the limit (9 windows)``."""
    who = f"{_server(cell)}, arm {clean(cell['arm'])}"
    closed = all(w["concurrency"] is not None for w in _windows(cell))
    unit = "requests in flight" if closed else "requests a second"
    tried = f"{count(search['windows'], 'window')} tried"
    if search["best"] is None:
        return f"{who}: no load was found ({clean(search['ended'])}, {tried})"
    over = search["first_over"]
    beyond = "more was not tried" if over is None else f"{over:.4g} are over the limit"
    share = search["over_share_upper"]
    proof = "" if share is None else f"; at most {format_percent(share)} over it, at 95 %"
    return f"{who}: holds {search['best']:.4g} {unit}; {beyond} ({tried}{proof})"


def _faults(windows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for window in windows:
        for fault in window["faults"][:1]:
            found[fault] = found.get(fault, 0) + 1
    return found
