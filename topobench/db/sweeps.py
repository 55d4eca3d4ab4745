"""Rows of ``sweep``, and what a writer remembers of the sweep it writes."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import places, schema
from topobench.db.clocks import limit_seconds
from topobench.db.columns import parse_time, time_text, unix_seconds
from topobench.db.keys import insert_id
from topobench.db.places import Places
from topobench.db.records import Row, finite
from topobench.errors import NotFound, StoreConflict
from topobench.masking import mask_urls


@dataclass(frozen=True, slots=True)
class SweepStart:
    """
    What is known when a sweep begins.

    Args:
        config_text: The effective configuration, secrets masked.
        source: ``probe``, or ``import:nccl-tests`` and the like.
        synthetic: Made by ``demo``; never mixed with what was measured.
        driver: The process that runs it, as ``drivers.Driver`` writes it.
    """

    id: str
    cluster: str
    profile: str
    trigger: str
    seed: int | None
    tool_version: str
    started_at: str
    config_text: str | None = None
    estimated_seconds: float | None = None
    budget_seconds: float | None = None
    warnings: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    tag: str | None = None
    source: str = "probe"
    synthetic: bool = False
    driver: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CellRef:
    """What storing a run needs to know of its cell."""

    id: int
    series_id: int
    host_id: int
    probe: str


@dataclass(slots=True)
class SweepRef:
    """What storing needs to know of a sweep; cells by UUID."""

    id: int
    uuid: str
    cluster: str
    source: str
    synthetic: int
    places: Places
    cells: dict[str, CellRef]


def put_sweep(connection: Connection, start: SweepStart) -> None:
    """
    Store a sweep; once more is the same.

    Raises:
        StoreConflict: Another sweep has this UUID.
    """
    table = schema.sweep
    row = _sweep_row(start)
    found = connection.execute(sa.select(table).where(table.c.uuid == start.id)).first()
    if found is None:
        row["cluster_id"] = places.cluster_id(connection, start.cluster)
        row["warnings"] = [*row["warnings"], *_clock_warnings(connection, row)]
        insert_id(connection, table, row)
    elif (found.started_at, found.seed) != (row["started_at"], row["seed"]):
        raise StoreConflict(f"sweep {start.id} is already stored with another start or seed")


def load_sweep(connection: Connection, uuid: str) -> SweepRef:
    """
    Read back what is stored of a sweep.

    Raises:
        NotFound: It is not stored.
    """
    s, c = schema.sweep, schema.cluster
    row = connection.execute(
        sa.select(s.c.id, s.c.cluster_id, c.c.name, s.c.source, s.c.synthetic)
        .select_from(s.join(c))
        .where(s.c.uuid == uuid)
    ).first()
    if row is None:
        raise NotFound(f"sweep {uuid} is not stored; begin_sweep comes first")
    return SweepRef(
        id=row.id,
        uuid=uuid,
        cluster=row.name,
        source=row.source,
        synthetic=row.synthetic,
        places=places.load(connection, row.id, row.cluster_id),
        cells=load_cells(connection, row.id),
    )


def load_cells(
    connection: Connection, sweep_id: int, position: int = 0, ids: Mapping[str, str] | None = None
) -> dict[str, CellRef]:
    """
    The cells of a sweep, by UUID.

    Args:
        position: Of the first that is wanted.
        ids: UUIDs that are in memory already, by themselves; those are the keys then.
    """
    here = ids or {}
    c, s, p = schema.cell, schema.series, schema.probe_case
    query = (
        sa.select(c.c.uuid, c.c.id, c.c.series_id, s.c.host_id, p.c.probe)
        .select_from(c.join(s).join(p))
        .where(c.c.sweep_id == sweep_id, c.c.position >= position)
    )
    return {
        here.get(r.uuid, r.uuid): CellRef(r.id, r.series_id, r.host_id, sys.intern(r.probe))
        for r in connection.execute(query)
    }


def set_status(
    connection: Connection, uuid: str, status: str, ended_at: str | None, warnings: Sequence[str]
) -> int:
    """
    Set the status of a sweep, of which the id is returned.

    An end before its start is flagged as a clock step.

    Raises:
        NotFound: It is not stored.
    """
    table = schema.sweep
    row = connection.execute(sa.select(table).where(table.c.uuid == uuid)).first()
    if row is None:
        raise NotFound(f"sweep {uuid} is not stored")
    notes = [*row.warnings, *warnings]
    if ended_at is not None and parse_time(ended_at) < parse_time(row.started_at):
        notes.append(
            f"clock_step: the sweep ended at {ended_at}, before it started at "
            f"{row.started_at}: the clock was set back"
        )
    connection.execute(
        table.update().where(table.c.id == row.id),
        {"status": status, "ended_at": ended_at, "warnings": list(dict.fromkeys(notes))},
    )
    return int(row.id)


def set_driver(connection: Connection, uuid: str, driver: Mapping[str, Any] | None) -> None:
    """Name the process that runs a sweep from now on."""
    table = schema.sweep
    connection.execute(table.update().where(table.c.uuid == uuid), {"driver": driver})


def _sweep_row(start: SweepStart) -> Row:
    started = time_text(parse_time(start.started_at))
    text = None if start.config_text is None else mask_urls(start.config_text)
    return {
        "uuid": start.id,
        "profile": start.profile,
        "trigger": start.trigger,
        "tag": start.tag,
        "status": "running",
        "seed": start.seed,
        "tool_version": start.tool_version,
        "config_hash": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
        "config_text": text,
        "started_at": started,
        "started_unix_seconds": unix_seconds(started),
        "estimated_seconds": finite(start.estimated_seconds),
        "budget_seconds": finite(start.budget_seconds),
        "source": start.source,
        "synthetic": int(start.synthetic),
        "labels": dict(start.labels),
        "warnings": list(start.warnings),
        "driver": start.driver,
    }


def _clock_warnings(connection: Connection, row: Row) -> list[str]:
    """
    A warning if the newest sweep of this cluster and source began after this one.

    One whose date lies ahead is told by the next sweep alone: it would be by all until that date.
    """
    if row["source"] != "probe" or row["synthetic"]:
        return []
    table = schema.sweep
    same = [table.c[name] == row[name] for name in ("cluster_id", "source", "synthetic")]
    by_date = sa.select(table).where(*same).order_by(table.c.started_at.desc()).limit(1)
    newest = connection.execute(by_date).first()
    if newest is None or newest.started_at <= row["started_at"]:
        return []
    last = connection.execute(sa.select(sa.func.max(table.c.id)).where(*same)).scalar()
    if newest.started_unix_seconds > limit_seconds() and newest.id != last:
        return []
    return [
        f"clock_step: the newest stored sweep began at {newest.started_at}, after this one at "
        f"{row['started_at']}: a clock was set back, or this sweep comes from a spool"
    ]
