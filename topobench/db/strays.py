"""
Finds values that are not of their column: SQLite keeps whatever a hand writes.

And rows that lead nowhere. topobench writes none of either; PostgreSQL takes none. A whole store
is looked through, so only where something has already gone wrong, or a value looks as if it had.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from topobench.db import schema
from topobench.db.columns import JsonText, UtcTime
from topobench.db.engine import make_engine, mask_url, parse_url, reading, sqlite_path
from topobench.errors import StoreError

_LONGEST = 40
_WHOLE = (sa.Integer, sa.BigInteger, sa.Boolean)
_EDITED = "topobench did not write that: put it right, or restore a copy from before it was edited"


def blame(url: str) -> StoreError | None:
    """The error of a SQLite store that was edited by hand, and wrongly; None for any other."""
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    if path is None or not path.exists():
        return None
    engine = make_engine(parsed, read_only=True)
    try:
        with reading(engine) as connection:
            return stray(connection) or _led_nowhere(connection)
    finally:
        engine.dispose()


def stray(connection: Connection) -> StoreError | None:
    """The error that names the first value that is not of its column; None if there is none."""
    if connection.dialect.name != "sqlite":
        return None
    for table in schema.metadata.sorted_tables:
        found = _stray_of(connection, table)
        if found is not None:
            return StoreError(f"{mask_url(connection.engine.url)}: {found}")
    return None


def check_numbers(connection: Connection, values: Iterable[Any]) -> None:
    """
    Look at numbers as they came from a store.

    Raises:
        StoreError: One is a text, bytes or infinite; the message says where it stands.
    """
    kept = list(values)
    if not {str, bytes}.isdisjoint(map(type, kept)) or math.inf in kept or -math.inf in kept:
        found = stray(connection)
        if found is not None:
            raise found


def check_answer(
    connection: Connection, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """
    Look at the answer of a named query.

    Raises:
        StoreError: A text stands where numbers do; the message says where in the store.
    """
    if connection.dialect.name != "sqlite":
        return
    kinds = [set(map(type, column)) for column in zip(*rows, strict=True)]
    if any(
        str in found and (_OF_NUMBERS.search(name) or not found.isdisjoint((int, float)))
        for name, found in zip(columns, kinds, strict=False)
    ):
        check_numbers(connection, ("",))


_OF_NUMBERS = re.compile(
    r"^n$|^n_|(^|_)(median|lowest|highest)$|_(ratio|seconds|per_second)$|(?<!^at)_(lo|hi)$"
)
"""Columns that never mean to hold text; ``at_lo`` and ``at_hi`` are times."""


def _stray_of(connection: Connection, table: Table) -> str | None:
    keys = list(table.primary_key.columns)
    wrong = {c: w for c in table.columns if (w := _wrong(c)) is not None}
    as_kept = [sa.type_coerce(c, sa.types.NullType()) for c in (*keys, *wrong)]
    told = [sa.case((clause, 1), else_=0) for _, clause in wrong.values()]
    any_wrong = sa.or_(sa.false(), *(clause for _, clause in wrong.values()))
    row = connection.execute(sa.select(*as_kept, *told).where(any_wrong).limit(1)).first()
    if row is None:
        return None
    at = tuple(row[len(keys) + len(wrong) :]).index(1)
    column, (kind, _) = list(wrong.items())[at]
    place = ", ".join(f"{k.name} {value}" for k, value in zip(keys, row, strict=False))
    return (
        f"table {table.name}, row {place}, column {column.name} holds "
        f"{str(row[len(keys) + at])[:_LONGEST]!r} where a {kind} belongs; {_EDITED}"
    )


def _led_nowhere(connection: Connection) -> StoreError | None:
    """The error that names the first row whose other row is not there; None if all are."""
    found = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if found is None:
        return None
    table, row, other, _ = found
    which = "a row" if row is None else f"row {row}"
    return StoreError(
        f"{mask_url(connection.engine.url)}: table {table}, {which} belongs to a row of {other} "
        f"that is not there; {_EDITED}"
    )


def _wrong(column: sa.Column[Any]) -> tuple[str, sa.ColumnElement[bool]] | None:
    """What belongs into a column, and the condition on a value that is none; NULL never is."""
    kept = sa.type_coerce(column, sa.types.NullType())
    kind = sa.func.typeof(kept)
    if isinstance(column.type, _WHOLE):
        return "whole number", kind.not_in(("integer", "null"))
    if isinstance(column.type, sa.Float):
        infinite = sa.func.abs(kept) > sys.float_info.max
        return "number", sa.or_(kind.in_(("text", "blob")), infinite)
    if isinstance(column.type, UtcTime):
        return "time", kept.op("NOT GLOB")("[0-9]*-[0-9]*-[0-9]*T[0-9]*:[0-9]*:[0-9]*Z")
    if isinstance(column.type, JsonText) or column.name in ("point", "params"):
        whole = sa.case((sa.func.json_valid(kept) == 1, sa.func.json_type(kept)), else_="")
        return "JSON text", sa.and_(kept.is_not(None), whole.not_in(("object", "array")))
    if isinstance(column.type, sa.Text):
        return "text", kind == "blob"
    return None
