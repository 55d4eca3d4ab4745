"""The ``metric`` table: units and directions, as the probes declare them."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import schema
from topobench.db.keys import insert_new
from topobench.errors import StoreError
from topobench.probes import registry
from topobench.reading import Better, Metric


@dataclass(frozen=True, slots=True)
class StoredMetric:
    """
    A metric with its id.

    Args:
        above_zero: It is a time or a speed: 0 or less is no measurement.
    """

    id: int
    above_zero: bool


class Metrics:
    """Metrics already looked up, by name."""

    def __init__(self) -> None:
        self._known: dict[str, StoredMetric] = {}

    def forget(self) -> None:
        """Drop every id."""
        self._known.clear()

    def get(
        self, connection: Connection, name: str, probe: str, better: Better | None = None
    ) -> StoredMetric:
        """
        A metric, stored if it is new; its direction is the one its probe declares.

        Args:
            better: The direction that the reading itself tells.

        Raises:
            StoreError: The name ends in no unit.
        """
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _stored(connection, _declared(name, probe, better))
        return known


def _declared(name: str, probe: str, better: Better | None) -> Metric:
    """A metric a probe declares; one that nobody here declares has no direction."""
    found = registry.metric(probe, name)
    try:
        return found or Metric(name, Better.NEITHER if better is None else better, "")
    except ValueError as error:
        raise StoreError(f"probe {probe}: {error}") from error


def _stored(connection: Connection, metric: Metric) -> StoredMetric:
    table = schema.metric
    query = sa.select(table.c.id, table.c.better).where(table.c.name == metric.name)
    row = connection.execute(query).first()
    if row is None:
        insert_new(
            connection,
            table,
            [
                {
                    "name": metric.name,
                    "unit": metric.unit,
                    "better": int(metric.better),
                    "help": metric.help,
                }
            ],
        )
        row = connection.execute(query).one()
    elif row.better == Better.NEITHER and metric.better != Better.NEITHER:
        connection.execute(
            table.update().where(table.c.id == row.id),
            {"better": int(metric.better), "help": metric.help},
        )
    return StoredMetric(row.id, metric.unit == "s" or metric.unit.endswith("/s"))
