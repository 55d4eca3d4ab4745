"""
The words of a verdict: what it is about, what it rests on, what it says. Pure values.

A *track* is one metric of one case on fixed devices of one host, night after night. Nights
are UTC days; the last sweep of a day counts.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from topobench.topology import Topology

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]
    Indices = NDArray[np.intp]


class Level(enum.StrEnum):
    """What a check or a verdict says."""

    OK = "ok"
    WATCH = "watch"
    DEGRADED = "degraded"
    FAIL = "fail"
    LEARNING = "learning"
    UNKNOWN = "unknown"


SEVERITY = {
    Level.UNKNOWN: 0,
    Level.LEARNING: 1,
    Level.OK: 2,
    Level.WATCH: 3,
    Level.DEGRADED: 4,
    Level.FAIL: 5,
}
"""What says more stands higher: a check that judged outranks one that could not."""

INVARIANTS, CEILING, DEVICES, PEERS, HISTORY = (
    "invariants",
    "ceiling",
    "devices",
    "peers",
    "history",
)
VALIDITY, OVERALL = "validity", "overall"


def worst(levels: Sequence[Level]) -> Level:
    """The gravest level; ``unknown`` of none."""
    return max(levels, key=SEVERITY.__getitem__, default=Level.UNKNOWN)


def worst_first(level: str) -> int:
    """What names of levels are ordered by, the gravest first."""
    return -SEVERITY[Level(level)]


@dataclass(frozen=True, slots=True)
class Track:
    """
    What is measured from night to night.

    Args:
        host: Index into :attr:`Evidence.hosts`.
        series: Tracks of one series are one case, measured by several metrics.
        case: Equal for the same measurement elsewhere: probe, version, parameters, arm,
            ranks, metric, point.
        kind: Class of the devices, so that unlike ones are not compared ("NV18").
        devices: Device keys, in order; empty for the whole host.
        better: 1 or -1.
        label: For people.
        ceiling_bytes_per_second: What its path can carry, if it is a large copy.
        has_peers: Other hosts and devices may be compared with it.
    """

    host: int
    series: int
    case: str
    devices: tuple[str, ...]
    metric: str
    unit: str
    better: int
    label: str
    kind: str = ""
    ceiling_bytes_per_second: float | None = None
    has_peers: bool = True


@dataclass(frozen=True, slots=True)
class Fault:
    """
    What a run of the sweep said of the hardware.

    Args:
        code: ``ecc_error``, ``gpu_lost``, ``pcie_downtrained`` ...
        device: Device key, if the run was of one device.
    """

    code: str
    text: str
    device: str | None = None


@dataclass(frozen=True, slots=True)
class HostEvidence:
    """
    A host as the sweep judged found it.

    Args:
        group: Shape fingerprint; None where the wiring is not known.
        seen_day: Day (since 1970) on which its wiring was read.
        expected_gpus: By the configuration, else the most seen in the nights before.
        planned: Cells that were to run; ``usable`` of them gave numbers.
        unusable: Why the others did not: reason code -> number.
        is_subject: It took part in the sweep judged; else it is a peer only.
    """

    key: str
    name: str
    group: str | None
    topology: Topology | None
    seen_day: int | None = None
    expected_gpus: int | None = None
    faults: tuple[Fault, ...] = ()
    planned: int = 0
    usable: int = 0
    unusable: Mapping[str, int] = field(default_factory=dict)
    is_subject: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """
    All that a verdict rests on.

    Args:
        as_of: UTC, ISO 8601: nothing younger counts, and ages are taken to here.
        days: Days since 1970 of the nights, ascending; the last is not after ``as_of``.
        values: Tracks x nights, base units; NaN where a night has no usable number.
        stretches: Tracks x nights; a new number begins where a recorded change cuts the
            history (driver, BIOS, kernel, GPU swap, versions).
    """

    as_of: str
    as_of_day: int
    hosts: tuple[HostEvidence, ...]
    tracks: tuple[Track, ...]
    days: Indices
    values: Matrix
    stretches: Indices


@dataclass(frozen=True, slots=True)
class Check:
    """
    What one check says of a subject.

    Args:
        value: Of the worst case, in its metric's unit.
        reference: What it was compared with.
        effect: Relative difference that two nights agree on; below 0 is worse.
        mde: Smallest effect that would be flagged with probability 0.9.
        confirmed: Nights that agree.
    """

    name: str
    level: Level
    reason: str
    value: float | None = None
    reference: float | None = None
    effect: float | None = None
    mde: float | None = None
    metric: str | None = None
    case: str | None = None
    confirmed: int | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """
    The verdict on a host or on a device of it.

    Args:
        device: Device key, or two joined by a comma for the link between them.
        advice: What an operator might do; never done by topobench.
    """

    host: str
    name: str
    device: str | None
    level: Level
    checks: tuple[Check, ...]
    advice: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Incident:
    """Many hosts of one class flagged at once: the tool or a rollout is suspected."""

    group: str
    hosts: tuple[str, ...]
    of: int
    text: str


@dataclass(frozen=True, slots=True)
class Changepoint:
    """
    A change of level in one track.

    Args:
        lo: Day (since 1970) of the last night of the old level.
        hi: Day of the first night of the new one.
    """

    track: int
    lo: int
    hi: int
    effect: float
    p: float | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdicts on every host, and on devices that are not ok; hosts in the order given."""

    subjects: tuple[Subject, ...]
    incidents: tuple[Incident, ...] = ()
    changepoints: tuple[Changepoint, ...] = ()


def plain(subject: Subject) -> dict[str, Any]:
    """A subject in JSON's types."""
    return {
        "host": subject.host,
        "name": subject.name,
        "device": subject.device,
        "level": subject.level.value,
        "advice": subject.advice,
        "checks": [
            {
                "name": c.name,
                "level": c.level.value,
                "value": c.value,
                "reference": c.reference,
                "effect": c.effect,
                "mde": c.mde,
                "reason": c.reason,
                "metric": c.metric,
                "case": c.case,
                "confirmed": c.confirmed,
            }
            for c in subject.checks
        ],
    }
