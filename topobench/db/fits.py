"""
The lines of collectives as rows of ``fit``: worked out anew when a sweep ends or comes in.

The series of a row is that of the largest size; it names host, devices, ranks and arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import schema
from topobench.db.records import Row
from topobench.fit import AlphaBeta, fit_lines
from topobench.reading import MEASURED

KIND = "alpha_beta"
_AXIS, _TIME, _BUS = "bytes", "latency_seconds", "busbw_bytes_per_second"
_Key = tuple[Any, ...]


def refresh(connection: Connection, sweep_ids: Iterable[int]) -> int:
    """Fit the collectives of these sweeps anew; returns how many lines that gave."""
    table = schema.fit
    total = 0
    for sweep_id in sweep_ids:
        own = (table.c.sweep_id == sweep_id) & (table.c.kind == KIND)
        connection.execute(table.delete().where(own))
        rows = list(_rows(connection, sweep_id))
        if rows:
            connection.execute(table.insert(), rows)
        total += len(rows)
    return total


def _rows(connection: Connection, sweep_id: int) -> Iterator[Row]:
    found = connection.execute(_readings(sweep_id)).all()
    largest: dict[_Key, Any] = {}
    for row in found:
        known = largest.get(key := _key(row))
        if known is None or row.bytes > known.bytes:
            largest[key] = row
    points = ((_key(r), (r.block, r.process_no), r.bytes, r.median) for r in found)
    for key, line in fit_lines(points).items():
        yield {"sweep_id": sweep_id, **_subject(largest[key]), **_numbers(line)}


def _readings(sweep_id: int) -> sa.Select[Any]:
    """The times of whole collectives: of cells that have a bus bandwidth, too."""
    r, d, m, c = schema.run, schema.reading, schema.metric, schema.cell
    s, p, a, ds = schema.series, schema.probe_case, schema.arm, schema.device_set
    other, bus = d.alias(), m.alias()
    collective = (
        sa.select(other.c.run_id)
        .select_from(other.join(bus, bus.c.id == other.c.metric_id))
        .where(other.c.run_id == r.c.id, bus.c.name == _BUS, other.c.rank.is_(None))
    )
    return (
        sa.select(
            *(s.c.id, s.c.host_id, s.c.arm_id, s.c.device_set_id, s.c.n_ranks, s.c.n_hosts),
            *(p.c.probe, p.c.probe_version, p.c.params, p.c.bytes, p.c.op, p.c.dtype),
            *(p.c.backend, a.c.name.label("arm"), ds.c.label, c.c.block, c.c.process_no),
            d.c.median,
        )
        .select_from(
            r.join(c, c.c.id == r.c.cell_id)
            .join(s, s.c.id == r.c.series_id)
            .join(p, p.c.id == s.c.case_id)
            .join(a, a.c.id == s.c.arm_id)
            .join(ds, ds.c.id == s.c.device_set_id)
            .join(d, d.c.run_id == r.c.id)
            .join(m, m.c.id == d.c.metric_id)
        )
        .where(
            r.c.sweep_id == sweep_id,
            r.c.status.in_([str(status) for status in MEASURED]),
            m.c.name == _TIME,
            d.c.rank.is_(None),
            d.c.median.is_not(None),
            p.c.bytes.is_not(None),
            collective.exists(),
        )
        .order_by(r.c.id)
    )


def _key(row: Any) -> _Key:
    params = tuple(sorted((k, v) for k, v in row.params.items() if k != _AXIS))
    place = row.host_id, row.arm_id, row.device_set_id, row.n_ranks, row.n_hosts
    return (*place, row.probe, row.probe_version, params)


def _subject(row: Any) -> Row:
    where = row.label or f"{row.n_ranks} processes"
    params = {k: v for k, v in row.params.items() if k != _AXIS}
    named = {"dtype", "backend", "ranks", "hosts"}
    more = [f"{k}={v}" for k, v in sorted(params.items()) if k not in named]
    head = row.op or row.probe, row.dtype, row.backend, *more
    words = [*head, f"over {where}, arm {row.arm}"]
    return {
        "host_id": row.host_id,
        "series_id": row.id,
        "kind": KIND,
        "subject": " ".join(word for word in words if word),
        "x_metric": _AXIS,
        "params": params,
    }


def _numbers(line: AlphaBeta) -> Row:
    alpha, beta, half = line.alpha_seconds, line.beta_bytes_per_second, line.n_half_bytes
    return {
        "alpha_seconds": alpha.value,
        "alpha_lo": alpha.lo,
        "alpha_hi": alpha.hi,
        "beta_bytes_per_second": beta.value,
        "beta_lo": beta.lo,
        "beta_hi": beta.hi,
        "n_half_bytes": half and half.value,
        "ci_level": str(line.level),
        "n": line.n,
        "residual_ratio": line.residual_ratio,
        "worst_bytes": line.worst_bytes,
        "worst_ratio": line.worst_ratio,
        "smallest_bytes": line.smallest_bytes,
        "largest_bytes": line.largest_bytes,
    }
