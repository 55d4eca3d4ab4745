"""
Finds or makes, in one store, the rows that the rows of another store rest on.

Ids are a store's own; rows are known by what they are: clusters and SKUs by name, hosts by
key, devices by key on their host, cases and arms by digest. Digests that were made of ids of
the other store are made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from topobench.db import places, schema
from topobench.db.clocks import is_later
from topobench.db.columns import digest
from topobench.db.keys import Keys, insert_id, insert_new

_NEWER = ("sku_id", "key_source", "name", "address", "rack", "leaf", "batch", "labels")


class Mapped:
    """
    Ids of the other store -> ids of this one, within one transaction of each.

    Args:
        source: The other store.
        target: This one.
        as_cluster: Name that the other's cluster has here; None: its own.
    """

    def __init__(self, source: Connection, target: Connection, as_cluster: str | None) -> None:
        self._source = source
        self._target = target
        self._as_cluster = as_cluster
        self._keys = Keys()
        self._known: dict[tuple[str, int], int] = {}
        self._makers: Mapping[str, Callable[[Any], int]] = {
            "cluster": self._cluster,
            "sku": self._sku,
            "host": self._host,
            "device": self._device,
            "topology_class": self._class,
            "topology": self._topology,
            "environment": self._by_digest("environment"),
            "probe_case": self._by_digest("probe_case"),
            "arm": self._by_digest("arm"),
            "metric": self._metric,
            "device_set": self._device_set,
            "series": self._series,
        }

    def id(self, table: str, source_id: int | None) -> Any:
        """The id here of a row of the other store, made if it is new; None for None."""
        if source_id is None:
            return None
        key = (table, source_id)
        if key not in self._known:
            self._known[key] = self._makers[table](self.row(table, source_id))
        return self._known[key]

    def row(self, table: str, source_id: int) -> Any:
        """A row of the other store."""
        found = schema.metadata.tables[table]
        return self._source.execute(sa.select(found).where(found.c.id == source_id)).one()

    def translated(self, table: Table, row: Any, **given: Any) -> dict[str, Any]:
        """A row of the other store with the keys of this one; ``given`` ones are not looked up."""
        made = {c.name: row._mapping[c.name] for c in table.columns if c.name != "id"}
        for column in table.columns:
            for key in column.foreign_keys:
                if column.name not in given:
                    made[column.name] = self.id(key.column.table.name, made[column.name])
        return {**made, **given}

    def cluster_name(self, name: str) -> str:
        """What the other store's cluster is called here."""
        return self._as_cluster or name

    def _cluster(self, row: Any) -> int:
        made = self.translated(schema.cluster, row, name=self.cluster_name(row.name))
        return places.named_id(self._target, schema.cluster, made)

    def _sku(self, row: Any) -> int:
        """An SKU known by name alone here learns what it is made of."""
        table = schema.sku
        made = self.translated(table, row)
        here = places.named_id(self._target, table, made)
        bare = (table.c.id == here) & table.c.gpu_count.is_(None)
        self._target.execute(table.update().where(bare), made)
        return here

    def _host(self, row: Any) -> int:
        """A host keeps the attributes it was last seen with, and when it was first seen."""
        table = schema.host
        made = self.translated(table, row)
        insert_new(self._target, table, [made])
        same = (table.c.cluster_id == made["cluster_id"]) & (table.c.key == row.key)
        here = self._target.execute(sa.select(table).where(same)).one()
        changes = {"first_seen_at": min(here.first_seen_at, row.first_seen_at)}
        if is_later(row.last_seen_at, here.last_seen_at):
            changes |= {k: made[k] for k in (*_NEWER, "last_seen_at")}
        self._target.execute(table.update().where(table.c.id == here.id), changes)
        return int(here.id)

    def _device(self, row: Any) -> int:
        table = schema.device
        made = self.translated(table, row)
        insert_new(self._target, table, [made])
        same = (table.c.host_id == made["host_id"]) & (table.c.key == row.key)
        here = self._target.execute(sa.select(table).where(same)).one()
        later = is_later(row.last_seen_at, here.last_seen_at)
        latest = row.last_seen_at if later else here.last_seen_at
        changes = {
            "first_seen_at": min(here.first_seen_at, row.first_seen_at),
            "last_seen_at": latest,
        }
        self._target.execute(table.update().where(table.c.id == here.id), changes)
        return int(here.id)

    def _class(self, row: Any) -> int:
        table = schema.topology_class
        query = sa.select(table.c.id).where(table.c.shape == row.shape)
        found = self._target.execute(query).scalar()
        return found or insert_id(self._target, table, self.translated(table, row))

    def _topology(self, row: Any) -> int:
        made = self.translated(schema.topology, row)
        host = self.row("host", row.host_id)
        cluster = self.id("cluster", host.cluster_id)
        prints = row.document.get("fingerprints") or {}
        identity = prints or {k: v for k, v in row.document.items() if k != "taken_at"}
        made["digest"] = digest(cluster, host.key, identity)
        topology_id = self._keys.one(self._target, schema.topology, made)
        table = schema.link
        links = self._source.execute(sa.select(table).where(table.c.topology_id == row.id)).all()
        if links:
            rows = [self.translated(table, r, topology_id=topology_id) for r in links]
            insert_new(self._target, table, rows)
        return topology_id

    def _by_digest(self, name: str) -> Callable[[Any], int]:
        table = schema.metadata.tables[name]
        return lambda row: self._keys.one(self._target, table, self.translated(table, row))

    def _metric(self, row: Any) -> int:
        made = self.translated(schema.metric, row)
        return places.named_id(self._target, schema.metric, made)

    def _device_set(self, row: Any) -> int:
        member = schema.device_set_member
        query = sa.select(member.c.device_id).where(member.c.device_set_id == row.id)
        found = self._source.execute(query.order_by(member.c.position)).scalars()
        ids = [self.id("device", i) for i in found]
        made = self.translated(schema.device_set, row, digest=digest(ids))
        set_id = self._keys.one(self._target, schema.device_set, made)
        members = [
            {"device_set_id": set_id, "position": n, "device_id": i} for n, i in enumerate(ids)
        ]
        if members:
            insert_new(self._target, member, members)
        return set_id

    def _series(self, row: Any) -> int:
        host = self.row("host", row.host_id)
        cluster = self.cluster_name(self.row("cluster", host.cluster_id).name)
        case, arm = self.row("probe_case", row.case_id), self.row("arm", row.arm_id)
        latest = {"latest_sweep_id": None, "latest_at": None, "latest_unix_seconds": None}
        made = self.translated(schema.series, row, **latest)
        group = schema.device_set
        query = sa.select(group.c.digest).where(group.c.id == made["device_set_id"])
        devices = self._target.execute(query).scalar_one()
        identity = (cluster, host.key, case.digest, arm.digest, devices)
        made["digest"] = digest(*identity, row.n_ranks, row.source, row.synthetic)
        return self._keys.one(self._target, schema.series, made)
