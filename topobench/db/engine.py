"""
Connections to SQLite and PostgreSQL: URLs, pragmas, transactions, foreign errors mapped.

Writing transactions of SQLite take the write lock at BEGIN: a transaction that reads
first and writes later fails at once, whatever the busy timeout, when another writer came
between. Readers use plain BEGIN and, in WAL mode, never block the writer.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
)

from topobench.errors import StoreError, StoreUnreachable, UsageError
from topobench.extras import install_line
from topobench.masking import MASK, mask_urls

BUSY_SECONDS = 20.0
"""How long a writer waits for another one."""

CONNECT_SECONDS = 10
_PLACE = ("host", "port", "dbname", "hostaddr", "service", "options")
"""Parameters of a PostgreSQL URL that say which database is meant."""
_POSTGRES_PORT = 5432


def parse_url(url: str) -> URL:
    """
    The parsed URL of a store.

    Raises:
        UsageError: It names neither SQLite nor PostgreSQL.
    """
    accepted = "sqlite:///FILE, sqlite:////ABSOLUTE/FILE or postgresql+psycopg://HOST/DATABASE"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise UsageError(f"store {mask_url(url)!r} is no database URL; use {accepted}") from error
    if not url.startswith("sqlite:") and url.partition("?")[0].count("@") > 1:
        # Which @ ends the password? A wrong guess would show a part of it as the host's name.
        raise UsageError(
            f"store {mask_url(url)!r}: more than one @; write those of the user, the password and "
            "the database as %40 (and / as %2F)"
        )
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise UsageError(
            f"store {mask_url(url)!r}: {parsed.drivername} is not known; use {accepted}"
        )
    if parsed.drivername == "sqlite" and not parsed.database:
        raise UsageError(f"store {url!r} names no file; use sqlite:///FILE")
    return parsed


def mask_url(url: str | URL) -> str:
    """The URL with its password as ``***``, fit for logs, reports and the database."""
    text = url if isinstance(url, str) else _rendered(url)
    if text.startswith("sqlite:"):
        return text
    # Without a scheme it is no URL, and may hold a password all the same.
    return mask_urls(re.sub(r"^([^:@/]*):(?!//).*@", rf"\1:{MASK}@", text))


def _rendered(url: URL) -> str:
    try:
        return url.render_as_string(hide_password=False)
    except UnicodeEncodeError:  # a path of other bytes
        return f"{url.drivername}:///{url.database}"


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite URL; None for PostgreSQL and for ``:memory:``."""
    if url.drivername != "sqlite" or url.database in (None, ":memory:"):
        return None
    return Path(str(url.database))


def place_of(url: str) -> str:
    """
    Which database a URL names, whoever asks it: without user, password and settings.

    Raises:
        UsageError: It names neither SQLite nor PostgreSQL.
    """
    parsed = parse_url(url)
    if parsed.drivername == "sqlite":
        path = sqlite_path(parsed)
        return f"sqlite:///{parsed.database if path is None else path.resolve()}"
    given = {k: v for k, v in sorted(parsed.query.items()) if k in _PLACE}
    port = parsed.port or _POSTGRES_PORT
    return mask_url(URL.create("postgresql", None, None, parsed.host, port, parsed.database, given))


def make_engine(url: URL, *, read_only: bool = False) -> Engine:
    """
    An engine whose writing transactions come from :func:`writing`.

    Raises:
        StoreError: The PostgreSQL driver is not installed.
    """
    if url.drivername == "sqlite":
        return _sqlite_engine(url, read_only)
    arguments = {
        "connect_timeout": CONNECT_SECONDS,
        "keepalives_idle": 30,
        "tcp_user_timeout": 30_000,  # milliseconds; a cut cable is noticed, not waited for
        "application_name": "topobench",
    }
    try:
        engine = sa.create_engine(
            url,
            connect_args=arguments,
            pool_pre_ping=True,
            execution_options={"postgresql_readonly": read_only},
        )
    except (ImportError, NoSuchModuleError) as error:
        raise StoreError(
            f"store {mask_url(url)} needs psycopg 3: {install_line('postgres')} ({error})"
        ) from error

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        connection.autocommit = True  # a SET inside a transaction ends with it
        connection.execute(f"SET lock_timeout = {round(BUSY_SECONDS * 1000)}")
        connection.autocommit = False

    return engine


def _sqlite_engine(url: URL, read_only: bool) -> Engine:
    path = sqlite_path(url)

    def connect() -> sqlite3.Connection:
        target = ":memory:" if path is None else sqlite_uri(path, read_only=read_only)
        return sqlite3.connect(
            target,
            uri=path is not None,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )

    pool = sa.StaticPool if path is None else sa.QueuePool
    engine = sa.create_engine(url, creator=connect, poolclass=pool)

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys=ON")
        if not read_only:
            connection.execute("PRAGMA synchronous=NORMAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("topobench_writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def sqlite_uri(path: Path, *, read_only: bool) -> str:
    """
    The ``file:`` URI of a database.

    A reader in a folder it may not write to opens the file as immutable if there is no
    write-ahead log: SQLite would otherwise want to make its shared-memory file there.
    """
    text = f"file://{quote(os.fsencode(path.absolute()))}"  # any bytes, whatever the locale
    if not read_only:
        return f"{text}?mode=rwc"
    log = path.with_name(path.name + "-wal")
    frozen = not os.access(path.absolute().parent, os.W_OK) and not log.exists()
    return f"{text}?mode=ro" + ("&immutable=1" if frozen else "")


def use_wal(path: Path) -> None:
    """
    Put a database file into WAL mode; the mode stays with the file.

    Raises:
        StoreError: SQLite would not (an exotic file system).
        StoreUnreachable: Another process keeps the file locked.
    """
    with (
        foreign_errors(str(path)),
        contextlib.closing(
            sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        ) as connection,
    ):
        if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            return
        # Changing the mode ignores the busy timeout, so we wait for other creators ourselves.
        for _ in range(int(BUSY_SECONDS * 20)):
            try:
                mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                time.sleep(0.05)
        else:
            raise StoreUnreachable(f"{path}: locked by another process for {BUSY_SECONDS:g} s")
    if mode != "wal":
        raise StoreError(
            f"{path}: SQLite cannot use a write-ahead log here (journal mode {mode}); "
            "put the file on a local disk"
        )


@contextlib.contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One writing transaction: committed at the end, rolled back on an error."""
    with foreign_errors(mask_url(engine.url)), engine.connect() as plain:
        connection = plain.execution_options(topobench_writes=True)
        with connection.begin():
            yield connection


@contextlib.contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One transaction that sees one state of the database throughout."""
    with foreign_errors(mask_url(engine.url)), engine.connect() as plain:
        connection = plain
        if engine.dialect.name == "postgresql":
            connection = plain.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        with connection.begin():
            yield connection


@contextlib.contextmanager
def hurried(engine: Engine, seconds: float) -> Iterator[Connection]:
    """
    As :func:`reading`, where nobody has longer than that.

    Raises:
        StoreUnreachable: Time is up, or as ever.
    """
    deadline = time.monotonic() + seconds
    with reading(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {round(1000 * seconds)}")
            yield connection
            return
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(lambda: time.monotonic() > deadline, 1000)
        try:
            yield connection
        finally:
            driver.set_progress_handler(None, 0)


@contextlib.contextmanager
def foreign_errors(where: str) -> Iterator[None]:
    """Map errors of SQLAlchemy, sqlite3 and psycopg to ours."""
    try:
        yield
    except DBAPIError as error:
        raise mapped(error.orig or error, where, lost=_is_lost(error)) from error
    except SQLAlchemyError as error:
        raise StoreError(f"{where}: {error}") from error
    except sqlite3.Error as error:
        raise mapped(error, where, lost=isinstance(error, sqlite3.OperationalError)) from error


def name_errors(engine: Engine) -> None:
    """Let errors name this database also where they come up in a transaction of another one."""

    @event.listens_for(engine, "handle_error")
    def _map(context: sa.engine.ExceptionContext) -> None:
        found = context.original_exception
        lost = context.is_disconnect or isinstance(context.sqlalchemy_exception, OperationalError)
        raise mapped(found, mask_url(engine.url), lost=lost) from found


def _is_lost(error: DBAPIError) -> bool:
    return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)


_ADVICE = {
    "database is locked": "another process is writing; end it or wait",
    "database or disk is full": "make room on the disk",
    "disk i/o error": "look at the disk and its file system",
    "lock timeout": "another session holds a lock; end it or wait",
    "no space left on device": "make room on the server's disk",
    "connection refused": "is the server running, and does it listen at that address and port?",
    "failed to resolve host": "check the name of the server in the URL",
    "connection to server on socket": "is the server running here? The URL names no host",
    "timeout expired": "is the server's host up, and do firewalls let that port through?",
    "no route to host": "is the server's host up, and do firewalls let that port through?",
}
_BROKEN = {
    "file is not a database": "it is no SQLite file; name another file or move it away",
    "database disk image is malformed": (
        "the file is damaged; move it away, or mend a copy with `sqlite3 FILE .recover`"
    ),
    "unable to open database file": "check that the folder exists and may be written to",
    "attempt to write a readonly database": "it may not be written to; check its owner and mode",
    "no such table": (
        "it was not made by topobench, or is damaged: `topobench db upgrade` makes lost views anew"
    ),
    **dict.fromkeys(
        ("duplicate column name", "no such column", "already exists"),
        "its tables are not those of the schema that it names",
    ),
    "other objects depend on it": "views of your own rest on it; drop them, and make them again",
    "does not exist": "check the names in the URL, or make it with createdb or createuser",
    "authentication failed": "check user and password (URL, PGPASSWORD or ~/.pgpass)",
    "no password supplied": "give a password (URL, PGPASSWORD or ~/.pgpass)",
    "no pg_hba.conf entry": "the server's pg_hba.conf must allow this host, user and database",
    "permission denied for schema": (
        "this role needs rights in the database: GRANT ALL ON SCHEMA public TO it"
    ),
    "permission denied": "this role may not; deploy/postgres/roles.sql makes one that writes",
}


def mapped(error: Any, where: str, *, lost: bool) -> StoreError:
    """
    Our error for a driver's.

    Args:
        lost: The connection may be gone; trying again may help.
    """
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    lowered = text.lower()
    for symptom, advice in _BROKEN.items():
        if symptom in lowered:
            return StoreError(f"{where}: {text}: {advice}")
    for symptom, advice in _ADVICE.items():
        if symptom in lowered:
            return StoreUnreachable(f"{where}: {text}: {advice}")
    if not lost:
        return StoreError(f"{where}: {text}")
    return StoreUnreachable(f"{where}: {text}")
