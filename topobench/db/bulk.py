"""
Runs the statements of the hot path without SQLAlchemy's work per row and statement.

A night brings millions of readings; building each statement anew costs more than the
database does. Statements are made once per table, values go to the driver as they are.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, CursorResult, Dialect, Table
from sqlalchemy.types import TypeDecorator

from topobench.db.engine import mapped, mask_url
from topobench.errors import StoreError

COPY_ROWS = 4
"""From here on PostgreSQL's COPY beats a pipeline of INSERTs."""


@dataclass(frozen=True, slots=True)
class _Insert:
    """An INSERT of one table for one engine; ``converters`` by position."""

    text: str
    returning: str
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
    elif len(parameters) == 1:
        _driver(connection, "execute", insert.text, parameters[0])
    else:
        _driver(connection, "executemany", insert.text, parameters)


def insert_row(connection: Connection, table: Table, row: Mapping[str, Any]) -> int:
    """Insert a row that has a value for every column but ``id``; returns its id."""
    insert = _insert(table, connection.dialect)
    if connection.dialect.name == "postgresql":
        cursor = _driver(connection, "execute", insert.returning, insert.parameters(row))
        return int(_first(connection, cursor)[0])
    return int(_driver(connection, "execute", insert.text, insert.parameters(row)).lastrowid)


def execute(connection: Connection, text: str, *values: Any) -> CursorResult[Any]:
    """Run a statement whose parameters are written ``?`` on both engines."""
    return connection.exec_driver_sql(_marked(connection, text), values)


def scalar(connection: Connection, text: str, *values: Any) -> Any:
    """The first value of the first row of a statement of :func:`execute`, or None."""
    cursor = _driver(connection, "execute", _marked(connection, text), values)
    row = _first(connection, cursor)
    return None if row is None else row[0]


def execute_many(connection: Connection, text: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Run a statement of :func:`execute` that gives no rows once for each row of values."""
    if len(rows) == 1:
        _driver(connection, "execute", _marked(connection, text), rows[0])
    elif rows:
        _driver(connection, "executemany", _marked(connection, text), rows)


@contextlib.contextmanager
def pipelined(connection: Connection) -> Iterator[None]:
    """
    Send statements to PostgreSQL without waiting for the answer of each.

    An error of one of them is raised at the next answer that is waited for, at the latest at
    the end. COPY, and so ``COPY_ROWS`` rows at once, cannot be in it.
    """
    if connection.dialect.name != "postgresql":
        yield
        return
    driver: Any = connection.connection.driver_connection
    errors: Any = connection.dialect.loaded_dbapi
    try:
        with driver.pipeline():
            yield
    except errors.Error as error:
        raise _mapped(connection, error) from error


def _marked(connection: Connection, text: str) -> str:
    return text if connection.dialect.paramstyle == "qmark" else text.replace("?", "%s")


def _driver(connection: Connection, method: str, text: str, values: Any) -> Any:
    """Run a statement with the driver itself; returns its cursor."""
    driver: Any = connection.connection.driver_connection
    errors: Any = connection.dialect.loaded_dbapi
    try:
        cursor = driver.cursor()
        getattr(cursor, method)(text, values)
    except errors.Error as error:
        raise _mapped(connection, error) from error
    return cursor


def _first(connection: Connection, cursor: Any) -> Any:
    errors: Any = connection.dialect.loaded_dbapi
    try:
        return cursor.fetchone()
    except errors.Error as error:
        raise _mapped(connection, error) from error


def _copy(connection: Connection, text: str, rows: Sequence[tuple[Any, ...]]) -> None:
    driver: Any = connection.connection.driver_connection
    errors: Any = connection.dialect.loaded_dbapi
    try:
        with driver.cursor() as cursor, cursor.copy(text) as copy:
            for row in rows:
                copy.write_row(row)
    except errors.Error as error:
        raise _mapped(connection, error) from error


def _mapped(connection: Connection, error: Any) -> StoreError:
    errors: Any = connection.dialect.loaded_dbapi
    lost = isinstance(error, errors.OperationalError | errors.InterfaceError)
    return mapped(error, mask_url(connection.engine.url), lost=lost)


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
        text,
        f"{text} RETURNING id",
        f"COPY {target} FROM STDIN",
        operator.itemgetter(*names),
        tuple(converters),
    )
