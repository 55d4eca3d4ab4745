"""
The figures of a sweep document by the GPUs that they speak of. Pure.

Only cells that ended ``ok`` or ``partial`` count; equal processes and blocks are pooled.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topobench.reading import MEASURED, Scalar

Cell = Mapping[str, Any]
AT_ONCE = "at_once"


@dataclass(frozen=True, slots=True)
class DeviceFigure:
    """
    One median.

    Args:
        devices: The GPU it speaks of; all of them for a collective or a pair.
        params: Without ``at_once``.
        busy: GPUs of the host that were measured at the same time, itself included.
    """

    host: str
    devices: tuple[str, ...]
    probe: str
    params: Mapping[str, Scalar]
    arm: str
    busy: int
    metric: str
    value: float

    @property
    def kind(self) -> tuple[Any, ...]:
        """What it has in common with figures of other devices."""
        return self.probe, tuple(sorted(self.params.items(), key=str)), self.arm, self.metric


def device_figures(cells: Sequence[Cell]) -> list[DeviceFigure]:
    """Every figure of GPUs of one host, in the order of the cells."""
    pools: dict[Any, list[float]] = defaultdict(list)
    made: dict[Any, tuple[Cell, Mapping[str, Any], tuple[str, ...]]] = {}
    for cell in cells:
        for reading, devices in _of(cell):
            params = tuple(sorted(cell["params"].items(), key=str))
            place = cell["host"], devices, len(cell["devices"]), cell["probe"], params
            key = (*place, cell["arm"], reading["metric"])
            pools[key].append(float(reading["median"]))
            made.setdefault(key, (cell, reading, devices))
    return [
        DeviceFigure(
            host=cell["host"],
            devices=devices,
            probe=cell["probe"],
            params={k: v for k, v in cell["params"].items() if k != AT_ONCE},
            arm=cell["arm"],
            busy=len(cell["devices"]) if AT_ONCE in cell["params"] else len(devices),
            metric=reading["metric"],
            value=statistics.median(pools[key]),
        )
        for key, (cell, reading, devices) in made.items()
    ]


def _of(cell: Cell) -> Iterator[tuple[Mapping[str, Any], tuple[str, ...]]]:
    """Readings of a cell with the GPUs each speaks of; sums over GPUs speak of none."""
    if cell["status"] not in MEASURED or not cell["devices"] or cell.get("hosts"):
        return
    summed = AT_ONCE in cell["params"] and len(cell["devices"]) > 1
    for reading in cell["readings"]:
        if reading["median"] is None:
            continue
        device = reading["point"].get("device")
        if device is not None:
            yield reading, (str(device),)
        elif not reading["point"] and not summed:
            yield reading, tuple(cell["devices"])
