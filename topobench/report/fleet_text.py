"""The sweeps of a fleet for people: what went wrong, what is new, what has cleared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from topobench.report.safe import clean
from topobench.report.sheet import Prose
from topobench.report.words import counts_text, minute

Document = Mapping[str, Any]
_LONGEST = 4000
_MOST_PROBLEMS = 5


def render_fleet(data: Document) -> RenderableType:
    """The sweeps of a fleet (``data`` of ``topobench sweep --format json``)."""
    told = [
        *(line for wrong in data["wrong"] for line in _wrong(wrong)),
        *(line for brought in data["spool"] for line in _brought(brought)),
        *(_missed(missed) for missed in data["missed"]),
        *(line for sweep in data["sweeps"] for line in _sweep(sweep)),
    ]
    return Group(*told) if told else Text(f"fleet {clean(data['fleet'])}: nothing is due")


def _wrong(wrong: Document) -> Iterator[RenderableType]:
    yield Text(f"{clean(wrong['cluster'])}: not swept until this is mended", style="bold")
    for line in wrong["mistakes"]:
        yield Prose(clean(line, _LONGEST))


def _brought(brought: Document) -> Iterator[RenderableType]:
    where = "of no store of this fleet"
    if brought["store"] is not None:
        already = brought["already_stored"]
        runs = f"{brought['stored']} new runs" + (f", {already} were there" if already else "")
        where = f"{brought['files']} files, {runs}, into {clean(brought['store'])}"
    yield Text(f"spool: {where}", style="bold")
    for line in brought["problems"][:_MOST_PROBLEMS]:
        yield Prose(f"not brought in: {clean(line, _LONGEST)}")
    left = len(brought["problems"]) - _MOST_PROBLEMS
    if left > 0:
        yield Prose(f"and {left} more; each is in the file .problems beside its own")


def _missed(missed: Document) -> RenderableType:
    name = f"{clean(missed['cluster'])}/{clean(missed['schedule'])}"
    first, last = (minute(missed[k]) for k in ("first", "last"))
    which = first if first == last else f"{first} to {last}"
    more = " or more" if missed["more"] else ""
    times = "time" if missed["count"] == 1 else "times"
    return Prose(
        f"{name}: missed {missed['count']}{more} {times} since the sweep of "
        f"{minute(missed['since'])}: {which} UTC"
    )


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
