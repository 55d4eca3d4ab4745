"""What each schedule of a fleet last did, and what its last check found."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """

    cluster: str
    schedule: str
    tried_at: datetime.datetime
    due_at: datetime.datetime | None = None
    exit_code: int | None = None
    sweep: str | None = None
    message: str | None = None
    findings: Mapping[str, str] = field(default_factory=dict)


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
            due_at=None if r.due_at is None else parse_time(r.due_at),
            exit_code=r.exit_code,
            sweep=r.sweep,
            message=r.message,
            findings=r.findings,
        )
        for r in rows
    ]


def of(store: Store, cluster: str, schedule: str) -> State | None:
    """The state of one schedule; None before its first try."""
    found = (s for s in every(store) if (s.cluster, s.schedule) == (cluster, schedule))
    return next(found, None)


def begin(store: Store, cluster: str, schedule: str, *, due_at: datetime.datetime | None) -> None:
    """A try begins now; what was found before stays."""
    t = schema.schedule_state
    own = sa.and_(t.c.cluster == cluster, t.c.schedule == schedule)
    with writing(store.engine) as connection:
        findings = connection.execute(sa.select(t.c.findings).where(own)).scalar()
        connection.execute(t.delete().where(own))
        row = {
            "cluster": cluster,
            "schedule": schedule,
            "due_at": None if due_at is None else time_text(due_at),
            "tried_at": now_text(),
            "findings": findings or {},
        }
        connection.execute(t.insert(), row)


def end(
    store: Store,
    cluster: str,
    schedule: str,
    *,
    exit_code: int,
    sweep: str | None,
    message: str | None,
    findings: Mapping[str, str],
) -> None:
    """The try that began last has ended."""
    t = schema.schedule_state
    with writing(store.engine) as connection:
        connection.execute(
            t.update().where(t.c.cluster == cluster, t.c.schedule == schedule),
            {
                "ended_at": now_text(),
                "exit_code": exit_code,
                "sweep": sweep,
                "message": message,
                "findings": dict(findings),
            },
        )
