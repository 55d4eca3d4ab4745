"""
Makes a database, brings an older one up to date, refuses a newer one.

Everything happens in one transaction under the database's own lock, so two processes that
create the same store at once both succeed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from topobench import __version__
from topobench.db import rollups, views
from topobench.db.columns import now_text
from topobench.db.comments import put_comments
from topobench.db.engine import foreign_errors, mask_url, reading, use_wal, writing
from topobench.db.schema import REVISION, store_info
from topobench.errors import NotFound, SchemaTooNew, StoreError, StoreUnreachable

SCRIPTS = Path(__file__).with_name("migrations")
LOCK = 0x746F706F
"""PostgreSQL advisory lock that serialises creation and upgrades."""


def prepare(engine: Engine, path: Path | None, scripts: Path = SCRIPTS) -> None:
    """
    Create the schema or bring it to ``REVISION``; an older file is copied first.

    Args:
        path: The SQLite file, or None.
        scripts: Folder of migrations; a parameter for tests.

    Raises:
        SchemaTooNew: A newer topobench wrote it.
        StoreError: The database belongs to something else.
    """
    known = _revisions(scripts)
    found = current(engine)
    if found == known[-1]:
        return
    _refuse_newer(engine, found, known)
    if found is None:
        _refuse_foreign(engine)
    if path is not None:
        use_wal(path)
        if found is not None:
            _back_up(path, found)
    try:
        with writing(engine) as connection:
            _upgrade(connection, scripts, known[-1])
    except StoreUnreachable:
        raise
    except StoreError as error:
        raise StoreError(
            f"{error}; it could not be brought from schema {found or 'none'} to {known[-1]}, and "
            "nothing was changed; restore a copy if it was edited or half restored"
        ) from error


def renew_views(engine: Engine) -> None:
    """Make the views and comments anew, of a database that is at ``REVISION``."""
    with writing(engine) as connection:
        views.renew(connection)
        put_comments(connection)


def check(engine: Engine) -> None:
    """
    Refuse to read a database that is not at ``REVISION``.

    Raises:
        SchemaTooNew: A newer topobench wrote it.
        NotFound: The database is empty.
        StoreError: It is older, or no store.
    """
    found = current(engine)
    if found == REVISION:
        return
    if found is None:
        _refuse_foreign(engine)
        raise NotFound(
            f"{mask_url(engine.url)}: no topobench store; `topobench probe` makes one there"
        )
    _refuse_newer(engine, found, _revisions(SCRIPTS))
    raise StoreError(
        f"{mask_url(engine.url)}: schema {found}, this topobench {__version__} reads {REVISION}; "
        "run `topobench db upgrade`"
    )


def older() -> list[str]:
    """The revisions that can be brought up to date."""
    return [r for r in _revisions(SCRIPTS) if r != REVISION]


def current(engine: Engine) -> str | None:
    """The revision a database is at; None for an empty or foreign one."""
    with reading(engine) as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        found: str | None = connection.execute(
            sa.text("SELECT version_num FROM alembic_version")
        ).scalar()
        return found


def _revisions(scripts: Path) -> list[str]:
    """Our revisions, oldest first; the file names start with them."""
    return sorted(p.name.partition("_")[0] for p in (scripts / "versions").glob("[0-9]*.py"))


def _refuse_newer(engine: Engine, found: str | None, known: list[str]) -> None:
    if found is None or found in known:
        return
    with reading(engine) as connection:
        by = connection.execute(
            sa.select(store_info.c.value).where(store_info.c.key == "tool_version")
        ).scalar()
    raise SchemaTooNew(
        f"{mask_url(engine.url)}: schema {found}, written by topobench {by or 'unknown'}; "
        f"this topobench {__version__} knows schemas up to {known[-1]}: upgrade topobench"
    )


def _refuse_foreign(engine: Engine) -> None:
    with reading(engine) as connection:
        tables = sa.inspect(connection).get_table_names()
    ours = {"alembic_version", "store_info"}
    if tables and not ours & set(tables):
        raise StoreError(
            f"{mask_url(engine.url)}: holds tables of something else "
            f"({', '.join(sorted(tables)[:3])}); name a file or database of its own"
        )


def _back_up(path: Path, revision: str) -> Path:
    """Copy the file beside itself before an upgrade; a copy that exists is kept."""
    target = path.with_name(f"{path.name}.before-upgrade-from-{revision}")
    if target.exists():
        return target
    partial = target.with_name(target.name + ".part")
    with (
        foreign_errors(str(path)),
        contextlib.closing(sqlite3.connect(path)) as source,
        contextlib.closing(sqlite3.connect(partial)) as copy,
    ):
        source.backup(copy)
    partial.rename(target)
    return target


def _upgrade(connection: Connection, scripts: Path, target: str) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
    found = None
    if sa.inspect(connection).has_table("alembic_version"):
        found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        if found == target:  # another process was first
            return
    views.drop(connection)
    _run_alembic(connection, scripts, target)
    views.create(connection)
    put_comments(connection)
    if found is not None:
        rollups.rebuild(connection)
    connection.execute(store_info.delete().where(store_info.c.key == "tool_version"))
    connection.execute(
        store_info.insert(),
        [
            {"key": "tool_version", "value": __version__},
            {"key": f"upgraded_to_{target}_at", "value": now_text()},
        ],
    )


def _run_alembic(connection: Connection, scripts: Path, target: str) -> None:
    # Alembic is slow to import, and needed only here.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, target)
