"""
The ``v_*`` views: the stable API for people who write their own SQL.

The same text runs on SQLite, PostgreSQL and DuckDB. Only runs that ended ``ok`` or
``partial`` and readings with a number enter. docs/schema.md lists every column.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import views_arms, views_fleet, views_judged, views_measured, views_price

VIEWS = {
    **views_measured.VIEWS,
    **views_arms.VIEWS,
    **views_fleet.VIEWS,
    **views_judged.VIEWS,
    **views_price.VIEWS,
}
"""Name -> statement that makes it; a view comes after those it reads."""


def create(connection: Connection) -> None:
    """Make every view."""
    for statement in VIEWS.values():
        connection.execute(sa.text(statement))


def renew(connection: Connection) -> None:
    """Make every view anew, with what users built on them in place."""
    if connection.dialect.name == "postgresql":
        for statement in VIEWS.values():
            replacing = statement.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1)
            connection.execute(sa.text(replacing))
        return
    drop(connection)
    create(connection)


def drop(connection: Connection) -> None:
    """Remove our views, so that tables under them may change."""
    for name in reversed(VIEWS):
        connection.execute(sa.text(f"DROP VIEW IF EXISTS {name}"))
