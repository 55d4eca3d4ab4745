"""The sweeps of a fleet for people: what went wrong, what is new, what has cleared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from topobench.report.safe import clean
from topobench.report.sheet import Prose
from topobench.report.words import counts_text

Document = Mapping[str, Any]
_LONGEST = 4000


def render_fleet(data: Document) -> RenderableType:
    """The sweeps of a fleet (``data`` of ``topobench sweep --format json``)."""
    if not data["sweeps"]:
        return Text(f"fleet {clean(data['fleet'])}: nothing is due")
    return Group(*(line for sweep in data["sweeps"] for line in _sweep(sweep)))


def _sweep(sweep: Document) -> Iterator[RenderableType]:
    name = f"{clean(sweep['cluster'])}/{clean(sweep['schedule'])}"
    begun = f"sweep {sweep['sweep'][:8]}" if sweep["sweep"] else "no sweep"
    told = counts_text(sweep["counts"]) if sweep["counts"] else ""
    level = f"verdict {clean(sweep['level'])}" if sweep["level"] else ""
    parts = [begun, told, level, f"exit code {sweep['exit_code']}" if sweep["exit_code"] else ""]
    yield Text(f"{name}: {'; '.join(filter(None, parts))}", style="bold")
    for line in (sweep["message"] or "").splitlines():
        yield Prose(clean(line, _LONGEST))
    for subject, found in sweep["new"].items():
        yield Prose(f"new: {clean(subject)} is {clean(found)}", style="yellow")
    for subject in sweep["cleared"]:
        yield Prose(f"cleared: {clean(subject)}")
