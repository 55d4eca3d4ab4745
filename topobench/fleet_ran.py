"""One sweep of a schedule with its check, and the exit code of several."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from topobench import fleet_news, judging
from topobench.errors import RefusedError, SchemaTooNew, TopobenchError, UsageError
from topobench.fleet import Schedule

FAULT = 70
FAILED = {1: "some cells failed", 3: "nothing was measured"}
"""What an exit code says of a sweep that was made."""
SIGNAL = 128
"""Codes above it name a signal."""


@dataclass(frozen=True, slots=True)
class Ran:
    """
    One schedule's sweep and its check.

    Args:
        due_at: The time it served; None: asked for by hand.
        exit_code: As ``probe`` gives it.
        sweep: UUID; None: none was begun.
        message: What went wrong.
        verdict: Exit code of the check; None: not checked.
        level: The gravest level of the check.
        is_away: The store could not be opened.
        spooled: What it measured is in the spool and not in the store.
        is_late: It ran before, and came in from the spool now.
        is_news: Whether anything differs from the last try.
    """

    schedule: Schedule
    due_at: datetime.datetime | None = None
    exit_code: int = 0
    sweep: str | None = None
    message: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    verdict: int | None = None
    level: str | None = None
    is_away: bool = False
    spooled: bool = False
    new: Mapping[str, str] = field(default_factory=dict)
    cleared: Sequence[str] = ()
    is_late: bool = False
    is_news: bool = False

    def told(self) -> dict[str, Any]:
        """As the JSON document has it."""
        return {
            "cluster": self.schedule.cluster,
            "schedule": self.schedule.name,
            "due_at": None if self.due_at is None else time_told(self.due_at),
            "exit_code": self.exit_code,
            "sweep": self.sweep,
            "message": self.message,
            "counts": dict(self.counts),
            "verdict": self.verdict,
            "level": self.level,
            "new": dict(self.new),
            "cleared": list(self.cleared),
            "is_news": self.is_news,
        }


def failed(ran: Ran, error: TopobenchError, *, check: bool) -> Ran:
    """The sweep could not be made."""
    code = 3
    if isinstance(error, RefusedError | SchemaTooNew | UsageError):
        code = error.exit_code
    return replace(ran, exit_code=code, message=str(error), verdict=3 if check else None)


def checked(ran: Ran, before: Mapping[str, str]) -> tuple[Ran, dict[str, str]]:
    """
    With the verdict on its sweep, and what counts as found from now on.

    Raises:
        TopobenchError: It could not be judged.
    """
    if ran.sweep is None or ran.spooled or ran.exit_code > SIGNAL:
        return replace(ran, verdict=3), dict(before)
    outcome = judging.check(ran.schedule.config.store, ran.sweep, policy=ran.schedule.policy)
    found = fleet_news.changes(before, fleet_news.judged(outcome.data))
    judged = replace(
        ran,
        verdict=outcome.exit_code,
        level=outcome.status,
        new=found.new,
        cleared=found.cleared,
    )
    return judged, dict(found.findings)


def exit_code(ran: Sequence[Ran], *, check: bool, wrong: bool = False) -> int:
    """
    Of several sweeps: a signal's first, then the gravest.

    Checked: fail, degraded, not judged, ok. Not checked: a fault of ours, a wrong setting,
    nothing measured, refused, cells failed. That a signal ended one that came late is no signal
    now: its cells failed.

    Args:
        wrong: A cluster has mistakes and could not be swept.
    """
    codes = {1 if r.is_late and r.exit_code > SIGNAL else r.exit_code for r in ran}
    signals = [code for code in codes if code > SIGNAL]
    if signals:
        return max(signals)
    order = (2, 1, 3) if check else (FAULT, 2, 3, 4, 1)
    given = {r.verdict for r in ran} if check else codes
    if wrong:
        given = {*given, 3 if check else UsageError.exit_code}
    return next((code for code in order if code in given), 0)


def time_told(time: datetime.datetime) -> str:
    """A time as documents have it."""
    return time.astimezone(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
