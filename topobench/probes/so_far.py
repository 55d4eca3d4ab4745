"""
Samples leave the worker while it measures, so that no hang and no death takes them along.

A probe names what its next samples will be a reading of (:func:`durations`, :func:`rates`);
each sampler made meanwhile hands its samples on, between two of them: the first at once, then
a few times a second. The launcher keeps them until the reading itself comes. Where nobody
listens, as in a probe that is used by itself, nothing happens.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from topobench.reading import Reading, Scalar

EVERY_SECONDS = 0.1
"""After the first, samples are told at most that often: telling takes nothing from the next."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """
    What samples, which are seconds, will be a reading of.

    Args:
        amount: Of what is told per second; None where the seconds are the value.
        parts: Operations in what a sample takes as one.
    """

    metric: str
    amount: float | None = None
    parts: int = 1
    point: Mapping[str, Scalar] = field(default_factory=dict)

    def of(self, seconds: float) -> float:
        """The value of a sample, in the metric's unit."""
        each = seconds / self.parts
        return each if self.amount is None else self.amount / each


class Series:
    """Samples of one sampler, until they have been told."""

    def __init__(self, quantity: Quantity, number: int, look: Callable[[bool], None]) -> None:
        self.quantity = quantity
        self._number = number
        self._look = look
        self._first = True
        self._warm: list[float] = []
        self._counted: list[float] = []
        self._stop_reason: str | None = None

    def take(
        self,
        seconds: float,
        *,
        slowest: float | None = None,
        counted: bool = True,
        stop_reason: str | None = None,
    ) -> None:
        """
        Take in a sample, outside any timed part.

        Args:
            slowest: Of several GPUs at once the slowest one's seconds, which durations are of.
            counted: It is no warm-up.
            stop_reason: Why this one was the last, if it was.
        """
        if slowest is not None and self.quantity.amount is None:
            seconds = slowest
        (self._counted if counted else self._warm).append(seconds)
        self._stop_reason = stop_reason
        self._look(self._first)
        self._first = False

    def news(self) -> dict[str, Any] | None:
        """What has not been told yet; None if nothing."""
        warm, counted = (self._values(s) for s in (self._warm, self._counted))
        self._warm, self._counted = [], []
        if not (warm or counted):
            return None
        return {
            "series": self._number,
            "metric": self.quantity.metric,
            "point": self.quantity.point,
            "warm": warm,
            "counted": counted,
            "stop_reason": self._stop_reason,
        }

    def _values(self, samples: list[float]) -> list[float]:
        """Without what no clock can give, which the reading itself will be refused for."""
        return [self.quantity.of(s) for s in samples if 0 < s < math.inf]


class Teller:
    """
    Tells the samples of a cell as they come.

    Args:
        tell: Sends one message to the launcher.
        metrics: Those that the probe declares.
    """

    def __init__(self, tell: Callable[[Mapping[str, Any]], None], metrics: Collection[str]) -> None:
        self._tell = tell
        self._metrics = metrics
        self._series: list[Series] = []
        self._begun = 0
        self._told_at = time.monotonic()

    def begin(self, quantity: Quantity) -> Series:
        """
        Begin a series; it takes the place of an earlier one of the same quantity.

        Raises:
            ValueError: The probe does not declare the metric.
        """
        if quantity.metric not in self._metrics:
            raise ValueError(f"samples of the undeclared metric {quantity.metric!r}")
        self._begun += 1
        series = Series(quantity, self._begun, self._look)
        self._series.append(series)
        return series

    def settle(self, reading: Reading) -> None:
        """A reading is told, and with it the samples of its series."""
        self._series = [
            s
            for s in self._series
            if (s.quantity.metric, s.quantity.point) != (reading.metric, reading.point)
        ]

    def flush(self) -> None:
        """Tell now what has not been told yet."""
        for series in self._series:
            if (news := series.news()) is not None:
                self._tell(news)
        self._told_at = time.monotonic()

    def _look(self, first: bool) -> None:
        if first or time.monotonic() - self._told_at >= EVERY_SECONDS:
            self.flush()


_teller: ContextVar[Teller | None] = ContextVar("teller", default=None)
_quantity: ContextVar[Quantity | None] = ContextVar("quantity", default=None)


@contextlib.contextmanager
def listening(teller: Teller | None) -> Iterator[None]:
    """Have the samplers made meanwhile tell what they take; None: nobody listens."""
    before = _teller.set(teller)
    try:
        yield
    finally:
        _teller.reset(before)


@contextlib.contextmanager
def durations(
    metric: str, *, parts: int = 1, point: Mapping[str, Scalar] | None = None
) -> Iterator[None]:
    """
    Samples of samplers made meanwhile are seconds of ``metric``.

    Args:
        parts: Operations in what a sample takes as one.
    """
    with _named(Quantity(metric, parts=parts, point=dict(point or {}))):
        yield


@contextlib.contextmanager
def rates(
    metric: str, amount: float, *, point: Mapping[str, Scalar] | None = None
) -> Iterator[None]:
    """Samples of samplers made meanwhile are what ``amount`` takes, as ``metric`` per second."""
    with _named(Quantity(metric, amount, point=dict(point or {}))):
        yield


def series() -> Series | None:
    """A new series of what has been named; None if nothing was, or nobody listens."""
    teller, quantity = _teller.get(), _quantity.get()
    return teller.begin(quantity) if teller is not None and quantity is not None else None


@contextlib.contextmanager
def _named(quantity: Quantity) -> Iterator[None]:
    before = _quantity.set(quantity)
    try:
        yield
    finally:
        _quantity.reset(before)
