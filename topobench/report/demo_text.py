"""The demo for people: how far it is, what was made, and what to try with it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from topobench.report.safe import clean, command
from topobench.report.sheet import Column, Prose, Sheet
from topobench.report.show import show, whole_line
from topobench.units import count, format_bytes

LINE_SECONDS = 5.0
"""Plain lines are at least this far apart."""


@contextlib.contextmanager
def demo_progress(console: Console | None, total: int) -> Iterator[Callable[[str], None]]:
    """
    A function to call with the words for each sweep that was stored.

    Args:
        console: Where to show it; None for nowhere.
        total: Sweeps that will be stored.
    """
    if console is None:
        yield lambda _: None
        return
    done, last_line = 0, time.monotonic()
    with console.status("making a synthetic fleet") as status:

        def stored(words: str) -> None:
            nonlocal done, last_line
            done += 1
            text = f"{done} of {total} sweeps stored; last: {clean(words)}"
            status.update(text)
            if not console.is_terminal and time.monotonic() - last_line >= LINE_SECONDS:
                last_line = time.monotonic()
                show(console, Text(text))

        yield stored


def render_demo(data: Mapping[str, Any]) -> RenderableType:
    """
    What the demo made.

    Args:
        data: The ``data`` of ``topobench demo --format json``.
    """
    return Group(
        Text("SYNTHETIC: every number in this file is made up.", style="bold yellow"),
        Text(""),
        whole_line(f"Stored in {clean(data['path'])} ({format_bytes(data['size_bytes'])})"),
        *_clusters(data["clusters"]),
        Text(""),
        Text("PLANTED", style="bold"),
        *_planted(data["effects"]),
        Text(""),
        Text("NEXT", style="bold"),
        *(command(line) for line in data["next"]),
        Text(""),
        Prose(
            f"{count(data['sweeps'], 'sweep')}, {count(data['runs'], 'run')}, "
            f"{count(data['readings'], 'reading')}; seed {data['seed']}",
            indent=0,
        ),
    )


def _clusters(clusters: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    columns = (Column("cluster"), Column("SKU"), Column("hosts", number=True),
               Column("nights", number=True), Column("last night"))  # fmt: skip
    rows = [
        [c["name"], c["sku"], str(c["hosts"]), str(c["nights"]), c["last_night"]] for c in clusters
    ]
    yield Sheet(columns, rows)


def _planted(effects: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    if not effects:
        yield Text("  Nothing: every difference is noise.")
    for effect in effects:
        yield Prose(effect["text"])
