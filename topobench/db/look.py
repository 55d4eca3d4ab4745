"""What pages show beside sweeps and queries: wiring, verdicts, the fleet, progress."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from topobench.db import clocks, loose, schema
from topobench.db.engine import reading
from topobench.db.find import find_sweep, newest_first
from topobench.db.store import Store
from topobench.db.verdicts import standing
from topobench.verdict_words import OVERALL, Level, worst

Document = dict[str, Any]
_HOST_SWEEPS = 30


def check_keys(store: Store, sweep: str | None = None) -> None:
    """
    Look at the keys of what is to be told of a sweep, or of the newest ones.

    Raises:
        StoreError: A hand edited one so that rows would be missing; the message says where.
    """
    with reading(store.engine) as connection:
        known = None if sweep is None else find_sweep(connection, sweep).id
        loose.check_keys(connection, known)


def topologies(store: Store, sweep: str, hosts: Sequence[str] | None = None) -> Document:
    """
    Topology documents of a sweep's hosts, by host key.

    Args:
        hosts: Keys; None for all.
    """
    sh, h, t = schema.sweep_host, schema.host, schema.topology
    with reading(store.engine) as connection:
        query = (
            sa.select(h.c.key, t.c.document)
            .select_from(sh.join(h).join(t, t.c.id == sh.c.topology_id))
            .where(sh.c.sweep_id == find_sweep(connection, sweep).id)
        )
        if hosts is not None:
            query = query.where(h.c.key.in_(list(hosts)))
        return {row.key: row.document for row in connection.execute(query)}


def verdicts(
    store: Store, sweep: str, host: str | None = None, as_of: str | None = None
) -> list[Document]:
    """
    The verdicts on a sweep that no later one replaced.

    Keys: host (key), host_name, device (key or None), check, level, value, reference,
    effect_ratio, ci_lo, ci_hi, mde_ratio, action, reason, policy_version, as_of.

    Args:
        host: Key; None for all hosts.
        as_of: Time as stored: verdicts that count younger data are as if not given yet.
    """
    v, h, d = schema.verdict, schema.host, schema.device
    with reading(store.engine) as connection:
        query = (
            sa.select(v, h.c.key.label("host"), h.c.name.label("host_name"), d.c.key.label("dev"))
            .select_from(v.join(h, h.c.id == v.c.host_id).outerjoin(d, d.c.id == v.c.device_id))
            .where(v.c.sweep_id == find_sweep(connection, sweep).id, standing(as_of))
            .order_by(v.c.id)
        )
        if host is not None:
            query = query.where(h.c.key == host)
        return [_verdict(row) for row in connection.execute(query)]


_KEPT = (
    "level", "value", "reference", "effect_ratio", "ci_lo", "ci_hi", "mde_ratio", "action",
    "reason", "policy_version", "as_of",
)  # fmt: skip


def _verdict(row: Any) -> Document:
    names = {"host": row.host, "host_name": row.host_name, "device": row.dev}
    return {**names, "check": row.check_name, **{k: getattr(row, k) for k in _KEPT}}


def fleet(store: Store) -> list[Document]:
    """
    Every host that is not retired or imported, with the age of its newest reading.

    Keys: cluster, key, name, address, sku, rack, measured_unix_seconds (or None), synthetic,
    sweep (UUID of the newest that it took part in, or None), sweep_status, level (of the
    newest verdict on it, or None).
    """
    h, c, k = schema.host, schema.cluster, schema.sku
    with reading(store.engine) as connection:
        query = (
            sa.select(h, c.c.name.label("cluster"), k.c.name.label("sku"))
            .select_from(h.join(c).outerjoin(k))
            .where(h.c.retired_on.is_(None), h.c.key.not_like("import:%"))
            .order_by(c.c.name, h.c.name, h.c.id)
        )
        hosts = connection.execute(query).all()
        ages = _ages(connection)
        newest = _newest_sweeps(connection)
        levels = _levels(connection)
    return [
        {
            "cluster": row.cluster,
            "key": row.key,
            "name": row.name,
            "address": row.address,
            "sku": row.sku,
            "rack": row.rack,
            "measured_unix_seconds": ages[row.cluster, row.key][0],
            "synthetic": bool(ages[row.cluster, row.key][1]),
            "sweep": newest.get(row.id, (None, None))[0],
            "sweep_status": newest.get(row.id, (None, None))[1],
            "level": levels.get(row.id),
        }
        for row in hosts
    ]


def _ages(connection: sa.Connection) -> dict[tuple[str, str], tuple[float | None, int | None]]:
    """When each host, by cluster and key, was measured last, and whether that is made."""
    names = ("cluster", "host_key", "measured_unix_seconds", "synthetic")
    covered = sa.table("v_coverage", *map(sa.column, names))
    rows = connection.execute(sa.select(covered))
    return {(cluster, host): (at, synthetic) for cluster, host, at, synthetic in rows}


def _newest_sweeps(connection: sa.Connection) -> dict[int, tuple[str, str]]:
    """
    UUID and status of the newest sweep that each host took part in.

    Asked for each host from the newest sweep on: most are found in the first, where a table of
    all would be read whole. One whose date lies ahead counts where there is no other.
    """
    sh, s, h = schema.sweep_host, schema.sweep, schema.host
    part = sa.exists().where(sh.c.sweep_id == s.c.id, sh.c.host_id == h.c.id)
    every = (
        sa.select(s.c.id)
        .where(s.c.source.not_like("import:%"), part.correlate(s, h))
        .order_by(s.c.started_at.desc(), s.c.id.desc())
        .limit(1)
        .correlate(h)
    )
    here = every.where(s.c.started_at <= clocks.limit_text())
    newest = sa.func.coalesce(here.scalar_subquery(), every.scalar_subquery())
    found = sa.select(h.c.id.label("host_id"), newest.label("sweep_id")).subquery()
    query = sa.select(found.c.host_id, s.c.uuid, s.c.status).join(s, s.c.id == found.c.sweep_id)
    return {host: (uuid, status) for host, uuid, status in connection.execute(query)}


def _levels(connection: sa.Connection) -> dict[int, str]:
    """What stands of the verdicts on each host, from the newest sweep that was judged."""
    v, s = schema.verdict, schema.sweep
    newest = (
        sa.select(v.c.host_id, clocks.newest(s.c.started_unix_seconds).label("at"))
        .select_from(v.join(s, s.c.id == v.c.sweep_id))
        .where(standing())
        .group_by(v.c.host_id)
        .subquery()
    )
    query = (
        sa.select(v.c.host_id, v.c.check_name, v.c.level)
        .select_from(
            v.join(s, s.c.id == v.c.sweep_id).join(newest, newest.c.host_id == v.c.host_id)
        )
        .where(s.c.started_unix_seconds == newest.c.at, standing())
    )
    found: dict[int, list[tuple[str, str]]] = {}
    for host, check, level in connection.execute(query):
        found.setdefault(host, []).append((check, level))
    return {host: host_level(checks) for host, checks in found.items()}


def host_level(checks: Sequence[tuple[str, str]]) -> str:
    """The level of a host: of its overall check, else the gravest; from names and levels."""
    for name, level in checks:
        if name == OVERALL:
            return level
    return str(worst([Level(level) for _, level in checks]))


def host_sweeps(store: Store, cluster: str, host: str) -> list[Document]:
    """
    The newest 30 sweeps that a host took part in; those whose date lies ahead come last.

    Keys: id, status, profile, started_at, ended_at, synthetic, counts (cells of the host that
    ran, by status).

    Args:
        host: Key.
    """
    sh, s, h, c = schema.sweep_host, schema.sweep, schema.host, schema.cluster
    with reading(store.engine) as connection:
        query = (
            sa.select(s, h.c.id.label("host_id"))
            .select_from(
                sh.join(s).join(h, h.c.id == sh.c.host_id).join(c, c.c.id == h.c.cluster_id)
            )
            .where(h.c.key == host, c.c.name == cluster)
            .order_by(*newest_first())
            .limit(_HOST_SWEEPS)
        )
        rows = connection.execute(query).all()
        counts = _ran(connection, [r.id for r in rows], rows[0].host_id) if rows else {}
    return [
        {
            "id": row.uuid,
            "status": row.status,
            "profile": row.profile,
            "started_at": row.started_at,
            "ended_at": row.ended_at,
            "synthetic": bool(row.synthetic),
            "counts": dict(counts.get(row.id, {})),
        }
        for row in rows
    ]


def progress(store: Store, sweep: str) -> Document:
    """How far a sweep is: id, status, estimated_seconds, started_at, counts of its cells."""
    with reading(store.engine) as connection:
        row = find_sweep(connection, sweep)
        counts = _counts(connection, [row.id]).get(row.id, {})
    return {
        "id": row.uuid,
        "status": row.status,
        "started_at": row.started_at,
        "estimated_seconds": row.estimated_seconds,
        "counts": dict(counts),
    }


def sweep_hosts(store: Store, sweep: str) -> list[Document]:
    """
    The hosts of a sweep with counts of their cells, without what they measured.

    Keys: key, name, address, sku, counts.
    """
    sh, h, k, cell, s = (
        schema.sweep_host, schema.host, schema.sku, schema.cell, schema.series,
    )  # fmt: skip
    with reading(store.engine) as connection:
        sweep_id = find_sweep(connection, sweep).id
        query = (
            sa.select(h.c.id, h.c.key, sh.c.name, sh.c.address, k.c.name.label("sku"))
            .select_from(sh.join(h).outerjoin(k))
            .where(sh.c.sweep_id == sweep_id)
            .order_by(sh.c.position, h.c.id)
        )
        rows = connection.execute(query).all()
        tally = (
            sa.select(s.c.host_id, cell.c.status, sa.func.count())
            .select_from(cell.join(s, s.c.id == cell.c.series_id))
            .where(cell.c.sweep_id == sweep_id)
            .group_by(s.c.host_id, cell.c.status)
        )
        counts: dict[int, dict[str, int]] = collections.defaultdict(dict)
        for host, status, number in connection.execute(tally):
            counts[host][status] = number
    return [
        {
            "key": r.key,
            "name": r.name,
            "address": r.address,
            "sku": r.sku,
            "counts": counts.get(r.id, {}),
        }
        for r in rows
    ]


def _counts(connection: sa.Connection, sweeps: Sequence[int]) -> dict[int, dict[str, int]]:
    """Cells by status of each sweep."""
    c = schema.cell
    query = (
        sa.select(c.c.sweep_id, c.c.status, sa.func.count())
        .where(c.c.sweep_id.in_(list(sweeps)))
        .group_by(c.c.sweep_id, c.c.status)
    )
    return _tallied(connection, query)


def _ran(connection: sa.Connection, sweeps: Sequence[int], host: int) -> dict[int, dict[str, int]]:
    """The same of one host's cells that ran: found by its series, not by all cells of a sweep."""
    c, r, s = schema.cell, schema.run, schema.series
    own = sa.select(s.c.id).where(s.c.host_id == host)
    query = (
        sa.select(r.c.sweep_id, c.c.status, sa.func.count())
        .select_from(r.join(c, sa.and_(c.c.id == r.c.cell_id, c.c.attempt == r.c.attempt)))
        .where(r.c.series_id.in_(own), r.c.sweep_id.in_(list(sweeps)))
        .group_by(r.c.sweep_id, c.c.status)
    )
    return _tallied(connection, query)


def _tallied(connection: sa.Connection, query: sa.Select[Any]) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for sweep, status, number in connection.execute(query):
        found.setdefault(sweep, {})[status] = number
    return found


def touch(store: Store) -> None:
    """
    Read a little, whatever it says.

    Raises:
        StoreError: It cannot be read.
    """
    s, r = schema.sweep.c, schema.run.c
    with reading(store.engine) as connection:
        connection.execute(sa.select(s.id).order_by(s.started_at.desc()).limit(1)).all()
        connection.execute(sa.select(sa.func.max(r.id))).all()


def newest_run(store: Store) -> int:
    """A number that grows with every run that is stored; 0 while there is none."""
    with reading(store.engine) as connection:
        return int(connection.execute(sa.select(sa.func.max(schema.run.c.id))).scalar() or 0)


def newest_sweeps(store: Store) -> list[Document]:
    """
    The newest sweep of each cluster, imports aside.

    Keys: id, cluster, status, started_unix_seconds, counts.
    """
    s, c = schema.sweep, schema.cluster
    with reading(store.engine) as connection:
        own = s.c.source.not_like("import:%")
        newest = (
            sa.select(s.c.cluster_id, clocks.newest(s.c.started_unix_seconds).label("at"))
            .where(own)
            .group_by(s.c.cluster_id)
            .subquery()
        )
        query = (
            sa.select(s, c.c.name.label("cluster"))
            .select_from(s.join(c).join(newest, newest.c.cluster_id == s.c.cluster_id))
            .where(s.c.started_unix_seconds == newest.c.at, own)
            .order_by(c.c.name, s.c.id)
        )
        rows = {row.cluster: row for row in connection.execute(query)}
        counts = _counts(connection, [r.id for r in rows.values()])
    return [
        {
            "id": row.uuid,
            "cluster": name,
            "status": row.status,
            "started_unix_seconds": row.started_unix_seconds,
            "counts": counts.get(row.id, {}),
        }
        for name, row in rows.items()
    ]


def newest_of_host(store: Store, host: str) -> str | None:
    """UUID of the newest sweep that ended and that a host, by name or key, took part in."""
    sh, s, h = schema.sweep_host, schema.sweep, schema.host
    wanted = sa.or_(sa.func.lower(h.c.name) == host.lower(), sa.func.lower(h.c.key) == host.lower())
    with reading(store.engine) as connection:
        query = (
            sa.select(s.c.uuid)
            .select_from(sh.join(s).join(h, h.c.id == sh.c.host_id))
            .where(wanted, s.c.status != "running", s.c.source.not_like("import:%"))
            .order_by(s.c.synthetic, *newest_first())
            .limit(1)
        )
        found: str | None = connection.execute(query).scalar()
    return found
