"""
What judgements are made of: one value of one process, with all that could explain it. Pure.

``db.measured`` reads these from a store; :mod:`topobench.compare` and
:mod:`topobench.accept` judge them.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from topobench.reading import Better, Scalar

K = TypeVar("K", bound=Hashable)

VERSIONS = ("driver", "cuda", "nccl", "torch", "python", "kernel", "os", "bios", "container")
"""What of a run's software has a version."""


@dataclass(frozen=True, slots=True)
class Subject:
    """
    What was measured, on what: what stays the same from night to night.

    Args:
        host: ``cluster/key``: what a host is known by.
        devices: GPU keys in order.
        hosts: Of what several hosts measured together: ``cluster/key`` of each rank's; else empty.
        params: Of the probe.
        arm: Name of the alternative: binding, or binding/ring.
        definition: Digest of the arm as it was defined on this host.
        env: Settings of the arm.
        synthetic: Made by ``demo``.
    """

    host: str
    host_name: str
    cluster: str
    sku: str | None
    devices: tuple[str, ...]
    probe: str
    version: int
    params: Mapping[str, Scalar]
    params_hash: str
    arm: str
    definition: str
    env: Mapping[str, str]
    n_ranks: int
    n_hosts: int
    source: str
    synthetic: bool
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Software:
    """
    Versions and settings of a run.

    Args:
        details: Everything else that it said of itself; empty if nothing.
    """

    driver: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    torch: str | None = None
    python: str | None = None
    kernel: str | None = None
    os: str | None = None
    bios: str | None = None
    container: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def differences(self, other: Software) -> list[str]:
        """``driver 570.86 against 580.95`` for each version that differs and is known."""
        pairs = [(n, getattr(self, n), getattr(other, n)) for n in VERSIONS]
        return [f"{n} {a} against {b}" for n, a, b in pairs if a and b and a != b]


@dataclass(frozen=True, slots=True)
class Wiring:
    """Fingerprints of a host's topology during a run."""

    shape: str | None
    config: str | None
    health: str | None


@dataclass(frozen=True, slots=True)
class Value:
    """
    A metric of one process.

    Args:
        began: When the sweep began, UTC.
        process: (process number, block) inside the sweep.
        path_class: Farthest path class among the devices.
        rank: Rank that it belongs to; None for the whole run.
        device: GPU that it belongs to, where a gang tells its ranks apart.
        n: Samples.
        median: Of the samples, in the metric's base unit.
        warnings: Codes of what the conditions of the run were warned of.
    """

    run: str
    sweep: str
    began: str
    process: tuple[int, int]
    at: str
    subject: Subject
    software: Software
    wiring: Wiring | None
    path_class: str | None
    metric: str
    unit: str
    better: Better
    point: str
    rank: int | None
    device: str | None
    n: int
    median: float
    p99: float | None = None
    warnings: frozenset[str] = frozenset()

    @property
    def night(self) -> str:
        """The UTC day on which the sweep began."""
        return self.began[:10]


def grouped(values: Iterable[Value], key: Callable[[Value], K]) -> dict[K, list[Value]]:
    """Values by key, in the order met."""
    found: dict[K, list[Value]] = {}
    for value in values:
        found.setdefault(key(value), []).append(value)
    return found


def collapsed(
    values: Sequence[Value],
    levels: Sequence[Callable[[Value], Hashable]],
    of: Callable[[Value], float],
) -> float:
    """
    One number of many: the median over the first level of the medians over the next, and so on.

    Nested, so that a night with more processes or a host with more nights weighs no more.
    """
    if len(values) == 1:
        return of(values[0])
    if not levels:
        return statistics.median(map(of, values))
    parts = grouped(values, levels[0]).values()
    return statistics.median(collapsed(p, levels[1:], of) for p in parts)


def inputs_digest(values: Iterable[Value], *more: Any) -> str:
    """
    SHA-256, hexadecimal, of what a judgement rests on; equal for equal inputs in any order.

    Args:
        more: Plain JSON values that it rests on beside the measurements.
    """
    rows = sorted((v.run, v.metric, v.point, v.median, v.p99 or 0.0) for v in values)
    text = json.dumps([rows, more], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
