"""
What is kept for how long: samples for months, results for years, roll-ups for ever.

Prices, verdicts, changes and notes stay as well, and the sweeps that verdicts speak of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from topobench.db import rollups, schema
from topobench.db.columns import parse_time, time_text
from topobench.db.engine import foreign_errors, mask_url, reading, writing
from topobench.db.keys import chunks
from topobench.db.store import Store
from topobench.retention import STANDARD, Retention

_OF_RUN = ("sample", "reading", "run_member", "run_detail", "slo_window")


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """
    What went, or would go.

    Args:
        samples_before: First day (UTC) whose samples are kept.
        results_before: First day whose results are kept.
        size_before_bytes: Of the database; None if it can't be told.
    """

    samples_before: str
    results_before: str
    sweeps: int
    runs: int
    readings: int
    samples: int
    sample_bytes: int
    size_before_bytes: int | None
    size_after_bytes: int | None


def vacuum(
    store: Store,
    retention: Retention = STANDARD,
    *,
    dry_run: bool = False,
    now: str | None = None,
) -> Vacuumed:
    """
    Remove what is older than the retention, and give the room back.

    Args:
        dry_run: Only say what would go.
        now: Ages are counted up to here; UTC, ISO 8601.

    Raises:
        StoreError: Another process writes, or the disk has no room for a rewritten file.
    """
    moment = parse_time(now) if now else datetime.now(UTC)
    samples_before = _day(moment, retention.samples_seconds)
    results_before = _day(moment, retention.results_seconds)
    before = store.size_bytes()
    with reading(store.engine) as connection:
        sweeps = list(connection.execute(_old_sweeps(results_before)).scalars())
        counts = _counts(connection, results_before, samples_before)
    if not dry_run:
        with writing(store.engine) as connection:  # of a day all or nothing
            rollups.refresh(connection, sweeps)
            for some in chunks(sweeps):
                _remove_sweeps(connection, some)
        _remove_samples(store.engine, samples_before)
        _shrink(store.engine)
    return Vacuumed(
        samples_before,
        results_before,
        sweeps=len(sweeps),
        **counts,
        size_before_bytes=before,
        size_after_bytes=None if dry_run else store.size_bytes(),
    )


def _day(moment: datetime, age_seconds: float) -> str:
    try:
        return time_text(moment - timedelta(seconds=age_seconds))[:10]
    except OverflowError:  # kept for ever: from before the calendar begins
        return "0001-01-01"


def _old_sweeps(day: str) -> sa.Select[Any]:
    """Ids of the sweeps that ended and have no run on that day or later."""
    s, r = schema.sweep, schema.run
    young = sa.select(r.c.sweep_id).where(r.c.day >= day)
    return (
        sa.select(s.c.id)
        .where(s.c.started_at < f"{day}T00:00:00.000000Z", s.c.status != "running")
        .where(s.c.id.not_in(young))
        .order_by(s.c.started_at, s.c.id)
    )


def _counts(connection: Connection, results_before: str, samples_before: str) -> dict[str, int]:
    r, d, m = schema.run, schema.reading, schema.sample
    old = r.c.sweep_id.in_(_old_sweeps(results_before).order_by(None))
    runs = connection.execute(sa.select(sa.func.count()).where(old)).scalar_one()
    readings = connection.execute(
        sa.select(sa.func.count()).select_from(d.join(r)).where(old)
    ).scalar_one()
    samples, size = connection.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(sa.func.length(m.c.data)), 0))
        .select_from(m.join(r))
        .where(old | (r.c.day < samples_before))
    ).one()
    return {"runs": runs, "readings": readings, "samples": samples, "sample_bytes": int(size)}


def _remove_sweeps(connection: Connection, ids: list[int]) -> None:
    """Remove sweeps with all that hangs on them; a sweep that was judged stays by name."""
    r, s = schema.run, schema.sweep
    runs = sa.select(r.c.id).where(r.c.sweep_id.in_(ids))
    for name in _OF_RUN:
        table = schema.metadata.tables[name]
        connection.execute(table.delete().where(table.c.run_id.in_(runs)))
    series = schema.series
    connection.execute(
        series.update().where(series.c.latest_sweep_id.in_(ids)),
        {"latest_sweep_id": None, "latest_at": None, "latest_unix_seconds": None},
    )
    for table in (schema.run, schema.cell, schema.sweep_host):
        connection.execute(table.delete().where(table.c.sweep_id.in_(ids)))
    spoken_of = [
        s.c.id.in_(sa.select(t.c.sweep_id).where(t.c.sweep_id.is_not(None)))
        for t in (schema.verdict, schema.fit)
    ]
    connection.execute(s.delete().where(s.c.id.in_(ids), sa.not_(sa.or_(*spoken_of))))


def _remove_samples(engine: Engine, day: str) -> None:
    """In steps, so that a sweep that writes meanwhile waits for none of them long."""
    for some in chunks(_runs_with_samples(engine, day), 2000):
        with writing(engine) as connection:
            for ids in chunks(some):
                table = schema.sample
                connection.execute(table.delete().where(table.c.run_id.in_(ids)))


def _runs_with_samples(engine: Engine, day: str) -> Iterator[int]:
    r, m = schema.run, schema.sample
    query = sa.select(r.c.id).where(r.c.day < day, r.c.id.in_(sa.select(m.c.run_id)))
    with reading(engine) as connection:
        ids = list(connection.execute(query.order_by(r.c.id)).scalars())
    yield from ids


def _shrink(engine: Engine) -> None:
    """Give the room back to the disk: SQLite rewrites its file, PostgreSQL frees its pages."""
    with foreign_errors(mask_url(engine.url)):
        raw = engine.raw_connection()
        try:
            driver: Any = raw.driver_connection
            if engine.dialect.name == "sqlite":
                driver.execute("VACUUM")
                driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                return
            driver.autocommit = True
            try:
                driver.execute("VACUUM (ANALYZE)")
            finally:
                driver.autocommit = False
        finally:
            raw.close()
