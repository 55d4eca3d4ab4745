"""
Finds text where a number belongs: SQLite keeps whatever a hand writes into a column.

Nothing topobench writes is such a text; PostgreSQL takes none. A whole store is looked through,
so only where something has already gone wrong, or a value looks as if it had.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from topobench.db import schema
from topobench.db.engine import make_engine, mask_url, parse_url, reading, sqlite_path
from topobench.errors import StoreError

_LONGEST = 40
_NUMBERS = (sa.Integer, sa.BigInteger, sa.Float, sa.Boolean)


def blame(url: str) -> StoreError | None:
    """The error of a SQLite store that holds text where a number belongs; None for any other."""
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    if path is None or not path.exists():
        return None
    engine = make_engine(parsed, read_only=True)
    try:
        with reading(engine) as connection:
            return stray(connection)
    finally:
        engine.dispose()


def stray(connection: Connection) -> StoreError | None:
    """The error that names the first text in a column of numbers; None if there is none."""
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
        StoreError: One is a text; the message says where it stands.
    """
    if str in map(type, values):
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


_OF_NUMBERS = re.compile(r"^n$|^n_|median$|lowest$|highest$|_(ratio|seconds|per_second|lo|hi)$")
"""Columns that never mean to hold text."""


def _stray_of(connection: Connection, table: Table) -> str | None:
    numbers = [c for c in table.columns if isinstance(c.type, _NUMBERS)]
    keys = list(table.primary_key.columns)
    wrong = [sa.func.typeof(c).in_(("text", "blob")) for c in numbers]
    as_kept = [sa.type_coerce(c, sa.types.NullType()) for c in (*keys, *numbers)]
    query = sa.select(*as_kept).where(sa.or_(sa.false(), *wrong)).limit(1)
    row = connection.execute(query).first()
    if row is None:
        return None
    place = ", ".join(f"{k.name} {value}" for k, value in zip(keys, row, strict=False))
    column, value = next(
        (c.name, value)
        for c, value in zip(numbers, row[len(keys) :], strict=True)
        if isinstance(value, str | bytes)
    )
    return (
        f"table {table.name}, row {place}, column {column} holds {str(value)[:_LONGEST]!r} where a "
        "number belongs; topobench did not write that: put the number back, or restore a copy from "
        "before it was edited"
    )
