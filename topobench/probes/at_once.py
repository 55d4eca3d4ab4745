"""
All GPUs of a host at once: what each gets while all the others are busy too.

Every rank drives its own GPU. A *lap* is a row of equal segments of work that begins on all
ranks at one moment of the host's clock, which all processes of a host share. Only segments
within the time in which every rank was busy count: a GPU that is done early leaves the rest
more room, and that would be no figure of all at once.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from topobench.errors import ProbeError, ResultInvalid
from topobench.probes.timing import (
    RETRIES,
    SPIN_MAX_SECONDS,
    SPIN_MIN_SECONDS,
    Enqueue,
    Queue,
    Sampler,
    Timed,
)
from topobench.reading import ReasonCode

MESSAGE_SECONDS = 2e-3
"""A start is announced so much ahead that every rank hears of it in time."""
SEGMENT_SECONDS = 2e-3
"""Segments timed by the host's clock last at least this: ranks start some 10 us apart."""
NEARLY_WHOLE = 0.1
"""Share of a segment that may last beyond the others' end before that is worth a warning."""

Lap = Callable[[float], list[float]]
"""Runs from a moment of the monotonic clock on; when each segment began and the last ended,
on that clock, or NaN throughout if the lap means nothing."""


class Group(Protocol):
    """The ranks that run together (``collective.Group``)."""

    @property
    def rank(self) -> int:
        """This rank's number."""
        ...

    def agree(self, values: Sequence[int]) -> list[int]:
        """The values of rank 0, on every rank."""
        ...

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of every rank, by rank, on every rank."""
        ...


@dataclass(frozen=True, slots=True)
class Race:
    """
    What laps gave, in seconds an operation; samples have as many as a lap.

    Args:
        total: An operation of any rank: its inverse is the sum of the ranks' rates.
        discarded: Laps that meant nothing.
        uneven: Ranks that in some lap ended no segment while all were busy.
    """

    total: Timed
    by_rank: tuple[Timed, ...]
    discarded: int
    uneven: tuple[int, ...] = ()

    def warning(self) -> str | None:
        """What must be said of a race that was not run side by side throughout."""
        if not self.uneven:
            return None
        ranks = ", ".join(map(str, self.uneven))
        return (
            f"uneven: rank {ranks} ended nothing in some lap while all were at it; such a lap's "
            "figure of that rank is partly of a time when the others were done"
        )


def race(
    group: Group,
    lap: Lap,
    sampler: Sampler,
    *,
    operations: int = 1,
    lead_seconds: float = 0.0,
) -> Race | None:
    """
    Run laps on all ranks until rank 0's sampler is content; None, on all, if none is good.

    Args:
        operations: In a segment.
        lead_seconds: What a rank needs between hearing of a lap and its start; grows where
            laps come back without a meaning.
    """
    lead = max(row[0] for row in group.gather([max(SPIN_MIN_SECONDS, lead_seconds)]))
    rates: list[list[float]] = []
    uneven: set[int] = set()
    discarded = fruitless = parts = 0
    while fruitless <= RETRIES:
        start = time.monotonic_ns() + int((MESSAGE_SECONDS + lead) * 1e9)
        (start,) = group.agree([0 if sampler.done() else start])
        if start == 0:
            break
        rows = group.gather(lap(start * 1e-9))
        found = common_rates(rows)
        if found is None:
            discarded, fruitless = discarded + 1, fruitless + 1
            lead = min(2 * lead, SPIN_MAX_SECONDS)
            continue
        fruitless, parts = 0, len(rows[0]) - 1
        segments, behind = found
        lap_rates = [rate * operations for rate in segments]
        rates.append(lap_rates)
        uneven |= behind
        sampler.add(1 / sum(lap_rates), slowest=1 / min(lap_rates))
    if fruitless > RETRIES:
        return None
    total = sampler.timed(operations * parts)
    by_rank = (
        replace(total, samples=sampler.arranged([1 / r for r in column]))
        for column in zip(*rates, strict=True)
    )
    return Race(total, tuple(by_rank), discarded, tuple(sorted(uneven)))


def common_rates(rows: Sequence[Sequence[float]]) -> tuple[list[float], set[int]] | None:
    """
    Segments a second of each rank while all were busy; None if a lap meant nothing.

    A rank so slow that none of its segments ends in that time counts with those that began
    in it: its own limit, not the others, is what it shows. The second value names such ranks, but
    not where nearly a whole segment lies in that time: of two, a rank has a whole one only if it
    begins last or ends first.

    Args:
        rows: By rank, what a :data:`Lap` gave.
    """
    if any(math.isnan(moment) for row in rows for moment in row):
        return None
    begin, end = max(row[0] for row in rows), min(row[-1] for row in rows)
    rates, uneven = [], set()
    for rank, row in enumerate(rows):
        begun = [s for s in itertools.pairwise(row) if begin <= s[0] < end]
        if not begun:
            return None
        whole = [s for s in begun if s[1] <= end]
        counted = whole or begun
        began, ended = counted[-1]
        if ended - end > NEARLY_WHOLE * (ended - began):
            uneven.add(rank)
        rates.append(len(counted) / (ended - counted[0][0]))
    return rates, uneven


def queued_lap(queue: Queue, enqueue: Enqueue, count: int, segments: int) -> Lap:
    """
    Laps of work enqueued behind a spin that ends at the start, by the device's clock.

    Args:
        count: Operations in a segment.
    """

    def lap(start: float) -> list[float]:
        queue.wait()
        reference = queue.mark()
        queue.wait()
        now = time.monotonic()  # when the device passed the reference, within some 10 us
        queue.spin(max(0.0, start - now))
        held = queue.mark()
        marks = [queue.mark()]
        for _ in range(segments):
            enqueue(count)
            marks.append(queue.mark())
        outlasted = not queue.passed(held)
        queue.wait()
        if not outlasted:
            return [math.nan] * len(marks)
        return [now + queue.between(reference, mark) for mark in marks]

    return lap


def enqueueing_seconds(queue: Queue, enqueue: Enqueue, count: int) -> float:
    """How long the host needs to enqueue so many operations; everything runs once before."""
    enqueue(1)  # a kernel's first use waits for the queue to be empty
    queue.wait()
    started = time.perf_counter()
    enqueue(count)
    took = time.perf_counter() - started
    queue.wait()
    return took


def queued_race(
    group: Group,
    queue: Queue,
    enqueue: Enqueue,
    sampler: Sampler,
    *,
    count: int,
    segments: int,
    least_segments: int,
) -> Race | None:
    """
    Race in laps behind spins, as long as the queue of launches lets them be.

    Once that queue is full, enqueueing is as slow as the work, and no spin outlasts it. So where
    not one lap means anything, the next have half as many operations.

    Args:
        count: Operations in a lap, about.

    Returns:
        None, on all ranks, if no spin outlasts the fewest.
    """
    each = max(1, count // segments)
    while True:
        lead = 3 * enqueueing_seconds(queue, enqueue, each * segments)
        lap = queued_lap(queue, enqueue, each, segments)
        found = race(group, lap, sampler, operations=each, lead_seconds=lead)
        fewest = each == 1 and segments <= least_segments
        if found is not None or sampler.ends or fewest:
            return found
        if each > 1:
            each //= 2
        else:
            segments = max(least_segments, segments // 2)


def call_lap(call: Callable[[], Any], count: int, segments: int) -> Lap:
    """
    Laps of calls that each wait for their end, by the host's clock.

    Args:
        count: Calls in a segment.
    """

    def lap(start: float) -> list[float]:
        while time.monotonic() < start:
            pass  # a sleep would end some 50 us late
        moments = [time.monotonic()]
        for _ in range(segments):
            for _ in range(count):
                call()
            moments.append(time.monotonic())
        return moments

    return lap


def on_all(group: Group | None, check: Callable[[], None]) -> None:
    """
    Check the data of every rank; if one rank's is wrong, every rank says so.

    Args:
        group: None for a worker of its own.

    Raises:
        ResultInvalid: ``wrong_data``.
    """
    if group is None:
        check()
        return
    failure: ProbeError | None = None
    try:
        check()
    except ResultInvalid as error:
        failure = error
    wrong = [r for r, row in enumerate(group.gather([float(failure is not None)])) if row[0]]
    if failure:
        raise failure
    if wrong:
        ranks = ", ".join(map(str, wrong))
        raise ResultInvalid(ReasonCode.WRONG_DATA, f"rank {ranks} of this gang got wrong bytes")
