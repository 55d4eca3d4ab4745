"""
Samples of a GPU without rest between them: each is enqueued while the one before it runs.

A GPU at its power limit is the faster the more it rests, and a spin is rest, too. What takes
longer to launch needs longer spins: eager passes of a model of 8 billion weights, each behind
its own, came out 5.5 % faster than replays of the same kernels, and no faster without rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from topobench.probes.timing import BURST_SECONDS, Bursts, Enqueue, Queue, QueueTimer

LATE_MOST = 3
"""Samples in a row enqueued too late, after which each gets a spin of its own."""

Ends = tuple[Any, Any]
"""The marks between which a sample runs."""


@dataclass
class Chain(QueueTimer):
    """
    Times operations one sample right behind the other, as far as bursts of load go.

    The first sample of a burst is held back by a spin, every other one by the sample before it.
    A sample that was not enqueued before that ended is thrown away, as behind a spin: the device
    may have waited for the host. The burst then ends, so that the rest is followed by settling.

    Args:
        hidden: Whether a sample is enqueued while the one before it runs; else each has a spin.
    """

    hidden: bool = False
    _late: int = field(default=0, init=False)
    _ahead: Ends | None = field(default=None, init=False)
    _last: Any = field(default=None, init=False)
    _seconds: float = field(default=0.0, init=False)
    _rest: float = field(default=0.0, init=False)
    _load: float = field(default=0.0, init=False)

    @classmethod
    def fit(cls, queue: Queue, enqueue: Enqueue, count: int) -> Self | None:
        """
        As of any timer; and whether one sample can be enqueued while another runs.

        One that fills the queue of launches leaves no room for the next until it is over; two
        of half its length fit.
        """
        chain = super().fit(queue, enqueue, count)
        if chain is None or 2 * chain._seconds > BURST_SECONDS:
            return chain
        longest = chain.count
        for chain.count in (longest, max(1, longest // 2)):
            if chain._hides():
                chain.hidden = True
                return chain
        chain.count = longest
        return chain

    def begin(self) -> None:
        """What was sampled counts no more."""
        self._rest = self._load = 0.0

    @property
    def rest_share(self) -> float | None:
        """
        Of the time from the first sample of a burst to its last, what the device rested.

        None if every burst was a single sample.
        """
        return self._rest / (self._rest + self._load) if self._load else None

    def attempt(self) -> float | None:
        """One sample behind a spin of its own."""
        found = super().attempt()
        if found is not None:
            self._seconds = found * self.count
        return found

    def follow(self, sampler: Bursts) -> float:
        """
        The next sample in seconds per operation; the sampler takes it before another is asked for.

        Raises:
            ProbeError: ``untimeable``: no spin outlasted the enqueueing any more.
        """
        alone = sampler.rested
        start, end = self._ahead or self._first(sampler)
        self._ahead = None
        if self.hidden and sampler.follows(self._seconds):
            self._ahead = self._behind(end)
            if self._ahead is None:
                self._miss(sampler)
            else:
                self._late = 0
        self.queue.reach(end)
        self._seconds = self.queue.between(start, end)
        if not alone:
            self._rest += self.queue.between(self._last, start)
            self._load += self._seconds
        self._last = end
        return self._seconds / self.count

    def _first(self, sampler: Bursts) -> Ends:
        """A sample behind a spin, which is rest like a pause before it."""
        start, end = self._retried(self._held_back)
        self.queue.reach(start)
        sampler.load()
        return start, end

    def _held_back(self) -> Ends | None:
        """Enqueue a sample behind a spin; None if that ended early."""
        self.queue.wait()
        self.queue.spin(self.spin_seconds)
        return self._behind(self.queue.mark())

    def _behind(self, held: Any) -> Ends | None:
        """Enqueue a sample behind a mark; None if that was passed before all was enqueued."""
        self.enqueue(self.count)
        end = self.queue.mark()
        return None if self.queue.passed(held) else (held, end)

    def _hides(self) -> bool:
        """Whether a sample can be enqueued from the beginning of the one before to its end."""
        start, end = self._retried(self._held_back)
        self.queue.reach(start)
        in_time = self._behind(end) is not None
        self.queue.wait()
        return in_time

    def _miss(self, sampler: Bursts) -> None:
        self.queue.wait()  # what was thrown away runs all the same, and a pause is rest
        self.discarded += 1
        self._late += 1
        self.hidden = self._late < LATE_MOST
        sampler.interrupt()
