"""Differences between two topologies, by what they mean."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from topobench.report.safe import clean
from topobench.report.sheet import Column, Prose, Sheet
from topobench.topology_diff import GROUPS, HEALTH, TopologyDiff

_MOST_UNKNOWN = 12


def render_diff(found: TopologyDiff) -> RenderableType:
    """A table a group, and what could not be compared."""
    return Group(*_parts(found))


def _parts(found: TopologyDiff) -> Iterator[RenderableType]:
    if not found.changes:
        yield Text("No difference.", style="green")
    for group, meaning in GROUPS.items():
        changes = [c for c in found.changes if c.group == group]
        if not changes:
            continue
        yield Text(f"{group.upper()}: {meaning}", style="bold red" if group == HEALTH else "bold")
        rows = [[clean(c.subject), clean(c.text)] for c in changes]
        yield Sheet([Column("where"), Column("difference")], rows)
        yield Text("")
    if found.unknown:
        shown = ", ".join(clean(u) for u in found.unknown[:_MOST_UNKNOWN])
        more = len(found.unknown) - _MOST_UNKNOWN
        rest = f" and {more} more" if more > 0 else ""
        yield Prose(
            f"Not compared, as only one side knows: {shown}{rest}", indent=0, style="yellow"
        )
