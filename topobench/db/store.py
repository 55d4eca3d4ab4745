"""
The store: everything topobench keeps, in SQLite or PostgreSQL.

One process writes; any number may read, and readers never block the writer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from topobench.db import migrate, schema
from topobench.db.cells import stored_cells
from topobench.db.columns import now_text
from topobench.db.document import lost_driver, sweep_document, sweep_summary
from topobench.db.engine import (
    make_engine,
    mask_url,
    parse_url,
    reading,
    sqlite_path,
)
from topobench.db.files import check_place, identity
from topobench.db.find import LATEST, find_run, find_sweep, newest_first, strangers, sweep_query
from topobench.db.sweeps import SweepStart
from topobench.db.writer import Stored, Writer
from topobench.errors import StoreUnreachable
from topobench.host import Host
from topobench.reading import BENIGN, Cell, Run, Status


class Store:
    """An open store; a context manager. Made by :meth:`open`."""

    def __init__(self, url: str, engine: Engine, path: Path | None) -> None:
        self._engine = engine
        self._url = mask_url(url)
        self._path = path
        self._identity = identity(path)
        self._writer = Writer(engine, self.check_file)

    @classmethod
    def open(cls, url: str, *, create: bool = True, read_only: bool = False) -> Store:
        """
        Open a store; an absent one is made, an older one copied and brought up to date.

        Args:
            url: ``sqlite:///file``, ``sqlite:////absolute/file`` or
                ``postgresql+psycopg://user@host/database``.
            create: Make it if it is not there.
            read_only: Never write, not even to bring the schema up to date.

        Raises:
            UsageError: The URL is of no kind we know.
            SchemaTooNew: A newer topobench wrote it.
            StoreUnreachable: The server is away, or the file is locked.
            StoreError: It can't be read or written; the message says what to do.
        """
        parsed = parse_url(url)
        path = sqlite_path(parsed)
        if path is not None:
            check_place(path, create=create and not read_only)
        engine = make_engine(parsed, read_only=read_only)
        try:
            if read_only:
                migrate.check(engine)
            else:
                migrate.prepare(engine, path)
        except BaseException:
            engine.dispose()
            raise
        return cls(url, engine, path)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @property
    def url(self) -> str:
        """The URL as given, its password masked."""
        return self._url

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        return self._path

    @property
    def engine(self) -> Engine:
        """For topobench.db only."""
        return self._engine

    def begin_sweep(
        self,
        *,
        id: str,
        cluster: str,
        profile: str,
        trigger: str,
        seed: int | None,
        tool_version: str,
        started_at: str,
        config_text: str | None = None,
        estimated_seconds: float | None = None,
        budget_seconds: float | None = None,
        warnings: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        tag: str | None = None,
        source: str = "probe",
        synthetic: bool = False,
        driver: Mapping[str, Any] | None = None,
        hosts: Sequence[Host] = (),
        cells: Sequence[Cell] = (),
    ) -> None:
        """
        Store a sweep as ``running``, with its hosts and planned cells, in one transaction.

        Args:
            id: UUID; the same sweep once more is the same.
            source: ``probe``, or ``import:<format>``.
            synthetic: Not measured, made by ``demo``.
            driver: The process that runs it, as ``drivers.Driver`` writes it.

        Raises:
            StoreConflict: Another sweep has this UUID.
        """
        start = SweepStart(
            id=id,
            cluster=cluster,
            profile=profile,
            trigger=trigger,
            seed=seed,
            tool_version=tool_version,
            started_at=started_at,
            config_text=config_text,
            estimated_seconds=estimated_seconds,
            budget_seconds=budget_seconds,
            warnings=tuple(warnings),
            labels=dict(labels or {}),
            tag=tag,
            source=source,
            synthetic=synthetic,
            driver=driver,
        )
        self._writer.begin_sweep(start, hosts, cells)

    def put_host(self, sweep: str, host: Host) -> None:
        """Store a host as a sweep found it; once more brings it up to date."""
        self._writer.add(sweep, hosts=[host])

    def plan_cells(self, sweep: str, cells: Sequence[Cell]) -> None:
        """Store the cells of a sweep before they run; those already there stay."""
        self._writer.add(sweep, cells=cells)

    def put_run(self, run: Run) -> Stored:
        """
        Store a run in one transaction and bring its cell up to date.

        Raises:
            StoreConflict: Another run has its UUID.
            NotFound: Its cell was never planned here.
            StoreUnreachable: Keep it, and try again.
        """
        return self._writer.put_run(run)

    def put_runs(self, sweep: str, runs: Sequence[Run]) -> None:
        """
        Store many runs of one sweep in one transaction; none of them is stored yet.

        For what is not measured now. A sweep under way commits run by run.

        Raises:
            NotFound: A cell was never planned in this sweep.
            StoreError: A run is stored already.
        """
        self._writer.put_runs(sweep, runs)

    def end_sweep(
        self,
        id: str,
        status: str = "done",
        ended_at: str | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        """End a sweep as ``done``, ``interrupted`` or ``failed``."""
        self._writer.set_status(id, status, ended_at=ended_at or now_text(), warnings=warnings)

    def resume_sweep(self, id: str, driver: Mapping[str, Any] | None = None) -> None:
        """Set a sweep to ``running`` again, by another process."""
        self._writer.resume(id, driver)

    def mark_interrupted(self, id: str) -> None:
        """
        Set a sweep that still says ``running`` to ``interrupted``.

        Only for one who holds the locks of its hosts: its driver is gone then.
        """
        if self._summary(id)["status"] == "running":
            self._writer.set_status(id, "interrupted", ended_at=now_text())

    def sweep_document(self, id: str | None = None, *, host: str | None = None) -> dict[str, Any]:
        """
        A sweep with hosts, cells, readings and members, as one state of the database.

        Args:
            id: UUID, unique beginning, or ``latest`` (None).
            host: Key of the one host to read; None for all.

        Raises:
            NotFound: None or several such.
        """
        with reading(self._engine) as connection:
            row = find_sweep(connection, id or LATEST)
            return sweep_document(connection, row.id, self.url, host)

    def sweeps(self, limit: int = 20) -> list[dict[str, Any]]:
        """The newest sweeps, newest first, as in the sweep document."""
        with reading(self._engine) as connection:
            rows = connection.execute(sweep_query().limit(limit)).all()
        return [sweep_summary(r) for r in rows]

    def resolve_sweep(self, text: str, until: str | None = None) -> str:
        """
        The UUID of a sweep.

        Args:
            text: UUID, unique beginning, or ``latest``.
            until: Time as stored: sweeps that began later do not count.

        Raises:
            NotFound: None or several such; the message names some.
        """
        with reading(self._engine) as connection:
            uuid: str = find_sweep(connection, text, until).uuid
        return uuid

    def resolve_run(self, text: str) -> str:
        """
        The UUID of a run.

        Args:
            text: UUID, unique beginning, or ``latest``.

        Raises:
            NotFound: None or several such; the message names some.
        """
        with reading(self._engine) as connection:
            return find_run(connection, text)

    def cells_of(self, id: str) -> tuple[list[Cell], int, str]:
        """All cells of a sweep as they stand; its seed (0 if it had none) and its profile."""
        with reading(self._engine) as connection:
            found = find_sweep(connection, id)
            cells = [c for c, _ in stored_cells(connection, found.id)]
            return cells, found.seed or 0, found.profile

    def cells_to_resume(self, id: str) -> tuple[list[Cell], dict[str, int]]:
        """
        The cells whose last run did not end well or that never ran, as planned.

        Returns:
            The cells in order, and the number of the next attempt by cell.
        """
        with reading(self._engine) as connection:
            stored = stored_cells(connection, find_sweep(connection, id).id)
        left = [(c, attempt) for c, attempt in stored if c.status not in BENIGN]
        cells = [dataclasses.replace(c, status=Status.PLANNED, reason=None) for c, _ in left]
        return cells, {c.id: attempt + 1 for c, attempt in left}

    def strangers(self, cluster: str, hosts: Sequence[str]) -> dict[str, str]:
        """
        Hosts that this cluster never measured and another one did: key -> that cluster.

        Args:
            hosts: Their keys.
        """
        with reading(self._engine) as connection:
            return strangers(connection, cluster, hosts)

    def running_sweeps(self, host: str | None = None) -> list[str]:
        """
        UUIDs of the sweeps that say ``running``, newest first.

        Args:
            host: Only those that this host key takes part in.
        """
        s, sh, h = schema.sweep, schema.sweep_host, schema.host
        query = sa.select(s.c.uuid).where(s.c.status == "running").order_by(s.c.started_at.desc())
        if host is not None:
            members = sa.select(sh.c.sweep_id).select_from(sh.join(h)).where(h.c.key == host)
            query = query.where(s.c.id.in_(members))
        with reading(self._engine) as connection:
            return list(connection.execute(query).scalars())

    def lost_sweeps(self) -> list[str]:
        """What is to be said of each sweep that says ``running`` and lost its driver here."""
        query = sweep_query().where(schema.sweep.c.status == "running")
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        return [loss for row in rows if (loss := lost_driver(row))]

    def info(self) -> dict[str, Any]:
        """
        What ``db info`` shows.

        Keys: url, path, size_bytes (None for PostgreSQL without the right), schema,
        tool_version, rows (by table), last_sweep (as in :meth:`sweeps`, or None).
        """
        with reading(self._engine) as connection:
            rows = {
                t.name: connection.execute(sa.select(sa.func.count()).select_from(t)).scalar_one()
                for t in schema.metadata.sorted_tables
            }
            info = schema.store_info
            version = connection.execute(
                sa.select(info.c.value).where(info.c.key == "tool_version")
            ).scalar()
            by_age = sweep_query().order_by(None).order_by(*newest_first())
            newest = connection.execute(by_age.limit(1)).first()
            size = self._size(connection)
        return {
            "url": self.url,
            "path": None if self._path is None else str(self._path.absolute()),
            "size_bytes": size,
            "schema": schema.REVISION,
            "tool_version": version,
            "rows": rows,
            "last_sweep": None if newest is None else sweep_summary(newest),
        }

    def size_bytes(self) -> int | None:
        """Bytes on disk, write-ahead log included; None if it can't be told."""
        with reading(self._engine) as connection:
            return self._size(connection)

    def renew_views(self) -> None:
        """Make every view anew: of those that are there, one may be of another version."""
        migrate.renew_views(self._engine)

    def rebuild_rollups(self) -> int:
        """Work out every nightly roll-up anew; returns how many were."""
        return self._writer.rebuild_rollups()

    def finish_rollups(self) -> None:
        """Work out the roll-ups of sweeps that runs came into after their end."""
        self._writer.finish_rollups()

    def _size(self, connection: Connection) -> int | None:
        if self._path is not None:
            parts = (self._path, Path(f"{self._path}-wal"))
            return sum(p.stat().st_size for p in parts if p.exists())
        if connection.dialect.name == "postgresql":
            query = "SELECT pg_database_size(current_database())"
            return int(connection.execute(sa.text(query)).scalar_one())
        return None

    def _summary(self, id: str) -> dict[str, Any]:
        with reading(self._engine) as connection:
            return sweep_summary(find_sweep(connection, id))

    def check_file(self) -> None:
        """
        SQLite goes on with a file that was deleted, and would write what nobody ever sees.

        Raises:
            StoreUnreachable: The file is not the one that was opened.
        """
        if identity(self._path) != self._identity:
            raise StoreUnreachable(
                f"{self._path}: the file was removed or replaced while it was open"
            )
