"""One GPU during one run: readings at short intervals, counters before and after."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from topobench import conditions
from topobench.agents.conditions.gpu_users import GpuUsers
from topobench.agents.conditions.nvml_counters import Glance, GpuReader, differences

_FASTEST_STATES = 2
"""P0 to P2; a GPU that works is in one of them, and its slot runs at full speed there."""
_DIGITS = 3


class GpuWatch:
    """
    Gathers what happens to a GPU between :meth:`begin` and :meth:`end`.

    Args:
        reader: Kept between runs: it knows what the GPU does not tell.
        users: Kept between runs: it knows our own processes.

    Attributes:
        began: Monotonic clock when :meth:`begin` was done.
    """

    def __init__(self, reader: GpuReader, users: GpuUsers) -> None:
        self._reader = reader
        self._users = users
        self._meter = reader.meter()
        self._glances: list[Glance] = []
        self._processes_known = False

    def is_power_capped(self) -> bool:
        """Whether the driver holds the clocks down now because of the power limit."""
        reasons = self._reader.glance().reasons
        return bool(reasons and reasons & conditions.SW_POWER_CAP)

    def begin(self) -> None:
        """Read counters; the run starts when this returns."""
        reader = self._reader
        self._users.begin()
        self._limits = reader.limits()
        self._used_before = reader.used_memory()
        self._unowned = self._look(self._used_before)
        self._counters = reader.counters()
        self._links = reader.link_counters()
        self._meter.start()
        self._glances.append(reader.glance())
        self.began = time.monotonic()

    def glance(self, *, users: bool) -> None:
        """
        One quick reading.

        Args:
            users: Also look who computes on the GPU.
        """
        self._glances.append(self._reader.glance())
        if users:
            self._look(None)

    def strangers(self) -> list[dict[str, Any]]:
        """Programs of others that computed on the GPU so far in this run."""
        found: list[dict[str, Any]] = self._users.told()["foreign"]
        return found

    def end(self) -> None:
        """Read counters again."""
        reader = self._reader
        self._glances.append(reader.glance())
        self._look(None)
        seconds = time.monotonic() - self.began
        self._activity = self._meter.stop(seconds)
        self._used_after = reader.used_memory()
        self._counted = dict(differences(self._counters, reader.counters()))
        after = reader.link_counters()
        self._link_counted = {
            str(link): dict(differences(self._links.get(link, {}), counts))
            for link, counts in after.items()
        }

    def document(self, began: float) -> dict[str, Any]:
        """
        What a run's conditions keep of this GPU (docs/conditions.md).

        Args:
            began: Monotonic clock at the run's start.
        """
        unavailable = self._reader.why_not()
        if self._meter.error:
            unavailable["activity"] = self._meter.error
        found: dict[str, Any] = {
            "readings": sum(g.known for g in self._glances),
            **_ranges(self._glances),
            **_throttle(self._glances, began),
            "limits": self._limits,
            **_slot(self._limits, self._glances),
            "counted": self._counted,
            "nvlinks": self._link_counted or None,
            "activity": self._activity or None,
            "users": self._users.told() if self._processes_known else None,
            "used_memory_bytes": _pair(self._used_before, self._used_after),
            "unowned_memory_bytes": self._unowned,
            "lost": True if self._reader.lost else None,
            "unavailable": unavailable,
        }
        return {key: value for key, value in found.items() if value is not None}

    def _look(self, used: int | None) -> int | None:
        """Look who is there; used memory that nobody listed has, None if not known."""
        running = self._reader.processes()
        if running is None:
            return None
        self._processes_known = True
        self._users.look(running)
        sizes = [p.memory_bytes for p in running]
        if used is None or None in sizes:
            return None
        return max(0, used - sum(s for s in sizes if s is not None))


def _working(glances: Sequence[Glance]) -> list[Glance]:
    """Those at which the GPU was not idle; all where that was never so."""
    return [g for g in glances if _works(g)] or list(glances)


def _works(glance: Glance) -> bool:
    if glance.performance_state is not None:
        return glance.performance_state <= _FASTEST_STATES
    return glance.reasons is not None and not glance.reasons & conditions.IDLE


def _ranges(glances: Sequence[Glance]) -> dict[str, Any]:
    working = _working(glances)
    return {
        "sm_hertz": conditions.spread(g.sm_hertz for g in working),
        "memory_hertz": conditions.spread(g.memory_hertz for g in working),
        "temperature_celsius": conditions.spread(g.temperature_celsius for g in working),
        "power_watts": conditions.spread(g.power_watts for g in working),
    }


def _throttle(glances: Sequence[Glance], began: float) -> dict[str, Any]:
    """Share of the readings with each clock reason, and when throttling was seen."""
    known = [(round(g.at - began, _DIGITS), g.reasons) for g in glances if g.reasons is not None]
    if not known:
        return {}
    masks = [mask for _, mask in known]
    bits = 0
    for mask in masks:
        bits |= mask
    shares = {
        name: round(sum(1 for m in masks if name in conditions.reason_names(m)) / len(masks), 4)
        for name in conditions.reason_names(bits)
    }
    spans = conditions.throttled_spans(known)
    return {
        "clock_reasons": shares,
        "throttled_spans": [[round(a, 4), round(b, 4), m] for a, b, m in spans] or None,
    }


def _slot(limits: Mapping[str, float], glances: Iterable[Glance]) -> dict[str, Any]:
    """
    The GPU's PCIe link while the GPU worked, and at best.

    An idle GPU lowers its link's speed; what counts is what it reaches under load.
    """
    working = [g for g in glances if _works(g) and g.pcie_generation and g.pcie_width]
    speeds = (conditions.pcie_bytes_per_second(g.pcie_generation, g.pcie_width) for g in working)
    known = {
        "loaded_readings": len(working),
        "generation": conditions.spread(g.pcie_generation for g in working),
        "width": conditions.spread(g.pcie_width for g in working),
        "bytes_per_second": max((round(s) for s in speeds if s), default=None),
        "most_bytes_per_second": _most_bytes_per_second(limits),
    }
    return {"pcie": {key: value for key, value in known.items() if value is not None}}


def _most_bytes_per_second(limits: Mapping[str, float]) -> int | None:
    generation, width = (limits.get(f"pcie_{what}") for what in ("generation", "width"))
    if generation is None or width is None:
        return None
    speed = conditions.pcie_bytes_per_second(int(generation), int(width))
    return None if speed is None else round(speed)


def _pair(before: int | None, after: int | None) -> list[int] | None:
    return None if before is None or after is None else [before, after]
