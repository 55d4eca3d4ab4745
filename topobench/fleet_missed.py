"""Which times of a schedule went by without a sweep: no look was made, or none could measure."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topobench.errors import StoreError
from topobench.fleet import Schedule
from topobench.fleet_ran import time_told
from topobench.host import CLOCKS_APART_SECONDS

if TYPE_CHECKING:
    from topobench.db.schedules import State

CLOCKS_APART = datetime.timedelta(seconds=CLOCKS_APART_SECONDS)
_LONGEST_SWEEP = datetime.timedelta(days=1)
MOST = 1000
"""Times that are counted."""


@dataclass(frozen=True, slots=True)
class Missed:
    """
    Times that went by without a sweep.

    Args:
        since: The time that the last sweep served.
    """

    schedule: Schedule
    since: datetime.datetime
    first: datetime.datetime
    last: datetime.datetime
    count: int

    def told(self) -> dict[str, Any]:
        """As the JSON document has it."""
        return {
            "cluster": self.schedule.cluster,
            "schedule": self.schedule.name,
            "since": time_told(self.since),
            "first": time_told(self.first),
            "last": time_told(self.last),
            "count": self.count,
            "more": self.count == MOST,
        }


def look_back(schedules: Sequence[Schedule], now: datetime.datetime) -> list[Missed]:
    """
    What each schedule missed since its last sweep, if that was not told yet; it is from now on.

    Of a store that is away nothing is said: a sweep that is due says that it is.
    """
    urls = dict.fromkeys(s.config.store for s in schedules)
    found = []
    for url in urls:
        try:
            found += _of_store(url, [s for s in schedules if s.config.store == url], now)
        except StoreError:
            continue
    return found


def _of_store(url: str, wanted: Sequence[Schedule], now: datetime.datetime) -> list[Missed]:
    from topobench.db import schedules
    from topobench.db.store import Store

    with Store.open(url, create=False, read_only=True) as store:
        states = {(s.cluster, s.schedule): s for s in schedules.every(store)}
    known = ((s, states.get((s.cluster, s.name))) for s in wanted)
    found = [m for s, state in known if state is not None and (m := missed(s, state, now))]
    if found:
        with Store.open(url, create=False) as store:
            for one in found:
                schedules.put_missed(
                    *(store, one.schedule.cluster, one.schedule.name),
                    missed=one.count,
                    until=one.last,
                )
    return found


def missed(schedule: Schedule, state: State, now: datetime.datetime) -> Missed | None:
    """
    What a schedule missed since its last sweep; None: nothing, or nothing since that was told.

    Nothing is known where there was no sweep yet, where its times were others then, and after a
    clock that was ahead.
    """
    since, ahead = state.served_at, now + CLOCKS_APART
    if since is None or since > ahead or state.times != schedule.times.text:
        return None
    under_way = state.due_at if _may_run(state, now) else None
    found = (t for t in schedule.times.missed(since, now) if t != under_way)
    times = list(itertools.islice(found, MOST))
    if not times:
        return None
    before = state.missed_until
    if before is not None and times[-1] <= before <= ahead:
        return None
    return Missed(schedule, since, times[0], times[-1], len(times))


def _may_run(state: State, now: datetime.datetime) -> bool:
    """Whether the last try may still be under way, by another host."""
    return state.exit_code is None and now - state.tried_at < _LONGEST_SWEEP
