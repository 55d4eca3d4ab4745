"""Stores a run with its readings, samples and members, and brings its cell up to date."""

from __future__ import annotations

from sqlalchemy import Connection

from topobench.db import places, schema
from topobench.db.bulk import execute, insert_row, insert_rows
from topobench.db.columns import clean_text
from topobench.db.keys import Keys
from topobench.db.metrics import Metrics
from topobench.db.records import (
    Row,
    environment_row,
    fault,
    judged_status,
    member_row,
    reading_row,
    run_digest,
    run_row,
    sample_rows,
)
from topobench.db.sweeps import CellRef, SweepRef
from topobench.errors import StoreConflict
from topobench.reading import MEASURED, Run, to_json

_DIGEST = "SELECT digest FROM run WHERE uuid = ?"
_CELL = """
UPDATE cell SET status = ?, reason_code = ?, reason = ?, attempt = ?
WHERE id = ? AND attempt <= ?
"""
_SERIES = """
UPDATE series SET latest_sweep_id = ?, latest_at = ?, latest_unix_seconds = ?
WHERE id = ? AND (latest_unix_seconds IS NULL OR latest_unix_seconds <= ?)
"""


def is_stored(connection: Connection, run: Run) -> bool:
    """
    Whether this very run is stored.

    Raises:
        StoreConflict: Another run has its UUID.
    """
    found = execute(connection, _DIGEST, run.id).scalar()
    if found is None:
        return False
    if found != run_digest(run):
        raise StoreConflict(
            f"run {run.id} is already stored with another content; each run needs a UUID of its own"
        )
    return True


def put_run(connection: Connection, keys: Keys, metrics: Metrics, ref: SweepRef, run: Run) -> None:
    """Store a run that is not stored yet."""
    cell = ref.cells[run.cell]
    stored = [metrics.get(connection, r.metric, cell.probe) for r in run.readings]
    faults = [fault(r, above_zero=m.above_zero) for r, m in zip(run.readings, stored, strict=True)]
    status, reason = judged_status(run, [f for f in faults if f])
    machine = ref.places.machines.get(cell.host_id, {})
    wiring = ref.places.topologies.get(cell.host_id)
    row = {
        **run_row(run, status, reason),
        "cell_id": cell.id,
        "sweep_id": ref.id,
        "series_id": cell.series_id,
        "environment_id": keys.one(
            connection, schema.environment, environment_row(run.environment, machine)
        ),
        "topology_id": wiring[0] if wiring else None,
    }
    run_id = insert_row(connection, schema.run, row)
    measured = status in MEASURED
    readings = [
        reading_row(run_id, n, r, m.id, usable=measured and f is None)
        for n, (r, m, f) in enumerate(zip(run.readings, stored, faults, strict=True))
    ]
    insert_rows(connection, schema.run_detail, [_detail_row(run_id, run)])
    insert_rows(connection, schema.run_member, _member_rows(connection, ref, run_id, run))
    insert_rows(connection, schema.reading, readings)
    insert_rows(connection, schema.sample, sample_rows(run_id, run.readings, faults))
    _update_cell(connection, cell, row)
    if measured:
        _update_series(connection, cell, row)


def _detail_row(run_id: int, run: Run) -> Row:
    return {
        "run_id": run_id,
        "conditions": to_json(run.conditions),
        "warnings": list(run.warnings),
        "log_tail": clean_text(run.log_tail),
    }


def _member_rows(connection: Connection, ref: SweepRef, run_id: int, run: Run) -> list[Row]:
    rows = []
    for member in run.members:
        host_id = places.host_id_of(connection, ref.places, member.host)
        device_id = None
        if member.device:
            device_id = places.device_id_of(connection, ref.places, host_id, member.device)
        rows.append({"run_id": run_id, **member_row(member, host_id, device_id)})
    return rows


def _update_cell(connection: Connection, cell: CellRef, row: Row) -> None:
    """A cell shows its last attempt; an earlier one that arrives late changes nothing."""
    shown = (row["status"], row["reason_code"], row["reason"], row["attempt"])
    execute(connection, _CELL, *shown, cell.id, row["attempt"])


def _update_series(connection: Connection, cell: CellRef, row: Row) -> None:
    """A series knows the sweep it was last measured in; v_latest rests on it."""
    started = row["started_unix_seconds"]
    latest = (row["sweep_id"], row["started_at"], started)
    execute(connection, _SERIES, *latest, cell.series_id, started)
