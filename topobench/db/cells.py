"""Stores planned cells: each belongs to a series, which outlives the sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import places, schema
from topobench.db.columns import digest
from topobench.db.keys import Keys, insert_new
from topobench.db.places import Places
from topobench.db.records import Row, arm_row, case_row, cell_row, farthest_class, reason_from
from topobench.db.sweeps import SweepRef, load_cells
from topobench.reading import Arm, Case, Cell, Status

T = TypeVar("T")
AT_ONCE = 10_000
"""Cells whose rows are in memory together."""


def put_cells(connection: Connection, keys: Keys, ref: SweepRef, cells: Sequence[Cell]) -> None:
    """Store cells; those already stored stay as they are."""
    new = [c for c in cells if c.id not in ref.cells]
    if not new:
        return
    for first in range(0, len(new), AT_ONCE):
        some, position = new[first : first + AT_ONCE], len(ref.cells)
        _put_some(connection, keys, ref, some, position)
        ref.cells.update(load_cells(connection, ref.id, position, {c.id: c.id for c in some}))
    keys.drop(schema.series)


def _put_some(
    connection: Connection, keys: Keys, ref: SweepRef, cells: Sequence[Cell], position: int
) -> None:
    series = _series_ids(connection, keys, ref, cells)
    rows = []
    for number, (cell, series_id) in enumerate(zip(cells, series, strict=True), position):
        row = cell_row(cell, sweep_id=ref.id, series_id=series_id, position=number)
        rows.append({**row, "path_class": _path_class(ref.places, cell)})
    insert_new(connection, schema.cell, rows)


def stored_cells(connection: Connection, sweep_id: int) -> list[tuple[Cell, int]]:
    """The cells of a sweep as they stand, with the number of their last attempt."""
    rows = cell_rows(connection, sweep_id)
    sets = {r.device_set_id for r in rows}
    devices, hosts = device_keys(connection, sets), rank_hosts(connection, sets)
    return [
        (_cell(r, devices[r.device_set_id], hosts.get(r.device_set_id, ())), r.attempt)
        for r in rows
    ]


def cell_rows(
    connection: Connection, sweep_id: int, host: str | None = None, *, run_only: bool = False
) -> Sequence[Any]:
    """
    Rows of ``cell`` in planned order, with their case, arm and host; of one host key or all.

    Args:
        run_only: Those that have a run. Of one host they are found by an index; all others
            of the sweep are looked at otherwise.
    """
    c, s, p = schema.cell, schema.series, schema.probe_case
    a, h = schema.arm, schema.host
    query = (
        sa.select(
            c,
            *(s.c.n_ranks, s.c.device_set_id, p.c.probe, p.c.probe_version, p.c.params),
            *(a.c.document.label("arm_document"), h.c.key.label("host_key")),
        )
        .select_from(c.join(s).join(p).join(a, a.c.id == s.c.arm_id).join(h, h.c.id == s.c.host_id))
        .where(c.c.sweep_id == sweep_id)
        .order_by(c.c.position, c.c.id)
    )
    if host is not None:
        query = query.where(h.c.key == host)
    if run_only:
        query = query.where(c.c.id.in_(_with_runs(sweep_id, host)))
    return connection.execute(query).all()


def _with_runs(sweep_id: int, host: str | None) -> sa.Select[tuple[int]]:
    r, s, h = schema.run, schema.series, schema.host
    found = sa.select(r.c.cell_id).where(r.c.sweep_id == sweep_id)
    if host is None:
        return found
    own = sa.select(s.c.id).select_from(s.join(h)).where(h.c.key == host)
    return found.where(r.c.series_id.in_(own))


def device_keys(connection: Connection, set_ids: set[int]) -> dict[int, tuple[str, ...]]:
    """The device keys of device sets, in order; hosts that stand for a rank are no devices."""
    found: dict[int, list[str]] = {i: [] for i in set_ids}
    for row in _members(connection, set_ids):
        if row.kind != places.HOST_KIND:
            found[row.device_set_id].append(row.key)
    return {i: tuple(k) for i, k in found.items()}


def rank_hosts(connection: Connection, set_ids: set[int]) -> dict[int, tuple[str, ...]]:
    """The key of each rank's host, of device sets that span several hosts."""
    found: dict[int, list[str]] = {}
    for row in _members(connection, set_ids):
        found.setdefault(row.device_set_id, []).append(row.host)
    return {i: tuple(k) for i, k in found.items() if len(set(k)) > 1}


def _members(connection: Connection, set_ids: set[int]) -> Iterator[Any]:
    """Members of device sets in order: set, key and kind of the device, key of its host."""
    m, d, h = schema.device_set_member, schema.device, schema.host
    query = (
        sa.select(m.c.device_set_id, d.c.key, d.c.kind, h.c.key.label("host"))
        .select_from(m.join(d).join(h))
        .where(m.c.device_set_id.in_(sa.bindparam("ids", expanding=True)))
        .order_by(m.c.device_set_id, m.c.position)
    )
    ids = sorted(set_ids)
    for start in range(0, len(ids), 400):
        yield from connection.execute(query, {"ids": ids[start : start + 400]})


def _cell(row: Any, devices: tuple[str, ...], hosts: tuple[str, ...]) -> Cell:
    return Cell(
        id=row.uuid,
        case=Case(row.probe, row.probe_version, row.params),
        host=row.host_key,
        arm=Arm.from_json(row.arm_document),
        devices=devices,
        hosts=hosts,
        ranks=row.n_ranks,
        process_no=row.process_no,
        block=row.block,
        order_in_block=row.order_in_block,
        estimated_seconds=row.estimated_seconds,
        status=Status(row.status),
        reason=reason_from(row),
    )


def _series_ids(
    connection: Connection, keys: Keys, ref: SweepRef, cells: Sequence[Cell]
) -> list[int]:
    """The series of each cell; new cases, arms, device sets and series are inserted."""
    cases = _each_once(case_row, [c.case for c in cells])
    arms = _each_once(arm_row, [c.arm for c in cells])
    sets = [_device_set(connection, ref, c) for c in cells]
    case_ids = keys.many(connection, schema.probe_case, cases)
    arm_ids = keys.many(connection, schema.arm, arms)
    set_ids = _set_ids(connection, keys, sets)
    rows = []
    for cell, case, arm, group in zip(cells, cases, arms, sets, strict=True):
        identity = (ref.cluster, cell.host, case["digest"], arm["digest"], group["digest"])
        rows.append(
            {
                "digest": digest(*identity, cell.ranks, ref.source, ref.synthetic),
                "host_id": ref.places.hosts[cell.host],
                "case_id": case_ids[case["digest"]],
                "arm_id": arm_ids[arm["digest"]],
                "device_set_id": set_ids[group["digest"]],
                "n_ranks": cell.ranks,
                "n_hosts": group["n_hosts"],
                "source": ref.source,
                "synthetic": ref.synthetic,
            }
        )
    ids = keys.many(connection, schema.series, rows)
    return [ids[r["digest"]] for r in rows]


def _each_once(make: Callable[[T], Row], values: Sequence[T]) -> list[Row]:
    """The row of each value; a plan holds the same few objects over and over."""
    made: dict[int, Row] = {}
    return [made.get(id(v)) or made.setdefault(id(v), make(v)) for v in values]


def _device_set(connection: Connection, ref: SweepRef, cell: Cell) -> Row:
    """A row of ``device_set`` with the device ids in ``members``, and ``n_hosts``."""
    host_id = places.host_id_of(connection, ref.places, cell.host)
    ids = [places.device_id_of(connection, ref.places, host_id, d) for d in cell.devices]
    if cell.hosts and not ids:
        ids = [places.host_device_id(connection, ref.places, h) for h in cell.hosts]
    owners = {ref.places.owners[i] for i in ids} | {host_id}
    imported = ref.source.startswith("import:")  # its devices are not known, but how many hosts
    told = cell.case.params.get("hosts") if imported else None
    return {
        "digest": digest(ids),
        "n_devices": len(cell.devices),
        "label": ",".join(cell.devices or cell.hosts),
        "device_id": ids[0] if len(ids) == 1 else None,
        "members": ids,
        "n_hosts": told if isinstance(told, int) else len(owners),
    }


def _set_ids(connection: Connection, keys: Keys, sets: Sequence[Row]) -> Mapping[str, int]:
    columns = ("digest", "n_devices", "label", "device_id")
    ids = keys.many(connection, schema.device_set, [{k: g[k] for k in columns} for g in sets])
    members = {
        (ids[g["digest"]], n): {
            "device_set_id": ids[g["digest"]],
            "position": n,
            "device_id": device_id,
        }
        for g in sets
        for n, device_id in enumerate(g["members"])
    }
    if members:
        insert_new(connection, schema.device_set_member, list(members.values()))
    return ids


def _path_class(known: Places, cell: Cell) -> str | None:
    if cell.hosts:
        return None
    found = known.topologies.get(known.hosts[cell.host])
    return farthest_class(found[1], cell.devices) if found and len(cell.devices) > 1 else None
