"""
The change ledger: what differs between a host and its last snapshot, as ``change_event`` rows.

A wiring is stored once per state, so what moves without a new state (a GPU swapped for one of
the same model, a version of a library) is taken from the snapshot of the sweep itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import schema
from topobench.db.columns import clean_text
from topobench.host import Host, describe
from topobench.reading import to_json
from topobench.topology import Topology
from topobench.topology_diff import diff

Row = dict[str, Any]

_SOFTWARE = ("driver", "cuda", "kernel")
_FACTS = ("torch", "python", "numactl")
_BY_SNAPSHOT = frozenset({*_SOFTWARE, "gpu_replaced", "gpu_added", "gpu_missing"})
"""Differences of the wiring that the snapshots tell more exactly."""


def record(connection: Connection, sweep_id: int, host_id: int, host: Host) -> None:
    """
    Write what changed on a host since the sweep before; nothing if it is already stored.

    Sweeps of another source (imports) and of a synthetic fleet are no predecessors.
    """
    s, sh, t = schema.sweep, schema.sweep_host, schema.topology
    mine = connection.execute(sa.select(s).where(s.c.id == sweep_id)).one()
    stored = sa.select(sh.c.host_id).where(sh.c.sweep_id == sweep_id, sh.c.host_id == host_id)
    if connection.execute(stored).first() is not None:
        return
    before = connection.execute(
        sa.select(sh.c.facts, sh.c.description, t.c.document, t.c.shape, t.c.config, t.c.health)
        .select_from(sh.join(s).outerjoin(t, t.c.id == sh.c.topology_id))
        .where(
            sh.c.host_id == host_id,
            s.c.source == mine.source,
            s.c.synthetic == mine.synthetic,
            s.c.started_at < mine.started_at,
        )
        .order_by(s.c.started_at.desc(), s.c.id.desc())
        .limit(1)
    ).first()
    if before is None:
        return
    found = {(r["kind"], r["key"]): r for r in changes(before, host)}
    if found:
        same = {"host_id": host_id, "at": mine.started_at, "source": "auto"}
        connection.execute(schema.change_event.insert(), [{**same, **r} for r in found.values()])


def changes(before: Any, host: Host) -> Iterator[Row]:
    """
    What differs, as ``kind``, ``key``, ``old`` and ``new``.

    Args:
        before: ``facts`` and ``description`` of the last snapshot, ``document`` and the
            fingerprints ``shape``, ``config``, ``health`` of its wiring (None: unknown).
    """
    now = describe(host.topology)
    was = before.description or {}
    for name in _SOFTWARE:
        yield from _change(name, "host", was.get(name), now[name])
    facts = to_json(host.facts)
    for name in _FACTS:
        yield from _change(name, "host", (before.facts or {}).get(name), facts[name])
    yield from _gpus(was.get("devices") or (), now["devices"])
    prints = host.topology.fingerprints
    same = prints and all(
        prints.get(k) == getattr(before, k) for k in ("shape", "config", "health")
    )
    if before.document is not None and not same:
        for change in diff(Topology.from_json(before.document), host.topology).changes:
            if change.code not in _BY_SNAPSHOT:
                yield _row(change.code, change.subject, change.a, change.b)


def _gpus(before: Any, now: Any) -> Iterator[Row]:
    """GPUs that came, went, or took another's place in a slot."""
    old, new = ({d["key"]: d for d in devices} for devices in (before, now))
    gone = {_slot(d): key for key, d in old.items() if key not in new}
    come = {_slot(d): key for key, d in new.items() if key not in old}
    for slot in sorted(gone.keys() | come.keys()):
        kind = "gpu_replaced"
        if slot not in gone or slot not in come:
            kind = "gpu_added" if slot in come else "gpu_missing"
        yield _row(kind, slot, gone.get(slot), come.get(slot))


def _slot(device: Mapping[str, Any]) -> str:
    return str(device.get("pci_address") or f"gpu:{device.get('index')}")


def _change(kind: str, key: str, old: Any, new: Any) -> Iterator[Row]:
    """A difference of two known values; what one side does not know is none."""
    if old is not None and new is not None and old != new:
        yield _row(kind, key, old, new)


def _row(kind: str, key: str, old: Any, new: Any) -> Row:
    texts = (None if v is None else clean_text(str(v)) for v in (old, new))
    return {"kind": kind, "key": clean_text(key), **dict(zip(("old", "new"), texts, strict=True))}
