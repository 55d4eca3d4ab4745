"""Reads what judgements are made of: every usable value of the runs that a selection names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import schema
from topobench.db.cells import device_keys, rank_hosts
from topobench.db.selecting import Selection, conditions
from topobench.errors import UsageError
from topobench.measured import VERSIONS, Software, Subject, Value, Wiring
from topobench.reading import MEASURED, Better

MOST_READINGS = 2_000_000
"""Readings of one side that are held at once: about 1 GB."""
_AT_ONCE = 400
_BETTER = {int(b): b for b in Better}


@dataclass(frozen=True, slots=True)
class Found:
    """
    The values of a selection, and what was left out of them.

    Args:
        imported: Readings of foreign results that were left out; counted where there is no value.
        synthetic: Readings made by ``demo`` that were left out; counted likewise.
    """

    values: list[Value]
    imported: int = 0
    synthetic: int = 0


def measured(
    connection: Connection,
    selection: Selection,
    *,
    as_of: str | None = None,
    imported: bool = False,
    synthetic: bool = False,
) -> Found:
    """
    The values that a selection names, of runs that ended ``ok`` or ``partial``.

    Args:
        as_of: Only runs that started by then.
        imported: Also results of other tools.
        synthetic: Also results made by ``demo``.

    Raises:
        UsageError: More than :data:`MOST_READINGS`.
    """
    wanted = [*conditions(selection), *_usable(as_of)]
    foreign = schema.series.c.source.like("import:%")
    made = schema.series.c.synthetic == 1
    kept = [*wanted, *([] if imported else [~foreign]), *([] if synthetic else [~made])]
    count = _count(connection, kept)
    if count > MOST_READINGS:
        raise UsageError(
            f"{selection.meaning}: {count} readings are too many at once; "
            "narrow it with date:FIRST..LAST"
        )
    values = _values(connection, kept)
    if values:  # counting what was left out takes as long as counting them
        return Found(values)
    return Found(
        values,
        imported=0 if imported else _count(connection, [*wanted, foreign]),
        synthetic=0 if synthetic else _count(connection, [*wanted, made, ~foreign]),
    )


def up_to(connection: Connection, selection: Selection, most: int) -> int:
    """How many readings a selection names, usable or not; counted no further than ``most``."""
    some = sa.select(sa.literal(1)).select_from(_tables()).where(*conditions(selection)).limit(most)
    query = sa.select(sa.func.count()).select_from(some.subquery())
    return int(connection.execute(query).scalar_one())


def _usable(as_of: str | None) -> list[sa.ColumnElement[bool]]:
    r, d = schema.run, schema.reading
    found: list[sa.ColumnElement[bool]] = [
        r.c.status.in_(sorted(MEASURED)),
        d.c.median.is_not(None),
    ]
    return [*found, *([r.c.started_at <= as_of] if as_of is not None else [])]


def _tables() -> sa.FromClause:
    r, d, c, w = schema.run, schema.reading, schema.cell, schema.sweep
    s, h, e = schema.series, schema.host, schema.environment
    return (
        d.join(r, r.c.id == d.c.run_id)
        .join(c, c.c.id == r.c.cell_id)
        .join(w, w.c.id == r.c.sweep_id)
        .join(s, s.c.id == r.c.series_id)
        .join(h, h.c.id == s.c.host_id)
        .join(e, e.c.id == r.c.environment_id)
    )


def _count(connection: Connection, wanted: Sequence[sa.ColumnElement[bool]]) -> int:
    query = sa.select(sa.func.count()).select_from(_tables()).where(*wanted)
    return int(connection.execute(query).scalar_one())


def _rows(
    connection: Connection, wanted: Sequence[sa.ColumnElement[bool]]
) -> list[sa.Row[*tuple[Any, ...]]]:
    """One row a reading; should a cell have been measured twice, of its last attempt."""
    r, d, c, w, m = schema.run, schema.reading, schema.cell, schema.sweep, schema.metric
    query = (
        sa.select(
            *(r.c.id, r.c.uuid, r.c.cell_id, r.c.started_at, r.c.series_id),
            *(r.c.environment_id, r.c.topology_id, c.c.process_no, c.c.block, c.c.path_class),
            *(w.c.uuid.label("sweep"), w.c.started_at.label("began")),
            *(m.c.name, m.c.unit, m.c.better),
            *(d.c.point, d.c.rank, d.c.n, d.c.median, d.c.p99),
        )
        .select_from(_tables().join(m, m.c.id == d.c.metric_id))
        .where(*wanted)
        .order_by(r.c.id, d.c.seq)
    )
    rows = connection.execute(query).all()
    last = {row.cell_id: row.id for row in rows}
    return [row for row in rows if last[row.cell_id] == row.id]


def _values(connection: Connection, wanted: Sequence[sa.ColumnElement[bool]]) -> list[Value]:
    rows = _rows(connection, wanted)
    subjects = _subjects(connection, {row.series_id for row in rows})
    software = _software(connection, {row.environment_id for row in rows})
    wiring = _wiring(connection, {row.topology_id for row in rows} - {None})
    warned = _warnings(connection, {row.id for row in rows})
    devices = {point: _device(point) for point in {row.point for row in rows}}
    return [
        Value(
            run=row.uuid,
            sweep=row.sweep,
            began=row.began,
            process=(row.process_no, row.block),
            at=row.started_at,
            subject=subjects[row.series_id],
            software=software[row.environment_id],
            wiring=wiring.get(row.topology_id),
            path_class=row.path_class,
            metric=row.name,
            unit=row.unit,
            better=_BETTER[row.better],
            point=row.point,
            rank=row.rank,
            device=devices[row.point],
            n=row.n,
            median=row.median,
            p99=row.p99,
            warnings=warned.get(row.id, frozenset()),
        )
        for row in rows
    ]


def _device(point: str) -> str | None:
    if point == "{}":
        return None
    found = json.loads(point).get("device")
    return found if isinstance(found, str) else None


def _in_parts(
    connection: Connection, query: sa.Select[Any], column: sa.ColumnElement[Any], ids: set[int]
) -> Iterator[Any]:
    """Rows of a query whose column is one of many ids."""
    ordered = sorted(ids)
    for start in range(0, len(ordered), _AT_ONCE):
        yield from connection.execute(query.where(column.in_(ordered[start : start + _AT_ONCE])))


def _subjects(connection: Connection, ids: set[int]) -> dict[int, Subject]:
    """Series by id; what many have in common (case, arm, host) is read once."""
    s = schema.series
    rows = list(_in_parts(connection, sa.select(s), s.c.id, ids))
    cases = _by_id(connection, schema.probe_case, {row.case_id for row in rows})
    arms = _by_id(connection, schema.arm, {row.arm_id for row in rows})
    hosts = _hosts(connection, {row.host_id for row in rows})
    set_ids = {row.device_set_id for row in rows}
    devices, ranks = device_keys(connection, set_ids), rank_hosts(connection, set_ids)
    return {
        row.id: Subject(
            host=f"{host.cluster}/{host.key}",
            host_name=host.name,
            cluster=host.cluster,
            sku=host.sku,
            devices=devices[row.device_set_id],
            probe=case.probe,
            version=case.probe_version,
            params=case.params,
            params_hash=case.params_hash,
            arm=arm.name,
            definition=arm.digest,
            env=arm.env,
            n_ranks=row.n_ranks,
            n_hosts=row.n_hosts,
            source=row.source,
            synthetic=bool(row.synthetic),
            hosts=tuple(f"{host.cluster}/{key}" for key in ranks.get(row.device_set_id, ())),
        )
        for row in rows
        for host, case, arm in [(hosts[row.host_id], cases[row.case_id], arms[row.arm_id])]
    }


def _by_id(connection: Connection, table: sa.Table, ids: set[int]) -> dict[int, Any]:
    return {row.id: row for row in _in_parts(connection, sa.select(table), table.c.id, ids)}


def _hosts(connection: Connection, ids: set[int]) -> dict[int, Any]:
    h, c, k = schema.host, schema.cluster, schema.sku
    query = sa.select(
        *(h.c.id, h.c.key, h.c.name, c.c.name.label("cluster"), k.c.name.label("sku"))
    ).select_from(h.join(c, c.c.id == h.c.cluster_id).outerjoin(k, k.c.id == h.c.sku_id))
    return {row.id: row for row in _in_parts(connection, query, h.c.id, ids)}


def _software(connection: Connection, ids: set[int]) -> dict[int, Software]:
    e = schema.environment
    query = sa.select(e.c.id, *(e.c[n] for n in VERSIONS), e.c.details)
    return {
        row.id: Software(**{n: getattr(row, n) for n in VERSIONS}, details=row.details)
        for row in _in_parts(connection, query, e.c.id, ids)
    }


def _wiring(connection: Connection, ids: set[int]) -> dict[int, Wiring]:
    t = schema.topology
    query = sa.select(t.c.id, t.c.shape, t.c.config, t.c.health)
    return {
        row.id: Wiring(row.shape, row.config, row.health)
        for row in _in_parts(connection, query, t.c.id, ids)
    }


def _warnings(connection: Connection, ids: set[int]) -> dict[int, frozenset[str]]:
    """Codes of the warnings of the runs that have some."""
    d = schema.run_detail
    query = sa.select(d.c.run_id, d.c.warnings).where(d.c.warnings != [])
    return {
        row.run_id: frozenset(str(w).partition(":")[0] for w in row.warnings)
        for row in _in_parts(connection, query, d.c.run_id, ids)
    }
