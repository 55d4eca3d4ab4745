"""What every exporter gives, and how it puts foreign text into XML."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

LONGEST = 200
"""Characters of one foreign text in an export."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A topology in a foreign format, and what to say about it."""

    text: str
    warnings: tuple[str, ...] = ()


def printable(value: object) -> str:
    """Foreign text on one line, without characters that XML or a reader cannot take."""
    text = str(value)[:LONGEST]
    return "".join(c if c == " " or unicodedata.category(c)[0] not in "CZ" else " " for c in text)


def attribute(value: object) -> str:
    """Foreign text as the value of an XML attribute, without its quotes."""
    text = printable(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;").replace("'", "&apos;")
