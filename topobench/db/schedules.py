"""What each schedule of a fleet last did, and what its last check found."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from topobench.db import schema
from topobench.db.columns import now_text, parse_time, time_text
from topobench.db.engine import reading, writing
from topobench.db.store import Store


@dataclass(frozen=True, slots=True)
class State:
    """
    The last try of a schedule.

    Args:
        due_at: The time of its expression that it served; None: asked for by hand.
        exit_code: Of the sweep; None: under way, or killed.
        sweep: UUID; None: none was begun.
        message: What went wrong.
        findings: Subject -> level, as the last check found them.
        served_at: The time that its last sweep served; None: it had none.
        times: Its expression and zone then.
        missed_until: The newest of the times missed since that was told.
    """

    cluster: str
    schedule: str
    tried_at: datetime.datetime
    due_at: datetime.datetime | None = None
    exit_code: int | None = None
    sweep: str | None = None
    message: str | None = None
    findings: Mapping[str, str] = field(default_factory=dict)
    served_at: datetime.datetime | None = None
    times: str | None = None
    missed: int = 0
    missed_until: datetime.datetime | None = None


def every(store: Store) -> list[State]:
    """The states of all schedules, by cluster and schedule."""
    t = schema.schedule_state
    with reading(store.engine) as connection:
        rows = connection.execute(sa.select(t).order_by(t.c.cluster, t.c.schedule)).all()
    return [
        State(
            cluster=r.cluster,
            schedule=r.schedule,
            tried_at=parse_time(r.tried_at),
            due_at=_moment(r.due_at),
            exit_code=r.exit_code,
            sweep=r.sweep,
            message=r.message,
            findings=r.findings,
            served_at=_moment(r.served_at),
            times=r.times,
            missed=r.missed,
            missed_until=_moment(r.missed_until),
        )
        for r in rows
    ]


def _moment(text: str | None) -> datetime.datetime | None:
    return None if text is None else parse_time(text)


def of(store: Store, cluster: str, schedule: str) -> State | None:
    """The state of one schedule; None before its first try."""
    found = (s for s in every(store) if (s.cluster, s.schedule) == (cluster, schedule))
    return next(found, None)


def begin(
    store: Store, cluster: str, schedule: str, *, due_at: datetime.datetime | None
) -> datetime.datetime:
    """A try begins now, which is returned; what was found and missed before stays."""
    t = schema.schedule_state
    own = sa.and_(t.c.cluster == cluster, t.c.schedule == schedule)
    kept = (t.c.findings, t.c.served_at, t.c.times, t.c.missed, t.c.missed_until)
    now = now_text()
    with writing(store.engine) as connection:
        before = connection.execute(sa.select(*kept).where(own)).mappings().first()
        connection.execute(t.delete().where(own))
        row = {
            "cluster": cluster,
            "schedule": schedule,
            "due_at": None if due_at is None else time_text(due_at),
            "tried_at": now,
            **({"findings": {}, "missed": 0} if before is None else before),
        }
        connection.execute(t.insert(), row)
    return parse_time(now)


def end(
    store: Store,
    cluster: str,
    schedule: str,
    *,
    tried_at: datetime.datetime,
    times: str,
    exit_code: int,
    sweep: str | None,
    message: str | None,
    findings: Mapping[str, str] | None,
) -> bool:
    """
    A try has ended; whether it was the last one that began, without which nothing is changed.

    Args:
        tried_at: When it began, as :func:`begin` gave it.
        times: Its expression and zone.
        findings: None: as they were.
    """
    t = schema.schedule_state
    values: dict[str, Any] = {
        "ended_at": now_text(),
        "exit_code": exit_code,
        "sweep": sweep,
        "message": message,
    }
    if findings is not None:
        values["findings"] = dict(findings)
    if sweep is not None:
        served = sa.func.coalesce(t.c.due_at, t.c.tried_at)
        values |= {"served_at": served, "times": times, "missed": 0, "missed_until": None}
    return _update(store, cluster, schedule, values, t.c.tried_at == time_text(tried_at))


def end_late(store: Store, *, tried_at: str, **ended: Any) -> bool:
    """As :func:`end`, of a try whose end was spooled: a time as text, and nothing found."""
    return end(store, tried_at=parse_time(tried_at), findings=None, **ended)


def put_findings(store: Store, cluster: str, schedule: str, findings: Mapping[str, str]) -> None:
    """What the check of the last try found."""
    _update(store, cluster, schedule, {"findings": dict(findings)})


def put_missed(
    store: Store, cluster: str, schedule: str, *, missed: int, until: datetime.datetime
) -> None:
    """So many times went by since the last sweep, of which this is the newest, and are told."""
    _update(store, cluster, schedule, {"missed": missed, "missed_until": time_text(until)})


def _update(
    store: Store,
    cluster: str,
    schedule: str,
    values: Mapping[str, Any],
    *only: sa.ColumnElement[bool],
) -> bool:
    """Whether there is such a row."""
    t = schema.schedule_state
    own = sa.and_(t.c.cluster == cluster, t.c.schedule == schedule, *only)
    with writing(store.engine) as connection:
        return bool(connection.execute(t.update().where(own).values(values)).rowcount)
