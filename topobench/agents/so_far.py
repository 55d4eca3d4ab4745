"""Samples that a worker told while it measured: what is left of a cell that never ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from topobench import stats
from topobench.reading import SAMPLES_TOLD, Reading, Scalar


@dataclass(slots=True)
class _Series:
    number: int
    metric: str
    point: dict[str, Scalar]
    warm: list[float] = field(default_factory=list)
    counted: list[float] = field(default_factory=list)
    stop_reason: str | None = None

    def reading(self) -> Reading:
        """Warm-ups count only where there is nothing else."""
        warmups = len(self.warm) if self.counted else 0
        samples = (*self.warm, *self.counted)
        stop = self.stop_reason or "aborted"
        summary = stats.summarise(samples, warmups=warmups, stop_reason=stop)
        return Reading(self.metric, summary, samples, self.point)


class SoFar:
    """The samples of the cell in hand that are in no reading yet, by metric and point."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    def clear(self) -> None:
        """Begin the next cell."""
        self._series.clear()

    def take(self, message: Mapping[str, Any]) -> None:
        """
        Add to a series; a later one of the same metric and point takes its place.

        Raises:
            KeyError, TypeError, ValueError: The message is none of a worker's.
        """
        number, metric, point = int(message["series"]), str(message["metric"]), message["point"]
        warm, counted = (_numbers(message[name]) for name in ("warm", "counted"))
        if not (warm or counted):
            raise ValueError("there is no sample in it")
        key = _key(metric, point)
        found = self._series.get(key)
        if found is None or found.number != number:
            found = self._series[key] = _Series(number, metric, dict(point))
        found.warm += warm
        found.counted += counted
        found.stop_reason = message["stop_reason"]

    def settle(self, reading: Reading) -> None:
        """The reading itself has come."""
        self._series.pop(_key(reading.metric, reading.point), None)

    def readings(self) -> tuple[Reading, ...]:
        """What the samples amount to by now."""
        return tuple(s.reading() for s in self._series.values())


def told(readings: tuple[Reading, ...]) -> tuple[str, ...]:
    """The warning that a run has such readings; none if it has not."""
    if not readings:
        return ()
    counts = ", ".join(f"{r.metric}: {r.summary.n}" for r in readings)
    return (f"{SAMPLES_TOLD}the samples taken until then are kept as raw values ({counts})",)


def _key(metric: str, point: Mapping[str, Scalar]) -> str:
    return json.dumps([metric, dict(point)], sort_keys=True)


def _numbers(values: Any) -> list[float]:
    found = [float(v) for v in values]
    if not all(map(math.isfinite, found)):
        raise ValueError("a sample is not a finite number")
    return found
