"""
How probes time: samples until steady and narrow, batches, and queues behind a spin.

Host work is timed by the monotonic performance counter. Device work is timed by marks
on the device's own queue, while a spin holds the queue back until everything is
enqueued: otherwise small operations measure the host's enqueueing (3 to 6 times too
slow at 64 KiB copies). Nothing here imports torch; the queue of a GPU is in
``probes.cuda``.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from topobench import stats
from topobench.errors import ProbeError
from topobench.probes import so_far
from topobench.reading import Reading, ReasonCode, Scalar

if TYPE_CHECKING:
    from topobench.probes.protocol import WorkerContext

SAMPLE_SECONDS = 200e-6
"""A sample's timed part lasts at least this; shorter operations are batched."""
BATCH_MAX = 1 << 16
QUEUE_MAX = 256
"""Operations queued behind one spin; a longer queue may block the host."""
WARMUP_SHARE = 0.25
"""Largest share of the budget that warm-up may take."""
N_FLOOR = 10
"""Samples taken even past the budget, up to :data:`OVERRUN` times that budget."""
OVERRUN = 4
N_MAX = 1000
SETTLING_SECONDS = 0.15
"""Of load, in which a GPU's clock comes down to what it keeps until its power limit acts."""
BURST_SECONDS, PAUSE_SECONDS = 0.75, 0.35
"""
Of load, and of idleness before each burst of it. Together they are longer than the second over
which a GPU averages its power, so that the average stays below its limit.
"""
SPIN_MIN_SECONDS = 1e-3
SPIN_MAX_SECONDS = 60e-3
RETRIES = 8


@dataclass(frozen=True, slots=True)
class Timed:
    """
    What timing one operation gave.

    Args:
        samples: Seconds per operation, in measured order, the warm-ups first.
        operations: Operations in each sample.
        stop_reason: As in ``reading.Summary``.
        ends: When each sample was complete, by the monotonic clock; empty if not known.
    """

    samples: tuple[float, ...]
    warmups: int
    stop_reason: str
    operations: int = 1
    ends: tuple[float, ...] = field(default=(), compare=False)

    def durations(self, metric: str, *, point: Mapping[str, Scalar] | None = None) -> Reading:
        """A reading in seconds per operation."""
        return self._reading(metric, self.samples, point)

    def rates(
        self, metric: str, amount: float, *, point: Mapping[str, Scalar] | None = None
    ) -> Reading:
        """A reading of ``amount`` (bytes, tokens ...) per second, per operation."""
        return self._reading(metric, tuple(amount / s for s in self.samples), point)

    def _reading(
        self, metric: str, samples: tuple[float, ...], point: Mapping[str, Scalar] | None
    ) -> Reading:
        summary = stats.summarise(samples, warmups=self.warmups, stop_reason=self.stop_reason)
        return Reading(metric, summary, samples, dict(point or {}), self.ends)


@dataclass
class Sampler:
    """
    The rule by which samples are taken: warm up until steady, stop when narrow.

    Feed it samples; it says when to stop. Pure but for ``clock``, and for telling the samples
    as they come where somebody listens (``probes.so_far``).

    Args:
        tolerance: Relative half-width at which sampling converged (``topobench.stats``).
        budget_seconds: Warm-up and samples together; :data:`N_FLOOR` samples may take
            up to :data:`OVERRUN` times that.
    """

    tolerance: float
    budget_seconds: float
    n_max: int = N_MAX
    clock: Callable[[], float] = time.monotonic
    warm: list[float] = field(default_factory=list)
    counted: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    stop_reason: str | None = None
    least: ClassVar[int] = N_FLOOR
    overrun: ClassVar[float] = OVERRUN
    _started: float = field(init=False)
    _warming: bool = field(default=True, init=False)
    _series: so_far.Series | None = field(init=False)

    def __post_init__(self) -> None:
        self._series = so_far.series()
        self._started = self.clock()

    def add(self, sample: float, *, slowest: float | None = None) -> None:
        """
        Take in the next sample, in seconds per operation, as soon as it is complete.

        Args:
            slowest: Of several GPUs at once, whose rates are added up, the slowest one's seconds.
        """
        if self.stop_reason is not None:
            return
        before = len(self.counted)
        self._take(sample)
        if self._series is not None:
            counted = len(self.counted) > before
            self._series.take(
                sample, slowest=slowest, counted=counted, stop_reason=self.stop_reason
            )

    def done(self) -> bool:
        """Whether no more samples are wanted."""
        return self.stop_reason is not None

    def timed(self, operations: int = 1) -> Timed:
        """
        What was sampled.

        Raises:
            ProbeError: ``untimeable``: no sample was taken after the warm-up.
        """
        if not self.counted:
            raise ProbeError(ReasonCode.UNTIMEABLE, "no sample was taken after the warm-up")
        reason = self.stop_reason or "aborted"
        samples = (*self.warm, *self.counted)
        return Timed(samples, len(self.warm), reason, operations, tuple(self.ends))

    def arranged(self, values: Sequence[float]) -> tuple[float, ...]:
        """One value of each sample, in measured order, as :meth:`timed` has them."""
        return tuple(values)

    def _take(self, sample: float) -> None:
        """Put a sample where it belongs; find out whether it is the last."""
        self.ends.append(self.clock())
        if self._warming:
            self.warm.append(sample)
            over = self._spent() >= WARMUP_SHARE * self.budget_seconds
            self._warming = not (over or stats.warmed_up(self.warm, self.tolerance))
        else:
            self.counted.append(sample)
            self.stop_reason = self._why_stop()

    def _why_stop(self) -> str | None:
        if stats.should_stop(self.counted, self.tolerance):
            return "converged"
        n, spent = len(self.counted), self._spent()
        if n >= self.n_max:
            return stats.end_reason(self.counted, self.tolerance, "n_max")
        floor_met = n >= self.least or spent >= self.overrun * self.budget_seconds
        if spent >= self.budget_seconds and floor_met:
            return stats.end_reason(self.counted, self.tolerance, "budget")
        return None

    def _spent(self) -> float:
        return self.clock() - self._started


@dataclass
class Bursts(Sampler):
    """
    Samples of a GPU between the settling of its clock and its power limit.

    Under full load the clock comes down within :data:`SETTLING_SECONDS` and then stays, until
    the power, averaged over about a second, reaches the limit and the clock begins to swing.
    So load comes in bursts that end before that, each after a pause, and only samples begun
    once the clock had settled count. Where no two samples fit into a burst, each burst is a
    single one, which counts. The first sample of all warms up. The fewest with an interval are
    taken however much of the load only settled the clock: each burst has one that counts.

    Args:
        sleep: Waits so many seconds; pauses are no part of the budget.
        rest_from: Samples shorter than that begin without a pause, where the load before them
            and a burst together stay below the power limit.
    """

    least: ClassVar[int] = 6
    overrun: ClassVar[float] = math.inf
    sleep: Callable[[float], None] = time.sleep
    rest_from: float = 0.0
    _counts: list[bool] = field(default_factory=list, init=False)
    _paused: float = field(default=0.0, init=False)
    _burst: float | None = field(default=None, init=False)
    _last: float = field(default=0.0, init=False)
    _single: bool = field(default=False, init=False)
    _promised: bool | None = field(default=None, init=False)
    _interrupted: bool = field(default=False, init=False)

    @property
    def rested(self) -> bool:
        """Whether nothing was sampled since the last pause."""
        return self._burst is None or self._last == self._burst

    def load(self) -> None:
        """The load of a burst begins now, if it has not yet: what held it back was rest."""
        if self._burst is not None and self.rested:
            now = self.clock()
            self._paused += now - self._burst
            self._burst = self._last = now

    def follows(self, seconds: float) -> bool:
        """
        Whether another sample comes behind the one under way without a pause; then it will.

        Args:
            seconds: About how long either takes.
        """
        if self._burst is None:
            return False
        self._promised = self._last - self._burst + 2 * seconds <= BURST_SECONDS
        return self._promised

    def interrupt(self) -> None:
        """A pause comes behind the sample under way, whatever was promised."""
        self._interrupted = True

    def _take(self, sample: float) -> None:
        """And pause after it where it is time."""
        now = self.clock()
        counts = ends = False
        if self._burst is None:
            ends = True
        else:
            took = now - self._last
            promised, self._promised = self._promised, None
            if self._last == self._burst:  # of each burst anew: samples near half of one vary
                self._single = 2 * took > BURST_SECONDS if promised is None else not promised
            counts = self._single or self._last - self._burst >= SETTLING_SECONDS
            over = now - self._burst + took > BURST_SECONDS if promised is None else not promised
            ends = self._single or over or self._interrupted
            self._interrupted = False
        self._counts.append(counts)
        self.ends.append(now)
        (self.counted if counts else self.warm).append(sample)
        if counts:
            self.stop_reason = self._why_stop()
        self._last = now
        if ends and self.stop_reason is None:
            self._pause(0.0 if self._burst is None and sample < self.rest_from else PAUSE_SECONDS)

    def timed(self, operations: int = 1) -> Timed:
        """
        What was sampled: the warm-ups of all bursts, then what counts of them.

        Raises:
            ProbeError: ``untimeable``: no sample counts.
        """
        return replace(super().timed(operations), ends=self.arranged(self.ends))

    def arranged(self, values: Sequence[float]) -> tuple[float, ...]:
        """One value of each sample, in measured order, as :meth:`timed` has them."""
        rows = list(zip(self._counts, values, strict=False))  # others may take more samples
        return tuple(v for wanted in (False, True) for counts, v in rows if counts is wanted)

    def _why_stop(self) -> str | None:
        """Few samples within a budget converged, too, if their interval is narrow at the end."""
        reason, n = super()._why_stop(), len(self.counted)
        if reason == "budget" and stats.should_stop(self.counted, self.tolerance, n_min=n):
            return "converged"
        return reason

    def _pause(self, seconds: float) -> None:
        before = self.clock()
        self.sleep(seconds)
        now = self.clock()
        if self._burst is None:
            self._started = now  # what came before is no part of the budget
        else:
            self._paused += now - before
        self._burst = self._last = now

    def _spent(self) -> float:
        return super()._spent() - self._paused


def bursts_seconds(sample: float, budget: float, rests: bool = True) -> float:
    """
    About how long :class:`Bursts` take, pauses included.

    Args:
        sample: Seconds of one.
        rests: Whether the first burst follows a pause, too.
    """
    settling, each = 0.0, 1
    if 2 * sample <= BURST_SECONDS:
        settling = math.ceil(SETTLING_SECONDS / sample) * sample
        each = max(1, int((BURST_SECONDS - settling) / sample))
    wanted = min(stats.N_MIN, int((budget - settling) / sample))
    count = max(Bursts.least, wanted)
    bursts = math.ceil(count / each)
    pauses = bursts - (not rests)
    return sample + pauses * PAUSE_SECONDS + bursts * settling + count * sample


def collect(
    sample: Callable[[], float],
    *,
    tolerance: float,
    budget_seconds: float,
    operations: int = 1,
    n_max: int = N_MAX,
) -> Timed:
    """
    Take samples by the rule of :class:`Sampler`.

    Args:
        sample: Times ``operations`` operations; returns seconds per operation.
    """
    sampler = Sampler(tolerance, budget_seconds, n_max)
    while not sampler.done():
        sampler.add(sample())
    return sampler.timed(operations)


def wall(operation: Callable[[], Any], count: int = 1) -> float:
    """Seconds the host needs for ``count`` operations in a row, all together."""
    started = time.perf_counter_ns()
    for _ in range(count):
        operation()
    return (time.perf_counter_ns() - started) * 1e-9


def batch_size(
    timed: Callable[[int], float], *, most: int = BATCH_MAX, seconds: float = SAMPLE_SECONDS
) -> int:
    """
    How many operations a sample needs to last so long.

    Args:
        timed: Seconds that a number of operations take, all together.
    """
    count = 1
    while count < most:
        took = min(timed(count) for _ in range(3))  # the least disturbed
        if took >= seconds:
            break
        wanted = count * seconds / took * 1.25 if took > 0 else 0
        count = min(most, max(2 * count, math.ceil(wanted)))
    return count


class Queue(Protocol):
    """An in-order device queue, as timing needs it: a CUDA stream."""

    def spin(self, seconds: float) -> None:
        """Enqueue idle work that lasts at least ``seconds``; returns at once."""
        ...

    def mark(self) -> Any:
        """Enqueue a mark that remembers when the device passed it."""
        ...

    def passed(self, mark: Any) -> bool:
        """Whether the device has passed a mark."""
        ...

    def between(self, start: Any, end: Any) -> float:
        """Seconds between two passed marks, by the device's clock."""
        ...

    def reach(self, mark: Any) -> None:
        """Block until the device has passed a mark."""
        ...

    def wait(self) -> None:
        """Block until the queue is empty."""
        ...


Enqueue = Callable[[int], None]
"""Enqueues a number of operations on a queue, without waiting for them."""

Tried = TypeVar("Tried")


def behind_spin(
    queue: Queue,
    enqueue: Enqueue,
    count: int,
    *,
    spin_seconds: float,
    lead: Callable[[], None] | None = None,
) -> float | None:
    """
    Device seconds of ``count`` operations enqueued behind a spin, all together.

    None if the spin ended before the last one was enqueued: then the device may have
    waited for the host, and the time means nothing.

    Args:
        lead: Enqueues untimed work between the spin and the start (it absorbs the skew
            between the ranks of a collective).
    """
    queue.wait()
    queue.spin(spin_seconds)
    held = queue.mark()
    if lead:
        lead()
    start = queue.mark()
    enqueue(count)
    end = queue.mark()
    outlasted = not queue.passed(held)
    queue.wait()
    return queue.between(start, end) if outlasted else None


def mark_overhead(queue: Queue) -> float | None:
    """Seconds that two marks with nothing between them read; None on a host too busy to tell."""
    took = [behind_spin(queue, _nothing, 0, spin_seconds=SPIN_MIN_SECONDS) for _ in range(9)]
    readings = [seconds for seconds in took if seconds is not None]
    return statistics.median(readings) if readings else None


def note_queued(context: WorkerContext, queue: Queue, *, operations: int, discarded: int) -> None:
    """Leave with the run how it was timed behind spins, and what two marks alone take."""
    context.note("queued_operations", operations)
    context.note("queued_discarded", discarded)
    context.note("timer_overhead_seconds", mark_overhead(queue))


def _nothing(_: int) -> None:
    pass


@dataclass
class QueueTimer:
    """
    Times operations behind a spin that is long enough, again and again.

    Args:
        count: Operations in each sample, found by :meth:`fit`.
        discarded: Samples thrown away because the spin ended early.
    """

    queue: Queue
    enqueue: Enqueue
    count: int
    spin_seconds: float
    discarded: int = 0

    @classmethod
    def fit(cls, queue: Queue, enqueue: Enqueue, count: int) -> Self | None:
        """
        Find a queue length, at most ``count``, that a spin can outlast; None if there is none.

        Everything runs once unhidden first: a kernel's first use blocks the host until
        the queue is empty, so behind a spin it would wait for the spin itself.
        """
        count = min(count, QUEUE_MAX)
        enqueue(1)
        queue.wait()
        while count >= 1:
            started = time.perf_counter()
            enqueue(count)
            enqueueing = time.perf_counter() - started
            queue.wait()
            spin = min(max(SPIN_MIN_SECONDS, 3 * enqueueing), SPIN_MAX_SECONDS)
            timer = cls(queue, enqueue, count, spin)
            if all(timer.attempt() is not None for _ in range(3)):
                return timer
            count //= 2
        return None

    def attempt(self) -> float | None:
        """One sample in seconds per operation; None if the spin ended early."""
        took = behind_spin(self.queue, self.enqueue, self.count, spin_seconds=self.spin_seconds)
        return None if took is None else took / self.count

    def sample(self) -> float:
        """
        One sample in seconds per operation; a longer spin is tried when one ended early.

        Raises:
            ProbeError: ``untimeable``: no spin outlasted the enqueueing any more.
        """
        return self._retried(self.attempt)

    def _retried(self, attempt: Callable[[], Tried | None]) -> Tried:
        """What the first attempt gave that a spin outlasted."""
        for _ in range(RETRIES):
            found = attempt()
            if found is not None:
                return found
            self.discarded += 1
            self.spin_seconds = min(2 * self.spin_seconds, SPIN_MAX_SECONDS)
        raise ProbeError(
            ReasonCode.UNTIMEABLE,
            f"enqueueing {self.count} operations outlasted a spin of "
            f"{self.spin_seconds * 1e3:.0f} ms {RETRIES} times in a row; is the host busy?",
        )
