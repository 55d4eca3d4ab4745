"""
Runs the statements of the hot path without SQLAlchemy's work per row and statement.

A night brings millions of readings; building each statement anew costs more than the
database does. Statements are made once per table, values go to the driver as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, CursorResult, Dialect, Table
from sqlalchemy.types import TypeDecorator

from topobench.db.engine import mapped, mask_url

COPY_ROWS = 4
"""From here on PostgreSQL's COPY beats a pipeline of INSERTs."""


@dataclass(frozen=True, slots=True)
class _Insert:
    """An INSERT of one table for one engine; ``converters`` by position."""

    text: str
    copy: str
    values: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    converters: tuple[tuple[int, Callable[[Any], Any]], ...]

    def parameters(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """The row's values as the driver takes them."""
        values = self.values(row)
        if not self.converters:
            return values
        changed = list(values)
        for position, convert in self.converters:
            changed[position] = convert(changed[position])
        return tuple(changed)


_made: dict[tuple[str, str], _Insert] = {}


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that have a value for every column, except a numbered ``id``."""
    if not rows:
        return
    insert = _insert(table, connection.dialect)
    parameters = [insert.parameters(r) for r in rows]
    if connection.dialect.name == "postgresql" and len(rows) >= COPY_ROWS:
        _copy(connection, insert.copy, parameters)
    else:
        connection.exec_driver_sql(insert.text, parameters)


def execute(connection: Connection, text: str, *values: Any) -> CursorResult[Any]:
    """Run a statement whose parameters are written ``?`` on both engines."""
    if connection.dialect.paramstyle != "qmark":
        text = text.replace("?", "%s")
    return connection.exec_driver_sql(text, values)


def execute_many(connection: Connection, text: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Run a statement of :func:`execute` once for each row of values."""
    if not rows:
        return
    if connection.dialect.paramstyle != "qmark":
        text = text.replace("?", "%s")
    connection.exec_driver_sql(text, list(rows))


def _copy(connection: Connection, text: str, rows: Sequence[tuple[Any, ...]]) -> None:
    driver: Any = connection.connection.driver_connection
    errors: Any = connection.dialect.loaded_dbapi
    try:
        with driver.cursor() as cursor, cursor.copy(text) as copy:
            for row in rows:
                copy.write_row(row)
    except errors.Error as error:
        lost = isinstance(error, errors.OperationalError)
        raise mapped(error, mask_url(connection.engine.url), lost=lost) from error


def insert_row(connection: Connection, table: Table, row: Mapping[str, Any]) -> int:
    """Insert a row that has a value for every column but ``id``; returns its id."""
    insert = _insert(table, connection.dialect)
    if connection.dialect.name == "postgresql":
        text = f"{insert.text} RETURNING id"
        return int(connection.exec_driver_sql(text, insert.parameters(row)).scalar_one())
    return int(connection.exec_driver_sql(insert.text, insert.parameters(row)).lastrowid)


def _insert(table: Table, dialect: Dialect) -> _Insert:
    key = (table.name, dialect.name)
    if key not in _made:
        _made[key] = _make(table, dialect)
    return _made[key]


def _make(table: Table, dialect: Dialect) -> _Insert:
    columns = [c for c in table.columns if c.name != "id"]
    names = [c.name for c in columns]
    quote = dialect.identifier_preparer.quote
    mark = "?" if dialect.paramstyle == "qmark" else "%s"
    target = f"{quote(table.name)} ({', '.join(map(quote, names))})"
    text = f"INSERT INTO {target} VALUES ({', '.join([mark] * len(names))})"
    converters = []
    for position, column in enumerate(columns):
        if isinstance(column.type, TypeDecorator):  # drivers take all other values as they are
            convert = column.type.dialect_impl(dialect).bind_processor(dialect)
            if convert is not None:
                converters.append((position, convert))
    return _Insert(
        text, f"COPY {target} FROM STDIN", operator.itemgetter(*names), tuple(converters)
    )
