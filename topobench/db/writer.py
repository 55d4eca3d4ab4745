"""
Writes a sweep: one transaction to begin it, one for each run, one to end it.

Everything is idempotent by the UUIDs its makers chose, so a call may be repeated after a
lost connection, and a spool may be imported twice.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from topobench.db import fits, knees, places, rollups, runs, schema, sweeps
from topobench.db.cells import put_cells
from topobench.db.engine import writing
from topobench.db.keys import Keys
from topobench.db.metrics import Metrics
from topobench.db.sweeps import SweepRef, SweepStart
from topobench.errors import NotFound
from topobench.host import Host
from topobench.reading import Cell, Run


class Stored(enum.StrEnum):
    """What became of a run that was handed in."""

    STORED = "stored"
    ALREADY_STORED = "already stored"


class Writer:
    """
    The one writer of a store; safe to call from several threads.

    Args:
        still_there: Raises StoreUnreachable if the database's file was taken away.
    """

    def __init__(self, engine: Engine, still_there: Callable[[], None]) -> None:
        self._engine = engine
        self._still_there = still_there
        self._lock = threading.RLock()
        self._keys = Keys()
        self._metrics = Metrics()
        self._sweeps: dict[str, SweepRef] = {}
        self._unrolled: set[int] = set()

    def begin_sweep(self, start: SweepStart, hosts: Sequence[Host], cells: Sequence[Cell]) -> None:
        """Store a sweep, its hosts and its planned cells in one transaction."""
        with self._transaction() as connection:
            sweeps.put_sweep(connection, start)
            self._add(connection, start.id, hosts, cells)

    def add(self, sweep: str, hosts: Sequence[Host] = (), cells: Sequence[Cell] = ()) -> None:
        """Add hosts and cells to a sweep."""
        with self._transaction() as connection:
            self._add(connection, sweep, hosts, cells)

    def put_run(self, run: Run) -> Stored:
        """Store a run and its readings, and bring its cell up to date."""
        with self._transaction() as connection:
            if runs.is_stored(connection, run):
                return Stored.ALREADY_STORED
            ref = self._ref(connection, self._sweep_uuid(connection, run))
            if run.cell not in ref.cells:  # planned by another process meanwhile
                ref.cells = sweeps.load_cells(connection, ref.id)
            runs.put_run(connection, self._keys, self._metrics, ref, run)
        self._unrolled.add(ref.id)
        return Stored.STORED

    def put_runs(self, sweep: str, new: Sequence[Run]) -> None:
        """
        Store many runs of one sweep, of which none is stored yet, in one transaction.

        Raises:
            NotFound: A cell was never planned in this sweep.
        """
        with self._transaction() as connection:
            ref = self._ref(connection, sweep)
            for run in new:
                if run.cell not in ref.cells:
                    raise NotFound(f"run {run.id} is of cell {run.cell}, which is not stored")
            runs.put_runs(connection, self._keys, self._metrics, ref, new)

    def set_status(
        self, sweep: str, status: str, *, ended_at: str | None, warnings: Sequence[str] = ()
    ) -> None:
        """Set the status of a sweep."""
        with self._transaction() as connection:
            sweep_id = sweeps.set_status(connection, sweep, status, ended_at, warnings)
            if ended_at is not None:
                _derive(connection, [sweep_id])
        if ended_at is not None:
            self._unrolled.discard(sweep_id)

    def resume(self, sweep: str, driver: Mapping[str, Any] | None) -> None:
        """Set a sweep to running again, by another process."""
        with self._transaction() as connection:
            sweeps.set_status(connection, sweep, "running", None, ())
            sweeps.set_driver(connection, sweep, driver)

    def finish_rollups(self) -> None:
        """Work out the roll-ups of sweeps that runs came into after their end."""
        with self._transaction() as connection:
            _derive(connection, sorted(self._unrolled))
        self._unrolled.clear()

    def rebuild_rollups(self) -> int:
        """Work out every nightly roll-up anew; returns how many were."""
        with self._transaction() as connection:
            return rollups.rebuild(connection)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._lock:
            self._still_there()
            try:
                with writing(self._engine) as connection:
                    yield connection
            except BaseException:
                # Ids found in a transaction that was rolled back must not be used again.
                self._keys.forget()
                self._metrics.forget()
                self._sweeps.clear()
                raise

    def _ref(self, connection: Connection, uuid: str) -> SweepRef:
        known = self._sweeps.get(uuid)
        if known is None:
            known = self._sweeps[uuid] = sweeps.load_sweep(connection, uuid)
        return known

    def _add(
        self, connection: Connection, uuid: str, hosts: Sequence[Host], cells: Sequence[Cell]
    ) -> None:
        ref = self._ref(connection, uuid)
        for position, host in enumerate(hosts, len(ref.places.topologies)):
            places.put_host(connection, self._keys, ref.places, ref.id, position, host)
        put_cells(connection, self._keys, ref, cells)

    def _sweep_uuid(self, connection: Connection, run: Run) -> str:
        known = self._sweep_in_memory(run.cell)
        if known is None:
            s, c = schema.sweep, schema.cell
            query = sa.select(s.c.uuid).select_from(c.join(s)).where(c.c.uuid == run.cell)
            known = connection.execute(query).scalar()
            if known is None:
                raise NotFound(
                    f"run {run.id} is of cell {run.cell}, which is not stored; "
                    "plan_cells comes first"
                )
        return known

    def _sweep_in_memory(self, cell: str) -> str | None:
        """The sweep of a cell, the newest first; None if none in memory has it."""
        sweeps_now = reversed(self._sweeps.items())
        return next((uuid for uuid, ref in sweeps_now if cell in ref.cells), None)


def _derive(connection: Connection, sweep_ids: Sequence[int]) -> None:
    """Work out what rests on whole sweeps: roll-ups, lines, knees."""
    for derived in (rollups, fits, knees):
        derived.refresh(connection, sweep_ids)
