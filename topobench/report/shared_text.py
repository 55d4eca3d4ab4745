"""Models that GPUs share, for a terminal: what more GPUs gain, and what they lose to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from topobench import prefill_shared
from topobench.prefill_shared import Shared
from topobench.report.figures import UNKNOWN
from topobench.report.records import Places
from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet
from topobench.units import count, format_seconds

Cell = Mapping[str, Any]

MOST_ROWS = 40
COLUMNS = (
    Column("case"),
    Column("GPUs"),
    Column("arm"),
    Column("a pass", number=True),
    Column("speed\nup", number=True),
    Column("of\nideal", number=True),
    Column("by\nevents", number=True),
    Column("by\ntwin", number=True),
    Column("pre-\ndicted", number=True),
    Column("error", number=True),
)
MEANING = (
    "One model over several GPUs, two all-reduces a layer. Speed-up: over one GPU. The share of "
    "all-reduces by events around them, and by a twin, a pass without them. Predicted: the time "
    "of one GPU by the GPUs, and the all-reduces by the line that this sweep measured between "
    "the same GPUs."
)
TOGETHER = (
    "one GPU was measured while the others did the same, each by itself: the slowest of them counts"
)


def shared_section(cells: Sequence[Cell], places: Places) -> Iterator[RenderableType]:
    """A table of the cases whose model is shared; nothing where there is none."""
    found = prefill_shared.shared(cells)
    if not found:
        return
    yield Prose(MEANING)
    rows = list(shared_rows(found, places))
    yield Sheet(COLUMNS, rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        yield Prose(f"{count(len(rows) - MOST_ROWS, 'case')} more; query tensor-parallel")
    yield from (Prose(text, style="dim") for text in remarks(found))


def shared_rows(found: Sequence[Shared], places: Places) -> Iterator[Sequence[str]]:
    """A row of :data:`COLUMNS` for each case."""
    for case, label in zip(found, prefill_shared.labels(found), strict=True):
        host = clean(places.hosts.get(case.host, case.host))
        gpus = str(case.ranks) if case.devices else f"{case.ranks} CPU processes"
        yield [
            f"{host}: {clean(label)}" if len(places.hosts) > 1 else clean(label),
            f"{gpus} {clean(case.path_class or '')}".strip(),
            clean(case.arm),
            _seconds(case.seconds),
            UNKNOWN if case.speed_up is None else f"{case.speed_up:.2f}x",
            _percent(case.efficiency),
            _percent(case.events),
            _percent(case.twin),
            _seconds(case.predicted_seconds),
            UNKNOWN if case.error is None else f"{100 * case.error:+.1f} %",
        ]


def remarks(found: Sequence[Shared]) -> Iterator[str]:
    """Why some have no prediction, and what one GPU means."""
    reasons: dict[str, int] = {}
    for case in found:
        if case.because:
            reasons[case.because] = reasons.get(case.because, 0) + 1
    for reason, times in reasons.items():
        yield f"no prediction for {count(times, 'case')}: {clean(reason)}"
    if any(case.alone_at_once for case in found):
        yield TOGETHER


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else format_seconds(value)


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"
