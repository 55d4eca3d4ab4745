"""
The nightly roll-up: median and spread of each series, metric, point and day, kept for ever.

A day is worked out anew from all its readings whenever a sweep with runs on it ends or comes
in. Days whose results were removed keep what they had.
"""

from __future__ import annotations

import itertools
import operator
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite

from topobench.db import schema
from topobench.db.keys import chunks
from topobench.db.records import Row
from topobench.reading import MEASURED

ROWS = 20_000
"""Readings and roll-ups in memory at a time."""

_key = operator.attrgetter("series_id", "day", "metric_id", "point")


def refresh(connection: Connection, sweep_ids: Iterable[int]) -> int:
    """Work out the days of these sweeps' runs anew; returns how many roll-ups that were."""
    r = schema.run
    total = 0
    for sweep_id in sweep_ids:
        days = sa.select(r.c.series_id, r.c.day).where(r.c.sweep_id == sweep_id).distinct()
        for some in chunks(sorted(map(tuple, connection.execute(days)))):
            pairs = sa.tuple_(r.c.series_id, r.c.day).in_(some)
            total += _fill(connection, _readings().where(pairs))
    return total


def rebuild(connection: Connection) -> int:
    """Work out every day that has results; returns how many roll-ups that were."""
    return _fill(connection, _readings())


def bring_in(
    source: Connection,
    target: Connection,
    translated: Callable[[sa.Table, Any], Row],
    refused: Collection[int],
) -> None:
    """
    Bring in the days of another store whose results were removed there.

    Args:
        translated: A row of the other store with the keys of this one.
        refused: Clusters of the other store that stay out.
    """
    table, r, s, h = schema.night_rollup, schema.run, schema.series, schema.host
    left = sa.exists().where(r.c.series_id == table.c.series_id, r.c.day == table.c.day)
    query = (
        sa.select(table)
        .select_from(table.join(s).join(h))
        .where(~left, h.c.cluster_id.not_in(refused))
    )
    rows = source.execute(query, execution_options={"yield_per": ROWS})
    statement = _upsert(target, beats=operator.gt)
    for some in chunks((translated(table, row) for row in rows), ROWS):
        target.execute(statement, some)


def _readings() -> sa.Select[Any]:
    r, d = schema.run, schema.reading
    return (
        sa.select(r.c.series_id, r.c.day, d.c.metric_id, d.c.point, d.c.median)
        .select_from(r.join(d))
        .where(r.c.status.in_([str(s) for s in MEASURED]), d.c.median.is_not(None))
        .order_by(r.c.series_id, r.c.day, d.c.metric_id, d.c.point)
    )


def _fill(connection: Connection, query: sa.Select[Any]) -> int:
    rows = connection.execute(query, execution_options={"yield_per": ROWS})
    statement = _upsert(connection)
    total = 0
    for some in chunks(_rolled(rows), ROWS):
        connection.execute(statement, some)
        total += len(some)
    return total


def _upsert(connection: Connection, beats: Callable[[Any, Any], Any] = operator.ge) -> Any:
    """
    A day that had more readings keeps them: its results were removed in part since.

    Args:
        beats: How the new number of readings compares with the one that it replaces.
    """
    table = schema.night_rollup
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = make(table)
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={name: new[name] for name in ("n", "median", "mad")},
        where=beats(new.n, table.c.n),
    )


def _rolled(rows: Iterable[Any]) -> Iterator[Row]:
    for (series_id, day, metric_id, point), group in itertools.groupby(rows, key=_key):
        values = [r.median for r in group]
        middle = statistics.median(values)
        yield {
            "series_id": series_id,
            "metric_id": metric_id,
            "point": point,
            "day": day,
            "n": len(values),
            "median": middle,
            "mad": statistics.median(abs(v - middle) for v in values),
        }
