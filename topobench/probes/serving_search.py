"""
The largest load that keeps a limit: which load to try next, and when that is enough. Pure.

A load is tried in one window. Doubling finds one that is too large (two doublings at once while
the P99 is below a quarter of the limit). The first try inside the bracket is the load that the
saturated server's own rate allows; steps outward from it, each twice the one before, and halving
where those run into the other end, narrow the bracket to the tolerance. The winner must then
hold in several fresh windows in a row, at one load held throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BRACKET, CONFIRM = "bracket", "confirm"
MOST_WINDOWS = 40
"""A search that needs more has no answer: the server is not the same from window to window."""
MOST_REPEATS = 2
"""Tries more of a load whose window could not be judged."""
_FAR = 0.25
"""Share of the limit below which the next try is four times the load."""
_LEAST_SHARE = 1 / 1024


@dataclass(frozen=True, slots=True)
class Seen:
    """
    What a window said.

    Args:
        meets: It kept the limit; None where that could not be told.
        p99: Of the latency that is bounded, seconds.
        e2e: Mean time of a request, seconds.
        rate: Requests answered a second.
    """

    meets: bool | None
    p99: float | None
    e2e: float
    rate: float


@dataclass(frozen=True, slots=True)
class Step:
    """A load to try in so many windows."""

    load: float
    purpose: str
    windows: int


class Search:
    """
    A search in progress: :meth:`next`, then :meth:`tell`, until there is no next.

    Args:
        start: First load.
        most: Largest load that is tried.
        tolerance: Distance of the bracket's ends, as a share of the lower.
        in_a_row: Windows that the winner must hold.
        limit: Seconds.
        whole: Loads are whole numbers (concurrency); else any (rate).
    """

    def __init__(
        self,
        *,
        start: float,
        most: float,
        tolerance: float,
        in_a_row: int,
        limit: float,
        whole: bool,
    ) -> None:
        self._most = most
        self._tolerance = tolerance
        self.in_a_row = in_a_row
        self._limit = limit
        self._whole = whole
        self._least = 1.0 if whole else start * _LEAST_SHARE
        self._load = self._rounded(start)
        self._passed: dict[float, Seen] = {}
        self._over: dict[float, Seen] = {}
        self._guessed = False
        self._stride = 1
        self._last: bool | None = None
        self._repeats = 0
        self.windows = 0
        self.best: float | None = None
        self.ended: str | None = None

    @property
    def highest_passed(self) -> float | None:
        """The largest load below every one that was over which kept the limit in its window."""
        below = [x for x in self._passed if x < min(self._over, default=math.inf)]
        return max(below, default=None)

    @property
    def first_over(self) -> float | None:
        """The smallest load that broke the limit; None if none did."""
        return min(self._over, default=None)

    def next(self) -> Step | None:
        """What to try now; None when the search is over (see :attr:`ended`)."""
        if self.ended is not None:
            return None
        low, high = self.highest_passed, self.first_over
        if low is not None and (low >= self._most or (high is not None and self._near(low, high))):
            return Step(low, CONFIRM, self.in_a_row)
        return Step(self._load, BRACKET, 1)

    def tell(self, step: Step, seen: Sequence[Seen]) -> None:
        """Take what the windows of a step said."""
        self.windows += len(seen)
        if any(s.meets is None for s in seen) and not any(s.meets is False for s in seen):
            self._repeat()
            return
        self._repeats = 0
        failed = [s for s in seen if s.meets is False]
        passed = not failed and len(seen) == step.windows
        if step.purpose == CONFIRM and passed:
            self.best, self.ended = step.load, "found"
            return
        if passed:
            self._passed[step.load] = seen[-1]
        else:
            self._passed.pop(step.load, None)
            self._over[step.load] = failed[0] if failed else seen[-1]
        self._move(passed, step)

    def _repeat(self) -> None:
        self._repeats += 1
        if self._repeats > MOST_REPEATS:
            self.ended = "not judged"
        elif self.windows >= MOST_WINDOWS:
            self.ended = "not settled"

    def _move(self, passed: bool, step: Step) -> None:
        """Set the next load to try."""
        if self.windows >= MOST_WINDOWS:
            self.ended = "not settled"
            return
        low, high = self.highest_passed, self.first_over
        self._stride = 2 * self._stride if passed is self._last else 1
        self._last = passed
        if high is None:
            assert low is not None
            self._load = min(self._most, self._rounded(low * self._growth(low)))
        elif low is None:
            if high <= self._least:
                self.ended = "none"
                return
            shrink = 1 + self._tolerance if step.purpose == CONFIRM else 2.0
            self._load = max(self._least, self._rounded(high / shrink, down=True))
        elif not self._near(low, high):
            self._load = self._inside(low, high)

    def _growth(self, load: float) -> float:
        p99 = self._passed[load].p99
        return 4.0 if p99 is not None and p99 < _FAR * self._limit else 2.0

    def _inside(self, low: float, high: float) -> float:
        """A load between the two: a guess first, then steps away from it, then halving."""
        middle = math.sqrt(low * high)
        if not self._guessed:
            self._guessed = True
            wanted = self._guess(low, high)
        else:
            factor = (1 + 0.9 * self._tolerance) ** self._stride
            wanted = min(middle, low * factor) if self._last else max(middle, high / factor)
        found = self._rounded(wanted)
        if not self._whole:
            edge = 1 + self._tolerance / 2
            return min(max(found, low * edge), high / edge)
        return min(max(found, low + 1), high - 1)

    def _guess(self, low: float, high: float) -> float:
        """
        The load that the saturated server would just serve in time.

        In flight are rate x time (Little): of the rate above capacity, and the time below it with
        the slack that the limit leaves. Of rates, the saturated one. A little less, so that the
        next step upwards is over.
        """
        below, above = self._passed[low], self._over[high]
        if self._whole:
            slack = max(0.0, self._limit - below.p99) if below.p99 is not None else 0.0
            wanted = above.rate * (below.e2e + slack)
        else:
            wanted = above.rate
        wanted *= 1 - self._tolerance / 2
        inside = low < wanted < high
        return wanted if inside else math.sqrt(low * high)

    def _near(self, low: float, high: float) -> bool:
        near = high <= low * (1 + self._tolerance) * (1 + 1e-9)
        return near or (self._whole and high - low <= 1)

    def _rounded(self, load: float, *, down: bool = False) -> float:
        if not self._whole:
            return load
        return max(1.0, math.floor(load) if down else float(round(load)))


def upper_share(over: int, n: int) -> float:
    """
    Upper bound at 95 % of the share of requests that are over a limit, of ``over`` seen in ``n``.

    Exact (Clopper and Pearson), by bisection of the binomial distribution.
    """
    if over >= n:
        return 1.0
    low, high = over / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(over, n, middle) > 0.05:
            low = middle
        else:
            high = middle
    return high


def _at_most(k: int, n: int, p: float) -> float:
    """Probability of at most k of n."""
    if p <= 0:
        return 1.0
    if p >= 1:
        return 0.0
    logs = (
        math.lgamma(n + 1)
        - math.lgamma(i + 1)
        - math.lgamma(n - i + 1)
        + i * math.log(p)
        + (n - i) * math.log1p(-p)
        for i in range(k + 1)
    )
    return math.fsum(map(math.exp, logs))
