"""
The words of a run's conditions: what was true of the host and its devices meanwhile.

Pure. ``agents.conditions`` gathers the document, ``validity`` judges it, reports show it;
docs/conditions.md lists its keys.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from topobench.pcie import link_bytes_per_second

IDLE = 0x1
SW_POWER_CAP = 0x4
CLOCK_REASONS: Mapping[int, str] = {
    IDLE: "idle",
    0x2: "application_clocks",
    SW_POWER_CAP: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
"""Bits of NVML's clocks event reasons: why a GPU's clocks are below their maximum."""
THROTTLING = SW_POWER_CAP | 0x8 | 0x20 | 0x40 | 0x80
"""Those that make a number a number of another machine; the others are idleness or settings."""

Span = tuple[float, float, int]
"""Start and end in seconds since the run's start, and the throttling bits between them."""


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """
    What crossed one link during a run, in bytes.

    Args:
        device: UUID of a GPU, or name of a NIC.
        kind: ``nvlink`` or ``nic``.
        link: Index of the NVLink or number of the port; None where the device is the link.
        sent: By the device; None if unknown.
    """

    device: str
    kind: str
    link: int | None
    sent: int | None
    received: int | None


def link_bytes(conditions: Mapping[str, Any]) -> tuple[LinkBytes, ...]:
    """
    Bytes that each NVLink and NIC carried, as far as they were counted.

    NICs that are absent carried nothing, unless ``conditions["nics"]`` is None: unknown.
    """
    return tuple(_gpu_links(conditions)) + tuple(_nic_links(conditions))


def _gpu_links(conditions: Mapping[str, Any]) -> Iterator[LinkBytes]:
    for uuid, gpu in (conditions.get("gpus") or {}).items():
        for index, link in (gpu.get("nvlinks") or {}).items():
            sent, received = link.get("sent_bytes"), link.get("received_bytes")
            yield LinkBytes(uuid, "nvlink", int(index), sent, received)


def _nic_links(conditions: Mapping[str, Any]) -> Iterator[LinkBytes]:
    for name, counted in (conditions.get("nics") or {}).items():
        device, _, port = name.partition("/")
        sent, received = counted.get("sent_bytes", 0), counted.get("received_bytes", 0)
        yield LinkBytes(device, "nic", int(port) if port else None, sent, received)


def reason_names(mask: int) -> list[str]:
    """Names of the bits of a clocks event mask; an unknown bit is its number."""
    bits = (1 << i for i in range(mask.bit_length()) if mask >> i & 1)
    return [CLOCK_REASONS.get(bit, f"0x{bit:x}") for bit in bits]


def spread(values: Iterable[float | None]) -> list[float] | None:
    """Lowest, median and highest of the values that are known; None if none is."""
    known = [v for v in values if v is not None]
    return [min(known), statistics.median_low(known), max(known)] if known else None


def throttled_spans(readings: Sequence[tuple[float, int]]) -> list[Span]:
    """
    When a GPU was throttled, from readings of its clocks event mask.

    Between two readings the state is that of the nearer one.

    Args:
        readings: (seconds since the run's start, mask), ascending; masks that were
            not known are left out.
    """
    found: list[Span] = []
    for i, (at, mask) in enumerate(readings):
        bits = mask & THROTTLING
        if not bits:
            continue
        start = (readings[i - 1][0] + at) / 2 if i else min(0.0, at)
        end = (at + readings[i + 1][0]) / 2 if i + 1 < len(readings) else at
        if found and found[-1][1] == start and found[-1][2] == bits:
            found[-1] = (found[-1][0], end, bits)
        else:
            found.append((start, end, bits))
    return found


def pcie_bytes_per_second(generation: int | None, width: int | None) -> float | None:
    """One direction of a PCIe link after encoding; None where something is unknown."""
    if not generation:
        return None
    rate = {1: 2.5, 2: 5.0}.get(generation, 8.0 * 2.0 ** (generation - 3))  # GT/s
    return link_bytes_per_second(rate, width)
