"""What is said of a value that topobench did not write into a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from topobench.db.engine import mask_url
from topobench.errors import StoreError

_LONGEST = 40
_ADVICE = "topobench did not write that: put it right, or restore a copy from before it was edited"
CONTRADICTS = f"one of the two rows was edited: {_ADVICE}"


@dataclass(frozen=True, slots=True)
class Stray:
    """
    A value that is not of its column.

    Args:
        row: Key of the first row that has one, by column.
        value: What stands there, as text.
        belongs: What should: ``a number``.
        rows: How many rows have one.
        advice: What to do.
    """

    table: str
    row: Mapping[str, Any]
    column: str
    value: str
    belongs: str
    rows: int
    advice: str = _ADVICE

    def __str__(self) -> str:
        place = ", ".join(f"{name} {value}" for name, value in self.row.items())
        more = "" if self.rows == 1 else f" (in {self.rows} rows)"
        return (
            f"table {self.table}, row {place}, column {self.column} holds "
            f"{self.value[:_LONGEST]!r} where {self.belongs} belongs{more}; {self.advice}"
        )

    def error(self, connection: Connection, url: str | None = None) -> StoreError:
        """What a command ends with that would have to leave it out, or to believe it."""
        where = mask_url(url or connection.engine.url)
        return StoreError(f"{where}: {self}; `topobench db check` lists what else there is")
