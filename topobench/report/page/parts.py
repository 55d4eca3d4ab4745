"""What a page is made of: sections with text, tables and figures. Pure values, no HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from topobench.report.sheet import Prose, Sheet

MOST_ROWS = 400
"""Rows of one table on a page."""


@dataclass(frozen=True, slots=True)
class Head:
    """A column's title; numbers stand to the right and are sorted as numbers."""

    title: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """
    Rows of text.

    Args:
        styles: A class per row (``bad``, ``warn`` or empty), or none at all.
        cut: Rows that were left out.
        folded: It is opened by a click.
        dense: Each row keeps to one line; what is cut shows under the pointer.
    """

    heads: Sequence[Head]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    styles: Sequence[str] = ()
    cut: int = 0
    header: bool = True
    folded: bool = False
    dense: bool = False

    def limited(self, most: int = MOST_ROWS) -> Table:
        """The first rows, and how many more there are."""
        if len(self.rows) <= most:
            return self
        left = len(self.rows) - most
        return replace(self, rows=self.rows[:most], styles=self.styles[:most], cut=left)


@dataclass(frozen=True, slots=True)
class Figure:
    """
    A chart with the table behind it.

    Args:
        name: Of the element; unique on a page.
        traces: Plotly's traces, without colours of a theme.
        layout: What its layout has beside the theme's.
        lead: What it shows, in a sentence or two: also the text for those who cannot see it.
    """

    name: str
    title: str
    lead: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    table: Table

    @property
    def spec(self) -> dict[str, Any]:
        """What the page's script draws; Plotly reads tags in its texts, so they are escaped."""
        return {
            "data": _escaped(list(self.traces)),
            "layout": _escaped(self.layout),
            "names": [t.get("name", "") for t in self.traces],
        }


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG drawing, shown as an image of its own so that its styles stay inside."""

    svg: str
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Text; ``tone`` is empty, ``dim``, ``warn`` or ``bad``; ``depth`` is how far it is set in."""

    text: str
    tone: str = ""
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Commands:
    """Lines to copy, each with what it does."""

    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Missing:
    """What is not there, why, and the command that fills it."""

    text: str
    command: str


Part = Table | Figure | Picture | Paragraph | Commands | Missing


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of the page; ``name`` is its anchor."""

    name: str
    title: str
    parts: Sequence[Part] = field(default_factory=tuple)


def kind_of(part: Part) -> str:
    """The word by which a template chooses how to write a part."""
    return type(part).__name__.lower()


def from_rich(parts: Iterable[RenderableType]) -> list[Part]:
    """The tables and paragraphs of a terminal report, for a page."""
    return [made for part in parts if (made := _part(part)) is not None]


_OURS = frozenset({"hovertemplate", "texttemplate"})
"""Keys whose values are markup written here, with no foreign text in it."""


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if isinstance(value, dict):
        return {k: v if k in _OURS else _escaped(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(v) for v in value]
    return value


_TONES = {"red": "bad", "yellow": "warn", "dim": "dim"}


def _part(part: RenderableType) -> Part | None:
    if isinstance(part, Sheet):
        heads = [Head(c.name, c.number) for c in part.columns]
        rows = [[value.strip() for value in row] for row in part.rows]
        styles = [_TONES.get(s, "") for s in part.row_styles]
        return Table(heads, rows, styles=styles, header=part.header).limited()
    if isinstance(part, Prose):
        tone = _TONES.get(part.style.removeprefix("bold "), "")
        return Paragraph(part.text, tone, max(0, part.indent - 2) // 2)
    text = part.plain if isinstance(part, Text) else str(part)
    return Paragraph(text.strip()) if text.strip() else None
