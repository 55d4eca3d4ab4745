"""
When sweeps are due: cron expressions in zones, jitter, quiet hours; pure.

An expression is read as Debian's cron reads it. A time that the clocks skip in spring is met
right after the gap; one that they double in autumn is met the first time only; expressions
whose hour begins with a star go by real time and are never moved.
"""

from __future__ import annotations

import datetime
import difflib
import hashlib
import itertools
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass

from cronsim import CronSim, CronSimError

UTC = datetime.UTC
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_EVERY_DAY = frozenset(range(7))
_DAY_MINUTES = 24 * 60
_MOST_QUIET_MINUTES = 8 * _DAY_MINUTES
_QUIET = re.compile(
    r"(?:(?P<days>[A-Za-z,-]+)\s+)?(?P<first>\d{1,2}:\d{2})\s*-\s*(?P<last>\d{1,2}:\d{2})"
)


@dataclass(frozen=True, slots=True)
class Quiet:
    """
    Hours of a zone's day in which no sweep is begun.

    Args:
        days: On which they begin, Monday is 0.
        first: Minute of the day they begin.
        last: Minute of the day they end, not in them; no later than ``first`` is the next day.
    """

    days: frozenset[int]
    first: int
    last: int

    def holds(self, local: datetime.datetime) -> bool:
        """Whether a local time lies in them."""
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if self.first < self.last:
            return day in self.days and self.first <= minute < self.last
        evening = day in self.days and minute >= self.first
        return evening or ((day - 1) % 7 in self.days and minute < self.last)


@dataclass(frozen=True, slots=True)
class Times:
    """
    When one schedule is due.

    Args:
        cron: Five fields: minute, hour, day, month, weekday.
        zone: IANA name.
        shift_seconds: Added to each time of ``cron``; see :func:`jitter`.
        late_seconds: How long after its time a sweep is still begun.
        quiet: When none is begun, by the zone's clocks.
    """

    cron: str
    zone: str = "UTC"
    shift_seconds: int = 0
    late_seconds: float = 6 * 3600.0
    quiet: tuple[Quiet, ...] = ()

    def due(self, now: datetime.datetime) -> datetime.datetime | None:
        """
        The newest time of the expression whose sweep may begin now, in UTC.

        None in quiet hours, and where the newest time is too long ago.
        """
        if self.is_quiet(now):
            return None
        until = now - self._shift
        since = until - datetime.timedelta(seconds=self.late_seconds)
        times = itertools.takewhile(lambda t: t <= until, self._after(since))
        return max(times, default=None)

    def wakes(self, now: datetime.datetime) -> datetime.datetime | None:
        """
        The next moment after now at which to look whether a sweep is due, in UTC.

        Also the end of quiet hours; None where they never end.
        """
        following = next(self._after(now - self._shift), None)
        begin = now if following is None or self.is_quiet(now) else following + self._shift
        for _ in range(_MOST_QUIET_MINUTES):
            if begin > now and not self.is_quiet(begin):
                return begin
            begin = _next_minute(begin)
        return None

    def missed(
        self, since: datetime.datetime, now: datetime.datetime
    ) -> Iterator[datetime.datetime]:
        """
        Times of the expression after ``since`` whose sweep can no longer begin, in UTC.

        Those that lay in quiet hours until then were not meant to be served, and are left out.
        """
        late = datetime.timedelta(seconds=self.late_seconds)
        for time, following in itertools.pairwise(self._after(since)):
            end = min(time + late, following) + self._shift
            if end > now:
                return
            if self._could_begin(time + self._shift, end):
                yield time

    @property
    def text(self) -> str:
        """The expression and its zone."""
        return f"{self.cron} {self.zone}"

    def is_quiet(self, now: datetime.datetime) -> bool:
        """Whether no sweep may begin."""
        local = now.astimezone(zoneinfo.ZoneInfo(self.zone))
        return any(quiet.holds(local) for quiet in self.quiet)

    def _could_begin(self, begin: datetime.datetime, end: datetime.datetime) -> bool:
        """Whether a moment between is not quiet."""
        while begin < end:
            if not self.is_quiet(begin):
                return True
            begin = _next_minute(begin)
        return False

    @property
    def _shift(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.shift_seconds)

    def _after(self, since: datetime.datetime) -> Iterator[datetime.datetime]:
        """Times of the expression after a moment, in UTC."""
        start = since.astimezone(zoneinfo.ZoneInfo(self.zone))
        times = (time.astimezone(UTC) for time in CronSim(self.cron, start))
        # By wall clock it may begin before a doubled hour ends.
        return itertools.dropwhile(lambda time: time <= since, times)


def jitter(fleet: str, cluster: str, most_seconds: float) -> int:
    """
    Whole seconds from 0 to ``most_seconds``, always the same for a cluster of a fleet.

    Nights stay comparable, and the clusters of a fleet do not begin at once.
    """
    digest = hashlib.blake2b(f"{fleet}\0{cluster}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (int(most_seconds) + 1)


def parse_cron(text: str) -> str:
    """
    A cron expression that has a time.

    Raises:
        ValueError: It is none.
    """
    wanted = "expected minute hour day month weekday, such as 0 2 * * * for 02:00 each night"
    if len(text.split()) != 5:
        raise ValueError(f"{text!r} is no cron expression; {wanted}")
    try:
        first = next(CronSim(text, datetime.datetime(2024, 1, 1, tzinfo=UTC)), None)
    except CronSimError as error:
        raise ValueError(f"{text!r} is no cron expression ({error}); {wanted}") from error
    if first is None:
        raise ValueError(f"{text!r} never comes; {wanted}")
    return " ".join(text.split())


def parse_zone(text: str) -> str:
    """
    The IANA name of a zone.

    Raises:
        ValueError: There is no such zone.
    """
    known = zoneinfo.available_timezones()
    if text in known:
        return text
    close = difflib.get_close_matches(text, sorted(known), n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise ValueError(f"{text!r} is no time zone; expected one such as Europe/Berlin or UTC{hint}")


def parse_quiet(text: str) -> Quiet:
    """
    Quiet hours: ``08:00-18:00``, ``Mon-Fri 08:00-18:00``, ``Sat,Sun 00:00-24:00``.

    Raises:
        ValueError: They are none.
    """
    found = _QUIET.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r}: expected hours such as 08:00-18:00 or Mon-Fri 08:00-18:00")
    first, last = _minute(found["first"], text), _minute(found["last"], text)
    if first in (last, _DAY_MINUTES):
        raise ValueError(f"{text!r} holds no time; a whole day is 00:00-24:00")
    return Quiet(_days(found["days"], text), first, last)


def _minute(text: str, whole: str) -> int:
    hour, minute = (int(part) for part in text.split(":"))
    if minute > 59 or hour * 60 + minute > _DAY_MINUTES:
        raise ValueError(f"{whole!r}: {text} is no time of a day")
    return hour * 60 + minute


def _days(text: str | None, whole: str) -> frozenset[int]:
    if text is None:
        return _EVERY_DAY
    found: set[int] = set()
    for part in text.split(","):
        names = [name.capitalize() for name in part.split("-")]
        if len(names) > 2 or not set(names) <= set(DAYS):
            raise ValueError(f"{whole!r}: {part!r} is no day; accepted are {', '.join(DAYS)}")
        first, last = DAYS.index(names[0]), DAYS.index(names[-1])
        found |= {day % 7 for day in range(first, last + 1 + (7 if last < first else 0))}
    return frozenset(found)


def _next_minute(time: datetime.datetime) -> datetime.datetime:
    return time.replace(second=0, microsecond=0) + datetime.timedelta(minutes=1)
