"""The sweep document: what ``probe`` and ``report --format json`` give as ``data``."""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import schema, strays
from topobench.db.cells import cell_rows, device_keys, rank_hosts
from topobench.db.records import ENVIRONMENT, SUMMARY_NUMBERS, reason_from
from topobench.drivers import Driver

Document = dict[str, Any]


def sweep_document(
    connection: Connection, sweep_id: int, store: str, host: str | None = None
) -> Document:
    """
    A sweep with its hosts, cells, readings and members.

    Args:
        store: URL of the store, password masked.
        host: Key of the one host to read; None for all.
    """
    sweep = _sweep(connection, sweep_id)
    cells = cells_of(connection, sweep_id, host)
    return {
        "sweep": sweep,
        "cluster": sweep["cluster"],
        "hosts": [h for h in _hosts(connection, sweep_id) if host in (None, h["key"])],
        "cells": cells,
        "counts": dict(collections.Counter(c["status"] for c in cells)),
        "store": store,
    }


def sweep_summary(row: Any) -> Document:
    """
    The ``sweep`` of a document, from a row of sweep with ``cluster``.

    One that says ``running`` and lost its driver on this machine has a warning that says so.
    """
    loss = lost_driver(row)
    return {
        "id": row.uuid,
        "cluster": row.cluster,
        "profile": row.profile,
        "trigger": row.trigger,
        "tag": row.tag,
        "status": row.status,
        "seed": row.seed,
        "tool_version": row.tool_version,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "estimated_seconds": row.estimated_seconds,
        "budget_seconds": row.budget_seconds,
        "source": row.source,
        "synthetic": bool(row.synthetic),
        "labels": row.labels,
        "warnings": [*row.warnings, *([loss] if loss else [])],
    }


def lost_driver(row: Any) -> str | None:
    """What is to be said of a sweep that says ``running`` and lost its driver on this machine."""
    if row.status != "running" or not row.driver:
        return None
    driver = Driver.from_json(row.driver)
    return driver.loss(row.uuid) if driver.is_gone else None


def _sweep(connection: Connection, sweep_id: int) -> Document:
    s, c = schema.sweep, schema.cluster
    query = sa.select(s, c.c.name.label("cluster")).select_from(s.join(c)).where(s.c.id == sweep_id)
    return sweep_summary(connection.execute(query).one())


def _hosts(connection: Connection, sweep_id: int) -> list[Document]:
    s, h, t, k = schema.sweep_host, schema.host, schema.topology, schema.sku
    query = (
        sa.select(
            *(s.c.name, s.c.address, s.c.description, s.c.facts, s.c.warnings),
            *(h.c.key, h.c.labels, t.c.shape, t.c.config, t.c.health, k.c.name.label("sku")),
        )
        .select_from(s.join(h).outerjoin(t, t.c.id == s.c.topology_id).outerjoin(k))
        .where(s.c.sweep_id == sweep_id)
        .order_by(s.c.position, h.c.id)
    )
    return [
        {
            "key": row.key,
            "name": row.name,
            "address": row.address,
            "sku": row.sku,
            "labels": row.labels,
            "description": row.description,
            "facts": row.facts,
            "fingerprints": {
                k: v
                for k, v in (("shape", row.shape), ("config", row.config), ("health", row.health))
                if v is not None
            },
            "warnings": row.warnings,
        }
        for row in connection.execute(query)
    ]


def cells_of(
    connection: Connection, sweep_id: int, host: str | None, *, run_only: bool = False
) -> list[Document]:
    """The cells of a document, of one host key or all; or only those that have a run."""
    rows = cell_rows(connection, sweep_id, host, run_only=run_only)
    sets = {r.device_set_id for r in rows}
    devices, hosts = device_keys(connection, sets), rank_hosts(connection, sets)
    runs = _runs(connection, _of(sweep_id, host))
    return [
        {
            **_cell(r, devices[r.device_set_id], runs.get(r.id, _NO_RUN)),
            "hosts": list(hosts.get(r.device_set_id, ())),
        }
        for r in rows
    ]


_NO_RUN: Document = {
    "seconds": None,
    "readings": [],
    "members": [],
    "warnings": [],
    "conditions": {},
    "environment": {},
    "log_tail": "",
}


def _cell(row: Any, devices: tuple[str, ...], run: Mapping[str, Any]) -> Document:
    reason = reason_from(row)
    return {
        "id": row.uuid,
        "host": row.host_key,
        "probe": row.probe,
        "version": row.probe_version,
        "params": row.params,
        "arm": row.arm,
        "binding": row.arm_document["binding"],
        "ring": row.ring,
        "env": row.arm_document["env"],
        "devices": list(devices),
        "path_class": row.path_class,
        "ranks": row.n_ranks,
        "process_no": row.process_no,
        "block": row.block,
        "order_in_block": row.order_in_block,
        "estimated_seconds": row.estimated_seconds,
        "status": row.status,
        "reason": None if reason is None else str(reason),
        "attempt": row.attempt,
        **run,
    }


def _of(sweep_id: int, host: str | None) -> sa.ColumnElement[bool]:
    """Which runs are meant."""
    r, s, h = schema.run, schema.series, schema.host
    of_sweep = r.c.sweep_id == sweep_id
    if host is None:
        return of_sweep
    own = sa.select(s.c.id).select_from(s.join(h)).where(h.c.key == host)
    return sa.and_(of_sweep, r.c.series_id.in_(own))


def _runs(connection: Connection, wanted: sa.ColumnElement[bool]) -> dict[int, Document]:
    """The last run of each cell, by cell id."""
    r, d, e = schema.run, schema.run_detail, schema.environment
    query = (
        sa.select(
            *(r.c.id, r.c.cell_id, r.c.duration_seconds),
            *(d.c.warnings, d.c.conditions, d.c.log_tail),
            *(e.c[n] for n in ENVIRONMENT),
            e.c.details,
        )
        .select_from(r.join(d).join(e))
        .where(wanted)
        .order_by(r.c.cell_id, r.c.attempt, r.c.id)
    )
    rows = {row.cell_id: row for row in connection.execute(query)}
    readings = _readings(connection, wanted)
    members = _members(connection, wanted)
    return {
        cell_id: {
            "seconds": row.duration_seconds,
            "readings": readings.get(row.id, []),
            "members": members.get(row.id, []),
            "warnings": row.warnings,
            "conditions": row.conditions,
            "environment": _environment(row),
            "log_tail": row.log_tail,
        }
        for cell_id, row in rows.items()
    }


def _environment(row: Any) -> Document:
    known = {n: getattr(row, n) for n in ENVIRONMENT}
    return {**{k: v for k, v in known.items() if v is not None}, **row.details}


def _readings(connection: Connection, wanted: sa.ColumnElement[bool]) -> dict[int, list[Document]]:
    d, m, r = schema.reading, schema.metric, schema.run
    query = (
        sa.select(d, m.c.name, m.c.unit, m.c.better)
        .select_from(d.join(m).join(r, r.c.id == d.c.run_id))
        .where(wanted)
        .order_by(d.c.run_id, d.c.seq)
    )
    found: dict[int, list[Document]] = {}
    for row in connection.execute(query):
        found.setdefault(row.run_id, []).append(document := _reading(row))
        strays.check_numbers(connection, (document["n"], *map(document.get, SUMMARY_NUMBERS)))
    return found


def _reading(row: Any) -> Document:
    document = {
        "metric": row.name,
        "unit": row.unit,
        "better": row.better,
        "point": json.loads(row.point),
        "n": row.n,
        "ci_level": row.ci_level,
        "warmups": row.warmups,
        "stop_reason": row.stop_reason,
        **{k: getattr(row, k) for k in SUMMARY_NUMBERS},
    }
    if row.median is None:
        document["raw_value"] = row.raw_value
        document["raw_text"] = row.raw_text
    return document


def _members(connection: Connection, wanted: sa.ColumnElement[bool]) -> dict[int, list[Document]]:
    m, h, d, r = schema.run_member, schema.host, schema.device, schema.run
    query = (
        sa.select(m, h.c.key.label("host"), d.c.key.label("device"))
        .select_from(m.join(h).outerjoin(d, d.c.id == m.c.device_id).join(r, r.c.id == m.c.run_id))
        .where(wanted)
        .order_by(m.c.run_id, m.c.rank)
    )
    columns = ("rank", "host", "device", "pid", "cpus", "cpu_node", "memory_node", "memory_policy")
    found: dict[int, list[Document]] = {}
    for row in connection.execute(query):
        found.setdefault(row.run_id, []).append({c: getattr(row, c) for c in columns})
    return found
