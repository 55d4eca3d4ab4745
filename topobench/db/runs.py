"""Stores a run with its readings, samples and members, and brings its cell up to date."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from topobench.db import places, schema
from topobench.db.bulk import (
    COPY_ROWS,
    execute,
    execute_many,
    insert_row,
    insert_rows,
    pipelined,
    scalar,
)
from topobench.db.clocks import told_ahead
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
    window_rows,
)
from topobench.db.sweeps import CellRef, SweepRef
from topobench.errors import StoreConflict
from topobench.reading import MEASURED, Run, to_json

_IDS = "SELECT uuid, id FROM run WHERE sweep_id = ?"
_DIGEST = "SELECT digest FROM run WHERE uuid = ?"
_CELL = """
UPDATE cell SET status = ?, reason_code = ?, reason = ?, attempt = ?
WHERE id = ? AND attempt <= ?
"""
_SERIES = """
UPDATE series SET latest_sweep_id = ?, latest_at = ?, latest_unix_seconds = ?
WHERE id = ? AND (
    latest_unix_seconds IS NULL OR latest_unix_seconds <= ? OR latest_unix_seconds > ?
)
"""


def is_stored(connection: Connection, run: Run) -> bool:
    """
    Whether this very run is stored.

    Raises:
        StoreConflict: Another run has its UUID.
    """
    found = scalar(connection, _DIGEST, run.id)
    if found is None:
        return False
    if found != run_digest(run):
        raise StoreConflict(
            f"run {run.id} is already stored with another content; each run needs a UUID of its own"
        )
    return True


def put_run(connection: Connection, keys: Keys, metrics: Metrics, ref: SweepRef, run: Run) -> None:
    """Store a run that is not stored yet."""
    environment_id = _environment_id(connection, keys, ref, run)
    made = _made(connection, metrics, ref, run, environment_id)
    parts = (run.readings, run.members, run.conditions.get("windows") or ())
    small = max(map(len, parts)) < COPY_ROWS
    with pipelined(connection) if small else contextlib.nullcontext():
        _put_parts(connection, ref, [(insert_row(connection, schema.run, made.row), made)])
        _update_cell(connection, made.cell, made.row)
        if made.measured:
            _update_series(connection, made.cell, made.row)


def put_runs(
    connection: Connection, keys: Keys, metrics: Metrics, ref: SweepRef, runs: Sequence[Run]
) -> None:
    """Store many runs of one sweep, of which none is stored yet; a statement for all of them."""
    environments: dict[tuple[int, int], int] = {}
    made = []
    for run in runs:
        place = id(run.environment), ref.cells[run.cell].host_id
        if place not in environments:
            environments[place] = _environment_id(connection, keys, ref, run)
        made.append(_made(connection, metrics, ref, run, environments[place]))
    insert_rows(connection, schema.run, [m.row for m in made])
    ids = {row.uuid: row.id for row in execute(connection, _IDS, ref.id)}
    _put_parts(connection, ref, [(ids[m.row["uuid"]], m) for m in made])
    execute_many(connection, _CELL, [_cell_values(m.cell, m.row) for m in made])
    measured = [_series_values(m.cell, m.row) for m in made if m.measured]
    execute_many(connection, _SERIES, measured)


@dataclass(frozen=True, slots=True)
class _Made:
    """
    A run as rows.

    Args:
        row: Of ``run``.
        metric_ids: Of each reading.
        faults: What makes each reading unusable, or None.
    """

    run: Run
    cell: CellRef
    row: Row
    metric_ids: tuple[int, ...]
    faults: tuple[str | None, ...]
    measured: bool


def _environment_id(connection: Connection, keys: Keys, ref: SweepRef, run: Run) -> int:
    machine = ref.places.machines.get(ref.cells[run.cell].host_id, {})
    return keys.one(connection, schema.environment, environment_row(run.environment, machine))


def _made(
    connection: Connection, metrics: Metrics, ref: SweepRef, run: Run, environment_id: int
) -> _Made:
    cell = ref.cells[run.cell]
    stored = [metrics.get(connection, r.metric, cell.probe, r.better) for r in run.readings]
    pairs = zip(run.readings, stored, strict=True)
    faults = tuple(fault(r, above_zero=m.above_zero) for r, m in pairs)
    status, reason = judged_status(run, [f for f in faults if f])
    wiring = ref.places.topologies.get(cell.host_id)
    row = {
        **run_row(run, status, reason),
        "cell_id": cell.id,
        "sweep_id": ref.id,
        "series_id": cell.series_id,
        "environment_id": environment_id,
        "topology_id": wiring[0] if wiring else None,
    }
    ids = tuple(m.id for m in stored)
    return _Made(run, cell, row, ids, faults, status in MEASURED)


def _put_parts(connection: Connection, ref: SweepRef, runs: Sequence[tuple[int, _Made]]) -> None:
    """Store details, members, readings and samples of runs, by their ids."""
    details, members, readings, samples, windows = [], [], [], [], []
    conditions: dict[int, Any] = {}
    for run_id, made in runs:
        run = made.run
        if id(run.conditions) not in conditions:
            conditions[id(run.conditions)] = to_json(run.conditions)
        details.append(_detail_row(run_id, run, conditions[id(run.conditions)]))
        members += _member_rows(connection, ref, run_id, run)
        parts = zip(run.readings, made.metric_ids, made.faults, strict=True)
        readings += [
            reading_row(run_id, n, r, metric_id, usable=made.measured and f is None)
            for n, (r, metric_id, f) in enumerate(parts)
        ]
        samples += sample_rows(run_id, run.readings, made.faults)
        windows += window_rows(run_id, run.conditions)
    insert_rows(connection, schema.run_detail, details)
    insert_rows(connection, schema.run_member, members)
    insert_rows(connection, schema.reading, readings)
    insert_rows(connection, schema.sample, samples)
    insert_rows(connection, schema.slo_window, windows)


def _detail_row(run_id: int, run: Run, conditions: Any) -> Row:
    return {
        "run_id": run_id,
        "conditions": conditions,
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
    execute_many(connection, _CELL, [_cell_values(cell, row)])


def _cell_values(cell: CellRef, row: Row) -> tuple[Any, ...]:
    shown = (row["status"], row["reason_code"], row["reason"], row["attempt"])
    return (*shown, cell.id, row["attempt"])


def _update_series(connection: Connection, cell: CellRef, row: Row) -> None:
    """A series knows the sweep it was last measured in; v_latest rests on it."""
    execute_many(connection, _SERIES, [_series_values(cell, row)])


def _series_values(cell: CellRef, row: Row) -> tuple[Any, ...]:
    started = row["started_unix_seconds"]
    ahead = told_ahead(started)
    return (row["sweep_id"], row["started_at"], started, cell.series_id, started, ahead)
