"""
Finds rows whose keys lead nowhere: joins leave them out of answers without a word.

Keys that lead to a wrong row are found beside them (:mod:`contradictions`).

SQLite keeps whatever a hand writes into a key; PostgreSQL takes none. To look through a whole
store of a million readings takes a second, so answers look at what they rest on: tables that stay
small, and of runs the newest, and those of the sweep that is told of. What was looked at is not
looked at again while the file stays as it was: a server answers many times between two nights.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Table

from topobench.db import contradictions, schema
from topobench.db.stray_words import Stray

RUNS, SWEEPS = 10_000, 5
"""So many of the newest are looked at for every answer."""

_FIRST = f"(SELECT max(id) FROM run) - {RUNS}"
_NEWEST = {
    "cell": f"id > (SELECT max(id) FROM cell) - {RUNS}",
    "run": f"id > {_FIRST}",
    "run_id": f"run_id > {_FIRST}",
    "sweep_id": f"sweep_id > (SELECT max(id) FROM sweep) - {SWEEPS}",
    "night_rollup": f"day >= (SELECT day FROM run WHERE id > {_FIRST} ORDER BY id LIMIT 1)",
}
_OF_SWEEP = {
    "cell": "sweep_id = :id OR id IN (SELECT cell_id FROM run WHERE sweep_id = :id)",
    "run": "sweep_id = :id OR cell_id IN (SELECT id FROM cell WHERE sweep_id = :id)",
    "run_id": "run_id IN (SELECT id FROM run WHERE sweep_id = :id)",
    "sweep_id": "sweep_id = :id",
}
"""
Which rows of a table that grows with every run: by its name, else by the column it has.

Rows of a sweep are found from both ends, since either may have been edited.
"""


_SETTLED_SECONDS = 0.1
"""A file that was written less than so long ago may be written again without showing it."""
_State = tuple[tuple[int, int, int], ...]
_fine: dict[str, tuple[_State, set[int | None]]] = {}
"""By a store's file: how it was, and what was looked at then and led somewhere."""


def check_keys(connection: Connection, sweep_id: int | None = None) -> None:
    """
    Look at the keys of the rows that an answer rests on.

    Args:
        sweep_id: Of the sweep that is told of, if it is one.

    Raises:
        StoreError: One leads nowhere; the message says where it stands, and what to do.
    """
    if connection.dialect.name != "sqlite":
        return
    file = connection.engine.url.database or ""
    state = _state(file)
    known, looked_at = _fine.get(file, (None, set[int | None]()))
    if state is None or state != known:
        looked_at = set()
    for part in (None, sweep_id):
        if part not in looked_at:
            _look(connection, part)
            looked_at.add(part)
    if state is not None:
        _fine[file] = state, looked_at


def _look(connection: Connection, sweep_id: int | None) -> None:
    """At the small tables and the newest rows of the others, or at those of a sweep."""
    within = _NEWEST if sweep_id is None else _OF_SWEEP
    for table in _TABLES:
        limits = _limits(table, within)
        if limits or sweep_id is None:
            found = next(_loose_of(connection, table, limits, sweep_id), None)
            if found is not None:
                raise found.error(connection)
    wrong = contradictions.cheap(
        connection, lambda name: _limits(schema.metadata.tables[name], within), sweep_id
    )
    found = next(wrong, None)
    if found is not None:
        raise found.error(connection)


def _state(file: str) -> _State | None:
    """By which a change of a store's files shows; None where one just after would not."""
    found = []
    for name in (file, f"{file}-wal"):
        try:
            status = os.stat(name)
        except OSError:
            continue
        if not status.st_size:  # whoever opens a store makes an empty log
            continue
        if time.time() - status.st_mtime < _SETTLED_SECONDS:
            return None
        found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found) or None


def loose(connection: Connection) -> Iterator[Stray]:
    """Every column of a whole store with keys that lead nowhere."""
    if connection.dialect.name != "sqlite":
        return
    for table in _TABLES:
        # Quicker than ours, and cannot say in which column.
        if connection.exec_driver_sql(f"PRAGMA foreign_key_check({table.name})").first():
            yield from _loose_of(connection, table)


_TABLES = [t for t in schema.metadata.sorted_tables if t.foreign_keys]


def _limits(table: Table, within: Mapping[str, str]) -> str:
    """Which rows of a table, as a condition; empty for all of them."""
    kind = next((k for k in (table.name, *table.c.keys()) if k in within), None)
    return "" if kind is None else within[kind]


def _loose_of(
    connection: Connection, table: Table, limits: str = "", sweep_id: int | None = None
) -> Iterator[Stray]:
    given = {"id": sweep_id}
    conditions = _nowhere(table.name)
    within = f"({limits}) AND " if limits else ""
    anywhere = f"{within}({' OR '.join(conditions.values())})"
    if connection.exec_driver_sql(f"SELECT 1 FROM {table.name} WHERE {anywhere}", given).first():
        for name, condition in conditions.items():
            keys = list(table.primary_key.columns.keys())
            shown = ", ".join(f'"{column}"' for column in (*keys, name))
            query = f"SELECT {shown} FROM {table.name} WHERE {within}{condition} LIMIT 1"
            row = connection.exec_driver_sql(query, given).first()
            if row is not None:
                yield _told(connection, table, name, dict(zip(keys, row, strict=False)), row[-1])


def _told(
    connection: Connection, table: Table, name: str, row: Mapping[str, Any], value: Any
) -> Stray:
    count = f"SELECT count(*) FROM {table.name} WHERE {_nowhere(table.name)[name]}"
    other = next(iter(table.c[name].foreign_keys)).column.table.name
    rows = connection.exec_driver_sql(count).scalar_one()
    return Stray(table.name, row, name, str(value), f"the id of a row of {other}", rows)


@functools.cache
def _nowhere(name: str) -> Mapping[str, str]:
    """Column that leads to another row -> the condition that there is none."""
    found = {}
    for column in schema.metadata.tables[name].columns:
        for key in column.foreign_keys:
            here, there = f'{name}."{column.name}"', key.column
            row = f"SELECT 1 FROM {there.table.name} o WHERE o.{there.name} = {here}"
            found[column.name] = f"({here} IS NOT NULL AND NOT EXISTS ({row}))"
    return found
