"""Knees of prefill for a terminal, and where theory expects them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from topobench import prefill_curves
from topobench.knee import Knee
from topobench.prefill_curves import Curve, Predicted
from topobench.report.figures import UNKNOWN
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet
from topobench.units import count

Cell = Mapping[str, Any]

MOST_ROWS = 40
COLUMNS = (
    Column("curve"),
    Column("lengths", number=True),
    Column("best\ntoken/s", number=True),
    Column("knee\ntokens", number=True),
    Column("95 %\ninterval", number=True),
    Column("launching\nuntil", number=True),
    Column("memory\nuntil", number=True),
    Column("attention\n25 % from", number=True),
)
MEANING = (
    "knee: the length where tokens per second stop growing. Beside it what theory expects, from "
    "the ceilings of this sweep: launching kernels takes longer than their arithmetic until, "
    "memory takes longer until, attention is a quarter of the arithmetic from."
)
ADDED = "at_once all: each GPU has a model of its own, and the tokens of all of them are added up."


def knees_section(cells: Sequence[Cell], places: Places) -> Iterator[RenderableType]:
    """A table of the curves of a sweep; nothing where no prompt was measured."""
    found = prefill_curves.curves(cells)
    if not found:
        return
    yield Prose(MEANING)
    rows = list(knee_rows(found, cells, places))
    yield Sheet(COLUMNS, rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        yield Prose(f"{count(len(rows) - MOST_ROWS, 'curve')} more; query knee has them all")
    yield from (Prose(text, style="dim") for text in remarks(found))
    reasons: dict[str, int] = {}
    for curve in found:
        if curve.knee.size is None:
            reason = curve.knee.reason.removeprefix("no knee: ")
            reasons[reason] = reasons.get(reason, 0) + 1
    for reason, times in reasons.items():
        yield Prose(f"no knee in {count(times, 'curve')}: {reason}", style="dim")


def remarks(found: Sequence[Curve]) -> Iterator[str]:
    """Whose tokens a curve counts, where several GPUs are not one model."""
    if any(curve.param("at_once") == "all" and curve.n_devices > 1 for curve in found):
        yield ADDED


def knee_rows(
    found: Sequence[Curve], cells: Sequence[Cell], places: Places
) -> Iterator[Sequence[str]]:
    """
    A row of :data:`COLUMNS` for each curve.

    Args:
        cells: Of the whole sweep: the ceilings are measured by other probes.
    """
    roofs = prefill_curves.roofs_of(cells)
    for curve, label in zip(found, prefill_curves.labels(found), strict=True):
        host = clean(places.hosts.get(curve.host, curve.host))
        words = f"{host}: {clean(label)}" if len(places.hosts) > 1 else clean(label)
        yield _row(words, curve, curve.knee, prefill_curves.predicted(curve, roofs))


def _row(label: str, curve: Curve, knee: Knee, expected: Predicted) -> Sequence[str]:
    size = knee.size
    return [
        label,
        str(len(curve.rates)),
        f"{max(curve.medians.values()):.0f}",
        "none" if size is None else _tokens(size.value),
        UNKNOWN if size is None else f"{_tokens(size.lo)}..{_tokens(size.hi)}",
        _tokens(expected.launch),
        _tokens(expected.ridge),
        _tokens(expected.attention),
    ]


def _tokens(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"
