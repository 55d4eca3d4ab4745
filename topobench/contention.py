"""
What GPUs of a host lose when all are measured at once, and which shared path explains it. Pure.

A path is named where all GPUs behind it lose. That is a reading of the wiring, not a proof: the
figures stand beside it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topobench.device_figures import DeviceFigure
from topobench.probes.metrics import PER_CALL_BANDWIDTH
from topobench.shared_paths import SharedPath

LOSS = 0.05
"""Less is no contention but noise."""
OVER_PATHS = frozenset({"host_to_device", "weight_load"})
"""Probes whose work goes over the paths that GPUs share; others lose to power, heat or the host."""


@dataclass(frozen=True, slots=True)
class Contention:
    """
    Loss of some GPUs in one kind of measurement.

    Args:
        path: What they share; None: nothing that is known, or nothing that carries this work.
        alone: Median of what each gets alone.
        together: Median of what each gets while all are busy.
        total: Sum of what they get while all are busy.
    """

    host: str
    figure: DeviceFigure
    path: SharedPath | None
    devices: tuple[str, ...]
    alone: float
    together: float
    total: float

    @property
    def share(self) -> float:
        """What is left of a GPU's figure."""
        return self.together / self.alone


def find(
    figures: Sequence[DeviceFigure], paths: Mapping[str, Sequence[SharedPath]]
) -> list[Contention]:
    """
    The losses of each kind of measurement, by the narrowest path that explains them.

    Only rates measured both alone and at once count, per arm, and no rates of single calls.

    Args:
        paths: By host key, the narrowest first.
    """
    pairs: dict[Any, dict[str, tuple[DeviceFigure, float]]] = defaultdict(dict)
    for single, together in _pairs(figures):
        pairs[single.host, single.kind][single.devices[0]] = single, together
    found: list[Contention] = []
    for (host, _), by_device in pairs.items():
        losing = {d for d, (f, v) in by_device.items() if v < (1 - LOSS) * f.value}
        found += _explained(host, by_device, losing, paths.get(host, ()))
    return found


def kept(figures: Sequence[DeviceFigure]) -> dict[str, float]:
    """By probe, the smallest share of its own figure that a GPU kept while all were busy."""
    found: dict[str, float] = {}
    for single, together in _pairs(figures):
        share = together / single.value
        found[single.probe] = min(share, found.get(single.probe, share))
    return found


def _pairs(figures: Sequence[DeviceFigure]) -> Iterator[tuple[DeviceFigure, float]]:
    """
    A GPU's figure alone, and what it had while all were busy.

    What single calls of the host take says nothing of a path.
    """
    rates = [f for f in figures if f.metric.endswith("_per_second") and len(f.devices) == 1]
    wanted = [f for f in rates if f.metric != PER_CALL_BANDWIDTH.name]
    at_once = {(f.host, f.devices, f.kind): f.value for f in wanted if f.busy > 1}
    for figure in wanted:
        together = at_once.get((figure.host, figure.devices, figure.kind))
        if figure.busy == 1 and together is not None:
            yield figure, together


def _explained(
    host: str,
    by_device: Mapping[str, tuple[DeviceFigure, float]],
    losing: set[str],
    paths: Sequence[SharedPath],
) -> Iterator[Contention]:
    """Each path whose GPUs all lose takes them; the rest has no known path."""
    left = set(losing)
    carried = next(iter(by_device.values()))[0].probe in OVER_PATHS
    for path in paths if carried else ():
        measured = [d for d in path.devices if d in by_device]
        if len(measured) > 1 and left.issuperset(measured):
            yield _contention(host, by_device, measured, path)
            left -= set(measured)
    if left:
        yield _contention(host, by_device, [d for d in by_device if d in left], None)


def _contention(
    host: str,
    by_device: Mapping[str, tuple[DeviceFigure, float]],
    devices: Sequence[str],
    path: SharedPath | None,
) -> Contention:
    alone = [by_device[d][0].value for d in devices]
    together = [by_device[d][1] for d in devices]
    return Contention(
        host=host,
        figure=by_device[devices[0]][0],
        path=path,
        devices=tuple(devices),
        alone=statistics.median(alone),
        together=statistics.median(together),
        total=sum(together),
    )
