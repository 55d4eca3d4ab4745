"""Surrogate keys of rows that are known by a digest: looked up once, inserted if absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

T = TypeVar("T")

CHUNK = 400
"""Values in one IN list; old SQLite takes 999 at most."""


class Keys:
    """
    Digest -> id, per table.

    Forget everything when a transaction fails: it may hold ids that were rolled back.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {}

    def forget(self) -> None:
        """Drop every id."""
        self._known.clear()

    def drop(self, table: Table) -> None:
        """Drop the ids of one table: nearly every cell has a series of its own."""
        self._known.pop(table.name, None)

    def known(self, table: Table, digest: str) -> int | None:
        """The id of a row that this object has met already; asks no database."""
        return self._known.get(table.name, {}).get(digest)

    def one(self, connection: Connection, table: Table, row: Mapping[str, Any]) -> int:
        """The id of a row."""
        return self.many(connection, table, [row])[row["digest"]]

    def many(
        self, connection: Connection, table: Table, rows: Iterable[Mapping[str, Any]]
    ) -> Mapping[str, int]:
        """Ids by digest; rows that are not there are inserted."""
        known = self._known.setdefault(table.name, {})
        absent = {r["digest"]: r for r in rows if r["digest"] not in known}
        if absent:
            known.update(find(connection, table, absent))
            # In one order everywhere, or two writers could wait for each other.
            new = [absent[d] for d in sorted(absent) if d not in known]
            if new:
                insert_new(connection, table, new)
                known.update(find(connection, table, [r["digest"] for r in new]))
        return known


def find(connection: Connection, table: Table, digests: Iterable[str]) -> dict[str, int]:
    """Ids of the rows that are there, by digest."""
    found: dict[str, int] = {}
    for some in chunks(digests):
        query = sa.select(table.c.digest, table.c.id).where(table.c.digest.in_(some))
        found.update((d, i) for d, i in connection.execute(query))
    return found


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows; those whose unique columns are taken stay as they are."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    connection.execute(make(table).on_conflict_do_nothing(), rows)


def insert_id(connection: Connection, table: Table, row: Mapping[str, Any]) -> int:
    """Insert one row and return its id."""
    key = connection.execute(table.insert().return_defaults(table.c.id), row).inserted_primary_key
    assert key is not None
    return int(key[0])


def chunks(values: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Lists of at most ``size``."""
    iterator = iter(values)
    while some := list(islice(iterator, size)):
        yield some
