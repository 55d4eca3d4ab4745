"""The document every importer gives, ``topobench.import/1``, and how foreign text is read."""

from __future__ import annotations

import enum
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from topobench.errors import ImportFailed
from topobench.reading import to_json

SCHEMA = "topobench.import/1"
MAX_BYTES = 64 << 20
"""Larger texts are refused: even logs of hundreds of ranks are smaller."""
MAX_JSON_BYTES = 16 << 20
"""JSON takes many times its size when it is parsed."""
MAX_ROWS = 20_000
LONGEST_LINE = 4096
"""Longer lines are no lines of a table; patterns are never run over them."""
LONGEST_TEXT = 200
"""Of a name or message taken over from a file."""
MAX_REASONS = 20
LARGEST_COUNT = (1 << 63) - 1
"""What a database column holds."""


class DocumentStatus(enum.StrEnum):
    """
    What a foreign result is worth.

    ``partial``: every row shown is sound, but rows are missing. ``invalid``: nothing in it
    may be used as a measurement.
    """

    OK = "ok"
    PARTIAL = "partial"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Document:
    """
    What one foreign text says, in base units.

    Args:
        version: Of the tool, as it names itself; None where the text does not say.
        reasons: Why the status is not ``ok``, and what else a reader must know.
        malformed_rows: Rows that could not be read, or contradict themselves.
        requested: What the tool was asked to do, as far as the text says.
        rows: Dataclasses of the tool's importer.
        facts: Further keys of the document, by tool.
    """

    tool: str
    version: str | None
    status: DocumentStatus
    reasons: tuple[str, ...]
    malformed_rows: int
    requested: Mapping[str, Any]
    rows: tuple[Any, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The document ``topobench.import/1`` as plain JSON types."""
        return {
            "schema": SCHEMA,
            "tool": self.tool,
            "version": self.version,
            "status": str(self.status),
            "reasons": list(self.reasons[:MAX_REASONS]),
            "malformed_rows": self.malformed_rows,
            "requested": to_json(self.requested),
            **to_json(self.facts),
            "rows": to_json(self.rows),
        }


@dataclass(frozen=True, slots=True)
class Figure:
    """
    A printed number in its base unit.

    Args:
        slack: Half of its last printed digit: what rounding may have changed.
    """

    value: float
    slack: float


_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,2})?")


def figure(token: object, power: int = 0) -> Figure | None:
    """
    A finite number from 0 as printed, times ten to ``power``.

    None for anything else: ``N/A``, ``nan``, ``inf``, a sign, leading zeros. Scaled in
    decimal, so that 25.94 GB/s is 2.594e10 B/s exactly.
    """
    if not isinstance(token, str | int) or isinstance(token, bool):
        return None
    text = str(token)
    if len(text) > 40 or not _NUMBER.fullmatch(text) or text.startswith("-"):
        return None
    number = Decimal(text)
    last = number.as_tuple().exponent
    assert isinstance(last, int)
    return Figure(float(number.scaleb(power)), float(Decimal(5).scaleb(last - 1 + power)))


def whole(token: object) -> int | None:
    """A whole number from 0 that a database can hold; also ``1.23457e+06``."""
    found = figure(token)
    if found is None or found.value != math.floor(found.value) or found.value > LARGEST_COUNT:
        return None
    text = str(token)
    number = int(text) if text.isdigit() else int(Decimal(text))
    return number if number <= LARGEST_COUNT else None


def clean(value: object) -> str:
    """
    Foreign text without control characters, cut to :data:`LONGEST_TEXT`.

    Empty for what is no text or number.
    """
    if not isinstance(value, str | int | BaseException):
        return ""
    text = str(value)[:LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() else " " for c in text).strip()


def check_size(size: int, most: int = MAX_BYTES) -> None:
    """
    Refuse what is too large to be a result.

    Raises:
        ImportFailed: It is.
    """
    if size > most:
        raise ImportFailed(
            f"too large for a result: {size} bytes, more than {most}; give the output of one "
            "run, not a whole log"
        )


def check_rows(rows: int) -> None:
    """
    Refuse a table no run prints.

    Raises:
        ImportFailed: It has too many rows.
    """
    if rows > MAX_ROWS:
        raise ImportFailed(f"more than {MAX_ROWS} rows; give the output of one run")


_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:\s?|\s*\d+:\s|\[\d+\]\s")
"""mpirun --tag-output, srun --label, and Hydra's -prepend-rank."""


def tagged_lines(text: str) -> Iterator[tuple[str, str]]:
    """
    The lines of a text with the launcher's tag taken off: (tag, line).

    Lines too long for any table are left out.
    """
    for raw in io.StringIO(text, newline=None):
        if len(raw) > LONGEST_LINE:
            continue
        line = _ESCAPE.sub("", raw.rstrip("\n"))
        tag = _TAG.match(line)
        yield (tag[0].strip(), line[tag.end() :]) if tag else ("", line)


def load_json(text: str) -> Any:
    """
    Parse JSON; numbers with a point come as their own text.

    Raises:
        ImportFailed: It is no JSON; the message says where.
    """
    check_size(len(text), MAX_JSON_BYTES)
    try:
        return json.loads(_finite(text), parse_float=str, parse_constant=str)
    except json.JSONDecodeError as error:
        raise ImportFailed(f"not complete JSON: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ImportFailed(f"JSON that cannot be read: {clean(error)}") from error


def _finite(text: str) -> str:
    """The text with C's bare ``nan`` and ``inf`` in quotes."""
    return re.sub(r"(:\s?)(-?(?:nan|inf))(?=[,}\]])", r'\1"\2"', text)


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> Sequence[Any]:
    """The value if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else ()
