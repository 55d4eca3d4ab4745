"""
Consoles and printing that do no harm.

rich ends the program when a reader goes away, whichever stream it read, and sends standard
output to nowhere; and a character that the terminal's encoding lacks is an error to it.
"""

from __future__ import annotations

import io
import os
import sys

from rich.console import Console, Group, RenderableType
from rich.text import Text

PAGE_COLUMNS = 100
"""Of what is read later, in a file, a mail or a ticket."""


class StdoutConsole(Console):
    """
    Standard output; a reader that goes away is a BrokenPipeError, as everywhere in Python.

    Args:
        width: Columns; None takes the terminal's, or :data:`PAGE_COLUMNS` into a file or pipe.
    """

    def __init__(self, width: int | None = None) -> None:
        _write_out_what_cannot_be_encoded(sys.stdout)
        super().__init__(width=width)
        if width is None and not self.is_terminal and not os.environ.get("COLUMNS"):
            self.width = PAGE_COLUMNS

    def on_broken_pipe(self) -> None:
        """Let the caller decide."""
        raise BrokenPipeError


class StderrConsole(Console):
    """Standard error; silent once its reader goes away."""

    def __init__(self) -> None:
        _write_out_what_cannot_be_encoded(sys.stderr)
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True


def whole_line(text: str) -> Text:
    """A line that may be wider than the terminal: what it holds is for copying."""
    return Text(text, no_wrap=True, overflow="ignore")


def show(console: Console, *renderables: RenderableType) -> None:
    """Print, leaving lines that must not be cut (commands, CSV, wide tables) whole."""
    console.print(Group(*renderables), crop=False)


def _write_out_what_cannot_be_encoded(stream: object) -> None:
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
