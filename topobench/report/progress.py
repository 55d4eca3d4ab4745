"""
How far a sweep is: a live display on a terminal, plain lines elsewhere.

A display must never cost a measurement: whatever goes wrong in here turns it off and is
otherwise forgotten.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Concatenate, ParamSpec

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from topobench.reading import Cell, Run
from topobench.report import figures
from topobench.report.safe import clean
from topobench.report.show import show
from topobench.report.words import counts_text, shown_params
from topobench.units import format_elapsed, format_span

LINE_SECONDS = 5.0
"""Plain lines are at least this far apart, however many hosts there are."""
SHOWN_HOSTS = 4
"""Hosts whose current cell a live display names."""

P = ParamSpec("P")


def _harmless(
    method: Callable[Concatenate[Progress, P], None],
) -> Callable[Concatenate[Progress, P], None]:
    """A failing display goes dark; the sweep never hears of it."""

    @functools.wraps(method)
    def wrapped(self: Progress, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.is_dark:
            return
        try:
            method(self, *args, **kwargs)
        except Exception:
            self.is_dark = True
            self._stop()

    return wrapped


class Progress:
    """
    Counts cells as they end and says how long the rest may take.

    Args:
        console: A ``StderrConsole``, so that standard output stays one document;
            None for no display at all (cron).
        total_cells: Cells that will run.
        estimated_seconds: The plan's estimate for all of them.
        names: Host key -> name to show.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        console: Console | None,
        total_cells: int,
        estimated_seconds: float,
        *,
        names: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_dark = console is None
        self._console = console or Console(quiet=True)
        self._total = total_cells
        self._estimated = estimated_seconds
        self._names = names or {}
        self._clock = clock
        self._started = self._last_line = clock()
        self._counts: Counter[str] = Counter()
        self._current: dict[str, str] = {}
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finish()

    @property
    def done(self) -> int:
        """Cells that ended."""
        return self._counts.total()

    @property
    def remaining_seconds(self) -> float:
        """About how long the rest takes: by the plan at first, by the pace after a tenth."""
        elapsed = self._clock() - self._started
        if self.done * 10 >= self._total:
            return elapsed * max(0, self._total - self.done) / max(1, self.done)
        return max(0.0, self._estimated - elapsed)

    @_harmless
    def cell_started(self, cell: Cell) -> None:
        """A host begins a cell."""
        self._current[cell.host] = _words(cell)

    @_harmless
    def run_finished(self, cell: Cell, run: Run) -> None:
        """A cell ended, well or not."""
        self._counts[run.status] += 1
        self._current.pop(cell.host, None)
        if self._live is None and self._clock() - self._last_line >= LINE_SECONDS:
            self._last_line = self._clock()
            self._say(
                f"{self._summary()}; last: {self._name(cell.host)} {_words(cell)} {run.status}"
            )

    @_harmless
    def expect(self, cells: int) -> None:
        """So many cells were added while the sweep goes on."""
        self._total += cells

    @_harmless
    def note(self, text: str) -> None:
        """Something a reader should know now."""
        self._say(clean(text))

    @_harmless
    def _start(self) -> None:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self._picture,
                console=self._console,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    @_harmless
    def _finish(self) -> None:
        self._stop()
        self._say(f"{self._summary()}")

    def _stop(self) -> None:
        """Give the terminal back as it was, cursor included."""
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(Exception):
                live.stop()

    def _say(self, line: str) -> None:
        show(self._console, Text(line, no_wrap=True, overflow="ignore"))

    def _summary(self) -> str:
        """``12/40 cells (11 ok, 1 failed), 63 s, about 2 min left``."""
        parts = [f"{self.done}/{self._total} cells"]
        if self._counts:
            parts[0] += f" ({counts_text(self._counts)})"
        parts.append(format_elapsed(self._clock() - self._started))
        if self.done < self._total:
            parts.append(f"about {format_span(self.remaining_seconds)} left")
        return ", ".join(parts)

    def _picture(self) -> RenderableType:
        """A bar with the summary, and what some of the hosts are at."""
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=max(1, self._total), completed=self.done, width=20),
            Text(self._summary()),
        )
        current = list(self._current.items())
        lines = [
            Text(f"  {self._name(h)}: {words}", no_wrap=True, overflow="ellipsis")
            for h, words in current[:SHOWN_HOSTS]
        ]
        if len(current) > SHOWN_HOSTS:
            lines.append(Text(f"  and {len(current) - SHOWN_HOSTS} more hosts"))
        return Group(bar, *lines)

    def _name(self, host: str) -> str:
        return clean(self._names.get(host, host))


def _words(cell: Cell) -> str:
    """``host_to_device local, chunk 64 KiB, direction h2d``."""
    params = [
        f"{figures.label(k)} {figures.quantity(k, v)}"
        for k, v in shown_params(cell.case.params).items()
        if v is not None
    ]
    return ", ".join([f"{clean(cell.case.probe)} {clean(cell.arm.name)}", *params])
