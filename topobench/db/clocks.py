"""
Times that lie ahead: a clock was wrong, and what it told is never the latest.

Unless there is nothing else. A date of the future says only that, not when it was.
"""

from __future__ import annotations

import datetime
import math
import time
from typing import Any

import sqlalchemy as sa

from topobench.db.columns import time_text
from topobench.host import CLOCKS_APART_SECONDS


def limit_seconds() -> float:
    """The moment after which a stored time lies ahead, since 1970."""
    return time.time() + CLOCKS_APART_SECONDS


def limit_text() -> str:
    """The same as stored."""
    return time_text(datetime.datetime.fromtimestamp(limit_seconds(), datetime.UTC))


def told_ahead(started: float) -> float:
    """
    The moment after which a stored run was told by a clock that ran ahead.

    Such a run would be the latest one until its time comes. None is, beside a run that begins
    (``started``) in the future itself.
    """
    now = limit_seconds()
    return now if started <= now else math.inf


def is_ahead(seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """1 for a time since 1970 that lies ahead, else 0: to be ordered by first."""
    return sa.case((seconds > limit_seconds(), 1), else_=0)


def newest(seconds: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """The largest of times since 1970 that do not lie ahead; if all do, of them."""
    here = sa.func.max(sa.case((seconds <= limit_seconds(), seconds)))
    return sa.func.coalesce(here, sa.func.max(seconds))


def is_later(text: str, than: str) -> bool:
    """Whether a time as stored is later than another; one that lies ahead is earlier than any."""
    limit = limit_text()
    return (text <= limit, text) > (than <= limit, than)


def seen_by_then(column: sa.ColumnElement[Any], seen: str) -> sa.ColumnElement[bool]:
    """Whether a stored time is no later than this one, or was told by a clock that ran ahead."""
    limit = limit_text()
    return sa.or_(column <= seen, column > limit) if seen <= limit else column <= seen


AHEAD = "substr(CAST({at} AS text), 1, 10) > CAST(CURRENT_DATE AS text)"
"""
The same for views, which know no moment that every engine writes alike: ``at`` lies on a later
day.
"""


def newest_of(column: str, at: str, *, over: str = "") -> str:
    """
    For views: the largest of a column's values whose day is not ahead; if all are, of them.

    Args:
        at: Column of the time that says whether a value's day is ahead.
        over: Window of the maximum; none for one of grouped rows.
    """
    here = f"CASE WHEN {AHEAD.format(at=at)} THEN NULL ELSE {column} END"
    return f"coalesce(max({here}){over}, max({column}){over})"
