"""What judgements read of a store: one state of it, from the first question to the last."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.compare_select import Selector
from topobench.db import loose, measured, schema, selecting
from topobench.db.document import sweep_document, sweep_summary
from topobench.db.engine import hurried, reading
from topobench.db.find import find_sweep
from topobench.db.measured import Found
from topobench.db.selecting import Selection
from topobench.db.store import Store
from topobench.errors import StoreUnreachable
from topobench.topology import Topology


@dataclass(frozen=True, slots=True)
class Source:
    """An open store that is read; made by :func:`opened`."""

    connection: Connection
    url: str

    def resolve(self, selector: Selector, as_of: str | None = None) -> Selection:
        """As :func:`selecting.resolve`."""
        return selecting.resolve(self.connection, selector, as_of)

    def measured(
        self,
        selection: Selection,
        *,
        as_of: str | None = None,
        imported: bool = False,
        synthetic: bool = False,
    ) -> Found:
        """As :func:`measured.measured`."""
        return measured.measured(
            self.connection, selection, as_of=as_of, imported=imported, synthetic=synthetic
        )

    def document(self, sweep: str) -> dict[str, Any]:
        """As :meth:`Store.sweep_document`."""
        return sweep_document(self.connection, find_sweep(self.connection, sweep).id, self.url)

    def sweep(self, text: str) -> dict[str, Any]:
        """The ``sweep`` of its document: id, unique beginning, or ``latest``."""
        return sweep_summary(find_sweep(self.connection, text))

    def topologies(self, sweep: str) -> dict[str, Topology]:
        """The wiring of each host of a sweep as it was then, by host key."""
        s, h, t = schema.sweep_host, schema.host, schema.topology
        query = (
            sa.select(h.c.key, t.c.document)
            .select_from(s.join(h, h.c.id == s.c.host_id).join(t, t.c.id == s.c.topology_id))
            .where(s.c.sweep_id == find_sweep(self.connection, sweep).id)
        )
        return {r.key: Topology.from_json(r.document) for r in self.connection.execute(query)}


@contextlib.contextmanager
def opened(url: str) -> Iterator[Source]:
    """
    Open a store for judging.

    Raises:
        StoreError: As :meth:`Store.open`, and :func:`loose.check_keys`.
    """
    with (
        Store.open(url, create=False, read_only=True) as store,
        reading(store.engine) as connection,
    ):
        loose.check_keys(connection)
        yield Source(connection, store.url)


def are_few(store: Store, selectors: Sequence[Selector], most: int, seconds: float) -> bool:
    """
    Whether selectors together name at most so many readings, as far as so many seconds tell.

    Raises:
        UsageError: A word that names nothing, or a bare one that names several things.
    """
    with reading(store.engine) as connection:
        selections = [selecting.resolve(connection, s) for s in selectors]
    try:
        with hurried(store.engine, seconds) as connection:
            return sum(measured.up_to(connection, s, most + 1) for s in selections) <= most
    except StoreUnreachable:
        return False
