"""Writes what a sweep is about: cluster, hosts, devices, wiring, and finds them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import ledger, schema
from topobench.db.clocks import seen_by_then
from topobench.db.columns import clean_text, digest, now_text
from topobench.db.keys import Keys, insert_id, insert_new
from topobench.db.links import link_rows
from topobench.db.records import device_rows, sku_row
from topobench.host import Host, describe
from topobench.reading import to_json
from topobench.topology import Topology

HOST_KIND = "host"
"""Of a device that stands for its host, so that ranks without a GPU have a place, too."""


@dataclass(slots=True)
class Places:
    """
    The hosts and devices of one sweep, by key.

    Args:
        devices: (host id, device key) -> device id.
        elsewhere: Device key -> device id on whichever host has it.
        owners: Device id -> host id.
        topologies: Host id -> (topology id, topology), as of this sweep.
        machines: Host id -> what discovery says of its software.
    """

    cluster_id: int
    hosts: dict[str, int] = field(default_factory=dict)
    devices: dict[tuple[int, str], int] = field(default_factory=dict)
    elsewhere: dict[str, int] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    topologies: dict[int, tuple[int, Topology]] = field(default_factory=dict)
    machines: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def add_device(self, host_id: int, key: str, device_id: int) -> None:
        """Remember a device."""
        self.devices[host_id, key] = self.elsewhere[key] = device_id
        self.owners[device_id] = host_id

    def add_topology(self, host_id: int, topology_id: int, topology: Topology) -> None:
        """Remember a host's wiring."""
        self.topologies[host_id] = topology_id, topology
        self.machines[host_id] = to_json(topology.machine)


def load(connection: Connection, sweep_id: int, cluster_id: int) -> Places:
    """Read back what :func:`put_host` stored for a sweep."""
    places = Places(cluster_id)
    t, h, s = schema.topology, schema.host, schema.sweep_host
    query = (
        sa.select(h.c.id, h.c.key, t.c.id.label("topology_id"), t.c.document)
        .select_from(s.join(h).outerjoin(t, t.c.id == s.c.topology_id))
        .where(s.c.sweep_id == sweep_id)
    )
    for row in connection.execute(query):
        places.hosts[row.key] = row.id
        if row.topology_id is not None:
            places.add_topology(row.id, row.topology_id, Topology.from_json(row.document))
        _load_devices(connection, places, row.id)
    return places


def cluster_id(connection: Connection, name: str) -> int:
    """The id of a cluster; made if it is new."""
    return named_id(connection, schema.cluster, {"name": name})


def named_id(connection: Connection, table: sa.Table, row: Mapping[str, Any]) -> int:
    """The id of a row known by its ``name``; made if it is new."""
    query = sa.select(table.c.id).where(table.c.name == row["name"])
    found = connection.execute(query).scalar()
    if found is None:
        insert_new(connection, table, [row])
        found = connection.execute(query).scalar_one()
    return int(found)


def put_host(
    connection: Connection, keys: Keys, places: Places, sweep_id: int, position: int, host: Host
) -> None:
    """Store a host as a sweep found it: once more is the same."""
    seen = host.topology.taken_at or now_text()
    sku_id = _sku_id(connection, sku_row(host))
    host_id = _host_id(connection, places, host, sku_id, seen)
    topology_id = _topology_id(connection, keys, places.cluster_id, host, host_id)
    places.add_topology(host_id, topology_id, host.topology)
    _put_devices(connection, places, host, host_id, seen)
    row = {
        "sweep_id": sweep_id,
        "host_id": host_id,
        "position": position,
        "topology_id": topology_id,
        "name": clean_text(host.name),
        "address": clean_text(host.address),
        "facts": to_json(host.facts),
        "description": describe(host.topology),
        "warnings": list(host.warnings),
    }
    ledger.record(connection, sweep_id, host_id, host)
    table = schema.sweep_host
    connection.execute(
        table.delete().where(table.c.sweep_id == sweep_id, table.c.host_id == host_id)
    )
    connection.execute(table.insert(), row)


def host_id_of(connection: Connection, places: Places, key: str) -> int:
    """The id of a host by key; one that was never discovered gets a bare row."""
    known = places.hosts.get(key)
    if known is None:
        known = _upsert_host(
            connection,
            {
                "cluster_id": places.cluster_id,
                "key": key,
                "name": key,
                "labels": {},
                "first_seen_at": now_text(),
                "last_seen_at": now_text(),
            },
        )
        places.hosts[key] = known
        _load_devices(connection, places, known)
    return known


def device_id_of(connection: Connection, places: Places, host_id: int, key: str) -> int:
    """
    The id of a device: of this host, else of another host of the sweep.

    A device that discovery did not see gets a bare row on this host.
    """
    known = places.devices.get((host_id, key)) or places.elsewhere.get(key)
    if known is None:
        now = now_text()
        row = {"host_id": host_id, "kind": "gpu", "key": key, "uuid": key}
        known = insert_id(
            connection, schema.device, {**row, "first_seen_at": now, "last_seen_at": now}
        )
        places.add_device(host_id, key, known)
    return known


def host_device_id(connection: Connection, places: Places, host: str) -> int:
    """The id of the device that stands for a whole host, of a rank that has no GPU."""
    host_id, key = host_id_of(connection, places, host), f"{HOST_KIND}:{host}"
    known = places.devices.get((host_id, key))
    if known is None:
        now = now_text()
        row = {"host_id": host_id, "kind": HOST_KIND, "key": key}
        known = insert_id(
            connection, schema.device, {**row, "first_seen_at": now, "last_seen_at": now}
        )
        places.add_device(host_id, key, known)
    return known


def _sku_id(connection: Connection, row: Mapping[str, Any]) -> int:
    """The id of an SKU; one known by name alone (an import's) learns what it is made of."""
    table = schema.sku
    sku_id = named_id(connection, table, row)
    if row["gpu_count"] is not None:
        bare = (table.c.id == sku_id) & table.c.gpu_count.is_(None)
        connection.execute(table.update().where(bare), dict(row))
    return sku_id


def _host_id(connection: Connection, places: Places, host: Host, sku_id: int, seen: str) -> int:
    row = {
        "cluster_id": places.cluster_id,
        "sku_id": sku_id,
        "key": host.key,
        "key_source": host.key_source,
        "name": clean_text(host.name),
        "address": clean_text(host.address),
        "rack": host.labels.get("rack"),
        "leaf": host.labels.get("leaf"),
        "batch": host.labels.get("batch"),
        "labels": dict(host.labels),
        "first_seen_at": seen,
        "last_seen_at": seen,
    }
    known = places.hosts[host.key] = _upsert_host(connection, row)
    return known


def _upsert_host(connection: Connection, row: Mapping[str, Any]) -> int:
    """Insert a host or bring its attributes up to date, unless newer ones are stored."""
    table = schema.host
    same = (table.c.cluster_id == row["cluster_id"]) & (table.c.key == row["key"])
    insert_new(connection, table, [row])
    changes = {k: v for k, v in row.items() if k not in ("cluster_id", "key", "first_seen_at")}
    if "sku_id" in row:
        connection.execute(
            table.update().where(same, seen_by_then(table.c.last_seen_at, row["last_seen_at"])),
            changes,
        )
    return int(connection.execute(sa.select(table.c.id).where(same)).scalar_one())


def _topology_id(connection: Connection, keys: Keys, cluster: int, host: Host, host_id: int) -> int:
    topology = host.topology
    prints = dict(topology.fingerprints)
    identity = prints or {k: v for k, v in topology.to_json().items() if k != "taken_at"}
    key = digest(cluster, host.key, identity)
    known = keys.known(schema.topology, key)
    if known is not None:
        return known
    shape = prints.get("shape")
    row = {
        "digest": key,
        "host_id": host_id,
        "topology_class_id": _class_id(connection, shape, host) if shape else None,
        "shape": shape,
        "config": prints.get("config"),
        "health": prints.get("health"),
        "virtualization": topology.virtualization,
        "trust": topology.trust,
        "taken_at": topology.taken_at or now_text(),
        "document": topology.to_json(),
    }
    topology_id = keys.one(connection, schema.topology, row)
    links = [{"topology_id": topology_id, **r} for r in link_rows(topology)]
    if links:
        insert_new(connection, schema.link, links)
    return topology_id


def _class_id(connection: Connection, shape: str, host: Host) -> int:
    table = schema.topology_class
    query = sa.select(table.c.id).where(table.c.shape == shape)
    found = connection.execute(query).scalar()
    if found is None:
        insert_new(connection, table, [{"shape": shape, "name": describe(host.topology)["sku"]}])
        found = connection.execute(query).scalar_one()
    return int(found)


def _put_devices(
    connection: Connection, places: Places, host: Host, host_id: int, seen: str
) -> None:
    table = schema.device
    rows = [
        {"host_id": host_id, **r, "first_seen_at": seen, "last_seen_at": seen}
        for r in device_rows(host.topology)
    ]
    if rows:
        insert_new(connection, table, rows)
        found = [r["key"] for r in rows]
        connection.execute(
            table.update().where(
                table.c.host_id == host_id,
                table.c.key.in_(found),
                seen_by_then(table.c.last_seen_at, seen),
            ),
            {"last_seen_at": seen},
        )
    _load_devices(connection, places, host_id)


def _load_devices(connection: Connection, places: Places, host_id: int) -> None:
    table = schema.device
    query = sa.select(table.c.key, table.c.id).where(table.c.host_id == host_id)
    for key, device_id in connection.execute(query):
        places.add_device(host_id, key, device_id)
