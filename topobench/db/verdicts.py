"""Stores verdicts and changes of level, and reads back what was said of a sweep."""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from topobench.db import schema
from topobench.db.columns import now_text, time_text
from topobench.db.engine import reading, writing
from topobench.db.evidence import Loaded
from topobench.db.find import find_sweep
from topobench.db.keys import insert_id
from topobench.db.store import Store
from topobench.verdict_words import OVERALL, SEVERITY, Check, Judgement, Subject, worst_first

METHOD = "potts"
"""How changes of level are found; those that another method found are left alone."""
_SECONDS_A_DAY = 86_400

_Place = tuple[int, int | None, str]
"""Host id, device id and check: what one verdict at a time is about."""


def put(
    store: Store, loaded: Loaded, judgement: Judgement, *, policy_version: str, digest: str
) -> None:
    """
    Store a judgement; the same one again changes nothing.

    A verdict on the same subject of the same sweep by other rules, or as of another time, is
    kept and superseded.
    """
    with writing(store.engine) as connection:
        if _is_stored(connection, loaded, policy_version, digest):
            return
        given = {
            "sweep_id": loaded.sweep_id,
            "as_of": loaded.evidence.as_of,
            "policy_version": policy_version,
            "inputs_digest": digest,
        }
        before = _current(connection, loaded.sweep_id)
        ids = {h.key: i for h, i in zip(loaded.evidence.hosts, loaded.host_ids, strict=True)}
        new: dict[_Place, int] = {}
        for subject in judgement.subjects:
            new |= _put_subject(connection, subject, ids[subject.host], given)
        _supersede(connection, before, new)
        _put_changepoints(connection, loaded, judgement)


def acknowledge(
    store: Store, *, host_id: int, ticket: str, text: str, author: str, expires_at: str
) -> None:
    """Store an acknowledgement of a host; it ends at ``expires_at``."""
    row = {
        "entity": "host",
        "entity_id": host_id,
        "author": author,
        "text": text,
        "ticket": ticket,
        "created_at": now_text(),
        "expires_at": expires_at,
    }
    with writing(store.engine) as connection:
        insert_id(connection, schema.annotation, row)


def acknowledgements(store: Store) -> list[dict[str, Any]]:
    """Every acknowledgement of a host, newest first; expired ones, too."""
    a, h, c = schema.annotation, schema.host, schema.cluster
    query = (
        sa.select(
            *(h.c.key, h.c.name, c.c.name.label("cluster"), a.c.ticket, a.c.text, a.c.author),
            *(a.c.created_at, a.c.expires_at),
        )
        .select_from(a.join(h, h.c.id == a.c.entity_id).join(c, c.c.id == h.c.cluster_id))
        .where(a.c.entity == "host")
        .order_by(a.c.created_at.desc(), a.c.id.desc())
    )
    with reading(store.engine) as connection:
        return [
            {
                "host": r.key,
                "name": r.name,
                "cluster": r.cluster,
                "ticket": r.ticket,
                "text": r.text,
                "author": r.author,
                "created_at": r.created_at,
                "expires_at": r.expires_at,
            }
            for r in connection.execute(query)
        ]


def hosts_named(store: Store, text: str) -> list[Any]:
    """Rows (id, key, name, cluster) of the hosts with that key, name or address."""
    h, c = schema.host, schema.cluster
    query = (
        sa.select(h.c.id, h.c.key, h.c.name, c.c.name.label("cluster"))
        .select_from(h.join(c))
        .where(sa.or_(h.c.key == text, h.c.name == text, h.c.address == text))
        .order_by(h.c.id)
    )
    with reading(store.engine) as connection:
        return list(connection.execute(query))


def host_names(store: Store) -> list[str]:
    """Names of all hosts that are not retired."""
    h = schema.host
    query = sa.select(h.c.name).where(h.c.retired_on.is_(None)).order_by(h.c.name)
    with reading(store.engine) as connection:
        return list(connection.execute(query).scalars())


def overall(store: Store, sweep: str, as_of: str | None = None) -> list[dict[str, Any]]:
    """
    The verdicts on hosts and devices of a sweep that no later one replaced, worst first.

    Args:
        as_of: Time as stored: verdicts that count younger data are as if not given yet.

    Keys: name, device (key or None), level, reason, as_of, policy_version.
    """
    v, h, d = schema.verdict, schema.host, schema.device
    with reading(store.engine) as connection:
        query = (
            sa.select(
                *(h.c.name, d.c.key.label("device"), v.c.level, v.c.reason, v.c.as_of),
                v.c.policy_version,
            )
            .select_from(v.join(h, h.c.id == v.c.host_id).outerjoin(d, d.c.id == v.c.device_id))
            .where(
                v.c.sweep_id == find_sweep(connection, sweep).id,
                v.c.check_name == OVERALL,
                standing(as_of),
            )
            .order_by(v.c.id)
        )
        found = [dict(r._mapping) for r in connection.execute(query)]
    return sorted(found, key=lambda r: worst_first(r["level"]))


def standing(as_of: str | None = None) -> sa.ColumnElement[bool]:
    """
    Condition on a verdict: no later one has replaced it.

    Args:
        as_of: Time as stored: verdicts that count younger data are as if not given yet.
    """
    v = schema.verdict
    if as_of is None:
        return v.c.superseded_by.is_(None)
    later = schema.verdict.alias()
    replaced = sa.exists().where(later.c.id == v.c.superseded_by, later.c.as_of <= as_of)
    return sa.and_(v.c.as_of <= as_of, ~replaced)


def _is_stored(connection: Connection, loaded: Loaded, version: str, digest: str) -> bool:
    v = schema.verdict
    query = sa.select(v.c.id).where(
        v.c.sweep_id == loaded.sweep_id,
        v.c.as_of == loaded.evidence.as_of,
        v.c.policy_version == version,
        v.c.inputs_digest == digest,
        v.c.superseded_by.is_(None),
    )
    return connection.execute(query.limit(1)).first() is not None


def _current(connection: Connection, sweep_id: int) -> list[tuple[_Place, int]]:
    """
    The verdicts on a sweep that nothing has superseded yet, with their place.

    A device may have several of one check: each link of it that is down says so.
    """
    v = schema.verdict
    query = sa.select(v.c.host_id, v.c.device_id, v.c.check_name, v.c.id).where(
        v.c.sweep_id == sweep_id, v.c.superseded_by.is_(None)
    )
    return [((r.host_id, r.device_id, r.check_name), r.id) for r in connection.execute(query)]


def _put_subject(
    connection: Connection, subject: Subject, host_id: int, given: dict[str, Any]
) -> dict[_Place, int]:
    """Store the verdict on a subject, then what each check said; their ids."""
    d = schema.device
    device_id = None
    if subject.device is not None:
        keyed = sa.select(d.c.id).where(d.c.host_id == host_id, d.c.key == subject.device)
        device_id = connection.execute(keyed).scalar()
        if device_id is None:
            return {}  # a pair, or a device that discovery did not see: the host's row names it
    gravest = max(subject.checks, key=lambda c: SEVERITY[c.level])
    told = Check(OVERALL, subject.level, gravest.reason, effect=gravest.effect, mde=gravest.mde)
    ids = {}
    for check in (told, *subject.checks):
        row = {
            **given,
            "host_id": host_id,
            "device_id": device_id,
            "check_name": check.name,
            "level": check.level.value,
            "value": check.value,
            "reference": check.reference,
            "effect_ratio": check.effect,
            "mde_ratio": check.mde,
            "confirmed_count": check.confirmed,
            "action": subject.advice if check is told else None,
            "reason": check.reason,
        }
        ids[host_id, device_id, check.name] = insert_id(connection, schema.verdict, row)
    return ids


def _supersede(
    connection: Connection, before: list[tuple[_Place, int]], new: dict[_Place, int]
) -> None:
    """Link each verdict to the one in its place; to the host's own where there is none now."""
    v = schema.verdict
    for place, old in before:
        later = new.get(place) or new.get((place[0], None, OVERALL))
        connection.execute(v.update().where(v.c.id == old).values(superseded_by=later))


def _put_changepoints(connection: Connection, loaded: Loaded, judgement: Judgement) -> None:
    """The changes of level in the window take the place of what was found there before."""
    days = loaded.evidence.days
    if not len(days):
        return
    c, s, h = schema.changepoint, schema.series, schema.host
    cluster = sa.select(schema.sweep.c.cluster_id).where(schema.sweep.c.id == loaded.sweep_id)
    own = (
        sa.select(s.c.id)
        .select_from(s.join(h))
        .where(
            h.c.cluster_id == cluster.scalar_subquery(),
            s.c.synthetic == int(loaded.synthetic),
        )
    )
    connection.execute(
        c.delete().where(
            c.c.method == METHOD,
            c.c.series_id.in_(own),
            c.c.at_hi >= _start_of(int(days[0])),
            c.c.at_hi <= loaded.evidence.as_of,
        )
    )
    rows = [
        {
            "series_id": loaded.series[p.track][0],
            "metric_id": loaded.series[p.track][1],
            "at_lo": _start_of(p.lo),
            "at_hi": _start_of(p.hi),
            "effect_ratio": p.effect,
            "p": p.p,
            "method": METHOD,
        }
        for p in judgement.changepoints
    ]
    if rows:
        connection.execute(c.insert(), rows)


def _start_of(day: int) -> str:
    return time_text(datetime.datetime.fromtimestamp(day * _SECONDS_A_DAY, datetime.UTC))
