"""
Records a sweep and never loses a run: in the store, or in the spool while it is away.

Once the store failed, the rest of the sweep goes to the spool, so that the order stays; at
the end everything is brought into the store if it is back.
"""

from __future__ import annotations

import pickle
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from topobench.db.columns import now_text
from topobench.db.engine import mask_url, parse_url, sqlite_path
from topobench.db.spool import FOLDER, Spool, files_for, perform, schedule_told
from topobench.db.spool_import import Imported, import_files
from topobench.db.store import Store
from topobench.db.writer import Stored
from topobench.errors import StoreError, StoreUnreachable
from topobench.host import Host
from topobench.reading import Cell, Run

_SHOWN = 3
"""Problems of a spool that are told."""
_Call = tuple[str, dict[str, Any] | bytes]
"""A call of the writer; the arguments of ``put_run`` are packed."""


class Recorder:
    """
    The writer of one sweep; a context manager. Made by :meth:`open`.

    Args:
        warn: Is told, once each, what a user must know about the store.
    """

    def __init__(
        self, url: str, store: Store | None, folder: Path, warn: Callable[[str], None]
    ) -> None:
        self._url = url
        self._store = store
        self._folder = folder
        self._warn = warn
        self._spool: Spool | None = None
        self._sweep = ""
        self._calls: list[_Call] = []

    @classmethod
    def open(
        cls, url: str, *, folder: Path = Path(FOLDER), warn: Callable[[str], None]
    ) -> Recorder:
        """
        Open the store, or begin with the spool if it can't be reached.

        Raises:
            StoreError: The store is there, but not usable (see :meth:`Store.open`).
        """
        if not _is_kept(url):
            warn(f"not_kept: {url} is no file: what it holds ends with this command")
        try:
            return cls(url, Store.open(url), folder, warn)
        except StoreUnreachable as error:
            recorder = cls(url, None, folder, warn)
            recorder._begin_spool(error)
            return recorder

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish the spool, close the store."""
        if self._spool is not None:
            self._spool.close()
        if self._store is not None:
            self._store.close()

    @property
    def spooled(self) -> bool:
        """Whether results are in the spool and not in the store."""
        return self._spool is not None

    @property
    def url(self) -> str:
        """The URL of the store with its password masked."""
        return mask_url(self._url)

    def bring_in_earlier(self) -> None:
        """
        Bring in what earlier sweeps of this folder left in the spool for this store.

        What a living sweep writes to, or another import works at, is left; so are the ends of a
        fleet's nights, which the fleet judges.
        """
        if self._store is None or not _is_kept(self._url):
            return
        files = [f for f in files_for(self._folder, self._url) if schedule_told(f) is None]
        try:
            found = import_files(self._store, self._folder, files) if files else Imported()
        except StoreError as error:
            self._warn(f"{error}; what earlier sweeps spooled is safe: {self._advice()}")
            return
        if found.stored:
            runs = "a run" if found.stored == 1 else f"{found.stored} runs"
            self._warn(
                f"{runs} of earlier sweeps came in from {self._folder}; `topobench query sweeps` "
                "lists all sweeps"
            )
        if found.problems:
            more = len(found.problems) - _SHOWN
            told = "; ".join(found.problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
            self._warn(f"not all that earlier sweeps spooled came in, and it stays there: {told}")

    def begin_sweep(self, *, id: str, **start: Any) -> None:
        """As :meth:`Store.begin_sweep`."""
        self._sweep = id
        if self._spool is not None:  # nothing is in it yet
            self._spool = self._new_spool(id)
        self._do("begin_sweep", {"id": id, **start})

    def put_host(self, sweep: str, host: Host) -> None:
        """As :meth:`Store.put_host`."""
        self._do("put_host", {"sweep": sweep, "host": host})

    def plan_cells(self, sweep: str, cells: Sequence[Cell]) -> None:
        """As :meth:`Store.plan_cells`."""
        self._do("plan_cells", {"sweep": sweep, "cells": cells})

    def resume_sweep(self, id: str, driver: Mapping[str, Any] | None = None) -> None:
        """As :meth:`Store.resume_sweep`."""
        self._sweep = id
        self._do("resume_sweep", {"id": id, "driver": driver})

    def put_run(self, run: Run) -> Stored | None:
        """
        Store a run, or spool it: also one that the store refuses.

        Returns:
            What became of it in the store; None if it was spooled.

        Raises:
            StoreUnreachable: Neither the store nor the spool could take it.
        """
        try:
            return self._do("put_run", {"run": run})
        except StoreUnreachable:
            raise
        except StoreError as error:
            # One refused run is no reason to keep the others out of the store.
            with self._new_spool(f"{self._sweep or 'run'}-refused") as spool:
                spool.append("put_run", {"run": run})
            self._warn(f"a run was refused and kept in {self._folder}: {error}")
            return None

    def end_sweep(
        self,
        id: str,
        status: str = "done",
        ended_at: str | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        """As :meth:`Store.end_sweep`; then the spool is brought in, if the store is back."""
        ended = ended_at or now_text()
        self._do("end_sweep", {"id": id, "status": status, "ended_at": ended, "warnings": warnings})
        if self._spool is not None:
            self._spool.close()
            self._bring_in(self._spool)

    def mark_interrupted(self, id: str) -> None:
        """As :meth:`Store.mark_interrupted`; nothing while the store is away."""
        if self._store is not None and self._spool is None:
            self._store.mark_interrupted(id)

    def running_sweeps(self, host: str | None = None) -> list[str]:
        """As :meth:`Store.running_sweeps`; none while the store is away."""
        if self._store is None or self._spool is not None:
            return []
        return self._store.running_sweeps(host)

    def strangers(self, cluster: str, hosts: Sequence[str]) -> dict[str, str]:
        """As :meth:`Store.strangers`; none while the store is away."""
        if self._store is None or self._spool is not None:
            return {}
        return self._store.strangers(cluster, hosts)

    def resolve_sweep(self, text: str) -> str:
        """As :meth:`Store.resolve_sweep`."""
        return self._reachable().resolve_sweep(text)

    def cells_of(self, id: str) -> tuple[list[Cell], int, str]:
        """As :meth:`Store.cells_of`."""
        return self._reachable().cells_of(id)

    def cells_to_resume(self, id: str) -> tuple[list[Cell], dict[str, int]]:
        """As :meth:`Store.cells_to_resume`."""
        return self._reachable().cells_to_resume(id)

    def sweep_document(self, id: str | None = None) -> dict[str, Any]:
        """
        As :meth:`Store.sweep_document`, from what this recorder saw if the store is away.

        Raises:
            StoreUnreachable: The store is away, and the sweep began in an earlier process.
        """
        if self._spool is None:
            return self._reachable().sweep_document(id)
        if not self._calls or self._calls[0][0] != "begin_sweep":
            raise StoreUnreachable(f"{self.url} is away; {self._advice()}, then `topobench report`")
        with (
            tempfile.TemporaryDirectory() as folder,
            Store.open(f"sqlite:///{folder}/sweep.db") as replay,
        ):
            for op, data in self._calls:
                perform(replay, op, _unpacked(data) if isinstance(data, bytes) else data)
            document = replay.sweep_document(self._sweep)
        return {**document, "store": str(self._folder)}

    def _reachable(self) -> Store:
        if self._store is None:
            raise StoreUnreachable(f"{self.url} is away; {self._advice()}")
        return self._store

    def _do(self, op: str, data: dict[str, Any]) -> Stored | None:
        if self._spool is None and self._store is not None:
            try:
                done = perform(self._store, op, data)
            except StoreUnreachable as error:
                self._begin_spool(error)
            else:
                self._keep(op, data)
                return done
        assert self._spool is not None
        self._spool.append(op, data)
        self._keep(op, data)
        return None

    def _keep(self, op: str, data: dict[str, Any]) -> None:
        self._calls.append((op, _packed(data) if op == "put_run" else data))

    def _begin_spool(self, error: StoreError) -> None:
        """Go on with the spool; it begins with what the runs in it rest on."""
        self._spool = self._new_spool(self._sweep or "sweep")
        for op, data in self._calls:
            if not isinstance(data, bytes):
                self._spool.append(op, data)
        self._warn(f"{error}; results go to {self._folder} from here on: {self._advice()}")

    def _new_spool(self, name: str) -> Spool:
        return Spool(self._folder, name, url=self._url)

    def _bring_in(self, spool: Spool) -> None:
        """Bring this sweep's own files in; what others left there is no part of it."""
        try:
            store = self._store = self._store or Store.open(self._url)
            imported = import_files(store, self._folder, spool.finished)
        except StoreError as error:
            self._warn(f"{error}; the results are safe in {self._folder}: {self._advice()}")
            return
        if imported.problems:
            self._warn("; ".join(imported.problems[:_SHOWN]))
            return
        if imported.busy:
            self._warn(
                f"another process brings in what is in {self._folder}; it takes these results "
                f"along, or: {self._advice()}"
            )
            return
        self._spool = None
        self._warn(f"the store is back: {imported.stored} runs were brought in from the spool")

    def _advice(self) -> str:
        command = f"topobench db import {self._folder} --store {self.url}"
        return f"the next sweep here brings them in, as does `{command}`"


def _is_kept(url: str) -> bool:
    """Whether a store outlives this process."""
    parsed = parse_url(url)
    return parsed.drivername != "sqlite" or sqlite_path(parsed) is not None


def _packed(data: Mapping[str, Any]) -> bytes:
    """
    The arguments of ``put_run`` in a few hundred bytes: they are kept for the whole sweep.

    Without samples, which no document shows.
    """
    run: Run = data["run"]
    readings = tuple(replace(r, samples=()) for r in run.readings)
    return zlib.compress(pickle.dumps(replace(run, readings=readings)), 1)


def _unpacked(packed: bytes) -> dict[str, Any]:
    return {"run": pickle.loads(zlib.decompress(packed))}
