"""
Runs other people's SQL so that it really only reads.

SQLite: the file is opened read-only *and* an authorizer allows nothing but SELECT, for
ATTACH, PRAGMA and VACUUM INTO write elsewhere even then. PostgreSQL: one statement, as a
cursor of a read-only transaction that is rolled back, by a role that is no superuser; a
superuser's SELECT can run programs and read files.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.engine import URL

from topobench.db.columns import time_text
from topobench.db.engine import (
    foreign_errors,
    make_engine,
    mask_url,
    parse_url,
    sqlite_path,
    sqlite_uri,
)
from topobench.db.files import check_place
from topobench.db.views import VIEWS
from topobench.errors import StoreError, StoreUnreachable, UsageError

ROLE = "topobench_read"
TIMEOUT_SECONDS = 60.0
MAX_ROWS = 1_000_000
MAX_VALUE_BYTES = 100_000_000
MAX_ANSWER_BYTES = 400_000_000
"""All texts of an answer together."""

MAKE_ROLE = f"""\
CREATE ROLE {ROLE} LOGIN;
GRANT USAGE ON SCHEMA public TO {ROLE};
GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ROLE};
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {ROLE};"""
"""What the owner of a PostgreSQL store runs once, so that free SQL has a role of its own."""

_ALLOWED = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    }
)
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer"})


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns and rows of a query; values are plain JSON types."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def run_sql(url: str, text: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Answer:
    """
    Run one SELECT of the user's own.

    Args:
        url: URL of the store.

    Raises:
        UsageError: Not one valid SELECT; the message is the database's.
        StoreError: It took too long, or the role may do more than read.
    """
    parsed = parse_url(url)
    if parsed.drivername == "sqlite":
        return _run_sqlite(parsed, text, timeout_seconds)
    return _run_postgresql(parsed, text, timeout_seconds)


def plain(value: Any) -> Any:
    """
    A database's value as a plain JSON type: times as text, bytes as hexadecimal text.

    A decimal that is no number is such a float; arrays and objects are their JSON text, as in
    SQLite; what JSON has no word for is its text.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        whole = value.is_finite() and value == value.to_integral_value()
        return int(value) if whole else float(value)
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(_nested(value), ensure_ascii=False, sort_keys=True)
    return str(value)


def _nested(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _nested(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_nested(v) for v in value]
    return plain(value)


def _run_sqlite(url: URL, text: str, timeout_seconds: float) -> Answer:
    path = sqlite_path(url)
    if path is None:
        raise UsageError("a database in memory holds nothing to ask")
    check_place(path, create=False)
    deadline = time.monotonic() + timeout_seconds
    with foreign_errors(str(path)):
        connection = sqlite3.connect(sqlite_uri(path, read_only=True), uri=True, timeout=5)
    with contextlib.closing(connection):
        with foreign_errors(str(path)):  # no database, no right to read: not the user's SQL
            connection.execute("SELECT 1 FROM sqlite_master").fetchall()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        connection.set_authorizer(_authorize)
        try:
            return _collect(connection.execute(text), deadline)
        except (sqlite3.Error, sqlite3.Warning) as error:
            if "interrupted" in str(error) and time.monotonic() <= deadline:
                raise KeyboardInterrupt from error  # Python lost it on the way through SQLite
            raise _sqlite_error(error, timeout_seconds) from error
        except TimeoutError as error:
            raise _too_long(timeout_seconds) from error


def _authorize(
    action: int, first: str | None, second: str | None, _database: str | None, _by: str | None
) -> int:
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _sqlite_error(error: Exception, timeout_seconds: float) -> Exception:
    message = str(error)
    if "interrupted" in message:
        return _too_long(timeout_seconds)
    if "not authorized" in message or "prohibited" in message:
        return UsageError(f"only SELECT may be run here: {message}")
    return UsageError(f"SQL: {message}{_where_names_are(message)}")


_MISSING = re.compile(r"no such table: |relation .* does not exist")
_MISSING_COLUMN = re.compile(r"no such column: |column .* does not exist")


def _where_names_are(message: str) -> str:
    """Beside a name that is not there: the views there are, or where columns are listed."""
    if _MISSING.search(message):
        if any(re.search(rf"\b{view}\b", message) for view in VIEWS):
            return ": the store was made before that view; `topobench db upgrade` makes it"
        return f"; views are {', '.join(VIEWS)}, and tables in docs/schema.md"
    if _MISSING_COLUMN.search(message):
        return "; docs/schema.md has the columns, and SELECT * shows them"
    return ""


def _too_long(timeout_seconds: float) -> StoreError:
    return StoreError(f"the query took longer than {timeout_seconds:g} s; ask for less at a time")


def _collect(cursor: Any, deadline: float) -> Answer:
    """
    All rows of a cursor of the DB API, in steps that grow: rows may be large.

    Args:
        deadline: By the monotonic clock.
    """
    if cursor.description is None:
        raise UsageError("SQL: give one SELECT that returns rows")
    found: list[tuple[Any, ...]] = []
    size, step = 0, 1
    while rows := cursor.fetchmany(step):
        for row in rows:
            found.append(tuple(map(plain, row)))
            size += sum(len(v) for v in found[-1] if isinstance(v, str))
        if len(found) > MAX_ROWS:
            raise UsageError(f"SQL: more than {MAX_ROWS} rows; add a LIMIT or a WHERE")
        if size > MAX_ANSWER_BYTES:
            raise UsageError(
                f"SQL: more than {MAX_ANSWER_BYTES / 1e6:.0f} MB of text; ask for fewer columns "
                "or rows"
            )
        if time.monotonic() > deadline:
            raise TimeoutError
        step = min(2 * step, 10_000)
    return Answer(tuple(d[0] for d in cursor.description), tuple(found))


def _run_postgresql(url: URL, text: str, timeout_seconds: float) -> Answer:
    with _unprivileged(url) as connection:
        import psycopg  # an optional package, which is there once a connection is

        connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        milliseconds = int(timeout_seconds * 1000)
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {milliseconds}")
        driver: Any = connection.connection.driver_connection
        # The server counts each step for itself, and a SELECT can lift its limit.
        deadline = time.monotonic() + timeout_seconds
        whole = threading.Timer(timeout_seconds + 1, driver.cancel_safe)
        whole.start()
        try:
            # DECLARE CURSOR by the extended protocol: one statement, and only a SELECT.
            with driver.cursor(name="topobench_query") as cursor:
                cursor.execute(text)
                return _collect(cursor, deadline)
        except (psycopg.errors.QueryCanceled, TimeoutError) as error:
            raise _too_long(timeout_seconds) from error
        except psycopg.errors.ProtocolViolation as error:  # $1 without a value
            raise UsageError(f"SQL: {str(error).strip()}") from error
        except psycopg.OperationalError as error:
            raise StoreUnreachable(f"{mask_url(url)}: {error}") from error
        except psycopg.Error as error:
            message = str(error).strip()
            raise UsageError(f"SQL: {message}{_where_names_are(message)}") from error
        finally:
            whole.cancel()


@contextlib.contextmanager
def _unprivileged(url: URL) -> Iterator[Connection]:
    """
    A transaction, rolled back at the end, of a role that can do no harm.

    A superuser's own session is no place for it: whatever role it takes on, a SELECT of
    set_config() gives it up again. So another one logs in.
    """
    with _session(url) as connection:
        powers = _powers(connection)
        if not powers:
            yield connection
            return
    reader = url.set(username=ROLE, password=None)
    with contextlib.ExitStack() as stack:
        try:
            connection = stack.enter_context(_session(reader))
            powers_of_reader = _powers(connection)
        except StoreError as error:
            raise _refusal(url, powers, f"{ROLE} cannot log in ({error})") from error
        if powers_of_reader:
            raise _refusal(url, powers, f"{ROLE} may do more too ({', '.join(powers_of_reader)})")
        yield connection


@contextlib.contextmanager
def _session(url: URL) -> Iterator[Connection]:
    engine = make_engine(url, read_only=True)
    try:
        with foreign_errors(mask_url(url)):
            connection = engine.connect()
        with connection, connection.begin() as transaction:
            yield connection
            transaction.rollback()
    finally:
        engine.dispose()


_POWERS = """
SELECT rolname FROM pg_roles
WHERE (rolsuper AND rolname IN (session_user, current_user))
   OR (rolname IN ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files')
       AND pg_has_role(session_user, oid, 'MEMBER'))
   OR (rolsuper AND pg_has_role(session_user, oid, 'MEMBER'))
ORDER BY rolname
"""


def _powers(connection: Connection) -> Sequence[str]:
    """Roles of this session that may do more than read tables."""
    return list(connection.execute(sa.text(_POWERS)).scalars())


def _refusal(url: URL, powers: Sequence[str], why: str) -> StoreError:
    return StoreError(
        f"{mask_url(url)}: free SQL is refused, because role {url.username or 'of this user'} may "
        f"read files and run programs on the server ({', '.join(powers)}), and {why}. "
        f"Give a URL of a plain role, or make one:\n{MAKE_ROLE}"
    )
