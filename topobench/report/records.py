"""
The readings of a sweep document, flattened and pooled for tables.

Only readings of cells that ended ``ok`` or ``partial`` become figures.
"""

from __future__ import annotations

import enum
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topobench import env_arms, stats
from topobench.reading import MEASURED, CiLevel, MemoryPolicy, Scalar
from topobench.report.notes import PROOFS, environments
from topobench.report.safe import clean
from topobench.report.words import shown_params
from topobench.topology import format_cpu_list

ARM = "arm"
UNIT = "on"
CPU_NODE = "CPU node"
MEMORY_NODE = "memory node"
"""Dimensions beside the parameters: the alternative, the GPU or host, the NUMA nodes."""

Key = tuple[Scalar, ...]


class Basis(enum.StrEnum):
    """What the share beside a median speaks of."""

    SPREAD = "spread"
    RANGE = "range"
    INTERVAL = "interval"


TITLES = {
    Basis.SPREAD: "sample\nspread",
    Basis.RANGE: "process\nrange",
    Basis.INTERVAL: "95 %\ninterval",
}
"""Of the column; an arm, too, may be called "spread"."""
MEANINGS = {
    Basis.SPREAD: "sample spread: median absolute deviation of the samples of one process, "
    "as a share of the median. It says nothing about another process, night or host.",
    Basis.RANGE: "process range: half the distance between the lowest and the highest of fewer "
    "than six processes, as a share of their median.",
    Basis.INTERVAL: "95 % interval: +/-, half the width of the 95 % interval of the median between "
    "processes or nights, as a share of the median.",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """
    One printed number.

    Args:
        median: Of the samples of one process, or of the medians of several.
        spread: Share of the median; None if not known. ``basis`` says what it is.
        n: Samples of each process, at least; 0 if not known.
    """

    median: float
    spread: float | None
    n: int
    basis: Basis
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Record:
    """
    A figure with where it stands: every dimension of its cell and reading.

    Args:
        points: Those dimensions that are of the reading: parts of what one cell measured.
    """

    metric: str
    dimensions: Mapping[str, Scalar]
    figure: Figure
    points: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Places:
    """
    What to call hosts and GPUs; indices and names are for reading only.

    Args:
        hosts: Host key -> name.
        gpus: GPU UUID -> ``GPU 3``.
        hardware: Host key -> SKU; empty where all hosts are alike.
    """

    hosts: Mapping[str, str]
    gpus: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, hosts: Sequence[Mapping[str, Any]]) -> Places:
        """The places of a sweep document's hosts."""
        hardware = {h["key"]: clean(h["sku"] or h["description"].get("sku")) for h in hosts}
        return cls(
            hosts={h["key"]: clean(h["name"]) for h in hosts},
            gpus={
                gpu["key"]: f"GPU {gpu['index']}"
                for host in hosts
                for gpu in host["description"].get("devices", ())
                if gpu["index"] is not None
            },
            hardware=hardware if len(set(hardware.values())) > 1 else {},
        )

    def devices(self, keys: Sequence[str]) -> str:
        """``GPU 3``, ``GPU 0-1``, or the start of a UUID where no index is known."""
        shown = [self.gpus.get(k) or clean(k)[:12] for k in keys]
        indices = [s.removeprefix("GPU ") for s in shown]
        if all(i.isdigit() for i in indices):
            return f"GPU {format_cpu_list(map(int, indices))}" if indices else ""
        return ", ".join(shown)

    def pair(self, keys: Sequence[str]) -> str:
        """``GPU 0>1``: from the first to the second."""
        first, second = (self.devices([key]) for key in keys)
        return f"{first}>{second.removeprefix('GPU ')}"

    def unit(self, cell: Mapping[str, Any]) -> str:
        """
        Where a cell ran: ``GPU 3``, or ``gpu01:GPU3`` where there are several hosts.

        A pair that one process measures has a direction: ``GPU 0>1``. What several hosts
        measure together is ``gpu01-gpu02``, or ``8 hosts``.
        """
        if spanned := list(dict.fromkeys(cell.get("hosts") or ())):
            names = [self.hosts.get(h) or clean(h) for h in spanned]
            return "-".join(names) if len(names) == 2 else f"{len(names)} hosts"
        paired = cell.get("ranks") == 1 and len(cell["devices"]) == 2
        devices = self.pair(cell["devices"]) if paired else self.devices(cell["devices"])
        if len(self.hosts) < 2:
            return devices
        host = self.hosts.get(cell["host"]) or clean(cell["host"])
        return ":".join(p for p in (host, devices.replace(" ", "")) if p)


def records(
    cells: Sequence[Mapping[str, Any]], places: Places, *, each_gpu: bool = False
) -> list[Record]:
    """
    One record per metric and set of dimensions; equal processes and blocks are pooled.

    Args:
        cells: Of one probe.
        each_gpu: The parts of the GPUs that were measured at once, instead of their sums.
    """
    measured = [c for c in cells if c["status"] in MEASURED]
    matrix = _is_numa_matrix(measured)
    named = environments(measured) is not None
    pools: dict[tuple[str, tuple[tuple[str, Scalar], ...]], list[Mapping[str, Any]]]
    pools = defaultdict(list)
    points: dict[str, tuple[str, ...]] = {}
    for cell in measured:
        fixed = _dimensions(cell, matrix, places)
        if cell["env"] and not named:
            fixed["env"] = env_arms.text_of(cell["env"])
        for reading in (_of_gpus if each_gpu else _totals)(cell["readings"]):
            place = {**reading["point"], **fixed}
            points[reading["metric"]] = tuple(reading["point"])
            if each_gpu:
                devices = [reading["point"]["device"]]
                place = {**fixed, UNIT: places.unit({**cell, "devices": devices})}
            pools[reading["metric"], tuple(place.items())].append(reading)
    return [
        Record(metric, dict(key), pooled(found), points.get(metric, ()))
        for (metric, key), found in pools.items()
    ]


def pooled(readings: Sequence[Mapping[str, Any]]) -> Figure:
    """The figure of equal readings of one or more processes."""
    medians = [float(r["median"]) for r in readings]
    middle, k = statistics.median(medians), len(medians)
    n = min(int(r["n"] or 0) for r in readings)
    if k == 1:
        return _single(readings[0], middle, n)
    ends = stats.interval(medians)
    basis = Basis.INTERVAL if ends else Basis.RANGE
    low, high = ends or (min(medians), max(medians))
    return Figure(middle, _share((high - low) / 2, middle), n, basis, k)


def _single(reading: Mapping[str, Any], middle: float, n: int) -> Figure:
    low, high, mad = (reading.get(k) for k in ("ci_lo", "ci_hi", "mad"))
    if reading["ci_level"] == CiLevel.BETWEEN and low is not None and high is not None:
        return Figure(middle, _share((high - low) / 2, middle), n, Basis.INTERVAL)
    spread = None if mad is None or n < 2 else _share(mad, middle)
    return Figure(middle, spread, n, Basis.SPREAD)


def _totals(readings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Results with a number; parts (of each rank) only where there is no whole."""
    known = [r for r in readings if r["median"] is not None]
    whole = {r["metric"] for r in known if not r["point"]}
    return [
        r
        for r in known
        if (not r["point"] or r["metric"] not in whole) and r["metric"] not in PROOFS
    ]


def _of_gpus(readings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Parts with a number, of one GPU each."""
    return [r for r in readings if r["median"] is not None and "device" in r["point"]]


def _share(width: float, middle: float) -> float | None:
    return abs(width / middle) if middle else None


def _dimensions(cell: Mapping[str, Any], matrix: bool, places: Places) -> dict[str, Scalar]:
    """Parameters, then where, then the arm."""
    found: dict[str, Scalar] = {**shown_params(cell["params"]), "ranks": cell["ranks"]}
    if places.hardware:
        found["hardware"] = places.hardware.get(cell["host"])
    if unit := places.unit(cell):
        found[UNIT] = unit
    binding = cell["binding"]
    if matrix:
        found = {k: v for k, v in found.items() if k not in ("cpu_node", "memory_node")}
        found[CPU_NODE] = binding["cpu_nodes"][0]
        found[MEMORY_NODE] = f"mem {binding['memory_nodes'][0]}"
    else:
        found[ARM] = cell["arm"]
    return found


def _is_numa_matrix(cells: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the arms are pairs of a CPU node and a memory node."""
    return bool(cells) and all(
        not c["devices"]
        and len(c["binding"]["cpu_nodes"]) == 1
        and len(c["binding"]["memory_nodes"]) == 1
        and c["binding"]["memory"] == MemoryPolicy.BIND
        for c in cells
    )
