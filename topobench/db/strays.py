"""
Finds values that are not of their column: SQLite keeps whatever a hand writes.

topobench writes none of them; PostgreSQL takes none. A whole store is looked through, so only where
something has already gone wrong, or a value looks as if it had.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from topobench.db import schema
from topobench.db.columns import JsonText, UtcTime
from topobench.db.contradictions import contradictions
from topobench.db.engine import make_engine, parse_url, reading, sqlite_path
from topobench.db.identities import identities
from topobench.db.loose import loose
from topobench.db.stray_words import Stray
from topobench.errors import StoreError

_WHOLE = (sa.Integer, sa.BigInteger, sa.Boolean)


def blame(url: str) -> StoreError | None:
    """The error of a SQLite store that was edited by hand, and wrongly; None for any other."""
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    if path is None or not path.exists():
        return None
    engine = make_engine(parsed, read_only=True)
    try:
        with reading(engine) as connection:
            found = next(_strays(connection), None)
            return None if found is None else found.error(connection)
    finally:
        engine.dispose()


def _strays(connection: Connection) -> Iterator[Stray]:
    """One after the other, so that what comes later can rest on what was looked at before."""
    yield from values(connection)
    yield from loose(connection)
    yield from contradictions(connection)
    yield from identities(connection, ())


def all_strays(connection: Connection) -> list[Stray]:
    """Everything in a store that topobench did not write, by table and column."""
    keys = list(loose(connection))
    told = {(s.table, s.column) for s in keys}
    strange = [s for s in values(connection) if (s.table, s.column) not in told]
    spoilt = {s.table for s in (*keys, *strange)}
    return [*keys, *strange, *contradictions(connection), *identities(connection, spoilt)]


def check_whole(connection: Connection, url: str | None = None) -> None:
    """
    Look at every key of a store whose rows are all to be told.

    Args:
        url: What the store is called; None: by its own.

    Raises:
        StoreError: One leads nowhere, or to a wrong row; the message says where it stands.
    """
    found = next(itertools.chain(loose(connection), contradictions(connection)), None)
    if found is not None:
        raise found.error(connection, url)


def stray(connection: Connection) -> StoreError | None:
    """The error that names the first value that is not of its column; None if there is none."""
    found = next(values(connection), None)
    return None if found is None else found.error(connection)


def values(connection: Connection) -> Iterator[Stray]:
    """The first value of each column that is not of it, and how many there are."""
    if connection.dialect.name == "sqlite":
        for table in schema.metadata.sorted_tables:
            yield from _strays_of(connection, table)


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


def _strays_of(connection: Connection, table: Table) -> Iterator[Stray]:
    keys = list(table.primary_key.columns)
    wrong = {c: w for c in table.columns if (w := _wrong(c)) is not None}
    told = [sa.func.sum(sa.case((clause, 1), else_=0)) for _, clause in wrong.values()]
    any_wrong = sa.or_(sa.false(), *(clause for _, clause in wrong.values()))
    counts = connection.execute(sa.select(*told).where(any_wrong)).one() if told else ()
    for (column, (belongs, clause)), count in zip(wrong.items(), counts, strict=True):
        if count:
            shown = [sa.type_coerce(c, sa.types.NullType()) for c in (*keys, column)]
            row = connection.execute(sa.select(*shown).where(clause).limit(1)).one()
            place = dict(zip((k.name for k in keys), row, strict=False))
            yield Stray(table.name, place, column.name, str(row[-1]), belongs, count)


_OBJECTS = frozenset(
    ("conditions", "description", "document", "env", "facts", "labels", "params", "point")
)
"""Columns of JSON that hold names with values, never a list."""


def _wrong(column: sa.Column[Any]) -> tuple[str, sa.ColumnElement[bool]] | None:
    """What belongs into a column, and the condition on a value that is none; NULL never is."""
    kept = sa.type_coerce(column, sa.types.NullType())
    kind = sa.func.typeof(kept)
    if isinstance(column.type, _WHOLE):
        return "a whole number", kind.not_in(("integer", "null"))
    if isinstance(column.type, sa.Float):
        infinite = sa.func.abs(kept) > sys.float_info.max
        return "a number", sa.or_(kind.in_(("text", "blob")), infinite)
    if isinstance(column.type, UtcTime):
        return "a time", kept.op("NOT GLOB")("[0-9]*-[0-9]*-[0-9]*T[0-9]*:[0-9]*:[0-9]*Z")
    if isinstance(column.type, JsonText) or column.name in ("point", "params"):
        whole = sa.case((sa.func.json_valid(kept) == 1, sa.func.json_type(kept)), else_="")
        kinds = ("object",) if column.name in _OBJECTS else ("object", "array")
        return "a JSON text", sa.and_(kept.is_not(None), whole.not_in(kinds))
    if isinstance(column.type, sa.Text):
        return "a text", kind == "blob"
    return None
