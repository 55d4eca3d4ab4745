"""
Text from outside, made fit for a terminal.

Host names, reasons and log lines come from machines we do not control. They are shown
as text: never as markup, colour, cursor movement or a new line.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from rich.text import Text

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that steer a terminal or hide: controls, bidi marks, line ends."""

LONGEST = 600
"""Characters of one foreign text that a report shows."""


def clean(value: Any, limit: int = LONGEST) -> str:
    r"""
    The value as one line of printable text; control characters become ``\x1b`` and the like.

    Args:
        limit: Longer text is cut, and the cut is said so.
    """
    text = str(value)
    cut = len(text) - limit
    if cut > 0:
        text = f"{text[:limit]} ... ({cut} more characters)"
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in _HIDDEN else c for c in text)


def command(line: str) -> Text:
    """A line to copy: never wrapped."""
    return Text(f"  {clean(line)}", style="cyan", no_wrap=True, overflow="ignore")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
