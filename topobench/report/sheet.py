"""
Tables whose numbers are never broken.

A :class:`Sheet` prints aligned columns where they fit the terminal, wraps its text columns
where they don't, and falls back to one ``name: value`` line per field. Plain characters
only, so that a copy in a mail or ticket reads the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from topobench.report.safe import clean

GAP = 2
NARROWEST_TEXT = 14


@dataclass(frozen=True, slots=True)
class Column:
    r"""
    A column of a sheet.

    Args:
        title: Lines are separated by ``\n``; the last one stands above the values.
        number: Right-aligned and never wrapped.
        style: Of its values.
    """

    title: str
    number: bool = False
    style: str = ""

    @property
    def name(self) -> str:
        """The title in one line."""
        return self.title.replace("-\n", "").replace("\n", " ").strip()


@dataclass(frozen=True, slots=True)
class Sheet:
    """
    Rows of already formatted text under aligned columns.

    Args:
        rows: One text per column each.
        indent: Spaces before each line.
        header: False leaves the titles out.
        row_styles: A style per row, or empty.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    indent: int = 2
    header: bool = True
    row_styles: Sequence[str] = ()

    @property
    def width(self) -> int:
        """Terminal columns it takes without wrapping."""
        return self.indent + sum(self._natural()) + GAP * (len(self.columns) - 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lines for the width at hand."""
        widths = self._fitted(options.max_width)
        lines = self._stacked(options.max_width) if widths is None else self._aligned(widths)
        for line in lines:
            line.no_wrap, line.overflow, line.end = True, "ignore", "\n"
            yield line

    def _natural(self) -> list[int]:
        titles = [
            max(map(cell_len, c.title.split("\n"))) if self.header else 0 for c in self.columns
        ]
        return [
            max([title, *(cell_len(row[i]) for row in self.rows)]) for i, title in enumerate(titles)
        ]

    def _fitted(self, available: int) -> list[int] | None:
        """Column widths, text columns narrowed to fit; None if even that does not fit."""
        widths = self._natural()
        excess = self.width - available
        for floor in (NARROWEST_TEXT, 1):
            least = [
                w if c.number else min(w, max(floor, _longest_word(c, self.rows, i)))
                for i, (c, w) in enumerate(zip(self.columns, widths, strict=True))
            ]
            while excess > 0 and widths != least:
                widest = max(range(len(widths)), key=lambda i: widths[i] - least[i])
                widths[widest] -= 1
                excess -= 1
        return widths if excess <= 0 else None

    def _aligned(self, widths: Sequence[int]) -> Iterator[Text]:
        if self.header:
            yield from self._header(widths)
        for number, row in enumerate(self.rows):
            style = self.row_styles[number] if self.row_styles else ""
            yield from self._row(row, widths, style)

    def _header(self, widths: Sequence[int]) -> Iterator[Text]:
        titles = [c.title.split("\n") for c in self.columns]
        depth = max(map(len, titles))
        for level in range(depth):
            cells = [
                _pad(t[level - depth + len(t)] if level >= depth - len(t) else "", w, c.number)
                for t, w, c in zip(titles, widths, self.columns, strict=True)
            ]
            yield Text((" " * self.indent + (" " * GAP).join(cells)).rstrip(), style="bold")

    def _row(self, row: Sequence[str], widths: Sequence[int], style: str) -> Iterator[Text]:
        wrapped = [
            [value] if c.number else folded(value, w)
            for value, w, c in zip(row, widths, self.columns, strict=True)
        ]
        for level in range(max(map(len, wrapped))):
            line = Text(" " * self.indent)
            for i, (lines, width, column) in enumerate(
                zip(wrapped, widths, self.columns, strict=True)
            ):
                value = lines[level] if level < len(lines) else ""
                gap = " " * GAP if i else ""
                line.append(gap + _pad(value, width, column.number), style=column.style or style)
            line.rstrip()
            yield line

    def _stacked(self, width: int) -> Iterator[Text]:
        """One field a line; a dash begins each row."""
        room = max(1, width - self.indent - 2)
        for number, row in enumerate(self.rows):
            style = self.row_styles[number] if self.row_styles else ""
            lead = "- "
            for column, value in zip(self.columns, row, strict=True):
                field = f"{column.name}: {value.strip()}" if column.name else value.strip()
                for line in [field] if column.number else folded(field, room):
                    if value.strip():
                        yield Text(" " * self.indent + lead + line, style=style)
                        lead = "  "


def facts(pairs: Iterable[tuple[str, str]], indent: int = 2) -> Sheet:
    """A sheet of ``name  value`` lines without a header; empty values are left out."""
    rows = [(name, value) for name, value in pairs if value]
    return Sheet([Column("", style="dim"), Column("")], rows, indent=indent, header=False)


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph of clean text, wrapped with every line indented alike."""

    text: str
    indent: int = 2
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lines for the width at hand."""
        for line in folded(self.text, max(1, options.max_width - self.indent)):
            yield Text(" " * self.indent + line, style=self.style)


def csv_field(value: object) -> str:
    """
    A field as RFC 4180 wants it; control characters are escaped.

    A spreadsheet runs a text that begins with one of ``=+-@``; an apostrophe keeps it a text.
    """
    text = "" if value is None else clean(value, limit=1 << 20)
    if isinstance(value, str) and text.startswith(("=", "+", "-", "@")) and not _is_number(text):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _longest_word(column: Column, rows: Sequence[Sequence[str]], index: int) -> int:
    """Width below which a text column would break words; very long words may break."""
    words = [w for row in rows for w in row[index].split(" ")] + column.title.split("\n")
    return min(max(map(cell_len, words), default=0), 2 * NARROWEST_TEXT)


def _pad(value: str, width: int, right: bool) -> str:
    space = " " * max(0, width - cell_len(value))
    return space + value if right else value + space


def folded(value: str, width: int) -> list[str]:
    """Lines of at most ``width`` terminal columns, broken at spaces where possible."""
    if cell_len(value) <= width:
        return [value]
    lines = [""]
    for word in value.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width:
            lines[-1] = joined
            continue
        lines += [] if not lines[-1] else [""]
        for character in word:
            if cell_len(lines[-1] + character) > width:
                lines.append("")
            lines[-1] += character
    return lines
